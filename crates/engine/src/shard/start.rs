//! Starting a shard: opens disks, recovers, and hands the thread its loop.
//!
//! How: everything happens on the shard's own thread, since the ring belongs to the thread that
//! waits on it; the caller gets the report, or the error, through a channel.
//! Invariant: when `start_shard` returns an error, no thread and no lock is left.

use super::commands::home_mode;
use super::{ClientMemory, NoticeSink, Shard};
use crate::backing::AbsentHome;
use crate::control::{
    BackingPlan, CommandError, HomeRefusal, ShardSender, StartReport, VolumePlan,
};
use crate::core::{Core, CoreError, Damage, HomePlace, HomePlan, LevelPlan, WearPlan, WrittenBack};
use crate::io::{
    ARENA_BYTES_DEFAULT, HintState, Host, HostIo, Io, IoChoice, IoError, OpenError, OpenMode,
    Persistence, SECTOR_CIPHER, Scheduled, SectorCipher, VOLATILE_BYTES_DEFAULT, Waker, WriteHints,
    lies_in_memory,
};
use crate::store::{Reached, Region, SegmentPlan, StoreError, StoreIdentity};
use layby_cache::schedule::{Load, ScheduleLimits};
use layby_cache::{CacheSpec, LevelKind};
use layby_types::{ErrorKind, Nanos, Session, ShardIndex, VolumeId, format_bytes};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A shard's part of a level.
#[derive(Clone, Debug)]
pub struct LevelPart {
    /// The level's name, for reports.
    pub name: String,
    /// The file or device; none for memory.
    pub path: Option<PathBuf>,
    /// First byte of the part.
    pub base: u64,
    /// Bytes of the part.
    pub length: u64,
    /// Bytes of the whole level, for reports.
    pub level_length: u64,
    /// Its file or device is not to be had, or not to be touched: the level has no slots, and no
    /// class of the specification uses it.
    pub is_absent: bool,
    /// How far it had come at its last start, where that is known: an older copy is refused.
    pub known: Option<Reached>,
    /// What it is encrypted by, where it is; of a level that is a log alone.
    pub cipher: Option<Arc<SectorCipher>>,
    /// How its flash is used, where it is a log's.
    pub segments: SegmentPlan,
    /// How long its flash shall last.
    pub wear: WearPlan,
    /// What classes below the best one may have in its device's hands at first, where that is
    /// known; else as much as the bounds allow.
    pub budget: Option<Load>,
}

/// All a shard needs to start.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    /// Which shard.
    pub index: u8,
    /// Of how many.
    pub count: u8,
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// How nice its thread is to other programs, from -20 to 19; below 0 needs a privilege.
    pub nice: i8,
    /// How it talks to the kernel.
    pub io: IoChoice,
    /// The node's identity.
    pub node: [u8; 16],
    /// Levels, classes, limits.
    pub spec: CacheSpec,
    /// Its part of each level.
    pub levels: Vec<LevelPart>,
    /// Volumes that it serves.
    pub volumes: Vec<VolumePlan>,
    /// Format the parts first.
    pub is_new: bool,
    /// Do not start where a level's structure is damaged beyond help, so that it is not known which
    /// version of some blocks is the newest.
    pub is_strict: bool,
    /// What is not durable stays in this process, so that a kill is a power cut (tests).
    pub simulate_power_loss: bool,
    /// How much longer volumes' homes take than they really do; for demonstrations.
    pub home_delay: Nanos,
    /// How long a device or backing store may owe an end before requests that wait for it end with
    /// an error; `NEVER` for as long as it likes.
    pub io_timeout: Nanos,
    /// The bounds of serving by class.
    pub schedule: ScheduleLimits,
    /// How much its clients' connections may hold.
    pub client_memory: ClientMemory,
    /// As a level's `budget`, for each volume's home.
    pub home_budget: Option<Load>,
    /// The node's locked file, which stays open until the shard's last operation has ended in the
    /// kernel, so that no next process serves beside what this one has still in flight.
    pub lock: Option<Arc<OwnedFd>>,
}

