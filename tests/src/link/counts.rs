//! What passed: bytes, requests, answers, and in which order.
//!
//! How: one lock around plain numbers and a journal; whoever waits for something to happen is woken
//! by every change. Invariant: a request is counted when its head has come, its answer when it is
//! known, once each. Cost: a lock per piece of bytes and per request.
//! Not for: times; a test that measures takes them itself.

use super::shape::Way;
use hyper::Method;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest that a test waits for something to pass.
const PATIENCE: Duration = Duration::from_secs(60);
/// Entries of the journal; older ones are forgotten.
const JOURNAL_MAX: usize = 1 << 16;

/// What a request wanted of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// An object, or a part of one, was sent.
    Put,
    /// An object, or a range of one, was asked for.
    Get,
    /// An object's metadata was asked for.
    Head,
    /// Names were asked for.
    List,
    /// An object, or many at once, were to be deleted.
    Delete,
    /// Anything else: beginnings and ends of uploads in parts, and buckets.
    Other,
}

/// A request that came through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it wanted.
    pub operation: Operation,
    /// The object's key; empty for a bucket.
    pub key: String,
    /// The part of the address behind the question mark.
    pub query: String,
    /// The answer's status as the client got it; none where it got no answer, or not yet.
    pub status: Option<u16>,
    /// Whether a fault was put upon it.
    pub faulted: bool,
}

impl Seen {
    /// What a request says of itself; paths are `/BUCKET/KEY`.
    pub(super) fn of(method: &Method, path: &str, query: &str) -> Self {
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let key = parts.nth(1).unwrap_or_default().to_owned();
        let operation = match (method.as_str(), key.is_empty()) {
            ("PUT", false) => Operation::Put,
            ("GET", false) => Operation::Get,
            ("HEAD", false) => Operation::Head,
            ("GET", true) => Operation::List,
            ("DELETE", false) => Operation::Delete,
            ("POST", true) if query.split('&').any(|word| word.starts_with("delete")) => {
                Operation::Delete
            }
            _ => Operation::Other,
        };
        Seen { operation, key, query: query.to_owned(), status: None, faulted: false }
    }
}

/// Sums since the proxy was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of all connections from clients, heads of requests included.
    pub bytes_up: u64,
    /// Bytes of all connections to clients, heads of answers included.
    pub bytes_down: u64,
    /// Connections that were accepted.
    pub connections: u64,
    /// Requests by what they wanted; a request that the proxy repeats counts once.
    pub requests: BTreeMap<Operation, u64>,
    /// Answers by status, as clients got them.
    pub answers: BTreeMap<u16, u64>,
    /// Requests that a fault was put upon.
    pub faults: u64,
}

impl Counts {
    /// Requests of all kinds.
    #[must_use]
    pub fn requests_all(&self) -> u64 {
        self.requests.values().sum()
    }
    /// Requests of one kind.
    #[must_use]
    pub fn requests_of(&self, operation: Operation) -> u64 {
        self.requests.get(&operation).copied().unwrap_or(0)
    }
}

#[derive(Debug, Default)]
struct Pages {
    counts: Counts,
    journal: VecDeque<Seen>,
    /// The number of the journal's first entry.
    first: u64,
}

/// The sums and the journal of a proxy.
#[derive(Debug, Default)]
pub(super) struct Board {
    pages: Mutex<Pages>,
    changed: Condvar,
}

impl Board {
    fn change<T>(&self, change: impl FnOnce(&mut Pages) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn passed(&self, way: Way, bytes: usize) {
        self.change(|pages| match way {
            Way::Up => pages.counts.bytes_up += bytes as u64,
            Way::Down => pages.counts.bytes_down += bytes as u64,
        });
    }

    pub(super) fn connected(&self) {
        self.change(|pages| pages.counts.connections += 1);
    }

    /// Notes a request; answers with its number.
    pub(super) fn came(&self, seen: Seen) -> u64 {
        self.change(|pages| {
            *pages.counts.requests.entry(seen.operation).or_default() += 1;
            pages.counts.faults += u64::from(seen.faulted);
            if pages.journal.len() == JOURNAL_MAX {
                pages.journal.pop_front();
                pages.first += 1;
            }
            pages.journal.push_back(seen);
            pages.first + pages.journal.len() as u64 - 1
        })
    }

    /// Notes the answer to the request of that number.
    pub(super) fn answered(&self, number: u64, status: u16) {
        self.change(|pages| {
            *pages.counts.answers.entry(status).or_default() += 1;
            let place = number.checked_sub(pages.first).and_then(|at| usize::try_from(at).ok());
            if let Some(seen) = place.and_then(|at| pages.journal.get_mut(at)) {
                seen.status = Some(status);
            }
        });
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    pub(super) fn journal(&self) -> Vec<Seen> {
        self.lock().journal.iter().cloned().collect()
    }

    /// Wakes who waits, for a change that is noted elsewhere.
    pub(super) fn stir(&self) {
        self.change(|_| ());
    }

    /// Waits until `is_so`; answers whether it came to be in time.
    pub(super) fn wait(&self, mut is_so: impl FnMut(&Counts) -> bool) -> bool {
        let waited =
            self.changed.wait_timeout_while(self.lock(), PATIENCE, |pages| !is_so(&pages.counts));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: requests are told apart by what they want. Method: one of each.
    #[test]
    fn requests_say_what_they_want() {
        let of = |method: Method, path: &str, query: &str| Seen::of(&method, path, query);
        assert_eq!(of(Method::PUT, "/b/a/c", "partNumber=1").operation, Operation::Put);
        assert_eq!(of(Method::PUT, "/b/a/c", "").key, "a/c");
        assert_eq!(of(Method::GET, "/b", "list-type=2").operation, Operation::List);
        assert_eq!(of(Method::GET, "/b/", "list-type=2").operation, Operation::List);
        assert_eq!(of(Method::POST, "/b", "delete").operation, Operation::Delete);
        assert_eq!(of(Method::POST, "/b/a", "uploads").operation, Operation::Other);
        assert_eq!(of(Method::PUT, "/b", "").operation, Operation::Other);
    }

    /// Goal: the journal is bounded and answers still find their request. Method: one too many.
    #[test]
    fn the_journal_forgets_the_oldest() {
        let board = Board::default();
        for _ in 0..=JOURNAL_MAX {
            board.came(Seen::of(&Method::GET, "/b/k", ""));
        }
        board.answered(0, 200);
        board.answered(1, 404);
        let journal = board.journal();
        assert_eq!((journal.len(), journal[0].status), (JOURNAL_MAX, Some(404)));
        assert!(board.wait(|counts| counts.answers.len() == 2));
    }
}
