//! The log part of `layby check`: checkpoints, segments, batches, and the blocks they name.
//!
//! How: the newest sound full checkpoint and the increments behind it give a table; the batches
//! behind it are laid over; claims of durability in any batch are compared with what is there. Then
//! every block that would survive is looked at: no two in one place, none outside a segment, data
//! matching.
//! Invariant: as in the parent. Cost: as in the parent.

use super::batches::{Batch, Record, is_descriptor, judge, mend, read_batches};
use super::lost::{Lost, is_lost_entry};
use super::{Bytes, ReadAt, Superblock, block_name, crc, page_crcs, rebuilt, u32_at, u64_at};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Blocks of a trailer, each with all of it.
const TRAILER_BLOCKS: u64 = 2;

pub(super) struct Region {
    pub(super) instance: u64,
    pub(super) block: u64,
    pub(super) segment_blocks: u64,
    pub(super) segments: u64,
    pub(super) first: u64,
    pub(super) area_blocks: u64,
}

impl Region {
    fn read(from: &Superblock) -> Option<Self> {
        let [segment_blocks, segments, first, area_blocks, streams] = from.geometry.map(u64::from);
        let end = first + segments * segment_blocks;
        // An open one of each stream, free ones for copies and forgets, and four.
        let segments_min = streams + streams / 2 + 6;
        let sound = segment_blocks >= 8
            && [3, 5].contains(&streams)
            && segments >= segments_min
            && area_blocks >= end / 146 + TRAILER_BLOCKS
            && first > 2 * area_blocks
            && end <= from.length / from.block
            && end < u64::from(u32::MAX)
            && u64::from(from.slots) < end;
        let (instance, block) = (from.instance, from.block);
        sound.then_some(Region { instance, block, segment_blocks, segments, first, area_blocks })
    }

    pub(super) fn segment_at(&self, segment: u64) -> u64 {
        (self.first + segment * self.segment_blocks) * self.block
    }

    /// The segment of a data block, or `None` where no data block can be.
    fn segment_of(&self, location: u64) -> Option<u64> {
        let within = location.checked_sub(self.first)?;
        let segment = within / self.segment_blocks;
        let data = within % self.segment_blocks >= 2;
        (segment < self.segments && data).then_some(segment)
    }
}

#[derive(Clone, Default)]
pub(super) struct Checkpoint {
    /// The first block of its trailer, and those from there to the area's end.
    pub(super) at: u64,
    pub(super) room: u64,
    /// Blocks of the trailer that lack it or a part of it, but for those that cannot be read.
    pub(super) lost: Vec<u64>,
    pub(super) seq: u64,
    pub(super) end: u64,
    /// The full one of its area, the one before, and how many there are before.
    pub(super) base: u64,
    pub(super) previous: u64,
    pub(super) ordinal: u64,
    pub(super) chunks: u64,
    pub(super) entries: u64,
    pub(super) open: Vec<(u64, u64, u64)>,
    pub(super) flights: Vec<u64>,
    pub(super) retired: Vec<u64>,
}

/// A block that may survive.
#[derive(Clone, Copy)]
struct Candidate {
    seq: u64,
    location: u64,
    crc: u32,
    dirty: bool,
    from_checkpoint: bool,
    /// Where the checkpoint names the block a second time.
    twice_at: Option<u64>,
    verified: bool,
}

