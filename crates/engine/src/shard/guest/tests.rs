//! Queues beside a better rank: their long requests go in pieces and are answered whole.
//!
//! How: a ring whose requests are written down, over a core with simulated disks.

mod bounds;
mod led;
mod left;

use super::*;
use crate::core::tests::{Shape, World, call};
use crate::io::{Buffer, Waker};
use crate::link::{Answered, Asked, NearEnd, link};
use layby_cache::throttle::{LimitPlan, Limits, Rate};
use layby_types::{ClassId, ErrorKind, Nanos, Rng};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The class of this volume is not the best one.
const LOWER: VolumeId = VolumeId(2);
const LENGTH: u64 = 48 * 4096;
const QUANTUM: u64 = 16 << 10;
/// Turns that anything may take before it counts as hung.
const TURNS_MAX: u32 = 100_000;

/// What became of the requests of a [`Script`], by their cookies.
#[derive(Default)]
struct Answers {
    bytes: Vec<(u64, Vec<u8>)>,
    ended: Vec<(u64, Result<(), ErrorKind>)>,
}

/// A ring whose guest asks for what is written down, with the bytes of writes.
struct Script {
    requests: VecDeque<(Call, Vec<u8>)>,
    answers: Arc<Mutex<Answers>>,
}

impl GuestRing for Script {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        let Some((call, bytes)) = self.requests.pop_front() else { return Ok(Taken::Nothing) };
        *payload = bytes;
        Ok(Taken::Call(call))
    }

    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]) {
        let answers = &mut self.answers.lock().unwrap().bytes;
        let index = answers.iter().position(|(cookie, _)| *cookie == call.cookie);
        let index = index.unwrap_or_else(|| {
            answers.push((call.cookie, vec![0xEE; call.length as usize]));
            answers.len() - 1
        });
        answers[index].1[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        self.answers.lock().unwrap().ended.push((call.cookie, result));
        Ok(())
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        Ok(false)
    }

    fn take_signal(&mut self) -> bool {
        false
    }

    fn base(&self) -> u16 {
        7
    }
}

/// A shard's part that serves one queue.
struct Bench {
    world: World,
    gate: Gate,
    guests: Guests,
    answers: Arc<Mutex<Answers>>,
    best: Rank,
}

impl Bench {
    fn new(seed: u64, requests: Vec<(Call, Vec<u8>)>, best: Rank) -> Bench {
        let world = World::new(seed, Shape::roomy());
        let answers = Arc::<Mutex<Answers>>::default();
        let ring = Script { requests: requests.into(), answers: answers.clone() };
        let rank = world.core.rank_of(LOWER);
        let event = (EventId(0), CallEvent::default());
        let mut guest = Guest::new((LOWER, rank), "test".into(), Box::new(ring), event);
        // There is no event descriptor here, so there is nothing to wait for.
        guest.is_closed = true;
        let mut guests = Guests::default();
        guests.add(guest);
        Bench { world, gate: Gate::default(), guests, answers, best }
    }

    /// A turn of the queue; answers with how many bytes it gave to the core.
    fn go_on(&mut self) -> u64 {
        let World { io, core, .. } = &mut self.world;
        let before = self.guests.places[0].as_ref().unwrap().submitted_bytes;
        self.guests.go_on(io, core, &mut self.gate, (self.best, QUANTUM));
        self.guests.places[0].as_ref().unwrap().submitted_bytes - before
    }

    /// The devices' turn, and its answers.
    fn work(&mut self) {
        let World { io, core, .. } = &mut self.world;
        core.turn(io);
        while let Some(finished) = core.take_finished() {
            self.guests.reply(io, core, finished);
        }
    }

    /// The end of a turn.
    fn flush(&mut self) {
        self.guests.flush(&mut self.gate, &mut self.world.core);
    }

    /// Until nothing is left to do; answers with the most bytes that a turn gave to the core.
    fn run(&mut self) -> u64 {
        let mut most = 0;
        for _ in 0..TURNS_MAX {
            most = most.max(self.go_on());
            if !self.guests.has_more() && self.guests.is_quiet() {
                return most;
            }
            self.work();
        }
        panic!("a queue's requests never end");
    }
}

