//! A disk of a real host mapped into memory.
//!
//! How: a DAX file or device is mapped with `MAP_SYNC`, where flushing CPU cache lines makes a
//! store durable; a file in a memory file system is treated alike, as a model of NVM; anything else
//! is mapped through the page cache and needs a Sync.
//! A page that its device cannot return reads as a pattern (see [`super::lost_pages`]). One that
//! cannot be had otherwise, since the file system below is full or the file was cut, ends the
//! process with a line that names the file (see [`crate::bus_error`]).
//! Invariant: the mapping covers the disk's length and dies with this object.
//! Cost: one flush instruction per 64 bytes persisted, one fence per call.
//! Not for: files that others truncate; the exclusive lock keeps other nodes away, not editors.
#![expect(unsafe_code, reason = "maps files and flushes cache lines")]

use super::lost_pages::LostPages;
use super::open::OpenDisk;
use super::{IoError, Mapping, PAGE_BYTES, Persistence};
use crate::bus_error::{Fault, Watched};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// The mapping.
pub(super) struct HostMapping {
    address: NonNull<u8>,
    length: usize,
    flush: Option<Flush>,
    persistence: Persistence,
    /// None where it cannot be: a page that cannot be had then ends the process without a line.
    watched: Option<Watched>,
    lost: Arc<LostPages>,
    /// How the file was mapped.
    flags: MapFlags,
    /// Keeps the file and its lock.
    disk: Arc<OpenDisk>,
}

// SAFETY: the mapping belongs to this object alone, whichever thread holds it.
unsafe impl Send for HostMapping {}

impl HostMapping {
    pub(super) fn new(disk: &Arc<OpenDisk>) -> Result<Self, IoError> {
        let length = usize::try_from(disk.length()).map_err(|_| IoError::from(Errno::OVERFLOW))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let try_map = |flags| {
            // SAFETY: the kernel chooses an unused address; the file stays open and locked.
            unsafe { mmap(std::ptr::null_mut(), length, protection, flags, &disk.buffered, 0) }
        };
        let flush = Flush::detect();
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        let dax = flush.and_then(|_| try_map(synchronous).ok());
        let flags = if dax.is_some() { synchronous } else { MapFlags::SHARED };
        let persistence = match (dax, flush) {
            (Some(_), _) => Persistence::CacheFlush,
            (None, Some(_)) if is_in_memory(disk) => Persistence::Memory,
            _ => Persistence::Sync,
        };
        let address = dax.map_or_else(|| try_map(MapFlags::SHARED), Ok)?;
        let address = NonNull::new(address.cast()).ok_or(IoError::from(Errno::NOMEM))?;
        let flush = flush.filter(|_| persistence != Persistence::Sync);
        let file = disk.buffered.try_clone().map_err(|_| IoError::from(Errno::MFILE))?;
        let lost = Arc::new(LostPages::new(file, last_words(&disk.name)));
        let fault = Fault::Pages(lost.clone());
        // SAFETY: the mapping was made above; the watch is dropped before it is unmapped.
        let watched = unsafe { Watched::begin(address.as_ptr() as usize, length, fault) }.ok();
        let disk = disk.clone();
        Ok(HostMapping { address, length, flush, persistence, watched, lost, flags, disk })
    }

    fn check(&self, offset: u64, length: usize) -> usize {
        let end = offset.checked_add(length as u64);
        assert!(end.is_some_and(|end| end <= self.length as u64), "past the end of a mapping");
        offset as usize
    }
}

