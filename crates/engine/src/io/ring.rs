//! Real disks and sockets over io_uring.
//!
//! How: an operation becomes a flight in a slot and an entry in the ring; one system call per
//! [`Io::wait`] submits what is queued and waits. A send is first tried at once with a plain call
//! that cannot block, since a reply fits into the socket nearly always; only what does not fit goes
//! through the ring, and in order. What the ring cannot do (finding extents, zeroing where the
//! kernel refuses) goes to a small thread pool.
//! Invariant: a flight's buffer stays in its slot until the kernel has ended it.
//! Cost: per request over a socket, two system calls alone and less than that in a batch.
//! Not for: several threads; one shard owns it, from its first `wait` on.

mod entries;
mod events;
mod kernel;
mod lives;
mod stream;
#[cfg(test)]
mod tests;
mod turns;

use super::blocking::{Blocking, may_be_of_sync, zero_flags, zero_unsupported};
use super::clock::Clock;
use super::flights::{Flight, Flights};
use super::linger::Linger;
use super::mapping::HostMapping;
use super::open::OpenDisk;
use super::suspects::Suspects;
use super::{
    Buffer, BufferPool, DiskId, EventId, HintState, Io, IoDone, IoError, IoOperation, Mapping,
    Peer, SocketId, Token, Waker, WriteLife,
};
use entries::FileMark;
use io_uring::squeue::Flags;
use kernel::{Entered, Kernel};
use layby_types::Nanos;
use lives::Lives;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use turns::Turns;

/// The slot that stands for the waker's eventfd.
const SLOT_WAKER: u64 = u64::MAX;
/// The slot of entries whose end nobody waits for.
const SLOT_NONE: u64 = u64::MAX - 1;
/// Attempts to get flights back from the kernel when a ring is dropped.
const DRAIN_ROUNDS_MAX: usize = 1024;
/// Attempts to hand over what is queued before a descriptor goes away.
const FLUSH_ROUNDS_MAX: usize = 1024;

struct Disk {
    files: Arc<OpenDisk>,
    buffered: FileMark,
    direct: Option<FileMark>,
    /// Operations of it in the ring.
    in_flight: usize,
    /// Those that wait for one of these to end, in order.
    waiting: VecDeque<Flight>,
}

struct Socket {
    file: Arc<OwnedFd>,
    mark: FileMark,
    /// Sends in order; only the first is in the ring.
    sends: VecDeque<u32>,
    /// Operations not ended; the id is free again once it is closing and has none.
    in_flight: u32,
    closing: bool,
}

/// One shard's ring with its disks and sockets.
pub struct RingIo {
    // Field order is drop order: the ring goes before the memory it may still write to.
    kernel: Kernel,
    pool: BufferPool,
    arena_registered: bool,
    disks: Vec<Option<Disk>>,
    sockets: Vec<Option<Socket>>,
    sockets_free: Vec<u32>,
    events: Vec<Option<events::Event>>,
    flights: Flights,
    suspects: Suspects,
    ready: Vec<IoDone>,
    /// Disk entries queued since the last `enter`, and all that it left; sockets alone may wait for
    /// the next one.
    disk_entries: usize,
    blocking: Blocking,
    /// Bytes that what is submitted moves at once.
    piece: usize,
    lives: Lives,
    turns: Turns,
    kept: Vec<FileMark>,
    /// Disks that were detached while the kernel refused queued entries that name their files.
    stranded: Vec<Disk>,
    waker: Waker,
    waker_counter: Buffer,
    waker_mark: FileMark,
    waker_posted: bool,
    clock: Clock,
    linger: Linger,
}

impl RingIo {
    /// Makes a ring, with an arena of `arena_bytes` for its buffers.
    ///
    /// # Errors
    /// The system's error where io_uring is absent or forbidden.
    pub fn new(arena_bytes: usize) -> Result<Self, IoError> {
        let mut kernel = Kernel::new()?;
        let mut pool = BufferPool::new(arena_bytes);
        let arena_registered = match pool.arena() {
            Some((address, length)) => kernel.register_arena(address, length),
            None => false,
        };
        let waker = Waker::with_event(EventfdFlags::empty())?;
        let waker_mark = kernel.register_file(waker.event().expect("made with an eventfd"));
        let waker_counter = pool.take(8);
        Ok(RingIo {
            kernel,
            pool,
            arena_registered,
            disks: Vec::new(),
            sockets: Vec::new(),
            sockets_free: Vec::new(),
            events: Vec::new(),
            flights: Flights::default(),
            suspects: Suspects::default(),
            ready: Vec::new(),
            disk_entries: 0,
            blocking: Blocking::new(waker.clone()),
            piece: usize::MAX,
            lives: Lives::default(),
            turns: Turns::default(),
            kept: Vec::new(),
            stranded: Vec::new(),
            waker,
            waker_counter,
            waker_mark,
            waker_posted: false,
            clock: Clock::start(),
            linger: Linger::new(std::thread::available_parallelism().map_or(1, usize::from)),
        })
    }

