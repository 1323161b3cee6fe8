//! `AutoStream`: streams by how often and how recently a chunk was written, as the writes come.
//!
//! How: SFR keeps a count per chunk that halves with every decay period; MQ keeps chunks in queues
//! that they climb by their counts and fall from when they are not written. Both answer by what
//! they knew before the write, and by its first chunk alone.
//! Invariant: MQ has each known chunk in exactly one queue, and the hottest chunk is a known one.
//! Cost: a look-up and an update of a table of chunks per write; MQ looks at every queue's head.
//! Not for: chunks that differ in lifetime but not in rate.

mod mq;
mod sfr;

pub use mq::{Mq, MqParameters};
pub use sfr::{Exponent, Sfr, SfrParameters};

use hashbrown::HashMap;

/// A table by chunk, whose hash is fixed.
type ByChunk<T> = HashMap<u64, T, Fixed>;

/// The fixed hasher of tables by chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Fixed;

/// See [`Fixed`].
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl core::hash::BuildHasher for Fixed {
    type Hasher = Mixer;
    fn build_hasher(&self) -> Mixer {
        Mixer(0)
    }
}

impl core::hash::Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = crate::hash::mix(self.0 ^ value);
    }
}

/// `AutoStream`'s chunks.
struct ChunkSectors;

impl ChunkSectors {
    const MIN: u32 = 256;
    const MAX: u32 = 8192;
}

fn assert_in_bounds(chunk_sectors: u32, streams: u16) {
    let chunk = ChunkSectors::MIN..=ChunkSectors::MAX;
    assert!(chunk.contains(&chunk_sectors), "chunk_sectors in bounds");
    let bounds = super::StreamCount::MIN..=super::StreamCount::MAX;
    assert!(bounds.contains(&streams), "streams in bounds");
}
