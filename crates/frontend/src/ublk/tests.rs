//! Requests of a kernel that is not there: the translation, and whole lives of a queue.

use super::{BUFFER_BYTES, DESCRIPTOR_BYTES, DISCARD_SECTORS_MAX, DiskQueue, HostDisk, Wire};
use layby_types::{BlockSize, Call, ErrorKind, GuestRing, Operation, Rng, SessionError, Taken};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

const DEPTH: u16 = 8;
const LENGTH: u64 = 1 << 20;
const SECTORS: u64 = LENGTH / 512;

/// The kernel's side: requests by tag, and answers as they come.
#[derive(Default)]
struct Kernel {
    is_started: bool,
    arrived: VecDeque<(u16, i32)>,
    descriptors: Vec<[u8; DESCRIPTOR_BYTES]>,
    buffers: Vec<Vec<u8>>,
    /// Answers that were not brought over yet, and those that were.
    gathered: Vec<(u16, i32)>,
    answers: Vec<(u16, i32)>,
    /// The next sends fail.
    refusals: u32,
}

#[derive(Clone)]
struct FakeWire {
    kernel: Arc<Mutex<Kernel>>,
    /// A tag's buffer while it is in the queue's hands.
    buffers: Vec<Vec<u8>>,
}

impl Wire for FakeWire {
    fn start(&mut self) -> Result<(), SessionError> {
        self.kernel.lock().expect("no test panics with it").is_started = true;
        Ok(())
    }

    fn next_tag(&mut self) -> Option<(u16, i32)> {
        let mut kernel = self.kernel.lock().expect("no test panics with it");
        assert!(kernel.is_started, "tags are asked for first");
        let (tag, said) = kernel.arrived.pop_front()?;
        self.buffers[usize::from(tag) % usize::from(DEPTH)] =
            kernel.buffers[usize::from(tag) % usize::from(DEPTH)].clone();
        Some((tag, said))
    }

    fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        self.kernel.lock().expect("no test panics with it").descriptors[usize::from(tag)]
    }

    fn buffer(&mut self, tag: u16) -> &mut [u8] {
        &mut self.buffers[usize::from(tag)]
    }

    fn answer(&mut self, tag: u16, result: i32) {
        let mut kernel = self.kernel.lock().expect("no test panics with it");
        kernel.buffers[usize::from(tag)].clone_from(&self.buffers[usize::from(tag)]);
        kernel.gathered.push((tag, result));
    }

    fn send(&mut self) -> bool {
        let mut kernel = self.kernel.lock().expect("no test panics with it");
        if kernel.refusals > 0 {
            kernel.refusals -= 1;
            return false;
        }
        let gathered = std::mem::take(&mut kernel.gathered);
        kernel.answers.extend(gathered);
        true
    }

    fn has_more(&mut self) -> bool {
        !self.kernel.lock().expect("no test panics with it").arrived.is_empty()
    }
}

struct Bench {
    kernel: Arc<Mutex<Kernel>>,
    queue: DiskQueue<FakeWire>,
    payload: Vec<u8>,
}

impl Bench {
    fn new(read_only: bool) -> Bench {
        let kernel = Arc::new(Mutex::new(Kernel {
            descriptors: vec![[0; DESCRIPTOR_BYTES]; DEPTH.into()],
            buffers: vec![vec![0; BUFFER_BYTES as usize]; DEPTH.into()],
            ..Kernel::default()
        }));
        let buffers = vec![Vec::new(); DEPTH.into()];
        let wire = FakeWire { kernel: Arc::clone(&kernel), buffers };
        let disk = HostDisk { length: LENGTH, block_size: BlockSize::DEFAULT, read_only };
        Bench { kernel, queue: DiskQueue::new(wire, disk, DEPTH), payload: Vec::new() }
    }

