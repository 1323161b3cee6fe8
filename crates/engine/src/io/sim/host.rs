//! A simulated machine that a node and its test hold at the same time.
//!
//! How: clones share one [`SimIo`]; the node drives it through its turns, the test reaches in
//! between them to feed sockets and to plan faults, and keeps it when the node is gone.
//! Invariant: only one side is inside at a time, since both run on one thread.
//! Cost: a borrow flag per call. Not for: several threads.

use super::SimIo;
use crate::io::{
    Buffer, DiskId, EventId, Host, Io, IoDone, IoError, IoOperation, Mapping, OpenError, OpenMode,
    Opened, SocketId, Token, Waker, WriteLife,
};
use layby_types::{ErrorKind, Nanos};
use rustix::io::Errno;
use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

/// See the file's header.
#[derive(Clone)]
pub struct SimHost {
    io: Rc<RefCell<SimIo>>,
    names: Rc<[String]>,
    locks: Rc<RefCell<Locks>>,
}

/// Disks that are locked by other processes, and what was tried of them.
#[derive(Default)]
struct Locks {
    /// By name: whether the process is gone.
    locked: HashMap<String, bool>,
    /// Each attempt, and whether it would have waited for a process that is gone.
    attempts: Vec<(String, bool)>,
}

impl SimHost {
    /// Shares a machine whose disks are all there.
    #[must_use]
    pub fn new(io: SimIo) -> Self {
        let names = io.names.clone().into();
        SimHost { io: Rc::new(RefCell::new(io)), names, locks: Rc::default() }
    }

    /// From now on a disk is locked by a process that is gone, by one that goes on, or by none.
    pub fn set_lock(&self, name: &str, is_gone: Option<bool>) {
        let locked = &mut self.locks.borrow_mut().locked;
        match is_gone {
            Some(is_gone) => locked.insert(name.to_owned(), is_gone),
            None => locked.remove(name),
        };
    }

    /// Attempts to open disks since the last call, and whether each would have waited for a process
    /// that is gone.
    #[must_use]
    pub fn take_attempts(&self) -> Vec<(String, bool)> {
        std::mem::take(&mut self.locks.borrow_mut().attempts)
    }

    /// The machine, for the test's side; not to be held while the node takes a turn.
    #[must_use]
    pub fn machine(&self) -> RefMut<'_, SimIo> {
        self.io.borrow_mut()
    }
}

impl Io for SimHost {
    fn now(&self) -> Nanos {
        self.io.borrow().now()
    }

    fn buffer(&mut self, length: usize) -> Buffer {
        self.machine().buffer(length)
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        self.machine().set_life(life);
    }

    fn has_arrived(&mut self) -> bool {
        self.machine().has_arrived()
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.machine().recycle(buffer);
    }

    fn submit(&mut self, token: Token, operation: IoOperation) {
        self.machine().submit(token, operation);
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        self.machine().has_peer_left(socket)
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        self.io.borrow().untaken(socket)
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        self.machine().wait(deadline, done);
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        self.machine().resize_disk(disk, length)
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        self.io.borrow().disk_length(disk)
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        &self.names[disk.0 as usize]
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        self.machine().map(disk)
    }

    fn detach_disk(&mut self, disk: DiskId) {
        self.machine().detach_disk(disk);
    }

    fn close_socket(&mut self, socket: SocketId) {
        self.machine().close_socket(socket);
    }

    fn close_event(&mut self, event: EventId) {
        self.machine().close_event(event);
    }
}

impl Host for SimHost {
    fn waker(&self) -> Waker {
        self.io.borrow().waker()
    }

    fn open_disk(&mut self, path: &Path, mode: OpenMode) -> Result<Opened, OpenError> {
        let name = path.to_string_lossy().into_owned();
        let mut locks = self.locks.borrow_mut();
        locks.attempts.push((name.clone(), mode.waits_for_gone));
        if let Some(is_gone) = locks.locked.get(&name).copied() {
            let (kind, errno) = (ErrorKind::Retry, Errno::AGAIN.raw_os_error());
            return Err(OpenError { kind, path: path.to_owned(), step: "lock", errno, is_gone });
        }
        drop(locks);
        let disk = self.machine().attach_disk(&path.to_string_lossy());
        let (path, step) = (path.to_owned(), "find");
        let errno = Errno::NOENT.raw_os_error();
        let missing = OpenError { kind: ErrorKind::Invalid, path, step, errno, is_gone: false };
        let (is_direct, is_protected) = (true, false);
        let opened = |disk: DiskId| Opened { disk, is_direct, device: disk.0.into(), is_protected };
        disk.map(opened).ok_or(missing)
    }

    fn attach_socket(&mut self, _: OwnedFd) -> Result<SocketId, IoError> {
        // Simulated sockets have no descriptors: see `SimIo::add_socket`.
        Err(Errno::NOTSOCK.into())
    }

    fn attach_event(&mut self, _: OwnedFd) -> Result<EventId, IoError> {
        Ok(self.machine().add_event())
    }
}
