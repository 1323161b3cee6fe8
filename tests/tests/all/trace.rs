//! `layby trace` as users run it: a generated trace through every word, and what is said of bad
//! ones.
//!
//! How: the binary, files in a temporary folder, answers in JSON. Cost: well below a second.

use layby_tests::{Refusal, available, binary, must};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What the program answers when all is well.
#[track_caller]
fn answer(words: &[&str]) -> String {
    must(&binary().to_string_lossy(), words)
}

#[track_caller]
fn info(path: &str, more: &[&str]) -> Value {
    let words: Vec<&str> = ["trace", "info", path, "--json"].iter().chain(more).copied().collect();
    serde_json::from_str(&answer(&words)).expect("the answer is JSON")
}

#[track_caller]
fn refusal(words: &[&str], code: i32) -> Refusal {
    let ended = Command::new(binary()).args(words).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    let refusal = Refusal { code: ended.status.code(), stderr };
    assert_eq!(refusal.code, Some(code), "{refusal:?}");
    refusal
}

fn folder() -> (TempDir, impl Fn(&str) -> String) {
    let work = TempDir::new().expect("a temporary folder");
    let path = work.path().to_path_buf();
    (work, move |name: &str| path.join(name).display().to_string())
}

/// Goal: the words work together. Method: generate, convert there and back, cut, sample, and look
/// at each with `info`.
#[test]
fn a_trace_through_every_word() {
    let (_work, at) = folder();
    let [zipf, csv, back, part, sampled] =
        ["z.parquet", "z.csv.zst", "b.parquet", "part.log", "s.csv"].map(&at);
    let generate = ["trace", "generate", &zipf, "--requests", "20000", "--footprint", "16MiB"];
    answer(&generate);
    let first = info(&zipf, &[]);
    assert_eq!((&first["format"], &first["unit"]), (&"parquet".into(), &"bytes".into()));
    assert_eq!(first["total"]["requests"], 20_000);
    assert_eq!(first["duration_ns"], 19_999 * 100_000_u64);
    answer(&["trace", "convert", &zipf, &csv]);
    answer(&["trace", "convert", &csv, &back]);
    assert_eq!(info(&back, &[]), first);
    answer(&["trace", "cut", &zipf, &part, "--from", "1s", "--until", "1500ms"]);
    let cut = info(&part, &[]);
    assert_eq!((&cut["format"], &cut["total"]["requests"]), (&"fio-v3".into(), &5000.into()));
    let none = answer(&["trace", "cut", &zipf, &at("none.csv"), "--from", "1h"]);
    assert!(none.contains("it is empty"), "{none}");
    answer(&["trace", "sample", &zipf, &sampled, "--rate", "10%", "--seed", "3"]);
    let blocks = info(&sampled, &[])["total"]["blocks"].as_u64().expect("a number");
    let all = first["total"]["blocks"].as_u64().expect("a number");
    assert!((all / 20..all / 5).contains(&blocks), "{blocks} of {all}");
    let text = answer(&["trace", "info", &zipf]);
    assert!(text.contains("| requests") && text.contains("footprint"), "{text}");
}

/// Goal: what is wrong is explained with its place and exit code, and nothing is left behind.
/// Method: a mistake of each kind.
#[test]
fn mistakes_are_explained() {
    let (work, at) = folder();
    let [bad, odd, out] = ["bad.csv", "odd.csv", "out.csv"].map(&at);
    let text = "at_ns,volume,operation,offset,length\n1,0,read,0,512\n2,0,read,-1,512\n";
    fs::write(&bad, text).expect("the folder takes files");
    fs::write(&odd, "one,two\n").expect("the folder takes files");
    refusal(&["trace", "info", &bad], 3).assert_explains(&["line 3", "`-1`", "--lenient"]);
    refusal(&["trace", "convert", &bad, &out], 3).assert_explains(&["line 3"]);
    assert!(!Path::new(&out).exists(), "half a trace is none");
    refusal(&["trace", "info", &odd], 2).assert_explains(&["one,two", "--format", "vscsi-v1"]);
    refusal(&["trace", "info", &at("absent")], 6).assert_explains(&["absent"]);
    refusal(&["trace", "info", &work.path().to_string_lossy()], 1).assert_explains(&["directory"]);
    refusal(&["trace", "convert", &bad, &at("x.tape")], 2).assert_explains(&["x.tape", "--to"]);
    refusal(&["trace", "convert", &bad, &odd], 4).assert_explains(&["--overwrite"]);
    refusal(&["trace", "convert", &bad, &at("x.msr"), "--to", "msr"], 2).assert_explains(&["msr"]);
    refusal(&["trace", "generate", &out, "--exponent", "11"], 2).assert_explains(&["exponent"]);
    let misplaced = ["trace", "generate", &out, "--shape", "sequential", "--hot-blocks", "5%"];
    refusal(&misplaced, 2).assert_explains(&["--hot-blocks", "sequential"]);
    let counted = info(&bad, &["--lenient"]);
    assert_eq!(counted["total"]["requests"], 1);
    assert_eq!(counted["skipped"][0]["reason"], "not a number");
    assert_eq!(fs::read_dir(work.path()).expect("a folder").count(), 2);
}

/// Goal: fio replays what is written for it, and what fio writes is read. Method: a log of each
/// version through fio, which counts what it did; then a log of its own.
#[test]
fn fio_understands_the_logs() {
    if !available(&["fio"]) {
        return;
    }
    let (_work, at) = folder();
    let disk = at("disk");
    let plain = ["--name=job", "--ioengine=psync", "--size=1m"].map(str::to_owned);
    let fio = |more: &[String]| must("fio", &[&plain[..], more].concat());
    for (version, name) in [("fio-v2", "two.log"), ("fio-v3", "three.log")] {
        let log = at(name);
        let generate = ["trace", "generate", &log, "--to", version, "--requests", "200"];
        answer(&[&generate[..], &["--footprint", "1MiB", "--interval", "10us"]].concat());
        let total = &info(&log, &[])["total"];
        fs::write(&disk, vec![0; 1 << 20]).expect("the folder takes files");
        let replay = [format!("--read_iolog={log}"), format!("--replay_redirect={disk}")];
        let done = fio(&replay);
        let expected = format!("total={},{},0,0", total["reads"], total["writes"]);
        assert!(done.contains(&expected), "{version}: not {expected}:\n{done}");
        // Waits of a wrong unit would last for minutes, which ends fio.
        let rows = "0,0,read,0,4096\n400000000,0,write,4096,4096\n400000000,0,read,8192,4096";
        let (csv, log) = (at(&format!("{version}.csv")), at(&format!("slow-{name}")));
        fs::write(&csv, format!("at_ns,volume,operation,offset,length\n{rows}\n"))
            .expect("the folder takes files");
        answer(&["trace", "convert", &csv, &log, "--to", version]);
        let replay = [format!("--read_iolog={log}"), format!("--replay_redirect={disk}")];
        let done = fio(&replay);
        assert!(done.contains("total=2,1,0,0"), "{version}:\n{done}");
    }
    let (log, file) = (at("own.log"), format!("--filename={disk}"));
    fio(&["--rw=randrw".to_owned(), "--bs=4k".to_owned(), file, format!("--write_iolog={log}")]);
    assert_eq!(info(&log, &[])["total"]["requests"], 256);
    assert_eq!(info(&log, &[])["volumes"][0]["name"], disk);
}
