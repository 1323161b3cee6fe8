//! Every format, by small traces written out here: what they say, and what is said of bad ones.
//!
//! How: text in, records or the error's words out. Cost: milliseconds.

use layby_trace::{BlockEvent, Format, Place, ReadOptions, Reader, Reason, Record, TraceError};
use layby_types::Operation::{Flush, Read, Trim, Write};
use layby_types::{Nanos, Operation, VolumeId};
use std::io::Cursor;

const LENIENT: ReadOptions = ReadOptions { lenient: true, event: BlockEvent::Queue };

fn open(bytes: &[u8], format: Format, options: ReadOptions) -> Box<dyn Reader + Send> {
    layby_trace::reader(Cursor::new(bytes.to_vec()), format, options).expect("no Parquet here")
}

fn drain(reader: &mut dyn Reader) -> Result<Vec<Record>, TraceError> {
    let (mut records, mut batch) = (Vec::new(), Vec::new());
    while reader.fill(&mut batch)? > 0 {
        records.extend_from_slice(&batch);
    }
    Ok(records)
}

fn read(bytes: &[u8], format: Format) -> Vec<Record> {
    let read = drain(open(bytes, format, ReadOptions::default()).as_mut());
    read.unwrap_or_else(|error| panic!("{format}: {error}"))
}

fn record(at: u64, volume: u32, operation: Operation, offset: u64, length: u64) -> Record {
    Record { at: Nanos(at), volume: VolumeId(volume), operation, offset, length }
}

/// The place and reason of the first fault.
fn fault(bytes: &[u8], format: Format) -> (Place, Reason) {
    match drain(open(bytes, format, ReadOptions::default()).as_mut()) {
        Err(TraceError::Bad { place, fault }) => (place, fault.reason),
        other => panic!("{format}: {other:?}"),
    }
}

const FIO_V3: &str = "\
fio version 3 iolog
18 /a add
117 /a open
120 /a read 0 4096
385 /b write 45056 4096
20501 /a sync 0 0
20502 /a datasync
120298 /b trim 16384 8192
140486 /a close
";

const FIO_V2: &str = "\
fio version 2 iolog
/a add
/a open
/a read 0 4096
/a wait 250 0
/b write 45056 4096
/a wait 200
/a sync 0 0
/a close
";

/// Goal: fio's logs are understood, with several files, waits and flushes. Method: one of each.
#[test]
fn fio_logs() {
    let expected = [
        record(120_000, 0, Read, 0, 4096),
        record(385_000, 1, Write, 45_056, 4096),
        record(20_501_000, 0, Flush, 0, 0),
        record(20_502_000, 0, Flush, 0, 0),
        record(120_298_000, 1, Trim, 16_384, 8192),
    ];
    assert_eq!(read(FIO_V3.as_bytes(), Format::FioV3), expected);
    let expected = [
        record(0, 0, Read, 0, 4096),
        record(250_000_000, 1, Write, 45_056, 4096),
        record(250_000_000, 0, Flush, 0, 0),
    ];
    assert_eq!(read(FIO_V2.as_bytes(), Format::FioV2), expected);
    let mut reader = open(FIO_V2.as_bytes(), Format::FioV2, LENIENT);
    assert!(drain(reader.as_mut()).is_ok());
    assert_eq!(reader.volumes(), ["/a", "/b"]);
}

const BLKPARSE: &str = "\
  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000002000   697  Q   R 8 + 16 [cat]
  8,16   1        4     0.000003000   698  Q   DS 64 + 128 [fstrim]
  8,0    1        5     0.000004000   698  Q FWS [sync]
  8,0    1        6     0.000005000   698  Q FWFS 96 + 8 [sync]
  8,0    1        7     0.000005500   698  m   N cfq workload
  8,0    1        8     0.000006000     0  C   W 223490 + 8 [0]
  8,0    1        9     0.000007000     0  Q   N [ioctl]
CPU3 (8,0):
 Reads Queued:           1,        8KiB\t Writes Queued:           2,        8KiB
Total (8,0):
";

/// Goal: blkparse text gives one record per request, by the event that is asked for, and its
/// summary none. Method: each kind of request, as queued and as completed.
#[test]
fn blkparse_text() {
    let expected = [
        record(1829, 0, Write, 223_490 * 512, 4096),
        record(2000, 0, Read, 4096, 8192),
        record(3000, 1, Trim, 64 * 512, 65_536),
        record(4000, 0, Flush, 0, 0),
        record(5000, 0, Write, 96 * 512, 4096),
    ];
    assert_eq!(read(BLKPARSE.as_bytes(), Format::Blkparse), expected);
    let complete = ReadOptions { lenient: false, event: BlockEvent::Complete };
    let records = drain(open(BLKPARSE.as_bytes(), Format::Blkparse, complete).as_mut());
    assert_eq!(records.expect("sound"), [record(6000, 0, Write, 223_490 * 512, 4096)]);
}

