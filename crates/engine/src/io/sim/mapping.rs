//! A simulated disk mapped into memory.
//!
//! How: the mapping holds the whole disk as one contiguous copy, and sends every store to the
//! disk's log as well. Write and Zero operations are refused while it lives, so the two agree.
//! Invariant: the copy equals what a Read operation would return, corruption at rest excepted.
//! Cost: the disk's length in memory.
//! Not for: use after a crash, which panics.

use super::disk::{Change, Content, SECTOR, STORE, SimDisk};
use super::fuse::{Deed, Fuse, Step};
use crate::io::{Mapping, Persistence};
use std::sync::{Arc, Mutex, MutexGuard};

/// The mapping.
pub(super) struct SimMapping {
    disk: Arc<Mutex<SimDisk>>,
    bytes: Vec<u8>,
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
        let persistence =
            if disk.flushes_caches { Persistence::CacheFlush } else { Persistence::Sync };
        let epoch = disk.epoch;
        SimMapping { disk: shared.clone(), bytes, epoch, persistence, number, fuse }
    }

    fn locked(&self) -> MutexGuard<'_, SimDisk> {
        let disk = lock(&self.disk);
        assert_eq!(disk.epoch, self.epoch, "a mapping of {} outlived a crash", disk.name);
        disk
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
        let content = Content::Bytes(bytes.to_vec());
        self.locked().change(Change { offset, content, durable: false, grain });
        self.bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        self.fuse.burn(Step { disk: Some(self.number), deed: Deed::Stored });
    }

    fn persist(&mut self, offset: u64, length: usize) {
        if self.persistence == Persistence::CacheFlush {
            self.locked().persist(offset, length as u64);
            self.fuse.burn(Step { disk: Some(self.number), deed: Deed::Persisted });
        }
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }
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
