//! Snapshots of volumes in object stores, as the control API answers them.
//!
//! How: each handler is one call on [`Control`](crate::control::Control); making one answers when
//! the store has it. Invariant: as in the API's own header. Cost: a message to the volume's thread.

use super::{Answer, Body, Node, Refused, name_of, wrong};
use crate::config::Name;
use crate::control::SnapshotCreate;
use crate::error::Report;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use layby_cloud::Snapshot;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotAnswer {
    /// Its name.
    pub name: String,
    /// When it was asked for, in UTC, such as `2026-11-22T14:30:00Z`.
    pub created: String,
    /// Bytes of the volume then.
    pub size_bytes: u64,
    /// The segment after which the volume was so.
    pub segment: u64,
    /// The names of volumes that are clones of it; it stays as long as they do.
    pub clones: Vec<String>,
}

impl From<Snapshot> for SnapshotAnswer {
    fn from(snapshot: Snapshot) -> Self {
        let seconds = i64::try_from(snapshot.created_unix).unwrap_or(0);
        let created = chrono::DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        SnapshotAnswer {
            name: snapshot.name,
            created: created.format("%Y-%m-%dT%H:%M:%SZ").to_string(),
            size_bytes: snapshot.size_bytes,
            segment: snapshot.number,
            clones: snapshot.clones.into_iter().map(|clone| clone.name).collect(),
        }
    }
}

/// The snapshots of a volume in an object store, oldest first.
#[utoipa::path(get, path = "/v1/volumes/{name}/snapshots", tag = "volumes",
    params(("name" = Name, Path)),
    responses((status = 200, body = Vec<SnapshotAnswer>), (status = "default", body = Report)))]
pub(super) async fn snapshots(
    State(node): Node,
    path: Path<String>,
) -> Answer<Vec<SnapshotAnswer>> {
    let found = node.volume_snapshots(&name_of(path)?).await?;
    Ok(Json(found.into_iter().map(SnapshotAnswer::from).collect()))
}

/// Makes a snapshot of all that is acknowledged; answers when the store has it.
#[utoipa::path(post, path = "/v1/volumes/{name}/snapshots", tag = "volumes",
    params(("name" = Name, Path)), request_body = SnapshotCreate,
    responses((status = 201, body = SnapshotAnswer), (status = "default", body = Report)))]
pub(super) async fn snapshot_create(
    State(node): Node,
    path: Path<String>,
    Body(request): Body<SnapshotCreate>,
) -> Result<(StatusCode, Json<SnapshotAnswer>), Refused> {
    let made = node.snapshot_create(&name_of(path)?, &request.name).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Deletes a snapshot; what it alone kept in the store goes later.
#[utoipa::path(delete, path = "/v1/volumes/{name}/snapshots/{snapshot}", tag = "volumes",
    params(("name" = Name, Path), ("snapshot" = Name, Path)),
    responses((status = 204), (status = "default", body = Report)))]
pub(super) async fn snapshot_delete(
    State(node): Node,
    Path((volume, snapshot)): Path<(String, String)>,
) -> Result<StatusCode, Refused> {
    let volume = name_of(Path(volume))?;
    let snapshot: Name = snapshot.parse().map_err(wrong)?;
    node.snapshot_delete(&volume, &snapshot).await?;
    Ok(StatusCode::NO_CONTENT)
}
