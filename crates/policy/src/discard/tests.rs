//! The table beside a plain array of versions, and examples worked by hand.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Rng;

const SECOND: Nanos = Nanos::from_secs(1);

fn table(change: impl FnOnce(&mut DiscardLimits)) -> Discards {
    let mut limits = DiscardLimits::DEFAULT;
    change(&mut limits);
    Discards::new(limits)
}

fn drain(table: &mut Discards, now: Nanos) -> Vec<Range<u64>> {
    let mut sent = Vec::new();
    while let Some(range) = table.due(now) {
        table.finished(&range);
        sent.push(range);
    }
    sent
}

#[track_caller]
fn assert_balanced(table: &Discards) {
    let (all, pending) = (table.counters(), table.pending());
    let ends = [all.sent, all.merged, all.cancelled, all.dropped, pending];
    let ranges: u64 = ends.iter().map(|count| count.ranges).sum();
    let bytes: u64 = ends.iter().map(|count| count.bytes).sum();
    assert_eq!(ranges, all.received.ranges + all.split, "{all:?} {pending:?}");
    assert_eq!(bytes, all.received.bytes, "{all:?} {pending:?}");
    assert!(all.sent_by.iter().sum::<u64>() >= all.sent.ranges, "{all:?}");
}

/// Goal: the paper's example is one discard. Method: 100-150, 50-99, 151-200, in every order.
#[test]
fn neighbours_become_one() {
    let ranges = [100..151, 50..100, 151..201];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut table = table(|_| {});
        for (step, index) in order.iter().enumerate() {
            table.reclaim(ranges[*index].clone(), Nanos(step as u64));
        }
        assert_eq!(table.due(Nanos::from_secs(5) - Nanos(1)), None);
        assert_eq!(table.next_deadline(), Nanos::from_secs(5));
        assert_eq!(drain(&mut table, Nanos::from_secs(5)), vec![50..201]);
        assert_eq!(table.counters().merged.ranges, 2);
        assert_eq!(table.next_deadline(), Nanos::NEVER);
        assert_balanced(&table);
    }
}

/// Goal: a write cancels its part and no more. Method: head, tail, middle, and all of a range.
#[test]
fn writes_cancel_what_they_cover() {
    let mut table = table(|_| {});
    table.reclaim(0..100, Nanos::ZERO);
    table.written(0..10);
    table.written(90..120);
    table.written(40..50);
    assert_eq!(table.pending(), DiscardCount { ranges: 2, bytes: 70 });
    assert_eq!(table.counters().split, 1);
    assert_eq!(table.counters().cancelled, DiscardCount { ranges: 0, bytes: 30 });
    table.written(50..90);
    assert_eq!(table.counters().cancelled, DiscardCount { ranges: 1, bytes: 70 });
    assert_eq!(drain(&mut table, Nanos::NEVER), vec![10..40]);
    assert_balanced(&table);
}

/// Goal: modes off and immediate. Method: the same two ranges each; no merge, no delay.
#[test]
fn modes_say_whether_and_when() {
    let mut off = table(|limits| limits.mode = DiscardMode::Off);
    let mut immediate = table(|limits| limits.mode = DiscardMode::Immediate);
    for range in [8..16, 0..8] {
        off.reclaim(range.clone(), Nanos(1));
        assert_eq!(off.due(Nanos::NEVER), None);
        immediate.reclaim(range.clone(), Nanos(1));
        assert_eq!(drain(&mut immediate, Nanos(1)), vec![range]);
    }
    assert_eq!(off.counters().dropped, DiscardCount { ranges: 2, bytes: 16 });
    assert_eq!(immediate.counters().sent.ranges, 2);
    assert_balanced(&off);
    assert_balanced(&immediate);
}

/// Goal: a change of mode sends what waits. Method: one range, mode off, no time passes.
#[test]
fn a_change_of_mode_sends_what_waits() {
    let mut table = table(|_| {});
    table.reclaim(0..8, SECOND);
    table.set_limits(DiscardLimits { mode: DiscardMode::Off, ..*table.limits() });
    assert_eq!(table.next_deadline(), Nanos::ZERO);
    assert_eq!(drain(&mut table, SECOND), vec![0..8]);
    assert_eq!(table.counters().sent_by[DiscardCause::Change as usize], 1);
    assert_balanced(&table);
}

