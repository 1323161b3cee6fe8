//! How long what is written is likely to live, and the two ways in which a disk hears of it.
//!
//! How: the kernel's write-life hint belongs to an inode, and a write takes it along when it is
//! submitted; so whoever submits sets it first, where the last one was another. Write streams (the
//! flexible data placement of NVMe) go with each write, in the ring's entry, and only to a block
//! device that says how many it offers.
//! Invariant: none of bytes: a hint that is lost, refused or another write's costs a better place
//! on the flash and nothing else. What a disk was told is taken back when it is let go.
//! Cost: a system call where the life changes; before each submission where several shards share
//! the inode, since each may have set it. Write streams cost a store.
//! Not for: ranks; how soon a write is wanted says nothing of how long it lives.
#![expect(unsafe_code, reason = "commands of fcntl that rustix does not name")]

use super::IoError;
use rustix::io::Errno;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// `F_GET_RW_HINT`.
const GET: c_int = 1035;
/// `F_SET_RW_HINT`.
const SET: c_int = 1036;
/// `RWH_WRITE_LIFE_NOT_SET`.
const NOT_SET: u8 = 0;

/// How long what is written is likely to live, beside what else is written to the same disk; the
/// numbers are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteLife {
    /// `RWH_WRITE_LIFE_SHORT`.
    Short = 2,
    /// `RWH_WRITE_LIFE_MEDIUM`.
    Medium = 3,
    /// `RWH_WRITE_LIFE_LONG`.
    Long = 4,
    /// `RWH_WRITE_LIFE_EXTREME`.
    Extreme = 5,
}

impl WriteLife {
    /// All of them, the shortest first.
    pub const ALL: [WriteLife; 4] =
        [WriteLife::Short, WriteLife::Medium, WriteLife::Long, WriteLife::Extreme];

    /// The write stream for it on a device that offers `count`, from 1; longer lives than there are
    /// streams share the last one. 0, which is no stream, where there is none.
    #[must_use]
    pub fn stream(self, count: u8) -> u8 {
        (self as u8 - WriteLife::Short as u8 + 1).min(count)
    }
}

/// How a disk hears of the lives of what is written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteHints {
    /// Not at all.
    #[default]
    None,
    /// By the kernel's hint on the inode.
    Lives,
    /// By a write stream with each write; so many are used.
    Streams(u8),
}

/// What one disk has heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintState {
    /// In which way.
    pub way: WriteHints,
    /// Why the better way, or any, is not taken: the system's error.
    pub refusal: Option<IoError>,
    /// Writes with a hint or a stream.
    pub writes: u64,
    /// System calls that set another hint.
    pub changes: u64,
}

/// One open disk's hints. Shared with threads, hence atomics; each is a count or a guess of its
/// own.
#[derive(Debug, Default)]
pub(super) struct DiskHints {
    /// The kernel has taken a hint for the inode.
    takes_lives: AtomicBool,
    /// Write streams that are used; 0 for none.
    streams: AtomicU8,
    /// Others set hints of the same inode, too.
    is_shared: bool,
    /// The last one set here.
    told: AtomicU8,
    /// `errno` of the last refusal; 0 for none.
    refusal: AtomicU8,
    writes: AtomicU64,
    changes: AtomicU64,
}

impl DiskHints {
    /// What can be had of an open file or device, of which `streams` are offered.
    pub(super) fn find(file: &OwnedFd, streams: u32, is_shared: bool) -> DiskHints {
        let hints = DiskHints { is_shared, ..DiskHints::default() };
        match set(file, NOT_SET) {
            Ok(()) => hints.takes_lives.store(true, Ordering::Relaxed),
            Err(errno) => hints.refuse(errno),
        }
        let used = streams.min(WriteLife::ALL.len() as u32);
        hints.streams.store(used as u8, Ordering::Relaxed);
        hints
    }

    /// How a write goes now, by somebody who can name a stream or cannot.
    pub(super) fn way(&self, with_streams: bool) -> WriteHints {
        match self.streams.load(Ordering::Relaxed) {
            count @ 1.. if with_streams => WriteHints::Streams(count),
            _ if self.takes_lives.load(Ordering::Relaxed) => WriteHints::Lives,
            _ => WriteHints::None,
        }
    }

    pub(super) fn state(&self, with_streams: bool) -> HintState {
        let errno = self.refusal.load(Ordering::Relaxed);
        HintState {
            way: self.way(with_streams),
            refusal: (errno != 0).then_some(IoError { errno: i32::from(errno) }),
            writes: self.writes.load(Ordering::Relaxed),
            changes: self.changes.load(Ordering::Relaxed),
        }
    }

