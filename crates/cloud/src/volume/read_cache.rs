//! The volume's read cache: what the journal's ring is about to reuse stays on the local device.
//!
//! How: a place that the ring's head will pass soon, and that holds blocks which the store has, is
//! read, verified and written into slots of a file of its own, of a block each; a batch that the
//! head would need such a place for waits until it is copied. Reads look there
//! before they ask the store. Where no slot is free, the next block is evicted that was not read
//! since CLOCK's hand last passed it.
//! Invariant: a slot holds what the store has of its block, unless the overlay or the ring hold
//! something newer: a block is entered only while it still maps to the place that was copied, and
//! evicted as soon as a newer version is uploaded, or when it does not match its checksum.
//! Source: the read cache of the log-structured virtual disk (Hajkazemi et al., EuroSys 2022);
//! CLOCK (Corbato 1968).
//! Cost: at most one write per byte that clients write, never synced; some 60 bytes of memory per
//! slot that is used. Not for: keeping across a restart; the file has no name.

use super::{Flight, LocalPlace, Volume};
use crate::action::{Action, End};
use crate::codec::crc32c;
use crate::runs::Place as _;
use layby_types::Nanos;
use layby_types::planted::{Plant, is_planted};
use std::collections::BTreeMap;
use std::ops::{DerefMut, Range};

/// Places are looked at once the head is as near as one of so many parts of the ring, and begin to
/// be once it is as near as half of that, so that few large writes do it.
const NEAR_PART: u64 = 8;
/// Bytes of the ring that are read at once, and as a part of the ring at most.
const SPAN_BYTES_MAX: u64 = 512 << 10;
const SPAN_PART: u64 = 16;
/// How long nothing is written after the device refused to.
const PAUSE: Nanos = Nanos::from_secs(1);

struct Slot {
    block: u64,
    crc: u32,
    was_read: bool,
    /// It is being written, and not evicted meanwhile.
    is_busy: bool,
}

/// A block on its way into a slot.
struct Copied {
    block: u64,
    /// Where the ring had it.
    from: u64,
    slot: usize,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    /// The places that are being read, from one place of the ring on.
    Reading(Vec<(Range<u64>, LocalPlace)>, u64),
    /// Blocks that are being written, and writes of them that have not ended.
    Writing(Vec<Copied>, usize),
}

/// See the file's header.
#[derive(Default)]
pub(super) struct ReadCache {
    slots: Vec<Slot>,
    index: BTreeMap<u64, usize>,
    free: Vec<usize>,
    hand: usize,
    stage: Stage,
    /// Copying has begun, and goes on until nothing near is left.
    has_begun: bool,
    /// A batch waits for places before this one to be copied.
    wanted: u64,
    /// Nothing is written before.
    rests_until: Nanos,
    /// Why the last write failed, if it did.
    fault: Option<String>,
}

impl ReadCache {
    /// Newer versions of these blocks exist.
    pub(super) fn remove(&mut self, blocks: Range<u64>) {
        if is_planted(Plant::ReadCacheKeepsOlder) {
            return;
        }
        while let Some((block, slot)) = self.index.range(blocks.clone()).next() {
            let (block, slot) = (*block, *slot);
            self.index.remove(&block);
            self.free.push(slot);
        }
    }

    /// Nothing that it holds is of this volume any more.
    pub(super) fn clear(&mut self) {
        self.remove(0..u64::MAX);
    }

    /// Blocks that it holds.
    pub(super) fn blocks(&self) -> u64 {
        self.index.len() as u64
    }

    /// Whether a place before `reach` is being copied; the first one is the oldest.
    fn copies_before(&self, reach: u64) -> bool {
        match &self.stage {
            Stage::Idle => false,
            Stage::Reading(_, from) => *from < reach,
            Stage::Writing(copied, _) => copied.first().is_some_and(|copied| copied.from < reach),
        }
    }

