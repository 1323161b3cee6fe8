//! Traces that are text: a line per request, and the numbers in it.
//!
//! How: [`Text`] cuts lines and gives each to a format's [`Lines`], which makes records of it.
//! Invariant: lines are counted from 1; a fault names its line. Numbers are parsed from bytes, so
//! text that is not UTF-8 is a fault and never a panic.
//! Cost: no allocation per line.

use crate::error::{Fault, Place, Reason, Skipped, TraceError};
use crate::format::{Format, UTF8_MARK};
use crate::guard::{Faults, Guard};
use crate::input::{LINE_BYTES_MAX, Line, Source};
use crate::record::{BATCH_RECORDS_MAX, Reader, Record, Unit};
use std::io::{BufRead, Read};

/// Columns of a line at most; what follows is counted and not looked at.
const COLUMNS_MAX: usize = 16;

/// Makes records of lines.
pub(crate) trait Lines {
    /// Makes records of one line, none for a line that holds no request.
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>>;
    /// Names of the volumes so far.
    fn volumes(&self) -> &[String] {
        &[]
    }
}

/// Where [`Lines`] puts its records.
pub(crate) struct Sink<'a> {
    batch: &'a mut Vec<Record>,
    guard: &'a mut Guard,
}

impl Sink<'_> {
    /// Adds `record`, if the guard admits it.
    #[inline]
    pub(crate) fn push(&mut self, record: Record) -> Result<(), Box<Fault>> {
        self.guard.admit(&record)?;
        self.batch.push(record);
        Ok(())
    }
}

/// Reads a text line by line.
pub(crate) struct Text<R, L> {
    source: Source<R>,
    lines: L,
    guard: Guard,
    faults: Faults,
    line: u64,
    at_end: bool,
}

impl<R: Read, L: Lines> Text<R, L> {
    pub(crate) fn new(input: R, lines: L, format: Format, lenient: bool) -> Self {
        Text {
            source: Source::new(input),
            lines,
            guard: Guard::new(format.unit()),
            faults: Faults::new(lenient),
            line: 0,
            at_end: false,
        }
    }

    fn fill_to(&mut self, batch: &mut Vec<Record>) -> Result<(), TraceError> {
        while batch.len() < BATCH_RECORDS_MAX && !self.at_end {
            let line = match self.source.line()? {
                Line::End => {
                    self.at_end = true;
                    continue;
                }
                line => line,
            };
            self.line += 1;
            let sink = &mut Sink { batch, guard: &mut self.guard };
            let made = match line {
                Line::Text(text) => self.lines.line(text, sink),
                Line::TooLong(head) => {
                    Err(Fault::new(Reason::LongLine, "line", &head, "at most 4096 bytes"))
                }
                Line::End => Ok(()),
            };
            if let Err(fault) = made {
                self.faults.meet(Place::Line(self.line), fault)?;
            }
        }
        Ok(())
    }
}

impl<R: Read, L: Lines> Reader for Text<R, L> {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<usize, TraceError> {
        batch.clear();
        let filled = self.fill_to(batch);
        self.at_end |= filled.is_err();
        filled.map(|()| batch.len())
    }
    fn unit(&self) -> Unit {
        self.guard.unit()
    }
    fn skipped(&self) -> Skipped {
        self.faults.skipped()
    }
    fn volumes(&self) -> &[String] {
        self.lines.volumes()
    }
    fn has_open_end(&self) -> bool {
        self.source.has_open_end()
    }
}

/// Lines that count themselves and never grow beyond bounds. A byte order mark before the first is
/// no part of it.
pub(crate) struct NumberedLines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    offset: u64,
}

