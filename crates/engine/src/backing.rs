//! A volume's home: a file or block device of the shard's [`Io`], or something remote.
//!
//! How: calls to a file become operations of the shard's [`Io`] under tokens that name the home;
//! their ends are handed back in with [`FileBacking::on_io`] and come out of `poll`. A remote home
//! ends calls on threads of its own, which wake the shard; the shard asks it after each wait.
//! Invariant: each submitted call comes out of `poll` exactly once.
//! Cost: one queue entry per call; for a remote home, one in a table, too.
//! Not for: how a remote home reaches what is far away; that is its own.

mod absent;
mod part;
#[cfg(test)]
mod tests;

pub use absent::AbsentHome;
pub use part::{PartHome, PartPlan, SharedLoss};

use crate::io::{Buffer, DiskId, Io, IoDone, IoError, IoOperation, Token};
use layby_types::{Backing, BackingDone, BackingOperation, ErrorKind};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A home whose calls end on threads of its own. With each end it calls the shard's waker, after
/// `poll` would return the end. What it shows when it is opened is durable.
pub type RemoteBacking = Box<dyn Backing<Buffer> + Send>;

/// Where a volume's blocks live for good.
pub enum HomeBacking {
    /// A file or block device.
    File(FileBacking),
    /// A part's stripes of one.
    Part(Box<PartHome>),
    /// Something that brings its own threads.
    Remote(RemoteHome),
}

impl HomeBacking {
    /// Starts a call.
    pub fn submit(&mut self, io: &mut dyn Io, token: u64, operation: BackingOperation<Buffer>) {
        match self {
            HomeBacking::File(file) => {
                file.submit(token, operation);
                file.pump(io);
            }
            HomeBacking::Part(part) => part.submit(io, token, operation),
            HomeBacking::Remote(remote) => remote.submit(token, operation),
        }
    }

