//! Where a parsed call asks whether its volume's limits let it start now.
//!
//! How: [`Throttle`] decides; a client that is refused keeps the call in its buffer and receives
//! nothing more, so that its peer is held back by the socket, and is named again when it may go on.
//! Invariant: a client waits with one call at a time, and with that one only.
//! Cost: a look-up in an empty map where nothing has a limit.

use layby_cache::throttle::{Cost, LimitPlan, Throttle, Waits};
use layby_types::{Call, Nanos, VolumeId};

/// See the file's header.
#[derive(Default)]
pub(super) struct Gate {
    throttle: Throttle,
    now: Nanos,
    released: Vec<u64>,
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
        self.throttle.ask(volume, u64::from(client), Cost::of(call), self.now)
    }

    /// When [`Gate::take_released`] is worth a call.
    pub(super) fn deadline(&self) -> Nanos {
        self.throttle.deadline()
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
    }

    /// A volume is gone.
    pub(super) fn forget(&mut self, volume: VolumeId) {
        self.throttle.forget(volume);
    }

    /// How a volume's calls have waited.
    pub(super) fn waits(&self, volume: VolumeId) -> Waits {
        self.throttle.waits(volume)
    }
}
