//! What only a node's journal has of a volume that another node has taken, or whose store is gone.
//!
//! How: the map file says how far the last superblock of this node went, the ring is read from
//! there on, and of each block the newest write counts. A segment that was put and that no
//! superblock names is not counted as stored. Of a store that was set back, what the ring still
//! holds from before counts, too ([`Wanted::All`]). Payloads are compared with their checksums
//! before they are handed out.
//! Invariant: nothing is written. What is damaged ends it: nothing behind that is handed out.
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
    /// It was made zeros, and holds no data.
    pub is_zero: bool,
    /// The journal's batch that has it; they count on through the volume's time on this node.
    pub batch: u64,
    /// When that was written, since 1970; none where it was not written down.
    pub written: Option<Nanos>,
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
        let mut ranges: Vec<SalvageRange> = Vec::new();
        for next in self.found.left.iter().map(|left| self.range(left)) {
            let of = |range: &SalvageRange| (range.batch, range.is_zero);
            match ranges.last_mut() {
                Some(last) if last.offset + last.length == next.offset && of(last) == of(&next) => {
                    last.length += next.length;
                }
                _ => ranges.push(next),
            }
        }
        ranges
    }

    fn range(&self, left: &Left) -> SalvageRange {
        let block = u64::from(self.found.block_bytes);
        SalvageRange {
            offset: left.blocks.start * block,
            length: (left.blocks.end - left.blocks.start) * block,
            is_zero: left.payload.is_none(),
            batch: left.seq,
            written: (left.since > Nanos::ZERO).then_some(left.since),
        }
    }

    /// Hands the bytes of all ranges that hold data to `sink`, with their offsets.
    ///
    /// # Errors
    /// [`HostError`] where the journal cannot be read any more as it was a moment ago; those of
    /// `sink`.
    pub fn copy<E: From<HostError>>(&self, sink: &mut SalvageSink<'_, E>) -> Result<(), E> {
        let block = u64::from(self.found.block_bytes);
        let failed = |error| HostError::Open(OpenError::Journal(error));
        for left in &self.found.left {
            let Some((at, blocks, skip, crc)) = left.payload else { continue };
            let bytes = read_at(&self.journal, at, blocks * block);
            let bytes = bytes.map_err(|cause| failed(JournalError::Device(cause)))?;
            if crc32c(&bytes) != crc {
                return Err(failed(JournalError::Damaged(at)).into());
            }
            let range = self.range(left);
            let from = (skip * block) as usize;
            sink(range.offset, &bytes[from..from + range.length as usize])?;
        }
        Ok(())
    }
}

fn read_at(file: &File, at: u64, length: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|error| error.to_string())?];
    file.read_exact_at(&mut bytes, at).map_err(|error| error.to_string())?;
    Ok(bytes)
}
