//! A host that makes and deletes files on a flash device in time.
//!
//! How: the trace room's ext4-like allocator says where files lie and what a commit frees; writes
//! go to the timed flash model, which holds the host up when its queue is full. A commit comes
//! every five seconds, or when there is no room before. What it freed is dropped, sent at once, or
//! given to the policy of delayed discard, which is told of every write before it is issued.
//! Invariant: sizes, times and the device are divided by the same scale; numbers of files and of
//! commits' discards are not. Cost: about a third of a microsecond per page written or copied.

use crate::median::median;
use layby_sim::device::flash::timed::{
    Command, Completion, Parallelism, Request, TimedFlash, Timing,
};
use layby_sim::device::flash::{
    CleanAhead, Configuration, Flash, Geometry, LogicalPage, Statistics, Stream, TrimRule,
};
use layby_sim::policy::discard::{DiscardDelay, DiscardLimits, DiscardMode, Discards};
use layby_trace::{Files, FilesSpec, PageRun, Placement};
use layby_types::Nanos;
use std::ops::Range;

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Below so many free blocks the device cleans before it takes a write.
const FREE_BLOCKS_MIN: u32 = 3;
/// A policy that waits at most this much in the paper's size: the whole device.
const PENDING_BYTES_MAX: u64 = DiscardLimits::BYTES_MAX;

/// What becomes of what commits free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discarding {
    /// Nothing.
    Disabled,
    /// It is sent at once.
    Enabled,
    /// It waits, is merged and sent in order, unless it is written before.
    Delayed,
}

impl Discarding {
    pub(super) const ALL: [Discarding; 3] =
        [Discarding::Disabled, Discarding::Enabled, Discarding::Delayed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Discarding::Disabled => "Disabled",
            Discarding::Enabled => "Enabled",
            Discarding::Delayed => "Delay-D",
        }
    }
    fn mode(self) -> DiscardMode {
        match self {
            Discarding::Disabled => DiscardMode::Off,
            Discarding::Enabled => DiscardMode::Immediate,
            Discarding::Delayed => DiscardMode::Delayed,
        }
    }
}

/// The order in which files come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// All files are made, then all deleted, again and again.
    Batch,
    /// All files are made; then the oldest is deleted and a new one made, again and again.
    Single,
}

impl Scenario {
    pub(super) const ALL: [Scenario; 2] = [Scenario::Batch, Scenario::Single];

    pub(super) fn name(self) -> &'static str {
        match self {
            Scenario::Batch => "batch-erase",
            Scenario::Single => "single-erase",
        }
    }
}

/// A device and how a host uses it, in the paper's size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    /// Bytes that the host sees, and beyond.
    pub(super) logical_bytes: u64,
    pub(super) spare_bytes: u64,
    /// Bytes of a block of flash, on all planes.
    pub(super) block_bytes: u64,
    /// Free blocks, in thousandths, below which the device cleans ahead, and how much of a block
    /// must be invalid for it, in thousandths.
    pub(super) ahead_permille: [u32; 2],
    pub(super) timing: Timing,
    pub(super) parallelism: Parallelism,
    /// How the device treats discards.
    pub(super) rule: TrimRule,
    /// Files at once, and how often each place is used.
    pub(super) files: u32,
    pub(super) rounds: u32,
    /// The part of the volume that is filled for good before.
    pub(super) dummy_percent: u64,
    pub(super) placement: Placement,
    /// Time between commits.
    pub(super) commit: Nanos,
    /// Time that the host spends on each file.
    pub(super) think: Nanos,
    /// How long discards wait beyond their commit.
    pub(super) delay: Nanos,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Pages that cleaning copied.
    pub(super) copies: f64,
    /// Pages that the host wrote.
    pub(super) written: f64,
    /// What commits freed, in ranges; what the device was sent; what became part of another range,
    /// and what was written again before.
    pub(super) freed: f64,
    pub(super) sent: f64,
    pub(super) merged: f64,
    pub(super) cancelled: f64,
    /// Seconds that the run took, multiplied by the scale.
    pub(super) seconds: f64,
    /// Commits.
    pub(super) commits: f64,
}

struct Host {
    machine: Machine,
    scale: u64,
    device: TimedFlash,
    files: Files,
    table: Discards,
    now: Nanos,
    commit_due: Nanos,
    commits: u64,
}

/// Runs a scenario. Panics when the machine is none or the files do not fit.
pub(super) fn run(
    machine: &Machine,
    scenario: Scenario,
    discarding: Discarding,
    (scale, seed): (u64, u64),
) -> Seen {
    let mut host = Host::new(machine, discarding, scale, seed);
    let (before, begin) = (host.device.flash().statistics(), host.now);
    match scenario {
        Scenario::Batch => (0..machine.rounds).for_each(|_| {
            (0..machine.files).for_each(|_| host.create());
            (0..machine.files).for_each(|_| host.delete());
            host.commit();
        }),
        Scenario::Single => {
            (0..machine.files).for_each(|_| host.create());
            (0..u64::from(machine.files) * u64::from(machine.rounds)).for_each(|_| {
                host.delete();
                host.create();
            });
        }
    }
    host.seen(&before, begin)
}

