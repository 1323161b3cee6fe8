//! Files of many users on an ext4 whose volume lives in an object store, behind a narrow link.
//!
//! How: the workloads of the edge gateway's paper, scaled: users × files × bytes, in flat or deep
//! directories (Table I), and bursts larger than the cache (Table IV, 1:1000). Node, nbdfuse, loop,
//! ext4; all files are written and synced, then the volume is drained, then `layby restore` makes
//! an image of what the store has, in which every file is compared. No write may fail, however
//! small the journal. Lines `esi {…}` say how long that took and what went up; `cargo xtask bench
//! esi` makes the loads larger by `LAYBY_ESI_*` and prints the tables.
//! Invariant: times are printed and never judged; contents are. Cost: ten seconds as it stands.
//! Where FUSE, loop devices or the store's program are missing the tests say so and skip.

use layby_tests::link::{LinkProxy, Shape};
use layby_tests::{
    Attached, Mounted, Node, Options, S3Server, available, binary, mount_unavailable, must, number,
    seed,
};
use layby_types::Rng;
use serde_json::json;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

const TOOLS: [&str; 5] = ["nbdfuse", "losetup", "mkfs.ext4", "mount", "mkfifo"];
const VOLUME: &str = "files";
const MEGABYTE: u64 = 1_000_000;
/// Folders above a file of a deep tree.
const DEPTH: u64 = 8;
const FILES_PER_LEAF: u64 = 100;

/// Users, each with so many files of so many bytes.
#[derive(Clone, Copy)]
struct Load {
    users: u64,
    files: u64,
    bytes: u64,
    is_deep: bool,
}

impl Load {
    fn folder(&self, root: &Path, user: u64, file: u64) -> PathBuf {
        let user = root.join(format!("user-{user}"));
        if !self.is_deep {
            return user;
        }
        // A chain of folders, and at its end as many leaves as hold a hundred files each.
        let chain = (1..DEPTH).fold(user, |path, level| path.join(format!("level-{level}")));
        chain.join(format!("leaf-{}", file / FILES_PER_LEAF))
    }

    fn path(&self, root: &Path, user: u64, file: u64) -> PathBuf {
        self.folder(root, user, file).join(format!("file-{file}"))
    }

    fn contents(&self, user: u64, file: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        Rng::new((seed() << 48) ^ (user << 32) ^ file).fill(&mut bytes);
        bytes
    }

    fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let (users, files) = (self.users, self.files);
        (0..users).flat_map(move |user| (0..files).map(move |file| (user, file)))
    }

    fn total(&self) -> u64 {
        self.users * self.files * self.bytes
    }

    fn write(&self, root: &Path) {
        for (user, file) in self.all() {
            let path = self.path(root, user, file);
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("no error");
            fs::write(&path, self.contents(user, file)).expect("no write fails");
        }
        must("sync", &["--file-system", &root.to_string_lossy()]);
    }

    fn compare(&self, root: &Path) {
        for (user, file) in self.all() {
            let path = self.path(root, user, file);
            let held =
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(held == self.contents(user, file), "{}; seed {}", path.display(), seed());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "printed, never judged")]
/// One load over a link of so many bits per second, with a journal of so many bytes.
fn run(name: &str, load: Load, journal: u64, link_bits: u64) {
    let Some(server) = S3Server::start() else { return };
    let link = LinkProxy::start(server.address(), seed());
    let work = TempDir::new().expect("a temporary folder");
    let config = format!(
        "[node]\nshards = 1\n\n[cloud]\njournal = \"{journal}\"\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"64MiB\"\n"
    );
    let environment = S3Server::environment(&link.endpoint());
    let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let options = Options { environment, ..Options::config(config) };
    let node = Node::start(&work.path().join("node"), &options);
    let url = format!("s3://{}/{VOLUME}", S3Server::BUCKET);
    // Folders and inodes take room, too.
    let size = (load.total() * 2 + load.users * load.files * 8192 + (64 << 20)) >> 20 << 20;
    node.layby(&["volume", "create", VOLUME, "--size", &size.to_string(), "--path", &url]);
    let attached = Attached::new(work.path(), &node.uri(VOLUME));
    must("mkfs.ext4", &["-q", "-F", "-b", "4096", "-i", "4096", attached.device()]);
    node.layby(&["volume", "drain", VOLUME]);
    let mounted = Mounted::new(work.path(), attached);
    link.shape(Shape::bits_per_second(link_bits));
    let (before, start) = (link.counts(), Instant::now());
    let (acknowledged, first) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            link.wait(|counts| counts.bytes_up > before.bytes_up);
            start.elapsed().as_secs_f64()
        });
        load.write(mounted.path());
        let acknowledged = start.elapsed().as_secs_f64();
        (acknowledged, first.join().expect("something goes up"))
    });
    node.layby(&["volume", "drain", VOLUME]);
    let drained = start.elapsed().as_secs_f64();
    let after = link.counts();
    link.shape(Shape::default());
    let up = after.bytes_up - before.bytes_up;
    let line = json!({
        "case": name, "is_deep": load.is_deep, "bytes": load.total(), "journal": journal,
        "files": load.users * load.files, "link_bits": link_bits, "write_seconds": acknowledged,
        "drain_seconds": drained, "bytes_up": up,
        "requests": after.requests_all() - before.requests_all(),
        // From the first byte that goes up until the store has the last.
        "link_share": up as f64 * 8.0 / (link_bits as f64 * (drained - first)),
    });
    // Not `println`, which the test runner would hide.
    let _ = writeln!(std::io::stdout().lock(), "esi {line}");
    drop(mounted.unmount());
    node.layby(&["volume", "drain", VOLUME]);
    compare_restored(work.path(), &server, &url, &load);
}

