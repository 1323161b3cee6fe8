//! Damaged sectors, and pages of 4 KiB, in a level cost the blocks whose bytes lay there, and
//! nothing else.
//!
//! How: a node is filled and stopped, in order or by a kill, and its folder copied. Each seed
//! damages sectors or pages of the copy, starts a node on it and reads all blocks. Which blocks may
//! be lost is known from the level's bytes before the damage. A page is what a drive with physical
//! sectors of 4 KiB loses at once: it is noise, or cannot be read. Pages are drawn by
//! what they hold, so that few seeds meet every structure, and a MiB from each other at least, so
//! that a structure and its copy are not both met. Their node is started anew in between, so that
//! a full checkpoint, and after a kill many batches behind it, are in use.
//! `LAYBY_DAMAGE_SEEDS` says how many seeds; `LAYBY_DAMAGE_KIND` (`data`, or `LAYBYBAT in use`) has
//! pages of that kind alone be damaged.
//! Invariant: a block reads as its latest version, or as an error: if its bytes were damaged, or if
//! two sectors of one structure were, after which the start names it among those that are lost.
//! Not for: superblocks and the NVM level's mark, of which a page is both places; see `lost_pages`.

use layby_tests::{
    Connection, HttpRequest, Node, Options, Request, Unreadable, available, layby,
    mount_unavailable, number,
};
use layby_types::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const SECTOR: u64 = 512;
const SECTORS_DAMAGED: usize = 100;
const SEEDS_DEFAULT: u64 = 50;
/// No block is written so often.
const VERSIONS_MAX: u64 = 10;
/// Ranges that a start names of each volume.
const RANGES_NAMED: usize = 16;
/// More of them.
const RANGES_WANTED: usize = 20;
/// Chunks that are drawn of a checkpoint that has fewer.
const CHUNKS_DAMAGED: usize = 32;
/// Blocks that a failure names.
const BLOCKS_SHOWN: usize = 20;
const PAGE_SEEDS_DEFAULT: u64 = 3;
/// FUSE takes its time.
const UNREADABLE_SEEDS_DEFAULT: u64 = 2;
/// Pages of 4 KiB from one that is damaged to the next, at least: a MiB between them, and a page
/// more, since a batch of a MiB may lie between its descriptor and what follows it.
const PAGES_APART: usize = 258;
/// Behind the kind of a structure without which a start has not all.
const IN_USE: &str = " in use";
/// Pages that are drawn for each level; those too near to an earlier one are left out.
const PAGES_DRAWN: usize = 300;
const TOOLS: [&str; 4] = ["nbdkit", "nbdfuse", "mkfifo", "umount"];
/// Name, class and blocks of each volume.
type Volumes = [(&'static str, &'static str, u64); 2];

const VOLUMES: Volumes = [("upper", "critical", 2048), ("lower", "normal", 8192)];
/// So small that no checkpoint is needed while the node runs.
const SMALL_VOLUMES: Volumes = [("upper", "critical", 1024), ("lower", "normal", 4096)];

