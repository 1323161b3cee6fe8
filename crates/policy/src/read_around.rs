//! How much to fetch around what is asked, where a request may cost more than its bytes do.
//!
//! How: windows of a few sizes are tried in turn and measured: blocks gained by the time that the
//! store was busy. What was asked for is a gain; of what came along, the part that its reader keeps
//! is worth half, since nobody knows yet whether it will be asked for. The best window is used; the
//! others are measured again now and then, more and more rarely while they lose. So a store that
//! is far or slow to answer is read in large pieces, a link that is narrow or a reader who has no
//! room in small ones; and who asks waits at most about twice as long for what others may ask.
//! Invariant: a pure function of what it was told; state is bounded.
//! Cost: some sums per fetch.
//! Not for: readers in order, who are led by `read_ahead`.

use layby_types::Nanos;

/// Sizes that are tried, in bytes: none at all first.
pub const WINDOWS: [u64; 3] = [0, 64 << 10, 256 << 10];
/// Fetches for which the best window is used before others may be measured.
const EPOCH: u32 = 64;
/// Fetches of a measurement: more than are in flight together, whose ends come together.
const TRIAL: u32 = 32;
/// Fetches after which a measurement ends that is clearly lost.
const TRIAL_LOST: u32 = 12;
/// Epochs between two measurements of a window that loses, at most.
const REST_MAX: u32 = 64;
/// The same of one that clearly loses, at least.
const REST_LOST: u32 = 16;
/// What a block is worth that came along and was kept.
const WORTH: f64 = 0.5;
/// How much more a larger window has to bring than a smaller one: its bytes cost something, too.
const GAIN_MIN: f64 = 1.5;
/// How slow what is asked for may become by what comes along, as a part of its rate without.
const SLOW: f64 = 0.5;

/// A window of [`WINDOWS`] as it was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around(usize);

impl Around {
    /// Bytes to fetch around what is asked.
    #[must_use]
    pub fn bytes(self) -> u64 {
        WINDOWS[self.0]
    }
}

/// What a window has brought of late.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    busy: f64,
    asked: f64,
    along: f64,
    /// Epochs until it is measured again, and how many the next rest lasts.
    rest: u32,
    rest_next: u32,
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct ReadAround {
    yields: [Yield; WINDOWS.len()],
    best: usize,
    now: usize,
    /// Fetches of the present window that are still to end.
    left: u32,
    /// Which part of what came along was kept.
    kept: f64,
}

impl Default for ReadAround {
    fn default() -> Self {
        let yields = [Yield { rest_next: 1, ..Yield::default() }; WINDOWS.len()];
        ReadAround { yields, best: 1, now: 1, left: TRIAL_LOST, kept: 1.0 }
    }
}

impl ReadAround {
    /// The window of the next fetch.
    #[must_use]
    pub fn next(&self) -> Around {
        Around(self.now)
    }

    /// A fetch has ended after which the store had been busy for `busy` since the end before it;
    /// it brought `asked` blocks that were asked for and `along` others.
    pub fn on_fetched(&mut self, around: Around, busy: Nanos, asked: u64, along: u64) {
        let state = &mut self.yields[around.0];
        state.busy += busy.0 as f64;
        state.asked += asked as f64;
        state.along += along as f64;
        if around.0 != self.now {
            return;
        }
        self.left = self.left.saturating_sub(1);
        let is_lost = self.left <= TRIAL - TRIAL_LOST && self.is_slow(self.now);
        if self.left == 0 || (self.now != self.best && is_lost) {
            self.choose();
        }
    }

    /// Of `along` blocks that came along, `kept` were kept by the time the others were let go.
    pub fn on_let_go(&mut self, along: u64, kept: u64) {
        /// How much a window counts for.
        const SHARE: f64 = 1.0 / 16.0;
        if along > 0 {
            self.kept += SHARE * (kept.min(along) as f64 / along as f64 - self.kept);
        }
    }

    /// What a window brings: blocks per nanosecond.
    fn rate(&self, window: usize) -> f64 {
        let Yield { busy, asked, along, .. } = self.yields[window];
        (asked + WORTH * self.kept * along) / busy.max(1.0)
    }

    /// Whether a window keeps those waiting too long who ask.
    fn is_slow(&self, window: usize) -> bool {
        let asked = |window: usize| {
            let Yield { busy, asked, .. } = self.yields[window];
            asked / busy.max(1.0)
        };
        asked(window) < asked(0) * SLOW
    }

    /// Whether a window is to be used rather than another one.
    fn is_better(&self, window: usize, other: usize) -> bool {
        if self.is_slow(window) != self.is_slow(other) {
            return self.is_slow(other);
        }
        let (rate, other_rate) = (self.rate(window), self.rate(other));
        match window > other {
            true => rate > other_rate * GAIN_MIN,
            false => rate * GAIN_MIN > other_rate && window != other,
        }
    }

    /// Whether a window was never measured.
    fn is_new(&self, window: usize) -> bool {
        self.yields[window].asked == 0.0
    }

