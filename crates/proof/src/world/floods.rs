//! Floods of commands: a shard serves its clients whatever the control plane asks.
//!
//! How: each answer to a command sends the next one at once, as readers do that ask in a loop, so
//! that there is always one more to take. A read of a client is to end between them.
//! Not for: worlds with faults.

use super::World;
use crate::plan::{BLOCK, Character, Life};
use crate::timeline::Timeline;
use layby_engine::control::{Answer, Command};
use layby_engine::io::Io as _;
use layby_frontend::nbd::NbdSession;
use layby_types::{Call, CallFlags, Nanos, Operation};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// Readers that ask in a loop.
const READERS: u64 = 80;
/// Commands after which they stop: a shard that takes all there are would take so many in a turn.
const COMMANDS_MAX: u64 = 200_000;
/// Commands that a turn carries out at most, and those of them that report.
const PER_TURN: u64 = 64;
const REPORTS_PER_TURN: u64 = 1;

/// Turns in which a shard with nothing to do sleeps.
const IDLE_TURNS: u32 = 400;

type Make = fn(Box<dyn FnOnce() + Send>) -> Command<NbdSession>;

fn told<T>(then: Box<dyn FnOnce() + Send>) -> Answer<T> {
    Box::new(move |_| then())
}

/// A command that counts its answer and sends the next one.
fn again(make: Make, to: &Sender<Command<NbdSession>>, count: &Arc<AtomicU64>) {
    let (next, counted) = (to.clone(), Arc::clone(count));
    let then = move || {
        if counted.fetch_add(1, Ordering::Relaxed) < COMMANDS_MAX {
            again(make, &next, &counted);
        }
    };
    // A shard that has ended takes none.
    let _ = to.send(make(Box::new(then)));
}

/// How many turns a read takes beside the flood, and how many commands were carried out meanwhile.
fn read_beside(seed: u64, make: Make) -> (u64, u64) {
    let shape = Life::draw_plain(seed).shape;
    let life = Life { seed, shape, character: Character::Honest, acts: Vec::new() };
    let mut world = World::new(&life, Timeline::default());
    world.start(true).expect("a new node starts");
    world.connect(0, true).expect("its volume is served");
    let count = Arc::new(AtomicU64::new(0));
    (0..READERS).for_each(|_| again(make, &world.commands, &count));
    let flags = CallFlags::default();
    world.ask(0, Call { cookie: 0, operation: Operation::Read, offset: 0, length: BLOCK, flags });
    for turns in 1..=u64::from(super::TURNS_MAX) {
        world.turn().expect("nothing fails");
        if world.tally.requests == 1 {
            return (turns, count.load(Ordering::Relaxed));
        }
    }
    panic!("the read never ends; SEED={seed}");
}

/// Goal: readers of counters that ask in a loop keep no client from its answer: a turn carries out
/// one report, and a bounded number of other commands. Method: floods of each that never end by
/// themselves, a read beside them, and the commands counted that were carried out until its end.
#[test]
fn a_flood_of_commands_holds_up_no_read() {
    let reports: [Make; 2] =
        [|then| Command::Snapshot(told(then)), |then| Command::Clients(told(then))];
    let other: Make = |then| Command::SetFree(Vec::new(), told(then));
    let kinds = reports.map(|make| (make, REPORTS_PER_TURN)).into_iter().chain([(other, PER_TURN)]);
    for (make, per_turn) in kinds {
        for seed in 0..40 {
            let (turns, commands) = read_beside(seed, make);
            assert!(commands > 0, "there was no flood; SEED={seed}");
            assert!(commands <= turns * per_turn, "{commands} in {turns} turns; SEED={seed}");
        }
    }
}

/// Goal: a shard does not sleep while commands are queued that a turn did not take. Method: more
/// than a turn's bound, sent before the shard would sleep until its write-back is due, and none
/// later; afterwards it does sleep.
#[test]
fn a_shard_does_not_sleep_on_commands() {
    let mut life = Life { acts: Vec::new(), character: Character::Honest, ..Life::draw_plain(3) };
    life.shape.spec.writeback.idle_timeout = Nanos::from_secs(5);
    let mut world = World::new(&life, Timeline::default());
    world.start(true).expect("a new node starts");
    world.connect(0, true).expect("its volume is served");
    let flags = CallFlags::default();
    world.ask(0, Call { cookie: 0, operation: Operation::Write, offset: 0, length: BLOCK, flags });
    while world.tally.requests == 0 {
        world.turn().expect("nothing fails");
    }
    let begun = world.host.now();
    let count = Arc::new(AtomicU64::new(0));
    for number in 0..3 * PER_TURN {
        let count = Arc::clone(&count);
        let then = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        world.command(match number % 8 {
            0 => Command::Snapshot(told(then)),
            _ => Command::SetFree(Vec::new(), told(then)),
        });
    }
    world.turn().expect("nothing fails");
    while count.load(Ordering::Relaxed) < 3 * PER_TURN {
        let took = world.host.now().since(begun);
        assert!(took < Nanos::from_secs(1), "commands are left, and it slept: {took:?}");
        world.turn().expect("nothing fails");
    }
    world.turns(IDLE_TURNS).expect("nothing fails");
    let slept = world.host.now().since(begun);
    assert!(slept > Nanos::from_secs(1), "it had nothing to sleep for: {slept:?}");
}
