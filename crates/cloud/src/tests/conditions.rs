//! Stores that keep the conditions of puts, stores that ignore them, and what looks find.
//!
//! How: whole volumes over a simulated store, alone, after each other and beside each other.

use super::lives::{JOURNAL, Life, NODE, open, plan};
use crate::action::{Condition, End, Request, Tag};
use crate::segment::VolumeUuid;
use crate::simulated::{SimDisks, SimFaults, SimStore, SimWorld};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::volume::{ConditionalPuts, Link, Plan, Volume, create};
use layby_types::{BackingOperation, Nanos};

const OTHER: VolumeUuid = VolumeUuid([8; 16]);

fn ignoring() -> SimStore {
    let mut store = SimStore::default();
    store.ignores_conditions = true;
    store
}

fn superblock(store: &SimStore) -> Option<Superblock> {
    let (bytes, _) = store.get(SUPERBLOCK_KEY, None).ok()?;
    Some(Superblock::decode(&bytes).expect("it is whole"))
}

fn probes(store: &SimStore) -> usize {
    store.objects.keys().filter(|key| key.starts_with("probes/")).count()
}

/// A node beside others at the same store: what is on its way, and its volume.
struct Node {
    world: SimWorld,
    volume: Volume<Vec<u8>>,
    now: Nanos,
}

impl Node {
    fn new(seed: u64, node: VolumeUuid, store: &SimStore) -> Node {
        Node::of(seed, Plan { takeover: true, ..plan(node) }, store)
    }

    fn of(seed: u64, plan: Plan, store: &SimStore) -> Node {
        let disks = SimDisks::new(JOURNAL, create(&plan, JOURNAL, seed));
        let mut world = SimWorld::new(seed, disks);
        world.store.ignores_conditions = store.ignores_conditions;
        let volume = open(&mut world, plan, Nanos::ZERO);
        Node { world, volume, now: Nanos::ZERO }
    }

    /// Something of it goes on at a store that others use, too.
    fn step(&mut self, store: &mut SimStore) {
        std::mem::swap(store, &mut self.world.store);
        self.world.take(self.volume.take_actions());
        let end = self.world.step();
        std::mem::swap(store, &mut self.world.store);
        match end {
            Some((id, end)) => self.volume.on_end(id, end),
            None => {
                self.now = self.now.saturating_add(Nanos::from_millis(20));
                self.volume.on_tick(self.now);
            }
        }
    }

    fn is_up(&self) -> bool {
        self.volume.status().link == Link::Up
    }
}

/// Goal: a store that ignores conditions is refused with the way out, before anything of the volume
/// is put; the probe leaves nothing. Method: a volume that needs conditions, errors and lost
/// answers, until it has come to rest; 40 seeds.
#[test]
fn a_store_that_ignores_conditions_is_refused() {
    for seed in 0..40 {
        let plan = plan(NODE);
        let disks = SimDisks::new(JOURNAL, create(&plan, JOURNAL, seed));
        let mut world = SimWorld::new(seed, disks);
        let mut volume = open(&mut world, plan, Nanos::ZERO);
        world.store.ignores_conditions = true;
        world.faults = SimFaults { errors: 20, lost_replies: 20, ..SimFaults::default() };
        let mut now = Nanos::ZERO;
        for _ in 0..2000 {
            world.take(volume.take_actions());
            match world.step() {
                Some((id, end)) => volume.on_end(id, end),
                None => {
                    now = now.saturating_add(Nanos::from_millis(100));
                    volume.on_tick(now);
                }
            }
        }
        let Link::Lost(why) = volume.status().link else { panic!("it is served; seed {seed}") };
        assert!(
            why.contains("ignores the conditions") && why.contains("conditional_puts"),
            "{why}"
        );
        assert!(superblock(&world.store).is_none(), "seed {seed}");
        assert_eq!(world.store.objects.len(), 0, "the probe is gone; seed {seed}");
    }
}

