//! The control door through the binary: who may change a node, what he leaves in the audit log, and
//! what hung clients cost.
//!
//! How: a node as users start it, requests by a client of a few lines, and by curl as another user
//! of the machine, which needs root here. Each refusal is checked by its effect, too.

use layby_tests::{
    HttpAnswer, HttpRequest, Node, Options, available, layby, run, skip, small_levels,
};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn temporary() -> (TempDir, PathBuf) {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    (work, dir)
}

fn with(config: &str) -> Options {
    let levels = small_levels().config.expect("it has one");
    Options::config(format!("{config}\n{levels}"))
}

fn mode(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("the test's own file");
}

fn delete() -> HttpRequest {
    HttpRequest::new("DELETE", "/v1/volumes/vol0")
}

fn has_volume(node: &Node) -> bool {
    let found = HttpRequest::new("GET", "/v1/volumes/vol0").send_unix(&node.control());
    found.status == 200
}

/// The lines of an audit log.
fn log(dir: &Path, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Whether another user can be played here.
fn can_be_another() -> bool {
    let is_root = run("id", &["-u"]).stdout.trim() == "0";
    if !is_root {
        skip("another user is played by root only");
    }
    is_root && available(&["setpriv", "curl"])
}

/// What curl as user `nobody` gets: the status, and the body.
fn curl_as_another(words: &[&str]) -> String {
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "curl", "-sS"];
    let outcome = run("setpriv", &[&user[..], words].concat());
    format!("{}{}", outcome.stdout, outcome.stderr)
}

/// Goal: a client that sends its request and shuts down its writing side, as `nc -N` does, is
/// answered, and the connection ends behind the answer. Method: requests whose answers wait for the
/// shards and one that does not, on both sockets; each a few times, since an answer may be faster
/// than the end of the request.
#[test]
fn half_closed_clients_are_answered() {
    let (_work, dir) = temporary();
    let node = Node::start(&dir, &small_levels());
    for path in ["/v1/status", "/metrics", "/v1/version"].into_iter().cycle().take(12) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut answers = [String::new(), String::new()];
        let mut unix = UnixStream::connect(node.control()).expect("the node listens");
        unix.write_all(request.as_bytes()).expect("it reads");
        unix.shutdown(Shutdown::Write).expect("it is open");
        unix.read_to_string(&mut answers[0]).expect("an answer");
        let mut tcp = TcpStream::connect(node.http()).expect("the node listens");
        tcp.write_all(request.as_bytes()).expect("it reads");
        tcp.shutdown(Shutdown::Write).expect("it is open");
        tcp.read_to_string(&mut answers[1]).expect("an answer");
        for answer in answers {
            let status = answer.lines().next().unwrap_or_default();
            assert!(status.starts_with("HTTP/1.1 "), "{path}: `{answer}`");
            assert!(answer.contains("\r\n\r\n"), "{path}: {answer}");
        }
    }
}

