//! A host for tests: stores that remember every record, devices that end in random order, a power
//! switch.
//!
//! How: a block's content is eight cells of 512 bytes, a number each. Persistent levels keep every
//! durable record with its age; a crash forgets what was not durable (or keeps some of it by
//! chance), and recovery takes the newest record of each block, as the real stores do.
//! Invariant checked at every step: memory levels get no dirty block, shares and caps hold.

use crate::*;
use layby_types::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::string::String;
use std::vec::Vec;

pub(super) const CELL: u64 = 512;
pub(super) const CELLS: usize = 8;
pub(super) type Content = [u32; CELLS];

#[derive(Clone, Debug)]
enum Record {
    Block { level: u8, slot: u32, key: BlockKey, content: Content },
    Tombstone { volume: VolumeId, first: u64, count: u64, redo: Redo },
    Forget { key: BlockKey },
}

#[derive(Clone, Debug)]
struct Logged {
    seq: u64,
    level: u8,
    record: Record,
    durable: bool,
    /// The record was freed when the log had come this far.
    freed: Option<u64>,
    /// The backing store has the version, and the record may say so.
    clean: bool,
}

/// A request's answer, once complete.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) request: RequestId,
    pub(super) result: Result<(), ErrorKind>,
    pub(super) cells: Vec<u32>,
}

pub(super) struct Host {
    pub(super) cache: Cache,
    pub(super) rng: Rng,
    pub(super) now: Nanos,
    /// What each slot of each level holds now.
    slots: Vec<BTreeMap<u32, (BlockKey, Content)>>,
    log: Vec<Logged>,
    seq: u64,
    /// Backing contents now, and as they survive a power cut.
    backing: BTreeMap<BlockKey, Content>,
    backing_durable: BTreeMap<BlockKey, Content>,
    buffers: HashMap<OpId, Vec<Content>>,
    payloads: HashMap<RequestId, Vec<u32>>,
    answers: HashMap<RequestId, Vec<u32>>,
    pending: Vec<Action>,
    pub(super) completed: Vec<Answer>,
    pub(super) events: Vec<Event>,
    pub(super) drained: Vec<(u64, Result<(), ErrorKind>)>,
    pub(super) level_writes: Vec<u64>,
    pub(super) reads_below: Vec<(BlockIndex, u32)>,
    pub(super) backing_fault: Option<ErrorKind>,
    /// Writes to these volumes' backing stores never end.
    pub(super) silent: BTreeSet<VolumeId>,
    /// The volume whose backing store has it; all without.
    pub(super) faulty: Option<VolumeId>,
    /// What stores into levels end with.
    pub(super) level_fault: Option<ErrorKind>,
    /// What syncs of levels end with.
    pub(super) sync_fault: Option<ErrorKind>,
    /// Blocks that no level can return, and what their reads end with.
    pub(super) unreadable: BTreeSet<BlockKey>,
    pub(super) unreadable_for: ErrorKind,
    /// Blocks that the backing store cannot return, and what their reads end with.
    pub(super) bad_below: BTreeMap<BlockKey, ErrorKind>,
    pub(super) specs: Vec<VolumeSpec>,
    request_next: u64,
    /// Actions end in the order in which they began.
    pub(super) in_order: bool,
    /// Slots that cleaning waits for.
    cleaning: BTreeSet<(u8, u32)>,
    /// Slots that it was told to copy after all.
    pub(super) kept: Vec<(LevelIndex, Slot)>,
}

