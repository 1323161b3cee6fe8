//! The control plane's commands, carried out by the shard's thread.
//!
//! How: what can be done at once is answered at once; draining, removing and shrinking go on over
//! several turns and are kept in [`Pending`].
//! Invariant: each command is answered exactly once.

use super::{Client, Shard};
use crate::control::{Answer, Command, CommandError, Snapshot, VolumePlan};
use crate::core::{Asker, CoreError, Finished, HomePlace, HomePlan, Notice, UncleanStop};
use crate::io::{Host, Io as _, OpenMode};
use crate::link::{FarEnd, NearEnd};
use layby_cache::{CacheSpec, OnDirty, RemoveError, VolumeSpec};
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, CallFlags, ErrorKind, Nanos, Operation, Session, VolumeId};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// How long a truncation of a backing store waits for operations in flight behind the new end.
const CUT_PATIENCE: Nanos = Nanos::from_secs(5);
/// Bytes that are zeroed at once where a volume shrinks: a stop waits for one such step, and a
/// request has fewer than 2^32 blocks.
const ZEROING_STEP_BYTES: u64 = 256 << 20;
/// How long a zeroing waits for reads behind the new end that wait for an object store, of which
/// clients may have gone; then these fail.
const READS_PATIENCE: Nanos = Nanos::from_secs(5);
/// How long a volume that is drained may have changes in flight before it is given up as clean.
const CLEAN_PATIENCE: Nanos = Nanos::from_secs(5);

struct Removal {
    volume: VolumeId,
    /// What becomes of blocks that are dirty once nothing is in flight any more.
    on_dirty: OnDirty,
    /// The drain it waits for, while it does.
    drain: Option<u64>,
    /// It stays, ready to be removed.
    is_kept: bool,
    answer: Answer<()>,
}

/// A volume that is to become clean.
struct Cleaning {
    volume: VolumeId,
    /// The drain it waits for, while it does.
    drain: Option<u64>,
    /// When it is given up, once it is drained.
    until: Nanos,
    answer: Answer<bool>,
}

/// Bytes of a volume that are to be zero before it has another length.
struct Zeroing {
    spec: VolumeSpec,
    /// What is left to be zeroed.
    zeros: Range<u64>,
    /// When reads that it waits for are given up.
    until: Nanos,
    answer: Answer<()>,
}

impl Zeroing {
    /// Where the next step ends; steps begin and end with blocks, but for the first.
    fn step_end(&self) -> u64 {
        let next = (self.zeros.start / ZEROING_STEP_BYTES + 1) * ZEROING_STEP_BYTES;
        next.min(self.zeros.end)
    }

    fn step(&self) -> Call {
        let (offset, length) = (self.zeros.start, self.step_end() - self.zeros.start);
        let flags = CallFlags { fua: true, ..CallFlags::default() };
        Call { cookie: 0, operation: Operation::WriteZeroes, offset, length, flags }
    }
}

/// A backing store that gets another length, once no operation in flight reaches behind it.
struct Cut {
    volume: VolumeId,
    /// Bytes that the volume had, and is to have.
    lengths: (u64, u64),
    until: Nanos,
    answer: Answer<()>,
}

