//! An object store behind a link: how long a request takes, how it fails, and what it costs.
//!
//! How: a request's bytes go over the [`Link`] of their direction, then it waits for a round trip
//! and a latency drawn by its kind. By chance, or beyond a rate, it fails: with an error, throttled,
//! unanswered, or carried out with its answer lost.
//! Invariant: the same seed gives the same outcomes. A request is answered once, never later than
//! its timeout. What was not answered may have been carried out, as with a real one.
//! Cost: a search in the link's trace and a draw or two per request.
//! Not for: contents; what is stored is the caller's to keep. Times within a request's connection.
//! Source: prices and rates are Amazon S3's as published for `us-east-1` (standard class); latencies
//! are round figures for a store in the same region and are to be replaced by measured ones.

mod latency;
#[cfg(test)]
mod tests;

pub use latency::Latency;

use crate::link::Link;
use layby_types::{Nanos, Rng};

/// What is asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKind {
    /// Puts an object.
    Put,
    /// Gets an object or a part.
    Get,
    /// Asks for what is known of an object.
    Head,
    /// Lists names.
    List,
    /// Deletes an object.
    Delete,
}

impl RequestKind {
    /// All.
    pub const ALL: [RequestKind; 5] = [
        RequestKind::Put,
        RequestKind::Get,
        RequestKind::Head,
        RequestKind::List,
        RequestKind::Delete,
    ];

    /// Whether it changes something; such requests are throttled apart from others.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, RequestKind::Put | RequestKind::Delete)
    }
}

/// How often requests fail, of a million each, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Answered with an error, not carried out.
    pub errors: u32,
    /// Never answered, not carried out.
    pub unanswered: u32,
    /// Carried out, but the answer is lost.
    pub replies_lost: u32,
}

impl Failures {
    /// Of how many.
    pub const OF: u32 = 1_000_000;
    /// None ever.
    pub const NONE: Failures = Failures { errors: 0, unanswered: 0, replies_lost: 0 };
}

/// What requests and bytes cost, in millionths of a millionth of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A request that puts or lists.
    pub put_picodollars: u64,
    /// A request that gets or asks; deleting is free.
    pub get_picodollars: u64,
    /// A byte to the store.
    pub byte_up_picodollars: u64,
    /// A byte from it.
    pub byte_down_picodollars: u64,
}

impl Prices {
    /// S3 standard: 0.005 and 0.0004 dollars per thousand requests, 0.09 per GB to the internet.
    pub const DEFAULT: Prices = Prices {
        put_picodollars: 5_000_000,
        get_picodollars: 400_000,
        byte_up_picodollars: 0,
        byte_down_picodollars: 90,
    };

    fn of(&self, kind: RequestKind) -> u64 {
        match kind {
            RequestKind::Put | RequestKind::List => self.put_picodollars,
            RequestKind::Get | RequestKind::Head => self.get_picodollars,
            RequestKind::Delete => 0,
        }
    }
}

/// A store's nature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreModel {
    /// From a request's last byte to its answer's first, without the link; by [`RequestKind::ALL`].
    pub latency: [Latency; RequestKind::ALL.len()],
    /// How it fails by chance.
    pub failures: Failures,
    /// After so long a request is given up.
    pub timeout: Nanos,
    /// Requests per second that change something; more are throttled, a second's worth apart.
    pub writes_per_second: u32,
    /// Others.
    pub reads_per_second: u32,
    /// What it costs.
    pub prices: Prices,
}

