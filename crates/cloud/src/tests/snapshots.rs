//! Lives with snapshots: made, kept through all that may happen, and dropped.
//!
//! How: lives of a volume in the simulated world, beside what it was when each snapshot was made.

use super::lives::{JOURNAL, Life, NODE};
use crate::action::{Condition, End, FaultKind, Request, Tag};
use crate::clone::{CloneObjects, ClonePlan};
use crate::restore::{RestoreError, Restored};
use crate::segment::VolumeUuid;
use crate::simulated::{SimDisks as Disks, SimFaults as Faults, SimWorld as World};
use crate::snapshot::{CloneMark, SNAPSHOTS_MAX, SnapshotChange, SnapshotError, SnapshotId};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use layby_types::Nanos;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// What a life knows of its snapshots.
#[derive(Default)]
pub(super) struct Snapshots {
    /// One of so many steps asks for one or drops one; never where it is zero.
    pub(super) every: u64,
    next: u64,
    /// Asked for: its name, and how many writes it must and may hold.
    asked: BTreeMap<u64, (String, RangeInclusive<usize>)>,
    dropping: BTreeMap<u64, String>,
    /// Those that were said to exist, block by block.
    held: BTreeMap<String, Vec<Vec<u8>>>,
}

/// Snapshots of a life at most: beyond that, one is dropped first.
const HELD_MAX: usize = 5;

impl Life {
    pub(super) fn load_snapshots(&mut self) {
        let every = self.snapshots.every;
        if every == 0 || !self.world.rng.chance(1, every) {
            return;
        }
        match self.snapshots.held.len() >= HELD_MAX || self.world.rng.chance(1, 4) {
            true => self.drop_one(),
            false => drop(self.ask_snapshot()),
        }
    }

    fn ask_snapshot(&mut self) -> u64 {
        let id = self.token();
        let name = format!("s{}", self.snapshots.next);
        self.snapshots.next += 1;
        let may = self.ended()..=self.submitted();
        self.snapshots.asked.insert(id, (name.clone(), may));
        self.volume.change_snapshots(id, SnapshotChange::Make { name, now_unix: 7 });
        id
    }

    fn drop_one(&mut self) {
        let count = self.snapshots.held.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.world.rng.below(count) as usize;
        let name = self.snapshots.held.keys().nth(at).expect("it was counted").clone();
        self.snapshots.held.remove(&name);
        let id = self.token();
        self.snapshots.dropping.insert(id, name.clone());
        self.volume.change_snapshots(id, SnapshotChange::Drop { name });
    }

    fn open_snapshot(&self, name: &str) -> Result<Restored, RestoreError> {
        let store = &self.world.store;
        let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
        Restored::open_snapshot(&mut fetch, name)
    }

    fn snapshot_state(&self, name: &str) -> Vec<Vec<u8>> {
        let found = self.open_snapshot(name);
        self.state_of(&found.unwrap_or_else(|error| panic!("{error}: {}", self.line)))
    }

    pub(super) fn collect_snapshots(&mut self) {
        while let Some((id, result)) = self.volume.poll_snapshots() {
            assert_eq!(result, Ok(()), "{}", self.line);
            if let Some((name, mut may)) = self.snapshots.asked.remove(&id) {
                let state = self.snapshot_state(&name);
                let is_exact = may.any(|count| self.is_prefix(&state, count));
                assert!(is_exact, "{name} is not what was asked for: {}", self.line);
                self.snapshots.held.insert(name, state);
            } else {
                let name = self.snapshots.dropping.remove(&id).expect("it was asked for");
                let found = self.open_snapshot(&name).err();
                assert!(matches!(found, Some(RestoreError::NoSnapshot(..))), "{}", self.line);
            }
        }
    }

    /// Nobody answers what was asked before a power cut: it is done or not.
    pub(super) fn forget_asked(&mut self) {
        self.snapshots.asked.clear();
        self.snapshots.dropping.clear();
    }

    /// Every snapshot that was said to exist is what it was.
    fn verify_snapshots(&self) {
        for (name, state) in &self.snapshots.held {
            assert!(self.snapshot_state(name) == *state, "{name} has changed: {}", self.line);
        }
    }

