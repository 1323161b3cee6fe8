//! How much the queues of a volume hold together, and those of a shard.
//!
//! How: a queue may hold what the volume's others leave of a bound; at it, its requests stay in its
//! ring. Where the volume's queues have room again, all of them go on. A volume's bound is at most
//! as much as it leaves free of the shard's, so that what hangs leaves others room; and a request
//! of each volume starts in any case, so that none waits for another's hang. A queue keeps the
//! buffer of its writes until it has nothing in flight, where there is room in plenty.
//! Invariant: beyond the volume's bound is one request at most, so that the longest one passes,
//! too, and beyond the shard's one of each volume; buffers that are kept count.
//! Cost: a sum per volume; a pass over the queues in a turn in which something was freed while one
//! was full. Not for: what was abandoned, which has bounds of its own, and links,
//! whose requests are bounded where their clients are.

use super::{Guest, Guests, Hold};

/// Bytes that the queues of a volume, or a link, hold at most: of requests in flight, and of writes
/// that were taken and wait (one more request may be taken).
pub(super) const HELD_BYTES_MAX: u64 = 64 << 20;
/// Of the bytes of a write that has begun, what a queue keeps memory for: the next one uses it.
pub(super) const PAYLOAD_BYTES_KEPT: usize = 64 << 10;

/// What a queue may hold where it keeps the buffer of its writes: with less, buffers that are kept
/// would leave it one request at a time, and another queue of the volume none.
const ROOM_TO_KEEP: u64 = HELD_BYTES_MAX / 2;

impl Guest {
    /// Bytes of memory that it holds for requests: in flight, or the buffer of a write.
    fn held_bytes(&self) -> u64 {
        let capacity = self.payload.capacity();
        let is_counted = self.taken.is_some() || capacity > PAYLOAD_BYTES_KEPT;
        self.inflight_bytes + if is_counted { capacity as u64 } else { 0 }
    }

    /// A buffer that it keeps does not keep it from filling that.
    pub(super) fn is_full(&self) -> bool {
        let is_empty = self.inflight == 0 && self.taken.is_none();
        (if is_empty { 0 } else { self.held_bytes() }) >= self.room
    }

    /// Nothing is taken any more.
    pub(super) fn clear_taken(&mut self) {
        (self.taken, self.hold) = (None, Hold::Open);
    }

    /// Gives the memory of a long write back, where the queue is not busy or room is scarce.
    fn shrink_payload(&mut self) {
        let is_busy = self.inflight > 0 || self.has_more;
        let may_keep = self.taken.is_some() || is_busy && self.room >= ROOM_TO_KEEP;
        if !may_keep && self.payload.capacity() > PAYLOAD_BYTES_KEPT {
            self.payload = Vec::new();
        }
    }
}

impl Guests {
    /// Sets what a queue may hold beside its volume's others, and the shard's.
    pub(super) fn set_room(&mut self, number: u32) {
        let place = self.places[number as usize].as_mut();
        let Some(guest) = place.filter(|guest| guest.link.is_none()) else { return };
        let own = self.held.get(&guest.volume).copied().unwrap_or(0);
        // The first volume gets a half, the next a half of the rest, and so on.
        let share = self.shard_bytes_max.saturating_sub(self.held_total - own) / 2;
        let most = self.bytes_max.min(share).max(1);
        guest.room = most.saturating_sub(own - guest.counted);
    }

    /// Counts what a queue holds now. Where its volume's have room again, they go on.
    pub(super) fn count(&mut self, number: u32) {
        let Some(guest) = self.places[number as usize].as_mut() else { return };
        let was_full = guest.is_full();
        guest.shrink_payload();
        // Its own buffer was in its way: nothing else wakes it.
        guest.has_more |= was_full && !guest.is_full() && !guest.is_leaving;
        if guest.link.is_some() {
            return;
        }
        guest.is_short = !guest.is_leaving && guest.is_full();
        self.has_short |= guest.is_short;
        // What was abandoned has bounds of its own.
        let now = if guest.is_abandoned { 0 } else { guest.held_bytes() };
        let (before, volume) = (std::mem::replace(&mut guest.counted, now), guest.volume);
        if before == now {
            return;
        }
        self.held_total = self.held_total - before + now;
        self.has_freed |= now < before;
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

    /// Where something was freed, queues that were full go on.
    pub(super) fn wake_short(&mut self) {
        if !self.has_freed || !self.has_short {
            return;
        }
        (self.has_freed, self.has_short) = (false, false);
        let short = self.places.iter_mut().flatten().filter(|guest| guest.is_short);
        short.for_each(|guest| guest.has_more |= !guest.is_leaving);
    }
}
