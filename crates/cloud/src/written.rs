//! Which blocks a segment was written with, in a few bytes each.
//!
//! How: runs in the order in which they were added, each as its distance from the one before and
//! its length, seven bits to a byte. What still lives there is asked of the map run by run, so that
//! cleaning a segment costs what the segment holds, and not what the volume does.
//! Invariant: what comes out is what went in, in that order.
//! Cost: two to four bytes per run, since segments are written in the order of their blocks.
//! Not for: anything that is stored; a map that is read back counts anew.

use std::collections::VecDeque;
use std::ops::Range;

/// See the file's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    bytes: Vec<u8>,
    /// The last run's end.
    end: u64,
}

impl Written {
    pub(crate) fn push(&mut self, blocks: Range<u64>) {
        self.put(zigzag(blocks.start.wrapping_sub(self.end).cast_signed()));
        self.put(blocks.end - blocks.start);
        self.end = blocks.end;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        let (mut rest, mut end) = (&self.bytes[..], 0_u64);
        std::iter::from_fn(move || {
            let distance = unzigzag(take(&mut rest)?);
            let start = end.wrapping_add(distance.cast_unsigned());
            end = start + take(&mut rest)?;
            Some(start..end)
        })
    }

    /// Runs that touch `blocks`, and on either side of them those that hold the nearest `most`
    /// blocks, in the order in which they were added. None where nothing touches them.
    pub(crate) fn near(&self, blocks: &Range<u64>, most: u64) -> Vec<Range<u64>> {
        let mut near: VecDeque<Range<u64>> = VecDeque::new();
        let (mut before, mut behind, mut is_met) = (0, 0, false);
        for run in self.iter() {
            if is_met && behind >= most {
                break;
            }
            let meets = run.start < blocks.end && blocks.start < run.end;
            if !is_met {
                // A long run may lie around the blocks.
                let end = if meets { blocks.start.max(run.start) } else { run.end };
                before += end - run.start;
                while let Some(first) = near.front().map(|first| first.end - first.start)
                    && before - first >= most
                {
                    before -= first;
                    near.pop_front();
                }
                let start = run.start.max(end.saturating_sub(most));
                before -= start - run.start;
                near.push_back(start..run.end);
                is_met = meets;
            } else {
                near.push_back(run.clone());
            }
            if is_met {
                let last = near.back_mut().expect("it was just added");
                let start = if meets { blocks.end.min(run.end) } else { run.start };
                last.end = last.end.min(start.saturating_add(most));
                behind += last.end - start.min(last.end);
            }
        }
        if is_met { near.into() } else { Vec::new() }
    }

    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: runs come out as they went in, and sorted single blocks take little. Method: runs from
    /// seeds, far apart and near, forwards and back; then every third block of a segment.
    #[test]
    fn runs_come_out_as_they_went_in() {
        let mut rng = Rng::new(5);
        let (mut written, mut runs) = (Written::default(), Vec::new());
        for bits in (0..2000).map(|number| number % 46) {
            let start = rng.below(1 << bits);
            runs.push(start..start + 1 + rng.below(16));
            written.push(runs[runs.len() - 1].clone());
        }
        assert_eq!(written.iter().collect::<Vec<_>>(), runs);
        let mut written = Written::default();
        (0..2048).for_each(|block| written.push(block * 3 + 1_000_000..block * 3 + 1_000_001));
        assert!(written.bytes.len() < 2 * 2048 + 16, "{}", written.bytes.len());
    }

    /// Goal: what is near some blocks is what was added beside them, and no more than was asked
    /// for on either side. Method: single blocks with gaps, and a long run among them.
    #[test]
    fn near_runs_are_those_beside() {
        let mut written = Written::default();
        (0..100).for_each(|block| written.push(block * 16..block * 16 + 1));
        let singles = |from: u64, to: u64| (from..=to).map(|b| b * 16..b * 16 + 1);
        assert_eq!(written.near(&(160..161), 3), singles(7, 13).collect::<Vec<_>>());
        assert_eq!(written.near(&(16..17), 3), singles(0, 4).collect::<Vec<_>>());
        assert_eq!(written.near(&(98 * 16..98 * 16 + 1), 3), singles(95, 99).collect::<Vec<_>>());
        assert_eq!(written.near(&(161..162), 3), [], "nothing was written there");
        written.push(10_000..20_000);
        written.push(30_000..40_000);
        assert_eq!(written.near(&(10_000..10_001), 2), [1568..1569, 1584..1585, 10_000..10_003]);
        assert_eq!(written.near(&(19_999..20_000), 2), [19_997..20_000, 30_000..30_002]);
        let long = written.near(&(30_500..30_501), 2);
        assert_eq!((long.len(), long[0].clone()), (1, 30_498..30_503));
    }
}
