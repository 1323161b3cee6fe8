//! Headers of failed batches that are overwritten while the device fails.

use super::tests_faults::{checkpoint_turn, put, stored};
use super::tests_log::{content, fresh, key, settle};
use super::{AppendEntry, LogStore, StoreEvent, Stream, Ticket};
use crate::io::{Io, SimIo};
use layby_types::{Nanos, Slot};
use rustix::io::Errno;

const BLOCK: u64 = 4096;

/// Goal: a failed batch's header whose overwriting was under way while a sync failed counts as not
/// overwritten: the device may have dropped the zeros. Method: such a batch; a sync that fails
/// beside the overwriting at once.
#[test]
fn a_header_overwritten_beside_a_failed_sync_is_overwritten_again() {
    let (mut io, disk, mut log) = fresh(5);
    stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
    io.do_and_fail_next(disk, 0, Errno::IO);
    append(&mut io, &mut log);
    let is_overwriting = |log: &LogStore| {
        let flight = log.streams[Stream::Write as usize].flight.as_ref();
        flight.is_none_or(|flight| flight.failed.is_some())
    };
    drive(&mut io, &mut log, is_overwriting);
    let before = log.counters().bytes_written;
    log.note_sync_failed();
    assert!(settle(&mut io, &mut log).iter().any(is_error));
    log.sync(&mut io, Ticket(3));
    let events = settle(&mut io, &mut log);
    assert!(!events.iter().any(is_error), "{events:?}");
    assert_eq!(log.counters().bytes_written, before + BLOCK, "once more");
}

/// Goal: the same of a header that a caller's sync overwrites, since the device had refused that:
/// the sync ends with an error, and later ones are still held, until a checkpoint has passed the
/// batch. Method: ends of operations alone, without the ticks that begin a checkpoint; then ticks.
#[test]
fn a_header_that_a_sync_overwrites_beside_a_failed_one_is_held() {
    let (mut io, disk, mut log) = fresh(5);
    stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
    io.do_and_fail_next(disk, super::log_void::TRIES_MAX, Errno::IO);
    append(&mut io, &mut log);
    drive(&mut io, &mut log, |log| log.streams[Stream::Write as usize].flight.is_none());
    assert!(log.voids.holds_syncs() && log.voids.is_idle());
    log.sync(&mut io, Ticket(2));
    assert!(!log.voids.is_idle(), "the sync tries once more");
    log.note_sync_failed();
    drive(&mut io, &mut log, |log| log.voids.is_idle());
    assert!(log.voids.holds_syncs(), "zeros beside a failed sync are none");
    assert!(settle(&mut io, &mut log).iter().any(is_error));
    log.sync(&mut io, Ticket(3));
    let events = settle(&mut io, &mut log);
    assert!(!log.voids.holds_syncs() && !events.iter().any(is_error), "{events:?}");
}

fn append(io: &mut SimIo, log: &mut LogStore) {
    let entry = AppendEntry { slot: Slot(1), key: key(1), dirty: true };
    log.append(io, Ticket(1), Stream::Write, &[entry], &content(51), true);
}

/// Hands out ends of operations until `is_there`; the store gets no tick.
fn drive(io: &mut SimIo, log: &mut LogStore, is_there: impl Fn(&LogStore) -> bool) {
    while !is_there(log) {
        let mut done = Vec::new();
        io.wait(Nanos::NEVER, &mut done);
        done.into_iter().for_each(|done| log.on_io(io, done));
    }
}

fn is_error(event: &StoreEvent) -> bool {
    match event {
        StoreEvent::Stored { result, .. } | StoreEvent::Synced { result, .. } => result.is_err(),
        _ => false,
    }
}

/// Goal: a refused trailer whose overwriting was under way while a sync failed counts as not
/// overwritten: the device may have dropped the zeros, and a start would take the trailer with the
/// chunks of the next checkpoint. Method: a sync that fails beside a trailer, and one that fails
/// beside its overwriting, or none; how often the trailer is overwritten until a checkpoint ends.
#[test]
fn a_trailer_overwritten_beside_a_failed_sync_is_overwritten_again() {
    for (fails, seed) in [(false, 6), (true, 7)] {
        let (mut io, _, mut log) = fresh(seed);
        stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
        // A chunk with its parity, then the trailer; later the trailer's zeros.
        for (blocks, is_failing) in [(4, true), (2, fails)] {
            let before = log.counters().bytes_checkpoint;
            log.checkpoint_now(false);
            let is_there =
                |log: &LogStore| log.counters().bytes_checkpoint == before + blocks * BLOCK;
            let has_come = (0..10_000).any(|_| {
                checkpoint_turn(&mut io, &mut log);
                is_there(&log)
            });
            assert!(has_come && super::log_checkpoint::is_running(&log), "{blocks} blocks");
            if is_failing {
                super::log_checkpoint::on_sync_failed(&mut log);
                let failed = (0..100).any(|_| checkpoint_turn(&mut io, &mut log));
                assert!(failed, "what was written last counts as failed");
            }
        }
        let before = log.counters().bytes_checkpoint;
        let has_ended = (0..10_000).any(|_| {
            checkpoint_turn(&mut io, &mut log);
            log.counters().checkpoints == 1
        });
        assert!(has_ended, "a checkpoint goes on");
        let blocks = (log.counters().bytes_checkpoint - before) / BLOCK;
        assert_eq!(blocks, if fails { 2 + 4 } else { 4 });
    }
}
