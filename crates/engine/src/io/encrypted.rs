//! An [`Io`] some of whose disks hold cipher text: what is written to them is encrypted on its way,
//! and what is read is decrypted, so that nobody above knows.
//!
//! How: a write's bytes are encrypted into a buffer of this layer, which the device gets; the
//! caller's comes back with the end, as it was. A read is decrypted in its own buffer once it has
//! ended. Zeroed and discarded ranges read as zeros, as on any disk; see [`SectorCipher`].
//! Invariant: no clear text of such a disk is handed down. Operations keep their order, tokens and
//! lengths; offsets and lengths of reads and writes are multiples of [`CIPHER_BLOCK_BYTES`].
//! Cost: on other disks a look into a short table per operation; on these a pass of the cipher on
//! the shard's thread, and for a write a second buffer while it is in flight, so as many bytes
//! again as are being written.
//! Not for: mapped disks, whose stores pass no operation.

use super::xts::{CIPHER_BLOCK_BYTES, SectorCipher};
use super::{
    Buffer, DiskId, EventId, HintState, Host, Io, IoDone, IoError, IoOperation, Mapping, OpenError,
    OpenMode, Opened, Peer, SocketId, Token, Waker, WriteLife,
};
use layby_types::Nanos;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// What the end of an operation needs.
enum Flight {
    /// What it reads is to be decrypted.
    Read { cipher: Arc<SectorCipher>, offset: u64 },
    /// The caller's buffer, clear.
    Write { clear: Buffer },
}

/// See the file's header.
pub(super) struct Encrypted<H> {
    inner: H,
    /// By the disk's number.
    ciphers: Vec<Option<Arc<SectorCipher>>>,
    flights: HashMap<u64, Flight>,
}

impl<H: Io> Encrypted<H> {
    pub(super) fn new(inner: H) -> Self {
        Encrypted { inner, ciphers: Vec::new(), flights: HashMap::new() }
    }

    /// From now on a disk, to which nothing was submitted yet, holds cipher text.
    pub(super) fn encrypt(&mut self, disk: DiskId, cipher: Arc<SectorCipher>) {
        let index = disk.0 as usize;
        if index >= self.ciphers.len() {
            self.ciphers.resize(index + 1, None);
        }
        assert!(self.ciphers[index].replace(cipher).is_none(), "a disk has one cipher");
    }

    fn cipher(&self, disk: DiskId) -> Option<&Arc<SectorCipher>> {
        self.ciphers.get(disk.0 as usize)?.as_ref()
    }

    /// The operation as the disk below gets it.
    fn seal(&mut self, token: Token, operation: IoOperation) -> IoOperation {
        let disk = operation.disk();
        let Some(cipher) = disk.and_then(|disk| self.cipher(disk)).cloned() else {
            return operation;
        };
        let (flight, operation) = match operation {
            IoOperation::Read { disk, offset, buffer } => {
                let is_whole = buffer.len().is_multiple_of(CIPHER_BLOCK_BYTES);
                assert!(is_whole, "{} bytes are no blocks", buffer.len());
                let flight = Flight::Read { cipher, offset };
                (flight, IoOperation::Read { disk, offset, buffer })
            }
            IoOperation::Write { disk, offset, buffer: clear, durable } => {
                let mut buffer = self.inner.buffer(clear.len());
                cipher.encrypt(offset, &clear, &mut buffer);
                let flight = Flight::Write { clear };
                (flight, IoOperation::Write { disk, offset, buffer, durable })
            }
            // They move no bytes: what they leave on the disk are zeros, or what was there.
            other => return other,
        };
        let before = self.flights.insert(token.0, flight);
        assert!(before.is_none(), "a token is in flight once");
        operation
    }

    /// Makes of an end what the caller gets.
    fn open(&mut self, end: &mut IoDone) {
        match self.flights.remove(&end.token.0) {
            None => {}
            Some(Flight::Read { cipher, offset }) => {
                if let Some(buffer) = end.buffer.as_mut().filter(|_| end.result.is_ok()) {
                    cipher.decrypt(offset, buffer);
                }
            }
            Some(Flight::Write { clear }) => {
                let sealed = end.buffer.replace(clear);
                sealed.into_iter().for_each(|sealed| self.inner.recycle(sealed));
            }
        }
    }
}

