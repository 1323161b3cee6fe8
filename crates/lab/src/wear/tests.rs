//! The experiment's shape, on a device that is small enough for every test run.

use super::device::{DAGC, DUAL_POOL, NONE, PROGRESSIVE};
use super::*;
use crate::Experiment;

/// 1/2048 of the paper's device: 128 MiB, which shows a shape and is too small for a report.
const SMALL: Extent = Extent { scale: 2048, drive_writes: 20 };

/// 1/4096 of it: 64 blocks.
const TINY: u32 = 4096;

fn aged(load: usize, design: usize) -> Aged {
    age(SMALL, LOADS[load], DESIGNS[design], 1)
}

/// Goal: the anomaly: under skew over the whole device Dual-Pool writes more and widens what it
/// should narrow; over a part of it, it narrows. Method: 20 drive writes with and without.
#[test]
fn levelling_widens_and_narrows() {
    let (with, without) = (aged(SKEWED, DUAL_POOL), aged(SKEWED, NONE));
    assert!(with.spread() > without.spread(), "{} {}", with.spread(), without.spread());
    assert!(with.whole.leveling > 0.0 && without.whole.leveling == 0.0);
    let (with, without) = (aged(EVEN_SMALL, DUAL_POOL), aged(EVEN_SMALL, NONE));
    assert!(10.0 * with.spread() < without.spread(), "{} {}", with.spread(), without.spread());
}

/// Goal: the same seed gives the same figures, another one others that are near. Method: both.
#[test]
fn seeds_decide() {
    let run = |seed| age(SMALL, LOADS[SKEWED], DESIGNS[DUAL_POOL], seed);
    assert_eq!(run(1), run(1));
    let (one, other) = (run(1), run(2));
    assert_ne!(one, other);
    assert!((one.whole.all / other.whole.all - 1.0).abs() < 0.05);
}

/// Goal: the report's words about scales hold on the smallest device that is offered: PWL(50)'s
/// largest amplification moves by less than a percent, that of all drive writes by less than two,
/// and when it wakes by no more than a window. Method: 100 drive writes under skew, there and on a
/// device of twice the size.
#[test]
fn the_smallest_device_is_near_a_larger_one() {
    let run = |scale: u32| {
        let extent = Extent { scale, drive_writes: paper::DRIVE_WRITES };
        age(extent, LOADS[SKEWED], DESIGNS[PROGRESSIVE], 1)
    };
    let [small, large] = [SCALE_MAX, SCALE_MAX / 2].map(run);
    let apart = |of: &dyn Fn(&Aged) -> f64| (of(&small) / of(&large) - 1.0).abs();
    let most = |aged: &Aged| aged.windows.iter().map(|window| window.all).fold(0.0, f64::max);
    assert!(apart(&most) < 0.01, "{} {}", most(&small), most(&large));
    let whole = |aged: &Aged| aged.whole.all;
    assert!(apart(&whole) < 0.02, "{} {}", whole(&small), whole(&large));
    let [small, large] = [small, large].map(|aged| claims::wakes(&aged));
    assert!((small - large).abs() <= f64::from(device::WINDOW), "{small} {large}");
}

/// Goal: capacity variance prolongs life where the footprint is small and levelling is none, gains
/// nothing where it is the device, and nothing under even wear. Method: lives of a tiny device.
#[test]
fn variance_prolongs_small_footprints() {
    let gain = |name: &str, design: usize| {
        let trace = TRACES.iter().find(|trace| trace.name == name).expect("of Table 3");
        let spec = stand_in(TINY, trace, Pages::InRuns);
        let [fixed, variable] = CAPACITIES.map(|end| {
            let runs = Overwrites::new(spec, 1);
            device::live(TINY, DESIGNS[design], runs, (end, 1)).drive_writes
        });
        variable / fixed
    };
    assert!(gain("RAD-BE", NONE) > paper::VARIABLE_BEST);
    assert!((0.98..1.02).contains(&gain("VDI", NONE)));
    assert!(gain("MSN-BEFS", DAGC) < 1.1);
}

