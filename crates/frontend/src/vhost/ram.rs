//! The memory that a virtual machine monitor shares, mapped.
//!
//! How: each region is a file at an offset; the monitor names rings by its own addresses, guests
//! name buffers by theirs, so both are kept.
//! Invariant: nothing outside of the regions can be reached. Cost: a binary search per access.
//! Not for: files that shrink while they are mapped, which ends the process; who may connect to the
//! socket is trusted not to do that.

use std::fmt;
use std::fs::File;
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
pub struct GuestRam {
    pub(super) map: GuestMemoryMmap<()>,
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
    /// [`RamError`] when a region overlaps another, is empty, or lies behind the end of its file.
    pub fn map(mut regions: Vec<RamRegion>) -> Result<GuestRam, RamError> {
        regions.sort_by_key(|region| region.guest);
        let (mut mapped, mut monitor) = (Vec::new(), Vec::new());
        for RamRegion { guest, monitor: own, length, offset, file } in regions {
            let refused = |why: &dyn fmt::Display| RamError {
                cause: format!("guest memory at {guest:#x}, {length} bytes: {why}"),
            };
            let bytes = usize::try_from(length).map_err(|error| refused(&error))?;
            let file = Some(FileOffset::new(file, offset));
            let region = GuestRegionMmap::from_range(GuestAddress(guest), bytes, file);
            mapped.push(region.map_err(|error| refused(&error))?);
            own.checked_add(length).ok_or_else(|| refused(&"it wraps around"))?;
            monitor.push((own, length, guest));
        }
        let map = GuestMemoryMmap::from_regions(mapped);
        let map = map.map_err(|error| RamError { cause: error.to_string() })?;
        Ok(GuestRam { map, monitor })
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
