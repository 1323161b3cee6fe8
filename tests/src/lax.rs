//! A small object store that takes every put whatever its condition, as some stores do, or none.
//!
//! How: the S3 requests that a node makes (get with a range, put, delete, delete of many, list),
//! objects in memory, one thread per connection; credentials are not looked at.
//! Invariant: what was put last is what is got.
//! Not for: anything that a store is to be right about; see `s3`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// Pieces of 64 KiB that an answer without an end has at most: more than a client takes.
const PIECES_MAX: u64 = 1 << 14;

#[derive(Default)]
struct Shared {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The status that answers each put, unless 0.
    refusal: AtomicU16,
    boast: Mutex<Option<Boast>>,
    boasted: AtomicU64,
    answered: Condvar,
    repeats_pages: AtomicBool,
    lists: AtomicU64,
    /// The status of the page that answers each request in the store's place, unless 0.
    portal: AtomicU16,
    /// Requests that followed a redirect there.
    followed: AtomicU64,
}

/// Which keys are answered with more than they hold, by a part of them, and with how many bytes;
/// without a number, with an error whose words never end.
#[derive(Clone)]
struct Boast {
    key: String,
    length: Option<u64>,
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn boast(&self) -> MutexGuard<'_, Option<Boast>> {
        self.boast.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_boast(&self) {
        self.boasted.fetch_add(1, Ordering::SeqCst);
        // A test that waits looks with the lock held.
        drop(self.boast());
        self.answered.notify_all();
    }
}

/// The store, until its process ends.
pub struct LaxStore {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl LaxStore {
    /// A store without objects, on a port of its own.
    ///
    /// # Panics
    /// Where loopback has no port left.
    #[must_use]
    pub fn start() -> LaxStore {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports left");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&served);
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        LaxStore { address, shared }
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers each put with this status from now on; 0 takes them.
    pub fn refuse_puts(&self, status: u16) {
        self.shared.refusal.store(status, Ordering::SeqCst);
    }

    /// Answers gets of keys that contain this with so many bytes from now on, of which a few come;
    /// without a number, with an error whose words never end.
    pub fn boast(&self, key: &str, length: Option<u64>) {
        *self.shared.boast() = Some(Boast { key: key.to_owned(), length });
    }

    /// Answers with what it holds again.
    pub fn be_sane(&self) {
        *self.shared.boast() = None;
    }

    /// Answers that were longer than what it holds, or no store's.
    #[must_use]
    pub fn boasted(&self) -> u64 {
        self.shared.boasted.load(Ordering::SeqCst)
    }

    /// Waits for so many of them.
    ///
    /// # Panics
    /// When that takes more than a minute.
    pub fn wait_boasted(&self, count: u64) {
        let boast = self.shared.boast();
        let waiting = |_: &mut Option<Boast>| self.boasted() < count;
        let waited = self.shared.answered.wait_timeout_while(boast, MINUTE, waiting);
        let (boast, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(boast);
        assert!(!timeout.timed_out(), "{} of {count} were asked for", self.boasted());
    }

    /// Answers each request with a page in HTML and this status, as a network does that wants a
    /// login first: 303 redirects to that page; 0 ends it.
    pub fn be_portal(&self, status: u16) {
        self.shared.portal.store(status, Ordering::SeqCst);
    }

    /// Requests that followed a redirect of [`LaxStore::be_portal`].
    #[must_use]
    pub fn followed(&self) -> u64 {
        self.shared.followed.load(Ordering::SeqCst)
    }

    /// Ends every page of names with the word that another one follows, and gives that one again,
    /// or stops to do so.
    pub fn repeat_pages(&self, repeats: bool) {
        self.shared.repeats_pages.store(repeats, Ordering::SeqCst);
    }

    /// Pages of names that were asked for.
    #[must_use]
    pub fn lists(&self) -> u64 {
        self.shared.lists.load(Ordering::SeqCst)
    }

    /// Cuts an object off behind its first bytes.
    ///
    /// # Panics
    /// When there is none.
    pub fn cut(&self, key: &str, bytes: usize) {
        let mut objects = self.shared.objects();
        objects.get_mut(key).expect("there is such an object").truncate(bytes);
    }

    /// All keys, without the bucket.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.shared.objects().keys().cloned().collect()
    }
}

/// A request: its method, its key, its query, its headers in lower case, its body.
struct Asked {
    method: String,
    key: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn serve(stream: &TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read(&mut reader) {
        let boast = shared.boast().clone().filter(|boast| asked.key.contains(&boast.key));
        if let ("GET", Some(boast)) = (asked.method.as_str(), boast) {
            // The client hangs up when it has heard enough.
            let _ = answer_boastfully(stream, &boast, shared);
            return;
        }
        let (status, headers, body) =
            portal(&asked, shared).unwrap_or_else(|| answer(&asked, shared));
        let head = format!(
            "HTTP/1.1 {status} -\r\ncontent-length: {}\r\n\
             last-modified: Tue, 24 Nov 2026 00:00:00 GMT\r\n{headers}\r\n",
            body.len()
        );
        let mut stream = stream;
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
            return;
        }
    }
}

/// Sends a head and, in several pieces, a part of the body, so that its end does not come.
fn answer_boastfully(
    mut stream: &TcpStream,
    boast: &Boast,
    shared: &Shared,
) -> std::io::Result<()> {
    let (status, length) = match boast.length {
        Some(length) => (200, format!("content-length: {length}")),
        None => (503, "transfer-encoding: chunked".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status} -\r\n{length}\r\netag: \"1\"\r\n\
         last-modified: Tue, 24 Nov 2026 00:00:00 GMT\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    shared.count_boast();
    let piece = [b'x'; 1 << 16];
    for _ in 0..PIECES_MAX {
        if boast.length.is_none() {
            stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
        }
        stream.write_all(&piece)?;
        if boast.length.is_none() {
            stream.write_all(b"\r\n")?;
        }
    }
    Ok(())
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    // Path style: the bucket comes first.
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key).to_owned();
    Some(Asked { method, key, query: query.to_owned(), headers, body })
}

type Answer = (u16, String, Vec<u8>);

/// The answer of a network that wants a login first, where one is in the way.
fn portal(asked: &Asked, shared: &Shared) -> Option<Answer> {
    const PAGE: &str = "login";
    let is_followed = asked.key == PAGE;
    let status = match shared.portal.load(Ordering::SeqCst) {
        0 => return None,
        _ if is_followed => 200,
        status => status,
    };
    shared.followed.fetch_add(u64::from(is_followed), Ordering::SeqCst);
    shared.count_boast();
    let host = asked.headers.get("host").map_or("", String::as_str);
    let location = format!("location: http://{host}/portal/{PAGE}\r\n");
    let headers = format!(
        "etag: \"1\"\r\ncontent-type: text/html; charset=utf-8\r\n{}",
        if status == 303 { &location } else { "" }
    );
    Some((status, headers, b"<html>please log in</html>".to_vec()))
}

fn answer(asked: &Asked, shared: &Shared) -> Answer {
    match asked.method.as_str() {
        "PUT" => match shared.refusal.load(Ordering::SeqCst) {
            0 => {
                shared.objects().insert(asked.key.clone(), asked.body.clone());
                (200, versions(&asked.body), Vec::new())
            }
            status => error(status, "AccessDenied"),
        },
        "GET" if asked.query.contains("list-type=2") => (200, String::new(), list(asked, shared)),
        "GET" | "HEAD" => match shared.objects().get(&asked.key) {
            Some(bytes) => got(asked, bytes),
            None => error(404, "NoSuchKey"),
        },
        "DELETE" => {
            shared.objects().remove(&asked.key);
            (204, String::new(), Vec::new())
        }
        "POST" => {
            let text = String::from_utf8_lossy(&asked.body);
            let mut body = "<DeleteResult>".to_owned();
            for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split('<').next()) {
                shared.objects().remove(key);
                body += &format!("<Deleted><Key>{key}</Key></Deleted>");
            }
            (200, String::new(), (body + "</DeleteResult>").into_bytes())
        }
        _ => error(501, "NotImplemented"),
    }
}

fn error(status: u16, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>{code}</Message></Error>");
    (status, String::new(), body.into_bytes())
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{:016x}\"", sum(bytes))
}

