//! What the records found at start mean together: the newest of each block, and its slot.
//!
//! How: checkpoint entries come first and count as seq C0; records behind the checkpoint then
//! prevail by seq. Copies made by cleaning of records older than C0 are skipped, since the
//! checkpoint names the original or the copy; of younger ones the original prevails, so that a cut
//! leaves segments of copies empty. Other records older than C0 were queued when the
//! checkpoint started; they prevail over its entries, and so do tombstones. A zeroing that is owed
//! for a tombstone from before the checkpoint kills nothing.
//! Invariant: at most one winner per block and per slot. No dirty winner is dropped: beyond the
//! level's slots it gets an overflow slot. A clean one that is dropped is told as forgotten.
//! Cost: one table entry per block found.

use super::log_layout::Record;
use super::log_recover::{Found, NO_SLOT, Scan};
use super::table::{Map, Set};
use super::{CorruptInfo, RecoveredTombstone};
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockKey, Seq, Slot};

/// The newest record of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Winner {
    pub(super) key: BlockKey,
    pub(super) seq: Seq,
    pub(super) slot: Slot,
    pub(super) location: u32,
    pub(super) crc: u32,
    pub(super) dirty: bool,
    /// The slot is not the one that the block's batch names.
    pub(super) moved: bool,
    from_checkpoint: bool,
    bad: Option<u32>,
}

/// The result of a replay.
pub(super) struct Replayed {
    pub(super) winners: Vec<Winner>,
    pub(super) tombstones: Vec<RecoveredTombstone>,
    /// Length of the slot table: the level's slots and the overflow.
    pub(super) slots: u32,
}

type Table = Map<BlockKey, Winner>;

/// Decides what survives.
pub(super) fn replay(scan: &mut Scan<'_>) -> Replayed {
    if is_planted(Plant::LastRecordIgnored) {
        scan.batches.pop();
    }
    let mut table = from_checkpoint(scan);
    let mut forgets: Map<BlockKey, Seq> = Map::default();
    let mut tombstones = Vec::new();
    let (mut done, mut void) = (Set::default(), Set::default());
    let mut torn = 0;
    for batch in &scan.batches {
        torn += u64::from(!batch.durable && batch.found.iter().any(Found::may_be_torn));
        for found in &batch.found {
            match found.record {
                // What cannot be read may have been durable: an error, and no older version.
                Record::Block { .. } if found.may_be_torn() && !batch.durable => {}
                Record::Block { .. } => {
                    let copy = batch.stream.is_copies();
                    offer(
                        &mut table,
                        found.record,
                        found.location,
                        found.bad,
                        copy,
                        scan.trailer.seq,
                    );
                }
                Record::Tombstone { first, count, seq, no_hole } => {
                    let found = RecoveredTombstone::new(first, count, seq);
                    tombstones.push(RecoveredTombstone { no_hole, ..found });
                }
                Record::Owed { first, count, seq } => {
                    let found = RecoveredTombstone::new(first, count, seq);
                    tombstones.push(RecoveredTombstone { owed: true, ..found });
                }
                Record::Forget { key, seq } => {
                    let newest = forgets.entry(key).or_insert(seq);
                    *newest = seq.max(*newest);
                }
                Record::TombstoneDone { of, .. } => {
                    done.insert(of);
                }
                Record::TombstoneVoid { of, .. } => {
                    void.insert(of);
                }
            }
        }
    }
    scan.recovered.torn += torn;
    tombstones.sort_unstable_by_key(|tombstone: &RecoveredTombstone| tombstone.seq);
    for tombstone in &mut tombstones {
        tombstone.done = done.contains(&tombstone.seq);
        tombstone.void = void.contains(&tombstone.seq);
    }
    scan.recovered.forgets = forgets.iter().map(|(key, seq)| (*key, *seq)).collect();
    table.retain(|key, winner| forgets.get(key).is_none_or(|seq| winner.seq > *seq));
    let mut winners: Vec<Winner> = table.into_values().collect();
    winners.sort_unstable_by_key(|winner| winner.key);
    bury(&mut winners, &tombstones);
    let (slots, dropped) = assign_slots(&mut winners, scan.geometry.slot_count);
    scan.recovered.forgets.extend(dropped);
    report_lost(scan, &winners);
    Replayed { winners, tombstones, slots }
}

/// The checkpoint's blocks. One that was stored anew while the checkpoint was written may be in it
/// twice; the record of the second store lies behind it and prevails in [`offer`]. The later entry
/// is the newer one, for the cursor goes up: should that record's data be damaged, its checksum is
/// the one that a read is held against.
fn from_checkpoint(scan: &Scan<'_>) -> Table {
    let mut table = Table::default();
    for entry in &scan.checkpoint {
        let Some(segment) = scan.geometry.segment_of(entry.location) else { continue };
        let header = scan.headers[segment as usize];
        if header.is_some_and(|header| header.generation > scan.trailer.end) {
            continue;
        }
        let winner = Winner {
            key: entry.key,
            seq: scan.trailer.seq,
            slot: entry.slot,
            location: entry.location,
            crc: entry.crc,
            dirty: entry.dirty,
            moved: entry.moved,
            from_checkpoint: true,
            bad: None,
        };
        table.insert(entry.key, winner);
    }
    table
}

