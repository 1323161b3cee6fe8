//! Assembles a node: configuration, catalog, sockets, shards and the control API.
pub mod catalog;
pub mod config;
pub mod error;
