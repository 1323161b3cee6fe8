//! Random histories with crashes, beside a plain array that knows durable from volatile.

use super::host::*;
use crate::*;
use layby_types::*;
use std::collections::{BTreeSet, HashMap};
use std::vec::Vec;

const BLOCKS: u64 = 24;
const CELLS_ALL: usize = BLOCKS as usize * CELLS;

/// The versions of a cell since the last crash, oldest first; zero for never written or zeroed.
struct Cell {
    versions: Vec<u32>,
    /// The oldest version that a power cut may leave: a completed flush covered it.
    durable: usize,
    /// The latest acknowledged version.
    latest: usize,
}

struct Inflight {
    volume: usize,
    call: Call,
    /// Read: what each cell may return.
    seen: Vec<BTreeSet<u32>>,
    /// Change or flush: the version of each cell that the end of the request vouches for.
    vouched: Vec<usize>,
}

struct Run {
    host: Host,
    cells: Vec<Vec<Cell>>,
    inflight: HashMap<RequestId, Inflight>,
    seed: u64,
    value_next: u32,
}

fn range(call: &Call) -> std::ops::Range<usize> {
    (call.offset / CELL) as usize..((call.offset + call.length) / CELL) as usize
}

fn overlap(a: &Call, b: &Call) -> bool {
    range(a).start < range(b).end && range(b).start < range(a).end
}

impl Run {
    fn start(&mut self, rng: &mut Rng) {
        let volume = rng.below(self.host.specs.len() as u64) as usize;
        let call = random_call(rng);
        let races = |i: &Inflight| {
            i.volume == volume && changes(i.call.operation) && overlap(&i.call, &call)
        };
        if changes(call.operation) && self.inflight.values().any(races) {
            return; // two racing writes have no defined order
        }
        self.value_next += 1;
        let value = if call.operation == Operation::Write { self.value_next } else { 0 };
        let mut seen = Vec::new();
        let mut vouched = Vec::new();
        if changes(call.operation) {
            for at in range(&call) {
                let cell = &mut self.cells[volume][at];
                cell.versions.push(value);
                vouched.push(cell.versions.len() - 1);
            }
            self.show_to_readers(volume, &call, value);
        } else if call.operation == Operation::Flush {
            vouched = self.cells[volume].iter().map(|cell| cell.latest).collect();
        } else {
            let visible = |cell: &Cell| cell.versions[cell.latest..].iter().copied().collect();
            seen = self.cells[volume][range(&call)].iter().map(visible).collect();
        }
        let request = self.host.submit(self.host.specs[volume].id, call, value);
        self.inflight.insert(request, Inflight { volume, call, seen, vouched });
        self.collect();
    }

    /// Reads in flight may see what starts meanwhile.
    fn show_to_readers(&mut self, volume: usize, call: &Call, value: u32) {
        let readers = self.inflight.values_mut().filter(|i| i.volume == volume);
        for reader in readers.filter(|i| i.call.operation == Operation::Read) {
            let mine = range(&reader.call);
            for at in mine.clone().filter(|at| range(call).contains(at)) {
                reader.seen[at - mine.start].insert(value);
            }
        }
    }

    fn collect(&mut self) {
        for answer in std::mem::take(&mut self.host.completed) {
            let seed = self.seed;
            assert_eq!(answer.result, Ok(()), "replay with SEED={seed}");
            let Inflight { volume, call, seen, vouched } =
                self.inflight.remove(&answer.request).expect("a request completes once");
            if call.operation == Operation::Read {
                for (index, (cell, expected)) in answer.cells.iter().zip(seen).enumerate() {
                    let at = range(&call).start + index;
                    assert!(
                        expected.contains(cell),
                        "volume {volume} cell {at} reads {cell}, expected one of {expected:?}; \
                         replay with SEED={seed}"
                    );
                }
            }
            if call.operation == Operation::Flush {
                for (cell, version) in self.cells[volume].iter_mut().zip(&vouched) {
                    cell.durable = cell.durable.max(*version);
                }
            }
            if changes(call.operation) {
                let critical = self.host.specs[volume].class == ClassId(0);
                for (at, version) in range(&call).zip(vouched) {
                    let cell = &mut self.cells[volume][at];
                    cell.latest = version;
                    if call.flags.fua || critical {
                        cell.durable = version;
                    }
                }
            }
        }
    }

