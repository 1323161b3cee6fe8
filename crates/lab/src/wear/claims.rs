//! What the paper claims about wear levelling, and whether it holds here.
//!
//! How: each claim is a figure of the paper's text and the same of these runs, and holds within a
//! tenth of the effect that the figure names, on either side: what is beyond the paper's figure is
//! not the paper's either. What the paper calls wider, narrower or shorter without a size is a
//! measurement.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.
//! Not for: why; the sections say that.

use super::device::{
    Aged, DAGC, DESIGNS, DUAL_POOL, DUAL_POOL_WIDE, LIVED, NONE, PROGRESSIVE, PROGRESSIVE_LATE,
    WINDOW,
};
use super::paper::{
    AMPLIFICATION_LEVELING, AMPLIFICATION_MEAN, AMPLIFICATION_MOST, AMPLIFICATION_TRACES_MOST,
    DAGC_PERCENT, DTRS, DUAL_POOL_RATIO, FIXED_DUAL_POOL_PERCENT, LM_TBE_AMPLIFICATION,
    LM_TBE_DUAL_POOL, MSN_BEFS, MSN_BEFS_DRIVE_WRITES, PROGRESSIVE_WAKES, TRACES, VARIABLE_BEST,
    VARIABLE_BEST_LEVELED, VARIABLE_PERCENT, VDI_PROGRESSIVE,
};
use super::{
    EVEN, EVEN_SMALL, FIXED, IN_RUNS, LOADS, PAGES, Results, SINGLE, SKEWED, SKEWED_SMALL, VARIABLE,
};
use crate::{Claim, Expected, Measurement, Unit};

/// Pages per host page from which a leveler is awake.
pub(super) const AWAKE: f64 = 0.1;
/// What "negligible" and "the same" may be off by, in percent of the data written; DAGC's excess
/// under the same load is the smallest that the paper calls an overhead.
const NEGLIGIBLE_PERCENT: f64 = 5.0;

/// What stands beside a verdict that another seed or scale may change.
const MOVES: &str = "across the edge by seed and scale: see Parameters";

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    amplification(&mut claims, results);
    dagc(&mut claims, results);
    even(&mut claims, results);
    lifetimes(&mut claims, results);
    traces(&mut claims, results);
    traces_amplified(&mut claims, results);
    claims
}

/// What the paper says without a size.
pub(super) fn measured(results: &Results) -> Vec<Measurement> {
    let mut all = anomaly(results);
    all.push(asleep(results));
    all.extend(small(results));
    all.extend(shorter(results));
    all
}

fn percent(of: f64, over: f64) -> f64 {
    (of / over - 1.0) * 100.0
}

/// A ratio, of which nothing is left at one.
fn ratio(claims: &mut Vec<Claim>, what: &str, expected: f64, found: f64) {
    claims.push(Claim::new(what, Expected::effect(expected, 1.0, Unit::Times), found));
}

fn amplification(claims: &mut Vec<Claim>, results: &Results) {
    let row = &results.aged[SKEWED];
    let windows = &row[PROGRESSIVE].windows;
    let most = windows.iter().max_by(|a, b| a.all.total_cmp(&b.all)).copied().unwrap_or_default();
    ratio(claims, "Fig. 2: largest write amplification, PWL(50)", AMPLIFICATION_MOST, most.all);
    let leveling = Expected::effect(AMPLIFICATION_LEVELING, 0.0, Unit::Times);
    claims.push(Claim::new("Fig. 2: of which wear levelling", leveling, most.leveling));
    let wakes = wakes(&row[PROGRESSIVE]);
    // A leveler that never slept would be awake at zero.
    let asleep = Expected::effect(f64::from(PROGRESSIVE_WAKES), 0.0, Unit::DriveWrites);
    claims.push(Claim::new("Fig. 2: how long PWL(50) sleeps", asleep, wakes));
    let twice = row[DUAL_POOL].whole.all / row[DUAL_POOL_WIDE].whole.all;
    ratio(claims, "Fig. 2: data written, DP(5) to DP(10)", DUAL_POOL_RATIO, twice);
}

/// Drive writes before the first window in which a leveler is awake; no number where it never is.
pub(super) fn wakes(aged: &Aged) -> f64 {
    let awake = aged.windows.iter().position(|window| window.leveling > AWAKE);
    awake.map_or(f64::NAN, |at| f64::from(at as u32 * WINDOW))
}

fn anomaly(results: &Results) -> Vec<Measurement> {
    let row = &results.aged[SKEWED];
    let mut all: Vec<Measurement> = Vec::new();
    for (design, says) in [
        (DUAL_POOL, "wider"),
        (DUAL_POOL_WIDE, "wider"),
        (PROGRESSIVE, "wider"),
        (PROGRESSIVE_LATE, "wider"),
        (DAGC, "narrower"),
    ] {
        let (of, none) = (row[design].spread(), row[NONE].spread());
        all.push(Measurement::new(
            format!("Fig. 3a: {}: erases p99 − p1, to NoWL's", DESIGNS[design].name),
            says,
            format!("{:.2}x ({of:.0} against {none:.0})", of / none),
        ));
    }
    all
}

