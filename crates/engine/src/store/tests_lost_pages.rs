//! Pages of an NVM level that its device cannot return, over a level alone.
//!
//! How: a random history of stores and syncs ends in order or with a power cut. A start on what is
//! left is the reference; then the same bytes are put back, pages of them fail, and starts are held
//! against it. Which blocks may be errors is known from the headers in the bytes.
//! Invariant: a block is as the reference found it, or an error where a page that may hold its
//! newest version is lost; never an older version. Cost: some seconds.

use super::layout::Superblock;
use super::nvm_layout::{HeaderState, NVM_MAGIC, NvmGeometry, NvmHeader, merge};
use super::tests_both::for_each_seed;
use super::{
    NvmConfig, NvmStore, Recovered, Region, SeqSource, StoreError, StoreEvent, StoreIdentity,
    SyncScope, Ticket, UNREADABLE_PAGE,
};
use crate::io::{CrashMode, DiskId, Image, Io, PAGE_BYTES, SimIo};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Rng, Seq, ShardIndex, Slot, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: u64 = 150;
const KEYS: u64 = 60;
const BLOCKS: u64 = 150;
const BASE: u64 = PAGE_BYTES;

fn key(index: u64) -> BlockKey {
    BlockKey::new(VolumeId(1), BlockIndex(index))
}

