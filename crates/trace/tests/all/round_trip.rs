//! What is written is read back, by every format that is written, plain and compressed.
//!
//! How: drawn records through a file and back. Cost: well below a second.

use layby_trace::{Format, ReadOptions, Reader, Record, TraceError, Unit, Writer, create, open};
use layby_types::{Nanos, Operation, Rng, VolumeId};
use std::path::Path;

const OPERATIONS: [Operation; 4] =
    [Operation::Read, Operation::Write, Operation::Trim, Operation::Flush];

/// `count` records in order of their time, with times and offsets as coarse as `unit_bytes`.
fn drawn(seed: u64, count: usize, volumes: u64) -> Vec<Record> {
    let (mut rng, mut at) = (Rng::new(seed), 0);
    let mut draw = |_| {
        at += 1000 * rng.below(500_000);
        let operation = OPERATIONS[rng.below(4) as usize];
        let is_flush = operation == Operation::Flush;
        let (offset, length) = (512 * rng.below(1 << 40), 512 * (1 + rng.below(64)));
        Record {
            at: Nanos(at),
            volume: VolumeId(rng.below(volumes) as u32),
            operation,
            offset: if is_flush { 0 } else { offset },
            length: if is_flush { 0 } else { length },
        }
    };
    (0..count).map(&mut draw).collect()
}

fn write(path: &Path, format: Format, unit: Unit, records: &[Record]) -> u64 {
    let mut trace = Box::new(create(path, format, unit, true).expect("the folder takes files"));
    for batch in records.chunks(777) {
        trace.write(batch).expect("the disk has room");
        assert!(!path.exists(), "a trace is there whole or not at all");
    }
    let written = trace.finish().expect("the disk has room");
    assert_eq!(written.records + written.left_out, records.len() as u64);
    written.left_out
}

fn read(path: &Path) -> (Format, Unit, Vec<Record>) {
    let mut trace = open(path, None, ReadOptions::default()).expect("the format is told");
    let (mut records, mut batch) = (Vec::new(), Vec::new());
    while trace.fill(&mut batch).expect("the trace is sound") > 0 {
        records.extend_from_slice(&batch);
    }
    assert_eq!(trace.position(), trace.file_bytes());
    (trace.format(), trace.unit(), records)
}

/// Goal: Layby's own forms lose nothing, of devices and of objects. Method: 30,000 records, more
/// than one batch, through each.
#[test]
fn own_forms_lose_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let records = drawn(1, 30_000, 5);
    for (name, format, unit) in [
        ("a.csv", Format::Csv, Unit::Bytes),
        ("b.csv.zst", Format::CsvObjects, Unit::Objects),
        ("c.parquet", Format::Parquet, Unit::Bytes),
        ("d.parquet", Format::Parquet, Unit::Objects),
        ("empty.csv", Format::Csv, Unit::Bytes),
        ("empty.parquet", Format::Parquet, Unit::Bytes),
    ] {
        let records = if name.starts_with("empty") { &[] } else { &records[..] };
        let path = dir.path().join(name);
        assert_eq!(write(&path, format, unit, records), 0);
        assert_eq!(read(&path), (format, unit, records.to_vec()), "{name}");
    }
}

/// Goal: a bit that flips in a compressed trace of Layby's own never reads as other requests.
/// Method: 300 drawn bits, one at a time; each reading ends with an error or with what was written.
#[test]
fn flipped_bits_change_no_request() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (path, records) = (dir.path().join("a.csv.zst"), drawn(6, 2_000, 3));
    write(&path, Format::Csv, Unit::Bytes, &records);
    let sound = std::fs::read(&path).expect("it was written");
    let (mut rng, mut refused) = (Rng::new(6), 0);
    for _ in 0..300 {
        let mut bytes = sound.clone();
        let bit = rng.below(8 * bytes.len() as u64) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, bytes).expect("the test's own");
        let trace = open(&path, Some(Format::Csv), ReadOptions::default());
        let (mut found, mut batch) = (Vec::new(), Vec::new());
        let ended = trace.and_then(|mut trace| {
            while trace.fill(&mut batch)? > 0 {
                found.extend_from_slice(&batch);
            }
            Ok(())
        });
        refused += usize::from(ended.is_err());
        assert!(ended.is_err() || found == records, "bit {bit} reads as other requests");
    }
    assert!(refused > 250, "{refused} of 300 were noticed");
}

