//! The audit log: who asked for which change, when, and what came of it.
//!
//! How: a line of JSON per change in `audit.log`, and per attempt that was not let in in
//! `audit-refused.log`, both in the node's directory and readable by its user alone. Each keeps
//! [`FILE_BYTES_MAX`] bytes and as many before them; refused attempts are written at a bounded rate
//! and counted beyond it, and never push a change out.
//! A change's line has the fields of its request, bounded, without keys' sources and secrets.
//! Invariant: a change that was let in leaves a line, however its request ends; what changes
//! nothing and comes again and again leaves none, since it would push changes out. A log that
//! cannot be written is said in the node's log and refuses nothing.
//! Cost: a file is opened per line. Nothing is synced, so a power cut may take the last lines.
//! Not for: what clients read and write.

use crate::held;
use rustix::fs::{Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Changes, in the node's directory.
pub const CHANGES_FILE_NAME: &str = "audit.log";
/// Attempts that were not let in, in the node's directory.
pub const REFUSED_FILE_NAME: &str = "audit-refused.log";
/// Bytes of a file after which it is set aside in the place of the one before.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// Refused attempts that are written at once at most.
const REFUSED_BURST: u32 = 32;
/// After a burst, one of them is written in this time.
const REFUSED_EVERY: Duration = Duration::from_secs(10);
/// Characters of a text that a client chose at most.
const TEXT_MAX: usize = 256;
/// Bytes of a change's fields at most, as JSON.
const FIELDS_BYTES_MAX: usize = 2048;
/// What stands for what is not told.
const LEFT_OUT: &str = "(left out)";

/// Who asks, as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "via", rename_all = "lowercase")]
pub enum Who {
    /// A process of this machine.
    Unix {
        /// Its user.
        uid: u32,
        /// Its number, where the kernel has told it.
        pid: Option<i32>,
    },
    /// A client of the HTTP address.
    Http {
        /// Its address.
        address: String,
        /// The name of its token; none where it had none that is known.
        token: Option<String>,
    },
}

impl Who {
    /// What the node's log calls him: the way, then user, process, address and token as far as they
    /// are known.
    fn parts(&self) -> (&str, Option<u32>, Option<i32>, Option<&str>, Option<&str>) {
        match self {
            Who::Unix { uid, pid } => ("unix", Some(*uid), *pid, None, None),
            Who::Http { address, token } => ("http", None, None, Some(address), token.as_deref()),
        }
    }
}

/// What was asked, and what came of it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    who: &'a Who,
    request: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<&'a Value>,
    result: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    /// Refused attempts before this one that have no line.
    #[serde(skip_serializing_if = "Option::is_none")]
    uncounted: Option<u64>,
}

/// The audit log of a node.
#[derive(Debug)]
pub struct Audit {
    changes: Mutex<Book>,
    refused: Mutex<Book>,
    budget: Mutex<Budget>,
}

impl Audit {
    /// That of the node in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Audit {
        Audit {
            changes: Mutex::new(Book::new(dir.join(CHANGES_FILE_NAME))),
            refused: Mutex::new(Book::new(dir.join(REFUSED_FILE_NAME))),
            budget: Mutex::default(),
        }
    }

    /// An attempt that was not let in.
    pub fn refuse(&self, who: &Who, request: &str, cause: &str) {
        let Some(left_out) = lock(&self.budget).take(Instant::now()) else { return };
        let (request, cause) = (&shortened(request), &shortened(cause));
        let (via, uid, pid, address, token) = who.parts();
        tracing::warn!(
            via,
            uid,
            pid,
            address,
            token,
            request,
            cause,
            left_out,
            "refused a request on the control API"
        );
        let uncounted = Some(left_out).filter(|count| *count > 0);
        let line = line(who, request, "refused");
        lock(&self.refused).write(&Line { cause: Some(cause), uncounted, ..line });
    }

    /// A change that was let in, with its request's body; its line is written when the result is
    /// known, or when nobody waits for it any more.
    #[must_use]
    pub fn begin(&self, who: Who, request: &str, body: &[u8]) -> Change<'_> {
        let mut fields: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
        let name = fields.remove("name");
        let name = name.as_ref().and_then(Value::as_str).map(shortened);
        let fields = told(fields);
        Change { audit: self, who, request: shortened(request), name, fields, ended: None }
    }
}

/// A change that is being made.
#[derive(Debug)]
pub struct Change<'a> {
    audit: &'a Audit,
    who: Who,
    request: String,
    name: Option<String>,
    fields: Option<Value>,
    ended: Option<(u16, Option<String>)>,
}