/// A level, and what it was asked to hold.
struct Bench {
    io: SimIo,
    disk: DiskId,
    size: BlockSize,
    rng: Rng,
    nvm: Option<NvmStore>,
    versions: u64,
    /// What a start has to find at least.
    floor: BTreeMap<u64, u64>,
    latest: BTreeMap<u64, u64>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut io = SimIo::new(seed);
        let size = if seed % 3 == 2 { 4 * BlockSize::MIN.bytes() } else { BlockSize::MIN.bytes() };
        let size = BlockSize::new(size).expect("a power of two");
        let length = BASE + BLOCKS * u64::from(size.bytes());
        let disk = match seed % 2 {
            0 => io.add_disk("nvm", length),
            _ => io.add_persistent_memory("nvm", length),
        };
        let (rng, versions) = (Rng::new(seed), 0);
        let (floor, latest) = (BTreeMap::new(), BTreeMap::new());
        let mut bench = Bench { io, disk, size, rng, nvm: None, versions, floor, latest };
        let config = bench.config(false);
        NvmStore::format(&mut bench.io, &config, seed | 1).expect("large enough");
        bench.open().expect("just formatted");
        bench
    }

    fn config(&self, is_strict: bool) -> NvmConfig {
        let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
        let length = BLOCKS * u64::from(self.size.bytes());
        let region = Region { disk: self.disk, base: BASE, length, block_size: self.size };
        NvmConfig { region, identity, is_strict, token_tag: 2 }
    }

    fn open(&mut self) -> Result<Recovered, StoreError> {
        self.nvm = None;
        let config = self.config(false);
        let (mut nvm, found) = NvmStore::open(&mut self.io, config, SeqSource::new(Seq(1)))?;
        nvm.reach(&mut self.io)?;
        self.nvm = Some(nvm);
        Ok(found)
    }

    fn content(&self, key: u64, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.size.len()];
        Rng::new(key << 32 | version).fill(&mut bytes);
        bytes[..8].copy_from_slice(&version.to_le_bytes());
        bytes
    }

    /// Each key has a slot of its number, or that in which a start found it.
    fn write(&mut self, index: u64, slot: Slot, durable: bool) {
        self.versions += 1;
        let (version, data) = (self.versions, self.content(index, self.versions));
        let nvm = self.nvm.as_mut().expect("it is open");
        let entry = (slot, key(index), true);
        nvm.store(&mut self.io, Ticket(version), &[entry], &data, durable);
        self.latest.insert(index, version);
        self.run(|floor| {
            if durable {
                floor.insert(index, version);
            }
        });
    }

    /// Waits until nothing is in flight.
    fn run(&mut self, then: impl FnOnce(&mut BTreeMap<u64, u64>)) {
        let nvm = self.nvm.as_mut().expect("it is open");
        let mut turns = 0..10_000;
        while !nvm.is_idle() && turns.next().is_some() {
            let mut done = Vec::new();
            self.io.wait(Nanos::NEVER, &mut done);
            done.into_iter().for_each(|done| nvm.on_io(&mut self.io, done));
        }
        assert!(turns.next().is_some(), "a store ends");
        let mut events = Vec::new();
        nvm.on_tick(&mut self.io, Nanos::ZERO, u64::MAX);
        nvm.take_events(&mut events);
        for event in events {
            match event {
                StoreEvent::Stored { result, .. } | StoreEvent::Synced { result, .. } => {
                    result.expect("it is sound");
                }
                StoreEvent::Corrupt(info) => assert_eq!(info.what, UNREADABLE_PAGE),
                _ => {}
            }
        }
        then(&mut self.floor);
    }

    fn sync(&mut self) {
        let nvm = self.nvm.as_mut().expect("it is open");
        nvm.sync(&mut self.io, Ticket(0), SyncScope::Stores);
        let latest = self.latest.clone();
        self.run(|floor| *floor = latest);
    }

    /// Writes for a while, and ends in order or with a power cut.
    fn live(&mut self) -> bool {
        for _ in 0..1 + self.rng.below(300) {
            let index = self.rng.below(KEYS);
            let durable = self.rng.chance(1, 4);
            self.write(index, Slot(index as u32), durable);
            if self.rng.chance(1, 20) {
                self.sync();
            }
        }
        let is_in_order = self.rng.chance(1, 2);
        if is_in_order {
            self.sync();
            self.sync();
        }
        self.nvm = None;
        let modes = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
        self.io.crash(modes[self.rng.below(3) as usize]);
        is_in_order
    }

    /// What each block reads as; `None` for an error.
    fn read_all(&self, found: &Recovered) -> BTreeMap<u64, Option<u64>> {
        let nvm = self.nvm.as_ref().expect("it is open");
        let entries = found.entries.iter().map(|entry| {
            let index = entry.key.block().0;
            let version = nvm.read(entry.slot).ok().map(|bytes| {
                let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
                assert!(bytes == self.content(index, version), "mixed bytes");
                version
            });
            (index, version)
        });
        entries.collect()
    }

    fn put_back(&mut self, image: Image) {
        self.nvm = None;
        self.io.put_image(self.disk, image);
    }

    fn geometry(&self) -> NvmGeometry {
        let plan = NvmGeometry::plan(BLOCKS * u64::from(self.size.bytes()), self.size);
        plan.expect("large enough")
    }

    fn instance(&self) -> u64 {
        let page = &self.io.peek(self.disk)[BASE as usize..];
        Superblock::decode(page, NVM_MAGIC, "nvm", BASE).expect("it is sound").instance
    }

    /// The sound headers in the bytes, with the pages of their data.
    fn headers(&self) -> Vec<(NvmHeader, std::ops::Range<u64>)> {
        let (bytes, geometry, instance) =
            (self.io.peek(self.disk), self.geometry(), self.instance());
        let of = |physical: u32| {
            let [header, copy] =
                [geometry.header_at(physical), geometry.copy_at(physical)].map(|at| {
                    NvmHeader::decode(&bytes[(BASE + at) as usize..][..32], instance, physical)
                });
            let at = BASE + geometry.data_at(physical);
            let data = at..at + u64::from(self.size.bytes());
            [header, copy, merge(header, copy)].into_iter().filter_map(move |state| match state {
                HeaderState::Sound(header) => Some((header, data.clone())),
                _ => None,
            })
        };
        (0..geometry.physical).flat_map(of).collect()
    }

    /// Pages of every kind but the superblock's, never a header's and its copy's.
    fn draw(&mut self) -> BTreeSet<u64> {
        let geometry = self.geometry();
        let block = u64::from(self.size.bytes());
        let [header, copy] = [geometry.header_at(0), geometry.copy_at(0)].map(|at| BASE + at);
        let end = BASE + u64::from(geometry.data_first) * block;
        let mut pages = BTreeSet::new();
        for _ in 0..1 + self.rng.below(8) {
            let page = match self.rng.below(4) {
                0 => BASE + block,
                1 => header + self.rng.below((copy - header) / PAGE_BYTES) * PAGE_BYTES,
                2 => copy + self.rng.below((end - copy) / PAGE_BYTES) * PAGE_BYTES,
                _ => {
                    end + self.rng.below(u64::from(geometry.physical) * block) / PAGE_BYTES
                        * PAGE_BYTES
                }
            };
            let twin = match page {
                _ if (header..copy).contains(&page) => page + (copy - header),
                _ if (copy..end).contains(&page) => page - (copy - header),
                _ => 0,
            };
            if !pages.contains(&twin) {
                pages.insert(page);
            }
        }
        pages
    }

    fn fail(&mut self, pages: &BTreeSet<u64>) {
        for page in pages {
            let at = page + 512 * self.rng.below(8);
            self.io.fail_reads(self.disk, at, 512);
        }
    }
}

