//! Disjoint runs of units, ordered by place and by length.
//!
//! How: a map from first to end, and a set of lengths; runs that are to go at once are named in a
//! further map, each with the first reason.
//! Invariant: runs neither overlap nor touch, the three agree, and `bytes` is the sum.
//! Cost: logarithmic per run that a call touches.

use super::DiscardCause;
use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Range;

#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    ends: BTreeMap<u64, u64>,
    /// Length and first unit.
    lengths: BTreeSet<(u64, u64)>,
    /// First units, and why they go at once.
    urgent: BTreeMap<u64, DiscardCause>,
    bytes: u64,
}

/// What an insertion found there already.
pub(super) struct Merged {
    pub(super) ranges: u64,
    pub(super) bytes: u64,
}

/// What a removal did.
#[derive(Default)]
pub(super) struct Cut {
    /// Runs of which nothing is left.
    pub(super) gone: u64,
    /// Runs of which two are left.
    pub(super) split: u64,
    pub(super) bytes: u64,
}

impl Runs {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    pub(super) fn has_from(&self, first: u64) -> bool {
        self.ends.range(first..).next().is_some()
    }

    /// Adds `range`, as one run with all that it overlaps or touches.
    pub(super) fn insert(&mut self, range: Range<u64>) -> Merged {
        let (before, length) = (self.bytes, range.end - range.start);
        let (mut whole, mut ranges, mut urgent) = (range, 0, None);
        while let Some((first, end)) = self.last_until(whole.end).filter(|run| run.1 >= whole.start)
        {
            urgent = urgent.or(self.take(first, end));
            whole = whole.start.min(first)..whole.end.max(end);
            ranges += 1;
        }
        self.put(whole, urgent);
        Merged { ranges, bytes: length - (self.bytes - before) }
    }

    /// Removes `range` from the runs that it overlaps.
    pub(super) fn remove(&mut self, range: Range<u64>) -> Cut {
        let mut cut = Cut::default();
        if range.start >= range.end {
            return cut;
        }
        let before = self.bytes;
        while let Some((first, end)) = self.last_until(range.end - 1).filter(|r| r.1 > range.start)
        {
            let urgent = self.take(first, end);
            let (head, tail) = (first < range.start, range.end < end);
            if head {
                self.put(first..range.start, urgent);
            }
            if tail {
                self.put(range.end..end, urgent);
            }
            cut.gone += u64::from(!head && !tail);
            cut.split += u64::from(head && tail);
        }
        cut.bytes = before - self.bytes;
        cut
    }

    /// The runs within `range`, cut to it, in order.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.ends.range(..range.start).next_back();
        let inside = self.ends.range(range.start..range.end.max(range.start));
        before
            .into_iter()
            .chain(inside)
            .map(move |(first, end)| (*first).max(range.start)..(*end).min(range.end))
            .filter(|run| run.start < run.end)
    }

    pub(super) fn mark_urgent(&mut self, range: Range<u64>, cause: DiscardCause) {
        let before = self.ends.range(..range.start).next_back().filter(|run| *run.1 > range.start);
        let inside = self.ends.range(range.start..range.end.max(range.start));
        for (first, _) in before.into_iter().chain(inside) {
            self.urgent.entry(*first).or_insert(cause);
        }
    }

    /// Marks the largest until what is left has at most `ranges` and `bytes`.
    pub(super) fn mark_largest(&mut self, ranges: usize, bytes: u64) {
        let (mut ranges_left, mut bytes_left) = (self.len(), self.bytes);
        for (length, first) in self.lengths.iter().rev() {
            if ranges_left <= ranges && bytes_left <= bytes {
                return;
            }
            self.urgent.entry(*first).or_insert(DiscardCause::Full);
            ranges_left -= 1;
            bytes_left -= length;
        }
    }

    pub(super) fn take_urgent(&mut self) -> Option<(Range<u64>, DiscardCause)> {
        let (first, cause) = self.urgent.first_key_value()?;
        let (first, cause) = (*first, *cause);
        self.take_from(first).map(|range| (range, cause))
    }

    pub(super) fn take_largest(&mut self) -> Option<Range<u64>> {
        let (_, first) = *self.lengths.last()?;
        self.take_from(first)
    }

    /// Takes the first run that begins at `first` or later.
    pub(super) fn take_from(&mut self, first: u64) -> Option<Range<u64>> {
        let (first, end) = self.ends.range(first..).next().map(|(first, end)| (*first, *end))?;
        self.take(first, end);
        Some(first..end)
    }

    /// The last run that begins at `first` or before.
    fn last_until(&self, first: u64) -> Option<(u64, u64)> {
        self.ends.range(..=first).next_back().map(|(first, end)| (*first, *end))
    }

    /// Adds a run that touches no other.
    pub(super) fn put(&mut self, range: Range<u64>, urgent: Option<DiscardCause>) {
        let length = range.end - range.start;
        assert!(self.ends.insert(range.start, range.end).is_none(), "runs are disjoint");
        self.lengths.insert((length, range.start));
        self.bytes += length;
        if let Some(cause) = urgent {
            self.urgent.insert(range.start, cause);
        }
    }

    /// Takes a run out, with the reason where it was to go at once.
    fn take(&mut self, first: u64, end: u64) -> Option<DiscardCause> {
        let length = end - first;
        assert_eq!(self.ends.remove(&first), Some(end), "a run is taken once");
        self.lengths.remove(&(length, first));
        self.bytes -= length;
        self.urgent.remove(&first)
    }
}
