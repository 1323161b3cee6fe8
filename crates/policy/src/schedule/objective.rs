//! Whether a class has its latency: 999 of 1000 requests within its objective.
//!
//! How: latencies are counted in windows; a window ends after [`WINDOW_MIN`] when it holds
//! [`WINDOW_REQUESTS`], or after [`WINDOW_MAX`]. It is missed when more than one in a thousand, and
//! more than one, came later than the objective.
//! Invariant: each request is counted in one window. Cost: an increment per request.
//! Not for: figures over hours; see the histograms of the volumes.
//! Source: design of classes (p99.9 per class); io.latency's windows.

use layby_types::Nanos;

/// The shortest window.
pub const WINDOW_MIN: Nanos = Nanos::from_millis(100);
/// The longest window.
pub const WINDOW_MAX: Nanos = Nanos::from_secs(2);
/// Requests that make a window whole.
pub const WINDOW_REQUESTS: u64 = 1000;
/// Buckets per doubling of latency, as a power of two.
const BUCKETS_BITS: u32 = 3;
const BUCKETS: usize = 64 << BUCKETS_BITS;

/// How a window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was asked.
    Idle,
    /// The objective was kept.
    Met,
    /// It was not.
    Missed,
}

/// What the windows so far showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windowed {
    /// The last window's p99.9, rounded up to an eighth of an octave.
    pub latency_p999: Nanos,
    /// Windows in which something was asked.
    pub windows: u64,
    /// Of these, missed.
    pub windows_missed: u64,
    /// Requests that came later than the objective.
    pub requests_late: u64,
}

/// See the file's header.
pub struct Objective {
    limit: Option<Nanos>,
    began: Nanos,
    buckets: [u32; BUCKETS],
    requests: u64,
    late: u64,
    shown: Windowed,
}

impl Objective {
    /// A class whose windows begin at `now`; without an objective every window is met.
    #[must_use]
    pub fn new(limit: Option<Nanos>, now: Nanos) -> Self {
        let shown = Windowed::default();
        Objective { limit, began: now, buckets: [0; BUCKETS], requests: 0, late: 0, shown }
    }

    /// Another objective from now on.
    pub fn set_limit(&mut self, limit: Option<Nanos>) {
        self.limit = limit;
    }

    /// The objective.
    #[must_use]
    pub fn limit(&self) -> Option<Nanos> {
        self.limit
    }

    /// What the windows so far showed.
    #[must_use]
    pub fn shown(&self) -> Windowed {
        self.shown
    }

    /// A request took so long.
    pub fn on_request(&mut self, latency: Nanos) {
        self.requests += 1;
        self.late += u64::from(self.limit.is_some_and(|limit| latency > limit));
        self.buckets[bucket_of(latency)] += 1;
    }

    /// Ends the window if it is time; what came of it.
    pub fn poll(&mut self, now: Nanos) -> Option<Verdict> {
        let span = now.since(self.began);
        if span < WINDOW_MIN || (self.requests < WINDOW_REQUESTS && span < WINDOW_MAX) {
            return None;
        }
        self.began = now;
        if self.requests == 0 {
            return Some(Verdict::Idle);
        }
        let missed = self.late > (self.requests / 1000).max(1);
        self.shown.latency_p999 = self.latency_p999();
        self.shown.windows += 1;
        self.shown.windows_missed += u64::from(missed);
        self.shown.requests_late += self.late;
        (self.requests, self.late) = (0, 0);
        self.buckets.fill(0);
        Some(if missed { Verdict::Missed } else { Verdict::Met })
    }

    fn latency_p999(&self) -> Nanos {
        let mut above = self.requests / 1000;
        let counted = self.buckets.iter().enumerate().rev();
        for (bucket, count) in counted {
            let count = u64::from(*count);
            if count > above {
                return upper_of(bucket);
            }
            above -= count;
        }
        Nanos::ZERO
    }
}

fn bucket_of(latency: Nanos) -> usize {
    let value = latency.0.max(1 << BUCKETS_BITS);
    let octave = value.ilog2();
    let within = (value >> (octave - BUCKETS_BITS)) & ((1 << BUCKETS_BITS) - 1);
    ((octave as usize) << BUCKETS_BITS | within as usize).min(BUCKETS - 1)
}

fn upper_of(bucket: usize) -> Nanos {
    let octave = (bucket >> BUCKETS_BITS) as u32;
    let within = (bucket & ((1 << BUCKETS_BITS) - 1)) as u128;
    let base = 1u128 << octave;
    let upper = base + ((base * (within + 1)) >> BUCKETS_BITS) - 1;
    Nanos(u64::try_from(upper).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: windows end in time, one late request of few is no miss, two are, and the percentile
    /// is that of the sorted latencies within an eighth. Method: latencies by hand.
    #[test]
    fn windows_are_judged() {
        let limit = Nanos::from_micros(500);
        let mut objective = Objective::new(Some(limit), Nanos::ZERO);
        assert_eq!(objective.poll(WINDOW_MIN), None);
        assert_eq!(objective.poll(WINDOW_MAX), Some(Verdict::Idle));
        let mut now = WINDOW_MAX;
        for (late, expected) in [(1, Verdict::Met), (2, Verdict::Missed)] {
            for index in 0..WINDOW_REQUESTS {
                let is_late = index < late;
                objective.on_request(Nanos::from_micros(if is_late { 900 } else { 100 }));
            }
            assert_eq!(objective.poll(now), None, "a window lasts");
            now = now.saturating_add(WINDOW_MIN);
            assert_eq!(objective.poll(now), Some(expected));
        }
        let shown = objective.shown();
        assert_eq!((shown.windows, shown.windows_missed, shown.requests_late), (2, 1, 3));
        let micros = shown.latency_p999.0 / 1000;
        assert!((900..1020).contains(&micros), "two of a thousand were late: {micros} us");
    }

    /// Goal: every latency lies in its bucket. Method: powers of two and their neighbours.
    #[test]
    fn buckets_hold_their_latencies() {
        for shift in 3..63 {
            for latency in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let bucket = bucket_of(Nanos(latency));
                assert!(upper_of(bucket).0 >= latency, "{latency}");
                assert!(latency < 16 || upper_of(bucket - 1).0 < latency, "{latency}");
            }
        }
    }
}
