//! The way of whole requests to the shard that keeps a wide volume's limits.
//!
//! How: each client has a branch of the link, which it opens with its first such request. Once the
//! client has left, its branch says so, and what the other shard has not begun never begins: the
//! next client's writes must not be followed by an older one. The other shard can look at the
//! client's socket itself, since this one may hear of its end late.
//! Invariant: a client's number has no branch when the next client gets it.
//! Cost: a look-up in a map of clients per request that is sent.

use super::Core;
use crate::io::Peer;
use crate::link::{Answered, NearEnd};
use layby_types::VolumeId;
use std::collections::{BTreeMap, VecDeque};

/// The way to the shard that takes whole requests.
pub(super) struct Lead {
    pub(super) link: NearEnd,
    /// Each client's own branch of it, by the client's number; none once its far end is gone, or
    /// where the client had left before it asked for anything.
    branches: BTreeMap<u32, Option<NearEnd>>,
}

impl Lead {
    pub(super) fn new(link: NearEnd) -> Self {
        Lead { link, branches: BTreeMap::new() }
    }

    /// Takes all answers that there are; the clients whose branches have ended.
    pub(super) fn take(&mut self, answers: &mut VecDeque<Answered>) -> Vec<u32> {
        let mut ended = Vec::new();
        for (client, branch) in &mut self.branches {
            if branch.as_ref().is_some_and(|branch| branch.take(answers)) {
                *branch = None;
                ended.push(*client);
            }
        }
        ended
    }

    /// The branch of a client, which is behind `peer`.
    pub(super) fn branch(&mut self, client: u32, peer: Option<&Peer>) -> Option<&NearEnd> {
        let Lead { link, branches } = self;
        let open = || {
            let branch = link.branch()?;
            peer.into_iter().for_each(|peer| branch.set_peer(peer.clone()));
            Some(branch)
        };
        branches.entry(client).or_insert_with(open).as_ref()
    }

    fn leave(&mut self, client: u32) {
        self.branches.entry(client).or_default().iter().for_each(NearEnd::leave);
    }
}

impl Core {
    /// A client of a wide volume is served by this number from now on.
    pub(crate) fn enter_client(&mut self, client: u32, peer: Option<Peer>) {
        let peers = &mut self.wides.peers;
        peer.into_iter().for_each(|peer| drop(peers.insert(client, peer)));
    }

    /// A client of this number has left its volume: what another shard has of it and has not begun
    /// never begins, and ends with `Closed`.
    pub(crate) fn leave_client(&mut self, volume: VolumeId, client: u32) {
        self.wides.peers.remove(&client);
        let wide = self.wides.volumes.get_mut(&volume);
        wide.and_then(|wide| wide.lead.as_mut()).into_iter().for_each(|lead| lead.leave(client));
    }

    /// The number of a client of which nothing is in flight may be another one's.
    pub(crate) fn forget_client(&mut self, volume: VolumeId, client: u32) {
        self.wides.peers.remove(&client);
        if let Some(lead) = self.wides.volumes.get_mut(&volume).and_then(|w| w.lead.as_mut()) {
            lead.branches.remove(&client);
        }
    }
}
