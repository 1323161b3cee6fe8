//! Levels, Belady's MIN and curves beside plain models.

use super::level::build_plain;
use super::*;
use layby_policy::curve::{Access, Counted, SampleRate};
use layby_policy::registry::EvictionKind;
use layby_policy::{AdmissionKind, mix};
use layby_trace::{Record, Unit};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Operation, Rng, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

fn object(volume: u32, operation: Operation, offset: u64) -> Record {
    Record { at: Nanos(0), volume: VolumeId(volume), operation, offset, length: 1 }
}

/// References that favour few of `blocks` blocks, a third of them writes.
fn skewed(seed: u64, count: usize, blocks: u64) -> Vec<Record> {
    let mut rng = Rng::new(seed);
    let draw = |_| {
        let span = rng.below(blocks) + 1;
        let operation = if rng.chance(1, 3) { Operation::Write } else { Operation::Read };
        object(0, operation, mix(rng.below(span)))
    };
    (0..count).map(draw).collect()
}

fn each_batch(records: &[Record], mut take: impl FnMut(&Batch)) {
    let mut references = References::new(Unit::Objects, BlockSize::DEFAULT);
    // Odd pieces, so that groups end anywhere.
    for piece in records.chunks(777) {
        references.cut(piece, &mut take).expect("there is one volume");
    }
}

fn counts(records: &[Record], kind: EvictionKind, slots: u32) -> Counts {
    let mut level = build(kind, AdmissionKind::All, slots, 1);
    each_batch(records, |batch| level.on_batch(batch));
    assert_eq!(u64::from(level.blocks()), level.counts().insertions.min(slots.into()));
    level.counts()
}

/// Goal: LRU and FIFO count what plain ones do, reads and writes apart. Method: lists searched from
/// end to end, at sizes from one slot to more than the blocks.
#[test]
fn lru_and_fifo_match_lists() {
    let records = skewed(5, 4000, 300);
    for slots in [1, 2, 7, 50, 299, 400] {
        for (kind, moves) in [(EvictionKind::Lru, true), (EvictionKind::Fifo, false)] {
            let (mut list, mut model) = (Vec::new(), Counts::default());
            for record in &records {
                let side = usize::from(record.operation == Operation::Write);
                model.requests[side] += 1;
                let found = list.iter().position(|block| *block == record.offset);
                model.hits[side] += u64::from(found.is_some());
                if let Some(at) = found.filter(|_| moves) {
                    list.remove(at);
                }
                if found.is_none() {
                    model.insertions += 1;
                    if list.len() == slots as usize {
                        list.remove(0);
                        model.evictions += 1;
                    }
                }
                if found.is_none() || moves {
                    list.push(record.offset);
                }
            }
            assert_eq!(counts(&records, kind, slots), model, "{} {slots}", kind.name());
        }
    }
}

/// Goal: the forms that are made for replay count what the policies of the node count, reads and
/// writes apart. Method: random references, with and without a filter, at sizes from one slot to
/// more than the blocks, long enough that logs and rings are squeezed many times.
#[test]
fn made_for_replay_is_the_same() {
    for seed in 0..6 {
        let records = skewed(seed, 30_000, [60, 700, 4000][seed as usize % 3]);
        for slots in [1, 2, 3, 9, 10, 11, 64, 333, 1000, 5000] {
            for kind in [EvictionKind::Lru, EvictionKind::S3Fifo] {
                for admission in AdmissionKind::ALL {
                    let mut made = build(kind, admission, slots, 1);
                    let mut plain = build_plain(kind, admission, slots, 1);
                    each_batch(&records, |batch| {
                        made.on_batch(batch);
                        plain.on_batch(batch);
                        let (name, filter) = (kind.name(), admission.name());
                        let what = format!("{name}, {filter}, {slots} slots, SEED={seed}");
                        assert_eq!(made.counts(), plain.counts(), "{what}");
                        assert_eq!(made.blocks(), plain.blocks(), "{what}");
                    });
                }
            }
        }
    }
}

