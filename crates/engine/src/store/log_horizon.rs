//! How far the log is durable, where no batch follows to say so.
//!
//! How: a batch says up to where every earlier one was durable, so that a start knows damage from a
//! torn write. Where none follows a sync for [`DELAY`], a batch without records does: it costs one
//! block, and no client waits for it.
//! Invariant: [`DELAY`] after a sync that nothing follows, a durable batch vouches for all that it
//! covered, unless the log has no room even for that.
//! Cost: a block per sync that nothing follows. Not for: a log about to stop, whose checkpoint says
//! the same.

use super::Stream;
use super::log::LogStore;
use super::log_batch::Plan;
use crate::io::Io;
use layby_cache::schedule::Rank;
use layby_types::Nanos;

/// How long a later batch may take to vouch for what a sync covered.
const DELAY: Nanos = Nanos::from_millis(500);

/// What of the log's durability is still to be written down.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    /// Batches with records became durable, and no durable batch says so.
    is_open: bool,
    at: Option<Nanos>,
    is_due: bool,
}

impl Horizon {
    /// A batch with records is known durable now.
    pub(super) fn on_durable(&mut self) {
        (self.is_open, self.at) = (true, None);
    }

    /// When a tick is wanted.
    pub(super) fn deadline(&self) -> Nanos {
        self.at.unwrap_or(Nanos::NEVER)
    }

    /// Time has passed.
    pub(super) fn on_tick(&mut self, now: Nanos) {
        if self.at.is_some_and(|at| now >= at) {
            (self.is_open, self.at, self.is_due) = (false, None, true);
        }
    }
}

/// Writes the batch that is due, unless another one is coming or there is no room.
pub(super) fn pump(log: &mut LogStore, io: &mut dyn Io) {
    if log.horizon.is_open && log.horizon.at.is_none() {
        log.horizon.at = Some(io.now() + DELAY);
    }
    if !core::mem::take(&mut log.horizon.is_due) {
        return;
    }
    // A clean checkpoint is the last thing written.
    if log.sync.lost || super::log_checkpoint::closing(log) {
        return;
    }
    // What is written next vouches; what is in flight may have begun before the sync had ended.
    let is_quiet = log.streams.iter().all(|it| it.queue.is_empty() && it.flight.is_none());
    if !is_quiet {
        log.horizon.is_open = true;
        return;
    }
    let size = log.geometry.segment_blocks;
    let has_room = |stream: &Stream| {
        log.streams[*stream as usize].open.is_some_and(|(_, fill)| fill > 0 && fill < size)
    };
    let open = Stream::ALL.into_iter().find(has_room);
    let can_open = log.free_segments.len() > log.free_kept() + 1;
    let stream = open.or_else(|| {
        let opens = can_open.then(|| log.room(Stream::Write, false, false)).flatten();
        opens.map(|_| Stream::Write)
    });
    if let Some(stream) = stream {
        let plan = Plan { forgets: 0, records: 0, blocks: 0, rank: Rank::BACKGROUND };
        log.launch(io, stream, plan);
    }
}
