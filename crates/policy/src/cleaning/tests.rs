//! Verdicts and scores by hand, ages beside a sorted list, victims beside a brute-force log.

use super::*;
use alloc::vec;
use alloc::vec::Vec;

fn segment(blocks_dense: u32, blocks_live: u32, age: u64) -> SegmentView {
    SegmentView { blocks_dense, blocks_live, age }
}

/// Goal: scores order segments by gain, cost and age, and full ones are none. Method: pairs worked
/// out by hand, the largest numbers included.
#[test]
fn scores_by_hand() {
    assert_eq!(score(segment(100, 100, 1_000)), None, "nothing is gained");
    assert_eq!(score(segment(100, 120, 1_000)), None);
    assert_eq!(score(segment(0, 0, 1_000)), None);
    // 50 * 300 / 150 = 100.
    assert_eq!(score(segment(100, 50, 300)), Some(Score(100 << SCORE_SHIFT)));
    // 90 * 100 / 110 = 81.8 beats 10 * 1500 / 190 = 78.9, and not 10 * 1600 / 190 = 84.2.
    let young = score(segment(100, 10, 100));
    assert!(young > score(segment(100, 90, 1_500)) && young < score(segment(100, 90, 1_600)));
    assert!(score(segment(100, 1, 1)) > score(segment(100, 2, 1)), "less than one apart");
    assert_eq!(score(segment(100, 0, 0)), Some(Score(0)), "just opened: last of all");
    assert!(score(segment(u32::MAX, 0, u64::MAX)) > score(segment(u32::MAX, 1, u64::MAX)));
}

const FULL: LevelState =
    LevelState { slots: 1000, slots_free: 30, segments: Segments { free: 10, kept: 9 } };
const COLD: Block = Block {
    is_settled: true,
    is_dirty: false,
    colder_percent: 14,
    standing: Standing::AboveGuarantee,
};

/// Goal: a block leaves only where each of the conditions holds. Method: a block for which all
/// hold, then one at a time that does not.
#[test]
fn verdicts_by_hand() {
    let of = |level, block| verdict(Limits::DEFAULT, level, block);
    let dirty = Block { is_dirty: true, ..COLD };
    assert_eq!(of(FULL, COLD), Verdict::Drop);
    assert_eq!(of(FULL, dirty), Verdict::Destage);
    let warm = [15, 50, 100].map(|colder_percent| Block { colder_percent, ..COLD });
    let bound = [Standing::Self_, Standing::WithinShare, Standing::Protected]
        .map(|standing| Block { standing, ..COLD });
    let unsettled = [Block { is_settled: false, ..COLD }];
    for block in warm.iter().chain(&bound).chain(&unsettled) {
        assert_eq!(of(FULL, *block), Verdict::Copy, "{block:?}");
        assert_eq!(of(FULL, Block { is_dirty: true, ..*block }), Verdict::Copy, "{block:?}");
    }
    assert_eq!(of(FULL, Block { standing: Standing::Borrower, ..COLD }), Verdict::Drop);
    let roomy = LevelState { slots_free: 31, ..FULL };
    assert_eq!((of(roomy, COLD), of(roomy, dirty)), (Verdict::Copy, Verdict::Copy));
    let scarce = LevelState { segments: Segments { free: 9, kept: 9 }, ..FULL };
    assert_eq!(of(scarce, COLD), Verdict::Drop, "it gives room at once");
    assert_eq!(of(scarce, dirty), Verdict::Copy, "no victim waits");
}

/// Goal: zero percent turns dropping off, and bounds are bounds. Method: the coldest block of a
/// full level under several limits.
#[test]
fn limits_by_hand() {
    let coldest = Block { colder_percent: 0, ..COLD };
    let full = LevelState { slots_free: 0, ..FULL };
    let off = Limits { cold_percent: 0, ..Limits::DEFAULT };
    assert_eq!(verdict(off, full, coldest), Verdict::Copy);
    let no_free = Limits { free_percent: 0, ..Limits::DEFAULT };
    assert_eq!(verdict(no_free, full, coldest), Verdict::Drop);
    let one_free = LevelState { slots_free: 1, ..FULL };
    assert_eq!(verdict(no_free, one_free, coldest), Verdict::Copy);
    for sound in [Limits::MIN, Limits::DEFAULT, Limits::MAX] {
        assert!(sound.is_valid());
    }
    let too_much = [Limits { cold_percent: 51, ..Limits::MAX }, {
        Limits { free_percent: 21, ..Limits::MAX }
    }];
    assert!(too_much.iter().all(|limits| !limits.is_valid()));
}

