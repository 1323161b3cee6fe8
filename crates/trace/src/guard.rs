//! What every record must be, whichever format it comes from, and who stops or counts when not.
//!
//! How: a decoder makes a record, the [`Guard`] admits it, [`Faults`] decides what a fault does.
//! Invariant: admitted records never go back in time, never wrap, and only flushes are empty.
//! Cost: a few compares per record.

use crate::error::{Fault, Place, Reason, Skipped, TraceError};
use crate::record::{LENGTH_MAX, RANGE_END_MAX, Record, Unit, VOLUMES_MAX};
use layby_types::{Nanos, Operation, VolumeId};
use std::collections::HashMap;

/// Bytes of a volume's name at most.
const NAME_BYTES_MAX: usize = 256;

/// Judges each record against the one before and the bounds of its unit.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    unit: Unit,
    at: Nanos,
}

impl Guard {
    pub(crate) fn new(unit: Unit) -> Guard {
        Guard { unit, at: Nanos::ZERO }
    }
    pub(crate) fn unit(&self) -> Unit {
        self.unit
    }
    /// Lets `record` pass, or says what is wrong with it.
    #[inline]
    pub(crate) fn admit(&mut self, record: &Record) -> Result<(), Box<Fault>> {
        let is_empty = record.length == 0 && record.operation != Operation::Flush;
        let in_range = self.unit == Unit::Objects || fits(record);
        if record.at < self.at || is_empty || !in_range {
            return Err(self.fault(record));
        }
        self.at = record.at;
        Ok(())
    }
    #[cold]
    fn fault(&self, record: &Record) -> Box<Fault> {
        if record.at < self.at {
            let found = format!("{} ns, after {} ns", record.at.0, self.at.0);
            Fault::value(Reason::Backwards, "time", found, "none before the record before")
        } else if record.length == 0 {
            Fault::value(Reason::ZeroLength, "length", 0, "at least one byte")
        } else if record.length > LENGTH_MAX && record.operation != Operation::Trim {
            Fault::value(Reason::Range, "length", record.length, "at most 1 GiB")
        } else {
            Fault::value(Reason::Range, "offset", record.offset, "a range that ends within 64 PiB")
        }
    }
}

/// Whether a range of a block device is short enough and ends early enough.
#[inline]
fn fits(record: &Record) -> bool {
    let is_short = record.length <= LENGTH_MAX || record.operation == Operation::Trim;
    let end = record.offset.checked_add(record.length);
    is_short && end.is_some_and(|end| end <= RANGE_END_MAX)
}

/// Stops at the first fault, or counts it and goes on.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    lenient: bool,
    skipped: Skipped,
}

impl Faults {
    pub(crate) fn new(lenient: bool) -> Faults {
        Faults { lenient, skipped: Skipped::default() }
    }
    /// A record at `place` is left out.
    #[cold]
    pub(crate) fn meet(&mut self, place: Place, fault: Box<Fault>) -> Result<(), TraceError> {
        if !self.lenient {
            return Err(TraceError::bad(place, fault));
        }
        self.skipped.add(fault.reason);
        Ok(())
    }
    pub(crate) fn skipped(&self) -> Skipped {
        self.skipped
    }
}

/// Instants of a trace that tells the time of day, counted from its first record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin(Option<u64>);

impl Origin {
    /// The time since the first call, in the units of `ticks`.
    #[inline]
    pub(crate) fn since(&mut self, ticks: u64) -> Result<u64, Box<Fault>> {
        let origin = *self.0.get_or_insert(ticks);
        ticks.checked_sub(origin).ok_or_else(|| {
            let found = format!("{ticks}, the first is {origin}");
            Fault::value(Reason::Backwards, "time", found, "none before the record before")
        })
    }
}

/// `ticks` of `nanos` each.
#[inline]
pub(crate) fn instant(ticks: u64, nanos: u64) -> Result<Nanos, Box<Fault>> {
    ticks.checked_mul(nanos).map(Nanos).ok_or_else(|| {
        Fault::value(Reason::Range, "time", ticks, "a time within 584 years of the beginning")
    })
}

