//! The formats of traces, their names, and how one is told from its file.
//!
//! How: a name's ending decides where it is one format's own; else the first bytes do, after
//! decompression. Where neither is sure, nothing is guessed: the caller names the format.
//! Invariant: text is only taken for a format whose first line it fits in every column.
//! Cost: looks at [`HEAD_BYTES`] at most.

use crate::blkparse::is_device;
use crate::csv::{HEADINGS_BYTES, HEADINGS_OBJECTS};
use crate::fio::{HEADER_V2, HEADER_V3};
use crate::parquet;
use crate::record::Unit;
use crate::vscsi;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Bytes of a trace that detection looks at.
pub(crate) const HEAD_BYTES: usize = 16 << 10;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// fio's I/O log, version 2.
    FioV2,
    /// fio's I/O log, version 3.
    FioV3,
    /// The text of `blkparse`.
    Blkparse,
    /// oracleGeneral of libCacheSim.
    OracleGeneral,
    /// CloudPhysics vscsi, version 1.
    VscsiV1,
    /// CloudPhysics vscsi, version 2.
    VscsiV2,
    /// Microsoft Research Cambridge, comma-separated.
    Msr,
    /// Alibaba block traces, comma-separated.
    Alibaba,
    /// Tencent block traces, comma-separated.
    Tencent,
    /// Layby's own comma-separated form, of a block device.
    Csv,
    /// Layby's own comma-separated form, of objects.
    CsvObjects,
    /// Layby's own columnar form.
    Parquet,
    /// Lists of block ranges, as the ARC paper's.
    Lis,
    /// A block number a line.
    Blocks,
    /// Block numbers of four bytes, big-endian.
    U32Be,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 15] = [
        Format::FioV2,
        Format::FioV3,
        Format::Blkparse,
        Format::OracleGeneral,
        Format::VscsiV1,
        Format::VscsiV2,
        Format::Msr,
        Format::Alibaba,
        Format::Tencent,
        Format::Csv,
        Format::CsvObjects,
        Format::Parquet,
        Format::Lis,
        Format::Blocks,
        Format::U32Be,
    ];

    /// The format's name on the command line and in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::FioV2 => "fio-v2",
            Format::FioV3 => "fio-v3",
            Format::Blkparse => "blkparse",
            Format::OracleGeneral => "oracle-general",
            Format::VscsiV1 => "vscsi-v1",
            Format::VscsiV2 => "vscsi-v2",
            Format::Msr => "msr",
            Format::Alibaba => "alibaba",
            Format::Tencent => "tencent",
            Format::Csv => "csv",
            Format::CsvObjects => "csv-objects",
            Format::Parquet => "parquet",
            Format::Lis => "lis",
            Format::Blocks => "blocks",
            Format::U32Be => "u32be",
        }
    }
    /// What offsets are; a Parquet file says it itself.
    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Format::OracleGeneral
            | Format::CsvObjects
            | Format::Lis
            | Format::Blocks
            | Format::U32Be => Unit::Objects,
            _ => Unit::Bytes,
        }
    }
    /// The names of all formats, with commas.
    #[must_use]
    pub fn list() -> String {
        Format::ALL.map(Format::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Format::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("`{text}` is no format; there are {}", Format::list()))
    }
}

/// The format in which a file called `path` is written, by the ending of its name.
#[must_use]
pub fn format_of_name(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".zst").unwrap_or(&name);
    let ends = |end: &str| name.ends_with(end);
    match () {
        () if ends(".csv") => Some(Format::Csv),
        () if ends(".parquet") => Some(Format::Parquet),
        () if ends(".oraclegeneral") || ends(".oraclegeneral.bin") => Some(Format::OracleGeneral),
        () if ends(".log") || ends(".iolog") || ends(".fio") => Some(Format::FioV3),
        () => None,
    }
}

/// What spreadsheets put before their text.
pub(crate) const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Whether the beginning of a file is such a mark before a trace in lines.
pub(crate) fn is_marked_text(path: &Path, head: &[u8]) -> bool {
    let in_lines = |format: &Format| {
        !matches!(format, Format::OracleGeneral | Format::U32Be | Format::Parquet)
            && !matches!(format, Format::VscsiV1 | Format::VscsiV2)
    };
    let text = head.strip_prefix(UTF8_MARK);
    text.and_then(|text| detect(path, text)).is_some_and(|format| in_lines(&format))
}

/// The format of a file called `path` that begins with `head`, if that is sure.
pub(crate) fn detect(path: &Path, head: &[u8]) -> Option<Format> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = [".zst", ".zstd", ".gz", ".xz"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(&name);
    by_name(name, head).or_else(|| by_contents(head))
}

