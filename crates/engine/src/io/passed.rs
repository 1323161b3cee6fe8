//! Sockets that the service manager opened and passed on, so that they outlive this process.
//!
//! How: the protocol of systemd (`sd_listen_fds(3)`): descriptors from number 3 on, as many as
//! `LISTEN_FDS` says, meant for the process that `LISTEN_PID` names, called what
//! `LISTEN_FDNAMES` calls them.
//! Invariant: a descriptor is taken over once per process, and only if it is open.
//! Cost: a few system calls at start.
//! Not for: descriptors that were passed by any other agreement.
#![expect(unsafe_code, reason = "takes over descriptors that the process was started with")]

use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of the first descriptor that is passed.
const FIRST: RawFd = 3;
/// Descriptors taken over at most.
pub const PASSED_MAX: usize = 64;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes over the descriptors that were passed to this process, each with its name; they are closed
/// in children. Nothing is left for a second call.
#[must_use]
pub fn take_passed() -> Vec<(String, OwnedFd)> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("LISTEN_PID").parse() != Ok(std::process::id()) {
        return Vec::new();
    }
    if IS_TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    let count = variable("LISTEN_FDS").parse().unwrap_or(0).min(PASSED_MAX);
    let names = variable("LISTEN_FDNAMES");
    let names = names.split(':').chain(std::iter::repeat(""));
    let numbers = (FIRST..).take(count);
    numbers
        .zip(names)
        .filter_map(|(number, name)| Some((name.to_owned(), adopt(number)?)))
        .collect()
}

/// Takes over an open descriptor of this process.
fn adopt(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the number is none of the special negative ones. Should nothing be open behind it,
    // the call below fails, and that is all that is done with it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, as the call above has shown. Who started this process has passed it for
    // this process to own, which `LISTEN_PID` says; the caller takes each number once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