/// Goal: pages that cannot be read cost the blocks whose newest version they may hold, and nothing
/// else, over restarts; the level is whole again once all was written. Method: see the header;
/// pages of every kind but superblocks, after a stop and after a power cut, on mappings that are
/// synced and on persistent memory, with blocks of a page and of four.
#[test]
fn lost_pages_cost_what_lay_there() {
    let [errors, marks] = [const { AtomicU64::new(0) }; 2];
    for_each_seed(SEEDS, |seed| {
        let mut bench = Bench::new(seed);
        let is_in_order = bench.live();
        let (image, headers) = (bench.io.image(bench.disk), bench.headers());
        let found = bench.open().expect("nothing is damaged");
        assert!(found.damaged.is_empty() && found.undecided.is_none());
        let reference = bench.read_all(&found);
        bench.put_back(image);
        let pages = bench.draw();
        bench.fail(&pages);
        let mark = BASE + u64::from(bench.size.bytes());
        let is_lost = |data: &std::ops::Range<u64>| pages.range(data.clone()).next().is_some();
        // Without a mark what power loss tore cannot be told from what was durable.
        let is_unknown = pages.contains(&mark) && !is_in_order;
        let may_fail = |index: u64| {
            let mut mine = headers.iter().filter(|(header, _)| header.key == key(index));
            mine.any(|(_, data)| is_unknown || is_lost(data))
        };
        let found = bench.open().expect("the superblock is sound");
        assert_eq!(found.undecided, None);
        let structures = pages.iter().filter(|page| **page < BASE + bench.geometry().data_at(0));
        for page in structures {
            assert!(found.damaged.iter().any(|info| info.offset == *page), "{page} is not named");
        }
        let first = bench.read_all(&found);
        for index in 0..KEYS {
            let (before, after) = (reference.get(&index).copied(), first.get(&index).copied());
            let floor = bench.floor.get(&index).copied().unwrap_or(0);
            match after {
                Some(None) => {
                    assert!(may_fail(index), "block {index} need not be lost");
                    errors.fetch_add(1, Ordering::Relaxed);
                }
                Some(Some(version)) => assert!(version >= floor, "block {index} is older"),
                None => assert_eq!(floor, 0, "block {index} is gone"),
            }
            let is_same = after == before || after == Some(None);
            assert!(is_same || !is_in_order, "block {index}: {before:?}, then {after:?}");
        }
        marks.fetch_add(u64::from(pages.contains(&mark)), Ordering::Relaxed);
        again(&mut bench, &first);
        rewrite(&mut bench);
    });
    let is_all = std::env::var("SEED").is_err();
    let [errors, marks] = [errors, marks].map(AtomicU64::into_inner);
    assert!(!is_all || errors > 0 && marks > 0, "{errors} errors, {marks} lost marks");
}

/// A second start finds the structures whole, and the same blocks.
fn again(bench: &mut Bench, first: &BTreeMap<u64, Option<u64>>) {
    bench.nvm = None;
    bench.io.crash(CrashMode::DropAll);
    let found = bench.open().expect("it was restored");
    let end = BASE + bench.geometry().data_at(0);
    assert!(found.damaged.iter().all(|info| info.offset >= end), "{:?}", found.damaged);
    assert_eq!(bench.read_all(&found), *first, "a second start");
}

