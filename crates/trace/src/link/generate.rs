//! Draws a link's trace from its parameters.
//!
//! How: second by second: state, cell, slot and outage each have the second at which they end; the
//! fading is an AR(1), the noise is drawn anew. Seconds are averaged over the interval.
//! Invariant: the same parameters and seed give the same trace on the same platform; no rate is
//! above [`PEAK`] times its state's mean. Cost: some fifty nanoseconds per second.

use super::{LinkParameters, LinkSample, LinkTrace, Outages};
use layby_types::{Nanos, Rng};

/// Times a state's mean that a rate may reach.
const PEAK: f64 = 2.5;
/// By how much the round trip grows at most while little passes.
const ROUND_TRIP_STRETCH: f64 = 1.5;

/// A link's trace by parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// What the link is like.
    pub parameters: LinkParameters,
    /// Seconds in all, rounded up to whole intervals.
    pub seconds: u32,
    /// Seconds of a sample.
    pub interval_seconds: u32,
    /// Same seed, same link.
    pub seed: u64,
}

impl LinkSpec {
    /// The longest: a month.
    pub const SECONDS_MAX: u32 = 31 * 86_400;

    /// The trace.
    ///
    /// # Panics
    /// There is no state, nothing lasts, or it is longer than [`LinkSpec::SECONDS_MAX`].
    #[must_use]
    pub fn draw(&self) -> LinkTrace {
        assert!(self.seconds > 0 && self.interval_seconds > 0, "a trace lasts");
        assert!(self.seconds <= Self::SECONDS_MAX, "a trace ends");
        let mut process = Process::new(self.parameters, self.seed);
        let count = self.seconds.div_ceil(self.interval_seconds);
        let samples = (0..count).map(|sample| {
            let rates = (0..self.interval_seconds).map(|_| process.second());
            let rate = rates.sum::<f64>() / f64::from(self.interval_seconds);
            let at = u64::from(sample) * u64::from(self.interval_seconds);
            LinkSample {
                at: Nanos::from_secs(at),
                bytes_per_second: rate as u64,
                round_trip: Some(process.round_trip(rate)),
            }
        });
        let samples = samples.collect();
        let length = u64::from(count) * u64::from(self.interval_seconds);
        LinkTrace { samples, length: Nanos::from_secs(length) }
    }
}

/// Where a link is.
struct Process {
    parameters: LinkParameters,
    rng: Rng,
    /// Seconds passed.
    now: f64,
    state: usize,
    state_ends: f64,
    /// Logarithms.
    fading: f64,
    cell: f64,
    slot: f64,
    cell_ends: f64,
    dip_ends: f64,
    outage_begins: f64,
    outage_ends: f64,
}

impl Process {
    fn new(parameters: LinkParameters, seed: u64) -> Process {
        assert!(!parameters.states.is_empty(), "a link is in some state");
        let mut process = Process {
            parameters,
            rng: Rng::new(seed),
            now: 0.0,
            state: 0,
            state_ends: 0.0,
            fading: 0.0,
            cell: 0.0,
            slot: 0.0,
            cell_ends: 0.0,
            dip_ends: 0.0,
            outage_begins: f64::INFINITY,
            outage_ends: 0.0,
        };
        process.state_ends = exponential(&mut process.rng, parameters.states[0].seconds);
        process.fading = parameters.fading.deviation * normal(&mut process.rng);
        process.enter_cell();
        if let Some(outages) = parameters.outages {
            process.plan_outage(outages);
        }
        process
    }

    /// Bytes per second of the next second.
    fn second(&mut self) -> f64 {
        let parameters = self.parameters;
        self.change_state();
        self.change_cell();
        let kept = (-1.0 / parameters.fading.seconds).exp();
        let fresh = parameters.fading.deviation * (1.0 - kept * kept).sqrt();
        self.fading = kept * self.fading + fresh * normal(&mut self.rng);
        let noise = parameters.noise * normal(&mut self.rng);
        let mean = parameters.states[self.state].bytes_per_second;
        let logarithm = self.fading + noise + self.cell + self.slot();
        let rate = mean * logarithm.exp().min(PEAK) * self.left() * self.rhythm();
        self.now += 1.0;
        rate
    }

    fn change_state(&mut self) {
        if self.now < self.state_ends || self.parameters.states.len() < 2 {
            return;
        }
        let states = self.parameters.states;
        let others = || states.iter().enumerate().filter(|(place, _)| *place != self.state);
        let mut drawn = self.rng.below(others().map(|(_, one)| u64::from(one.weight)).sum());
        let mut chosen = self.state;
        for (place, one) in others() {
            chosen = place;
            match drawn.checked_sub(one.weight.into()) {
                Some(rest) => drawn = rest,
                None => break,
            }
        }
        self.state = chosen;
        self.state_ends = self.now + exponential(&mut self.rng, states[chosen].seconds);
    }

    fn change_cell(&mut self) {
        if let Some(handovers) = self.parameters.handovers
            && self.now >= self.cell_ends
        {
            self.enter_cell();
            let dip = 1 + self.rng.below(handovers.dip_seconds.into());
            self.dip_ends = self.now + dip as f64;
        }
    }

    fn enter_cell(&mut self) {
        let Some(handovers) = self.parameters.handovers else { return };
        self.cell = handovers.level_deviation * normal(&mut self.rng);
        self.cell_ends = self.now + exponential(&mut self.rng, handovers.every_seconds);
    }

    fn plan_outage(&mut self, outages: Outages) {
        self.outage_begins = self.now + exponential(&mut self.rng, outages.every_seconds);
        let seconds = exponential(&mut self.rng, outages.seconds).max(1.0);
        self.outage_ends = self.outage_begins + seconds;
    }

    /// The logarithm of the slot's level.
    fn slot(&mut self) -> f64 {
        let Some(slots) = self.parameters.slots else { return 0.0 };
        if self.now % f64::from(slots.seconds) == 0.0 {
            self.slot = slots.level_deviation * normal(&mut self.rng);
            return self.slot + slots.dip_left.ln();
        }
        self.slot
    }

    /// What handovers and outages leave.
    fn left(&mut self) -> f64 {
        if let Some(outages) = self.parameters.outages
            && self.now >= self.outage_begins
        {
            if self.now < self.outage_ends {
                return 0.0;
            }
            self.plan_outage(outages);
        }
        match self.parameters.handovers {
            Some(handovers) if self.now < self.dip_ends => handovers.dip_left,
            _ => 1.0,
        }
    }

    fn rhythm(&self) -> f64 {
        let Some(rhythm) = self.parameters.rhythm else { return 1.0 };
        let turn = (self.now - rhythm.busiest) / rhythm.seconds * core::f64::consts::TAU;
        1.0 - rhythm.depth * turn.cos().midpoint(1.0)
    }

    /// Queues grow while little passes.
    fn round_trip(&self, rate: f64) -> Nanos {
        let mean = self.parameters.states[self.state].bytes_per_second;
        let short = (1.0 - rate / mean).clamp(0.0, 1.0);
        let millis = self.parameters.round_trip_ms * (1.0 + ROUND_TRIP_STRETCH * short);
        Nanos::from_micros((millis * 1000.0) as u64)
    }
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.unit()).ln() * mean
}

/// Box and Muller's.
fn normal(rng: &mut Rng) -> f64 {
    let (radius, turn) = ((-2.0 * (1.0 - rng.unit()).ln()).sqrt(), rng.unit());
    radius * (turn * core::f64::consts::TAU).cos()
}
