//! Clients whose class says how long they wait for the store.
//!
//! How: a link that is cut, a journal of a megabyte, and a clock that the tests move.

use super::lives::{BLOCK, BLOCKS, JOURNAL, NODE, open, plan};
use crate::simulated::{SimDisks as Disks, SimWorld as World};
use crate::volume::{Limits, Link, Plan, Volume, WaitPlan, create};
use layby_policy::forecast::Bandwidth;
use layby_types::{BackingOperation, ErrorKind, Nanos};
use std::collections::BTreeMap;

pub(super) const WITHIN: Nanos = Nanos::from_secs(2);
/// Steps that anything may take before it counts as hung.
const STEPS_MAX: u32 = 100_000;

/// How a call ended, with the buffer that came back.
pub(super) type Ended = (Result<(), ErrorKind>, Option<Vec<u8>>);

pub(super) struct Bench {
    pub(super) world: World,
    pub(super) volume: Volume<Vec<u8>>,
    pub(super) now: Nanos,
    pub(super) token: u64,
    pub(super) ended: BTreeMap<u64, Ended>,
}

impl Bench {
    /// A volume whose first blocks are ones, in the store alone.
    pub(super) fn new(seed: u64) -> Bench {
        Bench::sized(seed, BLOCKS, (JOURNAL, BLOCKS * BLOCK))
    }

    /// The same, of so many blocks and with so many bytes of journal and read cache.
    pub(super) fn sized(seed: u64, blocks: u64, (journal, cache): (u64, u64)) -> Bench {
        let mut bench = Bench::unknown(seed, blocks, (journal, cache));
        bench.store_first();
        bench
    }

    /// Has the first blocks be ones, in the store alone, and calls wait for a time.
    fn store_first(&mut self) {
        let written = self.write(0, 8, 1);
        self.volume.set_draining(true);
        self.until(|bench| bench.ended.contains_key(&written) && bench.volume.is_drained());
        self.volume.set_draining(false);
        self.volume.forget_all_uploaded();
        self.volume.set_wait(WaitPlan { answer_within: Some(WITHIN), drain: None });
    }

    /// Reads each time that the store has failed, later than the class's time after the read
    /// before: none is refused, and the link is up.
    fn reads_beside_faults(&mut self) {
        for round in 0..5 {
            let after = Nanos(self.now.0 + 2 * WITHIN.0);
            let age = |bench: &Bench| {
                bench.volume.status().last_fault.map_or(Nanos::NEVER, |(_, age)| age)
            };
            self.until(|bench| bench.now > after && age(bench) < Nanos::from_millis(100));
            let read = self.read(round);
            assert_eq!(self.wait(read).1, Ok(()), "round {round}: {:?}", self.volume.status());
        }
        let status = self.volume.status();
        assert_eq!((status.link, status.counters.refused), (Link::Up, 0));
    }

    /// A volume of which the store has said nothing yet.
    fn unknown(seed: u64, blocks: u64, (journal, cache): (u64, u64)) -> Bench {
        let plan = |node| {
            let plan = plan(node);
            let limits = Limits { read_cache_bytes: cache, ..plan.limits };
            Plan { size_bytes: blocks * BLOCK, limits, ..plan }
        };
        let disks = Disks::new(journal, create(&plan(NODE), journal, seed));
        let mut world = World::new(seed, disks);
        let volume = open(&mut world, plan(NODE), Nanos::ZERO);
        let (now, ended) = (Nanos::ZERO, BTreeMap::new());
        Bench { world, volume, now, token: 0, ended }
    }

    pub(super) fn write(&mut self, first: u64, blocks: u64, value: u8) -> u64 {
        self.token += 1;
        let buffer = vec![value; (blocks * BLOCK) as usize];
        let (offset, durable) = (first * BLOCK, false);
        self.volume.submit(self.token, BackingOperation::Write { offset, buffer, durable });
        self.collect();
        self.token
    }

    pub(super) fn zero(&mut self, block: u64) {
        self.trim(block);
    }

    fn trim(&mut self, block: u64) -> u64 {
        let (offset, length, keep_allocated) = (block * BLOCK, BLOCK, false);
        self.submit(BackingOperation::Zero { offset, length, keep_allocated })
    }

    pub(super) fn sync(&mut self) -> u64 {
        self.submit(BackingOperation::Sync)
    }