/// Every block is written anew, often enough for each slot to be used; a start finds them.
fn rewrite(bench: &mut Bench) {
    bench.nvm = None;
    let found = bench.open().expect("it was whole");
    let mut slots: BTreeMap<u64, Slot> =
        found.entries.iter().map(|entry| (entry.key.block().0, entry.slot)).collect();
    let mut free = (0..).map(Slot).filter(|slot| found.entries.iter().all(|it| it.slot != *slot));
    for index in 0..KEYS {
        slots.entry(index).or_insert_with(|| free.next().expect("the level has more"));
    }
    for _ in 0..4 {
        (0..KEYS).for_each(|index| bench.write(index, slots[&index], false));
        bench.sync();
    }
    bench.nvm = None;
    bench.io.crash(CrashMode::DropAll);
    let found = bench.open().expect("it is whole");
    let newest = bench.latest.iter().map(|(index, version)| (*index, Some(*version))).collect();
    assert_eq!(bench.read_all(&found), newest);
}

/// Goal: where a header's page and its copy's are lost, what lay there is undecided until that is
/// kept elsewhere, and the level is whole then. Method: both pages; starts before and after.
#[test]
fn a_lost_page_and_its_copy_are_undecided() {
    for seed in 0..4 {
        let mut bench = Bench::new(seed);
        bench.live();
        let geometry = bench.geometry();
        let ats = [geometry.header_at(0), geometry.copy_at(0)].map(|at| BASE + at);
        bench.fail(&BTreeSet::from(ats));
        for _ in 0..2 {
            let found = bench.open().expect("it starts, and says that nothing is certain");
            assert!(found.undecided.is_some() && !found.damaged.is_empty());
            bench.nvm = None;
            bench.io.crash(CrashMode::DropAll);
        }
        bench.open().expect("as before");
        let nvm = bench.nvm.as_mut().expect("it is open");
        nvm.drop_undecided();
        nvm.sync(&mut bench.io, Ticket(0), SyncScope::Frees);
        bench.run(|_| ());
        bench.nvm = None;
        bench.io.crash(CrashMode::DropAll);
        let found = bench.open().expect("it is whole");
        assert!(found.undecided.is_none() && found.damaged.is_empty());
    }
}

/// Goal: a lost superblock refuses the start, and so does any lost page a strict one, with nothing
/// written. Method: one page of each structure; the bytes before and after.
#[test]
fn a_strict_start_is_refused() {
    for (case, is_strict) in [(0, false), (0, true), (1, true), (2, true)] {
        let mut bench = Bench::new(2);
        bench.live();
        let at = [0, u64::from(bench.size.bytes()), bench.geometry().header_at(0)][case];
        bench.fail(&BTreeSet::from([BASE + at]));
        let before = bench.io.peek(bench.disk);
        let config = bench.config(is_strict);
        let opened = NvmStore::open(&mut bench.io, config, SeqSource::new(Seq(1)));
        let Some(StoreError::Corrupt(info)) = opened.err() else { panic!("byte {at}") };
        assert_eq!((info.offset, info.what), (BASE + at, UNREADABLE_PAGE));
        assert!(bench.io.peek(bench.disk) == before, "nothing is written");
    }
}

/// A full level but for one slot, whose device refuses each free slot's page; two slots retire.
fn without_free_slots() -> (Bench, Slot) {
    let mut bench = Bench::new(0);
    let NvmGeometry { slot_count, physical, .. } = bench.geometry();
    let blocks = u64::from(slot_count) - 1;
    (0..blocks).for_each(|index| bench.write(index, Slot(index as u32), false));
    bench.sync();
    bench.nvm = None;
    for slot in slot_count + 1..physical {
        let at = BASE + bench.geometry().data_at(slot);
        bench.io.fail_reads(bench.disk, at, PAGE_BYTES);
        bench.io.break_range(bench.disk, at, PAGE_BYTES);
    }
    bench.open().expect("the structures are sound");
    (0..2).for_each(|index| bench.write(index, Slot(index as u32), false));
    let nvm = bench.nvm.as_ref().expect("it is open");
    let refused = (physical - slot_count - 1) as usize;
    assert_eq!((nvm.free_slots.len(), nvm.retiring.len()), (refused, 2));
    (bench, Slot(slot_count - 1))
}

