//! The budget over random histories, the order in which things are given up, averages, restarts.

use super::{DAY, Endurance, Wear, WearLimits, WearRank, WearState, WearUse};
use layby_types::{Nanos, Rng};
use std::vec::Vec;

const GIB: u64 = 1 << 30;
const HOUR: Nanos = Nanos(DAY.0 / 24);

fn ten_a_day() -> Endurance {
    Endurance { bytes: 18_250 * GIB, life: Endurance::LIFE_DEFAULT }
}

fn fresh(now: Nanos) -> Wear {
    Wear::new(Some(ten_a_day()), WearLimits::DEFAULT, now)
}

fn rank(place: u8) -> WearRank {
    WearRank { place, of: 3 }
}

/// Goal: copies never take more within any span than it earns and the bucket carries, and one
/// write.
/// Method: greedy copies of random sizes at random instants, every span of the history summed.
#[test]
fn copies_keep_to_the_budget_in_every_span() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let limits = WearLimits { carry_days: 1 + rng.below(3) as u16, ..WearLimits::DEFAULT };
        let mut wear = Wear::new(Some(ten_a_day()), limits, Nanos::ZERO);
        let (mut now, mut largest) = (Nanos::ZERO, 0);
        let mut history: Vec<(Nanos, u64)> = Vec::new();
        for _ in 0..400 {
            now = now + Nanos(rng.below(2 * HOUR.0));
            let bytes = 1 + rng.below(3 * GIB);
            let class = rank(rng.below(3) as u8);
            while wear.admits(WearUse::Copy, class, now) {
                wear.charge(bytes, now);
                largest = largest.max(bytes);
                history.push((now, bytes));
            }
        }
        let carried = u64::from(limits.carry_days) * ten_a_day().daily_bytes();
        for first in (0..history.len()).step_by(7) {
            let mut sum = 0;
            for (at, bytes) in &history[first..] {
                sum += bytes;
                let span = at.since(history[first].0);
                let earned = ten_a_day().earned_in(span) + 1;
                assert!(sum <= earned + carried + largest, "seed {seed}: {sum} within {span}");
            }
        }
        let total: u64 = history.iter().map(|(_, bytes)| bytes).sum();
        assert!(total > ten_a_day().earned_in(now) / 2, "seed {seed}: the budget is used");
    }
}

/// Goal: the order of giving up is copies before dirty blocks, low classes before high ones, and
/// the best class's dirty blocks never. Method: the budget drained in small steps, answers
/// compared.
#[test]
fn low_classes_and_copies_go_first() {
    let mut wear = fresh(Nanos::ZERO);
    let asks = [
        (WearUse::Copy, rank(2)),
        (WearUse::Copy, rank(1)),
        (WearUse::Copy, rank(0)),
        (WearUse::Dirty, rank(2)),
        (WearUse::Dirty, rank(1)),
        (WearUse::Dirty, rank(0)),
    ];
    let mut lost_at = [None; 6];
    for step in 0..2000 {
        for (index, (what, class)) in asks.into_iter().enumerate() {
            let admitted = wear.admits(what, class, Nanos::ZERO);
            assert!(admitted || index < 5, "what must be kept is kept");
            if !admitted && lost_at[index].is_none() {
                lost_at[index] = Some(step);
            }
        }
        wear.charge(GIB / 100, Nanos::ZERO);
    }
    let lost: Vec<i32> = lost_at[..5].iter().map(|at| at.expect("it was given up")).collect();
    assert!(lost.is_sorted_by(|a, b| a < b), "{lost:?}");
    assert_eq!(lost_at[5], None);
}

/// Goal: what is overdrawn is paid back before copies go on, and no more than the bound is owed.
/// Method: a hundred days' budget at once, then days of rest.
#[test]
fn debts_are_bounded_and_paid() {
    let mut wear = fresh(Nanos::ZERO);
    wear.charge(1000 * GIB, Nanos::ZERO);
    assert_eq!(wear.balance(Nanos::ZERO), Some(-300 * GIB as i64));
    let before = Nanos(29 * DAY.0);
    assert!(!wear.admits(WearUse::Dirty, rank(2), before));
    assert!(wear.admits(WearUse::Copy, rank(2), Nanos(31 * DAY.0)));
    let rested = Nanos(400 * DAY.0);
    assert_eq!(wear.balance(rested), Some(10 * GIB as i64), "a day is carried over, no more");
}

