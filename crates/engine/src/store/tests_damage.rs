//! What the worlds of `tests_world` lose: places of their disks, by seed.

use super::nvm_layout::NvmGeometry;
use super::tests_world::World;
use crate::io::{CrashMode, Io as _};
use layby_types::BlockSize;

const BLOCK: u64 = 4096;

impl World {
    /// Damages a sector of every structure of the log, or makes it unreadable.
    pub(super) fn lose_sectors(&mut self) {
        let bytes = self.io.peek(self.log_disk);
        let number = |page: &[u8], at: usize| {
            u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
        };
        let (mut generation, mut next) = (0, 0);
        for (block, page) in bytes.chunks(BLOCK as usize).enumerate() {
            // What power loss tore has lost its sector already.
            let is_whole =
                (0..512).all(|at| (0..8).fold(0, |sum, it| sum ^ page[512 * it + at]) == 0);
            if page.starts_with(b"LAYBYSEG") {
                (generation, next) = (number(page, 24), block + 1);
            }
            let is_batch = page.starts_with(b"LAYBYBAT");
            let is_next = block == next && number(page, 16) == generation;
            if is_batch && is_next && is_whole {
                next += 1 + usize::from(u16::from_le_bytes([page[58], page[59]]));
            }
            // An earlier descriptor may lie where a torn batch was to go: nothing vouches for that
            // batch, but power loss leaves no sector that cannot be read.
            let is_stale = is_batch && !is_next;
            if page.starts_with(b"LAYBY") && is_whole && !is_stale {
                let at = block as u64 * BLOCK + 512 * self.rng.below(8);
                match self.rng.chance(1, 2) {
                    true => self.io.fail_reads(self.log_disk, at, 512),
                    false => self.io.corrupt(self.log_disk, at, 512),
                }
            }
        }
    }

    /// Loses a whole page: a segment's header, or a descriptor that others vouch for and that the
    /// batch written next has a copy of.
    pub(super) fn lose_page(&mut self) {
        let bytes = self.io.peek(self.log_disk);
        let number = |page: &[u8], at: usize| {
            u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
        };
        let (mut generation, mut next) = (0, 0);
        let (mut headers, mut batches) = (Vec::new(), Vec::new());
        for (block, page) in bytes.chunks(BLOCK as usize).enumerate() {
            let is_whole =
                (0..512).all(|at| (0..8).fold(0, |sum, it| sum ^ page[512 * it + at]) == 0);
            if page.starts_with(b"LAYBYSEG") && is_whole {
                (generation, next) = (number(page, 24), block + 1);
                headers.push(block);
            }
            let is_batch = page.starts_with(b"LAYBYBAT") && number(page, 16) == generation;
            if block == next && is_batch && is_whole {
                let size = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
                let copy = &page[160 + 32 * size(56)..];
                let copied = if copy.starts_with(b"LAYBYBAT") { number(copy, 24) } else { 0 };
                // Seq, epoch, and up to where it vouches.
                let [seq, epoch, upto] = [24, 32, 40].map(|at| number(page, at));
                batches.push((block, [seq, epoch, upto, copied]));
                next += 1 + size(58);
            }
        }
        let is_vouched = |[seq, epoch, ..]: [u64; 4]| {
            batches.iter().any(|(_, it)| it[1] == epoch && it[2] >= seq)
                && batches.iter().any(|(_, it)| it[3] == seq)
        };
        let vouched = batches.iter().filter(|(_, it)| is_vouched(*it)).map(|(block, _)| *block);
        let vouched: Vec<usize> = vouched.collect();
        let of = if self.rng.chance(1, 4) || vouched.is_empty() { headers } else { vouched };
        if of.is_empty() {
            return;
        }
        let at = of[self.rng.below(of.len() as u64) as usize] as u64 * BLOCK;
        match self.rng.chance(1, 2) {
            true => self.io.fail_reads(self.log_disk, at, BLOCK),
            false => self.io.corrupt(self.log_disk, at, BLOCK),
        }
        self.seen[5] += 1;
    }

    /// Damages of every NVM slot the header or its copy.
    pub(super) fn lose_headers(&mut self) {
        let Some(disk) = self.nvm_disk else { return };
        let plan = NvmGeometry::plan(self.size.nvm_blocks * BLOCK, BlockSize::MIN);
        let geometry = plan.expect("the region is large enough");
        for slot in 0..geometry.physical {
            let ats = [geometry.header_at(slot), geometry.copy_at(slot)];
            let at = BLOCK + ats[self.rng.below(2) as usize];
            self.io.corrupt(disk, at, 32);
        }
    }

    /// Cuts the power and damages some places of both disks.
    pub(super) fn damage(&mut self, places: u64) {
        self.io.crash(CrashMode::KeepSome);
        for _ in 0..places {
            let disk = self.nvm_disk.filter(|_| self.rng.chance(1, 3)).unwrap_or(self.log_disk);
            let blocks = self.io.disk_length(disk) / BLOCK;
            let at = self.rng.below(blocks) * BLOCK + self.rng.below(130);
            self.io.corrupt(disk, at, 1 + self.rng.below(400));
        }
    }
}
