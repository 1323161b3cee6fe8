//! Delayed discard: freed ranges wait for some seconds before the device below hears of them.
//!
//! How: [`Discards`] keeps what was freed as disjoint runs. A write cancels the part that it
//! covers, since it invalidates the old page itself; neighbours become one run; when the delay has
//! passed, what is left goes in ascending order. Where the table is full, its largest runs go
//! first. The delay is fixed, or follows reuse and free space, and sending keeps to a bandwidth: a
//! run that exceeds it leaves in pieces, unless it must go at once.
//! Invariant: no unit that was written after it was freed is ever handed out, if the caller calls
//! [`Discards::written`] before it issues the write and lets that write wait while
//! [`Discards::is_in_flight`]; where the write may fail, [`Discards::withhold`] stands for it, and
//! [`Discards::end_withheld`] decides. Counters balance exactly, see [`DiscardCounters`].
//! Cost: logarithmic in the runs held, plus the runs that a call touches; about 100 bytes a run.
//! Not for data: a discard is advice, and who promises zeros must remember them elsewhere.
//! Source: Delay-D (Kang, Aerospace 2024, 11, 47), algorithm 1.

mod delay;
mod runs;
#[cfg(test)]
mod tests;

pub use delay::{DelayLimits, DiscardDelay};

use core::ops::Range;
use delay::Delay;
use layby_types::Nanos;
use runs::Runs;

/// Whether discards reach the device below, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiscardMode {
    /// Never: what is freed is dropped.
    Off,
    /// As soon as they are received, as a file system mounted with `discard` does.
    #[default]
    Immediate,
    /// After a delay.
    Delayed,
}

/// The bounds of one table, and how it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Whether and when.
    pub mode: DiscardMode,
    /// How long ranges wait in mode [`DiscardMode::Delayed`].
    pub delay: DiscardDelay,
    /// Runs held at most; beyond, the largest go at once.
    pub ranges_max: u32,
    /// Bytes held at most; beyond, the largest go at once.
    pub bytes_max: u64,
    /// Bytes per second that are sent at most; 0 for no limit. In any second it is exceeded by one
    /// piece at most, see [`Discards::piece_bytes_max`].
    pub bytes_per_second_max: u64,
    /// Discards that the device holds at most.
    pub in_flight_max: u16,
}

impl DiscardLimits {
    /// The fewest runs: one must be able to wait.
    pub const RANGES_MIN: u32 = 1;
    /// The most runs, about 100 MiB of memory.
    pub const RANGES_MAX: u32 = 1 << 20;
    /// Some 400 KiB of memory, and more than ext4 frees in a commit.
    pub const RANGES_DEFAULT: u32 = 4096;
    /// The least that may wait.
    pub const BYTES_MIN: u64 = 1 << 20;
    /// The most that may wait.
    pub const BYTES_MAX: u64 = 1 << 50;
    /// What a device of the usual size can spare for some seconds.
    pub const BYTES_DEFAULT: u64 = 8 << 30;
    /// The slowest sending.
    pub const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
    /// The fastest sending that is a limit.
    pub const BYTES_PER_SECOND_MAX: u64 = 1 << 40;
    /// No limit.
    pub const BYTES_PER_SECOND_DEFAULT: u64 = 0;
    /// Pieces that keep to the bandwidth have this size at least and end at its multiples, since
    /// devices ignore a discard of less than their own unit. Any block size divides it.
    pub const PIECE_BYTES_MIN: u64 = 1 << 20;
    /// One after the other.
    pub const IN_FLIGHT_MIN: u16 = 1;
    /// As many as a queue of NVMe takes with ease.
    pub const IN_FLIGHT_MAX: u16 = 256;
    /// Enough to hide the way there and back.
    pub const IN_FLIGHT_DEFAULT: u16 = 4;
    /// Delayed by the paper's five seconds.
    pub const DEFAULT: DiscardLimits = DiscardLimits {
        mode: DiscardMode::Delayed,
        delay: DiscardDelay::DEFAULT,
        ranges_max: Self::RANGES_DEFAULT,
        bytes_max: Self::BYTES_DEFAULT,
        bytes_per_second_max: Self::BYTES_PER_SECOND_DEFAULT,
        in_flight_max: Self::IN_FLIGHT_DEFAULT,
    };
}

/// Ranges and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardCount {
    /// Ranges.
    pub ranges: u64,
    /// Bytes, or whatever the caller's ranges count.
    pub bytes: u64,
}

