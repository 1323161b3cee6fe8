//! A mapped disk whose stores stay in this process until they are made durable.
//!
//! How: readers see a private copy of the whole disk; a store changes the copy and joins the disk's
//! overlay, from where `persist`, a Sync or the memory limit carries it into the wrapped mapping.
//! Invariant: the copy equals the wrapped mapping with the overlay laid over it.
//! Cost: the disk's length in memory, and two copies per store.
//! Not for: speed; this is for tests that kill the process.

use super::overlay::{Content, Overlay, Piece};
use crate::io::{IoError, Mapping, PAGE_BYTES, Persistence};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a disk's mapping and its operations share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) overlay: Overlay,
    /// The wrapped mapping, while one lives.
    pub(super) mapped: Option<Box<dyn Mapping>>,
}

pub(super) fn lock(shared: &Arc<Mutex<Shared>>) -> MutexGuard<'_, Shared> {
    shared.lock().expect("one thread uses a disk and its mapping")
}

impl Shared {
    /// Carries pieces of the overlay into the wrapped mapping, if there is one.
    pub(super) fn carry(&mut self, pieces: Vec<Piece>) {
        let mapped = self.mapped.as_mut().expect("stores are carried while a mapping lives");
        for piece in pieces {
            match &piece.content {
                Content::Bytes(bytes) => mapped.write(piece.offset, bytes),
                Content::Zeros { length, .. } => {
                    mapped.write(piece.offset, &vec![0; *length as usize]);
                }
            }
            self.overlay.forget(piece.range(), piece.age);
        }
    }
}

/// The mapping.
pub(super) struct VolatileMapping {
    shared: Arc<Mutex<Shared>>,
    bytes: Vec<u8>,
    persistence: Persistence,
    limit_bytes: u64,
}

impl VolatileMapping {
    pub(super) fn new(
        shared: &Arc<Mutex<Shared>>,
        wrapped: Box<dyn Mapping>,
        length: u64,
        limit_bytes: u64,
    ) -> Self {
        let mut bytes = wrapped.bytes(0, length as usize).to_vec();
        let persistence = wrapped.persistence();
        let mut disk = lock(shared);
        assert!(disk.mapped.is_none(), "a disk is mapped twice");
        disk.overlay.pieces(0..length).iter().for_each(|piece| piece.lay_over(0, &mut bytes));
        disk.mapped = Some(wrapped);
        VolatileMapping { shared: shared.clone(), bytes, persistence, limit_bytes }
    }

    fn place(&self, offset: u64, length: usize) -> Range<usize> {
        assert!(offset <= self.bytes.len() as u64, "past the end of a mapping");
        offset as usize..offset as usize + length
    }
}

impl Mapping for VolatileMapping {
    fn bytes(&self, offset: u64, length: usize) -> &[u8] {
        &self.bytes[self.place(offset, length)]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let place = self.place(offset, bytes.len());
        self.bytes[place].copy_from_slice(bytes);
        let mut shared = lock(&self.shared);
        shared.overlay.insert(offset, Content::Bytes(bytes.to_vec()));
        if shared.overlay.held_bytes() > self.limit_bytes {
            let pieces = shared.overlay.oldest(self.limit_bytes / 2);
            shared.carry(pieces);
        }
    }

    fn persist(&mut self, offset: u64, length: usize) {
        if self.persistence == Persistence::CacheFlush {
            let mut shared = lock(&self.shared);
            let pieces = shared.overlay.pieces(offset..offset + length as u64);
            shared.carry(pieces);
            let mapped = shared.mapped.as_mut().expect("this mapping lives");
            mapped.persist(offset, length);
        }
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn lost_pages(&self, offset: u64, length: usize) -> Vec<u64> {
        let shared = lock(&self.shared);
        shared.mapped.as_ref().expect("this mapping lives").lost_pages(offset, length)
    }

    fn restore(&mut self, page: u64) -> Result<(), IoError> {
        let place = self.place(page, PAGE_BYTES as usize);
        let mut shared = lock(&self.shared);
        let mapped = shared.mapped.as_mut().expect("this mapping lives");
        mapped.write(page, &self.bytes[place]);
        mapped.restore(page)
    }

    fn end_below(&mut self, offset: u64) {
        let mut shared = lock(&self.shared);
        shared.mapped.as_mut().expect("this mapping lives").end_below(offset);
    }
}

impl Drop for VolatileMapping {
    fn drop(&mut self) {
        if let Ok(mut shared) = self.shared.lock() {
            shared.mapped = None;
        }
    }
}
