//! Allocation where no table is small enough: the steepest gain first, then exchanges.
//!
//! How: [`steepest`] looks at the gain per unit of every size of gift, so it steps over cliffs as
//! the convex hull does, and gifts may reach over several levels. [`improved`] moves units between
//! two services, or a service and what is free, in one level or against units of another level,
//! in sizes that grow by an eighth. Invariant: every step lowers the cost, so each search ends.

use super::cost::{Cost, Costs};
use super::{Allocation, LEVELS_MAX, Problem, Shares};
use alloc::vec;
use alloc::vec::Vec;

/// Steps of one search.
pub(crate) const STEPS_MAX: u32 = 20_000;
/// Gains below this part of the cost are noise: no curve is measured so well.
const GAIN_MIN: f64 = 1e-7;

fn free(problem: &Problem<'_>, shares: &[Shares]) -> Shares {
    let mut free = [0; LEVELS_MAX];
    for (level, medium) in problem.levels.iter().enumerate() {
        let given: u32 = shares.iter().map(|share| share[level]).sum();
        free[level] = medium.units.checked_sub(given).expect("no level is given out twice");
    }
    free
}

/// Whether `shares` keep guarantees, caps and sizes.
pub(crate) fn is_valid(problem: &Problem<'_>, shares: &[Shares]) -> bool {
    let in_range = |service: usize, level: usize| {
        let of = &problem.services[service];
        let range = problem.floor(of, level)..=problem.ceiling(of, level);
        range.contains(&shares[service][level])
    };
    let fits = |level: usize| {
        let given: u64 = shares.iter().map(|share| u64::from(share[level])).sum();
        given <= u64::from(problem.levels[level].units)
    };
    shares.len() == problem.services.len()
        && (0..problem.levels.len())
            .all(|level| fits(level) && (0..shares.len()).all(|s| in_range(s, level)))
}

/// A gift to a service, and what it gains per unit.
#[derive(Clone, Copy)]
struct Gift {
    shares: Shares,
    gain: Cost,
}

/// Gives what gains most per unit until nothing gains.
pub(crate) fn steepest(problem: &Problem<'_>, costs: &Costs<'_>) -> Vec<Shares> {
    let floors = |service| {
        core::array::from_fn(|level| match problem.levels.get(level) {
            Some(_) => problem.floor(service, level),
            None => 0,
        })
    };
    let mut shares: Vec<Shares> = problem.services.iter().map(floors).collect();
    let mut left = free(problem, &shares);
    let best_of = |shares: &[Shares], left: &Shares, i| best_gift(problem, costs, shares, left, i);
    let mut gifts: Vec<Option<Gift>> =
        (0..shares.len()).map(|service| best_of(&shares, &left, service)).collect();
    for _ in 0..STEPS_MAX {
        let mut best: Option<(usize, Gift)> = None;
        for (service, gift) in gifts.iter().enumerate() {
            if let Some(gift) = gift
                && best.is_none_or(|(_, other)| other.gain.is_less(gift.gain))
            {
                best = Some((service, *gift));
            }
        }
        let Some((taker, gift)) = best else { break };
        for level in 0..LEVELS_MAX {
            left[level] -= gift.shares[level] - shares[taker][level];
        }
        shares[taker] = gift.shares;
        for service in 0..shares.len() {
            let fits = gifts[service].is_some_and(|gift| {
                (0..LEVELS_MAX).all(|l| gift.shares[l] - shares[service][l] <= left[l])
            });
            if service == taker || (gifts[service].is_some() && !fits) {
                gifts[service] = best_of(&shares, &left, service);
            }
        }
    }
    shares
}

fn best_gift(
    problem: &Problem<'_>,
    costs: &Costs<'_>,
    shares: &[Shares],
    left: &Shares,
    service: usize,
) -> Option<Gift> {
    let (of, now) = (&problem.services[service], shares[service]);
    let before = costs.of(service, &now);
    let levels = problem.levels.len();
    let room = |level: usize| left[level].min(problem.ceiling(of, level) - now[level]);
    let mut best: Option<Gift> = None;
    let mut consider = |shares: Shares, units: u32| {
        let gain = before.minus(costs.of(service, &shares)).over(units);
        let floor =
            best.map_or(Cost { unmet: 0.0, waiting: before.waiting * GAIN_MIN }, |b| b.gain);
        if floor.is_less(gain) {
            best = Some(Gift { shares, gain });
        }
    };
    for level in 0..levels {
        let mut with = now;
        for units in 1..=room(level) {
            with[level] += 1;
            consider(with, units);
        }
    }
    // A gift that reaches over levels, the slowest first: for working sets larger than a level.
    let (mut with, mut units) = (now, 0);
    for level in (0..levels).rev() {
        for _ in 0..room(level) {
            with[level] += 1;
            units += 1;
            consider(with, units);
        }
    }
    best
}