/// Goal: fio's logs keep all but the names of volumes. Method: version 3 exactly, to the
/// microsecond; version 2 with waits of whole milliseconds.
#[test]
fn fio_logs_keep_requests() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let records = drawn(2, 20_000, 1);
    for (name, format, slack) in [
        ("a.log", Format::FioV3, 0),
        ("b.log.zst", Format::FioV3, 0),
        ("c", Format::FioV2, 999_999),
    ] {
        let path = dir.path().join(name);
        assert_eq!(write(&path, format, Unit::Bytes, &records), 0);
        let (found, unit, back) = read(&path);
        assert_eq!((found, unit, back.len()), (format, Unit::Bytes, records.len()));
        for (record, again) in records.iter().zip(&back) {
            assert!(record.at.since(again.at).0 <= slack && again.at <= record.at, "{name}");
            assert_eq!(Record { at: record.at, ..*again }, *record, "{name}");
        }
    }
}

/// Goal: oracleGeneral keeps objects and tells what it leaves out. Method: reads and writes of
/// several volumes become distinct objects; trims and flushes are counted.
#[test]
fn oracle_general_counts_what_it_leaves_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.oracleGeneral.zst");
    let records = drawn(3, 20_000, 9);
    let data: Vec<&Record> = records
        .iter()
        .filter(|record| matches!(record.operation, Operation::Read | Operation::Write))
        .collect();
    let left_out = write(&path, Format::OracleGeneral, Unit::Bytes, &records);
    assert_eq!(left_out as usize, records.len() - data.len());
    let (format, unit, back) = read(&path);
    assert_eq!((format, unit, back.len()), (Format::OracleGeneral, Unit::Objects, data.len()));
    for (record, object) in data.iter().zip(&back) {
        let identifier = (u64::from(record.volume.0) << 48) | (record.offset / 512);
        assert_eq!((object.offset, object.length), (identifier, record.length));
    }
}

/// Goal: nothing is left of a trace that was not finished, and what was there stays. Method: drop a
/// writer over an older trace.
#[test]
fn unfinished_traces_leave_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.csv");
    write(&path, Format::Csv, Unit::Bytes, &drawn(4, 10, 1));
    let mut trace = create(&path, Format::Csv, Unit::Bytes, true).expect("the folder takes files");
    trace.write(&drawn(5, 10, 1)).expect("the disk has room");
    drop(trace);
    assert_eq!(read(&path).2, drawn(4, 10, 1));
    assert_eq!(dir.path().read_dir().expect("a folder").count(), 1);
}

/// Goal: a file that comes while a trace is written is not replaced unless that was asked for, and
/// the trace is kept. Method: such a file before the end, both ways.
#[test]
fn what_came_meanwhile_stays() {
    for overwrite in [false, true] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("a.csv");
        let made = create(&path, Format::Csv, Unit::Bytes, overwrite);
        let mut trace = Box::new(made.expect("the folder takes files"));
        trace.write(&drawn(5, 10, 1)).expect("the disk has room");
        std::fs::write(&path, "another's").expect("the folder takes files");
        match trace.finish() {
            Ok(_) => assert!(overwrite && read(&path).2 == drawn(5, 10, 1)),
            Err(TraceError::Taken { path: taken, kept }) => {
                assert!(!overwrite && taken == path);
                assert_eq!(std::fs::read(&path).expect("it is there"), b"another's");
                std::fs::rename(kept, &path).expect("it is there, too");
                assert_eq!(read(&path).2, drawn(5, 10, 1));
            }
            Err(cause) => panic!("{cause}"),
        }
        assert_eq!(dir.path().read_dir().expect("a folder").count(), 1);
    }
}

/// Goal: what a format cannot hold is refused in words. Method: formats that are only read, objects
/// to fio, objects of several volumes to oracleGeneral, and a time that it has no room for.
#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a");
    for (format, unit) in [(Format::Msr, Unit::Bytes), (Format::FioV3, Unit::Objects)] {
        assert!(create(&path, format, unit, true).is_err(), "{format}");
    }
    let mut trace = create(&path, Format::OracleGeneral, Unit::Objects, true).expect("a file");
    assert!(trace.write(&drawn(6, 100, 2)).is_err());
    let late = Record { at: Nanos::from_secs(1 << 32), ..drawn(6, 1, 1)[0] };
    let late = Record { operation: Operation::Read, ..late };
    let error = trace.write(&[late]).expect_err("it has 32 bits for seconds").to_string();
    assert!(error.contains("at 4294967296 s") && !error.contains("Record {"), "{error}");
}
