//! One suite that every eviction policy must pass.

use crate::registry::EvictionKind;
use crate::{Eviction, Group, Moment, Warmth};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use layby_types::{BlockKey, Nanos, Rng, Slot};

/// What is resident, beside the policy: slot to group and block.
type Model = BTreeMap<u32, (u16, BlockKey)>;

const SLOTS: u64 = 32;
const BLOCKS: u64 = 60;

/// A block that `group` does not hold; blocks come back, so that memories of them are met.
fn absent(model: &Model, rng: &mut Rng, group: u16) -> BlockKey {
    let held: BTreeSet<u64> = model.values().filter(|h| h.0 == group).map(|h| h.1.0).collect();
    let base = u64::from(group) * 1000;
    let free: Vec<u64> = (base..base + BLOCKS).filter(|key| !held.contains(key)).collect();
    BlockKey(free[rng.below(free.len() as u64) as usize])
}

/// Goal: a policy evicts each resident slot exactly once, from its own group, counts right, takes
/// no refused slot, and its coldest is resident. Method: random calls beside a plain map, for every
/// policy in the registry.
#[test]
fn policies_match_a_map() {
    for kind in EvictionKind::ALL {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut policy, mut model) = (kind.build(SLOTS as u32), Model::new());
            for step in 0..800 {
                one_call(&mut *policy, &mut model, &mut rng, step);
                for group in 0..3u16 {
                    let held = |slot: &u32| model.get(slot).is_some_and(|h| h.0 == group);
                    let count = model.keys().filter(|slot| held(slot)).count() as u32;
                    assert_eq!(policy.len(Group(group)), count, "{} SEED={seed}", kind.name());
                    let coldest = policy.coldest(Group(group));
                    assert_eq!(coldest.is_some(), count > 0, "{} SEED={seed}", kind.name());
                    assert!(coldest.is_none_or(|slot| held(&slot.0)), "a stranger is coldest");
                }
            }
        }
    }
}

fn one_call(policy: &mut dyn Eviction, model: &mut Model, rng: &mut Rng, step: u64) {
    let (slot, group) = (rng.below(SLOTS) as u32, rng.below(3) as u16);
    let (roll, refused) = (rng.below(6), rng.below(SLOTS) as u32);
    let incoming = rng.chance(1, 2).then(|| absent(model, rng, group));
    let fresh = incoming.unwrap_or_else(|| absent(model, rng, group));
    let moment = &mut Moment { now: Nanos(step), rng };
    match (roll, model.get(&slot).copied()) {
        (0 | 1, _) => {
            let keep = if roll == 0 { u32::MAX } else { refused };
            let out = policy.evict(moment, Group(group), incoming, &mut |slot| {
                (slot.0 != keep).then(|| model[&slot.0].1)
            });
            let expected = model.iter().any(|(slot, held)| held.0 == group && *slot != keep);
            assert_eq!(out.is_some(), expected);
            if let Some(out) = out {
                assert_ne!(out.0, keep, "a refused slot left");
                let held = model.remove(&out.0);
                assert_eq!(held.map(|h| h.0), Some(group), "evicted from the wrong group");
                policy.on_insert(moment, Group(group), out, fresh, Warmth::Warm);
                model.insert(out.0, (group, fresh));
            }
        }
        (2, Some((home, _))) => {
            policy.on_remove(Group(home), Slot(slot));
            model.remove(&slot);
        }
        (_, Some((home, _))) => policy.on_hit(moment, Group(home), Slot(slot)),
        (roll, None) => {
            let warmth = if roll == 3 { Warmth::Cold } else { Warmth::Warm };
            policy.on_insert(moment, Group(group), Slot(slot), fresh, warmth);
            model.insert(slot, (group, fresh));
        }
    }
}

/// Goal: a peek (an eviction that accepts nothing) takes nothing, and all can leave after it.
/// Method: peeks between hits, then evictions until nothing is left.
#[test]
fn peeks_take_nothing() {
    for kind in EvictionKind::ALL {
        let (mut rng, mut policy) = (Rng::new(7), kind.build(SLOTS as u32));
        let moment = &mut Moment { now: Nanos(0), rng: &mut rng };
        for slot in 0..SLOTS as u32 {
            policy.on_insert(moment, Group(1), Slot(slot), BlockKey(slot.into()), Warmth::Warm);
        }
        for slot in (0..SLOTS as u32).step_by(3) {
            policy.on_hit(moment, Group(1), Slot(slot));
            assert_eq!(policy.evict(moment, Group(1), None, &mut |_| None), None);
        }
        let out: BTreeSet<u32> = (0..SLOTS)
            .filter_map(|_| {
                policy.evict(moment, Group(1), None, &mut |slot| Some(BlockKey(slot.0.into())))
            })
            .map(|slot| slot.0)
            .collect();
        assert_eq!((out.len() as u64, policy.len(Group(1))), (SLOTS, 0), "{}", kind.name());
    }
}

/// Goal: what a policy remembers stays bounded. Method: a long scan through one group, then the
/// whole room goes to another; memory is that of a few dozen bytes per slot.
#[test]
fn memory_is_bounded() {
    for kind in EvictionKind::ALL {
        let (mut rng, mut policy) = (Rng::new(7), kind.build(1000));
        let moment = &mut Moment { now: Nanos(0), rng: &mut rng };
        for block in 0..50_000u32 {
            let group = Group((block / 25_000) as u16);
            let slot = if block < 1000 {
                Slot(block)
            } else {
                let old = if policy.len(Group(0)) > 0 { Group(0) } else { group };
                let key = |slot: Slot| BlockKey((u64::from(block) << 20) | u64::from(slot.0));
                let accept = &mut |slot| Some(key(slot));
                policy.evict(moment, old, None, accept).expect("the room is full")
            };
            policy.on_insert(moment, group, slot, BlockKey(block.into()), Warmth::Warm);
        }
        assert!(policy.memory_bytes() < 1000 * 100, "{}: {}", kind.name(), policy.memory_bytes());
    }
}
