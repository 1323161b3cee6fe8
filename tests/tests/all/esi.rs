//! Files of many users on an ext4 whose volume lives in an object store, behind a narrow link.
//!
//! How: the workloads of the edge gateway's paper, scaled: users × files × bytes, in flat or deep
//! directories (Table I), and bursts larger than the cache (Table IV, 1:1000). Node, nbdfuse, loop,
//! ext4; all files are written and synced, then the volume is drained, then `layby restore` makes
//! an image of what the store has, in which every file is compared. No write may fail, however
//! small the journal. Lines `esi {…}` say how long that took and what went up; `cargo xtask bench
//! esi` makes the loads larger by `LAYBY_ESI_*` and prints the tables.
//! Invariant: times are printed and never judged; contents are. Cost: ten seconds as it stands.
//! Where FUSE, loop devices or the store's program are missing the tests say so and skip.

use crate::esi_load::{self, Gateway, Load, MEGABYTE};
use layby_tests::number;
use serde_json::json;
use tempfile::TempDir;

/// One load over a link of so many bits per second, with a journal of so many bytes.
fn run(name: &str, load: Load, journal: u64, link_bits: u64) {
    let work = TempDir::new().expect("a temporary folder");
    let config = format!(
        "[node]\nshards = 1\n\n[cloud]\njournal = \"{journal}\"\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"64MiB\"\n"
    );
    let Some(gateway) = Gateway::start(&work.path().join("node"), config) else { return };
    let mounted = gateway.files(work.path(), &load);
    let uploaded = gateway.upload(&load, &mounted, link_bits, None);
    let line = json!({
        "case": name, "is_deep": load.is_deep, "bytes": load.total(), "journal": journal,
        "files": load.users * load.files, "link_bits": link_bits,
        "write_seconds": uploaded.written_seconds, "drain_seconds": uploaded.drained_seconds,
        "bytes_up": uploaded.bytes_up, "requests": uploaded.requests,
        "link_share": uploaded.link_share(uploaded.bytes_up, link_bits),
        "payload_share": uploaded.link_share(load.total(), link_bits),
    });
    esi_load::print("esi", &line);
    gateway.compare(work.path(), mounted, &load);
}

/// Goal: files of 4 KiB by the thousand arrive, in flat and in deep trees. Method: Table I's Tiny,
/// scaled by `LAYBY_ESI_FILES` per user.
#[test]
fn tiny_files_arrive() {
    if esi_load::is_missing() {
        return;
    }
    let files = number("LAYBY_ESI_FILES", 40);
    for is_deep in [false, true] {
        let load = Load { users: 25, files, bytes: 4096, is_deep };
        run("tiny", load, 256 * MEGABYTE, number("LAYBY_ESI_LINK_BITS", 100_000_000));
    }
}

/// Goal: a burst larger than the cache is slowed down and never fails. Method: Table IV's cases at
/// 1:1000, those with the least cache unless `LAYBY_ESI_ALL` is 1; server B is A with half the
/// link.
#[test]
fn bursts_beyond_the_cache_arrive() {
    if esi_load::is_missing() {
        return;
    }
    let cases = [
        ("B", true, 50),
        ("A", false, 99),
        ("A", true, 99),
        ("A", true, 197),
        ("B", true, 99),
        ("B", true, 197),
        ("A", true, 497),
        ("A", false, 197),
        ("B", false, 99),
        ("A", false, 497),
    ];
    let is_all = number("LAYBY_ESI_ALL", 0) == 1;
    let link = number("LAYBY_ESI_BURST_BITS", 800_000_000);
    for (server, is_deep, cache) in cases.into_iter().take(if is_all { 10 } else { 1 }) {
        let load = Load { users: 2, files: 100, bytes: MEGABYTE, is_deep };
        let link = if server == "B" { link / 2 } else { link };
        run(&format!("burst {server} {cache}"), load, cache * MEGABYTE, link);
    }
}
