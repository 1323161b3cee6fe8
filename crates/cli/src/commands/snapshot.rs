//! `layby volume snapshot`, `snapshots` and `snapshot-delete`: snapshots of a volume in its store.
//!
//! How: each asks the node's control API and prints its answer, or passes it on as JSON.
//! Cost: a request. Not for: reading a snapshot; see `restore`.

use super::ask;
use super::volume::said;
use crate::arguments::NodeArguments;
use crate::output::{Failure, Output, bytes, table};
use layby_daemon::config::Name;

pub(super) fn make(
    volume: &Name,
    snapshot: Name,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let made = ask(node, |client| async move { client.snapshot_create(volume, snapshot).await })?;
    if node.json {
        return output.json(&made);
    }
    output.line(&format!(
        "snapshot {} of volume {volume}: {} as of {}, segment {}",
        made.name,
        bytes(made.size_bytes),
        made.created,
        made.segment
    ))
}

pub(super) fn snapshots(
    volume: &Name,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let found = ask(node, |client| async move { client.snapshots(volume).await })?;
    if node.json {
        return output.json(&found);
    }
    let mut table = table(["snapshot", "created", "size", "segment", "clones"], 2);
    for snapshot in found {
        let (size, segment) = (bytes(snapshot.size_bytes), snapshot.segment.to_string());
        let clones = snapshot.clones.join(", ");
        table.add_row([snapshot.name, snapshot.created, size, segment, clones]);
    }
    output.line(&table.to_string())
}

pub(super) fn drop_snapshot(
    volume: &Name,
    snapshot: &Name,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    ask(node, |client| async move { client.snapshot_delete(volume, snapshot).await })?;
    said(&format!("deleted snapshot {snapshot} of volume {volume}"), node, output)
}
