//! What is measured of a workload: write amplification under every scheme.
//!
//! How: one device and one load per workload and seed; FIOS looks at the first part of the load
//! once and is then tried with every set of features.
//! Invariant: figures of a median are of the same scheme. Cost: some 25 replays.

use super::device::{Device, Phases, STREAMS, replay, training_writes};
use super::policy::{
    Attributes, Choice, EqualPartition, FeatureSet, FiosParameters, Mq, MqParameters, NoStreams,
    Part, Scale, Sfr, SfrParameters, StreamNumber, StreamPolicy, Training, Write,
};
use super::workloads::PAGE_SECTORS;
use std::collections::BTreeSet;

/// `AutoStream`'s smallest chunk: as fine as the extents of our workloads.
pub(super) const CHUNK_FINE: u32 = SfrParameters::CHUNK_SECTORS_MIN;

/// Schemes that are compared, the sets of features apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Everything from the end of the training on in one other stream: what old data apart
    /// from new are worth, without any look at the writes.
    Another,
    Equal,
    Frequency,
    Mq,
    Sfr,
    MqFine,
    SfrFine,
}

impl Scheme {
    pub(super) const ALL: [Scheme; 7] = [
        Scheme::Another,
        Scheme::Equal,
        Scheme::Frequency,
        Scheme::Mq,
        Scheme::Sfr,
        Scheme::MqFine,
        Scheme::SfrFine,
    ];
}

/// Sets of features.
pub(super) const SETS: usize = 15;

/// What a workload cost under each scheme; all but `none` are relative to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Write amplification without streams.
    pub(super) none: f64,
    /// By [`Scheme::ALL`].
    pub(super) schemes: [f64; Scheme::ALL.len()],
    /// By [`FeatureSet::all`], in tenths.
    pub(super) sets: [f64; SETS],
    /// The set of the paper's features, binary.
    pub(super) chosen_binary: f64,
    /// Streams that the set of the paper's features fills, in tenths.
    pub(super) chosen_streams: f64,
    /// What the training part was like.
    pub(super) attributes: Attributes,
    /// What the code chooses by these: a set, or those of several seeds, in order.
    pub(super) measured: Vec<FeatureSet>,
    /// What each seed's own choice costs, in tenths.
    pub(super) by_code: f64,
}

impl Figures {
    pub(super) fn scheme(&self, scheme: Scheme) -> f64 {
        self.schemes[scheme as usize]
    }
    pub(super) fn set(&self, features: FeatureSet) -> f64 {
        let place = FeatureSet::all().position(|set| set == features);
        self.sets[place.expect("a set that is not empty")]
    }
    /// The set with the least amplification.
    pub(super) fn best(&self) -> (FeatureSet, f64) {
        let both = FeatureSet::all().zip(self.sets);
        both.min_by(|one, other| one.1.total_cmp(&other.1)).expect("there are sets")
    }
    /// What the code chooses: every set that it chose under some seed.
    pub(super) fn chosen_by_code(&self) -> String {
        self.measured.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
    /// Medians, field by field.
    pub(super) fn median(runs: &[Figures]) -> Figures {
        let of = |figure: &dyn Fn(&Figures) -> f64| crate::median::median(runs.iter().map(figure));
        let measured: BTreeSet<FeatureSet> =
            runs.iter().flat_map(|run| run.measured.iter().copied()).collect();
        Figures {
            none: of(&|run| run.none),
            schemes: std::array::from_fn(|place| of(&|run| run.schemes[place])),
            sets: std::array::from_fn(|place| of(&|run| run.sets[place])),
            chosen_binary: of(&|run| run.chosen_binary),
            chosen_streams: of(&|run| run.chosen_streams),
            by_code: of(&|run| run.by_code),
            attributes: Attributes {
                autocorrelation: of(&|run| run.attributes.autocorrelation),
                random_percent: of(&|run| run.attributes.random_percent),
                gigabytes_per_day: of(&|run| run.attributes.gigabytes_per_day),
                size_sectors: of(&|run| run.attributes.size_sectors),
                reuse: of(&|run| run.attributes.reuse),
            },
            measured: measured.into_iter().collect(),
        }
    }
}

/// See [`Scheme::Another`].
struct Another;

impl StreamPolicy for Another {
    fn streams(&self) -> u16 {
        STREAMS
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        NoStreams.tag(write, parts);
        parts[0].stream = StreamNumber(1);
    }
}

/// A load on its device.
pub(super) struct Bench<'a> {
    pub(super) device: Device,
    pub(super) phases: Phases,
    pub(super) writes: &'a [Write],
}

