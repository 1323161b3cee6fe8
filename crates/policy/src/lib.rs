//! What to admit and evict, whose room to take, how to share it, when to write back, how far to
//! read ahead and around, how fast a client may go, how fast flash may be worn, when discards go
//! on, which stream a write goes to, what a log's cleaner copies, what a link will carry, what goes
//! up it next: a file or a directory each.
//!
//! How: plain state machines that are told what happened and answer with a choice; the cache owns
//! blocks and tables and calls them. [`registry`] names every eviction policy once.
//! Invariant: nothing here knows a clock, a device or chance but the [`Moment`] it gets.
//! Cost: constant time per call unless a method says otherwise.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod admission;
pub mod allocation;
mod arc;
mod chain;
pub mod cleaning;
mod clock;
pub mod curve;
pub mod discard;
mod eviction;
mod fifo;
pub mod forecast;
mod ghosts;
mod hash;
mod lfu;
mod lru;
mod prefetched;
mod read_ahead;
mod read_around;
pub mod registry;
mod s3fifo;
pub mod schedule;
pub mod streams;
pub mod throttle;
pub mod uplink;
pub mod wear;
mod writeback;
mod yielding;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod golden;

pub use admission::{Admission, AdmissionKind, AdmitAll, SecondMiss};
pub use arc::Arc;
pub use clock::Clock;
pub use eviction::{Accept, Eviction, Glance, Group, Moment, Warmth};
pub use fifo::Fifo;
pub use hash::mix;
pub use lfu::Lfu;
pub use lru::Lru;
pub use prefetched::Prefetched;
pub use read_ahead::{ReadAhead, Window};
pub use read_around::{Around, ReadAround, WINDOWS};
pub use s3fifo::S3Fifo;
pub use writeback::{Gate, GateInput, GateLimits};
pub use yielding::{Candidate, Standing, Yielders};
