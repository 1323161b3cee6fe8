//! Disk operations by plain system calls, on a few threads of their own.
//!
//! How: jobs wait in a queue per disk; a thread takes a job, performs it to its end, leaves the
//! answer in a list and wakes the shard. Threads start as they are needed; a disk has a few at
//! once, so that one that never answers does not keep the others'. Where the system grants no
//! thread, those that there are do the work; without any, jobs end with that error.
//! Invariant: a job is answered once; dropping the pool waits for the jobs that have started.
//! Cost: two thread switches per operation.
//! Not for: sockets, which would hold a thread each.

use super::flights::Flight;
use super::open::OpenDisk;
use super::suspects::Suspects;
use super::{DiskExtent, IoDone, IoError, IoOperation, Waker, WriteHints};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Threads at work for one disk at once: enough to overlap a sync with reads and writes.
pub(super) const DISK_THREADS_MAX: usize = 4;
/// Threads per shard: disks that never answer keep theirs, and others still find some.
pub(super) const THREADS_MAX: usize = 64;
/// Bytes of zeros written at once where the kernel cannot zero a range itself.
const ZEROS: usize = 256 << 10;

struct Job {
    disk: Arc<OpenDisk>,
    flight: Flight,
}

/// The jobs of one disk.
struct Lane {
    disk: Arc<OpenDisk>,
    /// Bounded by what the shard submits: requests in flight, and a discard or two per store.
    flights: VecDeque<Flight>,
    /// Threads at work for it.
    busy: usize,
}

#[derive(Default)]
struct Queue {
    /// Of the disks that have any; the one that had its turn goes to the end.
    lanes: VecDeque<Lane>,
    /// Threads that wait for a job.
    idle: usize,
    ended: Vec<IoDone>,
    suspects: Suspects,
    closing: bool,
}

impl Queue {
    fn push(&mut self, Job { disk, flight }: Job) {
        match self.lanes.iter_mut().find(|lane| Arc::ptr_eq(&lane.disk, &disk)) {
            Some(lane) => lane.flights.push_back(flight),
            None => self.lanes.push_back(Lane { disk, flights: [flight].into(), busy: 0 }),
        }
    }

    /// The next job of a disk that has not all its threads at work.
    fn take(&mut self) -> Option<Job> {
        let may_start = |lane: &Lane| lane.busy < DISK_THREADS_MAX && !lane.flights.is_empty();
        let index = self.lanes.iter().position(may_start)?;
        let mut lane = self.lanes.remove(index)?;
        lane.busy += 1;
        let job = Job { disk: lane.disk.clone(), flight: lane.flights.pop_front()? };
        self.lanes.push_back(lane);
        Some(job)
    }

    /// Whether another thread would find a job.
    fn wants_thread(&self) -> bool {
        let startable = |lane: &Lane| lane.flights.len().min(DISK_THREADS_MAX - lane.busy);
        self.lanes.iter().map(startable).sum::<usize>() > self.idle
    }

    fn end(&mut self, disk: &Arc<OpenDisk>, flight: Flight, outcome: Outcome) {
        let is_its = |lane: &Lane| Arc::ptr_eq(&lane.disk, disk);
        if let Some(index) = self.lanes.iter().position(is_its) {
            self.lanes[index].busy -= 1;
            if self.lanes[index].busy == 0 && self.lanes[index].flights.is_empty() {
                self.lanes.remove(index);
            }
        }
        match outcome {
            Ok((bytes, extents)) if !extents.is_empty() => {
                self.ended.push(IoDone { extents, ..flight.end(Ok(bytes)) });
            }
            outcome => {
                let result = outcome.map(|(bytes, _)| bytes).map_err(IoError::from);
                self.suspects.end(flight, result, &mut self.ended);
            }
        }
    }
}

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    waker: Waker,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no thread panics while it holds the queue")
    }
}

/// The threads.
pub(super) struct Blocking {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    spawn: Spawn,
}

/// Starts a thread; another one in tests.
type Spawn = fn(Arc<Shared>) -> std::io::Result<JoinHandle<()>>;

fn spawn(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("layby-io".to_owned()).spawn(move || work(&shared))
}

