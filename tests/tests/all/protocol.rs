//! NBD as its text defines it: every option, command, flag and error, sound and not.
//!
//! How: a client of our own sends what no sound client would and takes every answer apart
//! ([`Wire`]); libnbd negotiates step by step as a foreign client does.
//! Invariant: whatever a client says, the node still serves the next one.
//! Not for: what sound clients do all day, see `clients`; arbitrary bytes, see `fuzz/`.

use layby_tests::{
    Connection, Head, Node, Options, Part, Request, Wire, available, must, python, small_levels,
};
use std::fmt::Write as _;
use std::path::Path;
use tempfile::TempDir;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
const STARTTLS: u32 = 5;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED: u32 = 8;
const LIST_CONTEXT: u32 = 9;
const SET_CONTEXT: u32 = 10;

const ACK: u32 = 1;
const UNSUPPORTED: u32 = 0x8000_0001;
const POLICY: u32 = 0x8000_0002;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZERO: u16 = 6;
const STATUS: u16 = 7;

const FUA: u16 = 1;
const NO_HOLE: u16 = 1 << 1;
const DF: u16 = 1 << 2;
const REQ_ONE: u16 = 1 << 3;
const FAST_ZERO: u16 = 1 << 4;

const SIZE: u64 = 64 << 20;
/// The longest request that the server announces.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// A node with a volume to write and one that is read-only, in a folder of its own.
struct Setup {
    _work: TempDir,
    node: Node,
}

impl Setup {
    fn new() -> Setup {
        Setup::with(&small_levels())
    }
    fn with(options: &Options) -> Setup {
        let work = TempDir::new().expect("a temporary folder");
        let node = Node::start(&work.path().join("node"), options);
        node.volume_create("disk", "64MiB", "normal");
        node.layby(&["volume", "create", "sealed", "--size", "64MiB", "--read-only"]);
        Setup { _work: work, node }
    }
    /// A client in negotiation that reads option replies.
    fn negotiate(&self) -> Wire {
        Wire::open(&self.node.socket(), 3)
    }
    /// A client in transmission on `export`, with structured replies and status or with neither.
    fn enter(&self, export: &str, is_structured: bool) -> Wire {
        let mut wire = self.negotiate();
        if is_structured {
            assert_eq!(wire.option_kind(STRUCTURED, &[]), ACK);
            let contexts = contexts(export, &["base:allocation"]);
            assert_eq!(wire.option(SET_CONTEXT, &contexts).len(), 2, "the context, then its end");
        }
        assert_eq!(wire.option_kind(GO, &info(export, &[])), ACK);
        wire
    }
    /// The node serves a new client.
    #[track_caller]
    fn assert_serves(&self) {
        let mut connection = Connection::open(&self.node.socket(), "disk").expect("it serves");
        let read = Request::Read { offset: 0, length: 512 };
        assert!(connection.call(&read).is_ok_and(|result| result.is_ok()));
    }
}

fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).expect("names are short");
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}

/// The data of `INFO` and `GO`.
fn info(export: &str, items: &[u16]) -> Vec<u8> {
    let mut bytes = text(export);
    bytes.extend(u16::try_from(items.len()).expect("few items").to_be_bytes());
    bytes.extend(items.iter().flat_map(|item| item.to_be_bytes()));
    bytes
}

/// The data of the context options.
fn contexts(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = text(export);
    bytes.extend(u32::try_from(queries.len()).expect("few queries").to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| text(query)));
    bytes
}

fn head(command: u16, flags: u16, offset: u64, length: u32) -> Head {
    Head { flags, command, cookie: 0xfeed_0000_0000_0001 ^ offset, offset, length }
}

/// A payload for a write; nothing for the others.
fn payload(head: &Head) -> Vec<u8> {
    vec![0x5a; if head.command == WRITE { head.length as usize } else { 0 }]
}

