//! A real kernel file system on a volume: nbdfuse, then a loop device, then ext4.
//!
//! How: nbdfuse shows the export as a file and tells a named pipe when it does; losetup makes a
//! block device of the file. Invariant: drop takes the layers down in reverse, also when the node
//! below is dead. Not for: speed; each layer copies.

use crate::tool::{must, run, skip};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How often a mount is asked to go while something holds its files.
const UNMOUNT_TRIES: usize = 50;

/// Whether file systems cannot be mounted here; says why.
#[must_use]
pub fn mount_unavailable() -> bool {
    let reason = [("/dev/fuse", "no /dev/fuse"), ("/dev/loop-control", "no loop devices")]
        .into_iter()
        .find(|(path, _)| !Path::new(path).exists())
        .map(|(_, reason)| reason)
        .or_else(|| (run("id", &["-u"]).stdout.trim() != "0").then_some("mounting needs root"));
    if let Some(reason) = reason {
        skip(reason);
    }
    reason.is_some()
}

/// An export as a block device.
#[derive(Debug)]
pub struct Attached {
    fuse: Child,
    folder: PathBuf,
    device: String,
}

impl Attached {
    /// Attaches the export at `uri`, with its files in `work`.
    ///
    /// # Panics
    /// When nbdfuse or losetup fail.
    #[must_use]
    pub fn new(work: &Path, uri: &str) -> Attached {
        Attached::attach(work, uri, &[])
    }

    /// The same past the page cache of the file that nbdfuse shows: each request of the device is
    /// one of the export.
    ///
    /// # Panics
    /// As [`Attached::new`].
    #[must_use]
    pub fn new_direct(work: &Path, uri: &str) -> Attached {
        Attached::attach(work, uri, &["--direct-io=on"])
    }

    fn attach(work: &Path, uri: &str, words: &[&str]) -> Attached {
        let (folder, pipe) = (work.join("fuse"), work.join("fuse.ready"));
        std::fs::create_dir_all(&folder).expect("the test's own folder can be written");
        if !pipe.exists() {
            must("mkfifo", &[pipe.to_string_lossy()]);
        }
        let file = folder.join("nbd");
        let fuse = Command::new("nbdfuse")
            .arg("--pidfile")
            .args([&pipe, &file])
            .arg(uri)
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdfuse was found before");
        // The pipe opens once nbdfuse writes its number, which it does when the file is there.
        must("cat", &[pipe.to_string_lossy()]);
        let file = file.to_string_lossy();
        let words: Vec<&str> =
            ["--find", "--show"].iter().chain(words).copied().chain([&*file]).collect();
        let device = must("losetup", &words);
        Attached { fuse, folder, device: device.trim().to_string() }
    }

    /// The block device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The file of FUSE below the device.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join("nbd")
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.device]);
        run("umount", &[self.folder.to_string_lossy()]);
        // It ends with its mount; a mount that would not go must not keep the test.
        run("umount", &["--lazy", &self.folder.to_string_lossy()]);
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}

/// A file as a block device, writable and detached when this goes.
#[derive(Debug)]
pub struct LoopDevice(String);

impl LoopDevice {
    /// One over `file`.
    ///
    /// # Panics
    /// When losetup fails; ask [`mount_unavailable`] first.
    #[track_caller]
    #[must_use]
    pub fn new(file: &Path) -> LoopDevice {
        let device = must("losetup", &["--find", "--show", &file.to_string_lossy()]);
        LoopDevice(device.trim().to_owned())
    }

    /// Where the device is.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A write protection would outlive the file.
        run("blockdev", &["--setrw", &self.0]);
        run("losetup", &["--detach", &self.0]);
    }
}

/// A mounted ext4.
#[derive(Debug)]
pub struct Mounted {
    point: PathBuf,
    attached: Option<Attached>,
}

impl Mounted {
    /// Mounts the ext4 on `attached` with `discard`.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    #[must_use]
    pub fn new(work: &Path, attached: Attached) -> Mounted {
        let point = work.join("mount");
        std::fs::create_dir_all(&point).expect("the test's own folder can be written");
        let target = point.to_string_lossy();
        must("mount", &["-t", "ext4", "-o", "discard", attached.device(), &target]);
        Mounted { point, attached: Some(attached) }
    }

    /// Where the files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Unmounts cleanly and gives the device back.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    #[must_use]
    pub fn unmount(mut self) -> Attached {
        // A child that another thread has forked holds its files until it has become a program.
        let point = [self.point.to_string_lossy()];
        if !(1..UNMOUNT_TRIES).any(|_| run("umount", &point).success) {
            must("umount", &point);
        }
        self.attached.take().expect("it is given back once")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.attached.is_some() && !run("umount", &[self.point.to_string_lossy()]).success {
            run("umount", &["--lazy", &self.point.to_string_lossy()]);
        }
    }
}

/// A small file system of its own, gone with the value.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One of `size` (as `32M`) at a folder, which is made; none, and a word, where that is not
    /// allowed.
    ///
    /// # Panics
    /// When the folder cannot be made.
    #[must_use]
    pub fn new(folder: &Path, size: &str) -> Option<SmallDisk> {
        std::fs::create_dir_all(folder).expect("can make it");
        let size = format!("size={size}");
        let outcome =
            run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &folder.to_string_lossy()]);
        if !outcome.success {
            skip(&format!("cannot mount a tmpfs: {}", outcome.stderr.trim()));
        }
        outcome.success.then(|| SmallDisk(folder.to_path_buf()))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Takes all its room, until the file that this returns is removed.
    ///
    /// # Panics
    /// When the file cannot be made.
    #[must_use]
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).expect("can make it");
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["--lazy", &self.0.to_string_lossy()]);
    }
}
