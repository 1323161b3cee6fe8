//! `layby replay`, `mrc`, `probe` and `demo` as users run them: known answers, mistakes explained.
//!
//! How: the binary, hand-made traces in a temporary folder, answers in JSON. Cost: a few
//! seconds: probes write a few MiB, the demo runs for two seconds.

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

/// What goes to standard output, and to standard error.
#[track_caller]
fn both(words: &[&str]) -> (String, String) {
    let ended = Command::new(binary()).args(words).output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ended.status.success(), "{words:?}: {}", text(&ended.stderr));
    (text(&ended.stdout), text(&ended.stderr))
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

/// Goal: a trace that is not there, is empty or never ends is refused as such, also where it would
/// be read twice. Method: the default size, which is a share of the footprint.
#[test]
fn traces_that_are_none_are_refused() {
    let work = TempDir::new().expect("a temporary folder");
    let empty = work.path().join("empty");
    fs::write(&empty, []).expect("the folder takes files");
    let empty = empty.display().to_string();
    for (path, code, word) in [
        ("/nowhere/t.csv", 6, "No such file"),
        (&*empty, 2, "is empty"),
        ("/dev/zero", 2, "format"),
    ] {
        refusal(&["replay", path], code).assert_explains(&["cannot read the trace", path, word]);
    }
    // A recording that only its name could tell: its first request comes after ten seconds.
    let record = [&10_u32.to_le_bytes()[..], &7_u64.to_le_bytes(), &[0xff; 12]].concat();
    let nameless = work.path().join("recording").display().to_string();
    fs::write(&nameless, record).expect("the folder takes files");
    let words = ["is binary, as its byte 1 shows", "--format", ".oracleGeneral"];
    refusal(&["replay", &nameless], 2).assert_explains(&words);
    answer(&["replay", &nameless, "--format", "oracle-general", "-s", "1blocks", "--json"]);
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
    assert_eq!(normal["hits"], serde_json::json!([1, 0, 1]), "DRAM is lent to it");
    assert_eq!(critical["write_us_mean"].as_f64(), Some(0.5));
    assert_eq!(normal["read_us_mean"].as_f64().map(f64::round), Some(100.0));
    assert_eq!(answer["levels"][1]["block_writes"], 1);
}

/// Goal: a service without reads has no hit ratio, and none without writes a time of writes.
/// Method: one service that writes alone, one that reads alone, as a table and in JSON.
#[test]
fn services_without_reads_have_no_hit_ratio() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("write", 0, 0), ("read", 1, 0), ("read", 1, 0)]);
    let words = ["replay", &path, "--levels", "8blocks,8blocks,8blocks"];
    let found = answer(&[&words[..], &["--json"]].concat());
    let services = found["services"].as_array().expect("a list");
    let of = |name: &str| services.iter().find(|one| one["name"] == name).expect("it is there");
    let (writes, reads) = (of("0"), of("1"));
    assert_eq!((&writes["hit_ratio"], &writes["read_us_mean"]), (&Value::Null, &Value::Null));
    assert_eq!((&reads["hit_ratio"], &reads["write_us_mean"]), (&0.5.into(), &Value::Null));
    assert!(writes["write_us_mean"].is_number() && reads["read_us_mean"].is_number(), "{found}");
    let text = must(&binary().to_string_lossy(), &words);
    assert!(!text.contains("0.0000") && text.contains(" - |"), "{text}");
}

