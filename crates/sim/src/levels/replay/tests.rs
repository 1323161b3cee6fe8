//! The replay beside what a node's limits and the home's speed allow.

use super::*;
use crate::single::References;
use layby_trace::{Record, Unit};
use layby_types::Rng;

const MICROSECOND: u64 = 1000;

fn setup(slots: [u32; PADSA_LEVELS], home: Model) -> PadsaSetup {
    PadsaSetup {
        slots,
        admission: AdmissionKind::All,
        devices: PadsaDevices { home, ..PadsaDevices::default() },
        block_size: BlockSize::MIN,
        services: None,
        critical: vec![0],
        seed: 1,
    }
}

fn record(at: u64, volume: u32, operation: Operation, block: u64) -> Record {
    let (offset, length) = (block * BLOCK_BYTES, BLOCK_BYTES);
    Record { at: Nanos(at), volume: VolumeId(volume), operation, offset, length }
}

/// The whole trace; `has_times`: as it says when requests come.
fn replayed(setup: PadsaSetup, records: &[Record], has_times: bool) -> PadsaReplay {
    let mut replay = PadsaReplay::new(setup).expect("the levels agree");
    let references = References::new(Unit::Bytes, BlockSize::MIN);
    let mut references = if has_times { references.with_times() } else { references };
    let cut = references.cut(records, |batch| replay.on_batch(batch).expect("it fits"));
    cut.expect("few volumes");
    replay
}

/// Writes of a critical service to blocks of which no two are neighbours.
fn writes(count: u64, step: u64) -> Vec<Record> {
    (0..count).map(|index| record(index * step, 0, Operation::Write, 2 * index)).collect()
}

/// Block writes of NVM and SSD.
fn block_writes(replay: &PadsaReplay) -> [u64; 2] {
    let report = replay.report();
    [1, 2].map(|level: usize| report.levels[level].writes)
}

/// Goal: what the home does not take in time fills NVM and goes on to the SSD; what it does take
/// never gets there. Method: 1,000 writes over 100 slots of NVM, which PADSA's main storage takes
/// in 2 ms each: one every 10 us, one every 10 ms, and all with one stamp.
#[test]
fn what_outruns_the_home_goes_on_to_the_ssd() {
    let slots = [16, 100, 4000];
    for (step, at_home) in [(10 * MICROSECOND, 5), (0, 1)] {
        let replay = replayed(setup(slots, Model::main_storage()), &writes(1000, step), true);
        let [nvm, ssd] = block_writes(&replay);
        // Those in flight home are in NVM's slots; of a full NVM up to 64 blocks go down at once.
        let (least, most) = (1000 - 100 - at_home, 1000 - 100 + 64);
        assert_eq!(nvm, 1000);
        assert!((least..=most).contains(&ssd), "{ssd} of {least} to {most}, every {step} ns");
    }
    let slow = writes(1000, 10_000 * MICROSECOND);
    let replay = replayed(setup(slots, Model::main_storage()), &slow, true);
    assert_eq!(block_writes(&replay), [1000, 0]);
}

/// Goal: the home's time, its channels and a node's bound of writes in flight decide what it takes.
/// Method: a write every 10 us beside homes that take one every 7.5, 15 and 30 us.
#[test]
fn the_home_is_as_fast_as_it_is_described() {
    assert_eq!(WritebackLimits::DEFAULT.inflight_max, 4);
    for (write_us, channels, overflows) in [(30, 4, false), (30, 1, true), (60, 64, true)] {
        let write = Nanos::from_micros(write_us);
        let home = Model { write, channels, ..Model::main_storage() };
        let replay = replayed(setup([16, 100, 4000], home), &writes(4000, 10_000), true);
        let [_, ssd] = block_writes(&replay);
        assert_eq!(ssd > 0, overflows, "{write_us} us, {channels} channels: {ssd}");
    }
}

/// Goal: a burst that NVM holds stays there, and goes home in calm. Method: 60 writes into 100
/// slots, then a read after 4 s and one after 7 s.
#[test]
fn a_burst_goes_home_in_calm() {
    for (seconds, destaged) in [(4, 0), (7, 60)] {
        let mut records = writes(60, 0);
        records.push(record(seconds * 1_000_000_000, 0, Operation::Read, 999));
        let replay = replayed(setup([16, 100, 400], Model::main_storage()), &records, true);
        assert_eq!(replay.report().levels[1].destaged, destaged, "{seconds} s");
        assert_eq!(block_writes(&replay), [60, 0]);
        assert_eq!(replay.elapsed(), Nanos::from_secs(seconds));
    }
}

