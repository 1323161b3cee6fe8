//! Backing stores whose volume ends in the middle of a block, and syncs of theirs that fail.
//!
//! How: backing stores alone, over a simulated disk.

use super::*;
use crate::io::{OperationKind, SimIo};
use layby_types::{Nanos, Stripes};
use rustix::io::Errno;

const BLOCK: u64 = 4096;
/// Two blocks and five sectors.
const LENGTH: u64 = 2 * BLOCK + 5 * 512;

fn run(
    io: &mut SimIo,
    home: &mut HomeBacking,
    operation: BackingOperation<Buffer>,
) -> BackingDone<Buffer> {
    home.submit(io, 7, operation);
    loop {
        if let Some(done) = home.poll() {
            return done;
        }
        let mut ended = Vec::new();
        io.wait(Nanos::NEVER, &mut ended);
        ended.into_iter().for_each(|done| home.on_io(io, done));
    }
}

fn filled(io: &mut SimIo, blocks: u64, value: u8) -> Buffer {
    let mut buffer = io.buffer((blocks * BLOCK) as usize);
    buffer.fill(value);
    buffer
}

/// Goal: whole blocks can be written, zeroed and looked at where a volume and its home end in the
/// middle of the last one; nothing beyond the volume is touched where the home goes on. Method: a
/// home of the volume's length and a longer one, compared byte by byte.
#[test]
fn a_volume_may_end_in_the_middle_of_a_block() {
    for beyond in [0, BLOCK] {
        let mut io = SimIo::new(1);
        let disk = io.add_disk("home", LENGTH + beyond);
        let file = FileBacking::new(disk, "home".into(), 1, LENGTH);
        let mut home = HomeBacking::File(file);
        let buffer = filled(&mut io, 2, 3);
        let write = BackingOperation::Write { offset: BLOCK, buffer, durable: true };
        let done = run(&mut io, &mut home, write);
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.buffer.expect("it comes back").len() as u64, 2 * BLOCK);
        let holds = |io: &SimIo, value: u8| {
            let bytes = io.peek(disk);
            assert!(bytes[BLOCK as usize..LENGTH as usize].iter().all(|byte| *byte == value));
            assert!(bytes[LENGTH as usize..].iter().all(|byte| *byte == 0), "untouched");
        };
        holds(&io, 3);
        let buffer = filled(&mut io, 1, 9);
        let done = run(&mut io, &mut home, BackingOperation::Read { offset: 2 * BLOCK, buffer });
        let bytes = done.buffer.expect("it comes back");
        assert!(bytes[..5 * 512].iter().all(|byte| *byte == 3));
        let (offset, length) = (BLOCK, 2 * BLOCK);
        let done = run(&mut io, &mut home, BackingOperation::Extents { offset, length });
        let covered: u64 = done.extents.iter().map(|(_, length, _)| length).sum();
        assert_eq!((done.result, covered), (Ok(()), length));
        let zero = BackingOperation::Zero { offset, length, keep_allocated: false };
        assert_eq!(run(&mut io, &mut home, zero).result, Ok(()));
        holds(&io, 0);
    }
}

/// Goal: a home that has become shorter than its volume loses nothing silently. Method: a write
/// and reads within the volume and beyond the home, and a read of what is left of it.
#[test]
fn a_home_that_shrank_refuses() {
    let mut io = SimIo::new(2);
    let disk = io.add_disk("home", LENGTH);
    let file = FileBacking::new(disk, "home".into(), 1, LENGTH + BLOCK);
    let mut home = HomeBacking::File(file);
    let buffer = filled(&mut io, 1, 3);
    let write = BackingOperation::Write { offset: 2 * BLOCK, buffer, durable: true };
    assert!(run(&mut io, &mut home, write).result.is_err());
    for (block, blocks, result) in [
        (0, 2, Ok(())),
        (2, 1, Err(ErrorKind::Corrupt)),
        (3, 1, Err(ErrorKind::Corrupt)),
        (1, 3, Err(ErrorKind::Corrupt)),
    ] {
        let buffer = filled(&mut io, blocks, 9);
        let read = BackingOperation::Read { offset: block * BLOCK, buffer };
        assert_eq!(run(&mut io, &mut home, read).result, result, "block {block}");
    }
}

/// Goal: a backing store that takes no writes is not called corrupt, and one that cannot return
/// what is in it is; a refusal with a reason of its own keeps that. Method: each operation with
/// each error of the system.
#[test]
fn a_refused_write_is_no_damage() {
    let unwritable = ErrorKind::Unwritable;
    for (errno, of_change, of_read) in [
        (Errno::IO, unwritable, ErrorKind::Corrupt),
        (Errno::BADMSG, unwritable, ErrorKind::Corrupt),
        (Errno::NOSPC, ErrorKind::Full, ErrorKind::Full),
        (Errno::ACCESS, ErrorKind::Denied, ErrorKind::Denied),
        (Errno::PERM, ErrorKind::Denied, ErrorKind::Denied),
        (Errno::ROFS, ErrorKind::Denied, ErrorKind::Denied),
    ] {
        let mut io = SimIo::new(3);
        let disk = io.add_disk("home", 8 * BLOCK);
        let mut home = HomeBacking::File(FileBacking::new(disk, "home".into(), 1, 8 * BLOCK));
        let buffer = filled(&mut io, 1, 3);
        let write = BackingOperation::Write { offset: 0, buffer, durable: false };
        let zero = BackingOperation::Zero { offset: 0, length: BLOCK, keep_allocated: false };
        let buffer = filled(&mut io, 1, 3);
        let read = BackingOperation::Read { offset: 0, buffer };
        for (kind, operation, expected) in [
            (OperationKind::Write, write, of_change),
            (OperationKind::Zero, zero, of_change),
            (OperationKind::Sync, BackingOperation::Sync, of_change),
            (OperationKind::Read, read, of_read),
        ] {
            io.fail_next(disk, kind, errno);
            let done = run(&mut io, &mut home, operation);
            assert_eq!(done.result, Err(expected), "{kind:?}: {errno}");
        }
    }
}

