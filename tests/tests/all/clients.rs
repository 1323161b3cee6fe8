//! Clients that nobody here wrote, on volumes of every class.
//!
//! How: each test starts a node with small levels, so that blocks move while clients work, and ends
//! with a clean stop and `layby check`. `LAYBY_IMAGE_SIZE` makes the images larger.
//! Not for: crashes, see `crash`; file systems, see `filesystem`.

use layby_tests::{
    Connection, Node, Options, Request, available, fio_available, layby, must, python, seed,
    small_levels,
};
use layby_types::{Rng, parse_bytes};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CLASSES: [&str; 3] = ["critical", "normal", "bulk"];

/// A node in a folder of its own that ends with the test.
struct Setup {
    work: TempDir,
    node: Node,
}

impl Setup {
    fn new() -> Setup {
        let work = TempDir::new().expect("a temporary folder");
        let node = Node::start(&work.path().join("node"), &small_levels());
        Setup { work, node }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }
    /// Stops the node cleanly, checks its files, and starts it again.
    fn restart(self) -> Setup {
        let Setup { work, node } = self;
        node.stop();
        check(&work.path().join("node"));
        let node = Node::start(&work.path().join("node"), &small_levels());
        Setup { work, node }
    }
    /// Stops the node cleanly and checks its files.
    fn finish(self) {
        self.node.stop();
        check(&self.work.path().join("node"));
    }
}

#[track_caller]
fn check(dir: &Path) {
    let outcome = layby(&["check", "--dir", &dir.to_string_lossy()]);
    assert!(outcome.success, "check: {}\n{}", outcome.stdout, outcome.stderr);
}

fn image_bytes() -> u64 {
    let size = std::env::var("LAYBY_IMAGE_SIZE").unwrap_or_else(|_| "64MiB".to_string());
    parse_bytes(&size).expect("LAYBY_IMAGE_SIZE is a size such as 1GiB")
}

/// A raw image of runs of data, zeros and holes, of lengths that no block size divides.
fn make_image(path: &Path, bytes: u64, seed: u64) {
    const RUN_BYTES_MAX: u64 = 300_000;
    let (file, mut rng) = (File::create(path).expect("can write"), Rng::new(seed));
    file.set_len(bytes).expect("can grow");
    let mut at = 0;
    while at < bytes {
        let length = (1 + rng.below(RUN_BYTES_MAX)).min(bytes - at);
        let mut data = vec![0; length as usize];
        let roll = rng.below(3);
        if roll == 0 {
            rng.fill(&mut data);
        }
        if roll < 2 {
            file.write_all_at(&data, at).expect("can write");
        }
        at += length;
    }
}

/// Goal: a client sees every ability that is promised. Method: nbdinfo on a volume of each class.
#[test]
fn nbdinfo_shows_every_ability() {
    if !available(&["nbdinfo"]) {
        return;
    }
    let setup = Setup::new();
    for class in CLASSES {
        setup.node.volume_create(class, "64MiB", class);
        let text = must("nbdinfo", &["--json", &setup.node.uri(class)]);
        let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], 64 << 20, "{text}");
        for ability in ["flush", "fua", "trim", "zero", "fast_zero", "multi_conn", "cache", "df"] {
            assert_eq!(export[format!("can_{ability}")], true, "{class}: {ability}:\n{text}");
        }
        assert_eq!(export["is_read_only"], false, "{text}");
        let contexts = export["contexts"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(contexts.iter().any(|context| context == "base:allocation"), "{text}");
    }
    let list = must("nbdinfo", &["--list", "--json", &setup.node.uri("")]);
    for class in CLASSES {
        assert!(list.contains(&format!("\"{class}\"")), "{class} is not listed:\n{list}");
    }
    setup.finish();
}

