//! The text that `blkparse` prints in its default form.
//!
//! A line: `major,minor cpu sequence seconds.nanoseconds pid action rwbs [sector + sectors]
//! [process]`. Of the actions only one makes records, see [`BlockEvent`]; others are passed over,
//! since they tell of the same requests. In `rwbs` an `F` in front asks for a flush before the
//! request; without sectors it is a flush alone. `D` is a trim, `W` a write, `R` a read; requests
//! without data and without a flush (`N`) are passed over.
//! Invariant: each device is a volume; reading ends where the summary begins.
//! Cost: as any text, see `text`. Not for: other forms (`blkparse -f`).

use crate::error::{Fault, Reason};
use crate::guard::{Volumes, instant};
use crate::record::{BlockEvent, Record};
use crate::text::{Columns, Lines, Sink, number};
use layby_types::{Nanos, Operation};

const SECTOR_BYTES: u64 = 512;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Digits behind the point of a time.
const FRACTION_DIGITS: usize = 9;
const FORM: &str = "device cpu sequence time pid action rwbs [sector + sectors]";

/// Reads blkparse text.
#[derive(Clone, Debug)]
pub(crate) struct Blkparse {
    action: &'static [u8],
    in_summary: bool,
    volumes: Volumes,
}

impl Blkparse {
    pub(crate) fn new(event: BlockEvent) -> Blkparse {
        let action = match event {
            BlockEvent::Queue => b"Q",
            BlockEvent::Complete => b"C",
        };
        Blkparse { action, in_summary: false, volumes: Volumes::default() }
    }
}

impl Lines for Blkparse {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        let columns = Columns::by_blanks(line);
        self.in_summary |= is_summary(columns.get(0));
        if self.in_summary || columns.count() == 0 {
            return Ok(());
        }
        if columns.count() < 6 || !is_device(columns.get(0)) {
            return Err(columns.wrong(FORM));
        }
        if columns.get(5) != self.action {
            return Ok(());
        }
        let Some((operation, offset, length)) = request(&columns)? else { return Ok(()) };
        let at = seconds(columns.get(3))?;
        let volume = self.volumes.number(columns.get(0))?;
        sink.push(Record { at, volume, operation, offset, length })
    }
    fn volumes(&self) -> &[String] {
        self.volumes.names()
    }
}

/// Whether a line that begins with this word belongs to the summary at the end.
fn is_summary(first: &[u8]) -> bool {
    [&b"CPU"[..], b"Total", b"Throughput", b"Events"].iter().any(|word| first.starts_with(word))
}

/// Whether `text` is `major,minor`.
pub(crate) fn is_device(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b',');
    let is_number = |part: Option<&[u8]>| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    is_number(parts.next()) && is_number(parts.next()) && parts.next().is_none()
}

/// Operation, offset and length; `None` for a request without data.
fn request(columns: &Columns<'_>) -> Result<Option<(Operation, u64, u64)>, Box<Fault>> {
    let rwbs = columns.get(6);
    let (flushes, kind) = match rwbs.strip_prefix(b"F") {
        Some(rest) => (true, rest),
        None => (false, rwbs),
    };
    let has_range = columns.get(8) == b"+";
    let operation = match kind.first() {
        Some(b'R') => Operation::Read,
        Some(b'W') => Operation::Write,
        Some(b'D') => Operation::Trim,
        Some(b'N') | None if flushes => Operation::Flush,
        Some(b'N') => return Ok(None),
        _ => return Err(Fault::new(Reason::Operation, "rwbs", rwbs, "R, W, D, N or F and more")),
    };
    let sectors = if has_range { number("sectors", columns.get(9))? } else { 0 };
    if operation == Operation::Flush || (flushes && sectors == 0) {
        return Ok(Some((Operation::Flush, 0, 0)));
    }
    if !has_range {
        return Err(columns.wrong(FORM));
    }
    let bytes = |count: u64| {
        count.checked_mul(SECTOR_BYTES).ok_or_else(|| {
            Fault::value(Reason::Range, "sector", count, "a range that ends within 64 PiB")
        })
    };
    let offset = bytes(number("sector", columns.get(7))?)?;
    Ok(Some((operation, offset, bytes(sectors)?)))
}

/// A time such as `12.000001234`.
fn seconds(text: &[u8]) -> Result<Nanos, Box<Fault>> {
    let wrong = || Fault::new(Reason::Number, "time", text, "seconds and nine digits of a second");
    let point = text.iter().position(|byte| *byte == b'.').ok_or_else(wrong)?;
    let (whole, fraction) = (&text[..point], &text[point + 1..]);
    if fraction.len() != FRACTION_DIGITS {
        return Err(wrong());
    }
    let nanos = number("time", fraction)?;
    Ok(instant(number("time", whole)?, NANOS_PER_SECOND)?.saturating_add(Nanos(nanos)))
}
