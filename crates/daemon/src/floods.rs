//! Lines of the log that a damaged device makes by the block: the first few, then counts.
//!
//! How: of a kind of notice the first [`WHOLE_MAX`] have their lines at once. Those that follow are
//! counted, and the end of each second has a line with their number and the last one's own line,
//! until a second passes without any.
//! Invariant: the lines of a kind and the counts add up to its notices, but for the last second
//! before a stop.
//! Cost: a lock per such notice, and a task per kind while any come. Not for: clients that are not
//! let in; see `refusals`.

use layby_cache::Event;
use layby_engine::core::Notice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// Time between two counts of a kind at least.
const PERIOD: Duration = Duration::from_secs(1);
/// Notices of a kind that have a line of their own before the others are counted.
const WHOLE_MAX: u64 = 4;

/// What happened of a kind since it began, or since the last count.
#[derive(Debug, Default)]
struct Flood {
    whole: u64,
    /// Counted, without a line yet.
    count: u64,
    last: Option<Notice>,
}

/// Writes the notices of a shard.
pub(crate) struct Floods {
    shard: u8,
    runtime: Option<Handle>,
    write: Box<dyn Fn(&Notice) + Send + Sync>,
    kinds: Mutex<BTreeMap<&'static str, Flood>>,
}

impl Floods {
    /// A shard's, whose notices become lines by `write`. Counts need a runtime; without one each
    /// notice has its line.
    pub(crate) fn new(
        shard: u8,
        runtime: Option<Handle>,
        write: Box<dyn Fn(&Notice) + Send + Sync>,
    ) -> Arc<Floods> {
        Arc::new(Floods { shard, runtime, write, kinds: Mutex::default() })
    }

    /// Writes a notice, or counts it.
    pub(crate) fn hear(self: &Arc<Self>, notice: &Notice) {
        let (Some(kind), Some(runtime)) = (kind_of(notice), &self.runtime) else {
            return (self.write)(notice);
        };
        let (is_new, is_whole) = self.count(kind, notice);
        if is_whole {
            (self.write)(notice);
        }
        if is_new {
            let own = Arc::clone(self);
            runtime.spawn(async move { own.follow(kind).await });
        }
    }

    /// Whether a notice is the first of a flood, and whether it has a line of its own; otherwise it
    /// is counted. Both under one lock: a flood without a task that follows it would never end.
    fn count(&self, kind: &'static str, notice: &Notice) -> (bool, bool) {
        let mut kinds = self.lock();
        let is_new = !kinds.contains_key(kind);
        let flood = kinds.entry(kind).or_default();
        if flood.whole < WHOLE_MAX {
            flood.whole += 1;
            return (is_new, true);
        }
        flood.count += 1;
        flood.last = Some(notice.clone());
        (is_new, false)
    }

    async fn follow(&self, kind: &'static str) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some((count, last)) = self.end_period(kind) else { return };
            tracing::warn!(shard = self.shard, kind, count, "and more; the last of them:");
            (self.write)(&last);
        }
    }

    /// What was counted in the period; none where the flood is over.
    fn end_period(&self, kind: &'static str) -> Option<(u64, Notice)> {
        let mut kinds = self.lock();
        let flood = kinds.get_mut(kind)?;
        let Some(last) = flood.last.take() else {
            kinds.remove(kind);
            return None;
        };
        Some((std::mem::take(&mut flood.count), last))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Flood>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a damaged device may bring by the block; none for what is rare.
fn kind_of(notice: &Notice) -> Option<&'static str> {
    match notice {
        Notice::Cache(Event::CorruptCleanDropped { .. }) => Some("corrupt clean blocks"),
        Notice::Cache(Event::CorruptDirtyKept { .. }) => Some("corrupt dirty blocks"),
        Notice::Corrupt(_) => Some("checksum mismatches"),
        Notice::CheckpointFailed => Some("failed checkpoints"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::{BlockIndex, BlockKey, LevelIndex, VolumeId};

    /// Goal: many corrupt blocks are a few lines and counts that add up, other notices have lines
    /// of their own, and a flood that is over costs nothing. Method: paused time, 10000 notices in
    /// two bursts.
    #[tokio::test(start_paused = true)]
    async fn a_flood_is_a_few_lines() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&lines);
        let write = move |notice: &Notice| written.lock().unwrap().push(format!("{notice:?}"));
        let floods = Floods::new(0, Some(Handle::current()), Box::new(write));
        let corrupt = |block| {
            let key = BlockKey::new(VolumeId(1), BlockIndex(block));
            Notice::Cache(Event::CorruptDirtyKept { key, level: LevelIndex(2) })
        };
        (0..10_000).for_each(|block| floods.hear(&corrupt(block)));
        floods.hear(&Notice::SocketRefused { errno: 5 });
        assert_eq!(lines.lock().unwrap().len(), WHOLE_MAX as usize + 1);
        let counted: u64 = floods.lock().values().map(|flood| flood.whole + flood.count).sum();
        assert_eq!(counted, 10_000);
        tokio::time::sleep(PERIOD + PERIOD / 2).await;
        assert_eq!(lines.lock().unwrap().len(), WHOLE_MAX as usize + 2, "the last one");
        assert!(lines.lock().unwrap().last().is_some_and(|line| line.contains("9999")));
        tokio::time::sleep(PERIOD).await;
        assert!(floods.lock().is_empty() && Arc::strong_count(&floods) == 1);
        floods.hear(&corrupt(1));
        assert_eq!(lines.lock().unwrap().len(), WHOLE_MAX as usize + 3, "it begins anew");
    }
}
