//! What shares cost, from tables of misses by units.
//!
//! How: each service's misses are looked up once per number of units, so that a search only adds.
//! Invariant: more units never cost more. Cost: 16 bytes per service and unit it may get.

use super::{Aim, LEVELS_MAX, Problem, Service, Shares};
use crate::curve::Counted;
use alloc::vec::Vec;

/// Requests that may exceed a p99.9.
const LATE_RATIO: f64 = 0.001;
/// Sums of weights that differ by less are the same.
const WEIGHT_EPSILON: f64 = 1e-9;

/// What an allocation costs; objectives count before waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Weight of the services whose objective is not met; zero where objectives are not sought.
    pub unmet: f64,
    /// Nanoseconds that requests wait per second, weighted, over all services.
    pub waiting: f64,
}

impl Cost {
    pub(crate) fn plus(self, other: Cost) -> Cost {
        Cost { unmet: self.unmet + other.unmet, waiting: self.waiting + other.waiting }
    }

    pub(crate) fn minus(self, other: Cost) -> Cost {
        Cost { unmet: self.unmet - other.unmet, waiting: self.waiting - other.waiting }
    }

    pub(crate) fn over(self, units: u32) -> Cost {
        let units = f64::from(units);
        Cost { unmet: self.unmet / units, waiting: self.waiting / units }
    }

    /// Whether this cost is less than `other`.
    #[must_use]
    pub fn is_less(self, other: Cost) -> bool {
        let apart = self.unmet - other.unmet;
        if apart.abs() > WEIGHT_EPSILON { apart < 0.0 } else { self.waiting < other.waiting }
    }
}

/// One step of a request's way: it waits there unless what came before served it.
#[derive(Clone, Copy, Default)]
struct Step {
    level: usize,
    latency: f64,
}

/// The way of reads or of writes through the levels, to the home.
#[derive(Clone, Copy, Default)]
struct Way {
    steps: [Step; LEVELS_MAX],
    len: usize,
    home: f64,
}

struct Tables {
    /// Miss ratios by units, for reads and for writes.
    misses: [Vec<f64>; 2],
    ways: [Way; 2],
    /// Weight × rate.
    factors: [f64; 2],
    weight: f64,
    objective: Option<f64>,
}

/// See the file's header.
pub(crate) struct Costs<'a> {
    problem: &'a Problem<'a>,
    tables: Vec<Tables>,
}

fn way(problem: &Problem<'_>, service: &Service<'_>, writes: bool) -> Way {
    let mut way = Way::default();
    for (level, medium) in problem.levels.iter().enumerate() {
        if Problem::may_use(service, level) && (medium.is_persistent || !writes) {
            let latency = if writes { medium.write_ns } else { medium.read_ns };
            way.steps[way.len] = Step { level, latency };
            way.len += 1;
        }
    }
    way.home = if writes { problem.home.write_ns } else { problem.home.read_ns };
    way
}

impl Tables {
    fn new(problem: &Problem<'_>, service: &Service<'_>) -> Self {
        let levels = 0..problem.levels.len();
        let units: u32 = levels.map(|level| problem.ceiling(service, level)).sum();
        let misses = [Counted::Reads, Counted::Writes].map(|counted| {
            let at = |units| u64::from(units) * problem.unit_blocks;
            (0..=units).map(|units| service.curve.miss_ratio(counted, at(units))).collect()
        });
        let ways = [false, true].map(|writes| way(problem, service, writes));
        let counts = match problem.counted {
            Counted::Reads => [1.0, 0.0],
            Counted::Writes => [0.0, 1.0],
            Counted::Both => [1.0, 1.0],
        };
        let factors = [0, 1].map(|side| counts[side] * service.weight * service.rates[side]);
        let seeks = problem.aim == Aim::ObjectivesFirst && service.rates[0] > 0.0;
        let objective = service.latency_ns_p999.filter(|_| seeks);
        Tables { misses, ways, factors, weight: service.weight, objective }
    }

    /// The mean time on a way.
    fn mean(&self, side: usize, shares: &Shares) -> f64 {
        let (way, misses) = (&self.ways[side], &self.misses[side]);
        let (mut sum, mut reach, mut units) = (0.0, 1.0, 0);
        for step in &way.steps[..way.len] {
            sum += reach * step.latency;
            units += shares[step.level];
            reach = misses[units as usize];
        }
        sum + reach * way.home
    }

    /// The time within which 999 of 1000 reads are served.
    fn latency_p999(&self, shares: &Shares) -> f64 {
        let way = &self.ways[0];
        let mut units = 0;
        for step in &way.steps[..way.len] {
            units += shares[step.level];
            if self.misses[0][units as usize] <= LATE_RATIO {
                return step.latency;
            }
        }
        way.home
    }
}

impl<'a> Costs<'a> {
    pub(crate) fn new(problem: &'a Problem<'a>) -> Self {
        let tables = problem.services.iter().map(|service| Tables::new(problem, service));
        Costs { problem, tables: tables.collect() }
    }

    /// What service number `service` costs with `shares`.
    pub(crate) fn of(&self, service: usize, shares: &Shares) -> Cost {
        let tables = &self.tables[service];
        let side = |side: usize| match tables.factors[side] {
            0.0 => 0.0,
            factor => factor * tables.mean(side, shares),
        };
        let late = tables.objective.is_some_and(|within| tables.latency_p999(shares) > within);
        let unmet = if late { tables.weight } else { 0.0 };
        Cost { unmet, waiting: side(0) + side(1) }
    }

    pub(crate) fn total(&self, shares: &[Shares]) -> Cost {
        assert_eq!(shares.len(), self.problem.services.len(), "one share per service");
        let all = shares.iter().enumerate().map(|(service, share)| self.of(service, share));
        all.fold(Cost::default(), Cost::plus)
    }
}