/// Hands each end to the backing store whose tag its token has, and gives the ends of calls in
/// their order: whose, and how it ended.
fn run_all(io: &mut SimIo, homes: &mut [HomeBacking], mut calls: usize) -> Vec<(u64, End)> {
    let mut ends = Vec::new();
    while calls > 0 {
        let mut done = Vec::new();
        io.wait(Nanos::NEVER, &mut done);
        for done in done {
            let home = &mut homes[(done.token.0 >> TOKEN_BITS) as usize];
            home.on_io(io, done);
            while let Some(done) = home.poll() {
                ends.push((done.token, done.result));
                calls -= 1;
            }
        }
    }
    ends
}

type End = Result<(), ErrorKind>;

fn durable(io: &mut SimIo, offset: u64, blocks: u64) -> BackingOperation<Buffer> {
    BackingOperation::Write { offset, buffer: filled(io, blocks, 3), durable: true }
}

/// Goal: a durable write is not taken for durable where a sync of its backing store failed while it
/// was in flight, a sync or another durable write's own: the device may have dropped it, and said
/// so once, to the other. One that begins later is. Method: two calls in flight at once, the first
/// to end is the one whose sync fails; then a write alone.
#[test]
fn a_durable_write_beside_a_failed_sync_fails() {
    let mut seen = [0; 2];
    for seed in 0..32 {
        let is_sync = seed % 2 == 1;
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("home", 8 * BLOCK);
        let mut homes = [HomeBacking::File(FileBacking::new(disk, "home".into(), 0, 8 * BLOCK))];
        let first = if is_sync { BackingOperation::Sync } else { durable(&mut io, 0, 1) };
        homes[0].submit(&mut io, 1, first);
        let second = durable(&mut io, BLOCK, 1);
        homes[0].submit(&mut io, 2, second);
        match is_sync {
            true => io.fail_next(disk, OperationKind::Sync, Errno::IO),
            false => io.fail_next_own_sync(disk, Errno::IO),
        }
        let ends = run_all(&mut io, &mut homes, 2);
        let [(first, failed), (_, beside)] = ends[..] else { panic!("{ends:?}") };
        // Where the sync ends last, the write was durable before.
        if !is_sync || first == 1 {
            seen[usize::from(is_sync)] += 1;
            assert_eq!((failed, beside), (Err(ErrorKind::Unwritable), Err(ErrorKind::Retry)));
        }
        assert!(homes[0].is_lost());
        let later = durable(&mut io, 2 * BLOCK, 1);
        homes[0].submit(&mut io, 3, later);
        assert_eq!(run_all(&mut io, &mut homes, 1), [(3, Ok(()))], "seed {seed}");
    }
    assert!(seen[0] == 16 && seen[1] > 2, "{seen:?}");
}

/// Goal: the same where the sync that fails is another part's of a wide volume, also when one has
/// failed before. Method: a write over an edge of stripes beside the other part's sync, twice.
#[test]
fn a_durable_write_beside_another_parts_failed_sync_fails() {
    let (stripes, length) = (Stripes::new(64 << 10, 2).expect("within bounds"), 1 << 20);
    let mut seen = 0;
    for seed in 0..16 {
        let (mut io, loss) = (SimIo::new(seed), SharedLoss::default());
        let disk = io.add_disk("home", length);
        let mut homes = [0, 1].map(|index: u8| {
            let file = FileBacking::new(disk, "home".into(), index.into(), length);
            let plan = PartPlan { stripes, index, length, loss: loss.clone() };
            HomeBacking::Part(Box::new(PartHome::new(file, plan)))
        });
        for _ in 0..2 {
            homes[0].submit(&mut io, 1, BackingOperation::Sync);
            let write = durable(&mut io, (64 << 10) - BLOCK, 2);
            homes[1].submit(&mut io, 2, write);
            io.fail_next(disk, OperationKind::Sync, Errno::IO);
            let ends = run_all(&mut io, &mut homes, 2);
            if ends[0].0 == 1 {
                seen += 1;
                assert!(ends[0].1.is_err());
                assert_eq!(ends[1], (2, Err(ErrorKind::Retry)), "seed {seed}");
            }
            let write = durable(&mut io, (64 << 10) - BLOCK, 2);
            homes[1].submit(&mut io, 3, write);
            assert_eq!(run_all(&mut io, &mut homes, 1), [(3, Ok(()))], "seed {seed}");
        }
    }
    assert!(seen > 4, "{seen}");
}

/// A remote backing store that tells on which thread it is dropped.
struct Told(std::sync::mpsc::Sender<std::thread::ThreadId>);

impl Backing<Buffer> for Told {
    fn submit(&mut self, _: u64, _: BackingOperation<Buffer>) {
        unreachable!("nothing is asked of it")
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        None
    }

    fn name(&self) -> &str {
        "far"
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.0.send(std::thread::current().id()).expect("the test waits");
    }
}

/// Goal: a remote backing store whose threads hang in a device keeps no shard when its volume is
/// removed. Method: the thread that drops one which is detached.
#[test]
fn a_remote_home_ends_on_a_thread_of_its_own() {
    let (told, dropped_on) = std::sync::mpsc::channel();
    let home = HomeBacking::Remote(RemoteHome::new(Box::new(Told(told))));
    home.detach(&mut SimIo::new(1));
    let thread = dropped_on.recv().expect("it is dropped");
    assert_ne!(thread, std::thread::current().id(), "the shard's own thread waits for its end");
}
