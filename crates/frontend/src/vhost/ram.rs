//! The memory that a virtual machine monitor shares, mapped.
//!
//! How: each region is a file at an offset; the monitor names rings by its own addresses, guests
//! name buffers by theirs, so both are kept.
//! Invariant: nothing outside of the regions can be reached, and each lies in its file. A file may
//! be cut while it is mapped; who catches the signal of that puts other memory in the place of the
//! region and raises [`GuestRam::cut`], and no ring takes or answers a request afterwards.
//! Cost: a binary search per access; a look at a flag per request.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap};

/// One region as the monitor announced it.
#[derive(Debug)]
pub struct RamRegion {
    /// First byte as the guest addresses it.
    pub guest: u64,
    /// First byte as the monitor addresses it.
    pub monitor: u64,
    /// Bytes.
    pub length: u64,
    /// First byte in the file.
    pub offset: u64,
    /// What holds the memory.
    pub file: File,
}

/// Why memory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamError {
    /// What is wrong with which region.
    pub cause: String,
}

impl fmt::Display for RamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for RamError {}

/// All regions of a guest.
#[derive(Default)]
pub struct GuestRam {
    pub(super) map: GuestMemoryMmap<()>,
    regions: Vec<Arc<GuestRegionMmap<()>>>,
    is_cut: Arc<AtomicBool>,
    /// The monitor's first byte, bytes, and the guest's first byte of each region.
    monitor: Vec<(u64, u64, u64)>,
}

impl fmt::Debug for GuestRam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestRam({} regions, {} bytes)", self.monitor.len(), self.bytes())
    }
}

impl GuestRam {
    /// Maps all regions.
    ///
    /// # Errors
    /// As [`GuestRam::with`].
    pub fn map(regions: Vec<RamRegion>) -> Result<GuestRam, RamError> {
        regions.into_iter().try_fold(GuestRam::default(), |ram, region| ram.with(region))
    }

    /// The same memory and one region more.
    ///
    /// # Errors
    /// [`RamError`] when the region overlaps another, is empty, or lies behind the end of its file.
    pub fn with(&self, region: RamRegion) -> Result<GuestRam, RamError> {
        let RamRegion { guest, monitor: own, length, offset, file } = region;
        let refused = |why: &dyn fmt::Display| RamError {
            cause: format!("guest memory at {guest:#x}, {length} bytes: {why}"),
        };
        let bytes = usize::try_from(length).map_err(|error| refused(&error))?;
        own.checked_add(length).ok_or_else(|| refused(&"it wraps around"))?;
        let held = file.metadata().map_err(|error| refused(&error))?.len();
        if offset.checked_add(length).is_none_or(|end| end > held) {
            return Err(refused(&"it lies behind the end of its file"));
        }
        let file = Some(FileOffset::new(file, offset));
        let region = GuestRegionMmap::from_range(GuestAddress(guest), bytes, file);
        let region = Arc::new(region.map_err(|error| refused(&error))?);
        let inserted = self.map.insert_region(Arc::clone(&region));
        let map = inserted.map_err(|error| refused(&error))?;
        let mut regions = self.regions.clone();
        regions.push(region);
        let mut monitor = self.monitor.clone();
        monitor.push((own, length, guest));
        Ok(GuestRam { map, regions, monitor, is_cut: Arc::clone(&self.is_cut) })
    }

    /// The same memory but for one region, named by the guest's address and its bytes.
    ///
    /// # Errors
    /// [`RamError`] when there is no such region.
    pub fn without(&self, guest: u64, length: u64) -> Result<GuestRam, RamError> {
        let removed = self.map.remove_region(GuestAddress(guest), length);
        let (map, region) = removed.map_err(|error| RamError {
            cause: format!("no guest memory to remove at {guest:#x}, {length} bytes: {error}"),
        })?;
        let mut monitor = self.monitor.clone();
        monitor.retain(|(_, _, start)| *start != guest);
        let others = self.regions.iter().filter(|other| !Arc::ptr_eq(other, &region));
        let regions = others.cloned().collect();
        Ok(GuestRam { map, regions, monitor, is_cut: Arc::clone(&self.is_cut) })
    }

    /// What is raised when a region's file was cut; of all memories that came of this one.
    #[must_use]
    pub fn cut(&self) -> &Arc<AtomicBool> {
        &self.is_cut
    }

    /// The regions as they are mapped.
    pub fn mappings(&self) -> impl Iterator<Item = Arc<GuestRegionMmap<()>>> {
        self.regions.iter().cloned()
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Where the guest sees what the monitor has at `address`; `bytes` must lie in one region.
    #[must_use]
    pub fn guest_address(&self, address: u64, bytes: u64) -> Option<u64> {
        self.monitor.iter().find_map(|(start, length, guest)| {
            let at = address.checked_sub(*start)?;
            (at.checked_add(bytes)? <= *length).then_some(guest + at)
        })
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.monitor.iter().map(|(_, length, _)| length).sum()
    }

    /// Regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.map.num_regions()
    }
}
