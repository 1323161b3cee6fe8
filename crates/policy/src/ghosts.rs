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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use layby_types::{BlockIndex, Rng, VolumeId};

    fn key(block: u64) -> BlockKey {
        BlockKey::new(VolumeId((block % 4) as u32), BlockIndex(block))
    }

    /// Goal: ghosts are found by group and key, with their queue, until they are forgotten, oldest
    /// first. Method: random calls beside plain queues, two groups with the same keys.
    #[test]
    fn ghosts_match_plain_queues() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut ghosts = Ghosts::new();
            let mut chains = [Chain::default(), Chain::default()];
            let mut model: [VecDeque<BlockKey>; 2] = Default::default();
            for _ in 0..400 {
                let (group, key) = (rng.below(2) as usize, key(rng.below(60)));
                let found = ghosts.find(Group(group as u16), key);
                assert_eq!(found.is_some(), model[group].contains(&key), "SEED={seed}");
                match found {
                    Some((ghost, queue)) => {
                        assert_eq!(queue, group as u8 + 5);
                        ghosts.forget(&mut chains[group], ghost);
                        model[group].retain(|other| *other != key);
                    }
                    None => {
                        let queue = group as u8 + 5;
                        ghosts.remember(&mut chains[group], Group(group as u16), queue, key);
                        model[group].push_back(key);
                    }
                }
                if rng.chance(1, 4) {
                    let oldest = model[group].pop_front();
                    assert_eq!(ghosts.forget_oldest(&mut chains[group]), oldest.is_some());
                    let gone =
                        oldest.is_none_or(|key| ghosts.find(Group(group as u16), key).is_none());
                    assert!(gone, "the oldest goes first");
                }
            }
        }
    }

    /// Goal: a place that is free again is taken before memory grows, and memory grows by an
    /// eighth. Method: many ghosts, all forgotten, as many again.
    #[test]
    fn places_are_used_again() {
        let (mut ghosts, mut chain) = (Ghosts::new(), Chain::default());
        for _ in 0..2 {
            (0..2000).for_each(|block| ghosts.remember(&mut chain, Group(0), 0, key(block)));
            let (places, room) = (ghosts.nodes.len(), ghosts.nodes.capacity());
            assert_eq!(places, 2000);
            assert!((places..=places + places / 8 + 16).contains(&room), "{room} for {places}");
            while ghosts.forget_oldest(&mut chain) {}
        }
    }

    /// Goal: growing is rare, so that remembering costs constant time on average. Method: count.
    #[test]
    fn memory_grows_in_steps() {
        let (mut ghosts, mut chain, mut steps) = (Ghosts::new(), Chain::default(), 0);
        for block in 0..2000 {
            let before = ghosts.nodes.capacity();
            ghosts.remember(&mut chain, Group(0), 0, key(block));
            steps += u32::from(ghosts.nodes.capacity() != before);
        }
        assert!(steps <= 40, "{steps} steps");
    }

    /// Goal: groups, volumes and blocks are all part of the hash. Method: no two of many are alike.
    #[test]
    fn hashes_differ() {
        let of = |group| (0..512).map(move |block| hash_of(Group(group), key(block)));
        let distinct: alloc::collections::BTreeSet<u64> = (0..8).flat_map(of).collect();
        assert_eq!(distinct.len(), 8 * 512);
    }

    /// Goal: a block that leaves twice without coming back is a bug, and is told. Method: it does.
    #[test]
    #[should_panic(expected = "left twice")]
    fn leaving_twice_panics() {
        let (mut ghosts, mut chain) = (Ghosts::new(), Chain::default());
        ghosts.remember(&mut chain, Group(0), 0, key(1));
        ghosts.remember(&mut chain, Group(0), 0, key(1));
    }
}
