//! Links as text: `time_s,bytes_per_s[,rtt_ms]`, a line per interval.
//!
//! How: the first line names the columns. Times are seconds with fractions, rise, and count from
//! the first one; a line holds until the next one's time, the last as long as the one before it (a
//! second where there is one only).
//! Invariant: what is written is read back the same, to the microsecond of times and round trips.
//! A bad line is an error with its number. Cost: about a hundred nanoseconds per line.

use super::{LinkSample, LinkTrace};
use crate::error::{Fault, Place, Reason, TraceError};
use crate::text::{Columns, NumberedLines};
use layby_types::Nanos;
use std::io::{BufRead, Write};

/// Samples of a trace at most: a month of seconds.
pub const LINK_SAMPLES_MAX: usize = 31 * 86_400;

const HEADINGS: &str = "time_s,bytes_per_s";
const HEADINGS_ALL: &str = "time_s,bytes_per_s,rtt_ms";
/// A terabyte per second; a day of round trip; a century of seconds.
const RATE_MAX: f64 = 1e12;
const ROUND_TRIP_MAX_MS: f64 = 8.64e7;
const TIME_MAX: f64 = 3.2e9;

/// Reads a link's trace.
///
/// # Errors
/// [`TraceError`] with the line where the headings are others, a column is missing, a number is
/// none or out of range, time does not rise, or a line is too long; also where there is no sample.
pub fn read_link(input: impl BufRead) -> Result<LinkTrace, TraceError> {
    let mut lines = NumberedLines::new(input);
    let (mut columns, mut samples, mut first) = (None, Vec::new(), Nanos::ZERO);
    while lines.advance()? {
        let bad = |fault| TraceError::bad(Place::Line(lines.number()), fault);
        let Some(count) = columns else {
            columns = Some(headings(lines.line()).map_err(bad)?);
            continue;
        };
        let mut sample = sample(lines.line(), count).map_err(bad)?;
        if samples.is_empty() {
            first = sample.at;
        }
        sample.at = follow(samples.last(), sample.at, first).map_err(bad)?;
        if samples.len() == LINK_SAMPLES_MAX {
            let expected = "at most 2678400 samples";
            return Err(bad(Fault::value(Reason::Range, "samples", samples.len() + 1, expected)));
        }
        samples.push(sample);
    }
    let Some(length) = length(&samples) else {
        let fault = Fault::new(Reason::Truncated, "trace", b"", "headings and a sample");
        return Err(TraceError::bad(Place::Line(lines.number()), fault));
    };
    Ok(LinkTrace { samples, length })
}

/// Writes a link's trace; the round trip where every sample has one.
///
/// # Errors
/// [`TraceError::Write`] where the output fails.
pub fn write_link(trace: &LinkTrace, mut output: impl Write) -> Result<(), TraceError> {
    let all = trace.samples.iter().all(|sample| sample.round_trip.is_some());
    let failed = |cause| TraceError::Write { cause };
    let headings = if all { HEADINGS_ALL } else { HEADINGS };
    writeln!(output, "{headings}").map_err(failed)?;
    for sample in &trace.samples {
        let micros = sample.at.0 / 1000;
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        write!(output, "{seconds}.{fraction:06},{}", sample.bytes_per_second).map_err(failed)?;
        if let Some(round_trip) = sample.round_trip.filter(|_| all) {
            let micros = round_trip.0 / 1000;
            write!(output, ",{}.{:03}", micros / 1000, micros % 1000).map_err(failed)?;
        }
        writeln!(output).map_err(failed)?;
    }
    output.flush().map_err(failed)
}

/// How many columns there are.
fn headings(line: &[u8]) -> Result<usize, Box<Fault>> {
    let columns = Columns::by_commas(line);
    let names: Vec<&[u8]> = (0..columns.count()).map(|place| columns.get(place)).collect();
    let all: Vec<&[u8]> = HEADINGS_ALL.split(',').map(str::as_bytes).collect();
    if names.len() >= 2 && all.starts_with(&names) {
        return Ok(names.len());
    }
    let expected = "the headings `time_s,bytes_per_s` or `time_s,bytes_per_s,rtt_ms`";
    Err(Fault::new(Reason::Columns, "first line", line, expected))
}

fn sample(line: &[u8], count: usize) -> Result<LinkSample, Box<Fault>> {
    let columns = Columns::by_commas(line);
    if columns.count() != count {
        return Err(columns.wrong("as many columns as headings"));
    }
    let seconds = decimal("time_s", columns.get(0), TIME_MAX, "seconds, at most 3200000000")?;
    let expected = "bytes per second, at most 1000000000000";
    let rate = decimal("bytes_per_s", columns.get(1), RATE_MAX, expected)?;
    let round_trip = match count {
        3 => {
            let expected = "milliseconds, at most 86400000";
            let millis = decimal("rtt_ms", columns.get(2), ROUND_TRIP_MAX_MS, expected)?;
            Some(Nanos::from_micros((millis * 1000.0).round() as u64))
        }
        _ => None,
    };
    Ok(LinkSample {
        at: Nanos::from_micros((seconds * 1e6).round() as u64),
        bytes_per_second: rate.round() as u64,
        round_trip,
    })
}

/// The time of a sample, from the first one's.
fn follow(before: Option<&LinkSample>, at: Nanos, first: Nanos) -> Result<Nanos, Box<Fault>> {
    let since = at.since(first);
    match before {
        Some(before) if since <= before.at => {
            let found = at.as_secs_f64();
            let expected = "a time after that of the line before";
            Err(Fault::value(Reason::Backwards, "time_s", found, expected))
        }
        _ => Ok(since),
    }
}

/// Where the last sample ends; none where there is none.
fn length(samples: &[LinkSample]) -> Option<Nanos> {
    let last = samples.last()?;
    let before = samples.len().checked_sub(2).map(|place| samples[place].at);
    let interval = before.map_or(Nanos::from_secs(1), |before| last.at.since(before));
    Some(last.at.saturating_add(interval))
}

/// A number with digits and at most one point, up to `most`.
fn decimal(
    column: &'static str,
    text: &[u8],
    most: f64,
    expected: &'static str,
) -> Result<f64, Box<Fault>> {
    let plain = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let value = std::str::from_utf8(text).ok().filter(|_| plain);
    let value = value.and_then(|text| text.parse::<f64>().ok());
    let value = value.ok_or_else(|| Fault::new(Reason::Number, column, text, expected))?;
    if value > most {
        return Err(Fault::new(Reason::Range, column, text, expected));
    }
    Ok(value)
}
