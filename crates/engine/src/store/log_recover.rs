//! Making an empty log, and opening one: superblock, newest checkpoint, then the batches behind it.
//!
//! How: the disk is synced first, so that what is read is also durable. Segments opened after the
//! checkpoint's start, and the tails of those open then, are read whole; a broken chain of batches
//! is resumed at the next sound descriptor. `log_replay` decides what the records mean. A structure
//! that lost one sector is rebuilt from its parity; sectors that cannot be read count as damaged.
//! Invariant: a batch that another one of the same opening calls durable is found, or no block is
//! taken for known that it may have held. One that nobody vouches for may be missing: power loss
//! tore it.
//! Cost: one block per segment, the checkpoint, and the bytes appended since it started.

use super::layout::{SEQ_MAX, Superblock, crc32c, get_u64, rebuild};
use super::log::{LogStore, Place, Segment, SegmentState};
use super::log_changes::Changes;
use super::log_checkpoint::Checkpoint;
use super::log_config::LogConfig;
use super::log_discard::Freed;
use super::log_geometry::LogGeometry;
use super::log_headers::Headers;
use super::log_layout::{
    BATCH_MAGIC, BatchHeader, BatchName, CheckpointEntry, LOG_MAGIC, Record, SEGMENT_MAGIC,
    SegmentHeader, TRAILER_BLOCKS, Trailer, copied_place, generation_of,
};
use super::log_replay::{Replayed, replay};
use super::log_retire::Retiring;
use super::log_unreadable::{has_unreadable, read};
use super::table::{Map, Set};
use super::{CorruptInfo, Recovered, RecoveredEntry, SeqSource, SlotInfo, StoreError, Stream};
use crate::io::{Buffer, Io, IoOperation, Token, run_alone};
use layby_types::planted::{Plant, is_planted};
use layby_types::{Nanos, Seq, Slot};

/// Segment headers read at a time.
const READS_MAX: usize = 64;
/// Segment headers that cannot be read before the device counts as failed.
const FAILURES_MAX: usize = 1024;

/// A record found, and where its data lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) record: Record,
    pub(super) location: u32,
    /// The checksum of the data found, where it differs from the record's.
    pub(super) bad: Option<u32>,
    /// It differs, and sectors of the data could not be read: power loss leaves no such ones.
    pub(super) is_unreadable: bool,
}

impl Found {
    /// Whether power loss may have torn its data, if nothing vouches for the batch.
    pub(super) fn may_be_torn(&self) -> bool {
        self.bad.is_some() && !self.is_unreadable
    }
}

/// A batch found.
#[derive(Debug)]
pub(super) struct FoundBatch {
    pub(super) stream: Stream,
    pub(super) header: BatchHeader,
    pub(super) found: Vec<Found>,
    /// Another batch vouches that this one was durable.
    pub(super) durable: bool,
    /// Where its descriptor lies.
    pub(super) at: u32,
    /// One of its sectors, or all of it, had to be rebuilt.
    pub(super) is_rebuilt: bool,
    /// The batch of whose descriptor it has a copy.
    pub(super) copied: Option<BatchName>,
}

/// Everything read, before it is judged.
pub(super) struct Scan<'a> {
    pub(super) config: &'a LogConfig,
    pub(super) geometry: LogGeometry,
    pub(super) instance: u64,
    pub(super) disk_name: String,
    pub(super) trailer: Trailer,
    /// Pages of it that power loss may have torn.
    pub(super) torn_pages: Vec<CorruptInfo>,
    pub(super) area: usize,
    pub(super) checkpoint: Vec<CheckpointEntry>,
    /// Slots that the newest checkpoint names itself, in order; the other entries are of those
    /// before it. None where it is a full one.
    pub(super) named_last: Option<Vec<Slot>>,
    /// A part of the newest checkpoint is missing, or a newer one may be damaged.
    pub(super) may_lack_checkpoint: bool,
    pub(super) headers: Vec<Option<SegmentHeader>>,
    /// Segments whose header is lost, and whose first descriptor says what it said.
    pub(super) headless: Vec<u32>,
    /// Segments of which nothing says whether they hold batches.
    pub(super) dark: Vec<u32>,
    /// Headers that are to be written anew: their segments are old.
    pub(super) old: Vec<SegmentHeader>,
    /// Those, and others whose first blocks cannot be read: to be rewritten once they are free.
    pub(super) unread: Vec<u32>,
    pub(super) scanned: Set<u32>,
    /// By segment: the first block where the chain of batches broke on something that looked like
    /// a batch, or where it ended.
    breaks: Map<u32, u32>,
    pub(super) batches: Vec<FoundBatch>,
    pub(super) recovered: Recovered,
}

