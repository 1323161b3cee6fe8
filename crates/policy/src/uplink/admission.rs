//! Whether a burst or a request can be met over a link of so much bandwidth.
//!
//! How: what fits into the free room for dirty bytes is accepted at once. What does not is taken as
//! fast as room is made, which is the drain rate, and a little faster for the room that is there:
//! the rate at which the burst's last byte meets the last free one. A time to be accepted in, or to
//! be in the cloud in, is compared with what that takes.
//! Invariant: without a time to keep nothing is ever refused, only slowed. What is refused says how
//! long it would take and how long it may. At the drain rate that it was told, whatever is admitted
//! keeps its times.
//! Cost: a division or two. Not for: many askers at once; who admits one takes its bytes from the
//! room before the next one asks.

use crate::forecast::{Bandwidth, Outlook};
use crate::uplink::Cap;
use core::fmt;
use layby_types::Nanos;

/// How much of the forecast's usual error is taken off before something is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prudence {
    /// Percent of the mean absolute error.
    pub percent: u16,
}

impl Prudence {
    /// The forecast is taken at its word.
    pub const MIN: Prudence = Prudence { percent: 0 };
    /// Four times the error is taken off.
    pub const MAX: Prudence = Prudence { percent: 400 };
    /// As likely too low as too high.
    pub const DEFAULT: Prudence = Prudence { percent: 0 };

    /// What may be promised of a link with this outlook, under `cap`.
    #[must_use]
    pub fn drain(self, outlook: &Outlook, cap: Cap) -> Bandwidth {
        let less = outlook.error * f64::from(self.percent) / 100.0;
        cap.of(Bandwidth::new(outlook.near.get() - less))
    }
}

/// What somebody would like to write, and by when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Bytes.
    pub bytes: u64,
    /// How long it may take until the last byte is accepted; none for as long as it takes.
    pub accepted_within: Option<Nanos>,
    /// How long it may take until the last byte is in the cloud; none for as long as it takes.
    pub uploaded_within: Option<Nanos>,
}

/// What is in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Dirty bytes that may still be taken in.
    pub free_bytes: u64,
    /// Dirty bytes that go up before.
    pub ahead_bytes: u64,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// As fast as it comes.
    Now,
    /// No faster than this on average; at nothing, whenever there is room.
    SlowTo(Bandwidth),
    /// Not in time.
    Refuse(Refusal),
}

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    /// Bytes asked for.
    pub bytes: u64,
    /// What was in the way.
    pub room: Room,
    /// What the link is expected to drain; none where nothing is known of it.
    pub drain: Option<Bandwidth>,
    /// Whether the time to be uploaded in cannot be kept, or else that to be accepted in.
    pub is_upload: bool,
    /// How long it may take.
    pub allowed: Nanos,
    /// How long it would take; none for ever.
    pub needed: Option<Nanos>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_upload { "be in the cloud" } else { "be accepted" };
        let seconds = |span: Nanos| span.as_secs_f64();
        write!(f, "{} bytes must {what} within {:.1} s", self.bytes, seconds(self.allowed))?;
        match self.needed {
            Some(needed) => write!(f, " and would take {:.1} s", seconds(needed))?,
            None => f.write_str(" and nothing passes")?,
        }
        let Room { free_bytes, ahead_bytes } = self.room;
        write!(f, ": {ahead_bytes} bytes go before, room for {free_bytes} is free, ")?;
        match self.drain {
            Some(drain) => write!(f, "the link drains {} bytes per second", drain.whole()),
            None => f.write_str("and the link has not been measured yet"),
        }
    }
}

/// Whether `ask` can be met with this room over a link that drains so much; none where nothing is
/// known of the link.
#[must_use]
pub fn admit(ask: &Ask, room: &Room, drain: Option<Bandwidth>) -> Verdict {
    let refuse = |is_upload, allowed, needed| {
        Verdict::Refuse(Refusal {
            bytes: ask.bytes,
            room: *room,
            drain,
            is_upload,
            allowed,
            needed,
        })
    };
    let rate = drain.unwrap_or(Bandwidth::ZERO);
    let excess = ask.bytes.saturating_sub(room.free_bytes);
    let accepted = time_of(u128::from(excess), rate);
    if let Some(allowed) = ask.accepted_within
        && accepted.is_none_or(|needed| needed > allowed)
    {
        return refuse(false, allowed, accepted);
    }
    let uploaded = time_of(u128::from(room.ahead_bytes) + u128::from(ask.bytes), rate);
    if let Some(allowed) = ask.uploaded_within
        && uploaded.is_none_or(|needed| needed > allowed)
    {
        return refuse(true, allowed, uploaded);
    }
    if excess == 0 {
        return Verdict::Now;
    }
    Verdict::SlowTo(rate.scaled(ask.bytes as f64 / excess as f64))
}

/// How long `bytes` take; none where they never get there.
fn time_of(bytes: u128, rate: Bandwidth) -> Option<Nanos> {
    if bytes == 0 {
        return Some(Nanos::ZERO);
    }
    let rate = u128::from(rate.whole());
    let nanos = (bytes * 1_000_000_000).div_ceil(rate.max(1));
    (rate > 0).then(|| Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}
