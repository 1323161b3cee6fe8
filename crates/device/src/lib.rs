//! Models of devices: what an access costs in time, money and wear.
//!
//! How: plain values and arithmetic; the simulator owns time and asks what an access would take.
//! Invariant: nothing here knows a clock or chance. Cost: constant time per access.
//! Not for: real devices, which the engine drives.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod flash;
mod model;

pub use model::{Direction, LATENCY_BYTES, Model, TABLE_I};
