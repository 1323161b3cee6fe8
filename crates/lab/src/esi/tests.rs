//! The volume's code in virtual time, and the document.

use super::*;
use crate::Experiment;

fn small() -> Plan {
    let plan = plan(&LINKS[1], 1);
    Plan { files: 40, file_bytes: MB, journal_bytes: 64 << 20, ..plan }
}

/// Goal: time is what the models say: bytes take what the link carries them in, and not less.
/// Method: 40 MB over two links, one ten times as fast.
#[test]
fn the_link_decides() {
    let slow = live(&small());
    let fast = live(&Plan { link_bytes_per_second: 125 * MB, ..small() });
    assert_eq!(slow.payload, 40 * MB);
    assert!(slow.put >= slow.blocks && slow.blocks >= slow.payload, "{slow:?}");
    let least = slow.put as f64 / 12.5e6;
    assert!((least..1.5 * least).contains(&slow.stored.as_secs_f64()), "{slow:?}");
    assert!(fast.stored < slow.stored && fast.written <= slow.written, "{fast:?}");
    assert_eq!(slow, live(&small()), "the same seed gives the same");
}

/// Goal: a burst beyond the journal slows its writer down, and one within it does not. Method:
/// 40 MB through journals of 16 MiB and of 64.
#[test]
fn bursts_wait_for_the_link() {
    let burst = Plan { depth: 1, ..small() };
    let (wide, narrow) = (live(&burst), live(&Plan { journal_bytes: 16 << 20, ..burst }));
    assert!(wide.longest_wait < Nanos::from_millis(100), "{wide:?}");
    assert!(narrow.longest_wait > Nanos::from_millis(300), "{narrow:?}");
    assert!(narrow.written > wide.written && narrow.payload == wide.payload);
}

/// Goal: every finding has a line, no figure is printed as Rust does, and the same options give the
/// same figures. Method: one seed at a twentieth, twice.
#[test]
fn documents_are_complete() {
    let options = Options { runs: 1, ..Options::default() };
    let mut runs = vec![Run::default()];
    for (link, row) in runs[0].workloads.iter_mut().enumerate() {
        row[0] = Step::Workload(link, 0).run(100, 1);
    }
    let document = document(&options, &runs);
    for finding in 1..=6 {
        let name = format!("finding {finding}");
        assert!(document.measurements.iter().any(|one| one.what.contains(&name)), "{name}");
    }
    assert!(document.command.contains(Experiment::Esi.name()));
    assert!(document.sections.iter().all(|section| section.table.is_some()));
    let html = document.html();
    let debug = [" { ", "Nanos(", "Bundles", "Some("];
    assert!(debug.iter().all(|text| !html.contains(text)), "debug text");
}

/// Goal: with several seeds every figure is the median of the seeds' own. Method: made-up outcomes
/// of two to four seeds.
#[test]
fn figures_are_medians_over_the_seeds() {
    let options = Options::default();
    for (count, seed) in [(2, 77), (3, 78), (4, 79)] {
        let mut rng = layby_types::Rng::new(seed);
        let mut runs = vec![Run::default(); count];
        for run in &mut runs {
            for outcome in run.workloads.iter_mut().flatten().chain(&mut run.cases) {
                let mut draw = || MB + rng.below(MB);
                (outcome.payload, outcome.put) = (draw(), draw());
                outcome.stored = Nanos(draw() * 1000);
                outcome.longest_wait = Nanos(draw() * 1000);
            }
        }
        let own: Vec<_> =
            runs.iter().map(|run| document(&options, std::slice::from_ref(run))).collect();
        crate::document::tests::medians_of(&document(&options, &runs), &own);
    }
}
