//! What an object store and its network do to a request, and to which requests.
//!
//! How: rules in the order in which they were put; the first one that fits a request, has times left
//! and wins its draw decides. A rule ends when it is lifted, which also ends what it holds back.
//! Invariant: the same requests in the same order meet the same faults for the same seed.
//! Not for: the link as a whole, whose requests fail alike; see `Shape` and `Cut`.

use super::counts::{Operation, Seen};
use layby_types::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// An answer that says no, in the words of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// The HTTP status.
    pub status: u16,
    /// The code in the answer's XML.
    pub code: &'static str,
}

impl StoreError {
    /// The store failed inside; a client should try again.
    pub const INTERNAL: Self = StoreError::new(500, "InternalError");
    /// Too many requests; a client should try again later.
    pub const SLOW_DOWN: Self = StoreError::new(503, "SlowDown");
    /// The store is not there for the moment.
    pub const UNAVAILABLE: Self = StoreError::new(503, "ServiceUnavailable");
    /// The credentials are good for nothing more; AWS says 400, others 403.
    pub const TOKEN_EXPIRED: Self = StoreError::new(400, "ExpiredToken");
    /// The credentials were taken back.
    pub const KEY_INVALID: Self = StoreError::new(403, "InvalidAccessKeyId");
    /// The credentials do not allow this.
    pub const ACCESS_DENIED: Self = StoreError::new(403, "AccessDenied");
    /// The client's clock is too far off for its signature.
    pub const TIME_SKEWED: Self = StoreError::new(403, "RequestTimeTooSkewed");
    /// The bucket may not grow; Ceph's and versitygw's word.
    pub const QUOTA_EXCEEDED: Self = StoreError::new(403, "QuotaExceeded");
    /// The store's disks are full; MinIO's word.
    pub const STORAGE_FULL: Self = StoreError::new(507, "XMinioStorageFull");
    /// Another request changed the object at the same time; a client should try again.
    pub const CONFLICT: Self = StoreError::new(409, "ConditionalRequestConflict");

    const fn new(status: u16, code: &'static str) -> Self {
        StoreError { status, code }
    }

    pub(super) fn document(self, path: &str) -> String {
        let code = self.code;
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>as the test wants</Message><Resource>{path}</Resource>\
             <RequestId>0</RequestId></Error>"
        )
    }
}

/// Which of two answers a client gets whose request arrived twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// That of the first arrival.
    First,
    /// That of the second: a conditional put has then failed by its own success.
    Second,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The store says no, and has done nothing.
    Fail(StoreError),
    /// It never reaches the store, and no answer comes until the fault is lifted, when the
    /// connection is closed. With a key this is one object that never answers.
    NeverAnswer,
    /// The store does it; the connection is closed before the answer.
    LoseReply,
    /// The store does it; no answer comes until the fault is lifted, when the connection is closed.
    SwallowReply,
    /// The connection breaks on both sides when the store has half of the request's body.
    TearUpload,
    /// The connection breaks when the client has half of the answer's body.
    TearDownload,
    /// One bit of the answer's body is another.
    Damage,
    /// The store gets it later by a time drawn between these two.
    Late {
        /// The shortest time.
        least: Duration,
        /// The longest time.
        most: Duration,
    },
    /// The store gets it twice in a row.
    Repeat(Answer),
    /// The store gets it, the client its answer, and the store gets it again when the fault is
    /// lifted: a packet that lingered in the network.
    RepeatLate,
}

/// A rule: which requests, how often, what then.
#[derive(Clone, Debug)]
pub struct Fault {
    effect: Effect,
    operation: Option<Operation>,
    key: Option<String>,
    times: u64,
    chance: (u64, u64),
}

impl Fault {
    /// `effect` for every request.
    #[must_use]
    pub fn new(effect: Effect) -> Self {
        Fault { effect, operation: None, key: None, times: u64::MAX, chance: (1, 1) }
    }
    /// Only for requests that want this.
    #[must_use]
    pub fn on(self, operation: Operation) -> Self {
        Fault { operation: Some(operation), ..self }
    }
    /// Only for keys that contain this.
    #[must_use]
    pub fn key(self, part: &str) -> Self {
        Fault { key: Some(part.to_owned()), ..self }
    }
    /// Only so many times.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Fault { times, ..self }
    }
    /// Only for `numerator` of `denominator` of the requests that fit, by the proxy's seed.
    ///
    /// # Panics
    /// Where that is more than all.
    #[must_use]
    pub fn chance(self, numerator: u64, denominator: u64) -> Self {
        assert!(numerator <= denominator && denominator > 0, "a chance is at most one");
        Fault { chance: (numerator, denominator), ..self }
    }

    fn fits(&self, seen: &Seen) -> bool {
        let operation = self.operation.is_none_or(|operation| operation == seen.operation);
        operation && self.key.as_ref().is_none_or(|part| seen.key.contains(part))
    }
}

