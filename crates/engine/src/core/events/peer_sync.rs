//! Checkpoints of the log that wait for the other level and for homes.
//!
//! How: before its chunks a checkpoint needs that nothing which its tombstones say is only on its
//! way; before its trailer, that what it will drop is durable elsewhere. Zeroings under way, those
//! that wait, and those that no sync covers yet are written down as owed instead, so that no slow
//! or silent home is waited for. Where the log cannot take that, it waits.
//! Invariant: a checkpoint is answered only when everything it asked for is durable.

use super::super::{Core, Home, Level, TICKET_OWN};
use super::{OWN_BITS, OWN_PEER};
use crate::io::Io;
use crate::store::{NvmStore, PeerScope, SyncScope, Ticket};
use layby_cache::OpId;
use layby_cache::discards::DiscardCause;
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockIndex, Seq, VolumeId};
use std::collections::{BTreeSet, HashSet};

/// A checkpoint that waits for the others.
pub(in crate::core) struct PeerSync {
    pub(super) id: u64,
    pub(super) nvm_waiting: bool,
    pub(super) homes: BTreeSet<VolumeId>,
    /// Ranges being zeroed whose tombstone lies before the checkpoint, which would drop it while
    /// it still names what the tombstone killed.
    pub(super) zeroing: HashSet<OpId>,
    /// The same where the home has not heard of them yet and the log cannot remember them.
    pub(super) delayed: HashSet<Seq>,
    /// The forgets that have to be durable so that the log remembers them across the checkpoint.
    pub(super) owed: Option<u64>,
}

impl PeerSync {
    /// Nothing but the NVM level and the log may be waited for any more.
    fn has_no_homes(&self) -> bool {
        self.homes.is_empty() && self.zeroing.is_empty() && self.delayed.is_empty()
    }

    fn is_over(&mut self) -> bool {
        !self.nvm_waiting && self.owed.is_none() && self.has_no_homes()
    }
}

impl Core {
    /// Whether a checkpoint waits until the home has heard of this tombstone.
    pub(in crate::core) fn is_seq_awaited(&self, seq: Seq) -> bool {
        self.peer_sync.as_ref().is_some_and(|peer| peer.delayed.contains(&seq))
    }

    /// Whether a checkpoint waits for the zeroing of this operation's range.
    pub(in crate::core) fn is_awaited(&self, op: OpId) -> bool {
        self.peer_sync.as_ref().is_some_and(|peer| peer.zeroing.contains(&op))
    }

    pub(super) fn start_peer_sync(&mut self, io: &mut dyn Io, id: u64, scope: PeerScope) {
        let scope = match scope {
            PeerScope::Stores => SyncScope::Stores,
            PeerScope::Frees if self.is_recovering => SyncScope::FreesKnown,
            PeerScope::Frees => SyncScope::Frees,
        };
        let mut nvm_waiting = false;
        for level in &mut self.levels {
            if let Level::Nvm(store) = level {
                store.sync(io, Ticket(TICKET_OWN | id << OWN_BITS | OWN_PEER), scope);
                nvm_waiting = true;
            }
        }
        let mut homes = BTreeSet::new();
        if scope != SyncScope::Stores {
            // Of a home that is written through no record waits to be dropped.
            let is_owed = |home: &Home| home.unsynced || home.syncing;
            let owing = self.homes.iter().filter(|(_, h)| is_owed(h) && !h.write_through);
            homes.extend(owing.map(|(id, _)| *id));
        }
        let mut zeroing = HashSet::new();
        if scope == SyncScope::Stores {
            self.adopt_zeroings();
            zeroing.extend(self.tombstones.zeroing.keys().copied());
            zeroing.extend(self.tombstones.failing.keys().copied());
        }
        let (mut delayed, mut owed) = (HashSet::new(), None);
        if scope == SyncScope::Stores {
            owed = self.owe_waiting(io);
        }
        if scope == SyncScope::Stores {
            self.tombstones.to_sync = self.tombstones.dropped(owed.is_some());
        }
        if scope == SyncScope::Stores && owed.is_none() {
            delayed.extend(self.tombstones.live.iter().filter(|t| t.delayed).map(|t| t.seq));
            self.hasten_all_discards(DiscardCause::Checkpoint);
        }
        let waits_for = homes.iter().copied().filter(|home| self.is_sync_awaited(*home)).collect();
        self.peer_sync =
            Some(PeerSync { id, nvm_waiting, homes: waits_for, zeroing, delayed, owed });
        homes.into_iter().for_each(|home| self.sync_home(io, home));
        let owes_absent = scope == SyncScope::Stores && owed.is_none() && self.owes_absent();
        if owes_absent { self.fail_peer_sync() } else { self.end_peer_sync() }
    }

    /// Zeroings have become discards in flight. Where the checkpoint under way waits for them, the
    /// log remembers them across it, or it waits for the discards.
    pub(in crate::core) fn owe_adopted(&mut self, io: &mut dyn Io, adopted: &[(OpId, Seq)]) {
        let awaited = adopted.iter().filter(|(op, _)| self.is_awaited(*op));
        let awaited: Vec<(OpId, Seq)> = awaited.copied().collect();
        if awaited.is_empty() {
            return;
        }
        let owed = self.owe_waiting(io);
        let Some(peer) = &mut self.peer_sync else { return };
        for (op, seq) in awaited {
            peer.zeroing.remove(&op);
            match owed {
                Some(_) => drop(self.tombstones.to_sync.remove(&seq)),
                None => drop(peer.delayed.insert(seq)),
            }
        }
        peer.owed = owed.or(peer.owed);
        self.end_peer_sync();
    }

