//! Headers of failed batches that are overwritten while the device fails.

use super::tests_faults::{checkpoint_turn, put, stored};
use super::tests_log::{content, fresh, key, settle};
use super::{AppendEntry, LogStore, StoreEvent, Stream, Ticket};
use crate::io::Io;
use layby_types::{Nanos, Slot};
use rustix::io::Errno;

const BLOCK: u64 = 4096;

/// Goal: a failed batch's header whose overwriting was under way while a sync failed counts as not
/// overwritten: the device may have dropped the zeros. Method: such a batch; a sync that fails
/// beside the overwriting at once, and one beside that which a caller's sync waits for.
#[test]
fn a_header_overwritten_beside_a_failed_sync_is_overwritten_again() {
    let (mut io, disk, mut log) = fresh(5);
    stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
    for refusals in [0, super::log_void::TRIES_MAX] {
        io.do_and_fail_next(disk, refusals, Errno::IO);
        let entry = AppendEntry { slot: Slot(1), key: key(1), dirty: true };
        log.append(&mut io, Ticket(1), Stream::Write, &[entry], &content(51), true);
        if refusals == 0 {
            let is_overwriting = |log: &LogStore| {
                let flight = log.streams[Stream::Write as usize].flight.as_ref();
                flight.is_none_or(|flight| flight.failed.is_some())
            };
            while !is_overwriting(&log) {
                let mut done = Vec::new();
                io.wait(Nanos::NEVER, &mut done);
                done.into_iter().for_each(|done| log.on_io(&mut io, done));
            }
        } else {
            assert!(stored(settle(&mut io, &mut log).last().expect("it ends")).is_err());
            log.sync(&mut io, Ticket(2));
        }
        let before = log.counters().bytes_written;
        log.note_sync_failed();
        let events = settle(&mut io, &mut log);
        let is_error = |event: &StoreEvent| {
            let (StoreEvent::Stored { result, .. } | StoreEvent::Synced { result, .. }) = event
            else {
                return false;
            };
            result.is_err()
        };
        assert!(events.iter().any(is_error), "{refusals}: {events:?}");
        log.sync(&mut io, Ticket(3));
        let events = settle(&mut io, &mut log);
        assert!(!events.iter().any(is_error), "{refusals}: {events:?}");
        assert_eq!(log.counters().bytes_written, before + BLOCK, "{refusals}: once more");
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
