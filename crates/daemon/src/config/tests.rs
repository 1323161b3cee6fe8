//! Configurations good and bad.

use super::*;
use crate::error::ReportKind;
use layby_cache::cleaning::Limits;
use layby_cache::discards::{DiscardDelay, DiscardMode};
use layby_cache::{EvictionKind, Watermarks};
use tempfile::TempDir;

/// One level of each kind, as default levels are on persistent memory.
const THREE_LEVELS: &str = "
[[level]]
name = \"dram\"
kind = \"memory\"
size = \"64MiB\"

[[level]]
name = \"nvm\"
kind = \"nvm\"
size = \"64MiB\"

[[level]]
name = \"ssd\"
kind = \"ssd\"
size = \"512MiB\"
";

/// A configuration with these levels where it writes none: for tests to which it matters that there
/// are three, as to those whose mock shards report so many.
pub(crate) fn with_three_levels(text: &str) -> String {
    let levels = if text.contains("[[level]]") { "" } else { THREE_LEVELS };
    format!("{text}{levels}")
}

fn parse(text: &str) -> Result<Config, Report> {
    let overrides = Overrides { dir: Some("/nonexistent/node".into()), ..Overrides::default() };
    Config::parse(Some("layby.toml".into()), text, &overrides)
}

fn refusal(text: &str) -> Report {
    parse(text).expect_err("this configuration must be refused")
}

/// Goal: a node needs no configuration. Method: the empty text gives the documented defaults.
#[test]
fn empty_configuration_is_whole() {
    let config = parse("").expect("nothing to refuse");
    let sizes: Vec<u64> = config.levels.iter().map(|level| level.size >> 20).collect();
    assert_eq!(sizes, [64, 512]);
    let names: Vec<&str> = config.classes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, BUILT_IN_CLASSES);
    let critical = &config.classes[0].1;
    assert!(critical.durable_writes && critical.levels.len() == 2 && critical.rank == 0);
    assert_eq!(config.classes[2].1.cap["ssd"], BULK_CAP);
    assert_eq!(config.nbd.socket, Path::new("/nonexistent/node/layby.sock"));
    assert!(config.nbd.listen.is_empty() && config.volumes.is_empty());
}

const WHOLE: &str = r#"
[node]
block_size = "8KiB"
shards = 2
io = "epoll"
[nbd]
socket = "n.sock"
listen = ["127.0.0.1:10809", "[::1]:10809"]
tls = "required"
tls_certificate = "c.pem"
tls_key = "/etc/k.pem"
connections_max = 64
handshake_timeout = "3s"
[control]
http = "off"
[[level]]
name = "fast"
kind = "memory"
size = "16MiB"
[[level]]
name = "flash"
kind = "ssd"
size = "1GiB"
path = "/dev/some-disk"
dirty_red = "60%"
dirty_green = "40%"
[writeback]
merge_size = "2MiB"
idle_timeout = "1s"
inflight_max = 8
[read_ahead]
window_max = 0
[class.normal]
borrow = false
[class.video]
rank = 3
levels = ["flash"]
share = { flash = "25%" }
cap = { flash = "512MiB" }
[volume.cam]
size = "4GiB"
class = "video"
read_only = true
allow = ["10.0.0.0/8", "unix"]
"#;

/// Goal: every key is understood. Method: a file that uses all of them, and a look at the result.
#[test]
fn whole_configuration_is_understood() {
    let config = parse(WHOLE).expect("every key is good");
    assert_eq!(config.block_size, BlockSize::new(8192));
    assert_eq!((config.shards, config.io), (Some(2), IoChoice::Epoll));
    assert_eq!(config.nbd.tls_certificate, Some("/nonexistent/node/c.pem".into()));
    assert_eq!(config.nbd.tls_key, Some("/etc/k.pem".into()));
    assert_eq!(config.nbd.listen.len(), 2);
    assert_eq!(config.control.http, None);
    assert_eq!(config.levels[1].watermarks.dirty_red, 60);
    assert_eq!(config.levels[1].watermarks.used_red, Watermarks::DEFAULT.used_red);
    assert_eq!(config.writeback.merge_bytes, 2 << 20);
    assert_eq!(config.read_ahead.window_bytes_max, 0);
    let (name, video) = &config.classes[3];
    assert_eq!((name.as_str(), video.rank), ("video", 3));
    assert!(!config.classes[1].1.borrow, "a built-in class can be changed in part");
    assert_eq!(config.volumes["cam"].size, Some(Size(4 << 30)));
}

