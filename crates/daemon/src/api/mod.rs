//! The control API: HTTP over a unix socket and a loopback address; metrics and health on another.
//!
//! How: each handler turns a request into one call on [`Control`] and answers with what is there
//! afterwards, so that a client sees the effect and not an echo. `schema` describes all of it.
//! Invariant: a failure is a [`Report`] in JSON with the status of its kind; a body is at most
//! [`BODY_BYTES_MAX`] long; no handler holds a lock while it waits for a client.
//! Cost: a round of the shards' counters, which requests that wait at the same time share, and of
//! which those of readers without rights cause ten a second at most.
//! Not for: the data path, which is NBD.

mod answer;
mod clients;
mod cloud;
mod deletion;
mod discards;
mod guard;
mod health;
mod schedule;
mod schema;
mod sizing;
mod snapshots;
mod token;
mod uplink;
mod wear;

#[cfg(test)]
mod tests;

pub use answer::{
    BackingAnswer, ClassAnswer, LevelAnswer, OperationAnswer, Reading, ShardAnswer, StatusAnswer,
    TrafficAnswer, VolumeAnswer, WatermarksAnswer, WritebackAnswer,
};
pub use clients::ClientAnswer;
pub(crate) use cloud::cloud_answer;
pub use cloud::{CloudAnswer, EncodingAnswer};
pub use deletion::{AcceptedLossAnswer, DeletedAnswer, ForgottenAnswer, KeptAnswer, LeftAnswer};
pub use discards::DiscardAnswer;
pub(crate) use discards::level_discards;
pub use guard::{BODY_TIMEOUT, Caller, Door};
pub use schedule::{DeviceAnswer, LatencyAnswer, RankAnswer};
pub use schema::openapi;
pub use sizing::{
    ClassSizingAnswer, PolicyAnswer, PredictionAnswer, ShardSizingAnswer, SizeAnswer, SizingAnswer,
    VolumeSizingAnswer,
};
pub use snapshots::SnapshotAnswer;
pub use token::Tokens;
pub use uplink::UplinkAnswer;
pub use wear::{HealthAnswer, HintAnswer, HintWay, WearAnswer};

use crate::config::{Name, UplinkConfig};
use crate::control::{
    Authority, ClassCreate, ClassPatch, Control, DeleteData, Pace, RecordingAnswer, RecordingStart,
    VolumeCreate, VolumePatch, WatermarksPatch, WritebackPatch,
};
use crate::error::{Report, ReportKind};
use crate::metrics::text::Format;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post};
use axum::{Extension, Json, Router, middleware};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::sync::Arc;

/// Bytes of a request's body at most.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// What is served on an address of its own, to whoever reaches it: reads alone.
pub fn metrics_router(control: Arc<Control>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(guard::check_page))
        .with_state(control)
}

/// The whole API of a node, behind its door.
pub fn router(control: Arc<Control>, door: Arc<Door>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/drain", post(node_drain))
        .route("/v1/volumes", get(volumes).post(volume_create))
        .route("/v1/volumes/{name}", get(volume).patch(volume_set).delete(volume_delete))
        .route("/v1/volumes/{name}/drain", post(volume_drain))
        .route("/v1/volumes/{name}/accept-loss", post(deletion::volume_accept_loss))
        .route(
            "/v1/volumes/{name}/snapshots",
            get(snapshots::snapshots).post(snapshots::snapshot_create),
        )
        .route("/v1/volumes/{name}/snapshots/{snapshot}", delete(snapshots::snapshot_delete))
        .route("/v1/deleted-volumes", get(deletion::deleted_volumes))
        .route("/v1/deleted-volumes/{name}/undelete", post(deletion::volume_undelete))
        .route("/v1/clients", get(clients::clients))
        .route("/v1/clients/{number}", delete(clients::client_disconnect))
        .route("/v1/classes", get(classes).post(class_create))
        .route("/v1/classes/{name}", get(class).patch(class_set).delete(class_delete))
        .route("/v1/levels", get(levels))
        .route("/v1/levels/{name}", patch(level_set))
        .route("/v1/writeback", get(writeback).patch(writeback_set))
        .route("/v1/uplink", get(uplink).patch(uplink_set))
        .route("/v1/recording", get(recording).post(recording_start).delete(recording_stop))
        .route("/v1/recording/{id}/take", post(recording_take))
        .route("/v1/sizing", get(sizing))
        .route("/v1/openapi.json", get(schema))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(door, guard::check))
        .with_state(control)
}

