//! Stop: makes durable what is not, marks a clean shutdown, and reports what it could not do.
//!
//! How: work in flight ends, backing stores are synced, the log writes a clean checkpoint. A device
//! that does not answer is given up after [`STOP_PATIENCE`].
//! Invariant: the result is `Ok` only when every acknowledged write survives power loss and the
//! next start needs no recovery.
//! Cost: a sync per backing store and one checkpoint.

use super::{Core, Home, Level, Notice, TICKET_OWN, events};
use crate::io::Io;
use crate::store::{SyncScope, Ticket};
use layby_types::{ErrorKind, Nanos, VolumeId};
use std::collections::BTreeSet;

/// How long a stop waits for devices, and how many turns it takes at most.
pub const STOP_PATIENCE: Nanos = Nanos::from_secs(30);
const STOP_TURNS_MAX: u32 = 1_000_000;
/// How long a stop sleeps at most before it looks at the clock.
const STOP_STEP: Nanos = Nanos::from_millis(100);

/// A shutdown that was not clean: the next start recovers as after a crash, and a power loss before
/// it may take writes that were acknowledged and not flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncleanStop {
    /// What was not made durable and why, a sentence each.
    pub causes: Vec<String>,
}

/// What is left of a stop's waiting.
struct Patience {
    until: Nanos,
    turns: u32,
}

impl Patience {
    fn lasts(&mut self, io: &dyn Io) -> bool {
        self.turns = self.turns.saturating_sub(1);
        self.turns > 0 && io.now() < self.until
    }
}

/// Checkpoints of the log that have ended well since the core was made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checkpoints {
    pub(super) ended: u64,
    /// Of these, those of a stop.
    pub(super) clean: u64,
}

impl Checkpoints {
    pub(super) fn note(&mut self, clean: bool) {
        self.ended += 1;
        self.clean += u64::from(clean);
    }
}

impl Core {
    /// Makes everything durable and marks a clean shutdown; dirty blocks stay where they are. No
    /// request may be in flight.
    ///
    /// # Errors
    /// [`UncleanStop`] names what a device did not do within [`STOP_PATIENCE`], or refused.
    pub fn shut_down(&mut self, io: &mut dyn Io) -> Result<(), UncleanStop> {
        let mut patience = Patience { until: io.now() + STOP_PATIENCE, turns: STOP_TURNS_MAX };
        self.end_work(io, &mut patience);
        let volumes: BTreeSet<VolumeId> = self.homes.keys().copied().collect();
        for volume in volumes {
            self.sync_home(io, volume);
        }
        // A remote backing store may take long, and the log does not depend on it.
        let is_near = |home: &Home| home.syncing && !home.backing.is_remote();
        while self.homes.values().any(is_near) && patience.lasts(io) {
            self.stop_turn(io);
        }
        let levels = match self.log() {
            Some(_) => self.end_log(io, &mut patience),
            None => self.end_nvm(io, &mut patience),
        };
        while self.homes.values().any(|home| home.syncing) && patience.lasts(io) {
            self.stop_turn(io);
        }
        let causes: Vec<String> = self.unsynced_homes().into_iter().chain(levels.err()).collect();
        if causes.is_empty() { Ok(()) } else { Err(UncleanStop { causes }) }
    }

    /// What is in flight ends.
    fn end_work(&mut self, io: &mut dyn Io, patience: &mut Patience) {
        let is_busy = |core: &Core| {
            core.levels.iter().any(|level| !level.is_idle())
                || core.homes.values().any(|home| home.syncing)
        };
        while is_busy(self) && !self.has_failed_checkpoint() && patience.lasts(io) {
            self.give_up_copies();
            self.stop_turn(io);
        }
    }

    /// What cleaning copies and finds no room for would be waited for in vain.
    fn give_up_copies(&mut self) {
        if let Some(log) = self.log_mut() {
            log.give_up_copies();
        }
    }

    /// A clean checkpoint, which makes the other level durable, too. It cannot say that a zeroing
    /// is owed: then it is one as any other, and the next start reads what lies behind it.
    fn end_log(&mut self, io: &mut dyn Io, patience: &mut Patience) -> Result<(), String> {
        let clean = !self.owes_absent();
        self.log_mut().expect("the caller looked").checkpoint_now(clean);
        let before = self.checkpoints;
        // One that had begun before may end first, and is not a clean one.
        let is_over = |core: &Core| match clean {
            true => core.checkpoints.clean > before.clean,
            false => {
                core.checkpoints.ended > before.ended && core.levels.iter().all(Level::is_idle)
            }
        };
        while !is_over(self) && !self.has_failed_checkpoint() && patience.lasts(io) {
            self.give_up_copies();
            self.stop_turn(io);
        }
        match is_over(self) {
            true => Ok(()),
            false if self.has_failed_checkpoint() => {
                Err("the checkpoint of the SSD level failed".to_owned())
            }
            false => Err(format!("the SSD level did not finish its checkpoint {WITHIN}")),
        }
    }

    /// An NVM level without a log has no checkpoint that would sync it.
    fn end_nvm(&mut self, io: &mut dyn Io, patience: &mut Patience) -> Result<(), String> {
        let nvm = self.levels.iter_mut().find_map(|level| match level {
            Level::Nvm(store) => Some(store),
            _ => None,
        });
        let Some(store) = nvm else { return Ok(()) };
        self.stop_sync = None;
        store.sync(io, Ticket(TICKET_OWN | events::OWN_STOP), SyncScope::Stores);
        while self.stop_sync.is_none() && patience.lasts(io) {
            self.stop_turn(io);
        }
        match self.stop_sync {
            Some(Ok(())) => Ok(()),
            Some(Err(kind)) => Err(format!("a sync of the NVM level failed: {kind}")),
            None => Err(format!("the NVM level did not finish its sync {WITHIN}")),
        }
    }

    /// Backing stores whose last sync has not ended well, a sentence each.
    fn unsynced_homes(&self) -> Vec<String> {
        let mut homes: Vec<_> = self.homes.iter().collect();
        homes.sort_unstable_by_key(|(id, _)| **id);
        let describe = |(_, home): (&VolumeId, &Home)| {
            let name = home.backing.name();
            match () {
                // Nothing was written to one that could not be opened.
                () if home.backing.is_absent() => None,
                // Another node has it: this one was told, and no device failed.
                () if home.backing.is_closed() => None,
                () if home.syncing => {
                    Some(format!("backing store `{name}` did not finish its sync {WITHIN}"))
                }
                () if home.unsynced || home.backing.is_lost() => {
                    Some(format!("a sync of backing store `{name}` failed"))
                }
                () => None,
            }
        };
        homes.into_iter().filter_map(describe).collect()
    }

    /// The sync of the NVM level that a stop waits for has ended.
    pub(super) fn on_stop_synced(&mut self, result: Result<(), ErrorKind>) {
        self.stop_sync = Some(result);
    }

    /// A turn whose wait ends in time to notice a device that does not answer.
    fn stop_turn(&mut self, io: &mut dyn Io) {
        let latest = io.now() + STOP_STEP;
        self.turn_by(io, latest);
    }

    fn has_failed_checkpoint(&self) -> bool {
        self.notices.iter().any(|notice| matches!(notice, Notice::CheckpointFailed))
    }
}

/// [`STOP_PATIENCE`] in words.
const WITHIN: &str = "within 30 s";
