//! Blocks that a start could not decide, as the checkpoint names them, and what is open still.
//!
//! How: entries of their own kind give ranges; a block that a record behind the checkpoint names is
//! known again.
//! Invariant: as in the parent. Cost: an entry per range or per 96 blocks.

use super::{StoreReport, u32_at, u64_at};

/// Ranges that a report lists of each volume.
const RANGES_LISTED_MAX: usize = 16;

/// Lost blocks: first keys and numbers, in order.
#[derive(Debug, Default)]
pub(super) struct Lost(Vec<(u64, u64)>);

/// Whether an entry of a chunk names lost blocks.
pub(super) fn is_lost_entry(entry: &[u8]) -> bool {
    u32_at(entry, 20) & 12 != 0
}

impl Lost {
    /// Adds what an entry names.
    pub(super) fn add(&mut self, entry: &[u8]) {
        let (key, low) = (u64_at(entry, 0), u64_at(entry, 8));
        if u32_at(entry, 20) & 4 != 0 {
            return self.push(key, low);
        }
        let high = u32_at(entry, 16);
        let is_set = |bit: &u64| match bit {
            0..64 => low >> bit & 1 != 0,
            _ => high >> (bit - 64) & 1 != 0,
        };
        (0..96).filter(is_set).for_each(|bit| self.push(key.saturating_add(bit), 1));
    }

    fn push(&mut self, key: u64, count: u64) {
        match self.0.last_mut().filter(|(first, count)| first.saturating_add(*count) == key) {
            Some(last) => last.1 = last.1.saturating_add(count),
            None => self.0.push((key, count)),
        }
    }

    /// These blocks are known again.
    pub(super) fn remove(&mut self, known: &[(u64, u64)]) {
        if self.0.is_empty() {
            return;
        }
        for (start, last) in known {
            let runs = std::mem::take(&mut self.0).into_iter();
            self.0 = runs.flat_map(|run| without(run, *start, *last)).flatten().collect();
        }
    }

    /// Names them, volume by volume.
    pub(super) fn report(&self, at: u64, report: &mut StoreReport) {
        let volumes: std::collections::BTreeSet<u64> =
            self.0.iter().map(|(key, _)| key >> 44).collect();
        for volume in volumes {
            let mine: Vec<_> = self.0.iter().filter(|(key, _)| key >> 44 == volume).collect();
            let blocks = mine.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
            let name = |(key, count): &&(u64, u64)| {
                let first = key & ((1 << 44) - 1);
                format!("{first} to {}", first.saturating_add(count.saturating_sub(1)))
            };
            let mut names: Vec<String> = mine.iter().take(RANGES_LISTED_MAX).map(name).collect();
            if mine.len() > RANGES_LISTED_MAX {
                names.push(format!("and {} more ranges", mine.len() - RANGES_LISTED_MAX));
            }
            let names = names.join(", ");
            let sentence = format!("{blocks} blocks of volume {volume} are lost: {names}");
            report.problem(at, sentence);
        }
    }
}

/// What is left of a range without the keys from `start` to `last`.
fn without((first, count): (u64, u64), start: u64, last: u64) -> [Option<(u64, u64)>; 2] {
    let end = first.saturating_add(count);
    if last < first || end <= start {
        return [Some((first, count)), None];
    }
    let before = (first < start).then(|| (first, start - first));
    let behind = last.saturating_add(1);
    [before, (behind < end).then(|| (behind, end - behind))]
}
