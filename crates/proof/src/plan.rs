//! A life as a list of acts, drawn from a seed before it begins.
//!
//! How: [`Life::draw`] chooses a small node (levels of a few dozen blocks, so that everything
//! happens often), what its disks may do, and some hundred acts. What an act means at its time (is
//! the client connected, would two writes race?) is the world's to decide, so any sublist of the
//! acts is a life as well.
//! Invariant: the same seed draws the same life. Cost: microseconds.

mod delays;
mod departures;
mod encryption;
mod failed_syncs;
mod lengths;
mod lost_pages;
mod places;
mod removals;
mod requests;
mod returns;
mod reuses;
mod rewrites;
mod spoiled_puts;
mod start_faults;

use layby_cache::discards::{DiscardDelay, DiscardLimits, DiscardMode};
use layby_cache::schedule::{BudgetLimits, ScheduleLimits};
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec,
    ReadAheadLimits, Share, Watermarks, WritebackLimits,
};
use layby_cloud::simulated::{SimDeed, SimFaults};
use layby_engine::io::{CrashMode, CutAt, Deed, OperationKind, Step};
use layby_engine::shard::ClientMemory;
use layby_engine::store::{SegmentPlan, slots_for};
use layby_types::{BlockSize, Call, CallFlags, Nanos, Operation, Rng, VolumeId};
pub use places::Area;
pub use start_faults::StartFault;
use std::fmt;

/// Blocks of each volume.
pub const BLOCKS: u64 = 32;
/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Volumes of a node; volume `i` is of class `i`.
pub const VOLUMES: usize = 3;
/// Clients of a node; client `i` talks to volume `i % VOLUMES`.
pub const CLIENTS: usize = 5;
/// Power cuts, stops and stretches between them in one life.
const AGES: u64 = 4;

/// A disk of the node: the NVM level's, the SSD level's, or a volume's home; and what stands in a
/// home's place where it is in the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disk {
    /// Of the NVM level.
    Nvm,
    /// Of the SSD level.
    Ssd,
    /// Of a volume, by its index.
    Home(usize),
    /// Its journal.
    Journal(usize),
    /// Its map file.
    Map(usize),
    /// Its object store, which no power cut reaches.
    Store(usize),
}

impl Disk {
    /// By number, as the machine counts them.
    #[must_use]
    pub fn number(self) -> u32 {
        let kinds = VOLUMES as u32;
        match self {
            Disk::Nvm => 0,
            Disk::Ssd => 1,
            Disk::Home(index) => 2 + index as u32,
            Disk::Journal(index) => 2 + kinds + index as u32,
            Disk::Map(index) => 2 + 2 * kinds + index as u32,
            Disk::Store(index) => 2 + 3 * kinds + index as u32,
        }
    }

    /// Its path.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Disk::Nvm => "nvm".to_owned(),
            Disk::Ssd => "ssd".to_owned(),
            Disk::Home(index) => format!("home-{index}"),
            Disk::Journal(index) => format!("journal-{index}"),
            Disk::Map(index) => format!("map-{index}"),
            Disk::Store(index) => format!("store-{index}"),
        }
    }
}

/// What a life's disks may do; power cuts and breaking clients are in every life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Character {
    /// Nothing but their work, at times slowly.
    Honest,
    /// They fail, fill up and vanish, and say so.
    Failing,
    /// Those of the levels lose and misplace writes, and rot.
    Lying,
    /// Operations that never end.
    Stuck,
}

