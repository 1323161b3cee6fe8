//! Tests through the binary: a node as users start it, and the programs that others wrote.
//!
//! How: [`Node`] starts `layby serve` and reads its `ready` line; [`tool`] runs foreign clients;
//! [`Connection`] is an NBD client of our own that shares no code with the server, [`Wire`] one
//! that says anything at all; [`History`] knows what a crash may and may not take. Waiting is
//! always for an event, never for a clock.
//! Invariant: a node, a mount or a loop device ends with the value that stands for it.
//! Cost: a node starts in well under a second. Not for: anything that a room can test by itself.
#![forbid(unsafe_code)]

pub mod cloud;
mod connection;
mod device;
pub mod guest;
mod history;
mod http;
mod lax;
pub mod link;
pub mod machine;
mod mount;
mod node;
mod python;
mod s3;
mod tool;
mod unreadable;
mod wire;

pub use connection::{Connection, Lost, Request};
pub use device::{Device, DeviceBytes, EMULATED_REQUEST_MS, Served};
pub use history::{BLOCK_BYTES, Durability, History};
pub use http::{HttpAnswer, HttpRequest};
pub use lax::LaxStore;
pub use mount::{Attached, LoopDevice, Mounted, SmallDisk, mount_unavailable};
pub use node::{Held, Node, Options, Refusal, binary, layby, serve_arguments, small_levels};
pub use python::{promtool, python_script, python_tool};
pub use s3::S3Server;
pub use tool::{Outcome, available, fio_available, missing, must, python, run, say, skip};
pub use unreadable::Unreadable;
pub use wire::{Head, OptionReply, Part, Wire};

/// The seed of this run: `LAYBY_SEED`, or 1. A failing test prints it.
#[must_use]
pub fn seed() -> u64 {
    number("LAYBY_SEED", 1)
}

/// A number from the environment, or `default` when the variable is not set.
///
/// # Panics
/// When the variable holds no number.
#[must_use]
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
    })
}
