//! What a node knows about itself from one run to the next: its identity, its volumes, and what was
//! changed while it ran.
//!
//! How: one JSON file with a version and a checksum, replaced as a whole: written beside, synced,
//! renamed, the directory synced. What the configuration also says is kept as a pair of what was
//! configured and what is live, so that whoever spoke last is heard: a live change holds until the
//! file is edited.
//! Invariant: at any instant the file on disk is a whole catalog, the old or the new. A volume's id
//! is never used again.
//! Cost: one small write and two syncs per change; nothing on the data path.

mod deleted;
mod device;
mod encryption;
mod folders;
pub(crate) mod last;
mod lock;
mod room;

pub use deleted::{DeletedRecord, StoreIdentity};
pub use device::DeviceIdentity;
pub use encryption::EncryptionRecord;
pub use folders::LocalDirs;
pub use lock::{DirectoryLock, UNLOCKED, keeps_nodes_away};

use crate::config::{
    AllowRule, Amount, Bandwidth, ClassConfig, Kind, LimitsConfig, Name, Size, UplinkConfig,
    VolumeConfig,
};
use crate::config::{CloneSource, CompressionChoice, DiscardChoice, DiscardWait, KeySource};
use crate::error::{Report, ReportKind};
use layby_types::{Stripes, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The catalog's file within the node's directory.
pub const CATALOG_FILE_NAME: &str = "catalog.json";
/// What the file says it is.
pub const CATALOG_FORMAT: &str = "layby catalog";
/// The version this program writes, and the only one it reads.
pub const CATALOG_VERSION: u32 = 1;
/// Bytes of a catalog at most.
pub const CATALOG_BYTES_MAX: u64 = 256 << 20;
/// The catalog being written, and in its place.
const NAMES: (&str, &str) = ("catalog.json.new", CATALOG_FILE_NAME);

/// Sixteen random bytes that every level of a node carries, so that another's is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    /// A new identity, drawn from the kernel.
    ///
    /// # Errors
    /// A report when the kernel has no chance to give.
    pub fn draw() -> Result<NodeId, Report> {
        let mut bytes = [0; 16];
        match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
            Ok(16) => Ok(NodeId(bytes)),
            Ok(_) => Err(Report::new(ReportKind::Failure, "cannot draw the node's identity")
                .cause("the kernel gave fewer random bytes than asked for")
                .state("nothing was written")
                .hint("start the node again")),
            Err(errno) => Err(Report::from_io("cannot draw the node's identity", &errno.into())
                .state("nothing was written")
                .hint("start the node where getrandom(2) is allowed")),
        }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for NodeId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("`{text}` is no node identity of 32 hexadecimal digits");
        if text.len() != 32 {
            return Err(refused());
        }
        u128::from_str_radix(text, 16).map(|n| NodeId(n.to_be_bytes())).map_err(|_| refused())
    }
}

impl Serialize for NodeId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A setting that both the configuration and a live change may give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live<T> {
    /// What the configuration said when the change was made; `None` if it said nothing.
    pub configured: Option<T>,
    /// What was set instead; `None` if the thing was deleted.
    pub live: Option<T>,
}

impl<T: PartialEq + Clone> Live<T> {
    /// What counts of a setting, and whether that is since the configuration was edited: the record
    /// goes then, so that no later edit brings its live value back.
    pub fn resolve(record: &mut Option<Live<T>>, configured: Option<T>) -> (Option<T>, bool) {
        match record {
            None => (configured, false),
            Some(pair) if pair.configured == configured => (pair.live.clone(), false),
            Some(_) => {
                *record = None;
                (configured, true)
            }
        }
    }
}

/// A level as the node was built with it; none of this can change while it holds blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelRecord {
    /// Its name.
    pub name: Name,
    /// Its medium.
    pub kind: Kind,
    /// Its size.
    pub size: Size,
    /// Its file or device; inside the node's directory it is relative.
    pub path: Option<PathBuf>,
    /// Bytes of its log's segments, where they were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Size>,
    /// How its own key is kept, where it is encrypted. A start with another key changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionRecord>,
}

