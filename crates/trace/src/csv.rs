//! Block traces in comma-separated columns: MSR Cambridge, Alibaba, Tencent, and Layby's own.
//!
//! | format | columns | time | offset and length |
//! | --- | --- | --- | --- |
//! | `msr` | time, host, disk, `Read` or `Write`, offset, length, response time | 100 ns | bytes |
//! | `alibaba` | volume, `R` or `W`, offset, length, time | 1 us | bytes |
//! | `tencent` | time, offset, length, 0 or 1 (write), volume | 1 s | 512 bytes |
//! | `csv` | at_ns, volume, operation, offset, length | 1 ns | bytes, or objects |
//!
//! A first line of headings is passed over where the format may have one; Layby's own must.
//! Invariant: times of the first three count from the first record. Volumes are numbered as they
//! appear, but for Layby's own, which keeps its numbers. Cost: about ten nanoseconds per column.

use crate::error::{Fault, Reason};
use crate::guard::{Origin, Volumes, instant};
use crate::record::{Record, Unit};
use crate::text::{Columns, Lines, Sink, number};
use layby_types::{Nanos, Operation, VolumeId};

/// The first line of Layby's own form, for a block device.
pub(crate) const HEADINGS_BYTES: &str = "at_ns,volume,operation,offset,length";
/// The first line of Layby's own form, for objects.
pub(crate) const HEADINGS_OBJECTS: &str = "at_ns,volume,operation,object,size";

const SECTOR_BYTES: u64 = 512;
const MSR_TICK_NANOS: u64 = 100;
const ALIBABA_TICK_NANOS: u64 = 1000;
const TENCENT_TICK_NANOS: u64 = 1_000_000_000;

/// Whether the first line of a file is headings: nothing in it begins with a digit.
fn is_headings(line: &[u8]) -> bool {
    !line.is_empty()
        && line
            .split(|byte| *byte == b',')
            .all(|column| column.trim_ascii().first().is_some_and(u8::is_ascii_alphabetic))
}

/// `bytes` of sectors.
#[inline]
fn sectors(column: &'static str, text: &[u8]) -> Result<u64, Box<Fault>> {
    let count = number(column, text)?;
    count.checked_mul(SECTOR_BYTES).ok_or_else(|| {
        Fault::value(Reason::Range, column, count, "a range that ends within 64 PiB")
    })
}

#[inline]
fn operation(
    text: &[u8],
    read: &[u8],
    write: &[u8],
    expected: &'static str,
) -> Result<Operation, Box<Fault>> {
    if text == read {
        Ok(Operation::Read)
    } else if text == write {
        Ok(Operation::Write)
    } else {
        Err(Fault::new(Reason::Operation, "operation", text, expected))
    }
}

/// What the three published formats share.
#[derive(Clone, Debug, Default)]
struct Published {
    origin: Origin,
    volumes: Volumes,
    lines: u64,
}

impl Published {
    /// Whether `line` holds no request: an empty line, or headings at the top.
    fn passes_over(&mut self, line: &[u8]) -> bool {
        self.lines += 1;
        line.trim_ascii().is_empty() || (self.lines == 1 && is_headings(line))
    }
    fn at(&mut self, text: &[u8], tick_nanos: u64) -> Result<Nanos, Box<Fault>> {
        instant(self.origin.since(number("time", text)?)?, tick_nanos)
    }
}

/// Reads the traces that Microsoft Research Cambridge published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Msr {
    common: Published,
    name: Vec<u8>,
}

impl Lines for Msr {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        if self.common.passes_over(line) {
            return Ok(());
        }
        let columns = Columns::by_commas(line);
        let [time, host, disk, kind, offset, length, response] =
            columns.exactly("7: time,host,disk,operation,offset,length,response time")?;
        let operation = operation(kind, b"Read", b"Write", "`Read` or `Write`")?;
        let (offset, length) = (number("offset", offset)?, number("length", length)?);
        number("response time", response)?;
        self.name.clear();
        for part in [host, &b"."[..], disk] {
            self.name.extend_from_slice(part);
        }
        let volume = self.common.volumes.number(&self.name)?;
        let at = self.common.at(time, MSR_TICK_NANOS)?;
        sink.push(Record { at, volume, operation, offset, length })
    }
    fn volumes(&self) -> &[String] {
        self.common.volumes.names()
    }
}

