//! Parity pages behind a checkpoint's chunks: a chunk that lost more than one sector is rebuilt.
//!
//! How: chunk `i` counts in page `i` modulo the number of pages; a page is the sum (exclusive or)
//! of its chunks, as RAID 5 has it. A page is needed where a chunk's own parity, which makes up for
//! one sector, does not reach. Both sides know the number of pages from the number of chunks.
//! Invariant: what is rebuilt is taken only where its own checksum says that it is that chunk.
//! Where an area has no room for them, or they are of another run, chunks are as they were without.
//! Cost: a page per 32 to 64 chunks, up to 16; 64 KiB of memory per checkpoint under way or read.
//! Source: Patterson et al., SIGMOD 1988, section 11 (level 5), within one device.

use super::log_layout::TRAILER_BLOCKS;
use layby_types::parity::PAGE_BYTES;

/// Parity pages at most, a power of two.
const PAGES_MAX: u32 = 16;
/// Chunks per page at least, where there are so many.
const CHUNKS_PER_PAGE: u32 = 32;

/// Parity pages behind `chunks` chunks in an area of `area_blocks` blocks, its trailer included.
pub(super) fn pages_of(chunks: u32, area_blocks: u32) -> u32 {
    let wanted = 1 << (chunks / CHUNKS_PER_PAGE).clamp(1, PAGES_MAX).ilog2();
    let fits = chunks.checked_add(wanted + TRAILER_BLOCKS).is_some_and(|end| end <= area_blocks);
    if chunks > 0 && fits { wanted } else { 0 }
}

/// The sums of chunks that were written or read so far.
#[derive(Clone, Debug)]
pub(super) struct Sums(Vec<u8>);

impl Sums {
    pub(super) fn new() -> Self {
        Sums(vec![0; PAGES_MAX as usize * PAGE_BYTES])
    }

    /// Counts chunk `index`.
    pub(super) fn add(&mut self, index: u32, page: &[u8]) {
        let at = (index % PAGES_MAX) as usize * PAGE_BYTES;
        add(&mut self.0[at..at + PAGE_BYTES], page);
    }

    /// Adds what page `page` of `pages` is to hold.
    pub(super) fn put(&self, page: u32, pages: u32, into: &mut [u8]) {
        let own = (page..PAGES_MAX).step_by(pages as usize);
        for at in own.map(|class| class as usize * PAGE_BYTES) {
            add(into, &self.0[at..at + PAGE_BYTES]);
        }
    }
}

fn add(sum: &mut [u8], page: &[u8]) {
    sum[..PAGE_BYTES].iter_mut().zip(page).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: any one chunk of each page comes back, for any number of chunks. Method: chunks of
    /// noise, each left out in turn.
    #[test]
    fn one_chunk_of_each_page_comes_back() {
        let mut rng = Rng::new(5);
        for chunks in [1, 2, 31, 32, 63, 64, 100, 600] {
            let pages = pages_of(chunks, u32::MAX);
            let noise = |_| {
                let mut page = vec![0; PAGE_BYTES];
                rng.fill(&mut page);
                page
            };
            let all: Vec<Vec<u8>> = (0..chunks).map(noise).collect();
            let sums_without = |lost: Option<u32>| {
                let mut sums = Sums::new();
                let kept = (0..chunks).filter(|index| Some(*index) != lost);
                kept.for_each(|index| sums.add(index, &all[index as usize]));
                sums
            };
            let whole = sums_without(None);
            for lost in (0..chunks).step_by(7) {
                let mut page = vec![0; PAGE_BYTES];
                whole.put(lost % pages, pages, &mut page);
                sums_without(Some(lost)).put(lost % pages, pages, &mut page);
                assert!(page == all[lost as usize], "{lost} of {chunks}");
            }
        }
        assert_eq!((pages_of(0, 9), pages_of(8, 10), pages_of(8, 11)), (0, 0, 1));
        assert_eq!((pages_of(100, 1000), pages_of(5000, 9000)), (2, 16));
    }
}