/// Goal: a store that refuses each put on a condition, though nothing has changed, is asked at
/// growing intervals, and the fault is named; once it keeps conditions again, it gets all. Method:
/// a volume that is written while all puts conflict for ten minutes; requests are counted.
#[test]
fn conditions_that_never_hold_are_asked_seldom() {
    for seed in 0..10 {
        let mut life = Life::new(seed);
        life.load(40);
        life.sync_all();
        life.settle();
        life.world.faults = SimFaults { conflicts: 100, ..SimFaults::default() };
        let buffer = vec![7; super::lives::BLOCK as usize];
        let write = BackingOperation::Write { offset: 0, buffer, durable: true };
        life.volume.submit(1 << 50, write);
        assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
        let (before, begun) = (life.volume.status().counters.requests, life.now);
        while life.now.since(begun) < Nanos::from_secs(600) {
            life.tick();
        }
        let status = life.volume.status();
        assert!(!life.volume.is_lost(), "nothing has changed, seed {seed}");
        let asked = life.volume.status().counters.requests - before;
        assert!(asked < 600, "{asked} requests in ten minutes, seed {seed}");
        let (cause, _) = status.last_fault.expect("it is named");
        assert!(cause.contains("times in a row"), "{cause}");
        life.settle();
        assert!(life.volume.is_drained(), "the store has all, seed {seed}");
    }
}

/// Goal: a new volume whose puts on a condition are refused from the first on, though nothing has
/// changed, asks at growing intervals and names the fault; it opens once conditions are kept.
/// Method: a store that refuses each put, asked by the probe, and by the first superblock where the
/// store is known; one whose versions a proxy changes; requests of ten minutes are counted.
#[test]
fn conditions_that_never_held_are_asked_seldom() {
    const CASES: [(&str, ConditionalPuts, u64); 3] = [
        ("probes/", ConditionalPuts::Unknown, 100),
        ("superblock", ConditionalPuts::Kept, 100),
        ("probes/", ConditionalPuts::Unknown, 0),
    ];
    for (seed, (key, puts, conflicts)) in (0..10).flat_map(|seed| CASES.map(|case| (seed, case))) {
        let mut store = SimStore::default();
        store.changes_tags = conflicts == 0;
        let mut node = Node::of(seed, Plan { puts, ..plan(NODE) }, &store);
        node.world.faults = SimFaults { conflicts, ..SimFaults::default() };
        let case = format!("{key} {conflicts}, seed {seed}");
        while node.now < Nanos::from_secs(600) {
            node.step(&mut store);
            let asked = node.volume.status().counters.requests;
            assert!(asked < 600, "{asked} requests within {:?}, {case}", node.now);
        }
        let status = node.volume.status();
        assert!(!node.volume.is_lost(), "nothing has changed, {case}: {:?}", status.link);
        let (cause, _) = status.last_fault.expect("it is named");
        assert!(cause.contains(key) && cause.contains("times in a row"), "{case}: {cause}");
        node.world.faults = SimFaults::default();
        store.changes_tags = false;
        (0..4000).for_each(|_| node.step(&mut store));
        assert!(node.is_up(), "{case}: {:?}", node.volume.status().link);
    }
}

/// Goal: a node that takes a volume comes through beside an owner that replaces the superblock all
/// the time: refusals that have a reason are no cause for pauses. Method: an owner that writes and
/// drains without end, four steps of it for each of the other node's; that one's time is counted.
#[test]
fn a_claim_comes_through_beside_a_busy_owner() {
    for seed in 0..20 {
        let mut store = SimStore::default();
        let mut owner = Node::new(seed, NODE, &store);
        while !owner.is_up() {
            owner.step(&mut store);
        }
        owner.volume.set_draining(true);
        let mut taker = Node::new(seed + 100, OTHER, &store);
        let mut token = 0;
        while !taker.is_up() {
            let (offset, buffer) = (0, vec![token as u8; super::lives::BLOCK as usize]);
            let write = BackingOperation::Write { offset, buffer, durable: false };
            owner.volume.submit(token, write);
            while owner.volume.poll().is_some() {}
            token += 1;
            (0..4).for_each(|_| owner.step(&mut store));
            taker.step(&mut store);
            let waited = taker.now.as_secs_f64();
            assert!(waited < 5.0, "it has waited for {waited} s, seed {seed}");
            assert!(token < 20_000, "it never comes through, seed {seed}");
        }
    }
}

