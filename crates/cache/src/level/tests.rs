//! What a level says of its slots: ages, and the hand that sweeps for dirty ones.

use super::*;
use crate::spec::Watermarks;
use layby_policy::registry::EvictionKind;
use layby_types::Rng;

fn level(slots: u32) -> Level {
    let (kind, eviction) = (LevelKind::Ssd, EvictionKind::Lru);
    Level::new(&LevelSpec { kind, slots, eviction, watermarks: Watermarks::DEFAULT }, 1)
}

/// Goal: a slot that is not used grows old and stays old, whatever the level's size; it never
/// looks young again. Method: one slot rests while the others are used until their stamps have
/// wrapped twice.
#[test]
fn ages_never_wrap() {
    for slots in [2, 3, 63, 64, 65, 100, 127, 128, 1000] {
        let mut level = level(slots);
        let mut rng = Rng::new(u64::from(slots));
        let mut age_before = 0;
        let turns = 2 * (u32::from(u16::MAX) / slots.min(STAMPS_PER_TURN) + 1);
        for _ in 0..slots * turns {
            level.touch(Slot(1 + rng.below(u64::from(slots) - 1) as u32));
            let age = level.stamp().wrapping_sub(level.touched[0]);
            assert!(age >= age_before.min(AGE_MAX), "{slots} slots: {age_before} to {age}");
            age_before = age;
        }
        assert!(age_before >= AGE_MAX, "{slots} slots: {age_before}");
    }
}

/// Goal: the hand stops at every dirty slot in turn, round the end of the level, looks at no more
/// slots than it may, and passes those that are refused. Method: random dirty slots, bounds and
/// refusals, beside a hand that looks at slots one by one.
#[test]
fn sweeps_stop_at_each_dirty_slot() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let slots = 1 + rng.below(200) as u32;
        let mut level = level(slots);
        for slot in 0..slots as usize {
            level.flags[slot] = if rng.chance(1, 3) { HELD | DIRTY } else { HELD };
        }
        level.keys = (0..slots).map(|slot| BlockKey(u64::from(slot))).collect();
        let mut hand = 0;
        for _ in 0..100 {
            let looks = 1 + rng.below(300) as u32;
            let refuses_odd = rng.chance(1, 2);
            let accepts = |key: BlockKey| !(refuses_odd && key.0 % 2 == 1);
            let mut expected = None;
            for _ in 0..looks.min(slots) {
                let slot = hand;
                hand = (hand + 1) % slots;
                let is_dirty = level.flags[slot as usize] & DIRTY != 0;
                if is_dirty && accepts(BlockKey(u64::from(slot))) {
                    expected = Some(Slot(slot));
                    break;
                }
            }
            let found = level.sweep(looks, &mut |dirty| accepts(dirty.key));
            assert_eq!((found, level.hand), (expected, hand), "seed {seed}, {slots} slots");
        }
    }
}