    /// Asks which of the first blocks hold data.
    fn status_of_blocks(&mut self) -> u64 {
        self.submit(BackingOperation::Extents { offset: 0, length: 8 * BLOCK })
    }

    fn submit(&mut self, operation: BackingOperation<Vec<u8>>) -> u64 {
        self.token += 1;
        self.volume.submit(self.token, operation);
        self.collect();
        self.token
    }

    pub(super) fn read(&mut self, first: u64) -> u64 {
        self.read_blocks(first, 1)
    }

    pub(super) fn read_blocks(&mut self, first: u64, blocks: u64) -> u64 {
        self.token += 1;
        let buffer = vec![0xEE; (blocks * BLOCK) as usize];
        self.volume.submit(self.token, BackingOperation::Read { offset: first * BLOCK, buffer });
        self.collect();
        self.token
    }

    /// Reads a block where it is at hand.
    pub(super) fn read_at_hand(&mut self, first: u64) -> u64 {
        self.token += 1;
        let (offset, buffer) = (first * BLOCK, vec![0xEE; BLOCK as usize]);
        self.volume.submit(self.token, BackingOperation::ReadAtHand { offset, buffer });
        self.collect();
        self.token
    }

    fn collect(&mut self) {
        while let Some(done) = self.volume.poll() {
            self.ended.insert(done.token, (done.result, done.buffer));
        }
    }

    pub(super) fn result(&self, token: u64) -> Option<Result<(), ErrorKind>> {
        self.ended.get(&token).map(|(result, _)| *result)
    }

    /// Everything that can be done at this time.
    pub(super) fn work(&mut self) {
        for _ in 0..STEPS_MAX {
            let actions = self.volume.take_actions();
            self.world.take(actions);
            match self.world.step() {
                Some((id, end)) => self.volume.on_end(id, end),
                None => return self.collect(),
            }
        }
        panic!("there is always something to do");
    }

    /// Some milliseconds pass.
    pub(super) fn pass(&mut self) {
        self.work();
        self.now = self.now.saturating_add(Nanos::from_millis(5));
        self.volume.on_tick(self.now);
        self.work();
    }

    pub(super) fn until(&mut self, is_so: impl Fn(&Bench) -> bool) {
        for _ in 0..STEPS_MAX {
            if is_so(self) {
                return;
            }
            self.pass();
        }
        panic!("it never comes: {:?}", self.volume.status());
    }

    /// How long until a call has ended.
    pub(super) fn wait(&mut self, token: u64) -> (Nanos, Result<(), ErrorKind>) {
        let start = self.now;
        self.work();
        self.until(|bench| bench.result(token).is_some());
        (self.now.since(start), self.result(token).expect("it has ended"))
    }

    /// Writes until one waits for the journal's room.
    pub(super) fn fill(&mut self) -> u64 {
        for round in 0..1000 {
            let token = self.write(8 + round % 80, 8, 2);
            self.work();
            if self.result(token).is_none() {
                return token;
            }
        }
        panic!("the journal never fills");
    }
}

/// Goal: a read of what only a silent store has is answered with an error when its time is over;
/// while the store is known to be silent others are refused at once, with a reason; what the
/// journal has is served; and when the store answers again, so are reads. Method: a cut link.
#[test]
fn reads_do_not_wait_longer_than_their_time() {
    let mut bench = Bench::new(1);
    bench.world.faults.is_cut = true;
    let first = bench.read(0);
    assert_eq!(bench.wait(first).1, Err(ErrorKind::Retry));
    assert!(bench.now >= WITHIN, "not sooner");
    let waited = bench.wait_of_new_read();
    assert_eq!(waited, (Nanos::ZERO, Err(ErrorKind::Retry)), "it is known to be silent");
    let status = bench.volume.status();
    assert_eq!(status.counters.refused, 2);
    let why = status.last_refusal.expect("somebody was refused");
    assert!(why.contains("has not answered for"), "{why}");
    let written = bench.write(40, 1, 7);
    assert_eq!(bench.wait(written).1, Ok(()));
    let local = bench.read(40);
    assert_eq!(bench.wait(local), (Nanos::ZERO, Ok(())), "the journal has it");
    bench.world.faults.is_cut = false;
    bench.until(|bench| matches!(bench.volume.status().link, Link::Up));
    let again = bench.read(0);
    assert_eq!(bench.wait(again).1, Ok(()));
    assert_eq!(bench.ended[&again].1.as_deref(), Some(&vec![1; BLOCK as usize][..]));
}

