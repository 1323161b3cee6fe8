//! A power cut for a real process: what is not durable yet dies with it.
//!
//! How: writes, zeroings and mapped stores stay in an overlay in this process's memory. A Sync
//! writes the overlay through and syncs the wrapped disk; a durable write goes through by itself.
//! So a process that is killed leaves on disk what a machine would that lost its power and its
//! caches. Dropping this object is such a power cut too.
//! Invariant: a read sees the newest change wherever it lies. Per disk, writing the overlay through
//! excludes other changes of the wrapped disk, so that nothing old lands on something newer.
//! Cost: memory up to the limit per disk (beyond it the oldest changes go through), one copy per
//! write, and a full copy of every mapped disk.
//! Not for: production, where the kernel's own cache does this better.

mod mapping;
mod overlay;
#[cfg(test)]
mod tests;

use super::{
    Buffer, DiskId, EventId, Io, IoDone, IoError, IoOperation, Mapping, Peer, SocketId, Token,
};
use layby_types::Nanos;
use mapping::{Shared, VolatileMapping, lock};
use overlay::{Content, Piece, lay_over_extents};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes one disk's overlay may hold unless told otherwise.
pub const VOLATILE_BYTES_DEFAULT: u64 = 256 << 20;
/// Fewest bytes.
pub const VOLATILE_BYTES_MIN: u64 = 4096;
/// Most bytes.
pub const VOLATILE_BYTES_MAX: u64 = 16 << 30;

/// What an operation on the wrapped `Io` is for.
enum Role {
    /// Handed on as it is.
    Pass { token: Token },
    /// A read or a search for extents, to be overlaid with what was there when it began, too.
    Look { token: Token, disk: DiskId, offset: u64, length: u64, pieces: Vec<Piece> },
    /// A durable write, which the overlay shows until it has landed.
    Durable { token: Token, disk: DiskId, range: Range<u64>, age: u64 },
    /// A part of the overlay on its way.
    Through { disk: DiskId, range: Range<u64>, age: u64 },
    /// The wrapped disk's sync after all parts are through.
    Sync { token: Token, disk: DiskId },
}

/// The overlay of one disk being written through.
struct Run {
    parts: usize,
    /// The Sync that waits for it; without one, it only makes room.
    sync: Option<Token>,
    error: Option<IoError>,
}

#[derive(Default)]
struct Disk {
    shared: Arc<Mutex<Shared>>,
    /// Durable writes in flight.
    durable: usize,
    run: Option<Run>,
    /// Operations that must wait for a run or for room, in order.
    waiting: VecDeque<(Token, IoOperation)>,
}

/// Wraps an `Io` so that killing the process is a power cut.
pub struct VolatileIo<I> {
    inner: I,
    limit_bytes: u64,
    disks: Vec<Disk>,
    roles: Vec<Option<Role>>,
    roles_free: Vec<usize>,
    ready: Vec<IoDone>,
    /// A wait was ended on behalf of somebody who must still hear of it.
    woken: bool,
}

impl<I: Io> VolatileIo<I> {
    /// Wraps `inner`; each disk's overlay holds up to about `limit_bytes`.
    #[must_use]
    pub fn new(inner: I, limit_bytes: u64) -> Self {
        let limit_bytes = limit_bytes.clamp(VOLATILE_BYTES_MIN, VOLATILE_BYTES_MAX);
        VolatileIo {
            inner,
            limit_bytes,
            disks: Vec::new(),
            roles: Vec::new(),
            roles_free: Vec::new(),
            ready: Vec::new(),
            woken: false,
        }
    }

    /// The wrapped `Io`.
    pub fn inner(&self) -> &I {
        &self.inner
    }

    /// The wrapped `Io`, to attach disks and sockets to.
    pub fn inner_mut(&mut self) -> &mut I {
        &mut self.inner
    }

