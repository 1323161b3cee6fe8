//! Decoders, recovery and `check` on bytes that nobody wrote.

use super::layout::{META_CRC_AT, Superblock, put_parity, put_u32, seal_page};
use super::log_layout::{
    BATCH_ENTRIES_MAX, BatchHeader, CheckpointEntry, LOG_MAGIC, NOTE_BYTES, OpenSegment,
    RETIRED_MAX, Record, SegmentHeader, Trailer, decode_chunk, encode_chunk,
};
use super::nvm_layout::{HeaderState, NvmHeader, decode_mark, encode_mark};
use super::tests_both::for_each_seed;
use super::tests_world::{Size, Upper, World};
use super::{
    LogConfig, LogStore, NvmConfig, NvmStore, Region, SegmentPlan, SeqSource, StoreError,
    StoreIdentity,
};
use crate::check::{StoreKind, check_store};
use crate::io::{DiskId, Io as _, IoOperation, SimIo, run_alone};
use layby_cache::discards::DiscardMode;
use layby_types::{BlockKey, BlockSize, Rng, Seq, ShardIndex, Slot};

/// Goal: no decoder panics on any bytes. Method: noise, with and without a true checksum.
#[test]
fn decoders_take_any_bytes() {
    for_each_seed(500, |seed| {
        let mut rng = Rng::new(seed);
        let mut page = vec![0; 4096];
        rng.fill(&mut page);
        if rng.chance(1, 2) {
            let magics: [&[u8; 8]; 4] = [b"LAYBYLOG", b"LAYBYSEG", b"LAYBYBAT", b"LAYBYCKT"];
            page[..8].copy_from_slice(magics[rng.below(4) as usize]);
            seal_page(&mut page);
        }
        let _ = Superblock::decode(&page, LOG_MAGIC, "disk", 0);
        let _ = SegmentHeader::decode(&page, seed, 0);
        let _ = BatchHeader::decode(&page, seed, Seq(1));
        let _ = Record::decode(&page, rng.below(108) as usize);
        let _ = Trailer::decode(&page, seed);
        let _ = decode_chunk(&page, seed, Seq(1), 0);
        let _ = NvmHeader::decode(&page, seed, 0);
        let _ = decode_mark(&page, seed);
    });
}

/// Goal: what is encoded is decoded, and not under another instance. Method: one of each.
#[test]
fn structures_round_trip() {
    let (key, seq) = (BlockKey(77), Seq(9));
    let mut page = vec![0; 4096];
    let entry = CheckpointEntry {
        key,
        slot: Slot(3),
        location: 8,
        crc: 5,
        dirty: true,
        moved: false,
        lost: None,
    };
    let entries = vec![entry, CheckpointEntry::emptied(Slot(4))];
    encode_chunk(&mut page, 1, seq, 2, &entries);
    assert_eq!(decode_chunk(&page, 1, seq, 2), Some(entries));
    assert_eq!(decode_chunk(&page, 2, seq, 2), None);
    let open = OpenSegment { index: 4, fill: 5, generation: Seq(6) };
    let mut trailer = Trailer::new(seq, true, vec![open; 5]);
    (trailer.note, trailer.retired) = ([9; NOTE_BYTES], (5..5 + RETIRED_MAX as u32).collect());
    (trailer.base, trailer.previous, trailer.ordinal) = (Seq(3), Seq(8), 2);
    let mut page = vec![0; 4096];
    trailer.encode(&mut page, 1);
    assert_eq!(Trailer::decode(&page, 1), Some(trailer));
    assert_eq!(Trailer::decode(&page, 2), None);
    let records = [
        Record::Block { key, seq, slot: Slot(1), crc: 4, dirty: true },
        Record::Tombstone { first: key, count: 1 << 40, seq, no_hole: true },
        Record::Forget { key, seq },
        Record::TombstoneDone { of: Seq(3), seq },
        Record::TombstoneVoid { of: Seq(4), seq },
        Record::Owed { first: key, count: 1 << 40, seq },
    ];
    let mut page = vec![0; 4096];
    for (index, record) in records.iter().enumerate() {
        record.encode(&mut page, 101 + index);
        assert_eq!(Record::decode(&page, 101 + index), Some(*record));
    }
    let header = BatchHeader {
        instance: 1,
        generation: 9,
        seq: 8,
        entries: BATCH_ENTRIES_MAX as u16,
        ..Default::default()
    };
    header.encode(&mut page);
    assert_eq!(BatchHeader::decode(&page, 1, seq), Some(header));
    assert_eq!(BatchHeader::decode(&page, 1, Seq(8)), None);
    let header = NvmHeader { key, seq, crc: 0, dirty: true, borrowed: false };
    let bytes = header.encode(1, 5);
    assert_eq!(NvmHeader::decode(&bytes, 1, 5), HeaderState::Sound(header));
    assert!(matches!(NvmHeader::decode(&bytes, 1, 6), HeaderState::Damaged(..)));
}

