//! Golden sequences of every eviction policy, and plain models written as their papers state them.
//!
//! How: [`Replay`] is a cache of one group and a fixed number of slots; a model is a second cache
//! made of deques and maps, slow and obvious. Both see the same references and must agree on each.

use crate::registry::EvictionKind;
use crate::{Arc, Clock, Eviction, Fifo, Group, Lfu, Lru, Moment, S3Fifo, Warmth};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::{BlockKey, Nanos, Rng, Slot};

const ONLY: Group = Group(0);

/// A cache of one group, driven by references.
pub(crate) struct Replay<E> {
    policy: E,
    slots: u32,
    table: BTreeMap<u64, u32>,
    keys: Vec<u64>,
    rng: Rng,
}

impl<E: Eviction> Replay<E> {
    pub(crate) fn new(policy: E, slots: u32) -> Self {
        Replay { policy, slots, table: BTreeMap::new(), keys: Vec::new(), rng: Rng::new(1) }
    }

    /// Whether `key` is resident.
    pub(crate) fn holds(&self, key: u64) -> bool {
        self.table.contains_key(&key)
    }

    /// Whether the reference to `key` hits; it is resident afterwards.
    pub(crate) fn refer(&mut self, key: u64) -> bool {
        let moment = &mut Moment { now: Nanos(0), rng: &mut self.rng };
        if let Some(slot) = self.table.get(&key) {
            self.policy.on_hit(moment, ONLY, Slot(*slot));
            return true;
        }
        let slot = if (self.keys.len() as u32) < self.slots {
            self.keys.push(key);
            self.keys.len() as u32 - 1
        } else {
            let keys = &self.keys;
            let accept = &mut |slot: Slot| Some(BlockKey(keys[slot.0 as usize]));
            let out = self.policy.evict(moment, ONLY, Some(BlockKey(key)), accept);
            let out = out.expect("a full cache has something to evict").0;
            self.table.remove(&self.keys[out as usize]);
            self.keys[out as usize] = key;
            out
        };
        self.table.insert(key, slot);
        self.policy.on_insert(moment, ONLY, Slot(slot), BlockKey(key), Warmth::Warm);
        false
    }
}

/// Two in three references go to few blocks, the others to many.
pub(crate) fn skewed(rng: &mut Rng, blocks: u64) -> u64 {
    if rng.chance(2, 3) { rng.below(blocks / 8) } else { rng.below(blocks) }
}

fn same_as_model<E: Eviction>(new: impl Fn(u32) -> E, model: impl Fn(u32) -> Model) {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let slots = 10 + rng.below(40) as u32;
        let (mut replay, mut model) = (Replay::new(new(slots), slots), model(slots));
        for step in 0..4000 {
            let key = skewed(&mut rng, 200);
            let expected = (model.refer)(&mut model.lists, key);
            assert_eq!(replay.refer(key), expected, "SEED={seed} step {step} slots {slots}");
        }
    }
}

/// A model: lists of (block, count), and what a reference does to them.
struct Model {
    lists: Lists,
    refer: fn(&mut Lists, u64) -> bool,
}

#[derive(Default)]
struct Lists {
    room: usize,
    /// Each from cold to warm.
    list: [VecDeque<(u64, u64)>; 4],
    number: u64,
    target: f64,
    full_once: bool,
}

impl Lists {
    fn model(room: u32, refer: fn(&mut Lists, u64) -> bool) -> Model {
        Model { lists: Lists { room: room as usize, ..Lists::default() }, refer }
    }

    fn at(&self, list: usize, key: u64) -> Option<usize> {
        self.list[list].iter().position(|entry| entry.0 == key)
    }

    fn take(&mut self, list: usize, key: u64) -> Option<(u64, u64)> {
        let at = self.at(list, key)?;
        self.list[list].remove(at)
    }

    fn len(&self, list: usize) -> usize {
        self.list[list].len()
    }
}

fn lru(l: &mut Lists, key: u64) -> bool {
    let hit = l.take(0, key).is_some();
    if !hit && l.len(0) == l.room {
        l.list[0].pop_front();
    }
    l.list[0].push_back((key, 0));
    hit
}

fn fifo(l: &mut Lists, key: u64) -> bool {
    let hit = l.at(0, key).is_some();
    if !hit {
        if l.len(0) == l.room {
            l.list[0].pop_front();
        }
        l.list[0].push_back((key, 0));
    }
    hit
}