fn write(cookie: u64, offset: u64, bytes: &[u8]) -> (Call, Vec<u8>) {
    let call = call(Operation::Write, offset, bytes.len() as u64);
    (Call { cookie, ..call }, bytes.to_vec())
}

fn read(cookie: u64, offset: u64, length: u64) -> (Call, Vec<u8>) {
    (Call { cookie, ..call(Operation::Read, offset, length) }, Vec::new())
}

fn random_bytes(rng: &mut Rng, length: u64) -> Vec<u8> {
    (0..length).map(|_| rng.below(256) as u8).collect()
}

/// Goal: beside a better rank no turn gives the core more than a quantum of a queue's bytes
/// written, or four read, and every request is answered once, with its bytes. Method: long
/// writes at random places, then reads of them, each awaited by the next.
#[test]
fn long_requests_of_a_lower_rank_go_in_pieces() {
    for seed in 0..50 {
        let rng = &mut Rng::new(seed);
        let mut image = vec![0; LENGTH as usize];
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        for cookie in 0..4 {
            let offset = rng.below(LENGTH / 512 - 1) * 512;
            let length = (1 + rng.below((LENGTH - offset) / 512)) * 512;
            let bytes = random_bytes(rng, length);
            image[offset as usize..][..length as usize].copy_from_slice(&bytes);
            requests.push(vec![write(cookie, offset, &bytes)]);
            requests.push(vec![read(100 + cookie, offset, length)]);
            expected.push((100 + cookie, bytes));
        }
        let mut bench = Bench::new(seed, Vec::new(), Rank::FIRST);
        for requests in requests {
            let answers = bench.answers.clone();
            let guest = bench.guests.places[0].as_mut().unwrap();
            guest.ring = Box::new(Script { requests: requests.into(), answers });
            guest.has_more = true;
            let most = bench.run();
            assert!(most <= 4 * QUANTUM, "{most} bytes in a turn; replay with SEED={seed}");
        }
        let answers = std::mem::take(&mut *bench.answers.lock().unwrap());
        assert_eq!(answers.bytes, expected, "replay with SEED={seed}");
        let cookies: Vec<u64> = answers.ended.iter().map(|(cookie, _)| *cookie).collect();
        assert_eq!(cookies, [0, 100, 1, 101, 2, 102, 3, 103], "replay with SEED={seed}");
        assert!(answers.ended.iter().all(|(_, result)| result.is_ok()));
        let found = bench.world.read(LOWER.0, 0, LENGTH).unwrap();
        assert_eq!(found, image, "replay with SEED={seed}");
    }
}

/// Goal: many queues' requests share the quantum: a written turn never exceeds it. Method: short
/// writes only, counted by turn.
#[test]
fn short_requests_share_the_quantum() {
    let bytes = vec![1; 4096];
    let requests = (0..40).map(|n| write(n, n * 4096, &bytes)).collect();
    let mut bench = Bench::new(1, requests, Rank::FIRST);
    assert_eq!(bench.run(), QUANTUM);
    assert_eq!(bench.answers.lock().unwrap().ended.len(), 40);
}

/// Goal: where no rank is better, a request goes as it is. Method: one long write, in one turn.
#[test]
fn requests_of_the_best_rank_are_not_cut() {
    let requests = vec![write(1, 0, &vec![3; 128 << 10])];
    let mut bench = Bench::new(2, requests, Rank::FIRST);
    bench.best = bench.world.core.rank_of(LOWER);
    assert_eq!(bench.go_on(), 128 << 10);
    bench.run();
    assert_eq!(bench.answers.lock().unwrap().ended, [(1, Ok(()))]);
}

