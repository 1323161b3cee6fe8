//! What goes up a node's one link next, how fast, and what may be promised of it.
//!
//! How: [`Uplink`] holds the objects that wait, by volume and class, and hands out one at a time.
//! A [`Timetable`] caps the bytes per second by the time of day through a token bucket. Patient
//! classes upload in good periods, by an [`Outlook`] on the link, and in bad ones only what is due
//! by their volumes' [`DirtyBounds`]. [`admit`] says whether a burst or a request can be met, and
//! [`Timetable::time_to_move`] how long a backlog takes.
//!
//! Invariants, each tested against random loads:
//! - *Work conserving*: while an object is ready, a place in flight is free and the cap has tokens
//!   for it, one is handed out. Ready is what neither backs off nor is held as patient, of a volume
//!   that is not silent.
//! - *Cap*: what is handed out in any window is at most what the cap earns in it and its burst, or
//!   one object where that is more.
//! - *Strict*: while an object of a strict class is ready, none of another class is handed out; so
//!   it waits for no more of the others than one object that is under way to end.
//! - *Weights*: of classes that always have something ready, each has been given its weight's share
//!   of bytes, give or take one object and one round ([`ROUND_BYTES`] times its weight).
//! - *Silence*: of a volume whose last upload was given up, one object is in flight at a time, a
//!   probe. Probes take no place and no class's share; at most as many are in flight as there are
//!   places, and the volume that was probed longest ago comes next. A cap counts them, though the
//!   store may take nothing. So under a cap a probe goes before a ready object of another volume
//!   only once others were handed [`PROBE_FACTOR`] times its bytes since the last probe, and else
//!   where no other is ready: of volumes that always have something ready, probes take a ninth of
//!   the cap at most; what becomes ready right after a probe waits until the cap has earned that
//!   one. Strict, weights and age are promises to volumes that are not silent; a probe that is due
//!   under a cap goes before strict objects only where it is of a strict class.
//! - *Age*: within a class, the volume that is nearest to its bound of age, or farthest beyond, is
//!   served first. So nothing starves: every bound is reached at last.
//!
//! Cost: linear in the volumes that have something waiting, per object of some MiB.
//! Not for: the order in which a volume's objects must become visible; who submits an index object
//! waits until the data that it names is there.
//!
//! Source: deficit round robin (Shreedhar and Varghese, 1995), with the rounds in which nobody can
//! send passed over by a division; earliest deadline first within a class.

mod admission;
mod scheduler;
#[cfg(test)]
mod tests;
mod timetable;

pub use admission::{Ask, Prudence, Refusal, Room, Verdict, admit};
pub use scheduler::{Backlog, Next, SubmitError, Uplink};
pub use timetable::{
    Cap, CapWindow, DRAIN_DAYS_MAX, TimeOfDay, Timetable, TimetableError, WINDOWS_MAX,
};

use crate::forecast::Outlook;
use layby_types::{ClassId, Nanos, VolumeId};

/// Bytes that a round gives a class, times its weight.
pub const ROUND_BYTES: u64 = 4096;

/// Under a cap, bytes that others are handed for each byte of a probe that goes before them, so
/// that probes cost volumes which always have something ready a ninth of the cap at most.
pub const PROBE_FACTOR: u64 = 8;

/// An object, by a number that its owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(pub u64);

/// An object that is to go up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its number; no other that waits or is in flight has it.
    pub id: UploadId,
    /// Whose it is.
    pub volume: VolumeId,
    /// Bytes that it puts on the link; at least one.
    pub bytes: u64,
    /// Since when its oldest byte has been dirty.
    pub since: Nanos,
}

/// How a class stands to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Before all that have weights.
    Strict,
    /// A share of what strict classes leave.
    Weight(u16),
}

impl Share {
    /// The least weight.
    pub const WEIGHT_MIN: u16 = 1;
    /// The greatest.
    pub const WEIGHT_MAX: u16 = 1000;
    /// Where nothing is said.
    pub const WEIGHT_DEFAULT: u16 = 100;
}

/// How a class's objects go up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassPlan {
    /// How it stands to the others.
    pub share: Share,
    /// Whether it waits for good periods, as far as its volumes' bounds allow.
    pub is_patient: bool,
}

impl ClassPlan {
    /// A weight like the others', and no patience.
    pub const DEFAULT: ClassPlan =
        ClassPlan { share: Share::Weight(Share::WEIGHT_DEFAULT), is_patient: false };
}

/// How much of a volume may be missing in the cloud, and for how long. They say what goes first
/// and when patience ends; that more is not made dirty is the cache's to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyBounds {
    /// Bytes.
    pub bytes: u64,
    /// How old the oldest may be.
    pub age: Nanos,
}

impl DirtyBounds {
    /// A large object; a second.
    pub const MIN: DirtyBounds = DirtyBounds { bytes: 1 << 20, age: Nanos::from_secs(1) };
    /// More than a node has; a month.
    pub const MAX: DirtyBounds = DirtyBounds { bytes: 1 << 50, age: Nanos::from_secs(2_592_000) };
    /// Four gibibytes; five minutes.
    pub const DEFAULT: DirtyBounds = DirtyBounds { bytes: 4 << 30, age: Nanos::from_secs(300) };
}

/// A volume's class and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePlan {
    /// Its class.
    pub class: ClassId,
    /// Its bounds.
    pub bounds: DirtyBounds,
}

/// The bounds of the scheduler itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkLimits {
    /// Objects under way at once, and as many probes of silent stores beside them.
    pub in_flight_max: u16,
    /// Objects that wait, at most.
    pub queued_max: u32,
    /// How long the cap's burst lasts at the cap's rate.
    pub burst: Nanos,
    /// A period is good where the link is expected to carry so many percent of its long mean.
    pub good_percent: u8,
    /// Patience ends at so many percent of a bound.
    pub due_percent: u8,
}

impl UplinkLimits {
    /// One after the other.
    pub const MIN: UplinkLimits = UplinkLimits {
        in_flight_max: 1,
        queued_max: 1,
        burst: Nanos::from_millis(10),
        good_percent: 1,
        due_percent: 1,
    };
    /// The most of each.
    pub const MAX: UplinkLimits = UplinkLimits {
        in_flight_max: 256,
        queued_max: 1 << 20,
        burst: Nanos::from_secs(60),
        good_percent: 200,
        due_percent: 100,
    };
    /// Enough in flight to fill a link of long round trips; patience ends half way to a bound.
    pub const DEFAULT: UplinkLimits = UplinkLimits {
        in_flight_max: 8,
        queued_max: 1 << 16,
        burst: Nanos::from_secs(1),
        good_percent: 90,
        due_percent: 50,
    };
}

/// The moment of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The caller's clock.
    pub now: Nanos,
    /// Local time, for the timetable.
    pub time_of_day: TimeOfDay,
}

/// Whether the link is as good as it usually is; where nothing is known of it, it is.
fn is_good(outlook: Option<&Outlook>, good_percent: u8) -> bool {
    outlook.is_none_or(|outlook| {
        outlook.near.get() * 100.0 >= outlook.long.get() * f64::from(good_percent)
    })
}
