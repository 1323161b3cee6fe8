//! Which file or device is at a volume's path, whatever the path says.
//!
//! How: the kernel's tree of devices shows identifiers of a disk and the number of a partition; of
//! a loop device, its file. Each start compares what it finds with what the catalog has of the
//! volume.
//! Invariant: a device that is known to be another one than the volume's is not opened, nor one
//! that does not answer where the volume's is known. Where either is not known, nothing changes.
//! Cost: some small files per device and start. Not for: regular files, which a backup brings back
//! as others.

use super::Homes;
use super::marks::Whose;
use crate::catalog::{DeviceIdentity, VolumePhase, VolumeRecord};
use crate::config::Name;
use layby_cloud::{NoAnswer, look_at};
use layby_engine::io::lies_in_memory;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::PoisonError;

/// Where the kernel lists block devices by their numbers.
const DEVICES: &str = "/sys/dev/block";
/// What identifies a disk there, the best first. A controller's serial number is the last resort.
const KEYS: [&str; 11] = [
    "wwid",
    "device/wwid",
    "nguid",
    "uuid",
    "eui",
    "dm/uuid",
    "md/uuid",
    "serial",
    "device/cid",
    "device/serial",
    "loop/backing_file",
];
/// Bytes of an identifier at most.
const VALUE_BYTES_MAX: usize = 512;
/// What identifiers begin with; the rest of one says something.
const PREFIXES: [&str; 6] = ["eui", "naa", "nvme", "scsi", "t10", "uuid"];

/// What was found at a volume's path when a shard was to open it.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundHome {
    /// It is a file in a memory file system.
    is_in_memory: bool,
    /// What it is, as the catalog keeps it.
    device: Option<DeviceIdentity>,
    /// Why it is not the volume's, if so.
    refusal: Option<String>,
    /// The same of one that is accepted, or why it is not known whether it is.
    accepted: Option<String>,
    /// That is since it is another node's, or, where this is false, does not say whose it is.
    is_foreign: Option<bool>,
}

impl Homes {
    /// Looks at what is at a volume's path, and notes it. Why it is not the volume's, or cannot be
    /// told from another one, if so.
    pub(super) fn look(&self, name: &Name, record: &VolumeRecord) -> Option<String> {
        let (path, looked_at) = (self.path(record), self.path(record));
        let (is_new, is_accepted) =
            (record.phase == VolumePhase::Creating, self.accepted.contains(name));
        let before = record.home_device.clone().filter(|_| !is_new);
        let known = before.clone().filter(|_| !is_accepted);
        let expected = before.clone();
        let looking = move || {
            let accepted = match is_accepted {
                true => found(&looked_at, before).refusal,
                false => None,
            };
            FoundHome { accepted, ..found(&looked_at, known) }
        };
        let device = record.home_device.clone();
        let found = look_at(&path, looking).unwrap_or_else(|cause| FoundHome {
            device,
            ..unseen(expected.as_ref(), is_accepted, &cause)
        });
        let whose = self.whose(Some(name), record);
        let is_foreign = matches!(whose, Whose::Other(_));
        let found = match whose.refusal() {
            // A device that does not answer was refused by its own words.
            Some(_) if !is_foreign && found.refusal.is_some() => found,
            Some(cause) => {
                FoundHome { refusal: Some(cause), is_foreign: Some(is_foreign), ..found }
            }
            None => found,
        };
        let refusal = found.refusal.clone();
        self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(record.id, found);
        refusal
    }

    fn found_home(&self, record: &VolumeRecord) -> Option<FoundHome> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&record.id).cloned()
    }

    /// Whether a volume's file was found in a memory file system when a shard was to open it.
    #[must_use]
    pub fn is_in_memory(&self, record: &VolumeRecord) -> bool {
        self.found_home(record).is_some_and(|found| found.is_in_memory)
    }

    /// Why a device that is accepted is another one than before, or may be.
    #[must_use]
    pub fn accepted(&self, record: &VolumeRecord) -> Option<String> {
        self.found_home(record)?.accepted
    }

    /// Whether another device than a volume's was found at its path, or another node's file.
    #[must_use]
    pub fn is_other(&self, record: &VolumeRecord) -> bool {
        self.found_home(record).is_some_and(|found| found.refusal.is_some())
    }

    /// Whether another node's mark was found on a volume's file; none where the file is this node's
    /// to use, as far as marks say.
    pub(super) fn mark_found(&self, record: &VolumeRecord) -> Option<bool> {
        self.found_home(record)?.is_foreign
    }

    /// Writes down the device that a volume is served from.
    pub fn keep_device(&self, record: &mut VolumeRecord) {
        if let Some(found) = self.found_home(record).filter(|found| found.refusal.is_none()) {
            record.home_device = found.device;
        }
    }

    /// Why what is at a volume's path is not its own, if so. Looks at the path.
    pub(super) fn other_device(&self, record: &VolumeRecord) -> Option<String> {
        found(&self.path(record), Some(record.home_device.clone()?)).refusal
    }
}