    /// Wakes this ring's waits.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What the kernel granted, for the log.
    #[must_use]
    pub fn description(&self) -> String {
        let buffers = if self.arena_registered { "registered" } else { "unregistered" };
        format!("io_uring ({}), {buffers} buffers", self.kernel.granted)
    }

    /// Keeps a file open until the kernel has ended the ring's last operation, which may be long
    /// after the process has gone. A kernel without registered files does not.
    pub fn keep(&mut self, file: BorrowedFd<'_>) {
        self.kept.push(self.kernel.register_file(file));
    }

    /// Takes a disk over.
    pub fn attach_disk(&mut self, disk: OpenDisk) -> DiskId {
        let buffered = self.kernel.register_file(disk.buffered.as_fd());
        let direct = disk.direct.as_ref().map(|file| self.kernel.register_file(file.as_fd()));
        let (files, in_flight, waiting) = (Arc::new(disk), 0, VecDeque::new());
        self.disks.push(Some(Disk { files, buffered, direct, in_flight, waiting }));
        DiskId((self.disks.len() - 1) as u32)
    }

    /// Takes a connected stream socket over.
    ///
    /// # Errors
    /// The system's error where the descriptor's mode cannot be changed.
    pub fn attach_socket(&mut self, file: OwnedFd) -> Result<SocketId, IoError> {
        // The ring waits by itself; with O_NONBLOCK some kernels would refuse to.
        rustix::io::ioctl_fionbio(&file, false)?;
        let mark = self.kernel.register_file(file.as_fd());
        let file = Arc::new(file);
        let socket =
            Some(Socket { file, mark, sends: VecDeque::new(), in_flight: 0, closing: false });
        let id = self.sockets_free.pop().unwrap_or(self.sockets.len() as u32);
        if id as usize == self.sockets.len() {
            self.sockets.push(socket);
        } else {
            self.sockets[id as usize] = socket;
        }
        Ok(SocketId(id))
    }

    fn disk(&self, disk: DiskId) -> &Disk {
        self.disks[disk.0 as usize].as_ref().expect("the disk is attached")
    }

    fn socket(&mut self, socket: SocketId) -> &mut Socket {
        self.sockets[socket.0 as usize].as_mut().expect("the socket is attached")
    }

