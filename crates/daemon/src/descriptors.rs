//! Open files that the process may have, and how many clients that allows.
//!
//! How: the soft limit is raised to the hard one, since only programs that use `select` need it
//! low. Of what is allowed the node's own files, sockets and control clients come first, then
//! clients that have not entered a volume, then those that have.
//! Invariant: what clients may take leaves the node's own: an operator is served however many come.
//! Cost: two system calls per start. Not for: volumes that are created while the node runs; what is
//! set aside for them is bounded by what the start knew.

use crate::catalog::Catalog;
use crate::config::{Config, HALF_OPEN_MAX};
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

/// Raises the limit as far as it goes; how many files may be open from now on.
fn raised() -> u64 {
    let Rlimit { maximum, current } = getrlimit(Resource::Nofile);
    // Where that is refused, what holds now goes on holding.
    let _ = setrlimit(Resource::Nofile, Rlimit { maximum, current: maximum });
    getrlimit(Resource::Nofile).current.or(current).unwrap_or(u64::MAX)
}

/// Lets no more clients in than open files allow; a line where these are fewer than configured.
pub(crate) fn bound(config: &mut Config, found: Option<&Catalog>) -> Option<String> {
    let volumes = found.map_or(0, |catalog| catalog.volumes.len());
    bound_to(config, volumes, raised())
}

fn bound_to(config: &mut Config, volumes: usize, limit: u64) -> Option<String> {
    let own = OWN + PER_VOLUME * (volumes as u64 + VOLUMES_SPARE);
    let half_open = (limit / 16).clamp(HALF_OPEN_MIN, HALF_OPEN_MAX as u64);
    let clients = limit.saturating_sub(own + 2 * half_open).max(CLIENTS_MIN);
    config.nbd.half_open_max = usize::try_from(half_open).unwrap_or(HALF_OPEN_MAX);
    let wanted = config.nbd.connections_max;
    let most = u32::try_from(clients).unwrap_or(u32::MAX);
    if most >= wanted {
        return None;
    }
    config.nbd.connections_max = most;
    let needed = own + 2 * HALF_OPEN_MAX as u64 + u64::from(wanted);
    Some(format!(
        "at most {most} clients of the {wanted} of `connections_max`, since the process may have \
         {limit} files open; {needed} would do (`LimitNOFILE=` of systemd, `ulimit -n`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

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
}