    fn kernel(&self) -> std::sync::MutexGuard<'_, Kernel> {
        self.kernel.lock().expect("no test panics with it")
    }

    /// The kernel hands over a request.
    fn request(&self, tag: u16, op_flags: u32, sector: u64, sectors: u32) {
        let mut kernel = self.kernel();
        let descriptor = &mut kernel.descriptors[usize::from(tag)];
        descriptor[..4].copy_from_slice(&op_flags.to_ne_bytes());
        descriptor[4..8].copy_from_slice(&sectors.to_ne_bytes());
        descriptor[8..16].copy_from_slice(&sector.to_ne_bytes());
        kernel.arrived.push_back((tag, 0));
    }

    fn take(&mut self) -> Taken {
        self.queue.take(&mut self.payload).expect("the kernel keeps its word")
    }

    /// What one request comes to: a call, or its result.
    fn outcome(&mut self, op_flags: u32, sector: u64, sectors: u32) -> Result<Call, i32> {
        self.request(0, op_flags, sector, sectors);
        match self.take() {
            Taken::Call(call) => {
                self.queue.finish(&call, Ok(())).expect("it is in hand");
                assert!(!self.queue.take_signal());
                Ok(call)
            }
            Taken::Answered => {
                assert!(!self.queue.take_signal());
                Err(self.kernel().answers.last().expect("it was brought over").1)
            }
            Taken::Nothing => panic!("a request was handed over"),
        }
    }
}

const FUA: u32 = 1 << 13;
const NO_UNMAP: u32 = 1 << 15;

/// Goal: each kind of request is the call that it says, with its flags, and what does not fit the
/// disk fails without one. Method: one of each, at and behind the borders.
#[test]
fn requests_become_calls() {
    let mut bench = Bench::new(false);
    let call = bench.outcome(0, 8, 8).expect("a read");
    assert_eq!((call.operation, call.offset, call.length), (Operation::Read, 4096, 4096));
    let call = bench.outcome(1 | FUA, SECTORS - 1, 1).expect("a write of the last sector");
    assert_eq!((call.operation, call.flags.fua), (Operation::Write, true));
    let call = bench.outcome(2, u64::MAX, 0).expect("a flush");
    assert_eq!((call.operation, call.offset, call.length), (Operation::Flush, 0, 0));
    assert_eq!(bench.outcome(3, 0, 2048).expect("a discard").operation, Operation::Trim);
    let zeroes = |call: Call| (call.operation, call.flags.no_hole);
    let freed = zeroes(bench.outcome(5, 0, 8).expect("a zeroing"));
    assert_eq!(freed, (Operation::WriteZeroes, false));
    let kept = zeroes(bench.outcome(5 | NO_UNMAP, 0, 8).expect("a zeroing that keeps its room"));
    assert_eq!(kept, (Operation::WriteZeroes, true));
    for (operation, sector, sectors, result) in [
        (0, SECTORS, 1, -5),
        (1, SECTORS - 1, 2, -5),
        (3, u64::MAX, 1, -5),
        (0, 0, BUFFER_BYTES / 512 + 1, -5),
        (3, 0, DISCARD_SECTORS_MAX + 1, -5),
        (0, 0, 0, 0),
        (4, 0, 1, -95),
        (200, 0, 1, -95),
    ] {
        assert_eq!(bench.outcome(operation, sector, sectors), Err(result), "{operation} {sector}");
    }
}

/// Goal: nothing changes a disk that is read only. Method: every request that would, and one that
/// would not.
#[test]
fn a_read_only_disk_is_never_changed() {
    let mut bench = Bench::new(true);
    for operation in [1, 3, 5] {
        assert_eq!(bench.outcome(operation, 0, 8), Err(-5));
    }
    assert!(bench.outcome(0, 0, 8).is_ok());
    let parameters = bench.queue_disk().parameters();
    assert_eq!(parameters[8] & 1, 1, "the kernel is told");
    assert_eq!(parameters[4], 1, "and offers no discard");
}

impl Bench {
    fn queue_disk(&self) -> HostDisk {
        HostDisk { length: LENGTH, block_size: BlockSize::DEFAULT, read_only: true }
    }
}

/// Goal: results are the numbers that the kernel knows. Method: each kind of error of a read.
#[test]
fn errors_keep_their_meaning() {
    let mut bench = Bench::new(false);
    for (kind, number) in [
        (ErrorKind::Full, -28),
        (ErrorKind::Corrupt, -61),
        (ErrorKind::Unsupported, -95),
        (ErrorKind::Retry, -5),
        (ErrorKind::Closed, -5),
    ] {
        bench.request(3, 0, 0, 8);
        let Taken::Call(call) = bench.take() else { panic!("a read is a call") };
        bench.queue.finish(&call, Err(kind)).expect("it is in hand");
        assert!(!bench.queue.take_signal());
        assert_eq!(bench.kernel().answers.pop(), Some((3, number)));
    }
}

