//! A wide volume over two cores on two machines, joined by links, beside a plain array.
//!
//! How: each machine has its levels and a home of the whole volume's length, of which its part uses
//! its own stripes. What a shard does for a link is done here by hand, as far as chance lets it, so
//! that answers come in any order. Stripes are as short as they may be, and what is merged for the
//! home is longer, so that calls of homes cross edges all the time.

use super::faults::quiet;
use super::*;
use crate::backing::{PartPlan, SharedLoss};
use crate::control::LOST_NAMED_MAX;
use crate::io::OperationKind;
use crate::link::{FarEnd, link};
use layby_types::{BlockIndex, BlockKey, GuestRing, Stripes, Taken};
use rustix::io::Errno;

const STRIPE: u64 = Stripes::BYTES_MIN;
/// The last stripe is short and ends within a block, which the home has whole.
const LENGTH: u64 = 5 * STRIPE + 9 * CELL;
/// Askers of requests that came by a link.
const FAR: u64 = 1 << 20;

/// One machine with its part.
struct Side {
    io: SimIo,
    core: Core,
    disks: [DiskId; 3],
    index: u8,
    /// What the other side asks.
    far: Option<FarEnd>,
}

struct Pair {
    sides: [Side; 2],
    shape: Shape,
    class: u8,
    seed: u64,
    rng: Rng,
    model: Vec<u8>,
}

fn stripes() -> Stripes {
    Stripes::new(STRIPE, 2).expect("within bounds")
}

fn open(
    io: &mut SimIo,
    (shape, class): (&Shape, u8),
    [nvm, ssd, home]: [DiskId; 3],
    (index, loss): (u8, SharedLoss),
    (format, seed): (bool, u64),
) -> Core {
    let spec = VolumeSpec {
        id: VolumeId(0),
        class: ClassId(class),
        length: stripes().below(index, LENGTH),
        shares: [Share::OPEN; LEVELS_MAX],
        write_through: false,
    };
    let region = |disk, length| Region { disk, base: 0, length, block_size: BlockSize::MIN };
    let plans = [
        LevelPlan::Memory { slots: shape.spec.levels[0].slots },
        LevelPlan::Nvm {
            region: region(nvm, shape.nvm_bytes),
            format,
            is_strict: false,
            known: None,
        },
        LevelPlan::Ssd {
            region: region(ssd, shape.ssd_bytes),
            format,
            is_strict: false,
            known: None,
            segments: Default::default(),
            wear: shape.wear,
        },
    ];
    let plan = PartPlan { stripes: stripes(), index, length: LENGTH, loss };
    let place = HomePlace::Part { disk: home, name: "home".into(), plan };
    let homes = vec![HomePlan { spec, place, device: Some(0), protected: None }];
    let started = Core::start(io, shape.spec.clone(), &plans, IDENTITY, homes, seed);
    started.unwrap_or_else(|error| panic!("replay with SEED={seed}: {error:?}")).0
}

impl Pair {
    fn new(seed: u64, shape: Shape, class: u8) -> Pair {
        let loss = SharedLoss::default();
        let side = |index: u8| {
            let mut io = SimIo::new(seed ^ u64::from(index) << 32);
            let nvm = io.add_disk("nvm", shape.nvm_bytes);
            let ssd = io.add_disk("ssd", shape.ssd_bytes);
            let disks = [nvm, ssd, io.add_disk("home", LENGTH.next_multiple_of(BLOCK))];
            let own = (index, loss.clone());
            let core = open(&mut io, (&shape, class), disks, own, (true, seed));
            Side { io, core, disks, index, far: None }
        };
        let (sides, rng) = ([side(0), side(1)], Rng::new(seed ^ 0x51de));
        let mut pair = Pair { sides, shape, class, seed, rng, model: vec![0; LENGTH as usize] };
        pair.join();
        pair
    }

    fn join(&mut self) {
        for near in [0, 1] {
            let (ours, far) = link();
            self.sides[1 - near].far = Some(far);
            let mut links = vec![None, None];
            links[1 - near] = Some(ours);
            let lead = (near == 1).then(|| link().0);
            let joined = self.sides[near].core.join(VolumeId(0), links, lead);
            joined.expect("all parts are there");
        }
    }

