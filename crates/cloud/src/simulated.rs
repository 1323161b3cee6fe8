//! A journal, a map file and a store that fail as real ones do, all from one seed.
//!
//! How: actions wait and end in a random order, those of the journal and of the map file in theirs.
//! A power cut keeps of the journal what was synced and any part of the rest, and may tear the map
//! file's last append. The store applies a request and loses its answer, or fails it, or keeps it,
//! or gets it twice; what was on its way when the power failed arrives then, later or never.
//! Invariant: the same seed and the same calls give the same ends and the same bytes.
//! Cost: memory for all objects. Not for: time, and what a link carries but for the steps of a
//! download; see `layby_device`.

use crate::action::{Action, ActionId, Condition, End, Fault, FaultKind, Request, Tag};
use crate::segment::SegmentName;
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use bytes::Bytes;
use layby_types::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// How often the store fails, of 100 requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimFaults {
    /// Requests that are refused, and not done.
    pub errors: u64,
    /// Requests that are done, and said to have failed.
    pub lost_replies: u64,
    /// Puts that are said to conflict with others, though nothing was stored.
    pub conflicts: u64,
    /// Nothing arrives.
    pub is_cut: bool,
    /// Puts find no room.
    pub is_full: bool,
    /// Removals are denied.
    pub denies_deletes: bool,
    /// Requests for keys are denied.
    pub denies_lists: bool,
    /// Changes of the map file find no room, and wait.
    pub is_map_short: bool,
    /// Requests for an object that is said to be missing though it is there.
    pub hidden: u64,
    /// Gets whose answer is truncated, or has a byte changed.
    pub unsound: u64,
    /// Gets of a range of an object that is said to end before it though it does not.
    pub short: u64,
}

/// What happened, in the words of who looks for moments to cut the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimDeed {
    /// The journal's device took a write.
    JournalWritten,
    /// It made its writes durable.
    JournalSynced,
    /// The map file was appended to or replaced.
    MapWritten,
    /// The store took an object, or refused to.
    Put,
    /// The store was asked for an object, its keys, or to remove one.
    Asked,
}

/// A prefix of an object store.
#[derive(Clone, Default)]
pub struct SimStore {
    /// Objects by key, each with its version.
    pub objects: BTreeMap<String, (Bytes, u64)>,
    version: u64,
    /// Objects that it has taken.
    pub puts: u64,
    /// A key that never answers.
    pub stuck: Option<String>,
    /// Where a clone's base lies.
    pub base: Option<Box<SimStore>>,
    /// It takes every put, whatever its condition, as some stores do.
    pub ignores_conditions: bool,
    /// A proxy before it changes the versions that it names, not those that it compares.
    pub changes_tags: bool,
    /// Objects but the superblock fail their authentication tag: their gets have no bytes.
    pub is_undecipherable: bool,
    /// It denies the removal of objects whose keys begin so.
    pub kept: Option<String>,
    /// It has no removal of many objects, as some stores that are said to be compatible.
    pub lacks_delete_many: bool,
}

fn failed(kind: FaultKind) -> End {
    End::Failed(Fault { kind, cause: format!("{kind:?}") })
}

impl SimStore {
    /// An object or a range of it, with its version.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`] where there is none, [`FaultKind::Short`] where it ends before the
    /// range.
    ///
    /// # Panics
    /// Where a base is asked for and there is none.
    pub fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<(Bytes, u64), Fault> {
        if let (Some(_), key) = crate::clone::split_key(key) {
            let mut base = self.base.as_deref().expect("a clone has a base");
            // Numbers of segments count on from base to clone, so that only one has the key.
            while !base.objects.contains_key(key)
                && let Some(below) = base.base.as_deref()
            {
                base = below;
            }
            return base.get(key, range);
        }
        let absent = || Fault { kind: FaultKind::NotFound, cause: key.to_owned() };
        let (bytes, version) = self.objects.get(key).ok_or_else(absent)?;
        let length = bytes.len() as u64;
        if range.as_ref().is_some_and(|range| range.start >= length) {
            return Err(Fault { kind: FaultKind::Short, cause: key.to_owned() });
        }
        let range = range.unwrap_or(0..u64::MAX);
        let cut = range.start.min(length) as usize..range.end.min(length) as usize;
        Ok((bytes.slice(cut), *version))
    }

