//! The batches of a log, for `layby check`: those found, those that others vouch for, and those
//! whose descriptor or segment header is lost and made up for.
//!
//! How: segments that may hold batches behind the checkpoint are walked; then what a batch names
//! and is not there comes from the copy in the descriptor that was written next, or from a search
//! of its segment, as a start does it.
//! Invariant: as in the parent. Cost: as in the parent.

use super::log::{Checkpoint, Region, named, undecided};
use super::{Bytes, ReadAt, crc, rebuilt, u16_at, u32_at, u64_at};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Entries of a batch at most.
const ENTRIES_MAX: u16 = 51;

pub(super) struct Batch {
    pub(super) at: u64,
    pub(super) is_rebuilt: bool,
    pub(super) stream: u32,
    pub(super) seq: u64,
    pub(super) epoch: u64,
    pub(super) upto: u64,
    pub(super) checkpoint: u64,
    pub(super) previous: u64,
    pub(super) named: Vec<(u64, u64)>,
    pub(super) records: Vec<Record>,
    /// The seq of the batch whose descriptor it has a copy of; 0 for none.
    pub(super) copied: u64,
}

pub(super) struct Record {
    pub(super) key: u64,
    pub(super) seq: u64,
    pub(super) kind: u32,
    pub(super) count: u64,
    pub(super) crc: u32,
    pub(super) location: u64,
    pub(super) computed: u32,
}

pub(super) fn read_batches<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
    generations: &BTreeMap<u64, (u64, u32)>,
) -> Vec<Batch> {
    let mut batches = Vec::new();
    for (segment, header) in generations {
        read_segment(bytes, region, checkpoint, (*segment, *header), &mut batches);
    }
    batches
}

/// Reads what of a segment may be behind the checkpoint.
fn read_segment<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
    (segment, (generation, stream)): (u64, (u64, u32)),
    batches: &mut Vec<Batch>,
) {
    let open = checkpoint.open.iter().find(|open| open.0 == segment && open.2 == generation);
    let from = match open {
        _ if generation > checkpoint.seq => 1,
        Some((_, fill, _)) => (*fill).max(1),
        None => return,
    };
    if from >= region.segment_blocks {
        return;
    }
    let start = region.segment_at(segment) + from * region.block;
    let length = (region.segment_blocks - from) * region.block;
    let content = bytes.get_what_is_left(start, length as usize, region.block as usize);
    walk(bytes, region, generation, stream, start, &content, batches);
}

/// Adds the batches that others vouch for and whose descriptor, or segment header, is lost: from
/// the copy in the descriptor that was written next, or by a search of the segment.
pub(super) fn mend<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
    headers: &mut BTreeMap<u64, (u64, u32)>,
    batches: &mut Vec<Batch>,
) {
    loop {
        let before = batches.len();
        for (seq, segment) in vouched(checkpoint, batches).missing {
            let copy = copy_of(bytes, region, batches, seq);
            if segment < region.segments && !headers.contains_key(&segment) {
                let known = copy.as_ref().map(|page| (u64_at(page, 16), u32_at(page, 140)));
                if let Some(header) = known.or_else(|| search(bytes, region, segment, seq)) {
                    let sentence = format!("the header of segment {segment} is damaged");
                    bytes.report.problem(region.segment_at(segment), sentence);
                    headers.insert(segment, header);
                    read_segment(bytes, region, checkpoint, (segment, header), batches);
                }
            }
            let is_found = batches.iter().any(|batch| batch.seq == seq);
            if let Some(page) = copy.filter(|_| !is_found) {
                take_copy(bytes, region, &page, batches);
            }
        }
        if batches.len() == before {
            return;
        }
    }
}

/// A descriptor's page, whose end is not, from its copy.
fn copy_of<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    batches: &[Batch],
    seq: u64,
) -> Option<Vec<u8>> {
    let next = batches.iter().find(|batch| batch.copied == seq)?;
    let page = bytes.get(next.at, 4096)?;
    let is_sound = |page: &[u8]| is_descriptor(page, region);
    let page = rebuilt(&page, is_sound).unwrap_or(page);
    if !is_sound(&page) {
        return None;
    }
    let copy = &page[own_part(&page)..3584];
    let length = own_part(copy);
    let (entries, blocks) = (u16_at(copy, 56), u16_at(copy, 58));
    let is_whole = entries <= ENTRIES_MAX && blocks <= entries && u32_at(copy, 140) < 5;
    if !named(copy, b"LAYBYBAT", region) || length > copy.len() || !is_whole {
        return None;
    }
    let location = u64::from(u32_at(copy, 136));
    let end = location + 1 + u64::from(u16_at(copy, 58));
    let mut whole = vec![0; 4096];
    whole[..length].copy_from_slice(&copy[..length]);
    (location >= region.first && end <= region.first + region.segments * region.segment_blocks)
        .then_some(whole)
}

