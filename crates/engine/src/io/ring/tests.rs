//! A ring that is asked for more than it takes, and a kernel that takes less than it is offered.

use super::RingIo;
use crate::io::{DiskId, Io, IoDone, IoOperation, OpenMode, Token, open_disk, run_alone};
use layby_types::Nanos;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::BTreeMap;

const PAGE: usize = 4096;

/// A ring with disks of two pages, each full of its number; `None` where there is no ring.
struct Bench {
    io: RingIo,
    directory: tempfile::TempDir,
    done: Vec<IoDone>,
}

impl Bench {
    fn new() -> Option<Bench> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Some(Bench { io: RingIo::new(0).ok()?, directory, done: Vec::new() })
    }

    fn attach(&mut self, number: u8) -> DiskId {
        let path = self.directory.path().join(format!("disk-{number}"));
        let length = 2 * PAGE;
        std::fs::write(&path, vec![number; length]).expect("a file");
        let mode = OpenMode { create_length: Some(length as u64), ..OpenMode::default() };
        self.io.attach_disk(open_disk(&path, mode).expect("the file"))
    }

    fn read(&mut self, token: u64, disk: DiskId, offset: u64, length: usize) {
        let buffer = self.io.buffer(length);
        self.io.submit(Token(token), IoOperation::Read { disk, offset, buffer });
    }

    fn write(&mut self, token: u64, disk: DiskId, durable: bool) {
        let mut buffer = self.io.buffer(PAGE);
        buffer.fill(token as u8);
        self.io.submit(Token(token), IoOperation::Write { disk, offset: 0, buffer, durable });
    }

    fn sync(&mut self, token: u64, disk: DiskId) {
        self.io.submit(Token(token), IoOperation::Sync { disk });
    }

    /// Takes so many of the kernel's ends, before the ring sees them: slots and results by token.
    fn intercept(&mut self, count: usize) -> BTreeMap<u64, (u32, i32)> {
        let mut ends = BTreeMap::new();
        while ends.len() < count {
            self.io.enter(Nanos::NEVER);
            while let Some((slot, result)) = self.io.kernel.next_end() {
                let token = self.io.flights.get_mut(slot as u32).token.0;
                ends.insert(token, (slot as u32, result));
            }
        }
        ends
    }

    /// Waits until so many have ended in all.
    fn settle(&mut self, count: usize) {
        while self.done.len() < count {
            self.io.wait(Nanos::NEVER, &mut self.done);
        }
        assert_eq!(self.done.len(), count, "each operation ends once");
    }

    /// Takes the kernel's next end, which is said to have been this error.
    fn fail(&mut self, errno: Errno) {
        let (slot, _) = loop {
            self.io.enter(Nanos::NEVER);
            if let Some(end) = self.io.kernel.next_end() {
                break end;
            }
        };
        self.io.on_flight(slot as u32, -errno.raw_os_error(), &mut self.done);
    }
}

/// Goal: a shard takes more operations than any bound of the ring: each ends once, with its bytes.
/// Method: 70,000 reads of a byte, of two disks, before the first wait.
#[test]
fn any_number_of_operations_may_be_submitted() {
    const READS: u64 = 70_000;
    let Some(mut bench) = Bench::new() else { return };
    let disks = [bench.attach(1), bench.attach(2)];
    for read in 0..READS {
        bench.read(read, disks[(read % 2) as usize], read % 4096, 1);
    }
    bench.settle(READS as usize);
    for done in &bench.done {
        assert_eq!(done.result, Ok(1));
        let bytes = done.buffer.as_ref().expect("a read's buffer");
        assert_eq!(bytes[0], 1 + (done.token.0 % 2) as u8);
    }
    bench.done.sort_unstable_by_key(|done| done.token.0);
    assert!(bench.done.iter().map(|done| done.token.0).eq(0..READS));
}

/// Goal: what waits begins in order, and when its disk is detached; another disk's operations do
/// not wait for it. Method: a ring that takes one operation of a disk at once; writes to one page,
/// of which the last one counts; then as many again, and the disk detached.
#[test]
fn what_waits_begins_in_order() {
    let Some(mut bench) = Bench::new() else { return };
    bench.io.set_disk_flights_max(1);
    let (disk, other) = (bench.attach(1), bench.attach(2));
    (0..100).for_each(|token| bench.write(token, disk, false));
    assert!(bench.io.would_wait(disk) && !bench.io.would_wait(other));
    bench.read(100, other, 0, PAGE);
    bench.settle(101);
    let order = bench.done.drain(..).map(|done| done.token.0).filter(|token| *token < 100);
    assert!(order.eq(0..100), "in the order of their submission");
    let buffer = bench.io.buffer(PAGE);
    let read = run_alone(&mut bench.io, IoOperation::Read { disk, offset: 0, buffer });
    assert_eq!(read.expect("a read").buffer.expect("its buffer")[0], 99);
    (0..100).for_each(|token| bench.write(token, disk, false));
    bench.io.detach_disk(disk);
    bench.settle(100);
    assert!(bench.done.iter().all(|done| done.result == Ok(PAGE)));
}

