//! Many lives, side by side on all cores, and what they have seen.
//!
//! How: threads draw seeds from one counter until the seeds or the time are used up; each life is
//! wholly its thread's own. The first failures stop the campaign.
//! Invariant: which seeds were lived does not depend on the number of threads, but for a campaign
//! that time ends. Cost: see the lives. Not for: showing one life; see [`crate::timeline`].

use crate::plan::Life;
use crate::timeline::Timeline;
use crate::world::{Failure, Tally, live};
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a campaign goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many seeds.
    Seeds(u64),
    /// As many as fit into this time.
    Time(Duration),
}

/// What a campaign has seen.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Lives lived.
    pub lives: u64,
    /// All of their tallies in sum.
    pub tally: Tally,
    /// Seeds that failed, lowest first.
    pub failures: Vec<(u64, Failure)>,
    /// How long it took.
    pub elapsed: Duration,
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps panics from being printed: they are caught and reported as failures of their life.
pub fn hush_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("({}:{})", at.file(), at.line()));
        LAST_PANIC.with_borrow_mut(|last| *last = place.unwrap_or_default());
    }));
}

/// Where this thread panicked last, where that is known.
pub(crate) fn last_panic() -> String {
    LAST_PANIC.with_borrow(Clone::clone)
}

/// Lives all seeds from `first` on; stops early after `failures_max` of them have failed.
/// `progress` is told the number of lives so far, now and then.
pub fn run(
    first: u64,
    length: Length,
    threads: usize,
    failures_max: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Outcome {
    #[expect(clippy::disallowed_methods, reason = "a campaign lasts as long as people say")]
    let began = Instant::now();
    let (next, is_over) = (AtomicU64::new(first), AtomicBool::new(false));
    let outcome = Mutex::new(Outcome::default());
    let is_due = |seed: u64| match length {
        Length::Seeds(count) => seed < first + count,
        Length::Time(time) => began.elapsed() < time,
    };
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !is_due(seed) {
                break;
            }
            let result = live(&Life::draw(seed), &mut Timeline::default());
            let mut outcome = outcome.lock().expect("lives are lived outside of the lock");
            outcome.add(seed, result);
            is_over.fetch_or(outcome.failures.len() >= failures_max, Ordering::Relaxed);
            progress(outcome.lives);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut outcome = outcome.into_inner().expect("the threads have ended");
    outcome.failures.sort_by_key(|(seed, _)| *seed);
    outcome.elapsed = began.elapsed();
    outcome
}

impl Outcome {
    fn add(&mut self, seed: u64, result: Result<Tally, Failure>) {
        self.lives += 1;
        match result {
            Ok(tally) => self.tally.add(tally),
            Err(failure) => self.failures.push((seed, failure)),
        }
    }
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.cuts += other.cuts;
        self.cuts_in_recovery += other.cuts_in_recovery;
        self.stops_unclean += other.stops_unclean;
        self.refused += other.refused;
        self.starts_failed += other.starts_failed;
        self.older += other.older;
        self.older_nodes += other.older_nodes;
        self.broken += other.broken;
        self.destroyed += other.destroyed;
        self.restored += other.restored;
        self.clean_checked += other.clean_checked;
        self.intents_refused += other.intents_refused;
        self.written_back += other.written_back;
        self.lengths += other.lengths;
        self.removed += other.removed;
        self.steps += other.steps;
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (met, count) in other.areas {
            *self.areas.entry(met).or_default() += count;
        }
        self.windows.extend(other.windows);
        self.windows_cut.extend(other.windows_cut);
    }
}
