//! How much room is free where volumes' files lie, for delays of discards that follow it.
//!
//! How: once in a while the file systems that hold the files of volumes with an adaptive delay are
//! asked for their free blocks, and the shards that serve the volumes are told.
//! Invariant: a file system that does not answer holds up nothing but this.
//! Cost: a `statvfs` for each such volume per period. A block device says nothing of its free room:
//! it counts as free.

use crate::catalog::VolumeRecord;
use crate::config::{DiscardChoice, DiscardWait};
use crate::control::{Control, View};
use layby_types::VolumeId;
use rustix::fs::{StatVfs, statvfs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Free room changes by what seconds of writing bring.
const PERIOD: Duration = Duration::from_secs(5);

/// Tells for as long as the node runs; never ends.
pub(crate) async fn run(control: Arc<Control>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tell(&control).await;
    }
}

/// Looks once.
async fn tell(control: &Control) {
    let view = control.view();
    let files = adaptive(&view, |record| control.facts().homes.file(record));
    if files.is_empty() {
        return;
    }
    let look = move || {
        let free = |(parts, file): (Vec<VolumeId>, PathBuf)| Some((parts, free_permille(&file)?));
        files.into_iter().filter_map(free).collect::<Vec<_>>()
    };
    // It fails where the node ends.
    let Ok(found) = tokio::task::spawn_blocking(look).await else { return };
    for shard in 0..usize::from(view.layout.shards) {
        let own = |part: &VolumeId| view.layout.shard_of(*part) == shard;
        let of = |(parts, free): &(Vec<VolumeId>, u16)| {
            parts.iter().copied().filter(own).map(|part| (part, *free)).collect::<Vec<_>>()
        };
        let free: Vec<(VolumeId, u16)> = found.iter().flat_map(of).collect();
        if !free.is_empty()
            && let Err(refused) = control.set_free(shard, free).await
        {
            tracing::debug!(shard, cause = refused.cause, "cannot tell the free room");
        }
    }
}

/// The parts of volumes whose delay follows free room, with their files.
fn adaptive(
    view: &View,
    file: impl Fn(&VolumeRecord) -> Option<PathBuf>,
) -> Vec<(Vec<VolumeId>, PathBuf)> {
    let is_adaptive = |record: &&VolumeRecord| {
        (record.discard, record.discard_delay) == (DiscardChoice::Delayed, DiscardWait::Adaptive)
    };
    let records = view.catalog.volumes.values().filter(is_adaptive);
    records.filter_map(|record| Some((record.parts().collect(), file(record)?))).collect()
}

/// Free room around a file, in thousandths of what its file system holds; `None` for a device, and
/// where nothing is known.
fn free_permille(file: &Path) -> Option<u16> {
    let is_file = std::fs::metadata(file).is_ok_and(|found| found.is_file());
    is_file.then(|| permille(&statvfs(file).ok()?)).flatten()
}

fn permille(of: &StatVfs) -> Option<u16> {
    let free = u128::from(of.f_bavail) * 1000;
    let all = u128::from(of.f_blocks);
    u16::try_from(free.checked_div(all)?.min(1000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VolumePatch;
    use crate::control::tests::MockNode;

    const VOLUMES: &str = "[volume.a]\nsize = \"1MiB\"\n[volume.b]\nsize = \"1MiB\"\n";

    /// Goal: the shard hears of the free room of volumes with an adaptive delay, and of no others.
    /// Method: two volumes on two shards of a mock, one set so; the file is there or is not.
    #[tokio::test]
    async fn shards_hear_of_free_room() {
        let node = MockNode::new(VOLUMES);
        let free = |shard: usize| {
            let log = node.shards[shard].state().log.clone();
            log.into_iter().filter(|told| told.starts_with("free")).collect::<Vec<_>>()
        };
        let patch = VolumePatch {
            discard: Some(DiscardChoice::Delayed),
            discard_delay: Some(DiscardWait::Adaptive),
            ..VolumePatch::default()
        };
        let name = "a".parse().expect("a name");
        let view = node.control.view();
        let home = node.control.facts().homes.file(&view.catalog.volumes[&name]);
        let home = home.expect("it is a file");
        std::fs::create_dir_all(home.parent().expect("a folder")).expect("a folder");
        std::fs::write(&home, [0]).expect("a file");
        tell(&node.control).await;
        assert!(free(0).is_empty() && free(1).is_empty());
        node.control.volume_set(&name, patch).await.expect("a good change");
        tell(&node.control).await;
        assert_eq!((free(0).len(), free(1).len()), (1, 0));
        assert!(free(0)[0].contains("VolumeId(0)"), "{:?}", free(0));
        std::fs::remove_file(&home).expect("it was there");
        tell(&node.control).await;
        assert_eq!(free(0).len(), 1, "nothing is known of what is not there");
    }

    /// Goal: devices and what is not there have no free room. Method: by hand.
    #[test]
    fn only_files_have_free_room() {
        assert_eq!(free_permille(Path::new("/dev/null")), None);
        assert_eq!(free_permille(Path::new("/nowhere/at/all")), None);
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        assert!(free_permille(file.path()).is_some_and(|free| free <= 1000));
    }
}
