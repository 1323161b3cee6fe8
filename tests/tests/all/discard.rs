//! Discards of a real ext4 on their way to the home: off, immediate, delayed.
//!
//! How: ext4 with `discard` over loop over nbdfuse; files of one MiB are written and deleted, all
//! at once (batch-erase) or the oldest for each new one (single-erase), as in Delay-D's scenarios.
//! The journal commits every second, the delay is longer than any run of the test: so what waits is
//! sent at the end, whatever the speed.
//! Blocks are of 4 KiB, as on any file system of a usual size, and groups of 8 MiB, so that a batch
//! spans many of them, as the paper's does: ext4 never discards across groups. Counted is from the
//! mount on: what `mkfs` zeroes is no discard. Every file is compared with what its number says;
//! then the node is killed, and what was synced must be there after `fsck`. `LAYBY_DISCARD_FILES`,
//! `_ROUNDS`, `_STEPS` and `_MIB` scale it. An SSD level on a loop device tells it of what is free.
//! `cargo xtask bench discard` sets `LAYBY_DISCARD_SECONDS`: then the load is the paper's, see
//! [`steady`], the lines `discard {…}` are its figures, and from 40 on the paper's reductions are
//! asserted.
//! Where FUSE or loop devices are missing the tests say so and skip.

use layby_tests::{
    Attached, LoopDevice, Mounted, Node, Options, available, layby, mount_unavailable, must,
    number, run, seed,
};
use layby_types::Rng;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOOLS: [&str; 6] = ["nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "mount", "mkfifo"];
const FILE_BYTES: usize = 1 << 20;
/// Questions for counters until what waits must have been sent.
const POLLS_MAX: u32 = 600;
/// Nothing is zeroed or discarded but what the scenarios delete.
const MKFS: [&str; 6] =
    ["-b", "4096", "-g", "2048", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
/// New files until they are written back.
const STEPS_PER_SYNC: u64 = 8;
const VOLUME: &str = "disk";
/// No delay ends before the test does.
const DELAYED: &str = "delayed 1h";
/// The bench's own, some eight delays.
const SECONDS_JUDGED: u64 = 40;
/// Each with how many times fewer discards the paper's delayed ones are, as `bench/discard.md` has
/// it.
const SCENARIOS: [(&str, f64); 2] = [("batch-erase", 3.2), ("single-erase", 4.1)];

fn options() -> Options {
    Options::config(
        "[node]\nshards = 1\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"256MiB\"\n",
    )
}

/// A folder of numbered files whose contents follow from their numbers.
struct Files {
    folder: PathBuf,
    numbers: BTreeSet<u64>,
    next: u64,
    /// Past the page cache: blocks are allocated when a file is written, and no commit is needed.
    is_direct: bool,
}

impl Files {
    fn new(folder: &Path) -> Files {
        let numbers = BTreeSet::new();
        Files { folder: folder.to_owned(), numbers, next: 0, is_direct: false }
    }

    fn contents(number: u64) -> Vec<u8> {
        let mut bytes = vec![0; FILE_BYTES];
        Rng::new(seed() << 32 | number).fill(&mut bytes);
        bytes
    }

    fn create(&mut self) {
        let path = self.folder.join(format!("image-{}", self.next));
        match self.is_direct {
            true => Self::write_direct(&path, &Self::contents(self.next)),
            false => fs::write(path, Self::contents(self.next)).expect("there is room"),
        }
        self.numbers.insert(self.next);
        self.next += 1;
    }

    fn write_direct(path: &Path, bytes: &[u8]) {
        const SECTOR: usize = 4096;
        const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
        // The kernel takes bytes from whole sectors of memory only.
        let mut memory = vec![0; bytes.len() + SECTOR];
        let from = memory.as_ptr().align_offset(SECTOR);
        let aligned = &mut memory[from..from + bytes.len()];
        aligned.copy_from_slice(bytes);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(O_DIRECT).open(path);
        file.and_then(|mut file| file.write_all(aligned)).expect("there is room");
    }

    fn delete_oldest(&mut self) {
        let number = self.numbers.pop_first().expect("there is a file");
        fs::remove_file(self.folder.join(format!("image-{number}"))).expect("it is there");
    }

    fn sync(&self) {
        must("sync", &["--file-system", &self.folder.to_string_lossy()]);
    }

    fn compare(&self) {
        self.numbers.iter().for_each(|number| Self::compare_one(&self.folder, *number));
    }

    fn compare_one(folder: &Path, number: u64) {
        let found = fs::read(folder.join(format!("image-{number}")));
        let found = found.unwrap_or_else(|error| panic!("image-{number}: {error}"));
        let is_same = found == Self::contents(number);
        assert!(is_same, "image-{number} changed; replay with LAYBY_SEED={}", seed());
    }
}

/// Creates all and deletes all, again and again; some are left at the end. `on_deleted` knows how
/// many were deleted.
fn batch_erase(files: &mut Files, (count, rounds): (u64, u64), on_deleted: impl Fn(u64)) {
    for round in 0..rounds {
        (0..count).for_each(|_| files.create());
        // A file that is deleted before it was written back has no blocks to discard.
        files.sync();
        files.compare();
        (0..count).for_each(|_| files.delete_oldest());
        files.sync();
        on_deleted((round + 1) * count);
    }
    (0..count / 4).for_each(|_| files.create());
}

/// Creates all, then deletes the oldest for each new one.
fn single_erase(files: &mut Files, count: u64, steps: u64) {
    (0..count).for_each(|_| files.create());
    for step in 0..steps {
        files.delete_oldest();
        files.create();
        if step % STEPS_PER_SYNC == 0 {
            files.sync();
        }
    }
}

fn counters(dir: &Path) -> Value {
    let shown = layby(&["volume", "show", VOLUME, "--json", "--dir", &dir.to_string_lossy()]);
    assert!(shown.success, "{}", shown.stderr);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("it answers in JSON");
    shown["traffic"]["discards"].clone()
}

/// Has everything sent that waits, and says what became of all.
fn settled(dir: &Path, mode: &str) -> Value {
    if mode == "off" {
        return counters(dir);
    }
    set_mode(dir, "immediate");
    for _ in 0..POLLS_MAX {
        let found = counters(dir);
        if found["pending"] == 0 {
            return found;
        }
    }
    panic!("discards wait for ever: {}", counters(dir));
}

/// What became of discards since `before`.
fn since(before: &Value, found: &Value) -> Value {
    // What is pending may become less.
    let number = |of: &Value| of.as_i64().expect("a count");
    let fields = found.as_object().expect("counters").iter();
    let grown = fields.map(|(name, count)| (name.clone(), number(count) - number(&before[name])));
    Value::Object(grown.map(|(name, count)| (name, json!(count))).collect())
}

/// A mode with the delay behind it: `off`, `immediate`, `delayed 5s`.
fn set_mode(dir: &Path, mode: &str) {
    let dir = dir.to_string_lossy();
    let (mode, delay) = mode.split_once(' ').unwrap_or((mode, "5s"));
    let words = ["volume", "set", VOLUME, "--discard", mode, "--discard-delay", delay, "--dir"];
    let set = layby(&[&words[..], &[&*dir]].concat());
    assert!(set.success, "{}", set.stderr);
}

/// What there is, with a volume whose file system is new.
struct Setting {
    work: TempDir,
    node: Node,
    mounted: Mounted,
    /// The counters when it was mounted.
    before: Value,
}

impl Setting {
    /// With a journal that commits every so many seconds.
    fn new(mode: &str, commit: u64) -> Setting {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let node = Node::start(&dir, &options());
        node.volume_create(VOLUME, &format!("{}MiB", number("LAYBY_DISCARD_MIB", 384)), "normal");
        let attached = Attached::new(work.path(), &node.uri(VOLUME));
        must("mkfs.ext4", &[&["-q", "-F"], &MKFS[..], &[attached.device()]].concat());
        let mounted = Mounted::new(work.path(), attached);
        let point = mounted.path().to_string_lossy().into_owned();
        set_mode(&dir, mode);
        let before = counters(&dir);
        must("mount", &["-o", &format!("remount,discard,commit={commit}"), &point]);
        Setting { work, node, mounted, before }
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("node")
    }

    /// Waits until the kernel has discarded so many files: it does so some time after the commit,
    /// and no more where a new file was sooner.
    fn await_discards(&self, deleted: u64) {
        let received = || count(&since(&self.before, &counters(&self.dir())), "received_bytes");
        let is_done = |_| received() >= deleted * FILE_BYTES as u64;
        assert!((0..POLLS_MAX).any(is_done), "of {deleted} files {} bytes", received());
    }

    fn sync(&self) {
        must("sync", &["--file-system", &self.mounted.path().to_string_lossy()]);
    }
}

/// Runs a scenario, compares all files, and kills the node in the middle of more of it.
fn measure(mode: &str, scenario: &str) -> Value {
    let count = number("LAYBY_DISCARD_FILES", 24);
    let (rounds, steps) = (number("LAYBY_DISCARD_ROUNDS", 4), number("LAYBY_DISCARD_STEPS", 48));
    let setting = Setting::new(mode, 1);
    let mut files = Files::new(setting.mounted.path());
    match scenario {
        "batch-erase" if mode == "off" => batch_erase(&mut files, (count, rounds), |_| {}),
        "batch-erase" => {
            batch_erase(&mut files, (count, rounds), |deleted| setting.await_discards(deleted));
        }
        _ => single_erase(&mut files, count, steps),
    }
    setting.sync();
    files.compare();
    let found = since(&setting.before, &settled(&setting.dir(), mode));
    survive(setting, mode, files);
    found
}

/// Delay-D's conditions: half of the file system is filled and stays, the journal commits every 5 s
/// and no sync has it commit sooner, and the load runs as fast as it can. Files are written past
/// the page cache, so that each has its blocks at once. Counted is what happens in so many seconds
/// after some commits and delays: nothing is hastened at the end, so that delays run out.
fn steady(mode: &str, scenario: &str, seconds: u64) -> Value {
    const COMMIT: u64 = 5;
    const WARM: Duration = Duration::from_secs(4 * COMMIT);
    let setting = Setting::new(mode, COMMIT);
    let mut files = Files { is_direct: true, ..Files::new(setting.mounted.path()) };
    (0..number("LAYBY_DISCARD_MIB", 384) / 2).for_each(|_| files.create());
    let filling = std::mem::take(&mut files.numbers);
    let count = number("LAYBY_DISCARD_FILES", 24);
    (0..count).for_each(|_| files.create());
    turns(&mut files, scenario, WARM);
    let before = counters(&setting.dir());
    let deleted = turns(&mut files, scenario, Duration::from_secs(seconds));
    let found = since(&before, &counters(&setting.dir()));
    let line = json!({
        "mode": mode, "scenario": scenario, "discards": found,
        "deleted": deleted, "seconds": seconds, "commit": COMMIT,
    });
    // For `cargo xtask bench discard`; nobody else may be listening.
    let _ = writeln!(std::io::stdout().lock(), "discard {line}");
    files.numbers.extend(filling);
    files.compare();
    survive(setting, mode, files);
    line
}

/// Deletes and creates for so long; returns how many files were deleted.
fn turns(files: &mut Files, scenario: &str, time: Duration) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the paper's load runs for a time")]
    let now = Instant::now;
    let (end, count, mut deleted) = (now() + time, files.numbers.len(), 0);
    while now() < end {
        let some = if scenario == "batch-erase" { count } else { 1 };
        (0..some).for_each(|_| files.delete_oldest());
        (0..some).for_each(|_| files.create());
        deleted += some as u64;
    }
    deleted
}

/// What was synced is there after a kill, and the file system is whole.
fn survive(setting: Setting, mode: &str, mut files: Files) {
    let dir = setting.dir().to_string_lossy().into_owned();
    set_mode(Path::new(&dir), mode);
    for _ in 0..3 {
        files.delete_oldest();
        files.create();
    }
    setting.sync();
    let kept = files.numbers.clone();
    files.delete_oldest();
    files.create();
    let Setting { work, node, mounted, .. } = setting;
    node.kill9();
    drop(mounted);
    let checked = layby(&["check", "--dir", &dir]);
    assert!(checked.success, "{}\n{}", checked.stdout, checked.stderr);
    let node = Node::start(Path::new(&dir), &options());
    let attached = Attached::new(work.path(), &node.uri(VOLUME));
    // The journal is replayed first, as a mount would; then nothing may be left to repair.
    run("fsck.ext4", &["-p", attached.device()]);
    must("fsck.ext4", &["-f", "-n", attached.device()]);
    let mounted = Mounted::new(work.path(), attached);
    for number in kept {
        // The oldest was deleted after the sync: it may be gone, but not changed.
        if mounted.path().join(format!("image-{number}")).exists() {
            Files::compare_one(mounted.path(), number);
        } else {
            assert!(!files.numbers.contains(&number), "image-{number} was synced and is lost");
        }
    }
    drop(mounted.unmount());
    node.stop();
}

fn sent(found: &Value) -> u64 {
    count(found, "sent")
}

fn count(found: &Value, field: &str) -> u64 {
    found[field].as_u64().expect("a count")
}

/// Delay-D's claim under its conditions: per MiB deleted, delayed discards that reach the home are
/// so many times fewer than immediate ones. All figures are printed before any is judged. In fewer
/// seconds too few delays end: what is counted then is how long that was, and is not judged.
fn steady_all(seconds: u64) {
    let modes = ["off", "immediate", "delayed 5s", "delayed 6s"];
    let found = SCENARIOS.map(|(scenario, _)| modes.map(|mode| steady(mode, scenario, seconds)));
    for ((scenario, fewer), [off, immediate, delayed @ ..]) in SCENARIOS.iter().zip(&found) {
        let per_mib =
            |found: &Value| sent(&found["discards"]) as f64 / count(found, "deleted").max(1) as f64;
        assert_eq!(per_mib(off), 0.0, "{scenario}: {off}");
        assert!(per_mib(immediate) > 0.0, "{scenario}: {immediate}");
        for delayed in delayed.iter().filter(|_| seconds >= SECONDS_JUDGED) {
            assert!(count(delayed, "deleted") > 0, "{scenario}: {delayed}");
            let is_met = per_mib(delayed) * fewer <= per_mib(immediate);
            assert!(is_met, "{scenario}: not {fewer} times fewer: {immediate} {delayed}");
        }
    }
}

/// Goal: with mode off nothing reaches the home, with delayed half as much as with immediate at
/// most, and files survive in all. Method: short scenarios, every file compared, a kill at the end
/// of each. A round deletes what the one before deleted, or its neighbours, so delayed discards
/// become a few ranges; were delaying to do nothing, as many would be sent as were received.
#[test]
fn delayed_discards_are_fewer() {
    if mount_unavailable() || !available(&TOOLS) {
        return;
    }
    let seconds = number("LAYBY_DISCARD_SECONDS", 0);
    if seconds > 0 {
        steady_all(seconds);
        return;
    }
    for (scenario, _) in SCENARIOS {
        let [off, immediate, delayed] =
            ["off", "immediate", DELAYED].map(|mode| measure(mode, scenario));
        assert_eq!(sent(&off), 0, "{scenario}: {off}");
        let all = format!("{scenario}: {immediate} {delayed}");
        assert_eq!(sent(&immediate), count(&immediate, "received"), "{all}");
        assert!(sent(&delayed) > 0, "{all}");
        assert!(sent(&delayed) < count(&delayed, "received"), "{all}");
        assert!(2 * sent(&delayed) <= sent(&immediate), "{all}");
    }
}

/// Goal: a bandwidth of discards is set, shown, kept across a start and taken away, and one out of
/// bounds changes nothing. Method: commands and their answers.
#[test]
fn a_bandwidth_of_discards_is_kept() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let place = dir.to_string_lossy().into_owned();
    let volume = |words: &[&str]| {
        let mut all = vec!["volume"];
        all.extend(words);
        all.extend(["--json", "--dir", &place]);
        layby(&all)
    };
    let bandwidth = |words: &[&str]| {
        let found = volume(words);
        assert!(found.success, "{}", found.stderr);
        let found: Value = serde_json::from_str(&found.stdout).expect("it answers in JSON");
        found["discard_bandwidth"].clone()
    };
    let node = Node::start(&dir, &options());
    let made = bandwidth(&["create", "a", "--size", "8MiB", "--discard-bandwidth", "2MiB"]);
    assert_eq!(made, json!("2MiB"));
    let refused = volume(&["set", "a", "--discard-bandwidth", "1KiB"]);
    refused.assert_explains(&["discard_bandwidth", "1KiB is outside 1MiB to 1TiB"]);
    assert_eq!(bandwidth(&["show", "a"]), json!("2MiB"));
    assert_eq!(bandwidth(&["set", "a", "--discard-bandwidth", "500MiB"]), json!("500MiB"));
    node.stop();
    let node = Node::start(&dir, &options());
    assert_eq!(bandwidth(&["show", "a"]), json!("500MiB"));
    let shown = layby(&["volume", "show", "a", "--dir", &place]).stdout;
    assert!(shown.contains("immediate, 500MiB/s at most"), "{shown}");
    assert_eq!(bandwidth(&["set", "a", "--discard-bandwidth", "0"]), Value::Null);
    node.stop();
}