impl Host {
    fn new(machine: &Machine, discarding: Discarding, scale: u64, seed: u64) -> Host {
        let limits = DiscardLimits {
            mode: discarding.mode(),
            delay: DiscardDelay::Fixed(Nanos(machine.delay.0 / scale)),
            bytes_max: PENDING_BYTES_MAX,
            ..DiscardLimits::DEFAULT
        };
        let flash = Flash::new(&flash(machine, scale, seed)).expect("the paper's device is one");
        let erase = Nanos(machine.timing.erase.0 / scale);
        let timing = Timing { erase, ..machine.timing };
        let pages = u64::from(flash.logical_pages());
        let device = TimedFlash::new(flash, timing, machine.parallelism).expect("in bounds");
        let files = Files::new(FilesSpec::ext4(pages, scale, machine.placement), seed);
        let period = Nanos(machine.commit.0 / scale);
        let mut host = Host {
            machine: *machine,
            scale,
            device,
            files,
            table: Discards::new(limits),
            now: Nanos::ZERO,
            commit_due: period,
            commits: 0,
        };
        let kept = pages * (100 - machine.dummy_percent) / 100;
        while host.files.free_pages() > kept {
            host.create();
        }
        host.files.keep_for_good();
        host.commit();
        host
    }
    fn seen(&self, before: &Statistics, begin: Nanos) -> Seen {
        let flash = self.device.flash().statistics().since(before);
        let table = self.table.counters();
        let end = self.now.max(self.device.end_last());
        Seen {
            copies: flash.cleaning_pages as f64,
            written: flash.host_pages as f64,
            freed: table.received.ranges as f64,
            sent: flash.trims as f64,
            merged: table.merged.ranges as f64,
            cancelled: table.cancelled.ranges as f64,
            seconds: (end.0 - begin.0) as f64 / 1e9 * self.scale as f64,
            commits: self.commits as f64,
        }
    }

    fn create(&mut self) {
        self.pass(Nanos(self.machine.think.0 / self.scale));
        let mut runs = Vec::new();
        if !self.files.create(&mut runs) {
            // As ext4 does: what was deleted is had by a commit ahead of its time.
            self.commit();
            assert!(self.files.create(&mut runs), "the files fit on the device");
        }
        runs.iter().for_each(|run| self.write(*run));
    }
    fn delete(&mut self) {
        assert!(self.files.delete_oldest(), "there is a file to delete");
    }
    /// Time goes on; what is due is done.
    fn pass(&mut self, time: Nanos) {
        self.now = Nanos(self.now.0 + time.0);
        if self.now >= self.commit_due {
            self.commit();
        }
        self.send();
    }
    fn commit(&mut self) {
        self.commits += 1;
        self.commit_due = Nanos(self.now.0 + self.machine.commit.0 / self.scale);
        let commit = self.files.commit();
        commit.writes.iter().for_each(|run| self.write(*run));
        for run in commit.freed {
            self.table.reclaim(bytes(run), self.now);
            self.send();
        }
    }
    fn write(&mut self, run: PageRun) {
        self.table.written(bytes(run));
        let done = self.submit(Command::Write(Stream::default()), run);
        // Where the queue is full, the host waits.
        self.now = self.now.max(done.start);
    }
    fn send(&mut self) {
        while let Some(range) = self.table.due(self.now) {
            let run = PageRun {
                first: range.start / PAGE_BYTES,
                count: (range.end - range.start) / PAGE_BYTES,
            };
            self.submit(Command::Trim, run);
            // The device keeps the order, so nothing has to wait for its end.
            self.table.finished(&range);
        }
    }
    fn submit(&mut self, command: Command, run: PageRun) -> Completion {
        let (first, count) = (LogicalPage(run.first as u32), run.count as u32);
        let request = Request { arrival: self.now, command, first, count };
        self.device.submit(request).expect("the device does not wear out")
    }
}

fn bytes(run: PageRun) -> Range<u64> {
    run.first * PAGE_BYTES..(run.first + run.count) * PAGE_BYTES
}

/// The device at a scale: as many blocks, each with fewer pages.
fn flash(machine: &Machine, scale: u64, seed: u64) -> Configuration {
    let pages_per_block = (machine.block_bytes / PAGE_BYTES / scale) as u32;
    let logical = (machine.logical_bytes / PAGE_BYTES / scale) as u32;
    let blocks = ((machine.logical_bytes + machine.spare_bytes) / machine.block_bytes) as u32;
    let geometry = Geometry {
        page_bytes: Geometry::PAGE_BYTES_DEFAULT,
        pages_per_block,
        logical_pages: logical,
        blocks,
        reserve_blocks: 0,
    };
    let [free, invalid] = machine.ahead_permille;
    let ahead = (free > 0).then(|| CleanAhead {
        free_blocks: blocks * free / 1000,
        invalid_pages_min: (pages_per_block * invalid / 1000).max(1),
    });
    Configuration {
        free_blocks_min: FREE_BLOCKS_MIN,
        ahead,
        trim: machine.rule,
        seed,
        ..Configuration::plain(geometry)
    }
}

impl Seen {
    /// Pages copied for each that the host wrote.
    pub(super) fn copies_per_page(&self) -> f64 {
        self.copies / self.written.max(1.0)
    }
    /// Medians, figure by figure. Panics when there is nothing.
    pub(super) fn median(runs: &[Seen]) -> Seen {
        let pick = |figure: fn(&Seen) -> f64| median(runs.iter().map(figure));
        Seen {
            copies: pick(|seen| seen.copies),
            written: pick(|seen| seen.written),
            freed: pick(|seen| seen.freed),
            sent: pick(|seen| seen.sent),
            merged: pick(|seen| seen.merged),
            cancelled: pick(|seen| seen.cancelled),
            seconds: pick(|seen| seen.seconds),
            commits: pick(|seen| seen.commits),
        }
    }
}
