//! Homes that end calls elsewhere: late, in any order, with errors, never; and power cuts.

use super::far::*;
use super::*;
use crate::io::{HostIo, IoChoice};
use layby_cache::discards::{DiscardDelay, DiscardLimits, DiscardMode};

fn data(answer: Result<Answer, ErrorKind>) -> Vec<u8> {
    match answer {
        Ok(Answer::Data(data)) => data.to_vec(),
        other => panic!("a read gives data, not {other:?}"),
    }
}

/// Goal: a remote read that never ends delays nobody but those who want its blocks. Method: one
/// hangs; the other volume writes, reads, flushes, drains; blocks of the same volume are read; a
/// snapshot and a checkpoint come through; then the read ends.
#[test]
fn a_hanging_read_delays_its_own_blocks_only() {
    let mut world = FarWorld::roomy(1);
    world.home.state().bytes.fill(9);
    let hangs = world.ask(FAR, call(Operation::Read, 0, BLOCK), 0);
    let behind = world.ask(FAR, call(Operation::Read, 512, 512), 0);
    for (operation, length) in
        [(Operation::Write, BLOCK), (Operation::Flush, 0), (Operation::Trim, BLOCK)]
    {
        let asked = world.ask(NEAR, call(operation, 0, length), 5);
        world.wait(asked).expect("the file's volume is served");
    }
    let flush = world.ask(FAR, call(Operation::Flush, 0, 0), 0);
    world.wait(flush).expect("nothing of this volume was written");
    world.core.drain(&mut world.io, 1, Some(VolumeId(NEAR)));
    world.turns(200);
    assert_eq!(world.core.take_drained(), [(1, Ok(()))]);
    let other = world.ask(FAR, call(Operation::Read, 4 * BLOCK, BLOCK), 0);
    world.turns(20);
    assert_eq!(world.home.state().asked.len(), 2, "both reads are with the home");
    world.home.end(1, Ok(()));
    assert_eq!(data(world.wait(other)), [9; BLOCK as usize]);
    assert_eq!(world.core.snapshot().volumes[1].queue_depth, 2);
    world.core.end_with_checkpoint(&mut world.io);
    assert!(!world.finished.contains_key(&hangs));
    world.home.end(0, Ok(()));
    assert_eq!(data(world.wait(hangs)), [9; BLOCK as usize]);
    assert_eq!(data(world.wait(behind)), [9; 512]);
}

/// Goal: a remote home that fails fails those who asked, and nothing else; a failed sync is not
/// trusted again. Method: errors for a read and a sync, another sync, and the other volume.
#[test]
fn errors_reach_those_who_asked() {
    let mut world = FarWorld::roomy(2);
    let read = world.ask(FAR, call(Operation::Read, 0, BLOCK), 0);
    world.home.end(0, Err(ErrorKind::Retry));
    assert_eq!(world.wait(read).err(), Some(ErrorKind::Retry));
    world.run(FAR, call(Operation::Read, 0, BLOCK), 0).expect("it was a passing error");
    world.run(FAR, call(Operation::Write, 0, BLOCK), 1).expect("a write");
    for (end, expected) in [(Err(ErrorKind::Full), ErrorKind::Full), (Ok(()), ErrorKind::Closed)] {
        let flush = world.ask(FAR, call(Operation::Flush, 0, 0), 0);
        world.turns(5);
        world.home.end(0, end);
        assert_eq!(world.wait(flush).err(), Some(expected));
    }
    world.run(NEAR, call(Operation::Write, 0, BLOCK), 1).expect("a write elsewhere");
    world.run(NEAR, call(Operation::Flush, 0, 0), 1).expect("a flush elsewhere");
}

