//! The order of who waits, under random loads.

use super::*;
use layby_types::{CallFlags, Rng};
use std::collections::BTreeMap as Map;
use std::vec;

const CLASS: ClassId = ClassId(1);

fn requests(tokens: u64, burst: u64) -> Limits {
    Limits { requests: Some(Rate::per_second(tokens, burst)), bytes: None }
}

fn bytes(tokens: u64, burst: u64) -> Limits {
    Limits { requests: None, bytes: Some(Rate::per_second(tokens, burst)) }
}

/// What passed: when, for which volume, how much.
type Passed = Vec<(Nanos, VolumeId, Cost)>;

/// Askers that want one more call as soon as the last has passed, for `length`; whoever is late is
/// late by at most `late` nanoseconds.
fn saturate(
    throttle: &mut Throttle,
    askers: &[(VolumeId, Cost)],
    length: Nanos,
    late: u64,
    rng: &mut Rng,
) -> Passed {
    let (mut now, mut passed) = (Nanos::ZERO, Passed::new());
    let mut free: Vec<u64> = (0..askers.len() as u64).collect();
    while now <= length {
        for asker in core::mem::take(&mut free) {
            let (volume, cost) = askers[asker as usize];
            while throttle.ask(volume, asker, cost, now) {
                passed.push((now, volume, cost));
                if now.0 == u64::MAX || passed.len() > 1_000_000 {
                    panic!("nothing holds it");
                }
            }
        }
        now = now.max(throttle.deadline()) + Nanos(rng.below(late + 1));
        let mut released = vec![];
        throttle.release(now, &mut released);
        for asker in &released {
            let (volume, cost) = askers[*asker as usize];
            passed.push((now, volume, cost));
        }
        free = released;
    }
    passed.retain(|(at, _, _)| *at <= length);
    passed
}

fn sum(passed: &Passed, of: impl Fn(VolumeId) -> bool, what: fn(Cost) -> u64) -> u64 {
    passed.iter().filter(|(_, volume, _)| of(*volume)).map(|(_, _, cost)| what(*cost)).sum()
}

/// Goal: a limit is reached and not exceeded, however late its calls are let pass. Method: askers
/// that always want more, prompt and up to 20 ms late; counts over ten seconds.
#[test]
fn saturated_volumes_get_their_rate() {
    for (seed, late) in [(1, 0), (2, 1_000_000), (3, 20_000_000)] {
        let mut rng = Rng::new(seed);
        let volume = VolumeId(7);
        let mut throttle = Throttle::default();
        let plan =
            LimitPlan { volumes: vec![(volume, CLASS, requests(5000, 50))], classes: vec![] };
        throttle.set(&plan, Nanos::ZERO);
        let asker = (volume, Cost { requests: 1, bytes: 4096 });
        let length = Nanos::from_secs(10);
        let passed = saturate(&mut throttle, &[asker; 4], length, late, &mut rng);
        let count = sum(&passed, |_| true, |cost| cost.requests);
        // Four askers at 5000 in a second and 20 ms late cannot ask for more than 4 in 20 ms; those
        // that wait pass at their instants, the later ones of a pass come with the next.
        let most = 50_000 + 50 + 5000 * late / 1_000_000_000;
        assert!(count <= most, "seed {seed}: {count}");
        if late == 0 {
            assert_eq!(count, 50_050);
        }
    }
}

/// Goal: lateness costs no rate while somebody waits. Method: a line longer than what one late pass
/// lets through, up to 20 ms late.
#[test]
fn lateness_costs_no_rate() {
    let mut rng = Rng::new(4);
    let volume = VolumeId(7);
    let mut throttle = Throttle::default();
    let plan = LimitPlan { volumes: vec![(volume, CLASS, requests(5000, 1))], classes: vec![] };
    throttle.set(&plan, Nanos::ZERO);
    let asker = (volume, Cost { requests: 1, bytes: 4096 });
    let length = Nanos::from_secs(10);
    let passed = saturate(&mut throttle, &[asker; 256], length, 20_000_000, &mut rng);
    let count = sum(&passed, |_| true, |cost| cost.requests);
    assert!((49_890..=50_101).contains(&count), "{count}");
}