/// Goal: a pause of the node counts for no wait, neither of a call that waits, whether it reads or
/// writes, nor of a store that is silent; after it each waits as long as was left. Method: pauses
/// longer and shorter than the time, drawn from seeds, in the middle of waits over a cut link.
#[test]
fn a_pause_counts_for_no_wait() {
    for seed in 0..20 {
        let mut rng = layby_types::Rng::new(seed);
        let mut bench = Bench::new(10 + seed);
        bench.world.faults.is_cut = true;
        let calls = [bench.fill(), bench.read(0)];
        let start = bench.now;
        let before = Nanos::from_millis(100 + rng.below(1801));
        bench.until(|bench| bench.now.since(start) >= before);
        let pause = Nanos::from_millis(1100 + rng.below(18_900));
        assert!(pause > bench.volume.pause_min(), "it is one");
        bench.now = bench.now.saturating_add(pause);
        bench.volume.set_now(bench.now);
        bench.volume.leave_out(pause);
        bench.pass();
        let results = calls.map(|token| bench.result(token));
        assert_eq!(results, [None, None], "seed {seed}: {before:?} and a pause of {pause:?}");
        let new = bench.read(1);
        bench.work();
        assert_eq!(bench.result(new), None, "seed {seed}: it is not known to be silent");
        bench.until(|bench| calls.iter().all(|token| bench.result(*token).is_some()));
        let waited = bench.now.since(start).since(pause);
        let latest = WITHIN.saturating_add(Nanos::from_millis(50));
        assert!((WITHIN..=latest).contains(&waited), "seed {seed}: {waited:?}");
        for token in calls {
            assert_eq!(bench.result(token), Some(Err(ErrorKind::Retry)), "seed {seed}");
        }
    }
}

/// Goal: a store that fails is not asked by every read at once, over and over; each read is served
/// when it answers again. Method: 500 reads, a second of which the store refuses all; the requests
/// of that second, then how long the reads take.
#[test]
fn a_store_that_fails_is_asked_by_few() {
    let blocks = 500;
    let mut bench = Bench::sized(1, blocks, (JOURNAL, 0));
    let written: Vec<u64> = (0..blocks).map(|block| bench.write(block, 1, 9)).collect();
    bench.volume.set_draining(true);
    written.into_iter().for_each(|token| assert_eq!(bench.wait(token).1, Ok(())));
    bench.until(|bench| bench.volume.is_drained());
    bench.volume.forget_all_uploaded();
    bench.volume.set_wait(WaitPlan::default());
    bench.world.faults.errors = 100;
    let (from, requests) = (bench.now, bench.volume.status().counters.requests);
    let reads: Vec<u64> = (0..blocks).map(|block| bench.read(block)).collect();
    bench.until(|bench| bench.now.since(from) >= Nanos::from_secs(1));
    let asked = bench.volume.status().counters.requests - requests;
    assert!((2..=100).contains(&asked), "{asked} requests in a second");
    let first = bench.volume.status().counters.requests;
    let at = bench.now;
    bench.until(|bench| bench.now.since(at) >= Nanos::from_secs(1));
    let asked = bench.volume.status().counters.requests - first;
    assert!((1..=100).contains(&asked), "{asked} requests in the next");
    bench.world.faults.errors = 0;
    let at = bench.now;
    bench.until(|bench| reads.iter().all(|token| bench.result(*token).is_some()));
    assert!(bench.now.since(at) < Nanos::from_secs(1), "{}", bench.now.since(at));
    assert!(reads.iter().all(|token| bench.result(*token) == Some(Ok(()))));
}

/// Goal: a store that answers reads and takes no puts is no link that is up, however often it is
/// asked whose the volume is. Method: a full store, a write, looks between its attempts; then room.
#[test]
fn a_full_store_is_no_link_that_is_up() {
    let mut bench = Bench::new(1);
    bench.world.faults.is_full = true;
    bench.write(40, 1, 7);
    bench.volume.set_draining(true);
    bench.until(|bench| matches!(bench.volume.status().link, Link::Down { .. }));
    for _ in 0..200 {
        bench.volume.look();
        bench.pass();
        let link = bench.volume.status().link;
        assert!(matches!(link, Link::Down { .. }), "{link:?}");
    }
    bench.world.faults.is_full = false;
    bench.until(|bench| matches!(bench.volume.status().link, Link::Up));
    bench.until(|bench| bench.volume.is_drained());
}

