//! No bytes make a reader panic, hang or grow: random ones, and sound traces with damage.
//!
//! How: seeded; `LAYBY_SEED` replays one seed alone. Each input is read strictly and leniently, by
//! its own format and by all others. Cost: a few seconds.

use layby_trace::{
    BlockEvent, Format, LENGTH_MAX, RANGE_END_MAX, ReadOptions, Reader, Record, Unit, Writer,
    create, open, reader,
};
use layby_types::{ErrorKind, Nanos, Operation, Rng, VolumeId};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

const SEEDS: u64 = 300;
/// Records of a sound trace before it is damaged.
const RECORDS: u64 = 60;

/// Runs `test` with many seeds and says which one failed.
fn for_each_seed(test: impl Fn(u64)) {
    let chosen = std::env::var("LAYBY_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = chosen.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed)));
        assert!(run.is_ok(), "replay with LAYBY_SEED={seed}");
    }
}

fn options(lenient: bool) -> ReadOptions {
    ReadOptions { lenient, event: BlockEvent::Queue }
}

/// Reads to the end or the first error, and holds every record against what is promised.
fn exhaust(reader: &mut dyn Reader) {
    let (unit, mut batch, mut at) = (reader.unit(), Vec::new(), Nanos::ZERO);
    for _ in 0..1000 {
        let done = reader.fill(&mut batch).map_or(true, |count| count == 0);
        for record in &batch {
            assert!(record.at >= at && ((record.length == 0) == is_flush(record)));
            let end = record.offset.checked_add(record.length);
            let fits = end.is_some_and(|end| end <= RANGE_END_MAX)
                && (record.length <= LENGTH_MAX || record.operation == Operation::Trim);
            assert!(unit == Unit::Objects || fits, "{record:?}");
            at = record.at;
        }
        if done {
            return;
        }
    }
    panic!("a small input has no end");
}

fn is_flush(record: &Record) -> bool {
    record.operation == Operation::Flush
}

fn read_all_ways(bytes: &[u8]) {
    for format in Format::ALL {
        for lenient in [false, true] {
            let input = Cursor::new(bytes.to_vec());
            if let Ok(mut reader) = reader(input, format, options(lenient)) {
                exhaust(reader.as_mut());
            }
        }
    }
}

fn read_file(path: &Path, format: Option<Format>) {
    for lenient in [false, true] {
        if let Ok(mut trace) = open(path, format, options(lenient)) {
            exhaust(&mut trace);
        }
    }
}

/// Goal: no bytes at all make a reader panic. Method: random bytes, and random printable ones.
#[test]
fn random_bytes() {
    for_each_seed(|seed| {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; rng.below(3000) as usize];
        rng.fill(&mut bytes);
        read_all_ways(&bytes);
        let letters = b"0123456789,., \n\n\tRWDFNQ+-readwritetrim\xff";
        for byte in &mut bytes {
            *byte = letters[*byte as usize % letters.len()];
        }
        read_all_ways(&bytes);
    });
}

/// Changes, drops, doubles or cuts off a few bytes.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(5) {
            0 => bytes[at] = rng.next_u64() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, b"09,- \n\xff"[rng.below(7) as usize]),
            _ => bytes.truncate(at.max(1)),
        }
    }
}

/// Lines of text that are sound in some format.
const TEXTS: [&str; 7] = [
    "fio version 3 iolog\n1 a add\n2 a read 0 4096\n3 a sync 0 0\n4 b trim 512 512\n",
    "fio version 2 iolog\na add\na read 0 4096\na wait 500 0\nb write 512 512\n",
    "  8,0 3 2 0.000001829 697 Q W 223490 + 8 [x]\n  8,0 3 2 1.000001829 697 Q FN [x]\nCPU0\n",
    "128166372003061629,usr,0,Read,7014609920,24576,41286\n",
    "419,W,8792731648,16384,1577808144360767\n419,R,8792731648,16384,1577808144360768\n",
    "1538323200,12910952,128,0,1063\n1538323201,12910952,128,1,1064\n",
    "1 1 0 0\n2 1 0 0\n9 64 0 3\n",
];