/// Goal: a large call is not starved by small ones that always want more. Method: one asker of
/// 8 MiB beside fifteen of 4 KiB under 1 MiB in a second; who comes later passes later.
#[test]
fn large_calls_are_not_starved() {
    let volume = VolumeId(1);
    let mut throttle = Throttle::default();
    let plan =
        LimitPlan { volumes: vec![(volume, CLASS, bytes(1 << 20, 1 << 16))], classes: vec![] };
    throttle.set(&plan, Nanos::ZERO);
    let mut askers = vec![(volume, Cost { requests: 1, bytes: 4 << 10 }); 15];
    askers.push((volume, Cost { requests: 1, bytes: 8 << 20 }));
    let length = Nanos::from_secs(120);
    let passed = saturate(&mut throttle, &askers, length, 0, &mut Rng::new(5));
    let large = passed.iter().filter(|(_, _, cost)| cost.bytes == 8 << 20).count();
    assert!(large >= 13, "the large one passed {large} times");
}

/// Goal: a class's limit is shared, by arrival, and a volume at its own limit does not hold the
/// others. Method: three volumes of a class, one with a limit far below its part.
#[test]
fn classes_share_what_is_left() {
    let volumes = [VolumeId(1), VolumeId(2), VolumeId(3)];
    let own = [requests(100, 1), Limits::NONE, Limits::NONE];
    let mut throttle = Throttle::default();
    let members = volumes.iter().zip(own).map(|(volume, limits)| (*volume, CLASS, limits));
    let classes = vec![(CLASS, requests(3000, 30))];
    throttle.set(&LimitPlan { volumes: members.collect(), classes }, Nanos::ZERO);
    let one = Cost { requests: 1, bytes: 512 };
    let askers: Vec<_> = volumes.iter().flat_map(|volume| [(*volume, one); 2]).collect();
    let length = Nanos::from_secs(10);
    let passed = saturate(&mut throttle, &askers, length, 0, &mut Rng::new(6));
    let count = |id| sum(&passed, |volume| volume == id, |cost| cost.requests);
    assert_eq!(count(volumes[0]) + count(volumes[1]) + count(volumes[2]), 30_030);
    assert!((990..=1001).contains(&count(volumes[0])), "{}", count(volumes[0]));
    let (second, third) = (count(volumes[1]), count(volumes[2]));
    assert!(second.abs_diff(third) <= 60, "{second} and {third}");
}

/// Goal: any mix keeps every limit in every window, and everybody passes. Method: random plans,
/// costs, lateness and live changes; windows of random bounds, for volumes and class.
#[test]
fn random_mixes_keep_every_limit() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let rate = |rng: &mut Rng| Rate::per_second(1 + rng.below(20_000), 1 + rng.below(500));
        let size =
            |rng: &mut Rng| Rate::per_second(1 << (12 + rng.below(12)), 1 + rng.below(1 << 18));
        let limits = |rng: &mut Rng| Limits {
            requests: rng.chance(1, 2).then(|| rate(rng)),
            bytes: rng.chance(1, 2).then(|| size(rng)),
        };
        let volumes: Vec<_> = (0..4).map(|id| (VolumeId(id), CLASS, limits(&mut rng))).collect();
        let class = Limits { requests: Some(rate(&mut rng)), bytes: None };
        let mut throttle = Throttle::default();
        let plan = LimitPlan { volumes: volumes.clone(), classes: vec![(CLASS, class)] };
        throttle.set(&plan, Nanos::ZERO);
        let askers: Vec<_> = (0..12)
            .map(|_| {
                let bytes = 512 << rng.below(10);
                (VolumeId(rng.below(4) as u32), Cost { requests: 1, bytes })
            })
            .collect();
        let late = rng.below(10_000_000);
        let passed = saturate(&mut throttle, &askers, Nanos::from_secs(3), late, &mut rng);
        let mut seen: Map<VolumeId, Passed> = Map::new();
        passed.iter().for_each(|p| seen.entry(p.1).or_default().push(*p));
        for (id, _, limits) in volumes {
            assert_limits(limits, seen.get(&id).map_or(&[], |p| p), late, seed);
        }
        assert_limits(class, &passed, late, seed);
        assert!(passed.len() >= askers.len(), "seed {seed}: somebody never passed");
    }
}

/// The requests or the bytes of a cost.
type CostOf = fn(Cost) -> u64;

fn assert_limits(limits: Limits, passed: &[(Nanos, VolumeId, Cost)], late: u64, seed: u64) {
    let costs: [(Option<Rate>, CostOf); 2] =
        [(limits.requests, |cost| cost.requests), (limits.bytes, |cost| cost.bytes)];
    for (rate, of) in costs {
        let Some(rate) = rate else { continue };
        let largest = passed.iter().map(|p| of(p.2)).max().unwrap_or(0).max(rate.burst);
        for first in (0..passed.len()).step_by(97) {
            let mut sum = 0;
            for (at, _, cost) in &passed[first..] {
                sum += of(*cost);
                let window = u128::from(at.since(passed[first].0).0 + late + 1);
                let earned = window * u128::from(rate.tokens) / u128::from(rate.period.0);
                let most = u128::from(largest) + earned + 1;
                assert!(u128::from(sum) <= most, "seed {seed}: {sum} > {most} by {at}");
            }
        }
    }
}

