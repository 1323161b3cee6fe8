//! Every structure that lies on a device, decoded from arbitrary bytes.
//!
//! How: the first bytes of an input say which structure the rest is and whether its checksum is
//! made true; what decodes is encoded and decoded again.
//! Invariant: no bytes make a decoder panic; decode(encode(x)) == x; a geometry that was accepted
//! keeps every structure within its region.
//! Not for: what structures mean together, see `recover`.

use crate::Input;
use layby_engine::store::layout::{
    CONTENT_BYTES, META_BYTES, Superblock, crc32c, get_u64, put_u32, seal_page,
};
use layby_engine::store::log_layout::{
    BATCH_ENTRIES_MAX, BATCH_MAGIC, BatchHeader, BatchName, CHUNK_HEADER, CHUNK_MAGIC,
    CheckpointEntry, LOG_MAGIC, OpenSegment, Record, SegmentHeader, Trailer, chunk_crcs, copy_of,
    decode_chunk, encode_chunk, put_copy,
};
use layby_engine::store::nvm_layout::{
    HEADER_BYTES, HeaderState, NVM_MAGIC, NvmGeometry, NvmHeader, decode_mark, encode_mark,
};
use layby_engine::store::{LogGeometry, SegmentPlan};
use layby_engine::store::{StoreError, StoreIdentity};
use layby_types::{BlockKey, BlockSize, Seq, ShardIndex, Slot};

/// The instance, generation and place that structures of an input belong to.
pub(crate) const INSTANCE: u64 = 0x1234_5678_9abc_def1;
const SEQ: Seq = Seq(9);
const INDEX: u32 = 2;

/// Decodes a structure of the log.
pub(crate) fn run_log(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, is_sealed) = (input.byte(), input.byte() & 1 == 1);
    let mut page = page(&mut input);
    if is_sealed {
        seal(&mut page);
    }
    match kind % 5 {
        0 => superblock(&page, LOG_MAGIC),
        1 => round_trip(
            &page,
            |page| SegmentHeader::decode(page, INSTANCE, INDEX),
            |header, page| {
                header.encode(page);
            },
        ),
        2 => batch(&page),
        3 => round_trip(
            &page,
            |page| decode_chunk(page, INSTANCE, SEQ, INDEX),
            |entries, page| {
                encode_chunk(page, INSTANCE, SEQ, INDEX, entries);
            },
        ),
        _ => round_trip(
            &page,
            |page| Trailer::decode(page, INSTANCE),
            |trailer, page| {
                trailer.encode(page, INSTANCE);
            },
        ),
    }
    let _ = chunk_crcs(&page);
}

/// Decodes a structure of the NVM level.
pub(crate) fn run_nvm(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, is_sealed) = (input.byte(), input.byte() & 1 == 1);
    let mut page = page(&mut input);
    match kind % 3 {
        0 => {
            if is_sealed {
                seal(&mut page);
            }
            superblock(&page, NVM_MAGIC);
        }
        1 => {
            let header = &mut page[..HEADER_BYTES as usize];
            if is_sealed {
                seal_slot_header(header, INSTANCE, INDEX);
            }
            slot_header(header);
        }
        _ => {
            let seq = decode_mark(&page, INSTANCE);
            assert_eq!(decode_mark(&encode_mark(seq, INSTANCE), INSTANCE), seq);
        }
    }
}

/// The rest of an input as a page.
fn page(input: &mut Input<'_>) -> Vec<u8> {
    let mut page = input.take(META_BYTES).to_vec();
    page.resize(META_BYTES, 0);
    page
}

/// Makes the checksum of a page true, wherever its kind keeps it.
pub(crate) fn seal(page: &mut [u8]) {
    match get_u64(page, 0) {
        BATCH_MAGIC => {
            let crc = crc32c(&[&page[..124], &page[128..CONTENT_BYTES]].concat());
            put_u32(page, 124, crc);
        }
        CHUNK_MAGIC => {
            put_u32(page, 32, crc32c(&page[CHUNK_HEADER..CONTENT_BYTES]));
            let crc = crc32c(&page[..36]);
            put_u32(page, 36, crc);
        }
        _ => seal_page(page),
    }
}

/// Makes the checksum of slot header `index` true.
pub(crate) fn seal_slot_header(header: &mut [u8], instance: u64, index: u32) {
    let covered = [
        &header[..4],
        &index.to_le_bytes()[..],
        &header[8..HEADER_BYTES as usize],
        &instance.to_le_bytes()[..],
    ];
    put_u32(header, 4, crc32c(&covered.concat()));
}