/// Goal: the probe finds a store that keeps conditions, whatever answers are lost, and leaves
/// nothing there, also what a power cut left. Method: lives with faults, cut at random moments of
/// the first steps; 100 seeds.
#[test]
fn the_probe_leaves_nothing() {
    let mut cut = 0;
    for seed in 0..100 {
        let mut life = Life::new(seed);
        let (errors, lost_replies, conflicts) = (20, 20, 5);
        life.world.faults = SimFaults { errors, lost_replies, conflicts, ..SimFaults::default() };
        life.load(seed % 23);
        cut += probes(&life.world.store);
        life.world.faults.is_cut = false;
        life.crash();
        life.settle();
        assert_eq!(probes(&life.world.store), 0, "seed {seed}");
    }
    assert!(cut > 10, "{cut} power cuts came while a probe was there");
}

/// Goal: over a store that ignores conditions, where that is accepted, nothing synced is lost in
/// power cuts and what the store has is a prefix. Method: lives with faults, cuts, and another node
/// that takes the volume.
#[test]
fn looks_stand_for_conditions() {
    for seed in 0..60 {
        let mut life = Life::over(ignoring(), seed);
        for round in 0..3 {
            let (errors, lost_replies) = (life.world.rng.below(30), life.world.rng.below(20));
            life.world.faults = SimFaults { errors, lost_replies, ..SimFaults::default() };
            let steps = 100 + life.world.rng.below(1000);
            life.load(steps);
            match life.world.rng.below(3) {
                0 => life.settle(),
                1 if round == 1 => drop(life.lose_disks(OTHER)),
                _ => life.crash(),
            }
        }
        life.settle();
        assert_eq!(life.ended(), life.submitted(), "seed {seed}");
    }
}

/// Goal: of two nodes that create or take a volume at once one has it in the end, and the other
/// says so; with conditions and without. Method: two nodes step in turn by chance until both have
/// come to rest; 100 seeds each.
#[test]
fn of_two_nodes_one_has_the_volume() {
    for seed in 0..200 {
        let mut store = if seed % 2 == 0 { SimStore::default() } else { ignoring() };
        let mut nodes = [Node::new(seed, NODE, &store), Node::new(seed + 1000, OTHER, &store)];
        let mut rng = layby_types::Rng::new(seed);
        for _ in 0..6000 {
            nodes[rng.below(2) as usize].step(&mut store);
        }
        for node in &mut nodes {
            node.volume.look();
            (0..200).for_each(|_| node.step(&mut store));
        }
        let up: Vec<usize> = (0..2).filter(|index| nodes[*index].is_up()).collect();
        assert_eq!(up.len(), 1, "{:?}; seed {seed}", [0, 1].map(|n| nodes[n].volume.status().link));
        let owner = superblock(&store).expect("one has put it").node;
        assert_eq!(owner, [NODE, OTHER][up[0]].to_string(), "seed {seed}");
    }
}

/// Has a volume put superblocks twice; what the store had after the first time, and has now.
fn put_twice(life: &mut Life) -> (Vec<u8>, Superblock) {
    life.load(300);
    life.settle();
    let before = life.world.store.objects[SUPERBLOCK_KEY].0.to_vec();
    life.load(300);
    life.settle();
    (before, superblock(&life.world.store).expect("it is there"))
}

/// Goal: a look fences on a superblock of the same epoch that this session did not put, on its own
/// in other words, and says what each side has where the store went back in time. Method: objects
/// put past the store's conditions.
#[test]
fn a_look_knows_its_own_superblock() {
    for case in ["other node", "other words", "older"] {
        let mut life = Life::new(7900);
        let (before, own) = put_twice(&mut life);
        let put = match case {
            "other node" => Superblock { node: OTHER.to_string(), ..own.clone() }.encode(),
            "other words" => Superblock { size_bytes: own.size_bytes * 2, ..own.clone() }.encode(),
            _ => before,
        };
        life.volume.look();
        life.settle();
        assert_eq!(life.volume.status().link, Link::Up, "{case}: its own is no reason");
        life.world.store.objects.insert(SUPERBLOCK_KEY.to_owned(), (put.into(), 1 << 40));
        life.volume.look();
        (0..200).for_each(|_| life.tick());
        let Link::Lost(why) = life.volume.status().link else { panic!("{case}: it goes on") };
        let expected = match case {
            "other node" => "has taken the volume",
            "other words" => "superblock than this node put there",
            _ => "the bucket went back in time",
        };
        assert!(why.contains(expected), "{case}: {why}");
        assert_eq!(life.volume.is_taken(), case == "other node", "{case}");
    }
}

