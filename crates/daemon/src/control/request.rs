//! What an operator may ask for, in the words of the control API.
//!
//! How: plain serde types; what is left out of a patch stays as it is. A map of shares or caps that
//! is given replaces the whole map.
//! Invariant: unknown fields are refused, so that a misspelt one is never silently ignored.

use crate::catalog::VolumeRecord;
use crate::config::{
    Admission, AllowRule, Amount, Bandwidth, ClassUplink, LimitsConfig, Name, Percent, Size, Time,
};
use crate::config::{
    CloneSource, CompressionChange, CompressionChoice, DiscardChoice, DiscardWait, KeySource,
    VolumeConfig, built_in,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A new volume.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Its name.
    pub name: Name,
    /// Its length; may be left out when `path` names an existing file or device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Its class; `normal` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Name>,
    /// Absolute path of its backing file or device; a file in the node's directory when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Clients cannot write.
    #[serde(default)]
    pub read_only: bool,
    /// Who may use it; empty is everybody.
    #[serde(default)]
    pub allow: Vec<AllowRule>,
    /// What no other volume can take, by level.
    #[serde(default)]
    pub share: BTreeMap<Name, Amount>,
    /// What it never exceeds, by level.
    #[serde(default)]
    pub cap: BTreeMap<Name, Amount>,
    /// How fast it may go.
    #[serde(default, skip_serializing_if = "LimitsConfig::is_none")]
    pub limits: LimitsConfig,
    /// Whether and when its discards reach its home.
    #[serde(default, skip_serializing_if = "DiscardChoice::is_default")]
    pub discard: DiscardChoice,
    /// How long delayed discards wait.
    #[serde(default, skip_serializing_if = "DiscardWait::is_default")]
    pub discard_delay: DiscardWait,
    /// Bytes per second that its home is asked to discard at most; without it there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_bandwidth: Option<Bandwidth>,
    /// It is a block device of this host's kernel, too.
    #[serde(default)]
    pub ublk: bool,
    /// Where the key comes from with which its objects are encrypted: `file:PATH`, `env:NAME` or
    /// `command:WORDS`; only where its home is an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySource>,
    /// How many shards serve it, for good; one when left out.
    #[serde(
        default = "VolumeConfig::shards_default",
        skip_serializing_if = "VolumeConfig::is_one"
    )]
    pub shards: u8,
    /// What it begins as, where its home is an object store: a snapshot, `VOLUME@SNAPSHOT` of this
    /// node or `URL@SNAPSHOT`. It shares that one's objects, and has its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<CloneSource>,
    /// How its blocks travel and are stored, where its home is an object store; as the
    /// configuration says when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionChoice>,
    /// It is the volume that the store at `path` has, taken from the node that serves it, or did.
    /// The store knows its length. Repeated where this node has it already, it changes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take: bool,
}

impl VolumeCreate {
    /// The request that takes a volume in an object store anew, with the settings that it has.
    #[must_use]
    pub(super) fn anew(name: &Name, record: &VolumeRecord) -> VolumeCreate {
        let record = record.clone();
        VolumeCreate {
            name: name.clone(),
            size: None,
            shards: record.shards(),
            class: Some(record.class),
            path: Some(record.path),
            read_only: record.read_only,
            allow: record.allow,
            share: record.share,
            cap: record.cap,
            limits: record.limits,
            discard: record.discard,
            discard_delay: record.discard_delay,
            discard_bandwidth: record.discard_bandwidth,
            ublk: record.ublk,
            key: record.key,
            clone_of: None,
            compression: record.compression,
            take: true,
        }
    }

    /// The settings that a volume of that size is made with.
    pub(super) fn into_config(self, size: Option<Size>) -> VolumeConfig {
        VolumeConfig {
            size,
            class: self.class.unwrap_or_else(|| built_in("normal")),
            path: self.path,
            read_only: self.read_only,
            allow: self.allow,
            share: self.share,
            cap: self.cap,
            limits: self.limits,
            discard: self.discard,
            discard_delay: self.discard_delay,
            discard_bandwidth: self.discard_bandwidth,
            ublk: self.ublk,
            key: self.key,
            compression: self.compression,
            shards: self.shards,
        }
    }
}