impl ShardPlan {
    /// The bounds of serving by class, where requests are cut between blocks only.
    pub(super) fn limits(&self) -> ScheduleLimits {
        self.schedule.in_blocks(self.spec.block_size.bytes())
    }
}

/// Why a shard cannot start.
#[derive(Debug)]
pub enum StartError {
    /// The kernel refuses the I/O that was asked for.
    Io(IoError),
    /// The system grants no thread.
    Thread(IoError),
    /// A level's file or device cannot be opened.
    LevelDisk {
        /// The level.
        name: String,
        /// Why.
        error: OpenError,
    },
    /// A level's contents cannot be used.
    Level {
        /// The level.
        name: String,
        /// Its file or device.
        path: PathBuf,
        /// Why.
        error: StoreError,
    },
    /// There is not so much memory as a level is to have.
    Memory {
        /// The level.
        name: String,
        /// Bytes of the shard's part.
        bytes: u64,
    },
    /// A volume's home cannot be opened.
    Home {
        /// The volume.
        volume: VolumeId,
        /// Why.
        error: OpenError,
    },
    /// A volume's home is smaller than the volume.
    HomeShort {
        /// The volume.
        volume: VolumeId,
        /// Its path.
        path: PathBuf,
        /// Bytes found.
        length: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// What is at a volume's path is not its own, or cannot be had.
    HomeRefused {
        /// The volume.
        volume: VolumeId,
        /// By remedy.
        kind: ErrorKind,
        /// Why.
        cause: String,
    },
    /// Recovery could not write to a volume's home.
    HomeFailed {
        /// Its path or name.
        name: String,
        /// Why.
        kind: ErrorKind,
    },
    /// A volume's remote home cannot be had.
    Remote {
        /// The volume.
        volume: VolumeId,
        /// The home's name.
        name: String,
        /// Why.
        error: CommandError,
    },
    /// The specification contradicts itself.
    Spec(String),
}

impl StartError {
    /// By remedy.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            StartError::Io(error) | StartError::Thread(error) => crate::backing::kind_of(*error),
            StartError::HomeFailed { kind, .. } | StartError::HomeRefused { kind, .. } => *kind,
            StartError::Remote { error, .. } => error.kind,
            StartError::LevelDisk { error, .. } | StartError::Home { error, .. } => error.kind,
            StartError::Level { error, .. } => error.kind(),
            StartError::Memory { .. } => ErrorKind::Full,
            StartError::HomeShort { .. } | StartError::Spec(_) => ErrorKind::Invalid,
        }
    }

    /// Whether a file or device is locked by a process that is gone.
    fn is_of_the_gone(&self) -> bool {
        match self {
            StartError::LevelDisk { error, .. } | StartError::Home { error, .. } => error.is_gone,
            _ => false,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Io(error) => write!(f, "the kernel refuses the I/O: {error}"),
            StartError::Thread(error) => write!(f, "the system grants no thread: {error}"),
            StartError::LevelDisk { name, error } => write!(f, "level `{name}`: {error}"),
            StartError::Level { name, error, .. } => write!(f, "level `{name}`: {error}"),
            StartError::Memory { bytes, .. } => {
                write!(f, "the system does not give {} of memory", format_bytes(*bytes))
            }
            StartError::Home { error, .. } => write!(f, "{error}"),
            StartError::HomeRefused { cause, .. } => f.write_str(cause),
            StartError::HomeShort { path, length, needed, .. } => write!(
                f,
                "`{}` has {}, the volume needs {}",
                path.display(),
                format_bytes(*length),
                format_bytes(*needed)
            ),
            StartError::HomeFailed { name, kind } => write!(f, "cannot write `{name}`: {kind}"),
            StartError::Remote { name, error, .. } => write!(f, "`{name}`: {}", error.cause),
            StartError::Spec(cause) => f.write_str(cause),
        }
    }
}