/// Goal: the part of a level that counts as its coldest tenth is a tenth of it, however its ages
/// lie, ties included, and never what is in use. Method: levels with ages of several shapes; blocks
/// with the ties of all values, beside a sorted list.
#[test]
fn ages_are_told_by_their_place() {
    let shapes: [fn(u64) -> u16; 6] = [
        |at| at as u16,
        |at| 1 + (at % 3) as u16,
        |_| 208,
        |at| if at % 2 == 0 { 0 } else { 9 },
        |at| (at * at) as u16,
        |at| u16::MAX - at as u16,
    ];
    for (shape, age_of) in shapes.iter().enumerate() {
        for slots in [1_u32, 7, 256, 1000, 4096] {
            let mut ages = AgeQuantiles::default();
            ages.refresh(1, slots, |slot| Some(age_of(u64::from(slot) * 997 % 256)));
            let mut blocks = Vec::new();
            for slot in 0..u64::from(slots) {
                let age = age_of(slot * 997 % 256);
                (0..=255).for_each(|tie| blocks.push((age, ages.colder_percent(age, tie))));
            }
            let cold = blocks.iter().filter(|(_, colder)| *colder < 10).count() as f64;
            let part = cold / blocks.len() as f64;
            assert!(part <= 0.16, "shape {shape}, {slots} slots: {part}");
            assert!(part >= 0.05 || slots < 8, "shape {shape}, {slots} slots: {part}");
            assert!(blocks.iter().all(|(age, colder)| *age > 0 || *colder == 100));
            blocks.sort_unstable();
            let is_ordered = |pair: &[(u16, u8)]| pair[0].0 == pair[1].0 || pair[0].1 >= pair[1].1;
            assert!(blocks.windows(2).all(is_ordered), "older is colder");
        }
    }
}

/// Goal: a sample is taken once per stamp, over held slots alone, and others than the one before;
/// without one nothing is cold. Method: a level of which every second slot is empty.
#[test]
fn samples_are_taken_once_per_stamp() {
    let mut ages = AgeQuantiles::default();
    assert_eq!(ages.colder_percent(208, 0), 100);
    let looks = core::cell::RefCell::new(vec![0; 1000]);
    let age_of = |slot: u32| {
        looks.borrow_mut()[slot as usize] += 1;
        slot.is_multiple_of(2).then_some(5)
    };
    let seen = || looks.borrow().iter().sum::<u32>();
    ages.refresh(7, 1000, age_of);
    ages.refresh(7, 1000, age_of);
    assert_eq!(seen(), SAMPLES);
    assert!(ages.samples < SAMPLES as u16);
    (8..=255).for_each(|stamp| ages.refresh(stamp, 1000, age_of));
    assert!(looks.borrow().iter().all(|looks| *looks > 0), "each slot in time");
    let mut other = AgeQuantiles::default();
    (1..=200).for_each(|stamp| other.refresh(stamp, 1000, age_of));
    (201..=255).for_each(|stamp| other.refresh(stamp, 256, |slot| Some(slot as u16)));
    assert_eq!(other.samples, 256, "a small level is looked at whole");
    ages.refresh(3, 1000, |_| None);
    assert_eq!(ages.colder_percent(208, 0), 100, "an empty level has nothing cold");
}

/// Goal: a copy is old once more was written since than the level holds. Method: by hand.
#[test]
fn copies_grow_old() {
    assert_eq!(stream_of_copy(0, 0), CopyStream::Young);
    assert_eq!(stream_of_copy(1_000, 1_000), CopyStream::Young);
    assert_eq!(stream_of_copy(1_001, 1_000), CopyStream::Old);
}

/// Goal: short is what lives no longer than the mean of the last sixteen. Method: by hand: none,
/// one, sixteen and then sixteen others; the largest numbers.
#[test]
fn lifespans_by_hand() {
    let mut lives = Lifespans::default();
    assert!(lives.is_short(u64::MAX), "nothing is known");
    lives.note(100);
    assert!(lives.is_short(100) && !lives.is_short(101));
    (0..15).for_each(|_| lives.note(20));
    // (100 + 15 * 20) / 16 = 25.
    assert!(lives.is_short(25) && !lives.is_short(26));
    lives.note(20);
    assert!(lives.is_short(20) && !lives.is_short(21), "the oldest is forgotten");
    (0..16).for_each(|_| lives.note(u64::MAX));
    assert!(lives.is_short(u64::MAX));
}