/// When a level is destaged and freed, in percent of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatermarksRecord {
    /// Destaging starts.
    pub dirty_red: u8,
    /// Destaging ends.
    pub dirty_green: u8,
    /// Freeing starts.
    pub used_red: u8,
    /// Freeing ends.
    pub used_green: u8,
}

/// How dirty blocks go home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WritebackRecord {
    /// Bytes of one destage write at most.
    pub merge_bytes: u32,
    /// Nanoseconds of calm after which destaging starts.
    pub idle_timeout_ns: u64,
    /// Destage writes in flight at most, per shard.
    pub inflight_max: u16,
    /// Bytes read ahead at most.
    pub read_ahead_bytes_max: u32,
    /// Sequential reads before read-ahead starts.
    pub read_ahead_streak_min: u8,
}

/// How far the creation or the deletion of a volume has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumePhase {
    /// Its backing file may not exist yet.
    Creating,
    /// Its backing must exist; if it is missing, data is missing.
    Ready,
    /// Its blocks and its backing file are to be thrown away.
    Deleting,
}

/// How a volume lies over several shards. It stays as it was made, since its home does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WideRecord {
    /// Its parts, each on a shard of its own. They have the volume's number and those that follow.
    pub shards: u8,
    /// Bytes of a stripe.
    pub stripe_bytes: u64,
}

/// A volume as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    /// Its number on every level.
    pub id: u32,
    /// How far its creation has come.
    pub phase: VolumePhase,
    /// Its length in bytes.
    pub length: u64,
    /// Its class.
    pub class: Name,
    /// Its backing file or device; inside the node's directory it is relative.
    pub path: PathBuf,
    /// Clients cannot write.
    pub read_only: bool,
    /// Who may use it; empty is everybody.
    pub allow: Vec<AllowRule>,
    /// What no other volume can take, by level.
    pub share: BTreeMap<Name, Amount>,
    /// What it never exceeds, by level.
    pub cap: BTreeMap<Name, Amount>,
    /// How fast it may go. Left out where nothing is limited, as in catalogs from before there
    /// were limits.
    #[serde(default, skip_serializing_if = "LimitsConfig::is_none")]
    pub limits: LimitsConfig,
    /// Whether and when its discards reach its home. Left out where they go at once, as in
    /// catalogs from before they could wait.
    #[serde(default, skip_serializing_if = "DiscardChoice::is_default")]
    pub discard: DiscardChoice,
    /// How long delayed discards wait.
    #[serde(default, skip_serializing_if = "DiscardWait::is_default")]
    pub discard_delay: DiscardWait,
    /// Bytes per second that its home is asked to discard at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_bandwidth: Option<Bandwidth>,
    /// It is a block device of this host's kernel, too. Left out where it is not, as in catalogs
    /// from before there were such devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ublk: bool,
    /// Where its key comes from, where its objects are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySource>,
    /// How it lies over several shards. Left out where it is on one, as in catalogs from before
    /// there were such volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wide: Option<WideRecord>,
    /// What it began as, by its place, where it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<CloneSource>,
    /// It was created to be taken from the node that serves it, and that is not known to be done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take: bool,
    /// How its chunks travel, where it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionChoice>,
    /// The number by which its journal and its map are called, where it had another one when they
    /// were made: a volume whose deletion was taken back has a new number, but its old files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<u32>,
    /// The number that its block device was made with, where it has another one since: a device
    /// that was in use when the node ended is taken over by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// The device that is its home, where it is one and the kernel says which. Left out otherwise,
    /// as in catalogs from before it was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home_device: Option<DeviceIdentity>,
    /// What the configuration said when it was last applied.
    pub configured: Option<VolumeConfig>,
}

impl VolumeRecord {
    /// The number by which its journal and its map are called.
    #[must_use]
    pub fn local_number(&self) -> u32 {
        self.local.unwrap_or(self.id)
    }

    /// The number that the mark of its block device has.
    #[must_use]
    pub fn device_number(&self) -> u32 {
        self.device.unwrap_or(self.id)
    }