/// Goal: damage in a sound text is an error or is passed over. Method: each text, damaged.
#[test]
fn damaged_texts() {
    for_each_seed(|seed| {
        let mut rng = Rng::new(seed);
        for text in TEXTS {
            let mut bytes = text.as_bytes().to_vec();
            damage(&mut rng, &mut bytes);
            read_all_ways(&bytes);
        }
    });
}

/// Goal: damage in a file, compressed or columnar, is an error or is passed over. Method: traces
/// that were written, damaged on disk and opened by detection and by name.
#[test]
fn damaged_files() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let records: Vec<Record> = (0..RECORDS)
        .map(|index| Record {
            at: Nanos(index * 1000),
            volume: VolumeId((index % 3) as u32),
            operation: Operation::Write,
            offset: index * 4096,
            length: 4096,
        })
        .collect();
    let written = [
        ("a.csv.zst", Format::Csv),
        ("a.parquet", Format::Parquet),
        ("a.oracleGeneral", Format::OracleGeneral),
        ("a.fio.zst", Format::FioV3),
    ]
    .map(|(name, format)| {
        let path = dir.path().join(name);
        let mut trace = Box::new(create(&path, format, Unit::Bytes, true).expect("a file"));
        trace.write(&records).expect("the disk has room");
        trace.finish().expect("the disk has room");
        (path.clone(), format, std::fs::read(&path).expect("what was written"))
    });
    for_each_seed(|seed| {
        let mut rng = Rng::new(seed);
        for (path, format, sound) in &written {
            let mut bytes = sound.clone();
            damage(&mut rng, &mut bytes);
            std::fs::write(path, &bytes).expect("the disk has room");
            read_file(path, Some(*format));
            read_file(path, None);
        }
    });
}

/// Goal: damage behind a Zstandard file's magic number counts as damage, and no other sort of
/// failure. Method: a bit of a sound file flipped, or bytes behind its end, with many seeds; the
/// one bit of a frame that means nothing changes no record.
#[test]
fn damaged_frames_are_damage() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.csv.zst");
    let mut trace = Box::new(create(&path, Format::Csv, Unit::Bytes, true).expect("a file"));
    let (volume, operation) = (VolumeId(1), Operation::Write);
    let record = |at| Record { at: Nanos(at), volume, operation, offset: at * 4096, length: 4096 };
    let records: Vec<Record> = (0..RECORDS).map(record).collect();
    trace.write(&records).expect("the disk has room");
    trace.finish().expect("the disk has room");
    let sound = std::fs::read(&path).expect("what was written");
    for_each_seed(|seed| {
        let (mut rng, mut bytes) = (Rng::new(seed), sound.clone());
        if rng.below(4) == 0 {
            bytes.extend((0..=rng.below(20)).map(|_| b'x'));
        } else {
            bytes[4 + rng.below(sound.len() as u64 - 4) as usize] ^= 1 << rng.below(8);
        }
        std::fs::write(&path, &bytes).expect("the disk has room");
        let all = open(&path, Some(Format::Csv), options(false)).and_then(|mut trace| {
            let (mut all, mut batch) = (Vec::new(), Vec::new());
            while trace.fill(&mut batch)? > 0 {
                all.append(&mut batch);
            }
            Ok(all)
        });
        match all {
            Ok(all) => assert_eq!(all, records, "a checksum covers the whole frame"),
            Err(cause) => assert_eq!(cause.kind(), ErrorKind::Corrupt, "{cause}"),
        }
    });
}

/// Goal: a compressed file that expands to far more than memory is no danger. Method: one endless
/// line in a few kilobytes: of 32 MiB, which is skipped, and of 1 GiB, which ends the reading.
#[test]
fn expanding_files_stay_small() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (mebibytes, skipped) in [(32, 1), (1024, 0)] {
        let path = dir.path().join(format!("bomb{mebibytes}.csv.zst"));
        let file = std::fs::File::create(&path).expect("a file");
        let mut encoder = zstd::Encoder::new(file, 1).expect("a compressor");
        let block = vec![b'x'; 1 << 20];
        for _ in 0..mebibytes {
            std::io::Write::write_all(&mut encoder, &block).expect("the disk has room");
        }
        encoder.finish().expect("the disk has room");
        let mut trace = open(&path, Some(Format::Csv), options(true)).expect("the file opens");
        exhaust(&mut trace);
        assert_eq!(trace.skipped().total(), skipped, "{mebibytes} MiB");
    }
}