/// Goal: a home that is written through hears of discards in their order among the writes, whatever
/// delay its volume asks for: its store holds a prefix of what was acknowledged. Method: blocks
/// read and so kept, a trim with a delay of an hour, answered when the home has; nothing waits.
#[test]
fn discards_go_through_as_writes_do() {
    let mut world = FarWorld::roomy(4);
    let delay = DiscardDelay::Fixed(Nanos::from_secs(3600));
    let limits = DiscardLimits { mode: DiscardMode::Delayed, delay, ..DiscardLimits::DEFAULT };
    world.core.set_discard(VolumeId(FAR), limits);
    // Copies in the levels, of which the log is to be told.
    let read = world.ask(FAR, call(Operation::Read, 0, 8 * BLOCK), 0);
    while !world.finished.contains_key(&read) {
        world.turns(1);
        let asked = world.home.state().asked.len();
        (0..asked).for_each(|_| world.home.end(0, Ok(())));
    }
    let trim = world.ask(FAR, call(Operation::Trim, 0, 4 * BLOCK), 0);
    world.turns(200);
    assert!(!world.finished.contains_key(&trim), "nothing is done before the home says so");
    let is_asked = matches!(
        world.home.state().asked[..],
        [(_, BackingOperation::Zero { offset: 0, keep_allocated: false, .. })]
    );
    assert!(is_asked, "the home hears of it");
    world.home.end(0, Ok(()));
    while !world.finished.contains_key(&trim) {
        world.turns(1);
        let asked = world.home.state().asked.len();
        (0..asked).for_each(|_| world.home.end(0, Ok(())));
    }
    world.wait(trim).expect("the home took it");
    let far = world.core.snapshot().volumes.into_iter().find(|own| own.volume == VolumeId(FAR));
    assert_eq!(far.expect("it is served").discards.pending.ranges, 0, "nothing waits");
}

/// Goal: what was written is read from memory, a flush is the home's sync, and durability is asked
/// of the home. Method: what the home is asked, request by request.
#[test]
fn writes_go_through_and_stay_in_memory() {
    let mut world = FarWorld::roomy(4);
    let write = world.ask(FAR, call(Operation::Write, 0, 2 * BLOCK), 7);
    world.turns(20);
    assert!(!world.finished.contains_key(&write), "nothing is done before the home says so");
    world.home.end(0, Ok(()));
    world.wait(write).expect("the home took it");
    let read = world.ask(FAR, call(Operation::Read, 512, BLOCK), 0);
    assert_eq!(data(world.wait(read)), [7; BLOCK as usize]);
    for level in [1, 2] {
        let held = world.core.cache().held_by(VolumeId(FAR), LevelIndex(level));
        assert_eq!(held, (0, 0, 0), "level {level}");
    }
    let flush = world.ask(FAR, call(Operation::Flush, 0, 0), 0);
    world.turns(20);
    assert!(matches!(world.home.state().asked[..], [(_, BackingOperation::Sync)]));
    world.home.end(0, Ok(()));
    world.wait(flush).expect("the home is synced");
    let flush = world.ask(FAR, call(Operation::Flush, 0, 0), 0);
    world.wait(flush).expect("there was nothing new");
    let mut fua = call(Operation::Write, 0, BLOCK);
    fua.flags.fua = true;
    let write = world.ask(FAR, fua, 8);
    world.turns(5);
    let asked = matches!(
        world.home.state().asked[..],
        [(_, BackingOperation::Write { durable: true, .. })]
    );
    assert!(asked, "durability is the home's");
    world.home.end(0, Ok(()));
    world.wait(write).expect("the home took it");
    let mut zero = call(Operation::WriteZeroes, 0, 4 * BLOCK);
    zero.flags.no_hole = true;
    let zero = world.ask(FAR, zero, 0);
    world.turns(20);
    let asked = matches!(
        world.home.state().asked[..],
        [(_, BackingOperation::Zero { offset: 0, keep_allocated: true, .. })]
    );
    assert!(asked, "room is kept by the home");
    world.home.end(0, Ok(()));
    world.wait(zero).expect("the home zeroed it");
    let read = world.run(FAR, call(Operation::Read, 0, 2 * BLOCK), 0);
    assert_eq!(data(read), [0; 2 * BLOCK as usize]);
}

