//! What a read brings beside what it asked for, and what becomes of that.
//!
//! How: a request to the store costs more than the bytes beside those that are wanted: a chunk is
//! fetched as a whole, and what lies around it in its segment was written with it and near it. What
//! came along is held for a moment and offered; who takes the offer reads it as anything else, and
//! finds it here. A read of what is on its way waits for that, unless a fault delays it. How much
//! is fetched around a read is `policy::ReadAround`'s to say.
//! Invariant: segments never change, and the map says each time where a block lies, so that nothing
//! held here can be old; a read that waits for another's fetch ends however that one does.
//! Source: prefetch along the log, after the log-structured virtual disk (Hajkazemi et al., EuroSys
//! 2022).
//! Cost: bytes held are bounded; a walk over the segment's blocks per fetch.
//! Not for: keeping; that is the cache's above.

use super::Volume;
use super::read::Part;
use crate::codec::crc32c;
use crate::map::ChunkPlace;
use crate::segment::{CHUNK_BYTES, SegmentName};
use bytes::Bytes;
use layby_policy::{Around, ReadAround};
use layby_types::Nanos;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{DerefMut, Range};

/// Bytes that are held at most: who takes an offer does so within milliseconds.
const HELD_BYTES_MAX: u64 = 8 << 20;
/// Stretches that are held at most; each read looks through them.
const HELD_MAX: usize = 256;
/// How long anything is held.
const HELD_FOR: Nanos = Nanos::from_secs(1);
/// Blocks of an offer at most: taking one takes no long turn.
const OFFER_BLOCKS_MAX: u64 = 64;
/// Offers that nobody has heard of at most.
const OFFERS_MAX: usize = 4096;

/// Bytes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// The segment; another history's of the same number is another one.
    pub(super) name: SegmentName,
    /// Bytes of its object.
    pub(super) bytes: Range<u64>,
}

impl Stretch {
    fn covers(&self, other: &Stretch) -> bool {
        let (own, other_bytes) = (&self.bytes, &other.bytes);
        self.name == other.name && own.start <= other_bytes.start && other_bytes.end <= own.end
    }
}

/// What came a moment ago.
struct Held {
    since: Nanos,
    stretch: Stretch,
    bytes: Bytes,
    /// Blocks that were offered, those that other reads waited for, and those that were read.
    along: u64,
    awaited: u64,
    taken: u64,
}

/// What is on its way.
struct Coming {
    /// Its own; a fetch that rests after a fault may be of the same stretch.
    id: u64,
    stretch: Stretch,
    /// The window that it was made with; none where it is larger than that anyway.
    around: Option<Around>,
    asked: u64,
    /// It did not come at once; nobody else begins to wait for it.
    is_late: bool,
    /// Parts of other reads that it will bring.
    waiting: Waiting,
}

/// Parts of reads that wait for what another one asked for, by read.
pub(super) type Waiting = Vec<(u64, Vec<Part>)>;

/// See the file's header.
#[derive(Default)]
pub(super) struct AtHand {
    policy: ReadAround,
    held: VecDeque<Held>,
    held_bytes: u64,
    coming: Vec<Coming>,
    coming_next: u64,
    /// Until when the store's work is accounted for.
    accounted: Nanos,
    offers: VecDeque<Range<u64>>,
}

impl AtHand {
    /// The bytes of parts that lie beside each other, where they are held.
    pub(super) fn take(&mut self, parts: &[Part], stretch: &Stretch) -> Option<Bytes> {
        let index = self.held.iter().rposition(|held| held.stretch.covers(stretch))?;
        let held = &mut self.held[index];
        let from = held.stretch.bytes.start;
        let cut = (stretch.bytes.start - from) as usize..(stretch.bytes.end - from) as usize;
        let bytes = held.bytes.slice(cut);
        held.taken += blocks_in(parts);
        if held.taken >= held.along + held.awaited {
            self.let_go(index);
        }
        Some(bytes)
    }

    /// Whether a stretch is held.
    fn covers(&self, stretch: &Stretch) -> bool {
        self.held.iter().rev().any(|held| held.stretch.covers(stretch))
    }

    fn hold(&mut self, held: Held) {
        self.held_bytes += held.bytes.len() as u64;
        self.held.push_back(held);
        while self.held_bytes > HELD_BYTES_MAX || self.held.len() > HELD_MAX {
            self.let_go(0);
        }
    }

    /// Who has not come for it by now will not come.
    pub(super) fn let_go_older(&mut self, now: Nanos) {
        while self.held.front().is_some_and(|held| now.since(held.since) > HELD_FOR) {
            self.let_go(0);
        }
    }

    fn let_go(&mut self, index: usize) {
        let held = self.held.remove(index).expect("the caller looked");
        self.held_bytes -= held.bytes.len() as u64;
        self.policy.on_let_go(held.along, held.taken.saturating_sub(held.awaited));
    }

