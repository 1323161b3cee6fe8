//! The experiment with workloads that are small enough for every test run.

use super::*;
use crate::Experiment;

/// Goal: every finding shows, also at a twentieth of the size; the same options give the same
/// figures. Method: one seed, twice.
#[test]
fn findings_show_at_a_twentieth() {
    let options = Options { runs: 1, ..Options::default() };
    let runs = measure(&options, 20, &mut |_| {});
    assert_eq!(runs, measure(&options, 20, &mut |_| {}));
    let document = document(&options, &runs);
    for claim in &document.claims {
        assert!(claim.holds, "{}: {}", claim.what, claim.found);
    }
    assert!(document.command.contains(Experiment::Esi.name()));
    assert!(document.sections.iter().all(|section| section.table.is_some()));
    assert!(document.html().contains("refused: 200000000000 bytes must be accepted within"));
}
