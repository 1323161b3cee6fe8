//! Objects that end before they should: damage of their own blocks, and nothing that is waited for.
//!
//! How: objects of a settled store are truncated or emptied; a store then says of ranges behind
//! their end that they are none. Who reads them: clients, cleaning, takeovers, starts, uploads in
//! doubt.
//! Not for: restores, see `restores`; words of real stores, see `store`.

use super::lives::{BLOCK, Life, NODE, open, plan};
use super::waits::Bench;
use crate::segment::SegmentName;
use crate::simulated::{SimDisks as Disks, SimFaults, SimWorld as World};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::volume::{Limits, Link, Plan, Volume, WaitPlan, create};
use bytes::Bytes;
use layby_types::{BackingOperation, ErrorKind, Nanos};

/// The time within which a read of an object that is too short has ended.
const SHORT_WITHIN: Nanos = Nanos::from_secs(2);

fn cut(world: &mut World, key: &str, bytes: usize) {
    let object = world.store.objects.get_mut(key).expect("it was uploaded");
    object.0 = object.0.slice(..bytes.min(object.0.len()));
}

fn segments(world: &World) -> Vec<String> {
    let keys = world.store.objects.keys();
    keys.filter(|key| key.starts_with("segments/")).cloned().collect()
}

fn superblock(world: &World) -> Superblock {
    let (bytes, _) = world.store.get(SUPERBLOCK_KEY, None).expect("it is there");
    Superblock::decode(&bytes).expect("it is whole")
}

/// Goal: a read behind an object's end is an error in bounded time, after several requests, and
/// later at once; the object is named and counted, the link is up, other objects are read, a whole
/// write cures its block, and the object does when it is back. Method: a segment cut, an empty one.
#[test]
fn a_shorter_object_is_damage_of_its_own_blocks() {
    for bytes in [0, 10] {
        let mut bench = Bench::new(33);
        bench.volume.set_wait(WaitPlan::default());
        let key = bench.upload_singly_to(&[16, 19, 22, 25], 1);
        let whole = bench.world.store.objects[&key].clone();
        cut(&mut bench.world, &key, bytes);
        let before = bench.requests();
        let first = bench.read(16);
        let (waited, result) = bench.wait(first);
        assert_eq!(result, Err(ErrorKind::Corrupt));
        assert!(waited < SHORT_WITHIN, "{waited:?}");
        let asked = bench.requests() - before;
        assert!((3..=8).contains(&asked), "{asked} requests");
        let second = bench.read(22);
        assert_eq!(bench.wait(second), (Nanos::ZERO, Err(ErrorKind::Corrupt)));
        assert_eq!(bench.requests() - before, asked + 1, "it is known to be short");
        let status = bench.volume.status();
        assert_eq!((status.counters.damaged, status.link), (2, Link::Up));
        let fault = status.read_fault.expect("a read failed");
        assert!(fault.contains(&key) && fault.contains("lost its end"), "{fault}");
        bench.reads(0, 1);
        let written = bench.write(16, 1, 7);
        assert_eq!(bench.wait(written).1, Ok(()));
        bench.reads(16, 7);
        bench.world.store.objects.insert(key, whole);
        bench.reads(19, 1);
    }
}

/// Goal: an object that is too short for a moment only is asked for again, and no client sees it.
/// Method: one answer of twenty says so.
#[test]
fn a_moment_of_a_shorter_object_is_not_seen_by_clients() {
    for seed in 0..10 {
        let mut bench = Bench::new(seed);
        bench.volume.set_wait(WaitPlan::default());
        let blocks: Vec<u64> = (16..80).step_by(3).collect();
        bench.upload_singly(&blocks, 1);
        bench.world.faults = SimFaults { short: 5, ..SimFaults::default() };
        blocks.iter().for_each(|block| bench.reads(*block, 1));
        assert_eq!(bench.volume.status().counters.damaged, 0);
    }
}

/// Goal: cleaning goes on beside victims that are cut off, and moves all others. Method: random
/// overwrites, every third segment cut, as many overwrites again; deletions, and what is stored.
#[test]
fn cleaning_passes_shorter_objects() {
    const BLOCKS: u64 = 1024;
    let limits = Limits { segment_bytes: 512 << 10, ..plan(NODE).limits };
    let plan = Plan { size_bytes: BLOCKS * BLOCK, limits, ..plan(NODE) };
    let mut world = World::new(9, Disks::new(8 << 20, create(&plan, 8 << 20, 9)));
    let mut volume = open(&mut world, plan, Nanos::ZERO);
    let (mut now, mut token) = (Nanos::ZERO, 0);
    volume.set_draining(true);
    let mut round = |world: &mut World, volume: &mut Volume<Vec<u8>>, first: Option<u64>| {
        for write in 0..BLOCKS / 2 {
            token += 1;
            let block = first.map_or_else(|| world.rng.below(BLOCKS), |first| first + write);
            let mut buffer = vec![0; BLOCK as usize];
            layby_types::Rng::new(token).fill(&mut buffer);
            let offset = block * BLOCK;
            volume.submit(token, BackingOperation::Write { offset, buffer, durable: false });
        }
        super::cleaning::settle(world, volume, &mut now);
    };
    round(&mut world, &mut volume, Some(0));
    round(&mut world, &mut volume, Some(BLOCKS / 2));
    (0..8).for_each(|_| round(&mut world, &mut volume, None));
    let keys = segments(&world);
    keys.iter().step_by(3).for_each(|key| cut(&mut world, key, 10));
    // Rounds whose victims were cut have had their turns by then.
    (0..8).for_each(|_| round(&mut world, &mut volume, None));
    let before = volume.status().counters;
    (0..8).for_each(|_| round(&mut world, &mut volume, None));
    let status = volume.status();
    let deleted = status.counters.segments_deleted - before.segments_deleted;
    assert!(deleted > 10 && status.link == Link::Up, "{deleted}: {status:?}");
    assert!(status.counters.bytes_moved > before.bytes_moved + (256 << 10), "{status:?}");
}

