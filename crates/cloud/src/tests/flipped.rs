//! Answers of the store with one bit changed: nothing is concluded from them.
//!
//! How: a volume is served, started again and taken by another node, with puts whose answers are
//! lost, so that they are verified; one answer after the other has a bit changed. Then all have.

use super::lives::{BLOCK, Life};
use crate::segment::VolumeUuid;
use crate::simulated::SimFaults;
use crate::volume::Link;
use layby_types::{BackingOperation, Nanos};

/// Steps within which a session has opened, or not.
const STEPS: usize = 4000;

/// A volume that is served, started again, and taken by another node; the volume is read whole at
/// the end. The answers of `flipped` have a bit changed.
fn served(seed: u64, flipped: u64) -> Life {
    let mut life = Life::new(seed);
    life.line = format!("replay with seed {seed}, answer {flipped}");
    life.world.flipped = flipped..flipped + 1;
    for round in 0..3 {
        match round {
            0 => {}
            1 => {
                life.stop();
                life.open_again();
            }
            _ => {
                life.stop();
                life.take_over(VolumeUuid([9; 16]));
            }
        }
        life.world.faults = SimFaults { lost_replies: 30, ..SimFaults::default() };
        life.load(60);
        life.settle();
        life.sync_all();
        life.settle();
    }
    let state = life.read_all();
    assert!(state == life.whole_state(), "{}", life.line);
    life
}

/// Goal: one changed bit in one answer of the store ends no service, whatever was asked for.
/// Method: three sessions whose puts lose answers; in as many runs as they get answers, one of
/// these is changed; each run opens, drains and reads what was written.
#[test]
fn one_changed_bit_ends_no_service() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..6 {
        let answers = served(seed, u64::MAX - 1).world.answers;
        for number in 0..answers {
            let keys = served(seed, number).world.flipped_keys;
            kinds.extend(keys.iter().filter_map(|key| key.split('/').next()).map(str::to_owned));
        }
    }
    for kind in ["checkpoints", "probes", "segments", "superblock"] {
        assert!(kinds.contains(kind), "{kind}: {kinds:?}");
    }
}

/// The session goes on until it has ended; why.
fn lost(life: &mut Life) -> String {
    for _ in 0..STEPS {
        life.tick();
        if let Link::Lost(why) = life.volume.status().link {
            return why;
        }
    }
    panic!("it is served: {:?}, {}", life.volume.status().link, life.line);
}

/// Goal: a superblock that always arrives changed ends a start, within seconds and without a put,
/// and the next start serves the volume if it arrives whole then. Method: all answers of a start
/// changed; the same start again.
#[test]
fn a_superblock_that_stays_damaged_ends_a_start() {
    for seed in 0..10 {
        let mut life = Life::new(seed);
        life.load(100);
        life.settle();
        life.sync_all();
        life.settle();
        life.stop();
        let stored = life.world.store.objects.get("superblock").cloned();
        life.world.flipped = life.world.answers..u64::MAX;
        life.open_again();
        let from = life.now;
        let why = lost(&mut life);
        assert!(why.contains("superblock in the store is damaged"), "{why}");
        assert!(why.contains("start"), "it says what to do: {why}");
        assert!(life.now.since(from) < Nanos::from_secs(10), "seed {seed}");
        assert!(!life.volume.is_taken(), "no other node has taken it, seed {seed}");
        assert!(life.world.store.objects.get("superblock").cloned() == stored, "seed {seed}");
        life.world.flipped = 0..0;
        life.stop();
        life.open_again();
        life.settle();
        assert!(life.read_all() == life.whole_state(), "seed {seed}");
    }
}

