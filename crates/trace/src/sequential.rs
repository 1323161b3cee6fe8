//! A sequential stream: one range after the other, from the start again at the end.
//!
//! How: a cursor over whole ranges; a tail shorter than a range is left alone.
//! Invariant: offsets are multiples of the length. Cost: an add and a compare per range.

/// Walks a footprint in ranges of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequential {
    length: u64,
    end: u64,
    next: u64,
}

impl Sequential {
    /// A stream over `footprint` bytes in ranges of `length` bytes. Panics unless at least one
    /// whole range fits.
    #[must_use]
    pub fn new(footprint: u64, length: u64) -> Self {
        assert!(length > 0 && footprint >= length, "a stream needs room for one whole range");
        Sequential { length, end: footprint - footprint % length, next: 0 }
    }
    /// The first byte of the next range.
    pub fn advance(&mut self) -> u64 {
        let offset = self.next;
        self.next += self.length;
        if self.next == self.end {
            self.next = 0;
        }
        assert!(offset + self.length <= self.end, "a range lies whole within the footprint");
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ranges follow each other, wrap, and never reach into a short tail. Method: a footprint
    /// of three ranges and a half, seven steps.
    #[test]
    fn ranges_follow_each_other_and_wrap() {
        let mut stream = Sequential::new(35, 10);
        let offsets: Vec<u64> = (0..7).map(|_| stream.advance()).collect();
        assert_eq!(offsets, [0, 10, 20, 0, 10, 20, 0]);
    }
}
