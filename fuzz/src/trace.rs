//! Traces of every format: any bytes end in an error or in records that keep their promises.
//!
//! How: the first byte chooses a format or detection, and whether reading is strict; the rest is
//! the trace. Parquet and detection read a file, in which bytes may also be compressed.
//! Invariant: batches are bounded, times never go back, ranges lie within bounds; a small trace
//! that is not compressed has a small number of batches.
//! Cost: a file per input that needs one, in the folder for temporary files.

use crate::Input;
use layby_trace::{
    BATCH_RECORDS_MAX, BlockEvent, Format, LENGTH_MAX, LIST_COUNT_MAX, RANGE_END_MAX, ReadOptions,
    Reader, Record, TraceError, Unit, Writer, create, open, reader,
};
use layby_types::{Nanos, Operation, VolumeId};
use std::io::Cursor;
use std::panic;
use std::path::Path;
use std::sync::Once;

/// Batches of an input that are looked at; a compressed one may have more.
const BATCHES_MAX: u32 = 64;
/// Choices of the first byte below detection.
const FORMATS: usize = Format::ALL.len();

/// Lets panics of the Parquet library pass unheard: the reader catches them and makes errors of
/// them, while a fuzzer counts every panic that is heard. One that is not caught still ends it.
fn tolerate_what_is_caught() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_caught = info.location().is_some_and(|at| at.file().contains("/parquet-"));
            if !is_caught {
                before(info);
            }
        }));
    });
}

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    tolerate_what_is_caught();
    let mut input = Input::new(bytes);
    let choice = input.byte();
    let options = ReadOptions {
        lenient: choice & 0x80 != 0,
        event: if choice & 0x40 != 0 { BlockEvent::Complete } else { BlockEvent::Queue },
    };
    let format = Format::ALL.get(usize::from(choice & 0x3f) % (FORMATS + 4)).copied();
    let read = match format {
        Some(format) if format != Format::Parquet => {
            let input = Cursor::new(input.rest.to_vec());
            reader(input, format, options).and_then(|mut trace| exhaust(trace.as_mut()))
        }
        _ => in_a_file(input.rest, |path| {
            open(path, format, options).and_then(|mut trace| exhaust(&mut trace))
        }),
    };
    if let Err(cause) = read {
        assert!(!cause.to_string().is_empty(), "an error says why");
    }
}

fn in_a_file<T>(bytes: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let file = tempfile::NamedTempFile::new().expect("there is a folder for temporary files");
    std::fs::write(file.path(), bytes).expect("the disk has room");
    read(file.path())
}

/// Reads to the end, the first error, or [`BATCHES_MAX`].
fn exhaust(reader: &mut dyn Reader) -> Result<(), TraceError> {
    let (unit, mut batch, mut at) = (reader.unit(), Vec::new(), Nanos::ZERO);
    for _ in 0..BATCHES_MAX {
        let filled = reader.fill(&mut batch);
        assert!(batch.len() <= BATCH_RECORDS_MAX + LIST_COUNT_MAX as usize, "{}", batch.len());
        for record in &batch {
            judge(record, at, unit);
            at = record.at;
        }
        if filled? == 0 {
            return Ok(());
        }
    }
    Ok(())
}

fn judge(record: &Record, at: Nanos, unit: Unit) {
    let is_flush = record.operation == Operation::Flush;
    assert!(record.at >= at && (record.length == 0) == is_flush, "{record:?}");
    let end = record.offset.checked_add(record.length);
    let fits = end.is_some_and(|end| end <= RANGE_END_MAX)
        && (record.length <= LENGTH_MAX || record.operation == Operation::Trim);
    assert!(unit == Unit::Objects || fits, "{record:?}");
    assert!(record.volume <= VolumeId::MAX, "{record:?}");
}

/// A small trace of every format that is written, and lines of those that are only read.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (index, format) in Format::ALL.into_iter().enumerate() {
        let bytes = sample(format);
        for (mode, flags) in [("strict", 0), ("lenient", 0x80)] {
            let seed = [&[index as u8 | flags], &bytes[..]].concat();
            seeds.push((format!("{}_{mode}", format.name()), seed));
        }
        let seed = [&[FORMATS as u8], &bytes[..]].concat();
        seeds.push((format!("{}_detected", format.name()), seed));
    }
    seeds
}

fn sample(format: Format) -> Vec<u8> {
    let text = match format {
        Format::Blkparse => {
            "  8,0 3 2 0.000001829 697 Q W 223490 + 8 [x]\n  8,0 3 2 1.0 697 Q FN [x]\nCPU0\n"
        }
        Format::Msr => {
            "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
             128166372003061630,usr,1,Write,4096,512,1\n"
        }
        Format::Alibaba => {
            "419,W,8792731648,16384,1577808144360767\n419,R,4096,16384,1577808144360768\n"
        }
        Format::Tencent => "1538323200,12910952,128,0,1063\n1538323201,12910952,128,1,1064\n",
        Format::Lis => "1 1 0 0\n2 1 0 0\n9 64 0 3\n",
        Format::Blocks => "1\n2\n99\n",
        Format::U32Be => return vec![0, 0, 0, 1, 0, 0, 1, 0],
        Format::VscsiV1 | Format::VscsiV2 => return vscsi(format == Format::VscsiV2),
        _ => return written(format),
    };
    text.into()
}

/// Two records of a vscsi trace.
fn vscsi(is_second: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (command, at) in [(0x28_u16, 1000_u64), (0x2a, 2000)] {
        let tag = if is_second { 0x200_u16 } else { 0x100 };
        let (words, pair) = ([1_u32, 4096, 1], [command, tag]);
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let pair: Vec<u8> = pair.iter().flat_map(|half| half.to_le_bytes()).collect();
        let head = if is_second { [pair, words] } else { [words, pair] };
        bytes.extend(head.concat());
        let tail: &[u64] = if is_second { &[8, at, 9] } else { &[8, at] };
        bytes.extend(tail.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes
}

/// Three requests as this program writes them.
fn written(format: Format) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = dir.path().join("trace");
    let unit = if format == Format::CsvObjects { Unit::Objects } else { Unit::Bytes };
    let record = |at, operation, length| Record {
        at: Nanos(at),
        volume: VolumeId(1),
        operation,
        offset: 8192,
        length,
    };
    let records = [record(0, Operation::Read, 4096), record(9_000_000, Operation::Write, 512)];
    let mut trace = Box::new(create(&path, format, unit, true).expect("the format is written"));
    trace.write(&records).expect("the disk has room");
    trace.finish().expect("the disk has room");
    std::fs::read(&path).expect("it was written")
}
