//! Talks to a running node through the control socket in its directory.
//!
//! How: one HTTP/1.1 request per connection. A refusal comes back as the [`Report`] that the node
//! wrote, so that an operator reads the same words wherever the fault was found.
//! A question has a time limit. A change is waited for as long as the node answers anything at all;
//! what waits for devices and stores by its nature has no limit. What is waited for is noted.
//! Invariant: an answer is at most [`ANSWER_BYTES_MAX`] long.
//! Cost: a connection per request, and one per time limit of a change that takes longer.

use crate::api::{
    AcceptedLossAnswer, ClassAnswer, ClientAnswer, DeletedAnswer, LeftAnswer, LevelAnswer,
    SizingAnswer, SnapshotAnswer, StatusAnswer, UplinkAnswer, VolumeAnswer, WritebackAnswer,
};
use crate::config::{Name, UplinkConfig};
use crate::control::{
    ClassCreate, ClassPatch, DeleteData, Recorded, RecordingAnswer, RecordingStart, SnapshotCreate,
    UndeleteRequest, VolumeCreate, VolumePatch, WatermarksPatch, WritebackPatch,
};
use crate::error::{Report, ReportKind};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Bytes of an answer at most.
pub(super) const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How long a node may leave a question unanswered when nothing is said.
pub(super) const ANSWER_WITHIN_DEFAULT: Duration = Duration::from_secs(10);
/// How long a change takes until it is noted what is waited for.
const NOTE_AFTER: Duration = Duration::from_secs(5);
/// What answers whenever the node answers anything.
const HEALTH_PATH: &str = "/healthz";

/// A client of one node's control API.
#[derive(Clone, Debug)]
pub struct ControlClient {
    socket: PathBuf,
    within: Duration,
    note_after: Duration,
    note: fn(&str),
}

const NOTHING: Option<&()> = None;

impl ControlClient {
    /// A client of the node that listens on `socket`; nothing is connected yet.
    #[must_use]
    pub fn new(socket: &Path) -> ControlClient {
        ControlClient {
            socket: socket.to_owned(),
            within: ANSWER_WITHIN_DEFAULT,
            note_after: NOTE_AFTER,
            note: |_| (),
        }
    }

    /// The same where a question is to be answered within this time.
    #[must_use]
    pub fn within(self, within: Duration) -> ControlClient {
        ControlClient { within, ..self }
    }

    /// The same where `note` gets a line on what is waited for, if that takes some seconds.
    #[must_use]
    pub fn noting(self, note: fn(&str)) -> ControlClient {
        ControlClient { note, ..self }
    }