    /// Sends at once what the socket takes; true when that was everything or failed for good.
    fn send_at_once(&mut self, flight: &mut Flight) -> Option<Result<usize, IoError>> {
        let IoOperation::Send { socket, buffer, start, end } = &flight.operation else {
            return None;
        };
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        if !entry.sends.is_empty() {
            return None;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&entry.file, &buffer[*start..*end], flags) {
            Ok(count) => {
                flight.moved = count;
                (count == end - start).then_some(Ok(count))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => None,
            Err(errno) => Some(Err(errno.into())),
        }
    }

    /// Queues a send behind the socket's others.
    fn queue_send(&mut self, socket: SocketId, slot: u32) {
        let entry = self.socket(socket);
        entry.in_flight += 1;
        entry.sends.push_back(slot);
        if entry.sends.len() == 1 {
            self.start(slot);
        }
    }

    /// Puts a flight's next entry into the ring.
    fn start(&mut self, slot: u32) {
        let registered = self.arena_registered.then_some(0);
        let stream = self.stream_for(slot);
        let flight = self.flights.get_mut(slot);
        let (moved, retreats, piece) = (flight.moved, flight.retreats, flight.piece);
        let disk = |id: &DiskId| self.disks[id.0 as usize].as_ref().expect("the disk is attached");
        let socket =
            |id: &SocketId| self.sockets[id.0 as usize].as_ref().expect("the socket is attached");
        let entry = match &mut flight.operation {
            IoOperation::Read { disk: id, offset, buffer } => {
                let registered = registered.filter(|_| self.pool.owns(buffer));
                let until = buffer.len().min(moved.saturating_add(piece));
                let (at, rest) = (*offset + moved as u64, &mut buffer[moved..until]);
                entries::read(disk(id).mark(at, rest.len(), retreats), at, rest, registered)
            }
            IoOperation::Write { disk: id, .. } if flight.is_syncing => {
                entries::sync(disk(id).buffered)
            }
            IoOperation::Write { disk: id, offset, buffer, durable } => {
                let registered = registered.filter(|_| self.pool.owns(buffer));
                let until = buffer.len().min(moved.saturating_add(piece));
                let (at, rest) = (*offset + moved as u64, &buffer[moved..until]);
                let mark = disk(id).mark(at, rest.len(), retreats);
                let durable = *durable && flight.refused.is_none();
                lives::named(entries::write(mark, at, rest, durable, registered), stream)
            }
            IoOperation::Sync { disk: id } => entries::sync(disk(id).buffered),
            IoOperation::Zero { disk: id, offset, length, keep_allocated } => {
                let flags = zero_flags(*keep_allocated)[usize::from(retreats)];
                entries::zero(disk(id).buffered, *offset, *length, flags)
            }
            IoOperation::Receive { socket: id, buffer, filled, end } => {
                entries::receive(socket(id).mark, &mut buffer[*filled..*end])
            }
            IoOperation::Send { socket: id, buffer, start, end } => {
                entries::send(socket(id).mark, &buffer[*start + moved..*end])
            }
            IoOperation::Await { event } => {
                entries::readable(events::mark_of(&self.events, *event))
            }
            IoOperation::Extents { .. } | IoOperation::Discard { .. } => {
                unreachable!("extents and discards go to the threads")
            }
        };
        let on_disk = flight.operation.disk();
        let may_block = on_disk.is_some_and(|id| disk(&id).files.is_fuse);
        let entry = if may_block { entry.flags(Flags::ASYNC) } else { entry };
        self.disk_entries += usize::from(on_disk.is_some());
        self.push(u64::from(slot), entry);
    }

    /// Handles one end that the kernel reported. Returns whether it was the waker's.
    fn on_end(&mut self, slot: u64, result: i32, done: &mut Vec<IoDone>) -> bool {
        if slot == SLOT_WAKER {
            self.waker_posted = false;
            self.waker.take();
            return true;
        }
        if slot != SLOT_NONE {
            self.on_flight(slot as u32, result, done);
        }
        false
    }

    fn on_flight(&mut self, slot: u32, result: i32, done: &mut Vec<IoDone>) {
        let step = match u32::try_from(result) {
            Ok(count) => self.on_moved(slot, count as usize),
            Err(_) => self.on_failed(slot, Errno::from_raw_os_error(-result)),
        };
        match step {
            Step::Again | Step::Threads if self.target_left(slot) => {
                self.end(slot, Err(Errno::CANCELED.into()), done);
            }
            Step::Again => self.start(slot),
            Step::End(result) => self.end(slot, result, done),
            Step::Threads => {
                let flight = self.flights.remove(slot);
                self.leave_disk(&flight.operation);
                self.start_threaded(flight);
            }
        }
    }

    /// Whether a flight's disk was detached or its socket closed, so that it cannot go on.
    fn target_left(&mut self, slot: u32) -> bool {
        match &self.flights.get_mut(slot).operation {
            IoOperation::Receive { socket, .. } | IoOperation::Send { socket, .. } => {
                let socket = *socket;
                self.socket(socket).closing
            }
            IoOperation::Await { event } => {
                let event = *event;
                self.event_is_closing(event)
            }
            operation => operation.disk().is_some_and(|id| self.disks[id.0 as usize].is_none()),
        }
    }

    /// The kernel moved `count` bytes: is that all?
    fn on_moved(&mut self, slot: u32, count: usize) -> Step {
        if let IoOperation::Await { event } = self.flights.get_mut(slot).operation {
            self.event_came(event);
            return Step::End(Ok(0));
        }
        let flight = self.flights.get_mut(slot);
        flight.moved += count;
        let moved = flight.moved;
        match &mut flight.operation {
            IoOperation::Write { .. } if flight.is_syncing => Step::End(Ok(moved)),
            IoOperation::Read { buffer, .. } => {
                if count == 0 {
                    buffer[moved..].fill(0);
                    return Step::End(Ok(moved));
                }
                step_towards(moved, buffer.len())
            }
            IoOperation::Write { .. } | IoOperation::Send { .. } if count == 0 => {
                Step::End(Err(Errno::IO.into()))
            }
            IoOperation::Write { disk, buffer, durable, .. } => {
                let whole = moved == buffer.len();
                if let (true, Some(error)) = (whole, flight.refused) {
                    flight.is_syncing = true;
                    return Step::End(Err(error));
                }
                let disk = self.disks[disk.0 as usize].as_ref();
                // Its asynchronous direct writes end without the sync that they ask for.
                flight.is_syncing =
                    whole && *durable && disk.is_some_and(|disk| disk.files.is_fuse);
                if flight.is_syncing { Step::Again } else { step_towards(moved, buffer.len()) }
            }
            IoOperation::Send { start, end, .. } => step_towards(moved, *end - *start),
            IoOperation::Receive { .. } => Step::End(Ok(count)),
            _ => Step::End(Ok(0)),
        }
    }

    /// The kernel refused: once more, another way, or for good?
    fn on_failed(&mut self, slot: u32, errno: Errno) -> Step {
        if matches!(errno, Errno::INTR | Errno::AGAIN) || self.is_stream_refused(slot, errno) {
            return Step::Again;
        }
        let flight = self.flights.get_mut(slot);
        match &flight.operation {
            IoOperation::Zero { .. } if zero_unsupported(errno) => {
                flight.retreats += 1;
                if flight.retreats == 1 { Step::Again } else { Step::Threads }
            }
            IoOperation::Read { .. } | IoOperation::Write { .. }
                if errno == Errno::INVAL && flight.retreats == 0 && !flight.is_syncing =>
            {
                flight.retreats = 1;
                Step::Again
            }
            IoOperation::Write { disk, durable: true, .. }
                if flight.refused.is_none() && !flight.is_syncing && may_be_of_sync(errno) =>
            {
                flight.refused = Some(errno.into());
                flight.suspect = Some(self.suspects.begin(*disk));
                Step::Again
            }
            _ => Step::End(Err(flight.refused.unwrap_or(errno.into()))),
        }
    }

    fn end(&mut self, slot: u32, result: Result<usize, IoError>, done: &mut Vec<IoDone>) {
        let flight = self.flights.remove(slot);
        match &flight.operation {
            IoOperation::Send { socket, .. } => {
                let entry = self.socket(*socket);
                entry.sends.pop_front();
                if let Some(next) = entry.sends.front().copied() {
                    self.start(next);
                }
                self.leave_socket(*socket);
            }
            IoOperation::Receive { socket, .. } => self.leave_socket(*socket),
            IoOperation::Await { event } => self.leave_event(*event),
            operation => self.leave_disk(operation),
        }
        self.suspects.end(flight, result, done);
    }

    /// One operation less on a socket; the last one out of a closing socket frees its id.
    fn leave_socket(&mut self, id: SocketId) {
        let socket = self.socket(id);
        socket.in_flight -= 1;
        self.free_socket(id);
    }

    fn free_socket(&mut self, id: SocketId) {
        let socket = self.socket(id);
        if socket.closing && socket.in_flight == 0 {
            self.sockets[id.0 as usize] = None;
            self.sockets_free.push(id.0);
        }
    }

    fn start_threaded(&mut self, flight: Flight) {
        let disk = flight.operation.disk().expect("only disk operations go to the threads");
        let files = self.disk(disk).files.clone();
        self.blocking.start(files, flight);
    }

    /// Moves everything that has ended to `done`; returns whether the waker was called.
    fn reap(&mut self, done: &mut Vec<IoDone>) -> bool {
        done.append(&mut self.ready);
        let mut woken = false;
        while let Some((slot, result)) = self.kernel.next_end() {
            woken |= self.on_end(slot, result, done);
        }
        self.blocking.reap(done);
        woken
    }

    /// Keeps a read of the waker's eventfd in the ring.
    fn post_waker(&mut self) {
        if !self.waker_posted {
            self.waker_posted = true;
            let entry = entries::wake(self.waker_mark, &mut self.waker_counter);
            self.push(SLOT_WAKER, entry);
        }
    }

    /// Hands queued entries to the kernel before a descriptor they name goes away; false where it
    /// takes a part of them only, though asked again and again.
    #[must_use]
    fn flush(&mut self) -> bool {
        for _ in 0..FLUSH_ROUNDS_MAX {
            if self.kernel.queued() == 0 {
                return true;
            }
            self.enter(Nanos::ZERO);
            self.kernel.make_room();
        }
        self.kernel.queued() == 0
    }
}

/// What to do with a flight after the kernel reported on it.
enum Step {
    Again,
    End(Result<usize, IoError>),
    Threads,
}

fn step_towards(moved: usize, length: usize) -> Step {
    if moved == length { Step::End(Ok(length)) } else { Step::Again }
}

impl Disk {
    /// The file for an operation on these bytes; after a retreat, the one that takes anything.
    fn mark(&self, offset: u64, length: usize, retreats: u8) -> FileMark {
        match self.direct {
            Some(direct) if retreats == 0 && self.files.takes_direct(offset, length) => direct,
            _ => self.buffered,
        }
    }
}

impl Io for RingIo {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn buffer(&mut self, length: usize) -> Buffer {
        self.pool.take(length)
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.pool.recycle(buffer);
    }