/// Goal: each range that is sent is counted under what had it sent first. Method: one of each.
#[test]
fn what_sends_is_counted() {
    let mut table = table(|limits| limits.ranges_max = 8);
    table.pass(&(0..8));
    for (index, cause) in (1..).zip([DiscardCause::Write, DiscardCause::Checkpoint]) {
        table.reclaim(index * 100..index * 100 + 8, SECOND);
        table.hasten(index * 100..index * 100 + 1, cause);
    }
    table.hasten_all(DiscardCause::Change);
    assert_eq!(drain(&mut table, SECOND).len(), 2);
    (10..18).for_each(|index| _ = table.reclaim(index * 100..index * 100 + 8, SECOND));
    drain(&mut table, SECOND);
    drain(&mut table, Nanos::from_secs(6));
    assert_eq!(table.counters().sent_by, [1, 7, 1, 1, 1, 0]);
    assert_balanced(&table);
}

/// Goal: a full table sends its largest, in order, and keeps the rest. Method: eight places.
#[test]
fn a_full_table_sends_the_largest() {
    let mut table = table(|limits| limits.ranges_max = 8);
    for index in 0..8 {
        let length = [5, 5, 60, 5, 5, 50, 5, 5][index as usize];
        table.reclaim(index * 100..index * 100 + length, SECOND);
    }
    assert_eq!(table.due(SECOND), Some(200..260));
    table.reclaim(1000..1001, SECOND);
    assert_eq!(table.due(SECOND), Some(500..550));
    assert_eq!(table.due(SECOND), None);
    assert_eq!(table.pending().ranges, 7);
    assert_balanced(&table);
}

/// Goal: a table that nobody empties takes no more and says so. Method: two places, three ranges.
#[test]
fn a_table_that_nobody_empties_is_full() {
    let mut table = table(|limits| limits.ranges_max = 2);
    let kept = [0..1, 10..11, 20..21].map(|range| table.reclaim(range, SECOND));
    assert_eq!(kept, [true, true, false]);
    assert!(table.is_full());
    assert_eq!(table.counters().dropped, DiscardCount { ranges: 1, bytes: 1 });
    drain(&mut table, SECOND);
    assert!(table.reclaim(20..21, SECOND));
    assert_balanced(&table);
}

/// Goal: a round goes in ascending order. Method: many ranges in random order.
#[test]
fn a_round_ascends() {
    let (mut table, mut rng) = (table(|_| {}), Rng::new(7));
    for _ in 0..500 {
        let first = rng.below(1 << 20);
        table.reclaim(first..first + 1 + rng.below(99), SECOND);
    }
    let sent = drain(&mut table, Nanos::from_secs(6));
    assert!(sent.len() > 100 && sent.is_sorted_by(|one, next| one.end < next.start));
    assert_balanced(&table);
}

/// Goal: bytes are bounded, too. Method: a megabyte's table, a range of two.
#[test]
fn bytes_are_bounded() {
    let mut table = table(|limits| limits.bytes_max = DiscardLimits::BYTES_MIN);
    table.reclaim(0..100, SECOND);
    table.reclaim(1 << 20..3 << 20, SECOND);
    assert_eq!(drain(&mut table, SECOND), vec![1 << 20..3 << 20]);
    assert_eq!(table.pending().bytes, 100);
}

