//! Pages of the NVM level that its device cannot return: at a start, and in slots that are filled.
//!
//! How: the mapping shows a pattern in the place of such a page, which matches no checksum. At a
//! start a page of headers is written anew from the copies of these, and a page of copies from the
//! headers. The mark stays unknown until a sync covers what was found. A block whose page is lost
//! is a damaged one; its slot is used again once the device took the page.
//! Invariant: what is lost is never taken for what power loss tore, since an older version would
//! come back; nothing is stored in a lost page that was not restored.
//! Cost: at a start one access per page of headers; afterwards a flag per block that is placed.
//! Not for: a superblock, without which there is no level.

use super::layout::crc32c;
use super::nvm::{EMPTY, NvmStore};
use super::nvm_layout::{
    HEADER_BYTES, HeaderState, MARK_AT, MARK_BYTES, decode_mark, is_torn_mark,
};
use super::{CorruptInfo, Recovered, StoreError, StoreEvent, UNREADABLE_PAGE};
use crate::io::{IoError, Mapping, PAGE_BYTES};
use layby_types::{Seq, Slot};
use std::collections::BTreeSet;
use std::hint::black_box;

/// Restores each lost page of a range.
pub(super) fn restore_range(
    mapping: &mut dyn Mapping,
    offset: u64,
    length: usize,
) -> Result<(), (u64, IoError)> {
    let pages = mapping.lost_pages(offset, length);
    pages.into_iter().try_for_each(|page| mapping.restore(page).map_err(|error| (page, error)))
}

/// A page that cannot be read.
pub(super) fn unreadable(disk: &str, page: u64) -> CorruptInfo {
    CorruptInfo {
        disk: disk.to_owned(),
        offset: page,
        length: PAGE_BYTES,
        what: UNREADABLE_PAGE,
        slot: None,
        key: None,
        stored: 0,
        computed: 0,
    }
}

impl NvmStore {
    /// The sound copies of the mark; zero for one that is not. `None` where neither is sound, and
    /// power loss has not left them so: what was durable is not known.
    pub(super) fn marks(&self) -> Option<[Seq; 2]> {
        let first = u64::from(self.geometry.block_bytes);
        let copies = MARK_AT.map(|at| self.bytes(first + at, MARK_BYTES));
        let marks = copies.map(|copy| decode_mark(copy, self.instance));
        let is_known = marks != [Seq(0); 2] || copies.into_iter().all(is_torn_mark);
        is_known.then_some(marks)
    }

    /// Writes lost pages of headers and copies anew, each slot's from the other page, and names
    /// them; those of which both are lost stay damaged.
    ///
    /// # Errors
    /// A device that refuses such a page; with `is_strict` any page that is lost, before anything
    /// is written.
    pub(super) fn heal(&mut self, recovered: &mut Recovered) -> Result<(), StoreError> {
        let (mark, headers) = self.structures();
        for at in std::iter::once(mark).chain((headers.0..headers.1).step_by(PAGE_BYTES as usize)) {
            black_box(self.mapping.bytes(at, 1)[0]);
        }
        let mut lost: BTreeSet<u64> = BTreeSet::new();
        lost.extend(self.mapping.lost_pages(mark, MARK_AT[1] as usize + MARK_BYTES));
        lost.extend(self.mapping.lost_pages(headers.0, (headers.1 - headers.0) as usize));
        if self.config.is_strict {
            let first = lost.first().copied().or_else(|| self.lost_recent());
            return first.map_or(Ok(()), |page| Err(self.refusal(page)));
        }
        recovered.damaged.extend(lost.iter().map(|page| unreadable(&self.disk_name, *page)));
        if lost.iter().any(|page| *page >= headers.0) {
            (0..self.geometry.physical).for_each(|physical| self.copy_header(physical, &lost));
        }
        for page in lost {
            // An unknown mark costs no more than a start that knows no mark.
            if let Err(error) = self.mapping.restore(page)
                && page >= headers.0
            {
                let (disk, errno) = (self.disk_name.clone(), error.errno);
                return Err(StoreError::Io { disk, offset: page, errno });
            }
        }
        Ok(())
    }

