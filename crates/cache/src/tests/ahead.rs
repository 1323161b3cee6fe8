//! What is read ahead stays until it is read, in a level that is full, and displaces little.

use super::host::*;
use crate::read::PROMOTIONS_MAX;
use crate::wear::{DAY, Endurance, Wear, WearLimits};
use crate::*;
use layby_types::*;
use std::vec::Vec;

const BLOCK: u64 = 4096;
/// Slots of the level under test.
const SLOTS: u64 = 1024;
/// Blocks of one read.
const READ: u64 = 16;
const STREAM: VolumeId = VolumeId(1);
const HOT: VolumeId = VolumeId(2);

fn read(block: u64, blocks: u64) -> Call {
    call(Operation::Read, block * BLOCK, blocks * BLOCK)
}

/// What is read ahead may hold of the level until it is read.
const AHEAD: u64 = SLOTS / 16;

/// A memory level alone, with volumes of many times its size.
fn memory_alone(eviction: EvictionKind, slots: u64, is_on: bool) -> Host {
    let mut spec = spec([slots as u32, 4, 4]);
    spec.levels.truncate(1);
    spec.levels[0].eviction = eviction;
    spec.classes.iter_mut().for_each(|class| class.levels = 0b1);
    if is_on {
        spec.read_ahead = ReadAheadLimits::DEFAULT;
    }
    Host::new(spec, &[volume(1, 0, 64 * SLOTS), volume(2, 0, 64 * SLOTS)], 1)
}

impl Host {
    fn read_settled(&mut self, volume: VolumeId, block: u64, blocks: u64) {
        assert_eq!(self.run(volume, read(block, blocks), 0).result, Ok(()));
        self.settle();
    }

    fn hits(&self, volume: VolumeId) -> u64 {
        self.cache.volume_counters(volume).expect("the volume exists").hits[0]
    }

    /// Fills the level with blocks that were read several times, out of order.
    fn fill_hot(&mut self) {
        for step in 0..3 * SLOTS {
            self.read_settled(HOT, step * 389 % SLOTS, 1);
        }
        let view = self.cache.level_view(LevelIndex(0), self.now);
        assert_eq!(view.used, view.slots, "the level is full");
    }

    /// Reads that many streams make in turn, each in order; answers with hits and blocks fetched.
    fn stream(&mut self, streams: &[(VolumeId, u64)], reads: u64) -> (u64, u64) {
        let before = self.cache.backing_counters().blocks_read;
        let hits = [STREAM, HOT].map(|volume| self.hits(volume)).iter().sum::<u64>();
        for step in 0..reads {
            for (volume, first) in streams {
                self.read_settled(*volume, first + step * READ, READ);
            }
        }
        let after = [STREAM, HOT].map(|volume| self.hits(volume)).iter().sum::<u64>();
        (after - hits, self.cache.backing_counters().blocks_read - before)
    }
}

/// Goal: in a full level what was read ahead stays until its reader arrives, with every policy.
/// Method: blocks that were used three times fill the level, then one reader in order reads four
/// times its size: nine of ten blocks are hits and hardly a block is fetched twice.
#[test]
fn a_full_level_keeps_what_is_read_ahead() {
    for eviction in EvictionKind::ALL {
        let mut host = memory_alone(eviction, SLOTS, true);
        host.fill_hot();
        let blocks = 4 * SLOTS;
        let (hits, fetched) = host.stream(&[(STREAM, 0)], blocks / READ);
        let name = eviction.name();
        assert!(hits * 10 >= blocks * 9, "{name}: {hits} hits of {blocks} blocks");
        assert!(fetched * 10 <= blocks * 11, "{name}: {fetched} fetched of {blocks} blocks");
    }
}

/// Goal: the same for several readers at once, of one volume and of two. Method: four readers in
/// order of one volume and two of another take turns.
#[test]
fn a_full_level_keeps_what_several_readers_will_read() {
    for eviction in EvictionKind::ALL {
        let mut host = memory_alone(eviction, SLOTS, true);
        host.fill_hot();
        let mut streams: Vec<_> = (1..5).map(|n| (STREAM, n * 12 * SLOTS)).collect();
        streams.extend((1..3).map(|n| (HOT, n * 12 * SLOTS)));
        let blocks = 6 * 2 * SLOTS;
        let (hits, fetched) = host.stream(&streams, 2 * SLOTS / READ);
        let name = eviction.name();
        assert!(fetched * 10 <= blocks * 11, "{name}: {fetched} fetched of {blocks} blocks");
        // Windows are short here: a sixth of a sixteenth of the level each.
        assert!(hits * 10 >= blocks * 4, "{name}: {hits} hits of {blocks} blocks");
    }
}

/// Goal: the same for a volume that may hold a part of the level only. Method: a cap of a quarter.
#[test]
fn a_capped_volume_keeps_what_is_read_ahead() {
    for eviction in EvictionKind::ALL {
        let mut host = memory_alone(eviction, SLOTS, true);
        let mut capped = host.specs[0].clone();
        capped.shares[0].cap = SLOTS as u32 / 4;
        host.cache.set_volume(&capped).expect("the cap is sound");
        host.specs[0] = capped;
        host.fill_hot();
        let blocks = 4 * SLOTS;
        let (hits, fetched) = host.stream(&[(STREAM, 0)], blocks / READ);
        let name = eviction.name();
        assert!(hits * 10 >= blocks * 4, "{name}: {hits} hits of {blocks} blocks");
        assert!(fetched * 10 <= blocks * 11, "{name}: {fetched} fetched of {blocks} blocks");
    }
}

