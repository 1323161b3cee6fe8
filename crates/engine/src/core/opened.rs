//! Backing stores that were just opened: what an earlier process wrote there may be volatile.
//!
//! How: a process that was killed may have written past the levels without a flush. So nothing in
//! a file or device counts as durable before a sync, which begins when it is opened and is not
//! waited for. Until it has ended no level keeps copies of the volume, and a flush syncs, too.
//! Invariant: a flush that ends well covers what any earlier process wrote; a copy in a level is
//! never newer than what its backing store has durably.
//! Cost: a sync per file or device and start, of which little is to be written as a rule.
//! Not for: remote backing stores, which know what they have durably; absent ones; and
//! write-protected ones, which were not written to.

use super::Core;
use crate::io::Io;
use layby_types::{ErrorKind, VolumeId};

impl Core {
    /// Begins the sync of a file or device that was just opened. One that hangs or fails holds up
    /// no other volume: copies are not kept then, and after a failure flushes fail.
    pub fn sync_opened(&mut self, io: &mut dyn Io, volume: VolumeId) {
        let Some(home) = self.homes.get_mut(&volume).filter(|home| !home.backing.is_remote())
        else {
            return;
        };
        home.opened = self.cache.expect_unsynced(volume);
        self.sync_home(io, volume);
    }

    /// A sync of the core's own has ended, which began when a backing store was opened or later.
    /// Answers whether it was the first.
    pub(super) fn end_opened(&mut self, volume: VolumeId, result: Result<(), ErrorKind>) -> bool {
        let home = self.homes.get_mut(&volume).expect("a home outlives its calls");
        let Some(stored) = home.opened.take() else { return false };
        if result.is_ok() {
            self.cache.note_backing_synced(volume, stored);
        }
        true
    }
}
