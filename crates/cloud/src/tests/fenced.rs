//! Nodes that were replaced and do not know it yet.
//!
//! How: lives whose volume another node has taken, or whose store holds what a later session put.

use super::lives::{BLOCK, BLOCKS, JOURNAL, Life, NODE};
use crate::action::{Condition, Request};
use crate::restore::Restored;
use crate::segment::{SegmentName, VolumeUuid};
use crate::simulated::{SimDisks as Disks, SimWorld as World};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::volume::{Link, Volume, Wanted, left_over};
use layby_types::{BackingOperation, ErrorKind, Nanos};

/// Goal: a node whose clients only read hears that another one has taken its volume, once it asks;
/// one whose volume is its own goes on. Method: a look before another node takes it, one while the
/// link is cut, and one after.
#[test]
fn a_look_finds_out_that_the_volume_was_taken() {
    for seed in 7700..7710 {
        let mut life = Life::new(seed);
        life.load(200);
        life.settle();
        life.volume.look();
        life.settle();
        assert_eq!(life.volume.status().link, Link::Up, "seed {seed}");
        let mut old = life.lose_disks(VolumeUuid([9; 16]));
        life.settle();
        for is_cut in [true, false] {
            life.world.faults.is_cut = is_cut;
            old.look();
            for _ in 0..200 {
                life.world.take(old.take_actions());
                life.now = life.now.saturating_add(Nanos::from_millis(500));
                old.on_tick(life.now);
                if let Some((id, end)) = life.world.step() {
                    old.on_end(id, end);
                }
            }
            assert_eq!(old.is_lost(), !is_cut, "seed {seed}");
        }
    }
}

/// Goal: a node that was replaced while it still asked what the store holds deletes nothing of the
/// one that replaced it. Method: at a start, a checkpoint and a segment of a later epoch beside one
/// of an earlier one that nothing names.
#[test]
fn a_late_sweep_takes_nothing_newer() {
    let mut life = Life::new(7600);
    life.load(300);
    life.settle();
    let newer = ["checkpoints/00000000000000ff-00000009", "segments/00000000000000ff-00000009"];
    let older = ["checkpoints/0000000000000001-00000000", "segments/0000000000000001-00000000"];
    for key in newer.into_iter().chain(older) {
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), Condition::Create);
        life.world.store.perform(&Request::Put { key: key.to_owned(), bytes, condition });
    }
    life.crash();
    life.settle();
    for key in newer {
        assert!(life.world.store.get(key, None).is_ok(), "`{key}` is another node's");
    }
    for key in older {
        assert!(life.world.store.get(key, None).is_err(), "`{key}` is nobody's");
    }
}

/// Goal: a start takes what earlier sessions' uploads left in a folder when they were cut short,
/// and nothing that a session may still write: none of its own epoch or a later one, of another
/// node's probe, of the lock of a superblock. Method: a start beside such names.
#[test]
fn a_sweep_takes_what_was_cut_short() {
    let mut life = Life::new(7650);
    life.load(300);
    life.settle();
    let probe = |node: VolumeUuid| format!("probes/{node}-{:016x}", 7);
    let epoch = life.world.store.get("superblock", None).expect("it is there").0;
    let epoch = Superblock::decode(&epoch).expect("it is whole").epoch;
    let of = |epoch: u32| {
        let named = |folder: &str| format!("{folder}/{:016x}-{epoch:08x}", 1);
        let snapshot = format!("snapshots/{:016x}-{epoch:08x}-{:08x}", 1, 1);
        [named("segments"), named("checkpoints"), snapshot].map(|key| format!("{key}#1"))
    };
    let kept = [of(epoch + 1), of(epoch + 2)].concat();
    let strange = ["superblock#0", "segments/1-2#1", "x/superblock#1"].map(str::to_owned);
    let kept = [&kept, &strange[..], &[probe(VolumeUuid([8; 16])) + "#1"]].concat();
    let own_probe = ["#0", "#1"].map(|number| probe(NODE) + number);
    let gone = [&of(epoch)[..], &of(0), &own_probe, &["superblock#1".to_owned()]].concat();
    for key in kept.iter().chain(&gone) {
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), Condition::Create);
        life.world.store.perform(&Request::Put { key: key.clone(), bytes, condition });
    }
    life.crash();
    life.settle();
    for key in &kept {
        assert!(life.world.store.get(key, None).is_ok(), "`{key}` is another's");
    }
    for key in &gone {
        assert!(life.world.store.get(key, None).is_err(), "`{key}` is nobody's");
    }
}

