//! Syncs that fail beside durable writes.
//!
//! How: bursts are put between the other acts of a simulation run: writes, some of them with FUA,
//! of several volumes at once, while a sync fails, or the sync of a durable write's own. In half of
//! them the power fails next, so that what was acknowledged has to be there.
//! Invariant: a random generator of its own, so that runs without them stay as they were.
//! Cost: microseconds. Not for: disks that do not say that they fail.

use super::requests::{ask, draw_part};
use super::{Act, BLOCKS, CLIENTS, Character, Disk, Fault, VOLUMES, draw_mode};
use layby_engine::io::OperationKind;
use layby_types::{Operation, Rng};

/// Bursts of a run at most.
const BURSTS_MAX: u64 = 3;
/// Writes of a burst at most.
const WRITES_MAX: u64 = 6;

/// Whether syncs fail in bursts, by the run's seed: in half of the runs whose disks fail.
pub(super) fn has_some(seed: u64, character: Character) -> bool {
    character == Character::Failing && Rng::new(seed ^ 0x5_14c5).chance(1, 2)
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x5_14c6);
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let burst = draw_burst(&mut rng);
        drop(acts.splice(at..at, burst));
    }
}

fn draw_burst(rng: &mut Rng) -> Vec<Act> {
    let home = Disk::Home(rng.below(VOLUMES as u64) as usize);
    let disk = [Disk::Ssd, Disk::Ssd, home][rng.below(3) as usize];
    let mut acts: Vec<Act> = (0..CLIENTS).map(|it| Act::Connect(it, rng.chance(1, 2))).collect();
    for _ in 0..1 + rng.below(WRITES_MAX) {
        acts.push(draw_write(rng));
    }
    acts.push(Act::Turns(rng.below(8) as u32));
    acts.push(Act::Fault(match rng.chance(2, 3) {
        true => Fault::Unsynced(disk),
        false => Fault::FailNext(disk, OperationKind::Sync),
    }));
    for _ in 0..1 + rng.below(WRITES_MAX) {
        acts.push(draw_write(rng));
        acts.push(Act::Turns(rng.below(3) as u32));
    }
    if rng.chance(1, 2) {
        acts.push(ask(rng.below(VOLUMES as u64) as usize, Operation::Flush, 0..0));
    }
    acts.push(Act::Turns(rng.below(24) as u32));
    if rng.chance(1, 2) {
        acts.push(Act::Cut(draw_mode(rng)));
    }
    acts
}

/// A write of a few blocks of any client, in two cases of three with FUA.
fn draw_write(rng: &mut Rng) -> Act {
    let client = rng.below(CLIENTS as u64) as usize;
    let write = ask(client, Operation::Write, draw_part(rng, 0..BLOCKS));
    let Act::Ask(client, mut call) = write else { unreachable!("it asks") };
    call.flags.fua = rng.chance(2, 3);
    Act::Ask(client, call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Life;

    /// Goal: half of the runs whose disks fail have such bursts, and no others. Method: the first
    /// seeds, counted.
    #[test]
    fn half_of_the_failing_runs_have_bursts() {
        let lives: Vec<Life> = (0..800).map(Life::draw).collect();
        let has = |life: &&Life| {
            life.acts.iter().any(|act| matches!(act, Act::Fault(Fault::Unsynced(_))))
        };
        let with: Vec<&Life> = lives.iter().filter(has).collect();
        let failing = lives.iter().filter(|life| life.character == Character::Failing).count();
        assert!((failing / 4..failing * 3 / 4).contains(&with.len()), "{}", with.len());
        assert!(with.iter().all(|life| has_some(life.seed, life.character)));
    }
}
