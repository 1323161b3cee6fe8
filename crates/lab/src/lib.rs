//! The papers' experiments: configuration, expected figures, report.
//!
//! How: an [`Experiment`] runs in virtual time and gives a [`Document`] in which the paper's
//! figures stand beside ours; a document becomes one HTML file, or tables on a terminal.
//! Invariant: the same options give the same document on the same platform.
//! Cost: stated by each experiment. Not for: live nodes; see `bench`.
#![forbid(unsafe_code)]

mod document;
pub mod padsa;
mod streams;

pub use document::{Chart, Claim, Document, Section, Series, Table};

use layby_sim::levels::PadsaDevices;
use layby_trace::{Record, Stay};

/// What a user may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of vehicles, accesses and caches.
    pub seed: u64,
    /// How many seeds, counted up from `seed`; figures are medians. At least one.
    pub runs: u32,
    /// Vehicles of a recording instead of drawn ones.
    pub stays: Option<Vec<Stay>>,
    /// Other devices than the paper's; all need a price.
    pub devices: Option<PadsaDevices>,
    /// Recorded traces whose writes are replayed, too.
    pub traces: Vec<RecordedTrace>,
}

/// A recorded trace.
#[derive(Clone, Debug)]
pub struct RecordedTrace {
    /// What it is called in the document.
    pub name: String,
    /// Its requests, in the order of time.
    pub records: Vec<Record>,
}

impl Default for Options {
    fn default() -> Self {
        Options { seed: 1, runs: 3, stays: None, devices: None, traces: Vec::new() }
    }
}

/// How far an experiment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: u32,
    /// Steps in all.
    pub total: u32,
}

/// An experiment of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Priority-aware three-level cache.
    Padsa,
    /// Streams of writes on a multi-stream device.
    Streams,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 2] = [Experiment::Padsa, Experiment::Streams];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Padsa => "padsa",
            Experiment::Streams => "streams",
        }
    }

    /// What it shows, in a line.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Experiment::Padsa => {
                "PADSA: upper levels for safety-critical services, beside ETICA and a shared LRU"
            }
            Experiment::Streams => {
                "FIOS: write amplification with streams, beside AutoStream and no streams"
            }
        }
    }

    /// Runs it. `progress` is told of every step.
    pub fn run(self, options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
        match self {
            Experiment::Padsa => padsa::run(options, progress),
            Experiment::Streams => streams::run(options, progress),
        }
    }
}