/// Goal: a seq that no node can have given out never becomes the counter, which would run out; the
/// fuzzer of recovery found logs that opened and then ended the node. Method: a trailer, a header
/// and a mark with true checksums and the highest seq.
#[test]
fn seqs_beyond_any_node_are_damage() {
    let mut io = SimIo::new(1);
    let disk = io.add_disk("ssd", 1 << 20);
    let region = Region { disk, base: 0, length: 1 << 20, block_size: BlockSize::MIN };
    let identity = StoreIdentity { node: [5; 16], shard: ShardIndex(0), shard_count: 1 };
    let config = LogConfig::new(region, identity, 1);
    LogStore::format(&mut io, &config, 1).expect("the region is large enough");
    let mut trailer = io.buffer(4096);
    trailer.fill(0);
    Trailer::new(Seq(u64::MAX), true, Vec::new()).encode(&mut trailer, 1);
    let write = IoOperation::Write { disk, offset: 4096, buffer: trailer, durable: true };
    run_alone(&mut io, write).expect("no device fails here");
    let error = LogStore::open(&mut io, config, SeqSource::new(Seq(1))).map(drop);
    assert!(matches!(error, Err(StoreError::Mismatch { stored: u64::MAX, .. })), "{error:?}");
    let report = check_store(&io.peek(disk)[..], "disk", 0, 1 << 20, StoreKind::Log, false);
    assert!(!report.is_sound(), "`check` says so, too");
    let (key, seq) = (BlockKey(77), Seq(u64::MAX));
    let header = NvmHeader { key, seq, crc: 0, dirty: true, borrowed: false }.encode(1, 5);
    assert!(matches!(NvmHeader::decode(&header, 1, 5), HeaderState::Damaged(..)));
    assert_eq!(decode_mark(&encode_mark(seq, 1), 1), Seq(0));
}

/// Goal: `check` refuses a superblock whose numbers a start refuses. Method: each number of a sound
/// one changed in turn, under a true checksum.
#[test]
fn check_knows_the_numbers_that_a_start_refuses() {
    // Field, and whether a start takes the number that is there instead of the right one.
    let cases = [(4, 3, true), (4, 4, false), (4, 5, true), (1, 9, false), (1, 10, true)];
    for (field, value, is_taken) in cases {
        let mut io = SimIo::new(1);
        let disk = io.add_disk("ssd", 1 << 20);
        let region = Region { disk, base: 0, length: 1 << 20, block_size: BlockSize::MIN };
        let identity = StoreIdentity { node: [5; 16], shard: ShardIndex(0), shard_count: 1 };
        let segments = SegmentPlan { bytes: 64 << 10, ..SegmentPlan::default() };
        let config = LogConfig { segments, ..LogConfig::new(region, identity, 1) };
        LogStore::format(&mut io, &config, 1).expect("the region is large enough");
        let page = io.peek(disk)[..4096].to_vec();
        let superblock = Superblock::decode(&page, LOG_MAGIC, "ssd", 0);
        let mut superblock = superblock.expect("it was just written");
        superblock.geometry[field] = value;
        let mut buffer = io.buffer(4096);
        buffer.fill(0);
        superblock.encode(&mut buffer);
        let write = IoOperation::Write { disk, offset: 0, buffer, durable: true };
        run_alone(&mut io, write).expect("no device fails here");
        let opened = LogStore::open(&mut io, config, SeqSource::new(Seq(1))).map(drop);
        assert_eq!(opened.is_ok(), is_taken, "field {field} is {value}: {opened:?}");
        let report = check_store(&io.peek(disk)[..], "ssd", 0, 1 << 20, StoreKind::Log, false);
        assert_eq!(report.is_sound(), is_taken, "field {field} is {value}: {:?}", report.problems);
    }
}

