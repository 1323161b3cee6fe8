//! The experiment of an edge gateway: files on their way into an object store.
//!
//! How: what this node does with the paper's workloads, as far as it can be shown without a file
//! system: the volume's own code, over models of a disk, a link and a store, in virtual time, takes
//! files of the paper's sizes as writes of blocks, and uploads them. The paper's gateway is not
//! modelled; its figures stand beside where they are printed.
//! Invariant: no number here is fitted to the paper; the same options give the same document on the
//! same platform.
//! Cost: seconds per seed on one core.
//! Source: Sondur, Kant, Vucetic and Byers, "Storage on the edge: evaluating cloud backed edge
//! storage in cyberphysical systems".

mod found;
mod sections;
#[cfg(test)]
mod tests;
mod volume;

use crate::{Document, Options, Progress, parallel, seeds_of};
use layby_types::Nanos;
use volume::{Disk, Outcome, Plan, run as live};

/// Decimal units, as the paper's.
const MB: u64 = 1_000_000;
const GB: u64 = 1000 * MB;

/// The node's disk: an NVMe SSD's bandwidth in round figures, and a flush of its cache.
const DISK: Disk = Disk { bytes_per_second: 500 * MB, sync: Nanos::from_millis(1) };
/// The longest write, as Linux cuts them, and how many are under way.
const WRITE_BYTES: u64 = 1 << 20;
const DEPTH: usize = 32;
/// What the journal's file system and the link have for every workload: more than is written.
const JOURNAL_AMPLE: u64 = 512 << 20;

/// A link that files go up over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkPlan {
    name: &'static str,
    bytes_per_second: u64,
    round_trip: Nanos,
}

const LINKS: [LinkPlan; 3] = [
    LinkPlan {
        name: "32 Mbit/s, 50 ms",
        bytes_per_second: 4 * MB,
        round_trip: Nanos::from_millis(50),
    },
    LinkPlan {
        name: "100 Mbit/s, 20 ms",
        bytes_per_second: 12_500_000,
        round_trip: Nanos::from_millis(20),
    },
    LinkPlan {
        name: "1 Gbit/s, 20 ms",
        bytes_per_second: 125 * MB,
        round_trip: Nanos::from_millis(20),
    },
];
/// The link of bursts. The paper does not say what its link carries.
const LINK_BURST: usize = 0;

/// A size of the paper's Table I. Larger files are the same to a volume: writes of a megabyte.
#[derive(Clone, Copy, Debug)]
struct Workload {
    name: &'static str,
    bytes: u64,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "Tiny: 4 KB", bytes: 4000 },
    Workload { name: "Small: 256 KB", bytes: 256_000 },
    Workload { name: "Medium and larger: 1 MB", bytes: MB },
];
/// Bytes of files of a workload here; the paper's have 1 to 400 GB.
const WORKLOAD_BYTES: u64 = 200 * MB;

/// A cache of the paper's Table IV, beside 200 files of 1 GB, and whether its gateway passed.
#[derive(Clone, Copy, Debug)]
struct Case {
    cache_gb: u64,
    passes: bool,
}

/// Table IV by size of the cache: servers and trees are all one to a volume.
const CASES: [Case; 4] = [
    Case { cache_gb: 50, passes: false },
    Case { cache_gb: 99, passes: false },
    Case { cache_gb: 197, passes: false },
    Case { cache_gb: 497, passes: true },
];
/// So many times smaller are bursts and caches; link, disk and segments are not.
const BURST_PART: u64 = 500;

/// Everything, under one seed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Run {
    /// By link and workload.
    workloads: [[Outcome; WORKLOADS.len()]; LINKS.len()],
    cases: [Outcome; CASES.len()],
}

fn plan(link: &LinkPlan, seed: u64) -> Plan {
    Plan {
        files: 0,
        file_bytes: 0,
        write_bytes: WRITE_BYTES,
        depth: DEPTH,
        journal_bytes: JOURNAL_AMPLE,
        disk: DISK,
        link_bytes_per_second: link.bytes_per_second,
        round_trip: link.round_trip,
        seed,
    }
}

/// One life of a volume.
#[derive(Clone, Copy, Debug)]
enum Step {
    Workload(usize, usize),
    Case(usize),
}

impl Step {
    fn all() -> Vec<Step> {
        let mut all: Vec<Step> = (0..CASES.len()).map(Step::Case).collect();
        for link in 0..LINKS.len() {
            all.extend((0..WORKLOADS.len()).map(|workload| Step::Workload(link, workload)));
        }
        all
    }

    /// Everything so many times smaller.
    fn run(self, part: u64, seed: u64) -> Outcome {
        match self {
            Step::Workload(link, workload) => {
                let file_bytes = WORKLOADS[workload].bytes;
                let files = (WORKLOAD_BYTES / part).div_ceil(file_bytes);
                live(&Plan { files, file_bytes, ..plan(&LINKS[link], seed) })
            }
            Step::Case(at) => {
                let scaled = |bytes: u64| bytes / BURST_PART / part;
                live(&Plan {
                    files: 200,
                    file_bytes: scaled(GB),
                    // A client that waits for each of its writes feels every one that waits.
                    depth: 1,
                    journal_bytes: scaled(CASES[at].cache_gb * GB),
                    ..plan(&LINKS[LINK_BURST], seed)
                })
            }
        }
    }
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    document(options, &measure(options, 1, progress))
}

/// Every seed; everything so many times smaller than usual.
fn measure(options: &Options, part: u64, progress: &mut dyn FnMut(Progress)) -> Vec<Run> {
    let steps = Step::all();
    let seeds = parallel::seeds(options);
    let items: Vec<(u64, Step)> =
        seeds.iter().flat_map(|seed| steps.iter().map(move |step| (*seed, *step))).collect();
    let outcomes = parallel::each(&items, progress, |(seed, step)| step.run(part, *seed));
    let mut runs = vec![Run::default(); seeds.len()];
    for (place, ((_, step), outcome)) in items.into_iter().zip(outcomes).enumerate() {
        let run = &mut runs[place / steps.len()];
        match step {
            Step::Workload(link, workload) => run.workloads[link][workload] = outcome,
            Step::Case(at) => run.cases[at] = outcome,
        }
    }
    runs
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    crate::median::median(runs.iter().map(figure))
}

fn document(options: &Options, runs: &[Run]) -> Document {
    let of = |runs: &[Run]| Document {
        title: "ESI: what an edge gateway's files become on their way into an object store".into(),
        citation:
            "Sanjeev Sondur, Krishna Kant, Slobodan Vucetic and Brandon Byers, Storage on the \
                   Edge: Evaluating Cloud Backed Edge Storage in Cyberphysical Systems"
                .into(),
        source: "The code of a volume in an object store, which serves on real nodes too, over \
                 models of a disk, a link and a store in virtual time, with files of the sizes of \
                 Table I and bursts of Table IV. The paper's own gateway is not modelled. Real \
                 files on a real store: `cargo xtask bench esi`."
            .into(),
        command: format!("layby lab run esi --seed {} --runs {}", options.seed, options.runs),
        seeds: seeds_of(options),
        origin: options.origin.clone(),
        claims: Vec::new(),
        measurements: found::all(runs),
        sections: sections::all(runs),
    };
    let seeds: Vec<Document> = runs.iter().map(|run| of(std::slice::from_ref(run))).collect();
    of(runs).over_seeds(&seeds)
}
