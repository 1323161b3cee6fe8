//! A node whose disks are destroyed at a random moment: the store alone gives back an ext4.
//!
//! How: node, nbdfuse, loop, ext4; files are written and synced one after the other, over a narrow
//! link to a real S3 server, so that the store is behind. When so many bytes have gone up, drawn
//! from the seed, the node is killed and its directory removed. `layby restore` makes an image from
//! the store; its ext4 is mounted, which replays the journal, compared, and checked.
//! Since a file is synced before the next one is begun, the files that are whole must be the first
//! ones, and not fewer than were in the store at the last drain. `LAYBY_DESTROY_ROUNDS` says how
//! often; `cargo xtask destroy` does it ten times.
//! Invariant: what goes up is counted where it passes, so that the moment is drawn and not timed.
//! Cost: some three seconds per round.
//! Where FUSE, loop devices or the store's program are missing the test says so and skips.

use layby_tests::link::{LinkProxy, Shape};
use layby_tests::{
    Attached, Mounted, Node, Options, S3Server, available, binary, mount_unavailable, must, number,
    run, say, seed,
};
use layby_types::Rng;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const TOOLS: [&str; 6] = ["nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "mount", "mkfifo"];
const VOLUME: &str = "disk";
const FILE_BYTES: usize = 64 << 10;
/// Files until the volume would be full; no round gets so far.
const FILES_MAX: u64 = 2500;
/// Files that the store has for certain.
const DRAINED: u64 = 24;
/// The store is behind: 32 Mbit/s.
const LINK_BITS: u64 = 32_000_000;
/// Bytes that go up after the drain until the disks are destroyed.
const BYTES_MAX: u64 = 12 << 20;

fn options(link: &LinkProxy) -> Options {
    let config = "[node]\nshards = 1\n\n\
         [cloud]\njournal = \"256MiB\"\ndirty_age = \"200ms\"\nobject = \"1MiB\"\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"32MiB\"\n";
    Options::with_store(config, &link.endpoint())
}

fn contents(round: u64, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    Rng::new((seed() << 40) ^ (round << 32) ^ file).fill(&mut bytes);
    bytes
}

/// Writes a file and makes it and its name durable.
fn write_file(folder: &Path, round: u64, file: u64) -> io::Result<()> {
    let mut opened = File::create(folder.join(format!("file-{file}")))?;
    opened.write_all(&contents(round, file))?;
    opened.sync_all()?;
    File::open(folder)?.sync_all()
}

/// How many of the first files are whole; a later one that is there must follow them.
fn whole_files(folder: &Path, round: u64) -> u64 {
    let is_whole = |file: u64| {
        fs::read(folder.join(format!("file-{file}")))
            .is_ok_and(|held| held == contents(round, file))
    };
    let count = (0..FILES_MAX).take_while(|file| is_whole(*file)).count() as u64;
    let later = (count..FILES_MAX).find(|file| is_whole(*file));
    assert_eq!(later, None, "file {count} is not whole, a later one is; seed {}", seed());
    count
}

/// One node until its disks are gone; how many files were in the store for certain, and how many
/// were synced.
fn live_and_lose(work: &Path, link: &LinkProxy, round: u64) -> (u64, u64) {
    let dir = work.join("node");
    let node = Node::start(&dir, &options(link));
    let url = format!("s3://{}/{VOLUME}-{round}", S3Server::BUCKET);
    node.layby(&["volume", "create", VOLUME, "--size", "256MiB", "--path", &url]);
    let attached = Attached::new(work, &node.uri(VOLUME));
    must("mkfs.ext4", &["-q", "-F", "-b", "4096", attached.device()]);
    let mounted = Mounted::new(work, attached);
    for file in 0..DRAINED {
        write_file(mounted.path(), round, file).expect("the node serves");
    }
    node.layby(&["volume", "drain", VOLUME]);
    link.shape(Shape::bits_per_second(LINK_BITS));
    let mut rng = Rng::new(seed() ^ round);
    let moment = link.counts().bytes_up + rng.below(BYTES_MAX);
    let synced = std::thread::scope(|scope| {
        scope.spawn(|| {
            link.wait(|counts| counts.bytes_up >= moment);
            node.kill9();
            fs::remove_dir_all(&dir).expect("the node is dead");
        });
        let wrote = |file: &u64| write_file(mounted.path(), round, *file).is_ok();
        (DRAINED..FILES_MAX).take_while(wrote).count() as u64
    });
    link.shape(Shape::default());
    (DRAINED, DRAINED + synced)
}

/// The ext4 of an image, compared and checked.
fn compare(work: &Path, image: &Path, round: u64) -> u64 {
    let device = must("losetup", &["--find", "--show", &image.to_string_lossy()]);
    let (device, point) = (device.trim(), work.join("restored"));
    fs::create_dir_all(&point).expect("the test's own folder");
    must("mount", &["-t", "ext4", device, &point.to_string_lossy()]);
    let whole = whole_files(&point, round);
    must("umount", &[point.to_string_lossy()]);
    let checked = run("fsck.ext4", &["-f", "-n", device]);
    run("losetup", &["--detach", device]);
    assert!(checked.success, "the restored file system is not clean: {}", checked.stdout);
    whole
}

/// Goal: what a node without disks leaves in the store is a prefix of what was synced, not older
/// than the last drain, and a clean file system. Method: see the file's header.
#[test]
fn lost_disks_leave_a_prefix() {
    if mount_unavailable() || !available(&TOOLS) {
        return;
    }
    let Some(server) = S3Server::start() else { return };
    for round in 0..number("LAYBY_DESTROY_ROUNDS", 2) {
        let link = LinkProxy::start(server.address(), seed() + round);
        let work = TempDir::new().expect("a temporary folder");
        let (drained, synced) = live_and_lose(work.path(), &link, round);
        let image = work.path().join("image");
        let url = format!("s3://{}/{VOLUME}-{round}", S3Server::BUCKET);
        let mut restore = Command::new(binary());
        restore.args(["restore", &url]).arg(&image);
        let restored = restore.envs(S3Server::environment(&server.endpoint())).output();
        let restored = restored.expect("the program runs");
        let text = String::from_utf8_lossy(&restored.stderr).into_owned();
        assert!(restored.status.success(), "{text}");
        let whole = compare(work.path(), &image, round);
        say(&format!("round {round}: {drained} drained, {synced} synced, {whole} restored, clean"));
        assert!(whole >= drained, "{whole} files of {drained}; seed {}", seed());
        // The one under way when the node was killed may have come as far as the store.
        assert!(whole <= synced + 1, "{whole} files of {synced}; seed {}", seed());
    }
}
