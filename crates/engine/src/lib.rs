//! Placeholder header, replaced by the room's first file.

pub mod io;
pub mod store;
