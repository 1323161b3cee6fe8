//! Objects that are of no use any more: they are removed by one request at a time.
//!
//! How: replaced checkpoints, dropped snapshots and what a sweep has found wait in one list. One
//! request is in flight, for up to [`KEYS_MAX`] of them. Where two for many keys in a row fail,
//! those of the second are removed one by one, as the store may have no removal of many objects, or
//! deny that of a few of them. The next request that is done shows that the store is in reach: they
//! are tried together once more, since it may have been an outage. Where that fails twice, they are
//! removed one by one, and tried together once more only after one of them has failed.
//! After a fault a request waits for its back-off, as others do; the next one is for keys that none
//! has failed for, then for one of these, then for those that failed alone.
//! Invariant: however long the store denies removals, one request is in flight or backs off, so
//! that their number does not grow. A key that cannot be removed delays no other one by more than
//! its back-off. What the list has no room for is left to the next session's sweep.
//! Cost: memory for the keys; up to [`KEYS_MAX`] requests after four for many that have failed, and
//! two more for each key that is denied.
//! Not for: segments, which the map has until the store has removed them; see `commit`.

use super::{Flight, Volume};
use crate::action::Request;
use crate::removal::KEYS_MAX;
use std::collections::VecDeque;
use std::ops::DerefMut;

/// Keys that wait at most: a day of checkpoints, or what some thousand sessions left behind.
const WAITING_MAX: usize = 1 << 18;

/// See the file's header.
#[derive(Default)]
pub(super) struct Gone {
    /// Keys that no request has failed for.
    waiting: VecDeque<String>,
    /// Keys of one request that has failed: each gets its own.
    singles: VecDeque<String>,
    /// The next of these is the last one. The end changes after each fault: what is denied often
    /// has a prefix of its own, and listed keys are sorted.
    is_from_end: bool,
    /// Keys whose own request has failed, or that were not tried alone yet.
    failed: VecDeque<String>,
    is_under_way: bool,
    /// The last request is for many keys.
    is_many: bool,
    /// The last request for many keys that has ended failed, and they were not tried again since.
    has_many_failed: bool,
    /// The last keys that were to get a request each were tried together again, and no removal of
    /// one key has failed since.
    is_retried: bool,
    /// The last removal of a segment failed.
    is_failing: bool,
}

impl Gone {
    fn push(&mut self, keys: impl IntoIterator<Item = String>) {
        let held = self.waiting.len() + self.singles.len() + self.failed.len();
        let room = WAITING_MAX.saturating_sub(held);
        self.waiting.extend(keys.into_iter().take(room));
    }

    /// A request for the next keys, which leave the list.
    fn take(&mut self) -> Option<Request> {
        let request = self.next();
        self.is_many = matches!(request, Some(Request::DeleteMany { .. }));
        request
    }

    fn next(&mut self) -> Option<Request> {
        if self.waiting.is_empty() {
            if let Some(key) = self.next_single() {
                return Some(Request::Delete { key });
            }
            std::mem::swap(&mut self.waiting, &mut self.failed);
        }
        match self.waiting.len() {
            0 => None,
            // Not all stores know removals of many objects.
            1 => self.waiting.pop_front().map(|key| Request::Delete { key }),
            waiting => {
                let keys = self.waiting.drain(..waiting.min(KEYS_MAX)).collect();
                Some(Request::DeleteMany { keys })
            }
        }
    }

    fn next_single(&mut self) -> Option<String> {
        match self.is_from_end {
            true => self.singles.pop_back(),
            false => self.singles.pop_front(),
        }
    }

    /// The last request was done.
    fn on_done(&mut self) {
        if self.is_many {
            self.has_many_failed = false;
            self.is_retried &= !self.singles.is_empty();
        }
        if !self.is_retried {
            // What failed may have been the store as a whole, for a time.
            self.has_many_failed = false;
            self.is_retried = !self.singles.is_empty();
            self.waiting.extend(self.singles.drain(..));
        }
    }