    /// Cuts the power: everything not durable is gone.
    #[must_use]
    pub fn into_inner(self) -> I {
        self.inner
    }

    fn disk(&mut self, disk: DiskId) -> &mut Disk {
        let index = disk.0 as usize;
        if index >= self.disks.len() {
            self.disks.resize_with(index + 1, Disk::default);
        }
        &mut self.disks[index]
    }

    fn shared(&mut self, disk: DiskId) -> MutexGuard<'_, Shared> {
        lock(&self.disk(disk).shared)
    }

    fn start(&mut self, role: Role, operation: IoOperation) {
        let slot = self.roles_free.pop().unwrap_or(self.roles.len());
        if slot == self.roles.len() {
            self.roles.push(Some(role));
        } else {
            self.roles[slot] = Some(role);
        }
        self.inner.submit(Token(slot as u64), operation);
    }

    /// Starts a read, or answers it from the overlay alone.
    fn look(&mut self, token: Token, operation: IoOperation) {
        let (disk, offset, length) = match &operation {
            IoOperation::Read { disk, offset, buffer } => (*disk, *offset, buffer.len() as u64),
            IoOperation::Extents { disk, offset, length } => (*disk, *offset, *length),
            _ => unreachable!("only reads look"),
        };
        let end = offset.saturating_add(length);
        let pieces = self.shared(disk).overlay.pieces(offset..end.max(offset));
        let covered = pieces.iter().map(|piece| piece.content.length()).sum::<u64>() == length;
        match operation {
            IoOperation::Read { mut buffer, .. } if covered && length > 0 => {
                pieces.iter().for_each(|piece| piece.lay_over(offset, &mut buffer));
                self.ready.push(IoDone::new(token, Ok(buffer.len()), Some(buffer)));
            }
            operation => {
                self.start(Role::Look { token, disk, offset, length, pieces }, operation);
            }
        }
    }

    /// Starts what waits on a disk, as far as it can.
    fn pump(&mut self, id: DiskId) {
        while self.disk(id).run.is_none()
            && let Some((token, operation)) = self.disk(id).waiting.pop_front()
        {
            if let Some(operation) = self.try_change(id, token, operation) {
                self.disk(id).waiting.push_front((token, operation));
                return;
            }
        }
    }

    /// Starts or performs a change or a sync; gives it back if it must wait.
    fn try_change(
        &mut self,
        id: DiskId,
        token: Token,
        operation: IoOperation,
    ) -> Option<IoOperation> {
        let quiet = self.disk(id).durable == 0;
        let held_bytes = self.shared(id).overlay.held_bytes();
        let full = held_bytes >= self.limit_bytes;
        match operation {
            IoOperation::Sync { .. } if quiet => self.start_run(id, u64::MAX, Some(token)),
            IoOperation::Sync { .. } => return Some(operation),
            IoOperation::Write { offset, buffer, durable: true, disk } => {
                let range = offset..offset + buffer.len() as u64;
                let age = self.shared(id).overlay.insert(offset, Content::Bytes(buffer.to_vec()));
                self.disk(id).durable += 1;
                let operation = IoOperation::Write { offset, buffer, durable: true, disk };
                self.start(Role::Durable { token, disk: id, range, age }, operation);
            }
            operation if full => {
                if quiet {
                    self.start_run(id, self.limit_bytes / 2, None);
                }
                return Some(operation);
            }
            operation => self.hold(token, operation),
        }
        None
    }

    /// Takes a change into the overlay, which is all there is to it for now.
    fn hold(&mut self, token: Token, operation: IoOperation) {
        let (id, offset, content, buffer) = match operation {
            IoOperation::Write { disk, offset, buffer, .. } => {
                (disk, offset, Content::Bytes(buffer.to_vec()), Some(buffer))
            }
            IoOperation::Zero { disk, offset, length, keep_allocated } => {
                (disk, offset, Content::Zeros { length, keep_allocated }, None)
            }
            _ => unreachable!("only changes are held"),
        };
        self.shared(id).overlay.insert(offset, content);
        let moved = buffer.as_ref().map_or(0, |buffer| buffer.len());
        self.ready.push(IoDone::new(token, Ok(moved), buffer));
    }

    /// Begins to write the oldest changes through, about `bytes` of them.
    fn start_run(&mut self, id: DiskId, bytes: u64, sync: Option<Token>) {
        let mut shared = self.shared(id);
        let pieces = shared.overlay.oldest(bytes);
        if shared.mapped.is_some() {
            shared.carry(pieces);
            drop(shared);
            self.disk(id).run = Some(Run { parts: 0, sync, error: None });
        } else {
            drop(shared);
            self.disk(id).run = Some(Run { parts: pieces.len(), sync, error: None });
            for piece in pieces {
                self.start_part(id, piece);
            }
        }
        self.advance_run(id);
    }

    fn start_part(&mut self, disk: DiskId, piece: Piece) {
        let (range, age, offset) = (piece.range(), piece.age, piece.offset);
        let operation = match piece.content {
            Content::Bytes(bytes) => {
                let mut buffer = self.inner.buffer(bytes.len());
                buffer.copy_from_slice(&bytes);
                IoOperation::Write { disk, offset, buffer, durable: false }
            }
            Content::Zeros { length, keep_allocated } => {
                IoOperation::Zero { disk, offset, length, keep_allocated }
            }
        };
        self.start(Role::Through { disk, range, age }, operation);
    }

    /// Once all parts of a run are through: syncs, or reports, or lets the next ones go.
    fn advance_run(&mut self, id: DiskId) {
        let Some(run) = &mut self.disk(id).run else { return };
        if run.parts > 0 {
            return;
        }
        match (run.sync.take(), run.error) {
            (Some(token), None) => {
                self.start(Role::Sync { token, disk: id }, IoOperation::Sync { disk: id });
            }
            (Some(token), Some(error)) => {
                self.disk(id).run = None;
                self.ready.push(IoDone::new(token, Err(error), None));
                self.pump(id);
            }
            (None, error) => {
                let disk = self.disk(id);
                disk.run = None;
                if let Some(error) = error
                    && let Some((token, operation)) = disk.waiting.pop_front()
                {
                    // No room can be made: whoever waits first for it hears why.
                    let buffer = operation.into_buffer();
                    self.ready.push(IoDone::new(token, Err(error), buffer));
                }
                self.pump(id);
            }
        }
    }

    /// Handles an end of the wrapped `Io`.
    fn on_inner(&mut self, done: IoDone) {
        let slot = done.token.0 as usize;
        let role = self.roles[slot].take().expect("a wrapped operation ends once");
        self.roles_free.push(slot);
        match role {
            Role::Pass { token } => self.ready.push(IoDone { token, ..done }),
            Role::Look { token, disk, offset, length, pieces } => {
                self.on_look(IoDone { token, ..done }, disk, offset..offset + length, pieces);
            }
            Role::Durable { token, disk, range, age } => {
                self.shared(disk).overlay.forget(range, age);
                self.disk(disk).durable -= 1;
                self.ready.push(IoDone { token, ..done });
                self.pump(disk);
            }
            Role::Through { disk, range, age } => {
                if let Some(buffer) = done.buffer {
                    self.inner.recycle(buffer);
                }
                if done.result.is_ok() {
                    self.shared(disk).overlay.forget(range, age);
                }
                let run = self.disk(disk).run.as_mut().expect("parts belong to a run");
                run.parts -= 1;
                run.error = run.error.or(done.result.err());
                self.advance_run(disk);
            }
            Role::Sync { token, disk } => {
                self.disk(disk).run = None;
                self.ready.push(IoDone { token, ..done });
                self.pump(disk);
            }
        }
    }

    fn on_look(&mut self, mut done: IoDone, id: DiskId, range: Range<u64>, mut pieces: Vec<Piece>) {
        if done.result.is_ok() {
            pieces.extend(self.shared(id).overlay.pieces(range.clone()));
            match &mut done.buffer {
                Some(buffer) => {
                    pieces.iter().for_each(|piece| piece.lay_over(range.start, buffer));
                }
                None => lay_over_extents(&mut done.extents, &pieces),
            }
        }
        self.ready.push(done);
    }

    /// Waits for the wrapped `Io`; answers whether anything came.
    fn turn(&mut self, deadline: Nanos) -> bool {
        let mut inner = Vec::new();
        self.inner.wait(deadline, &mut inner);
        let came = !inner.is_empty();
        inner.into_iter().for_each(|done| self.on_inner(done));
        came
    }
}

