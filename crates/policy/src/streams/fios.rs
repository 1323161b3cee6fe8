//! FIOS: features of a training trace, grouped into streams, kept as a dictionary.
//!
//! How: a [`Training`] measures the workload's attributes, chooses features by them, takes these
//! of every written chunk, groups equal-looking chunks, and writes down which chunk goes where.
//! Invariant: after training nothing is learned; a write is cut where the stream changes.
//! Cost: training is `n log n` in writes, plus coherency's merges; a look-up per chunk after it.
//! Not for: workloads that change; see `ofios`.

use super::attributes::{Attributes, Thresholds};
use super::cluster;
use super::coherency::Coherency;
use super::dictionary::Dictionary;
use super::features::{Row, Scale, Sequentiality, Table, Taking, Windows};
use super::selection::{Feature, FeatureSet, select};
use super::{Part, StreamCount, StreamNumber, StreamPolicy, Write, split, whole};
use alloc::vec::Vec;

/// Which features are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// These.
    Given(FeatureSet),
    /// Those that the attributes of the training trace ask for.
    Measured,
}

/// What becomes of a write that spans chunks of different streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Crossing {
    /// It is cut.
    #[default]
    Split,
    /// It goes to the stream of its first chunk.
    First,
}

/// How FIOS trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FiosParameters {
    /// Sectors of a chunk.
    pub chunk_sectors: u32,
    /// Streams of the device.
    pub streams: u16,
    /// Which features.
    pub choice: Choice,
    /// How finely they are told apart.
    pub scale: Scale,
    /// When a chunk is sequential.
    pub sequentiality: Sequentiality,
    /// When chunks are friends.
    pub coherency: Coherency,
    /// Windows of the coherency.
    pub windows: u32,
    /// Weight of each feature in a squared distance, in the order of [`Feature::ALL`].
    pub weights: [f64; 4],
    /// From where on attributes are high.
    pub thresholds: Thresholds,
    /// Writes across chunks.
    pub crossing: Crossing,
}

impl FiosParameters {
    /// A sector.
    pub const CHUNK_SECTORS_MIN: u32 = 1;
    /// 512 KiB: the largest that the paper tries.
    pub const CHUNK_SECTORS_MAX: u32 = 1024;
    /// 32 KiB: above it the paper's amplification rises fast.
    pub const CHUNK_SECTORS_DEFAULT: u32 = 64;

    /// Panics when a value is out of its bounds.
    pub(super) fn assert_in_bounds(&self) {
        let chunk = Self::CHUNK_SECTORS_MIN..=Self::CHUNK_SECTORS_MAX;
        assert!(chunk.contains(&self.chunk_sectors), "chunk_sectors in bounds");
        let streams = StreamCount::MIN..=StreamCount::MAX;
        assert!(streams.contains(&self.streams), "streams in bounds");
        assert!(self.choice != Choice::Given(FeatureSet::EMPTY), "a feature to go by");
        let sound = |weight: &f64| weight.is_finite() && *weight >= 0.0;
        assert!(self.weights.iter().all(sound), "weights are not negative");
    }
    pub(super) fn chunks(&self, volume_sectors: u64) -> u64 {
        volume_sectors.div_ceil(u64::from(self.chunk_sectors))
    }
}

impl Default for FiosParameters {
    fn default() -> Self {
        FiosParameters {
            chunk_sectors: Self::CHUNK_SECTORS_DEFAULT,
            streams: StreamCount::DEFAULT,
            choice: Choice::Measured,
            scale: Scale::default(),
            sequentiality: Sequentiality::default(),
            coherency: Coherency::default(),
            windows: Windows::COUNT_DEFAULT,
            weights: [1.0; 4],
            thresholds: Thresholds::default(),
            crossing: Crossing::default(),
        }
    }
}

/// What training gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Where each chunk goes.
    pub dictionary: Dictionary,
    /// What the workload was like.
    pub attributes: Attributes,
    /// Which features were used.
    pub features: FeatureSet,
    /// Streams that are used: as many as different kinds of chunks, or as the device has.
    pub clusters: u16,
}

/// What was seen of a training trace, from which any set of features can be tried.
#[derive(Debug)]
pub struct Training {
    parameters: FiosParameters,
    chunks: u64,
    attributes: Attributes,
    /// None where nothing was written.
    table: Option<Table>,
}

