//! Delayed discard beside discards at once and none at all, under a UAV's files.
//!
//! How: the paper's device (FEMU) at a scale, on the flash model in time; files on an allocator
//! like ext4's; discards never sent, sent at each commit, or held back by the node's own policy.
//! Batch- and single-erase under the rule that discards act in order; then single-erase on devices
//! that serve discards one after the other, at a cost of each command and of each page, so that
//! their lag follows from what was sent, for both sides alike; then with other thresholds of
//! cleaning. Figures are medians over the seeds.
//! Invariant: the same options give the same document on the same platform. Files, rounds and
//! numbers of discards are the paper's at every scale; bytes and seconds are divided by it.
//! Cost: a minute and a half per seed at the usual scale on one core, minutes at the paper's size.
//! Source: `papers/delay-d.txt`; gaps and their filling in `specs/delayed-discard.md`.

mod claims;
mod host;
mod paper;
mod sections;

use crate::{Document, Options, Progress, parallel, seeds_of};
use host::{Discarding, Machine, Scenario, Seen};
use layby_sim::device::flash::timed::{Parallelism, Timing};
use layby_sim::device::flash::{TrimOrder, TrimRule};
use layby_trace::Placement;
use layby_types::Nanos;
use paper::{COMMIT_SECONDS, DUMMY_PERCENT, FILES, LOGICAL_GIB, ROUNDS, SPARE_GIB};

/// The paper's device.
pub const SCALE_MIN: u32 = 1;
/// Files of four pages: smaller ones would be no stretches.
pub const SCALE_MAX: u32 = 64;
/// A device of 4 GiB.
pub const SCALE_DEFAULT: u32 = 8;

const PAGE_BYTES: u64 = 4096;
const GIB: u64 = 1 << 30;
/// FEMU's line: 256 pages on each of 64 planes.
const BLOCK_BYTES: u64 = 64 << 20;
/// FEMU cleans ahead what is invalid to an eighth.
const AHEAD_INVALID_PERMILLE: u32 = 125;
/// And does so below so many free blocks: more than the spare ones of a full volume, fewer than
/// those that discards leave free. The paper does not say; this project chose it.
const AHEAD_FREE_PERMILLE: u32 = 150;
/// Others, the last one FEMU's own.
const AHEAD_FREE_OTHERS: [u32; 4] = [100, 125, 200, 250];
const AHEAD_FREE_FEMU: usize = 3;
/// Time that the host spends on each file: half a gigabyte per second at most.
const THINK: Nanos = Nanos::from_millis(2);
/// How long what a commit freed waits after it: "five to six seconds" from deletion.
const DELAY: Nanos = Nanos::from_secs(1);
/// What the device keeps in service.
const QUEUE_DEPTH: u32 = 256;

/// What a device may do with discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Each acts before what comes after it.
    InOrder,
    /// Whole blocks of flash only.
    WholeBlocks,
    /// Each acts when it was served: one command after the other, at so much of each command and of
    /// each page.
    Queued { command: Nanos, page: Nanos },
    /// None.
    Forgotten,
}

/// A page's discard in the paper, and the same where all planes share the pages of one.
const PAGE: Nanos = Timing::FEMU.trim_page;
const PAGE_SHARED: Nanos = Nanos(PAGE.0 / 64);

const fn queued(command_ms: u64, page: Nanos) -> Rule {
    Rule::Queued { command: Nanos::from_millis(command_ms), page }
}

const RULES: [Rule; 12] = [
    Rule::InOrder,
    Rule::WholeBlocks,
    queued(0, PAGE_SHARED),
    queued(0, PAGE),
    queued(50, Nanos::ZERO),
    queued(100, Nanos::ZERO),
    queued(200, Nanos::ZERO),
    queued(300, Nanos::ZERO),
    queued(400, Nanos::ZERO),
    queued(800, Nanos::ZERO),
    queued(3200, Nanos::ZERO),
    Rule::Forgotten,
];
const IN_ORDER: usize = 0;
/// The paper's own cost of a discard, its pages on all planes at once.
const PAPERS: usize = 2;

