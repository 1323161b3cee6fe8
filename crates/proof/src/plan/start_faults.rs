//! Disks that fail, or are slow, while the node recovers.
//!
//! How: somewhere in a simulation run writes are followed by a fault for the next start, and by a
//! power cut. The fault is over with that start: where it is refused, the next one goes on.
//! Invariant: a random generator of its own, so that runs without such a start stay as they were.
//! Cost: microseconds. Not for: disks that stay full, or sectors that stay unreadable.

use super::requests::{ask, draw_part};
use super::{Act, BLOCKS, CLIENTS, Character, Disk, Fault, VOLUMES, draw_mode};
use layby_engine::io::OperationKind;
use layby_types::{Nanos, Operation, Rng};

/// What goes wrong with a disk while the node recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFault {
    /// An operation of a kind fails, after so many that end well.
    Fail(OperationKind, u32),
    /// Nothing ends for a while.
    Slow(Nanos),
}

impl StartFault {
    pub(super) fn name(self) -> &'static str {
        match self {
            StartFault::Fail(OperationKind::Read, _) => "read error at a start, once",
            StartFault::Fail(OperationKind::Sync, _) => "flush error at a start",
            StartFault::Fail(..) => "write error at a start",
            StartFault::Slow(_) => "slow device at a start",
        }
    }
}

/// Such starts of a run at most.
const STARTS_MAX: u64 = 3;
/// Requests before each at most.
const REQUESTS_MAX: u64 = 6;

/// Whether a run has such starts, by its seed: half of the runs whose disks fail, and one in
/// sixteen of those with sound disks, so that nothing else gives reason for an error there.
pub(super) fn has_some(seed: u64, character: Character) -> bool {
    let one_in = match character {
        Character::Failing => 2,
        Character::Honest => 16,
        Character::Lying | Character::Stuck => return false,
    };
    Rng::new(seed ^ 0x57a_27f5).chance(1, one_in)
}

/// Puts such starts between the acts.
pub(super) fn add(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x57a_27f6);
    for _ in 0..1 + rng.below(STARTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let burst = draw_burst(&mut rng);
        drop(acts.splice(at..at, burst));
    }
}

fn draw_burst(rng: &mut Rng) -> Vec<Act> {
    let mut acts: Vec<Act> = (0..CLIENTS).map(|it| Act::Connect(it, rng.chance(1, 2))).collect();
    let operations = [Operation::Write, Operation::Write, Operation::Trim, Operation::Flush];
    for _ in 0..rng.below(REQUESTS_MAX) {
        let client = rng.below(CLIENTS as u64) as usize;
        let operation = operations[rng.below(4) as usize];
        let blocks = if operation == Operation::Flush { 0..0 } else { draw_part(rng, 0..BLOCKS) };
        acts.extend([ask(client, operation, blocks), Act::Turns(rng.below(8) as u32)]);
    }
    acts.extend((0..1 + rng.below(2)).map(|_| Act::Fault(draw_fault(rng))));
    acts.push(Act::Cut(draw_mode(rng)));
    acts.push(if rng.chance(1, 2) { Act::Settle } else { Act::Turns(8) });
    acts
}

fn draw_fault(rng: &mut Rng) -> Fault {
    let home = Disk::Home(rng.below(VOLUMES as u64) as usize);
    let disk = [Disk::Ssd, Disk::Ssd, home, Disk::Nvm][rng.below(4) as usize];
    if rng.chance(1, 5) {
        return Fault::AtStart(disk, StartFault::Slow(Nanos::from_micros(rng.below(20_000))));
    }
    let kinds: &[OperationKind] = match disk {
        Disk::Ssd => &[OperationKind::Read, OperationKind::Write, OperationKind::Sync],
        // A mapping has no other operations.
        Disk::Nvm => &[OperationKind::Sync],
        _ => &[OperationKind::Zero, OperationKind::Write, OperationKind::Sync],
    };
    let kind = kinds[rng.below(kinds.len() as u64) as usize];
    // A start reads a few dozen times and writes a few times.
    let passed = rng.below(if kind == OperationKind::Read { 24 } else { 4 });
    Fault::AtStart(disk, StartFault::Fail(kind, passed as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Life;

    /// Goal: some runs with sound disks and about half of those with failing ones have such
    /// starts, and no others. Method: the first seeds, counted.
    #[test]
    fn some_runs_have_faults_at_a_start() {
        let lives: Vec<Life> = (0..800).map(Life::draw).collect();
        let has = |life: &&Life| {
            life.acts.iter().any(|act| matches!(act, Act::Fault(Fault::AtStart(..))))
        };
        let with = lives.iter().filter(has);
        assert!(with.clone().all(|life| has_some(life.seed, life.character)));
        let of = |character| with.clone().filter(|life| life.character == character).count();
        assert!((40..=140).contains(&of(Character::Failing)), "{}", of(Character::Failing));
        assert!((8..=60).contains(&of(Character::Honest)), "{}", of(Character::Honest));
    }
}