/// Goal: sending keeps to the bandwidth, delayed or not. Method: 8 MiB at 1 MiB/s in pieces take
/// 7 s behind the delay; limits that are told once more hasten nothing, others do.
#[test]
fn sending_is_shaped() {
    for (mode, delay) in [(DiscardMode::Delayed, 5), (DiscardMode::Immediate, 0)] {
        let mut table =
            table(|limits| (limits.mode, limits.bytes_per_second_max) = (mode, 1 << 20));
        for index in 0..8 {
            table.reclaim(index * (2 << 20)..index * (2 << 20) + (1 << 20), Nanos::ZERO);
        }
        let (mut now, mut sent) = (Nanos::ZERO, 0);
        while table.next_deadline() != Nanos::NEVER {
            now = table.next_deadline();
            sent += drain(&mut table, now).len();
            table.set_limits(*table.limits());
        }
        assert_eq!((sent, now), (8, Nanos::from_secs(delay + 7)), "{mode:?}");
    }
    let mut table = table(|limits| limits.bytes_per_second_max = 1 << 20);
    (0..8).for_each(|index| assert!(table.reclaim(index * 2..index * 2 + 1, Nanos::ZERO)));
    table.set_limits(DiscardLimits { mode: DiscardMode::Immediate, ..*table.limits() });
    table.set_limits(DiscardLimits { bytes_per_second_max: 2 << 20, ..*table.limits() });
    assert_eq!(drain(&mut table, Nanos::ZERO).len(), 8, "what waited goes at once");
}

/// Goal: one run that outlasts the bandwidth leaves in pieces: no window of a second has more than
/// the rate and a piece, pieces end at whole units, and a write cancels what has not left yet.
/// Method: 32 neighbours of 128 MiB and a crooked head at three rates, delayed or not; the piece
/// that ends a window counts with it; a write into the rest when a quarter has left.
#[test]
fn a_long_run_is_paced() {
    const MIB: u64 = 1 << 20;
    for mode in [DiscardMode::Delayed, DiscardMode::Immediate] {
        for (rate, piece) in [(MIB, MIB), (7 * MIB, MIB), (256 * MIB, 64 * MIB)] {
            let mut table =
                table(|limits| (limits.mode, limits.bytes_per_second_max) = (mode, rate));
            let head = MIB - 4096;
            assert!(table.reclaim(head..MIB, Nanos::ZERO));
            for index in 0..32 {
                let first = MIB + index * 128 * MIB;
                assert!(table.reclaim(first..first + 128 * MIB, Nanos::ZERO));
            }
            let (mut sent, mut cancelled) = (Vec::new(), false);
            while table.next_deadline() != Nanos::NEVER {
                let now = table.next_deadline();
                drain(&mut table, now).into_iter().for_each(|range| sent.push((now, range)));
                if !cancelled && sent.last().is_some_and(|(_, range)| range.end > 1024 * MIB) {
                    table.written(2048 * MIB..3072 * MIB);
                    cancelled = true;
                }
            }
            assert_eq!(sent[0].1.start, head);
            assert!(sent.is_sorted_by(|one, next| one.0 < next.0 && one.1.end <= next.1.start));
            for (_, range) in &sent {
                assert!(range.end - range.start <= piece && range.end % MIB == 0, "{range:?}");
            }
            let bytes = |sent: &[(Nanos, Range<u64>)]| {
                sent.iter().map(|(_, range)| range.end - range.start).sum::<u64>()
            };
            for (index, (from, _)) in sent.iter().enumerate() {
                let window = sent[index..].partition_point(|(at, _)| at.0 - from.0 < SECOND.0);
                let window = bytes(&sent[index..index + window]);
                assert!(window <= rate + piece, "{mode:?} {rate} {from:?}: {window}");
            }
            assert_eq!(bytes(&sent), 3072 * MIB + 4096, "all but what was written");
            assert_eq!(table.counters().cancelled.bytes, 1024 * MIB);
            assert_balanced(&table);
        }
    }
}

/// Goal: what must go at once leaves whole whatever the bandwidth, and so does all without one.
/// Method: 64 MiB at 1 MiB/s that a write hastens; the same without a bandwidth, after its delay.
#[test]
fn only_what_may_wait_is_paced() {
    let mut paced = table(|limits| limits.bytes_per_second_max = 1 << 20);
    assert!(paced.reclaim(0..64 << 20, Nanos::ZERO));
    paced.hasten(0..1, DiscardCause::Write);
    assert_eq!(drain(&mut paced, Nanos::ZERO), vec![0..64 << 20]);
    assert_eq!(paced.piece_bytes_max(), 1 << 20);
    let mut free = table(|_| {});
    assert!(free.reclaim(0..64 << 20, Nanos::ZERO));
    assert_eq!(drain(&mut free, Nanos::from_secs(5)), vec![0..64 << 20]);
    assert_eq!(free.piece_bytes_max(), u64::MAX);
}