    fn superblock(&self) -> Superblock {
        let (bytes, _) = self.world.store.get(SUPERBLOCK_KEY, None).expect("there is one");
        Superblock::decode(&bytes).expect("it is whole")
    }

    /// Lives on until all that was asked of snapshots has ended.
    fn end_changes(&mut self) {
        for _ in 0..20_000 {
            if self.snapshots.asked.is_empty() && self.snapshots.dropping.is_empty() {
                return;
            }
            self.load(1);
        }
        panic!("changes of snapshots do not end: {}", self.line);
    }

    /// Drops all snapshots that the store has, those that nobody was told of included.
    fn drop_all(&mut self) {
        self.snapshots.every = 0;
        self.end_changes();
        for snapshot in self.superblock().snapshots {
            let id = self.token();
            let name = snapshot.name;
            self.snapshots.held.remove(&name);
            self.snapshots.dropping.insert(id, name.clone());
            self.volume.change_snapshots(id, SnapshotChange::Drop { name });
        }
        self.end_changes();
        assert_eq!(self.superblock().snapshots, Vec::new(), "{}", self.line);
    }
}

/// Goal: a snapshot holds what was acknowledged before it and nothing that came after it, whatever
/// fails, is written, cleaned or taken meanwhile; once dropped, what it kept goes. Method: lives
/// with faults, power cuts and lost disks; the store alone gives each snapshot back.
#[test]
fn snapshots_are_what_they_were() {
    let (mut kept, mut moved) = (0, 0);
    for seed in 6000..6040 {
        let mut life = Life::new(seed);
        life.snapshots.every = 60;
        for round in 0..4 {
            let (errors, lost_replies) = (life.world.rng.below(20), life.world.rng.below(20));
            let conflicts = life.world.rng.below(10);
            life.world.faults = Faults { errors, lost_replies, conflicts, ..Faults::default() };
            let steps = 200 + life.world.rng.below(1500);
            life.load(steps);
            life.verify_snapshots();
            match life.world.rng.below(4) {
                0 => life.settle(),
                1 => drop(life.lose_disks(VolumeUuid([round + 20; 16]))),
                _ => life.crash(),
            }
            life.verify_snapshots();
        }
        life.settle();
        life.verify_snapshots();
        let status = life.volume.status();
        (kept, moved) = (kept + status.kept_bytes, moved + status.counters.bytes_moved);
        life.drop_all();
        life.world.faults = Faults::default();
        for _ in 0..6 {
            life.load(300);
            life.settle();
        }
        let status = life.volume.status();
        assert_eq!(status.kept_bytes, 0, "{}", life.line);
        let objects = life.world.store.objects.keys();
        let snapshots = objects.filter(|key| key.starts_with("snapshots/")).count();
        assert_eq!(snapshots, 0, "{}", life.line);
        let spare = status.segment_blocks_bytes - status.live_bytes;
        let bound = status.live_bytes / 4 + 4 * (128 << 10);
        assert!(spare <= bound, "{status:?}: {}", life.line);
    }
    assert!(kept > 0 && moved > 0, "nothing was kept or moved: {kept}, {moved}");
}

/// Goal: cleaning goes on beside a snapshot and does not run after what the snapshot keeps. Method:
/// a snapshot of a full volume, then overwrites for long; what is stored beyond the snapshot's own
/// is bounded, and bytes moved are few.
#[test]
fn cleaning_leaves_what_snapshots_keep() {
    let mut life = Life::new(6100);
    life.load(2000);
    life.settle();
    life.ask_snapshot();
    life.settle();
    let before = life.volume.status();
    for _ in 0..20 {
        life.volume.set_draining(false);
        life.load(500);
        life.settle();
    }
    life.verify_snapshots();
    let status = life.volume.status();
    assert!(status.kept_bytes > 0, "{status:?}");
    assert!(status.kept_bytes <= before.segment_blocks_bytes, "{status:?}");
    let spare = status.segment_blocks_bytes - status.live_bytes - status.kept_bytes;
    let bound = status.live_bytes / 4 + 4 * (128 << 10);
    assert!(spare <= bound, "{status:?}");
    assert!(status.counters.segments_deleted > 50, "{status:?}");
}

