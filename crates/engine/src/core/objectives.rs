//! Whether classes have their latency: windows of what ended, by class.
//!
//! How: each request that ends is counted with its class; a window that is over gives a verdict.
//! The best rank with an objective that has clients is the one by which devices' budgets are set.
//! Invariant: classes without an objective are measured all the same, and never miss.
//! Cost: an increment per request, and a comparison per turn in which something ended.
//! Not for: what a request waited in its socket before it was parsed, which nothing here sees, and
//! requests that waited for a remote home: a smaller budget of lower ranks makes no link faster.

use super::Core;
use layby_cache::schedule::{Objective, Rank, Verdict, Windowed};
use layby_types::{ClassId, Nanos, VolumeId};

/// A class's objective and what its windows showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassLatency {
    /// The objective, where there is one.
    pub objective: Option<Nanos>,
    /// What the windows showed.
    pub shown: Windowed,
}

/// Objectives by class; made when a class's first request ends.
#[derive(Default)]
pub(super) struct Objectives {
    classes: Vec<Option<Box<Objective>>>,
}

impl Objectives {
    /// Whether a request of a class was ever counted, for tests.
    #[cfg(test)]
    pub(super) fn has_counted(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(Option::is_some)
    }
}

impl Core {
    pub(super) fn note_latency(&mut self, volume: VolumeId, latency: Nanos, now: Nanos) {
        let Some(class) = self.cache.class_of(volume) else { return };
        let index = usize::from(class.0);
        if index >= self.objectives.classes.len() {
            self.objectives.classes.resize_with(index + 1, || None);
        }
        let limit = self.cache.spec().classes[index].latency_objective;
        let fresh = || Box::new(Objective::new(limit, now));
        self.objectives.classes[index].get_or_insert_with(fresh).on_request(latency);
    }

    /// Ends windows that are over; the verdict of the best rank that has an objective.
    pub(super) fn end_windows(&mut self, now: Nanos) -> Option<Verdict> {
        let mut best: Option<(Rank, Verdict)> = None;
        for (index, objective) in self.objectives.classes.iter_mut().enumerate() {
            let Some(objective) = objective else { continue };
            let class = &self.cache.spec().classes[index];
            objective.set_limit(class.latency_objective);
            let Some(verdict) = objective.poll(now) else { continue };
            let rank = Rank(u16::from(class.rank));
            if class.latency_objective.is_some() && best.is_none_or(|(other, _)| rank < other) {
                best = Some((rank, verdict));
            }
        }
        best.map(|(_, verdict)| verdict)
    }

    /// By class, what windows showed.
    pub(super) fn class_latencies(&self) -> Vec<ClassLatency> {
        let classes = self.cache.spec().classes.iter().enumerate();
        let latency = |(index, class): (usize, &layby_cache::ClassSpec)| {
            let known = self.objectives.classes.get(index).and_then(Option::as_ref);
            let shown = known.map_or_else(Windowed::default, |objective| objective.shown());
            ClassLatency { objective: class.latency_objective, shown }
        };
        classes.map(latency).collect()
    }

    /// Classes that there are no more, and so have no names, leave nothing to those that get their
    /// numbers.
    pub(crate) fn forget_classes(&mut self) {
        let classes = &self.cache.spec().classes;
        for (index, objective) in self.objectives.classes.iter_mut().enumerate() {
            if classes.get(index).is_none_or(|class| class.name.is_empty()) {
                *objective = None;
            }
        }
    }

    /// The rank of a class.
    #[must_use]
    pub fn rank_of_class(&self, class: ClassId) -> Rank {
        self.cache.rank_of_class(class)
    }
}
