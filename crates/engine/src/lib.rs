//! Performs what the cache decides: real I/O, clock, log, recovery, metrics; a thread per shard.
//!
//! How: [`shard`] owns a thread and its clients; it drives a [`core`], which joins the pure cache
//! to the [`store`]s of the levels and to the volumes' homes ([`backing`]) over one [`io`].
//! Invariant: nothing is shared between shards; the control plane talks to them by [`control`].
//! Cost: see each module. Not for: deciding; that is the cache's.

pub mod backing;
pub mod bus_error;
pub mod check;
pub mod control;
pub mod core;
pub mod guest_memory;
pub mod io;
pub mod link;
pub mod probe;
pub mod shard;
pub mod store;
pub mod ublk;
pub mod whole;

pub use shard::{
    ClientMemory, LevelPart, Shard, ShardPlan, StartError, start_shard, write_back_offline,
    write_back_on,
};
