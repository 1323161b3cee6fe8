//! Reserved room for dirty blocks: what each volume has of a persistent level, whatever the others
//! write.
//!
//! How: a dirty block leaves a level only by write-back. Where its backing store is full or gone, a
//! volume would fill the level, and every other volume's writes would fail though their backing
//! stores are sound. So a part of each persistent level is reserved: a sixteenth, in equal parts,
//! and what is guaranteed, up to a quarter of the level. While more of a level is dirty than the
//! rest, a volume makes blocks dirty only up to its part or its guarantee; beyond that its stores
//! wait until blocks of its own are written back.
//! Invariant: a store that waits for that belongs to a volume with a dirty block, or with one that
//! becomes dirty.
//! Cost: a comparison per block stored; where the level is that dirty, a walk over the volumes.
//! Not for: a volume alone in its level, which may use all of it.

use crate::action::OpId;
use crate::cache::Cache;
use crate::level::Scope;
use crate::op::Task;

/// One in so many slots of a level is kept, in equal parts for its volumes.
const KEPT: u32 = 16;
/// One in so many at most is kept for guarantees.
const GUARANTEED: u32 = 4;

/// What volumes have and may have of a level that is about as dirty as it may be.
#[derive(Default)]
struct Claims {
    /// Volumes that may use the level.
    sharers: u32,
    /// Slots that are guaranteed to some class or volume.
    guaranteed: u32,
    /// Slots of the volume's class that are or will be dirty.
    unclean_class: u32,
}

impl Cache {
    /// Whether one more block of the volume may become dirty in a persistent level.
    pub(crate) fn may_dirty(&self, level: usize, volume: u16) -> bool {
        let held = &self.levels[level];
        let (unclean, limit) = (held.dirty + held.storing, held.limit);
        if unclean < limit - limit / KEPT - limit / GUARANTEED || limit == 0 {
            return true;
        }
        let claims = self.claims(level, volume);
        let kept = limit / KEPT + claims.guaranteed.min(limit / GUARANTEED);
        if unclean < limit - kept || kept == 0 || claims.sharers <= 1 {
            return true;
        }
        let class = &self.volumes.class(volume).shares[level];
        let holding = held.holding(volume);
        let part = (limit / KEPT / claims.sharers).max(self.share(level, volume).guaranteed).max(1);
        holding.dirty + holding.storing < part || claims.unclean_class < class.guaranteed
    }

    fn claims(&self, level: usize, volume: u16) -> Claims {
        let of_class = self.volumes.get(volume).class;
        let by_class = self.volumes.classes.iter().map(|class| class.shares[level].guaranteed);
        let mut claims = Claims { guaranteed: by_class.sum(), ..Claims::default() };
        for (number, state) in self.volumes.iter() {
            let (share, holding) = (self.share(level, number), self.levels[level].holding(number));
            claims.sharers += u32::from(share.cap > 0);
            // A class's guarantee holds those of its volumes.
            let is_alone = self.volumes.classes[state.class].shares[level].guaranteed == 0;
            claims.guaranteed += if is_alone { share.guaranteed } else { 0 };
            let is_sibling = state.class == of_class;
            claims.unclean_class += if is_sibling { holding.dirty + holding.storing } else { 0 };
        }
        claims
    }

    /// Whose blocks have to yield for an operation that waits for room: its own volume's where
    /// that may make no more blocks dirty.
    pub(crate) fn yielding_scope(&self, level: usize, id: OpId) -> Scope {
        let op = self.ops.get(id.0);
        let is_store = matches!(op.task, Task::Store(_));
        if is_store && !self.may_dirty(level, op.volume) {
            return Scope::Volume;
        }
        self.scope(level, op.volume)
    }
}
