//! What the control plane may ask of a running shard, and what a shard reports.
//!
//! How: commands travel through a channel and a waker; answers come back through a callback that
//! the sender put into the command, so the engine knows no runtime.
//! Invariant: a command is answered exactly once; a shard that stops answers `Closed` to the rest.
//! Cost: one clone of the counters per snapshot; nothing on the data path.

mod call;

pub use call::CallEvent;

use crate::backing::{PartPlan, RemoteBacking};
use crate::core::ClassLatency;
use crate::io::{DeviceLoad, HintState, Host, IoError, OperationKind, SocketId, Waker};
use crate::link::{FarEnd, NearEnd};
use crate::store::{DeviceFailure, Reached};
use hdrhistogram::Histogram;
use layby_cache::discards::{DiscardCount, DiscardCounters, DiscardLimits};
use layby_cache::schedule::Rank;
use layby_cache::throttle::{LimitPlan, Waits};
use layby_cache::{CacheSpec, DestageFault, LEVELS_MAX, Observation, VolumeSpec};
use layby_types::{Cipher, ErrorKind, GuestRing, Nanos, Operation, VolumeId};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Where a volume's blocks live for good.
#[derive(Clone, Debug)]
pub enum BackingPlan {
    /// A file or a block device.
    File {
        /// Where.
        path: PathBuf,
        /// Create the file, sparse and of the volume's length, if it is missing.
        create: bool,
    },
    /// A part's stripes of a wide volume's file or device, which is there.
    Part {
        /// Where.
        path: PathBuf,
        /// Which part.
        part: PartPlan,
    },
    /// What is at the volume's path is not its own, or cannot be had. It is not opened: a stand-in
    /// takes its place.
    Refused {
        /// Where.
        path: PathBuf,
        /// What to do about it.
        kind: ErrorKind,
        /// Why.
        cause: String,
        /// Which part of a wide volume, if it is one.
        part: Option<PartPlan>,
    },
    /// Something that brings its own threads.
    Remote(Arc<dyn OpenRemote>),
}

impl BackingPlan {
    /// A name for reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            BackingPlan::File { path, .. }
            | BackingPlan::Part { path, .. }
            | BackingPlan::Refused { path, .. } => path.display().to_string(),
            BackingPlan::Remote(remote) => remote.name(),
        }
    }
}

/// The way to a remote home, made by whoever owns it; see [`RemoteBacking`] for what it is held to.
pub trait OpenRemote: fmt::Debug + Send + Sync {
    /// A name for reports.
    fn name(&self) -> String;
    /// The shard's end of the home, which calls `waker` whenever a call has ended. It runs on the
    /// shard's thread, so whatever takes long has been done before; dropping the answer gives the
    /// home up, and must not take long either.
    ///
    /// # Errors
    /// Why it cannot be had, as a sentence with cause.
    fn open(&self, waker: Waker) -> Result<RemoteBacking, CommandError>;
}

/// A volume to serve.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// What the cache must know.
    pub spec: VolumeSpec,
    /// Its home.
    pub backing: BackingPlan,
    /// Its backing store has all of it, and it has no write intent: changes wait for one.
    pub is_clean: bool,
    /// No client may write to it, so that its device may be write-protected.
    pub is_read_only: bool,
}

/// A client, by the number that the control plane gave it; not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What a client asks of its shard now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLoad {
    /// Which client.
    pub client: ClientId,
    /// Requests that are not answered yet.
    pub inflight: u32,
    /// Bytes that these read or write.
    pub inflight_bytes: u64,
}

/// A client whose handshake is done.
pub struct Connection<S> {
    /// Its number.
    pub client: ClientId,
    /// The socket, set non-blocking; none once a shard has taken it.
    pub socket: Option<OwnedFd>,
    /// Decrypts and encrypts, under TLS.
    pub cipher: Option<Box<dyn Cipher>>,
    /// The protocol's transmission phase.
    pub session: S,
    /// The volume it talks to.
    pub volume: VolumeId,
    /// Bytes that arrived behind the handshake, still encrypted under TLS.
    pub received: Vec<u8>,
    /// Clear bytes that the handshake still has to send.
    pub pending: Vec<u8>,
    /// Who it is, for the log.
    pub peer: String,
}

