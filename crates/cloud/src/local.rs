//! A volume's files on the node's disk: reserved, replaced, appended to and synced.
//!
//! How: what must be durable is done by one thread per volume, in order. Where the map file finds
//! no room, changes of it wait in their order and are tried again every second, while syncs of the
//! journal go on: what a map file says of the journal is true of a later journal, too.
//! Invariant: the map file is replaced by a rename after a sync, so that one of both is whole; what
//! was appended in part is cut off before anything else is, and where a change failed otherwise, no
//! other one is made.
//! Cost: a thread per volume, idle while nothing is to be synced. Not for: decisions; see `volume`.

use crate::action::{Action, ActionId, End, Fault, FaultKind};
use rustix::fs::{
    AtFlags, FallocateFlags, IFlags, Mode, OFlags, fallocate, ioctl_getflags, ioctl_setflags,
    openat, renameat, unlinkat,
};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind as Io, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often changes of a map file without room are tried again.
const ROOM_REST: Duration = Duration::from_secs(1);

/// Reserves a journal's room, so that a full disk is met before the first write is. Where the file
/// system cannot, the volume says so when the room is short.
pub(crate) fn allocate(journal: &File, bytes: u64) -> io::Result<()> {
    match fallocate(journal, FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Tells the file system to overwrite an empty journal in place, where it knows how to be told;
/// else each write needs room anew.
pub(crate) fn overwrite_in_place(journal: &File) {
    if let Ok(flags) = ioctl_getflags(journal) {
        let _ = ioctl_setflags(journal, flags | IFlags::NOCOW);
    }
}

/// Gives a journal that shares its room with a copy of its file room of its own, where the file
/// system can and has it. Cheap where nothing is shared.
pub(crate) fn unshare(journal: &File, bytes: u64) {
    let _ = fallocate(journal, FallocateFlags::UNSHARE_RANGE, 0, bytes);
}

/// A file that goes with the process, made under a name that it loses at once.
pub(crate) fn unnamed(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.custom_flags(flags(OFlags::NOFOLLOW)).open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Opens a file to be read, without waiting for a pipe's writer, who may never come.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags(OFlags::NONBLOCK)).open(path)
}

/// Opens a regular file to be read; of what is none nothing is read: a device has no end.
///
/// # Errors
/// The system's, or that it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_to_read(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(Io::InvalidInput, "it is no regular file")),
    }
}

/// Reads a map file, which must be a regular file.
///
/// # Errors
/// As [`open_regular`].
pub fn read_map(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// Replaces a file as a whole, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Place::of(path)?.replace(bytes)
}

/// A file's name in its folder, which stays the same one wherever its own path leads: the folder
/// of another node may be there by now.
struct Place {
    folder: File,
    name: PathBuf,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = File::open(parent.unwrap_or(Path::new(".")))?;
        let name = path.file_name().ok_or(Io::InvalidInput)?.into();
        Ok(Place { folder, name })
    }

    fn open(&self, name: &Path, flags: OFlags) -> io::Result<File> {
        let mode = Mode::from_raw_mode(0o666);
        let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(openat(&self.folder, name, flags, mode)?.into())
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let next = self.name.with_extension("next");
        let mut file = self.open(&next, OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written {
            // Half of a file takes room that others may need.
            let _ = unlinkat(&self.folder, &next, AtFlags::empty());
            return Err(error);
        }
        renameat(&self.folder, &next, &self.folder, &self.name)?;
        self.folder.sync_all()
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.open(&self.name, OFlags::APPEND)?;
        let length = file.metadata()?.len();
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if written.as_ref().is_err_and(is_full) {
            file.set_len(length)?;
        }
        written
    }
}

/// Journals that backing stores of this process write to, by device and by number there.
static WRITTEN: Mutex<BTreeSet<(u64, Option<u64>)>> = Mutex::new(BTreeSet::new());

/// A journal that no other backing store of this process opens until this is dropped. Processes are
/// kept apart by what locks the node's directory and its folders.
pub(crate) struct Claim {
    journal: (u64, Option<u64>),
    /// Open, so that the system gives its number to no other file.
    _file: Arc<File>,
}

impl Claim {
    /// Claims a journal; none where it is claimed.
    pub(crate) fn of(file: Arc<File>) -> io::Result<Option<Claim>> {
        let found = file.metadata()?;
        let journal = match found.file_type().is_block_device() {
            true => (found.rdev(), None),
            false => (found.dev(), Some(found.ino())),
        };
        let is_free = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).insert(journal);
        // One that is made and dropped here would end the other's.
        Ok(is_free.then(|| Claim { journal, _file: file }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.journal);
    }
}