impl<I: Io> Io for VolatileIo<I> {
    fn now(&self) -> Nanos {
        self.inner.now()
    }

    fn buffer(&mut self, length: usize) -> Buffer {
        self.inner.buffer(length)
    }

    fn has_arrived(&mut self) -> bool {
        self.inner.has_arrived()
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.inner.recycle(buffer);
    }

    fn submit(&mut self, token: Token, operation: IoOperation) {
        let Some(id) = operation.disk() else {
            return self.start(Role::Pass { token }, operation);
        };
        if let Err(error) = operation.check(self.inner.disk_length(id)) {
            let buffer = operation.into_buffer();
            return self.ready.push(IoDone::new(token, Err(error), buffer));
        }
        match operation {
            IoOperation::Read { .. } | IoOperation::Extents { .. } => self.look(token, operation),
            // What a discard reaches is nobody's, and it may happen at once.
            IoOperation::Discard { .. } => self.start(Role::Pass { token }, operation),
            operation => {
                let mapped = self.shared(id).mapped.is_some();
                let sync = matches!(operation, IoOperation::Sync { .. });
                assert!(sync || !mapped, "a mapped disk is changed through its mapping only");
                self.disk(id).waiting.push_back((token, operation));
                self.pump(id);
            }
        }
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        self.inner.has_peer_left(socket)
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        self.inner.untaken(socket)
    }