/// What is known where a look at a volume's path does not end.
fn unseen(before: Option<&DeviceIdentity>, is_accepted: bool, cause: &NoAnswer) -> FoundHome {
    let why = before.map(|before| format!("whether it is {before} is not known: {cause}"));
    match is_accepted {
        true => FoundHome { accepted: why, ..FoundHome::default() },
        false => FoundHome { refusal: why, ..FoundHome::default() },
    }
}

/// What is at a path, of which `known` is to be.
fn found(path: &Path, known: Option<DeviceIdentity>) -> FoundHome {
    let is_in_memory = lies_in_memory(path);
    let nothing = |device| FoundHome { is_in_memory, device, ..FoundHome::default() };
    // What is not there, or cannot be looked at, is seen when it is opened.
    let Ok(metadata) = std::fs::metadata(path) else { return nothing(known) };
    let now = match metadata.file_type().is_block_device() {
        true => identities(Path::new(DEVICES), metadata.rdev()),
        false => Vec::new(),
    };
    let path = path.display();
    let refusal = known.as_ref().and_then(|known| {
        if metadata.is_file() {
            return Some(format!("`{path}` is a file, and the volume's device is {known}"));
        }
        let other = other_than(known, &now)?;
        Some(format!("the device at `{path}` is another one: {other}, not {known}"))
    });
    let device = known.or_else(|| now.into_iter().next());
    FoundHome { refusal, ..nothing(device) }
}

/// What a device is, where it is another one than the known one. Of an identifier that names its
/// kind, the kernel may choose another kind for the same disk after an update.
fn other_than<'a>(known: &DeviceIdentity, now: &'a [DeviceIdentity]) -> Option<&'a DeviceIdentity> {
    let same_key = now.iter().find(|now| now.key == known.key)?;
    let kind = |identity: &DeviceIdentity| {
        let (kind, _) = identity.value.split_once('.')?;
        PREFIXES.contains(&kind).then(|| kind.to_owned())
    };
    (same_key.value != known.value && kind(same_key) == kind(known)).then_some(same_key)
}

/// What stays of the identifier of a mapped device when it is mapped under another name.
fn without_name(value: &str) -> Option<String> {
    if !value.starts_with("CRYPT-") {
        return Some(value.to_owned());
    }
    let words: Vec<&str> = value.splitn(4, '-').collect();
    let is_uuid =
        |word: &&str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    words.get(2).is_some_and(is_uuid).then(|| words[..3].join("-"))
}

/// All that the tree at `devices` says of a block device, the best first.
fn identities(devices: &Path, number: u64) -> Vec<DeviceIdentity> {
    let name = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let Ok(device) = devices.join(name).canonicalize() else { return Vec::new() };
    let read = |folder: &Path, name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        let text = text.trim().trim_end_matches(" (deleted)").to_owned();
        (text.len() <= VALUE_BYTES_MAX && says_something(&text)).then_some(text)
    };
    let partition = read(&device, "partition");
    let disk = match &partition {
        Some(_) => device.parent().unwrap_or(&device),
        None => &device,
    };
    let of = |key: &&str| {
        let mut value = without_name(&read(disk, key)?)?;
        if *key == "loop/backing_file" {
            let from = read(disk, "loop/offset");
            value.extend(from.map(|from| format!(", from byte {from}")));
        }
        value.extend(partition.iter().map(|number| format!(", partition {number}")));
        Some(DeviceIdentity { key: (*key).to_owned(), value })
    };
    KEYS.iter().filter_map(of).collect()
}

