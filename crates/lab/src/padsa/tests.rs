//! The experiment's shape, on a road that is small enough for every test run.

use super::*;
use crate::Experiment;
use Architecture::{Layby, Padsa, Shared};

/// A sixteenth of the experiment's node and pace, for a quarter of its time.
fn small_road(seed: u64) -> Road {
    let whole = road(seed, None);
    let span = Nanos::from_secs(15);
    Road {
        stays: VehicleSpec { span, seed, ..VehicleSpec::DEFAULT }.draw(),
        pace: Pace {
            small_per_second: whole.pace.small_per_second / 8,
            large_per_second: whole.pace.large_per_second / 8,
            small_footprint: whole.pace.small_footprint / 16,
            ..whole.pace
        },
        slots: whole.slots.map(|slots| slots / 16),
        unit_blocks: 4,
        ..whole
    }
}

fn figures(workload: layby_trace::Workload, architecture: Architecture) -> Figures {
    Figures::of(&drive(&small_road(1), workload, architecture))
}

/// Goal: the paper's shape: critical services gain, more the more streams there are; normal reads
/// of A to C stay within 1 %. Method: a small road per workload.
#[test]
fn the_shape_is_the_papers() {
    let mut gains = Vec::new();
    for workload in [WORKLOADS[0], WORKLOADS[1], WORKLOADS[2]] {
        let (base, padsa) = (figures(workload, Shared), figures(workload, Padsa));
        gains.push(figures::change(base.read[0], padsa.read[0]));
        let normal = figures::change(base.read[1], padsa.read[1]);
        assert!(normal.abs() <= 1.0, "{workload:?}: normal reads changed by {normal} %");
        assert!(padsa.worn[0] < base.worn[0], "{workload:?}: streams reached NVM");
    }
    assert!(gains[0] < -30.0 && gains[1] < gains[0] && gains[2] < gains[1], "{gains:?}");
}

/// Goal: this project's allocation costs nobody anything. Method: workload D, writes counted.
#[test]
fn ours_is_no_worse_for_anybody() {
    let [base, padsa, ours] = [Shared, Padsa, Layby].map(|a| figures(WORKLOADS[3], a));
    assert!(ours.both[0] <= padsa.both[0], "{} against {}", ours.both[0], padsa.both[0]);
    assert!(ours.both[1] <= base.both[1] * 1.01, "{} against {}", ours.both[1], base.both[1]);
}

/// Goal: a document has a figure for everything it names. Method: made-up results.
#[test]
fn documents_are_complete() {
    let results = Results::default();
    let costs = cost::Costs::default();
    let document = document(&crate::Options::default(), &results, &costs);
    assert!(document.html().contains("Fig. 10") && !document.claims.is_empty());
    assert!(document.command.contains(Experiment::Padsa.name()));
    assert!(document.sections.iter().all(|section| section.table.is_some()));
}
