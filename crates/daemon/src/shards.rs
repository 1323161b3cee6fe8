//! Starts the engine's shards: the one place where the daemon's words become the engine's.
//!
//! How: a plan is translated field by field; a refusal becomes a report; what a shard has to say
//! while it runs goes to the log.
//! Invariant: a level that is not ours, or not whole, is reported with what to do, and never
//! formatted over.

use crate::assembly::is_device;
use crate::config::IoChoice;
use crate::error::{Report, ReportKind};
use crate::floods::Floods;
use crate::names::Names;
use crate::node::{ShardRequest, ShardStarter, StartedShard};
use layby_cache::schedule::ScheduleLimits;
use layby_cache::{DestageFault, Event};
use layby_engine::control::{BackingPlan, FailedLevel, VolumePlan};
use layby_engine::core::{Damage, Notice, WearPlan, WrittenBack};
use layby_engine::io::{OpenError, OperationKind};
use layby_engine::store::StoreError;
use layby_engine::{LevelPart, ShardPlan, StartError, start_shard, write_back_offline};
use layby_types::{ErrorKind, VolumeId};
use rustix::io::Errno;
use tokio::runtime::Handle;

/// Starts real shards.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStarter;

impl ShardStarter for EngineStarter {
    fn start(&self, request: ShardRequest) -> Result<StartedShard, Report> {
        let (shard, intents) = (request.index, request.intents.clone());
        let names = request.names.clone();
        let about = About::of(&request);
        let levels: Vec<String> =
            request.parts.iter().map(|part| part.level.name.to_string()).collect();
        let plan = plan(request);
        let write = move |notice: &Notice| log(shard, &names, &levels, notice);
        let floods = Floods::new(shard, Handle::try_current().ok(), Box::new(write));
        let hear = move |notice| match notice {
            // Where nothing listens the node ends.
            Notice::IntentWanted { volume } => drop(intents.send(volume)),
            notice => floods.hear(&notice),
        };
        let started = start_shard(plan, Box::new(hear));
        let (port, report, thread) = started.map_err(|error| refused(&error, &about))?;
        Ok(StartedShard { port: Box::new(port), report, thread })
    }
}

/// Writes back what the levels of a request that are there hold of its volumes, with no shard
/// running; see [`layby_engine::write_back_offline`]. May take long.
///
/// # Errors
/// A report where a level or a backing store cannot be opened.
pub(crate) fn write_back(
    request: ShardRequest,
    damage: Damage,
) -> Result<Vec<WrittenBack>, Report> {
    let about = About::of(&request);
    write_back_offline(&plan(request), damage).map_err(|error| refused(&error, &about))
}

fn plan(request: ShardRequest) -> ShardPlan {
    let count = u32::from(request.count);
    let started_unix = unix_seconds();
    let part = |part: crate::node::LevelPart| LevelPart {
        name: part.level.name.to_string(),
        segments: part
            .level
            .segments
            .plan(part.level.path.as_deref().is_some_and(is_device), count),
        path: part.level.path,
        base: part.base,
        length: part.length,
        level_length: part.level.size,
        budget: part.budget,
        is_absent: part.is_absent,
        known: part.known,
        cipher: part.cipher,
        wear: WearPlan {
            endurance: part.level.endurance.map(|endurance| endurance.part(count)),
            started_unix,
        },
    };
    ShardPlan {
        index: request.index,
        count: request.count,
        cpu: request.cpu,
        nice: request.nice,
        io: match request.io {
            IoChoice::Auto => layby_engine::io::IoChoice::Auto,
            IoChoice::IoUring => layby_engine::io::IoChoice::Ring,
            IoChoice::Epoll => layby_engine::io::IoChoice::Pool,
        },
        node: request.node,
        spec: request.spec,
        levels: request.parts.into_iter().map(part).collect(),
        volumes: request.volumes,
        is_new: request.is_new,
        is_strict: request.is_strict,
        simulate_power_loss: request.simulate_power_loss,
        home_delay: request.home_delay,
        io_timeout: request.io_timeout,
        schedule: ScheduleLimits::DEFAULT,
        client_memory: request.client_memory,
        home_budget: request.home_budget,
        lock: request.lock,
    }
}

/// The time of day, so that a restart knows how long the level rested.
#[expect(clippy::disallowed_methods, reason = "the host's clock, once per start")]
fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What a refusal says of the node.
#[derive(Default)]
struct About {
    /// Nothing was ever stored in its levels.
    is_new: bool,
    names: Names,
    /// Volumes that were never served.
    new: Vec<VolumeId>,
}

