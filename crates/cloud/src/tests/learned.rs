//! What a start learns from the store: each object is the one that the superblock names.
//!
//! How: sound objects of another number or session lie where the superblock names others. The node
//! starts.

use super::lives::{BLOCK, JOURNAL, Life, NODE, plan};
use crate::restore::{RestoreError, Restored};
use crate::segment::{Builder, Compression, SegmentName, VolumeUuid};
use crate::simulated::SimDisks;
use crate::snapshot::{Snapshot, SnapshotChange};
use crate::superblock::{Checkpointed, SUPERBLOCK_KEY, Superblock};
use crate::volume::{Link, create};

/// Steps within which a session has opened, or not.
const STEPS: usize = 4000;

fn load(life: &mut Life) {
    life.load(200);
    life.settle();
    life.sync_all();
    life.settle();
}

fn superblock(life: &Life) -> Superblock {
    let (bytes, _) = &life.world.store.objects[SUPERBLOCK_KEY];
    Superblock::decode(bytes).expect("it is whole")
}

/// The checkpoint that the superblock names, once it names one above this number.
fn checkpoint_above(life: &mut Life, number: u64) -> Checkpointed {
    for _ in 0..100 {
        load(life);
        let named = superblock(life).checkpoint;
        if let Some(checkpoint) = named.filter(|checkpoint| checkpoint.number > number) {
            return checkpoint;
        }
    }
    panic!("no checkpoint was put: {}", life.line);
}

/// One object's bytes in the place of another's.
fn replace(life: &mut Life, key: &str, bytes: bytes::Bytes) {
    life.world.store.objects.get_mut(key).expect("it is there").0 = bytes;
}

/// A node that knows nothing of the volume starts; why it does not serve it, and how many requests
/// that took.
fn learn(life: &mut Life) -> (Option<String>, u64) {
    life.stop();
    life.world.disks = SimDisks::new(JOURNAL, create(&plan(NODE), JOURNAL, 1));
    life.open_again();
    for _ in 0..STEPS {
        life.tick();
        let status = life.volume.status();
        match status.link {
            Link::Lost(why) => return (Some(why), status.counters.requests),
            Link::Up => return (None, status.counters.requests),
            _ => {}
        }
    }
    (None, life.volume.status().counters.requests)
}

fn restored(life: &Life, snapshot: Option<&str>) -> Result<Restored, RestoreError> {
    let store = &life.world.store;
    let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
    Restored::find(&mut fetch, snapshot, true)
}

/// Goal: an older checkpoint where the superblock names a newer one ends a start after few
/// requests, and a restore; it is the node's and sound, so that the start fetched it without end.
/// Method: the bytes of the one before at the key of the last one; a node without disks.
#[test]
fn an_older_checkpoint_at_a_newer_ones_key_is_damage() {
    for seed in 0..8 {
        let mut life = Life::new(seed);
        let older = checkpoint_above(&mut life, 0);
        let (bytes, _) = life.world.store.objects[&older.key()].clone();
        let newer = checkpoint_above(&mut life, older.number);
        replace(&mut life, &newer.key(), bytes);
        let (why, requests) = learn(&mut life);
        let why = why.unwrap_or_else(|| panic!("{requests} requests, seed {seed}"));
        assert!(why.contains("damaged, or another"), "{why}");
        assert!(requests < 20, "{requests} requests, seed {seed}");
        assert!(!life.volume.is_taken(), "no other node has it, seed {seed}");
        let found = restored(&life, None).err();
        assert_eq!(found, Some(RestoreError::Damaged(newer.key())), "seed {seed}");
    }
}

/// Goal: a segment that another session put under the number of the one that the superblock names
/// is not learned for it. Method: such a segment, sound and of the volume, at the key of the last
/// one; a node without disks.
#[test]
fn a_segment_of_another_session_is_damage() {
    for seed in 0..8 {
        let mut life = Life::new(seed);
        let is_behind = |life: &mut Life| {
            load(life);
            let block = superblock(life);
            block.checkpoint.is_none_or(|checkpoint| checkpoint.number < block.committed)
        };
        assert!((0..20).any(|_| is_behind(&mut life)), "the checkpoint has all: seed {seed}");
        let block = superblock(&life);
        let last = block.segment(block.committed).expect("it names it");
        let name = SegmentName { epoch: last.epoch + 7, ..last };
        let builder = Builder::new(BLOCK as u32, Compression::None);
        let (bytes, _) = builder.finish(VolumeUuid([1; 16]), name, u64::from(u32::MAX));
        replace(&mut life, &last.key(), bytes.into());
        let (why, _) = learn(&mut life);
        let why = why.unwrap_or_else(|| panic!("it was learned, seed {seed}"));
        assert!(why.contains(&format!("segment {} in the store is damaged", last.number)), "{why}");
    }
}

/// Goal: a snapshot is not restored from the map of an older one. Method: the object of a first
/// snapshot at the key of a second one, with segments between the two.
#[test]
fn an_older_snapshots_map_is_damage() {
    for seed in 0..8 {
        let mut life = Life::new(seed);
        let mut made: Vec<Snapshot> = Vec::new();
        for name in ["first", "second"] {
            load(&mut life);
            let make = SnapshotChange::Make { name: name.to_owned(), now_unix: 7 };
            assert_eq!(life.end_of(make), Ok(()), "seed {seed}");
            let named = superblock(&life).snapshots;
            made.extend(named.into_iter().filter(|snapshot| snapshot.name == name));
        }
        let (first, second) = (made[0].key(), made[1].key());
        assert!(restored(&life, Some("second")).is_ok(), "seed {seed}");
        let (bytes, _) = life.world.store.objects[&first].clone();
        replace(&mut life, &second, bytes);
        let found = restored(&life, Some("second")).err();
        assert_eq!(found, Some(RestoreError::Damaged(second)), "seed {seed}");
        assert!(restored(&life, Some("first")).is_ok(), "seed {seed}");
    }
}