/// What became of an SSD level's free segments, once nothing waits.
fn told(dir: &Path) -> Value {
    for _ in 0..POLLS_MAX {
        let shown = layby(&["level", "list", "--json", "--dir", &dir.to_string_lossy()]);
        let shown: Value = serde_json::from_str(&shown.stdout).expect("it answers in JSON");
        let levels = shown.as_array().expect("a list of levels");
        let found = levels.iter().map(|level| &level["discards"]).find(|found| found.is_object());
        let found = found.expect("one level has a log");
        if sent(found) > 0 && found["pending"] == 0 {
            return found.clone();
        }
    }
    panic!("the device hears of nothing");
}

/// Goal: a level on a block device tells it of segments that hold nothing, as long as the
/// configuration says, and keeps that length for life. Method: a loop device over a file without
/// holes, whose room is looked at; starts with the same length and with another.
#[test]
fn a_level_tells_its_device_what_is_free() {
    if mount_unavailable() || !available(&["losetup"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary directory");
    let (file, dir) = (work.path().join("flash"), work.path().join("node"));
    fs::write(&file, vec![0xa5; 64 << 20]).expect("writable");
    let room = || fs::metadata(&file).expect("it is there").blocks() * 512;
    let (before, device) = (room(), LoopDevice::new(&file));
    let config = |segment: &str| {
        Options::config(format!(
            "[node]\nshards = 1\n\n\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
             [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\npath = \"{}\"\n\
             discard = \"immediate\"\nsegment = \"{segment}\"\n",
            device.path()
        ))
    };
    // The file must have no holes, so it holds something, which only a flag gives up.
    let format = Options { arguments: vec!["--format".into()], ..config("2MiB") };
    let node = Node::start(&dir, &format);
    let found = told(&dir);
    assert_eq!((&found["refused"], &found["dropped"]), (&json!(0), &json!(0)), "{found}");
    let mib = 1 << 20;
    assert!(found["sent_bytes"].as_u64() >= Some(50 * mib), "{found}");
    assert!(room() + 40 * mib < before, "{before} bytes of room, now {}", room());
    node.stop();
    // More than once: the kernel may give up a device only after the process that had it is gone.
    for _ in 0..4 {
        let refusal = Node::try_start(&dir, &config("4MiB")).expect_err("it is another length");
        refusal.assert_explains(&["segments of 2MiB", "segments of 4MiB"]);
    }
    let node = Node::start(&dir, &config("2MiB"));
    told(&dir);
    node.stop();
    let checked = layby(&["check", "--dir", &dir.to_string_lossy()]);
    assert!(checked.success, "{}", checked.stdout);
}
