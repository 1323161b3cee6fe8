//! A store or a node that is an older copy of itself: what was promised is not passed over.
//!
//! How: a volume is filled until the store has all; then the store, or the node's disks, become
//! what they were before, or an object that the store took is gone. The node starts.

use super::lives::{BLOCK, BLOCKS, JOURNAL, Life, NODE, open, plan};
use crate::meta::{self, Claims, Committed, Frame};
use crate::segment::{SegmentName, VolumeUuid};
use crate::simulated::{SimDisks, SimFaults, SimStore, SimWorld as World};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::volume::{Link, Plan, Volume, Wanted, create, left_over};
use layby_types::{BackingOperation, Rng};
use std::collections::BTreeMap;

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
    reopen(life)
}

/// The same, of a node that is stopped.
fn reopen(life: &mut Life) -> Option<String> {
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

/// Goal: a superblock that was set back across a claim of this node is noticed, though it names as
/// many segments as it did. Method: the superblock of the session before, once the next one has put
/// a segment and not named it, or nothing.
#[test]
fn a_superblock_of_an_earlier_session_is_refused() {
    let mut unnamed = 0;
    for seed in 0..40 {
        let mut life = filled(seed);
        let before = life.world.store.objects[SUPERBLOCK_KEY].clone();
        let committed = life.volume.status().committed;
        assert_eq!(start(&mut life), None, "seed {seed}");
        for _ in 0..if seed % 4 == 0 { 0 } else { 4000 } {
            if life.volume.map().number > committed {
                break;
            }
            life.load(1);
        }
        assert_eq!(life.volume.status().committed, committed, "seed {seed}");
        unnamed += u32::from(life.volume.map().number > committed);
        life.stop();
        life.world.store.objects.insert(SUPERBLOCK_KEY.to_owned(), before);
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("set back"), "{why}");
        assert!(!life.volume.is_taken(), "what the store still has is read, seed {seed}");
    }
    assert!(unnamed > 20, "{unnamed} of 40 put a segment");
}

/// Goal: what a store that was set back lacks is saved from the journal, as far as that holds it,
/// and nothing older for it. Method: a short load after a long one, then the store of before it;
/// all that salvage finds is held against what was written, and against what the store lacks.
#[test]
fn what_a_store_lost_is_saved_from_the_journal() {
    let mut whole = 0;
    for seed in 0..40 {
        let mut life = filled(seed);
        let (before, old) = (life.world.store.clone(), life.whole_state());
        life.load(30);
        life.sync_all();
        life.settle();
        life.world.store = before;
        assert!(start(&mut life).is_some_and(|why| why.contains("set back")), "seed {seed}");
        assert_eq!(salvaged(&life, Wanted::Unnamed).len(), 0, "the store got all, seed {seed}");
        let (new, found) = (life.whole_state(), salvaged(&life, Wanted::All));
        let is_right = |(block, bytes): (&u64, &Vec<u8>)| new[*block as usize] == *bytes;
        assert!(found.iter().all(is_right), "an older version is saved, seed {seed}");
        let lost = (0..BLOCKS).filter(|block| new[*block as usize] != old[*block as usize]);
        let is_data = |block: &u64| new[*block as usize].iter().any(|byte| *byte != 0);
        whole += u32::from(lost.filter(is_data).all(|block| found.contains_key(&block)));
    }
    assert!(whole > 30, "all of it is there in {whole} of 40 cases");
}

/// Goal: a segment that went into another store, as into the folder under a mount that had gone, is
/// missed at the next start, before the journal frees its bytes, and stored again from there.
/// Method: the store is empty while a write is uploaded, until the volume misses its superblock;
/// the store comes back; what was written is read, and again without anything in the journal.
#[test]
fn a_segment_that_went_elsewhere_is_stored_again() {
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
        assert_eq!(start(&mut life), None, "seed {seed}");
        for is_stored in [false, true] {
            if is_stored {
                life.settle();
                assert_eq!(life.volume.status().dirty_bytes, 0, "seed {seed}");
                assert_eq!(start(&mut life), None, "seed {seed}");
            }
            let (token, buffer) = (life.token(), vec![0; BLOCK as usize]);
            life.volume.submit(token, BackingOperation::Read { offset: 0, buffer });
            let (result, bytes) = life.wait(token);
            assert_eq!(result, Ok(()), "seed {seed}");
            assert!(bytes.is_some_and(|bytes| bytes == [0x22; BLOCK as usize]), "seed {seed}");
        }
    }
}