pub(super) fn check<R: ReadAt + ?Sized>(bytes: &mut Bytes<'_, R>, from: &Superblock, full: bool) {
    let Some(region) = Region::read(from) else {
        bytes.report.problem(68, "the superblock's numbers contradict each other".into());
        return;
    };
    let newest = newest_checkpoint(bytes, &region).unwrap_or_default();
    let (checkpoint, mut table, mut lost) = read_chain(bytes, &region, newest);
    let mut generations = read_headers(bytes, &region, &checkpoint);
    let mut batches = read_batches(bytes, &region, &checkpoint, &generations);
    mend(bytes, &region, &checkpoint, &mut generations, &mut batches);
    drop_reused(&region, &checkpoint, &generations, &mut table);
    // Another opening may have found what power loss left of the trailer.
    let is_of_opening = |it: &Batch| it.checkpoint >= checkpoint.seq && it.epoch <= checkpoint.seq;
    if batches.iter().any(is_of_opening) {
        name_lost(bytes, &region, &checkpoint);
    }
    let durable = judge(bytes, &region, &checkpoint, &batches);
    lay_over(bytes, &checkpoint, &batches, &durable, &mut table, &mut lost);
    bytes.report.lost = lost.into_runs();
    look_at(bytes, &region, &table, full);
}

fn newest_checkpoint<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
) -> Option<Checkpoint> {
    let fulls = [0, 1].map(|area| {
        let first = 1 + area * region.area_blocks;
        let is_full = |it: &Checkpoint| it.ordinal == 0 && it.base == it.seq;
        read_trailer(bytes, region, (first, region.area_blocks), is_full)
    });
    let newest = fulls.into_iter().flatten().max_by_key(|found| found.seq)?;
    bytes.expect_seqs(newest.at * region.block, &[newest.seq, newest.end]);
    Some(newest)
}

/// The trailer of a checkpoint, full or increment, as wanted, at a block with so many from there on
/// in its area. Either of its two blocks serves; one that the last write has not reached may have
/// an older one.
fn read_trailer<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    (at, room): (u64, u64),
    is_wanted: impl Fn(&Checkpoint) -> bool,
) -> Option<Checkpoint> {
    let mut found = Vec::new();
    let mut is_torn = false;
    for at in at..at + TRAILER_BLOCKS {
        let Some(page) = bytes.get(at * region.block, 4096) else { continue };
        let is_sound = |page: &[u8]| named(page, b"LAYBYCKT", region) && is_sealed(page);
        let rebuilt = rebuilt(&page, is_sound);
        let trailer = trailer(rebuilt.as_deref().unwrap_or(&page), region);
        is_torn |= trailer.is_none() && named(&page, b"LAYBYCKT", region);
        found.push((at, trailer.filter(|it| is_wanted(it)), rebuilt.is_some()));
    }
    let newest = found.iter().filter_map(|(_, trailer, _)| trailer.as_ref());
    let Some(newest) = newest.max_by_key(|trailer| trailer.seq).cloned() else {
        bytes.report.counts.torn += u64::from(is_torn);
        return None;
    };
    let is_whole = |trailer: &Option<Checkpoint>, is_rebuilt: bool| {
        !is_rebuilt && trailer.as_ref().is_some_and(|it| it.seq == newest.seq)
    };
    let lost = found.iter().filter(|(_, trailer, is_rebuilt)| !is_whole(trailer, *is_rebuilt));
    let lost = lost.map(|(at, ..)| *at).collect();
    Some(Checkpoint { at, room, lost, ..newest })
}

/// Names blocks that lack a trailer that was written whole.
fn name_lost<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
) {
    for at in &checkpoint.lost {
        let name = format!("the trailer of checkpoint {}", checkpoint.seq);
        let sentence = format!("a page of {name} is damaged; nothing is lost with it");
        bytes.report.problem(at * region.block, sentence);
    }
}

