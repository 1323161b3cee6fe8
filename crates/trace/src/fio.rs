//! fio's I/O logs, versions 2 and 3.
//!
//! The first line is `fio version 2 iolog` or `fio version 3 iolog`. Then, with a time in
//! microseconds in front in version 3: `file add|open|close`, which holds no request, or
//! `file read|write|trim offset length`, or `file sync|datasync|sync_file_range` with or without
//! numbers, which is a flush. Version 2 has `file wait milliseconds` in place of times: fio's
//! replay rests until so long after its own start (iolog.c, `read_iolog_get`), though its manual
//! says microseconds since the wait before.
//! Invariant: each file is a volume. Cost: as any text, see `text`.
//! Not for: version 1, which names no file; fio itself has refused it since 2008.

use crate::error::{Fault, Reason};
use crate::format::Format;
use crate::guard::{Volumes, instant};
use crate::record::Record;
use crate::text::{Columns, Lines, Sink, number};
use layby_types::{Nanos, Operation};

const MICRO_NANOS: u64 = 1000;
const MILLI_NANOS: u64 = 1_000_000;
const ACTIONS: &str = "read, write, trim, sync, datasync, wait (version 2), add, open or close";

/// The first line of version 2.
pub(crate) const HEADER_V2: &str = "fio version 2 iolog";
/// The first line of version 3.
pub(crate) const HEADER_V3: &str = "fio version 3 iolog";

/// Reads both versions.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    has_times: bool,
    has_header: bool,
    /// Version 2: the latest instant that was waited for.
    waited: Nanos,
    volumes: Volumes,
}

impl Fio {
    pub(crate) fn new(format: Format) -> Fio {
        let has_times = format == Format::FioV3;
        Fio { has_times, has_header: false, waited: Nanos::ZERO, volumes: Volumes::default() }
    }

    fn header(&self, line: &[u8]) -> Result<(), Box<Fault>> {
        let expected = if self.has_times { HEADER_V3 } else { HEADER_V2 };
        if line.trim_ascii() == expected.as_bytes() {
            return Ok(());
        }
        Err(Fault::new(Reason::Columns, "first line", line, expected))
    }

    /// The time of a line.
    fn at(&self, columns: &Columns<'_>) -> Result<Nanos, Box<Fault>> {
        if !self.has_times {
            return Ok(self.waited);
        }
        instant(number("time", columns.get(0))?, MICRO_NANOS)
    }

    fn wait(&mut self, millis: &[u8]) -> Result<(), Box<Fault>> {
        let until = instant(number("wait", millis)?, MILLI_NANOS)?;
        // fio does not rest for what is past.
        self.waited = self.waited.max(until);
        Ok(())
    }
}

impl Lines for Fio {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        if !self.has_header {
            self.has_header = true;
            return self.header(line);
        }
        let columns = Columns::by_blanks(line);
        // Where the action stands: behind the file, and behind the time where there is one.
        let action = 1 + usize::from(self.has_times);
        let wrong = || Err(columns.wrong("[time] file action [offset length]"));
        if columns.count() == 0 {
            return Ok(());
        }
        let operation = match columns.get(action) {
            b"add" | b"open" | b"close" => return Ok(()),
            b"wait" if !self.has_times => return self.wait(columns.get(action + 1)),
            b"read" => Operation::Read,
            b"write" => Operation::Write,
            b"trim" => Operation::Trim,
            b"sync" | b"datasync" | b"sync_file_range" => Operation::Flush,
            b"" => return wrong(),
            other => return Err(Fault::new(Reason::Operation, "action", other, ACTIONS)),
        };
        let is_flush = operation == Operation::Flush;
        if columns.count() != action + 3 && !is_flush {
            return wrong();
        }
        let at = self.at(&columns)?;
        let volume = self.volumes.number(columns.get(action - 1))?;
        let (mut offset, mut length) = (0, 0);
        if !is_flush {
            offset = number("offset", columns.get(action + 1))?;
            length = number("length", columns.get(action + 2))?;
        }
        sink.push(Record { at, volume, operation, offset, length })
    }
    fn volumes(&self) -> &[String] {
        self.volumes.names()
    }
}
