//! Tests of the whole state machine against a model host, by theme.

mod ahead;
mod cleaning;
mod crash;
mod drains;
mod exact;
mod figures;
mod host;
mod log;
mod sharing;
mod sizing;
mod worn;
