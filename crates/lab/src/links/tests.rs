//! The experiment on links that are short enough for every test run.

use super::*;
use crate::Experiment;
use policy::ForecastKind;

/// Goal: one interval ahead the chosen forecast errs less than naive on every shape; the same
/// options give the same figures. Method: a sixth of the usual lengths, two seeds.
#[test]
fn the_chosen_forecast_beats_naive() {
    let options = Options { runs: 2, ..Options::default() };
    let rows = measure(&options, 6, &mut |_| {});
    assert_eq!(rows.len(), LinkShape::ALL.len());
    for row in &rows {
        let (least, greatest) = row.spread(|one| one.relative(ForecastKind::Chosen, 0));
        assert!(0.4 < least && greatest < 1.0, "{}: {least} to {greatest}", row.name);
        let requests = row.runs[0].admissions(ForecastKind::Chosen).all();
        assert!(requests > 50.0, "{}: {requests} requests", row.name);
    }
    let again = measure(&options, 6, &mut |_| {});
    assert!(rows.iter().zip(&again).all(|(one, other)| one.runs == other.runs));
}

/// Goal: figures are what they say. Method: a link that alternates, where naive is always off by
/// the difference and an AR soon by next to nothing, and every request that needs less than the
/// mean is met.
#[test]
fn figures_are_as_defined() {
    let rates = (0..2000).map(|step| if step % 2 == 0 { 1_000_000 } else { 3_000_000 });
    let sample = |(step, bytes_per_second)| layby_trace::LinkSample {
        at: layby_types::Nanos::from_secs(step),
        bytes_per_second,
        round_trip: None,
    };
    let samples = (0..).zip(rates).map(sample).collect();
    let trace = LinkTrace { samples, length: layby_types::Nanos::from_secs(2000) };
    let measured = Measured::of(&trace, 1);
    assert_eq!(measured.mean, 2e6);
    assert!((measured.variation - 0.5).abs() < 1e-3 && measured.correlation < -0.99);
    assert_eq!(measured.errors[0][0], 2e6);
    assert!(measured.relative(ForecastKind::Ar, 0) < 0.05);
    assert!(measured.relative(ForecastKind::Chosen, 0) < 0.05);
    let (naive, chosen) =
        (measured.admissions(ForecastKind::Naive), measured.admissions(ForecastKind::Chosen));
    assert!(chosen.wrong() < 0.1 && naive.wrong() > 0.2, "{chosen:?} {naive:?}");
    let chosen: f64 = measured.chosen.iter().sum();
    assert!((chosen - 1.0).abs() < 1e-9);
}

/// Goal: a document has a table for everything, recorded links are in it, and it says how it was
/// made. Method: one short link beside the drawn ones.
#[test]
fn documents_are_complete() {
    let trace = draw(LinkShape::LteStatic, 9, 20);
    let links = vec![RecordedLink { name: "mine.csv".into(), trace }];
    let options = Options { runs: 1, links, ..Options::default() };
    let rows = measure(&options, 20, &mut |_| {});
    let document = document(&options, &rows);
    assert!(document.command.ends_with("--link FILE"));
    assert!(document.command.contains(Experiment::Links.name()));
    assert!(document.sections.iter().all(|section| section.table.is_some()));
    let html = document.html();
    assert!(html.contains("mine.csv") && html.contains("Admission") && html.contains("satellite"));
    assert_eq!(document.claims.len(), 2 * LinkShape::ALL.len());
}
