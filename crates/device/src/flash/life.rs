//! How a device ends: blocks that may be erased so often, and a capacity that stays or shrinks.
//!
//! How: a block at its endurance, or one that fails, is bad for good. A device of fixed capacity
//! fails when bad blocks have used up what is spare. One of variable capacity gives up pages that
//! nobody wrote, once and all of them, or as many as each loss needs, and goes on.
//! Invariant: no page that the host wrote is ever given up. Cost: one bit per logical page where
//! the capacity varies, a look at every page when it changes.

use super::configuration::Geometry;
use super::ftl::Failure;
use super::medium::Medium;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Rng;

/// How often blocks may be erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endurance {
    /// Erases of a typical block; at the last of them it goes bad.
    pub erases: u32,
    /// Blocks differ by up to so many percent either way, evenly.
    pub spread_percent: u8,
}

impl Endurance {
    /// A block that is erased must have held something.
    pub const ERASES_MIN: u32 = 1;
    /// Beyond any flash.
    pub const ERASES_MAX: u32 = 1 << 24;
    /// QLC, in the HotStorage paper.
    pub const ERASES_DEFAULT: u32 = 500;
    /// Blocks that differ wholly.
    pub const SPREAD_PERCENT_MAX: u8 = 99;
    /// All blocks alike.
    pub const SPREAD_PERCENT_MIN: u8 = 0;
    /// As in the paper.
    pub const SPREAD_PERCENT_DEFAULT: u8 = 0;

    /// A limit for each block, or one for all of them.
    pub(super) fn limits(self, blocks: u32, rng: &mut Rng) -> Vec<u32> {
        if self.spread_percent == 0 {
            return vec![self.erases];
        }
        let reach = u64::from(self.erases) * u64::from(self.spread_percent) / 100;
        let least = u64::from(self.erases) - reach;
        (0..blocks).map(|_| (least + rng.below(2 * reach + 1)).max(1) as u32).collect()
    }
}

/// What becomes of the exported capacity when blocks go bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Capacity {
    /// It stays, until the device fails with its last spare block.
    #[default]
    Fixed,
    /// When the spare blocks are gone, all pages that the host never wrote are given up, once; then
    /// the device goes on until no block can be cleaned (the HotStorage authors' simulator).
    ReleaseOnce,
    /// Over-provisioning stays: each bad block takes a block's pages from the exported capacity.
    /// Pages that the host never wrote are given up first, from the top. The device fails when
    /// pages that hold something, or `pages_min`, are more than what is left.
    Shrinking {
        /// Fewest pages that are of use to the host.
        pages_min: u32,
    },
}

#[derive(Debug)]
pub(super) struct Life {
    capacity: Capacity,
    spare_blocks: u32,
    logical_pages: u32,
    pages_per_block: u32,
    /// One bit per page that the host wrote; empty where the capacity is fixed.
    owned: Vec<u64>,
    /// Whether writes are the host's, and not those of preconditioning.
    pub(super) owning: bool,
    released: bool,
    /// Pages from here on were given up unless somebody wrote them.
    released_from: u32,
    bad_blocks_seen: u32,
}

impl Life {
    pub(super) fn new(geometry: &Geometry, capacity: Capacity) -> Self {
        let words = match capacity {
            Capacity::Fixed => 0,
            _ => (geometry.logical_pages as usize).div_ceil(64),
        };
        Life {
            capacity,
            spare_blocks: geometry.spare_blocks(),
            logical_pages: geometry.logical_pages,
            pages_per_block: geometry.pages_per_block,
            owned: vec![0; words],
            owning: true,
            released: false,
            released_from: geometry.logical_pages,
            bad_blocks_seen: 0,
        }
    }
    #[inline]
    pub(super) fn on_written(&mut self, page: u32) {
        if self.owning
            && let Some(word) = self.owned.get_mut((page / 64) as usize)
        {
            *word |= 1 << (page % 64);
        }
    }
    pub(super) fn owns(&self, page: u32) -> bool {
        self.owned.get((page / 64) as usize).is_some_and(|word| word & (1 << (page % 64)) != 0)
    }
    /// Pages that the device still promises to hold.
    pub(super) fn exported_pages(&self) -> u32 {
        match self.capacity {
            Capacity::Fixed | Capacity::ReleaseOnce => self.logical_pages,
            Capacity::Shrinking { .. } => {
                let lost = u64::from(self.bad_blocks_seen) * u64::from(self.pages_per_block);
                u64::from(self.logical_pages).saturating_sub(lost) as u32
            }
        }
    }
    /// Draws the consequences of blocks that went bad since the last call.
    pub(super) fn on_retired(&mut self, medium: &mut Medium) -> Option<Failure> {
        if medium.bad_blocks == self.bad_blocks_seen {
            return None;
        }
        self.bad_blocks_seen = medium.bad_blocks;
        let spent = medium.bad_blocks >= self.spare_blocks;
        match self.capacity {
            Capacity::Fixed => spent.then_some(Failure::WornOut),
            Capacity::ReleaseOnce => {
                if !self.released && (spent || medium.free.len() <= 1) {
                    self.released = true;
                    self.release(medium, 0);
                }
                None
            }
            Capacity::Shrinking { pages_min } => {
                let exported = self.exported_pages();
                self.release(medium, exported);
                let small = exported < pages_min || medium.mapped_pages > exported;
                small.then_some(Failure::TooSmall)
            }
        }
    }
    /// Gives up pages that the host never wrote, from the top, until `mapped` are left.
    fn release(&mut self, medium: &mut Medium, mapped: u32) {
        while self.released_from > 0 && medium.mapped_pages > mapped {
            self.released_from -= 1;
            let page = self.released_from;
            if !self.owns(page) {
                medium.statistics.released_pages += u64::from(medium.unmap(page));
            }
        }
    }
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.owned.as_slice())
    }
}
