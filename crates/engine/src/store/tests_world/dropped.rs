//! Clean blocks of the log that a start has no slot for, and what older records they outrank.

use super::super::tests_both::for_each_seed;
use super::{Home, Pending, Size, Upper, World};
use crate::io::CrashMode;
use layby_cache::discards::DiscardMode::Off;

/// A log below a page-cached NVM level.
const BOTH: Size = Size {
    keys: 1,
    log_blocks: 306,
    nvm_blocks: 48,
    upper: Upper::PageCache,
    discard: Off,
    all_streams: false,
    owns_cleaning: false,
};

impl World {
    /// Runs until every call and every checkpoint has ended.
    fn finish(&mut self) {
        while self.under_way() > 0 || !self.log.is_idle() {
            self.turn();
            self.drain();
        }
    }

    /// Puts a new version of a key into a level.
    fn put_new(&mut self, key: usize, nvm: bool) {
        let version = self.version();
        self.put(key, version, true, nvm);
    }

    /// The backing store has the key's bytes; it leaves the log.
    fn destage_and_evict(&mut self, key: usize) {
        let Some(Home::Log(slot)) = self.homes[key] else { panic!("key {key} is in the log") };
        self.log.on_dirty_changed(slot);
        self.backing[key] = self.current[key];
        (self.homes[key], self.log_owners[slot.0 as usize]) = (None, None);
        self.log.free(slot);
    }

    /// A flush of the log alone: what is cleared in the NVM level's mapping is not durable by it.
    fn flush_log(&mut self) {
        let pending = Pending::Flush { snapshot: self.current.clone(), left: 1 };
        let ticket = self.ticket(pending);
        self.log.sync(&mut self.io, ticket);
        self.finish();
    }
}

/// Goal: a clean block of the log for which a start has no slot still outranks the older header of
/// the block in the NVM level, at that start and at later ones. Method: dirty blocks fill the log
/// but for one slot; there a block from the NVM level is stored, destaged, evicted, promoted again
/// and evicted again; another dirty block takes the slot; a power cut takes the clearing of the
/// header; some histories and one more cut follow.
#[test]
fn a_dropped_clean_block_outranks_an_older_header() {
    for_each_seed(20, |seed| {
        let mut size = BOTH;
        let slots = World::new(seed, size).log.slot_count() as usize;
        size.keys = slots + 1;
        let mut world = World::new(seed, size);
        (1..slots).for_each(|key| world.put_new(key, false));
        world.finish();
        world.put_new(0, true);
        world.flush();
        world.log.checkpoint_now(false);
        world.finish();
        let checkpoints = world.log.counters().checkpoints;
        world.put_new(0, false);
        world.finish();
        world.destage_and_evict(0);
        world.put(0, world.current[0], false, false);
        world.finish();
        world.destage_and_evict(0);
        world.put_new(slots, false);
        world.flush_log();
        let since = world.log.counters().checkpoints - checkpoints;
        assert_eq!(since, 0, "a checkpoint makes the clearing of the header durable");
        world.crash(CrashMode::DropAll);
        assert!(world.homes[0].is_none(), "no slot is left for a clean block");
        for _ in 0..seed * 20 {
            world.step();
        }
        world.crash(CrashMode::DropAll);
    });
}
