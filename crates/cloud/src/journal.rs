//! The journal: a ring on a local device that holds, in order, what the cloud does not have yet.
//!
//! How: writes of a turn become a batch: a header page that names ranges and checksums, then their
//! bytes. A batch has a number and a place that both only grow; the ring's place is the remainder.
//! A batch never spans the end, a padding batch fills what is left. Headers carry the number before
//! which everything was durable, so that a scan knows damage from a torn end; where no batch
//! follows a sync, the map file says so a moment later. A header may lose any one sector.
//! Invariant: batches between tail and head follow each other without a gap; nothing behind the
//! tail is needed.
//! Cost: a page of 4 KiB per batch, 24 bytes of it per write. Not for: random access; see `volume`.

use crate::codec::{BLOCKS_MAX, NUMBER_END, Put, Reader, crc32c};
use crate::segment::CHUNK_BYTES;
use layby_types::Nanos;
use layby_types::parity::{CONTENT_BYTES, put_parity, rebuild};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// Bytes of a page: of headers, and what payloads are multiples of.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Smallest ring: four of the longest batches, so that one is written while others travel.
pub const JOURNAL_BYTES_MIN: u64 = 16 << 20;
/// Ring of a volume that says nothing.
pub const JOURNAL_BYTES_DEFAULT: u64 = 1 << 30;
/// Payload of a batch of several writes at most.
pub(crate) const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Writes of a batch at most.
pub(crate) const BATCH_ENTRIES_MAX: usize = 160;

const BATCH_MAGIC: &[u8; 8] = b"LAYBYCJB";
const RING_MAGIC: &[u8; 8] = b"LAYBYCJR";
const HEADER_BYTES: usize = 64;
const CRC_AT: usize = CONTENT_BYTES - 4;
/// How far behind a damaged batch a scan looks for one that vouches for it.
pub(crate) const VOUCH_BYTES: u64 = 64 << 20;

/// Which ring this is, and which life of it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingId {
    /// Drawn when the ring was made.
    pub(crate) instance: u64,
    /// Counts openings, so that a batch that a crash took never comes back behind a new one.
    pub(crate) life: u32,
}

/// What a write did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub(crate) blocks: Range<u64>,
    /// First byte of its payload, as a place of the journal; none where it zeroes.
    pub(crate) at: Option<u64>,
    /// CRC-32C of the payload.
    pub(crate) crc: u32,
}

/// A batch that is in the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) seq: u64,
    /// First byte, as a place of the journal.
    pub(crate) at: u64,
    /// Bytes, its header included.
    pub(crate) bytes: u64,
    pub(crate) entries: Vec<JournalEntry>,
    /// When it was made, by the clock of its host; zero where an earlier build made it.
    pub(crate) since: Nanos,
    /// The life of the ring that wrote it.
    pub(crate) life: u32,
}

/// Why a journal cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub enum JournalError {
    /// The device failed, in its words.
    Device(String),
    /// It is not the ring that the volume's map names.
    Foreign,
    /// An acknowledged batch is damaged, at this byte of the device.
    Damaged(u64),
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Device(cause) => write!(f, "the journal cannot be read: {cause}"),
            JournalError::Foreign => f.write_str("the journal belongs to another volume"),
            JournalError::Damaged(at) => {
                write!(f, "the journal is damaged at byte {at}, where acknowledged data was")
            }
        }
    }
}

/// Where batches go.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) id: RingId,
    /// Bytes of the ring, without the first page of the device.
    pub(crate) capacity: u64,
}

impl Ring {
    /// The device's first page.
    pub(crate) fn superblock(&self) -> Vec<u8> {
        let mut page = RING_MAGIC.to_vec();
        page.put_u64(self.id.instance);
        page.put_u64(self.capacity);
        seal_page(page)
    }

    pub(crate) fn is_own(&self, page: &[u8]) -> bool {
        let is_own = |page: &[u8]| page == self.superblock();
        is_own(page) || rebuild(page, u64::from_le_bytes(*RING_MAGIC), is_own).is_some()
    }

    /// Byte of the device of a place.
    pub(crate) fn device(&self, at: u64) -> u64 {
        PAGE_BYTES + at % self.capacity
    }

    /// Bytes from a place to the ring's end.
    pub(crate) fn until_end(&self, at: u64) -> u64 {
        self.capacity - at % self.capacity
    }
}

