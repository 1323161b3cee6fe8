//! What only the power cut promises: nothing more than what was durable survives, and no less.

use super::*;
use crate::io::{CrashMode, HostIo, IoChoice, OpenMode, Persistence, SimIo, open_disk, run_alone};
use layby_types::Rng;
use rustix::io::Errno;

const LENGTH: u64 = 64 << 10;

fn write(io: &mut dyn Io, disk: DiskId, offset: u64, bytes: &[u8], durable: bool) {
    let mut buffer = io.buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    run_alone(io, IoOperation::Write { disk, offset, buffer, durable }).unwrap();
}

fn read(io: &mut dyn Io, disk: DiskId) -> Vec<u8> {
    let buffer = io.buffer(LENGTH as usize);
    run_alone(io, IoOperation::Read { disk, offset: 0, buffer }).unwrap().buffer.unwrap().to_vec()
}

/// Goal: a power cut leaves exactly the durable bytes while the overlay has room, and always lets
/// readers see the newest. Method: random changes one at a time against two plain vectors.
#[test]
fn a_power_cut_leaves_what_was_durable() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut sim = SimIo::new(seed);
        let disk = sim.add_disk("disk", LENGTH);
        let mut io = VolatileIo::new(sim, VOLATILE_BYTES_DEFAULT);
        let (mut seen, mut durable) = (vec![0; LENGTH as usize], vec![0; LENGTH as usize]);
        for step in 1..80u8 {
            let start = rng.below(LENGTH - 5000);
            let length = 1 + rng.below(5000);
            let range = start as usize..(start + length) as usize;
            match rng.below(5) {
                0 => {
                    run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
                    durable.clone_from(&seen);
                }
                1 => {
                    let (offset, keep_allocated) = (start, false);
                    let zero = IoOperation::Zero { disk, offset, length, keep_allocated };
                    run_alone(&mut io, zero).unwrap();
                    seen[range].fill(0);
                }
                roll => {
                    write(&mut io, disk, start, &vec![step; length as usize], roll == 2);
                    seen[range.clone()].fill(step);
                    if roll == 2 {
                        durable[range].fill(step);
                    }
                }
            }
        }
        assert!(read(&mut io, disk) == seen, "replay with SEED={seed}");
        let mut sim = io.into_inner();
        assert!(read(&mut sim, disk) == durable, "replay with SEED={seed}");
        sim.crash(CrashMode::DropAll);
        assert!(read(&mut sim, disk) == durable, "what is durable is so below too, SEED={seed}");
    }
}

/// Goal: mapped stores survive a power cut exactly as far as their persistence says. Method: a
/// stored and persisted (or synced) half, and a stored half, on files and persistent memory.
#[test]
fn mapped_stores_die_unless_durable() {
    let mut sim = SimIo::new(1);
    let disks = [sim.add_disk("file", LENGTH), sim.add_persistent_memory("nvm", LENGTH)];
    let mut io = VolatileIo::new(sim, VOLATILE_BYTES_DEFAULT);
    let mut mappings = Vec::new();
    for disk in disks {
        write(&mut io, disk, 0, b"before", false);
        let mut mapping = io.map(disk).unwrap();
        assert_eq!(mapping.bytes(0, 6), b"before");
        mapping.write(100, b"durable");
        mapping.persist(100, 7);
        if mapping.persistence() == Persistence::Sync {
            run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
        }
        mapping.write(104, b"volatile");
        assert_eq!(mapping.bytes(100, 12), b"duravolatile");
        assert_eq!(&read(&mut io, disk)[100..112], b"duravolatile");
        mappings.push(mapping);
    }
    drop(mappings);
    let mut sim = io.into_inner();
    for disk in disks {
        assert_eq!(&read(&mut sim, disk)[100..112], b"durable\0\0\0\0\0");
    }
}