/// Goal: another user of the machine reads, and changes nothing: by the HTTP address, by the unix
/// socket, and by a unix socket that its owner has opened to all. Method: curl as user `nobody`,
/// with changes of every kind; the audit log has each of them.
#[test]
fn another_user_changes_nothing() {
    if !can_be_another() {
        return;
    }
    let (work, dir) = temporary();
    mode(work.path(), 0o755);
    let node = Node::start(&dir, &small_levels());
    let url = |path: &str| format!("http://{}{path}", node.http());
    let socket = node.control().display().to_string();
    assert!(curl_as_another(&[&url("/metrics")]).contains("layby_uptime_seconds"));
    let json = ["-H", "content-type: application/json", "-d"];
    let body = r#"{"name":"mine","size":"1MiB","key":"command:id"}"#;
    let attempts: [&[&str]; 4] = [
        &["-XDELETE", &url("/v1/volumes/vol0")],
        &["-XPOST", &url("/v1/volumes"), json[0], json[1], json[2], body],
        &["-XPATCH", &url("/v1/classes/bulk"), json[0], json[1], json[2], r#"{"rank":0}"#],
        &["-XPOST", &url("/v1/drain")],
    ];
    for attempt in attempts {
        let answer = curl_as_another(attempt);
        assert!(answer.contains("\"kind\":\"denied\""), "{attempt:?}: {answer}");
    }
    let by_socket = ["--unix-socket", &socket, "-XDELETE", "http://localhost/v1/volumes/vol0"];
    let answer = curl_as_another(&by_socket);
    assert!(answer.contains("Could not connect") || answer.contains("Couldn't"), "{answer}");
    mode(&node.control(), 0o666);
    let answer = curl_as_another(&by_socket);
    assert!(answer.contains("user 65534 is neither"), "{answer}");
    assert!(has_volume(&node));
    let refused = log(&dir, "audit-refused.log");
    assert_eq!(refused.len(), 5, "{refused:?}");
    assert_eq!(refused[4]["uid"], 65534);
    assert!(log(&dir, "audit.log").is_empty(), "nothing was changed");
    node.stop();
}

/// Goal: another user reads nothing of what volumes hold from the node's files. Method: every
/// regular file below the node's directory, read as user `nobody`; the URL alone is for all.
#[test]
fn another_user_reads_no_files() {
    if !can_be_another() {
        return;
    }
    let (work, dir) = temporary();
    mode(work.path(), 0o755);
    let node = Node::start(&dir, &small_levels());
    node.layby(&["volume", "set", "vol0", "--read-only", "true"]);
    let script =
        format!("find {} -type f -readable ! -name control.url 2>/dev/null", dir.display());
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", &script];
    let readable = run("setpriv", &user).stdout;
    assert_eq!(readable, "", "others can read these");
    node.stop();
}

/// Goal: the node's user and root change through the unix socket, and the audit log says who, what
/// and how it ended. Method: a creation, one that is refused, a deletion.
#[test]
fn changes_are_in_the_audit_log() {
    let (_work, dir) = temporary();
    let node = Node::start(&dir, &small_levels());
    node.volume_create("maps", "4MiB", "normal");
    let again = json!({"name": "maps", "size": "4MiB"});
    let again = HttpRequest::new("POST", "/v1/volumes").json(&again).send_unix(&node.control());
    assert_eq!(again.status, 409, "{}", again.body);
    node.layby(&["volume", "delete", "maps", "--data", "delete"]);
    node.layby(&["class", "set", "normal", "--share", "ssd=10%"]);
    let mut lines = log(&dir, "audit.log");
    let changed = lines.pop().expect("the class was changed");
    assert_eq!(changed["fields"]["share"], json!({"ssd": "10%"}), "{changed}");
    assert_eq!(lines[0]["fields"]["size"], "4MiB", "{lines:?}");
    let of = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("result"), ["done", "failed", "done"]);
    assert_eq!(of("status"), [201, 409, 204]);
    assert_eq!(of("name")[..2], ["maps", "maps"]);
    assert_eq!(lines[2]["request"], "DELETE /v1/volumes/maps?data=delete");
    let own: u32 = run("id", &["-u"]).stdout.trim().parse().expect("a number");
    for line in &lines {
        assert!(line["uid"] == own && line["pid"].as_u64() > Some(1), "{line}");
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
    let mode = std::fs::metadata(dir.join("audit.log")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    node.stop();
}

/// Goal: a token lets changes in by the HTTP address, by its name; a wrong one does not, nor a file
/// of tokens that others can read. Method: a node with a token; one whose file has mode 0644.
#[test]
fn a_token_lets_changes_in() {
    let (work, dir) = temporary();
    let (file, secret) = (work.path().join("tokens"), "5a".repeat(24));
    std::fs::write(&file, format!("fleet {secret}\n")).expect("the test's own file");
    let options = with(&format!("[control]\ntoken_file = \"{}\"\n", file.display()));
    mode(&file, 0o644);
    let Err(refusal) = Node::try_start(&dir, &options) else { panic!("others read the tokens") };
    refusal.assert_explains(&["tokens", "chmod 600"]);
    mode(&file, 0o600);
    let node = Node::start(&dir, &options);
    let http = node.http();
    let wrong = [delete(), delete().token(&secret[1..]), delete().token("")];
    for request in wrong {
        let refused = request.send(&http);
        assert_eq!(refused.status, 401, "{}", refused.body);
        assert!(refused.head.to_lowercase().contains("www-authenticate: bearer"));
    }
    assert!(has_volume(&node));
    assert_eq!(delete().token(&secret).send(&http).status, 204);
    assert!(!has_volume(&node));
    assert_eq!(log(&dir, "audit.log")[0]["token"], "fleet");
    for text in [node.stderr(), format!("{:?}", log(&dir, "audit-refused.log"))] {
        assert!(!text.contains(&secret[1..]), "a token is shown");
    }
    let outside = json!({"name": "a", "size": "1MiB", "path": "file:///tmp/outside"});
    let request = HttpRequest::new("POST", "/v1/volumes").json(&outside).token(&secret);
    let refused = request.send(&http);
    assert_eq!(refused.status, 403, "{}", refused.body);
    node.stop();
}

/// Goal: a page in a browser of this machine is no way in, with a token's help or without. Method:
/// what browsers send for a page elsewhere, for a rebound name, and for a page of no origin.
#[test]
fn pages_are_no_way_in() {
    let (work, dir) = temporary();
    let (file, secret) = (work.path().join("tokens"), "5a".repeat(24));
    std::fs::write(&file, &secret).expect("the test's own file");
    mode(&file, 0o600);
    let metrics = Options { arguments: vec!["--metrics".into(), "127.0.0.1:0".into()], ..with("") };
    let options = with(&format!("[control]\ntoken_file = \"{}\"\n", file.display()));
    let node = Node::start(&dir, &Options { arguments: metrics.arguments, ..options });
    let pages = [
        delete().header("origin", "http://evil.example"),
        delete().header("origin", "null"),
        delete().header("host", "evil.example"),
    ];
    for page in pages {
        let refused = page.clone().token(&secret).send(&node.http());
        assert!(matches!(refused.status, 401 | 403), "{page:?}: {}", refused.body);
        assert!(page.send(&node.http()).status >= 400);
    }
    assert!(has_volume(&node));
    let reading = HttpRequest::new("GET", "/v1/status").header("host", "evil.example");
    assert_eq!(reading.send(&node.http()).status, 403);
    let scrape = HttpRequest::new("GET", "/metrics").header("origin", "http://evil.example");
    assert_eq!(scrape.send(&metrics_address(&node)).status, 403);
    node.stop();
}

fn metrics_address(node: &Node) -> String {
    let said = node.said();
    let line = said.lines().find_map(|line| line.strip_prefix("metrics http://"));
    line.and_then(|url| url.strip_suffix("/metrics")).expect("it is printed").to_owned()
}

/// Goal: metrics and health have an address that can be chosen and reached, and that takes no
/// change. Method: by flag, on all of the machine's addresses; every other request is refused; the
/// start says that others can reach it.
#[test]
fn metrics_have_an_address_of_their_own() {
    let (_work, dir) = temporary();
    let flags = ["--metrics", "0.0.0.0:0", "--http", "off"].map(str::to_owned).to_vec();
    let node = Node::start(&dir, &Options { arguments: flags, ..small_levels() });
    let address = metrics_address(&node).replace("0.0.0.0", "127.0.0.1");
    let get =
        |path: &str| HttpRequest::new("GET", path).header("host", "node.example").send(&address);
    let body = |answer: HttpAnswer| (answer.status, answer.body);
    assert_eq!(body(get("/healthz")), (200, "ok\n".to_owned()));
    assert_eq!(body(get("/readyz")), (200, "ready\n".to_owned()));
    assert!(get("/metrics").body.contains("layby_uptime_seconds"));
    assert_eq!(get("/v1/status").status, 404);
    assert_eq!(delete().send(&address).status, 404);
    assert_eq!(HttpRequest::new("POST", "/metrics").send(&address).status, 405);
    for text in [node.said(), node.stderr()] {
        assert!(text.contains("other machines can read the metrics at 0.0.0.0"), "{text}");
    }
    assert!(!dir.join("control.url").exists());
    node.stop();
    Node::start(&dir, &small_levels()).kill9();
    assert!(dir.join("control.url").exists());
    let flags = ["--http", "off"].map(str::to_owned).to_vec();
    let node = Node::start(&dir, &Options { arguments: flags, ..small_levels() });
    assert!(!dir.join("control.url").exists(), "it is of the node that was killed");
    node.stop();
}

/// Goal: an NBD address that others can reach is said at the start and in the log, where neither
/// TLS nor an allow-list is before it; one on loopback is not. Method: two starts.
#[test]
fn an_open_address_is_said() {
    let (_work, dir) = temporary();
    let listening = |address: &str| {
        let arguments = vec!["--listen".to_owned(), address.to_owned()];
        Node::start(&dir, &Options { arguments, ..small_levels() })
    };
    let node = listening("0.0.0.0:0");
    for text in [node.said(), node.stderr()] {
        assert!(text.contains("other machines can reach NBD at 0.0.0.0:"), "{text}");
        assert!(text.contains("not encrypted") && text.contains("`vol0`"), "{text}");
    }
    node.stop();
    let node = listening("127.0.0.1:0");
    assert!(!node.said().contains("other machines"), "{}", node.said());
    node.stop();
}

/// Goal: clients that hang cost nobody else the metrics. Method: on the API's address and on that
/// of the metrics, twice as many connections as there are places: silent ones, ones with half a
/// head, ones that announce a body, ones that do not read their answers; then a scrape by each.
#[test]
fn hung_clients_do_not_shut_the_metrics() {
    const PLACES: usize = 64;
    let (_work, dir) = temporary();
    let flags = ["--metrics", "127.0.0.1:0"].map(str::to_owned).to_vec();
    let node = Node::start(&dir, &Options { arguments: flags, ..small_levels() });
    for address in [node.http(), metrics_address(&node)] {
        let beginnings = [
            String::new(),
            "GET /metrics HTTP/1.1\r\nhost: loc".to_owned(),
            "POST /v1/volumes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"
                .to_owned(),
            "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200),
        ];
        for beginning in beginnings {
            let hung: Vec<TcpStream> = (0..2 * PLACES)
                .map(|_| {
                    let mut stream = TcpStream::connect(&address).expect("it listens");
                    stream.set_nonblocking(true).expect("a socket");
                    // Cut off, or full: both are what is wanted.
                    let _ = stream.write(beginning.as_bytes());
                    stream
                })
                .collect();
            let scrape = HttpRequest::new("GET", "/metrics").send(&address);
            assert_eq!(scrape.status, 200, "{address} {beginning}");
            drop(hung);
        }
    }
    node.stop();
}

/// Goal: a body that does not come ends its request in time. Method: a change by the node's user
/// that announces more than it sends.
#[test]
fn a_body_that_does_not_come_ends() {
    let (_work, dir) = temporary();
    let node = Node::start(&dir, &small_levels());
    let mut stream = std::os::unix::net::UnixStream::connect(node.control()).expect("it listens");
    let head = "POST /v1/volumes HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 99\r\n\r\n{\"name\"";
    stream.write_all(head.as_bytes()).expect("open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered and closed");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    node.stop();
}

/// Goal: a node does not believe what another user can write. Method: a directory and a
/// configuration with such modes.
#[test]
fn what_others_can_write_starts_no_node() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    std::fs::create_dir(&dir).expect("the test's own folder");
    let file = dir.join("layby.toml");
    std::fs::write(&file, "").expect("the test's own folder");
    let set = |path: &Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("the test's own");
    };
    for (path, mode) in [(&dir, 0o1777), (&file, 0o666)] {
        set(path, mode);
        let words = ["cannot trust", &format!("{mode:04o}"), "can write it"];
        layby(&["serve", "--dir", &dir.to_string_lossy()]).assert_explains(&words);
        set(path, 0o700);
    }
}

/// Goal: a stopped node holds no question and no quick change up. Method: SIGSTOP; questions and
/// changes with a short limit; SIGCONT.
#[test]
fn a_stopped_node_is_given_up() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    node.signal("-STOP");
    let dir = dir.to_string_lossy();
    for words in [&["status"][..], &["class", "set", "bulk", "--rank", "9"]] {
        let asked = layby(&[words, &["--dir", &dir, "--timeout", "200ms"]].concat());
        asked.assert_explains(&["no answer within 0.2 s", "--timeout"]);
    }
    node.signal("-CONT");
    node.stop();
}
