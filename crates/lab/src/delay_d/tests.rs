//! The experiment's shape, with a tenth of its rounds at the least scale.

use super::host::run as live;
use super::*;
use crate::Experiment;

const SMALL: Extent = Extent { scale: SCALE_MAX, files: FILES, rounds: 5 };

fn seen(scenario: Scenario, rule: Rule, discarding: Discarding, seed: u64) -> Seen {
    let machine = machine(SMALL, Placement::Onward, rule);
    live(&machine, scenario, discarding, (SMALL.scale.into(), seed))
}

/// Goal: the paper's shape in batch-erase: Delay-D copies about as much as discards at once, none
/// at all far more, and it sends far fewer. Method: five rounds.
#[test]
fn batches_are_as_in_the_paper() {
    let [disabled, enabled, delayed] =
        Discarding::ALL.map(|discarding| seen(Scenario::Batch, Rule::InOrder, discarding, 1));
    assert!(disabled.copies > 20.0 * delayed.copies, "{disabled:?} {delayed:?}");
    assert!(delayed.copies < 3.0 * enabled.copies + 2000.0, "{enabled:?} {delayed:?}");
    assert_eq!((disabled.sent, enabled.merged), (0.0, 0.0));
    assert!(enabled.sent > 3.2 * delayed.sent, "{} {}", enabled.sent, delayed.sent);
    assert!((300.0..500.0).contains(&enabled.sent), "a group each: {}", enabled.sent);
}

/// Goal: a device's lag follows from what it is sent, and is nobody's by decree: where only pages
/// cost, both sides are late alike; where commands cost so much that Enabled's are never done and
/// Delay-D's are, Enabled copies like Disabled. Method: single-erase, devices of either kind.
#[test]
fn lags_follow_from_commands() {
    let [disabled, enabled, delayed] =
        Discarding::ALL.map(|discarding| seen(Scenario::Single, Rule::InOrder, discarding, 1));
    assert!(disabled.copies > 20.0 * delayed.copies, "{disabled:?} {delayed:?}");
    assert!(enabled.copies <= delayed.copies, "at once, sooner is better");
    assert!(enabled.sent > 4.1 * delayed.sent, "{} {}", enabled.sent, delayed.sent);
    let both =
        |rule| [ENABLED, DELAYED].map(|at| seen(Scenario::Single, rule, Discarding::ALL[at], 1));
    let [pages_enabled, pages_delayed] = both(queued(0, PAGE_SHARED));
    assert!(pages_enabled.copies <= 1.1 * pages_delayed.copies + 2000.0);
    let [slow_enabled, slow_delayed] = both(queued(3200, Nanos::ZERO));
    let sum = |one: &Seen, other: &Seen| one.copies + other.copies;
    assert!(sum(&slow_enabled, &slow_delayed) > 5.0 * sum(&enabled, &delayed));
}

/// Goal: ranges are conserved: freed is sent, merged, cancelled or waiting. Method: Delay-D's run.
#[test]
fn ranges_are_conserved() {
    let seen = seen(Scenario::Single, Rule::InOrder, Discarding::Delayed, 3);
    let known = seen.sent + seen.merged + seen.cancelled;
    assert!((seen.freed - known).abs() <= seen.freed * 0.1, "{seen:?}");
}

/// Goal: the same seed gives the same figures. Method: twice, and another.
#[test]
fn seeds_decide() {
    let run = |seed| seen(Scenario::Batch, Rule::InOrder, Discarding::Delayed, seed);
    assert_eq!(run(1), run(1));
}

/// Goal: a document has a figure for everything it names. Method: made-up results.
#[test]
fn documents_are_complete() {
    let options = crate::Options { scale: Some(16), ..crate::Options::default() };
    let found = document(&options, SMALL, &Results::default());
    assert!(found.html().contains("Tables 2 to 4") && !found.claims.is_empty());
    assert!(found.command.contains(Experiment::DelayD.name()) && found.command.contains("16"));
    assert!(found.sections.iter().all(|section| section.table.is_some()));
    assert_eq!(RULES[PAPERS], queued(0, PAGE_SHARED));
}

fn made(draw: &mut dyn FnMut() -> f64) -> Results {
    let mut results = Results::default();
    let scenarios = results.scenarios.iter_mut().flatten().flatten();
    let others = results.rules.iter_mut().chain(&mut results.thresholds).flatten();
    for seen in scenarios.chain(others) {
        (seen.copies, seen.written, seen.seconds) = (draw() * 1e4, draw() * 1e4, draw() * 100.0);
        (seen.sent, seen.merged) = (draw() * 1e3, draw() * 1e3);
    }
    results
}

/// Goal: with several seeds every figure is the median of the seeds' own. Method: made-up figures
/// of two to four seeds.
#[test]
fn figures_are_medians_over_the_seeds() {
    let options = crate::Options::default();
    crate::document::tests::medians_of_made(
        made,
        |seeds| whole(&options, SMALL, seeds),
        |one| document(&options, SMALL, one),
    );
}