/// Something that goes wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next operation of a kind fails; a write leaves a mixture of sectors.
    FailNext(Disk, OperationKind),
    /// The next durable write's own sync fails, and may drop those of others in flight.
    Unsynced(Disk),
    /// The next write is done and answered with an error; so many after it are refused.
    DoneNext(Disk, u8),
    /// A sector cannot be read until it is written again, whichever this number stands for.
    BadSector(Disk, u64),
    /// Writes of a sector of the SSD's segments fail for good.
    Broken(u64),
    /// Writes find no room, until healed.
    Full(Disk),
    /// The next start, and what follows it, finds no room for writes, until healed.
    FullAtStart(Disk),
    /// The next start meets this, and no other does.
    AtStart(Disk, StartFault),
    /// Everything fails, until healed or restarted.
    Gone(Disk),
    /// Nothing ends for a while.
    Slow(Disk, Nanos),
    /// Nothing ends until the power is cut.
    Stuck(Disk),
    /// The next write claims success and does nothing.
    Lost(Disk),
    /// The next write claims success and lands in the block that this number stands for.
    Misdirected(Disk, u64),
    /// Bits of a sector flip at rest, whichever this number stands for.
    Rot(Disk, u64),
    /// A page of the NVM level cannot be read any more, whichever this number falls on.
    LostPage(u64),
}

impl Fault {
    /// The kind of lost pages.
    pub const LOST_PAGE: &str = "unreadable page of NVM";

    /// The kind, for counts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::FailNext(_, OperationKind::Read) => "read error, once",
            Fault::FailNext(_, OperationKind::Write) => "write error, torn",
            Fault::FailNext(_, OperationKind::Sync) => "flush error",
            Fault::FailNext(..) => "zeroing error",
            Fault::Unsynced(_) => "flush error of a durable write",
            Fault::DoneNext(..) => "write error, done",
            Fault::BadSector(..) => "latent sector error",
            Fault::Broken(_) => "region broken for good",
            Fault::Full(_) => "device full",
            Fault::FullAtStart(_) => "device full at a start",
            Fault::AtStart(_, fault) => fault.name(),
            Fault::Gone(_) => "device vanished",
            Fault::Slow(..) => "slow device",
            Fault::Stuck(_) => "I/O that never returns",
            Fault::Lost(_) => "lost write",
            Fault::Misdirected(..) => "misdirected write",
            Fault::Rot(..) => "bit rot at rest",
            Fault::LostPage(_) => Fault::LOST_PAGE,
        }
    }

    /// The disk that it befalls.
    #[must_use]
    pub fn disk(self) -> Disk {
        match self {
            Fault::FailNext(disk, _)
            | Fault::Unsynced(disk)
            | Fault::DoneNext(disk, _)
            | Fault::BadSector(disk, _)
            | Fault::Full(disk)
            | Fault::FullAtStart(disk)
            | Fault::AtStart(disk, _)
            | Fault::Gone(disk)
            | Fault::Slow(disk, _)
            | Fault::Stuck(disk)
            | Fault::Lost(disk)
            | Fault::Misdirected(disk, _)
            | Fault::Rot(disk, _) => disk,
            Fault::Broken(_) => Disk::Ssd,
            Fault::LostPage(_) => Disk::Nvm,
        }
    }

    /// Requests may fail from now on.
    #[must_use]
    pub fn is_felt(self) -> bool {
        let is_late = |fault: StartFault| matches!(fault, StartFault::Slow(_));
        match self {
            Fault::Slow(..) | Fault::Stuck(_) => false,
            Fault::AtStart(_, fault) => !is_late(fault),
            _ => true,
        }
    }

    /// What is durable may be gone after a power cut, unnoticed.
    #[must_use]
    pub fn is_lie(self) -> bool {
        matches!(self, Fault::Lost(_) | Fault::Misdirected(..) | Fault::Rot(..))
    }
}