/// Commands under way.
#[derive(Default)]
pub(super) struct Pending {
    next: u64,
    drains: HashMap<u64, Answer<()>>,
    removals: Vec<Removal>,
    /// Volumes without clients that can be removed at once.
    quiesced: BTreeSet<VolumeId>,
    cleanings: Vec<Cleaning>,
    /// Those whose next step is to be submitted once their volume has a write intent.
    zeroings: Vec<Zeroing>,
    /// Those with a step in flight; none where a stop has broken them off.
    changing: HashMap<u64, Option<Zeroing>>,
    cuts: Vec<Cut>,
    stops: Vec<Answer<()>>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        let has_lengths = !self.changing.is_empty() || !self.zeroings.is_empty();
        self.drains.is_empty() && self.removals.is_empty() && !has_lengths
    }

    /// When a command is to be looked at again if nothing else happens.
    pub(super) fn deadline(&self) -> Nanos {
        let cleanings = self.cleanings.iter().map(|cleaning| cleaning.until);
        let cuts = self.cuts.iter().map(|cut| cut.until);
        let begun = self.changing.values().flatten();
        let zeroings = self.zeroings.iter().chain(begun).map(|zeroing| zeroing.until);
        cleanings.chain(cuts).chain(zeroings).min().unwrap_or(Nanos::NEVER)
    }

    pub(super) fn answer_stops(self, stopped: &Result<(), UncleanStop>) {
        for answer in self.stops {
            match stopped {
                Ok(()) => answer(Ok(())),
                Err(UncleanStop { causes }) => answer(failed(ErrorKind::Retry, causes.join(", "))),
            }
        }
    }

    /// A stop does not wait for what failing devices may never end, nor for long zeroings: dirty
    /// blocks stay where they are, volumes keep their lengths, and all can be asked for again.
    fn give_up(&mut self) {
        let stopping = || CommandError { kind: ErrorKind::Closed, cause: "the node stops".into() };
        self.drains.drain().for_each(|(_, answer)| answer(Err(stopping())));
        self.removals.drain(..).for_each(|removal| (removal.answer)(Err(stopping())));
        self.cleanings.drain(..).for_each(|cleaning| (cleaning.answer)(Err(stopping())));
        let zeroings = self.zeroings.drain(..);
        let begun = self.changing.values_mut().filter_map(Option::take);
        zeroings.chain(begun).for_each(|zeroing| (zeroing.answer)(Err(stopping())));
        self.cuts.drain(..).for_each(|cut| (cut.answer)(Err(stopping())));
    }

    /// Whether a volume is being removed, or is to be.
    pub(super) fn is_removing(&self, volume: VolumeId) -> bool {
        let mut removals = self.removals.iter();
        removals.any(|removal| removal.volume == volume) || self.quiesced.contains(&volume)
    }

    /// Volumes that are being zeroed.
    fn zeroed(&self) -> Vec<VolumeId> {
        let begun = self.changing.values().flatten();
        self.zeroings.iter().chain(begun).map(|zeroing| zeroing.spec.id).collect()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        Asker::OWN + self.next
    }
}

fn failed<T>(kind: ErrorKind, cause: impl Into<String>) -> Result<T, CommandError> {
    Err(CommandError { kind, cause: cause.into() })
}

impl<S: Session, H: Host> Shard<S, H> {
    pub(super) fn on_command(&mut self, command: Command<S>) {
        match command {
            Command::Attach(connection) => self.attach(*connection),
            command @ (Command::StartQueue(..)
            | Command::StopQueue { .. }
            | Command::AbandonQueues(_)) => self.on_queues(command),
            Command::AddVolume(plan, answer) => answer(self.add_volume(&plan)),
            Command::StartLink { volume, end, is_lead, answer } => {
                answer(self.start_link(volume, (end, is_lead)));
            }
            Command::Join { volume, links, lead, answer } => {
                answer(self.join(volume, links, lead));
            }
            Command::SetLed(volumes, answer) => {
                self.core.set_led(&volumes);
                answer(Ok(()));
            }
            Command::Unjoin(volume, answer) => {
                self.cut_clients(volume);
                self.core.unjoin(volume);
                answer(Ok(()));
            }
            Command::SetVolume(spec, answer) => self.set_volume(spec, answer),
            Command::ResizeHome { volume, before, length, answer } => {
                self.begin_cut(volume, (before, length), answer);
            }
            Command::RemoveVolume { volume, discard, answer } => {
                self.remove_volume(volume, discard, answer);
            }
            command @ (Command::Quiesce { .. } | Command::Reopen(..) | Command::BreakOff(..)) => {
                self.on_quiescing(command);
            }
            Command::Reconfigure(spec, answer) => answer(self.reconfigure(spec)),
            Command::Drain(volume, answer) => self.drain(volume, answer),
            command @ (Command::Clean(..)
            | Command::RecordIntent(..)
            | Command::RefuseIntent(..)) => self.on_intents(command),
            command @ (Command::StartRecording(..)
            | Command::TakeRecorded { .. }
            | Command::CountRecorded(_)) => self.on_recording(command),
            Command::Observe { volumes, keep, answer } => {
                answer(Ok(self.core.observe(&volumes, keep)));
            }
            Command::SetSized(sized, answer) => {
                self.core.set_sized(&sized);
                answer(Ok(()));
            }
            Command::SetLimits(plan, answer) => {
                self.gate.set_limits(&plan);
                answer(Ok(()));
            }
            Command::SetDiscards(limits, answer) => {
                self.core.set_discards(&limits);
                answer(Ok(()));
            }
            Command::SetFree(free, answer) => {
                self.core.set_free(&free);
                answer(Ok(()));
            }
            command
            @ (Command::SetReadOnly(..) | Command::CutClients(..) | Command::Clients(_)) => {
                self.on_clients(command);
            }
            Command::DropIdle(least, answer) => answer(Ok(self.drop_idle(least))),
            Command::Snapshot(answer) => answer(Ok(Box::new(self.snapshot()))),
            Command::Stop(answer) => self.begin_stop(answer),
        }
    }

