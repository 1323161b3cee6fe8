//! Volumes whose shards have given them up, and whose own threads may not have ended.
//!
//! How: each backing store that is opened leaves a way to wait for its end. A device that hangs may
//! hold that up for ever, so it is waited for a few seconds, and the caller is refused.
//! Invariant: nothing of a volume's files is removed, and no volume is opened over the same files
//! or at the same place, before the threads of the one before have ended.
//! Cost: an entry per opened volume. Not for: other processes; see `folders`.

use crate::catalog::VolumeRecord;
use crate::error::{Report, ReportKind};
use layby_cloud::Ending;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a volume's threads may take to end once a shard has given the volume up.
const END_TIME: Duration = Duration::from_secs(5);

/// By the number of a volume's files, its place and its end.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<BTreeMap<u32, (String, Ending)>>);

impl Endings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, (String, Ending)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A volume was opened.
    pub(super) fn begin(&self, record: &VolumeRecord, url: &str, ending: Ending) {
        let mut all = self.all();
        all.retain(|_, (_, ending)| !ending.has_come(Duration::ZERO));
        all.insert(record.local_number(), (url.to_owned(), ending));
    }

    /// Refuses to touch the files of a volume that shards have given up, before its threads have
    /// ended.
    pub(super) fn check(&self, record: &VolumeRecord) -> Result<(), Report> {
        let found = self.all().get(&record.local_number()).cloned();
        found.map_or(Ok(()), |(_, ending)| ended(&ending))
    }

    /// Refuses to open a volume at a place of which another one's threads may still write.
    pub(super) fn check_place(&self, url: &str) -> Result<(), Report> {
        let at_place = |(place, ending): &(String, Ending)| (place == url).then(|| ending.clone());
        let found: Vec<Ending> = self.all().values().filter_map(at_place).collect();
        found.iter().try_for_each(ended)
    }
}

fn ended(ending: &Ending) -> Result<(), Report> {
    if ending.has_come(END_TIME) {
        return Ok(());
    }
    Err(Report::new(ReportKind::Failure, "the volume's journal and map are still in use")
        .cause("a write to the device of its journal or its map has not ended")
        .state("they stay where they are")
        .hint("look at that device; where it never answers, start the node again"))
}