/// Reads the block traces that Alibaba published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alibaba(Published);

impl Lines for Alibaba {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        if self.0.passes_over(line) {
            return Ok(());
        }
        let columns = Columns::by_commas(line);
        let [volume, kind, offset, length, time] =
            columns.exactly("5: volume,operation,offset,length,time")?;
        let operation = operation(kind, b"R", b"W", "`R` or `W`")?;
        let (offset, length) = (number("offset", offset)?, number("length", length)?);
        let volume = self.0.volumes.number(volume)?;
        let at = self.0.at(time, ALIBABA_TICK_NANOS)?;
        sink.push(Record { at, volume, operation, offset, length })
    }
    fn volumes(&self) -> &[String] {
        self.0.volumes.names()
    }
}

/// Reads the block traces that Tencent published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tencent(Published);

impl Lines for Tencent {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        if self.0.passes_over(line) {
            return Ok(());
        }
        let columns = Columns::by_commas(line);
        let [time, offset, length, kind, volume] =
            columns.exactly("5: time,offset,length,operation,volume")?;
        let operation = operation(kind, b"0", b"1", "0 (read) or 1 (write)")?;
        let (offset, length) = (sectors("offset", offset)?, sectors("length", length)?);
        let volume = self.0.volumes.number(volume)?;
        let at = self.0.at(time, TENCENT_TICK_NANOS)?;
        sink.push(Record { at, volume, operation, offset, length })
    }
    fn volumes(&self) -> &[String] {
        self.0.volumes.names()
    }
}

/// Reads Layby's own form.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    unit: Unit,
    has_headings: bool,
}

impl Own {
    pub(crate) fn new(unit: Unit) -> Own {
        Own { unit, has_headings: false }
    }
}

/// The words of Layby's own form.
pub(crate) const OPERATIONS: [(&str, Operation); 4] = [
    ("read", Operation::Read),
    ("write", Operation::Write),
    ("trim", Operation::Trim),
    ("flush", Operation::Flush),
];

impl Lines for Own {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        if !self.has_headings {
            self.has_headings = true;
            return self.headings(line);
        }
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let columns = Columns::by_commas(line);
        let [at, volume, kind, offset, length] =
            columns.exactly("5: at_ns,volume,operation,offset,length")?;
        let word = OPERATIONS.iter().find(|(word, _)| word.as_bytes() == kind);
        let operation = word.map(|(_, operation)| *operation).ok_or_else(|| {
            Fault::new(Reason::Operation, "operation", kind, "`read`, `write`, `trim` or `flush`")
        })?;
        let (offset, length) = (number("offset", offset)?, number("length", length)?);
        let (at, volume) = (Nanos(number("at_ns", at)?), own_volume(number("volume", volume)?)?);
        sink.push(Record { at, volume, operation, offset, length })
    }
}

impl Own {
    fn headings(&self, line: &[u8]) -> Result<(), Box<Fault>> {
        let expected = match self.unit {
            Unit::Bytes => HEADINGS_BYTES,
            Unit::Objects => HEADINGS_OBJECTS,
        };
        if line.trim_ascii() == expected.as_bytes() {
            return Ok(());
        }
        Err(Fault::new(Reason::Columns, "first line", line, expected))
    }
}

/// A volume that a trace of Layby's own names by number.
pub(crate) fn own_volume(number: u64) -> Result<VolumeId, Box<Fault>> {
    let volume = u32::try_from(number).ok().map(VolumeId).filter(|id| *id <= VolumeId::MAX);
    volume.ok_or_else(|| Fault::value(Reason::Range, "volume", number, "at most 1048575"))
}
