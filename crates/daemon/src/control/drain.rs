//! Draining: all that was written goes home, for one volume or the whole node.
//!
//! How: shards write back what is dirty in their levels; volumes in object stores upload without
//! waiting for full segments until the store has the batches that their journals held by then.
//! Invariant: a drain that was answered without an error left nothing behind that was acknowledged
//! before it began; one that cannot get there ends, and says what stays where. One that ends in any
//! way, or whose client has gone, has volumes upload as before.
//! Cost: a task per drain. Not for: when blocks are written back otherwise; see `layby_cache`.

use super::{Command, Control, Pace, report};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::Name;
use crate::error::{Report, ReportKind};
use layby_cloud::{Link, Order, Said, Status, Watch};
use layby_types::{ErrorKind, VolumeId};
use std::time::Duration;

/// How long a store may refuse or be silent while a drain waits for it.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);

/// A volume that uploads all it has, for as long as this lives.
struct Draining {
    watch: Watch,
    /// The batch of the journal behind all that was acknowledged when the drain began; none as
    /// long as it is not known.
    next: Option<u64>,
}

impl Draining {
    fn begin(watch: &Watch) -> Draining {
        watch.order(Order::Drain(true));
        Draining { watch: watch.clone(), next: None }
    }

    /// Notes what the journal holds by now; of a volume that has ended, nothing.
    async fn note_newest(&mut self) {
        let number = self.watch.order(Order::Say);
        let said = self.watch.wait(|said| said.heard >= number).await;
        self.next = said.map(|said| said.written_next);
    }

    /// Whether the store has what the drain waits for. What clients write meanwhile is not waited
    /// for: there may always be something newer.
    fn is_drained(&self, said: &Said) -> bool {
        self.next.is_some_and(|next| said.stored_next >= next) && said.is_size_stored
    }

    fn is_over(&self, said: &Said) -> bool {
        match said.status.link {
            Link::Lost(_) => true,
            _ if said.status.journal_fault.is_some() || said.status.map_fault.is_some() => true,
            Link::Opening => false,
            Link::Up | Link::Down { .. } => self.is_drained(said),
        }
    }

    /// Whether the store has more of what the drain waits for than `taken` segments. Those of what
    /// clients write meanwhile say nothing: a store that takes them may refuse superblocks.
    fn goes_on(&self, said: &Said, taken: u64) -> bool {
        let is_put = self.next.is_some_and(|next| said.put_next >= next);
        !is_put && said.status.counters.segments_put > taken
    }

    /// Waits until the store has what was noted, or cannot have it; says why it has not. A store
    /// that fails and takes nothing for [`DRAIN_PATIENCE`] is one that cannot; a volume that has
    /// ended uploads nothing more.
    async fn end(&self) -> Option<Undrained> {
        let mut taken = 0;
        loop {
            let moved = self.watch.wait(|said| self.is_over(said) || self.goes_on(said, taken));
            match tokio::time::timeout(DRAIN_PATIENCE, moved).await {
                Ok(Some(said)) if self.is_over(&said) => return Undrained::of(self, said),
                Ok(Some(said)) => taken = said.status.counters.segments_put,
                Ok(None) => {
                    let is_whole = |said: &Said| said.is_drained || self.is_drained(said);
                    let is_drained = self.watch.said().is_some_and(|said| is_whole(&said));
                    let why = "it was deleted, or the node stopped, before the store had all";
                    return (!is_drained).then(|| Undrained::Ended(why.to_owned()));
                }
                Err(_) => {
                    let Some(said) = self.watch.said() else { continue };
                    let age = said.status.last_fault.as_ref().map(|(_, age)| *age);
                    if age.is_some_and(|age| u128::from(age.0) < DRAIN_PATIENCE.as_nanos()) {
                        return Undrained::of(self, said);
                    }
                }
            }
        }
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.watch.order(Order::Drain(false));
    }
}

