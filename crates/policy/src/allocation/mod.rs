//! Who gets how much of each level: the shares that minimise what all services wait.
//!
//! How: a level's hit ratio follows from one curve per service at the sum of its shares down to
//! that level, since levels are exclusive. A read looks into each level that its service may use,
//! from the fastest, so service i waits `L_1 + M(c_1) L_2 + M(c_1 + c_2) L_3 + …` on average, with
//! its miss ratio M and its shares c. A write goes to the first persistent level, and what is not
//! rewritten there goes on to the next. [`allocate`] is exact where that is cheap (see `table`);
//! elsewhere it gives the steepest gain first, by the convex hull of what is left to gain, and
//! then exchanges shares while that pays; with few services from several starts.
//! Invariants: guaranteed ≤ share ≤ cap; a level is never given out twice; the result is never
//! worse than the equal split or the shares of now. What gains nobody stays free. Cost: see
//! [`allocate`]. Sources: PADSA, section IV.C (objective; reads only, one latency per level);
//! objectives per class, writes and exchange are this project's.

mod cost;
mod mover;
mod search;
mod table;

#[cfg(test)]
mod tests;

use crate::curve::{Counted, Curve};
use alloc::vec::Vec;
pub use cost::Cost;
use cost::Costs;
pub use mover::{Decision, MoverLimits};

/// Levels that shares are kept for.
pub const LEVELS_MAX: usize = 8;
/// Units that a level may be cut into.
pub const UNITS_MAX: u32 = 4096;
/// Services that are allocated to at once.
pub const SERVICES_MAX: usize = 4096;

/// Services up to which a search begins from several starts in any case.
const STARTS_SERVICES_MAX: usize = 8;

/// Units of each level; levels that do not exist have none.
pub type Shares = [u32; LEVELS_MAX];

/// A level, or the home below all levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Medium {
    /// Units that can be given out; of no meaning for the home.
    pub units: u32,
    /// What a read costs, in nanoseconds.
    pub read_ns: f64,
    /// What a write costs, in nanoseconds.
    pub write_ns: f64,
    /// It keeps written blocks; memory holds clean copies only.
    pub is_persistent: bool,
}

/// A service (a volume, or several that share their room) as the allocator sees it.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// Its misses by size, in blocks.
    pub curve: &'a Curve,
    /// Reads and writes per second.
    pub rates: [f64; 2],
    /// How much its waiting counts; 1 in PADSA.
    pub weight: f64,
    /// One bit per level it may use, level 0 lowest.
    pub levels: u8,
    /// Units that it has in any case.
    pub guaranteed: Shares,
    /// Units that it never exceeds.
    pub cap: Shares,
    /// The time within which 999 of 1000 reads shall be served, if there is one.
    pub latency_ns_p999: Option<f64>,
}

/// What is sought first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The least waiting in sum, as in PADSA.
    #[default]
    Mean,
    /// As many latency objectives met as can be, by weight; then the least waiting.
    ObjectivesFirst,
}

/// All that an allocation depends on.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The levels, fastest first.
    pub levels: &'a [Medium],
    /// What is below them.
    pub home: Medium,
    /// Blocks of one unit.
    pub unit_blocks: u64,
    /// Who shares.
    pub services: &'a [Service<'a>],
    /// Which requests' waiting counts.
    pub counted: Counted,
    /// What is sought.
    pub aim: Aim,
}

/// Shares of every service, in their order, and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// Units by service and level.
    pub shares: Vec<Shares>,
    /// The predicted cost.
    pub cost: Cost,
}

impl Problem<'_> {
    fn check(&self) {
        assert!(self.levels.len() <= LEVELS_MAX, "{} levels", self.levels.len());
        assert!(self.services.len() <= SERVICES_MAX, "{} services", self.services.len());
        assert!(self.unit_blocks > 0, "a unit holds blocks");
        for (level, medium) in self.levels.iter().enumerate() {
            assert!(medium.units <= UNITS_MAX, "level {level} has {} units", medium.units);
            let guaranteed: u32 = self.services.iter().map(|s| self.floor(s, level)).sum();
            assert!(guaranteed <= medium.units, "level {level} is guaranteed twice");
        }
    }

    fn may_use(service: &Service<'_>, level: usize) -> bool {
        service.levels >> level & 1 == 1
    }

    /// The least units of `level` that `service` has.
    fn floor(&self, service: &Service<'_>, level: usize) -> u32 {
        let floor = service.guaranteed[level];
        assert!(floor <= service.cap[level] || floor == 0, "a guarantee exceeds its cap");
        if Self::may_use(service, level) { floor } else { 0 }
    }

    /// The most units of `level` that `service` may have.
    fn ceiling(&self, service: &Service<'_>, level: usize) -> u32 {
        let ceiling = service.cap[level].min(self.levels[level].units);
        if Self::may_use(service, level) { ceiling } else { 0 }
    }

    /// What `shares` would cost.
    #[must_use]
    pub fn cost(&self, shares: &[Shares]) -> Cost {
        assert_eq!(shares.len(), self.services.len(), "one share per service");
        Costs::new(self).total(shares)
    }

    /// Each level in equal parts to all who may use it, as far as guarantees and caps allow.
    #[must_use]
    pub fn equal_split(&self) -> Vec<Shares> {
        let mut shares = alloc::vec![[0; LEVELS_MAX]; self.services.len()];
        for level in 0..self.levels.len() {
            let mut left = self.levels[level].units;
            for (service, share) in self.services.iter().zip(&mut shares) {
                share[level] = self.floor(service, level);
                left -= share[level];
            }
            // Whoever has least gets the next unit: ends when all is given or all are at their cap.
            while left > 0 {
                let open = |i: &usize| shares[*i][level] < self.ceiling(&self.services[*i], level);
                let poorest = (0..shares.len()).filter(open).min_by_key(|i| shares[*i][level]);
                let Some(poorest) = poorest else { break };
                shares[poorest][level] += 1;
                left -= 1;
            }
        }
        shares
    }
}

/// The best shares found for `problem`. `now` holds the shares of now, if there are any.
///
/// Exact where the table of all ways to share is small; else the best of several searches. A
/// search costs about services × levels² × log2(units) evaluations per step, each a few
/// additions, and [`search::STEPS_MAX`] steps at most.
#[must_use]
pub fn allocate(problem: &Problem<'_>, now: Option<&[Shares]>) -> Allocation {
    problem.check();
    let costs = Costs::new(problem);
    if let Some(exact) = table::exact(problem, &costs) {
        return exact;
    }
    approximate(problem, &costs, now)
}

fn approximate(problem: &Problem<'_>, costs: &Costs<'_>, now: Option<&[Shares]>) -> Allocation {
    let starts = [Some(problem.equal_split()), now.map(<[Shares]>::to_vec)];
    let starts = starts.into_iter().flatten().filter(|shares| search::is_valid(problem, shares));
    let mut best = search::improved(problem, costs, search::steepest(problem, costs));
    // Another start may lead elsewhere; with many services that is rare, and each search is long.
    for start in starts {
        let is_worth_it =
            problem.services.len() <= STARTS_SERVICES_MAX || costs.total(&start).is_less(best.cost);
        if is_worth_it {
            let found = search::improved(problem, costs, start);
            if found.cost.is_less(best.cost) {
                best = found;
            }
        }
    }
    best
}
