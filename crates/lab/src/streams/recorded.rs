//! Writes of a recorded trace, on a device as large as what it touches.
//!
//! How: touched chunks are moved together, in order, so that the device is as large as the
//! footprint. A trace that is shorter than a replay is repeated, its segments in another order each
//! time, for an identical repetition would let blocks die in the order in which they were written.
//! Invariant: every write of the trace is replayed at least once, unless the replay is full before.
//! Cost: a sort of the touched chunks.

use super::device::page_count;
use super::policy::{FiosParameters, SECTOR_BYTES, Sector, Write};
use super::workloads::PAGE_SECTORS;
use layby_trace::Record;
use layby_types::{Nanos, Operation, Rng};

/// Sectors of a chunk that is moved as a whole.
const CHUNK_SECTORS: u64 = FiosParameters::CHUNK_SECTORS_DEFAULT as u64;
/// Segments of a repetition.
const SEGMENTS: usize = 64;
/// Pages of the least footprint that says anything: a device of 16 MiB.
pub(super) const PAGES_MIN: u32 = 4096;

/// The writes of a trace, moved together.
pub(super) struct Compact {
    pub(super) writes: Vec<Write>,
    pub(super) volume_pages: u32,
}

/// Moves what `records` write together; volumes lie one after the other.
pub(super) fn compact(records: &[Record]) -> Compact {
    let is_write = |record: &&Record| record.operation == Operation::Write && record.length > 0;
    let written = || records.iter().filter(is_write);
    let place = |record: &Record| (u64::from(record.volume.0) << 48) + record.offset / SECTOR_BYTES;
    let last = |record: &Record| place(record) + record.length.div_ceil(SECTOR_BYTES) - 1;
    let chunks_of = |record: &Record| place(record) / CHUNK_SECTORS..=last(record) / CHUNK_SECTORS;
    let mut chunks: Vec<u64> = written().flat_map(chunks_of).collect();
    chunks.sort_unstable();
    chunks.dedup();
    let writes = written().map(|record| {
        let chunk = place(record) / CHUNK_SECTORS;
        let compact = chunks.partition_point(|other| *other < chunk) as u64;
        let first = compact * CHUNK_SECTORS + place(record) % CHUNK_SECTORS;
        let sectors = (last(record) - place(record) + 1) as u32;
        Write { at: record.at, first: Sector(first), sectors }
    });
    let pages = chunks.len() as u64 * CHUNK_SECTORS / u64::from(PAGE_SECTORS);
    Compact { writes: writes.collect(), volume_pages: pages.min(1 << 30) as u32 }
}

/// `writes` again and again, up to the one with which they are of `pages` pages.
pub(super) fn repeated(writes: &[Write], pages: u64, rng: &mut Rng) -> Vec<Write> {
    let (mut out, mut written, mut from) = (Vec::new(), 0, Nanos::ZERO);
    let mut segments: Vec<&[Write]> = writes.chunks(writes.len().div_ceil(SEGMENTS)).collect();
    loop {
        for segment in &segments {
            let begin = segment[0].at;
            for write in *segment {
                // What is measured ends at the replay's end, be it within a pass.
                if written >= pages {
                    return out;
                }
                out.push(Write { at: from + (write.at - begin), ..*write });
                written += page_count(write);
            }
            from = from + (segment[segment.len() - 1].at - begin) + Nanos::from_millis(1);
        }
        for place in (1..segments.len()).rev() {
            segments.swap(place, rng.below(place as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a repeated trace ends at the write that fills the replay, and holds every write at
    /// least once where the replay is longer than the trace. Method: random writes of sectors,
    /// replays of a part of a pass and of several.
    #[test]
    fn a_repetition_ends_when_it_is_full() {
        for seed in 1..=8 {
            let mut rng = Rng::new(seed);
            let write = |at| {
                let (first, sectors) = (Sector(rng.below(1 << 15)), rng.below(40) as u32 + 1);
                Write { at: Nanos::from_millis(at), first, sectors }
            };
            let writes: Vec<Write> = (0..500).map(write).collect();
            let touched = |writes: &[Write]| {
                let of = |one: &Write| (one.end().0 - 1) / 8 - one.first.0 / 8 + 1;
                writes.iter().map(of).sum::<u64>()
            };
            let pass = touched(&writes);
            for needed in [pass / 3, pass, pass + 1, 5 * pass / 2] {
                let out = repeated(&writes, needed, &mut Rng::new(seed));
                let (whole, before) = (touched(&out), touched(&out[..out.len() - 1]));
                assert!(before < needed && needed <= whole, "seed {seed}: {before}, {whole}");
                assert!(out.is_sorted_by_key(|one| one.at), "seed {seed}");
                let has = |write: &Write| out.iter().any(|one| one.first == write.first);
                assert!(needed < pass || writes.iter().all(has), "seed {seed}");
            }
        }
    }
}