fn clock(l: &mut Lists, key: u64) -> bool {
    if let Some(at) = l.at(0, key) {
        l.list[0][at].1 = 1;
        return true;
    }
    while l.len(0) == l.room {
        let (old, used) = l.list[0].pop_front().expect("a full list has an end");
        if used == 1 {
            l.list[0].push_back((old, 0));
        }
    }
    l.list[0].push_back((key, 0));
    false
}

/// Lists: small, main, remembered.
fn s3fifo(l: &mut Lists, key: u64) -> bool {
    for list in 0..2 {
        if let Some(at) = l.at(list, key) {
            l.list[list][at].1 = (l.list[list][at].1 + 1).min(3);
            return true;
        }
    }
    let known = l.take(2, key).is_some();
    let small_room = (l.room / 10).max(1);
    while l.len(0) + l.len(1) == l.room {
        l.full_once = true;
        if l.len(1) > l.room - small_room || l.len(0) == 0 {
            let (old, uses) = l.list[1].pop_front().expect("main is not empty");
            if uses > 0 {
                l.list[1].push_back((old, uses - 1));
            }
        } else {
            let (old, uses) = l.list[0].pop_front().expect("small is not empty");
            if uses > 1 {
                l.list[1].push_back((old, 0));
                // The small queue is searched on even when the main one grows past its part.
                while let Some((old, uses)) = l.list[0].pop_front() {
                    if uses > 1 {
                        l.list[1].push_back((old, 0));
                    } else {
                        l.list[2].push_back((old, 0));
                        break;
                    }
                }
            } else {
                l.list[2].push_back((old, 0));
            }
        }
        while l.len(2) > l.room * 9 / 10 {
            l.list[2].pop_front();
        }
    }
    let overflows = !l.full_once && l.len(0) >= small_room;
    l.list[usize::from(known || overflows)].push_back((key, 0));
    false
}

/// The paper's Fig. 4. Lists: T1, B1, T2, B2; `target` is p.
fn arc(l: &mut Lists, key: u64) -> bool {
    const T1: usize = 0;
    const B1: usize = 1;
    const T2: usize = 2;
    const B2: usize = 3;
    let replace = |l: &mut Lists, in_b2: bool| {
        let (once, target) = (l.len(T1) as f64, l.target);
        let from = if once > 0.0 && (once > target || (in_b2 && once == target)) { T1 } else { T2 };
        let out = l.list[from].pop_front().expect("REPLACE is called on a full cache");
        l.list[from + 1].push_back(out);
    };
    if l.take(T1, key).is_some() || l.take(T2, key).is_some() {
        l.list[T2].push_back((key, 0));
        return true;
    }
    let (b1, b2) = (l.len(B1) as f64, l.len(B2) as f64);
    if l.at(B1, key).is_some() {
        l.target = (l.target + (b2 / b1).max(1.0)).min(l.room as f64);
        replace(l, false);
        l.take(B1, key);
        l.list[T2].push_back((key, 0));
    } else if l.at(B2, key).is_some() {
        l.target = (l.target - (b1 / b2).max(1.0)).max(0.0);
        replace(l, true);
        l.take(B2, key);
        l.list[T2].push_back((key, 0));
    } else {
        let total: usize = l.list.iter().map(VecDeque::len).sum();
        if l.len(T1) + l.len(B1) == l.room {
            if l.len(T1) < l.room {
                l.list[B1].pop_front();
                replace(l, false);
            } else {
                l.list[T1].pop_front();
            }
        } else if total >= l.room {
            if total == 2 * l.room {
                l.list[B2].pop_front();
            }
            replace(l, false);
        }
        l.list[T1].push_back((key, 0));
    }
    false
}

/// Entries are (block, uses); lists 1 and 2 hold priority and last use in the same order.
fn lfu(l: &mut Lists, key: u64) -> bool {
    l.full_once = true;
    let now = l.list[3].pop_back().map_or(0, |(tick, _)| tick + 1);
    l.list[3].push_back((now, 0));
    let hit = l.at(0, key);
    if let Some(at) = hit {
        let uses = (l.list[0][at].1 + 1).min(63);
        l.list[0][at].1 = uses;
        l.list[1][at] = (l.number + uses, now);
        return true;
    }
    if l.len(0) == l.room {
        let lowest = (0..l.room).min_by_key(|at| l.list[1][*at]).expect("a full cache");
        l.number = l.list[1][lowest].0;
        l.list[0].remove(lowest);
        l.list[1].remove(lowest);
    }
    l.list[0].push_back((key, 1));
    l.list[1].push_back((l.number + 1, now));
    false
}

