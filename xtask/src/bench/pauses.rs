//! How much of its processors' time does the machine itself take away?
//!
//! How: before a load, a thread per processor looks at the clock again and again; what lies between
//! two looks beyond a tenth of a millisecond is a pause that no server could have answered in. A
//! machine that shares its processors with others has many. Beside a load, a [`Probe`] sleeps a
//! millisecond at a time and takes what it overslept; it comes before the load where the bench
//! does.
//! Invariant: nothing else that the bench started is busy while [`measure`] looks.
//! Cost: [`TIME`] of every processor; a probe, a thousand short turns a second.
//! Not for: a probe that does not come first; what it overslept is the load's, too.

use super::report::Spread;
use crate::process;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long is looked.
pub(crate) const TIME: Duration = Duration::from_secs(1);
/// A look takes less than a microsecond; an interrupt some tens.
const PAUSE_MIN: Duration = Duration::from_micros(100);

/// What a probe sleeps at a time.
const PROBE_SLEEP: Duration = Duration::from_millis(1);

/// An idle thread beside a load: the longest that it overslept is the machine's longest pause.
pub(crate) struct Probe {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Probe {
    /// Begins. With `is_first` the thread comes before all that the bench runs, as far as this user
    /// may; where it does not, it only says more pauses than there are.
    pub(crate) fn start(root: &Path, is_first: bool) -> Probe {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, root) = (Arc::clone(&is_over), root.to_path_buf());
        let thread = std::thread::spawn(move || {
            if is_first {
                come_first(&root);
            }
            overslept(&over)
        });
        Probe { is_over, thread }
    }

    /// Ends; the longest pause, in microseconds.
    pub(crate) fn end(self) -> f64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().expect("sleeping cannot fail").as_secs_f64() * 1e6
    }
}

#[expect(clippy::disallowed_methods, reason = "what is measured is the clock of the machine")]
fn overslept(is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::park_timeout(PROBE_SLEEP);
        longest = longest.max(began.elapsed().saturating_sub(PROBE_SLEEP));
    }
    longest
}

/// This thread comes first in its processor's queue.
fn come_first(root: &Path) {
    let link = std::fs::read_link("/proc/thread-self");
    let name = link.ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    if let Some(thread) = name {
        // Without the right to do so the probe goes on as it is.
        let _ = process::run(process::command("chrt", root).args(["-f", "-p", "50", &thread]));
    }
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pauses {
    /// Of all processors' time.
    pub(crate) share: f64,
    /// Microseconds.
    pub(crate) longest_us: f64,
}

/// What was seen before the rounds, for a report.
pub(crate) fn sentence(seen: &[Pauses]) -> String {
    format!(
        "Before each round the idle machine itself took {} % of the processors' time in pauses of \
         0.1 ms and more, the longest of {:.1} ms: a percentile beyond that share is as much the \
         machine's as the server's.",
        Spread::of(seen.iter().map(|seen| seen.share * 100.0)).fraction(),
        seen.iter().map(|seen| seen.longest_us / 1e3).fold(0.0, f64::max)
    )
}

/// Looks at all processors at once.
pub(crate) fn measure() -> Pauses {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    #[expect(clippy::disallowed_methods, reason = "what is measured is the clock of the machine")]
    let look = || {
        let started = Instant::now();
        let looks = std::iter::from_fn(|| Some(started.elapsed()));
        of(looks.take_while(|at| *at < TIME))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(look)).collect();
        let seen = threads.into_iter().map(|thread| thread.join().expect("looking cannot fail"));
        seen.fold(Pauses::default(), |sum, one| Pauses {
            share: sum.share + one.share / processors as f64,
            longest_us: sum.longest_us.max(one.longest_us),
        })
    })
}

/// Of the times at which somebody looked.
fn of(looks: impl Iterator<Item = Duration>) -> Pauses {
    let (mut last, mut lost, mut longest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for at in looks.chain([TIME]) {
        let pause = at - last;
        last = at;
        if pause >= PAUSE_MIN {
            lost += pause;
            longest = longest.max(pause);
        }
    }
    let (share, longest_us) =
        (lost.as_secs_f64() / TIME.as_secs_f64(), longest.as_secs_f64() * 1e6);
    Pauses { share, longest_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only pauses count, and the one at the end does, too. Method: looks by hand.
    #[test]
    fn what_is_long_counts() {
        let looks = [0, 50, 140, 340, 999_000].map(Duration::from_micros);
        let seen = of(looks.into_iter().chain((999_001..1_000_000).map(Duration::from_micros)));
        assert!((seen.share - 0.99886).abs() < 1e-9, "{seen:?}");
        let probe = Probe::start(Path::new("."), false);
        assert!(probe.end() >= 0.0);
        assert_eq!(of([Duration::from_micros(10)].into_iter()).longest_us, 999_990.0);
    }
}