/// Goal: flags override the file. Method: the same key in both.
#[test]
fn flags_override_the_file() {
    let overrides = Overrides {
        dir: Some("/nonexistent/other".into()),
        listen: vec![Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 1)))],
        socket: Some("here.sock".into()),
        shards: Some(1),
        io: Some(IoChoice::IoUring),
        ..Overrides::default()
    };
    let config = Config::parse(None, WHOLE, &overrides).expect("every key is good");
    assert_eq!((config.shards, config.io), (Some(1), IoChoice::IoUring));
    assert_eq!(config.nbd.listen, overrides.listen);
    assert_eq!(config.nbd.socket, Path::new("here.sock"));
    assert_eq!(config.nbd.tls_certificate, Some("/nonexistent/other/c.pem".into()));
}

/// Goal: a wrong key or value is shown with its line. Method: one bad file per way to be wrong,
/// and words that its report must hold.
#[test]
fn bad_configurations_name_line_and_remedy() {
    let flash = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\n";
    let cases: Vec<(String, &[&str])> = vec![
        ("[node]\nshrads = 2\n".into(), &["line 2", "shrads", "expected one of", "shards"]),
        ("[node\n".into(), &["line 1"]),
        ("[node]\nshards = 0\n".into(), &["line 2: `shards = 0`", "1 to 64"]),
        ("[node]\nblock_size = \"5KiB\"\n".into(), &["line 2", "5KiB", "4KiB"]),
        ("[node]\nblock_size = \"4 bits\"\n".into(), &["line 2", "is not a size"]),
        ("[nbd]\nhandshake_timeout = \"1h\"\n".into(), &["line 2", "100ms to 10m"]),
        ("[nbd]\n\ntls = \"required\"\n".into(), &["line 3", "certificate"]),
        ("[nbd]\ntls = \"maybe\"\n".into(), &["line 2", "required"]),
        ("[nbd]\nlisten = [\"everywhere\"]\n".into(), &["line 2", "listen"]),
        ("[nbd]\nconnections_max = 0\n".into(), &["line 2", "connections_max"]),
        ("[nbd]\nlisten = [\"localhost\"]\n".into(), &["line 2", "no port", "localhost:10809"]),
        ("[nbd]\nsocket = \"catalog.json\"\n".into(), &["line 2", "of the node's own"]),
        ("[control]\nsocket = \"levels\"\n".into(), &["line 2", "of the node's own"]),
        ("[control]\nsocket = \"layby.sock\"\n".into(), &["both", "layby.sock"]),
        ("[control]\nhttp = \"0.0.0.0:80\"\n".into(), &["line 2", "other machines", "loopback"]),
        (format!("{flash}size = \"1MiB\"\n"), &["line 4: `size = \"1MiB\"`", "write 8MiB"]),
        (format!("{flash}size = \"1GiB\"\nread = 1\n"), &["line 5", "read"]),
        (
            format!("{flash}size = \"1GiB\"\n{}size = \"1GiB\"\n", flash.replace("ssd", "nvm")),
            &["line 7: `kind = \"nvm\"`", "fastest first"],
        ),
        (
            format!("{flash}size = \"1GiB\"\n{flash}size = \"1GiB\"\n"),
            &["line 6: `name = \"ssd\"`", "two levels"],
        ),
        (
            format!("{flash}size = \"1GiB\"\ndirty_red = \"10%\"\n"),
            &["line 5", "green 50% and red 10%"],
        ),
        ("[class.a]\nlevels = [\"tape\"]\n".into(), &["line 2", "no level `tape`", "dram, ssd"]),
        (
            "[class.a]\nshare = { ssd = \"60%\" }\n[class.b]\nshare = { ssd = \"60%\" }\n".into(),
            &["line 4", "guaranteed"],
        ),
        (
            "[[level]]\nname = \"a\"\nkind = \"ssd\"\nsize = \"1GiB\"\n\
             [[level]]\nname = \"b\"\nkind = \"ssd\"\nsize = \"1GiB\"\n"
                .into(),
            &["line 7", "both of kind ssd"],
        ),
        ("[class.a]\nshare = { dram = \"6%\" }\n".into(), &["line 2", "may not use it"]),
        (
            "[class.a.share]\nssd = \"60%\"\n[class.a.cap]\nssd = \"10%\"\n".into(),
            &["class.a", "exceeds its cap"],
        ),
        ("[volume.v]\nsize = \"1GiB\"\nclass = \"gold\"\n".into(), &["line 3", "no class `gold`"]),
        ("[volume.\"a/b\"]\nsize = \"1GiB\"\n".into(), &["line 1", "is not a name"]),
        ("[volume.v]\nsize = 1000\n".into(), &["line 2", "multiple of 512"]),
        ("[class.a]\nshare = { ssd = \"25\" }\n".into(), &["line 2", "no unit", "`25%`"]),
        ("[volume.v]\nallow = [\"10.0.0.0/40\"]\n".into(), &["line 2", "no allow rule"]),
        ("[writeback]\nmerge_size = \"1GiB\"\n".into(), &["line 2", "64KiB to 16MiB"]),
        ("[writeback]\ninflight_max = 0\n".into(), &["line 2", "1 to 256"]),
        ("[read_ahead]\nwindow_max = \"1GiB\"\n".into(), &["line 2", "64MiB"]),
        ("[writeback]\nidle_timeout = \"9h\"\n".into(), &["line 2", "more than 1h"]),
        ("[class.bulk]\nlatency_objective = \"2h\"\n".into(), &["line 2", "more than 1h"]),
    ];
    each_is_refused(cases);
}

