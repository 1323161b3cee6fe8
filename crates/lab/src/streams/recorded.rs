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
use crate::Unfit;
use layby_trace::Record;
use layby_types::{Nanos, Operation, Rng, VolumeId};

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

/// The sectors that a record touches.
#[derive(Clone, Copy)]
struct Place {
    volume: VolumeId,
    first: u64,
    last: u64,
}

/// A chunk of a volume; chunks sort by volume.
type Chunk = (VolumeId, u64);

impl Place {
    /// `None` where the range wraps, or is longer than a write may be.
    fn of(record: &Record) -> Option<Place> {
        let end = record.offset.checked_add(record.length)?;
        let (first, last) = (record.offset / SECTOR_BYTES, (end - 1) / SECTOR_BYTES);
        u32::try_from(last - first + 1).ok()?;
        Some(Place { volume: record.volume, first, last })
    }

    fn chunks(self) -> impl Iterator<Item = Chunk> {
        let chunks = self.first / CHUNK_SECTORS..=self.last / CHUNK_SECTORS;
        chunks.map(move |chunk| (self.volume, chunk))
    }
}

/// Moves what `records` write together; volumes lie one after the other, whatever their numbers.
///
/// # Errors
/// [`Unfit::Range`] where a write ends behind all that can be addressed.
pub(super) fn compact(records: &[Record]) -> Result<Compact, Unfit> {
    let is_write = |record: &&Record| record.operation == Operation::Write && record.length > 0;
    let mut written = Vec::new();
    for record in records.iter().filter(is_write) {
        let (offset, length) = (record.offset, record.length);
        let place = Place::of(record).ok_or(Unfit::Range { offset, length })?;
        written.push((record.at, place));
    }
    let mut chunks: Vec<Chunk> = written.iter().flat_map(|(_, place)| place.chunks()).collect();
    chunks.sort_unstable();
    chunks.dedup();
    let writes = written.iter().map(|(at, place)| {
        let chunk = (place.volume, place.first / CHUNK_SECTORS);
        let compact = chunks.partition_point(|other| *other < chunk) as u64;
        let first = compact * CHUNK_SECTORS + place.first % CHUNK_SECTORS;
        Write { at: *at, first: Sector(first), sectors: (place.last - place.first + 1) as u32 }
    });
    let pages = chunks.len() as u64 * CHUNK_SECTORS / u64::from(PAGE_SECTORS);
    Ok(Compact { writes: writes.collect(), volume_pages: pages.min(1 << 30) as u32 })
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

    fn written(volume: u32, offset: u64, length: u64) -> Record {
        let (at, operation) = (Nanos::ZERO, Operation::Write);
        Record { at, volume: VolumeId(volume), operation, offset, length }
    }

    /// Goal: volumes lie apart, whatever their numbers. Method: numbers that agree in their last
    /// sixteen bits, and the greatest.
    #[test]
    fn volumes_lie_apart() {
        let numbers = [0, 1, 65_536, 65_537, u32::MAX];
        let records: Vec<Record> = numbers.map(|number| written(number, 4096, 4096)).into();
        let compact = compact(&records).expect("they end somewhere");
        let chunk_pages = (CHUNK_SECTORS / u64::from(PAGE_SECTORS)) as u32;
        assert_eq!(compact.volume_pages, 5 * chunk_pages);
        let firsts: Vec<u64> = compact.writes.iter().map(|write| write.first.0).collect();
        assert_eq!(firsts, [0, 1, 2, 3, 4].map(|place| place * CHUNK_SECTORS + 8));
    }

    /// Goal: a write counts the sectors that it touches. Method: ranges by hand, across sectors
    /// and across chunks.
    #[test]
    fn writes_touch_sectors() {
        let chunk = CHUNK_SECTORS * SECTOR_BYTES;
        let cases = [
            (511, 2, 2, 1),
            (511, 1, 1, 1),
            (512, 512, 1, 1),
            (1, 1024, 3, 1),
            (chunk - 1, 2, 2, 2),
        ];
        for (offset, length, sectors, chunks) in cases {
            let compact = compact(&[written(0, offset, length)]).expect("it ends somewhere");
            assert_eq!(compact.writes[0].sectors, sectors, "{offset} + {length}");
            let pages = u64::from(compact.volume_pages);
            assert_eq!(pages * u64::from(PAGE_SECTORS), chunks * CHUNK_SECTORS, "{offset}");
        }
    }

    /// Goal: writes that end behind the last byte that can be named, or are too long to count in
    /// sectors, are refused. Method: ranges around both ends.
    #[test]
    fn ranges_that_wrap_are_refused() {
        let found = |offset, length| compact(&[written(0, offset, length)]).err();
        assert_eq!(found(u64::MAX - 511, 511), None);
        for (offset, length) in [(u64::MAX - 511, 512), (u64::MAX, 1), (1, u64::MAX), (0, 1 << 42)]
        {
            assert_eq!(found(offset, length), Some(Unfit::Range { offset, length }));
        }
    }
}