/// Goal: tags that the kernel takes back end quietly; what it says otherwise ends the queue.
/// Method: both, and tags that it cannot have.
#[test]
fn a_stopping_device_ends_quietly() {
    let mut bench = Bench::new(false);
    bench.kernel().arrived.extend([(0, -19), (1, -19)]);
    assert_eq!(bench.take(), Taken::Nothing);
    for said in [(0, -22), (DEPTH, 0)] {
        let mut bench = Bench::new(false);
        bench.kernel().arrived.push_back(said);
        assert!(bench.queue.take(&mut Vec::new()).is_err(), "{said:?}");
    }
    bench.request(2, 0, 0, 8);
    assert!(matches!(bench.take(), Taken::Call(_)));
    bench.request(2, 0, 0, 8);
    assert!(bench.queue.take(&mut Vec::new()).is_err(), "a tag that was not answered");
}

/// Goal: whatever comes in whatever order, each request is answered once with its own bytes, also
/// where the kernel takes answers only later. Method: random lives beside a plain array.
#[test]
fn every_request_is_answered_once() {
    for seed in 1..40 {
        let mut rng = Rng::new(seed);
        life(&mut rng, seed);
    }
}

fn life(rng: &mut Rng, seed: u64) {
    let mut bench = Bench::new(false);
    let mut disk = vec![0u8; LENGTH as usize];
    let mut free: Vec<u16> = (0..DEPTH).collect();
    // Reads with what they are to bring, by tag.
    let mut expected: Vec<Option<(usize, Vec<u8>)>> = vec![None; DEPTH.into()];
    let mut open: Vec<Call> = Vec::new();
    for step in 0..300u64 {
        if !free.is_empty() && rng.chance(1, 2) {
            let tag = free.swap_remove(rng.below(free.len() as u64) as usize);
            let sectors = 1 + rng.below(16) as u32;
            let sector = rng.below(SECTORS - u64::from(sectors));
            let is_write = rng.chance(1, 2);
            if is_write {
                let bytes = vec![(step % 251) as u8 + 1; sectors as usize * 512];
                bench.kernel().buffers[usize::from(tag)][..bytes.len()].copy_from_slice(&bytes);
            }
            bench.request(tag, u32::from(is_write), sector, sectors);
        }
        if let Taken::Call(call) = bench.take() {
            let range = call.offset as usize..(call.offset + call.length) as usize;
            if call.operation == Operation::Write {
                disk[range].copy_from_slice(&bench.payload);
            } else {
                let bytes = disk[range].to_vec();
                for (index, piece) in bytes.chunks(1000).enumerate() {
                    bench.queue.put(&call, index as u64 * 1000, piece);
                }
                expected[call.cookie as usize] = Some((bytes.len(), bytes));
            }
            open.push(call);
        }
        if !open.is_empty() && rng.chance(1, 2) {
            let call = open.swap_remove(rng.below(open.len() as u64) as usize);
            bench.queue.finish(&call, Ok(())).expect("it is in hand");
            bench.kernel().refusals = rng.below(3) as u32;
        }
        // A kick brings the next turn; in between the answers wait.
        if bench.queue.take_signal() {
            continue;
        }
        let answers = std::mem::take(&mut bench.kernel().answers);
        for (tag, result) in answers {
            if let Some((length, bytes)) = expected[usize::from(tag)].take() {
                assert_eq!(result as usize, length, "replay with seed {seed}");
                let kernel = bench.kernel();
                assert!(kernel.buffers[usize::from(tag)][..length] == bytes, "seed {seed}");
            } else {
                assert!(result > 0, "replay with seed {seed}");
            }
            assert!(!free.contains(&tag), "answered once; replay with seed {seed}");
            free.push(tag);
        }
    }
}

/// Goal: the kernel reads our parameters where its header puts them. Method: the fields at their
/// offsets in `struct ublk_params`.
#[test]
fn parameters_lie_where_the_kernel_reads_them() {
    let disk = HostDisk { length: LENGTH, block_size: BlockSize::DEFAULT, read_only: false };
    let parameters = disk.parameters();
    let word = |at: usize| u32::from_ne_bytes(parameters[at..at + 4].try_into().expect("four"));
    assert_eq!((word(0) as usize, word(4)), (parameters.len(), 3));
    assert_eq!(word(8), 1 << 2 | 1 << 3, "a volatile cache, and FUA");
    assert_eq!(parameters[12..14], [9, 12]);
    assert_eq!(word(16), BUFFER_BYTES / 512);
    assert_eq!(u64::from(word(24)), SECTORS);
    assert_eq!((word(44), word(48), word(52)), (4096, DISCARD_SECTORS_MAX, DISCARD_SECTORS_MAX));
    assert_eq!(parameters[56], 1);
}