/// Goal: a range that is taken in parts leaves whole, in order, under one cause, and the rest can
/// be cancelled meanwhile. Method: by hand, in a round and out of turn, a write into the rest.
#[test]
fn a_range_may_leave_in_parts() {
    for urgent in [false, true] {
        let mut table = table(|_| {});
        table.reclaim(0..100, SECOND);
        table.reclaim(200..210, SECOND);
        if urgent {
            table.hasten(0..1, DiscardCause::Full);
        }
        let now = Nanos::from_secs(6);
        let mut sent = vec![table.due_part(now, 40).expect("it is time")];
        table.written(60..80);
        assert!(table.is_in_flight(&(39..40)) && !table.is_in_flight(&(40..41)));
        while let Some(range) = table.due_part(now, 40) {
            sent.push(range);
            sent.iter().for_each(|range| assert!(range.end - range.start <= 40));
        }
        assert_eq!(sent, vec![0..40, 40..60, 80..100, 200..210]);
        let cause = if urgent { DiscardCause::Full } else { DiscardCause::Delay };
        assert!(table.counters().sent_by[cause as usize] >= 3);
        assert_eq!(table.counters().split, 2);
        assert_balanced(&table);
    }
}

/// Goal: the adaptive delay is short under pressure and long where much is reused.
/// Method: rounds that are all reuse, rounds that are none, and a device that runs full.
#[test]
fn the_delay_adapts() {
    let mut table = table(|limits| limits.delay = DiscardDelay::ADAPTIVE);
    let first = table.delay();
    let mut now = Nanos::ZERO;
    for round in 0..40 {
        table.reclaim(0..100, now);
        if round < 20 {
            table.written(0..99);
        }
        now = now.max(table.next_deadline());
        drain(&mut table, now);
        if round == 19 {
            assert!(table.delay() > first && table.delay() > Nanos::from_secs(25));
            table.set_free(DelayLimits::FREE_LOW);
            assert_eq!(table.delay(), SECOND);
            table.set_free(1000);
        }
    }
    assert!(table.delay() < Nanos::from_millis(1_500), "{}", table.delay());
}

/// Goal: what the device refused waits again and balances. Method: one range, given back.
#[test]
fn what_is_given_back_waits_again() {
    let mut table = table(|_| {});
    table.reclaim(0..8, Nanos::ZERO);
    let range = table.due(Nanos::from_secs(5)).expect("its time has come");
    assert!(table.is_in_flight(&(7..9)) && !table.is_in_flight(&(8..9)));
    table.give_back(range, Nanos::from_secs(6));
    assert_balanced(&table);
    assert_eq!(drain(&mut table, Nanos::from_secs(10)), vec![]);
    assert_eq!(drain(&mut table, Nanos::from_secs(11)), vec![0..8]);
    assert_balanced(&table);
}

/// Goal: nothing is handed out of what a write withholds, its neighbours wait on, and the write's
/// end decides: cancelled, or waiting again. Method: the middle, the edge and all of ranges, both
/// ends.
#[test]
fn a_write_that_may_fail_withholds() {
    for is_written in [true, false] {
        let mut table = table(|_| {});
        [0..30, 40..50, 60..80].into_iter().for_each(|range| _ = table.reclaim(range, SECOND));
        let writes = [10..20, 38..50, 70..90];
        writes.iter().for_each(|range| table.withhold(range.clone()));
        assert_balanced(&table);
        assert_eq!(table.pending(), DiscardCount { ranges: 6, bytes: 60 });
        assert_eq!(table.counters().split, 3, "two in the middle, one at an edge");
        table.withhold(100..110);
        table.end_withheld(&(100..110), is_written, SECOND);
        writes.iter().for_each(|range| table.end_withheld(range, is_written, SECOND));
        assert!(table.withheld().is_empty());
        assert_balanced(&table);
        let sent = drain(&mut table, Nanos::from_secs(6));
        let (cancelled, left) = match is_written {
            true => (DiscardCount { ranges: 3, bytes: 30 }, vec![0..10, 20..30, 60..70]),
            false => (DiscardCount::default(), vec![0..30, 40..50, 60..80]),
        };
        assert_eq!((table.counters().cancelled, sent), (cancelled, left));
    }
}