impl Host {
    pub(super) fn new(spec: CacheSpec, volumes: &[VolumeSpec], seed: u64) -> Host {
        let levels = spec.levels.len();
        let mut cache = Cache::new(spec).expect("the test's specification is sound");
        for volume in volumes {
            cache.add_volume(volume).expect("the test's volumes are sound");
        }
        cache.set_stepwise(seed % 4 == 3);
        Host {
            cache,
            rng: Rng::new(seed),
            now: Nanos::from_secs(1),
            slots: (0..levels).map(|_| BTreeMap::new()).collect(),
            log: Vec::new(),
            seq: 0,
            backing: BTreeMap::new(),
            backing_durable: BTreeMap::new(),
            buffers: HashMap::new(),
            payloads: HashMap::new(),
            answers: HashMap::new(),
            pending: Vec::new(),
            completed: Vec::new(),
            events: Vec::new(),
            drained: Vec::new(),
            level_writes: std::vec![0; levels],
            reads_below: Vec::new(),
            backing_fault: None,
            silent: BTreeSet::new(),
            faulty: None,
            level_fault: None,
            sync_fault: None,
            unreadable: BTreeSet::new(),
            unreadable_for: ErrorKind::Corrupt,
            bad_below: BTreeMap::new(),
            specs: volumes.to_vec(),
            request_next: 0,
            in_order: false,
            cleaning: BTreeSet::new(),
            kept: Vec::new(),
        }
    }

    /// Submits a call; `value` fills the cells of a write.
    pub(super) fn submit(&mut self, volume: VolumeId, call: Call, value: u32) -> RequestId {
        let request = RequestId(self.request_next);
        self.request_next += 1;
        let cells = (call.length / CELL) as usize;
        match call.operation {
            Operation::Write => drop(self.payloads.insert(request, std::vec![value; cells])),
            Operation::Read => drop(self.answers.insert(request, std::vec![u32::MAX; cells])),
            _ => {}
        }
        let mut actions = Vec::new();
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_request(&mut moment, request, volume, &call, &mut actions);
        self.perform(actions);
        request
    }

    pub(super) fn tick(&mut self, span: Nanos) {
        self.now = self.now + span;
        let mut actions = Vec::new();
        self.cache.on_tick(&mut Moment { now: self.now, rng: &mut self.rng }, &mut actions);
        self.perform(actions);
    }

    /// Shows live blocks of a victim; what is answered is held against the level at once.
    pub(super) fn clean(
        &mut self,
        level: LevelIndex,
        slots: &[Slot],
        segments: cleaning::Segments,
    ) -> Vec<Cleaned> {
        let (mut answers, mut actions) = (Vec::new(), Vec::new());
        let reserved = self.above_reservation(level);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let step = CleaningStep { level, slots, segments };
        self.cache.on_cleaning(&mut moment, &step, &mut answers, &mut actions);
        assert_eq!(answers.len(), slots.len());
        for (slot, answer) in slots.iter().zip(&answers) {
            let is_freed =
                actions.iter().any(|it| matches!(it, Action::Free { slot: s, .. } if s == slot));
            assert!(is_freed || *answer != Cleaned::Dropped, "{slot:?} was dropped");
            if *answer == Cleaned::Destaging {
                self.cleaning.insert((level.0, slot.0));
            }
        }
        let reserved_now = self.above_reservation(level);
        assert!(reserved.iter().all(|id| reserved_now.contains(id)), "{reserved:?} fall");
        self.perform(actions);
        answers
    }

    /// The volumes that hold more than is reserved for them and their classes.
    fn above_reservation(&self, level: LevelIndex) -> Vec<VolumeId> {
        let share = |shares: &[Share; LEVELS_MAX]| shares[usize::from(level.0)].guaranteed;
        let used = |volume: &VolumeSpec| self.cache.held_by(volume.id, level).0;
        let is_above = |volume: &&VolumeSpec| {
            let class = &self.cache.spec().classes[usize::from(volume.class.0)];
            let siblings = self.specs.iter().filter(|other| other.class == volume.class);
            let is_reserved = share(&volume.shares) > 0 || share(&class.shares) > 0;
            let class_used: u32 = siblings.map(used).sum();
            is_reserved && used(volume) > share(&volume.shares) && class_used > share(&class.shares)
        };
        self.specs.iter().filter(is_above).map(|volume| volume.id).collect()
    }

    pub(super) fn set_stuck(&mut self, volume: VolumeId, is_stuck: bool) {
        let mut actions = Vec::new();
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.set_stuck(&mut moment, volume, is_stuck, &mut actions);
        self.perform(actions);
    }