    /// Takes one finished call, if there is one now.
    pub fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        match self {
            HomeBacking::File(file) => file.poll(),
            HomeBacking::Part(part) => part.poll(),
            HomeBacking::Remote(remote) => remote.poll(),
        }
    }

    /// Takes a range of bytes that a remote home has at hand for a moment, if there is one.
    pub fn poll_at_hand(&mut self) -> Option<Range<u64>> {
        match self {
            HomeBacking::Remote(remote) => remote.backing.poll_at_hand(),
            _ => None,
        }
    }

    /// Takes the end of an operation of a file; a remote home has none.
    pub fn on_io(&mut self, io: &mut dyn Io, done: IoDone) {
        match self {
            HomeBacking::File(file) => file.on_io(done),
            HomeBacking::Part(part) => part.on_io(io, done),
            HomeBacking::Remote(_) => panic!("a remote home has no operations of the shard's"),
        }
    }

    /// Whether a sync has failed, so that none is trusted until the home is opened again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            HomeBacking::File(file) => file.syncs.is_lost,
            HomeBacking::Part(part) => part.is_lost(),
            HomeBacking::Remote(remote) => remote.syncs.is_lost,
        }
    }

    /// A name for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            HomeBacking::File(file) => &file.name,
            HomeBacking::Part(part) => &part.file.name,
            HomeBacking::Remote(remote) => remote.backing.name(),
        }
    }

    /// Whether calls may take as long as a network does, or for ever.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self, HomeBacking::Remote(_))
    }

    /// Whether a remote home is somebody else's by now, so that nothing of it may be served.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self, HomeBacking::Remote(remote) if remote.backing.is_closed())
    }

    /// Whether it stands for a home that could not be opened: every call fails, and nothing is to
    /// be sent to it.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, HomeBacking::Remote(remote) if remote.is_absent)
    }

    /// The disk of a file or device.
    #[must_use]
    pub fn disk(&self) -> Option<DiskId> {
        match self {
            HomeBacking::File(file) => Some(file.disk),
            HomeBacking::Part(part) => Some(part.file.disk),
            HomeBacking::Remote(_) => None,
        }
    }

    /// Bytes of a file or device, or the part's bytes of them; a remote home is as long as its
    /// volume.
    #[must_use]
    pub fn length(&self, io: &dyn Io) -> Option<u64> {
        match self {
            HomeBacking::File(file) => Some(io.disk_length(file.disk)),
            HomeBacking::Part(part) => Some(part.length_in(io.disk_length(part.file.disk))),
            HomeBacking::Remote(_) => None,
        }
    }

    /// Bytes that a volume of this length has here: a part has its stripes of them.
    #[must_use]
    pub fn own_length(&self, length: u64) -> u64 {
        match self {
            HomeBacking::Part(part) => part.length_in(length),
            HomeBacking::File(_) | HomeBacking::Remote(_) => length,
        }
    }

    /// Asks for nothing of a file behind this end of the volume, or of the part, any more.
    pub fn end_at(&mut self, length: u64) {
        match self {
            HomeBacking::File(file) => file.length = length,
            HomeBacking::Part(part) => part.end_at(length),
            HomeBacking::Remote(_) => {}
        }
    }

    /// Whether a change is under way that reaches behind this length of the whole file.
    #[must_use]
    pub fn is_reached(&self, length: u64) -> bool {
        match self {
            HomeBacking::File(file) => file.is_reached(length),
            HomeBacking::Part(part) => part.file.is_reached(length),
            HomeBacking::Remote(_) => false,
        }
    }

    /// Gives the home of a volume that had `before` bytes another length; that of a wide volume
    /// changes with [`HomeBacking::resize_whole`], before its parts grow or after they shrank.
    ///
    /// # Errors
    /// Why it stays as it was, sorted by remedy, with the cause.
    pub fn resize(
        &mut self,
        io: &mut dyn Io,
        (before, length): (u64, u64),
    ) -> Result<(), (ErrorKind, String)> {
        match self {
            HomeBacking::File(file) => {
                resize_disk(io, file.disk, (before, length))?;
                file.length = length;
                Ok(())
            }
            HomeBacking::Part(_) => Ok(()),
            HomeBacking::Remote(remote) => {
                let resized = remote.backing.resize(length);
                resized.map_err(|kind| (kind, format!("its home refuses: {kind}")))
            }
        }
    }

    /// Gives a wide volume's home the length of the whole volume. Every part is asked for the same,
    /// in order: the first one extends the file, and the last one cuts it, when no part has
    /// anything under way behind the new end.
    ///
    /// # Errors
    /// As [`HomeBacking::resize`].
    pub fn resize_whole(
        &mut self,
        io: &mut dyn Io,
        (before, length): (u64, u64),
    ) -> Result<(), (ErrorKind, String)> {
        let HomeBacking::Part(part) = self else { panic!("only wide volumes have parts") };
        if length >= io.disk_length(part.file.disk) || part.is_last() {
            resize_disk(io, part.file.disk, (before, length))?;
        }
        part.plan.length = length;
        part.file.length = length;
        Ok(())
    }

    /// Calls that wait for something far away are to end soon.
    pub fn stop_waiting(&mut self) {
        if let HomeBacking::Remote(remote) = self {
            remote.backing.stop_waiting();
        }
    }

    /// Reads that wait for something far away and reach behind byte `from` are to end soon.
    pub fn give_up_reads(&mut self, from: u64) {
        if let HomeBacking::Remote(remote) = self {
            remote.backing.give_up_reads(from);
        }
    }

    /// Lets go of the home. A remote one ends on a thread of its own, maybe later: its own threads
    /// may hang in a device, and the shard's does not wait for them.
    pub fn detach(self, io: &mut dyn Io) {
        match self {
            HomeBacking::File(file) => io.detach_disk(file.disk),
            HomeBacking::Part(part) => io.detach_disk(part.file.disk),
            HomeBacking::Remote(remote) => reap(remote),
        }
    }
}

