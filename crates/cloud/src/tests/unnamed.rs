//! Segments that lie damaged in the store, or are gone, before a superblock names them.
//!
//! How: a volume under load loses its power while the store has such segments; one of them is
//! lost, truncated, or has a bit changed. Then the node starts, or another one that has no disks.
//! The journal still has what the segment holds, since no superblock vouches for it.

use super::lives::{BLOCK, JOURNAL, Life};
use super::salvaged::files;
use crate::segment::VolumeUuid;
use crate::simulated::{SimDisks, SimFaults, SimWorld};
use crate::unstored::Unstored;
use crate::volume::{Wanted, left_over};
use bytes::Bytes;
use layby_types::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// A node under load for so long that segments of clients and of cleaning are uploaded.
fn loaded(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(200 + seed % 9 * 60);
    life
}

/// All is uploaded; then a second start, whose journal has nothing of it any more, reads it all.
fn is_well(life: &mut Life) {
    life.load(60);
    life.settle();
    life.crash();
    life.settle();
    life.sync_all();
    life.settle();
    let whole = life.read_all();
    assert!(life.is_prefix(&whole, life.submitted()), "{}", life.line);
    let stored = life.restore();
    assert!(life.is_prefix(&whole, stored), "{}", life.line);
}

/// Goal: a segment that lies damaged in the store, or is gone, before a superblock names it costs
/// nothing: its bytes are read from the journal meanwhile, and stored again. Method: a start beside
/// one such segment, sometimes with a store that fails; all is read then, and after a second start,
/// once the journal has freed it.
#[test]
fn a_damaged_put_is_stored_again() {
    let mut seen = BTreeSet::new();
    let mut count = 0;
    for seed in 0..400 {
        let mut life = loaded(seed);
        let mut how = None;
        life.crash_beside(|world| how = world.spoil_unnamed(&mut Rng::new(seed)));
        let Some(how) = how else { continue };
        seen.insert(how);
        count += 1;
        if seed % 3 == 0 {
            life.world.faults = SimFaults { errors: 20, lost_replies: 20, ..SimFaults::default() };
        }
        is_well(&mut life);
    }
    assert!(count > 100 && seen.len() == 3, "{count} segments, {seen:?}");
}

/// Goal: the same where the power fails again while the node learns what the store has, claims the
/// volume and writes that down, though the segment is whole again by then: its number may be
/// another session's. Method: a power cut after each step behind the start; the object comes back.
#[test]
fn what_is_stored_again_can_be_interrupted() {
    let mut count = 0;
    for seed in 0..150 {
        let mut life = loaded(seed);
        let (mut before, mut how) = (BTreeMap::new(), None);
        life.crash_beside(|world| {
            before = world.store.objects.clone();
            how = world.spoil_unnamed(&mut Rng::new(seed));
        });
        count += u32::from(how.is_some());
        life.volume.set_draining(true);
        (0..seed).for_each(|_| life.tick());
        life.crash_beside(|world| put_back(world, &before));
        is_well(&mut life);
        life.lose_disks(VolumeUuid([8; 16]));
    }
    assert!(count > 30, "{count} segments");
}

/// What a store has lost of these objects is there again, and whole.
fn put_back(world: &mut SimWorld, before: &BTreeMap<String, (Bytes, u64)>) {
    for (key, object) in before.iter().filter(|(key, _)| key.starts_with("segments/")) {
        world.store.objects.insert(key.clone(), object.clone());
    }
}

/// Goal: a node without disks, and a restore, take what no superblock names only as far as it is
/// whole: they find a prefix of the history, without a damaged block. Method: the same segments;
/// a restore, and another node that reads all and lives on.
#[test]
fn a_damaged_put_is_not_taken_over() {
    let mut count = 0;
    for seed in 0..200 {
        let mut life = loaded(seed);
        life.stop();
        count += u32::from(life.world.spoil_unnamed(&mut Rng::new(seed)).is_some());
        life.lose_disks(VolumeUuid([8; 16]));
        life.load(60);
        life.crash();
        life.settle();
    }
    assert!(count > 50, "{count} segments");
}

/// These disks with a payload of the journal damaged that was overwritten since, and is in a
/// segment that no superblock names; none where none of some pages is such a one.
fn rotten(disks: &SimDisks, rng: &mut Rng) -> Option<SimDisks> {
    const PAGES_MAX: usize = 24;
    (0..PAGES_MAX).find_map(|_| {
        let (page, mut bad) = (1 + rng.below(JOURNAL / BLOCK - 1), disks.clone());
        bad.rot(page * BLOCK + rng.below(BLOCK));
        let mut read = |at, length| bad.read(at, length);
        let found = left_over(&disks.map_file, Wanted::Unnamed, &mut read).ok()?;
        let is_read = !found.damaged.is_empty() || found.damaged_at.is_some();
        let is_put = |seq: &u64| *seq < found.put_next;
        let is_it = !is_read && found.damaged_batches.first().is_some_and(is_put);
        is_it.then_some(bad)
    })
}

/// Goal: where a check says that the journal has what such segments hold, the next start stores it
/// again, whatever of the journal is damaged. Method: a segment is spoiled, and the journal damaged
/// where a payload was that no read needs any more; where the check promises nothing, the damage is
/// undone. Then a start, which stores all.
#[test]
fn what_a_check_promises_is_stored_again() {
    let [mut spoiled, mut damaged, mut promised] = [0; 3];
    for seed in 0..200 {
        let (mut life, mut rng) = (loaded(seed), Rng::new(seed));
        life.crash_beside(|world| {
            spoiled += u32::from(world.spoil_unnamed(&mut rng).is_some());
            let whole = world.disks.clone();
            let bad = rotten(&whole, &mut rng);
            let is_damaged = bad.is_some();
            damaged += u32::from(is_damaged);
            world.disks = bad.unwrap_or_else(|| whole.clone());
            let folder = tempfile::tempdir().expect("a temporary folder");
            let found = Unstored::open(&files(&world.disks, folder.path())).expect("it opens");
            promised += u32::from(found.is_in_journal());
            if !found.is_in_journal() {
                assert!(is_damaged, "a sound journal has all, seed {seed}");
                world.disks = whole;
            }
        });
        is_well(&mut life);
    }
    let counts = [spoiled, damaged, promised];
    assert!(spoiled > 50 && damaged > 10 && promised > 50, "{counts:?}");
}