impl std::error::Error for StartError {}

type Started = Result<(StartReport, Waker), StartError>;

/// Starts a shard on a thread of its own and returns when it has recovered.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start_shard<S: Session + Send + 'static>(
    plan: ShardPlan,
    notices: NoticeSink,
) -> Result<(ShardSender<S>, StartReport, JoinHandle<()>), StartError> {
    let (commands, received) = channel();
    let (tell, told) = channel();
    let name = format!("layby-shard-{}", plan.index);
    let body = move || serve::<S>(&plan, notices, received, &tell);
    let thread = std::thread::Builder::new().name(name).spawn(body);
    let refused = |error: std::io::Error| {
        StartError::Thread(IoError { errno: error.raw_os_error().unwrap_or(0) })
    };
    let thread = thread.map_err(refused)?;
    match told.recv() {
        Ok(Ok((report, waker))) => Ok((ShardSender { commands, waker }, report, thread)),
        Ok(Err(error)) => {
            drop(thread.join());
            Err(error)
        }
        Err(_) => Err(StartError::Spec("the shard's thread ended while starting".into())),
    }
}

fn serve<S: Session>(
    plan: &ShardPlan,
    notices: NoticeSink,
    commands: Receiver<crate::control::Command<S>>,
    tell: &Sender<Started>,
) {
    if let Some(cpu) = plan.cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        // A CPU that is not ours to choose is no reason not to serve.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
    let nice = be_nice(plan.nice);
    let started = open(plan).map(|(io, waker, core, mut report)| {
        report.io.push_str(&nice);
        (Shard::new(io, core, plan, commands, notices), report, waker)
    });
    match started {
        Err(error) => drop(tell.send(Err(error))),
        Ok((shard, report, waker)) => {
            if tell.send(Ok((report, waker))).is_ok() {
                shard.run();
            }
        }
    }
}

/// Threads that the kernel starts for this one's I/O take after it. Says what came of it; a
/// privilege that is not ours is no reason not to serve.
fn be_nice(nice: i8) -> String {
    if nice == 0 {
        return String::new();
    }
    match rustix::process::setpriority_process(None, i32::from(nice)) {
        Ok(()) => format!(", nice {nice}"),
        Err(errno) => format!(", nice {nice} was refused: {errno}"),
    }
}

/// A shard's I/O, which keeps the node's lock.
fn start_io(plan: &ShardPlan) -> Result<(HostIo, Waker, String), StartError> {
    let refused = |error: IoError| match error {
        // No other step of it says so.
        error if error == Errno::AGAIN.into() => StartError::Thread(error),
        error => StartError::Io(error),
    };
    let mut started = HostIo::start(plan.io, ARENA_BYTES_DEFAULT).map_err(refused)?;
    if let Some(lock) = &plan.lock {
        started.0.keep(lock.as_fd());
    }
    Ok(started)
}

fn open(plan: &ShardPlan) -> Result<(Scheduled<HostIo>, Waker, Core, StartReport), StartError> {
    let (mut io, waker, mut description) = start_io(plan)?;
    if plan.simulate_power_loss {
        io = io.into_volatile(VOLATILE_BYTES_DEFAULT);
        description.push_str(", power loss simulated");
    }
    let seed = seed_of(&io, plan);
    let mut io = Scheduled::new(io, plan.limits());
    let (core, mut report) = open_core(&mut io, plan, seed)?;
    report.io = description;
    Ok((io, waker, core, report))
}

