//! The ring itself: set-up step by step, pushing entries, entering the kernel, registrations.
//!
//! How: the ring is made disabled, so that another thread may build it, and enabled by the thread
//! that first waits, which is then its single issuer.
//! Invariant: entries are only ever pushed and reaped by that one thread.
//! Cost: one system call per `enter`; none for a push while there is room.
//! Not for: knowing what an entry means.
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use super::entries::FileMark;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use layby_types::Nanos;
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg,
    io_uring_ptr, io_uring_register, io_uring_rsrc_update,
};
use std::collections::VecDeque;
use std::io::{Error, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::thread::ThreadId;

/// Entries in the submission queue; more are submitted early.
const ENTRIES: u32 = 256;
/// Ends per entry that the kernel can hold before it keeps them aside, which is slower and loses
/// nothing.
const ENDS_PER_ENTRY: u32 = 16;
/// Files that can be registered; further ones are named by descriptor.
const FILES_MAX: u32 = 1024;

/// How an `enter` came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Something may have ended.
    Back,
    /// The time was up.
    Expired,
}

/// The kernel's workers for operations of files that may wait, at most.
const WORKERS_MAX: u32 = 512;

pub(super) struct Kernel {
    ring: IoUring,
    enabled: bool,
    /// The ring's own number in the issuing thread, which is quicker to look up than a descriptor.
    number: Option<RawFd>,
    /// That thread; in another one the number may be some other ring's.
    issuer: Option<ThreadId>,
    /// What the kernel granted, for the log.
    pub(super) granted: &'static str,
    /// Free slots of the registered files.
    files: Vec<u32>,
    /// Whether the buffer arena is registered, as buffer 0.
    arena: bool,
    /// Ends that were taken from the kernel's queue so that it has room, in order.
    ends: VecDeque<(u64, i32)>,
    /// Entries that one call hands over, at most: the kernel may take fewer than it is offered, and
    /// a test has it do so.
    pub(super) most: u32,
}