/// A report on its way to a client.
struct Refused(Report);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.kind.http_status());
        let status = status.expect("every kind has a status that exists");
        let cause = guard::Cause(self.0.cause.clone());
        (status, Extension(cause), Json(self.0)).into_response()
    }
}

impl From<Report> for Refused {
    fn from(report: Report) -> Self {
        Refused(report)
    }
}

fn wrong(cause: impl Into<String>) -> Refused {
    Refused(
        Report::new(ReportKind::Invalid, "cannot understand this request")
            .cause(cause)
            .state("nothing was changed")
            .hint("`/v1/openapi.json` describes every request"),
    )
}

/// A JSON body whose refusal is a report.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Refused;
    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let parsed = Json::<T>::from_request(request, state).await;
        parsed.map(|Json(body)| Body(body)).map_err(|e: JsonRejection| wrong(e.body_text()))
    }
}

/// What the [door](guard) has found; else nothing is known of the reader.
impl<S: Send + Sync> FromRequestParts<S> for Pace {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Pace::Paced))
    }
}

type Node = State<Arc<Control>>;
type Answer<T> = Result<Json<T>, Refused>;

fn name_of(Path(text): Path<String>) -> Result<Name, Refused> {
    text.parse().map_err(wrong)
}

fn not_found(what: &str, name: &Name) -> Refused {
    Refused(
        Report::new(ReportKind::NotFound, format!("cannot show {what} `{name}`"))
            .cause(format!("there is no {what} `{name}`"))
            .state("nothing was changed")
            .hint("`layby status` (`/v1/status` of the API) shows what this node has"),
    )
}

/// The whole node.
#[utoipa::path(get, path = "/v1/status", tag = "node",
    responses((status = 200, body = StatusAnswer), (status = "default", body = Report)))]
async fn status(State(node): Node, pace: Pace) -> Answer<StatusAnswer> {
    Ok(Json(Reading::take(&node, pace).await?.status()))
}

/// Writes every dirty block back; answers when done.
#[utoipa::path(post, path = "/v1/drain", tag = "node",
    responses((status = 204), (status = "default", body = Report)))]
async fn node_drain(State(node): Node) -> Result<StatusCode, Refused> {
    node.drain(None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, body = Vec<VolumeAnswer>), (status = "default", body = Report)))]
async fn volumes(State(node): Node, pace: Pace) -> Answer<Vec<VolumeAnswer>> {
    Ok(Json(Reading::take(&node, pace).await?.volumes()))
}

/// Creates a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = VolumeCreate,
    responses((status = 201, body = VolumeAnswer), (status = "default", body = Report)))]
async fn volume_create(
    State(node): Node,
    Extension(authority): Extension<Authority>,
    Body(request): Body<VolumeCreate>,
) -> Result<(StatusCode, Json<VolumeAnswer>), Refused> {
    let name = request.name.clone();
    node.volume_create(request, authority).await?;
    Ok((StatusCode::CREATED, volume_answer(&node, &name, Pace::AtOnce).await?))
}

async fn volume_answer(node: &Arc<Control>, name: &Name, pace: Pace) -> Answer<VolumeAnswer> {
    let found = Reading::take(node, pace).await?.volume(name);
    found.map(Json).ok_or_else(|| not_found("volume", name))
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = Name, Path)),
    responses((status = 200, body = VolumeAnswer), (status = "default", body = Report)))]
