//! The paper's device at a scale, and what becomes of it under writes.
//!
//! How: `device::flash`, counting, in the form of FTLSim: one open block for host and copies,
//! greedy cleaning at seven free blocks, filled once in order and three times at random before
//! anything is counted. A drive write is as many pages as the device has.
//! Invariant: the same scale and seed give the same figures.
//! Cost: twenty to forty million pages programmed per second.

use super::paper::{ENDURANCE, LOGICAL_GIB};
use crate::median::median;
use layby_sim::device::flash::{
    Capacity, Configuration, DualPoolCompare, Endurance, Flash, Geometry, Leveling, LogicalPage,
    Opening, Preconditioning, Statistics, Stream,
};
use layby_trace::Overwrites;
use layby_types::Rng;

const PAGES_PER_BLOCK: u32 = 256;
/// Blocks that cleaning keeps free; they are no over-provisioning.
const RESERVE_BLOCKS: u32 = 7;
/// A life that is longer than this is cut off, in drive writes.
const DRIVE_WRITES_MAX: u64 = 10_000;
/// Drive writes in a window of Fig. 2.
pub(super) const WINDOW: u32 = 5;
/// The part of the blocks below each quantile of erases that is reported.
pub(super) const QUANTILES: [f64; 7] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99];

/// A way to spread wear, as the paper names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Design {
    pub(super) name: &'static str,
    pub(super) leveling: Leveling,
}

const fn dual_pool(threshold: u32) -> Leveling {
    Leveling::DualPool { threshold, compare: DualPoolCompare::Signed }
}

const fn progressive(threshold_percent: u8) -> Leveling {
    Leveling::Progressive { threshold_percent, endurance: ENDURANCE }
}

/// The designs of the synthetic study. The first four are those of the lifetime study.
pub(super) const DESIGNS: [Design; 6] = [
    Design { name: "NoWL", leveling: Leveling::None },
    Design { name: "DP(5)", leveling: dual_pool(5) },
    Design { name: "PWL(50)", leveling: progressive(50) },
    Design { name: "DAGC", leveling: Leveling::DagcRandom },
    Design { name: "DP(10)", leveling: dual_pool(10) },
    Design { name: "PWL(75)", leveling: progressive(75) },
];
/// How many of them live to their end.
pub(super) const LIVED: usize = 4;
/// Their places.
pub(super) const NONE: usize = 0;
pub(super) const DUAL_POOL: usize = 1;
pub(super) const PROGRESSIVE: usize = 2;
pub(super) const DAGC: usize = 3;
pub(super) const DUAL_POOL_WIDE: usize = 4;
pub(super) const PROGRESSIVE_LATE: usize = 5;

/// Write amplification, whole and by wear levelling alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amplification {
    pub(super) all: f64,
    pub(super) leveling: f64,
    /// As DAGC's published figures come about: its excess counts twice.
    pub(super) counted_twice: f64,
}

impl Amplification {
    fn of(seen: &Statistics) -> Self {
        Amplification {
            all: seen.write_amplification(),
            leveling: seen.write_amplification_leveling(),
            counted_twice: seen.write_amplification_counted_twice(),
        }
    }
}

/// A device after many drive writes without an end of life.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Aged {
    /// By windows of [`WINDOW`] drive writes.
    pub(super) windows: Vec<Amplification>,
    pub(super) whole: Amplification,
    /// Erases per block, by [`QUANTILES`].
    pub(super) erases: [f64; QUANTILES.len()],
}

impl Aged {
    /// Erases between the most and the least worn hundredth of the blocks.
    pub(super) fn spread(&self) -> f64 {
        self.erases[QUANTILES.len() - 1] - self.erases[0]
    }
}

/// A device that has lived to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Lived {
    pub(super) drive_writes: f64,
    pub(super) amplification: Amplification,
}

/// The paper's device with 1/`scale` of its blocks.
pub(super) fn geometry(scale: u32) -> Geometry {
    let logical = (LOGICAL_GIB * 1024 / scale).max(16);
    Geometry {
        page_bytes: Geometry::PAGE_BYTES_DEFAULT,
        pages_per_block: PAGES_PER_BLOCK,
        logical_pages: logical * PAGES_PER_BLOCK,
        blocks: logical * 10 / 9 + RESERVE_BLOCKS,
        reserve_blocks: RESERVE_BLOCKS,
    }
}

