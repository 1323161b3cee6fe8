//! A part's view of its wide volume's home: its stripes of one file or device, as if they lay
//! densely.
//!
//! How: a call within a stripe is the file's call at another address. A longer one is cut at the
//! edges of stripes; its pieces have tokens of their own and end as one call.
//! Invariant: each call comes out of `poll` once, when all its pieces have ended, and fails if one
//! of them did; no byte of another part's stripes is touched. A sync that fails for one part fails
//! for all of them, and leaves the durable writes in doubt that all of them have in flight.
//! Cost: two divisions per call; a copy and a buffer per piece of a call that crosses an edge.

use super::FileBacking;
use crate::io::{Buffer, Io, IoDone};
use layby_cache::schedule::Rank;
use layby_types::{Backing, BackingDone, BackingOperation, ErrorKind, Stripes};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Above what callers use as tokens of ranges: the mark of a piece.
const PIECE: u64 = 1 << 32;
/// Pieces of one call in flight at most: a long zeroing must not fill the device's queue.
const PIECES_INFLIGHT_MAX: usize = 16;

/// How many syncs of a wide volume's home have failed, as all its parts see it: they share a
/// device.
#[derive(Clone, Debug, Default)]
pub struct SharedLoss(Arc<AtomicU64>);

/// Which part of which volume a home is of.
#[derive(Clone, Debug)]
pub struct PartPlan {
    /// How the volume is dealt.
    pub stripes: Stripes,
    /// Which part this is.
    pub index: u8,
    /// Bytes of the whole volume.
    pub length: u64,
    /// Shared by all parts of the volume.
    pub loss: SharedLoss,
}

/// A call that crosses edges.
struct Joined {
    token: u64,
    operation: Whole,
    /// Pieces that were not begun: where in the part, and how long.
    left: VecDeque<(u64, u64)>,
    inflight: usize,
    /// Under which pieces are submitted, also later ones.
    rank: Rank,
    result: Result<(), ErrorKind>,
    extents: Vec<(u64, u64, bool)>,
}

/// What is asked of the whole range, whose first byte in the part is `start`.
enum Whole {
    Read { start: u64, buffer: Buffer },
    Write { start: u64, buffer: Buffer, durable: bool },
    Zero { keep_allocated: bool },
    Extents,
}

/// See the file's header.
pub struct PartHome {
    pub(super) file: FileBacking,
    pub(super) plan: PartPlan,
    /// Failed syncs, of this part and of others, that it knows of.
    failures_seen: u64,
    joined: HashMap<u64, Joined>,
    /// By a piece's number: its call, and where it lies in the part.
    pieces: HashMap<u64, (u64, u64)>,
    joined_next: u64,
    piece_next: u64,
    done: VecDeque<BackingDone<Buffer>>,
}

impl PartHome {
    /// A part of the home in `file`.
    #[must_use]
    pub fn new(file: FileBacking, plan: PartPlan) -> Self {
        PartHome {
            file,
            plan,
            failures_seen: 0,
            joined: HashMap::new(),
            pieces: HashMap::new(),
            joined_next: 0,
            piece_next: 0,
            done: VecDeque::new(),
        }
    }

    pub(super) fn submit(
        &mut self,
        io: &mut dyn Io,
        token: u64,
        operation: BackingOperation<Buffer>,
    ) {
        // So that what begins now does not count as in flight when they failed.
        self.see_failures();
        match range_of(&operation) {
            Some((at, length)) if !self.plan.stripes.is_within_one(at, length) => {
                self.join(io, token, operation, at..at + length);
            }
            _ => self.file.submit(token, self.moved(operation)),
        }
        self.file.pump(io);
    }

    /// The same at its address in the file.
    fn moved(&self, operation: BackingOperation<Buffer>) -> BackingOperation<Buffer> {
        let whole = |at| self.plan.stripes.whole(self.plan.index, at);
        match operation {
            BackingOperation::Read { offset, buffer }
            | BackingOperation::ReadAtHand { offset, buffer } => {
                BackingOperation::Read { offset: whole(offset), buffer }
            }
            BackingOperation::Write { offset, buffer, durable } => {
                BackingOperation::Write { offset: whole(offset), buffer, durable }
            }
            BackingOperation::Zero { offset, length, keep_allocated } => {
                BackingOperation::Zero { offset: whole(offset), length, keep_allocated }
            }
            BackingOperation::Extents { offset, length } => {
                BackingOperation::Extents { offset: whole(offset), length }
            }
            BackingOperation::Sync => BackingOperation::Sync,
        }
    }

    fn join(
        &mut self,
        io: &mut dyn Io,
        token: u64,
        operation: BackingOperation<Buffer>,
        range: std::ops::Range<u64>,
    ) {
        let start = range.start;
        let operation = match operation {
            BackingOperation::Read { buffer, .. } | BackingOperation::ReadAtHand { buffer, .. } => {
                Whole::Read { start, buffer }
            }
            BackingOperation::Write { buffer, durable, .. } => {
                Whole::Write { start, buffer, durable }
            }
            BackingOperation::Zero { keep_allocated, .. } => Whole::Zero { keep_allocated },
            BackingOperation::Extents { .. } => Whole::Extents,
            BackingOperation::Sync => unreachable!("a sync has no range"),
        };
        let left = self.plan.stripes.pieces(range).collect();
        let (inflight, rank, result, extents) = (0, io.rank(), Ok(()), Vec::new());
        let number = self.joined_next;
        self.joined_next += 1;
        self.joined
            .insert(number, Joined { token, operation, left, inflight, rank, result, extents });
        self.begin_pieces(io, number);
    }

