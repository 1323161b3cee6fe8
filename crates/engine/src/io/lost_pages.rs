//! Pages of a mapped disk that its device cannot return.
//!
//! How: a page-in that fails is a SIGBUS, whose handler ([`crate::bus_error`]) comes here. A read
//! of the page that fails with `EIO` confirms that it is the device: a page of memory, each byte
//! [`LOST_BYTE`], is then noted and moved into the place of the device's, and the access goes on.
//! [`LostPages::restore`] writes what that page holds by then to the device, and maps the device's
//! page again: a write of a whole page has a disk put another sector in its place, and clears the
//! poison of persistent memory.
//! Invariant: a page is noted before its pattern can be read. What is stored into a noted page is
//! in memory alone until it is restored. The handler allocates nothing and takes no lock.
//! Cost: an atomic flag where no page was lost; a table of [`LOST_PAGES_MAX`] numbers per mapping.
//! Not for: a file that was cut or has no room, which a read does not confirm; pages of more than
//! 4 KiB. There the process ends.
#![expect(unsafe_code, reason = "a page of memory in the place of a mapped one")]

use super::{IoError, LOST_BYTE, PAGE_BYTES};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages of a mapping that may be lost at a time, at most; with more the process ends.
pub(super) const LOST_PAGES_MAX: usize = 1024;

const PAGE: usize = PAGE_BYTES as usize;
/// No page of a mapping has this number.
const VACANT: u64 = u64::MAX;

/// The lost pages of one mapping, which one thread at a time uses.
#[derive(Debug)]
pub(crate) struct LostPages {
    file: OwnedFd,
    /// Any page was ever lost.
    any: AtomicBool,
    /// Where each begins.
    pages: Box<[AtomicU64]>,
    /// The process ends for what lies below.
    ends_below: AtomicU64,
    /// What it says then.
    last_words: String,
}

impl LostPages {
    /// None so far. `file` is read to confirm that a page is lost.
    pub(crate) fn new(file: OwnedFd, last_words: String) -> Self {
        let is_usual = rustix::param::page_size() == PAGE;
        LostPages {
            file,
            any: AtomicBool::new(false),
            pages: (0..LOST_PAGES_MAX).map(|_| AtomicU64::new(VACANT)).collect(),
            ends_below: AtomicU64::new(if is_usual { 0 } else { u64::MAX }),
            last_words,
        }
    }

    /// What the process says where it ends.
    pub(crate) fn last_words(&self) -> &str {
        &self.last_words
    }

    /// From now on the process ends where a page below this byte is lost.
    pub(crate) fn end_below(&self, offset: u64) {
        self.ends_below.fetch_max(offset, Ordering::SeqCst);
    }

    /// Those that touch a range, in ascending order.
    pub(crate) fn within(&self, offset: u64, length: usize) -> Vec<u64> {
        if !self.any.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let touches = |page: &u64| {
            *page != VACANT && *page < offset + length as u64 && offset < *page + PAGE_BYTES
        };
        let pages = self.pages.iter().map(|page| page.load(Ordering::SeqCst));
        let mut pages: Vec<u64> = pages.filter(touches).collect();
        pages.sort_unstable();
        pages
    }

    /// Puts a page of memory in the place of the one at `address` of the mapping at `start`. False
    /// where the process must end. For the handler of SIGBUS.
    pub(crate) fn settle(&self, start: usize, address: usize) -> bool {
        let offset = (address - start) as u64 / PAGE_BYTES * PAGE_BYTES;
        let is_noted = self.pages.iter().any(|page| page.load(Ordering::SeqCst) == offset);
        if is_noted || offset < self.ends_below.load(Ordering::SeqCst) {
            return false;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses an unused address.
        let made = unsafe { mmap_anonymous(null_mut(), PAGE, protection, flags) };
        let Ok(page) = made else { return false };
        // SAFETY: the page was made above, and nothing else knows of it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(page.cast::<u8>(), PAGE) };
        let is_lost = rustix::io::pread(&self.file, &mut *bytes, offset) == Err(Errno::IO);
        bytes.fill(LOST_BYTE);
        if is_lost && self.note(offset) {
            let (flags, place) = (MremapFlags::MAYMOVE, start + offset as usize);
            // SAFETY: `place` is a page of a mapping of raw bytes, which its owner unmaps whatever
            // is there; `bytes` is not used any more.
            if unsafe { mremap_fixed(page, PAGE, PAGE, flags, place as *mut _) }.is_ok() {
                return true;
            }
            self.forget(offset);
        }
        // SAFETY: as above; the page was not moved.
        let _ = unsafe { munmap(page, PAGE) };
        false
    }

    /// False where the table is full.
    fn note(&self, offset: u64) -> bool {
        self.any.store(true, Ordering::SeqCst);
        let (done, kept) = (Ordering::SeqCst, Ordering::SeqCst);
        self.pages.iter().any(|page| page.compare_exchange(VACANT, offset, done, kept).is_ok())
    }

    fn forget(&self, offset: u64) {
        for page in &self.pages {
            let (done, kept) = (Ordering::SeqCst, Ordering::SeqCst);
            let _ = page.compare_exchange(offset, VACANT, done, kept);
        }
    }

    /// Writes a noted page of the mapping at `start`, as it is in memory, to the device, durably,
    /// and maps the device's page again with `flags`.
    ///
    /// # Errors
    /// The device's, or the system's; the page stays noted.
    ///
    /// # Safety
    /// `start` is where `file` is mapped with `flags`, and no slice of the page is in use.
    pub(crate) unsafe fn restore(
        &self,
        start: *mut u8,
        offset: u64,
        flags: MapFlags,
        file: BorrowedFd<'_>,
    ) -> Result<(), IoError> {
        // SAFETY: within the mapping, as the caller vouches for, and nothing changes it meanwhile.
        let place = unsafe { start.add(offset as usize) };
        // SAFETY: as above.
        write_durably(file, unsafe { std::slice::from_raw_parts(place, PAGE) }, offset)?;
        self.forget(offset);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, flags | MapFlags::FIXED);
        // SAFETY: it takes the place of a page of the same mapping.
        let mapped = unsafe { mmap(place.cast(), PAGE, protection, flags, file, offset) };
        mapped.map(drop).map_err(|errno| {
            self.note(offset);
            errno.into()
        })
    }
}

