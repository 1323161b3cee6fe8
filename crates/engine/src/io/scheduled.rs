//! An [`Io`] whose devices serve by rank: the one place where what stores and homes submit meets.
//!
//! How: reads, writes and zeroings below the best rank pass a [`DeviceQueue`] per disk, which holds
//! them to a budget; the best rank, syncs and sockets go straight on. Ends of what waited in a
//! queue are handed out a quantum of bytes at a time, since each end means copying and summing, so
//! that a caller looks for better requests between them.
//! Invariant: as any `Io`'s: each token comes back exactly once. What is held back has not begun,
//! so a sync does not cover it; nobody may rely on more, since a sync covers what had *completed*.
//! Cost: a place in a table per operation of a disk, which says since when the disk owes its end.
//! Not for: ordering, which nobody may expect of operations that are in flight together.

use super::encrypted::Encrypted;
use super::{
    Buffer, DiskId, EventId, HintState, Host, Io, IoDone, IoError, IoOperation, Mapping, OpenError,
    OpenMode, Opened, Owed, Peer, SectorCipher, SocketId, Token, Waker, WriteLife,
};
use layby_cache::schedule::{Budget, DeviceQueue, Load, Rank, ScheduleLimits, Verdict};
use layby_types::Nanos;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The tag of tokens that stand for a flight of this file.
const TAG_FLIGHT: u64 = 0x40;
/// What an end costs that brings no data.
const END_BYTES: u64 = 4 << 10;
/// Bytes moved whose end costs as much as submitting one byte that is written.
const MOVED_PER_BYTE: u64 = 4;

/// Quanta of a batch below the best rank, and of what a device is asked for at once: the
/// processor's part in that hardly grows with its length.
const BATCH_QUANTA: usize = 8;

/// An operation of a disk: in its hands, or held by its queue.
struct Flight {
    token: Token,
    disk: DiskId,
    /// When the disk was given it; none while it waits, here or in the host's own queue.
    begun: Option<Nanos>,
    /// It is a read or a write.
    is_quick: bool,
    /// It passed no queue, and its end waits in none.
    is_straight: bool,
    /// Bytes in the device's budget.
    bytes: u64,
    /// Bytes of work that its end brings.
    work: u64,
    /// How long what it writes is likely to live.
    life: Option<WriteLife>,
}

/// A device as it stands now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Its path.
    pub name: String,
    /// What lower ranks may have outstanding.
    pub budget: Load,
    /// What they have outstanding.
    pub outstanding: Load,
    /// What waits, by rank.
    pub waiting: Vec<(Rank, Load)>,
}

/// See the file's header.
pub struct Scheduled<H> {
    inner: Encrypted<H>,
    limits: ScheduleLimits,
    rank: Rank,
    life: Option<WriteLife>,
    best: Rank,
    disks: Vec<Option<DeviceQueue<(u32, IoOperation)>>>,
    /// What budgets begin with, for disks of which it is known, and for all others.
    starts: Vec<(DiskId, Load)>,
    start_others: Option<Load>,
    flights: Vec<Option<Flight>>,
    flights_free: Vec<u32>,
    /// When each disk last ended an operation.
    last_ends: Vec<Nanos>,
    ended: VecDeque<(u64, IoDone)>,
    /// Ends of lower ranks wait until they are asked for.
    is_deferring: bool,
    is_stepwise: bool,
}

impl<H: Io> Scheduled<H> {
    /// Serves `inner`'s devices by rank.
    #[must_use]
    pub fn new(inner: H, limits: ScheduleLimits) -> Self {
        Scheduled {
            inner: Encrypted::new(inner),
            limits,
            rank: Rank::FIRST,
            life: None,
            best: Rank::FIRST,
            disks: Vec::new(),
            starts: Vec::new(),
            start_others: None,
            flights: Vec::new(),
            flights_free: Vec::new(),
            last_ends: Vec::new(),
            ended: VecDeque::new(),
            is_deferring: false,
            is_stepwise: false,
        }
    }

