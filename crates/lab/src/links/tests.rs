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
        let ends = row.spread(|one| one.relative(ForecastKind::Chosen, 0));
        let (least, greatest) = ends.expect("drawn links are not even");
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
    let trace = link(rates);
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
    let links = vec![RecordedLink::new("mine.csv".into(), trace).expect("it is long enough")];
    let files = vec![("--link".to_owned(), "some/mine.csv".to_owned())];
    let options = Options { runs: 1, links, files, ..Options::default() };
    let rows = measure(&options, 20, &mut |_| {});
    let document = document(&options, &rows);
    assert!(document.command.ends_with(" --link some/mine.csv"));
    assert!(document.command.contains(Experiment::Links.name()));
    assert!(document.sections.iter().all(|section| section.table.is_some()));
    let html = document.html();
    assert!(html.contains("mine.csv") && html.contains("Admission") && html.contains("satellite"));
    // The paper prints no figure of a forecast, and what this code printed once is no claim.
    assert!(document.claims.is_empty());
    assert!(document.measurements.len() > 2 * LinkShape::ALL.len());
}

/// Seconds of a link.
fn link(rates: impl Iterator<Item = u64>) -> LinkTrace {
    let sample = |(step, bytes_per_second)| layby_trace::LinkSample {
        at: layby_types::Nanos::from_secs(step),
        bytes_per_second,
        round_trip: None,
    };
    let samples: Vec<_> = (0..).zip(rates).map(sample).collect();
    let length = layby_types::Nanos::from_secs(samples.len() as u64);
    LinkTrace { samples, length }
}

/// Goal: a link that says nothing is refused, and no figure without a meaning is printed as a
/// number. Method: links that are short, dead, constant and of unequal intervals; one that naive
/// foresees five intervals ahead without an error; one that is dead but for its first interval.
#[test]
fn links_without_a_meaning_have_no_figures() {
    let refused = |trace| RecordedLink::new("link".into(), trace).expect_err("it says nothing");
    assert_eq!(refused(link(1..=180)), Unfit::Short { intervals: 180, least: 181 });
    let even = |bytes_per_second| Unfit::Even { bytes_per_second };
    assert_eq!(refused(link((0..500).map(|_| 0))), even(0));
    assert_eq!(refused(link((0..500).map(|_| 7))), even(7));
    // Half as long every tenth time; times that were rounded to a microsecond pass.
    let spaced = |nanos: fn(u64) -> u64| {
        let mut trace = link((0..500).map(|step| 1_000_000 * (1 + step % 5)));
        (0..)
            .zip(&mut trace.samples)
            .for_each(|(step, one)| one.at = layby_types::Nanos(nanos(step)));
        RecordedLink::new("link".into(), trace)
    };
    let halved = spaced(|step| 1_000_000_000 * step - 500_000_000 * (step / 10));
    let second = layby_types::Nanos::from_secs(1);
    let uneven = Unfit::Uneven { shortest: layby_types::Nanos(second.0 / 2), longest: second };
    assert_eq!(halved.err(), Some(uneven));
    assert_eq!(spaced(|step| 333_333_333 * step / 1000 * 1000).err(), None);
    let fives = link((0..500).map(|step| 1_000_000 * (1 + step % 5)));
    let once = link((0..500).map(|step| u64::from(step == 0)));
    let links = [("fives", fives), ("once", once)].map(|(name, trace)| {
        RecordedLink::new(name.into(), trace).expect("it is long and not even")
    });
    let options = Options { runs: 2, links: links.into(), ..Options::default() };
    let rows = measure(&options, 20, &mut |_| {});
    let html = document(&options, &rows).html();
    assert!(html.contains("<td>–</td>"), "a figure without a meaning is a dash");
    for odd in ["NaN", ">inf", "inf to", "17976931348623", "2.2e-308"] {
        assert!(!html.contains(odd), "{odd} in the report");
    }
}

/// Goal: with several seeds every figure is the median of the seeds' own. Method: two and four
/// seeds of short links.
#[test]
fn figures_are_medians_over_the_seeds() {
    for runs in [2, 4] {
        let options = Options { runs, ..Options::default() };
        let rows = measure(&options, 20, &mut |_| {});
        let of = |at| document(&options, &rows.iter().map(|row| row.seed(at)).collect::<Vec<_>>());
        let own: Vec<_> = (0..runs as usize).map(of).collect();
        crate::document::tests::medians_of(&whole(&options, &rows), &own);
    }
}
