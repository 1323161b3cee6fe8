//! Slots whose blocks were read ahead and not read yet, oldest first: per group and over all.
//!
//! How: a node per slot on two chains, its group's and that of all groups, and an index by slot.
//! They are kept apart from the eviction policy's ranking: ranked below what was asked for, the
//! next fetch would evict them before their reader arrives; ranked like it, their first read would
//! count as reuse and a stream would displace what is used again. The caller bounds how many there
//! are, and inserts a slot into the ranking when its block is read or is given up.
//! Invariant: a slot is here at most once, on the chain of the group that it was inserted with.
//! Cost: constant time; 24 bytes per slot at the peak, and 5 to 10 for the index.

use crate::Group;
use crate::chain::{Chain, Chains};
use crate::eviction::group_mut;
use crate::hash::mix;
use alloc::vec::Vec;
use hashbrown::HashTable;
use layby_types::Slot;

#[derive(Clone, Copy)]
struct Node {
    slot: Slot,
    group: Group,
}

/// See the file's header.
pub struct Prefetched {
    nodes: Vec<Node>,
    order: Chains,
    order_of_group: Chains,
    all: Chain,
    groups: Vec<Chain>,
    groups_used: u32,
    index: HashTable<u32>,
    free: Vec<u32>,
}

fn hash_of(slot: Slot) -> u64 {
    mix(u64::from(slot.0))
}

impl Default for Prefetched {
    fn default() -> Self {
        Prefetched {
            nodes: Vec::new(),
            order: Chains::new(0),
            order_of_group: Chains::new(0),
            all: Chain::default(),
            groups: Vec::new(),
            groups_used: 0,
            index: HashTable::new(),
            free: Vec::new(),
        }
    }
}

impl Prefetched {
    /// The block in `slot` was read ahead; the slot must not be here already.
    pub fn insert(&mut self, group: Group, slot: Slot) {
        let node = self.take_free(Node { slot, group });
        let nodes = &self.nodes;
        let hash = |node: &u32| hash_of(nodes[*node as usize].slot);
        assert!(self.find(slot).is_none(), "{slot:?} was read ahead twice");
        self.index.insert_unique(hash_of(slot), node, hash);
        self.order.push_warm(&mut self.all, node);
        let chain = group_mut(&mut self.groups, group);
        self.groups_used += u32::from(chain.len == 0);
        self.order_of_group.push_warm(chain, node);
    }

    /// The block in `slot` was read, is given up, or leaves; the slot must be here.
    pub fn remove(&mut self, slot: Slot) {
        let nodes = &self.nodes;
        let is_it = |node: &u32| nodes[*node as usize].slot == slot;
        let node = match self.index.find_entry(hash_of(slot), is_it) {
            Ok(entry) => entry.remove().0,
            Err(_) => panic!("{slot:?} was not read ahead"),
        };
        self.order.unlink(&mut self.all, node);
        let chain = group_mut(&mut self.groups, self.nodes[node as usize].group);
        self.order_of_group.unlink(chain, node);
        self.groups_used -= u32::from(chain.len == 0);
        self.free.push(node);
    }

    /// The slot that has been here longest, with its group.
    #[must_use]
    pub fn oldest(&self) -> Option<(Group, Slot)> {
        let node = self.nodes.get(self.all.cold as usize)?;
        Some((node.group, node.slot))
    }

    /// The slots of `group`, from the one that has been here longest.
    pub fn oldest_first(&self, group: Group) -> impl Iterator<Item = Slot> + '_ {
        let chain = self.groups.get(usize::from(group.0)).copied().unwrap_or_default();
        let first = (chain.len > 0).then_some(chain.cold);
        let nodes = core::iter::successors(first, |node| {
            let next = self.order_of_group.warmer(*node);
            ((next as usize) < self.nodes.len()).then_some(next)
        });
        nodes.map(|node| self.nodes[node as usize].slot)
    }

    /// Slots that are here.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.all.len
    }

    /// Whether no slot is here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.len == 0
    }

    /// Groups that have a slot here.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups_used
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let nodes = self.nodes.capacity() * size_of::<Node>() + self.free.capacity() * 4;
        let groups = self.groups.capacity() * size_of::<Chain>();
        let chains = self.order.memory_bytes() + self.order_of_group.memory_bytes();
        nodes + groups + chains + self.index.allocation_size()
    }

    fn find(&self, slot: Slot) -> Option<u32> {
        self.index.find(hash_of(slot), |node| self.nodes[*node as usize].slot == slot).copied()
    }

    fn take_free(&mut self, node: Node) -> u32 {
        if let Some(free) = self.free.pop() {
            self.nodes[free as usize] = node;
            return free;
        }
        if self.nodes.len() == self.nodes.capacity() {
            // By an eighth and not to the double: memory is counted per slot.
            self.nodes.reserve_exact(self.nodes.len() / 8 + 16);
        }
        self.nodes.push(node);
        self.order_of_group.grow();
        self.order.grow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use layby_types::Rng;

    /// Goal: slots leave in the order in which they came, over all groups and within each, and
    /// counts are right whatever is removed between. Method: random calls beside a plain queue.
    #[test]
    fn prefetched_slots_match_a_queue() {
        for seed in 0..50 {
            let (mut rng, mut model) = (Rng::new(seed), VecDeque::<(Group, Slot)>::new());
            let mut prefetched = Prefetched::default();
            for _ in 0..600 {
                let slot = Slot(rng.below(40) as u32);
                if let Some(at) = model.iter().position(|(_, other)| *other == slot) {
                    prefetched.remove(slot);
                    model.remove(at);
                } else {
                    let group = Group(rng.below(4) as u16);
                    prefetched.insert(group, slot);
                    model.push_back((group, slot));
                }
                assert_eq!(prefetched.oldest(), model.front().copied(), "SEED={seed}");
                assert_eq!(prefetched.len() as usize, model.len(), "SEED={seed}");
                assert_eq!(prefetched.is_empty(), model.is_empty(), "SEED={seed}");
                let mut used = 0;
                for group in (0..4).map(Group) {
                    let mine = model.iter().filter(|(other, _)| *other == group);
                    let mine: Vec<Slot> = mine.map(|(_, slot)| *slot).collect();
                    used += u32::from(!mine.is_empty());
                    let found: Vec<Slot> = prefetched.oldest_first(group).collect();
                    assert_eq!(found, mine, "SEED={seed}");
                }
                assert_eq!(prefetched.groups(), used, "SEED={seed}");
            }
        }
    }

    /// Goal: a place that is free again is taken before memory grows. Method: many, twice.
    #[test]
    fn places_are_used_again() {
        let mut prefetched = Prefetched::default();
        let mut bytes = Vec::new();
        for _ in 0..2 {
            (0..1000).for_each(|slot| prefetched.insert(Group(0), Slot(slot)));
            bytes.push(prefetched.nodes.len());
            (0..1000).for_each(|slot| prefetched.remove(Slot(slot)));
        }
        assert_eq!(bytes, [1000, 1000]);
    }

    /// Goal: a slot that is inserted twice is a bug, and is told. Method: it is.
    #[test]
    #[should_panic(expected = "read ahead twice")]
    fn inserting_twice_panics() {
        let mut prefetched = Prefetched::default();
        prefetched.insert(Group(0), Slot(1));
        prefetched.insert(Group(1), Slot(1));
    }
}
