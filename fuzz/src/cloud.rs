//! Every structure of a cloud-backed volume, decoded from arbitrary bytes.
//!
//! How: the first bytes of an input say which structure the rest is and whether its checksum, and
//! what packs it, are made true; what decodes is encoded and decoded again, and once more with one
//! bit changed.
//! Invariant: no bytes make a decoder panic; decode(encode(x)) == x; a changed bit is refused.
//! Not for: what structures mean together, see `cloud_open`.

use crate::{Input, cloud_open};
use layby_cloud::formats::{Format, JournalPlace, chunk, encode_again, encode_batch_again};
use layby_cloud::{CHUNK_BYTES, SUPERBLOCK_KEY};
use layby_engine::store::layout::crc32c;
use layby_types::parity::{CONTENT_BYTES, PAGE_BYTES, put_parity};

/// Bytes of a segment's header and of an entry of its index.
const HEADER_BYTES: usize = 80;
const ENTRY_BYTES: usize = 40;
/// The journal of all inputs: the one of the lives that seeds come from.
const PLACE: JournalPlace = JournalPlace {
    instance: cloud_open::INSTANCE,
    capacity: cloud_open::JOURNAL_BYTES - PAGE_BYTES as u64,
    block_bytes: cloud_open::BLOCK_BYTES,
};

/// What an input begins with: which structure it is, whether it is sealed, and where a bit changes.
struct Head {
    kind: u8,
    is_sealed: bool,
    /// As a fraction of what is encoded.
    bit: u16,
}

impl Head {
    fn take(input: &mut Input<'_>) -> Head {
        Head { kind: input.byte(), is_sealed: input.byte() & 1 == 1, bit: input.number() }
    }

    /// The bytes with one bit changed.
    fn changed(&self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        let bit = bytes.len() * 8 * usize::from(self.bit) / (1 << 16);
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    }
}

/// Decodes what lies in the store.
pub(crate) fn run_store(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let head = Head::take(&mut input);
    match (head.kind % 4, head.is_sealed) {
        (0, true) => judge(&head, Format::Segment, &sealed_segment(input.rest)),
        (0, false) => judge(&head, Format::Segment, input.rest),
        (1, _) => a_chunk(&mut input),
        (2, true) => judge(&head, Format::Checkpoint, &sealed_checkpoint(input.rest)),
        (2, false) => judge(&head, Format::Checkpoint, input.rest),
        (_, true) => judge(&head, Format::Superblock, &sealed_superblock(input.rest)),
        (_, false) => judge(&head, Format::Superblock, input.rest),
    }
}

/// Decodes what a node keeps.
pub(crate) fn run_local(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let head = Head::take(&mut input);
    if head.kind.is_multiple_of(2) {
        let mut page = input.take(PAGE_BYTES).to_vec();
        page.resize(PAGE_BYTES, 0);
        if head.is_sealed {
            seal_page(&mut page);
        }
        return batch(&head, &page);
    }
    let file = if head.is_sealed { sealed_frames(&mut input) } else { input.rest.to_vec() };
    let Some(again) = encode_again(Format::MapFile, &file) else { return };
    assert_eq!(encode_again(Format::MapFile, &again).as_ref(), Some(&again));
    if !again.is_empty() {
        // What is changed in the last frame looks like an append that was cut short.
        let found = encode_again(Format::MapFile, &head.changed(&again));
        let is_shorter = |found: &Vec<u8>| found.len() < again.len() && again.starts_with(found);
        assert!(found.as_ref().is_none_or(is_shorter), "a changed bit goes unnoticed");
    }
}

/// What decodes is encoded and decoded again; with one bit changed it is refused.
fn judge(head: &Head, format: Format, bytes: &[u8]) {
    let Some(again) = encode_again(format, bytes) else { return };
    assert_eq!(encode_again(format, &again).as_ref(), Some(&again), "{format:?}");
    let changed = head.changed(&again);
    assert_eq!(encode_again(format, &changed), None, "{format:?}: a changed bit goes unnoticed");
}

fn batch(head: &Head, page: &[u8]) {
    let Some(again) = encode_batch_again(PLACE, page) else { return };
    assert_eq!(encode_batch_again(PLACE, &again).as_ref(), Some(&again));
    let changed = head.changed(&again);
    let found = encode_batch_again(PLACE, &changed);
    assert_eq!(found.as_ref(), Some(&again), "a sector may be lost, and no more changes");
}

/// A chunk whose checksum is right has its length, or is refused.
fn a_chunk(input: &mut Input<'_>) {
    let (encoding, blocks) = (input.byte() % 4, usize::from(input.byte()));
    let length = (blocks * 512).min(CHUNK_BYTES);
    let found = chunk(input.rest, encoding.into(), crc32c(input.rest), length);
    assert!(found.is_none_or(|bytes| bytes.len() == length), "a chunk of another length");
    let wrong = chunk(input.rest, encoding.into(), !crc32c(input.rest), length);
    assert_eq!(wrong, None, "a chunk with a wrong checksum");
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn seal_page(page: &mut Vec<u8>) {
    page.truncate(CONTENT_BYTES - 4);
    *page = seal(std::mem::take(page));
    page.resize(PAGE_BYTES, 0);
    put_parity(page);
}

/// A segment's head with as many entries as there are bytes for.
fn sealed_segment(bytes: &[u8]) -> Vec<u8> {
    let mut head = bytes.to_vec();
    let entries = bytes.len().saturating_sub(HEADER_BYTES) / ENTRY_BYTES;
    head.resize(HEADER_BYTES + entries * ENTRY_BYTES, 0);
    head[..8].copy_from_slice(b"LAYBYCSG");
    head[8..12].copy_from_slice(&(entries as u32).to_le_bytes());
    seal(head)
}

/// A checkpoint whose body follows a byte that says whether it has bases. It is packed as it is,
/// since what packs it is not what this looks at.
fn sealed_checkpoint(bytes: &[u8]) -> Vec<u8> {
    let (first, body) = bytes.split_first().unwrap_or((&0, &[]));
    let magic = if first & 1 == 1 { b"LAYBYCB2" } else { b"LAYBYCP2" };
    let mut object = magic.to_vec();
    object.extend_from_slice(&(body.len() as u64).to_le_bytes());
    object.extend_from_slice(&[1; 16]);
    // Zstandard: magic, one segment with four bytes of length, one last raw block.
    object.extend_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0xa0]);
    object.extend_from_slice(&(body.len() as u32).to_le_bytes());
    object.extend_from_slice(&((body.len() as u32) << 3 | 1).to_le_bytes()[..3]);
    object.extend_from_slice(body);
    seal(object)
}

