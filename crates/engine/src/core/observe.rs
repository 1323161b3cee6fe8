//! What a period showed: the cache's observations beside the latencies that were measured.
//!
//! How: a fetch is dated when it begins and ends, by place; the meter of a volume sums what its
//! reads waited. Both start again when they are asked for.
//! Invariant: a fetch is counted at most once. Cost: two stores per fetch and one addition per
//! read; nothing per block.

use super::Core;
use crate::control::{Observed, VolumeObserved};
use layby_cache::{LEVELS_MAX, Moment, OpId};
use layby_types::{ErrorKind, Nanos, VolumeId};

/// The place of homes, behind the levels.
pub(super) const HOME: usize = LEVELS_MAX;

/// Fetches by place.
#[derive(Default)]
pub(super) struct FetchMeter {
    /// Where each operation reads since when.
    begun: Vec<Option<(usize, Nanos)>>,
    /// Fetches that ended, and their nanoseconds.
    sums: [(u64, u64); LEVELS_MAX + 1],
}

impl FetchMeter {
    pub(super) fn begin(&mut self, op: OpId, place: usize, now: Nanos) {
        let index = op.0 as usize;
        if index >= self.begun.len() {
            self.begun.resize(index + 1, None);
        }
        self.begun[index] = Some((place, now));
    }

    pub(super) fn end(&mut self, op: OpId, now: Nanos) {
        let Some((place, begun)) = self.begun.get_mut(op.0 as usize).and_then(Option::take) else {
            return;
        };
        let (count, sum) = &mut self.sums[place];
        (*count, *sum) = (*count + 1, *sum + now.since(begun).0);
    }

    fn take_mean(&mut self, place: usize) -> Option<f64> {
        let (count, sum) = std::mem::take(&mut self.sums[place]);
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

impl Core {
    /// Ends a period of `volumes`: what it showed, after which the past counts `keep` times as
    /// much. Volumes that are not watched yet are watched from now on; unknown ones, and those too
    /// many to be watched, are left out.
    pub fn observe(&mut self, volumes: &[VolumeId], keep: f64) -> Observed {
        let mut observed = Vec::new();
        for id in volumes {
            let moment = &mut Moment { now: self.now, rng: &mut self.rng };
            let Ok(Some(cache)) = self.cache.observe(moment, *id, keep) else { continue };
            let Some(home) = self.homes.get_mut(id) else { continue };
            let (reads, read_wait_ns) = home.stats.take_reads();
            observed.push(VolumeObserved { cache, reads, read_wait_ns });
        }
        Observed {
            volumes: observed,
            levels_read_ns: (0..self.levels.len()).map(|l| self.fetches.take_mean(l)).collect(),
            home_read_ns: self.fetches.take_mean(HOME),
        }
    }

    /// Gives volumes the shares that they were sized, or takes them away; unknown volumes are left
    /// out. Nothing moves at once.
    pub fn set_sized(&mut self, sized: &[(VolumeId, Option<[u32; LEVELS_MAX]>)]) {
        for (volume, slots) in sized {
            match self.cache.set_sized(*volume, *slots) {
                // A volume may have been deleted since it was observed.
                Ok(()) | Err(ErrorKind::Closed) => {}
                Err(other) => panic!("shares are refused only to the unknown: {other}"),
            }
        }
    }
}