    /// A version as the node is told of it.
    fn tag(&self, version: u64) -> Tag {
        Tag(if self.changes_tags { format!("{version}-gzip") } else { version.to_string() })
    }

    fn remove(&mut self, key: &str) -> End {
        if self.kept.as_ref().is_some_and(|kept| key.starts_with(kept)) {
            return failed(FaultKind::Denied);
        }
        self.objects.remove(key);
        End::Done
    }

    /// The segments that it took and that no superblock names yet.
    #[must_use]
    pub fn unnamed(&self) -> Vec<String> {
        let found = self.objects.get(SUPERBLOCK_KEY);
        let Some(block) = found.and_then(|(bytes, _)| Superblock::decode(bytes)) else {
            return Vec::new();
        };
        let is_unnamed = |key: &&String| {
            let name = SegmentName::parse(key).filter(|name| name.number > block.committed);
            name.is_some_and(|name| block.segment(name.number) == Some(name))
        };
        self.objects.keys().filter(is_unnamed).cloned().collect()
    }

    /// Damages or loses one of [`SimStore::unnamed`], whichever the chance falls on; answers what
    /// happened, or nothing where there is none.
    pub fn spoil_unnamed(&mut self, rng: &mut Rng) -> Option<&'static str> {
        let unnamed = self.unnamed();
        let key = unnamed.get(rng.below(unnamed.len().max(1) as u64) as usize)?;
        let (bytes, _) = self.objects.get_mut(key).expect("it was just listed");
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(3) {
            0 => {
                self.objects.remove(key);
                Some("lost put")
            }
            1 => {
                bytes.truncate(at);
                Some("truncated put")
            }
            _ => {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << rng.below(8);
                *bytes = changed.into();
                Some("damaged put")
            }
        }
    }

    /// Does what is asked, at once and without a fault but those that the store always has.
    pub fn perform(&mut self, request: &Request) -> End {
        match request {
            Request::Get { key, range } => match self.get(key, range.clone()) {
                Ok((bytes, version)) => {
                    let is_lost = self.is_undecipherable && key != SUPERBLOCK_KEY;
                    let bytes = if is_lost { Bytes::new() } else { bytes };
                    End::Bytes(bytes, Some(self.tag(version)))
                }
                Err(fault) => End::Failed(fault),
            },
            Request::Put { key, bytes, condition } => {
                let held = self.objects.get(key).map(|(_, version)| version.to_string());
                let may = match condition {
                    _ if self.ignores_conditions => true,
                    Condition::Create => held.is_none(),
                    Condition::Replace(tag) => held.as_ref() == Some(&tag.0),
                };
                if !may {
                    return failed(FaultKind::Condition);
                }
                self.version += 1;
                self.puts += 1;
                self.objects.insert(key.clone(), (bytes.clone(), self.version));
                End::Stored(self.tag(self.version))
            }
            Request::Delete { key } => self.remove(key),
            Request::DeleteMany { .. } if self.lacks_delete_many => failed(FaultKind::Retry),
            Request::DeleteMany { keys } => {
                // As folders do: what comes behind the first fault stays.
                let mut ends = keys.iter().map(|key| self.remove(key));
                ends.find(|end| matches!(end, End::Failed(_))).unwrap_or(End::Done)
            }
            Request::List { prefix } => {
                let keys = self.objects.keys().filter(|key| key.starts_with(prefix));
                End::Keys(keys.cloned().collect())
            }
        }
    }
}

/// A node's devices: what it keeps of one volume.
#[derive(Clone, Default)]
pub struct SimDisks {
    journal: Vec<u8>,
    /// Writes that no sync covers, in order.
    unsynced: Vec<(u64, Vec<u8>)>,
    /// The map file as a restart would find it.
    pub map_file: Vec<u8>,
}

