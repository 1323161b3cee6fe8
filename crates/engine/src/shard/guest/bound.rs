//! How much the queues of a volume hold together.
//!
//! How: a queue may hold what the volume's others leave of a bound; at it, its requests stay in its
//! ring. Where the volume's queues have room again, all of them go on.
//! Invariant: beyond the bound is one request at most, so that the longest one passes, too.
//! Cost: a sum per volume. Not for: what was abandoned, which has bounds of its own, and links,
//! whose requests are bounded where their clients are.

use super::{Guest, Guests, Hold};

/// Bytes that the queues of a volume, or a link, hold at most: of requests in flight, and of writes
/// that were taken and wait (one more request may be taken).
pub(super) const HELD_BYTES_MAX: u64 = 64 << 20;
/// Of the bytes of a write that has begun, what a queue keeps memory for: the next one uses it.
pub(super) const PAYLOAD_BYTES_KEPT: usize = 64 << 10;

impl Guest {
    /// Bytes of memory that it holds for requests: in flight, or of a write that was taken.
    pub(super) fn held_bytes(&self) -> u64 {
        let taken = self.taken.map_or(0, |_| self.payload.capacity() as u64);
        self.inflight_bytes + taken
    }

    pub(super) fn is_full(&self) -> bool {
        self.held_bytes() >= self.room
    }

    /// Nothing is taken any more; memory of a long write is given back.
    pub(super) fn clear_taken(&mut self) {
        (self.taken, self.hold) = (None, Hold::Open);
        if self.payload.capacity() > PAYLOAD_BYTES_KEPT {
            self.payload = Vec::new();
        }
    }
}

impl Guests {
    /// Sets what a queue may hold beside its volume's others.
    pub(super) fn set_room(&mut self, number: u32) {
        let place = self.places[number as usize].as_mut();
        let Some(guest) = place.filter(|guest| guest.link.is_none()) else { return };
        let all = self.held.get(&guest.volume).copied().unwrap_or(0);
        guest.room = self.bytes_max.saturating_sub(all - guest.counted);
    }

    /// Counts what a queue holds now. Where its volume's have room again, they go on.
    pub(super) fn count(&mut self, number: u32) {
        let place = self.places[number as usize].as_mut();
        let Some(guest) = place.filter(|guest| guest.link.is_none()) else { return };
        // What was abandoned has bounds of its own.
        let now = if guest.is_abandoned { 0 } else { guest.held_bytes() };
        let (before, volume) = (std::mem::replace(&mut guest.counted, now), guest.volume);
        if before == now {
            return;
        }
        let all = self.held.entry(volume).or_default();
        let was_full = *all >= self.bytes_max;
        *all = *all - before + now;
        let is_full = *all >= self.bytes_max;
        if *all == 0 {
            self.held.remove(&volume);
        }
        if was_full && !is_full {
            let own = self.places.iter_mut().flatten().filter(|guest| guest.volume == volume);
            own.filter(|guest| !guest.is_leaving).for_each(|guest| guest.has_more = true);
        }
    }
}