    pub(super) fn remove(&mut self, volume: VolumeId) {
        let mut actions = Vec::new();
        assert_eq!(self.cache.remove_volume(volume, OnDirty::Discard, &mut actions), Ok(()));
        self.perform(actions);
    }

    /// The backing store has blocks at hand.
    pub(super) fn at_hand(&mut self, volume: VolumeId, first: u64, count: u64) {
        let mut actions = Vec::new();
        self.cache.on_at_hand(volume, (BlockIndex(first), count), &mut actions);
        self.perform(actions);
    }

    pub(super) fn drain(&mut self, ticket: u64, volume: Option<VolumeId>) {
        let mut actions = Vec::new();
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.drain(&mut moment, ticket, volume, &mut actions);
        self.perform(actions);
    }

    /// Ends one action in flight, chosen by chance; false when none is.
    pub(super) fn step(&mut self) -> bool {
        let ending = self.ending();
        if ending.is_empty() {
            return false;
        }
        let chance = self.rng.below(ending.len() as u64) as usize;
        let action = self.pending.remove(ending[if self.in_order { 0 } else { chance }]);
        let (op, result) = self.end(action);
        let mut actions = Vec::new();
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_done(&mut moment, op, result, &mut actions);
        self.perform(actions);
        true
    }

    /// Where the actions are that may end.
    fn ending(&self) -> Vec<usize> {
        let ends = |action: &Action| match action {
            Action::WriteBacking { volume, .. } => !self.silent.contains(volume),
            _ => true,
        };
        (0..self.pending.len()).filter(|at| ends(&self.pending[*at])).collect()
    }

