//! Requests through the router, without a socket, against mock shards.

use super::*;
use crate::control::tests::MockNode;
use crate::control::{Authority, Command, NodeFacts, ShardPort};
use crate::homes::tests::{wanted, with_owner};
use axum::body::Body as HttpBody;
use http_body_util::BodyExt;
use layby_engine::control::CommandError;
use layby_types::ErrorKind;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

struct Reply {
    status: u16,
    content_type: String,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e} in {}", self.text))
    }
}

async fn send(node: &MockNode, request: axum::http::request::Builder, body: String) -> Reply {
    let mut request = request.body(HttpBody::from(body)).expect("a good request");
    let uid = rustix::process::geteuid().as_raw();
    if request.extensions().get::<Caller>().is_none() {
        request.extensions_mut().insert(Caller::Unix { uid, pid: None });
    }
    let facts = node.control.facts();
    let door = Door::open(&facts.dir, &facts.config.control).expect("good tokens");
    let router = router(Arc::clone(&node.control), Arc::new(door));
    let response = router.oneshot(request).await.expect("the router does not fail");
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("the API speaks text");
    Reply { status, content_type, text }
}

async fn call(node: &MockNode, method: &str, path: &str, body: Option<Value>) -> Reply {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    match body {
        None => send(node, request, String::new()).await,
        Some(body) => {
            send(node, request.header("content-type", "application/json"), body.to_string()).await
        }
    }
}

/// Goal: a volume's life through the API. Method: create, list, show, change, drain, delete; the
/// answers show the effect.
#[tokio::test]
async fn volumes_live_through_the_api() {
    let node = MockNode::new("");
    let body = json!({"name": "a", "size": "1MiB", "class": "critical", "cap": {"ssd": "10%"}});
    let made = call(&node, "POST", "/v1/volumes", Some(body.clone())).await;
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.json()["size_bytes"], 1 << 20);
    assert_eq!(made.json()["traffic"]["read"]["requests"], 10);
    assert_eq!(call(&node, "POST", "/v1/volumes", Some(body)).await.status, 409);
    let list = call(&node, "GET", "/v1/volumes", None).await.json();
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    let patch = json!({"size": "2MiB", "read_only": true, "allow": ["unix"]});
    let changed = call(&node, "PATCH", "/v1/volumes/a", Some(patch)).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    let shown = call(&node, "GET", "/v1/volumes/a", None).await.json();
    assert_eq!((&shown["size_bytes"], &shown["allow"]), (&json!(2 << 20), &json!(["unix"])));
    assert_eq!(shown["cap"], json!({"ssd": "10%"}));
    assert_eq!(call(&node, "POST", "/v1/volumes/a/drain", None).await.status, 204);
    assert_eq!(call(&node, "DELETE", "/v1/volumes/a?data=later", None).await.status, 400);
    assert_eq!(call(&node, "DELETE", "/v1/volumes/a?data=delete", None).await.status, 204);
    assert_eq!(call(&node, "GET", "/v1/volumes/a", None).await.status, 404);
}

/// Goal: of deleted volumes of one name, which a served one may have, too, each can be removed by
/// its number; nothing else goes by one. Method: three volumes of a name, two of them deleted; a
/// name alone, numbers with other words, the number of the served one; then each number.
#[tokio::test]
async fn deleted_volumes_of_one_name_go_by_number() {
    let (owner, node) = with_owner("");
    let call = async |method: &str, path: &str| call(&node, method, path, None).await;
    for number in 1..=3 {
        let made = node.control.volume_create(wanted("far"), Authority::Owner).await;
        made.expect("the owner has it");
        if number < 3 {
            assert_eq!(call("DELETE", "/v1/volumes/far?data=delete").await.status, 204);
        }
    }
    for (query, status) in
        [("number=1", 400), ("data=delete&number=1", 400), ("data=now&number=3", 404)]
    {
        let refused = call("DELETE", &format!("/v1/volumes/far?{query}")).await;
        assert_eq!(refused.status, status, "{query}: {}", refused.text);
    }
    owner.take();
    for number in [2, 1] {
        let gone = call("DELETE", &format!("/v1/volumes/far?data=now&number={number}")).await;
        assert_eq!(gone.status, 204, "{}", gone.text);
        assert!(owner.was_told(&format!("remove {number}")));
    }
    assert_eq!(call("GET", "/v1/deleted-volumes").await.json(), json!([]));
    assert_eq!(call("GET", "/v1/volumes/far").await.status, 200);
}