/// Goal: each option is answered as its section says, asked well and asked badly, and negotiation
/// goes on behind each. Method: a table on one connection.
#[test]
fn every_option_is_answered() {
    let setup = Setup::new();
    let mut wire = setup.negotiate();
    assert_eq!(wire.handshake_flags, 3, "fixed newstyle, no zeroes");
    let unknown = info("nothing", &[]);
    let bad_count = [info("disk", &[1]), vec![0]].concat();
    for (option, data, kind) in [
        (LIST, Vec::new(), ACK),
        (LIST, vec![0], INVALID),
        (INFO, info("disk", &[0, 1, 2, 3, 0x8001]), ACK),
        (INFO, info("", &[]), UNKNOWN),
        (INFO, unknown.clone(), UNKNOWN),
        (GO, unknown, UNKNOWN),
        (INFO, vec![0, 0, 0, 9, b'd'], INVALID),
        (GO, bad_count, INVALID),
        (LIST_CONTEXT, contexts("disk", &[]), INVALID),
        (SET_CONTEXT, contexts("disk", &["base:allocation"]), INVALID),
        (STRUCTURED, vec![1], INVALID),
        (STRUCTURED, Vec::new(), ACK),
        (STRUCTURED, Vec::new(), ACK),
        (LIST_CONTEXT, contexts("disk", &[]), ACK),
        (LIST_CONTEXT, contexts("nothing", &[]), UNKNOWN),
        (SET_CONTEXT, contexts("disk", &["base:allocation", "qemu:x"]), ACK),
        (SET_CONTEXT, vec![0, 0, 0, 4], INVALID),
        (STARTTLS, Vec::new(), POLICY),
        // PEEK_EXPORT was withdrawn, extended headers are not offered, 99 was never defined.
        (4, Vec::new(), UNSUPPORTED),
        (11, Vec::new(), UNSUPPORTED),
        (99, vec![7; 100], UNSUPPORTED),
        (INFO, vec![0; 100_000], TOO_BIG),
        (99, vec![0; 100_000], UNSUPPORTED),
        (ABORT, Vec::new(), ACK),
    ] {
        let found = wire.option_kind(option, &data);
        assert_eq!(found, kind, "option {option} with {} bytes: {found:#x}", data.len());
    }
    assert!(wire.is_closed(), "an acknowledged ABORT ends the connection");
    setup.assert_serves();
}

/// Goal: what INFO says is true and complete: flags, size, names and block sizes. Method: the items
/// of the writable and of the read-only export, byte by byte.
#[test]
fn info_tells_the_truth() {
    let setup = Setup::new();
    for (export, flags) in [("disk", 0x0d6d_u16), ("sealed", 0x050f)] {
        let mut wire = setup.negotiate();
        let plain = wire.option(INFO, &info(export, &[1, 3]));
        let items: Vec<&[u8]> = plain.iter().map(|reply| &reply.data[..]).collect();
        let size = SIZE.to_be_bytes();
        let with = |flags: u16| [&[0, 0], &size[..], &flags.to_be_bytes()].concat();
        assert_eq!(items[0], with(flags), "{export}");
        assert_eq!(items[1], [&[0, 1], export.as_bytes()].concat());
        let sizes = [1_u32, 4096, REQUEST_BYTES_MAX].map(u32::to_be_bytes).concat();
        assert_eq!(items[2], [&[0, 3], &sizes[..]].concat());
        assert_eq!((items.len(), items[3].len()), (4, 0), "an acknowledgement ends them");
        // DF is offered once replies are structured, and not before.
        assert_eq!(wire.option_kind(STRUCTURED, &[]), ACK);
        assert_eq!(wire.option(INFO, &info(export, &[]))[0].data, with(flags | 1 << 7));
    }
    setup.node.stop();
}

/// Goal: the old way in works as defined, with and without padding; it has no error reply. Method:
/// each combination of client flags, and an export that does not exist.
#[test]
fn export_name_enters_or_closes() {
    let setup = Setup::new();
    for (flags, padding) in [(1, 124), (3, 0), (0, 124), (2, 0)] {
        let mut wire = Wire::open(&setup.node.socket(), flags);
        wire.send_option(EXPORT_NAME, b"disk");
        let answer = wire.bytes(10 + padding);
        assert_eq!(answer[..8], SIZE.to_be_bytes());
        assert!(answer[10..].iter().all(|byte| *byte == 0));
        assert_eq!(wire.error(head(READ, 0, 0, 512), &[]), 0);
        wire.send_head(&head(DISC, 0, 0, 0));
        assert!(wire.is_closed(), "a disconnect is followed");
    }
    let mut wire = setup.negotiate();
    wire.send_option(EXPORT_NAME, b"nothing");
    assert!(wire.is_closed());
    setup.assert_serves();
}

