//! The configuration: any text is refused with an explanation or becomes a node's plan.
//!
//! How: what parses is laid over a new node's catalog, which runs the checks that need both.
//! Invariant: nothing is made or changed on disk; paths are only looked at.
//! Not for: an existing node's catalog beside a configuration; the daemon's tests do that.

use layby_daemon::assembly::prepare;
use layby_daemon::catalog::{Catalog, NodeId};
use layby_daemon::config::{Config, Overrides, VolumeConfig};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::homes::Homes;
use std::path::Component;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let overrides = Overrides { dir: Some("/nonexistent".into()), ..Overrides::default() };
    match Config::parse(Some("layby.toml".into()), &text, &overrides) {
        Err(report) => explained(&report),
        Ok(config) if !config.volumes.values().all(is_inside) => {}
        Ok(config) => {
            let fresh = Catalog::new(NodeId([7; 16]), 4096, 1, Vec::new());
            if let Err(report) = prepare(&config, Some(fresh), &Homes::new(&config.dir, None)) {
                explained(&report);
            }
        }
    }
}

/// A node opens the backings that a configuration names; a fuzzer must not open the machine's.
fn is_inside(volume: &VolumeConfig) -> bool {
    let parts = volume.path.iter().flat_map(|path| path.components());
    parts.into_iter().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn explained(report: &Report) {
    // A path may be one that the system does not take, which is a failure of its call.
    let expected = [ReportKind::Invalid, ReportKind::Full, ReportKind::InUse, ReportKind::Failure];
    assert!(expected.contains(&report.kind), "{report}");
    let lines = [&report.error, &report.cause, &report.state, &report.hint];
    assert!(lines.iter().all(|line| !line.is_empty()), "{report}");
    assert!(!report.error.contains('\n') && !report.hint.contains('\n'), "{report}");
}

/// A configuration with every key, and a few small ones.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![("empty".to_owned(), Vec::new())];
    seeds.push(("full".into(), FULL.into()));
    let tables: Vec<&str> = FULL.split("\n\n").collect();
    let named = tables.iter().enumerate();
    seeds.extend(named.map(|(index, table)| (format!("table_{index}"), table.as_bytes().to_vec())));
    seeds
}

const FULL: &str = r#"[node]
block_size = "8KiB"
shards = 2
nice = -5
io = "epoll"

[nbd]
socket = "nbd.sock"
listen = ["127.0.0.1:10809", "[::1]:10809"]
connections_max = 100
handshake_timeout = "5s"

[control]
socket = "control.sock"
http = "127.0.0.1:9600"

[[level]]
name = "dram"
kind = "memory"
size = "64MiB"
policy = "s3-fifo"

[[level]]
name = "nvm"
kind = "nvm"
size = "64MiB"
persistence = "auto"
dirty_red = "80%"
dirty_green = "60%"
used_red = "95%"
used_green = "90%"

[[level]]
name = "ssd"
kind = "ssd"
size = "512MiB"
path = "ssd.level"

[writeback]
merge_size = "1MiB"
idle_timeout = "2s"
inflight_max = 4

[read_ahead]
window_max = "512KiB"
streak_min = 3

[sizing]
enabled = true

[class.critical]
levels = ["nvm", "ssd", "dram"]
rank = 0
durable_writes = true
borrow = true
share = { nvm = "25%" }

[class.batch]
levels = ["ssd"]
rank = 9
keep_reads = true
weight = 7
latency_objective = "2ms"
cap = { ssd = "40%" }

[volume.one]
size = "1GiB"
class = "critical"
allow = ["unix", "127.0.0.1/32"]

[volume.two]
size = "64MiB"
path = "two"
read_only = true
share = { ssd = "16MiB" }
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the fuzzer begins with a configuration that passes every check. Method: prepare it.
    #[test]
    fn the_full_seed_is_sound() {
        let overrides = Overrides { dir: Some("/nonexistent".into()), ..Overrides::default() };
        let config = Config::parse(None, FULL, &overrides).unwrap_or_else(|report| {
            panic!("{report}");
        });
        let fresh = Catalog::new(NodeId([7; 16]), 4096, 1, Vec::new());
        prepare(&config, Some(fresh), &Homes::new(&config.dir, None))
            .unwrap_or_else(|report| panic!("{report}"));
    }
}