/// Whether the disks of a node that is stopped are sound enough for an opening.
fn can_open(life: &Life) -> bool {
    let disks = &life.world.disks;
    let mut read = |at, length| disks.read(at, length);
    Volume::<Vec<u8>>::open(life.plan(), &disks.map_file, life.now, 1, &mut read).is_ok()
}

/// Goal: where the journal, too, lacks what a lost segment held, the volume is refused by name, and
/// no older version is served. Method: a segment that no superblock names is lost or damaged, with
/// the journal of a few steps before; starts that refuse such a journal, or need none of what it
/// lacks, do not count.
#[test]
fn a_segment_that_the_journal_lacks_is_missed() {
    let mut count = 0;
    for seed in 0..400 {
        let mut life = filled(seed);
        life.load(seed % 7 * 20);
        let older = life.world.disks.clone();
        life.load(1 + seed % 30);
        life.stop();
        if life.world.spoil_unnamed(&mut Rng::new(seed)).is_none() {
            continue;
        }
        life.world.disks.put_journal_back(&older);
        let why = can_open(&life).then(|| reopen(&mut life)).flatten();
        count += u32::from(why.is_some_and(|why| why.contains("the journal ends before")));
    }
    assert!(count > 4, "{count} starts");
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

/// The volume's objects with their versions; what a probe puts is no part of it.
fn versions(life: &Life) -> Vec<(String, u64)> {
    let objects = life.world.store.objects.iter().filter(|(key, _)| !key.starts_with("probes/"));
    objects.map(|(key, (_, version))| (key.clone(), *version)).collect()
}

/// Blocks that salvage finds, and their bytes.
fn salvaged(life: &Life, wanted: Wanted) -> BTreeMap<u64, Vec<u8>> {
    let disks = &life.world.disks;
    let found = left_over(&disks.map_file, wanted, &mut |at, length| disks.read(at, length));
    let mut blocks = BTreeMap::new();
    for left in found.expect("the files are whole").left {
        let Some((at, count, skip, _)) = left.payload else { continue };
        let payload = disks.read(at, count * BLOCK).expect("it is in the journal");
        let chunks = payload.chunks(BLOCK as usize).skip(skip as usize);
        let chunks = left.blocks.zip(chunks);
        blocks.extend(chunks.map(|(block, bytes)| (block, bytes.to_vec())));
    }
    blocks
}

/// A volume whose store got its superblock and no segment, and whose journal holds a write.
fn unsaved(seed: u64) -> Life {
    let mut life = Life::new(seed);
    (0..200).for_each(|_| life.tick());
    assert_eq!(life.volume.status().link, Link::Up, "seed {seed}");
    life.world.faults.is_cut = true;
    let buffer = vec![0x33; BLOCK as usize];
    let write = BackingOperation::Write { offset: 0, buffer, durable: true };
    life.volume.submit(1 << 50, write);
    assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
    life.stop();
    life.world.faults.is_cut = false;
    life
}

/// Goal: a volume is not made anew where its store has lost it before it got a segment, as in the
/// folder below a mount that is not there yet. Method: a write that no store has; a start over an
/// empty store, the node's words, the journal; the store comes back.
#[test]
fn a_volume_without_a_segment_is_not_made_anew() {
    for seed in 0..20 {
        let mut life = unsaved(seed);
        let store = std::mem::take(&mut life.world.store);
        let why = start(&mut life).unwrap_or_else(|| panic!("it is made anew, seed {seed}"));
        assert!(why.contains("vanished") && !life.volume.is_taken(), "{why}");
        assert_eq!(versions(&life), [], "nothing is put, seed {seed}");
        assert!(life.volume.status().dirty_bytes > 0, "the journal keeps it, seed {seed}");
        life.world.store = store;
        assert_eq!(start(&mut life), None, "it is served again, seed {seed}");
        life.settle();
    }
}

/// Goal: a creation whose first superblock never arrived goes on. Method: starts that are cut off
/// at any step, before the store says that it has the superblock; an empty store, one that is not.
#[test]
fn a_creation_that_broke_off_goes_on() {
    let mut begun = 0;
    for seed in 0..60 {
        let mut life = Life::new(seed);
        (0..seed / 3).for_each(|_| life.tick());
        if life.volume.status().link == Link::Up {
            continue;
        }
        begun += 1;
        life.stop();
        if seed % 2 == 0 {
            life.world.store = SimStore::default();
        }
        assert_eq!(start(&mut life), None, "seed {seed}");
        load(&mut life);
    }
    assert!(begun > 20, "{begun} of 60 were still at it");
}

/// Goal: a volume that is gone when it is to be taken is not made anew under its old number.
/// Method: a volume without a segment and others; their objects go after another node was told to
/// take them, before it asks.
#[test]
fn what_is_gone_is_not_taken() {
    for seed in 0..20 {
        let mut life = if seed % 2 == 0 { unsaved(seed) } else { filled(seed) };
        life.stop();
        let plan = Plan { takeover: true, was_found: true, ..plan(VolumeUuid([9; 16])) };
        life.world.disks = SimDisks::new(JOURNAL, create(&plan, JOURNAL, seed));
        life.volume = open(&mut life.world, plan, life.now);
        life.world.store = SimStore::default();
        let is_lost = (0..2000).any(|_| {
            life.tick();
            life.volume.is_lost()
        });
        assert!(is_lost, "it is made anew, seed {seed}");
        let Link::Lost(why) = life.volume.status().link else { panic!("it is lost") };
        assert!(why.contains("vanished"), "{why}");
        assert_eq!(versions(&life), [], "nothing is put, seed {seed}");
    }
}

/// Goal: an older copy of a node's directory is refused whatever it wrote before its store
/// answered: the store stays what the newer one made it, and salvage finds what the copy wrote.
/// Method: copies of stopped and of running nodes, which write less and more than the node itself
/// did since, over several starts, while the link is cut; then the link is back.
#[test]
fn an_older_copy_that_wrote_is_refused() {
    for seed in 0..60 {
        let mut life = filled(seed);
        let is_stopped = seed % 2 == 0;
        if is_stopped {
            life.stop();
        }
        let before = life.world.disks.clone();
        if is_stopped {
            life.open_again();
        }
        load(&mut life);
        life.stop();
        let stored = versions(&life);
        life.world.disks = before;
        life.world.faults.is_cut = true;
        let count = 1 + life.world.rng.below(BLOCKS);
        for block in 0..count {
            if block % 32 == 0 {
                life.stop();
                life.open_again();
            }
            let (offset, buffer) = (block * BLOCK, vec![0x99; BLOCK as usize]);
            let write = BackingOperation::Write { offset, buffer, durable: true };
            life.volume.submit((1 << 50) + block, write);
            assert_eq!(life.wait((1 << 50) + block).0, Ok(()), "it is in the journal");
        }
        life.world.faults.is_cut = false;
        let is_lost = (0..4000).any(|_| {
            life.tick();
            life.volume.is_lost()
        });
        assert!(is_lost, "it is served after {count} writes, seed {seed}");
        (0..200).for_each(|_| life.tick());
        let Link::Lost(why) = life.volume.status().link else { panic!("it was") };
        assert!(why.contains("older copy"), "{why}");
        assert!(life.volume.is_taken(), "nothing of it is read, seed {seed}");
        assert_eq!(versions(&life), stored, "the store is as it was, seed {seed}");
        let found = salvaged(&life, Wanted::Unnamed);
        let is_there = |block| found.get(&block) == Some(&vec![0x99; BLOCK as usize]);
        assert!((0..count).all(is_there), "salvage finds all {count}, seed {seed}");
    }
}

/// Goal: a node knows what it claimed itself, wherever it was cut off, and what was there before
/// its claims came to nothing. Method: a dozen starts that are cut off at any step, over a store
/// that fails, loses answers or is full; then one that is not.
#[test]
fn starts_that_broke_off_are_no_older_copies() {
    for seed in 0..120 {
        let mut life = filled(seed);
        let is_full = seed % 3 == 0;
        let (errors, lost_replies) = (10, 20);
        life.world.patience = seed % 2 * 6;
        life.world.faults = SimFaults { errors, lost_replies, is_full, ..SimFaults::default() };
        for _ in 0..12 {
            life.stop();
            life.open_again();
            let steps = life.world.rng.below(80);
            (0..steps).for_each(|_| life.tick());
        }
        life.settle();
        load(&mut life);
    }
}

/// Goal: a node whose map file, or whose superblock, an earlier build wrote goes on, and knows its
/// sessions from then on. Method: both without sessions, or one of them; a start whose link is cut
/// at each of its steps, others, and an older copy.
#[test]
fn what_earlier_builds_wrote_is_served() {
    for (seed, steps) in (0..120).map(|number| (number, number / 2)) {
        let mut life = filled(seed);
        life.stop();
        let frames = meta::decode(&life.world.disks.map_file).expect("it is whole");
        let old = frames.into_iter().map(|frame| match frame {
            Frame::Committed(last) => {
                Frame::Committed(Committed { claims: Claims::default(), ..last })
            }
            frame => frame,
        });
        life.world.disks.map_file = old.flat_map(|frame| frame.encode()).collect();
        let before = life.world.disks.clone();
        let (bytes, _) = life.world.store.objects.get_mut(SUPERBLOCK_KEY).expect("it is there");
        let block = Superblock::decode(bytes).expect("it is whole");
        let session = block.session * (seed % 2);
        *bytes = Superblock { session, ..block }.encode().into();
        life.open_again();
        (0..steps).for_each(|_| life.tick());
        life.world.faults.is_cut = true;
        (0..40).for_each(|_| life.tick());
        life.world.faults.is_cut = false;
        assert_eq!(start(&mut life), None, "seed {seed}");
        load(&mut life);
        let newer = life.world.disks.clone();
        assert_eq!(start(&mut life), None, "seed {seed}");
        life.stop();
        life.world.disks = newer;
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("older copy"), "{why}");
        life.world.disks = before;
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("older copy"), "the store has writes that it never had: {why}");
    }
}

