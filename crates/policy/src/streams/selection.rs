//! Which features a workload asks for.
//!
//! How: the base matrix says which attributes each feature needs; a feature is used where all of
//! them are high. In short: F where reuse is high, S where writes are large, C where writes come in
//! bursts and at random, A where they come in bursts and many.
//! Invariant: a further high attribute never takes a feature away; the set is never empty.
//! Cost: six comparisons.

use super::attributes::Judgement;
use core::fmt;

/// What is looked at in a chunk's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// F: how often it was written.
    Frequency,
    /// S: whether its writes continued the ones before.
    Sequentiality,
    /// A: when it was written last.
    Adjacency,
    /// C: whether it is written together with others, again and again.
    Coherency,
}

impl Feature {
    /// All, in the order of their columns.
    pub const ALL: [Feature; 4] =
        [Feature::Frequency, Feature::Sequentiality, Feature::Adjacency, Feature::Coherency];

    /// The paper's letter.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Feature::Frequency => 'F',
            Feature::Sequentiality => 'S',
            Feature::Adjacency => 'A',
            Feature::Coherency => 'C',
        }
    }
    /// Its column.
    #[must_use]
    pub const fn column(self) -> usize {
        self as usize
    }
}

/// Some features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FeatureSet(u8);

impl FeatureSet {
    /// No feature; nothing can be told from it.
    pub const EMPTY: FeatureSet = FeatureSet(0);
    /// All four.
    pub const FULL: FeatureSet = FeatureSet(0b1111);

    /// The set of these.
    #[must_use]
    pub fn of(features: &[Feature]) -> Self {
        features.iter().fold(FeatureSet::EMPTY, |set, feature| set.with(*feature))
    }
    /// The fifteen sets that are not empty.
    pub fn all() -> impl Iterator<Item = FeatureSet> {
        (1..=FeatureSet::FULL.0).map(FeatureSet)
    }
    /// With one more.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        FeatureSet(self.0 | 1 << feature.column())
    }
    /// Whether it is among them.
    #[must_use]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature.column()) != 0
    }
    /// How many.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for FeatureSet {
    /// Letters in the order of columns: `FAC`, or `none`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return out.write_str("none");
        }
        Feature::ALL.into_iter().filter(|feature| self.has(*feature)).try_for_each(|feature| {
            use fmt::Write as _;
            out.write_char(feature.letter())
        })
    }
}

/// A feature and the attributes that it needs, as bits of [`Judgement`].
const BASE: [(u8, Feature); 6] = [
    (Judgement::BURSTY | Judgement::BUSY, Feature::Adjacency),
    (Judgement::BURSTY | Judgement::RANDOM, Feature::Coherency),
    (Judgement::LARGE, Feature::Sequentiality),
    (Judgement::BURSTY | Judgement::LARGE, Feature::Sequentiality),
    (Judgement::REUSING, Feature::Frequency),
    (Judgement::BURSTY | Judgement::REUSING, Feature::Frequency),
];

/// What [`select`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The features to use; never empty.
    pub features: FeatureSet,
    /// High attributes that no chosen feature explains.
    pub residual: Judgement,
    /// No feature fitted, and frequency was taken for want of one.
    pub fell_back: bool,
}

/// Chooses features by a workload's attributes.
#[must_use]
pub fn select(judgement: Judgement) -> Selection {
    let fits = |needs: u8| judgement.0 & needs == needs;
    let usable = || BASE.iter().filter(|(needs, _)| fits(*needs));
    let features = usable().fold(FeatureSet::EMPTY, |set, (_, feature)| set.with(*feature));
    let explained = usable().fold(0, |bits, (needs, _)| bits | needs);
    let fell_back = features.is_empty();
    let features = if fell_back { features.with(Feature::Frequency) } else { features };
    Selection { features, residual: Judgement(judgement.0 & !explained), fell_back }
}
