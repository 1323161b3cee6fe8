//! The allocator beside brute force and its promises.

use super::{
    Aim, Allocation, Cost, Costs, LEVELS_MAX, Medium, MoverLimits, Problem, Service, Shares,
    allocate, approximate, search, table,
};
use crate::curve::{Access, Counted, Curve, ExactCurve, Point};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::{BlockKey, Nanos, Rng};

const HOME: Medium = medium(0, 5_000_000.0, 5_000_000.0, true);

const fn medium(units: u32, read_ns: f64, write_ns: f64, is_persistent: bool) -> Medium {
    Medium { units, read_ns, write_ns, is_persistent }
}

/// PADSA's Table I.
fn levels(units: [u32; 3]) -> [Medium; 3] {
    [
        medium(units[0], 7.9, 7.9, false),
        medium(units[1], 70.0, 500.0, true),
        medium(units[2], 25_000.0, 200_000.0, true),
    ]
}

fn shares(units: [u32; 3]) -> Shares {
    core::array::from_fn(|level| units.get(level).copied().unwrap_or(0))
}

/// A curve with few, random cliffs.
fn curve(rng: &mut Rng, size_max: u64) -> Curve {
    let (mut hits, mut size) = ([0.0; 2], 0);
    let mut points = Vec::new();
    while size < size_max {
        size += 1 + rng.below(size_max / 3);
        hits = hits.map(|h| h + rng.unit() * (1000.0 - h) * 0.7);
        points.push(Point { size, hits });
    }
    Curve::new(points, [1000.0; 2])
}

fn service<'a>(rng: &mut Rng, curve: &'a Curve) -> Service<'a> {
    let critical = rng.chance(1, 2);
    let guaranteed: [u32; 3] = core::array::from_fn(|_| rng.below(3) as u32);
    let cap = guaranteed.map(|units| units + 2 + rng.below(9) as u32);
    Service {
        curve,
        rates: [rng.unit() * 1000.0, rng.unit() * 1000.0],
        weight: 1.0 + rng.below(3) as f64,
        levels: if critical { 0b111 } else { 0b100 },
        guaranteed: shares(guaranteed),
        cap: shares(cap),
        latency_ns_p999: rng.chance(1, 2).then_some(if critical { 100.0 } else { 30_000.0 }),
    }
}

fn for_each_problem(
    seeds: u64,
    count: usize,
    units: u32,
    mut check: impl FnMut(u64, &Problem<'_>),
) {
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let curves: Vec<Curve> = (0..count).map(|_| curve(&mut rng, 20 * 16)).collect();
        let services: Vec<Service<'_>> = curves.iter().map(|c| service(&mut rng, c)).collect();
        let counted = [Counted::Reads, Counted::Writes, Counted::Both][seed as usize % 3];
        let aim = if rng.chance(1, 2) { Aim::Mean } else { Aim::ObjectivesFirst };
        let levels = levels([units; 3]);
        let (unit_blocks, home, services) = (16, HOME, &services);
        check(seed, &Problem { levels: &levels, home, unit_blocks, services, counted, aim });
    }
}

fn assert_allowed(problem: &Problem<'_>, found: &Allocation, seed: u64) {
    assert!(search::is_valid(problem, &found.shares), "SEED={seed} {:?}", found.shares);
    assert_eq!(found.cost, problem.cost(&found.shares), "SEED={seed}");
}

/// The least cost of all ways to share, tried one by one.
fn brute_force(problem: &Problem<'_>) -> Cost {
    let costs = Costs::new(problem);
    let all_of = |of: &Service<'_>| -> Vec<Shares> {
        let range = |level| problem.floor(of, level)..=problem.ceiling(of, level);
        let all = range(0).flat_map(|d| range(1).map(move |n| [d, n]));
        all.flat_map(|[d, n]| range(2).map(move |s| shares([d, n, s]))).collect()
    };
    let each: Vec<Vec<(Shares, Cost)>> = problem
        .services
        .iter()
        .enumerate()
        .map(|(i, of)| {
            all_of(of).into_iter().map(|shares| (shares, costs.of(i, &shares))).collect()
        })
        .collect();
    let mut best = Cost { unmet: f64::INFINITY, waiting: f64::INFINITY };
    let units: Shares = core::array::from_fn(|l| problem.levels.get(l).map_or(0, |m| m.units));
    try_all(&each, units, Cost::default(), &mut best);
    best
}