/// Goal: a rank with too much in the core's hands takes no more, and a wait does not spin for it.
/// Method: hold it in the middle of a long write.
#[test]
fn a_held_rank_waits() {
    let mut bench = Bench::new(3, vec![write(1, 0, &vec![3; 128 << 10])], Rank::FIRST);
    let rank = bench.world.core.rank_of(LOWER);
    assert_eq!(bench.go_on(), QUANTUM);
    bench.guests.hold(rank, true);
    assert!(!bench.guests.has_more());
    assert_eq!(bench.go_on(), 0);
    bench.guests.hold(rank, false);
    bench.run();
    assert_eq!(bench.answers.lock().unwrap().ended, [(1, Ok(()))]);
}

/// Goal: a queue that leaves while its rank is held goes on with what was taken, since the ranks
/// that are held are of what is served. Method: hold it in the middle of a long write; it leaves,
/// and the rank is held once more.
#[test]
fn a_held_queue_that_leaves_goes_on() {
    let mut bench = Bench::new(6, vec![write(1, 0, &vec![3; 128 << 10])], Rank::FIRST);
    let rank = bench.world.core.rank_of(LOWER);
    assert_eq!(bench.go_on(), QUANTUM);
    bench.guests.hold(rank, true);
    bench.guests.leave(&mut bench.world.io, Some(LOWER));
    bench.guests.hold(rank, true);
    assert!(bench.guests.has_more());
    bench.run();
    assert_eq!(bench.answers.lock().unwrap().ended, [(1, Ok(()))]);
}

/// Goal: what waits for the write intent of a volume that goes is answered. Method: a write of a
/// clean volume, whose gate then forgets it.
#[test]
fn what_waits_for_an_intent_outlives_its_volume() {
    let mut bench = Bench::new(7, vec![write(1, 0, &[3; 4096])], Rank::FIRST);
    bench.gate.intents().set_clean(LOWER);
    assert_eq!(bench.go_on(), 0);
    bench.guests.leave(&mut bench.world.io, Some(LOWER));
    assert_eq!(bench.go_on(), 0, "its intent is not recorded");
    bench.gate.forget(LOWER);
    for asker in bench.gate.take_released() {
        bench.guests.on_released(Asker(asker));
    }
    bench.run();
    assert_eq!(bench.answers.lock().unwrap().ended.len(), 1);
}

/// Goal: a queue that is stopped answers what was taken from it first: a request that its volume's
/// limits hold, and one that is cut. Method: stop it in the middle; the ring says where it stands
/// only when both are answered.
#[test]
fn a_stopped_queue_answers_what_was_taken() {
    for is_limited in [true, false] {
        let bytes = vec![9; 64 << 10];
        let mut bench = Bench::new(4, vec![write(1, 0, &bytes)], Rank::FIRST);
        if is_limited {
            let slow = Rate { tokens: 1, period: Nanos::from_secs(3600), burst: 1 };
            let limits = Limits { requests: Some(slow), bytes: None };
            let plan = LimitPlan { volumes: vec![(LOWER, ClassId(1), limits)], ..<_>::default() };
            bench.gate.set_limits(&plan);
            let first = call(Operation::Write, 0, 512);
            assert!(bench.gate.may_start(LOWER, 99, &first), "the burst is one request");
        }
        let given = bench.go_on();
        assert_eq!(given, if is_limited { 0 } else { QUANTUM });
        let base = Arc::<Mutex<Option<u16>>>::default();
        let (kept, answers) = (base.clone(), bench.answers.clone());
        let stopped = move |result: Result<u16, _>| {
            assert_eq!(answers.lock().unwrap().ended, [(1, Ok(()))], "answered before it stops");
            *kept.lock().unwrap() = result.ok();
        };
        let World { io, core, .. } = &mut bench.world;
        bench.guests.stop(io, core, (0, true), Box::new(stopped));
        for _ in 0..TURNS_MAX {
            bench.flush();
            if base.lock().unwrap().is_some() {
                break;
            }
            bench.go_on();
            bench.work();
        }
        assert_eq!(*base.lock().unwrap(), Some(7));
        assert_eq!(bench.world.read(LOWER.0, 0, 64 << 10).unwrap(), bytes);
    }
}