/// Goal: a number of a detached disk is given to no other while an entry that names it is still to
/// be handed over. Method: a kernel that takes an entry at a time, and one that takes none until
/// the next disk is attached; reads of the first disk, which must have its bytes.
#[test]
fn a_detached_disk_keeps_its_number_while_it_is_named() {
    for most in [1, 0] {
        let Some(mut bench) = Bench::new() else { return };
        let disk = bench.attach(1);
        (0..3).for_each(|token| bench.read(token, disk, 0, PAGE));
        bench.io.kernel.most = most;
        bench.io.detach_disk(disk);
        let other = bench.attach(2);
        bench.io.kernel.most = u32::MAX;
        bench.read(3, other, 0, PAGE);
        bench.settle(4);
        for done in &bench.done {
            assert_eq!(done.result, Ok(PAGE), "{most}");
            let expected = if done.token.0 < 3 { 1 } else { 2 };
            let bytes = done.buffer.as_ref().expect("a read's buffer");
            assert!(bytes.iter().all(|byte| *byte == expected), "{most}: {:?}", done.token);
        }
    }
}

/// Goal: where the sync of a durable write fails, its end says so, since the kernel does not tell
/// the next sync; where the write itself fails, it does not. Method: an error in the place of the
/// kernel's answer, then the kernel's answer to the repetition, or an error again; and a write that
/// is not durable, which nothing repeats.
#[test]
fn a_durable_write_says_whether_its_sync_failed() {
    for (durable, is_repeated_well) in [(true, true), (true, false), (false, false)] {
        let Some(mut bench) = Bench::new() else { return };
        let disk = bench.attach(1);
        bench.write(7, disk, durable);
        bench.fail(Errno::IO);
        assert_eq!(bench.done.is_empty(), durable, "it is repeated where it may be the sync");
        if durable && !is_repeated_well {
            bench.fail(Errno::NOSPC);
        }
        bench.settle(1);
        let done = &bench.done[0];
        assert_eq!(done.result, Err(Errno::IO.into()), "the first error counts");
        assert_eq!(done.is_sync_failed, is_repeated_well);
        assert!(done.buffer.is_some());
    }
}

/// Goal: while the sync of a durable write may have failed, no sync and no other durable write of
/// its disk ends well, since the kernel has told its error by then: they end with the write's
/// error where its repetition shows that the sync failed, and well where the write failed itself.
/// Nothing else is held. Method: the kernel's ends in this order: an error in the place of one, all
/// others', then that of the repetition, or an error again.
#[test]
fn nothing_is_durable_while_a_sync_may_have_failed() {
    for is_repeated_well in [true, false] {
        let Some(mut bench) = Bench::new() else { return };
        let (disk, other) = (bench.attach(1), bench.attach(2));
        bench.write(1, disk, true);
        bench.write(2, disk, true);
        bench.sync(3, disk);
        bench.write(4, disk, false);
        bench.sync(5, other);
        let ends = bench.intercept(5);
        bench.io.on_flight(ends[&1].0, -Errno::IO.raw_os_error(), &mut bench.done);
        for (slot, result) in (2..=5).map(|token| ends[&token]) {
            bench.io.on_flight(slot, result, &mut bench.done);
        }
        assert!(bench.done.iter().map(|done| done.token.0).eq([4, 5]), "{:?}", bench.done);
        if !is_repeated_well {
            bench.fail(Errno::NOSPC);
        }
        bench.settle(5);
        let held = |well| if is_repeated_well { Err(Errno::IO.into()) } else { Ok(well) };
        let results = bench.done[2..].iter().map(|done| (done.token.0, done.result));
        let expected = [(1, Err(Errno::IO.into())), (2, held(PAGE)), (3, held(0))];
        assert_eq!(results.collect::<Vec<_>>(), expected);
        let said = bench.done.iter().filter(|done| done.is_sync_failed).map(|done| done.token.0);
        assert!(said.eq(is_repeated_well.then_some(1)), "one end tells of it");
    }
}

/// Goal: a start right behind an orderly stop finds no file locked, whenever the kernel ends the
/// ring. Method: rings that have read from two files end; each time both can be locked at once.
#[test]
fn a_ring_that_has_ended_locks_no_file() {
    for round in 0..50 {
        let Some(mut bench) = Bench::new() else { return };
        let disks = [bench.attach(1), bench.attach(2)];
        for (token, disk) in (0..).zip(disks) {
            bench.read(token, disk, 0, PAGE);
        }
        bench.settle(2);
        let Bench { io, directory, .. } = bench;
        drop(io);
        for number in 1..=2 {
            let file = std::fs::File::open(directory.path().join(format!("disk-{number}")));
            let file = file.expect("the test's own");
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(locked, Ok(()), "round {round}, disk {number}");
        }
    }
}