impl Bench {
    fn wait_of_new_read(&mut self) -> (Nanos, Result<(), ErrorKind>) {
        let token = self.read(1);
        self.wait(token)
    }
}

/// Goal: a store that is silent while nothing else asks it anything is tried again once in the
/// time, so that reads alone find out that it answers. Method: a cut link, no writes, and a rest.
#[test]
fn a_silent_store_is_tried_again() {
    let mut bench = Bench::new(2);
    bench.world.faults.is_cut = true;
    assert_eq!(bench.wait_of_new_read().1, Err(ErrorKind::Retry));
    bench.world.faults.is_cut = false;
    let rested = bench.now.saturating_add(WITHIN).saturating_add(WITHIN);
    bench.until(|bench| bench.now >= rested);
    assert_eq!(bench.wait_of_new_read().1, Ok(()));
}

/// Goal: a write that finds the journal full is answered with an error when its time is over, and
/// nothing acknowledged is lost by it; without a time it waits. Method: a full journal over a cut
/// link, which comes back.
#[test]
fn writes_do_not_wait_longer_than_their_time() {
    let mut bench = Bench::new(3);
    bench.world.faults.is_cut = true;
    let waiting = bench.fill();
    let (waited, result) = bench.wait(waiting);
    assert_eq!(result, Err(ErrorKind::Retry));
    assert!(waited >= WITHIN, "{waited:?}");
    let refused = bench.write(90, 6, 3);
    assert_eq!(bench.result(refused), Some(Err(ErrorKind::Retry)), "refused at once");
    bench.volume.set_wait(WaitPlan::default());
    let patient = bench.write(90, 6, 4);
    bench.until(|bench| bench.now >= Nanos::from_secs(20));
    assert_eq!(bench.result(patient), None, "without a time it waits");
    bench.world.faults.is_cut = false;
    assert_eq!(bench.wait(patient).1, Ok(()));
    bench.volume.set_draining(true);
    bench.until(|bench| bench.volume.is_drained());
    let last = bench.read(BLOCKS - 1);
    assert_eq!(bench.wait(last).1, Ok(()));
    assert_eq!(bench.ended[&last].1.as_deref(), Some(&vec![4; BLOCK as usize][..]));
}

/// Goal: what the forecast says cannot be kept is refused at once, with the figures; what it says
/// can be is taken. Method: a full journal and two forecasts.
#[test]
fn the_forecast_refuses_what_it_cannot_keep() {
    let mut bench = Bench::new(4);
    bench.world.faults.is_cut = true;
    bench.fill();
    let wait = |drain| WaitPlan { answer_within: Some(WITHIN), drain: Some(Bandwidth::new(drain)) };
    bench.volume.set_wait(wait(1e3));
    let refused = bench.write(90, 6, 3);
    assert_eq!(bench.result(refused), Some(Err(ErrorKind::Retry)));
    let why = bench.volume.status().last_refusal.expect("it was refused");
    assert!(why.contains("the link drains 1000 bytes per second"), "{why}");
    bench.volume.set_wait(wait(1e8));
    let taken = bench.write(90, 6, 3);
    assert_eq!(bench.result(taken), None, "it waits for the link");
}

/// Goal: a stop ends every write that finds no room, also one behind a batch that was on its way
/// when it came. Method: journals filled to each level, a stop between two writes of which the
/// first is on its way.
#[test]
fn a_stop_ends_what_finds_no_room_behind_a_batch() {
    let mut unaccepted = 0;
    for level in 0..40 {
        let mut bench = Bench::new(5);
        bench.world.faults.is_cut = true;
        bench.volume.set_wait(WaitPlan::default());
        let filled: Vec<u64> = (0..level).map(|_| bench.write(8, 8, 2)).collect();
        bench.work();
        if filled.iter().any(|token| bench.result(*token).is_none()) {
            continue;
        }
        let pair = [bench.write(8, 8, 3), bench.write(16, 8, 3)];
        bench.volume.stop_waiting();
        bench.work();
        let results = pair.map(|token| bench.result(token));
        let is_ended = |result: &Option<_>| matches!(result, Some(Ok(()) | Err(ErrorKind::Closed)));
        assert!(results.iter().all(is_ended), "level {level}: {results:?}");
        unaccepted += u32::from(results == [Some(Ok(())), Some(Err(ErrorKind::Closed))]);
    }
    assert!(unaccepted > 0, "no level left room for one of two");
}