/// Goal: a put in doubt whose object always arrives changed ends the session, and nothing says that
/// it is another node's; a start uploads it anew. Method: a put that loses its answers; all answers
/// changed since; a start without.
#[test]
fn a_put_that_stays_in_doubt_ends_the_session() {
    for seed in 0..10 {
        let mut life = Life::new(seed);
        life.settle();
        let objects = life.world.store.objects.len();
        life.world.faults.lost_replies = 100;
        let buffer = vec![0x33; BLOCK as usize];
        let write = BackingOperation::Write { offset: 0, buffer, durable: true };
        life.volume.submit(1 << 50, write);
        assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
        let is_put = (0..STEPS).any(|_| {
            life.tick();
            life.world.store.objects.len() > objects
        });
        assert!(is_put, "seed {seed}");
        life.world.faults = SimFaults::default();
        life.world.flipped = life.world.answers..u64::MAX;
        let why = lost(&mut life);
        assert!(why.contains("segments/") && why.contains("differs"), "{why}");
        assert!(why.contains("start"), "it says what to do: {why}");
        assert!(!life.volume.is_taken(), "no other node has taken it, seed {seed}");
        life.world.flipped = 0..0;
        life.stop();
        life.open_again();
        life.settle();
        let buffer = vec![0; BLOCK as usize];
        life.volume.submit(1 << 51, BackingOperation::Read { offset: 0, buffer });
        assert_eq!(life.wait(1 << 51), (Ok(()), Some(vec![0x33; BLOCK as usize])));
    }
}

/// Goal: a put in doubt of a sealed volume whose object cannot be decrypted is looked at for a
/// bounded time, then ends the session and says why; one that is so for a moment only ends none.
/// Method: a put that loses its answer; objects that fail their tags for good, or for ten seconds.
#[test]
fn a_put_that_cannot_be_decrypted_ends_the_session() {
    for (seed, is_brief) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut life = Life::new(seed);
        life.settle();
        let objects = life.world.store.objects.len();
        life.world.faults.lost_replies = 100;
        let buffer = vec![0x33; BLOCK as usize];
        life.volume.submit(1 << 50, BackingOperation::Write { offset: 0, buffer, durable: true });
        assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
        let is_put = (0..STEPS).any(|_| {
            life.tick();
            life.world.store.objects.len() > objects
        });
        assert!(is_put, "seed {seed}");
        life.world.faults = SimFaults::default();
        life.world.store.is_undecipherable = true;
        let begun = life.now;
        let passed = |life: &Life, seconds| life.now.since(begun) >= Nanos::from_secs(seconds);
        while !life.volume.is_lost() && !passed(&life, if is_brief { 10 } else { 120 }) {
            life.tick();
        }
        if is_brief {
            let (fault, _) = life.volume.status().last_fault.expect("it is in doubt");
            assert!(fault.contains("decrypted"), "{fault}");
            life.world.store.is_undecipherable = false;
            life.settle();
            continue;
        }
        let why = lost(&mut life);
        assert!(why.contains("segments/") && why.contains("decrypted"), "{why}");
        assert!(why.contains("start"), "it says what to do: {why}");
        assert!(!life.volume.is_taken(), "no other node has taken it, seed {seed}");
    }
}

/// Goal: a whole object of another's in a put's place says so at once. Method: the store has a
/// segment of the same key and another content, with its checksum.
#[test]
fn anothers_object_is_told_from_a_damaged_one() {
    let mut life = Life::new(3);
    life.settle();
    life.world.faults.lost_replies = 100;
    let buffer = vec![0x33; BLOCK as usize];
    let write = BackingOperation::Write { offset: 0, buffer, durable: true };
    life.volume.submit(1 << 50, write);
    assert_eq!(life.wait(1 << 50).0, Ok(()), "it is in the journal");
    let segment = |life: &Life| {
        life.world.store.objects.keys().find(|key| key.starts_with("segments/")).cloned()
    };
    let key = (0..STEPS).find_map(|_| {
        life.tick();
        segment(&life)
    });
    let key = key.expect("it was put");
    let name = crate::segment::SegmentName::parse(&key).expect("a segment's key");
    let builder = crate::segment::Builder::new(BLOCK as u32, crate::segment::Compression::None);
    let (bytes, _) = builder.finish(VolumeUuid([8; 16]), name, 0);
    life.world.store.objects.get_mut(&key).expect("it is there").0 = bytes.into();
    life.world.faults = SimFaults::default();
    let before = life.world.answers;
    let why = lost(&mut life);
    assert!(why.contains("is not this node's"), "{why}");
    assert!(life.world.answers - before <= 2, "it is not asked for again and again");
}