impl Control {
    /// Destages every dirty block of a volume, or of all.
    ///
    /// # Errors
    /// A report when there is no such volume or its backing refuses.
    pub async fn drain(&self, name: Option<&Name>) -> Result<(), Report> {
        let error = match name {
            Some(name) => format!("cannot drain volume `{name}`"),
            None => "cannot drain the node".to_owned(),
        };
        let record = match name {
            Some(name) => Some(self.existing_volume(&error, name)?),
            None => None,
        };
        let layout = &self.view().layout;
        let asked: Vec<(usize, Option<VolumeId>)> = match &record {
            Some(record) => {
                record.parts().map(|part| (layout.shard_of(part), Some(part))).collect()
            }
            None => (0..self.shards.len()).map(|shard| (shard, None)).collect(),
        };
        let (stores, unserved) = self.begin_drains(record.map(|record| VolumeId(record.id)));
        let mut drained = Ok(());
        for (shard, volume) in asked {
            drained = drained.and(self.drain_shard(shard, volume, &error).await);
        }
        let stored = end_drains(stores, name.is_none(), &error).await;
        if drained.is_ok() {
            let view = self.view();
            let drained =
                view.volumes().filter(|(known, _)| name.is_none_or(|name| name == *known));
            for id in drained.map(|(_, record)| record.id).collect::<Vec<_>>() {
                self.clean(VolumeId(id)).await;
            }
        }
        with_unserved(drained.and(stored), &unserved, &error)
    }

    async fn drain_shard(
        &self,
        shard: usize,
        volume: Option<VolumeId>,
        error: &str,
    ) -> Result<(), Report> {
        let dirty = "blocks that were not written back are still safe in their level";
        let drained = self.ask(shard, |answer| Command::Drain(volume, answer)).await;
        let Err(refused) = drained else { return Ok(()) };
        let report = report(&refused, error).state(dirty);
        let is_of_level = self.snapshots(Pace::AtOnce).await.is_ok_and(|snapshots| {
            let shard = &snapshots[shard];
            let mine = shard.volumes.iter().filter(|v| volume.is_none_or(|id| id == v.volume));
            let mut faults = mine.filter_map(|volume| volume.destage_fault);
            !shard.failed.is_empty() && faults.any(|fault| fault.level.is_some())
        });
        if refused.kind == ErrorKind::Corrupt || !is_of_level {
            return Err(report);
        }
        let flushed =
            "what was flushed is in the level, and a start reads it; nothing was given up";
        Err(report.state(flushed).hint("look at the device that is named, then restart the node"))
    }

    /// Has volumes in object stores upload all that they have. Those that are not served cannot be
    /// drained, wherever they lie; why is in the second list.
    fn begin_drains(&self, volume: Option<VolumeId>) -> (Vec<(Name, Draining)>, Vec<String>) {
        let view = self.view();
        let (mut drains, mut unserved) = (Vec::new(), Vec::new());
        let is_clean = |record: &VolumeRecord| self.facts.intents.is_clean(record.id);
        for (name, record) in view.known_volumes() {
            if volume.is_some_and(|id| id.0 != record.id) {
                continue;
            }
            match view.absence(name) {
                // No level has anything of it.
                Some(_) if record.phase == VolumePhase::Creating && is_clean(record) => {}
                Some(absence) => {
                    unserved.push(format!("volume `{name}` is not served: {}", absence.why.cause));
                }
                None => {
                    let watch = self.facts.homes.watch(record);
                    drains.extend(watch.map(|watch| (name.clone(), Draining::begin(&watch))));
                }
            }
        }
        (drains, unserved)
    }
}

/// How a drain ended, with the volumes of which it could not be asked at all.
fn with_unserved(
    ended: Result<(), Report>,
    unserved: &[String],
    error: &str,
) -> Result<(), Report> {
    if unserved.is_empty() {
        return ended;
    }
    let unserved = unserved.join("; ");
    let kept = "what this node has of it stays where it is; all other volumes are drained";
    let (cause, state) = match ended {
        Ok(()) => (unserved, kept.to_owned()),
        Err(other) => (format!("{unserved}; {}", other.cause), other.state),
    };
    Err(Report::new(ReportKind::Failure, error)
        .cause(cause)
        .state(state)
        .hint("`layby volume show NAME` says what is missing of a volume, and what can be done"))
}

/// Why a volume's store does not have all that was written.
enum Undrained {
    /// The volume goes on trying.
    Waits(String),
    /// It does not.
    Ended(String),
}