/// Goal: requests that waited for a remote home say nothing of the class's latency, hits do.
/// Method: a slow miss, a slow failure, a slow partial write, a hit.
#[test]
fn remote_waits_miss_no_objective() {
    let mut shape = Shape::roomy();
    shape.spec.read_ahead.window_bytes_max = 0;
    shape.spec.classes[1].latency_objective = Some(Nanos::from_micros(1));
    shape.spec.classes[1].levels = 0b101;
    let mut world = FarWorld::new(5, shape, 1);
    let is_counted = |world: &FarWorld| world.core.objectives.has_counted(1);
    for (call, end) in [
        (call(Operation::Read, 0, BLOCK), Ok(())),
        (call(Operation::Read, 5 * BLOCK, BLOCK), Err(ErrorKind::Retry)),
    ] {
        let asked = world.ask(FAR, call, 1);
        world.turns(20);
        world.home.end(0, end);
        world.turns(20);
        assert!(world.finished.remove(&asked).is_some());
        assert!(!is_counted(&world));
    }
    world.run(FAR, call(Operation::Write, 9 * BLOCK + 512, 512), 1).expect("a part of a block");
    world.turns(2);
    assert!(!is_counted(&world));
    let hit = world.ask(FAR, call(Operation::Read, 0, BLOCK), 1);
    world.wait(hit).expect("memory has it");
    world.turns(2);
    assert!(is_counted(&world));
}

/// Goal: calls that wait for what is far away end when the node asks for it, and a stop does not
/// wait for a remote sync before its checkpoint. Method: reads that hang, then the word; a stop
/// whose sync hangs, then a start that finds a clean log.
#[test]
fn waiting_ends_on_request() {
    let mut world = FarWorld::roomy(3);
    let asked = [0, 3, 6].map(|at| world.ask(FAR, call(Operation::Read, at * BLOCK, BLOCK), 0));
    world.turns(5);
    world.core.stop_waiting(Some(VolumeId(NEAR)));
    assert!(!world.home.state().is_hurried);
    world.core.stop_waiting(None);
    assert!(world.home.state().is_hurried);
    for number in asked {
        assert_eq!(world.wait(number).err(), Some(ErrorKind::Closed));
    }
    let unclean = world.core.shut_down(&mut world.io).expect_err("its sync never ends");
    assert!(unclean.causes.iter().all(|cause| cause.starts_with("backing store")), "{unclean:?}");
    assert_eq!(world.core.checkpoints.clean, 1, "the checkpoint waits for nobody far");
    assert!(matches!(world.home.state().asked[..], [(_, BackingOperation::Sync)]));
}

/// Goal: a removed volume lets go of its home. Method: one read and gone.
#[test]
fn a_removal_drops_the_home() {
    let mut world = FarWorld::roomy(6);
    world.run(FAR, call(Operation::Read, 0, BLOCK), 0).expect("a read");
    world.turns(50);
    assert_eq!(world.core.remove_volume(&mut world.io, VolumeId(FAR), OnDirty::Refuse), Ok(()));
    world.turns(5);
    world.run(NEAR, call(Operation::Write, 0, BLOCK), 1).expect("a write elsewhere");
}

/// Goal: an end on another thread wakes a shard that sleeps in the kernel, with either way of I/O.
/// Method: a thread ends each call as it hears of it; nothing else would end the wait.
#[test]
fn ends_elsewhere_wake_the_shard() {
    for choice in [IoChoice::Auto, IoChoice::Pool] {
        let (mut io, waker, _) = HostIo::start(choice, 8 << 20).expect("some way of I/O");
        let mut home = FarHome::new(waker);
        let (calls, heard) = std::sync::mpsc::channel();
        home.calls = Some(calls);
        home.state().bytes.fill(3);
        let mut spec = spec();
        spec.levels.truncate(1);
        spec.classes.truncate(1);
        spec.classes[0].levels = 1;
        let plans = [LevelPlan::Memory { slots: 8 }];
        let place = HomePlace::Remote(home.boxed());
        let far =
            vec![HomePlan { spec: volume_spec(FAR, 0), place, device: None, protected: None }];
        let started = Core::start(&mut io, spec, &plans, IDENTITY, far, 1);
        let (mut core, _) = started.expect("a core of memory");
        home.calls = None;
        let thread = std::thread::spawn({
            let home = home.clone();
            move || heard.iter().for_each(|()| home.end(0, Ok(())))
        });
        for block in 0..200 {
            let read = call(Operation::Read, block % BLOCKS * BLOCK, BLOCK);
            core.submit(&mut io, Asker(block), VolumeId(FAR), read, &[], None);
            while core.take_finished().is_none() {
                core.turn(&mut io);
            }
        }
        drop(core);
        thread.join().expect("the home's thread ends with the home");
    }
}