/// What decodes is encoded and decoded again.
fn round_trip<T: PartialEq + std::fmt::Debug>(
    page: &[u8],
    decode: impl Fn(&[u8]) -> Option<T>,
    encode: impl Fn(&T, &mut [u8]),
) {
    let Some(structure) = decode(page) else { return };
    let mut again = vec![0; META_BYTES];
    encode(&structure, &mut again);
    assert_eq!(decode(&again), Some(structure));
}

fn superblock(page: &[u8], magic: u64) {
    let superblock = match Superblock::decode(page, magic, "disk", 4096) {
        Ok(superblock) => superblock,
        Err(error) => {
            assert!(!matches!(error, StoreError::Io { .. }), "nothing was read here: {error}");
            return;
        }
    };
    let mut again = vec![0; META_BYTES];
    superblock.encode(&mut again);
    assert_eq!(Superblock::decode(&again, magic, "disk", 4096), Ok(superblock));
    let Superblock { geometry, block_bytes, slot_count, length, .. } = superblock;
    if magic == LOG_MAGIC {
        let geometry = LogGeometry::from_fields(geometry, block_bytes, slot_count, length);
        geometry.iter().for_each(|geometry| log_geometry(geometry, length));
    } else {
        let geometry = NvmGeometry::from_fields(geometry, block_bytes, slot_count, length);
        geometry.iter().for_each(|geometry| nvm_geometry(geometry, length));
    }
}

/// Areas and segments lie behind one another and within the region.
fn log_geometry(geometry: &LogGeometry, length: u64) {
    let last = geometry.segment_count - 1;
    let end = u64::from(geometry.segment_first(last)) + u64::from(geometry.segment_blocks);
    assert!(end * u64::from(geometry.block_bytes) <= length, "{geometry:?}");
    for index in [0, last / 2, last] {
        let first = geometry.segment_first(index);
        assert_eq!(geometry.segment_of(first), Some(index));
        assert_eq!(geometry.segment_of(first + geometry.segment_blocks - 1), Some(index));
    }
    let areas_end = geometry.checkpoint_first(1) + geometry.checkpoint_blocks;
    assert!(areas_end <= geometry.segment_first(0), "{geometry:?}");
    assert!(geometry.dense_blocks() < geometry.segment_blocks.into());
}

/// Headers and data lie behind one another and within the region.
fn nvm_geometry(geometry: &NvmGeometry, length: u64) {
    let last = geometry.physical - 1;
    assert!(geometry.copy_at(last) + HEADER_BYTES <= geometry.data_at(0), "{geometry:?}");
    assert!(geometry.data_at(last) + u64::from(geometry.block_bytes) <= length, "{geometry:?}");
    assert!(geometry.slot_count < geometry.physical);
}

fn batch(page: &[u8]) {
    let Some(header) = BatchHeader::decode(page, INSTANCE, SEQ) else { return };
    let mut again = vec![0; META_BYTES];
    for index in 0..BATCH_ENTRIES_MAX.min(header.entries.into()) {
        if let Some(record) = Record::decode(page, index) {
            record.encode(&mut again, index);
            assert_eq!(Record::decode(&again, index), Some(record));
        }
    }
    header.encode(&mut again);
    assert_eq!(BatchHeader::decode(&again, INSTANCE, SEQ), Some(header));
}

fn slot_header(bytes: &[u8]) {
    let HeaderState::Sound(header) = NvmHeader::decode(bytes, INSTANCE, INDEX) else { return };
    let again = NvmHeader::decode(&header.encode(INSTANCE, INDEX), INSTANCE, INDEX);
    // A word of zeros is how a torn header is told, so that some seqs and keys cannot be stored.
    let storable = header.seq.0 != 0 && header.key.0 != u64::MAX;
    assert!(!storable || again == HeaderState::Sound(header), "{header:?} became {again:?}");
}