/// See [`LogStore::format`].
pub(super) fn format(io: &mut dyn Io, config: &LogConfig, instance: u64) -> Result<(), StoreError> {
    let region = &config.region;
    let block = region.block_size;
    let plan = LogGeometry::plan(region.length, block, &config.segments);
    let fits = region.base.saturating_add(region.length) <= io.disk_length(region.disk);
    assert!(region.base.is_multiple_of(u64::from(block.bytes())), "regions are block aligned");
    let Some(geometry) = plan.filter(|_| fits) else {
        return Err(StoreError::TooSmall {
            disk: io.disk_name(region.disk).to_owned(),
            length: region.length.min(io.disk_length(region.disk).saturating_sub(region.base)),
            minimum: LogGeometry::length_min(block),
        });
    };
    let superblock = Superblock {
        magic: LOG_MAGIC,
        identity: config.identity,
        instance,
        block_bytes: block.bytes(),
        base: region.base,
        length: region.length,
        slot_count: geometry.slot_count,
        geometry: geometry.to_fields(),
    };
    for area in 0..2 {
        for page in 0..TRAILER_BLOCKS {
            write_page(io, config, geometry.checkpoint_first(area) + page, |_| {})?;
        }
    }
    write_page(io, config, 0, |page| superblock.encode(page))?;
    let sync = IoOperation::Sync { disk: region.disk };
    run_alone(io, sync).map(drop).map_err(|error| failed(io, config, 0, error.errno))
}

fn write_page(
    io: &mut dyn Io,
    config: &LogConfig,
    block: u32,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), StoreError> {
    let region = &config.region;
    let mut buffer = io.buffer(region.block_size.len());
    buffer.fill(0);
    fill(&mut buffer);
    let offset = region.base + u64::from(block) * u64::from(region.block_size.bytes());
    let write = IoOperation::Write { disk: region.disk, offset, buffer, durable: true };
    match run_alone(io, write) {
        Ok(done) => done.buffer.into_iter().for_each(|buffer| io.recycle(buffer)),
        Err(error) => return Err(failed(io, config, offset, error.errno)),
    }
    Ok(())
}

pub(super) fn failed(io: &dyn Io, config: &LogConfig, offset: u64, errno: i32) -> StoreError {
    StoreError::Io { disk: io.disk_name(config.region.disk).to_owned(), offset, errno }
}

/// See [`LogStore::open`].
pub(super) fn open(
    io: &mut dyn Io,
    config: LogConfig,
    seqs: SeqSource,
) -> Result<(LogStore, Recovered), StoreError> {
    let sync = IoOperation::Sync { disk: config.region.disk };
    if let Err(error) = run_alone(io, sync) {
        return Err(failed(io, &config, config.region.base, error.errno));
    }
    let mut scan = Scan::begin(io, &config)?;
    scan.read_checkpoint(io)?;
    scan.read_headers(io)?;
    scan.read_segments(io)?;
    scan.name_torn_pages();
    scan.judge_batches(io)?;
    // Behind what was found by its copy, or without its header.
    let seq_next = scan.seq_next()?;
    let replayed = replay(&mut scan);
    let mut recovered = core::mem::take(&mut scan.recovered);
    recovered.seq_next = seq_next;
    seqs.raise(scan.seq_next_unseen(seq_next));
    let entries = replayed.winners.iter().map(|winner| RecoveredEntry {
        slot: winner.slot,
        key: winner.key,
        seq: winner.seq,
        dirty: winner.dirty,
    });
    recovered.entries = entries.collect();
    recovered.tombstones.clone_from(&replayed.tombstones);
    recovered.clean_shutdown = scan.trailer.clean && scan.batches.is_empty();
    (recovered.note, recovered.bytes_since_note) = (scan.trailer.note, scan.bytes_behind());
    let parts = scan.into_parts();
    let mut log = LogStore::assemble(config, &parts, &replayed, &recovered, seqs);
    log.tell_all_free(io.now());
    Ok((log, recovered))
}

