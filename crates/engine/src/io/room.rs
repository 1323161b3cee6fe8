//! The room of a file that is overwritten in place: all its own, and enough for each overwrite.
//!
//! How: a file system that writes each change elsewhere is told not to, while the file is empty.
//! Later the file's extents are looked through: what it shares with another file (a reflink copy,
//! a snapshot) would be written elsewhere once, so it is copied now; a hole gets room.
//! Invariant: no byte of the file changes.
//! Cost: a system call per 128 extents where nothing is shared and there are no holes; else a
//! copy of what is shared. Room is asked for the very ranges that lack it, since XFS asks for as
//! much free room as a range is long, whatever the file has of it.
//! Not for: file systems that cannot tell their extents or cannot unshare them; those files stay
//! as they are.
#![expect(unsafe_code, reason = "an ioctl that rustix has no name for")]

use rustix::fs::{FallocateFlags, IFlags, fallocate, fstatvfs, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::fmt;
use std::os::fd::AsFd;

/// What is unshared by one call: a signal waits for no more, nor does a file system that asks for
/// room of a range twice over.
const PIECE_BYTES: u64 = 1 << 20;
const EXTENTS: usize = 128;
/// The file is written back first, so that its extents are known.
const SYNC: u32 = 1;
/// The extent is the last one of the file.
const LAST: u32 = 1;
/// The extent has room that others have, too.
const SHARED: u32 = 0x2000;

/// A range that no room could be had for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Where it begins, in the file.
    pub offset: u64,
    /// Bytes, from there on, that were tried.
    pub length: u64,
    /// Another file has the same room; else it has none.
    pub is_shared: bool,
    /// The system's error number.
    pub errno: i32,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.is_shared {
            true => "shared with another file (a reflink copy or a snapshot)",
            false => "a hole",
        };
        let (errno, end) = (Errno::from_raw_os_error(self.errno), self.offset + self.length);
        write!(f, "bytes {} to {end} are {why} and need room of their own: {errno}", self.offset)
    }
}

/// Tells the file system to overwrite the file in place from now on; it must be empty. One that
/// does not know how to be told does so anyway, or cannot.
pub fn overwrite_in_place(empty: impl AsFd) {
    if let Ok(flags) = ioctl_getflags(&empty) {
        let _ = ioctl_setflags(&empty, flags | IFlags::NOCOW);
    }
}

/// Gives the first `length` bytes of a file room of their own, as far as the file system
/// can.
///
/// # Errors
/// That there is no room; no byte of the file has changed.
pub fn own_room(file: impl AsFd, length: u64) -> Result<(), NoRoom> {
    let (mut at, mut unshares) = (0, true);
    while at < length {
        let Ok((extents, is_last)) = extents_from(&file, at) else { return Ok(()) };
        for extent in &extents {
            let (start, end) = (extent.offset.max(at), extent.end().min(length));
            fill(&file, at, start.min(length))?;
            if extent.flags & SHARED != 0 && unshares {
                unshares = unshare(&file, start, end)?;
            }
            at = end.max(at);
        }
        if is_last {
            fill(&file, at, length)?;
            return Ok(());
        }
    }
    Ok(())
}

/// Gives a hole room.
fn fill(file: impl AsFd, from: u64, to: u64) -> Result<(), NoRoom> {
    if from >= to {
        return Ok(());
    }
    let (offset, length, is_shared) = (from, to - from, false);
    // Some file systems give all that they have before they refuse.
    let free = fstatvfs(&file).map_or(u64::MAX, |all| all.f_bfree.saturating_mul(all.f_frsize));
    let filled = match length <= free {
        true => fallocate(file, FallocateFlags::empty(), offset, length),
        false => Err(Errno::NOSPC),
    };
    match filled {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => {
            Err(NoRoom { offset, length, is_shared, errno: errno.raw_os_error() })
        }
        // A file system that cannot reserve room.
        _ => Ok(()),
    }
}

/// Copies what is shared; answers whether the file system can.
fn unshare(file: impl AsFd, from: u64, to: u64) -> Result<bool, NoRoom> {
    let mut offset = from;
    while offset < to {
        let length = (to - offset).min(PIECE_BYTES);
        match fallocate(&file, FallocateFlags::UNSHARE_RANGE, offset, length) {
            // The copy may be made, and the room that XFS asks for once more not be there.
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) if is_shared(&file, offset, length) => {
                let errno = errno.raw_os_error();
                return Err(NoRoom { offset, length, is_shared: true, errno });
            }
            Ok(()) | Err(Errno::NOSPC | Errno::DQUOT) => offset += length,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

fn is_shared(file: impl AsFd, offset: u64, length: u64) -> bool {
    let within = |extent: &Extent| extent.offset < offset + length && extent.flags & SHARED != 0;
    extents_from(file, offset).is_ok_and(|(extents, _)| extents.iter().any(within))
}

/// `struct fiemap_extent` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    offset: u64,
    physical: u64,
    length: u64,
    reserved_long: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

impl Extent {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// `struct fiemap` of the kernel, without the extents that follow it.
#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

#[repr(C)]
struct Map {
    head: Head,
    extents: [Extent; EXTENTS],
}

/// Some of the file's extents, the first of which ends behind `at`, and whether no more follow.
fn extents_from(file: impl AsFd, at: u64) -> Result<(Vec<Extent>, bool), Errno> {
    const FIEMAP: Opcode = opcode::read_write::<Head>(b'f', 11);
    let (length, count) = (u64::MAX - at, EXTENTS as u32);
    let head = Head { start: at, length, flags: SYNC, mapped: 0, count, reserved: 0 };
    let mut map = Map { head, extents: [Extent::default(); EXTENTS] };
    // SAFETY: the kernel writes the head and as many extents behind it as the head says there are.
    unsafe { ioctl(file, Updater::<FIEMAP, Map>::new(&mut map)) }?;
    let found = map.extents[..(map.head.mapped as usize).min(EXTENTS)].to_vec();
    let is_last = found.last().is_none_or(|last| last.flags & LAST != 0 || last.end() <= at);
    Ok((found, is_last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    /// Goal: holes get room and no byte changes. Method: a file with more holes than one call
    /// tells extents of, on the disk of the target folder; then once more, with nothing to do.
    #[test]
    fn holes_get_room() {
        const STEP: u64 = 16 << 10;
        const BYTES: u64 = 400 * STEP;
        let beside = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(beside.parent().unwrap()).unwrap();
        overwrite_in_place(&file);
        file.set_len(BYTES).unwrap();
        for at in (0..BYTES).step_by(2 * STEP as usize) {
            file.write_all_at(&[7; 4096], at).unwrap();
        }
        if extents_from(&file, 0).is_err() {
            return;
        }
        let room = |file: &File| file.metadata().unwrap().blocks() * 512;
        assert!(room(&file) < BYTES);
        for _ in 0..2 {
            own_room(&file, BYTES).unwrap();
            assert!(room(&file) >= BYTES, "{}", room(&file));
        }
        let mut bytes = vec![1; BYTES as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let whole = |at: usize| if at as u64 % (2 * STEP) < 4096 { 7 } else { 0 };
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == whole(at)));
    }
}
