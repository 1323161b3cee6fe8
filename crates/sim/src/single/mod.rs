//! One eviction policy over one level, as fast as it goes: hits and misses, no time, no bytes.
//!
//! How: [`References`] cuts a trace's records into references to single blocks, batch by batch;
//! each [`Replay`] of a line-up sees every batch, so a trace is decoded once for any number of
//! policies and sizes. A [`Level`] drives the policy that the node runs, through the same trait,
//! compiled for that policy. [`Future`] is Belady's MIN, which knows what comes. [`CurveRun`] is a
//! miss-ratio curve.
//! Invariant: blocks are told apart exactly; no collision of hashes is ever a hit.
//! Cost: see `level`. Not for: several levels, latencies or wear: see `levels`.

mod buckets;
mod curves;
mod future;
mod level;
mod numbering;
mod queues;
mod recency;
mod references;
mod slots;
mod table;

#[cfg(test)]
mod tests;

pub use curves::{CurveKind, CurveRun};
pub use future::{Future, Known};
pub use level::{Counts, Replay, SLOTS_MAX, build};
pub use numbering::Footprint;
pub use references::{BATCH_REFERENCES_MAX, Batch, References, StreamError};