fn seal_page(mut page: Vec<u8>) -> Vec<u8> {
    page.resize(CRC_AT, 0);
    let crc = crc32c(&page);
    page.put_u32(crc);
    page.resize(PAGE_BYTES as usize, 0);
    put_parity(&mut page);
    page
}

fn is_sealed(page: &[u8]) -> bool {
    let crc = page[CRC_AT..].first_chunk::<4>().expect("a page has room for it");
    crc32c(&page[..CRC_AT]) == u32::from_le_bytes(*crc)
}

/// A batch's header page.
pub(crate) fn encode_header(ring: &Ring, batch: &Batch, durable_next: u64) -> Vec<u8> {
    let mut page = BATCH_MAGIC.to_vec();
    page.put_u64(ring.id.instance);
    page.put_u64(batch.seq);
    page.put_u64(batch.at);
    page.put_u64(batch.bytes);
    page.put_u64(durable_next);
    page.put_u32(ring.id.life);
    page.put_u32(u32::try_from(batch.entries.len()).expect("a batch is bounded"));
    page.put_u64(batch.since.0);
    assert_eq!(page.len(), HEADER_BYTES, "entries begin at a fixed place");
    for entry in &batch.entries {
        page.put_u64(entry.blocks.start);
        page.put_u64((entry.blocks.end - entry.blocks.start) << 1 | u64::from(entry.at.is_some()));
        page.put_u32(entry.crc);
    }
    assert!(page.len() <= CRC_AT, "a header fits its page");
    seal_page(page)
}

/// Whether a page begins a batch of some journal. The ring's first page does whenever anything was
/// ever written, since no batch spans the end.
pub(crate) fn is_batch(page: &[u8]) -> bool {
    page.starts_with(BATCH_MAGIC)
}

pub(crate) struct Header {
    pub(crate) batch: Batch,
    pub(crate) life: u32,
    pub(crate) durable_next: u64,
}

pub(crate) fn decode_header(ring: &Ring, page: &[u8], block_bytes: u64) -> Option<Header> {
    let page = page.get(..PAGE_BYTES as usize)?;
    let is_whole = page.starts_with(BATCH_MAGIC) && is_sealed(page);
    let rebuilt = match is_whole {
        true => None,
        false => Some(rebuild(page, u64::from_le_bytes(*BATCH_MAGIC), is_sealed)?),
    };
    let body = &rebuilt.as_deref().unwrap_or(page)[..CRC_AT];
    let mut reader = Reader(body);
    if reader.bytes(8)? != BATCH_MAGIC || reader.u64()? != ring.id.instance {
        return None;
    }
    let (seq, at, bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (durable_next, life, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
    let since = Nanos(reader.u64()?);
    if [seq, at, bytes, durable_next].iter().any(|number| *number >= NUMBER_END) {
        return None;
    }
    let mut reader = Reader(&body[HEADER_BYTES..]);
    let (mut entries, mut payload) = (Vec::new(), at + PAGE_BYTES);
    for _ in 0..count {
        let (start, count, crc) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let end = start.checked_add(count >> 1)?;
        if end <= start || end > BLOCKS_MAX {
            return None;
        }
        let blocks = start..end;
        let place = (count & 1 == 1).then_some(payload);
        if place.is_some() {
            let length = (count >> 1).checked_mul(block_bytes)?;
            // No write is longer, and blocks of a payload are counted in 16 bits from here on.
            if length > CHUNK_BYTES as u64 {
                return None;
            }
            payload = payload.checked_add(length)?;
        }
        entries.push(JournalEntry { blocks, at: place, crc });
    }
    let is_sane = payload <= at.checked_add(bytes)? && bytes <= ring.until_end(at);
    let batch = Batch { seq, at, bytes, entries, since, life };
    (is_sane && bytes >= PAGE_BYTES).then_some(Header { batch, life, durable_next })
}

/// Reads bytes of the device.
pub(crate) type ReadDevice<'a> = &'a mut dyn FnMut(u64, u64) -> Result<Vec<u8>, String>;

/// Where a scan begins, and what is known of the journal from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanStart {
    /// Place of the first batch that is needed.
    pub(crate) at: u64,
    /// Its number.
    pub(crate) seq: u64,
    /// The life of the ring that wrote it, or a later one.
    pub(crate) life: u32,
    /// Batches before this one were durable once.
    pub(crate) durable_next: u64,
}

/// What a scan found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Batches that follow each other.
    pub(crate) batches: Vec<Batch>,
    /// Entries of these that were durable and whose payload is damaged, in order.
    pub(crate) damaged: Vec<JournalEntry>,
    /// Byte of the device where a header is damaged of a batch that was durable: what it and those
    /// behind it held is not known.
    pub(crate) ends_at: Option<u64>,
}

