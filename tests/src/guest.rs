//! A virtual machine's disk driver and its monitor, in one: vhost-user-blk from the other side.
//!
//! How: guest memory is a memfd that both sides map or read; the messages are those of the
//! `vhost` crate's frontend, the rings are written by hand, so that a test can write them wrong.
//! Invariant: what the node answers is found in the used ring and nowhere else.
//! Cost: a file read per look. Not for: speed.

use rustix::fs::{MemfdFlags, OFlags, SealFlags, memfd_create};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};

/// Entries of each queue.
pub const ENTRIES: u16 = 64;
/// Requests that one queue can have in flight: each has three descriptors.
pub const REQUESTS_MAX: u16 = ENTRIES / 3;
/// The most data of a request.
pub const DATA_BYTES: u32 = 16 << 10;
/// The monitor's address of guest address zero; nothing is ever read there.
const MONITOR: u64 = 0x7000_0000_0000;
const QUEUE_BYTES: u64 = 2 << 20;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const REQUESTS: u64 = 0x10000;
const REQUEST_BYTES: u64 = 0x8000;
/// Messages' numbers, and the version in each header.
const GET_FEATURES: u32 = 1;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_ENABLE: u32 = 18;
const MESSAGE_VERSION: u32 = 1;
/// Longest that the node may be silent to a message.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(60);

/// Kinds of requests.
#[expect(missing_docs, reason = "the names are those of the standard")]
pub mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// A queue's place in memory, and how far both sides are.
pub struct GuestQueue {
    base: u64,
    kick: EventFd,
    call: EventFd,
    available: u16,
    used: u16,
}

/// A virtual machine with one disk.
pub struct Guest {
    memory: File,
    queues: Vec<GuestQueue>,
    frontend: Option<Frontend>,
    /// The frontend's socket.
    socket: Option<UnixStream>,
    inflight: Option<(VhostUserInflight, File)>,
    /// It keeps an in-flight region.
    is_tracked: bool,
    /// It goes on with what the region marks when a queue was stopped.
    resumes: bool,
    /// Features that the node offered at the last connection.
    pub offered: u64,
}

impl Guest {
    /// A machine with so many queues, not connected yet.
    ///
    /// # Panics
    /// When the system has no memory for it.
    #[must_use]
    pub fn new(queues: usize) -> Guest {
        let memory = memory_file(QUEUE_BYTES * queues as u64);
        let queue = |index: usize| {
            let base = QUEUE_BYTES * index as u64;
            let [kick, call] = [(); 2].map(|()| EventFd::new(EFD_CLOEXEC).expect("a descriptor"));
            GuestQueue { base, kick, call, available: 0, used: 0 }
        };
        let queues = (0..queues).map(queue).collect();
        let (frontend, socket, inflight) = (None, None, None);
        let (is_tracked, resumes) = (true, true);
        Guest { memory, queues, frontend, socket, inflight, is_tracked, resumes, offered: 0 }
    }

    /// The same without an in-flight region.
    #[must_use]
    pub fn untracked(queues: usize) -> Guest {
        Guest { is_tracked: false, ..Guest::new(queues) }
    }

    /// The same with a region for the node's restarts alone: a stopped queue has nothing in flight.
    #[must_use]
    pub fn draining(queues: usize) -> Guest {
        Guest { resumes: false, ..Guest::new(queues) }
    }

