//! Fuzz of bad traces: sound traces of every format, mutated, cut and spliced.
//!
//! How: seeded; each input is a file, plain or compressed, that is read strictly and leniently, by
//! its own format and by detection. `LAYBY_SEED` replays one seed; `LAYBY_FUZZ_SECONDS` goes on
//! with further seeds for so long, as `cargo xtask fuzz` does.
//! Invariant: no panic, no endless trace, no batch beyond its bound; what is read keeps the
//! promises of `Record`. Cost: a few seconds.

use layby_trace::{
    BATCH_RECORDS_MAX, BlockEvent, Format, LENGTH_MAX, LIST_COUNT_MAX, RANGE_END_MAX, ReadOptions,
    Reader, Record, Unit, Writer, create, open,
};
use layby_types::{Nanos, Operation, Rng, VolumeId};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Seeds of a run without bounds in time; each mutates every format once.
const SEEDS: u64 = 60;
/// Batches that a small input may have.
const BATCHES_MAX: u32 = 1000;
/// What a mutation puts in place of a number.
const NUMBERS: [&str; 8] = [
    "-1",
    "0",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "1e9",
    "99999999999999999999999999",
    "",
];

fn draw(rng: &mut Rng, count: u64) -> Vec<Record> {
    let mut at = 0;
    let record = |_| {
        at += rng.below(3_000_000_000);
        let operation = [Operation::Read, Operation::Write][rng.below(2) as usize];
        let (offset, length) = (rng.below(1 << 30) * 512, (1 + rng.below(64)) * 512);
        Record { at: Nanos(at), volume: VolumeId(rng.below(3) as u32), operation, offset, length }
    };
    (0..count).map(record).collect()
}

/// `record` as a line of the text formats that Layby only reads.
fn line(format: Format, record: &Record) -> String {
    let Record { at, volume: VolumeId(volume), operation, offset, length } = *record;
    let (seconds, micros, sector) = (at.as_secs(), at.0 / 1000, offset / 512);
    let is_read = operation == Operation::Read;
    let letter = if is_read { 'R' } else { 'W' };
    match format {
        Format::Blkparse => {
            let (nanos, sectors) = (at.0 % 1_000_000_000, length / 512);
            format!("  8,0 1 1 {seconds}.{nanos:09} 9 Q {letter} {sector} + {sectors} [x]\n")
        }
        Format::Msr => {
            let (ticks, word) = (at.0 / 100, if is_read { "Read" } else { "Write" });
            format!("{},usr,{volume},{word},{offset},{length},9\n", 128_166_372_003_061_629 + ticks)
        }
        Format::Alibaba => format!("{volume},{letter},{offset},{length},{micros}\n"),
        Format::Tencent => {
            format!("{seconds},{sector},{},{},{volume}\n", length / 512, u8::from(!is_read))
        }
        Format::Lis => format!("{sector} {} 0 0\n", length / 512),
        Format::Blocks => format!("{sector}\n"),
        _ => unreachable!("the caller knows the others"),
    }
}

fn vscsi(version: u16, record: &Record, bytes: &mut Vec<u8>) {
    let command: u16 = if record.operation == Operation::Read { 0x28 } else { 0x2a };
    let (length, tag) = (record.length as u32, version << 8);
    let (block, micros) = (record.offset / 512, record.at.0 / 1000);
    if version == 1 {
        [1, length, 1].iter().for_each(|four: &u32| bytes.extend(four.to_le_bytes()));
        [command, tag].iter().for_each(|two| bytes.extend(two.to_le_bytes()));
        [block, micros].iter().for_each(|eight| bytes.extend(eight.to_le_bytes()));
    } else {
        [command, tag].iter().for_each(|two| bytes.extend(two.to_le_bytes()));
        [1, length, 1].iter().for_each(|four: &u32| bytes.extend(four.to_le_bytes()));
        [block, micros, 9].iter().for_each(|eight| bytes.extend(eight.to_le_bytes()));
    }
}

/// A sound trace of `format`.
fn sound(format: Format, records: &[Record], dir: &Path) -> Vec<u8> {
    let unit = match format {
        Format::CsvObjects => Unit::Objects,
        Format::Csv | Format::Parquet | Format::FioV2 | Format::FioV3 | Format::OracleGeneral => {
            Unit::Bytes
        }
        Format::VscsiV1 | Format::VscsiV2 => {
            let (mut bytes, version) = (Vec::new(), 1 + u16::from(format == Format::VscsiV2));
            records.iter().for_each(|record| vscsi(version, record, &mut bytes));
            return bytes;
        }
        Format::U32Be => {
            let word = |record: &Record| (record.offset as u32 / 512).to_be_bytes();
            return records.iter().flat_map(word).collect();
        }
        _ => return records.iter().map(|r| line(format, r)).collect::<String>().into_bytes(),
    };
    let path = dir.join("sound");
    let mut trace = Box::new(create(&path, format, unit, true).expect("a file"));
    trace.write(records).expect("the disk has room");
    trace.finish().expect("the disk has room");
    std::fs::read(&path).expect("what was written")
}

/// A mutation of `bytes`, or a splice with `other`.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        let end = (at + 1 + rng.below(40) as usize).min(bytes.len());
        match rng.below(9) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 0x7f, 0x80, 0xff][rng.below(4) as usize],
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => bytes[at..end].fill(rng.next_u64() as u8),
            5 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            6 if !other.is_empty() => {
                let from = rng.below(other.len() as u64) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            7 => bytes[at..end].reverse(),
            _ => replace_number(rng, bytes, at),
        }
    }
}