/// What a page says, but for its place; `None` for anything but a sound trailer.
fn trailer(page: &[u8], region: &Region) -> Option<Checkpoint> {
    let open = u32_at(page, 48) as usize;
    // One that lists more than it can is no trailer, whatever its checksum says.
    let retired = u32_at(page, 200) as usize;
    let is_sound = named(page, b"LAYBYCKT", region) && is_sealed(page);
    if !is_sound || open > 5 || retired > 830 {
        return None;
    }
    let open = (0..open).map(|index| {
        let at = 56 + 16 * index;
        (u32_at(page, at).into(), u32_at(page, at + 4).into(), u64_at(page, at + 8))
    });
    Some(Checkpoint {
        seq: u64_at(page, 16),
        end: u64_at(page, 24),
        base: u64_at(page, 3564),
        previous: u64_at(page, 3572),
        ordinal: u32_at(page, 52).into(),
        chunks: u32_at(page, 32).into(),
        entries: u64_at(page, 40),
        open: open.collect(),
        flights: (0..5).map(|stream| u64_at(page, 204 + 8 * stream)).collect(),
        retired: (0..retired).map(|index| u32_at(page, 244 + 4 * index).into()).collect(),
        ..Checkpoint::default()
    })
}

/// The entries of a full checkpoint with those of the increments behind it laid over, as of the
/// last one.
fn read_chain<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    full: Checkpoint,
) -> (Checkpoint, HashMap<u64, Candidate>, Lost) {
    let (mut slots, mut last, mut incomplete_at) = (BTreeMap::new(), full, None);
    let lost = loop {
        let (lost, is_whole) = read_entries(bytes, region, &last, &mut slots);
        incomplete_at = (!is_whole).then_some(last.at * region.block).or(incomplete_at);
        let blocks = TRAILER_BLOCKS + last.chunks + parity_pages(last.chunks, last.room);
        if blocks + TRAILER_BLOCKS > last.room {
            break lost;
        }
        let follows = |next: &Checkpoint| {
            let names = (next.base, next.previous, next.ordinal);
            names == (last.base, last.seq, last.ordinal + 1) && next.seq > last.seq
        };
        let place = (last.at + blocks, last.room - blocks);
        let Some(next) = read_trailer(bytes, region, place, follows) else { break lost };
        name_lost(bytes, region, &last);
        bytes.expect_seqs(next.at * region.block, &[next.seq, next.end]);
        last = next;
    };
    if let Some(at) = incomplete_at {
        undecided(bytes, at, last.seq);
    }
    let mut table = HashMap::new();
    for (key, candidate, at) in slots.into_values() {
        let twice_at = table.contains_key(&key).then_some(at);
        table.insert(key, Candidate { seq: last.seq, twice_at, ..candidate });
    }
    (last, table, lost)
}

/// By slot: block, candidate, and the byte of the chunk that has it.
type Slots = BTreeMap<u32, (u64, Candidate, u64)>;

/// The entries of a checkpoint as they are gathered.
struct Entries<'a> {
    /// Of this checkpoint and those before it in its area.
    slots: &'a mut Slots,
    lost: Lost,
    /// Slots that this checkpoint names.
    named: HashSet<u32>,
    count: u64,
}

impl Entries<'_> {
    /// Takes those of a sound chunk, which lies at byte `at`.
    fn take<R: ReadAt + ?Sized>(
        &mut self,
        bytes: &mut Bytes<'_, R>,
        (region, seq): (&Region, u64),
        (page, at): (&[u8], u64),
    ) {
        for position in 0..u32_at(page, 28) as usize {
            let entry = &page[64 + 24 * position..];
            self.count += 1;
            if is_lost_entry(entry) {
                self.lost.add(entry);
                continue;
            }
            let slot = u32_at(entry, 8);
            if !self.named.insert(slot) {
                let sentence = format!("slot {slot} is in the checkpoint twice");
                bytes.report.problem(at, sentence);
            }
            // Nothing is in the slot any more.
            if u32_at(entry, 12) == u32::MAX {
                self.slots.remove(&slot);
                continue;
            }
            let candidate = Candidate {
                seq,
                location: u32_at(entry, 12).into(),
                crc: u32_at(entry, 16),
                dirty: u32_at(entry, 20) & 1 != 0,
                from_checkpoint: true,
                twice_at: None,
                verified: false,
            };
            let key = u64_at(entry, 0);
            if region.segment_of(candidate.location).is_none() {
                let name = block_name(key);
                bytes.report.problem(at, format!("{name} lies outside of all segments"));
            } else {
                self.slots.insert(slot, (key, candidate, at));
            }
        }
    }
}