/// An object's version, as the clients of S3 and of Google's store read it.
fn versions(bytes: &[u8]) -> String {
    format!("etag: {}\r\nx-goog-generation: {}\r\n", tag(bytes), sum(bytes) >> 1)
}

fn got(asked: &Asked, bytes: &[u8]) -> Answer {
    let whole = bytes.len();
    let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
        return (200, versions(bytes), bytes.to_vec());
    };
    let from = from.parse().unwrap_or(0);
    if from >= whole {
        return error(416, "InvalidRange");
    }
    let to = to.parse().map_or(whole, |to: usize| (to + 1).min(whole));
    let headers = format!(
        "{}content-range: bytes {from}-{}/{whole}\r\n",
        versions(bytes),
        to.saturating_sub(1)
    );
    (206, headers, bytes[from..to].to_vec())
}

fn list(asked: &Asked, shared: &Shared) -> Vec<u8> {
    let prefix = asked.query.split('&').find_map(|part| part.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or("").replace("%2F", "/");
    shared.lists.fetch_add(1, Ordering::SeqCst);
    let more = match shared.repeats_pages.load(Ordering::SeqCst) {
        true => "true</IsTruncated><NextContinuationToken>again</NextContinuationToken>",
        false => "false</IsTruncated>",
    };
    let mut body = format!("<ListBucketResult><IsTruncated>{more}");
    let objects = shared.objects();
    for (key, bytes) in objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        body += &format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-24T00:00:00.000Z</LastModified>\
             <ETag>{}</ETag><Size>{}</Size></Contents>",
            tag(bytes),
            bytes.len()
        );
    }
    (body + "</ListBucketResult>").into_bytes()
}
