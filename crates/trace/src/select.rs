//! Parts of a trace: samples by place, and windows by time or number.
//!
//! How: a [`Sampler`] keeps the requests to a fixed share of the blocks, chosen by a hash of the
//! block (SHARDS, Waldspurger et al. 2015), so that a block is in the sample with all its requests
//! or not at all. A [`Window`] keeps a run of requests and moves its beginning to time zero.
//! Invariant: order and times within the part are those of the trace; the same rate and seed choose
//! the same blocks in every trace, and a higher rate chooses a superset.
//! Cost: constant time per block. Not for: sampling in time, which breaks reuse distances.

use crate::hash::mix;
use crate::record::{Record, Unit};
use layby_types::{BlockIndex, BlockSize, Nanos, Operation};

/// Chooses blocks by their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// A block is chosen when its hash is at most this; `None` chooses no block.
    threshold: Option<u64>,
    seed: u64,
    unit: Unit,
    block_size: BlockSize,
}

impl Sampler {
    /// Chooses `rate` of the blocks, from 0.0 to 1.0; blocks of a device are of `block_size`.
    /// Panics when the rate is out of its range.
    #[must_use]
    pub fn new(rate: f64, seed: u64, unit: Unit, block_size: BlockSize) -> Sampler {
        assert!((0.0..=1.0).contains(&rate), "a rate is from 0 to 1");
        // The product saturates at the highest hash, so that a rate of one chooses all.
        let threshold = (rate > 0.0).then_some((rate * u64::MAX as f64) as u64);
        Sampler { threshold, seed: mix(seed), unit, block_size }
    }

    fn chooses(&self, volume: u32, block: u64) -> bool {
        let hash = mix(self.seed ^ mix(u64::from(volume)) ^ mix(block));
        self.threshold.is_some_and(|threshold| hash <= threshold)
    }

    /// Appends to `sample` what of `records` lies in chosen blocks. A request over several blocks
    /// is cut into the runs that are chosen. Trims and flushes are kept whole: in a sample they
    /// cost nothing, and part of them would free too little.
    pub fn select(&self, records: &[Record], sample: &mut Vec<Record>) {
        for record in records {
            let has_data = matches!(record.operation, Operation::Read | Operation::Write);
            match self.unit {
                _ if !has_data => sample.push(*record),
                Unit::Bytes => self.runs(record, sample),
                Unit::Objects if self.chooses(record.volume.0, record.offset) => {
                    sample.push(*record);
                }
                Unit::Objects => {}
            }
        }
    }

    /// The runs of chosen blocks within `record`.
    fn runs(&self, record: &Record, sample: &mut Vec<Record>) {
        let end = record.offset + record.length;
        let last = self.block_size.block_of(end - 1).0;
        let mut block = self.block_size.block_of(record.offset).0;
        while block <= last {
            let first = block;
            while block <= last && self.chooses(record.volume.0, block) {
                block += 1;
            }
            if block > first {
                let offset = self.block_size.offset_of(BlockIndex(first)).max(record.offset);
                let length = self.block_size.offset_of(BlockIndex(block)).min(end) - offset;
                sample.push(Record { offset, length, ..*record });
            }
            // The block at which the run ended is not chosen, or lies behind the request.
            block += 1;
        }
    }
}

/// A run of requests, bounded in time, in number, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Requests before this time are left out.
    pub from: Nanos,
    /// Requests at this time and later are left out.
    pub until: Nanos,
    /// How many of the requests within these times are passed over.
    pub first: u64,
    /// How many of those that follow are kept at most.
    pub count: u64,
}

impl Window {
    /// The whole trace.
    pub const ALL: Window =
        Window { from: Nanos::ZERO, until: Nanos::NEVER, first: 0, count: u64::MAX };
}

/// Cuts a [`Window`] out of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutter {
    window: Window,
    /// Requests so far that lie within the window's times.
    within: u64,
    origin: Option<Nanos>,
}

impl Cutter {
    /// A cutter at the beginning of a trace.
    #[must_use]
    pub fn new(window: Window) -> Cutter {
        // A window that begins by time begins then, even if its first request comes later.
        let origin = (window.from > Nanos::ZERO).then_some(window.from);
        Cutter { window, within: 0, origin }
    }

