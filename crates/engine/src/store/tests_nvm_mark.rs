//! Rot of what the NVM level has acknowledged as durable, when nothing follows it.

use super::tests_faults::{find, nvm_config};
use super::tests_log::{LENGTH, content, key};
use super::{NvmStore, SeqSource, StoreEvent, Ticket};
use crate::io::{CrashMode, Io, SimIo};
use layby_types::{Nanos, Seq, Slot};

const BLOCK: u64 = 4096;
const SECOND: Nanos = Nanos::from_millis(1000);

/// Runs the store until it asks for nothing within a second.
fn run(io: &mut SimIo, nvm: &mut NvmStore) -> Vec<StoreEvent> {
    let (mut events, until) = (Vec::new(), io.now() + SECOND);
    while !nvm.is_idle() || nvm.next_deadline() < until {
        let mut done = Vec::new();
        io.wait(nvm.next_deadline().min(until), &mut done);
        done.into_iter().for_each(|done| nvm.on_io(io, done));
        let now = io.now();
        nvm.on_tick(io, now, u64::MAX);
        nvm.take_events(&mut events);
    }
    nvm.take_events(&mut events);
    events
}

/// Goal: rot of a block whose store was acknowledged as durable is an error after a power cut, and
/// never taken for a torn write, though no sync follows: on persistent memory at once and later, on
/// a file half a second later. Method: one durable store; the power cut and the rot at once, or
/// when the store asks for nothing more.
#[test]
fn rot_behind_a_durable_store_is_named() {
    for (seed, is_persistent, waits) in [(1, true, false), (2, true, true), (3, false, true)] {
        let mut io = SimIo::new(seed);
        let disk = match is_persistent {
            true => io.add_persistent_memory("nvm", LENGTH),
            false => io.add_disk("nvm", LENGTH),
        };
        NvmStore::format(&mut io, &nvm_config(disk), 77).expect("large enough");
        let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
        let (mut nvm, _) = opened.expect("just formatted");
        let entry = (Slot(0), key(0), true);
        nvm.store(&mut io, Ticket(1), &[entry], &content(70), true);
        if waits {
            run(&mut io, &mut nvm);
            assert_eq!(nvm.next_deadline(), Nanos::NEVER, "the mark is written once");
        }
        drop(nvm);
        io.crash(CrashMode::DropAll);
        let data = find(&io, disk, 70);
        io.corrupt(disk, data, BLOCK);
        let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
        let (nvm, recovered) = opened.expect("rotten data does not stop the start");
        let entry =
            recovered.entries.first().unwrap_or_else(|| panic!("seed {seed}: {recovered:?}"));
        let info = nvm.read(entry.slot).expect_err("it is rotten");
        assert_eq!((info.offset, info.key), (data, Some(key(0))), "seed {seed}");
    }
}

/// Goal: while stores go on without a pause, the mark follows them, at half a second and not at
/// each. Method: three seconds of durable stores on persistent memory, a hundred each; bytes that
/// are no data and no headers.
#[test]
fn the_mark_follows_stores_twice_a_second() {
    let mut io = SimIo::new(4);
    let disk = io.add_persistent_memory("nvm", LENGTH);
    NvmStore::format(&mut io, &nvm_config(disk), 77).expect("large enough");
    let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
    let (mut nvm, _) = opened.expect("just formatted");
    let mut marks = 0;
    for round in 0..300_u64 {
        let entry = (Slot(0), key(0), true);
        nvm.store(&mut io, Ticket(round), &[entry], &content(round as u8), true);
        io.pass(Nanos::from_millis(10));
        let before = nvm.counters().bytes_written;
        if nvm.next_deadline() <= io.now() {
            let now = io.now();
            nvm.on_tick(&mut io, now, u64::MAX);
        }
        marks += (nvm.counters().bytes_written - before) / 16;
    }
    assert!((4..=7).contains(&marks), "{marks} marks");
}
