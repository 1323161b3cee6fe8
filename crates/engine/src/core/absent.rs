//! Volumes whose home could not be opened at the start: what the levels hold of them is kept. A
//! write-protected backing store counts as one while zeroes wait to be written to it.
//!
//! How: such a volume has a stand-in for its home, see [`crate::backing::AbsentHome`]. The cache
//! takes it for one that does not answer, so that nothing is destaged. What recovery would zero
//! below stays owed: each checkpoint writes that down anew, and a stop makes one that is not clean.
//! Invariant: no block of the volume becomes clean, and no zeroing done for, before the home itself
//! is opened, at a later start.
//! Cost: its dirty blocks keep their slots; starts read the log while a zeroing is owed. Where the
//! log is so full that it cannot owe, checkpoints fail, and are tried again.

use super::{Core, CoreError, HomeBacking};
use crate::backing::{AbsentHome, RemoteHome};
use crate::control::HomeRefusal;
use crate::store::Resolved;
use layby_cache::Moment;
use layby_types::{ErrorKind, VolumeId};
use std::collections::BTreeMap;

impl Core {
    /// Whether a volume's home could not be opened.
    #[must_use]
    pub fn is_absent(&self, volume: VolumeId) -> bool {
        self.homes.get(&volume).is_some_and(|home| home.backing.is_absent())
    }

    /// Write-protected backing stores that recovery would write zeroes to give way to `protected`,
    /// their stand-ins: without these zeroes reads of them would be wrong. The others are served.
    pub(super) fn miss_protected(
        &mut self,
        resolved: &Resolved,
        protected: BTreeMap<VolumeId, AbsentHome>,
    ) -> Vec<HomeRefusal> {
        let is_owed = |volume| resolved.redo_zeroes.iter().any(|owed| owed.volume == volume);
        let missed = protected.into_iter().filter(|(volume, _)| is_owed(*volume));
        let miss = |(volume, stand_in): (VolumeId, AbsentHome)| {
            let home = self.homes.get_mut(&volume).expect("each home that was given has a volume");
            let cause = format!(
                "`{}` is write-protected, and zeroes wait to be written to it",
                home.backing.name()
            );
            home.backing = HomeBacking::Remote(RemoteHome::absent(Box::new(stand_in)));
            self.remotes.push(volume);
            self.cache.set_device(volume, None);
            self.hold_back(volume);
            HomeRefusal { volume, kind: ErrorKind::Denied, cause }
        };
        missed.map(miss).collect()
    }

    /// Nothing is sent to the home of a volume.
    pub(super) fn hold_back(&mut self, volume: VolumeId) {
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let mut actions = std::mem::take(&mut self.scratch);
        self.cache.set_stuck(&mut moment, volume, true, &mut actions);
        self.take(actions);
    }

    /// The zeroings of a volume that recovery cannot redo stay owed.
    ///
    /// # Errors
    /// [`CoreError::Home`] where there are more than checkpoints can carry.
    pub(super) fn owe_zeroes(
        &mut self,
        volume: VolumeId,
        resolved: &Resolved,
    ) -> Result<(), CoreError> {
        for tombstone in resolved.redo_zeroes.iter().filter(|t| t.volume == volume) {
            self.tombstones.keep(tombstone);
        }
        let count = self.tombstones.count();
        if self.log().is_some_and(|(_, log)| !log.can_owe(count)) {
            let name = self.homes[&volume].backing.name().to_owned();
            return Err(CoreError::Home { name, kind: ErrorKind::Full });
        }
        Ok(())
    }

    /// Whether a zeroing waits for a home that could not be opened.
    pub(super) fn owes_absent(&self) -> bool {
        self.homes
            .iter()
            .any(|(id, home)| home.backing.is_absent() && self.tombstones.has_undone(*id))
    }
}
