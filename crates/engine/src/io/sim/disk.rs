//! One simulated disk: what survives a crash, what readers see, and the changes in between.
//!
//! How: `current` is what reads return. Each change also joins a log in the order it took effect;
//! a sync moves the log's front into `durable`. At a crash the rest of the log is dropped, or
//! replayed onto `durable` with each sector kept or lost by chance; durable writes in the log are
//! always replayed, in their place, so that an older volatile change can never bury one.
//! Invariant: `durable` with the whole log applied equals `current`, except after a failed sync or
//! at-rest corruption, whose point is to break that.
//! Cost: memory for every change since the last sync.
//! Not for: timing; `device` models that.

use super::pages::Pages;
use super::{CrashMode, OperationKind};
use crate::io::{DiskExtent, IoError, PAGE_BYTES};
use layby_types::{Nanos, Rng};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// What a disk keeps or loses as one in a power cut.
pub(super) const SECTOR: u64 = 512;
/// What a CPU stores to persistent memory as one.
pub(super) const STORE: u64 = 8;
/// What a cache flush makes durable as one.
const CACHE_LINE: u64 = 64;

/// New content for a range.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    Zeros(u64),
}

/// One change, in the order it took effect.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) offset: u64,
    pub(super) content: Content,
    pub(super) durable: bool,
    /// The unit that tears: each is kept or lost whole.
    pub(super) grain: u64,
}

impl Change {
    pub(super) fn write(offset: u64, bytes: Vec<u8>) -> Self {
        Change { offset, content: Content::Bytes(bytes), durable: false, grain: SECTOR }
    }

    pub(super) fn zero(offset: u64, length: u64) -> Self {
        Change { offset, content: Content::Zeros(length), durable: false, grain: SECTOR }
    }

    pub(super) fn length(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Zeros(length) => *length,
        }
    }

    fn apply(&self, pages: &mut Pages) {
        self.apply_part(pages, 0..self.length());
    }

    /// Applies the bytes `part`, counted from the change's start; what lay behind an end that has
    /// come nearer is gone.
    fn apply_part(&self, pages: &mut Pages, part: Range<u64>) {
        let offset = self.offset + part.start;
        let part = part.start..part.end.min(pages.length().saturating_sub(self.offset));
        if part.is_empty() {
            return;
        }
        match &self.content {
            Content::Bytes(bytes) => {
                pages.write(offset, &bytes[part.start as usize..part.end as usize]);
            }
            Content::Zeros(_) => pages.zero(offset, part.end - part.start),
        }
    }

    /// Applies some of the change: nothing, everything, or each grain by its own coin.
    fn apply_torn(&self, pages: &mut Pages, rng: &mut Rng) {
        match rng.below(3) {
            0 => {}
            1 => self.apply(pages),
            _ => {
                let mut at = 0;
                while at < self.length() {
                    let next = ((self.offset + at) / self.grain + 1) * self.grain - self.offset;
                    let end = next.min(self.length());
                    if rng.chance(1, 2) {
                        self.apply_part(pages, at..end);
                    }
                    at = end;
                }
            }
        }
    }
}

/// What shall befall an operation instead of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It fails; a write leaves a mixture of old and new sectors.
    Fail(Errno),
    /// A write is done and answered with an error, as where the link breaks.
    Done(Errno),
    /// A durable write is done, and the sync by which it is made durable fails.
    Unsynced(Errno),
    /// A write is refused, and nothing of it is done.
    Refused(Errno),
    /// It ends well, and a fault behind it waits for the next.
    Passed,
    /// It claims success and does nothing.
    Lost,
    /// It claims success and lands elsewhere.
    Misdirected(u64),
}

/// The disk.
#[derive(Debug)]
pub(super) struct SimDisk {
    pub(super) name: String,
    durable: Pages,
    current: Pages,
    log: VecDeque<Change>,
    /// Changes ever taken off the log's front: the sequence number of its first entry.
    log_first: u64,
    faults: VecDeque<(OperationKind, Fault)>,
    unreadable: Vec<Range<u64>>,
    broken: Vec<Range<u64>>,
    pub(super) full: bool,
    /// Nothing ends before this.
    pub(super) stuck_until: Nanos,
    /// Everything fails.
    pub(super) is_gone: bool,
    /// So many writes of a hundred fail.
    pub(super) flaky_percent: u64,
    pub(super) attached: bool,
    pub(super) mapped: bool,
    /// Under cache-flush persistence a mapping's stores need `persist` or a sync.
    pub(super) flushes_caches: bool,
    /// Counts crashes, so that a mapping from before one is recognised.
    pub(super) epoch: u64,
}

