//! The document's parts: parameters, then a section per figure.
//!
//! How: a table, a chart and what to know when reading them, per figure of the paper.
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::claims::AWAKE;
use super::device::{
    Aged, DESIGNS, DUAL_POOL, LIVED, NONE, PROGRESSIVE, QUANTILES, WINDOW, geometry,
};
use super::paper::{
    AMPLIFICATION_LEVELING, AMPLIFICATION_MEAN, AMPLIFICATION_MOST, AMPLIFICATION_TRACES_MOST,
    DUAL_POOL_RATIO, ENDURANCE, LM_TBE_AMPLIFICATION, PROGRESSIVE_WAKES, TRACES, VARIABLE_BEST,
    VARIABLE_BEST_LEVELED, VARIABLE_PERCENT,
};
use super::{
    EVEN, EVEN_SMALL, Extent, FIXED, IN_RUNS, LOADS, Lives, Results, SCALE_MAX, SINGLE, SKEWED,
    SKEWED_SMALL, VARIABLE,
};
use crate::{Chart, Options, Section, Series, Table};

/// Every part.
pub(super) fn all(options: &Options, extent: Extent, results: &Results) -> Vec<Section> {
    let mut sections = vec![parameters(options, extent, results), amplification(results)];
    sections.extend([SKEWED, EVEN, SKEWED_SMALL, EVEN_SMALL].map(|load| erases(load, results)));
    sections.extend([effectiveness(results), lifetimes(results), singles(results)]);
    sections.push(variance(results));
    sections.push(traces_amplified(results));
    sections
}

fn parameters(options: &Options, extent: Extent, results: &Results) -> Section {
    let worn = |load: usize| results.aged[load][NONE].erases[QUANTILES.len() - 1];
    let mut table = Table::new(&["what", "paper", "here"]);
    let mut say =
        |what: &str, paper: &str, here: String| table.push(vec![what.into(), paper.into(), here]);
    let made = geometry(extent.scale);
    let mib = made.logical_blocks();
    say("logical capacity", "256 GiB", format!("{mib} MiB (1/{} of it)", extent.scale));
    let spare = f64::from(made.spare_blocks()) / f64::from(mib) * 100.0;
    say("over-provisioning", "11 %", format!("{spare:.1} %"));
    say("page, block", "4 KiB, 1 MiB", "the same".into());
    say("cleaning", "greedy", "the same, at 7 free blocks".into());
    say("endurance in the lifetime study", "500 erases", format!("{ENDURANCE} erases"));
    say("synthetic study", "100 drive writes", format!("{} drive writes", extent.drive_writes));
    let sleeps = format!(
        "before the first window of {WINDOW} drive writes in which levelling programs more than \
         {AWAKE} pages per host page"
    );
    say("PWL sleeps", "amplification is high beyond 80 drive writes", sleeps);
    say("preconditioning", "1 drive write in order, 3 at random", "the same".into());
    say("traces", "nine, looped", "stand-ins of Table 3's footprint, size, r/h, order".into());
    say("seeds", "–", format!("{} from {}", options.runs, options.seed));
    Section {
        heading: "Parameters".into(),
        text: vec![
            format!(
                "Everything here is counted in ratios: to the device's size, to its blocks, to its \
                 endurance. So a smaller device of the same shape gives figures that are near, not \
                 the same, down to 1/{SCALE_MAX}; smaller ones are refused. Measured once at \
                 1/1024 and 1/512: the largest write amplification of PWL(50) and that of the \
                 traces without a leveler move by less than one percent, amplification over all \
                 drive writes by up to 2 % on the whole device and 4 % on a twentieth of it, what \
                 a variable capacity gains over a fixed one by up to 8 %. Spreads of erases move \
                 by up to 30 %, and DP(10)'s to none's under 0.9/0.1 from 1.25 to 2.10. Two \
                 verdicts may change: Fix_DP's mean gain is 10.5 to 12.6 % and 12.0 to 12.8 %, \
                 what DP(5) writes further under 0.5/0.5 1.5 to 5.2 % and 0.3 to 4.4 %. --scale 1 \
                 is the paper's own size."
            ),
            format!(
                "PWL's parameter is a percentage of the endurance. The synthetic study has no end \
                 of life: without a leveler its drive writes erase the most worn hundredth of the \
                 blocks {:.0} times under 0.9/0.1 and {:.0} times under 0.5/0.5, where PWL may \
                 sleep throughout.",
                worn(SKEWED),
                worn(EVEN)
            ),
        ],
        chart: None,
        table: Some(table),
    }
}