impl Undrained {
    /// What a volume said when its drain was over; none where the store has what it waited for.
    fn of(draining: &Draining, said: Said) -> Option<Undrained> {
        let is_drained = draining.is_drained(&said);
        let Status { link, journal_fault, map_fault, last_fault, .. } = said.status;
        if let Link::Lost(why) = link {
            return Some(Undrained::Ended(why));
        }
        if is_drained {
            return None;
        }
        if let Some(fault) = journal_fault {
            return Some(Undrained::Ended(format!("its journal failed: {fault}")));
        }
        if let Some(fault) = map_fault {
            return Some(Undrained::Waits(format!("its map file cannot be written: {fault}")));
        }
        let fault = last_fault.map(|(cause, _)| cause).unwrap_or_default();
        Some(Undrained::Waits(format!("the store has taken nothing for 30 s: {fault}")))
    }
}

/// Waits until object stores have what their volumes were written before. Each volume that cannot
/// get there is named, and holds up no other.
async fn end_drains(
    mut drains: Vec<(Name, Draining)>,
    is_node: bool,
    error: &str,
) -> Result<(), Report> {
    let (mut failed, mut waits) = (Vec::new(), false);
    // One that has ended says so when it is waited for.
    for (_, draining) in &mut drains {
        draining.note_newest().await;
    }
    for (name, draining) in drains {
        let why = match draining.end().await {
            None => continue,
            Some(Undrained::Ended(why)) => why,
            Some(Undrained::Waits(why)) => {
                waits = true;
                why
            }
        };
        failed.push(if is_node { format!("volume `{name}`: {why}") } else { why });
    }
    if failed.is_empty() {
        return Ok(());
    }
    let goes_on = match waits {
        true => "the node goes on uploading where that failed for the store or the disk",
        false => "the node uploads it no more",
    };
    Err(Report::new(ReportKind::Failure, error)
        .cause(failed.join("; "))
        .state(format!("what the store does not have is in the journal only; {goes_on}"))
        .hint(
            "`layby volume show` says how much that is; `layby salvage` reads a journal, with \
             --all also what a store had that was set back",
        ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use layby_cloud::Counters;
    use layby_types::Nanos;

    /// What a volume says whose store has taken so many segments and refuses its superblock; the
    /// drain waits for the first ten.
    fn said(segments_put: u64) -> Said {
        let status = Status {
            dirty_bytes: 1,
            upload_bytes: 1,
            dirty_age: Nanos::ZERO,
            journal_bytes: 1,
            link: Link::Up,
            is_taken: false,
            committed: 0,
            segments: segments_put,
            stored_bytes: 0,
            live_bytes: 0,
            segment_blocks_bytes: 0,
            kept_bytes: 0,
            last_fault: Some(("it is refused".to_owned(), Nanos::ZERO)),
            read_fault: None,
            last_refusal: None,
            journal_fault: None,
            map_fault: None,
            runs: 0,
            cached_bytes: 0,
            read_cache_fault: None,
            counters: Counters { segments_put, ..Counters::default() },
        };
        Said {
            status,
            is_drained: false,
            written_next: segments_put,
            put_next: segments_put,
            stored_next: 0,
            is_size_stored: true,
            bases: Vec::new(),
            snapshots: None,
            heard: 0,
        }
    }

    /// What a volume says at rest, which has heard all orders.
    pub(in crate::control) fn said_of(link: Link, is_drained: bool) -> Said {
        let quiet = said(1);
        let status = Status { link, ..quiet.status };
        Said { status, is_drained, heard: u64::MAX, ..quiet }
    }

    /// Goal: a drain ends, and says why, where the store takes the segments of a client that writes
    /// on and refuses superblocks; and not before it has taken what the drain waits for. Method: a
    /// volume that says so every ten seconds of paused time.
    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_whose_superblock_is_refused() {
        const EVERY: Duration = Duration::from_secs(10);
        const SEGMENTS: u32 = 10;
        let (says, watch) = Watch::new(|_, _| {});
        let draining = Draining { watch, next: Some(SEGMENTS.into()) };
        let saying = async {
            for segments in 1.. {
                says.send_replace(Some(said(segments)));
                tokio::time::sleep(EVERY).await;
            }
        };
        let start = tokio::time::Instant::now();
        let undrained = tokio::select! {
            undrained = draining.end() => undrained,
            () = saying => unreachable!("it says so for ever"),
            () = tokio::time::sleep(100 * EVERY) => panic!("the drain does not end"),
        };
        assert!(matches!(undrained, Some(Undrained::Waits(why)) if why.contains("refused")));
        assert!(start.elapsed() >= (SEGMENTS - 1) * EVERY, "the store was still taking it");
    }
}