impl Blocking {
    pub(super) fn new(waker: Waker) -> Self {
        let (queue, arrived) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { queue, arrived, waker });
        Blocking { shared, threads: Vec::new(), in_flight: 0, spawn }
    }

    /// The same with its first thread, for who has no other way to disks.
    ///
    /// # Errors
    /// The system's error where it grants no thread.
    pub(super) fn begin(waker: Waker) -> Result<Self, IoError> {
        let mut blocking = Blocking::new(waker);
        let thread = spawn(blocking.shared.clone()).map_err(|error| errno_of(&error))?;
        blocking.threads.push(thread);
        Ok(blocking)
    }

    /// Queues a disk operation.
    pub(super) fn start(&mut self, disk: Arc<OpenDisk>, flight: Flight) {
        self.in_flight += 1;
        let mut queue = self.shared.lock();
        queue.push(Job { disk, flight });
        let wants_thread = queue.wants_thread();
        drop(queue);
        if wants_thread && self.threads.len() < THREADS_MAX {
            match (self.spawn)(self.shared.clone()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => self.refuse(&error),
                Err(_) => {}
            }
        }
        self.shared.arrived.notify_one();
    }

    /// All jobs end with an error, since there is no thread for them.
    fn refuse(&mut self, error: &std::io::Error) {
        let mut queue = self.shared.lock();
        let flights = std::mem::take(&mut queue.lanes).into_iter().flat_map(|lane| lane.flights);
        let ended = flights.map(|flight| flight.end(Err(errno_of(error))));
        queue.ended.extend(ended);
        drop(queue);
        self.shared.waker.wake();
    }

    /// Moves what has ended to `done`.
    pub(super) fn reap(&mut self, done: &mut Vec<IoDone>) {
        if self.in_flight > 0 {
            let mut queue = self.shared.lock();
            self.in_flight -= queue.ended.len();
            done.append(&mut queue.ended);
        }
    }
}

fn errno_of(error: &std::io::Error) -> IoError {
    IoError { errno: error.raw_os_error().unwrap_or(0) }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closing = true;
        queue.lanes.iter_mut().for_each(|lane| lane.flights.clear());
        drop(queue);
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in a thread was printed there; this one only stops.
            let _ = thread.join();
        }
    }
}

/// One thread's life.
fn work(shared: &Shared) {
    let mut queue = shared.lock();
    loop {
        if let Some(Job { disk, mut flight }) = queue.take() {
            drop(queue);
            tell_life(&disk, &flight);
            let outcome = perform(&disk, &mut flight.operation);
            if let (Err(errno), IoOperation::Write { disk: id, durable: true, .. }) =
                (&outcome, &flight.operation)
                && may_be_of_sync(*errno)
            {
                flight.suspect = Some(shared.lock().suspects.begin(*id));
                flight.is_syncing = has_failed_in_sync(&disk, &flight.operation);
            }
            queue = shared.lock();
            queue.end(&disk, flight, outcome);
            shared.waker.wake();
        } else if queue.closing {
            return;
        } else {
            queue.idle += 1;
            queue = shared.arrived.wait(queue).expect("no thread panics while it holds the queue");
            queue.idle -= 1;
        }
    }
}

/// Says how long what is written is likely to live; another thread may say otherwise meanwhile.
fn tell_life(disk: &OpenDisk, flight: &Flight) {
    if let (Some(life), IoOperation::Write { .. }) = (flight.life, &flight.operation)
        && disk.hints.way(false) == WriteHints::Lives
    {
        disk.hints.tell(&disk.buffered, life);
        disk.hints.count_write();
    }
}

/// Bytes moved, and the answer of [`IoOperation::Extents`]; or why it failed.
type Outcome = Result<(usize, Vec<DiskExtent>), Errno>;

/// Performs a disk operation to its end.
fn perform(disk: &OpenDisk, operation: &mut IoOperation) -> Outcome {
    match operation {
        IoOperation::Read { offset, buffer, .. } => {
            return read(disk, *offset, buffer).map(|moved| (moved, Vec::new()));
        }
        IoOperation::Write { offset, buffer, durable, .. } => {
            write(disk, *offset, buffer, *durable)?;
        }
        IoOperation::Sync { .. } => rustix::io::retry_on_intr(|| fdatasync(disk))?,
        IoOperation::Zero { offset, length, keep_allocated, .. } => {
            zero(disk, *offset, *length, *keep_allocated)?;
        }
        IoOperation::Discard { offset, length, .. } => discard(disk, *offset, *length)?,
        IoOperation::Extents { offset, length, .. } => {
            return extents(disk, *offset, *length).map(|extents| (0, extents));
        }
        IoOperation::Receive { .. } | IoOperation::Send { .. } | IoOperation::Await { .. } => {
            unreachable!("sockets and events never reach the threads")
        }
    }
    let bytes = match operation {
        IoOperation::Write { buffer, .. } => buffer.len(),
        _ => 0,
    };
    Ok((bytes, Vec::new()))
}

