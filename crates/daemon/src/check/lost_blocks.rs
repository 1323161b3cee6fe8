//! Lost blocks in the findings of a check: all of them, as the next start counts them.
//!
//! How: the engine's checker gives the ranges of a log; the catalog says whose they are and where
//! their volume ends.
//! Invariant: the ranges, and the words for them, are those of a start that finds no more damage.
//! Cost: 16 bytes for each range.
//! Not for: blocks that a start would lose; which they are, the start alone finds out.

use crate::catalog::{Catalog, VolumeRecord};
use crate::cloud::is_store;
use crate::config::Name;
use crate::recovery::lost_words;
use layby_engine::check::{LostRun, StoreReport};
use layby_engine::control::LOST_NAMED_MAX;
use layby_types::VolumeId;
use serde::Serialize;

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RangeAnswer {
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The lost blocks of a volume, or of one shard's part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostAnswer {
    /// The volume; none where the catalog has never had it.
    pub volume: Option<Name>,
    /// Its number, or that of the part.
    pub number: u32,
    /// Blocks.
    pub blocks: u64,
    /// Where they are, all of them.
    pub ranges: Vec<RangeAnswer>,
}

impl LostAnswer {
    /// What a start says of them.
    pub(super) fn text(&self) -> String {
        let named = self.ranges.iter().take(LOST_NAMED_MAX);
        let named: Vec<(u64, u64)> = named.map(|range| (range.offset, range.bytes)).collect();
        let counts = (self.blocks, self.ranges.len() as u64);
        lost_words((self.volume.as_ref(), self.number), counts, &named)
    }
}

/// The lost blocks of a log. Left out is what a start drops, too: what lies behind a volume's end,
/// and what is of a volume that was deleted or writes through to its store.
pub(super) fn by_volume(catalog: &Catalog, report: &StoreReport) -> Vec<LostAnswer> {
    let mut answers: Vec<LostAnswer> = Vec::new();
    for of_volume in report.lost.chunk_by(|one, next| one.volume == next.volume) {
        let number = of_volume[0].volume;
        let holds =
            |(_, record): &(&Name, &VolumeRecord)| record.parts().any(|part| part.0 == number);
        let found = catalog.volumes.iter().find(holds);
        let end = match found {
            Some((_, record)) if is_store(&record.path) => continue,
            Some((_, record)) => blocks_of(record, number, catalog.block_bytes),
            None if catalog.never_had(number) => u64::MAX,
            None => continue,
        };
        let within = |run: &LostRun| {
            let count = run.count.min(end.saturating_sub(run.block));
            (count > 0).then_some((run.block, count))
        };
        let runs: Vec<(u64, u64)> = of_volume.iter().filter_map(within).collect();
        if runs.is_empty() {
            continue;
        }
        let range = |(block, count): &(u64, u64)| RangeAnswer {
            offset: block.saturating_mul(report.block_bytes),
            bytes: count.saturating_mul(report.block_bytes),
        };
        let ranges = runs.iter().map(range).collect();
        let blocks = runs.iter().map(|(_, count)| count).sum();
        let volume = found.map(|(name, _)| name.clone());
        answers.push(LostAnswer { volume, number, blocks, ranges });
    }
    answers
}

/// Blocks of a volume's part.
fn blocks_of(record: &VolumeRecord, number: u32, block_bytes: u32) -> u64 {
    let part = record.parts().position(|part| part == VolumeId(number)).unwrap_or(0);
    let of_part = |stripes: layby_types::Stripes| stripes.below(part as u8, record.length);
    let bytes = record.stripes().map_or(record.length, of_part);
    bytes.div_ceil(u64::from(block_bytes).max(1))
}
