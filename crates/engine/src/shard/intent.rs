//! Which volumes may be changed: those whose write intent the control plane has recorded.
//!
//! How: a volume without a write intent is *clean*: its backing store has all of it, so that a node
//! that loses a level still serves it. The first change of a clean volume waits until the control
//! plane has recorded the intent, which survives power loss; reads and flushes pass. A start that
//! finds changes of a clean volume in a level wants the intent before anything passes. Where the
//! control plane cannot record it, changes end with an error until it can.
//! Invariant: no change of a clean volume starts. A waiter is named once, or is cancelled.
//! Cost: a look-up in an empty map where every volume has its intent; a catalog's write for the
//! first change of a clean volume. Source: the write-intent bitmap of Linux's md, per volume.

use layby_cache::throttle::Cost;
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, ErrorKind, Operation, VolumeId};
use std::collections::{BTreeMap, HashMap};

/// See the file's header.
#[derive(Default)]
pub(super) struct Intents {
    /// Clean volumes, each with what waits for its intent.
    clean: HashMap<VolumeId, Waiting>,
    /// Volumes whose intent is wanted and was not asked for yet.
    wanted: Vec<VolumeId>,
    /// How often the control plane was asked for a volume's intent and has not answered yet.
    asked: HashMap<VolumeId, u32>,
}

#[derive(Default)]
struct Waiting {
    is_wanted: bool,
    /// Reads wait, too: they would show what a level alone has.
    holds_all: bool,
    /// The intent cannot be recorded now: changes end with this error and wait no more.
    refused: Option<ErrorKind>,
    /// By asker, so that one that asks again waits once.
    askers: BTreeMap<u64, Cost>,
}

impl Intents {
    /// Holds changes of the volume from now on.
    pub(super) fn set_clean(&mut self, volume: VolumeId) {
        self.clean.entry(volume).or_default();
    }

    /// Holds all requests of the volume until its intent is recorded, which is wanted now. It is
    /// clean, yet a level holds a change of it: one that had failed, and was on the device all the
    /// same. What is read of that must survive the loss of the level like any other change.
    pub(super) fn hold_revived(&mut self, volume: VolumeId) {
        let waiting = self.clean.entry(volume).or_default();
        waiting.holds_all = true;
        if !std::mem::replace(&mut waiting.is_wanted, true) {
            self.wanted.push(volume);
        }
    }

    /// Whether changes of the volume wait for an intent.
    pub(super) fn is_clean(&self, volume: VolumeId) -> bool {
        self.clean.contains_key(&volume)
    }

    /// Whether something waits to change a clean volume.
    pub(super) fn is_wanted(&self, volume: VolumeId) -> bool {
        self.clean.get(&volume).is_some_and(|waiting| waiting.is_wanted)
    }

    /// The node itself is to change a clean volume.
    pub(super) fn want(&mut self, volume: VolumeId) {
        if let Some(waiting) = self.clean.get_mut(&volume)
            && !std::mem::replace(&mut waiting.is_wanted, true)
        {
            self.wanted.push(volume);
        }
    }

    /// Whether `call` may start now; if not, [`Intents::record`] names its asker.
    pub(super) fn may_start(&mut self, volume: VolumeId, asker: u64, call: &Call) -> bool {
        let is_omitted = is_planted(Plant::IntentOmitted);
        if self.clean.is_empty() || is_omitted {
            return true;
        }
        let Some(waiting) = self.clean.get_mut(&volume) else { return true };
        if !changes(call.operation) && !waiting.holds_all {
            return true;
        }
        if !std::mem::replace(&mut waiting.is_wanted, true) {
            self.wanted.push(volume);
        }
        waiting.askers.insert(asker, Cost::of(call));
        false
    }

    /// The volume's intent is recorded: what waited may go on, in the order of its askers.
    pub(super) fn record(&mut self, volume: VolumeId) -> BTreeMap<u64, Cost> {
        self.wanted.retain(|wanted| *wanted != volume);
        self.clean.remove(&volume).map_or_else(BTreeMap::new, |waiting| waiting.askers)
    }

    /// The volume's intent cannot be recorded now: what waited is to ask again, and to be refused.
    /// What waits for a revived volume waits on: what it reads may go with a level.
    pub(super) fn refuse(&mut self, volume: VolumeId, kind: ErrorKind) -> BTreeMap<u64, Cost> {
        match self.clean.get_mut(&volume) {
            Some(waiting) if !waiting.holds_all => {
                waiting.refused = Some(kind);
                std::mem::take(&mut waiting.askers)
            }
            _ => BTreeMap::new(),
        }
    }

    /// Why `call` cannot be answered well now.
    pub(super) fn refusal(&self, volume: VolumeId, call: &Call) -> Option<ErrorKind> {
        let refused = self.clean.get(&volume)?.refused;
        refused.filter(|_| changes(call.operation))
    }

    /// Volumes whose intent is to be recorded, each once.
    pub(super) fn take_wanted(&mut self) -> Vec<VolumeId> {
        for volume in &self.wanted {
            *self.asked.entry(*volume).or_default() += 1;
        }
        std::mem::take(&mut self.wanted)
    }

    /// Whether an answer for the volume is on its way. One that came once the volume is clean again
    /// would let a change start of which no intent says anything.
    pub(super) fn is_asked(&self, volume: VolumeId) -> bool {
        self.asked.contains_key(&volume)
    }

    /// The control plane has answered.
    pub(super) fn note_answer(&mut self, volume: VolumeId) {
        if let Some(asked) = self.asked.get_mut(&volume) {
            *asked -= 1;
            self.asked.retain(|_, asked| *asked > 0);
        }
    }

    /// An asker that may wait is gone.
    pub(super) fn cancel(&mut self, volume: VolumeId, asker: u64) {
        if let Some(waiting) = self.clean.get_mut(&volume) {
            waiting.askers.remove(&asker);
        }
    }
}

/// Whether an operation may leave in a level what the backing store does not have.
pub(super) fn changes(operation: Operation) -> bool {
    match operation {
        Operation::Write | Operation::Trim | Operation::WriteZeroes => true,
        Operation::Read | Operation::Flush | Operation::Cache | Operation::BlockStatus => false,
    }
}
