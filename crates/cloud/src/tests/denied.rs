//! A store that denies the removal of objects, for hours: of all, of some, or of many at once.
//!
//! How: blocks that are overwritten now and then, so that segments die and checkpoints are
//! replaced; snapshots that are made and dropped. The requests of each hour are counted.

use super::lives::{BLOCK, JOURNAL};
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

/// Goal: a store without a removal of many objects removes all that are of no use. Method: an hour
/// of writes with removals denied, so that there are many; one with single removals permitted.
#[test]
fn a_store_without_removals_of_many_is_asked_for_single_ones() {
    for seed in 10..13 {
        let mut bench = Bench::new(seed);
        bench.world.faults.denies_deletes = true;
        hour(&mut bench, seed);
        assert!(count(&bench, "checkpoints/") > 5, "there are many to remove, seed {seed}");
        bench.world.faults.denies_deletes = false;
        bench.world.store.lacks_delete_many = true;
        hour(&mut bench, seed);
        let checkpoints = count(&bench, "checkpoints/");
        assert!(checkpoints <= 2, "{checkpoints} checkpoints, seed {seed}");
        assert_eq!(count(&bench, "snapshots/"), 0, "seed {seed}");
    }
}

/// Goal: objects that cannot be removed keep no others in the store and do not make requests add
/// up; once they can be removed, they go. Method: an hour of writes with all removals denied, two
/// with those of some objects, one with none; requests of each hour are counted.
#[test]
fn objects_that_stay_keep_no_others() {
    type Kept = fn(&str) -> String;
    let first = |bench: &Bench| {
        let mut keys = bench.world.store.objects.keys();
        keys.find(|key| key.starts_with("checkpoints/")).expect("there is one").clone()
    };
    let kinds: [Kept; 3] =
        [str::to_owned, |_| "checkpoints/".to_owned(), |_| "snapshots/".to_owned()];
    for (seed, kept) in (20..).zip(kinds) {
        let mut bench = Bench::new(seed);
        bench.world.faults.denies_deletes = true;
        hour(&mut bench, seed);
        bench.world.faults.denies_deletes = false;
        let kept = kept(&first(&bench));
        bench.world.store.kept = Some(kept.clone());
        for _ in 0..2 {
            let asked = bench.volume.status().counters.requests;
            hour(&mut bench, seed);
            let requests = bench.volume.status().counters.requests - asked;
            assert!(requests < 20 * HOUR.0 / REST.0, "{requests} requests, {kept}");
        }
        assert!(count(&bench, &kept) > 0, "{kept}");
        for (prefix, most) in [("checkpoints/", 2), ("snapshots/", 0), ("segments/", 60)] {
            let all = count(&bench, prefix);
            let stay = if kept.starts_with(prefix) { count(&bench, &kept) } else { 0 };
            assert!(all - stay <= most, "{all} of {prefix}, {stay} stay, {kept}");
        }
        bench.world.store.kept = None;
        hour(&mut bench, seed);
        let left = ["checkpoints/", "snapshots/"].map(|prefix| count(&bench, prefix));
        assert!(left[0] <= 2 && left[1] == 0, "{left:?}, {kept}");
    }
}

/// Writes until the store has a new checkpoint.
fn write_until_checkpoint(bench: &mut Bench) {
    let newest = |bench: &Bench| {
        let mut keys = bench.world.store.objects.keys().rev();
        keys.find(|key| key.starts_with("checkpoints/")).cloned()
    };
    let before = newest(bench);
    for _ in 0..1000 {
        let (first, value) = (bench.world.rng.below(40) * 2, bench.world.rng.below(255) as u8);
        bench.write(first, 8, value);
        let next = bench.now.saturating_add(REST);
        pass_until(bench, next);
        if newest(bench) != before {
            return;
        }
    }
    panic!("no checkpoint comes");
}

/// Blocks of segments in which nothing lives, in bytes.
fn dead_bytes(bench: &Bench) -> u64 {
    let dead = bench.volume.map().segments().filter(|(_, state)| state.live == 0);
    dead.map(|(_, state)| state.blocks * BLOCK).sum()
}

/// Blocks of a large trim.
const TRIMMED: u64 = 96;

/// Writes blocks that nothing else writes to and trims them, both right behind a checkpoint, so
/// that their segments wait for the next one.
fn write_and_trim(bench: &mut Bench) {
    write_until_checkpoint(bench);
    bench.write(128, TRIMMED, 7);
    // Longer than a removal that fails rests, so that the last one that ended has failed.
    let next = bench.now.saturating_add(Nanos::from_secs(30));
    pass_until(bench, next);
    (128..128 + TRIMMED).for_each(|block| bench.zero(block));
    let next = bench.now.saturating_add(REST);
    pass_until(bench, next);
    assert!(bench.volume.is_drained(), "{:?}", bench.volume.status());
}

/// Bytes of dead segments for which cleaning does nothing.
const DEAD_BYTES_MAX: u64 = 128 << 10;

/// Goal: a large trim that came while removals were denied frees its space once segments can be
/// removed, on a volume that is idle and while checkpoints cannot be removed yet. Method: writes, a
/// trim, a minute in which segments can be removed, and an idle hour without faults.
#[test]
fn a_trim_during_a_denial_frees_its_space_later() {
    for seed in 30..34 {
        let mut bench = Bench::sized(seed, 512, (JOURNAL, 0));
        bench.world.faults.denies_deletes = true;
        (0..3).for_each(|_| write_until_checkpoint(&mut bench));
        write_and_trim(&mut bench);
        assert!(dead_bytes(&bench) >= TRIMMED * BLOCK, "seed {seed}");
        bench.world.faults.denies_deletes = false;
        bench.world.store.kept = Some("checkpoints/".to_owned());
        let end = bench.now.saturating_add(Nanos::from_secs(60));
        pass_until(&mut bench, end);
        bench.world.store.kept = None;
        let end = bench.now.saturating_add(HOUR);
        pass_until(&mut bench, end);
        let dead = dead_bytes(&bench);
        assert!(dead <= DEAD_BYTES_MAX, "{dead} dead bytes stay, seed {seed}");
        let checkpoints = count(&bench, "checkpoints/");
        assert!(checkpoints <= 2, "{checkpoints} checkpoints, seed {seed}");
    }
}

/// Goal: one segment that cannot be removed keeps no others in the store. Method: the first
/// segment's removal is denied; a large trim once it was, and an idle hour.
#[test]
fn a_segment_that_stays_keeps_no_others() {
    for seed in 40..44 {
        let mut bench = Bench::sized(seed, 512, (JOURNAL, 0));
        let mut keys = bench.world.store.objects.keys();
        let first = keys.find(|key| key.starts_with("segments/")).expect("there is one").clone();
        bench.world.store.kept = Some(first.clone());
        bench.write(0, 8, 9);
        (0..3).for_each(|_| write_until_checkpoint(&mut bench));
        let fault = bench.volume.status().last_fault.map(|(cause, _)| cause);
        assert_eq!(fault.as_deref(), Some("Denied"), "seed {seed}");
        write_and_trim(&mut bench);
        let end = bench.now.saturating_add(HOUR);
        pass_until(&mut bench, end);
        let dead = dead_bytes(&bench);
        assert!(dead <= DEAD_BYTES_MAX, "{dead} dead bytes stay, seed {seed}");
        assert_eq!(count(&bench, &first), 1, "seed {seed}");
    }
}
