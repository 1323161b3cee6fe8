//! A file or block device as a volume's home.
//!
//! How: calls become operations of the shard's [`Io`] under tokens that name the home; their ends
//! are handed back in with [`FileBacking::on_io`] and come out of `poll`.
//! Invariant: each submitted call comes out of `poll` exactly once.
//! Cost: one queue entry per call.
//! Not for: object stores, which bring their own way to the network (see the cloud room).

use crate::io::{Buffer, DiskId, Io, IoDone, IoError, IoOperation, Token};
use layby_types::{Backing, BackingDone, BackingOperation, ErrorKind};
use std::collections::VecDeque;

/// See the file's header.
pub struct FileBacking {
    /// The disk behind it.
    pub disk: DiskId,
    name: String,
    tag: u64,
    queue: VecDeque<(Token, IoOperation)>,
    done: VecDeque<BackingDone<Buffer>>,
    /// Syncs in flight, by the caller's token.
    syncs: Vec<u64>,
    /// A sync failed: the device may have dropped what it covered, so that no later one can vouch
    /// for it. All syncs fail until the home is opened again; what is not durable here stays dirty
    /// in the levels' records.
    is_lost: bool,
}

/// Bits of a token that the caller of a home may use.
pub const TOKEN_BITS: u32 = 36;

impl FileBacking {
    /// A home on an attached disk; `tag` goes above [`TOKEN_BITS`] of every token.
    #[must_use]
    pub fn new(disk: DiskId, name: String, tag: u64) -> Self {
        let (queue, done) = (VecDeque::new(), VecDeque::new());
        FileBacking { disk, name, tag, queue, done, syncs: Vec::new(), is_lost: false }
    }

    /// Hands queued operations to the kernel.
    pub fn pump(&mut self, io: &mut dyn Io) {
        for (token, operation) in self.queue.drain(..) {
            io.submit(token, operation);
        }
    }

    /// Whether a sync has failed, so that none is trusted until the home is opened again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Takes the end of an operation of this home.
    pub fn on_io(&mut self, done: IoDone) {
        let token = done.token.0 & ((1 << TOKEN_BITS) - 1);
        let mut result = done.result.map(drop).map_err(kind_of);
        if let Some(index) = self.syncs.iter().position(|sync| *sync == token) {
            self.syncs.swap_remove(index);
            if self.is_lost {
                result = Err(ErrorKind::Closed);
            }
            self.is_lost |= result.is_err();
        }
        self.done.push_back(BackingDone {
            token,
            result,
            buffer: done.buffer,
            extents: done.extents.iter().map(|e| (e.offset, e.length, e.data)).collect(),
        });
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
        Errno::PERM | Errno::ACCESS | Errno::ROFS => ErrorKind::Denied,
        Errno::IO | Errno::ILSEQ | Errno::BADMSG => ErrorKind::Corrupt,
        _ => ErrorKind::Retry,
    }
}

impl Backing<Buffer> for FileBacking {
    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        assert!(token < 1 << TOKEN_BITS, "the tag lies above the caller's bits");
        let disk = self.disk;
        let operation = match operation {
            BackingOperation::Read { offset, buffer } => IoOperation::Read { disk, offset, buffer },
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
                self.syncs.push(token);
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
