//! `layby check`: reads a stopped node's structures and says whether they are sound.
//!
//! How: it parses bytes by itself, from `docs/formats.md` rather than through the engine's readers,
//! with plain reads, so that a mistake in the engine's reader cannot hide one in its writer.
//! Invariant: nothing is written, and any bytes at all give a report rather than a panic. What
//! power loss may leave (a torn batch that nobody vouches for) is counted, and is no problem.
//! Cost: headers, checkpoint and recent batches; with `full` every live block.
//! Not for: a running node, whose structures change meanwhile.

mod batches;
mod log;
mod lost;
mod nvm;

use crate::io::{CIPHER_BLOCK_BYTES, SectorCipher};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which structures to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The log of an SSD level.
    Log,
    /// The slots of an NVM level.
    Nvm,
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreKind::Log => "SSD log",
            StoreKind::Nvm => "NVM slots",
        })
    }
}

/// One store to look at.
#[derive(Clone, Debug)]
pub struct CheckTarget {
    /// The file or device.
    pub path: PathBuf,
    /// First byte of the region.
    pub base: u64,
    /// Bytes of the region, as the node is configured.
    pub length: u64,
    /// What is there.
    pub kind: StoreKind,
    /// What it is encrypted by, where it is.
    pub cipher: Option<Arc<SectorCipher>>,
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file or device.
    pub device: String,
    /// Where.
    pub offset: u64,
    /// What, in a sentence.
    pub sentence: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` at byte {}: {}", self.device, self.offset, self.sentence)
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Blocks that recovery would return.
    pub blocks_live: u64,
    /// Of them, those not known to be in the backing store.
    pub blocks_dirty: u64,
    /// Blocks whose data was read and compared with its checksum.
    pub blocks_verified: u64,
    /// Batches behind the checkpoint, or slot headers in use.
    pub records: u64,
    /// Cut short by power loss; never promised durable.
    pub torn: u64,
    /// Bytes read.
    pub bytes_read: u64,
}

/// Blocks of a volume whose newest version is not known, as a start has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRun {
    /// The volume's number, or that of its part.
    pub volume: u32,
    /// The first block.
    pub block: u64,
    /// Blocks from there on.
    pub count: u64,
}

/// The findings on one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// The file or device.
    pub device: String,
    /// First byte of the region.
    pub base: u64,
    /// What was expected there.
    pub kind: StoreKind,
    /// The node that the superblock names, if it could be read.
    pub node: Option<[u8; 16]>,
    /// The shard that the superblock names.
    pub shard: u16,
    /// What the superblock drew when it was formatted.
    pub instance: u64,
    /// The highest sequence number of a sound structure.
    pub seq: u64,
    /// Totals.
    pub counts: CheckCounts,
    /// Dirty blocks by volume.
    pub dirty: BTreeMap<u32, u64>,
    /// Of a log: all lost blocks, in order, but for those that a level checked with it knows.
    pub lost: Vec<LostRun>,
    /// Bytes of a block; 0 where no superblock says so.
    pub block_bytes: u64,
    /// What is wrong, at most [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
    /// Problems beyond those listed.
    pub problems_omitted: u64,
    /// Of an NVM level: its blocks, until what is lost beside it is known.
    nvm_keys: Vec<u64>,
}

/// Problems that a report lists; more are counted.
pub const PROBLEMS_MAX: usize = 100;

impl StoreReport {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.lost.is_empty()
    }

    fn new(device: &str, base: u64, kind: StoreKind) -> Self {
        StoreReport {
            device: device.to_owned(),
            base,
            kind,
            node: None,
            shard: 0,
            instance: 0,
            seq: 0,
            counts: CheckCounts::default(),
            dirty: BTreeMap::new(),
            lost: Vec::new(),
            block_bytes: 0,
            problems: Vec::new(),
            problems_omitted: 0,
            nvm_keys: Vec::new(),
        }
    }

    /// Counts a live block that is not known to be in its backing store.
    fn count_dirty(&mut self, key: u64) {
        self.counts.blocks_dirty += 1;
        *self.dirty.entry((key >> KEY_BLOCK_BITS) as u32).or_default() += 1;
    }

    /// Notes a problem at a byte of the region.
    fn problem(&mut self, offset: u64, sentence: String) {
        if self.problems.len() == PROBLEMS_MAX {
            self.problems_omitted += 1;
            return;
        }
        let (device, offset) = (self.device.clone(), self.base.saturating_add(offset));
        self.problems.push(Problem { device, offset, sentence });
    }
}

/// The findings on all stores of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// One per target, in order.
    pub stores: Vec<StoreReport>,
}

impl CheckReport {
    /// Every store is sound.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.stores.iter().all(StoreReport::is_sound)
    }
}

/// Where bytes come from.
pub trait ReadAt {
    /// Fills `bytes` from `offset`; past the end is an error.
    ///
    /// # Errors
    /// The device's.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        let source = self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(source);
        Ok(())
    }
}

/// A source of cipher text, as clear text.
pub struct Deciphered<'a, R: ?Sized> {
    /// Where the cipher text comes from.
    pub source: &'a R,
    /// What it is encrypted by.
    pub cipher: Arc<SectorCipher>,
}

impl<R: ReadAt + ?Sized> ReadAt for Deciphered<'_, R> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        // A damaged structure may name any place: what is read are whole blocks of the cipher.
        let unit = CIPHER_BLOCK_BYTES as u64;
        let (start, end) = (offset / unit * unit, offset.saturating_add(bytes.len() as u64));
        let end = end.checked_next_multiple_of(unit).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut whole = vec![0; (end - start) as usize];
        self.source.read_at(start, &mut whole)?;
        self.cipher.decrypt(start, &mut whole);
        bytes.copy_from_slice(&whole[(offset - start) as usize..][..bytes.len()]);
        Ok(())
    }
}

/// Looks at every target; with `full` also at the data of every live block.
#[must_use]
pub fn check(targets: &[CheckTarget], full: bool) -> CheckReport {
    let mut stores: Vec<StoreReport> =
        targets.iter().map(|target| check_target(target, full)).collect();
    lost::know_from_nvm(&mut stores);
    CheckReport { stores }
}

fn check_target(target: &CheckTarget, full: bool) -> StoreReport {
    let device = target.path.display().to_string();
    match open(&target.path) {
        Ok(file) => match target.cipher.clone() {
            None => check_store(&file, &device, target.base, target.length, target.kind, full),
            Some(cipher) => {
                let source = Deciphered { source: &file, cipher };
                check_store(&source, &device, target.base, target.length, target.kind, full)
            }
        },
        Err(error) => {
            let mut report = StoreReport::new(&device, target.base, target.kind);
            report.problem(0, format!("cannot be opened: {error}"));
            report
        }
    }
}

/// Opens a file or block device; a pipe is not waited for, and no character device is opened.
fn open(path: &Path) -> io::Result<File> {
    let found = std::fs::metadata(path)?.file_type();
    if !found.is_file() && !found.is_block_device() {
        let cause = "it is neither a file nor a block device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
    }
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

/// Looks at one store in `source`.
#[must_use]
pub fn check_store<R: ReadAt + ?Sized>(
    source: &R,
    device: &str,
    base: u64,
    length: u64,
    kind: StoreKind,
    full: bool,
) -> StoreReport {
    let mut bytes = Bytes { source, report: StoreReport::new(device, base, kind) };
    let Some(superblock) = Superblock::read(&mut bytes, length) else { return bytes.report };
    bytes.report.node = Some(superblock.node);
    bytes.report.shard = superblock.shard;
    bytes.report.instance = superblock.instance;
    bytes.report.block_bytes = superblock.block;
    match kind {
        StoreKind::Log => log::check(&mut bytes, &superblock, full),
        StoreKind::Nvm => nvm::check(&mut bytes, &superblock, full),
    }
    bytes.report
}

/// A source with the report that it fills.
struct Bytes<'a, R: ?Sized> {
    source: &'a R,
    report: StoreReport,
}

impl<R: ReadAt + ?Sized> Bytes<'_, R> {
    /// Bytes of the region, or `None` with a problem noted.
    fn get(&mut self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.report.counts.bytes_read += length as u64;
        match self.source.read_at(self.report.base.saturating_add(offset), &mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.report.problem(offset, format!("{length} bytes cannot be read: {error}"));
                None
            }
        }
    }
}

impl<R: ReadAt + ?Sized> Bytes<'_, R> {
    /// The same, block by block where that fails; what cannot be read is noise.
    fn get_what_is_left(&mut self, offset: u64, length: usize, block: usize) -> Vec<u8> {
        let mut whole = vec![0; length];
        self.report.counts.bytes_read += length as u64;
        let at = self.report.base.saturating_add(offset);
        if self.source.read_at(at, &mut whole).is_err() {
            for (index, piece) in whole.chunks_mut(block).enumerate() {
                let at = offset + (index * block) as u64;
                let read = self.get(at, piece.len());
                piece.copy_from_slice(&read.unwrap_or_else(|| vec![u8::MAX; piece.len()]));
            }
        }
        whole
    }

    /// Notes a seq that no node can have given out; the engine refuses to start on it.
    fn expect_seqs(&mut self, offset: u64, seqs: &[u64]) {
        let sound = seqs.iter().filter(|seq| **seq <= SEQ_MAX).max();
        self.report.seq = self.report.seq.max(sound.copied().unwrap_or(0));
        if let Some(seq) = seqs.iter().find(|seq| **seq > SEQ_MAX) {
            let sentence = format!("a sequence number of {seq} is above any that a node gives out");
            self.report.problem(offset, sentence);
        }
    }
}

/// The highest seq of a sound structure.
const SEQ_MAX: u64 = 1 << 63;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |field| u16::from_le_bytes([field[0], field[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

fn crc(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// A page of 4096 bytes with its checksum at the end of its content: stored and computed.
fn page_crcs(page: &[u8]) -> (u32, u32) {
    (u32_at(page, 3580), crc(&[&page[..3580]]))
}

/// A page with one of its seven sectors of content made from the others and the parity, where
/// `is_sound` accepts that. `None` for a page that is sound or beyond help.
fn rebuilt(page: &[u8], is_sound: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    if is_sound(page) {
        return None;
    }
    (0..7).find_map(|lost| {
        let mut page = page[..4096].to_vec();
        for at in 0..512 {
            let others = (0..8).filter(|sector| *sector != lost);
            page[512 * lost + at] = others.fold(0, |sum, sector| sum ^ page[512 * sector + at]);
        }
        is_sound(&page).then_some(page)
    })
}

/// Bits of a key that number a block; those above number its volume.
const KEY_BLOCK_BITS: u32 = 44;

/// A block as reports name it.
fn block_name(key: u64) -> String {
    let block = key & ((1 << KEY_BLOCK_BITS) - 1);
    format!("block {block} of volume {}", key >> KEY_BLOCK_BITS)
}

struct Superblock {
    node: [u8; 16],
    shard: u16,
    instance: u64,
    block: u64,
    length: u64,
    slots: u32,
    geometry: [u32; 5],
}

impl Superblock {
    fn read<R: ReadAt + ?Sized>(bytes: &mut Bytes<'_, R>, length: u64) -> Option<Self> {
        let page = bytes.get(0, 4096)?;
        let is_sound = |page: &[u8]| page_crcs(page).0 == page_crcs(page).1;
        let rebuilt = rebuilt(&page, is_sound);
        if rebuilt.is_some() {
            bytes.report.problem(0, "a sector of the superblock is damaged".into());
        }
        let page = rebuilt.unwrap_or(page);
        let magic: &[u8; 8] = match bytes.report.kind {
            StoreKind::Log => b"LAYBYLOG",
            StoreKind::Nvm => b"LAYBYNVM",
        };
        let (stored, computed) = page_crcs(&page);
        let (version, block) = (u32_at(&page, 8), u32_at(&page, 12));
        let (base, region) = (u64_at(&page, 48), u64_at(&page, 56));
        let kind = bytes.report.kind;
        // Another version may have its checksum elsewhere; a higher number is damage.
        let later = 5..=64;
        let wrong = if page[..8] != magic[..] {
            Some(format!("there is no superblock of {kind} here"))
        } else if stored != computed && version != 1 && !later.contains(&version) {
            let stored = format!("stored {stored:08x}, computed {computed:08x}");
            Some(format!("superblock checksum mismatch: {stored}"))
        } else if version > 4 {
            let writer = "which a later version of Layby wrote";
            Some(format!("format version {version}, {writer}; this program reads 4"))
        } else if version != 4 {
            Some(format!("format version {version}, this program reads 4"))
        } else if !block.is_power_of_two() || !(4096..=65536).contains(&block) {
            Some(format!("a block size of {block} bytes is not allowed"))
        } else if base != bytes.report.base {
            Some(format!("superblock was written for byte {base}"))
        } else if region != length {
            Some(format!("superblock covers {region} bytes, configured are {length}"))
        } else {
            None
        };
        if let Some(sentence) = wrong {
            bytes.report.problem(0, sentence);
            return None;
        }
        let mut node = [0; 16];
        node.copy_from_slice(&page[16..32]);
        Some(Superblock {
            node,
            shard: u16_at(&page, 32),
            instance: u64_at(&page, 40),
            block: block.into(),
            length: region,
            slots: u32_at(&page, 64),
            geometry: [68, 72, 76, 80, 84].map(|at| u32_at(&page, at)),
        })
    }
}
