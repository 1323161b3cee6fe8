//! The words and flags of the program, and the help that describes them.
//!
//! How: `clap` reads these types; the manual pages are made from them too.
//! Invariant: one word per idea: a flag is called as its key in the configuration and its field in
//! the API.

mod check;
mod class;
mod client;
mod discard;
mod salvage;

pub(crate) use check::{CheckArguments, RestoreArguments};
pub(crate) use class::{ClassArguments, ClassCommand, ClassSetArguments};
pub(crate) use client::{ClientArguments, ClientCommand, DisconnectArguments};
pub(crate) use discard::DiscardArguments;
pub(crate) use salvage::SalvageArguments;

use crate::demo::DemoArguments;
use crate::lab::LabArguments;
use crate::mrc::MrcArguments;
use crate::probe::ProbeArguments;
use crate::record::RecordArguments;
use crate::replay::ReplayArguments;
use crate::trace::TraceArguments;
use clap::{Args, Parser, Subcommand, ValueEnum};
use layby_daemon::config::{
    Address, Admission, AllowRule, Amount, Bandwidth, CloneSource, CompressionChange,
    CompressionChoice, DIR_DEFAULT, IoChoice, KeySource, LimitsConfig, Name, Percent, SHARDS_MAX,
    SHARDS_MIN, Size, Time, UplinkWindow,
};
use layby_daemon::logging::LogFormat;
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed for a reason that no other code describes
  2  the words, the configuration or a value are wrong
  3  stored data is unsound
  4  somebody else holds what is needed: a directory, a port, a name
  5  no node answers
  6  the thing named does not exist
  7  not permitted
  8  no room
  9  a page of a mapped level could not be had: its file system is full, or its device failed

Start here:
  layby demo               see what priorities do, in under a minute
  layby serve              run a node in ./layby-node
  layby volume list        what it serves";

/// Storage at the side of the road: block volumes through priority levels of DRAM, NVM and SSD.
#[derive(Debug, Parser)]
#[command(name = "layby", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Layby {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArguments),
    Demo(DemoArguments),
    Volume(VolumeArguments),
    Class(ClassArguments),
    Client(ClientArguments),
    Level(LevelArguments),
    Writeback(WritebackArguments),
    Uplink(UplinkArguments),
    Status(StatusArguments),
    Record(RecordArguments),
    Trace(TraceArguments),
    Replay(ReplayArguments),
    Mrc(MrcArguments),
    Lab(LabArguments),
    Probe(ProbeArguments),
    Check(CheckArguments),
    Restore(RestoreArguments),
    Salvage(SalvageArguments),
    Manual(ManualArguments),
}

const SERVE_EXAMPLES: &str = "\
Examples:
  layby serve
  layby serve --dir /srv/layby --config /etc/layby.toml --listen 0.0.0.0:10809
  nbdinfo 'nbd+unix:///vol0?socket=layby-node/layby.sock'

A line that begins with `ready` says that clients may come. SIGTERM and SIGINT stop the node
cleanly; before that line they end the start, with exit code 0, too, and nothing is lost.
LAYBY_LOG sets what is logged to standard error: error, warn, info, debug or trace.";

/// Run a node: serve volumes over NBD, and the control API
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArguments {
    /// The node's directory, made when it is missing [default: `dir` of FILE's `[node]`, else
    /// layby-node]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration in TOML; `-` is standard input [default: DIR/layby.toml where there is one]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// TCP address for NBD clients, such as localhost:10809 (can be repeated) [default: none]
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Vec<Address>,
    /// Unix socket for NBD clients [default: DIR/layby.sock]
    #[arg(short, long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Loopback address of the control API, or `off` [default: a free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) http: Option<String>,
    /// Any address for metrics and health, which takes no changes [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<Address>,
    /// Folder beside DIR where commands may place volumes (can be repeated) [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) volume_root: Vec<PathBuf>,
    /// Volume whose device may be another one than before (can be repeated) [default: none]
    #[arg(long, value_name = "VOLUME")]
    pub(crate) accept_device: Vec<Name>,
    /// Volume whose backing file is taken over from another node, without what that node has not
    /// written back; refused where this node may have older blocks of it (can be repeated)
    /// [default: none]
    #[arg(long, value_name = "VOLUME")]
    pub(crate) accept_file: Vec<Name>,
    /// Threads of the data path, fixed for the node's life [default: one per two cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8)
          .range(i64::from(SHARDS_MIN)..=i64::from(SHARDS_MAX)))]
    pub(crate) shards: Option<u8>,
    /// Give up what the levels' files and devices hold: on a node's first start, or where a level
    /// is lost and no volume waits for it; else it is refused
    #[arg(long)]
    pub(crate) format: bool,
    /// How the data path talks to the kernel
    #[arg(long, value_name = "NAME")]
    pub(crate) io: Option<IoArgument>,
    /// How the log is written to standard error
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub(crate) log_format: LogFormatArgument,
    /// Do not start where damage leaves open which version of some blocks is the newest, or a level
    /// is lost; else such blocks are errors until they are written whole, and the node goes without
    /// the level
    #[arg(long)]
    pub(crate) strict: bool,
    /// After a kill, lose everything that was not durable, as a power cut would (tests only)
    #[arg(long, hide = true)]
    pub(crate) simulate_power_loss: bool,
    /// Let volumes' homes seem slower by this (tests and demonstrations only)
    #[arg(long, hide = true, value_name = "TIME")]
    pub(crate) home_delay: Option<Time>,
}

