//! The figures that the paper on delayed discard prints, and its device.
//!
//! How: constants, read from the paper's text and its Tables 2 to 4; its charts have no readable
//! values. Invariant: nothing here comes from a run.

/// Files at once.
pub(super) const FILES: u32 = 10_000;
/// How often all of them are replaced.
pub(super) const ROUNDS: u32 = 50;
/// Percent of the volume that dummy files fill before.
pub(super) const DUMMY_PERCENT: u64 = 50;
/// GiB that the host sees, and beyond: 32, of which an eighth is spare.
pub(super) const LOGICAL_GIB: u64 = 28;
pub(super) const SPARE_GIB: u64 = 4;
/// Seconds between commits of the journal.
pub(super) const COMMIT_SECONDS: u64 = 5;

/// What a table has for one scenario: sent when enabled, sent and merged when delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) device: &'static str,
    pub(super) enabled: u32,
    pub(super) delayed: u32,
    pub(super) merged: u32,
}

const fn counted(device: &'static str, enabled: u32, delayed: u32, merged: u32) -> Counted {
    Counted { device, enabled, delayed, merged }
}

/// Tables 2 to 4, batch-erase and single-erase.
pub(super) const TABLES: [[Counted; 2]; 3] = [
    [counted("FEMU", 4623, 1448, 3163), counted("FEMU", 4660, 1127, 3627)],
    [counted("NVMe SSD", 3217, 515, 2590), counted("NVMe SSD", 8492, 943, 7326)],
    [counted("SATA SSD", 3437, 670, 2580), counted("SATA SSD", 9858, 2347, 7341)],
];

/// Fig. 1: copies of Disabled to Enabled, batch-erase, at most.
pub(super) const BATCH_COPIES: f64 = 30_000.0;
/// Fig. 3: copies of Disabled and of Enabled to Delay-D, single-erase.
pub(super) const SINGLE_COPIES: [f64; 2] = [1322.0, 709.0];
/// Fig. 4: time on an NVMe SSD: batch-erase in percent, single-erase how many times faster.
pub(super) const NVME_BATCH_PERCENT: f64 = -27.0;
pub(super) const NVME_SINGLE: f64 = 2.1;
