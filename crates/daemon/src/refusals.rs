//! Clients that were not let in, as the log has them: a line a second per cause, with a count.
//!
//! How: the first client of a cause has its line at once. Those that follow within a second are
//! counted, and the end of that second has a line with their number and the last one's peer.
//! Invariant: the counts of a cause's lines add up to its refused clients, also at a stop. Causes
//! are texts of this program, so no client adds one; what a client chose is shortened.
//! Cost: two locks per refused client, and a task per cause while any come.
//! Not for: refused requests on the control API; see `audit`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two lines of a cause at least.
const PERIOD: Duration = Duration::from_secs(1);
/// Characters of a volume's name that are shown: the client chose it.
const NAME_CHARS_MAX: usize = 64;

/// A client that was not let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Its address, or `unix`.
    pub(crate) peer: String,
    /// The volume that it asked for, as far as it came to that.
    pub(crate) volume: Option<String>,
}

/// What happened since the last line of a cause.
#[derive(Debug, Default)]
struct Unwritten {
    count: u64,
    last: Refused,
}

/// The causes of the last second, and how often each was one.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    causes: Mutex<BTreeMap<&'static str, Unwritten>>,
    totals: Mutex<BTreeMap<&'static str, u64>>,
}

impl Refusals {
    /// Notes a refused client.
    pub(crate) fn note(self: &Arc<Self>, cause: &'static str, refused: &Refused) {
        *self.totals().entry(cause).or_default() += 1;
        if self.is_first(cause, refused) {
            write(cause, 1, refused);
            let own = Arc::clone(self);
            tokio::spawn(async move { own.follow(cause).await });
        }
    }

    /// Writes what is counted and not written, at a stop.
    pub(crate) fn flush(&self) {
        for (cause, unwritten) in std::mem::take(&mut *self.lock()) {
            if unwritten.count > 0 {
                write(cause, unwritten.count, &unwritten.last);
            }
        }
    }

    /// Whether a cause has had no line within the period; otherwise the client is counted.
    fn is_first(&self, cause: &'static str, refused: &Refused) -> bool {
        let mut causes = self.lock();
        if let Some(unwritten) = causes.get_mut(cause) {
            unwritten.count += 1;
            unwritten.last.clone_from(refused);
            return false;
        }
        causes.insert(cause, Unwritten::default());
        true
    }

    /// Writes a line per period until one passes without a client.
    async fn follow(&self, cause: &'static str) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(unwritten) = self.end_period(cause) else { return };
            write(cause, unwritten.count, &unwritten.last);
        }
    }

    fn end_period(&self, cause: &'static str) -> Option<Unwritten> {
        let mut causes = self.lock();
        let unwritten = causes.get_mut(cause).filter(|unwritten| unwritten.count > 0);
        let unwritten = unwritten.map(std::mem::take);
        if unwritten.is_none() {
            causes.remove(cause);
        }
        unwritten
    }

    /// Clients refused since the start, by cause.
    pub(crate) fn totals(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Unwritten>> {
        self.causes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(cause: &'static str, count: u64, last: &Refused) {
    let volume = last.volume.as_deref().map(shortened);
    tracing::info!(cause, count, peer = last.peer, volume, "refused clients");
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(peer: &str) -> Refused {
        Refused { peer: peer.to_owned(), volume: None }
    }

    /// Goal: within a second the first client has a line, the others a common one, and a cause
    /// that ends is forgotten. Method: two causes, period by period.
    #[test]
    fn clients_are_counted_by_cause() {
        let refusals = Refusals::default();
        assert!(refusals.is_first("a", &from("1")));
        assert!(!refusals.is_first("a", &from("2")) && !refusals.is_first("a", &from("3")));
        assert!(refusals.is_first("b", &from("4")));
        let unwritten = refusals.end_period("a").expect("two were counted");
        assert_eq!((unwritten.count, unwritten.last), (2, from("3")));
        assert!(!refusals.is_first("a", &from("5")), "its line has just been written");
        assert_eq!(refusals.end_period("a").map(|unwritten| unwritten.count), Some(1));
        assert!(refusals.end_period("a").is_none() && refusals.end_period("b").is_none());
        assert!(refusals.lock().is_empty());
        assert!(refusals.is_first("a", &from("6")));
    }

    /// Goal: a flood costs one task, which ends with it. Method: paused time, many clients.
    #[tokio::test(start_paused = true)]
    async fn a_flood_has_one_task() {
        let refusals = Arc::new(Refusals::default());
        for _ in 0..10_000 {
            refusals.note("a", &from("1"));
        }
        assert_eq!(Arc::strong_count(&refusals), 2);
        tokio::time::sleep(3 * PERIOD).await;
        assert_eq!(Arc::strong_count(&refusals), 1);
        assert!(refusals.lock().is_empty());
    }
}