/// Reads a file's bytes from `at` on; all of them or an error.
pub(crate) fn read_at(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// What a failed call of the system is to a volume.
pub(crate) fn failed(error: &io::Error) -> End {
    End::Failed(Fault { kind: FaultKind::Device, cause: error.to_string() })
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), Io::StorageFull | Io::QuotaExceeded)
}

/// What the thread tells its volume.
pub(crate) enum Told {
    /// An action has ended.
    End(ActionId, End),
    /// Why changes of the map file wait, or that they wait no more.
    MapFault(Option<String>),
}

/// The thread that performs what must be durable, and the way to it.
pub(crate) struct Durables {
    pub sender: Sender<(ActionId, Action)>,
    pub thread: JoinHandle<()>,
}

impl Durables {
    /// Starts the thread. It ends with the channel, or once `tell` answers that nothing listens.
    pub(crate) fn start(
        journal: Arc<File>,
        map: &Path,
        tell: impl Fn(Told) -> bool + Send + 'static,
    ) -> io::Result<Durables> {
        let (sender, inbox) = channel();
        let host = Files { map: Place::of(map)?, tell, start: now() };
        let mut work =
            Work { journal, waiting: VecDeque::new(), again_at: None, broken: None, host };
        let body = move || work.run(&inbox);
        let thread = std::thread::Builder::new().name("cloud-sync".to_owned()).spawn(body)?;
        Ok(Durables { sender, thread })
    }
}

#[expect(clippy::disallowed_methods, reason = "a host's clock; the volume has none")]
fn now() -> Instant {
    Instant::now()
}

/// What the thread has to do with beside its journal: tests replace it.
trait Host {
    /// Whether anything listens still.
    fn tell(&self, told: Told) -> bool;
    fn change_map(&self, change: &Action) -> io::Result<()>;
    /// Time since some moment, which does not go back.
    fn now(&self) -> Duration;
}

struct Files<T> {
    map: Place,
    tell: T,
    start: Instant,
}

impl<T: Fn(Told) -> bool> Host for Files<T> {
    fn tell(&self, told: Told) -> bool {
        (self.tell)(told)
    }

    fn change_map(&self, change: &Action) -> io::Result<()> {
        match change {
            Action::MapAppend(bytes) => self.map.append(bytes),
            Action::MapReplace(bytes) => self.map.replace(bytes),
            _ => unreachable!("others are done elsewhere"),
        }
    }

    fn now(&self) -> Duration {
        now().saturating_duration_since(self.start)
    }
}

struct Work<H> {
    journal: Arc<File>,
    /// Changes of the map file that found no room.
    waiting: VecDeque<(ActionId, Action)>,
    /// When they are tried again.
    again_at: Option<Duration>,
    /// Why a change of the map file failed: what is in it by now is not known, so that a later one
    /// would leave a gap, or follow half a frame.
    broken: Option<String>,
    host: H,
}

