//! Documents as people get them.

use super::*;

fn document() -> Document {
    let mut table = Table::new(&["workload", "ours (µs)"]);
    table.push(vec!["A & B".into(), "1.5".into()]);
    let series = |name: &str, values: &[f64]| Series { name: name.into(), values: values.into() };
    let chart = Chart {
        axis: "µs".into(),
        groups: vec!["A".into(), "B <2>".into()],
        series: vec![series("paper", &[1.0, -2.0]), series("ours", &[1.5, 0.0])],
    };
    Document {
        title: "A <test>".into(),
        source: "nowhere".into(),
        command: "layby lab run test".into(),
        claims: vec![Claim {
            what: "less".into(),
            expected: "1".into(),
            found: "2".into(),
            holds: false,
        }],
        sections: vec![Section {
            heading: "First".into(),
            text: vec!["Words.".into()],
            chart: Some(chart),
            table: Some(table),
        }],
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
    for word in ["A &amp; B", "1.5", "paper", "Words.", "layby lab run test", ">no<"] {
        assert!(page.contains(word), "{word} is missing");
    }
    assert!(!page.contains("http://") || page.contains("www.w3.org"), "it refers to nothing else");
}

/// Goal: a chart without values, or with the same one everywhere, is drawn. Method: both.
#[test]
fn empty_charts_are_drawn() {
    for values in [vec![], vec![0.0, 0.0]] {
        let series = vec![Series { name: "none".into(), values }];
        let groups = vec!["A".into(), "B".into()];
        let svg = Chart { axis: "µs".into(), groups, series }.svg();
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
    }
}
