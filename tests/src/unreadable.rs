//! A file that reads as it did, but for pages that cannot be read, as of a disk whose sectors are
//! of 4 KiB.
//!
//! How: nbdkit serves the file's bytes; its filter ddrescue fails each read that meets a page that
//! its map calls bad, and its filter cow has what is written be read again, as a disk puts another
//! sector in the place of a bad one. nbdfuse shows that over the file itself, with direct I/O to
//! those that ask for it. The file's own bytes are never changed.
//! Invariant: mount and servers end with the value. Cost: some hundredths of a second.
//! Not for: pages that fail while a node runs: they fail from the first read on.

use crate::tool::{must, run};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of a page, the kernel's own, of which no part can be read.
const PAGE: u64 = 4096;

/// A file some pages of which cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    kit: Child,
    fuse: Child,
    file: PathBuf,
}

impl Unreadable {
    /// Has these pages of `file` fail; sockets and the like are beside it.
    ///
    /// # Panics
    /// When nbdkit or nbdfuse fail.
    #[must_use]
    pub fn new(file: &Path, pages: &BTreeSet<usize>) -> Unreadable {
        let [bytes, map, socket, pid, pipe] =
            ["bytes", "map", "kit", "pid", "ready"].map(|name| file.with_extension(name));
        // A name of its own: that of the file is covered by the mount.
        fs::hard_link(file, &bytes).expect("the test's own folder can be written");
        let length = fs::metadata(&bytes).expect("it is there").len();
        fs::write(&map, self::map(length, pages)).expect("the test's own folder can be written");
        let mut kit = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--pidfile"])
            .args([&pid, Path::new("--unix"), &socket])
            .args(["--filter=cow", "--filter=ddrescue", "file"])
            .arg(format!("file={}", bytes.display()))
            .arg(format!("ddrescue-mapfile={}", map.display()))
            .arg(format!("cow-block-size={PAGE}"))
            // There it keeps what is written.
            .env("TMPDIR", file.parent().expect("a file lies in a folder"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdkit was found before");
        must("mkfifo", &[pipe.to_string_lossy()]);
        // It listens once its number is there.
        while !pid.exists() {
            let ended = kit.try_wait().expect("our own child can be waited for");
            assert_eq!(ended, None, "nbdkit ended");
            std::thread::yield_now();
        }
        let fuse = Command::new("nbdfuse")
            .arg("--pidfile")
            .args([&pipe, file])
            .arg(format!("nbd+unix:///?socket={}", socket.display()))
            .stdin(Stdio::null())
            // It has a line for each read that fails.
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdfuse was found before");
        // The pipe opens once nbdfuse writes its number, which it does when the file is there.
        must("cat", &[pipe.to_string_lossy()]);
        Unreadable { kit, fuse, file: file.to_owned() }
    }
}

impl Drop for Unreadable {
    fn drop(&mut self) {
        run("umount", &["--lazy", &self.file.to_string_lossy()]);
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
        let _ = self.kit.kill();
        let _ = self.kit.wait();
    }
}

/// What ddrescue would write of a disk of so many bytes with these bad pages.
fn map(length: u64, pages: &BTreeSet<usize>) -> String {
    let mut map = String::from("# Mapfile\n0x0 +\n");
    let mut line = |from: u64, to: u64, state: char| {
        if from < to {
            let _ = writeln!(map, "{from:#x} {:#x} {state}", to - from);
        }
    };
    let mut from = 0;
    for page in pages {
        let at = *page as u64 * PAGE;
        line(from, at, '+');
        line(at, at + PAGE, '-');
        from = at + PAGE;
    }
    line(from, length, '+');
    map
}
