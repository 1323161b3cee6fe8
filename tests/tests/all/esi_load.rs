//! What the tests of an edge gateway share: files of many users, and a gateway that takes them.
//!
//! How: users × files × bytes, in flat or deep directories, on an ext4 over nbdfuse over a node's
//! volume in an object store behind a link; beside it a second volume that is read meanwhile, whose
//! blocks the node's SSD level may hold.
//! Invariant: contents follow from the seed, and what the store has is compared with them.
//! Cost: the loads'. Not for: tests; this file has none.

use layby_tests::link::{LinkProxy, Shape};
use layby_tests::{
    Attached, Connection, Mounted, Node, Options, Request, S3Server, available, binary,
    mount_unavailable, must, seed,
};
use layby_types::Rng;
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tempfile::TempDir;

const TOOLS: [&str; 6] = ["nbdfuse", "nbdkit", "losetup", "mkfs.ext4", "mount", "mkfifo"];
/// The volume with the files.
pub(crate) const FILES: &str = "files";
/// The volume that is read meanwhile.
const ARCHIVE: &str = "archive";
pub(crate) const MEGABYTE: u64 = 1_000_000;
/// Folders above a file of a deep tree.
const DEPTH: u64 = 8;
const FILES_PER_LEAF: u64 = 100;
/// A configuration's end, but for the SSD level's size and path: little memory, and an SSD level
/// that keeps what is read.
pub(crate) const LEVELS: &str = "\
    [class.normal]\nlevels = [\"dram\", \"ssd\"]\nkeep_reads = true\n\n\
    [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
    [[level]]\nname = \"ssd\"\nkind = \"ssd\"\n";
/// Bytes of a read of the archive.
const READ_BYTES: usize = 128 << 10;

/// Whether something that all of this needs is missing here; says what.
pub(crate) fn is_missing() -> bool {
    mount_unavailable() || !available(&TOOLS)
}

/// A folder on the disk that `LAYBY_ESI_DISK` names, or where temporary ones are.
pub(crate) fn disk_folder() -> TempDir {
    let Some(disk) = std::env::var_os("LAYBY_ESI_DISK") else {
        return TempDir::new().expect("a temporary folder");
    };
    let made = fs::create_dir_all(&disk).and_then(|()| TempDir::new_in(&disk));
    made.expect("the named folder can be written")
}

/// Prints figures where `cargo xtask bench` finds them; not by `println`, which the runner hides.
pub(crate) fn print(mark: &str, line: &Value) {
    let _ = writeln!(std::io::stdout().lock(), "{mark} {line}");
}

/// Users, each with so many files of so many bytes.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) users: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) is_deep: bool,
}

impl Load {
    /// Table I's Large: five users and files of 10 MB, a thousand each there.
    pub(crate) fn large(files: u64) -> Load {
        Load { users: 5, files, bytes: 10 * MEGABYTE, is_deep: false }
    }

    pub(crate) fn total(&self) -> u64 {
        self.users * self.files * self.bytes
    }

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

/// A node, its store and the link between them.
pub(crate) struct Gateway {
    pub(crate) node: Node,
    link: LinkProxy,
    server: S3Server,
    folder: PathBuf,
    options: Options,
}

/// How a load went: seconds since it began, bytes and requests on the link.
pub(crate) struct Uploaded {
    pub(crate) written_seconds: f64,
    pub(crate) drained_seconds: f64,
    /// From the first byte that goes up until the store has the last.
    pub(crate) uploading_seconds: f64,
    pub(crate) bytes_up: u64,
    pub(crate) requests: u64,
    /// What was read of the archive while files were written.
    pub(crate) bytes_read: u64,
    /// Processor time of the node.
    pub(crate) processor_seconds: f64,
}

impl Uploaded {
    /// What part of the link so many bytes were while something went up.
    pub(crate) fn link_share(&self, bytes: u64, link_bits: u64) -> f64 {
        bytes as f64 * 8.0 / (link_bits as f64 * self.uploading_seconds)
    }
}

impl Gateway {
    /// Starts a node in `folder`; none, after a `skipped:` line, where there is no store's program.
    pub(crate) fn start(folder: &Path, config: String) -> Option<Gateway> {
        let server = S3Server::start()?;
        let link = LinkProxy::start(server.address(), seed());
        let options = Options::with_store(config, &link.endpoint());
        let node = Node::start(folder, &options);
        Some(Gateway { node, link, server, folder: folder.to_path_buf(), options })
    }

