//! What people write where the program reads an address, a file, a size or a list: each accepted.
//!
//! How: the binary with each spelling; what it does then is compared with the plain one.
//! Not for: what is refused; see `bad_input`.

use layby_tests::{Connection, HttpRequest, Node, Options, binary, must, small_levels};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Goal: `localhost` is accepted in every address, by flag and in the file. Method: NBD, the API
/// and the metrics on it, each reached.
#[test]
fn localhost_is_an_address() {
    let work = TempDir::new().expect("a temporary folder");
    let levels = small_levels().config.expect("it has one");
    let all = "[nbd]\nlisten = [\"localhost:0\"]\n\
        [control]\nhttp = \"localhost:0\"\nmetrics = \"localhost:0\"\n";
    let flags = ["--listen", "--http", "--metrics"];
    let flags = flags.into_iter().flat_map(|flag| [flag.to_owned(), "localhost:0".to_owned()]);
    let by_flag = Options { arguments: flags.collect(), ..small_levels() };
    for (name, options) in [("file", Options::config(format!("{all}{levels}"))), ("flag", by_flag)]
    {
        let node = Node::start(&work.path().join(name), &options);
        let said = node.said();
        let after = |start: &str| {
            let found = said.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
            found.unwrap_or_else(|| panic!("no line begins with `{start}`:\n{said}"))
        };
        let nbd = after("serving nbd://").replace("/VOLUME", "");
        let mut greeting = [0; 8];
        let mut stream = TcpStream::connect(nbd).expect("it listens");
        stream.read_exact(&mut greeting).expect("it greets");
        assert_eq!(&greeting, b"NBDMAGIC");
        let metrics = after("metrics http://").replace("/metrics", "");
        for address in [node.http(), metrics] {
            assert!(address.starts_with("127.0.0.1:"), "{address}");
            assert_eq!(HttpRequest::new("GET", "/metrics").send(&address).status, 200);
        }
        node.stop();
    }
}

/// Runs `layby` with a file's bytes in a pipe.
fn piped(words: &[&str], bytes: &[u8]) -> Output {
    let mut command = Command::new(binary());
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("it was asked for above");
    // A program that ends early does not read; how it ended is looked at below.
    drop(stdin.write_all(bytes));
    drop(stdin);
    child.wait_with_output().expect("our own child can be waited for")
}

#[track_caller]
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a replay counted, without times.
fn counts(json: &str) -> Vec<(String, u64)> {
    let answer: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let results = answer["results"].as_array().expect("it has some").clone();
    let one = |result: &serde_json::Value| {
        let policy = result["policy"].as_str().expect("a name").to_owned();
        (policy, result["hits"].as_u64().expect("a number"))
    };
    results.iter().map(one).collect()
}

fn generated(work: &TempDir) -> String {
    let path = work.path().join("t.csv").display().to_string();
    let words = ["--shape", "zipf", "--requests", "2000", "--footprint", "4MiB"];
    must(&binary().to_string_lossy(), &[&["trace", "generate", &path][..], &words].concat());
    path
}

/// Goal: `-` reads a trace from a pipe and from a redirected file, in every command that reads one,
/// also where it is read twice. Method: answers beside those of the file by its name.
#[test]
fn a_trace_comes_by_standard_input() {
    let work = TempDir::new().expect("a temporary folder");
    let path = generated(&work);
    let bytes = std::fs::read(&path).expect("it was generated");
    let layby = binary().to_string_lossy().into_owned();
    // The default size is a share of the footprint, for which the trace is read twice.
    for size in [&["-s", "64blocks"][..], &[]] {
        let words = |trace| [&["replay", trace, "-p", "lru,s3fifo", "--json"][..], size].concat();
        let by_name = counts(&must(&layby, &words(&path)));
        assert_eq!(by_name.len(), 2);
        assert_eq!(counts(&text(&piped(&words("-"), &bytes))), by_name);
        let file = File::open(&path).expect("it was generated");
        let redirected = Command::new(&layby).args(words("-")).stdin(file).output();
        assert_eq!(counts(&text(&redirected.expect("the program starts"))), by_name);
    }
    let info = text(&piped(&["trace", "info", "-", "--json"], &bytes));
    assert!(info.contains("2000"), "{info}");
    assert!(!text(&piped(&["mrc", "-", "--csv"], &bytes)).is_empty());
    let copy = work.path().join("copy.csv").display().to_string();
    text(&piped(&["trace", "convert", "-", &copy], &bytes));
    assert!(std::fs::read(&copy).expect("it was written") == bytes);
    let parquet = work.path().join("t.parquet").display().to_string();
    must(&layby, &["trace", "convert", &path, &parquet]);
    let columns = std::fs::read(&parquet).expect("it was written");
    let refused = piped(&["trace", "info", "-"], &columns);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("not from a pipe"), "{stderr}");
}