/// All batches from a place on, of which the first has the number `seq` and was written by the
/// ring's life `life` or a later one. Behind a batch that a crash tore there may be whole ones,
/// which were never acknowledged; once another batch has taken its place, only their lives tell
/// them apart. A payload that is damaged though its batch was durable stays: its blocks are read
/// with their checksum, so that they are errors and no older versions.
pub(crate) fn scan(
    ring: &Ring,
    start: ScanStart,
    block_bytes: u64,
    read: ReadDevice<'_>,
) -> Result<Scanned, JournalError> {
    let ScanStart { mut at, mut seq, mut life, durable_next } = start;
    let page = read(0, PAGE_BYTES).map_err(JournalError::Device)?;
    if !ring.is_own(&page) {
        return Err(JournalError::Foreign);
    }
    let (mut scanned, from) = (Scanned::default(), at);
    while at - from < ring.capacity {
        let page = read(ring.device(at), PAGE_BYTES).map_err(JournalError::Device)?;
        let header = decode_header(ring, &page, block_bytes)
            .filter(|found| found.batch.seq == seq && found.batch.at == at && found.life >= life);
        let Some(found) = header else { break };
        let damaged = damaged_entries(ring, &found.batch, block_bytes, read)?;
        if !damaged.is_empty() && seq >= durable_next {
            let behind = (at + found.batch.bytes, seq, found.life);
            if !is_vouched(ring, behind, block_bytes, read)? {
                break;
            }
        }
        life = found.life;
        (at, seq) = (at + found.batch.bytes, seq + 1);
        scanned.batches.push(found.batch);
        scanned.damaged.extend(damaged);
    }
    let was_durable = seq < durable_next || is_vouched(ring, (at, seq, life), block_bytes, read)?;
    scanned.ends_at = was_durable.then(|| ring.device(at));
    Ok(scanned)
}

/// Whole batches right before the one of the number `seq` at a place, oldest first: what the store
/// has, and the ring still holds, which ends at the place `head`.
///
/// A chain is taken that leads there without a gap, so that no batch of a client's bytes or of an
/// older life is. What was written last has destroyed the oldest ones first: all up to the last
/// damaged one are left out.
pub(crate) fn scan_before(
    ring: &Ring,
    (at, seq): (u64, u64),
    head: u64,
    block_bytes: u64,
    read: ReadDevice<'_>,
) -> Result<Vec<Batch>, JournalError> {
    let mut first = head.saturating_sub(ring.capacity).next_multiple_of(PAGE_BYTES);
    while first < at {
        let (chain, end) = chain_to(ring, (at, seq), first, block_bytes, read)?;
        match end.cmp(&at) {
            Ordering::Equal => return Ok(chain),
            // What lies before the gap leads to it, and nowhere else.
            Ordering::Less => first = end + PAGE_BYTES,
            Ordering::Greater => first += PAGE_BYTES,
        }
    }
    Ok(Vec::new())
}

/// Batches that follow each other from a place on up to another one or to a gap, those up to the
/// last damaged one left out; and where they end.
fn chain_to(
    ring: &Ring,
    (end, seq): (u64, u64),
    mut at: u64,
    block_bytes: u64,
    read: ReadDevice<'_>,
) -> Result<(Vec<Batch>, u64), JournalError> {
    let mut chain: Vec<Batch> = Vec::new();
    while at < end {
        let page = read(ring.device(at), PAGE_BYTES).map_err(JournalError::Device)?;
        let follows = |found: &Batch| {
            let last = chain.last().map(|last| (last.seq, last.life));
            let is_later = last.is_none_or(|last| found.seq > last.0 && found.life >= last.1);
            found.at == at && found.seq < seq && is_later
        };
        let found = decode_header(ring, &page, block_bytes).map(|found| found.batch);
        let Some(batch) = found.filter(follows) else { break };
        at += batch.bytes;
        if !damaged_entries(ring, &batch, block_bytes, read)?.is_empty() {
            chain.clear();
            continue;
        }
        chain.push(batch);
    }
    Ok((chain, at))
}