/// Writes a page through a descriptor of its own, since an error of the page cache is told once for
/// each: a sync of the mapping must still hear of those that concern it. Past the page cache where
/// that can be, so that a page that the device refuses leaves no error behind.
fn write_durably(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<(), IoError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let open =
        |flags| rustix::fs::open(&path, flags | OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let write = |file: &OwnedFd| match rustix::io::pwrite(file, bytes, offset)? {
        count if count == bytes.len() => rustix::fs::fdatasync(file),
        _ => Err(Errno::IO),
    };
    let written = match open(OFlags::DIRECT).and_then(|file| write(&file)) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => open(OFlags::empty()).and_then(|file| write(&file)),
        other => other,
    };
    Ok(written?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus_error::{Fault, Watched};
    use rustix::fd::AsFd;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create, open};
    use std::sync::Arc;

    const PAGES: usize = 4;

    /// A mapping of which only the first page is there; reads that confirm it fail with `EIO`.
    fn mapped() -> (OwnedFd, *mut u8, Arc<LostPages>, Watched) {
        let file = memfd_create("lost", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGE_BYTES).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let length = PAGES * PAGE;
        // SAFETY: the kernel chooses an unused address; the tests leave it mapped.
        let start = unsafe { mmap(null_mut(), length, protection, flags, &file, 0) }.unwrap();
        // Nothing is ever mapped at the first addresses of a process, and its memory says so.
        let failing = open("/proc/self/mem", OFlags::RDONLY, Mode::empty()).unwrap();
        let lost = Arc::new(LostPages::new(failing, "not said".into()));
        // SAFETY: one whole mapping of raw bytes that is never unmapped.
        let watch = unsafe { Watched::begin(start as usize, length, Fault::Pages(lost.clone())) };
        (file, start.cast(), lost, watch.unwrap())
    }

    /// Goal: a lost page reads as the pattern and is noted, alone; restored, it holds what was
    /// stored meanwhile, in the file too. Method: a file without its last pages, of which a read
    /// fails; it gets them back before the restoring.
    #[test]
    fn a_lost_page_is_noted_and_restored() {
        let (file, start, lost, _watch) = mapped();
        // SAFETY: within the mapping.
        let at = |offset: usize| unsafe { start.add(offset) };
        assert!(lost.within(0, PAGES * PAGE).is_empty());
        // SAFETY: within the mapping, as are all below.
        assert_eq!(unsafe { at(2 * PAGE + 17).read_volatile() }, LOST_BYTE);
        // SAFETY: as above.
        assert_eq!(unsafe { at(17).read_volatile() }, 0);
        assert_eq!(lost.within(0, PAGES * PAGE), [2 * PAGE_BYTES]);
        assert_eq!(lost.within(2 * PAGE_BYTES - 1, 1), [0; 0]);
        assert_eq!(lost.within(3 * PAGE_BYTES - 1, 1), [2 * PAGE_BYTES]);
        // SAFETY: as above.
        unsafe { at(2 * PAGE + 18).write_volatile(7) };
        ftruncate(&file, (PAGES * PAGE) as u64).unwrap();
        // SAFETY: so it was mapped, and no slice of it is in use.
        unsafe { lost.restore(start, 2 * PAGE_BYTES, MapFlags::SHARED, file.as_fd()) }.unwrap();
        assert_eq!(lost.within(0, PAGES * PAGE), [0; 0]);
        let mut bytes = [0; 2];
        rustix::io::pread(&file, &mut bytes, 2 * PAGE_BYTES + 17).unwrap();
        assert_eq!(bytes, [LOST_BYTE, 7]);
        // SAFETY: as above.
        unsafe { at(2 * PAGE + 19).write_volatile(9) };
        rustix::io::pread(&file, &mut bytes, 2 * PAGE_BYTES + 18).unwrap();
        assert_eq!(bytes, [7, 9], "the file's page is mapped again");
    }

    /// Goal: what a read does not confirm, what lies below the bound and what is noted already is
    /// not settled. Method: one call each.
    #[test]
    fn other_faults_are_not_settled() {
        let (file, start, lost, _watch) = mapped();
        let sound = LostPages::new(file, String::new());
        assert!(!sound.settle(start as usize, start as usize + PAGE), "there is nothing to read");
        lost.end_below(2 * PAGE_BYTES);
        assert!(!lost.settle(start as usize, start as usize + PAGE));
        assert!(lost.settle(start as usize, start as usize + 2 * PAGE));
        assert!(!lost.settle(start as usize, start as usize + 2 * PAGE));
        assert_eq!(lost.within(0, PAGES * PAGE), [2 * PAGE_BYTES]);
    }
}
