//! Simulated disks for tests: seeded order, virtual time, crashes that tear, faults on demand.
//!
//! How: operations wait in a list; each [`Io::wait`] moves virtual time on by a seeded step and
//! ends a seeded choice of them, in seeded order. An operation takes effect when it ends.
//! Invariant: the same seed and the same calls give the same ends, the same times and, after a
//! crash, the same bytes. A change that a completed Sync or durable write covers survives a crash.
//! Cost: memory for the written pages, twice where unsynced, plus the changes since the last sync.
//! Not for: latency claims (see `device`).

mod disk;
mod fuse;
mod host;
mod mapping;
mod pages;
mod socket;
#[cfg(test)]
mod tests;

use super::operation::OperationKind;
use super::{
    Buffer, BufferPool, DiskId, EventId, Io, IoDone, IoError, IoOperation, Mapping, Owed, SocketId,
    Token, Waker, WriteLife,
};
use disk::{Change, Fault, SimDisk};
pub use fuse::{CutAt, Deed, Fuse, PowerCut, Step, Window};
pub use host::SimHost;
use layby_cache::schedule::Rank;
use layby_types::{Nanos, Rng};
use mapping::{SimMapping, lock};
use rustix::io::Errno;
use socket::SimSocket;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a crash does to changes that are not durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// All are lost.
    DropAll,
    /// Each 512-byte sector of each is kept or lost by the seed, so writes tear.
    KeepSome,
    /// All are kept, as when only the process dies; what was in flight may tear.
    KeepAll,
}

/// Longest seeded step of virtual time per wait.
const STEP_NANOS_MAX: u64 = 50_000;
/// Waits in a row that nothing could ever end before the test is declared hung.
const IDLE_WAITS_MAX: u32 = 10_000;

struct Flight {
    token: Token,
    operation: IoOperation,
    /// For a Sync: the part of the disk's log that it must make durable.
    mark: u64,
    begun: Nanos,
    /// Whether it was possible when it was submitted; the disk may have been truncated since.
    fits: Result<(), IoError>,
    /// A durable write that was written when another sync failed, which dropped it.
    is_dropped: bool,
}

/// What a guest says that there is more by.
#[derive(Debug, Default)]
struct SimEvent {
    is_signalled: bool,
    /// The node has forgotten it.
    is_closed: bool,
}

/// A copy of all that lies on a disk.
pub struct Image(pages::Pages);

/// A machine's disks and sockets, in memory.
pub struct SimIo {
    rng: Rng,
    now: Nanos,
    disks: Vec<Arc<Mutex<SimDisk>>>,
    names: Vec<String>,
    sockets: Vec<SimSocket>,
    events: Vec<SimEvent>,
    fuse: Arc<Fuse>,
    flights: Vec<Flight>,
    pool: BufferPool,
    waker: Waker,
    life: Option<WriteLife>,
    /// Offsets of writes and their lives, where a test wants to know.
    lives: Option<Vec<(DiskId, u64, Option<WriteLife>)>>,
    is_stepwise: bool,
    /// A sync that fails drops durable writes in flight, too.
    drops_in_flight: bool,
    batch_bytes: Option<usize>,
    /// Since the last end, and ever.
    idle_waits: u32,
    /// Since when nothing has ended and no disk had anything to do.
    quiet_since: Option<Nanos>,
    waits_in_vain: u64,
}