impl Change<'_> {
    /// How it was answered, with what went wrong.
    pub fn end(mut self, status: u16, cause: Option<&str>) {
        self.ended = Some((status, cause.map(|cause| shortened(&without_logins(cause)))));
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let (status, cause) = self.ended.take().unzip();
        let cause = cause.flatten();
        let result = match status {
            None => "abandoned by its client",
            Some(200..=299) => "done",
            Some(_) => "failed",
        };
        let (who, request, name) = (&self.who, &self.request, self.name.as_deref());
        let (via, uid, pid, address, token) = who.parts();
        tracing::info!(
            via,
            uid,
            pid,
            address,
            token,
            request,
            name,
            result,
            "change by the control API"
        );
        let line = line(who, request, result);
        let fields = self.fields.as_ref();
        let line = Line { name, fields, status, cause: cause.as_deref(), ..line };
        lock(&self.audit.changes).write(&line);
    }
}

fn line<'a>(who: &'a Who, request: &'a str, result: &'a str) -> Line<'a> {
    let time = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    let (name, fields, status, cause, uncounted) = (None, None, None, None, None);
    Line { time, who, request, name, fields, result, status, cause, uncounted }
}

/// What the log tells of a request's fields; none where it has none.
fn told(fields: Map<String, Value>) -> Option<Value> {
    let all = fields.into_iter().filter(|(_, value)| !value.is_null());
    let mut told: Map<String, Value> = all
        .map(|(field, value)| match is_secret(&field) {
            true => (shortened(&field), LEFT_OUT.into()),
            false => (shortened(&field), bounded(value)),
        })
        .collect();
    let length = |told: &Map<String, Value>| {
        serde_json::to_string(told).expect("fields have string keys").len()
    };
    while length(&told) > FIELDS_BYTES_MAX {
        // The longest says least that can be read.
        let bytes = |value: &Value| value.to_string().len();
        let longest = told.iter().max_by_key(|(_, value)| bytes(value));
        let longest = longest.filter(|(_, value)| bytes(value) > LEFT_OUT.len() + 2);
        let Some(longest) = longest.map(|(field, _)| field.clone()) else {
            return Some(LEFT_OUT.into());
        };
        told.insert(longest, LEFT_OUT.into());
    }
    (!told.is_empty()).then_some(Value::Object(told))
}

/// Whether a field's value is not told.
fn is_secret(field: &str) -> bool {
    let field = field.to_lowercase();
    ["key", "token", "secret", "password"].iter().any(|word| field.contains(word))
}

/// A value whose texts are bounded, without the secrets in it.
fn bounded(value: Value) -> Value {
    match value {
        Value::String(text) => shortened(&without_login(&text)).into(),
        Value::Array(values) => values.into_iter().map(bounded).collect(),
        Value::Object(fields) => told(fields).unwrap_or_else(|| Value::Object(Map::new())),
        value => value,
    }
}

/// A URL without what stands before its host.
fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{LEFT_OUT}@{host}{path}"),
        None => text.to_owned(),
    }
}

/// A text without what stands before the hosts of URLs in it.
fn without_logins(text: &str) -> String {
    text.split_inclusive(['`', ' ', '"', '\'']).map(without_login).collect()
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text of a client's, bounded.
fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// How many refused attempts may still be written.
#[derive(Debug, Default)]
struct Budget {
    /// When the burst is whole again.
    whole: Option<Instant>,
    left_out: u64,
}

impl Budget {
    /// How many were left out before this one; none where this one is, too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let whole = self.whole.unwrap_or(now).max(now) + REFUSED_EVERY;
        if whole.saturating_duration_since(now) > REFUSED_EVERY * REFUSED_BURST {
            self.left_out += 1;
            return None;
        }
        self.whole = Some(whole);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// One file.
#[derive(Debug)]
struct Book {
    path: PathBuf,
    /// The last line was written in part: the next one begins behind it, and not in it.
    is_torn: bool,
}

impl Book {
    fn new(path: PathBuf) -> Book {
        Book { path, is_torn: false }
    }

    fn write(&mut self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).expect("a line has only string keys");
        text.push(b'\n');
        if let Err(cause) = self.append(&text) {
            tracing::warn!(path = %self.path.display(), %cause, "cannot write the audit log");
        }
    }

    fn append(&mut self, text: &[u8]) -> std::io::Result<()> {
        let place = self.path.parent().zip(self.path.file_name());
        let (dir, name) = place.expect("it is a file of a directory");
        let folder = held::folder(dir)?;
        // A pipe may be read, as where the log is a link to `/dev/stdout`; nothing waits for one.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(0o600);
        let opened = openat(&folder, name, flags | OFlags::CLOEXEC, mode);
        let mut file = File::from(opened.map_err(|cause| of_pipe(&self.path, cause.into()))?);
        let own_line = [b"\n", text].concat();
        let mut rest = if self.is_torn { &own_line[..] } else { text };
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    self.is_torn = !rest.is_empty();
                }
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(of_pipe(&self.path, cause)),
            }
        }
        if file.metadata()?.len() > FILE_BYTES_MAX {
            let mut before = name.to_owned();
            before.push(".1");
            renameat(&folder, name, &folder, before)?;
        }
        Ok(())
    }
}

