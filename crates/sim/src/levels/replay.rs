//! A trace through the three levels of PADSA: DRAM, NVM and SSD, with two classes of service.
//!
//! How: every volume of the trace is a service, called by the trace's own number, or the blocks of
//! all volumes are dealt out to a number of services by a hash. Critical services use all three
//! levels, the others the SSD and, for clean copies, idle room above it; a request is one block,
//! and the machine counts. What a service has of each volume of the trace is a volume of the
//! machine, so that blocks are told apart. A request comes when the trace says, or, where all have
//! one time, once the one before it is over by its costs. What goes home takes the home's time,
//! with a node's defaults for watermarks, calm and writes in flight: where writes come faster,
//! dirty blocks fill NVM, then SSD. A request that finds no room waits, and with it all that
//! follow.
//! Invariant: the same references and setup give the same decisions and counts. Until something is
//! written nothing is dirty, so that time stands still: it would decide nothing.
//! Cost: a hundred nanoseconds per reference or two, and some 25 bytes per slot.
//! Not for: latency. Nothing but room is waited for, and reads leave the home to what is written.
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
    /// What accesses cost. Of these the writes of the home decide, by how long they take.
    pub devices: PadsaDevices,
    /// A block of the trace, for what one write home takes of them.
    pub block_size: BlockSize,
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

/// How fast dirty blocks go home: a node's defaults, and the home's own speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestagePace {
    /// Writes in flight at most.
    pub inflight_max: u16,
    /// Neighbouring blocks of one write at most.
    pub run_blocks: u32,
    /// Writes that the home serves at once.
    pub channels: u16,
    /// What a write of one block takes.
    pub write: Nanos,
    /// Everything goes home once nothing became dirty for so long.
    pub calm: Nanos,
}

/// When the next request comes.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// The trace's time of the first request and of the one that came last.
    stamps: Option<(Nanos, Nanos)>,
    /// The trace has shown more than one time.
    moves: bool,
    /// The request before is over, by what it cost.
    free_at: Nanos,
    /// Something was written: from now on time counts.
    runs: bool,
}

impl Clock {
    fn on_request(&mut self, stamp: Nanos) -> Nanos {
        let (first, _) = self.stamps.unwrap_or((stamp, stamp));
        self.stamps = Some((first, stamp));
        self.moves |= stamp != first;
        if self.moves { stamp } else { stamp.max(self.free_at) }
    }
}

/// See the file's header.
pub struct PadsaReplay {
    machine: Machine,
    setup: PadsaSetup,
    clock: Clock,
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
            cache: spec(&setup),
            devices: setup.devices.levels.to_vec(),
            home: home(&setup),
            mode: Mode::Destaging,
            seed: setup.seed,
        });
        let machine = machine.map_err(PadsaError::Levels)?;
        let (clock, parts) = (Clock::default(), Vec::new());
        let mut replay = PadsaReplay { machine, setup, clock, parts };
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
        let mut stamps = batch.times().iter().copied();
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
            for (place, access) in ahead.into_iter().zip(accesses) {
                self.on_reference(stamps.next().unwrap_or_default(), place, access);
            }
        }
    }

    #[inline]
    fn on_reference(
        &mut self,
        stamp: Nanos,
        (part, block): (VolumeId, BlockIndex),
        access: Access,
    ) {
        let at = self.clock.on_request(stamp);
        let operation = match access {
            Access::Read => Operation::Read,
            Access::Write => Operation::Write,
        };
        let call = call(operation, block.0 * BLOCK_BYTES, BLOCK_BYTES);
        self.clock.runs |= access == Access::Write;
        if !self.clock.runs {
            self.machine.submit(Nanos::ZERO, part, &call);
            return;
        }
        if self.clock.moves {
            self.machine.submit(at, part, &call);
            return;
        }
        let before = self.machine.cost(part);
        self.machine.submit(at, part, &call);
        let cost = self.machine.cost(part).since(before);
        self.clock.free_at = self.machine.now().saturating_add(cost);
    }

    /// The trace has ended: what is on its way home arrives, and what the watermarks ask for
    /// follows it.
    pub fn end(&mut self) {
        self.machine.settle();
    }

    /// How fast dirty blocks go home.
    #[must_use]
    pub fn pace(&self) -> DestagePace {
        let (limits, home) = (writeback(self.setup.block_size), &self.setup.devices.home);
        DestagePace {
            inflight_max: limits.inflight_max,
            run_blocks: limits.merge_bytes / BLOCK_SIZE.bytes(),
            channels: home.channels.max(1),
            write: home.write,
            calm: limits.idle_timeout,
        }
    }

    /// Time from the first request to the last, waiting for room included.
    #[must_use]
    pub fn elapsed(&self) -> Nanos {
        let (first, last) = self.clock.stamps.unwrap_or_default();
        self.machine.now().max(last).since(first)
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

/// A node's default limits. One write takes so many bytes of the trace's blocks, each of which is
/// a block of the machine.
fn writeback(block_size: BlockSize) -> WritebackLimits {
    let limits = WritebackLimits::DEFAULT;
    let blocks = (limits.merge_bytes / block_size.bytes()).max(1);
    WritebackLimits { merge_bytes: blocks * BLOCK_SIZE.bytes(), ..limits }
}

/// The home, as fast for the machine's blocks as it is for the trace's.
fn home(setup: &PadsaSetup) -> Model {
    let home = setup.devices.home.clone();
    let share = u64::from(setup.block_size.bytes()) / BLOCK_BYTES;
    let given = home.channel_bytes_per_second;
    // Zero says that there is no bound.
    let channel_bytes_per_second = if given == 0 { 0 } else { (given / share).max(1) };
    Model { channel_bytes_per_second, ..home }
}

/// A node as it is by default, with two of its classes: critical uses every level; normal the SSD,
/// and is lent idle room above it.
fn spec(setup: &PadsaSetup) -> CacheSpec {
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
        admission: setup.admission,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BLOCK_SIZE,
        levels: kinds.into_iter().zip(setup.slots).map(level).collect(),
        classes: vec![
            class("critical", 0, 0b111, true),
            ClassSpec { borrow: true, ..class("normal", 1, 0b100, false) },
        ],
        writeback: writeback(setup.block_size),
        read_ahead: ReadAheadLimits { window_bytes_max: 0, ..ReadAheadLimits::DEFAULT },
    }
}

#[cfg(test)]
mod tests;