impl SimIo {
    /// A machine without disks, whose chance follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimIo {
            rng: Rng::new(seed),
            now: Nanos::ZERO,
            disks: Vec::new(),
            names: Vec::new(),
            sockets: Vec::new(),
            events: Vec::new(),
            fuse: Arc::new(Fuse::default()),
            flights: Vec::new(),
            pool: BufferPool::new(0),
            waker: Waker::flag_only(),
            life: None,
            lives: None,
            is_stepwise: false,
            drops_in_flight: false,
            batch_bytes: None,
            idle_waits: 0,
            quiet_since: None,
            waits_in_vain: 0,
        }
    }

    /// Bounds the batches of every rank but the best.
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        self.batch_bytes = Some(bytes);
    }

    /// Whether long work is to go in steps.
    pub fn set_stepwise(&mut self, is_stepwise: bool) {
        self.is_stepwise = is_stepwise;
    }

    /// Lets each sync that fails drop, by chance, what durable writes in flight have written by
    /// then: their own syncs come after it and end well, as those of a file do.
    pub fn set_dropping(&mut self, drops_in_flight: bool) {
        self.drops_in_flight = drops_in_flight;
    }

    /// Adds a disk of zeros.
    pub fn add_disk(&mut self, name: &str, length: u64) -> DiskId {
        let id = DiskId(u32::try_from(self.disks.len()).expect("a test has few disks"));
        self.disks.push(Arc::new(Mutex::new(SimDisk::new(name, length))));
        self.names.push(name.to_owned());
        id
    }

    /// Adds a disk of persistent memory: its mapping needs cache flushes, not syncs.
    pub fn add_persistent_memory(&mut self, name: &str, length: u64) -> DiskId {
        let id = self.add_disk(name, length);
        self.disk(id).flushes_caches = true;
        id
    }

    /// Finds a disk by name and attaches it again if it was detached.
    pub fn attach_disk(&mut self, name: &str) -> Option<DiskId> {
        let index = self.names.iter().position(|known| known == name)?;
        let id = DiskId(u32::try_from(index).expect("a test has few disks"));
        self.disk(id).attached = true;
        Some(id)
    }

    /// Wakes this machine's waits.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Writes from here on are noted, with the life that each was submitted under.
    pub fn note_lives(&mut self) {
        self.lives = Some(Vec::new());
    }

    /// Takes what was noted: disk, first byte, life.
    pub fn take_lives(&mut self) -> Vec<(DiskId, u64, Option<WriteLife>)> {
        self.lives.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Operations submitted and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Cuts the power: operations in flight vanish, unsynced changes fare as `mode` says, and the
    /// disks stand as a restarted machine would find them, under the same ids. Faults that were
    /// still to come are forgotten; bad sectors and fullness remain.
    pub fn crash(&mut self, mode: CrashMode) {
        let mut in_flight: Vec<Vec<Change>> = self.disks.iter().map(|_| Vec::new()).collect();
        self.fuse.rest();
        self.sockets.iter_mut().for_each(SimSocket::reset);
        for flight in std::mem::take(&mut self.flights) {
            let Some(disk) = flight.operation.disk() else { continue };
            if let Some(change) = change_of(&flight.operation) {
                in_flight[disk.0 as usize].push(change);
            }
        }
        for (disk, changes) in self.disks.iter().zip(in_flight) {
            lock(disk).crash(mode, changes, &mut self.rng);
        }
        self.waker.take();
    }

    /// Flips one to eight bits of a range at rest.
    pub fn corrupt(&mut self, disk: DiskId, offset: u64, length: u64) {
        lock(&self.disks[disk.0 as usize]).corrupt(offset, length, &mut self.rng);
    }

    /// Lets the next operation of a kind fail. A write that fails leaves a mixture of old and new
    /// sectors; a sync that fails leaves what it covered visible but never durable.
    pub fn fail_next(&mut self, disk: DiskId, kind: OperationKind, errno: Errno) {
        self.disk(disk).add_fault(kind, Fault::Fail(errno));
    }

    /// Lets an operation of a kind fail, as [`SimIo::fail_next`] does, after so many that end well.
    pub fn fail_after(&mut self, disk: DiskId, passed: u32, kind: OperationKind, errno: Errno) {
        (0..passed).for_each(|_| self.disk(disk).add_fault(kind, Fault::Passed));
        self.fail_next(disk, kind, errno);
    }

    /// Lets the next write be done and answered with an error, and refuses so many after it.
    pub fn do_and_fail_next(&mut self, disk: DiskId, refusals: u8, errno: Errno) {
        self.disk(disk).add_fault(OperationKind::Write, Fault::Done(errno));
        for _ in 0..refusals {
            self.disk(disk).add_fault(OperationKind::Write, Fault::Refused(errno));
        }
    }

    /// Lets the next durable write be done, and the sync by which it is made durable fail.
    pub fn fail_next_own_sync(&mut self, disk: DiskId, errno: Errno) {
        self.disk(disk).add_fault(OperationKind::Write, Fault::Unsynced(errno));
    }

    /// Lets the next write claim success and do nothing.
    pub fn lose_next_write(&mut self, disk: DiskId) {
        self.disk(disk).add_fault(OperationKind::Write, Fault::Lost);
    }

    /// Lets the next write claim success and land at `offset`.
    pub fn misdirect_next_write(&mut self, disk: DiskId, offset: u64) {
        self.disk(disk).add_fault(OperationKind::Write, Fault::Misdirected(offset));
    }

    /// Makes reads of a range fail with `EIO` until it is overwritten.
    pub fn fail_reads(&mut self, disk: DiskId, offset: u64, length: u64) {
        self.disk(disk).make_unreadable(offset..offset + length);
    }

    /// Makes writes of a range fail with `EIO` for good, a restart notwithstanding.
    pub fn break_range(&mut self, disk: DiskId, offset: u64, length: u64) {
        self.disk(disk).break_range(offset..offset + length);
    }

    /// Makes writes of all such ranges end well again.
    pub fn mend(&mut self, disk: DiskId) {
        self.disk(disk).mend();
    }

    /// Makes writes and zeroings fail with `ENOSPC`, or ends that.
    pub fn set_full(&mut self, disk: DiskId, full: bool) {
        self.disk(disk).full = full;
    }

    /// Keeps every operation on a disk from ending, or ends that.
    pub fn set_stuck(&mut self, disk: DiskId, stuck: bool) {
        self.disk(disk).stuck_until = if stuck { Nanos::NEVER } else { Nanos::ZERO };
    }

    /// Time passes while no call is made, as for a process that is stopped.
    pub fn pass(&mut self, span: Nanos) {
        self.now = self.now.saturating_add(span);
    }

    /// Keeps every operation on a disk from ending for a while.
    pub fn stall(&mut self, disk: DiskId, time: Nanos) {
        self.disk(disk).stuck_until = self.now.saturating_add(time);
    }

    /// Lets every operation on a disk fail with `ENODEV`, or ends that.
    pub fn set_gone(&mut self, disk: DiskId, gone: bool) {
        self.disk(disk).is_gone = gone;
    }

    /// Lets so many writes of a hundred fail, until told otherwise.
    pub fn set_flaky(&mut self, disk: DiskId, percent: u64) {
        self.disk(disk).flaky_percent = percent;
    }

    /// Cuts the power at a step still to come, or at none: [`PowerCut`] unwinds out of whoever is
    /// inside the machine then, and [`SimIo::crash`] is to follow.
    pub fn cut_at(&mut self, cut: Option<CutAt>) {
        self.fuse.set(cut);
    }

    /// What burns where a step is taken, for devices that are not among the machine's disks.
    #[must_use]
    pub fn fuse(&self) -> Arc<Fuse> {
        self.fuse.clone()
    }

    /// Puts a new disk of zeros in the place of one, which is gone with all that was in flight for
    /// it. Cut the power first.
    pub fn replace_disk(&mut self, disk: DiskId) {
        let mut old = self.disk(disk);
        let mut new = SimDisk::new(&old.name, old.length());
        (new.flushes_caches, new.epoch) = (old.flushes_caches, old.epoch + 1);
        *old = new;
    }

    /// A copy of a disk.
    #[must_use]
    pub fn image(&self, disk: DiskId) -> Image {
        Image(self.disk(disk).image())
    }

    /// Puts a copy of a disk back, durably. Cut the power first.
    pub fn put_image(&mut self, disk: DiskId, image: Image) {
        self.disk(disk).put_image(image.0);
    }

    /// Steps so far, in the sense of [`Step`].
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.fuse.steps()
    }

    /// The windows between two steps that were passed so far, and those of them into which a power
    /// cut fell.
    #[must_use]
    pub fn windows(&self) -> (BTreeSet<Window>, BTreeSet<Window>) {
        self.fuse.windows()
    }

    /// A connected socket.
    pub fn add_socket(&mut self) -> SocketId {
        self.sockets.push(SimSocket::default());
        SocketId(u32::try_from(self.sockets.len() - 1).expect("a test has few sockets"))
    }

    /// An event descriptor, which the node holds.
    fn add_event(&mut self) -> EventId {
        self.events.push(SimEvent::default());
        EventId(u32::try_from(self.events.len() - 1).expect("a test has few events"))
    }

    /// The guests kick: each says that there is more.
    pub fn kick_all(&mut self) {
        self.events.iter_mut().for_each(|event| event.is_signalled = true);
    }

    /// Sends bytes to the node.
    pub fn put(&mut self, socket: SocketId, bytes: &[u8]) {
        self.sockets[socket.0 as usize].put(bytes);
    }

    /// Takes at most so many bytes that the node has sent.
    pub fn take(&mut self, socket: SocketId, most: usize) -> Vec<u8> {
        self.sockets[socket.0 as usize].take(most)
    }

    /// The peer closes its socket: what it sent still arrives, and nothing arrives at it.
    pub fn leave(&mut self, socket: SocketId) {
        self.sockets[socket.0 as usize].leave();
    }

    /// The peer closes its side of its socket: it sends no more, and still receives.
    pub fn end_sending(&mut self, socket: SocketId) {
        self.sockets[socket.0 as usize].end_sending();
    }

    /// Breaks a connection; what is under way in either direction is lost.
    pub fn reset(&mut self, socket: SocketId) {
        self.sockets[socket.0 as usize].reset();
    }

    /// Whether the node has closed its side.
    #[must_use]
    pub fn is_closed(&self, socket: SocketId) -> bool {
        self.sockets[socket.0 as usize].is_closed
    }

    /// Whether an operation in flight could end now.
    #[must_use]
    pub fn can_end(&self) -> bool {
        (0..self.flights.len()).any(|index| self.may_end(&self.flights[index]))
    }

    /// What a reader would see, without an operation. Bad sectors are read through.
    #[must_use]
    pub fn peek(&self, disk: DiskId) -> Vec<u8> {
        let disk = self.disk(disk);
        let mut bytes = vec![0; disk.length() as usize];
        disk.read_raw(&mut bytes);
        bytes
    }

    /// Whether anything but a read is in flight that reaches behind this byte of a disk.
    #[must_use]
    pub fn is_reached(&self, disk: DiskId, length: u64) -> bool {
        let mine = self.flights.iter().filter(|flight| flight.operation.disk() == Some(disk));
        let mut ends = mine.filter_map(|flight| match &flight.operation {
            IoOperation::Write { offset, buffer, .. } => Some(offset + buffer.len() as u64),
            IoOperation::Zero { offset, length, .. }
            | IoOperation::Extents { offset, length, .. } => Some(offset + length),
            _ => None,
        });
        ends.any(|end| end > length)
    }

    fn disk(&self, disk: DiskId) -> MutexGuard<'_, SimDisk> {
        lock(&self.disks[disk.0 as usize])
    }

    /// The flights that may end now.
    fn ready(&self) -> Vec<usize> {
        (0..self.flights.len()).filter(|index| self.may_end(&self.flights[*index])).collect()
    }

    fn may_end(&self, flight: &Flight) -> bool {
        match &flight.operation {
            IoOperation::Receive { socket, .. } => self.sockets[socket.0 as usize].may_receive(),
            IoOperation::Send { socket, .. } => self.sockets[socket.0 as usize].may_send(),
            IoOperation::Await { event } => {
                let event = &self.events[event.0 as usize];
                event.is_signalled || event.is_closed
            }
            other => other.disk().is_none_or(|disk| self.disk(disk).stuck_until <= self.now),
        }
    }

    /// Ends a seeded choice of flights; at least one if `must` and any can end.
    fn end_some(&mut self, must: bool, done: &mut Vec<IoDone>) {
        let mut ready = self.ready();
        let count =
            self.rng.below(ready.len() as u64 + 1).max(u64::from(must && !ready.is_empty()));
        for _ in 0..count {
            let pick = self.rng.below(ready.len() as u64) as usize;
            let index = ready.remove(pick);
            for other in &mut ready {
                *other -= usize::from(*other > index);
            }
            let flight = self.flights.remove(index);
            let step = step_of(&flight.operation, Deed::Ended(flight.operation.kind()));
            done.push(self.perform(flight));
            self.fuse.burn(step);
        }
    }

    /// Takes an operation into effect.
    fn perform(&mut self, flight: Flight) -> IoDone {
        let Flight { token, mut operation, mark, fits, is_dropped, .. } = flight;
        if operation.disk().is_none() {
            let result = self.perform_on_socket(&mut operation);
            return IoDone::new(token, result, operation.into_buffer());
        }
        let id = operation.disk().expect("submit refuses what is not for a disk");
        let mut disk = lock(&self.disks[id.0 as usize]);
        let kind = operation.kind();
        let is_flaky = kind == OperationKind::Write && disk.flaky_percent > 0;
        let fails = is_flaky && self.rng.chance(disk.flaky_percent, 100);
        let flaky = || fails.then_some(Fault::Fail(Errno::IO));
        if is_dropped && !disk.is_gone {
            let length = durable_write(&operation).map_or(0, |change| change.length() as usize);
            return IoDone::new(token, Ok(length), operation.into_buffer());
        }
        let is_durable = matches!(operation, IoOperation::Write { durable: true, .. });
        let fault = disk.take_fault(kind, is_durable).or_else(flaky);
        let rng = &mut self.rng;
        let result = fits.and_then(|()| perform_on(&mut disk, &mut operation, mark, fault, rng));
        let is_sync_failed = matches!((fault, &result), (Some(Fault::Unsynced(_)), Err(_)));
        let is_sync = kind == OperationKind::Sync && fault.is_some();
        if self.drops_in_flight && result.is_err() && (is_sync || is_sync_failed) {
            let mine = self.flights.iter_mut().filter(|flight| flight.operation.disk() == Some(id));
            for flight in mine.filter(|flight| !flight.is_dropped && flight.fits.is_ok()) {
                let Some(change) = durable_write(&flight.operation) else { continue };
                flight.is_dropped = rng.chance(1, 2);
                if flight.is_dropped {
                    disk.change_dropped(change, rng);
                }
            }
        }
        let mut extents = Vec::new();
        if let (Ok(_), IoOperation::Extents { offset, length, .. }) = (&result, &operation) {
            extents = disk.extents(*offset, *length);
        }
        IoDone { token, result, buffer: operation.into_buffer(), extents, is_sync_failed }
    }

    fn perform_on_socket(&mut self, operation: &mut IoOperation) -> Result<usize, IoError> {
        operation.check(0)?;
        match operation {
            IoOperation::Receive { socket, buffer, filled, end } => {
                let room = &mut buffer[*filled..*end];
                self.sockets[socket.0 as usize].receive(room, &mut self.rng)
            }
            IoOperation::Send { socket, buffer, start, end } => {
                self.sockets[socket.0 as usize].send(&buffer[*start..*end])
            }
            IoOperation::Await { event } => {
                self.events[event.0 as usize].is_signalled = false;
                Ok(0)
            }
            _ => unreachable!("every other operation has a disk"),
        }
    }

    /// Waits in a row that a real machine would never have come back from: nothing in flight could
    /// end, and there was no deadline.
    #[must_use]
    pub fn idle_waits(&self) -> u32 {
        self.idle_waits
    }

    /// For how long nothing has ended, and no disk had anything to do.
    #[must_use]
    pub fn quiet_for(&self) -> Nanos {
        self.quiet_since.map_or(Nanos::ZERO, |since| self.now.since(since))
    }

    /// Waits so far that a real machine would never have come back from.
    #[cfg(test)]
    pub(crate) fn waits_in_vain(&self) -> u64 {
        self.waits_in_vain
    }

    /// Nothing can end: time passes until the deadline, or until a stalled disk goes on.
    fn idle(&mut self, deadline: Nanos) {
        let is_disk_busy = self.flights.iter().any(|flight| flight.operation.disk().is_some());
        self.quiet_since = self.quiet_since.or(Some(self.now)).filter(|_| !is_disk_busy);
        let stalls = self.flights.iter().filter_map(|flight| flight.operation.disk());
        let until = stalls.map(|disk| self.disk(disk).stuck_until).filter(|at| *at > self.now);
        let deadline = until.fold(deadline, Nanos::min);
        if deadline != Nanos::NEVER {
            self.now = self.now.max(deadline);
            return;
        }
        self.idle_waits += 1;
        self.waits_in_vain += 1;
        assert!(self.idle_waits < IDLE_WAITS_MAX, "a wait without deadline that nothing can end");
    }
}