fn sealed_superblock(bytes: &[u8]) -> Vec<u8> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
    let mut text = line.to_vec();
    text.extend_from_slice(format!("\ncrc32c {:08x}\n", crc32c(line)).as_bytes());
    text
}

/// Frames of a map file: of each a kind, a length and its body, packed where its kind is.
fn sealed_frames(input: &mut Input<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    while !input.is_empty() {
        let (kind, length) = (input.byte() % 7, usize::from(input.number() % 1024));
        let body = input.take(length);
        let body = match kind {
            2 => sealed_checkpoint(body),
            3 => sealed_segment(body),
            _ => body.to_vec(),
        };
        let mut frame = (body.len() as u64).to_le_bytes().to_vec();
        frame.extend_from_slice(&u32::from(kind).to_le_bytes());
        frame.extend_from_slice(&body);
        file.extend(seal(frame));
    }
    file
}

/// What an input needs before a structure's bytes.
fn input(kind: u8, is_sealed: bool, bytes: &[u8]) -> Vec<u8> {
    [&[kind, is_sealed.into(), 0x55, 0xaa], bytes].concat()
}

/// Objects of a life, plain and to be sealed.
pub(crate) fn store_seeds() -> Vec<(String, Vec<u8>)> {
    let life = cloud_open::lived();
    let mut seeds = Vec::new();
    let (mut segments, mut checkpoints) = (0, 0);
    for (key, (bytes, _)) in &life.store.objects {
        if key == SUPERBLOCK_KEY {
            seeds.push(("superblock".to_owned(), input(3, false, bytes)));
            seeds.push(("superblock_sealed".to_owned(), input(3, true, bytes)));
        } else if key.starts_with("checkpoints/") {
            checkpoints += 1;
            seeds.push((format!("checkpoint_{checkpoints}"), input(2, false, bytes)));
        } else if key.starts_with("segments/") && segments < 3 {
            segments += 1;
            let count = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
            let head = HEADER_BYTES + count * ENTRY_BYTES;
            seeds.push((format!("segment_{segments}"), input(0, false, &bytes[..head + 4])));
            seeds.push((format!("segment_{segments}_sealed"), input(0, true, &bytes[..head])));
            // The first chunk, by the encoding and the blocks of the first entry.
            let encoding = bytes[HEADER_BYTES + 37];
            let blocks = bytes[HEADER_BYTES + 8] * 8;
            let chunk = [&[encoding, blocks], &bytes[head + 4..]].concat();
            seeds.push((format!("chunk_{segments}"), input(1, false, &chunk)));
        }
    }
    seeds.push(("checkpoint_sealed".to_owned(), input(2, true, &checkpoint_body())));
    seeds
}

/// A checkpoint's body: one segment, and one run in it.
fn checkpoint_body() -> Vec<u8> {
    let mut body = vec![0];
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let put: [Vec<u8>; 2] = [words(&[9, 5, 1, 1, 8, 300, 4, 0]), words(&[30, 3, 8])];
    body.extend_from_slice(&put[0]);
    body.extend_from_slice(&1_u32.to_le_bytes());
    body.extend_from_slice(&put[1]);
    for field in [80_u32, 10, 7] {
        body.extend_from_slice(&field.to_le_bytes());
    }
    for field in [4_u16, 1, 0] {
        body.extend_from_slice(&field.to_le_bytes());
    }
    body
}

/// A batch and a map file of a life, plain and to be sealed.
pub(crate) fn local_seeds() -> Vec<(String, Vec<u8>)> {
    let life = cloud_open::lived();
    let page = life.disks.read(PAGE_BYTES as u64, PAGE_BYTES as u64).expect("a ring has pages");
    let used = page[..CONTENT_BYTES - 4].iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    let file = &life.disks.map_file;
    let mut committed = vec![4, 28, 0];
    committed.extend_from_slice(&1_u32.to_le_bytes());
    for field in [2_u64, 4096, 3] {
        committed.extend_from_slice(&field.to_le_bytes());
    }
    let body = checkpoint_body();
    let mut frames = committed.clone();
    frames.extend_from_slice(&[2, body.len() as u8, 0]);
    frames.extend_from_slice(&body);
    frames.extend_from_slice(&[3, HEADER_BYTES as u8, 0]);
    frames.resize(frames.len() + HEADER_BYTES, 0);
    vec![
        ("batch".to_owned(), input(0, false, &page)),
        ("batch_sealed".to_owned(), input(0, true, &page[..used])),
        ("map_file".to_owned(), input(1, false, &file[..file.len().min(3000)])),
        ("frames".to_owned(), input(1, true, &frames)),
        ("committed".to_owned(), input(1, true, &committed)),
    ]
}