/// Goal: a node that takes the volume passes a cut segment that the superblock does not name yet,
/// as one that is not there; one that it needs is damage, named at once, and nothing is read.
/// Method: an empty segment behind the last one; all segments of a short history emptied.
#[test]
fn a_takeover_knows_shorter_objects() {
    let mut life = Life::new(2310);
    life.load(200);
    life.settle();
    let (block, version) = (superblock(&life.world), 1 << 40);
    let name = SegmentName { epoch: block.epoch, number: block.committed + 1 };
    life.world.store.objects.insert(name.key(), (Bytes::new(), version));
    drop(life.lose_disks(crate::segment::VolumeUuid([9; 16])));
    life.settle();
    assert_eq!(life.volume.status().link, Link::Up);
    let mut bench = Bench::new(34);
    assert_eq!(superblock(&bench.world).checkpoint, None, "a start needs all segments");
    let keys = segments(&bench.world);
    keys.iter().for_each(|key| cut(&mut bench.world, key, 0));
    let plan = Plan { takeover: true, ..plan(crate::segment::VolumeUuid([9; 16])) };
    bench.world.disks = Disks::new(1 << 20, create(&plan, 1 << 20, 1));
    bench.volume = open(&mut bench.world, plan, bench.now);
    let read = bench.read(0);
    let (waited, result) = bench.wait(read);
    assert!(result.is_err() && waited < SHORT_WITHIN, "{result:?} {waited:?}");
    assert!(bench.volume.is_lost());
    let status = bench.volume.status();
    assert!(matches!(&status.link, Link::Lost(why) if why.contains("is damaged")), "{status:?}");
}

/// Goal: a start of a node that had its volume waits for no segment that is empty, though the
/// superblock does not name it yet. Method: crashes between a segment's put and the superblock's.
#[test]
fn a_start_knows_shorter_objects() {
    let mut met = 0;
    for seed in 2320..2420 {
        let mut life = Life::new(seed);
        life.load(60 + seed % 40);
        let committed = superblock(&life.world).committed;
        let last = life.volume.map().number;
        let keys: Vec<String> =
            (committed + 1..=last).filter_map(|number| life.volume.map().key(number)).collect();
        let keys = keys.into_iter().filter(|key| life.world.store.objects.contains_key(key));
        let keys: Vec<String> = keys.collect();
        life.stop();
        keys.iter().for_each(|key| cut(&mut life.world, key, 0));
        life.open_again();
        met += keys.len();
        let late = life.now.saturating_add(Nanos::from_secs(20));
        while life.volume.status().link != Link::Up {
            life.tick();
            assert!(life.now < late, "{:?}: {}", life.volume.status(), life.line);
        }
    }
    assert!(met > 3, "{met} were behind the superblock");
}

/// Goal: an upload whose answer was lost counts only where the object has its end: where it is cut
/// off, nothing of the journal is let go, and the upload goes on when the object is whole or gone.
/// Method: objects of two lengths whose puts are said to have failed, truncated in the store, by
/// one byte and to nothing, then put back or removed.
#[test]
fn an_upload_in_doubt_is_held_against_its_end() {
    for (blocks, kept, comes_back) in
        [(4, 0, true), (4, 0, false), (4, 20, true), (64, 0, false), (64, 1, true), (64, 1, false)]
    {
        let mut bench = Bench::new(35);
        let before = segments(&bench.world);
        bench.world.faults.lost_replies = 100;
        let first = bench.write_random(8, blocks);
        bench.volume.set_draining(true);
        bench.until(|bench| segments(&bench.world).len() > before.len());
        let key = segments(&bench.world).into_iter().find(|key| !before.contains(key));
        let key = key.expect("it is new");
        let whole = bench.world.store.objects[&key].clone();
        let bytes = match kept {
            1 => whole.0.len() - 1,
            kept => kept,
        };
        cut(&mut bench.world, &key, bytes);
        bench.world.faults.lost_replies = 0;
        let later = bench.now.saturating_add(Nanos::from_secs(3));
        bench.until(|bench| bench.now > later);
        assert!(!bench.volume.is_drained() && !bench.volume.is_lost(), "{blocks} {kept}");
        let (fault, _) = bench.volume.status().last_fault.expect("it is in doubt");
        assert!(fault.contains(&key) && fault.contains("a part"), "{fault}");
        match comes_back {
            true => drop(bench.world.store.objects.insert(key, whole)),
            false => drop(bench.world.store.objects.remove(&key)),
        }
        bench.until(|bench| bench.volume.is_drained());
        bench.volume.forget_all_uploaded();
        bench.volume.set_wait(WaitPlan::default());
        let read = bench.read_blocks(8, blocks);
        assert_eq!(bench.wait(read).1, Ok(()), "{blocks} {kept}");
        assert_eq!(bench.ended[&read].1, Some(first), "{blocks} {kept}");
    }
}

impl Bench {
    /// Writes blocks that cannot be compressed, and answers with what they hold.
    fn write_random(&mut self, first: u64, blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; (blocks * BLOCK) as usize];
        layby_types::Rng::new(blocks).fill(&mut bytes);
        self.token += 1;
        let (offset, buffer, durable) = (first * BLOCK, bytes.clone(), false);
        self.volume.submit(self.token, BackingOperation::Write { offset, buffer, durable });
        bytes
    }
}