    /// How it is dealt to its parts; none where it is on one shard.
    #[must_use]
    pub fn stripes(&self) -> Option<Stripes> {
        let wide = self.wide?;
        let stripes = Stripes::new(wide.stripe_bytes, wide.shards);
        Some(stripes.expect("a catalog's stripes were checked when it was read"))
    }

    /// How many shards serve it.
    #[must_use]
    pub fn shards(&self) -> u8 {
        self.wide.map_or(1, |wide| wide.shards)
    }

    /// The numbers of its parts, which is its own where it is on one shard.
    pub fn parts(&self) -> impl Iterator<Item = VolumeId> + Clone + use<> {
        (self.id..self.id + u32::from(self.shards())).map(VolumeId)
    }

    /// Whether a number is one of its parts'.
    #[must_use]
    pub fn has_part(&self, volume: VolumeId) -> bool {
        volume.0 >= self.id && volume.0 - self.id < u32::from(self.shards())
    }
}

/// All a node keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// Who the node is.
    pub node: NodeId,
    /// It has come up once, so that its levels may hold blocks.
    pub is_started: bool,
    /// The cache unit in bytes.
    pub block_bytes: u32,
    /// Threads of the data path; each owns a part of every level.
    pub shards: u8,
    /// Fastest first.
    pub levels: Vec<LevelRecord>,
    /// The number of the next volume.
    pub volume_id_next: u32,
    /// By name.
    pub volumes: BTreeMap<Name, VolumeRecord>,
    /// Volumes in object stores that were deleted, oldest first, for as long as they can come back
    /// or their objects are not all gone. Left out where there are none, as in catalogs from before
    /// there was a grace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<DeletedRecord>,
    /// Volumes that were deleted while the configuration named them, with their tables of then.
    /// They are not made anew until these are edited. Left out where there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unwanted: BTreeMap<Name, VolumeConfig>,
    /// Classes changed live, by name.
    pub classes: BTreeMap<Name, Live<ClassConfig>>,
    /// Watermarks changed live, by level.
    pub watermarks: BTreeMap<Name, Live<WatermarksRecord>>,
    /// Destaging and read-ahead changed live.
    pub writeback: Option<Live<WritebackRecord>>,
    /// A level was lost, and the node has served without any persistent one since; the numbers of
    /// the volumes that it serves are in no level. Left out where that is not so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_levels: bool,
    /// The levels of a node that has run are being made anew, and hold nothing that counts: the
    /// next start goes on with it. Left out where that is not so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_formatting: bool,
    /// The way up to object stores, changed live. Left out where it is not, as in catalogs from
    /// before there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<Live<UplinkConfig>>,
    /// Where the configuration put journals and maps at the last start, for those who read them
    /// without it. Left out where they lie in the node's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_dirs: Option<LocalDirs>,
}

impl Catalog {
    /// The catalog of a new node.
    #[must_use]
    pub fn new(node: NodeId, block_bytes: u32, shards: u8, levels: Vec<LevelRecord>) -> Catalog {
        Catalog {
            node,
            is_started: false,
            block_bytes,
            shards,
            levels,
            volume_id_next: 0,
            volumes: BTreeMap::new(),
            deleted: Vec::new(),
            unwanted: BTreeMap::new(),
            classes: BTreeMap::new(),
            watermarks: BTreeMap::new(),
            writeback: None,
            without_levels: false,
            is_formatting: false,
            uplink: None,
            local_dirs: None,
        }
    }

    /// Hands out a number that no volume of this node has ever had, or `None` when all are used up.
    pub fn volume_id_take(&mut self) -> Option<VolumeId> {
        self.volume_ids_take(1)
    }

    /// The same for a volume of `count` parts, whose numbers follow each other: the first.
    pub fn volume_ids_take(&mut self, count: u8) -> Option<VolumeId> {
        let id = VolumeId(self.volume_id_next);
        let next = id.0.checked_add(u32::from(count))?;
        (next <= VolumeId::MAX.0 + 1).then(|| {
            self.volume_id_next = next;
            id
        })
    }