    /// Every cell reads as the latest version, or after a crash as one that may have survived.
    fn read_all(&mut self, after_crash: bool) {
        for volume in 0..self.cells.len() {
            let call = call(Operation::Read, 0, BLOCKS * 4096);
            let answer = self.host.run(self.host.specs[volume].id, call, 0);
            assert_eq!(answer.result, Ok(()), "replay with SEED={}", self.seed);
            for (at, read) in answer.cells.iter().enumerate() {
                let cell = &mut self.cells[volume][at];
                let oldest = if after_crash { cell.durable } else { cell.latest };
                let allowed = &cell.versions[oldest..];
                let seed = self.seed;
                assert!(
                    allowed.contains(read),
                    "volume {volume} cell {at} reads {read}, allowed {allowed:?}, \
                     after crash: {after_crash}; replay with SEED={seed}"
                );
                if after_crash {
                    *cell = Cell { versions: std::vec![*read], durable: 0, latest: 0 };
                }
            }
        }
    }

    /// Shows some slots of the log's level to its cleaner.
    fn clean(&mut self, rng: &mut Rng) {
        let levels = &self.host.cache.spec().levels;
        let Some(level) = levels.iter().rposition(|level| level.kind == LevelKind::Ssd) else {
            return;
        };
        let slots: Vec<Slot> =
            (0..levels[level].slots).filter(|_| rng.chance(1, 2)).map(Slot).collect();
        let segments = cleaning::Segments { free: rng.below(8) as u32, kept: 2 };
        let level = LevelIndex(level as u8);
        self.host.clean(level, &slots, segments);
    }

    fn change_shares(&mut self, rng: &mut Rng) {
        let mut spec = self.host.cache.spec().clone();
        for class in &mut spec.classes {
            class.borrow = rng.chance(1, 2);
            class.keep_reads = rng.chance(1, 2);
            let kinds = AdmissionKind::ALL;
            class.admission = kinds[rng.below(kinds.len() as u64) as usize];
        }
        self.host.cache.reconfigure(spec).expect("only borrowing, keeping and admission changed");
    }
}

fn random_call(rng: &mut Rng) -> Call {
    let offset = rng.below(CELLS_ALL as u64);
    let length = (1 + rng.below(40)).min(CELLS_ALL as u64 - offset);
    let operation = match rng.below(20) {
        0..=6 => Operation::Read,
        7..=14 => Operation::Write,
        15 => Operation::Trim,
        16 => Operation::WriteZeroes,
        17 => Operation::Cache,
        _ => Operation::Flush,
    };
    let mut call = call(operation, offset * CELL, length * CELL);
    call.flags.fua = rng.chance(1, 6);
    if operation == Operation::Flush {
        (call.offset, call.length) = (0, 0);
    }
    call
}

fn changes(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes)
}

fn one_history(spec: CacheSpec, volumes: &[VolumeSpec], seed: u64) {
    one_history_with(spec, volumes, seed, false);
}

