//! Ranges of a part as ranges of its wide volume, for reports.
//!
//! How: by the part's [`Stripes`]; where a volume is on one shard its ranges are its own.
//! Invariant: no two ranges of the volume that come of one range of a part touch, since the other
//! parts' stripes lie between.
//! Cost: a division for the count, two for each range that is named. Not for: requests, which the
//! core deals by the same stripes.

use layby_types::Stripes;
use std::ops::Range;

/// Which part of a wide volume something is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// The volume's stripes.
    pub stripes: Stripes,
    /// The part.
    pub part: u8,
}

/// Appends what a range is in its volume, a first byte and a length each, until `named` has `max`
/// of them; answers how many there are. The range is one of the volume, or of the part in `place`.
pub fn name_ranges(
    place: Option<PartPlace>,
    range: Range<u64>,
    (named, max): (&mut Vec<(u64, u64)>, usize),
) -> u64 {
    if range.is_empty() {
        return 0;
    }
    let room = max.saturating_sub(named.len());
    let Some(PartPlace { stripes, part }) = place else {
        named.extend(Some((range.start, range.end - range.start)).filter(|_| room > 0));
        return 1;
    };
    let whole = |(at, length)| (stripes.whole(part, at), length);
    named.extend(stripes.pieces(range.clone()).take(room).map(whole));
    (range.end - 1) / stripes.bytes() - range.start / stripes.bytes() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: a part's range is named by ranges of the volume that are all of it, nothing else, and
    /// as many as is said. Method: random ranges of a part, empty ones too; their bytes at edges,
    /// back in the part; the same with less room.
    #[test]
    fn ranges_of_a_part_are_ranges_of_the_volume() {
        let mut rng = Rng::new(4);
        for _ in 0..5_000 {
            let parts = 2 + rng.below(7) as u8;
            let stripes = Stripes::new(Stripes::BYTES_MIN << rng.below(5), parts);
            let stripes = stripes.expect("within bounds");
            let part = rng.below(stripes.parts().into()) as u8;
            let start = rng.below(20 * stripes.bytes());
            let range = start..start + rng.below(6 * stripes.bytes()) * rng.below(2);
            let place = Some(PartPlace { stripes, part });
            let mut found = Vec::new();
            let count = name_ranges(place, range.clone(), (&mut found, usize::MAX));
            assert_eq!(found.len() as u64, count, "{range:?}");
            let mut at = range.start;
            for (offset, length) in &found {
                assert!(*length > 0 && stripes.is_within_one(*offset, *length));
                assert_eq!((stripes.part_of(*offset), stripes.below(part, *offset)), (part, at));
                at += length;
            }
            assert_eq!(at, range.end);
            assert!(found.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0), "{found:?}");
            let mut few = Vec::new();
            assert_eq!(name_ranges(place, range.clone(), (&mut few, 2)), count);
            assert_eq!(few, found[..found.len().min(2)]);
        }
    }
}
