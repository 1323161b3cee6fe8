//! The memory of blocks that left: their keys in queues, without their bytes.
//!
//! How: a node per remembered block on a chain (cold end = remembered first) and an index by group
//! and key. Invariant: a key is remembered at most once per group. Cost: constant time; 24 bytes
//! per remembered block, and 5 to 10 for the index.

use crate::Group;
use crate::chain::{Chain, Chains, NONE};
use crate::hash::mix;
use alloc::vec::Vec;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use layby_types::BlockKey;

#[derive(Clone, Copy)]
struct Node {
    key: BlockKey,
    group: Group,
    queue: u8,
}

/// See the file's header.
pub(crate) struct Ghosts {
    nodes: Vec<Node>,
    chains: Chains,
    index: HashTable<u32>,
    free: Chain,
}

fn hash_of(group: Group, key: BlockKey) -> u64 {
    mix(key.0 ^ (u64::from(group.0) << 48))
}

impl Ghosts {
    pub(crate) fn new() -> Self {
        let chains = Chains::new(0);
        Ghosts { nodes: Vec::new(), chains, index: HashTable::new(), free: Chain::default() }
    }

    fn take_free(&mut self, node: Node) -> u32 {
        if self.free.cold == NONE {
            if self.nodes.len() == self.nodes.capacity() {
                // By an eighth and not to the double: memory is counted per slot.
                self.nodes.reserve_exact(self.nodes.len() / 8 + 16);
            }
            self.nodes.push(node);
            return self.chains.grow();
        }
        let ghost = self.free.cold;
        self.chains.unlink(&mut self.free, ghost);
        self.nodes[ghost as usize] = node;
        ghost
    }

    /// Remembers `key` at the warm end of `chain`, which is number `queue` of `group`.
    pub(crate) fn remember(&mut self, chain: &mut Chain, group: Group, queue: u8, key: BlockKey) {
        let ghost = self.take_free(Node { key, group, queue });
        let nodes = &self.nodes;
        let is_it = |other: &u32| {
            let node = nodes[*other as usize];
            *other != ghost && node.key == key && node.group == group
        };
        let hash = |other: &u32| {
            let node = nodes[*other as usize];
            hash_of(node.group, node.key)
        };
        match self.index.entry(hash_of(group, key), is_it, hash) {
            Entry::Vacant(place) => drop(place.insert(ghost)),
            Entry::Occupied(_) => panic!("{key:?} left twice without coming back"),
        }
        self.chains.push_warm(chain, ghost);
    }

    /// The ghost of `key` in `group`, and the number of its queue.
    #[inline]
    pub(crate) fn find(&self, group: Group, key: BlockKey) -> Option<(u32, u8)> {
        let is_it = |ghost: &u32| {
            let node = self.nodes[*ghost as usize];
            node.key == key && node.group == group
        };
        let ghost = *self.index.find(hash_of(group, key), is_it)?;
        Some((ghost, self.nodes[ghost as usize].queue))
    }

    /// Reads where `key` would be found.
    #[inline]
    pub(crate) fn glance(&self, group: Group, key: BlockKey) -> u32 {
        u32::from(self.index.find(hash_of(group, key), |_| false).is_some())
    }

    /// Forgets a ghost of `chain`.
    pub(crate) fn forget(&mut self, chain: &mut Chain, ghost: u32) {
        let node = self.nodes[ghost as usize];
        match self.index.find_entry(hash_of(node.group, node.key), |other| *other == ghost) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => panic!("{:?} is remembered but not indexed", node.key),
        }
        self.chains.unlink(chain, ghost);
        self.chains.push_cold(&mut self.free, ghost);
    }

    /// Forgets what `chain` has remembered longest; false when it remembers nothing.
    pub(crate) fn forget_oldest(&mut self, chain: &mut Chain) -> bool {
        let oldest = chain.cold;
        if oldest == NONE {
            return false;
        }
        self.forget(chain, oldest);
        if let Some(next) = self.nodes.get(chain.cold as usize) {
            // It goes soon, too: its place in the index is asked for ahead.
            core::hint::black_box(self.glance(next.group, next.key));
        }
        true
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let nodes = self.nodes.capacity() * size_of::<Node>();
        nodes + self.chains.memory_bytes() + self.index.allocation_size()
    }
}