    fn drain(&mut self, volume: Option<VolumeId>, answer: Answer<()>) {
        let ticket = self.pending.number();
        self.pending.drains.insert(ticket, answer);
        self.core.drain(&mut self.io, ticket, volume);
    }

    /// Queues of guests.
    fn on_queues(&mut self, command: Command<S>) {
        match command {
            Command::StartQueue(queue, answer) => answer(self.start_queue(*queue)),
            Command::StopQueue { number, marks, answer } => self.stop_queue(number, marks, answer),
            Command::AbandonQueues(monitor) => self.guests.abandon(monitor),
            _ => unreachable!("not a command on queues"),
        }
    }

    fn stop_queue(&mut self, number: u32, marks: bool, answer: Answer<u16>) {
        self.guests.stop(&mut self.io, &self.core, (number, marks), answer);
        self.find_best();
    }

    /// Volumes that are to be removed later, or are not after all.
    fn on_quiescing(&mut self, command: Command<S>) {
        match command {
            Command::Quiesce { volume, discard, answer } => self.quiesce(volume, discard, answer),
            Command::Reopen(volume, answer) => {
                self.pending.quiesced.remove(&volume);
                answer(Ok(()));
            }
            Command::BreakOff(volume, answer) => {
                self.break_off(volume);
                answer(Ok(()));
            }
            _ => unreachable!("not a command on removals to come"),
        }
    }

    /// Which volumes are clean, and which may be changed.
    fn on_intents(&mut self, command: Command<S>) {
        match command {
            Command::Clean(volume, answer) => self.begin_cleaning(volume, answer),
            Command::RecordIntent(volume, answer) => self.record_intent(volume, answer),
            Command::RefuseIntent(volume, kind, answer) => {
                self.gate.refuse_intent(volume, kind);
                answer(Ok(()));
            }
            _ => unreachable!("not a command on write intents"),
        }
    }

    /// What clients ask for, on its way to a recorder.
    fn on_recording(&mut self, command: Command<S>) {
        match command {
            Command::StartRecording(volumes, answer) => {
                self.start_recording(volumes);
                answer(Ok(()));
            }
            Command::TakeRecorded { end, answer } => answer(Ok(self.core.take_recorded(end))),
            Command::CountRecorded(answer) => answer(Ok(self.core.count_recorded())),
            _ => unreachable!("not a command on recordings"),
        }
    }

    /// What clients may do, and who of them is there.
    fn on_clients(&mut self, command: Command<S>) {
        match command {
            Command::SetReadOnly(volume, is_read_only, answer) => {
                self.gate.set_read_only(volume, is_read_only);
                answer(Ok(()));
            }
            Command::CutClients(clients, answer) => {
                self.cut_where(|client| clients.contains(&client.id()));
                answer(Ok(()));
            }
            Command::Clients(answer) => {
                let served = self.clients.iter().flatten().filter(|client| !client.is_dead());
                answer(Ok(served.map(Client::load).collect()));
            }
            _ => unreachable!("others go elsewhere"),
        }
    }