/// Goal: a document has a figure for everything it names. Method: made-up results.
#[test]
fn documents_are_complete() {
    let mut results = Results::default();
    for lives in results.lives.iter_mut().flatten() {
        lives.iter_mut().flatten().for_each(|lived| lived.drive_writes = 1.0);
    }
    for row in &mut results.aged {
        row.iter_mut().for_each(|aged| aged.windows = vec![Default::default(); 20]);
    }
    let options = crate::Options { scale: Some(512), ..crate::Options::default() };
    let found = document(&options, SMALL, &results);
    assert!(found.html().contains("Fig. 5") && !found.claims.is_empty());
    assert!(found.command.contains(Experiment::Wear.name()) && found.command.contains("512"));
    assert!(found.sections.iter().all(|section| section.table.is_some()));
    let parameters = found.sections[0].table.as_ref().expect("it has one");
    let sleeps = parameters.rows.iter().find(|row| row[0].contains("sleeps"));
    let sleeps = &sleeps.expect("it says when a leveler sleeps")[2];
    assert!(sleeps.contains("5 drive writes") && sleeps.contains("0.1 pages"), "{sleeps}");
    assert_eq!(Experiment::Wear.choices().scales, Some(SCALE_MIN..=SCALE_MAX));
}

/// Goal: no claim holds because a leveler slept: PWL(50) under the even load is measured, and told
/// to sleep. Method: made-up results in which it adds nothing.
#[test]
fn a_leveler_that_sleeps_is_not_claimed() {
    let mut results = Results::default();
    for aged in results.aged.iter_mut().flatten() {
        (aged.windows, aged.whole.all) = (vec![Default::default(); 20], 5.0);
    }
    let what = |text: &str| text.contains("Fig. 3b: PWL(50)");
    assert!(!claims::all(&results).iter().any(|claim| what(claim.what())));
    let measured = claims::measured(&results);
    let slept = measured.iter().find(|one| what(&one.what)).expect("it is measured");
    assert_eq!(slept.found, "+0.0 %; it slept throughout");
}

/// Goal: stand-ins have the footprint that Table 3 has. Method: each at the usual scale.
#[test]
fn stand_ins_fit_the_device() {
    let pages = u64::from(device::geometry(SCALE_DEFAULT).logical_pages);
    for trace in &TRACES {
        let spec = stand_in(SCALE_DEFAULT, trace, Pages::InRuns);
        let part = spec.footprint_pages as f64 / pages as f64;
        assert!((part - trace.footprint_gib / 256.0).abs() < 1e-3, "{}", trace.name);
        assert!(spec.hot_writes + spec.hot_pages == 1.0 && spec.run_pages >= 2.0);
    }
}

fn made(draw: &mut dyn FnMut() -> f64) -> Results {
    let mut results = Results::default();
    let mut written =
        || device::Amplification { all: draw(), leveling: draw() / 5.0, counted_twice: draw() };
    for lived in results.lives.iter_mut().flatten().flatten().flatten() {
        lived.amplification = written();
        lived.drive_writes = lived.amplification.counted_twice;
    }
    for aged in results.aged.iter_mut().flatten() {
        (aged.windows, aged.whole) = ((0..20).map(|_| written()).collect(), written());
        let mut sum = 0.0;
        aged.erases = aged.erases.map(|_| {
            sum += written().all * 100.0;
            sum
        });
    }
    results
}

/// Goal: with several seeds every figure is the median of the seeds' own. Method: made-up figures
/// of two to four seeds.
#[test]
fn figures_are_medians_over_the_seeds() {
    let options = crate::Options::default();
    crate::document::tests::medians_of_made(
        made,
        |seeds| whole(&options, SMALL, seeds),
        |one| document(&options, SMALL, one),
    );
}
