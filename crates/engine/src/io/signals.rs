//! Raises an event descriptor that another process owns, too, without ever waiting for it.
//!
//! How: a write to an eventfd blocks while its counter is full and `O_NONBLOCK` is off. That mode
//! is of the open file description, so its other owner may change it between any look and the
//! write, and the kernel takes no `RWF_NOWAIT` for such writes. What the kernel signals by itself
//! never waits: the end of an operation of Linux AIO raises the eventfd that the operation names,
//! and a counter that is full stays so. The operation is a read of no bytes from an empty file,
//! which ends within the call that submits it.
//! Invariant: [`Signals::raise`] ends without waiting, whatever the other owner does, and takes no
//! lock.
//! Cost: about half a microsecond more than a write; another call per [`ENDS`] signals, which takes
//! the ends off.
//! Not for: descriptors of the node alone, to which a write is good enough.
#![expect(unsafe_code, reason = "system calls that no crate here wraps")]

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Ends that the kernel is asked to keep until they are taken off; it may keep more.
const ENDS: usize = 128;
/// Tries of a signal for which there is no room, after each of which ends were taken off. Others
/// would have to use the room of all of them within as many calls.
const TRIES_MAX: usize = 64;
/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`: the end raises the event descriptor.
const RAISES_EVENT: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h`. `key` and `rw_flags`, which stay zero, trade places on
/// big-endian machines.
#[derive(Default)]
#[repr(C)]
struct Entry {
    data: u64,
    key: u32,
    rw_flags: u32,
    operation: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct End([u64; 4]);

/// See the file's header.
#[derive(Debug)]
pub(crate) struct Signals {
    context: libc::c_ulong,
    empty: OwnedFd,
}

impl Signals {
    /// Those of the process.
    ///
    /// # Errors
    /// The system's error where it has no AIO, or as much of it is in use as `fs.aio-max-nr` says.
    pub(crate) fn shared() -> Result<&'static Signals, Errno> {
        static SHARED: OnceLock<Signals> = OnceLock::new();
        match SHARED.get() {
            Some(signals) => Ok(signals),
            None => Signals::new().map(|made| SHARED.get_or_init(|| made)),
        }
    }

    fn new() -> Result<Signals, Errno> {
        let empty = memfd_create("layby-signals", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number, which lives through the call.
        let made =
            unsafe { libc::syscall(libc::SYS_io_setup, ENDS as libc::c_ulong, &raw mut context) };
        checked(made)?;
        Ok(Signals { context, empty })
    }

    /// Adds one to the counter of `event`, which is an eventfd; a full one is left.
    ///
    /// # Errors
    /// The system's error: a descriptor of another kind, or no memory for the operation.
    pub(crate) fn raise(&self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        for _ in 0..TRIES_MAX {
            match self.submit(event) {
                Err(Errno::AGAIN) => self.take_ends(),
                submitted => return submitted,
            }
        }
        Err(Errno::AGAIN)
    }

    fn submit(&self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut entry = Entry {
            operation: READ,
            file: self.empty.as_raw_fd() as u32,
            flags: RAISES_EVENT,
            event: event.as_raw_fd() as u32,
            ..Entry::default()
        };
        let mut entries = [&raw mut entry];
        // SAFETY: the kernel reads the one entry within the call, and writes its key; its buffer
        // has no bytes.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, entries.as_mut_ptr()) };
        checked(submitted)
    }

    /// Makes room: takes off what has ended.
    fn take_ends(&self) {
        let mut ends = [End::default(); ENDS];
        let mut no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most so many ends, and both live through the call. Without
        // any it answers at once.
        let _ = unsafe {
            let (ends, no_time) = (ends.as_mut_ptr(), &raw mut no_time);
            libc::syscall(libc::SYS_io_getevents, self.context, 0, ENDS, ends, no_time)
        };
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: nothing is in flight, and nothing uses the context any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn checked(result: libc::c_long) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