impl DiscardCount {
    fn add(&mut self, ranges: u64, bytes: u64) {
        self.ranges += ranges;
        self.bytes += bytes;
    }
}

/// What had a range sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiscardCause {
    /// Nothing: it never waited.
    AtOnce,
    /// The delay has passed.
    Delay,
    /// A write to the device below that had to go behind it.
    Write,
    /// A checkpoint of who remembers the zeros, which would forget them.
    Checkpoint,
    /// Too many ranges or bytes waited.
    Full,
    /// The mode changed, or the table's owner goes.
    Change,
}

impl DiscardCause {
    /// All of them, in the order of [`DiscardCounters::sent_by`].
    pub const ALL: [DiscardCause; 6] = [
        DiscardCause::AtOnce,
        DiscardCause::Delay,
        DiscardCause::Write,
        DiscardCause::Checkpoint,
        DiscardCause::Full,
        DiscardCause::Change,
    ];
}

/// What became of the ranges received.
///
/// At any time `sent + merged + cancelled + dropped + pending = received + split`, in ranges, and
/// `sent + merged + cancelled + dropped + pending = received`, in bytes. A write into the middle of
/// a range leaves two where there was one: that is what `split` counts, and why ranges need it.
/// A range is cancelled when its last byte was written; until then only its bytes are. A range is
/// merged when it became part of another; of its bytes, those count as merged that were pending
/// already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardCounters {
    /// Taken in by [`Discards::reclaim`].
    pub received: DiscardCount,
    /// Written again before they were sent.
    pub cancelled: DiscardCount,
    /// Became part of another range.
    pub merged: DiscardCount,
    /// Handed out for the device: what it saw.
    pub sent: DiscardCount,
    /// Of these, ranges by [`DiscardCause`]; what the device refused stays counted here.
    pub sent_by: [u64; DiscardCause::ALL.len()],
    /// Not sent and not to be: mode off, no room, or forgotten.
    pub dropped: DiscardCount,
    /// Further ranges that writes into the middle made, and pieces that left before the rest.
    pub split: u64,
}

/// The freed ranges of one volume or device that the device below does not know of.
#[derive(Clone, Debug)]
pub struct Discards {
    limits: DiscardLimits,
    runs: Runs,
    in_flight: alloc::vec::Vec<Range<u64>>,
    /// Cut out of the runs for writes under way.
    withheld: alloc::vec::Vec<Range<u64>>,
    counters: DiscardCounters,
    delay: Delay,
    /// When the oldest of what waits for the next round was received.
    since: Nanos,
    /// Where the round under way stands: it goes on with the first run from here.
    cursor: Option<u64>,
    /// Sending may go on from then, for the sake of the bandwidth.
    free_at: Nanos,
}

