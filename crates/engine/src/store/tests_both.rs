//! Both stores and a backing store under random histories with crashes; see `tests_world`.

use super::tests_world::{Size, Upper, World};
use crate::io::CrashMode;
use layby_cache::discards::DiscardMode::{Delayed, Immediate, Off};
use layby_types::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `body` for a range of seeds, or for the one in `SEED`; prints how to replay a failure.
pub(super) fn for_each_seed(count: u64, body: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let count = std::env::var("SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(count);
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| body(seed)) {
            #[expect(clippy::print_stderr, reason = "a failing test names its replay line")]
            {
                eprintln!("replay with SEED={seed}");
            }
            std::panic::resume_unwind(panic);
        }
    }
}

/// Seeds per test on a change; `SEEDS` in the environment asks for more.
const SEEDS: u64 = 60;

/// A log of few segments, without a level above.
const LOG_ALONE: Size = Size {
    keys: 90,
    log_blocks: 306,
    nvm_blocks: 0,
    upper: Upper::None,
    discard: Off,
    all_streams: false,
    owns_cleaning: false,
};

/// A history in which free segments are discarded or not, by the seed.
fn history(seed: u64, size: Size) -> World {
    let mut rng = Rng::new(seed);
    let discard = [Off, Immediate, Delayed][seed as usize % 3];
    let (all_streams, owns_cleaning) = (seed.is_multiple_of(2), seed % 4 < 2);
    let size = Size { discard, all_streams, owns_cleaning, ..size };
    let mut world = World::new(seed, size);
    for _ in 0..4 {
        for _ in 0..rng.below(1200) {
            world.step();
        }
        let mode = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
        if rng.chance(1, 5) {
            world.shut_down();
        }
        world.crash(mode[rng.below(3) as usize]);
    }
    world
}

/// Goal: the log alone keeps every promise. Method: random histories on a region of few segments,
/// so that cleaning, checkpoints and reuse go on all the time, with crashes of each kind.
#[test]
fn log_alone_keeps_its_promises() {
    let seen = [const { AtomicU64::new(0) }; 5];
    for_each_seed(SEEDS, |seed| {
        let size = LOG_ALONE;
        let world = history(seed, size);
        seen.iter().zip(world.seen).for_each(|(sum, count)| {
            sum.fetch_add(count, Ordering::Relaxed);
        });
    });
    if std::env::var("SEED").is_err() {
        let seen = seen.map(AtomicU64::into_inner);
        assert!(
            seen.iter().all(|count| *count > 0),
            "torn, cleaned, checkpoints, dropped, destaged: {seen:?}"
        );
    }
}

/// Goal: a lost sector of the log's structures costs nothing. Method: random histories; after the
/// last crash every superblock, header, descriptor, trailer and chunk has a sector that is
/// damaged or cannot be read.
#[test]
fn a_lost_sector_of_each_structure_costs_nothing() {
    for_each_seed(SEEDS, |seed| {
        let size = LOG_ALONE;
        let mut world = history(seed, size);
        for _ in 0..seed * 10 {
            world.step();
        }
        world.loses_sectors = true;
        world.crash(CrashMode::KeepSome);
    });
}