impl Bench<'_> {
    pub(super) fn volume_sectors(&self) -> u64 {
        u64::from(self.device.pages) * u64::from(PAGE_SECTORS)
    }
    pub(super) fn training(&self, parameters: &FiosParameters) -> Training {
        let watched = training_writes(&self.device, self.writes, &self.phases);
        Training::of(watched, self.volume_sectors(), parameters)
    }
    /// Write amplification of one that learns as it goes.
    pub(super) fn online(&self, policy: &mut dyn StreamPolicy) -> f64 {
        replay(&self.device, self.writes, &self.phases, policy, false).amplification
    }
    /// Write amplification, and streams used, of FIOS.
    pub(super) fn fios(&self, training: &Training, features: FeatureSet) -> (f64, u32) {
        let mut fios = training.fios(Choice::Given(features));
        let outcome = replay(&self.device, self.writes, &self.phases, &mut fios, true);
        (outcome.amplification, outcome.streams)
    }
    /// Everything; `chosen` are the features that the paper prints, where it does; else the code's.
    pub(super) fn figures(&self, chosen: Option<FeatureSet>) -> Figures {
        let none = self.online(&mut NoStreams);
        let decimal = self.training(&FiosParameters::default());
        let parameters = FiosParameters { scale: Scale::Binary, ..FiosParameters::default() };
        let binary = self.training(&parameters);
        let measured = decimal.trained(Choice::Measured).features;
        let chosen = chosen.unwrap_or(measured);
        let (mut sets, mut chosen_streams) = ([0.0; SETS], 0);
        for (place, features) in FeatureSet::all().enumerate() {
            let (amplification, streams) = self.fios(&decimal, features);
            sets[place] = amplification / none;
            if features == chosen {
                chosen_streams = streams;
            }
        }
        let by_code =
            FeatureSet::all().position(|set| set == measured).map_or(f64::NAN, |at| sets[at]);
        Figures {
            none,
            by_code,
            schemes: Scheme::ALL.map(|scheme| self.scheme(scheme, &binary) / none),
            sets,
            chosen_binary: self.fios(&binary, chosen).0 / none,
            chosen_streams: f64::from(chosen_streams),
            attributes: decimal.attributes(),
            measured: vec![measured],
        }
    }
    fn scheme(&self, scheme: Scheme, binary: &Training) -> f64 {
        let (sfr, mq) = (SfrParameters::default(), MqParameters::default());
        match scheme {
            Scheme::Another => {
                replay(&self.device, self.writes, &self.phases, &mut Another, true).amplification
            }
            Scheme::Equal => {
                let chunk = FiosParameters::CHUNK_SECTORS_DEFAULT;
                self.online(&mut EqualPartition::new(self.volume_sectors(), chunk, STREAMS))
            }
            Scheme::Frequency => {
                self.fios(binary, FeatureSet::of(&[super::policy::Feature::Frequency])).0
            }
            Scheme::Mq => self.online(&mut Mq::new(mq)),
            Scheme::Sfr => self.online(&mut Sfr::new(sfr)),
            Scheme::MqFine => {
                self.online(&mut Mq::new(MqParameters { chunk_sectors: CHUNK_FINE, ..mq }))
            }
            Scheme::SfrFine => {
                self.online(&mut Sfr::new(SfrParameters { chunk_sectors: CHUNK_FINE, ..sfr }))
            }
        }
    }
}
