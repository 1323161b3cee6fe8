//! Documents as people get them.

use super::*;

fn document() -> Document {
    let mut table = Table::new(&["workload", "ours (µs)"]);
    table.push(vec!["A & B".into(), "1.5".into()]);
    let series = |name: &str, values: &[f64]| Series::new(name, values.iter().copied());
    let chart = Chart {
        axis: "µs".into(),
        across: "workload & size".into(),
        groups: vec!["A".into(), "B <2>".into()],
        series: vec![series("paper", &[1.0, -2.0]), series("ours", &[1.5, 0.0])],
        left_out: vec!["the <third>".into()],
    };
    Document {
        title: "A <test>".into(),
        source: "nowhere".into(),
        command: "layby lab run test".into(),
        claims: vec![Claim::new("less", Expected::effect(1.0, 3.0, Unit::Count), 2.0)],
        measurements: vec![Measurement::new("more", "wider", "9")],
        origin: Origin { version: "1.2.3".into(), commit: "abc".into(), date: "today".into() },
        sections: vec![Section {
            heading: "First".into(),
            text: vec!["Words.".into()],
            chart: Some(chart),
            table: Some(table),
        }],
        ..Document::default()
    }
}

/// Goal: a page is whole, names everything, and no text breaks out of its place. Method: a document
/// with characters that HTML gives a meaning; every opened element is closed.
#[test]
fn a_page_is_whole() {
    let page = document().html();
    assert!(!page.contains("<test>") && !page.contains("<2>"), "text became markup");
    for tag in ["html", "head", "body", "table", "thead", "tbody", "tr", "td", "th", "svg", "p"] {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "<{tag}>");
        assert!(open > 0, "<{tag}> is missing");
    }
    for word in [
        "workload &amp; size",
        "not drawn: the &lt;third&gt;",
        "A &amp; B",
        "1.5",
        "paper",
        "Words.",
        "layby lab run test",
        ">no<",
        "1.2.3",
        "wider",
    ] {
        assert!(page.contains(word), "{word} is missing");
    }
    let others = page.replace("http://www.w3.org/", "");
    assert!(!others.contains("http://") && !others.contains("https://"), "it refers to others");
}

/// Goal: a chart without values, with the same one everywhere, or with one that is no number, is
/// drawn. Method: each.
#[test]
fn empty_charts_are_drawn() {
    for values in [vec![], vec![0.0, 0.0], vec![f64::NAN, 1.0]] {
        let series = vec![Series::new("none", values)];
        let groups = vec!["A".into(), "B".into()];
        let svg = Chart { axis: "µs".into(), groups, series, ..Chart::default() }.svg();
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"), "{svg}");
    }
}

/// Goal: no claim exists that cannot fail. Method: tolerances as wide as the effect, without a
/// second side, of nothing, and of no number.
#[test]
fn a_claim_can_fail() {
    let unit = Unit::Percent;
    let sound = Expected::effect(18.0, 0.0, unit);
    assert!(sound.is_sound() && sound.within(17.9).is_sound());
    for unsound in [
        sound.within(18.0),
        sound.within(0.0),
        sound.within(f64::INFINITY),
        Expected::effect(1.0, 1.0, unit),
        Expected::alike(0.0, 5.0, 5.0, unit),
        Expected::effect(f64::NAN, 0.0, unit),
    ] {
        assert!(!unsound.is_sound(), "{unsound:?}");
        assert!(std::panic::catch_unwind(|| Claim::new("none", unsound, 1.0)).is_err());
    }
    let held = |found| Claim::new("c", sound, found).holds();
    assert!(held(18.0) && held(16.3) && held(19.7));
    assert!(!held(16.1) && !held(19.9) && !held(0.0) && !held(f64::NAN) && !held(f64::INFINITY));
}

/// Goal: seeds leave their spread upon claims, measurements and bars. Method: three documents.
#[test]
fn seeds_spread() {
    let seed = |found: f64| Document {
        claims: vec![Claim::new("c", Expected::effect(1.0, 0.0, Unit::Times), found)],
        measurements: vec![
            Measurement::new("m", "", format!("{found:.1} % of 12")),
            Measurement::new("always", "", "on 3 of 12"),
            Measurement::new("counted", "", format!("{found} of 9 links and seeds")).of_all_seeds(),
        ],
        sections: vec![Section {
            chart: Some(Chart {
                axis: "µs".into(),
                groups: vec!["A".into()],
                series: vec![Series::new("ours", [found])],
                ..Chart::default()
            }),
            ..Section::default()
        }],
        ..Document::default()
    };
    let whole = seed(2.0).over_seeds(&[seed(1.0), seed(2.0), seed(5.0)]);
    assert_eq!(whole.claims[0].spread(), Some((1.0, 5.0)));
    assert!(whole.claims[0].found().contains("[1.000x to 5.00x]"), "{}", whole.claims[0].found());
    assert_eq!(whole.measurements[0].found_with_spread(), "2.0 % of 12 [1.0..5.0 % of 12]");
    assert_eq!(whole.measurements[1].found_with_spread(), "on 3 of 12");
    assert_eq!(whole.measurements[2].found_with_spread(), "2 of 9 links and seeds");
    assert!(whole.html().contains("[1.0..5.0 % of 12]"));
    let chart = whole.sections[0].chart.as_ref().expect("it has one");
    assert_eq!(chart.series[0].spread, [(1.0, 5.0)]);
    assert_eq!(seed(2.0).over_seeds(&[seed(2.0)]), seed(2.0));
}