/// Goal: reads that are given up are those that reach behind the byte, and what comes for them
/// later is in no read after a zeroing. Method: reads of both sides over a link that is cut, the
/// word, a zeroing of one block behind it, the link back; the read before the byte ends well.
#[test]
fn reads_behind_a_byte_are_given_up() {
    let mut bench = Bench::new(6);
    bench.volume.set_wait(WaitPlan::default());
    bench.world.faults.is_cut = true;
    let (before, over, behind) = (bench.read(1), bench.read_blocks(3, 2), bench.read(6));
    bench.work();
    bench.volume.give_up_reads_behind(4 * BLOCK);
    bench.work();
    let results = [before, over, behind].map(|token| bench.result(token));
    assert_eq!(results, [None, Some(Err(ErrorKind::Retry)), Some(Err(ErrorKind::Retry))]);
    bench.zero(6);
    bench.world.faults.is_cut = false;
    bench.until(|bench| bench.ended.contains_key(&before));
    let again = [bench.read(6), bench.read(3)];
    bench.until(|bench| again.iter().all(|token| bench.ended.contains_key(token)));
    for (token, value) in [(before, 1), (again[0], 0), (again[1], 1)] {
        let (result, buffer) = &bench.ended[&token];
        assert_eq!(*result, Ok(()));
        let buffer = buffer.as_ref().expect("a read gives its buffer back");
        assert!(buffer.iter().all(|byte| *byte == value), "{token}: not {value}");
    }
}

/// Goal: a store that takes no puts and answers reads has none of them refused, however long it
/// takes none; writes are refused once the journal is full. Method: a full store, a write that is
/// to go there, then a read each half second for several times the class's.
#[test]
fn a_store_that_takes_no_puts_serves_reads() {
    let mut bench = Bench::new(7);
    bench.world.faults.is_full = true;
    bench.write(40, 1, 7);
    bench.volume.set_draining(true);
    bench.until(|bench| matches!(bench.volume.status().link, Link::Down { .. }));
    let start = bench.now;
    for round in 1..=20 {
        bench.until(|bench| bench.now.since(start) >= Nanos::from_millis(500 * round));
        let read = bench.read(round % 8);
        assert_eq!(bench.wait(read).1, Ok(()), "round {round}: {:?}", bench.volume.status());
    }
    assert_eq!(bench.volume.status().counters.refused, 0);
    let age = |bench: &Bench| bench.volume.status().last_fault.map_or(Nanos::NEVER, |(_, age)| age);
    bench.until(|bench| age(bench) < Nanos::from_millis(100));
    let mut writes = (0..1000).map(|round| {
        let token = bench.write(8 + round % 80, 8, 2);
        bench.work();
        bench.result(token)
    });
    let first = writes.find(|result| *result != Some(Ok(())));
    assert_eq!(first, Some(Some(Err(ErrorKind::Retry))), "refused at once");
    let why = bench.volume.status().last_refusal.expect("it was refused");
    assert!(why.contains("has taken nothing for"), "{why}");
}

/// Goal: a store that denies removals is not taken for a silent one: no read is refused. Method:
/// overwrites until a segment is to be removed, and a read after each attempt that comes later than
/// the class's time after the read before.
#[test]
fn a_store_that_denies_removals_serves_reads() {
    let mut bench = Bench::new(8);
    bench.world.faults.denies_deletes = true;
    bench.volume.set_draining(true);
    let fault = |bench: &Bench| bench.volume.status().last_fault;
    for value in 0..200 {
        let written = bench.write(32, 8, value);
        bench.until(|bench| bench.ended.contains_key(&written) && bench.volume.is_drained());
        if fault(&bench).is_some() {
            break;
        }
    }
    let (cause, _) = fault(&bench).expect("a removal was denied");
    assert_eq!(cause, "Denied");
    bench.reads_beside_faults();
}

/// Goal: a store that denies listing alone is not taken for a silent one: no read is refused.
/// Method: a store that denies it from the beginning, and a read after each attempt that comes
/// later than the class's time after the read before.
#[test]
fn a_store_that_denies_listing_serves_reads() {
    let mut bench = Bench::unknown(9, BLOCKS, (JOURNAL, 0));
    bench.world.faults.denies_lists = true;
    bench.store_first();
    let fault = |bench: &Bench| bench.volume.status().last_fault;
    assert_eq!(fault(&bench).map(|(cause, _)| cause).as_deref(), Some("Denied"));
    bench.reads_beside_faults();
}

