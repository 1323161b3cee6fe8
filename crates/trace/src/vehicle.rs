//! Vehicles that arrive, stay and leave: drawn from parameters, or read from highD's metadata.
//!
//! How: gaps between drawn arrivals are exponential, stays even between two bounds; a recording's
//! tracks give the first and the last frame of each vehicle.
//! Invariant: stays are sorted by arrival, and none is empty. Cost: once per vehicle.
//! Not for: what a vehicle asks for; see `fleet`.
//! Source of the columns: Krajewski et al., "The highD dataset", ITSC 2018.

use crate::error::{Fault, Place, Reason, TraceError};
use crate::text::{Columns, NumberedLines, number};
use layby_types::{Nanos, Rng};
use std::io::BufRead;

/// Frames per second of highD's recordings.
const FRAMES_PER_SECOND: u64 = 25;
/// Tracks of one file at most; highD's largest recording has some 3000.
const TRACKS_MAX: usize = 1 << 20;

/// One vehicle's time in sight of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stay {
    /// It comes into sight.
    pub arrives: Nanos,
    /// It leaves; later than it arrives.
    pub leaves: Nanos,
}

/// Vehicles by parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VehicleSpec {
    /// In sight at once, on average.
    pub mean: f64,
    /// The shortest stay; not zero.
    pub stay_min: Nanos,
    /// The longest.
    pub stay_max: Nanos,
    /// Nobody arrives after this.
    pub span: Nanos,
    /// Same seed, same vehicles.
    pub seed: u64,
}

impl VehicleSpec {
    /// As on a motorway in highD: each of about 420 m takes a car 10 to 20 s; four at once.
    pub const DEFAULT: VehicleSpec = VehicleSpec {
        mean: 4.0,
        stay_min: Nanos::from_secs(10),
        stay_max: Nanos::from_secs(20),
        span: Nanos::from_secs(120),
        seed: 1,
    };

    /// The vehicles. The road is not empty at first: as many as are in sight on average are there
    /// at once, and leave one after the other. Panics unless mean and stays are above zero and in
    /// order.
    #[must_use]
    pub fn draw(&self) -> Vec<Stay> {
        assert!(self.mean > 0.0 && self.stay_min > Nanos::ZERO && self.stay_min <= self.stay_max);
        let mut rng = Rng::new(self.seed);
        let spread = self.stay_max.0 - self.stay_min.0 + 1;
        let mean_stay = self.stay_min.0.midpoint(self.stay_max.0) as f64;
        let mut stays = Vec::new();
        let present = self.mean.round().max(1.0) as u64;
        for _ in 0..present {
            let stay = self.stay_min.0 + rng.below(spread);
            let left = rng.below(stay).max(1);
            stays.push(Stay { arrives: Nanos::ZERO, leaves: Nanos(left) });
        }
        let mut at = 0.0;
        loop {
            at += -(1.0 - rng.unit()).ln() * mean_stay / self.mean;
            if at >= self.span.0 as f64 {
                return stays;
            }
            let arrives = Nanos(at as u64);
            let stay = Nanos(self.stay_min.0 + rng.below(spread));
            stays.push(Stay { arrives, leaves: arrives.saturating_add(stay) });
        }
    }
}

/// Vehicles of a highD recording: the columns `initialFrame` and `finalFrame` of its
/// `tracksMeta.csv`, whatever else stands beside them.
///
/// # Errors
/// [`TraceError`] with the line where headings or a column are missing, a number is none, a vehicle
/// leaves before it arrives, or a line is longer than [`crate::LINE_BYTES_MAX`].
pub fn tracks_meta(input: impl BufRead) -> Result<Vec<Stay>, TraceError> {
    let mut lines = NumberedLines::new(input);
    let mut places = None;
    let mut stays = Vec::new();
    while lines.advance()? {
        let columns = Columns::by_commas(lines.line());
        let place = Place::Line(lines.number());
        let bad = |fault| TraceError::bad(place, fault);
        let Some((first, last)) = places else {
            places = Some(headings(&columns).map_err(bad)?);
            continue;
        };
        if stays.len() == TRACKS_MAX {
            let many = "at most a million tracks";
            return Err(bad(Fault::value(Reason::Volumes, "tracks", stays.len() + 1, many)));
        }
        stays.push(stay(&columns, first, last).map_err(bad)?);
    }
    if places.is_none() {
        let expected = "headings with `initialFrame` and `finalFrame`";
        let fault = Fault::new(Reason::Truncated, "recording", b"", expected);
        return Err(TraceError::bad(Place::Line(lines.number()), fault));
    }
    let begins = stays.iter().map(|stay| stay.arrives).min().unwrap_or_default();
    for stay in &mut stays {
        stay.arrives = stay.arrives.since(begins);
        stay.leaves = stay.leaves.since(begins);
    }
    stays.sort_unstable();
    Ok(stays)
}