    fn begin_stop(&mut self, answer: Answer<()>) {
        self.is_stopping = true;
        self.stop_by = self.stop_by.min(self.io.now() + super::STOP_PATIENCE);
        self.pending.stops.push(answer);
        // Their write intents stay recorded.
        for cleaning in &self.pending.cleanings {
            self.gate.record_intent(cleaning.volume);
        }
        for volume in self.pending.zeroed() {
            self.core.set_ending(volume, None);
        }
        self.pending.give_up();
        self.core.stop_waiting(None);
        self.clients.iter_mut().flatten().for_each(Client::leave);
        self.touch_all();
        self.guests.leave(&mut self.io, None);
    }

    /// Cuts off the client that has been idle for the longest time, if that is `least` at least.
    fn drop_idle(&mut self, least: Nanos) -> bool {
        let Some(then) = self.io.now().0.checked_sub(least.0).map(Nanos) else { return false };
        let clients = self.clients.iter_mut().flatten();
        let idle = clients.filter_map(|client| Some((client.idle_since()?, client)));
        let oldest = idle.filter(|(since, _)| *since <= then).min_by_key(|(since, _)| *since);
        let Some((_, client)) = oldest else { return false };
        client.cut(&mut self.io, &mut self.core);
        let (peer, volume, number) = (client.peer.clone(), client.volume, client.number);
        self.touch(number);
        let reason = "it was idle, and others came for whom there was no place";
        (self.notices)(Notice::ClientBroken { peer, volume, reason });
        true
    }

    fn start_recording(&mut self, volumes: Vec<VolumeId>) {
        let time = clock_gettime(ClockId::Monotonic);
        let monotonic = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let clock = Nanos(monotonic.saturating_sub(self.io.now().0));
        self.core.start_recording(volumes, clock);
    }

    /// The shard's counters.
    pub fn snapshot(&mut self) -> Snapshot {
        let mut snapshot = self.core.snapshot();
        for volume in &mut snapshot.volumes {
            volume.waits = self.gate.waits(volume.volume);
        }
        // The core sorts volumes by their numbers.
        for client in self.clients.iter().flatten() {
            let found = snapshot.volumes.binary_search_by_key(&client.volume, |own| own.volume);
            if let Ok(at) = found {
                snapshot.volumes[at].connections += 1;
            }
        }
        if let Some((level, disk)) = self.core.log_disk() {
            snapshot.levels[level].hints = Some(self.io.hint_state(disk));
        }
        snapshot.devices = self.io.loads();
        snapshot.ranks = self.rank_stats();
        snapshot.client_memory = self.memory.stats();
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        snapshot.cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
        snapshot
    }

    fn add_volume(&mut self, plan: &VolumePlan) -> Result<(), CommandError> {
        let id = plan.spec.id;
        if self.homes.contains_key(&id) {
            return failed(ErrorKind::Invalid, "the volume is served already");
        }
        let home = self.open_home(plan)?;
        let disk = match &home.place {
            HomePlace::Disk { disk, .. } | HomePlace::Part { disk, .. } => Some(*disk),
            HomePlace::Remote(_) | HomePlace::Absent { .. } => None,
        };
        if let Err(CoreError::Volume { kind, .. }) = self.core.add_volume(home) {
            disk.into_iter().for_each(|disk| self.io.detach_disk(disk));
            return failed(kind, format!("the shard refuses the volume: {kind}"));
        }
        self.core.sync_opened(&mut self.io, id);
        self.homes.insert(id, plan.backing.name());
        if plan.is_clean {
            self.gate.intents().set_clean(id);
        }
        Ok(())
    }

    fn open_home(&mut self, plan: &VolumePlan) -> Result<HomePlan, CommandError> {
        super::start::open_home(&mut self.io, plan, false)
            .map_err(|error| CommandError { kind: error.kind(), cause: error.to_string() })
    }