    /// Has the budget of `disk`, or of all disks that are not named, begin with `load`, before
    /// anything was submitted to it.
    pub fn begin_with(&mut self, disk: Option<DiskId>, load: Load) {
        match disk {
            Some(disk) => self.starts.push((disk, load)),
            None => self.start_others = Some(load),
        }
    }

    /// What `disk` holds is cipher text, of which nobody above this knows. Before anything was
    /// submitted to it.
    pub fn encrypt(&mut self, disk: DiskId, cipher: Arc<SectorCipher>) {
        self.inner.encrypt(disk, cipher);
    }

    /// What goes straight on: this rank and better ones.
    pub fn set_best(&mut self, best: Rank) {
        self.best = best;
    }

    /// Whether somebody is served below the best rank, so that long work goes in steps.
    pub fn set_stepwise(&mut self, is_stepwise: bool) {
        self.is_stepwise = is_stepwise;
    }

    /// A window of the best rank's objective has ended.
    pub fn on_window(&mut self, verdict: Verdict) {
        for queue in self.disks.iter_mut().flatten() {
            match verdict {
                Verdict::Missed => queue.budget().on_missed(),
                Verdict::Met | Verdict::Idle => queue.budget().on_met(),
            }
        }
        for index in 0..self.disks.len() {
            self.start_next(index);
        }
    }

    /// The devices that lower ranks have used.
    #[must_use]
    pub fn loads(&self) -> Vec<DeviceLoad> {
        let used = self.disks.iter().enumerate();
        let used = used.filter_map(|(index, queue)| Some((index, queue.as_ref()?)));
        let load = |(index, queue): (usize, &DeviceQueue<_>)| DeviceLoad {
            name: self.inner.disk_name(DiskId(index as u32)).to_owned(),
            budget: queue.allowed(),
            outstanding: queue.outstanding(),
            waiting: queue.waiting_by_rank().filter(|(_, load)| load.ios > 0).collect(),
        };
        used.map(load).collect()
    }

    fn queue(&mut self, disk: DiskId) -> &mut DeviceQueue<(u32, IoOperation)> {
        let index = disk.0 as usize;
        if index >= self.disks.len() {
            self.disks.resize_with(index + 1, || None);
        }
        let limits = self.limits.budget;
        let named = self.starts.iter().find(|(named, _)| *named == disk).map(|(_, load)| *load);
        let start = named.or(self.start_others);
        let budget = || start.map_or(Budget::new(limits), |load| Budget::with_start(limits, load));
        self.disks[index].get_or_insert_with(|| DeviceQueue::new(budget()))
    }

    fn insert(&mut self, flight: Flight) -> u32 {
        let Some(slot) = self.flights_free.pop() else {
            self.flights.push(Some(flight));
            return (self.flights.len() - 1) as u32;
        };
        self.flights[slot as usize] = Some(flight);
        slot
    }

    fn start(&mut self, (slot, operation): (u32, IoOperation)) {
        let started = operation.disk().and_then(|disk| self.begun_now(disk, &operation));
        let flight = self.flights[slot as usize].as_mut().expect("a flight starts before it ends");
        flight.begun = started;
        self.inner.set_life(flight.life);
        self.inner.set_piece(self.limits.quantum_bytes as usize * BATCH_QUANTA);
        self.inner.submit(Token(TAG_FLIGHT << 56 | u64::from(slot)), operation);
        self.inner.set_piece(usize::MAX);
        self.inner.set_life(self.life);
    }

    /// When an operation has begun that the disk is given now; none where it waits for others.
    fn begun_now(&self, disk: DiskId, operation: &IoOperation) -> Option<Nanos> {
        // Threads take these, and never wait for others of the disk.
        let is_apart =
            matches!(operation, IoOperation::Discard { .. } | IoOperation::Extents { .. });
        (is_apart || !self.inner.would_wait(disk)).then(|| self.inner.now())
    }

