//! Published traces, read where they lie, against answers that are known of them.
//!
//! How: `LAYBY_TRACES` or `../shared/traces` beside the repository names the folder; a trace that
//! is not there is skipped with a line that says so. The answers are those of other simulators, to
//! four places. Cost: seconds.
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use layby_sim::policy::AdmissionKind;
use layby_sim::policy::curve::Counted;
use layby_sim::policy::registry::EvictionKind;
use layby_sim::single::{Batch, CurveKind, CurveRun, Future, References, Replay, build};
use layby_trace::{ReadOptions, Reader, open};
use layby_types::BlockSize;
use std::path::{Path, PathBuf};

const OLTP: &str = "arc/OLTP.lis.zst";
const W106: &str = "caffeine/cloud_physics-w106.trace.xz";
const CLOUD: &str = "cloudphysics/cloudPhysicsIO.oracleGeneral.bin";

/// Half a unit in the fourth place.
const EXACT: f64 = 0.000_05;

fn published(name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("LAYBY_TRACES").map_or_else(beside, PathBuf::from);
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: `{}` is not there (LAYBY_TRACES names its folder)", path.display());
    None
}

fn each_batch(path: &Path, mut take: impl FnMut(&Batch)) {
    let format = path.to_string_lossy().contains("w106").then_some(layby_trace::Format::U32Be);
    let mut trace = open(path, format, ReadOptions::default()).expect("the trace opens");
    let mut references = References::new(trace.unit(), BlockSize::DEFAULT);
    let mut records = Vec::new();
    while trace.fill(&mut records).expect("the trace is sound") > 0 {
        references.cut(&records, &mut take).expect("there is one volume");
    }
}

fn level(kind: EvictionKind, slots: u32) -> Box<dyn Replay> {
    build(kind, AdmissionKind::All, slots, 1)
}

#[track_caller]
fn assert_near(found: Option<f64>, known: f64, bound: f64) {
    let found = found.expect("there are requests");
    assert!((found - known).abs() <= bound, "{found:.6}, known {known}");
}

/// Goal: OLTP has its known miss ratios. Method: LRU exactly, ARC as published within 0.005, at
/// five sizes in one pass; the curve is what LRU counts.
#[test]
fn oltp_under_lru_and_arc() {
    let Some(path) = published(OLTP) else { return };
    let known = [
        (1000, 0.6717, 0.6105),
        (2000, 0.5753, 0.5392),
        (5000, 0.4635, 0.4475),
        (10_000, 0.3930, 0.3813),
        (15_000, 0.3537, 0.3460),
    ];
    let mut exact = CurveRun::new(CurveKind::Exact);
    let of = |(slots, ..): (u32, f64, f64)| {
        [EvictionKind::Lru, EvictionKind::Arc].map(|kind| level(kind, slots))
    };
    let mut levels = known.map(of);
    each_batch(&path, |batch| {
        exact.on_batch(batch).expect("few blocks");
        levels.iter_mut().flatten().for_each(|level| level.on_batch(batch));
    });
    let curve = exact.curve();
    for ((slots, lru, arc), levels) in known.into_iter().zip(levels) {
        let counts = levels[0].counts();
        assert_eq!(counts.requests, [914_145, 0]);
        assert_eq!(curve.hits(Counted::Both, slots.into()) as u64, counts.hits_all());
        assert_near(counts.miss_ratio(), lru, EXACT);
        assert_near(levels[1].counts().miss_ratio(), arc, 0.005);
    }
}

/// Goal: Belady's has its known miss ratios. Method: two traces at two sizes, and what no policy
/// beats.
#[test]
fn belady_on_two_traces() {
    for (name, known) in
        [(OLTP, [(1868, 0.4024), (18_688, 0.2379)]), (W106, [(2751, 0.1508), (27_517, 0.0606)])]
    {
        let Some(path) = published(name) else { continue };
        let mut future = Future::default();
        each_batch(&path, |batch| future.add(batch).expect("the trace is short"));
        let future = future.known();
        for (slots, miss_ratio) in known {
            assert_near(future.replay(slots).miss_ratio(), miss_ratio, EXACT);
        }
    }
}

/// Goal: two more traces have LRU's known miss ratios. Method: one and ten percent of the
/// footprint, beside the curve.
#[test]
fn lru_on_two_traces() {
    for (name, known) in
        [(W106, [(2751, 0.2021), (27_517, 0.0823)]), (CLOUD, [(0, 0.8380), (0, 0.8049)])]
    {
        let Some(path) = published(name) else { continue };
        let mut exact = CurveRun::new(CurveKind::Exact);
        each_batch(&path, |batch| exact.on_batch(batch).expect("few blocks"));
        let curve = exact.curve();
        for (part, (slots, miss_ratio)) in [100, 10].into_iter().zip(known) {
            let slots = if slots == 0 { exact.blocks() / part } else { slots };
            let mut lru = level(EvictionKind::Lru, slots);
            each_batch(&path, |batch| lru.on_batch(batch));
            assert_near(lru.counts().miss_ratio(), miss_ratio, EXACT);
            assert_eq!(curve.hits(Counted::Both, slots.into()) as u64, lru.counts().hits_all());
        }
    }
}
