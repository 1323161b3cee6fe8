//! `layby record` through the binary: what a node's clients ask for becomes a trace.
//!
//! How: a node, our own NBD client, the recorder as a process that says when it records. Its end is
//! an event too: a signal, or the word of another process. Cost: well below a second each.

use layby_tests::{
    Connection, HttpRequest, Node, Refusal, Request, SmallDisk, binary, layby, must, small_levels,
};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const BLOCK: u32 = 4096;

/// A node with two volumes, and a folder beside it.
fn node() -> (TempDir, Node, PathBuf) {
    let work = TempDir::new().expect("a temporary folder");
    let node = Node::start(&work.path().join("node"), &small_levels());
    node.volume_create("a", "4MiB", "critical");
    node.volume_create("b", "4MiB", "normal");
    let path = work.path().to_path_buf();
    (work, node, path)
}

/// A recorder that records.
struct Recorder(Child);

impl Recorder {
    /// Starts it; `command` ends with `layby` or a program that becomes it.
    fn start(mut command: Command, work: &Path, out: &str, more: &[&str]) -> Recorder {
        let words = ["record", "start", out, "--dir"];
        command.args(words).arg(work.join("node")).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("the pipe was asked for above");
        // A byte at a time: what follows stays in the pipe for `ended`.
        let mut reader = BufReader::with_capacity(1, stdout);
        reader.read_line(&mut line).expect("the pipe is read to its end");
        let recorder = Recorder(child);
        if line.starts_with("recording") {
            return recorder;
        }
        panic!("it does not record: {line}{:?}", recorder.ended());
    }

