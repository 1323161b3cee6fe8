//! Queues whose stop does not wait for answers: what they have in flight is abandoned.
//!
//! How: the ring is given back at once, and one that writes nowhere takes its place; the queue
//! stays in the table until its requests have ended. A guest's memory is read when a request is
//! taken, and written when an answer is put there, on the shard's thread and through the ring
//! alone: no device and no copy refers to it, so it may go with the ring. A read's bytes are
//! dropped when they come. A write goes on from the node's copy of its bytes, and ends whole; none
//! is told. A request that waits for its limits or write intent has not begun, and never does. One
//! that is submitted in pieces is submitted whole first. What waits for the limits of a wide volume
//! at another shard has not begun, either.
//! Invariant: a change that was abandoned is in the core before the ring is given back. Who repeats
//! it, or writes there, is queued behind it, block by block. Of a volume no more is abandoned once
//! there is as much as the bounds say: then a stop waits for its answers.
//! Cost: what is in flight, up to the bounds and one queue more by volume and shard.
//! Not for: block devices of the host, which end every request themselves.

use super::{Gate, Guest, Guests};
use crate::control::{CallEvent, MonitorId};
use crate::core::Core;
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, ErrorKind, GuestRing, SessionError, Taken, VolumeId};

/// Abandoned requests of a volume with which no other queue of it is abandoned.
pub(super) const ABANDONED_REQUESTS_MAX: u64 = 1024;
/// The same in bytes.
pub(super) const ABANDONED_BYTES_MAX: u64 = 64 << 20;

/// A ring that offers nothing and writes nowhere.
struct Nowhere;

impl GuestRing for Nowhere {
    fn take(&mut self, _: &mut Vec<u8>) -> Result<Taken, SessionError> {
        Ok(Taken::Nothing)
    }

    fn put(&mut self, _: &Call, _: u64, _: &[u8]) {}

    fn finish(&mut self, _: &Call, _: Result<(), ErrorKind>) -> Result<(), SessionError> {
        Ok(())
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        Ok(false)
    }

    fn take_signal(&mut self) -> bool {
        false
    }

    fn base(&self) -> u16 {
        unreachable!("its queue was given back already")
    }
}

impl Guest {
    /// Whether its stop waits for nothing but requests that may be abandoned.
    fn is_to_be_abandoned(&self) -> bool {
        let is_stopped = self.stop.is_some() && self.is_closed && !self.is_waiting;
        is_stopped && self.may_be_abandoned && !self.cuts.is_cutting()
    }

    /// Drops the request that was taken and has not begun, if there is one.
    pub(super) fn drop_taken(&mut self, gate: &mut Gate) {
        if self.taken.is_some() {
            self.clear_taken();
            self.has_more = false;
            gate.cancel(self.volume, self.asker());
        }
    }

    /// Gives the ring back.
    fn abandon(&mut self) {
        let answer = self.stop.take().expect("it is to stop");
        let base = self.ring.base();
        if !is_planted(Plant::AbandonedAnswered) {
            self.ring = Box::new(Nowhere);
            self.call = CallEvent::default();
        }
        self.payload = Vec::new();
        self.is_abandoned = true;
        answer(Ok(base));
    }
}

impl Guests {
    /// Stops of a monitor's queues do not wait for answers from now on.
    pub(in crate::shard) fn abandon(&mut self, monitor: MonitorId) {
        let guests = self.places.iter_mut().flatten();
        let own = guests.filter(|guest| guest.monitor == Some(monitor));
        own.for_each(|guest| guest.may_be_abandoned = true);
    }

    /// Gives a queue's ring back, where its stop waits for answers that need not be waited for.
    pub(super) fn abandon_stopped(&mut self, gate: &mut Gate, core: &mut Core, index: usize) {
        let Some(guest) = &mut self.places[index] else { return };
        if !guest.is_to_be_abandoned() {
            return;
        }
        guest.drop_taken(gate);
        let (volume, asker, is_quiet) = (guest.volume, guest.asker(), guest.is_quiet());
        if is_quiet || !self.has_room_for_abandoned(volume) {
            return;
        }
        core.leave_client(volume, asker);
        self.places[index].iter_mut().for_each(Guest::abandon);
    }

    fn has_room_for_abandoned(&self, volume: VolumeId) -> bool {
        let guests = self.places.iter().flatten();
        let own = guests.filter(|guest| guest.is_abandoned && guest.volume == volume);
        let add = |(requests, bytes), guest: &Guest| {
            (requests + u64::from(guest.inflight), bytes + guest.inflight_bytes)
        };
        let (requests, bytes) = own.fold((0, 0), add);
        requests < ABANDONED_REQUESTS_MAX && bytes < ABANDONED_BYTES_MAX
    }
}
