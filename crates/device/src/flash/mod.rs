//! A flash device behind its translation layer: where pages lie, what is copied, what wears out.
//!
//! How: a page map over blocks. Host pages are appended to the open block of their stream; where
//! free blocks run short, cleaning takes a victim, copies its valid pages and erases it. Wear
//! levelers, endurance, and an exported capacity that shrinks act on the same medium. [`Flash`]
//! counts; [`timed::TimedFlash`] adds channels, planes, queues and latencies.
//! Invariant: [`Flash::check`] names them; every mapped page has exactly one valid copy.
//! Cost: eight bytes per page, 32 per block; some tens of nanoseconds per page programmed.
//! Not for: bit errors, retention, or what a cached mapping table costs.
//!
//! Sources: Desnoyers, SYSTOR 2012 (FTLSim, closed forms); Jiao et al., HotStorage 2022 (levelers,
//! capacity variance); Bhimani et al. (streams); Kawaguchi et al., USENIX 1995 (cost-benefit).

mod blocks;
mod check;
mod cleaning;
mod configuration;
mod ftl;
mod life;
mod medium;
mod precondition;
mod statistics;
#[cfg(test)]
mod tests;
pub mod timed;
mod wear;

pub use configuration::{
    CleanAhead, Cleaning, Configuration, ConfigurationError, CopyPlacement, Geometry, Opening,
    TrimOrder, TrimRule,
};
pub use ftl::{BlockNumber, Failure, Flash, LogicalPage, Stream};
pub use life::{Capacity, Endurance};
pub use precondition::{Preconditioned, Preconditioning};
pub use statistics::Statistics;
pub use wear::{DagcWeight, DualPoolCompare, Leveling};