/// Goal: no policy beats Belady's, and Belady's is as good as a search through the future. Method:
/// short traces beside a plain MIN; every policy beside it.
#[test]
fn belady_is_the_best() {
    for seed in 0..20 {
        let records = skewed(seed, 3000, 100);
        let mut future = Future::default();
        each_batch(&records, |batch| future.add(batch).expect("the trace is short"));
        let known = future.known();
        for slots in [1, 3, 20, 99, 200] {
            let best = known.replay(slots);
            assert_eq!(best.hits_all(), plain_min(&records, slots as usize), "SEED={seed}");
            assert_eq!(best.requests_all(), 3000);
            for kind in EvictionKind::ALL {
                let hits = counts(&records, kind, slots).hits_all();
                assert!(hits <= best.hits_all(), "{} SEED={seed}", kind.name());
            }
        }
    }
}

fn plain_min(records: &[Record], slots: usize) -> u64 {
    let (mut held, mut hits) = (BTreeSet::new(), 0);
    for (at, record) in records.iter().enumerate() {
        if held.contains(&record.offset) {
            hits += 1;
            continue;
        }
        if held.len() == slots {
            let next = |block: &u64| records[at..].iter().position(|r| r.offset == *block);
            let furthest = held.iter().copied().max_by_key(|block| next(block).unwrap_or(1 << 30));
            held.remove(&furthest.expect("the level is full"));
        }
        held.insert(record.offset);
    }
    hits
}

/// Goal: the exact curve is LRU's at every size, reads and writes apart; a sample of everything is
/// the exact curve. Method: replay at sizes beside the curve.
#[test]
fn curves_are_lru_at_every_size() {
    let records = skewed(9, 20_000, 500);
    let mut exact = CurveRun::new(CurveKind::Exact);
    let everything = CurveKind::Sampled { rate: SampleRate::MAX, seed: 7 };
    let mut sampled = CurveRun::new(everything);
    each_batch(&records, |batch| {
        exact.on_batch(batch).expect("few blocks");
        sampled.on_batch(batch).expect("few blocks");
    });
    assert_eq!(exact.curve(), sampled.curve());
    for slots in (1..=500).step_by(7) {
        let lru = counts(&records, EvictionKind::Lru, slots);
        for (side, counted) in [(0, Counted::Reads), (1, Counted::Writes)] {
            let hits = exact.curve().hits(counted, u64::from(slots));
            assert_eq!(hits as u64, lru.hits[side], "{slots} slots");
        }
    }
}

/// Goal: a seed chooses the sample, and the same seed the same one. Method: seeds at 20 %, and
/// bounded curves.
#[test]
fn seeds_choose_the_sample() {
    let records = skewed(3, 20_000, 3000);
    let curve = |kind| {
        let mut run = CurveRun::new(kind);
        each_batch(&records, |batch| run.on_batch(batch).expect("few blocks"));
        (run.curve(), run.blocks())
    };
    let rate = SampleRate::new(0.2);
    let of = |seed| curve(CurveKind::Sampled { rate, seed });
    assert_eq!(of(1), of(1));
    assert!(of(1) != of(2) && of(0) != of(1));
    assert!((450..750).contains(&of(3).1), "{} of 3,000 blocks", of(3).1);
    let bounded = |seed| curve(CurveKind::Bounded { blocks_max: 500, seed });
    assert_eq!(bounded(1), bounded(1));
    assert!(bounded(1) != bounded(2));
}

/// Goal: a trace of more blocks than a curve or a footprint can count ends it with an error, one of
/// as many does not, and their bounds lie a batch below what would be numbered wrong. Method:
/// bounds of a thousand blocks; traces of so many, some twice, and of one more.
#[test]
fn more_blocks_than_can_be_counted_are_refused() {
    let most = 1000;
    let kinds = [
        CurveKind::Exact,
        CurveKind::Sampled { rate: SampleRate::MAX, seed: 3 },
        CurveKind::Bounded { blocks_max: 500, seed: 3 },
    ];
    let refused = Err(StreamError::Blocks { most });
    for (blocks, counted) in [(most, Ok(())), (most + 1, refused)] {
        let blocks = u64::from(blocks);
        let read = |block| object(0, Operation::Read, block % blocks);
        let records: Vec<Record> = (0..2 * blocks).map(read).collect();
        let mut footprint = Footprint::within(most);
        let mut runs = kinds.map(|kind| CurveRun::new(kind).within(most));
        let mut ended = [Ok(()); 4];
        each_batch(&records, |batch| {
            ended[0] = ended[0].and_then(|()| footprint.add(batch));
            for (ended, run) in ended[1..].iter_mut().zip(&mut runs) {
                *ended = ended.and_then(|()| run.on_batch(batch));
            }
        });
        assert_eq!(ended, [counted, counted, counted, Ok(())], "{blocks} blocks");
    }
    let batch = BATCH_REFERENCES_MAX as u32;
    assert_eq!(CurveRun::BLOCKS_MAX + batch, layby_policy::curve::StackDistances::BLOCKS_MAX);
    assert_eq!(Footprint::BLOCKS_MAX + batch, u32::MAX);
}