    fn set_volume(&mut self, spec: VolumeSpec, answer: Answer<()>) {
        let Some(name) = self.homes.get(&spec.id).cloned() else {
            return answer(failed(ErrorKind::Closed, "no such volume"));
        };
        let (before, end) = (self.core.length_of(spec.id), self.core.end_of(spec.id));
        if spec.length > before
            && let Err((kind, cause)) =
                self.core.resize_home(&mut self.io, spec.id, (before, spec.length))
        {
            return answer(failed(kind, format!("cannot extend `{name}`: {cause}")));
        }
        // The whole last block: a dirty rest behind the new end could never be written back. Also
        // where a volume grows: a file that was not truncated once has old bytes there.
        let zeros = match spec.length.cmp(&before) {
            Ordering::Less => spec.length..end,
            Ordering::Greater if self.core.has_file(spec.id) => before..end,
            Ordering::Greater | Ordering::Equal => before..before,
        };
        if zeros.is_empty() {
            return answer(self.apply(&spec));
        }
        if self.is_stopping {
            return answer(failed(ErrorKind::Closed, "the node stops"));
        }
        self.core.set_ending(spec.id, Some(spec.length));
        let until = self.reads_until(spec.id);
        self.pending.zeroings.push(Zeroing { spec, zeros, until, answer });
        self.continue_zeroings();
    }

    /// When reads that a zeroing waits for are given up; never those of a file or device.
    fn reads_until(&self, volume: VolumeId) -> Nanos {
        match self.core.has_remote_home(volume) {
            true => self.io.now() + READS_PATIENCE,
            false => Nanos::NEVER,
        }
    }

    /// Gives up the reads that zeroings have waited for long enough, also those of writes of a part
    /// of a block.
    fn give_up_reads(&mut self) {
        let now = self.io.now();
        let begun = self.pending.changing.values_mut().flatten();
        let all = self.pending.zeroings.iter_mut().chain(begun);
        for zeroing in all.filter(|zeroing| zeroing.until <= now) {
            zeroing.until = now + READS_PATIENCE;
            self.core.give_up_reads(zeroing.spec.id, zeroing.zeros.start);
        }
    }

    /// Ends the zeroings of a volume, and what prepares its removal: it is to be deleted now.
    fn break_off(&mut self, volume: VolumeId) {
        let refused = || failed(ErrorKind::Closed, "the volume is being deleted");
        let is_meant = |zeroing: &mut Zeroing| zeroing.spec.id == volume;
        let mut ended: Vec<Zeroing> = self.pending.zeroings.extract_if(.., is_meant).collect();
        for zeroing in self.pending.changing.values_mut() {
            ended.extend(zeroing.take_if(is_meant));
        }
        ended.into_iter().for_each(|zeroing| self.end_zeroing(zeroing, refused()));
        let is_meant = |removal: &mut Removal| removal.is_kept && removal.volume == volume;
        let ended: Vec<Removal> = self.pending.removals.extract_if(.., is_meant).collect();
        ended.into_iter().for_each(|removal| (removal.answer)(refused()));
    }

    /// Starts the next steps of the zeroings whose volumes have a write intent: until written back,
    /// the zeroes are in a level alone. No change is in flight then that would land over them.
    fn continue_zeroings(&mut self) {
        for zeroing in std::mem::take(&mut self.pending.zeroings) {
            let (volume, call) = (zeroing.spec.id, zeroing.step());
            let intents = self.gate.intents();
            if let Some(kind) = intents.refusal(volume, &call) {
                let cause = format!("its write intent cannot be recorded: {kind}");
                self.end_zeroing(zeroing, failed(kind, cause));
            } else if intents.is_clean(volume) {
                intents.want(volume);
                self.pending.zeroings.push(zeroing);
            } else if self.core.has_changes_behind(volume, zeroing.zeros.start) {
                self.pending.zeroings.push(zeroing);
            } else {
                let ticket = self.pending.number();
                self.pending.changing.insert(ticket, Some(zeroing));
                self.core.submit_part(&mut self.io, Asker(ticket), volume, call, &[], None);
            }
        }
    }

