//! A device with an ext4 of its own for a node's files: over a file, or over an emulated disk.
//!
//! How: a loop device with direct I/O over a file of a real disk, or over a disk in memory that
//! nbdkit serves one request at a time, each some milliseconds late, so that requests of one device
//! wait for each other and those of two do not. The kernel counts what passes.
//! Invariant: mount, loop device and server end with the value. Cost: a tenth of a second.
//! Not for: how long a real disk's head takes, which depends on where it was.

use crate::mount::Attached;
use crate::tool::{must, run};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// How long an emulated disk takes for a request, of 256 KiB at most as FUSE sends them.
pub const EMULATED_REQUEST_MS: u64 = 2;

/// How often a device is asked to unmount while the kernel holds its files.
const UNMOUNT_TRIES: usize = 2000;

/// A mounted ext4 on a device that nothing else uses.
#[derive(Debug)]
pub struct Device {
    point: PathBuf,
    backed: Backed,
}

#[derive(Debug)]
enum Backed {
    File(String),
    Emulated {
        attached: Attached,
        #[expect(dead_code, reason = "held for its drop, behind that of what it serves")]
        server: Served,
    },
}

/// An nbdkit that serves.
#[derive(Debug)]
pub struct Served {
    socket: PathBuf,
    pid_file: PathBuf,
}

impl Served {
    /// One with these words, its socket in `folder`.
    ///
    /// # Panics
    /// When nbdkit fails.
    #[must_use]
    pub fn start(folder: &Path, words: &[&str]) -> Served {
        let (socket, pid_file) = (folder.join("socket"), folder.join("pid"));
        let [at, number] = [&socket, &pid_file].map(|path| path.display().to_string());
        // It is in the background, and listens, when the command ends.
        must("nbdkit", &[&["--unix", &at, "--pidfile", &number], words].concat());
        Served { socket, pid_file }
    }

    /// Where it serves.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

/// Bytes that went to a device and came from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Read from it.
    pub read: u64,
    /// Written to it.
    pub written: u64,
}

impl Device {
    /// A device of so many bytes, its room in a file of `folder`, whose disk others share.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn over_file(folder: &Path, name: &str, bytes: u64) -> Device {
        let place = new_folder(folder, name);
        let file = place.join("disk");
        let made = File::create(&file).and_then(|file| file.set_len(bytes));
        made.expect("the test's own folder can be written");
        let words = ["--find", "--show", "--direct-io=on", &*file.to_string_lossy()];
        let device = must("losetup", &words).trim().to_owned();
        Device::mounted(&place, Backed::File(device))
    }

    /// An emulated disk of so many bytes in memory.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn emulated(folder: &Path, name: &str, bytes: u64) -> Device {
        let place = new_folder(folder, name);
        let size = bytes.to_string();
        let late = ["read", "write"].map(|what| format!("delay-{what}={EMULATED_REQUEST_MS}ms"));
        let filters = ["--filter=noparallel", "--filter=delay"];
        let disk = ["memory", &size, "serialize=all-requests", &late[0], &late[1]];
        let server = Served::start(&place, &[&filters[..], &disk].concat());
        let uri = server.uri();
        let attached = Attached::new_direct(&place, &uri);
        Device::mounted(&place, Backed::Emulated { attached, server })
    }

    fn mounted(place: &Path, backed: Backed) -> Device {
        let device = Device { point: new_folder(place, "mount"), backed };
        // What is lazy is written by the kernel while others measure; so all at once, and little.
        let at_once = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];
        let little = ["-i", "65536", "-J", "size=8"];
        must("mkfs.ext4", &[&["-q", "-F"], &at_once[..], &little, &[device.name()]].concat());
        must("mount", &["-t", "ext4", device.name(), &device.point.to_string_lossy()]);
        device
    }

    fn name(&self) -> &str {
        match &self.backed {
            Backed::File(device) => device,
            Backed::Emulated { attached, .. } => attached.device(),
        }
    }

    /// Where its files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Has its file system end as ext4 does after an error that it cannot go on from: what was
    /// written is read, and every write and flush is refused.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn fail(&self) {
        must("mount", &["-o", "remount,abort", &*self.point.to_string_lossy()]);
    }

    /// Mounts it anew; nothing may use its files.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn mount_again(&self) {
        let point = self.point.to_string_lossy();
        // The kernel may hold a killed process's files for a while.
        if !(1..UNMOUNT_TRIES).any(|_| run("umount", &[&*point]).success) {
            must("umount", &[&*point]);
        }
        must("mount", &["-t", "ext4", self.name(), &*point]);
    }

    /// What passed since it was made.
    ///
    /// # Panics
    /// When the kernel counts nothing.
    #[must_use]
    pub fn bytes(&self) -> DeviceBytes {
        /// Of these the kernel counts, whatever the device's blocks are.
        const SECTOR_BYTES: u64 = 512;
        let name = self.name().trim_start_matches("/dev/");
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("it is there");
        let figures: Vec<u64> = stat.split_whitespace().flat_map(str::parse).collect();
        DeviceBytes { read: figures[2] * SECTOR_BYTES, written: figures[6] * SECTOR_BYTES }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let point = self.point.to_string_lossy();
        if !run("umount", &[&*point]).success {
            run("umount", &["--lazy", &*point]);
        }
        if let Backed::File(device) = &self.backed {
            run("losetup", &["--detach", device]);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(pid) = fs::read_to_string(&self.pid_file) {
            run("kill", &[pid.trim()]);
        }
    }
}

impl DeviceBytes {
    /// What passed since `before`.
    #[must_use]
    pub fn since(self, before: DeviceBytes) -> DeviceBytes {
        DeviceBytes { read: self.read - before.read, written: self.written - before.written }
    }
}

fn new_folder(folder: &Path, name: &str) -> PathBuf {
    let place = folder.join(name);
    fs::create_dir_all(&place).expect("the test's own folder can be written");
    place
}