/// Goal: identifiers of any 64 bits are told apart, and so are volumes; what cannot be is refused.
/// Method: extreme identifiers, and a second volume beside small and large ones.
#[test]
fn blocks_are_told_apart() {
    let ids = [0, 1, 1 << 44, 1 << 63, u64::MAX, u64::MAX - 1];
    let records: Vec<Record> = ids.map(|id| object(9, Operation::Read, id)).into();
    let twice = [&records[..], &records[..]].concat();
    assert_eq!(counts(&twice, EvictionKind::Lru, 6).hits, [6, 0]);
    let mut references = References::new(Unit::Objects, BlockSize::DEFAULT);
    let two = [3, 8].map(|volume| object(volume, Operation::Read, 5));
    let mut keys = Vec::new();
    references.cut(&two, |batch| keys.extend_from_slice(batch.keys())).expect("they fit");
    assert_eq!(keys, [BlockKey(5), BlockKey::new(VolumeId(1), BlockIndex(5))]);
    let large = object(3, Operation::Read, 1 << 44);
    assert_eq!(references.cut(&[large], |_| ()), Err(StreamError::Identifiers));
}

/// Goal: ranges are cut into the blocks that they touch, in batches of bounded length, and trims
/// and flushes are none. Method: ranges across borders, and one of a gigabyte.
#[test]
fn ranges_are_cut_into_blocks() {
    let mut references = References::new(Unit::Bytes, BlockSize::DEFAULT);
    let record = |operation, offset, length| Record { length, ..object(0, operation, offset) };
    let records = [
        record(Operation::Read, 4095, 2),
        record(Operation::Trim, 0, 1 << 40),
        record(Operation::Flush, 0, 0),
        record(Operation::Write, 8192, 4096),
        record(Operation::Write, 1 << 30, 1 << 30),
    ];
    let (mut blocks, mut writes) = (BTreeMap::new(), 0);
    let cut = references.cut(&records, |batch| {
        assert!(batch.len() <= BATCH_REFERENCES_MAX);
        writes += batch.accesses().iter().filter(|access| **access == Access::Write).count();
        for key in batch.keys() {
            *blocks.entry(key.block().0).or_insert(0) += 1;
        }
    });
    assert_eq!((cut, references.passed_over()), (Ok(()), 2));
    assert_eq!((blocks.len(), writes), (3 + (1 << 18), 1 + (1 << 18)));
    assert!(blocks.values().all(|count| *count == 1));
    assert_eq!(blocks.keys().take(3).copied().collect::<Vec<_>>(), [0, 1, 2]);
}

/// Goal: a filter keeps a scan out, and what it refuses is neither brought in nor evicted. Method:
/// distinct blocks through a level behind it.
#[test]
fn filters_stand_before_the_level() {
    let scan: Vec<Record> = (0..10_000).map(|id| object(0, Operation::Read, id)).collect();
    let mut level = build(EvictionKind::S3Fifo, AdmissionKind::SecondMiss, 100, 1);
    each_batch(&scan, |batch| level.on_batch(batch));
    let counts = level.counts();
    assert_eq!((counts.requests, counts.hits), ([10_000, 0], [0, 0]));
    assert!(counts.insertions < 200, "{counts:?}");
    assert_eq!(counts.miss_ratio(), Some(1.0));
    assert_eq!(Counts::default().miss_ratio(), None);
}