/// Goal: an asker waits once, whatever it asks meanwhile, and is released once for that. Method:
/// askers that ask again for the call that waits, at random times, leave and come back, under live
/// changes of the limits.
#[test]
fn an_asker_waits_once() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let volumes = [VolumeId(0), VolumeId(1)];
        let of = |asker: u64| volumes[asker as usize % 2];
        let plan = |rng: &mut Rng| LimitPlan {
            volumes: volumes.map(|id| (id, CLASS, requests(1 + rng.below(900), 5))).to_vec(),
            classes: vec![(CLASS, bytes(1 + rng.below(1 << 20), 1 << 16))],
        };
        let mut throttle = Throttle::default();
        throttle.set(&plan(&mut rng), Nanos::ZERO);
        let (mut now, mut waiting) = (Nanos::ZERO, Map::new());
        let mut held = [0; 2];
        for _ in 0..2000 {
            let asker = rng.below(6);
            let volume = of(asker);
            if let Some(cost) = waiting.get(&asker).copied() {
                assert!(!throttle.ask(volume, asker, cost, now), "SEED={seed}: it overtakes");
                if rng.chance(1, 20) {
                    throttle.cancel(volume, asker);
                    waiting.remove(&asker);
                }
            } else {
                let cost = Cost { requests: 1, bytes: 512 << rng.below(8) };
                if !throttle.ask(volume, asker, cost, now) {
                    waiting.insert(asker, cost);
                    held[asker as usize % 2] += 1;
                }
            }
            if rng.chance(1, 100) {
                throttle.set(&plan(&mut rng), now);
            }
            now = now + Nanos(rng.below(20_000_000));
            let mut released = vec![];
            throttle.release(now, &mut released);
            for asker in released {
                assert!(waiting.remove(&asker).is_some(), "SEED={seed}: released for nothing");
            }
            for (index, volume) in volumes.iter().enumerate() {
                let own = waiting.keys().filter(|asker| of(**asker) == *volume).count();
                let waits = throttle.waits(*volume);
                assert_eq!((waits.waiting, waits.calls), (own as u64, held[index]), "SEED={seed}");
            }
        }
    }
}

/// Goal: a change counts at once for those who wait, and takes nothing from those who do not.
/// Method: a wait of hours is ended by a faster limit, and by none.
#[test]
fn change_reaches_those_who_wait() {
    let volume = VolumeId(3);
    let plan = |limits| LimitPlan { volumes: vec![(volume, CLASS, limits)], classes: vec![] };
    let cost = Cost { requests: 1, bytes: 32 << 20 };
    for faster in [bytes(1 << 30, 1 << 30), Limits::NONE] {
        let mut throttle = Throttle::default();
        throttle.set(&plan(bytes(4096, 4096)), Nanos::ZERO);
        assert!(throttle.ask(volume, 1, cost, Nanos::ZERO));
        assert!(!throttle.ask(volume, 2, cost, Nanos::ZERO));
        assert!(throttle.deadline() > Nanos::from_secs(3600));
        let now = Nanos::from_secs(1);
        throttle.set(&plan(faster), now);
        assert!(throttle.deadline() <= now);
        let mut released = vec![];
        throttle.release(now, &mut released);
        let later = Nanos(now.0.max(throttle.deadline().0.min(now.0 + 40_000_000)));
        throttle.release(later, &mut released);
        assert_eq!(released, [2]);
        assert_eq!(throttle.deadline(), Nanos::NEVER);
        assert_eq!(throttle.waits(volume).calls, 1);
    }
}

/// Goal: who leaves the line holds nobody. Method: the first of two waits for ever and is
/// cancelled; the volume is forgotten.
#[test]
fn who_leaves_holds_nobody() {
    let volume = VolumeId(3);
    let mut throttle = Throttle::default();
    let plan = LimitPlan { volumes: vec![(volume, CLASS, bytes(1, 10))], classes: vec![] };
    throttle.set(&plan, Nanos::ZERO);
    let cost = |bytes| Cost { requests: 1, bytes };
    assert!(throttle.ask(volume, 1, cost(9), Nanos::ZERO));
    assert!(!throttle.ask(volume, 2, cost(10), Nanos::ZERO));
    assert!(!throttle.ask(volume, 3, cost(1), Nanos::ZERO), "nobody overtakes");
    throttle.cancel(volume, 2);
    let mut released = vec![];
    throttle.release(Nanos(1), &mut released);
    assert_eq!(released, [3]);
    throttle.forget(volume);
    assert!(throttle.ask(volume, 4, cost(1 << 40), Nanos(2)), "without limits all pass");
}