/// Where the two columns stand.
fn headings(columns: &Columns<'_>) -> Result<(usize, usize), Box<Fault>> {
    let find = |name: &str| {
        let place = (0..columns.count()).find(|index| columns.get(*index) == name.as_bytes());
        place.ok_or_else(|| columns.wrong("headings with `initialFrame` and `finalFrame`"))
    };
    Ok((find("initialFrame")?, find("finalFrame")?))
}

fn stay(columns: &Columns<'_>, first: usize, last: usize) -> Result<Stay, Box<Fault>> {
    if columns.count() <= first.max(last) {
        return Err(columns.wrong("as many columns as headings"));
    }
    let frame = |name, index| number(name, columns.get(index));
    let (from, until) = (frame("initialFrame", first)?, frame("finalFrame", last)?);
    let time = |frame: u64| frame.checked_mul(1_000_000_000 / FRAMES_PER_SECOND).map(Nanos);
    let range = |found| Fault::value(Reason::Range, "finalFrame", found, "a frame that exists");
    if until <= from {
        let expected = "a frame after `initialFrame`";
        return Err(Fault::value(Reason::Backwards, "finalFrame", until, expected));
    }
    let (Some(arrives), Some(leaves)) = (time(from), time(until)) else {
        return Err(range(until));
    };
    Ok(Stay { arrives, leaves })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LINE_BYTES_MAX;

    /// Goal: drawn vehicles stay within their bounds, come in order, and are as many as asked for.
    /// Method: ten minutes of road; by Little's law the stays add up to mean times span.
    #[test]
    fn drawn_vehicles_fit_their_parameters() {
        let spec = VehicleSpec { span: Nanos::from_secs(6000), ..VehicleSpec::DEFAULT };
        let stays = spec.draw();
        assert!(stays.windows(2).all(|pair| pair[0].arrives <= pair[1].arrives));
        let length = |stay: &Stay| stay.leaves.since(stay.arrives);
        let arrived = stays.iter().filter(|stay| stay.arrives > Nanos::ZERO);
        assert!(arrived.clone().map(length).all(|l| spec.stay_min <= l && l <= spec.stay_max));
        let total: f64 = arrived.map(|stay| length(stay).as_secs_f64()).sum();
        assert!((total / 6000.0 - spec.mean).abs() < 0.4, "{} at once", total / 6000.0);
        assert_eq!(stays, spec.draw(), "a seed is a promise");
    }

    /// Goal: highD's columns are found wherever they stand, and times begin with the first vehicle.
    /// Method: two tracks, out of order.
    #[test]
    fn tracks_are_read_by_their_headings() {
        let text = "id,width,initialFrame,finalFrame,numFrames\n2,4.85,75,275,201\n1,4,50,100,51\n";
        let stays = tracks_meta(text.as_bytes()).expect("it is sound");
        let seconds = |from, until| Stay { arrives: Nanos(from), leaves: Nanos(until) };
        assert_eq!(stays[0], seconds(0, 2_000_000_000));
        assert_eq!(stays[1], seconds(1_000_000_000, 9_000_000_000));
    }

    /// Goal: a byte order mark, as spreadsheets write it, is no part of the first heading;
    /// elsewhere it is no number. Method: a wanted column first, marks before headings, a row, and
    /// twice.
    #[test]
    fn a_byte_order_mark_is_skipped() {
        let text = "initialFrame,finalFrame\n0,25\n";
        let plain = tracks_meta(text.as_bytes()).expect("it is sound");
        let marked = tracks_meta(format!("\u{feff}{text}").as_bytes());
        assert_eq!(marked.expect("it is as sound"), plain);
        for bad in [format!("\u{feff}\u{feff}{text}"), text.replace("0,", "\u{feff}0,")] {
            assert!(tracks_meta(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    /// Goal: a bad file is refused with its line. Method: one fault each; files without headings,
    /// too.
    #[test]
    fn bad_tracks_are_refused_with_their_line() {
        let head = "id,initialFrame,finalFrame\n";
        let long = "9".repeat(LINE_BYTES_MAX + 1);
        for (text, line) in [
            ("id,first,last\n1,2,3\n".to_string(), 1),
            (format!("{head}1,2\n"), 2),
            (format!("{head}1,2,3\n\n1,-2,3\n"), 4),
            (format!("{head}1,3,3\n"), 2),
            (format!("{head}1,3,{}\n", u64::MAX), 2),
            (format!("{head}{long}\n"), 2),
            (String::new(), 1),
            ("\n\n".to_string(), 3),
        ] {
            let error = tracks_meta(text.as_bytes()).expect_err(&text);
            let begins = format!("line {line}: ");
            assert!(error.to_string().starts_with(&begins), "{error}");
        }
    }
}