/// Goal: a lost page of the log's structures costs nothing: a bad sector of 4 KiB. Method: random
/// histories; after the last crash a segment header, or a descriptor of which another batch has a
/// copy, is noise or cannot be read.
#[test]
fn a_lost_page_of_a_structure_costs_nothing() {
    let lost = std::sync::atomic::AtomicU64::new(0);
    for_each_seed(SEEDS, |seed| {
        for rounds in 0..8 {
            let mut world = World::new(seed * 8 + rounds, LOG_ALONE);
            for _ in 0..40 + rounds * seed {
                world.step();
            }
            world.loses_page = true;
            world.crash(CrashMode::KeepSome);
            lost.fetch_add(world.seen[5], std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(lost.into_inner() > SEEDS * 6, "too few pages were lost");
}

/// Goal: a lost sector of the NVM level's headers costs nothing either, and brings nothing older
/// back. Method: as above, over both kinds of mapping; of every slot the header or its copy is
/// damaged.
#[test]
fn a_lost_header_of_each_slot_costs_nothing() {
    for_each_seed(SEEDS, |seed| {
        let upper = if seed % 2 == 0 { Upper::PageCache } else { Upper::Persistent };
        let size = Size { keys: 110, nvm_blocks: 48, upper, ..LOG_ALONE };
        let mut world = history(seed, size);
        for _ in 0..seed * 10 {
            world.step();
        }
        world.loses_sectors = true;
        world.crash(CrashMode::KeepSome);
    });
}

/// Goal: R1 and R2 hold across levels with a page-cached NVM. Method: as above, blocks moving
/// between the levels in all ways the shard may move them.
#[test]
fn levels_keep_their_promises_with_a_page_cached_mapping() {
    for_each_seed(SEEDS, |seed| {
        let size = Size { keys: 110, nvm_blocks: 48, upper: Upper::PageCache, ..LOG_ALONE };
        history(seed, size);
    });
}

/// Goal: as above with persistent memory. Method: as above.
#[test]
fn levels_keep_their_promises_with_persistent_memory() {
    for_each_seed(SEEDS, |seed| {
        let size = Size { keys: 110, nvm_blocks: 48, upper: Upper::Persistent, ..LOG_ALONE };
        history(seed, size);
    });
}

/// Goal: a record that loses at a start is cleared before the checkpoint that keeps its winner is
/// complete; no cut meanwhile, nor a second one, brings an older version back or loses the block.
/// Method: as above, with several starts in a row that are cut within a few turns of their
/// checkpoint; what a start has found is the least that the next one may find.
#[test]
fn starts_cut_short_keep_what_they_found() {
    for_each_seed(SEEDS, |seed| {
        let upper = if seed.is_multiple_of(2) { Upper::PageCache } else { Upper::Persistent };
        let mut world = World::new(seed, Size { keys: 110, nvm_blocks: 48, upper, ..LOG_ALONE });
        let mut rng = Rng::new(seed ^ 0x105e);
        for _ in 0..6 {
            (0..rng.below(400)).for_each(|_| world.step());
            for _ in 0..1 + rng.below(4) {
                let modes = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
                world.crash(modes[rng.below(3) as usize]);
                // As behind each crash.
                world.log.checkpoint_now(false);
                (0..rng.below(8)).for_each(|_| world.turn());
            }
        }
    });
}

impl World {
    /// Writes so often to the log, a few calls at a time; panics when a write never ends.
    fn churn(&mut self, writes: u32) {
        for _ in 0..writes {
            self.write_log();
            let mut turns = 0;
            while self.under_way() > 16 {
                self.turn();
                self.drain();
                turns += 1;
                assert!(turns < 20_000, "the log is stuck: {} free", self.log.segments_free());
            }
        }
    }

    /// Lets some operations end beside as many writes as [`World::churn`] has under way.
    fn busy_turns(&mut self, turns: u64) {
        for _ in 0..turns {
            if self.under_way() <= 16 {
                self.write_log();
            }
            self.turn();
            self.drain();
        }
    }
}

/// Goal: a log whose every slot holds a dirty block goes on taking writes. Method: as many keys as
/// slots, many times the region's bytes, nothing ever evicted; then a crash.
#[test]
fn full_log_never_gets_stuck() {
    for_each_seed(8, |seed| {
        let mut size = Size { keys: 1, ..LOG_ALONE };
        size.keys = World::new(seed, size).log.slot_count() as usize;
        let mut world = World::new(seed, size);
        world.churn(6000);
        assert!(world.log.counters().segments_cleaned > 100, "{:?}", world.log.counters());
        world.crash(CrashMode::KeepSome);
        world.churn(500);
    });
}

/// Goal: whenever the power fails, a log whose every slot holds a dirty block goes on taking writes
/// after the next start. Method: as many keys as slots; cuts of each kind after a few operations
/// have ended, most of them in the middle of cleaning or of the work of the start before; after
/// each of them writes come to an end. Ten segments and more.
#[test]
fn full_log_never_gets_stuck_by_power_cuts() {
    for_each_seed(SEEDS, |seed| {
        let log_blocks = [186, 216, 318][seed as usize % 3];
        let mut size = Size { keys: 1, log_blocks, ..LOG_ALONE };
        size.keys = World::new(seed, size).log.slot_count() as usize;
        let mut world = World::new(seed, size);
        world.is_slow_below = seed % 4 != 0;
        let mut rng = Rng::new(seed ^ 0xc075);
        world.churn(size.keys as u32 * 6);
        for _ in 0..60 {
            if rng.chance(1, 4) {
                world.churn(1 + rng.below(2 * size.keys as u64) as u32);
            }
            world.busy_turns(rng.below(120));
            let modes = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
            world.crash(modes[rng.below(3) as usize]);
        }
        world.churn(size.keys as u32);
    });
}