/// Every file in an image of what the store has.
fn compare_restored(work: &Path, server: &S3Server, url: &str, load: &Load) {
    let (image, point) = (work.join("image"), work.join("restored"));
    let mut restore = Command::new(binary());
    restore.args(["restore", url]).arg(&image);
    let restored = restore.envs(S3Server::environment(&server.endpoint())).output();
    let restored = restored.expect("the program runs");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    fs::create_dir_all(&point).expect("the test's own folder");
    let (image, point) = (image.to_string_lossy(), point.to_string_lossy());
    must("mount", &["-t", "ext4", "-o", "loop,ro", &image, &point]);
    load.compare(Path::new(&*point));
    must("umount", &[&*point]);
}

fn is_missing() -> bool {
    mount_unavailable() || !available(&TOOLS)
}

/// Goal: files of 4 KiB by the thousand arrive, in flat and in deep trees. Method: Table I's Tiny,
/// scaled by `LAYBY_ESI_FILES` per user.
#[test]
fn tiny_files_arrive() {
    if is_missing() {
        return;
    }
    let files = number("LAYBY_ESI_FILES", 40);
    for is_deep in [false, true] {
        let load = Load { users: 25, files, bytes: 4096, is_deep };
        run("tiny", load, 256 * MEGABYTE, number("LAYBY_ESI_LINK_BITS", 100_000_000));
    }
}

/// Goal: a burst larger than the cache is slowed down and never fails. Method: Table IV's cases at
/// 1:1000, those with the least cache unless `LAYBY_ESI_ALL` is 1; server B is A with half the
/// link.
#[test]
fn bursts_beyond_the_cache_arrive() {
    if is_missing() {
        return;
    }
    let cases = [
        ("B", true, 50),
        ("A", false, 99),
        ("A", true, 99),
        ("A", true, 197),
        ("B", true, 99),
        ("B", true, 197),
        ("A", true, 497),
        ("A", false, 197),
        ("B", false, 99),
        ("A", false, 497),
    ];
    let is_all = number("LAYBY_ESI_ALL", 0) == 1;
    let link = number("LAYBY_ESI_BURST_BITS", 800_000_000);
    for (server, is_deep, cache) in cases.into_iter().take(if is_all { 10 } else { 1 }) {
        let load = Load { users: 2, files: 100, bytes: MEGABYTE, is_deep };
        let link = if server == "B" { link / 2 } else { link };
        run(&format!("burst {server} {cache}"), load, cache * MEGABYTE, link);
    }
}