/// Goal: a store that went back in time is noticed by the first replacement, whatever it asks for:
/// nothing is put over the older superblock, and nothing that the store lost is called stored.
/// Method: an older superblock of the same session, or one in other words, and writes before any
/// look.
#[test]
fn a_replacement_knows_its_own_superblock() {
    for case in ["older", "other words"] {
        let mut life = Life::new(7901);
        let (before, own) = put_twice(&mut life);
        let put = match case {
            "older" => before,
            _ => Superblock { size_bytes: own.size_bytes * 2, ..own }.encode(),
        };
        let object = (put.clone().into(), 1 << 40);
        life.world.store.objects.insert(SUPERBLOCK_KEY.to_owned(), object);
        life.write();
        life.volume.set_draining(true);
        (0..400).for_each(|_| life.tick());
        let Link::Lost(why) = life.volume.status().link else { panic!("{case}: it goes on") };
        assert!(why.contains("the bucket went back in time"), "{case}: {why}");
        assert_eq!(life.world.store.objects[SUPERBLOCK_KEY].0, put, "{case}: nothing is over it");
        assert!(!life.volume.is_taken(), "{case}");
    }
}

/// Goal: where a store ignores conditions, an older superblock that a late put left is put over,
/// and the mark of a clone that came over this session's is kept, in a handful of requests each.
/// Method: either is put past the session, then it has something to upload.
#[test]
fn what_came_late_is_put_over_once() {
    for case in ["older", "marked"] {
        let mut life = Life::over(ignoring(), 7902);
        let (before, own) = put_twice(&mut life);
        let put = match case {
            "older" => before,
            _ => Superblock { revision: own.revision, ..own.unmarked("file:///clone") }.encode(),
        };
        life.world.store.objects.insert(SUPERBLOCK_KEY.to_owned(), (put.into(), 1 << 40));
        let asked = life.volume.status().counters.requests;
        life.write();
        life.volume.set_draining(true);
        (0..4000).for_each(|_| life.tick());
        assert_eq!(life.volume.status().link, Link::Up, "{case}");
        let now = superblock(&life.world.store).expect("it is there");
        assert!(now.revision > own.revision && now.committed > own.committed, "{case}: {now:?}");
        let asked = life.volume.status().counters.requests - asked;
        assert!(asked < 30, "{case}: {asked} requests");
    }
}

/// Another program replaces the superblock on its condition, as it does whose clone has gone.
fn unmark(store: &mut SimStore) {
    let (bytes, version) = store.get(SUPERBLOCK_KEY, None).expect("it is there");
    let block = Superblock::decode(&bytes).expect("it is whole").unmarked("file:///clone");
    let condition = Condition::Replace(Tag(version.to_string()));
    let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), block.encode().into());
    let end = store.perform(&Request::Put { key, bytes, condition });
    assert!(matches!(end, End::Stored(_)), "it holds");
}

/// Goal: the mark of a clone that another node makes, or takes away, ends nobody's service,
/// whatever is being put meanwhile. Method: volumes with writes going on whose superblock another
/// program replaces; looks; requests that take their time.
#[test]
fn a_clones_mark_is_no_older_superblock() {
    for seed in 0..40 {
        let mut life = Life::new(seed);
        life.world.patience = 12;
        life.load(400);
        for _ in 0..60 {
            let steps = life.world.rng.below(30);
            life.load(steps);
            unmark(&mut life.world.store);
            life.volume.look();
        }
        assert_eq!(life.volume.status().link, Link::Up, "seed {seed}");
        life.settle();
        assert_eq!(life.ended(), life.submitted(), "seed {seed}");
    }
}

/// Goal: what is known of a store is not asked again. Method: requests of an opening.
#[test]
fn a_known_store_is_not_probed() {
    let mut requests = [0, 0];
    for (index, puts) in [ConditionalPuts::Unknown, ConditionalPuts::Kept].into_iter().enumerate() {
        let store = SimStore::default();
        let mut node = Node::new(1, NODE, &store);
        let plan = Plan { puts, ..plan(NODE) };
        node.volume = open(&mut node.world, plan, Nanos::ZERO);
        let mut store = store;
        (0..200).for_each(|_| node.step(&mut store));
        assert!(node.is_up());
        requests[index] = node.volume.status().counters.requests;
    }
    assert_eq!(requests[0] - requests[1], 5, "four puts and a removal");
}