impl About {
    fn of(request: &ShardRequest) -> About {
        let is_new =
            |plan: &&VolumePlan| matches!(plan.backing, BackingPlan::File { create: true, .. });
        let new = request.volumes.iter().filter(is_new).map(|plan| plan.spec.id).collect();
        About { is_new: request.is_new, names: request.names.clone(), new }
    }

    fn name(&self, volume: VolumeId) -> String {
        self.names.quoted(volume)
    }
}

fn refused(error: &StartError, about: &About) -> Report {
    let what = match error {
        StartError::LevelDisk { name, .. } | StartError::Level { name, .. } => {
            format!("cannot open level `{name}`")
        }
        StartError::Home { volume, .. }
        | StartError::HomeShort { volume, .. }
        | StartError::HomeRefused { volume, .. }
        | StartError::Remote { volume, .. } => {
            format!("cannot open the home of volume {}", about.name(*volume))
        }
        StartError::Memory { name, .. } => format!("cannot have memory level `{name}`"),
        StartError::HomeFailed { name, .. } => format!("cannot recover into `{name}`"),
        StartError::Io(_) | StartError::Thread(_) => "cannot start the data path".to_owned(),
        StartError::Spec(_) => "cannot start a shard".to_owned(),
    };
    let (kind, state, hint) = remedy(error, about);
    Report::new(kind, what).cause(error.to_string()).state(state).hint(hint)
}

/// What to do where a backing store may not be written to.
pub(crate) const HOME_DENIED: &str = "let the node's user read and write the file or device, and \
    lift its write protection (`blockdev --setrw`); a device that can still be opened for writing \
    is served as a read-only volume (`--read-only`, `read_only = true`) where nothing waits to be \
    written back to it";

/// What to do where another device is at a volume's path.
pub(crate) const HOME_OTHER: &str = "names such as /dev/sdb change places: have the path lead to \
    the volume's own device again, by a name of `/dev/disk/by-id/` if it is made anew; where this \
    one holds the volume's bytes, start the node once with `--accept-device VOLUME`";

/// What to do where a strict start finds another device, or another node's file.
const HOME_REFUSED: &str = "have the path lead to the volume's own device or file, or mount the \
    directory of the node that the file belongs to; where this one is the volume's from now on, \
    start the node once with `--accept-device VOLUME`. Another node's file, without what that node \
    has not written back: with `--accept-file VOLUME` where this node never served the volume; \
    where it did, start without `--strict` and give the volume up with `layby volume delete --data \
    delete`, which leaves another node's file as it is";

/// What to do where another process has a backing file or device open.
pub(crate) const HOME_IN_USE: &str = "stop the other program that uses it";

/// What a refusal to open a backing file or device is: one that may pass is another process's lock.
pub(crate) fn open_kind(refused: ErrorKind) -> ReportKind {
    match refused {
        ErrorKind::Retry => ReportKind::InUse,
        other => other.into(),
    }
}

/// Kind of failure, state of the data, what to do.
fn remedy(error: &StartError, about: &About) -> (ReportKind, &'static str, &'static str) {
    let untouched = match about.is_new {
        true => "nothing was ever stored in these levels; the next start makes them anew",
        false => "what was stored is untouched; levels and volumes are as they were",
    };
    let kind = ReportKind::from(error.kind());
    match error {
        StartError::Level { error, .. } => {
            let (kind, hint) = level_remedy(error);
            (kind, untouched, hint)
        }
        // Not in use: a service manager is to start the node again.
        StartError::LevelDisk { error, .. } if error.is_gone => (
            ReportKind::Failure,
            untouched,
            "start the node again: no process is seen that has it locked, and the lock of one that \
             was killed goes when the kernel has ended its I/O; a node in another container is not \
             seen, and is to be stopped first",
        ),
        StartError::LevelDisk { error, .. } if error.kind == ErrorKind::Retry => (
            ReportKind::InUse,
            untouched,
            "stop the other program that uses it; one that has just ended may have I/O in flight",
        ),
        StartError::LevelDisk { error, .. } => (kind, untouched, level_disk_hint(error)),
        StartError::Home { error, .. } if error.kind == ErrorKind::Retry => {
            (ReportKind::InUse, untouched, HOME_IN_USE)
        }
        StartError::Home { error, .. } if error.kind == ErrorKind::Denied => {
            (kind, untouched, HOME_DENIED)
        }
        StartError::Memory { bytes, .. } => {
            let (kind, hint) = memory_remedy(*bytes, crate::memory::address_room());
            (kind, untouched, hint)
        }
        StartError::HomeShort { volume, .. } if about.new.contains(volume) => {
            (ReportKind::Invalid, untouched, "write a smaller size, or none to take all of it")
        }
        StartError::Home { .. } => {
            (kind, untouched, "put the file back or mount its disk; it is never made anew")
        }
        StartError::HomeRefused { .. } => (kind, untouched, HOME_REFUSED),
        StartError::HomeShort { .. } => {
            (ReportKind::Corrupt, untouched, "put the whole file back; it was longer once")
        }
        StartError::Remote { .. } => {
            (kind, untouched, "correct what the cause names, then start again")
        }
        StartError::HomeFailed { .. } => (
            kind,
            "nothing is lost; recovery goes on from the same place at the next start",
            "make room or correct the permissions, then start again",
        ),
        StartError::Thread(_) => (kind, untouched, crate::threads::MORE_THREADS),
        StartError::Io(_) => {
            (kind, untouched, "try --io epoll, or raise the limit on locked memory")
        }
        StartError::Spec(_) => (kind, untouched, "this is a bug; please report it with the log"),
    }
}

