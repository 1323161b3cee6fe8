//! Chores of the project, run as `cargo xtask`.
fn main() {}