impl<S> Connection<S> {
    /// Hands the socket to a shard's I/O; a connection is attached once.
    pub(crate) fn take_socket(&mut self, io: &mut impl Host) -> Result<SocketId, IoError> {
        let socket = self.socket.take().expect("a connection is attached once");
        io.attach_socket(socket)
    }
}

/// A connection of a guest's monitor; no two of a process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorId(pub u64);

/// A queue of a guest's disk, to be served.
pub struct GuestQueue {
    /// Whose queue it is, where that may leave without waiting for answers.
    pub monitor: Option<MonitorId>,
    /// The volume it is of.
    pub volume: VolumeId,
    /// The queue in the guest's memory.
    pub ring: Box<dyn GuestRing>,
    /// The event descriptor by which the guest says that there is more.
    pub kick: OwnedFd,
    /// How the guest hears of answers.
    pub call: CallEvent,
    /// Who it is, for the log.
    pub peer: String,
}

/// Called with a command's result on the shard's thread; it must not block.
pub type Answer<T> = Box<dyn FnOnce(Result<T, CommandError>) + Send>;

/// Why a command failed, as a sentence with cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// Sorted by remedy.
    pub kind: ErrorKind,
    /// What happened and why.
    pub cause: String,
}

/// What the control plane asks of a shard.
pub enum Command<S> {
    /// Serve a client from now on.
    Attach(Box<Connection<S>>),
    /// Serve a guest's queue from now on; answers with its number, which is good until its stop.
    StartQueue(Box<GuestQueue>, Answer<u32>),
    /// Take no more from a queue; answers, when all that was taken is answered or abandoned, with
    /// where the next request would be taken. The queue's memory is not touched afterwards. Within
    /// bounds abandoned is what a monitor's queues have in flight once that has left. Where `marks`
    /// will do, so is what the ring marks for its next server, while the volume's backing store is
    /// an object store.
    StopQueue {
        /// The queue.
        number: u32,
        /// Requests may stay in flight by their marks.
        marks: bool,
        /// The answer.
        answer: Answer<u16>,
    },
    /// A monitor has left, or resets its device: stops of its queues, those that wait too, do not
    /// wait for answers any more.
    AbandonQueues(MonitorId),
    /// Add a volume (opening or creating its backing).
    AddVolume(VolumePlan, Answer<()>),
    /// Serve what another shard asks of this one's part of a wide volume, until it asks no more.
    StartLink {
        /// The part.
        volume: VolumeId,
        /// Where its calls come from.
        end: FarEnd,
        /// They are whole requests, to be held back by limits and dealt to parts here.
        is_lead: bool,
        /// When it is served.
        answer: Answer<()>,
    },
    /// The other parts of a wide volume are reached by these links, by part, with none for the
    /// shard's own; from now on its clients are served.
    Join {
        /// The part.
        volume: VolumeId,
        /// The ways to the others.
        links: Vec<Option<NearEnd>>,
        /// The way to the first part's shard for whole requests, but for that part itself.
        lead: Option<NearEnd>,
        /// When clients may come.
        answer: Answer<()>,
    },
    /// Close a wide volume's clients and ask nothing more of its other parts; what was asked of
    /// them ends without them.
    Unjoin(VolumeId, Answer<()>),
    /// Change a volume's class, shares or length. A home grows with its volume and keeps its length
    /// when that shrinks. Of a wide volume it is the part's length, and its home's stays.
    SetVolume(VolumeSpec, Answer<()>),
    /// Change the length of a volume's home: a wide one's before its parts grow, any one's after it
    /// shrank and that is written down, since no start takes a home that is shorter than its
    /// volume. Each part is told.
    ResizeHome {
        /// The volume, or the part.
        volume: VolumeId,
        /// Bytes that the whole volume had: a file that is longer keeps the rest.
        before: u64,
        /// Bytes of the whole volume.
        length: u64,
        /// When done.
        answer: Answer<()>,
    },
    /// Destage what is dirty, close its clients and forget the volume; its backing file stays.
    /// With `discard` dirty blocks are dropped instead.
    RemoveVolume {
        /// Which volume.
        volume: VolumeId,
        /// Drop dirty blocks instead of destaging them.
        discard: bool,
        /// When done.
        answer: Answer<()>,
    },
    /// Close a volume's clients, let none in, and destage what is dirty: from the answer on it can
    /// be removed at once, without a wait for its backing store. Where that fails, it is served
    /// again. With `discard` dirty blocks stay, and only what is in flight ends. What waits for an
    /// object store ends with an error, until the store's owner resumes the volume.
    Quiesce {
        /// Which volume.
        volume: VolumeId,
        /// Dirty blocks stay.
        discard: bool,
        /// When done.
        answer: Answer<()>,
    },
    /// Serve a volume again that was quiesced, and is not to be removed.
    Reopen(VolumeId, Answer<()>),
    /// End what goes on of a shrink of a volume, or of [`Command::Quiesce`], with an error: the
    /// volume is to be deleted.
    BreakOff(VolumeId, Answer<()>),
    /// Change classes, shares, watermarks and limits; levels keep their kind and size.
    Reconfigure(CacheSpec, Answer<()>),
    /// Destage every dirty block of a volume, or of all.
    Drain(Option<VolumeId>, Answer<()>),
    /// Destage every dirty block of a volume, and hold its changes from now on. Answers with true
    /// when its backing store has all of it: its write intent may be removed. A change that comes
    /// before goes on; then the answer is false.
    Clean(VolumeId, Answer<bool>),
    /// A volume's write intent is recorded, durably: its changes may start.
    RecordIntent(VolumeId, Answer<()>),
    /// A volume's write intent, which the shard wants, cannot be recorded now: its changes end with
    /// this error until it is.
    RefuseIntent(VolumeId, ErrorKind, Answer<()>),
    /// Note the requests of clients to these volumes, or to all where none is named.
    StartRecording(Vec<VolumeId>, Answer<()>),
    /// Hand over what was noted since the last time, and note nothing more with `end`.
    TakeRecorded {
        /// Nothing more is to be noted.
        end: bool,
        /// What was noted.
        answer: Answer<RecordedBatch>,
    },
    /// Count what was noted and not handed over, and what found no room.
    CountRecorded(Answer<RecordedCount>),
    /// End a period of some volumes and report what it showed; the first time begins the watch.
    Observe {
        /// Which volumes; few at a time, since a curve is made of each.
        volumes: Vec<VolumeId>,
        /// How much the past counts from now on, from 0 to 1.
        keep: f64,
        /// What it showed.
        answer: Answer<Observed>,
    },
    /// Give volumes the shares that they were sized, in slots by level, or take them away.
    SetSized(Vec<(VolumeId, Option<[u32; LEVELS_MAX]>)>, Answer<()>),
    /// Replace the limits of all volumes and classes, for requests that wait too.
    SetLimits(LimitPlan, Answer<()>),
    /// Send requests of these parts' volumes whole to the shards of their first parts, where their
    /// limits are; those of others are dealt by the client's shard.
    SetLed(Vec<VolumeId>, Answer<()>),
    /// Replace how discards reach the homes of all volumes; those not named go at once.
    SetDiscards(Vec<(VolumeId, DiscardLimits)>, Answer<()>),
    /// How much room is free where the homes of some volumes lie, in thousandths: an adaptive delay
    /// of discards is short where it is little.
    SetFree(Vec<(VolumeId, u16)>, Answer<()>),
    /// Refuse changes to a volume that come from now on, or refuse them no more. What clients were
    /// told when they entered stays; those who were told that it cannot be changed are refused.
    SetReadOnly(VolumeId, bool, Answer<()>),
    /// Close clients' connections now; those that are not there are passed over.
    CutClients(Vec<ClientId>, Answer<()>),
    /// Report what each client asks for.
    Clients(Answer<Vec<ClientLoad>>),
    /// Cut off the client that has moved nothing for the longest time, at least this long, and has
    /// nothing in flight; answers with whether there was one.
    DropIdle(Nanos, Answer<bool>),
    /// Report counters.
    Snapshot(Answer<Box<Snapshot>>),
    /// Stop: finish requests, make everything durable, write a checkpoint, end the thread. Answers
    /// with an error that names what could not be made durable.
    Stop(Answer<()>),
}