/// Goal: a lent copy that finds no slot at once is not placed later, unless it may wait: the cache
/// may have lent the slot to another block, and a read would show the bytes of the first one. One
/// that waits ends with its slot. Method: no free slot that the device takes, and two that retire;
/// a lent copy, whose slot is freed in one case; a sync frees the others.
#[test]
fn a_lent_copy_is_not_placed_late() {
    for (may_wait, is_freed) in [(false, false), (true, true), (true, false)] {
        let (mut bench, slot) = without_free_slots();
        let data = vec![9; bench.size.len()];
        let nvm = bench.nvm.as_mut().expect("it is open");
        nvm.store_borrowed(&mut bench.io, Ticket(1), &[(slot, key(1000))], &data, may_wait);
        assert_eq!(nvm.has_room(0), !may_wait, "it waits for room");
        if is_freed {
            nvm.give_up(slot);
        }
        nvm.sync(&mut bench.io, Ticket(2), SyncScope::Frees);
        bench.run(|_| ());
        let nvm = bench.nvm.as_ref().expect("it is open");
        assert!(nvm.has_room(1) && nvm.counters().slots_left_out > 0, "slots were freed");
        assert_eq!(nvm.holds(slot), may_wait && !is_freed, "{may_wait}, {is_freed}");
    }
}

/// Goal: a read of a block gives no other block's bytes, whatever the slot holds. Method: one block
/// in a slot; reads of it and of another one there, and of an empty slot.
#[test]
fn a_read_of_a_block_gives_no_other() {
    let mut bench = Bench::new(0);
    bench.write(5, Slot(3), true);
    let (nvm, mut data) = (bench.nvm.as_ref().expect("it is open"), Vec::new());
    let mut read = |slot, index| {
        data.clear();
        let read = nvm.read_block_with(slot, key(index), |bytes| data.extend_from_slice(bytes));
        read.map(|read| read.map(|()| data.clone()).expect("it is sound"))
    };
    assert_eq!(read(Slot(3), 5), Some(bench.content(5, 1)));
    assert_eq!(read(Slot(3), 6), None);
    assert_eq!(read(Slot(4), 5), None);
}

/// Goal: a slot whose page the device does not take is left out, and no block with it; where too
/// few are left, nothing is stored any more. Method: pages of data that fail for good, few and
/// many; every block is written often.
#[test]
fn a_slot_that_the_device_refuses_is_left_out() {
    for (count, suffices) in [(2, true), (40, false)] {
        let mut bench = Bench::new(4);
        bench.live();
        let first = BASE + bench.geometry().data_at(0);
        let pages: BTreeSet<u64> = (0..count).map(|page| first + page * PAGE_BYTES).collect();
        for page in &pages {
            bench.io.fail_reads(bench.disk, *page, PAGE_BYTES);
            bench.io.break_range(bench.disk, *page, PAGE_BYTES);
        }
        if suffices {
            rewrite(&mut bench);
            continue;
        }
        bench.open().expect("the structures are sound");
        let nvm = bench.nvm.as_mut().expect("it is open");
        let mut has_refused = false;
        let data = vec![1; bench.size.len()];
        for turn in 0..4 * BLOCKS {
            let index = turn % u64::from(nvm.slot_count());
            let entry = (Slot(index as u32), key(index), true);
            nvm.store(&mut bench.io, Ticket(1), &[entry], &data, true);
            while !nvm.is_idle() {
                let mut done = Vec::new();
                bench.io.wait(Nanos::NEVER, &mut done);
                done.into_iter().for_each(|done| nvm.on_io(&mut bench.io, done));
            }
            let mut events = Vec::new();
            nvm.take_events(&mut events);
            has_refused |= events
                .iter()
                .any(|event| matches!(event, StoreEvent::Stored { result: Err(_), .. }));
        }
        let left = u64::from(nvm.geometry.physical) - nvm.counters().slots_left_out;
        assert!(has_refused && left <= u64::from(nvm.slot_count()));
    }
}