/// Goal: calls of each kind that wait until the store has said what the volume is end when their
/// time is over: trims and block status with an error, a flush well, since nothing was
/// acknowledged; and the volume's thread has nothing to do before the next deadline. Method: a link
/// that is cut from the beginning, each kind alone and all together, a look at the deadline after
/// each step; then the link back.
#[test]
fn calls_of_each_kind_wait_no_longer_than_their_time() {
    type Submit = fn(&mut Bench) -> u64;
    let kinds: [(Submit, Result<(), ErrorKind>); 5] = [
        (|bench| bench.read(0), Err(ErrorKind::Retry)),
        (|bench| bench.write(0, 1, 1), Err(ErrorKind::Retry)),
        (|bench| bench.trim(0), Err(ErrorKind::Retry)),
        (Bench::status_of_blocks, Err(ErrorKind::Retry)),
        (Bench::sync, Ok(())),
    ];
    let lists = (0..kinds.len()).map(|kind| kind..kind + 1).chain(std::iter::once(0..kinds.len()));
    for (seed, list) in (20..).zip(lists) {
        let mut bench = Bench::unknown(seed, BLOCKS, (JOURNAL, 0));
        bench.volume.set_wait(WaitPlan { answer_within: Some(WITHIN), drain: None });
        bench.world.faults.is_cut = true;
        let calls: Vec<_> = kinds[list].iter().map(|(of, end)| (of(&mut bench), *end)).collect();
        while bench.now < Nanos(2 * WITHIN.0) {
            bench.pass();
            let (now, deadline) = (bench.now, bench.volume.next_deadline());
            assert!(deadline > now, "seed {seed}: it is {now:?}, and {deadline:?} is due");
            let is_over = now >= WITHIN;
            let results = calls.iter().map(|(token, end)| (bench.result(*token), *end));
            for (result, end) in results {
                assert_eq!(result, is_over.then_some(end), "seed {seed} at {now:?}");
            }
        }
        let refused = calls.iter().filter(|(_, end)| end.is_err()).count() as u64;
        assert_eq!(bench.volume.status().counters.refused, refused);
        bench.world.faults.is_cut = false;
        bench.volume.set_wait(WaitPlan::default());
        let written = bench.write(0, 1, 1);
        assert_eq!(bench.wait(written).1, Ok(()));
    }
}

/// Goal: a shrink of a volume that the store has not described yet is carried out once it has, also
/// where the class's time was over before, and costs no thread a spin until then. Method: a new
/// size over a link that is cut for several times that; then the link back.
#[test]
fn a_new_size_waits_as_long_as_it_takes() {
    let mut bench = Bench::unknown(30, BLOCKS, (JOURNAL, 0));
    bench.volume.set_wait(WaitPlan { answer_within: Some(WITHIN), drain: None });
    bench.world.faults.is_cut = true;
    bench.volume.set_size(BLOCKS / 2 * BLOCK);
    while bench.now < Nanos(2 * WITHIN.0) {
        bench.pass();
        assert!(bench.volume.next_deadline() > bench.now, "at {:?}", bench.now);
    }
    assert_eq!(bench.volume.status().counters.refused, 0);
    bench.world.faults.is_cut = false;
    bench.volume.set_draining(true);
    let is_stored = |bench: &Bench| bench.volume.is_size_stored() && bench.volume.is_drained();
    bench.until(|bench| matches!(bench.volume.status().link, Link::Up) && is_stored(bench));
}

/// Goal: nothing is said of the blocks of a volume that the store has not described. Method: block
/// status before and after a stop, over a link that is cut from the beginning.
#[test]
fn an_unknown_volume_has_no_block_status() {
    let mut bench = Bench::unknown(40, BLOCKS, (JOURNAL, 0));
    bench.world.faults.is_cut = true;
    let before = bench.status_of_blocks();
    bench.work();
    assert_eq!(bench.result(before), None, "it waits for the store");
    bench.volume.stop_waiting();
    let after = bench.status_of_blocks();
    bench.work();
    let results = [before, after].map(|token| bench.result(token));
    assert_eq!(results, [Some(Err(ErrorKind::Closed)); 2]);
}
