//! What a flash device is made of, and by which rules it places, cleans and forgets.
//!
//! How: plain values with their bounds; [`Configuration::checked`] says what is wrong with them.
//! Invariant: a configuration that passed has room for its logical pages, and every page number
//! fits 32 bits. Cost: none.

use super::life::{Capacity, Endurance};
use super::wear::Leveling;
use core::fmt;

/// How many pages and blocks, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page; counting does not depend on it.
    pub page_bytes: u32,
    /// Pages of a block, the unit of erasing.
    pub pages_per_block: u32,
    /// Pages that the host may address.
    pub logical_pages: u32,
    /// Blocks on the medium, all told.
    pub blocks: u32,
    /// Blocks among them that are no over-provisioning: room in which cleaning works. They do not
    /// count when it is asked how many blocks may go bad.
    pub reserve_blocks: u32,
}

impl Geometry {
    /// Smallest page.
    pub const PAGE_BYTES_MIN: u32 = 512;
    /// Largest page.
    pub const PAGE_BYTES_MAX: u32 = 1 << 20;
    /// The usual unit of a mapping table.
    pub const PAGE_BYTES_DEFAULT: u32 = 4096;
    /// Fewest pages of a block.
    pub const PAGES_PER_BLOCK_MIN: u32 = 2;
    /// Most pages of a block: a superblock over many planes.
    pub const PAGES_PER_BLOCK_MAX: u32 = 1 << 16;
    /// Blocks of 1 MiB with pages of 4 KiB.
    pub const PAGES_PER_BLOCK_DEFAULT: u32 = 256;

    /// A device of `capacity_bytes` for the host and `spare_factor` of its medium beyond that, in
    /// pages of 4 KiB and blocks of 1 MiB; `reserve_blocks` come on top.
    #[must_use]
    pub fn with_spare(capacity_bytes: u64, spare_factor: f64, reserve_blocks: u32) -> Self {
        let pages_per_block = Self::PAGES_PER_BLOCK_DEFAULT;
        let logical = (capacity_bytes / u64::from(Self::PAGE_BYTES_DEFAULT)).min(1 << 31) as u32;
        let geometry = Geometry {
            page_bytes: Self::PAGE_BYTES_DEFAULT,
            pages_per_block,
            logical_pages: logical,
            blocks: 0,
            reserve_blocks,
        };
        let blocks = f64::from(geometry.logical_blocks()) / (1.0 - spare_factor.clamp(0.0, 0.99));
        Geometry { blocks: blocks as u32 + reserve_blocks, ..geometry }
    }
    /// Blocks that the logical pages fill.
    #[must_use]
    pub fn logical_blocks(&self) -> u32 {
        self.logical_pages.div_ceil(self.pages_per_block.max(1))
    }
    /// Blocks beyond the logical ones, the reserve left out: how many may go bad.
    #[must_use]
    pub fn spare_blocks(&self) -> u32 {
        self.blocks.saturating_sub(self.reserve_blocks + self.logical_blocks())
    }
}

/// Which block is cleaned next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cleaning {
    /// The fewest valid pages; among equals, the one that has been so for longest.
    #[default]
    Greedy,
    /// The most of `age x invalid / (2 x valid)`, where age is counted in host pages since the
    /// block last changed (Kawaguchi, Nishioka and Motoda 1995).
    CostBenefit,
    /// The block that was filled first, whatever it holds: LRU cleaning of the closed forms.
    Lru,
}

/// Where cleaning puts the pages that it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CopyPlacement {
    /// With the host's writes of the same stream.
    #[default]
    Shared,
    /// Into a block of their own per stream (FDP: persistently isolated handles).
    PerStream,
    /// Into one block for all streams (FDP: initially isolated handles).
    Together,
}

/// When a block is opened after one is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Opening {
    /// When the next page of its stream comes.
    #[default]
    OnDemand,
    /// At once, as FTLSim does. For one stream that shares its block with copies.
    AtOnce,
}

/// What a trim does, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRule {
    /// Only whole, aligned granules of so many pages are invalidated; the rest of a range stays
    /// as it was.
    pub granularity_pages: u32,
    /// When a trim takes effect among writes.
    pub order: TrimOrder,
}

impl TrimRule {
    /// Every single page can be trimmed.
    pub const GRANULARITY_PAGES_MIN: u32 = 1;
    /// The coarsest granule.
    pub const GRANULARITY_PAGES_MAX: u32 = 1 << 16;
}