fn fdatasync(disk: &OpenDisk) -> Result<(), Errno> {
    rustix::fs::fdatasync(&disk.buffered)
}

/// Answers with the bytes that the file has; the rest are zeros.
fn read(disk: &OpenDisk, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut moved = 0;
    while moved < bytes.len() {
        let (at, rest) = (offset + moved as u64, &mut bytes[moved..]);
        let direct = disk.takes_direct(at, rest.len());
        let mut file = disk.file(at, rest.len());
        let mut result = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, at));
        if direct && result == Err(Errno::INVAL) {
            file = rustix::fd::AsFd::as_fd(&disk.buffered);
            result = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, at));
        }
        match result? {
            0 => {
                rest.fill(0);
                return Ok(moved);
            }
            count => moved += count,
        }
    }
    Ok(moved)
}

fn write(disk: &OpenDisk, offset: u64, bytes: &[u8], durable: bool) -> Result<(), Errno> {
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    let mut moved = 0;
    while moved < bytes.len() {
        let (at, rest) = (offset + moved as u64, &bytes[moved..]);
        let put = |file| {
            let call = || rustix::io::pwritev2(file, &[IoSlice::new(rest)], at, flags);
            rustix::io::retry_on_intr(call)
        };
        let mut result = put(disk.file(at, rest.len()));
        if result == Err(Errno::INVAL) && disk.takes_direct(at, rest.len()) {
            result = put(rustix::fd::AsFd::as_fd(&disk.buffered));
        }
        match result? {
            0 => return Err(Errno::IO),
            count => moved += count,
        }
    }
    Ok(())
}

/// Whether a durable write's sync may have ended so. Where the system had no memory for a request,
/// nothing was asked of the device.
pub(super) fn may_be_of_sync(errno: Errno) -> bool {
    !matches!(errno, Errno::NOMEM | Errno::NOBUFS)
}

/// Whether it is a durable write that failed in its sync: repeated without one, it ends well. The
/// kernel has told of what it could not write by then, and does not tell the next sync of it.
fn has_failed_in_sync(disk: &OpenDisk, operation: &IoOperation) -> bool {
    let IoOperation::Write { offset, buffer, durable: true, .. } = operation else { return false };
    write(disk, *offset, buffer, false).is_ok()
}

/// The ways to zero a range, best first; [`zero_by_writing`] is the last resort.
pub(super) fn zero_flags(keep_allocated: bool) -> [FallocateFlags; 2] {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    if keep_allocated { [range, range] } else { [punch, range] }
}

/// Whether a refusal to zero a range calls for the next way.
pub(super) fn zero_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV | Errno::NOTTY)
}

fn zero(disk: &OpenDisk, offset: u64, length: u64, keep_allocated: bool) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    for flags in zero_flags(keep_allocated) {
        let call = || rustix::fs::fallocate(&disk.buffered, flags, offset, length);
        match rustix::io::retry_on_intr(call) {
            Err(errno) if zero_unsupported(errno) => {}
            result => return result,
        }
    }
    zero_by_writing(disk, offset, length)
}

fn zero_by_writing(disk: &OpenDisk, offset: u64, length: u64) -> Result<(), Errno> {
    let zeros = super::Buffer::zeroed(ZEROS);
    let mut at = offset;
    while at < offset + length {
        let count = (offset + length - at).min(ZEROS as u64) as usize;
        write(disk, at, &zeros[..count], false)?;
        at += count as u64;
    }
    Ok(())
}

/// A device hears that a range is free; a file gives its room back to the file system.
fn discard(disk: &OpenDisk, offset: u64, length: u64) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| match disk.block_device {
        true => super::advice::discard(&disk.buffered, offset, length),
        false => rustix::fs::fallocate(&disk.buffered, punch, offset, length),
    })
}

