//! Placeholder header, replaced by the room's first file.