async fn volume(State(node): Node, pace: Pace, path: Path<String>) -> Answer<VolumeAnswer> {
    volume_answer(&node, &name_of(path)?, pace).await
}

/// Changes a volume; what is left out stays.
#[utoipa::path(patch, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = Name, Path)), request_body = VolumePatch,
    responses((status = 200, body = VolumeAnswer), (status = "default", body = Report)))]
async fn volume_set(
    State(node): Node,
    path: Path<String>,
    Body(patch): Body<VolumePatch>,
) -> Answer<VolumeAnswer> {
    let name = name_of(path)?;
    node.volume_set(&name, patch).await?;
    volume_answer(&node, &name, Pace::AtOnce).await
}

/// What becomes of the data, and which volume is meant.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteQuery {
    /// `keep` when left out.
    data: Option<DeleteData>,
    /// With `data=now`: the deleted volume of this number, where several of its name were deleted,
    /// or another volume has its name by now.
    number: Option<u32>,
}

/// Deletes a volume and disconnects its clients. With `data=delete`, a volume in an object store
/// can come back until its grace is over; with `data=now` also a deleted one goes for good, the one
/// of `number` where that is given. One that another node has is only forgotten here, and the
/// answer says so. So it does where data that was to go is still on a device, or in a file that a
/// symbolic link named.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = Name, Path), DeleteQuery),
    responses((status = 204), (status = 200, body = LeftAnswer),
        (status = "default", body = Report)))]
async fn volume_delete(
    State(node): Node,
    path: Path<String>,
    query: Result<Query<DeleteQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(query) = query.map_err(|refused| wrong(refused.body_text()))?;
    let (name, data) = (name_of(path)?, query.data.unwrap_or(DeleteData::Keep));
    let left = match (query.number, data) {
        (None, _) => node.volume_delete(&name, data).await?,
        (Some(number), DeleteData::Now) => node.deleted_volume_remove(&name, number).await?,
        (Some(_), _) => return Err(number_of_deleted(&name).into()),
    };
    Ok(match left.map(LeftAnswer::from) {
        Some(left) => Json(left).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

fn number_of_deleted(name: &Name) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot delete volume `{name}`"))
        .cause("a number is of a volume that was deleted before, which goes with `now` alone")
        .state("nothing was changed")
        .hint("add `--data now` (`data=now`), or leave the number out")
}

/// Writes a volume's dirty blocks back; answers when done.
#[utoipa::path(post, path = "/v1/volumes/{name}/drain", tag = "volumes",
    params(("name" = Name, Path)),
    responses((status = 204), (status = "default", body = Report)))]
async fn volume_drain(State(node): Node, path: Path<String>) -> Result<StatusCode, Refused> {
    node.drain(Some(&name_of(path)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All classes.
#[utoipa::path(get, path = "/v1/classes", tag = "classes",
    responses((status = 200, body = Vec<ClassAnswer>), (status = "default", body = Report)))]
async fn classes(State(node): Node, pace: Pace) -> Answer<Vec<ClassAnswer>> {
    Ok(Json(Reading::take(&node, pace).await?.classes()))
}

/// Creates a class.
#[utoipa::path(post, path = "/v1/classes", tag = "classes", request_body = ClassCreate,
    responses((status = 201, body = ClassAnswer), (status = "default", body = Report)))]
async fn class_create(
    State(node): Node,
    Body(request): Body<ClassCreate>,
) -> Result<(StatusCode, Json<ClassAnswer>), Refused> {
    let name = request.name.clone();
    node.class_create(request).await?;
    Ok((StatusCode::CREATED, class_answer(&node, &name, Pace::AtOnce).await?))
}

async fn class_answer(node: &Arc<Control>, name: &Name, pace: Pace) -> Answer<ClassAnswer> {
    let found = Reading::take(node, pace).await?.class(name);
    found.map(Json).ok_or_else(|| not_found("class", name))
}