/// Goal: an address that the node would listen on twice is refused before the node starts. Method:
/// as above.
#[test]
fn addresses_that_are_there_twice_are_refused() {
    each_is_refused(vec![
        (
            "[nbd]\nlisten = [\"127.0.0.1:9\", \"127.0.0.1:9\"]\n".into(),
            &["line 2", "listens on 127.0.0.1:9 already"],
        ),
        (
            "[nbd]\nlisten = [\"[::1]:9\"]\n[control]\nmetrics = \"[::1]:9\"\n".into(),
            &["line 4", "listens on [::1]:9 already"],
        ),
    ]);
}

/// Goal: a place that is no store's is refused before the node starts. Method: as above.
#[test]
fn bad_stores_are_refused() {
    let volume = |place: &str| format!("[volume.v]\nsize = \"1MiB\"\npath = \"{place}\"\n");
    each_is_refused(vec![
        (volume("s4://b/x"), &["line 3", "s4://b/x", "s3://BUCKET/PREFIX"]),
        (volume("file://x"), &["line 3", "file://x", "file:///FOLDER"]),
        (
            volume("s3://"),
            &["line 3", "`s3://` names no store: it has no bucket", "s3://BUCKET/PREFIX"],
        ),
        (
            volume("az:///x"),
            &["line 3", "`az:///x` names no store: it has no bucket", "az://CONTAINER/PREFIX"],
        ),
    ]);
}

