//! The translation layer as its host sees it: write, trim, and what came of it.
//!
//! How: room is made before a page is taken in, so that a refused write changes nothing.
//! Invariant: see [`Flash::check`]. Cost: constant per page, amortised over cleaning.

use super::blocks::State;
use super::cleaning;
use super::configuration::{Configuration, ConfigurationError, Opening, TrimOrder};
use super::life::Life;
use super::medium::{Cause, Medium};
use super::statistics::Statistics;
use super::wear::Leveler;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use layby_types::Rng;

/// A page as the host numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalPage(pub u32);

/// A block of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNumber(pub u32);

/// A stream, or an FDP placement handle, that a write names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stream(pub u16);

/// Why a device takes no more writes. What it holds stays readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No block can be opened, and none would yield a page: all is valid, or too little is spare
    /// for the number of streams.
    NoRoom,
    /// As many blocks are bad as were spare.
    WornOut,
    /// The capacity shrank below what is in use, or below what is of use.
    TooSmall,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoRoom => write!(out, "flash: no free block, and cleaning would yield none"),
            Failure::WornOut => write!(out, "flash: as many blocks are bad as were spare"),
            Failure::TooSmall => write!(out, "flash: fewer pages left than in use or of use"),
        }
    }
}

/// A flash device that counts.
#[derive(Debug)]
pub struct Flash {
    pub(super) configuration: Configuration,
    pub(super) medium: Medium,
    pub(super) failure: Option<Failure>,
    trims: Trims,
    life: Life,
    leveler: Option<Box<dyn Leveler>>,
    /// Whether the leveler moves data; it chooses victims always.
    leveling: bool,
    rng: Rng,
}

/// Trims that were accepted and have not taken effect.
#[derive(Debug, Default)]
struct Trims {
    waiting: VecDeque<Waiting>,
    /// One bit per logical page: trimmed and not written since. Empty where trims never wait.
    pending: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// In effect once the host has written so many pages.
    due: u64,
    first: u32,
    end: u32,
}

/// Trims that wait at most; beyond, the oldest takes effect early.
const TRIMS_WAITING_MAX: usize = 1 << 16;

impl Flash {
    /// An erased device.
    ///
    /// # Errors
    /// The configuration is no device.
    pub fn new(configuration: &Configuration) -> Result<Flash, ConfigurationError> {
        configuration.checked()?;
        let defers =
            matches!(configuration.trim.order, TrimOrder::AfterPages(_) | TrimOrder::Served);
        let words = (configuration.geometry.logical_pages as usize).div_ceil(64);
        let pending = if defers { vec![0; words] } else { Vec::new() };
        let (mut medium, mut rng) = (Medium::new(configuration), Rng::new(configuration.seed));
        for _ in 0..configuration.bad_blocks {
            let at = rng.below(medium.free.len() as u64) as usize;
            let block = medium.free[at];
            medium.hold_free(block);
            medium.retire(block);
        }
        if let Some(endurance) = configuration.endurance {
            medium.endurance = endurance.limits(configuration.geometry.blocks, &mut rng);
        }
        let leveler = configuration.leveling.leveler(&medium, &mut rng);
        let mut flash = Flash {
            medium,
            failure: None,
            trims: Trims { waiting: VecDeque::new(), pending },
            life: Life::new(&configuration.geometry, configuration.capacity),
            leveler,
            leveling: false,
            rng,
            configuration: configuration.clone(),
        };
        flash.set_leveling(true);
        flash.age();
        Ok(flash)
    }
    /// Lets the wear leveler move data, or not; that one which chooses victims goes on.
    pub fn set_leveling(&mut self, on: bool) {
        self.leveling = on;
        match &mut self.leveler {
            Some(leveler) if on => leveler.on_resumed(&mut self.medium),
            _ => self.medium.touched = None,
        }
    }
    /// Says whether writes from now on are the host's own. Those that are not may be given up when
    /// the capacity varies.
    pub fn set_owning(&mut self, on: bool) {
        self.life.owning = on;
    }

