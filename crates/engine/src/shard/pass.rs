//! How far a client may go in one turn.
//!
//! How: whoever receives, submits or sends bytes takes them from the pass first. A pass that is
//! bounded never gives more than it has; another one lets the request through that exceeds it.
//! What is written counts whole, since it is summed, copied and looked up; what is received, sent
//! or read, a quarter, since it is copied, and so do what a hint has fetched, and what block status
//! may have to answer.
//! Invariant: a bounded pass never counts more bytes than it was made for.

use crate::core::STATUS_BYTES_MAX;
use layby_types::{BlockSize, Call, Operation};

/// Bytes that are received, sent or read for the cost of one that is written.
const COPIED_PER_BYTE: u64 = 4;
/// Bytes of a block-status answer for each block: a run that the backing store names, and its place
/// in the reply.
const STATUS_BYTES_PER_BLOCK: u64 = 32;

/// See the file's header.
pub(super) struct Pass {
    limit: u64,
    /// The longest piece, where requests are cut.
    piece: Option<u64>,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// The client stopped for want of bytes, not of work.
    pub(super) has_more: bool,
}

impl Pass {
    /// For the best rank: about `limit` bytes, no request cut.
    pub(super) fn whole(limit: u64) -> Self {
        Pass { limit, piece: None, bytes: 0, requests: 0, has_more: false }
    }

    /// For the others: at most `limit` bytes, requests cut into pieces of at most `piece`.
    pub(super) fn bounded(limit: u64, piece: u64) -> Self {
        Pass { piece: Some(piece), ..Pass::whole(limit) }
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.piece.is_some()
    }

    /// Where a request is cut: at multiples of this. What was begun in pieces and goes on as the
    /// best rank's goes on in one.
    pub(super) fn piece_bytes(&self, call: &Call) -> u64 {
        let is_copied = matches!(call.operation, Operation::Read | Operation::Cache);
        let times = if is_copied { COPIED_PER_BYTE } else { 1 };
        self.piece.map_or(u64::MAX, |piece| piece * times)
    }

    /// Whether a request goes in pieces. Block status has one answer, which is not put together.
    pub(super) fn cuts(&self, call: &Call) -> bool {
        let may_be_cut = call.operation != Operation::BlockStatus;
        may_be_cut && self.piece.is_some_and(|piece| cost_of(call) > piece)
    }

    /// Whether it was used up; then it notes whether there `is_more`.
    pub(super) fn is_over(&mut self, is_more: bool) -> bool {
        let is_over = self.bytes >= self.limit;
        self.has_more |= is_over && is_more;
        is_over
    }

    /// Takes what a request costs, all or nothing; what cannot be cut costs a piece at most.
    pub(super) fn take(&mut self, call: &Call) -> bool {
        let bytes = cost_of(call).min(self.piece.unwrap_or(u64::MAX));
        let fits = !self.is_bounded() || self.bytes + bytes <= self.limit;
        if fits {
            self.bytes += bytes;
        }
        self.has_more |= !fits;
        fits
    }

    /// Takes as many bytes as there are, up to `bytes`, for what is received or sent: one copy in
    /// the kernel, where a byte that is submitted is summed, copied and looked up.
    pub(super) fn take_copied(&mut self, bytes: u64) -> u64 {
        let left = self.limit.saturating_sub(self.bytes);
        let wanted = bytes.div_ceil(COPIED_PER_BYTE);
        let count = if self.is_bounded() { wanted.min(left) } else { wanted };
        self.bytes += count;
        self.has_more |= count < wanted && self.bytes >= self.limit;
        bytes.min(count * COPIED_PER_BYTE)
    }

    /// Of bytes that were taken to be copied only so many were there; there is nothing more now.
    pub(super) fn give_back(&mut self, taken: u64, used: u64) {
        self.bytes -= taken.div_ceil(COPIED_PER_BYTE) - used.div_ceil(COPIED_PER_BYTE);
        self.has_more &= taken == used;
    }
}

/// What a request counts, whole or as a piece.
pub(super) fn cost_of(call: &Call) -> u64 {
    match call.operation {
        Operation::Write => call.length,
        _ => bytes_of(call).div_ceil(COPIED_PER_BYTE),
    }
}

/// Bytes that a request holds until it is answered: its own, what is fetched for a hint, or what
/// block status may have to answer.
pub(super) fn bytes_of(call: &Call) -> u64 {
    match call.operation {
        Operation::Read | Operation::Write | Operation::Cache => call.length,
        Operation::BlockStatus => {
            let blocks =
                call.length.min(STATUS_BYTES_MAX).div_ceil(u64::from(BlockSize::MIN.bytes()));
            blocks * STATUS_BYTES_PER_BLOCK
        }
        Operation::Flush | Operation::Trim | Operation::WriteZeroes => 0,
    }
}
