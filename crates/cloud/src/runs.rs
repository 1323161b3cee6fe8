//! A map from blocks to places, as runs of neighbours.
//!
//! How: a B-tree by first block; a run's place knows how to step over blocks. Replacing a range
//! cuts what it meets and hands out what it covered.
//! Invariant: runs never overlap and are never empty.
//! Cost: logarithmic per run met; about 60 bytes per run.
//! Not for: maps larger than memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where a run's blocks are.
pub(crate) trait Place: Copy + PartialEq {
    /// The place of what begins `blocks` later.
    fn skip(self, blocks: u64) -> Self;
}

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece<P> {
    pub(crate) blocks: Range<u64>,
    /// `None` where the map says nothing.
    pub(crate) place: Option<P>,
}

/// See the file's header.
#[derive(Clone, Debug)]
pub(crate) struct Runs<P> {
    runs: BTreeMap<u64, (u64, P)>,
}

impl<P> Default for Runs<P> {
    fn default() -> Self {
        Runs { runs: BTreeMap::new() }
    }
}

impl<P: Place> Runs<P> {
    /// Parts of `blocks` that are mapped, in order.
    pub(crate) fn mapped(&self, blocks: Range<u64>) -> impl Iterator<Item = (Range<u64>, P)> {
        let before = self.runs.range(..blocks.start).next_back();
        let first = before.filter(|(_, (end, _))| *end > blocks.start).map(|(start, _)| *start);
        let from = first.unwrap_or(blocks.start);
        let runs = self.runs.range(from..blocks.end.max(from));
        runs.map(move |(start, (end, place))| {
            let cut = (*start).max(blocks.start)..(*end).min(blocks.end);
            let place = place.skip(cut.start - start);
            (cut, place)
        })
    }

    /// All of `blocks`, in order, gaps included.
    pub(crate) fn pieces(&self, blocks: Range<u64>) -> Vec<Piece<P>> {
        let mut pieces = Vec::new();
        let mut at = blocks.start;
        for (run, place) in self.mapped(blocks.clone()) {
            if at < run.start {
                pieces.push(Piece { blocks: at..run.start, place: None });
            }
            at = run.end;
            pieces.push(Piece { blocks: run, place: Some(place) });
        }
        if at < blocks.end {
            pieces.push(Piece { blocks: at..blocks.end, place: None });
        }
        pieces
    }

    /// Unmaps a range and returns what it held.
    pub(crate) fn remove(&mut self, blocks: Range<u64>) -> Vec<(Range<u64>, P)> {
        let held: Vec<(Range<u64>, P)> = self.mapped(blocks.clone()).collect();
        let (Some(first), Some(last)) = (held.first(), held.last()) else { return held };
        let (from, to) = (first.0.start, last.0.end);
        if let Some((start, (end, place))) = self.runs.range(..from).next_back()
            && *end > from
        {
            let (start, end, place) = (*start, *end, *place);
            self.runs.insert(start, (from, place));
            self.runs.insert(from, (end, place.skip(from - start)));
        }
        if let Some((start, (end, place))) = self.runs.range(..to).next_back()
            && *end > to
        {
            let (start, end, place) = (*start, *end, *place);
            self.runs.insert(start, (to, place));
            self.runs.insert(to, (end, place.skip(to - start)));
        }
        for (run, _) in &held {
            self.runs.remove(&run.start);
        }
        held
    }

    /// Maps a range to `place` and returns what it held before.
    pub(crate) fn insert(&mut self, blocks: Range<u64>, place: P) -> Vec<(Range<u64>, P)> {
        assert!(blocks.start < blocks.end, "a run has blocks");
        let held = self.remove(blocks.clone());
        self.runs.insert(blocks.start, (blocks.end, place));
        held
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<u64>, P)> {
        self.runs.iter().map(|(start, (end, place))| (*start..*end, *place))
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct At(u64);

    impl Place for At {
        fn skip(self, blocks: u64) -> Self {
            At(self.0 + blocks)
        }
    }

    /// Goal: runs say of every block what an array would. Method: random inserts and removals.
    #[test]
    fn runs_match_an_array() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut runs, mut model) = (Runs::default(), [None; 64]);
            for step in 0..200 {
                let start = rng.below(64);
                let blocks = start..start + 1 + rng.below(64 - start);
                let held = if rng.chance(1, 3) {
                    let held = runs.remove(blocks.clone());
                    let was = model;
                    model[blocks.start as usize..blocks.end as usize].fill(None);
                    (held, was)
                } else {
                    let place = At(step * 1000);
                    let held = runs.insert(blocks.clone(), place);
                    let was = model;
                    for block in blocks.clone() {
                        model[block as usize] = Some(At(step * 1000 + block - blocks.start));
                    }
                    (held, was)
                };
                let mut said = [None; 64];
                for (run, place) in held.0 {
                    for block in run.clone() {
                        said[block as usize] = Some(place.skip(block - run.start));
                    }
                }
                for block in blocks {
                    assert_eq!(said[block as usize], held.1[block as usize], "seed {seed}");
                }
                for piece in runs.pieces(0..64) {
                    for block in piece.blocks.clone() {
                        let place = piece.place.map(|place| place.skip(block - piece.blocks.start));
                        assert_eq!(place, model[block as usize], "seed {seed}");
                    }
                }
            }
        }
    }
}