    /// Writes a page.
    ///
    /// # Errors
    /// The device has failed or fails now; the page keeps what it held.
    ///
    /// # Panics
    /// `page` or `stream` is not the device's.
    #[inline]
    pub fn write(&mut self, page: LogicalPage, stream: Stream) -> Result<(), Failure> {
        assert!(stream.0 < self.configuration.streams, "a stream of the device");
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if !self.medium.is_open(stream.0) {
            self.make_room(stream.0)?;
        }
        self.medium.write(stream.0, page.0);
        self.after_write(page, stream);
        Ok(())
    }
    /// Writes `count` pages in a row.
    ///
    /// # Errors
    /// As [`Self::write`]; pages before the one that failed are written.
    ///
    /// # Panics
    /// A page or `stream` is not the device's.
    pub fn write_run(
        &mut self,
        first: LogicalPage,
        count: u32,
        stream: Stream,
    ) -> Result<(), Failure> {
        (first.0..first.0 + count).try_for_each(|page| self.write(LogicalPage(page), stream))
    }
    /// Says that `count` pages from `first` are of no more use. How much of that takes effect, and
    /// when, is the configuration's [`super::TrimRule`].
    ///
    /// # Panics
    /// A page is not the device's.
    pub fn trim(&mut self, first: LogicalPage, count: u32) {
        self.trim_served(first, count, None);
    }
    /// The same by a device that will have served it at a time, in nanoseconds.
    pub(super) fn trim_served(&mut self, first: LogicalPage, count: u32, served: Option<u64>) {
        let last = first.0.checked_add(count).expect("a range of pages");
        assert!(last <= self.logical_pages(), "pages of the device");
        self.medium.statistics.trims += 1;
        self.medium.statistics.trim_pages += u64::from(count);
        let granule = self.configuration.trim.granularity_pages;
        let (begin, end) = (first.0.div_ceil(granule) * granule, last / granule * granule);
        match (self.configuration.trim.order, served) {
            (TrimOrder::InOrder, _) | (TrimOrder::Served, None) => self.unmap(begin, end),
            (TrimOrder::Served, Some(at)) => self.defer(begin, end, at),
            (TrimOrder::AfterPages(pages), _) => {
                let due = self.medium.statistics.host_pages + u64::from(pages);
                self.defer(begin, end, due);
            }
            (TrimOrder::Ignored, _) => {}
        }
    }
    /// Trims that were served until `now` take effect, in nanoseconds; see [`TrimOrder::Served`].
    pub(super) fn serve_trims(&mut self, now: u64) {
        if self.configuration.trim.order == TrimOrder::Served {
            while self.trims.waiting.front().is_some_and(|waiting| waiting.due <= now) {
                self.take_effect();
            }
        }
    }
    fn unmap(&mut self, begin: u32, end: u32) {
        for page in begin..end {
            self.medium.statistics.trimmed_pages += u64::from(self.medium.unmap(page));
        }
    }
    fn defer(&mut self, begin: u32, end: u32, due: u64) {
        if begin >= end {
            return;
        }
        if self.trims.waiting.len() >= TRIMS_WAITING_MAX {
            self.take_effect();
        }
        for page in begin..end {
            self.trims.pending[(page / 64) as usize] |= 1 << (page % 64);
        }
        self.trims.waiting.push_back(Waiting { due, first: begin, end });
    }
    /// The oldest waiting trim takes effect, where pages were not written since.
    fn take_effect(&mut self) {
        let Some(waiting) = self.trims.waiting.pop_front() else { return };
        for page in waiting.first..waiting.end {
            let word = &mut self.trims.pending[(page / 64) as usize];
            let bit = 1 << (page % 64);
            if *word & bit != 0 {
                *word &= !bit;
                self.medium.statistics.trimmed_pages += u64::from(self.medium.unmap(page));
            }
        }
    }
    /// All trims that wait take effect.
    pub fn settle_trims(&mut self) {
        while !self.trims.waiting.is_empty() {
            self.take_effect();
        }
    }
    /// Whether a read of the page would find what was written: it is mapped and not trimmed.
    #[must_use]
    pub fn holds(&self, page: LogicalPage) -> bool {
        let pending = self.trims.pending.get((page.0 / 64) as usize);
        let trimmed = pending.is_some_and(|word| word & (1 << (page.0 % 64)) != 0);
        !trimmed && self.medium.forward[page.0 as usize] != super::blocks::NONE
    }