    /// Connects as a monitor does, also again after the node was gone.
    ///
    /// # Panics
    /// When the node refuses a step, or does not answer it within a minute.
    pub fn connect(&mut self, socket: &Path) {
        let stream = UnixStream::connect(socket).expect("the node listens");
        exchange(&stream, &[GET_FEATURES, MESSAGE_VERSION, 0]);
        self.socket = Some(stream.try_clone().expect("a descriptor"));
        let mut frontend = Frontend::from_stream(stream, 256);
        frontend.set_owner().expect("an owner");
        self.offered = frontend.get_features().expect("features");
        frontend.set_features(self.offered).expect("features accepted");
        let offered = frontend.get_protocol_features().expect("protocol features");
        let mut wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE;
        wanted.set(VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT, self.resumes);
        assert!(offered.contains(wanted), "{offered:?}");
        frontend.set_protocol_features(wanted).expect("protocol features accepted");
        assert!(frontend.get_queue_num().expect("a number") >= self.queues.len() as u64);
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        if self.is_tracked && self.inflight.is_none() {
            let want = VhostUserInflight::new(0, 0, self.queues.len() as u16, ENTRIES);
            self.inflight = Some(frontend.get_inflight_fd(&want).expect("an in-flight region"));
        }
        if let Some((region, file)) = &self.inflight {
            frontend.set_inflight_fd(region, file.as_raw_fd()).expect("the region is taken back");
        }
        self.start_queues(&mut frontend);
        self.frontend = Some(frontend);
    }

    fn start_queues(&self, frontend: &mut Frontend) {
        let memory = memory_region(0, QUEUE_BYTES * self.queues.len() as u64, &self.memory);
        frontend.set_mem_table(&[memory]).expect("memory is shared");
        for (index, queue) in self.queues.iter().enumerate() {
            queue.start(index, frontend).expect("a queue starts");
        }
    }

    /// Starts its queues again after a stop or a reset, without a new connection.
    ///
    /// # Panics
    /// When the node refuses a step.
    pub fn restart(&mut self) {
        let mut frontend = self.frontend.take().expect("connected");
        self.start_queues(&mut frontend);
        self.frontend = Some(frontend);
    }

    /// Resets its device.
    ///
    /// # Panics
    /// When the node does not follow.
    pub fn reset(&mut self) {
        let frontend = self.frontend.as_mut().expect("connected");
        frontend.reset_device().expect("the device is reset");
    }

    /// Plugs more memory in, at an address of the guest.
    ///
    /// # Panics
    /// When the node refuses it.
    pub fn add_memory(&mut self, at: u64, memory: &File) {
        let bytes = memory.metadata().expect("our own file").len();
        let frontend = self.frontend.as_mut().expect("connected");
        assert!(frontend.get_max_mem_slots().expect("a number") > 1);
        frontend.add_mem_region(&memory_region(at, bytes, memory)).expect("memory is added");
    }

    /// Plugs memory in of which a file may have less.
    ///
    /// # Errors
    /// What the node's refusal looks like from here.
    ///
    /// # Panics
    /// When it is not connected.
    pub fn try_add_memory(&mut self, at: u64, bytes: u64, memory: &File) -> vhost::Result<()> {
        let frontend = self.frontend.as_mut().expect("connected");
        frontend.add_mem_region(&memory_region(at, bytes, memory)).map(drop)
    }

    /// Brings a file as in-flight region.
    ///
    /// # Errors
    /// What the node's refusal looks like from here.
    ///
    /// # Panics
    /// When it is not connected.
    pub fn try_inflight(&mut self, file: &File) -> vhost::Result<()> {
        let (region, _) = self.inflight.as_ref().expect("there is one");
        let frontend = self.frontend.as_mut().expect("connected");
        frontend.set_inflight_fd(region, file.as_raw_fd())
    }