/// Drops a remote home on a thread of its own; where none can be made, on this one.
fn reap(remote: RemoteHome) {
    let thread = std::thread::Builder::new().name("reaper".to_owned());
    let _ = thread.spawn(move || drop(remote));
}

/// Extends or truncates what a volume that had `before` bytes lies in. A file that is longer than
/// its volume was is not truncated: the rest is not the volume's.
fn resize_disk(
    io: &mut dyn Io,
    disk: DiskId,
    (before, length): (u64, u64),
) -> Result<(), (ErrorKind, String)> {
    let there = io.disk_length(disk);
    if there > length && there > before {
        return Ok(());
    }
    let resized = io.resize_disk(disk, length);
    resized.map_err(|error| (kind_of(error), error.to_string()))
}

/// Which syncs are in flight, and whether they are trusted.
#[derive(Default)]
struct Syncs {
    /// By the caller's token.
    inflight: Vec<u64>,
    /// A sync failed: the device may have dropped what it covered, so that no later one can vouch
    /// for it. All syncs fail until the home is opened again; what is not durable here stays dirty
    /// in the levels' records.
    is_lost: bool,
    /// Of a file or device: how many have failed, durable writes' own included.
    failed_total: u64,
}

impl Syncs {
    /// The end of a call, as its caller is to see it.
    fn end(&mut self, token: u64, result: Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        let Some(index) = self.inflight.iter().position(|sync| *sync == token) else {
            return result;
        };
        self.inflight.swap_remove(index);
        let result = if self.is_lost { Err(ErrorKind::Closed) } else { result };
        self.is_lost |= result.is_err();
        result
    }
}

/// A [`RemoteBacking`], held to its word.
pub struct RemoteHome {
    backing: RemoteBacking,
    syncs: Syncs,
    /// By token, the length of the buffer that has to come back.
    awaited: HashMap<u64, Option<usize>>,
    /// It stands for a home that could not be opened.
    is_absent: bool,
}

impl RemoteHome {
    /// Over a home that was just opened.
    #[must_use]
    pub fn new(backing: RemoteBacking) -> Self {
        let (syncs, awaited) = (Syncs::default(), HashMap::new());
        RemoteHome { backing, syncs, awaited, is_absent: false }
    }

    /// In place of a home that could not be opened: no sync of it is ever trusted.
    #[must_use]
    pub fn absent(backing: RemoteBacking) -> Self {
        let mut home = RemoteHome::new(backing);
        (home.syncs.is_lost, home.is_absent) = (true, true);
        home
    }

    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        let length = match &operation {
            BackingOperation::Read { buffer, .. }
            | BackingOperation::ReadAtHand { buffer, .. }
            | BackingOperation::Write { buffer, .. } => Some(buffer.len()),
            _ => None,
        };
        if matches!(operation, BackingOperation::Sync) {
            self.syncs.inflight.push(token);
        }
        let before = self.awaited.insert(token, length);
        assert!(before.is_none(), "a token is in flight once");
        self.backing.submit(token, operation);
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        let mut done = self.backing.poll()?;
        let length = self.awaited.remove(&done.token);
        let length = length.expect("a remote home ends a call once");
        let returned = done.buffer.as_ref().map(|buffer| buffer.len());
        assert_eq!(returned, length, "a remote home hands the call's buffer back");
        done.result = self.syncs.end(done.token, done.result);
        Some(done)
    }
}

/// A file or block device. A volume may end in the middle of a block, and its home with it: of
/// what is asked of that block, the home hears its part.
pub struct FileBacking {
    /// The disk behind it.
    pub disk: DiskId,
    name: String,
    tag: u64,
    /// Bytes of the volume.
    length: u64,
    /// By the token of a call that goes beyond: where the volume ends, how much is beyond, and
    /// what it asks for.
    clipped: HashMap<u64, Clip>,
    /// By the token of a read: where it begins, and where the volume ended then.
    reads: HashMap<u64, (u64, u64)>,
    /// By the token of any other call but a sync.
    ends: HashMap<u64, Reaching>,
    queue: VecDeque<(Token, IoOperation)>,
    done: VecDeque<BackingDone<Buffer>>,
    syncs: Syncs,
}