/// Goal: a change whose client leaves is made to its end, and the audit log says so. Method: a
/// creation that is dropped after each of its first steps.
#[tokio::test]
async fn a_change_outlives_its_client() {
    let node = MockNode::new("");
    for steps in 1..6 {
        let name = format!("v{steps}");
        let body = json!({"name": name, "size": "1MiB"});
        let mut creation = Box::pin(call(&node, "POST", "/v1/volumes", Some(body)));
        for _ in 0..steps {
            let once = |context: &mut std::task::Context<'_>| {
                let _ = creation.as_mut().poll(context);
                std::task::Poll::Ready(())
            };
            std::future::poll_fn(once).await;
        }
        drop(creation);
        let log = node.dir.path().join(crate::audit::CHANGES_FILE_NAME);
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        while lines().lines().count() < steps {
            tokio::task::yield_now().await;
        }
        assert!(!lines().contains("abandoned"), "{}", lines());
        assert_eq!(call(&node, "GET", &format!("/v1/volumes/{name}"), None).await.status, 200);
    }
}

/// Goal: of a recording the audit log has its start and its end, and no line of what its recorder
/// takes again and again, which needs the right to change all the same. Method: takes of both kinds
/// and words, one that no query describes, and one by a stranger.
#[tokio::test]
async fn a_take_is_no_change() {
    let node = MockNode::new("");
    let started = call(&node, "POST", "/v1/recording", Some(json!({}))).await;
    assert_eq!((started.status, &started.json()["id"]), (201, &json!(1)));
    let stranger = Caller::Http(([127, 0, 0, 1], 9).into());
    for query in ["", "?end=false"] {
        let path = format!("/v1/recording/1/take{query}");
        for _ in 0..3 {
            assert_eq!(call(&node, "POST", &path, None).await.status, 200);
        }
        let request = Request::builder().method("POST").uri(&path).header("host", "localhost");
        let refused = send(&node, request.extension(stranger), String::new()).await;
        assert_eq!(refused.status, 403, "{}", refused.text);
    }
    let lines = |name: &str| {
        let text = std::fs::read_to_string(node.dir.path().join(name)).unwrap_or_default();
        let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
        text.lines().map(|text| line(text)["request"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(lines(crate::audit::CHANGES_FILE_NAME), ["POST /v1/recording"]);
    assert_eq!(lines(crate::audit::REFUSED_FILE_NAME).len(), 2);
    let odd = "/v1/recording/1/take?end=false&end=true";
    assert_eq!(call(&node, "POST", odd, None).await.status, 400);
    let end = "/v1/recording/1/take?end=true";
    assert_eq!(call(&node, "POST", end, None).await.status, 200);
    assert_eq!(call(&node, "DELETE", "/v1/recording", None).await.status, 404);
    let changes = lines(crate::audit::CHANGES_FILE_NAME);
    let odd = format!("POST {odd}");
    assert_eq!(
        changes,
        ["POST /v1/recording", &odd, "POST /v1/recording/1/take?end=true", "DELETE /v1/recording"]
    );
}

/// Goal: classes, marks and limits change at once. Method: through the API, seen by the shards.
#[tokio::test]
async fn settings_change_through_the_api() {
    let node = MockNode::new("");
    let class = json!({"name": "video", "settings": {"rank": 3, "share": {"ssd": "25%"}}});
    let made = call(&node, "POST", "/v1/classes", Some(class)).await;
    assert_eq!((made.status, &made.json()["write_level"]), (201, &json!("ssd")));
    let changed = call(
        &node,
        "PATCH",
        "/v1/classes/video",
        Some(json!({"borrow": true, "keep_reads": true, "admission": "second-miss"})),
    )
    .await;
    assert_eq!(changed.json()["settings"]["borrow"], true);
    let marks = json!({"dirty_red": "60%", "dirty_green": "20%"});
    let level = call(&node, "PATCH", "/v1/levels/nvm", Some(marks)).await;
    assert_eq!(level.json()["watermarks"]["dirty_green"], "20%");
    let limits = json!({"merge_size": "2MiB", "idle_timeout": "250ms"});
    let limits = call(&node, "PATCH", "/v1/writeback", Some(limits)).await.json();
    assert_eq!(limits["idle_timeout"], "250ms");
    for shard in &node.shards {
        let spec = shard.state().spec.clone().expect("it was told");
        assert_eq!(spec.levels[1].watermarks.dirty_green, 20);
        assert_eq!(spec.writeback.merge_bytes, 2 << 20);
        assert!(
            spec.classes[3].borrow
                && spec.classes[3].keep_reads
                && spec.classes[3].admission == layby_cache::AdmissionKind::SecondMiss
                && spec.classes[3].shares[2].guaranteed > 0
        );
    }
    assert_eq!(call(&node, "DELETE", "/v1/classes/video", None).await.status, 204);
    assert_eq!(call(&node, "DELETE", "/v1/classes/normal", None).await.status, 409);
}

/// Goal: a refusal says what, why, in which state and what to do. Method: one request per way to be
/// wrong.
#[tokio::test]
async fn refusals_are_reports() {
    let node = MockNode::new("");
    let volume = |body: Value| ("POST", "/v1/volumes", Some(body));
    let cases = [
        (volume(json!({"name": "a/b", "size": 4096})), 400),
        (volume(json!({"name": "a", "size": "1MiB", "colour": "red"})), 400),
        (volume(json!({"name": "a"})), 400),
        (volume(json!({"name": "a", "size": "1MiB", "class": "gold"})), 400),
        (volume(json!({"name": "a", "size": "1MiB", "share": {"tape": "1%"}})), 400),
        (volume(json!({"name": "a", "size": "1MiB", "allow": ["anyone"]})), 400),
        (("POST", "/v1/volumes", None), 400),
        (("PATCH", "/v1/volumes/none", Some(json!({}))), 404),
        (("DELETE", "/v1/volumes/none", None), 404),
        (("DELETE", "/v1/volumes/a%20b", None), 400),
        (("PATCH", "/v1/classes/none", Some(json!({}))), 404),
        (("PATCH", "/v1/classes/bulk", Some(json!({"levels": ["tape"]}))), 400),
        (("PATCH", "/v1/classes/bulk", Some(json!({"share": {"ssd": "60%"}}))), 400),
        (("PATCH", "/v1/levels/ssd", Some(json!({"dirty_green": "90%"}))), 400),
        (("PATCH", "/v1/levels/tape", Some(json!({}))), 404),
        (("PATCH", "/v1/writeback", Some(json!({"inflight_max": 0}))), 400),
        (("PATCH", "/v1/writeback", Some(json!({"idle_timeout": "2h"}))), 400),
        (("PATCH", "/v1/classes/bulk", Some(json!([null, null, false]))), 400),
        (("PATCH", "/v1/levels/ssd", Some(json!(["100%", "0%"]))), 400),
        (("GET", "/v1/volumes/%ff", None), 400),
        (("DELETE", "/v1/classes/%ff", None), 400),
        (("GET", "/v2/status", None), 404),
        (("PUT", "/v1/status", None), 405),
    ];
    for ((method, path, body), status) in cases {
        let reply = call(&node, method, path, body).await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text);
        let report: Report = serde_json::from_value(reply.json()).expect("a report");
        for line in [&report.error, &report.cause, &report.state, &report.hint] {
            assert!(!line.is_empty(), "{method} {path}: {report}");
        }
    }
    assert_eq!(node.control.view().catalog.volumes.len(), 1, "nothing was created");
}

/// Goal: the audit log names what was changed, however its name was spelt. Method: a volume by an
/// escaped name; fields by their places, which change nothing.
#[tokio::test]
async fn the_audit_log_names_what_was_changed() {
    let node = MockNode::new("");
    let created = json!({"name": "ab", "size": "1MiB"});
    assert_eq!(call(&node, "POST", "/v1/volumes", Some(created)).await.status, 201);
    let listed = json!(["evil", "1MiB"]);
    assert_eq!(call(&node, "POST", "/v1/volumes", Some(listed)).await.status, 400);
    assert_eq!(call(&node, "DELETE", "/v1/volumes/%61b", None).await.status, 204);
    let lines = std::fs::read_to_string(node.control.facts().dir.join("audit.log"));
    let lines = lines.expect("changes leave lines");
    let last: Value = serde_json::from_str(lines.lines().last().expect("one")).expect("JSON");
    assert_eq!(last["request"], "DELETE /v1/volumes/ab");
    assert!(node.control.view().catalog.volumes.keys().all(|name| name.to_string() != "evil"));
}

/// Goal: a change needs the node's user, root, or a token; a read needs nothing. Method: one change
/// and one read by callers of each kind, to a node without tokens and one with; the audit log.
#[tokio::test]
async fn changes_need_authority() {
    let node = MockNode::new("");
    let own = rustix::process::geteuid().as_raw();
    let http = || Some(Caller::Http(([127, 0, 0, 1], 9).into()));
    let unix = |uid| Some(Caller::Unix { uid, pid: Some(1) });
    let secret = "ab".repeat(16);
    let request = |method: &str, caller: Option<Caller>, token: Option<String>| {
        let mut request = Request::builder().method(method).uri("/v1/volumes/none");
        request = request.header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        request.extension(caller.expect("a caller"))
    };
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    for (caller, token, status) in [
        (unix(own), None, 404),
        (unix(0), None, 404),
        (unix(own + 1), None, 403),
        (http(), None, 403),
        (http(), bearer(&secret), 403),
    ] {
        let got = send(&node, request("DELETE", caller, token.clone()), String::new()).await;
        assert_eq!(got.status, status, "{caller:?} {token:?}: {}", got.text);
        assert_eq!(send(&node, request("GET", caller, None), String::new()).await.status, 404);
    }
    let dir = TempDir::new().expect("a temporary directory");
    let file = dir.path().join("tokens");
    std::fs::write(&file, format!("ops {secret}\n")).expect("the test's own file");
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, only_owner).expect("the test's own file");
    let node = MockNode::on(dir, "[control]\ntoken_file = \"tokens\"\n");
    for (token, status) in [
        (None, 401),
        (bearer(&secret), 404),
        (bearer(&secret[1..]), 401),
        (Some(format!("Basic {secret}")), 401),
    ] {
        let got = send(&node, request("DELETE", http(), token.clone()), String::new()).await;
        assert_eq!(got.status, status, "{token:?}: {}", got.text);
    }
    let log =
        |name: &str| std::fs::read_to_string(node.dir.path().join(name)).expect("it is there");
    assert!(log(crate::audit::CHANGES_FILE_NAME).contains("\"token\":\"ops\""));
    assert_eq!(log(crate::audit::REFUSED_FILE_NAME).lines().count(), 3);
    assert!(!log(crate::audit::REFUSED_FILE_NAME).contains(&secret[1..]));
}

/// Goal: a foreign page and a huge body are refused. Method: headers as a browser sends them.
#[tokio::test]
async fn foreign_pages_are_refused() {
    let node = MockNode::new("");
    let post = || Request::builder().method("DELETE").uri("/v1/volumes/vol0");
    let rebound = post().header("host", "evil.example");
    assert_eq!(send(&node, rebound, String::new()).await.status, 403);
    let foreign = post().header("host", "127.0.0.1:80").header("origin", "http://evil.example");
    assert_eq!(send(&node, foreign, String::new()).await.status, 403);
    let large = json!({"name": "a".repeat(BODY_BYTES_MAX)});
    assert_eq!(call(&node, "POST", "/v1/volumes", Some(large)).await.status, 400);
    assert_eq!(node.control.view().catalog.volumes.len(), 1);
}

/// Goal: the status and the metrics are whole. Method: fields that scripts rely on.
#[tokio::test]
async fn status_and_metrics_are_served() {
    let node = MockNode::new("");
    let status = call(&node, "GET", "/v1/status", None).await.json();
    assert_eq!(status["levels"][1]["blocks_resident"], 100);
    assert_eq!(status["classes"][0]["acknowledged"], "durable");
    assert_eq!(status["volumes"][0]["traffic"]["hits"]["nvm"], 3);
    assert_eq!(status["shards"].as_array().map(Vec::len), Some(2));
    let text: StatusAnswer = serde_json::from_value(status).expect("clients read it back");
    assert_eq!(text.volumes.len(), 1);
    let metrics = call(&node, "GET", "/metrics", None).await;
    assert_eq!(metrics.content_type, Format::Plain.content_type());
    let open = Request::builder().uri("/metrics").header("host", "localhost");
    let open = open.header("accept", "application/openmetrics-text");
    let open = send(&node, open, String::new()).await;
    assert_eq!(open.content_type, Format::OpenMetrics.content_type());
    assert!(open.text.ends_with("# EOF\n"));
}

/// Goal: the committed description is what this program serves. Method: compare the texts; with
/// `LAYBY_WRITE_OPENAPI` set the file is renewed instead.
#[tokio::test]
async fn committed_openapi_is_current() {
    let node = MockNode::new("");
    let served = call(&node, "GET", "/v1/openapi.json", None).await;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    if std::env::var_os("LAYBY_WRITE_OPENAPI").is_some() {
        std::fs::write(file, &served.text).expect("the repository is writable");
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == served.text,
        "docs/openapi.json is old; renew it with \
         `LAYBY_WRITE_OPENAPI=1 cargo test -p layby-daemon openapi`"
    );
}

/// Goal: the description holds what its format demands. Method: each response has a description,
/// and each reference has a target.
#[test]
fn description_is_whole() {
    let text = openapi();
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let operations = document["paths"].as_object().expect("paths").values();
    for operation in operations.flat_map(|item| item.as_object().expect("methods").values()) {
        for (status, response) in operation["responses"].as_object().expect("responses") {
            let said = response["description"].as_str().unwrap_or_default();
            assert!(!said.is_empty(), "{status} of {}", operation["operationId"]);
        }
    }
    for reference in text.split("\"$ref\": \"#").skip(1) {
        let pointer = reference.split('"').next().expect("it ends");
        assert!(document.pointer(pointer).is_some(), "`{pointer}` leads nowhere");
    }
}

/// Goal: the description names every route. Method: each described path answers its method with
/// something else than "no such path" or "no such method"; the count of routes is frozen.
#[tokio::test]
async fn every_route_is_described() {
    let node = MockNode::new("");
    let described: Value = serde_json::from_str(&openapi()).expect("JSON");
    let paths = described["paths"].as_object().expect("paths");
    let mut routes = 0;
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys() {
            routes += 1;
            let path = path.replace("{name}", "none").replace("{number}", "1");
            let reply = call(&node, &method.to_uppercase(), &path, None).await;
            let described = reply.status != 405 && !reply.text.contains("no such path");
            assert!(described, "{method} {path}: {}", reply.text);
        }
    }
    assert_eq!(routes, 36, "a route was added or removed: describe it in schema.rs");
}

