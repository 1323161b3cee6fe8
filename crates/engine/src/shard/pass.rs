//! How far a client may go in one turn.
//!
//! How: whoever receives, submits or sends bytes takes them from the pass first. A pass that is
//! bounded never gives more than it has; another one lets the request through that exceeds it.
//! Invariant: a bounded pass never counts more bytes than it was made for.

/// Bytes that are sent for the cost of one that is submitted.
const SENT_PER_BYTE: u64 = 4;

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

    /// Where requests are cut: at multiples of this. What was begun in pieces and goes on as the
    /// best rank's goes on in one.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.piece.unwrap_or(u64::MAX)
    }

    /// Whether a request of so many bytes goes in pieces.
    pub(super) fn cuts(&self, bytes: u64) -> bool {
        self.piece.is_some_and(|piece| bytes > piece)
    }

    /// Whether it was used up; then it notes whether there `is_more`.
    pub(super) fn is_over(&mut self, is_more: bool) -> bool {
        let is_over = self.bytes >= self.limit;
        self.has_more |= is_over && is_more;
        is_over
    }

    /// Takes bytes, all or none.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let fits = !self.is_bounded() || self.bytes + bytes <= self.limit;
        if fits {
            self.bytes += bytes;
        }
        self.has_more |= !fits;
        fits
    }

    /// Takes as many bytes as there are, up to `bytes`.
    pub(super) fn take_up_to(&mut self, bytes: u64) -> u64 {
        let left = self.limit.saturating_sub(self.bytes);
        let count = if self.is_bounded() { bytes.min(left) } else { bytes };
        self.bytes += count;
        self.has_more |= count < bytes && self.bytes >= self.limit;
        count
    }

    /// The same for bytes that are sent: one copy in the kernel, where a byte that is submitted is
    /// received, summed, copied and looked up.
    pub(super) fn take_to_send(&mut self, bytes: u64) -> u64 {
        let count = self.take_up_to(bytes.div_ceil(SENT_PER_BYTE));
        bytes.min(count * SENT_PER_BYTE)
    }

    /// Bytes that were taken and not used; there is nothing more for now.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.has_more &= bytes == 0;
    }
}
