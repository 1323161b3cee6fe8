//! Streams that look at nothing but the address, or at nothing at all.
//!
//! How: one stream for all, or as many equal ranges of the volume as there are streams.
//! Invariant: nothing is learned. Cost: a division. Not for: gains; they are what others are
//! compared with.

use super::{Part, StreamCount, StreamNumber, StreamPolicy, Write, split, whole};
use alloc::vec::Vec;

/// Every write in stream 0: the device without streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStreams;

impl StreamPolicy for NoStreams {
    fn streams(&self) -> u16 {
        StreamCount::MIN
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        whole(write, StreamNumber(0), parts);
    }
}

/// The volume in equal ranges, a stream each.
#[derive(Clone, Copy, Debug)]
pub struct EqualPartition {
    streams: u16,
    chunk_sectors: u32,
    chunks: u64,
}

impl EqualPartition {
    /// Ranges of whole chunks.
    ///
    /// # Panics
    /// A number is zero, or `streams` is beyond [`StreamCount::MAX`].
    #[must_use]
    pub fn new(volume_sectors: u64, chunk_sectors: u32, streams: u16) -> Self {
        assert!((StreamCount::MIN..=StreamCount::MAX).contains(&streams), "streams in bounds");
        assert!(volume_sectors > 0 && chunk_sectors > 0, "a volume of chunks");
        let chunks = volume_sectors.div_ceil(u64::from(chunk_sectors));
        EqualPartition { streams, chunk_sectors, chunks }
    }
}

impl StreamPolicy for EqualPartition {
    fn streams(&self) -> u16 {
        self.streams
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        let (streams, chunks) = (u128::from(self.streams), u128::from(self.chunks));
        split(write, self.chunk_sectors, parts, |chunk| {
            assert!(u128::from(chunk) < chunks, "a write within the volume");
            StreamNumber((u128::from(chunk) * streams / chunks) as u16)
        });
    }
}