    fn peer(&self, socket: SocketId) -> Option<Peer> {
        self.inner.peer(socket)
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        let idle = self.ready.is_empty() && !std::mem::take(&mut self.woken);
        // It may come back with nothing to show where only parts of the overlay went through;
        // looping here could swallow a waker's call.
        self.turn(if idle { deadline } else { Nanos::ZERO });
        done.append(&mut self.ready);
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        // What is volatile beyond a nearer end would have nowhere to go.
        if length < self.inner.disk_length(disk) {
            return Err(rustix::io::Errno::OPNOTSUPP.into());
        }
        self.inner.resize_disk(disk, length)
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        self.inner.disk_length(disk)
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        self.inner.disk_name(disk)
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        let (wrapped, length) = (self.inner.map(disk)?, self.inner.disk_length(disk));
        let limit_bytes = self.limit_bytes;
        let shared = &self.disk(disk).shared;
        Ok(Box::new(VolatileMapping::new(shared, wrapped, length, limit_bytes)))
    }

    /// Detaches a disk after writing its overlay through, so that whoever opens it next sees it.
    fn detach_disk(&mut self, disk: DiskId) {
        while self.disk(disk).run.is_some() || !self.disk(disk).waiting.is_empty() {
            self.woken |= !self.turn(Nanos::NEVER);
        }
        self.start_run(disk, u64::MAX, None);
        while self.disk(disk).run.is_some() {
            self.woken |= !self.turn(Nanos::NEVER);
        }
        self.inner.detach_disk(disk);
    }

    fn close_socket(&mut self, socket: SocketId) {
        self.inner.close_socket(socket);
    }

    fn close_event(&mut self, event: EventId) {
        self.inner.close_event(event);
    }
}