/// Sends commands to one shard.
pub struct ShardSender<S> {
    pub(crate) commands: Sender<Command<S>>,
    pub(crate) waker: Waker,
}

impl<S> ShardSender<S> {
    /// Hands a command over and wakes the shard; gives it back when the shard has ended.
    ///
    /// # Errors
    /// The command itself, when nobody will ever receive it.
    pub fn send(&self, command: Command<S>) -> Result<(), Box<Command<S>>> {
        self.commands.send(command).map_err(|back| Box::new(back.0))?;
        self.waker.wake();
        Ok(())
    }
}

impl<S> Clone for ShardSender<S> {
    fn clone(&self) -> Self {
        ShardSender { commands: self.commands.clone(), waker: self.waker.clone() }
    }
}

/// A client's request, as a trace keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When the turn began that parsed it, by the shard's clock.
    pub at: Nanos,
    /// To which volume.
    pub volume: VolumeId,
    /// `Read`, `Write`, `Trim` (also for a zeroing) or `Flush`.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes; zero for a flush.
    pub length: u64,
}

/// What one shard has recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedBatch {
    /// In the order of their time.
    pub requests: Vec<RecordedRequest>,
    /// No later batch holds a request before this, by the shard's clock.
    pub until: Nanos,
    /// The shard's zero, by the system's monotonic clock; the clocks of shards differ.
    pub clock: Nanos,
    /// Requests for which there was no room since the recording began.
    pub dropped: u64,
}