impl StoreModel {
    /// A store of S3's rates and prices that never fails by chance.
    pub const DEFAULT: StoreModel = StoreModel {
        latency: [
            Latency::PUT_DEFAULT,
            Latency::GET_DEFAULT,
            Latency::GET_DEFAULT,
            Latency::PUT_DEFAULT,
            Latency::GET_DEFAULT,
        ],
        failures: Failures::NONE,
        timeout: Nanos::from_secs(30),
        writes_per_second: 3500,
        reads_per_second: 5500,
        prices: Prices::DEFAULT,
    };
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was carried out.
    Done,
    /// The store says that it failed.
    Error,
    /// The store says that there are too many.
    Throttled,
    /// Nothing came within the timeout.
    TimedOut,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the client learns.
    pub answer: Answer,
    /// Whether the store carried it out, which a client whose request timed out cannot know.
    pub is_applied: bool,
    /// When the client learns it.
    pub at: Nanos,
}

/// All that was asked and answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// Requests by [`RequestKind::ALL`].
    pub requests: [u64; RequestKind::ALL.len()],
    /// Answered well.
    pub done: u64,
    /// Answered with an error.
    pub errors: u64,
    /// Throttled.
    pub throttled: u64,
    /// Not answered in time.
    pub timed_out: u64,
    /// Of these, carried out.
    pub replies_lost: u64,
    /// Bytes that reached the store, whether it carried the request out or not.
    pub bytes_up: u64,
    /// Bytes that reached the client.
    pub bytes_down: u64,
    /// What requests cost, without bytes. Failures of the store are free, lost answers are not.
    pub request_picodollars: u128,
}

/// What chance has in store for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Well,
    Error,
    Unanswered,
    ReplyLost,
}

/// So many in a second, a second's worth at once: what an idle second would earn.
#[derive(Clone, Copy, Debug)]
struct Pace {
    interval: Nanos,
    /// When all that was admitted would be done at the pace.
    busy_until: Nanos,
}

impl Pace {
    const BURST: Nanos = Nanos::from_secs(1);

    fn new(per_second: u32) -> Pace {
        let interval = Nanos(1_000_000_000 / u64::from(per_second));
        Pace { interval, busy_until: Nanos::ZERO }
    }
    fn admits(&mut self, now: Nanos) -> bool {
        let next = self.busy_until.max(now).saturating_add(self.interval);
        if next.since(now) > Self::BURST {
            return false;
        }
        self.busy_until = next;
        true
    }
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    model: StoreModel,
    up: Link,
    down: Link,
    rng: Rng,
    writes: Pace,
    reads: Pace,
    counters: StoreCounters,
}

impl ObjectStore {
    /// A store behind a link up and a link down.
    ///
    /// # Panics
    /// It serves no requests per second, or more fail than there are.
    #[must_use]
    pub fn new(model: StoreModel, up: Link, down: Link, seed: u64) -> ObjectStore {
        assert!(model.writes_per_second > 0 && model.reads_per_second > 0, "a store serves");
        let Failures { errors, unanswered, replies_lost } = model.failures;
        let failing = u64::from(errors) + u64::from(unanswered) + u64::from(replies_lost);
        assert!(failing <= u64::from(Failures::OF), "{failing} of a million fail");
        let (writes, reads) =
            (Pace::new(model.writes_per_second), Pace::new(model.reads_per_second));
        let counters = StoreCounters::default();
        ObjectStore { model, up, down, rng: Rng::new(seed), writes, reads, counters }
    }

    /// Sends a request with, or for, so many bytes at `now`, no earlier than the one before.
    pub fn request(&mut self, kind: RequestKind, bytes: u64, now: Nanos) -> Outcome {
        self.counters.requests[kind as usize] += 1;
        // Both are drawn whatever becomes of it, so that a fault elsewhere shifts no draw.
        let service = self.model.latency[kind as usize].draw(&mut self.rng);
        let fate = self.fate();
        let pace = if kind.is_write() { &mut self.writes } else { &mut self.reads };
        let outcome = match (pace.admits(now), fate) {
            (_, Fate::Unanswered) => self.lost(now, false),
            (false, _) => self.throttled(now),
            (true, fate) => self.serve(kind, bytes, now, service, fate),
        };
        self.count(kind, &outcome);
        outcome
    }