/// Limits of the volume, full buckets.
fn limit(bench: &mut Bench, limits: Limits) {
    let plan = LimitPlan { volumes: vec![(LOWER, ClassId(1), limits)], ..<_>::default() };
    bench.gate.set_limits(&plan);
}

/// The queue's guest kicks.
fn kick(bench: &mut Bench) {
    bench.guests.on_event(0);
}

/// Time goes on, and the queue is released where it may start; the others that are.
fn pass_time(bench: &mut Bench, now: Nanos) -> Vec<u64> {
    bench.gate.set_now(now);
    let mut others = bench.gate.take_released();
    others.retain(|asker| {
        let is_guest = Guests::is_asker(Asker(*asker));
        if is_guest {
            bench.guests.on_released(Asker(*asker));
        }
        !is_guest
    });
    others
}

/// Goal: a queue waits for its volume's limits once, however often its guest kicks. Method: reads
/// behind a spent burst and a hundred kicks, then time for one; the gate's own count of waiters.
#[test]
fn kicks_ask_for_nothing_twice() {
    let requests = (0..10).map(|n| read(n, n * 4096, 4096)).collect();
    let mut bench = Bench::new(11, requests, Rank::FIRST);
    let rate = Rate::per_second(1, 1);
    limit(&mut bench, Limits { requests: Some(rate), bytes: None });
    for second in 0..4 {
        for _ in 0..100 {
            kick(&mut bench);
            bench.go_on();
            bench.work();
        }
        let waits = bench.gate.waits(LOWER);
        assert_eq!((waits.waiting, waits.calls), (1, second + 1));
        assert_eq!(bench.answers.lock().unwrap().ended.len() as u64, second + 1);
        pass_time(&mut bench, Nanos::from_secs(second + 1));
    }
}

/// Goal: what a guest is let pass it has paid for, call by call. Method: a limit of bytes in debt,
/// a short read that waits and a hundred kicks, then long reads behind it for a while: no more
/// passes than the burst and what the time has earned.
#[test]
fn a_release_pays_for_its_own_call() {
    const LONG: u64 = 64 << 10;
    let mut requests = vec![read(0, 0, 2 * LONG), read(1, 0, 512)];
    requests.extend((2..100).map(|n| read(n, 0, LONG)));
    let mut bench = Bench::new(12, requests, Rank::FIRST);
    bench.best = bench.world.core.rank_of(LOWER);
    let rate = Rate::per_second(LONG, 2 * LONG);
    limit(&mut bench, Limits { requests: None, bytes: Some(rate) });
    for step in 0..40 {
        let now = Nanos::from_millis(step * 100);
        for _ in 0..100 {
            pass_time(&mut bench, now);
            kick(&mut bench);
            bench.go_on();
            bench.work();
        }
        let passed: u64 = {
            let answers = bench.answers.lock().unwrap();
            let of = |cookie| match cookie {
                0 => 2 * LONG,
                1 => 512,
                _ => LONG,
            };
            answers.ended.iter().map(|(cookie, _)| of(*cookie)).sum()
        };
        let most = 2 * LONG + LONG * (now.0 + 50_000_000) / 1_000_000_000;
        assert!(passed <= most, "{passed} bytes of {most} after {now}");
    }
}

/// Goal: a busy guest and a client get their parts of a limit. Method: a queue whose guest kicks
/// all the time beside an asker that waits with one call at a time, as a connection does; counts.
#[test]
fn a_guest_and_a_client_share_a_limit() {
    const CLIENT: u32 = 5;
    let requests = (0..1000).map(|n| read(n, n % 40 * 4096, 4096)).collect();
    let mut bench = Bench::new(13, requests, Rank::FIRST);
    limit(&mut bench, Limits { requests: Some(Rate::per_second(100, 1)), bytes: None });
    let (one, _) = read(0, 0, 4096);
    let (mut client, mut is_held) = (0u64, false);
    for step in 0..10_000 {
        for asker in pass_time(&mut bench, Nanos::from_millis(step)) {
            assert_eq!((asker, is_held), (u64::from(CLIENT), true));
            (client, is_held) = (client + 1, false);
        }
        kick(&mut bench);
        bench.go_on();
        bench.work();
        if !is_held {
            match bench.gate.may_start(LOWER, CLIENT, &one) {
                true => client += 1,
                false => is_held = true,
            }
        }
        assert!(bench.gate.waits(LOWER).waiting <= 2);
    }
    let guest = bench.answers.lock().unwrap().ended.len() as u64;
    assert!(guest.abs_diff(client) <= 20, "{guest} of the guest, {client} of the client");
    assert!((990..=1010).contains(&(guest + client)), "{guest} and {client}");
}

