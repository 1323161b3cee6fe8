//! One suite that every eviction policy must pass.

use crate::registry::EvictionKind;
use crate::{Group, Moment, Warmth};
use alloc::collections::BTreeMap;
use layby_types::{Nanos, Rng, Slot};

/// Goal: a policy evicts each resident slot exactly once, from its own group, and counts right.
/// Method: random calls beside a plain map, for every policy in the registry.
#[test]
fn policies_match_a_map() {
    for kind in EvictionKind::ALL {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut policy, mut model) = (kind.build(32), BTreeMap::new());
            for step in 0..800 {
                one_call(&mut *policy, &mut model, &mut rng, step);
                for group in 0..3u16 {
                    let expected = model.values().filter(|g| **g == group).count() as u32;
                    assert_eq!(policy.len(Group(group)), expected, "{} SEED={seed}", kind.name());
                }
            }
        }
    }
}

fn one_call(
    policy: &mut dyn crate::Eviction,
    model: &mut BTreeMap<u32, u16>,
    rng: &mut Rng,
    step: u64,
) {
    let (slot, group) = (rng.below(32) as u32, rng.below(3) as u16);
    let roll = rng.below(5);
    let moment = &mut Moment { now: Nanos(step), rng };
    match (roll, model.get(&slot).copied()) {
        (0, _) => {
            let out = policy.evict(moment, Group(group), &mut |_| true);
            assert_eq!(out.is_some(), model.values().any(|g| *g == group));
            if let Some(out) = out {
                assert_eq!(model.remove(&out.0), Some(group), "evicted from the wrong group");
            }
        }
        (1, Some(home)) => {
            policy.on_remove(Group(home), Slot(slot));
            model.remove(&slot);
        }
        (_, Some(home)) => policy.on_hit(moment, Group(home), Slot(slot)),
        (roll, None) => {
            let warmth = if roll == 1 { Warmth::Cold } else { Warmth::Warm };
            policy.on_insert(moment, Group(group), Slot(slot), warmth);
            model.insert(slot, group);
        }
    }
}

/// Goal: LRU leaves in order of last use; cold entries first. Method: a hand-made sequence.
#[test]
fn lru_order() {
    let mut rng = Rng::new(1);
    let moment = &mut Moment { now: Nanos(0), rng: &mut rng };
    let mut lru = EvictionKind::Lru.build(8);
    for slot in [0, 1, 2] {
        lru.on_insert(moment, Group(0), Slot(slot), Warmth::Warm);
    }
    lru.on_insert(moment, Group(0), Slot(7), Warmth::Cold);
    lru.on_hit(moment, Group(0), Slot(0));
    assert_eq!(lru.evict(moment, Group(0), &mut |slot| slot != Slot(7)), Some(Slot(1)));
    let order: [Option<Slot>; 4] =
        core::array::from_fn(|_| lru.evict(moment, Group(0), &mut |_| true));
    assert_eq!(order, [Some(Slot(7)), Some(Slot(2)), Some(Slot(0)), None]);
}
