//! Turns operations into submission entries of the ring.
//!
//! How: registered files and buffers are used where the operation has them.
//! Invariant: an entry's memory belongs to a flight that stays put until the entry has ended.
//! Cost: some stores.
//! Not for: choosing when to submit.

use crate::io::Buffer;
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use rustix::net::SendFlags;

/// Most bytes one read or write entry moves: what the kernel itself allows, in whole pages.
const MOVE_MAX: usize = 0x7fff_f000;

/// A file as the ring knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileMark {
    /// A descriptor, or an index of a registered file.
    pub(super) number: i32,
    pub(super) registered: bool,
}

impl FileMark {
    fn finish(self, entry: Entry) -> Entry {
        if self.registered { entry.flags(Flags::FIXED_FILE) } else { entry }
    }

    fn fd(self) -> types::Fd {
        types::Fd(self.number)
    }
}

pub(super) fn read(
    file: FileMark,
    offset: u64,
    bytes: &mut [u8],
    registered: Option<u16>,
) -> Entry {
    let (address, length) = (bytes.as_mut_ptr(), bytes.len().min(MOVE_MAX) as u32);
    file.finish(match registered {
        Some(index) => {
            opcode::ReadFixed::new(file.fd(), address, length, index).offset(offset).build()
        }
        None => opcode::Read::new(file.fd(), address, length).offset(offset).build(),
    })
}

pub(super) fn write(
    file: FileMark,
    offset: u64,
    bytes: &[u8],
    durable: bool,
    registered: Option<u16>,
) -> Entry {
    let (address, length) = (bytes.as_ptr(), bytes.len().min(MOVE_MAX) as u32);
    let flags = if durable { ReadWriteFlags::DSYNC.bits() as i32 } else { 0 };
    file.finish(match registered {
        Some(index) => opcode::WriteFixed::new(file.fd(), address, length, index)
            .offset(offset)
            .rw_flags(flags)
            .build(),
        None => {
            opcode::Write::new(file.fd(), address, length).offset(offset).rw_flags(flags).build()
        }
    })
}

pub(super) fn sync(file: FileMark) -> Entry {
    file.finish(opcode::Fsync::new(file.fd()).flags(types::FsyncFlags::DATASYNC).build())
}

pub(super) fn zero(file: FileMark, offset: u64, length: u64, flags: FallocateFlags) -> Entry {
    let entry = opcode::Fallocate::new(file.fd(), length).offset(offset);
    file.finish(entry.mode(flags.bits() as i32).build())
}

/// A receive is tried before the ring waits for it: waiting first (`POLL_FIRST`) measured slower
/// even where nothing had arrived yet.
pub(super) fn receive(file: FileMark, bytes: &mut [u8]) -> Entry {
    let (address, length) = (bytes.as_mut_ptr(), bytes.len().min(MOVE_MAX) as u32);
    file.finish(opcode::Recv::new(file.fd(), address, length).build())
}

pub(super) fn send(file: FileMark, bytes: &[u8]) -> Entry {
    let (address, length) = (bytes.as_ptr(), bytes.len().min(MOVE_MAX) as u32);
    let flags = SendFlags::NOSIGNAL.bits() as i32;
    file.finish(opcode::Send::new(file.fd(), address, length).flags(flags).build())
}

/// A read of the waker's eventfd.
pub(super) fn wake(file: FileMark, counter: &mut Buffer) -> Entry {
    file.finish(opcode::Read::new(file.fd(), counter.as_mut_ptr(), 8).build())
}

/// A wait until a file can be read.
pub(super) fn readable(file: FileMark) -> Entry {
    file.finish(opcode::PollAdd::new(file.fd(), PollFlags::IN.bits().into()).build())
}

/// Ends the operation that was pushed under `slot`.
pub(super) fn cancel(slot: u64) -> Entry {
    opcode::AsyncCancel::new(slot).build()
}

/// Ends everything in flight.
pub(super) fn cancel_all() -> Entry {
    opcode::AsyncCancel2::new(types::CancelBuilder::any()).build()
}