/// The versions of a cell since the last power cut, oldest first.
#[derive(Clone)]
struct Versions {
    values: Vec<u8>,
    durable: usize,
    latest: usize,
}

/// A request in flight: where it goes, and the versions that its end vouches for.
struct Flight {
    call: Call,
    vouched: Vec<usize>,
}

struct History {
    world: FarWorld,
    cells: Vec<Versions>,
    flights: HashMap<u64, Flight>,
    is_durable: bool,
    value: u8,
    seed: u64,
}

fn cells_of(call: &Call) -> std::ops::Range<usize> {
    (call.offset / CELL) as usize..((call.offset + call.length) / CELL) as usize
}

fn changes(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes)
}

impl History {
    fn ask(&mut self, rng: &mut Rng) {
        let first = rng.below(CELLS as u64);
        let length = (1 + rng.below(32)).min(CELLS as u64 - first);
        let operation = match rng.below(12) {
            0..=3 => Operation::Read,
            4..=8 => Operation::Write,
            9 => [Operation::Trim, Operation::WriteZeroes][rng.below(2) as usize],
            _ => Operation::Flush,
        };
        let mut call = call(operation, first * CELL, length * CELL);
        if operation == Operation::Flush {
            (call.offset, call.length) = (0, 0);
        }
        call.flags.fua = changes(operation) && rng.chance(1, 6);
        let meets = |flight: &Flight| {
            let (a, b) = (cells_of(&flight.call), cells_of(&call));
            a.start < b.end && b.start < a.end
        };
        if self.flights.values().any(meets) {
            return;
        }
        let mut vouched = Vec::new();
        if changes(operation) {
            self.value = self.value % 250 + 1;
            let value = if operation == Operation::Write { self.value } else { 0 };
            for cell in &mut self.cells[cells_of(&call)] {
                cell.values.push(value);
                vouched.push(cell.values.len() - 1);
            }
        } else if operation == Operation::Flush {
            vouched = self.cells.iter().map(|cell| cell.latest).collect();
        }
        let number = self.world.ask(FAR, call, self.value);
        self.flights.insert(number, Flight { call, vouched });
    }

    fn end_one(&mut self, rng: &mut Rng) {
        let waiting = self.world.home.state().asked.len() as u64;
        if waiting == 0 {
            return;
        }
        let index = rng.below(waiting) as usize;
        let is_sync = matches!(self.world.home.state().asked[index].1, BackingOperation::Sync);
        if !rng.chance(1, 12) || (is_sync && !rng.chance(1, 8)) {
            return self.world.home.end(index, Ok(()));
        }
        self.world.home.end_with(index, !is_sync && rng.chance(1, 2), Err(ErrorKind::Retry));
    }

    fn collect(&mut self) {
        self.world.collect();
        for (number, result) in std::mem::take(&mut self.world.finished) {
            let Flight { call, vouched } = self.flights.remove(&number).expect("it was asked for");
            match result {
                // What failed may be seen or not; the next read says which.
                Err(_) => {}
                Ok(Answer::Data(bytes)) => self.check(&call, &bytes, false),
                Ok(_) if call.operation == Operation::Flush => {
                    for (cell, version) in self.cells.iter_mut().zip(vouched) {
                        cell.durable = cell.durable.max(version);
                    }
                }
                Ok(_) => {
                    for (cell, version) in self.cells[cells_of(&call)].iter_mut().zip(vouched) {
                        cell.latest = version;
                        if self.is_durable || call.flags.fua {
                            cell.durable = version;
                        }
                    }
                }
            }
        }
    }

    fn check(&mut self, call: &Call, bytes: &[u8], has_crashed: bool) {
        for (at, bytes) in cells_of(call).zip(bytes.chunks_exact(CELL as usize)) {
            let cell = &mut self.cells[at];
            let oldest = if has_crashed { cell.durable } else { cell.latest };
            let seen = cell.values[oldest..].iter().rposition(|value| *value == bytes[0]);
            assert!(
                seen.is_some() && bytes.iter().all(|byte| *byte == bytes[0]),
                "cell {at} reads {}, allowed {:?}, crashed: {has_crashed}; SEED={}",
                bytes[0],
                &cell.values[oldest..],
                self.seed
            );
            cell.latest = oldest + seen.expect("it was just looked for");
            if has_crashed {
                *cell = Versions { values: vec![bytes[0]], durable: 0, latest: 0 };
            }
        }
    }

