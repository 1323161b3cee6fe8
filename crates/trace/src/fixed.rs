//! Binary traces of fixed-size records.
//!
//! How: [`Fixed`] walks whole records in a large buffer; a format's [`Layout`] decodes one.
//! Invariant: a fault names the first byte of its record; a rest at the end is `Truncated`.
//! Cost: one inlined decode and a few compares per record, see the module `oracle` for figures.

use crate::error::{Fault, Place, Reason, Skipped, TraceError};
use crate::format::Format;
use crate::guard::{Faults, Guard};
use crate::input::Source;
use crate::record::{BATCH_RECORDS_MAX, Reader, Record, Unit};
use std::io::Read;

/// Decodes records of a fixed size.
pub(crate) trait Layout {
    /// Bytes of a record.
    const BYTES: usize;
    /// What a truncated trace should have ended with.
    const WHOLE: &'static str;
    /// The request in `record`, which has [`Layout::BYTES`] bytes.
    fn decode(&mut self, record: &[u8]) -> Result<Record, Box<Fault>>;
}

/// Reads records one after the other.
pub(crate) struct Fixed<R, L> {
    source: Source<R>,
    layout: L,
    guard: Guard,
    faults: Faults,
    at_end: bool,
}

impl<R: Read, L: Layout> Fixed<R, L> {
    pub(crate) fn new(input: R, layout: L, format: Format, lenient: bool) -> Self {
        let (guard, faults) = (Guard::new(format.unit()), Faults::new(lenient));
        Fixed { source: Source::new(input), layout, guard, faults, at_end: false }
    }

    fn fill_to(&mut self, batch: &mut Vec<Record>) -> Result<(), TraceError> {
        while batch.len() < BATCH_RECORDS_MAX && !self.at_end {
            let offset = self.source.consumed();
            let ahead = self.source.ahead(L::BYTES)?;
            let count = (ahead.len() / L::BYTES).min(BATCH_RECORDS_MAX - batch.len());
            if count == 0 {
                self.at_end = true;
                let rest = ahead.len();
                return self.tail(offset, rest);
            }
            for (index, record) in ahead[..count * L::BYTES].chunks_exact(L::BYTES).enumerate() {
                let decoded = self.layout.decode(record);
                match decoded.and_then(|record| self.guard.admit(&record).map(|()| record)) {
                    Ok(record) => batch.push(record),
                    Err(fault) => {
                        let place = Place::Byte(offset + (index * L::BYTES) as u64);
                        self.faults.meet(place, fault)?;
                    }
                }
            }
            self.source.consume(count * L::BYTES);
        }
        Ok(())
    }

    /// The trace ends with `rest` bytes that are no record.
    fn tail(&mut self, offset: u64, rest: usize) -> Result<(), TraceError> {
        if rest == 0 {
            return Ok(());
        }
        let found = format!("{rest} bytes");
        let fault = Fault::value(Reason::Truncated, "last record", found, L::WHOLE);
        self.faults.meet(Place::Byte(offset), fault)
    }
}

impl<R: Read, L: Layout> Reader for Fixed<R, L> {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<usize, TraceError> {
        batch.clear();
        batch.reserve(BATCH_RECORDS_MAX);
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
        &[]
    }
}

/// The four bytes at `at`.
#[inline]
pub(crate) fn four(record: &[u8], at: usize) -> [u8; 4] {
    record[at..at + 4].try_into().expect("the range has four bytes")
}

/// The eight bytes at `at`.
#[inline]
pub(crate) fn eight(record: &[u8], at: usize) -> [u8; 8] {
    record[at..at + 8].try_into().expect("the range has eight bytes")
}
