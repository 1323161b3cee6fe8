//! What a trace holds: requests, bytes, footprint and duration, per volume and in all.
//!
//! How: batches are added one after the other. The footprint is exact: each block, or object, that
//! is read or written is remembered once, up to [`FOOTPRINT_BLOCKS_MAX`] in all; beyond that the
//! footprint is a lower bound and says so.
//! Invariant: sums of volumes equal the totals. Cost: about 10 to 20 bytes per distinct block.
//! Not for: traces with more distinct blocks than memory holds; sample those first.

use crate::hash::BlockHasher;
use crate::record::{Record, Unit};
use layby_types::{BlockSize, Nanos, Operation, VolumeId};
use std::collections::{BTreeMap, HashSet};

/// Distinct blocks that are remembered at most: 4 TiB of 4 KiB blocks, up to 20 GiB of memory.
pub const FOOTPRINT_BLOCKS_MAX: u64 = 1 << 30;

/// What one volume, or the whole trace, was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Trims.
    pub trims: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Distinct blocks, or objects, that were read or written.
    pub blocks: u64,
    /// Bytes of those: whole blocks, or the size at which an object was first seen.
    pub footprint_bytes: u64,
}

impl Counts {
    /// All requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.trims + self.flushes
    }
    fn count(&mut self, record: &Record) {
        match record.operation {
            Operation::Read => {
                self.reads += 1;
                self.bytes_read = self.bytes_read.saturating_add(record.length);
            }
            Operation::Write => {
                self.writes += 1;
                self.bytes_written = self.bytes_written.saturating_add(record.length);
            }
            Operation::Trim => self.trims += 1,
            _ => self.flushes += 1,
        }
    }
}

/// Adds up a trace.
#[derive(Clone, Debug)]
pub struct Summary {
    unit: Unit,
    block_size: BlockSize,
    first: Option<Nanos>,
    last: Nanos,
    volumes: BTreeMap<VolumeId, Volume>,
    blocks: u64,
    is_exact: bool,
}

#[derive(Clone, Debug, Default)]
struct Volume {
    counts: Counts,
    blocks: HashSet<u64, BlockHasher>,
}

impl Summary {
    /// Nothing yet. Blocks of a device are counted in units of `block_size`.
    #[must_use]
    pub fn new(unit: Unit, block_size: BlockSize) -> Summary {
        let (volumes, last) = (BTreeMap::new(), Nanos::ZERO);
        Summary { unit, block_size, first: None, last, volumes, blocks: 0, is_exact: true }
    }

    /// Adds the next records.
    pub fn add(&mut self, records: &[Record]) {
        for record in records {
            self.first.get_or_insert(record.at);
            self.last = record.at;
            self.volumes.entry(record.volume).or_default().counts.count(record);
            if matches!(record.operation, Operation::Read | Operation::Write) {
                self.touch(record);
            }
        }
    }

    /// Remembers the blocks of a read or write.
    fn touch(&mut self, record: &Record) {
        let (first, last, bytes) = match self.unit {
            Unit::Objects => (record.offset, record.offset, record.length),
            Unit::Bytes => {
                let end = record.offset + record.length - 1;
                let block = |offset| self.block_size.block_of(offset).0;
                (block(record.offset), block(end), u64::from(self.block_size.bytes()))
            }
        };
        let volume = self.volumes.entry(record.volume).or_default();
        for block in first..=last {
            if self.blocks == FOOTPRINT_BLOCKS_MAX && !volume.blocks.contains(&block) {
                self.is_exact = false;
            } else if volume.blocks.insert(block) {
                self.blocks += 1;
                volume.counts.blocks += 1;
                let footprint = volume.counts.footprint_bytes.saturating_add(bytes);
                volume.counts.footprint_bytes = footprint;
            }
        }
    }

    /// What each volume was asked for.
    pub fn volumes(&self) -> impl ExactSizeIterator<Item = (VolumeId, Counts)> + '_ {
        self.volumes.iter().map(|(id, volume)| (*id, volume.counts))
    }

    /// What all volumes were asked for.
    #[must_use]
    pub fn total(&self) -> Counts {
        self.volumes.values().fold(Counts::default(), |total, volume| {
            let counts = volume.counts;
            Counts {
                reads: total.reads + counts.reads,
                writes: total.writes + counts.writes,
                trims: total.trims + counts.trims,
                flushes: total.flushes + counts.flushes,
                bytes_read: total.bytes_read.saturating_add(counts.bytes_read),
                bytes_written: total.bytes_written.saturating_add(counts.bytes_written),
                blocks: total.blocks + counts.blocks,
                footprint_bytes: total.footprint_bytes.saturating_add(counts.footprint_bytes),
            }
        })
    }

    /// Time from the first record to the last.
    #[must_use]
    pub fn duration(&self) -> Nanos {
        self.last.since(self.first.unwrap_or(self.last))
    }

    /// Whether every distinct block was remembered; otherwise the footprint is larger than it says.
    #[must_use]
    pub fn footprint_is_exact(&self) -> bool {
        self.is_exact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(volume: u32, operation: Operation, offset: u64, length: u64) -> Record {
        Record { at: Nanos(offset), volume: VolumeId(volume), operation, offset, length }
    }

    /// Goal: blocks are counted once each, by volume, and trims leave no footprint. Method:
    /// requests that overlap, touch neighbours, or lie alike in two volumes.
    #[test]
    fn footprint_counts_blocks_once() {
        let mut summary = Summary::new(Unit::Bytes, BlockSize::DEFAULT);
        summary.add(&[
            record(0, Operation::Read, 0, 4096),
            record(0, Operation::Write, 4095, 2),
            record(1, Operation::Write, 4096, 8192),
            record(1, Operation::Trim, 1 << 30, 1 << 40),
            record(1, Operation::Flush, 2 << 30, 0),
        ]);
        let total = summary.total();
        assert_eq!([total.reads, total.writes, total.trims, total.flushes], [1, 2, 1, 1]);
        assert_eq!((total.blocks, total.footprint_bytes, total.requests()), (4, 4 * 4096, 5));
        assert_eq!([total.bytes_read, total.bytes_written], [4096, 8194]);
        assert_eq!(summary.volumes().map(|(_, counts)| counts.blocks).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(summary.duration(), Nanos(2 << 30));
        assert!(summary.footprint_is_exact());
        assert_eq!(Summary::new(Unit::Bytes, BlockSize::DEFAULT).duration(), Nanos::ZERO);
    }

    /// Goal: objects are counted by identifier. Method: the same one twice, with two sizes.
    #[test]
    fn objects_count_by_identifier() {
        let mut summary = Summary::new(Unit::Objects, BlockSize::DEFAULT);
        let objects = [(5, 100), (u64::MAX, 1), (5, 200)];
        summary.add(&objects.map(|(id, size)| record(0, Operation::Read, id, size)));
        assert_eq!((summary.total().blocks, summary.total().footprint_bytes), (2, 101));
    }
}