/// Goal: what comes faster than the home takes it fills NVM and goes on to the SSD, as on a node,
/// and the answer says by what pace, and what was asked for. Method: a burst of writes into a small
/// NVM, one per nanosecond; the same at leisure.
#[test]
fn what_outruns_the_home_goes_on_to_the_ssd() {
    let work = TempDir::new().expect("a temporary folder");
    let writes: Vec<_> = (0..300).map(|at| ("write", 4, 2 * at)).collect();
    let path = trace(&work, &writes);
    let levels = ["--levels", "10blocks,50blocks,2000blocks", "--critical", "4"];
    let words = [&["replay", &path, "--admission", "second-miss"][..], &levels].concat();
    let found = answer(&[&words[..], &["--json"]].concat());
    let ssd = found["levels"][2]["block_writes"].as_u64().expect("a count");
    assert!((249..=250).contains(&ssd), "{found}");
    let expected = serde_json::json!({
        "inflight_max": 4,
        "run_blocks_max": 256,
        "home_channels": 1,
        "idle_timeout_seconds": 5.0,
        "elapsed_seconds": 2.99e-7,
    });
    assert_eq!(found["destaging"], expected);
    let asked = ["format", "admission", "critical", "services_dealt"].map(|key| &found[key]);
    let words_of = serde_json::json!(["csv", "second-miss", [4], null]);
    assert_eq!(serde_json::json!(asked), words_of);
    let text = must(&binary().to_string_lossy(), &words);
    let pace =
        "destaging: at most 4 writes of up to 256 blocks in flight, 1 served at once in 2000 us";
    assert!(text.contains(pace), "{text}");
    let slow =
        fs::read_to_string(&path).expect("it is there").replace(",4,write", "000000000,4,write");
    fs::write(&path, slow).expect("the folder takes files");
    let found = answer(&[&words[..], &["--json"]].concat());
    assert_eq!(found["levels"][2]["block_writes"], 0, "{found}");
    assert_eq!(found["destaging"]["elapsed_seconds"], 299.0, "{found}");
}

/// Goal: a trace that ends within a line is read as ever, with a note, since its last number may be
/// cut short; one that ends with its line has none. Method: every command that reads traces.
#[test]
fn a_line_without_end_is_noted() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("read", 0, 0), ("read", 0, 1)]);
    let out = work.path().join("o.csv").display().to_string();
    let commands: [&[&str]; 5] = [
        &["replay", &path, "-s", "2blocks"],
        &["replay", &path, "--levels", "1blocks,1blocks,1blocks"],
        &["mrc", &path],
        &["trace", "info", &path],
        &["trace", "convert", &path, &out, "--overwrite"],
    ];
    let text = fs::read_to_string(&path).expect("it is there");
    for (text, is_noted) in [(&*text, false), (&text[..text.len() - 2], true)] {
        fs::write(&path, text).expect("the folder takes files");
        for words in commands {
            let ended = Command::new(binary()).args(words).output().expect("the program starts");
            let noted = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{words:?}: {noted}");
            let notes = noted.matches("the last line of the trace has no end").count();
            assert_eq!(notes, usize::from(is_noted), "{words:?}: {noted}");
        }
    }
}