    /// Starts one whose standard output is one document; it says on the other pipe that it records.
    fn start_json(work: &Path, out: &str) -> Recorder {
        let mut command = program();
        command.args(["record", "start", out, "--json", "--dir"]).arg(work.join("node"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        let stderr = child.stderr.as_mut().expect("the pipe was asked for above");
        let mut reader = BufReader::with_capacity(1, stderr);
        reader.read_line(&mut line).expect("the pipe is read to its end");
        assert!(line.contains("interrupt to end"), "it does not record: {line}");
        Recorder(child)
    }

    /// Stops it until it is told to go on.
    fn hold(&self) {
        self.signal("-STOP");
        let stat = format!("/proc/{}/stat", self.0.id());
        let is_held = || {
            let text = std::fs::read_to_string(&stat).expect("our own child");
            text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        while !is_held() {
            std::thread::yield_now();
        }
    }

    fn signal(&self, name: &str) {
        must("kill", &[name, &self.0.id().to_string()]);
    }

    /// Its exit code and what it wrote, once it has ended.
    fn ended(mut self) -> (String, Refusal) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let pipes = (self.0.stdout.take(), self.0.stderr.take());
        let read = pipes.0.map(|mut pipe| pipe.read_to_string(&mut stdout));
        assert!(read.is_some_and(|read| read.is_ok()), "the pipe is read to its end");
        let read = pipes.1.map(|mut pipe| pipe.read_to_string(&mut stderr));
        assert!(read.is_some_and(|read| read.is_ok()), "the pipe is read to its end");
        let code = self.0.wait().expect("our own child can be waited for").code();
        (stdout, Refusal { code, stderr })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It may have ended already; then both calls have nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program() -> Command {
    Command::new(binary())
}

/// `count` rounds of a write, two reads, a trim and a zeroing.
fn rounds(node: &Node, volume: &str, count: u64) {
    let mut connection = Connection::open(&node.socket(), volume).expect("the node serves");
    for round in 0..count {
        let offset = round % 64 * u64::from(BLOCK);
        for request in [
            Request::Write { offset, data: vec![7; BLOCK as usize], fua: false },
            Request::Read { offset, length: BLOCK },
            Request::Read { offset: 0, length: 512 },
            Request::Trim { offset, length: BLOCK },
            Request::Zero { offset, length: BLOCK },
        ] {
            let done = connection.call(&request).expect("the node serves");
            assert!(done.is_ok(), "{request:?}: {done:?}");
        }
    }
}

#[track_caller]
fn info(path: &str) -> Value {
    let text = must(&binary().to_string_lossy(), &["trace", "info", path, "--json"]);
    serde_json::from_str(&text).expect("the answer is JSON")
}

/// Goal: a trace holds what was asked for while it was recorded, whichever way the recording ends.
/// Method: rounds of requests, counted by kind; ends by two signals, another process, time.
#[test]
fn a_trace_holds_what_was_asked_for() {
    let (_work, node, work) = node();
    for (round, end) in ["-INT", "-TERM", "stop", "status"].into_iter().enumerate() {
        rounds(&node, "a", 3);
        let out = work.join(format!("{round}.parquet")).display().to_string();
        let recorder = Recorder::start(program(), &work, &out, &[]);
        rounds(&node, "a", 20);
        rounds(&node, "b", 10);
        match end {
            "stop" => drop(node.layby(&["record", "stop"])),
            "status" => {
                let status = node.layby(&["record", "status"]);
                assert!(status.contains("0 dropped") && status.contains("`b`"), "{status}");
                recorder.signal("-INT");
            }
            signal => recorder.signal(signal),
        }
        let (stdout, ended) = recorder.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(stdout.contains("150 requests") && stdout.contains("0 dropped"), "{stdout}");
        let total = &info(&out)["total"];
        let counts = ["requests", "reads", "writes", "trims"].map(|key| total[key].as_u64());
        assert_eq!(counts, [150, 60, 30, 60].map(Some), "{end}: {total}");
    }
    node.stop();
}

/// Goal: `--volume` leaves the others out, `--duration` ends by itself, and the node's end leaves a
/// whole trace. Method: two volumes, one recorded; a node that stops meanwhile.
#[test]
fn a_recording_has_its_bounds() {
    let (_work, node, work) = node();
    let out = work.join("b.csv").display().to_string();
    // The time ends nothing here: on a busy machine the rounds may take longer than any.
    let more = ["--volume", "b", "--duration", "1h"];
    let recorder = Recorder::start(program(), &work, &out, &more);
    rounds(&node, "a", 5);
    rounds(&node, "b", 2);
    recorder.signal("-INT");
    let (stdout, ended) = recorder.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(stdout.contains("10 requests") && stdout.contains("`b`: 10"), "{stdout}");
    let out = work.join("j.csv").display().to_string();
    let said = node.layby(&["record", "start", &out, "--duration", "1ms", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("the answer is JSON");
    assert_eq!((&said["requests"], &said["format"]), (&Value::from(0), &Value::from("csv")));
    let out = work.join("c.parquet").display().to_string();
    let recorder = Recorder::start(program(), &work, &out, &[]);
    node.stop();
    let (_, ended) = recorder.ended();
    ended.assert_explains(&["the trace is whole up to", "what came after that is missing"]);
    assert_eq!((ended.code, info(&out)["total"]["requests"].as_u64()), (Some(5), Some(0)));
}

/// Takes the recording away from its recorder, as another recorder does that takes its place.
fn displace(node: &Node, id: u64) {
    let path = format!("/v1/recording/{id}/take?end=true");
    let request = HttpRequest::new("POST", &path).text();
    let mut stream = UnixStream::connect(node.control()).expect("the node listens");
    stream.write_all(request.as_bytes()).expect("it takes requests");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

/// Goal: while a recorder is late, `record status` counts what waits for it; and a recorder whose
/// place was taken says from when on its trace lacks requests. Method: a recorder that is held by a
/// signal, requests, another that takes its recording; then it goes on.
#[test]
fn a_late_recorder_says_what_is_missing() {
    let (_work, node, work) = node();
    for json in [false, true] {
        let out = work.join(format!("{json}.csv")).display().to_string();
        let recorder = match json {
            false => Recorder::start(program(), &work, &out, &[]),
            true => Recorder::start_json(&work, &out),
        };
        recorder.hold();
        rounds(&node, "a", 20);
        let status = node.layby(&["record", "status"]);
        assert!(status.contains("100 wait for the recorder"), "{status}");
        let about = node.layby(&["record", "status", "--json"]);
        let about: Value = serde_json::from_str(&about).expect("the answer is JSON");
        assert_eq!((about["waiting"].as_u64(), about["dropped"].as_u64()), (Some(100), Some(0)));
        assert!(about["silent_seconds"].as_f64().is_some_and(|silent| silent > 0.0), "{about}");
        displace(&node, about["id"].as_u64().expect("a number"));
        recorder.signal("-CONT");
        let (stdout, ended) = recorder.ended();
        ended.assert_explains(&["another took its place", "what came after that is missing"]);
        assert_eq!(ended.code, Some(6), "{ended:?}");
        if json {
            let said: Value = serde_json::from_str(&stdout).expect("the answer is JSON");
            assert!(said["missing_seconds"].as_f64().is_some_and(|gap| gap > 0.0), "{said}");
        } else {
            assert!(stdout.contains("what came in the last"), "{stdout}");
        }
        assert_eq!(info(&out)["total"]["requests"].as_u64(), Some(0));
    }
    node.stop();
}

/// Goal: what a format has no words for is left out and counted. Method: requests of all kinds,
/// recorded as oracleGeneral.
#[test]
fn what_a_format_cannot_say_is_counted() {
    let (_work, node, work) = node();
    let out = work.join("a.oracleGeneral").display().to_string();
    let recorder = Recorder::start(program(), &work, &out, &[]);
    rounds(&node, "a", 4);
    recorder.signal("-INT");
    let (stdout, ended) = recorder.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(stdout.contains("12 requests") && stdout.contains("left out: 8 requests"), "{stdout}");
    let recorder = Recorder::start_json(&work, &work.join("b.oracleGeneral").display().to_string());
    rounds(&node, "a", 1);
    recorder.signal("-INT");
    let (stdout, _) = recorder.ended();
    let said: Value = serde_json::from_str(&stdout).expect("the answer is JSON");
    assert_eq!((said["requests"].as_u64(), said["left_out"].as_u64()), (Some(3), Some(2)));
    node.stop();
}

/// Goal: what cannot be recorded is explained, and the node goes on. Method: a file that is there,
/// a volume that is not, a recording beside another, no room for the trace.
#[test]
fn mistakes_are_explained() {
    let (_work, node, work) = node();
    let dir = work.join("node").display().to_string();
    let at = |name: &str| work.join(name).display().to_string();
    let [taken, out, other] = ["taken.parquet", "out.parquet", "other.parquet"].map(at);
    std::fs::write(&taken, "mine").expect("the folder takes files");
    let refusal = |words: &[&str]| {
        let ended = program().args(words).args(["--dir", &dir]).output();
        let ended = ended.expect("the program starts");
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        Refusal { code: ended.status.code(), stderr }
    };
    let there = refusal(&["record", "start", &taken]);
    there.assert_explains(&["--overwrite"]);
    assert_eq!(there.code, Some(4));
    let unknown = refusal(&["record", "start", &out, "--volume", "none"]);
    unknown.assert_explains(&["none", "layby volume list"]);
    assert_eq!(unknown.code, Some(6));
    refusal(&["record", "status"]).assert_explains(&["no recording"]);
    let mut limited = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"";
    limited.args(["-c", script]).arg(binary());
    let recorder = Recorder::start(limited, &work, &out, &[]);
    let busy = refusal(&["record", "start", &other]);
    busy.assert_explains(&["layby record stop"]);
    assert_eq!(busy.code, Some(4));
    rounds(&node, "a", 400);
    recorder.signal("-INT");
    let (_, full) = recorder.ended();
    full.assert_explains(&["cannot write the trace", "room"]);
    for name in [&out, &other] {
        assert!(!Path::new(name).exists(), "half a trace is none");
        assert!(!Path::new(&format!("{name}.partial")).exists(), "nothing is left behind");
    }
    let free = Recorder::start(program(), &work, &other, &["--duration", "1ms"]);
    assert_eq!(free.ended().1.code, Some(0), "the place is free again");
    assert!(layby(&["status", "--dir", &dir]).success);
    node.stop();
}

/// Goal: a recording whose file system fills up is kept as far as it got, and the error says where.
/// Method: a small file system; a client that reads until the recorder ends; the file that is left.
#[test]
fn a_recording_that_finds_no_room_is_kept() {
    let (_work, node, path) = node();
    let folder = path.join("small");
    std::fs::create_dir(&folder).expect("the test's own folder");
    let Some(disk) = SmallDisk::new(&folder, "256k") else { return };
    let out = disk.path().join("a.csv");
    let mut recorder = Recorder::start(program(), &path, &out.to_string_lossy(), &[]);
    let mut connection = Connection::open(&node.socket(), "a").expect("the node serves");
    let read = Request::Read { offset: 0, length: BLOCK };
    while recorder.0.try_wait().expect("our own child").is_none() {
        connection.call(&read).expect("the node serves").expect("a read");
    }
    let (_, refusal) = recorder.ended();
    let said = &refusal.stderr;
    assert!(
        refusal.code == Some(8) && said.contains("what was recorded until then is in"),
        "{said}"
    );
    let kept = std::fs::read_dir(disk.path()).expect("the disk's folder");
    let kept: Vec<_> = kept.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let copy = path.join("copy.csv").to_string_lossy().into_owned();
    let kept = kept[0].to_string_lossy().into_owned();
    let read = layby(&["trace", "convert", &kept, &copy, "--format", "csv", "--lenient"]);
    assert!(read.success && read.stdout.contains("requests"), "{}", read.stderr);
}