/// Goal: what earlier sessions left behind goes in few requests, however much it is. Method: a
/// start beside 2,500 segments that nothing names.
#[test]
fn a_sweep_takes_many_at_once() {
    let mut life = Life::new(7700);
    life.load(300);
    life.settle();
    let key = |number: u64| format!("segments/{number:016x}-00000000");
    for number in 1..=2500 {
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), Condition::Create);
        life.world.store.perform(&Request::Put { key: key(number), bytes, condition });
    }
    life.crash();
    life.settle();
    assert!((1..=2500).all(|number| life.world.store.get(&key(number), None).is_err()));
    let requests = life.volume.status().counters.requests;
    assert!(requests < 100, "{requests} requests");
}

/// Goal: a node that lost its volume to another finds out, says so, and changes nothing more.
/// Method: both live on at once, over one store.
#[test]
fn a_fenced_node_changes_nothing() {
    let mut found_out = 0;
    for seed in 2000..2050 {
        let mut life = Life::new(seed);
        life.load(600);
        let mut old = life.lose_disks(VolumeUuid([8; 16]));
        // It hears of none of its ends any more but goes on with new actions.
        old.set_draining(true);
        old.look();
        let disks = Disks::new(JOURNAL, (Vec::new(), Vec::new()));
        let mut world = World::new(seed, disks);
        for _ in 0..200 {
            std::mem::swap(&mut world.store, &mut life.world.store);
            world.take(old.take_actions());
            let end = world.step();
            std::mem::swap(&mut world.store, &mut life.world.store);
            if let Some((id, end)) = end {
                old.on_end(id, end);
            }
            old.on_tick(life.now);
            life.load(2);
        }
        life.settle();
        assert_eq!(life.ended(), life.submitted(), "seed {seed}");
        found_out += usize::from(reads_nothing_more(&mut old));
    }
    assert!(found_out > 40, "{found_out} of 50");
}

/// A volume that another node has taken, if this one has heard of that, reads nothing more: neither
/// what its journal has nor what its map knows.
fn reads_nothing_more(old: &mut Volume<Vec<u8>>) -> bool {
    while old.poll().is_some() {}
    let is_taken = old.is_taken();
    for block in (0..BLOCKS).filter(|_| is_taken) {
        let buffer = vec![0; BLOCK as usize];
        old.submit(block, BackingOperation::Read { offset: block * BLOCK, buffer });
        let done = old.poll().expect("it ends at once");
        assert_eq!((done.token, done.result), (block, Err(ErrorKind::Closed)));
    }
    is_taken
}

/// Segments that no superblock names leave the store, as if they had come after a takeover; how
/// many there were.
fn drop_unnamed(life: &mut Life) -> usize {
    let objects = &mut life.world.store.objects;
    let block = objects.get(SUPERBLOCK_KEY).and_then(|(bytes, _)| Superblock::decode(bytes));
    let committed = block.map_or(0, |block| block.committed);
    let before = objects.len();
    objects.retain(|key, _| SegmentName::parse(key).is_none_or(|name| name.number <= committed));
    before - objects.len()
}

/// What the store has of a volume, with what salvage finds in the journal written over it.
fn salvaged_state(life: &Life) -> Vec<Vec<u8>> {
    let (store, disks) = (&life.world.store, &life.world.disks);
    let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
    let restored = Restored::open(&mut fetch).ok();
    let zeros = vec![vec![0; BLOCK as usize]; BLOCKS as usize];
    let mut state = restored.map_or(zeros, |restored| life.state_of(&restored));
    let mut read = |at, length| disks.read(at, length);
    let found =
        left_over(&disks.map_file, Wanted::Unnamed, &mut read).expect("the files are whole");
    for left in &found.left {
        let length = ((left.blocks.end - left.blocks.start) * BLOCK) as usize;
        let bytes = left.payload.map_or(vec![0; length], |(at, blocks, skip, _)| {
            let payload = disks.read(at, blocks * BLOCK).expect("it is in the journal");
            payload[(skip * BLOCK) as usize..][..length].to_vec()
        });
        for (block, bytes) in left.blocks.clone().zip(bytes.chunks(BLOCK as usize)) {
            state[block as usize] = bytes.to_vec();
        }
    }
    state
}

