//! One suite for every `Io`: what a store or shard may rely on, whoever performs it.

use super::{
    Buffer, DiskId, Host, HostIo, Io, IoChoice, IoDone, IoError, IoOperation, OpenMode, SimIo,
    SocketId, Token, VOLATILE_BYTES_DEFAULT, VOLATILE_BYTES_MIN, VolatileIo, Waker, open_disk,
    run_alone,
};
use layby_types::{Nanos, Rng};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;

/// Not a multiple of any block, so that the end of the disk is met unaligned too.
const LENGTH: u64 = (1 << 20) + 1000;
const FLIGHTS: usize = 16;
const HOSTS: [IoChoice; 2] = [IoChoice::Ring, IoChoice::Pool];

/// What an operation in flight must do to the model, or find in it.
enum Expect {
    Bytes(Vec<u8>, u64),
    Change(u64, Vec<u8>),
    Extents(Range<u64>),
    Nothing,
}

/// A disk beside a plain vector.
struct Bench<'a> {
    io: &'a mut dyn Io,
    disk: DiskId,
    model: Vec<u8>,
    flights: HashMap<u64, (Range<u64>, bool, Expect)>,
    rng: Rng,
    seed: u64,
    next: u64,
}

/// A failure names its seed.
impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "a failing test says how to replay it")]
            {
                eprintln!("replay with SEED={}", self.seed);
            }
        }
    }
}

impl Bench<'_> {
    fn range(&mut self) -> Range<u64> {
        let unit = [1, 512, 4096][self.rng.below(3) as usize];
        let start = self.rng.below(LENGTH / unit) * unit;
        let length = (1 + self.rng.below(1 << self.rng.clone().below(17))).next_multiple_of(unit);
        start..(start + length).min(LENGTH)
    }

    /// Submits a random operation, unless it would race with one in flight.
    fn submit(&mut self) {
        let range = self.range();
        let roll = self.rng.below(10);
        let changes = (4..8).contains(&roll);
        let races = |(other, other_changes, _): &(Range<u64>, bool, Expect)| {
            (changes || *other_changes) && other.start < range.end && range.start < other.end
        };
        if self.flights.len() == FLIGHTS || self.flights.values().any(races) {
            return;
        }
        let (disk, offset, length) = (self.disk, range.start, range.end - range.start);
        let (operation, expect) = match roll {
            0..4 => {
                let past_end = if range.end == LENGTH { 700 } else { 0 };
                let mut buffer = self.io.buffer(length as usize + past_end);
                buffer.fill(0xee);
                let mut bytes = self.model[range.start as usize..range.end as usize].to_vec();
                bytes.resize(length as usize + past_end, 0);
                (IoOperation::Read { disk, offset, buffer }, Expect::Bytes(bytes, offset))
            }
            4..7 => {
                let mut buffer = self.io.buffer(length as usize);
                self.rng.fill(&mut buffer);
                let (durable, bytes) = (roll == 4, buffer.to_vec());
                let operation = IoOperation::Write { disk, offset, buffer, durable };
                (operation, Expect::Change(offset, bytes))
            }
            7 => {
                let keep_allocated = self.rng.chance(1, 2);
                let operation = IoOperation::Zero { disk, offset, length, keep_allocated };
                (operation, Expect::Change(offset, vec![0; length as usize]))
            }
            8 => (IoOperation::Sync { disk }, Expect::Nothing),
            _ => {
                let operation = IoOperation::Extents { disk, offset, length };
                (operation, Expect::Extents(range.clone()))
            }
        };
        self.next += 1;
        self.flights.insert(self.next, (range, changes, expect));
        self.io.submit(Token(self.next), operation);
    }

    fn on_done(&mut self, done: IoDone) {
        let (_, _, expect) = self.flights.remove(&done.token.0).expect("each token ends once");
        let moved = done.result.expect("no operation fails here");
        match expect {
            Expect::Bytes(bytes, offset) => {
                assert_eq!(
                    moved as u64,
                    (LENGTH - offset).min(bytes.len() as u64),
                    "what is there"
                );
                let buffer = done.buffer.expect("a read gives its buffer back");
                assert!(*buffer == bytes[..], "a read of {} bytes at {offset}", bytes.len());
                self.io.recycle(buffer);
            }
            Expect::Change(offset, bytes) => {
                let offset = offset as usize;
                self.model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                if let Some(buffer) = done.buffer {
                    self.io.recycle(buffer);
                }
            }
            Expect::Extents(range) => {
                let mut at = range.start;
                for extent in &done.extents {
                    assert_eq!(extent.offset, at, "extents must tile the range");
                    at += extent.length;
                    let bytes = &self.model[extent.offset as usize..at as usize];
                    let racing = self.flights.values().any(|(_, changes, _)| *changes);
                    assert!(
                        extent.data || racing || bytes.iter().all(|byte| *byte == 0),
                        "a hole that holds data at {}",
                        extent.offset
                    );
                }
                assert_eq!(at, range.end);
            }
            Expect::Nothing => {}
        }
    }

    fn run(&mut self, steps: usize) {
        let mut done = Vec::new();
        for _ in 0..steps {
            for _ in 0..self.rng.below(6) {
                self.submit();
            }
            let deadline = if self.flights.is_empty() { Nanos::ZERO } else { Nanos::NEVER };
            self.io.wait(deadline, &mut done);
            done.drain(..).for_each(|end| self.on_done(end));
        }
        while !self.flights.is_empty() {
            self.io.wait(Nanos::NEVER, &mut done);
            done.drain(..).for_each(|end| self.on_done(end));
        }
        let (disk, offset) = (self.disk, 0);
        let buffer = self.io.buffer(LENGTH as usize);
        let done = run_alone(self.io, IoOperation::Read { disk, offset, buffer }).unwrap();
        assert!(*done.buffer.unwrap() == self.model[..], "the whole disk at the end");
    }
}

