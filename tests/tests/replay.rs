//! `layby replay` and `layby mrc` as users run them: known answers, and what is said of bad words.
//!
//! How: the binary, hand-made traces in a temporary folder, answers in JSON. Cost: well below a
//! second.

use layby_tests::{Refusal, binary, must};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

#[track_caller]
fn answer(words: &[&str]) -> Value {
    let text = must(&binary().to_string_lossy(), words);
    serde_json::from_str(&text).expect("the answer is JSON")
}

#[track_caller]
fn refusal(words: &[&str], code: i32) -> Refusal {
    let ended = Command::new(binary()).args(words).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    let refusal = Refusal { code: ended.status.code(), stderr };
    assert_eq!(refusal.code, Some(code), "{refusal:?}");
    refusal
}

/// A trace of whole blocks: operation, volume, block.
fn trace(work: &TempDir, requests: &[(&str, u32, u64)]) -> String {
    let mut text = String::from("at_ns,volume,operation,offset,length\n");
    for (at, (operation, volume, block)) in requests.iter().enumerate() {
        let offset = block * 4096;
        writeln!(text, "{at},{volume},{operation},{offset},4096").expect("a String takes all");
    }
    let path = work.path().join("t.csv");
    fs::write(&path, text).expect("the folder takes files");
    path.display().to_string()
}

/// Goal: policies and curves count what a person counts. Method: six references to three blocks,
/// in two slots.
#[test]
fn counts_are_those_by_hand() {
    let work = TempDir::new().expect("a temporary folder");
    let blocks = [1, 2, 1, 3, 2, 1];
    let path = trace(&work, &blocks.map(|block| ("read", 0, block)));
    let words = ["replay", &path, "-p", "lru", "-p", "fifo", "-p", "belady", "-s", "2blocks"];
    let answer_all = answer(&[&words[..], &["--json"]].concat());
    let hits = |at: usize| answer_all["results"][at]["hits"].as_u64();
    assert_eq!((hits(0), hits(1), hits(2)), (Some(1), Some(2), Some(2)));
    let curve = answer(&["mrc", &path, "--json"]);
    let points = curve["curves"][0]["points"].as_array().expect("a curve has points");
    let at_two = points.iter().find(|point| point["cache_blocks"] == 2).expect("two blocks");
    assert_eq!(at_two["miss_ratio"].as_f64().map(|ratio| (ratio * 6.0).round()), Some(5.0));
}

/// Goal: levels serve the classes as PADSA has it, at its costs. Method: a block of each class,
/// written and read; a miss.
#[test]
fn levels_serve_their_classes() {
    let work = TempDir::new().expect("a temporary folder");
    let requests = [0, 1].map(|volume| {
        [("write", volume, 0), ("read", volume, 0), ("read", volume, 0), ("read", volume, 9)]
    });
    let path = trace(&work, requests.as_flattened());
    let levels = "8blocks,8blocks,8blocks";
    let answer = answer(&["replay", &path, "--levels", levels, "--critical", "0", "--json"]);
    let [critical, normal] = [0, 1].map(|at| &answer["services"][at]);
    assert_eq!((&critical["class"], &normal["class"]), (&"critical".into(), &"normal".into()));
    assert_eq!(critical["hits"], serde_json::json!([1, 1, 0]));
    assert_eq!(normal["hits"], serde_json::json!([0, 0, 2]));
    assert_eq!(critical["write_us_mean"].as_f64(), Some(0.5));
    assert_eq!(normal["read_us_mean"].as_f64().map(f64::round), Some(108.0));
    assert_eq!(answer["levels"][1]["block_writes"], 1);
}

/// Goal: what is wrong is explained, with its exit code. Method: a mistake of each kind.
#[test]
fn mistakes_are_explained() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("read", 0, 1), ("read", 0, 2)]);
    let empty = work.path().join("empty.csv").display().to_string();
    fs::write(&empty, "at_ns,volume,operation,offset,length\n").expect("the folder takes files");
    let absent = work.path().join("absent.csv").display().to_string();
    for word in ["replay", "mrc"] {
        refusal(&[word, &absent], 6).assert_explains(&["absent.csv"]);
        refusal(&[word, &empty], 2).assert_explains(&["empty.csv", "no reads"]);
    }
    refusal(&["replay", &path, "-p", "best"], 2).assert_explains(&["best", "belady"]);
    refusal(&["replay", &path, "-s", "1%"], 2).assert_explains(&["1%", "2 blocks"]);
    refusal(&["replay", &path, "--levels", "1%,2%"], 2).assert_explains(&["1%,2%", "1%,4%,16%"]);
    refusal(&["replay", &path, "--critical", "1"], 2).assert_explains(&["--levels"]);
    refusal(&["mrc", &path, "--sampled", "0%"], 2).assert_explains(&["0%"]);
}
