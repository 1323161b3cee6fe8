//! What a cache is told about itself: levels, classes, volumes, limits.
//!
//! How: plain values in slots and blocks; the daemon turns sizes and percentages into them.
//! Invariant: [`CacheSpec::validate`] passes before a cache is built or changed, so the state
//! machine never meets guarantees that exceed a level.
//! Cost: none on the data path.

use alloc::string::String;
use alloc::vec::Vec;
use layby_policy::AdmissionKind;
use layby_policy::registry::EvictionKind;
use layby_types::{BlockSize, ClassId, Nanos, VolumeId};

/// How many levels a node may have.
pub const LEVELS_MAX: usize = 8;
/// How many classes a node may have.
pub const CLASSES_MAX: usize = 32;

/// What a level is made of, as far as the rules care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Volatile memory: holds clean copies only.
    Memory,
    /// Persistent memory: write-back, read as memory.
    Nvm,
    /// Log on flash: write-back, read by I/O.
    Ssd,
}

impl LevelKind {
    /// Whether a block may be dirty here.
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        !matches!(self, LevelKind::Memory)
    }
    /// Whether a read is a copy from memory, done within the call that asks for it.
    #[must_use]
    pub const fn is_immediate(self) -> bool {
        !matches!(self, LevelKind::Ssd)
    }
}

/// One level, fastest first in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelSpec {
    /// The medium.
    pub kind: LevelKind,
    /// Blocks the level holds.
    pub slots: u32,
    /// Which block leaves first; stays for the life of the cache.
    pub eviction: EvictionKind,
    /// When destaging and freeing start and stop.
    pub watermarks: Watermarks,
}

/// Red starts, green ends; shares of a level's slots in percent (L3 cache paper, section IV).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Destaging starts at this share of dirty slots; 100 leaves it to calm and to eviction.
    pub dirty_red: u8,
    /// Destaging ends at this share of dirty slots; at most `dirty_red`.
    pub dirty_green: u8,
    /// Freeing of clean slots starts at this share of used slots.
    pub used_red: u8,
    /// Freeing of clean slots ends at this share of used slots; at most `used_red`.
    pub used_green: u8,
}

impl Watermarks {
    /// The defaults: destage from 70 % dirty down to 50 %, free from 99 % used down to 98 %.
    pub const DEFAULT: Watermarks =
        Watermarks { dirty_red: 70, dirty_green: 50, used_red: 99, used_green: 98 };
}

/// What a class or a volume has of one level, in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Never taken away by others.
    pub guaranteed: u32,
    /// Never exceeded.
    pub cap: u32,
}

impl Share {
    /// No promise and no bound.
    pub const OPEN: Share = Share { guaranteed: 0, cap: u32::MAX };
}

/// A class of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSpec {
    /// The name people use.
    pub name: String,
    /// Order of yielding: the highest rank yields first; critical is 0.
    pub rank: u8,
    /// Bit `i` set: the class may use level `i`.
    pub levels: u8,
    /// A write is acknowledged only when durable.
    pub durable_writes: bool,
    /// Clean copies may use idle room in levels that the class may not otherwise use.
    pub borrow: bool,
    /// What is read from home into a memory level goes into the class's lowest persistent level,
    /// too, so that it outlives memory's eviction and a restart; PADSA keeps it in memory only.
    pub keep_reads: bool,
    /// Which blocks that no level had are kept once they are read.
    pub admission: AdmissionKind,
    /// The time within which 999 of 1000 requests shall be answered; where it is missed, those of
    /// higher rank get less of the devices.
    pub latency_objective: Option<Nanos>,
    /// What all volumes of the class together have of each level.
    pub shares: [Share; LEVELS_MAX],
}

/// A volume as the cache knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Which volume.
    pub id: VolumeId,
    /// Its class, an index into [`CacheSpec::classes`].
    pub class: ClassId,
    /// Its length in bytes; the last block may be partial.
    pub length: u64,
    /// What it has of each level.
    pub shares: [Share; LEVELS_MAX],
    /// Its writes are at home before they are acknowledged, in the order of their acknowledgement;
    /// levels hold clean copies only. For life.
    pub write_through: bool,
}

/// When dirty blocks go home and how hard that may push the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritebackLimits {
    /// Bytes of one destage write at most: the merge size (psi of the L3 cache paper).
    pub merge_bytes: u32,
    /// Destaging starts when nothing became dirty for this long (phi of the L3 cache paper).
    pub idle_timeout: Nanos,
    /// Destage writes in flight at most, per shard and device of backing stores.
    pub inflight_max: u16,
}