/// Opens a shard's disks on any machine and recovers; chance follows from `seed`.
pub(super) fn open_core(
    io: &mut Scheduled<impl Host>,
    plan: &ShardPlan,
    seed: u64,
) -> Result<(Core, StartReport), StartError> {
    let is_strict = plan.is_strict || plan.is_new;
    let Parts { lines, levels, homes, absent } = open_parts(io, plan, is_strict)?;
    let started = Core::start(io, plan.spec.clone(), &levels, identity(plan), homes, seed);
    let (mut core, mut report) = started.map_err(|error| explain(plan, error))?;
    core.delay_homes(plan.home_delay);
    core.set_io_timeout(plan.io_timeout);
    report.levels = lines;
    let is_in_memory = |part: &LevelPart| {
        let path = part.path.as_ref().filter(|_| !part.is_absent);
        path.is_some_and(|path| lies_in_memory(path))
    };
    let parts = plan.levels.iter().enumerate();
    report.in_memory =
        parts.filter(|(_, part)| is_in_memory(part)).map(|(level, _)| level).collect();
    report.absent.extend(absent);
    Ok((core, report))
}

/// Writes what the levels of `plan` that are there hold of its volumes to their backing stores, on
/// this thread; see [`Core::write_back_offline`]. No shard may run on these levels.
///
/// # Errors
/// [`StartError`]; no level was written.
pub fn write_back_offline(
    plan: &ShardPlan,
    damage: Damage,
) -> Result<Vec<WrittenBack>, StartError> {
    let (io, ..) = start_io(plan)?;
    write_back_on(io, plan, damage)
}

/// The same on any machine.
///
/// # Errors
/// As [`write_back_offline`].
pub fn write_back_on(
    io: impl Host,
    plan: &ShardPlan,
    damage: Damage,
) -> Result<Vec<WrittenBack>, StartError> {
    let mut io = Scheduled::new(io, plan.limits());
    let Parts { levels, homes, .. } = open_parts(&mut io, plan, true)?;
    let (spec, identity) = (plan.spec.clone(), identity(plan));
    let written = Core::write_back_offline(&mut io, spec, &levels, identity, homes, damage);
    written.map_err(|error| explain(plan, error))
}

/// Levels and homes, open.
struct Parts {
    /// What each level is, for people.
    lines: Vec<String>,
    levels: Vec<LevelPlan>,
    homes: Vec<HomePlan>,
    absent: Vec<HomeRefusal>,
}

/// Opens levels and homes; a home that cannot be opened is absent, unless that is to be strict.
fn open_parts(
    io: &mut Scheduled<impl Host>,
    plan: &ShardPlan,
    is_strict: bool,
) -> Result<Parts, StartError> {
    let mut lines = Vec::new();
    let mut levels = Vec::new();
    for (part, level) in plan.levels.iter().zip(&plan.spec.levels) {
        let (level_plan, line) = open_level(io, plan, part, level.kind, level.slots)?;
        if let (Some(load), LevelPlan::Ssd { region, .. }) = (part.budget, &level_plan) {
            io.begin_with(Some(region.disk), load);
        }
        levels.push(level_plan);
        lines.push(line);
    }
    if let Some(load) = plan.home_budget {
        io.begin_with(None, load);
    }
    let (mut homes, mut absent) = (Vec::new(), Vec::new());
    // What a process that is gone has locked comes free together: one wait in vain is enough.
    let mut waits_for_gone = true;
    for volume in &plan.volumes {
        // What is not the volume's own keeps a new node from serving that volume alone.
        let is_refused = matches!(volume.backing, BackingPlan::Refused { .. });
        let is_strict = if is_refused && plan.is_new { plan.is_strict } else { is_strict };
        let may_be_absent = !is_strict && may_be_absent(&volume.backing);
        let opened = open_home(io, volume, waits_for_gone);
        waits_for_gone &= !opened.as_ref().is_err_and(StartError::is_of_the_gone);
        homes.push(match opened {
            Ok(home) if may_be_absent => home,
            // One that recovery cannot write to ends the start.
            Ok(home) => HomePlan { protected: None, ..home },
            Err(error) if may_be_absent => {
                let kind = match error {
                    // It was long enough once.
                    StartError::HomeShort { .. } => ErrorKind::Corrupt,
                    _ => error.kind(),
                };
                let cause = error.to_string();
                absent.push(HomeRefusal { volume: volume.spec.id, kind, cause });
                stand_in(io, volume)
            }
            Err(error) => return Err(error),
        });
    }
    Ok(Parts { lines, levels, homes, absent })
}

