//! Where on a disk damage falls, and what is there.
//!
//! How: a fault carries a number; a random generator of its own, seeded by the run and that number,
//! makes a sector of it. Half of the damage to the SSD falls on the log's segments, the other half
//! on what is before them; elsewhere each sector of the disk is as likely.
//! Invariant: a place depends on seed, disk and number alone, so runs that are shrunk keep it, and
//! what a seed draws otherwise does not depend on it. Cost: nothing.
//! Not for: lost pages and regions broken for good, which have limits of their own.

use super::{BLOCK, BLOCKS, Disk, Life, Shape};
use layby_engine::store::LogGeometry;
use layby_engine::store::log_layout::BATCH_MAGIC;
use layby_engine::store::nvm_layout::NvmGeometry;
use layby_types::{BlockSize, Rng};
use std::fmt;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Tells this chance from a run's others.
const PLACES: u64 = 0x91ac_e000_0000_0000;

/// A part of a disk that has a use of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// The log's superblock.
    LogSuperblock,
    /// The log's checkpoint areas.
    LogCheckpoints,
    /// The first block of a segment.
    SegmentHeader,
    /// A batch descriptor behind it.
    BatchDescriptor,
    /// A block of a batch.
    LogData,
    /// Bytes of the SSD level that nothing was written to.
    LogUnused,
    /// The NVM level's superblock and mark.
    NvmSuperblock,
    /// Slot headers of the NVM level and their copies.
    NvmHeaders,
    /// Slots of the NVM level.
    NvmData,
    /// A backing store.
    Backing,
}

impl Area {
    /// All areas.
    pub const ALL: [Area; 10] = [
        Area::LogSuperblock,
        Area::LogCheckpoints,
        Area::SegmentHeader,
        Area::BatchDescriptor,
        Area::LogData,
        Area::LogUnused,
        Area::NvmSuperblock,
        Area::NvmHeaders,
        Area::NvmData,
        Area::Backing,
    ];
}

impl Life {
    /// The first byte of the sector of a disk that a fault's number stands for.
    #[must_use]
    pub fn place(&self, disk: Disk, number: u64) -> u64 {
        let mut rng = Rng::new(self.seed ^ PLACES ^ number);
        let blocks = match disk {
            Disk::Nvm => 0..self.shape.nvm_bytes / BLOCK,
            Disk::Ssd => {
                let segments = u64::from(self.shape.log().segments_first);
                match rng.chance(1, 2) {
                    true => segments..self.shape.ssd_bytes / BLOCK,
                    false => 0..segments,
                }
            }
            _ => 0..BLOCKS,
        };
        let sectors = (blocks.end - blocks.start) * BLOCK / SECTOR;
        blocks.start * BLOCK + rng.below(sectors) * SECTOR
    }
}

impl Shape {
    fn log(&self) -> LogGeometry {
        let plan = LogGeometry::plan(self.ssd_bytes, BlockSize::MIN, &self.segments);
        plan.expect("the level is large enough")
    }

    /// What is at a byte of a disk whose block there is this.
    #[must_use]
    pub fn area(&self, disk: Disk, offset: u64, block: &[u8]) -> Area {
        let at = (offset / BLOCK) as u32;
        match disk {
            Disk::Nvm => {
                let plan = NvmGeometry::plan(self.nvm_bytes, BlockSize::MIN);
                let geometry = plan.expect("the level is large enough");
                match at {
                    _ if at < geometry.headers_first => Area::NvmSuperblock,
                    _ if at < geometry.data_first => Area::NvmHeaders,
                    _ => Area::NvmData,
                }
            }
            Disk::Ssd => area_of_log(&self.log(), at, block),
            _ => Area::Backing,
        }
    }
}

fn area_of_log(log: &LogGeometry, at: u32, block: &[u8]) -> Area {
    let is_used = block.iter().any(|byte| *byte != 0);
    match at {
        0 => Area::LogSuperblock,
        _ if at < log.checkpoint_first(1) + log.checkpoint_blocks => Area::LogCheckpoints,
        _ if !is_used => Area::LogUnused,
        _ if log.segment_of(at).is_some_and(|index| log.segment_first(index) == at) => {
            Area::SegmentHeader
        }
        _ if block.starts_with(&BATCH_MAGIC.to_le_bytes()) => Area::BatchDescriptor,
        _ => Area::LogData,
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Area::LogSuperblock => "superblock of the log",
            Area::LogCheckpoints => "checkpoint areas",
            Area::SegmentHeader => "header of a segment",
            Area::BatchDescriptor => "batch descriptor",
            Area::LogData => "data of the log",
            Area::LogUnused => "unused room of the log",
            Area::NvmSuperblock => "superblock or mark of NVM",
            Area::NvmHeaders => "slot headers of NVM",
            Area::NvmData => "data of NVM",
            Area::Backing => "backing store",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::hush_panics;
    use crate::plan::Character;
    use crate::timeline::Timeline;
    use crate::world::live;
    use std::collections::BTreeSet;

    /// Goal: damage reaches every part of the levels that has a use of its own, and rot as well as
    /// unreadable sectors reach what the log's segments hold. Method: the runs of some hundred
    /// seeds whose disks fail or corrupt, and what each fault met.
    #[test]
    fn damage_reaches_every_area() {
        hush_panics();
        let mut met = BTreeSet::new();
        let of_disks =
            |life: &Life| matches!(life.character, Character::Failing | Character::Lying);
        for life in (0..1200).map(Life::draw).filter(of_disks) {
            let tally = live(&life, &mut Timeline::default()).expect("see `fixed_lives_are_well`");
            met.extend(tally.areas.into_keys());
        }
        for area in Area::ALL {
            assert!(met.iter().any(|(_, of)| *of == area), "no fault met: {area}");
        }
        for name in ["latent sector error", "bit rot at rest", "misdirected write"] {
            let areas = [Area::LogCheckpoints, Area::SegmentHeader, Area::BatchDescriptor];
            for area in areas.into_iter().chain([Area::LogData]) {
                assert!(met.contains(&(name, area)), "no {name} met: {area}");
            }
        }
    }

    /// Goal: unreadable sectors of backing stores reach all of their blocks, and no place is
    /// behind a disk's end. Method: what the numbers of some hundred seeds stand for.
    #[test]
    fn places_lie_on_their_disks() {
        let mut blocks = BTreeSet::new();
        for seed in 0..300 {
            let life = Life::draw(seed);
            for number in (0..64).map(|step| step * SECTOR * 17) {
                let (nvm, ssd) = (life.shape.nvm_bytes, life.shape.ssd_bytes);
                assert!(life.place(Disk::Nvm, number) + SECTOR <= nvm, "SEED={seed}");
                assert!(life.place(Disk::Ssd, number) + SECTOR <= ssd, "SEED={seed}");
                blocks.insert(life.place(Disk::Home(1), number) / BLOCK);
            }
        }
        assert_eq!(blocks, (0..BLOCKS).collect());
    }
}