    #[inline]
    fn after_write(&mut self, page: LogicalPage, stream: Stream) {
        if !self.trims.pending.is_empty() {
            self.order_trims(page);
        }
        self.life.on_written(page.0);
        if self.configuration.opening == Opening::AtOnce && !self.medium.is_open(stream.0) {
            self.open_at_once(stream.0);
        }
        if self.leveling
            && let Some(leveler) = &mut self.leveler
        {
            leveler.on_written(&mut self.medium);
            self.age();
        }
    }
    fn order_trims(&mut self, page: LogicalPage) {
        self.trims.pending[(page.0 / 64) as usize] &= !(1 << (page.0 % 64));
        if self.configuration.trim.order == TrimOrder::Served {
            return;
        }
        let written = self.medium.statistics.host_pages;
        while self.trims.waiting.front().is_some_and(|waiting| waiting.due <= written) {
            self.take_effect();
        }
    }

    /// Opens a block for the host's next page of `slot`, cleaning first where few are free.
    fn make_room(&mut self, slot: u16) -> Result<(), Failure> {
        if self.configuration.opening == Opening::OnDemand {
            self.clean_until(|flash| flash.medium.is_open(slot));
            self.clean_ahead();
        }
        if self.medium.is_open(slot) {
            return Ok(());
        }
        // The last free block is cleaning's: without it nothing could ever be freed again.
        let kept = usize::from(self.configuration.opening == Opening::OnDemand);
        if self.medium.free.len() <= kept {
            self.failure = Some(Failure::NoRoom);
            return Err(Failure::NoRoom);
        }
        self.medium.open_block(slot);
        Ok(())
    }
    /// Opens the next block as soon as one is full, and cleans until enough are free.
    fn open_at_once(&mut self, slot: u16) {
        loop {
            if !self.medium.is_open(slot) {
                if self.medium.free.is_empty() {
                    return;
                }
                self.medium.open_block(slot);
            }
            if self.enough_free() {
                return;
            }
            self.clean_until(|flash| !flash.medium.is_open(slot));
            if self.medium.is_open(slot) {
                return;
            }
        }
    }
    fn enough_free(&self) -> bool {
        self.medium.free.len() >= self.configuration.free_blocks_min as usize
    }
    /// Cleans until enough blocks are free, `reached` holds, or nothing more can be gained.
    fn clean_until(&mut self, reached: impl Fn(&Flash) -> bool) {
        // Victims of LRU cleaning may yield nothing; one round over all blocks is enough to know.
        for _ in 0..=self.medium.blocks.len() {
            if self.enough_free() || reached(self) || !self.clean() {
                return;
            }
        }
    }
    /// Cleans what the configuration says is worth it, though room is not short.
    fn clean_ahead(&mut self) {
        let Some(ahead) = self.configuration.ahead else { return };
        let full_enough = self.medium.pages_per_block - ahead.invalid_pages_min;
        for _ in 0..self.medium.blocks.len() {
            let free = self.medium.free.len() >= ahead.free_blocks as usize;
            let victim = cleaning::victim(&self.medium, self.configuration.cleaning);
            let yields = |block: u32| self.medium.blocks[block as usize].valid <= full_enough;
            if free || !victim.is_some_and(yields) || !self.clean() {
                return;
            }
        }
    }
    /// Cleans one block; `false` where there is none to gain from or no place for its pages.
    fn clean(&mut self) -> bool {
        let Some(victim) = self.victim() else { return false };
        if !self.medium.can_evacuate(victim) {
            return false;
        }
        self.medium.hold(victim);
        self.medium.evacuate(victim, Cause::Cleaning);
        let usable = self.medium.erase_and_release(victim, Cause::Cleaning);
        if let Some(leveler) = &mut self.leveler
            && usable
            && self.leveling
        {
            leveler.on_cleaned(&mut self.medium, victim);
        }
        self.age();
        true
    }
    fn victim(&mut self) -> Option<u32> {
        let leveler = self.leveler.as_mut();
        let chosen = leveler.and_then(|leveler| leveler.victim(&self.medium, &mut self.rng));
        let Some(victim) = chosen else {
            return cleaning::victim(&self.medium, self.configuration.cleaning);
        };
        let lowest = self.medium.ranking.lowest(0).unwrap_or_default() as u64;
        let valid = u64::from(self.medium.blocks[victim as usize].valid);
        self.medium.statistics.leveling_excess_pages += valid - lowest;
        Some(victim)
    }
    /// Draws the consequences of blocks that went bad.
    fn age(&mut self) {
        let failure = self.life.on_retired(&mut self.medium);
        self.failure = self.failure.or(failure);
    }