fn is_chunk(page: &[u8], region: &Region, seq: u64, index: u64) -> bool {
    named(page, b"LAYBYCKC", region)
        && u64_at(page, 16) == seq
        && u64::from(u32_at(page, 24)) == index
        && u32_at(page, 28) <= 146
        && u32_at(page, 36) == crc(&[&page[..36]])
        && u32_at(page, 32) == crc(&[&page[64..3584]])
}

/// Pages of parity behind so many chunks: one for 32 to 64 of them, a power of two, 16 at most,
/// and none where the area has no room.
fn parity_pages(chunks: u64, area_blocks: u64) -> u64 {
    let mut pages = 1;
    while pages < 16 && chunks / 32 >= 2 * pages {
        pages *= 2;
    }
    if chunks > 0 && chunks + pages + TRAILER_BLOCKS <= area_blocks { pages } else { 0 }
}

fn read_entries<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
    slots: &mut Slots,
) -> (Lost, bool) {
    let (lost, named) = (Lost::default(), HashSet::new());
    let mut entries = Entries { slots, lost, named, count: 0 };
    let (seq, pages) = (checkpoint.seq, parity_pages(checkpoint.chunks, checkpoint.room));
    let (mut sums, mut missing) = (vec![vec![0_u8; 4096]; pages as usize], Vec::new());
    let first = checkpoint.at + TRAILER_BLOCKS;
    for index in 0..checkpoint.chunks.min(checkpoint.room.saturating_sub(TRAILER_BLOCKS)) {
        let at = (first + index) * region.block;
        let page = bytes.get(at, 4096).unwrap_or_else(|| vec![0; 4096]);
        let is_sound = |page: &[u8]| is_chunk(page, region, seq, index);
        let rebuilt = rebuilt(&page, is_sound);
        if rebuilt.is_some() {
            let sentence = format!("a sector of chunk {index} of the checkpoint is damaged");
            bytes.report.problem(at, sentence);
        }
        let page = rebuilt.unwrap_or(page);
        if !is_sound(&page) {
            missing.push((index, at));
            continue;
        }
        if pages > 0 {
            add(&mut sums[(index % pages) as usize], &page);
        }
        entries.take(bytes, (region, seq), (&page, at));
    }
    for (index, at) in missing {
        let guard = (pages > 0).then(|| (first + checkpoint.chunks + index % pages) * region.block);
        let rest = guard.and_then(|guard| bytes.get(guard, 4096)).map(|mut page| {
            add(&mut page, &sums[(index % pages) as usize]);
            page
        });
        let rest = rest.filter(|page| is_chunk(page, region, seq, index));
        let made_up = if rest.is_some() { "; its parity page makes up for it" } else { "" };
        bytes.report.problem(at, format!("chunk {index} of the checkpoint is damaged{made_up}"));
        if let Some(page) = rest {
            entries.take(bytes, (region, seq), (&page, at));
        }
    }
    let Entries { lost, count, .. } = entries;
    if count != checkpoint.entries {
        let sentence = format!("checkpoint has {count} of its {} entries", checkpoint.entries);
        bytes.report.problem(checkpoint.at * region.block, sentence);
    }
    (lost, count == checkpoint.entries)
}

fn add(sum: &mut [u8], page: &[u8]) {
    sum.iter_mut().zip(page).for_each(|(sum, byte)| *sum ^= byte);
}

/// What damage leaves open.
pub(super) fn undecided<R: ReadAt + ?Sized>(bytes: &mut Bytes<'_, R>, at: u64, upto: u64) {
    let sentence = format!("a start loses all blocks that have no record younger than {upto}");
    bytes.report.problem(at, sentence);
}

pub(super) fn named(page: &[u8], magic: &[u8; 8], region: &Region) -> bool {
    page[..8] == magic[..] && u64_at(page, 8) == region.instance
}