/// Goal: however many ask for counters without any right, a shard makes ten reports a second at
/// most; each answer is of its request's time or later; and the node's user waits for none of them.
/// Method: readers in loops, on both addresses, under a clock that stands; the reports counted.
#[tokio::test(start_paused = true)]
async fn readers_without_rights_share_reports() {
    const READERS: usize = 64;
    const LOOPS: usize = 5;
    let node = Arc::new(MockNode::new(""));
    let paths = ["/readyz", "/metrics", "/v1/status", "/v1/volumes", "/v1/levels", "/v1/classes"];
    let reader = |node: Arc<MockNode>, number: usize| async move {
        let stranger: Caller = match number % 2 {
            0 => Caller::Http(([127, 0, 0, 1], 9).into()),
            _ => Caller::Unix { uid: u32::MAX - 1, pid: None },
        };
        for round in 0..LOOPS {
            let path = paths[(number + round) % paths.len()];
            let request = Request::builder().uri(path).header("host", "localhost");
            let reply = send(&node, request.extension(stranger), String::new()).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
    };
    let begun = tokio::time::Instant::now();
    let readers: tokio::task::JoinSet<()> =
        (0..READERS).map(|number| reader(Arc::clone(&node), number)).collect();
    readers.join_all().await;
    let periods = begun.elapsed().as_millis() / crate::control::ROUND_PERIOD.as_millis();
    let reports = |node: &MockNode, what: &str| {
        let log = &node.shards[0].state().log;
        log.iter().filter(|line| *line == what).count() as u128
    };
    let made = reports(&node, "snapshot");
    assert!(made > 1 && made <= periods + 1, "{made} reports in {periods} periods");
    assert!(made <= 2 * LOOPS as u128, "{made} reports for {LOOPS} loops");
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(call(&node, "GET", "/v1/status", None).await.status, 200);
        let cap = json!({"cap": {"ssd": "10%"}});
        assert_eq!(call(&node, "PATCH", "/v1/volumes/vol0", Some(cap)).await.status, 200);
        assert_eq!(call(&node, "GET", "/v1/clients", None).await.status, 200);
    }
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO, "the node's user waits for no period");
    let seen = reports(&node, "clients");
    assert_eq!(seen, 20);
    let list = |node: Arc<MockNode>| async move {
        let request = Request::builder().uri("/v1/clients").header("host", "localhost");
        let stranger = Caller::Http(([127, 0, 0, 1], 9).into());
        send(&node, request.extension(stranger), String::new()).await.status
    };
    let readers: tokio::task::JoinSet<u16> =
        (0..READERS).map(|_| list(Arc::clone(&node))).collect();
    assert_eq!(readers.join_all().await, [200; READERS]);
    assert!(reports(&node, "clients") <= seen + 2);
}

