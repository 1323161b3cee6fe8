//! Wear levelling beside none, and a capacity that stays beside one that shrinks.
//!
//! How: the paper's device at a scale, on the flash model in counting mode. First the synthetic
//! study: four loads under six designs, 100 drive writes each, no end of life. Then lives:
//! stand-ins for nine traces, in runs and page by page, under four designs, with blocks that are
//! erased 500 times and a capacity that is fixed or not. Figures are medians over the seeds.
//! Invariant: the same options give the same document on the same platform.
//! Cost: about a minute and a half per seed at the usual scale on one core, in proportion to the
//! device: the paper's size takes a day and a gigabyte.
//! Source: `papers/wear-leveling.txt`; gaps and their filling in `specs/wear-and-capacity.md`.

mod claims;
mod device;
mod paper;
mod sections;

use crate::{Document, Options, Progress, parallel, seeds_of};
use device::{Aged, DESIGNS, Design, LIVED, Lived};
use layby_sim::device::flash::Capacity;
use layby_trace::{Overwrites, OverwritesSpec};
use paper::{Described, LOGICAL_GIB, TRACES};

/// The paper's device; larger ones are not offered.
pub const SCALE_MIN: u32 = 1;
/// A device of 256 MiB: write amplification is within two percent of one twice as large, what a
/// variable capacity gains within 8 %. At half of it PWL(50) amplifies by 1.3 % less and variance
/// gains a third more; at a quarter PWL(50) never wakes.
pub const SCALE_MAX: u32 = 1024;
/// The smallest device that is offered.
pub const SCALE_DEFAULT: u32 = SCALE_MAX;

/// A load of the synthetic study: single pages, some hot.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    name: &'static str,
    hot_writes: f64,
    hot_pages: f64,
    footprint: f64,
}

/// The synthetic study's loads: skewed and even, over the whole device and a twentieth of it.
const LOADS: [Load; 4] = [
    Load { name: "0.9/0.1, whole", hot_writes: 0.9, hot_pages: 0.1, footprint: 1.0 },
    Load { name: "0.5/0.5, whole", hot_writes: 0.5, hot_pages: 0.5, footprint: 1.0 },
    Load { name: "0.9/0.1, 5 %", hot_writes: 0.9, hot_pages: 0.1, footprint: 0.05 },
    Load { name: "0.5/0.5, 5 %", hot_writes: 0.5, hot_pages: 0.5, footprint: 0.05 },
];
const SKEWED: usize = 0;
const EVEN: usize = 1;
const SKEWED_SMALL: usize = 2;
const EVEN_SMALL: usize = 3;

/// What becomes of the capacity: it stays, or what the host never wrote is given up.
const CAPACITIES: [Capacity; 2] = [Capacity::Fixed, Capacity::ReleaseOnce];
const FIXED: usize = 0;
const VARIABLE: usize = 1;

/// A life per capacity and design of a trace's stand-in.
type Lives = [[Lived; LIVED]; CAPACITIES.len()];

/// How a trace's stand-in writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// In runs of the trace's mean size, as often one after another as in the trace.
    InRuns,
    /// One by one: only footprint and hotness are the trace's.
    Single,
}

const PAGES: [Pages; 2] = [Pages::InRuns, Pages::Single];
const IN_RUNS: usize = 0;
const SINGLE: usize = 1;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
struct Results {
    /// By load and design.
    aged: [[Aged; DESIGNS.len()]; LOADS.len()],
    /// By how stand-ins write, and trace.
    lives: [[Lives; TRACES.len()]; PAGES.len()],
}

/// How much is run; less than the paper's only in tests.
#[derive(Clone, Copy, Debug)]
struct Extent {
    scale: u32,
    drive_writes: u32,
}

/// Runs everything. Panics when `options.runs` is zero or the scale is out of its bounds.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    let scale = options.scale.unwrap_or(SCALE_DEFAULT);
    assert!((SCALE_MIN..=SCALE_MAX).contains(&scale), "a scale within its bounds");
    let extent = Extent { scale, drive_writes: paper::DRIVE_WRITES };
    let seeds = measure(options, extent, progress);
    whole(options, extent, &seeds)
}

/// The document of all seeds.
fn whole(options: &Options, extent: Extent, seeds: &[Results]) -> Document {
    let of = |results: &Results| document(options, extent, results);
    of(&Results::median(seeds)).over_seeds(&seeds.iter().map(of).collect::<Vec<_>>())
}

/// One run of a device, of a seed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Age { load: usize, design: usize },
    Live { pages: usize, trace: usize, capacity: usize, design: usize },
}

/// What came of it.
enum End {
    Aged(Aged),
    Lived(Lived),
}

impl Step {
    fn all() -> Vec<Step> {
        let mut all = Vec::new();
        for pages in 0..PAGES.len() {
            for trace in 0..TRACES.len() {
                for capacity in 0..CAPACITIES.len() {
                    all.extend((0..LIVED).map(|design| Step::Live {
                        pages,
                        trace,
                        capacity,
                        design,
                    }));
                }
            }
        }
        for load in 0..LOADS.len() {
            all.extend((0..DESIGNS.len()).map(|design| Step::Age { load, design }));
        }
        all
    }