impl<R: BufRead> NumberedLines<R> {
    pub(crate) fn new(input: R) -> Self {
        NumberedLines { input, line: Vec::new(), number: 0, offset: 0 }
    }
    /// The line, without its end.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }
    /// Its number, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    /// The next line that is not blank, without its end; false at the end of the input.
    pub(crate) fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            self.line.clear();
            let bound = LINE_BYTES_MAX as u64 + 1;
            let read = (&mut self.input).take(bound).read_until(b'\n', &mut self.line);
            let count = read.map_err(|cause| TraceError::Read { offset: self.offset, cause })?;
            self.number += 1;
            self.offset += count as u64;
            if self.number == 1 && self.line.starts_with(UTF8_MARK) {
                self.line.drain(..UTF8_MARK.len());
            }
            if self.line.len() > LINE_BYTES_MAX {
                let fault = Fault::new(Reason::LongLine, "line", &self.line, "a shorter line");
                return Err(TraceError::bad(Place::Line(self.number), fault));
            }
            self.line.truncate(self.line.trim_ascii_end().len());
            if count == 0 || !self.line.is_empty() {
                return Ok(count > 0);
            }
        }
    }
}

/// Columns of a line.
pub(crate) struct Columns<'a> {
    columns: [&'a [u8]; COLUMNS_MAX],
    count: usize,
}

impl<'a> Columns<'a> {
    /// Columns separated by commas, without the blanks around them.
    pub(crate) fn by_commas(line: &'a [u8]) -> Self {
        Columns::gather(line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
    }
    /// Columns separated by blanks.
    pub(crate) fn by_blanks(line: &'a [u8]) -> Self {
        let parts = line.split(u8::is_ascii_whitespace);
        Columns::gather(parts.filter(|part| !part.is_empty()))
    }
    fn gather(parts: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut columns, mut count) = ([&[][..]; COLUMNS_MAX], 0);
        for part in parts {
            if let Some(column) = columns.get_mut(count) {
                *column = part;
            }
            count += 1;
        }
        Columns { columns, count }
    }
    /// How many columns the line has.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
    /// The columns, if there are exactly `N`.
    pub(crate) fn exactly<const N: usize>(
        &self,
        expected: &'static str,
    ) -> Result<[&'a [u8]; N], Box<Fault>> {
        if self.count != N {
            return Err(self.wrong(expected));
        }
        Ok(std::array::from_fn(|index| self.get(index)))
    }
    /// The column at `index`, empty where there is none.
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        self.columns.get(index).copied().unwrap_or_default()
    }
    /// The fault of a line with the wrong number of columns.
    #[cold]
    pub(crate) fn wrong(&self, expected: &'static str) -> Box<Fault> {
        let found = format!("{} columns", self.count);
        Fault::value(Reason::Columns, "line", found, expected)
    }
}

/// The whole number that `text` is.
#[inline]
pub(crate) fn number(column: &'static str, text: &[u8]) -> Result<u64, Box<Fault>> {
    digits(text).ok_or_else(|| {
        Fault::new(Reason::Number, column, text, "a whole number from 0 to 18446744073709551615")
    })
}

#[inline]
fn digits(text: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!text.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only whole numbers of 64 bits are numbers. Method: edges and near misses.
    #[test]
    fn numbers_are_whole_and_bounded() {
        assert_eq!(number("n", b"0"), Ok(0));
        assert_eq!(number("n", b"18446744073709551615"), Ok(u64::MAX));
        for bad in [&b""[..], b"-1", b"+1", b"1.5", b"18446744073709551616", b" 1", b"0x1"] {
            assert_eq!(number("n", bad).map_err(|fault| fault.reason), Err(Reason::Number));
        }
        assert_eq!(number("n", b"\xff").map_err(|fault| fault.reason), Err(Reason::Encoding));
    }

    /// Goal: columns are counted beyond what is kept. Method: too few, exact, far too many.
    #[test]
    fn columns_are_counted() {
        let columns = Columns::by_commas(b" a , b,c ");
        assert_eq!(columns.exactly::<3>("3"), Ok([&b"a"[..], b"b", b"c"]));
        assert!(columns.exactly::<2>("2").is_err());
        assert_eq!(Columns::by_blanks(b"  a\t b ").count(), 2);
        assert_eq!(Columns::by_commas(&[b','; 99]).count(), 100);
        assert_eq!(Columns::by_commas(&[b','; 99]).get(60), b"");
    }
}
