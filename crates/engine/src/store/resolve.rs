//! What two levels' recoveries mean together.
//!
//! How: of a block found in both, the higher seq stays; tombstones and forgets of the log kill
//! older NVM records; a range that must be zeroed below again makes newer blocks in it dirty.
//! Invariant: afterwards each block is in one level at most. Cost: one table of the NVM's blocks.

use super::table::Map;
use super::{Recovered, RecoveredTombstone};
use layby_types::{BlockKey, Slot};

/// A record that another one outranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loser {
    /// Call `nvm.free(slot, Freed::Superseded)`.
    Nvm(Slot),
    /// Call `log.free(slot)`.
    Log(Slot),
}

/// What the shard does before it serves, in this order: free the losers; zero the ranges below and
/// make that durable, then `log.tombstone_done` for each; write back and free the overflow slots.
#[derive(Debug, Default)]
pub struct Resolved {
    /// To free.
    pub losers: Vec<Loser>,
    /// To zero below, in seq order.
    pub redo_zeroes: Vec<RecoveredTombstone>,
}

/// Decides between the NVM level's and the log's findings; entries that lose are removed from them.
#[must_use]
pub fn resolve(nvm: &mut Recovered, log: &mut Recovered) -> Resolved {
    let mut resolved = Resolved::default();
    nvm.entries.sort_unstable_by_key(|entry| entry.key);
    let mut dead = vec![false; nvm.entries.len()];
    for tombstone in &log.tombstones {
        let first = BlockKey::new(tombstone.volume, tombstone.first);
        let from = nvm.entries.partition_point(|entry| entry.key < first);
        for (entry, dead) in nvm.entries[from..].iter_mut().zip(&mut dead[from..]) {
            if entry.key > tombstone.end_key() {
                break;
            }
            *dead |= entry.seq < tombstone.seq && tombstone.kills();
            entry.dirty |= !tombstone.done;
        }
    }
    for (key, seq) in &log.forgets {
        if let Ok(index) = nvm.entries.binary_search_by_key(key, |entry| entry.key) {
            dead[index] |= nvm.entries[index].seq < *seq;
        }
    }
    let in_log: Map<BlockKey, usize> =
        log.entries.iter().enumerate().map(|(index, entry)| (entry.key, index)).collect();
    let mut outranked = vec![false; log.entries.len()];
    for (entry, dead) in nvm.entries.iter().zip(&mut dead) {
        if *dead {
            continue;
        }
        if let Some(index) = in_log.get(&entry.key) {
            *dead = log.entries[*index].seq > entry.seq;
            outranked[*index] = !*dead;
        }
    }
    sift(&mut nvm.entries, &dead, Loser::Nvm, &mut resolved);
    sift(&mut log.entries, &outranked, Loser::Log, &mut resolved);
    let undone = log.tombstones.iter().filter(|t| !t.done && !t.void);
    resolved.redo_zeroes = undone.copied().collect();
    resolved
}

fn sift(
    entries: &mut Vec<super::RecoveredEntry>,
    dead: &[bool],
    loser: fn(Slot) -> Loser,
    resolved: &mut Resolved,
) {
    let mut marks = dead.iter();
    entries.retain(|entry| {
        let dead = *marks.next().expect("a mark per entry");
        if dead {
            resolved.losers.push(loser(entry.slot));
        }
        !dead
    });
}

#[cfg(test)]
mod tests {
    use super::super::RecoveredEntry;
    use super::*;
    use layby_types::{BlockIndex, Seq, VolumeId};

    fn key(block: u64) -> BlockKey {
        BlockKey::new(VolumeId(1), BlockIndex(block))
    }

    fn entry(block: u64, seq: u64) -> RecoveredEntry {
        RecoveredEntry { slot: Slot(block as u32), key: key(block), seq: Seq(seq), dirty: false }
    }

    /// Goal: of NVM's clean records a zeroing kills the older ones and makes the newer ones dirty
    /// where it must be done again, and a forget kills the older ones only. Method: one record on
    /// each side of both. (Found by mutants: levels' worlds do not tell these apart.)
    #[test]
    fn zeroings_and_forgets_reach_older_records() {
        for done in [false, true] {
            let entries = vec![entry(0, 4), entry(1, 6), entry(2, 4), entry(3, 6)];
            let mut nvm = Recovered { entries, ..Recovered::default() };
            let zeroing = RecoveredTombstone::new(key(0), 2, Seq(5));
            let tombstones = vec![RecoveredTombstone { done, ..zeroing }];
            let forgets = vec![(key(2), Seq(5)), (key(3), Seq(5))];
            let mut log = Recovered { tombstones, forgets, ..Recovered::default() };
            let resolved = resolve(&mut nvm, &mut log);
            assert_eq!(resolved.losers, [Loser::Nvm(Slot(0)), Loser::Nvm(Slot(2))]);
            let left: Vec<_> = nvm.entries.iter().map(|entry| (entry.key, entry.dirty)).collect();
            assert_eq!(left, [(key(1), !done), (key(3), false)]);
            assert_eq!(resolved.redo_zeroes.len(), usize::from(!done));
        }
    }
}