/// Whether an identifier is more than zeros behind its kind, as some devices have.
fn says_something(value: &str) -> bool {
    let mut words = value.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| !PREFIXES.contains(&word) && word.bytes().any(|byte| byte != b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Goal: a device is known by what no other has, a partition by its disk and its number, a loop
    /// device by its file; zeros say nothing. Method: a tree of devices as the kernel writes it.
    #[test]
    fn devices_are_known_by_their_identifiers() {
        let tree = TempDir::new().expect("a temporary directory");
        let device = |minor: u32, place: &str, files: &[(&str, &str)]| {
            let folder = tree.path().join("devices").join(place);
            std::fs::create_dir_all(&folder).expect("writable");
            for (name, text) in files {
                let path = folder.join(name);
                std::fs::create_dir_all(path.parent().expect("one")).expect("writable");
                std::fs::write(path, format!("{text}\n")).expect("writable");
            }
            let link = tree.path().join(format!("8:{minor}"));
            std::os::unix::fs::symlink(folder, link).expect("writable");
        };
        device(0, "a", &[("device/wwid", "naa.50a"), ("serial", "S1")]);
        device(1, "a/a1", &[("partition", "1"), ("start", "2048")]);
        device(2, "a/a2", &[("partition", "2")]);
        device(3, "b", &[("wwid", "eui.0000000000000000"), ("serial", "0000"), ("uuid", "")]);
        device(4, "l", &[("loop/backing_file", "/x/y z (deleted)"), ("loop/offset", "0")]);
        let luks = "CRYPT-LUKS2-0123456789abcdef0123456789abcdef-home";
        device(6, "d", &[("dm/uuid", luks)]);
        device(7, "e", &[("dm/uuid", "CRYPT-PLAIN-home")]);
        device(5, "m", &[("loop/backing_file", "/x/y z"), ("loop/offset", "4096")]);
        let of = |minor: u32| {
            let found = identities(tree.path(), rustix::fs::makedev(8, minor));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["device/wwid `naa.50a`", "serial `S1`"]);
        assert_eq!(of(1), ["device/wwid `naa.50a, partition 1`", "serial `S1, partition 1`"]);
        assert_eq!(of(2)[0], "device/wwid `naa.50a, partition 2`");
        assert_eq!(of(4), ["loop/backing_file `/x/y z`"]);
        assert_eq!(of(5), ["loop/backing_file `/x/y z, from byte 4096`"]);
        assert_eq!(of(6), ["dm/uuid `CRYPT-LUKS2-0123456789abcdef0123456789abcdef`"]);
        assert!(of(3).is_empty() && of(7).is_empty() && of(9).is_empty());
    }

    /// Goal: where the look at a device does not end, it is refused, or accepted by name, and then
    /// not called the volume's own. Method: both, with a device that is known and without.
    #[test]
    fn a_device_that_is_not_seen_is_accepted_as_such() {
        let known = DeviceIdentity { key: "serial".to_owned(), value: "S1".to_owned() };
        let hangs = NoAnswer::Hangs("/dev/x".into());
        let of = |before, is_accepted| {
            let found = unseen(before, is_accepted, &hangs);
            (found.refusal.is_some(), found.accepted.is_some())
        };
        assert_eq!(
            (of(Some(&known), false), of(Some(&known), true)),
            ((true, false), (false, true))
        );
        assert_eq!((of(None, false), of(None, true)), ((false, false), (false, false)));
        let said = unseen(Some(&known), true, &hangs).accepted.expect("it may be another one");
        assert!(said.contains("S1") && said.contains("not known"), "{said}");
    }

    /// Goal: a device is another one only where the same identifier of both is known. Method:
    /// pairs.
    #[test]
    fn what_is_not_known_is_no_other_device() {
        let identity = |key: &str, value: &str| DeviceIdentity {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let known = identity("serial", "S1");
        let (same, other) = (identity("serial", "S1"), identity("serial", "S2"));
        let better = identity("wwid", "naa.5");
        assert_eq!(other_than(&known, &[]), None);
        assert_eq!(other_than(&known, std::slice::from_ref(&better)), None);
        assert_eq!(other_than(&known, &[better.clone(), same]), None);
        assert_eq!(other_than(&known, &[better.clone(), other.clone()]), Some(&other));
        let (kind, next) = (identity("wwid", "nvme.1b36-abc"), identity("wwid", "naa.6"));
        assert_eq!(other_than(&better, &[kind]), None, "the kernel may name it by another kind");
        assert_eq!(other_than(&better, std::slice::from_ref(&next)), Some(&next));
    }
}