    fn submit(&mut self, token: Token, operation: IoOperation) {
        let length = operation.disk().map_or(0, |disk| self.disk_length(disk));
        let checked = operation.check(length);
        let mut flight = Flight::new(token, operation);
        // A durable write in pieces would be made durable once for each.
        let is_cut = !matches!(flight.operation, IoOperation::Write { durable: true, .. });
        flight.piece = if is_cut { self.piece } else { usize::MAX };
        flight.life = self.lives.now;
        if let Err(error) = checked {
            return self.ready.push(flight.end(Err(error)));
        }
        match &flight.operation {
            // The ring could punch holes but only its newest versions discard on devices, and
            // either way a thread of the kernel's waits for the device.
            IoOperation::Extents { .. } | IoOperation::Discard { .. } => {
                self.start_threaded(flight);
            }
            IoOperation::Zero { length: 0, .. } => self.ready.push(flight.end(Ok(0))),
            IoOperation::Send { socket, .. } => {
                let socket = *socket;
                if let Some(result) = self.send_at_once(&mut flight) {
                    return self.ready.push(flight.end(result));
                }
                let slot = self.flights.insert(flight);
                self.queue_send(socket, slot);
            }
            IoOperation::Receive { socket, .. } => {
                let socket = *socket;
                self.socket(socket).in_flight += 1;
                let slot = self.flights.insert(flight);
                self.start(slot);
            }
            IoOperation::Await { event } => {
                let event = *event;
                let slot = self.flights.insert(flight);
                self.event_begins(event, slot);
                self.start(slot);
            }
            IoOperation::Read { disk, .. }
            | IoOperation::Write { disk, .. }
            | IoOperation::Sync { disk }
            | IoOperation::Zero { disk, .. } => {
                let disk = *disk;
                self.begin_in_turn(disk, flight);
            }
        }
    }

