//! Which stream each chunk of a volume goes to.
//!
//! How: four bits per chunk are the form that is kept; look-ups go to a sorted list of runs of
//! equal streams, or to the four bits themselves where the runs would take more memory.
//! Invariant: neighbouring runs have different streams; both forms answer alike.
//! Cost: half a byte per chunk; a binary search over the runs, or one access.

use super::{StreamCount, StreamNumber};
use alloc::vec;
use alloc::vec::Vec;

/// The base dictionary and its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dictionary {
    chunks: u64,
    packed: Vec<u8>,
    /// First chunk and stream of each run; empty where the table is smaller.
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    stream: StreamNumber,
}

impl Dictionary {
    /// Every chunk in stream 0.
    ///
    /// # Panics
    /// There is no chunk.
    #[must_use]
    pub fn empty(chunks: u64) -> Self {
        Dictionary::filled(chunks, StreamNumber(0), core::iter::empty())
    }
    /// Chunks by their streams; those that `named` does not name go to `otherwise`.
    pub(super) fn filled(
        chunks: u64,
        otherwise: StreamNumber,
        named: impl Iterator<Item = (u64, StreamNumber)>,
    ) -> Self {
        assert!(chunks > 0, "a volume has a chunk");
        let both = (nibble(otherwise) << 4) | nibble(otherwise);
        let mut packed = vec![both; chunks.div_ceil(2) as usize];
        for (chunk, stream) in named {
            let (byte, shift) = (&mut packed[(chunk / 2) as usize], 4 * (chunk % 2));
            *byte = (*byte & !(0xf << shift)) | (nibble(stream) << shift);
        }
        let mut dictionary = Dictionary { chunks, packed, runs: Vec::new() };
        dictionary.reduce();
        dictionary
    }
    /// The runs, unless they would take more than the table.
    fn reduce(&mut self) {
        let runs_max = self.packed.len() / size_of::<Run>();
        let mut runs = Vec::new();
        let mut last = None;
        for chunk in 0..self.chunks {
            let stream = self.at(chunk);
            if last != Some(stream) {
                if runs.len() >= runs_max.max(1) {
                    return;
                }
                runs.push(Run { first: chunk, stream });
                last = Some(stream);
            }
        }
        self.runs = runs;
    }
    fn at(&self, chunk: u64) -> StreamNumber {
        let byte = self.packed[(chunk / 2) as usize];
        StreamNumber(u16::from((byte >> (4 * (chunk % 2))) & 0xf))
    }
    /// The stream of `chunk`.
    ///
    /// # Panics
    /// The volume has no such chunk.
    #[must_use]
    pub fn lookup(&self, chunk: u64) -> StreamNumber {
        assert!(chunk < self.chunks, "a chunk of the volume");
        if self.runs.is_empty() {
            return self.at(chunk);
        }
        let after = self.runs.partition_point(|run| run.first <= chunk);
        self.runs[after - 1].stream
    }
    /// Chunks of the volume.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }
    /// Runs of equal streams; `None` where look-ups go to the table.
    #[must_use]
    pub fn runs(&self) -> Option<usize> {
        (!self.runs.is_empty()).then_some(self.runs.len())
    }
    /// Bytes of the form that is kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.packed.len() as u64
    }
    /// The same with other numbers: stream `s` becomes `numbers[s]`.
    pub(super) fn renumbered(&self, numbers: &[StreamNumber]) -> Self {
        let renamed = (0..self.chunks).map(|chunk| (chunk, numbers[self.at(chunk).0 as usize]));
        Dictionary::filled(self.chunks, StreamNumber(0), renamed)
    }
}

fn nibble(stream: StreamNumber) -> u8 {
    assert!(stream.0 < StreamCount::MAX, "four bits name a stream");
    stream.0 as u8
}
