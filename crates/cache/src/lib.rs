//! The block cache as a pure state machine: events in, actions out.
//!
//! How: a host (the engine, or a simulator) tells [`Cache`] of requests, ends of actions and time,
//! and performs the [`Action`]s it finds in the list it passes. The cache decides which blocks
//! are resident where; stores below it decide where the bytes lie.
//! Invariants: a read returns the latest acknowledged write; a block is dirty in at most one level;
//! memory levels hold clean copies only; no level, class or volume exceeds its size or cap.
//! Cost: about 20 bytes and an index entry per slot; constant time per block of a request.
//! Sources: PADSA (section IV.B: levels, writes, reads, promotion, eviction), L3 cache paper
//! (section IV: watermarks, merging, pre-caching).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod action;
mod admission;
mod ahead;
mod at_once;
mod background;
mod backing;
mod cache;
mod decision;
mod discard;
mod drains;
mod hash;
mod level;
mod look_ahead;
mod lost;
mod miniature;
mod on_cleaning;
mod op;
mod places;
mod rank;
mod read;
mod refetch;
mod reserve;
mod room;
pub mod sizing;
mod slab;
mod spec;
mod stuck;
mod through;
mod unsynced;
mod volumes;
mod waiting;
mod watch;
mod worn;
mod write;

#[cfg(test)]
mod tests;

pub use action::{
    Action, Cause, Checked, CopyVerified, DestageFault, Event, Few, OpId, Part, Redo, Source,
};
pub use at_once::ReadAtOnce;
pub use backing::BackingCounters;
pub use cache::{Cache, LevelCounters, LevelView, OnDirty, RemoveError};
pub use decision::{DecisionLog, TickTimer};
pub use layby_policy::AdmissionKind;
pub use layby_policy::Moment;
pub use layby_policy::cleaning;
pub use layby_policy::discard as discards;
pub use layby_policy::registry::EvictionKind;
pub use layby_policy::schedule;
pub use layby_policy::throttle;
pub use layby_policy::wear;
pub use look_ahead::LOOKAHEAD_MAX;
pub use lost::LostBlocks;
pub use on_cleaning::{CLEANING_SLOTS_MAX, Cleaned, CleaningStep};
pub use spec::{
    CLASSES_MAX, CacheSpec, ClassSpec, LEVELS_MAX, LevelKind, LevelSpec, ReadAheadLimits, Share,
    SpecError, VolumeSpec, Watermarks, WritebackLimits,
};
pub use stuck::StuckAt;
pub use volumes::{VOLUMES_MAX, VolumeCounters};
pub use watch::{Observation, VOLUMES_WATCHED_MAX};
pub use worn::{BYPASS_BLOCKS_MIN, WearRefused};