/// Something that concerns a volume in the cloud, by its index; of others nothing happens.
#[derive(Clone, Copy, Debug)]
pub enum CloudAct {
    /// Its store fails so often from now on, until healed.
    Weather(usize, SimFaults),
    /// The device of its journal, or of its map file, fails once.
    FileFault(usize, SimDeed),
    /// All that was written goes up, and is then what the store alone has.
    Upload(usize),
    /// What the store alone has is looked at.
    Look(usize),
    /// A second node finds it.
    Rival(usize),
    /// The power fails, and its store spoils a segment that no superblock names, by this draw.
    Spoil(usize, u64),
}

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// With the protocol's goodbye, once its requests are sent.
    Goodbye,
    /// So many bytes of what it had to send still arrive, then the connection may break.
    Cut(u32),
    /// So many bytes arrive, then it closes its socket.
    Close(u32),
    /// It sends bytes that are no request.
    Garble(u64),
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// A client connects, unless it is there; with structured replies or without.
    Connect(usize, bool),
    /// A client asks.
    Ask(usize, Call),
    /// A client leaves.
    Leave(usize, Leave),
    /// The node takes so many turns.
    Turns(u32),
    /// All that was asked is answered, and every cell is looked at.
    Settle,
    /// Dirty blocks of a volume, or of all, go home.
    Drain(Option<usize>),
    /// A volume is sized to so many slots of each level, or no more.
    Resize(usize, Option<[u32; LEVELS_MAX]>),
    /// A volume is to have so many sectors, unless its home is in the cloud.
    Length(usize, u64),
    /// A guest asks for some writes of a volume at once, drawn by a seed.
    Guest(usize, u64),
    /// The guest of a volume leaves without waiting for answers.
    GuestLeaves(usize),
    /// A volume is removed, and its data kept, unless its home is in the cloud.
    Remove(usize),
    /// A disk misbehaves.
    Fault(Fault),
    /// Faults that last are over.
    Heal,
    /// The power will fail at a step to come, be it in the middle of recovery.
    Arm(CutAt),
    /// The power fails between two turns.
    Cut(CrashMode),
    /// The node stops in order, then the power is cut.
    Stop(CrashMode),
    /// A volume in the cloud.
    Cloud(CloudAct),
    /// All disks of the node are destroyed; another node takes the volumes in the cloud, and the
    /// old one may go on for a while without knowing.
    Destroy {
        /// Whether it does.
        is_ghost: bool,
    },
}

/// What differs between the nodes of different seeds.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Levels, classes, limits.
    pub spec: CacheSpec,
    /// Guarantees and caps of the volumes.
    pub shares: [[Share; LEVELS_MAX]; VOLUMES],
    /// Whether the volumes write through.
    pub through: [bool; VOLUMES],
    /// Whether their homes are in the cloud, where they write through.
    pub remote: [bool; VOLUMES],
    /// Bytes of the NVM level.
    pub nvm_bytes: u64,
    /// Bytes of the SSD level.
    pub ssd_bytes: u64,
    /// Its segments, and how its disk hears of free ones.
    pub segments: SegmentPlan,
    /// The NVM is persistent memory rather than a file's pages.
    pub is_persistent: bool,
    /// What unsynced writes become in a power cut at a step.
    pub crash: CrashMode,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Life {
    /// Where all chance comes from.
    pub seed: u64,
    /// The node.
    pub shape: Shape,
    /// Its disks.
    pub character: Character,
    /// What happens.
    pub acts: Vec<Act>,
}

/// How each life ends.
const END: [Act; 2] = [Act::Heal, Act::Settle];

