//! Levels keep their room on a full disk; where a page cannot be had after all, the node says so.
//!
//! How: XFS and btrfs over loop devices, filled to the end while a node runs on them; a level's
//! file is cut. Every block is held against what was written.
//! Invariant: mount and loop device end with the test. Cost: some seconds per file system.
//! Where the kernel has no such file system, or mounting needs rights, a test says so and skips.

use layby_tests::{
    Connection, Lost, Node, Options, Request, available, mount_unavailable, must, run, skip,
    small_levels,
};
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const VOLUME: &str = "brake";
const PIECE: usize = 64 << 10;
const PIECES: u64 = 64;
/// What a full disk has left: sockets and the catalog, and far less than what is written.
const SPARE: u64 = 512 << 10;

/// A file system of its own, unmounted with the value.
struct FileSystem {
    point: PathBuf,
    fill: PathBuf,
}

impl FileSystem {
    /// None, after a word, where there can be none here.
    fn new(work: &Path, kind: &str, bytes: u64) -> Option<FileSystem> {
        let make = format!("mkfs.{kind}");
        if mount_unavailable()
            || !available(&["losetup", "mount", "unshare", "fallocate", "lsattr", &make])
        {
            return None;
        }
        let (image, point) = (work.join("image"), work.join("mount"));
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("the test's own folder");
        fs::create_dir(&point).expect("the test's own folder");
        let [image, to] = [&image, &point].map(|path| path.to_string_lossy());
        // `mkfs.btrfs` looks at all mounts, and fails where one of another test has no server left.
        let alone = format!("umount -a -l -t fuse; exec {make} -q '{image}'");
        must("unshare", &["--mount", "sh", "-c", &alone]);
        let mounted = run("mount", &["-t", kind, "-o", "loop", &image, &to]);
        if !mounted.success {
            skip(&format!("cannot mount {kind}: {}", mounted.stderr.trim()));
            return None;
        }
        let fill = point.join("fill");
        Some(FileSystem { point, fill })
    }

    /// A node's folder within, by a name outside of it, where the node's log has room.
    fn node_at(&self, work: &Path) -> PathBuf {
        let (within, named) = (self.point.join("node"), work.join("node"));
        fs::create_dir(&within).expect("it has room");
        std::os::unix::fs::symlink(&within, &named).expect("the test's own folder");
        named
    }

    /// Takes all room that is left, but for what a start needs for its own small files.
    fn fill(&self) {
        self.sync();
        let mut file = File::options().create(true).append(true).open(&self.fill).expect("room");
        for piece in [1 << 20, 4096, 4096] {
            let bytes = vec![0xa5; piece];
            let full = loop {
                if let Err(cause) = file.write_all(&bytes) {
                    break cause.kind();
                }
            };
            assert_eq!(full, ErrorKind::StorageFull);
            self.sync();
        }
        let length = file.metadata().expect("it is open").len();
        file.set_len(length - SPARE).and_then(|()| file.sync_all()).expect("a file can be cut");
    }

    fn make_room(&self) {
        fs::remove_file(&self.fill).expect("it was filled");
        self.sync();
    }

    /// What was promised to the page cache gets its place, and what was freed can be had.
    fn sync(&self) {
        must("sync", &["--file-system", &self.point.to_string_lossy()]);
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        run("umount", &["--lazy", &self.point.to_string_lossy()]);
    }
}

fn options() -> Options {
    Options::config(
        "[node]\nshards = 1\n\n[writeback]\nidle_timeout = \"60s\"\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
         [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"32MiB\"\n",
    )
}

fn content(piece: u64, version: u8) -> Vec<u8> {
    vec![(piece as u8).wrapping_mul(31) ^ version; PIECE]
}

/// Writes every piece durably.
fn write(node: &Node, version: u8) -> Result<(), Lost> {
    let mut connection = Connection::open(&node.socket(), VOLUME)?;
    for piece in 0..PIECES {
        let (offset, data) = (piece * PIECE as u64, content(piece, version));
        let written = connection.call(&Request::Write { offset, data, fua: true })?;
        assert_eq!(written, Ok(Vec::new()), "piece {piece}");
    }
    Ok(())
}

fn assert_holds(node: &Node, version: u8) {
    let mut connection = Connection::open(&node.socket(), VOLUME).expect("it is served");
    for piece in 0..PIECES {
        let read = Request::Read { offset: piece * PIECE as u64, length: PIECE as u32 };
        let read = connection.call(&read).expect("it serves").expect("a sound disk");
        assert!(read == content(piece, version), "piece {piece} is not at version {version}");
    }
}

/// One line that names the level's file, and the exit code that stands for it.
#[track_caller]
fn assert_says_why(code: Option<i32>, stderr: &str, level: &Path) {
    let name = level.to_string_lossy();
    let is_it = |line: &&str| line.starts_with("error: level file") && line.contains(&*name);
    assert_eq!((code, stderr.lines().filter(is_it).count()), (Some(9), 1), "{stderr}");
    let line = stderr.lines().find(is_it).expect("it was counted");
    for word in ["file system below it is full", "device failed", "flushed", "make room"] {
        assert!(line.contains(word), "`{word}`: {line}");
    }
}

/// Goal: a page of a level that cannot be had ends the node with a line and an exit code of its
/// own. Method: another program cuts the file of the NVM level; a write; then a start.
#[test]
fn a_cut_level_ends_the_node_with_a_word() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    node.volume_create(VOLUME, "4MiB", "critical");
    write(&node, 1).expect("it serves");
    let level = dir.join("levels/nvm");
    let file = File::options().write(true).open(&level).expect("the test's own folder");
    file.set_len(0).expect("the test's own folder");
    write(&node, 2).expect_err("it cannot serve");
    let ended = node.ended();
    assert_says_why(ended.code, &ended.stderr, &level);
    let refusal = Node::try_start(&dir, &small_levels()).expect_err("its level is cut");
    refusal.assert_explains(&["levels/nvm", "put the whole file back"]);
}