/// What a recorder would find at one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedCount {
    /// Requests that were noted and not handed over.
    pub waiting: u64,
    /// Requests for which there was no room since the recording began.
    pub dropped: u64,
}

/// Requests and bytes of one kind, with their latency.
#[derive(Clone, Debug)]
pub struct OperationStats {
    /// Completed requests, failed ones included.
    pub requests: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Requests that ended in an error.
    pub errors: u64,
    /// Nanoseconds from parsed to answered.
    pub latency_ns: Histogram<u64>,
}

/// A volume's counters since the shard started.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Which volume.
    pub volume: VolumeId,
    /// Reads.
    pub read: OperationStats,
    /// Writes.
    pub write: OperationStats,
    /// Flush, trim, write-zeroes, cache and block-status requests together.
    pub other: OperationStats,
    /// Blocks read that were found in each level, by level index.
    pub hits: Vec<u64>,
    /// Blocks read that no level had.
    pub misses: u64,
    /// Slots held in each level.
    pub slots: Vec<u64>,
    /// Slots held in each level that are dirty.
    pub slots_dirty: Vec<u64>,
    /// Clients connected now.
    pub connections: u64,
    /// Requests in flight now.
    pub queue_depth: u64,
    /// How requests have waited for a limit of the volume or its class, before they were counted
    /// above.
    pub waits: Waits,
    /// What became of its discards on their way to its home.
    pub discards: DiscardStats,
    /// Blocks whose newest version is not known: errors until they are written whole.
    pub lost: u64,
    /// Requests answered with an error since a device or backing store did not answer.
    pub timed_out: u64,
    /// Why its blocks could not be written back the last time, if they could not.
    pub destage_fault: Option<DestageFault>,
}

/// A device or backing store that owes an end for longer than it may.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StuckPlace {
    /// The level, where it is a level's.
    pub level: Option<usize>,
    /// The volume, where it is a volume's backing store.
    pub volume: Option<VolumeId>,
    /// Seconds since its oldest operation began.
    pub seconds: f64,
}

/// A level whose device has failed to do something, and has not done its like since.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedLevel {
    /// The level.
    pub level: usize,
    /// The device's or file's path.
    pub disk: String,
    /// The first operation that failed.
    pub failure: DeviceFailure,
    /// Seconds since then.
    pub seconds: f64,
}

impl fmt::Display for FailedLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceFailure { operation, offset, length, error } = self.failure;
        let disk = &self.disk;
        match operation {
            OperationKind::Sync => write!(f, "the flush of `{disk}` failed: {error}"),
            _ => {
                let word = if operation == OperationKind::Read { "read" } else { "write" };
                write!(f, "a {word} of {length} bytes at {offset} of `{disk}` failed: {error}")
            }
        }
    }
}

