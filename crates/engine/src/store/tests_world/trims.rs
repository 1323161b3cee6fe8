//! The world's trims: a tombstone in the log, zeros below, and the word that they are there.

use super::{BlockKeyParts, Pending, Undone, World, parts};

impl World {
    /// Trims a range of one volume: every second key.
    pub(super) fn trim(&mut self) {
        let Some(first) = self.draw_key() else { return };
        let count = 2 * self.rng.below(4) as usize + 1;
        let keys: Vec<usize> = (first..(first + count).min(self.size.keys)).step_by(2).collect();
        if keys.iter().any(|key| self.busy[*key]) {
            return;
        }
        let version = self.version();
        for key in &keys {
            self.busy[*key] = true;
        }
        let ticket = self.ticket(Pending::Trim { first, count, version });
        let BlockKeyParts { volume, block } = parts(first);
        let blocks = keys.len() as u64;
        let io = &mut self.io;
        let seq = self.log.tombstone(io, ticket, volume, block, blocks, false, true);
        self.trims.insert(seq.0, version);
        self.undone.push(Undone { seq, first, count, zeroed: false, done_at: None });
    }

    /// Tells the log of some ranges that the backing store has zeroed.
    pub(super) fn finish_trims(&mut self) {
        for undone in &mut self.undone {
            if undone.zeroed && undone.done_at.is_none() && self.rng.chance(1, 2) {
                self.log.tombstone_done(undone.seq);
                undone.done_at = Some(self.log.forgets_issued());
            }
        }
        let durable = self.log.forgets_durable();
        self.undone.retain(|undone| undone.done_at.is_none_or(|at| durable < at));
    }
}
