//! What a flash device did, by cause.
//!
//! How: counters that only grow; a window is the difference of two copies.
//! Invariant: pages programmed are those of the host, of cleaning, of wear levelling and of rescue.

/// Counters since the device was made, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Pages that the host wrote.
    pub host_pages: u64,
    /// Pages that cleaning copied.
    pub cleaning_pages: u64,
    /// Pages that a wear leveler moved.
    pub leveling_pages: u64,
    /// Pages copied out of blocks that failed.
    pub rescue_pages: u64,
    /// Blocks that cleaning erased.
    pub cleaning_erases: u64,
    /// Blocks erased for wear levelling.
    pub leveling_erases: u64,
    /// Trims that the host sent.
    pub trims: u64,
    /// Pages that these trims covered.
    pub trim_pages: u64,
    /// Mapped pages that trims made invalid.
    pub trimmed_pages: u64,
    /// Mapped pages given up when the exported capacity shrank; nobody had written them.
    pub released_pages: u64,
    /// Blocks that went out of use, those that were bad from the start included.
    pub retired_blocks: u64,
    /// Pages copied beyond what greedy cleaning would have, where a leveler chose the victim. They
    /// are part of `cleaning_pages`.
    pub leveling_excess_pages: u64,
}

impl Statistics {
    /// Pages programmed, whatever for.
    #[must_use]
    pub fn programmed_pages(&self) -> u64 {
        self.host_pages + self.cleaning_pages + self.leveling_pages + self.rescue_pages
    }

    /// Blocks erased, whatever for.
    #[must_use]
    pub fn erases(&self) -> u64 {
        self.cleaning_erases + self.leveling_erases
    }

    /// Pages programmed per page that the host wrote; 1 where it wrote none.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.per_host_page(self.programmed_pages(), 1.0)
    }

    /// The host's and cleaning's part of [`Self::write_amplification`].
    #[must_use]
    pub fn write_amplification_cleaning(&self) -> f64 {
        self.per_host_page(self.host_pages + self.cleaning_pages, 1.0)
    }

    /// The wear leveler's part of [`Self::write_amplification`].
    #[must_use]
    pub fn write_amplification_leveling(&self) -> f64 {
        self.per_host_page(self.leveling_pages, 0.0)
    }

    /// [`Self::write_amplification`] as the DAGC figures of the HotStorage paper come about: the
    /// excess is added to the copies that already contain it.
    #[must_use]
    pub fn write_amplification_counted_twice(&self) -> f64 {
        self.per_host_page(self.programmed_pages() + self.leveling_excess_pages, 1.0)
    }
    fn per_host_page(&self, pages: u64, otherwise: f64) -> f64 {
        if self.host_pages == 0 { otherwise } else { pages as f64 / self.host_pages as f64 }
    }

    /// What happened after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Statistics) -> Statistics {
        Statistics {
            host_pages: self.host_pages - earlier.host_pages,
            cleaning_pages: self.cleaning_pages - earlier.cleaning_pages,
            leveling_pages: self.leveling_pages - earlier.leveling_pages,
            rescue_pages: self.rescue_pages - earlier.rescue_pages,
            cleaning_erases: self.cleaning_erases - earlier.cleaning_erases,
            leveling_erases: self.leveling_erases - earlier.leveling_erases,
            trims: self.trims - earlier.trims,
            trim_pages: self.trim_pages - earlier.trim_pages,
            trimmed_pages: self.trimmed_pages - earlier.trimmed_pages,
            released_pages: self.released_pages - earlier.released_pages,
            retired_blocks: self.retired_blocks - earlier.retired_blocks,
            leveling_excess_pages: self.leveling_excess_pages - earlier.leveling_excess_pages,
        }
    }
}