impl WritebackLimits {
    /// 1 MiB chunks, after 5 s of calm, 4 at a time.
    pub const DEFAULT: WritebackLimits = WritebackLimits {
        merge_bytes: 1 << 20,
        idle_timeout: Nanos::from_secs(5),
        inflight_max: 4,
    };
}

/// Read-ahead on sequential reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAheadLimits {
    /// Bytes ahead at most; zero switches read-ahead off.
    pub window_bytes_max: u32,
    /// Sequential reads in a row before it starts.
    pub streak_min: u8,
}

impl ReadAheadLimits {
    /// Up to 1 MiB, after three reads in a row.
    pub const DEFAULT: ReadAheadLimits =
        ReadAheadLimits { window_bytes_max: 1 << 20, streak_min: 3 };
}

/// All a cache must know to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// The cache unit.
    pub block_size: BlockSize,
    /// Fastest first.
    pub levels: Vec<LevelSpec>,
    /// Indexed by [`ClassId`].
    pub classes: Vec<ClassSpec>,
    /// Destaging.
    pub writeback: WritebackLimits,
    /// Read-ahead.
    pub read_ahead: ReadAheadLimits,
}

/// Why a specification cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// More than [`LEVELS_MAX`] levels.
    LevelsTooMany,
    /// No class, or more than [`CLASSES_MAX`].
    ClassCount,
    /// A memory level below a persistent one, or an NVM level below an SSD level.
    LevelOrder {
        /// The level out of order.
        level: u8,
    },
    /// Guarantees of the classes exceed a level.
    GuaranteesExceedLevel {
        /// The level.
        level: u8,
        /// Sum of guarantees in slots.
        guaranteed: u64,
        /// Slots of the level.
        slots: u32,
    },
    /// A share's guarantee exceeds its cap.
    GuaranteeAboveCap {
        /// The level.
        level: u8,
    },
    /// Guarantees of a class's volumes exceed what the class has been promised or the level.
    VolumesExceedClass {
        /// The level.
        level: u8,
        /// The class.
        class: ClassId,
    },
    /// A watermark above 100 %, or green above red.
    Watermarks {
        /// The level.
        level: u8,
    },
    /// A class that does not exist.
    UnknownClass {
        /// The class asked for.
        class: ClassId,
    },
}

impl CacheSpec {
    /// Checks the levels and classes against each other.
    ///
    /// # Errors
    /// The first [`SpecError`] found.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.levels.len() > LEVELS_MAX {
            return Err(SpecError::LevelsTooMany);
        }
        if self.classes.is_empty() || self.classes.len() > CLASSES_MAX {
            return Err(SpecError::ClassCount);
        }
        let mut depth_last = 0;
        for (index, level) in self.levels.iter().enumerate() {
            let depth = level.kind as u8;
            if depth < depth_last {
                return Err(SpecError::LevelOrder { level: index as u8 });
            }
            depth_last = depth;
            self.validate_level(index, level)?;
        }
        Ok(())
    }

    fn validate_level(&self, index: usize, level: &LevelSpec) -> Result<(), SpecError> {
        let marks = level.watermarks;
        let ordered = marks.dirty_green <= marks.dirty_red && marks.used_green <= marks.used_red;
        if !ordered || marks.dirty_red > 100 || marks.used_red > 100 {
            return Err(SpecError::Watermarks { level: index as u8 });
        }
        let mut guaranteed = 0u64;
        for class in &self.classes {
            let share = class.shares[index];
            if share.guaranteed > share.cap {
                return Err(SpecError::GuaranteeAboveCap { level: index as u8 });
            }
            guaranteed += u64::from(share.guaranteed);
        }
        if guaranteed > u64::from(level.slots) {
            let slots = level.slots;
            return Err(SpecError::GuaranteesExceedLevel { level: index as u8, guaranteed, slots });
        }
        Ok(())
    }

    /// The level where writes of `class` land, or `None` when they go straight to the backing.
    #[must_use]
    pub fn write_level(&self, class: ClassId) -> Option<usize> {
        let allowed = self.classes[usize::from(class.0)].levels;
        (0..self.levels.len())
            .find(|&i| allowed & (1 << i) != 0 && self.levels[i].kind.is_persistent())
    }
}