impl Default for TrimRule {
    fn default() -> Self {
        TrimRule { granularity_pages: Self::GRANULARITY_PAGES_MIN, order: TrimOrder::InOrder }
    }
}

/// The order of trims among writes. Under every rule a page written after the trim was accepted
/// keeps what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrimOrder {
    /// Before everything that comes after it.
    #[default]
    InOrder,
    /// After this many further host pages; until then cleaning copies what was trimmed.
    AfterPages(u32),
    /// When the device has served it: a trim waits for the trims before it and takes as long as
    /// its command and its pages do, and writes go on meanwhile. Only
    /// [`super::timed::TimedFlash`] knows when that is; without a clock a trim is served at once.
    Served,
    /// Accepted and forgotten.
    Ignored,
}

/// Cleaning before room is short, as firmware does in its spare time (FEMU: below a quarter of the
/// blocks, what is invalid to an eighth).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanAhead {
    /// It goes on while fewer blocks than this are free,
    pub free_blocks: u32,
    /// and some block has at least so many invalid pages.
    pub invalid_pages_min: u32,
}

impl CleanAhead {
    /// A block that yields nothing is never cleaned.
    pub const INVALID_PAGES_MIN_MIN: u32 = 1;
}

/// A flash device's make and rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Sizes.
    pub geometry: Geometry,
    /// Streams (or FDP handles) that writes may name.
    pub streams: u16,
    /// Where cleaning copies to.
    pub copies: CopyPlacement,
    /// Which block is cleaned.
    pub cleaning: Cleaning,
    /// When blocks are opened.
    pub opening: Opening,
    /// Cleaning begins when fewer blocks than this are free.
    pub free_blocks_min: u32,
    /// Cleaning beyond that, whenever a block is opened on demand.
    pub ahead: Option<CleanAhead>,
    /// What trims do.
    pub trim: TrimRule,
    /// Who spreads erases.
    pub leveling: Leveling,
    /// How often blocks may be erased; `None`: as often as one likes.
    pub endurance: Option<Endurance>,
    /// Blocks that are bad from the start, drawn by the seed.
    pub bad_blocks: u32,
    /// What becomes of the capacity when blocks go bad.
    pub capacity: Capacity,
    /// Where all chance of the device comes from.
    pub seed: u64,
}

impl Configuration {
    /// One stream.
    pub const STREAMS_MIN: u16 = 1;
    /// As many as NVMe placement handles are ever seen with.
    pub const STREAMS_MAX: u16 = 256;
    /// No streams but one.
    pub const STREAMS_DEFAULT: u16 = 1;
    /// One block for copies.
    pub const FREE_BLOCKS_MIN_MIN: u32 = 1;
    /// More would be over-provisioning by another name.
    pub const FREE_BLOCKS_MIN_MAX: u32 = 1 << 20;
    /// FTLSim's.
    pub const FREE_BLOCKS_MIN_DEFAULT: u32 = 7;

    /// One stream, greedy cleaning, exact trims: what everything else is compared with.
    #[must_use]
    pub fn plain(geometry: Geometry) -> Self {
        Configuration {
            geometry,
            streams: Self::STREAMS_DEFAULT,
            copies: CopyPlacement::default(),
            cleaning: Cleaning::default(),
            opening: Opening::default(),
            free_blocks_min: Self::FREE_BLOCKS_MIN_DEFAULT,
            ahead: None,
            trim: TrimRule::default(),
            leveling: Leveling::default(),
            endurance: None,
            bad_blocks: 0,
            capacity: Capacity::default(),
            seed: 1,
        }
    }

