//! How much of its processors' time does the machine itself take away?
//!
//! How: a thread per processor looks at the clock again and again; what lies between two looks
//! beyond a tenth of a millisecond is a pause that no server could have answered in. A machine that
//! shares its processors with others has many.
//! Invariant: nothing else that the bench started is busy meanwhile. Cost: [`TIME`] of every
//! processor. Not for: pauses beside a load; where that is larger they are more, not fewer.

use std::time::{Duration, Instant};

/// How long is looked.
pub(crate) const TIME: Duration = Duration::from_secs(1);
/// A look takes less than a microsecond; an interrupt some tens.
const PAUSE_MIN: Duration = Duration::from_micros(100);

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pauses {
    /// Of all processors' time.
    pub(crate) share: f64,
    /// Microseconds.
    pub(crate) longest_us: f64,
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
        assert_eq!(of([Duration::from_micros(10)].into_iter()).longest_us, 999_990.0);
    }
}
