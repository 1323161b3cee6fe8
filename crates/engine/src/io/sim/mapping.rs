//! A simulated disk mapped into memory.
//!
//! How: the mapping holds the whole disk as one contiguous copy, and sends every store to the
//! disk's log as well. Write and Zero operations are refused while it lives, so the two agree.
//! A page with a sector that cannot be read is lost: it reads as a pattern, and what is stored into
//! it stays in the copy until it is restored.
//! Invariant: the copy equals what a Read operation would return, corruption at rest and lost pages
//! excepted.
//! Cost: the disk's length in memory.
//! Not for: use after a crash, which panics.

use super::disk::{Change, Content, SECTOR, STORE, SimDisk};
use super::fuse::{Deed, Fuse, Step};
use crate::io::{IoError, LOST_BYTE, Mapping, PAGE_BYTES, Persistence};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// The mapping.
pub(super) struct SimMapping {
    disk: Arc<Mutex<SimDisk>>,
    bytes: Vec<u8>,
    lost: BTreeSet<u64>,
    epoch: u64,
    persistence: Persistence,
    number: u32,
    fuse: Arc<Fuse>,
}

impl SimMapping {
    pub(super) fn new(shared: &Arc<Mutex<SimDisk>>, number: u32, fuse: Arc<Fuse>) -> Self {
        let mut disk = lock(shared);
        assert!(!disk.mapped, "{} is mapped twice", disk.name);
        disk.mapped = true;
        let mut bytes = vec![0; disk.length() as usize];
        disk.read_raw(&mut bytes);
        let lost = disk.unreadable_pages();
        for page in &lost {
            bytes[*page as usize..][..PAGE_BYTES as usize].fill(LOST_BYTE);
        }
        let persistence =
            if disk.flushes_caches { Persistence::CacheFlush } else { Persistence::Sync };
        let epoch = disk.epoch;
        SimMapping { disk: shared.clone(), bytes, lost, epoch, persistence, number, fuse }
    }

    fn locked(&self) -> MutexGuard<'_, SimDisk> {
        let disk = lock(&self.disk);
        assert_eq!(disk.epoch, self.epoch, "a mapping of {} outlived a crash", disk.name);
        disk
    }

    /// The parts of a range that are not in lost pages.
    fn sound_parts(&self, offset: u64, length: u64) -> Vec<Range<u64>> {
        let end = offset + length;
        let (mut parts, mut from) = (Vec::new(), offset);
        for page in self.lost.range((offset + 1).saturating_sub(PAGE_BYTES)..end) {
            parts.push(from..(*page).max(from));
            from = (page + PAGE_BYTES).min(end);
        }
        parts.push(from..end);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

pub(super) fn lock(disk: &Arc<Mutex<SimDisk>>) -> MutexGuard<'_, SimDisk> {
    disk.lock().expect("a test that panicked inside a simulated disk has ended already")
}

impl Mapping for SimMapping {
    fn bytes(&self, offset: u64, length: usize) -> &[u8] {
        &self.bytes[offset as usize..offset as usize + length]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let grain = if self.persistence == Persistence::CacheFlush { STORE } else { SECTOR };
        for part in self.sound_parts(offset, bytes.len() as u64) {
            let within = (part.start - offset) as usize..(part.end - offset) as usize;
            let content = Content::Bytes(bytes[within].to_vec());
            self.locked().change(Change { offset: part.start, content, durable: false, grain });
        }
        self.bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        self.fuse.burn(Step { disk: Some(self.number), deed: Deed::Stored });
    }

    fn persist(&mut self, offset: u64, length: usize) {
        if self.persistence == Persistence::CacheFlush {
            for part in self.sound_parts(offset, length as u64) {
                self.locked().persist(part.start, part.end - part.start);
            }
            self.fuse.burn(Step { disk: Some(self.number), deed: Deed::Persisted });
        }
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn lost_pages(&self, offset: u64, length: usize) -> Vec<u64> {
        let first = (offset + 1).saturating_sub(PAGE_BYTES);
        self.lost.range(first..offset + length as u64).copied().collect()
    }

    fn restore(&mut self, page: u64) -> Result<(), IoError> {
        let bytes = self.bytes[page as usize..][..PAGE_BYTES as usize].to_vec();
        let change = Change { durable: true, ..Change::write(page, bytes) };
        let mut disk = self.locked();
        if disk.is_gone || disk.is_broken(&change) {
            return Err(Errno::IO.into());
        }
        disk.change(change);
        drop(disk);
        self.lost.remove(&page);
        self.fuse.burn(Step { disk: Some(self.number), deed: Deed::Stored });
        Ok(())
    }

    /// A page is lost when the disk is mapped, or never.
    fn end_below(&mut self, _: u64) {}
}

impl Drop for SimMapping {
    fn drop(&mut self) {
        if let Ok(mut disk) = self.disk.lock()
            && disk.epoch == self.epoch
        {
            disk.mapped = false;
        }
    }
}
