//! What must hold of a flash device between any two calls.
//!
//! How: everything that the medium keeps twice is counted anew and compared.
//! Cost: linear in pages; for tests, and for a look after a long run.

use super::blocks::{NONE, State};
use super::ftl::Flash;
use super::medium::Medium;
use alloc::format;
use alloc::string::String;
use alloc::vec;

impl Flash {
    /// Counts anew: every mapped page has exactly one valid copy; a block's valid pages are its
    /// bits; blocks are free, open, closed or bad and linked accordingly; pages and erases add up.
    ///
    /// # Errors
    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        map(&self.medium)?;
        blocks(&self.medium)?;
        links(&self.medium)?;
        sums(&self.medium)
    }
}

fn must(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Both maps and the bitmap agree, page by page and place by place.
fn map(medium: &Medium) -> Result<(), String> {
    let mut mapped = 0;
    for (page, &place) in medium.forward.iter().enumerate().filter(|(_, place)| **place != NONE) {
        mapped += 1;
        let (block, index) = (place >> medium.shift, place & ((1 << medium.shift) - 1));
        let found = reverse(medium, block, index);
        must(found == page as u32 && is_valid(medium, block, index), || {
            format!("page {page} lies in block {block} at {index}, which holds {found}")
        })?;
    }
    must(mapped == medium.mapped_pages, || format!("{mapped} mapped pages"))?;
    let valid: u32 = medium.valid.iter().map(|word| word.count_ones()).sum();
    must(valid == mapped, || format!("{valid} valid copies of {mapped} mapped pages"))
}

fn reverse(medium: &Medium, block: u32, index: u32) -> u32 {
    medium.reverse[block as usize * medium.pages_per_block as usize + index as usize]
}

fn is_valid(medium: &Medium, block: u32, index: u32) -> bool {
    let words = medium.pages_per_block.div_ceil(64);
    medium.valid[(block * words + index / 64) as usize] & (1 << (index % 64)) != 0
}

/// Counts per block, and that no erased or bad block holds anything.
fn blocks(medium: &Medium) -> Result<(), String> {
    for (number, block) in medium.blocks.iter().enumerate() {
        let bits = (0..medium.pages_per_block).filter(|&at| is_valid(medium, number as u32, at));
        let valid = bits.count() as u32;
        must(valid == block.valid, || {
            format!("block {number} counts {} valid, has {valid}", block.valid)
        })?;
        let holds = !matches!(block.state, State::Free | State::Bad);
        must(holds || valid == 0, || format!("block {number} is {:?} and holds", block.state))?;
        must(block.state != State::Held, || format!("block {number} is between two states"))?;
    }
    Ok(())
}

/// Exactly the closed blocks are candidates, free ones queued, open ones written to.
fn links(medium: &Medium) -> Result<(), String> {
    let mut seen = vec![None; medium.blocks.len()];
    let mut note = |block: u32, state: State| {
        let before = seen[block as usize].replace(state);
        must(before.is_none(), || format!("block {block} is in two places"))
    };
    for list in medium.ranking.occupied() {
        for block in medium.ranking.members(&medium.blocks, list) {
            note(block, State::Closed)?;
        }
    }
    medium.free.iter().try_for_each(|&block| note(block, State::Free))?;
    let open = medium.open.iter().filter(|open| open.block != NONE);
    for open in open {
        note(open.block, State::Open)?;
    }
    for (number, (block, seen)) in medium.blocks.iter().zip(&seen).enumerate() {
        let found = seen.unwrap_or(State::Bad);
        must(found == block.state, || {
            format!("block {number} is {:?} and found as {found:?}", block.state)
        })?;
    }
    Ok(())
}

/// Pages and erases by cause add up to what the blocks saw.
fn sums(medium: &Medium) -> Result<(), String> {
    let erases: u64 = medium.blocks.iter().map(|block| u64::from(block.erases)).sum();
    let counted = medium.statistics.erases();
    must(erases == counted, || format!("blocks saw {erases} erases, counted are {counted}"))?;
    let bad = medium.blocks.iter().filter(|block| block.state == State::Bad).count() as u32;
    must(bad == medium.bad_blocks, || format!("{bad} bad blocks"))
}