/// Goal: negotiation that cannot be followed ends the connection, and only that. Method: unknown
/// client flags, wrong magic, half an option, data without end, options without end.
#[test]
fn negotiation_out_of_step_is_closed() {
    let setup = Setup::new();
    for flags in [4, 0x8000_0003] {
        assert!(Wire::open(&setup.node.socket(), flags).is_closed(), "{flags:#x}");
    }
    let mut wrong_magic = setup.negotiate();
    wrong_magic.send(b"IHAVEOPX\0\0\0\x03\0\0\0\0");
    assert!(wrong_magic.is_closed());
    let mut half = setup.negotiate();
    half.send(b"IHAVEOPT\0\0");
    half.end();
    assert!(half.is_closed());
    let mut endless = setup.negotiate();
    endless.send(b"IHAVEOPT\0\0\0\x06\xff\xff\xff\xff");
    assert!(endless.is_closed());
    // Without fixed newstyle a client cannot read replies to options.
    let mut plain = Wire::open(&setup.node.socket(), 0);
    plain.send_option(LIST, &[]);
    assert!(plain.is_closed());
    setup.assert_serves();
}

/// Goal: each command takes the flags that its section gives it, and no other. Method: every
/// command number up to one past the last with every flag bit, on structured and plain sessions.
#[test]
fn every_command_takes_its_flags_only() {
    let setup = Setup::new();
    for is_structured in [false, true] {
        let mut wire = setup.enter("disk", is_structured);
        for command in (0..=9).filter(|command| *command != DISC) {
            for bit in 0..16 {
                let flag = 1 << bit;
                let known = match command {
                    READ if is_structured => FUA | DF,
                    READ | WRITE | FLUSH | TRIM | CACHE => FUA,
                    ZERO => FUA | NO_HOLE | FAST_ZERO,
                    STATUS if is_structured => FUA | REQ_ONE,
                    _ => 0,
                };
                let length = if command == FLUSH { 0 } else { 4096 };
                let head = head(command, flag, 0, length);
                let error = wire.error(head, &payload(&head));
                let right = if known & flag != 0 {
                    error == 0 || (flag == FAST_ZERO && error == 95)
                } else {
                    error == EINVAL
                };
                assert!(right, "command {command} with {flag:#x}: {error}");
            }
        }
        // Flags may be set together.
        assert_eq!(wire.error(head(ZERO, FUA | NO_HOLE, 0, 4096), &[]), 0);
    }
    setup.node.stop();
}

/// Goal: what the text calls wrong gets the error it names, and the connection goes on. Method: a
/// table, on structured and plain sessions, each followed by a sound read.
#[test]
fn wrong_requests_get_their_error() {
    let setup = Setup::new();
    for is_structured in [false, true] {
        let mut wire = setup.enter("disk", is_structured);
        for (command, offset, length, expected) in [
            (READ, SIZE, 1, EINVAL),
            (READ, SIZE - 1, 2, EINVAL),
            (READ, u64::MAX, 1, EINVAL),
            (READ, 0, REQUEST_BYTES_MAX + 1, EINVAL),
            (WRITE, SIZE, 1, ENOSPC),
            (WRITE, SIZE - 511, 512, ENOSPC),
            (WRITE, u64::MAX - 1, 4, ENOSPC),
            (WRITE, 0, REQUEST_BYTES_MAX + 1, EINVAL),
            (TRIM, SIZE - 1, 2, EINVAL),
            (TRIM, u64::MAX, u32::MAX, EINVAL),
            (ZERO, SIZE - 1, 2, ENOSPC),
            (ZERO, 0, u32::MAX, ENOSPC),
            (CACHE, SIZE, 1, EINVAL),
            (CACHE, 0, REQUEST_BYTES_MAX + 1, EINVAL),
            (FLUSH, 0, 1, EINVAL),
            (FLUSH, 1, 0, EINVAL),
            (STATUS, SIZE, 1, EINVAL),
            (STATUS, 0, 0, EINVAL),
            (8, 0, 512, EINVAL),
            (u16::MAX, 0, 0, EINVAL),
        ] {
            let wrong = head(command, 0, offset, length);
            let error = wire.error(wrong, &payload(&wrong));
            assert_eq!(error, expected, "{wrong:?}");
            assert_eq!(wire.error(head(READ, 0, 7, 9), &[]), 0, "after {wrong:?}");
        }
    }
    setup.node.stop();
}