/// Goal: the comma-separated formats differ in units and order only. Method: two requests in each.
#[test]
fn comma_separated() {
    let msr = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
               128166372003061639,usr,1,Write,0,512,1963\n";
    let expected = [record(0, 0, Read, 7_014_609_920, 24_576), record(1000, 1, Write, 0, 512)];
    assert_eq!(read(msr.as_bytes(), Format::Msr), expected);
    let alibaba = "device_id,opcode,offset,length,timestamp\r\n\
                   419,R,7014609920,24576,1577808000000046\r\n7,W,0,512,1577808000000047\r\n";
    assert_eq!(read(alibaba.as_bytes(), Format::Alibaba), expected);
    let tencent = "1538323200,13700410,48,0,1063\n1538323201,0,1,1,9\n";
    let expected =
        [record(0, 0, Read, 7_014_609_920, 24_576), record(1_000_000_000, 1, Write, 0, 512)];
    assert_eq!(read(tencent.as_bytes(), Format::Tencent), expected);
    let own = "at_ns,volume,operation,offset,length\n5,7,trim,0,512\n6,0,flush,0,0\n";
    let expected = [record(5, 7, Trim, 0, 512), record(6, 0, Flush, 0, 0)];
    assert_eq!(read(own.as_bytes(), Format::Csv), expected);
    let objects = "at_ns,volume,operation,object,size\n5,7,read,18446744073709551615,512\n";
    let expected = [record(5, 7, Read, u64::MAX, 512)];
    assert_eq!(read(objects.as_bytes(), Format::CsvObjects), expected);
}

/// Goal: the mark that spreadsheets put before their text is no part of a trace; the same bytes at
/// the beginning of a binary one are. Method: files of three formats with it.
#[test]
fn a_mark_before_text_is_passed_over() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let mut binary = oracle(5, 7, 512);
    binary[..3].copy_from_slice(b"\xef\xbb\xbf");
    for (name, bytes, count) in [
        (
            "own.csv",
            b"\xef\xbb\xbfat_ns,volume,operation,offset,length\n5,7,trim,0,512\n".to_vec(),
            1,
        ),
        ("tencent", b"\xef\xbb\xbf1538323200,8,48,0,1\n1538323201,0,1,1,9\n".to_vec(), 2),
        ("a.oracleGeneral", binary, 1),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("a writable directory");
        let mut trace = layby_trace::open(&path, None, ReadOptions::default()).expect(name);
        assert_eq!(drain(&mut trace).expect(name).len(), count, "{name}");
    }
}

/// A record of oracleGeneral.
fn oracle(seconds: u32, object: u64, size: u32) -> Vec<u8> {
    let next = (-1i64).to_le_bytes();
    [&seconds.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next].concat()
}

/// A record of vscsi, version 2.
fn vscsi_v2(command: u16, block: u64, length: u32, micros: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for two in [command, 2 << 8] {
        bytes.extend(two.to_le_bytes());
    }
    for four in [0, length, 1] {
        bytes.extend(four.to_le_bytes());
    }
    for eight in [block, micros, 99] {
        bytes.extend(eight.to_le_bytes());
    }
    bytes
}

/// Goal: binary formats are read field by field. Method: records made here.
#[test]
fn binary() {
    let bytes = [oracle(100, u64::MAX, 7), oracle(102, 5, 4096)].concat();
    let expected = [record(0, 0, Read, u64::MAX, 7), record(2_000_000_000, 0, Read, 5, 4096)];
    assert_eq!(read(&bytes, Format::OracleGeneral), expected);
    let bytes = [
        vscsi_v2(0x2a, 8, 4096, 1000),
        vscsi_v2(0x88, 9, 512, 1001),
        vscsi_v2(0x42, 0, 512, 1002),
        vscsi_v2(0x35, 9, 512, 1003),
    ];
    let expected = [
        record(0, 0, Write, 4096, 4096),
        record(1000, 0, Read, 4608, 512),
        record(2000, 0, Trim, 0, 512),
        record(3000, 0, Flush, 0, 0),
    ];
    assert_eq!(read(&bytes.concat(), Format::VscsiV2), expected);
    let expected = [record(0, 0, Read, 1, 1), record(0, 0, Read, 256, 1)];
    assert_eq!(read(&[0, 0, 0, 1, 0, 0, 1, 0], Format::U32Be), expected);
}