/// Goal: clients of another shard have each a part of a limit as those of this shard have. Method:
/// a link whose near end has three clients, eight calls deep, beside an asker of this shard;
/// counts.
#[test]
fn clients_of_a_link_have_each_their_part() {
    const CLIENT: u32 = 5;
    let mut bench = Bench::new(16, Vec::new(), Rank::FIRST);
    limit(&mut bench, Limits { requests: Some(Rate::per_second(100, 1)), bytes: None });
    let (near, far) = link();
    let rank = bench.world.core.rank_of(LOWER);
    bench.guests.start_link(Waker::flag_only(), (LOWER, rank), (far, true));
    let branches = [(); 3].map(|()| near.branch().expect("its far end is there"));
    let (one, _) = read(0, 0, 4096);
    let ask = |branch: &NearEnd| {
        let answer = Some((Buffer::zeroed(4096), 0));
        branch.send(Asked { call: one, bytes: Vec::new(), answer });
    };
    branches.iter().for_each(|branch| (0..8).for_each(|_| ask(branch)));
    let (mut counts, mut client, mut is_held) = ([0u64; 3], 0u64, false);
    for step in 0..10_000 {
        for asker in pass_time(&mut bench, Nanos::from_millis(step)) {
            assert_eq!((asker, is_held), (u64::from(CLIENT), true));
            (client, is_held) = (client + 1, false);
        }
        bench.guests.look(&mut bench.world.io);
        bench.guests.start_branches(Waker::flag_only);
        bench.go_on();
        bench.work();
        bench.flush();
        for (branch, count) in branches.iter().zip(&mut counts) {
            let mut answers = VecDeque::new();
            assert!(!branch.take(&mut answers), "its far end is there");
            *count += answers.len() as u64;
            answers.iter().for_each(|_| ask(branch));
        }
        if !is_held {
            match bench.gate.may_start(LOWER, CLIENT, &one) {
                true => client += 1,
                false => is_held = true,
            }
        }
        assert!(bench.gate.waits(LOWER).waiting <= 4);
    }
    let all = [counts.to_vec(), vec![client]].concat();
    assert!(all.iter().all(|count| (240..=260).contains(count)), "{all:?}");
}

