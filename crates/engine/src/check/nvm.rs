//! The NVM part of `layby check`: headers, and the data behind them.
//!
//! How: a header is four words; all zero is free, some zero is torn, none zero must match its
//! checksum. Each has a copy, which counts where the header is not sound. Data stored since the
//! mark may be torn; older data must match, and all data where the mark is damaged or cannot be
//! read, as data that cannot be read counts as damaged, not as torn.
//! Invariant: as in the parent. Cost: 32 bytes per slot; with `full` all data.

use super::{Bytes, ReadAt, Superblock, block_name, crc, u32_at, u64_at};
use std::collections::{HashMap, HashSet};

const PAGE: u64 = 4096;
const HEADER: u64 = 32;

struct Region {
    instance: u64,
    block: u64,
    physical: u32,
    headers_first: u64,
    copies_first: u64,
    data_first: u64,
    /// `None` where it is not known: both copies are damaged.
    mark: Option<u64>,
    /// Pages of headers and copies that cannot be read.
    unreadable: HashSet<u64>,
    full: bool,
}

struct Header {
    key: u64,
    seq: u64,
    dirty: bool,
}

pub(super) fn check<R: ReadAt + ?Sized>(bytes: &mut Bytes<'_, R>, from: &Superblock, full: bool) {
    let [physical, headers, data, ..] = from.geometry;
    let block = from.block;
    let copies_first =
        u64::from(headers) * block + (u64::from(physical) * 32).next_multiple_of(block);
    let headers_end = copies_first + u64::from(physical) * 32;
    let end = (u64::from(data) + u64::from(physical)) * block;
    let sound = headers >= 2 && headers_end <= u64::from(data) * block && end <= from.length;
    if !sound || from.slots == 0 || from.slots >= physical {
        bytes.report.problem(68, "the superblock's numbers contradict each other".into());
        return;
    }
    let mut region = Region {
        instance: from.instance,
        block,
        physical,
        headers_first: u64::from(headers) * block,
        copies_first,
        data_first: u64::from(data) * block,
        mark: None,
        unreadable: HashSet::new(),
        full,
    };
    region.mark = mark(bytes, &region);
    bytes.expect_seqs(region.block, &[region.mark.unwrap_or(0)]);
    region.unreadable = unreadable(bytes, &region);
    let mut newest: HashMap<u64, Header> = HashMap::new();
    for index in 0..region.physical {
        let Some(header) = check_slot(bytes, &region, index) else { continue };
        bytes.report.counts.records += 1;
        let best = newest.entry(header.key).or_insert(Header { seq: 0, ..header });
        if header.seq > best.seq {
            *best = header;
        }
    }
    bytes.report.counts.blocks_live = newest.len() as u64;
    let dirty = newest.values().filter(|header| header.dirty);
    dirty.for_each(|header| bytes.report.count_dirty(header.key));
    bytes.report.nvm_keys = newest.into_keys().collect();
}

/// The newer of the two sound copies; 0 where none was ever written whole.
fn mark<R: ReadAt + ?Sized>(bytes: &mut Bytes<'_, R>, region: &Region) -> Option<u64> {
    let page = bytes.get(region.block, PAGE as usize)?;
    let (mut mark, mut is_damaged) = (0, false);
    for copy in [&page[..16], &page[512..528]] {
        let computed = crc(&[&copy[..8], &region.instance.to_le_bytes()]);
        let seq = u64_at(copy, 0);
        if u32_at(copy, 8) == computed && u32_at(copy, 12) == 0 && seq <= super::SEQ_MAX {
            mark = mark.max(seq);
        } else {
            // Power loss leaves a word of it zero, where there was none before.
            is_damaged |= seq != 0 && u64_at(copy, 8) != 0;
        }
    }
    if mark == 0 && is_damaged {
        bytes.report.problem(region.block, "neither copy of the NVM mark is sound".into());
        return None;
    }
    Some(mark)
}