/// One class.
#[utoipa::path(get, path = "/v1/classes/{name}", tag = "classes",
    params(("name" = Name, Path)),
    responses((status = 200, body = ClassAnswer), (status = "default", body = Report)))]
async fn class(State(node): Node, pace: Pace, path: Path<String>) -> Answer<ClassAnswer> {
    class_answer(&node, &name_of(path)?, pace).await
}

/// Changes a class; takes effect at once.
#[utoipa::path(patch, path = "/v1/classes/{name}", tag = "classes",
    params(("name" = Name, Path)), request_body = ClassPatch,
    responses((status = 200, body = ClassAnswer), (status = "default", body = Report)))]
async fn class_set(
    State(node): Node,
    path: Path<String>,
    Body(patch): Body<ClassPatch>,
) -> Answer<ClassAnswer> {
    let name = name_of(path)?;
    node.class_set(&name, patch).await?;
    class_answer(&node, &name, Pace::AtOnce).await
}

/// Deletes a class that no volume uses.
#[utoipa::path(delete, path = "/v1/classes/{name}", tag = "classes",
    params(("name" = Name, Path)),
    responses((status = 204), (status = "default", body = Report)))]
async fn class_delete(State(node): Node, path: Path<String>) -> Result<StatusCode, Refused> {
    node.class_delete(&name_of(path)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All levels, fastest first.
#[utoipa::path(get, path = "/v1/levels", tag = "node",
    responses((status = 200, body = Vec<LevelAnswer>), (status = "default", body = Report)))]
async fn levels(State(node): Node, pace: Pace) -> Answer<Vec<LevelAnswer>> {
    Ok(Json(Reading::take(&node, pace).await?.levels()))
}

/// Changes when a level is destaged and freed.
#[utoipa::path(patch, path = "/v1/levels/{name}", tag = "node",
    params(("name" = Name, Path)), request_body = WatermarksPatch,
    responses((status = 200, body = LevelAnswer), (status = "default", body = Report)))]
async fn level_set(
    State(node): Node,
    path: Path<String>,
    Body(patch): Body<WatermarksPatch>,
) -> Answer<LevelAnswer> {
    let name = name_of(path)?;
    node.level_set(&name, patch).await?;
    let found = Reading::take(&node, Pace::AtOnce).await?.level(&name);
    found.map(Json).ok_or_else(|| not_found("level", &name))
}

/// How dirty blocks go home and how far reads run ahead.
#[utoipa::path(get, path = "/v1/writeback", tag = "node",
    responses((status = 200, body = WritebackAnswer), (status = "default", body = Report)))]
async fn writeback(State(node): Node, pace: Pace) -> Answer<WritebackAnswer> {
    Ok(Json(Reading::take(&node, pace).await?.writeback()))
}

/// Changes how dirty blocks go home and how far reads run ahead.
#[utoipa::path(patch, path = "/v1/writeback", tag = "node", request_body = WritebackPatch,
    responses((status = 200, body = WritebackAnswer), (status = "default", body = Report)))]
async fn writeback_set(
    State(node): Node,
    Body(patch): Body<WritebackPatch>,
) -> Answer<WritebackAnswer> {
    node.writeback_set(patch).await?;
    Ok(Json(Reading::take(&node, Pace::AtOnce).await?.writeback()))
}

/// The way up to object stores.
#[utoipa::path(get, path = "/v1/uplink", tag = "node",
    responses((status = 200, body = UplinkAnswer), (status = "default", body = Report)))]
async fn uplink(State(node): Node, pace: Pace) -> Answer<UplinkAnswer> {
    Ok(Json(Reading::take(&node, pace).await?.uplink()))
}

/// Changes how fast the way up is used; takes effect at once.
#[utoipa::path(patch, path = "/v1/uplink", tag = "node", request_body = UplinkConfig,
    responses((status = 200, body = UplinkAnswer), (status = "default", body = Report)))]