/// Goal: a node that lost its volume neither makes a snapshot nor drops one, and says so. Method:
/// both nodes ask for both, over one store.
#[test]
fn a_fenced_node_has_no_snapshots() {
    for seed in 6200..6230 {
        let mut life = Life::new(seed);
        life.load(600);
        life.settle();
        life.ask_snapshot();
        life.settle();
        let mut old = life.lose_disks(VolumeUuid([8; 16]));
        let make = SnapshotChange::Make { name: "stolen".to_owned(), now_unix: 7 };
        old.change_snapshots(1 << 50, make);
        old.change_snapshots(1 << 51, SnapshotChange::Drop { name: "s0".to_owned() });
        let mut world = World::new(seed, Disks::new(JOURNAL, (Vec::new(), Vec::new())));
        let mut ends = BTreeMap::new();
        for _ in 0..300 {
            std::mem::swap(&mut world.store, &mut life.world.store);
            world.take(old.take_actions());
            let end = world.step();
            std::mem::swap(&mut world.store, &mut life.world.store);
            if let Some((id, end)) = end {
                old.on_end(id, end);
            }
            old.on_tick(life.now);
            ends.extend(std::iter::from_fn(|| old.poll_snapshots()));
            life.load(2);
        }
        assert_eq!(ends.len(), 2, "{}", life.line);
        let is_lost = |end: &Result<(), SnapshotError>| matches!(end, Err(SnapshotError::Lost(_)));
        assert!(ends.values().all(is_lost), "{ends:?}: {}", life.line);
        life.settle();
        let names: Vec<String> =
            life.superblock().snapshots.into_iter().map(|snapshot| snapshot.name).collect();
        assert_eq!(names, ["s0"], "{}", life.line);
        life.verify_snapshots();
    }
}

/// Goal: a mark that another node sets or takes away counts at the next drop, though the base's own
/// node was told nothing of it. Method: the superblock replaced behind its back, both ways.
#[test]
fn marks_of_other_nodes_count() {
    let mut life = Life::new(6250);
    life.load(300);
    life.settle();
    life.ask_snapshot();
    life.settle();
    let mark = CloneMark { url: "mem://far".to_owned(), name: "far".to_owned() };
    let drop = || SnapshotChange::Drop { name: "s0".to_owned() };
    let snapshot = life.snapshot_id("s0");
    life.replace(|block| block.marked(&snapshot, &mark).expect("it is there"));
    let refused = life.end_of(drop());
    assert!(matches!(refused, Err(SnapshotError::HasClones(_))), "{refused:?}");
    assert_eq!(life.superblock().snapshots[0].clones, [mark]);
    life.replace(|block| block.unmarked("mem://far"));
    life.change(drop());
    assert_eq!(life.superblock().snapshots, []);
}

/// Goal: a clone is marked at the snapshot that it was made from and at no other one of that name:
/// what the other one does not keep, the clone would lose. Method: a snapshot is dropped and made
/// anew under its name, or the volume at the place is another; marks by the volume's session, asked
/// for before, with and behind the drop, and by another node.
#[test]
fn a_clone_is_marked_at_its_own_snapshot() {
    let mark = CloneMark { url: "mem://far".to_owned(), name: "far".to_owned() };
    let drop = || SnapshotChange::Drop { name: "s0".to_owned() };
    let make = || SnapshotChange::Make { name: "s0".to_owned(), now_unix: 8 };
    for seed in 6260..6270 {
        let mut life = Life::new(seed);
        life.load(300);
        life.settle();
        life.change(make());
        let old = life.snapshot_id("s0");
        let change = |snapshot: &SnapshotId| SnapshotChange::Mark {
            snapshot: snapshot.clone(),
            clone: mark.clone(),
        };
        life.change(drop());
        life.load(100);
        life.settle();
        life.change(make());
        let new = life.snapshot_id("s0");
        assert!(old.key != new.key, "{}", life.line);
        let before = life.superblock();
        let elsewhere = SnapshotId { volume: VolumeUuid([9; 16]), ..new.clone() };
        for other in [&old, &elsewhere] {
            assert_eq!(life.end_of(change(other)), Err(SnapshotError::Absent), "{}", life.line);
            assert_eq!(before.marked(other, &mark), Err(SnapshotError::Absent), "{}", life.line);
            assert!(before.snapshot(other).is_none(), "{}", life.line);
        }
        assert_eq!(life.superblock().snapshots, before.snapshots, "{}", life.line);
        // It is not known yet what the store has.
        life.crash();
        assert_eq!(life.end_of(change(&old)), Err(SnapshotError::Absent), "{}", life.line);
        life.change(change(&new));
        let marked = life.superblock();
        let marked = marked.snapshot(&new).expect("it stays");
        assert_eq!(marked.clones, std::slice::from_ref(&mark), "{}", life.line);
        life.change(SnapshotChange::Unmark { name: "s0".to_owned(), url: mark.url.clone() });
    }
}