/// What a scan leaves to the store.
pub(super) struct Parts {
    geometry: LogGeometry,
    instance: u64,
    disk_name: String,
    trailer: Trailer,
    area: usize,
    headers: Vec<Option<SegmentHeader>>,
    scanned: Set<u32>,
    named: Set<u32>,
    unread: Vec<u32>,
    old: Vec<SegmentHeader>,
}

impl<'a> Scan<'a> {
    fn begin(io: &mut dyn Io, config: &'a LogConfig) -> Result<Self, StoreError> {
        let region = &config.region;
        let disk_name = io.disk_name(region.disk).to_owned();
        let page = read(io, config, (0, 1), false)?;
        let superblock = Superblock::decode(&page, LOG_MAGIC, &disk_name, region.base)?;
        io.recycle(page);
        superblock.matches(region, &config.identity, &disk_name)?;
        let Superblock { block_bytes, slot_count, length, geometry, instance, .. } = superblock;
        let geometry = LogGeometry::from_fields(geometry, block_bytes, slot_count, length);
        let Some(geometry) = geometry else {
            return Err(StoreError::Mismatch {
                disk: disk_name,
                offset: region.base,
                what: "geometry",
                stored: superblock.geometry[0].into(),
                expected: 0,
            });
        };
        let stored = u64::from(geometry.segment_blocks) * u64::from(block_bytes);
        let expected = config.segments.bytes;
        if expected != 0 && stored != expected {
            let (disk, offset, what) = (disk_name, region.base, "segment length");
            return Err(StoreError::Mismatch { disk, offset, what, stored, expected });
        }
        Ok(Scan {
            config,
            geometry,
            instance,
            disk_name,
            trailer: Trailer::new(Seq(0), false, Vec::new()),
            torn_pages: Vec::new(),
            area: 1,
            checkpoint: Vec::new(),
            named_last: None,
            may_lack_checkpoint: false,
            headers: Vec::new(),
            headless: Vec::new(),
            dark: Vec::new(),
            old: Vec::new(),
            unread: Vec::new(),
            scanned: Set::default(),
            breaks: Map::default(),
            batches: Vec::new(),
            recovered: Recovered::default(),
        })
    }

    fn offset_of(&self, block: u32) -> u64 {
        self.config.region.base + u64::from(block) * u64::from(self.geometry.block_bytes)
    }

    pub(super) fn read(
        &mut self,
        io: &mut dyn Io,
        block: u32,
        count: u32,
    ) -> Result<Buffer, StoreError> {
        self.recovered.bytes_scanned += u64::from(count) * u64::from(self.geometry.block_bytes);
        read(io, self.config, (block, count), count < self.geometry.segment_blocks)
    }

    pub(super) fn corrupt(&self, block: u32, what: &'static str, crcs: (u32, u32)) -> CorruptInfo {
        CorruptInfo {
            disk: self.disk_name.clone(),
            offset: self.offset_of(block),
            length: u64::from(self.geometry.block_bytes),
            what,
            slot: None,
            key: None,
            stored: crcs.0,
            computed: crcs.1,
        }
    }

    /// What was damaged may have held any block's newest record, with a seq up to `upto`. Fails
    /// where the log is to be strict.
    pub(super) fn damage(&mut self, info: CorruptInfo, upto: Seq) -> Result<(), StoreError> {
        if self.config.is_strict {
            return Err(StoreError::Corrupt(info));
        }
        self.recovered.damaged.push(info);
        self.recovered.undecided = self.recovered.undecided.max(Some(upto));
        Ok(())
    }