/// The change an operation makes, if any.
fn change_of(operation: &IoOperation) -> Option<Change> {
    match operation {
        IoOperation::Write { offset, buffer, .. } => Some(Change::write(*offset, buffer.to_vec())),
        IoOperation::Zero { offset, length, .. } | IoOperation::Discard { offset, length, .. } => {
            Some(Change::zero(*offset, *length))
        }
        _ => None,
    }
}

/// The change that a durable write makes.
fn durable_write(operation: &IoOperation) -> Option<Change> {
    let is_durable = matches!(operation, IoOperation::Write { durable: true, .. });
    change_of(operation).filter(|_| is_durable)
}

fn step_of(operation: &IoOperation, deed: Deed) -> Step {
    Step { disk: operation.disk().map(|disk| disk.0), deed }
}

fn perform_on(
    disk: &mut SimDisk,
    operation: &mut IoOperation,
    mark: u64,
    fault: Option<Fault>,
    rng: &mut Rng,
) -> Result<usize, IoError> {
    if disk.is_gone {
        return Err(Errno::NODEV.into());
    }
    match operation {
        IoOperation::Read { offset, buffer, .. } => {
            if let Some(Fault::Fail(errno)) = fault {
                return Err(errno.into());
            }
            let there = disk.length().saturating_sub(*offset).min(buffer.len() as u64);
            disk.read(*offset, buffer).map(|()| there as usize)
        }
        IoOperation::Sync { .. } => match fault {
            Some(Fault::Fail(errno)) => {
                disk.sync_failed(mark, rng);
                Err(errno.into())
            }
            _ => {
                let reach = if rng.chance(1, 2) { mark } else { disk.mark() };
                disk.sync(reach);
                Ok(0)
            }
        },
        IoOperation::Write { durable, .. } => {
            let durable = *durable;
            change_on(disk, operation, durable, fault, rng)
        }
        IoOperation::Zero { .. } => change_on(disk, operation, false, fault, rng),
        IoOperation::Discard { offset, length, .. } => match fault {
            Some(Fault::Fail(errno)) => Err(errno.into()),
            _ => {
                disk.discard(*offset, *length, rng);
                Ok(0)
            }
        },
        _ => match fault {
            Some(Fault::Fail(errno)) => Err(errno.into()),
            _ => Ok(0),
        },
    }
}