    /// Cuts the memory off behind `bytes`.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn cut_memory(&self, bytes: u64) {
        self.memory.set_len(bytes).expect("our own memory");
    }

    /// Takes such memory out again.
    ///
    /// # Errors
    /// What the node's refusal looks like from here.
    ///
    /// # Panics
    /// When it is not connected.
    pub fn remove_memory(&mut self, at: u64, memory: &File) -> vhost::Result<()> {
        let bytes = memory.metadata().expect("our own file").len();
        let frontend = self.frontend.as_mut().expect("connected");
        frontend.remove_mem_region(&memory_region(at, bytes, memory))
    }

    /// Whether a write to a queue's call descriptor may wait, which the node shares.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn set_calls_blocking(&self, queue: usize, is_blocking: bool) {
        let event = duplicate(&self.queues[queue].call);
        let mode = if is_blocking { OFlags::empty() } else { OFlags::NONBLOCK };
        rustix::fs::fcntl_setfl(event, mode).expect("our own descriptor");
    }

    /// Fills the counter of a queue's call descriptor, so that another write would wait.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn fill_calls(&self, queue: usize) {
        let call = &self.queues[queue].call;
        while is_readable(call, 0) {
            call.read().expect("there is something to read");
        }
        call.write(u64::MAX - 1).expect("an empty counter has room");
    }

    /// Leaves without a word.
    pub fn disconnect(&mut self) {
        (self.frontend, self.socket) = (None, None);
    }

    /// Stops a queue in order; answers with where it would go on.
    ///
    /// # Panics
    /// When the node does not follow within a minute.
    pub fn stop_queue(&mut self, queue: u32) -> u32 {
        let socket = self.socket.as_ref().expect("connected");
        let [stopped, base] = exchange(socket, &[GET_VRING_BASE, MESSAGE_VERSION, 8, queue, 0]);
        assert_eq!(stopped, queue);
        base
    }

    /// Disables a queue, as monitors may before they stop it, and does not wait for the answer.
    ///
    /// # Panics
    /// When the message cannot be sent.
    pub fn ask_disable(&mut self, queue: u32) {
        let message = [SET_VRING_ENABLE, MESSAGE_VERSION, 8, queue, 0].map(u32::to_le_bytes);
        let socket = self.socket.as_mut().expect("connected");
        socket.write_all(message.as_flattened()).expect("the socket takes it");
    }

    /// Asks for the stop of a queue and dies before the answer.
    ///
    /// # Panics
    /// When the message cannot be sent.
    pub fn die_in_stop(&mut self, queue: u32) {
        self.ask_stop(queue);
        self.disconnect();
    }

    /// Asks for the stop of a queue and does not wait for the answer.
    ///
    /// # Panics
    /// When the message cannot be sent.
    pub fn ask_stop(&mut self, queue: u32) {
        let message = [GET_VRING_BASE, MESSAGE_VERSION, 8, queue, 0].map(u32::to_le_bytes);
        let socket = self.socket.as_mut().expect("connected");
        socket.write_all(message.as_flattened()).expect("the socket takes it");
    }

    /// Waits for the answer to a stop: where the queue would go on.
    ///
    /// # Panics
    /// When there is none within a minute.
    pub fn stopped(&mut self) -> u32 {
        let mut answer = [0; 20];
        let socket = self.socket.as_mut().expect("connected");
        socket.read_exact(&mut answer).expect("the node answers within a minute");
        u32::from_le_bytes(answer[16..].try_into().expect("four bytes"))
    }

    /// Fills all of its memory, as a machine that has ended and whose memory another one has.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn fill_memory(&self, byte: u8) {
        self.put(0, &vec![byte; self.memory().len()]);
    }

    /// All of its memory.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.metadata().expect("our own file").len() as usize];
        self.memory.read_exact_at(&mut bytes, 0).expect("our own memory");
        bytes
    }

    /// The configuration space.
    ///
    /// # Panics
    /// When the node does not tell.
    pub fn config(&mut self) -> Vec<u8> {
        let frontend = self.frontend.as_mut().expect("connected");
        let empty = [0; 60];
        let read = frontend.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &empty);
        read.expect("a configuration").1
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("our own memory");
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, at).expect("our own memory");
        bytes
    }

    fn place(&self, queue: usize, slot: u16) -> u64 {
        self.queues[queue].base + REQUESTS + REQUEST_BYTES * u64::from(slot)
    }

    /// Writes one descriptor.
    pub fn descriptor(
        &self,
        queue: usize,
        index: u16,
        at: u64,
        length: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(self.queues[queue].base + 16 * u64::from(index), &bytes);
    }

    /// Makes the chain at `head` available, without a kick.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let GuestQueue { base, available, .. } = self.queues[queue];
        let entry = base + AVAILABLE + 4 + 2 * u64::from(available % ENTRIES);
        self.put(entry, &head.to_le_bytes());
        let available = available.wrapping_add(1);
        self.put(base + AVAILABLE + 2, &available.to_le_bytes());
        self.queues[queue].available = available;
    }

    /// Makes a request available in `slot`; `data` goes to the disk, or `length` bytes come from
    /// it.
    ///
    /// # Panics
    /// When the data does not fit into a slot.
    pub fn request(&mut self, queue: usize, slot: u16, kind: u32, sector: u64, data: Data<'_>) {
        assert!(slot < REQUESTS_MAX);
        let place = self.place(queue, slot);
        let mut head = kind.to_le_bytes().to_vec();
        head.extend([0; 4]);
        head.extend(sector.to_le_bytes());
        self.put(place, &head);
        self.put(place + 16, &[0xff]);
        let (length, flags) = match data {
            Data::Out(bytes) => {
                self.put(place + 0x1000, bytes);
                (bytes.len() as u32, 1)
            }
            Data::In(length) => (length, 3),
        };
        assert!(length <= DATA_BYTES);
        let first = slot * 3;
        self.descriptor(queue, first, place, 16, 1, first + 1);
        self.descriptor(queue, first + 1, place + 0x1000, length, flags, first + 2);
        self.descriptor(queue, first + 2, place + 16, 1, 2, 0);
        self.offer(queue, first);
    }

    /// Kicks a queue.
    ///
    /// # Panics
    /// When the descriptor is gone.
    pub fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).expect("our own descriptor");
    }

    /// Answers since the last look: slots and their status. Waits for a call where there are none.
    ///
    /// # Panics
    /// When the node does not answer within a minute.
    pub fn answers(&mut self, queue: usize) -> Vec<(u16, u8)> {
        for _ in 0..600 {
            let answers = self.answers_now(queue);
            if !answers.is_empty() {
                return answers;
            }
            self.ask_for_calls(queue);
            if self.index(queue) == self.queues[queue].used {
                // A call that came too early or not at all shows in the next look.
                wait(&self.queues[queue].call);
            }
        }
        panic!("the node does not answer");
    }

    /// Answers since the last look.
    pub fn answers_now(&mut self, queue: usize) -> Vec<(u16, u8)> {
        let mut answers = Vec::new();
        while self.index(queue) != self.queues[queue].used {
            let GuestQueue { base, used, .. } = self.queues[queue];
            let entry = base + USED + 4 + 8 * u64::from(used % ENTRIES);
            let head = u32::from_le_bytes(self.get(entry)) as u16;
            let status: [u8; 1] = self.get(self.place(queue, head / 3) + 16);
            answers.push((head / 3, status[0]));
            self.queues[queue].used = used.wrapping_add(1);
        }
        answers
    }

    /// Whether the node has taken all that was made available, and asks for a kick for more.
    #[must_use]
    pub fn is_taken(&self, queue: usize) -> bool {
        let GuestQueue { base, available, .. } = self.queues[queue];
        let wanted = self.get(base + USED + 4 + 8 * u64::from(ENTRIES));
        u16::from_le_bytes(wanted) == available
    }

    fn index(&self, queue: usize) -> u16 {
        u16::from_le_bytes(self.get(self.queues[queue].base + USED + 2))
    }

    /// With the event index: the next answer is worth a call.
    pub fn ask_for_calls(&self, queue: usize) {
        let GuestQueue { base, used, .. } = self.queues[queue];
        self.put(base + AVAILABLE + 4 + 2 * u64::from(ENTRIES), &used.to_le_bytes());
    }

    /// The data of the request in `slot`.
    ///
    /// # Panics
    /// When `length` is more than a slot has.
    #[must_use]
    pub fn data(&self, queue: usize, slot: u16, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        let at = self.place(queue, slot) + 0x1000;
        self.memory.read_exact_at(&mut bytes, at).expect("our own memory");
        bytes
    }

    /// One request alone, from its kick to its status and data.
    pub fn ask(&mut self, kind: u32, sector: u64, data: Data<'_>) -> (u8, Vec<u8>) {
        let length = if let Data::In(length) = data { length } else { 0 };
        self.request(0, 0, kind, sector, data);
        self.kick(0);
        let answers = self.answers(0);
        assert_eq!(answers.len(), 1, "one request, one answer: {answers:?}");
        (answers[0].1, self.data(0, 0, length))
    }
}

