//! Where a parsed call asks whether its volume's limits and write intent let it start now.
//!
//! How: [`Throttle`] and [`Intents`] decide; a client that is refused keeps the call in its buffer
//! and receives nothing more, so that its peer is held back by the socket, and is named again when
//! it may go on. A change waits for the intent first, then for the limits. Changes of a volume that
//! became read-only, or whose intent cannot be recorded, do not wait: they end with an error.
//! Invariant: a client waits with one call at a time, and with that one only: while it waits it
//! does not ask again, so what is released is what was asked for, and is paid for once.
//! Cost: a look-up in an empty map where nothing has a limit.

use super::intent::{Intents, changes};
use layby_cache::throttle::{Cost, LimitPlan, Throttle, Waits};
use layby_types::{Call, ErrorKind, Nanos, VolumeId};
use std::collections::HashSet;

/// How a client's first call stands towards the volume's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It has not been asked for.
    Open,
    /// It waits, and so does all behind it.
    Held,
    /// It may start, and is paid for.
    Released,
}

/// See the file's header.
#[derive(Default)]
pub(super) struct Gate {
    throttle: Throttle,
    intents: Intents,
    now: Nanos,
    released: Vec<u64>,
    /// Volumes that are not to be changed, whatever their clients were told when they entered.
    read_only: HashSet<VolumeId>,
}

impl Gate {
    /// The time of what follows.
    pub(super) fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Replaces all limits, for those who wait too.
    pub(super) fn set_limits(&mut self, plan: &LimitPlan) {
        self.throttle.set(plan, self.now);
    }

    /// Whether `call` may start; if not, [`Gate::take_released`] names its client when it may.
    pub(super) fn may_start(&mut self, volume: VolumeId, client: u32, call: &Call) -> bool {
        self.may_change(volume, client, call)
            && self.throttle.ask(volume, u64::from(client), Cost::of(call), self.now)
    }

    /// `call` starts whatever the limits say, and is paid for; its client waits for nothing more.
    pub(super) fn charge(&mut self, volume: VolumeId, client: u32, call: &Call) {
        self.cancel(volume, client);
        self.throttle.charge(volume, u64::from(client), Cost::of(call), self.now);
    }

    /// The same as [`Gate::may_start`], whatever the limits say.
    pub(super) fn may_change(&mut self, volume: VolumeId, client: u32, call: &Call) -> bool {
        self.intents.may_start(volume, u64::from(client), call)
    }

    /// Why `call`, which changes its volume, is refused whatever it might wait for: the volume is
    /// not to be changed, or its intent cannot be recorded.
    pub(super) fn refusal(&self, volume: VolumeId, call: &Call) -> Option<ErrorKind> {
        let is_denied = changes(call.operation) && self.read_only.contains(&volume);
        if is_denied { Some(ErrorKind::Denied) } else { self.intents.refusal(volume, call) }
    }

    /// Refuses changes of a volume from now on, or no more.
    pub(super) fn set_read_only(&mut self, volume: VolumeId, is_read_only: bool) {
        match is_read_only {
            true => self.read_only.insert(volume),
            false => self.read_only.remove(&volume),
        };
    }

    /// The write intents of volumes.
    pub(super) fn intents(&mut self) -> &mut Intents {
        &mut self.intents
    }

    /// A volume's write intent is recorded: what waited for it asks its limits.
    pub(super) fn record_intent(&mut self, volume: VolumeId) {
        for (asker, cost) in self.intents.record(volume) {
            if self.throttle.ask(volume, asker, cost, self.now) {
                self.released.push(asker);
            }
        }
    }

    /// A volume's write intent cannot be recorded now: what waited for it asks again.
    pub(super) fn refuse_intent(&mut self, volume: VolumeId, kind: ErrorKind) {
        self.released.extend(self.intents.refuse(volume, kind).into_keys());
    }

    /// When [`Gate::take_released`] is worth a call.
    pub(super) fn deadline(&self) -> Nanos {
        if self.released.is_empty() { self.throttle.deadline() } else { self.now }
    }

    /// Clients whose waiting call may start, in the order in which they may.
    pub(super) fn take_released(&mut self) -> Vec<u64> {
        if self.throttle.deadline() <= self.now {
            self.throttle.release(self.now, &mut self.released);
        }
        std::mem::take(&mut self.released)
    }

    /// A client that may wait is gone.
    pub(super) fn cancel(&mut self, volume: VolumeId, client: u32) {
        self.throttle.cancel(volume, u64::from(client));
        self.intents.cancel(volume, u64::from(client));
        self.released.retain(|released| *released != u64::from(client));
    }

    /// A volume is gone. What waited for its intent asks again, and hears so.
    pub(super) fn forget(&mut self, volume: VolumeId) {
        self.throttle.forget(volume);
        self.read_only.remove(&volume);
        self.released.extend(self.intents.record(volume).into_keys());
    }

    /// How a volume's calls have waited.
    pub(super) fn waits(&self, volume: VolumeId) -> Waits {
        self.throttle.waits(volume)
    }
}