/// Entries of a batch whose payload does not match its checksum.
fn damaged_entries(
    ring: &Ring,
    batch: &Batch,
    block_bytes: u64,
    read: ReadDevice<'_>,
) -> Result<Vec<JournalEntry>, JournalError> {
    let length = batch.bytes - PAGE_BYTES;
    let has_data = batch.entries.iter().any(|entry| entry.at.is_some());
    if length == 0 || !has_data {
        return Ok(Vec::new());
    }
    let first = batch.at + PAGE_BYTES;
    let bytes = read(ring.device(first), length).map_err(JournalError::Device)?;
    let is_damaged = |entry: &&JournalEntry| {
        let Some(at) = entry.at else { return false };
        let from = (at - first) as usize;
        let length = ((entry.blocks.end - entry.blocks.start) * block_bytes) as usize;
        bytes.get(from..from + length).is_none_or(|payload| crc32c(payload) != entry.crc)
    };
    Ok(batch.entries.iter().filter(is_damaged).cloned().collect())
}

/// Whether a later batch, from a place on, says that the batch `seq`, which is not whole, had been
/// durable.
fn is_vouched(
    ring: &Ring,
    (at, seq, life): (u64, u64, u32),
    block_bytes: u64,
    read: ReadDevice<'_>,
) -> Result<bool, JournalError> {
    const STEP: u64 = 1 << 20;
    let mut seen = 0;
    while seen < VOUCH_BYTES.min(ring.capacity) {
        let place = at + seen;
        let length = STEP.min(ring.until_end(place));
        let bytes = read(ring.device(place), length).map_err(JournalError::Device)?;
        let mut headers = bytes
            .chunks(PAGE_BYTES as usize)
            .filter_map(|page| decode_header(ring, page, block_bytes));
        let vouches =
            |found: Header| found.batch.seq > seq && found.durable_next > seq && found.life >= life;
        if headers.any(vouches) {
            return Ok(true);
        }
        seen += length;
    }
    Ok(false)
}

/// The batches that are in the ring.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) ring: Ring,
    pub(crate) batches: VecDeque<Batch>,
    /// Place of the next batch.
    pub(crate) head: u64,
    /// Place of the first batch that is needed.
    pub(crate) tail: u64,
    pub(crate) seq_next: u64,
}

impl Journal {
    pub(crate) fn new(ring: Ring, batches: Vec<Batch>, (tail, seq): (u64, u64)) -> Self {
        let last = batches.last().map(|batch| (batch.at + batch.bytes, batch.seq + 1));
        let (head, seq_next) = last.unwrap_or((tail, seq));
        Journal { ring, batches: batches.into(), head, tail, seq_next }
    }

    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Bytes of padding before a batch of `bytes`, or `None` where there is no room now.
    pub(crate) fn room(&self, bytes: u64) -> Option<u64> {
        let left = self.ring.until_end(self.head);
        let padding = if left < bytes { left } else { 0 };
        (self.used() + padding + bytes <= self.ring.capacity).then_some(padding)
    }

    /// Makes a padding batch, or one with entries whose payloads follow each other.
    pub(crate) fn append(&mut self, bytes: u64, entries: Vec<JournalEntry>, since: Nanos) -> Batch {
        let (seq, at, life) = (self.seq_next, self.head, self.ring.id.life);
        let batch = Batch { seq, at, bytes, entries, since, life };
        self.seq_next += 1;
        self.head += bytes;
        self.batches.push_back(batch.clone());
        batch
    }

    /// Lets go of all batches before `seq`.
    pub(crate) fn release(&mut self, seq: u64) {
        while let Some(batch) = self.batches.pop_front_if(|batch| batch.seq < seq) {
            self.tail = batch.at + batch.bytes;
        }
    }

    /// Starts anew behind what the cloud has, with nothing in the ring.
    pub(crate) fn continue_at(&mut self, seq: u64) {
        assert!(self.batches.is_empty() && seq >= self.seq_next, "nothing is left behind");
        self.seq_next = seq;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        Ring { id: RingId { instance: 5, life: 1 }, capacity: 64 * PAGE_BYTES }
    }