    /// The whole node.
    ///
    /// # Errors
    /// A report, as all methods here.
    pub async fn status(&self) -> Result<StatusAnswer, Report> {
        self.get("/v1/status").await
    }
    /// Live sizing and what other sizes or policies would do.
    ///
    /// # Errors
    /// A report.
    pub async fn sizing(&self) -> Result<SizingAnswer, Report> {
        self.get("/v1/sizing").await
    }
    /// All volumes.
    ///
    /// # Errors
    /// A report.
    pub async fn volumes(&self) -> Result<Vec<VolumeAnswer>, Report> {
        self.get("/v1/volumes").await
    }
    /// One volume.
    ///
    /// # Errors
    /// A report.
    pub async fn volume(&self, name: &Name) -> Result<VolumeAnswer, Report> {
        self.get(&format!("/v1/volumes/{name}")).await
    }
    /// Creates a volume.
    ///
    /// # Errors
    /// A report.
    pub async fn volume_create(&self, request: &VolumeCreate) -> Result<VolumeAnswer, Report> {
        self.answer(Method::POST, "/v1/volumes", Some(request)).await
    }
    /// Changes a volume.
    ///
    /// # Errors
    /// A report.
    pub async fn volume_set(&self, name: &Name, p: &VolumePatch) -> Result<VolumeAnswer, Report> {
        self.answer(Method::PATCH, &format!("/v1/volumes/{name}"), Some(p)).await
    }
    /// Deletes a volume, or with a number one that was deleted before; says what is left of its
    /// data where that was not to be kept, and why.
    ///
    /// # Errors
    /// A report.
    pub async fn volume_delete(
        &self,
        name: &Name,
        data: DeleteData,
        number: Option<u32>,
    ) -> Result<Option<LeftAnswer>, Report> {
        let data = match data {
            DeleteData::Keep => "keep",
            DeleteData::Delete => "delete",
            DeleteData::Now => "now",
        };
        let number = number.map(|number| format!("&number={number}")).unwrap_or_default();
        let path = format!("/v1/volumes/{name}?data={data}{number}");
        let answer = self.call(Method::DELETE, &path, NOTHING).await?;
        let left = || serde_json::from_slice(&answer).map_err(|e| strange(&e.to_string()));
        (!answer.is_empty()).then(left).transpose()
    }
    /// Deleted volumes that can come back or are not all gone.
    ///
    /// # Errors
    /// A report.
    pub async fn deleted_volumes(&self) -> Result<Vec<DeletedAnswer>, Report> {
        self.get("/v1/deleted-volumes").await
    }
    /// Takes the deletion of a volume back.
    ///
    /// # Errors
    /// A report.
    pub async fn volume_undelete(
        &self,
        name: &Name,
        request: &UndeleteRequest,
    ) -> Result<VolumeAnswer, Report> {
        let path = format!("/v1/deleted-volumes/{name}/undelete");
        self.answer(Method::POST, &path, Some(request)).await
    }
    /// Serves a volume that waits for a lost level, without what that level held of it.
    ///
    /// # Errors
    /// A report.
    pub async fn volume_accept_loss(&self, name: &Name) -> Result<AcceptedLossAnswer, Report> {
        self.answer(Method::POST, &format!("/v1/volumes/{name}/accept-loss"), NOTHING).await
    }
    /// The snapshots of a volume.
    ///
    /// # Errors
    /// A report.
    pub async fn snapshots(&self, volume: &Name) -> Result<Vec<SnapshotAnswer>, Report> {
        self.get(&format!("/v1/volumes/{volume}/snapshots")).await
    }
    /// Makes a snapshot; answers when the store has it.
    ///
    /// # Errors
    /// A report.
    pub async fn snapshot_create(
        &self,
        volume: &Name,
        name: Name,
    ) -> Result<SnapshotAnswer, Report> {
        let path = format!("/v1/volumes/{volume}/snapshots");
        self.answer(Method::POST, &path, Some(&SnapshotCreate { name })).await
    }
    /// Deletes a snapshot.
    ///
    /// # Errors
    /// A report.
    pub async fn snapshot_delete(&self, volume: &Name, name: &Name) -> Result<(), Report> {
        let path = format!("/v1/volumes/{volume}/snapshots/{name}");
        self.call(Method::DELETE, &path, NOTHING).await.map(drop)
    }
    /// Writes back the dirty blocks of a volume, or of all.
    ///
    /// # Errors
    /// A report.
    pub async fn drain(&self, name: Option<&Name>) -> Result<(), Report> {
        let path = name.map_or("/v1/drain".to_owned(), |name| format!("/v1/volumes/{name}/drain"));
        self.call(Method::POST, &path, NOTHING).await.map(drop)
    }
    /// All clients that are connected over NBD.
    ///
    /// # Errors
    /// A report.
    pub async fn clients(&self) -> Result<Vec<ClientAnswer>, Report> {
        self.get("/v1/clients").await
    }
    /// Closes a client's connection.
    ///
    /// # Errors
    /// A report.
    pub async fn client_disconnect(&self, number: u64) -> Result<(), Report> {
        self.call(Method::DELETE, &format!("/v1/clients/{number}"), NOTHING).await.map(drop)
    }
    /// All classes.
    ///
    /// # Errors
    /// A report.
    pub async fn classes(&self) -> Result<Vec<ClassAnswer>, Report> {
        self.get("/v1/classes").await
    }
    /// One class.
    ///
    /// # Errors
    /// A report.
    pub async fn class(&self, name: &Name) -> Result<ClassAnswer, Report> {
        self.get(&format!("/v1/classes/{name}")).await
    }
    /// Creates a class.
    ///
    /// # Errors
    /// A report.
    pub async fn class_create(&self, request: &ClassCreate) -> Result<ClassAnswer, Report> {
        self.answer(Method::POST, "/v1/classes", Some(request)).await
    }
    /// Changes a class.
    ///
    /// # Errors
    /// A report.
    pub async fn class_set(&self, name: &Name, patch: &ClassPatch) -> Result<ClassAnswer, Report> {
        self.answer(Method::PATCH, &format!("/v1/classes/{name}"), Some(patch)).await
    }
    /// Deletes a class.
    ///
    /// # Errors
    /// A report.
    pub async fn class_delete(&self, name: &Name) -> Result<(), Report> {
        self.call(Method::DELETE, &format!("/v1/classes/{name}"), NOTHING).await.map(drop)
    }
    /// All levels.
    ///
    /// # Errors
    /// A report.
    pub async fn levels(&self) -> Result<Vec<LevelAnswer>, Report> {
        self.get("/v1/levels").await
    }
    /// Changes when a level is destaged and freed.
    ///
    /// # Errors
    /// A report.
    pub async fn level_set(&self, name: &Name, p: &WatermarksPatch) -> Result<LevelAnswer, Report> {
        self.answer(Method::PATCH, &format!("/v1/levels/{name}"), Some(p)).await
    }
    /// How dirty blocks go home.
    ///
    /// # Errors
    /// A report.
    pub async fn writeback(&self) -> Result<WritebackAnswer, Report> {
        self.get("/v1/writeback").await
    }
    /// Changes how dirty blocks go home.
    ///
    /// # Errors
    /// A report.
    pub async fn writeback_set(&self, patch: &WritebackPatch) -> Result<WritebackAnswer, Report> {
        self.answer(Method::PATCH, "/v1/writeback", Some(patch)).await
    }