impl Life {
    /// Draws a life.
    #[must_use]
    pub fn draw(seed: u64) -> Life {
        let Life { mut shape, character, mut acts, .. } = Life::draw_plain(seed);
        (shape.through, shape.remote) = through_of(seed);
        shape.segments = segments_of(seed, shape.ssd_bytes);
        acts.truncate(acts.len() - END.len());
        if shape.remote.contains(&true) {
            add_cloud_acts(seed, character, &mut acts);
            if character == Character::Failing {
                add_map_faults(seed, &mut acts);
            }
        }
        if let Some(volume) = reuses::reused_of(seed, shape.remote) {
            reuses::add(seed, volume, &mut acts);
        }
        if let Some(volume) = rewrites::rewritten_of(seed, shape.through) {
            rewrites::add(seed, character, volume, &mut acts);
        }
        if returns::has_some(seed, character) {
            returns::add(seed, shape.through, &mut acts);
        }
        if lengths::has_some(seed) {
            lengths::add(seed, &mut acts);
        }
        if removals::has_some(seed, shape.remote) {
            removals::add(seed, &mut acts);
        }
        if departures::has_some(seed) {
            departures::add(seed, &mut acts);
        }
        if failed_syncs::has_some(seed, character) {
            failed_syncs::add(seed, &mut acts);
        }
        if start_faults::has_some(seed, character) {
            start_faults::add(seed, &mut acts);
        }
        if lost_pages::has_some(seed) {
            lost_pages::add(seed, &mut acts);
        }
        if spoiled_puts::has_some(seed, shape.remote) {
            spoiled_puts::add(seed, shape.remote, &mut acts);
        }
        let mut life = Life { seed, shape, character, acts };
        let times_out = life.times_out();
        if delays::has_some(seed, times_out) {
            delays::add((seed, character), times_out, life.shape.remote, &mut life.acts);
        }
        life.acts.extend(END);
        life
    }

    /// How long a device may owe an end: a limit in half of the lives whose devices get stuck, so
    /// that requests are timed out; none elsewhere.
    #[must_use]
    pub fn io_timeout(&self) -> Nanos {
        match self.times_out() {
            true => Nanos::from_millis(50),
            false => Nanos::NEVER,
        }
    }

    /// Whether requests are timed out that wait for a stuck device.
    #[must_use]
    pub fn times_out(&self) -> bool {
        self.character == Character::Stuck && self.seed.is_multiple_of(2)
    }

    /// Draws what every life is made of: no volume writes through, no free segment is discarded,
    /// and there are no bursts.
    #[must_use]
    pub fn draw_plain(seed: u64) -> Life {
        let mut rng = Rng::new(seed ^ 0x1a_b1);
        let character = match rng.below(10) {
            0..=4 => Character::Honest,
            5..=6 => Character::Failing,
            7..=8 => Character::Lying,
            _ => Character::Stuck,
        };
        let shape = Shape::draw(&mut rng);
        let mut acts: Vec<Act> = (0..CLIENTS).map(|c| Act::Connect(c, rng.chance(1, 2))).collect();
        for _ in 0..AGES {
            let length = 20 + rng.below(70);
            acts.extend((0..length).map(|_| draw_act(&mut rng, character)));
            acts.extend(draw_end(&mut rng));
        }
        acts.extend(END);
        Life { seed, shape, character, acts }
    }
}

impl Shape {
    fn draw(rng: &mut Rng) -> Shape {
        let mut spec = spec(rng.below(5));
        spec.levels[0].slots = 3 + rng.below(6) as u32;
        let idle = [Nanos::from_micros(300), Nanos::from_millis(5), Nanos::from_secs(5)];
        spec.writeback.idle_timeout = idle[rng.below(3) as usize];
        spec.writeback.merge_bytes = [4096, 16384, 1 << 20][rng.below(3) as usize];
        if rng.chance(1, 3) {
            (spec.levels[2].watermarks.dirty_red, spec.levels[2].watermarks.dirty_green) = (30, 10);
        }
        if rng.chance(1, 3) {
            (spec.levels[1].watermarks.used_red, spec.levels[1].watermarks.used_green) = (70, 50);
        }
        if rng.chance(1, 2) {
            spec.read_ahead.window_bytes_max = 0;
        }
        spec.classes.iter_mut().for_each(|class| class.borrow = rng.chance(2, 3));
        spec.classes.iter_mut().for_each(|class| class.keep_reads = rng.chance(1, 2));
        for class in &mut spec.classes {
            if rng.chance(1, 4) {
                class.admission = AdmissionKind::SecondMiss;
            }
        }
        if rng.chance(1, 4) {
            spec.classes[2].levels = 0b001; // written through, past both persistent levels
        }
        let mut shares = [[Share::OPEN; LEVELS_MAX]; VOLUMES];
        for share in shares.iter_mut().flat_map(|of| &mut of[..3]) {
            if rng.chance(1, 6) {
                *share = Share { guaranteed: rng.below(3) as u32, cap: 3 + rng.below(12) as u32 };
            }
        }
        Shape {
            spec,
            shares,
            through: [false; VOLUMES],
            remote: [false; VOLUMES],
            nvm_bytes: (13 + rng.below(14)) * BLOCK,
            ssd_bytes: (116 + rng.below(150)) * BLOCK,
            segments: SegmentPlan::default(),
            is_persistent: rng.chance(1, 2),
            crash: draw_mode(rng),
        }
    }
}

