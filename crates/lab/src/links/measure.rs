//! One link under every forecast: errors, choices, admissions.
//!
//! Invariant: a forecast is asked first and told after. Cost: some microseconds per interval.

use super::policy::{
    Ahead, Bandwidth, Chooser, ChooserParameters, Forecast, ForecastKind, HORIZONS,
};
use layby_sim::device::link::{Link, LinkPoint};
use layby_sim::policy::uplink::{Ask, Room, Verdict, admit};
use layby_trace::LinkTrace;
use layby_types::{Nanos, Rng};
use std::collections::VecDeque;

pub(super) const KINDS: usize = ForecastKind::ALL.len();
const CHOICES: usize = ForecastKind::CHOICES.len();
/// Intervals after which requests begin.
const WARM: usize = 120;
/// A request every so many intervals on average.
const EVERY: u64 = 10;
/// Times to be uploaded in, in intervals.
pub(super) const WITHIN: [u64; 3] = [5, 15, 60];
/// Intervals of a link on which a request can be put at all.
pub(super) const INTERVALS_MIN: usize = WARM + WITHIN[WITHIN.len() - 1] as usize + 1;
/// Bytes of a request, in percent of what the link carries on average in its time.
pub(super) const SIZE_PERCENT: (u64, u64) = (40, 160);

/// What became of the requests under one forecast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Admissions {
    /// Accepted, and in time.
    pub(super) met: f64,
    /// Accepted, and late.
    pub(super) missed: f64,
    /// Refused, rightly.
    pub(super) spared: f64,
    /// Refused, though it would have been in time.
    pub(super) lost: f64,
}

impl Admissions {
    pub(super) fn all(&self) -> f64 {
        self.met + self.missed + self.spared + self.lost
    }
    /// The part of all answers that was wrong.
    pub(super) fn wrong(&self) -> f64 {
        (self.missed + self.lost) / self.all().max(1.0)
    }
}

/// A link and how it was forecast.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Bytes per second.
    pub(super) mean: f64,
    /// Deviation over mean.
    pub(super) variation: f64,
    /// Correlation of an interval with the next.
    pub(super) correlation: f64,
    /// The part of intervals in which nothing passed.
    pub(super) dead: f64,
    /// Mean absolute errors in bytes per second, by kind and horizon.
    pub(super) errors: [[f64; HORIZONS.len()]; KINDS],
    /// The part of intervals in which each was the chooser's for the next one.
    pub(super) chosen: [f64; CHOICES],
    /// By kind.
    pub(super) admissions: [Admissions; KINDS],
}

impl Measured {
    pub(super) fn of(trace: &LinkTrace, seed: u64) -> Measured {
        let samples: Vec<Bandwidth> =
            trace.samples.iter().map(|one| Bandwidth::new(one.bytes_per_second as f64)).collect();
        let requests = Request::draw(trace, seed);
        let mut measured = Measured::shape(&samples);
        for (place, kind) in ForecastKind::ALL.into_iter().enumerate() {
            let (errors, admissions) = follow(&mut *kind.build(), &samples, &requests);
            measured.errors[place] = errors;
            measured.admissions[place] = admissions;
        }
        measured.chosen = choices(&samples);
        measured
    }

    /// An error at a horizon, relative to naive's; no number where naive errs nowhere.
    pub(super) fn relative(&self, kind: ForecastKind, horizon: usize) -> f64 {
        let place = |kind| ForecastKind::ALL.iter().position(|one| *one == kind);
        let error = |kind| place(kind).map_or(f64::NAN, |place| self.errors[place][horizon]);
        let naive = error(ForecastKind::Naive);
        if naive > 0.0 { error(kind) / naive } else { f64::NAN }
    }

    pub(super) fn admissions(&self, kind: ForecastKind) -> Admissions {
        let place = ForecastKind::ALL.iter().position(|one| *one == kind);
        place.map_or_else(Admissions::default, |place| self.admissions[place])
    }

    fn shape(samples: &[Bandwidth]) -> Measured {
        let count = samples.len().max(1) as f64;
        let mean = samples.iter().map(|one| one.get()).sum::<f64>() / count;
        let product = |apart: usize| {
            let pairs = samples.iter().zip(&samples[apart.min(samples.len())..]);
            pairs.map(|(a, b)| (a.get() - mean) * (b.get() - mean)).sum::<f64>()
        };
        let dead = samples.iter().filter(|one| one.get() == 0.0).count() as f64;
        Measured {
            mean,
            variation: (product(0) / count).sqrt() / mean.max(f64::MIN_POSITIVE),
            correlation: product(1) / product(0).max(f64::MIN_POSITIVE),
            dead: dead / count,
            ..Measured::default()
        }
    }
}