/// Each text is refused with the file, the state, a hint and these words.
fn each_is_refused(cases: Vec<(String, &[&str])>) {
    for (text, words) in cases {
        let report = refusal(&text);
        let shown = report.to_string();
        assert!(shown.contains("layby.toml"), "{text}\n{shown}");
        assert!(shown.contains("state: nothing was started"), "{text}\n{shown}");
        assert!(!report.hint.is_empty() && report.kind == ReportKind::Invalid, "{text}\n{shown}");
        for word in words {
            assert!(shown.contains(word), "`{word}` is missing\n{text}\n{shown}");
        }
    }
}

/// Goal: two users of one file are found however it is spelled. Method: a plain repeat, a hard
/// link, a symbolic link, a detour, and a volume on a level's file.
#[test]
fn shared_files_are_found() {
    let dir = TempDir::new().expect("a temporary directory");
    let file = dir.path().join("a");
    std::fs::write(&file, b"").expect("a file");
    std::fs::hard_link(&file, dir.path().join("hard")).expect("a hard link");
    std::os::unix::fs::symlink(&file, dir.path().join("soft")).expect("a symbolic link");
    std::fs::create_dir(dir.path().join("sub")).expect("a directory");
    let overrides = Overrides { dir: Some(dir.path().into()), ..Overrides::default() };
    let level = |name: &str, path: &str| {
        let kind = if name == "one" { "nvm" } else { "ssd" };
        format!(
            "[[level]]\nname = \"{name}\"\nkind = \"{kind}\"\nsize = \"1GiB\"\npath = \"{path}\"\n"
        )
    };
    for other in ["a", "hard", "soft", "sub/../a", "missing"] {
        let first = if other == "missing" { "sub/../missing" } else { "a" };
        let text = level("one", first) + &level("two", other);
        let report = Config::parse(None, &text, &overrides).expect_err(other);
        assert!(report.cause.contains("level `two` and level `one` share"), "{report}");
    }
    let text = level("one", "a") + "[volume.v]\nsize = \"1GiB\"\npath = \"soft\"\n";
    let report = Config::parse(None, &text, &overrides).expect_err("a volume on a level's file");
    assert!(report.cause.contains("volume `v` and level `one` share"), "{report}");
    assert!(Config::parse(None, &(level("one", "a") + &level("two", "b")), &overrides).is_ok());
}

/// Goal: a volume's relative path lies in the node's directory, also if that is relative itself.
/// Method: both relative; the path is whole and holds the directory once.
#[test]
fn relative_paths_are_joined_once() {
    let overrides = Overrides { dir: Some("some/node".into()), ..Overrides::default() };
    let text = "[volume.v]\nsize = \"1GiB\"\npath = \"v.img\"\n";
    let config = Config::parse(None, text, &overrides).expect("a sound configuration");
    let path = config.volumes.values().next().and_then(|v| v.path.clone()).expect("it has one");
    let expected = std::env::current_dir().expect("a directory").join("some/node/v.img");
    assert_eq!((&path, config.dir.join(&path)), (&expected, expected.clone()));
}

/// Goal: a socket path that the kernel would refuse is refused with its reason. Method: a directory
/// with a long name.
#[test]
fn long_socket_paths_are_refused() {
    let overrides = Overrides { dir: Some("d".repeat(120).into()), ..Overrides::default() };
    let report = Config::parse(None, "", &overrides).expect_err("the path is too long");
    assert!(report.cause.contains("107 at most"), "{report}");
}

