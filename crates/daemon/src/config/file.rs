//! The configuration file as it is written: tables and keys, all optional but names and sizes.
//!
//! How: serde types that refuse unknown keys; the `toml` crate then shows the offending line.
//! Values that were not written stay `None`, so that "as the node already is" and "the default" can
//! be told apart later.
//! Not for: use by the running node; that is [`super::Config`].

use super::LimitsConfig;
use super::values::{AllowRule, Amount, Bandwidth, Name, Patience, Percent, Size, Time};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) node: NodeTable,
    pub(super) nbd: NbdTable,
    pub(super) vhost: VhostTable,
    pub(super) control: super::control::ControlTable,
    pub(super) level: Option<Vec<Spanned<LevelTable>>>,
    pub(super) writeback: WritebackTable,
    pub(super) read_ahead: ReadAheadTable,
    pub(super) sizing: super::sizing::SizingTable,
    pub(super) cloud: super::cloud::CloudTable,
    pub(super) uplink: super::UplinkConfig,
    pub(super) class: BTreeMap<Name, Spanned<ClassTable>>,
    pub(super) volume: BTreeMap<Name, Spanned<VolumeTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NodeTable {
    pub(super) dir: Option<PathBuf>,
    pub(super) block_size: Option<Size>,
    pub(super) shards: Option<u8>,
    pub(super) nice: Option<i8>,
    pub(super) io: Option<super::IoChoice>,
    pub(super) devices: Vec<PathBuf>,
    pub(super) volume_roots: Vec<PathBuf>,
    pub(super) strict: bool,
    pub(super) io_timeout: Option<Patience>,
    pub(super) client_memory: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NbdTable {
    pub(super) socket: Option<PathBuf>,
    pub(super) listen: Vec<super::Address>,
    pub(super) tls: Option<super::TlsMode>,
    pub(super) tls_certificate: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_client_ca: Option<PathBuf>,
    pub(super) tls_clients: Option<super::ClientRules>,
    pub(super) connections_max: Option<u32>,
    pub(super) handshake_timeout: Option<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct VhostTable {
    pub(super) directory: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelTable {
    pub(super) name: Name,
    pub(super) kind: super::Kind,
    pub(super) size: Size,
    pub(super) path: Option<PathBuf>,
    pub(super) preallocation: Option<super::Preallocation>,
    pub(super) key: Option<super::KeySource>,
    pub(super) key_previous: Option<super::KeySource>,
    pub(super) persistence: Option<super::PersistenceChoice>,
    pub(super) policy: Option<super::Policy>,
    pub(super) endurance: Option<Size>,
    pub(super) drive_writes_per_day: Option<f64>,
    pub(super) life: Option<Time>,
    pub(super) segment: Option<Size>,
    pub(super) discard: Option<super::DiscardChoice>,
    pub(super) discard_delay: Option<super::DiscardWait>,
    pub(super) discard_bandwidth: Option<Bandwidth>,
    pub(super) hints: Option<super::HintChoice>,
    pub(super) cold_percent: Option<u8>,
    pub(super) free_percent: Option<u8>,
    pub(super) dirty_red: Option<Percent>,
    pub(super) dirty_green: Option<Percent>,
    pub(super) used_red: Option<Percent>,
    pub(super) used_green: Option<Percent>,
}

impl LevelTable {
    /// A level of which nothing but this is written.
    pub(super) fn new(name: Name, kind: super::Kind, size: Size) -> LevelTable {
        LevelTable {
            name,
            kind,
            size,
            path: None,
            preallocation: None,
            key: None,
            key_previous: None,
            persistence: None,
            policy: None,
            endurance: None,
            drive_writes_per_day: None,
            life: None,
            segment: None,
            discard: None,
            discard_delay: None,
            discard_bandwidth: None,
            hints: None,
            cold_percent: None,
            free_percent: None,
            dirty_red: None,
            dirty_green: None,
            used_red: None,
            used_green: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WritebackTable {
    pub(super) merge_size: Option<Size>,
    pub(super) idle_timeout: Option<Time>,
    pub(super) inflight_max: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReadAheadTable {
    pub(super) window_max: Option<Size>,
    pub(super) streak_min: Option<u8>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClassTable {
    pub(super) levels: Option<Vec<Name>>,
    pub(super) rank: Option<u8>,
    pub(super) durable_writes: Option<bool>,
    pub(super) borrow: Option<bool>,
    pub(super) keep_reads: Option<bool>,
    pub(super) admission: Option<super::Admission>,
    pub(super) weight: Option<u16>,
    pub(super) latency_objective: Option<Time>,
    pub(super) share: Option<BTreeMap<Name, Amount>>,
    pub(super) cap: Option<BTreeMap<Name, Amount>>,
    pub(super) limits: LimitsConfig,
    pub(super) uplink: super::ClassUplink,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct VolumeTable {
    pub(super) size: Option<Size>,
    pub(super) class: Option<Name>,
    pub(super) path: Option<PathBuf>,
    pub(super) read_only: bool,
    pub(super) allow: Vec<AllowRule>,
    pub(super) share: BTreeMap<Name, Amount>,
    pub(super) cap: BTreeMap<Name, Amount>,
    pub(super) limits: LimitsConfig,
    pub(super) discard: super::DiscardChoice,
    pub(super) discard_delay: super::DiscardWait,
    pub(super) discard_bandwidth: Option<Bandwidth>,
    pub(super) ublk: bool,
    pub(super) key: Option<super::KeySource>,
    pub(super) compression: Option<super::CompressionChoice>,
    pub(super) shards: Option<u8>,
}