/// Goal: requests that arrived together come at once, and in a trace without times one after the
/// other. Method: a write, and 100 missed reads with one time, which is another or the same; by
/// Table I a write costs 500 ns, a look into each level and the home 275,078 ns.
#[test]
fn what_arrived_together_comes_at_once() {
    for (second, expected) in [(1, 1_000_000_000), (0, 500 + 99 * 275_078)] {
        let reads = (0..100).map(|block| (second * 1_000_000_000, 1000 + block));
        let reads = reads.map(|(at, block)| record(at, 0, Operation::Read, block));
        let records: Vec<Record> = writes(1, 0).into_iter().chain(reads).collect();
        let replay = replayed(setup([16, 100, 400], Model::main_storage()), &records, true);
        assert_eq!(replay.elapsed(), Nanos(expected));
    }
}

/// Goal: where every slot is dirty a write waits for the home, and all that follow with it.
/// Method: 100 writes with one stamp into 8 slots.
#[test]
fn a_write_without_room_waits() {
    let mut replay = replayed(setup([2, 4, 4], Model::main_storage()), &writes(100, 0), true);
    let waited = replay.elapsed();
    let (least, most) = ((100 - 8 - 4) * 2_000_000, 100 * 2_000_000);
    assert!((least..=most).contains(&waited.0), "{waited}");
    replay.end();
    let report = replay.report();
    assert_eq!(report.levels[1].writes, 100);
    assert!(replay.machine.cache().is_idle(VolumeId(0)), "nothing is left in flight");
}

/// Goal: a normal service is lent idle room above the SSD, as class `normal` of a node is by
/// default, and yields it to a critical one. Method: both read their blocks twice over, in a DRAM
/// that holds those of one.
#[test]
fn a_normal_service_is_lent_idle_room() {
    let turns = |volume: u32| (0..32).map(move |at| record(0, volume, Operation::Read, at % 16));
    let records: Vec<Record> = turns(1).chain(turns(1)).chain(turns(0)).chain(turns(1)).collect();
    let hits = |records: &[Record]| {
        let replay = replayed(setup([16, 4, 100], Model::main_storage()), records, true);
        let services = replay.services(&replay.report());
        services.into_iter().map(|service| service.seen.hits).collect::<Vec<_>>()
    };
    let lent = hits(&records[..64]);
    assert!(lent[0][0] >= 16, "DRAM holds its blocks: {lent:?}");
    assert_eq!(lent[0].iter().sum::<u64>(), 48, "{lent:?}");
    let taken = hits(&records);
    assert_eq!(taken[0][0], 16, "all room is the critical service's: {taken:?}");
    assert_eq!(taken[1][0], lent[0][0], "none is lent then: {taken:?}");
}

/// Goal: where nothing is written, time decides nothing. Method: random reads, with and without
/// times.
#[test]
fn reads_have_no_time() {
    let mut rng = Rng::new(5);
    let mut draw = |second: u64| {
        record(second * 1_000_000_000, rng.below(2) as u32, Operation::Read, rng.below(90))
    };
    let records: Vec<Record> = (0..5000).map(&mut draw).collect();
    let report = |has_times| {
        replayed(setup([8, 16, 32], Model::main_storage()), &records, has_times).report()
    };
    assert_eq!(report(true), report(false));
}

/// Goal: nothing is lost or counted twice, however full the levels are. Method: random requests at
/// random times over levels and homes that are drawn; sums.
#[test]
fn what_is_counted_adds_up() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let slots = [0; PADSA_LEVELS].map(|_| 2 + rng.below(40) as u32);
        let channels = 1 + rng.below(6) as u16;
        let write = Nanos(rng.below(200_000));
        let home = Model { write, channels, ..Model::main_storage() };
        let pause = rng.below(60_000);
        let (mut at, mut counts) = (0, [0, 0]);
        let mut draw = |_| {
            at += if rng.chance(1, 3) { 0 } else { rng.below(pause + 1) };
            let operation = if rng.chance(1, 2) { Operation::Read } else { Operation::Write };
            counts[usize::from(operation == Operation::Write)] += 1;
            record(at, rng.below(2) as u32, operation, rng.below(150))
        };
        let records: Vec<Record> = (0..3000).map(&mut draw).collect();
        let mut replay = replayed(setup(slots, home), &records, true);
        assert!(replay.elapsed() >= records[2999].at.since(records[0].at), "SEED={seed}");
        replay.end();
        let report = replay.report();
        let services = replay.services(&report);
        let sum = |of: fn(&VolumeReport) -> u64| -> u64 {
            services.iter().map(|service| of(&service.seen)).sum()
        };
        let found = [sum(VolumeReport::blocks_read), sum(VolumeReport::blocks_written)];
        assert_eq!(found, counts, "SEED={seed}");
        let moved = BlocksMoved::of(&report);
        let home = sum(|seen| seen.writes_home);
        let destaged: u64 = report.levels.iter().map(|level| level.destaged).sum();
        assert!(moved.backing_written >= destaged + home, "SEED={seed}");
        assert_eq!(sum(|seen| seen.misses), moved.backing_read, "SEED={seed}");
        assert!((0..2).all(|part| replay.machine.cache().is_idle(VolumeId(part))), "SEED={seed}");
    }
}
