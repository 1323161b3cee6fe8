//! The metrics through the binary, read by programs of others.
//!
//! How: a node with some traffic; promtool checks the older text, and Prometheus' own client for
//! Python parses both.

use layby_tests::{
    Connection, HttpRequest, Node, Request, promtool, python_script, run, small_levels,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tempfile::TempDir;

const OPEN: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

/// Both texts of a node that has served requests.
fn texts(dir: &Path) -> (String, String) {
    let node = Node::start(dir, &small_levels());
    let mut connection = Connection::open(&node.socket(), "vol0").expect("it serves");
    for block in 0..20 {
        let request = Request::Write { offset: block * 4096, data: vec![1; 4096], fua: false };
        assert!(connection.call(&request).is_ok_and(|result| result.is_ok()));
        let request = Request::Read { offset: block * 4096, length: 4096 };
        assert!(connection.call(&request).is_ok_and(|result| result.is_ok()));
    }
    let scrape = HttpRequest::new("GET", "/metrics");
    let plain = scrape.send(&node.http());
    let open = scrape.header("accept", OPEN).send(&node.http());
    assert!(plain.head.contains("text/plain; version=0.0.4"), "{}", plain.head);
    assert!(open.head.contains("application/openmetrics-text; version=1.0.0"), "{}", open.head);
    node.stop();
    (plain.body, open.body)
}

/// A series of a histogram without its `le`, and that label's value.
fn bucket_of(series: &str) -> Option<(String, &str)> {
    let (name, labels) = series.strip_suffix('}')?.split_once("_bucket{")?;
    let (before, rest) = labels.split_once("le=\"")?;
    let (end, behind) = rest.split_once('"')?;
    let labels = format!("{before}{behind}");
    Some((format!("{name}{{{}}}", labels.trim_matches(',')), end))
}

/// Goal: quantiles can be computed: each histogram ends in a bucket without an end, which counts
/// all. Method: of each family and series the last bucket beside its count, by hand; each family
/// that says it is a histogram has one, and that of volumes has counted.
#[test]
fn histograms_have_no_end() {
    let dir = TempDir::new().expect("a temporary folder");
    let (plain, open) = texts(&dir.path().join("node"));
    for text in [plain, open] {
        let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let histograms: BTreeSet<&str> =
            typed.filter_map(|line| line.strip_suffix(" histogram")).collect();
        let (mut lasts, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            if let Some((histogram, end)) = bucket_of(series) {
                lasts.insert(histogram, (end, value));
            }
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let counted = name.strip_suffix("_count").filter(|name| histograms.contains(name));
            counts.extend(counted.map(|name| (format!("{name}{{{labels}"), value)));
        }
        let counts: BTreeMap<_, _> =
            counts.into_iter().map(|(series, count)| (series, ("+Inf", count))).collect();
        assert_eq!(lasts, counts);
        let families = lasts.keys().filter_map(|series| series.split('{').next());
        assert_eq!(families.collect::<BTreeSet<_>>(), histograms);
        let reads = "layby_volume_latency_seconds{volume=\"vol0\",class=\"normal\",\
            operation=\"read\"}";
        let count = lasts.get(reads).and_then(|(_, count)| count.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count >= 20), "{lasts:?}");
        assert!(!text.contains("1.797"), "a bucket ends at the largest number");
    }
}

/// Goal: the older text passes promtool. Method: its exit code, and what it says.
#[test]
fn promtool_passes_the_metrics() {
    let Some(promtool) = promtool() else { return };
    let dir = TempDir::new().expect("a temporary folder");
    let (plain, _) = texts(&dir.path().join("node"));
    let file = dir.path().join("metrics");
    std::fs::write(&file, plain).expect("the test's own folder");
    let script = "exec \"$1\" check metrics < \"$2\"";
    let checked = run("sh", &["-c", script, "sh", &promtool, &file.to_string_lossy()]);
    assert!(checked.success, "{}{}", checked.stdout, checked.stderr);
}

/// Goal: both texts are what their formats say, with the same samples. Method: Prometheus' client
/// for Python, whose parser of OpenMetrics is strict.
#[test]
fn prometheus_parses_the_metrics() {
    let dir = TempDir::new().expect("a temporary folder");
    let (plain, open) = texts(&dir.path().join("node"));
    let files = [("plain", plain), ("open", open)].map(|(name, text)| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).expect("the test's own folder");
        file.to_string_lossy().into_owned()
    });
    let script = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families as lenient