/// Bounds so small that a life's requests reach them, by the life's seed.
#[must_use]
pub fn schedule_of(seed: u64) -> ScheduleLimits {
    let mut rng = Rng::new(seed ^ 0x5c4ed);
    let blocks = 1 + rng.below(4);
    let bytes_max = BLOCK << rng.below(6);
    ScheduleLimits {
        quantum_bytes: (blocks * BLOCK) as u32,
        inflight_bytes_max: BLOCK << rng.below(8),
        budget: BudgetLimits { bytes_min: BLOCK, bytes_max, ios_min: 1, ios_max: 4 },
    }
}

/// How much clients may hold, by the life's seed: in every other life so little that their requests
/// wait for it.
#[must_use]
pub fn client_memory_of(seed: u64) -> ClientMemory {
    let mut rng = Rng::new(seed ^ 0x3e3_0b17);
    let is_small = rng.chance(1, 2);
    let bytes_max = BLOCK << rng.below(6);
    let connection_bytes_free = ClientMemory::CONNECTION_BYTES_FREE_MIN;
    if is_small { ClientMemory { bytes_max, connection_bytes_free } } else { ClientMemory::DEFAULT }
}

/// Which volumes write through, and which of them to a home in the cloud, by the life's seed: some
/// in every other life.
#[must_use]
pub fn through_of(seed: u64) -> ([bool; VOLUMES], [bool; VOLUMES]) {
    let mut rng = Rng::new(seed ^ 0x7412_0064);
    let is_one = rng.chance(1, 2);
    let through = [(); VOLUMES].map(|()| is_one && rng.chance(1, 2));
    (through, through.map(|through| through && rng.chance(1, 2)))
}

/// The log's segments, by the life's seed: in two lives of three their disk hears of those that are
/// free, at once or after a while, and in one of four they are longer than usual. Half
/// of the logs that have room for it have all streams.
#[must_use]
pub fn segments_of(seed: u64, ssd_bytes: u64) -> SegmentPlan {
    let mut rng = Rng::new(seed ^ 0x5e6_3e27);
    let modes = [DiscardMode::Off, DiscardMode::Immediate, DiscardMode::Delayed];
    let discard = DiscardLimits {
        mode: modes[rng.below(3) as usize],
        delay: DiscardDelay::Fixed(Nanos::from_millis([1, 20][rng.below(2) as usize])),
        ranges_max: [1, 3, 4096][rng.below(3) as usize],
        in_flight_max: 1 + rng.below(3) as u16,
        ..DiscardLimits::DEFAULT
    };
    let longer = (9 + rng.below(8)) * BLOCK;
    let of = |bytes, all| SegmentPlan {
        bytes,
        discard,
        has_all_streams: Some(all),
        ..SegmentPlan::default()
    };
    let fits = |plan: &SegmentPlan| slots_for(ssd_bytes, BlockSize::MIN, plan) >= 16;
    let is_longer = fits(&of(longer, false)) && rng.chance(1, 2);
    let bytes = if is_longer { longer } else { 0 };
    let all = of(bytes, true);
    if rng.chance(1, 2) && fits(&all) { all } else { of(bytes, false) }
}