    /// Appends to `part` what of `records`, which follow those of the last call, lies in the
    /// window, and says whether more can.
    pub fn select(&mut self, records: &[Record], part: &mut Vec<Record>) -> bool {
        for record in records {
            if record.at < self.window.from {
                continue;
            }
            let behind = self.within.checked_sub(self.window.first);
            if record.at >= self.window.until || behind.is_some_and(|at| at >= self.window.count) {
                return false;
            }
            self.within += 1;
            if behind.is_some() {
                let origin = *self.origin.get_or_insert(record.at);
                part.push(Record { at: record.at.since(origin), ..*record });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::VolumeId;
    use std::collections::BTreeSet;

    fn reads(ranges: &[(u64, u64)]) -> Vec<Record> {
        let read = |(index, (offset, length)): (usize, &(u64, u64))| Record {
            at: Nanos(10 * index as u64),
            volume: VolumeId(1),
            operation: Operation::Read,
            offset: *offset,
            length: *length,
        };
        ranges.iter().enumerate().map(read).collect()
    }

    /// Goal: a sample holds every byte of chosen blocks and no other. Method: ranges of many shapes
    /// at several rates, cut, beside each byte's block asked alone.
    #[test]
    fn samples_are_whole_blocks() {
        let ranges: Vec<(u64, u64)> =
            (0..200).map(|at| (at * 3001, 1 + at * 977 % 40_000)).collect();
        let records = reads(&ranges);
        for rate in [0.0, 0.1, 0.5, 1.0] {
            let sampler = Sampler::new(rate, 7, Unit::Bytes, BlockSize::DEFAULT);
            let mut sample = Vec::new();
            sampler.select(&records, &mut sample);
            let expected: u64 = records
                .iter()
                .flat_map(|record| record.offset..record.offset + record.length)
                .filter(|byte| sampler.chooses(1, byte / 4096))
                .count() as u64;
            assert_eq!(sample.iter().map(|record| record.length).sum::<u64>(), expected);
            let chosen = |byte: u64| sampler.chooses(1, byte / 4096);
            assert!(sample.iter().all(|r| chosen(r.offset) && chosen(r.offset + r.length - 1)));
            let all = rate == 1.0;
            assert_eq!(sample == records, all, "a rate of one keeps the trace as it is");
        }
    }

    /// Goal: the rate is met, higher rates hold lower ones, seeds differ. Method: 100,000 objects.
    #[test]
    fn rates_nest() {
        let records = reads(&(0..100_000).map(|at| (at, 1)).collect::<Vec<_>>());
        let sample = |rate, seed| {
            let mut sample = Vec::new();
            Sampler::new(rate, seed, Unit::Objects, BlockSize::DEFAULT)
                .select(&records, &mut sample);
            sample.iter().map(|record| record.offset).collect::<BTreeSet<_>>()
        };
        let (low, high, other) = (sample(0.01, 1), sample(0.1, 1), sample(0.01, 2));
        assert!(low.len().abs_diff(1000) < 100 && high.len().abs_diff(10_000) < 300);
        assert!(low.is_subset(&high) && low.intersection(&other).count() < 50);
    }

    /// Goal: windows begin and end where asked, and begin at zero. Method: ten requests, 10 ns
    /// apart, in two batches.
    #[test]
    fn windows_are_cut_exactly() {
        let records = reads(&[(0, 1); 10]);
        let cut = |window| {
            let (mut cutter, mut part) = (Cutter::new(window), Vec::new());
            let more = cutter.select(&records[..5], &mut part);
            let _ = more && cutter.select(&records[5..], &mut part);
            part.iter().map(|record| record.at.0).collect::<Vec<_>>()
        };
        assert_eq!(cut(Window::ALL).len(), 10);
        let (from, until) = (Nanos(25), Nanos(50));
        assert_eq!(cut(Window { from, until, ..Window::ALL }), [5, 15]);
        assert_eq!(cut(Window { first: 4, count: 3, ..Window::ALL }), [0, 10, 20]);
        assert_eq!(cut(Window { first: 9, ..Window::ALL }), [0]);
        assert_eq!(cut(Window { count: 0, ..Window::ALL }), Vec::<u64>::new());
        assert_eq!(cut(Window { first: 4, until, ..Window::ALL }), [0]);
        // Numbers count the requests within the times.
        let late = Window { from: Nanos(50), ..Window::ALL };
        assert_eq!(cut(Window { count: 2, ..late }), [0, 10]);
        assert_eq!(cut(Window { first: 2, count: 2, ..late }), [20, 30]);
        assert_eq!(cut(Window { first: 1, count: 9, from, until }), [15]);
    }
}
