//! Open files that the process may have: how many volumes fit, and how many clients.
//!
//! How: the soft limit is raised to the hard one, since only programs that use `select` need it
//! low. Of what is allowed the node's own files, sockets and control clients come first, then
//! volumes, then clients that have not entered a volume, then those that have. A start whose
//! volumes do not fit is refused. While the node runs, a new volume and sockets for virtual
//! machines leave [`KEPT`] descriptors.
//! Invariant: neither volumes nor clients take the node's own: an operator is served however many
//! there are.
//! Cost: two system calls per start, a walk over the open files per new volume. Not for: clients
//! of volumes that are created while the node runs; what is set aside for them is bounded by what
//! the start knew.

use crate::catalog::{Catalog, VolumeRecord};
use crate::cloud::is_store;
use crate::config::{Config, HALF_OPEN_MAX};
use crate::error::{Report, ReportKind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of the node itself: control clients on two addresses, levels, logs, rings, timers.
const OWN: u64 = 192;
/// Descriptors of a volume: home, journal, map, cache, sockets and event descriptors of its guest.
const PER_VOLUME: u64 = 16;
/// Volumes that may be created beyond those of the start, before they count against clients.
const VOLUMES_SPARE: u64 = 8;
/// The least that clients get, however low the limit is.
const CLIENTS_MIN: u64 = 4;
/// The same of those that have not entered, of each kind.
const HALF_OPEN_MIN: u64 = 4;
/// The least of the node itself with one shard: sockets, locks, logs, what the runtime has.
const OWN_MIN: u64 = 32;
/// The least of a shard: its parts of two levels, its ring, its waker.
const SHARD_MIN: u64 = 8;
/// Kept free by volumes: some operators, the fewest clients, files that are written anew.
const KEPT: u64 = 40;
/// The least of a file or device, in each shard: with the page cache and past it.
const FILE_MIN: u64 = 2;
/// The least of a volume in an object store: journal, map, kept copies, a connection.
const STORE_MIN: u64 = 4;

/// How many files the process may have open.
fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit as far as it goes; how many files may be open from now on.
fn raised() -> u64 {
    let Rlimit { maximum, current } = getrlimit(Resource::Nofile);
    // Where that is refused, what holds now goes on holding.
    let _ = setrlimit(Resource::Nofile, Rlimit { maximum, current: maximum });
    getrlimit(Resource::Nofile).current.or(current).unwrap_or(u64::MAX)
}

/// How many descriptors may be opened beside those that are kept; what the kernel does not say is
/// not bounded.
pub(crate) fn room() -> usize {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return usize::MAX };
    let room = limit().saturating_sub(open.count() as u64 + KEPT);
    usize::try_from(room).unwrap_or(usize::MAX)
}

/// Refuses another volume that would take the last open files.
///
/// # Errors
/// A report that names the limit.
pub(crate) fn check_room(error: &str) -> Result<(), Report> {
    if room() as u64 >= PER_VOLUME {
        return Ok(());
    }
    Err(Report::new(ReportKind::Full, error)
        .cause(format!(
            "the process may have {} files open, and its volumes and clients have taken all but \
             what is kept for operators",
            limit()
        ))
        .state("nothing was changed")
        .hint("let it have more (`LimitNOFILE=` of systemd, `ulimit -n`) and start it again"))
}

/// Whether an operation failed since the process, or the system, has no descriptor left.
pub(crate) fn is_lack(cause: &std::io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE))
}

/// Lets no more clients in than open files allow; a line where these are fewer than configured.
///
/// # Errors
/// A report where the volumes do not fit.
pub(crate) fn bound(config: &mut Config, catalog: &Catalog) -> Result<Option<String>, Report> {
    let limit = raised();
    check_volumes(catalog, config.nbd.connections_max, limit)?;
    Ok(bound_to(config, catalog.volumes.len(), limit))
}

fn check_volumes(catalog: &Catalog, clients: u32, limit: u64) -> Result<(), Report> {
    let own = OWN_MIN + SHARD_MIN * u64::from(catalog.shards) + KEPT;
    let least = |record: &VolumeRecord| match is_store(&record.path) {
        true => STORE_MIN,
        false => FILE_MIN * u64::from(record.shards()),
    };
    let needs = catalog.volumes.values().map(least);
    let needed = own + needs.clone().sum::<u64>();
    if needed <= limit {
        return Ok(());
    }
    let fit = needs.scan(own, |sum, least| {
        *sum += least;
        (*sum <= limit).then_some(())
    });
    let (volumes, fit) = (catalog.volumes.len(), fit.count());
    let cause = format!(
        "the process may have {limit} files open; {volumes} volumes and the node itself need \
         {needed} at least, and {fit} volumes fit"
    );
    Err(Report::new(ReportKind::Full, "cannot start the node")
        .cause(cause)
        .state("nothing was started; stored data is untouched")
        .hint(format!(
            "let it have more files open, {} or so (`LimitNOFILE=` of systemd, `ulimit -n`)",
            ample(volumes, clients)
        )))
}

