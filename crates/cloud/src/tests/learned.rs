//! What a start learns from the store: each object is the one that the superblock names.
//!
//! How: sound objects of another number or session lie where the superblock names others; a map
//! file lacks what the store has. The node starts.

use super::lives::{BLOCK, BLOCKS, JOURNAL, Life, NODE, plan};
use crate::meta::{self, Frame};
use crate::restore::{RestoreError, Restored};
use crate::segment::{Builder, Compression, SegmentName, VolumeUuid};
use crate::simulated::SimDisks;
use crate::snapshot::{Snapshot, SnapshotChange};
use crate::superblock::{Checkpointed, SUPERBLOCK_KEY, Superblock};
use crate::volume::{Link, create};
use layby_types::BackingOperation;

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

/// A map file as it was before its last frames, so many segments fewer than the checkpoint of the
/// superblock has; none where the file does not go back so far.
fn cut_before(life: &Life, checkpoint: u64) -> Option<Vec<u8>> {
    let frames = meta::decode(&life.world.disks.map_file).expect("it is whole");
    let is_at =
        |frame: &Frame| matches!(frame, Frame::Stored(index) if index.name.number >= checkpoint);
    let at = frames.iter().position(is_at)?;
    // Its first frames alone say what the volume is.
    (at > 1).then(|| frames[..at].iter().flat_map(Frame::encode).collect())
}

/// Goal: what a checkpoint of the store has is not read from the journal, whose ring comes round: a
/// node whose map file lost its last frames read such blocks as `EIO` once it had. Method: a map
/// file that ends before the checkpoint's last segment; a start, which reads all; new writes of
/// some blocks for longer than the ring, then all again.
#[test]
fn what_a_checkpoint_has_is_not_read_from_the_journal() {
    let mut cut = 0;
    for seed in 0..40 {
        let mut life = Life::new(seed);
        life.load(60 + seed * 5);
        life.settle();
        life.sync_all();
        life.settle();
        let Some(checkpoint) = superblock(&life).checkpoint else { continue };
        let Some(map_file) = cut_before(&life, checkpoint.number) else { continue };
        life.stop();
        life.world.disks.map_file = map_file;
        life.open_again();
        life.settle();
        assert!(life.read_all() == life.whole_state(), "seed {seed}");
        cut += 1;
        // Twice the ring's length, of a quarter of the volume.
        let (blocks, batches) = (BLOCKS / 4, 2 * JOURNAL / (17 * BLOCK));
        let before = life.whole_state();
        for batch in 0..batches {
            let (token, first) = (life.token() + (1 << 41), batch * 16 % blocks);
            let length = 16.min(blocks - first);
            let buffer = vec![batch as u8; (length * BLOCK) as usize];
            let write = BackingOperation::Write { offset: first * BLOCK, buffer, durable: true };
            life.volume.submit(token, write);
            assert_eq!(life.wait(token).0, Ok(()), "seed {seed}");
        }
        life.volume.forget_all_uploaded();
        for block in blocks..BLOCKS {
            let (token, buffer) = (life.token(), vec![0xee; BLOCK as usize]);
            life.volume.submit(token, BackingOperation::Read { offset: block * BLOCK, buffer });
            let (result, bytes) = life.wait(token);
            assert_eq!(result, Ok(()), "block {block}, seed {seed}");
            assert_eq!(bytes.as_ref(), Some(&before[block as usize]), "block {block}, seed {seed}");
        }
    }
    assert!(cut > 10, "{cut} of 40 map files were cut");
}
