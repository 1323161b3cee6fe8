//! Assembles a node: configuration, catalog, sockets, shards and the control API.
pub mod api;
pub mod assembly;
pub mod catalog;
pub mod client;
pub mod config;
pub mod control;
pub mod error;
pub mod levels;
pub mod listen;
pub mod metrics;
pub mod node;
pub mod plan;
pub mod server;
pub mod session;
pub mod sockets;
pub mod tls;