impl<H: Host> Work<H> {
    fn run(&mut self, inbox: &Receiver<(ActionId, Action)>) {
        loop {
            let rest = self.again_at.map_or(Duration::MAX, |at| at.saturating_sub(self.host.now()));
            let is_heard = match inbox.recv_timeout(rest) {
                Ok((id, Action::JournalSync)) => self.end(id, self.journal.sync_data()),
                Ok(change) => {
                    self.waiting.push_back(change);
                    true
                }
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Syncs may come more often than changes are tried again, and for long.
            let is_due = self.again_at.is_none_or(|at| self.host.now() >= at);
            if !is_heard || is_due && !self.change_map() {
                return;
            }
        }
    }

    /// Makes the changes that wait, as far as there is room; whether anybody listens still.
    fn change_map(&mut self) -> bool {
        while let Some((_, action)) = self.waiting.front() {
            let result = match &self.broken {
                Some(cause) => Err(io::Error::other(cause.clone())),
                None => self.host.change_map(action),
            };
            if let Err(error) = &result
                && is_full(error)
            {
                self.again_at = Some(self.host.now() + ROOM_REST);
                return self.host.tell(Told::MapFault(Some(error.to_string())));
            }
            if let Err(error) = &result {
                self.broken.get_or_insert_with(|| error.to_string());
            }
            let (id, _) = self.waiting.pop_front().expect("it was just there");
            if !self.end(id, result) {
                return false;
            }
        }
        self.again_at.take().is_none() || self.host.tell(Told::MapFault(None))
    }

    fn end(&self, id: ActionId, result: io::Result<()>) -> bool {
        let end = result.map_or_else(|error| failed(&error), |()| End::Done);
        self.host.tell(Told::End(id, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Frame;
    use std::cell::{Cell, RefCell};

    /// Goal: behind a change of the map file that failed none is made: it would leave a gap, or
    /// follow half a frame (a passing error made a volume's flushed writes unreachable). Method: an
    /// append without its file, which is there again before the next two changes.
    #[test]
    fn nothing_follows_a_failed_change_of_the_map_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (map, away) = (folder.path().join("map"), folder.path().join("away"));
        let first = Frame::Durable(1).encode();
        replace(&map, &first).expect("it is made");
        std::fs::rename(&map, &away).expect("it goes");
        let journal = Arc::new(File::create(folder.path().join("journal")).expect("it is made"));
        let (said, heard) = channel();
        let back = (away, map.clone());
        let tell = move |told: Told| {
            // The fault passes before the thread turns to the next change.
            let _ = std::fs::rename(&back.0, &back.1);
            said.send(told).is_ok()
        };
        let Durables { sender, thread } =
            Durables::start(journal, &map, tell).expect("a thread starts");
        let append = |next| Action::MapAppend(Frame::Durable(next).encode());
        let replace = Action::MapReplace(Frame::Durable(4).encode());
        for (id, action) in
            [append(2), append(3), replace, Action::JournalSync].into_iter().enumerate()
        {
            sender.send((ActionId(id as u64), action)).expect("it listens");
        }
        drop(sender);
        thread.join().expect("it ends");
        let ends = heard.try_iter().map(|told| match told {
            Told::End(_, end) => matches!(end, End::Failed(_)),
            Told::MapFault(_) => panic!("there is room"),
        });
        assert_eq!(ends.collect::<Vec<_>>(), [true, true, true, false]);
        assert!(std::fs::read(&map).expect("it is back") == first, "it was changed");
    }
    /// A disk without room until `free_at`, in a time of which each question takes 10 ms.
    #[derive(Default)]
    struct Short {
        now: Cell<Duration>,
        free_at: Duration,
        tries: Cell<u32>,
        ends: RefCell<Vec<(u64, bool)>>,
        faults: RefCell<Vec<bool>>,
    }

    impl Host for &Short {
        fn tell(&self, told: Told) -> bool {
            match told {
                Told::End(id, end) => {
                    self.ends.borrow_mut().push((id.0, matches!(end, End::Done)));
                }
                Told::MapFault(fault) => self.faults.borrow_mut().push(fault.is_some()),
            }
            true
        }

        fn change_map(&self, _: &Action) -> io::Result<()> {
            self.tries.set(self.tries.get() + 1);
            match self.now.get() < self.free_at {
                true => Err(Io::StorageFull.into()),
                false => Ok(()),
            }
        }

        fn now(&self) -> Duration {
            self.now.set(self.now.get() + Duration::from_millis(10));
            self.now.get()
        }
    }

    /// Goal: a change of the map file that found no room is tried again each second, also while
    /// clients sync more often than that; no more often, though. Method: a disk that has room after
    /// 2.5 s, syncs of the journal in all of the time, a clock that each look moves.
    #[test]
    fn syncs_do_not_delay_what_waits_for_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Arc::new(File::create(folder.path().join("journal")).expect("it is made"));
        let host = Short { free_at: Duration::from_millis(2500), ..Short::default() };
        let (waiting, again_at, broken) = (VecDeque::new(), None, None);
        let mut work = Work { journal, waiting, again_at, broken, host: &host };
        let (sender, inbox) = channel();
        let change = Action::MapAppend(Frame::Durable(1).encode());
        sender.send((ActionId(0), change)).expect("it listens");
        for id in 1..=600 {
            sender.send((ActionId(id), Action::JournalSync)).expect("it listens");
        }
        drop(sender);
        work.run(&inbox);
        let ends = host.ends.borrow();
        assert!(ends.iter().all(|(_, is_done)| *is_done));
        assert_eq!(ends.len(), 601, "the change of the map file ended, too");
        assert_eq!(host.tries.get(), 4, "at 0, 1, 2 and 3 s");
        assert_eq!(*host.faults.borrow(), [true, true, true, false]);
    }
}
