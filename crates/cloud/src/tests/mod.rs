//! Lives of a volume in a simulated world.

mod hosted;
mod lives;
mod snapshots;
mod waits;
