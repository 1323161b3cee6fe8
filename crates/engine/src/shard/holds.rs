//! Which ranks wait since too many bytes of theirs are in the core's hands.
//!
//! How: bytes are counted by rank and volume. A rank below the best one that reaches its bound is
//! held: nothing of it is served. What a device, an object store or another shard keeps for long is
//! no load that others could wait for, so it does not count: all bytes of volumes in object stores,
//! and those of volumes that are *overdue*, see [`Core::overdue_since`]. Such bytes are bounded by
//! what clients and guests may hold.
//! What waits for memory asks for the same, see [`super::memory`].
//! Invariant: a held rank is looked at again each [`LOOK_PERIOD`] at the latest.
//! Cost: a sum over the volumes that are used; while one reaches the bound, a pass over what is in
//! flight each period.

use super::Shard;
use crate::io::{Host, Io as _};
use layby_cache::schedule::Rank;
use layby_types::{Nanos, Session, VolumeId};
use std::collections::{BTreeMap, HashSet};

/// How long an end may be owed until what waits for it holds its rank no more.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// Time between two looks at what is overdue.
const LOOK_PERIOD: Nanos = Nanos::from_millis(250);

/// See the file's header.
#[derive(Default)]
pub(super) struct Holds {
    /// Clients' bytes in the core's hands.
    bytes: BTreeMap<(Rank, VolumeId), u64>,
    overdue: HashSet<VolumeId>,
    look_at: Nanos,
    /// Ranks that are held, in their order.
    held: Vec<Rank>,
}

impl Holds {
    /// A client of the volume had so many bytes in the core's hands, and has so many now.
    pub(super) fn change(&mut self, volume: VolumeId, old: (Rank, u64), new: (Rank, u64)) {
        if old == new {
            return;
        }
        let bytes = self.bytes.entry((old.0, volume)).or_default();
        *bytes -= old.1;
        if *bytes == 0 {
            self.bytes.remove(&(old.0, volume));
        }
        if new.1 > 0 {
            *self.bytes.entry((new.0, volume)).or_default() += new.1;
        }
    }

    /// When ranks that are held are to be looked at again.
    pub(super) fn deadline(&self) -> Nanos {
        if self.held.is_empty() { Nanos::NEVER } else { self.look_at }
    }
}

impl<S: Session, H: Host> Shard<S, H> {
    /// A rank with too much in the core's hands waits.
    pub(super) fn hold_ranks(&mut self) {
        let mut held = Vec::new();
        if self.has_lower {
            let most = self.limits.inflight_bytes_max;
            held = self.ranks_above(most, |_| true);
            if !held.is_empty() {
                self.look_for_overdue();
                let (core, overdue) = (&self.core, &self.holds.overdue);
                let counts = |volume| !core.has_remote_home(volume) && !overdue.contains(&volume);
                held = self.ranks_above(most, counts);
            }
        }
        for rank in std::mem::replace(&mut self.holds.held, held.clone()) {
            if !held.contains(&rank) {
                self.ready.hold(rank, false);
                self.guests.hold(rank, false);
            }
        }
        // Queues that have come since are to be held, too.
        for rank in held {
            self.ready.hold(rank, true);
            self.guests.hold(rank, true);
        }
    }

    /// The ranks below the best one with so many bytes of volumes that count.
    fn ranks_above(&self, most: u64, counts: impl Fn(VolumeId) -> bool) -> Vec<Rank> {
        let clients =
            self.holds.bytes.iter().map(|((rank, volume), bytes)| (*rank, *volume, *bytes));
        let mut sums: Vec<(Rank, u64)> = Vec::new();
        for (rank, volume, bytes) in clients.chain(self.guests.submitted_bytes()) {
            if rank <= self.best || bytes == 0 || !counts(volume) {
                continue;
            }
            match sums.iter_mut().find(|own| own.0 == rank) {
                Some((_, sum)) => *sum += bytes,
                None => sums.push((rank, bytes)),
            }
        }
        sums.into_iter().filter(|(_, sum)| *sum >= most).map(|(rank, _)| rank).collect()
    }

    /// While requests wait for memory, those that only the end of a hang could let in are known.
    pub(super) fn look_for_hangs(&mut self) {
        if self.memory.has_waiting() {
            self.look_for_overdue();
            self.memory.set_overdue(&self.holds.overdue);
        }
    }

    fn look_for_overdue(&mut self) {
        let now = self.io.now();
        if now < self.holds.look_at {
            return;
        }
        self.holds.look_at = now + LOOK_PERIOD;
        let then = now.0.checked_sub(PATIENCE.0).map(Nanos);
        let overdue = then.map(|then| self.core.overdue_since(&self.io, then));
        self.holds.overdue = overdue.unwrap_or_default();
    }
}