    fn url(volume: &str) -> String {
        format!("s3://{}/{volume}", S3Server::BUCKET)
    }

    /// An ext4 with room for a load, in the store before anything is measured.
    pub(crate) fn files(&self, work: &Path, load: &Load) -> Mounted {
        // Folders and inodes take room, too.
        let size = (load.total() * 2 + load.users * load.files * 8192 + (64 << 20)) >> 20 << 20;
        self.create(FILES, size);
        let attached = Attached::new(work, &self.node.uri(FILES));
        must("mkfs.ext4", &["-q", "-F", "-b", "4096", "-i", "4096", attached.device()]);
        self.node.layby(&["volume", "drain", FILES]);
        Mounted::new(work, attached)
    }

    fn create(&self, volume: &str, size: u64) {
        let (size, url) = (size.to_string(), Self::url(volume));
        self.node.layby(&["volume", "create", volume, "--size", &size, "--path", &url]);
    }

    /// A volume of so many bytes that the store has. The node forgets what its journal had of it
    /// by a restart, so that its level holds what fits and the rest comes over the link.
    pub(crate) fn with_archive(self, bytes: u64) -> (Gateway, Archive) {
        self.create(ARCHIVE, bytes);
        let mut contents = vec![0; bytes as usize];
        Rng::new(seed() ^ ARCHIVE_SEED).fill(&mut contents);
        let open = |node: &Node| Connection::open(&node.socket(), ARCHIVE).expect("it serves");
        let connection = open(&self.node);
        let mut archive = Archive { connection, contents, rng: Rng::new(seed()) };
        archive.fill();
        self.node.layby(&["volume", "drain", ARCHIVE]);
        let Gateway { node, link, server, folder, options } = self;
        node.stop();
        let node = Node::start(&folder, &options);
        archive.connection = open(&node);
        let gateway = Gateway { node, link, server, folder, options };
        gateway.warm(&mut archive);
        (gateway, archive)
    }

    /// Reads an archive until the SSD level holds it, or as much as it has room for.
    fn warm(&self, archive: &mut Archive) {
        let mut is_held = false;
        for _ in 0..PASSES_MAX {
            let was_held = is_held;
            let status = self.node.layby(&["status", "--json"]);
            let status: Value = serde_json::from_str(&status).expect("it is JSON");
            let levels = status["levels"].as_array().expect("it has levels");
            let level = levels.iter().find(|level| level["name"] == "ssd").expect("there is one");
            let [written, room] =
                ["device_bytes_written", "room_bytes"].map(|key| level[key].as_u64());
            let (written, room) = (written.expect("a number"), room.expect("a number"));
            is_held = written * 100 >= room.min(archive.contents.len() as u64) * FULL_PERCENT;
            if was_held && is_held {
                return;
            }
            // Once more where it is held: what was last written may be on its way to the device.
            (0..archive.pieces()).for_each(|at| archive.read(at));
        }
        panic!("the level takes nothing of what is read");
    }

