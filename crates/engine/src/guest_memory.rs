//! Guests' memory of which a page cannot be had while it is mapped: the guest loses its disk, not
//! the node.
//!
//! How: touching a page behind the end of its file, or one for which the host has no huge page, is
//! a fault (see [`crate::bus_error`]): the region's flag is raised and all of it becomes zeros, so
//! that the copy goes on; code that touches guests' memory looks at the flag before it believes
//! what it read. An in-flight region is watched in the same way.
//! Invariant: a region is watched for as long as its [`Watch`] lives, and is mapped for as long,
//! since that holds it. Of huge pages it has whole ones: the kernel splits none.
//! Cost: a store in a table per region.
//! Not for: the NVM level's mapping.
#![expect(unsafe_code, reason = "vouches for a mapping")]

use crate::bus_error::{Fault, Watched};
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vm_memory::{GuestRegionMmap, MmapRegion};

/// See the file's header. What it watches goes before the region that it holds.
#[derive(Debug)]
pub struct Watch {
    _watched: Watched,
    _region: Region,
}

/// What keeps the range mapped.
#[derive(Debug)]
enum Region {
    Ram(Arc<GuestRegionMmap<()>>),
    Inflight(Arc<MmapRegion<()>>),
}

impl Watch {
    /// Watches over a region of memory; `flag` is raised when a page of it cannot be had.
    ///
    /// # Errors
    /// That the system refuses the handler, or that [`crate::bus_error::RANGES_MAX`] are watched.
    pub fn begin(region: Arc<GuestRegionMmap<()>>, flag: Arc<AtomicBool>) -> Result<Watch> {
        Watch::of(Region::Ram(region), flag)
    }

    /// The same of an in-flight region.
    ///
    /// # Errors
    /// As [`Watch::begin`].
    pub fn begin_inflight(region: Arc<MmapRegion<()>>, flag: Arc<AtomicBool>) -> Result<Watch> {
        Watch::of(Region::Inflight(region), flag)
    }

    fn of(region: Region, flag: Arc<AtomicBool>) -> Result<Watch> {
        let mapped: &MmapRegion<()> = match &region {
            Region::Ram(region) => region,
            Region::Inflight(region) => region,
        };
        let (start, length) = (mapped.as_ptr() as usize, mapped.size());
        // SAFETY: a region is one mapping of bytes that the guest or its monitor changes, too; it
        // is held below, and dropped after the watch.
        let watched = unsafe { Watched::begin(start, length, Fault::Zeros(flag)) }?;
        Ok(Watch { _watched: watched, _region: region })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus_error::settled;
    use std::sync::atomic::Ordering;
    use vm_memory::VolatileMemory as _;
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
        assert!(!settled(cut.as_ptr() as usize), "it is not watched any more");
    }

    /// Goal: an in-flight region of which a page cannot be had reads as zeros, and says so. Method:
    /// one whose file is cut to nothing.
    #[test]
    fn a_lost_in_flight_region_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5000).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let region = Arc::new(MmapRegion::from_file(offset, 5000).unwrap());
        let flag = Arc::new(AtomicBool::new(false));
        let _watch = Watch::begin_inflight(Arc::clone(&region), Arc::clone(&flag)).unwrap();
        let load = || region.as_volatile_slice().load::<u64>(4096, Ordering::SeqCst).unwrap();
        region.as_volatile_slice().store(7u64, 4096, Ordering::SeqCst).unwrap();
        assert!(load() == 7 && !flag.load(Ordering::SeqCst));
        file.set_len(0).unwrap();
        assert!(load() == 0 && flag.load(Ordering::SeqCst));
    }
}