/// Goal: averages find a steady rate soon and follow a change within their window, so that the days
/// left follow from them. Method: a steady rate of 1 GiB an hour, then silence.
#[test]
fn averages_follow_the_rate() {
    let mut wear = fresh(Nanos::ZERO);
    assert_eq!(wear.daily_rates(Nanos::ZERO), [None; 3]);
    let step = Nanos(HOUR.0 / 60);
    let mut now = Nanos::ZERO;
    for minute in 0..4 * 24 * 60 {
        now = Nanos(step.0 * (minute + 1));
        wear.charge(GIB / 60, now);
        if minute >= 3 * 60 {
            for rate in wear.daily_rates(now).into_iter().flatten() {
                assert!((rate / (24 * GIB) as f64 - 1.0).abs() < 0.02, "{rate} after {minute}");
            }
        }
    }
    assert!(wear.daily_rates(now).iter().all(Option::is_some));
    let days = wear.left().expect("an endurance") as f64 / wear.daily_rates(now)[1].expect("seen");
    assert!((days - (18_250.0 - 96.0) / 24.0).abs() < 20.0, "{days}");
    let rates = wear.daily_rates(now + DAY).map(|rate| rate.expect("seen") / GIB as f64);
    assert!(rates[0] < 0.1 && (7.0..11.0).contains(&rates[1]) && rates[2] > 17.0, "{rates:?}");
}

/// Goal: a restart changes nothing but what the time away earns, and a nonsensical state is tamed.
/// Method: two lives beside one, over random charges; a state of noise.
#[test]
fn restarts_go_on_where_they_were() {
    let mut rng = Rng::new(7);
    let (mut one, mut now) = (fresh(Nanos::ZERO), Nanos::ZERO);
    let mut other = one.clone();
    let mut begun = Nanos::ZERO;
    for round in 0..300 {
        let pause = Nanos(rng.below(HOUR.0));
        now = now + pause;
        let bytes = rng.below(GIB);
        one.charge(bytes, now);
        other.charge(bytes, now.since(begun));
        if round % 10 == 0 {
            let state = other.state(now.since(begun));
            let away = Nanos(rng.below(DAY.0));
            now = now + away;
            begun = now;
            other = Wear::resume(Some(ten_a_day()), WearLimits::DEFAULT, &state, away, Nanos::ZERO);
        }
        let (a, b) = (one.state(now), other.state(now.since(begun)));
        assert_eq!((a.written, a.seen), (b.written, b.seen));
        assert!(a.balance.abs_diff(b.balance) <= 40, "{a:?} {b:?}");
        assert!((a.averages[1] / b.averages[1].max(1.0) - 1.0).abs() < 1e-3, "{a:?} {b:?}");
    }
    let noise = WearState { written: 5, balance: i64::MIN, seen: DAY, averages: [f64::NAN; 3] };
    let wear = Wear::resume(Some(ten_a_day()), WearLimits::DEFAULT, &noise, DAY, Nanos::ZERO);
    assert!(wear.daily_rates(DAY).iter().flatten().all(|rate| *rate == 0.0));
}

/// Goal: without an endurance all is admitted and counted; parts of a level sum up. Method: both.
#[test]
fn unrated_levels_are_only_counted() {
    let mut wear = Wear::new(None, WearLimits::DEFAULT, Nanos::ZERO);
    wear.charge(u64::MAX / 2, Nanos::ZERO);
    assert!(wear.admits(WearUse::Copy, rank(2), Nanos::ZERO));
    assert_eq!((wear.balance(DAY), wear.left(), wear.written()), (None, None, u64::MAX / 2));
    assert_eq!(ten_a_day().daily_bytes(), 10 * GIB);
    assert!(ten_a_day().part(3).bytes * 3 <= ten_a_day().bytes);
}