/// Goal: what cannot be is refused with the reason and changes nothing. Method: bad names, a name
/// twice, one too many, one that is not there, a volume that stops.
#[test]
fn impossible_snapshots_are_refused() {
    let mut life = Life::new(6300);
    let end = |life: &mut Life, change: SnapshotChange| life.end_of(change);
    let make = |name: &str| SnapshotChange::Make { name: name.to_owned(), now_unix: 7 };
    let drop = |name: &str| SnapshotChange::Drop { name: name.to_owned() };
    assert_eq!(end(&mut life, drop("a")), Err(SnapshotError::Absent), "asked before the opening");
    assert_eq!(end(&mut life, make("a/b")), Err(SnapshotError::Name));
    assert_eq!(end(&mut life, make("a")), Ok(()));
    assert_eq!(end(&mut life, make("a")), Err(SnapshotError::Exists));
    assert_eq!(end(&mut life, drop("a")), Ok(()));
    assert_eq!(end(&mut life, drop("a")), Err(SnapshotError::Absent));
    for number in 0..SNAPSHOTS_MAX {
        assert_eq!(end(&mut life, make(&number.to_string())), Ok(()));
    }
    assert_eq!(end(&mut life, make("more")), Err(SnapshotError::Full));
    assert_eq!(life.superblock().snapshots.len(), SNAPSHOTS_MAX);
    life.volume.stop_waiting();
    assert_eq!(end(&mut life, drop("1")), Err(SnapshotError::Closed));
}

/// Goal: marks of a clone that are taken away again and again while the link is cut are one change,
/// whose end all that still wait for it get; too many others are refused for what they are, and
/// full of snapshots is no volume that has one. Method: the same removal of a mark many times, most
/// of them given up; others beside it until one is refused; then the link is back.
#[test]
fn changes_that_are_alike_are_one() {
    let mut life = Life::new(6360);
    life.load(300);
    life.settle();
    life.ask_snapshot();
    life.settle();
    life.world.faults.is_cut = true;
    let unmark =
        |url: String| SnapshotChange::Unmark { name: "s0".to_owned(), url: format!("mem://{url}") };
    let ids: Vec<u64> = (0..3 * SNAPSHOTS_MAX).map(|_| life.token()).collect();
    let (waiting, gone) = ids.split_at(2);
    for id in waiting {
        life.volume.change_snapshots(*id, unmark("gone".to_owned()));
    }
    for id in gone {
        life.volume.change_snapshots(*id, unmark("gone".to_owned()));
        life.volume.withdraw_snapshot(*id);
    }
    assert_eq!(life.volume.poll_snapshots(), None, "they wait for the link");
    let others: Vec<u64> = (0..SNAPSHOTS_MAX).map(|_| life.token()).collect();
    for id in &others {
        life.volume.change_snapshots(*id, unmark(id.to_string()));
    }
    let refused: Vec<_> = std::iter::from_fn(|| life.volume.poll_snapshots()).collect();
    let last = &others[others.len() - waiting.len()..];
    let expected: Vec<_> = last.iter().map(|id| (*id, Err(SnapshotError::Pending))).collect();
    assert_eq!(refused, expected);
    life.world.faults.is_cut = false;
    let mut ends = BTreeMap::new();
    for _ in 0..5000 {
        life.turn_later();
        ends.extend(std::iter::from_fn(|| life.volume.poll_snapshots()));
    }
    let taken = others[..others.len() - waiting.len()].iter();
    let expected = waiting.iter().chain(taken).map(|id| (*id, Ok(())));
    assert_eq!(ends, expected.collect(), "{}", life.line);
}