/// The pages of headers and copies that cannot be read, each named once.
fn unreadable<R: ReadAt + ?Sized>(bytes: &mut Bytes<'_, R>, region: &Region) -> HashSet<u64> {
    let ends = region.copies_first + u64::from(region.physical) * HEADER;
    let pages = (region.headers_first..ends).step_by(PAGE as usize);
    pages.filter(|page| bytes.get(*page, PAGE as usize).is_none()).collect()
}

/// What a header or its copy turns out to be.
enum State {
    Free,
    Torn,
    Damaged,
    Sound(Vec<u8>),
}

/// The header of a slot or its copy, at `first` and behind; damage is noted.
fn read_header<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    first: u64,
    index: u32,
) -> State {
    let at = first + u64::from(index) * HEADER;
    if region.unreadable.contains(&(at / PAGE * PAGE)) {
        return State::Damaged;
    }
    let Some(header) = bytes.get(at, HEADER as usize) else { return State::Damaged };
    let words: Vec<u64> = (0..4).map(|word| u64_at(&header, word * 8)).collect();
    if words.iter().all(|word| *word == 0) {
        return State::Free;
    }
    if words.contains(&0) {
        return State::Torn;
    }
    let instance = region.instance.to_le_bytes();
    let computed = crc(&[&header[..4], &index.to_le_bytes(), &header[8..32], &instance]);
    let stored = u32_at(&header, 4);
    if stored != computed {
        let values = format!("stored {stored:08x}, computed {computed:08x}");
        bytes.report.problem(at, format!("NVM slot header checksum mismatch: {values}"));
        return State::Damaged;
    }
    State::Sound(header)
}

/// A block that recovery would consider.
fn check_slot<R: ReadAt + ?Sized>(
    bytes: &mut Bytes<'_, R>,
    region: &Region,
    index: u32,
) -> Option<Header> {
    let at = region.headers_first + u64::from(index) * 32;
    let header = read_header(bytes, region, region.headers_first, index);
    let copy = read_header(bytes, region, region.copies_first, index);
    let header = match (header, copy) {
        (State::Sound(header), _) | (_, State::Sound(header)) => header,
        (State::Free, State::Free) => return None,
        (State::Damaged, State::Damaged) => {
            let sentence = format!(
                "which block slot {index} holds cannot be known: a start loses all blocks of which \
                 it might be the newest version"
            );
            bytes.report.problem(at, sentence);
            return None;
        }
        (State::Damaged, _) | (_, State::Damaged) => return None,
        _ => {
            bytes.report.counts.torn += 1;
            return None;
        }
    };
    let words: Vec<u64> = (0..4).map(|word| u64_at(&header, word * 8)).collect();
    bytes.expect_seqs(at, &[words[2]]);
    let flags = u32_at(&header, 0);
    if flags & 4 != 0 {
        return None;
    }
    let found = Header { key: !words[1], seq: words[2], dirty: flags & 2 != 0 };
    // Without a mark a start takes no data for torn.
    let recent = region.mark.is_some_and(|mark| found.seq > mark);
    if !region.full && !recent {
        return Some(found);
    }
    let at = region.data_first + u64::from(index) * region.block;
    let Some(data) = bytes.get(at, region.block as usize) else {
        let sentence = format!("it is data of {}, which counts as damaged", block_name(found.key));
        bytes.report.problem(at, sentence);
        return Some(found);
    };
    bytes.report.counts.blocks_verified += 1;
    let (stored, computed) = (u32_at(&header, 24), crc(&[&data]));
    if stored == computed {
        return Some(found);
    }
    if recent {
        bytes.report.counts.torn += 1;
        return None;
    }
    let values = format!("stored {stored:08x}, computed {computed:08x}");
    let name = block_name(found.key);
    bytes.report.problem(at, format!("data of {name} does not match its checksum: {values}"));
    Some(found)
}