fn is_sealed(page: &[u8]) -> bool {
    let (stored, computed) = page_crcs(page);
    stored == computed
}

/// Generation and stream of each segment with a sound header.
fn read_headers<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
) -> BTreeMap<u64, (u64, u32)> {
    let mut generations = BTreeMap::new();
    // What is retired holds nothing and need not be readable.
    let in_use = |segment: &u64| checkpoint.retired.binary_search(segment).is_err();
    for segment in (0..region.segments).filter(in_use) {
        let page = bytes.get(region.segment_at(segment), 4096);
        let page = page.unwrap_or_else(|| vec![u8::MAX; 4096]);
        let is_sound = |page: &[u8]| {
            named(page, b"LAYBYSEG", region)
                && is_sealed(page)
                && u64::from(u32_at(page, 16)) == segment
                && u32_at(page, 20) < 5
        };
        let rebuilt = rebuilt(&page, is_sound);
        // Power loss may have cut it short, together with a first batch that counts all the same.
        bytes.report.counts.torn += u64::from(rebuilt.is_some());
        let page = rebuilt.unwrap_or(page);
        // One that a start wrote anew, for a checkpoint that showed the segment's age.
        let is_baseless = u32_at(&page, 32) != 0 && u64_at(&page, 24) > checkpoint.seq;
        if is_sound(&page) && is_baseless {
            let of = format!("the header of segment {segment} was written anew");
            let sentence = format!("{of} for checkpoint {}, which is lost", u64_at(&page, 24));
            bytes.report.problem(region.segment_at(segment), sentence);
        }
        if is_sound(&page) && !is_baseless {
            bytes.expect_seqs(region.segment_at(segment), &[u64_at(&page, 24)]);
            generations.insert(segment, (u64_at(&page, 24), u32_at(&page, 20)));
        } else if page.iter().any(|byte| *byte != 0) {
            let first = first_descriptor(bytes, region, segment);
            bytes.report.counts.torn += u64::from(first.is_some());
            generations.extend(first.map(|first| (segment, first)));
        }
    }
    generations
}

/// Generation and stream by the descriptor behind a header that is lost.
fn first_descriptor<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    segment: u64,
) -> Option<(u64, u32)> {
    let at = region.segment_at(segment) + region.block;
    let page = bytes.get(at, 4096)?;
    let is_here = |page: &[u8]| {
        is_descriptor(page, region) && u64::from(u32_at(page, 136)) * region.block == at
    };
    let page = rebuilt(&page, is_here).unwrap_or(page);
    is_here(&page).then(|| (u64_at(&page, 16), u32_at(&page, 140)))
}

/// Entries of segments opened after the checkpoint's end are of the past.
fn drop_reused(
    region: &Region,
    checkpoint: &Checkpoint,
    generations: &BTreeMap<u64, (u64, u32)>,
    table: &mut HashMap<u64, Candidate>,
) {
    table.retain(|_, candidate| {
        let segment = region.segment_of(candidate.location).unwrap_or(u64::MAX);
        generations.get(&segment).is_none_or(|(generation, _)| *generation <= checkpoint.end)
    });
}

