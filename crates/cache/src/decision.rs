//! Decisions as text, and the clockwork around them that engine and simulator share.
//!
//! How: each action is one line of words and numbers, so that the logs of two hosts can be compared
//! byte for byte. [`TickTimer`] says when a tick is due: a host notes the cache's deadline whenever
//! its time is about to move, and the earliest that was noted stays until it has come.
//! Invariant: two hosts that give the same calls, times and ends write the same lines; the line of
//! an action never depends on anything but the action.
//! Cost: nothing without a log; the timer asks for one deadline per move of time.
//! Not for: people who look for a fault of a device; see [`crate::Event`].

use crate::action::{Action, Cause, CopyVerified, DestageFault, Event, OpId, Part, Redo, Source};
use crate::cache::Cache;
use crate::spec::CacheSpec;
use core::fmt;
use layby_types::{BlockKey, ErrorKind, Nanos};

/// Receives every decision of a cache, in the order in which it was taken.
pub trait DecisionLog {
    /// At `at` the cache asked for `action`.
    fn on_action(&mut self, at: Nanos, action: &Action);
}

/// When the next [`Cache::on_tick`] is due.
///
/// A deadline that was set stays, however often the cache is asked: one that is always a little
/// ahead of now would never come.
#[derive(Clone, Copy, Debug)]
pub struct TickTimer {
    at: Nanos,
}

impl TickTimer {
    /// A timer without a deadline.
    pub const IDLE: TickTimer = TickTimer { at: Nanos::NEVER };

    /// Notes the deadline of `cache` as of `now`; call it before time moves on from `now`.
    pub fn note(&mut self, cache: &Cache, now: Nanos) {
        let later = now.saturating_add(Nanos(1));
        self.at = self.at.min(cache.next_deadline(now).max(later));
    }

    /// When the tick is due, as far as it was noted.
    #[must_use]
    pub fn at(&self) -> Nanos {
        self.at
    }

    /// Whether the tick is due at `now`; if so the caller ticks, and the timer begins anew.
    pub fn take_due(&mut self, now: Nanos) -> bool {
        let is_due = self.at <= now;
        if is_due {
            self.at = Nanos::NEVER;
        }
        is_due
    }
}

impl Action {
    /// The operation to which this action owes an end ([`Cache::on_done`]), unless immediate.
    #[must_use]
    pub fn awaits(&self, spec: &CacheSpec) -> Option<OpId> {
        match self {
            Action::WriteLevel { op, level, cause, .. } => {
                let is_told = spec.levels[usize::from(level.0)].kind.is_persistent();
                (is_told && *cause != Cause::Borrow).then_some(*op)
            }
            Action::ReadLevel { op, .. }
            | Action::ReadBacking { op, .. }
            | Action::WriteBacking { op, .. }
            | Action::ZeroBacking { op, .. }
            | Action::SyncBacking { op, .. }
            | Action::SyncLevel { op, .. }
            | Action::Tombstone { op, .. } => Some(*op),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::WriteLevel { .. }
            | Action::WriteBacking { .. }
            | Action::ZeroBacking { .. }
            | Action::Tombstone { .. } => show_change(self, f),
            Action::Free { .. }
            | Action::CleaningKept { .. }
            | Action::Forget { .. }
            | Action::SetClean { .. }
            | Action::SetDirty { .. }
            | Action::CopyLevel { .. }
            | Action::Report(_) => show_table(self, f),
            _ => show_read_or_end(self, f),
        }
    }
}

fn show_read_or_end(action: &Action, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match action {
        Action::Copy { request, level, slot, part } => {
            let (request, level, slot) = (request.0, level.0, slot.0);
            write!(f, "copy request {request} level {level} slot {slot} {}", Bytes(*part))
        }
        Action::CopyVerified(CopyVerified { request, key, level, slot, part }) => {
            write!(f, "copy-verified request {} {}", request.0, Block(*key))?;
            write!(f, " level {} slot {} {}", level.0, slot.0, Bytes(*part))
        }
        Action::Deliver { op, index, request, part } => {
            let (op, request) = (op.0, request.0);
            write!(f, "deliver op {op} block {index} request {request} {}", Bytes(*part))
        }
        Action::Complete { request, result } => {
            write!(f, "complete request {} {}", request.0, How(*result))
        }
        Action::ReadLevel { op, level, slots } => {
            write!(f, "read-level op {} level {} slots", op.0, level.0)?;
            slots.iter().try_for_each(|slot| write!(f, " {}", slot.0))
        }
        Action::ReadBacking { op, volume, first, count, at_hand } => {
            let only = if *at_hand { " at-hand" } else { "" };
            write!(f, "read-home op {} volume {} blocks {}+{count}{only}", op.0, volume.0, first.0)
        }
        Action::Blank { op } => write!(f, "blank op {}", op.0),
        Action::Merge { op, request, part, zero } => {
            let what = if *zero { " zeros" } else { "" };
            write!(f, "merge op {} request {} {}{what}", op.0, request.0, Bytes(*part))
        }
        Action::SyncBacking { op, volume } => {
            write!(f, "sync-home op {} volume {}", op.0, volume.0)
        }
        Action::SyncLevel { op, level } => write!(f, "sync-level op {} level {}", op.0, level.0),
        Action::Release { op } => write!(f, "release op {}", op.0),
        Action::Drained { ticket, result } => write!(f, "drained {ticket} {}", How(*result)),
        _ => unreachable!("the caller knows the other actions"),
    }
}