    /// What was asked and answered so far.
    #[must_use]
    pub fn counters(&self) -> StoreCounters {
        self.counters
    }

    /// The link to the store.
    #[must_use]
    pub fn up(&self) -> &Link {
        &self.up
    }

    fn fate(&mut self) -> Fate {
        let Failures { errors, unanswered, replies_lost } = self.model.failures;
        let chance = self.rng.below(u64::from(Failures::OF)) as u32;
        match chance {
            _ if chance < errors => Fate::Error,
            _ if chance < errors + unanswered => Fate::Unanswered,
            _ if chance < errors + unanswered + replies_lost => Fate::ReplyLost,
            _ => Fate::Well,
        }
    }

    fn lost(&self, now: Nanos, is_applied: bool) -> Outcome {
        let at = now.saturating_add(self.model.timeout);
        Outcome { answer: Answer::TimedOut, is_applied, at }
    }

    /// Refused by its head, before its bytes have gone anywhere.
    fn throttled(&self, now: Nanos) -> Outcome {
        let at = now.saturating_add(self.up.at(now).round_trip);
        if at > now.saturating_add(self.model.timeout) {
            return self.lost(now, false);
        }
        Outcome { answer: Answer::Throttled, is_applied: false, at }
    }

    fn serve(
        &mut self,
        kind: RequestKind,
        bytes: u64,
        now: Nanos,
        service: Nanos,
        fate: Fate,
    ) -> Outcome {
        let deadline = now.saturating_add(self.model.timeout);
        let (up, down) = match (kind, fate) {
            (RequestKind::Put, _) => (bytes, 0),
            (RequestKind::Get, Fate::Well) => (0, bytes),
            _ => (0, 0),
        };
        let Some(arrived) = carry(&mut self.up, up, now, deadline) else {
            return self.lost(now, false);
        };
        self.counters.bytes_up += up;
        let round_trip = self.up.at(now).round_trip;
        let answered = arrived.saturating_add(round_trip).saturating_add(service);
        let is_applied = fate != Fate::Error;
        if fate == Fate::ReplyLost || answered > deadline {
            return self.lost(now, is_applied);
        }
        let Some(at) = carry(&mut self.down, down, answered, deadline) else {
            return self.lost(now, is_applied);
        };
        self.counters.bytes_down += down;
        let answer = if is_applied { Answer::Done } else { Answer::Error };
        Outcome { answer, is_applied, at }
    }

    fn count(&mut self, kind: RequestKind, outcome: &Outcome) {
        let counters = &mut self.counters;
        match outcome.answer {
            Answer::Done => counters.done += 1,
            Answer::Error => counters.errors += 1,
            Answer::Throttled => counters.throttled += 1,
            Answer::TimedOut => counters.timed_out += 1,
        }
        let is_lost = outcome.answer == Answer::TimedOut && outcome.is_applied;
        counters.replies_lost += u64::from(is_lost);
        let prices = self.model.prices;
        if outcome.is_applied {
            counters.request_picodollars += u128::from(prices.of(kind));
        }
    }

    /// What all requests and bytes cost so far, in dollars.
    #[must_use]
    pub fn dollars(&self) -> f64 {
        let Prices { byte_up_picodollars, byte_down_picodollars, .. } = self.model.prices;
        let bytes = u128::from(self.counters.bytes_up) * u128::from(byte_up_picodollars)
            + u128::from(self.counters.bytes_down) * u128::from(byte_down_picodollars);
        (self.counters.request_picodollars + bytes) as f64 / 1e12
    }
}

/// When `bytes` are over the link; none, and the link busy in vain, where that is too late.
fn carry(link: &mut Link, bytes: u64, now: Nanos, deadline: Nanos) -> Option<Nanos> {
    if bytes == 0 {
        return Some(now);
    }
    if link.would_arrive(bytes, now) > deadline {
        link.occupy(deadline);
        return None;
    }
    Some(link.send(bytes, now))
}
