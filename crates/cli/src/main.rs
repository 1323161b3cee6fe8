//! The `layby` program.
fn main() {}