/// Goal: a call that is cancelled, or whose volume goes, holds no other volume of its class.
/// Method: the only one that waits for the class's burst leaves; a call for which there is credit.
#[test]
fn what_has_left_holds_no_class() {
    let (one, other) = (VolumeId(3), VolumeId(4));
    let volumes = [one, other].map(|volume| (volume, CLASS, Limits::NONE)).to_vec();
    let plan = LimitPlan { volumes, classes: vec![(CLASS, bytes(10, 20))] };
    let cost = |bytes| Cost { requests: 1, bytes };
    let leave: [fn(&mut Throttle); 2] =
        [|it| it.cancel(VolumeId(3), 1), |it| it.forget(VolumeId(3))];
    for leave in leave {
        let mut throttle = Throttle::default();
        throttle.set(&plan, Nanos::ZERO);
        assert!(throttle.ask(other, 2, cost(10), Nanos::ZERO));
        assert!(!throttle.ask(one, 1, cost(20), Nanos::ZERO));
        leave(&mut throttle);
        assert!(throttle.ask(other, 2, cost(1), Nanos::ZERO), "there is credit for it");
    }
}

/// Goal: a call that starts whatever the limits say delays the others by what it costs, and waits
/// no more. Method: of two that wait the second starts so, under limits of the volume and its
/// class.
#[test]
fn what_cannot_wait_is_charged() {
    let volume = VolumeId(3);
    let limits = bytes(10, 10);
    for (own, shared) in [(limits, Limits::NONE), (Limits::NONE, limits), (limits, limits)] {
        let mut throttle = Throttle::default();
        let plan =
            LimitPlan { volumes: vec![(volume, CLASS, own)], classes: vec![(CLASS, shared)] };
        throttle.set(&plan, Nanos::ZERO);
        let cost = Cost { requests: 1, bytes: 10 };
        for asker in 1..=3 {
            assert_eq!(throttle.ask(volume, asker, cost, Nanos::ZERO), asker == 1);
        }
        throttle.charge(volume, 3, cost, Nanos::ZERO);
        assert_eq!(throttle.waits(volume).waiting, 1);
        let mut released = vec![];
        throttle.release(Nanos(1_999_999_999), &mut released);
        assert!(released.is_empty());
        throttle.release(Nanos::from_secs(2), &mut released);
        assert_eq!(released, [2]);
    }
}

/// Goal: what cannot wait makes no debt without end for the others of a class. Method: a hundred
/// such calls of one volume, then a call of another, which waits for a burst and itself.
#[test]
fn a_class_owes_a_burst_at_most() {
    let (one, other) = (VolumeId(3), VolumeId(4));
    let mut throttle = Throttle::default();
    let volumes = [one, other].map(|volume| (volume, CLASS, Limits::NONE)).to_vec();
    throttle.set(&LimitPlan { volumes, classes: vec![(CLASS, bytes(10, 20))] }, Nanos::ZERO);
    let cost = Cost { requests: 1, bytes: 10 };
    (0..100).for_each(|asker| throttle.charge(one, asker, cost, Nanos::ZERO));
    assert!(!throttle.ask(other, 1, cost, Nanos::ZERO));
    let mut released = vec![];
    throttle.release(Nanos(2_999_999_999), &mut released);
    assert!(released.is_empty());
    throttle.release(Nanos::from_secs(3), &mut released);
    assert_eq!(released, [1]);
}

/// Goal: what each call costs is a promise. Method: one of each.
#[test]
fn costs_are_as_documented() {
    let flags = CallFlags::default();
    let of = |operation| Cost::of(&Call { cookie: 0, operation, offset: 0, length: 8, flags });
    assert_eq!(of(Operation::Flush), Cost { requests: 0, bytes: 0 });
    for moved in [Operation::Read, Operation::Write, Operation::Cache] {
        assert_eq!(of(moved), Cost { requests: 1, bytes: 8 });
    }
    for named in [Operation::Trim, Operation::WriteZeroes, Operation::BlockStatus] {
        assert_eq!(of(named), Cost { requests: 1, bytes: 0 });
    }
}