/// Generation and stream of the segment that has a descriptor, by that descriptor.
fn search<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    segment: u64,
    seq: u64,
) -> Option<(u64, u32)> {
    let length = region.segment_blocks * region.block;
    let (at, block) = (region.segment_at(segment), region.block as usize);
    let content = bytes.get_what_is_left(at, length as usize, block);
    content.chunks_exact(region.block as usize).find_map(|page| {
        let is_sound = |page: &[u8]| is_descriptor(page, region);
        let rebuilt = rebuilt(page, is_sound);
        let page = rebuilt.as_deref().unwrap_or(page);
        let is_it = is_sound(page) && u64_at(page, 24) == seq;
        is_it.then(|| (u64_at(page, 16), u32_at(page, 140)))
    })
}

fn take_copy<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    page: &[u8],
    batches: &mut Vec<Batch>,
) {
    let location = u64::from(u32_at(page, 136));
    let at = location * region.block;
    let blocks = u64::from(u16_at(page, 58));
    let data = match blocks {
        0 => Vec::new(),
        _ => {
            let length = (blocks * region.block) as usize;
            bytes.get(at + region.block, length).unwrap_or_else(|| vec![0; length])
        }
    };
    let batch = batch(bytes, region, at, page, &data, (u32_at(page, 140), true));
    batches.push(Batch { copied: 0, ..batch });
}

/// Where the entries of a descriptor end.
fn own_part(page: &[u8]) -> usize {
    160 + 32 * usize::from(u16_at(page, 56))
}

/// A sound descriptor of whatever segment.
pub(super) fn is_descriptor(page: &[u8], region: &Region) -> bool {
    let (entries, blocks) = (u16_at(page, 56), u16_at(page, 58));
    named(page, b"LAYBYBAT", region)
        && u32_at(page, 156) == crc(&[&page[..156], &page[160..3584]])
        && entries <= ENTRIES_MAX
        && blocks <= entries
        && u32_at(page, 140) < 5
}

fn walk<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    generation: u64,
    stream: u32,
    start: u64,
    content: &[u8],
    batches: &mut Vec<Batch>,
) {
    let block = region.block as usize;
    let mut at = 0;
    while at < content.len() {
        let behind = &content[at..];
        let is_named =
            |page: &[u8]| named(page, b"LAYBYBAT", region) && u64_at(page, 16) == generation;
        let is_sound = |page: &[u8]| {
            let end = at + (1 + usize::from(u16_at(page, 58))) * block;
            is_named(page)
                && is_descriptor(page, region)
                && u64::from(u32_at(page, 136)) * region.block == start + at as u64
                && end <= content.len()
        };
        let rebuilt = rebuilt(behind, is_sound);
        let page = rebuilt.as_deref().unwrap_or(&behind[..4096]);
        if !is_sound(page) {
            bytes.report.counts.torn += u64::from(is_named(page));
            at += block;
            continue;
        }
        let offset = start + at as u64;
        let how = (stream, rebuilt.is_some());
        batches.push(batch(bytes, region, offset, page, &behind[block..], how));
        at += (1 + usize::from(u16_at(page, 58))) * block;
    }
}

/// A batch by its descriptor, which lies at byte `offset`, and its data.
fn batch<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    offset: u64,
    page: &[u8],
    data: &[u8],
    (stream, is_rebuilt): (u32, bool),
) -> Batch {
    let sizes = (u16_at(page, 56).into(), u16_at(page, 58).into());
    let first = offset / region.block + 1;
    bytes.expect_seqs(offset, &[24, 32, 40, 48].map(|at| u64_at(page, at)));
    let records = records(bytes, offset, (page, data), sizes, first, region.block as usize);
    bytes.report.counts.records += 1;
    let copy = &page[own_part(page)..];
    Batch {
        at: offset,
        is_rebuilt,
        stream,
        seq: u64_at(page, 24),
        epoch: u64_at(page, 32),
        upto: u64_at(page, 40),
        checkpoint: u64_at(page, 48),
        previous: u64_at(page, 68),
        named: (0..6)
            .map(|i| (u32_at(page, 64 + 12 * i).into(), u64_at(page, 68 + 12 * i)))
            .collect(),
        records,
        copied: if named(copy, b"LAYBYBAT", region) { u64_at(copy, 24) } else { 0 },
    }
}

