//! What happens to volumes in object stores, told in the node's log as it happens.
//!
//! How: a task per volume hears what its thread says and compares that with what it said before.
//! Invariant: a line per change, so that a store which fails for hours fills no log; one that fails
//! now and then answers again once it has for a while.
//! Cost: a comparison a few times a second. Not for: how things are; see the control API.

use super::files::note_key;
use layby_cloud::{Link, Said, Watch};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// How long a store answers without a fault until that is told.
const STEADY_AFTER: Duration = Duration::from_secs(2);

/// What was told last.
#[derive(Default)]
struct Told {
    is_down: bool,
    /// Since when it answers, where that was not told yet.
    up_since: Option<Instant>,
    is_lost: bool,
    damaged: u64,
    is_cache_resting: bool,
    is_journal_lost: bool,
    is_map_waiting: bool,
}

impl Told {
    fn hear(&mut self, volume: &str, said: &Said) {
        let status = &said.status;
        let fault = status.last_fault.as_ref().map_or("", |(cause, _)| cause.as_str());
        if status.counters.damaged > self.damaged {
            self.damaged = status.counters.damaged;
            let cause = status.read_fault.as_deref().unwrap_or_default();
            tracing::warn!(volume, reads = self.damaged, cause, "reads have failed");
        }
        let resting = status.read_cache_fault.as_deref();
        if resting.is_some() != std::mem::replace(&mut self.is_cache_resting, resting.is_some()) {
            match resting {
                Some(cause) => tracing::warn!(volume, cause, "the read cache takes nothing"),
                None => tracing::info!(volume, "the read cache takes blocks again"),
            }
        }
        self.hear_files(volume, said);
        match &status.link {
            Link::Lost(cause) if !self.is_lost => {
                self.is_lost = true;
                let missing = status.dirty_bytes;
                match status.is_taken {
                    true => {
                        let text = "the volume is not this node's any more";
                        tracing::error!(volume, cause, missing, "{text}");
                    }
                    false => {
                        tracing::error!(volume, cause, missing, "the volume's session has ended");
                    }
                }
            }
            Link::Down { .. } if self.is_down => self.up_since = None,
            Link::Down { .. } => {
                (self.is_down, self.up_since) = (true, None);
                tracing::warn!(volume, cause = fault, "the volume's store does not answer");
            }
            Link::Up if self.is_down && self.is_steady() => {
                self.is_down = false;
                let missing = status.dirty_bytes;
                tracing::info!(volume, missing, "the volume's store answers again");
            }
            _ => {}
        }
    }

    /// Whether the store has answered for a while.
    fn is_steady(&mut self) -> bool {
        let now = Instant::now();
        now.duration_since(*self.up_since.get_or_insert(now)) >= STEADY_AFTER
    }

    /// What became of the volume's own files.
    fn hear_files(&mut self, volume: &str, said: &Said) {
        let status = &said.status;
        if let Some(cause) = &status.journal_fault
            && !std::mem::replace(&mut self.is_journal_lost, true)
        {
            let missing = status.dirty_bytes;
            let text = "the volume's journal failed: it takes no writes until the node is started";
            tracing::error!(volume, cause, missing, "{text}");
        }
        let waiting = status.map_fault.as_deref();
        if waiting.is_some() != std::mem::replace(&mut self.is_map_waiting, waiting.is_some()) {
            match waiting {
                Some(cause) => tracing::error!(volume, cause, "the map file cannot be written"),
                None => tracing::info!(volume, "the map file is written again"),
            }
        }
    }
}

/// Tells of a volume until it ends. Once its store was read with the key, what tells that key from
/// others is noted in a file of its own, unless it was before.
pub(super) async fn observe(volume: String, watch: Watch, mut key: Option<(PathBuf, String)>) {
    let mut told = Told::default();
    let mut changes = watch.changes();
    while let Some(said) = changes.next().await {
        told.hear(&volume, &said);
        if matches!(said.status.link, Link::Up)
            && let Some((path, check)) = key.take()
        {
            // Without one, the next start asks nothing of the key.
            tokio::task::spawn_blocking(move || drop(note_key(&path, &check)));
        }
    }
}
