//! A store or a node that is an older copy of itself: what was promised is not passed over.
//!
//! How: a volume is filled until the store has all; then the store, or the node's disks, become
//! what they were before, or an object that the store took is gone. The node starts.

use super::lives::{BLOCK, Life, NODE, open, plan};
use crate::simulated::SimWorld as World;
use crate::volume::{Link, Volume};
use layby_types::{BackingOperation, Rng};

/// A volume whose store has all that was written.
fn filled(seed: u64) -> Life {
    let mut life = Life::new(seed);
    load(&mut life);
    life
}

fn load(life: &mut Life) {
    life.load(200);
    life.settle();
    life.sync_all();
    life.settle();
}

/// The node starts and asks the store, until it serves the volume or does not; why not.
fn start(life: &mut Life) -> Option<String> {
    life.stop();
    life.open_again();
    for _ in 0..2000 {
        life.tick();
        if let Link::Lost(why) = life.volume.status().link {
            return Some(why);
        }
    }
    None
}

/// Goal: a store that was set back is not served as if it had all. Method: its objects of an
/// earlier time, while the node is stopped; the node's own words.
#[test]
fn a_store_that_was_set_back_is_refused() {
    for seed in 0..8 {
        let mut life = filled(seed);
        let before = life.world.store.clone();
        load(&mut life);
        life.world.store = before;
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("set back"), "{why}");
        assert!(!life.volume.is_taken(), "what the store still has is read, seed {seed}");
    }
}

/// Goal: a segment that went into another store, as into the folder under a mount that had gone, is
/// missed at the next start, before the journal frees its bytes. Method: the store is empty
/// while a write is uploaded, until the volume misses its superblock; the store comes back.
#[test]
fn a_segment_that_went_elsewhere_is_missed() {
    for seed in 0..20 {
        let mut life = filled(seed);
        let store = std::mem::take(&mut life.world.store);
        let buffer = vec![0x22; BLOCK as usize];
        let write = BackingOperation::Write { offset: 0, buffer, durable: true };
        life.volume.submit(1 << 50, write);
        assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
        life.volume.set_draining(true);
        let is_missed = (0..4000).any(|_| {
            life.tick();
            life.volume.is_lost()
        });
        assert!(is_missed, "the superblock is gone, seed {seed}");
        life.world.store = store;
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("lacks segment"), "{why}");
        let dirty = life.volume.status().dirty_bytes;
        assert!(dirty > 0, "the journal keeps what the store lacks, seed {seed}");
    }
}

/// Goal: a node that was put back from an older copy of its directory does not serve what its
/// levels may hold of the past. Method: disks of an earlier time, with the store as it is.
#[test]
fn an_older_copy_of_the_node_is_refused() {
    for seed in 0..8 {
        let mut life = filled(seed);
        let before = life.world.disks.clone();
        load(&mut life);
        life.stop();
        life.world.disks = before;
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("older copy"), "{why}");
        assert!(life.volume.is_taken(), "nothing of it is read, seed {seed}");
    }
}

/// A copy of a node beside the node itself, with disks of its own.
struct Copy {
    world: World,
    volume: Volume<Vec<u8>>,
}

impl Copy {
    /// Does one thing at a store that others have, too.
    fn step(&mut self, life: &mut Life) {
        std::mem::swap(&mut self.world.store, &mut life.world.store);
        self.world.take(self.volume.take_actions());
        if let Some((id, end)) = self.world.step() {
            self.volume.on_end(id, end);
        }
        std::mem::swap(&mut self.world.store, &mut life.world.store);
        self.volume.on_tick(life.now);
    }
}

/// Goal: of two copies of a node's directory that start at once, one serves the volume, and the
/// other one learns that it does not; also where both claim it at the same moment. Method: both on
/// one store, their steps in every order, by seed; then looks.
#[test]
fn two_copies_of_a_node_do_not_both_serve() {
    for seed in 0..200 {
        let mut life = filled(seed);
        life.stop();
        let mut world = World::new(seed + 1, life.world.disks.clone());
        let volume = open(&mut world, plan(NODE), life.now);
        let mut copy = Copy { world, volume };
        life.open_again();
        let mut rng = Rng::new(seed);
        for _ in 0..2000 {
            match rng.chance(1, 2) {
                true => copy.step(&mut life),
                false => life.tick(),
            }
        }
        for _ in 0..3 {
            life.volume.look();
            copy.volume.look();
            for _ in 0..500 {
                copy.step(&mut life);
                life.tick();
            }
        }
        let lost = [&life.volume, &copy.volume].map(Volume::is_lost);
        assert_ne!(lost[0], lost[1], "one serves it, seed {seed}: {lost:?}");
    }
}