impl<H: Io> Io for Encrypted<H> {
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
        let operation = self.seal(token, operation);
        self.inner.submit(token, operation);
    }

    fn would_wait(&self, disk: DiskId) -> bool {
        self.inner.would_wait(disk)
    }

    fn take_begun(&mut self, begun: &mut Vec<Token>) {
        self.inner.take_begun(begun);
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        self.inner.set_life(life);
    }

    fn hint_state(&self, disk: DiskId) -> HintState {
        self.inner.hint_state(disk)
    }

    fn take_refusal(&mut self) -> Option<(DiskId, IoError)> {
        self.inner.take_refusal()
    }

    fn has_arrived(&mut self) -> bool {
        self.inner.has_arrived()
    }

    fn set_piece(&mut self, bytes: usize) {
        self.inner.set_piece(bytes);
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

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let from = done.len();
        self.inner.wait(deadline, done);
        if !self.flights.is_empty() {
            done[from..].iter_mut().for_each(|end| self.open(end));
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
        assert!(self.cipher(disk).is_none(), "a disk of cipher text is not mapped");
        self.inner.map(disk)
    }

    fn detach_disk(&mut self, disk: DiskId) {
        // What is in flight has its cipher with it.
        if let Some(cipher) = self.ciphers.get_mut(disk.0 as usize) {
            *cipher = None;
        }
        self.inner.detach_disk(disk);
    }

    fn close_socket(&mut self, socket: SocketId) {
        self.inner.close_socket(socket);
    }

    fn close_event(&mut self, event: EventId) {
        self.inner.close_event(event);
    }
}

impl<H: Host> Host for Encrypted<H> {
    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn open_disk(&mut self, path: &Path, mode: OpenMode) -> Result<Opened, OpenError> {
        self.inner.open_disk(path, mode)
    }

    fn attach_socket(&mut self, socket: OwnedFd) -> Result<SocketId, IoError> {
        self.inner.attach_socket(socket)
    }

