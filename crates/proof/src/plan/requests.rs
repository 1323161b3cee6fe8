//! Requests of whole blocks, of which bursts are made.
//!
//! Invariant: each lies within a volume of [`BLOCKS`]. Cost: none.
//! Not for: requests of sectors; see `plan` and `lengths`.

use super::{Act, BLOCK, BLOCKS};
use layby_types::{Call, CallFlags, Operation, Rng};
use std::ops::Range;

/// Blocks that a request of a burst covers at most.
const BLOCKS_MAX: u64 = 8;

/// A few blocks within a range that has some.
pub(super) fn draw_part(rng: &mut Rng, blocks: Range<u64>) -> Range<u64> {
    let first = blocks.start + rng.below(blocks.end - blocks.start);
    first..(first + 1 + rng.below(BLOCKS_MAX)).min(blocks.end)
}

/// All other blocks of a volume, in requests of a few.
pub(super) fn others(blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let step = BLOCKS_MAX as usize;
    let cut = |range: Range<u64>| {
        range.clone().step_by(step).map(move |at| at..(at + BLOCKS_MAX).min(range.end))
    };
    cut(0..blocks.start).chain(cut(blocks.end..BLOCKS))
}

/// A request of the volume's first client, which bears its number.
pub(super) fn ask(volume: usize, operation: Operation, blocks: Range<u64>) -> Act {
    let (offset, length) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
    Act::Ask(volume, Call { cookie: 0, operation, offset, length, flags: CallFlags::default() })
}