/// Goal: a policy is a level's own, every name of the registry is known, and a wrong one is refused
/// with its line and the known ones. Method: all names, the other spelling, none, a wrong one.
#[test]
fn levels_name_their_policies() {
    let text = |policy: &str| {
        format!("[[level]]\nname = \"x\"\nkind = \"memory\"\nsize = \"1MiB\"\n{policy}\n")
    };
    for kind in EvictionKind::ALL {
        let config = parse(&text(&format!("policy = \"{}\"", kind.name()))).expect("a known name");
        assert_eq!(EvictionKind::from(config.levels[0].policy), kind);
        assert_eq!(Policy::from(kind), config.levels[0].policy);
    }
    let other = parse(&text("policy = \"s3-fifo\"")).expect("as its authors write it");
    assert_eq!(other.levels[0].policy, Policy::S3Fifo);
    assert_eq!(parse(&text("")).expect("a default").levels[0].policy, Policy::Lru);
    let report = refusal(&text("policy = \"mru\""));
    for word in ["line 5", "mru", "lru", "clock", "s3fifo", "arc", "lfu"] {
        assert!(report.cause.contains(word), "{report}");
    }
}

/// Goal: live sizing is off until it is asked for, and what is asked for arrives. Method: no table,
/// a whole one, classes with a weight and an objective.
#[test]
fn sizing_is_configured() {
    let silent = parse("").expect("nothing to refuse").sizing;
    assert!(!silent.enabled && silent.watch && silent.period == Nanos::from_secs(10));
    let text = "[sizing]\nenabled = true\nperiod = \"2s\"\nobjective = \"objectives-first\"\n\
                counts = \"both\"\nkeep = \"40%\"\ngain_min = \"5%\"\npayback = \"90s\"\n\
                latency = { ssd = \"80us\", home = \"4ms\" }\n\
                [class.normal]\nweight = 3\nlatency_objective = \"2ms\"\n";
    let config = parse(text).expect("every key is good");
    let limits = config.sizing.limits();
    assert_eq!((limits.mover.gain_permille, limits.mover.payback), (50, Nanos::from_secs(90)));
    assert!((limits.keep - 0.4).abs() < 1e-9);
    let latencies = config.sizing.latencies(&config.levels);
    assert!((latencies.levels[1] - 80e3).abs() < 1e-6 && (latencies.home - 4e6).abs() < 1e-6);
    let normal = &config.classes[1].1;
    assert_eq!(
        (normal.weight, normal.latency_objective.map(|t| t.0)),
        (3, Some(Nanos::from_millis(2)))
    );
}

/// Goal: sizing that makes no sense is refused with its line. Method: a value out of each range.
#[test]
fn bad_sizing_is_refused() {
    for (line, word) in [
        ("period = \"1ms\"", "100ms"),
        ("keep = \"99%\"", "fade"),
        ("payback = \"1ms\"", "1s to 24h"),
        ("latency = { tape = \"1s\" }", "tape"),
        ("objective = \"median\"", "objectives-first"),
        ("enabled = true\nwatch = false", "watch"),
    ] {
        let report = refusal(&format!("[sizing]\n{line}\n"));
        assert!(report.cause.contains(word) && report.cause.contains("line "), "{line}: {report}");
    }
    let report = refusal("[class.normal]\nweight = 0\n");
    assert!(report.cause.contains("line 2"), "{report}");
}

/// Goal: a class names its admission as a replay does, all by default, and a wrong name is refused
/// with its line. Method: every name of the registry, none, a wrong one.
#[test]
fn classes_name_their_admission() {
    let text = |admission: &str| format!("[class.bulk]\nrank = 2\n{admission}\n");
    let bulk = |text: &str| parse(text).expect("a known name").classes[2].1.admission;
    for kind in AdmissionKind::ALL {
        let written = text(&format!("admission = \"{}\"", kind.name()));
        assert_eq!(AdmissionKind::from(bulk(&written)), kind);
    }
    assert_eq!(bulk(&text("")), Admission::All);
    let report = refusal(&text("admission = \"third-miss\""));
    for word in ["line 3", "third-miss", "second-miss"] {
        assert!(report.to_string().contains(word), "{report}");
    }
}