    /// Reads every segment's header, many at a time: there are a million in a TiB. Where something
    /// else than zeros lies in its place, the first descriptor, behind it, says the same.
    fn read_headers(&mut self, io: &mut dyn Io) -> Result<(), StoreError> {
        let count = self.geometry.segment_count;
        self.headers = vec![None; count as usize];
        // Of retired ones nothing is there, and it may not be readable.
        let is_used = |index: &u32| self.trailer.retired.binary_search(index).is_err();
        let (mut lost, mut anew) = (Vec::new(), Set::default());
        let used = (0..count).filter(is_used).collect::<Vec<_>>();
        self.read_pages(io, 0, &used, &mut |scan, index, page| {
            // One that lost a sector is not named as damaged: power loss may have cut it short,
            // together with a first batch that was found all the same.
            let decode = |page: &[u8]| SegmentHeader::decode(page, scan.instance, index);
            let header = decode_or_rebuild(page, SEGMENT_MAGIC, decode);
            let header = header.map(|(header, _)| header);
            // The checkpoint that it rests on is not there any more.
            let rests = |it: &SegmentHeader| it.is_anew && it.generation > scan.trailer.seq;
            if header.as_ref().is_some_and(rests) {
                anew.insert(index);
                lost.push(index);
                return;
            }
            if header.is_some_and(|it| it.is_anew) {
                scan.unread.push(index);
            }
            scan.headers[index as usize] = header;
            if header.is_none() && page.iter().any(|byte| *byte != 0) {
                lost.push(index);
            }
        })?;
        let mut dark = Vec::new();
        self.read_pages(io, 1, &lost, &mut |scan, index, page| {
            let decode =
                |page: &[u8]| BatchHeader::decode(page, scan.instance, generation_of(page));
            let first = decode_or_rebuild(page, BATCH_MAGIC, decode).map(|(first, _)| first);
            let is_here = |it: &BatchHeader| it.location == scan.geometry.segment_first(index) + 1;
            match first.filter(is_here) {
                Some(first) => {
                    scan.headers[index as usize] = Some(first.segment_header(index));
                    scan.headless.push(index);
                }
                None => dark.push((index, has_unreadable(page) || anew.contains(&index))),
            }
        })?;
        self.read_dark(io, &dark)
    }

    /// Reads a block of each of some segments.
    fn read_pages(
        &mut self,
        io: &mut dyn Io,
        within: u32,
        segments: &[u32],
        take: &mut dyn FnMut(&mut Self, u32, &[u8]),
    ) -> Result<(), StoreError> {
        let (disk, length) = (self.config.region.disk, self.geometry.block_bytes as usize);
        let block_of = |scan: &Self, index: u32| scan.geometry.segment_first(index) + within;
        let (mut next, mut ended, mut unread) = (0, 0, Vec::new());
        let mut done = Vec::new();
        while ended < next || (next < segments.len() && unread.len() <= FAILURES_MAX) {
            while unread.len() <= FAILURES_MAX && next < segments.len() && next - ended < READS_MAX
            {
                let offset = self.offset_of(block_of(self, segments[next]));
                let buffer = io.buffer(length);
                io.submit(Token(next as u64), IoOperation::Read { disk, offset, buffer });
                next += 1;
            }
            io.wait(Nanos::NEVER, &mut done);
            for done in done.drain(..) {
                ended += 1;
                let index = segments[done.token.0 as usize];
                let page = done.buffer.expect("a read returns its buffer");
                match done.result {
                    Ok(_) => take(self, index, &page),
                    Err(error) => unread.push((index, error.errno)),
                }
                self.recovered.bytes_scanned += length as u64;
                io.recycle(page);
            }
        }
        for (index, errno) in &unread {
            let block = block_of(self, *index);
            if unread.len() > FAILURES_MAX {
                return Err(failed(io, self.config, self.offset_of(block), *errno));
            }
            let page = self.read(io, block, 1)?;
            take(self, *index, &page);
            io.recycle(page);
        }
        Ok(())
    }

    /// Reads the segments that may hold batches behind the checkpoint.
    fn read_segments(&mut self, io: &mut dyn Io) -> Result<(), StoreError> {
        let mut wanted: Vec<(Seq, u32, u32)> = Vec::new();
        for header in self.headers.iter().flatten() {
            if let Some(from) = self.first_wanted(header) {
                wanted.push((header.generation, header.index, from));
            }
        }
        wanted.sort_unstable();
        for (_, index, from) in wanted {
            let header = self.headers[index as usize].expect("a wanted segment has a header");
            self.read_segment(io, &header, from)?;
        }
        Ok(())
    }

    /// The first block of a segment that may be behind the checkpoint.
    pub(super) fn first_wanted(&self, header: &SegmentHeader) -> Option<u32> {
        let mut open = self.trailer.open.iter();
        let is_it = |index, generation| index == header.index && generation == header.generation;
        match open.find(|open| is_it(open.index, open.generation)) {
            _ if header.generation > self.trailer.seq => Some(1),
            open => open.map(|open| open.fill.max(1)),
        }
    }

