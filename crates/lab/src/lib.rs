//! The papers' experiments: configuration, expected figures, report.
//!
//! How: an [`Experiment`] runs in virtual time and gives a [`Document`] in which the paper's
//! figures stand beside ours; a document becomes one HTML file, or tables on a terminal.
//! Seeds and the parts of an experiment run on all cores.
//! Invariant: the same options give the same document on the same platform, whatever the cores.
//! Cost: stated by each experiment. Not for: live nodes; see `bench`.
#![forbid(unsafe_code)]

pub mod delay_d;
mod document;
mod esi;
mod links;
mod median;
pub mod padsa;
mod parallel;
mod streams;
mod unfit;
pub mod wear;

pub use document::{
    Chart, Claim, Document, Expected, Measurement, Origin, Section, Series, Table, Unit,
};

pub use unfit::Unfit;

pub(crate) use document::seeds_of;

use layby_sim::levels::PadsaDevices;
use layby_trace::{LinkTrace, Record, Stay};
use std::ops::RangeInclusive;

/// What a user may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// How many seeds, counted up from `seed`; figures are medians. At least one.
    pub runs: u32,
    /// Vehicles of a recording instead of drawn ones.
    pub stays: Option<RecordedVehicles>,
    /// Other devices than the paper's; all need a price.
    pub devices: Option<PadsaDevices>,
    /// How many times smaller than the paper's the device is; each experiment has its own default.
    pub scale: Option<u32>,
    /// Recorded traces whose writes are replayed, too.
    pub traces: Vec<RecordedTrace>,
    /// Recorded links that are forecast, too.
    pub links: Vec<RecordedLink>,
    /// Flags and the files that they name, as they were written, for the line that runs it again.
    pub files: Vec<(String, String)>,
    /// What makes the document; it decides no figure.
    pub origin: Origin,
}

/// A recorded trace whose writes a device can be made for.
#[derive(Clone, Debug)]
pub struct RecordedTrace {
    name: String,
    records: Vec<Record>,
}

impl RecordedTrace {
    /// A trace: what it is called in the document, what its offsets are, and its requests in the
    /// order of time.
    ///
    /// # Errors
    /// [`Unfit`] when it is of objects, writes nothing, or too little or too much for a device.
    pub fn new(name: String, unit: layby_trace::Unit, records: Vec<Record>) -> Result<Self, Unfit> {
        if unit == layby_trace::Unit::Objects {
            return Err(Unfit::Objects);
        }
        streams::check(&records)?;
        Ok(RecordedTrace { name, records })
    }
}

/// Recorded vehicles under which architectures can be told apart.
#[derive(Clone, Debug)]
pub struct RecordedVehicles {
    stays: Vec<Stay>,
}

impl RecordedVehicles {
    /// Vehicles in the order in which they arrive.
    ///
    /// # Errors
    /// [`Unfit`] when there are none, or they are in sight for too short a time.
    pub fn new(stays: Vec<Stay>) -> Result<Self, Unfit> {
        padsa::check(&stays)?;
        Ok(RecordedVehicles { stays })
    }
}

/// A recorded link on which forecasts can be told apart.
#[derive(Clone, Debug)]
pub struct RecordedLink {
    name: String,
    trace: LinkTrace,
}

impl RecordedLink {
    /// A link: what it is called in the document, and what it carried.
    ///
    /// # Errors
    /// [`Unfit`] when it is too short, carries the same in every interval, or has
    /// intervals of unequal length.
    pub fn new(name: String, trace: LinkTrace) -> Result<Self, Unfit> {
        links::check(&trace)?;
        Ok(RecordedLink { name, trace })
    }
}

impl Options {
    /// What `command` is continued with, so that it names the same files again.
    fn named_files(&self) -> String {
        let quoted = |path: &str| match path.chars().all(is_plain) && !path.is_empty() {
            true => path.to_owned(),
            false => format!("'{}'", path.replace('\'', r"'\''")),
        };
        self.files.iter().map(|(flag, path)| format!(" {flag} {}", quoted(path))).collect()
    }
}

/// Whether a shell takes a character as it is.
fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || "/._-+:@%".contains(character)
}

impl Default for Options {
    fn default() -> Self {
        let (stays, devices, scale) = (None, None, None);
        let (traces, links, files) = (Vec::new(), Vec::new(), Vec::new());
        let origin = Origin::default();
        Options { seed: 1, runs: 3, stays, devices, scale, traces, links, files, origin }
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

/// What may be chosen of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Seeds where nobody says how many.
    pub runs: u32,
    /// Whether it has vehicles and devices of a node, so that `stays` and `devices` mean something.
    pub vehicles: bool,
    /// Whether it replays recorded traces, so that `traces` means something.
    pub traces: bool,
    /// Whether it forecasts recorded links, so that `links` means something.
    pub links: bool,
    /// Scales of its device, where it has one.
    pub scales: Option<RangeInclusive<u32>>,
}

/// An experiment of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Priority-aware three-level cache.
    Padsa,
    /// Wear levelling and capacity variance.
    Wear,
    /// Delayed discard.
    DelayD,
    /// Streams of writes on a multi-stream device.
    Streams,
    /// Forecasts of a link's bandwidth.
    Links,
    /// An edge gateway into an object store.
    Esi,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 6] = [
        Experiment::Padsa,
        Experiment::Wear,
        Experiment::DelayD,
        Experiment::Streams,
        Experiment::Links,
        Experiment::Esi,
    ];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Padsa => "padsa",
            Experiment::Wear => "wear",
            Experiment::DelayD => "delay-d",
            Experiment::Streams => "streams",
            Experiment::Links => "links",
            Experiment::Esi => "esi",
        }
    }

    /// What it shows, in a line.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Experiment::Padsa => {
                "PADSA: upper levels for safety-critical services, beside ETICA and a shared LRU"
            }
            Experiment::Wear => {
                "Wear levelling in SSDs beside none, and a capacity that shrinks beside a fixed one"
            }
            Experiment::DelayD => "Delay-D: discards that wait beside discards at once and none",
            Experiment::Streams => {
                "FIOS: write amplification with streams, beside AutoStream and no streams"
            }
            Experiment::Links => {
                "Links: forecasts of an uplink's bandwidth beside the naive one, and admission"
            }
            Experiment::Esi => {
                "ESI: an edge gateway's files and bursts, through a volume in an object store"
            }
        }
    }

    /// What a user may choose of it besides seed and runs.
    #[must_use]
    pub fn choices(self) -> Choices {
        let plain = Choices { runs: 3, vehicles: false, traces: false, links: false, scales: None };
        match self {
            Experiment::Padsa => Choices { vehicles: true, ..plain },
            Experiment::Wear => {
                let scales = Some(wear::SCALE_MIN..=wear::SCALE_MAX);
                Choices { scales, ..plain }
            }
            Experiment::DelayD => {
                let scales = Some(delay_d::SCALE_MIN..=delay_d::SCALE_MAX);
                Choices { scales, ..plain }
            }
            Experiment::Streams => Choices { traces: true, ..plain },
            Experiment::Links => Choices { runs: 5, links: true, ..plain },
            Experiment::Esi => plain,
        }
    }

    /// Runs it. `progress` is told of every step.
    pub fn run(self, options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
        match self {
            Experiment::Padsa => padsa::run(options, progress),
            Experiment::Wear => wear::run(options, progress),
            Experiment::DelayD => delay_d::run(options, progress),
            Experiment::Streams => streams::run(options, progress),
            Experiment::Links => links::run(options, progress),
            Experiment::Esi => esi::run(options, progress),
        }
    }
}
