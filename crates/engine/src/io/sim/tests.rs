//! What only simulated disks promise: crashes that keep their word, faults, and replay.

use super::*;
use crate::io::{Persistence, run_alone};

const LENGTH: u64 = 64 << 10;
const SEEDS: u64 = 200;

fn write(io: &mut SimIo, disk: DiskId, offset: u64, bytes: &[u8], durable: bool) {
    let mut buffer = io.buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    run_alone(io, IoOperation::Write { disk, offset, buffer, durable }).unwrap();
}

fn read(io: &mut SimIo, disk: DiskId, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
    let buffer = io.buffer(length);
    let done = run_alone(io, IoOperation::Read { disk, offset, buffer })?;
    Ok(done.buffer.unwrap().to_vec())
}

/// What each sector may hold after a crash: its durable content and every later one.
struct Model {
    possible: Vec<Vec<u8>>,
}

impl Model {
    fn write(&mut self, sectors: std::ops::Range<usize>, mark: u8, durable: bool) {
        for possible in &mut self.possible[sectors] {
            if durable {
                possible.clear();
            }
            possible.push(mark);
        }
    }
    fn sync(&mut self) {
        for possible in &mut self.possible {
            possible.drain(..possible.len() - 1);
        }
    }
}

/// Goal: a crash keeps what is durable, and each other sector holds its durable content or a later
/// one, whole; dropping everything leaves exactly the durable content or something a sync chose to
/// push early. Method: random writes, durable writes, zeroings and syncs, one at a time, against a
/// list of possible contents per sector.
#[test]
fn a_crash_keeps_what_is_durable() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        let sectors = (LENGTH / 512) as usize;
        let mut model = Model { possible: vec![vec![0]; sectors] };
        for step in 1..60u8 {
            let first = rng.below(sectors as u64 - 16) as usize;
            let range = first..first + 1 + rng.below(16) as usize;
            let (offset, length) = (first as u64 * 512, range.len() * 512);
            match rng.below(5) {
                0 => {
                    run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
                    model.sync();
                }
                1 => {
                    let (length, keep_allocated) = (length as u64, rng.chance(1, 2));
                    let zero = IoOperation::Zero { disk, offset, length, keep_allocated };
                    run_alone(&mut io, zero).unwrap();
                    model.write(range, 0, false);
                }
                roll => {
                    write(&mut io, disk, offset, &vec![step; length], roll == 2);
                    model.write(range, step, roll == 2);
                }
            }
        }
        let mode = if rng.chance(1, 2) { CrashMode::DropAll } else { CrashMode::KeepSome };
        io.crash(mode);
        let image = read(&mut io, disk, 0, LENGTH as usize).unwrap();
        for (index, sector) in image.chunks(512).enumerate() {
            let mark = sector[0];
            assert!(sector.iter().all(|byte| *byte == mark), "sector {index} tore, SEED={seed}");
            let possible = &model.possible[index];
            assert!(possible.contains(&mark), "{index}: {mark} not in {possible:?}, SEED={seed}");
        }
    }
}

/// Goal: a write torn by a crash mixes old and new sectors for some seed, and is dropped wholly by
/// `DropAll`. Method: one unsynced write of many sectors per seed.
#[test]
fn unsynced_writes_tear() {
    let mut torn = 0;
    for seed in 0..SEEDS {
        for mode in [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll] {
            let mut io = SimIo::new(seed);
            let disk = io.add_disk("disk", LENGTH);
            write(&mut io, disk, 512, &[9; 8192], false);
            io.crash(mode);
            let kept = io.peek(disk).iter().filter(|byte| **byte == 9).count();
            match mode {
                CrashMode::DropAll => assert_eq!(kept, 0),
                CrashMode::KeepAll => assert_eq!(kept, 8192),
                CrashMode::KeepSome => torn += usize::from(kept > 0 && kept < 8192),
            }
        }
    }
    assert!(torn > 20, "only {torn} of {SEEDS} crashes tore the write");
}

/// Goal: operations in flight at a crash vanish, and may leave a part. Method: crashes before any
/// wait, and looks for their tokens and bytes.
#[test]
fn a_crash_drops_what_is_in_flight() {
    let mut partial = 0;
    for seed in 0..SEEDS {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        let mut buffer = io.buffer(4096);
        buffer.fill(7);
        io.submit(Token(1), IoOperation::Write { disk, offset: 0, buffer, durable: true });
        io.crash(CrashMode::KeepSome);
        assert_eq!(io.in_flight(), 0);
        let mut done = Vec::new();
        io.wait(Nanos::from_millis(1), &mut done);
        assert!(done.is_empty());
        partial += usize::from(io.peek(disk).contains(&7));
    }
    assert!(partial > 20 && partial < SEEDS as usize);
}