    pub(super) fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets so many seconds go by, a quarter at a time.
    pub(super) fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.tick(Nanos::from_millis(250));
            self.settle();
        }
    }

    /// What the backing store durably has of a block; zeros where it was given nothing.
    pub(super) fn at_home(&self, key: BlockKey) -> u32 {
        self.backing_durable.get(&key).map_or(0, |content| content[0])
    }

    /// Actions that have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Runs a call to its end; where nothing is in flight, the cache's own timers go off.
    pub(super) fn run(&mut self, volume: VolumeId, call: Call, value: u32) -> Answer {
        const TIMERS_MAX: u32 = 10_000;
        let request = self.submit(volume, call, value);
        let mut timers = 0;
        loop {
            if let Some(at) = self.completed.iter().position(|a| a.request == request) {
                return self.completed.swap_remove(at);
            }
            let due = self.cache.next_deadline(self.now);
            if self.ending().is_empty() && due != Nanos::NEVER && timers < TIMERS_MAX {
                timers += 1;
                self.tick(due.since(self.now).max(Nanos::from_micros(1)));
                continue;
            }
            let stuck =
                || self.cache.ops.iter().map(|op| std::format!("{op:?}\n")).collect::<String>();
            let stuck = if self.pending.is_empty() { stuck() } else { String::new() };
            assert!(self.step(), "{call:?} never ends; in flight:\n{stuck}");
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut queue: std::collections::VecDeque<Action> = actions.into();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::CopyVerified(copy) => {
                    let (level, slot) = (copy.level.0, copy.slot.0);
                    let content = self.slots[usize::from(level)].get(&slot).copied();
                    if let Some((key, content)) = content {
                        assert_eq!(key, copy.key);
                        self.deliver(copy.request, copy.part, content);
                    }
                    let mut more = Vec::new();
                    let mut moment = Moment { now: self.now, rng: &mut self.rng };
                    let checked = content.map_or(Checked::Absent, |_| Checked::Sound);
                    self.cache.on_copied(&mut moment, &copy, checked, &mut more);
                    queue.extend(more);
                }
                other => self.perform_one(other),
            }
        }
        self.check();
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::Copy { request, level, slot, part } => {
                let content = self.slots[usize::from(level.0)][&slot.0].1;
                self.deliver(request, part, content);
            }
            Action::Deliver { op, index, request, part } => {
                let content = self.buffers[&op][index as usize];
                self.deliver(request, part, content);
            }
            Action::Complete { request, result } => {
                self.payloads.remove(&request);
                let cells = self.answers.remove(&request).unwrap_or_default();
                self.completed.push(Answer { request, result, cells });
            }
            Action::Blank { op } => drop(self.buffers.insert(op, Vec::from([[0; CELLS]]))),
            Action::Merge { op, request, part, zero } => self.merge(op, request, part, zero),
            Action::CopyLevel { from, to } => {
                let held = self.slots[usize::from(from.0.0)][&from.1.0];
                self.level_writes[usize::from(to.0.0)] += 1;
                self.slots[usize::from(to.0.0)].insert(to.1.0, held);
            }
            Action::WriteLevel { level, ref entries, cause, dirty, .. }
                if !self.cache.spec().levels[usize::from(level.0)].kind.is_persistent()
                    || cause == Cause::Borrow =>
            {
                assert!(!dirty, "a volatile or lent place got a dirty block");
                let entries = entries.clone();
                // An NVM store may have no room for what is only lent.
                let kind = self.cache.spec().levels[usize::from(level.0)].kind;
                if !kind.is_persistent() || entries[0].0.0 % 3 != 2 {
                    self.store(&action, level, &entries);
                }
            }
            Action::CleaningKept { level, slot } => {
                let held = &self.slots[usize::from(level.0)];
                assert!(held.contains_key(&slot.0), "what is kept is there");
                self.cleaning.remove(&(level.0, slot.0));
                self.kept.push((level, slot));
            }
            Action::Free { level, slot, .. } => {
                self.cleaning.remove(&(level.0, slot.0));
                self.slots[usize::from(level.0)].remove(&slot.0);
                let seq = self.seq;
                if let Some(record) = self.newest_in(level, slot) {
                    record.freed = Some(seq);
                }
            }
            Action::Forget { level, key } => self.append(level.0, Record::Forget { key }, false),
            Action::SetClean { level, slot } | Action::SetDirty { level, slot } => {
                if let Some(record) = self.newest_in(level, slot) {
                    record.clean = matches!(action, Action::SetClean { .. });
                }
            }
            Action::Release { op } => drop(self.buffers.remove(&op)),
            Action::Drained { ticket, result } => self.drained.push((ticket, result)),
            Action::Report(event) => self.events.push(event),
            Action::CopyVerified(_) => unreachable!("performed by the caller"),
            // A store settles where it reads when it is asked; the slot may be freed meanwhile.
            Action::ReadLevel { op, level, ref slots } => {
                let held = &self.slots[usize::from(level.0)];
                let contents = slots.iter().map(|slot| held[&slot.0].1).collect();
                self.buffers.insert(op, contents);
                self.pending.push(action);
            }
            asynchronous => self.pending.push(asynchronous),
        }
    }

    /// The newest record of a slot.
    fn newest_in(&mut self, level: LevelIndex, slot: Slot) -> Option<&mut Logged> {
        let is_there = |logged: &&mut Logged| {
            matches!(logged.record, Record::Block { level: a, slot: b, .. }
                if a == level.0 && b == slot.0)
        };
        self.log.iter_mut().rev().find(is_there)
    }

    fn deliver(&mut self, request: RequestId, part: Part, content: Content) {
        let answer = self.answers.get_mut(&request).expect("reads have answers");
        let from = (u64::from(part.block_offset) / CELL) as usize;
        let to = (u64::from(part.request_offset) / CELL) as usize;
        let count = (u64::from(part.length) / CELL) as usize;
        answer[to..to + count].copy_from_slice(&content[from..from + count]);
    }

    fn merge(&mut self, op: OpId, request: RequestId, part: Part, zero: bool) {
        let from = (u64::from(part.request_offset) / CELL) as usize;
        let to = (u64::from(part.block_offset) / CELL) as usize;
        let count = (u64::from(part.length) / CELL) as usize;
        let buffer = &mut self.buffers.get_mut(&op).expect("a merge follows a read")[0];
        for cell in 0..count {
            buffer[to + cell] = if zero { 0 } else { self.payloads[&request][from + cell] };
        }
    }

    fn content_of(&self, op: OpId, source: Source, index: usize) -> Content {
        match source {
            Source::Buffer { index: first } => self.buffers[&op][first as usize + index],
            Source::Payload { request, offset } => {
                let from = (u64::from(offset) / CELL) as usize + index * CELLS;
                self.payloads[&request][from..from + CELLS].try_into().expect("whole blocks")
            }
        }
    }

    fn append(&mut self, level: u8, record: Record, durable: bool) {
        self.seq += 1;
        let freed = None;
        let clean = false;
        self.log.push(Logged { seq: self.seq, level, record, durable, freed, clean });
    }

    fn store(&mut self, action: &Action, level: LevelIndex, entries: &[(Slot, BlockKey)]) {
        let Action::WriteLevel { op, source, durable, cause, dirty, .. } = action else {
            panic!("only stores are stored")
        };
        for (index, (slot, key)) in entries.iter().enumerate() {
            let content = self.content_of(*op, *source, index);
            self.level_writes[usize::from(level.0)] += 1;
            self.slots[usize::from(level.0)].insert(slot.0, (*key, content));
            if self.cache.spec().levels[usize::from(level.0)].kind.is_persistent()
                && *cause != Cause::Borrow
            {
                let record = Record::Block { level: level.0, slot: slot.0, key: *key, content };
                self.append(level.0, record, *durable);
                self.log.last_mut().expect("it was just appended").clean = !*dirty;
            }
        }
    }

    /// What a write that a planted fault meets ends with.
    fn faulted(&mut self, action: &Action) -> Option<(OpId, ErrorKind)> {
        match *action {
            Action::WriteLevel { op, level, .. } => {
                let kind = self.level_fault?;
                self.level_writes[usize::from(level.0)] += 1;
                Some((op, kind))
            }
            Action::SyncLevel { op, .. } => Some((op, self.sync_fault?)),
            Action::WriteBacking { op, volume, .. } => {
                let is_faulty = self.faulty.is_none_or(|faulty| faulty == volume);
                Some((op, self.backing_fault.filter(|_| is_faulty)?))
            }
            _ => None,
        }
    }

    fn read_below(
        &mut self,
        op: OpId,
        (volume, first): (VolumeId, BlockIndex),
        count: u32,
    ) -> Result<(), ErrorKind> {
        let blocks = first.0..first.0 + u64::from(count);
        let keys = blocks.map(|block| BlockKey::new(volume, BlockIndex(block)));
        if let Some(kind) = keys.clone().find_map(|key| self.bad_below.get(&key)) {
            return Err(*kind);
        }
        let read = |key| self.backing.get(&key).copied().unwrap_or_default();
        self.buffers.insert(op, keys.map(read).collect());
        Ok(())
    }

    fn end(&mut self, action: Action) -> (OpId, Result<(), ErrorKind>) {
        if let Some((op, kind)) = self.faulted(&action) {
            return (op, Err(kind));
        }
        match action {
            Action::ReadLevel { op, level, slots } => {
                let held = &self.slots[usize::from(level.0)];
                let key = |slot: &Slot| held.get(&slot.0).map(|(key, _)| *key);
                let mut keys = slots.iter().filter_map(key);
                let is_lost = keys.any(|key| self.unreadable.contains(&key));
                (op, if is_lost { Err(self.unreadable_for) } else { Ok(()) })
            }
            // It was let go meanwhile.
            Action::ReadBacking { op, at_hand: true, .. } if self.rng.chance(1, 4) => {
                (op, Err(ErrorKind::Retry))
            }
            Action::ReadBacking { op, volume, first, count, .. } => {
                self.reads_below.push((first, count));
                (op, self.read_below(op, (volume, first), count))
            }
            Action::WriteLevel { op, level, ref entries, .. } => {
                let entries = entries.clone();
                self.store(&action, level, &entries);
                (op, Ok(()))
            }
            Action::WriteBacking { op, volume, first, count, source, durable } => {
                let content = |index| self.content_of(op, source, index);
                let contents: Vec<Content> = (0..count as usize).map(content).collect();
                for (index, content) in contents.iter().enumerate() {
                    let key = BlockKey::new(volume, BlockIndex(first.0 + index as u64));
                    self.bad_below.remove(&key);
                    self.backing.insert(key, *content);
                    if durable {
                        self.backing_durable.insert(key, *content);
                    }
                }
                self.buffers.insert(op, contents);
                (op, Ok(()))
            }
            Action::ZeroBacking { op, volume, first, count, .. } => {
                for block in first.0..first.0 + u64::from(count) {
                    self.backing.remove(&BlockKey::new(volume, BlockIndex(block)));
                }
                (op, Ok(()))
            }
            Action::SyncBacking { op, volume } => {
                self.backing_durable.retain(|key, _| key.volume() != volume);
                let mine = self.backing.iter().filter(|(key, _)| key.volume() == volume);
                self.backing_durable.extend(mine.map(|(key, content)| (*key, *content)));
                (op, Ok(()))
            }
            Action::SyncLevel { op, level } => {
                self.destroy_freed(Some(level));
                for logged in self.log.iter_mut().filter(|logged| logged.level == level.0) {
                    logged.durable = true;
                }
                (op, Ok(()))
            }
            Action::Tombstone { op, level, volume, first, count, redo, durable } => {
                let (first, count) = (first.0, u64::from(count));
                self.append(level.0, Record::Tombstone { volume, first, count, redo }, durable);
                (op, Ok(()))
            }
            other => panic!("{other:?} is immediate"),
        }
    }

    /// Power is cut and comes back: what was not durable is lost, or kept by chance.
    pub(super) fn crash(&mut self) {
        let keep_some = self.rng.chance(1, 2);
        self.destroy_freed(None);
        let rng = &mut self.rng;
        self.log.retain(|logged| logged.durable || (keep_some && rng.chance(1, 2)));
        for logged in &mut self.log {
            logged.durable = true;
        }
        self.crash_backing(keep_some);
        let spec = self.cache.spec().clone();
        let is_stepwise = self.cache.is_stepwise;
        self.cache = Cache::new(spec).expect("it was sound before");
        self.cache.set_stepwise(is_stepwise);
        for volume in &self.specs {
            self.cache.add_volume(volume).expect("it was sound before");
        }
        self.slots.iter_mut().for_each(BTreeMap::clear);
        (self.buffers, self.payloads, self.answers) = Default::default();
        self.pending.clear();
        self.completed.clear();
        self.cleaning.clear();
        self.recover();
    }

    /// A freed NVM slot may have been reused, once the forgets of that moment are durable.
    fn destroy_freed(&mut self, synced: Option<LevelIndex>) {
        let log = self.log.clone();
        let nvm = |level: u8| self.cache.spec().levels[usize::from(level)].kind == LevelKind::Nvm;
        let mut destroyed: BTreeMap<(u8, BlockKey), u64> = BTreeMap::new();
        let mut kept: BTreeSet<u64> = Default::default();
        for logged in &self.log {
            let (Record::Block { level, key, .. }, Some(freed)) = (&logged.record, logged.freed)
            else {
                continue;
            };
            let forgets_wait = log.iter().any(|other| {
                let mine = matches!(other.record, Record::Forget { key: k } if k == *key);
                mine && other.seq > logged.seq && other.seq <= freed && !other.durable
            });
            let sure = synced == Some(LevelIndex(*level));
            let may = sure || synced.is_none() && self.rng.chance(1, 2);
            if forgets_wait {
                kept.insert(logged.seq);
            } else if nvm(*level) && may {
                destroyed.insert((*level, *key), logged.seq);
            }
        }
        // Slots that older versions of the block lay in were invalidated before.
        self.log.retain(|logged| match &logged.record {
            Record::Block { level, key, .. } => {
                let newer = destroyed.get(&(*level, *key)).is_none_or(|seq| logged.seq > *seq);
                newer || kept.contains(&logged.seq)
            }
            _ => true,
        });
    }

    fn crash_backing(&mut self, keep_some: bool) {
        let mut survived = self.backing_durable.clone();
        let keys: BTreeSet<BlockKey> =
            self.backing.keys().chain(self.backing_durable.keys()).copied().collect();
        for key in keys {
            if keep_some && self.rng.chance(1, 2) {
                match self.backing.get(&key) {
                    Some(content) => drop(survived.insert(key, *content)),
                    None => drop(survived.remove(&key)),
                }
            }
        }
        self.backing.clone_from(&survived);
        self.backing_durable = survived;
    }

    /// The newest record of each block, and the blocks whose zeroing is repeated below.
    fn replay(log: &[Logged]) -> (BTreeMap<BlockKey, Logged>, BTreeSet<BlockKey>) {
        let mut newest: BTreeMap<BlockKey, Logged> = BTreeMap::new();
        let mut redone = BTreeSet::new();
        for logged in log {
            match &logged.record {
                Record::Block { key, .. } => {
                    // Newer blocks in a range that is zeroed again count as dirty.
                    let clean = logged.clean && !redone.contains(key);
                    newest.insert(*key, Logged { clean, ..logged.clone() });
                }
                Record::Forget { key } => {
                    redone.remove(key);
                    if newest.get(key).is_some_and(|last| last.level == logged.level) {
                        newest.remove(key);
                    }
                }
                Record::Tombstone { volume, first, count, redo } => {
                    for block in *first..*first + *count {
                        let key = BlockKey::new(*volume, BlockIndex(block));
                        newest.remove(&key);
                        match redo {
                            Redo::Nothing => drop(redone.remove(&key)),
                            _ => drop(redone.insert(key)),
                        }
                    }
                }
            }
        }
        (newest, redone)
    }

    fn is_through(&self, id: VolumeId) -> bool {
        self.specs.iter().any(|spec| spec.id == id && spec.write_through)
    }

    fn recover(&mut self) {
        let log = std::mem::take(&mut self.log);
        let (newest, redone) = Self::replay(&log);
        for key in &redone {
            self.backing.remove(key);
            self.backing_durable.remove(key);
        }
        let has_log = self.cache.spec().levels.iter().any(|l| l.kind == LevelKind::Ssd);
        let mut found: Vec<Logged> = newest.into_values().collect();
        found.sort_by_key(|logged| std::cmp::Reverse(logged.seq));
        let mut rng = Rng::new(0);
        for logged in found {
            let Record::Block { level, key, content, .. } = logged.record else { continue };
            let moment = &mut Moment { now: self.now, rng: &mut rng };
            let through = self.is_through(key.volume());
            let slots = &mut self.slots[usize::from(level)];
            let slot = slots.len() as u32;
            assert!(logged.clean || !through, "{key:?} writes through and has a dirty record");
            let is_clean = through || (logged.clean && has_log && self.rng.chance(1, 2));
            let dirty = !is_clean;
            if self.cache.restore(moment, LevelIndex(level), Slot(slot), key, dirty) {
                slots.insert(slot, (key, content));
            } else if dirty {
                // More records than slots: the host sends the rest home before it serves.
                self.backing.insert(key, content);
            }
        }
        self.cache.end_restore();
        self.seq += 1;
        let mut seq = self.seq;
        self.log = log;
        self.log.clear();
        for (level, slots) in self.slots.iter().enumerate() {
            for (slot, (key, content)) in slots {
                let level = level as u8;
                let record = Record::Block { level, slot: *slot, key: *key, content: *content };
                let dirty =
                    self.cache.slot(LevelIndex(level), Slot(*slot)).is_some_and(|(_, dirty)| dirty);
                let clean = !dirty;
                self.log.push(Logged { seq, level, record, durable: true, freed: None, clean });
                seq += 1;
            }
        }
        self.seq = seq;
        // Recovery ends with a checkpoint: what lost to a newer record stays dead for good.
        self.backing_durable.clone_from(&self.backing);
        // Recovery ends with a checkpoint: a record that lost to a newer one stays dead even if
        // the newer one goes.
        self.checkpoint();
    }

    /// What a log's checkpoint does: everything so far is durable, dead records are destroyed.
    pub(super) fn checkpoint(&mut self) {
        // Homes that are written through are asked for nothing.
        let specs = self.specs.clone();
        let through =
            |key: &BlockKey| specs.iter().any(|s| s.id == key.volume() && s.write_through);
        self.backing_durable.retain(|key, _| through(key));
        let synced = self.backing.iter().filter(|(key, _)| !through(key));
        self.backing_durable.extend(synced.map(|(key, content)| (*key, *content)));
        let mut seen = BTreeSet::new();
        let slots = &self.slots;
        let mut live: Vec<Logged> = Vec::new();
        for logged in self.log.drain(..).rev() {
            let Record::Block { level, slot, key, .. } = &logged.record else { continue };
            let held = slots[usize::from(*level)].get(slot).is_some_and(|(k, _)| k == key);
            if held && seen.insert(*key) {
                live.push(Logged { durable: true, ..logged });
            }
        }
        live.reverse();
        self.log = live;
    }

    /// What holds at every step.
    fn check(&self) {
        let spec = self.cache.spec();
        let is_waiting = !self.cleaning.is_empty() || self.cache.pending_drops_count() > 0;
        assert!(!self.pending.is_empty() || !is_waiting, "cleaning waits for ever");
        for (index, level) in spec.levels.iter().enumerate() {
            let view = self.cache.level_view(LevelIndex(index as u8), self.now);
            assert!(view.used + view.borrowed <= level.slots);
            assert!(level.kind.is_persistent() || view.dirty == 0, "dirty block in memory");
            for (id, class) in spec.classes.iter().enumerate() {
                let mine = self.specs.iter().filter(|v| usize::from(v.class.0) == id);
                let held = |v: &VolumeSpec| self.cache.held_by(v.id, LevelIndex(index as u8)).0;
                let used: u32 = mine.map(held).sum();
                assert!(used <= class.shares[index].cap, "class {id} exceeds its cap");
            }
            for volume in &self.specs {
                let (used, _, _) = self.cache.held_by(volume.id, LevelIndex(index as u8));
                assert!(used <= volume.shares[index].cap, "{:?} exceeds its cap", volume.id);
            }
        }
    }
}