/// Goal: services are called by the trace's own numbers, whichever volume comes first, and a number
/// that no volume has is refused. Method: volume 7 before volume 3; another trace, two-volumed and
/// recorded, whose volumes are 1 and 2.
#[test]
fn services_have_the_numbers_of_the_trace() {
    let work = TempDir::new().expect("a temporary folder");
    let requests = [("write", 7, 0), ("write", 3, 0), ("read", 3, 0), ("read", 3, 0)];
    let path = trace(&work, &requests);
    let levels = ["--levels", "8blocks,8blocks,8blocks", "--json"];
    let of = |path: &str, critical: &str| {
        answer(&[&["replay", path, "--critical", critical][..], &levels].concat())
    };
    let found = of(&path, "3");
    let services = found["services"].as_array().expect("a list");
    let named: Vec<_> = services.iter().map(|one| (&one["name"], &one["class"])).collect();
    let [critical, normal] = ["critical", "normal"].map(Value::from);
    let all = Value::from("all");
    let numbers = ["3", "7"].map(Value::from);
    let expected =
        [(&all, &critical), (&all, &normal), (&numbers[0], &critical), (&numbers[1], &normal)];
    assert_eq!(named, expected);
    assert_eq!(services[2]["hits"], serde_json::json!([1, 1, 0]));
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/data/recorded.parquet");
    let names = |found: &Value, class: &str| -> Vec<String> {
        let services = found["services"].as_array().expect("a list").iter();
        let mine = services.filter(|one| one["class"] == class && one["name"] != "all");
        mine.map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    let found = of(recorded, "2");
    assert_eq!(
        (names(&found, "critical"), names(&found, "normal")),
        (vec!["2".into()], vec!["1".into()])
    );
    for (path, absent, there) in [(&*path, "0", "3, 7"), (recorded, "7", "1, 2")] {
        let words = [&["replay", path, "--critical", absent][..], &levels[..2]].concat();
        refusal(&words, 2).assert_explains(&["critical", absent, there]);
    }
    let services = [&["replay", &path, "--services", "4", "--critical", "4"][..], &levels].concat();
    refusal(&services, 2).assert_explains(&["service 4", "0 to 3"]);
}

/// Goal: the blocks of several volumes are dealt out to services, each block of each volume to one
/// and told apart from the others. Method: the same block of two volumes of bytes, read twice each.
#[test]
fn services_are_dealt_from_several_volumes() {
    let work = TempDir::new().expect("a temporary folder");
    let requests = [0, 1, 0, 1].map(|volume| ("read", volume, 5));
    let path = trace(&work, &requests);
    let levels = ["--levels", "8blocks,8blocks,8blocks", "--json"];
    for services in ["1", "2", "8"] {
        let words = [&["replay", &path, "--services", services][..], &levels].concat();
        let found = answer(&words);
        let all = found["services"].as_array().expect("a list").iter();
        let sum = |key: &str| -> u64 {
            let whole = all.clone().filter(|one| one["name"] == "all");
            whole.map(|one| one[key].as_u64().expect("a count")).sum()
        };
        assert_eq!((sum("reads"), sum("misses")), (4, 2), "{services} services: {found}");
        let named = all.clone().filter(|one| one["name"] != "all").count();
        assert_eq!(named.to_string(), services);
    }
}

/// Goal: bytes of levels are those of the trace's blocks, which objects do not have, and records
/// that were left out are counted. Method: blocks of 64 KiB, missed, written and evicted, one
/// record without a length; then objects.
#[test]
fn levels_count_the_bytes_of_their_blocks() {
    let work = TempDir::new().expect("a temporary folder");
    let blocks: Vec<_> = (0..40).map(|at| (["read", "write"][at % 2], 0, at as u64 * 16)).collect();
    let path = trace(&work, &blocks);
    let text = fs::read_to_string(&path).expect("it is there") + "40,0,read,0,0\n";
    fs::write(&path, text).expect("the folder takes files");
    let levels = ["--levels", "2blocks,2blocks,4blocks", "--critical", "0", "--lenient"];
    let words = [&["replay", &path, "--block-size", "64KiB"][..], &levels].concat();
    let found = answer(&[&words[..], &["--json"]].concat());
    let count = |value: &Value| value.as_u64().expect("a count");
    let (misses, block) = (count(&found["services"][0]["misses"]), 65_536);
    assert_eq!((&found["unit"], count(&found["block_bytes"])), (&"bytes".into(), block));
    assert_eq!((misses, count(&found["home_bytes_read"])), (20, 20 * block), "{found}");
    let levels = found["levels"].as_array().expect("three");
    let destaged: u64 = levels.iter().map(|level| count(&level["destaged"])).sum();
    assert!(destaged > 0, "{found}");
    assert_eq!(count(&found["home_bytes_written"]), destaged * block, "{found}");
    for level in levels {
        let (bytes, blocks) = (count(&level["bytes_written"]), count(&level["block_writes"]));
        assert_eq!(bytes, blocks * block, "{level}");
    }
    assert_eq!(found["skipped"], 1, "{found}");
    let text = must(&binary().to_string_lossy(), &words);
    assert!(text.contains("1 records were wrong and left out"), "{text}");
    let found = answer(&["replay", &objects(&work), "--levels", "1%,4%,16%", "--json"]);
    assert_eq!(found["unit"], "objects");
    for figure in ["home_bytes_read", "home_bytes_written"] {
        assert!(found[figure].is_null(), "{figure}: {found}");
    }
    assert!(found["levels"][2]["bytes_written"].is_null(), "{found}");
}

/// A trace of objects, every other one written.
fn objects(work: &TempDir) -> String {
    let mut text = String::from("at_ns,volume,operation,object,size\n");
    for at in 0..100 {
        let operation = if at % 2 == 0 { "read" } else { "write" };
        writeln!(text, "{at},0,{operation},{},5000", at * 1_000_000).expect("a String takes all");
    }
    let path = work.path().join("objects.csv");
    fs::write(&path, text).expect("the folder takes files");
    path.display().to_string()
}

/// Goal: a block that levels cannot hold is refused by its number and the bound, be it of a device
/// or an object. Method: the last block that they hold, and the next one, of a device of 64 PiB.
#[test]
fn the_bound_of_blocks_is_said() {
    let work = TempDir::new().expect("a temporary folder");
    let levels = ["--levels", "8blocks,8blocks,8blocks", "--json"];
    let last = (1 << 44) - 2;
    let path = trace(&work, &[("read", 0, last)]);
    answer(&[&["replay", &path][..], &levels].concat());
    trace(&work, &[("read", 0, last + 1)]);
    let refused = refusal(&[&["replay", &path][..], &levels].concat(), 2);
    refused.assert_explains(&[
        "block or object 17592186044415",
        "below 17592186044415",
        "2^44 - 1",
    ]);
}

/// Goal: more volumes than curves are refused with that bound, not with that of a trace. Method: as
/// many volumes as may be, and one more.
#[test]
fn curves_per_volume_have_a_bound() {
    let work = TempDir::new().expect("a temporary folder");
    let requests: Vec<_> = (0..4097).map(|volume| ("read", volume, 1)).collect();
    let path = trace(&work, &requests);
    let words = ["mrc", &path, "--per-volume", "--json"];
    refusal(&words, 2).assert_explains(&["t.csv", "more than 4096 volumes", "--per-volume"]);
    trace(&work, &requests[..4096]);
    assert_eq!(answer(&words)["curves"].as_array().map(Vec::len), Some(4096));
}

/// Goal: a device that was measured gives a replay its latencies, in place of a built-in one and by
/// a name of its own. Method: a tiny probe of the folder, described twice; a block of the SSD and
/// one of the home are read.
#[test]
fn a_measured_device_is_replayed() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("write", 0, 0), ("read", 0, 0), ("read", 0, 9)]);
    let folder = work.path().display().to_string();
    let files = ["ssd", "other"].map(|name| {
        let file = work.path().join(format!("{name}.toml")).display().to_string();
        let tiny = ["--size", "4MiB", "--seconds", "0.002", "--name", name, "--out", &file];
        let probed = answer(&[&["probe", &folder, "--json"][..], &tiny].concat());
        let (known, bytes) = (&probed["device"]["name"], &probed["bytes"]);
        assert_eq!((known, bytes), (&name.into(), &(4 << 20).into()));
        file
    });
    let (_, beside) = both(&["probe", &folder, "--size", "4MiB", "--seconds", "0.002"]);
    for line in ["probe: writing the file, step 1 of at most 13", "probe: deeper queues, step 6"] {
        assert!(beside.contains(line), "{line} is missing: {beside}");
    }
    let entries = fs::read_dir(work.path()).expect("the folder is there").count();
    assert_eq!(entries, 3, "a probe left something behind");
    let [ssd, other] = &files;
    let levels = "8blocks,8blocks,8blocks";
    let words = ["replay", &path, "--json", "--levels", levels, "--devices", ssd];
    let taken = answer(&[&words[..], &["--devices", other, "--home", "other"]].concat());
    let (level, home) = (&taken["levels"][2]["device"], &taken["home"]);
    assert_eq!((&level["name"], &home["name"]), (&"ssd".into(), &"other".into()));
    let [hit, missed] = [level, home].map(|at| at["read_us"].as_f64().expect("a latency"));
    let mean = taken["services"][0]["read_us_mean"].as_f64().expect("a mean");
    // Every read looks into DRAM and NVM, too, where room is lent.
    let found = mean - 0.078 - hit - missed / 2.0;
    assert!(hit > 0.0 && missed > 0.0 && found.abs() < 0.01, "{taken}");
    let chosen = format!("{levels}@other");
    let chosen = answer(&["replay", &path, "--json", "--levels", &chosen, "--devices", other]);
    assert_eq!(chosen["levels"][2]["device"]["name"], "other");
    assert_eq!(chosen["home"]["read_us"], 250.0);
}

