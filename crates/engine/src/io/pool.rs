//! Real disks and sockets without io_uring: epoll for sockets, a few threads for disks.
//!
//! How: a socket operation is tried at once with a call that cannot block; one that would block
//! waits for the socket's next edge. Disk operations go to the threads, which wake the wait
//! through the same eventfd as a [`Waker`].
//! Invariant: per socket at most one receive is in flight, and sends go out in order.
//! Cost: one system call per socket operation, one for the wait, and two thread switches per disk
//! operation; several times `ring`'s for disks.
//! Not for: hosts that grant io_uring.

mod events;

use super::blocking::{Blocking, DISK_THREADS_MAX};
use super::clock::Clock;
use super::flights::Flight;
use super::mapping::HostMapping;
use super::open::OpenDisk;
use super::{
    Buffer, BufferPool, DiskId, EventId, HintState, Io, IoDone, IoError, IoOperation, Mapping,
    Peer, SocketId, Token, Waker, WriteLife,
};
use layby_types::Nanos;
use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The mark of the waker's eventfd.
const MARK_WAKER: u64 = u64::MAX;
/// Events taken per call.
const EVENTS_MAX: usize = 64;

struct Socket {
    file: Arc<OwnedFd>,
    receive: Option<Flight>,
    sends: VecDeque<Flight>,
}

/// One shard's sockets and disks.
pub struct PoolIo {
    epoll: OwnedFd,
    pool: BufferPool,
    disks: Vec<Option<Arc<OpenDisk>>>,
    sockets: Vec<Option<Socket>>,
    sockets_free: Vec<u32>,
    events: Vec<Option<events::Event>>,
    ready: Vec<IoDone>,
    blocking: Blocking,
    /// Of what is written now.
    life: Option<WriteLife>,
    waker: Waker,
    clock: Clock,
}

impl PoolIo {
    /// Makes the epoll set, with an arena of `arena_bytes` for buffers.
    ///
    /// # Errors
    /// The system's error where descriptors or threads have run out.
    pub fn new(arena_bytes: usize) -> Result<Self, IoError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::with_event(EventfdFlags::NONBLOCK)?;
        let event = waker.event().expect("made with an eventfd");
        epoll::add(&epoll, event, epoll::EventData::new_u64(MARK_WAKER), epoll::EventFlags::IN)?;
        Ok(PoolIo {
            epoll,
            pool: BufferPool::new(arena_bytes),
            disks: Vec::new(),
            sockets: Vec::new(),
            sockets_free: Vec::new(),
            events: Vec::new(),
            ready: Vec::new(),
            blocking: Blocking::begin(waker.clone())?,
            life: None,
            waker,
            clock: Clock::start(),
        })
    }

    /// Wakes this object's waits.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What it is, for the log.
    #[must_use]
    pub fn description(&self) -> String {
        format!("epoll and up to {DISK_THREADS_MAX} threads per disk")
    }

    /// Takes a disk over.
    pub fn attach_disk(&mut self, disk: OpenDisk) -> DiskId {
        self.disks.push(Some(Arc::new(disk)));
        DiskId((self.disks.len() - 1) as u32)
    }

    /// Takes a connected stream socket over.
    ///
    /// # Errors
    /// The system's error where the epoll set is full.
    pub fn attach_socket(&mut self, file: OwnedFd) -> Result<SocketId, IoError> {
        let id = self.sockets_free.last().copied().unwrap_or(self.sockets.len() as u32);
        let events = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &file, epoll::EventData::new_u64(u64::from(id)), events)?;
        let file = Arc::new(file);
        let socket = Some(Socket { file, receive: None, sends: VecDeque::new() });
        if self.sockets_free.pop().is_some() {
            self.sockets[id as usize] = socket;
        } else {
            self.sockets.push(socket);
        }
        Ok(SocketId(id))
    }

    fn disk(&self, disk: DiskId) -> &Arc<OpenDisk> {
        self.disks[disk.0 as usize].as_ref().expect("the disk is attached")
    }

    fn socket(&mut self, socket: SocketId) -> &mut Socket {
        self.sockets[socket.0 as usize].as_mut().expect("the socket is attached")
    }

    /// Tries what waits on a socket.
    fn advance(&mut self, id: usize) {
        let Some(socket) = &mut self.sockets[id] else { return };
        if let Some(mut flight) = socket.receive.take() {
            match receive(&socket.file, &mut flight) {
                Some(result) => self.ready.push(flight.end(result)),
                None => socket.receive = Some(flight),
            }
        }
        while let Some(mut flight) = socket.sends.pop_front() {
            match send(&socket.file, &mut flight) {
                Some(result) => self.ready.push(flight.end(result)),
                None => {
                    socket.sends.push_front(flight);
                    return;
                }
            }
        }
    }

    /// Waits on the epoll set and handles what it reports; returns whether the waker was called.
    fn poll(&mut self, span: Nanos) -> bool {
        let timeout = (span != Nanos::NEVER).then(|| Timespec {
            tv_sec: span.as_secs() as i64,
            tv_nsec: (span.0 % 1_000_000_000) as i64,
        });
        let mut space = [std::mem::MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return false,
            Err(errno) => panic!("the kernel refuses the epoll set: {errno}"),
        };
        let mut woken = false;
        for event in events {
            match event.data.u64() {
                MARK_WAKER => woken = self.on_wake(),
                mark if mark & events::MARK_EVENT != 0 => self.on_event(mark),
                id => self.advance(id as usize),
            }
        }
        woken
    }

    fn on_wake(&mut self) -> bool {
        let event = self.waker.event().expect("made with an eventfd");
        // An empty counter means an earlier read took this call too.
        let _ = rustix::io::read(event, &mut [0; 8]);
        self.waker.take()
    }

    fn reap(&mut self, done: &mut Vec<IoDone>) {
        done.append(&mut self.ready);
        self.blocking.reap(done);
    }
}