/// Goal: what a level endures is read from bytes or drive writes, over a life, and what makes no
/// sense is refused with its line. Method: both, a default, and one of each fault.
#[test]
fn levels_say_what_they_endure() {
    let text = |kind: &str, keys: &str| {
        format!("[[level]]\nname = \"a\"\nkind = \"{kind}\"\nsize = \"1GiB\"\n{keys}\n")
    };
    let read = |keys: &str| parse(&text("ssd", keys)).expect("good keys").levels[0].endurance;
    assert_eq!(read(""), None);
    let rated = read("endurance = \"600TiB\"").expect("it is rated");
    assert_eq!((rated.bytes, rated.life.to_string().as_str()), (600 << 40, "1825d"));
    let rated = read("drive_writes_per_day = 0.5\nlife = \"1000d\"").expect("it is rated");
    assert_eq!((rated.bytes, rated.daily_bytes()), (500 << 30, 512 << 20));
    for (kind, keys, word) in [
        ("memory", "endurance = \"1TiB\"", "does not wear"),
        ("ssd", "endurance = \"1MiB\"", "1GiB"),
        ("ssd", "endurance = \"1TiB\"\nlife = \"1h\"", "1d"),
        ("ssd", "life = \"30d\"", "endures"),
        ("ssd", "drive_writes_per_day = -1.0", "0.01"),
        ("ssd", "endurance = \"1TiB\"\ndrive_writes_per_day = 1.0", "the same in bytes"),
    ] {
        let report = refusal(&text(kind, keys));
        assert!(report.cause.contains(word) && report.cause.contains("line "), "{keys}: {report}");
    }
}

/// Goal: how a log uses its flash is read, divided over shards, and what makes no sense is refused
/// with its line. Method: defaults in a file and on a device, all keys, and one of each fault.
#[test]
fn levels_say_how_they_use_their_flash() {
    let text = |kind: &str, keys: &str| {
        format!("[[level]]\nname = \"a\"\nkind = \"{kind}\"\nsize = \"1GiB\"\n{keys}\n")
    };
    let read = |keys: &str| parse(&text("ssd", keys)).expect("good keys").levels[0].segments;
    let (in_file, on_device) = (read("").plan(false, 1), read("").plan(true, 1));
    assert_eq!((in_file.bytes, in_file.discard.mode), (0, DiscardMode::Off));
    assert_eq!((on_device.bytes, on_device.discard.mode), (0, DiscardMode::Delayed));
    assert!(in_file.hints && on_device.hints && read("hints = \"auto\"").plan(false, 1).hints);
    let all = "segment = \"4MiB\"\ndiscard = \"immediate\"\ndiscard_delay = \"adaptive\"\n\
               discard_bandwidth = \"100MiB\"\nhints = \"off\"\n\
               cold_percent = 25\nfree_percent = 5";
    assert_eq!(in_file.cleaning, Limits::DEFAULT);
    let plan = read(all).plan(false, 2);
    assert_eq!((plan.bytes, plan.discard.mode), (4 << 20, DiscardMode::Immediate));
    assert_eq!(plan.discard.delay, DiscardDelay::ADAPTIVE);
    assert_eq!(plan.discard.bytes_per_second_max, 50 << 20);
    assert!(!plan.hints);
    assert_eq!(plan.cleaning, Limits { cold_percent: 25, free_percent: 5 });
    for (kind, keys, word) in [
        ("memory", "segment = \"1MiB\"", "no log on flash"),
        ("memory", "preallocation = \"full\"", "no file"),
        ("nvm", "preallocation = \"off\"", "falloc"),
        ("nvm", "discard = \"off\"", "no log on flash"),
        ("memory", "hints = \"auto\"", "no log on flash"),
        ("ssd", "hints = \"on\"", "auto"),
        ("ssd", "segment = \"256KiB\"", "512KiB"),
        ("ssd", "segment = \"65MiB\"", "64MiB"),
        ("ssd", "segment = \"1000KiB\"", "multiple of 64KiB"),
        ("ssd", "discard_delay = \"2h\"", "1h"),
        ("ssd", "discard_bandwidth = \"1KiB\"", "1MiB"),
        ("nvm", "cold_percent = 10", "no log on flash"),
        ("ssd", "cold_percent = 51", "more than 50"),
        ("ssd", "free_percent = 21", "more than 20"),
    ] {
        let report = refusal(&text(kind, keys));
        assert!(report.cause.contains(word) && report.cause.contains("line "), "{keys}: {report}");
    }
}