/// Goal: where standard error is no terminal, the demo says which phase has begun, and standard
/// output is its answer alone. Method: the shortest demo.
#[test]
fn a_demo_says_how_far_it_is() {
    let words = ["demo", "--seconds", "1", "--vehicles", "1", "--json"];
    let (shown, beside) = both(&words);
    serde_json::from_str::<Value>(&shown).expect("the answer is JSON");
    for line in ["demo: one class for all, 1 s\n", "demo: with classes, 1 s\n"] {
        assert!(beside.contains(line), "{line} is missing: {beside}");
    }
}

/// Goal: what exists is described without its writes, which are then asked for. Method: a probe of
/// a file; a replay with its description, before and after `--write-latency`.
#[test]
fn what_is_only_read_has_no_write() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("read", 0, 1)]);
    let [disk, out] = ["disk", "d.toml"].map(|name| work.path().join(name).display().to_string());
    fs::write(&disk, vec![7; 4 << 20]).expect("the folder takes files");
    let probe = ["probe", &disk, "--seconds", "0.002", "--out", &out];
    must(&binary().to_string_lossy(), &probe);
    let replay =
        ["replay", &path, "--json", "--levels", "1blocks,1blocks,1blocks", "--devices", &out];
    refusal(&replay, 2).assert_explains(&["d.toml", "`write`", "--write-latency"]);
    let again = [&probe[..], &["--json", "--write-latency", "20us"]].concat();
    refusal(&again, 4).assert_explains(&["d.toml", "is there already", "--overwrite"]);
    answer(&[&again[..], &["--overwrite"]].concat());
    assert_eq!(answer(&replay)["levels"][2]["device"]["write_us"], 20.0);
    assert!(fs::read(&disk).expect("it is there").iter().all(|byte| *byte == 7));
}