/// Tries to receive; none means that there is nothing yet.
fn receive(file: &OwnedFd, flight: &mut Flight) -> Option<Result<usize, IoError>> {
    let IoOperation::Receive { buffer, filled, end, .. } = &mut flight.operation else {
        unreachable!("only receives wait to receive")
    };
    let rest = &mut buffer[*filled..*end];
    let call = || rustix::net::recv(file, &mut *rest, RecvFlags::DONTWAIT).map(|(_, count)| count);
    ended(rustix::io::retry_on_intr(call))
}

/// Tries to send all that is left; none means that the socket is full.
fn send(file: &OwnedFd, flight: &mut Flight) -> Option<Result<usize, IoError>> {
    let IoOperation::Send { buffer, start, end, .. } = &flight.operation else {
        unreachable!("only sends wait to send")
    };
    while *start + flight.moved < *end {
        let rest = &buffer[*start + flight.moved..*end];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let result = rustix::io::retry_on_intr(|| rustix::net::send(file, rest, flags));
        match ended(result)? {
            Ok(count) => flight.moved += count,
            Err(error) => return Some(Err(error)),
        }
    }
    Some(Ok(*end - *start))
}

fn ended(result: Result<usize, Errno>) -> Option<Result<usize, IoError>> {
    match result {
        Err(Errno::AGAIN) => None,
        result => Some(result.map_err(IoError::from)),
    }
}

impl Io for PoolIo {
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
        flight.life = self.life;
        if let Err(error) = checked {
            return self.ready.push(flight.end(Err(error)));
        }
        match &flight.operation {
            IoOperation::Receive { socket, .. } => {
                let id = *socket;
                let old = self.socket(id).receive.replace(flight);
                assert!(old.is_none(), "two receives on one socket");
                self.advance(id.0 as usize);
            }
            IoOperation::Send { socket, .. } => {
                let id = *socket;
                self.socket(id).sends.push_back(flight);
                self.advance(id.0 as usize);
            }
            IoOperation::Await { event } => {
                let event = *event;
                self.await_event(event, flight.token);
            }
            operation => {
                let disk = operation.disk().expect("sockets were handled above");
                let files = self.disk(disk).clone();
                self.blocking.start(files, flight);
            }
        }
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        self.life = life;
    }

    fn hint_state(&self, disk: DiskId) -> HintState {
        self.disk(disk).hints.state(false)
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        super::peer::has_hung_up(&entry.file)
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        let flights = entry.sends.iter().map(Flight::unsent);
        flights.sum::<u64>() + super::peer::unacknowledged(&entry.file)
    }

    fn peer(&self, socket: SocketId) -> Option<Peer> {
        let entry = self.sockets[socket.0 as usize].as_ref().expect("the socket is attached");
        Some(Peer::new(Arc::clone(&entry.file)))
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let before = done.len();
        self.reap(done);
        loop {
            let idle = done.len() == before;
            let span = match deadline {
                _ if !idle => Nanos::ZERO,
                Nanos::NEVER => Nanos::NEVER,
                deadline => deadline.since(self.clock.now()),
            };
            let woken = self.poll(span);
            self.reap(done);
            if woken || done.len() > before || span == Nanos::ZERO {
                return;
            }
        }
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        Ok(self.disk(disk).resize(length)?)
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        self.disk(disk).length()
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        &self.disk(disk).name
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        Ok(Box::new(HostMapping::new(self.disk(disk))?))
    }

    fn detach_disk(&mut self, disk: DiskId) {
        self.disks[disk.0 as usize].take().expect("a disk is detached once");
    }

    fn close_socket(&mut self, socket: SocketId) {
        let entry = self.sockets[socket.0 as usize].take().expect("a socket is closed once");
        // The peer may be gone already, which is as good; a closed descriptor leaves the set.
        let _ = rustix::net::shutdown(&entry.file, Shutdown::Both);
        let _ = epoll::delete(&self.epoll, &entry.file);
        if let Some(flight) = entry.receive {
            self.ready.push(flight.end(Ok(0)));
        }
        for flight in entry.sends {
            self.ready.push(flight.end(Err(Errno::CANCELED.into())));
        }
        self.sockets_free.push(socket.0);
    }

    fn close_event(&mut self, event: EventId) {
        self.forget_event(event);
    }
}