fn change_on(
    disk: &mut SimDisk,
    operation: &IoOperation,
    durable: bool,
    fault: Option<Fault>,
    rng: &mut Rng,
) -> Result<usize, IoError> {
    assert!(!disk.mapped, "{} is mapped: change it through its mapping only", disk.name);
    let mut change = change_of(operation).expect("only writes and zeroings come here");
    let length = match operation {
        IoOperation::Write { buffer, .. } => buffer.len(),
        _ => 0,
    };
    if disk.full {
        return Err(Errno::NOSPC.into());
    }
    if disk.is_broken(&change) {
        disk.change_torn(&change, rng);
        return Err(Errno::IO.into());
    }
    match fault {
        Some(Fault::Fail(errno)) => {
            disk.change_torn(&change, rng);
            return Err(errno.into());
        }
        Some(Fault::Done(errno)) => {
            change.durable = durable;
            disk.change(change);
            return Err(errno.into());
        }
        Some(Fault::Unsynced(errno)) => {
            assert!(durable, "only a durable write has a sync of its own");
            disk.change(change);
            disk.sync_failed(disk.mark(), rng);
            return Err(errno.into());
        }
        Some(Fault::Refused(errno)) => return Err(errno.into()),
        Some(Fault::Lost) => return Ok(length),
        Some(Fault::Misdirected(offset)) => change.offset = offset,
        Some(Fault::Passed) | None => {}
    }
    change.durable = durable;
    disk.change(change);
    Ok(length)
}