    /// Whether a checkpoint waits for the home's sync before its trailer: where that is to make
    /// zeros durable which the log does not remember. Another sync makes nothing durable that a
    /// record stands for, and that of a silent home is not waited for. Nor is that of a lost one,
    /// which ends with an error for good. That drops nothing that only a volatile write holds:
    /// destages, and writes past the levels over records that these may hold, are durable by
    /// themselves before a record becomes clean or is forgotten. Zeros below that the log does not
    /// remember are the one exception, and are waited for. A client's flush reports the loss, and
    /// so does a stop, whose checkpoint says that all is durable: that one fails.
    pub(super) fn is_sync_awaited(&self, id: VolumeId) -> bool {
        let mut zeroed = self.tombstones.unsynced_of(id).peekable();
        match zeroed.peek() {
            _ if self.is_recovering => true,
            Some(_) => zeroed.any(|seq| self.tombstones.to_sync.contains(seq)),
            None => {
                let is_lost = self.homes.get(&id).is_some_and(|home| home.backing.is_lost());
                let is_closing = self.log().is_some_and(|(_, log)| log.is_closing());
                (is_closing || !is_lost) && !self.is_silent(id)
            }
        }
    }

    /// A home is silent: neither its zeroings nor its sync are waited for unless they must be.
    pub(in crate::core) fn pass_silent_home(&mut self, io: &mut dyn Io, id: VolumeId) {
        if self.peer_sync.as_ref().is_some_and(|peer| !peer.zeroing.is_empty()) {
            let adopted = self.adopt_zeroings();
            self.owe_adopted(io, &adopted);
        }
        let is_awaited = self.is_sync_awaited(id);
        if let Some(peer) = self.peer_sync.as_mut().filter(|_| !is_awaited) {
            peer.homes.remove(&id);
            self.end_peer_sync();
        }
    }

    /// Has the log remember what waits across the checkpoint that has begun, and says which forgets
    /// have to be durable for that; `None` where nothing waits, or where all is to go at once.
    fn owe_waiting(&mut self, io: &mut dyn Io) -> Option<u64> {
        let unsynced = self.tombstones.unsynced();
        let owed = self.tombstones.live.iter().filter(|t| t.delayed || unsynced.contains(&t.seq));
        let ranges: Vec<_> = owed.map(|t| (t.volume, t.first..t.end, t.seq)).collect();
        let log = self.log_mut().expect("a checkpoint is a log's");
        if ranges.is_empty() || !log.can_owe(ranges.len()) {
            return None;
        }
        for (volume, blocks, seq) in ranges {
            if is_planted(Plant::OwedOmitted) {
                continue;
            }
            let count = blocks.end - blocks.start;
            log.owe_zeros(volume, BlockIndex(blocks.start), count, seq);
        }
        log.flush_forgets(io);
        Some(log.forgets_issued())
    }

    /// A checkpoint would free segments, but waits for NVM slots alone, which wait for forgets,
    /// which wait for a segment, or for forgets itself: what waits is refused instead, and the
    /// checkpoint tries again. A sync of the NVM level under way may end that by itself. True when
    /// something was refused. Call it when no event of a store and no action is pending: a sync
    /// whose end the core does not know yet looks like one that never ends.
    pub(in crate::core) fn end_deadlock(&mut self, io: &mut dyn Io) -> bool {
        let Some(peer) = self.peer_sync.as_ref().filter(|peer| peer.has_no_homes()) else {
            return false;
        };
        let nvm = self.levels.iter().find_map(|level| match level {
            Level::Nvm(nvm) => Some(&**nvm),
            _ => None,
        });
        let awaits_slots = peer.nvm_waiting && nvm.is_some_and(NvmStore::awaits_slots);
        let is_syncing = nvm.is_some_and(NvmStore::is_syncing);
        if self.is_recovering || is_syncing || !(awaits_slots || peer.owed.is_some()) {
            return false;
        }
        self.log_mut().is_some_and(|log| log.end_stuck_forgets(io))
    }

    pub(super) fn end_peer_sync(&mut self) {
        if let Some(peer) = self.peer_sync.take_if(PeerSync::is_over)
            && let Some(log) = self.log_mut()
        {
            log.peer_synced(peer.id);
        }
    }

    /// A volume is gone, and with it what a checkpoint waits for on its behalf.
    pub(in crate::core) fn forget_tombstones(&mut self, id: VolumeId) {
        self.tombstones.forget_volume(id);
        self.cancels.forget_volume(id);
        if let Some(peer) = &mut self.peer_sync {
            let live: HashSet<Seq> = self.tombstones.live.iter().map(|t| t.seq).collect();
            peer.delayed.retain(|seq| live.contains(seq));
            self.end_peer_sync();
        }
    }

    /// A level or home that a checkpoint waits for has failed.
    pub(super) fn fail_peer_sync(&mut self) {
        if let Some(peer) = self.peer_sync.take()
            && let Some(log) = self.log_mut()
        {
            log.peer_failed(peer.id);
        }
    }

    /// What the log was to remember across a checkpoint is durable.
    pub(in crate::core) fn end_owed(&mut self) {
        let Some(owed) = self.peer_sync.as_ref().and_then(|peer| peer.owed) else { return };
        if self.log().is_none_or(|(_, log)| log.forgets_durable() >= owed)
            && let Some(peer) = &mut self.peer_sync
        {
            peer.owed = None;
            self.end_peer_sync();
        }
    }
}
