//! Batches that others vouch for, and whose descriptor or segment header is lost, are found again.
//!
//! How: the batch that was written next, in whatever stream, has a copy of the descriptor. A
//! segment that lost its first descriptor with its header is searched for the one that is named,
//! which has what the header said; then it is read like the others.
//! Invariant: only what a sound batch vouches for comes back. One that failed is never vouched for,
//! though the next one may have a copy of it.
//! Cost: nothing where nothing is missing; else the copy and the batch are read, or the segment.
//! Not for: a sector of a structure, which its parity gives back.

use super::log_layout::{BATCH_MAGIC, BatchHeader, BatchName, copied, generation_of};
use super::log_recover::{FoundBatch, Scan, decode_or_rebuild};
use super::table::Set;
use super::{StoreError, Stream};
use crate::io::Io;
use layby_types::Seq;

impl Scan<'_> {
    /// Finds batches that are missing, as far as it can, each once; whether it found any.
    pub(super) fn mend(
        &mut self,
        io: &mut dyn Io,
        missing: &[BatchName],
        tried: &mut Set<u64>,
    ) -> Result<bool, StoreError> {
        let before = self.batches.len();
        for name in missing.iter().filter(|name| tried.insert(name.seq)) {
            self.mend_one(io, *name)?;
        }
        Ok(self.batches.len() > before)
    }

    fn mend_one(&mut self, io: &mut dyn Io, name: BatchName) -> Result<(), StoreError> {
        if name.segment >= self.geometry.segment_count {
            return Ok(());
        }
        let copy = self.copy_of(io, name)?;
        if self.headers[name.segment as usize].is_none() {
            let known = match &copy {
                Some((header, _)) => Some(*header),
                None => self.search(io, name.segment, Some(name.seq))?,
            };
            if let Some(header) = known {
                self.read_without_header(io, name.segment, &header)?;
            }
        }
        let Some((header, page)) = copy else { return Ok(()) };
        if self.batches.iter().all(|batch| batch.header.seq != name.seq) {
            self.take_copy(io, header, &page)?;
        }
        Ok(())
    }

    /// The copy of a batch's descriptor, as a page.
    fn copy_of(
        &mut self,
        io: &mut dyn Io,
        name: BatchName,
    ) -> Result<Option<(BatchHeader, Vec<u8>)>, StoreError> {
        let next = self.batches.iter().find(|batch| batch.copied == Some(name));
        let Some((at, generation)) = next.map(|next| (next.at, Seq(next.header.generation))) else {
            return Ok(None);
        };
        let page = self.read(io, at, 1)?;
        let decode = |page: &[u8]| {
            BatchHeader::decode(page, self.instance, generation).and_then(|_| copied(page))
        };
        let copy = decode_or_rebuild(&page, BATCH_MAGIC, decode);
        io.recycle(page);
        let found = copy.and_then(|(copy, _)| {
            let header = BatchHeader::decode(&copy, self.instance, generation_of(&copy))?;
            (header.seq == name.seq && self.lies_in(&header, name.segment))
                .then_some((header, copy))
        });
        Ok(found)
    }

    /// Whether a batch lies in a segment, as a whole.
    pub(super) fn lies_in(&self, header: &BatchHeader, segment: u32) -> bool {
        let first = self.geometry.segment_first(segment);
        let end = u64::from(header.location) + 1 + u64::from(header.blocks);
        header.location > first && end <= u64::from(first + self.geometry.segment_blocks)
    }

    /// A descriptor in a segment without a header: that of a batch, or any that may be behind the
    /// checkpoint, in its place.
    pub(super) fn search(
        &mut self,
        io: &mut dyn Io,
        segment: u32,
        seq: Option<u64>,
    ) -> Result<Option<BatchHeader>, StoreError> {
        let first = self.geometry.segment_first(segment);
        let bytes = self.read(io, first, self.geometry.segment_blocks)?;
        let mut pages = (first..).zip(bytes.chunks_exact(self.geometry.block_bytes as usize));
        let found = pages.find_map(|(at, page)| {
            let decode =
                |page: &[u8]| BatchHeader::decode(page, self.instance, generation_of(page));
            let (header, _) = decode_or_rebuild(page, BATCH_MAGIC, decode)?;
            let is_it = match seq {
                Some(seq) => header.seq == seq,
                None => self.first_wanted(&header.segment_header(segment)).is_some(),
            };
            (is_it && header.location == at && self.lies_in(&header, segment)).then_some(header)
        });
        io.recycle(bytes);
        Ok(found)
    }

    /// Reads a segment whose header is lost, of which one batch is known.
    fn read_without_header(
        &mut self,
        io: &mut dyn Io,
        segment: u32,
        known: &BatchHeader,
    ) -> Result<(), StoreError> {
        let header = known.segment_header(segment);
        let Some(from) = self.first_wanted(&header) else { return Ok(()) };
        self.headers[segment as usize] = Some(header);
        self.headless.push(segment);
        self.read_segment(io, &header, from)
    }

    /// Takes a batch whose descriptor is lost as its copy says that it was.
    fn take_copy(
        &mut self,
        io: &mut dyn Io,
        header: BatchHeader,
        page: &[u8],
    ) -> Result<(), StoreError> {
        let first = header.location + 1;
        let found = match u32::from(header.blocks) {
            0 => self.records(page, &header, first, &[]),
            blocks => {
                let data = self.read(io, first, blocks)?;
                let found = self.records(page, &header, first, &data);
                io.recycle(data);
                found
            }
        };
        self.batches.push(FoundBatch {
            stream: Stream::ALL[header.stream as usize],
            header,
            found,
            durable: false,
            at: header.location,
            is_rebuilt: true,
            copied: None,
        });
        Ok(())
    }

    /// Names what was damaged and is made up for. Not what no batch vouches for: power loss may
    /// have kept a part of it.
    pub(super) fn name_mended(&mut self) {
        let durable = self.batches.iter().filter(|batch| batch.durable);
        let segments: Set<u32> = durable.filter_map(|batch| self.segment_at(batch.at)).collect();
        for index in core::mem::take(&mut self.headless) {
            if segments.contains(&index) {
                let at = self.geometry.segment_first(index);
                self.recovered.damaged.push(self.corrupt(at, "segment header", (0, 0)));
            }
        }
        let rebuilt = self.batches.iter().filter(|batch| batch.durable && batch.is_rebuilt);
        let rebuilt: Vec<u32> = rebuilt.map(|batch| batch.at).collect();
        for at in rebuilt {
            self.recovered.damaged.push(self.corrupt(at, "batch descriptor", (0, 0)));
        }
    }
}
