//! Read-ahead: a window that doubles while a volume is read in order.
//!
//! How: several streams per volume are followed by where they ended; a read that continues one
//! lengthens its streak, and past `streak_min` asks for a window beyond it. Invariant: a window
//! never exceeds the maximum and never asks twice for what it already asked for.
//! Cost: a scan of a few entries per read. Source: L3 cache paper, "pre-caching".

use layby_types::BlockIndex;

/// Streams followed per volume.
const STREAMS: usize = 4;
/// A stream is live while it is among so many reads of its volume.
const READS_LIVE: u32 = 64;
/// The first window, in blocks.
const WINDOW_FIRST: u64 = 8;

/// Blocks to fetch ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First block.
    pub first: BlockIndex,
    /// Number of blocks, at least one.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    next: u64,
    streak: u8,
    window: u64,
    ahead_end: u64,
    used: u32,
}

/// Follows the reads of one volume.
#[derive(Clone, Debug, Default)]
pub struct ReadAhead {
    streams: [Stream; STREAMS],
    clock: u32,
}

impl ReadAhead {
    /// Tells of a read of `count` blocks from `first`; answers with what to fetch ahead.
    pub fn on_read(
        &mut self,
        first: BlockIndex,
        count: u64,
        streak_min: u8,
        window_max: u64,
    ) -> Option<Window> {
        if window_max == 0 {
            return None;
        }
        self.clock = self.clock.wrapping_add(1);
        let end = first.0 + count;
        // A client that reads in pieces smaller than a block meets its last block again.
        let found = self
            .streams
            .iter_mut()
            .find(|s| s.streak > 0 && (s.next == first.0 || s.next == first.0 + 1));
        let Some(stream) = found else {
            self.start_stream(end);
            return None;
        };
        stream.used = self.clock;
        if end > stream.next {
            stream.streak = stream.streak.saturating_add(1);
        }
        stream.next = end.max(stream.next);
        (stream.streak >= streak_min).then(|| stream.advance(window_max)).flatten()
    }

    /// Streams that are read ahead and were read lately.
    #[must_use]
    pub fn live(&self) -> u64 {
        let is_live = |s: &&Stream| s.window > 0 && self.clock.wrapping_sub(s.used) < READS_LIVE;
        self.streams.iter().filter(is_live).count() as u64
    }

    fn start_stream(&mut self, end: u64) {
        let clock = self.clock;
        let oldest = self.streams.iter_mut().min_by_key(|s| (s.streak > 0, s.used));
        let oldest = oldest.expect("there is at least one stream");
        *oldest = Stream { next: end, streak: 1, window: 0, ahead_end: end, used: clock };
    }
}

impl Stream {
    /// Asks for more once half of the last window has been read.
    fn advance(&mut self, window_max: u64) -> Option<Window> {
        let ahead = self.ahead_end.saturating_sub(self.next);
        if self.window > 0 && ahead > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).clamp(WINDOW_FIRST.min(window_max), window_max);
        let first = self.ahead_end.max(self.next);
        self.ahead_end = self.next + self.window;
        let count = self.ahead_end.checked_sub(first).filter(|count| *count > 0)?;
        Some(Window { first: BlockIndex(first), count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a sequential reader is led by doubling windows without overlap or gap.
    /// Method: 64 reads of four blocks; the windows must tile a prefix beyond the reads.
    #[test]
    fn windows_double_and_tile() {
        let mut ahead = ReadAhead::default();
        let (mut asked_end, mut largest) = (None, 0);
        for read in 0..64u64 {
            if let Some(window) = ahead.on_read(BlockIndex(read * 4), 4, 3, 64) {
                if let Some(end) = asked_end {
                    assert_eq!(window.first.0, end, "windows must neither overlap nor leave a gap");
                }
                asked_end = Some(window.first.0 + window.count);
                largest = largest.max(window.count);
                assert!(window.first.0 >= (read + 1) * 4 && window.count <= 64);
            }
        }
        assert!(largest >= 32, "the window must grow, largest was {largest}");
    }

    /// Goal: streams count as live while they are read, and not for ever. Method: two streams, one
    /// of which ends.
    #[test]
    fn streams_that_end_are_not_live() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.live(), 0);
        for read in 0..8 {
            ahead.on_read(BlockIndex(read), 1, 3, 64);
            ahead.on_read(BlockIndex(1000 + read), 1, 3, 64);
        }
        assert_eq!(ahead.live(), 2);
        for read in 8..8 + 64 {
            ahead.on_read(BlockIndex(read), 1, 3, 64);
        }
        assert_eq!(ahead.live(), 1);
    }

    /// Goal: random reads cause no read-ahead. Method: a stride that never continues a stream.
    #[test]
    fn random_reads_stay_alone() {
        let mut ahead = ReadAhead::default();
        for step in 0..1000u64 {
            let block = (step * 7919) % 100_000;
            assert_eq!(ahead.on_read(BlockIndex(block), 1, 3, 64), None, "at step {step}");
        }
    }
}
