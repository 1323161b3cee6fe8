//! Which pages of a page-cached mapping the next sync will write.
//!
//! How: a bit per page, and a list of those that are set, so that a sync clears no more than was
//! changed. A page that is changed again before a sync begins reaches the disk once; one that is
//! changed while a sync is in flight counts for the next.
//! Invariant: a bit is set exactly for the pages of the list. Cost: a bit of memory per 4 KiB, and
//! 8 bytes per page changed since the last sync.
//! Not for: what the kernel writes by itself between syncs, and what a file system writes beside.

use super::Region;
use crate::io::PAGE_BYTES;

/// See the file's header.
#[derive(Debug)]
pub(super) struct ChangedPages {
    first: u64,
    bits: Vec<u64>,
    changed: Vec<u64>,
}

impl ChangedPages {
    /// None is changed yet.
    pub(super) fn new(region: &Region) -> Self {
        let first = region.base / PAGE_BYTES;
        let pages = (region.base + region.length).div_ceil(PAGE_BYTES) - first;
        let bits = vec![0; pages.div_ceil(64) as usize];
        ChangedPages { first, bits, changed: Vec::new() }
    }

    /// Notes a change of `length` bytes at an offset of the disk; the bytes of the pages that are
    /// written for it, and for no earlier change. Panics outside of the region.
    pub(super) fn change(&mut self, at: u64, length: usize) -> u64 {
        let end = at + length as u64;
        let before = self.changed.len();
        for page in at / PAGE_BYTES - self.first..end.div_ceil(PAGE_BYTES) - self.first {
            let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
            if self.bits[word] & bit == 0 {
                self.bits[word] |= bit;
                self.changed.push(page);
            }
        }
        (self.changed.len() - before) as u64 * PAGE_BYTES
    }

    /// A sync begins, which writes what was changed until now.
    pub(super) fn begin_sync(&mut self) {
        for page in self.changed.drain(..) {
            self.bits[(page / 64) as usize] &= !(1 << (page % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests_log::{LENGTH, content, key};
    use super::super::{NvmConfig, NvmStore, SeqSource, StoreIdentity, SyncScope, Ticket};
    use super::*;
    use crate::io::SimIo;
    use layby_types::{BlockSize, Seq, ShardIndex, Slot};

    /// Goal: where a sync writes what was changed, its whole pages are counted, each once per sync.
    /// Method: a file: a block whose headers lie in two pages beside it, a newer version of it,
    /// whose headers lie in the same pages, and the next one while a sync is in flight.
    #[test]
    fn pages_of_a_file_are_counted() {
        let mut io = SimIo::new(12);
        let disk = io.add_disk("nvm", LENGTH);
        let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
        let region = Region { disk, base: 0, length: LENGTH, block_size: BlockSize::MIN };
        let config = NvmConfig { region, identity, is_strict: true, token_tag: 2 };
        NvmStore::format(&mut io, &config, 77).expect("large enough");
        let opened = NvmStore::open(&mut io, config, SeqSource::new(Seq(1)));
        let (mut nvm, _) = opened.expect("just formatted");
        let mut seen = nvm.counters().bytes_written;
        let mut grown = |nvm: &NvmStore| {
            let now = nvm.counters().bytes_written;
            now - std::mem::replace(&mut seen, now)
        };
        let entry = (Slot(0), key(0), true);
        nvm.store(&mut io, Ticket(1), &[entry], &content(1), false);
        assert_eq!(grown(&nvm), 3 * PAGE_BYTES);
        nvm.store(&mut io, Ticket(2), &[entry], &content(2), false);
        assert_eq!(grown(&nvm), PAGE_BYTES);
        nvm.sync(&mut io, Ticket(3), SyncScope::Stores);
        assert_eq!(grown(&nvm), 0, "the sync is in flight");
        nvm.store(&mut io, Ticket(4), &[entry], &content(3), false);
        assert_eq!(grown(&nvm), 3 * PAGE_BYTES);
    }
}