impl Kernel {
    /// Makes a ring with as many of the wanted modes as the kernel grants.
    pub(super) fn new() -> Result<Self, Error> {
        let (mut ring, modes) = match build(Modes::Deferred, ENTRIES) {
            Ok(ring) => (ring, Modes::Deferred),
            Err(_) => match build(Modes::Cooperative, ENTRIES) {
                Ok(ring) => (ring, Modes::Cooperative),
                Err(_) => (build(Modes::Plain, ENTRIES)?, Modes::Plain),
            },
        };
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(Errno::NOSYS.into());
        }
        try_out(modes)?;
        let files = match ring.submitter().register_files_sparse(FILES_MAX) {
            Ok(()) => (0..FILES_MAX).rev().collect(),
            Err(_) => Vec::new(),
        };
        // What a device never ends keeps a worker; the kernel's own bound is a few per processor.
        // Where it cannot be raised, such a device delays others' syncs.
        let _ = ring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0]);
        let enabled = modes != Modes::Deferred;
        let granted = modes.name();
        ring.submission().sync();
        let (number, issuer, arena, ends) = (None, None, false, VecDeque::new());
        let most = u32::MAX;
        Ok(Kernel { ring, enabled, number, issuer, granted, files, arena, ends, most })
    }

    /// Pins the buffer arena; refusal (a small locked-memory limit) only costs speed.
    pub(super) fn register_arena(&mut self, address: *mut u8, length: usize) -> bool {
        // SAFETY: the slice is only a carrier of address and length and is never read; the arena
        // stays mapped until the pool is dropped, which `RingIo` does after the ring.
        let carrier = [IoSlice::new(unsafe { std::slice::from_raw_parts(address, length) })];
        // SAFETY: `IoSlice` has the layout of `iovec` on Unix, as its documentation promises.
        let iovecs = unsafe { std::slice::from_raw_parts(carrier.as_ptr().cast(), 1) };
        // SAFETY: as above.
        self.arena = unsafe { self.ring.submitter().register_buffers(iovecs) }.is_ok();
        self.arena
    }

    /// Registers a file, or names it by descriptor when there is no slot left.
    pub(super) fn register_file(&mut self, file: BorrowedFd<'_>) -> FileMark {
        let plain = FileMark { number: file.as_raw_fd(), registered: false };
        let Some(index) = self.files.pop() else { return plain };
        match self.ring.submitter().register_files_update(index, &[file.as_raw_fd()]) {
            Ok(_) => FileMark { number: index as i32, registered: true },
            Err(_) => plain,
        }
    }

    /// Forgets a file; entries already submitted keep it open. Submit what is queued before.
    pub(super) fn forget_file(&mut self, mark: FileMark) {
        if mark.registered {
            let index = mark.number as u32;
            if self.ring.submitter().register_files_update(index, &[-1]).is_ok() {
                self.files.push(index);
            }
        }
    }

    /// Queues an entry; false while there is no room, until `enter` has handed others over.
    pub(super) fn try_push(&mut self, entry: &Entry) -> bool {
        // SAFETY: the memory named by the entry belongs to a flight, which is neither moved nor
        // freed before the entry's end; `RingIo::drop` leaks what the kernel will not give back.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Whether the next entry would be handed over with those before it.
    pub(super) fn is_full(&mut self) -> bool {
        self.ring.submission().is_full()
    }

    /// Entries queued and not yet seen by the kernel.
    pub(super) fn queued(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Whether the kernel has ends that only an `enter` brings.
    pub(super) fn deferred(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether the kernel has ends that were not taken.
    pub(super) fn has_ends(&mut self) -> bool {
        !self.ends.is_empty() || self.deferred() || !self.ring.completion().is_empty()
    }

    /// Sets ends aside, for their owner to take later: a kernel that has no room for further ones
    /// may refuse entries.
    pub(super) fn make_room(&mut self) {
        let ends = self.ring.completion().map(|end| (end.user_data(), end.result()));
        self.ends.extend(ends);
    }

    /// The next end: slot and result.
    pub(super) fn next_end(&mut self) -> Option<(u64, i32)> {
        if let Some(end) = self.ends.pop_front() {
            return Some(end);
        }
        let end = self.ring.completion().next()?;
        Some((end.user_data(), end.result()))
    }

    /// Submits, then waits for an end for at most `span`: zero never waits.
    pub(super) fn enter(&mut self, span: Nanos) -> Entered {
        self.enable();
        // Nothing is waited for where there is an end already.
        let span = if self.ends.is_empty() { span } else { Nanos::ZERO };
        let mut flags = IoringEnterFlags::empty();
        if span > Nanos::ZERO || self.deferred() {
            flags |= IoringEnterFlags::GETEVENTS;
        }
        if self.number.is_some() {
            flags |= IoringEnterFlags::REGISTERED_RING;
        }
        match self.enter_kernel(span, flags) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Entered::Back,
            Err(Errno::TIME) => Entered::Expired,
            Err(errno) => panic!("the kernel refuses the ring: {errno}"),
        }
    }

    fn enter_kernel(&mut self, span: Nanos, flags: IoringEnterFlags) -> Result<u32, Errno> {
        let queued = (self.queued() as u32).min(self.most);
        let ring = self.number.unwrap_or(self.ring.as_raw_fd());
        // SAFETY: the descriptor or number lives as long as `self`, and `flags` says which it is.
        let ring = unsafe { BorrowedFd::borrow_raw(ring) };
        let want = u32::from(span > Nanos::ZERO);
        if span == Nanos::ZERO || span == Nanos::NEVER {
            // SAFETY: every queued entry names memory that stays until its end, see `push`.
            return unsafe { io_uring_enter(ring, queued, want, flags) };
        }
        let nanos = (span.0 % 1_000_000_000) as u32;
        let time = types::Timespec::new().sec(span.as_secs()).nsec(nanos);
        let arg = io_uring_getevents_arg {
            sigmask: io_uring_ptr::null(),
            sigmask_sz: 0,
            min_wait_usec: 0,
            ts: io_uring_ptr::new((&raw const time).cast_mut().cast()),
        };
        let flags = flags | IoringEnterFlags::EXT_ARG;
        // SAFETY: as above, and `time` outlives the call.
        unsafe { io_uring_enter_arg(ring, queued, want, flags, Some(&arg)) }
    }

    /// As [`Kernel::enter`] without waiting, for a ring that is being dropped.
    pub(super) fn try_submit(&mut self, want: usize) -> bool {
        self.enabled && self.ring.submitter().submit_and_wait(want).is_ok()
    }

    /// Makes the calling thread the ring's issuer.
    fn enable(&mut self) {
        if !self.enabled {
            let submitter = self.ring.submitter();
            submitter.register_enable_rings().expect("a disabled ring can be enabled once");
            self.enabled = true;
            self.register_self();
        }
    }

    /// Gives the ring a number in this thread; refusal only costs speed.
    fn register_self(&mut self) {
        let mut update = io_uring_rsrc_update::default();
        update.offset = u32::MAX;
        update.data = io_uring_ptr::new(self.ring.as_raw_fd() as usize as *mut _);
        let (operation, update_address) =
            (IoringRegisterOp::RegisterRingFds, (&raw mut update).cast_const().cast());
        // SAFETY: the call reads and writes one `io_uring_rsrc_update`, which is what it is given.
        let count = unsafe { io_uring_register(self.file(), operation, update_address, 1) };
        self.number = (count == Ok(1)).then_some(update.offset as RawFd);
        self.issuer = Some(std::thread::current().id());
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open for as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Kernel {
    /// Takes the number back, which would keep the ring and its files alive with the thread; on
    /// another thread it stays until the issuer ends.
    fn drop(&mut self) {
        if let Some(number) = self.number
            && self.issuer == Some(std::thread::current().id())
        {
            let mut update = io_uring_rsrc_update::default();
            update.offset = number as u32;
            let (operation, address) =
                (IoringRegisterOp::UnregisterRingFds, (&raw const update).cast());
            // SAFETY: the call reads one `io_uring_rsrc_update`.
            let _ = unsafe { io_uring_register(self.file(), operation, address, 1) };
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Modes {
    Deferred,
    Cooperative,
    Plain,
}

impl Modes {
    /// For the log.
    fn name(self) -> &'static str {
        match self {
            Modes::Deferred => "single issuer, deferred task work",
            Modes::Cooperative => "cooperative task work",
            Modes::Plain => "plain",
        }
    }
}

/// Enables a small ring of its own and has it end an entry: a seccomp filter may allow that a ring
/// is made, and refuse what uses it. The shard's ring cannot be tried here, since the thread that
/// enables it becomes its issuer.
fn try_out(modes: Modes) -> Result<(), Error> {
    let mut ring = build(modes, 1)?;
    if modes == Modes::Deferred {
        ring.submitter().register_enable_rings()?;
    }
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(|_| Errno::BUSY)?;
    ring.submit_and_wait(1)?;
    let end = ring.completion().next().map(|end| end.result());
    if end == Some(0) { Ok(()) } else { Err(Errno::IO.into()) }
}

fn build(modes: Modes, entries: u32) -> Result<IoUring, Error> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(entries * ENDS_PER_ENTRY).setup_clamp();
    match modes {
        Modes::Deferred => builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_r_disabled(),
        Modes::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all(),
        Modes::Plain => &mut builder,
    };
    builder.build(entries)
}
