//! The NBD server under a client's arbitrary bytes, its answers judged by a plain model.
//!
//! How: the frontend's own harness runs handshake and transmission over two small exports, whole
//! and cut. [`judge`] then reads the client's requests and the server's answers by itself, from the
//! protocol's text: each request that arrived whole has exactly one answer, in its order, with an
//! error that the text allows for it, or with exactly the data it asked for.
//! Invariant: the model shares no code with the server but the types of its report.
//! Not for: an engine that answers late or out of order; tests through the binary do that.

use layby_frontend::nbd::fuzz::{FuzzEnd, FuzzEntry, FuzzRun, fuzz_server_with};

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

/// The longest payload of a wrong write that the server skips.
const SKIPPED_MAX: u32 = 64 << 20;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    fuzz_server_with(bytes, judge);
}

/// Big-endian fields off the front of a slice.
#[derive(Clone, Copy)]
struct Fields<'bytes>(&'bytes [u8]);

impl<'bytes> Fields<'bytes> {
    fn take(&mut self, length: usize) -> Option<&'bytes [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
    fn number(&mut self, length: usize) -> Option<u64> {
        self.take(length).map(|bytes| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }
    fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|number| number as u16)
    }
    fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|number| number as u32)
    }
}

/// A request's head.
#[derive(Clone, Copy, Debug)]
struct Request {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

impl Request {
    fn read(fields: &mut Fields<'_>) -> Option<Option<Request>> {
        let mut head = Fields(fields.take(28)?);
        let magic = head.u32()?;
        let request = Request {
            flags: head.u16()?,
            command: head.u16()?,
            cookie: head.number(8)?,
            offset: head.number(8)?,
            length: head.u32()?,
        };
        Some((magic == 0x2560_9513).then_some(request))
    }
    fn is_change(&self) -> bool {
        matches!(self.command, 1 | 4 | 6)
    }
}

/// Holds one run against the protocol.
fn judge(bytes: &[u8], run: &FuzzRun) {
    let Some(entry) = &run.entry else {
        option_replies(&run.sent, false).expect("negotiation sends nothing but option replies");
        return;
    };
    let (negotiation, answers) = run.sent.split_at(entry.sent);
    option_replies(negotiation, true).expect("the way into an export is answered as defined");
    let mut requests = Fields(&bytes[entry.received..]);
    let mut answers = Fields(answers);
    while let Some(head) = Request::read(&mut requests) {
        let Some(request) = head else {
            assert!(matches!(run.end, FuzzEnd::Refused(_)), "a wrong magic number was accepted");
            break;
        };
        if request.command == 2 {
            assert_eq!(run.end, FuzzEnd::Left, "a disconnect was not followed");
            break;
        }
        let errors = errors_of(&request, entry);
        if request.command == 1 && !errors.is_empty() && request.length > SKIPPED_MAX {
            assert!(matches!(run.end, FuzzEnd::Refused(_)), "an endless payload is being skipped");
            break;
        }
        let payload = if request.command == 1 { request.length as usize } else { 0 };
        if requests.take(payload).is_none() {
            break;
        }
        let read = answer(&mut answers, &request, &errors, entry);
        read.unwrap_or_else(|| panic!("{request:?} has no whole answer"));
    }
    assert!(answers.0.is_empty(), "{} bytes answer nothing", answers.0.len());
}

/// Whether `sent` is a run of replies to options, closed by the bare answer to `EXPORT_NAME` at
/// most where an export was `entered`.
fn option_replies(sent: &[u8], entered: bool) -> Option<()> {
    let mut fields = Fields(sent);
    while !fields.0.is_empty() {
        let mut ahead = fields;
        if ahead.number(8) != Some(0x0003_e889_0455_65a9) {
            let bare = [10, 134].contains(&fields.0.len());
            return (entered && bare && fields.0[10..].iter().all(|byte| *byte == 0)).then_some(());
        }
        let (_, kind, length) = (ahead.u32()?, ahead.u32()?, ahead.u32()?);
        let data = ahead.take(length as usize)?;
        let sound = match kind {
            1 => data.is_empty(),
            2 => Fields(data).u32()? as usize <= data.len() - 4,
            3 => data.len() >= 2,
            4 => data.len() > 4,
            _ => kind >> 31 == 1 && std::str::from_utf8(data).is_ok(),
        };
        sound.then_some(())?;
        fields = ahead;
    }
    Some(())
}

/// Every error that the protocol has for a request; none where it must be carried out.
fn errors_of(request: &Request, entry: &FuzzEntry) -> Vec<u32> {
    const FUA: u16 = 1;
    let features = entry.features;
    let known = match request.command {
        0 if features.structured => FUA | 4,
        0 | 1 | 3 | 4 | 5 => FUA,
        6 => FUA | 2 | 16,
        7 if features.allocation_context => FUA | 8,
        _ => return vec![EINVAL],
    };
    let mut errors = Vec::new();
    let fits = request
        .offset
        .checked_add(u64::from(request.length))
        .is_some_and(|end| end <= entry.export.size);
    let has_limit = matches!(request.command, 0 | 1 | 5);
    if request.is_change() && entry.export.read_only {
        errors.push(EPERM);
    }
    if !fits && matches!(request.command, 1 | 6) {
        errors.push(ENOSPC);
    }
    let wrong = request.flags & !known != 0
        || (!fits && !matches!(request.command, 1 | 6))
        || (has_limit && request.length > entry.export.request_length_max)
        || (request.command == 3 && (request.offset != 0 || request.length != 0))
        || (request.command == 7 && request.length == 0);
    if wrong {
        errors.push(EINVAL);
    }
    errors
}

/// Reads the answer to `request`; panics where it is a wrong one.
fn answer(
    answers: &mut Fields<'_>,
    request: &Request,
    errors: &[u32],
    entry: &FuzzEntry,
) -> Option<()> {
    // The harness lets calls with an odd cookie fail, after they were accepted.
    let fails = request.cookie & 1 == 1 && (request.length > 0 || request.command == 3);
    let failure = if request.command == 6 && request.flags & 16 != 0 { ENOTSUP } else { EIO };
    let allowed = if errors.is_empty() && fails { vec![failure] } else { errors.to_vec() };
    let magic = answers.u32()?;
    if magic == 0x6744_6698 {
        let (error, cookie) = (answers.u32()?, answers.number(8)?);
        assert_eq!(cookie, request.cookie, "another request was answered");
        judge_error(error, &allowed, request);
        let data = request.command == 0 && error == 0;
        assert!(!(entry.features.structured && request.command == 0), "a simple reply to a read");
        assert!(request.command != 7 || error != 0, "a simple reply holds no status");
        return answers.take(if data { request.length as usize } else { 0 }).map(drop);
    }
    assert_eq!(magic, 0x668e_33ef, "an answer begins with neither magic number");
    assert!(entry.features.structured, "a chunk where none was negotiated");
    let (flags, kind, cookie) = (answers.u16()?, answers.u16()?, answers.number(8)?);
    let length = answers.u32()? as usize;
    let payload = answers.take(length)?;
    assert_eq!((flags, cookie), (1, request.cookie), "one chunk answers one request");
    chunk(kind, payload, request, &allowed)
}

fn judge_error(error: u32, allowed: &[u32], request: &Request) {
    let right = if allowed.is_empty() { error == 0 } else { allowed.contains(&error) };
    assert!(right, "{request:?} was answered with {error}, allowed are {allowed:?}");
}

/// Judges the only chunk of an answer.
fn chunk(kind: u16, payload: &[u8], request: &Request, allowed: &[u32]) -> Option<()> {
    let mut fields = Fields(payload);
    let mut error = 0;
    match kind {
        0x8001 => {
            error = fields.u32()?;
            let length = fields.u16()?;
            std::str::from_utf8(fields.take(length.into())?).ok()?;
            assert_ne!(error, 0, "an error chunk without an error");
        }
        0 => assert!(request.command != 0 || request.length == 0, "a read without its data"),
        1 => {
            assert_eq!((request.command, fields.number(8)?), (0, request.offset));
            assert!(request.length > 0, "a data chunk without data");
            fields.take(request.length as usize)?;
        }
        5 => {
            assert_eq!((request.command, fields.u32()?), (7, 1), "status of another context");
            extents(&mut fields, request)?;
        }
        _ => panic!("a chunk of type {kind}"),
    }
    assert!(fields.0.is_empty(), "a chunk is longer than its contents");
    judge_error(error, allowed, request);
    Some(())
}

/// Extents that are not empty, do not pass the request's end, and are one where one was asked for.
fn extents(fields: &mut Fields<'_>, request: &Request) -> Option<()> {
    let (mut covered, mut count) = (0, 0);
    while !fields.0.is_empty() {
        let (length, _) = (fields.u32()?, fields.u32()?);
        assert!(length > 0, "an empty extent");
        (covered, count) = (covered + u64::from(length), count + 1);
    }
    assert!(count > 0 && covered <= u64::from(request.length), "extents of {covered} bytes");
    assert!(count == 1 || request.flags & 8 == 0, "more than the one extent asked for");
    Some(())
}

/// Conversations that reach every option, command and flag.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let commands = || all_requests(false).into_iter().chain(all_requests(true)).flatten();
    for (name, features) in [("simple", 0), ("structured", 1), ("contexts", 2)] {
        for export in ["a", "b"] {
            let mut bytes = vec![0, 0, 0, 3];
            if features > 0 {
                bytes.extend(option(8, &[]));
            }
            if features > 1 {
                bytes.extend(option(10, &contexts(export, &["base:allocation"])));
            }
            bytes.extend(option(7, &info(export, &[0, 1, 2, 3])));
            bytes.extend(commands());
            seeds.push((format!("{name}_{export}"), bytes));
        }
    }
    let mut options = vec![0, 0, 0, 1];
    for (code, data) in [
        (3, Vec::new()),
        (6, info("b", &[1, 2, 3, 9])),
        (6, info("denied", &[])),
        (6, info("closing", &[])),
        (9, contexts("a", &[])),
        (8, Vec::new()),
        (9, contexts("a", &["base:", "qemu:"])),
        (10, contexts("a", &["base:allocation"])),
        (5, Vec::new()),
        (99, vec![1, 2, 3]),
        (1, b"a".to_vec()),
    ] {
        options.extend(option(code, &data));
    }
    options.extend(request(0, 0, 2, 0, 16));
    seeds.push(("options".into(), options));
    seeds.push(("abort".into(), [vec![0, 0, 0, 3], option(2, &[])].concat()));
    seeds.push(("wrong_magic".into(), [vec![0, 0, 0, 3], vec![7; 16]].concat()));
    let bad = [vec![0, 0, 0, 3], option(7, &info("", &[])), vec![9; 28]].concat();
    seeds.push(("wrong_request".into(), bad));
    seeds
}

/// One request of each command with each flag, sound or `beyond` the end of the export.
fn all_requests(beyond: bool) -> Vec<Vec<u8>> {
    let offset = if beyond { 4090 } else { 512 };
    let mut requests: Vec<Vec<u8>> = (0..=8)
        .filter(|command| *command != 2)
        .flat_map(|command| {
            let flags = [0, 1 << (command % 5), 1 << 9];
            flags.map(|flags| request(flags, command, u64::from(command) * 2, offset, 16))
        })
        .collect();
    requests.push(request(0, 3, 2, 0, 0));
    requests.push(request(0, 0, 3, 0, 16));
    requests.push(request(16, 6, 3, 0, 16));
    if beyond {
        requests.push(request(0, 2, 0, 0, 0));
    }
    requests
}

fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    if command == 1 {
        bytes.extend(std::iter::repeat_n(0x5a, length as usize));
    }
    bytes
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn info(name: &str, items: &[u16]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((items.len() as u16).to_be_bytes());
    bytes.extend(items.iter().flat_map(|item| item.to_be_bytes()));
    bytes
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| text(query)));
    bytes
}
