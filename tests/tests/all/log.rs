//! What a node's log says of its volumes, classes, clients and its stop.
//!
//! How: a node that logs in JSON, changed and used through the binary; its lines are read when it
//! has stopped. Invariant: what clients alone can cause has a bounded number of lines, and the
//! counts in these lines leave none out. Not for: the audit log; see `door`.

use layby_tests::{Connection, Node, Options, binary, layby, must, small_levels};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn temporary() -> (TempDir, PathBuf) {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    (work, dir)
}

fn start(dir: &Path, config: &str) -> Node {
    let levels = small_levels().config.expect("it has one");
    let arguments = ["--log-format", "json"].map(str::to_owned).to_vec();
    Node::start(dir, &Options { arguments, ..Options::config(format!("{config}\n{levels}")) })
}

/// The lines of a stopped node's log at level info and above.
fn lines(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.with_extension("log")).expect("the harness keeps it");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn with<'a>(lines: &'a [Value], message: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["message"] == message).collect()
}

/// The only line with a message, which must be at level info.
#[track_caller]
fn only<'a>(lines: &'a [Value], message: &str) -> &'a Value {
    let found = with(lines, message);
    assert_eq!(found.len(), 1, "`{message}` in {lines:#?}");
    assert_eq!(found[0]["level"], "INFO", "{:?}", found[0]);
    found[0]
}

/// Goal: the log names each volume and class that was created, changed or removed, with the values
/// before and after. Method: each change by a command, at info, beside a volume of the
/// configuration.
#[test]
fn changes_of_volumes_and_classes_are_logged() {
    let (_work, dir) = temporary();
    let node = start(&dir, "[volume.first]\nsize = \"4MiB\"\nclass = \"bulk\"\n");
    node.volume_create("maps", "4MiB", "normal");
    node.layby(&["volume", "resize", "maps", "--size", "8MiB"]);
    node.layby(&["volume", "set", "maps", "--class", "critical"]);
    node.layby(&["volume", "set", "maps", "--read-only", "true"]);
    node.layby(&["class", "create", "silver", "--rank", "1"]);
    node.layby(&["class", "set", "silver", "--rank", "2"]);
    node.layby(&["class", "delete", "silver"]);
    node.layby(&["volume", "delete", "maps", "--data", "delete"]);
    node.stop();
    let lines = lines(&dir);
    let created = with(&lines, "volume created");
    assert_eq!(created.len(), 2, "{lines:#?}");
    assert_eq!((&created[0]["volume"], &created[0]["class"]), (&"first".into(), &"bulk".into()));
    assert_eq!((&created[1]["volume"], &created[1]["size"]), (&"maps".into(), &"4MiB".into()));
    let resized = only(&lines, "volume resized");
    assert_eq!((&resized["from"], &resized["to"]), (&"4MiB".into(), &"8MiB".into()));
    let moved = only(&lines, "volume has another class");
    assert_eq!((&moved["volume"], &moved["to"]), (&"maps".into(), &"critical".into()));
    let changed = only(&lines, "volume changed");
    assert_eq!(changed["changes"], "read_only: false -> true");
    assert_eq!(only(&lines, "class created")["class"], "silver");
    assert_eq!(only(&lines, "class changed")["changes"], "rank: 1 -> 2");
    assert_eq!(only(&lines, "class removed")["class"], "silver");
    assert_eq!(only(&lines, "volume removed")["volume"], "maps");
    for asked in with(&lines, "change by the control API") {
        assert_eq!(asked["via"], "unix", "{asked}");
        assert!(asked["uid"].is_u64() && asked["pid"].is_u64(), "{asked}");
        assert!(asked.get("who").is_none(), "{asked}");
    }
}

/// Goal: a client's coming and going is logged with its volume. Method: one that leaves, and one
/// that the node's stop ends.
#[test]
fn clients_are_logged() {
    let (_work, dir) = temporary();
    let node = start(&dir, "");
    let first = Connection::open(&node.socket(), "vol0").expect("the node serves");
    drop(first);
    let _second = Connection::open(&node.socket(), "vol0").expect("the node serves");
    node.stop();
    let lines = lines(&dir);
    for message in ["client connected", "client disconnected"] {
        let found = with(&lines, message);
        assert_eq!(found.len(), 2, "{lines:#?}");
        for line in found {
            assert_eq!((&line["level"], &line["volume"]), (&"INFO".into(), &"vol0".into()));
            assert_eq!(line["peer"], "unix");
        }
    }
}

/// Refused clients of a cause, by the counts of its lines, and how many lines there are.
fn refused(lines: &[Value], cause: &str) -> (u64, usize) {
    let of = |line: &&&Value| line["cause"].as_str().is_some_and(|found| found.contains(cause));
    let found = with(lines, "refused clients");
    let counts: Vec<u64> = found.iter().filter(of).filter_map(|l| l["count"].as_u64()).collect();
    (counts.iter().sum(), counts.len())
}

