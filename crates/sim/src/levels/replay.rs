//! A trace through the three levels of PADSA: DRAM, NVM and SSD, with two classes of service.
//!
//! How: every volume of the trace is a service, called by the trace's own number, or the blocks of
//! all volumes are dealt out to a number of services by a hash. Critical services use all three
//! levels, the others the SSD alone; a request is one block, and the machine counts. What a service
//! has of each volume of the trace is a volume of the machine, so that blocks are told apart.
//! Invariant: the same references and setup give the same decisions and counts.
//! Cost: a hundred nanoseconds per reference or two, and some 25 bytes per slot.
//! Not for: time. Batches have none, so dirty blocks go home by watermark and eviction only.
//! Source: PADSA, section IV (levels and classes), Table I (costs unless told otherwise).

use super::{Machine, Mode, Report, Setup, VolumeReport, call};
use crate::single::Batch;
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, EvictionKind, LEVELS_MAX, LOOKAHEAD_MAX, LevelKind,
    LevelSpec, ReadAheadLimits, Share, SpecError, VOLUMES_MAX, VolumeSpec, Watermarks,
    WritebackLimits,
};
use layby_device::Model;
use layby_policy::curve::Access;
use layby_types::{
    BlockIndex, BlockKey, BlockSize, ClassId, LevelIndex, Nanos, Operation, VolumeId,
};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;

/// Levels of PADSA's node.
pub const PADSA_LEVELS: usize = 3;
/// Services of a replay at most.
pub const SERVICES_MAX: u32 = 1024;

const CRITICAL: ClassId = ClassId(0);
const NORMAL: ClassId = ClassId(1);
const BLOCK_SIZE: BlockSize = BlockSize::MIN;
const BLOCK_BYTES: u64 = BLOCK_SIZE.bytes() as u64;

/// What accesses cost.
#[derive(Clone, Debug, PartialEq)]
pub struct PadsaDevices {
    /// DRAM, NVM and SSD.
    pub levels: [Model; PADSA_LEVELS],
    /// Main storage, the home of every volume.
    pub home: Model,
}

impl Default for PadsaDevices {
    /// The paper's Table I and main storage.
    fn default() -> Self {
        let built_in = |name| Model::built_in(name).expect("Table I has it");
        PadsaDevices { levels: ["dram", "nvm", "ssd"].map(built_in), home: Model::main_storage() }
    }
}

/// What to replay through.
#[derive(Clone, Debug)]
pub struct PadsaSetup {
    /// Blocks of DRAM, NVM and SSD.
    pub slots: [u32; PADSA_LEVELS],
    /// Which missed blocks come into a level.
    pub admission: AdmissionKind,
    /// What accesses cost; it decides nothing.
    pub devices: PadsaDevices,
    /// Deal the blocks out to so many services; `None`: each volume of the trace is one.
    pub services: Option<u32>,
    /// Services that are critical: numbers of the trace's volumes, or from zero below `services`.
    pub critical: Vec<u32>,
    /// Same seed, same decisions.
    pub seed: u64,
}

/// What cannot be replayed through levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PadsaError {
    /// The levels contradict each other.
    Levels(SpecError),
    /// More volumes than [`SERVICES_MAX`], each a service.
    Volumes,
    /// More services times volumes of the trace than a cache has volumes.
    Parts,
    /// A critical service that is none of the services dealt out to.
    Critical {
        /// Its number.
        number: u32,
        /// Services there are.
        services: u32,
    },
    /// A block or object whose number no volume of the levels has.
    Identifier(u64),
}

impl fmt::Display for PadsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PadsaError::Levels(cause) => write!(f, "the levels contradict each other: {cause:?}"),
            PadsaError::Volumes => {
                write!(f, "the trace has more than {SERVICES_MAX} volumes, each a service")
            }
            PadsaError::Parts => {
                write!(f, "services times volumes of the trace come to more than {VOLUMES_MAX}")
            }
            PadsaError::Critical { number, services } => {
                let last = services.saturating_sub(1);
                write!(f, "there is no service {number} to be critical: they are 0 to {last}")
            }
            PadsaError::Identifier(number) => write!(
                f,
                "block or object {number}: levels hold those with numbers below {} (2^{} - 1)",
                BlockIndex::MAX.0,
                BlockIndex::BITS
            ),
        }
    }
}