/// Checks a disk of [`LENGTH`] zeros against a plain vector.
fn matches_a_vector(io: &mut dyn Io, disk: DiskId, seed: u64, steps: usize) {
    assert_eq!(io.disk_length(disk), LENGTH);
    let model = vec![0; LENGTH as usize];
    let (flights, rng) = (HashMap::new(), Rng::new(seed));
    Bench { io, disk, model, flights, rng, seed, next: 0 }.run(steps);
}

/// A host with one temporary disk.
fn host_with_disk(choice: IoChoice, direct: bool) -> (tempfile::TempDir, HostIo, DiskId) {
    let directory = tempfile::tempdir().unwrap();
    let mode = OpenMode { direct, create_length: Some(LENGTH), ..OpenMode::default() };
    let disk = open_disk(&directory.path().join("disk"), mode).unwrap();
    let (mut io, _, _) = HostIo::start(choice, 8 << 20).unwrap();
    let disk = io.attach_disk(disk);
    (directory, io, disk)
}

/// Goal: every `Io` reads back what was written, zeroed and nothing else, with many operations in
/// flight. Method: the random bench on simulated disks.
#[test]
fn simulated_disks_match_a_vector() {
    for seed in 0..20 {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        matches_a_vector(&mut io, disk, seed, 200);
    }
}

/// Goal and method: as above, on files through the ring and through threads, page-cached and not,
/// once with operations that wait since the ring takes few at once.
#[test]
fn host_disks_match_a_vector() {
    for choice in HOSTS {
        for direct in [false, true] {
            for seed in 0..4 {
                let (_directory, mut io, disk) = host_with_disk(choice, direct);
                if let (HostIo::Ring(ring), 3) = (&mut io, seed) {
                    ring.set_disk_flights_max(2);
                }
                matches_a_vector(&mut io, disk, seed, 150);
            }
        }
    }
}

/// Goal and method: as above, through the power-cut wrapper with a limit that is often reached.
#[test]
fn volatile_disks_match_a_vector() {
    for seed in 0..20 {
        let mut sim = SimIo::new(seed);
        let disk = sim.add_disk("disk", LENGTH);
        let limit = [VOLATILE_BYTES_MIN, 300_000, VOLATILE_BYTES_DEFAULT][seed as usize % 3];
        matches_a_vector(&mut VolatileIo::new(sim, limit), disk, seed, 200);
    }
    for choice in HOSTS {
        let (_directory, io, disk) = host_with_disk(choice, false);
        matches_a_vector(&mut io.into_volatile(300_000), disk, 1, 150);
    }
}

