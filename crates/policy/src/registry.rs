//! Every eviction policy by name, in one place.

use crate::{Arc, Clock, Eviction, Fifo, Lfu, Lru, S3Fifo};
use alloc::boxed::Box;

/// A policy that a level may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionKind {
    /// Least recently used.
    #[default]
    Lru,
    /// First in, first out.
    Fifo,
    /// One reference bit and a hand.
    Clock,
    /// A small queue before the main one, and a memory of what left it.
    S3Fifo,
    /// Recency against frequency, balanced by what left too early.
    Arc,
    /// Least frequently used, with ageing.
    Lfu,
}

impl EvictionKind {
    /// All policies, for help texts and conformance tests.
    pub const ALL: [EvictionKind; 6] = [
        EvictionKind::Lru,
        EvictionKind::Fifo,
        EvictionKind::Clock,
        EvictionKind::S3Fifo,
        EvictionKind::Arc,
        EvictionKind::Lfu,
    ];

    /// The name in configuration, flags and charts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EvictionKind::Lru => "lru",
            EvictionKind::Fifo => "fifo",
            EvictionKind::Clock => "clock",
            EvictionKind::S3Fifo => "s3fifo",
            EvictionKind::Arc => "arc",
            EvictionKind::Lfu => "lfu",
        }
    }

    /// The policy of that name; `s3-fifo`, as its authors write it, is `s3fifo`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name == "s3-fifo" { "s3fifo" } else { name };
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A fresh ranking for `slots` slots.
    #[must_use]
    pub fn build(self, slots: u32) -> Box<dyn Eviction> {
        match self {
            EvictionKind::Lru => Box::new(Lru::new(slots)),
            EvictionKind::Fifo => Box::new(Fifo::new(slots)),
            EvictionKind::Clock => Box::new(Clock::new(slots)),
            EvictionKind::S3Fifo => Box::new(S3Fifo::new(slots)),
            EvictionKind::Arc => Box::new(Arc::new(slots)),
            EvictionKind::Lfu => Box::new(Lfu::new(slots)),
        }
    }
}
