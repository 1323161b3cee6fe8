//! The ranks under which backing stores hear of discards.

use super::discards::{HOME, VOLUME, waiting};
use super::faults::write_block;
use super::*;
use crate::backing::{FileBacking, PartHome, PartPlan, SharedLoss};
use crate::io::{Buffer, IoDone, IoError, IoOperation, Mapping, SocketId, Token};
use layby_cache::discards::{DiscardLimits, DiscardMode};
use layby_cache::schedule::Rank;
use layby_types::Stripes;

/// A simulated machine, and the rank of each zeroing that it was asked for.
struct Ranked {
    io: SimIo,
    rank: Rank,
    zeros: Vec<Rank>,
}

impl Io for Ranked {
    fn now(&self) -> Nanos {
        self.io.now()
    }
    fn buffer(&mut self, length: usize) -> Buffer {
        self.io.buffer(length)
    }
    fn recycle(&mut self, buffer: Buffer) {
        self.io.recycle(buffer);
    }
    fn submit(&mut self, token: Token, operation: IoOperation) {
        if matches!(operation, IoOperation::Zero { .. }) {
            self.zeros.push(self.rank);
        }
        self.io.submit(token, operation);
    }
    fn set_rank(&mut self, rank: Rank) {
        self.rank = rank;
    }
    fn rank(&self) -> Rank {
        self.rank
    }
    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        self.io.wait(deadline, done);
    }
    fn disk_length(&self, disk: DiskId) -> u64 {
        self.io.disk_length(disk)
    }
    fn disk_name(&self, disk: DiskId) -> &str {
        self.io.disk_name(disk)
    }
    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        self.io.map(disk)
    }
    fn detach_disk(&mut self, disk: DiskId) {
        self.io.detach_disk(disk);
    }
    fn close_socket(&mut self, socket: SocketId) {
        self.io.close_socket(socket);
    }
}

/// Goal: a deferred discard does not compete with the best class's requests: it goes in the
/// background, or under its volume's rank where a write to the backing store waits for it. Method:
/// trims of a class below the best; either the mode changes, or a destage meets them.
#[test]
fn discards_have_the_rank_of_what_waits() {
    let awaited = std::cell::Cell::new(0);
    each_seed(20, |seed| {
        for is_awaited in [false, true] {
            let mut world = waiting(seed);
            let id = VolumeId(VOLUME);
            (0..4).for_each(|index| super::discards::trim(&mut world, 3 * index, 2));
            let home = world.homes[HOME];
            if world.core.snapshot().volumes[HOME].discards.pending.ranges < 4 {
                // The time has jumped over the delay.
                continue;
            }
            if is_awaited {
                write_block(&mut world, VOLUME, 3, 41).expect("a write");
            }
            let World { io, mut core, .. } = world;
            let mut io = Ranked { io, rank: Rank::FIRST, zeros: Vec::new() };
            match is_awaited {
                true => core.drain(&mut io, 77, None),
                false => {
                    let (mode, others) = (DiscardMode::Immediate, DiscardLimits::DEFAULT);
                    core.set_discard(id, DiscardLimits { mode, ..others });
                }
            }
            for _ in 0..2000 {
                core.turn(&mut io);
            }
            assert!(io.zeros.iter().all(|rank| *rank != Rank::FIRST), "{:?}", io.zeros);
            // What waits with the write's block goes at once; the rest may wait on.
            let own = io.zeros.iter().filter(|rank| **rank == Rank(1)).count();
            awaited.set(awaited.get() + own);
            assert!(is_awaited || io.zeros == [Rank::BACKGROUND; 4], "{:?}; SEED={seed}", io.zeros);
            let is_sent = is_awaited || io.io.peek(home)[0] == 0;
            assert!(io.rank == Rank::FIRST && is_sent, "SEED={seed}");
        }
    });
    assert!(awaited.get() > 5, "discards that a write waits for: {}", awaited.get());
}

/// Goal: each piece of a wide volume's call is submitted under the call's rank, those that wait
/// for the first ones' ends, too. Method: a zeroing of more stripes than may be in flight; the
/// ends come under the best rank.
#[test]
fn later_pieces_keep_the_rank() {
    const STRIPES: u64 = 40;
    let stripes = Stripes::new(Stripes::BYTES_MIN, 2).expect("within bounds");
    let (length, part) = (2 * STRIPES * Stripes::BYTES_MIN, STRIPES * Stripes::BYTES_MIN);
    let mut io = Ranked { io: SimIo::new(1), rank: Rank(1), zeros: Vec::new() };
    let disk = io.io.add_disk("home", length);
    let file = FileBacking::new(disk, "home".into(), 1, length);
    let plan = PartPlan { stripes, index: 0, length, loss: SharedLoss::default() };
    let mut home = HomeBacking::Part(Box::new(PartHome::new(file, plan)));
    let zero = BackingOperation::Zero { offset: 0, length: part, keep_allocated: false };
    home.submit(&mut io, 7, zero);
    io.rank = Rank::FIRST;
    while home.poll().is_none() {
        let mut ended = Vec::new();
        io.wait(Nanos::NEVER, &mut ended);
        ended.into_iter().for_each(|done| home.on_io(&mut io, done));
        assert_eq!(io.rank, Rank::FIRST);
    }
    assert_eq!(io.zeros, [Rank(1); STRIPES as usize]);
}
