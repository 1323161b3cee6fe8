//! Locks of files whose process is gone.
//!
//! How: `/proc/locks` names the process that took each lock, `/proc/PID/stat` says whether it goes
//! on. Where none does, the kernel has not ended its I/O yet, and the lock goes with that.
//! Invariant: what is not known is taken for living, so that no lock is waited for in vain.
//! Cost: some small files of `/proc`, read where a lock is refused alone.

use rustix::io::Errno;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The kernel's mark of a process that is about to go (`PF_EXITING`).
const IS_EXITING: u64 = 4;

/// Whether a process that goes on holds a lock of the file (`flock`). Where the kernel does not
/// tell, it is taken for so. A process of another container is not seen.
#[must_use]
pub fn is_held_by_the_living(file: BorrowedFd<'_>) -> bool {
    let (Ok(locks), Ok(about)) = (std::fs::read_to_string("/proc/locks"), rustix::fs::fstat(file))
    else {
        return true;
    };
    holders(&locks, (device_of(file).as_deref(), about.st_ino)).any(is_living)
}

/// Whether the kernel lists no process that holds a lock of the file. One that is refused all the
/// same is another machine's, or another container's; in a container, also that of a process that
/// is gone. Where the kernel does not tell, it is not taken for so.
#[must_use]
pub fn is_held_unseen(file: BorrowedFd<'_>) -> bool {
    let (Ok(locks), Ok(about)) = (std::fs::read_to_string("/proc/locks"), rustix::fs::fstat(file))
    else {
        return false;
    };
    holders(&locks, (device_of(file).as_deref(), about.st_ino)).next().is_none()
}

/// Whether a process that is gone holds a lock of the file, and none that goes on does. Where no
/// lock is to be seen there is nothing to wait for.
pub(super) fn is_held_by_the_gone(file: BorrowedFd<'_>) -> bool {
    let (Ok(locks), Ok(about)) = (std::fs::read_to_string("/proc/locks"), rustix::fs::fstat(file))
    else {
        return false;
    };
    let device = device_of(file);
    let all: Vec<u32> = holders(&locks, (device.as_deref(), about.st_ino)).collect();
    !all.is_empty() && !all.into_iter().any(is_living)
}

/// The device of the file's mount, as `/proc/locks` writes it. What `stat` says is another number
/// in file systems with several volumes.
fn device_of(file: BorrowedFd<'_>) -> Option<String> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mount = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split_whitespace());
    let device =
        mounts.find_map(|mut words| (words.next() == Some(mount)).then(|| words.nth(1))?);
    let (major, minor) = device?.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some(format!("{major:02x}:{minor:02x}"))
}

/// The processes that hold a lock of the file of this device and number, as `/proc/locks` has them.
/// Where the device is not known, any may be it.
fn holders<'a>(
    locks: &'a str,
    (device, inode): (Option<&'a str>, u64),
) -> impl Iterator<Item = u32> + 'a {
    locks.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = words[..] else { return None };
        let (on, number) = place.rsplit_once(':')?;
        let is_same = device.is_none_or(|device| device == on) && number.parse() == Ok(inode);
        is_same.then(|| process.parse().ok())?
    })
}

/// Whether a process is there and is not about to exit. One that may not be read is there.
fn is_living(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => goes_on(&stat),
        Err(cause) => !matches!(Errno::from_io_error(&cause), Some(Errno::NOENT | Errno::SRCH)),
    }
}

/// What the kernel says of a process: neither dead nor exiting. Unknown words are taken for life.
fn goes_on(stat: &str) -> bool {
    // The name, in parentheses, may hold anything; behind it are the state and, seventh, the flags.
    let Some((_, words)) = stat.rsplit_once(')') else { return true };
    let mut words = words.split_whitespace();
    let is_dead = words.next().is_some_and(|state| matches!(state, "Z" | "X" | "x"));
    let flags = words.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    !is_dead && flags & IS_EXITING == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    /// Goal: holders and their state are read as the kernel writes them. Method: lines of its own,
    /// and this process.
    #[test]
    fn the_living_are_told_from_the_gone() {
        let locks = "1: FLOCK  ADVISORY  WRITE 12672 fe:00:101 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 5 fe:00:101 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 7 fe:00:101 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  9 00:2f:101 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 11 fe:00:1010 0 EOF\n";
        let all = |device| holders(locks, (device, 101)).collect::<Vec<_>>();
        assert_eq!((all(Some("fe:00")), all(None)), (vec![12672], vec![12672, 9]));
        assert!(is_living(std::process::id()));
        let stat = |state: &str, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0");
        assert!(goes_on(&stat("S", 0x40_0100)) && goes_on(&stat("D", 0)) && goes_on(""));
        assert!(!goes_on(&stat("Z", 0)) && !goes_on(&stat("D", 0x40_0104)));
    }

    /// Goal: the device of a file is the one that the kernel names with its locks. Method: a lock
    /// of this process, and the line of it.
    #[test]
    fn a_lock_is_found_by_its_device() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let file = File::create(dir.path().join("x")).expect("a writable directory");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("no other process has it");
        let locks = std::fs::read_to_string("/proc/locks").expect("Linux has it");
        let inode = file.metadata().expect("it is there").ino();
        let device = device_of(file.as_fd()).expect("Linux tells");
        let found: Vec<u32> = holders(&locks, (Some(&device), inode)).collect();
        assert_eq!(found, [std::process::id()], "{device}: {locks}");
    }

    /// Goal: a lock outlives the process that took it, and is not taken for a living one's. Method:
    /// a program that locks an open file of this process, and has ended; the file by another name.
    #[test]
    fn a_lock_of_a_process_that_is_gone_is_known() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let path = dir.path().join("x");
        let kept = File::create(&path).expect("a writable directory");
        let inherited = kept.try_clone().expect("a descriptor");
        let mut lock = std::process::Command::new("flock");
        let locked = lock.args(["--nonblock", "0"]).stdin(inherited).status();
        assert!(locked.expect("util-linux is there").success());
        drop(lock);
        let other = File::open(&path).expect("it is there");
        assert!(is_held_by_the_gone(other.as_fd()));
        let attempt = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(attempt(), Err(Errno::WOULDBLOCK), "it is locked still");
        assert!(!is_held_by_the_living(other.as_fd()), "its process has ended");
        assert!(!is_held_unseen(other.as_fd()), "it is listed");
        drop(kept);
        assert!(!is_held_by_the_gone(other.as_fd()), "no process has it open any more");
        attempt().expect("no process has it open any more");
        assert!(is_held_by_the_living(other.as_fd()), "this process has it");
        assert!(!is_held_by_the_gone(other.as_fd()), "this process has it");
    }
}