    fn would_wait(&self, disk: DiskId) -> bool {
        self.disk(disk).in_flight >= self.turns.most
    }

    fn take_begun(&mut self, begun: &mut Vec<Token>) {
        begun.append(&mut self.turns.begun);
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        self.lives.now = life;
    }

    fn hint_state(&self, disk: DiskId) -> HintState {
        self.disk(disk).files.hints.state(true)
    }

    fn take_refusal(&mut self) -> Option<(DiskId, IoError)> {
        self.lives.refusal.take()
    }

    fn has_arrived(&mut self) -> bool {
        self.kernel.has_ends()
    }

    fn set_piece(&mut self, bytes: usize) {
        self.piece = bytes;
    }

    fn receive_now(&mut self, socket: SocketId, room: &mut [u8]) -> Option<usize> {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        let received = rustix::net::recv(&entry.file, room, RecvFlags::DONTWAIT);
        // What ends the stream, or breaks it, is the next submitted receive's to report.
        received.ok().map(|(_, count)| count).filter(|count| *count > 0)
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        super::peer::has_hung_up(&entry.file)
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        let flights = entry.sends.iter().map(|slot| self.flights.get(*slot).unsent());
        flights.sum::<u64>() + super::peer::unacknowledged(&entry.file)
    }

    fn peer(&self, socket: SocketId) -> Option<Peer> {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        Some(Peer::new(Arc::clone(&entry.file)))
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let before = done.len();
        self.turns.begun.clear();
        let woken = self.reap(done);
        self.post_waker();
        if woken || done.len() > before {
            // One entry takes up what was queued and deferred. The kernel may raise its flag again
            // at once and for ever; who has something to do must not wait for it to fall.
            if self.disk_entries > 0 || self.kernel.deferred() {
                self.enter(Nanos::ZERO);
                self.reap(done);
            }
            return;
        }
        let started = self.clock.now();
        if !self.look(started, deadline, done) {
            self.wait_in_kernel(deadline, done);
        }
        self.linger.on_waited(self.clock.now().since(started));
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        Ok(self.disk(disk).files.resize(length)?)
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        self.disk(disk).files.length()
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        &self.disk(disk).files.name
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        Ok(Box::new(HostMapping::new(&self.disk(disk).files)?))
    }