/// The device, preconditioned, before its life begins.
fn conditioned(scale: u32, leveling: Leveling, end: Option<Capacity>, seed: u64) -> Flash {
    let plain = Configuration::plain(geometry(scale));
    let endurance = end.map(|_| Endurance {
        erases: ENDURANCE,
        spread_percent: Endurance::SPREAD_PERCENT_DEFAULT,
    });
    let configuration = Configuration {
        leveling,
        opening: Opening::AtOnce,
        endurance,
        capacity: end.unwrap_or_default(),
        seed,
        ..plain
    };
    let mut flash = Flash::new(&configuration).expect("the paper's device is one");
    let plan = Preconditioning { random_passes_max: 3, ..Preconditioning::whole(&flash) };
    let outcome = flash.precondition(&plan, &mut Rng::new(seed));
    outcome.expect("a device outlives four drive writes");
    flash
}

/// Writes `runs` until `pages` are written; whether the device still lives.
fn write(flash: &mut Flash, runs: &mut Overwrites, pages: u64) -> bool {
    let until = flash.statistics().host_pages + pages;
    while flash.statistics().host_pages < until {
        let run = runs.next().expect("runs have no end");
        let first = LogicalPage(run.first as u32);
        if flash.write_run(first, run.count as u32, Stream::default()).is_err() {
            return false;
        }
    }
    true
}

/// Writes so many drive writes; blocks are never retired.
pub(super) fn age(
    scale: u32,
    design: Design,
    mut runs: Overwrites,
    (drive_writes, seed): (u32, u64),
) -> Aged {
    let mut flash = conditioned(scale, design.leveling, None, seed);
    let drive = u64::from(flash.logical_pages());
    let begin = flash.statistics();
    let windows = (0..drive_writes / WINDOW).map(|_| {
        let before = flash.statistics();
        assert!(write(&mut flash, &mut runs, drive * u64::from(WINDOW)), "nothing wears out");
        Amplification::of(&flash.statistics().since(&before))
    });
    let windows = windows.collect();
    let erases = flash.erases_sorted();
    let quantile = |part: f64| f64::from(erases[((erases.len() - 1) as f64 * part) as usize]);
    Aged {
        windows,
        whole: Amplification::of(&flash.statistics().since(&begin)),
        erases: QUANTILES.map(quantile),
    }
}

/// Writes until the device fails.
pub(super) fn live(
    scale: u32,
    design: Design,
    mut runs: Overwrites,
    (end, seed): (Capacity, u64),
) -> Lived {
    let mut flash = conditioned(scale, design.leveling, Some(end), seed);
    let drive = u64::from(flash.logical_pages());
    let begin = flash.statistics();
    write(&mut flash, &mut runs, drive * DRIVE_WRITES_MAX);
    let seen = flash.statistics().since(&begin);
    Lived {
        drive_writes: seen.host_pages as f64 / drive as f64,
        amplification: Amplification::of(&seen),
    }
}

impl Aged {
    /// Medians, figure by figure. Panics when there is nothing.
    pub(super) fn median(runs: &[Aged]) -> Aged {
        let windows = runs.iter().map(|run| run.windows.len()).min().unwrap_or_default();
        let window = |at: usize| {
            let all: Vec<_> = runs.iter().map(|run| run.windows[at]).collect();
            Amplification::median(&all)
        };
        let whole: Vec<_> = runs.iter().map(|run| run.whole).collect();
        Aged {
            windows: (0..windows).map(window).collect(),
            whole: Amplification::median(&whole),
            erases: std::array::from_fn(|at| median(runs.iter().map(|run| run.erases[at]))),
        }
    }
}

impl Lived {
    /// Medians, figure by figure. Panics when there is nothing.
    pub(super) fn median(runs: &[Lived]) -> Lived {
        let amplification: Vec<_> = runs.iter().map(|run| run.amplification).collect();
        Lived {
            drive_writes: median(runs.iter().map(|run| run.drive_writes)),
            amplification: Amplification::median(&amplification),
        }
    }
}

impl Amplification {
    fn median(runs: &[Amplification]) -> Amplification {
        Amplification {
            all: median(runs.iter().map(|run| run.all)),
            leveling: median(runs.iter().map(|run| run.leveling)),
            counted_twice: median(runs.iter().map(|run| run.counted_twice)),
        }
    }
}