fn dagc(claims: &mut Vec<Claim>, results: &Results) {
    for ((load, figure), expected) in [(SKEWED, "3a"), (EVEN, "3b")].into_iter().zip(DAGC_PERCENT) {
        let row = &results.aged[load];
        let beyond = |written: f64| percent(written, row[NONE].whole.all);
        let expected = Expected::effect(expected, 0.0, Unit::Percent);
        for (how, written) in [
            ("", row[DAGC].whole.all),
            (", its excess counted twice", row[DAGC].whole.counted_twice),
        ] {
            let what = format!("Fig. {figure}: data that DAGC writes beyond NoWL{how}");
            claims.push(Claim::new(what, expected, beyond(written)));
        }
    }
}

/// PWL(50) is measured only: it sleeps where no block is worn enough, and then writes nothing more
/// whatever it would cost.
fn even(claims: &mut Vec<Claim>, results: &Results) {
    let negligible = Expected::alike(0.0, NEGLIGIBLE_PERCENT, DAGC_PERCENT[1], Unit::Percent);
    let what = format!("Fig. 3b: {}: data beyond NoWL, negligible", DESIGNS[DUAL_POOL].name);
    claims.push(Claim::new(what, negligible, further(results, DUAL_POOL)).noted(MOVES));
}

/// Data that a design writes beyond none under the even load, in percent.
fn further(results: &Results, design: usize) -> f64 {
    let row = &results.aged[EVEN];
    percent(row[design].whole.all, row[NONE].whole.all)
}

fn asleep(results: &Results) -> Measurement {
    let slept = results.aged[EVEN][PROGRESSIVE].whole.leveling == 0.0;
    let why = if slept { "; it slept throughout" } else { "" };
    Measurement::new(
        format!("Fig. 3b: {}: data beyond NoWL", DESIGNS[PROGRESSIVE].name),
        "negligible",
        format!("{:+.1} %{why}", further(results, PROGRESSIVE)),
    )
}

fn small(results: &Results) -> Vec<Measurement> {
    let leveled = [DUAL_POOL, PROGRESSIVE, DAGC];
    let mut all: Vec<Measurement> = Vec::new();
    for load in [SKEWED_SMALL, EVEN_SMALL] {
        let row = &results.aged[load];
        let widest = leveled.map(|design| row[design].spread()).into_iter().fold(0.0, f64::max);
        all.push(Measurement::new(
            format!("Fig. 4: {}: erases p99 − p1, widest leveler and NoWL", LOADS[load].name),
            "nearly vertical; two heaps",
            format!("{widest:.0} and {:.0}", row[NONE].spread()),
        ));
    }
    let cost = |load: usize| {
        let row: &[Aged] = &results.aged[load];
        let costs = leveled.map(|design| row[design].whole.all / row[NONE].whole.all);
        (costs.iter().sum::<f64>() / costs.len() as f64 - 1.0) * 100.0
    };
    all.push(Measurement::new(
        "Fig. 4: data that levelers write beyond NoWL, 0.9/0.1 and 0.5/0.5",
        "more under 0.9/0.1",
        format!("{:+.0} % and {:+.0} %", cost(SKEWED_SMALL), cost(EVEN_SMALL)),
    ));
    all
}

fn shorter(results: &Results) -> Vec<Measurement> {
    let of = |trace: &str, design: usize| results.lifetime(trace, FIXED, design);
    let rows = ["VDI", "DTRS"].map(|trace| {
        let change = |design: usize| percent(of(trace, design), of(trace, NONE));
        Measurement::new(
            format!("Fig. 5: {trace}: life of Fix_DP and Fix_DAGC against Fix_NoWL"),
            "both shorter",
            format!("{:+.1} % and {:+.1} %", change(DUAL_POOL), change(DAGC)),
        )
    });
    rows.into()
}

impl Results {
    /// Drive writes until failure of all traces, one capacity and design.
    fn lifetimes(&self, capacity: usize, design: usize) -> impl Iterator<Item = f64> {
        self.lives[IN_RUNS].iter().map(move |lives| lives[capacity][design].drive_writes)
    }
    /// Drive writes until failure by the trace's name.
    fn lifetime(&self, trace: &str, capacity: usize, design: usize) -> f64 {
        let at = TRACES.iter().position(|described| described.name == trace);
        self.lives[IN_RUNS][at.expect("a trace of Table 3")][capacity][design].drive_writes
    }
    /// Mean over the traces of the gain of one kind of life over another, in percent.
    fn gain_percent(&self, of: (usize, usize), over: (usize, usize)) -> f64 {
        let pairs = self.lifetimes(of.0, of.1).zip(self.lifetimes(over.0, over.1));
        (pairs.map(|(of, over)| of / over).sum::<f64>() / TRACES.len() as f64 - 1.0) * 100.0
    }
    /// The largest ratio of the variable to the fixed device over the traces, by how they write and
    /// design.
    pub(super) fn variance_best(&self) -> [[f64; LIVED]; PAGES.len()] {
        std::array::from_fn(|pages| {
            std::array::from_fn(|design| {
                let lives = self.lives[pages].iter();
                let life = |lives: &super::Lives, at: usize| lives[at][design].drive_writes;
                let ratios = lives.map(|lives| life(lives, VARIABLE) / life(lives, FIXED));
                ratios.fold(0.0, f64::max)
            })
        })
    }
}