pub(super) fn call(operation: Operation, offset: u64, length: u64) -> Call {
    Call { cookie: 0, operation, offset, length, flags: CallFlags::default() }
}

/// DRAM, NVM and SSD of the given slots; critical may use all, normal the SSD level.
pub(super) fn spec(slots: [u32; 3]) -> CacheSpec {
    let (eviction, watermarks) = (EvictionKind::Lru, Watermarks::DEFAULT);
    let level = |kind, slots| LevelSpec { kind, slots, eviction, watermarks };
    let class = |name: &str, rank, levels, durable_writes| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes,
        borrow: false,
        keep_reads: false,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    let kinds = [LevelKind::Memory, LevelKind::Nvm, LevelKind::Ssd];
    CacheSpec {
        block_size: BlockSize::DEFAULT,
        levels: kinds.into_iter().zip(slots).map(|(kind, n)| level(kind, n)).collect(),
        classes: std::vec![class("critical", 0, 0b111, true), class("normal", 1, 0b100, false)],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits { window_bytes_max: 0, streak_min: 3 },
    }
}

pub(super) fn volume(id: u32, class: u8, blocks: u64) -> VolumeSpec {
    let shares = [Share::OPEN; LEVELS_MAX];
    let (id, class, length) = (VolumeId(id), ClassId(class), blocks * 4096);
    VolumeSpec { id, class, length, shares, write_through: false }
}

impl Host {
    /// A checkpoint between two actions, when nothing is half stored.
    pub(super) fn checkpoint_when_calm(&mut self) {
        if self.pending.is_empty() {
            self.checkpoint();
        }
    }
}