/// Kind of failure and what to do about memory that was not given, where limits leave the process
/// so much, if they say: as where it is tried before (`levels::check_memory`).
fn memory_remedy(bytes: u64, free: Option<u64>) -> (ReportKind, &'static str) {
    match free {
        Some(free) if bytes > free => {
            (ReportKind::Full, "give the machine, or the process (`ulimit -v`), more memory")
        }
        // No limit says so: other programs may have it, and give it back.
        _ => (ReportKind::Failure, crate::memory::GIVEN_LATER),
    }
}

const LEVEL_ALONE: &str = "give the level a file or device that it can use alone";
/// What to do about a level's device that fails: another one in its place would lose what it holds.
const LEVEL_DEVICE: &str = "see in the kernel's log what failed, and make the device work \
                            again or put it back; the data on it is kept, and blocks may be only \
                            there: `layby check` says what can be read";
const LEVEL_DENIED: &str = "let the node's user read and write the level's file or device, and \
                            lift its write protection (`blockdev --setrw`)";
const LEVEL_SMALL: &str = "give a new level more room; of one that was larger once, put the whole \
                           file or device back";

/// What to do about a level's file or device that cannot be opened.
fn level_disk_hint(error: &OpenError) -> &'static str {
    match Errno::from_raw_os_error(error.errno) {
        Errno::IO | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM | Errno::TIMEDOUT => LEVEL_DEVICE,
        _ if error.kind == ErrorKind::Denied => LEVEL_DENIED,
        _ => LEVEL_ALONE,
    }
}

/// Kind of failure and what to do about a level whose contents cannot be used.
fn level_remedy(error: &StoreError) -> (ReportKind, &'static str) {
    match error {
        StoreError::OtherNode { .. } => {
            (ReportKind::Corrupt, "put this node's own file back, or mount its own disk")
        }
        StoreError::NotFormatted { .. } => {
            (ReportKind::Corrupt, "put the level's file back; blocks may be only there")
        }
        StoreError::Older { .. } => (
            ReportKind::Corrupt,
            "put the newest file of the level back; where there is none, move this one away, and \
             volumes that had nothing dirty there are served",
        ),
        StoreError::OtherInstance { .. } => (
            ReportKind::Corrupt,
            "where an earlier build made the levels anew, all their files are newest: remove \
             `reached.json` and `reached.copy.json`, and start; a file from before levels were \
             made anew is an older copy: put the newest back, or move this one away",
        ),
        StoreError::Corrupt(_) => (
            ReportKind::Corrupt,
            "look with `layby check`; put a copy of the level back that no start came after, if \
             there is one",
        ),
        StoreError::Version { stored, expected, .. } if stored > expected => (
            ReportKind::Invalid,
            "install the version of Layby that wrote it, or a later one, and start the node again",
        ),
        StoreError::Version { .. } => {
            (ReportKind::Invalid, "start the node with the program that wrote it")
        }
        StoreError::Mismatch { .. } => (
            error.kind().into(),
            "set it back; a node keeps its block size, shards and levels for life",
        ),
        StoreError::Io { .. } => (error.kind().into(), LEVEL_DEVICE),
        StoreError::TooSmall { .. } => (error.kind().into(), LEVEL_SMALL),
    }
}