/// Numbers volumes in the order in which their names appear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volumes {
    names: Vec<String>,
    numbers: HashMap<Vec<u8>, VolumeId>,
    /// Traces name the same volume many times in a row.
    last: Option<(Vec<u8>, VolumeId)>,
}

impl Volumes {
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
    /// The number of the volume called `name`.
    pub(crate) fn number(&mut self, name: &[u8]) -> Result<VolumeId, Box<Fault>> {
        if let Some((last, number)) = &self.last
            && last == name
        {
            return Ok(*number);
        }
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => self.add(name)?,
        };
        let (last, last_number) = self.last.get_or_insert_with(|| (Vec::new(), number));
        last.clear();
        last.extend_from_slice(name);
        *last_number = number;
        Ok(number)
    }
    fn add(&mut self, name: &[u8]) -> Result<VolumeId, Box<Fault>> {
        let wrong =
            |reason| Fault::new(reason, "volume", name, "a name of 1 to 256 bytes in UTF-8");
        if self.names.len() >= VOLUMES_MAX {
            return Err(Fault::new(Reason::Volumes, "volume", name, "at most 65536 volumes"));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(wrong(Reason::Columns));
        }
        let text = std::str::from_utf8(name).map_err(|_| wrong(Reason::Encoding))?;
        let number = VolumeId(self.names.len() as u32);
        self.names.push(text.to_owned());
        self.numbers.insert(name.to_vec(), number);
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(at: u64, offset: u64, length: u64) -> Record {
        let (at, volume) = (Nanos(at), VolumeId(0));
        Record { at, volume, operation: Operation::Read, offset, length }
    }

    /// Goal: each rule has its reason, and what keeps all rules passes. Method: a record per rule.
    #[test]
    fn each_rule_has_its_reason() {
        let mut guard = Guard::new(Unit::Bytes);
        assert_eq!(guard.admit(&read(5, 0, 4096)), Ok(()));
        for (record, reason) in [
            (read(4, 0, 1), Reason::Backwards),
            (read(5, 0, 0), Reason::ZeroLength),
            (read(5, 0, LENGTH_MAX + 1), Reason::Range),
            (read(5, RANGE_END_MAX, 1), Reason::Range),
            (read(5, u64::MAX, 2), Reason::Range),
        ] {
            assert_eq!(guard.admit(&record).map_err(|fault| fault.reason), Err(reason));
        }
        assert_eq!(guard.admit(&read(5, RANGE_END_MAX - 1, 1)), Ok(()));
        let flush = Record { operation: Operation::Flush, ..read(6, 0, 0) };
        assert_eq!(guard.admit(&flush), Ok(()));
        assert_eq!(Guard::new(Unit::Objects).admit(&read(0, u64::MAX, 1)), Ok(()));
    }

    /// Goal: volumes are numbered once each, and bounded. Method: repeated, odd and too many names.
    #[test]
    fn volumes_are_numbered_in_order() {
        let mut volumes = Volumes::default();
        let numbers: Vec<_> = [b"a", b"b", b"a", b"a"].map(|name| volumes.number(name)).into();
        assert_eq!(numbers, [0, 1, 0, 0].map(|number| Ok(VolumeId(number))));
        assert_eq!(volumes.names(), ["a", "b"]);
        for (name, reason) in [(&b"\xff"[..], Reason::Encoding), (b"", Reason::Columns)] {
            assert_eq!(volumes.number(name).map_err(|fault| fault.reason), Err(reason));
        }
        for number in 2..VOLUMES_MAX {
            assert!(volumes.number(number.to_string().as_bytes()).is_ok());
        }
        let full = volumes.number(b"more").map_err(|fault| fault.reason);
        assert_eq!(full, Err(Reason::Volumes));
    }
}