impl Io for SimIo {
    fn now(&self) -> Nanos {
        self.now
    }

    fn buffer(&mut self, length: usize) -> Buffer {
        self.pool.take(length)
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        self.life = life;
    }

    fn batch_bytes(&self, rank: Rank) -> Option<usize> {
        self.batch_bytes.filter(|_| rank > Rank::FIRST)
    }

    fn is_stepwise(&self) -> bool {
        self.is_stepwise
    }

    fn has_arrived(&mut self) -> bool {
        self.can_end()
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.pool.recycle(buffer);
    }

    fn submit(&mut self, token: Token, operation: IoOperation) {
        let (mark, fits) = operation.disk().map_or((0, Ok(())), |disk| {
            let disk = self.disk(disk);
            assert!(disk.attached, "an operation on {}, which was detached", disk.name);
            (disk.mark(), operation.check(disk.length()))
        });
        let step = step_of(&operation, Deed::Begun(operation.kind()));
        if let (Some(lives), IoOperation::Write { disk, offset, .. }) =
            (&mut self.lives, &operation)
        {
            lives.push((*disk, *offset, self.life));
        }
        let begun = self.now;
        self.flights.push(Flight { token, operation, mark, begun, fits, is_dropped: false });
        self.fuse.burn(step);
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let woken = self.waker.take();
        let before = done.len();
        let patient = deadline > self.now && !woken;
        let step = Nanos(1 + self.rng.below(STEP_NANOS_MAX));
        let expires = deadline != Nanos::NEVER && self.rng.chance(1, 8);
        let blocked = self.ready().is_empty();
        self.end_some(patient && !expires, done);
        if !patient {
            self.now = self.now.saturating_add(step);
        } else if done.len() > before {
            (self.idle_waits, self.quiet_since) = (0, None);
            self.now = self.now.saturating_add(step).min(deadline);
        } else {
            debug_assert!(blocked || expires);
            self.idle(deadline);
        }
    }