/// What an error means where the log is no file: a pipe, or a socket, as `/dev/stdout` is one under
/// a service manager that keeps a journal.
fn of_pipe(path: &Path, cause: std::io::Error) -> std::io::Error {
    let Ok(found) = std::fs::metadata(path).map(|found| found.file_type()) else { return cause };
    let said = match Errno::from_io_error(&cause) {
        Some(Errno::NXIO) if found.is_fifo() => "it is a pipe (FIFO) that nothing reads",
        Some(Errno::AGAIN) if found.is_fifo() => {
            "it is a pipe (FIFO) whose reader does not keep up"
        }
        Some(Errno::NXIO) if found.is_socket() => {
            "it is a socket, which cannot be opened; link to a file or a pipe"
        }
        _ => return cause,
    };
    std::io::Error::new(cause.kind(), said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt as _;
    use tempfile::TempDir;

    fn lines(dir: &TempDir, name: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    const ROOT: Who = Who::Unix { uid: 0, pid: Some(7) };

    /// Goal: each change has its line, also one whose client left. Method: the three ends.
    #[tokio::test]
    async fn changes_leave_a_line() {
        let dir = TempDir::new().expect("a temporary directory");
        let audit = Audit::new(dir.path());
        audit.begin(ROOT, "POST /v1/volumes", b"{\"name\": \"a\"}").end(201, None);
        let cause = "`s3://AKIA:topsecret@bucket/x` is none, nor is s3://me@there/";
        audit.begin(ROOT, "DELETE /v1/volumes/a", b"").end(409, Some(cause));
        drop(audit.begin(ROOT, "POST /v1/drain", b"{}"));
        let lines = lines(&dir, CHANGES_FILE_NAME);
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["uid"], &lines[0]["pid"]), (&0.into(), &7.into()));
        assert_eq!((&lines[0]["name"], &lines[0]["result"]), (&"a".into(), &"done".into()));
        assert_eq!(&lines[1]["status"], &409);
        let told = "`s3://(left out)@bucket/x` is none, nor is s3://(left out)@there/";
        assert_eq!(lines[1]["cause"], told);
        assert_eq!(lines[2]["result"], "abandoned by its client");
    }

    /// Goal: a change's line says what became what, bounded, and no secret, however deep it stands.
    /// Method: bodies with shares, with keys and logins, long ones, and no JSON.
    #[tokio::test]
    async fn changes_are_told_without_secrets() {
        let dir = TempDir::new().expect("a temporary directory");
        let audit = Audit::new(dir.path());
        let many: Vec<String> = (0..100).map(|n| format!("{n:0>200}")).collect();
        let bodies = [
            serde_json::json!({"share": {"nvm": "70%"}, "class": null, "read_only": true}),
            serde_json::json!({"key": "env:hidden", "more": {"Api_Token": "hidden"},
                "path": "s3://hidden:hidden@host/x", "clone_of": "s3://host/x@snapshot"}),
            serde_json::json!({"allow": many, "size": "1MiB", "path": "x".repeat(9999)}),
            serde_json::json!((0..999).map(|n| (n.to_string(), n)).collect::<Vec<_>>()),
        ];
        for body in bodies {
            audit.begin(ROOT, "PATCH /v1/volumes/a", body.to_string().as_bytes()).end(200, None);
        }
        let text = std::fs::read_to_string(dir.path().join(CHANGES_FILE_NAME)).expect("there");
        assert!(!text.contains("hidden"), "{text}");
        let lines = lines(&dir, CHANGES_FILE_NAME);
        let expected = serde_json::json!({"share": {"nvm": "70%"}, "read_only": true});
        assert_eq!(lines[0]["fields"], expected);
        assert_eq!(lines[1]["fields"]["key"], LEFT_OUT);
        assert_eq!(lines[1]["fields"]["path"], "s3://(left out)@host/x");
        assert_eq!(lines[1]["fields"]["clone_of"], "s3://host/x@snapshot");
        assert_eq!(
            (&lines[2]["fields"]["size"], &lines[2]["fields"]["allow"]),
            (&"1MiB".into(), &LEFT_OUT.into())
        );
        assert!(lines[3].get("fields").is_none());
        assert!(text.lines().all(|line| line.len() < 2 * FIELDS_BYTES_MAX), "{text}");
    }

    /// Goal: a flood of refused attempts is counted and does not fill the disk. Method: paused
    /// time, a hundred thousand attempts, then one a while later.
    #[tokio::test(start_paused = true)]
    async fn refused_attempts_are_bounded() {
        let dir = TempDir::new().expect("a temporary directory");
        let audit = Audit::new(dir.path());
        let who = Who::Http { address: "127.0.0.1:9".into(), token: None };
        for _ in 0..100_000 {
            audit.refuse(&who, &"x".repeat(10_000), "no token");
        }
        tokio::time::advance(REFUSED_EVERY).await;
        audit.refuse(&who, "DELETE /v1/volumes/a", "no token");
        let lines = lines(&dir, REFUSED_FILE_NAME);
        assert_eq!(lines.len(), REFUSED_BURST as usize + 1);
        assert_eq!(lines[32]["uncounted"], 100_000 - REFUSED_BURST);
        assert_eq!(lines[0]["request"].as_str().map(str::len), Some(TEXT_MAX));
    }

    /// Goal: a pipe in the place of the log takes lines while something reads it, and holds no
    /// change up where nothing does, or too slowly. Method: a pipe without a reader, with one, and
    /// full.
    #[tokio::test]
    async fn a_pipe_holds_nothing_up() {
        let dir = TempDir::new().expect("a temporary directory");
        let mut book = Book::new(dir.path().join("log"));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &book.path, fifo, mode, 0).expect("a pipe");
        let refused = book.append(b"x").expect_err("nothing reads");
        assert!(refused.to_string().contains("a pipe (FIFO)"), "{refused}");
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = OpenOptions::new();
        let reader = reader.read(true).custom_flags(no_wait).open(&book.path);
        let mut reader = reader.expect("a pipe can be opened without a writer");
        book.append(b"a line\n").expect("it is read");
        let mut read = [0; 16];
        let length = std::io::Read::read(&mut reader, &mut read).expect("it was written");
        assert_eq!(&read[..length], b"a line\n");
        let piece = vec![b'x'; 4096];
        let refused = (0..1024).find_map(|_| book.append(&piece).err()).expect("it is full");
        assert!(refused.to_string().contains("does not keep up"), "{refused}");
    }

    /// Goal: a line that was written in part costs no line but itself. Method: one that is longer
    /// than a pipe, then all of it read, and the two after it.
    #[tokio::test]
    async fn a_torn_line_spoils_no_other() {
        let dir = TempDir::new().expect("a temporary directory");
        let mut book = Book::new(dir.path().join("log"));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &book.path, fifo, mode, 0).expect("a pipe");
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = OpenOptions::new();
        let reader = reader.read(true).custom_flags(no_wait).open(&book.path);
        let mut reader = reader.expect("a pipe can be opened without a writer");
        let mut read = vec![0; 1 << 21];
        let mut text = || {
            let mut length = 0;
            while let Ok(more @ 1..) = std::io::Read::read(&mut reader, &mut read[length..]) {
                length += more;
            }
            String::from_utf8_lossy(&read[..length]).into_owned()
        };
        book.append(&vec![b'x'; 1 << 21]).expect_err("a pipe is shorter");
        assert!(!text().is_empty());
        book.append(b"one\n").expect("there is room");
        book.append(b"two\n").expect("there is room");
        assert_eq!(text(), "\none\ntwo\n");
    }

    /// Goal: a socket in the place of the log, as `/dev/stdout` is one under a journal, is not
    /// called a pipe, nor is any other file. Method: a Unix socket; a folder.
    #[tokio::test]
    async fn a_socket_is_no_pipe() {
        let dir = TempDir::new().expect("a temporary directory");
        let mut book = Book::new(dir.path().join("log"));
        let _socket = std::os::unix::net::UnixListener::bind(&book.path).expect("a socket");
        let refused = book.append(b"x").expect_err("it cannot be opened").to_string();
        assert!(refused.contains("a socket") && !refused.contains("FIFO"), "{refused}");
        book.path = dir.path().to_owned();
        let refused = book.append(b"x").expect_err("it is a folder").to_string();
        assert!(refused.contains("directory"), "{refused}");
    }

    /// Goal: a file has a bound. Method: changes until it was set aside once.
    #[tokio::test]
    async fn files_are_bounded() {
        let dir = TempDir::new().expect("a temporary directory");
        let mut book = Book::new(dir.path().join("log"));
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..13 {
            book.append(&piece).expect("a writable directory");
        }
        let bytes = |name: &str| std::fs::metadata(dir.path().join(name)).expect("there").len();
        assert!(bytes("log") <= FILE_BYTES_MAX && bytes("log.1") <= FILE_BYTES_MAX + (1 << 20));
    }
}