/// What a shard has to say, as a line of the log.
fn log(shard: u8, names: &Names, levels: &[String], notice: &Notice) {
    let named = |volume: VolumeId| names.text(volume);
    match notice {
        Notice::Cache(event) => log_event(shard, names, levels, event),
        Notice::LevelFailed(failed) => {
            let (level, remedy) = (&levels[failed.level], remedy_of(failed));
            tracing::error!(shard, level, "{failed}; {remedy}");
        }
        Notice::LevelWorks(failed) => {
            let (level, operation) = (&levels[failed.level], operation_of(failed));
            tracing::warn!(
                shard,
                level,
                device = failed.disk,
                operation,
                after = failed.seconds,
                "the device of the level works again"
            );
        }
        Notice::Corrupt(info) => tracing::error!(shard, "{info}"),
        Notice::SegmentRetired { disk, offset, slots: 0 } => tracing::error!(
            shard,
            disk,
            offset,
            "a segment failed for good, and too few are left: the level takes no new blocks; \
             replace the device"
        ),
        Notice::SegmentRetired { disk, offset, slots } => tracing::warn!(
            shard,
            disk,
            offset,
            slots,
            "a segment failed for good and is retired: the level is smaller"
        ),
        Notice::StreamsRefused { disk, errno } => tracing::warn!(
            shard,
            disk,
            errno,
            "the device offers write streams and refuses them; it is written without, and nothing \
             was lost"
        ),
        Notice::CheckpointFailed => {
            tracing::warn!(shard, "a checkpoint could not be written; it is tried again");
        }
        Notice::ClientBroken { peer, volume, reason } => {
            tracing::info!(shard, peer, volume = named(*volume), reason, "disconnected a client");
        }
        Notice::Stuck { place, volume, limit } => tracing::error!(
            shard, place, volume = volume.map(named), limit = %limit,
            "the device does not answer: requests that wait for it end with an error after the \
             limit (`io_timeout`), what was to be written there stays dirty"
        ),
        Notice::Answers { place, volume, span } => tracing::warn!(
            shard,
            place,
            volume = volume.map(named),
            after_ms = span.0 / 1_000_000,
            "the device answers again"
        ),
        Notice::IntentWanted { volume } => {
            tracing::debug!(shard, volume = named(*volume), "a write intent is wanted");
        }
        Notice::SocketRefused { errno } => {
            tracing::warn!(shard, errno, "a client's socket could not be taken over");
        }
    }
}

/// What the cache has to say, as a line of the log.
fn log_event(shard: u8, names: &Names, levels: &[String], event: &Event) {
    let named = |volume: VolumeId| names.text(volume);
    match event {
        Event::CorruptCleanDropped { key, level } => {
            let (volume, block) = (named(key.volume()), key.block().0);
            tracing::warn!(shard, volume, block, level = level.0, "dropped a corrupt clean block");
        }
        Event::CorruptDirtyKept { key, level } => tracing::error!(
            shard,
            volume = named(key.volume()),
            block = key.block().0,
            level = level.0,
            "a dirty block is corrupt or unreadable: reads of it fail until it is written again"
        ),
        Event::DestageFailed { volume, fault: DestageFault { level, kind } } => {
            let level = level.map(|level| levels[usize::from(level.0)].as_str());
            tracing::error!(
                shard, volume = named(*volume), level, cause = %kind,
                "cannot write back; dirty blocks stay where they are and are tried again"
            );
        }
        Event::DestageRecovered { volume } => {
            tracing::info!(shard, volume = named(*volume), "writing back works again");
        }
    }
}

/// An operation of a level's device in the words of its users.
pub(crate) fn operation_of(failed: &FailedLevel) -> &'static str {
    match failed.failure.operation {
        OperationKind::Sync => "flush",
        OperationKind::Read => "read",
        _ => "write",
    }
}

/// The state of the data, and what to do about a level's device that failed.
pub(crate) fn remedy_of(failed: &FailedLevel) -> &'static str {
    match failed.failure.operation {
        OperationKind::Sync => LEVEL_UNTRUSTED,
        OperationKind::Read => {
            "what cannot be read elsewhere is an error to its readers: look at the device"
        }
        _ => {
            "such writes end with errors, and flushes may until the device works again; what was \
             flushed is there: look at the device"
        }
    }
}