/// A fault that is in force.
#[derive(Debug)]
pub(super) struct Rule {
    fault: Fault,
    hits: AtomicU64,
    lifted: watch::Sender<bool>,
}

impl Rule {
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Acquire)
    }

    /// Returns when the rule ends.
    pub(super) async fn lifted(&self) {
        let mut lifted = self.lifted.subscribe();
        // The sender lives as long as the rule.
        let _ = lifted.wait_for(|is_lifted| *is_lifted).await;
    }

    /// Takes one of the times that are left. One thread judges, so reading first is sound.
    fn take(&self, rng: &mut Rng) -> bool {
        let (numerator, denominator) = self.fault.chance;
        let is_hit = self.hits() < self.fault.times && rng.chance(numerator, denominator);
        if is_hit {
            self.hits.fetch_add(1, Ordering::AcqRel);
        }
        is_hit
    }
}

/// What was decided of a request.
pub(super) struct Verdict {
    pub(super) rule: Arc<Rule>,
    pub(super) effect: Effect,
    /// For what the effect draws itself.
    pub(super) draw: u64,
}

#[derive(Debug)]
struct Book {
    rules: Vec<Arc<Rule>>,
    rng: Rng,
}

/// The rules in force.
#[derive(Debug)]
pub(super) struct Rules(Mutex<Book>);

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Rules(Mutex::new(Book { rules: Vec::new(), rng: Rng::new(seed) }))
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, fault: Fault) -> Arc<Rule> {
        let (hits, lifted) = (AtomicU64::new(0), watch::Sender::new(false));
        let rule = Arc::new(Rule { fault, hits, lifted });
        self.lock().rules.push(rule.clone());
        rule
    }

    /// Ends a rule, and lets go what it holds back.
    pub(super) fn lift(&self, rule: &Arc<Rule>) {
        self.lock().rules.retain(|other| !Arc::ptr_eq(other, rule));
        rule.lifted.send_replace(true);
    }

    pub(super) fn judge(&self, seen: &Seen) -> Option<Verdict> {
        let Book { rules, rng } = &mut *self.lock();
        let rule = rules.iter().find(|rule| rule.fault.fits(seen) && rule.take(rng))?;
        let (rule, effect) = (rule.clone(), rule.fault.effect);
        Some(Verdict { rule, effect, draw: rng.next_u64() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;

    fn put(key: &str) -> Seen {
        Seen::of(&Method::PUT, &format!("/bucket/{key}"), "")
    }

    /// Goal: a rule holds for what it says, as often as it says, until it is lifted, and the first
    /// one that fits decides. Method: two rules, requests of three kinds.
    #[test]
    fn rules_fit_count_and_end() {
        let rules = Rules::new(1);
        let first = Fault::new(Effect::LoseReply).on(Operation::Put).key("log/").times(2);
        let first = rules.put(first);
        let second = rules.put(Fault::new(Effect::Damage).on(Operation::Put));
        let effect = |seen: &Seen| rules.judge(seen).map(|verdict| verdict.effect);
        assert_eq!(effect(&put("map/1")), Some(Effect::Damage));
        assert_eq!(effect(&Seen::of(&Method::GET, "/bucket/log/1", "")), None);
        assert_eq!(effect(&put("log/1")), Some(Effect::LoseReply));
        assert_eq!(effect(&put("log/2")), Some(Effect::LoseReply));
        assert_eq!(effect(&put("log/3")), Some(Effect::Damage));
        assert_eq!((first.hits(), second.hits()), (2, 2));
        rules.lift(&second);
        assert_eq!(effect(&put("log/4")), None);
    }

    /// Goal: chance follows the seed. Method: the same requests twice, and their share.
    #[test]
    fn chance_follows_the_seed() {
        let hits = |seed| {
            let rules = Rules::new(seed);
            let _rule = rules.put(Fault::new(Effect::LoseReply).chance(1, 4));
            (0..1000).map(|_| rules.judge(&put("a")).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(hits(1), hits(1));
        assert_ne!(hits(1), hits(2));
        let count = hits(1).iter().filter(|is_hit| **is_hit).count();
        assert!((200..300).contains(&count), "{count} of 1000");
    }
}
