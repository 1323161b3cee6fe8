//! Models of devices, links and object stores: what an access costs in time, money and wear.
//!
//! How: plain values and arithmetic; the simulator owns time and asks what an access would take.
//! Invariant: nothing here knows a clock; chance comes from a seed that is given.
//! Cost: constant time per access.
//! Not for: real devices, which the engine drives.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod flash;
pub mod link;
mod model;
pub mod object_store;

pub use model::{Direction, LATENCY_BYTES, Model, TABLE_I};
