//! From what a run counted to the figures that the paper prints.
//!
//! How: services are summed by side, times divided by blocks; medians are taken figure by figure.
//! Invariant: a figure about nothing is no number, so that it is shown as a dash and no claim of it
//! holds. Cost: a pass over the services.

use super::road::{Side, Sums};
use layby_trace::Service;

/// The figures of one workload under one architecture; times in nanoseconds per block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Mean of reads: critical, normal, all.
    pub(super) read: [f64; 3],
    /// Mean of writes.
    pub(super) write: [f64; 3],
    /// Mean of both.
    pub(super) both: [f64; 3],
    /// Hit ratio of reads: critical, normal, all.
    pub(super) hits: [f64; 3],
    /// Critical reads that DRAM, NVM, SSD and home answered, as parts of all.
    pub(super) found: [f64; 4],
    /// Blocks written to NVM and to SSD.
    pub(super) worn: [f64; 2],
    /// Mean of reads and writes of S4 alone; no number where it does not run.
    pub(super) other: f64,
}

const SIDES: [Side; 3] = [Side::Critical, Side::Normal, Side::All];

impl Figures {
    pub(super) fn of(sums: &Sums) -> Figures {
        let sides = SIDES.map(|side| sums.side(side));
        let mut figures = Figures {
            read: std::array::from_fn(|i| ratio(sides[i].read_ns, sides[i].blocks_read())),
            write: std::array::from_fn(|i| ratio(sides[i].write_ns, sides[i].blocks_written())),
            hits: std::array::from_fn(|i| {
                let reads = sides[i].blocks_read();
                ratio((reads - sides[i].misses) as f64, reads)
            }),
            worn: [1, 2].map(|level| sums.report.levels[level].writes as f64),
            ..Figures::default()
        };
        figures.both = std::array::from_fn(|i| both(&sides[i]));
        let critical = &sides[0];
        let reads = critical.blocks_read();
        for level in 0..3 {
            figures.found[level] = ratio(critical.hits[level] as f64, reads);
        }
        figures.found[3] = ratio(critical.misses as f64, reads);
        figures.other = sums.services.get(&Service::Other).map_or(f64::NAN, both);
        figures
    }

    /// Medians, figure by figure. Panics when there is nothing.
    pub(super) fn median(runs: &[Figures]) -> Figures {
        let pick = |figure: &dyn Fn(&Figures) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[(values.len() - 1) / 2].midpoint(values[values.len() / 2])
        };
        Figures {
            read: std::array::from_fn(|i| pick(&|f| f.read[i])),
            write: std::array::from_fn(|i| pick(&|f| f.write[i])),
            both: std::array::from_fn(|i| pick(&|f| f.both[i])),
            hits: std::array::from_fn(|i| pick(&|f| f.hits[i])),
            found: std::array::from_fn(|i| pick(&|f| f.found[i])),
            worn: std::array::from_fn(|i| pick(&|f| f.worn[i])),
            other: pick(&|f| f.other),
        }
    }
}

/// What comes to each of `blocks`; no number where there are none.
fn ratio(sum: f64, blocks: u64) -> f64 {
    if blocks == 0 { f64::NAN } else { sum / blocks as f64 }
}

fn both(report: &layby_sim::levels::VolumeReport) -> f64 {
    ratio(report.read_ns + report.write_ns, report.blocks_read() + report.blocks_written())
}

/// The change from `base` to `value`, in percent; no number where `base` is nothing.
pub(super) fn change(base: f64, value: f64) -> f64 {
    (value / base - 1.0) * 100.0
}