    /// A write is about to carry one.
    pub(super) fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Has what is submitted next live so long. The kernel's refusal ends hints for this disk.
    pub(super) fn tell(&self, file: &OwnedFd, life: WriteLife) {
        let before = self.told.swap(life as u8, Ordering::Relaxed);
        if before == life as u8 && !self.is_shared {
            return;
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        if let Err(errno) = set(file, life as u8) {
            self.takes_lives.store(false, Ordering::Relaxed);
            self.refuse(errno);
        }
    }

    /// The device has refused a stream: none is named any more. True for the first such refusal.
    pub(super) fn refuse_streams(&self, errno: Errno) -> bool {
        self.refuse(errno);
        self.streams.swap(0, Ordering::Relaxed) > 0
    }

    /// The inode outlives this process: the next one's writes are not ours.
    pub(super) fn take_back(&self, file: &OwnedFd) {
        if self.told.swap(NOT_SET, Ordering::Relaxed) != NOT_SET {
            // Whoever cannot take it back could hardly have set it.
            let _ = set(file, NOT_SET);
        }
    }

    fn refuse(&self, errno: Errno) {
        let number = u8::try_from(errno.raw_os_error()).unwrap_or(u8::MAX);
        self.refusal.store(number, Ordering::Relaxed);
    }

    /// As if the device had offered so many streams.
    #[cfg(test)]
    pub(super) fn pretend_streams(&self, count: u8) {
        self.streams.store(count, Ordering::Relaxed);
    }
}

unsafe extern "C" {
    /// `fcntl(2)`, of the C library that the standard library stands on.
    fn fcntl(file: c_int, command: c_int, ...) -> c_int;
}

fn call(file: &OwnedFd, command: c_int, hint: &mut u64) -> Result<(), Errno> {
    // SAFETY: both commands take a pointer to 64 bits, which one reads and the other writes; the
    // descriptor is open.
    let result = unsafe { fcntl(file.as_raw_fd(), command, std::ptr::from_mut(hint)) };
    if result >= 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(errno.unwrap_or(Errno::INVAL.raw_os_error())))
}

/// Gives an inode a hint: a [`WriteLife`]'s number, or [`NOT_SET`].
pub(super) fn set(file: &OwnedFd, hint: u8) -> Result<(), Errno> {
    call(file, SET, &mut u64::from(hint))
}

/// Whether the kernel knows hints of an inode; who may set them is another question.
pub(super) fn takes_lives(file: &OwnedFd) -> bool {
    hint_of(file).is_ok()
}

/// The hint that an inode has now: a [`WriteLife`]'s number, or less for none.
pub(super) fn hint_of(file: &OwnedFd) -> Result<u64, Errno> {
    let mut hint = 0;
    call(file, GET, &mut hint).map(|()| hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Goal: lives map to streams in their order, from 1, and share the last one. Method: all
    /// counts up to more than there are lives.
    #[test]
    fn lives_share_the_last_stream() {
        let streams = |count| WriteLife::ALL.map(|life| life.stream(count));
        assert_eq!(streams(0), [0; 4]);
        assert_eq!(streams(1), [1; 4]);
        assert_eq!(streams(3), [1, 2, 3, 3]);
        assert_eq!(streams(4), [1, 2, 3, 4]);
        assert_eq!(streams(16), [1, 2, 3, 4]);
    }

    /// Goal: the kernel is told a life once, each time where others may have changed it, and not at
    /// all any more in the end. Method: asks the kernel for the hint of a file after each step.
    #[test]
    fn the_kernel_has_the_last_life_told() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("disk");
        let file = OwnedFd::from(File::create(&path).expect("a file"));
        for is_shared in [false, true] {
            let hints = DiskHints::find(&file, 0, is_shared);
            assert_eq!(hints.way(true), WriteHints::Lives, "this kernel knows hints");
            for life in [WriteLife::Short, WriteLife::Short, WriteLife::Extreme] {
                hints.tell(&file, life);
                assert_eq!(hint_of(&file), Ok(life as u64));
            }
            assert_eq!(hints.state(true).changes, 2 + u64::from(is_shared));
            hints.take_back(&file);
            assert_eq!(hint_of(&file), Ok(0));
        }
    }

    /// Goal: of streams no more are used than there are lives, by those only who can name them, and
    /// none after a refusal, which is news once. Method: offers, then a refusal.
    #[test]
    fn refused_streams_give_way_to_lives() {
        let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
        let hints = DiskHints::find(&file, 16, false);
        assert_eq!(hints.way(true), WriteHints::Streams(4));
        assert_eq!(hints.way(false), WriteHints::Lives);
        assert!(hints.refuse_streams(Errno::INVAL));
        assert!(!hints.refuse_streams(Errno::INVAL));
        assert_eq!(hints.way(true), WriteHints::Lives);
        assert_eq!(hints.state(true).refusal, Some(Errno::INVAL.into()));
    }

    /// Goal: where the kernel refuses, no hint is in use and nobody fails. Method: a pipe's end
    /// opened as a path only, which takes no such command.
    #[test]
    fn a_refusal_of_the_kernel_ends_hints() {
        use rustix::fs::{Mode, OFlags};
        let path = rustix::fs::open("/", OFlags::PATH, Mode::empty()).expect("a path");
        let hints = DiskHints::find(&path, 0, false);
        assert_eq!(hints.way(true), WriteHints::None);
        assert_eq!(hints.state(true).refusal, Some(Errno::BADF.into()));
    }
}