    /// The request that follows one that has failed, whose keys have their room in the list.
    fn again(&mut self, failed: Request) -> Request {
        let is_first = self.is_many && !self.has_many_failed;
        self.has_many_failed |= self.is_many;
        match failed {
            Request::Delete { key } => {
                self.is_retried = false;
                self.is_from_end = !self.is_from_end;
                self.failed.push_back(key);
            }
            // A fault that passes is not worth a request for each key.
            Request::DeleteMany { keys } if is_first => self.waiting.extend(keys),
            // Those of one request at a time, so that few requests are for single keys once the
            // store removes objects again.
            Request::DeleteMany { keys } if self.singles.is_empty() => self.singles = keys.into(),
            Request::DeleteMany { keys } => self.failed.extend(keys),
            other => return other,
        }
        self.take().expect("it has the keys that failed")
    }

    /// A segment was removed.
    pub(super) fn on_segment_removed(&mut self) {
        self.is_failing = false;
    }

    /// The removal of a segment has failed.
    pub(super) fn on_segment_failed(&mut self) {
        self.is_failing = true;
    }

    /// Whether the store removes no segments: it denies it, or does not answer.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// These objects are to go.
    pub(super) fn remove(&mut self, keys: impl IntoIterator<Item = String>) {
        self.gone.push(keys);
        self.remove_next();
    }

    fn remove_next(&mut self) {
        if self.gone.is_under_way || !self.session.is_open() {
            return;
        }
        if let Some(request) = self.gone.take() {
            self.gone.is_under_way = true;
            self.ask(request, Flight::Remove);
        }
    }

    pub(super) fn on_removed(&mut self) {
        self.gone.is_under_way = false;
        self.gone.on_done();
        self.remove_next();
    }

    /// A request has failed and is to be repeated; what it is then. Of a segment it is noted.
    pub(super) fn note_failed_removal(&mut self, flight: &Flight, request: Request) -> Request {
        match flight {
            Flight::Remove => self.gone.again(request),
            Flight::Delete { .. } => {
                self.gone.on_segment_failed();
                request
            }
            _ => request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::collections::BTreeSet;

    /// A store: what it has, what it denies, and whether it has a removal of many objects.
    struct Store {
        objects: BTreeSet<String>,
        denied: BTreeSet<String>,
        has_many: bool,
    }

    impl Store {
        /// Whether it was done; what comes behind the first fault stays.
        fn perform(&mut self, request: &Request) -> bool {
            let keys = match request {
                Request::Delete { key } => std::slice::from_ref(key),
                Request::DeleteMany { keys } => &keys[..],
                other => panic!("no removal: {other:?}"),
            };
            let is_known = keys.len() == 1 || self.has_many;
            is_known
                && keys.iter().all(|key| {
                    let is_permitted = !self.denied.contains(key);
                    if is_permitted {
                        self.objects.remove(key);
                    }
                    is_permitted
                })
        }
    }

    /// Goal: all objects go that can be removed, within about twice as many requests as there are
    /// keys, whichever of them are denied and with or without removals of many. Method: some
    /// thousand keys by seeds, of which a few, many, or a run of them are denied; requests are
    /// counted.
    #[test]
    fn what_can_be_removed_goes() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let keys: Vec<String> =
                (0..rng.below(4 * KEYS_MAX as u64)).map(|key| format!("{key:08}")).collect();
            let percent = [0, 1, 40][rng.below(3) as usize];
            let mut denied: BTreeSet<String> =
                keys.iter().filter(|_| rng.chance(percent, 100)).cloned().collect();
            if rng.chance(1, 2) {
                let from = rng.below(keys.len() as u64 + 1) as usize;
                denied.extend(keys[from..].iter().take(KEYS_MAX / 2).cloned());
            }
            let (objects, has_many) = (keys.iter().cloned().collect(), rng.chance(1, 2));
            let mut store = Store { objects, denied, has_many };
            let mut gone = Gone::default();
            gone.push(keys.iter().cloned());
            let (mut requests, mut next) = (0, gone.take());
            while !store.objects.is_subset(&store.denied) {
                let request = next.expect("some are left");
                requests += 1;
                assert!(requests <= 2 * keys.len() + 20, "{requests} requests, seed {seed}");
                next = match store.perform(&request) {
                    true => {
                        gone.on_done();
                        gone.take()
                    }
                    false => Some(gone.again(request)),
                };
            }
            assert!(store.denied.is_subset(&store.objects), "seed {seed}");
        }
    }