/// Goal: a reflink copy takes no room from a level: a start gives the level its own, or says that
/// there is none. Method: XFS; a copy after a stop; a full disk at the start, then room for it,
/// then a full disk while durable writes come, and after a kill.
#[test]
fn a_copy_takes_no_room_from_a_level() {
    let work = TempDir::new().expect("a temporary folder");
    let Some(system) = FileSystem::new(work.path(), "xfs", 400 << 20) else { return };
    let dir = system.node_at(work.path());
    let node = Node::start(&dir, &options());
    node.volume_create(VOLUME, "4MiB", "critical");
    write(&node, 1).expect("it serves");
    node.stop();
    let [level, copy] = ["levels/nvm", "copy"].map(|name| dir.join(name));
    let words = ["--reflink=always", &*level.to_string_lossy(), &*copy.to_string_lossy()];
    must("cp", &words);
    let copied = fs::read(&copy).expect("it was copied");
    system.fill();
    let refusal = Node::try_start(&dir, &options()).expect_err("there is no room");
    assert_eq!(refusal.code, Some(8), "{}", refusal.stderr);
    refusal.assert_explains(&["levels/nvm", "shared with another file", "make room"]);
    system.make_room();
    let node = Node::start(&dir, &options());
    system.fill();
    write(&node, 2).expect("the level has its room");
    node.kill9();
    let node = Node::start(&dir, &options());
    write(&node, 3).expect("the level has its room");
    assert_holds(&node, 3);
    node.kill9();
    system.make_room();
    let node = Node::start(&dir, &options());
    assert_holds(&node, 3);
    node.stop();
    assert!(fs::read(&copy).expect("it is there") == copied, "the copy changed");
}

/// Goal: overwriting a level needs no room where the file system writes each change elsewhere by
/// itself; a level whose file it was not told about ends the node with a word, at a start, too.
/// Method: btrfs; a full disk while durable writes come; then the level is in a file as an earlier
/// version made it.
#[test]
fn a_full_btrfs_takes_durable_writes() {
    let work = TempDir::new().expect("a temporary folder");
    let Some(system) = FileSystem::new(work.path(), "btrfs", 400 << 20) else { return };
    let dir = system.node_at(work.path());
    let node = Node::start(&dir, &options());
    node.volume_create(VOLUME, "4MiB", "critical");
    write(&node, 1).expect("it serves");
    system.fill();
    for name in ["nvm", "ssd"] {
        let listed = must("lsattr", &[dir.join("levels").join(name).to_string_lossy()]);
        let flags = listed.split_whitespace().next().expect("flags come first");
        assert!(flags.contains('C'), "{listed}");
    }
    let lost = (2..6).try_for_each(|version| write(&node, version));
    if lost.is_err() {
        let ended = node.ended();
        assert_says_why(ended.code, &ended.stderr, &dir.join("levels/nvm"));
        skip("this kernel's btrfs asks for room of a page that is overwritten in place");
        return;
    }
    node.kill9();
    system.make_room();
    let [level, copy] = ["levels/nvm", "copy"].map(|name| dir.join(name));
    let held = fs::read(&level).expect("the test's own folder");
    must("fallocate", &["--length", &held.len().to_string(), &copy.to_string_lossy()]);
    let mut file = File::options().write(true).open(&copy).expect("it was made");
    file.write_all(&held).expect("it has room");
    fs::rename(&copy, &level).expect("the test's own folder");
    let node = Node::start(&dir, &options());
    assert_holds(&node, 5);
    system.fill();
    let lost = (6..12).try_for_each(|version| write(&node, version));
    lost.expect_err("there is no room");
    let ended = node.ended();
    assert_says_why(ended.code, &ended.stderr, &level);
    match Node::try_start(&dir, &options()) {
        Ok(node) => node.kill9(),
        Err(refusal) if refusal.code == Some(8) => refusal.assert_explains(&["No space left"]),
        Err(refusal) => assert_says_why(refusal.code, &refusal.stderr, &level),
    }
    system.make_room();
    Node::start(&dir, &options()).stop();
}
