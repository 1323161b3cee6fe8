//! NBD from outside: transcripts by hand, hostile bytes, and client against server in memory.
//!
//! How: numbers of the protocol are written out here rather than taken from the crate, so that a
//! wrong constant shows. Same seed, same bytes; a failure prints the seed to replay.

mod client;
mod common;
mod handshake;
mod hostile;
mod loopback;
mod options;
mod session;
