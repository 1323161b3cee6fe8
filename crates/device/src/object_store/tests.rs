//! The store beside closed forms.

use super::*;
use alloc::vec::Vec;

const MIB: u64 = 1 << 20;

fn quiet() -> StoreModel {
    let latency = [Latency::fixed(Nanos::from_millis(20)); RequestKind::ALL.len()];
    StoreModel { latency, ..StoreModel::DEFAULT }
}

fn steady(bytes_per_second: u64) -> Link {
    Link::steady(bytes_per_second, Nanos::from_millis(30))
}

fn store(model: StoreModel) -> ObjectStore {
    ObjectStore::new(model, steady(MIB), steady(4 * MIB), 1)
}

/// Goal: a request takes its bytes' time on the link of its direction, a round trip and a latency;
/// requests without bytes wait for nobody's. Method: by hand.
#[test]
fn requests_take_their_time() {
    let mut store = store(quiet());
    let put = store.request(RequestKind::Put, 2 * MIB, Nanos::ZERO);
    assert_eq!(
        put,
        Outcome { answer: Answer::Done, is_applied: true, at: Nanos::from_millis(2050) }
    );
    let second = store.request(RequestKind::Put, MIB, Nanos::ZERO);
    assert_eq!(second.at, Nanos::from_millis(3050), "it goes after the first");
    let get = store.request(RequestKind::Get, 4 * MIB, Nanos::ZERO);
    assert_eq!(get.at, Nanos::from_millis(1050), "the way down is another");
    let head = store.request(RequestKind::Head, 0, Nanos::ZERO);
    assert_eq!(head.at, Nanos::from_millis(50));
    let counters = store.counters();
    assert_eq!((counters.bytes_up, counters.bytes_down, counters.done), (3 * MIB, 4 * MIB, 4));
    assert_eq!(counters.requests, [2, 1, 1, 0, 0]);
}

/// Goal: what is too long for its timeout is given up then, not carried out, and has kept the link
/// busy; a dead link times out, too. Method: a minute's worth of bytes, and no link.
#[test]
fn slow_requests_time_out() {
    let mut slow = store(quiet());
    let late = slow.request(RequestKind::Put, 60 * MIB, Nanos::ZERO);
    let given_up = Nanos::from_secs(30);
    assert_eq!(late, Outcome { answer: Answer::TimedOut, is_applied: false, at: given_up });
    assert_eq!((slow.up().free_at(), slow.counters().bytes_up), (given_up, 0));
    let next = slow.request(RequestKind::Put, MIB, Nanos::from_secs(29));
    assert_eq!((next.answer, next.at), (Answer::Done, Nanos::from_millis(31_050)));
    let mut dead = ObjectStore::new(quiet(), steady(0), steady(0), 1);
    assert_eq!(dead.request(RequestKind::Put, 1, Nanos::ZERO).answer, Answer::TimedOut);
    let get = dead.request(RequestKind::Get, 1, Nanos::ZERO);
    assert!(get.answer == Answer::TimedOut && get.is_applied, "it was read, in vain");
}

/// Goal: failures are as frequent as asked for and of the kind asked for, seeds repeat, and a client
/// that is told something is told the truth. Method: 100 000 requests of one kind of failure each.
#[test]
fn failures_come_by_seed() {
    let rate = 20_000;
    let one = |errors, unanswered, replies_lost| Failures { errors, unanswered, replies_lost };
    for failures in [one(rate, 0, 0), one(0, rate, 0), one(0, 0, rate), one(rate, rate, rate)] {
        let run = || {
            let mut store = store(StoreModel { failures, ..quiet() });
            let ask = |step: u64| store.request(RequestKind::Delete, 0, Nanos::from_millis(step));
            let outcomes: Vec<Outcome> = (0..100_000).map(ask).collect();
            (outcomes, store.counters())
        };
        let (outcomes, counters) = run();
        assert_eq!((&outcomes, counters), (&run().0, run().1), "a seed is a promise");
        let near = |found: u64, rate: u32| {
            let expected = u64::from(rate) / 10;
            assert!(
                found.abs_diff(expected) <= expected / 10,
                "{found} of {expected}: {failures:?}"
            );
        };
        near(counters.errors, failures.errors);
        near(counters.timed_out, failures.unanswered + failures.replies_lost);
        near(counters.replies_lost, failures.replies_lost);
        for outcome in outcomes {
            let told = outcome.answer != Answer::TimedOut;
            assert!(!told || outcome.is_applied == (outcome.answer == Answer::Done));
        }
        let all = counters.done + counters.errors + counters.throttled + counters.timed_out;
        assert_eq!(all, 100_000);
    }
}

/// Goal: beyond its rate the store throttles, a second's worth apart, writes and reads each for
/// themselves; throttled bytes go nowhere. Method: 10 000 puts at once, then at the rate.
#[test]
fn a_rate_throttles() {
    let mut store = store(quiet());
    for _ in 0..10_000 {
        store.request(RequestKind::Delete, 0, Nanos::ZERO);
    }
    assert_eq!((store.counters().done, store.counters().throttled), (3500, 6500));
    let refused = store.request(RequestKind::Put, MIB, Nanos::ZERO);
    assert_eq!((refused.answer, refused.at), (Answer::Throttled, Nanos::from_millis(30)));
    assert_eq!(store.counters().bytes_up, 0);
    assert_eq!(store.request(RequestKind::Head, 0, Nanos::ZERO).answer, Answer::Done);
    for step in 1..=3500u64 {
        let at = Nanos(1_000_000_000 + step * 1_000_000_000 / 3500);
        assert_eq!(store.request(RequestKind::Delete, 0, at).answer, Answer::Done, "{step}");
    }
}

/// Goal: prices are the published ones. Method: a GiB put in objects of 8 MiB and read back.
#[test]
fn prices_add_up() {
    let mut store = ObjectStore::new(quiet(), steady(1 << 30), steady(1 << 30), 1);
    for step in 0..128 {
        let now = Nanos::from_millis(step * 100);
        assert_eq!(store.request(RequestKind::Put, 8 * MIB, now).answer, Answer::Done);
        assert_eq!(store.request(RequestKind::Get, 8 * MIB, now).answer, Answer::Done);
    }
    let expected = 128.0 * (0.005 + 0.0004) / 1000.0 + 1.073_741_824 * 0.09;
    assert!((store.dollars() - expected).abs() < 1e-9, "{} {expected}", store.dollars());
}

/// Goal: drawn latencies have the distribution that was asked for. Method: the share of 100 000
/// draws at or below each point.
#[test]
fn latencies_are_distributed() {
    let points = [10, 20, 40, 100, 300, 900].map(Nanos::from_millis);
    let latency = Latency::new(points).expect("they rise");
    let mut rng = Rng::new(1);
    let draws: Vec<Nanos> = (0..100_000).map(|_| latency.draw(&mut rng)).collect();
    for (point, share) in points.into_iter().zip([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]) {
        let below = draws.iter().filter(|draw| **draw <= point).count() as f64 / 1e5;
        assert!((below - share).abs() < 0.005, "{below} at or below {point}");
    }
    assert!(Latency::new([900, 20, 40, 100, 300, 900].map(Nanos::from_millis)).is_none());
}