impl Rule {
    fn name(self) -> String {
        let ms = |time: Nanos| time.0 as f64 / 1e6;
        match self {
            Rule::InOrder => "at once".into(),
            Rule::WholeBlocks => "at once, whole blocks only".into(),
            Rule::Queued { command: Nanos::ZERO, page } => {
                format!("queued, {} µs a page", page.0 as f64 / 1e3)
            }
            Rule::Queued { command, .. } => format!("queued, {} ms a command", ms(command)),
            Rule::Forgotten => "never".into(),
        }
    }
    fn trim(self, scale: u64) -> TrimRule {
        let exact = TrimRule::default();
        match self {
            Rule::InOrder => exact,
            Rule::WholeBlocks => {
                let granularity_pages = (BLOCK_BYTES / PAGE_BYTES / scale) as u32;
                TrimRule { granularity_pages, ..exact }
            }
            Rule::Queued { .. } => TrimRule { order: TrimOrder::Served, ..exact },
            Rule::Forgotten => TrimRule { order: TrimOrder::Ignored, ..exact },
        }
    }
    /// Time of a command and of each of its pages; commands are as many at every scale, so that
    /// their time is divided as all time is.
    fn costs(self, scale: u64) -> (Nanos, Nanos) {
        match self {
            Rule::Queued { command, page } => (Nanos(command.0 / scale), page),
            _ => (Nanos::ZERO, PAGE_SHARED),
        }
    }
}

const PLACEMENTS: [Placement; 2] = [Placement::Onward, Placement::First];
const ONWARD: usize = 0;
const FIRST: usize = 1;
const BATCH: usize = 0;
const SINGLE: usize = 1;
const DISABLED: usize = 0;
const ENABLED: usize = 1;
const DELAYED: usize = 2;

/// A figure per kind of discarding.
type Row = [Seen; Discarding::ALL.len()];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
struct Results {
    /// By placement and scenario, discards in order.
    scenarios: [[Row; Scenario::ALL.len()]; PLACEMENTS.len()],
    /// Single-erase, onward, by rule.
    rules: [Row; RULES.len()],
    /// Single-erase, onward, discards in order, with other thresholds.
    thresholds: [Row; AHEAD_FREE_OTHERS.len()],
}

/// A scale, and how much is run; less than the paper's only in tests.
#[derive(Clone, Copy, Debug)]
struct Extent {
    scale: u32,
    files: u32,
    rounds: u32,
}

/// Runs everything. Panics when `options.runs` is zero or the scale is out of its bounds.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    let scale = options.scale.unwrap_or(SCALE_DEFAULT);
    assert!((SCALE_MIN..=SCALE_MAX).contains(&scale), "a scale within its bounds");
    let extent = Extent { scale, files: FILES, rounds: ROUNDS };
    let seeds = measure(options, extent, progress);
    whole(options, extent, &seeds)
}

/// The document of all seeds.
fn whole(options: &Options, extent: Extent, seeds: &[Results]) -> Document {
    let of = |results: &Results| document(options, extent, results);
    of(&Results::median(seeds)).over_seeds(&seeds.iter().map(of).collect::<Vec<_>>())
}

/// The paper's device and host.
fn machine(extent: Extent, placement: Placement, rule: Rule) -> Machine {
    let parallelism = Parallelism { queue_depth: QUEUE_DEPTH, ..Parallelism::small() };
    let scale = u64::from(extent.scale);
    let (trim, trim_page) = rule.costs(scale);
    Machine {
        logical_bytes: LOGICAL_GIB * GIB,
        spare_bytes: SPARE_GIB * GIB,
        block_bytes: BLOCK_BYTES,
        ahead_permille: [AHEAD_FREE_PERMILLE, AHEAD_INVALID_PERMILLE],
        timing: Timing { trim, trim_page, ..Timing::FEMU },
        parallelism,
        rule: rule.trim(scale),
        files: extent.files,
        rounds: extent.rounds,
        dummy_percent: DUMMY_PERCENT,
        placement,
        commit: Nanos::from_secs(COMMIT_SECONDS),
        think: THINK,
        delay: DELAY,
    }
}

/// Where a run's figures go.
#[derive(Clone, Copy, Debug)]
enum Place {
    Scenario(usize, usize),
    Rule(usize),
    Threshold(usize),
}