/// What is told of a level of which a flush failed.
const LEVEL_UNTRUSTED: &str = "the level is not trusted until the node starts again: flushes that \
                               need it fail, and nothing that a flush did not cover is written \
                               back; what was flushed is there, and a start reads it: look at the \
                               device, then restart the node";

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is not ours is named as unsound data with a remedy, and every refusal is whole.
    /// Method: one error of each kind.
    #[test]
    fn refusals_are_whole() {
        let level = |error| StartError::Level { name: "ssd".into(), path: "x".into(), error };
        let disk = || "x".to_owned();
        let other =
            StoreError::OtherNode { disk: disk(), offset: 0, stored: [1; 16], expected: [2; 16] };
        let blank = StoreError::NotFormatted { disk: disk(), offset: 0, stored: 0, expected: 1 };
        let old = StoreError::Version { disk: disk(), offset: 0, stored: 9, expected: 1 };
        let locked = |is_gone| StartError::LevelDisk {
            name: "ssd".into(),
            error: layby_engine::io::OpenError {
                kind: ErrorKind::Retry,
                path: "x".into(),
                step: "lock",
                errno: rustix::io::Errno::AGAIN.raw_os_error(),
                is_gone,
            },
        };
        let short = StartError::HomeShort {
            volume: VolumeId(3),
            path: "home".into(),
            length: 1,
            needed: 2,
        };
        for (error, kind, word) in [
            (level(other), ReportKind::Corrupt, "level `ssd`"),
            (level(blank), ReportKind::Corrupt, "level `ssd`"),
            (level(old), ReportKind::Invalid, "level `ssd`"),
            (locked(false), ReportKind::InUse, "level `ssd`"),
            // A service manager starts the node again.
            (locked(true), ReportKind::Failure, "level `ssd`"),
            (short, ReportKind::Corrupt, "volume number 3"),
            (StartError::Spec("x".into()), ReportKind::Invalid, "shard"),
            (StartError::Memory { name: "dram".into(), bytes: 1 }, ReportKind::Failure, "`dram`"),
        ] {
            let report = refused(&error, &About::default());
            assert_eq!(report.kind, kind, "{report}");
            assert!(report.error.contains(word), "{report}");
            assert!(!report.cause.is_empty() && !report.hint.is_empty(), "{report}");
        }
    }

    /// Goal: no start's hint takes away a level's device that failed: dirty blocks may be only
    /// there. Method: an I/O error of what it holds, and of its opening; refusals of other kinds.
    #[test]
    fn a_level_that_fails_is_kept() {
        let store = |error| StartError::Level { name: "ssd".into(), path: "x".into(), error };
        let disk = |errno: Errno, kind| {
            let (path, errno) = ("x".into(), errno.raw_os_error());
            let error = OpenError { kind, path, step: "open", errno, is_gone: false };
            StartError::LevelDisk { name: "ssd".into(), error }
        };
        let errno = Errno::IO.raw_os_error();
        let failed = StoreError::Io { disk: "x".into(), offset: 0, errno };
        let small = StoreError::TooSmall { disk: "x".into(), length: 1, minimum: 2 };
        for (error, word) in [
            (store(failed), "kernel's log"),
            (store(small), "more room"),
            (disk(Errno::IO, ErrorKind::Corrupt), "kernel's log"),
            (disk(Errno::NXIO, ErrorKind::Invalid), "kernel's log"),
            (disk(Errno::ACCESS, ErrorKind::Denied), "let the node's user"),
            (disk(Errno::INVAL, ErrorKind::Invalid), "use alone"),
        ] {
            let hint = refused(&error, &About::default()).hint;
            assert!(hint.contains(word), "{error}: {hint}");
            let is_device = word == "kernel's log";
            assert_eq!(hint.contains("put it back") && hint.contains("is kept"), is_device);
        }
    }

    /// Goal: memory that a shard is not given is judged as where the start tries it: a limit that
    /// forbids it is for an operator, all else may pass. Method: rooms below and above what it asks
    /// for, and none known.
    #[test]
    fn memory_that_a_shard_is_not_given_may_be_later() {
        for (free, kind, code) in [
            (None, ReportKind::Failure, 1),
            (Some(1 << 20), ReportKind::Failure, 1),
            (Some((1 << 20) - 1), ReportKind::Full, 8),
        ] {
            let (found, hint) = memory_remedy(1 << 20, free);
            assert_eq!((found, found.exit_code()), (kind, code), "{free:?}");
            assert_eq!(hint.contains("start it again"), kind == ReportKind::Failure, "{hint}");
        }
    }
}