/// Sends a message and has the two words of its answer, in bounded time: the `vhost` crate would
/// wait without end.
fn exchange(mut socket: &UnixStream, message: &[u32]) -> [u32; 2] {
    socket.set_read_timeout(Some(MESSAGE_PATIENCE)).expect("a time that is not zero");
    let message: Vec<u8> = message.iter().flat_map(|word| word.to_le_bytes()).collect();
    socket.write_all(&message).expect("the socket takes it");
    let (mut head, mut words) = ([0; 12], [[0; 4]; 2]);
    socket.read_exact(&mut head).expect("the node answers a monitor within a minute");
    socket.read_exact(words.as_flattened_mut()).expect("it answers whole");
    socket.set_read_timeout(None).expect("any time");
    words.map(u32::from_le_bytes)
}

fn memory_region(guest: u64, bytes: u64, memory: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: bytes,
        userspace_addr: MONITOR + guest,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    }
}

/// The data of a request.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// From the guest.
    Out(&'a [u8]),
    /// For the guest, so many bytes.
    In(u32),
}

impl GuestQueue {
    fn start(&self, index: usize, frontend: &mut Frontend) -> vhost::Result<()> {
        frontend.set_vring_num(index, ENTRIES)?;
        frontend.set_vring_base(index, self.used)?;
        let config = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: MONITOR + self.base,
            used_ring_addr: MONITOR + self.base + USED,
            avail_ring_addr: MONITOR + self.base + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(index, &config)?;
        frontend.set_vring_call(index, &self.call)?;
        frontend.set_vring_kick(index, &self.kick)?;
        frontend.set_vring_enable(index, true)
    }
}