/// Goal: an image comes back as it went in, at once and after a restart. Method: qemu-img convert
/// and compare, on an image of data, zeros and holes.
#[test]
fn qemu_img_converts_and_compares() {
    if !available(&["qemu-img"]) {
        return;
    }
    let setup = Setup::new();
    let (image, bytes) = (setup.path("image.raw"), image_bytes());
    make_image(&image, bytes, seed());
    setup.node.volume_create("disk", &bytes.to_string(), "normal");
    let (uri, image) = (setup.node.uri("disk"), image.to_string_lossy().into_owned());
    must("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image.as_str(), uri.as_str()]);
    let compare = ["compare", "-f", "raw", "-F", "raw", image.as_str(), uri.as_str()];
    must("qemu-img", &compare);
    let setup = setup.restart();
    must("qemu-img", &compare);
    setup.finish();
}

/// Goal: qemu's own patterns survive on every class. Method: qemu-io writes, zeroes, discards and
/// reads back with verification, at odd places.
#[test]
fn qemu_io_verifies_patterns() {
    if !available(&["qemu-io"]) {
        return;
    }
    let setup = Setup::new();
    for class in CLASSES {
        setup.node.volume_create(class, "32MiB", class);
        let mut words = vec!["-f", "raw"];
        for command in [
            "write -P 0xab 0 2M",
            "write -f -P 0xcd 4097 12289",
            "write -z 1M 64k",
            "discard 1536k 4k",
            "flush",
            "read -P 0xab 0 4097",
            "read -P 0xcd 4097 12289",
            "read -P 0xab 16386 1032190",
            "read -P 0 1M 64k",
            "read -P 0 4M 1M",
        ] {
            words.extend(["-c", command]);
        }
        let uri = setup.node.uri(class);
        words.push(&uri);
        let said = must("qemu-io", &words);
        assert!(!said.contains("verification failed"), "{class}:\n{said}");
    }
    setup.finish();
}

/// Goal: nothing changes on the way in or out. Method: nbdcopy over four connections, in and out
/// again, then compared byte by byte.
#[test]
fn nbdcopy_goes_both_ways() {
    if !available(&["nbdcopy", "cmp"]) {
        return;
    }
    let setup = Setup::new();
    let (source, target) = (setup.path("in.raw"), setup.path("out.raw"));
    let bytes = image_bytes();
    make_image(&source, bytes, seed() + 1);
    File::create(&target).and_then(|file| file.set_len(bytes)).expect("can write");
    setup.node.volume_create("disk", &bytes.to_string(), "bulk");
    let uri = setup.node.uri("disk");
    let (source, target) = (source.to_string_lossy(), target.to_string_lossy());
    must("nbdcopy", &["--connections=4", "--flush", &source, &uri]);
    must("nbdcopy", &["--connections=4", &uri, &target]);
    must("cmp", &[&source, &target]);
    setup.finish();
}

/// Goal: no random write is lost or misplaced, with one class beside another. Method: fio writes
/// blocks with crc32c and verifies them, a job per class at once, depth 1 and 32, 4 KiB and 64 KiB.
#[test]
fn fio_verifies_all_classes_at_once() {
    if !fio_available() {
        return;
    }
    let setup = Setup::new();
    for class in CLASSES {
        setup.node.volume_create(class, "48MiB", class);
    }
    for (depth, block) in [(1, "4k"), (32, "4k"), (1, "64k"), (32, "64k")] {
        fio_verify(&setup, depth, &format!("--bs={block}"));
    }
    setup.finish();
}

/// Goal: writes that blocks do not contain are put together right. Method: fio with a mix of sizes
/// in steps of 512 bytes.
#[test]
fn fio_verifies_sizes_that_blocks_do_not_divide() {
    if !fio_available() {
        return;
    }
    let setup = Setup::new();
    for class in CLASSES {
        setup.node.volume_create(class, "48MiB", class);
    }
    for depth in [1, 32] {
        fio_verify(&setup, depth, "--bssplit=512/20:1536/20:4608/20:13k/20:70656/20");
    }
    setup.finish();
}

#[track_caller]
fn fio_verify(setup: &Setup, depth: u32, sizes: &str) {
    let mut words: Vec<String> = vec!["--output-format=terse".into(), "--eta=never".into()];
    for class in CLASSES {
        words.push(format!("--name={class}"));
        // The engine comes before its own option.
        words.push("--ioengine=nbd".to_string());
        words.push(format!("--uri={}", setup.node.uri(class)));
        words.push(format!("--iodepth={depth}"));
        words.push(format!("--randseed={}", seed()));
        words.push(sizes.to_string());
        let fixed = ["--rw=randwrite", "--size=24M", "--verify=crc32c"];
        words.extend(fixed.map(String::from));
        words.extend(["--do_verify=1", "--verify_fatal=1", "--fsync=100"].map(String::from));
    }
    must("fio", &words);
}

/// Goal: any range at any offset behaves like bytes in memory. Method: 600 random calls of every
/// kind beside a plain bytearray, before and after a restart.
#[test]
fn odd_sizes_and_offsets_match_a_plain_array() {
    let setup = Setup::new();
    for class in CLASSES {
        setup.node.volume_create(class, "8MiB", class);
        let model = setup.path(class).to_string_lossy().into_owned();
        let seed = seed().to_string();
        if !python(MODEL, &[&setup.node.uri(class), &model, &seed]) {
            return;
        }
    }
    let setup = setup.restart();
    for class in CLASSES {
        let model = setup.path(class).to_string_lossy().into_owned();
        assert!(python(COMPARE, &[&setup.node.uri(class), &model]));
    }
    setup.finish();
}

const MODEL: &str = r#"
import nbd, random, sys
uri, path, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(seed)
h = nbd.NBD()
h.connect_uri(uri)
size = h.get_size()
model = bytearray(size)
for step in range(600):
    length = random.choice([1, 511, 4095, 4096, 4097, 65536, random.randrange(1, 300000)])
    offset = random.randrange(0, size - length)
    end, kind = offset + length, random.randrange(8)
    flags = random.choice([0, nbd.CMD_FLAG_FUA])
    if kind < 3:
        data = random.randbytes(length)
        h.pwrite(data, offset, flags)
        model[offset:end] = data
    elif kind == 3:
        h.zero(length, offset, flags | random.choice([0, nbd.CMD_FLAG_NO_HOLE]))
        model[offset:end] = bytes(length)
    elif kind == 4:
        h.trim(length, offset, flags)
        model[offset:end] = bytes(length)
    elif kind == 5:
        h.cache(length, offset)
    else:
        got = h.pread(length, offset)
        assert got == model[offset:end], f"seed {seed} step {step}: {length} bytes at {offset}"
assert h.pread(size, 0) == model, f"seed {seed}: the whole volume differs"
h.flush()
h.shutdown()
open(path, "wb").write(model)
"#;

const COMPARE: &str = r#"
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
model = open(sys.argv[2], "rb").read()
assert h.pread(len(model), 0) == model, "the volume changed over a restart"
h.shutdown()
"#;

/// Goal: structured replies, block status, DF, fast zero and wrong requests follow the protocol.
/// Method: a script on libnbd that asserts each, and that the connection survives each error.
#[test]
fn the_finer_points_of_the_protocol_hold() {
    let setup = Setup::new();
    setup.node.volume_create("disk", "16MiB", "normal");
    if python(FINER_POINTS, &[&setup.node.uri("disk")]) {
        setup.finish();
    }
}

const FINER_POINTS: &str = r#"
import errno, nbd, sys
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_uri(sys.argv[1])
assert h.get_structured_replies_negotiated()
assert h.can_meta_context("base:allocation") and h.can_df() and h.can_multi_conn()
size = h.get_size()

def extents(length, offset, flags=0):
    found = []
    def on_extent(context, at, entries, error):
        found.extend(zip(entries[::2], entries[1::2]))
    h.block_status(length, offset, on_extent, flags)
    assert found and all(length > 0 for length, _ in found), found
    return found

# A fresh volume reads as zeros and says so.
assert all(flags & nbd.STATE_ZERO for _, flags in extents(size, 0))
h.pwrite(b"\x5a" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)
(length, flags), = extents(65536, 1 << 20, nbd.CMD_FLAG_REQ_ONE)
assert flags == 0 and length >= 4096, (length, flags)
assert len(extents(size, 0, nbd.CMD_FLAG_REQ_ONE)) == 1
whole = extents(size, 0)
covered = sum(length for length, _ in whole)
assert covered <= size or len(whole) == 1, whole
h.trim(65536, 1 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 1 << 20) == bytes(65536)
assert all(flags & nbd.STATE_ZERO for _, flags in extents(65536, 1 << 20))

# A read in chunks covers its range once; with DF it is one chunk.
h.pwrite(b"\xa5" * 10000, 12345)
for flags in (0, nbd.CMD_FLAG_DF):
    chunks = []
    def on_chunk(data, offset, status, error):
        chunks.append((offset, len(data), status))
    got = h.pread_structured(60000, 10000, on_chunk, flags)
    assert got[2345:12345] == b"\xa5" * 10000 and got[12345:] == bytes(60000 - 12345)
    assert sum(length for _, length, _ in chunks) == 60000, chunks
    assert flags == 0 or len(chunks) == 1, chunks

# Fast zero is either done or refused at once as unsupported; both leave a sound volume.
try:
    h.zero(65536, 2 << 20, nbd.CMD_FLAG_FAST_ZERO)
except nbd.Error as error:
    assert error.errnum in (errno.ENOTSUP, errno.EOPNOTSUPP), error
assert h.pread(65536, 2 << 20) == bytes(65536)
h.cache(1 << 20, 0)

# Wrong requests get an error of their own, and the connection goes on.
h.set_strict_mode(0)
for wrong, numbers in [
    (lambda: h.pread(4096, size), (errno.EINVAL,)),
    (lambda: h.pread(4096, size - 1), (errno.EINVAL,)),
    (lambda: h.pwrite(b"x" * 4096, size - 1), (errno.ENOSPC, errno.EINVAL)),
    (lambda: h.trim(4096, 2**63), (errno.EINVAL,)),
    (lambda: h.zero(4096, size), (errno.ENOSPC, errno.EINVAL)),
    (lambda: h.cache(4096, size), (errno.EINVAL,)),
    (lambda: h.pread(4096, 0, 1 << 12), (errno.EINVAL,)),
]:
    try:
        wrong()
        raise SystemExit("a wrong request was accepted")
    except nbd.Error as error:
        assert error.errnum in numbers, error
assert h.pread(4096, 12345) == b"\xa5" * 4096
h.shutdown()

# An export that does not exist is refused by name, and says so.
other = nbd.NBD()
try:
    other.connect_uri(sys.argv[1].replace("disk", "nothing"))
    raise SystemExit("an unknown export was opened")
except nbd.Error:
    pass
"#;

/// Goal: a flush on one connection covers what another was answered, and each sees the other's
/// writes. Method: two connections of libnbd take turns.
#[test]
fn connections_share_one_volume() {
    let setup = Setup::new();
    setup.node.volume_create("disk", "16MiB", "critical");
    if python(TWO_CONNECTIONS, &[&setup.node.uri("disk")]) {
        setup.finish();
    }
}

const TWO_CONNECTIONS: &str = r#"
import nbd, sys
a, b = nbd.NBD(), nbd.NBD()
for h in (a, b):
    h.connect_uri(sys.argv[1])
for turn in range(200):
    writer, reader = (a, b) if turn % 2 else (b, a)
    data = bytes([turn + 1]) * 5000
    writer.pwrite(data, turn * 5000)
    assert reader.pread(5000, turn * 5000) == data, turn
    reader.flush()
a.shutdown()
b.shutdown()
"#;

/// Goal: a new size is what new connections see. Method: grow, look, and read the new end.
#[test]
fn a_resize_is_seen_by_new_connections() {
    if !available(&["nbdinfo", "qemu-io"]) {
        return;
    }
    let setup = Setup::new();
    setup.node.volume_create("disk", "16MiB", "normal");
    let uri = setup.node.uri("disk");
    must("qemu-io", &["-f", "raw", "-c", "write -P 0x11 15M 1M", uri.as_str()]);
    setup.node.layby(&["volume", "resize", "disk", "--size", "32MiB"]);
    assert_eq!(must("nbdinfo", &["--size", &uri]).trim(), (32 << 20).to_string());
    let reads = ["-f", "raw", "-c", "read -P 0x11 15M 1M", "-c", "read -P 0 16M 16M", uri.as_str()];
    let said = must("qemu-io", &reads);
    assert!(!said.contains("verification failed"), "{said}");
    setup.finish();
}

/// Goal: a volume that grows within its last block has a home of its new size: what is written and
/// flushed there is at home after a drain, and the next start serves it. Method: one sector more,
/// written by a client and drained; then a change of class, a stop, a check, a start, a read.
#[test]
fn a_growth_within_a_block_reaches_the_home() {
    const SECTOR: u64 = 512;
    let (before, after) = ((5 << 20) + SECTOR, (5 << 20) + 2 * SECTOR);
    let data = vec![0x77; SECTOR as usize];
    for class in ["normal", "critical"] {
        let setup = Setup::new();
        setup.node.volume_create("odd", &before.to_string(), class);
        setup.node.layby(&["volume", "resize", "odd", "--size", &after.to_string()]);
        let open = |node: &Node| Connection::open(&node.socket(), "odd").expect("it is served");
        let write = Request::Write { offset: before, data: data.clone(), fua: true };
        open(&setup.node).call(&write).expect("the node answers").expect("the volume has it");
        setup.node.layby(&["volume", "drain", "odd"]);
        let home = std::fs::read(setup.path("node/volumes/odd")).expect("its home");
        assert_eq!((home.len() as u64, home.ends_with(&data)), (after, true), "{class}");
        setup.node.layby(&["volume", "set", "odd", "--class", "bulk"]);
        let setup = setup.restart();
        let read = Request::Read { offset: before, length: SECTOR as u32 };
        let answer = open(&setup.node).call(&read).expect("the node answers");
        assert_eq!(answer.expect("it is readable"), data, "{class}");
        setup.finish();
    }
}

/// Goal: a client that connected before a volume shrank reaches nothing behind the new end, also
/// within the last block: it would be acknowledged and then gone. Method: each kind of request that
/// ends there, and one that ends right at the end; a volume on one shard, and one over two.
#[test]
fn nothing_behind_a_new_end_is_acknowledged() {
    const INVALID: u32 = 22;
    let end = (5 << 20) + 512;
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &Options::config("[node]\nshards = 2\n"));
    for shards in ["1", "2"] {
        let name = format!("cut{shards}");
        node.layby(&["volume", "create", &name, "--size", "8MiB", "--shards", shards]);
        let mut early = Connection::open(&node.socket(), &name).expect("it is served");
        node.layby(&["volume", "resize", &name, "--size", &end.to_string(), "--shrink"]);
        let write = |offset: u64| Request::Write { offset, data: vec![7; 100], fua: false };
        let (offset, length) = (end - 100, 200);
        let read = Request::Read { offset, length };
        let zeroing = [Request::Trim { offset, length }, Request::Zero { offset, length }];
        for request in [write(end - 50), write(end), read].iter().chain(&zeroing) {
            let answer = early.call(request).expect("the node answers");
            assert_eq!(answer.map(drop), Err(INVALID), "{name}: {request:?}");
        }
        let within = early.call(&write(end - 100)).expect("the node answers");
        assert_eq!(within.map(drop), Ok(()), "{name}");
    }
    node.stop();
    check(&dir);
}

