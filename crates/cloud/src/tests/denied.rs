//! A store that denies the removal of objects, for hours.
//!
//! How: blocks that are overwritten now and then, so that segments die and checkpoints are
//! replaced; snapshots that are made and dropped. The requests of each hour are counted.

use super::waits::Bench;
use crate::snapshot::SnapshotChange;
use layby_types::Nanos;

const HOUR: Nanos = Nanos::from_secs(3600);
/// Between two writes.
const REST: Nanos = Nanos::from_secs(10);

/// Time passes, as far as there is something to do.
fn pass_until(bench: &mut Bench, end: Nanos) {
    while bench.now < end {
        bench.work();
        let soon = bench.now.saturating_add(Nanos::from_millis(1));
        bench.now = bench.volume.next_deadline().max(soon).min(end);
        bench.volume.on_tick(bench.now);
        bench.work();
    }
}

fn change(bench: &mut Bench, change: SnapshotChange) {
    bench.volume.change_snapshots(1, change);
    bench.until(|bench| bench.volume.snapshots().is_some());
    let end = bench.now.saturating_add(Nanos::from_secs(5));
    pass_until(bench, end);
    assert_eq!(bench.volume.poll_snapshots(), Some((1, Ok(()))));
}

/// An hour of writes, and a snapshot that is made and dropped.
fn hour(bench: &mut Bench, seed: u64) {
    let end = bench.now.saturating_add(HOUR);
    let name = || "hourly".to_owned();
    change(bench, SnapshotChange::Make { name: name(), now_unix: 7 });
    change(bench, SnapshotChange::Drop { name: name() });
    while bench.now < end {
        let (first, value) = (bench.world.rng.below(40) * 2, bench.world.rng.below(255) as u8);
        let written = bench.write(first, 8, value);
        let next = bench.now.saturating_add(REST);
        pass_until(bench, next);
        assert_eq!(bench.result(written), Some(Ok(())), "seed {seed}");
    }
}

fn count(bench: &Bench, prefix: &str) -> usize {
    bench.world.store.objects.keys().filter(|key| key.starts_with(prefix)).count()
}

/// Goal: a store that denies removals is asked for them no more often after hours than at first,
/// and gets no more checkpoints for it; once it removes objects, all go that are of no use. Method:
/// hours of writes with removals denied, with the requests and checkpoints of each; one without.
#[test]
fn denied_removals_do_not_add_up() {
    for seed in 0..3 {
        let mut bench = Bench::new(seed);
        bench.world.faults.denies_deletes = true;
        let (mut requests, mut checkpoints) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let asked = bench.volume.status().counters.requests;
            let stored = count(&bench, "checkpoints/");
            hour(&mut bench, seed);
            requests.push(bench.volume.status().counters.requests - asked);
            checkpoints.push(count(&bench, "checkpoints/") - stored);
        }
        let writes = HOUR.0 / REST.0;
        assert!(requests.iter().all(|all| *all < 20 * writes), "{requests:?}, seed {seed}");
        let last = checkpoints.last().expect("there were hours");
        assert!(*last as u64 <= writes / 8, "{checkpoints:?}, seed {seed}");
        assert!(count(&bench, "segments/") as u64 > 5 * writes, "nothing goes, seed {seed}");
        bench.world.faults.denies_deletes = false;
        hour(&mut bench, seed);
        assert!(count(&bench, "checkpoints/") <= 2, "seed {seed}");
        assert_eq!(count(&bench, "snapshots/"), 0, "seed {seed}");
        let segments = count(&bench, "segments/");
        assert!(segments < 60, "{segments} segments, seed {seed}");
    }
}
