//! Assembles a node: configuration, catalog, sockets, shards and the control API.
//!
//! How: [`config`] says what is wanted, [`catalog`] what is there, [`assembly`] joins the two,
//! [`plan`] turns them into slots; [`node`] starts the shards and opens the sockets; [`control`]
//! changes a running node on behalf of [`api`]; [`server`] negotiates with NBD clients and hands
//! them over. Everything here runs on tokio and off the data path.
//! Invariant: every failure that reaches a person is an [`error::Report`].
//! Not for: moving blocks; the engine's shards do that, and ask nobody here.
#![forbid(unsafe_code)]

pub mod activation;
mod admission;
pub mod api;
pub mod assembly;
pub mod audit;
mod budget;
pub mod catalog;
pub mod certificate;
pub mod check;
mod checked;
pub mod client;
pub mod clients;
pub mod cloud;
pub mod config;
pub mod control;
mod degraded;
mod descriptors;
mod disk_file;
pub mod error;
mod exposure;
mod floods;
mod free;
pub mod health;
mod held;
pub mod homes;
mod image;
pub mod intents;
pub mod levels;
mod limits;
pub mod listen;
pub mod logging;
mod memory;
pub mod metrics;
pub mod names;
pub mod node;
pub mod plan;
pub mod probe;
pub mod reached;
mod recovery;
mod refusals;
mod replace;
pub mod restore;
pub mod salvage;
pub mod server;
pub mod session;
pub mod shards;
pub mod sizing;
pub mod sockets;
pub mod threads;
pub mod tls;
pub mod tls_files;
mod totals;
pub mod ublk;
mod url_file;
pub mod vhost;

/// The words that the rooms share, for callers that use no other room.
pub use layby_types as types;
