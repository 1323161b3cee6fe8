//! Changes of a disk that only this process knows: non-overlapping segments by offset.
//!
//! How: a new segment cuts away what it covers; each carries its age, so that a segment that was
//! written through can be told from a newer one in the same place.
//! Invariant: segments never overlap, and `held_bytes` counts what they hold.
//! Cost: logarithmic per segment, plus copies at cuts.
//! Not for: deciding when to write through.

use crate::io::DiskExtent;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a segment of zeros counts for, so that zeroings too are bounded.
const ZEROS_BYTES: u64 = 64;

/// What a range holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    Zeros { length: u64, keep_allocated: bool },
}

impl Content {
    pub(super) fn length(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Zeros { length, .. } => *length,
        }
    }

    fn held(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Zeros { .. } => ZEROS_BYTES,
        }
    }

    /// Keeps the first `at` bytes and returns the rest.
    fn split_off(&mut self, at: u64) -> Content {
        match self {
            Content::Bytes(bytes) => Content::Bytes(bytes.split_off(at as usize)),
            Content::Zeros { length, keep_allocated } => {
                let rest = *length - at;
                *length = at;
                Content::Zeros { length: rest, keep_allocated: *keep_allocated }
            }
        }
    }

    fn part(&self, part: Range<u64>) -> Content {
        match self {
            Content::Bytes(bytes) => {
                Content::Bytes(bytes[part.start as usize..part.end as usize].to_vec())
            }
            Content::Zeros { keep_allocated, .. } => {
                Content::Zeros { length: part.end - part.start, keep_allocated: *keep_allocated }
            }
        }
    }
}

/// A segment, or a copy of a part of one.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) content: Content,
    pub(super) age: u64,
}

impl Piece {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.content.length()
    }

    /// Lays the piece over bytes that begin at `offset` and reach at least as far as the piece.
    pub(super) fn lay_over(&self, offset: u64, bytes: &mut [u8]) {
        let start = (self.offset - offset) as usize;
        let target = &mut bytes[start..start + self.content.length() as usize];
        match &self.content {
            Content::Bytes(bytes) => target.copy_from_slice(bytes),
            Content::Zeros { .. } => target.fill(0),
        }
    }
}

/// The segments.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    segments: BTreeMap<u64, (Content, u64)>,
    held_bytes: u64,
    age_last: u64,
}

impl Overlay {
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Lays `content` over what is there; answers its age.
    pub(super) fn insert(&mut self, offset: u64, content: Content) -> u64 {
        self.age_last += 1;
        let length = content.length();
        if length > 0 {
            self.remove_if(offset..offset + length, |_| true);
            self.held_bytes += content.held();
            self.segments.insert(offset, (content, self.age_last));
        }
        self.age_last
    }

    /// Forgets what a range holds of this age: it was written through, and nothing newer hides it.
    pub(super) fn forget(&mut self, range: Range<u64>, age: u64) {
        self.remove_if(range, |other| other == age);
    }

    /// Copies of what a range holds, clipped to it.
    pub(super) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let before = self.segments.range(..range.start).next_back();
        let inside = self.segments.range(range.clone());
        let mut pieces = Vec::new();
        for (offset, (content, age)) in before.into_iter().chain(inside) {
            let start = range.start.max(*offset);
            let end = range.end.min(offset + content.length());
            if start < end {
                let content = content.part(start - offset..end - offset);
                pieces.push(Piece { offset: start, content, age: *age });
            }
        }
        pieces
    }

    /// Copies of the oldest segments: about `bytes` of them, or all for `u64::MAX`.
    pub(super) fn oldest(&self, bytes: u64) -> Vec<Piece> {
        let mut order: Vec<_> = self.segments.iter().collect();
        order.sort_by_key(|(_, (_, age))| *age);
        let mut taken = 0;
        let within = |(_, (content, _)): &(&u64, &(Content, u64))| {
            let more = taken < bytes;
            taken += content.held();
            more
        };
        let copy = |(offset, (content, age)): (&u64, &(Content, u64))| Piece {
            offset: *offset,
            content: content.clone(),
            age: *age,
        };
        order.into_iter().take_while(within).map(copy).collect()
    }

    fn remove_if(&mut self, range: Range<u64>, doomed: impl Fn(u64) -> bool) {
        self.split(range.start);
        self.split(range.end);
        let offsets: Vec<u64> = self
            .segments
            .range(range)
            .filter(|(_, (_, age))| doomed(*age))
            .map(|(offset, _)| *offset)
            .collect();
        for offset in offsets {
            if let Some((content, _)) = self.segments.remove(&offset) {
                self.held_bytes -= content.held();
            }
        }
    }

    /// Cuts the segment that spans `at`, if one does.
    fn split(&mut self, at: u64) {
        let Some((offset, (content, age))) = self.segments.range_mut(..at).next_back() else {
            return;
        };
        if offset + content.length() > at {
            let before = content.held();
            let rest = content.split_off(at - offset);
            self.held_bytes += content.held() + rest.held() - before;
            let age = *age;
            self.segments.insert(at, (rest, age));
        }
    }
}

/// Lays pieces over a disk's extents, which tile a range that holds the pieces.
pub(super) fn lay_over_extents(extents: &mut Vec<DiskExtent>, pieces: &[Piece]) {
    for piece in pieces {
        let Range { start, end } = piece.range();
        let mut cut = Vec::with_capacity(extents.len() + 2);
        for extent in extents.drain(..) {
            let extent_end = extent.offset + extent.length;
            let sides =
                [(extent.offset, extent_end.min(start)), (extent.offset.max(end), extent_end)];
            for (from, to) in sides.into_iter().filter(|(from, to)| from < to) {
                cut.push(DiskExtent { offset: from, length: to - from, data: extent.data });
            }
        }
        let data = matches!(piece.content, Content::Bytes(_));
        cut.push(DiskExtent { offset: start, length: end - start, data });
        cut.sort_by_key(|extent| extent.offset);
        *extents = cut;
    }
    extents.dedup_by(|next, last| {
        let merge = next.data == last.data;
        last.length += if merge { next.length } else { 0 };
        merge
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: the overlay shows the newest content of every byte and forgets only by age. Method:
    /// random inserts and forgets beside an array of (value, age) per byte.
    #[test]
    fn an_overlay_matches_an_array() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let (mut overlay, mut model) = (Overlay::default(), vec![None; 1000]);
            for step in 0..100u64 {
                let start = rng.below(990);
                let end = start + 1 + rng.below((1000 - start).min(200));
                if rng.chance(3, 4) {
                    let value = rng.below(3) as u8;
                    let content = match value {
                        0 => Content::Zeros { length: end - start, keep_allocated: false },
                        _ => Content::Bytes(vec![value; (end - start) as usize]),
                    };
                    let age = overlay.insert(start, content);
                    model[start as usize..end as usize].fill(Some((value, age)));
                } else {
                    let age = 1 + rng.below(step + 1);
                    overlay.forget(start..end, age);
                    for byte in &mut model[start as usize..end as usize] {
                        *byte = byte.filter(|(_, other)| *other != age);
                    }
                }
            }
            let mut image = vec![9; 1000];
            overlay.pieces(0..1000).iter().for_each(|piece| piece.lay_over(0, &mut image));
            let expected: Vec<u8> =
                model.iter().map(|byte| byte.map_or(9, |(value, _)| value)).collect();
            assert_eq!(image, expected, "replay with SEED={seed}");
            let held: u64 = overlay.oldest(u64::MAX).iter().map(|piece| piece.content.held()).sum();
            assert_eq!(overlay.held_bytes(), held, "replay with SEED={seed}");
        }
    }
}