async fn uplink_set(State(node): Node, Body(change): Body<UplinkConfig>) -> Answer<UplinkAnswer> {
    node.uplink_set(change).await?;
    Ok(Json(Reading::take(&node, Pace::AtOnce).await?.uplink()))
}

/// The recording of requests that is under way.
#[utoipa::path(get, path = "/v1/recording", tag = "node",
    responses((status = 200, body = RecordingAnswer), (status = "default", body = Report)))]
async fn recording(State(node): Node) -> Answer<RecordingAnswer> {
    Ok(Json(node.recording().await?))
}

/// Starts to record the requests of clients; whoever asked takes them away again and again.
#[utoipa::path(post, path = "/v1/recording", tag = "node", request_body = RecordingStart,
    responses((status = 201, body = RecordingAnswer), (status = "default", body = Report)))]
async fn recording_start(
    State(node): Node,
    Body(start): Body<RecordingStart>,
) -> Result<(StatusCode, Json<RecordingAnswer>), Refused> {
    Ok((StatusCode::CREATED, Json(node.start_recording(start).await?)))
}

/// Ends the recording: its recorder takes the rest and is told.
#[utoipa::path(delete, path = "/v1/recording", tag = "node",
    responses((status = 204), (status = "default", body = Report)))]
async fn recording_stop(State(node): Node) -> Result<StatusCode, Refused> {
    node.stop_recording().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether the recording is over afterwards.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TakeQuery {
    end: Option<bool>,
}

/// Takes what was recorded since the last time: binary rows that docs/formats.md describes.
#[utoipa::path(post, path = "/v1/recording/{id}/take", tag = "node",
    params(("id" = u64, Path), TakeQuery),
    responses((status = 200, content_type = "application/octet-stream"),
        (status = "default", body = Report)))]
async fn recording_take(
    State(node): Node,
    Path(id): Path<String>,
    query: Result<Query<TakeQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(query) = query.map_err(|refused| wrong(refused.body_text()))?;
    let id = id.parse().map_err(|_| wrong(format!("`{}` is no number", id.escape_debug())))?;
    let bytes = node.take_recorded(id, query.end.unwrap_or(false)).await?.encode();
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

/// Live sizing: shares, what was predicted and what came, what other sizes or policies would do.
#[utoipa::path(get, path = "/v1/sizing", tag = "node",
    responses((status = 200, body = SizingAnswer), (status = "default", body = Report)))]
async fn sizing(State(node): Node) -> Json<SizingAnswer> {
    Json(SizingAnswer::of(&node))
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "node",
    responses((status = 200, content_type = "application/json")))]
async fn schema() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi()).into_response()
}

/// Metrics, in the OpenMetrics text format where `Accept` asks for it, else in Prometheus' own.
#[utoipa::path(get, path = "/metrics", tag = "node",
    responses((status = 200, content((String = "text/plain"),
            (String = "application/openmetrics-text"))),
        (status = "default", body = Report)))]
async fn metrics(State(node): Node, pace: Pace, headers: HeaderMap) -> Result<Response, Refused> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::preferred(accept);
    let text = format.write(Reading::take(&node, pace).await?.metrics());
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

async fn no_such_path(uri: Uri) -> Refused {
    Refused(
        Report::new(ReportKind::NotFound, format!("cannot answer `{}`", uri.path()))
            .cause("this node has no such path")
            .state("nothing was changed")
            .hint("`/v1/openapi.json` lists the paths"),
    )
}

async fn no_such_method(method: Method, uri: Uri) -> Response {
    let report = Report::new(ReportKind::Invalid, format!("cannot {method} `{}`", uri.path()))
        .cause("this path does not answer that method")
        .state("nothing was changed")
        .hint("`/v1/openapi.json` lists the methods of each path");
    (StatusCode::METHOD_NOT_ALLOWED, Json(report)).into_response()
}
