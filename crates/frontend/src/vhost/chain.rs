//! One request's descriptors: from the ring's table, or from a table of their own.
//!
//! How: each descriptor is copied once and judged; pieces that the guest wrote come before pieces
//! that it wants written, as the standard demands.
//! Own code, although `virtio-queue` has a walker: that one ends a malformed chain silently, as if
//! it were a shorter one, and cannot begin at a given head, which requests that were in flight when
//! the node ended need.
//! Invariant: a walk ends after at most as many steps as the table has entries.
//! Cost: a copy of 16 bytes per piece; the lists are used again.

use super::QUEUE_SIZE_MAX;
use layby_types::SessionError;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: u64 = 16;

/// Bytes of guest memory in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: GuestAddress,
    pub(super) length: u32,
}

/// The pieces of a request.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// What the guest wrote.
    pub(super) readable: Vec<Piece>,
    /// What it wants written.
    pub(super) writable: Vec<Piece>,
}

/// Where descriptors are.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) address: GuestAddress,
    pub(super) entries: u16,
}

fn broken<T>(reason: &'static str) -> Result<T, SessionError> {
    Err(SessionError { reason })
}

impl Chain {
    /// Follows a chain from `head`; what was here before is dropped.
    pub(super) fn read(
        &mut self,
        map: &GuestMemoryMmap<()>,
        mut table: Table,
        head: u16,
    ) -> Result<(), SessionError> {
        self.readable.clear();
        self.writable.clear();
        let (mut index, mut steps, mut is_indirect) = (head, 0, false);
        loop {
            if index >= table.entries {
                return broken("a descriptor's number lies outside of its table");
            }
            steps += 1;
            if steps > table.entries {
                return broken("a chain of descriptors has a loop");
            }
            let descriptor = load(map, table, index)?;
            if descriptor.refers_to_indirect_table() {
                if is_indirect || descriptor.has_next() {
                    return broken("a table of descriptors lies within another chain");
                }
                table = indirect(&descriptor)?;
                (index, steps, is_indirect) = (0, 0, true);
                continue;
            }
            self.push(&descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn push(&mut self, descriptor: &Descriptor) -> Result<(), SessionError> {
        let piece = Piece { address: descriptor.addr(), length: descriptor.len() };
        if descriptor.is_write_only() {
            self.writable.push(piece);
        } else if self.writable.is_empty() {
            self.readable.push(piece);
        } else {
            return broken("a chain has a piece to read behind one to write");
        }
        Ok(())
    }
}

fn load(map: &GuestMemoryMmap<()>, table: Table, index: u16) -> Result<Descriptor, SessionError> {
    let address = table.address.checked_add(u64::from(index) * DESCRIPTOR_BYTES);
    let read = address.and_then(|address| map.read_obj::<Descriptor>(address).ok());
    read.ok_or(SessionError { reason: "a descriptor lies outside of the guest's memory" })
}

fn indirect(descriptor: &Descriptor) -> Result<Table, SessionError> {
    let (bytes, unit) = (u64::from(descriptor.len()), DESCRIPTOR_BYTES);
    let entries = bytes / unit;
    if entries == 0 || !bytes.is_multiple_of(unit) || entries > u64::from(QUEUE_SIZE_MAX) {
        return broken("a table of descriptors has a wrong size");
    }
    Ok(Table { address: descriptor.addr(), entries: entries as u16 })
}

/// Bytes of all pieces.
pub(super) fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

/// Takes `bytes` off the front; false when there are fewer.
pub(super) fn drop_front(pieces: &mut Vec<Piece>, mut bytes: u32) -> bool {
    while bytes > 0 {
        let Some(first) = pieces.first_mut() else { return false };
        let cut = first.length.min(bytes);
        let Some(address) = first.address.checked_add(u64::from(cut)) else { return false };
        first.address = address;
        first.length -= cut;
        bytes -= cut;
        if first.length == 0 {
            pieces.remove(0);
        }
    }
    true
}

/// Takes the last byte off; `None` when there is none.
pub(super) fn pop_last(pieces: &mut Vec<Piece>) -> Option<GuestAddress> {
    while pieces.last().is_some_and(|piece| piece.length == 0) {
        pieces.pop();
    }
    let last = pieces.last_mut()?;
    last.length -= 1;
    last.address.checked_add(u64::from(last.length))
}