/// Hits of a hot set of three quarters of the level, read by chance, beside what `other` reads.
fn hot_hits(mut host: Host, other: impl Fn(&mut Host, &mut Rng, u64)) -> u64 {
    host.fill_hot();
    let (mut hits, mut rng) = (0, Rng::new(7));
    for step in 0..16 * SLOTS {
        let before = host.hits(HOT);
        host.read_settled(HOT, rng.below(SLOTS * 3 / 4), 1);
        hits += host.hits(HOT) - before;
        other(&mut host, &mut rng, step);
    }
    hits
}

/// Beside what `other` reads, read-ahead costs a hot set no more hits than a level that is smaller
/// by what may be read ahead would, give or take a fiftieth. (S3-FIFO and ARC may gain by that.)
fn displaces_its_part_only(eviction: EvictionKind, other: impl Fn(&mut Host, &mut Rng, u64)) {
    let hits = |slots, is_on| hot_hits(memory_alone(eviction, slots, is_on), &other);
    let (on, off) = (hits(SLOTS, true), hits(SLOTS, false).min(hits(SLOTS - AHEAD, false)));
    let name = eviction.name();
    assert!(on * 50 >= off * 49, "{name}: {on} hits with read-ahead, {off} without");
}

/// A reader in order, of what nothing else reads.
fn stream(volume: VolumeId) -> impl Fn(&mut Host, &mut Rng, u64) {
    move |host, _, step| host.read_settled(volume, 2 * SLOTS + step * 4 % (60 * SLOTS), 4)
}

/// Readers in order that end after four reads.
fn runs(volume: VolumeId) -> impl Fn(&mut Host, &mut Rng, u64) {
    move |host, rng, step| {
        if step % 4 == 0 {
            let first = 2 * SLOTS + rng.below(60 * SLOTS);
            (0..4).for_each(|read| host.read_settled(volume, first + read, 1));
        }
    }
}

/// Goal: read-ahead displaces little of what is used again in its volume, whether what it fetches
/// is read or not, with every policy. Method: a hot set that is read by chance beside a reader in
/// order, and beside readers in order that end soon.
#[test]
fn read_ahead_leaves_the_hot_set_alone() {
    for eviction in EvictionKind::ALL {
        displaces_its_part_only(eviction, stream(HOT));
        displaces_its_part_only(eviction, runs(HOT));
    }
}

/// Goal: the same of another volume's hot set. Method: the same, for the policies that share a
/// level between such volumes steadily when nothing is read ahead.
#[test]
fn read_ahead_leaves_the_hot_sets_of_others_alone() {
    use EvictionKind::{Clock, Fifo, Lfu, Lru};
    for eviction in [Lru, Fifo, Clock, Lfu] {
        displaces_its_part_only(eviction, stream(STREAM));
        displaces_its_part_only(eviction, runs(STREAM));
    }
}

/// Goal: nothing is read ahead that its level would not keep: where it is the SSD level and its
/// stores are behind, or its wear budget is used up; and it is again afterwards. Method: a reader
/// in order, whose blocks are all fetched once, with as many stores in flight as may be, with a
/// budget that is used up, with neither.
#[test]
fn nothing_is_read_ahead_that_would_not_be_kept() {
    for (is_behind, is_worn) in [(true, false), (false, true), (false, false)] {
        let mut spec = spec([4, 4, 1 << 14]);
        spec.read_ahead = ReadAheadLimits::DEFAULT;
        let mut host = Host::new(spec, &[volume(1, 1, 64 * SLOTS)], 1);
        if is_behind {
            host.cache.promotions_inflight = PROMOTIONS_MAX;
        }
        if is_worn {
            let endurance = Endurance { bytes: 1000 << 20, life: Nanos(1000 * DAY.0) };
            let mut wear = Wear::new(Some(endurance), WearLimits::DEFAULT, host.now);
            wear.charge(3 << 20, host.now);
            host.cache.set_wear(LevelIndex(2), wear);
        }
        for first in (0..SLOTS).step_by(READ as usize) {
            host.read_settled(STREAM, first, READ);
        }
        let counted = host.cache.backing_counters();
        if is_behind || is_worn {
            assert_eq!((counted.blocks_read, counted.blocks_read_ahead), (SLOTS, 0));
        } else {
            assert!(counted.blocks_read_ahead > SLOTS / 2, "{counted:?}");
        }
    }
}

/// Goal: every block read counts once, as a hit or as a miss, whatever fetch serves it. Method:
/// reads in any order of a small volume, many at once, with read-ahead, blocks that the backing
/// store has at hand, hints, and levels that are too small for all.
#[test]
fn hits_and_misses_add_up_to_the_blocks_read() {
    for seed in 0..64 {
        let mut spec = spec([48, 16, 64]);
        spec.read_ahead = ReadAheadLimits::DEFAULT;
        let mut host = Host::new(spec, &[volume(1, 0, 128), volume(2, 1, 128)], seed);
        let (mut rng, mut blocks) = (Rng::new(seed), 0);
        for step in 0..400u64 {
            let one = VolumeId(1 + rng.below(2) as u32);
            let count = 1 + rng.below(4);
            let first = if rng.chance(1, 2) { step % 120 } else { rng.below(120) };
            match rng.below(8) {
                0 => host.at_hand(one, first, count),
                1 => drop(host.submit(one, call(Operation::Cache, first * BLOCK, BLOCK), 0)),
                _ => {
                    blocks += count;
                    host.submit(one, read(first, count), 0);
                }
            }
            if rng.chance(1, 3) {
                host.step();
            }
        }
        host.settle();
        let counted = [STREAM, HOT].map(|volume| {
            let counters = host.cache.volume_counters(volume).expect("the volume exists");
            counters.hits.iter().sum::<u64>() + counters.misses
        });
        assert_eq!(counted.iter().sum::<u64>(), blocks, "SEED={seed}");
    }
}
