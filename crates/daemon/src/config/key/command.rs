//! Runs the command that prints a volume's key, within bounds of time and output.
//!
//! How: the shell reads the words from its environment, since every user sees a process's
//! arguments; what it prints goes through a pipe that is polled together with the process's end.
//! At the end of the time the whole process group is killed. Standard error is discarded: a tool's
//! complaint may quote its input.
//! Invariant: neither the words nor anything printed is in an error. A descendant that keeps the
//! pipe open holds nothing up once the command itself has ended.
//! Cost: a process per call; a thread of the caller's for [`TIME_MAX`] at most.

use layby_types::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Longest that a command may take.
pub(super) const TIME_MAX: Nanos = Nanos::from_secs(10);
/// The variable that carries the words; the shell takes it out of what the command inherits.
const WORDS: &str = "LAYBY_KEY_COMMAND";
const SCRIPT: &str = "words=$LAYBY_KEY_COMMAND; unset LAYBY_KEY_COMMAND; eval \"$words\"";

/// What a command of the shell prints, up to `bytes_max`.
pub(super) fn run(words: &str, bytes_max: usize, time_max: Nanos) -> Result<Vec<u8>, String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", SCRIPT]).env(WORDS, words).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = shell.spawn().map_err(|cause| format!("the key's command cannot run: {cause}"))?;
    let mut running = Running(child);
    let printed = running.printed(bytes_max, time_max)?;
    let status = running.0.wait().map_err(|cause| failed(&cause))?;
    match status.success() {
        true => Ok(printed),
        false => Err(format!("the key's command ended with {status}")),
    }
}

fn failed(cause: &std::io::Error) -> String {
    format!("the key's command cannot be followed: {cause}")
}

/// A command whose process group goes with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        // Both may be gone already, which is as good.
        group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// What the command has printed when it ends.
    fn printed(&mut self, bytes_max: usize, time_max: Nanos) -> Result<Vec<u8>, String> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a child has one");
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| failed(&e.into()))?;
        let mut pipe = self.0.stdout.take().expect("it was asked for");
        let clock = Clock::new(time_max);
        let (mut printed, mut buffer) = (Vec::new(), [0; 1024]);
        let mut is_open = true;
        loop {
            let left = clock.left().ok_or("the key's command took too long")?;
            let wanted = if is_open { PollFlags::IN } else { PollFlags::empty() };
            let mut polled = [
                PollFd::from_borrowed_fd(pipe.as_fd(), wanted),
                PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            ];
            // A closed pipe would be reported again and again.
            let polled = if is_open { &mut polled[..] } else { &mut polled[1..] };
            match poll(polled, Some(&left)) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(cause) => return Err(failed(&cause.into())),
                Ok(_) => {}
            }
            let has_ended = polled[polled.len() - 1].revents().contains(PollFlags::IN);
            let has_bytes = is_open && !polled[0].revents().is_empty();
            if has_bytes {
                let count = pipe.read(&mut buffer).map_err(|cause| failed(&cause))?;
                printed.extend_from_slice(&buffer[..count]);
                is_open = count > 0;
                if printed.len() > bytes_max {
                    return Err(format!("the key's command printed more than {bytes_max} bytes"));
                }
            } else if has_ended {
                return Ok(printed);
            }
        }
    }
}

/// What is left of a span of time.
struct Clock {
    start: Instant,
    span: Nanos,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a foreign process is waited for in real time")]
    fn new(span: Nanos) -> Clock {
        Clock { start: Instant::now(), span }
    }

    fn left(&self) -> Option<Timespec> {
        let left = u128::from(self.span.0).checked_sub(self.start.elapsed().as_nanos())?;
        let part = |nanos: u128| i64::try_from(nanos).expect("spans here are short");
        Some(Timespec { tv_sec: part(left / 1_000_000_000), tv_nsec: part(left % 1_000_000_000) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a command that hangs, floods or leaves others behind ends in its time, and says
    /// nothing of what it is or prints. Method: one command of each kind.
    #[test]
    fn commands_are_bounded() {
        let run = |words: &str| run(words, 100, Nanos::from_secs(20));
        assert_eq!(run("echo abc"), Ok(b"abc\n".to_vec()));
        assert_eq!(run("sleep 1000 & echo abc"), Ok(b"abc\n".to_vec()), "a descendant");
        assert_eq!(run("printf '%s' \"$LAYBY_KEY_COMMAND\""), Ok(vec![]), "the words are unset");
        let flooding = run("while :; do echo hidden; done").expect_err("it floods");
        let failing = run("echo hidden; echo hidden >&2; exit 3").expect_err("it fails");
        let time = Nanos::from_millis(50);
        let hanging = super::run("echo hidden; sleep 1000", 100, time).expect_err("it hangs");
        let mute = super::run("exec >&-; sleep 1000", 100, time).expect_err("it hangs");
        for (said, word) in
            [(flooding, "more than"), (failing, "3"), (hanging, "too long"), (mute, "too long")]
        {
            assert!(said.contains(word) && !said.contains("hidden"), "{said}");
            assert!(!said.contains("sleep"), "{said}");
        }
    }
}