impl std::error::Error for PadsaError {}

/// What became of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceReport {
    /// The number of the trace's volume, or of the service that blocks were dealt out to.
    pub number: u32,
    /// Whether it may use all levels.
    pub is_critical: bool,
    /// What it saw.
    pub seen: VolumeReport,
}

/// What was read and written, in blocks. The node's own bytes are of its smallest block, whatever
/// a block of the trace is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlocksMoved {
    /// Read from the backing store.
    pub backing_read: u64,
    /// Written to it.
    pub backing_written: u64,
    /// Written to each level's device, fastest first.
    pub levels_written: [u64; PADSA_LEVELS],
}

impl BlocksMoved {
    /// Of a report of [`PadsaReplay`]. Panics where it counts parts of blocks, as no replay does.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let blocks = |bytes: u64| {
            assert_eq!(bytes % BLOCK_BYTES, 0, "a replay moves whole blocks");
            bytes / BLOCK_BYTES
        };
        let written = |level: usize| report.levels.get(level).map_or(0, |of| of.bytes_written);
        BlocksMoved {
            backing_read: blocks(report.home_bytes_read),
            backing_written: blocks(report.home_bytes_written),
            levels_written: std::array::from_fn(|level| blocks(written(level))),
        }
    }
}

/// See the file's header.
pub struct PadsaReplay {
    machine: Machine,
    setup: PadsaSetup,
    /// The service of each volume of the machine.
    parts: Vec<u32>,
}

impl PadsaReplay {
    /// An empty node with the levels of `setup`.
    ///
    /// # Errors
    /// [`PadsaError`] when the levels contradict each other or there are too many services.
    pub fn new(setup: PadsaSetup) -> Result<Self, PadsaError> {
        let services = setup.services;
        if let Some(count) = services
            && let Some(number) = setup.critical.iter().copied().find(|number| *number >= count)
        {
            return Err(PadsaError::Critical { number, services: count });
        }
        let machine = Machine::new(Setup {
            cache: spec(setup.slots, setup.admission),
            devices: setup.devices.levels.to_vec(),
            home: setup.devices.home.clone(),
            mode: Mode::Counting,
            seed: setup.seed,
        });
        let machine = machine.map_err(PadsaError::Levels)?;
        let mut replay = PadsaReplay { machine, setup, parts: Vec::new() };
        if let Some(last) = services.and_then(|count| count.checked_sub(1)) {
            replay.add_parts(last as usize, &[])?;
        }
        Ok(replay)
    }

    /// The next references.
    ///
    /// # Errors
    /// [`PadsaError`] at a reference that no service has; those before it were replayed.
    pub fn on_batch(&mut self, batch: &Batch) -> Result<(), PadsaError> {
        let tagged = batch.keys().iter().zip(batch.tags());
        let mut references = tagged.zip(batch.accesses());
        loop {
            let mut ahead = SmallVec::<[_; LOOKAHEAD_MAX]>::new();
            let mut accesses = SmallVec::<[_; LOOKAHEAD_MAX]>::new();
            for ((key, tag), access) in references.by_ref().take(LOOKAHEAD_MAX) {
                ahead.push(self.place(*key, *tag, batch.volumes())?);
                accesses.push(*access);
            }
            if ahead.is_empty() {
                return Ok(());
            }
            self.machine.cache().look_ahead(&ahead);
            for ((part, block), access) in ahead.into_iter().zip(accesses) {
                let operation = match access {
                    Access::Read => Operation::Read,
                    Access::Write => Operation::Write,
                };
                let call = call(operation, block.0 * BLOCK_BYTES, BLOCK_BYTES);
                self.machine.submit(Nanos::ZERO, part, &call);
            }
        }
    }