    /// What the shards do: takes calls, answers them, takes answers, in an order of chance.
    fn turn(&mut self) {
        for side in &mut self.sides {
            let Side { io, core, far, .. } = side;
            if let Some(far) = far.as_mut().filter(|_| self.rng.chance(2, 3)) {
                let mut payload = Vec::new();
                while let Taken::Call(call) = far.take(&mut payload).expect("never broken") {
                    let asker = Asker(FAR + call.cookie);
                    core.submit_part(io, asker, VolumeId(0), call, &payload, None);
                }
                far.take_signal();
            }
            core.poll_links(io);
            let latest = io.now() + Nanos::from_micros(50);
            core.turn_by(io, latest);
        }
    }

    /// Takes what ended on a side; what came by the link is answered there.
    fn ended(&mut self, side: usize) -> Option<Finished> {
        let Side { core, far, .. } = &mut self.sides[side];
        while let Some(finished) = core.take_finished() {
            if finished.asker.0 < FAR {
                return Some(finished);
            }
            let Some(far) = far else { continue };
            let call = finished.call;
            let result = finished.result.map(|answer| match answer {
                Answer::Data(data) => far.put(&call, 0, &data),
                Answer::Extents(extents) => far.put_extents(&call, extents),
                Answer::Nothing => {}
            });
            far.finish(&call, result).expect("never broken");
        }
        None
    }

    fn run(&mut self, side: usize, call: Call, payload: &[u8]) -> Result<Answer, ErrorKind> {
        let Side { io, core, .. } = &mut self.sides[side];
        core.submit(io, Asker(7), VolumeId(0), call, payload, None);
        for _ in 0..TURNS_MAX {
            let none = self.ended(1 - side);
            assert!(none.is_none(), "nobody asked there");
            if let Some(finished) = self.ended(side) {
                assert_eq!((finished.asker, finished.call), (Asker(7), call));
                return finished.result;
            }
            self.turn();
        }
        panic!("{call:?} never ends; replay with SEED={}", self.seed);
    }

    fn step(&mut self) {
        let side = self.rng.below(2) as usize;
        let cells = LENGTH / CELL;
        let edge = self.rng.below(6) * (STRIPE / CELL);
        let near = edge.saturating_sub(self.rng.below(20)).min(cells - 1);
        let begin = if self.rng.chance(2, 3) { near } else { self.rng.below(cells) };
        let most = if self.rng.chance(1, 8) { cells } else { 60 };
        let length = (1 + self.rng.below(most)).min(cells - begin);
        let operation = match self.rng.below(12) {
            0 => Operation::Trim,
            1 => Operation::WriteZeroes,
            2 => Operation::Flush,
            3 => Operation::Cache,
            4 => Operation::BlockStatus,
            5..=8 => Operation::Write,
            _ => Operation::Read,
        };
        let mut call = call(operation, begin * CELL, length * CELL);
        if operation == Operation::Flush {
            (call.offset, call.length) = (0, 0);
        }
        self.ask(side, call);
    }

    /// Asks, and holds the answer and the model to each other.
    fn ask(&mut self, side: usize, call: Call) {
        let own = call.offset as usize..(call.offset + call.length) as usize;
        let mut payload = Vec::new();
        match call.operation {
            Operation::Write => {
                payload.resize(own.len(), 0);
                self.rng.fill(&mut payload);
                self.model[own.clone()].copy_from_slice(&payload);
            }
            Operation::Trim | Operation::WriteZeroes => self.model[own.clone()].fill(0),
            _ => {}
        }
        let seed = self.seed;
        let answer = self.run(side, call, &payload);
        match answer.unwrap_or_else(|kind| panic!("{call:?}: {kind}; replay with SEED={seed}")) {
            Answer::Data(data) => {
                assert!(*data == self.model[own], "{call:?}; replay with SEED={seed}");
            }
            Answer::Extents(runs) => {
                assert!(!runs.is_empty(), "{call:?}; replay with SEED={seed}");
                let mut at = own.start;
                for run in runs {
                    let end = at + run.length as usize;
                    assert!(end <= own.end, "{call:?}; replay with SEED={seed}");
                    let is_zero = self.model[at..end].iter().all(|byte| *byte == 0);
                    assert!(!run.zero || is_zero, "{call:?}; replay with SEED={seed}");
                    at = end;
                }
                assert_eq!(at, own.end, "{call:?}; replay with SEED={seed}");
            }
            Answer::Nothing => {}
        }
    }