/// Goal: a volume that delays its discards can be made shorter: none of them waits for ever, and
/// the node stops in order. Method: a volume full of data, written back, made shorter; then its
/// counters until nothing waits, a stop, a check, a start, a longer volume that reads as zeros.
#[test]
fn a_shorter_volume_leaves_no_discard_behind() {
    const POLLS_MAX: u32 = 600;
    let setup = Setup::new();
    let node = &setup.node;
    let delayed = ["--discard", "delayed", "--discard-delay", "100ms"];
    node.layby(&[&["volume", "create", "b", "--size", "4MiB"][..], &delayed].concat());
    let open = |node: &Node| Connection::open(&node.socket(), "b").expect("it is served");
    let write = Request::Write { offset: 0, data: vec![0x55; 4 << 20], fua: true };
    open(node).call(&write).expect("the node answers").expect("there is room");
    node.layby(&["volume", "drain", "b"]);
    node.layby(&["volume", "resize", "b", "--size", "3MiB", "--shrink"]);
    let waits = || {
        let shown = node.layby(&["volume", "show", "b", "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        shown["traffic"]["discards"]["pending"].as_u64().expect("a count")
    };
    assert!((0..POLLS_MAX).any(|_| waits() == 0), "{} discards wait behind the end", waits());
    let setup = setup.restart();
    setup.node.layby(&["volume", "resize", "b", "--size", "4MiB"]);
    let read = Request::Read { offset: 3 << 20, length: 1 << 20 };
    let answer = open(&setup.node).call(&read).expect("the node answers");
    assert!(answer.expect("it is readable").iter().all(|byte| *byte == 0));
    setup.finish();
}