    /// From now on only pages of data may be lost: the next start makes up for the others.
    pub(super) fn end_for_structures(&mut self) {
        let (_, headers) = self.structures();
        self.mapping.end_below(headers.1);
    }

    /// Where mark, and headers with their copies, lie on the disk.
    fn structures(&self) -> (u64, (u64, u64)) {
        let base = self.config.region.base;
        let at = |block: u32| base + u64::from(block) * u64::from(self.geometry.block_bytes);
        (at(1), (at(self.geometry.headers_first), at(self.geometry.data_first)))
    }

    fn refusal(&self, page: u64) -> StoreError {
        StoreError::Corrupt(unreadable(&self.disk_name, page))
    }

    /// Copies a header to its copy's place, or back, where one of them is lost.
    fn copy_header(&mut self, physical: u32, lost: &BTreeSet<u64>) {
        let [copy, header] = self.header_ats(physical);
        let is_lost = |at: u64| lost.contains(&(at / PAGE_BYTES * PAGE_BYTES));
        let (from, to) = match (is_lost(copy), is_lost(header)) {
            (true, false) => (header, copy),
            (false, true) => (copy, header),
            _ => return,
        };
        let bytes = self.mapping.bytes(from, HEADER_BYTES as usize).to_vec();
        self.mapping.write(to, &bytes);
    }

    /// A lost page of data that a start verifies.
    fn lost_recent(&self) -> Option<u64> {
        let mark = self.marks().map_or(Seq(0), |[first, second]| first.max(second));
        (0..self.geometry.physical).find_map(|physical| match self.header(physical) {
            HeaderState::Sound(header) if header.seq > mark && !header.borrowed => {
                let (at, length) = self.data_range(physical);
                black_box(crc32c(self.mapping.bytes(at, length)));
                self.lost_data(physical).first().copied()
            }
            _ => None,
        })
    }

    fn data_range(&self, physical: u32) -> (u64, usize) {
        let at = self.config.region.base + self.geometry.data_at(physical);
        (at, self.geometry.block_bytes as usize)
    }

    /// Pages of a slot's data that were found lost.
    pub(super) fn lost_data(&self, physical: u32) -> Vec<u64> {
        let (at, length) = self.data_range(physical);
        self.mapping.lost_pages(at, length)
    }

    /// Hands a slot's bytes on, checked before, and again where a page of them was lost meanwhile.
    ///
    /// # Errors
    /// As [`NvmStore::read`]; what was handed on is void then.
    pub fn read_with(&self, slot: Slot, hand: impl FnOnce(&[u8])) -> Result<(), CorruptInfo> {
        let physical = self.slots[slot.0 as usize];
        assert!(physical != EMPTY, "{slot:?} holds nothing");
        self.hand_on(slot, self.header(physical), hand)
    }

    /// The same for a slot that has this header.
    pub(super) fn hand_on(
        &self,
        slot: Slot,
        header: HeaderState,
        hand: impl FnOnce(&[u8]),
    ) -> Result<(), CorruptInfo> {
        hand(self.check(slot, header)?);
        if !self.lost_data(self.slots[slot.0 as usize]).is_empty() {
            self.read(slot)?;
        }
        Ok(())
    }

    /// Writes a block into a free slot. `None` where there is none: one whose lost page the device
    /// does not take is left out from now on.
    pub(super) fn fill_slot(&mut self, data: &[u8]) -> Option<u32> {
        while let Some(physical) = self.free_slots.pop() {
            let (at, length) = self.data_range(physical);
            self.write_at(at, data);
            let pages = self.lost_data(physical);
            let infos = pages.iter().map(|page| unreadable(&self.disk_name, *page));
            self.events.extend(infos.map(StoreEvent::Corrupt));
            if restore_range(&mut *self.mapping, at, length).is_ok() {
                return Some(physical);
            }
            self.leave_out();
        }
        None
    }

    /// A slot is not used any more until the next start. Where the others do not suffice for what
    /// the level may be asked to hold, nothing is stored any more, as after a failed sync.
    fn leave_out(&mut self) {
        self.counters.slots_left_out += 1;
        let left = u64::from(self.geometry.physical) - self.counters.slots_left_out;
        self.lost |= left <= u64::from(self.geometry.slot_count);
        self.stirred = true;
    }
}