    /// Why it takes nothing now, if it does not.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// A slot for a block, among so many.
    fn take(&mut self, block: u64, was_read: bool, most: usize) -> Option<usize> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < most => {
                self.slots.push(Slot { block, crc: 0, was_read, is_busy: true });
                self.slots.len() - 1
            }
            None => self.evict()?,
        };
        self.slots[slot] = Slot { block, crc: 0, was_read, is_busy: true };
        Some(slot)
    }

    /// The next slot behind the hand whose block was not read since the hand last passed it.
    fn evict(&mut self) -> Option<usize> {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            let slot = &mut self.slots[at];
            if !slot.is_busy && !std::mem::take(&mut slot.was_read) {
                self.index.remove(&slot.block);
                return Some(at);
            }
        }
        None
    }

    /// A slot's write has ended: its block is read there, or the slot is free.
    fn enter(&mut self, slot: usize, is_entered: bool) {
        self.slots[slot].is_busy = false;
        let block = self.slots[slot].block;
        if !is_entered {
            self.free.push(slot);
        } else if let Some(older) = self.index.insert(block, slot) {
            self.free.push(older);
        }
    }

    /// The longest run of blocks in neighbouring slots from the first of a range on, and its slot;
    /// without one, the blocks before the next that it holds.
    fn run(&self, blocks: Range<u64>) -> (Range<u64>, Option<usize>) {
        let mut held = self.index.range(blocks.clone());
        match held.next() {
            Some((block, slot)) if *block == blocks.start => {
                let follows = |(n, (block, next)): &(usize, (&u64, &usize))| {
                    **block == blocks.start + 1 + *n as u64 && **next == slot + 1 + *n
                };
                let more = held.enumerate().take_while(follows).count() as u64;
                (blocks.start..blocks.start + 1 + more, Some(*slot))
            }
            Some((block, _)) => (blocks.start..*block, None),
            None => (blocks, None),
        }
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Reads blocks that the ring does not have: from the read cache, else from the store.
    pub(super) fn read_below_ring(&mut self, job: u64, blocks: Range<u64>) {
        let (mut at, mut lacks) = (blocks.start, blocks.start..blocks.start);
        while at < blocks.end {
            let (run, slot) = self.read_cache.run(at..blocks.end);
            at = run.end;
            let Some(slot) = slot else {
                lacks.end = run.end;
                continue;
            };
            if !lacks.is_empty() {
                self.read_cloud(job, lacks);
            }
            lacks = run.end..run.end;
            self.read_slots(job, run, slot);
        }
        if !lacks.is_empty() {
            self.read_cloud(job, lacks);
        }
    }

    fn read_slots(&mut self, job: u64, blocks: Range<u64>, slot: usize) {
        let count = (blocks.end - blocks.start) as usize;
        let slots = &mut self.read_cache.slots[slot..slot + count];
        slots.iter_mut().for_each(|slot| slot.was_read = true);
        let crcs = slots.iter().map(|slot| slot.crc).collect();
        let (at, length) = (slot as u64 * self.block(), count as u64 * self.block());
        self.add_part_of_read(job);
        self.act(Action::CacheRead { at, length }, Flight::CacheRead { job, blocks, crcs });
    }

    /// Slots have been read for a job: blocks that fail their checksum are evicted, and read anew.
    pub(super) fn on_cache_read(&mut self, job: u64, blocks: Range<u64>, crcs: &[u32], end: &End) {
        if !self.is_reading(job) {
            return;
        }
        let block_bytes = self.block() as usize;
        for (number, (block, crc)) in blocks.zip(crcs).enumerate() {
            let whole = match end {
                End::Bytes(bytes, _) => bytes.get(number * block_bytes..(number + 1) * block_bytes),
                _ => None,
            };
            match whole.filter(|bytes| crc32c(bytes) == *crc) {
                Some(bytes) => self.copy(job, &(block..block + 1), bytes, 0),
                None => {
                    self.read_cache.remove(block..block + 1);
                    self.read_blocks(job, block..block + 1);
                }
            }
        }
        self.end_part_of_read(job);
    }

    fn slots_max(&self) -> usize {
        usize::try_from(self.plan.limits.read_cache_bytes / self.block()).unwrap_or(usize::MAX)
    }

    /// Whether anything is copied now.
    fn copies(&self) -> bool {
        let is_served = self.is_known && !self.is_stopping && !self.session.is_lost();
        is_served && self.now >= self.read_cache.rests_until && self.slots_max() > 0
    }

    /// Whether a batch that the ring's head moves to `head` for is to wait for copies of what it
    /// would be written over.
    pub(super) fn yields_to_copies(&mut self, head: u64) -> bool {
        let reach = head.saturating_sub(self.journal.ring.capacity);
        if !self.copies() {
            return false;
        }
        let is_ahead = self.uploaded.next_before(reach).is_some();
        if is_ahead {
            self.read_cache.wanted = reach;
            self.copy_next();
        }
        self.uploaded.next_before(reach).is_some() || self.read_cache.copies_before(reach)
    }

    /// Reads the next places that the head comes near to.
    pub(super) fn copy_next(&mut self) {
        if !matches!(self.read_cache.stage, Stage::Idle) || !self.copies() {
            return;
        }
        let capacity = self.journal.ring.capacity;
        let wanted = self.read_cache.wanted;
        let near = |part| self.journal.head.saturating_sub(capacity - capacity / part).max(wanted);
        let part = if self.read_cache.has_begun { NEAR_PART } else { 2 * NEAR_PART };
        self.read_cache.has_begun = self.uploaded.next_before(near(part)).is_some();
        if !self.read_cache.has_begun {
            return;
        }
        let near = near(NEAR_PART);
        self.drop_reused();
        let places = self.take_near(near);
        let (Some((_, first)), Some((_, last))) = (places.first(), places.last()) else { return };
        let (first, end) = (first.at.unwrap_or(0), self.payload_end(last));
        let at = self.journal.ring.device(first);
        self.act(Action::JournalRead { at, length: end - first }, Flight::CopyRead);
        self.read_cache.stage = Stage::Reading(places, first);
    }

    /// First byte of the ring behind a place's payload.
    fn payload_end(&self, place: &LocalPlace) -> u64 {
        place.at.unwrap_or(0) + u64::from(place.blocks) * self.block()
    }

    /// Takes places before `near` that are to be kept, as many as one read brings.
    fn take_near(&mut self, near: u64) -> Vec<(Range<u64>, LocalPlace)> {
        let capacity = self.journal.ring.capacity;
        let mut places = Vec::<(Range<u64>, LocalPlace)>::new();
        while let Some(at) = self.uploaded.next_before(near) {
            let live = self.without_overlay(self.uploaded.live_at(at));
            if let (Some((_, first)), Some((_, last))) = (places.first(), live.last()) {
                let (first, end) = (first.at.unwrap_or(0), self.payload_end(last));
                let is_far = end - first > SPAN_BYTES_MAX.min(capacity / SPAN_PART);
                if is_far || first / capacity != (end - 1) / capacity {
                    break;
                }
            }
            places.extend(live);
            self.uploaded.pass(at);
        }
        places
    }

    /// What of some runs has no newer version that is not uploaded yet.
    fn without_overlay(
        &self,
        runs: Vec<(Range<u64>, LocalPlace)>,
    ) -> Vec<(Range<u64>, LocalPlace)> {
        let pieces = |(run, place): (Range<u64>, LocalPlace)| {
            let older = self.overlay.pieces(run.clone()).into_iter();
            let older = older.filter(|piece| piece.place.is_none());
            older.map(move |piece| {
                let skipped = piece.blocks.start - run.start;
                (piece.blocks, place.skip(skipped))
            })
        };
        runs.into_iter().flat_map(pieces).collect()
    }

    /// The places have been read: what is whole goes into slots, neighbours with one write.
    pub(super) fn on_copy_read(&mut self, end: &End) {
        let Stage::Reading(places, from) = std::mem::take(&mut self.read_cache.stage) else {
            unreachable!("one read is on its way")
        };
        // A device that fails reads fails those of clients, too, which say so.
        let End::Bytes(bytes, _) = end else { return };
        let (mut copied, mut writes) = (Vec::new(), Vec::<(usize, Vec<u8>)>::new());
        let most = self.slots_max();
        for (blocks, place) in places {
            let Some((at, whole)) = self.whole_payload(&place, from, bytes) else { continue };
            let was_read = self.uploaded.was_read(at);
            let own = whole.chunks(self.block() as usize).skip(usize::from(place.skip));
            for (block, bytes) in blocks.zip(own) {
                let Some(slot) = self.read_cache.take(block, was_read, most) else { break };
                self.read_cache.slots[slot].crc = crc32c(bytes);
                copied.push(Copied { block, from: at, slot });
                match writes.last_mut() {
                    Some((first, run)) if *first + run.len() / bytes.len() == slot => {
                        run.extend_from_slice(bytes);
                    }
                    _ => writes.push((slot, bytes.to_vec())),
                }
            }
        }
        if !writes.is_empty() {
            self.read_cache.stage = Stage::Writing(copied, writes.len());
        }
        for (slot, bytes) in writes {
            let at = slot as u64 * self.block();
            self.counters.bytes_cached += bytes.len() as u64;
            self.act(Action::CacheWrite { at, bytes }, Flight::CacheWrite);
        }
    }

    /// A place's payload among bytes that were read from a place of the ring on, where it is whole.
    fn whole_payload<'a>(
        &self,
        place: &LocalPlace,
        from: u64,
        bytes: &'a [u8],
    ) -> Option<(u64, &'a [u8])> {
        let at = place.at.filter(|_| self.is_in_ring(place))?;
        let first = (at - from) as usize;
        let length = usize::from(place.blocks) * self.block() as usize;
        let whole = bytes.get(first..first + length)?;
        (crc32c(whole) == place.crc).then_some((at, whole))
    }

    /// Slots have been written: what did not change meanwhile is read there from now on.
    pub(super) fn on_cache_written(&mut self, end: &End) {
        if let End::Failed(fault) = end {
            self.read_cache.rests_until = self.now.saturating_add(PAUSE);
            self.read_cache.fault = Some(fault.cause.clone());
        }
        let Stage::Writing(_, left) = &mut self.read_cache.stage else {
            unreachable!("writes are on their way")
        };
        *left -= 1;
        if *left > 0 {
            return;
        }
        let Stage::Writing(copied, _) = std::mem::take(&mut self.read_cache.stage) else {
            unreachable!("it was just seen")
        };
        let is_written = self.now >= self.read_cache.rests_until;
        if is_written {
            self.read_cache.fault = None;
        }
        for Copied { block, from, slot } in copied {
            let is_same = self.uploaded.is_at(from, block);
            let is_entered = is_same || is_planted(Plant::ReadCacheKeepsOlder);
            self.read_cache.enter(slot, is_written && is_entered);
        }
    }
}