    fn has_flights(&self) -> bool {
        self.flights.iter().any(|flight| flight.operation.disk().is_some())
    }

    fn owed(&self, disk: DiskId) -> Owed {
        let mut owed = Owed::default();
        let mine = self.flights.iter().filter(|flight| flight.operation.disk() == Some(disk));
        mine.for_each(|flight| owed.add(flight.operation.is_quick(), flight.begun));
        owed
    }

    fn leave_out(&mut self, span: Nanos) {
        for flight in &mut self.flights {
            flight.begun = flight.begun.saturating_add(span).min(self.now);
        }
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        self.sockets[socket.0 as usize].has_ended()
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        let unsent = self.flights.iter().map(|flight| match &flight.operation {
            IoOperation::Send { socket: its, start, end, .. } if *its == socket => end - start,
            _ => 0,
        });
        unsent.sum::<usize>() as u64 + self.sockets[socket.0 as usize].untaken()
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        let mut disk = self.disk(disk);
        if disk.is_gone || disk.mapped {
            return Err(Errno::NODEV.into());
        }
        disk.resize(length);
        Ok(())
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        self.disk(disk).length()
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        &self.names[disk.0 as usize]
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        let shared = &self.disks[disk.0 as usize];
        Ok(Box::new(SimMapping::new(shared, disk.0, self.fuse.clone())))
    }

    fn detach_disk(&mut self, disk: DiskId) {
        self.disk(disk).attached = false;
    }

    fn close_socket(&mut self, socket: SocketId) {
        self.sockets[socket.0 as usize].is_closed = true;
    }

    fn close_event(&mut self, event: EventId) {
        self.events[event.0 as usize].is_closed = true;
    }
}
