//! What a crash left: looked at by `layby check`, and damaged where one sector costs nothing.

use super::super::nvm_layout::NvmGeometry;
use super::{BLOCK, World};
use crate::check::{StoreKind, check_store};
use crate::io::Io as _;
use layby_types::BlockSize;

impl World {
    /// Damages a sector of every structure of the log, or makes it unreadable.
    pub(super) fn lose_sectors(&mut self) {
        let bytes = self.io.peek(self.log_disk);
        for (block, page) in bytes.chunks(BLOCK).enumerate() {
            // What power loss tore has lost its sector already.
            let is_whole =
                (0..512).all(|at| (0..8).fold(0, |sum, it| sum ^ page[512 * it + at]) == 0);
            if page.starts_with(b"LAYBY") && is_whole {
                let at = (block * BLOCK) as u64 + 512 * self.rng.below(8);
                match self.rng.chance(1, 2) {
                    true => self.io.fail_reads(self.log_disk, at, 512),
                    false => self.io.corrupt(self.log_disk, at, 512),
                }
            }
        }
    }

    /// Damages the header of every NVM slot, or its copy.
    pub(super) fn lose_headers(&mut self) {
        let Some(disk) = self.nvm_disk else { return };
        let plan = NvmGeometry::plan(self.size.nvm_blocks * BLOCK as u64, BlockSize::MIN);
        let geometry = plan.expect("the region is large enough");
        for slot in 0..geometry.physical {
            let ats = [geometry.header_at(slot), geometry.copy_at(slot)];
            let at = BLOCK as u64 + ats[self.rng.below(2) as usize];
            self.io.corrupt(disk, at, 32);
        }
    }

    /// `layby check` finds nothing wrong with what a crash left.
    pub(super) fn check_soundness(&self) {
        let stores = [
            (Some(self.log_disk), self.size.log_blocks, StoreKind::Log),
            (self.nvm_disk, self.size.nvm_blocks, StoreKind::Nvm),
        ];
        for (disk, blocks, kind) in stores {
            let Some(disk) = disk else { continue };
            let bytes = self.io.peek(disk);
            let (base, length) = (BLOCK as u64, blocks * BLOCK as u64);
            let report = check_store(&bytes[..], self.io.disk_name(disk), base, length, kind, true);
            assert!(report.is_sound(), "{:?}", report.problems);
        }
    }
}