/// A volume's or a level's discards since the shard started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardStats {
    /// What became of them.
    pub counters: DiscardCounters,
    /// What waits now.
    pub pending: DiscardCount,
    /// How long ranges wait now.
    pub delay: Nanos,
    /// Ranges that the home or device refused; those of a home wait again.
    pub refused: u64,
}

/// What a period showed of a volume.
#[derive(Clone, Debug)]
pub struct VolumeObserved {
    /// Curves, hits, room.
    pub cache: Observation,
    /// Read requests that ended.
    pub reads: u64,
    /// Nanoseconds that they waited in sum.
    pub read_wait_ns: u64,
}

/// What a period showed of a shard.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Of the volumes that were asked for and were watched already.
    pub volumes: Vec<VolumeObserved>,
    /// Mean nanoseconds of a fetch from each level since the last time; `None` where there was
    /// none, as from levels that are memory.
    pub levels_read_ns: Vec<Option<f64>>,
    /// The same for the volumes' homes.
    pub home_read_ns: Option<f64>,
}

/// A level's counters since the shard started.
#[derive(Clone, Debug, Default)]
pub struct LevelStats {
    /// Slots of the level.
    pub slots: u64,
    /// Slots in use.
    pub slots_used: u64,
    /// Slots that are dirty.
    pub slots_dirty: u64,
    /// Seconds since the oldest dirty block became dirty; zero when none is.
    pub dirty_age_seconds: f64,
    /// Blocks read from the level for clients.
    pub hits: u64,
    /// Blocks written into the level.
    pub writes: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Blocks destaged from the level to the backing stores.
    pub destaged: u64,
    /// Bytes written to the device, metadata included.
    pub device_bytes_written: u64,
    /// Blocks copied by the cleaner.
    pub cleaned: u64,
    /// Blocks that the cleaner dropped instead.
    pub cleaning_dropped: u64,
    /// Blocks that were destaged for it, to be dropped.
    pub cleaning_destaged: u64,
    /// Of those dropped, blocks out of what is reserved: none, ever.
    pub cleaning_reserved: u64,
    /// Records that failed their checksum.
    pub corrupt: u64,
    /// Bytes of metadata held in memory for the level.
    pub metadata_bytes: u64,
    /// Of those, bytes of the index that no block uses: a hash table is never full.
    pub metadata_slack_bytes: u64,
    /// Operations waiting for room in the level now.
    pub waiting: u64,
    /// How the level wears, where it is flash.
    pub wear: Option<WearStats>,
    /// Segments of its log, where it has one.
    pub segments: u64,
    /// Of these, never used again since they failed.
    pub segments_retired: u64,
    /// Of these, out of use until they are tested.
    pub segments_suspect: u64,
    /// Of these, segments with a block that can be neither read nor moved.
    pub segments_damaged: u64,
    /// Bytes of one of its segments.
    pub segment_bytes: u64,
    /// What became of freed segments on their way to the device, where it has a log.
    pub discards: Option<DiscardStats>,
    /// What its device hears of how long writes live, where it has a log.
    pub hints: Option<HintState>,
}

/// How a level's flash wears. Bytes by cause are since the shard started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WearStats {
    /// Bytes of blocks that clients wrote or that came from a level above.
    pub bytes_written: u64,
    /// Bytes of clean copies of what was read.
    pub bytes_promoted: u64,
    /// Bytes of blocks that the log's cleaner copied.
    pub bytes_cleaned: u64,
    /// Bytes of the log's headers, descriptors and forgets.
    pub bytes_descriptors: u64,
    /// Bytes of checkpoints.
    pub bytes_checkpoints: u64,
    /// All bytes ever written to the level, in earlier lives, too.
    pub bytes_lifetime: u64,
    /// Bytes that it can be written in its life, where that is known.
    pub endurance_bytes: Option<u64>,
    /// Bytes that a day may take of them.
    pub daily_budget_bytes: Option<u64>,
    /// Bytes that may be written now; negative when more was than the budget allows.
    pub budget_left_bytes: Option<i64>,
    /// Bytes per day, averaged over an hour, a day and a week.
    pub daily_rates: [Option<f64>; 3],
    /// Blocks read that were not kept in the level, to spare it.
    pub copies_refused: u64,
    /// Dirty blocks that went home instead.
    pub dirty_passed_by: u64,
}

