//! Deleted volumes in object stores, as the control API answers them.
//!
//! How: each handler is one call on [`Control`](crate::control::Control).
//! Invariant: as in the API's own header. Cost: a list of what the catalog has.

use super::{Answer, Body, Node, name_of, volume_answer};
use crate::api::VolumeAnswer;
use crate::config::Name;
use crate::control::{DeletedVolume, LeftData, Pace, UndeleteRequest};
use crate::error::Report;
use crate::homes::{KeptData, Taken};
use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A deleted volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeletedAnswer {
    /// Its name; another volume may have it by now.
    pub name: Name,
    /// Its number, which no other volume ever has.
    pub number: u32,
    /// Its place.
    pub path: String,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// When it was deleted by this node's clock, in UTC, such as `2026-11-22T14:30:00Z`.
    pub deleted: String,
    /// Seconds of the node's life for which it can come back; at zero its objects go.
    pub left_seconds: f64,
    /// Its store has said, in this life of the node, that it knows of the deletion.
    pub is_marked: bool,
    /// What failed last and is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl From<DeletedVolume> for DeletedAnswer {
    fn from(deleted: DeletedVolume) -> Self {
        let DeletedVolume { record, left, is_marked, problem } = deleted;
        let seconds = i64::try_from(record.at_unix).unwrap_or(0);
        let at = chrono::DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        DeletedAnswer {
            name: record.name,
            number: record.record.id,
            path: record.record.path.to_string_lossy().into_owned(),
            size_bytes: record.record.length,
            deleted: at.format("%Y-%m-%dT%H:%M:%SZ").to_string(),
            left_seconds: left.as_secs_f64(),
            is_marked,
            problem,
        }
    }
}

/// A volume that was only forgotten, since another has it and its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForgottenAnswer {
    /// Who has it.
    pub taken_by: String,
    /// Bytes that were written to this node, that no store has, and that are gone.
    pub bytes_lost: u64,
    /// Why more than these may be gone, where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_unknown: Option<String>,
}

impl From<Taken> for ForgottenAnswer {
    fn from(Taken { by, bytes_lost, unknown }: Taken) -> Self {
        ForgottenAnswer { taken_by: by, bytes_lost, loss_unknown: unknown }
    }
}

/// What still has the bytes of a volume that was deleted with its data: a device, which the node
/// does not erase, or a file that a symbolic link named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeptAnswer {
    /// The device or the file.
    pub kept: String,
    /// It is a device.
    pub is_device: bool,
    /// The symbolic link at the volume's path, if that was one: still there where it names a
    /// device, removed where it named a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

impl From<KeptData> for KeptAnswer {
    fn from(KeptData { path, is_device, link }: KeptData) -> Self {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        KeptAnswer { kept: text(path), is_device, link: link.map(text) }
    }
}

/// What is left of the data of a volume that was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LeftAnswer {
    /// Another node has it.
    Forgotten(ForgottenAnswer),
    /// It is where the node does not erase it.
    Kept(KeptAnswer),
}

impl From<LeftData> for LeftAnswer {
    fn from(left: LeftData) -> Self {
        match left {
            LeftData::Taken(taken) => LeftAnswer::Forgotten(taken.into()),
            LeftData::Kept(kept) => LeftAnswer::Kept(kept.into()),
        }
    }
}

/// Deleted volumes in object stores that can come back or are not all gone, oldest first.
#[utoipa::path(get, path = "/v1/deleted-volumes", tag = "volumes",
    responses((status = 200, body = Vec<DeletedAnswer>), (status = "default", body = Report)))]
pub(super) async fn deleted_volumes(State(node): Node) -> Answer<Vec<DeletedAnswer>> {
    let found = node.deleted_volumes().await;
    Ok(Json(found.into_iter().map(DeletedAnswer::from).collect()))
}

/// Brings a deleted volume back, whole, and serves it; refused once its removal has begun.
#[utoipa::path(post, path = "/v1/deleted-volumes/{name}/undelete", tag = "volumes",
    params(("name" = Name, Path)), request_body = UndeleteRequest,
    responses((status = 200, body = VolumeAnswer), (status = "default", body = Report)))]
pub(super) async fn volume_undelete(
    State(node): Node,
    path: Path<String>,
    Body(request): Body<UndeleteRequest>,
) -> Answer<VolumeAnswer> {
    let name = node.volume_undelete(&name_of(path)?, request).await?;
    volume_answer(&node, &name, Pace::AtOnce).await
}

/// What became of a volume that waited for a lost level, journal or map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedLossAnswer {
    /// Dirty blocks of the other levels that were written to its backing store; none of a volume
    /// in an object store, which no level has dirty blocks of.
    pub blocks_written_back: u64,
}

/// Serves a volume that waits for a lost level, journal or map, without what that held of it.
#[utoipa::path(post, path = "/v1/volumes/{name}/accept-loss", tag = "volumes",
    params(("name" = Name, Path)),
    responses((status = 200, body = AcceptedLossAnswer), (status = "default", body = Report)))]
pub(super) async fn volume_accept_loss(
    State(node): Node,
    path: Path<String>,
) -> Answer<AcceptedLossAnswer> {
    let blocks_written_back = node.volume_accept_loss(&name_of(path)?).await?;
    Ok(Json(AcceptedLossAnswer { blocks_written_back }))
}
