//! Hints of how long writes live, on their way through the ring.
//!
//! How: a write names its device's stream where there are streams. Else its disk is noted, and told
//! the life when the ring is handed over, so that what one hand-over brings a disk has one life: a
//! write of another one has the ring handed over first.
//! Invariant: a write is submitted while its disk's inode has its life, as far as this thread can
//! know: a write that the kernel defers to a thread of its own (the first one to room of a file
//! that was only reserved, say) takes what the inode has then; so do two shards' writes to one file
//! when they are submitted at the same moment. That is why it is a hint.
//! Cost: where a turn writes several lives to one disk, a hand-over and a call for each; in a log a
//! turn seldom does, since each of its streams has one write in flight.
//! Not for: buffered writes; the kernel writes them back when it likes.

use super::stream::with_stream;
use super::{Entered, RingIo};
use crate::io::{DiskId, IoError, IoOperation, WriteHints, WriteLife};
use io_uring::squeue::Entry;
use layby_types::Nanos;
use rustix::io::Errno;

/// Of one ring.
#[derive(Default)]
pub(super) struct Lives {
    /// Of what is submitted now.
    pub(super) now: Option<WriteLife>,
    /// Disks with hinted writes in the queue, and what these have in common.
    queued: Vec<(DiskId, WriteLife)>,
    /// A device that has refused streams, until somebody asks.
    pub(super) refusal: Option<(DiskId, IoError)>,
}

/// The entry with its stream, if it has one.
pub(super) fn named(entry: Entry, stream: Option<u8>) -> Entry {
    match stream {
        None => entry,
        Some(stream) => with_stream(entry, stream),
    }
}

impl RingIo {
    /// Hands over what is queued, and waits for an end for at most `span`.
    pub(super) fn enter(&mut self, span: Nanos) -> Entered {
        for (disk, life) in self.lives.queued.drain(..) {
            if let Some(disk) = &self.disks[disk.0 as usize] {
                disk.files.hints.tell(&disk.files.buffered, life);
            }
        }
        let entered = self.kernel.enter(span);
        // The kernel may have taken a part of them.
        self.disk_entries = self.kernel.queued();
        entered
    }

    /// Queues an entry; what names a life is queued next after `stream_for`.
    pub(super) fn push(&mut self, slot: u64, entry: Entry) {
        let entry = entry.user_data(slot);
        while !self.kernel.try_push(&entry) {
            self.enter(Nanos::ZERO);
            self.kernel.make_room();
        }
    }

    /// Sees to it that a flight's next entry goes with its life; answers with the stream to name.
    pub(super) fn stream_for(&mut self, slot: u32) -> Option<u8> {
        let flight = self.flights.get_mut(slot);
        flight.is_streamed = false;
        let (Some(life), IoOperation::Write { disk: id, offset, buffer, .. }) =
            (flight.life, &flight.operation)
        else {
            return None;
        };
        let (id, at) = (*id, *offset + flight.moved as u64);
        let length = buffer.len() - flight.moved;
        let disk = self.disks[id.0 as usize].as_ref().expect("the disk is attached");
        if flight.retreats > 0 || !disk.files.takes_direct(at, length) {
            return None;
        }
        let hints = &disk.files.hints;
        match hints.way(true) {
            WriteHints::None => return None,
            WriteHints::Streams(count) => {
                hints.count_write();
                flight.is_streamed = true;
                return Some(life.stream(count));
            }
            WriteHints::Lives => hints.count_write(),
        }
        self.queue_life(id, life);
        None
    }

    fn queue_life(&mut self, id: DiskId, life: WriteLife) {
        let is_other = |(disk, queued): &(DiskId, WriteLife)| *disk == id && *queued != life;
        if self.kernel.is_full() || self.lives.queued.iter().any(is_other) {
            self.enter(Nanos::ZERO);
        }
        if !self.lives.queued.contains(&(id, life)) {
            self.lives.queued.push((id, life));
        }
    }

    /// Whether a write failed since its device does not know the stream: then it goes again, like
    /// all that follow, without. What it is refused with is what the kernel says of a number beyond
    /// the device's, or a driver of a field that a device rejects.
    pub(super) fn is_stream_refused(&mut self, slot: u32, errno: Errno) -> bool {
        let flight = self.flights.get_mut(slot);
        if !flight.is_streamed || !matches!(errno, Errno::INVAL | Errno::OPNOTSUPP) {
            return false;
        }
        let id = flight.operation.disk().expect("a write is to a disk");
        // A disk that is gone by now has nothing left to say.
        if let Some(disk) = &self.disks[id.0 as usize]
            && disk.files.hints.refuse_streams(errno)
        {
            self.lives.refusal = Some((id, errno.into()));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IoDone, Token};
    use super::*;
    use crate::io::life::hint_of;
    use crate::io::{Io, OpenMode, open_disk};

    const PAGE: usize = 4096;

    struct Bench {
        io: RingIo,
        disk: DiskId,
        done: Vec<IoDone>,
        _directory: tempfile::TempDir,
    }

    /// A ring with a file that takes direct writes; `None` where there is no such thing.
    fn bench(is_shared: bool) -> Option<Bench> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mode = OpenMode {
            direct: true,
            create_length: Some(64 * PAGE as u64),
            hints: true,
            ..OpenMode::default()
        };
        let path = directory.path().join("disk");
        drop(open_disk(&path, mode).expect("a file"));
        let opened = open_disk(&path, OpenMode { is_shared, ..mode }).expect("the file");
        let is_direct = opened.is_direct();
        let mut io = RingIo::new(1 << 20).ok().filter(|_| is_direct)?;
        let disk = io.attach_disk(opened);
        Some(Bench { io, disk, done: Vec::new(), _directory: directory })
    }