impl Mapping for HostMapping {
    fn bytes(&self, offset: u64, length: usize) -> &[u8] {
        let offset = self.check(offset, length);
        // SAFETY: in bounds; stores need `&mut self`, and the trait forbids Write operations on
        // the disk while the mapping lives.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr().add(offset), length) }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let offset = self.check(offset, bytes.len());
        // SAFETY: in bounds; `&mut self` excludes every slice from `bytes`, so they cannot overlap.
        unsafe {
            let target = self.address.as_ptr().add(offset);
            target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    fn persist(&mut self, offset: u64, length: usize) {
        let offset = self.check(offset, length);
        if let Some(flush) = self.flush {
            // SAFETY: in bounds.
            flush.range(unsafe { self.address.as_ptr().add(offset) }, length);
        }
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn lost_pages(&self, offset: u64, length: usize) -> Vec<u64> {
        self.lost.within(offset, length)
    }

    fn restore(&mut self, page: u64) -> Result<(), IoError> {
        self.check(page, PAGE_BYTES as usize);
        let (start, file) = (self.address.as_ptr(), self.disk.buffered.as_fd());
        // SAFETY: so it was mapped in `new`, and `&mut self` excludes every slice of it.
        unsafe { self.lost.restore(start, page, self.flags, file) }
    }

    fn end_below(&mut self, offset: u64) {
        self.lost.end_below(offset);
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // Before the addresses are another mapping's.
        self.watched = None;
        // SAFETY: mapped in `new`; no slice outlives `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// What is said where a page of `name` cannot be had: one line.
fn last_words(name: &str) -> String {
    let name = name.replace(|c: char| c.is_control(), "?");
    format!(
        "error: level file `{name}`: a page cannot be given room or read: the file system below it \
         is full, its device failed, or another program cut the file; layby ends at once, and what \
         was flushed before is in the file as after a crash; make room or look at the device, then \
         start it again\n"
    )
}

/// Whether a disk is a file in a memory file system, where a sync has nothing to do.
fn is_in_memory(disk: &OpenDisk) -> bool {
    // Where the kernel does not say, the file needs its syncs.
    let magic = rustix::fs::fstatfs(&disk.buffered).map(|status| status.f_type as u32);
    magic.is_ok_and(|magic| keeps_bytes_in_memory(disk.block_device, magic))
}

/// Whether a file lies in a memory file system: what is durable there is so until the machine
/// stops. Where it cannot be looked at, it does not.
#[must_use]
pub fn lies_in_memory(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let is_device = std::fs::metadata(path).map(|found| found.file_type().is_block_device());
    let magic = rustix::fs::statfs(path).map(|status| status.f_type as u32);
    let both = is_device.ok().zip(magic.ok());
    both.is_some_and(|(is_device, magic)| keeps_bytes_in_memory(is_device, magic))
}

/// Whether the bytes of a disk are in memory, by the file system of its name. For a block device
/// that is the one of its node, mostly a devtmpfs, and says nothing of where its bytes are.
fn keeps_bytes_in_memory(block_device: bool, magic: u32) -> bool {
    const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    !block_device && MEMORY_FILE_SYSTEMS.contains(&magic)
}

/// The best instruction this CPU has for writing a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no flush is used there"))]
enum Flush {
    /// Writes back and keeps the line.
    WriteBack,
    /// Writes back and drops the line, weakly ordered.
    Optimised,
    /// Writes back and drops the line, one at a time.
    Plain,
}

#[cfg(target_arch = "x86_64")]
impl Flush {
    const LINE: usize = 64;

    fn detect() -> Option<Self> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const EBX_CLFLUSHOPT: u32 = 1 << 23;
        const EBX_CLWB: u32 = 1 << 24;
        if __cpuid(0).eax < 7 {
            return Some(Flush::Plain);
        }
        let features = __cpuid_count(7, 0).ebx;
        Some(match features {
            ebx if ebx & EBX_CLWB != 0 => Flush::WriteBack,
            ebx if ebx & EBX_CLFLUSHOPT != 0 => Flush::Optimised,
            _ => Flush::Plain,
        })
    }

    /// Writes back the lines that hold a range, which must be mapped, and waits for them.
    fn range(self, start: *const u8, length: usize) {
        let end = start as usize + length;
        let mut line = start as usize / Self::LINE * Self::LINE;
        while line < end {
            // SAFETY: the instructions change no memory; the CPU has the one that was chosen, and
            // every line of the range is mapped.
            unsafe {
                match self {
                    Flush::WriteBack => std::arch::asm!("clwb [{}]", in(reg) line),
                    Flush::Optimised => std::arch::asm!("clflushopt [{}]", in(reg) line),
                    Flush::Plain => std::arch::asm!("clflush [{}]", in(reg) line),
                }
            }
            line += Self::LINE;
        }
        // SAFETY: a fence only orders.
        unsafe { std::arch::asm!("sfence") };
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Flush {
    /// Without a known flush, DAX is used like any file.
    fn detect() -> Option<Self> {
        None
    }

    fn range(self, _: *const u8, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OpenMode, open_disk};

    /// Goal: the flush instruction this CPU reports does not fault. Method: flushes an unaligned
    /// range of ordinary memory with the detected instruction.
    #[test]
    fn the_detected_flush_runs() {
        let memory = [7u8; 1000];
        if let Some(flush) = Flush::detect() {
            flush.range(&memory[3], 900);
        }
        assert_eq!(memory, [7; 1000]);
    }

    /// Goal: stores reach the file. Method: stores through a mapping, then reads the path.
    #[test]
    fn stores_reach_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mode = OpenMode { create_length: Some(10_000), ..OpenMode::default() };
        let disk = Arc::new(open_disk(&path, mode).unwrap());
        let mut mapping = HostMapping::new(&disk).unwrap();
        mapping.write(4090, b"across pages");
        mapping.persist(4090, 12);
        assert_eq!(mapping.bytes(4090, 12), b"across pages");
        drop(mapping);
        assert_eq!(&std::fs::read(&path).unwrap()[4090..4102], b"across pages");
    }

    /// Goal: a file in memory needs no sync, and any other does. Method: both, where there is a
    /// memory file system at its usual place.
    #[test]
    fn files_in_memory_need_no_sync() {
        let persistence = |folder: &std::path::Path| {
            let mode = OpenMode { create_length: Some(10_000), ..OpenMode::default() };
            let disk = Arc::new(open_disk(&folder.join("disk"), mode).unwrap());
            HostMapping::new(&disk).unwrap().persistence()
        };
        let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
        assert_eq!(persistence(memory.path()), Persistence::Memory);
        assert!(lies_in_memory(&memory.path().join("disk")) && !lies_in_memory("/none".as_ref()));
        let beside = std::env::current_exe().unwrap();
        let disk = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        assert_ne!(persistence(disk.path()), Persistence::CacheFlush);
    }

    /// Goal: a block device needs its syncs, although its node lies in a memory file system, as a
    /// regular file there does not. Method: the decision for both, by the magic of `/dev`, of a
    /// tmpfs, a ramfs and an ext4.
    #[test]
    fn a_device_node_in_memory_is_no_file_in_memory() {
        for (magic, is_memory) in [(0x0102_1994, true), (0x8584_58f6, true), (0xef53, false)] {
            assert_eq!(keeps_bytes_in_memory(false, magic), is_memory, "a file in {magic:x}");
            assert!(!keeps_bytes_in_memory(true, magic), "a device whose node is in {magic:x}");
        }
    }
}
