//! Traces of links: what an uplink carried, second by second.
//!
//! How: [`LinkSpec`] draws one of several shapes that public measurements show; [`read_link`] and
//! [`write_link`] take and give `time_s,bytes_per_s[,rtt_ms]`, a line per interval.
//! Invariant: samples begin at zero, their times rise, and each holds until the next one's; a seed
//! is a promise. Cost: some tens of nanoseconds per second of trace.
//! Not for: packets; a link's rate is averaged over intervals.

mod csv;
mod generate;
mod shapes;
#[cfg(test)]
mod tests;

pub use csv::{LINK_SAMPLES_MAX, read_link, write_link};
pub use generate::LinkSpec;
pub use shapes::{Fading, Handovers, LinkParameters, LinkShape, LinkState, Outages, Rhythm, Slots};

use layby_types::Nanos;

/// What a link carried from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSample {
    /// From then on.
    pub at: Nanos,
    /// On average until the next sample.
    pub bytes_per_second: u64,
    /// There and back, where it is known.
    pub round_trip: Option<Nanos>,
}

/// A link over some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkTrace {
    /// In order, the first at zero; never empty where it was read or drawn.
    pub samples: Vec<LinkSample>,
    /// Where the last sample ends.
    pub length: Nanos,
}

impl LinkTrace {
    /// Bytes per second over all of it.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let ends = self.samples.iter().skip(1).map(|sample| sample.at).chain([self.length]);
        let carried = self.samples.iter().zip(ends).map(|(sample, end)| {
            sample.bytes_per_second as f64 * end.since(sample.at).as_secs_f64()
        });
        carried.sum::<f64>() / self.length.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
