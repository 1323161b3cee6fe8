//! What only a node's journal has of a volume that another node has taken, or whose store is gone.
//!
//! How: the map file says how far the last superblock of this node went, the ring is read from
//! there on, and of each block the newest write counts. A segment that was put and that no
//! superblock names is not counted as stored. Of a store that was set back, what the ring still
//! holds from before counts, too ([`Wanted::All`]). Payloads are compared with their checksums
//! before they are handed out.
//! Invariant: nothing is written. A payload that is damaged is not handed out, nor what its blocks
//! held before; all others are. Behind a damaged header nothing is known.
//! Cost: the journal's part is read twice. Not for: a volume whose node goes on writing it.

use crate::codec::crc32c;
use crate::host::{HostError, Paths};
use crate::journal::JournalError;
use crate::local::{open_to_read, read_map};
use crate::segment::VolumeUuid;
use crate::volume::{Left, LeftOver, OpenError, Wanted, left_over};
use layby_types::Nanos;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// A range of a volume that only the journal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SalvageRange {
    /// First byte of the volume.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// What it holds.
    pub what: SalvageKind,
    /// The journal's batch that has it; they count on through the volume's time on this node.
    pub batch: u64,
    /// When that was written, since 1970; none where it was not written down.
    pub written: Option<Nanos>,
}

/// What is known of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SalvageKind {
    /// It is handed out.
    Data,
    /// It was made zeros, and holds no data.
    Zeros,
    /// Its checksum does not hold: it is lost, unless the store got it.
    Damaged,
}

/// Takes bytes at an offset of the volume.
pub type SalvageSink<'a, E> = dyn FnMut(u64, &[u8]) -> Result<(), E> + 'a;

/// What only the journal has; see the file's header.
pub struct Salvage {
    journal: File,
    found: LeftOver,
}

impl Salvage {
    /// Finds what there is of the writes that are wanted.
    ///
    /// # Errors
    /// [`HostError`] where a file is missing, damaged at its beginning, or another volume's.
    pub fn open(paths: &Paths, wanted: Wanted) -> Result<Self, HostError> {
        let map = read_map(&paths.map).map_err(|e| HostError::File(paths.map.clone(), e))?;
        let failed = |error| HostError::File(paths.journal.clone(), error);
        let journal = open_to_read(&paths.journal).map_err(failed)?;
        let mut read = |at, length| read_at(&journal, at, length);
        let found = left_over(&map, wanted, &mut read).map_err(HostError::Open)?;
        Ok(Salvage { journal, found })
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> VolumeUuid {
        self.found.volume
    }

    /// The last segment that a superblock of the node named: what is here is newer, unless all is
    /// wanted.
    #[must_use]
    pub fn segment(&self) -> u64 {
        self.found.number
    }

    /// Who has the volume by now, as far as the node found out.
    #[must_use]
    pub fn taken(&self) -> Option<&str> {
        self.found.taken.as_deref()
    }

    /// The byte of the journal where acknowledged data is damaged, so that what was written after
    /// it is not here.
    #[must_use]
    pub fn damaged_at(&self) -> Option<u64> {
        self.found.damaged_at
    }

    /// The ranges, in the order of their offsets; neighbours of one batch are one.
    #[must_use]
    pub fn ranges(&self) -> Vec<SalvageRange> {
        let whole = self.found.left.iter().map(|left| match left.payload {
            Some(_) => self.range(left, SalvageKind::Data),
            None => self.range(left, SalvageKind::Zeros),
        });
        let damaged = self.found.damaged.iter();
        let damaged = damaged.map(|left| self.range(left, SalvageKind::Damaged));
        let mut all: Vec<SalvageRange> = whole.chain(damaged).collect();
        all.sort_unstable_by_key(|range| range.offset);
        let mut ranges: Vec<SalvageRange> = Vec::new();
        for next in all {
            let of = |range: &SalvageRange| (range.batch, range.what);
            match ranges.last_mut() {
                Some(last) if last.offset + last.length == next.offset && of(last) == of(&next) => {
                    last.length += next.length;
                }
                _ => ranges.push(next),
            }
        }
        ranges
    }

    fn range(&self, left: &Left, what: SalvageKind) -> SalvageRange {
        let block = u64::from(self.found.block_bytes);
        SalvageRange {
            offset: left.blocks.start * block,
            length: (left.blocks.end - left.blocks.start) * block,
            what,
            batch: left.seq,
            written: (left.since > Nanos::ZERO).then_some(left.since),
        }
    }

    /// Hands the bytes of all ranges that hold data to `sink`, with their offsets. What is damaged
    /// by now is left out, and is so in [`Salvage::ranges`] from then on.
    ///
    /// # Errors
    /// [`HostError`] where the journal cannot be read any more; those of `sink`.
    pub fn copy<E: From<HostError>>(&mut self, sink: &mut SalvageSink<'_, E>) -> Result<(), E> {
        for left in std::mem::take(&mut self.found.left) {
            match self.copy_one(&left, sink)? {
                true => self.found.left.push(left),
                false => self.found.damaged.push(left),
            }
        }
        Ok(())
    }

    /// The same of one write; whether it is whole.
    fn copy_one<E: From<HostError>>(
        &self,
        left: &Left,
        sink: &mut SalvageSink<'_, E>,
    ) -> Result<bool, E> {
        let block = u64::from(self.found.block_bytes);
        let Some((at, blocks, skip, crc)) = left.payload else { return Ok(true) };
        let failed = |cause| HostError::Open(OpenError::Journal(JournalError::Device(cause)));
        let bytes = read_at(&self.journal, at, blocks * block).map_err(failed)?;
        if crc32c(&bytes) != crc {
            return Ok(false);
        }
        let range = self.range(left, SalvageKind::Data);
        let from = (skip * block) as usize;
        sink(range.offset, &bytes[from..from + range.length as usize])?;
        Ok(true)
    }
}

#[cfg(test)]
impl Salvage {
    /// First bytes on the device of all payloads that hold data.
    pub(crate) fn places(&self) -> Vec<u64> {
        self.found.left.iter().filter_map(|left| left.payload).map(|(at, ..)| at).collect()
    }
}

fn read_at(file: &File, at: u64, length: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|error| error.to_string())?];
    file.read_exact_at(&mut bytes, at).map_err(|error| error.to_string())?;
    Ok(bytes)
}
