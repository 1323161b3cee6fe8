//! Snapshots of volumes in object stores: list, make, drop.
//!
//! How: the volume's thread makes and drops them and says what there is; nothing of it is in the
//! node's catalog, since the store's superblock knows.
//! Invariant: no change of the node waits for a snapshot, which may wait for a link for hours.
//! Cost: a message to the volume's thread. Not for: what a snapshot holds; see `restore`.

use super::Control;
use crate::config::Name;
use crate::error::{Report, ReportKind};
use layby_cloud::{Link, Order, Said, Snapshot, SnapshotChange, SnapshotError, Watch};
use serde::{Deserialize, Serialize};

/// A new snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    /// Its name.
    pub name: Name,
}

impl Control {
    /// The snapshots of a volume, oldest first.
    ///
    /// # Errors
    /// A report when there is no such volume, its home is no object store, or the store has not
    /// answered since the node started.
    pub async fn volume_snapshots(&self, volume: &Name) -> Result<Vec<Snapshot>, Report> {
        let error = format!("cannot list the snapshots of volume `{volume}`");
        let watch = self.watch_of(volume, &error)?;
        let number = watch.order(Order::Say);
        let is_known = |said: &Said| {
            let is_opening = matches!(said.status.link, Link::Opening);
            said.heard >= number && (said.snapshots.is_some() || !is_opening)
        };
        let said = watch.wait(is_known).await.ok_or_else(|| ended(&error))?;
        said.snapshots.ok_or_else(|| {
            Report::new(ReportKind::Unreachable, error)
                .cause("the store, which knows them, has not answered since the node started")
                .state("nothing was changed")
                .hint("`layby volume show` says what the store answered last; then repeat it")
        })
    }

    /// Makes a snapshot of all that is acknowledged now; ends when the store has it.
    ///
    /// # Errors
    /// A report when it cannot be.
    pub async fn snapshot_create(&self, volume: &Name, name: &Name) -> Result<Snapshot, Report> {
        let error = format!("cannot make snapshot `{name}` of volume `{volume}`");
        let watch = self.watch_of(volume, &error)?;
        let now_unix = u64::try_from(chrono::Utc::now().timestamp()).unwrap_or(0);
        let change = SnapshotChange::Make { name: name.to_string(), now_unix };
        watch.change_snapshots(change).await.map_err(|cause| refusal(&error, &cause))?;
        let said = newest(&watch).await.ok_or_else(|| ended(&error))?;
        let found = said.snapshots.into_iter().flatten().find(|made| made.name == name.as_str());
        // Somebody else may have dropped it in the meantime.
        found.ok_or_else(|| refusal(&error, &SnapshotError::Absent))
    }

    /// Drops a snapshot; what it alone kept in the store goes later.
    ///
    /// # Errors
    /// A report when there is none of that name, or it cannot be dropped.
    pub async fn snapshot_delete(&self, volume: &Name, name: &Name) -> Result<(), Report> {
        let error = format!("cannot delete snapshot `{name}` of volume `{volume}`");
        let watch = self.watch_of(volume, &error)?;
        let change = SnapshotChange::Drop { name: name.to_string() };
        watch.change_snapshots(change).await.map_err(|cause| refusal(&error, &cause))
    }

    fn watch_of(&self, volume: &Name, error: &str) -> Result<Watch, Report> {
        let record = self.existing_volume(error, volume)?;
        self.facts.homes.watch(&record).ok_or_else(|| {
            Report::new(ReportKind::Invalid, error)
                .cause("its home is a file or a device, not an object store")
                .state("nothing was changed")
                .hint("snapshots need a volume whose path is a store's URL")
        })
    }
}

/// What a volume says when it has heard all that it was told before; none when it has ended.
async fn newest(watch: &Watch) -> Option<Said> {
    let number = watch.order(Order::Say);
    watch.wait(|said| said.heard >= number).await
}

fn ended(error: &str) -> Report {
    refusal(error, &SnapshotError::Closed)
}

fn refusal(error: &str, cause: &SnapshotError) -> Report {
    let unknown = "it may have been done all the same, or not";
    let (kind, state, hint) = match cause {
        SnapshotError::Name => {
            (ReportKind::Invalid, "nothing was changed", "choose another name, such as a date")
        }
        SnapshotError::Exists => (
            ReportKind::InUse,
            "nothing was changed",
            "choose another name; `layby volume snapshots` shows those taken",
        ),
        SnapshotError::Absent => (
            ReportKind::NotFound,
            "nothing was changed",
            "`layby volume snapshots` shows what there is",
        ),
        SnapshotError::Full => (
            ReportKind::Full,
            "nothing was changed",
            "delete some with `layby volume snapshot-delete`",
        ),
        SnapshotError::Pending => (
            ReportKind::Unreachable,
            "nothing was changed",
            "`layby volume show` says how its link is; repeat it when the store answers",
        ),
        SnapshotError::ClonesFull => {
            (ReportKind::InUse, "nothing was changed", "delete some of them with --data now first")
        }
        SnapshotError::HasClones(_) => (
            ReportKind::InUse,
            "nothing was changed",
            "delete each at the place that is named, with --data now; in a copy of a bucket the \
             marks are those of the first one's clones, and the snapshot stays as long as the copy",
        ),
        SnapshotError::Lost(_) => {
            (ReportKind::Failure, unknown, "`layby volume show` says how the volume is")
        }
        SnapshotError::Closed => {
            (ReportKind::Failure, unknown, "look with `layby volume snapshots` when it is served")
        }
    };
    Report::new(kind, error).cause(cause.to_string()).state(state).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a snapshot that clones keep says how to remove them at once: a clone deleted with
    /// `--data delete` keeps its objects, and its mark, until its grace ends. Method: the hints.
    #[test]
    fn clones_of_a_snapshot_are_to_be_deleted_now() {
        let clones = SnapshotError::HasClones(vec!["test at s3://roadside/test".into()]);
        for cause in [clones, SnapshotError::ClonesFull] {
            let hint = refusal("cannot", &cause).hint;
            assert!(hint.contains("--data now") && !hint.contains("--data delete"), "{hint}");
        }
    }
}