/// A change in flight, or a look for runs.
struct Reaching {
    /// Where it ends.
    end: u64,
    /// It is made durable by a sync of its own, which vouches for nothing where another sync failed
    /// meanwhile: the device may have dropped what was written, and said so once, to the other.
    is_durable: bool,
    is_doubtful: bool,
    /// It asks for runs, and changes nothing.
    is_question: bool,
}

/// What a home does not hear of a call.
struct Clip {
    end: u64,
    over: u64,
    asks: Asks,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Runs,
    Change,
}

/// Bits of a token that the caller of a home may use.
pub const TOKEN_BITS: u32 = 36;

impl FileBacking {
    /// A home of `length` bytes on an attached disk; `tag` goes above [`TOKEN_BITS`] of every
    /// token.
    #[must_use]
    pub fn new(disk: DiskId, name: String, tag: u64, length: u64) -> Self {
        let (queue, done) = (VecDeque::new(), VecDeque::new());
        let (syncs, clipped) = (Syncs::default(), HashMap::new());
        let (reads, ends) = (HashMap::new(), HashMap::new());
        FileBacking { disk, name, tag, length, clipped, reads, ends, queue, done, syncs }
    }

    /// Cuts off what lies beyond the volume's end.
    fn clip(&mut self, token: u64, operation: &mut BackingOperation<Buffer>) {
        let (offset, length, asks) = match operation {
            BackingOperation::Write { offset, buffer, .. } => {
                (*offset, buffer.len() as u64, Asks::Change)
            }
            BackingOperation::Zero { offset, length, .. } => (*offset, *length, Asks::Change),
            BackingOperation::Extents { offset, length } => (*offset, *length, Asks::Runs),
            // What is read beyond the end is zeros already.
            BackingOperation::Read { offset, .. } | BackingOperation::ReadAtHand { offset, .. } => {
                self.reads.insert(token, (*offset, self.length));
                return;
            }
            BackingOperation::Sync => return,
        };
        let end = self.length;
        let over = (offset + length).saturating_sub(end);
        let reach = offset + length - if over < length { over } else { 0 };
        let is_durable = matches!(operation, BackingOperation::Write { durable: true, .. });
        let is_question = matches!(asks, Asks::Runs);
        let reaching = Reaching { end: reach, is_durable, is_doubtful: false, is_question };
        self.ends.insert(token, reaching);
        if over == 0 || over >= length {
            return;
        }
        self.clipped.insert(token, Clip { end, over, asks });
        match operation {
            BackingOperation::Write { buffer, .. } => buffer.set_length((length - over) as usize),
            BackingOperation::Zero { length, .. } | BackingOperation::Extents { length, .. } => {
                *length -= over;
            }
            BackingOperation::Read { .. }
            | BackingOperation::ReadAtHand { .. }
            | BackingOperation::Sync => {}
        }
    }

    fn is_reached(&self, length: u64) -> bool {
        self.ends.values().any(|it| it.end > length)
    }

    /// A sync has failed: no durable write in flight is taken for durable.
    fn doubt_writes(&mut self) {
        self.ends.values_mut().for_each(|it| it.is_doubtful = it.is_durable);
    }

    /// Hands queued operations to the kernel.
    pub fn pump(&mut self, io: &mut dyn Io) {
        for (token, operation) in self.queue.drain(..) {
            io.submit(token, operation);
        }
    }