/// Goal: mapped stores survive exactly as their persistence says. Method: stores through both
/// kinds of mapping, half of them persisted or synced, then `DropAll`.
#[test]
fn mapped_stores_obey_their_persistence() {
    let mut io = SimIo::new(3);
    let (file, memory) = (io.add_disk("file", LENGTH), io.add_persistent_memory("nvm", LENGTH));
    for disk in [file, memory] {
        let mut mapping = io.map(disk).unwrap();
        mapping.write(100, b"first");
        mapping.persist(100, 5);
        if mapping.persistence() == Persistence::Sync {
            run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
        }
        mapping.write(4000, b"second");
        assert_eq!(mapping.bytes(4000, 6), b"second");
        assert_eq!(read(&mut io, disk, 4000, 6).unwrap(), b"second");
        drop(mapping);
        io.crash(CrashMode::DropAll);
        let mapping = io.map(disk).unwrap();
        assert_eq!((mapping.bytes(100, 5), mapping.bytes(4000, 6)), (&b"first"[..], &[0; 6][..]));
    }
}

/// Goal: every fault shows as it should and then ends. Method: one of each against one disk.
#[test]
fn faults_strike_once() {
    let mut io = SimIo::new(4);
    let disk = io.add_disk("disk", LENGTH);
    write(&mut io, disk, 0, &[1; 8192], true);
    io.fail_next(disk, OperationKind::Read, Errno::IO);
    assert_eq!(read(&mut io, disk, 0, 4096), Err(Errno::IO.into()));
    io.fail_reads(disk, 4096, 512);
    assert_eq!(read(&mut io, disk, 0, 4096).unwrap(), vec![1; 4096]);
    assert_eq!(read(&mut io, disk, 4000, 4096), Err(Errno::IO.into()));
    write(&mut io, disk, 4096, &[2; 512], true);
    assert_eq!(read(&mut io, disk, 4096, 512).unwrap(), vec![2; 512]);
    io.set_full(disk, true);
    let zero = IoOperation::Zero { disk, offset: 0, length: 512, keep_allocated: true };
    assert_eq!(run_alone(&mut io, zero).err(), Some(Errno::NOSPC.into()));
    io.set_full(disk, false);
    io.lose_next_write(disk);
    write(&mut io, disk, 0, &[3; 512], false);
    io.misdirect_next_write(disk, 16384);
    write(&mut io, disk, 0, &[4; 512], false);
    let image = io.peek(disk);
    assert_eq!((image[0], image[16384]), (1, 4));
    io.corrupt(disk, 0, 512);
    assert_ne!(io.peek(disk)[..512], image[..512]);
}

/// Goal: a failed sync loses what it covered for good. Method: fail a sync, let the next succeed,
/// then crash; over many seeds the bytes must sometimes be gone.
#[test]
fn a_failed_sync_is_not_made_good_by_the_next() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        write(&mut io, disk, 0, &[5; 512], false);
        io.fail_next(disk, OperationKind::Sync, Errno::IO);
        assert!(run_alone(&mut io, IoOperation::Sync { disk }).is_err());
        assert_eq!(read(&mut io, disk, 0, 512).unwrap(), vec![5; 512]);
        run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
        io.crash(CrashMode::DropAll);
        lost += usize::from(io.peek(disk)[0] == 0);
    }
    assert!(lost > 20);
}