/// Goal: requests about nothing do nothing and harm nothing. Method: each command with length 0,
/// inside and at the end of the export.
#[test]
fn requests_of_no_length_succeed() {
    let setup = Setup::new();
    for is_structured in [false, true] {
        let mut wire = setup.enter("disk", is_structured);
        for command in [READ, WRITE, TRIM, CACHE, ZERO] {
            for offset in [0, 77, SIZE] {
                assert_eq!(wire.error(head(command, 0, offset, 0), &[]), 0, "{command}");
            }
        }
        assert_eq!(wire.error(head(FLUSH, 0, 0, 0), &[]), 0);
    }
    setup.node.stop();
}

/// Goal: a read-only export is never changed. Method: each command that writes is refused with
/// EPERM, and every other one served.
#[test]
fn a_read_only_export_is_never_written() {
    let setup = Setup::new();
    for is_structured in [false, true] {
        let mut wire = setup.enter("sealed", is_structured);
        for command in [WRITE, TRIM, ZERO] {
            let head = head(command, 0, 4096, 4096);
            assert_eq!(wire.error(head, &payload(&head)), EPERM, "{command}");
        }
        assert_eq!(wire.error(head(FLUSH, 0, 0, 0), &[]), 0);
        assert_eq!(wire.error(head(CACHE, 0, 0, 4096), &[]), 0);
        let data: Vec<u8> =
            wire.call(head(READ, 0, 4096, 4096), &[]).iter().flat_map(data).collect();
        assert_eq!(data, [0; 4096]);
    }
    setup.node.stop();
}

fn data(part: &Part) -> Vec<u8> {
    match part {
        Part::Simple(0, data) | Part::Data(_, data) => data.clone(),
        Part::Hole(_, length) => vec![0; *length as usize],
        _ => Vec::new(),
    }
}

/// Goal: a structured read covers its range once, in chunks that are there for a reason; with DF in
/// one. Errors come as error chunks. Method: reads over data and holes, taken apart.
#[test]
fn structured_reads_cover_their_range_once() {
    let setup = Setup::new();
    let mut wire = setup.enter("disk", true);
    let write = head(WRITE, FUA, 100_000, 50_000);
    assert_eq!(wire.error(write, &payload(&write)), 0);
    for (flags, offset, length) in
        [(0, 0, 1 << 20), (DF, 0, 1 << 20), (0, 99_999, 3), (DF, 149_999, 2), (0, 1, 1), (0, 5, 0)]
    {
        let parts = wire.call(head(READ, flags, offset, length), &[]);
        assert_structured_read(&parts, offset, length);
        assert!(flags != DF || parts.len() == 1, "{} chunks with DF", parts.len());
    }
    let parts = wire.call(head(READ, 0, SIZE, 512), &[]);
    assert!(matches!(&parts[..], [Part::Error(EINVAL, text, None)] if !text.is_empty()));
    let parts = wire.call(head(READ, 1 << 9, 0, 512), &[]);
    assert!(matches!(parts[..], [Part::Error(EINVAL, ..)]), "{parts:?}");
    setup.node.stop();
}

/// Chunks neither overlap nor leave anything out, and hold what was written.
#[track_caller]
fn assert_structured_read(parts: &[Part], offset: u64, length: u32) {
    let mut covered = vec![None; length as usize];
    for part in parts {
        let at = match part {
            Part::Data(at, _) | Part::Hole(at, _) => *at,
            Part::Done => continue,
            _ => panic!("{part:?} in a read"),
        };
        for (index, byte) in (at - offset..).zip(data(part)) {
            assert!(covered[index as usize].replace(byte).is_none(), "byte {index} came twice");
        }
    }
    for (index, byte) in (offset..).zip(covered) {
        let expected = if (100_000..150_000).contains(&index) { 0x5a } else { 0 };
        assert_eq!(byte, Some(expected), "byte {index}");
    }
}