    /// All of the volume, as the core shows it and as the home has it.
    fn look(&mut self, has_crashed: bool) {
        let all = call(Operation::Read, 0, LENGTH);
        let shown = data(self.world.run(FAR, all, 0));
        if has_crashed {
            let kept = self.world.home.state().bytes.clone();
            assert!(shown == kept, "no record outlives what the home kept; SEED={}", self.seed);
        }
        self.check(&all, &shown, has_crashed);
    }
}

/// Goal: over a home that ends calls late, in any order, with errors or never, and that keeps a
/// prefix of what it accepted, reads are right, what was vouched for survives, and after a power
/// cut the node shows exactly what the home kept. Method: random histories on tiny levels, with
/// power cuts of the node's disks at the same time, beside an array of versions.
#[test]
fn remote_histories_equal_an_array() {
    each_seed(300, |seed| {
        let mut rng = Rng::new(seed ^ 0xfa7);
        let mut shape = Shape::tiny(&mut rng);
        shape.persistent = false;
        shape.spec.classes.iter_mut().for_each(|class| class.keep_reads = rng.chance(3, 4));
        let class = rng.below(2) as u8;
        let is_durable = shape.spec.classes[usize::from(class)].durable_writes;
        let cell = Versions { values: vec![0], durable: 0, latest: 0 };
        let (flights, cells) = (HashMap::new(), vec![cell; CELLS]);
        let world = FarWorld::new(seed, shape, class);
        let mut history = History { world, cells, flights, is_durable, value: 0, seed };
        for _ in 0..4 {
            for _ in 0..150 {
                match rng.below(8) {
                    0..=2 => history.ask(&mut rng),
                    3..=4 => history.end_one(&mut rng),
                    5 if rng.chance(1, 4) => {
                        let first = rng.below(BLOCKS);
                        let end = (first + 1 + rng.below(8)).min(BLOCKS);
                        history.world.home.offer(first * BLOCK..end * BLOCK);
                    }
                    _ => history.world.core.turn(&mut history.world.io),
                }
                history.collect();
            }
            if rng.chance(1, 3) {
                while !history.flights.is_empty() {
                    history.world.home.end_all();
                    history.world.core.turn(&mut history.world.io);
                    history.collect();
                }
                history.look(false);
            }
            let modes = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
            history.world.crash(modes[rng.below(3) as usize], &mut rng, seed);
            history.flights.clear();
            history.look(true);
        }
    });
}

/// Goal: of a home that is somebody else's by now nothing is served, whatever levels hold, and no
/// call reaches it; others go on. Method: blocks read into levels, and cached; then every call.
#[test]
fn nothing_is_served_of_a_closed_home() {
    let mut world = FarWorld::roomy(7);
    world.run(FAR, call(Operation::Write, 0, BLOCK), 1).expect("a write");
    for _ in 0..2 {
        let read = world.run(FAR, call(Operation::Read, 0, BLOCK), 0);
        read.expect("it is served");
    }
    world.home.state().is_closed = true;
    let all = [Operation::Read, Operation::Write, Operation::Trim, Operation::BlockStatus];
    for operation in all.into_iter().chain([Operation::WriteZeroes]) {
        let asked = world.ask(FAR, call(operation, 0, BLOCK), 2);
        assert_eq!(world.wait(asked).err(), Some(ErrorKind::Closed), "{operation:?}");
    }
    let flush = world.ask(FAR, call(Operation::Flush, 0, 0), 0);
    assert_eq!(world.wait(flush).err(), Some(ErrorKind::Closed));
    assert!(world.home.state().asked.is_empty(), "nobody asks it anything");
    world.run(NEAR, call(Operation::Write, 0, BLOCK), 1).expect("a write elsewhere");
}