impl Discards {
    /// An empty table. Panics where a limit exceeds its bounds: the configuration checks them.
    #[must_use]
    pub fn new(limits: DiscardLimits) -> Self {
        check(&limits);
        Discards {
            limits,
            runs: Runs::default(),
            in_flight: alloc::vec::Vec::new(),
            withheld: alloc::vec::Vec::new(),
            counters: DiscardCounters::default(),
            delay: Delay::new(limits.delay),
            since: Nanos::NEVER,
            cursor: None,
            free_at: Nanos::ZERO,
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &DiscardLimits {
        &self.limits
    }

    /// Changes the limits. Unless the new mode is delayed, what waits goes at once; where nothing
    /// is new, it waits on.
    pub fn set_limits(&mut self, limits: DiscardLimits) {
        check(&limits);
        let is_new = self.limits != limits;
        self.limits = limits;
        self.delay.set(limits.delay);
        if is_new && limits.mode != DiscardMode::Delayed {
            self.hasten_all(DiscardCause::Change);
        }
        self.keep_bounds();
    }

    /// How much of the device below is free, in thousandths: an adaptive delay is short where it is
    /// little. The caller says so when it knows; until then all is free.
    pub fn set_free(&mut self, permille: u16) {
        self.delay.set_free(permille);
    }

    /// `range` was freed at `now`; false when it is not kept: the mode is off, or the table is full
    /// and the device below too slow to empty it. Panics when it is empty.
    pub fn reclaim(&mut self, range: Range<u64>, now: Nanos) -> bool {
        assert!(range.start < range.end, "a discard of nothing: {range:?}");
        let bytes = range.end - range.start;
        self.counters.received.add(1, bytes);
        if self.limits.mode == DiscardMode::Off || self.is_full() {
            self.counters.dropped.add(1, bytes);
            return false;
        }
        let waits = self.cursor.is_none_or(|cursor| range.start < cursor);
        if waits && self.since == Nanos::NEVER {
            self.since = now;
        }
        let merged = self.runs.insert(range);
        self.counters.merged.add(merged.ranges, merged.bytes);
        self.keep_bounds();
        true
    }

    /// The caller sends `range` itself, at once: it counts as received and sent.
    pub fn pass(&mut self, range: &Range<u64>) {
        let bytes = range.end - range.start;
        self.counters.received.add(1, bytes);
        self.count_sent(bytes, DiscardCause::AtOnce);
    }

    /// What the caller has sent itself, and told by [`Discards::pass`], is in flight from now on as
    /// if `due` had handed it out.
    pub fn adopt(&mut self, range: Range<u64>) {
        self.in_flight.push(range);
    }

    fn count_sent(&mut self, bytes: u64, cause: DiscardCause) {
        self.counters.sent.add(1, bytes);
        self.counters.sent_by[cause as usize] += 1;
    }

    /// Whether the table takes no more until `due` has taken something out.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.runs.len() >= self.limits.ranges_max as usize
            || self.runs.bytes() > self.limits.bytes_max
    }

    /// `range` is about to be written: no later discard will cover it. To be called before the
    /// write is issued, which then waits while [`Discards::is_in_flight`].
    pub fn written(&mut self, range: Range<u64>) {
        let cut = self.runs.remove(range);
        self.counters.cancelled.add(cut.gone, cut.bytes);
        self.counters.split += cut.split;
        self.delay.on_cancelled(cut.bytes);
        self.keep_bounds();
        self.rest();
    }

    /// `range` is about to be written by a write that may fail: nothing of it is handed out until
    /// [`Discards::end_withheld`] of the same range. What waits beside it waits on. Two such writes
    /// must not overlap; each piece cut out counts as a range of its own. Nothing is dropped for
    /// the sake of the bounds, here and there: who relies on that begins no such write while
    /// [`Discards::is_full`].
    pub fn withhold(&mut self, range: Range<u64>) {
        let mut pieces: alloc::vec::Vec<_> = self.runs.within(range.clone()).collect();
        let cut = self.runs.remove(range);
        self.counters.split += pieces.len() as u64 + cut.split - cut.gone;
        self.withheld.append(&mut pieces);
        self.hasten_largest();
        self.rest();
    }

    /// The write of a range that was withheld has ended: what was withheld is cancelled where it
    /// was written, and else waits again.
    pub fn end_withheld(&mut self, range: &Range<u64>, is_written: bool, now: Nanos) {
        let is_mine = |piece: &mut Range<u64>| range.start <= piece.start && piece.end <= range.end;
        let mine: alloc::vec::Vec<_> = self.withheld.extract_if(.., is_mine).collect();
        for piece in mine {
            let bytes = piece.end - piece.start;
            if is_written {
                self.counters.cancelled.add(1, bytes);
                self.delay.on_cancelled(bytes);
                continue;
            }
            self.since = self.since.min(now);
            let merged = self.runs.insert(piece);
            self.counters.merged.add(merged.ranges, merged.bytes);
        }
        self.hasten_largest();
    }

    /// What is withheld, in no order.
    #[must_use]
    pub fn withheld(&self) -> &[Range<u64>] {
        &self.withheld
    }

    /// Takes the next range to discard at `now`, or `None` when there is none yet. Call until
    /// `None`, after each `reclaim` and at [`Discards::next_deadline`]. The range counts as in
    /// flight until [`Discards::finished`] or [`Discards::give_back`]. Where there is a bandwidth,
    /// it is the first piece of a longer range, unless that must go at once.
    pub fn due(&mut self, now: Nanos) -> Option<Range<u64>> {
        self.take_due(now, None)
    }

    /// As [`Discards::due`], at most the first `most` bytes of the next range; the rest waits on,
    /// to be taken next, and counts as split off. The caller knows better where ranges may be cut:
    /// it keeps to [`Discards::piece_bytes_max`] itself. Panics where `most` is 0.
    pub fn due_part(&mut self, now: Nanos, most: u64) -> Option<Range<u64>> {
        assert!(most > 0, "a part of nothing");
        self.take_due(now, Some(most))
    }

    /// Bytes to send in one piece at most for the sake of the bandwidth: those of a quarter of a
    /// second, so that a device is soon free for others; [`u64::MAX`] where there is no limit.
    #[must_use]
    pub fn piece_bytes_max(&self) -> u64 {
        const LEAST: u64 = DiscardLimits::PIECE_BYTES_MIN;
        match self.limits.bytes_per_second_max {
            0 => u64::MAX,
            rate => (rate / 4 / LEAST).max(1) * LEAST,
        }
    }

    /// Where the piece ends that begins at `first`: at a multiple of the least piece.
    fn piece_end(&self, first: u64) -> u64 {
        match self.piece_bytes_max() {
            u64::MAX => u64::MAX,
            bytes => {
                let end = first.saturating_add(bytes);
                end - end % DiscardLimits::PIECE_BYTES_MIN
            }
        }
    }

    /// The next range, of which at most the first `most` bytes, or by default a piece.
    fn take_due(&mut self, now: Nanos, most: Option<u64>) -> Option<Range<u64>> {
        if self.in_flight.len() >= usize::from(self.limits.in_flight_max) {
            return None;
        }
        let (range, cause) = match self.runs.take_urgent() {
            Some((whole, cause)) => {
                let end = most.map_or(u64::MAX, |most| whole.start.saturating_add(most));
                (self.cut_off(whole, end, Some(cause)), cause)
            }
            None => {
                let whole = self.take_in_round(now)?;
                let piece_end = self.piece_end(whole.start);
                let end = most.map_or(piece_end, |most| whole.start.saturating_add(most));
                (self.cut_off(whole, end, None), self.cause_of_round())
            }
        };
        let bytes = range.end - range.start;
        self.count_sent(bytes, cause);
        self.delay.on_sent(bytes);
        self.pace(bytes, now);
        self.in_flight.push(range.clone());
        self.rest();
        Some(range)
    }

    /// A range that was taken, up to `end`; the rest goes back.
    fn cut_off(&mut self, whole: Range<u64>, end: u64, urgent: Option<DiscardCause>) -> Range<u64> {
        if whole.end <= end {
            return whole;
        }
        let part = whole.start..end;
        assert!(part.start < part.end, "a part of nothing: {whole:?} up to {end}");
        if urgent.is_none() {
            self.cursor = Some(part.end);
        }
        self.runs.put(part.end..whole.end, urgent);
        self.counters.split += 1;
        part
    }

    fn cause_of_round(&self) -> DiscardCause {
        match self.limits.mode {
            DiscardMode::Immediate => DiscardCause::AtOnce,
            DiscardMode::Delayed => DiscardCause::Delay,
            DiscardMode::Off => DiscardCause::Change,
        }
    }

    /// When `due` may have something next; [`Nanos::NEVER`] while nothing waits, or while only the
    /// end of what is in flight can help.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        if self.runs.is_empty() || self.in_flight.len() >= usize::from(self.limits.in_flight_max) {
            return Nanos::NEVER;
        }
        if self.runs.has_urgent() {
            return Nanos::ZERO;
        }
        let round = match self.cursor {
            _ if self.limits.mode != DiscardMode::Delayed => Nanos::ZERO,
            Some(cursor) if self.runs.has_from(cursor) => Nanos::ZERO,
            _ => self.since.saturating_add(self.delay.now()),
        };
        round.max(self.free_at)
    }

    /// The device has done what `due` handed out.
    pub fn finished(&mut self, range: &Range<u64>) {
        let at = self.in_flight.iter().position(|other| other == range);
        self.in_flight.swap_remove(at.expect("only what is in flight ends"));
    }

    /// The device did not do what `due` handed out: it waits again, as if it had not been sent.
    /// Nothing of it may have been written meanwhile.
    pub fn give_back(&mut self, range: Range<u64>, now: Nanos) {
        self.finished(&range);
        let bytes = range.end - range.start;
        self.counters.sent.ranges -= 1;
        self.counters.sent.bytes -= bytes;
        self.since = self.since.min(now);
        let merged = self.runs.insert(range);
        self.counters.merged.add(merged.ranges, merged.bytes);
        self.keep_bounds();
    }

    /// Whether a write of `range` has to wait for the end of a discard.
    #[must_use]
    pub fn is_in_flight(&self, range: &Range<u64>) -> bool {
        self.in_flight.iter().any(|other| other.start < range.end && range.start < other.end)
    }

    /// The runs that wait within `range`, in ascending order, cut to it.
    pub fn pending_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.within(range)
    }

    /// What is in flight, in no order.
    #[must_use]
    pub fn in_flight(&self) -> &[Range<u64>] {
        &self.in_flight
    }

    /// The runs that touch `range` go at once, whole.
    pub fn hasten(&mut self, range: Range<u64>, cause: DiscardCause) {
        self.runs.mark_urgent(range, cause);
    }

    /// All that waits goes at once, in ascending order.
    pub fn hasten_all(&mut self, cause: DiscardCause) {
        self.runs.mark_urgent(0..u64::MAX, cause);
    }

    /// Forgets what waits within `range`, as a crash does or a device that shrinks: it is dropped.
    pub fn forget(&mut self, range: Range<u64>) {
        let cut = self.runs.remove(range);
        self.counters.dropped.add(cut.gone, cut.bytes);
        self.counters.split += cut.split;
        self.rest();
    }

    /// What waits now, what is withheld included.
    #[must_use]
    pub fn pending(&self) -> DiscardCount {
        let mut all = DiscardCount { ranges: self.runs.len() as u64, bytes: self.runs.bytes() };
        self.withheld.iter().for_each(|piece| all.add(1, piece.end - piece.start));
        all
    }

    /// What became of the ranges so far.
    #[must_use]
    pub fn counters(&self) -> &DiscardCounters {
        &self.counters
    }

    /// The delay in force.
    #[must_use]
    pub fn delay(&self) -> Nanos {
        self.delay.now()
    }

    /// The next run of the round under way, or of one that begins now.
    fn take_in_round(&mut self, now: Nanos) -> Option<Range<u64>> {
        if self.runs.is_empty() || now < self.next_deadline() {
            return None;
        }
        if let Some(cursor) = self.cursor
            && let Some(range) = self.runs.take_from(cursor)
        {
            self.cursor = Some(range.end);
            return Some(range);
        }
        // What is left came behind the last round's back: the next one takes it, if it is time.
        if self.cursor.take().is_some() {
            self.delay.on_round();
            if now < self.next_deadline() {
                return None;
            }
        }
        let range = self.runs.take_from(0)?;
        self.since = Nanos::NEVER;
        self.cursor = Some(range.end);
        Some(range)
    }

    /// Sending goes on when the bytes just sent are paid for.
    fn pace(&mut self, bytes: u64, now: Nanos) {
        let rate = self.limits.bytes_per_second_max;
        if rate > 0 {
            // Rounded up, since the rate is a bound.
            let span = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate));
            let span = Nanos(u64::try_from(span).unwrap_or(u64::MAX));
            self.free_at = self.free_at.max(now).saturating_add(span);
        }
    }

    /// Ends the round when nothing waits any more.
    fn rest(&mut self) {
        if self.runs.is_empty() {
            if self.cursor.take().is_some() {
                self.delay.on_round();
            }
            self.since = Nanos::NEVER;
        }
    }

    /// Marks the largest runs to go at once while the table is too full, an eighth of it in one go
    /// so that they leave in order. Writes that split runs may exceed the bound: once it is
    /// doubled, the largest are dropped.
    fn keep_bounds(&mut self) {
        self.hasten_largest();
        while self.runs.len() > 2 * self.limits.ranges_max as usize {
            let range = self.runs.take_largest().expect("the table is not empty");
            self.counters.dropped.add(1, range.end - range.start);
        }
    }

    fn hasten_largest(&mut self) {
        let (ranges, bytes) = (self.limits.ranges_max as usize, self.limits.bytes_max);
        if self.is_full() {
            self.runs.mark_largest(ranges - ranges.div_ceil(8), bytes - bytes / 8);
        }
    }
}

fn check(limits: &DiscardLimits) {
    use DiscardLimits as L;
    assert!((L::RANGES_MIN..=L::RANGES_MAX).contains(&limits.ranges_max), "{limits:?}");
    assert!((L::BYTES_MIN..=L::BYTES_MAX).contains(&limits.bytes_max), "{limits:?}");
    assert!(limits.bytes_per_second_max <= L::BYTES_PER_SECOND_MAX, "{limits:?}");
    assert!((L::IN_FLIGHT_MIN..=L::IN_FLIGHT_MAX).contains(&limits.in_flight_max), "{limits:?}");
    limits.delay.check();
}
