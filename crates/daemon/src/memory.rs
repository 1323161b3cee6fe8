//! How much memory the node's clients may hold: a share of what the machine grants.
//!
//! How: the least of the machine's memory and the limits of the control groups that the process is
//! in; of that a [`SHARE`]th, at most [`BYTES_DEFAULT_MAX`], unless the configuration says
//! otherwise. Each shard has an equal part, large enough for the longest request where the machine
//! grants that.
//! Invariant: what is printed is what the shards enforce.
//! Cost: some small files, once per start. Not for: levels of memory, whose sizes are configured.

use crate::config::{Config, Kind, Size};
use layby_engine::ClientMemory;
use layby_types::format_bytes;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Clients hold at most one part of so many unless told otherwise.
const SHARE: u64 = 32;
/// About what the node takes beside levels and clients.
const OWN_BYTES: u64 = 64 << 20;
/// The most that they get unasked.
const BYTES_DEFAULT_MAX: u64 = 128 << 20;
/// A shard's part, for a request of the longest kind and others beside it.
const SHARD_BYTES_MIN: u64 = 48 << 20;
/// Bytes that are read of a file that says how much memory there is.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Control groups above the process that are looked at.
const DEPTH_MAX: usize = 64;

/// What a shard's clients may hold, and a line that says so.
pub(crate) fn of_shard(config: &Config, shards: u8) -> (ClientMemory, String) {
    let granted = granted();
    let memory = share(granted, config.client_memory, shards);
    let of = granted.map(|granted| format_bytes(granted.next_multiple_of(1 << 20)));
    let line = format!(
        "client memory {} of {}, and {} for each of up to {} clients",
        format_bytes(memory.bytes_max * u64::from(shards)),
        of.as_deref().unwrap_or("a memory that the system does not tell"),
        format_bytes(memory.connection_bytes_free),
        config.nbd.connections_max
    );
    (memory, line)
}

/// A line where levels in memory and clients may want more than the process may have: the system
/// ends it then.
pub(crate) fn shortage(config: &Config, shards: u8) -> Option<String> {
    let granted = granted()?;
    let clients = share(Some(granted), config.client_memory, shards).bytes_max * u64::from(shards);
    let memory = config.levels.iter().filter(|level| level.kind == Kind::Memory);
    let levels: u64 = memory.map(|level| level.size).sum();
    (levels + clients + OWN_BYTES > granted).then(|| {
        format!(
            "levels in memory of {}, clients' {} and the node's own {} are more than the {} that \
             this process may have: make the levels smaller, or its limit larger",
            format_bytes(levels),
            format_bytes(clients),
            format_bytes(OWN_BYTES),
            format_bytes(granted)
        )
    })
}

fn share(granted: Option<u64>, configured: Option<Size>, shards: u8) -> ClientMemory {
    let shards = u64::from(shards);
    let all = configured.map_or_else(
        || {
            let needed = SHARD_BYTES_MIN * shards;
            granted.map_or(BYTES_DEFAULT_MAX.max(needed), |granted| {
                (granted / SHARE).min(BYTES_DEFAULT_MAX).max(needed.min(granted / 8))
            })
        },
        |size| size.0,
    );
    ClientMemory { bytes_max: all / shards, ..ClientMemory::DEFAULT }
}

/// Bytes of memory that this process may have, where the system tells.
pub(crate) fn granted() -> Option<u64> {
    let machine = text(Path::new("/proc/meminfo")).as_deref().and_then(machine_bytes);
    group_limit().into_iter().chain(machine).min()
}

/// The least limit of its control groups.
fn group_limit() -> Option<u64> {
    let groups = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let groups = group_files(&groups).into_iter().filter_map(|path| text(Path::new(&path)));
    groups.filter_map(|text| text.trim().parse().ok()).min()
}