fn series(name: &str, values: impl Iterator<Item = f64>) -> Series {
    Series::new(name, values)
}

fn amplification(results: &Results) -> Section {
    let row = &results.aged[SKEWED];
    let mut columns = vec!["drive writes".to_string()];
    columns.extend(DESIGNS.iter().map(|design| design.name.to_string()));
    let mut table = Table { columns, rows: Vec::new() };
    let count = row[NONE].windows.len();
    let ends: Vec<String> = (1..=count).map(|at| format!("{}", at as u32 * WINDOW)).collect();
    for (at, end) in ends.iter().enumerate() {
        let cells = row.iter().map(|aged| {
            let window = aged.windows[at];
            format!("{:.2} ({:.2})", window.all, window.leveling)
        });
        table.push(std::iter::once(end.clone()).chain(cells).collect());
    }
    let lines = DESIGNS.iter().zip(row).take(LIVED);
    let chart = Chart {
        axis: "write amplification".into(),
        groups: ends,
        series: lines.map(|(d, aged)| series(d.name, aged.windows.iter().map(|w| w.all))).collect(),
        across: "drive writes".into(),
        left_out: left_out(),
    };
    Section {
        heading: "Fig. 2: write amplification over age, r/h = 0.9/0.1".into(),
        text: vec![
            format!(
                "Of the {WINDOW} drive writes that end at each row; the leveler's own part in \
                 brackets. The paper: up to {AMPLIFICATION_MOST}, of which \
                 {AMPLIFICATION_LEVELING} by levelling, under PWL(50) beyond \
                 {PROGRESSIVE_WAKES} drive writes."
            ),
            format!(
                "What differs: the paper says that DP(5) writes {DUAL_POOL_RATIO} times as much as \
                 DP(10). By the rule of its public simulator (a swap when the oldest hot block is \
                 TH erases ahead of the youngest cold one) all data written differ by about a \
                 tenth; levelling's own part differs several times over. The threshold was not \
                 tuned to meet the figure."
            ),
        ],
        chart: Some(chart),
        table: Some(table),
    }
}

/// Designs of the synthetic study that the charts leave out, since the lives leave them out too.
fn left_out() -> Vec<String> {
    DESIGNS[LIVED..].iter().map(|design| design.name.to_owned()).collect()
}

/// The figure of the paper that shows a load, and what it says there.
fn figure(load: usize) -> (&'static str, &'static str) {
    match load {
        SKEWED => (
            "Fig. 3a",
            "The paper: under DP and PWL wider than without, in two heaps; DAGC even, at 18 % more \
             writes. A block that was given cold data joins the cold pool and is erased on, since \
             the data are not cold.",
        ),
        EVEN => (
            "Fig. 3b",
            "The paper: hardly a difference, a small anomaly of DP(5); DAGC writes 15 % more.",
        ),
        SKEWED_SMALL => (
            "Fig. 4a",
            "The paper: two heaps without levelling, used blocks and unused ones; nearly vertical \
             with it, and shifted right by what it writes.",
        ),
        _ => (
            "Fig. 4b",
            "The paper: two heaps without levelling; nearly vertical with it, at little cost.",
        ),
    }
}