/// Goal: no volume and no level takes the place of a file of the node's own. Method: one of each.
#[test]
fn files_of_the_node_are_its_own() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let overrides = Overrides { dir: Some(dir.path().into()), ..Overrides::default() };
    let level =
        "[[level]]\nname = \"s\"\nkind = \"ssd\"\nsize = \"64MiB\"\npath = \"intents.json\"\n";
    for text in ["[volume.a]\npath = \"catalog.json\"\nsize = \"1MiB\"\n", level] {
        let report = Config::parse(None, text, &overrides).expect_err("it would be overwritten");
        assert!(report.cause.contains("of the node's own"), "{report}");
    }
}

/// Goal: files for encryption without `tls` are accepted with a note, unless it is said that
/// nothing is encrypted. Method: each of both.
#[test]
fn certificates_without_encryption_are_noted() {
    let notes = |more: &str| {
        let text = format!("[nbd]\ntls_certificate = \"c.pem\"\ntls_key = \"k.pem\"\n{more}");
        parse(&text).expect("it is good").notes
    };
    assert!(notes("")[0].contains("`tls_certificate`"), "{:?}", notes(""));
    assert_eq!(notes("tls = \"off\"\n"), [""; 0]);
    assert_eq!(notes("tls = \"required\"\n"), [""; 0]);
}

/// Goal: a name is no mistake of the configuration, also where it has no address: it is looked up
/// where it is bound; the same name twice is. Method: a name that no resolver knows.
#[test]
fn names_are_not_looked_up() {
    let text = "[nbd]\nlisten = [\"nowhere.invalid:9\"]\n[control]\nhttp = \"nowhere.invalid:8\"\n";
    let config = parse(text).expect("names may have addresses later");
    assert_eq!(config.nbd.listen, [Address::Name("nowhere.invalid:9".to_owned())]);
    each_is_refused(vec![(text.replace(":8", ":9"), &["line 4", "nowhere.invalid:9 already"])]);
}

/// Goal: what only a node that serves needs is not looked at to read what a lost one left. Method:
/// a description of devices and a folder for volumes that are missing.
#[test]
fn a_rescue_needs_no_devices() {
    let text = "[node]\ndevices = [\"d.toml\"]\nvolume_roots = [\"/nonexistent/root\"]\n";
    let dir = Some("/nonexistent/node".into());
    let load = |reads_only| {
        let overrides = Overrides { dir: dir.clone(), reads_only, ..Overrides::default() };
        Config::parse(None, text, &overrides)
    };
    let config = load(true).expect("it is only read");
    assert!(config.devices.is_empty() && config.notes.is_empty(), "{config:?}");
    let refused = load(false).expect_err("its budgets are unknown");
    assert!(refused.cause.contains("d.toml"), "{refused}");
}

/// Goal: every configuration that the documents show is one. Method: their blocks of TOML, parsed
/// as a node's file is; that of all keys is among them.
#[test]
fn the_documents_examples_are_good() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut examples = Vec::new();
    for name in ["README.md", "docs/configuration.md", "docs/operating.md"] {
        let text = std::fs::read_to_string(root.join(name)).expect("it is there");
        for block in text.split("\n```toml\n").skip(1) {
            let (example, _) = block.split_once("\n```").expect("a block has an end");
            parse(example).unwrap_or_else(|refused| panic!("{name}: {refused}\n{example}"));
            examples.push(example.to_owned());
        }
    }
    assert!(examples.iter().any(|example| example.contains("[sizing]")), "{examples:?}");
}