    fn compare(&mut self) {
        for side in [0, 1] {
            self.ask(side, call(Operation::Read, 0, LENGTH));
        }
    }

    fn drain(&mut self) {
        for side in &mut self.sides {
            side.core.drain(&mut side.io, 1, None);
        }
        let mut left = 2;
        for _ in 0..TURNS_MAX {
            self.turn();
            for side in &mut self.sides {
                left -= side.core.take_drained().len();
            }
            if left == 0 {
                return;
            }
        }
        panic!("a drain never ends; replay with SEED={}", self.seed);
    }

    /// Both homes hold their parts of the model, and nothing of the other's.
    fn check_homes(&self) {
        for side in &self.sides {
            let home = side.io.peek(side.disks[2]);
            for (at, byte) in home.iter().enumerate().take(LENGTH as usize) {
                let is_own = stripes().part_of(at as u64) == side.index;
                let expected = if is_own { self.model[at] } else { 0 };
                assert_eq!(*byte, expected, "byte {at}; replay with SEED={}", self.seed);
            }
        }
    }

    fn crash(&mut self, mode: CrashMode) {
        let loss = SharedLoss::default();
        let Pair { sides, shape, class, seed, .. } = self;
        for side in sides {
            side.io.crash(mode);
            side.far = None;
            let own = (side.index, loss.clone());
            side.core = open(&mut side.io, (shape, *class), side.disks, own, (false, *seed));
        }
        self.join();
    }
}

/// Goal: a volume over two cores is one array to requests from either, in whatever order answers
/// come; each home holds its own stripes and no others; what was flushed survives a power cut on
/// both. Method: random requests about edges beside an array, with tiny levels, drains, crashes.
#[test]
fn two_cores_are_one_array() {
    each_seed(100, |seed| {
        let mut rng = Rng::new(seed ^ 0xabc);
        let mut shape = Shape::tiny(&mut rng);
        shape.spec.writeback.merge_bytes = 1 << 20;
        let mut pair = Pair::new(seed, shape, (seed % 2) as u8);
        for _ in 0..3 {
            (0..60).for_each(|_| pair.step());
            if pair.rng.chance(1, 2) {
                pair.drain();
                pair.check_homes();
            }
            let side = pair.rng.below(2) as usize;
            pair.ask(side, call(Operation::Flush, 0, 0));
            let modes = [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::KeepSome];
            let mode = modes[pair.rng.below(3) as usize];
            pair.crash(mode);
            pair.compare();
        }
    });
}

/// Goal: an error of either part is the request's, and the rest goes on. Method: a read across
/// stripes whose home fails here or there; the same again without the fault.
#[test]
fn errors_of_a_part_are_the_requests() {
    for broken in [0, 1] {
        let mut pair = Pair::new(3, quiet(), 1);
        let side = &mut pair.sides[broken];
        side.io.fail_next(side.disks[2], OperationKind::Read, Errno::IO);
        let across = call(Operation::Read, STRIPE - 4096, 8192);
        for asking in [0, 1] {
            let failed = pair.run(asking, across, &[]).is_err();
            assert_eq!(failed, asking == 0, "part {broken}, asked by {asking}");
        }
        pair.compare();
    }
}

/// Goal: where the other shard is gone, what waits for it ends with `Closed` and nothing hangs; the
/// own part is served. Method: the far end dropped with a call in it, and a link given up.
#[test]
fn what_waits_for_a_lost_part_ends() {
    let mut pair = Pair::new(5, quiet(), 1);
    let far = call(Operation::Read, STRIPE, 4096);
    pair.sides[1].far = None;
    assert!(matches!(pair.run(0, far, &[]), Err(ErrorKind::Closed)));
    let across = call(Operation::Write, STRIPE - 4096, 8192);
    assert!(matches!(pair.run(0, across, &[1; 8192]), Err(ErrorKind::Closed)));
    assert!(pair.run(0, call(Operation::Read, 0, 4096), &[]).is_ok());
    let Side { io, core, .. } = &mut pair.sides[1];
    let back = call(Operation::Flush, 0, 0);
    core.submit(io, Asker(7), VolumeId(0), back, &[], None);
    assert!(core.is_whole(VolumeId(0)));
    core.unjoin(VolumeId(0));
    assert!(!core.is_whole(VolumeId(0)));
    let result = (0..TURNS_MAX).find_map(|_| {
        pair.turn();
        pair.ended(1).map(|finished| finished.result)
    });
    assert!(matches!(result, Some(Err(ErrorKind::Closed))));
}