    /// A step has ended.
    fn on_zeroed(&mut self, mut zeroing: Zeroing, result: Result<(), ErrorKind>) {
        if let Err(kind) = result {
            let cause = format!("cannot write zeroes behind its end: {kind}");
            return self.end_zeroing(zeroing, failed(kind, cause));
        }
        zeroing.zeros.start = zeroing.step_end();
        zeroing.until = self.reads_until(zeroing.spec.id);
        if !zeroing.zeros.is_empty() {
            return self.pending.zeroings.push(zeroing);
        }
        // Its home keeps its length until the caller has written down the new one.
        let (id, length) = (zeroing.spec.id, zeroing.spec.length);
        let applied = self.apply(&zeroing.spec).inspect(|()| self.core.end_home(id, length));
        self.end_zeroing(zeroing, applied);
    }

    fn end_zeroing(&mut self, zeroing: Zeroing, result: Result<(), CommandError>) {
        self.core.set_ending(zeroing.spec.id, None);
        (zeroing.answer)(result);
    }

    fn resize_home(&mut self, volume: VolumeId, lengths: (u64, u64)) -> Result<(), CommandError> {
        let resized = self.core.resize_whole_home(&mut self.io, volume, lengths);
        resized.map_err(|(kind, cause)| CommandError { kind, cause })
    }

    fn begin_cut(&mut self, volume: VolumeId, lengths: (u64, u64), answer: Answer<()>) {
        let until = self.io.now() + CUT_PATIENCE;
        self.pending.cuts.push(Cut { volume, lengths, until, answer });
        self.continue_cuts();
    }

    /// Truncates the backing stores that no operation in flight reaches beyond any more.
    fn continue_cuts(&mut self) {
        for index in (0..self.pending.cuts.len()).rev() {
            let Cut { volume, lengths, until, .. } = self.pending.cuts[index];
            let is_reached = self.core.is_home_reached(volume, lengths.1);
            if is_reached && self.io.now() < until {
                continue;
            }
            let Cut { answer, .. } = self.pending.cuts.swap_remove(index);
            answer(match is_reached {
                true => {
                    failed(ErrorKind::Retry, "operations behind its new end are still in flight")
                }
                false => self.resize_home(volume, lengths),
            });
        }
    }

    fn apply(&mut self, spec: &VolumeSpec) -> Result<(), CommandError> {
        let refused = |kind| CommandError { kind, cause: format!("the shard refuses it: {kind}") };
        self.core.cache().set_volume(spec).map_err(refused)?;
        self.rank_clients();
        Ok(())
    }

    fn reconfigure(&mut self, spec: CacheSpec) -> Result<(), CommandError> {
        let spec = self.core.fit_spec(spec);
        let refused = |error| CommandError {
            kind: ErrorKind::Invalid,
            cause: format!("the shard refuses the specification: {error:?}"),
        };
        self.core.cache().reconfigure(spec).map_err(refused)?;
        self.core.forget_classes();
        self.rank_clients();
        Ok(())
    }

    fn remove_volume(&mut self, volume: VolumeId, discard: bool, answer: Answer<()>) {
        if !self.homes.contains_key(&volume) {
            return answer(failed(ErrorKind::Closed, "no such volume"));
        }
        self.cut_clients(volume);
        self.core.stop_waiting(Some(volume));
        let on_dirty = if discard { OnDirty::Discard } else { OnDirty::Refuse };
        let (drain, is_kept) = (None, false);
        self.pending.removals.push(Removal { volume, on_dirty, drain, is_kept, answer });
        if !discard && !self.pending.quiesced.contains(&volume) {
            self.drain_for(self.pending.removals.len() - 1);
        }
    }

    fn quiesce(&mut self, volume: VolumeId, discard: bool, answer: Answer<()>) {
        if !self.homes.contains_key(&volume) || self.is_stopping {
            return answer(failed(ErrorKind::Closed, "the volume is not served"));
        }
        self.cut_clients(volume);
        self.core.stop_waiting(Some(volume));
        let on_dirty = if discard { OnDirty::Discard } else { OnDirty::Refuse };
        let (drain, is_kept) = (None, true);
        self.pending.removals.push(Removal { volume, on_dirty, drain, is_kept, answer });
        if !discard {
            self.drain_for(self.pending.removals.len() - 1);
        }
    }

    /// Drains the volume of a removal.
    fn drain_for(&mut self, index: usize) {
        let (ticket, volume) = (self.pending.number(), self.pending.removals[index].volume);
        self.pending.removals[index].drain = Some(ticket);
        self.core.drain(&mut self.io, ticket, Some(volume));
    }