    impl Bench {
        fn write(&mut self, page: u64, life: Option<WriteLife>) {
            let mut buffer = self.io.buffer(PAGE);
            buffer.fill(page as u8 + 1);
            let (disk, offset) = (self.disk, page * PAGE as u64);
            self.io.set_life(life);
            let write = IoOperation::Write { disk, offset, buffer, durable: false };
            self.io.submit(Token(page), write);
            self.io.set_life(None);
        }

        fn hint(&self) -> u64 {
            let files = &self.io.disk(self.disk).files;
            hint_of(&files.buffered).expect("this kernel knows hints")
        }

        fn settle(&mut self, count: usize) {
            while self.done.len() < count {
                self.io.wait(Nanos::NEVER, &mut self.done);
            }
            assert!(self.done.iter().all(|done| done.result == Ok(PAGE)), "{:?}", self.done);
        }

        /// The page holds what was written.
        fn assert_page(&mut self, page: u64) {
            let (disk, buffer) = (self.disk, self.io.buffer(PAGE));
            let read = IoOperation::Read { disk, offset: page * PAGE as u64, buffer };
            let done = crate::io::run_alone(&mut self.io, read).expect("a read");
            let bytes = done.buffer.expect("a read's buffer");
            assert!(bytes.iter().all(|byte| *byte == page as u8 + 1), "page {page}");
        }
    }

    /// Goal: what is handed over together has one life, which the kernel has been told before, once
    /// for as long as it stays the same; what has no life leaves it as it is. Method: writes of two
    /// lives in one turn, and none; asks the kernel after each step, and counts calls.
    #[test]
    fn a_hand_over_has_one_life() {
        let Some(mut bench) = bench(false) else { return };
        bench.write(0, Some(WriteLife::Short));
        bench.write(1, Some(WriteLife::Short));
        assert_eq!((bench.hint(), bench.io.kernel.queued()), (0, 2), "nothing was submitted");
        bench.write(2, Some(WriteLife::Extreme));
        assert_eq!(bench.hint(), WriteLife::Short as u64, "the first two are on their way");
        assert_eq!(bench.io.kernel.queued(), 1, "the third is not");
        bench.settle(3);
        assert_eq!(bench.hint(), WriteLife::Extreme as u64);
        bench.write(3, Some(WriteLife::Extreme));
        bench.write(4, None);
        bench.settle(5);
        let state = bench.io.hint_state(bench.disk);
        assert_eq!((state.way, state.changes, state.writes), (WriteHints::Lives, 2, 4));
        (0..5).for_each(|page| bench.assert_page(page));
    }

    /// Goal: where several shards share an inode, each hand-over says its life anew. Method:
    /// another descriptor sets another hint in between.
    #[test]
    fn a_shared_inode_is_told_again() {
        let Some(mut bench) = bench(true) else { return };
        for page in 0..3 {
            bench.write(page, Some(WriteLife::Medium));
            bench.settle(page as usize + 1);
            assert_eq!(bench.hint(), WriteLife::Medium as u64);
            let files = &bench.io.disk(bench.disk).files;
            crate::io::life::set(&files.buffered, WriteLife::Long as u8).expect("our file");
        }
        assert_eq!(bench.io.hint_state(bench.disk).changes, 3);
    }

    /// Goal: a stream that the device refuses costs nothing but the attempt: each write in flight
    /// goes again without, whole, and the refusal is news once. Method: a file that is said to
    /// offer streams, for whose writes the test answers as the kernel would; and one refusal that
    /// has nothing to do with streams, which goes the old way.
    #[test]
    fn a_refused_stream_is_written_without() {
        for errno in [Errno::INVAL, Errno::OPNOTSUPP] {
            let Some(mut bench) = bench(false) else { return };
            bench.io.disk(bench.disk).files.hints.pretend_streams(2);
            for page in 0..3 {
                bench.write(page, Some(WriteLife::Long));
            }
            assert!((0..3).all(|slot| bench.io.flights.get_mut(slot).is_streamed));
            for slot in 0..2 {
                assert!(bench.io.is_stream_refused(slot, errno));
                assert_eq!(bench.io.stream_for(slot), None);
                assert!(!bench.io.is_stream_refused(slot, errno), "it named none this time");
            }
            assert_eq!(bench.io.take_refusal(), Some((bench.disk, errno.into())));
            assert_eq!(bench.io.take_refusal(), None);
            assert_eq!(bench.io.hint_state(bench.disk).way, WriteHints::Lives);
            // Here they are all the same: a file ignores streams.
            bench.settle(3);
            (0..3).for_each(|page| bench.assert_page(page));
        }
    }
}
