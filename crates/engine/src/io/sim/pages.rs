//! A sparse disk image: 4 KiB pages that exist only where something was written.
//!
//! How: pages hang in an ordered map behind `Arc`, so a clone shares them until one side writes.
//! Invariant: an absent page reads as zeros and is a hole; no byte lies past `length`.
//! Cost: a tree look-up per page; a crash clones pointers, not bytes.
//! Not for: contiguous views; see `mapping`.

use crate::io::DiskExtent;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;

/// The image.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    length: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

/// The parts of a byte range, one per page: page number, first byte in it, bytes.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length;
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (page, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let count = (PAGE - inside).min((end - at) as usize);
            at += count as u64;
            (page, inside, count)
        })
    })
}

impl Pages {
    pub(super) fn new(length: u64) -> Self {
        Pages { length, pages: BTreeMap::new() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Cuts off what lies behind a nearer end, or adds zeros.
    pub(super) fn resize(&mut self, length: u64) {
        if length < self.length {
            self.zero(length, self.length - length);
            self.pages.split_off(&length.div_ceil(PAGE as u64));
        }
        self.length = length;
    }

    /// Fills `bytes` from `offset`, with zeros past the end.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (page, inside, count) in parts(offset, rest.len() as u64) {
            let (head, tail) = rest.split_at_mut(count);
            match self.pages.get(&page) {
                Some(page) => head.copy_from_slice(&page[inside..inside + count]),
                None => head.fill(0),
            }
            rest = tail;
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.length, "a write past the end of a disk");
        let mut rest = bytes;
        for (page, inside, count) in parts(offset, rest.len() as u64) {
            let (head, tail) = rest.split_at(count);
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[inside..inside + count].copy_from_slice(head);
            rest = tail;
        }
    }

    /// Zeroes a range; pages wholly inside become holes.
    pub(super) fn zero(&mut self, offset: u64, length: u64) {
        assert!(offset + length <= self.length, "a zeroing past the end of a disk");
        for (page, inside, count) in parts(offset, length) {
            let ends_disk = page * PAGE as u64 + (inside + count) as u64 == self.length;
            if count == PAGE || (inside == 0 && ends_disk) {
                self.pages.remove(&page);
            } else if let Some(page) = self.pages.get_mut(&page) {
                Arc::make_mut(page)[inside..inside + count].fill(0);
            }
        }
    }

    /// The range as alternating runs of data and holes.
    pub(super) fn extents(&self, offset: u64, length: u64) -> Vec<DiskExtent> {
        let mut extents: Vec<DiskExtent> = Vec::new();
        for (page, inside, count) in parts(offset, length) {
            let data = self.pages.contains_key(&page);
            match extents.last_mut() {
                Some(last) if last.data == data => last.length += count as u64,
                _ => extents.push(DiskExtent {
                    offset: page * PAGE as u64 + inside as u64,
                    length: count as u64,
                    data,
                }),
            }
        }
        extents
    }
}