    /// Reads the batches of a segment from a block on.
    pub(super) fn read_segment(
        &mut self,
        io: &mut dyn Io,
        header: &SegmentHeader,
        from: u32,
    ) -> Result<(), StoreError> {
        self.scanned.insert(header.index);
        let size = self.geometry.segment_blocks;
        if from < size {
            let first = self.geometry.segment_first(header.index);
            let bytes = self.read(io, first + from, size - from)?;
            self.read_batches(header, from, &bytes);
            io.recycle(bytes);
        }
        Ok(())
    }

    fn read_batches(&mut self, header: &SegmentHeader, from: u32, bytes: &[u8]) {
        let block = self.geometry.block_bytes as usize;
        let size = self.geometry.segment_blocks;
        let (segment, generation) = (header.index, header.generation);
        let stream = Stream::ALL[header.stream as usize];
        let mut at = from;
        while at < size {
            let page = &bytes[(at - from) as usize * block..];
            let decode = |page: &[u8]| {
                BatchHeader::decode(page, self.instance, generation).filter(|batch| {
                    let end = at + 1 + u32::from(batch.blocks);
                    let is_here = batch.location == self.geometry.segment_first(segment) + at;
                    is_here && end + u32::from(is_planted(Plant::SegmentEnd)) <= size
                })
            };
            let rebuilt = match decode(page) {
                Some(_) => None,
                None => rebuild(page, BATCH_MAGIC, |page| decode(page).is_some()),
            };
            let descriptor = rebuilt.as_deref().unwrap_or(page);
            let Some(batch) = decode(descriptor) else {
                let looks = get_u64(page, 0) == BATCH_MAGIC
                    && get_u64(page, 8) == self.instance
                    && get_u64(page, 16) == generation.0;
                self.recovered.torn += u64::from(looks);
                self.breaks.entry(segment).or_insert(at);
                at += 1;
                continue;
            };
            let data = &page[block..];
            let first = self.geometry.segment_first(segment) + at + 1;
            let found = self.records(descriptor, &batch, first, data);
            self.batches.push(FoundBatch {
                stream,
                header: batch,
                found,
                durable: false,
                at: first - 1,
                is_rebuilt: rebuilt.is_some(),
                copied: self.copied_name(descriptor),
            });
            at += 1 + u32::from(batch.blocks);
        }
    }

    fn copied_name(&self, page: &[u8]) -> Option<BatchName> {
        let (seq, location) = copied_place(page)?;
        Some(BatchName { segment: self.segment_at(location)?, seq })
    }

    /// The segment in which a block lies, be it header, descriptor or data.
    pub(super) fn segment_at(&self, block: u32) -> Option<u32> {
        let within = block.checked_sub(self.geometry.segment_first(0))?;
        Some(within / self.geometry.segment_blocks)
    }

    pub(super) fn records(
        &self,
        page: &[u8],
        batch: &BatchHeader,
        first: u32,
        data: &[u8],
    ) -> Vec<Found> {
        let mut pieces = data.chunks_exact(self.geometry.block_bytes as usize);
        let mut location = first;
        let mut found = Vec::with_capacity(batch.entries.into());
        for index in 0..usize::from(batch.entries) {
            let Some(record) = Record::decode(page, index) else { continue };
            let (mut bad, mut is_unreadable) = (None, false);
            let at = location;
            if let Record::Block { crc, .. } = record {
                if location - first >= u32::from(batch.blocks) {
                    continue;
                }
                let piece = pieces.next().unwrap_or_default();
                let computed = crc32c(piece);
                bad = (computed != crc).then_some(computed);
                is_unreadable = bad.is_some() && has_unreadable(piece);
                location += 1;
            }
            found.push(Found { record, location: at, bad, is_unreadable });
        }
        found
    }