    /// Notes which operations that waited in the host's queue have begun.
    fn note_begun(&mut self) {
        let mut begun = Vec::new();
        self.inner.take_begun(&mut begun);
        if begun.is_empty() {
            return;
        }
        let now = self.inner.now();
        for token in begun.into_iter().filter(|token| token.0 >> 56 == TAG_FLIGHT) {
            let flight = self.flights[token.0 as u32 as usize].as_mut();
            flight.expect("its end was not taken yet").begun = Some(now);
        }
    }

    fn start_next(&mut self, index: usize) {
        while let Some(started) = self.disks[index].as_mut().and_then(DeviceQueue::start_next) {
            self.start(started);
        }
    }

    fn note_end(&mut self, disk: DiskId, now: Nanos) {
        let index = disk.0 as usize;
        if index >= self.last_ends.len() {
            self.last_ends.resize(index + 1, Nanos::ZERO);
        }
        self.last_ends[index] = now;
    }

    /// Takes the ends of flights out of `done[from..]`.
    fn take_ended(&mut self, done: &mut Vec<IoDone>, from: usize) {
        let is_flight = |done: &IoDone| done.token.0 >> 56 == TAG_FLIGHT;
        if !done[from..].iter().any(is_flight) {
            return;
        }
        let now = self.inner.now();
        let ends: Vec<IoDone> = done.drain(from..).collect();
        for mut end in ends {
            if !is_flight(&end) {
                done.push(end);
                continue;
            }
            let slot = end.token.0 as u32;
            let flight = self.flights[slot as usize].take().expect("a flight ends once");
            self.flights_free.push(slot);
            end.token = flight.token;
            self.note_end(flight.disk, now);
            let queue = self.disks.get_mut(flight.disk.0 as usize).and_then(Option::as_mut);
            if let Some(queue) = queue.filter(|_| !flight.is_straight) {
                queue.on_end(flight.bytes);
                self.start_next(flight.disk.0 as usize);
            }
            // What ends behind a failed sync is in doubt, and must not be answered before it.
            if flight.is_straight || end.is_sync_failed {
                done.push(end);
            } else {
                self.ended.push_back((flight.work, end));
            }
        }
    }

    /// From now on ends of lower ranks wait for [`Scheduled::hand_out`], or come as they are.
    pub fn defer(&mut self, is_deferring: bool) {
        self.is_deferring = is_deferring;
    }

    /// Whether ends of lower ranks wait to be handed out.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Hands out a quantum of what lower ranks' ends bring, one end at least.
    pub fn hand_out(&mut self, done: &mut Vec<IoDone>) {
        let mut left = u64::from(self.limits.quantum_bytes);
        while let Some((work, end)) = self.ended.pop_front_if(|(work, _)| *work <= left) {
            left -= work;
            done.push(end);
        }
        if left == u64::from(self.limits.quantum_bytes) {
            done.extend(self.ended.pop_front().map(|(_, end)| end));
        }
    }
}

/// Bytes in the device, and bytes of work at the end.
fn cost_of(operation: &IoOperation) -> Option<(u64, u64)> {
    match operation {
        // What was read is summed and copied, what was written is settled block by block.
        IoOperation::Read { buffer, .. } | IoOperation::Write { buffer, .. } => {
            let bytes = buffer.len() as u64;
            Some((bytes, END_BYTES.max(bytes / MOVED_PER_BYTE)))
        }
        // These move no data to speak of, and take their turn.
        IoOperation::Zero { .. } | IoOperation::Discard { .. } => Some((END_BYTES, END_BYTES)),
        _ => None,
    }
}

impl<H: Io> Io for Scheduled<H> {
    fn now(&self) -> Nanos {
        self.inner.now()
    }

    fn buffer(&mut self, length: usize) -> Buffer {
        self.inner.buffer(length)
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.inner.recycle(buffer);
    }

