//! Notes what clients ask for, so that it can be replayed as a trace.
//!
//! How: a bounded list of requests per shard; whoever records takes it away again and again. When
//! the list is full, requests are counted as dropped, and served as ever.
//! Invariant: times within a list never go back. Every request is either in a list or dropped.
//! Cost: a branch per request while nobody records; else a store of 40 bytes.
//! Not for: files; the shard knows none of them.

use super::Core;
use crate::control::{RecordedBatch, RecordedCount, RecordedRequest};
use layby_types::{Call, Nanos, Operation, VolumeId};

/// Requests that a shard holds for a recorder: 10 MiB, two seconds at 130 thousand a second.
const REQUESTS_MAX: usize = 1 << 18;

/// A recording under way.
pub(super) struct Recorder {
    /// Sorted; empty for all.
    volumes: Vec<VolumeId>,
    requests: Vec<RecordedRequest>,
    dropped: u64,
    /// The shard's zero, by the system's monotonic clock.
    clock: Nanos,
}

impl Recorder {
    fn note(&mut self, at: Nanos, volume: VolumeId, call: &Call) {
        let operation = match call.operation {
            Operation::WriteZeroes => Operation::Trim,
            Operation::Cache | Operation::BlockStatus => return,
            other => other,
        };
        let is_flush = operation == Operation::Flush;
        let wanted = self.volumes.is_empty() || self.volumes.binary_search(&volume).is_ok();
        if !wanted || (call.length == 0 && !is_flush) {
            return;
        }
        if self.requests.len() == REQUESTS_MAX {
            self.dropped += 1;
            return;
        }
        let (offset, length) = if is_flush { (0, 0) } else { (call.offset, call.length) };
        self.requests.push(RecordedRequest { at, volume, operation, offset, length });
    }
}

impl Core {
    /// Notes a client's request if somebody records.
    pub(crate) fn note_request(&mut self, volume: VolumeId, call: &Call) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(self.now, volume, call);
        }
    }

    /// Records from now on the requests to `volumes`, or all where none is named; what an earlier
    /// recording left is dropped.
    /// `clock` is the core's zero by a clock that all shards share.
    pub(crate) fn start_recording(&mut self, mut volumes: Vec<VolumeId>, clock: Nanos) {
        volumes.sort_unstable();
        self.recorder = Some(Recorder { volumes, requests: Vec::new(), dropped: 0, clock });
    }

    /// Takes what was recorded since the last call; with `end` nothing more is recorded. Empty when
    /// nobody records.
    pub(crate) fn take_recorded(&mut self, end: bool) -> RecordedBatch {
        let until = self.now;
        let Some(recorder) = &mut self.recorder else {
            return RecordedBatch { until, ..RecordedBatch::default() };
        };
        let next = Vec::with_capacity(recorder.requests.len());
        let requests = std::mem::replace(&mut recorder.requests, next);
        let (dropped, clock) = (recorder.dropped, recorder.clock);
        if end {
            self.recorder = None;
        }
        RecordedBatch { requests, until, clock, dropped }
    }

    /// What waits to be taken, and what was dropped; nothing when nobody records.
    pub(crate) fn count_recorded(&self) -> RecordedCount {
        self.recorder.as_ref().map_or_else(RecordedCount::default, |recorder| RecordedCount {
            waiting: recorder.requests.len() as u64,
            dropped: recorder.dropped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::CallFlags;

    fn call(operation: Operation, length: u64) -> Call {
        Call { cookie: 0, operation, offset: 4096, length, flags: CallFlags::default() }
    }

    /// Goal: a recording holds what was asked for, in the words of a trace, and no more than its
    /// bound. Method: a request of each kind, two volumes, one request too many.
    #[test]
    fn a_recorder_is_bounded() {
        let (volumes, clock) = (vec![VolumeId(1)], Nanos::ZERO);
        let mut recorder = Recorder { volumes, requests: Vec::new(), dropped: 0, clock };
        for (operation, length) in [
            (Operation::Read, 512),
            (Operation::WriteZeroes, 4096),
            (Operation::Flush, 0),
            (Operation::Write, 0),
            (Operation::Cache, 4096),
            (Operation::BlockStatus, 4096),
        ] {
            recorder.note(Nanos(7), VolumeId(1), &call(operation, length));
            recorder.note(Nanos(7), VolumeId(2), &call(operation, length));
        }
        let kept: Vec<_> =
            recorder.requests.iter().map(|r| (r.operation, r.offset, r.length)).collect();
        let expected =
            [(Operation::Read, 4096, 512), (Operation::Trim, 4096, 4096), (Operation::Flush, 0, 0)];
        assert_eq!(kept, expected);
        for _ in 0..REQUESTS_MAX {
            recorder.note(Nanos(8), VolumeId(1), &call(Operation::Read, 512));
        }
        assert_eq!((recorder.requests.len(), recorder.dropped), (REQUESTS_MAX, 3));
    }
}