/// Whether a home that was there once may be missed: one that is to be made has held nothing yet,
/// and a remote one's owner says himself what it needs.
fn may_be_absent(backing: &BackingPlan) -> bool {
    match backing {
        BackingPlan::File { create, .. } => !create,
        BackingPlan::Part { .. } | BackingPlan::Refused { .. } => true,
        BackingPlan::Remote(_) => false,
    }
}

/// What stands in the place of a home that could not be opened.
fn stand_in(io: &impl Host, plan: &VolumePlan) -> HomePlan {
    let stand_in = AbsentHome::new(plan.backing.name(), io.waker());
    let part = match &plan.backing {
        BackingPlan::Part { part, .. } => Some(part.clone()),
        BackingPlan::Refused { part, .. } => part.clone(),
        _ => None,
    };
    let place = HomePlace::Absent { stand_in, plan: part };
    HomePlan { spec: plan.spec.clone(), place, device: None, protected: None }
}

fn identity(plan: &ShardPlan) -> StoreIdentity {
    StoreIdentity {
        node: plan.node,
        shard: ShardIndex(plan.index),
        shard_count: u16::from(plan.count),
    }
}

/// Chance for instance numbers of fresh stores; nothing secret hangs on it.
fn seed_of(io: &HostIo, plan: &ShardPlan) -> u64 {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let fallback = io.now().0 ^ u64::from(plan.index);
    drawn.map_or(fallback, |_| u64::from_le_bytes(bytes))
}

fn explain(plan: &ShardPlan, error: CoreError) -> StartError {
    match error {
        CoreError::Store { level, error } => StartError::Level {
            name: plan.levels[level].name.clone(),
            path: plan.levels[level].path.clone().unwrap_or_default(),
            error,
        },
        CoreError::Memory { level, slots } => StartError::Memory {
            name: plan.levels[level].name.clone(),
            bytes: u64::from(slots) * u64::from(plan.spec.block_size.bytes()),
        },
        CoreError::Spec(cause) => StartError::Spec(cause),
        CoreError::Volume { volume, kind } => {
            StartError::Spec(format!("volume {} is refused: {kind}", volume.0))
        }
        CoreError::Home { name, kind } => StartError::HomeFailed { name, kind },
    }
}

fn open_level(
    io: &mut Scheduled<impl Host>,
    plan: &ShardPlan,
    part: &LevelPart,
    kind: LevelKind,
    slots: u32,
) -> Result<(LevelPlan, String), StartError> {
    let size = format_bytes(part.level_length);
    let Some(path) = part.path.as_ref().filter(|_| kind != LevelKind::Memory) else {
        let line = format!("{}: memory, {size}, clean copies only", part.name);
        return Ok((LevelPlan::Memory { slots }, line));
    };
    if part.is_absent {
        return Ok((LevelPlan::Memory { slots: 0 }, format!("{}: not used", part.name)));
    }
    // Shards of one node share the file; the node's lock keeps other nodes out.
    let mode = OpenMode {
        direct: kind == LevelKind::Ssd,
        hints: kind == LevelKind::Ssd && part.segments.hints,
        is_shared: plan.count > 1,
        waits_for_gone: true,
        ..OpenMode::default()
    };
    let opened = io
        .open_disk(path, mode)
        .map_err(|error| StartError::LevelDisk { name: part.name.clone(), error })?;
    let direct = if opened.is_direct { "direct I/O" } else { "page cache" };
    let disk = opened.disk;
    let block_size = plan.spec.block_size;
    let region = Region { disk, base: part.base, length: part.length, block_size };
    let (format, is_strict, known) = (plan.is_new, plan.is_strict, part.known);
    if kind == LevelKind::Ssd {
        let hints = hints_line(io.hint_state(disk), part.segments.hints);
        let name = &part.name;
        let how = match lies_in_memory(path) {
            true => "in memory, lost when this machine stops",
            false => "durable by device flush",
        };
        let mut line = format!("{name}: ssd log, {size}, {direct}, {how}, {hints}");
        if let Some(cipher) = &part.cipher {
            io.encrypt(disk, Arc::clone(cipher));
            line.push_str(&format!(", encrypted by {SECTOR_CIPHER}"));
        }
        let (segments, wear) = (part.segments, part.wear);
        return Ok((LevelPlan::Ssd { region, format, is_strict, known, segments, wear }, line));
    }
    assert!(part.cipher.is_none(), "only a log is encrypted");
    let persistence = io.map(disk).map(|mapping| mapping.persistence()).map_err(StartError::Io)?;
    let how = match persistence {
        Persistence::CacheFlush => "durable by CPU cache flush (DAX)",
        Persistence::Memory => "modelled in memory, lost when this machine stops",
        Persistence::Sync => "durable by file sync, grouped",
    };
    let line = format!("{}: nvm slots, {size}, {how}", part.name);
    Ok((LevelPlan::Nvm { region, format, is_strict, known }, line))
}

