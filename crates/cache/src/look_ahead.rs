//! Looking at blocks shortly before they are asked for.
//!
//! How: a hit waits for one place in memory after the other. For several blocks at once the waits
//! overlap: first the indexes are asked for likely slots, then all that a hit reads of them, then
//! what that points to.
//! Invariant: nothing changes. Cost: a fraction of the hits that it makes faster. Not for: a
//! cache whose metadata the processor keeps at hand anyway, or requests that are not known ahead.

use crate::cache::Cache;
use crate::hash::mix;
use crate::level::Level;
use layby_types::{BlockIndex, BlockKey, VolumeId};
use smallvec::SmallVec;

/// Blocks worth looking at at once.
pub const LOOKAHEAD_MAX: usize = 32;

/// Levels with hashes or slots there: room for the levels that nodes have.
type Looks<T> = SmallVec<[(u8, T); 4 * LOOKAHEAD_MAX]>;

impl Cache {
    /// Brings what reads of `blocks` will look at into the processor's caches.
    pub fn look_ahead(&self, blocks: &[(VolumeId, BlockIndex)]) {
        for blocks in blocks.chunks(LOOKAHEAD_MAX) {
            let (mut asked, mut likely) = (Looks::<u64>::new(), Looks::<u32>::new());
            self.ask(blocks, &mut asked);
            // Kind by kind: within one, nothing waits for anything else.
            let mut seen = self.each(&asked, Level::touch_index);
            for (index, hash) in &asked {
                if let Some(slot) = self.levels[usize::from(*index)].guess(*hash) {
                    likely.push((*index, slot));
                }
            }
            seen ^= self.each(&likely, Level::glance);
            seen ^= self.each(&likely, Level::glance_around);
            // The loads above are wanted for their effect on the processor's caches.
            core::hint::black_box(seen);
        }
    }

    /// The levels that may have the blocks, and the blocks' hashes.
    #[inline]
    fn ask(&self, blocks: &[(VolumeId, BlockIndex)], asked: &mut Looks<u64>) {
        for (id, block) in blocks {
            let Some(volume) = self.volumes.number(*id) else { continue };
            let hash = mix(BlockKey::new(*id, *block).0);
            for (index, level) in self.levels.iter().enumerate() {
                if level.is_looked_up(volume) {
                    asked.push((index as u8, hash));
                }
            }
        }
    }

    #[inline]
    fn each<T: Copy>(&self, looks: &[(u8, T)], look: impl Fn(&Level, T) -> u64) -> u64 {
        let one = |seen, (index, at): &(u8, T)| seen ^ look(&self.levels[usize::from(*index)], *at);
        looks.iter().fold(0, one)
    }
}
