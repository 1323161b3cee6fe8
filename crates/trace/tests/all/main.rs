//! Tests of the room from outside, in one program.
//!
//! How: a file is a module, so that its name picks its tests, as in
//! `cargo test -p layby-trace hostile::`.
//! Invariant: no test changes what others share. Cost: seconds.

mod formats;
mod hostile;
mod mutated;
mod published;
mod round_trip;
