//! The experiment of an edge gateway: files through a cache into an object store.
//!
//! How: the workloads of the paper's Table I and the cases of its Table IV, at their full size, go
//! through two gateways in virtual time: one that puts an object per file and notes each by
//! itself, as the paper's does, and one that bundles, as this node does. The first one's times are
//! fitted to the paper's Table II; the second one's come from `bench esi`. Who goes up next, and
//! what would be refused, the node's own policies say.
//! Invariant: both gateways have the same disk, link and store; the same options give the same
//! document on the same platform.
//! Cost: some seconds per seed on one core.
//! Source: Sondur, Kant, Vucetic and Byers, "Storage on the edge: evaluating cloud backed edge
//! storage in cyberphysical systems".

mod claims;
mod sections;
#[cfg(test)]
mod tests;

use crate::{Document, Options, Progress};
use layby_sim::device::object_store::StoreModel;
use layby_sim::gateway::{Files, Outcome, Plan, Style, run as live};
use layby_types::Nanos;

/// Decimal units, as the paper's.
const MB: u64 = 1_000_000;
const GB: u64 = 1000 * MB;

/// What a disk moves: with [`FILE_TIME`], what fits the paper's Table II best.
const DISK: u64 = 290 * MB;
/// What a file takes in the paper's gateway beside its bytes.
const FILE_TIME: Nanos = Nanos::from_millis(22);
/// The same in this node: a file system's own, as `bench esi` has it.
const FILE_TIME_OURS: Nanos = Nanos::from_micros(120);
/// The link. The paper does not say; see the parameters' text.
const LINK: u64 = 4 * MB;
/// How long a client waits for a write: what disks' drivers wait.
const PATIENCE: Nanos = Nanos::from_secs(30);
/// Directories above a file of a deep tree.
const DEPTH: u32 = 8;
/// More than any workload writes.
const AMPLE: u64 = 1000 * GB;
/// What this node puts into an object, and what a file system notes of a file and of its names.
const BUNDLES: Style = Style::Bundles { bytes: 8 << 20, file_bytes: 400, directory_bytes: 8 };

/// A row of the paper's Table I.
#[derive(Clone, Copy, Debug)]
struct Workload {
    name: &'static str,
    users: u64,
    /// Of each user.
    files: u64,
    bytes: u64,
    /// The paper's rate of its gateway's clients, in MB/s, where it gives one.
    paper: Option<f64>,
}

const fn workload(
    name: &'static str,
    (users, files, bytes): (u64, u64, u64),
    paper: Option<f64>,
) -> Workload {
    Workload { name, users, files, bytes, paper }
}

/// Table I, with the rates of Table II.
const WORKLOADS: [Workload; 5] = [
    workload("Tiny", (25, 10_000, 4000), None),
    workload("Small", (25, 10_000, 256_000), Some(10.70)),
    workload("Medium", (5, 10_000, MB), Some(39.17)),
    workload("Large", (5, 1000, 10 * MB), Some(177.90)),
    workload("Huge", (2, 200, GB), None),
];

/// A row of the paper's Table IV: 200 files of 1 GB.
#[derive(Clone, Copy, Debug)]
struct Case {
    server: char,
    is_deep: bool,
    cache_gb: u64,
    passes: bool,
}

const fn case(server: char, is_deep: bool, cache_gb: u64, passes: bool) -> Case {
    Case { server, is_deep, cache_gb, passes }
}

/// Table IV, in its order.
const CASES: [Case; 10] = [
    case('A', true, 99, false),
    case('A', true, 197, false),
    case('B', true, 50, false),
    case('B', true, 99, false),
    case('B', true, 197, false),
    case('A', true, 497, true),
    case('A', false, 99, false),
    case('A', false, 197, false),
    case('B', false, 99, false),
    case('A', false, 497, true),
];

/// Caches of the paper's third finding, in GB: doubled, and more than tripled.
const CACHES: [u64; 4] = [99, 197, 985, 3200];

