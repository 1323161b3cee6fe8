//! What a store took, interval by interval, from uploads that began and ended.
//!
//! How: an interval that has passed is closed at the next moment at which something is known of it:
//! an upload ended, or none is under way. Its bandwidth is what ended in it over the time in which
//! something was under way, so that a cap, which leaves pauses, does not count as a slow link.
//! Invariant: an interval in which nothing was tried is no measurement; one in which all that was
//! tried failed is a measurement of nothing.
//! Cost: a few sums per upload, and a forecast per interval.
//! Not for: progress within an upload: what takes many intervals counts evenly for all of them.

use layby_policy::forecast::{
    Ahead, Bandwidth, Chooser, ChooserParameters, Forecast, ForecastError, Outlook,
};
use layby_types::Nanos;

/// How long an interval is.
const INTERVAL: Nanos = Nanos::from_secs(1);
/// Intervals that an outlook looks ahead.
const AHEAD: u64 = 15;
/// Intervals that are told of one by one after a long calm.
const CALM_MAX: u64 = 600;

pub(super) struct Meter {
    chooser: Chooser,
    /// The interval that has not been told of begins here.
    from: Nanos,
    under_way: u32,
    under_way_bytes: u64,
    /// Whether nothing of the upload that ended last arrived.
    has_failed: bool,
    busy_since: Nanos,
    busy: Nanos,
    bytes: u64,
    has_ended: bool,
}

impl Meter {
    pub(super) fn new() -> Self {
        Meter {
            chooser: Chooser::new(ChooserParameters::DEFAULT),
            from: Nanos::ZERO,
            under_way: 0,
            under_way_bytes: 0,
            has_failed: false,
            busy_since: Nanos::ZERO,
            busy: Nanos::ZERO,
            bytes: 0,
            has_ended: false,
        }
    }

    /// An upload of so many bytes begins.
    pub(super) fn begin(&mut self, now: Nanos, bytes: u64) {
        self.close(now);
        if self.under_way == 0 {
            self.busy_since = now;
        }
        self.under_way += 1;
        self.under_way_bytes += bytes;
    }

    /// One of so many bytes ended, and so many arrived.
    pub(super) fn end(&mut self, now: Nanos, begun: u64, bytes: u64) {
        self.under_way -= 1;
        self.under_way_bytes -= begun;
        self.has_failed = bytes == 0;
        self.busy = Nanos(self.busy.0 + now.0.saturating_sub(self.busy_since.0));
        self.busy_since = now;
        self.bytes += bytes;
        self.has_ended = true;
        self.close(now);
    }

    /// Tells the forecast of all intervals that are over and of which something is known.
    pub(super) fn close(&mut self, now: Nanos) {
        let intervals = now.0.saturating_sub(self.from.0) / INTERVAL.0;
        if intervals == 0 || (self.under_way > 0 && !self.has_ended) {
            return;
        }
        let busy = Nanos(self.busy.0.max(1));
        let sample = self.has_ended.then(|| Bandwidth::of(self.bytes, busy));
        for _ in 0..intervals.min(CALM_MAX) {
            self.chooser.observe(sample);
        }
        self.from = Nanos(self.from.0 + intervals * INTERVAL.0);
        (self.busy, self.bytes, self.has_ended) = (Nanos::ZERO, 0, false);
    }

    /// How long something is under way since which nothing has ended.
    pub(super) fn silence(&self, now: Nanos) -> Nanos {
        match self.under_way {
            0 => Nanos::ZERO,
            _ => now.since(self.busy_since),
        }
    }

    /// Bytes of the uploads under way.
    pub(super) fn under_way_bytes(&self) -> u64 {
        self.under_way_bytes
    }

    /// Whether no upload is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Whether nothing of the upload that ended last arrived.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn outlook(&self) -> Option<Outlook> {
        self.chooser.outlook(AHEAD)
    }

    /// Which forecast is used, how far off it is of late, and how far off the naive one is, in
    /// bytes per second; `None` as long as nothing was scored: no error would be a perfect one.
    pub(super) fn errors(&self) -> (&'static str, Option<f64>, Option<f64>) {
        let ahead = Ahead::new(AHEAD);
        let mean = |error: ForecastError| (error.scored > 0).then_some(error.mean_absolute);
        let naive = self.chooser.errors(ahead).next().and_then(|(_, error)| mean(error));
        let chosen = self.chooser.chosen(ahead).name();
        (chosen, mean(self.chooser.error(ahead)), naive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(milliseconds: u64) -> Nanos {
        Nanos::from_millis(milliseconds)
    }

    /// Goal: a link is measured by the time in which it was used, uploads side by side included.
    /// Method: two uploads that overlap, then pauses as a cap makes them, over a link of 4 MiB/s.
    #[test]
    fn pauses_are_no_slow_link() {
        let mut meter = Meter::new();
        meter.begin(at(0), MIB);
        meter.begin(at(0), MIB);
        meter.end(at(500), MIB, MIB);
        meter.end(at(1000), MIB, 3 * MIB);
        for second in 1..30 {
            meter.begin(at(second * 1000 + 500), MIB);
            meter.end(at(second * 1000 + 750), MIB, MIB);
        }
        let outlook = meter.outlook().expect("it was measured");
        assert!((outlook.near.get() / (4 * MIB) as f64 - 1.0).abs() < 0.01, "{outlook:?}");
    }

    /// Goal: failures count as nothing, calm counts as no measurement. Method: each for a minute.
    #[test]
    fn failures_count_and_calm_does_not() {
        let mut meter = Meter::new();
        assert!(meter.outlook().is_none());
        meter.begin(at(0), MIB);
        meter.end(at(1000), MIB, MIB);
        meter.close(at(61_000));
        let calm = meter.outlook().expect("it was measured").near;
        assert_eq!(calm.whole(), MIB);
        for second in 61..121 {
            meter.begin(at(second * 1000), MIB);
            meter.end(at(second * 1000 + 999), MIB, 0);
        }
        meter.close(at(121_000));
        assert!(meter.outlook().expect("it was measured").near.whole() < MIB / 10);
    }
    /// Goal: a forecast that was held against nothing yet has no error, and afterwards one that
    /// says how far off it was. Method: uploads of 1 MiB/s for as long as a forecast looks ahead,
    /// and then of 3 MiB/s.
    #[test]
    fn what_was_not_scored_has_no_error() {
        let mut meter = Meter::new();
        let mut run = |seconds: std::ops::Range<u64>, bytes: u64| {
            let mut seen = Vec::new();
            for second in seconds {
                meter.begin(at(second * 1000), bytes);
                meter.end(at(second * 1000 + 1000), bytes, bytes);
                let (_, chosen, naive) = meter.errors();
                seen.push((chosen, naive));
            }
            seen
        };
        let first = run(0..AHEAD, MIB);
        assert!(first.iter().all(|seen| *seen == (None, None)), "{first:?}");
        let steady = run(AHEAD..40, MIB);
        assert_eq!(steady.last(), Some(&(Some(0.0), Some(0.0))), "each was right");
        let (chosen, naive) = run(40..50, 3 * MIB)[9];
        assert!(chosen > Some(0.0) && naive > Some(0.0), "{chosen:?}, {naive:?}");
    }
}