/// Goal: the worst error is that of every size shown, too, and it is said which sizes a sample
/// cannot tell apart. Method: a trace with reuse at small distances, which a tenth of the blocks
/// misses.
#[test]
fn the_worst_error_is_of_what_is_shown() {
    let work = TempDir::new().expect("a temporary folder");
    let out = work.path().join("z.csv").display().to_string();
    let shape = ["--requests", "20000", "--footprint", "40MiB", "--exponent", "1.2"];
    must(&binary().to_string_lossy(), &[&["trace", "generate", &out][..], &shape].concat());
    let words = ["mrc", &out, "--sampled", "10%", "--seed", "1,2", "--compare"];
    let found = answer(&[&words[..], &["--json"]].concat());
    let curves = found["curves"].as_array().expect("a list");
    let ratios = |curve: &Value| -> Vec<(u64, f64)> {
        let points = curve["points"].as_array().expect("points").iter();
        let point = |at: &Value| at["cache_blocks"].as_u64().zip(at["miss_ratio"].as_f64());
        points.map(|at| point(at).expect("numbers")).collect()
    };
    let exact = ratios(&curves[0]);
    for curve in &curves[1..] {
        let error = &curve["error"];
        let apart = |least: u64| {
            let pairs = exact.iter().zip(ratios(curve)).filter(|(one, _)| one.0 >= least);
            pairs.map(|(one, other)| (one.1 - other.1).abs()).fold(0.0, f64::max)
        };
        assert_eq!(curve["resolution_blocks"], 10);
        let (worst, resolved) = (&error["worst"], &error["worst_resolved"]);
        assert!(worst.as_f64().expect("a number") >= apart(0) - 1e-9, "{error} {}", apart(0));
        assert!(resolved.as_f64().expect("a number") >= apart(10) - 1e-9, "{error}");
    }
    let text = must(&binary().to_string_lossy(), &words);
    for part in ["over 100 even sizes", "one followed block stands for 10", "follows only"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

/// Goal: with several seeds a sampled curve has its uncertainty: the standard deviation over the
/// seeds at each size, in the table and in JSON; with one seed it is said that there is none.
/// Method: three seeds' own miss ratios at the sizes that all show, and the deviation by hand.
#[test]
fn samples_have_a_spread() {
    let work = TempDir::new().expect("a temporary folder");
    let out = work.path().join("z.csv").display().to_string();
    let shape = ["--requests", "20000", "--footprint", "40MiB", "--exponent", "0.8"];
    must(&binary().to_string_lossy(), &[&["trace", "generate", &out][..], &shape].concat());
    let words = ["mrc", &out, "--sampled", "20%", "--seed", "1,2,3"];
    let found = answer(&[&words[..], &["--json"]].concat());
    let curves = found["curves"].as_array().expect("a list");
    assert_eq!(curves.len(), 3);
    for at in 0..20 {
        let points = || curves.iter().map(|curve| &curve["points"][at]);
        let sizes: Vec<_> = points().map(|point| &point["cache_blocks"]).collect();
        assert!(sizes.iter().all(|size| size.is_u64() && *size == sizes[0]), "{sizes:?}");
        let ratios = points().map(|point| point["miss_ratio"].as_f64().expect("a ratio"));
        let ratios: Vec<f64> = ratios.collect();
        let mean = ratios.iter().sum::<f64>() / 3.0;
        let deviation = (ratios.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
        for point in points() {
            let said = point["miss_ratio_deviation"].as_f64().expect("a deviation");
            assert!((said - deviation).abs() < 1e-9, "{point}: {deviation}");
        }
        let worst = curves[0]["spread"]["worst"].as_f64().expect("a number");
        assert!(worst >= deviation - 1e-9, "{worst} {deviation}");
    }
    let text = must(&binary().to_string_lossy(), &words);
    for part in ["± over seeds", "standard deviation of the miss ratio over 3 seeds: mean 0.0"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let one = must(&binary().to_string_lossy(), &words[..4]);
    assert!(one.contains("one seed shows no uncertainty"), "{one}");
    let (csv, beside) = both(&[&words[..], &["--csv"]].concat());
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let points = curves.iter().map(|curve| curve["points"].as_array().expect("a list").len());
    assert_eq!(csv.lines().count(), 1 + points.sum::<usize>(), "a heading, and each point");
    assert_eq!(lines.next().and_then(|line| line.get(5).copied()), Some("miss_ratio_deviation"));
    let deviation = |line: Vec<&str>| line[5].parse::<f64>().expect("a number");
    let told = curves[0]["points"].as_array().expect("a list");
    for (line, point) in lines.zip(told) {
        let said = point["miss_ratio_deviation"].as_f64().expect("a deviation");
        assert!((deviation(line) - said).abs() < 1e-9, "{point}");
    }
    assert!(beside.contains("sampled, seed 2: standard deviation"), "{beside}");
    let (_, beside) = both(&[&words[..], &["--csv", "--compare"]].concat());
    assert!(beside.contains("sampled, seed 3: mean absolute error"), "{beside}");
}

/// Goal: a volume without requests that count has no miss ratio, and is not said to miss all.
/// Method: reads of a volume that is written alone, as a table, in JSON and in CSV.
#[test]
fn a_volume_without_reads_has_no_miss_ratio() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("read", 0, 1), ("write", 1, 1), ("read", 0, 1), ("write", 1, 1)]);
    let words = ["mrc", &path, "--per-volume", "--counted", "reads"];
    let found = answer(&[&words[..], &["--json"]].concat());
    let ratio = |curve: usize| &found["curves"][curve]["points"][0]["miss_ratio"];
    assert_eq!((ratio(0), ratio(1)), (&0.5.into(), &Value::Null), "{found}");
    let text = must(&binary().to_string_lossy(), &words);
    assert!(text.contains("|          - |") && !text.contains("1.0000"), "{text}");
    let csv = must(&binary().to_string_lossy(), &[&words[..], &["--csv"]].concat());
    assert!(csv.contains("exact,,0,1,0.5,\n") && csv.contains("exact,,1,1,,\n"), "{csv}");
}

/// Goal: a sample that follows no block is no curve. Method: one in ten thousand of three blocks,
/// alone and for each volume; beside a seed that follows one.
#[test]
fn a_sample_of_nothing_is_refused() {
    let work = TempDir::new().expect("a temporary folder");
    let path = trace(&work, &[("read", 0, 1), ("read", 0, 2), ("read", 1, 3)]);
    let words = ["mrc", &path, "--sampled", "0.01%"];
    for more in [&[][..], &["--compare"], &["--json"], &["--per-volume"], &["--csv"]] {
        let refused = refusal(&[&words[..], more].concat(), 2);
        refused.assert_explains(&["follows no block", "--sampled", "exact"]);
    }
    let seeds = (1..40).map(|seed: u32| seed.to_string()).collect::<Vec<_>>().join(",");
    let found = answer(&["mrc", &path, "--sampled", "10%", "--seed", &seeds, "--json"]);
    for curve in found["curves"].as_array().expect("a list") {
        let points = curve["points"].as_array().expect("a list").len();
        assert_eq!(curve["blocks"] == 0, points == 0, "{curve}");
        assert!(curve["warning"].as_str().is_some_and(|text| text.contains("block")), "{curve}");
    }
}

/// Goal: one level keeps what is written at once, as a node does, and says what belady does not do.
/// Method: blocks written once and read once, behind a filter that a read has to pass twice.
#[test]
fn writes_pass_the_filter() {
    let work = TempDir::new().expect("a temporary folder");
    let requests =
        [("write", 0, 1), ("read", 0, 1), ("read", 0, 2), ("read", 0, 2), ("read", 0, 2)];
    let path = trace(&work, &requests);
    let words = ["replay", &path, "-p", "lru,belady", "-s", "8blocks"];
    let words = [&words[..], &["--admission", "second-miss"]].concat();
    let found = answer(&[&words[..], &["--json"]].concat());
    let of = |at: usize| {
        let result = &found["results"][at];
        ["hits", "insertions"].map(|key| result[key].as_u64().expect("a count"))
    };
    assert_eq!((of(0), of(1)), ([2, 2], [3, 2]));
    assert_eq!(found["results"][0]["admission"], "second-miss");
    assert_eq!(found["results"][1]["admission"], "all");
    let text = must(&binary().to_string_lossy(), &words);
    assert!(text.contains("belady admits every missed block"), "{text}");
}

/// Goal: what a user recorded and shows nothing is refused before anything runs. Method: links
/// that are short (the sample of docs/traces.md), dead and constant; traces without writes, with
/// few, and of objects, which lie nowhere.
#[test]
fn recordings_that_show_nothing_are_refused() {
    let work = TempDir::new().expect("a temporary folder");
    let link = |name: &str, rates: &[u64]| {
        let mut text = String::from("time_s,bytes_per_s\n");
        for (at, rate) in rates.iter().enumerate() {
            writeln!(text, "{at},{rate}").expect("a String takes all");
        }
        let path = work.path().join(name);
        fs::write(&path, text).expect("the folder takes files");
        path.display().to_string()
    };
    for (name, rates, word) in [
        ("short.csv", &[1_502_311, 1_377_090, 0][..], "3 intervals"),
        ("dead.csv", &[0; 400], "0 bytes per second in every interval"),
        ("even.csv", &[1_000_000; 400], "1000000 bytes per second in every interval"),
    ] {
        let path = link(name, rates);
        refusal(&["lab", "run", "links", "--link", &path], 2).assert_explains(&[name, word]);
    }
    let reads = trace(&work, &[("read", 0, 1)]);
    let streams = ["lab", "run", "streams", "--trace", &reads];
    refusal(&streams, 2).assert_explains(&["t.csv", "no writes"]);
    trace(&work, &[("write", 0, 1)]);
    refusal(&streams, 2).assert_explains(&["t.csv", "16 to 4096 MiB"]);
    let objects = objects(&work);
    let streams = ["lab", "run", "streams", "--trace", &objects];
    refusal(&streams, 2).assert_explains(&["objects.csv", "of objects", "bytes"]);
}

/// Goal: a link of a user's is in the report, its file named in the line that runs it again, and
/// nothing in it is what is no number; a report is kept unless it may be replaced. Method: a link
/// that repeats every five intervals, so that naive foresees it five ahead without an error.
#[test]
fn a_report_is_whole_and_kept() {
    let work = TempDir::new().expect("a temporary folder");
    let mut text = String::from("time_s,bytes_per_s\n");
    for at in 0..400 {
        writeln!(text, "{at},{}", 1_000_000 * (1 + at % 5)).expect("a String takes all");
    }
    let link = work.path().join("my link.csv");
    fs::write(&link, text).expect("the folder takes files");
    let (link, page) = (link.display().to_string(), work.path().join("links.html"));
    let out = page.display().to_string();
    let words = ["lab", "run", "links", "--runs", "1", "--link", &link, "--out", &out];
    let shown = must(&binary().to_string_lossy(), &words);
    assert!(shown.contains(&format!("--link '{link}'")), "{shown}");
    assert!(!shown.contains("NaN") && !shown.contains("1797693134862315"), "{shown}");
    // What must be known of a table is beside it on a terminal, too.
    assert!(shown.contains("Mean absolute errors; all but naive's"), "{shown}");
    let html = fs::read_to_string(&page).expect("it was written");
    assert!(!html.contains("NaN") && html.contains("not drawn: median"), "links.html");
    fs::write(&page, "mine").expect("the folder takes files");
    refusal(&words, 4).assert_explains(&["links.html", "is there already", "--overwrite"]);
    assert_eq!(fs::read_to_string(&page).expect("it is there"), "mine");
    must(&binary().to_string_lossy(), &[&words[..], &["--overwrite"]].concat());
    assert!(fs::read_to_string(&page).expect("it is there").starts_with("<!doctype"));
}

/// Goal: two recordings of one name are told apart, and one that is named twice is refused. Method:
/// links in two folders.
#[test]
fn recordings_of_one_name_are_told_apart() {
    let work = TempDir::new().expect("a temporary folder");
    let links = ["night", "day"].map(|name| {
        let folder = work.path().join(name);
        fs::create_dir(&folder).expect("the folder takes folders");
        let mut text = String::from("time_s,bytes_per_s\n");
        for at in 0..400 {
            writeln!(text, "{at},{}", name.len() * 100_000 * (1 + at % 5)).expect("it takes all");
        }
        let path = folder.join("link.csv");
        fs::write(&path, text).expect("the folder takes files");
        path.display().to_string()
    });
    let words = ["lab", "run", "links", "--runs", "1", "--csv", "--link", &links[0], "--link"];
    let shown = must(&binary().to_string_lossy(), &[&words[..], &[&links[1]]].concat());
    let rows = |name: &str| shown.lines().filter(|line| line.contains(name)).count();
    // Once more, in the line that runs it again.
    assert!(rows(&links[0]) > 2 && rows(&links[0]) == rows(&links[1]), "{shown}");
    let twice = refusal(&[&words[..], &[&links[0]]].concat(), 2);
    twice.assert_explains(&["--link", "twice", "link.csv"]);
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
    refusal(&["replay", &path, "-s", "200%"], 2).assert_explains(&["200%", "up to 100%"]);
    refusal(&["replay", &path, "-p", "lru,lru"], 2).assert_explains(&["--policy", "twice"]);
    refusal(&["replay", &path, "-s", "5%,5%"], 2).assert_explains(&["--cache-size", "twice"]);
    refusal(&["mrc", &path, "--sampled", "0%"], 2).assert_explains(&["0%"]);
    refusal(&["mrc", &path, "--sampled", "9%", "--seed", "1,1"], 2).assert_explains(&["twice"]);
    refusal(&["mrc", &path, "--compare"], 2).assert_explains(&["--sampled"]);
    refusal(&["mrc", &empty], 2).assert_explains(&["no curve"]);
    refusal(&["trace", "sample", &path, "s.csv", "--rate", "0%"], 2).assert_explains(&["none"]);
    let idle = work.path().join("idle.toml").display().to_string();
    let described = "[[device]]\nname = \"idle\"\nread = \"1us\"\nwrite = \"1us\"\n";
    fs::write(&idle, described).expect("the folder takes files");
    let unused = ["replay", &path, "--levels", "1blocks,1blocks,1blocks", "--devices", &idle];
    refusal(&unused, 2).assert_explains(&["`idle`", "no level", "--home"]);
    let levels = ["replay", &path, "--levels", "1blocks,1blocks,1blocks@tape"];
    refusal(&levels, 2).assert_explains(&["tape", "dram, nvm, ssd, hdd, main"]);
    refusal(&["replay", &path, "--devices", &absent], 2).assert_explains(&["--levels"]);
    refusal(&[&levels[..], &["--devices", &absent]].concat(), 6).assert_explains(&["absent.csv"]);
    refusal(&[&levels[..], &["--devices", &empty]].concat(), 2).assert_explains(&["empty.csv"]);
    let lab = ["lab", "run", "padsa", "--devices", &absent];
    refusal(&lab, 6).assert_explains(&["absent.csv"]);
    let lab = ["lab", "run", "wear", "--devices", &absent];
    refusal(&lab, 2).assert_explains(&["padsa"]);
    refusal(&["lab", "run", "padsa", "--scale", "8"], 2).assert_explains(&["--scale"]);
    refusal(&["lab", "run", "wear", "--link", &absent], 2).assert_explains(&["--link"]);
    refusal(&["lab", "run", "links", "--link", &absent], 6).assert_explains(&["absent.csv"]);
    refusal(&["lab", "run", "delay-d", "--scale", "65"], 2).assert_explains(&["from 1 to 64"]);
    refusal(&["probe", &absent], 6).assert_explains(&["absent.csv"]);
    let folder = work.path().display().to_string();
    refusal(&["probe", &folder, "--size", "1MiB"], 2).assert_explains(&["4MiB"]);
    refusal(&["probe", &folder, "--seconds", "0"], 2).assert_explains(&["0.001"]);
    let both = ["probe", &folder, "--write-latency", "20us"];
    refusal(&both, 2).assert_explains(&["--write-latency"]);
}