/// Goal: of a mark and its removal the later one counts, where the node gave the earlier one up
/// before the store had it. Method: both orders, with the link cut, and back after the second one.
#[test]
fn a_change_that_was_given_up_undoes_no_later_one() {
    let mark = CloneMark { url: "mem://far".to_owned(), name: "far".to_owned() };
    for is_marked in [true, false] {
        let mut life = Life::new(6370);
        life.load(300);
        life.settle();
        life.ask_snapshot();
        life.settle();
        let snapshot = life.snapshot_id("s0");
        let add = || SnapshotChange::Mark { snapshot: snapshot.clone(), clone: mark.clone() };
        let remove = || SnapshotChange::Unmark { name: "s0".to_owned(), url: mark.url.clone() };
        let (given_up, later) = if is_marked { (remove(), add()) } else { (add(), remove()) };
        if is_marked {
            life.change(add());
        }
        life.world.faults.is_cut = true;
        let id = life.token();
        life.volume.change_snapshots(id, given_up);
        (0..50).for_each(|_| life.turn_later());
        life.volume.withdraw_snapshot(id);
        assert_eq!(life.volume.poll_snapshots(), None);
        let id = life.token();
        life.volume.change_snapshots(id, later);
        life.world.faults.is_cut = false;
        (0..5000).for_each(|_| life.turn_later());
        assert_eq!(life.volume.poll_snapshots(), Some((id, Ok(()))), "{}", life.line);
        let clones = life.superblock().snapshots[0].clones.len();
        assert_eq!(clones, usize::from(is_marked), "{}", life.line);
    }
}

/// Goal: a snapshot that nobody waits for any more is not made, and holds nothing up; one that has
/// begun is made all the same. Method: withdrawn while the link is cut; and at every step of one.
#[test]
fn a_snapshot_that_nobody_waits_for_is_not_made() {
    let mut life = Life::new(6350);
    life.load(300);
    life.settle();
    life.volume.set_draining(false);
    life.world.faults.is_cut = true;
    life.load(50);
    let id = life.ask_snapshot();
    life.load(50);
    life.volume.withdraw_snapshot(id);
    life.forget_asked();
    life.settle();
    assert_eq!(life.superblock().snapshots, [], "it was withdrawn");
    let mut made = 0;
    for steps in 0..40 {
        let mut life = Life::new(6351 + steps);
        life.load(300);
        let id = life.ask_snapshot();
        life.load(steps);
        life.volume.withdraw_snapshot(id);
        life.settle();
        let names = life.superblock().snapshots.len();
        // Whoever was not told finds it whole, or not at all.
        assert_eq!(life.snapshots.held.len(), names, "{steps}");
        life.verify_snapshots();
        made += names;
    }
    assert!((1..40).contains(&made), "{made} of 40 were made");
}

/// Goal: what an earlier session put for a snapshot that was never named is swept away, and what is
/// named stays, and what lies below is another volume's. Method: objects of each, a restart.
#[test]
fn forgotten_snapshot_objects_are_swept() {
    let mut life = Life::new(6400);
    life.load(300);
    life.settle();
    life.ask_snapshot();
    life.settle();
    let named = life.superblock().snapshots[0].key();
    let forgotten = "snapshots/0000000000000001-00000001-00000009";
    let condition = Condition::Create;
    let beside = "other/segments/0000000000000001-00000000";
    for key in [forgotten, beside] {
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), condition.clone());
        life.world.store.perform(&Request::Put { key: key.to_owned(), bytes, condition });
    }
    life.crash();
    life.settle();
    assert!(life.world.store.get(&named, None).is_ok());
    assert!(life.world.store.get(beside, None).is_ok(), "it is another volume's");
    let found = life.world.store.get(forgotten, None).expect_err("it was swept");
    assert_eq!(found.kind, FaultKind::NotFound);
    life.verify_snapshots();
}

