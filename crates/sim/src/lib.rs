//! The node's own policies in virtual time.
//!
//! How: `levels` drives the cache's state machine, unchanged, over device models; `single` runs one
//! eviction policy over one level as fast as it goes.
//! Invariant: the same trace, specification and seed give the same result on every machine.
//! Not for: real time or real bytes; contents are never kept.
#![forbid(unsafe_code)]

pub mod fleet;
pub mod levels;
pub mod single;

pub use layby_cache as cache;
pub use layby_device as device;
pub use layby_policy as policy;
