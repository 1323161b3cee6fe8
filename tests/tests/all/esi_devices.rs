//! An edge gateway whose data, metadata and log lie on one device, or on a device each.
//!
//! How: the node's directory and maps, its SSD level and its journals lie on one ext4 or on three.
//! Table I's Large is written and drained, alone or while a volume is read that the SSD level
//! holds; then every file is compared. Devices are emulated disks, which serve one request at a
//! time; with `LAYBY_ESI_ALL=1` also loop devices over files of one real disk, in
//! `LAYBY_ESI_DISK`, which have that disk in common. Lines `esi_devices {…}` say how long it took
//! and what each device carried; `cargo xtask bench esi-devices` makes it larger and prints the
//! table.
//! Invariant: times are printed and never judged. What is: contents, that the node says so where
//! devices are shared and only there, and that each role's bytes pass its own device.
//! Cost: ten seconds as it stands. Where something is missing the test says so and skips.

use crate::esi_load::{self, FILES, Gateway, Load, MEGABYTE};
use layby_tests::{Device, DeviceBytes, number, seed};
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;

/// Of a device: journals of two volumes, a level, maps and what ext4 keeps for itself.
const DEVICE_BYTES: u64 = 1 << 30;
/// Larger than the load, so that devices and not the link say how fast it is written.
const JOURNAL_BYTES: u64 = 320 * MEGABYTE;
const LEVEL_BYTES: u64 = 128 << 20;
const LINK_BITS: u64 = 800_000_000;

/// What devices are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backing {
    Emulated,
    OneDisk,
}

#[derive(Clone, Copy)]
struct Case {
    backing: Backing,
    is_several: bool,
    /// Bytes of a volume that is read meanwhile, if any; the level has room for all of it.
    archive_bytes: u64,
}

/// Devices by what lies on them: metadata, data and log; all on the first where there is one.
struct Devices(Vec<Device>);

impl Devices {
    fn new(case: Case, work: &Path) -> Devices {
        let names = ["metadata", "data", "log"];
        let names = &names[..if case.is_several { 3 } else { 1 }];
        Devices(names.iter().map(|name| Devices::device(case.backing, work, name)).collect())
    }

    fn device(backing: Backing, work: &Path, name: &str) -> Device {
        match backing {
            Backing::Emulated => Device::emulated(work, name, DEVICE_BYTES),
            Backing::OneDisk => Device::over_file(work, name, DEVICE_BYTES),
        }
    }

    fn path(&self, index: usize) -> &Path {
        self.0[index.min(self.0.len() - 1)].path()
    }

    fn config(&self) -> String {
        let [metadata, data, log] = [0, 1, 2].map(|index| self.path(index).display().to_string());
        format!(
            "[node]\nshards = 1\n\n[cloud]\njournal = \"{JOURNAL_BYTES}\"\n\
             journal_dir = \"{log}/log\"\nmap_dir = \"{metadata}/map\"\n\n\
             {}size = \"{LEVEL_BYTES}\"\npath = \"{data}/level\"\n",
            esi_load::LEVELS
        )
    }

    fn bytes(&self) -> Vec<DeviceBytes> {
        self.0.iter().map(Device::bytes).collect()
    }

    fn bytes_since(&self, before: &[DeviceBytes]) -> Vec<DeviceBytes> {
        self.bytes().iter().zip(before).map(|(now, before)| now.since(*before)).collect()
    }
}

fn run(case: Case, load: Load) {
    let work = match case.backing {
        Backing::Emulated => TempDir::new().expect("a temporary folder"),
        Backing::OneDisk => esi_load::disk_folder(),
    };
    let devices = Devices::new(case, work.path());
    let folder = devices.path(0).join("node");
    let Some(gateway) = Gateway::start(&folder, devices.config()) else { return };
    let made = devices.bytes();
    let (gateway, mut archive) = match case.archive_bytes > 0 {
        true => {
            let (gateway, archive) = gateway.with_archive(case.archive_bytes);
            (gateway, Some(archive))
        }
        false => (gateway, None),
    };
    let filled = devices.bytes_since(&made);
    let mounted = gateway.files(work.path(), &load);
    assert_says_so(&gateway, case);
    let before = devices.bytes();
    let uploaded = gateway.upload(&load, &mounted, LINK_BITS, archive.as_mut());
    let carried = devices.bytes_since(&before);
    assert_placed(case, &load, &filled, &carried);
    let [read, written]: [fn(&DeviceBytes) -> u64; 2] = [|of| of.read, |of| of.written];
    let line = json!({
        "backing": if case.backing == Backing::Emulated { "emulated" } else { "one disk" },
        "is_several": case.is_several, "is_read": case.archive_bytes > 0, "bytes": load.total(),
        "write_seconds": uploaded.written_seconds, "drain_seconds": uploaded.drained_seconds,
        "bytes_up": uploaded.bytes_up, "bytes_read": uploaded.bytes_read,
        "processor_seconds": uploaded.processor_seconds, "link_bits": LINK_BITS,
        "device_read": carried.iter().map(read).collect::<Vec<_>>(),
        "device_written": carried.iter().map(written).collect::<Vec<_>>(),
    });
    esi_load::print("esi_devices", &line);
    gateway.compare(work.path(), mounted, &load);
}

/// A node says that its journals share a device with others where they do, and only there.
#[track_caller]
fn assert_says_so(gateway: &Gateway, case: Case) {
    let shown = gateway.node.layby(&["volume", "show", FILES]);
    let is_said = shown.contains("share a device");
    assert_eq!(is_said, !case.is_several, "{shown}");
}

/// Each role's bytes passed its own device.
#[track_caller]
fn assert_placed(case: Case, load: &Load, filled: &[DeviceBytes], carried: &[DeviceBytes]) {
    let Some(log) = carried.get(2) else { return };
    assert!(log.written >= load.total(), "the log took {log:?} of {}", load.total());
    assert!(carried[0].written < load.total() / 2, "metadata took {:?}", carried[0]);
    assert!(carried[1].written < load.total() / 2, "data took {:?}", carried[1]);
    let is_filled = filled[1].written >= case.archive_bytes * 9 / 10;
    assert!(is_filled, "the level took {filled:?} of {}", case.archive_bytes);
}

/// Goal: files arrive wherever data, metadata and log lie, and each role keeps to its device; what
/// a device each is worth is printed. Method: Table I's Large, `LAYBY_ESI_LARGE` files per user
/// (the paper's has 1,000), in an order that the seed turns round.
#[test]
fn large_files_arrive_on_one_device_and_on_several() {
    if esi_load::is_missing() {
        return;
    }
    let load = Load::large(number("LAYBY_ESI_LARGE", 1));
    let archive_bytes = number("LAYBY_ESI_ARCHIVE_MIB", 16) << 20;
    let run_both = |backing, archive_bytes| {
        for turn in [0, 1] {
            run(
                Case { backing, is_several: (seed() + turn).is_multiple_of(2), archive_bytes },
                load,
            );
        }
    };
    if number("LAYBY_ESI_ALL", 0) == 1 {
        run_both(Backing::Emulated, 0);
        run_both(Backing::OneDisk, 0);
        run_both(Backing::OneDisk, archive_bytes);
    }
    run_both(Backing::Emulated, archive_bytes);
}