/// Asks for a volume and reads whatever the server answers, up to its end.
fn ask_for(socket: &Path, volume: &str) {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("it greets");
    let mut words = 3_u32.to_be_bytes().to_vec();
    // EXPORT_NAME: the server closes where it refuses.
    words.extend(b"IHAVEOPT");
    words.extend(1_u32.to_be_bytes());
    words.extend(u32::try_from(volume.len()).expect("short").to_be_bytes());
    words.extend(volume.as_bytes());
    stream.write_all(&words).expect("it reads");
    stream.read_to_end(&mut Vec::new()).expect("it closes");
}

/// Goal: a flood of clients beyond `connections_max` has a line a second at most, and the counts
/// leave none out. Method: more clients than places; the counts beside what was sent.
#[test]
fn a_flood_of_clients_is_counted() {
    const FLOOD: u64 = 300;
    /// The flood takes about a second; thirty allow for a slow machine.
    const LINES_MAX: usize = 30;
    let (_work, dir) = temporary();
    let node = start(&dir, "[nbd]\nconnections_max = 1\n");
    let first = Connection::open(&node.socket(), "vol0").expect("the node serves");
    for _ in 0..FLOOD {
        ask_for(&node.socket(), "vol0");
    }
    drop(first);
    node.stop();
    let lines = lines(&dir);
    let (found, written) = refused(&lines, "connections_max");
    assert_eq!(found, FLOOD, "{lines:#?}");
    assert!(written <= LINES_MAX, "{written} lines");
}

/// Goal: a client that is refused its volume is logged once, with the cause and the volume. Method:
/// one against `allow`, one for a volume that is not there.
#[test]
fn refused_clients_are_logged() {
    let (_work, dir) = temporary();
    let node = start(&dir, "[volume.mine]\nsize = \"4MiB\"\nallow = [\"10.0.0.0/8\"]\n");
    for _ in 0..3 {
        ask_for(&node.socket(), "mine");
        ask_for(&node.socket(), "none\n\u{1b}[2J");
    }
    node.stop();
    let lines = lines(&dir);
    for cause in ["`allow` of the volume", "no volume of that name"] {
        assert_eq!(refused(&lines, cause).0, 3, "{cause}: {lines:#?}");
    }
    let denied = with(&lines, "refused clients");
    assert!(denied.iter().all(|line| line["level"] == "INFO" && line["peer"] == "unix"));
    assert!(denied.iter().any(|line| line["volume"] == "mine"), "{denied:?}");
}

/// Goal: a filter that cannot be understood is said, and the log goes on as without one. Method: a
/// variable that names no level.
#[test]
fn a_filter_that_is_none_is_said() {
    let (_work, dir) = temporary();
    let levels = small_levels().config.expect("it has one");
    let environment = vec![("LAYBY_LOG".to_owned(), "debug=x=y".to_owned())];
    let node = Node::start(&dir, &Options { environment, ..Options::config(levels) });
    // The line that says ready comes after the word to the service manager: the log is whole only
    // once the node has ended.
    node.stop();
    let log = std::fs::read_to_string(dir.with_extension("log")).expect("the harness keeps it");
    assert!(log.contains("LAYBY_LOG is not understood") && log.contains("debug=x=y"), "{log}");
    assert!(log.contains("ready"), "{log}");
}

/// Goal: a stop is logged from its beginning, with who asked, to its end. Method: each signal.
#[test]
fn stops_are_logged() {
    for signal in ["TERM", "INT"] {
        let (_work, dir) = temporary();
        let node = start(&dir, "");
        node.signal(&format!("-{signal}"));
        node.stop();
        let lines = lines(&dir);
        assert_eq!(only(&lines, "stop asked")["signal"], format!("SIG{signal}"));
        let at = |message| lines.iter().position(|line| line["message"] == message);
        assert!(at("ready") < at("stop asked") && at("stop asked") < at("stopped"), "{lines:#?}");
        only(&lines, "ready");
        only(&lines, "stopped");
    }
}

/// Goal: a log that nothing reads holds nothing up: neither a start, a command nor a stop. Method:
/// a pipe at standard error that is full before the node begins.
#[test]
fn a_log_that_nothing_reads_holds_nothing_up() {
    let (work, dir) = temporary();
    let config = work.path().join("layby.toml");
    std::fs::write(&config, small_levels().config.expect("it has one")).expect("our own folder");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new("sh");
    let script = "head -c 65536 /dev/zero >&2; exec \"$0\" serve --dir \"$1\" --config \"$2\"";
    command.args(["-c", script]).arg(binary()).arg(&dir).arg(&config);
    command.env("LAYBY_LOG", "debug").stdout(Stdio::piped()).stderr(writer);
    let mut node = command.spawn().expect("there is a shell");
    let said = BufReader::new(node.stdout.take().expect("it is piped")).lines();
    let is_ready = said.map_while(Result::ok).any(|line| line.starts_with("ready"));
    assert!(is_ready, "it starts");
    let status = layby(&["status", "--dir", &dir.to_string_lossy()]);
    assert!(status.success, "{status:?}");
    must("kill", &["-TERM", &node.id().to_string()]);
    assert!(node.wait().expect("it is ours").success());
    drop(reader);
}