fn show_change(action: &Action, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match action {
        Action::WriteLevel { op, level, entries, source, dirty, durable, cause } => {
            write!(
                f,
                "write-level op {} level {} {} {}",
                op.0,
                level.0,
                why(*cause),
                From(*source)
            )?;
            write!(f, "{}{}", mark(*dirty, " dirty"), mark(*durable, " durable"))?;
            entries.iter().try_for_each(|(slot, key)| write!(f, " {}={}", slot.0, Block(*key)))
        }
        Action::WriteBacking { op, volume, first, count, source, durable } => {
            write!(f, "write-home op {} volume {} blocks {}+{count}", op.0, volume.0, first.0)?;
            write!(f, " {}{}", From(*source), mark(*durable, " durable"))
        }
        Action::ZeroBacking { op, volume, first, count, keep_allocated } => {
            write!(f, "zero-home op {} volume {} blocks {}+{count}", op.0, volume.0, first.0)?;
            f.write_str(mark(*keep_allocated, " allocated"))
        }
        Action::Tombstone { op, level, volume, first, count, redo, durable } => {
            let redo = match redo {
                Redo::Nothing => "",
                Redo::Zero => " zero",
                Redo::ZeroKeepAllocated => " zero allocated",
            };
            write!(f, "tombstone op {} level {} volume {}", op.0, level.0, volume.0)?;
            write!(f, " blocks {}+{count}{redo}{}", first.0, mark(*durable, " durable"))
        }
        _ => unreachable!("the caller knows the other actions"),
    }
}

fn show_table(action: &Action, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match action {
        Action::CopyLevel { from, to } => {
            let [from, to] = [from, to].map(|(level, slot)| (level.0, slot.0));
            write!(f, "copy-level {} slot {} to {} slot {}", from.0, from.1, to.0, to.1)
        }
        Action::Free { level, slot, superseded } => {
            write!(f, "free level {} slot {}{}", level.0, slot.0, mark(*superseded, " superseded"))
        }
        Action::CleaningKept { level, slot } => {
            write!(f, "cleaning-kept level {} slot {}", level.0, slot.0)
        }
        Action::Forget { level, key } => write!(f, "forget level {} {}", level.0, Block(*key)),
        Action::SetClean { level, slot } => write!(f, "clean level {} slot {}", level.0, slot.0),
        Action::SetDirty { level, slot } => write!(f, "dirty level {} slot {}", level.0, slot.0),
        Action::Report(event) => show_event(event, f),
        _ => unreachable!("the caller knows the other actions"),
    }
}

fn show_event(event: &Event, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        Event::CorruptCleanDropped { key, level } => {
            write!(f, "report corrupt-dropped {} level {}", Block(*key), level.0)
        }
        Event::CorruptDirtyKept { key, level } => {
            write!(f, "report corrupt-kept {} level {}", Block(*key), level.0)
        }
        Event::DestageFailed { volume, fault: DestageFault { level: None, kind } } => {
            write!(f, "report destage-failed volume {} {}", volume.0, name(*kind))
        }
        Event::DestageFailed { volume, fault: DestageFault { level: Some(level), kind } } => {
            let (volume, level, kind) = (volume.0, level.0, name(*kind));
            write!(f, "report destage-failed volume {volume} level {level} {kind}")
        }
        Event::DestageRecovered { volume } => {
            write!(f, "report destage-recovered volume {}", volume.0)
        }
    }
}

fn mark(is_set: bool, word: &'static str) -> &'static str {
    if is_set { word } else { "" }
}

fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::Write => "write",
        Cause::Evict => "evict",
        Cause::Promote => "promote",
        Cause::Borrow => "borrow",
    }
}

fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Retry => "retry",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Full => "full",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Unwritable => "unwritable",
        ErrorKind::Closed => "closed",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Denied => "denied",
    }
}

/// `volume:block`.
struct Block(BlockKey);

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.volume().0, self.0.block().0)
    }
}

/// Bytes of a block, and where they lie in the request.
struct Bytes(Part);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { block_offset, request_offset, length } = self.0;
        write!(f, "bytes {block_offset}+{length} of {request_offset}")
    }
}

struct From(Source);

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Source::Payload { request, offset } => write!(f, "payload {}@{offset}", request.0),
            Source::Buffer { index } => write!(f, "buffer@{index}"),
        }
    }
}

struct How(Result<(), ErrorKind>);

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or_else(name, |()| "ok"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::{BlockIndex, LevelIndex, RequestId, Slot, VolumeId};
    use smallvec::smallvec;
    use std::string::ToString;

    /// Goal: the words of a decision are a promise to whoever keeps logs. Method: lines, frozen.
    #[test]
    fn lines_are_stable() {
        let key = BlockKey::new(VolumeId(2), BlockIndex(9));
        let part = Part { block_offset: 512, request_offset: 0, length: 1024 };
        let (op, level, slot, request) = (OpId(3), LevelIndex(1), Slot(7), RequestId(5));
        let write = Action::WriteLevel {
            op,
            level,
            entries: smallvec![(slot, key)],
            source: Source::Payload { request, offset: 4096 },
            dirty: true,
            durable: false,
            cause: Cause::Write,
        };
        let lines = [
            (
                Action::Copy { request, level, slot, part },
                "copy request 5 level 1 slot 7 bytes 512+1024 of 0",
            ),
            (write, "write-level op 3 level 1 write payload 5@4096 dirty 7=2:9"),
            (Action::Free { level, slot, superseded: true }, "free level 1 slot 7 superseded"),
            (Action::CleaningKept { level, slot }, "cleaning-kept level 1 slot 7"),
            (Action::Complete { request, result: Err(ErrorKind::Full) }, "complete request 5 full"),
            (Action::Release { op }, "release op 3"),
        ];
        for (action, line) in lines {
            assert_eq!(action.to_string(), line);
        }
    }
}