/// A workload through both gateways: clients over a free link, and the drain of a cut one, flat and
/// deep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    written: [Outcome; 2],
    flat: [Outcome; 2],
    deep: [Outcome; 2],
}

/// Everything, under one seed.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    workloads: [Measured; WORKLOADS.len()],
    cases: [[Outcome; 2]; CASES.len()],
    /// Large files through caches of these sizes, by this node.
    caches: [Outcome; CACHES.len()],
}

fn plan(files: Files, is_ours: bool, seed: u64) -> Plan {
    Plan {
        files,
        style: if is_ours { BUNDLES } else { Style::Objects },
        cache_bytes: AMPLE,
        disk_bytes_per_second: DISK,
        file_time: if is_ours { FILE_TIME_OURS } else { FILE_TIME },
        write_bytes: MB,
        patience: PATIENCE,
        link_bytes_per_second: LINK,
        // A long object is no silence.
        store: StoreModel { timeout: Nanos::from_secs(3600), ..StoreModel::DEFAULT },
        seed,
        is_cut_first: false,
    }
}

fn both(of: impl Fn(bool) -> Plan) -> [Outcome; 2] {
    [false, true].map(|is_ours| live(&of(is_ours)))
}

/// A workload, so many times smaller.
fn measure_workload(of: &Workload, part: u64, seed: u64) -> Measured {
    let count = (of.users * of.files / part).max(20);
    let files = |depth| Files { count, bytes: of.bytes, depth };
    let drained =
        |depth| both(|is_ours| Plan { is_cut_first: true, ..plan(files(depth), is_ours, seed) });
    Measured {
        written: both(|is_ours| plan(files(0), is_ours, seed)),
        flat: drained(0),
        deep: drained(DEPTH),
    }
}

fn measure_case(of: &Case, part: u64, seed: u64) -> [Outcome; 2] {
    let depth = if of.is_deep { DEPTH } else { 0 };
    let files = Files { count: 200 / part, bytes: GB, depth };
    let cache_bytes = of.cache_gb * GB / part;
    both(|is_ours| Plan { cache_bytes, ..plan(files, is_ours, seed) })
}

fn measure_cache(cache_gb: u64, part: u64, seed: u64) -> Outcome {
    let large = WORKLOADS[3];
    let files = Files { count: large.users * large.files / part, bytes: large.bytes, depth: 0 };
    live(&Plan { cache_bytes: cache_gb * GB / part, ..plan(files, true, seed) })
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    assert!(options.runs > 0, "no run, no figure");
    let runs = measure(options, 1, progress);
    document(options, &runs)
}

/// Every seed; everything so many times smaller than the paper's.
fn measure(options: &Options, part: u64, progress: &mut dyn FnMut(Progress)) -> Vec<Run> {
    let steps = (WORKLOADS.len() + CASES.len() + CACHES.len()) as u32;
    let total = steps * options.runs;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(Progress { done, total });
    };
    let mut runs = Vec::new();
    for run in 0..u64::from(options.runs) {
        let seed = options.seed.wrapping_add(run);
        let workloads = WORKLOADS.map(|of| {
            step();
            measure_workload(&of, part, seed)
        });
        let cases = CASES.map(|of| {
            step();
            measure_case(&of, part, seed)
        });
        let caches = CACHES.map(|gb| {
            step();
            measure_cache(gb, part, seed)
        });
        runs.push(Run { workloads, cases, caches });
    }
    runs
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    crate::median::median(runs.iter().map(figure))
}

fn document(options: &Options, runs: &[Run]) -> Document {
    Document {
        title: "ESI: an edge gateway's workloads, an object per file beside bundles".into(),
        source: "Sondur, Kant, Vucetic and Byers, Storage on the edge. Workloads of Table I and \
                 cases of Table IV at full size, in virtual time, with the node's own scheduling \
                 of its link; figures are medians over the seeds. Real files on a real store: \
                 `cargo xtask bench esi`."
            .into(),
        command: format!("layby lab run esi --seed {} --runs {}", options.seed, options.runs),
        claims: claims::all(runs),
        sections: sections::all(options, runs),
    }
}