/// Goal: memory stays within the limit, and what had to go through is still read right. Method:
/// many more bytes than the limit, some overwritten, in flight all at once.
#[test]
fn the_overlay_stays_within_its_limit() {
    let mut sim = SimIo::new(2);
    let disk = sim.add_disk("disk", LENGTH);
    let mut io = VolatileIo::new(sim, VOLATILE_BYTES_MIN);
    let mut expected = vec![0; LENGTH as usize];
    for round in 1..4u8 {
        for offset in (0..LENGTH).step_by(1024) {
            let mut buffer = io.buffer(1024);
            buffer.fill(round);
            let write = IoOperation::Write { disk, offset, buffer, durable: false };
            io.submit(Token(offset), write);
        }
        let mut done = Vec::new();
        while done.len() < (LENGTH / 1024) as usize {
            io.wait(Nanos::NEVER, &mut done);
            assert!(io.shared(disk).overlay.held_bytes() <= VOLATILE_BYTES_MIN + 1024);
        }
        expected.fill(round);
        assert!(read(&mut io, disk) == expected);
    }
}

/// Goal: a full or failing disk is reported by the Sync that meets it and loses nothing. Method:
/// fullness and a failed write below, then a sync that succeeds.
#[test]
fn a_sync_reports_what_cannot_go_through() {
    let mut sim = SimIo::new(3);
    let disk = sim.add_disk("disk", LENGTH);
    let mut io = VolatileIo::new(sim, VOLATILE_BYTES_DEFAULT);
    write(&mut io, disk, 10, b"kept", false);
    io.inner_mut().set_full(disk, true);
    let error = run_alone(&mut io, IoOperation::Sync { disk }).unwrap_err();
    assert_eq!(error, Errno::NOSPC.into());
    io.inner_mut().set_full(disk, false);
    assert_eq!(&read(&mut io, disk)[10..14], b"kept");
    run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
    assert_eq!(&read(&mut io.into_inner(), disk)[10..14], b"kept");
}

/// Goal: the wrapper works over a real host, and detaching lets nothing be lost. Method: a file
/// written, looked at behind the wrapper's back, then detached.
#[test]
fn a_file_changes_only_when_synced() {
    for choice in [IoChoice::Ring, IoChoice::Pool] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mode = OpenMode { create_length: Some(LENGTH), ..OpenMode::default() };
        let (mut host, _, _) = HostIo::start(choice, 0).unwrap();
        let disk = host.attach_disk(open_disk(&path, mode).unwrap());
        let mut io = VolatileIo::new(host, VOLATILE_BYTES_DEFAULT);
        write(&mut io, disk, 0, b"one", false);
        assert_eq!(&std::fs::read(&path).unwrap()[..3], b"\0\0\0");
        run_alone(&mut io, IoOperation::Sync { disk }).unwrap();
        assert_eq!(&std::fs::read(&path).unwrap()[..3], b"one");
        write(&mut io, disk, 0, b"two", false);
        assert_eq!(&std::fs::read(&path).unwrap()[..3], b"one");
        io.detach_disk(disk);
        assert_eq!(&std::fs::read(&path).unwrap()[..3], b"two");
    }
}

/// Goal: what readers saw last stays, though an older durable write of the same place is still on
/// its way when a Sync begins. Method: both writes and the Sync in flight at once, over many seeds.
#[test]
fn an_older_durable_write_never_lands_on_top() {
    for seed in 0..200 {
        let mut sim = SimIo::new(seed);
        let disk = sim.add_disk("disk", LENGTH);
        let mut io = VolatileIo::new(sim, VOLATILE_BYTES_DEFAULT);
        for (token, durable) in [(1, true), (2, false)] {
            let mut buffer = io.buffer(512);
            buffer.fill(token as u8);
            io.submit(Token(token), IoOperation::Write { disk, offset: 0, buffer, durable });
        }
        io.submit(Token(3), IoOperation::Sync { disk });
        let mut done = Vec::new();
        while done.len() < 3 {
            io.wait(Nanos::NEVER, &mut done);
        }
        assert_eq!(read(&mut io, disk)[0], 2, "replay with SEED={seed}");
        assert_eq!(read(&mut io.into_inner(), disk)[0], 2, "replay with SEED={seed}");
    }
}