fn lifetimes(claims: &mut Vec<Claim>, results: &Results) {
    let gain = results.gain_percent((VARIABLE, NONE), (FIXED, NONE));
    let what = "Fig. 5: Var_NoWL over Fix_NoWL, mean of traces";
    let expected = Expected::effect(VARIABLE_PERCENT, 0.0, Unit::Percent);
    claims.push(Claim::new(what, expected, gain));
    let best = results.variance_best();
    let what = "Fig. 5: Var_NoWL to Fix_NoWL, best trace";
    ratio(claims, what, VARIABLE_BEST, best[IN_RUNS][NONE]);
    for (pages, how) in [(IN_RUNS, "in runs"), (SINGLE, "page by page")] {
        let leveled = best[pages][DUAL_POOL..].iter().copied().fold(0.0, f64::max);
        let what = format!("Section 1: Var to Fix under the same leveler, best trace, {how}");
        ratio(claims, &what, VARIABLE_BEST_LEVELED, leveled);
    }
    let gain = results.gain_percent((FIXED, DUAL_POOL), (FIXED, NONE));
    let expected = Expected::effect(FIXED_DUAL_POOL_PERCENT, 0.0, Unit::Percent);
    let what = "Fig. 5: Fix_DP over Fix_NoWL, mean of traces";
    claims.push(Claim::new(what, expected, gain).noted(MOVES));
}

fn traces(claims: &mut Vec<Claim>, results: &Results) {
    let lives = |trace: &str, of: (usize, usize), over: (usize, usize)| {
        results.lifetime(trace, of.0, of.1) / results.lifetime(trace, over.0, over.1)
    };
    let rows = [
        ("MSN-BEFS: Var_NoWL to Fix_NoWL", MSN_BEFS, (VARIABLE, NONE), (FIXED, NONE)),
        ("VDI: Fix_PWL to Var_NoWL", VDI_PROGRESSIVE, (FIXED, PROGRESSIVE), (VARIABLE, NONE)),
        ("LM-TBE: Fix_DP to Var_NoWL", LM_TBE_DUAL_POOL, (FIXED, DUAL_POOL), (VARIABLE, NONE)),
        ("DTRS: Fix_NoWL to Fix_DP", DTRS[0], (FIXED, NONE), (FIXED, DUAL_POOL)),
        ("DTRS: Fix_NoWL to Fix_DAGC", DTRS[1], (FIXED, NONE), (FIXED, DAGC)),
        ("DTRS: Var_NoWL to Fix_DP", DTRS[2], (VARIABLE, NONE), (FIXED, DUAL_POOL)),
        ("DTRS: Var_PWL to Var_NoWL", DTRS[3], (VARIABLE, PROGRESSIVE), (VARIABLE, NONE)),
    ];
    for (what, expected, of, over) in rows {
        let trace = what.split(':').next().unwrap_or_default();
        ratio(claims, &format!("Fig. 5: {what}"), expected, lives(trace, of, over));
    }
    let found = results.lifetime("MSN-BEFS", VARIABLE, NONE);
    // What the capacity's variance does is what is beyond the fixed device's life.
    let fixed = MSN_BEFS_DRIVE_WRITES / MSN_BEFS;
    let expected = Expected::effect(MSN_BEFS_DRIVE_WRITES, fixed, Unit::DriveWrites);
    claims.push(Claim::new("Fig. 5: MSN-BEFS: life of Var_NoWL", expected, found));
}

fn traces_amplified(claims: &mut Vec<Claim>, results: &Results) {
    let of = |design: usize| {
        results.lives[IN_RUNS].iter().map(move |lives| lives[FIXED][design].amplification.all)
    };
    let mean = of(NONE).sum::<f64>() / TRACES.len() as f64;
    let what = "Fig. 6: write amplification without a leveler, mean of traces";
    ratio(claims, what, AMPLIFICATION_MEAN, mean);
    let at = TRACES.iter().position(|trace| trace.name == "LM-TBE").unwrap_or_default();
    let found = results.lives[IN_RUNS][at][FIXED][NONE].amplification.all;
    ratio(claims, "Fig. 6: LM-TBE's", LM_TBE_AMPLIFICATION, found);
    let most = of(DUAL_POOL).chain(of(DAGC)).fold(0.0, f64::max);
    ratio(claims, "Fig. 6: the largest under DP and DAGC", AMPLIFICATION_TRACES_MOST, most);
}