/// Goal: an object that a store does not find for a moment ends no start. Method: volumes with
/// segments that no superblock names yet, and others; a share of the answers of their starts says
/// that the object is missing.
#[test]
fn a_moment_without_an_object_ends_no_start() {
    for seed in 0..60 {
        let mut life = Life::new(seed);
        life.load(150 + seed * 7);
        life.stop();
        if seed % 4 == 0 {
            // The node learns all of it again, from checkpoint and segments.
            life.take_over(VolumeUuid([9; 16]));
        } else {
            life.open_again();
        }
        life.world.faults = SimFaults { hidden: 15, ..SimFaults::default() };
        let is_up = (0..6000).any(|_| {
            life.tick();
            life.volume.status().link == Link::Up
        });
        assert!(is_up, "{:?}, seed {seed}", life.volume.status().link);
        life.world.faults = SimFaults::default();
        life.settle();
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

/// The newest session that a map file knows, and the map that it would be served by.
fn known(map_file: &[u8]) -> (Option<u64>, Vec<SegmentName>) {
    let frames = meta::decode(map_file).expect("it is whole");
    let (mut newest, mut names) = (None, Vec::new());
    for frame in frames {
        match frame {
            Frame::Committed(last) => newest = last.claims.sessions().next(),
            Frame::Checkpoint(map) => {
                names = (1..=map.number).filter_map(|number| map.name(number)).collect();
            }
            Frame::Stored(index) => names.push(index.name),
            _ => {}
        }
    }
    (newest, names)
}

/// Goal: a map file that knows a session's claim has no segment that the session does not begin
/// with: a copy of it would be taken for that session's, though others have its numbers since.
/// Method: a segment that no superblock names is spoiled; the map file after each step of the start
/// that learns the volume anew.
#[test]
fn a_claim_is_recorded_with_its_map() {
    let mut learned = 0;
    for seed in 0..200 {
        let mut life = Life::new(seed);
        life.load(200 + seed % 9 * 60);
        life.stop();
        if life.world.spoil_unnamed(&mut Rng::new(seed)).is_none() {
            continue;
        }
        let (before, _) = known(&life.world.disks.map_file);
        life.open_again();
        let (mut has_learned, mut seen) = (false, Vec::new());
        let (mut newest, mut names) = (before, Vec::new());
        for _ in 0..4000 {
            life.tick();
            if life.volume.status().link == Link::Up {
                break;
            }
            if life.world.disks.map_file != seen {
                seen.clone_from(&life.world.disks.map_file);
                (newest, names) = known(&seen);
            }
            has_learned |= names.last().is_some_and(|last| last.number > life.volume.map().number);
            if newest != before {
                let map = life.volume.map();
                let is_other = |name: &&SegmentName| {
                    let own = map.name(name.number);
                    name.number > map.number || own.is_some_and(|own| own != **name)
                };
                let other = names.iter().find(is_other);
                assert_eq!(other, None, "it is in the map file: {}", life.line);
            }
        }
        learned += u32::from(has_learned);
    }
    assert!(learned > 20, "{learned} starts went back");
}

/// Goal: a map file that has a segment from another session than the superblock names it by is
/// another copy's: it is not served, though both have as many segments, and changes nothing in the
/// store. Method: the last segment of a map file said to be of another epoch; a start.
#[test]
fn a_map_with_another_sessions_segment_is_refused() {
    for seed in 0..8 {
        let mut life = filled(seed);
        life.stop();
        let mut frames = meta::decode(&life.world.disks.map_file).expect("it is whole");
        let last = frames.iter_mut().rev().find_map(|frame| match frame {
            Frame::Stored(index) => Some(index),
            _ => None,
        });
        last.expect("segments were put").name.epoch += 5;
        life.world.disks.map_file = frames.iter().flat_map(Frame::encode).collect();
        let stored = versions(&life);
        let why = reopen(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("older copy"), "{why}");
        assert!(life.volume.is_taken(), "nothing of it is read, seed {seed}");
        assert_eq!(versions(&life), stored, "the store is as it was, seed {seed}");
    }
}

/// How many segments the superblock in the store names.
fn named(life: &Life) -> u64 {
    let (bytes, _) = &life.world.store.objects[SUPERBLOCK_KEY];
    Superblock::decode(bytes).expect("it is whole").committed
}

/// Goal: a store that was set back, served, and put forward again costs no node its directory,
/// though the same number is another segment's in both. Method: a segment that a superblock names
/// while the map file does not know so yet; the store of before it, which gets that number again;
/// then the newer store, and the other one.
#[test]
fn a_store_that_is_put_forward_again_takes_no_node() {
    let mut forked = 0;
    for seed in 0..40 {
        let mut life = filled(seed);
        let (before, count) = (life.world.store.clone(), named(&life));
        let buffer = vec![0x44; BLOCK as usize];
        let write = BackingOperation::Write { offset: 0, buffer, durable: true };
        life.volume.submit(1 << 50, write);
        assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
        life.volume.set_draining(true);
        let is_named = (0..4000).any(|_| {
            life.tick();
            named(&life) > count
        });
        assert!(is_named, "it is uploaded, seed {seed}");
        life.stop();
        let newer = std::mem::replace(&mut life.world.store, before);
        let frames = meta::decode(&life.world.disks.map_file).expect("it is whole");
        let is_known =
            |frame: &Frame| matches!(frame, Frame::Committed(last) if last.number > count);
        if frames.iter().any(is_known) {
            continue;
        }
        assert_eq!(reopen(&mut life), None, "it is stored again, seed {seed}");
        life.settle();
        assert!(named(&life) > count, "seed {seed}");
        let other = std::mem::replace(&mut life.world.store, newer);
        let why = start(&mut life).unwrap_or_else(|| panic!("it is served, seed {seed}"));
        assert!(why.contains("set back"), "{why}, seed {seed}");
        assert!(!life.volume.is_taken(), "the directory is no copy, seed {seed}");
        life.world.store = other;
        assert_eq!(start(&mut life), None, "it is served again, seed {seed}");
        assert_eq!(life.volume.status().link, Link::Up, "seed {seed}");
        forked += 1;
    }
    assert!(forked > 20, "{forked} of 40 forked");
}