/// Goal: a failed sync drops durable writes in flight, by chance, whose own syncs then end well, as
/// those of a file do; without that they are durable once they end. Method: two durable writes at
/// once, of which the own sync of one fails behind a volatile write; then a power cut.
#[test]
fn a_failed_sync_drops_durable_writes_in_flight() {
    let mut dropped = 0;
    for seed in 0..SEEDS {
        for is_dropping in [false, true] {
            let mut io = SimIo::new(seed);
            let disk = io.add_disk("disk", LENGTH);
            io.set_dropping(is_dropping);
            io.fail_next_own_sync(disk, Errno::IO);
            write(&mut io, disk, 8192, &[1; 4096], false);
            for (token, offset) in [(0, 0), (1, 4096)] {
                let mut buffer = io.buffer(4096);
                buffer.fill(7);
                let write = IoOperation::Write { disk, offset, buffer, durable: true };
                io.submit(Token(token), write);
            }
            let mut done = Vec::new();
            while done.len() < 2 {
                io.wait(Nanos::NEVER, &mut done);
            }
            let failed = done.iter().filter(|done| done.result.is_err());
            assert!(failed.clone().all(|done| done.is_sync_failed), "SEED={seed}");
            assert_eq!(failed.count(), 1, "SEED={seed}");
            let well = done.iter().position(|done| done.result.is_ok()).expect("one of two");
            let offset = done[well].token.0 * 4096;
            assert_eq!(read(&mut io, disk, offset, 4096).unwrap(), [7; 4096], "SEED={seed}");
            io.crash(CrashMode::DropAll);
            let is_there = read(&mut io, disk, offset, 4096).unwrap() == [7; 4096];
            assert!(is_there || is_dropping && well == 1, "SEED={seed}");
            dropped += u64::from(!is_there);
        }
    }
    assert!((SEEDS / 12..SEEDS / 2).contains(&dropped), "{dropped}");
}

/// Goal: a fault waits for as many operations of its kind as it is told. Method: reads, counted.
#[test]
fn a_fault_comes_after_so_many() {
    let mut io = SimIo::new(1);
    let disk = io.add_disk("disk", LENGTH);
    io.fail_after(disk, 2, OperationKind::Read, Errno::IO);
    write(&mut io, disk, 0, &[1; 512], false);
    let ends: Vec<bool> = (0..4).map(|_| read(&mut io, disk, 0, 512).is_ok()).collect();
    assert_eq!(ends, [true, true, false, true]);
}

/// Goal: a stuck disk delays only its own operations. Method: one stuck and one free disk.
#[test]
fn a_stuck_disk_delays_only_itself() {
    let mut io = SimIo::new(5);
    let (stuck, free) = (io.add_disk("stuck", LENGTH), io.add_disk("free", LENGTH));
    io.set_stuck(stuck, true);
    io.submit(Token(1), IoOperation::Sync { disk: stuck });
    io.submit(Token(2), IoOperation::Sync { disk: free });
    let mut done = Vec::new();
    for _ in 0..20 {
        let deadline = io.now() + Nanos::from_secs(1);
        io.wait(deadline, &mut done);
    }
    assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), [Token(2)]);
    assert!(io.now() >= Nanos::from_secs(1), "time must pass while a disk is stuck");
    io.set_stuck(stuck, false);
    while io.in_flight() > 0 {
        io.wait(Nanos::NEVER, &mut done);
    }
    assert_eq!(done.len(), 2);
}

/// Goal: a write that is in flight when its disk is truncated extends it again, as it does with a
/// file, with zeros before it; a discard does not. Method: both, submitted before.
#[test]
fn what_is_in_flight_extends_a_truncated_disk() {
    for seed in 0..SEEDS {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        write(&mut io, disk, 0, &[7; 8192], true);
        let mut buffer = io.buffer(512);
        buffer.fill(8);
        let discard = IoOperation::Discard { disk, offset: 8192, length: 4096 };
        io.submit(Token(1), discard);
        io.submit(Token(2), IoOperation::Write { disk, offset: 4096, buffer, durable: false });
        io.resize_disk(disk, 512).unwrap();
        let mut done = Vec::new();
        while io.in_flight() > 0 {
            io.wait(Nanos::NEVER, &mut done);
        }
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}; SEED={seed}");
        assert_eq!(io.disk_length(disk), 4608, "SEED={seed}");
        io.resize_disk(disk, 8192).unwrap();
        let bytes = read(&mut io, disk, 0, 8192).unwrap();
        let expected = [(7, 512), (0, 3584), (8, 512), (0, 3584)];
        let expected: Vec<u8> =
            expected.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
        assert!(bytes == expected, "SEED={seed}");
    }
}

/// Goal: a seed fixes everything. Method: the same calls twice; ends, order and times must agree.
#[test]
fn the_same_seed_replays() {
    let run = |seed| {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LENGTH);
        let mut ends = Vec::new();
        for step in 0..200u64 {
            let buffer = io.buffer(512);
            let offset = step % 100 * 512;
            io.submit(Token(step), IoOperation::Write { disk, offset, buffer, durable: false });
            let mut done = Vec::new();
            io.wait(Nanos::ZERO, &mut done);
            ends.push((io.now(), done.iter().map(|done| done.token).collect::<Vec<_>>()));
        }
        ends
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
