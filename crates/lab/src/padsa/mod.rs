//! PADSA's experiment: its workloads under five architectures, the paper's figures beside ours.
//!
//! How: vehicles come and go on one road per seed; all architectures see the same accesses, in
//! counting mode, with Table I's devices unless told otherwise, and are sized at the same instants.
//! Figures are medians over the seeds.
//! Invariant: the same options give the same document on the same platform.
//! Cost: some ten minutes of processor time per seed.
//! Source: `papers/padsa.txt`, section V; gaps and their filling in `specs/priority-cache.md`.

mod claims;
mod cost;
mod figures;
mod paper;
mod road;
mod sections;
mod tuning;

pub use road::{Road, Side, Sums, drive};
pub use tuning::Tuning;

use crate::{Document, Options, Progress, RecordedVehicles, Unfit, parallel, seeds_of};
use figures::Figures;
use layby_sim::fleet::Architecture;
use layby_sim::levels::PadsaDevices;
use layby_sim::policy::allocation::SERVICES_MAX;
use layby_trace::{Pace, Stay, VehicleSpec};
use layby_types::{Nanos, VolumeId};
use paper::WORKLOADS;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
/// Time between two sizings, for every architecture alike.
const PERIOD: Nanos = Nanos::from_secs(10);
/// Blocks of the unit of shares.
const UNIT_BLOCKS: u32 = 32;

/// Time in sight from which a recording shows something: levels are sized once, by what services
/// did until then, and serve as long after it.
const IN_SIGHT_MIN: Nanos = Nanos(2 * PERIOD.0);

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
        tuning: Tuning::USUAL,
        unit_blocks: UNIT_BLOCKS,
        seed,
    }
}

/// A vehicle's services leave at their next access behind its end: at most one and a half gaps of
/// the slowest ones.
const LEAVES_WITHIN: Nanos = Nanos(3 * 1_000_000_000 / (2 * (SMALL_PER_SECOND / 10)));

/// The most services that a vehicle brings.
fn services_max() -> usize {
    WORKLOADS.iter().map(|workload| workload.services().len()).max().unwrap_or(1)
}

/// The most vehicles that are there at once, until their services have left.
fn at_once(stays: &[Stay]) -> usize {
    let mut leave = BinaryHeap::new();
    let mut most = 0;
    for stay in stays {
        while leave.peek().is_some_and(|Reverse(leaves)| *leaves < stay.arrives) {
            leave.pop();
        }
        leave.push(Reverse(stay.leaves.saturating_add(LEAVES_WITHIN)));
        most = most.max(leave.len());
    }
    most
}

/// Whether vehicles, in the order in which they arrive, are in sight for long enough, and no more
/// than a node can be sized for and number.
pub(crate) fn check(stays: &[Stay]) -> Result<(), Unfit> {
    let (mut in_sight, mut until) = (Nanos::ZERO, Nanos::ZERO);
    for stay in stays {
        let from = stay.arrives.max(until);
        until = stay.leaves.max(until);
        in_sight = in_sight.saturating_add(until.since(from));
    }
    match stays {
        [] => Err(Unfit::Vehicles),
        _ if in_sight < IN_SIGHT_MIN => Err(Unfit::Brief { in_sight, least: IN_SIGHT_MIN }),
        _ => fits(stays),
    }
}

/// Whether there is room for the services of all vehicles, under every workload.
fn fits(stays: &[Stay]) -> Result<(), Unfit> {
    // Volumes are numbered from one on.
    let most = VolumeId::MAX.0 as usize / services_max();
    if stays.len() > most {
        return Err(Unfit::Many { vehicles: stays.len(), most });
    }
    let (at_once, most) = (at_once(stays), SERVICES_MAX / services_max());
    if at_once > most { Err(Unfit::Crowded { at_once, most }) } else { Ok(()) }
}

/// Everything of one seed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    /// By tuning, in their order.
    results: [Results; Tuning::ALL.len()],
    costs: cost::Costs,
}

/// One run: a budget and an exponent of Fig. 3, or a workload under an architecture and a tuning.
#[derive(Clone, Copy, Debug)]
enum Step {
    Cost(usize, usize),
    Drive(usize, usize, usize),
}

/// What came of it.
enum End {
    Cost(cost::Means),
    Drive(Figures),
}

