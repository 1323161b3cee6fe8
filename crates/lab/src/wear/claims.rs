//! What the paper claims about wear levelling, and whether it holds here.
//!
//! How: each claim is a figure of the paper's text and the same of these runs. A figure that the
//! paper measured counts as met within a tenth; "up to" and gains, when reached within a tenth.
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
use crate::Claim;

/// How far a figure may be from the paper's and yet be the same.
const NEAR: f64 = 0.1;
/// Pages per host page from which a leveler is awake.
const AWAKE: f64 = 0.1;

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    amplification(&mut claims, results);
    anomaly(&mut claims, results);
    dagc(&mut claims, results);
    even(&mut claims, results);
    small(&mut claims, results);
    lifetimes(&mut claims, results);
    traces(&mut claims, results);
    traces_amplified(&mut claims, results);
    claims
}

fn say(claims: &mut Vec<Claim>, what: &str, expected: String, found: String, holds: bool) {
    claims.push(Claim { what: what.into(), expected, found, holds });
}

/// A figure that must be the paper's.
fn near(claims: &mut Vec<Claim>, what: &str, expected: f64, found: f64) {
    let holds = (found / expected - 1.0).abs() <= NEAR;
    say(claims, what, format!("{expected}"), format!("{found:.2}"), holds);
}

/// A figure that must be reached, or nearly.
fn reached(claims: &mut Vec<Claim>, what: &str, (expected, unit): (f64, &str), found: f64) {
    let holds = found >= expected * (1.0 - NEAR);
    say(
        claims,
        what,
        format!("{expected}{unit} or more, within 10 %"),
        format!("{found:.2}{unit}"),
        holds,
    );
}

fn amplification(claims: &mut Vec<Claim>, results: &Results) {
    let row = &results.aged[SKEWED];
    let windows = &row[PROGRESSIVE].windows;
    let most = windows.iter().max_by(|a, b| a.all.total_cmp(&b.all)).copied().unwrap_or_default();
    near(claims, "Fig. 2: largest write amplification, PWL(50)", AMPLIFICATION_MOST, most.all);
    near(claims, "Fig. 2: of which wear levelling", AMPLIFICATION_LEVELING, most.leveling);
    let wakes = windows.iter().position(|window| window.leveling > AWAKE);
    let wakes = wakes.map_or(0, |at| at as u32 * WINDOW);
    say(
        claims,
        "Fig. 2: PWL(50) sleeps while young, then writes much",
        format!("sleeps for {PROGRESSIVE_WAKES} drive writes"),
        format!("for {wakes}"),
        wakes.abs_diff(PROGRESSIVE_WAKES) <= WINDOW,
    );
    let ratio = row[DUAL_POOL].whole.all / row[DUAL_POOL_WIDE].whole.all;
    near(claims, "Fig. 2: data written, DP(5) to DP(10)", DUAL_POOL_RATIO, ratio);
}

fn anomaly(claims: &mut Vec<Claim>, results: &Results) {
    let row = &results.aged[SKEWED];
    for design in [DUAL_POOL, DUAL_POOL_WIDE, PROGRESSIVE, PROGRESSIVE_LATE] {
        say(
            claims,
            &format!("Fig. 3a: {} spreads erases wider than NoWL", DESIGNS[design].name),
            "wider (p99 − p1)".into(),
            format!("{:.0} against {:.0}", row[design].spread(), row[NONE].spread()),
            row[design].spread() > row[NONE].spread(),
        );
    }
}

fn dagc(claims: &mut Vec<Claim>, results: &Results) {
    for ((load, figure), expected) in [(SKEWED, "3a"), (EVEN, "3b")].into_iter().zip(DAGC_PERCENT) {
        let row = &results.aged[load];
        let beyond = |written: f64| (written / row[NONE].whole.all - 1.0) * 100.0;
        let (once, twice) = (beyond(row[DAGC].whole.all), beyond(row[DAGC].whole.counted_twice));
        say(
            claims,
            &format!("Fig. {figure}: data that DAGC writes beyond NoWL"),
            format!("{expected:+.0} %"),
            format!("{once:+.1} %, with its excess counted twice {twice:+.1} %"),
            (twice - expected).abs() <= 3.0,
        );
    }
    let (with, without) = (&results.aged[SKEWED][DAGC], &results.aged[SKEWED][NONE]);
    say(
        claims,
        "Fig. 3a: DAGC spreads erases evenly",
        "narrower than NoWL".into(),
        format!("{:.0} against {:.0}", with.spread(), without.spread()),
        with.spread() < without.spread(),
    );
}