plain = [s.name for f in lenient(open(sys.argv[1]).read()) for s in f.samples]
families = list(strict(open(sys.argv[2]).read()))
samples = [s.name for f in families for s in f.samples]
assert len(samples) > 200, len(samples)
assert sorted(plain) == sorted(samples), set(plain) ^ set(samples)
print(len(families))
"#;
    let Some(parsed) = python_script(script, &[&files[0], &files[1]]) else { return };
    assert!(parsed.success, "{}{}", parsed.stdout, parsed.stderr);
}

/// Samples of what only grows, by name and labels.
fn counters(node: &Node) -> BTreeMap<String, f64> {
    let text = HttpRequest::new("GET", "/metrics").send(&node.http()).body;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| line.rsplit_once(' ').expect("a sample has a value"));
    let grows = |series: &str| {
        let name = series.split('{').next().expect("it has a name");
        ["_total", "_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end))
    };
    let grown = samples.filter(|(series, _)| grows(series));
    grown.map(|(series, value)| (series.to_owned(), value.parse().expect("a number"))).collect()
}

/// The class's writes.
fn writes_of(counters: &BTreeMap<String, f64>, class: &str) -> Option<f64> {
    let series = "layby_class_requests_total";
    let labels = [("class", class), ("operation", "write")];
    let labels = labels.map(|(label, value)| format!("{label}=\"{value}\""));
    counters.get(&format!("{series}{{{}}}", labels.join(","))).copied()
}

/// Goal: a class's counters never fall: they keep what volumes did that have gone or moved. Method:
/// a volume with traffic moves to another class, has more, moves back and is deleted; all counters
/// after each step. A class that is made anew begins at nothing.
#[test]
fn counters_of_a_class_never_fall() {
    let dir = TempDir::new().expect("a temporary folder");
    let node = Node::start(&dir.path().join("node"), &small_levels());
    node.layby(&["class", "create", "films"]);
    node.volume_create("maps", "16MiB", "films");
    node.volume_create("stays", "16MiB", "films");
    let work = |volume: &str, writes: u64| {
        let mut connection = Connection::open(&node.socket(), volume).expect("it serves");
        for block in 0..writes {
            let request = Request::Write { offset: block * 4096, data: vec![1; 4096], fua: false };
            assert!(connection.call(&request).is_ok_and(|result| result.is_ok()));
            let request = Request::Read { offset: block * 4096, length: 4096 };
            assert!(connection.call(&request).is_ok_and(|result| result.is_ok()));
        }
    };
    let mut before = counters(&node);
    let mut expect = |films: Option<f64>, bulk: f64| {
        let now = counters(&node);
        for (series, value) in &now {
            assert!(before.get(series).is_none_or(|old| old <= value), "{series} fell to {value}");
        }
        assert_eq!((writes_of(&now, "films"), writes_of(&now, "bulk")), (films, Some(bulk)));
        before = now;
    };
    work("maps", 20);
    work("stays", 5);
    expect(Some(25.0), 0.0);
    node.layby(&["volume", "set", "maps", "--class", "bulk"]);
    expect(Some(25.0), 0.0);
    work("maps", 7);
    work("stays", 1);
    expect(Some(26.0), 7.0);
    node.layby(&["volume", "set", "maps", "--class", "films"]);
    work("maps", 2);
    expect(Some(28.0), 7.0);
    node.layby(&["volume", "delete", "maps", "--data", "delete"]);
    expect(Some(28.0), 7.0);
    node.volume_create("maps", "16MiB", "films");
    work("maps", 1);
    expect(Some(29.0), 7.0);
    for volume in ["maps", "stays"] {
        node.layby(&["volume", "delete", volume]);
    }
    expect(Some(29.0), 7.0);
    node.layby(&["class", "delete", "films"]);
    expect(None, 7.0);
    node.layby(&["class", "create", "films"]);
    expect_anew(&counters(&node));
    node.stop();
}

fn expect_anew(counters: &BTreeMap<String, f64>) {
    let own = counters.iter().filter(|(series, _)| series.contains("class=\"films\""));
    own.for_each(|(series, value)| assert_eq!(*value, 0.0, "{series}"));
    assert_eq!(writes_of(counters, "films"), Some(0.0));
}