impl SimDisks {
    /// Devices with a map file and a journal's first page, as [`crate::create`] makes them.
    ///
    /// # Panics
    /// Where the page is longer than the journal.
    #[must_use]
    pub fn new(journal_bytes: u64, (map_file, first_page): (Vec<u8>, Vec<u8>)) -> Self {
        let mut journal = vec![0; journal_bytes as usize];
        journal[..first_page.len()].copy_from_slice(&first_page);
        SimDisks { journal, unsynced: Vec::new(), map_file }
    }

    /// Bytes of the journal, written ones that are not durable included.
    ///
    /// # Errors
    /// Where the journal ends before.
    pub fn read(&self, at: u64, length: u64) -> Result<Vec<u8>, String> {
        let mut bytes =
            self.journal.get(at as usize..(at + length) as usize).ok_or("beyond")?.to_vec();
        for (from, written) in &self.unsynced {
            for (index, byte) in written.iter().enumerate() {
                let place = from + index as u64;
                if (at..at + length).contains(&place) {
                    bytes[(place - at) as usize] = *byte;
                }
            }
        }
        Ok(bytes)
    }

    /// A bit of the journal flips at rest.
    ///
    /// # Panics
    /// Beyond the journal's end.
    pub fn rot(&mut self, at: u64) {
        self.journal[at as usize] ^= 0x10;
    }

    /// Bytes of the journal become zero at rest, as a device does with what it lost.
    ///
    /// # Panics
    /// Beyond the journal's end.
    pub fn wipe(&mut self, at: u64, length: u64) {
        self.journal[at as usize..(at + length) as usize].fill(0);
    }

    /// The journal alone, without the map, is put back from an older copy.
    pub fn put_journal_back(&mut self, older: &SimDisks) {
        self.journal.clone_from(&older.journal);
    }

