//! Tests through the binary; see `tests/`.
