//! Proof: whole lives of a simulated node, each from one seed, held against an oracle.
//!
//! How: a seed draws a [`plan`]: a small node and the acts of its life (requests, disconnects,
//! faults of disks, power cuts, restarts). The [`world`] carries them out on the production shard
//! over simulated disks, sockets and object stores; the [`oracle`] knows which answers and which
//! contents are allowed. A life that fails is [`shrink`]ed: acts are left out while it still fails.
//! Invariant: the same plan gives the same life, on every machine and every time.
//! Cost: some milliseconds per life. Not for: speed, kernels, threads; the tests through the binary
//! are for those.
#![forbid(unsafe_code)]

pub mod campaign;
mod client;
mod home;
mod oracle;
pub mod plan;
pub mod shrink;
pub mod timeline;
pub mod world;

#[cfg(test)]
mod tests;