/// [`IoChoice`] as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum IoArgument {
    Auto,
    IoUring,
    Epoll,
}

impl From<IoArgument> for IoChoice {
    fn from(io: IoArgument) -> Self {
        match io {
            IoArgument::Auto => IoChoice::Auto,
            IoArgument::IoUring => IoChoice::IoUring,
            IoArgument::Epoll => IoChoice::Epoll,
        }
    }
}

/// [`LogFormat`] as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormatArgument {
    Human,
    Json,
}

impl From<LogFormatArgument> for LogFormat {
    fn from(format: LogFormatArgument) -> Self {
        match format {
            LogFormatArgument::Human => LogFormat::Human,
            LogFormatArgument::Json => LogFormat::Json,
        }
    }
}

/// [`Admission`] as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AdmissionArgument {
    /// All
    All,
    /// Those that are missed again: keeps scans out
    SecondMiss,
}

impl From<AdmissionArgument> for Admission {
    fn from(admission: AdmissionArgument) -> Self {
        match admission {
            AdmissionArgument::All => Admission::All,
            AdmissionArgument::SecondMiss => Admission::SecondMiss,
        }
    }
}

/// Which node to talk to, and how to answer.
#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    /// The node's directory
    #[arg(short, long, value_name = "DIR", default_value = DIR_DEFAULT)]
    pub(crate) dir: PathBuf,
    /// The node's control socket [default: DIR/control.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// How long the node may take for an answer; what waits for devices or stores has no limit
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) timeout: Time,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// One level's part, written `LEVEL=AMOUNT`.
pub(crate) type LevelAmount = (Name, Amount);

fn level_amount(text: &str) -> Result<LevelAmount, String> {
    let refused = || format!("`{text}` is no part of a level; write `ssd=25%` or `ssd=64MiB`");
    let (level, amount) = text.split_once('=').ok_or_else(refused)?;
    Ok((level.parse()?, amount.parse()?))
}

/// Create, change and delete volumes of a running node
#[derive(Debug, Args)]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume and serve it
    #[command(after_help = "\