/// Goal: a damaged disk never panics recovery or `check`. Method: a used world, a few places of its
/// disks damaged; both stores are opened, and both are checked.
#[test]
fn damaged_disks_are_survived() {
    for_each_seed(60, |seed| {
        let mut rng = Rng::new(seed);
        let size = Size {
            keys: 80,
            log_blocks: 266,
            nvm_blocks: 40,
            upper: Upper::PageCache,
            discard: DiscardMode::Immediate,
            all_streams: seed % 2 == 0,
            owns_cleaning: false,
        };
        let mut world = World::new(seed, size);
        for _ in 0..600 {
            world.step();
        }
        world.damage(1 + rng.below(12));
        for (disk, kind, blocks) in [
            (world.log_disk, StoreKind::Log, size.log_blocks),
            (world.nvm_disk.expect("there is one"), StoreKind::Nvm, size.nvm_blocks),
        ] {
            let bytes = world.io.peek(disk);
            let _ = check_store(&bytes[..], "disk", 4096, blocks * 4096, kind, true);
            let _ = check_store(&bytes[..9000], "disk", 4096, blocks * 4096, kind, true);
        }
        world.open_whatever_is_left();
    });
}

/// Goal: a superblock that a later version of the program wrote is named as such by a start and by
/// `check`, also where its checksum lies elsewhere; one whose version no program has yet is damage;
/// neither changes the level. Method: both kinds of level, versions by hand, with a checksum at
/// our place and without.
#[test]
fn a_later_version_is_no_damage() {
    let versions = [(5, true, true), (5, false, true), (64, false, true), (65, false, false)];
    for kind in [StoreKind::Log, StoreKind::Nvm] {
        for (version, has_our_checksum, is_later) in versions {
            let (mut io, disk, open) = superblock_of(kind, version, has_our_checksum);
            let before = io.peek(disk);
            let error = open(&mut io).expect_err("no start knows it");
            assert_eq!(error.to_string().contains("a later version of Layby"), is_later, "{error}");
            assert_eq!(matches!(error, StoreError::Version { .. }), is_later, "{error:?}");
            assert!(io.peek(disk) == before, "nothing was written");
            let report = check_store(&before[..], "disk", 0, 1 << 20, kind, false);
            let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
            let names_it = problem.sentence.contains("a later version of Layby");
            assert_eq!(names_it, is_later, "{version}: {}", problem.sentence);
        }
    }
}

/// A level of which the superblock says `version`, and how a start opens it.
fn superblock_of(
    kind: StoreKind,
    version: u32,
    has_our_checksum: bool,
) -> (SimIo, DiskId, impl Fn(&mut SimIo) -> Result<(), StoreError>) {
    let mut io = SimIo::new(1);
    let disk = io.add_disk("disk", 1 << 20);
    let region = Region { disk, base: 0, length: 1 << 20, block_size: BlockSize::MIN };
    let identity = StoreIdentity { node: [5; 16], shard: ShardIndex(0), shard_count: 1 };
    let segments = SegmentPlan { bytes: 64 << 10, ..SegmentPlan::default() };
    let log = LogConfig { segments, ..LogConfig::new(region, identity, 1) };
    let nvm = NvmConfig { region, identity, is_strict: false, token_tag: 0 };
    match kind {
        StoreKind::Log => LogStore::format(&mut io, &log, 1),
        StoreKind::Nvm => NvmStore::format(&mut io, &nvm, 1),
    }
    .expect("the region is large enough");
    let mut page = io.peek(disk)[..4096].to_vec();
    put_u32(&mut page, 8, version);
    seal_page(&mut page);
    if !has_our_checksum {
        put_u32(&mut page, META_CRC_AT, 0);
        put_parity(&mut page);
    }
    let mut buffer = io.buffer(4096);
    buffer.copy_from_slice(&page);
    let write = IoOperation::Write { disk, offset: 0, buffer, durable: true };
    run_alone(&mut io, write).expect("no device fails here");
    let open = move |io: &mut SimIo| match kind {
        StoreKind::Log => LogStore::open(io, log.clone(), SeqSource::new(Seq(1))).map(drop),
        StoreKind::Nvm => NvmStore::open(io, nvm.clone(), SeqSource::new(Seq(1))).map(drop),
    };
    (io, disk, open)
}
