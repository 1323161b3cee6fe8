//! The exact allocation, by dynamic programming over what is left of each level.
//!
//! How: from the last service to the first, the best cost is tabulated for every amount of units
//! that may be left of each level. Cost: ways to serve one service × amounts left, for each
//! service; [`exact`] declines where that exceeds [`STEPS_MAX`].

use super::cost::{Cost, Costs};
use super::{Allocation, LEVELS_MAX, Problem, Shares};
use alloc::vec;
use alloc::vec::Vec;

/// Steps beyond which the table is too slow; below a second on any machine.
const STEPS_MAX: u64 = 20_000_000;
const COST_NONE: Cost = Cost { unmet: f64::INFINITY, waiting: f64::INFINITY };

/// One way to serve a service.
struct Choice {
    shares: Shares,
    /// What it takes from the index of what is left.
    offset: usize,
    cost: Cost,
}

/// The best allocation, or `None` where finding it would take too long.
pub(crate) fn exact(problem: &Problem<'_>, costs: &Costs<'_>) -> Option<Allocation> {
    let states = amounts(problem.levels.iter().map(|level| level.units))?;
    let ways = |i: usize| {
        let service = &problem.services[i];
        let span = |level| problem.ceiling(service, level) - problem.floor(service, level);
        amounts((0..problem.levels.len()).map(span))
    };
    let mut steps = 0u64;
    for service in 0..problem.services.len() {
        steps = steps.checked_add(ways(service)?.checked_mul(states)?)?;
    }
    (steps <= STEPS_MAX).then(|| solve(problem, costs, states as usize))
}

/// How many combinations of `0..=units` there are.
fn amounts(units: impl Iterator<Item = u32>) -> Option<u64> {
    units.map(|units| u64::from(units) + 1).try_fold(1u64, u64::checked_mul)
}

fn solve(problem: &Problem<'_>, costs: &Costs<'_>, states: usize) -> Allocation {
    let all: Vec<Vec<Choice>> =
        (0..problem.services.len()).map(|service| choices(problem, costs, service)).collect();
    let mut best = vec![Cost::default(); states];
    let mut chosen = vec![vec![0u32; states]; all.len()];
    for (service, choices) in all.iter().enumerate().rev() {
        let mut next = vec![COST_NONE; states];
        for state in 0..states {
            let left = decode(problem, state);
            for (number, choice) in choices.iter().enumerate() {
                if !(0..LEVELS_MAX).all(|level| choice.shares[level] <= left[level]) {
                    continue;
                }
                let cost = choice.cost.plus(best[state - choice.offset]);
                if cost.is_less(next[state]) {
                    next[state] = cost;
                    chosen[service][state] = number as u32;
                }
            }
        }
        best = next;
    }
    let mut state = states - 1;
    let mut shares = Vec::with_capacity(all.len());
    for (choices, chosen) in all.iter().zip(&chosen) {
        let choice = &choices[chosen[state] as usize];
        shares.push(choice.shares);
        state -= choice.offset;
    }
    let cost = costs.total(&shares);
    assert!(cost.unmet.is_finite(), "the guarantees fit, so there is a way");
    Allocation { shares, cost }
}

fn decode(problem: &Problem<'_>, mut state: usize) -> Shares {
    let mut left = [0; LEVELS_MAX];
    for (level, medium) in problem.levels.iter().enumerate() {
        let base = medium.units as usize + 1;
        left[level] = (state % base) as u32;
        state /= base;
    }
    left
}

fn choices(problem: &Problem<'_>, costs: &Costs<'_>, number: usize) -> Vec<Choice> {
    let service = &problem.services[number];
    let mut all = vec![Choice { shares: [0; LEVELS_MAX], offset: 0, cost: Cost::default() }];
    let mut base = 1;
    for (level, medium) in problem.levels.iter().enumerate() {
        let range = problem.floor(service, level)..=problem.ceiling(service, level);
        let with = |choice: &Choice, units: u32| {
            let mut shares = choice.shares;
            shares[level] = units;
            Choice { shares, offset: choice.offset + base * units as usize, cost: Cost::default() }
        };
        all = all.iter().flat_map(|c| range.clone().map(move |units| with(c, units))).collect();
        base *= medium.units as usize + 1;
    }
    for choice in &mut all {
        choice.cost = costs.of(number, &choice.shares);
    }
    all
}