    /// Begins pieces of a call as far as its bound allows.
    fn begin_pieces(&mut self, io: &mut dyn Io, number: u64) {
        let joined = self.joined.get_mut(&number).expect("it has pieces left");
        while joined.inflight < PIECES_INFLIGHT_MAX
            && let Some((at, length)) = joined.left.pop_front()
        {
            joined.inflight += 1;
            let piece = self.piece_next;
            self.piece_next = (piece + 1) % PIECE;
            let before = self.pieces.insert(piece, (number, at));
            assert!(before.is_none(), "a piece ends before its number comes again");
            let offset = self.plan.stripes.whole(self.plan.index, at);
            let operation = match &joined.operation {
                Whole::Read { .. } => {
                    BackingOperation::Read { offset, buffer: io.buffer(length as usize) }
                }
                Whole::Write { start, buffer, durable } => {
                    let from = (at - start) as usize;
                    let mut own = io.buffer(length as usize);
                    own.copy_from_slice(&buffer[from..from + length as usize]);
                    BackingOperation::Write { offset, buffer: own, durable: *durable }
                }
                Whole::Zero { keep_allocated } => {
                    BackingOperation::Zero { offset, length, keep_allocated: *keep_allocated }
                }
                Whole::Extents => BackingOperation::Extents { offset, length },
            };
            self.file.submit(PIECE | piece, operation);
        }
        let before = io.rank();
        io.set_rank(joined.rank);
        self.file.pump(io);
        io.set_rank(before);
    }

    pub(super) fn on_io(&mut self, io: &mut dyn Io, done: IoDone) {
        self.see_failures();
        let before = self.file.syncs.failed_total;
        self.file.on_io(done);
        let own = self.file.syncs.failed_total - before;
        if own > 0 {
            self.plan.loss.0.fetch_add(own, Ordering::AcqRel);
            self.failures_seen += own;
        }
        while let Some(mut done) = self.file.poll() {
            // Tokens of syncs and of whole calls are the caller's.
            if done.token >> 32 == PIECE >> 32 {
                self.on_piece(io, done);
                continue;
            }
            self.bring_back(&mut done.extents);
            self.done.push_back(done);
        }
        self.file.pump(io);
    }

    /// What the device lost when a sync of another part failed, it may have lost for any part.
    fn see_failures(&mut self) {
        let failures = self.plan.loss.0.load(Ordering::Acquire);
        if failures != self.failures_seen {
            self.failures_seen = failures;
            self.file.syncs.is_lost = true;
            self.file.doubt_writes();
        }
    }

    /// Runs by their address in the part.
    fn bring_back(&self, extents: &mut [(u64, u64, bool)]) {
        for (offset, ..) in extents {
            *offset = self.plan.stripes.below(self.plan.index, *offset);
        }
    }

    fn on_piece(&mut self, io: &mut dyn Io, mut done: BackingDone<Buffer>) {
        let (number, at) = self.pieces.remove(&(done.token % PIECE)).expect("a piece ends once");
        self.bring_back(&mut done.extents);
        let joined = self.joined.get_mut(&number).expect("a call outlives its pieces");
        joined.inflight -= 1;
        joined.result = joined.result.and(done.result);
        if joined.result.is_err() {
            joined.left.clear();
        }
        joined.extents.append(&mut done.extents);
        if let Some(own) = done.buffer {
            if let (Whole::Read { start, buffer }, Ok(())) = (&mut joined.operation, done.result) {
                let from = (at - *start) as usize;
                buffer[from..from + own.len()].copy_from_slice(&own);
            }
            io.recycle(own);
        }
        if joined.inflight > 0 || !joined.left.is_empty() {
            return self.begin_pieces(io, number);
        }
        let joined = self.joined.remove(&number).expect("it was just seen");
        let Joined { token, operation, result, mut extents, .. } = joined;
        extents.sort_unstable();
        let buffer = match operation {
            Whole::Read { buffer, .. } | Whole::Write { buffer, .. } => Some(buffer),
            Whole::Zero { .. } | Whole::Extents => None,
        };
        self.done.push_back(BackingDone { token, result, buffer, extents });
    }

    pub(super) fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        self.done.pop_front()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.file.syncs.is_lost || self.plan.loss.0.load(Ordering::Acquire) > 0
    }

    /// Whether it is the volume's last part.
    pub(super) fn is_last(&self) -> bool {
        self.plan.index + 1 == self.plan.stripes.parts()
    }

    /// The part ends here: asks for nothing of the file behind that.
    pub(super) fn end_at(&mut self, length: u64) {
        let last = length.checked_sub(1);
        self.file.length = last.map_or(0, |at| self.plan.stripes.whole(self.plan.index, at) + 1);
    }

    /// Bytes of the part that a file of so many holds.
    pub(super) fn length_in(&self, length: u64) -> u64 {
        self.plan.stripes.below(self.plan.index, length)
    }
}

/// The range of a call in the part; none for a sync.
fn range_of(operation: &BackingOperation<Buffer>) -> Option<(u64, u64)> {
    match operation {
        BackingOperation::Read { offset, buffer }
        | BackingOperation::ReadAtHand { offset, buffer }
        | BackingOperation::Write { offset, buffer, .. } => Some((*offset, buffer.len() as u64)),
        BackingOperation::Zero { offset, length, .. }
        | BackingOperation::Extents { offset, length } => Some((*offset, *length)),
        BackingOperation::Sync => None,
    }
}