/// Goal: a discarded range reads as it was or as zeros, what is beside it stays, and what is
/// written afterwards counts. Method: a write, a discard of its middle, a write into that.
#[test]
fn discarded_ranges_can_be_written_again() {
    let lives = |io: &mut dyn Io, disk: DiskId| {
        let write = |io: &mut dyn Io, offset, length, byte| {
            let mut buffer = io.buffer(length);
            buffer.fill(byte);
            run_alone(io, IoOperation::Write { disk, offset, buffer, durable: false }).unwrap();
        };
        let read = |io: &mut dyn Io| {
            let buffer = io.buffer(4 * 4096);
            let done = run_alone(io, IoOperation::Read { disk, offset: 0, buffer }).unwrap();
            done.buffer.unwrap().to_vec()
        };
        write(io, 0, 4 * 4096, 7);
        run_alone(io, IoOperation::Discard { disk, offset: 4096, length: 8192 }).unwrap();
        let found = read(io);
        let as_was = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 7);
        assert!(as_was(&found[..4096]) && as_was(&found[3 * 4096..]));
        assert!(found[4096..3 * 4096].iter().all(|byte| [0, 7].contains(byte)));
        write(io, 4096, 4096, 9);
        assert!(read(io)[4096..8192].iter().all(|byte| *byte == 9));
    };
    for choice in HOSTS {
        let (_directory, mut io, disk) = host_with_disk(choice, true);
        lives(&mut io, disk);
        io.detach_disk(disk);
        let (_directory, io, disk) = host_with_disk(choice, true);
        lives(&mut VolatileIo::new(io, 1 << 20), disk);
    }
    for seed in 0..20 {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        lives(&mut io, disk);
    }
}

/// Goal: what cannot be is refused, with the buffer back, and the disk lives on. Method: changes
/// past the end and overflowing offsets.
#[test]
fn impossible_ranges_are_refused() {
    let refused = |io: &mut dyn Io, disk: DiskId| {
        let invalid = Some(IoError::from(Errno::INVAL));
        for offset in [LENGTH - 4095, LENGTH, u64::MAX - 4095, u64::MAX] {
            let (buffer, durable) = (io.buffer(4096), false);
            io.submit(Token(1), IoOperation::Write { disk, offset, buffer, durable });
            let mut done = Vec::new();
            io.wait(Nanos::NEVER, &mut done);
            assert_eq!(done[0].result.err(), invalid);
            assert!(done[0].buffer.is_some());
            let zero = IoOperation::Zero { disk, offset, length: 4096, keep_allocated: false };
            assert_eq!(run_alone(io, zero).err(), invalid);
        }
        run_alone(io, IoOperation::Sync { disk }).unwrap();
    };
    for choice in HOSTS {
        let (_directory, mut io, disk) = host_with_disk(choice, false);
        refused(&mut io, disk);
        io.detach_disk(disk);
    }
    let mut io = SimIo::new(1);
    let disk = io.add_disk("disk", LENGTH);
    refused(&mut io, disk);
}

fn host_with_socket(choice: IoChoice) -> (HostIo, Waker, SocketId, UnixStream) {
    let (mut io, waker, _) = HostIo::start(choice, 8 << 20).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = io.attach_socket(ours.into()).unwrap();
    (io, waker, socket, theirs)
}

fn receive(io: &mut HostIo, socket: SocketId, length: usize) -> Result<Vec<u8>, IoError> {
    let buffer = io.buffer(length);
    let done = run_alone(io, receive_whole(socket, buffer))?;
    let count = done.result.unwrap();
    Ok(done.buffer.unwrap()[..count].to_vec())
}

fn send(io: &mut HostIo, socket: SocketId, bytes: &[u8]) -> Result<usize, IoError> {
    let mut buffer = io.buffer(bytes.len() + 2);
    buffer[1..=bytes.len()].copy_from_slice(bytes);
    let end = bytes.len() + 1;
    run_alone(io, IoOperation::Send { socket, buffer, start: 1, end })?.result
}