/// Goal: `--config -` reads the configuration from standard input. Method: a node that starts with
/// a volume of it; one whose text is wrong, by its line.
#[test]
fn a_configuration_comes_by_standard_input() {
    let work = TempDir::new().expect("a temporary folder");
    let levels = small_levels().config.expect("it has one");
    let dir = work.path().join("node");
    let script = "printf '%s' \"$1\" | exec \"$2\" serve --dir \"$3\" --config -";
    let mut command = Command::new("bash");
    let config = format!("{levels}[volume.piped]\nsize = \"1G\"\n");
    // The shell's last process of a pipe becomes the node itself.
    command.args(["-c", &format!("shopt -s lastpipe; {script}"), "sh", &config]);
    command.arg(binary()).arg(&dir);
    let node = Node::spawn(command, &dir).expect("the configuration is good");
    let connection = Connection::open(&node.socket(), "piped").expect("the node serves");
    assert_eq!(connection.size(), 1 << 30);
    drop(connection);
    node.stop();
    let words = ["serve", "--dir", &dir.display().to_string(), "--config", "-"];
    let refused = piped(&words, b"[node]\nshrads = 1\n");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("line 2"), "{stderr}");
    let endless = piped(&words, &vec![b'#'; 2 << 20]);
    assert!(String::from_utf8_lossy(&endless.stderr).contains("more than 1048576 bytes"));
}

/// Goal: `dir` of a configuration that is named counts, absolute or from where the node began,
/// and `--dir` overrides it. Method: a start with each; nothing is made elsewhere.
#[test]
fn a_configuration_names_the_directory() {
    let work = TempDir::new().expect("a temporary folder");
    let levels = small_levels().config.expect("it has one");
    let file = work.path().join("node.toml");
    let absolute = work.path().join("far").display().to_string();
    for (named, flag, place) in [
        (absolute.as_str(), None, "far"),
        ("near", None, "near"),
        ("unused", Some("other"), "other"),
    ] {
        let config = format!("[node]\ndir = \"{named}\"\n{levels}");
        std::fs::write(&file, config).expect("the test's own folder");
        let mut command = Command::new(binary());
        command.current_dir(work.path()).args(["serve", "--config", "node.toml"]);
        command.args(flag.iter().flat_map(|dir| ["--dir", dir]));
        let dir = work.path().join(place);
        Node::spawn(command, &dir).expect("a good configuration").stop();
        assert!(dir.join("catalog.json").exists(), "{named}, {flag:?}");
    }
    for nowhere in ["unused", "layby-node"] {
        assert!(!work.path().join(nowhere).exists(), "{nowhere}");
    }
}

/// Goal: sizes are read as people write them. Method: volumes of each spelling, and their bytes.
#[test]
fn sizes_are_read_as_written() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(Path::new(&dir), &small_levels());
    for (name, size, bytes) in [
        ("a", "1G", 1_u64 << 30),
        ("b", "1GB", 1_000_000_000),
        ("c", "1GiB", 1 << 30),
        ("d", "512m", 512 << 20),
        ("e", "8388608", 8 << 20),
    ] {
        let outcome = layby_tests::layby(&[
            "volume",
            "create",
            name,
            "--size",
            size,
            "--dir",
            &dir.display().to_string(),
        ]);
        assert!(outcome.success, "{size}: {}", outcome.stderr);
        let shown = node.layby(&["volume", "show", name, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(shown["size_bytes"], bytes, "{size}");
    }
    node.stop();
}