    /// Writes a load over a link of so many bits per second and drains it; reads the archive, if
    /// there is one, until all is written.
    #[expect(clippy::disallowed_methods, reason = "printed, never judged")]
    pub(crate) fn upload(
        &self,
        load: &Load,
        mounted: &Mounted,
        link_bits: u64,
        archive: Option<&mut Archive>,
    ) -> Uploaded {
        let link = &self.link;
        link.shape(Shape::bits_per_second(link_bits));
        let (before, processor) = (link.counts(), self.node.processor_seconds());
        let (start, is_written) = (Instant::now(), AtomicBool::new(false));
        let (written_seconds, first, bytes_read) = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                link.wait(|counts| counts.bytes_up > before.bytes_up);
                start.elapsed().as_secs_f64()
            });
            let reader = archive.map(|archive| scope.spawn(|| archive.read_until(&is_written)));
            // A write that fails must end the reader, too.
            let end = Ending(&is_written);
            load.write(mounted.path());
            let written = start.elapsed().as_secs_f64();
            drop(end);
            let read = reader.map_or(0, |reader| reader.join().expect("reads do not fail"));
            (written, first.join().expect("something goes up"), read)
        });
        self.node.layby(&["volume", "drain", FILES]);
        let drained_seconds = start.elapsed().as_secs_f64();
        let after = link.counts();
        let processor_seconds = self.node.processor_seconds() - processor;
        link.shape(Shape::default());
        Uploaded {
            written_seconds,
            drained_seconds,
            uploading_seconds: drained_seconds - first,
            bytes_up: after.bytes_up - before.bytes_up,
            requests: after.requests_all() - before.requests_all(),
            bytes_read,
            processor_seconds,
        }
    }

    /// Compares every file with an image of what the store has.
    pub(crate) fn compare(&self, work: &Path, mounted: Mounted, load: &Load) {
        drop(mounted.unmount());
        self.node.layby(&["volume", "drain", FILES]);
        let (image, point) = (work.join("image"), work.join("restored"));
        let mut restore = Command::new(binary());
        restore.args(["restore", &Self::url(FILES)]).arg(&image);
        let restored = restore.envs(S3Server::environment(&self.server.endpoint())).output();
        let restored = restored.expect("the program runs");
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        fs::create_dir_all(&point).expect("the test's own folder");
        let (image, point) = (image.to_string_lossy(), point.to_string_lossy());
        must("mount", &["-t", "ext4", "-o", "loop,ro", &image, &point]);
        load.compare(Path::new(&*point));
        // A program that another test is just starting may hold a file of it for a moment yet.
        must("umount", &["--lazy", &*point]);
    }
}

/// Tells a reader to end, also where what it accompanies has panicked.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Passes over an archive until a level must hold it.
const PASSES_MAX: usize = 200;
/// A level that is so full of what it could hold is warm: beyond it frees room as it goes.
const FULL_PERCENT: u64 = 95;
/// Apart from what the files' seeds are made of.
const ARCHIVE_SEED: u64 = 0xa5c1 << 32;

/// A volume whose contents are known.
pub(crate) struct Archive {
    connection: Connection,
    contents: Vec<u8>,
    rng: Rng,
}

impl Archive {
    fn pieces(&self) -> usize {
        self.contents.len() / READ_BYTES
    }

    fn piece(at: usize) -> std::ops::Range<usize> {
        at * READ_BYTES..(at + 1) * READ_BYTES
    }

    fn fill(&mut self) {
        for at in 0..self.pieces() {
            let data = self.contents[Self::piece(at)].to_vec();
            let offset = Self::piece(at).start as u64;
            let write = Request::Write { offset, data, fua: false };
            let answer = self.connection.call(&write).expect("the node is there");
            answer.expect("no write fails");
        }
        // No level keeps what its home might lose.
        let answer = self.connection.call(&Request::Flush).expect("the node is there");
        answer.expect("no flush fails");
    }

    fn read(&mut self, at: usize) {
        let (offset, length) = (Self::piece(at).start as u64, READ_BYTES as u32);
        let answer = self.connection.call(&Request::Read { offset, length });
        let read = answer.expect("the node is there").expect("no read fails");
        assert!(read == self.contents[Self::piece(at)], "bytes at {offset}; seed {}", seed());
    }

    /// Reads pieces by chance, one at a time; returns their bytes.
    fn read_until(&mut self, is_written: &AtomicBool) -> u64 {
        let mut bytes = 0;
        while !is_written.load(Ordering::Acquire) {
            let at = self.rng.below(self.pieces() as u64) as usize;
            self.read(at);
            bytes += READ_BYTES as u64;
        }
        bytes
    }
}