/// Goal: a clone holds its snapshot and then what was written to it, through faults, power cuts and
/// lost disks; it takes nothing from its base, whose snapshot stays while it is marked. Method:
/// a clone of a life's snapshot lives in a store of its own beside it, and a clone of that clone;
/// the base's objects are compared, the base writes on.
#[test]
fn clones_share_and_never_touch_their_base() {
    for seed in 6500..6520 {
        let mut base = Life::new(seed);
        base.load(1000);
        base.settle();
        base.ask_snapshot();
        base.settle();
        let mark = CloneMark { url: "mem://clone".to_owned(), name: "clone".to_owned() };
        let snapshot = base.snapshot_id("s0");
        base.change(SnapshotChange::Mark { snapshot, clone: mark.clone() });
        let dropped = base.end_of(SnapshotChange::Drop { name: "s0".to_owned() });
        assert!(matches!(dropped, Err(SnapshotError::HasClones(_))), "{dropped:?}");
        let mut clone = base.clone_of("s0");
        let before = base.world.store.objects.clone();
        assert!(clone.read_all() == base.snapshots.held["s0"], "{}", base.line);
        clone.snapshots.every = 80;
        clone.world.faults =
            Faults { errors: 10, lost_replies: 10, conflicts: 5, ..Faults::default() };
        for round in 0..3 {
            clone.load(800);
            match round {
                1 => drop(clone.lose_disks(VolumeUuid([30; 16]))),
                _ => clone.crash(),
            }
            clone.verify_snapshots();
        }
        clone.settle();
        let theirs = &clone.world.store.base.as_ref().expect("it has a base").objects;
        assert!(*theirs == before, "the clone changed its base: {}", base.line);
        for _ in 0..3 {
            base.volume.set_draining(false);
            base.load(800);
            base.settle();
        }
        base.verify_snapshots();
        let unmark = SnapshotChange::Unmark { name: "s0".to_owned(), url: mark.url };
        base.change(unmark);
        base.snapshots.held.remove("s0");
        base.change(SnapshotChange::Drop { name: "s0".to_owned() });
    }
}

/// Goal: of two clones that are made at one place at once, the one whose superblock came first is
/// whole, and what the other one put goes. Method: the first objects of both in either order, with
/// a file beside the other's checkpoint; the first one lives on, over restarts.
#[test]
fn two_clones_at_one_place_leave_one_whole() {
    let mut base = Life::new(6650);
    base.load(600);
    base.settle();
    base.ask_snapshot();
    base.settle();
    let own = base.superblock().volume.parse().expect("its own words");
    let own = base.clone_objects("s0", own);
    let other = base.clone_objects("s0", VolumeUuid([9; 16]));
    for is_first in [true, false] {
        let mut objects = vec![
            (&own.checkpoint_key[..], own.checkpoint.clone()),
            (&other.checkpoint_key[..], other.checkpoint.clone()),
        ];
        if !is_first {
            objects.reverse();
        }
        objects.push((SUPERBLOCK_KEY, own.superblock.clone()));
        objects.push((SUPERBLOCK_KEY, other.superblock.clone()));
        let cut_short = format!("{}#7", other.checkpoint_key);
        objects.push((&cut_short, vec![1]));
        let mut clone = base.clone_with("s0", objects);
        assert!(clone.read_all() == base.snapshots.held["s0"], "{}", base.line);
        clone.settle();
        let has = |life: &Life, key: &str| life.world.store.get(key, None).is_ok();
        assert!(has(&clone, &own.checkpoint_key), "the superblock names it");
        assert!(!has(&clone, &other.checkpoint_key) && !has(&clone, &cut_short), "{}", base.line);
        clone.load(300);
        clone.crash();
        clone.settle();
    }
}