impl Training {
    /// Looks at `writes`, which are in the order of time, of a volume of `volume_sectors`.
    ///
    /// # Panics
    /// A parameter is out of its bounds, or the volume is empty.
    #[must_use]
    pub fn of(writes: &[Write], volume_sectors: u64, parameters: &FiosParameters) -> Self {
        parameters.assert_in_bounds();
        let ends = writes.first().zip(writes.last());
        let table = ends.map(|(first, last)| {
            let windows = Windows::over(first.at, last.at, parameters.windows);
            Table::of(writes, &taking(parameters, windows))
        });
        let chunks = parameters.chunks(volume_sectors);
        assert!(chunks > 0, "a volume has a chunk");
        Training { parameters: *parameters, chunks, attributes: Attributes::of(writes), table }
    }
    /// What the workload was like.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }
    /// A dictionary by `choice`.
    ///
    /// # Panics
    /// `choice` is a set without features.
    #[must_use]
    pub fn trained(&self, choice: Choice) -> Trained {
        assert!(choice != Choice::Given(FeatureSet::EMPTY), "a feature to go by");
        let (parameters, chunks, attributes) = (&self.parameters, self.chunks, self.attributes);
        let features = match choice {
            Choice::Given(features) => features,
            Choice::Measured => select(attributes.judge(&parameters.thresholds)).features,
        };
        let Some(table) = &self.table else {
            let dictionary = Dictionary::empty(chunks);
            return Trained { dictionary, attributes, features, clusters: 1 };
        };
        let used = |feature: Feature| if features.has(feature) { 1.0 } else { 0.0 };
        let weights: Row = Feature::ALL.map(|f| used(f) * parameters.weights[f.column()]);
        let clusters = cluster::cluster(&table.rows, &table.writes, &weights, parameters.streams);
        let named = table.chunks.iter().copied().zip(clusters.of_rows.iter().copied());
        let dictionary = Dictionary::filled(chunks, clusters.of_nothing, named);
        Trained { dictionary, attributes, features, clusters: clusters.count }
    }
    /// A policy by `choice`.
    ///
    /// # Panics
    /// As [`Self::trained`].
    #[must_use]
    pub fn fios(&self, choice: Choice) -> Fios {
        Fios {
            trained: self.trained(choice),
            chunk_sectors: self.parameters.chunk_sectors,
            streams: self.parameters.streams,
            crossing: self.parameters.crossing,
        }
    }
}

fn taking(parameters: &FiosParameters, windows: Windows) -> Taking {
    Taking {
        chunk_sectors: parameters.chunk_sectors,
        scale: parameters.scale,
        sequentiality: parameters.sequentiality,
        coherency: parameters.coherency,
        windows,
    }
}

/// Tags by a dictionary that does not change.
#[derive(Clone, Debug)]
pub struct Fios {
    trained: Trained,
    chunk_sectors: u32,
    streams: u16,
    crossing: Crossing,
}

impl Fios {
    /// Trains on `writes`, which are in the order of time, for a volume of `volume_sectors`.
    ///
    /// # Panics
    /// A parameter is out of its bounds, the volume is empty, or a write ends beyond it.
    #[must_use]
    pub fn train(writes: &[Write], volume_sectors: u64, parameters: &FiosParameters) -> Self {
        Training::of(writes, volume_sectors, parameters).fios(parameters.choice)
    }
    /// What training gave.
    #[must_use]
    pub fn trained(&self) -> &Trained {
        &self.trained
    }
}

impl StreamPolicy for Fios {
    fn streams(&self) -> u16 {
        self.streams
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        by_dictionary(&self.trained.dictionary, self.chunk_sectors, self.crossing, write, parts);
    }
}

pub(super) fn by_dictionary(
    dictionary: &Dictionary,
    chunk_sectors: u32,
    crossing: Crossing,
    write: &Write,
    parts: &mut Vec<Part>,
) {
    let lookup = |chunk: u64| -> StreamNumber { dictionary.lookup(chunk) };
    match crossing {
        Crossing::Split => split(write, chunk_sectors, parts, lookup),
        Crossing::First => {
            let last = (write.end().0 - 1) / u64::from(chunk_sectors);
            assert!(last < dictionary.chunks(), "a write within the volume");
            whole(write, lookup(write.first.0 / u64::from(chunk_sectors)), parts);
        }
    }
}
