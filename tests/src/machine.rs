//! A whole virtual machine: a distribution's kernel under QEMU, with a disk of a node.
//!
//! How: `LAYBY_GUEST_KERNEL` names a folder with an unpacked Debian kernel package, as
//! `cargo xtask guest` makes it. A RAM disk of busybox, the kernel's virtio modules, the file
//! system's tools and a script is made of what is installed; the machine prints what it sees on its
//! serial port. Software emulation is enough; `LAYBY_GUEST_ACCEL` names something faster.
//! A machine may also hold the node itself, with a kernel that has ublk (`LAYBY_UBLK_KERNEL`).
//! Invariant: the machine ends with the value. Cost: half a minute until it has started.

use crate::tool;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The program that emulates a machine.
const QEMU: &str = "qemu-system-x86_64";
/// Longest that a machine may be silent.
const PATIENCE: Duration = Duration::from_secs(300);

/// A kernel to start, or none after a `skipped:` line.
#[must_use]
pub fn kernel() -> Option<PathBuf> {
    let Some(kernel) = std::env::var_os("LAYBY_GUEST_KERNEL") else {
        tool::skip("no kernel for a guest here (`cargo xtask guest` brings one)");
        return None;
    };
    let tools = [QEMU, "busybox", "mkfs.ext4", "e2fsck"];
    tool::available(&tools).then(|| kernel.into())
}

/// A kernel with ublk to start, or none after a `skipped:` line.
#[must_use]
pub fn ublk_kernel() -> Option<PathBuf> {
    let Some(kernel) = std::env::var_os("LAYBY_UBLK_KERNEL") else {
        tool::skip("no kernel with ublk for a machine here (`cargo xtask guest` brings one)");
        return None;
    };
    let tools = [QEMU, "busybox", "mkfs.ext4", "e2fsck", "strip", "xz"];
    tool::available(&tools).then(|| kernel.into())
}

/// Makes a RAM disk at `path` that runs `job`, a file beside the script that makes it, and then
/// turns the machine off; `programs` are put in with their libraries. `init` is what starts in it:
/// `init` waits for a disk, `init-alone` has none and may load the ublk driver.
///
/// # Panics
/// When a part of it is missing.
pub fn make_ram_disk(path: &Path, kernel: &Path, (init, job): (&str, &str), programs: &[&str]) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/guest");
    let (script, init, job) = (data.join("ram-disk"), data.join(init), data.join(job));
    let paths = [&script, &init, kernel, &job, path].map(Path::to_string_lossy);
    let words: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
    tool::must("sh", &[&words, programs].concat());
}

/// A machine that runs.
pub struct Machine {
    child: Child,
    lines: Receiver<String>,
    log: String,
}

impl Machine {
    /// Starts a machine with two processors whose disk has two queues.
    ///
    /// # Panics
    /// When QEMU cannot be started, or there is no kernel in the folder.
    #[must_use]
    pub fn start(kernel: &Path, ram_disk: &Path, socket: &Path) -> Machine {
        let mut command = Command::new(QEMU);
        let accelerator = std::env::var("LAYBY_GUEST_ACCEL").unwrap_or_else(|_| "tcg".to_owned());
        command.args(["-accel", &accelerator, "-cpu", "max", "-m", "512M", "-smp", "2"]);
        command.arg("-nodefaults");
        command.args(["-no-reboot", "-display", "none", "-machine", "q35,memory-backend=ram"]);
        command.args(["-object", "memory-backend-memfd,id=ram,size=512M,share=on"]);
        let chardev = format!("socket,id=disk,path={},reconnect=1", socket.display());
        command.args(["-chardev", &chardev, "-device"]);
        command.arg("vhost-user-blk-pci,chardev=disk,num-queues=2");
        Machine::spawn(command, kernel, ram_disk)
    }

    /// Starts a machine with two processors and no disk.
    ///
    /// # Panics
    /// As [`Machine::start`].
    #[must_use]
    pub fn start_alone(kernel: &Path, ram_disk: &Path) -> Machine {
        let mut command = Command::new(QEMU);
        // Kernels that have ublk crash at random under QEMU 7 unless they find no 16-byte exchange.
        command.args(["-accel", "tcg,thread=single", "-cpu", "Nehalem,-cx16", "-smp", "2"]);
        command.args(["-m", "1024M", "-nodefaults", "-no-reboot", "-display", "none"]);
        Machine::spawn(command, kernel, ram_disk)
    }

    fn spawn(mut command: Command, kernel: &Path, ram_disk: &Path) -> Machine {
        let boot = fs::read_dir(kernel.join("boot")).expect("an unpacked kernel package");
        let image = boot.flatten().map(|entry| entry.path()).find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        });
        command.arg("-kernel").arg(image.expect("the package has a kernel"));
        command.arg("-initrd").arg(ram_disk);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        command.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("QEMU was there a moment ago");
        let output = BufReader::new(child.stdout.take().expect("the pipe was asked for"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            // A kernel's console is not always text.
            for line in output.split(b'\n').map_while(Result::ok) {
                if tell.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Machine { child, lines, log: String::new() }
    }

    /// What the script says next, without its `guest: `; none when the machine is off.
    ///
    /// # Panics
    /// When the machine is silent for too long.
    pub fn next_line(&mut self) -> Option<String> {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.log += &format!("{line}\n");
                    if let Some((_, said)) = line.split_once("guest: ") {
                        return Some(said.to_owned());
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(_) => panic!("the machine is silent:\n{}", self.log),
            }
        }
    }

    /// Types a line.
    ///
    /// # Panics
    /// When the machine is off.
    pub fn type_line(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("the pipe was asked for");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the machine runs");
    }

    /// All that was printed so far.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may be off already; then both calls have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