/// A page of each kind of the log, plain and to be sealed.
pub(crate) fn log_seeds() -> Vec<(String, Vec<u8>)> {
    let key = BlockKey(77);
    let mut pages = vec![("superblock", 0, superblock_page(LOG_MAGIC)), ("zeros", 2, Vec::new())];
    let encoded = |encode: &dyn Fn(&mut [u8])| {
        let mut page = vec![0; META_BYTES];
        encode(&mut page);
        page
    };
    let segment = SegmentHeader {
        instance: INSTANCE,
        index: INDEX,
        stream: 1,
        generation: SEQ,
        is_anew: false,
    };
    pages.push(("segment", 1, encoded(&|page| segment.encode(page))));
    pages.push(("batch", 2, encoded(&|page| batch_page(page, key))));
    let entry = CheckpointEntry {
        key,
        slot: Slot(3),
        location: 8,
        crc: 5,
        dirty: true,
        moved: true,
        lost: None,
    };
    pages.push(("chunk", 3, encoded(&|page| encode_chunk(page, INSTANCE, SEQ, INDEX, &[entry]))));
    let open = OpenSegment { index: 4, fill: 5, generation: Seq(6) };
    let trailer = Trailer::new(SEQ, true, vec![open; 3]);
    pages.push(("trailer", 4, encoded(&|page| trailer.encode(page, INSTANCE))));
    with_and_without_seal(pages)
}

fn batch_page(page: &mut [u8], key: BlockKey) {
    let records = [
        Record::Block { key, seq: SEQ, slot: Slot(1), crc: 4, dirty: true },
        Record::Block { key, seq: SEQ, slot: Slot(2), crc: 4, dirty: false },
        Record::Tombstone { first: key, count: 1 << 40, seq: SEQ, no_hole: true },
        Record::Forget { key, seq: SEQ },
        Record::TombstoneDone { of: Seq(3), seq: SEQ },
        Record::TombstoneVoid { of: Seq(4), seq: SEQ },
        Record::Owed { first: key, count: 3, seq: Seq(5) },
    ];
    records.iter().enumerate().for_each(|(index, record)| record.encode(page, index));
    let previous = BatchName { segment: 1, seq: 7 };
    let header = BatchHeader {
        instance: INSTANCE,
        generation: SEQ.0,
        seq: 10,
        epoch: 2,
        durable_upto: 8,
        checkpoint: 5,
        previous,
        tails: [previous; 5],
        entries: records.len() as u16,
        blocks: 2,
        location: 40,
        stream: 1,
    };
    header.encode(page);
    let copy = copy_of(page).to_vec();
    put_copy(page, records.len(), &copy);
    header.encode(page);
}

fn superblock_page(magic: u64) -> Vec<u8> {
    let length = 4 << 20;
    let (slot_count, geometry) = if magic == LOG_MAGIC {
        let plan = LogGeometry::plan(length, BlockSize::MIN, &SegmentPlan::default())
            .expect("4 MiB are enough");
        (plan.slot_count, plan.to_fields())
    } else {
        let plan = NvmGeometry::plan(length, BlockSize::MIN).expect("4 MiB are enough");
        (plan.slot_count, plan.to_fields())
    };
    let identity = StoreIdentity { node: [5; 16], shard: ShardIndex(1), shard_count: 2 };
    let mut page = vec![0; META_BYTES];
    let (instance, block_bytes, base) = (INSTANCE, BlockSize::MIN.bytes(), 4096);
    Superblock { magic, identity, instance, block_bytes, base, length, slot_count, geometry }
        .encode(&mut page);
    page
}

/// Structures of the NVM level, plain and to be sealed.
pub(crate) fn nvm_seeds() -> Vec<(String, Vec<u8>)> {
    let header = |dirty, borrowed| {
        NvmHeader { key: BlockKey(77), seq: SEQ, crc: 3, dirty, borrowed }.encode(INSTANCE, INDEX)
    };
    with_and_without_seal(vec![
        ("superblock", 0, superblock_page(NVM_MAGIC)),
        ("dirty", 1, header(true, false).to_vec()),
        ("borrowed", 1, header(false, true).to_vec()),
        ("mark", 2, encode_mark(SEQ, INSTANCE).to_vec()),
    ])
}

/// Trailing zeros are left out, since an input goes on with them.
fn with_and_without_seal(pages: Vec<(&str, u8, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (name, kind, page) in pages {
        let used = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        seeds.push((name.to_owned(), [&[kind, 0], &page[..used]].concat()));
        // The checksum at the end comes from sealing.
        let used = page.iter().take(1024).rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        seeds.push((format!("{name}_sealed"), [&[kind, 1], &page[..used]].concat()));
    }
    seeds
}
