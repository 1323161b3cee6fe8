//! Free segments on their way to the device; that none is discarded too early is for the histories
//! of `tests_both` and for the proof, which plants that fault.
//!
//! How: a log over a simulated disk, whose discards are counted. Cost: milliseconds.

use super::log::SegmentState;
use super::tests_both::for_each_seed;
use super::tests_clean::Churn;
use super::tests_log::{Nothing, config, fresh};
use super::{LogConfig, LogStore, SegmentPlan, SeqSource, StoreError, Stream};
use crate::io::{Io, OperationKind, SimIo};
use layby_cache::discards::{DiscardDelay, DiscardLimits, DiscardMode};
use layby_types::{BlockSize, Nanos, Rng, Seq, Slot};
use rustix::io::Errno;

/// 32 segments of eight blocks.
const LENGTH: u64 = 265 * BlockSize::MIN.bytes() as u64;

fn plan(mode: DiscardMode, delay: Nanos) -> SegmentPlan {
    let delay = DiscardDelay::Fixed(delay);
    let discard = DiscardLimits { mode, delay, ..DiscardLimits::DEFAULT };
    SegmentPlan { discard, ..SegmentPlan::default() }
}

fn churn(seed: u64, mode: DiscardMode, delay: Nanos) -> Churn {
    Churn::with(seed, LENGTH, BlockSize::MIN, plan(mode, delay))
}

/// Goal: what a start finds free is told, and what a checkpoint frees; what is written is not told
/// of, and what is told of can be written again. Method: an empty log, some slots, none of them.
#[test]
fn the_device_hears_of_what_is_free() {
    for mode in [DiscardMode::Immediate, DiscardMode::Delayed] {
        let mut churn = churn(1, mode, Nanos::from_millis(50));
        let (segment, all) = (churn.log.segment_bytes(), churn.log.segment_count());
        churn.rest();
        let started = churn.log.discard_stats();
        assert_eq!(started.counters.sent.bytes, u64::from(all) * segment);
        assert!(started.counters.sent.ranges < 8, "neighbours go together: {started:?}");
        (0..40).for_each(|slot| churn.write(Slot(slot), Stream::Write).expect("there is room"));
        churn.rest();
        assert_eq!(churn.log.discard_stats(), started, "nothing has become free");
        (0..40).for_each(|slot| churn.log.free(Slot(slot)));
        churn.log.checkpoint_now(false);
        churn.rest();
        let freed = churn.log.discard_stats().counters;
        assert!(freed.sent.bytes > started.counters.sent.bytes, "{freed:?}");
        (0..40).for_each(|slot| churn.write(Slot(slot), Stream::Write).expect("there is room"));
    }
}

/// Goal: a level's discards keep to the bandwidth, too: whole segments, a piece at a time.
/// Method: a start that finds 8 MiB free, in one run, at 1 MiB/s; what was sent by each turn.
#[test]
fn a_long_run_of_segments_is_paced() {
    const MIB: u64 = 1 << 20;
    for (mode, length) in [(DiscardMode::Immediate, 8 * MIB), (DiscardMode::Delayed, 9 * MIB)] {
        let mut plan = plan(mode, Nanos::from_millis(50));
        plan.discard.bytes_per_second_max = MIB;
        let mut churn = Churn::with(1, length, BlockSize::MIN, plan);
        let (segment, all) = (churn.log.segment_bytes(), churn.log.segment_count());
        let mut sent = vec![(churn.io.now(), 0)];
        churn.rest_and(|io, log| {
            sent.push((io.now(), log.discard_stats().counters.sent.bytes));
        });
        for (index, (from, before)) in sent.iter().enumerate() {
            let inside = |entry: &&(Nanos, u64)| entry.0.0 - from.0 < 1_000_000_000;
            let last = sent[index..].iter().take_while(inside).last().expect("its own");
            assert!(last.1 - before <= 2 * MIB, "{mode:?} {from:?}: {}", last.1 - before);
        }
        let last = sent.last().expect("there are turns").1;
        assert_eq!(last, u64::from(all) * segment, "in the end all is sent");
    }
}

/// Goal: a full log takes writes for ever while free segments are discarded, and a delay spares the
/// device nearly all discards of a log under load. Method: random overwrites of every slot.
#[test]
fn a_full_log_discards_beside_its_writes() {
    for_each_seed(4, |seed| {
        for (mode, delay) in [
            (DiscardMode::Immediate, 1),
            (DiscardMode::Delayed, 1),
            (DiscardMode::Delayed, 3_600_000),
        ] {
            let (mut rng, delay) = (Rng::new(seed), Nanos::from_millis(delay));
            let mut churn = churn(seed, mode, delay);
            let slots = churn.log.slot_count();
            for step in 0..8 * slots {
                let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
                assert_eq!(churn.write(Slot(slot), Stream::Write), Ok(()));
            }
            let counters = churn.log.discard_stats().counters;
            assert!(counters.received.ranges > 100, "{counters:?}");
            match mode {
                DiscardMode::Immediate => assert!(counters.sent.ranges > 20, "{counters:?}"),
                _ if delay.as_secs() > 0 => assert_eq!(counters.sent.ranges, 0, "{counters:?}"),
                _ => {}
            }
        }
    });
}