    /// Whether a volume's number was never given: what has it is of a newer catalog.
    #[must_use]
    pub fn never_had(&self, volume: u32) -> bool {
        volume >= self.volume_id_next
    }

    /// Reads the catalog of `dir`; `None` when the directory has none, as that of a new node.
    ///
    /// # Errors
    /// A report when the file cannot be read, is damaged, or is of another version.
    pub fn load(dir: &Path) -> Result<Option<Catalog>, Report> {
        let path = dir.join(CATALOG_FILE_NAME);
        let error = || format!("cannot read the node's catalog `{}`", path.display());
        let untouched = "nothing was changed; volumes and levels are untouched";
        let bytes = match crate::config::read_small(&path, CATALOG_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == Io::NotFound => return Ok(None),
            // Too long, or no regular file.
            Err(cause) if matches!(cause.kind(), Io::InvalidData | Io::InvalidInput) => {
                let report = Report::new(ReportKind::Corrupt, error()).cause(cause.to_string());
                return Err(report.state(untouched).hint(RESTORE));
            }
            Err(cause) => return Err(Report::from_io(error(), &cause).state(untouched)),
        };
        Catalog::parse(&path, &bytes).map(|catalog| Some(catalog.with_keys_beside(dir)))
    }

    /// Key files that earlier builds noted as they were written lie beside the node.
    fn with_keys_beside(mut self, dir: &Path) -> Catalog {
        let deleted = self.deleted.iter_mut().map(|deleted| &mut deleted.record);
        for record in self.volumes.values_mut().chain(deleted) {
            record.key = record.key.take().map(|key| key.beside(dir));
            if let Some(configured) = &mut record.configured {
                configured.key = configured.key.take().map(|key| key.beside(dir));
            }
        }
        self
    }

    /// Like [`Catalog::load`], from bytes of `path` that were read already.
    ///
    /// # Errors
    /// As [`Catalog::load`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Catalog, Report> {
        decode(bytes).map_err(|(kind, cause, hint)| {
            Report::new(kind, format!("cannot read the node's catalog `{}`", path.display()))
                .cause(cause)
                .state("nothing was changed; volumes and levels are untouched")
                .hint(hint)
        })
    }

    /// The file's bytes, as [`Catalog::save`] writes them.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

/// The file: what it is, a checksum, then the catalog.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    format: String,
    version: u32,
    /// CRC-32C of the catalog written compactly, in hexadecimal.
    crc32c: String,
    catalog: T,
}

fn checksum(catalog: &Catalog) -> String {
    let compact = serde_json::to_vec(catalog).expect("a catalog has only string keys");
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &compact);
    format!("{crc:08x}")
}

fn encode(catalog: &Catalog) -> Vec<u8> {
    let envelope = Envelope {
        format: CATALOG_FORMAT.to_owned(),
        version: CATALOG_VERSION,
        crc32c: checksum(catalog),
        catalog,
    };
    let mut bytes = serde_json::to_vec_pretty(&envelope).expect("a catalog has only string keys");
    bytes.extend_from_slice(last::MARK);
    bytes
}