    /// Marks the batches that others vouch for, and finds those vouched for that are missing.
    fn judge_batches(&mut self, io: &mut dyn Io) -> Result<(), StoreError> {
        let newest = self.batches.iter().map(|batch| batch.header.checkpoint).max().unwrap_or(0);
        let (mut missing, mut tried) = (self.missing(), Set::default());
        // Where a checkpoint is lost, batches are missing all the way back to it.
        while newest <= self.trailer.seq.0 && self.mend(io, &missing, &mut tried)? {
            missing = self.missing();
        }
        let upto = self.durable_upto();
        let tails = self.batches.iter().flat_map(|batch| &batch.header.tails);
        let vouched: Set<u64> = tails.map(|name| name.seq).collect();
        for batch in &mut self.batches {
            let covered = upto[&batch.header.epoch] >= batch.header.seq;
            batch.durable = covered || vouched.contains(&batch.header.seq);
        }
        self.name_mended();
        let missed: Set<u32> = missing.iter().map(|name| name.segment).collect();
        for name in missing {
            let info = self.missing_batch(name);
            // One that was in flight prevails over the checkpoint that began meanwhile.
            self.damage(info, Seq(name.seq).max(self.trailer.seq))?;
        }
        self.judge_dark(io, newest, &missed)?;
        if newest > self.trailer.seq.0 {
            let other = self.geometry.checkpoint_first(1 - self.area);
            let info = self.corrupt(other, "checkpoint", (0, 0));
            self.damage(info, Seq(newest))?;
        }
        Ok(())
    }

    /// By epoch: up to which seq every batch was durable.
    fn durable_upto(&self) -> Map<u64, u64> {
        let mut upto: Map<u64, u64> = Map::default();
        for FoundBatch { header, .. } in &self.batches {
            let best = upto.entry(header.epoch).or_default();
            *best = (*best).max(header.durable_upto);
        }
        upto
    }

    /// The batches that others vouch for and that are not found, the oldest first.
    fn missing(&self) -> Vec<BatchName> {
        let upto = self.durable_upto();
        let present: Set<u64> = self.batches.iter().map(|batch| batch.header.seq).collect();
        let mut missing: Vec<BatchName> = Vec::new();
        for FoundBatch { header, .. } in &self.batches {
            let previous = Some(header.previous).filter(|name| name.seq <= upto[&header.epoch]);
            let names = header.tails.iter().chain(previous.as_ref());
            missing
                .extend(names.filter(|name| self.is_wanted(name) && !present.contains(&name.seq)));
        }
        if is_planted(Plant::CopyUnvouched) {
            let copies = self.batches.iter().filter_map(|batch| batch.copied);
            missing
                .extend(copies.filter(|name| self.is_wanted(name) && !present.contains(&name.seq)));
        }
        missing.sort_unstable_by_key(|name| name.seq);
        missing.dedup();
        missing
    }

    /// Whether the scan is to find a batch: it was not over when the checkpoint began.
    fn is_wanted(&self, name: &BatchName) -> bool {
        name.seq > self.trailer.seq.0 || name.seq > 0 && self.trailer.flights.contains(&name.seq)
    }

    fn missing_batch(&self, name: BatchName) -> CorruptInfo {
        let segment = name.segment.min(self.geometry.segment_count - 1);
        let first = self.geometry.segment_first(segment);
        match self.breaks.get(&segment) {
            Some(at) => self.corrupt(first + at, "batch descriptor", (0, 0)),
            None => self.corrupt(first, "segment header", (0, 0)),
        }
    }

    /// Above every seq seen. One that no node can have given out is refused even with loss
    /// accepted: it would outrank every record to come.
    fn seq_next(&self) -> Result<Seq, StoreError> {
        let headers = self.headers.iter().flatten().map(|header| header.generation.0);
        let batches = self.batches.iter().flat_map(|batch| {
            let header = &batch.header;
            let records = batch.found.iter().map(|found| found.record.seq().0);
            records.chain([header.seq, header.durable_upto, header.checkpoint, header.epoch])
        });
        let all = headers.chain(batches).chain([self.trailer.end.0, self.trailer.seq.0, 0]);
        let highest = all.max().expect("the chain ends with a number");
        if highest > SEQ_MAX.0 {
            return Err(StoreError::Mismatch {
                disk: self.disk_name.clone(),
                offset: self.config.region.base,
                what: "highest sequence number",
                stored: highest,
                expected: SEQ_MAX.0,
            });
        }
        Ok(Seq(highest + 1))
    }

    /// Bytes written since the checkpoint began, its own included.
    fn bytes_behind(&self) -> u64 {
        let batches = self.batches.iter().map(|batch| 1 + u64::from(batch.header.blocks));
        let trailer = if self.trailer.seq.0 > 0 { TRAILER_BLOCKS } else { 0 };
        let chunks = u64::from(self.trailer.chunks) + u64::from(trailer);
        (batches.sum::<u64>() + chunks) * u64::from(self.geometry.block_bytes)
    }

