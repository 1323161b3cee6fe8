//! Which blocks that no level had are kept once they are read.
//!
//! How: a class that admits at the second miss has a filter; a fetch from home asks it for each of
//! its blocks when their bytes have come, and what is refused goes to its readers and nowhere else.
//! Invariant: without such a class nothing is asked; hits, writes and cache hints are not refused.
//! Cost: per class with a filter 4 bytes per slot of the level that it guards; some loads per miss.
//! Not for: blocks read ahead, which would be fetched for nothing; such a class has no read-ahead.

use crate::action::OpId;
use crate::cache::Cache;
use crate::op::Task;
use crate::read::FETCH_BLOCKS_MAX;
use crate::spec::{CacheSpec, ClassSpec, LevelKind};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use layby_policy::{Admission, AdmissionKind};
use layby_types::{BlockIndex, BlockKey};

/// Blocks of a fetch, by their place in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSet([u64; FETCH_BLOCKS_MAX as usize / 64]);

impl BlockSet {
    /// Every block.
    pub(crate) const ALL: BlockSet = BlockSet([u64::MAX; FETCH_BLOCKS_MAX as usize / 64]);
    /// No block.
    pub(crate) const NONE: BlockSet = BlockSet([0; FETCH_BLOCKS_MAX as usize / 64]);

    pub(crate) fn contains(&self, index: u32) -> bool {
        self.0[index as usize / 64] & (1 << (index % 64)) != 0
    }

    pub(crate) fn add(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    /// The first blocks in a row, of `count`: a store takes neighbours only. Others have missed
    /// once more, so they come in next time.
    pub(crate) fn stretch(&self, count: u32) -> Range<u32> {
        let start = (0..count).find(|index| self.contains(*index)).unwrap_or(count);
        let end = (start..count).find(|index| !self.contains(*index)).unwrap_or(count);
        start..end
    }
}

/// A class's filter and the level that it guards.
struct Filter {
    level: usize,
    misses: Box<dyn Admission>,
}

/// The filters of the classes that have one.
#[derive(Default)]
pub(crate) struct Filters(Vec<Option<Filter>>);

impl Filters {
    /// One for each class that wants it; what a filter knows stays while its level does.
    pub(crate) fn adjust(&mut self, spec: &CacheSpec) {
        self.0.resize_with(spec.classes.len(), || None);
        for (filter, class) in self.0.iter_mut().zip(&spec.classes) {
            let level = guarded(spec, class);
            if filter.as_ref().map(|filter| filter.level) != level {
                *filter = level.map(|level| Filter {
                    level,
                    misses: class.admission.build(spec.levels[level].slots),
                });
            }
        }
    }

    /// Whether a class has no filter.
    fn is_open(&self, class: usize) -> bool {
        self.0[class].is_none()
    }

    /// Notes that no level had `key`; whether it may be kept.
    fn on_miss(&mut self, class: usize, key: BlockKey) -> bool {
        self.0[class].as_mut().is_none_or(|filter| filter.misses.on_miss(key))
    }

    /// Bytes of memory of those that guard `level`.
    pub(crate) fn memory_bytes(&self, level: usize) -> usize {
        let mine = self.0.iter().flatten().filter(|filter| filter.level == level);
        mine.map(|filter| filter.misses.memory_bytes()).sum()
    }
}

/// The largest level into which a class's reads go, where it has a filter: misses are remembered
/// for as long as a block would stay there.
fn guarded(spec: &CacheSpec, class: &ClassSpec) -> Option<usize> {
    if class.admission == AdmissionKind::All {
        return None;
    }
    let mut allowed = (0..spec.levels.len()).filter(|level| class.levels & (1 << level) != 0);
    let top = allowed.next()?;
    let kept = class.keep_reads && spec.levels[top].kind == LevelKind::Memory;
    let lowest = allowed.rfind(|level| spec.levels[*level].kind.is_persistent());
    Some(lowest.filter(|_| kept).unwrap_or(top))
}

impl Cache {
    /// Whether the volume's class keeps what is missed once.
    pub(crate) fn admits_all(&self, volume: u16) -> bool {
        self.filters.is_open(self.volumes.get(volume).class)
    }

    /// Notes that no level had a block of `volume`; whether it may be kept.
    pub(crate) fn admit(&mut self, volume: u16, key: BlockKey) -> bool {
        let class = self.volumes.get(volume).class;
        self.filters.on_miss(class, key)
    }

    /// Notes the blocks of a fetch from home as missed, and which of them may be kept.
    pub(crate) fn admit_fetch(&mut self, id: OpId) {
        let (volume, first, count) = self.extent(id);
        if self.admits_all(volume) {
            return;
        }
        let mut admitted = BlockSet::NONE;
        for index in 0..count {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            if self.admit(volume, key) {
                admitted.add(index);
            }
        }
        let Task::Fetch(fetch) = &mut self.ops.get_mut(id.0).task else {
            panic!("only a fetch brings blocks in")
        };
        fetch.admitted = admitted;
    }
}