    /// The machine's volume and the block of a reference.
    #[inline]
    fn place(
        &mut self,
        key: BlockKey,
        tag: u32,
        volumes: &[VolumeId],
    ) -> Result<(VolumeId, BlockIndex), PadsaError> {
        let (number, block) = (key.volume().0 as usize, key.block());
        // Identifiers of the one volume of a trace may reach into the volume's bits.
        if number >= volumes.len() || block >= BlockIndex::MAX {
            return Err(PadsaError::Identifier(if volumes.len() > 1 { block.0 } else { key.0 }));
        }
        let part = match self.setup.services {
            Some(count) => {
                let service = (u64::from(tag) * u64::from(count)) >> 32;
                number * count as usize + service as usize
            }
            None => number,
        };
        if part >= self.parts.len() {
            self.add_parts(part, volumes)?;
        }
        Ok((VolumeId(part as u32), block))
    }

    #[cold]
    fn add_parts(&mut self, last: usize, volumes: &[VolumeId]) -> Result<(), PadsaError> {
        match self.setup.services {
            None if last >= SERVICES_MAX as usize => return Err(PadsaError::Volumes),
            Some(_) if last >= VOLUMES_MAX => return Err(PadsaError::Parts),
            _ => {}
        }
        let services = self.setup.services;
        let service_of = |part: usize| match services {
            Some(count) => part as u32 % count,
            None => volumes[part].0,
        };
        for part in self.parts.len()..=last {
            let service = service_of(part);
            let volume = VolumeSpec {
                id: VolumeId(part as u32),
                class: if self.is_critical(service) { CRITICAL } else { NORMAL },
                length: BlockIndex::MAX.0 * BLOCK_BYTES,
                shares: [Share::OPEN; LEVELS_MAX],
                write_through: false,
            };
            self.machine.add_volume(&volume).expect("its number and class are sound");
            self.parts.push(service);
        }
        Ok(())
    }

    /// Whether a service may use all levels.
    fn is_critical(&self, service: u32) -> bool {
        self.setup.critical.contains(&service)
    }

    /// The first critical service that no volume of the trace is, as far as it was replayed.
    #[must_use]
    pub fn critical_absent(&self) -> Option<u32> {
        self.setup.critical.iter().copied().find(|number| !self.parts.contains(number))
    }

    /// What came of the node so far; its volumes are parts of services.
    #[must_use]
    pub fn report(&self) -> Report {
        self.machine.report()
    }

    /// What came of each service in `report`, by number.
    #[must_use]
    pub fn services(&self, report: &Report) -> Vec<ServiceReport> {
        let mut services = BTreeMap::new();
        for (part, seen) in &report.volumes {
            let number = self.parts[part.0 as usize];
            let is_critical = self.is_critical(number);
            let fresh = || ServiceReport { number, is_critical, seen: VolumeReport::default() };
            services.entry(number).or_insert_with(fresh).seen.add(seen);
        }
        services.into_values().collect()
    }

    /// Bytes of memory that the levels' metadata takes.
    #[must_use]
    pub fn memory_bytes(&mut self) -> usize {
        let now = self.machine.now();
        let cache = self.machine.cache();
        let bytes = |level| cache.level_view(LevelIndex(level as u8), now).memory_bytes;
        (0..PADSA_LEVELS).map(bytes).sum()
    }
}

/// PADSA's node: a critical class that uses every level, and one that uses the SSD.
fn spec(slots: [u32; PADSA_LEVELS], admission: AdmissionKind) -> CacheSpec {
    let kinds = [LevelKind::Memory, LevelKind::Nvm, LevelKind::Ssd];
    let (eviction, watermarks) = (EvictionKind::Lru, Watermarks::DEFAULT);
    let level = |(kind, slots)| LevelSpec { kind, slots, eviction, watermarks };
    let class = |name: &str, rank, levels, durable_writes| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes,
        borrow: false,
        keep_reads: false,
        latency_objective: None,
        admission,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BLOCK_SIZE,
        levels: kinds.into_iter().zip(slots).map(level).collect(),
        classes: vec![class("critical", 0, 0b111, true), class("normal", 1, 0b100, false)],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits { window_bytes_max: 0, ..ReadAheadLimits::DEFAULT },
    }
}
