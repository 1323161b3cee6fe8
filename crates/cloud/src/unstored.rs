//! Segments that a node's map counts on though no superblock names them, and what has become of
//! them in the store.
//!
//! How: the map file says which segments the store took and which of them a superblock named. Of
//! the others each is read whole, as the next start does. The journal is scanned for what they
//! hold: it frees nothing that no superblock vouches for, but may be damaged itself.
//! Invariant: nothing is written. A segment that the store's superblock names is not looked at: it
//! is the volume, and read with it.
//! Cost: the journal's part once, these segments once, one in memory at a time.
//! Not for: a volume that its node still writes.

use crate::host::{HostError, Paths};
use crate::local::{open_to_read, read_map};
use crate::restore::{Fetch, RestoreError, read_superblock, read_whole};
use crate::segment::{SegmentName, VolumeUuid};
use crate::volume::{Wanted, left_over};
use std::os::unix::fs::FileExt as _;

/// See the file's header.
pub struct Unstored {
    volume: VolumeUuid,
    names: Vec<SegmentName>,
    is_in_journal: bool,
}

impl Unstored {
    /// Finds what the node counts on.
    ///
    /// # Errors
    /// [`HostError`] where a file is missing, damaged or another volume's.
    pub fn open(paths: &Paths) -> Result<Self, HostError> {
        let map = read_map(&paths.map).map_err(|e| HostError::File(paths.map.clone(), e))?;
        let failed = |error| HostError::File(paths.journal.clone(), error);
        let journal = open_to_read(&paths.journal).map_err(failed)?;
        let mut read = |at, length: u64| {
            let length = usize::try_from(length).map_err(|error| error.to_string())?;
            let mut bytes = vec![0; length];
            let read = journal.read_exact_at(&mut bytes, at);
            read.map(|()| bytes).map_err(|error| error.to_string())
        };
        let found = left_over(&map, Wanted::Unnamed, &mut read).map_err(HostError::Open)?;
        // What was overwritten since is needed, too, where a segment ends before that.
        let is_damaged = found.damaged_batches.iter().any(|seq| *seq < found.put_next);
        // Damage may pass for the end of the last write: only durable batches are put.
        let ends_early = found.damaged_at.is_some() || found.end_next < found.put_next;
        let is_in_journal = !is_damaged && !ends_early;
        Ok(Unstored { volume: found.volume, names: found.put, is_in_journal })
    }

    /// Whether the journal has all that these segments hold of what clients wrote.
    #[must_use]
    pub fn is_in_journal(&self) -> bool {
        self.is_in_journal
    }

    /// Those that the store does not have whole, in order.
    ///
    /// # Errors
    /// [`RestoreError`] where there is no volume, or the store fails.
    pub fn missing(&self, fetch: Fetch<'_>) -> Result<Vec<SegmentName>, RestoreError> {
        if self.names.is_empty() {
            return Ok(Vec::new());
        }
        let block = read_superblock(fetch)?;
        let is_unnamed = |name: &&SegmentName| {
            name.number > block.committed && block.segment(name.number) == Some(**name)
        };
        let mut missing = Vec::new();
        for name in self.names.iter().filter(is_unnamed) {
            match read_whole(fetch, self.volume, *name) {
                Ok(_) => {}
                Err(RestoreError::Damaged(_)) => missing.push(*name),
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }
}