/// Goal: bytes go both ways in order, and a half-closed peer still gets its answers. Method: a
/// peer thread sends seeded messages, ends its side and compares what comes back.
#[test]
fn sockets_echo_and_half_close() {
    for (choice, volatile) in HOSTS.into_iter().flat_map(|host| [(host, false), (host, true)]) {
        let (mut io, _, socket, mut peer) = host_with_socket(choice);
        if volatile {
            io = io.into_volatile(VOLATILE_BYTES_DEFAULT);
        }
        let thread = std::thread::spawn(move || {
            let mut rng = Rng::new(1);
            for _ in 0..300 {
                let mut sent = vec![0; 1 + rng.below(20_000) as usize];
                rng.fill(&mut sent);
                peer.write_all(&sent).unwrap();
                let mut back = vec![0; sent.len()];
                peer.read_exact(&mut back).unwrap();
                assert_eq!(sent, back);
            }
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            let mut last = Vec::new();
            peer.read_to_end(&mut last).unwrap();
            assert_eq!(last, b"bye");
        });
        loop {
            let bytes = receive(&mut io, socket, 4096).unwrap();
            if bytes.is_empty() {
                break;
            }
            assert_eq!(send(&mut io, socket, &bytes), Ok(bytes.len()));
        }
        assert_eq!(receive(&mut io, socket, 10).unwrap(), b"", "the end stays the end");
        assert_eq!(send(&mut io, socket, b"bye"), Ok(3));
        io.close_socket(socket);
        thread.join().unwrap();
    }
}

/// Goal: sends far larger than the socket's buffer arrive whole and in order while a receive is
/// pending. Method: three at once, to a peer that reads small pieces, then answers.
#[test]
fn big_sends_arrive_in_order() {
    for choice in HOSTS {
        let (mut io, _, socket, mut peer) = host_with_socket(choice);
        const PART: usize = 3 << 20;
        let thread = std::thread::spawn(move || {
            let mut piece = [0; 5000];
            let mut total = 0;
            while total < 3 * PART {
                let count = peer.read(&mut piece).unwrap();
                for (index, byte) in piece[..count].iter().enumerate() {
                    assert_eq!(*byte as usize, 1 + (total + index) / PART);
                }
                total += count;
            }
            peer.write_all(b"got it").unwrap();
            peer
        });
        let buffer = io.buffer(100);
        io.submit(Token(9), receive_whole(socket, buffer));
        for part in 1..=3u8 {
            let mut buffer = io.buffer(PART);
            buffer.fill(part);
            let send = IoOperation::Send { socket, buffer, start: 0, end: PART };
            io.submit(Token(u64::from(part)), send);
        }
        let mut done = Vec::new();
        while done.len() < 4 {
            io.wait(Nanos::NEVER, &mut done);
        }
        let tokens: Vec<_> = done.iter().map(|end| end.token.0).collect();
        assert_eq!(tokens, [1, 2, 3, 9]);
        assert_eq!(done[3].result, Ok(6));
        thread.join().unwrap();
    }
}

/// Goal: how much of a send its peer has not taken gets fewer as the peer takes bytes, also within
/// one send, and is nothing once all is taken. Method: a send that is larger than what the kernel
/// holds, to a peer that takes a part of it, and then the rest.
#[test]
fn what_a_peer_has_not_taken_gets_fewer() {
    for choice in HOSTS {
        let (mut io, _, socket, mut peer) = host_with_socket(choice);
        const BYTES: usize = 4 << 20;
        assert_eq!(io.untaken(socket), 0);
        let buffer = io.buffer(BYTES);
        io.submit(Token(1), IoOperation::Send { socket, buffer, start: 0, end: BYTES });
        let mut done = Vec::new();
        io.wait(Nanos::ZERO, &mut done);
        let before = io.untaken(socket);
        assert!(before > BYTES as u64 / 2, "{choice:?}: {before}");
        peer.read_exact(&mut vec![0; 64 << 10]).unwrap();
        // The kernel tells of what it was given since when it is waited for.
        let gets_fewer = (0..1000).any(|_| {
            io.wait(io.now() + Nanos::from_millis(1), &mut done);
            io.untaken(socket) < before
        });
        assert!(done.is_empty() && gets_fewer, "{choice:?}: {before} of {BYTES}");
        let thread = std::thread::spawn(move || {
            peer.read_exact(&mut vec![0; BYTES - (64 << 10)]).unwrap();
            peer
        });
        while done.is_empty() {
            io.wait(Nanos::NEVER, &mut done);
        }
        let _peer = thread.join().unwrap();
        assert_eq!(io.untaken(socket), 0, "{choice:?}");
    }
}