    /// A block fails, as by a refused program or too many bit errors: its valid pages are copied
    /// elsewhere and it is never used again. One that is bad already stays so.
    ///
    /// # Errors
    /// There is no room for its pages; the block stays in use.
    ///
    /// # Panics
    /// The device has no such block.
    pub fn fail_block(&mut self, block: BlockNumber) -> Result<(), Failure> {
        let block = block.0;
        // The block that goes may be the one that cleaning would need.
        self.clean_until(|_| false);
        if self.medium.blocks[block as usize].state == State::Open {
            let slot = self.medium.blocks[block as usize].slot;
            self.medium.close_slot(slot);
        }
        match self.medium.blocks[block as usize].state {
            State::Bad => return Ok(()),
            State::Free => self.medium.hold_free(block),
            _ if !self.medium.can_evacuate(block) => return Err(Failure::NoRoom),
            _ => {
                self.medium.hold(block);
                self.medium.evacuate(block, Cause::Rescue);
            }
        }
        self.medium.retire(block);
        self.age();
        Ok(())
    }

    /// Counters since the device was made.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.medium.statistics
    }
    /// Why the device takes no more writes, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }
    /// Pages that the host may address.
    #[must_use]
    pub fn logical_pages(&self) -> u32 {
        self.medium.forward.len() as u32
    }
    /// Pages that the device still promises to hold; fewer than [`Self::logical_pages`] only where
    /// the capacity shrinks.
    #[must_use]
    pub fn exported_pages(&self) -> u32 {
        self.life.exported_pages()
    }
    /// Pages that hold something, trimmed ones that wait included.
    #[must_use]
    pub fn mapped_pages(&self) -> u32 {
        self.medium.mapped_pages
    }
    /// Erased blocks.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.medium.free.len() as u32
    }
    /// Blocks out of use.
    #[must_use]
    pub fn bad_blocks(&self) -> u32 {
        self.medium.bad_blocks
    }
    /// How often each block in use was erased, lowest first.
    #[must_use]
    pub fn erases_sorted(&self) -> Vec<u32> {
        let used = self.medium.blocks.iter().filter(|block| block.state != State::Bad);
        let mut erases: Vec<u32> = used.map(|block| block.erases).collect();
        erases.sort_unstable();
        erases
    }
    /// How often a block was erased, and how many of its pages are valid.
    ///
    /// # Panics
    /// The device has no such block.
    #[must_use]
    pub fn block(&self, block: BlockNumber) -> (u32, u32) {
        let block = &self.medium.blocks[block.0 as usize];
        (block.erases, block.valid)
    }
    /// Bytes of memory that the model holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let pending = size_of_val(self.trims.pending.as_slice());
        let pending = pending + self.life.bytes();
        self.medium.bytes() + pending + self.trims.waiting.capacity() * size_of::<Waiting>()
    }
}