/// Walks `SEEK_DATA` and `SEEK_HOLE`; what cannot tell holes is all data.
fn extents(disk: &OpenDisk, offset: u64, length: u64) -> Result<Vec<DiskExtent>, Errno> {
    let (mut extents, mut at, end) = (Vec::new(), offset, offset + length);
    while at < end {
        let data = match rustix::fs::seek(&disk.buffered, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, end),
            Err(Errno::NXIO) => end,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                extents.push(DiskExtent { offset: at, length: end - at, data: true });
                return Ok(extents);
            }
            Err(errno) => return Err(errno),
        };
        if data > at {
            extents.push(DiskExtent { offset: at, length: data - at, data: false });
        }
        if data < end {
            let hole = rustix::fs::seek(&disk.buffered, SeekFrom::Hole(data))?.clamp(data, end);
            // A hole that appeared under the walk must not stop it.
            let hole = if hole == data { end } else { hole };
            extents.push(DiskExtent { offset: data, length: hole - data, data: true });
            at = hole;
        } else {
            at = end;
        }
    }
    Ok(extents)
}

/// What an errno of a system call means to the submitter.
impl From<std::io::Error> for IoError {
    fn from(error: std::io::Error) -> Self {
        IoError { errno: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OpenMode, Token, open_disk};

    /// Goal: where the system grants no thread, each operation ends once with that error and wakes
    /// its shard; with one thread all is done by it. Method: a system that refuses from the first
    /// thread on, then one that refuses from the second one on.
    #[test]
    fn without_a_thread_operations_end_with_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mode = OpenMode { create_length: Some(1 << 20), ..OpenMode::default() };
        let disk = open_disk(&directory.path().join("disk"), mode).expect("there is room");
        let disk = Arc::new(disk);
        let waker = Waker::with_event(rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
        let refusing: Spawn = |_| Err(Errno::AGAIN.into());
        let blocking = [Blocking::new(waker.clone()), Blocking::begin(waker).expect("a thread")];
        for (mut blocking, expected) in blocking.into_iter().zip([Err(Errno::AGAIN.into()), Ok(0)])
        {
            blocking.spawn = refusing;
            let mut done = Vec::new();
            for round in 0..8 {
                let sync = IoOperation::Sync { disk: crate::io::DiskId(0) };
                blocking.start(disk.clone(), Flight::new(Token(round), sync));
            }
            while done.len() < 8 {
                blocking.reap(&mut done);
                std::thread::yield_now();
            }
            let mut tokens: Vec<u64> = done.iter().map(|done| done.token.0).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, [0, 1, 2, 3, 4, 5, 6, 7]);
            assert!(done.iter().all(|done| done.result == expected), "{done:?}");
        }
    }

    /// Goal: where a durable write fails in its sync, its end says so; where it fails by itself, it
    /// does not. Method: a file of the kernel's that takes writes and no syncs, and refuses what is
    /// no number; it is given what it holds.
    #[test]
    fn a_durable_write_says_whether_its_sync_failed() {
        const PATH: &str = "/proc/self/oom_score_adj";
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mode = OpenMode { create_length: Some(4096), ..OpenMode::default() };
        let mut disk = open_disk(&directory.path().join("disk"), mode).expect("there is room");
        let number = std::fs::read(PATH).expect("each process has one");
        let file = std::fs::File::options().write(true).open(PATH).expect("it is ours");
        disk.buffered = file.into();
        let disk = Arc::new(disk);
        let mut blocking = Blocking::begin(Waker::flag_only()).expect("a thread");
        for (bytes, durable, result, is_sync_failed) in [
            (&number[..], true, Err(Errno::OPNOTSUPP.into()), true),
            (b"none", true, Err(Errno::OPNOTSUPP.into()), false),
            (b"none", false, Err(Errno::INVAL.into()), false),
            (&number[..], false, Ok(number.len()), false),
        ] {
            let mut buffer = crate::io::Buffer::zeroed(bytes.len());
            buffer.copy_from_slice(bytes);
            let disk_id = crate::io::DiskId(0);
            let write = IoOperation::Write { disk: disk_id, offset: 0, buffer, durable };
            blocking.start(disk.clone(), Flight::new(Token(1), write));
            let mut done = Vec::new();
            while done.is_empty() {
                blocking.reap(&mut done);
                std::thread::yield_now();
            }
            assert_eq!((done[0].result, done[0].is_sync_failed), (result, is_sync_failed));
        }
    }
}