/// Enters a block's record if it is the newest so far. An original prevails over its copies, as it
/// does where the checkpoint names it: else a cut would leave live blocks in both segments, and a
/// start none that could become free. It is still whole: its segment is reused only after a
/// checkpoint that makes its seq an old one. Dirty is what either says, which is always safe.
fn offer(
    table: &mut Table,
    record: Record,
    location: u32,
    bad: Option<u32>,
    copy: bool,
    checkpoint: Seq,
) {
    let Record::Block { key, seq, slot, crc, dirty } = record else { return };
    if copy && seq <= checkpoint {
        return;
    }
    let winner =
        Winner { key, seq, slot, location, crc, dirty, moved: false, from_checkpoint: false, bad };
    let current = table.entry(key).or_insert(winner);
    let is_twin = seq == current.seq && !current.from_checkpoint;
    let better_twin = is_twin && bad.is_none() && (!copy || current.bad.is_some());
    let winner = Winner { dirty: dirty || is_twin && current.dirty, ..winner };
    current.dirty |= is_twin && dirty;
    let is_stale = current.from_checkpoint && is_planted(Plant::StaleIndex);
    if (current.from_checkpoint || seq > current.seq || better_twin) && !is_stale {
        *current = winner;
    }
}

/// Removes what tombstones killed, and marks dirty what a zeroing that must be repeated would harm.
/// `winners` are in key order.
fn bury(winners: &mut Vec<Winner>, tombstones: &[RecoveredTombstone]) {
    let mut dead = vec![false; winners.len()];
    for tombstone in tombstones {
        let first = BlockKey::new(tombstone.volume, tombstone.first);
        let end = tombstone.end_key();
        let from = winners.partition_point(|winner| winner.key < first);
        for (winner, dead) in winners[from..].iter_mut().zip(&mut dead[from..]) {
            if winner.key > end {
                break;
            }
            let is_older = winner.from_checkpoint
                || winner.seq < tombstone.seq
                || is_planted(Plant::TrimReachesNewer);
            *dead |= is_older && tombstone.kills();
            winner.dirty |= !tombstone.done;
        }
    }
    let mut dead = dead.into_iter();
    winners.retain(|_| !dead.next().expect("a mark per winner"));
}

/// Gives every winner a slot of its own. Where there are more of them than slots, clean ones are
/// dropped, the oldest first, so that a dirty one has no slot beyond the level only where all are
/// dirty: its backing store may not be there.
/// Answers the slots, and what was dropped, which counts as forgotten: its record still outranks an
/// older one in the NVM level, whose clearing may not have been durable. It goes with the start's
/// checkpoint, which waits until the older one is durably cleared.
fn assign_slots(winners: &mut Vec<Winner>, slot_count: u32) -> (u32, Vec<(BlockKey, Seq)>) {
    let mut taken = vec![false; slot_count as usize];
    let mut order: Vec<usize> = (0..winners.len()).collect();
    order.sort_unstable_by_key(|index| core::cmp::Reverse(winners[*index].seq));
    let (mut clean, mut homeless) = (Vec::new(), Vec::new());
    for index in order {
        match taken.get_mut(winners[index].slot.0 as usize) {
            Some(taken) if !*taken => {
                *taken = true;
                clean.extend((!winners[index].dirty).then_some(index));
            }
            _ => homeless.push(index),
        }
    }
    homeless.sort_by_key(|index| !winners[*index].dirty);
    let mut free = (0..slot_count).filter(|slot| !taken[*slot as usize]);
    let mut slots = slot_count;
    for index in homeless {
        let slot = match free.next() {
            Some(slot) => Slot(slot),
            None if !winners[index].dirty => NO_SLOT,
            None => match clean.pop() {
                Some(oldest) => core::mem::replace(&mut winners[oldest].slot, NO_SLOT),
                None => {
                    slots += 1;
                    Slot(slots - 1)
                }
            },
        };
        (winners[index].moved, winners[index].slot) = (true, slot);
    }
    let dropped = winners.extract_if(.., |winner| winner.slot == NO_SLOT);
    let dropped = dropped.map(|winner| (winner.key, winner.seq)).collect();
    (slots, dropped)
}

/// Names the surviving blocks whose bytes are bad; their slots keep failing until overwritten.
fn report_lost(scan: &mut Scan<'_>, winners: &[Winner]) {
    for winner in winners {
        let Some(computed) = winner.bad else { continue };
        let crcs = (winner.crc, computed);
        let info = scan.corrupt(winner.location, "data block", crcs);
        let (slot, key) = (Some(winner.slot), Some(winner.key));
        scan.recovered.lost.push(CorruptInfo { slot, key, ..info });
    }
}