    /// Goal: a fault that passes costs a removal of many one more request, whatever has failed
    /// before. Method: a removal of one key fails, up to three times in a row; then there are keys
    /// for one request of many, which fails once.
    #[test]
    fn a_fault_that_passes_costs_one_request() {
        let is_whole = |request: &Request| match request {
            Request::DeleteMany { keys } => keys.len() == KEYS_MAX,
            _ => false,
        };
        for denials in 1..4 {
            let mut gone = Gone::default();
            gone.push(["denied".to_owned()]);
            let mut next = gone.take().expect("there is a key");
            for denial in 0..denials {
                if denial + 1 == denials {
                    gone.push((0..KEYS_MAX).map(|key| format!("{key:08}")));
                }
                next = gone.again(next);
            }
            assert!(is_whole(&next), "{next:?}");
            next = gone.again(next);
            assert!(is_whole(&next), "{next:?} after {denials} removals of one key that failed");
        }
    }

    /// What requests end with, in a row: the store fails as a whole, and then performs all.
    fn outage(gone: &mut Gone, failures: u64) -> Option<Request> {
        let mut next = gone.take();
        for _ in 0..failures {
            next = Some(gone.again(next.expect("nothing has gone")));
        }
        next
    }

    /// Goal: once an outage has ended, removals of many are back with the first success, however
    /// long it was. Method: outages of seeded lengths over keys of up to four requests, with more
    /// keys that come meanwhile; requests until all have gone are counted.
    #[test]
    fn an_outage_ends_with_its_first_success() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let count = 2 + rng.below(4 * KEYS_MAX as u64) as usize;
            let mut gone = Gone::default();
            gone.push((0..count).map(|key| format!("{key:08}")));
            let failures = rng.below(12);
            let mut next = outage(&mut gone, failures);
            gone.push((0..rng.below(3)).map(|key| format!("late {key}")));
            let (mut requests, mut removed) = (0, 0);
            while let Some(request) = next {
                requests += 1;
                removed += match request {
                    Request::DeleteMany { keys } => keys.len(),
                    _ => 1,
                };
                gone.on_done();
                next = gone.take();
            }
            let least = count.div_ceil(KEYS_MAX);
            assert!(removed >= count, "seed {seed}: {removed} of {count}");
            let words = format!("seed {seed}: {requests} requests for {removed} keys");
            assert!(requests <= least + 5, "{words} after {failures} failures");
        }
    }

    /// Goal: an outage of long ago does not make a fault that passes cost a request per key.
    /// Method: an outage, then removals of one key that are done; then keys for one request of
    /// many, which fails once.
    #[test]
    fn an_outage_of_long_ago_is_forgotten() {
        for failures in 2..12 {
            let mut gone = Gone::default();
            gone.push(["a", "b"].map(str::to_owned));
            let mut next = outage(&mut gone, failures);
            while next.is_some() {
                gone.on_done();
                next = gone.take();
            }
            gone.push(["c".to_owned()]);
            assert!(matches!(gone.take(), Some(Request::Delete { .. })));
            gone.on_done();
            gone.push((0..KEYS_MAX).map(|key| format!("{key:08}")));
            let failed = gone.take().expect("there are keys");
            let next = gone.again(failed);
            assert!(matches!(next, Request::DeleteMany { .. }), "{next:?} after {failures}");
        }
    }
}