    /// Says what is wrong with the values, if anything is.
    ///
    /// # Errors
    /// A value is out of its bounds, or the values contradict each other.
    pub fn checked(&self) -> Result<(), ConfigurationError> {
        let geometry = &self.geometry;
        within("page_bytes", geometry.page_bytes, Geometry::PAGE_BYTES_MIN, {
            Geometry::PAGE_BYTES_MAX
        })?;
        let (least, most) = (Geometry::PAGES_PER_BLOCK_MIN, Geometry::PAGES_PER_BLOCK_MAX);
        within("pages_per_block", geometry.pages_per_block, least, most)?;
        within("logical_pages", geometry.logical_pages, 1, u32::MAX - 1)?;
        let (least, most) = (Self::STREAMS_MIN, Self::STREAMS_MAX);
        within("streams", self.streams.into(), least.into(), most.into())?;
        let (least, most) = (Self::FREE_BLOCKS_MIN_MIN, Self::FREE_BLOCKS_MIN_MAX);
        within("free_blocks_min", self.free_blocks_min, least, most)?;
        if let Some(ahead) = self.ahead {
            let most = geometry.pages_per_block;
            let least = CleanAhead::INVALID_PAGES_MIN_MIN;
            within("ahead invalid_pages_min", ahead.invalid_pages_min, least, most)?;
            within("ahead free_blocks", ahead.free_blocks, 0, geometry.blocks)?;
        }
        let (least, most) = (TrimRule::GRANULARITY_PAGES_MIN, TrimRule::GRANULARITY_PAGES_MAX);
        within("trim granularity_pages", self.trim.granularity_pages, least, most)?;
        self.leveling.checked()?;
        if let Some(endurance) = self.endurance {
            let (least, most) = (Endurance::ERASES_MIN, Endurance::ERASES_MAX);
            within("endurance erases", endurance.erases, least, most)?;
            let most = Endurance::SPREAD_PERCENT_MAX.into();
            within("endurance spread_percent", endurance.spread_percent.into(), 0, most)?;
        }
        within("bad_blocks", self.bad_blocks, 0, geometry.spare_blocks().saturating_sub(1))?;
        self.consistent()
    }

    fn consistent(&self) -> Result<(), ConfigurationError> {
        let geometry = &self.geometry;
        let slots = u64::from(geometry.pages_per_block.next_power_of_two());
        if u64::from(geometry.blocks) * slots >= u64::from(u32::MAX) {
            return Err(ConfigurationError::TooManyPages);
        }
        let needed = u64::from(geometry.logical_blocks()) + u64::from(geometry.reserve_blocks) + 2;
        if u64::from(geometry.blocks) < needed {
            return Err(ConfigurationError::NoSpare { blocks: geometry.blocks, needed });
        }
        let shared = self.streams == 1 && self.copies == CopyPlacement::Shared;
        if self.opening == Opening::AtOnce && !shared {
            return Err(ConfigurationError::OpeningNeedsOneBlock);
        }
        if self.opening == Opening::OnDemand && self.free_blocks_min < 2 {
            return Err(ConfigurationError::OutOfBounds {
                name: "free_blocks_min where blocks are opened on demand",
                value: self.free_blocks_min,
                least: 2,
                most: Self::FREE_BLOCKS_MIN_MAX,
            });
        }
        if self.cleaning == Cleaning::Lru && self.leveling.needs_ranking() {
            return Err(ConfigurationError::LevelingNeedsRanking);
        }
        Ok(())
    }
}

fn within(name: &'static str, value: u32, least: u32, most: u32) -> Result<(), ConfigurationError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigurationError::OutOfBounds { name, value, least, most })
}

/// Why a configuration is no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigurationError {
    /// A value beyond its bounds.
    OutOfBounds {
        /// Which value.
        name: &'static str,
        /// What it is.
        value: u32,
        /// The least it may be.
        least: u32,
        /// The most it may be.
        most: u32,
    },
    /// More pages on the medium than 32 bits can number.
    TooManyPages,
    /// Too few blocks for the logical pages, the reserve, and two to work with.
    NoSpare {
        /// Blocks on the medium.
        blocks: u32,
        /// Blocks that it takes.
        needed: u64,
    },
    /// `Opening::AtOnce` is for one stream that shares its block with copies.
    OpeningNeedsOneBlock,
    /// DAGC chooses victims by valid pages, which LRU cleaning does not keep in order.
    LevelingNeedsRanking,
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigurationError::OutOfBounds { name, value, least, most } => {
                write!(out, "flash: {name} is {value}; it must lie in {least}..={most}")
            }
            ConfigurationError::TooManyPages => {
                write!(out, "flash: more pages than 32 bits can number; use larger pages")
            }
            ConfigurationError::NoSpare { blocks, needed } => {
                write!(out, "flash: {blocks} blocks, but the logical pages need {needed}")
            }
            ConfigurationError::OpeningNeedsOneBlock => {
                write!(out, "flash: blocks are opened at once only for one stream with its copies")
            }
            ConfigurationError::LevelingNeedsRanking => {
                write!(out, "flash: DAGC goes with greedy or cost-benefit cleaning, not with LRU")
            }
        }
    }
}
