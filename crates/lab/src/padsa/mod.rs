//! PADSA's experiment: its workloads under five architectures, the paper's figures beside ours.
//!
//! How: vehicles come and go on one road per seed; all architectures see the same accesses, in
//! counting mode, with Table I's devices unless told otherwise. Figures are medians over the seeds.
//! Invariant: the same options give the same document on the same platform.
//! Cost: about three minutes for three seeds on one core.
//! Source: `papers/padsa.txt`, section V; gaps and their filling in `specs/priority-cache.md`.

mod claims;
mod cost;
mod figures;
mod paper;
mod road;
mod sections;

pub use road::{Road, Side, Sums, drive};

use crate::{Document, Options, Progress};
use figures::Figures;
use layby_sim::fleet::Architecture;
use layby_sim::levels::PadsaDevices;
use layby_trace::{Pace, Stay, VehicleSpec};
use layby_types::Nanos;
use paper::WORKLOADS;

/// Seconds in which vehicles arrive.
const SPAN: Nanos = Nanos::from_secs(60);
/// Small accesses per second and service; ten for each large one.
const SMALL_PER_SECOND: u64 = 1000;
/// Blocks of the SSD level; NVM has a quarter, DRAM a sixteenth.
const SSD_BLOCKS: u32 = 1 << 14;
/// Bytes that a small service uses: four vehicles' are as large as the SSD level.
const SMALL_FOOTPRINT: u64 = (SSD_BLOCKS as u64 / 4) << 12;
/// Bytes that a large service uses: more than it can during a stay, so that nothing comes twice.
const LARGE_FOOTPRINT: u64 = 1 << 33;
/// Time between two sizings.
const PERIOD: Nanos = Nanos::from_secs(10);
/// Blocks of the unit of shares.
const UNIT_BLOCKS: u32 = 32;

/// By workload and architecture, each in its order.
type Results = [[Figures; Architecture::ALL.len()]; WORKLOADS.len()];

/// The road of one seed, with the paper's devices.
#[must_use]
pub fn road(seed: u64, stays: Option<&[Stay]>) -> Road {
    let drawn = || VehicleSpec { span: SPAN, seed, ..VehicleSpec::DEFAULT }.draw();
    Road {
        stays: stays.map_or_else(drawn, <[Stay]>::to_vec),
        pace: Pace {
            small_per_second: SMALL_PER_SECOND,
            large_per_second: SMALL_PER_SECOND / 10,
            small_footprint: SMALL_FOOTPRINT,
            large_footprint: LARGE_FOOTPRINT,
        },
        slots: [SSD_BLOCKS / 16, SSD_BLOCKS / 4, SSD_BLOCKS],
        devices: PadsaDevices::default(),
        period: PERIOD,
        unit_blocks: UNIT_BLOCKS,
        seed,
    }
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    assert!(options.runs > 0, "no run, no figure");
    let total = WORKLOADS.len() as u32 * Architecture::ALL.len() as u32 * options.runs + 1;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(Progress { done, total });
    };
    let seeds = || (0..u64::from(options.runs)).map(|run| options.seed.wrapping_add(run));
    let devices = options.devices.clone().unwrap_or_default();
    let with_devices =
        |seed| Road { devices: devices.clone(), ..road(seed, options.stays.as_deref()) };
    let roads: Vec<Road> = seeds().map(with_devices).collect();
    let mut results = Results::default();
    for (workload, row) in WORKLOADS.into_iter().zip(&mut results) {
        for (architecture, cell) in Architecture::ALL.into_iter().zip(row) {
            let runs = roads.iter().map(|road| {
                let figures = Figures::of(&drive(road, workload, architecture));
                step();
                figures
            });
            *cell = Figures::median(&runs.collect::<Vec<_>>());
        }
    }
    let costs = cost::means(options.seed, &devices);
    step();
    document(options, &results, &costs)
}

fn document(options: &Options, results: &Results, costs: &cost::Costs) -> Document {
    let recorded = if options.stays.is_some() { " --tracks FILE" } else { "" };
    let described = if options.devices.is_some() { " --devices FILE" } else { "" };
    let devices = match options.devices {
        Some(_) => "other devices than the paper's, so its figures need not be met",
        None => "the devices of Table I",
    };
    Document {
        title: "PADSA: storage caching that knows which services are safety-critical".into(),
        source: format!(
            "The paper's figures (section V) beside this project's simulation: the node's own \
             cache code, in virtual time, with {devices}. Figures are medians over the seeds; the \
             paper's are read from its text."
        ),
        command: format!(
            "layby lab run padsa --seed {} --runs {}{recorded}{described}",
            options.seed, options.runs
        ),
        claims: claims::all(results, costs),
        sections: sections::all(options, results, costs),
    }
}

/// An architecture's place in a row of [`Results`].
fn place(architecture: Architecture) -> usize {
    let found = Architecture::ALL.iter().position(|other| *other == architecture);
    found.expect("all are in the list")
}

#[cfg(test)]
mod tests;
