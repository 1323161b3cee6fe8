//! An edge gateway whose cache is small, right and far too large.
//!
//! How: Table I's Large is written and drained while a volume is read, with the SSD level, then the
//! journal, of the sizes that the paper names: 99, 197, 985 and 3200 MB; the other of the two keeps
//! its size. Every node is new, as the paper's gateway was; every file is compared. The files of
//! node, level and journal lie in `LAYBY_ESI_DISK`, or in a temporary folder. Lines `esi_cache {…}`
//! say how long it took; `cargo xtask bench esi-cache` makes it larger and prints the table.
//! Invariant: times are printed and never judged; contents are. Cost: five seconds as it stands.
//! Not for: a level that was full for long; each of these is as old as its test.

use crate::esi_load::{self, Gateway, Load, MEGABYTE};
use layby_tests::{number, seed};
use serde_json::json;

/// In MB, as Section V's third finding prints them.
const SIZES_MB: [u64; 4] = [99, 197, 985, 3200];
/// Room of the level while the journal's differs, and the other way round.
const LEVEL_FIXED_MB: u64 = 197;
const JOURNAL_FIXED_MB: u64 = 497;
const LINK_BITS: u64 = 800_000_000;

#[derive(Clone, Copy)]
struct Sizes {
    varied: &'static str,
    level_mb: u64,
    journal_mb: u64,
}

impl Sizes {
    fn config(self) -> String {
        let (journal, level) = (self.journal_mb * MEGABYTE, self.level_mb * MEGABYTE);
        // A level's room is whole blocks.
        let level = level >> 20 << 20;
        format!(
            "[node]\nshards = 1\n\n[cloud]\njournal = \"{journal}\"\n\n\
             {}size = \"{level}\"\n",
            esi_load::LEVELS
        )
    }
}

fn run(sizes: Sizes, load: Load) {
    let work = esi_load::disk_folder();
    let folder = work.path().join("node");
    let Some(gateway) = Gateway::start(&folder, sizes.config()) else { return };
    let (gateway, mut archive) = gateway.with_archive(number("LAYBY_ESI_ARCHIVE_MIB", 16) << 20);
    let mounted = gateway.files(work.path(), &load);
    let uploaded = gateway.upload(&load, &mounted, LINK_BITS, Some(&mut archive));
    let line = json!({
        "varied": sizes.varied, "level_mb": sizes.level_mb, "journal_mb": sizes.journal_mb,
        "bytes": load.total(), "write_seconds": uploaded.written_seconds,
        "drain_seconds": uploaded.drained_seconds, "bytes_up": uploaded.bytes_up,
        "bytes_read": uploaded.bytes_read, "link_bits": LINK_BITS,
        "processor_seconds": uploaded.processor_seconds,
    });
    esi_load::print("esi_cache", &line);
    gateway.compare(work.path(), mounted, &load);
}

/// Goal: files arrive whatever the sizes of level and journal are; what a size is worth is printed.
/// Method: Table I's Large, `LAYBY_ESI_LARGE` files per user; the smallest level alone unless
/// `LAYBY_ESI_ALL` is 1, in an order that the seed turns round.
#[test]
fn large_files_arrive_whatever_the_cache_holds() {
    if esi_load::is_missing() {
        return;
    }
    let load = Load::large(number("LAYBY_ESI_LARGE", 1));
    let of = |varied, level_mb, journal_mb| Sizes { varied, level_mb, journal_mb };
    let levels = SIZES_MB.map(|size| of("level", size, JOURNAL_FIXED_MB));
    let journals = SIZES_MB.map(|size| of("journal", LEVEL_FIXED_MB, size));
    let mut all: Vec<Sizes> = levels.into_iter().chain(journals).collect();
    if number("LAYBY_ESI_ALL", 0) != 1 {
        all.truncate(1);
    }
    if seed().is_multiple_of(2) {
        all.reverse();
    }
    for sizes in all {
        run(sizes, load);
    }
}