/// A history, with a log's cleaner at work or without; what cleaning dropped and destaged.
fn one_history_with(
    mut spec: CacheSpec,
    volumes: &[VolumeSpec],
    seed: u64,
    is_cleaned: bool,
) -> [u64; 2] {
    let mut counted = [0; 2];
    if seed % 2 == 1 {
        spec.read_ahead = ReadAheadLimits::DEFAULT;
    }
    let mut rng = Rng::new(seed);
    let cell = || Cell { versions: std::vec![0], durable: 0, latest: 0 };
    let cells = volumes.iter().map(|_| (0..CELLS_ALL).map(|_| cell()).collect()).collect();
    let mut host = Host::new(spec, volumes, seed);
    if is_cleaned {
        host.cache.set_cleaning(cleaning::Limits::MAX);
    }
    let mut run = Run { host, cells, inflight: HashMap::new(), seed, value_next: 0 };
    for _ in 0..6 {
        for _ in 0..60 {
            match rng.below(12) {
                0..=5 => run.start(&mut rng),
                6 => run.host.tick(Nanos::from_secs(rng.below(8))),
                7 if rng.chance(1, 4) => run.host.checkpoint_when_calm(),
                8 => run.change_shares(&mut rng),
                9 if rng.chance(1, 2) => {
                    let volume = run.host.specs[rng.below(volumes.len() as u64) as usize].id;
                    run.host.at_hand(volume, rng.below(BLOCKS), 1 + rng.below(BLOCKS));
                }
                _ if is_cleaned && rng.chance(1, 2) => run.clean(&mut rng),
                _ => drop(run.host.step()),
            }
            run.collect();
        }
        if rng.chance(1, 3) {
            run.host.settle();
            run.collect();
            run.read_all(false);
        }
        for level in 0..run.host.cache.spec().levels.len() as u8 {
            let counters = run.host.cache.level_view(LevelIndex(level), run.host.now).counters;
            counted[0] += counters.cleaning_dropped;
            counted[1] += counters.cleaning_destaged;
        }
        run.inflight.clear();
        run.host.crash();
        if is_cleaned {
            run.host.cache.set_cleaning(cleaning::Limits::MAX);
        }
        run.read_all(true);
    }
    counted
}

fn each_seed(count: u64, test: impl Fn(u64)) {
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    match only {
        Some(seed) => test(seed),
        None => (0..count).for_each(test),
    }
}

/// Goal: whatever happens, reads return the latest write, and after a power cut every flushed or
/// durable write is there. Method: random calls, evictions, destages, share changes, checkpoints
/// and crashes on tiny levels, three volumes of two classes, beside the array model.
#[test]
fn histories_equal_a_plain_array() {
    each_seed(400, |seed| {
        let slots = [3 + (seed % 4) as u32, 4 + (seed % 5) as u32, 8 + (seed % 9) as u32];
        let volumes = [volume(1, 0, BLOCKS), volume(2, 1, BLOCKS), volume(3, 0, BLOCKS)];
        one_history(spec(slots), &volumes, seed);
    });
}

/// Goal: the same under every eviction policy. Method: as above, a policy per seed in every level.
#[test]
fn histories_under_every_policy() {
    each_seed(300, |seed| {
        let mut spec = spec([3 + (seed % 4) as u32, 4 + (seed % 5) as u32, 8 + (seed % 9) as u32]);
        let kinds = EvictionKind::ALL;
        for (index, level) in spec.levels.iter_mut().enumerate() {
            level.eviction = kinds[(seed as usize + index * (seed as usize / 6)) % kinds.len()];
        }
        let volumes = [volume(1, 0, BLOCKS), volume(2, 1, BLOCKS), volume(3, 0, BLOCKS)];
        one_history(spec, &volumes, seed);
    });
}

/// Goal: the same where most of the levels is dirty, and a part of them is kept. Method: levels of
/// 16 to 40 blocks with and without guarantees, watermarks that let all become dirty.
#[test]
fn histories_in_levels_full_of_dirty_blocks() {
    each_seed(400, |seed| {
        let mut spec = spec([4, 16 + (seed % 7) as u32, 16 + (seed % 25) as u32]);
        for level in &mut spec.levels {
            (level.watermarks.dirty_red, level.watermarks.dirty_green) = (100, 100);
        }
        let mut volumes = [volume(1, 0, BLOCKS), volume(2, 1, BLOCKS), volume(3, 1, BLOCKS)];
        if seed % 3 == 1 {
            spec.classes[0].shares[2].guaranteed = 5;
            volumes[1].shares[2].guaranteed = 3;
        }
        one_history(spec, &volumes, seed);
    });
}