/// Every run of a seed but those that are the same as others.
fn runs(extent: Extent) -> Vec<(Place, Machine, Scenario, usize)> {
    let mut runs = Vec::new();
    let onward = |rule| machine(extent, Placement::Onward, rule);
    // The longest ones first.
    for (at, rule) in RULES.into_iter().enumerate().skip(1).rev() {
        let sides = [ENABLED, DELAYED];
        runs.extend(sides.map(|side| (Place::Rule(at), onward(rule), Scenario::Single, side)));
    }
    let all = 0..Discarding::ALL.len();
    for (at, placement) in PLACEMENTS.into_iter().enumerate() {
        for (row, scenario) in Scenario::ALL.into_iter().enumerate() {
            let machine = machine(extent, placement, Rule::InOrder);
            let place = Place::Scenario(at, row);
            runs.extend(all.clone().map(|side| (place, machine, scenario, side)));
        }
    }
    for (at, permille) in AHEAD_FREE_OTHERS.into_iter().enumerate() {
        let ahead_permille = [permille, AHEAD_INVALID_PERMILLE];
        let machine = Machine { ahead_permille, ..onward(Rule::InOrder) };
        let place = Place::Threshold(at);
        runs.extend(all.clone().map(|side| (place, machine, Scenario::Single, side)));
    }
    runs
}

/// The results of each seed.
fn measure(options: &Options, extent: Extent, progress: &mut dyn FnMut(Progress)) -> Vec<Results> {
    let runs = runs(extent);
    let seeds = parallel::seeds(options);
    let items: Vec<(u64, usize)> =
        seeds.iter().flat_map(|seed| (0..runs.len()).map(move |run| (*seed, run))).collect();
    let found = parallel::each(&items, progress, |(seed, run)| {
        let (_, machine, scenario, side) = &runs[*run];
        host::run(machine, *scenario, Discarding::ALL[*side], (extent.scale.into(), *seed))
    });
    found.chunks(runs.len()).map(|found| Results::of(&runs, found)).collect()
}

impl Results {
    fn of(runs: &[(Place, Machine, Scenario, usize)], found: &[Seen]) -> Results {
        let mut results = Results::default();
        for ((place, _, _, side), seen) in runs.iter().zip(found) {
            results.row(*place)[*side] = *seen;
        }
        results.rules[IN_ORDER] = results.scenarios[ONWARD][SINGLE];
        for row in &mut results.rules {
            // What is never sent knows no rule.
            row[DISABLED] = results.scenarios[ONWARD][SINGLE][DISABLED];
        }
        results
    }
    fn row(&mut self, place: Place) -> &mut Row {
        match place {
            Place::Scenario(placement, scenario) => &mut self.scenarios[placement][scenario],
            Place::Rule(at) => &mut self.rules[at],
            Place::Threshold(at) => &mut self.thresholds[at],
        }
    }
    /// Medians, figure by figure. Panics when there is nothing.
    fn median(seeds: &[Results]) -> Results {
        let pick = |row: &dyn Fn(&Results) -> Row| -> Row {
            let rows: Vec<Row> = seeds.iter().map(row).collect();
            std::array::from_fn(|side| {
                Seen::median(&rows.iter().map(|row| row[side]).collect::<Vec<_>>())
            })
        };
        Results {
            scenarios: std::array::from_fn(|placement| {
                std::array::from_fn(|scenario| pick(&|seed| seed.scenarios[placement][scenario]))
            }),
            rules: std::array::from_fn(|at| pick(&|seed| seed.rules[at])),
            thresholds: std::array::from_fn(|at| pick(&|seed| seed.thresholds[at])),
        }
    }
}

fn document(options: &Options, extent: Extent, results: &Results) -> Document {
    let scaled = match extent.scale {
        1 => "the paper's size".to_string(),
        scale => format!("1/{scale} of the paper's size ({} MiB)", (32 << 10) / scale),
    };
    let scale = options.scale.map(|scale| format!(" --scale {scale}")).unwrap_or_default();
    Document {
        title: "Delay-D: discards that wait, for files that come and go".into(),
        citation: "Kang, Delay-D: Research on the Lifespan and Performance of Storage Devices in \
                   Unmanned Aerial Vehicles, Aerospace 2024, 11(1), 47"
            .into(),
        source: format!(
            "The figures of the paper beside this project's flash \
             model, in time, with a device of {scaled}, and this project's own policy of delayed \
             discard. Figures are medians over the seeds; the paper's are read from its text."
        ),
        command: format!(
            "layby lab run delay-d --seed {} --runs {}{scale}",
            options.seed, options.runs
        ),
        seeds: seeds_of(options),
        origin: options.origin.clone(),
        claims: claims::all(results),
        measurements: claims::measured(results),
        sections: sections::all(options, extent, results),
    }
}

#[cfg(test)]
mod tests;
