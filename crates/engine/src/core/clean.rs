//! Whether a volume is clean: its backing store has all of it, so that it needs no level; and its
//! removal.
//!
//! How: the cache knows dirty blocks, the tombstones know ranges that are not zeroed below; what is
//! missing is sent. Invariant: a clean volume's backing store durably has every change that was
//! acknowledged. Cost: a look over the volume's slots.
//! Not for: holding changes of clean volumes back; see `shard::intent`.

use super::Core;
use crate::io::Io;
use layby_cache::{OnDirty, RemoveError};
use layby_types::VolumeId;

impl Core {
    /// Whether the backing store durably has all of a volume and nothing in flight changes it. Has
    /// what is missing for that done: discards that wait, and a sync of what was zeroed.
    pub fn settle(&mut self, io: &mut dyn Io, volume: VolumeId) -> bool {
        let is_left = self.send_all_discards(io, volume);
        // No sync of a lost one is trusted. This is asked at each turn: another sync would end at
        // once, and be asked for again.
        if self.homes.get(&volume).is_none_or(|home| home.backing.is_lost()) {
            return false;
        }
        if self.tombstones.awaits_sync(volume) {
            self.sync_home(io, volume);
        }
        !is_left && !self.homes[&volume].syncing && !self.has_changes(volume)
    }

    /// Begins the sync that a removal keeps the data by, of an idle volume: what was written past
    /// the levels is durable afterwards. False where it has been, or none would be trusted.
    pub(super) fn sync_for_removal(&mut self, io: &mut dyn Io, volume: VolumeId) -> bool {
        let Some(home) = self.homes.get_mut(&volume) else { return false };
        let is_apart = home.backing.is_remote() || home.backing.is_lost();
        if is_apart || std::mem::replace(&mut home.is_settled, true) {
            return false;
        }
        self.sync_home(io, volume);
        true
    }

    /// Whether a volume could be removed at once. Has what is missing for that done, but for
    /// destages.
    ///
    /// # Errors
    /// As [`Core::remove_volume`].
    pub fn quiesce(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        on_dirty: OnDirty,
    ) -> Result<(), RemoveError> {
        if self.homes.get(&id).is_some_and(|home| home.inflight > 0 || home.syncing) {
            return Err(RemoveError::Busy);
        }
        if self.cache.is_idle(id) && self.settle_discards(io, id, on_dirty)? {
            return Err(RemoveError::Busy);
        }
        if on_dirty == OnDirty::Refuse && self.cache.is_idle(id) && self.sync_for_removal(io, id) {
            return Err(RemoveError::Busy);
        }
        if on_dirty == OnDirty::Refuse && self.is_unsynced(id) {
            return Err(RemoveError::Unsynced);
        }
        let removable = self.cache.check_removable(id, on_dirty);
        if removable == Err(RemoveError::Dirty)
            && let Some(home) = self.homes.get_mut(&id)
        {
            // What the next drain writes is synced, too.
            home.is_settled = false;
        }
        removable
    }

    /// Forgets an idle volume; its home is detached, its blocks are dropped.
    ///
    /// # Errors
    /// As [`layby_cache::Cache::remove_volume`], [`RemoveError::Unsynced`], and
    /// [`RemoveError::Unzeroed`]; the volume is as it was.
    pub fn remove_volume(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        on_dirty: OnDirty,
    ) -> Result<(), RemoveError> {
        self.quiesce(io, id, on_dirty)?;
        let mut actions = Vec::new();
        self.cache.remove_volume(id, on_dirty, &mut actions)?;
        self.take(actions);
        self.run(io, None);
        if let Some(home) = self.homes.remove(&id) {
            home.backing.detach(io);
        }
        self.remotes.retain(|remote| *remote != id);
        self.unjoin(id);
        self.wides.remove(id);
        self.forget_tombstones(id);
        self.stuck.forget_volume(id);
        Ok(())
    }

    /// Whether a sync of the volume's file or device failed: it may lack what it was given, and no
    /// later sync tells.
    pub(super) fn is_unsynced(&self, volume: VolumeId) -> bool {
        let home = self.homes.get(&volume);
        home.is_some_and(|home| !home.backing.is_remote() && home.backing.is_lost())
    }

    /// Whether a level holds what the volume's backing store may not have.
    #[must_use]
    pub fn has_changes(&self, volume: VolumeId) -> bool {
        self.tombstones.has_undone(volume) || !self.cache.is_clean(volume)
    }
}