/// Somebody asks at the beginning of an interval.
#[derive(Clone, Copy, Debug)]
struct Request {
    interval: usize,
    bytes: u64,
    /// In intervals.
    within: u64,
    span: Nanos,
    /// Whether the link would have it in time.
    is_feasible: bool,
}

impl Request {
    /// Requests by chance. Their sizes follow the link's mean, so that about half can be met; only
    /// whether they are met is looked up in its future.
    fn draw(trace: &LinkTrace, seed: u64) -> Vec<Request> {
        let points = trace.samples.iter().map(|sample| LinkPoint {
            at: sample.at,
            bytes_per_second: sample.bytes_per_second,
            round_trip: Nanos::ZERO,
        });
        let link = Link::new(points.collect(), trace.length).expect("a trace is in order");
        let mut rng = Rng::new(seed ^ 0x11_4b5);
        let interval = trace.length.0 / trace.samples.len() as u64;
        let longest = WITHIN[WITHIN.len() - 1] as usize;
        // It looks at each sample: once, or a long trace takes time by its square.
        let mean = trace.mean();
        let mut requests = Vec::new();
        let mut at = WARM;
        while at + longest < trace.samples.len() {
            let within = WITHIN[rng.below(WITHIN.len() as u64) as usize];
            let span = Nanos(within * interval);
            let percent = SIZE_PERCENT.0 + rng.below(SIZE_PERCENT.1 - SIZE_PERCENT.0);
            let bytes = (mean * span.as_secs_f64() * percent as f64 / 100.0) as u64;
            let now = trace.samples[at].at;
            let is_feasible = link.bytes_between(now, now.saturating_add(span)) >= bytes;
            requests.push(Request { interval: at, bytes, within, span, is_feasible });
            at += 1 + rng.below(2 * EVERY - 1) as usize;
        }
        requests
    }

    /// What becomes of it under a forecast.
    fn put(&self, forecast: &dyn Forecast, admissions: &mut Admissions) {
        let uploaded_within = Some(self.span);
        let ask = Ask { bytes: self.bytes, accepted_within: None, uploaded_within };
        let room = Room { free_bytes: self.bytes, ahead_bytes: 0 };
        let verdict = admit(&ask, &room, forecast.mean(self.within));
        let is_accepted = !matches!(verdict, Verdict::Refuse(_));
        *match (is_accepted, self.is_feasible) {
            (true, true) => &mut admissions.met,
            (true, false) => &mut admissions.missed,
            (false, false) => &mut admissions.spared,
            (false, true) => &mut admissions.lost,
        } += 1.0;
    }
}

/// Mean absolute errors by horizon, and what became of the requests.
fn follow(
    forecast: &mut dyn Forecast,
    samples: &[Bandwidth],
    requests: &[Request],
) -> ([f64; HORIZONS.len()], Admissions) {
    let mut said: [VecDeque<Option<Bandwidth>>; HORIZONS.len()] = Default::default();
    let mut sums = [(0.0, 0u32); HORIZONS.len()];
    let mut admissions = Admissions::default();
    let mut waiting = requests.iter().peekable();
    for (interval, came) in samples.iter().enumerate() {
        while let Some(request) = waiting.next_if(|request| request.interval == interval) {
            request.put(forecast, &mut admissions);
        }
        for (at, ahead) in HORIZONS.into_iter().enumerate() {
            said[at].push_back(forecast.forecast(ahead));
            if said[at].len() < usize::from(ahead.get()) {
                continue;
            }
            if let Some(Some(earlier)) = said[at].pop_front() {
                sums[at].0 += (earlier.get() - came.get()).abs();
                sums[at].1 += 1;
            }
        }
        forecast.observe(Some(*came));
    }
    (sums.map(|(sum, count)| sum / f64::from(count.max(1))), admissions)
}

/// How often each was chosen.
fn choices(samples: &[Bandwidth]) -> [f64; CHOICES] {
    let mut chooser = Chooser::new(ChooserParameters::DEFAULT);
    let mut counts = [0.0; CHOICES];
    for came in samples {
        let chosen = chooser.chosen(Ahead::NEXT);
        let place = ForecastKind::CHOICES.iter().position(|kind| *kind == chosen);
        counts[place.expect("it chooses from these")] += 1.0 / samples.len() as f64;
        chooser.observe(Some(*came));
    }
    counts
}
