//! How a wide volume's bytes are dealt to its parts: stripe after stripe, in turn.
//!
//! How: stripe `k` of the volume belongs to part `k % parts`, and is that part's `k / parts`th.
//! So a part's bytes lie densely in the part, and a range of the volume is one range of each part
//! that it touches. Everything follows from [`Stripes::below`], a count.
//! Invariant: the addresses of the volume and the pairs of part and address within it correspond
//! one to one, whatever the volume's length. Cost: a few divisions.
//! Not for: who serves a part, and where its bytes are kept.

use core::ops::Range;

/// See the file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    bytes: u64,
    parts: u8,
}

impl Stripes {
    /// Bytes of a stripe at least: no block is larger.
    pub const BYTES_MIN: u64 = 64 << 10;
    /// Bytes of a stripe at most.
    pub const BYTES_MAX: u64 = 1 << 30;
    /// As long as what is read ahead and destaged at once by default, so that a home that spins
    /// still gets long operations, and short enough that a client who reads in a row keeps all
    /// shards busy.
    pub const BYTES_DEFAULT: u64 = 1 << 20;
    /// Parts of a wide volume at least.
    pub const PARTS_MIN: u8 = 2;
    /// Parts of a wide volume at most.
    pub const PARTS_MAX: u8 = 32;

    /// Stripes of `bytes` over `parts`; `None` when that cannot be: either is out of its bounds, or
    /// the bytes are no power of two.
    #[must_use]
    pub const fn new(bytes: u64, parts: u8) -> Option<Stripes> {
        let fits = bytes >= Stripes::BYTES_MIN && bytes <= Stripes::BYTES_MAX;
        let deals = parts >= Stripes::PARTS_MIN && parts <= Stripes::PARTS_MAX;
        if fits && bytes.is_power_of_two() && deals { Some(Stripes { bytes, parts }) } else { None }
    }

    /// Bytes of a stripe.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many parts there are.
    #[must_use]
    pub const fn parts(&self) -> u8 {
        self.parts
    }

    /// Bytes of all parts' stripes of one turn.
    const fn turn(&self) -> u64 {
        self.bytes * self.parts as u64
    }

    /// How many bytes of the volume before `offset` are the part's. For an offset within the part
    /// it is the address there; for the volume's length it is the part's.
    #[must_use]
    pub fn below(&self, part: u8, offset: u64) -> u64 {
        assert!(part < self.parts, "a part of this volume");
        let (turn, within) = (offset / self.turn(), offset % self.turn());
        let own = within.saturating_sub(u64::from(part) * self.bytes).min(self.bytes);
        turn * self.bytes + own
    }

    /// The part that a byte of the volume belongs to.
    #[must_use]
    pub fn part_of(&self, offset: u64) -> u8 {
        (offset / self.bytes % u64::from(self.parts)) as u8
    }

    /// The part's bytes of a range of the volume; empty where it has none.
    #[must_use]
    pub fn range(&self, part: u8, offset: u64, length: u64) -> Range<u64> {
        self.below(part, offset)..self.below(part, offset.saturating_add(length))
    }

    /// The address in the volume of a byte of a part.
    #[must_use]
    pub fn whole(&self, part: u8, at: u64) -> u64 {
        assert!(part < self.parts, "a part of this volume");
        at / self.bytes * self.turn() + u64::from(part) * self.bytes + at % self.bytes
    }

    /// Bytes from an address, of the volume or of a part, to the next edge of a stripe; at least
    /// one.
    #[must_use]
    pub const fn left(&self, at: u64) -> u64 {
        self.bytes - at % self.bytes
    }

    /// Whether a range, of the volume or of a part, lies within one stripe.
    #[must_use]
    pub const fn is_within_one(&self, at: u64, length: u64) -> bool {
        length <= self.left(at)
    }

    /// A part's range, stripe by stripe: where each piece lies in the part, and how long it is.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (stripes, mut at) = (*self, range.start);
        core::iter::from_fn(move || {
            let length = stripes.left(at).min(range.end.saturating_sub(at));
            let piece = (at, length);
            at += length;
            (length > 0).then_some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use alloc::vec::Vec;

    fn any(rng: &mut Rng) -> Stripes {
        let bytes = Stripes::BYTES_MIN << rng.below(5);
        Stripes::new(bytes, 2 + rng.below(7) as u8).expect("within bounds")
    }

    /// Goal: addresses of the volume and of parts correspond one to one. Method: random addresses
    /// there and back, and back and there.
    #[test]
    fn addresses_correspond() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let stripes = any(&mut rng);
            let offset = rng.below(1 << 45);
            let part = stripes.part_of(offset);
            let at = stripes.below(part, offset);
            assert_eq!(stripes.whole(part, at), offset);
            assert_eq!(stripes.left(at), stripes.left(offset));
            let (part, at) = (rng.below(stripes.parts().into()) as u8, rng.below(1 << 40));
            let offset = stripes.whole(part, at);
            assert_eq!((stripes.part_of(offset), stripes.below(part, offset)), (part, at));
        }
    }

    /// Goal: parts of a volume of any length hold its bytes exactly, the last stripe too. Method:
    /// random lengths about edges; each part's last byte lies before the volume's end, and the
    /// byte after it does not.
    #[test]
    fn lengths_are_exact() {
        let mut rng = Rng::new(2);
        for _ in 0..20_000 {
            let stripes = any(&mut rng);
            let length = (rng.below(40) * stripes.bytes() + rng.below(3) * 512).max(1);
            let parts = 0..stripes.parts();
            let lengths: Vec<u64> = parts.map(|part| stripes.below(part, length)).collect();
            assert_eq!(lengths.iter().sum::<u64>(), length);
            for (part, own) in (0..).zip(lengths) {
                assert!(own == 0 || stripes.whole(part, own - 1) < length);
                assert!(stripes.whole(part, own) >= length);
            }
        }
    }

    /// Goal: the parts' ranges of a range are the range, each byte once and in order. Method:
    /// random ranges; pieces of all parts, laid side by side by their address in the volume.
    #[test]
    fn ranges_are_whole() {
        let mut rng = Rng::new(3);
        for _ in 0..5_000 {
            let stripes = any(&mut rng);
            let offset = rng.below(20 * stripes.bytes());
            let length = rng.below(6 * stripes.bytes());
            let mut pieces: Vec<(u64, u64)> = Vec::new();
            for part in 0..stripes.parts() {
                let range = stripes.range(part, offset, length);
                let own = stripes.pieces(range);
                pieces.extend(own.map(|(at, length)| (stripes.whole(part, at), length)));
            }
            pieces.sort_unstable();
            let mut at = offset;
            for (begin, length) in pieces {
                assert!(begin == at && stripes.is_within_one(begin, length));
                at += length;
            }
            assert_eq!(at, offset + length);
        }
    }

    /// Goal: what cannot be striped is refused. Method: each bound.
    #[test]
    fn bounds_hold() {
        assert!(Stripes::new(Stripes::BYTES_DEFAULT, 2).is_some());
        assert!(Stripes::new(Stripes::BYTES_MAX, Stripes::PARTS_MAX).is_some());
        for (bytes, parts) in [(1 << 20, 1), (1 << 20, 33), (3 << 20, 2), (4096, 2), (1 << 31, 2)] {
            assert!(Stripes::new(bytes, parts).is_none(), "{bytes} {parts}");
        }
    }
}