/// Formats that have no mark of their own but a usual name.
fn by_name(name: &str, head: &[u8]) -> Option<Format> {
    let format = match () {
        () if name.contains("oraclegeneral") => Format::OracleGeneral,
        () if name.ends_with(".lis") => Format::Lis,
        () if name.ends_with(".u32be") => Format::U32Be,
        () => return None,
    };
    let is_text = format == Format::Lis;
    (!is_text || by_contents(head) == Some(Format::Lis)).then_some(format)
}

fn by_contents(head: &[u8]) -> Option<Format> {
    if head.starts_with(parquet::MAGIC) {
        return Some(Format::Parquet);
    }
    match vscsi::version(head) {
        Some(1) => return Some(Format::VscsiV1),
        Some(2) => return Some(Format::VscsiV2),
        _ => {}
    }
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.next().unwrap_or_default();
    if first == HEADINGS_BYTES.as_bytes() {
        return Some(Format::Csv);
    }
    if first == HEADINGS_OBJECTS.as_bytes() {
        return Some(Format::CsvObjects);
    }
    if first == HEADER_V2.as_bytes() {
        return Some(Format::FioV2);
    }
    if first == HEADER_V3.as_bytes() {
        return Some(Format::FioV3);
    }
    // The first line may be headings; the second decides as well.
    by_line(first).or_else(|| by_line(lines.next()?))
}

fn by_line(line: &[u8]) -> Option<Format> {
    let columns: Vec<&[u8]> = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
    let numbers = |columns: &[&[u8]]| columns.iter().all(|column| is_number(column));
    match columns.as_slice() {
        [time, _, disk, b"Read" | b"Write", rest @ ..]
            if rest.len() == 3 && numbers(&[time, disk]) && numbers(rest) =>
        {
            Some(Format::Msr)
        }
        [_, b"R" | b"W", rest @ ..] if rest.len() == 3 && numbers(rest) => Some(Format::Alibaba),
        [first @ .., b"0" | b"1", volume]
            if first.len() == 3 && numbers(first) && is_number(volume) =>
        {
            Some(Format::Tencent)
        }
        _ => by_blanks(line),
    }
}

fn by_blanks(line: &[u8]) -> Option<Format> {
    let columns: Vec<&[u8]> =
        line.split(u8::is_ascii_whitespace).filter(|column| !column.is_empty()).collect();
    let numbers = columns.iter().all(|column| is_number(column));
    match (columns.as_slice(), numbers) {
        ([device, cpu, sequence, _, pid, _, ..], false)
            if is_device(device)
                && [cpu, sequence, pid].into_iter().all(|text| is_number(text)) =>
        {
            Some(Format::Blkparse)
        }
        ([_, _, b"0", _], true) => Some(Format::Lis),
        ([_], true) => Some(Format::Blocks),
        _ => None,
    }
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each format is known by its beginning, and what could be two is not guessed. Method: a
    /// first line of each; bytes that fit nothing; a table with other columns.
    #[test]
    fn formats_are_told_by_their_beginning() {
        for (head, format) in [
            ("128166372003061629,usr,0,Read,7014609920,24576,41286\n", Format::Msr),
            ("419,W,8792731648,16384,1577808144360767\n", Format::Alibaba),
            ("1538323200,12910952,128,0,1063\n", Format::Tencent),
            ("device_id,opcode,offset,length,timestamp\n0,R,0,4096,5\n", Format::Alibaba),
            ("at_ns,volume,operation,offset,length\n", Format::Csv),
            ("at_ns,volume,operation,object,size\n", Format::CsvObjects),
            ("fio version 2 iolog\n", Format::FioV2),
            ("fio version 3 iolog\n", Format::FioV3),
            ("  8,0    3        1     0.000000000   697  G   W 223490 + 8 [x]\n", Format::Blkparse),
            ("1 1 0 0\n2 1 0 0\n", Format::Lis),
            ("2819\n85\n", Format::Blocks),
        ] {
            assert_eq!(detect(Path::new("t"), head.as_bytes()), Some(format), "{head}");
            assert_eq!(detect(Path::new("t.CSV.gz"), head.as_bytes()), Some(format), "{head}");
        }
        for head in ["", "a,b,c\n", "1,2,3\n4,5,6\n", "\u{1}\u{2}", "1 2 3 4\n"] {
            assert_eq!(detect(Path::new("t.csv"), head.as_bytes()), None, "{head}");
        }
        assert_eq!(detect(Path::new("a.lis"), b"no list\n"), None);
    }

    /// Goal: every name is understood, and a wrong one is told the right ones. Method: all of them.
    #[test]
    fn names_round_trip() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("tape".parse::<Format>().is_err_and(|text| text.contains("oracle-general")));
    }
}