    /// The way up to object stores.
    ///
    /// # Errors
    /// A report.
    pub async fn uplink(&self) -> Result<UplinkAnswer, Report> {
        self.get("/v1/uplink").await
    }
    /// Changes how fast the way up is used.
    ///
    /// # Errors
    /// A report.
    pub async fn uplink_set(&self, change: &UplinkConfig) -> Result<UplinkAnswer, Report> {
        self.answer(Method::PATCH, "/v1/uplink", Some(change)).await
    }

    /// The recording under way.
    ///
    /// # Errors
    /// A report.
    pub async fn recording(&self) -> Result<RecordingAnswer, Report> {
        self.get("/v1/recording").await
    }
    /// Starts a recording.
    ///
    /// # Errors
    /// A report.
    pub async fn recording_start(&self, start: &RecordingStart) -> Result<RecordingAnswer, Report> {
        self.answer(Method::POST, "/v1/recording", Some(start)).await
    }
    /// Asks whoever records to end.
    ///
    /// # Errors
    /// A report.
    pub async fn recording_stop(&self) -> Result<(), Report> {
        self.call(Method::DELETE, "/v1/recording", NOTHING).await.map(drop)
    }
    /// Takes what recording `id` has noted; with `end` it is over.
    ///
    /// # Errors
    /// A report.
    pub async fn recording_take(&self, id: u64, end: bool) -> Result<Recorded, Report> {
        let path = format!("/v1/recording/{id}/take?end={end}");
        let bytes = self.call(Method::POST, &path, NOTHING).await?;
        Recorded::decode(&bytes).ok_or_else(|| strange("its list of requests is damaged"))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Report> {
        self.answer(Method::GET, path, NOTHING).await
    }

    async fn answer<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, Report> {
        let bytes = self.call(method, path, body).await?;
        serde_json::from_slice(&bytes).map_err(|cause| strange(&cause.to_string()))
    }

    /// Returns the body of a good answer, in the time that the request may take.
    async fn call<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Bytes, Report> {
        let wait = waits_for(&method, path);
        let is_question = method == Method::GET;
        let interrupt = interrupt_text(&method, path);
        let mut exchange = std::pin::pin!(self.exchange(method, path, body));
        if is_question {
            return timeout(self.within, exchange).await.unwrap_or_else(|_| Err(self.silent()));
        }
        if let Ok(answer) = timeout(self.note_after, &mut exchange).await {
            return answer;
        }
        let what = wait.unwrap_or("the node's answer");
        (self.note)(&format!("waiting for {what}; {interrupt}"));
        if wait.is_some() {
            return exchange.await;
        }
        loop {
            let health = self.exchange(Method::GET, HEALTH_PATH, NOTHING);
            let health = tokio::select! {
                answer = &mut exchange => return answer,
                health = timeout(self.within, health) => health.map_err(|_| self.silent())?,
            };
            // The node has the request already: that it takes no other one says nothing of it.
            let gone = health.err().filter(|gone| gone.kind == ReportKind::Unreachable);
            if let Ok(answer) = timeout(self.within, &mut exchange).await {
                return answer;
            }
            if let Some(gone) = gone {
                return Err(self.lost(&gone.cause));
            }
        }
    }

    /// Sends a request and returns the body of a good answer.
    async fn exchange<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Bytes, Report> {
        let body = body.map(|body| serde_json::to_vec(body)).transpose().map_err(|e| unsent(&e))?;
        let connecting = timeout(self.within, UnixStream::connect(&self.socket)).await;
        let stream = connecting.map_err(|_| self.silent())?.map_err(|e| self.unreachable(&e))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .expect("names need no escaping in a path");
        let lost = |cause: &dyn std::fmt::Display| self.lost(cause);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| lost(&e))?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|e| lost(&e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let bytes = body.collect().await.map_err(|e| lost(&e))?.to_bytes();
        connection.abort();
        if status.is_success() { Ok(bytes) } else { Err(refusal(status, &bytes)) }
    }

    fn unreachable(&self, cause: &std::io::Error) -> Report {
        let error = format!("cannot reach a node at `{}`", self.socket.display());
        if cause.kind() == std::io::ErrorKind::PermissionDenied {
            return Report::from_io(error, cause)
                .state("nothing was changed")
                .hint("run this command as the node's user");
        }
        Report::new(ReportKind::Unreachable, error)
            .cause(cause.to_string())
            .state("nothing was changed")
            .hint("start it with `layby serve`, or name its directory with --dir")
    }

    /// The node has taken the connection, or its system has, and says nothing.
    fn silent(&self) -> Report {
        self.lost(&format_args!("no answer within {} s", self.within.as_secs_f64())).hint(
            "see whether its process is stopped or its devices are stuck, then repeat the \
             command; --timeout gives it longer",
        )
    }

    fn lost(&self, cause: &dyn std::fmt::Display) -> Report {
        let error = format!("the node at `{}` did not answer", self.socket.display());
        Report::new(ReportKind::Unreachable, error)
            .cause(cause.to_string())
            .state("the request may or may not have been carried out")
            .hint("look with `layby status`, then repeat the command if need be")
    }
}

/// What an interrupt does to a request: what could be half made is made to its end.
fn interrupt_text(method: &Method, path: &str) -> &'static str {
    let is_post = *method == Method::POST;
    match path.rsplit('/').next() {
        Some("snapshots") if is_post => "an interrupt withdraws it, unless it has begun",
        Some("drain") if is_post => "an interrupt ends the waiting, and uploads go on as before",
        _ => "an interrupt ends the waiting, not the request",
    }
}