/// Goal: discards that leave the device no pause do not keep marked segments from being
/// overwritten; a start goes on until they are. Method: two segments that become free with their
/// mark, as a start's checkpoint frees what it could not read, while discards are in flight; after
/// each turn the log is still clearing or both are overwritten.
#[test]
fn discards_do_not_delay_tests_of_marked_segments() {
    for (mode, delay) in [(DiscardMode::Immediate, 1), (DiscardMode::Delayed, 5_000)] {
        let delay = Nanos::from_millis(delay);
        let mut churn = churn(1, mode, delay);
        let marked = [(); 2].map(|()| churn.log.take_free().expect("all is free"));
        let due = Nanos(churn.io.now().0 + 2 * delay.0);
        churn.io.wait(due, &mut Vec::new());
        churn.log.on_tick(&mut churn.io, due, &Nothing);
        assert!(churn.log.freed.is_flying(), "{mode:?}: discards were sent");
        for index in marked {
            let segment = &mut churn.log.segments[index as usize];
            (segment.state, segment.is_marked) = (SegmentState::Free, true);
            churn.log.retiring.on_marked();
            churn.log.free_segments.push_back(index);
            churn.log.tell_free(index, due);
        }
        let is_left =
            |log: &LogStore| marked.into_iter().any(|index| log.segments[index as usize].is_marked);
        let check = |log: &LogStore| assert!(log.is_clearing() || !is_left(log), "{mode:?}");
        check(&churn.log);
        churn.rest_and(|_, log| check(log));
        assert!(!is_left(&churn.log) && churn.log.segments_retired() == 0, "{mode:?}");
        let sent = churn.log.discard_stats().counters.sent.bytes;
        let all = u64::from(churn.log.segment_count()) * churn.log.segment_bytes();
        assert!(sent >= all, "{mode:?}: overwritten ones are discarded, too");
    }
}

/// Goal: a segment that is marked while a discard is at it is tested once that has ended, and
/// waits without turns meanwhile. Method: marked in flight, beside segments to spare; what the log
/// wants, and the end.
#[test]
fn a_discard_ends_before_its_segment_is_tested() {
    let mut churn = churn(1, DiscardMode::Immediate, Nanos::from_millis(1));
    let spare = [(); 2].map(|()| churn.log.take_free().expect("all is free"));
    let now = churn.io.now();
    churn.log.on_tick(&mut churn.io, now, &Nothing);
    for index in spare {
        churn.log.segments[index as usize].state = SegmentState::Free;
        churn.log.free_segments.push_back(index);
    }
    let met = (0..churn.log.segment_count()).find(|index| churn.log.is_discarding(*index));
    let met = met.expect("discards were sent");
    churn.log.mark_failing(churn.log.geometry.segment_first(met));
    assert_eq!(churn.log.next_deadline(), Nanos::ZERO, "it is looked at");
    churn.log.on_tick(&mut churn.io, now, &Nothing);
    assert_eq!(
        churn.log.segments[met as usize].state,
        SegmentState::Free,
        "the discard is still in flight"
    );
    assert_ne!(churn.log.next_deadline(), Nanos::ZERO, "nothing can be done at once");
    churn.rest();
    assert!(!churn.log.segments[met as usize].is_marked, "it has passed its test");
}

/// Goal: a device that knows no discards is asked once, one that fails is asked again after a rest,
/// and neither disturbs a write. Method: both errors, writes after them.
#[test]
fn a_refusal_is_only_counted() {
    for (errno, is_final) in [(Errno::OPNOTSUPP, true), (Errno::IO, false)] {
        let mut churn = churn(3, DiscardMode::Immediate, Nanos::from_millis(1));
        let disk = churn.log.config.region.disk;
        churn.io.fail_next(disk, OperationKind::Discard, errno);
        churn.rest();
        (0..40).for_each(|slot| churn.write(Slot(slot), Stream::Write).expect("there is room"));
        (0..40).for_each(|slot| churn.log.free(Slot(slot)));
        churn.log.checkpoint_now(false);
        churn.rest();
        let stats = churn.log.discard_stats();
        assert_eq!((stats.refused, stats.pending.ranges), (1, 0), "{stats:?}");
        assert_eq!(stats.counters.dropped.ranges > 0, is_final, "{stats:?}");
    }
}

/// Goal: a log keeps the length of its segments. Method: opened with none said, with its own, with
/// another; lengths that are no power of two hold blocks, too.
#[test]
fn segments_keep_their_length() {
    let (mut io, disk, log) = fresh(5);
    let own = log.segment_bytes();
    let open = |io: &mut SimIo, bytes| {
        let segments = SegmentPlan { bytes, ..SegmentPlan::default() };
        let config = LogConfig { segments, ..config(disk) };
        LogStore::open(io, config, SeqSource::new(Seq(1))).map(drop)
    };
    assert_eq!((open(&mut io, 0), open(&mut io, own)), (Ok(()), Ok(())));
    let Err(StoreError::Mismatch { what, stored, expected, .. }) = open(&mut io, 2 * own) else {
        panic!("another length is refused")
    };
    assert_eq!((what, stored, expected), ("segment length", own, 2 * own));
    let odd = SegmentPlan {
        bytes: 11 * u64::from(BlockSize::MIN.bytes()),
        ..plan(DiscardMode::Immediate, Nanos::from_millis(1))
    };
    let mut churn = Churn::with(7, LENGTH, BlockSize::MIN, odd);
    assert_eq!(churn.log.segment_bytes(), odd.bytes);
    let slots = churn.log.slot_count();
    for step in 0..6 * slots {
        assert_eq!(churn.write(Slot(step * 7 % slots), Stream::Write), Ok(()));
    }
}
