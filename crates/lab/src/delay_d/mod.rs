//! Delayed discard beside discards at once and none at all, under a UAV's files.
//!
//! How: the paper's device (FEMU) at a scale, on the flash model in time; files on an allocator
//! like ext4's; discards never sent, sent at each commit, or held back by the node's own policy.
//! Batch- and single-erase under the rule that discards act in order; then single-erase under other
//! rules, to see which of them gives the paper's figure for discards sent at once. Figures are
//! medians over the seeds.
//! Invariant: the same options give the same document on the same platform. Files, rounds and
//! numbers of discards are the paper's at every scale; bytes and seconds are divided by it.
//! Cost: under a minute per seed at the usual scale on one core, minutes at the paper's size.
//! Source: `papers/delay-d.txt`; gaps and their filling in `specs/delayed-discard.md`.

mod claims;
mod host;
mod paper;
mod sections;

use crate::{Document, Options, Progress};
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
/// those that discards leave free.
const AHEAD_FREE_PERMILLE: u32 = 150;
/// FEMU's own threshold.
const AHEAD_FREE_FEMU_PERMILLE: u32 = 250;
/// Time that the host spends on each file: half a gigabyte per second at most.
const THINK: Nanos = Nanos::from_millis(2);
/// How long what a commit freed waits after it: "five to six seconds" from deletion.
const DELAY: Nanos = Nanos::from_secs(1);
/// What the device keeps in service.
const QUEUE_DEPTH: u32 = 256;

/// What a device may do with discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Each before what comes after it.
    InOrder,
    /// After so many further GiB of writes; what is written meanwhile is not touched.
    Late(u32),
    /// Whole blocks of flash only.
    WholeBlocks,
    /// None.
    Forgotten,
}

const RULES: [Rule; 5] =
    [Rule::InOrder, Rule::WholeBlocks, Rule::Late(2), Rule::Late(4), Rule::Forgotten];
const IN_ORDER: usize = 0;
/// The rule that makes discards sent at once as good as none.
const LATE: usize = 3;

impl Rule {
    fn name(self) -> String {
        match self {
            Rule::InOrder => "in order".into(),
            Rule::Late(gib) => format!("{gib} GiB of writes late"),
            Rule::WholeBlocks => "whole blocks only".into(),
            Rule::Forgotten => "forgotten".into(),
        }
    }
    fn trim(self, scale: u64) -> TrimRule {
        let pages = |bytes: u64| (bytes / PAGE_BYTES / scale) as u32;
        let exact = TrimRule::default();
        match self {
            Rule::InOrder => exact,
            Rule::Late(gib) => {
                let order = TrimOrder::AfterPages(pages(u64::from(gib) * GIB));
                TrimRule { order, ..exact }
            }
            Rule::WholeBlocks => TrimRule { granularity_pages: pages(BLOCK_BYTES), ..exact },
            Rule::Forgotten => TrimRule { order: TrimOrder::Ignored, ..exact },
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
    /// Single-erase, onward, with FEMU's own threshold.
    eager: Row,
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
    document(options, extent, &measure(options, extent, progress))
}

/// The paper's device and host. A page's discard is done by its plane, so that planes share a
/// discard's pages.
fn machine(extent: Extent, placement: Placement, rule: Rule) -> Machine {
    let parallelism = Parallelism { queue_depth: QUEUE_DEPTH, ..Parallelism::small() };
    let trim_page = Nanos(Timing::FEMU.trim_page.0 / u64::from(parallelism.planes()));
    Machine {
        logical_bytes: LOGICAL_GIB * GIB,
        spare_bytes: SPARE_GIB * GIB,
        block_bytes: BLOCK_BYTES,
        ahead_permille: [AHEAD_FREE_PERMILLE, AHEAD_INVALID_PERMILLE],
        timing: Timing { trim_page, ..Timing::FEMU },
        parallelism,
        rule: rule.trim(u64::from(extent.scale)),
        files: extent.files,
        rounds: extent.rounds,
        dummy_percent: DUMMY_PERCENT,
        placement,
        commit: Nanos::from_secs(COMMIT_SECONDS),
        think: THINK,
        delay: DELAY,
    }
}

fn measure(options: &Options, extent: Extent, progress: &mut dyn FnMut(Progress)) -> Results {
    assert!(options.runs > 0, "no run, no figure");
    let seeds: Vec<u64> =
        (0..u64::from(options.runs)).map(|run| options.seed.wrapping_add(run)).collect();
    let rows = PLACEMENTS.len() * Scenario::ALL.len() + RULES.len();
    let total = (rows * Discarding::ALL.len()) as u32 * options.runs;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(Progress { done, total });
    };
    let mut row = |machine: &Machine, scenario: Scenario| {
        Discarding::ALL.map(|discarding| {
            let runs = seeds.iter().map(|&seed| {
                let seen = host::run(machine, scenario, discarding, (extent.scale.into(), seed));
                step();
                seen
            });
            Seen::median(&runs.collect::<Vec<_>>())
        })
    };
    let mut results = Results::default();
    for (placement, found) in PLACEMENTS.into_iter().zip(&mut results.scenarios) {
        let machine = machine(extent, placement, Rule::InOrder);
        *found = Scenario::ALL.map(|scenario| row(&machine, scenario));
    }
    results.rules[IN_ORDER] = results.scenarios[ONWARD][SINGLE];
    for (rule, found) in RULES.into_iter().zip(&mut results.rules).skip(1) {
        *found = row(&machine(extent, Placement::Onward, rule), Scenario::Single);
    }
    let eager = Machine {
        ahead_permille: [AHEAD_FREE_FEMU_PERMILLE, AHEAD_INVALID_PERMILLE],
        ..machine(extent, Placement::Onward, Rule::InOrder)
    };
    results.eager = row(&eager, Scenario::Single);
    results
}

fn document(options: &Options, extent: Extent, results: &Results) -> Document {
    let scaled = match extent.scale {
        1 => "the paper's size".to_string(),
        scale => format!("1/{scale} of the paper's size ({} MiB)", (32 << 10) / scale),
    };
    let scale = options.scale.map(|scale| format!(" --scale {scale}")).unwrap_or_default();
    Document {
        title: "Delay-D: discards that wait, for files that come and go".into(),
        source: format!(
            "The figures of the paper (Kang, Aerospace 2024, 11, 47) beside this project's flash \
             model, in time, with a device of {scaled}, and this project's own policy of delayed \
             discard. Figures are medians over the seeds; the paper's are read from its text."
        ),
        command: format!(
            "layby lab run delay-d --seed {} --runs {}{scale}",
            options.seed, options.runs
        ),
        claims: claims::all(results),
        sections: sections::all(options, extent, results),
    }
}

#[cfg(test)]
mod tests;
