//! Lost blocks in the findings of a check: all of them, as the next start counts them.
//!
//! How: the engine's checker gives the ranges of a log; the catalog says whose they are and where
//! their volume ends.
//! Invariant: the ranges, and the words for them, are those of a start that finds no more damage.
//! Of a volume over several shards they are of the volume's bytes, not of a part's.
//! Cost: 16 bytes for each range, of which [`RANGES_MAX`] of a volume and shard are kept.
//! Not for: blocks that a start would lose; which they are, the start alone finds out.

use crate::catalog::{Catalog, VolumeRecord};
use crate::cloud::is_store;
use crate::config::Name;
use crate::recovery::lost_words;
use layby_engine::check::LostRun;
use layby_engine::control::LOST_NAMED_MAX;
use layby_engine::whole::{PartPlace, name_ranges};
use layby_types::VolumeId;
use serde::Serialize;

/// Ranges that are listed of a volume and shard. One range of a part is as many of its volume as it
/// touches stripes.
pub const RANGES_MAX: usize = 64 << 10;

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
    /// Where they are in the volume, the first [`RANGES_MAX`] of them.
    pub ranges: Vec<RangeAnswer>,
    /// Ranges behind these.
    pub ranges_more: u64,
}

impl LostAnswer {
    /// What a start says of them.
    pub(super) fn text(&self) -> String {
        let named = self.ranges.iter().take(LOST_NAMED_MAX);
        let named: Vec<(u64, u64)> = named.map(|range| (range.offset, range.bytes)).collect();
        let counts = (self.blocks, self.ranges.len() as u64 + self.ranges_more);
        lost_words((self.volume.as_ref(), self.number), counts, &named)
    }
}

/// The lost blocks of a log, whose blocks have so many bytes. Left out is what a start drops, too:
/// what lies behind a volume's end, and what is of a volume that was deleted or writes through to
/// its store.
pub(super) fn by_volume(catalog: &Catalog, lost: &[LostRun], block_bytes: u64) -> Vec<LostAnswer> {
    let mut answers: Vec<LostAnswer> = Vec::new();
    for of_volume in lost.chunk_by(|one, next| one.volume == next.volume) {
        let number = of_volume[0].volume;
        let holds =
            |(_, record): &(&Name, &VolumeRecord)| record.parts().any(|part| part.0 == number);
        let found = catalog.volumes.iter().find(holds);
        let place = found.and_then(|(_, record)| place_of(record, number));
        let end = match found {
            Some((_, record)) if is_store(&record.path) => continue,
            Some((_, record)) => {
                let of_part = |place: PartPlace| place.stripes.below(place.part, record.length);
                let bytes = place.map_or(record.length, of_part);
                bytes.div_ceil(u64::from(catalog.block_bytes).max(1))
            }
            None if catalog.never_had(number) => u64::MAX,
            None => continue,
        };
        let (mut blocks, mut ranges, mut count) = (0, Vec::new(), 0);
        for run in of_volume {
            let within = run.count.min(end.saturating_sub(run.block));
            let start = run.block.saturating_mul(block_bytes);
            let range = start..start.saturating_add(within.saturating_mul(block_bytes));
            blocks += within;
            count += name_ranges(place, range, (&mut ranges, RANGES_MAX));
        }
        if blocks == 0 {
            continue;
        }
        let volume = found.map(|(name, _)| name.clone());
        let ranges_more = count - ranges.len() as u64;
        let range = |(offset, bytes)| RangeAnswer { offset, bytes };
        let ranges = ranges.into_iter().map(range).collect();
        answers.push(LostAnswer { volume, number, blocks, ranges, ranges_more });
    }
    answers
}

/// Which part of a volume this number is; none where the volume is on one shard.
fn place_of(record: &VolumeRecord, number: u32) -> Option<PartPlace> {
    let stripes = record.stripes()?;
    let part = record.parts().position(|part| part == VolumeId(number))? as u8;
    Some(PartPlace { stripes, part })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{NodeId, WideRecord};
    use layby_types::{Rng, Stripes};

    const BLOCK: u64 = 4096;
    const STRIPE: u64 = Stripes::BYTES_MIN;

    /// A catalog with volume `v` over two shards, numbers 0 and 1, that ends within a block.
    fn catalog(length: u64) -> Catalog {
        let mut catalog = Catalog::new(NodeId([7; 16]), BLOCK as u32, 2, Vec::new());
        let id = catalog.volume_ids_take(2).expect("many are left").0;
        let record = serde_json::json!({"id": id, "phase": "ready", "length": length,
            "class": "normal", "path": "volumes/v", "read_only": false, "allow": [], "share": {},
            "cap": {}});
        let mut record: VolumeRecord = serde_json::from_value(record).expect("a record");
        record.wide = Some(WideRecord { shards: 2, stripe_bytes: STRIPE });
        catalog.volumes.insert("v".parse().expect("a good name"), record);
        catalog
    }

    /// Goal: lost blocks of a volume over several shards are listed by the volume's bytes. Method:
    /// blocks about an edge of each part's stripes, and beyond the part's end; then random ones,
    /// each byte of the ranges back in its part.
    #[test]
    fn parts_are_listed_by_their_volumes_bytes() {
        let (blocks, catalog) = (STRIPE / BLOCK, catalog(5 * STRIPE + 9 * 512));
        let run = |volume, block, count| LostRun { volume, block, count };
        let lost = [run(0, blocks - 1, 2), run(0, 3 * blocks - 1, 9), run(1, blocks - 1, 2)];
        let answers = by_volume(&catalog, &lost, BLOCK);
        let told = |answer: &LostAnswer| -> Vec<(u64, u64)> {
            answer.ranges.iter().map(|range| (range.offset, range.bytes)).collect()
        };
        let edge = |part: u64| [(part + 1) * STRIPE - BLOCK, (part + 2) * STRIPE];
        let [first, second] = [&answers[0], &answers[1]].map(told);
        let last = 5 * STRIPE - BLOCK;
        assert_eq!(first, [edge(0)[0], edge(0)[1], last].map(|at| (at, BLOCK)));
        assert_eq!(second, edge(1).map(|at| (at, BLOCK)));
        assert_eq!((answers[0].blocks, answers[1].blocks), (3, 2));
        assert!(answers.iter().all(|answer| answer.ranges_more == 0));
        let words = answers[1].text();
        let [one, next] = edge(1);
        assert!(words.contains("2 blocks of volume `v` (number 1) in 2 range(s)"), "{words}");
        assert!(words.contains(&format!("at bytes {one}+{BLOCK}, {next}+{BLOCK}: ")), "{words}");
    }

    /// Goal: a part that is lost as a whole has so many ranges as stripes, and no more than the
    /// bound are listed, of one run or of several. Method: a part of more stripes than that.
    #[test]
    fn ranges_of_a_part_are_bounded() {
        let most = RANGES_MAX as u64;
        let catalog = catalog(2 * STRIPE * (most + 7));
        let blocks = (most + 7) * (STRIPE / BLOCK);
        let cut = Rng::new(5).below(blocks / 2);
        let run = |block, count| LostRun { volume: 1, block, count };
        for runs in [vec![run(0, u64::MAX)], vec![run(0, cut), run(cut + 1, blocks)]] {
            let answers = by_volume(&catalog, &runs, BLOCK);
            assert_eq!(answers[0].ranges.len(), RANGES_MAX);
            assert_eq!(answers[0].ranges[0].offset, STRIPE);
            let more = answers[0].ranges_more;
            assert!((7..=8).contains(&more), "{more}");
            assert!(answers[0].text().contains(&format!(" in {} range(s)", most + more)));
        }
    }
}
