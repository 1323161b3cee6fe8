//! Every eviction policy by name, in one place.

use crate::{Eviction, Lru};
use alloc::boxed::Box;

/// A policy that a level may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionKind {
    /// Least recently used.
    #[default]
    Lru,
}

impl EvictionKind {
    /// All policies, for help texts and conformance tests.
    pub const ALL: [EvictionKind; 1] = [EvictionKind::Lru];

    /// The name in configuration, flags and charts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EvictionKind::Lru => "lru",
        }
    }

    /// A fresh ranking for `slots` slots.
    #[must_use]
    pub fn build(self, slots: u32) -> Box<dyn Eviction> {
        match self {
            EvictionKind::Lru => Box::new(Lru::new(slots)),
        }
    }
}