/// Puts a number that is out of bounds in place of the run of digits at or behind `at`.
fn replace_number(rng: &mut Rng, bytes: &mut Vec<u8>, at: usize) {
    let Some(skip) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
    let start = at + skip;
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = NUMBERS[rng.below(NUMBERS.len() as u64) as usize];
    bytes.splice(start..start + digits, number.bytes());
}

fn compressed(rng: &mut Rng, bytes: Vec<u8>) -> Vec<u8> {
    match rng.below(6) {
        0 => zstd::encode_all(&bytes[..], 1).expect("memory takes all"),
        1 => {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(&bytes).expect("memory takes all");
            encoder.finish().expect("memory takes all")
        }
        2 => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
            encoder.write_all(&bytes).expect("memory takes all");
            encoder.finish().expect("memory takes all")
        }
        _ => bytes,
    }
}

/// Reads to the end or the first error; how many records there were.
fn exhaust(reader: &mut dyn Reader) -> Result<usize, String> {
    let (unit, mut batch, mut at, mut count) = (reader.unit(), Vec::new(), Nanos::ZERO, 0);
    for _ in 0..BATCHES_MAX {
        let filled = reader.fill(&mut batch);
        assert!(batch.len() <= BATCH_RECORDS_MAX + LIST_COUNT_MAX as usize, "{}", batch.len());
        for record in &batch {
            let is_flush = record.operation == Operation::Flush;
            assert!(record.at >= at && (record.length == 0) == is_flush, "{record:?}");
            let end = record.offset.checked_add(record.length);
            let fits = end.is_some_and(|end| end <= RANGE_END_MAX)
                && (record.length <= LENGTH_MAX || record.operation == Operation::Trim);
            assert!(unit == Unit::Objects || fits, "{record:?}");
            at = record.at;
        }
        count += batch.len();
        match filled {
            Ok(0) => return Ok(count),
            Ok(_) => {}
            Err(cause) => return Err(cause.to_string()),
        }
    }
    panic!("a small input has no end");
}

/// What came of reading.
#[derive(Default)]
struct Tally {
    inputs: u64,
    reads: u64,
    refused: u64,
    slowest: Duration,
}

impl Tally {
    fn read(&mut self, path: &Path, format: Format) {
        self.inputs += 1;
        let start = now();
        for lenient in [false, true] {
            let options = ReadOptions { lenient, event: BlockEvent::Queue };
            for format in [Some(format), None] {
                let opened = open(path, format, options).map_err(|cause| cause.to_string());
                let read = opened.and_then(|mut trace| exhaust(&mut trace));
                self.reads += 1;
                if let Err(cause) = read {
                    assert!(!cause.is_empty(), "an error says why");
                    self.refused += 1;
                }
            }
        }
        self.slowest = self.slowest.max(start.elapsed());
    }
}

#[expect(clippy::disallowed_methods, reason = "a wide run goes on for a time")]
fn now() -> Instant {
    Instant::now()
}

/// Mutates a trace of every format once.
fn run_seed(seed: u64, dir: &Path, tally: &mut Tally) {
    let mut rng = Rng::new(seed);
    let count = 1 + rng.below(40);
    let records = draw(&mut rng, count);
    let other = sound(Format::ALL[rng.below(15) as usize], &records, dir);
    for format in Format::ALL {
        let mut bytes = sound(format, &records, dir);
        let inside = rng.chance(1, 2);
        if inside {
            mutate(&mut rng, &mut bytes, &other);
        }
        if format != Format::Parquet {
            bytes = compressed(&mut rng, bytes);
        }
        if !inside {
            mutate(&mut rng, &mut bytes, &other);
        }
        let path = dir.join("mutated");
        std::fs::write(&path, &bytes).expect("the disk has room");
        tally.read(&path, format);
    }
}

/// Goal: what is mutated below is sound before. Method: each format, read strictly.
#[test]
fn sound_traces_are_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let records = draw(&mut Rng::new(1), 40);
    for format in Format::ALL {
        let path = dir.path().join("sound");
        std::fs::write(&path, sound(format, &records, dir.path())).expect("the disk has room");
        let mut trace = open(&path, Some(format), ReadOptions::default()).expect("it is sound");
        let count = exhaust(&mut trace).unwrap_or_else(|cause| panic!("{format}: {cause}"));
        assert!(count >= 40, "{format}: {count}");
    }
}

/// Goal: no mutation makes a reader panic, hang or break its promises. Method: seeds, each with a
/// mutation of every format; wide runs say how many inputs there were.
#[test]
fn mutated_traces_are_refused_or_read() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (first, mut tally) = (number("LAYBY_SEED"), Tally::default());
    let time = number("LAYBY_FUZZ_SECONDS").map(Duration::from_secs);
    let (start, begin) = (now(), first.unwrap_or(0));
    for seed in begin.. {
        let run = std::panic::AssertUnwindSafe(|| run_seed(seed, dir.path(), &mut tally));
        assert!(std::panic::catch_unwind(run).is_ok(), "replay with LAYBY_SEED={seed}");
        let is_last = match time {
            Some(time) => start.elapsed() >= time,
            None => first.is_some() || seed + 1 == begin + SEEDS,
        };
        if is_last {
            break;
        }
    }
    let Tally { inputs, reads, refused, slowest } = tally;
    let mut said = String::new();
    let slowest = slowest.as_millis();
    write!(said, "{inputs} inputs, {reads} reads, {refused} refused, slowest {slowest} ms")
        .expect("a String takes all");
    writeln!(std::io::stderr().lock(), "{said}").expect("a test has its standard error");
    assert!(refused > 0 && refused < reads, "{said}: mutations are neither harmless nor fatal");
}