    fn choose(&mut self) {
        let is_trial = self.now != self.best;
        if is_trial {
            let has_lost = !self.is_better(self.now, self.best);
            let is_clear =
                self.is_slow(self.now) || self.rate(self.now) < self.rate(self.best) / 2.0;
            let least = if is_clear { REST_LOST } else { 1 };
            let state = &mut self.yields[self.now];
            state.rest_next = if has_lost { state.rest_next * 2 } else { 1 };
            state.rest_next = state.rest_next.clamp(least, REST_MAX);
            state.rest = state.rest_next;
        }
        let better = |best, window| if self.is_better(window, best) { window } else { best };
        self.best = (0..WINDOWS.len()).fold(self.best, better);
        // Only the sizes beside the best one, since a larger one would lose by more; and none at
        // all, which says how slow a window may be.
        let is_beside = |window: usize| window.abs_diff(self.best) == 1;
        let is_worth = |window: &usize| is_beside(*window) || *window == 0;
        let mut beside = (0..WINDOWS.len()).filter(|window| *window != self.best).filter(is_worth);
        let due = |window: &usize| self.yields[*window].rest == 0;
        // A measurement is followed by an epoch of the best, unless there is a new one to try.
        let is_next = |window: &usize| due(window) && (!is_trial || self.is_new(*window));
        let other = beside.find(is_next);
        (self.now, self.left) = match other {
            Some(other) => (other, TRIAL),
            None => (self.best, EPOCH),
        };
        if !is_trial {
            self.yields.iter_mut().for_each(|state| state.rest = state.rest.saturating_sub(1));
        }
        // What is measured now counts as much as all that was measured before.
        let state = &mut self.yields[self.now];
        let forgotten = if other.is_some() { 0.0 } else { 0.5 };
        (state.busy, state.asked, state.along) =
            (state.busy * forgotten, state.asked * forgotten, state.along * forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    /// A store that needs a time per request and one per byte; answers with how often each window
    /// was used in so many fetches.
    fn used(around: &mut ReadAround, fetches: u32, request: u64, byte: f64, kept: u64) -> [u32; 3] {
        let mut used = [0; 3];
        for _ in 0..fetches {
            let window = around.next();
            let blocks = (window.bytes() / BLOCK).max(1);
            let busy = request + ((blocks * BLOCK) as f64 * byte) as u64;
            around.on_fetched(window, Nanos(busy), 1, blocks - 1);
            around.on_let_go(blocks - 1, (blocks - 1) * kept / 100);
            used[window.0] += 1;
        }
        used
    }

    /// Goal: a store whose requests cost more than their bytes is read in the largest pieces.
    /// Method: a millisecond per request, a gigabyte per second.
    #[test]
    fn costly_requests_make_large_windows() {
        let used = used(&mut ReadAround::default(), 2000, 1_000_000, 1.0, 100);
        assert!(used[2] > 1700, "{used:?}");
    }

    /// Goal: a narrow link is not filled with what nobody asked for. Method: 100 Mbit/s without a
    /// delay; bytes beside what was asked.
    #[test]
    fn a_narrow_link_carries_what_was_asked() {
        let used = used(&mut ReadAround::default(), 20_000, 10_000, 80.0, 100);
        assert!(used[0] > 19_000, "{used:?}");
        let along = u64::from(used[1]) * 15 + u64::from(used[2]) * 63;
        assert!(along < 2_000, "{along} blocks along with 20000");
    }

    /// Goal: what comes along does not make what was asked for more than twice as slow. Method:
    /// links between the two extremes; the time per fetch beside that without a window.
    #[test]
    fn who_asks_does_not_wait_long() {
        for (request, byte) in [(2_000_000, 10.0), (700_000, 10.0), (6_000_000, 80.0)] {
            let mut around = ReadAround::default();
            used(&mut around, 2000, request, byte, 100);
            let used = used(&mut around, 20_000, request, byte, 100);
            let time = |fetches: u32, blocks: u64| {
                f64::from(fetches) * (request as f64 + (blocks * BLOCK) as f64 * byte)
            };
            let whole = time(used[0], 1) + time(used[1], 16) + time(used[2], 64);
            let slowness = whole / time(20_000, 1);
            assert!(slowness < 2.2, "{used:?}: {slowness}");
            assert!(used[0] < 19_000, "{used:?}");
        }
    }

    /// Goal: what nobody keeps is not fetched, and is once it is kept again. Method: nothing kept
    /// for a time, then everything.
    #[test]
    fn what_nobody_keeps_is_not_fetched() {
        let mut around = ReadAround::default();
        assert!(used(&mut around, 1000, 1_000_000, 1.0, 100)[2] > 700);
        let full = used(&mut around, 20_000, 1_000_000, 1.0, 0);
        assert!(full[0] > 19_000, "{full:?}");
        let again = used(&mut around, 20_000, 1_000_000, 1.0, 100);
        assert!(again[2] > 10_000, "{again:?}");
    }

    /// Goal: a link that becomes narrow by and by, or clients that become many, are noticed from
    /// the largest window as well. Method: the same, from a wide link to one that a large window
    /// makes three times slower.
    #[test]
    fn the_largest_window_is_given_up_in_time() {
        let mut around = ReadAround::default();
        assert!(used(&mut around, 2000, 50_000_000, 1.0, 100)[2] > 1700);
        let used = used(&mut around, 20_000, 10_000_000, 80.0, 100);
        assert!(used[2] < 2000, "{used:?}");
    }

    /// Goal: windows follow a link that changes. Method: far and wide, narrow, far and wide.
    #[test]
    fn windows_follow_the_link() {
        let mut around = ReadAround::default();
        assert!(used(&mut around, 2000, 5_000_000, 1.0, 100)[2] > 1700);
        let narrow = used(&mut around, 20_000, 10_000, 80.0, 100);
        assert!(narrow[0] > 18_000, "{narrow:?}");
        let wide = used(&mut around, 20_000, 5_000_000, 1.0, 100);
        assert!(wide[2] > 10_000, "{wide:?}");
    }
}