    /// What is held of a segment is not what it should be.
    pub(super) fn forget(&mut self, number: u64) {
        let is_it = |held: &Held| held.stretch.name.number == number;
        while let Some(index) = self.held.iter().position(is_it) {
            self.let_go(index);
        }
    }

    /// Nothing that is held is of this volume any more.
    pub(super) fn clear(&mut self) {
        (self.held, self.held_bytes) = (VecDeque::new(), 0);
        self.offers.clear();
    }

    /// Has a part of a read wait for a fetch that will bring it; false where none will.
    pub(super) fn join(&mut self, job: u64, parts: &[Part], stretch: &Stretch) -> bool {
        let brings = |coming: &&mut Coming| !coming.is_late && coming.stretch.covers(stretch);
        let coming = self.coming.iter_mut().find(brings);
        coming.map(|coming| coming.waiting.push((job, parts.to_vec()))).is_some()
    }

    fn begin(&mut self, mut coming: Coming, now: Nanos) -> u64 {
        // What a fault has delayed rests, and keeps no store busy.
        if self.coming.iter().all(|coming| coming.is_late) {
            self.accounted = now;
        }
        self.coming_next += 1;
        coming.id = self.coming_next;
        self.coming.push(coming);
        self.coming_next
    }

    /// A fetch failed and will be repeated, for its own read only: who waited for it is handed out.
    pub(super) fn delay(&mut self, id: u64) -> Waiting {
        let coming = self.coming.iter_mut().find(|coming| coming.id == id);
        let coming = coming.expect("what is late has begun");
        coming.is_late = true;
        std::mem::take(&mut coming.waiting)
    }

    /// A fetch has ended, and how long the store was busy since the end before it.
    fn end(&mut self, id: u64, now: Nanos) -> (Coming, Nanos) {
        let index = self.coming.iter().position(|coming| coming.id == id);
        let coming = self.coming.swap_remove(index.expect("what ends has begun"));
        (coming, now.since(std::mem::replace(&mut self.accounted, now)))
    }