/// Goal: a queue that is stopped is answered what was taken whatever its limits say, and that is
/// charged. Method: stop it while its second read waits; the next one waits for the sum.
#[test]
fn what_a_stop_lets_pass_is_charged() {
    const CLIENT: u32 = 5;
    let mut bench = Bench::new(14, vec![read(1, 0, 4096), read(2, 0, 4096)], Rank::FIRST);
    limit(&mut bench, Limits { requests: Some(Rate::per_second(1, 1)), bytes: None });
    bench.go_on();
    assert_eq!(bench.gate.waits(LOWER).waiting, 1);
    let World { io, core, .. } = &mut bench.world;
    bench.guests.stop(io, core, (0, true), Box::new(drop));
    bench.run();
    bench.flush();
    assert_eq!(bench.answers.lock().unwrap().ended, [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(bench.gate.waits(LOWER).waiting, 0);
    let (one, _) = read(0, 0, 4096);
    assert!(!bench.gate.may_start(LOWER, CLIENT, &one));
    assert!(pass_time(&mut bench, Nanos::from_millis(1900)).is_empty());
    assert_eq!(pass_time(&mut bench, Nanos::from_secs(2)), [u64::from(CLIENT)]);
}

/// Goal: a write that waits for its volume's limits is refused once the volume is read-only, also
/// where its queue stops first, and waits for nothing more. Method: a write behind a spent burst;
/// the gate is told; the queue stops, or time passes.
#[test]
fn a_held_write_is_refused_once_its_volume_is_read_only() {
    for stops in [true, false] {
        let requests = vec![read(1, 0, 4096), write(2, 0, &[3; 4096])];
        let mut bench = Bench::new(17, requests, Rank::FIRST);
        limit(&mut bench, Limits { requests: Some(Rate::per_second(1, 1)), bytes: None });
        bench.go_on();
        assert_eq!(bench.gate.waits(LOWER).waiting, 1);
        bench.gate.set_read_only(LOWER, true);
        if stops {
            let World { io, core, .. } = &mut bench.world;
            bench.guests.stop(io, core, (0, true), Box::new(drop));
        } else {
            pass_time(&mut bench, Nanos::from_secs(1));
        }
        bench.run();
        bench.flush();
        let mut ended = std::mem::take(&mut bench.answers.lock().unwrap().ended);
        ended.sort_unstable_by_key(|(cookie, _)| *cookie);
        assert_eq!(ended, [(1, Ok(())), (2, Err(ErrorKind::Denied))]);
        assert_eq!(bench.gate.waits(LOWER).waiting, 0);
        assert!(pass_time(&mut bench, Nanos::from_secs(9)).is_empty());
        assert_eq!(bench.world.read(LOWER.0, 0, 4096).unwrap(), [0; 4096]);
    }
}

/// Goal: a queue that its guest breaks while a request waits for the limits waits for nothing.
/// Method: break it behind the burst; the gate's count after the turn, and a turn of time.
#[test]
fn a_broken_queue_waits_for_nothing() {
    let mut bench = Bench::new(15, vec![read(1, 0, 4096), read(2, 0, 4096)], Rank::FIRST);
    limit(&mut bench, Limits { requests: Some(Rate::per_second(1, 1)), bytes: None });
    bench.go_on();
    assert_eq!(bench.gate.waits(LOWER).waiting, 1);
    bench.guests.note_broken(&mut bench.world.io, 0, "a test breaks it");
    bench.flush();
    assert_eq!(bench.gate.waits(LOWER).waiting, 0);
    assert!(pass_time(&mut bench, Nanos::from_secs(9)).is_empty());
}

/// Stops a queue whose monitor has left; its ring's base comes there.
fn abandon(bench: &mut Bench) -> Arc<Mutex<Option<u16>>> {
    let monitor = MonitorId(3);
    bench.guests.places[0].as_mut().unwrap().monitor = Some(monitor);
    bench.guests.abandon(MonitorId(2));
    assert!(!bench.guests.places[0].as_ref().unwrap().may_be_abandoned, "it is another one's");
    bench.guests.abandon(monitor);
    let base = Arc::<Mutex<Option<u16>>>::default();
    let kept = base.clone();
    let stopped = move |result: Result<u16, _>| *kept.lock().unwrap() = result.ok();
    let World { io, core, .. } = &mut bench.world;
    bench.guests.stop(io, core, (0, true), Box::new(stopped));
    base
}

/// Goal: the ring of a guest that is gone is given back as soon as what was taken is in the core,
/// and not touched again; a write ends whole from the node's copy. Method: a write in pieces and a
/// read behind it, stopped in the middle of the write; answers are counted when all has ended.
#[test]
fn an_abandoned_write_ends_whole_and_unheard() {
    let bytes = vec![9; 64 << 10];
    let mut bench = Bench::new(8, vec![write(1, 0, &bytes), read(2, 0, 4096)], Rank::FIRST);
    assert_eq!(bench.go_on(), QUANTUM);
    let base = abandon(&mut bench);
    for _ in 0..TURNS_MAX {
        bench.flush();
        if base.lock().unwrap().is_some() {
            break;
        }
        bench.go_on();
    }
    assert_eq!(*base.lock().unwrap(), Some(7), "no device has ended anything");
    let guest = bench.guests.places[0].as_ref().expect("its write is in flight");
    assert!(guest.is_abandoned && guest.inflight == 1);
    assert_eq!(bench.guests.submitted_bytes().count(), 0, "it holds nobody back");
    bench.run();
    bench.flush();
    assert!(bench.guests.places[0].is_none());
    let answers = bench.answers.lock().unwrap();
    assert!(answers.ended.is_empty() && answers.bytes.is_empty());
    assert_eq!(bench.world.read(LOWER.0, 0, 64 << 10).unwrap(), bytes);
}

/// Goal: a request of a guest that is gone which has not begun never does. Method: a write that
/// waits for the write intent of a clean volume, whose intent is then recorded.
#[test]
fn what_has_not_begun_is_dropped() {
    let mut bench = Bench::new(9, vec![write(1, 0, &[3; 4096])], Rank::FIRST);
    bench.gate.intents().set_clean(LOWER);
    assert_eq!(bench.go_on(), 0);
    let base = abandon(&mut bench);
    bench.flush();
    assert_eq!(*base.lock().unwrap(), Some(7));
    assert!(bench.guests.places[0].is_none());
    bench.gate.record_intent(LOWER);
    assert!(bench.gate.take_released().is_empty(), "it waits no more");
    assert!(bench.answers.lock().unwrap().ended.is_empty());
    assert_eq!(bench.world.read(LOWER.0, 0, 4096).unwrap(), [0; 4096]);
}

/// Goal: what a volume has abandoned is bounded: behind the bound a stop waits for its answers.
/// Method: a queue with as many requests abandoned, and one with as many bytes, each before a write
/// of the same volume, and of another one.
#[test]
fn behind_the_bound_a_stop_waits() {
    let (requests, bytes) = (abandoned::ABANDONED_REQUESTS_MAX, abandoned::ABANDONED_BYTES_MAX);
    let other = VolumeId(1);
    for (volume, requests, bytes, waits) in [
        (LOWER, requests, 0, true),
        (LOWER, 1, bytes, true),
        (LOWER, requests - 1, bytes - 1, false),
        (other, requests, bytes, false),
    ] {
        let mut bench = Bench::new(10, vec![write(1, 0, &[3; 4096])], Rank::FIRST);
        let event = (EventId(0), CallEvent::default());
        let ring = Script { requests: VecDeque::new(), answers: Arc::default() };
        let full = Guest::new((volume, Rank::FIRST), "full".into(), Box::new(ring), event);
        let (inflight, inflight_bytes) = (requests as u32, bytes);
        let full = Guest { inflight, inflight_bytes, has_more: false, ..full };
        bench.guests.add(Guest { is_closed: true, is_abandoned: true, ..full });
        assert_eq!(bench.go_on(), 4096);
        let base = abandon(&mut bench);
        bench.flush();
        assert_eq!(base.lock().unwrap().is_none(), waits);
        while bench.guests.places[0].is_some() {
            bench.work();
            bench.flush();
        }
        assert_eq!(*base.lock().unwrap(), Some(7));
        assert_eq!(bench.answers.lock().unwrap().ended.len(), usize::from(waits));
    }
}

/// Goal: what a stop of the node ends is not answered, what it does not end is, and either leaves
/// the queue quiet; the end of one queue alone answers all. Method: ends of a write that was taken,
/// by kind, as the core reports them.
#[test]
fn what_a_stop_ends_is_not_answered() {
    for (is_stop, result, expected) in [
        (true, Err(ErrorKind::Closed), vec![]),
        (true, Err(ErrorKind::Retry), vec![(1, Err(ErrorKind::Retry))]),
        (true, Ok(()), vec![(1, Ok(()))]),
        (false, Err(ErrorKind::Closed), vec![(1, Err(ErrorKind::Closed))]),
    ] {
        let (call, bytes) = write(1, 0, &[3; 4096]);
        let mut bench = Bench::new(5, vec![(call, bytes)], Rank::FIRST);
        assert_eq!(bench.go_on(), 4096);
        let Bench { world: World { io, core, .. }, guests, .. } = &mut bench;
        guests.leave(io, (!is_stop).then_some(LOWER));
        let asker = Asker(u64::from(guests.places[0].as_ref().unwrap().asker()));
        let result = result.map(|()| Answer::Nothing);
        guests.reply(io, core, Finished { asker, call, result });
        assert!(guests.is_quiet());
        assert_eq!(bench.answers.lock().unwrap().ended, expected);
    }
}

/// Goal: a stop of the node does not wait for a request that waits for an intent which may never
/// be recorded: it has not begun, is not answered, and never begins. Method: a write, a read and a
/// flush of a revived volume, each taken before the stop.
#[test]
fn a_stop_drops_what_waits_for_an_intent() {
    let (flush, _) = read(1, 0, 0);
    let flush = Call { operation: Operation::Flush, ..flush };
    for request in [write(1, 0, &[3; 4096]), read(1, 0, 4096), (flush, Vec::new())] {
        let mut bench = Bench::new(18, vec![request], Rank::FIRST);
        bench.gate.intents().hold_revived(LOWER);
        assert_eq!(bench.go_on(), 0);
        assert!(!bench.guests.is_quiet(), "it was taken");
        bench.guests.leave(&mut bench.world.io, None);
        for _ in 0..5 {
            bench.go_on();
            bench.flush();
        }
        assert!(bench.guests.is_quiet());
        bench.gate.record_intent(LOWER);
        assert!(bench.gate.take_released().is_empty(), "it waits no more");
        assert!(bench.answers.lock().unwrap().ended.is_empty());
    }
}

/// Goal: all queues of a volume hold no more together than its bound and one request, in flight or
/// taken and waiting for limits, give back what long writes took, and end all their requests.
/// Method: queues with long writes and reads, with a limit and without; bytes counted turn by turn.
#[test]
fn the_queues_of_a_volume_share_a_bound() {
    const LONG: u64 = 96 << 10;
    const QUEUES: u64 = 12;
    for is_limited in [false, true] {
        let mut bench = Bench::new(19, Vec::new(), Rank::FIRST);
        bench.best = bench.world.core.rank_of(LOWER);
        bench.guests.bytes_max = 2 * LONG;
        if is_limited {
            limit(&mut bench, Limits { requests: Some(Rate::per_second(1, 1)), bytes: None });
        }
        for queue in 0..QUEUES {
            let requests = (0..4).map(|n| match n % 2 {
                0 => write(queue * 4 + n, n * 4096, &[9; LONG as usize]),
                _ => read(queue * 4 + n, n * 4096, LONG),
            });
            let (requests, answers) = (requests.collect(), bench.answers.clone());
            let ring = Box::new(Script { requests, answers });
            let event = (EventId(0), CallEvent::default());
            let guest = Guest::new((LOWER, bench.best), "test".into(), ring, event);
            bench.guests.add(Guest { is_closed: true, ..guest });
        }
        for step in 0..TURNS_MAX {
            bench.go_on();
            let held = bench.guests.places.iter().flatten().map(|guest| {
                let taken = guest.taken.map_or(0, |_| guest.payload.capacity() as u64);
                guest.inflight_bytes + taken
            });
            let held: u64 = held.sum();
            assert!(held <= 3 * LONG, "{held} bytes");
            bench.work();
            if is_limited {
                pass_time(&mut bench, Nanos::from_millis(u64::from(step) * 100));
            }
            if !bench.guests.has_more() && bench.guests.is_quiet() {
                break;
            }
        }
        assert_eq!(bench.answers.lock().unwrap().ended.len() as u64, 4 * QUEUES);
        for guest in bench.guests.places.iter().flatten() {
            assert!(guest.payload.capacity() <= bound::PAYLOAD_BYTES_KEPT);
        }
    }
}
