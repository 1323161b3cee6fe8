//! Block protocols for clients: received bytes to calls, results to reply bytes.
//!
//! How: each protocol is a state machine that is handed bytes and appends its answer to a buffer;
//! sockets, TLS and time belong to the engine and the daemon.
//! Invariant: no input makes a state machine panic, loop, or buffer more than its named bounds; the
//! same bytes give the same outcome however they were split.
//! Cost: a request is a fixed-size head read in place; a reply head is one append, no allocation.
//! Not for: moving bytes, deciding who may use a volume, or anything that needs a clock.
#![forbid(unsafe_code)]

pub mod nbd;
pub mod ublk;
pub mod vhost;