/// Goal: figures of several seeds are the medians of the seeds' own, whatever the medians of what
/// they are made of would give, and verdicts follow. Method: two seeds as a run had them, beside a
/// document that says otherwise.
#[test]
fn figures_are_medians_of_the_seeds_own() {
    let seed = |found: f64, share: &str| Document {
        claims: vec![Claim::new("c", Expected::effect(-14.0, 0.0, Unit::Percent), found)],
        measurements: vec![Measurement::new("m", "", share)],
        ..Document::default()
    };
    let seeds = [seed(-13.81, "-30.6 %; on a"), seed(-14.06, "-30.9 %; on b")];
    let whole = seed(-12.16, "-30.5 %; on c").over_seeds(&seeds);
    medians_of(&whole, &seeds);
    let claim = &whole.claims[0];
    assert!((claim.found_figure() + 13.935).abs() < 1e-9 && claim.holds(), "{claim:?}");
    assert_eq!(whole.measurements[0].found_with_spread(), "-30.75 %; on a | on b [-30.9..-30.6 %]");
}

/// Asserts that claims, measurements and bars are medians of the seeds' own, within their range.
pub(crate) fn medians_of(whole: &Document, seeds: &[Document]) {
    let checked = |found: f64, spread: Option<(f64, f64)>, own: Vec<f64>, what: &str| {
        let middle = median(own.iter().copied());
        assert_eq!(found.to_bits(), middle.to_bits(), "{what}: {found}, not {middle} of {own:?}");
        assert!(
            !found.is_finite() || spread.is_some_and(|(low, high)| (low..=high).contains(&found)),
            "{what}: {found} of {own:?}"
        );
    };
    for (at, claim) in whole.claims.iter().enumerate() {
        let own = seeds.iter().map(|seed| seed.claims[at].found_figure()).collect();
        checked(claim.found_figure(), claim.spread(), own, claim.what());
    }
    for (at, one) in whole.measurements.iter().enumerate().filter(|(_, one)| !one.counts_seeds()) {
        let own: Vec<&str> = seeds.iter().map(|seed| &*seed.measurements[at].found).collect();
        assert_eq!(one.found, range::of(&own).median, "{}", one.what);
    }
    for (at, section) in whole.sections.iter().enumerate() {
        for (place, series) in
            section.chart.iter().flat_map(|chart| chart.series.iter().enumerate())
        {
            for (group, found) in series.values.iter().enumerate() {
                let of = |seed: &Document| {
                    let chart = seed.sections[at].chart.as_ref().expect("all have it");
                    chart.series[place].values[group]
                };
                let own = seeds.iter().map(of).collect();
                checked(*found, series.spread.get(group).copied(), own, &section.heading);
            }
        }
    }
}

/// The same for made-up figures of two to four seeds, by the whole document and that of each seed.
pub(crate) fn medians_of_made<T>(
    made: impl Fn(&mut dyn FnMut() -> f64) -> T,
    whole: impl Fn(&[T]) -> Document,
    own: impl Fn(&T) -> Document,
) {
    for (runs, seed) in [(2, 77), (3, 78), (4, 79)] {
        let mut rng = layby_types::Rng::new(seed);
        let mut draw = || 0.5 + rng.below(1000) as f64 / 1000.0;
        let seeds: Vec<T> = (0..runs).map(|_| made(&mut draw)).collect();
        let own: Vec<Document> = seeds.iter().map(&own).collect();
        medians_of(&whole(&seeds), &own);
    }
}

/// Goal: a figure that is no number is a dash, and no bound of a spread. Method: a claim of seeds
/// some or all of which have none.
#[test]
fn what_is_no_number_is_a_dash() {
    let seed = |found: f64| Document {
        claims: vec![Claim::new("c", Expected::effect(1.0, 0.0, Unit::Times), found)],
        ..Document::default()
    };
    let none = seed(f64::NAN).over_seeds(&[seed(f64::NAN), seed(f64::INFINITY)]);
    assert_eq!((none.claims[0].found(), none.claims[0].spread()), ("–".to_owned(), None));
    let some = seed(f64::NAN).over_seeds(&[seed(f64::NAN), seed(2.0)]);
    assert_eq!(some.claims[0].found(), "– [2.00x to 2.00x]");
    assert_eq!((figure(f64::NAN, 3), figure(0.5, 3)), ("–".to_owned(), "0.500".to_owned()));
}

/// Goal: the legend lies above the plot, however many series there are. Method: six long names; no
/// rectangle of a bar begins above the lowest mark of the legend.
#[test]
fn a_legend_covers_nothing() {
    let names = (0..6).map(|at| format!("a scheme with a long name, number {at}"));
    let series: Vec<Series> = names.map(|name| Series::new(name, [5.0, 5.0])).collect();
    let groups = vec!["A".into(), "B".into()];
    let chart = Chart { axis: "µs".into(), groups, series, ..Chart::default() };
    let svg = chart.svg();
    let rectangles: Vec<(f64, f64)> = svg
        .split("<rect ")
        .skip(2)
        .map(|text| {
            let number = |key: &str| -> f64 {
                let from = text.find(key).expect("a rectangle has it") + key.len();
                text[from..].split('"').next().expect("it ends").parse().expect("a number")
            };
            (number("y=\""), number("height=\""))
        })
        .collect();
    let (marks, bars) = rectangles.split_at(6);
    assert_eq!(bars.len(), 12);
    let lowest = marks.iter().map(|(y, height)| y + height).fold(0.0, f64::max);
    assert!(bars.iter().all(|(y, _)| *y > lowest), "{marks:?} {bars:?}");
}