fn even(claims: &mut Vec<Claim>, results: &Results) {
    let row = &results.aged[EVEN];
    let further = |design: usize| (row[design].whole.all / row[NONE].whole.all - 1.0) * 100.0;
    let most = further(DUAL_POOL).max(further(PROGRESSIVE));
    say(
        claims,
        "Fig. 3b: DP(5) and PWL(50) under even writes: data beyond NoWL",
        "negligible (below 5 %)".into(),
        format!("{most:+.1} % at most"),
        most < 5.0,
    );
}

fn small(claims: &mut Vec<Claim>, results: &Results) {
    let leveled = [DUAL_POOL, PROGRESSIVE, DAGC];
    for load in [SKEWED_SMALL, EVEN_SMALL] {
        let row = &results.aged[load];
        let widest = leveled.map(|design| row[design].spread()).into_iter().fold(0.0, f64::max);
        say(
            claims,
            &format!("Fig. 4: {}: levelers even out what NoWL does not", LOADS[load].name),
            "a tenth of the spread, or less".into(),
            format!("{widest:.0} against {:.0}", row[NONE].spread()),
            widest * 10.0 <= row[NONE].spread(),
        );
    }
    let cost = |load: usize| {
        let row: &[Aged] = &results.aged[load];
        let costs = leveled.map(|design| row[design].whole.all / row[NONE].whole.all);
        (costs.iter().sum::<f64>() / costs.len() as f64 - 1.0) * 100.0
    };
    say(
        claims,
        "Fig. 4: and write more for it under skew than under even writes",
        "more under 0.9/0.1".into(),
        format!("{:+.0} % against {:+.0} %", cost(SKEWED_SMALL), cost(EVEN_SMALL)),
        cost(SKEWED_SMALL) > cost(EVEN_SMALL),
    );
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
    reached(claims, what, (VARIABLE_PERCENT, " %"), gain);
    let best = results.variance_best();
    let what = "Fig. 5: Var_NoWL to Fix_NoWL, best trace";
    reached(claims, what, (VARIABLE_BEST, "x"), best[IN_RUNS][NONE]);
    for (pages, how) in [(IN_RUNS, "in runs"), (SINGLE, "page by page")] {
        let leveled = best[pages][DUAL_POOL..].iter().copied().fold(0.0, f64::max);
        let what = format!("Section 1: Var to Fix under the same leveler, best trace, {how}");
        reached(claims, &what, (VARIABLE_BEST_LEVELED, "x"), leveled);
    }
    let gain = results.gain_percent((FIXED, DUAL_POOL), (FIXED, NONE));
    say(
        claims,
        "Fig. 5: Fix_DP over Fix_NoWL, mean of traces",
        format!("{FIXED_DUAL_POOL_PERCENT:+.0} %, a small margin"),
        format!("{gain:+.1} %"),
        (0.0..=2.0 * FIXED_DUAL_POOL_PERCENT).contains(&gain),
    );
    for trace in ["VDI", "DTRS"] {
        let of = |design: usize| results.lifetime(trace, FIXED, design);
        say(
            claims,
            &format!("Fig. 5: {trace}: Fix_DP and Fix_DAGC live shorter than Fix_NoWL"),
            "both shorter".into(),
            format!("{:.1} and {:.1} against {:.1}", of(DUAL_POOL), of(DAGC), of(NONE)),
            of(DUAL_POOL) < of(NONE) && of(DAGC) < of(NONE),
        );
    }
}

fn traces(claims: &mut Vec<Claim>, results: &Results) {
    let ratio = |trace: &str, of: (usize, usize), over: (usize, usize)| {
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
        near(claims, &format!("Fig. 5: {what}"), expected, ratio(trace, of, over));
    }
    let found = results.lifetime("MSN-BEFS", VARIABLE, NONE);
    near(claims, "Fig. 5: MSN-BEFS: drive writes of Var_NoWL", MSN_BEFS_DRIVE_WRITES, found);
}

fn traces_amplified(claims: &mut Vec<Claim>, results: &Results) {
    let of = |design: usize| {
        results.lives[IN_RUNS].iter().map(move |lives| lives[FIXED][design].amplification.all)
    };
    let mean = of(NONE).sum::<f64>() / TRACES.len() as f64;
    let what = "Fig. 6: write amplification without a leveler, mean of traces";
    near(claims, what, AMPLIFICATION_MEAN, mean);
    let at = TRACES.iter().position(|trace| trace.name == "LM-TBE").unwrap_or_default();
    let found = results.lives[IN_RUNS][at][FIXED][NONE].amplification.all;
    near(claims, "Fig. 6: LM-TBE's", LM_TBE_AMPLIFICATION, found);
    let most = of(DUAL_POOL).chain(of(DAGC)).fold(0.0, f64::max);
    near(claims, "Fig. 6: the largest under DP and DAGC", AMPLIFICATION_TRACES_MOST, most);
}