/// Goal: while everything is withheld no deadline is due, and what comes back is due after a delay
/// of its own. Method: one range, a write of all of it that fails.
#[test]
fn what_comes_back_waits_anew() {
    let mut table = table(|_| {});
    table.reclaim(0..8, Nanos::ZERO);
    table.withhold(0..8);
    assert_eq!(table.next_deadline(), Nanos::NEVER);
    assert_eq!(table.due(Nanos::NEVER), None);
    table.end_withheld(&(0..8), false, SECOND);
    assert_eq!(table.next_deadline(), Nanos::from_secs(6));
    assert_eq!(drain(&mut table, Nanos::from_secs(6)), vec![0..8]);
}

/// One unit of the modelled device: what its owner wrote last, and what the device holds.
#[derive(Clone, Copy, Default, PartialEq)]
struct Unit {
    /// The version that a read must return; 0 for a freed unit, of which nothing is promised.
    wanted: u32,
    held: u32,
}

/// A device that does what is in flight at any time until its end, and the table above it.
struct World {
    table: Discards,
    units: Vec<Unit>,
    flying: Vec<Range<u64>>,
    /// Writes under way that may fail.
    writing: Vec<Range<u64>>,
    now: Nanos,
    version: u32,
}

impl World {
    fn range(&self, rng: &mut Rng) -> Range<u64> {
        let first = rng.below(self.units.len() as u64);
        first..(first + 1 + rng.below(12)).min(self.units.len() as u64)
    }

    fn units(&mut self, range: &Range<u64>) -> &mut [Unit] {
        &mut self.units[range.start as usize..range.end as usize]
    }

    fn write(&mut self, range: &Range<u64>) {
        self.table.written(range.clone());
        while self.table.is_in_flight(range) {
            self.end_one(0);
        }
        self.version += 1;
        let version = self.version;
        self.units(range).fill(Unit { wanted: version, held: version });
    }

    /// Begins a write that may fail, unless another one or a discard is in the way.
    fn begin(&mut self, range: Range<u64>) {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let is_free = !self.writing.iter().any(overlaps) && !self.table.is_in_flight(&range);
        if is_free && !self.table.is_full() {
            self.table.withhold(range.clone());
            self.writing.push(range);
        }
    }

    /// A failed write leaves what was there, of which nothing is promised where it was freed.
    fn end_write(&mut self, index: usize, is_written: bool) {
        let range = self.writing.swap_remove(index);
        self.table.end_withheld(&range, is_written, self.now);
        if is_written {
            self.version += 1;
            let version = self.version;
            self.units(&range).fill(Unit { wanted: version, held: version });
        }
    }

    /// Ends the writes that overlap a range, since nobody frees or writes below them.
    fn end_writes(&mut self, range: &Range<u64>, rng: &mut Rng) {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        while let Some(index) = self.writing.iter().position(overlaps) {
            self.end_write(index, rng.chance(1, 2));
        }
    }

    fn end_one(&mut self, index: usize) {
        let range = self.flying.swap_remove(index);
        // The latest moment at which the device may forget what was there.
        self.units(&range).iter_mut().for_each(|unit| unit.held = 0);
        self.table.finished(&range);
    }

    fn timer(&mut self) {
        // Parts of all lengths up to more than any range.
        while let Some(range) = self.table.due_part(self.now, 1 + u64::from(self.version % 16)) {
            let live = self.units(&range).iter().any(|unit| unit.wanted != 0);
            assert!(!live, "{range:?} was written after it was freed");
            let overlaps = |w: &Range<u64>| w.start < range.end && range.start < w.end;
            assert!(!self.writing.iter().any(overlaps), "{range:?} is being written");
            self.flying.push(range);
        }
    }