fn erases(load: usize, results: &Results) -> Section {
    let row: &[Aged] = &results.aged[load];
    let labels = QUANTILES.map(|part| format!("p{:.0}", part * 100.0));
    let mut columns = vec!["design".to_string(), "write amplification".to_string()];
    columns.extend(labels.iter().cloned());
    let mut table = Table { columns, rows: Vec::new() };
    for (design, aged) in DESIGNS.iter().zip(row) {
        let mut cells = vec![
            design.name.to_string(),
            format!("{:.2} ({:.2})", aged.whole.all, aged.whole.leveling),
        ];
        cells.extend(aged.erases.iter().map(|erases| format!("{erases:.0}")));
        table.push(cells);
    }
    let lines = DESIGNS.iter().zip(row).take(LIVED);
    let chart = Chart {
        axis: "erases per block".into(),
        groups: labels.to_vec(),
        series: lines.map(|(d, aged)| series(d.name, aged.erases.iter().copied())).collect(),
        across: "quantile of the blocks".into(),
        left_out: left_out(),
    };
    let (name, says) = figure(load);
    Section {
        heading: format!("{name}: erases per block, r/h = {}", LOADS[load].name),
        text: vec![format!("Quantiles over the blocks after the drive writes. {says}")],
        chart: Some(chart),
        table: Some(table),
    }
}