type Refusal = (ReportKind, String, &'static str);
const RESTORE: &str = "restore the newest file from a copy (`catalog.json.new` is the one before \
                       it); levels and volumes stay as they are, and need it to be read";

fn decode(bytes: &[u8]) -> Result<Catalog, Refusal> {
    let corrupt = |cause: String| (ReportKind::Corrupt, cause, RESTORE);
    let envelope: Envelope<serde_json::Value> = serde_json::from_slice(bytes)
        .map_err(|cause| corrupt(format!("the file is damaged: {cause}")))?;
    if envelope.format != CATALOG_FORMAT {
        let cause = format!("the file is `{}`, not `{CATALOG_FORMAT}`", envelope.format);
        return Err((ReportKind::Invalid, cause, "name a Layby node's directory with --dir"));
    }
    if envelope.version != CATALOG_VERSION {
        let cause = format!(
            "the file has version {}; this program reads version {CATALOG_VERSION}",
            envelope.version
        );
        return Err((ReportKind::Invalid, cause, "start the node with the program that wrote it"));
    }
    let catalog: Catalog = serde_json::from_value(envelope.catalog)
        .map_err(|cause| corrupt(format!("the file is damaged: {cause}")))?;
    let computed = checksum(&catalog);
    if computed != envelope.crc32c {
        let stored = envelope.crc32c;
        return Err(corrupt(format!("checksum mismatch: stored {stored}, computed {computed}")));
    }
    if let Some((name, wide)) = bad_stripes(&catalog) {
        let WideRecord { shards, stripe_bytes } = wide;
        let cause = format!(
            "volume `{name}` lies over {shards} of {} shards in stripes of {stripe_bytes} bytes, \
             which this program does not offer",
            catalog.shards
        );
        return Err((ReportKind::Invalid, cause, "start the node with the program that wrote it"));
    }
    Ok(catalog)
}

fn bad_stripes(catalog: &Catalog) -> Option<(&Name, WideRecord)> {
    let deleted = catalog.deleted.iter().map(|deleted| (&deleted.name, &deleted.record));
    let all = catalog.volumes.iter().chain(deleted);
    let wides = all.filter_map(|(name, record)| Some((name, record.wide?)));
    let is_bad = |wide: &WideRecord| {
        Stripes::new(wide.stripe_bytes, wide.shards).is_none()
            || wide.shards > catalog.shards
            || !wide.stripe_bytes.is_multiple_of(u64::from(catalog.block_bytes).max(1))
    };
    wides.into_iter().find(|(_, wide)| is_bad(wide))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use layby_types::Rng;
    use tempfile::TempDir;

    fn name(text: &str) -> Name {
        text.parse().expect("tests write good names")
    }

    pub(crate) fn example() -> Catalog {
        let levels = vec![LevelRecord {
            name: name("ssd"),
            kind: Kind::Ssd,
            size: Size(512 << 20),
            path: Some("levels/ssd".into()),
            segment: None,
            encryption: None,
        }];
        let mut catalog = Catalog::new(NodeId([7; 16]), 4096, 2, levels);
        let id = catalog.volume_id_take().expect("the first of many");
        catalog.volumes.insert(
            name("vol0"),
            VolumeRecord {
                id: id.0,
                phase: VolumePhase::Ready,
                length: 1 << 30,
                class: name("normal"),
                path: "volumes/vol0".into(),
                read_only: false,
                allow: vec![AllowRule::Unix],
                share: BTreeMap::from([(name("ssd"), "25%".parse().expect("an amount"))]),
                cap: BTreeMap::new(),
                limits: LimitsConfig::default(),
                discard: DiscardChoice::default(),
                discard_delay: DiscardWait::default(),
                discard_bandwidth: None,
                ublk: false,
                key: None,
                wide: None,
                clone_of: None,
                take: false,
                compression: None,
                local: None,
                device: None,
                home_device: None,
                configured: None,
            },
        );
        catalog
    }

    fn directory() -> TempDir {
        TempDir::new().expect("a temporary directory")
    }

    /// Goal: a key file that an earlier build noted as it was written lies beside the node. Method:
    /// a catalog with a relative one, loaded.
    #[test]
    fn relative_key_files_are_beside_the_node() {
        let dir = directory();
        let mut catalog = example();
        let record = catalog.volumes.get_mut(&name("vol0")).expect("it has one");
        record.key = Some("file:keys/k".parse().expect("a source"));
        catalog.save(dir.path()).expect("the directory is writable");
        let found = Catalog::load(dir.path()).expect("whole").expect("it was just written");
        let key = found.volumes[&name("vol0")].key.as_ref().map(ToString::to_string);
        assert_eq!(key, Some(format!("file:{}", dir.path().join("keys/k").display())));
    }

    /// Goal: what is saved is loaded. Method: a round trip, and an empty directory.
    #[test]
    fn catalog_round_trips() {
        let dir = directory();
        assert_eq!(Catalog::load(dir.path()), Ok(None));
        example().save(dir.path()).expect("the directory is writable");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(example())));
    }

    /// Goal: catalogs from before devices were known are read, and a device survives. Method:
    /// without one no byte speaks of it; with one, a round trip.
    #[test]
    fn devices_are_kept() {
        let dir = directory();
        let mut catalog = example();
        assert!(!String::from_utf8(catalog.to_bytes()).expect("text").contains("home_device"));
        let record = catalog.volumes.get_mut("vol0").expect("the example has it");
        let (key, value) = ("wwid".to_owned(), "naa.5, partition 1".to_owned());
        record.home_device = Some(DeviceIdentity { key, value });
        catalog.save(dir.path()).expect("the directory is writable");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(catalog)));
    }

    /// Goal: catalogs from before there were limits are read, and limits survive. Method: without
    /// limits no byte speaks of them; with them, a round trip.
    #[test]
    fn limits_are_kept_only_where_there_are_some() {
        let dir = directory();
        let mut catalog = example();
        assert!(!String::from_utf8(catalog.to_bytes()).expect("text").contains("limits"));
        let record = catalog.volumes.get_mut("vol0").expect("the example has it");
        record.limits = LimitsConfig { iops_max: Some(5), ..LimitsConfig::default() };
        catalog.save(dir.path()).expect("the directory is writable");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(catalog)));
    }

    /// Goal: catalogs from before there were wide volumes are read, a wide one survives with the
    /// numbers of its parts, and one that cannot be served is refused. Method: without one no byte
    /// speaks of it; with one, a round trip; then with more shards than there are.
    #[test]
    fn wide_volumes_are_kept() {
        let dir = directory();
        let mut catalog = example();
        assert!(!String::from_utf8(catalog.to_bytes()).expect("text").contains("wide"));
        let id = catalog.volume_ids_take(2).expect("many are left");
        assert_eq!(catalog.volume_id_take(), Some(VolumeId(id.0 + 2)));
        let record = catalog.volumes.get_mut("vol0").expect("the example has it");
        record.id = id.0;
        record.wide = Some(WideRecord { shards: 2, stripe_bytes: Stripes::BYTES_DEFAULT });
        assert!(record.parts().eq([id, VolumeId(id.0 + 1)]));
        assert!(record.has_part(VolumeId(id.0 + 1)) && !record.has_part(VolumeId(id.0 + 2)));
        catalog.save(dir.path()).expect("the directory is writable");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(catalog.clone())));
        catalog.shards = 1;
        catalog.save(dir.path()).expect("the directory is writable");
        let report = Catalog::load(dir.path()).expect_err("a part has no shard");
        assert!(report.cause.contains("over 2 of 1 shards"), "{report}");
    }

    /// Goal: catalogs from before there was a grace are read, and deleted volumes survive. Method:
    /// without one no byte speaks of it; with one, a round trip, with sessions and without.
    #[test]
    fn deleted_volumes_are_kept() {
        let dir = directory();
        let mut catalog = example();
        let text = String::from_utf8(catalog.to_bytes()).expect("text");
        assert!(!text.contains("\"deleted\"") && !text.contains("\"local\""));
        assert!(!text.contains("\"device\""));
        let mut record = catalog.volumes.remove("vol0").expect("the example has it");
        assert_eq!(record.local_number(), record.id);
        record.local = Some(7);
        assert_eq!(record.local_number(), 7);
        catalog.deleted.push(DeletedRecord {
            name: name("vol0"),
            volume: Some("00".repeat(16)),
            sessions: Vec::new(),
            at_unix: 1_800_000_000,
            grace_seconds: 604_800,
            waited_seconds: 60,
            record,
        });
        let text = String::from_utf8(catalog.to_bytes()).expect("text");
        assert!(!text.contains("\"sessions\""));
        for (sessions, known) in
            [(vec![2, 1], vec![2, 1]), (vec![u64::MAX, 2], vec![u64::MAX, 2, 1])]
        {
            let volume = "11".repeat(16);
            catalog.deleted[0].learn(Some(StoreIdentity { volume, sessions }));
            catalog.deleted[0].learn(None);
            assert_eq!(catalog.deleted[0].sessions, known);
            assert_eq!(catalog.deleted[0].volume, Some("00".repeat(16)), "that never changes");
            catalog.save(dir.path()).expect("the directory is writable");
            assert_eq!(Catalog::load(dir.path()), Ok(Some(catalog.clone())));
        }
    }

    /// Goal: a crash at any step of a save leaves the old or the new catalog. Method: stop before
    /// staging, within it at every 50th byte, after it, and after publishing; load each time.
    #[test]
    fn crash_between_steps_leaves_a_whole_catalog() {
        let dir = directory();
        let old = example();
        old.save(dir.path()).expect("the directory is writable");
        let mut new = old.clone();
        new.volume_id_take();
        let bytes = encode(&new);
        for length in (0..=bytes.len()).step_by(50) {
            std::fs::write(dir.path().join(NAMES.0), &bytes[..length]).expect("a write");
            assert_eq!(Catalog::load(dir.path()), Ok(Some(old.clone())));
        }
        new.stage(dir.path()).expect("the directory is writable");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(old)));
        Catalog::publish_staged(dir.path()).expect("the directory is writable");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(new)));
    }

    /// Goal: no damaged catalog is believed. Method: cut it at random places and flip random bits;
    /// whatever loads must equal what was saved (a flip may fall into white space).
    #[test]
    fn damage_is_detected() {
        let bytes = encode(&example());
        let mut rng = Rng::new(11);
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            let at = usize::try_from(rng.below(bytes.len() as u64)).expect("an index of a Vec");
            if rng.chance(1, 4) {
                damaged.truncate(at);
            } else {
                damaged[at] ^= 1 << rng.below(8);
            }
            if let Ok(catalog) = decode(&damaged) {
                assert_eq!(catalog, example());
            }
        }
    }

    /// Goal: another program's file and a newer version are refused with the reason. Method: edit
    /// the envelope.
    #[test]
    fn foreign_and_newer_files_are_refused() {
        let dir = directory();
        let whole = String::from_utf8(encode(&example())).expect("JSON is text");
        let cases = [
            ("layby catalog", "other", ReportKind::Invalid, "not `layby catalog`"),
            ("\"version\": 1", "\"version\": 2", ReportKind::Invalid, "has version 2"),
            ("vol0", "vol1", ReportKind::Corrupt, "checksum mismatch"),
            ("length", "lenght", ReportKind::Corrupt, "damaged"),
        ];
        for (from, to, kind, cause) in cases {
            std::fs::write(dir.path().join(CATALOG_FILE_NAME), whole.replacen(from, to, 1))
                .expect("the directory is writable");
            let report = Catalog::load(dir.path()).expect_err(to);
            assert_eq!(report.kind, kind, "{report}");
            assert!(report.cause.contains(cause) && !report.hint.is_empty(), "{report}");
        }
    }

    /// Goal: numbers of volumes end before they repeat. Method: take the last one.
    #[test]
    fn volume_numbers_end() {
        let mut catalog = example();
        catalog.volume_id_next = VolumeId::MAX.0;
        assert_eq!(catalog.volume_ids_take(2), None);
        assert_eq!(catalog.volume_id_take(), Some(VolumeId::MAX));
        assert_eq!(catalog.volume_id_take(), None);
    }

    /// Goal: the last change counts, and an edit ends the record. Method: the file unchanged,
    /// edited, edited back, silent.
    #[test]
    fn live_value_holds_until_the_file_is_edited() {
        let mut record = Some(Live { configured: Some(1), live: Some(2) });
        assert_eq!(Live::resolve(&mut record, Some(1)), (Some(2), false));
        assert_eq!(Live::resolve(&mut record, Some(3)), (Some(3), true));
        assert_eq!(Live::resolve(&mut record, Some(1)), (Some(1), false), "the edit ended it");
        let mut record = Some(Live { configured: Some(1), live: Some(2) });
        assert_eq!(Live::resolve(&mut record, None), (None, true));
        let mut deleted = Some(Live { configured: Some(1), live: None });
        assert_eq!(Live::resolve(&mut deleted, Some(1)), (None, false));
        let mut added = Some(Live { configured: None, live: Some(4) });
        assert_eq!(Live::resolve(&mut added, None), (Some(4), false));
    }
}
