//! SIGBUS: what a page of a mapped file that cannot be had means to the process.
//!
//! How: touching a page behind the end of its file, one that the file system has no room for, or
//! one that the device cannot return raises SIGBUS in the thread that did. The handler looks the
//! address up among the ranges that are watched. Guests' memory becomes zeros, and a flag is
//! raised. Of a level's mapping a page that the device cannot return is replaced and noted
//! ([`crate::io::LostPages`]); for any other cause the process ends with a line that was put
//! together beforehand, so that the handler allocates nothing. For any other address the signal
//! ends the process, as it would without this.
//! Invariant: a range is watched for as long as its [`Watched`] lives, and is mapped for as long.
//! The handler calls nothing but what is safe in one.
//! Cost: a store in a table per range; a pass over the table per signal.
//! Not for: memory that cannot be cut or run out of room, such as sealed or anonymous memory.
#![expect(unsafe_code, reason = "a signal's handler, and a mapping in the place of another")]

use crate::io::LostPages;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::io::{Error, ErrorKind, Result};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Ranges that are watched at a time, at most.
pub const RANGES_MAX: usize = 8192;
/// The exit code of a process that a page of a level ended; `layby --help` lists it.
pub const EXIT_CODE: i32 = 9;

/// What a page that cannot be had means.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The range becomes zeros and this is set.
    Zeros(Arc<AtomicBool>),
    /// A page that the device cannot return becomes a pattern and is noted; else the process ends
    /// with a line on its standard error.
    Pages(Arc<LostPages>),
}

/// A range that is watched; vacant where it has no meaning.
struct Entry {
    fault: AtomicPtr<Fault>,
    start: AtomicUsize,
    /// Written last, so that a range is found whole or not at all.
    length: AtomicUsize,
}

static ENTRIES: [Entry; RANGES_MAX] = [const {
    Entry {
        fault: AtomicPtr::new(null_mut()),
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
    }
}; RANGES_MAX];

/// See the file's header.
#[derive(Debug)]
pub(crate) struct Watched {
    index: usize,
    _fault: Arc<Fault>,
}

impl Watched {
    /// Watches over a range.
    ///
    /// # Errors
    /// That the system refuses the handler, or that [`RANGES_MAX`] are watched.
    ///
    /// # Safety
    /// The range is one whole mapping and stays mapped until the value is dropped. With
    /// either fault it is only ever read and written as raw bytes that others may change.
    pub(crate) unsafe fn begin(start: usize, length: usize, fault: Fault) -> Result<Watched> {
        static HANDLED: OnceLock<i32> = OnceLock::new();
        let errno = *HANDLED.get_or_init(handle);
        if errno != 0 {
            return Err(Error::from_raw_os_error(errno));
        }
        let fault = Arc::new(fault);
        let own = Arc::as_ptr(&fault).cast_mut();
        let claim = |entry: &Entry| {
            let (done, kept) = (Ordering::SeqCst, Ordering::Relaxed);
            entry.fault.compare_exchange(null_mut(), own, done, kept).is_ok()
        };
        let index = ENTRIES.iter().position(claim);
        let index = index
            .ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "too many mappings are watched"))?;
        ENTRIES[index].start.store(start, Ordering::SeqCst);
        ENTRIES[index].length.store(length, Ordering::SeqCst);
        Ok(Watched { index, _fault: fault })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.index];
        entry.length.store(0, Ordering::SeqCst);
        entry.fault.store(null_mut(), Ordering::SeqCst);
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
    if settled(address) {
        return;
    }
    // SAFETY: the default action is put back, and the access that is repeated ends the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Does what a fault at `address` means; false where nothing is watched there.
pub(crate) fn settled(address: usize) -> bool {
    let found = ENTRIES.iter().find_map(|entry| {
        let length = entry.length.load(Ordering::SeqCst);
        let start = entry.start.load(Ordering::SeqCst);
        (address.checked_sub(start)? < length).then_some((entry, start, length))
    });
    let Some((entry, start, length)) = found else { return false };
    let fault = entry.fault.load(Ordering::SeqCst);
    if fault.is_null() {
        return false;
    }
    // SAFETY: the entry's watch holds it, and is not dropped while the range is touched.
    match unsafe { &*fault } {
        Fault::Zeros(flag) => {
            flag.store(true, Ordering::SeqCst);
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the caller of `begin` vouched for it: one whole mapping of raw bytes,
            // which is unmapped whatever is there.
            unsafe { mmap_anonymous(start as *mut _, length, protection, flags) }.is_ok()
        }
        Fault::Pages(pages) => pages.settle(start, address) || end(pages.last_words()),
    }
}

/// Ends the process with a line, once, however many threads come here.
fn end(line: &str) -> ! {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    while IS_SAID.swap(true, Ordering::SeqCst) {
        // SAFETY: waits for a signal; the thread that was first ends the process.
        unsafe { libc::pause() };
    }
    // SAFETY: the line is whole; both calls are safe in a handler. A line that cannot be written
    // changes nothing of the end.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::_exit(EXIT_CODE)
    }
}