/// Exchanges while that pays.
pub(crate) fn improved(
    problem: &Problem<'_>,
    costs: &Costs<'_>,
    mut shares: Vec<Shares>,
) -> Allocation {
    assert!(is_valid(problem, &shares), "a search starts from shares that are allowed");
    let mut each: Vec<Cost> = (0..shares.len()).map(|s| costs.of(s, &shares[s])).collect();
    for _ in 0..STEPS_MAX {
        let Some(exchange) = best_exchange(problem, costs, &shares, &each) else { break };
        for (service, with) in exchange.into_iter().flatten() {
            shares[service] = with;
            each[service] = costs.of(service, &with);
        }
    }
    let cost = costs.total(&shares);
    Allocation { shares, cost }
}

/// What one side of an exchange would have, and the change of its cost.
#[derive(Clone, Copy)]
struct Side {
    /// `None` is what is free.
    service: Option<usize>,
    shares: Shares,
    change: Cost,
}

type Exchange = [Option<(usize, Shares)>; 2];

fn best_exchange(
    problem: &Problem<'_>,
    costs: &Costs<'_>,
    shares: &[Shares],
    each: &[Cost],
) -> Option<Exchange> {
    let total = each.iter().fold(Cost::default(), |sum, cost| sum.plus(*cost));
    let mut best = Cost { unmet: 0.0, waiting: -total.waiting * GAIN_MIN };
    let mut found = None;
    let world = World { problem, costs, shares, each, free: free(problem, shares) };
    for give in 0..problem.levels.len() {
        for take in (0..problem.levels.len()).map(Some).chain([None]) {
            if take == Some(give) {
                continue;
            }
            let mut units = 1;
            while units <= problem.levels[give].units {
                let givers = world.best_two(Some(give), take, units);
                let takers = world.best_two(take, Some(give), units);
                for (giver, taker) in givers.iter().flat_map(|g| takers.iter().map(move |t| (g, t)))
                {
                    let change = giver.change.plus(taker.change);
                    if giver.service != taker.service && change.is_less(best) {
                        best = change;
                        found = Some([giver, taker].map(|s| s.service.map(|n| (n, s.shares))));
                    }
                }
                units += 1 + units / 8;
            }
        }
    }
    found
}

struct World<'a> {
    problem: &'a Problem<'a>,
    costs: &'a Costs<'a>,
    shares: &'a [Shares],
    each: &'a [Cost],
    free: Shares,
}

impl World<'_> {
    /// The two whose cost grows least by `units` less of one level and more of another, and what
    /// is free.
    fn best_two(&self, less: Option<usize>, more: Option<usize>, units: u32) -> Vec<Side> {
        let mut sides: Vec<Side> = vec![];
        for service in 0..self.shares.len() {
            let of = &self.problem.services[service];
            let mut with = self.shares[service];
            let floor = less.map_or(0, |level| self.problem.floor(of, level) + units);
            let ceiling = more.map_or(u32::MAX, |level| self.problem.ceiling(of, level));
            if less.is_some_and(|level| with[level] < floor)
                || more.is_some_and(|level| with[level] + units > ceiling)
            {
                continue;
            }
            less.into_iter().for_each(|level| with[level] -= units);
            more.into_iter().for_each(|level| with[level] += units);
            let change = self.costs.of(service, &with).minus(self.each[service]);
            keep_two(&mut sides, Side { service: Some(service), shares: with, change });
        }
        if less.is_none_or(|level| self.free[level] >= units) {
            let change = Cost::default();
            sides.push(Side { service: None, shares: self.free, change });
        }
        sides
    }
}

fn keep_two(sides: &mut Vec<Side>, side: Side) {
    let place = sides.iter().position(|other| side.change.is_less(other.change));
    sides.insert(place.unwrap_or(sides.len()), side);
    sides.truncate(2);
}
