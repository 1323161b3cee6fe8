//! The papers' experiments: configuration, expected figures, report.
#![forbid(unsafe_code)]

pub mod padsa;
