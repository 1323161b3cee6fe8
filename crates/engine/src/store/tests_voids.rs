//! Headers of failed batches that are overwritten while the device fails.

use super::tests_faults::{put, stored};
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