/// Goal: a peer that is gone fails a send and raises no signal; closing ends what is pending, and
/// the id may be used again. Method: drops the peer; closes with a receive and blocked sends.
#[test]
fn gone_peers_and_closed_sockets_end_everything() {
    for choice in HOSTS {
        let (mut io, _, socket, peer) = host_with_socket(choice);
        let shared = io.peer(socket).expect("a host has descriptors");
        assert!(!shared.has_left() && !io.has_peer_left(socket));
        drop(peer);
        assert!(shared.has_left() && io.has_peer_left(socket), "{choice:?}");
        assert_eq!(receive(&mut io, socket, 10), Ok(Vec::new()));
        assert_eq!(send(&mut io, socket, b"anyone?"), Err(Errno::PIPE.into()));
        io.close_socket(socket);

        let (ours, _peer) = UnixStream::pair().unwrap();
        let socket = io.attach_socket(ours.into()).unwrap();
        let shared = io.peer(socket).expect("a host has descriptors");
        let buffer = io.buffer(100);
        io.submit(Token(0), receive_whole(socket, buffer));
        for token in 1..4 {
            let buffer = io.buffer(4 << 20);
            io.submit(Token(token), IoOperation::Send { socket, buffer, start: 0, end: 4 << 20 });
        }
        let mut done = Vec::new();
        io.wait(Nanos::ZERO, &mut done);
        assert!(done.is_empty(), "nothing can have ended yet");
        io.close_socket(socket);
        while done.len() < 4 {
            io.wait(Nanos::NEVER, &mut done);
        }
        for end in done {
            assert_eq!(end.result.is_ok(), end.token == Token(0), "{end:?}");
            assert!(end.buffer.is_some());
        }
        assert!(shared.has_left(), "{choice:?}: closed here, which is as good");
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let socket = io.attach_socket(ours.into()).unwrap();
        peer.write_all(b"fresh").unwrap();
        assert_eq!(receive(&mut io, socket, 10).unwrap(), b"fresh");
    }
}

/// Goal: a call of the waker ends a wait, whether it comes before or during it, and leaves nothing
/// behind. Method: calls from this thread and from another, each against an endless wait.
#[test]
fn the_waker_ends_a_wait() {
    for choice in HOSTS {
        let (mut io, waker, _) = HostIo::start(choice, 0).unwrap();
        let mut done = Vec::new();
        for _ in 0..100 {
            waker.wake();
            waker.wake();
            io.wait(Nanos::NEVER, &mut done);
            let waker = waker.clone();
            let thread = std::thread::spawn(move || waker.wake());
            io.wait(Nanos::NEVER, &mut done);
            thread.join().unwrap();
        }
        assert!(done.is_empty());
        let deadline = io.now() + Nanos::from_micros(100);
        io.wait(deadline, &mut done);
        assert!(io.now() >= deadline, "an old call must not end a later wait");
    }
}

/// Goal: a wait ends at its deadline and not before, and a past deadline does not wait at all.
/// Method: the `Io`'s own clock around waits with nothing to do and with a pending receive.
#[test]
fn a_wait_keeps_its_deadline() {
    for choice in HOSTS {
        let (mut io, _, socket, _peer) = host_with_socket(choice);
        let buffer = io.buffer(100);
        io.submit(Token(0), receive_whole(socket, buffer));
        let mut done = Vec::new();
        for micros in [1, 50, 999, 3000] {
            let deadline = io.now() + Nanos::from_micros(micros);
            io.wait(deadline, &mut done);
            assert!(io.now() >= deadline);
            io.wait(Nanos::ZERO, &mut done);
            io.wait(deadline, &mut done);
        }
        assert!(done.is_empty());
    }
}