/// The columns of a Parquet trace whose times are one page of `rows` zeros.
fn write_long_page(path: &Path, rows: usize) {
    let schema = "message layby_trace { REQUIRED INT64 at_ns; REQUIRED INT32 volume;
        REQUIRED INT32 operation; REQUIRED INT64 offset; REQUIRED INT64 length; }";
    let schema = parse_message_type(schema).expect("a schema");
    let pair = |key: &str, value: &str| KeyValue::new(key.to_owned(), value.to_owned());
    let pairs = vec![pair("layby.trace.version", "1"), pair("layby.trace.unit", "bytes")];
    let properties = WriterProperties::builder()
        .set_key_value_metadata(Some(pairs))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_column_dictionary_enabled(ColumnPath::from("at_ns"), false)
        .set_data_page_size_limit(usize::MAX)
        .set_data_page_row_count_limit(usize::MAX)
        .build();
    let file = std::fs::File::create(path).expect("a file");
    let file = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties));
    let mut file = file.expect("the schema is sound");
    let mut group = file.next_row_group().expect("a row group");
    for is_long in [true, false, false, true, true] {
        let mut column = group.next_column().expect("a column").expect("of five");
        let written = match is_long {
            true => column.typed::<Int64Type>().write_batch(&vec![0; rows], None, None),
            false => column.typed::<Int32Type>().write_batch(&vec![0; rows], None, None),
        };
        assert_eq!(written.expect("the disk has room"), rows);
        column.close().expect("the disk has room");
    }
    group.close().expect("the disk has room");
    file.close().expect("the disk has room");
}

/// Goal: a Parquet file of a few kilobytes whose pages expand to far more takes no memory for them;
/// one with pages of a usual length is read. Method: a page of zeros a little longer than 64 MiB,
/// which is refused by its head, strictly and leniently, and one of 16 MiB, whose requests are
/// wrong only in that they have no length.
#[test]
fn pages_do_not_expand_beyond_their_bound() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.parquet");
    for (rows, is_refused) in [(2 << 20, false), ((8 << 20) + 1, true)] {
        write_long_page(&path, rows);
        let bytes = std::fs::metadata(&path).expect("it was written").len();
        assert!(bytes < 1 << 20, "{rows} zeros in {bytes} bytes");
        for lenient in [false, true] {
            let mut trace = open(&path, None, options(lenient)).expect("its end is sound");
            let filled = trace.fill(&mut Vec::new());
            match is_refused {
                true => {
                    let cause = filled.expect_err("it is too long").to_string();
                    assert!(cause.contains("at most 67108864 are read"), "{cause}");
                }
                false if lenient => assert_eq!(filled.expect("all are left out"), 0),
                false => {
                    let cause = filled.expect_err("no request is of nothing").to_string();
                    assert!(cause.contains("zero length"), "{cause}");
                }
            }
        }
    }
}

/// Goal: a dictionary that claims more values than it holds takes no memory for them; the fuzzer of
/// traces found one that took 1.5 GB. Method: the claim of a sound file's dictionary of volumes,
/// found by its page's head, made larger; the error names it.
#[test]
fn dictionaries_hold_what_they_claim() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.parquet");
    let mut trace = Box::new(create(&path, Format::Parquet, Unit::Bytes, true).expect("a file"));
    let (at, volume, operation) = (Nanos(0), VolumeId(1), Operation::Read);
    trace.write(&[Record { at, volume, operation, offset: 0, length: 512 }]).expect("it has room");
    trace.finish().expect("the disk has room");
    let mut bytes = std::fs::read(&path).expect("what was written");
    // A dictionary page of four bytes, compressed to some, with one value; numbers are doubled.
    let is_head =
        |part: &[u8]| part.starts_with(&[0x15, 4, 0x15, 8, 0x15]) && part[6..9] == [0x4c, 0x15, 2];
    let at = bytes.windows(9).position(is_head).expect("volumes have a dictionary");
    bytes[at + 8] = 0x7e;
    std::fs::write(&path, &bytes).expect("the disk has room");
    let mut trace = open(&path, None, options(false)).expect("its end is sound");
    let cause = trace.fill(&mut Vec::new()).expect_err("63 values in four bytes").to_string();
    assert!(cause.contains("a dictionary of 63 values in 4 bytes"), "{cause}");
}