impl Step {
    /// The longest ones first.
    fn all() -> Vec<Step> {
        let pairs = |rows: usize, columns: usize| {
            (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
        };
        let drives = pairs(WORKLOADS.len(), Architecture::ALL.len());
        let costs = pairs(cost::BUDGETS_PERCENT.len(), paper::EXPONENTS.len());
        let tuned = |(row, at)| (0..Tuning::ALL.len()).map(move |tuning| (row, at, tuning));
        let drives = drives.flat_map(tuned);
        let mut all: Vec<Step> =
            drives.map(|(row, at, tuning)| Step::Drive(row, at, tuning)).collect();
        all.extend(costs.map(|(budget, exponent)| Step::Cost(budget, exponent)));
        all
    }
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    let devices = options.devices.clone().unwrap_or_default();
    let stays = options.stays.as_ref().map(|RecordedVehicles { stays }| stays.as_slice());
    let with_devices = |seed| Road { devices: devices.clone(), ..road(seed, stays) };
    let roads: Vec<Road> = parallel::seeds(options).into_iter().map(with_devices).collect();
    let steps = Step::all();
    let items: Vec<(&Road, Step)> =
        roads.iter().flat_map(|road| steps.iter().map(move |step| (road, *step))).collect();
    let ends = parallel::each(&items, progress, |(road, step)| match step {
        Step::Cost(budget, exponent) => {
            End::Cost(cost::means(road.seed, &devices, (*budget, *exponent)))
        }
        Step::Drive(workload, architecture, tuning) => {
            let road = &Road { tuning: Tuning::ALL[*tuning], ..(*road).clone() };
            let sums = drive(road, WORKLOADS[*workload], Architecture::ALL[*architecture]);
            End::Drive(Figures::of(&sums))
        }
    });
    let mut seeds = vec![Found::default(); roads.len()];
    for (place, ((_, step), end)) in items.iter().zip(ends).enumerate() {
        let found = &mut seeds[place / steps.len()];
        match (*step, end) {
            (Step::Cost(budget, exponent), End::Cost(means)) => {
                found.costs[budget][exponent] = means;
            }
            (Step::Drive(workload, architecture, tuning), End::Drive(figures)) => {
                found.results[tuning][workload][architecture] = figures;
            }
            _ => unreachable!("a step's end is of its kind"),
        }
    }
    whole(options, &seeds)
}

/// The document of all seeds.
fn whole(options: &Options, seeds: &[Found]) -> Document {
    let of = |found: &Found| document(options, found);
    let mut whole = of(&Found::median(seeds)).over_seeds(&seeds.iter().map(of).collect::<Vec<_>>());
    // Verdicts are known once claims are medians of the seeds' own.
    let verdict = sections::verdict(&whole.claims);
    let section = whole.sections.iter_mut().find(|section| section.heading == "Parameters");
    section.expect("every report has it").text.push(verdict);
    whole
}

impl Found {
    /// Medians, figure by figure. Panics when there is nothing.
    fn median(seeds: &[Found]) -> Found {
        let figures = |tuning: usize, workload: usize, architecture: usize| {
            let runs = seeds.iter().map(|seed| seed.results[tuning][workload][architecture]);
            Figures::median(&runs.collect::<Vec<_>>())
        };
        let mean = |[budget, exponent, spending, objective]: [usize; 4]| {
            let of = |seed: &Found| seed.costs[budget][exponent][spending][objective];
            crate::median::median(seeds.iter().map(of))
        };
        Found {
            results: std::array::from_fn(|tuning| {
                std::array::from_fn(|row| std::array::from_fn(|at| figures(tuning, row, at)))
            }),
            costs: std::array::from_fn(|budget| {
                std::array::from_fn(|exponent| {
                    std::array::from_fn(|spending| {
                        std::array::from_fn(|at| mean([budget, exponent, spending, at]))
                    })
                })
            }),
        }
    }
}

fn document(options: &Options, found: &Found) -> Document {
    let ([results, ..], costs) = (&found.results, &found.costs);
    let measurements = claims::measured(results, costs);
    let devices = match sections::has_other_devices(options) {
        true => "other devices than the paper's, so its figures need not be met",
        false => "the devices of Table I",
    };
    Document {
        title: "PADSA: storage caching that knows which services are safety-critical".into(),
        citation:
            "Mostafa Kishani, Zdenek Becvar and Hossein Asadi, PADSA: Priority-Aware Block Data \
                   Storage Architecture for Edge Cloud Serving Autonomous Vehicles"
                .into(),
        source: format!(
            "The paper's figures (section V) beside this project's simulation: the node's own \
             cache code, in virtual time, with {devices}. Figures are medians over the seeds; the \
             paper's are read from its text."
        ),
        command: format!(
            "layby lab run padsa --seed {} --runs {}{}",
            options.seed,
            options.runs,
            options.named_files()
        ),
        seeds: seeds_of(options),
        origin: options.origin.clone(),
        claims: claims::all(results),
        measurements: [measurements, tuning::measured(found)].concat(),
        sections: sections::all(options, found),
    }
}

/// An architecture's place in a row of [`Results`].
fn place(architecture: Architecture) -> usize {
    let found = Architecture::ALL.iter().position(|other| *other == architecture);
    found.expect("all are in the list")
}

#[cfg(test)]
mod tests;