    fn batch() -> Batch {
        let entries = vec![
            JournalEntry { blocks: 3..5, at: Some(3 * PAGE_BYTES), crc: 1 },
            JournalEntry { blocks: 9..1000, at: None, crc: 0 },
        ];
        let since = Nanos::from_secs(77);
        let (seq, at, bytes) = (7, 2 * PAGE_BYTES, 3 * PAGE_BYTES);
        Batch { seq, at, bytes, entries, since, life: 1 }
    }

    /// Goal: a header is read as written, with any one bit changed; two sectors are too much.
    /// Method: each byte; then each with one of another sector.
    #[test]
    fn headers_round_trip() {
        let page = encode_header(&ring(), &batch(), 6);
        let header = decode_header(&ring(), &page, 4096).expect("it was just written");
        assert_eq!((header.batch, header.life, header.durable_next), (batch(), 1, 6));
        for at in 0..page.len() {
            let mut bad = page.clone();
            bad[at] ^= 1 << (at % 8);
            let header = decode_header(&ring(), &bad, 4096).expect("a sector may be lost");
            assert_eq!(header.batch, batch(), "byte {at}");
            bad[(at + 512) % CONTENT_BYTES] ^= 1;
            let is_two = at / 512 != (at + 512) % CONTENT_BYTES / 512 && at < CONTENT_BYTES;
            assert!(!is_two || decode_header(&ring(), &bad, 4096).is_none(), "byte {at}");
        }
    }

    /// Goal: a batch behind one that a crash tore stays what nobody saw, when another has taken the
    /// torn one's place and is needed no more. Method: a batch of the first life where one of a
    /// later life is to begin.
    #[test]
    fn batches_of_older_lives_are_not_taken() {
        let old = Batch { bytes: PAGE_BYTES, entries: Vec::new(), ..batch() };
        let ring = ring();
        let mut read = |at: u64, length: u64| {
            let mut bytes = vec![0; length as usize];
            let pages =
                [(0, ring.superblock()), (ring.device(old.at), encode_header(&ring, &old, 7))];
            for (place, page) in pages {
                if (at..at + length).contains(&place) {
                    let from = (place - at) as usize;
                    bytes[from..from + page.len()].copy_from_slice(&page);
                }
            }
            Ok(bytes)
        };
        for (life, found) in [(0, 1), (1, 1), (2, 0)] {
            let start = ScanStart { at: old.at, seq: old.seq, life, durable_next: 0 };
            let scanned = scan(&ring, start, 4096, &mut read).expect("the ring is its own");
            assert_eq!((scanned.batches.len(), scanned.ends_at), (found, None), "from life {life}");
        }
    }

    /// Goal: numbers that no journal has are refused, whatever the checksum says. Method: one odd
    /// field after the other.
    #[test]
    fn absurd_headers_are_refused() {
        let absurd: [&dyn Fn(&mut Batch); 7] = [
            &|batch| batch.seq = u64::MAX,
            &|batch| batch.at = u64::MAX,
            &|batch| batch.bytes = u64::MAX,
            &|batch| batch.bytes = 0,
            &|batch| batch.entries[1].blocks = 9..9,
            &|batch| batch.entries[1].blocks = 9..1 << 62,
            &|batch| batch.entries[0].blocks = 3..1 << 62,
        ];
        for (number, make) in absurd.iter().enumerate() {
            let mut batch = batch();
            make(&mut batch);
            let page = encode_header(&ring(), &batch, 6);
            assert!(decode_header(&ring(), &page, 4096).is_none(), "the one of number {number}");
        }
        let page = encode_header(&ring(), &batch(), u64::MAX);
        assert!(decode_header(&ring(), &page, 4096).is_none(), "it vouches for all");
    }

    /// Goal: a payload is as long as the longest that a volume writes at most: places count its
    /// blocks in 16 bits. Method: that length, a block more, and more than 16 bits.
    #[test]
    fn payloads_are_bounded() {
        let ring = Ring { capacity: 1 << 30, ..ring() };
        for (blocks, is_taken) in [(16, true), (17, false), (65_537, false)] {
            let at = batch().at;
            let entry = JournalEntry { blocks: 3..3 + blocks, at: Some(at + PAGE_BYTES), crc: 1 };
            let bytes = (1 + blocks) * PAGE_BYTES;
            let batch = Batch { bytes, entries: vec![entry], ..batch() };
            let page = encode_header(&ring, &batch, 6);
            assert_eq!(decode_header(&ring, &page, 4096).is_some(), is_taken, "{blocks} blocks");
        }
    }
}