/// Goal: block status describes a range from its first byte, in extents that are not empty; one
/// with REQ_ONE. Method: written, zeroed and fresh ranges, whole and one by one.
#[test]
fn block_status_describes_the_range() {
    let setup = Setup::new();
    let mut wire = setup.enter("disk", true);
    let write = head(WRITE, FUA, 1 << 20, 1 << 20);
    assert_eq!(wire.error(write, &payload(&write)), 0);
    for (flags, offset, length) in
        [(0, 0, 4 << 20), (REQ_ONE, 0, 4 << 20), (0, 4095, 2), (REQ_ONE, (1 << 20) + 3, 4096)]
    {
        let parts = wire.call(head(STATUS, flags, offset, length), &[]);
        let [Part::Status(context, extents)] = &parts[..] else { panic!("{parts:?}") };
        let sum: u64 = extents.iter().map(|(length, _)| u64::from(*length)).sum();
        assert_eq!(*context, 1, "the context that was selected");
        assert!(extents.iter().all(|(length, state)| *length > 0 && *state < 4), "{extents:?}");
        assert!(sum <= u64::from(length), "{extents:?}");
        assert!(flags != REQ_ONE || extents.len() == 1, "{extents:?}");
    }
    // Data is never called zero.
    let parts = wire.call(head(STATUS, 0, 1 << 20, 1 << 20), &[]);
    let [Part::Status(_, extents)] = &parts[..] else { panic!("{parts:?}") };
    assert!(extents.iter().all(|(_, state)| *state == 0), "{extents:?}");
    setup.node.stop();
}

/// Goal: a stream out of step is closed, and what was half said is not done. Method: wrong magic,
/// half a head, half a payload, a payload longer than anybody skips; the volume is as before.
#[test]
fn half_requests_do_nothing() {
    let setup = Setup::new();
    let mut wire = setup.enter("disk", false);
    let before = head(WRITE, 0, 0, 65_536);
    assert_eq!(wire.error(before, &[0x11; 65_536]), 0);
    wire.send(&[0x25, 0x60, 0x95, 0x14]);
    wire.send(&[0; 24]);
    assert!(wire.is_closed(), "a wrong magic number ends the connection");
    for sent in [0, 1, 4096, 65_535] {
        let mut wire = setup.enter("disk", true);
        wire.send_head(&head(WRITE, FUA, 0, 65_536));
        wire.send(&vec![0x22; sent]);
        wire.end();
        assert!(wire.is_closed(), "half a write is not answered");
    }
    let mut wire = setup.enter("disk", true);
    wire.send(&[0x25, 0x60]);
    wire.end();
    assert!(wire.is_closed(), "half a head is not answered");
    let mut wire = setup.enter("disk", true);
    wire.send_head(&head(WRITE, 0, 0, u32::MAX));
    assert!(wire.is_closed(), "nobody skips 4 GiB");
    let mut wire = setup.enter("disk", false);
    let parts = wire.call(head(READ, 0, 0, 65_536), &[]);
    assert_eq!(parts, [Part::Simple(0, vec![0x11; 65_536])]);
    setup.assert_serves();
}

/// Goal: a goodbye ends what is in flight well, then the connection. Method: writes and a
/// disconnect in one piece; every write is there afterwards.
#[test]
fn a_goodbye_waits_for_what_is_in_flight() {
    let setup = Setup::new();
    let mut wire = setup.enter("disk", false);
    let writes: Vec<Head> = (0..32).map(|index| head(WRITE, FUA, index * 4096, 4096)).collect();
    for write in &writes {
        wire.send_head(write);
        wire.send(&payload(write));
    }
    wire.send_head(&head(DISC, 0, 0, 0));
    // Whether answers come before the end is not defined; the writes must be carried out.
    while !wire.is_closed() {}
    let mut wire = setup.enter("disk", false);
    let parts = wire.call(head(READ, 0, 0, 32 * 4096), &[]);
    assert_eq!(parts, [Part::Simple(0, vec![0x5a; 32 * 4096])]);
    setup.node.stop();
}

/// Goal: a foreign client negotiates step by step and gets what it is promised. Method: libnbd in
/// its negotiating mode: every option it knows, refusals in between.
#[test]
fn libnbd_negotiates_every_option() {
    let setup = Setup::new();
    if python(NEGOTIATE, &[&setup.node.uri("disk")]) {
        setup.node.stop();
    }
}

const NEGOTIATE: &str = r#"
import nbd, sys

def refused(call):
    try:
        call()
    except nbd.Error:
        return True
    return False