    fn offer(&mut self, blocks: Range<u64>) {
        self.offers.push_back(blocks);
        if self.offers.len() > OFFERS_MAX {
            self.offers.pop_front();
        }
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Takes bytes of the volume that came along with a read, if there are some: reading them soon
    /// costs no request.
    pub fn poll_at_hand(&mut self) -> Option<Range<u64>> {
        while let Some(blocks) = self.at_hand.offers.pop_front() {
            if self.is_at_hand(blocks.clone()) {
                let block = self.block();
                return Some(blocks.start * block..blocks.end * block);
            }
        }
        None
    }

    /// Whether blocks can be read without asking the store, or the journal.
    pub(super) fn is_at_hand(&self, blocks: Range<u64>) -> bool {
        // By segment, since neighbours in one are read together.
        let mut stretches: BTreeMap<u64, Stretch> = BTreeMap::new();
        for (_, place) in self.map.mapped(blocks.clone()) {
            let own = self.stretch_of(&place, &place);
            let whole = stretches.entry(place.number).or_insert_with(|| own.clone());
            whole.bytes.start = whole.bytes.start.min(own.bytes.start);
            whole.bytes.end = whole.bytes.end.max(own.bytes.end);
        }
        self.overlay.mapped(blocks.clone()).next().is_none()
            && !self.uploaded.holds(blocks)
            && stretches.values().all(|stretch| self.at_hand.covers(stretch))
    }

    /// The bytes of a segment from one chunk to another one.
    pub(super) fn stretch_of(&self, first: &ChunkPlace, last: &ChunkPlace) -> Stretch {
        let name = self.map.name(first.number).expect("the map knows its segments");
        let end = u64::from(last.at) + u64::from(last.stored);
        Stretch { name, bytes: u64::from(first.at)..end }
    }

    /// What to fetch for parts that lie beside each other, which is on its way from now on.
    pub(super) fn widen(&mut self, parts: &[Part], stretch: &Stretch) -> (u64, Stretch) {
        let asked = blocks_in(parts);
        let is_small = asked * self.block() < CHUNK_BYTES as u64;
        let around = is_small.then(|| self.at_hand.policy.next());
        let mut bytes = stretch.bytes.clone();
        if let Some(around) = around
            && bytes.end - bytes.start < around.bytes()
        {
            // Windows lie beside each other, so that none fetches what another one did.
            let window = |place: &ChunkPlace| u64::from(place.at) / around.bytes();
            let own = window(&parts[0].place);
            let near = self.near(parts, around.bytes());
            for (_, place) in near.iter().filter(|(_, place)| window(place) == own) {
                bytes.start = bytes.start.min(u64::from(place.at));
                bytes.end = bytes.end.max(u64::from(place.at) + u64::from(place.stored));
            }
        }
        let stretch = Stretch { name: stretch.name, bytes };
        let (id, is_late, waiting) = (0, false, Vec::new());
        let coming = Coming { id, stretch: stretch.clone(), around, asked, is_late, waiting };
        (self.at_hand.begin(coming, self.now), stretch)
    }

    /// A fetch has ended: what it brought beside its parts is offered. Answers with who waited.
    pub(super) fn arrive(&mut self, fetch: u64, parts: &[Part], bytes: Option<&Bytes>) -> Waiting {
        let (coming, busy) = self.at_hand.end(fetch, self.now);
        let stretch = &coming.stretch;
        // What came short, or could not be decrypted, is its own read's to complain of.
        let length = stretch.bytes.end - stretch.bytes.start;
        let Some(bytes) = bytes.filter(|bytes| bytes.len() as u64 == length) else {
            return coming.waiting;
        };
        let is_reading = |(job, _): &&(u64, Vec<Part>)| self.is_reading(*job);
        let waiting = coming.waiting.iter().filter(is_reading).flat_map(|(_, parts)| parts);
        let mut asked: Vec<Part> = parts.iter().chain(waiting).cloned().collect();
        asked.sort_by_key(|part| part.blocks.start);
        let found = self.along(&asked, stretch, bytes);
        let along: u64 = found.iter().map(|blocks| blocks.end - blocks.start).sum();
        self.counters.bytes_along += along * self.block();
        let awaited = blocks_in(&asked) - blocks_in(parts);
        // What a fault delayed says nothing of what a window costs.
        if let Some(around) = coming.around.filter(|_| !coming.is_late) {
            self.at_hand.policy.on_fetched(around, busy, coming.asked + awaited, along);
        }
        if along + awaited > 0 {
            // A reply may be a part of more bytes, which would be held with it.
            let (stretch, bytes) = (stretch.clone(), Bytes::copy_from_slice(bytes));
            let since = self.now;
            self.at_hand.hold(Held { since, stretch, bytes, along, awaited, taken: 0 });
        }
        found.into_iter().for_each(|blocks| self.at_hand.offer(blocks));
        coming.waiting
    }

    /// Blocks that a stretch holds whole beside those of some parts, in their order.
    fn along(&self, parts: &[Part], stretch: &Stretch, bytes: &Bytes) -> Vec<Range<u64>> {
        let length = stretch.bytes.end - stretch.bytes.start;
        let stored: u64 = parts.iter().map(|part| u64::from(part.place.stored)).sum();
        if stored == length && parts.iter().all(Part::is_whole) {
            return Vec::new();
        }
        let mut chunks: BTreeMap<u32, bool> = BTreeMap::new();
        let mut is_sound = |place: &ChunkPlace| {
            // Who reads a damaged one hears of it; it is offered to nobody.
            let check = || {
                let at = u64::from(place.at).checked_sub(stretch.bytes.start)? as usize;
                Some(crc32c(bytes.get(at..at + place.stored as usize)?) == place.crc)
            };
            *chunks.entry(place.at).or_insert_with(|| check().unwrap_or(false))
        };
        let mut found: Vec<Range<u64>> = Vec::new();
        for (blocks, place) in self.near(parts, length) {
            let others = without(blocks, parts);
            if !others.is_empty() && is_sound(&place) {
                found.extend(others);
            }
        }
        joined(found)
    }

    /// What lives in the segment of some parts within so many bytes of them, as far as that can be
    /// said by blocks.
    fn near(&self, parts: &[Part], bytes: u64) -> Vec<(Range<u64>, ChunkPlace)> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Vec::new() };
        let blocks = first.blocks.start..last.blocks.end;
        let number = first.place.number;
        let Some(state) = self.map.state(number) else { return Vec::new() };
        // Compressed ones are smaller than a block.
        let most = bytes * state.blocks / state.bytes.max(1) + CHUNK_BYTES as u64 / self.block();
        self.map.near(number, blocks, most)
    }
}

/// Neighbours among ranges as one, in order, as long as an offer may be.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let is_next = last.end == next.start && next.end - last.start <= OFFER_BLOCKS_MAX;
        last.end = if is_next { next.end } else { last.end };
        is_next
    });
    ranges
}

/// What is left of some blocks without those of parts, which are in the order of theirs.
fn without(blocks: Range<u64>, parts: &[Part]) -> Vec<Range<u64>> {
    let (mut left, mut from) = (Vec::new(), blocks.start);
    let meets = |part: &&Part| part.blocks.start < blocks.end && blocks.start < part.blocks.end;
    for part in parts.iter().filter(meets) {
        left.push(from..part.blocks.start.max(from));
        from = part.blocks.end.max(from);
    }
    left.push(from..blocks.end.max(from));
    left.retain(|range| !range.is_empty());
    left
}

fn blocks_in(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.blocks.end - part.blocks.start).sum()
}