/// Goal: lists expand. Method: a range, an end mark, blank lines.
#[test]
fn lists() {
    let blocks = |records: Vec<Record>| records.iter().map(|r| r.offset).collect::<Vec<_>>();
    assert_eq!(blocks(read(b"7 3 0 0\n\n1 1 0 1\n", Format::Lis)), [7, 8, 9, 1]);
    assert_eq!(blocks(read(b"7\n8 \r\n*\n\n9", Format::Blocks)), [7, 8, 9]);
}

/// Goal: bad traces are refused at the exact place, with what was found and what was expected.
/// Method: a trace per fault, in texts and binaries.
#[test]
fn faults_have_their_place() {
    let own = |lines: &str| format!("at_ns,volume,operation,offset,length\n{lines}").into_bytes();
    let csv = Format::Csv;
    for (bytes, format, place, reason) in [
        (own("1,0,read,0,512\n1,0,read,0\n"), csv, Place::Line(3), Reason::Columns),
        (own("1,0,read,-4096,512\n"), csv, Place::Line(2), Reason::Number),
        (own("1,0,read,18446744073709551616,512\n"), csv, Place::Line(2), Reason::Number),
        (own("1,0,read,18446744073709551615,512\n"), csv, Place::Line(2), Reason::Range),
        (own("1,0,erase,0,512\n"), csv, Place::Line(2), Reason::Operation),
        (own("5,0,read,0,512\n4,0,read,0,512\n"), csv, Place::Line(3), Reason::Backwards),
        (own("1,0,read,0,0\n"), csv, Place::Line(2), Reason::ZeroLength),
        (own(&"x".repeat(5000)), csv, Place::Line(2), Reason::LongLine),
        (own("1,4294967296,read,0,512\n"), csv, Place::Line(2), Reason::Range),
        (b"at,volume\n".to_vec(), csv, Place::Line(1), Reason::Columns),
        (b"fio version 1 iolog\n".to_vec(), Format::FioV2, Place::Line(1), Reason::Columns),
        (b"1,usr\xff,0,Read,0,512,0\n".to_vec(), Format::Msr, Place::Line(1), Reason::Encoding),
        (b"7 70000 0 0\n".to_vec(), Format::Lis, Place::Line(1), Reason::Range),
        (oracle(1, 2, 3)[..23].to_vec(), Format::OracleGeneral, Place::Byte(0), Reason::Truncated),
        (
            [oracle(1, 2, 3), oracle(0, 2, 3)].concat(),
            Format::OracleGeneral,
            Place::Byte(24),
            Reason::Backwards,
        ),
        (oracle(1, 2, 0), Format::OracleGeneral, Place::Byte(0), Reason::ZeroLength),
        (vscsi_v2(0x12, 0, 512, 0), Format::VscsiV2, Place::Byte(0), Reason::Operation),
        (vscsi_v2(0x28, 1 << 60, 512, 0), Format::VscsiV2, Place::Byte(0), Reason::Range),
        (b"\0\0\0\x01\0".to_vec(), Format::U32Be, Place::Byte(4), Reason::Truncated),
    ] {
        assert_eq!(fault(&bytes, format), (place, reason), "{format}");
    }
    let wrong = drain(open(&own("1,0,read,-5,1\n"), csv, ReadOptions::default()).as_mut());
    assert_eq!(
        wrong.map_err(|error| error.to_string()).expect_err("a negative offset"),
        "line 2: not a number: offset is `-5`, \
         expected a whole number from 0 to 18446744073709551615"
    );
}

/// Goal: a lenient reader counts what it leaves out and gives the rest; a strict one gives what
/// came before, then ends. Method: good records around bad ones.
#[test]
fn lenient_readers_count() {
    let text = b"at_ns,volume,operation,offset,length\n1,0,read,0,512\n1,0,read,0,0\n-\n\
                 0,0,read,0,512\n\xff\xfe,0,read,0,512\n2,0,read,512,512\n";
    let mut reader = open(text, Format::Csv, LENIENT);
    let records = drain(reader.as_mut()).expect("faults are counted");
    assert_eq!(records, [record(1, 0, Read, 0, 512), record(2, 0, Read, 512, 512)]);
    let skipped = reader.skipped();
    assert_eq!(skipped.total(), 4);
    for reason in [Reason::ZeroLength, Reason::Columns, Reason::Backwards, Reason::Encoding] {
        assert_eq!(skipped.count(reason), 1, "{}", reason.name());
    }
    let (mut strict, mut batch) = (open(text, Format::Csv, ReadOptions::default()), Vec::new());
    assert!(strict.fill(&mut batch).is_err());
    assert_eq!(batch, [record(1, 0, Read, 0, 512)]);
    assert_eq!(strict.fill(&mut batch).ok(), Some(0));
}
