//! Homes far away: their ends, what they have at hand, and the end of waiting for them.
//!
//! How: such a home ends calls on threads of its own, whose wakers end the shard's waits; after
//! each wait it is asked. What it has at hand, the cache may take.
//! Invariant: a turn handles a bounded number of ends and offers per home.
//! Cost: a look per home and wait.

use super::{Core, HOME_DISCARD, HOME_EXTENTS, HOME_SYNC};
use crate::io::Io;
use layby_types::{BackingDone, BlockIndex, RequestId, VolumeId};

/// Ends that one remote home is asked for at a time, so that others get their turn between.
const REMOTE_ENDS_MAX: usize = 64;
/// Ranges that one remote home has at hand and that are looked at at a time: nobody waits for them.
const OFFERS_MAX: usize = 16;

impl Core {
    /// Takes what remote homes have ended. Call it after each wait, since their wakers end waits.
    pub fn poll_homes(&mut self, io: &mut dyn Io) {
        self.has_more_ends = false;
        let mut any = false;
        for index in 0..self.remotes.len() {
            let id = self.remotes[index];
            let taken = self.take_ends(io, id);
            self.has_more_ends |= taken == REMOTE_ENDS_MAX;
            let offered = self.take_at_hand(id);
            self.has_more_ends |= offered == OFFERS_MAX;
            any |= taken + offered > 0;
        }
        if any {
            self.run(io, None);
        }
    }

    /// Handles ends of a home, a bounded number at a time; answers with how many there were.
    pub(super) fn take_ends(&mut self, io: &mut dyn Io, id: VolumeId) -> usize {
        for taken in 0..REMOTE_ENDS_MAX {
            let ended = self.homes.get_mut(&id).and_then(|home| home.backing.poll());
            let Some(done) = ended else { return taken };
            if let Some(op) = self.delays.end_zeroing(done.token) {
                self.on_home_done(io, id, BackingDone { token: op.0.into(), ..done });
            } else if done.token & HOME_DISCARD != 0 {
                self.on_discarded(io, id, done.token, done.result);
            } else if done.token & HOME_EXTENTS != 0 {
                let request = RequestId(done.token & !HOME_EXTENTS);
                self.on_extents(io, request, done.result, &done.extents);
            } else if done.token == HOME_SYNC {
                self.on_home_synced(io, id, done.result);
            } else {
                self.on_home_done(io, id, done);
            }
        }
        REMOTE_ENDS_MAX
    }

    /// Tells the cache what a home has at hand, a bounded number of ranges at a time; answers with
    /// how many there were.
    fn take_at_hand(&mut self, id: VolumeId) -> usize {
        for taken in 0..OFFERS_MAX {
            let offered = self.homes.get_mut(&id).and_then(|home| home.backing.poll_at_hand());
            let Some(bytes) = offered else { return taken };
            let blocks = self.blocks_of(&bytes);
            let mut actions = std::mem::take(&mut self.scratch);
            let run = (BlockIndex(blocks.start), blocks.end - blocks.start);
            self.cache.on_at_hand(id, run, &mut actions);
            self.take(actions);
        }
        OFFERS_MAX
    }

    /// Remote homes are to end soon what waits for something far away: of one volume, or of all.
    pub fn stop_waiting(&mut self, volume: Option<VolumeId>) {
        for id in self.remotes.iter().filter(|id| volume.is_none_or(|volume| volume == **id)) {
            let home = self.homes.get_mut(id).expect("remote homes are homes");
            home.backing.stop_waiting();
        }
    }
}
