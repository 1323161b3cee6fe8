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
mod findings;
mod paper;
mod recorded;
mod sections;
mod workloads;

use layby_sim::policy::streams as policy;

use crate::{Document, Options, Progress, RecordedTrace, Unfit, parallel, seeds_of};
use device::{Device, Phases};
use figures::{Bench, Figures};
use layby_sim::device::flash::CopyPlacement;
use layby_trace::Record;
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
#[derive(Clone, Debug, Default)]
struct Recording {
    name: String,
    figures: Figures,
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

/// Whether a device can be made for what `records` write.
pub(crate) fn check(records: &[Record]) -> Result<(), Unfit> {
    let compact = recorded::compact(records)?;
    let (least, most) = (recorded::PAGES_MIN, RECORDED_PAGES_MAX);
    match compact.volume_pages {
        _ if compact.writes.is_empty() => Err(Unfit::Writes),
        pages if !(least..=most).contains(&pages) => Err(Unfit::Footprint { pages, least, most }),
        _ => Ok(()),
    }
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    let seeds = measure(options, &Size::USUAL, progress);
    whole(options, &seeds)
}

/// The document of all seeds.
fn whole(options: &Options, seeds: &[Results]) -> Document {
    let of = |results: &Results| document(options, results);
    of(&Results::median(seeds)).over_seeds(&seeds.iter().map(of).collect::<Vec<_>>())
}

/// One load of a seed, everywhere.
#[derive(Clone, Copy)]
enum Step<'a> {
    Workload(usize),
    Chunks(&'static str),
    Recording(&'a RecordedTrace),
}

/// What came of it.
enum End {
    Workload(Figures, Apart),
    Chunks(Vec<f64>),
    Recording(Recording),
}

impl Step<'_> {
    fn run(self, size: &Size, seed: u64) -> End {
        match self {
            Step::Workload(place) => {
                let workload = &WORKLOADS[place];
                let writes = workload.writes(size.pages, size.load_pages(), seed);
                let device = size.device(CopyPlacement::Shared, seed);
                let bench = Bench { device, phases: size.phases, writes: &writes };
                let figures = bench.figures(Some(workload.printed.features()));
                let apart = apart(seed, size, workload, figures.best().0);
                End::Workload(figures, apart)
            }
            Step::Chunks(name) => End::Chunks(chunks(seed, size, name)),
            Step::Recording(trace) => End::Recording(recording(seed, size, trace)),
        }
    }
}

/// The results of each seed.
fn measure(options: &Options, size: &Size, progress: &mut dyn FnMut(Progress)) -> Vec<Results> {
    let mut steps: Vec<Step<'_>> = options.traces.iter().map(Step::Recording).collect();
    steps.extend((0..WORKLOADS.len()).map(Step::Workload));
    steps.extend(CHUNK_WORKLOADS.map(Step::Chunks));
    let seeds = parallel::seeds(options);
    let items: Vec<(u64, Step<'_>)> =
        seeds.iter().flat_map(|seed| steps.iter().map(|step| (*seed, *step))).collect();
    let mut ends =
        parallel::each(&items, progress, |(seed, step)| step.run(size, *seed)).into_iter();
    let of = |_: &u64| {
        let mut results = Results::default();
        for end in ends.by_ref().take(steps.len()) {
            match end {
                End::Workload(figures, apart) => {
                    results.rows.push(figures);
                    results.apart.push(apart);
                }
                End::Chunks(row) => results.chunks.push(row),
                End::Recording(recording) => results.recordings.push(recording),
            }
        }
        results
    };
    seeds.iter().map(of).collect()
}

impl Results {
    /// Medians, figure by figure. Panics when there is nothing.
    fn median(seeds: &[Results]) -> Results {
        let row = |at: usize| {
            Figures::median(&seeds.iter().map(|seed| seed.rows[at].clone()).collect::<Vec<_>>())
        };
        let apart = |at: usize| {
            let of = |figure: fn(&Apart) -> f64| {
                crate::median::median(seeds.iter().map(|seed| figure(&seed.apart[at])))
            };
            Apart {
                none: of(|one| one.none),
                mq: of(|one| one.mq),
                sfr: of(|one| one.sfr),
                chosen: of(|one| one.chosen),
                best: of(|one| one.best),
            }
        };
        let recording = |at: usize| {
            let all: Vec<&Recording> = seeds.iter().map(|seed| &seed.recordings[at]).collect();
            Recording {
                figures: Figures::median(
                    &all.iter().map(|one| one.figures.clone()).collect::<Vec<_>>(),
                ),
                passes: crate::median::median(all.iter().map(|one| one.passes)),
                // Name, pages and writes are the trace's own.
                ..all[0].clone()
            }
        };
        let chunk = |row: usize, at: usize| {
            crate::median::median(seeds.iter().map(|seed| seed.chunks[row][at]))
        };
        let chunks = |row: usize| (0..CHUNKS.len()).map(|at| chunk(row, at)).collect();
        Results {
            rows: (0..seeds[0].rows.len()).map(row).collect(),
            apart: (0..seeds[0].apart.len()).map(apart).collect(),
            chunks: (0..seeds[0].chunks.len()).map(chunks).collect(),
            recordings: (0..seeds[0].recordings.len()).map(recording).collect(),
        }
    }
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
    let compact = recorded::compact(&trace.records).expect("it was checked when it was made");
    let pages = compact.volume_pages;
    let needed = (f64::from(pages) * size.phases.total()) as u64;
    let writes = recorded::repeated(&compact.writes, needed, &mut Rng::new(seed));
    let device = Device { pages, copies: CopyPlacement::Shared, seed };
    let bench = Bench { device, phases: size.phases, writes: &writes };
    let passes = writes.len() as f64 / compact.writes.len() as f64;
    let (name, figures) = (trace.name.clone(), bench.figures(None));
    Recording { name, figures, pages, writes: compact.writes.len(), passes }
}

fn document(options: &Options, results: &Results) -> Document {
    Document {
        title: "FIOS: streams from a look at the writes, beside AutoStream and no streams".into(),
        citation:
            "Janki Bhimani et al., Automatic Stream Identification to Improve Flash Endurance \
                   in Data Centers, ACM Transactions on Storage 18(2), article 17, 2022"
                .into(),
        source: "Write amplification of a multi-stream device (the flash model: 512 MiB, 11 % \
                 spare, 16 streams, greedy cleaning) under loads drawn after the paper's Table 3, \
                 relative to the same device without streams. Figures are medians over the seeds; \
                 the paper's are those of its text, for its bars bear no numbers."
            .into(),
        command: format!(
            "layby lab run streams --seed {} --runs {}{}",
            options.seed,
            options.runs,
            options.named_files()
        ),
        seeds: seeds_of(options),
        origin: options.origin.clone(),
        claims: claims::all(results),
        measurements: claims::measured(results),
        sections: sections::all(options, results),
    }
}

#[cfg(test)]
mod tests;
