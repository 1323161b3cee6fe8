//! Lives of a volume in a simulated world.

mod hosted;
mod lives;
mod waits;
mod world;