    fn run(self, extent: Extent, seed: u64) -> End {
        match self {
            Step::Age { load, design } => {
                End::Aged(age(extent, LOADS[load], DESIGNS[design], seed))
            }
            Step::Live { pages, trace, capacity, design } => {
                let spec = stand_in(extent.scale, &TRACES[trace], PAGES[pages]);
                let runs = Overwrites::new(spec, seed);
                let lived =
                    device::live(extent.scale, DESIGNS[design], runs, (CAPACITIES[capacity], seed));
                End::Lived(lived)
            }
        }
    }
}

/// The results of each seed.
fn measure(options: &Options, extent: Extent, progress: &mut dyn FnMut(Progress)) -> Vec<Results> {
    let steps = Step::all();
    let each = parallel::seeds(options).into_iter();
    let items: Vec<(u64, Step)> =
        each.flat_map(|seed| steps.iter().map(move |step| (seed, *step))).collect();
    let ends = parallel::each(&items, progress, |(seed, step)| step.run(extent, *seed));
    let mut all = vec![Results::default(); options.runs as usize];
    for (place, ((_, step), end)) in items.into_iter().zip(ends).enumerate() {
        let results = &mut all[place / steps.len()];
        match (step, end) {
            (Step::Age { load, design }, End::Aged(aged)) => results.aged[load][design] = aged,
            (Step::Live { pages, trace, capacity, design }, End::Lived(lived)) => {
                results.lives[pages][trace][capacity][design] = lived;
            }
            _ => unreachable!("a step's end is of its kind"),
        }
    }
    all
}

impl Results {
    /// Medians, figure by figure. Panics when there is nothing.
    fn median(seeds: &[Results]) -> Results {
        let mut median = Results::default();
        for (load, row) in median.aged.iter_mut().enumerate() {
            for (design, cell) in row.iter_mut().enumerate() {
                let runs = seeds.iter().map(|seed| seed.aged[load][design].clone());
                *cell = Aged::median(&runs.collect::<Vec<_>>());
            }
        }
        for (pages, traces) in median.lives.iter_mut().enumerate() {
            for (trace, lives) in traces.iter_mut().enumerate() {
                for (capacity, row) in lives.iter_mut().enumerate() {
                    for (design, cell) in row.iter_mut().enumerate() {
                        let runs =
                            seeds.iter().map(|seed| seed.lives[pages][trace][capacity][design]);
                        *cell = Lived::median(&runs.collect::<Vec<_>>());
                    }
                }
            }
        }
        median
    }
}

fn age(extent: Extent, load: Load, design: Design, seed: u64) -> Aged {
    let pages = f64::from(device::geometry(extent.scale).logical_pages);
    let spec = OverwritesSpec {
        footprint_pages: (pages * load.footprint) as u64,
        hot_writes: load.hot_writes,
        hot_pages: load.hot_pages,
        run_pages: 1.0,
        sequential: 0.0,
    };
    device::age(extent.scale, design, Overwrites::new(spec, seed), (extent.drive_writes, seed))
}

/// Writes of the trace's footprint and hotness, and in runs of its size and sequentiality.
fn stand_in(scale: u32, trace: &Described, pages: Pages) -> OverwritesSpec {
    let device_pages = f64::from(device::geometry(scale).logical_pages);
    let (run_pages, sequential) = match pages {
        Pages::InRuns => ((trace.write_kib / 4.0).max(1.0), trace.sequential),
        Pages::Single => (1.0, 0.0),
    };
    OverwritesSpec {
        footprint_pages: (device_pages * trace.footprint_gib / f64::from(LOGICAL_GIB)) as u64,
        hot_writes: trace.hot_percent / 100.0,
        hot_pages: 1.0 - trace.hot_percent / 100.0,
        run_pages,
        sequential,
    }
}

fn document(options: &Options, extent: Extent, results: &Results) -> Document {
    let scaled = match extent.scale {
        1 => "the paper's size".to_string(),
        scale => format!("1/{scale} of the paper's size ({} MiB)", LOGICAL_GIB * 1024 / scale),
    };
    let scale = options.scale.map(|scale| format!(" --scale {scale}")).unwrap_or_default();
    Document {
        title: "Wear levelling considered harmful, and capacity that may vary".into(),
        citation: "Ziyang Jiao, Janki Bhimani and Bryan S. Kim, Wear leveling in SSDs considered \
                   harmful, HotStorage 2022"
            .into(),
        source: format!(
            "The figures of the paper beside this \
             project's flash model, counting, with a device of {scaled}. Figures are medians over \
             the seeds; the paper's are read from its text."
        ),
        command: format!(
            "layby lab run wear --seed {} --runs {}{scale}",
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