fn try_all(each: &[Vec<(Shares, Cost)>], left: Shares, sum: Cost, best: &mut Cost) {
    let Some((first, rest)) = each.split_first() else {
        if sum.is_less(*best) {
            *best = sum;
        }
        return;
    };
    for (shares, cost) in first {
        if (0..LEVELS_MAX).all(|level| shares[level] <= left[level]) {
            let left = core::array::from_fn(|level| left[level] - shares[level]);
            try_all(rest, left, sum.plus(*cost), best);
        }
    }
}

fn is_same(a: Cost, b: Cost) -> bool {
    (a.unmet - b.unmet).abs() < 1e-6 && (a.waiting - b.waiting).abs() <= b.waiting.abs() * 1e-9
}

/// Goal: the exact allocation equals brute force; the search is allowed, close, and never worse
/// than the equal split. Method: 3 services, 3 levels, 8 units each, random curves with cliffs,
/// guarantees, caps, objectives, reads, writes and both.
#[test]
fn exact_allocation_equals_brute_force() {
    let (mut gap_sum, mut optimal, mut count) = (0.0, 0, 0);
    for_each_problem(24, 3, 8, |seed, problem| {
        let (truth, found) = (brute_force(problem), allocate(problem, None));
        assert_allowed(problem, &found, seed);
        assert!(is_same(found.cost, truth), "SEED={seed} {:?}, best {truth:?}", found.cost);
        let searched = approximate(problem, &Costs::new(problem), None);
        assert_allowed(problem, &searched, seed);
        assert!(!searched.cost.is_less(found.cost) || is_same(searched.cost, truth));
        assert!(!problem.cost(&problem.equal_split()).is_less(searched.cost), "SEED={seed}");
        if searched.cost.unmet <= truth.unmet + 1e-9 {
            gap_sum += searched.cost.waiting / truth.waiting - 1.0;
            optimal += i32::from(is_same(searched.cost, truth));
        }
        count += 1;
    });
    assert!(optimal * 10 >= count * 7, "{optimal} of {count} optima, gap {gap_sum}");
    assert!(gap_sum / f64::from(count) < 0.02, "mean gap {}", gap_sum / f64::from(count));
}

/// Goal: large problems keep guarantees, caps and sizes, beat the equal split and the shares of
/// now. Method: 40 services, 64 units a level, random shares of now.
#[test]
fn large_allocations_keep_their_promises() {
    for_each_problem(6, 20, 64, |seed, problem| {
        assert!(table::exact(problem, &Costs::new(problem)).is_none(), "too large for a table");
        let now = problem.equal_split();
        let found = allocate(problem, Some(&now));
        assert_allowed(problem, &found, seed);
        assert!(!problem.cost(&now).is_less(found.cost), "SEED={seed}");
        let again = allocate(problem, Some(&found.shares));
        assert!(!found.cost.is_less(again.cost), "SEED={seed}: the shares of now are kept");
    });
}

/// Goal: the objective is PADSA's. Method: one critical service, hit ratios by hand.
#[test]
fn cost_is_that_of_the_paper() {
    let point = |size, hits| Point { size, hits: [hits, 0.0] };
    let points = vec![point(1, 50.0), point(2, 75.0), point(3, 90.0)];
    let curve = Curve::new(points, [100.0, 0.0]);
    let (levels, all) = (levels([1, 1, 1]), shares([1, 1, 1]));
    let one = |levels, latency| Service {
        curve: &curve,
        rates: [1.0, 0.0],
        weight: 1.0,
        levels,
        guaranteed: [0; LEVELS_MAX],
        cap: all,
        latency_ns_p999: Some(latency),
    };
    let services = [one(0b111, 1e9), one(0b100, 1e3)];
    let (home, counted, aim) = (HOME, Counted::Reads, Aim::ObjectivesFirst);
    let problem =
        Problem { levels: &levels, home, unit_blocks: 1, services: &services, counted, aim };
    let cost = problem.cost(&[all, [0; LEVELS_MAX]]);
    // H_D = 1/2, H_N = 1/2 of what is left, H_S = 3/5 of that; the normal service has no share.
    let critical = 7.9 + 0.5 * (70.0 + 0.5 * (25_000.0 + 0.4 * 5_000_000.0));
    let normal = 25_000.0 + 5_000_000.0;
    assert!((cost.waiting - critical - normal).abs() < 1e-6, "{cost:?}");
    // Only the normal service misses its objective: 999 of 1000 come from home.
    assert_eq!(cost.unmet, 1.0);
}

