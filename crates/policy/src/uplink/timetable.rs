//! A cap on the link's bytes per second, by the time of day, and what it does to long uploads.
//!
//! How: windows of the day that do not overlap, each with its cap, and one for the rest.
//! Invariant: every second of the day has one cap. Cost: linear in the windows, at most
//! [`WINDOWS_MAX`]. Not for: days that differ; the time of day is the caller's.

use crate::forecast::Bandwidth;
use alloc::vec::Vec;
use core::fmt;
use layby_types::Nanos;

/// Windows of a timetable at most: one per half hour.
pub const WINDOWS_MAX: usize = 48;
/// An upload that would take longer is not given a time.
pub const DRAIN_DAYS_MAX: u32 = 31;

const DAY_SECONDS: u32 = 86_400;

/// Seconds since local midnight, below a day's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeOfDay(u32);

impl TimeOfDay {
    /// The beginning of the day.
    pub const MIDNIGHT: TimeOfDay = TimeOfDay(0);

    /// So many seconds after midnight; a day later is the same time.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> TimeOfDay {
        TimeOfDay((seconds % DAY_SECONDS as u64) as u32)
    }

    /// `None` where the clock shows no such time. 24:00 is midnight.
    #[must_use]
    pub const fn new(hour: u32, minute: u32) -> Option<TimeOfDay> {
        let is_time = minute < 60 && (hour < 24 || (hour == 24 && minute == 0));
        if is_time { Some(TimeOfDay((hour * 3600 + minute * 60) % DAY_SECONDS)) } else { None }
    }

    /// Seconds since midnight.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.0
    }

    /// Seconds until it is `later` for the first time; a whole day where it is now.
    fn until(self, later: TimeOfDay) -> u32 {
        match (later.0 + DAY_SECONDS - self.0) % DAY_SECONDS {
            0 => DAY_SECONDS,
            seconds => seconds,
        }
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 3600, self.0 / 60 % 60)
    }
}

/// How fast the link may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    /// As fast as it goes.
    #[default]
    None,
    /// So many bytes per second.
    BytesPerSecond(u64),
}

impl Cap {
    /// The lowest cap.
    pub const MIN: u64 = 1 << 10;
    /// The highest.
    pub const MAX: u64 = 1 << 40;

    /// What of `bandwidth` it lets pass.
    #[must_use]
    pub fn of(self, bandwidth: Bandwidth) -> Bandwidth {
        match self {
            Cap::None => bandwidth,
            Cap::BytesPerSecond(cap) if bandwidth.get() > cap as f64 => Bandwidth::new(cap as f64),
            Cap::BytesPerSecond(_) => bandwidth,
        }
    }
}

/// A part of every day, and its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapWindow {
    /// It begins.
    pub from: TimeOfDay,
    /// It ends; before `from` it is the next day's, and the same as `from` means all day.
    pub until: TimeOfDay,
    /// What holds meanwhile.
    pub cap: Cap,
}

impl CapWindow {
    fn holds(&self, time: TimeOfDay) -> bool {
        match self.from < self.until {
            true => self.from <= time && time < self.until,
            false => self.from <= time || time < self.until,
        }
    }
}

/// What is wrong with a timetable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimetableError {
    /// More than [`WINDOWS_MAX`].
    TooMany(usize),
    /// At this time two windows hold.
    Overlap(TimeOfDay),
    /// Below [`Cap::MIN`] or above [`Cap::MAX`].
    OutOfRange(u64),
}

impl fmt::Display for TimetableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimetableError::TooMany(found) => {
                write!(f, "{found} windows, at most {WINDOWS_MAX} are possible")
            }
            TimetableError::Overlap(at) => write!(f, "two windows hold at {at}"),
            TimetableError::OutOfRange(found) => {
                let (min, max) = (Cap::MIN, Cap::MAX);
                write!(f, "a cap of {found} bytes per second, expected {min} to {max}")
            }
        }
    }
}

impl core::error::Error for TimetableError {}

/// See the file's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timetable {
    windows: Vec<CapWindow>,
    otherwise: Cap,
}

impl Timetable {
    /// Windows, and what holds outside of them.
    ///
    /// # Errors
    /// [`TimetableError`], with the time or the cap that is wrong.
    pub fn new(windows: &[CapWindow], otherwise: Cap) -> Result<Timetable, TimetableError> {
        if windows.len() > WINDOWS_MAX {
            return Err(TimetableError::TooMany(windows.len()));
        }
        for cap in windows.iter().map(|window| window.cap).chain([otherwise]) {
            if let Cap::BytesPerSecond(rate) = cap
                && !(Cap::MIN..=Cap::MAX).contains(&rate)
            {
                return Err(TimetableError::OutOfRange(rate));
            }
        }
        // Two overlap if and only if one of them holds where the other begins.
        for (place, one) in windows.iter().enumerate() {
            for other in &windows[place + 1..] {
                let at = [one.from, other.from];
                if let Some(at) = at.into_iter().find(|at| one.holds(*at) && other.holds(*at)) {
                    return Err(TimetableError::Overlap(at));
                }
            }
        }
        Ok(Timetable { windows: windows.to_vec(), otherwise })
    }

    /// What holds at `time`.
    #[must_use]
    pub fn at(&self, time: TimeOfDay) -> Cap {
        let window = self.windows.iter().find(|window| window.holds(time));
        window.map_or(self.otherwise, |window| window.cap)
    }

    /// How long it holds at least; `None` where nothing ever changes.
    #[must_use]
    pub fn holds_for(&self, time: TimeOfDay) -> Option<Nanos> {
        let edges = self.windows.iter().flat_map(|window| [window.from, window.until]);
        let seconds = edges.map(|edge| time.until(edge)).min()?;
        Some(Nanos::from_secs(u64::from(seconds)))
    }

    /// How long `bytes` take from `time` on over a link of `bandwidth`, under the caps; `None`
    /// where that is more than [`DRAIN_DAYS_MAX`] days, or nothing passes at all.
    #[must_use]
    pub fn time_to_move(&self, bytes: u64, bandwidth: Bandwidth, time: TimeOfDay) -> Option<Nanos> {
        let (mut left, mut passed, mut at) = (u128::from(bytes), 0u64, time);
        while passed < u64::from(DRAIN_DAYS_MAX * DAY_SECONDS) {
            let rate = u128::from(self.at(at).of(bandwidth).whole());
            let span = self.holds_for(at).map_or(u64::from(DAY_SECONDS), Nanos::as_secs);
            if left <= rate * u128::from(span) {
                let nanos = (left * 1_000_000_000).checked_div(rate).unwrap_or(0);
                return Some(Nanos(passed * 1_000_000_000 + nanos as u64));
            }
            left -= rate * u128::from(span);
            passed += span;
            at = TimeOfDay::from_secs(u64::from(at.0) + span);
        }
        None
    }
}
