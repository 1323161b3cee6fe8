//! Coherency: which chunks are written again in another window of time, and with company.
//!
//! How: a list of distinct chunks per window. A chunk in `c` windows is in `c (c - 1) / 2` pairs of
//! them; under the friend rule those pairs do not count in which it is the only chunk in common,
//! and these are found by merging two lists until a second common chunk shows up.
//! Invariant: a chunk without friends under the literal rule has none under the friend rule.
//! Cost: merges of all pairs of windows, most of which end early where windows are rich.

use alloc::vec;
use alloc::vec::Vec;

/// When two windows make a group of friends out of what they have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Coherency {
    /// C-grp: two chunks in common at least, for one alone is nobody's friend.
    #[default]
    Friends,
    /// C-lit: one is enough, as the paper's text has it.
    Literal,
}

/// Distinct chunks per window of time, filled in the order of time.
pub(super) struct WindowLists {
    lists: Vec<Vec<u32>>,
    /// The window in which each chunk was seen last, plus one.
    seen: Vec<u32>,
}

impl WindowLists {
    pub(super) fn new(windows: u32, chunks: usize) -> Self {
        WindowLists { lists: vec![Vec::new(); windows as usize], seen: vec![0; chunks] }
    }
    /// `chunk` is written in `window`, which is not before the one of the call before.
    pub(super) fn on_write(&mut self, window: u32, chunk: u32) {
        if self.seen[chunk as usize] != window + 1 {
            self.seen[chunk as usize] = window + 1;
            self.lists[window as usize].push(chunk);
        }
    }
    /// For each chunk, in how many groups it is.
    pub(super) fn groups(mut self, rule: Coherency) -> Vec<u64> {
        let mut windows = vec![0_u64; self.seen.len()];
        for chunk in self.lists.iter().flatten() {
            windows[*chunk as usize] += 1;
        }
        let mut groups: Vec<u64> =
            windows.iter().map(|count| count * count.saturating_sub(1) / 2).collect();
        if rule == Coherency::Friends {
            self.lists.iter_mut().for_each(|list| list.sort_unstable());
            for (place, one) in self.lists.iter().enumerate() {
                for other in &self.lists[place + 1..] {
                    if let Some(alone) = only_common(one, other) {
                        groups[alone as usize] -= 1;
                    }
                }
            }
        }
        groups
    }
}

/// The element that two sorted lists have in common, if it is exactly one.
fn only_common(one: &[u32], other: &[u32]) -> Option<u32> {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let mut rest = long;
    let mut found = None;
    for chunk in short {
        // Galloping would pay for lists of very different lengths; windows are alike.
        let skip = rest.iter().position(|candidate| candidate >= chunk).unwrap_or(rest.len());
        rest = &rest[skip..];
        match (rest.first(), found) {
            (None, _) => return found,
            (Some(candidate), None) if candidate == chunk => found = Some(*chunk),
            (Some(candidate), Some(_)) if candidate == chunk => return None,
            _ => {}
        }
    }
    found
}