/// Bytes of memory and swap that this process may have, where the system tells: beyond that the
/// kernel kills it. Of a node that has run, by its control groups alone: a machine may have less
/// memory at a start than it is given later.
pub(crate) fn bound(is_new: bool) -> Option<u64> {
    let meminfo = text(Path::new("/proc/meminfo"));
    let swap = meminfo.as_deref().and_then(|text| kib_of(text, "SwapTotal:")).unwrap_or(0);
    let groups = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    // The first version's limits of swap hold memory, too, and are not read.
    let files = group_files(&groups).into_iter().filter(|file| file.ends_with("memory.max"));
    let files = files.map(|file| file.replace("memory.max", "memory.swap.max"));
    let limits = files.filter_map(|file| text(Path::new(&file))?.trim().parse().ok());
    let swap = limits.chain([swap]).min().expect("the machine's is one");
    let granted = if is_new { granted() } else { group_limit() };
    granted.map(|granted| granted.saturating_add(swap))
}

/// Bytes that the limits of the process leave of its address space, where it has any: memory that
/// is not given then will not be given to it later.
pub(crate) fn address_room() -> Option<u64> {
    /// In the kernel's file: all of the address space, and what is the process's own to write.
    const PLACES: [(Resource, usize); 2] = [(Resource::As, 0), (Resource::Data, 5)];
    let statm = text(Path::new("/proc/self/statm")).unwrap_or_default();
    let rooms = PLACES.into_iter().filter_map(|(limit, place)| {
        let limit = getrlimit(limit).current?;
        let pages: u64 = statm.split_whitespace().nth(place)?.parse().ok()?;
        Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
    });
    rooms.min()
}

/// What to do where memory is not given that no limit forbids.
pub(crate) const GIVEN_LATER: &str = "start it again; where that does not help, end other \
                                      programs, or look at `vm.overcommit_memory`";

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    kib_of(meminfo, "MemTotal:")
}

/// Bytes in a line of `/proc/meminfo`.
fn kib_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The files that hold the limits of the process's control groups, of either version; where there
/// is no limit they hold a word, or a number beyond any machine's.
fn group_files(cgroup: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let path = path.trim_end_matches('/');
        let groups = Path::new(path).ancestors().take(DEPTH_MAX);
        let own = groups.map(|group| group.to_string_lossy().trim_end_matches('/').to_owned());
        files.extend(own.map(|group| format!("{root}{group}/{file}")));
        // In a container the group's own files are at the root.
        files.push(format!("{root}/{file}"));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the share follows what is granted, is configurable, and holds the longest request for
    /// each shard where there is memory for that. Method: machines of several sizes.
    #[test]
    fn shares_follow_what_is_granted() {
        const MIB: u64 = 1 << 20;
        let of = |granted: u64, configured: Option<u64>, shards: u8| {
            share(Some(granted), configured.map(Size), shards).bytes_max
        };
        assert_eq!(of(64 << 30, None, 1), 128 * MIB);
        assert_eq!(of(64 << 30, None, 4), 48 * MIB);
        assert_eq!(of(1 << 30, None, 1), 48 * MIB);
        assert_eq!(of(256 * MIB, None, 1), 32 * MIB, "not more than an eighth");
        assert_eq!(of(1 << 30, Some(96 * MIB), 2), 48 * MIB);
        assert_eq!(share(None, None, 4).bytes_max, 48 * MIB, "the system does not tell");
    }

    /// Goal: both versions of control groups are understood, up to their roots. Method: texts as
    /// Linux writes them.
    #[test]
    fn limits_are_found() {
        assert_eq!(machine_bytes("MemFree: 1 kB\nMemTotal:   2048 kB\n"), Some(2 << 20));
        let files = group_files("0::/a/b\n");
        let dir = "/sys/fs/cgroup";
        for path in ["/a/b", "/a", ""] {
            assert!(files.contains(&format!("{dir}{path}/memory.max")), "{files:?}");
        }
        let files = group_files("7:cpu,memory:/x\n3:cpu:/y\nbroken\n");
        assert!(files.contains(&"/sys/fs/cgroup/memory/x/memory.limit_in_bytes".to_owned()));
        assert!(!files.iter().any(|file| file.contains("/y")), "{files:?}");
        assert!(granted().is_some_and(|bytes| bytes > 0));
    }
}