    /// Takes the end of an operation of this home.
    pub fn on_io(&mut self, done: IoDone) {
        let token = done.token.0 & ((1 << TOKEN_BITS) - 1);
        let reaching = self.ends.remove(&token);
        let is_doubtful = reaching.as_ref().is_some_and(|it| it.is_doubtful);
        let clip = self.clipped.remove(&token);
        let wanted = done.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64);
        let read = self.reads.remove(&token).map(|(start, end)| (start, end.min(self.length)));
        let whole = |moved: usize| {
            let moved = moved as u64;
            let is_at_end = read.is_some_and(|(start, end)| start + moved >= end);
            // Else the file was truncated, and what lay there is not zeros; or it has no room.
            if moved >= wanted || is_at_end { Ok(()) } else { Err(ErrorKind::Corrupt) }
        };
        // Only what cannot be read is damaged.
        let is_change = read.is_none() && !reaching.is_some_and(|it| it.is_question);
        let of_change = |kind| match kind {
            ErrorKind::Corrupt if is_change => ErrorKind::Unwritable,
            kind => kind,
        };
        let is_sync = self.syncs.inflight.contains(&token);
        let is_sync_failed = done.is_sync_failed || (is_sync && done.result.is_err());
        self.syncs.is_lost |= done.is_sync_failed;
        let result = self.syncs.end(token, done.result.map_err(kind_of).and_then(whole));
        let result = result.map_err(of_change);
        if is_sync_failed {
            self.syncs.failed_total += 1;
            self.doubt_writes();
        }
        let result = result.and(if is_doubtful { Err(ErrorKind::Retry) } else { Ok(()) });
        let runs = done.extents.iter().map(|e| (e.offset, e.length, e.data));
        let (mut extents, mut buffer) = (runs.collect::<Vec<_>>(), done.buffer);
        match clip {
            Some(Clip { over, asks: Asks::Change, .. }) => {
                let whole = |buffer: &mut Buffer| buffer.set_length(buffer.len() + over as usize);
                buffer.iter_mut().for_each(whole);
            }
            Some(Clip { end, over, asks: Asks::Runs }) if result.is_ok() => {
                extents.push((end, over, false));
            }
            _ => {}
        }
        self.done.push_back(BackingDone { token, result, buffer, extents });
    }
}

/// A system error sorted by remedy.
#[must_use]
pub fn kind_of(error: IoError) -> ErrorKind {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(error.errno) {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::Full,
        Errno::INVAL | Errno::NXIO => ErrorKind::Invalid,
        Errno::OPNOTSUPP => ErrorKind::Unsupported,
        // The last is a write to what could be opened for reading only.
        Errno::PERM | Errno::ACCESS | Errno::ROFS | Errno::BADF => ErrorKind::Denied,
        Errno::IO | Errno::ILSEQ | Errno::BADMSG => ErrorKind::Corrupt,
        _ => ErrorKind::Retry,
    }
}

impl Backing<Buffer> for FileBacking {
    fn submit(&mut self, token: u64, mut operation: BackingOperation<Buffer>) {
        assert!(token < 1 << TOKEN_BITS, "the tag lies above the caller's bits");
        self.clip(token, &mut operation);
        let disk = self.disk;
        let operation = match operation {
            BackingOperation::Read { offset, buffer }
            | BackingOperation::ReadAtHand { offset, buffer } => {
                IoOperation::Read { disk, offset, buffer }
            }
            BackingOperation::Write { offset, buffer, durable } => {
                IoOperation::Write { disk, offset, buffer, durable }
            }
            BackingOperation::Zero { offset, length, keep_allocated } => {
                IoOperation::Zero { disk, offset, length, keep_allocated }
            }
            BackingOperation::Extents { offset, length } => {
                IoOperation::Extents { disk, offset, length }
            }
            BackingOperation::Sync => {
                self.syncs.inflight.push(token);
                IoOperation::Sync { disk }
            }
        };
        self.queue.push_back((Token(self.tag << TOKEN_BITS | token), operation));
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        self.done.pop_front()
    }

    fn name(&self) -> &str {
        &self.name
    }
}