/// A change to a volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VolumePatch {
    /// Its new length; new connections see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Allows a new length below the old one; what lies behind it is lost.
    pub shrink: bool,
    /// Its new class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Name>,
    /// New clients cannot write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Which new clients may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<AllowRule>>,
    /// What no other volume can take, by level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<BTreeMap<Name, Amount>>,
    /// What it never exceeds, by level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<BTreeMap<Name, Amount>>,
    /// How fast it may go: what is given replaces its own, and zero takes it away.
    #[serde(skip_serializing_if = "LimitsConfig::is_none")]
    pub limits: LimitsConfig,
    /// Whether and when its discards reach its home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<DiscardChoice>,
    /// How long delayed discards wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard_delay: Option<DiscardWait>,
    /// Bytes per second that its home is asked to discard at most; zero takes the limit away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard_bandwidth: Option<Bandwidth>,
    /// Whether it is a block device of this host's kernel, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ublk: Option<bool>,
    /// How its blocks travel and are stored from now on, where its home is an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionChange>,
}

/// What becomes of a deleted volume's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeleteData {
    /// Dirty blocks are written back first, and the backing file stays.
    Keep,
    /// Everything goes, the backing file too; a block device stays as it is. What is in an object
    /// store goes when its grace is over, and can come back until then.
    Delete,
    /// The same without a grace; also of a volume that was deleted before.
    Now,
}

/// A new class.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassCreate {
    /// Its name.
    pub name: Name,
    /// What it is given; what is left out is as in a class of the configuration.
    #[serde(default)]
    pub settings: ClassPatch,
}

/// A change to a class.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassPatch {
    /// Levels that its volumes may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<Vec<Name>>,
    /// The highest rank yields first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u8>,
    /// A write is acknowledged only when durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_writes: Option<bool>,
    /// Clean copies may use idle room of other levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrow: Option<bool>,
    /// Whether what is read from home into memory is kept in a persistent level, too.
    pub keep_reads: Option<bool>,
    /// Which blocks that no level had are kept once they are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// How much a wait of its volumes counts where shares are sized live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The time within which 999 of 1000 of its reads shall be served; zero is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_objective: Option<Time>,
    /// What nobody else can take, by level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<BTreeMap<Name, Amount>>,
    /// What it never exceeds, by level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<BTreeMap<Name, Amount>>,
    /// How fast its volumes may go together: what is given replaces its own, and zero takes it
    /// away.
    #[serde(skip_serializing_if = "LimitsConfig::is_none")]
    pub limits: LimitsConfig,
    /// Its part of the way up: what is given replaces its own.
    #[serde(skip_serializing_if = "ClassUplink::is_none")]
    pub uplink: ClassUplink,
}

/// A change to when a level is destaged and freed, in shares of its slots.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WatermarksPatch {
    /// Destaging starts at this share of dirty slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_red: Option<Percent>,
    /// Destaging ends at this share of dirty slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_green: Option<Percent>,
    /// Freeing of clean slots starts at this share of used slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_red: Option<Percent>,
    /// Freeing of clean slots ends at this share of used slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_green: Option<Percent>,
}

/// A change to how dirty blocks go home and how far reads run ahead.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WritebackPatch {
    /// Bytes of one destage write at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_size: Option<Size>,
    /// Destaging starts after this long without a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Time>,
    /// Destage writes in flight at most, per shard and device of backing stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inflight_max: Option<u16>,
    /// Bytes read ahead at most; zero is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead_window_max: Option<Size>,
    /// Sequential reads before read-ahead starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead_streak_min: Option<u8>,
}