/// Goal: a sync that fails for one part is not trusted for the other. Method: the home's sync
/// fails on one machine; flushes from both sides, where both have something to sync.
#[test]
fn a_lost_home_is_lost_for_all_parts() {
    let mut shape = quiet();
    shape.spec.classes[1].levels = 0b001;
    let mut pair = Pair::new(9, shape, 1);
    pair.ask(0, call(Operation::Write, 0, 2 * STRIPE));
    let side = &mut pair.sides[1];
    side.io.fail_next(side.disks[2], OperationKind::Sync, Errno::IO);
    let flush = call(Operation::Flush, 0, 0);
    assert!(pair.run(0, flush, &[]).is_err());
    pair.ask(1, call(Operation::Write, 0, 4096));
    assert!(pair.run(1, flush, &[]).is_err(), "the other part shares the device");
}

/// Goal: what is lost of a part is named by the volume's bytes, and counted in its ranges. Method:
/// blocks on both sides of an edge between two stripes of each part, one in a later stripe; then
/// every other block of the first part, which are more ranges than are named.
#[test]
fn lost_ranges_are_of_the_volumes_bytes() {
    let mut pair = Pair::new(4, quiet(), 1);
    let blocks = STRIPE / BLOCK;
    let lose = |core: &mut Core, block| {
        core.cache.lose(BlockKey::new(VolumeId(0), BlockIndex(block)));
    };
    for (part, side) in (0_u64..).zip(&mut pair.sides) {
        [blocks - 1, blocks, 2 * blocks].into_iter().for_each(|it| lose(&mut side.core, it));
        let found = side.core.lost_ranges();
        let own = part * STRIPE;
        let named = [own + STRIPE - BLOCK, own + 2 * STRIPE, own + 4 * STRIPE];
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].named, named.map(|at| (at, BLOCK)), "part {part}");
        assert_eq!((found[0].blocks, found[0].ranges), (3, 3), "part {part}");
    }
    let core = &mut pair.sides[0].core;
    (0..3 * blocks).step_by(2).for_each(|block| lose(core, block));
    let found = core.lost_ranges();
    // The blocks about the edge are one range of the part, and two of the volume.
    assert_eq!((found[0].ranges, found[0].named.len()), (3 * blocks / 2, LOST_NAMED_MAX));
}

/// Goal: what another shard has of a client's whole requests learns that the client has left, also
/// of one that had asked for nothing yet, and the next client of its number begins anew. Method: a
/// leading far end by hand; requests before, after, and of the next client.
#[test]
fn a_client_that_leaves_takes_its_branch_along() {
    let mut pair = Pair::new(6, quiet(), 1);
    let (lead, far) = link();
    let Side { io, core, .. } = &mut pair.sides[1];
    core.join(VolumeId(0), vec![Some(link().0), None], Some(lead)).expect("all parts are there");
    core.set_led(&[VolumeId(0)]);
    let flush = call(Operation::Flush, 0, 0);
    for asks_before in [true, false] {
        if asks_before {
            core.submit(io, Asker(7), VolumeId(0), flush, &[], None);
        }
        core.leave_client(VolumeId(0), 7);
        let branches = far.look().take_branches();
        assert_eq!(branches.len(), usize::from(asks_before));
        assert!(branches.iter().all(|branch| branch.look().has_left()));
        core.submit(io, Asker(7), VolumeId(0), flush, &[], None);
        assert!(far.look().take_branches().is_empty(), "none is opened for who has left");
        drop(branches);
        core.poll_links(io);
        while let Some(finished) = core.take_finished() {
            assert!(matches!(finished.result, Err(ErrorKind::Closed)), "{finished:?}");
        }
        core.forget_client(VolumeId(0), 7);
        core.submit(io, Asker(7), VolumeId(0), flush, &[], None);
        let next = far.look().take_branches();
        assert!(next.len() == 1 && !next[0].look().has_left());
        drop(next);
        core.poll_links(io);
        assert!(core.take_finished().is_some() && core.take_finished().is_none());
        core.forget_client(VolumeId(0), 7);
    }
}
