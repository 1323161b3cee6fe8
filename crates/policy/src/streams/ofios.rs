//! OFIOS: FIOS that trains itself again, window after window, on what it sees.
//!
//! How: run windows follow each other. The last part of each is the training window; of that, three
//! quarters are for watching and the rest for building. At the window's end the newest dictionary
//! that is finished becomes the one in use, its clusters renumbered after those of the one before.
//! Invariant: look-ups of one window see one dictionary; a build that is late changes nothing
//! before the end of a later window.
//! Cost: FIOS's, once per window; the writes of a training window are kept, up to
//! [`OfiosParameters::WRITES_MAX`]. Not for: file systems that only append.

use super::fios::{FiosParameters, Trained, Training, by_dictionary};
use super::{Part, StreamCount, StreamNumber, StreamPolicy, Write};
use crate::hash::mix;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Nanos;

/// How OFIOS follows its workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfiosParameters {
    /// How each dictionary is trained.
    pub fios: FiosParameters,
    /// How long a dictionary is used.
    pub run: Nanos,
    /// The last part of it, in which the next one is prepared; three quarters are for watching.
    pub train: Nanos,
    /// How long building takes.
    pub build: Nanos,
    /// Chunks in a hundred that are watched, drawn by their number; the others go where the nearest
    /// watched one before them goes.
    pub sample_percent: u8,
    /// Clusters keep the numbers of those before that they share most chunks with.
    pub keeps_numbers: bool,
}

impl OfiosParameters {
    /// Faster than any workload changes.
    pub const RUN_MIN: Nanos = Nanos::from_secs(1);
    /// A day.
    pub const RUN_MAX: Nanos = Nanos::from_secs(86_400);
    /// The paper's.
    pub const RUN_DEFAULT: Nanos = Nanos::from_secs(100);
    /// One chunk in a hundred.
    pub const SAMPLE_PERCENT_MIN: u8 = 1;
    /// All.
    pub const SAMPLE_PERCENT_MAX: u8 = 100;
    /// All.
    pub const SAMPLE_PERCENT_DEFAULT: u8 = 100;
    /// Writes of one training window that are kept at most; later ones are not watched.
    pub const WRITES_MAX: usize = 1 << 22;

    fn watching(&self) -> Nanos {
        Nanos(self.train.0 / 4 * 3)
    }
}