    fn sync(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.unsynced) {
            self.journal[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// The power fails: of what was not synced any sectors may have come through.
    fn cut(&mut self, rng: &mut Rng) {
        for (at, bytes) in std::mem::take(&mut self.unsynced) {
            for (index, sector) in bytes.chunks(512).enumerate() {
                if rng.chance(1, 2) {
                    let at = at as usize + index * 512;
                    self.journal[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
    }
}

/// An action that may end after so many steps.
struct Waiting {
    id: ActionId,
    action: Action,
    left: u64,
}

/// What performs a volume's actions: its devices, its store, and all that is on the way.
pub struct SimWorld {
    /// Where its chance comes from.
    pub rng: Rng,
    /// The node's devices.
    pub disks: SimDisks,
    /// The store.
    pub store: SimStore,
    /// How often the store fails.
    pub faults: SimFaults,
    /// Steps that a request to the store takes at most; none in particular where it is zero.
    pub patience: u64,
    /// Bytes of an answer that arrive in a step; all at once where it is zero.
    pub download_bytes: u64,
    /// Puts and removals that arrive twice, of 100.
    pub duplicates: u64,
    /// Writes of the read cache that fail, of 100.
    pub cache_faults: u64,
    /// Answers with bytes that the store has given.
    pub answers: u64,
    /// Which of these have one bit changed, by number.
    pub flipped: Range<u64>,
    /// Whose these were, in order.
    pub flipped_keys: Vec<String>,
    /// The next write of the journal fails, or its next sync, or the next change of the map file.
    pub file_fault: Option<SimDeed>,
    /// A change of the map file has failed, and so do all later ones, as those of `local` do.
    is_map_failed: bool,
    /// What the last step did, if anything.
    pub deed: Option<SimDeed>,
    journal: Vec<(ActionId, Action)>,
    map_file: Vec<(ActionId, Action)>,
    /// Bytes of the read cache.
    cache: Vec<u8>,
    others: Vec<Waiting>,
    /// Requests that nobody waits for any more and that may still arrive.
    strays: Vec<Request>,
}

impl SimWorld {
    /// An empty store and these devices; all chance follows from `seed`.
    #[must_use]
    pub fn new(seed: u64, disks: SimDisks) -> Self {
        SimWorld {
            rng: Rng::new(seed),
            disks,
            store: SimStore::default(),
            faults: SimFaults::default(),
            patience: 0,
            download_bytes: 0,
            duplicates: 0,
            cache_faults: 0,
            answers: 0,
            flipped: 0..0,
            flipped_keys: Vec::new(),
            file_fault: None,
            is_map_failed: false,
            deed: None,
            strays: Vec::new(),
            journal: Vec::new(),
            map_file: Vec::new(),
            cache: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Takes actions that a volume asks for.
    pub fn take(&mut self, actions: Vec<(ActionId, Action)>) {
        for (id, action) in actions {
            match action {
                Action::JournalWrite { .. } | Action::JournalSync => {
                    self.journal.push((id, action));
                }
                Action::MapAppend(_) | Action::MapReplace(_) => self.map_file.push((id, action)),
                _ => {
                    let pause = match self.patience {
                        0 => 0,
                        patience => self.rng.below(patience + 1),
                    };
                    let left = pause + self.download_steps(&action);
                    self.others.push(Waiting { id, action, left });
                }
            }
        }
    }

    /// Steps for which the bytes of an answer are on their way, as the object is now.
    fn download_steps(&self, action: &Action) -> u64 {
        let (Action::Object(request) | Action::Fetch(request)) = action else { return 0 };
        let Request::Get { key, range } = request else { return 0 };
        let found = self.store.objects.get(key).map_or(0, |(bytes, _)| bytes.len() as u64);
        let asked =
            range.as_ref().map_or(found, |range| found.min(range.end) - found.min(range.start));
        asked.checked_div(self.download_bytes).unwrap_or(0)
    }

    /// Nothing waits for its end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.journal.is_empty() && self.map_file.is_empty() && self.others.is_empty()
    }

    /// Performs one action that waits, any one that may be next, or lets a stray request arrive.
    pub fn step(&mut self) -> Option<(ActionId, End)> {
        self.deed = None;
        self.others.iter_mut().for_each(|waiting| waiting.left = waiting.left.saturating_sub(1));
        let ready = self.others.iter().filter(|waiting| waiting.left == 0).count();
        let strays = if self.faults.is_cut { 0 } else { self.strays.len() };
        let map_file = if self.faults.is_map_short { 0 } else { self.map_file.len().min(1) };
        let counts = [self.journal.len().min(1), map_file, ready, strays];
        let total: usize = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let mut draw = self.rng.below(total as u64) as usize;
        let kind = counts.iter().position(|count| match draw.checked_sub(*count) {
            Some(rest) => {
                draw = rest;
                false
            }
            None => true,
        });
        match kind {
            Some(0) => {
                let (id, action) = self.journal.remove(0);
                Some((id, self.journal_action(action)))
            }
            Some(1) => {
                let (id, action) = self.map_file.remove(0);
                Some((id, self.map_action(action)))
            }
            Some(2) => self.other_action(draw),
            _ => {
                let request = self.strays.remove(draw);
                self.perform(&request);
                None
            }
        }
    }

    fn map_action(&mut self, action: Action) -> End {
        self.deed = Some(SimDeed::MapWritten);
        if self.is_map_failed {
            return failed(FaultKind::Device);
        }
        if self.file_fault == Some(SimDeed::MapWritten) {
            self.file_fault = None;
            self.is_map_failed = true;
            self.change_map_in_part(action);
            return failed(FaultKind::Device);
        }
        match action {
            Action::MapAppend(bytes) => self.disks.map_file.extend(bytes),
            Action::MapReplace(bytes) => self.disks.map_file = bytes,
            _ => unreachable!("sorted when it was taken"),
        }
        End::Done
    }

    /// Of an append that fails, any part may be there; a file that was to be replaced is one of
    /// both.
    fn change_map_in_part(&mut self, action: Action) {
        match action {
            Action::MapAppend(bytes) => {
                let keep = self.rng.below(bytes.len() as u64 + 1) as usize;
                self.disks.map_file.extend_from_slice(&bytes[..keep]);
            }
            Action::MapReplace(bytes) if self.rng.chance(1, 2) => self.disks.map_file = bytes,
            _ => {}
        }
    }

    /// One of those that go their own ways: the n-th that may end now.
    fn other_action(&mut self, number: usize) -> Option<(ActionId, End)> {
        let mut ready = (0..self.others.len()).filter(|index| self.others[*index].left == 0);
        let index = ready.nth(number).expect("it was counted");
        let Waiting { id, action, left } = self.others.remove(index);
        match &action {
            Action::JournalRead { at, length } => {
                let bytes = self.disks.read(*at, *length).expect("within the device");
                Some((id, End::Bytes(bytes.into(), None)))
            }
            Action::CacheRead { at, length } => {
                let bytes = self.cache.get(*at as usize..(at + length) as usize);
                Some((id, End::Bytes(bytes.expect("it was written").to_vec().into(), None)))
            }
            Action::CacheWrite { at, bytes } => Some((id, self.write_cache(*at as usize, bytes))),
            Action::EncodeMap(image) => Some((id, End::Bytes(image.encode().into(), None))),
            Action::Object(request) | Action::Fetch(request) | Action::Upload { request, .. } => {
                let end = self.object(request);
                if end.is_none() {
                    self.others.push(Waiting { id, action, left });
                }
                end.map(|end| (id, end))
            }
            _ => unreachable!("sorted when it was taken"),
        }
    }

    /// At times its device has no room.
    fn write_cache(&mut self, at: usize, bytes: &[u8]) -> End {
        let length = self.cache.len().max(at + bytes.len());
        self.cache.resize(length, 0);
        self.cache[at..at + bytes.len()].copy_from_slice(bytes);
        match self.cache_faults > 0 && self.rng.chance(self.cache_faults, 100) {
            true => End::Failed(Fault { kind: FaultKind::Device, cause: "no room".to_owned() }),
            false => End::Done,
        }
    }

    fn journal_action(&mut self, action: Action) -> End {
        let deed = match &action {
            Action::JournalWrite { .. } => SimDeed::JournalWritten,
            _ => SimDeed::JournalSynced,
        };
        self.deed = Some(deed);
        let is_failing = self.file_fault == Some(deed);
        match action {
            Action::JournalWrite { at, bytes } => self.disks.unsynced.push((at, bytes)),
            _ if !is_failing => self.disks.sync(),
            _ => {}
        }
        if is_failing {
            // What was written may be there, and may go with the power.
            self.file_fault = None;
            return failed(FaultKind::Device);
        }
        End::Done
    }

    fn perform(&mut self, request: &Request) -> End {
        let is_put = matches!(request, Request::Put { .. });
        self.deed = Some(if is_put { SimDeed::Put } else { SimDeed::Asked });
        let is_removal = matches!(request, Request::Delete { .. } | Request::DeleteMany { .. });
        let is_change = is_put || is_removal;
        if is_change && self.duplicates > 0 && self.rng.chance(self.duplicates, 100) {
            self.strays.push(request.clone());
        }
        self.store.perform(request)
    }

    fn object(&mut self, request: &Request) -> Option<End> {
        if let (Request::Get { key, .. }, Some(stuck)) = (request, &self.store.stuck)
            && key == stuck
        {
            return None;
        }
        if self.faults.is_cut || self.rng.chance(self.faults.errors, 100) {
            self.fail_in_part(request);
            return Some(failed(FaultKind::Retry));
        }
        let is_put = matches!(request, Request::Put { .. });
        if is_put && self.faults.is_full {
            return Some(failed(FaultKind::Retry));
        }
        let is_removal = matches!(request, Request::Delete { .. } | Request::DeleteMany { .. });
        if self.faults.denies_deletes && is_removal {
            return Some(failed(FaultKind::Denied));
        }
        if self.faults.denies_lists && matches!(request, Request::List { .. }) {
            return Some(failed(FaultKind::Denied));
        }
        if is_put && self.rng.chance(self.faults.conflicts, 100) {
            return Some(failed(FaultKind::Condition));
        }
        let end = self.perform(request);
        let end = self.falsified(request, end);
        let is_lost = self.rng.chance(self.faults.lost_replies, 100);
        Some(if is_lost { failed(FaultKind::Retry) } else { end })
    }

    /// The answer to a request for an object, which may be a wrong one now and then.
    fn falsified(&mut self, request: &Request, end: End) -> End {
        let (Request::Get { key, .. }, End::Bytes(bytes, tag)) = (request, &end) else {
            return end;
        };
        if self.faults.hidden > 0 && self.rng.chance(self.faults.hidden, 100) {
            return failed(FaultKind::NotFound);
        }
        let is_range = matches!(request, Request::Get { range: Some(_), .. });
        if is_range && self.faults.short > 0 && self.rng.chance(self.faults.short, 100) {
            return failed(FaultKind::Short);
        }
        self.answers += 1;
        if self.flipped.contains(&(self.answers - 1)) && !bytes.is_empty() {
            return End::Bytes(self.flip(key, bytes), tag.clone());
        }
        let is_unsound = self.faults.unsound > 0 && !bytes.is_empty();
        if !is_unsound || !self.rng.chance(self.faults.unsound, 100) {
            return end;
        }
        let at = self.rng.below(bytes.len() as u64) as usize;
        if self.rng.chance(1, 2) {
            return End::Bytes(bytes.slice(..at), tag.clone());
        }
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        End::Bytes(bytes.into(), tag.clone())
    }

    /// These bytes with one bit changed.
    fn flip(&mut self, key: &str, bytes: &Bytes) -> Bytes {
        let at = self.rng.below(bytes.len() as u64) as usize;
        self.flipped_keys.push(key.to_owned());
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1 << self.rng.below(8);
        bytes.into()
    }

    /// Of many objects, some may go before a removal fails.
    fn fail_in_part(&mut self, request: &Request) {
        if let (Request::DeleteMany { keys }, false) = (request, self.faults.is_cut) {
            let gone = keys.iter().filter(|_| self.rng.chance(1, 2)).cloned().collect();
            self.store.perform(&Request::DeleteMany { keys: gone });
        }
    }

    /// Performs a request for one that waits for its end. Panics where its object never answers.
    pub fn ask(&mut self, request: &Request) -> End {
        self.object(request).expect("its object answers")
    }

    /// As [`SimStore::spoil_unnamed`], unless a superblock is on its way that may name the segment.
    pub fn spoil_unnamed(&mut self, rng: &mut Rng) -> Option<&'static str> {
        let put = |request: &Request| match request {
            Request::Put { key, .. } => Some(key.clone()),
            _ => None,
        };
        if self.strays.iter().filter_map(put).any(|key| key == SUPERBLOCK_KEY) {
            return None;
        }
        self.store.spoil_unnamed(rng)
    }

    /// All requests arrive that are still on their way from before.
    pub fn let_arrive(&mut self) {
        for request in std::mem::take(&mut self.strays) {
            self.store.perform(&request);
        }
    }

    /// Goes on with the store of another world, and with what may still arrive there.
    pub fn inherit(&mut self, other: SimWorld) {
        self.store = other.store;
        self.strays = other.strays;
    }

    /// The node dies with what it had under way: requests to the store arrive, or do so later, or
    /// never.
    pub fn cut_power(&mut self) {
        for (_, action) in std::mem::take(&mut self.journal) {
            if let Action::JournalWrite { at, bytes } = action {
                self.disks.unsynced.push((at, bytes));
            }
        }
        self.disks.cut(&mut self.rng);
        if let Some((_, Action::MapAppend(bytes))) = self.map_file.first()
            && !self.is_map_failed
        {
            let keep = self.rng.below(bytes.len() as u64 + 1) as usize;
            self.disks.map_file.extend_from_slice(&bytes[..keep]);
        }
        self.map_file.clear();
        for waiting in std::mem::take(&mut self.others) {
            let (Action::Object(request) | Action::Upload { request, .. }) = waiting.action else {
                continue;
            };
            let is_question = matches!(request, Request::Get { .. } | Request::List { .. });
            if is_question || self.faults.is_cut {
                continue;
            }
            match self.rng.below(4) {
                0 => drop(self.store.perform(&request)),
                1 => self.strays.push(request),
                _ => {}
            }
        }
        (self.file_fault, self.is_map_failed) = (None, false);
    }
}