    fn detach_disk(&mut self, disk: DiskId) {
        self.begin_all(disk);
        let is_flushed = self.flush();
        let disk = self.disks[disk.0 as usize].take().expect("a disk is detached once");
        if !is_flushed {
            return self.stranded.push(disk);
        }
        self.forget_disk(&disk);
    }

    fn close_socket(&mut self, socket: SocketId) {
        let is_flushed = self.flush();
        let entry = self.socket(socket);
        assert!(!entry.closing, "a socket is closed once");
        entry.closing = true;
        // The peer may be gone already, which is as good.
        let _ = rustix::net::shutdown(&entry.file, Shutdown::Both);
        let first = entry.sends.len().min(1);
        let (mark, waiting) = (entry.mark, entry.sends.split_off(first));
        entry.in_flight -= waiting.len() as u32;
        // Else the number stays taken, since entries still to be handed over name it.
        if is_flushed {
            self.kernel.forget_file(mark);
        }
        for slot in waiting {
            let flight = self.flights.remove(slot);
            self.ready.push(flight.end(Err(Errno::CANCELED.into())));
        }
        self.free_socket(socket);
    }

    fn close_event(&mut self, event: EventId) {
        self.forget_event(event);
    }
}

impl RingIo {
    /// Looks for ends for as long as that promises more than sleeping; true when there are any, or
    /// the deadline has come.
    fn look(&mut self, started: Nanos, deadline: Nanos, done: &mut Vec<IoDone>) -> bool {
        let until = deadline.min(started + self.linger.span());
        if until <= started {
            return false;
        }
        let before = done.len();
        self.enter(Nanos::ZERO);
        loop {
            if self.kernel.deferred() {
                self.enter(Nanos::ZERO);
            }
            if self.reap(done) || done.len() > before {
                return true;
            }
            if self.clock.now() >= until {
                return until == deadline;
            }
            std::hint::spin_loop();
        }
    }

    /// Gives the processor up until an end, the waker or the deadline.
    fn wait_in_kernel(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let before = done.len();
        loop {
            let span = match deadline {
                Nanos::NEVER => Nanos::NEVER,
                deadline => deadline.since(self.clock.now()),
            };
            let expired = self.enter(span) == Entered::Expired || span == Nanos::ZERO;
            if self.reap(done) || expired || done.len() > before {
                return;
            }
        }
    }
}

impl RingIo {
    fn forget_disk(&mut self, disk: &Disk) {
        self.kernel.forget_file(disk.buffered);
        if let Some(direct) = disk.direct {
            self.kernel.forget_file(direct);
        }
    }

    /// Cancels what is in flight and waits until the kernel has ended it; false where it does not.
    fn drain(&mut self) -> bool {
        if self.flights.count() == 0 && !self.waker_posted {
            return true;
        }
        if self.kernel.try_submit(0) {
            self.push(SLOT_NONE, entries::cancel_all());
        }
        for _ in 0..DRAIN_ROUNDS_MAX {
            if self.flights.count() == 0 && !self.waker_posted {
                return true;
            }
            if !self.kernel.try_submit(1) {
                return false;
            }
            while let Some((slot, ..)) = self.kernel.next_end() {
                match slot {
                    SLOT_WAKER => self.waker_posted = false,
                    SLOT_NONE => {}
                    slot => drop(self.flights.remove(slot as u32)),
                }
            }
        }
        false
    }
}

impl Drop for RingIo {
    fn drop(&mut self) {
        if self.drain() {
            // The ring itself goes some time later, and would keep their locks until then.
            let disks = std::mem::take(&mut self.disks).into_iter().flatten();
            for disk in disks.chain(std::mem::take(&mut self.stranded)) {
                self.forget_disk(&disk);
            }
            // The node's directory last: what has it finds the disks free.
            let kept = std::mem::take(&mut self.kept);
            kept.into_iter().for_each(|mark| self.kernel.forget_file(mark));
            return;
        }
        // The kernel may still write there: better to lose the memory than to reuse it.
        std::mem::forget(std::mem::take(&mut self.flights));
        std::mem::forget(std::mem::replace(&mut self.waker_counter, Buffer::zeroed(0)));
        std::mem::forget(std::mem::replace(&mut self.pool, BufferPool::new(0)));
    }
}
