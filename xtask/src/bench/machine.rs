//! A guest that does as it is told over its second serial port.
//!
//! How: the distribution's kernel under QEMU with a RAM disk of busybox and fio; the kernel has the
//! first serial port for itself, whose output goes to a file, so that nothing mixes with what the
//! guest says on the second one, which is QEMU's own input and output.
//! Invariant: the machine ends with the value. Cost: some seconds until it has started.
//! Not for: tests; theirs is in `tests/src/machine.rs`.

use crate::guest;
use crate::process::{self, Failure};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longest that a machine may be silent beyond what it was told to do.
const PATIENCE: Duration = Duration::from_secs(180);
const MEMORY: &str = "1G";
/// What begins a line of the guest.
const MARK: &str = "guest: ";

/// A machine that runs.
pub(crate) struct Machine {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    console: PathBuf,
}

impl Machine {
    /// Starts a machine of one processor that runs `job`, a file of the tests' data, with a disk of
    /// one queue for each slot and socket, and `programs` from here.
    pub(crate) fn start(
        root: &Path,
        work: &Path,
        (job, programs): (&str, &[&str]),
        disks: &[(u32, &str)],
    ) -> Result<Machine, Failure> {
        let kernel = guest::prepare(root)?;
        let data = root.join("tests/data/guest");
        let ram_disk = work.join("ram.gz");
        let mut making = process::command("sh", root);
        making.args([
            &data.join("ram-disk"),
            &data.join("init"),
            &kernel,
            &data.join(job),
            &ram_disk,
        ]);
        making.args(programs);
        process::run(&mut making)?;
        let console = work.join("console.log");
        let mut command = process::command("qemu-system-x86_64", work);
        command.args(["-accel", guest::accelerator(), "-cpu", "max", "-smp", "1", "-m", MEMORY]);
        command.args(["-nodefaults", "-no-reboot", "-display", "none"]);
        command.args(["-machine", "q35,memory-backend=ram"]);
        let memory = format!("memory-backend-memfd,id=ram,size={MEMORY},share=on");
        command.args(["-object", &memory]);
        for (slot, socket) in disks {
            command.args(["-chardev", &format!("socket,id=disk{slot},path={socket}")]);
            let device = format!("vhost-user-blk-pci,chardev=disk{slot},num-queues=1,addr={slot}");
            command.args(["-device", &device]);
        }
        command.arg("-kernel").arg(image(&kernel)?).arg("-initrd").arg(ram_disk);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        let first = format!("file,id=console,path={}", console.display());
        command.args(["-chardev", &first, "-serial", "chardev:console"]);
        command.args(["-chardev", "stdio,id=talk,signal=off", "-serial", "chardev:talk"]);
        let errors = work.join("machine.log");
        let log = File::create(&errors).map_err(|e| Failure::io("cannot make", &errors, &e))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let failed = |cause| Failure::new(format!("cannot start a machine\ncause: {cause}"));
        let mut child = command.spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the machine has no pipes"));
        };
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Machine { child, input, lines, console })
    }

    /// What the guest says next that begins with `word`, without it; `busy` is for how long it may
    /// be silent since it works.
    pub(crate) fn hear(&self, word: &str, busy: Duration) -> Result<String, Failure> {
        loop {
            match self.lines.recv_timeout(PATIENCE + busy) {
                Ok(line) => {
                    if let Some(said) = said(&line, word) {
                        return Ok(said.to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(self.failure("is silent")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure("has ended")),
            }
        }
    }

    /// Tells the guest a line.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let told = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        told.map_err(|_| self.failure("does not listen"))
    }

    fn failure(&self, what: &str) -> Failure {
        let console = std::fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let last: Vec<&str> = console.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Failure::new(format!("the guest {what}; its console's end:\n{}", last.join("\n")))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may be off already; then both calls have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of a guest's line that begins with `word`.
fn said<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (_, words) = line.split_once(MARK)?;
    let rest = words.strip_prefix(word)?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim_start())
}

/// The kernel itself, in an unpacked package.
fn image(kernel: &Path) -> Result<PathBuf, Failure> {
    let boot = kernel.join("boot");
    let listed = boot.read_dir().map_err(|cause| Failure::io("cannot list", &boot, &cause))?;
    let is_image = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    };
    let found = listed.flatten().map(|entry| entry.path()).find(is_image);
    found.ok_or_else(|| Failure::new(format!("there is no kernel in `{}`", boot.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only whole words of the guest are heard. Method: an echo, another word, the one.
    #[test]
    fn words_are_told_apart() {
        assert_eq!(said("4 --rw=read", "end"), None);
        assert_eq!(said("guest: ended 0", "end"), None);
        assert_eq!(said("guest: end 0", "end"), Some("0"));
        assert_eq!(said("\u{1b}[mguest: ready", "ready"), Some(""));
    }
}