impl Default for OfiosParameters {
    fn default() -> Self {
        OfiosParameters {
            fios: FiosParameters::default(),
            run: Self::RUN_DEFAULT,
            train: Self::RUN_DEFAULT,
            build: Nanos::ZERO,
            sample_percent: Self::SAMPLE_PERCENT_DEFAULT,
            keeps_numbers: true,
        }
    }
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Ofios {
    parameters: OfiosParameters,
    volume_sectors: u64,
    current: Trained,
    /// A dictionary that waits for the end of its window, and when it is finished.
    pending: Option<(Nanos, Trained)>,
    window: u64,
    watched: Vec<Write>,
    late: u64,
}

impl Ofios {
    /// Starts with every chunk in stream 0, at the origin of time.
    ///
    /// # Panics
    /// A parameter is out of its bounds, or the volume is empty.
    #[must_use]
    pub fn new(volume_sectors: u64, parameters: OfiosParameters) -> Self {
        let run = OfiosParameters::RUN_MIN..=OfiosParameters::RUN_MAX;
        assert!(run.contains(&parameters.run), "run in bounds");
        assert!(parameters.train <= parameters.run && parameters.train > Nanos::ZERO);
        let sample = OfiosParameters::SAMPLE_PERCENT_MIN..=OfiosParameters::SAMPLE_PERCENT_MAX;
        assert!(sample.contains(&parameters.sample_percent), "sample_percent in bounds");
        let training = Training::of(&[], volume_sectors, &parameters.fios);
        let current = training.trained(parameters.fios.choice);
        Ofios {
            parameters,
            volume_sectors,
            current,
            pending: None,
            window: 0,
            watched: Vec::new(),
            late: 0,
        }
    }
    /// What is in use.
    #[must_use]
    pub fn current(&self) -> &Trained {
        &self.current
    }
    /// Builds that were not finished at the end of their window.
    #[must_use]
    pub fn late_builds(&self) -> u64 {
        self.late
    }
    /// Passes the ends of windows up to `at`. Windows in which nothing was watched change nothing.
    fn advance(&mut self, at: Nanos) {
        let window = at.0 / self.parameters.run.0;
        if window == self.window {
            return;
        }
        let end = Nanos((self.window + 1) * self.parameters.run.0);
        self.publish(end);
        if !self.watched.is_empty() {
            let watching = self.parameters.watching();
            let finished = Nanos(end.0 - self.parameters.train.0 + watching.0);
            let finished = finished.saturating_add(self.parameters.build);
            self.late += u64::from(finished > end);
            self.pending = Some((finished, self.build()));
            self.watched.clear();
        }
        // Windows without writes pass, too, and what was late may be finished at their end.
        self.publish(Nanos(window * self.parameters.run.0));
        self.window = window;
    }
    /// What is finished by `end` of a window becomes current.
    fn publish(&mut self, end: Nanos) {
        if self.pending.as_ref().is_some_and(|(finished, _)| *finished <= end)
            && let Some((_, trained)) = self.pending.take()
        {
            self.current = trained;
        }
    }
    fn build(&self) -> Trained {
        let fios = &self.parameters.fios;
        let training = Training::of(&self.watched, self.volume_sectors, fios);
        let mut trained = training.trained(fios.choice);
        if self.parameters.sample_percent < OfiosParameters::SAMPLE_PERCENT_MAX {
            trained.dictionary = self.inherited(&trained);
        }
        if self.parameters.keeps_numbers {
            let numbers = matched(&self.current, &trained);
            trained.dictionary = trained.dictionary.renumbered(&numbers);
        }
        trained
    }
    fn inherited(&self, trained: &Trained) -> super::Dictionary {
        let mut nearest = trained.dictionary.lookup(0);
        let named = (0..trained.dictionary.chunks()).map(|chunk| {
            if self.is_sampled(chunk) {
                nearest = trained.dictionary.lookup(chunk);
            }
            (chunk, nearest)
        });
        super::Dictionary::filled(trained.dictionary.chunks(), StreamNumber(0), named)
    }
    fn is_sampled(&self, chunk: u64) -> bool {
        mix(chunk) % 100 < u64::from(self.parameters.sample_percent)
    }
    fn watch(&mut self, write: &Write) {
        let train_from = self.parameters.run.0 - self.parameters.train.0;
        let within = write.at.0 % self.parameters.run.0;
        let watching = train_from..train_from + self.parameters.watching().0;
        if !watching.contains(&within) || self.watched.len() >= OfiosParameters::WRITES_MAX {
            return;
        }
        let mut chunks = write.chunks(self.parameters.fios.chunk_sectors);
        if chunks.any(|chunk| self.is_sampled(chunk)) {
            self.watched.push(*write);
        }
    }
}

impl StreamPolicy for Ofios {
    fn streams(&self) -> u16 {
        self.parameters.fios.streams
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        self.advance(write.at);
        let fios = &self.parameters.fios;
        let dictionary = &self.current.dictionary;
        by_dictionary(dictionary, fios.chunk_sectors, fios.crossing, write, parts);
        self.watch(write);
    }
}

/// For each cluster of `new` the number of the old one with which it shares most chunks, largest
/// first; those without a partner take the numbers that are left, in order.
fn matched(old: &Trained, new: &Trained) -> Vec<StreamNumber> {
    const K: usize = StreamCount::MAX as usize;
    let mut common = [[0_u64; K]; K];
    for chunk in 0..new.dictionary.chunks() {
        let pair = (new.dictionary.lookup(chunk), old.dictionary.lookup(chunk));
        common[usize::from(pair.0.0)][usize::from(pair.1.0)] += 1;
    }
    let pairs = (0..K).flat_map(|one| (0..K).map(move |other| (one, other)));
    let mut pairs: Vec<(usize, usize)> =
        pairs.filter(|(one, other)| common[*one][*other] > 0).collect();
    pairs.sort_by_key(|(one, other)| core::cmp::Reverse(common[*one][*other]));
    let mut numbers = vec![None; K];
    let mut taken = [false; K];
    for (one, other) in pairs {
        if numbers[one].is_none() && !taken[other] {
            numbers[one] = Some(StreamNumber(other as u16));
            taken[other] = true;
        }
    }
    let mut left = (0..K).filter(|number| !taken[*number]);
    let numbers = numbers.into_iter().map(|number| {
        number.unwrap_or_else(|| {
            StreamNumber(left.next().expect("as many numbers as clusters") as u16)
        })
    });
    numbers.collect()
}