impl SimDisk {
    pub(super) fn new(name: &str, length: u64) -> Self {
        SimDisk {
            name: name.to_owned(),
            durable: Pages::new(length),
            current: Pages::new(length),
            log: VecDeque::new(),
            log_first: 0,
            faults: VecDeque::new(),
            unreadable: Vec::new(),
            broken: Vec::new(),
            full: false,
            stuck_until: Nanos::ZERO,
            is_gone: false,
            flaky_percent: 0,
            attached: true,
            mapped: false,
            flushes_caches: false,
            epoch: 0,
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.current.length()
    }

    /// What lies on the disk now.
    pub(super) fn image(&self) -> Pages {
        self.current.clone()
    }

    /// All of the disk is this from now on, durably. Nothing may be in flight for it.
    pub(super) fn put_image(&mut self, image: Pages) {
        (self.durable, self.current) = (image.clone(), image);
        (self.mapped, self.epoch) = (false, self.epoch + 1);
        self.log_first += self.log.len() as u64;
        self.log.clear();
    }

    /// Gives the disk another length, durably: what lies behind a nearer end never comes back.
    pub(super) fn resize(&mut self, length: u64) {
        if let Some(over) = self.length().checked_sub(length).filter(|over| *over > 0) {
            self.change(Change { durable: true, ..Change::zero(length, over) });
        }
        self.current.resize(length);
        self.durable.resize(length);
    }

    pub(super) fn extents(&self, offset: u64, length: u64) -> Vec<DiskExtent> {
        self.current.extents(offset, length)
    }

    /// Reads, unless a bad sector lies in the range.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let end = offset + bytes.len() as u64;
        if self.unreadable.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(Errno::IO.into());
        }
        self.current.read(offset, bytes);
        Ok(())
    }

    /// The whole disk as it is, bad sectors included.
    pub(super) fn read_raw(&self, bytes: &mut [u8]) {
        self.current.read(0, bytes);
    }

    /// Takes a change into effect. Bad sectors that it covers are remapped and work again. One that
    /// was submitted before a truncation extends the disk again, as it does with a file.
    pub(super) fn change(&mut self, change: Change) {
        let covered = change.offset..change.offset + change.length();
        if covered.end > self.length() {
            self.current.resize(covered.end);
            self.durable.resize(covered.end);
        }
        self.unreadable = std::mem::take(&mut self.unreadable)
            .into_iter()
            .flat_map(|bad| {
                [bad.start..bad.end.min(covered.start), bad.start.max(covered.end)..bad.end]
            })
            .filter(|bad| !bad.is_empty())
            .collect();
        change.apply(&mut self.current);
        self.log.push_back(change);
        self.settle();
    }

    /// A failed change: some of its sectors may have been written all the same.
    pub(super) fn change_torn(&mut self, change: &Change, rng: &mut Rng) {
        let mut torn = self.current.clone();
        change.apply_torn(&mut torn, rng);
        let mut bytes = vec![0; change.length() as usize];
        torn.read(change.offset, &mut bytes);
        self.change(Change::write(change.offset, bytes));
    }

    /// Nobody needs what a range holds: nothing of it goes, all does, or each sector by its own
    /// coin. What goes does so for good, before any sync. Nothing behind the end is there to go.
    pub(super) fn discard(&mut self, offset: u64, length: u64, rng: &mut Rng) {
        let length = length.min(self.length().saturating_sub(offset));
        if length == 0 {
            return;
        }
        let zeros = |at, length| Change { durable: true, ..Change::zero(at, length) };
        match rng.below(3) {
            0 => {}
            1 => self.change(zeros(offset, length)),
            _ => {
                for at in (offset..offset + length).step_by(SECTOR as usize) {
                    if rng.chance(1, 2) {
                        self.change(zeros(at, SECTOR.min(offset + length - at)));
                    }
                }
            }
        }
    }

    /// The position in the log that a sync submitted now must reach.
    pub(super) fn mark(&self) -> u64 {
        self.log_first + self.log.len() as u64
    }

    /// Makes everything before `mark` durable.
    pub(super) fn sync(&mut self, mark: u64) {
        while self.log_first < mark {
            self.settle_first();
        }
        self.settle();
    }

    /// A failed sync: the changes before `mark` stay visible, but no later sync covers them.
    pub(super) fn sync_failed(&mut self, mark: u64, rng: &mut Rng) {
        while self.log_first < mark {
            let change = self.log.pop_front().expect("a mark never passes the log's end");
            self.log_first += 1;
            if change.durable {
                change.apply(&mut self.durable);
            } else {
                change.apply_torn(&mut self.durable, rng);
            }
        }
        self.settle();
    }

    /// A write that a failed sync drops: readers see it, and no later sync covers it.
    pub(super) fn change_dropped(&mut self, change: Change, rng: &mut Rng) {
        assert!(!change.durable, "what is durable is not dropped");
        self.change(change);
        let change = self.log.pop_back().expect("only durable changes leave the log");
        change.apply_torn(&mut self.durable, rng);
    }

    /// Flushes the cache lines that hold a range.
    pub(super) fn persist(&mut self, offset: u64, length: u64) {
        let start = offset / CACHE_LINE * CACHE_LINE;
        let end = (offset + length).next_multiple_of(CACHE_LINE).min(self.length());
        self.rewrite_durably(start..end, |_| {});
    }

    /// Flips bits of a range where they are stored: at least one, at most eight.
    pub(super) fn corrupt(&mut self, offset: u64, length: u64, rng: &mut Rng) {
        let mut flipped = Vec::new();
        for _ in 0..=rng.below(8) {
            let bit = rng.below(length * 8);
            if !flipped.contains(&bit) {
                flipped.push(bit);
                let at = offset + bit / 8;
                self.rewrite_durably(at..at + 1, |bytes| bytes[0] ^= 1 << (bit % 8));
            }
        }
    }

    pub(super) fn add_fault(&mut self, kind: OperationKind, fault: Fault) {
        self.faults.push_back((kind, fault));
    }

    /// What befalls the next operation of a kind; a sync of a write's own fails only where it has
    /// one, so that fault waits for a durable write.
    pub(super) fn take_fault(&mut self, kind: OperationKind, is_durable: bool) -> Option<Fault> {
        let is_its = |(of, fault): &(OperationKind, Fault)| {
            *of == kind && (is_durable || !matches!(fault, Fault::Unsynced(_)))
        };
        let index = self.faults.iter().position(is_its)?;
        let (_, fault) = self.faults.remove(index).expect("it was found there");
        (fault != Fault::Passed).then_some(fault)
    }

    pub(super) fn make_unreadable(&mut self, range: Range<u64>) {
        self.unreadable.push(range);
    }

    /// Where the whole pages begin that a mapping cannot read.
    pub(super) fn unreadable_pages(&self) -> BTreeSet<u64> {
        let pages = self.unreadable.iter().flat_map(|bad| {
            (bad.start / PAGE_BYTES * PAGE_BYTES..bad.end).step_by(PAGE_BYTES as usize)
        });
        pages.filter(|page| page + PAGE_BYTES <= self.length()).collect()
    }

    pub(super) fn break_range(&mut self, range: Range<u64>) {
        self.broken.push(range);
    }

    pub(super) fn mend(&mut self) {
        self.broken.clear();
    }

    /// Whether the change fails, for good.
    pub(super) fn is_broken(&self, change: &Change) -> bool {
        let end = change.offset + change.length();
        self.broken.iter().any(|bad| bad.start < end && change.offset < bad.end)
    }

    /// Cuts the power. `in_flight` are changes that had started but not ended.
    pub(super) fn crash(&mut self, mode: CrashMode, in_flight: Vec<Change>, rng: &mut Rng) {
        let log = std::mem::take(&mut self.log);
        self.log_first += log.len() as u64;
        for change in log {
            match mode {
                _ if change.durable => change.apply(&mut self.durable),
                CrashMode::KeepSome => change.apply_torn(&mut self.durable, rng),
                CrashMode::KeepAll => change.apply(&mut self.durable),
                CrashMode::DropAll => {}
            }
        }
        for change in in_flight {
            if mode != CrashMode::DropAll {
                change.apply_torn(&mut self.durable, rng);
            }
        }
        self.current = self.durable.clone();
        (self.attached, self.mapped, self.stuck_until) = (true, false, Nanos::ZERO);
        self.faults.clear();
        self.epoch += 1;
    }

    /// Changes bytes so that the result is both visible and durable.
    fn rewrite_durably(&mut self, range: Range<u64>, edit: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.current.read(range.start, &mut bytes);
        edit(&mut bytes);
        let content = Content::Bytes(bytes);
        self.change(Change { offset: range.start, content, durable: true, grain: STORE });
    }

    /// Applies the durable changes at the log's front, which nothing older can bury any more.
    fn settle(&mut self) {
        while self.log.front().is_some_and(|change| change.durable) {
            self.settle_first();
        }
    }

    fn settle_first(&mut self) {
        let change = self.log.pop_front().expect("a mark never passes the log's end");
        self.log_first += 1;
        change.apply(&mut self.durable);
    }
}