    fn attach_event(&mut self, event: OwnedFd) -> Result<EventId, IoError> {
        self.inner.attach_event(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimIo;
    use layby_types::Rng;
    use std::collections::BTreeMap;
    use std::ops::Range;

    const DISK_BYTES: u64 = 1 << 18;
    const FLIGHTS: usize = 12;

    /// What an operation in flight must do to the model, or find in it.
    enum Expect {
        Found(Vec<u8>),
        Changed(Vec<u8>),
        Nothing,
    }

    /// An encrypted disk beside a plain vector.
    struct Bench {
        io: Encrypted<SimIo>,
        disk: DiskId,
        model: Vec<u8>,
        rng: Rng,
        flights: BTreeMap<u64, (Range<u64>, Expect)>,
    }

    impl Bench {
        fn new(seed: u64) -> Bench {
            let mut sim = SimIo::new(seed);
            let disk = sim.add_disk("disk", DISK_BYTES);
            let mut io = Encrypted::new(sim);
            let cipher = SectorCipher::new(&std::array::from_fn(|at| at as u8));
            io.encrypt(disk, Arc::new(cipher));
            let model = vec![0; DISK_BYTES as usize];
            Bench { io, disk, model, rng: Rng::new(seed), flights: BTreeMap::new() }
        }

        /// Submits a random operation, unless it would race with one in flight.
        fn submit(&mut self, token: u64) {
            let unit = [16, 512, 4096][self.rng.below(3) as usize];
            let offset = self.rng.below(DISK_BYTES / unit) * unit;
            let most = ((DISK_BYTES - offset) / unit).min(20);
            let length = unit * (1 + self.rng.below(most));
            let range = offset..offset + length;
            let races =
                |(other, _): &(Range<u64>, Expect)| other.start < range.end && offset < other.end;
            if self.flights.len() == FLIGHTS || self.flights.values().any(races) {
                return;
            }
            let (disk, mut buffer) = (self.disk, self.io.buffer(length as usize));
            let (operation, expect) = match self.rng.below(8) {
                0 => (IoOperation::Sync { disk }, Expect::Nothing),
                1 => {
                    let zero = IoOperation::Zero { disk, offset, length, keep_allocated: true };
                    (zero, Expect::Changed(vec![0; length as usize]))
                }
                2..5 => {
                    let found = &self.model[offset as usize..range.end as usize];
                    (IoOperation::Read { disk, offset, buffer }, Expect::Found(found.to_vec()))
                }
                roll => {
                    self.rng.fill(&mut buffer);
                    let clear = buffer.to_vec();
                    let durable = roll == 5;
                    (IoOperation::Write { disk, offset, buffer, durable }, Expect::Changed(clear))
                }
            };
            self.flights.insert(token, (range, expect));
            self.io.submit(Token(token), operation);
        }

        fn on_end(&mut self, end: IoDone) {
            let (range, expect) = self.flights.remove(&end.token.0).expect("a token ends once");
            let moved = end.result.expect("no operation fails here");
            match expect {
                Expect::Nothing => {}
                Expect::Found(bytes) => {
                    assert_eq!(moved, bytes.len());
                    assert!(*end.buffer.expect("a read has one") == bytes[..], "at {range:?}");
                }
                Expect::Changed(bytes) => {
                    // A write's buffer comes back as it was.
                    assert!(end.buffer.is_none_or(|buffer| *buffer == bytes[..]));
                    self.model[range.start as usize..range.end as usize].copy_from_slice(&bytes);
                }
            }
        }
    }

    /// Goal: an encrypted disk is any disk to its user, a write's buffer comes back unchanged, and
    /// no block of clear text is on the device. Method: random operations in flight together beside
    /// a plain vector, over simulated disks that reorder them; then the device's own bytes.
    #[test]
    fn encrypted_disks_match_a_vector() {
        for seed in 0..20 {
            let mut bench = Bench::new(seed);
            let mut done = Vec::new();
            for token in 0..600 {
                bench.submit(token);
                bench.io.wait(Nanos::ZERO, &mut done);
                done.drain(..).for_each(|end| bench.on_end(end));
            }
            while !bench.flights.is_empty() {
                bench.io.wait(Nanos::NEVER, &mut done);
                done.drain(..).for_each(|end| bench.on_end(end));
            }
            let device = bench.io.inner.peek(bench.disk);
            let blocks = device.chunks(16).zip(bench.model.chunks(16));
            let written = blocks.filter(|(_, clear)| **clear != [0; 16]);
            let written: Vec<_> = written.collect();
            assert!(written.len() > 1000, "seed {seed}: so the test can fail");
            assert!(written.iter().all(|(sealed, clear)| sealed != clear), "seed {seed}");
            assert!(bench.io.flights.is_empty(), "seed {seed}");
        }
    }

    /// Goal: a failed write gives the caller's buffer back, and other disks of the same machine get
    /// what they are given. Method: a write behind the disk's end, and one to a plain disk.
    #[test]
    fn failures_and_plain_disks_pass() {
        let mut sim = SimIo::new(1);
        let (sealed, plain) = (sim.add_disk("a", DISK_BYTES), sim.add_disk("b", DISK_BYTES));
        let mut io = Encrypted::new(sim);
        io.encrypt(sealed, Arc::new(SectorCipher::new(&std::array::from_fn(|at| at as u8))));
        for (disk, offset, is_ok) in [(sealed, DISK_BYTES, false), (plain, 0, true)] {
            let mut buffer = io.buffer(4096);
            buffer.fill(9);
            io.submit(Token(1), IoOperation::Write { disk, offset, buffer, durable: true });
            let mut done = Vec::new();
            while done.is_empty() {
                io.wait(Nanos::NEVER, &mut done);
            }
            let end = done.pop().expect("it has just come");
            assert_eq!(end.result.is_ok(), is_ok);
            assert!(end.buffer.expect("a write has one").iter().all(|byte| *byte == 9));
        }
        assert!(io.inner.peek(plain)[..4096].iter().all(|byte| *byte == 9));
    }
}