/// Goal: what began as a clone of a volume that was never written can be cloned like any other
/// (each of its snapshots was called damaged: its map did not name a base of which it had nothing).
/// Method: a chain of clones from an empty volume, the first one empty or not; each reads as the
/// snapshot that it began at, and lives on.
#[test]
fn clones_of_an_empty_volumes_clone_are_clones() {
    for (seed, steps) in [(6600, 0), (6601, 300)] {
        let mut last = Life::new(seed);
        last.settle();
        for depth in 0..3 {
            last.ask_snapshot();
            last.settle();
            let name = last.snapshots.held.keys().next().expect("it was made").clone();
            let mut clone = last.clone_of(&name);
            assert_eq!(clone.superblock().bases.len(), depth + 1, "{}", last.line);
            assert!(clone.read_all() == last.snapshots.held[&name], "{}", last.line);
            clone.load(steps);
            clone.settle();
            clone.crash();
            clone.settle();
            last = clone;
        }
    }
}

impl Life {
    /// Which snapshot has this name now.
    pub(super) fn snapshot_id(&self, name: &str) -> SnapshotId {
        let block = self.superblock();
        let made = block.snapshots.iter().find(|made| made.name == name).expect("it is there");
        made.id_in(block.volume.parse().expect("its own words"))
    }

    /// The first objects of a clone with this number.
    fn clone_objects(&self, name: &str, volume: VolumeUuid) -> CloneObjects {
        let block = self.superblock();
        let snapshot = block.snapshots.iter().find(|made| made.name == name).expect("it is there");
        let (map, _) = self.world.store.get(&snapshot.key(), None).expect("it is whole");
        let plan = ClonePlan {
            volume,
            name: "clone".to_owned(),
            url: "mem://clone".to_owned(),
            node: NODE,
            size_bytes: block.size_bytes,
            base_url: "mem://base".to_owned(),
        };
        plan.objects(&block, snapshot, &map).expect("it can be cloned")
    }

    /// A clone of a snapshot, as a life over a store of its own that sees this one's.
    fn clone_of(&self, name: &str) -> Life {
        let volume = self.superblock().volume.parse().expect("its own words");
        let objects = self.clone_objects(name, volume);
        let checkpoint = (&objects.checkpoint_key[..], objects.checkpoint);
        self.clone_with(name, vec![checkpoint, (SUPERBLOCK_KEY, objects.superblock)])
    }

    /// The same, over these objects.
    fn clone_with(&self, name: &str, objects: Vec<(&str, Vec<u8>)>) -> Life {
        let mut life = Life::new(self.superblock().revision);
        for (key, bytes) in objects {
            let (key, bytes, condition) = (key.to_owned(), bytes.into(), Condition::Create);
            life.world.store.perform(&Request::Put { key, bytes, condition });
        }
        life.world.store.base = Some(Box::new(self.world.store.clone()));
        life.before = Some(self.snapshots.held[name].clone());
        life
    }

    /// Replaces the superblock as another node would.
    fn replace(&mut self, change: impl Fn(&Superblock) -> Superblock) {
        let (bytes, version) = self.world.store.get(SUPERBLOCK_KEY, None).expect("there is one");
        let block = Superblock::decode(&bytes).expect("it is whole");
        let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), change(&block).encode().into());
        let condition = Condition::Replace(Tag(version.to_string()));
        let end = self.world.store.perform(&Request::Put { key, bytes, condition });
        assert!(matches!(end, End::Stored(_)), "{end:?}");
    }

    /// One step of the world, and what the volume makes of it.
    fn turn(&mut self) {
        let actions = self.volume.take_actions();
        self.world.take(actions);
        if let Some((id, end)) = self.world.step() {
            self.volume.on_end(id, end);
        }
    }

    /// The same, a while later: what rests goes on.
    fn turn_later(&mut self) {
        self.turn();
        self.now = Nanos(self.now.0 + 10_000_000);
        self.volume.on_tick(self.now);
    }

    /// Makes a change and waits for its end.
    pub(super) fn end_of(&mut self, change: SnapshotChange) -> Result<(), SnapshotError> {
        let id = self.token();
        self.volume.change_snapshots(id, change);
        for _ in 0..5000 {
            self.turn();
            if let Some((ended, result)) = self.volume.poll_snapshots() {
                assert_eq!(ended, id, "{}", self.line);
                return result;
            }
        }
        panic!("a change does not end: {}", self.line);
    }

    fn change(&mut self, change: SnapshotChange) {
        assert_eq!(self.end_of(change), Ok(()), "{}", self.line);
    }
}