/// Goal: the same with other lists of levels: none persistent, NVM alone, SSD alone, SSD below
/// memory. Method: as above.
#[test]
fn histories_with_other_levels() {
    each_seed(200, |seed| {
        let mut spec = spec([4, 5, 9]);
        let keep: &[usize] = match seed % 5 {
            0 => &[0],
            1 => &[1],
            2 => &[2],
            3 => &[0, 2],
            _ => &[1, 2],
        };
        spec.levels = keep.iter().map(|i| spec.levels[*i]).collect();
        for class in &mut spec.classes {
            class.levels = 0b111;
        }
        one_history(spec, &[volume(1, 0, BLOCKS), volume(2, 1, BLOCKS)], seed);
    });
}

/// Goal: the same where volumes write through: no record of a log comes back over what their homes
/// hold, and none is newer than that. Method: as above, over several lists of levels; the host
/// asserts that no record of such a volume is dirty, and checkpoints ask nothing of their homes.
#[test]
fn histories_that_write_through() {
    each_seed(600, |seed| {
        let mut spec = spec([3 + (seed % 4) as u32, 4 + (seed % 5) as u32, 8 + (seed % 9) as u32]);
        let keep: &[usize] = match seed % 6 {
            0 => &[0, 2],
            1 => &[2],
            2 => &[0, 1],
            _ => &[0, 1, 2],
        };
        spec.levels = keep.iter().map(|i| spec.levels[*i]).collect();
        if keep.len() < 3 {
            spec.classes.iter_mut().for_each(|class| class.levels = 0b111);
        }
        let mut volumes = [volume(1, 0, BLOCKS), volume(2, 1, BLOCKS), volume(3, 0, BLOCKS)];
        volumes[1].write_through = true;
        volumes[2].write_through = seed % 2 == 0;
        one_history(spec, &volumes, seed);
    });
}

/// Goal: a log's cleaner that drops and destages at any moment loses nothing, and shows nothing
/// old, whatever the levels, shares and eviction policies are. Method: as above, with slots shown
/// to the cache at random moments, and limits with which half of the level may be dropped.
#[test]
fn histories_with_a_cleaner() {
    let counted = std::sync::Mutex::new([0; 2]);
    each_seed(600, |seed| {
        let mut spec = spec([3 + (seed % 4) as u32, 4 + (seed % 5) as u32, 8 + (seed % 17) as u32]);
        let keep: &[usize] = match seed % 4 {
            0 => &[2],
            1 => &[0, 2],
            _ => &[0, 1, 2],
        };
        spec.levels = keep.iter().map(|i| spec.levels[*i]).collect();
        if keep.len() < 3 {
            spec.classes.iter_mut().for_each(|class| class.levels = 0b111);
        }
        let kinds = EvictionKind::ALL;
        for (index, level) in spec.levels.iter_mut().enumerate() {
            level.eviction = kinds[(seed as usize / 4 + index) % kinds.len()];
            if seed % 3 == 0 {
                (level.watermarks.dirty_red, level.watermarks.dirty_green) = (100, 100);
            }
        }
        let mut volumes = [volume(1, 0, BLOCKS), volume(2, 1, BLOCKS), volume(3, 0, BLOCKS)];
        volumes[2].write_through = seed % 5 == 0;
        if seed % 7 == 0 {
            let last = spec.levels.len() - 1;
            spec.classes[1].shares[last].guaranteed = 4;
            volumes[1].shares[last].guaranteed = 3;
        }
        let [dropped, destaged] = one_history_with(spec, &volumes, seed, true);
        let mut counted = counted.lock().expect("no other thread counts");
        *counted = [counted[0] + dropped, counted[1] + destaged];
    });
    let [dropped, destaged] = counted.into_inner().expect("no other thread counts");
    let is_replay = std::env::var("SEED").is_ok();
    assert!(is_replay || dropped > 2000 && destaged > 500, "{dropped}, {destaged}");
}
