//! Fetches that failed: which of their readers fail, and which read again, and from where.
//!
//! How: a run that a level could not return is read again block by block; a clean block is read
//! from the backing store, a dirty one fails its readers. What is bad is dropped if it is clean and
//! marked if it is dirty; a level that failed for another reason says nothing of its blocks. Where
//! the backing store cannot return a run for bad bytes, readers that asked for a part of it read
//! their blocks one by one: the bad ones may not be theirs. So do reads that were coalesced with
//! blocks which the backing store had prefetched and has no more.
//! Invariant: a read of one block from the backing store fails its readers, so that nothing is
//! read again without end, and what ended with a time-out is not read again at all.
//! Cost: a read per block, after failures only.

use crate::action::{Action, Event, Few, OpId};
use crate::cache::Cache;
use crate::hash::FixedMap;
use crate::op::{Piece, Reader, Readers, Sought, Task, Want};
use crate::read::Run;
use layby_policy::Moment;
use layby_types::{BlockIndex, ErrorKind, LevelIndex, RequestId, Slot};

impl Cache {
    /// A fetch could not read its run.
    pub(crate) fn on_unfetched(&mut self, moment: &mut Moment<'_>, id: OpId, kind: ErrorKind) {
        let op = self.ops.get_mut(id.0);
        let count = op.count;
        let Task::Fetch(fetch) = &mut op.task else { panic!("a fetch ends as a fetch") };
        if fetch.from.is_some() {
            return self.refetch(moment, id, kind);
        }
        let readers = core::mem::take(&mut fetch.readers);
        let (failed, anew) = match fetch.sought {
            Sought::AtHand => (Readers::new(), readers),
            _ if kind == ErrorKind::Corrupt && count > 1 => part_of_whole(readers, count),
            _ => (readers, Readers::new()),
        };
        for reader in failed {
            self.end_part(reader.request, Err(kind));
        }
        self.read_anew(moment, id, &anew);
    }

    /// A level could not return the run: block by block, what is clean is fetched from below, what
    /// is dirty fails its readers.
    fn refetch(&mut self, moment: &mut Moment<'_>, id: OpId, kind: ErrorKind) {
        let op = self.ops.get_mut(id.0);
        let (volume, first, count) = (op.volume, op.first, op.count);
        let Task::Fetch(fetch) = &mut op.task else { panic!("only a fetch is fetched again") };
        let level = fetch.from.expect("it was read from a level");
        let readers = core::mem::take(&mut fetch.readers);
        if count > 1 {
            let slots = core::mem::take(&mut fetch.slots);
            return self.refetch_singly(moment, id, (volume, first, level), &slots, &readers);
        }
        let slot = fetch.slots[0];
        let key = self.key(volume, first);
        let held = &self.levels[usize::from(level.0)];
        let is_there = held.find(volume, key) == Some(slot);
        if is_there && held.is_dirty(slot) {
            if kind == ErrorKind::Corrupt {
                self.note_sick(moment, volume, level, slot);
            }
            for reader in readers {
                self.end_part(reader.request, Err(kind));
            }
            return self.end_fetch(moment, id);
        }
        let is_bad = is_there && kind == ErrorKind::Corrupt;
        if is_bad {
            self.drop_copy(volume, usize::from(level.0), slot, false);
            self.actions.push(Action::Report(Event::CorruptCleanDropped { key, level }));
        }
        let op = self.ops.get_mut(id.0);
        let Task::Fetch(fetch) = &mut op.task else { panic!("only a fetch is fetched again") };
        (fetch.from, fetch.readers) = (None, readers);
        fetch.is_held = is_there && !is_bad;
        fetch.slots.clear();
        self.submit_fetch(id);
    }

    fn refetch_singly(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        (volume, first, level): (u16, BlockIndex, LevelIndex),
        slots: &[Slot],
        readers: &[Reader],
    ) {
        // Whatever queued behind the run moves behind the single fetches through `finish`.
        let queue = core::mem::take(&mut self.ops.get_mut(id.0).queue);
        self.count_ahead_out(id);
        // A discard that waits for the run must not begin before the single fetches have ended.
        self.release_blocks(moment, id);
        for (index, slot) in slots.iter().enumerate() {
            let block = BlockIndex(first.0 + index as u64);
            let mine = readers.iter().filter(|r| r.index as usize == index);
            let run = Run {
                from: Some(level),
                first: block,
                slots: Few::from_slice(&[*slot]),
                readers: mine.map(|r| Reader { index: 0, ..*r }).collect(),
                count: 1,
            };
            self.start_fetch(volume, Some(run), Sought::Asked);
            let op = self.busy[&self.key(volume, block)];
            let behind = queue.iter().filter(|piece| piece.block == block).copied();
            self.ops.get_mut(op.0).queue.extend(behind);
        }
    }

    /// A dirty block is unreadable: keep it, out of the way of background work.
    pub(crate) fn note_sick(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        level: LevelIndex,
        slot: Slot,
    ) {
        let held = &mut self.levels[usize::from(level.0)];
        if !held.is_sick(slot) {
            held.set_sick(volume, slot);
            let key = held.key(slot);
            if self.destaging.get(&key).is_some_and(|mark| mark.level == level) {
                held.sick_destaging.insert(key);
            }
            self.actions.push(Action::Report(Event::CorruptDirtyKept { key, level }));
        }
        self.levels[usize::from(level.0)].on_hit(moment, volume, slot);
    }

    /// These readers of a run that could not be read read their blocks one by one, before what
    /// waits for the run.
    pub(crate) fn read_anew(&mut self, moment: &mut Moment<'_>, id: OpId, readers: &[Reader]) {
        let op = self.ops.get_mut(id.0);
        // They counted when they joined, and count again where they are found.
        let counted = readers.iter().filter(|reader| reader.part.length > 0).count() as u64;
        self.volumes.get_mut(op.volume).counters.misses -= counted;
        for Reader { request, index, part } in readers.iter().rev().copied() {
            let block = BlockIndex(op.first.0 + u64::from(index));
            op.queue.push_front(Piece { request, block, part, want: Want::Read });
        }
        self.end_fetch(moment, id);
    }
}

/// Readers by requests that read all blocks of a run, so the bad ones, too, and those that do not.
fn part_of_whole(readers: Readers, count: u32) -> (Readers, Readers) {
    let mut blocks: FixedMap<RequestId, u32> = FixedMap::default();
    for reader in &readers {
        *blocks.entry(reader.request).or_default() += 1;
    }
    readers.into_iter().partition(|reader| blocks[&reader.request] == count)
}