    /// Removes volumes of which nothing is in flight any more. What was in flight when a drain
    /// ended may have made blocks dirty behind it: these are drained again, and since the volume's
    /// clients are gone, no others come.
    fn continue_removals(&mut self) {
        for index in (0..self.pending.removals.len()).rev() {
            let Removal { volume, on_dirty, drain: None, is_kept, .. } =
                self.pending.removals[index]
            else {
                continue;
            };
            let ended = match is_kept {
                true => self.core.quiesce(&mut self.io, volume, on_dirty),
                false => self.core.remove_volume(&mut self.io, volume, on_dirty),
            };
            match ended {
                Ok(()) => {
                    if is_kept {
                        self.pending.quiesced.insert(volume);
                    } else {
                        self.homes.remove(&volume);
                        self.gate.forget(volume);
                        self.pending.quiesced.remove(&volume);
                    }
                    let removal = self.pending.removals.swap_remove(index);
                    (removal.answer)(Ok(()));
                }
                Err(RemoveError::Busy) => {}
                Err(RemoveError::Dirty) => self.drain_for(index),
                Err(error @ (RemoveError::Unsynced | RemoveError::Unzeroed)) => {
                    let removal = self.pending.removals.swap_remove(index);
                    let why = match error {
                        RemoveError::Unsynced => {
                            "its backing store failed to sync, so that it may lack what it was \
                             given; a restart of the node writes again what its levels have"
                        }
                        _ => "its backing store refuses zeros where blocks were trimmed",
                    };
                    (removal.answer)(failed(ErrorKind::Retry, why));
                }
                Err(RemoveError::Unknown) => {
                    let removal = self.pending.removals.swap_remove(index);
                    (removal.answer)(failed(ErrorKind::Closed, "no such volume"));
                }
            }
        }
    }

    fn begin_cleaning(&mut self, volume: VolumeId, answer: Answer<bool>) {
        if !self.homes.contains_key(&volume) || self.is_stopping {
            return answer(failed(ErrorKind::Closed, "the volume is not served"));
        }
        // Changes of a part may come from other shards, past this one's gate.
        if self.core.is_part(volume) {
            return answer(failed(ErrorKind::Unsupported, "the volume lies over several shards"));
        }
        if self.pending.cleanings.iter().any(|cleaning| cleaning.volume == volume) {
            return answer(Ok(false));
        }
        // An intent may be recorded already of which this shard is to hear yet.
        let intents = self.gate.intents();
        let is_waiting = intents.is_wanted(volume) || intents.is_asked(volume);
        if is_waiting && !is_planted(Plant::CleanWhileWanted) {
            return answer(Ok(false));
        }
        if self.gate.intents().is_clean(volume) {
            return answer(Ok(true));
        }
        self.gate.intents().set_clean(volume);
        let ticket = self.pending.number();
        let cleaning = Cleaning { volume, drain: Some(ticket), until: Nanos::NEVER, answer };
        self.pending.cleanings.push(cleaning);
        self.core.drain(&mut self.io, ticket, Some(volume));
    }

    fn record_intent(&mut self, volume: VolumeId, answer: Answer<()>) {
        self.gate.intents().note_answer(volume);
        self.gate.record_intent(volume);
        answer(Ok(()));
    }

    /// Moves on volumes that are to become clean; a change that waits ends it.
    fn continue_cleanings(&mut self) {
        for index in (0..self.pending.cleanings.len()).rev() {
            let Cleaning { volume, drain, until, .. } = self.pending.cleanings[index];
            let is_wanted = self.gate.intents().is_wanted(volume);
            let is_early = is_planted(Plant::CleanEarly);
            let is_clean = !is_wanted
                && drain.is_none()
                && !self.is_cutting(volume)
                && (is_early || self.core.settle(&mut self.io, volume));
            if is_clean || is_wanted || self.io.now() >= until {
                self.end_cleaning(index, is_clean);
            }
        }
    }