fn records<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    offset: u64,
    (page, behind): (&[u8], &[u8]),
    (entries, blocks): (usize, usize),
    first: u64,
    block: usize,
) -> Vec<Record> {
    let mut data = 0;
    let mut records = Vec::new();
    for index in 0..entries {
        let entry = &page[160 + 32 * index..];
        let kind = u32_at(entry, 24);
        if !(1..=8).contains(&kind) {
            bytes.report.problem(offset, format!("entry {index} of a batch is of kind {kind}"));
            continue;
        }
        bytes.expect_seqs(offset, &[u64_at(entry, 8)]);
        let mut computed = 0;
        let location = first + data as u64;
        if kind <= 2 {
            if data < blocks {
                computed = crc(&[&behind[data * block..(1 + data) * block]]);
            }
            data += 1;
        }
        records.push(Record {
            key: u64_at(entry, 0),
            seq: u64_at(entry, 8),
            kind,
            count: u64_at(entry, 16),
            crc: u32_at(entry, 20),
            location,
            computed,
        });
    }
    if data != blocks {
        let sentence = format!("a batch names {data} blocks and holds {blocks}");
        bytes.report.problem(offset, sentence);
    }
    records
}

/// What batches say of others.
#[derive(Default)]
struct Vouched {
    /// Known durable, by seq.
    durable: HashSet<u64>,
    /// Of these, what is not there: seq and segment.
    missing: BTreeMap<u64, u64>,
}

fn vouched(checkpoint: &Checkpoint, batches: &[Batch]) -> Vouched {
    let mut upto: HashMap<u64, u64> = HashMap::new();
    for batch in batches {
        let best = upto.entry(batch.epoch).or_default();
        *best = batch.upto.max(*best);
    }
    let present: HashSet<u64> = batches.iter().map(|batch| batch.seq).collect();
    let mut found = Vouched::default();
    for batch in batches {
        if batch.seq <= upto[&batch.epoch] {
            found.durable.insert(batch.seq);
        }
        let vouches = |index: usize| index > 0 || batch.previous <= upto[&batch.epoch];
        for (index, (segment, seq)) in batch.named.iter().enumerate() {
            if *seq == 0 || !vouches(index) {
                continue;
            }
            found.durable.insert(*seq);
            let is_wanted = *seq > checkpoint.seq || checkpoint.flights.contains(seq);
            if is_wanted && !present.contains(seq) {
                found.missing.insert(*seq, *segment);
            }
        }
    }
    found
}

/// The batches that others vouch for; reports those vouched for that are missing.
pub(super) fn judge<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    checkpoint: &Checkpoint,
    batches: &[Batch],
) -> HashSet<u64> {
    let Vouched { durable, missing } = vouched(checkpoint, batches);
    for batch in batches.iter().filter(|batch| batch.checkpoint > checkpoint.seq) {
        let (newer, found) = (batch.checkpoint, checkpoint.seq);
        let sentence = format!("a batch knows of checkpoint {newer}, the newest is {found}");
        bytes.report.problem(batch.at, sentence);
        undecided(bytes, batch.at, newer);
    }
    // Of others power loss may have kept a sector.
    for batch in batches.iter().filter(|batch| batch.is_rebuilt && durable.contains(&batch.seq)) {
        let sentence = format!("the descriptor of batch {} is damaged, and made up for", batch.seq);
        bytes.report.problem(batch.at, sentence);
    }
    for (seq, segment) in &missing {
        let at = region.segment_at((*segment).min(region.segments - 1));
        let sentence = format!("batch {seq} was durable in segment {segment} and is missing");
        bytes.report.problem(at, sentence);
    }
    if let Some((seq, segment)) = missing.last_key_value() {
        let at = region.segment_at((*segment).min(region.segments - 1));
        undecided(bytes, at, checkpoint.seq.max(*seq));
    }
    durable
}
