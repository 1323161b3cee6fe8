//! Guests' memory whose file is cut while it is mapped: the guest loses its disk, not the node.
//!
//! How: touching a page behind the end of its file raises SIGBUS in the thread that did. The
//! handler looks the address up among the regions that are watched, raises the region's flag, maps
//! zeros over all of it and returns, so that the copy goes on; who touches guests' memory looks at
//! the flag before it believes what it read. For any other address the signal ends the process, as
//! it would without this.
//! Invariant: a region is watched for as long as its [`Watch`] lives, and is mapped for as long,
//! since that holds it. The handler calls nothing but what is safe in one.
//! Cost: a store in a table per region; a pass over the table per signal.
//! Not for: the NVM level's mapping, nor memory that is sealed, which is never cut.
#![expect(unsafe_code, reason = "a signal's handler, and a mapping in the place of another")]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::io::{Error, ErrorKind, Result};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vm_memory::{GuestMemoryRegion as _, GuestRegionMmap};

/// Regions of all guests together at most.
pub const REGIONS_MAX: usize = 8192;

/// A region that is watched; vacant where it has no flag.
struct Entry {
    flag: AtomicPtr<AtomicBool>,
    start: AtomicUsize,
    /// Written last, so that a region is found whole or not at all.
    length: AtomicUsize,
}

static ENTRIES: [Entry; REGIONS_MAX] = [const {
    Entry {
        flag: AtomicPtr::new(null_mut()),
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
    }
}; REGIONS_MAX];

/// See the file's header.
#[derive(Debug)]
pub struct Watch {
    index: usize,
    _flag: Arc<AtomicBool>,
    _region: Arc<GuestRegionMmap<()>>,
}

impl Watch {
    /// Watches over a region; `flag` is raised when its file is found cut.
    ///
    /// # Errors
    /// That the system refuses the handler, or that [`REGIONS_MAX`] are watched.
    pub fn begin(region: Arc<GuestRegionMmap<()>>, flag: Arc<AtomicBool>) -> Result<Watch> {
        static HANDLED: OnceLock<i32> = OnceLock::new();
        let errno = *HANDLED.get_or_init(handle);
        if errno != 0 {
            return Err(Error::from_raw_os_error(errno));
        }
        let own = Arc::as_ptr(&flag).cast_mut();
        let claim = |entry: &Entry| {
            let (done, kept) = (Ordering::SeqCst, Ordering::Relaxed);
            entry.flag.compare_exchange(null_mut(), own, done, kept).is_ok()
        };
        let index = ENTRIES.iter().position(claim);
        let index = index.ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, "too many regions of guests' memory")
        })?;
        ENTRIES[index].start.store(region.as_ptr() as usize, Ordering::SeqCst);
        ENTRIES[index].length.store(region.len() as usize, Ordering::SeqCst);
        Ok(Watch { index, _flag: flag, _region: region })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.index];
        entry.length.store(0, Ordering::SeqCst);
        entry.flag.store(null_mut(), Ordering::SeqCst);
    }
}

/// Installs the handler; answers with an error's number.
fn handle() -> i32 {
    // SAFETY: zeros are a valid `sigaction` without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is whole, its handler has the form that `SA_SIGINFO` asks for, and does
    // only what is safe in a handler.
    let refused = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) } != 0;
    if refused { Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) } else { 0 }
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a whole `siginfo_t` to a handler that was installed so, and for
    // SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if replaced(address) {
        return;
    }
    // SAFETY: the default action is put back, and the access that is repeated ends the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Maps zeros over the region at `address`; false where none is watched there.
fn replaced(address: usize) -> bool {
    let found = ENTRIES.iter().find_map(|entry| {
        let length = entry.length.load(Ordering::SeqCst);
        let start = entry.start.load(Ordering::SeqCst);
        (address.checked_sub(start)? < length).then_some((entry, start, length))
    });
    let Some((entry, start, length)) = found else { return false };
    let flag = entry.flag.load(Ordering::SeqCst);
    if flag.is_null() {
        return false;
    }
    // SAFETY: the entry's watch holds the flag; it is not dropped while the region is touched.
    unsafe { (*flag).store(true, Ordering::SeqCst) };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range is one whole mapping of the watch's region, which is only ever read and
    // written as raw bytes that others may change; the region unmaps whatever is there.
    unsafe { mmap_anonymous(start as *mut _, length, protection, flags) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes as _, FileOffset, GuestAddress, MemoryRegionAddress};

    /// Goal: a region whose file is cut reads as zeros, and says so; another one stays. Method: two
    /// files, one of which is cut to half; then both watches go.
    #[test]
    fn a_cut_region_is_noticed() {
        const BYTES: usize = 64 << 10;
        let region = || {
            let file = tempfile::tempfile().unwrap();
            file.set_len(BYTES as u64).unwrap();
            let offset = FileOffset::new(file.try_clone().unwrap(), 0);
            let region = GuestRegionMmap::from_range(GuestAddress(0), BYTES, Some(offset)).unwrap();
            let (region, flag) = (Arc::new(region), Arc::new(AtomicBool::new(false)));
            let watch = Watch::begin(Arc::clone(&region), Arc::clone(&flag)).unwrap();
            (file, region, flag, watch)
        };
        let (file, cut, cut_flag, watch) = region();
        let (_other_file, other, other_flag, _other_watch) = region();
        let at = MemoryRegionAddress(BYTES as u64 - 8);
        cut.write_slice(&[7; 8], at).unwrap();
        other.write_slice(&[9; 8], at).unwrap();
        file.set_len(BYTES as u64 / 2).unwrap();
        let mut bytes = [1; 8];
        cut.read_slice(&mut bytes, at).unwrap();
        assert!(bytes == [0; 8] && cut_flag.load(Ordering::SeqCst));
        other.read_slice(&mut bytes, at).unwrap();
        assert!(bytes == [9; 8] && !other_flag.load(Ordering::SeqCst));
        drop(watch);
        assert!(!replaced(cut.as_ptr() as usize), "it is not watched any more");
    }
}