    /// Whether a request to the volume has begun and is not submitted whole.
    fn is_cutting(&self, volume: VolumeId) -> bool {
        let mut own = self.clients.iter().flatten().filter(|client| client.volume == volume);
        own.any(Client::is_cutting) || self.guests.is_cutting(volume)
    }

    fn end_cleaning(&mut self, index: usize, is_clean: bool) {
        let Cleaning { volume, answer, .. } = self.pending.cleanings.swap_remove(index);
        if !is_clean {
            self.gate.record_intent(volume);
        }
        answer(Ok(is_clean));
    }

    fn cut_clients(&mut self, volume: VolumeId) {
        self.guests.leave(&mut self.io, Some(volume));
        self.cut_where(|client| client.volume == volume);
    }

    fn cut_where(&mut self, is_meant: impl Fn(&Client<S>) -> bool) {
        let clients = self.clients.iter_mut().flatten().filter(|client| is_meant(client));
        clients.for_each(|client| client.cut(&mut self.io, &mut self.core));
        self.touch_all();
        self.find_best();
    }

    fn start_link(&mut self, volume: VolumeId, end: (FarEnd, bool)) -> Result<(), CommandError> {
        if !self.homes.contains_key(&volume) || self.is_stopping {
            return failed(ErrorKind::Closed, "the part is not served");
        }
        let rank = self.core.rank_of(volume);
        self.guests.start_link(self.io.waker(), (volume, rank), end);
        Ok(())
    }

    fn join(
        &mut self,
        volume: VolumeId,
        links: Vec<Option<NearEnd>>,
        lead: Option<NearEnd>,
    ) -> Result<(), CommandError> {
        let all = links.iter().chain([&lead]).flatten();
        all.for_each(|link| link.set_waker(self.io.waker()));
        let joined = self.core.join(volume, links, lead);
        joined.or_else(|kind| failed(kind, "the volume's parts are not all there"))
    }

    /// Whether the finished request was the shard's own.
    pub(super) fn on_own_finished(&mut self, finished: &Finished) -> bool {
        if finished.asker.0 < Asker::OWN {
            return false;
        }
        if let Some(Some(zeroing)) = self.pending.changing.remove(&finished.asker.0) {
            let result = finished.result.as_ref().map(|_| ()).map_err(|kind| *kind);
            self.on_zeroed(zeroing, result);
        }
        true
    }

    /// Moves on what takes several turns.
    pub(super) fn continue_commands(&mut self) {
        for (ticket, result) in self.core.take_drained() {
            if let Some(answer) = self.pending.drains.remove(&ticket) {
                answer(result.or_else(|kind| {
                    let (kind, why) = self.core.why_undrained(kind);
                    failed(kind, format!("dirty blocks cannot reach the backing store: {why}"))
                }));
            }
            let mut cleanings = self.pending.cleanings.iter_mut();
            if let Some(at) = cleanings.position(|cleaning| cleaning.drain == Some(ticket)) {
                match result {
                    Ok(()) => {
                        let until = self.io.now() + CLEAN_PATIENCE;
                        let cleaning = &mut self.pending.cleanings[at];
                        (cleaning.drain, cleaning.until) = (None, until);
                    }
                    Err(_) => self.end_cleaning(at, false),
                }
            }
            for index in (0..self.pending.removals.len()).rev() {
                if self.pending.removals[index].drain != Some(ticket) {
                    continue;
                }
                match result {
                    Ok(()) => self.pending.removals[index].drain = None,
                    Err(kind) => {
                        let removal = self.pending.removals.swap_remove(index);
                        let (kind, why) = self.core.why_undrained(kind);
                        (removal.answer)(failed(kind, format!("its dirty blocks stay: {why}")));
                    }
                }
            }
        }
        self.continue_cleanings();
        self.continue_zeroings();
        self.give_up_reads();
        self.continue_cuts();
        self.continue_removals();
    }
}

/// How a volume's home is opened.
pub(super) fn home_mode(plan: &VolumePlan, create: Option<u64>) -> OpenMode {
    let may_be_protected = plan.is_read_only;
    OpenMode { direct: true, create_length: create, may_be_protected, ..OpenMode::default() }
}