/// Goal: an objective goes before the mean. Method: a critical service that needs two of two units
/// to meet its objective, beside one that would gain far more by them.
#[test]
fn objectives_go_first() {
    let loops = |blocks: u64| {
        let mut curve = ExactCurve::default();
        (0..100_000).for_each(|step| curve.on_request(BlockKey(step % blocks), Access::Read));
        curve.curve()
    };
    let (small, greedy) = (loops(20), loops(20));
    let levels = [medium(2, 100.0, 100.0, true)];
    let of = |curve, rate: f64, latency_ns_p999| Service {
        curve,
        rates: [rate, 0.0],
        weight: 1.0,
        levels: 1,
        guaranteed: [0; LEVELS_MAX],
        cap: [2; LEVELS_MAX],
        latency_ns_p999,
    };
    let services = [of(&small, 1.0, Some(1000.0)), of(&greedy, 1e6, None)];
    let first_gets = |aim| {
        let (home, counted, unit_blocks) = (HOME, Counted::Reads, 10);
        let services = &services;
        let problem = Problem { levels: &levels, home, unit_blocks, services, counted, aim };
        let found = allocate(&problem, None);
        let searched = approximate(&problem, &Costs::new(&problem), None);
        assert_eq!(found.shares, searched.shares, "a cliff of two units is stepped over");
        found.shares[0][0]
    };
    assert_eq!((first_gets(Aim::Mean), first_gets(Aim::ObjectivesFirst)), (0, 2));
}

/// Goal: shares move only when the gain pays for the move. Method: two services whose loads swap;
/// transfers from free to dear, gains from large to none.
#[test]
fn shares_move_when_it_pays() {
    let point = |size, hits| Point { size, hits: [hits, 0.0] };
    let curve = Curve::new(vec![point(100, 100.0)], [100.0, 0.0]);
    let levels = [medium(1, 0.0, 0.0, true)];
    let of = |rate: f64| Service {
        curve: &curve,
        rates: [rate, 0.0],
        weight: 1.0,
        levels: 1,
        guaranteed: [0; LEVELS_MAX],
        cap: [1; LEVELS_MAX],
        latency_ns_p999: None,
    };
    let decide = |rates: [f64; 2], limits: MoverLimits| {
        let services = rates.map(of);
        let (home, counted, aim) = (HOME, Counted::Reads, Aim::Mean);
        let services = &services;
        let problem = Problem { levels: &levels, home, unit_blocks: 100, services, counted, aim };
        let now = [shares([1, 0, 0]), shares([0; 3])];
        let found = allocate(&problem, Some(&now));
        limits.decide(&problem, &now, &found.shares)
    };
    let limits = MoverLimits { block_move: Nanos::from_millis(5), ..MoverLimits::DEFAULT };
    // One read a second of 5 ms saved over a minute: 300 ms; the move costs 500 ms.
    let dear = decide([1.0, 2.0], limits);
    assert_eq!((dear.is_move, dear.blocks_moved), (false, 100));
    assert!(decide([1.0, 3.0], limits).is_move, "two reads a second pay for it");
    assert!(!decide([1000.0, 1001.0], MoverLimits::DEFAULT).is_move, "too small a gain to notice");
    assert!(!decide([1.0, 1.0], MoverLimits::MIN).is_move, "no gain, no move");
}