/// Goal: each policy is exactly what its source says, for one group of fixed room. Method: 30
/// seeded traces, reference by reference beside the plain models above.
#[test]
fn policies_match_their_papers() {
    same_as_model(Lru::new, |room| Lists::model(room, lru));
    same_as_model(Fifo::new, |room| Lists::model(room, fifo));
    same_as_model(Clock::new, |room| Lists::model(room, clock));
    same_as_model(S3Fifo::new, |room| Lists::model(room, s3fifo));
    same_as_model(Arc::new, |room| Lists::model(room, arc));
    same_as_model(Lfu::new, |room| Lists::model(room, lfu));
}

/// Goal: the hits of each policy over one trace never change unnoticed. Method: a seeded trace of
/// skewed references broken by scans; the counts, frozen.
#[test]
fn golden_hits() {
    let hits = |kind: EvictionKind| {
        let (mut rng, slots) = (Rng::new(42), 100);
        let mut replay = Replay::new(kind.build(slots), slots);
        let scan = (0..20_000u64).map(|step| (step % 1000 >= 800).then_some(10_000 + step));
        let keys: Vec<u64> = scan.map(|s| s.unwrap_or_else(|| skewed(&mut rng, 800))).collect();
        keys.into_iter().filter(|key| replay.refer(*key)).count()
    };
    let counted: Vec<_> = EvictionKind::ALL.iter().map(|k| (k.name(), hits(*k))).collect();
    let golden = vec![
        ("lru", 6716),
        ("fifo", 6079),
        ("clock", 7056),
        ("s3fifo", 9830),
        ("arc", 9716),
        ("lfu", 8886),
    ];
    assert_eq!(counted, golden);
}

/// Goal: LRU leaves in order of last use; cold entries first. Method: a hand-made sequence.
#[test]
fn lru_order() {
    let (mut rng, mut lru) = (Rng::new(1), Lru::new(8));
    let moment = &mut Moment { now: Nanos(0), rng: &mut rng };
    for slot in [0, 1, 2] {
        lru.on_insert(moment, ONLY, Slot(slot), BlockKey(0), Warmth::Warm);
    }
    lru.on_insert(moment, ONLY, Slot(7), BlockKey(0), Warmth::Cold);
    lru.on_hit(moment, ONLY, Slot(0));
    let not_7 = &mut |slot: Slot| (slot != Slot(7)).then_some(BlockKey(0));
    assert_eq!(lru.evict(moment, ONLY, None, not_7), Some(Slot(1)));
    let order: [Option<Slot>; 4] =
        core::array::from_fn(|_| lru.evict(moment, ONLY, None, &mut |_| Some(BlockKey(0))));
    assert_eq!(order, [Some(Slot(7)), Some(Slot(2)), Some(Slot(0)), None]);
}

/// Goal: what was fetched ahead and never asked for leaves first, and is not remembered. Method:
/// for the policies that remember, one such block leaves and comes back: it is a newcomer again.
#[test]
fn unasked_blocks_leave_first_and_are_forgotten() {
    for kind in [EvictionKind::S3Fifo, EvictionKind::Arc, EvictionKind::Clock, EvictionKind::Lfu] {
        let (mut rng, mut policy) = (Rng::new(1), kind.build(4));
        let moment = &mut Moment { now: Nanos(0), rng: &mut rng };
        let accept = &mut |slot: Slot| Some(BlockKey(u64::from(slot.0) + 10));
        for slot in 0..3 {
            let key = BlockKey(u64::from(slot) + 10);
            policy.on_insert(moment, ONLY, Slot(slot), key, Warmth::Warm);
        }
        policy.on_insert(moment, ONLY, Slot(3), BlockKey(13), Warmth::Cold);
        assert_eq!(policy.coldest(ONLY), Some(Slot(3)), "{}", kind.name());
        let before = policy.memory_bytes();
        assert_eq!(policy.evict(moment, ONLY, None, accept), Some(Slot(3)), "{}", kind.name());
        assert_eq!(policy.memory_bytes(), before, "{} remembers it", kind.name());
    }
}
