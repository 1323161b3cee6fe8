//! Published traces, read where they lie, against what is known of them.
//!
//! How: `LAYBY_TRACES` or `../shared/traces` beside the repository names the folder; a trace that
//! is not there is skipped with a line that says so. Cost: seconds, most of it in sets of blocks.
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use layby_trace::{Format, ReadOptions, Reader, Record, Unit, open};
use layby_types::Operation;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The published trace `name`, or `None` and a reason.
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

fn all(path: &Path, format: Option<Format>) -> (Format, Unit, Vec<Record>) {
    let mut trace = open(path, format, ReadOptions::default()).expect("the trace opens");
    let (mut records, mut batch) = (Vec::new(), Vec::new());
    while trace.fill(&mut batch).expect("the trace is sound") > 0 {
        records.extend_from_slice(&batch);
    }
    assert_eq!(trace.position(), trace.file_bytes(), "the whole file is read");
    (trace.format(), trace.unit(), records)
}

fn distinct(records: &[Record]) -> usize {
    records.iter().map(|record| record.offset).collect::<HashSet<_>>().len()
}

/// Goal: ranges of the ARC traces are expanded as the paper counts them. Method: references and
/// distinct blocks of three traces, through zstd.
#[test]
fn arc_lists_have_their_known_sizes() {
    for (name, references, blocks) in [
        ("arc/OLTP.lis.zst", 914_145, 186_880),
        ("arc/P3.lis.zst", 3_912_296, 762_543),
        ("arc/P2.lis.zst", 12_729_495, 913_347),
    ] {
        let Some(path) = published(name) else { continue };
        let (format, unit, records) = all(&path, None);
        assert_eq!((format, unit), (Format::Lis, Unit::Objects));
        assert_eq!((records.len(), distinct(&records)), (references, blocks), "{name}");
    }
}

/// Goal: vscsi is understood. Method: reads and writes as counted by others, and each request
/// beside its twin in oracleGeneral, whose maker gave each object one size: 13,671 requests differ.
#[test]
fn vscsi_equals_its_oracle_twin() {
    let Some(path) = published("cloudphysics/cloudPhysicsIO.vscsi") else { return };
    let Some(twin) = published("cloudphysics/cloudPhysicsIO.oracleGeneral.bin") else { return };
    let (format, unit, records) = all(&path, None);
    assert_eq!((format, unit, records.len()), (Format::VscsiV1, Unit::Bytes, 113_872));
    let count = |operation| records.iter().filter(|record| record.operation == operation).count();
    assert_eq!([count(Operation::Write), count(Operation::Read)], [66_898, 46_974]);
    let (format, unit, objects) = all(&twin, None);
    assert_eq!((format, unit, objects.len()), (Format::OracleGeneral, Unit::Objects, 113_872));
    let sizes = records.iter().zip(&objects).filter(|(one, other)| one.length != other.length);
    assert_eq!(sizes.count(), 13_671);
    for (record, object) in records.iter().zip(&objects) {
        assert_eq!(record.offset / 512, object.offset);
        assert!(record.at.since(object.at).as_secs() <= 1, "{record:?} {object:?}");
    }
}

/// Goal: lists of block numbers are read through xz and gzip. Method: known counts; a format that
/// cannot be told is not guessed.
#[test]
fn block_lists_are_read_through_compression() {
    if let Some(path) = published("caffeine/cloud_physics-w106.trace.xz") {
        let (_, _, records) = all(&path, Some(Format::U32Be));
        assert_eq!((records.len(), distinct(&records)), (5_292_456, 275_171));
        let refused = open(&path, None, ReadOptions::default()).map(|_| ()).expect_err("unsure");
        assert!(refused.to_string().contains("fits no format"), "{refused}");
    }
    for name in ["2_pools", "loop", "multi2", "sprite"] {
        let Some(path) = published(&format!("caffeine/lirs-{name}.trace.gz")) else { continue };
        let (format, _, records) = all(&path, None);
        assert_eq!(format, Format::Blocks);
        assert!(records.len() > 10_000, "{name}: {}", records.len());
    }
}