    fn into_parts(self) -> Parts {
        let location = self.checkpoint.iter().map(|entry| entry.location);
        Parts {
            named: location.filter_map(|location| self.geometry.segment_of(location)).collect(),
            geometry: self.geometry,
            instance: self.instance,
            disk_name: self.disk_name,
            trailer: self.trailer,
            area: self.area,
            headers: self.headers,
            scanned: self.scanned,
            unread: self.unread,
            old: self.old,
        }
    }
}

/// A structure as it is, or with the one sector that it lost; and whether that was so.
pub(super) fn decode_or_rebuild<T>(
    page: &[u8],
    magic: u64,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Option<(T, bool)> {
    if let Some(structure) = decode(page) {
        return Some((structure, false));
    }
    let rebuilt = rebuild(page, magic, |page| decode(page).is_some())?;
    decode(&rebuilt).map(|structure| (structure, true))
}

impl LogStore {
    fn assemble(
        config: LogConfig,
        parts: &Parts,
        replayed: &Replayed,
        recovered: &Recovered,
        seqs: SeqSource,
    ) -> LogStore {
        let geometry = parts.geometry;
        let epoch = seqs.next();
        let segments = parts.headers.iter().map(|header| Segment {
            generation: header.map_or(Seq(0), |header| header.generation),
            stream: header.map_or(Stream::Write, |it| Stream::ALL[it.stream as usize]),
            live: 0,
            pins: 0,
            failures: 0,
            is_marked: false,
            state: SegmentState::Closed,
        });
        let mut log = LogStore {
            segments: segments.collect(),
            slots: vec![Place::NONE; replayed.slots as usize],
            changes: Changes::new(replayed.slots),
            freed: Freed::new(config.segments.discard),
            config,
            geometry,
            instance: parts.instance,
            disk_name: parts.disk_name.clone(),
            seqs,
            epoch,
            overflow: Default::default(),
            moved: Map::default(),
            free_segments: Default::default(),
            waiting_segments: 0,
            passed_segments: 0,
            segments_damaged: 0,
            blocks_live: 0,
            short_lived: Default::default(),
            streams: Default::default(),
            copy_of_last: Vec::new(),
            tickets: Map::default(),
            pending_slots: Map::default(),
            unsettled: Map::default(),
            sync: Default::default(),
            voids: Default::default(),
            forgets: Default::default(),
            reads: Default::default(),
            cleaning: Default::default(),
            retiring: Retiring::new(&parts.trailer.retired, geometry.segment_count),
            checkpoint: Checkpoint::new(parts.trailer.seq, parts.area, recovered.bytes_scanned),
            events: Vec::new(),
            counters: Default::default(),
            failures: Default::default(),
            note: parts.trailer.note,
            owes_pump: false,
            failing: None,
            horizon: super::log_horizon::Horizon::default(),
        };
        for winner in &replayed.winners {
            log.place(winner.slot, Place { location: winner.location, crc: winner.crc });
            if winner.moved {
                log.moved.insert(winner.location, winner.slot.0);
            }
            if winner.slot.0 >= geometry.slot_count {
                let info = SlotInfo { key: winner.key, dirty: winner.dirty };
                log.overflow.insert(winner.slot.0, info);
            }
        }
        log.sort_segments(parts);
        log
    }

    /// Finds out which segments may be opened: those that the checkpoint, had it just completed,
    /// would free. Others without live blocks wait for the next one.
    fn sort_segments(&mut self, parts: &Parts) {
        self.checkpoint.headers = Headers::new(parts.old.clone());
        // Else each start would find the same until they are opened by chance.
        parts.unread.iter().for_each(|index| self.segments[*index as usize].is_marked = true);
        for index in 0..self.geometry.segment_count {
            let is_retired = self.retiring.is_retired(index);
            let segment = &mut self.segments[index as usize];
            let used = parts.scanned.contains(&index) || parts.named.contains(&index);
            if is_retired && segment.live == 0 {
                segment.state = SegmentState::Retired;
            } else if segment.live == 0 && !used {
                segment.state = SegmentState::Free;
                if segment.is_marked {
                    self.retiring.on_marked();
                }
                self.free_segments.push_back(index);
            } else {
                self.retire_if_empty(index);
            }
        }
    }
}

/// A slot number that no level has.
pub(super) const NO_SLOT: Slot = Slot(u32::MAX);