/// What a request waits for by its nature, however long that takes.
fn waits_for(method: &Method, path: &str) -> Option<&'static str> {
    let is_volume = path.starts_with("/v1/volumes");
    match *method {
        Method::POST if path.ends_with("/drain") => Some("dirty blocks to be written back"),
        Method::POST if path.ends_with("/undelete") => Some("the volume to be served again"),
        Method::POST if path.ends_with("/accept-loss") => Some("the volume to be served"),
        Method::POST | Method::DELETE if is_volume && path.contains("/snapshots") => {
            Some("the object store to have the snapshot's change")
        }
        Method::POST if is_volume => Some("the volume's home to take it"),
        Method::DELETE if is_volume => Some("the volume to be written back or removed"),
        _ => None,
    }
}

/// A request that cannot be written as JSON: a path of it is no text.
fn unsent(cause: &serde_json::Error) -> Report {
    Report::new(ReportKind::Invalid, "cannot send the request")
        .cause(cause.to_string())
        .state("nothing was changed")
        .hint("a node takes paths in UTF-8 alone: rename the file or folder, or make a link to it")
}

fn strange(cause: &str) -> Report {
    Report::new(ReportKind::Failure, "cannot understand the node's answer")
        .cause(cause)
        .state("the request was carried out")
        .hint("use the program of the same version as the node")
}