/// Lays the batches' records over the checkpoint's.
fn lay_over<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    checkpoint: &Checkpoint,
    batches: &[Batch],
    durable: &HashSet<u64>,
    table: &mut HashMap<u64, Candidate>,
    lost: &mut Lost,
) {
    let mut tombstones: Vec<(u64, u64, u64)> = Vec::new();
    let mut forgets: HashMap<u64, u64> = HashMap::new();
    let mut void: HashSet<u64> = HashSet::new();
    for batch in batches {
        let mut torn = false;
        for record in &batch.records {
            match record.kind {
                1 | 2 => torn |= !offer(table, checkpoint, batch, record, durable),
                3 | 4 => {
                    let last = (record.key | ((1 << 44) - 1))
                        .min(record.key.saturating_add(record.count.saturating_sub(1)));
                    tombstones.push((record.key, last, record.seq));
                }
                5 => {
                    let newest = forgets.entry(record.key).or_default();
                    *newest = record.seq.max(*newest);
                }
                // Kind 6 ends what kinds 3, 4 and 8 ask of the backing store; 8 kills nothing.
                7 => {
                    void.insert(record.key);
                }
                _ => {}
            }
        }
        bytes.report.counts.torn += u64::from(torn);
    }
    tombstones.retain(|(.., seq)| !void.contains(seq));
    let records = table.iter().filter(|(_, candidate)| !candidate.from_checkpoint);
    let mut known: Vec<(u64, u64)> = records.map(|(key, _)| (*key, *key)).collect();
    known.extend(tombstones.iter().map(|(first, last, _)| (*first, *last)));
    known.extend(forgets.keys().map(|key| (*key, *key)));
    lost.remove(&known);
    table.retain(|key, candidate| {
        forgets.get(key).is_none_or(|seq| candidate.seq > *seq)
            && !tombstones.iter().any(|(first, last, seq)| {
                (first..=last).contains(&key) && (candidate.from_checkpoint || candidate.seq < *seq)
            })
    });
}

/// Enters a record if it is its block's newest; false when its data is torn.
fn offer(
    table: &mut HashMap<u64, Candidate>,
    checkpoint: &Checkpoint,
    batch: &Batch,
    record: &Record,
    durable: &HashSet<u64>,
) -> bool {
    let sound = record.crc == record.computed;
    if !sound && !durable.contains(&batch.seq) {
        return false;
    }
    let copy = batch.stream >= 3;
    if copy && record.seq <= checkpoint.seq {
        return true;
    }
    let candidate = Candidate {
        seq: record.seq,
        location: record.location,
        crc: record.crc,
        dirty: record.kind == 2,
        from_checkpoint: false,
        twice_at: None,
        verified: sound,
    };
    let current = table.entry(record.key).or_insert(candidate);
    let twin = record.seq == current.seq && sound && (copy || !current.verified);
    if current.from_checkpoint || record.seq > current.seq || twin {
        *current = candidate;
    }
    true
}

/// Looks at the blocks that would survive. One that was stored anew while the checkpoint was
/// written may be in it at both places: the record of the second store then lies behind it and
/// prevails. A block that is twice in a checkpoint and in no record is damage.
fn look_at<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    table: &HashMap<u64, Candidate>,
    full: bool,
) {
    let mut places: Vec<(u64, u64)> =
        table.iter().map(|(key, candidate)| (candidate.location, *key)).collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        if pair[0].0 == pair[1].0 {
            let (one, other) = (block_name(pair[0].1), block_name(pair[1].1));
            let sentence = format!("{one} and {other} lie in the same place");
            bytes.report.problem(pair[0].0 * region.block, sentence);
        }
    }
    bytes.report.counts.blocks_live = places.len() as u64;
    for (location, key) in places {
        let candidate = table[&key];
        if candidate.dirty {
            bytes.report.count_dirty(key);
        }
        if let Some(at) = candidate.twice_at {
            let name = block_name(key);
            bytes.report.problem(at, format!("{name} is in the checkpoint twice"));
        }
        if candidate.verified || (candidate.from_checkpoint && !full) {
            bytes.report.counts.blocks_verified += u64::from(candidate.verified);
            continue;
        }
        let at = location * region.block;
        let Some(data) = bytes.get(at, region.block as usize) else { continue };
        bytes.report.counts.blocks_verified += 1;
        let (stored, computed) = (candidate.crc, crc(&[&data]));
        if stored != computed {
            let values = format!("stored {stored:08x}, computed {computed:08x}");
            let name = block_name(key);
            let sentence = format!("data of {name} does not match its checksum: {values}");
            bytes.report.problem(at, sentence);
        }
    }
}
