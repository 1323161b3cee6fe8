//! From what was measured to what a model of a device needs.
//!
//! How: latencies are medians of 4 KiB accesses, one at a time. Bandwidth is the slope of a line
//! through two points, 4 KiB and 1 MiB, one at a time. Channels follow by Little's law: so many
//! accesses are in service as the throughput beyond which depth brings no more, times the latency.
//! Invariant: plain arithmetic on what was measured; no clock and no I/O. Cost: none.
//! Source: J. Little, "A proof for the queuing formula L = λW", 1961.

use layby_types::Nanos;

/// Least growth of throughput, in percent, for which a deeper queue counts as worth it; the sweep
/// ends when two in a row are not.
pub const GROWTH_PERCENT_MIN: u64 = 15;
/// Deepest queue that is tried, and so the most channels that are found.
pub const DEPTH_MAX: u16 = 256;

/// One measure: accesses of one length and direction, so many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Accesses in flight at once.
    pub depth: u16,
    /// Bytes of each.
    pub bytes: u64,
    /// How many ended.
    pub accesses: u64,
    /// From the first start to the last end.
    pub elapsed: Nanos,
    /// From start to end, the median.
    pub latency: Nanos,
}

impl Sample {
    /// Accesses per second.
    #[must_use]
    pub fn accesses_per_second(&self) -> f64 {
        self.accesses as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Bytes per second.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.accesses_per_second() * self.bytes as f64
    }
}

/// What was measured of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Random reads of 4 KiB: one at a time first, then at growing depths.
    pub reads: Vec<Sample>,
    /// Random writes of 4 KiB, one at a time; `None` where nothing may be written.
    pub write: Option<Sample>,
    /// Reads of 1 MiB in a row, one at a time.
    pub large_read: Sample,
    /// Writes of 1 MiB in a row, one at a time.
    pub large_write: Option<Sample>,
}

/// What a model of a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// A read of 4 KiB.
    pub read: Nanos,
    /// A write of 4 KiB; `None` where nothing might be written.
    pub write: Option<Nanos>,
    /// Bytes per second beyond the first 4 KiB of an access, of the slower direction; 0 where
    /// large accesses took no longer than small ones.
    pub bytes_per_second: u64,
    /// Accesses in service at once.
    pub channels: u16,
}

impl Samples {
    /// The model's figures. Panics when no read was measured.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let read = &self.reads[0];
        assert_eq!(read.depth, 1, "latency is measured one at a time");
        let writes = self.write.as_ref().zip(self.large_write.as_ref());
        let pairs = [Some((read, &self.large_read)), writes];
        let slopes = pairs.into_iter().flatten().map(|(small, large)| slope(small, large));
        Figures {
            read: read.latency,
            write: self.write.map(|write| write.latency),
            bytes_per_second: slopes.min().unwrap_or(0),
            channels: channels(&self.reads),
        }
    }
}

/// Bytes per second between a small and a large access; 0 where the large one took no longer.
fn slope(small: &Sample, large: &Sample) -> u64 {
    let bytes = u128::from(large.bytes.saturating_sub(small.bytes));
    let span = u128::from(large.latency.since(small.latency).0);
    let slope = (bytes * 1_000_000_000).checked_div(span).unwrap_or(0);
    u64::try_from(slope).unwrap_or(u64::MAX)
}

/// Accesses in service at once, by the best throughput among `reads`.
fn channels(reads: &[Sample]) -> u16 {
    let best = reads.iter().map(Sample::accesses_per_second).fold(0.0, f64::max);
    let in_service = best * reads[0].latency.as_secs_f64();
    (in_service.round() as u16).clamp(1, DEPTH_MAX)
}

/// Whether the two deepest of `reads`, shallowest first, both brought too little over what came
/// before them. One alone may have met a busy moment.
pub(super) fn is_saturated(reads: &[Sample]) -> bool {
    let [before @ .., one, other] = reads else { return false };
    if before.is_empty() {
        return false;
    }
    let best = before.iter().map(Sample::accesses_per_second).fold(0.0, f64::max);
    let least = best * (100 + GROWTH_PERCENT_MIN) as f64 / 100.0;
    one.accesses_per_second().max(other.accesses_per_second()) < least
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURE: Nanos = Nanos::from_secs(1);

    /// What a device of `channels` channels shows at a depth: more wait once all are busy.
    fn at_depth(latency_us: u64, channels: u16, depth: u16) -> Sample {
        let busy = u64::from(depth.min(channels));
        let waiting = u64::from(depth.div_ceil(channels));
        let (bytes, accesses) = (4096, busy * 1_000_000 / latency_us);
        let latency = Nanos::from_micros(latency_us * waiting);
        Sample { depth, bytes, accesses, elapsed: MEASURE, latency }
    }

    fn sweep(latency_us: u64, channels: u16) -> Vec<Sample> {
        let mut reads = Vec::new();
        let mut depth = 1;
        while depth <= DEPTH_MAX && !is_saturated(&reads) {
            reads.push(at_depth(latency_us, channels, depth));
            depth *= 2;
        }
        reads
    }

    fn large(latency_us: u64) -> Sample {
        let latency = Nanos::from_micros(latency_us);
        Sample { depth: 1, bytes: 1 << 20, accesses: 1, elapsed: latency, latency }
    }

    /// Goal: channels come out whether or not a depth equals them, and the sweep ends soon after.
    /// Method: devices by formula.
    #[test]
    fn channels_are_found() {
        for count in [1, 2, 3, 7, 14, 32, 100, 256] {
            let reads = sweep(80, count);
            assert_eq!(channels(&reads), count);
            let deepest = reads.last().expect("there is one").depth;
            assert!(deepest <= (count.next_power_of_two() * 4).min(DEPTH_MAX), "{count}");
        }
    }

    /// Goal: growth of 15 % goes on, less of it twice ends the sweep. Method: few samples.
    #[test]
    fn little_growth_ends_the_sweep() {
        let ends = |accesses: &[u64]| {
            let sample = |accesses: &u64| Sample { accesses: *accesses, ..at_depth(100, 1, 1) };
            is_saturated(&accesses.iter().map(sample).collect::<Vec<_>>())
        };
        assert!(!ends(&[1000]) && !ends(&[1000, 500]));
        assert!(!ends(&[1000, 500, 1151]) && !ends(&[1000, 1151, 500]));
        assert!(ends(&[1000, 1149, 500]) && ends(&[1000, 1100, 1149]));
    }

    /// Goal: bandwidth is what bytes beyond a block take, of the slower direction; what a large
    /// access does not show is 0. Method: two latencies each way, then equal ones.
    #[test]
    fn bandwidth_is_a_slope() {
        let write = Some(at_depth(20, 1, 1));
        let large_write = Some(large(20 + 2040));
        let reads = sweep(80, 4);
        let samples = Samples { reads, write, large_read: large(80 + 1020), large_write };
        let figures = samples.figures();
        assert_eq!((figures.read, figures.write), (us(80), Some(us(20))));
        assert_eq!((figures.bytes_per_second, figures.channels), (512_000_000, 4));
        let reads_only = Samples { write: None, large_write: None, ..samples.clone() };
        let figures = reads_only.figures();
        assert_eq!((figures.write, figures.bytes_per_second), (None, 1_024_000_000));
        let flat = Samples { large_read: large(80), ..samples };
        assert_eq!(flat.figures().bytes_per_second, 0);
    }

    fn us(count: u64) -> Nanos {
        Nanos::from_micros(count)
    }
}