Examples:
  layby volume create maps --size 64GiB
  layby volume create brake --size 1GiB --class critical --share ssd=25%
  layby volume create disk --path /dev/sdb --allow 10.0.0.0/8
  layby volume create test --path s3://bucket/test --clone-of maps@monday
  layby volume create maps --path s3://bucket/maps --take")]
    Create(VolumeCreateArguments),
    /// List the volumes of a node
    List {
        /// List those in object stores that were deleted and can come back, instead
        #[arg(long)]
        deleted: bool,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Show one volume and its counters
    Show {
        /// The volume
        name: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Change the length of a volume; new connections see it
    #[command(after_help = "Example:\n  layby volume resize maps --size 128GiB")]
    Resize {
        /// The volume
        name: Name,
        /// Its new length
        #[arg(short, long)]
        size: Size,
        /// Allow a shorter length; what lies behind it is lost
        #[arg(long)]
        shrink: bool,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Change the class, the access, the shares or the limits of a volume at once
    #[command(after_help = "\
Examples:
  layby volume set maps --class bulk
  layby volume set brake --share dram=25% --share ssd=64MiB
  layby volume set maps --iops-max 5000 --bandwidth-max 100MiB
  layby volume set maps --read-only true --allow unix --allow 10.0.0.0/8")]
    Set(VolumeSetArguments),
    /// Write the dirty blocks of a volume back, and wait for it
    Drain {
        /// The volume; all of them when left out
        name: Option<Name>,
        /// Wait for it, as it is without this, too; for scripts that say so
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Keep what a volume in an object store holds now under a name; waits until the store has it
    #[command(after_help = "Example:\n  layby volume snapshot maps monday")]
    Snapshot {
        /// The volume
        name: Name,
        /// The snapshot: 1 to 64 of A-Z a-z 0-9 . _ -
        snapshot: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// List the snapshots of a volume
    Snapshots {
        /// The volume
        name: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Delete a snapshot of a volume; what it alone kept in the store goes later
    #[command(after_help = "Example:\n  layby volume snapshot-delete maps monday")]
    SnapshotDelete {
        /// The volume
        name: Name,
        /// The snapshot
        snapshot: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Delete a volume; its clients are disconnected
    #[command(after_help = "\
Examples:
  layby volume delete maps
  layby volume delete maps --data delete
  layby volume delete maps --data now
  layby volume delete maps --data now --number 7")]
    Delete {
        /// The volume
        name: Name,
        /// `keep` writes dirty blocks back and keeps the backing file; `delete` throws all away, in
        /// an object store after a grace in which `undelete` brings it back; `now` without one
        #[arg(long, value_name = "WHAT", default_value = "keep")]
        data: DataArgument,
        /// With `--data now`: the deleted volume of this number, where several of its name were
        /// deleted, or another volume has its name by now; `list --deleted` shows numbers
        #[arg(long, value_name = "N")]
        number: Option<u32>,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Serve a volume that waits for a lost level, journal or map, without what that held of it
    ///
    /// A node whose SSD or NVM level is missing or blank serves the volumes that had nothing dirty
    /// there; the others wait. What the levels that are there hold of the volume is written back
    /// first. Blocks whose newest version was in the lost level are at an older one afterwards,
    /// flushed ones included. It cannot be taken back: when the level returns, what it has of the
    /// volume is not used any more.
    ///
    /// A volume in an object store whose journal or map is missing is served with what the store
    /// has; flushed writes that were in the journal alone are lost. The node must reach the store.
    #[command(after_help = "Examples:\n  layby volume list\n  layby volume accept-loss brake")]
    AcceptLoss {
        /// The volume
        name: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Bring a volume in an object store back that was deleted, as long as its grace lasts
    #[command(after_help = "\
Examples:
  layby volume undelete maps
  layby volume undelete maps --as maps-of-friday")]
    Undelete {
        /// The volume
        name: Name,
        /// The name that it gets, where another volume has its own by now
        #[arg(long = "as", value_name = "NAME")]
        new_name: Option<Name>,
        /// Which one, where several of its name were deleted
        #[arg(long)]
        number: Option<u32>,
        #[command(flatten)]
        node: NodeArguments,
    },
}

/// What becomes of a deleted volume's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataArgument {
    Keep,
    Delete,
    Now,
}

/// How blocks travel and are stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CompressionArgument {
    None,
    Zstd,
    Lz4,
}

impl From<CompressionArgument> for CompressionChoice {
    fn from(argument: CompressionArgument) -> Self {
        match argument {
            CompressionArgument::None => CompressionChoice::None,
            CompressionArgument::Zstd => CompressionChoice::Zstd,
            CompressionArgument::Lz4 => CompressionChoice::Lz4,
        }
    }
}

/// The same of a volume that is there.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CompressionChangeArgument {
    /// As the node's configuration says
    Node,
    None,
    Zstd,
    Lz4,
}

impl From<CompressionChangeArgument> for CompressionChange {
    fn from(argument: CompressionChangeArgument) -> Self {
        match argument {
            CompressionChangeArgument::Node => CompressionChange::Node,
            CompressionChangeArgument::None => CompressionChange::None,
            CompressionChangeArgument::Zstd => CompressionChange::Zstd,
            CompressionChangeArgument::Lz4 => CompressionChange::Lz4,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArguments {
    /// Its name: 1 to 64 of A-Z a-z 0-9 . _ -
    pub(crate) name: Name,
    /// Its length, such as 64GiB; may be left out when --path names an existing file or device
    #[arg(short, long)]
    pub(crate) size: Option<Size>,
    /// Its class
    #[arg(short, long, value_name = "NAME", default_value = "normal")]
    pub(crate) class: Name,
    /// Its backing file or device, or an object store's URL, such as s3://bucket/prefix [default: a
    /// file in the node's directory]
    #[arg(short, long, value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// Clients cannot write
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Who may use it: `unix`, an address or a network (can be repeated) [default: everybody]
    #[arg(long, value_name = "RULE")]
    pub(crate) allow: Vec<AllowRule>,
    /// What no other volume can take of a level: 25% or a size (can be repeated)
    #[arg(long, value_name = "LEVEL=AMOUNT", value_parser = level_amount)]
    pub(crate) share: Vec<LevelAmount>,
    /// What it never exceeds of a level: 25% or a size (can be repeated)
    #[arg(long, value_name = "LEVEL=AMOUNT", value_parser = level_amount)]
    pub(crate) cap: Vec<LevelAmount>,
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    #[command(flatten)]
    pub(crate) discards: DiscardArguments,
    /// Make it a block device of this host's kernel, too (Linux 6.5 with the ublk driver)
    #[arg(long)]
    pub(crate) ublk: bool,
    /// Encrypt its objects with the key from file:PATH or env:NAME, 64 hexadecimal digits; only
    /// with an object store. A command as a source comes from the configuration alone
    #[arg(long, value_name = "SOURCE")]
    pub(crate) key: Option<KeySource>,
    /// How many shards serve it, for good: more than one where a core is not enough for its load
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) shards: u8,
    /// Begin as a snapshot, VOLUME@SNAPSHOT of this node or URL@SNAPSHOT, sharing its objects; only
    /// with an object store. Of an encrypted volume the clone needs that volume's --key
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) clone_of: Option<CloneSource>,
    /// Take the volume that the object store has from the node that serves it, or did; the store
    /// knows its length
    #[arg(long, requires = "path", conflicts_with = "clone_of")]
    pub(crate) take: bool,
    /// How its blocks travel and are stored; only with an object store [default: as the
    /// configuration says]
    #[arg(long, value_name = "HOW")]
    pub(crate) compression: Option<CompressionArgument>,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeSetArguments {
    /// The volume
    pub(crate) name: Name,
    /// Its new class
    #[arg(short, long, value_name = "NAME")]
    pub(crate) class: Option<Name>,
    /// Whether clients cannot write, those that are connected included; where it ends, a client
    /// that connected meanwhile has to connect again
    #[arg(long, value_name = "BOOL")]
    pub(crate) read_only: Option<bool>,
    /// Who may use it from now on, instead of who might before (can be repeated)
    #[arg(long, value_name = "RULE", conflicts_with = "allow_all")]
    pub(crate) allow: Vec<AllowRule>,
    /// Let everybody use it
    #[arg(long)]
    pub(crate) allow_all: bool,
    #[command(flatten)]
    pub(crate) shares: ShareArguments,
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    #[command(flatten)]
    pub(crate) discards: DiscardArguments,
    /// Whether it is a block device of this host's kernel, too
    #[arg(long, value_name = "BOOL")]
    pub(crate) ublk: Option<bool>,
    /// How its blocks travel to its object store and are stored there from now on; `node` is as the
    /// configuration says
    #[arg(long, value_name = "HOW")]
    pub(crate) compression: Option<CompressionChangeArgument>,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}

/// How fast a volume, or the volumes of a class together, may go: each flag replaces its own.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LimitArguments {
    /// Requests in a second at most; in a change, 0 is no limit
    #[arg(long, value_name = "N")]
    pub(crate) iops_max: Option<u64>,
    /// Requests that may come at once after calm; in a change, 0 is a tenth of a second's
    #[arg(long, value_name = "N")]
    pub(crate) iops_burst: Option<u64>,
    /// Bytes in a second at most, such as 100MiB/s or 80Mbit/s; in a change, 0 is no limit
    #[arg(long, value_name = "RATE")]
    pub(crate) bandwidth_max: Option<Bandwidth>,
    /// Bytes that may come at once after calm; in a change, 0 is a tenth of a second's
    #[arg(long, value_name = "SIZE")]
    pub(crate) bandwidth_burst: Option<Size>,
}

impl From<LimitArguments> for LimitsConfig {
    fn from(arguments: LimitArguments) -> Self {
        let LimitArguments { iops_max, iops_burst, bandwidth_max, bandwidth_burst } = arguments;
        LimitsConfig { iops_max, iops_burst, bandwidth_max, bandwidth_burst }
    }
}

/// Shares and caps as a whole: what is given replaces what there was.
#[derive(Debug, Default, Args)]
pub(crate) struct ShareArguments {
    /// What nobody else can take of a level; replaces all shares (can be repeated)
    #[arg(long, value_name = "LEVEL=AMOUNT", value_parser = level_amount)]
    #[arg(conflicts_with = "no_share")]
    pub(crate) share: Vec<LevelAmount>,
    /// Take all shares away
    #[arg(long)]
    pub(crate) no_share: bool,
    /// What is never exceeded of a level; replaces all caps (can be repeated)
    #[arg(long, value_name = "LEVEL=AMOUNT", value_parser = level_amount)]
    #[arg(conflicts_with = "no_cap")]
    pub(crate) cap: Vec<LevelAmount>,
    /// Take all caps away
    #[arg(long)]
    pub(crate) no_cap: bool,
}

/// List the cache levels of a running node, and change when they are destaged and freed
#[derive(Debug, Args)]
pub(crate) struct LevelArguments {
    #[command(subcommand)]
    pub(crate) command: LevelCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LevelCommand {
    /// List the levels of a node, fastest first
    List(NodeArguments),
    /// Change the watermarks of a level; takes effect at once
    #[command(after_help = "Example:\n  layby level set ssd --dirty-red 60% --dirty-green 30%")]
    Set {
        /// The level
        name: Name,
        /// Destaging starts at this share of dirty slots
        #[arg(long, value_name = "PERCENT")]
        dirty_red: Option<Percent>,
        /// Destaging ends at this share of dirty slots
        #[arg(long, value_name = "PERCENT")]
        dirty_green: Option<Percent>,
        /// Freeing of clean slots starts at this share of used slots
        #[arg(long, value_name = "PERCENT")]
        used_red: Option<Percent>,
        /// Freeing of clean slots ends at this share of used slots
        #[arg(long, value_name = "PERCENT")]
        used_green: Option<Percent>,
        #[command(flatten)]
        node: NodeArguments,
    },
}

/// Show or change how a running node writes back and reads ahead
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby writeback
  layby writeback --merge-size 2MiB --idle-timeout 1s")]
pub(crate) struct WritebackArguments {
    /// Bytes of one destage write at most
    #[arg(long, value_name = "SIZE")]
    pub(crate) merge_size: Option<Size>,
    /// Destaging starts after this long without a write
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_timeout: Option<Time>,
    /// Destage writes in flight at most, per shard and device of backing stores
    #[arg(long, value_name = "N")]
    pub(crate) inflight_max: Option<u16>,
    /// Bytes read ahead at most; 0 is off
    #[arg(long, value_name = "SIZE")]
    pub(crate) read_ahead_window_max: Option<Size>,
    /// Sequential reads before read-ahead starts
    #[arg(long, value_name = "N")]
    pub(crate) read_ahead_streak_min: Option<u8>,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}

/// Show or change how a node uses its way up to object stores
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby uplink
  layby uplink --cap 80Mbit/s
  layby uplink --cap 2MiB --window 22:00-06:30=0
  layby uplink --cap 0 --no-windows

A rate is bytes in a second (10MiB/s, or 10MiB) or bits (80Mbit/s); 0 is no cap. Times are the
machine's local ones. Changes hold at once and last until the configuration's [uplink] is edited.")]
pub(crate) struct UplinkArguments {
    /// Bytes in a second at most, outside of all windows; 0 is no cap
    #[arg(long, value_name = "RATE")]
    pub(crate) cap: Option<Bandwidth>,
    /// A part of every day with a cap of its own (can be repeated); replaces those there are
    #[arg(long, value_name = "FROM-UNTIL=RATE", value_parser = parse_window)]
    pub(crate) window: Vec<UplinkWindow>,
    /// Have no such parts of the day
    #[arg(long, conflicts_with = "window")]
    pub(crate) no_windows: bool,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}

fn parse_window(text: &str) -> Result<UplinkWindow, String> {
    let parts = text.split_once('=').and_then(|(span, cap)| Some((span.split_once('-')?, cap)));
    let ((from, until), cap) = parts.ok_or("write it as 22:00-06:30=10MiB")?;
    let cap = cap.parse::<Bandwidth>().map_err(|error| error.to_string())?;
    Ok(UplinkWindow { from: from.to_owned(), until: until.to_owned(), cap })
}

/// Show what a running node holds and does
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby status
  layby status --what-if
  layby status --json | jq '.levels[].dirty_bytes'")]
pub(crate) struct StatusArguments {
    /// Show what other sizes and other eviction policies would do, by volume
    #[arg(long)]
    pub(crate) what_if: bool,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}

/// Write the manual pages
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  layby manual --out /usr/local/share/man/man1")]
pub(crate) struct ManualArguments {
    /// Where the pages go, one per command
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Goal: the words are sound and every one is described. Method: clap's own check, and a walk.
    #[test]
    fn every_word_is_described() {
        Layby::command().debug_assert();
        let mut open = vec![Layby::command()];
        while let Some(command) = open.pop() {
            assert!(command.get_about().is_some(), "`{}` is not described", command.get_name());
            for argument in command.get_arguments() {
                let described = argument.get_help().is_some();
                assert!(described, "`{}` of `{}`", argument.get_id(), command.get_name());
            }
            open.extend(command.get_subcommands().cloned());
        }
    }

    /// Goal: words that tests and scripts rely on are understood. Method: a line of each.
    #[test]
    fn known_lines_parse() {
        for line in [
            "serve --dir d --config c --listen 127.0.0.1:1 --shards 2 --io io_uring",
            "serve --dir d --simulate-power-loss --log-format json",
            "volume create v --size 4MiB --class critical --share nvm=25% --cap ssd=1GiB --dir d",
            "volume create v --path /dev/x --allow unix --allow 10.0.0.0/8",
            "volume resize v --size 32MiB --dir d",
            "volume set v --class bulk --read-only true --no-share",
            "volume delete v --data delete",
            "volume delete v --data now --number 7",
            "volume create v --size 4MiB --iops-max 100 --bandwidth-max 1MiB",
            "volume set v --iops-max 0 --bandwidth-burst 2MiB",
            "class set bulk --iops-max 5000 --iops-burst 50",
            "volume drain",
            "class set bulk --levels nvm,ssd --borrow false --keep-reads true --cap ssd=10%",
            "class set bulk --admission second-miss",
            "level set ssd --dirty-red 60%",
            "writeback --idle-timeout 250ms",
            "uplink --cap 2MiB --window 22:00-06:30=0",
            "class set critical --answer-within 5s",
            "class set bulk --uplink-first false --uplink-weight 10 --uplink-patient true",
            "status --json --dir d",
            "status --what-if --dir d",
            "class set bulk --weight 4 --latency-objective 2ms",
            "volume create v --path s3://b/v --take",
            "salvage v f --dir d",
            "check --dir d --full",
            "manual --out m",
            "demo",
            "trace info t --format oracle-general --lenient --json",
            "trace convert a b.csv --to csv --event c --overwrite",
            "trace sample a b.csv --rate 1% --seed 2 --block-size 8KiB",
            "trace cut a b.csv --from 1s --until 2s --first 3 --count 4",
            "replay t -p lru -p s3fifo -p belady -s 5% -s 64MiB -s 1000blocks --json --lenient",
            "replay t --admission second-miss --seed 2 --block-size 8KiB --format msr",
            "mrc t --sampled 1% --seed 1,2 --points 10 --counted reads --per-volume --csv",
            "mrc t --blocks-max 100 --compare --json",
            "probe d --size 64MiB --seconds 0.5 --seed 2 --name nvme0 --out d.toml --json",
            "probe /dev/x --write-latency 20us --dollars-per-tb 80",
            "replay t --levels 1%,4%@a,16%@b --devices a.toml --devices b.toml --home hdd",
            "lab run padsa --devices a.toml --devices b.toml",
            "lab run wear --scale 256 --runs 2 --seed 3",
            "lab run delay-d --out d.html",
            "lab run streams --trace a --trace b --runs 1",
            "lab run links --link a.csv --runs 2",
            "lab run wear --json",
            "lab run wear --csv",
            "trace generate z.csv --shape hot-cold --hot-accesses 90% --hot-blocks 10%",
            "trace generate z.csv --read-percent 70 --interval 1.5us",
            "trace cut a b.csv --from 0.5s --until 1min",
            "replay t --policy LRU,S3FIFO,S3-FIFO,ARC,Belady",
        ] {
            let words = std::iter::once("layby").chain(line.split(' '));
            assert!(Layby::try_parse_from(words).is_ok(), "{line}");
        }
        for line in ["volume create v --size plenty", "volume create a/b", "serve --io fast"] {
            let words = std::iter::once("layby").chain(line.split(' '));
            let refused = Layby::try_parse_from(words).expect_err(line);
            assert_eq!(refused.exit_code(), 2, "{line}");
        }
    }
}