    fn submit(&mut self, token: Token, operation: IoOperation) {
        let Some(disk) = operation.disk() else { return self.inner.submit(token, operation) };
        let cost = if self.rank <= self.best { None } else { cost_of(&operation) };
        let (is_straight, life) = (cost.is_none(), self.life);
        let (bytes, work) = cost.unwrap_or_default();
        let begun = if is_straight { self.begun_now(disk, &operation) } else { None };
        let is_quick = operation.is_quick();
        let slot =
            self.insert(Flight { token, disk, begun, is_quick, is_straight, bytes, work, life });
        if is_straight {
            return self.inner.submit(Token(TAG_FLIGHT << 56 | u64::from(slot)), operation);
        }
        let rank = self.rank;
        if let Some(started) = self.queue(disk).submit(rank, bytes, (slot, operation)) {
            self.start(started);
        }
    }

    fn set_rank(&mut self, rank: Rank) {
        self.rank = rank;
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        self.life = life;
        self.inner.set_life(life);
    }

    fn hint_state(&self, disk: DiskId) -> HintState {
        self.inner.hint_state(disk)
    }

    fn take_refusal(&mut self) -> Option<(DiskId, IoError)> {
        self.inner.take_refusal()
    }

    fn batch_bytes(&self, rank: Rank) -> Option<usize> {
        (rank > self.best).then_some(self.limits.quantum_bytes as usize * BATCH_QUANTA)
    }

    fn is_stepwise(&self) -> bool {
        self.is_stepwise
    }

    fn has_flights(&self) -> bool {
        self.flights.len() > self.flights_free.len()
    }

    fn owed(&self, disk: DiskId) -> Owed {
        let ended = self.last_ends.get(disk.0 as usize).copied().unwrap_or_default();
        let mut owed = Owed { ended, ..Owed::default() };
        for flight in self.flights.iter().flatten().filter(|flight| flight.disk == disk) {
            flight.begun.into_iter().for_each(|begun| owed.add(flight.is_quick, begun));
        }
        owed
    }

    fn leave_out(&mut self, span: Nanos) {
        let now = self.inner.now();
        let begun = self.flights.iter_mut().flatten().filter_map(|flight| flight.begun.as_mut());
        for at in begun.chain(&mut self.last_ends) {
            // What began or ended since is no later than now.
            *at = at.saturating_add(span).min(now);
        }
    }

    fn has_arrived(&mut self) -> bool {
        self.inner.has_arrived()
    }

    fn receive_now(&mut self, socket: SocketId, room: &mut [u8]) -> Option<usize> {
        self.inner.receive_now(socket, room)
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        self.inner.has_peer_left(socket)
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        self.inner.untaken(socket)
    }

    fn peer(&self, socket: SocketId) -> Option<Peer> {
        self.inner.peer(socket)
    }

    fn close_event(&mut self, event: EventId) {
        self.inner.close_event(event);
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let from = done.len();
        let deadline = if self.ended.is_empty() { deadline } else { Nanos::ZERO };
        self.inner.wait(deadline, done);
        self.note_begun();
        self.take_ended(done, from);
        if !self.is_deferring {
            done.extend(self.ended.drain(..).map(|(_, end)| end));
        }
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        self.inner.resize_disk(disk, length)
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        self.inner.disk_length(disk)
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        self.inner.disk_name(disk)
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        self.inner.map(disk)
    }

    fn detach_disk(&mut self, disk: DiskId) {
        let queue = self.disks.get_mut(disk.0 as usize).and_then(Option::take);
        for started in queue.into_iter().flat_map(|mut queue| queue.start_all()) {
            self.start(started);
        }
        self.inner.detach_disk(disk);
    }

    fn close_socket(&mut self, socket: SocketId) {
        self.inner.close_socket(socket);
    }
}