/// How the volumes' discards reach their homes, by the life's seed: in two lives of three some are
/// delayed, for a while or for longer than a life, in tables that fill up, and in half of the lives
/// sending keeps to a bandwidth.
#[must_use]
pub fn discards_of(seed: u64) -> Vec<(VolumeId, DiscardLimits)> {
    let mut rng = Rng::new(seed ^ 0xd15_ca4d);
    let modes = [DiscardMode::Immediate, DiscardMode::Delayed, DiscardMode::Delayed];
    let mode = modes[rng.below(3) as usize];
    let delays = [Nanos::from_millis(1), Nanos::from_millis(20), Nanos::from_secs(3600)];
    let bytes_per_second_max = [0, 1 << 20][Rng::new(seed ^ 0xba_4d3).below(2) as usize];
    let limits = |_| DiscardLimits {
        mode,
        delay: DiscardDelay::Fixed(delays[rng.below(3) as usize]),
        ranges_max: [1, 3, 4096][rng.below(3) as usize],
        in_flight_max: 1 + rng.below(3) as u16,
        bytes_per_second_max,
        ..DiscardLimits::DEFAULT
    };
    (0..VOLUMES as u32).map(VolumeId).zip((0..VOLUMES).map(limits)).collect()
}

fn spec(eviction: u64) -> CacheSpec {
    let kinds = [EvictionKind::Lru, EvictionKind::Clock, EvictionKind::S3Fifo, EvictionKind::Arc];
    let eviction = kinds.get(eviction as usize).copied().unwrap_or(EvictionKind::Lfu);
    let watermarks = Watermarks::DEFAULT;
    let level = |kind, slots| LevelSpec { kind, slots, eviction, watermarks };
    let class = |name: &str, rank, levels, durable_writes| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes,
        borrow: true,
        keep_reads: true,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: vec![
            level(LevelKind::Memory, 8),
            level(LevelKind::Nvm, 1 << 20),
            level(LevelKind::Ssd, 1 << 20),
        ],
        classes: vec![
            class("critical", 0, 0b111, true),
            class("normal", 1, 0b101, false),
            class("bulk", 2, 0b100, false),
        ],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits::DEFAULT,
    }
}

fn draw_act(rng: &mut Rng, character: Character) -> Act {
    let client = rng.below(CLIENTS as u64) as usize;
    match rng.below(100) {
        0..=44 => Act::Ask(client, draw_call(rng)),
        45..=80 => Act::Turns(1 + rng.below(6) as u32),
        81..=83 => Act::Turns(rng.below(80) as u32),
        84..=86 => Act::Leave(client, draw_leave(rng)),
        87..=90 => Act::Connect(client, rng.chance(1, 2)),
        91 => Act::Settle,
        92 => Act::Drain(rng.chance(1, 2).then(|| rng.below(VOLUMES as u64) as usize)),
        93 => {
            let mut slots = [0; LEVELS_MAX];
            slots[..3].fill_with(|| rng.below(12) as u32);
            Act::Resize(client % VOLUMES, rng.chance(2, 3).then_some(slots))
        }
        94 => Act::Heal,
        _ => draw_fault(rng, character).map_or(Act::Turns(3), Act::Fault),
    }
}

fn draw_call(rng: &mut Rng) -> Call {
    let all = BLOCKS * BLOCK / 512;
    let offset = rng.below(all);
    let longest = if rng.chance(1, 6) { 120 } else { 32 };
    let length = (1 + rng.below(longest)).min(all - offset);
    let operation = match rng.below(24) {
        0..=6 => Operation::Read,
        7..=15 => Operation::Write,
        16 => Operation::Trim,
        17 => Operation::WriteZeroes,
        18 => Operation::Cache,
        19 => Operation::BlockStatus,
        _ => Operation::Flush,
    };
    let changes = crate::oracle::changes(operation);
    let (mut offset, mut length) = (offset * 512, length * 512);
    if changes && rng.chance(1, 2) {
        offset = offset / BLOCK * BLOCK;
        length = length.next_multiple_of(BLOCK).min(BLOCKS * BLOCK - offset);
    }
    if operation == Operation::Flush {
        (offset, length) = (0, 0);
    }
    let flags = CallFlags {
        fua: changes && rng.chance(1, 6),
        no_hole: operation == Operation::WriteZeroes && rng.chance(1, 2),
        ..CallFlags::default()
    };
    Call { cookie: 0, operation, offset, length, flags }
}

