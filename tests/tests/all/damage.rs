//! Damaged sectors in a level cost the blocks whose bytes lay there, and nothing else.
//!
//! How: a node is filled and stopped, in order or by a kill, and its folder copied. Each seed
//! damages sectors of the copy, starts a node on it and reads all blocks. Which blocks may be lost
//! is known from the level's bytes before the damage.
//! Invariant: a block reads as its latest version, or as an error: if its bytes were damaged, or if
//! two sectors of one structure were, after which the start names it among those that are lost.
//! Not for: superblocks.

use layby_tests::{Connection, HttpRequest, Node, Options, Request, layby, number};
use layby_types::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const SECTOR: u64 = 512;
const SECTORS_DAMAGED: usize = 100;
const SEEDS_DEFAULT: u64 = 50;
/// Name, class and blocks of each volume.
const VOLUMES: [(&str, &str, u64); 2] = [("upper", "critical", 2048), ("lower", "normal", 8192)];

fn options(folder: &Path) -> Options {
    Options::config(format!(
        "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
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

    /// The blocks of volumes whose latest bytes lay in damaged blocks of a level's sound file.
    fn in_blocks(&self, sound: &[u8], damaged: &BTreeSet<usize>) -> BTreeSet<(usize, u64)> {
        let owner = |block: &usize| self.owners.get(&sound[block * BLOCK..][..BLOCK]).copied();
        damaged.iter().filter_map(owner).collect()
    }
}

fn content(volume: usize, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new((volume as u64) << 48 ^ block << 8 ^ version).fill(&mut bytes);
    bytes
}

/// Writes two versions of every block: in order and long, then some shuffled and single.
fn fill(node: &Node) -> Vec<Vec<u64>> {
    let mut rng = Rng::new(7);
    let mut versions = Vec::new();
    for (volume, (name, class, blocks)) in VOLUMES.into_iter().enumerate() {
        node.volume_create(name, &(blocks * BLOCK as u64).to_string(), class);
        let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
        let mut latest = vec![1; blocks as usize];
        for first in (0..blocks).step_by(16) {
            let data = (first..first + 16).flat_map(|block| content(volume, block, 1)).collect();
            write(&mut connection, first, data, false);
        }
        flush(&mut connection);
        for version in 2..5 {
            for _ in 0..blocks / 8 {
                let block = rng.below(blocks - 1);
                latest[block as usize] = version;
                write(&mut connection, block, content(volume, block, version), false);
            }
            flush(&mut connection);
        }
        // It vouches that all before it is durable; nothing vouches for itself.
        let last = blocks - 1;
        write(&mut connection, last, content(volume, last, 1), true);
        flush(&mut connection);
        versions.push(latest);
    }
    versions
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

/// Damages random sectors of a level, superblocks aside, and answers the blocks of the file that
/// they lie in.
fn damage(path: &Path, rng: &mut Rng) -> BTreeSet<usize> {
    let bytes = fs::read(path).expect("can read");
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
                        "block {block} of `{name}` is not at its latest version"
                    ),
                    Err(_) => drop(errors.insert((volume, block))),
                }
            }
        }
    }
    errors
}

/// A node's folder as it was when the node ended, and a copy to be damaged.
struct Fixture {
    _work: TempDir,
    sound: PathBuf,
    used: PathBuf,
    dir: PathBuf,
    options: Options,
    latest: Latest,
}

impl Fixture {
    fn new(is_killed: bool) -> Fixture {
        let work = TempDir::new().expect("a temporary folder");
        let (sound, used) = (work.path().join("sound"), work.path().join("used"));
        fs::create_dir(&used).expect("a folder of our own");
        let (dir, options) = (used.join("node"), options(&used));
        let node = Node::start(&dir, &options);
        let latest = Latest::new(&fill(&node));
        if is_killed {
            node.kill9();
        } else {
            node.stop();
        }
        copy(&used, &sound);
        Fixture { _work: work, sound, used, dir, options, latest }
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

fn survive(is_killed: bool, seeds: std::ops::Range<u64>) {
    let fixture = Fixture::new(is_killed);
    let (mut errors_total, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        fixture.renew();
        let mut rng = Rng::new(seed);
        let mut allowed = BTreeSet::new();
        for level in ["nvm.level", "ssd.level"] {
            let damaged = damage(&fixture.used.join(level), &mut rng);
            let bytes = fs::read(fixture.sound.join(level)).expect("can read");
            allowed.extend(fixture.latest.in_blocks(&bytes, &damaged));
        }
        let node = fixture.start(seed);
        let lost = lost(&node);
        let errors = verify(&node, &fixture.latest);
        let beyond = errors.difference(&allowed).count();
        assert_eq!((beyond, lost), (0, 0), "seed {seed}: {:?}", errors.difference(&allowed));
        node.stop();
        if seed % 10 == 0 {
            let node = Node::start(&fixture.dir, &fixture.options);
            assert_eq!(verify(&node, &fixture.latest), errors, "seed {seed}: a second start");
            node.stop();
        }
        errors_total += errors.len();
    }
    note(&format!(
        "{count} seeds; {errors_total} blocks were errors, none but those in damaged sectors"
    ));
    assert!(errors_total > 0, "no damage has met a dirty block");
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
/// written; a strict start is refused. Method: two sectors of a chunk of the newest checkpoint,
/// over restarts by stop and by kill.
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
        let check = layby(&["check", "--dir", &fixture.dir.to_string_lossy()]);
        let all = format!("{}{}", check.stdout, check.stderr);
        assert!(all.contains("are lost"), "{all}");
        let node = Node::start(&fixture.dir, &strict);
        assert_eq!(verify(&node, &fixture.latest), errors, "a strict start knows them, too");
        node.stop();
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

/// Goal: 100 damaged sectors in each level cost the blocks in them and nothing else, over restarts.
/// Method: 50 seeds over one node that was stopped; see the header.
#[test]
fn damaged_sectors_cost_what_lay_there() {
    survive(false, 0..seeds());
}

/// Goal: the same where a start replays the log. Method: as above, after a kill.
#[test]
fn damaged_sectors_cost_what_lay_there_after_a_kill() {
    survive(true, 1000..1000 + seeds());
}