fn refusal(status: StatusCode, bytes: &[u8]) -> Report {
    serde_json::from_slice(bytes).unwrap_or_else(|_| {
        Report::new(ReportKind::Failure, "the node refused the request")
            .cause(format!("HTTP {status}"))
            .state("nothing was changed")
            .hint("use the program of the same version as the node")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use crate::sockets::{CONTROL_SOCKET_MODE, UnixSocket};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    static NOTES: AtomicU64 = AtomicU64::new(0);

    /// Goal: a node that takes connections and never answers holds up no question and no change; a
    /// drain waits for it, and says so. Method: a socket that nobody serves, and short times.
    #[tokio::test]
    async fn a_stuck_node_is_given_up() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let path = dir.path().join("control.sock");
        let _stuck = tokio::net::UnixListener::bind(&path).expect("a fresh path");
        let client = ControlClient::new(&path).within(Duration::from_millis(50));
        let client = client.noting(|line| {
            assert!(line.starts_with("waiting for"), "{line}");
            NOTES.fetch_add(1, Ordering::Relaxed);
        });
        let client = ControlClient { note_after: Duration::from_millis(10), ..client };
        let refused = client.status().await.expect_err("nobody answers");
        assert_eq!((refused.kind, refused.kind.exit_code()), (ReportKind::Unreachable, 5));
        assert!(refused.cause.contains("no answer within 0.05 s"), "{refused}");
        let name: Name = "a".parse().expect("a name");
        let change = client.class_set(&name, &ClassPatch::default()).await;
        assert_eq!(change.expect_err("nobody answers").kind, ReportKind::Unreachable);
        let drain = timeout(Duration::from_millis(300), client.drain(None)).await;
        assert!(drain.is_err(), "a drain waits");
        assert_eq!(NOTES.load(Ordering::Relaxed), 2);
    }

    static NOTED: tokio::sync::Notify = tokio::sync::Notify::const_new();

    /// Goal: a change whose node stops meanwhile is never said not to have been made: its answer
    /// counts, and without one the client does not know. Method: a node that has received the
    /// request and whose socket goes; it answers, or is silent.
    #[tokio::test]
    async fn a_change_that_a_stop_overtakes_may_have_been_made() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        for (round, is_answered) in [true, false].into_iter().enumerate() {
            let path = dir.path().join(format!("control{round}.sock"));
            let stopping = tokio::net::UnixListener::bind(&path).expect("a fresh path");
            let within = Duration::from_millis(if is_answered { 60_000 } else { 50 });
            let client = ControlClient::new(&path).within(within).noting(|_| NOTED.notify_one());
            let client = ControlClient { note_after: Duration::from_millis(10), ..client };
            let changing = tokio::spawn(async move {
                let name: Name = "a".parse().expect("a name");
                client.volume_set(&name, &VolumePatch::default()).await
            });
            let (mut stream, _) = stopping.accept().await.expect("the client connects");
            std::fs::remove_file(&path).expect("a writable directory");
            drop(stopping);
            NOTED.notified().await;
            if is_answered {
                let body = serde_json::to_vec(&Report::new(ReportKind::Failure, "it stops"));
                let body = body.expect("a report is JSON");
                let head = "HTTP/1.1 500 Internal Server Error\r\ncontent-length";
                let head = format!("{head}: {}\r\n\r\n", body.len());
                let answer = [head.into_bytes(), body].concat();
                let written = tokio::io::AsyncWriteExt::write_all(&mut stream, &answer).await;
                written.expect("the client is there");
            }
            let refused = changing.await.expect("no panic").expect_err("it stops");
            assert_eq!(refused.error == "it stops", is_answered, "{refused}");
            assert_ne!(refused.state, "nothing was changed", "{refused}");
            assert!(is_answered || refused.state.contains("may or may not"), "{refused}");
        }
    }

    /// Goal: what cannot be sent is refused as a wrong value, before anything is sent. Method: a
    /// path that is no text, and a node that takes connections and reads nothing.
    #[tokio::test]
    async fn a_path_that_is_no_text_is_refused() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let path = dir.path().join("control.sock");
        let _stuck = tokio::net::UnixListener::bind(&path).expect("a fresh path");
        let request = serde_json::from_str("{\"name\":\"a\",\"size\":\"1MiB\"}").expect("JSON");
        let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"/srv/\xff.img");
        let odd: &std::ffi::OsStr = odd;
        let request = VolumeCreate { path: Some(odd.into()), ..request };
        let refused = ControlClient::new(&path).volume_create(&request).await;
        let refused = refused.expect_err("JSON has no such text");
        assert_eq!((refused.kind, refused.kind.exit_code()), (ReportKind::Invalid, 2));
        assert!(refused.cause.contains("UTF-8") && !refused.hint.is_empty(), "{refused}");
        assert_eq!(refused.state, "nothing was changed");
    }

    /// Goal: what the client sends is what the node understands, and refusals come back whole.
    /// Method: the client against the API on a real socket, one call of each kind.
    #[tokio::test]
    async fn client_and_api_understand_each_other() {
        let node = MockNode::new("");
        let path = node.dir.path().join("control.sock");
        let client = ControlClient::new(&path);
        let report = client.status().await.expect_err("nobody listens yet");
        assert_eq!(report.kind, ReportKind::Unreachable);
        let socket = UnixSocket::bind(&path, CONTROL_SOCKET_MODE).expect("a fresh path");
        let facts = node.control.facts();
        let door = crate::api::Door::open(&facts.dir, &facts.config.control).expect("no tokens");
        let router = crate::api::router(Arc::clone(&node.control), Arc::new(door));
        let connections = Arc::default();
        let serve = crate::listen::serve_unix(Arc::new(socket), router, connections);
        let serving = tokio::spawn(serve);
        let name = |text: &str| text.parse::<Name>().expect("a name");
        assert_eq!(client.status().await.expect("it answers").volumes.len(), 1);
        let request = serde_json::from_str("{\"name\":\"a\",\"size\":\"1MiB\"}").expect("JSON");
        assert_eq!(client.volume_create(&request).await.expect("free").size_bytes, 1 << 20);
        let taken = client.volume_create(&request).await.expect_err("taken");
        assert_eq!(taken.kind, ReportKind::InUse);
        let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
        assert!(client.volume_set(&name("a"), &patch).await.expect("there").read_only);
        client.drain(Some(&name("a"))).await.expect("there");
        client.drain(None).await.expect("always");
        client.volume_delete(&name("a"), DeleteData::Delete, None).await.expect("there");
        assert_eq!(client.volumes().await.expect("it answers").len(), 1);
        let patch = ClassPatch { rank: Some(7), ..ClassPatch::default() };
        assert_eq!(client.class_set(&name("bulk"), &patch).await.expect("there").settings.rank, 7);
        assert_eq!(client.classes().await.expect("it answers").len(), 3);
        let marks = WatermarksPatch::default();
        assert!(client.level_set(&name("ssd"), &marks).await.is_ok());
        assert!(client.writeback_set(&WritebackPatch::default()).await.is_ok());
        let missing = client.volume(&name("none")).await.expect_err("not there");
        assert_eq!(missing.kind, ReportKind::NotFound);
        serving.abort();
    }
}