/// Puts what concerns volumes in the cloud between the other acts, by a generator of its own: lives
/// without such volumes stay what they are.
fn add_cloud_acts(seed: u64, character: Character, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0xc1_0bd5);
    for _ in 0..10 + rng.below(30) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let act = draw_cloud_act(&mut rng, character);
        drop(acts.splice(at..at, act));
    }
}

/// Lets changes of map files fail in two lives of three, by a generator of its own.
fn add_map_faults(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x3a9_f117);
    for _ in 0..rng.below(3) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let volume = rng.below(VOLUMES as u64) as usize;
        acts.insert(at, Act::Cloud(CloudAct::FileFault(volume, SimDeed::MapWritten)));
    }
}

fn draw_cloud_act(rng: &mut Rng, character: Character) -> Vec<Act> {
    let volume = rng.below(VOLUMES as u64) as usize;
    let cloud = |act| vec![Act::Cloud(act)];
    match rng.below(16) {
        0..=3 => cloud(CloudAct::Weather(volume, draw_weather(rng))),
        4..=5 => cloud(CloudAct::Look(volume)),
        6 => cloud(CloudAct::Upload(volume)),
        7 => cloud(CloudAct::Rival(volume)),
        8 if character == Character::Failing => {
            let deed = [SimDeed::JournalWritten, SimDeed::JournalSynced][rng.below(2) as usize];
            cloud(CloudAct::FileFault(volume, deed))
        }
        8..=9 => vec![Act::Turns(50 + rng.below(300) as u32)],
        10 => vec![Act::Destroy { is_ghost: rng.chance(1, 2) }],
        // Homes in the cloud are slow, and what is asked in a row is on its way together.
        11..=12 => {
            let ask = |_| Act::Ask(volume, draw_call(rng));
            (0..4).map(ask).chain([Act::Turns(8)]).collect()
        }
        _ => vec![Act::Arm(draw_cloud_window(rng, volume)), Act::Turns(200)],
    }
}

fn draw_weather(rng: &mut Rng) -> SimFaults {
    let mut often = |most: u64| if rng.chance(1, 2) { rng.below(most) } else { 0 };
    let (errors, lost_replies, conflicts) = (often(40), often(40), often(20));
    SimFaults { errors, lost_replies, conflicts, is_cut: rng.chance(1, 5), ..<_>::default() }
}

/// A kind of step that homes in the cloud take.
fn draw_cloud_window(rng: &mut Rng, volume: usize) -> CutAt {
    let (disk, kind) = match rng.below(6) {
        0 => (Disk::Journal(volume), OperationKind::Write),
        1 => (Disk::Journal(volume), OperationKind::Sync),
        2..=3 => (Disk::Map(volume), OperationKind::Write),
        4 => (Disk::Store(volume), OperationKind::Write),
        _ => (Disk::Store(volume), OperationKind::Read),
    };
    let deed = if rng.chance(1, 2) { Deed::Begun(kind) } else { Deed::Ended(kind) };
    CutAt::Only(Step { disk: Some(disk.number()), deed }, 1 + rng.below(6) as u32)
}

fn draw_leave(rng: &mut Rng) -> Leave {
    match rng.below(8) {
        0 => Leave::Goodbye,
        1 => Leave::Close(rng.below(5000) as u32),
        2 => Leave::Garble(rng.next_u64()),
        // Heads are 28 bytes; half of the cuts fall into the first ones.
        3..=5 => Leave::Cut(rng.below(90) as u32),
        _ => Leave::Cut(rng.below(20_000) as u32),
    }
}

