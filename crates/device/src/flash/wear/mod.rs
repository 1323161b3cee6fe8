//! Wear levelers: who spreads erases over blocks, at the price of further writes.
//!
//! How: one file each behind [`Leveler`]. A leveler is asked at three points: which block to clean,
//! after an erase by cleaning, and after a page of the host. It sees and moves the same medium as
//! everybody else, so that nothing it does can lose a page.
//! Invariant: pages it moves count as its own. Cost: none where there is no leveler.
//! Source: Jiao et al., HotStorage 2022; the original papers are named in each file.

mod dagc;
mod dual_pool;
mod progressive;

use super::configuration::ConfigurationError;
use super::medium::Medium;
use alloc::boxed::Box;
use core::fmt::Debug;
use layby_types::Rng;

pub use dagc::DagcWeight;
pub use dual_pool::DualPoolCompare;

/// A way to level wear.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Leveling {
    /// Blocks wear as they happen to.
    #[default]
    None,
    /// Hot and cold pools of blocks that swap their data when their erases drift apart.
    DualPool {
        /// Erases apart; the paper studies 5 and 10.
        threshold: u32,
        /// What counts as apart.
        compare: DualPoolCompare,
    },
    /// Cold data moves onto worn blocks, more eagerly the older the device is.
    Progressive {
        /// The first threshold in percent of `endurance`; the paper studies 50 and 75.
        threshold_percent: u8,
        /// Erases that blocks are rated for, whether or not they are retired at it.
        endurance: u32,
    },
    /// Cleaning takes a block of random emptiness one time in three, and among blocks as empty the
    /// least worn. Not with LRU cleaning.
    DagcRandom,
    /// Cleaning weighs emptiness against wear. Not with LRU cleaning.
    DagcScore(DagcWeight),
}

impl Leveling {
    /// Least threshold of Dual-Pool, in erases.
    pub const THRESHOLD_MIN: u32 = 1;
    /// Most.
    pub const THRESHOLD_MAX: u32 = 1 << 20;
    /// The paper's first.
    pub const THRESHOLD_DEFAULT: u32 = 5;
    /// Least threshold of progressive levelling, in percent.
    pub const THRESHOLD_PERCENT_MIN: u8 = 0;
    /// Most.
    pub const THRESHOLD_PERCENT_MAX: u8 = 100;
    /// The paper's first.
    pub const THRESHOLD_PERCENT_DEFAULT: u8 = 50;

    pub(super) fn checked(&self) -> Result<(), ConfigurationError> {
        let (name, value, least, most) = match *self {
            Leveling::DualPool { threshold, .. } => {
                ("dual-pool threshold", threshold, Self::THRESHOLD_MIN, Self::THRESHOLD_MAX)
            }
            Leveling::Progressive { threshold_percent, .. } => (
                "progressive threshold_percent",
                threshold_percent.into(),
                Self::THRESHOLD_PERCENT_MIN.into(),
                Self::THRESHOLD_PERCENT_MAX.into(),
            ),
            Leveling::DagcScore(DagcWeight::Percent(percent)) => {
                ("dagc weight percent", percent.into(), 0, 100)
            }
            _ => return Ok(()),
        };
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(ConfigurationError::OutOfBounds { name, value, least, most })
    }
    /// Whether it chooses victims by their valid pages.
    pub(super) fn needs_ranking(&self) -> bool {
        matches!(self, Leveling::DagcRandom | Leveling::DagcScore(_))
    }
    pub(super) fn leveler(&self, medium: &Medium, rng: &mut Rng) -> Option<Box<dyn Leveler>> {
        Some(match *self {
            Leveling::None => return None,
            Leveling::DualPool { threshold, compare } => {
                Box::new(dual_pool::DualPool::new(medium, threshold, compare, rng))
            }
            Leveling::Progressive { threshold_percent, endurance } => {
                Box::new(progressive::Progressive::new(threshold_percent, endurance))
            }
            Leveling::DagcRandom => Box::new(dagc::Random),
            Leveling::DagcScore(weight) => Box::new(dagc::Score(weight)),
        })
    }
}

/// What a wear leveler decides. Every method does nothing unless a leveler says otherwise.
pub(super) trait Leveler: Debug + Send {
    /// The block to clean, where the leveler has a say in it.
    fn victim(&mut self, _medium: &Medium, _rng: &mut Rng) -> Option<u32> {
        None
    }
    /// Cleaning erased `block`, which is free now.
    fn on_cleaned(&mut self, _medium: &mut Medium, _block: u32) {}
    /// The host wrote a page.
    fn on_written(&mut self, _medium: &mut Medium) {}
    /// It acts again after a pause in which it was not asked; what it knew may be out of date.
    fn on_resumed(&mut self, _medium: &mut Medium) {}
}