/// What the level's device hears of how long writes live.
fn hints_line(state: HintState, is_wanted: bool) -> String {
    match (state.way, state.refusal) {
        (WriteHints::Streams(count), _) => format!("{count} write streams"),
        (WriteHints::Lives, _) => "write-life hints".to_owned(),
        (WriteHints::None, Some(error)) if is_wanted => {
            format!("no write-life hints: the kernel says {error}")
        }
        (WriteHints::None, _) => "no write-life hints".to_owned(),
    }
}

/// Opens a volume's backing store; `waits_for_gone` as in [`OpenMode`].
pub(super) fn open_home(
    io: &mut impl Host,
    plan: &VolumePlan,
    waits_for_gone: bool,
) -> Result<HomePlan, StartError> {
    let volume = plan.spec.id;
    let (path, mode, needed) = match &plan.backing {
        BackingPlan::File { path, create } => {
            (path, home_mode(plan, create.then_some(plan.spec.length)), plan.spec.length)
        }
        BackingPlan::Part { path, part } => {
            // The first part's lock keeps other programs out for all.
            let mode = OpenMode { is_shared: part.index > 0, ..home_mode(plan, None) };
            (path, mode, part.length)
        }
        BackingPlan::Refused { kind, cause, .. } => {
            let (kind, cause) = (*kind, cause.clone());
            return Err(StartError::HomeRefused { volume, kind, cause });
        }
        BackingPlan::Remote(remote) => {
            let refused = |error| StartError::Remote { volume, name: remote.name(), error };
            let place = HomePlace::Remote(remote.open(io.waker()).map_err(refused)?);
            let (spec, device, protected) = (plan.spec.clone(), None, None);
            return Ok(HomePlan { spec, place, device, protected });
        }
    };
    let mode = OpenMode { waits_for_gone, ..mode };
    let opened = io.open_disk(path, mode).map_err(|error| StartError::Home { volume, error })?;
    let (disk, device) = (opened.disk, Some(opened.device));
    let length = io.disk_length(disk);
    if length < needed {
        io.detach_disk(disk);
        return Err(StartError::HomeShort { volume, path: path.clone(), length, needed });
    }
    let (spec, name) = (plan.spec.clone(), path.display().to_string());
    let protected = opened.is_protected.then(|| AbsentHome::new(name.clone(), io.waker()));
    let place = match &plan.backing {
        BackingPlan::Part { part, .. } => HomePlace::Part { disk, name, plan: part.clone() },
        _ => HomePlace::Disk { disk, name },
    };
    Ok(HomePlan { spec, place, device, protected })
}