impl<H: Host> Host for Scheduled<H> {
    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn open_disk(&mut self, path: &Path, mode: OpenMode) -> Result<Opened, OpenError> {
        self.inner.open_disk(path, mode)
    }

    fn attach_event(&mut self, event: OwnedFd) -> Result<EventId, IoError> {
        self.inner.attach_event(event)
    }

    fn attach_socket(&mut self, socket: OwnedFd) -> Result<SocketId, IoError> {
        self.inner.attach_socket(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OpenMode, RingIo, SimIo, open_disk};
    use layby_cache::schedule::BudgetLimits;
    use layby_types::Rng;
    use rustix::io::Errno;
    use std::collections::BTreeSet;

    const DISK_BYTES: u64 = 1 << 20;

    fn operation(io: &mut dyn Io, rng: &mut Rng, disk: DiskId) -> IoOperation {
        let length = 4096 * (1 + rng.below(16));
        let offset = 4096 * rng.below((DISK_BYTES - length) / 4096);
        match rng.below(8) {
            0 => IoOperation::Sync { disk },
            1 => IoOperation::Zero { disk, offset, length, keep_allocated: true },
            2..5 => IoOperation::Read { disk, offset, buffer: io.buffer(length as usize) },
            _ => {
                let mut buffer = io.buffer(length as usize);
                buffer.fill(7);
                IoOperation::Write { disk, offset, buffer, durable: rng.chance(1, 4) }
            }
        }
    }

    /// Goal: whatever ranks ask for, an operation of the best one begins at its device behind no
    /// more lower bytes than the budget or one operation, nothing is held beside an idle device, a
    /// sync waits for nothing, and each token comes back once. Method: random operations of four
    /// ranks over two simulated disks, budgets that shrink and grow, ends handed out at any time.
    #[test]
    fn the_best_rank_meets_no_more_than_the_budget() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut sim = SimIo::new(seed);
            let disks = ["a", "b"].map(|name| sim.add_disk(name, DISK_BYTES));
            let budget = BudgetLimits {
                bytes_min: 4096,
                bytes_max: 4096 << rng.below(6),
                ios_min: 1,
                ios_max: 1 + rng.below(6) as u32,
            };
            let quantum_bytes = 4096 << rng.below(4);
            let limits = ScheduleLimits { quantum_bytes, budget, ..ScheduleLimits::DEFAULT };
            let mut io = Scheduled::new(sim, limits);
            io.defer(rng.chance(1, 2));
            io.set_best(Rank(1));
            let (mut awaited, mut done, mut next) = (BTreeSet::new(), Vec::new(), 0);
            for _ in 0..300 {
                if rng.chance(2, 3) {
                    let rank = [Rank(0), Rank(1), Rank(2), Rank::BACKGROUND][rng.below(4) as usize];
                    let disk = disks[rng.below(2) as usize];
                    io.set_rank(rank);
                    let operation = operation(&mut io, &mut rng, disk);
                    io.submit(Token(next), operation);
                    awaited.insert(next);
                    next += 1;
                } else {
                    io.wait(Nanos::ZERO, &mut done);
                    io.hand_out(&mut done);
                }
                if rng.chance(1, 8) {
                    let verdicts = [Verdict::Met, Verdict::Missed, Verdict::Idle];
                    io.on_window(verdicts[rng.below(3) as usize]);
                }
                for device in io.loads() {
                    let Load { ios, bytes } = device.outstanding;
                    assert!(bytes <= budget.bytes_max || ios == 1, "seed {seed}: {device:?}");
                    assert!(ios <= budget.ios_max, "seed {seed}: {device:?}");
                    assert!(ios > 0 || device.waiting.is_empty(), "seed {seed}: {device:?}");
                }
            }
            while done.len() < awaited.len() {
                io.wait(Nanos::NEVER, &mut done);
                io.hand_out(&mut done);
            }
            let tokens: BTreeSet<u64> = done.iter().map(|done| done.token.0).collect();
            assert_eq!((tokens, done.len()), (awaited, next as usize), "seed {seed}");
        }
    }

    /// Goal: the end of a durable write whose own sync failed waits for no other work: what ends
    /// behind it, of whatever rank, is in doubt and must not be answered before. Method: such a
    /// write of a lower rank, and one of the best rank behind it, while ends are deferred.
    #[test]
    fn a_failed_sync_is_not_deferred() {
        for seed in 0..16 {
            let mut disks = SimIo::new(seed);
            let disk = disks.add_disk("disk", DISK_BYTES);
            disks.fail_next_own_sync(disk, Errno::IO);
            let mut io = Scheduled::new(disks, ScheduleLimits::DEFAULT);
            io.defer(true);
            let mut done = Vec::new();
            for (token, rank) in [(0, Rank::BACKGROUND), (1, Rank::FIRST)] {
                io.set_rank(rank);
                let buffer = io.buffer(4096);
                let write = IoOperation::Write { disk, offset: 0, buffer, durable: true };
                io.submit(Token(token), write);
                (0..50).for_each(|_| io.wait(Nanos::NEVER, &mut done));
            }
            let ends: Vec<_> = done.iter().map(|end| (end.token, end.is_sync_failed)).collect();
            assert_eq!(ends, [(Token(0), true), (Token(1), false)], "SEED={seed}");
        }
    }

    /// Goal: what is held goes on when its disk is detached. Method: a budget of one operation.
    #[test]
    fn a_detached_disk_holds_nothing_back() {
        let mut sim = SimIo::new(1);
        let disk = sim.add_disk("a", DISK_BYTES);
        let budget = BudgetLimits { bytes_min: 4096, bytes_max: 4096, ios_min: 1, ios_max: 1 };
        let mut io = Scheduled::new(sim, ScheduleLimits { budget, ..ScheduleLimits::DEFAULT });
        io.set_rank(Rank::BACKGROUND);
        for token in 0..5 {
            let buffer = io.buffer(4096);
            io.submit(Token(token), IoOperation::Read { disk, offset: 0, buffer });
        }
        assert_eq!(io.loads()[0].waiting, [(Rank::BACKGROUND, Load { ios: 4, bytes: 4 * 4096 })]);
        io.detach_disk(disk);
        let mut done = Vec::new();
        while done.len() < 5 {
            io.wait(Nanos::NEVER, &mut done);
        }
    }

    /// Goal: what waits in the host's own queue has not begun, so that its disk does not owe it.
    /// Method: a ring that takes one operation of a disk at once, and three reads; where some are
    /// left after a wait, the oldest that is owed has begun in that wait.
    #[test]
    fn what_the_host_holds_back_is_not_owed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mode = OpenMode { create_length: Some(DISK_BYTES), ..OpenMode::default() };
        let opened = open_disk(&directory.path().join("disk"), mode).expect("there is room");
        let Ok(mut ring) = RingIo::new(0) else { return };
        ring.set_disk_flights_max(1);
        let disk = ring.attach_disk(opened);
        let mut io = Scheduled::new(ring, ScheduleLimits::DEFAULT);
        let mut done = Vec::new();
        for token in 0..3 {
            let buffer = io.buffer(4096);
            io.submit(Token(token), IoOperation::Read { disk, offset: 0, buffer });
        }
        let begun = |io: &Scheduled<RingIo>| {
            io.flights.iter().flatten().filter(|flight| flight.begun.is_some()).count()
        };
        assert_eq!(begun(&io), 1, "the others wait");
        while done.len() < 3 {
            let before = io.now();
            io.wait(Nanos::NEVER, &mut done);
            let oldest = io.owed(disk).quick;
            assert_eq!((begun(&io), oldest.is_some()), (1.min(3 - done.len()), done.len() < 3));
            assert!(oldest.is_none_or(|oldest| oldest >= before), "{oldest:?} before {before:?}");
        }
    }
}
