//! Blocks that a start cannot decide: found, written into checkpoints, read back.
//!
//! How: a structure that is damaged beyond its parity may have held records up to some seq, of any
//! block. A block with a younger record is decided by that; all others of the node's volumes are
//! lost, and what the levels hold of them is dropped. A checkpoint keeps the ranges as entries of
//! their own kind, which count as old as the checkpoint: any record behind it takes a block out.
//! Invariant: a lost block has no record in the levels; so every record of it found later is of a
//! version that was written after it was lost.
//! Cost: 24 bytes in each checkpoint per range or per 96 blocks, whichever is less.
//! Not for: data that does not match its checksum; that costs its own block.

use super::log_layout::{CheckpointEntry, LostEntry};
use super::{Loser, Recovered, Resolved};
use layby_cache::LostBlocks;
use layby_types::{BlockIndex, BlockKey, Seq, Slot, VolumeId};

/// Blocks that one entry can name by bits.
const BITS: u64 = 96;
/// Ranges of a shard at most: 24 bytes of memory each, or a little more.
const RUNS_MAX: usize = 4 << 20;

/// A volume whose blocks a level may hold dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The volume.
    pub volume: VolumeId,
    /// Its blocks.
    pub blocks: u64,
}

/// Finds the blocks whose newest version is not known, and drops what the levels hold of them.
/// `held` are the volumes that write back; those that write through lose copies and nothing else.
/// Call it after [`super::resolve`].
#[must_use]
pub fn undecide(
    nvm: &mut Recovered,
    log: &mut Recovered,
    held: &[Held],
    resolved: &mut Resolved,
) -> LostBlocks {
    let mut lost = LostBlocks::default();
    for (first, count) in log.lost_runs.iter() {
        let volume = held.iter().find(|held| held.volume == first.volume());
        let blocks = volume.map_or(0, |held| held.blocks.saturating_sub(first.block().0));
        lost.insert(first, count.min(blocks));
    }
    let undecided = nvm.undecided.max(log.undecided);
    if let Some(seq) = undecided {
        for Held { volume, blocks } in held {
            lost.insert(BlockKey::new(*volume, BlockIndex(0)), *blocks);
        }
        drop_older(&mut nvm.entries, seq, Loser::Nvm, resolved);
        drop_older(&mut log.entries, seq, Loser::Log, resolved);
        // Whether they were done for may have been in what is damaged, and newer bytes be below.
        resolved.redo_zeroes.retain(|tombstone| tombstone.seq > seq);
    }
    if lost.is_empty() {
        return lost;
    }
    let since = undecided.unwrap_or(Seq(0));
    for entry in nvm.entries.iter().chain(&log.entries) {
        lost.remove(entry.key, 1);
    }
    for tombstone in log.tombstones.iter().filter(|it| it.kills() && it.seq > since) {
        lost.remove(BlockKey::new(tombstone.volume, tombstone.first), tombstone.count);
    }
    for (key, _) in log.forgets.iter().filter(|(_, seq)| *seq > since) {
        lost.remove(*key, 1);
    }
    lost
}

fn drop_older(
    entries: &mut Vec<super::RecoveredEntry>,
    seq: Seq,
    loser: fn(Slot) -> Loser,
    resolved: &mut Resolved,
) {
    entries.retain(|entry| {
        let is_decided = entry.seq > seq;
        if !is_decided {
            resolved.losers.push(loser(entry.slot));
        }
        is_decided
    });
}

/// Ranges that may come of lost blocks, where a checkpoint has room for `entries` of them and the
/// volumes are `held`.
#[must_use]
pub fn runs_max(entries: usize, held: &[Held]) -> usize {
    // Of two entries one behind the other at least one reaches 96 blocks on.
    let worst = held.iter().map(|held| 2 * held.blocks.div_ceil(BITS) + 2);
    let worst = worst.fold(0, u64::saturating_add);
    if worst <= entries as u64 { RUNS_MAX } else { entries.min(RUNS_MAX) }
}

/// Ranges as a checkpoint keeps them.
pub(super) fn encode(lost: &[(BlockKey, u64)]) -> Vec<CheckpointEntry> {
    let mut entries = Vec::new();
    let mut rest = lost;
    while let Some((first, count)) = rest.first().copied() {
        let end = first.0 + BITS;
        let within = rest.iter().take_while(|(key, count)| key.0 + count <= end).count();
        let taken = if within < 2 {
            entries.push(entry(first, u128::from(count), LostEntry::Run));
            1
        } else {
            let bits = |(key, count): &(BlockKey, u64)| ((1 << count) - 1) << (key.0 - first.0);
            let bits = rest[..within].iter().map(bits).fold(0u128, |sum, bits| sum | bits);
            entries.push(entry(first, bits, LostEntry::Bits));
            within
        };
        rest = &rest[taken..];
    }
    entries
}

fn entry(key: BlockKey, value: u128, lost: LostEntry) -> CheckpointEntry {
    let word = |index: u32| (value >> (32 * index)) as u32;
    let (dirty, moved, lost) = (false, false, Some(lost));
    CheckpointEntry {
        key,
        slot: Slot(word(0)),
        location: word(1),
        crc: word(2),
        dirty,
        moved,
        lost,
    }
}

/// Adds what an entry names, as far as it lies in one volume.
pub(super) fn decode(entry: &CheckpointEntry, kind: LostEntry, lost: &mut LostBlocks) {
    let low = u64::from(entry.slot.0) | u64::from(entry.location) << 32;
    let room = BlockIndex::MAX.0 - entry.key.block().0;
    if kind == LostEntry::Run {
        return lost.insert(entry.key, low.min(room));
    }
    let bits = u128::from(low) | u128::from(entry.crc) << 64;
    let set = (0..BITS.min(room)).filter(|bit| bits >> bit & 1 != 0);
    set.for_each(|bit| lost.insert(BlockKey(entry.key.0 + bit), 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: ranges come back from a checkpoint as they were, in as few entries as promised.
    /// Method: random ranges of two volumes, dense and thin, with the bounds of [`runs_max`].
    #[test]
    fn ranges_come_back_from_checkpoints() {
        let mut rng = Rng::new(1);
        for round in 0..300 {
            let blocks = 1 + rng.below(4000);
            let held = [1, 2].map(|id| Held { volume: VolumeId(id), blocks });
            let mut lost = LostBlocks::default();
            for Held { volume, .. } in held {
                lost.insert(BlockKey::new(volume, BlockIndex(0)), blocks);
            }
            for _ in 0..rng.below(4000) {
                let key = BlockKey::new(VolumeId(1), BlockIndex(rng.below(blocks)));
                lost.remove(key, 1 + if round % 2 == 0 { 0 } else { rng.below(300) });
            }
            let runs: Vec<_> = lost.iter().collect();
            let entries = encode(&runs);
            let worst: u64 = held.iter().map(|held| 2 * held.blocks.div_ceil(BITS) + 2).sum();
            assert!(entries.len() <= runs.len() && entries.len() as u64 <= worst);
            let mut found = LostBlocks::default();
            for entry in &entries {
                decode(entry, entry.lost.expect("all are of that kind"), &mut found);
            }
            assert_eq!(found, lost);
        }
    }
}