/// How many files let so many clients use so many volumes.
fn ample(volumes: usize, clients: u32) -> u64 {
    let own = OWN + PER_VOLUME * (volumes as u64 + VOLUMES_SPARE);
    own + 2 * HALF_OPEN_MAX as u64 + u64::from(clients)
}

fn bound_to(config: &mut Config, volumes: usize, limit: u64) -> Option<String> {
    let own = OWN + PER_VOLUME * (volumes as u64 + VOLUMES_SPARE);
    let half_open = (limit / 16).clamp(HALF_OPEN_MIN, HALF_OPEN_MAX as u64);
    // Where volumes may take all but what is kept, it is for the fewest.
    let is_scarce = own + 2 * half_open + CLIENTS_MIN > limit;
    let half_open = if is_scarce { HALF_OPEN_MIN } else { half_open };
    let clients = limit.saturating_sub(own + 2 * half_open).max(CLIENTS_MIN);
    config.nbd.half_open_max = usize::try_from(half_open).unwrap_or(HALF_OPEN_MAX);
    let wanted = config.nbd.connections_max;
    let most = u32::try_from(clients).unwrap_or(u32::MAX);
    if most >= wanted {
        return None;
    }
    config.nbd.connections_max = most;
    let needed = ample(volumes, wanted);
    Some(format!(
        "at most {most} clients of the {wanted} of `connections_max`, since the process may have \
         {limit} files open; {needed} would do (`LimitNOFILE=` of systemd, `ulimit -n`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::control::tests::MockNode;

    /// Goal: with room enough nothing changes; with less, clients and the node's own fit into it
    /// together; and there is never none. Method: limits from none to ample.
    #[test]
    fn clients_fit_into_the_limit() {
        for limit in [0, 64, 256, 512, 1024, 2048, 20_000, u64::MAX] {
            let mut config = Config::parse(None, "", &Overrides::default()).expect("it is good");
            let wanted = config.nbd.connections_max;
            let note = bound_to(&mut config, 3, limit);
            let clients = config.nbd.connections_max;
            let all = u64::from(clients) + 2 * config.nbd.half_open_max as u64 + OWN;
            assert!(all <= limit.max(OWN + 2 * HALF_OPEN_MIN + CLIENTS_MIN), "{limit}: {all}");
            assert_eq!(note.is_none(), clients == wanted, "{limit}: {note:?}");
            assert_eq!(note.is_none(), limit >= 2048, "{limit}: {note:?}");
        }
    }

    /// Goal: what volumes leave is enough for the fewest clients, who are all that there are then;
    /// volumes that leave less are refused, and how many would fit is so. Method: five hundred
    /// volumes, and limits around what they need.
    #[test]
    fn volumes_leave_room_for_operators() {
        let node = MockNode::new("[volume.v0]\nsize = \"1MiB\"\n");
        let mut catalog = node.control.view().catalog.clone();
        let record = catalog.volumes["v0"].clone();
        let own = OWN_MIN + SHARD_MIN * u64::from(catalog.shards) + KEPT;
        let named = |number: u32| (format!("v{number}").parse().expect("a name"), record.clone());
        catalog.volumes.extend((1..500).map(named));
        let enough = own + FILE_MIN * 500;
        assert!(check_volumes(&catalog, 1024, enough).is_ok());
        let refused = check_volumes(&catalog, 1024, enough - 1).expect_err("they do not fit");
        assert!(refused.cause.ends_with(" 499 volumes fit"), "{refused}");
        let files = refused.hint.split_once("more files open, ").expect("how many").1;
        let files = files.split_once(' ').expect("a number").0.parse().expect("a number");
        let mut config = Config::parse(None, "", &Overrides::default()).expect("it is good");
        config.nbd.connections_max = 1024;
        assert_eq!(bound_to(&mut config, 500, files), None, "the hint's limit is enough for all");
        let mut config = Config::parse(None, "", &Overrides::default()).expect("it is good");
        assert!(bound_to(&mut config, 500, enough).is_some());
        let clients = u64::from(config.nbd.connections_max) + 2 * config.nbd.half_open_max as u64;
        assert!(clients * 2 <= KEPT, "{clients} clients leave nothing for operators");
    }
}