fn options(folder: &Path) -> Options {
    Options::config(format!(
        "[node]\nshards = 1\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
         [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\npath = \"{0}/nvm.level\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\npath = \"{0}/ssd.level\"\n",
        folder.display()
    ))
}

/// The latest version of each block, and its bytes, made once.
struct Latest {
    bytes: Vec<Vec<Vec<u8>>>,
    owners: BTreeMap<Vec<u8>, (usize, u64)>,
}

impl Latest {
    fn new(versions: &[Vec<u64>]) -> Latest {
        let mut owners = BTreeMap::new();
        let volumes = versions.iter().enumerate().map(|(volume, latest)| {
            let blocks = (0..).zip(latest).map(|(block, version)| {
                let bytes = content(volume, block, *version);
                owners.insert(bytes.clone(), (volume, block));
                bytes
            });
            blocks.collect()
        });
        let bytes = volumes.collect();
        Latest { bytes, owners }
    }

    /// What each page of a level's sound file holds; those of a kind in ascending order. Left out
    /// are superblocks and the NVM level's mark.
    fn kinds(&self, sound: &[u8]) -> BTreeMap<String, Vec<usize>> {
        let (mut kinds, chain) = (BTreeMap::<_, Vec<_>>::new(), Chain::new(sound));
        let is_nvm = sound.starts_with(b"LAYBYNVM");
        let headers = if is_nvm { u32_at(sound, 72)..u32_at(sound, 76) } else { 0..0 };
        let aside = if is_nvm { 2 } else { 1 };
        for (index, page) in sound.chunks(BLOCK).enumerate().skip(aside) {
            let kind = match page {
                _ if headers.contains(&(index as u32)) => "headers".to_owned(),
                _ if page.starts_with(b"LAYBY") => {
                    let magic = String::from_utf8_lossy(&page[..8]);
                    format!("{magic}{}", if chain.needs(page) { IN_USE } else { "" })
                }
                _ if self.owners.contains_key(page) => "data".to_owned(),
                _ if page.iter().all(|byte| *byte == 0) => "zeros".to_owned(),
                _ => "others".to_owned(),
            };
            kinds.entry(kind).or_default().push(index);
        }
        kinds
    }

    /// The blocks of volumes whose latest bytes lay in damaged blocks of a level's sound file.
    fn in_blocks(&self, sound: &[u8], damaged: &BTreeSet<usize>) -> BTreeSet<(usize, u64)> {
        let owner = |block: &usize| self.owners.get(&sound[block * BLOCK..][..BLOCK]).copied();
        damaged.iter().filter_map(owner).collect()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

/// The newest full checkpoint of a log and the increments behind it.
struct Chain {
    /// The seq counter at the start of each.
    starts: BTreeSet<u64>,
    /// Generations of the segments that were open at the start of the last one.
    open: BTreeSet<u64>,
}

impl Chain {
    fn new(log: &[u8]) -> Chain {
        let is_trailer = |page: &&[u8]| page.starts_with(b"LAYBYCKT");
        let trailers: Vec<_> = log.chunks(BLOCK).filter(is_trailer).collect();
        let full = |page: &[u8]| u64_at(page, 3564);
        let newest = trailers.iter().max_by_key(|page| u64_at(page, 16)).map(|page| full(page));
        let mine = trailers.into_iter().filter(|page| Some(full(page)) == newest);
        let by_start: BTreeMap<_, _> = mine.map(|page| (u64_at(page, 16), page)).collect();
        let open = by_start
            .last_key_value()
            .map_or(&[][..], |(_, page)| &page[56..][..16 * u32_at(page, 48) as usize]);
        let open = open.chunks(16).map(|it| u64_at(it, 8)).collect();
        Chain { starts: by_start.into_keys().collect(), open }
    }

    /// Whether a start needs this structure: one of the chain, or what came behind it.
    fn needs(&self, page: &[u8]) -> bool {
        let is_behind = |seq| self.starts.last().is_none_or(|start| seq > *start);
        match &page[..8] {
            b"LAYBYCKT" | b"LAYBYCKC" => self.starts.contains(&u64_at(page, 16)),
            b"LAYBYSEG" => self.open.contains(&u64_at(page, 24)) || is_behind(u64_at(page, 24)),
            b"LAYBYBAT" => is_behind(u64_at(page, 24)),
            _ => false,
        }
    }
}

fn content(volume: usize, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new((volume as u64) << 48 ^ block << 8 ^ version).fill(&mut bytes);
    bytes
}

/// Writes two versions of every block: in order and long, then some shuffled and single.
fn fill(node: &Node, volumes: &Volumes) -> Vec<Vec<u64>> {
    let mut rng = Rng::new(7);
    let mut versions = Vec::new();
    for (volume, (name, class, blocks)) in volumes.iter().enumerate() {
        node.volume_create(name, &(blocks * BLOCK as u64).to_string(), class);
        let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
        let mut latest = vec![1; *blocks as usize];
        for first in (0..*blocks).step_by(16) {
            let data = (first..first + 16).flat_map(|block| content(volume, block, 1)).collect();
            write(&mut connection, first, data, false);
        }
        flush(&mut connection);
        rewrite(&mut connection, volume, (&mut latest, 2..5), &mut rng);
        versions.push(latest);
    }
    versions
}

/// Writes further versions of an eighth of a volume's blocks each.
fn rewrite(
    connection: &mut Connection,
    volume: usize,
    (latest, versions): (&mut [u64], Range<u64>),
    rng: &mut Rng,
) {
    let blocks = latest.len() as u64;
    for version in versions {
        for _ in 0..blocks / 8 {
            let block = rng.below(blocks - 1);
            latest[block as usize] = version;
            write(connection, block, content(volume, block, version), false);
        }
        flush(connection);
    }
    // It vouches that all before it is durable; nothing vouches for itself.
    let last = blocks - 1;
    write(connection, last, content(volume, last, 1), true);
    flush(connection);
}

fn write(connection: &mut Connection, block: u64, data: Vec<u8>, fua: bool) {
    let write = Request::Write { offset: block * BLOCK as u64, data, fua };
    connection.call(&write).expect("the node serves").expect("a sound disk");
}

fn flush(connection: &mut Connection) {
    connection.call(&Request::Flush).expect("the node serves").expect("a sound disk");
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-aT").arg(from).arg(to).status();
    assert!(status.is_ok_and(|status| status.success()), "cannot copy the node's folder");
}

/// Damages random sectors of a level that holds `bytes`, superblocks aside, and answers the blocks
/// of the file that they lie in.
fn damage(path: &Path, bytes: &[u8], rng: &mut Rng) -> BTreeSet<usize> {
    let file = File::options().write(true).open(path).expect("can write");
    let (mut sectors, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    while sectors.len() < SECTORS_DAMAGED {
        let sector = rng.below(bytes.len() as u64 / SECTOR);
        let block = sector as usize / (BLOCK / SECTOR as usize);
        let page = &bytes[block * BLOCK..][..BLOCK];
        let is_superblock = page.starts_with(b"LAYBYLOG") || page.starts_with(b"LAYBYNVM");
        if block == 0 || is_superblock || !sectors.insert(sector) {
            continue;
        }
        damaged.insert(block);
        let mut noise = vec![0; SECTOR as usize];
        rng.fill(&mut noise);
        file.write_all_at(&noise, sector * SECTOR).expect("can write");
    }
    damaged
}

/// Pages of a level's sound file to be damaged, by what they hold. The first one is of a checkpoint
/// in use, its trailer and a chunk in turn with the seeds, as all of it lies near together; for the
/// others a kind is drawn, then one of its pages.
fn draw(sound: &[u8], latest: &Latest, seed: u64, rng: &mut Rng) -> BTreeMap<String, Vec<usize>> {
    let mut kinds = latest.kinds(sound);
    if let Ok(only) = std::env::var("LAYBY_DAMAGE_KIND") {
        kinds.retain(|kind, _| *kind == only);
    }
    let kinds: Vec<_> = kinds.into_iter().collect();
    let is_first = |(kind, _): &&(String, _)| kind.starts_with("LAYBYCK") && kind.ends_with(IN_USE);
    let firsts: Vec<_> = kinds.iter().filter(is_first).collect();
    let (mut drawn, mut pages) = (BTreeMap::<_, Vec<_>>::new(), BTreeSet::new());
    let turns = if kinds.is_empty() { 0 } else { PAGES_DRAWN };
    for turn in 0..turns {
        let (kind, candidates) = match (turn, firsts.len()) {
            (0, count @ 1..) => firsts[seed as usize % count],
            _ => &kinds[rng.below(kinds.len() as u64) as usize],
        };
        let page = candidates[rng.below(candidates.len() as u64) as usize];
        let near = page.saturating_sub(PAGES_APART - 1)..page + PAGES_APART;
        if pages.range(near).next().is_none() {
            pages.insert(page);
            drawn.entry(kind.clone()).or_default().push(page);
        }
    }
    drawn
}

/// Makes noise of whole pages of a level.
fn damage_pages(path: &Path, pages: &BTreeSet<usize>, rng: &mut Rng) {
    let file = File::options().write(true).open(path).expect("can write");
    let mut noise = vec![0; BLOCK];
    for page in pages {
        rng.fill(&mut noise);
        file.write_all_at(&noise, (page * BLOCK) as u64).expect("can write");
    }
}

/// Where the newest checkpoint has its chunks, and how many, in pages.
fn chunks(bytes: &[u8]) -> (usize, usize) {
    let seq = |page: &[u8]| u64::from_le_bytes(page[16..24].try_into().expect("eight"));
    let pages = bytes.chunks(BLOCK).enumerate();
    let trailers = pages.filter(|(_, page)| page.starts_with(b"LAYBYCKT"));
    // The last of two pages that are alike.
    let (index, page) = trailers.max_by_key(|(_, page)| seq(page)).expect("there is one");
    let count = u32::from_le_bytes(page[32..36].try_into().expect("four"));
    (index + 1, count as usize)
}

/// Damages two sectors of a random chunk of the newest checkpoint; with `is_for_good`, the pages of
/// parity behind the chunks as well, so that nothing gives it back.
fn damage_chunk(path: &Path, rng: &mut Rng, is_for_good: bool) {
    let (first, count) = chunks(&fs::read(path).expect("can read"));
    let file = File::options().write(true).open(path).expect("can write");
    let page = (first + rng.below(count as u64) as usize) * BLOCK;
    for sector in [1, 4] {
        let at = page as u64 + sector * SECTOR;
        file.write_all_at(&[0x5a; SECTOR as usize], at).expect("can write");
    }
    if is_for_good {
        let pages = 1 << (count / 32).clamp(1, 16).ilog2();
        let noise = vec![0x5a; pages * BLOCK];
        file.write_all_at(&noise, ((first + count) * BLOCK) as u64).expect("can write");
    }
}

/// Blocks that the node says are lost since damage left their newest version unknown.
fn lost(node: &Node) -> usize {
    let lines = node.said();
    let is_ours =
        |line: &&str| VOLUMES.iter().any(|(name, ..)| line.contains(&format!("`{name}`")));
    let count =
        |line: &str| line.strip_prefix("note: lost: ")?.split(' ').next()?.parse::<usize>().ok();
    lines.lines().filter(is_ours).filter_map(count).sum()
}

/// Reads every block; answers those that are errors.
fn verify(node: &Node, latest: &Latest) -> BTreeSet<(usize, u64)> {
    let mut errors = BTreeSet::new();
    for (volume, latest) in latest.bytes.iter().enumerate() {
        let name = VOLUMES[volume].0;
        let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
        let mut read = |block: u64, count: u64| {
            let (offset, length) = (block * BLOCK as u64, count as u32 * BLOCK as u32);
            connection.call(&Request::Read { offset, length }).expect("the node serves")
        };
        for first in (0..latest.len() as u64).step_by(16) {
            let whole = read(first, 16);
            for block in first..first + 16 {
                let piece = match &whole {
                    Ok(whole) => Ok(whole[(block - first) as usize * BLOCK..][..BLOCK].to_vec()),
                    Err(_) => read(block, 1),
                };
                match piece {
                    Ok(piece) => assert!(
                        piece == latest[block as usize],
                        "block {block} of `{name}` is at version {:?}, which is not its latest",
                        (0..VERSIONS_MAX).find(|it| piece == content(volume, block, *it))
                    ),
                    Err(_) => drop(errors.insert((volume, block))),
                }
            }
        }
    }
    errors
}

/// The files of a fixture's levels.
const LEVELS: [&str; 2] = ["nvm.level", "ssd.level"];

/// A node's folder as it was when the node ended, and a copy to be damaged.
struct Fixture {
    _work: TempDir,
    sound: PathBuf,
    /// What its levels hold, read once: most of a seed's time went into fresh memory for it.
    levels: [Vec<u8>; 2],
    used: PathBuf,
    dir: PathBuf,
    options: Options,
    latest: Latest,
}

impl Fixture {
    fn new(is_killed: bool) -> Fixture {
        Fixture::made(is_killed, &VOLUMES, |node, _, _, _| node)
    }

    /// One that was started anew between: so a full checkpoint names what was written before, and
    /// batches behind it what was written after.
    fn restarted(is_killed: bool) -> Fixture {
        Fixture::made(is_killed, &SMALL_VOLUMES, |node, dir, options, versions| {
            node.stop();
            let (node, mut rng) = (Node::start(dir, options), Rng::new(8));
            for (volume, latest) in versions.iter_mut().enumerate() {
                let name = SMALL_VOLUMES[volume].0;
                let mut connection = Connection::open(&node.socket(), name).expect("it serves");
                rewrite(&mut connection, volume, (latest, 5..7), &mut rng);
            }
            node
        })
    }

    /// One whose node goes on after it was filled.
    fn made(
        is_killed: bool,
        volumes: &Volumes,
        go_on: impl FnOnce(Node, &Path, &Options, &mut [Vec<u64>]) -> Node,
    ) -> Fixture {
        let work = TempDir::new().expect("a temporary folder");
        let (sound, used) = (work.path().join("sound"), work.path().join("used"));
        fs::create_dir(&used).expect("a folder of our own");
        let (dir, options) = (used.join("node"), options(&used));
        let node = Node::start(&dir, &options);
        let mut versions = fill(&node, volumes);
        let node = go_on(node, &dir, &options, &mut versions);
        let latest = Latest::new(&versions);
        if is_killed {
            node.kill9();
        } else {
            node.stop();
        }
        copy(&used, &sound);
        let levels = LEVELS.map(|level| fs::read(sound.join(level)).expect("can read"));
        Fixture { _work: work, sound, levels, used, dir, options, latest }
    }

    /// Puts the sound state back.
    fn renew(&self) {
        fs::remove_dir_all(&self.used).expect("a folder of our own");
        copy(&self.sound, &self.used);
    }

    fn start(&self, seed: u64) -> Node {
        let check = layby(&["check", "--full", "--dir", &self.dir.to_string_lossy()]);
        assert!(!check.stderr.contains("panicked"), "{}", check.stderr);
        Node::try_start(&self.dir, &self.options)
            .unwrap_or_else(|refusal| panic!("seed {seed}: {}", refusal.stderr))
    }
}

/// What is damaged in the levels.
#[derive(Clone, Copy)]
enum Kind {
    /// Sectors of 512 bytes in both are noise.
    Sectors,
    /// Pages of 4 KiB in both are noise.
    Pages,
    /// Pages of 4 KiB in both cannot be read.
    Unreadable,
}

/// What a seed has damaged.
struct Damage {
    /// The blocks of volumes that may be errors.
    allowed: BTreeSet<(usize, u64)>,
    /// Held for its drop, after that of the node that uses its file.
    _unreadable: Vec<Unreadable>,
}

impl Damage {
    /// Damages a fixture that was renewed.
    fn new(fixture: &Fixture, kind: Kind, seed: u64) -> Damage {
        let mut rng = Rng::new(seed);
        let (mut allowed, mut unreadable) = (BTreeSet::new(), Vec::new());
        for (level, bytes) in LEVELS.iter().zip(&fixture.levels) {
            let path = fixture.used.join(level);
            let damaged = if let Kind::Sectors = kind {
                damage(&path, bytes, &mut rng)
            } else {
                let drawn = draw(bytes, &fixture.latest, seed, &mut rng);
                note(&format!("seed {seed}: {level}: {drawn:?}"));
                drawn.into_values().flatten().collect()
            };
            match kind {
                Kind::Sectors => {}
                Kind::Pages => damage_pages(&path, &damaged, &mut rng),
                Kind::Unreadable => unreadable.push(Unreadable::new(&path, &damaged)),
            }
            allowed.extend(fixture.latest.in_blocks(bytes, &damaged));
        }
        Damage { allowed, _unreadable: unreadable }
    }
}

fn survive(fixture: &Fixture, kind: Kind, seeds: Range<u64>) {
    let (mut errors_total, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        fixture.renew();
        let damage = Damage::new(fixture, kind, seed);
        let node = fixture.start(seed);
        // Of `vol0`, too, where nothing was ever written.
        let lost = node.said().matches("note: lost: ").count();
        let errors = verify(&node, &fixture.latest);
        let beyond: Vec<_> = errors.difference(&damage.allowed).take(BLOCKS_SHOWN).collect();
        let counts = (errors.difference(&damage.allowed).count(), lost);
        assert_eq!(counts, (0, 0), "seed {seed}: {beyond:?}, {}", node.said());
        node.stop();
        if seed % 10 == 0 {
            let node = Node::start(&fixture.dir, &fixture.options);
            assert_eq!(verify(&node, &fixture.latest), errors, "seed {seed}: a second start");
            node.stop();
        }
        errors_total += errors.len();
    }
    note(&format!(
        "{count} seeds; {errors_total} blocks were errors, none but those that were damaged"
    ));
    let is_all = std::env::var_os("LAYBY_DAMAGE_KIND").is_none();
    assert!(errors_total > 0 || !is_all, "no damage has met a dirty block");
}

/// Goal: a checkpoint's chunk that lost more than its own parity makes up for comes back from the
/// parity of all, without any loss, and `layby check` says so. Method: two sectors of a chunk.
#[test]
fn a_chunk_that_lost_two_sectors_comes_back() {
    let fixture = Fixture::new(false);
    for seed in 0..5 {
        fixture.renew();
        damage_chunk(&fixture.used.join("ssd.level"), &mut Rng::new(seed), false);
        let check = layby(&["check", "--full", "--dir", &fixture.dir.to_string_lossy()]);
        assert!(check.stdout.contains("its parity page makes up for it"), "{}", check.stdout);
        assert!(!check.stdout.contains("a start loses"), "{}", check.stdout);
        let node = fixture.start(seed);
        assert_eq!((lost(&node), verify(&node, &fixture.latest).len()), (0, 0), "seed {seed}");
        node.stop();
    }
}

/// Goal: what stays undecided is an error and nothing else, is named, and is known again once it is
/// written; a strict start is refused; a check lists all of it, in the start's words. Method: two
/// sectors of a chunk of the newest checkpoint, over restarts by stop and by kill; the ranges of a
/// check beside the blocks that are errors, its sentences beside the next start's.
#[test]
fn undecided_blocks_are_errors_until_written() {
    let fixture = Fixture::new(false);
    for (seed, is_killed) in [(1, false), (2, true), (3, false)] {
        fixture.renew();
        damage_chunk(&fixture.used.join("ssd.level"), &mut Rng::new(seed), true);
        let strict = Options { arguments: vec!["--strict".into()], ..options(&fixture.used) };
        let refusal = Node::try_start(&fixture.dir, &strict).expect_err("it is refused");
        assert!(refusal.stderr.contains("checkpoint"), "{}", refusal.stderr);
        let node = fixture.start(seed);
        let lost = lost(&node);
        let mut errors = verify(&node, &fixture.latest);
        assert!(lost > 0 && errors.len() == lost, "{lost} for {}", errors.len());
        let (volume, block) = *errors.first().expect("there is one");
        let mut connection = Connection::open(&node.socket(), VOLUMES[volume].0).expect("served");
        let bytes = fixture.latest.bytes[volume][block as usize].clone();
        let half = Request::Write { offset: block * BLOCK as u64, data: vec![1; 512], fua: true };
        assert!(connection.call(&half).expect("the node serves").is_err(), "a part is not enough");
        write(&mut connection, block, bytes, true);
        errors.remove(&(volume, block));
        heal_every_other(&node, &fixture.latest, &mut errors);
        assert_eq!(verify(&node, &fixture.latest), errors);
        let status = HttpRequest::new("GET", "/metrics").send(&node.http()).body;
        let told: f64 = status
            .lines()
            .filter(|line| line.starts_with("layby_volume_lost_blocks{") && !line.contains("vol0"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        assert_eq!(told as usize, errors.len());
        if is_killed {
            node.kill9();
        } else {
            node.stop();
        }
        let (found, sentences) = lost_by_check(&fixture.dir);
        let of_filled: BTreeMap<_, _> =
            found.iter().filter(|(volume, _)| **volume != "vol0").collect();
        let blocks = |(volume, ranges): (&&String, &&Vec<(u64, u64)>)| {
            let volume = VOLUMES.iter().position(|(name, ..)| name == *volume).expect("ours");
            let block = BLOCK as u64;
            let of_range = |(at, bytes): &(u64, u64)| at / block..(at + bytes) / block;
            ranges.iter().flat_map(of_range).map(move |block| (volume, block)).collect::<Vec<_>>()
        };
        let listed: BTreeSet<_> = of_filled.iter().flat_map(blocks).collect();
        assert!(listed == errors, "seed {seed}: a check lists {} blocks", listed.len());
        let node = Node::start(&fixture.dir, &strict);
        assert_eq!(verify(&node, &fixture.latest), errors, "a strict start knows them, too");
        assert_eq!(lost_lines(&node.said()), sentences, "seed {seed}: a check and a start");
        let most = found.values().map(Vec::len).max().expect("a volume has lost some");
        assert!(most > RANGES_NAMED && node.said().contains(", …: errors"), "{}", node.said());
        node.stop();
    }
}

/// Goal: what is lost of a volume over several shards is named by the volume's bytes, by a start
/// and by a check. Method: chunks of one shard's newest checkpoint, for good; the ranges of both
/// beside the blocks that are errors, some of which lie behind the length of a part.
#[test]
fn lost_blocks_of_a_wide_volume_are_of_its_bytes() {
    let work = TempDir::new().expect("a temporary folder");
    let (dir, level) = (work.path().join("node"), work.path().join("ssd.level"));
    let options = Options::config(format!(
        "[node]\nshards = 2\n\n[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"128MiB\"\n\
         path = \"{}\"\n\n[volume.wide]\nsize = \"8MiB\"\nshards = 2\n",
        level.display()
    ));
    let node = Node::start(&dir, &options);
    let open = |node: &Node| Connection::open(&node.socket(), "wide").expect("the node serves");
    let mut connection = open(&node);
    let blocks = (8 << 20) / BLOCK as u64;
    for first in (0..blocks).step_by(16) {
        let data = (first..first + 16).flat_map(|block| content(0, block, 1)).collect();
        write(&mut connection, first, data, false);
    }
    flush(&mut connection);
    node.stop();
    // A chunk has few of the blocks: most of them, so that some lie in later stripes.
    let mut rng = Rng::new(3);
    (0..CHUNKS_DAMAGED).for_each(|_| damage_chunk(&level, &mut rng, true));
    let node = Node::start(&dir, &options);
    let mut connection = open(&node);
    let mut is_error = |block: &u64| {
        let read = Request::Read { offset: block * BLOCK as u64, length: BLOCK as u32 };
        connection.call(&read).expect("the node serves").is_err()
    };
    let errors: BTreeSet<u64> = (0..blocks).filter(|block| is_error(block)).collect();
    assert!(errors.last() >= Some(&(blocks / 2)), "{}", node.said());
    let told = lost_lines(&node.said());
    let ranges = told.iter().flat_map(|line| named_ranges(line)).collect::<Vec<_>>();
    node.stop();
    let (listed, sentences) = lost_by_check(&dir);
    assert_eq!(sentences, told, "a check and a start");
    for ranges in [&ranges, &listed["wide"]] {
        let of_range = |(at, bytes): &(u64, u64)| at / BLOCK as u64..(at + bytes) / BLOCK as u64;
        let blocks: BTreeSet<u64> = ranges.iter().flat_map(of_range).collect();
        assert!(blocks == errors, "{} are errors, {told:?}", errors.len());
    }
}

/// The ranges that a sentence of a start or a check names.
fn named_ranges(line: &str) -> Vec<(u64, u64)> {
    let (_, rest) = line.split_once(" at bytes ").expect("it says where");
    let (named, _) = rest.split_once(": errors").expect("it says what follows");
    assert!(!named.ends_with('…'), "{line}");
    let range = |range: &str| {
        let (at, bytes) = range.split_once('+').expect("a first byte and a length");
        [at, bytes].map(|number| number.parse().expect("a number")).into()
    };
    named.split(", ").map(range).collect()
}

/// What a start or a check says of each volume's lost blocks, from the word `lost` on.
fn lost_lines(text: &str) -> Vec<String> {
    let lost = text.lines().filter_map(|line| Some(&line[line.find("lost: ")?..]));
    let mut lines: Vec<String> =
        lost.filter(|line| line.contains(" blocks of volume ")).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Lost ranges of bytes, by volume.
type LostRanges = BTreeMap<String, Vec<(u64, u64)>>;

/// What `layby check` lists as lost, which is the same in JSON, and its sentences.
fn lost_by_check(dir: &Path) -> (LostRanges, Vec<String>) {
    let dir = dir.to_string_lossy();
    let check = layby(&["check", "--dir", &dir]);
    assert!(!check.success, "lost blocks are a problem: {check:?}");
    let mut shown = LostRanges::new();
    for line in check.stdout.lines().filter_map(|line| line.strip_prefix("lost: volume `")) {
        let (name, rest) = line.split_once('`').expect("a name ends");
        let (_, range) = rest.split_once(" at bytes ").expect("it says where");
        let (at, bytes) = range.split_once('+').expect("a first byte and a length");
        let [at, bytes] = [at, bytes].map(|number| number.parse().expect("a number"));
        shown.entry(name.to_owned()).or_default().push((at, bytes));
    }
    let json = layby(&["check", "--dir", &dir, "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("an answer in JSON");
    let mut told = LostRanges::new();
    for lost in
        json["stores"].as_array().expect("stores").iter().flat_map(|store| {
            store["lost"].as_array().expect("each store says what is lost").clone()
        })
    {
        let ranges = lost["ranges"].as_array().expect("ranges").iter();
        let number = |range: &serde_json::Value, key| range[key].as_u64().expect("a number");
        let ranges: Vec<_> =
            ranges.map(|range| (number(range, "offset"), number(range, "bytes"))).collect();
        let bytes: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(lost["blocks"].as_u64(), Some(bytes / BLOCK as u64));
        let name = lost["volume"].as_str().expect("a name").to_owned();
        told.entry(name).or_default().extend(ranges);
    }
    assert_eq!(shown, told, "a check and its JSON");
    let problems = json["stores"].as_array().expect("stores").iter();
    let problems = problems.flat_map(|store| store["problems"].as_array().expect("a list").clone());
    let problems: Vec<String> = problems.map(|it| it.as_str().unwrap_or("").to_owned()).collect();
    let sentences = lost_lines(&problems.join("\n"));
    assert_eq!(lost_lines(&check.stdout), sentences);
    (shown, sentences)
}

/// Writes every other one of some blocks that are errors, at both ends, so that what is left are
/// more ranges than a start names.
fn heal_every_other(node: &Node, latest: &Latest, errors: &mut BTreeSet<(usize, u64)>) {
    let count = RANGES_WANTED;
    let firsts = errors.iter().skip(1).step_by(2).take(count);
    let healed: Vec<_> =
        firsts.chain(errors.iter().rev().step_by(2).take(count)).copied().collect();
    for (volume, block) in healed {
        let mut connection = Connection::open(&node.socket(), VOLUMES[volume].0).expect("served");
        write(&mut connection, block, latest.bytes[volume][block as usize].clone(), true);
        errors.remove(&(volume, block));
    }
}

/// Says what a run has met.
#[expect(clippy::print_stdout, reason = "how often it happens is a result of the test")]
fn note(line: &str) {
    println!("{line}");
}

fn seeds() -> u64 {
    number("LAYBY_DAMAGE_SEEDS", SEEDS_DEFAULT)
}

fn page_seeds() -> u64 {
    number("LAYBY_DAMAGE_SEEDS", PAGE_SEEDS_DEFAULT)
}

fn unreadable_seeds() -> u64 {
    number("LAYBY_DAMAGE_SEEDS", UNREADABLE_SEEDS_DEFAULT)
}

/// Goal: 100 damaged sectors in each level cost the blocks in them and nothing else, over restarts.
/// Method: 50 seeds over one node that was stopped; see the header.
#[test]
fn damaged_sectors_cost_what_lay_there() {
    survive(&Fixture::new(false), Kind::Sectors, 0..seeds());
}

/// Goal: the same where a start replays the log. Method: as above, after a kill.
#[test]
fn damaged_sectors_cost_what_lay_there_after_a_kill() {
    survive(&Fixture::new(true), Kind::Sectors, 1000..1000 + seeds());
}

/// Goal: damaged pages of 4 KiB in each level cost the blocks in them and nothing else, over
/// restarts. Method: noise in pages of every kind but superblocks and mark, no two within a MiB of
/// each other (a structure and its copy may cost more), over one node that was stopped.
#[test]
fn damaged_pages_cost_what_lay_there() {
    survive(&Fixture::restarted(false), Kind::Pages, 2000..2000 + page_seeds());
}

/// Goal: the same where a start replays the log. Method: as above, after a kill.
#[test]
fn damaged_pages_cost_what_lay_there_after_a_kill() {
    survive(&Fixture::restarted(true), Kind::Pages, 3000..3000 + page_seeds());
}

/// Goal: pages of 4 KiB of the levels that cannot be read cost the blocks in them and nothing
/// else, over restarts. Method: a file that fails with EIO in pages of every kind but superblocks,
/// no two within a MiB of each other, over one node that was stopped.
#[test]
fn unreadable_pages_cost_what_lay_there() {
    if !mount_unavailable() && available(&TOOLS) {
        survive(&Fixture::restarted(false), Kind::Unreadable, 4000..4000 + unreadable_seeds());
    }
}

/// Goal: the same where a start replays the log. Method: as above, after a kill.
#[test]
fn unreadable_pages_cost_what_lay_there_after_a_kill() {
    if !mount_unavailable() && available(&TOOLS) {
        survive(&Fixture::restarted(true), Kind::Unreadable, 5000..5000 + unreadable_seeds());
    }
}

/// Goal: damaged pages cost no more where increments lie behind the full checkpoint. Method: noise
/// as above, after a kill, in a level so full that the node wrote increments for want of room.
#[test]
fn damaged_pages_of_a_full_level_cost_what_lay_there() {
    survive(&Fixture::new(true), Kind::Pages, 6000..6000 + page_seeds());
}

/// Goal: the same of pages that cannot be read. Method: as above, with EIO.
#[test]
fn unreadable_pages_of_a_full_level_cost_what_lay_there() {
    if !mount_unavailable() && available(&TOOLS) {
        survive(&Fixture::new(true), Kind::Unreadable, 7000..7000 + unreadable_seeds());
    }
}