fn effectiveness(results: &Results) -> Section {
    let mut table = Table::new(&[
        "load",
        "paper",
        "spread, NoWL",
        "spread, DP(5)",
        "spread, PWL(50)",
        "further data, DP(5) (%)",
        "further data, PWL(50) (%)",
    ]);
    let words = ["anomalous", "negligible", "write amplified", "effective"];
    for ((load, row), word) in LOADS.iter().zip(&results.aged).zip(words) {
        let beyond = |at: usize| (row[at].whole.all / row[NONE].whole.all - 1.0) * 100.0;
        let mut cells = vec![load.name.to_string(), word.to_string()];
        cells.extend([NONE, DUAL_POOL, PROGRESSIVE].map(|at| format!("{:.0}", row[at].spread())));
        cells.extend([DUAL_POOL, PROGRESSIVE].map(|at| format!("{:+.1}", beyond(at))));
        table.push(cells);
    }
    Section {
        heading: "Table 4: what levelling does".into(),
        text: vec![
            "Spread is the 99th less the 1st hundredth of erases per block. Further data are \
             pages programmed beyond those without levelling, over the whole run."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn lives_table(all: &[Lives]) -> Table {
    let mut columns = vec!["trace".to_string()];
    for kind in ["Fix", "Var"] {
        let names = DESIGNS[..LIVED].iter().map(|design| short(design.name));
        columns.extend(names.map(|name| format!("{kind}_{name}")));
    }
    columns.push("Var_NoWL to Fix_NoWL".into());
    columns.push("to the best Fix".into());
    let mut table = Table { columns, rows: Vec::new() };
    for (trace, lives) in TRACES.iter().zip(all) {
        let mut cells = vec![trace.name.to_string()];
        cells.extend(lives.iter().flatten().map(|lived| format!("{:.1}", lived.drive_writes)));
        let variable = lives[VARIABLE][NONE].drive_writes;
        let best = lives[FIXED].iter().map(|lived| lived.drive_writes).fold(0.0, f64::max);
        cells.push(format!("{:.2}", variable / lives[FIXED][NONE].drive_writes));
        cells.push(format!("{:.2}", variable / best));
        table.push(cells);
    }
    table
}

fn lifetimes(results: &Results) -> Section {
    let bar = |name: &str, capacity: usize, design: usize| {
        let lives = results.lives[IN_RUNS].iter();
        series(name, lives.map(|lives| lives[capacity][design].drive_writes))
    };
    let chart = Chart {
        axis: "drive writes until failure".into(),
        groups: TRACES.iter().map(|trace| trace.name.to_string()).collect(),
        series: vec![
            bar("Fix_NoWL", FIXED, NONE),
            bar("Fix_DP", FIXED, DUAL_POOL),
            bar("Fix_PWL", FIXED, PROGRESSIVE),
            bar("Var_NoWL", VARIABLE, NONE),
            bar("Var_DP", VARIABLE, DUAL_POOL),
            bar("Var_PWL", VARIABLE, PROGRESSIVE),
        ],
        across: "trace".into(),
        left_out: ["Fix_DAGC", "Var_DAGC"].map(Into::into).into(),
    };
    Section {
        heading: "Fig. 5: drive writes until failure".into(),
        text: vec![
            "A fixed device fails when its bad blocks have used up what is spare. A variable one \
             then gives up, once, what the host never wrote, as the authors' simulator does, and \
             goes on until no block can be cleaned."
                .into(),
            "What differs: the traces are stand-ins, drawn by footprint, mean size, hotness and \
             order as Table 3 has them, evenly within the hot part and within the rest. A real \
             trace has more skew, pages that are written once, and long runs that are overwritten \
             as a whole, none of which the table tells. So writes amplify more here, absolute \
             lives differ, and where the footprint is small (MSN-CFS, RAD-BE) variance gains more \
             than the paper found. The same are: which designs live shorter than none (VDI, \
             DTRS), which traces gain nothing (VDI and LM-TBE, whose footprint is the device), \
             and that Dual-Pool gains a little on average. LM-TBE under Dual-Pool is not: its \
             order is drawn at random here, and a swap costs more."
                .into(),
        ],
        chart: Some(chart),
        table: Some(lives_table(&results.lives[IN_RUNS])),
    }
}

fn singles(results: &Results) -> Section {
    Section {
        heading: "Beyond the paper: the same lives, page by page".into(),
        text: vec![
            "Footprint and hotness of the traces, single pages at random: no writes follow one \
             another. A leveler that moves data (Dual-Pool) leaves most to variance here: it \
             wears a few blocks out early, which the fixed device does not survive."
                .into(),
        ],
        chart: None,
        table: Some(lives_table(&results.lives[SINGLE])),
    }
}

fn short(name: &str) -> &str {
    name.split('(').next().unwrap_or(name)
}

fn variance(results: &Results) -> Section {
    let mut table = Table::new(&["design", "paper", "best trace, in runs", "page by page"]);
    let [in_runs, single] = results.variance_best();
    for (at, (in_runs, single)) in in_runs.into_iter().zip(single).enumerate() {
        let paper = match at {
            NONE => format!("up to {VARIABLE_BEST}, mean {:.2}", 1.0 + VARIABLE_PERCENT / 100.0),
            _ => format!("up to {VARIABLE_BEST_LEVELED} with levelling"),
        };
        let name = DESIGNS[at].name.to_string();
        table.push(vec![name, paper, format!("{in_runs:.2}"), format!("{single:.2}")]);
    }
    Section {
        heading: "Fig. 5: what a variable capacity gains, Var to Fix under the same leveler".into(),
        text: vec![
            "With perfect levelling (DAGC) all blocks wear out together, so that there is nothing \
             to gain: the better the leveler, the less variance has left to do."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn traces_amplified(results: &Results) -> Section {
    let mut columns = vec!["trace".to_string()];
    columns.extend(DESIGNS[..LIVED].iter().map(|design| format!("Fix_{}", short(design.name))));
    let mut table = Table { columns, rows: Vec::new() };
    for (trace, lives) in TRACES.iter().zip(&results.lives[IN_RUNS]) {
        let cells = lives[FIXED].iter().map(|lived| {
            format!("{:.2} ({:.2})", lived.amplification.all, lived.amplification.leveling)
        });
        table.push(std::iter::once(trace.name.to_string()).chain(cells).collect());
    }
    let bars = DESIGNS[..LIVED].iter().enumerate().map(|(at, design)| {
        let all = results.lives[IN_RUNS].iter().map(|lives| lives[FIXED][at].amplification.all);
        series(short(design.name), all)
    });
    let chart = Chart {
        axis: "write amplification".into(),
        across: "trace".into(),
        groups: TRACES.iter().map(|trace| trace.name.to_string()).collect(),
        series: bars.collect(),
        ..Chart::default()
    };
    Section {
        heading: "Fig. 6: write amplification of the traces".into(),
        text: vec![format!(
            "Until failure, levelling in brackets. The paper: {AMPLIFICATION_MEAN} on average \
             without levelling, {LM_TBE_AMPLIFICATION} on LM-TBE, up to \
             {AMPLIFICATION_TRACES_MOST} under DP and DAGC. Stand-ins amplify more: what follows \
             one another in them is overwritten at random, not as a whole."
        )],
        chart: Some(chart),
        table: Some(table),
    }
}