def client(structured):
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.set_request_structured_replies(structured)
    h.connect_uri(sys.argv[1])
    assert h.get_protocol() == "newstyle-fixed"
    assert h.get_structured_replies_negotiated() == structured
    return h

# Contexts before structured replies are refused.
h = client(False)
h.add_meta_context("base:allocation")
assert refused(lambda: h.opt_list_meta_context(lambda name: 0))
h.opt_go()
assert not h.can_df() and h.pread(512, 0) == bytes(512)
h.shutdown()

h = client(True)
names = []
assert h.opt_list(lambda name, description: names.append(name)) == len(names)
assert {"disk", "sealed"} <= set(names), names
for queries, expected in [([], 1), (["base:"], 1), (["base:allocation"], 1), (["qemu:"], 0)]:
    found = []
    h.clear_meta_contexts()
    for query in queries:
        h.add_meta_context(query)
    h.opt_list_meta_context(found.append)
    assert len(found) == expected and set(found) <= {"base:allocation"}, (queries, found)
# An export that is not there, and information on those that are.
h.set_export_name("nothing")
assert refused(h.opt_info) and refused(h.opt_go)
h.set_export_name("sealed")
h.opt_info()
assert h.is_read_only() and h.get_size() == 64 << 20
assert not h.can_trim() and not h.can_zero() and h.can_flush() and h.can_df()
h.set_export_name("disk")
h.set_full_info(True)
h.clear_meta_contexts()
h.add_meta_context("base:allocation")
h.opt_info()
assert h.get_canonical_export_name() == "disk" and h.can_meta_context("base:allocation")
assert h.get_block_size(nbd.SIZE_MINIMUM) == 1
assert h.get_block_size(nbd.SIZE_PREFERRED) == 4096
assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
h.opt_go()
assert h.aio_is_ready() and h.can_meta_context("base:allocation")
h.pwrite(b"x" * 512, 0)
assert h.pread(512, 0) == b"x" * 512
h.shutdown()

# ABORT instead of an export.
h = client(True)
h.opt_abort()
assert h.aio_is_closed()
"#;

/// Goal: where TLS is offered a client gets into it, and nothing negotiated in clear survives.
/// Method: libnbd with a certificate; then clear bytes behind STARTTLS.
#[test]
fn starttls_protects_the_rest() {
    let work = TempDir::new().expect("a temporary folder");
    let Some(options) = with_tls(work.path()) else { return };
    let setup = Setup::with(&options);
    let certificates = work.path().display().to_string();
    if python(ENCRYPTED, &[&setup.node.uri("disk"), &certificates]) {
        // On the unix socket TLS is a choice; clear clients are served beside encrypted ones.
        let mut wire = setup.negotiate();
        assert_eq!(wire.option_kind(STARTTLS, b"x"), INVALID);
        assert_eq!(wire.option_kind(STARTTLS, &[]), ACK);
        wire.send_option(LIST, &[]);
        assert!(wire.is_closed(), "clear bytes behind STARTTLS");
        setup.assert_serves();
    }
}

/// A configuration that requires TLS on TCP, with a certificate that is its own authority.
fn with_tls(folder: &Path) -> Option<Options> {
    if !available(&["openssl"]) {
        return None;
    }
    let file = |name: &str| folder.join(name).display().to_string();
    let (key, certificate) = (file("server-key.pem"), file("ca-cert.pem"));
    must(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "30",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ],
    );
    let mut text = small_levels().config.unwrap_or_default();
    let written = write!(
        text,
        "\n[nbd]\ntls = \"required\"\ntls_certificate = \"{certificate}\"\ntls_key = \"{key}\"\n"
    );
    written.expect("a String takes all");
    Some(Options::config(text))
}

const ENCRYPTED: &str = r#"
import nbd, sys
h = nbd.NBD()
if not h.supports_tls():
    sys.exit(0)
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates(sys.argv[2])
h.set_tls_verify_peer(False)
h.add_meta_context("base:allocation")
h.connect_uri(sys.argv[1])
assert h.get_tls_negotiated() and h.get_structured_replies_negotiated()
assert h.can_meta_context("base:allocation")
data = bytes(range(256)) * 300
h.pwrite(data, 1000, nbd.CMD_FLAG_FUA)
assert h.pread(len(data), 1000) == data
h.shutdown()
"#;