    fn crash(&mut self) {
        while !self.flying.is_empty() {
            self.end_one(0);
        }
        while !self.writing.is_empty() {
            self.end_write(0, false);
        }
        self.table.forget(0..u64::MAX);
    }

    fn step(&mut self, rng: &mut Rng) {
        let range = self.range(rng);
        match rng.below(100) {
            0..40 => {
                self.end_writes(&range, rng);
                self.units(&range).iter_mut().for_each(|unit| unit.wanted = 0);
                self.table.reclaim(range, self.now);
            }
            40..60 => {
                self.end_writes(&range, rng);
                self.write(&range);
            }
            60..68 => self.begin(range),
            68..75 => self.end_writes(&range, rng),
            75..85 => self.timer(),
            85..93 if !self.flying.is_empty() => {
                self.end_one(rng.below(self.flying.len() as u64) as usize);
            }
            93..96 => self.table.hasten(range, DiscardCause::Write),
            96 => self.crash(),
            97 if !self.flying.is_empty() => {
                let back = self.flying.pop().expect("just seen");
                self.table.give_back(back, self.now);
            }
            _ => self.now = self.now + Nanos(rng.below(3_000_000_000)),
        }
    }

    fn check(&self) {
        assert_balanced(&self.table);
        let stale = self.units.iter().position(|u| u.wanted != 0 && u.held != u.wanted);
        assert_eq!(stale, None, "a read after a write returns that write");
        let limits = self.table.limits();
        let waiting = self.table.pending().ranges - self.table.withheld().len() as u64;
        // What came back may exceed the bound, by as much as can be under way.
        let back = self.units.len() as u64;
        assert!(waiting <= 2 * u64::from(limits.ranges_max) + back);
        for run in self.table.pending_in(0..u64::MAX) {
            assert!(self.units[run.start as usize..run.end as usize].iter().all(|u| u.wanted == 0));
        }
    }
}

/// Goal: any interleaving of write, discard, timer, end, refusal and crash is sound, balances and
/// stays within bounds. Method: random histories beside an array of versions, tables of many sizes.
#[test]
fn any_interleaving_is_sound() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let table = table(|limits| {
            limits.ranges_max = [2, 5, 4096][rng.below(3) as usize];
            limits.in_flight_max = 1 + rng.below(4) as u16;
            limits.bytes_per_second_max = [0, 1 << 20][rng.below(2) as usize];
            limits.mode = [DiscardMode::Immediate, DiscardMode::Delayed][rng.below(2) as usize];
        });
        let units = vec![Unit::default(); 16 + rng.below(200) as usize];
        let (flying, writing, now, version) = (Vec::new(), Vec::new(), Nanos::ZERO, 0);
        let mut world = World { table, units, flying, writing, now, version };
        for _ in 0..600 {
            world.step(&mut rng);
            world.check();
        }
    }
}

/// Goal: the runs are exactly the units freed and not written since. Method: an array of flags.
#[test]
fn the_runs_match_an_array() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut table, mut flags) = (table(|_| {}), [false; 128]);
        for _ in 0..300 {
            let first = rng.below(127);
            let range = first..first + 1 + rng.below(128 - first);
            let freed = rng.chance(1, 2);
            flags[range.start as usize..range.end as usize].fill(freed);
            if freed {
                assert!(table.reclaim(range, Nanos::ZERO));
            } else {
                table.written(range);
            }
            let mut found = [false; 128];
            for run in table.pending_in(0..128) {
                found[run.start as usize..run.end as usize].fill(true);
            }
            assert_eq!(found, flags, "seed {seed}");
            let runs = flags.split(|freed| !freed).filter(|run| !run.is_empty()).count() as u64;
            assert_eq!(table.pending().ranges, runs, "neighbours are one run, seed {seed}");
        }
    }
}