/// Goal: salvage finds all that the superblock does not vouch for, also what lies in a segment that
/// was put and that no superblock names: whoever takes the volume does not have it. Method: moments
/// of lives; such segments leave the store; what it has and what salvage finds, beside the writes.
#[test]
fn what_no_superblock_names_is_salvaged() {
    let mut unnamed = 0;
    for seed in 7800..7900 {
        let mut life = Life::new(seed);
        life.load(100 + seed % 97);
        unnamed += usize::from(drop_unnamed(&mut life) > 0);
        let state = salvaged_state(&life);
        let mut counts = life.synced..=life.submitted();
        assert!(counts.any(|count| life.is_prefix(&state, count)), "seed {seed}");
    }
    assert!(unnamed > 20, "{unnamed} of 100 had such segments");
}

/// Goal: what the node that took a volume has of it is not missing, also where no superblock of the
/// one that lost it named its segments; and nothing that is missing is left out. Method: moments of
/// lives; another node takes the volume, the first one looks; the store and what salvage finds.
#[test]
fn what_the_next_session_has_is_not_missing() {
    let mut adopted = 0;
    for seed in 7300..7400 {
        let mut life = Life::new(seed);
        life.load(100 + seed % 97);
        let disks = life.world.disks.clone();
        let range = life.synced..=life.submitted();
        let named =
            left_over(&disks.map_file, Wanted::Unnamed, &mut |at, length| disks.read(at, length));
        let named = named.expect("the files are whole").left.len();
        let history = life.history.clone();
        let mut old = life.lose_disks(VolumeUuid([7; 16]));
        life.settle();
        let mut world = World::new(seed, disks);
        old.look();
        for _ in 0..200 {
            std::mem::swap(&mut world.store, &mut life.world.store);
            world.take(old.take_actions());
            let end = world.step();
            std::mem::swap(&mut world.store, &mut life.world.store);
            if let Some((id, end)) = end {
                old.on_end(id, end);
            }
            life.now = life.now.saturating_add(Nanos::from_millis(50));
            old.on_tick(life.now);
        }
        if !old.is_taken() {
            continue;
        }
        (life.world.disks, life.history) = (world.disks, history);
        let state = salvaged_state(&life);
        let mut counts = range;
        assert!(counts.any(|count| life.is_prefix(&state, count)), "seed {seed}");
        let disks = &life.world.disks;
        let found =
            left_over(&disks.map_file, Wanted::Unnamed, &mut |at, length| disks.read(at, length));
        let left = found.expect("the files are whole").left.len();
        assert!(left <= named, "seed {seed}");
        adopted += usize::from(left < named);
    }
    assert!(adopted > 20, "{adopted} of 100 had such segments");
}

/// Goal: a node whose clients do not write finds out that the store has lost the volume, keeps what
/// it has of it, and does not take one answer for it. Method: the superblock leaves the store, and
/// comes back between two looks; it leaves for good.
#[test]
fn a_look_finds_out_that_the_superblock_vanished() {
    for seed in 7900..7910 {
        let mut life = Life::new(seed);
        life.load(200);
        life.settle();
        let block = life.world.store.objects.remove(SUPERBLOCK_KEY).expect("it was put");
        life.volume.look();
        for _ in 0..10 {
            life.tick();
        }
        assert_eq!(life.volume.status().link, Link::Up, "seed {seed}: one answer");
        life.world.store.objects.insert(SUPERBLOCK_KEY.to_owned(), block);
        life.settle();
        life.now = life.now.saturating_add(Nanos::from_secs(5));
        life.settle();
        assert_eq!(life.volume.status().link, Link::Up, "seed {seed}: it is back");
        life.world.store.objects.remove(SUPERBLOCK_KEY);
        life.volume.look();
        let is_lost = (0..2000).any(|_| {
            life.tick();
            life.volume.is_lost()
        });
        let link = life.volume.status().link;
        assert!(is_lost && !life.volume.is_taken(), "seed {seed}: {link:?}");
        assert!(matches!(link, Link::Lost(why) if why.contains("vanished")), "seed {seed}");
    }
}
