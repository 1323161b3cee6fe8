//! SFR: sequentiality, frequency, recency.
//!
//! How: a count per chunk, halved for every decay period between two writes, and for every period
//! of ageing; the stream is its logarithm. A write that continues the one before goes where that
//! went. Invariant: a count is never negative. Cost: two powers of two per write.

use super::super::{Part, Sector, StreamCount, StreamNumber, StreamPolicy, Write, whole};
use super::{ByChunk, ChunkSectors, assert_in_bounds};
use alloc::vec::Vec;
use layby_types::Nanos;

/// How an idle time becomes a number of halvings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Exponent {
    /// With its fraction.
    #[default]
    Real,
    /// Whole periods only: what is written more often never decays.
    Whole,
}

/// SFR's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SfrParameters {
    /// Sectors of a chunk.
    pub chunk_sectors: u32,
    /// Streams of the device.
    pub streams: u16,
    /// In which a count halves.
    pub decay: Nanos,
    /// After which all counts halve; `None` never.
    pub aging: Option<Nanos>,
    /// How decay is reckoned.
    pub exponent: Exponent,
}

impl SfrParameters {
    /// 128 KiB.
    pub const CHUNK_SECTORS_MIN: u32 = ChunkSectors::MIN;
    /// 4 MiB.
    pub const CHUNK_SECTORS_MAX: u32 = ChunkSectors::MAX;
    /// The paper's initial value: 2 MiB.
    pub const CHUNK_SECTORS_DEFAULT: u32 = 4096;
    /// Shorter would forget between two writes.
    pub const DECAY_MIN: Nanos = Nanos::from_millis(1);
    /// A day.
    pub const DECAY_MAX: Nanos = Nanos::from_secs(86_400);
    /// The paper's initial value.
    pub const DECAY_DEFAULT: Nanos = Nanos::from_secs(1200);
    /// The paper's initial value.
    pub const AGING_DEFAULT: Nanos = Nanos::from_secs(36_000);
}

impl Default for SfrParameters {
    fn default() -> Self {
        SfrParameters {
            chunk_sectors: Self::CHUNK_SECTORS_DEFAULT,
            streams: StreamCount::DEFAULT,
            decay: Self::DECAY_DEFAULT,
            aging: Some(Self::AGING_DEFAULT),
            exponent: Exponent::Real,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Rank {
    count: f64,
    last: Nanos,
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Sfr {
    parameters: SfrParameters,
    ranks: ByChunk<Rank>,
    /// Where the write before ended, and which stream it went to.
    before: Option<(Sector, StreamNumber)>,
}

impl Sfr {
    /// Knows nothing yet.
    ///
    /// # Panics
    /// A parameter is out of its bounds.
    #[must_use]
    pub fn new(parameters: SfrParameters) -> Self {
        assert_in_bounds(parameters.chunk_sectors, parameters.streams);
        let decay = SfrParameters::DECAY_MIN..=SfrParameters::DECAY_MAX;
        assert!(decay.contains(&parameters.decay), "decay in bounds");
        assert!(parameters.aging != Some(Nanos::ZERO), "ageing takes time");
        Sfr { parameters, ranks: ByChunk::default(), before: None }
    }
    fn stream_of(&self, chunk: u64) -> StreamNumber {
        let count = self.ranks.get(&chunk).map_or(0.0, |rank| rank.count);
        let octave = (count as u64).checked_ilog2().unwrap_or(0);
        StreamNumber((octave as u16).min(self.parameters.streams - 1))
    }
    fn learn(&mut self, chunk: u64, at: Nanos) {
        let parameters = self.parameters;
        let rank = self.ranks.entry(chunk).or_insert(Rank { count: 0.0, last: at });
        let idle = at.since(rank.last).0 as f64 / parameters.decay.0 as f64;
        let halvings = match parameters.exponent {
            Exponent::Real => idle,
            Exponent::Whole => libm::floor(idle),
        };
        let aged = parameters.aging.map_or(0, |aging| at.0 / aging.0 - rank.last.0 / aging.0);
        rank.count = (rank.count + 1.0) * libm::exp2(-halvings - aged as f64);
        rank.last = at;
    }
    /// The count of the chunk that `sector` is in.
    #[cfg(test)]
    pub(crate) fn count(&self, sector: Sector) -> f64 {
        self.ranks[&(sector.0 / u64::from(self.parameters.chunk_sectors))].count
    }
}

impl StreamPolicy for Sfr {
    fn streams(&self) -> u16 {
        self.parameters.streams
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        let chunk = write.first.0 / u64::from(self.parameters.chunk_sectors);
        let stream = match self.before {
            Some((end, stream)) if end == write.first => stream,
            _ => self.stream_of(chunk),
        };
        self.before = Some((write.end(), stream));
        self.learn(chunk, write.at);
        whole(write, stream, parts);
    }
}
