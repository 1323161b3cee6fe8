//! What a fuzzer does with bytes: a function per target, and the seeds that its corpus begins with.
//!
//! How: [`TARGETS`] names each function; the programs of `fuzz/coverage` call them with bytes that
//! a coverage-guided fuzzer makes up, `tests/corpora.rs` with those of `fuzz/corpus`, on stable
//! Rust. Everything is reached through public doors of the rooms, so that no code exists for
//! fuzzing alone: the formats' decoders, `NbdSession`, `Config::parse` and others are public.
//! Invariant: a target that returns has found nothing; a finding is a panic. The same bytes always
//! do the same.
//! Cost: a call takes well under a millisecond for most inputs; `recover` and `cloud_open` a few.
//! Not for: chance of its own; seeded tests live in the rooms.
#![forbid(unsafe_code)]

mod catalog;
mod cloud;
mod cloud_open;
mod config;
mod nbd;
mod pages;
mod recover;
mod trace;

/// What can be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of the fuzzer's program, and of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Does with bytes what the target is about; panics on a finding.
    pub run: fn(&[u8]),
    /// Inputs to begin with, made by the encoders of this version, each with a name.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// Bytes of an input at most; longer ones teach nothing new.
    pub length_max: usize,
}

/// Every target.
pub const TARGETS: [Target; 10] = [
    Target { name: "nbd", run: nbd::run, seeds: nbd::seeds, length_max: 2048 },
    Target { name: "log_decode", run: pages::run_log, seeds: pages::log_seeds, length_max: 4104 },
    Target { name: "nvm_decode", run: pages::run_nvm, seeds: pages::nvm_seeds, length_max: 4104 },
    Target { name: "recover", run: recover::run, seeds: recover::seeds, length_max: 512 },
    Target { name: "catalog", run: catalog::run, seeds: catalog::seeds, length_max: 4096 },
    Target { name: "trace", run: trace::run, seeds: trace::seeds, length_max: 2048 },
    Target { name: "config", run: config::run, seeds: config::seeds, length_max: 2048 },
    Target {
        name: "cloud_store",
        run: cloud::run_store,
        seeds: cloud::store_seeds,
        length_max: 2048,
    },
    Target {
        name: "cloud_local",
        run: cloud::run_local,
        seeds: cloud::local_seeds,
        length_max: 4104,
    },
    Target { name: "cloud_open", run: cloud_open::run, seeds: cloud_open::seeds, length_max: 512 },
];

/// The target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Reads an input from its front; an input that is used up goes on as zeros.
struct Input<'bytes> {
    rest: &'bytes [u8],
}

impl<'bytes> Input<'bytes> {
    fn new(bytes: &'bytes [u8]) -> Self {
        Input { rest: bytes }
    }
    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
    fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
    /// Up to `length` bytes.
    fn take(&mut self, length: usize) -> &'bytes [u8] {
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}
