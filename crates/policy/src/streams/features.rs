//! The four features of every chunk that a training trace writes.
//!
//! How: touched chunks are listed once and sorted; a write's chunks are neighbours in that list, so
//! one search per write finds them. Then counts become values: 0 or 1, or tenths.
//! Invariant: values lie in 0..=1; a shift or a stretch of time, or a shift of addresses by whole
//! chunks, changes none of them. Cost: a search per write; 40 bytes per touched chunk.

use super::Write;
use super::coherency::{Coherency, WindowLists};
use super::selection::Feature;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Nanos;

/// How finely features are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scale {
    /// 0 or 1.
    Binary,
    /// Tenths; C is continuous, S stays 0 or 1.
    #[default]
    Decimal,
}

/// When a chunk counts as written sequentially.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sequentiality {
    /// At least half of its writes continued the write before.
    #[default]
    Half,
    /// One of them did.
    Any,
    /// The first one did.
    First,
}

/// Equal windows of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    origin: Nanos,
    length: f64,
    count: u32,
}

impl Windows {
    /// One window: nothing is coherent.
    pub const COUNT_MIN: u32 = 1;
    /// Finer than any trace's bursts.
    pub const COUNT_MAX: u32 = 1000;
    /// The paper gives none.
    pub const COUNT_DEFAULT: u32 = 100;

    /// `count` windows from `first` to `last`.
    ///
    /// # Panics
    /// `count` is out of its bounds.
    #[must_use]
    pub fn over(first: Nanos, last: Nanos, count: u32) -> Self {
        assert!((Self::COUNT_MIN..=Self::COUNT_MAX).contains(&count), "windows in bounds");
        let length = (last.since(first).0 as f64 / f64::from(count)).max(1.0);
        Windows { origin: first, length, count }
    }
    fn of(&self, at: Nanos) -> u32 {
        ((at.since(self.origin).0 as f64 / self.length) as u32).min(self.count - 1)
    }
}

/// A value per feature, in the order of columns.
pub(super) type Row = [f64; Feature::ALL.len()];

/// How features are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Taking {
    pub(super) chunk_sectors: u32,
    pub(super) scale: Scale,
    pub(super) sequentiality: Sequentiality,
    pub(super) coherency: Coherency,
    pub(super) windows: Windows,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    writes: u32,
    sequential: u32,
    first_was_sequential: bool,
    last: Nanos,
}

/// Touched chunks, ascending, with what was seen of them.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) chunks: Vec<u64>,
    pub(super) writes: Vec<u32>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// The features of what `writes` touch; `writes` is in the order of time and not empty.
    pub(super) fn of(writes: &[Write], taking: &Taking) -> Table {
        let chunks = touched(writes, taking.chunk_sectors);
        let mut seen = vec![Seen::default(); chunks.len()];
        let mut lists = WindowLists::new(taking.windows.count, chunks.len());
        let mut end_last = None;
        for write in writes {
            let is_sequential = end_last == Some(write.first);
            let window = taking.windows.of(write.at);
            for place in places(&chunks, write, taking.chunk_sectors) {
                seen[place].on_write(write.at, is_sequential);
                lists.on_write(window, place as u32);
            }
            end_last = Some(write.end());
        }
        let span = (writes[0].at, writes[writes.len() - 1].at);
        let groups = lists.groups(taking.coherency);
        let rows = rows(&seen, &groups, span, taking);
        Table { chunks, writes: seen.iter().map(|chunk| chunk.writes).collect(), rows }
    }
}

impl Seen {
    fn on_write(&mut self, at: Nanos, is_sequential: bool) {
        self.first_was_sequential |= self.writes == 0 && is_sequential;
        self.writes += 1;
        self.sequential += u32::from(is_sequential);
        self.last = at;
    }
    fn is_sequential(&self, rule: Sequentiality) -> bool {
        match rule {
            Sequentiality::Half => self.sequential > 0 && 2 * self.sequential >= self.writes,
            Sequentiality::Any => self.sequential > 0,
            Sequentiality::First => self.first_was_sequential,
        }
    }
}

fn touched(writes: &[Write], chunk_sectors: u32) -> Vec<u64> {
    let mut chunks: Vec<u64> =
        writes.iter().flat_map(|write| write.chunks(chunk_sectors)).collect();
    chunks.sort_unstable();
    chunks.dedup();
    chunks
}

fn places(chunks: &[u64], write: &Write, chunk_sectors: u32) -> core::ops::Range<usize> {
    let range = write.chunks(chunk_sectors);
    let first = chunks.partition_point(|chunk| *chunk < range.start);
    first..first + (range.end - range.start) as usize
}

fn rows(seen: &[Seen], groups: &[u64], span: (Nanos, Nanos), taking: &Taking) -> Vec<Row> {
    let mut counts: Vec<u32> = seen.iter().map(|chunk| chunk.writes).collect();
    counts.sort_unstable();
    let (least, most) = (groups.iter().min(), groups.iter().max());
    let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
    let row = |(chunk, groups): (&Seen, &u64)| {
        let sequential = f64::from(u8::from(chunk.is_sequential(taking.sequentiality)));
        let [frequency, adjacency, coherency] = match taking.scale {
            Scale::Binary => binary(chunk, *groups, &counts, span),
            Scale::Decimal => [
                tenths_of_rank(chunk.writes, &counts),
                tenths_of_time(chunk.last, span),
                if most == least { 0.0 } else { (groups - least) as f64 / (most - least) as f64 },
            ],
        };
        [frequency, sequential, adjacency, coherency]
    };
    seen.iter().zip(groups).map(row).collect()
}

fn binary(chunk: &Seen, groups: u64, counts: &[u32], span: (Nanos, Nanos)) -> [f64; 3] {
    let middle = counts.len() / 2;
    let twice_median = match counts.len() % 2 {
        0 => u64::from(counts[middle - 1]) + u64::from(counts[middle]),
        _ => 2 * u64::from(counts[middle]),
    };
    let is_frequent = 2 * u64::from(chunk.writes) > twice_median;
    let is_late = 2 * u128::from(chunk.last.0) > u128::from(span.0.0) + u128::from(span.1.0);
    [is_frequent, is_late, groups > 0].map(|is| f64::from(u8::from(is)))
}

/// The decile of a count among all of them.
fn tenths_of_rank(writes: u32, counts: &[u32]) -> f64 {
    let fewer = counts.partition_point(|count| *count < writes);
    (10 * fewer / counts.len()) as f64 / 10.0
}

fn tenths_of_time(last: Nanos, (from, to): (Nanos, Nanos)) -> f64 {
    let span = u128::from(to.since(from).0.max(1));
    let tenth = 10 * u128::from(last.since(from).0) / span;
    tenth.min(9) as f64 / 10.0
}