/// What a rank asks for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankStats {
    /// Which.
    pub rank: Rank,
    /// Clients whose requests wait for their turn.
    pub clients_waiting: u64,
    /// Bytes of requests in the core's hands.
    pub bytes_inflight: u64,
}

/// A shard's counters.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Per volume.
    pub volumes: Vec<VolumeStats>,
    /// Per level, fastest first.
    pub levels: Vec<LevelStats>,
    /// Device operations in flight now.
    pub io_inflight: u64,
    /// Blocks fetched from the backing stores, read-ahead included.
    pub backing_blocks_read: u64,
    /// Of these, blocks fetched ahead.
    pub backing_blocks_read_ahead: u64,
    /// Writes that the backing stores ended well: destaged runs, and writes past all levels.
    pub backing_writes: u64,
    /// Blocks in them; zeroings are in neither.
    pub backing_blocks_written: u64,
    /// Latency by class, in the order of the specification's.
    pub classes: Vec<ClassLatency>,
    /// Requests that wait to be served, by rank.
    pub ranks: Vec<RankStats>,
    /// Devices that ranks below the best have used.
    pub devices: Vec<DeviceLoad>,
    /// What clients' connections hold in memory.
    pub client_memory: ClientMemoryStats,
    /// What does not answer now.
    pub stuck: Vec<StuckPlace>,
    /// Levels whose device fails now.
    pub failed: Vec<FailedLevel>,
    /// Nanoseconds the shard's thread has spent on a CPU.
    pub cpu_ns: u64,
    /// Requests in flight now.
    pub queue_depth: u64,
    /// Seconds the shard has been running.
    pub uptime_seconds: f64,
}

/// What clients' connections hold, beyond what each holds free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientMemoryStats {
    /// Bytes charged now.
    pub bytes_held: u64,
    /// Requests that had to wait since the start.
    pub waits: u64,
}

/// What recovery found when the shard started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartReport {
    /// How I/O is done: "io_uring", "epoll and 4 threads".
    pub io: String,
    /// A line per level: its kind, size, how it becomes durable.
    pub levels: Vec<String>,
    /// Persistent levels, by number, whose file lies in a memory file system.
    pub in_memory: Vec<usize>,
    /// Blocks recovered dirty and clean.
    pub blocks_dirty: u64,
    /// Blocks recovered clean.
    pub blocks_clean: u64,
    /// Writes that were in flight when the node died, never acknowledged as durable, and dropped.
    pub torn_batches: u64,
    /// Bytes of log read.
    pub bytes_scanned: u64,
    /// Blocks whose newest record is corrupt: reads fail until they are written again.
    pub blocks_lost: u64,
    /// Blocks that lay behind their volume's end, where no backing store takes them; dropped.
    pub blocks_behind_end: u64,
    /// Dirty blocks of volumes that the node does not have, by volume; dropped.
    pub unknown: Vec<(VolumeId, u64)>,
    /// Blocks whose newest version is not known, since a structure was damaged, at this start or an
    /// earlier one, by volume.
    pub undecided: Vec<LostRange>,
    /// Volumes whose home could not be opened: what the levels hold of them is kept, and no client
    /// may reach them.
    pub absent: Vec<HomeRefusal>,
    /// How far each persistent level has durably come, by its number: at the next start it has come
    /// at least as far. A log whose checkpoint failed is left out.
    pub reached: Vec<(usize, Reached)>,
    /// The log, where there is one, has its checkpoint.
    pub is_checkpointed: bool,
    /// Milliseconds from start to ready.
    pub recovery_ms: u64,
}

/// Why a volume's home could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeRefusal {
    /// The volume, or the part of one.
    pub volume: VolumeId,
    /// By remedy.
    pub kind: ErrorKind,
    /// Why.
    pub cause: String,
}

/// Ranges of a volume that are named where it has lost some, at most.
pub const LOST_NAMED_MAX: usize = 16;

/// What is not known of a volume, or of a shard's part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The volume, or the part.
    pub volume: VolumeId,
    /// Blocks that are lost.
    pub blocks: u64,
    /// In so many ranges of the volume, also where this is a part: in each stripe of its own.
    pub ranges: u64,
    /// The first [`LOST_NAMED_MAX`] of them: a first byte and a length each.
    pub named: Vec<(u64, u64)>,
}