/// Goal: an `Io` may be made on one thread and used on another, and dropped while operations are
/// in flight. Method: does so, with a receive that never ends.
#[test]
fn an_io_moves_to_its_shard() {
    for choice in HOSTS {
        let (mut io, _, socket, mut peer) = host_with_socket(choice);
        let thread = std::thread::spawn(move || {
            assert_eq!(receive(&mut io, socket, 10).unwrap(), b"hello");
            let buffer = io.buffer(100);
            io.submit(Token(0), receive_whole(socket, buffer));
            io.wait(Nanos::ZERO, &mut Vec::new());
        });
        peer.write_all(b"hello").unwrap();
        thread.join().unwrap();
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "dropping the `Io` closed the socket");
    }
}

/// Goal: a dropped `Io` lets go of its sockets at once, though its thread lives on. Method: many
/// in a row on this thread, more than the kernel has numbers for, each peer seeing its end.
#[test]
fn a_dropped_io_closes_its_sockets() {
    for choice in HOSTS {
        for _ in 0..40 {
            let (mut io, _, socket, mut peer) = host_with_socket(choice);
            let buffer = io.buffer(100);
            io.submit(Token(0), receive_whole(socket, buffer));
            io.wait(Nanos::ZERO, &mut Vec::new());
            drop(io);
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
        }
    }
}

/// Goal: an event ends the wait for it, once, also one that came between two waits; other
/// descriptors are refused, and closing ends a wait. Method: eventfds in both modes, whose other
/// owner writes.
#[test]
fn events_end_their_waits() {
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsRawFd as _;
    let tell = |peer: &std::os::fd::OwnedFd| {
        assert_eq!(rustix::io::write(peer, &1u64.to_ne_bytes()), Ok(8));
    };
    for (choice, flags) in HOSTS.into_iter().zip([EventfdFlags::NONBLOCK, EventfdFlags::empty()]) {
        let (mut io, ..) = HostIo::start(choice, 0).unwrap();
        let peer = eventfd(0, flags).unwrap();
        let event = io.attach_event(peer.try_clone().unwrap()).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(io.attach_event(ours.into()).is_err(), "a socket is no event");
        let semaphore = eventfd(9, flags | EventfdFlags::SEMAPHORE).unwrap();
        let facts = format!("/proc/self/fdinfo/{}", semaphore.as_raw_fd());
        // Kernels before 6.5 do not tell.
        let is_told = std::fs::read_to_string(facts).unwrap().contains("eventfd-semaphore");
        assert!(io.attach_event(semaphore).is_err() || !is_told, "one read would not empty it");
        let mut done = Vec::new();
        for round in 0..3 {
            io.submit(Token(round), IoOperation::Await { event });
            io.wait(io.now() + Nanos::from_micros(100), &mut done);
            assert!(done.is_empty(), "nobody has written");
            tell(&peer);
            tell(&peer);
            io.wait(Nanos::NEVER, &mut done);
            let ended = done.pop().expect("the wait ends with an end");
            assert_eq!((ended.token, ended.result), (Token(round), Ok(0)));
        }
        tell(&peer);
        io.submit(Token(9), IoOperation::Await { event });
        io.wait(Nanos::NEVER, &mut done);
        assert_eq!(done.pop().map(|done| done.token), Some(Token(9)));
        io.submit(Token(10), IoOperation::Await { event });
        io.wait(io.now() + Nanos::from_micros(100), &mut done);
        io.close_event(event);
        while done.is_empty() {
            io.wait(Nanos::NEVER, &mut done);
        }
        assert!(done.pop().is_some_and(|done| done.token == Token(10) && done.result.is_err()));
    }
}

/// A receive into the whole of a buffer.
fn receive_whole(socket: SocketId, buffer: Buffer) -> IoOperation {
    let end = buffer.len();
    IoOperation::Receive { socket, buffer, filled: 0, end }
}
