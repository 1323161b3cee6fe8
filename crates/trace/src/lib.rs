//! Generates load: which block a service touches next, and whether it reads or writes it.
//!
//! How: samplers and streams driven by a seeded `Rng`; no sockets, no clock, no I/O, so that the
//! demo, the tests and the simulator can draw the very same accesses.
//! Invariant: every access lies whole within its footprint; the same seed gives the same accesses.
//! Cost: constant time and no allocation per access.
//! Not for: deciding when an access is sent; the driver paces.
#![forbid(unsafe_code)]

mod sequential;
mod service;
mod zipf;

pub use sequential::Sequential;
pub use service::{Pattern, SERVICES, Service, ServiceLoad, ServiceSpec, Workload};
pub use zipf::{Scatter, Zipf};

use layby_types::Operation;

/// One access of a service to its volume: a read or a write of a whole range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// `Operation::Read` or `Operation::Write`.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes, never zero.
    pub length: u64,
}
