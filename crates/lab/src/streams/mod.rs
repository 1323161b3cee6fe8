//! The experiment of FIOS: write amplification by scheme, on loads like the paper's.
//!
//! How: each workload's writes, drawn by seed, go to a small multi-stream device of the flash model
//! under every scheme: no streams, equal partition, `AutoStream`, FIOS with each set of features.
//! Figures are medians over the seeds, and relative to no streams. Recorded traces come on top.
//! Invariant: the same options give the same document on the same platform.
//! Cost: about a minute for three seeds on one core.
//! Source: Bhimani et al., ACM Transactions on Storage 18(2):17, 2022.

mod claims;
mod device;
mod figures;
mod paper;
mod recorded;
mod sections;
mod workloads;

use layby_sim::policy::streams as policy;

use crate::{Document, Options, Progress};
use device::{Device, Phases};
use figures::{Bench, Figures};
use layby_sim::device::flash::CopyPlacement;
use layby_types::Rng;
use policy::{FeatureSet, FiosParameters, NoStreams};
use workloads::WORKLOADS;

/// Pages of the device: 512 MiB.
const PAGES: u32 = 1 << 17;
/// Chunks of Fig. 13 (sectors); smaller ones than a page cannot be told apart.
const CHUNKS: [u32; 6] = [8, 16, 64, 128, 256, 1024];
/// Workloads of Fig. 13.
const CHUNK_WORKLOADS: [&str; 3] = ["MSR-mds0", "MSR-prn0", "MSR-proj0"];
/// Pages of a recorded trace's device at most.
const RECORDED_PAGES_MAX: u32 = 1 << 20;

/// How large an experiment is.
#[derive(Clone, Copy, Debug)]
struct Size {
    pages: u32,
    phases: Phases,
}

impl Size {
    const USUAL: Size = Size { pages: PAGES, phases: Phases::USUAL };

    fn device(&self, copies: CopyPlacement, seed: u64) -> Device {
        Device { pages: self.pages, copies, seed }
    }
    fn load_pages(&self) -> u64 {
        (f64::from(self.pages) * self.phases.total()) as u64
    }
}

/// Copies in blocks of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Apart {
    /// Absolute, as [`Figures::none`].
    none: f64,
    mq: f64,
    sfr: f64,
    chosen: f64,
    best: f64,
}

/// A recorded trace.
struct Recording {
    name: String,
    /// What its device is like; none where the footprint is out of bounds.
    figures: Option<Figures>,
    pages: u32,
    writes: usize,
    /// How often its writes were gone through.
    passes: f64,
}

/// All that was measured.
#[derive(Default)]
struct Results {
    /// By [`WORKLOADS`].
    rows: Vec<Figures>,
    apart: Vec<Apart>,
    /// By [`CHUNK_WORKLOADS`] and [`CHUNKS`].
    chunks: Vec<Vec<f64>>,
    recordings: Vec<Recording>,
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    assert!(options.runs > 0, "no run, no figure");
    let results = measure(options, &Size::USUAL, progress);
    document(options, &results)
}

fn measure(options: &Options, size: &Size, progress: &mut dyn FnMut(Progress)) -> Results {
    let steps = WORKLOADS.len() as u32 * (options.runs + 1);
    let total = steps + CHUNK_WORKLOADS.len() as u32 + options.traces.len() as u32;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(Progress { done, total });
    };
    let mut results = Results::default();
    for workload in &WORKLOADS {
        let runs = (0..u64::from(options.runs)).map(|run| {
            let seed = options.seed.wrapping_add(run);
            let writes = workload.writes(size.pages, size.load_pages(), seed);
            let device = size.device(CopyPlacement::Shared, seed);
            let bench = Bench { device, phases: size.phases, writes: &writes };
            step();
            bench.figures(Some(workload.printed.features()))
        });
        results.rows.push(Figures::median(&runs.collect::<Vec<_>>()));
    }
    for (workload, row) in WORKLOADS.iter().zip(&results.rows) {
        results.apart.push(apart(options.seed, size, workload, row.best().0));
        step();
    }
    for name in CHUNK_WORKLOADS {
        results.chunks.push(chunks(options.seed, size, name));
        step();
    }
    for trace in &options.traces {
        results.recordings.push(recording(options.seed, size, trace));
        step();
    }
    results
}

fn apart(seed: u64, size: &Size, workload: &workloads::Workload, best: FeatureSet) -> Apart {
    let writes = workload.writes(size.pages, size.load_pages(), seed);
    let device = size.device(CopyPlacement::PerStream, seed);
    let bench = Bench { device, phases: size.phases, writes: &writes };
    let none = bench.online(&mut NoStreams);
    let training = bench.training(&FiosParameters::default());
    let fios = |features| bench.fios(&training, features).0 / none;
    Apart {
        none,
        mq: bench.online(&mut policy::Mq::new(policy::MqParameters::default())) / none,
        sfr: bench.online(&mut policy::Sfr::new(policy::SfrParameters::default())) / none,
        chosen: fios(workload.printed.features()),
        best: fios(best),
    }
}

/// Fig. 13: the chosen features with chunks of each size.
fn chunks(seed: u64, size: &Size, name: &str) -> Vec<f64> {
    let workload = WORKLOADS.iter().find(|workload| workload.name == name);
    let workload = workload.expect("it is one of the twelve");
    let writes = workload.writes(size.pages, size.load_pages(), seed);
    let device = size.device(CopyPlacement::Shared, seed);
    let bench = Bench { device, phases: size.phases, writes: &writes };
    let none = bench.online(&mut NoStreams);
    let of = |chunk_sectors| {
        let training = bench.training(&FiosParameters { chunk_sectors, ..Default::default() });
        bench.fios(&training, workload.printed.features()).0 / none
    };
    CHUNKS.into_iter().map(of).collect()
}

fn recording(seed: u64, size: &Size, trace: &crate::RecordedTrace) -> Recording {
    let compact = recorded::compact(&trace.records);
    let pages = compact.volume_pages;
    let none = Recording {
        name: trace.name.clone(),
        figures: None,
        pages,
        writes: compact.writes.len(),
        passes: 0.0,
    };
    if !(recorded::PAGES_MIN..=RECORDED_PAGES_MAX).contains(&pages) {
        return none;
    }
    let needed = (f64::from(pages) * size.phases.total()) as u64;
    let writes = recorded::repeated(&compact.writes, needed, &mut Rng::new(seed));
    let device = Device { pages, copies: CopyPlacement::Shared, seed };
    let bench = Bench { device, phases: size.phases, writes: &writes };
    let passes = writes.len() as f64 / compact.writes.len() as f64;
    Recording { figures: Some(bench.figures(None)), passes, ..none }
}

fn document(options: &Options, results: &Results) -> Document {
    let traces = " --trace FILE".repeat(options.traces.len());
    Document {
        title: "FIOS: streams from a look at the writes, beside AutoStream and no streams".into(),
        source: "Write amplification of a multi-stream device (the flash model: 512 MiB, 11 % \
                 spare, 16 streams, greedy cleaning) under loads drawn after the paper's Table 3, \
                 relative to the same device without streams. Figures are medians over the seeds; \
                 the paper's are those of its text, for its bars bear no numbers."
            .into(),
        command: format!(
            "layby lab run streams --seed {} --runs {}{traces}",
            options.seed, options.runs
        ),
        claims: claims::all(results),
        sections: sections::all(options, results),
    }
}

#[cfg(test)]
mod tests;