/// A shard that takes commands and answers none.
#[derive(Default)]
struct HungShard(std::sync::Mutex<Vec<Command>>);

impl ShardPort for HungShard {
    fn send(&self, command: Command) -> Result<(), Box<Command>> {
        self.0.lock().expect("not poisoned").push(command);
        Ok(())
    }
}

/// A node whose second shard answers nothing any more.
fn with_hung_shard() -> MockNode {
    let MockNode { dir, shards, control } = MockNode::new("");
    let facts = control.facts();
    let facts = NodeFacts {
        dir: facts.dir.clone(),
        config: facts.config.clone(),
        reports: facts.reports.clone(),
        uris: facts.uris.clone(),
        homes: facts.homes.clone(),
        intents: facts.intents.clone(),
        lost: facts.lost.clone(),
        paths: Arc::clone(&facts.paths),
        refusals: Arc::default(),
    };
    let view = control.view().as_ref().clone();
    let ports: Vec<Box<dyn ShardPort>> =
        vec![Box::new(shards[0].clone()), Box::new(HungShard::default())];
    MockNode { dir, shards, control: Arc::new(Control::new(facts, ports, view)) }
}

/// Goal: a node is ready while each of its shards answers, and not once one refuses, hangs or has
/// ended; it lives all the same. Method: each of these in the second of two shards, under a clock
/// that stands; a shard that answers again.
#[tokio::test(start_paused = true)]
async fn a_node_with_a_shard_that_does_not_answer_is_not_ready() {
    let node = MockNode::new("");
    let ask = async |node: &MockNode| {
        let (ready, lives) =
            (call(node, "GET", "/readyz", None).await, call(node, "GET", "/healthz", None).await);
        assert_eq!((lives.status, &*lives.text), (200, "ok\n"));
        ready
    };
    let assert_ready = async |node: &MockNode| {
        let ready = ask(node).await;
        assert_eq!((ready.status, &*ready.text), (200, "ready\n"));
    };
    let assert_not_ready = async |node: &MockNode, cause: &str| {
        let refused = ask(node).await;
        assert_eq!(refused.status, 503, "{}", refused.text);
        let told = refused.json();
        assert_eq!(told["error"], "the node is not ready");
        assert!(told["cause"].as_str().is_some_and(|told| told.contains(cause)), "{told}");
    };
    assert_ready(&node).await;
    let refused = CommandError { kind: ErrorKind::Retry, cause: "it is busy".into() };
    node.shards[1].state().fail_next = Some(refused);
    assert_not_ready(&node, "busy").await;
    assert_ready(&node).await;
    node.shards[1].state().stopped = true;
    assert_not_ready(&node, "shard 1").await;
    let begun = tokio::time::Instant::now();
    assert_not_ready(&with_hung_shard(), "a shard does not answer").await;
    assert_eq!(begun.elapsed().as_secs(), 2, "a shard has so long to answer");
}