/// Memory of so many bytes that can be shared, and cut.
///
/// # Panics
/// When the system has none.
#[must_use]
pub fn memory_file(bytes: u64) -> File {
    let made = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = File::from(made.expect("memory"));
    file.set_len(bytes).expect("room");
    file
}

/// The same of huge pages, sealed against being cut; it may be that the host has none for it. None
/// where the kernel knows no huge pages.
///
/// # Panics
/// When the system refuses otherwise.
#[must_use]
pub fn huge_memory_file(bytes: u64) -> Option<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = memfd_create("guest", flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    let file = File::from(made.ok()?);
    file.set_len(bytes).expect("room");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("it may be sealed");
    Some(file)
}

/// The descriptor once more: its crate lends none.
fn duplicate(event: &EventFd) -> OwnedFd {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process lives");
    let flags = PidfdGetfdFlags::empty();
    pidfd_getfd(own, event.as_raw_fd(), flags).expect("a process may have its own")
}

/// Waits until an event descriptor has something, for at most a tenth of a second, and takes it.
fn wait(event: &EventFd) {
    if is_readable(event, 100) {
        // Only this thread reads, so that there is something.
        let _ = event.read();
    }
}

/// Whether an event descriptor has something within so many milliseconds.
fn is_readable(event: &EventFd, within: i32) -> bool {
    let epoll = Epoll::new().expect("a descriptor");
    let wanted = EpollEvent::new(EventSet::IN, 0);
    epoll.ctl(ControlOperation::Add, event.as_raw_fd(), wanted).expect("it can be waited for");
    epoll.wait(within, &mut [EpollEvent::default()]).is_ok_and(|count| count == 1)
}
