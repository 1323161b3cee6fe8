//! Tests of the whole state machine against a model host, by theme.

mod ages;
mod ahead;
mod cleaning;
mod crash;
mod discards;
mod drains;
mod exact;
mod faults;
mod figures;
mod host;
mod log;
mod sharing;
mod sizing;
mod waiting;
mod worn;

/// What the state machine has looked at, for tests that bound it.
#[derive(Default)]
pub(crate) struct Effort {
    /// Walks over a level to find stores that cannot be placed.
    pub(crate) hopeless_walks: u32,
    /// Walks in search of dirty blocks.
    pub(crate) sweeps: u32,
    /// Walks over levels and volumes for what caps no longer allow.
    pub(crate) caps_walks: u32,
    /// Checks of a waiting discard's range against what is in flight.
    pub(crate) range_checks: core::cell::Cell<u32>,
    /// Looks for a dirty block that can move to a level below, however warm.
    pub(crate) below_looks: u32,
    /// Waiting stores that were tried for room.
    pub(crate) room_tries: u32,
}