fn draw_fault(rng: &mut Rng, character: Character) -> Option<Fault> {
    let home = Disk::Home(rng.below(VOLUMES as u64) as usize);
    let disk = [Disk::Ssd, Disk::Ssd, home, Disk::Nvm][rng.below(4) as usize];
    let unmapped = if disk == Disk::Nvm { Disk::Ssd } else { disk };
    let sector = rng.below(64) * 512 + rng.below(16) * (32 << 10);
    match character {
        Character::Honest => {
            rng.chance(1, 3).then(|| Fault::Slow(disk, Nanos::from_micros(rng.below(20_000))))
        }
        Character::Failing => Some(match rng.below(8) {
            0 => Fault::FailNext(unmapped, OperationKind::Read),
            1 => Fault::FailNext(unmapped, OperationKind::Write),
            2 => Fault::FailNext(disk, OperationKind::Sync),
            3 => Fault::FailNext(home, OperationKind::Zero),
            4 if sector % 1024 == 512 => Fault::Broken(sector),
            4 => Fault::BadSector(unmapped, sector),
            5 => Fault::Full(home),
            6 => Fault::Gone(unmapped),
            _ => Fault::Slow(disk, Nanos::from_micros(rng.below(20_000))),
        }),
        // A few places; a log that is damaged all over can only say so.
        Character::Lying if rng.chance(2, 3) => None,
        Character::Lying => Some(match rng.below(4) {
            0 => Fault::Lost(Disk::Ssd),
            1 => Fault::Misdirected(Disk::Ssd, sector / BLOCK * BLOCK),
            2 => Fault::Rot(Disk::Nvm, sector),
            _ => Fault::Rot(Disk::Ssd, sector),
        }),
        Character::Stuck => Some(Fault::Stuck(disk)),
    }
}

fn draw_mode(rng: &mut Rng) -> CrashMode {
    [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll][rng.below(3) as usize]
}

fn draw_end(rng: &mut Rng) -> Vec<Act> {
    let mut end = match rng.below(8) {
        0 => vec![Act::Stop(draw_mode(rng))],
        1 => vec![Act::Cut(draw_mode(rng))],
        2..=4 => vec![Act::Arm(CutAt::Any(1 + rng.below(400) as u32)), Act::Turns(400)],
        _ => vec![Act::Arm(draw_window(rng)), Act::Turns(400)],
    };
    if rng.chance(1, 3) {
        // Once more, in the middle of recovery.
        end.extend([Act::Arm(CutAt::Any(1 + rng.below(60) as u32)), Act::Cut(draw_mode(rng))]);
    }
    if rng.chance(1, 2) {
        end.push(Act::Settle);
    }
    end
}

/// A kind of step that there is, so that rare ones are met as often as common ones.
fn draw_window(rng: &mut Rng) -> CutAt {
    let home = Disk::Home(rng.below(VOLUMES as u64) as usize);
    let disk = [Disk::Ssd, home, Disk::Nvm][rng.below(3) as usize];
    let kinds = [OperationKind::Write, OperationKind::Sync, OperationKind::Zero];
    let kind = kinds[rng.below(if disk == home { 3 } else { 2 }) as usize];
    let deed = match rng.below(2) {
        0 if disk == Disk::Nvm && kind == OperationKind::Write => Deed::Stored,
        _ if disk == Disk::Nvm && kind == OperationKind::Write => Deed::Persisted,
        0 => Deed::Begun(kind),
        _ => Deed::Ended(kind),
    };
    CutAt::Only(Step { disk: Some(disk.number()), deed }, 1 + rng.below(6) as u32)
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Act::Ask(client, call) = self else { return write!(f, "{self:?}") };
        let Call { operation, offset, length, flags, .. } = call;
        write!(f, "client {client}: {operation:?} {offset}+{length}")?;
        f.write_str(if flags.fua { ", FUA" } else { "" })
    }
}
