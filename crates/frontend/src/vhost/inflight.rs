//! Which requests of a ring were taken and not yet answered, in memory that outlives this process.
//!
//! How: the region that vhost-user's in-flight messages carry, in the layout that its text proposes
//! for split rings: per entry a flag and the order of taking, and what was answered last. The
//! monitor keeps it and hands it to the node's next life.
//! Invariant: whenever the process is killed, the flags and the used ring together tell exactly
//! which requests the guest still waits for. Stores of one processor are seen in their order by
//! whoever reads after its end, so plain release stores are enough. Where a page of it cannot be
//! had, the handler of that signal raises [`Inflight::cut`], and no ring takes or answers a request
//! afterwards.
//! Cost: four stores per request. Not for: crashes of the host, with which the guest is gone too.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes before the entries of a queue: features, version, entries, last answered, used index.
const HEAD_BYTES: usize = 16;
/// Bytes of an entry: flag, next in its batch, order.
const ENTRY_BYTES: usize = 16;
/// Queues begin at multiples of this.
const ALIGN: usize = 64;
/// The layout's number; zero in a region that no node has used.
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_ENTRIES: usize = 10;
const AT_LAST: usize = 12;
const AT_USED: usize = 14;

const ENTRY_NEXT: usize = 6;
const ENTRY_ORDER: usize = 8;

/// Why a region cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InflightError {
    /// What is wrong.
    pub cause: String,
}

impl fmt::Display for InflightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for InflightError {}

fn refused<T>(cause: impl fmt::Display) -> Result<T, InflightError> {
    Err(InflightError { cause: format!("in-flight region: {cause}") })
}

/// The region of all queues of a disk, mapped.
#[derive(Clone)]
pub struct Inflight {
    region: Arc<MmapRegion<()>>,
    is_cut: Arc<AtomicBool>,
    queues: u16,
    entries: u16,
}

impl fmt::Debug for Inflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inflight({} queues of {})", self.queues, self.entries)
    }
}

impl Inflight {
    /// Bytes that so many queues of so many entries need.
    #[must_use]
    pub fn bytes(queues: u16, entries: u16) -> usize {
        usize::from(queues) * queue_bytes(entries)
    }

    /// Maps a region of a file that begins at `offset`.
    ///
    /// # Errors
    /// [`InflightError`] when the file is too short or cannot be mapped.
    pub fn map(
        file: File,
        offset: u64,
        queues: u16,
        entries: u16,
    ) -> Result<Inflight, InflightError> {
        let bytes = Inflight::bytes(queues, entries);
        if bytes == 0 {
            return refused("it has no entries");
        }
        let held = file.metadata().map_or(0, |found| found.len());
        if offset.checked_add(bytes as u64).is_none_or(|end| end > held) {
            return refused("it lies behind the end of its file");
        }
        match MmapRegion::from_file(FileOffset::new(file, offset), bytes) {
            Ok(region) => {
                let (region, is_cut) = (Arc::new(region), Arc::default());
                Ok(Inflight { region, is_cut, queues, entries })
            }
            Err(cause) => refused(cause),
        }
    }

    /// What is raised when a page of the region cannot be had.
    #[must_use]
    pub fn cut(&self) -> &Arc<AtomicBool> {
        &self.is_cut
    }

    /// The region as it is mapped.
    #[must_use]
    pub fn mapping(&self) -> &Arc<MmapRegion<()>> {
        &self.region
    }

    /// The part of queue `index`, which has `entries` entries.
    ///
    /// # Errors
    /// [`InflightError`] when the region was made for other queues, or by a stranger.
    pub(super) fn queue(&self, index: u16, entries: u16) -> Result<QueueInflight, InflightError> {
        if index >= self.queues || entries > self.entries {
            return refused("it was made for fewer queues or entries");
        }
        let base = usize::from(index) * queue_bytes(self.entries);
        let (region, is_cut) = (Arc::clone(&self.region), Arc::clone(&self.is_cut));
        let own = QueueInflight { region, is_cut, base, entries, order: 0 };
        match (own.load::<u16>(AT_VERSION), own.load::<u16>(AT_ENTRIES)) {
            (0, _) => Ok(own),
            (VERSION, stored) if stored == entries => Ok(own),
            (VERSION, stored) => refused(format!("it has {stored} entries, the ring {entries}")),
            (version, _) => refused(format!("its layout {version} is unknown")),
        }
    }
}

fn queue_bytes(entries: u16) -> usize {
    (HEAD_BYTES + usize::from(entries) * ENTRY_BYTES).next_multiple_of(ALIGN)
}

/// One queue's part.
pub(super) struct QueueInflight {
    region: Arc<MmapRegion<()>>,
    is_cut: Arc<AtomicBool>,
    base: usize,
    entries: u16,
    /// The order of the next request.
    order: u64,
}

impl QueueInflight {
    /// Settles what the last life left, and tells which heads it still owed, oldest first. `used`
    /// is the used ring's index.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        if self.load::<u16>(AT_VERSION) == 0 {
            self.store(AT_ENTRIES, self.entries);
            self.store(AT_USED, used);
            self.store(AT_VERSION, VERSION);
        }
        self.settle(used);
        let mut owed: Vec<(u64, u16)> = (0..self.entries)
            .filter(|head| self.load::<u8>(self.entry(*head)) != 0)
            .map(|head| (self.load(self.entry(head) + ENTRY_ORDER), head))
            .collect();
        owed.sort_unstable();
        self.order = owed.last().map_or(0, |(order, _)| order.wrapping_add(1));
        owed.into_iter().map(|(_, head)| head).collect()
    }

    /// Whether what is read of the region is none of it any more.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Takes the flags off what the used ring shows as answered already.
    fn settle(&mut self, used: u16) {
        let batch = used.wrapping_sub(self.load(AT_USED)).min(self.entries);
        let mut head = self.load::<u16>(AT_LAST);
        for _ in 0..batch {
            if head >= self.entries {
                break;
            }
            self.store(self.entry(head), 0u8);
            head = self.load(self.entry(head) + ENTRY_NEXT);
        }
        self.store(AT_USED, used);
    }

    /// The guest's request at `head` is about to be carried out.
    pub(super) fn on_taken(&mut self, head: u16) {
        let entry = self.entry(head);
        self.store(entry + ENTRY_ORDER, self.order);
        self.order = self.order.wrapping_add(1);
        self.store(entry, 1u8);
    }

    /// The answer of `head` is about to enter the used ring.
    pub(super) fn before_used(&mut self, head: u16) {
        self.store(self.entry(head) + ENTRY_NEXT, self.load::<u16>(AT_LAST));
        self.store(AT_LAST, head);
    }

    /// The answer of `head` has entered the used ring, whose index is `used` now.
    pub(super) fn after_used(&mut self, head: u16, used: u16) {
        self.store(self.entry(head), 0u8);
        self.store(AT_USED, used);
    }

    fn entry(&self, head: u16) -> usize {
        HEAD_BYTES + usize::from(head) * ENTRY_BYTES
    }

    fn slice(&self) -> VolatileSlice<'_> {
        self.region.as_volatile_slice()
    }

    fn load<T: vm_memory::AtomicAccess>(&self, at: usize) -> T {
        let loaded = self.slice().load(self.base + at, Ordering::Acquire);
        loaded.expect("the part lies within the region")
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let stored = self.slice().store(value, self.base + at, Ordering::Release);
        stored.expect("the part lies within the region");
    }
}
