//! Which blocks a segment was written with, in a few bytes each.
//!
//! How: runs in the order in which they were added, each as its distance from the one before and
//! its length, seven bits to a byte. What still lives there is asked of the map run by run, so that
//! cleaning a segment costs what the segment holds, and not what the volume does.
//! Invariant: what comes out is what went in, in that order.
//! Cost: two to four bytes per run, since segments are written in the order of their blocks.
//! Not for: anything that is stored; a map that is read back counts anew.

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
}