/// Goal: what a home has at hand is read while there is room, and a later read of it asks nobody; a
/// home that offers without end keeps nobody waiting. Method: an offer of eight blocks, their
/// reads; then a thousand offers in a turn, beside a read elsewhere.
#[test]
fn what_a_home_has_at_hand_is_read() {
    let mut shape = Shape::roomy();
    shape.spec.classes[1].levels = 0b101;
    let mut world = FarWorld::new(8, shape, 1);
    world.run(FAR, call(Operation::Write, 8 * BLOCK, 8 * BLOCK), 3).expect("a write");
    world.crash(CrashMode::KeepAll, &mut Rng::new(8), 8);
    world.home.offer(8 * BLOCK..16 * BLOCK);
    world.turns(5);
    assert_eq!(world.home.state().asked.len(), 1, "one read of all");
    world.home.end_all();
    world.turns(20);
    let read = world.ask(FAR, call(Operation::Read, 9 * BLOCK, 2 * BLOCK), 0);
    let read = world.wait(read);
    assert!(world.home.state().asked.is_empty());
    assert_eq!(data(read).len(), 2 * BLOCK as usize);
    for _ in 0..1000 {
        world.home.offer(8 * BLOCK..9 * BLOCK);
    }
    world.core.poll_homes(&mut world.io);
    assert!(world.home.state().at_hand.len() > 900, "a turn takes few");
    world.turns(100);
    assert!(world.home.state().at_hand.is_empty(), "and comes back for the others");
}

/// Time passes, ten times what devices have, while the core looks for what is stuck.
fn pass_ten_limits(world: &mut FarWorld) {
    let end = world.io.now() + Nanos::from_secs(300);
    while world.io.now() < end {
        let latest = world.io.now() + Nanos::from_secs(1);
        world.core.turn_by(&mut world.io, latest);
        world.core.look_for_stuck(&mut world.io);
    }
    world.turns(1);
}

/// Goal: a read that waits for an object store never meets the limit of devices: how long it waits
/// is its class's `answer_within`. Method: it hangs for ten limits while the core checks it.
#[test]
fn the_io_timeout_is_not_of_remote_homes() {
    let mut world = FarWorld::roomy(3);
    world.home.state().bytes.fill(9);
    let hangs = world.ask(FAR, call(Operation::Read, 0, BLOCK), 0);
    pass_ten_limits(&mut world);
    assert!(!world.finished.contains_key(&hangs), "it waits");
    assert_eq!(world.core.snapshot().stuck, []);
    world.home.end(0, Ok(()));
    assert_eq!(data(world.wait(hangs)), [9; BLOCK as usize]);
}

/// Goal: a level that is stuck ends no request that waits for an object store, a read or a write,
/// and ends what waits for the level. Method: both hang in the store beside a trim, whose record
/// the SSD level does not take, for ten limits; then the store answers, and the level.
#[test]
fn a_stuck_level_ends_no_request_of_a_store() {
    let mut world = FarWorld::roomy(3);
    world.home.state().bytes.fill(9);
    let ssd = world.io.attach_disk("ssd").expect("it has one");
    world.run(NEAR, call(Operation::Write, 0, BLOCK), 1).expect("a write");
    let read = world.ask(FAR, call(Operation::Read, 0, BLOCK), 0);
    let write = world.ask(FAR, call(Operation::Write, 4 * BLOCK, BLOCK), 7);
    world.turns(20);
    assert_eq!(world.home.state().asked.len(), 2, "both are with the store");
    world.io.set_stuck(ssd, true);
    let trim = world.ask(NEAR, call(Operation::Trim, 0, BLOCK), 0);
    pass_ten_limits(&mut world);
    assert_eq!(world.core.snapshot().stuck[0].level, Some(2));
    assert_eq!(world.wait(trim).err(), Some(ErrorKind::Retry), "it waits for the level");
    let is_ended = [read, write].map(|request| world.finished.contains_key(&request));
    assert_eq!(is_ended, [false; 2], "they wait for the store: {:?}", world.finished);
    world.home.end_all();
    assert_eq!(data(world.wait(read)), [9; BLOCK as usize]);
    world.wait(write).expect("the store has it");
    world.io.set_stuck(ssd, false);
    world.turns(200);
}
