//! Requests to a store that does not answer, or knows no conditions.
//!
//! How: a double around a store in memory; the clock stands still while anything can go on.

use super::*;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a double does instead of answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quirk {
    /// It swallows every request.
    Silent,
    /// It says how long an object is, and never what is in it.
    Bodiless,
    /// It refuses every put that has a condition.
    Unconditional,
    /// Its client panics.
    Panicking,
    /// It refuses so many reads.
    Throttling(u32),
    /// It says that an object has so many bytes, and sends a few of them.
    Boasting(u64),
    /// It says that an object has one byte, and sends bytes without an end.
    Endless,
}

#[derive(Debug)]
struct Double {
    memory: InMemory,
    quirk: Quirk,
    asked: AtomicU32,
}

impl fmt::Display for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Double")
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

impl ObjectStore for Double {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        path: &'b Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Answer<'c, PutResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            match (self.quirk, &options.mode) {
                (Quirk::Silent, _) => std::future::pending().await,
                (Quirk::Unconditional, PutMode::Create | PutMode::Update(_)) => {
                    let (operation, implementer) = ("put".to_owned(), "Double".to_owned());
                    Err(Error::NotImplemented { operation, implementer })
                }
                _ => self.memory.put_opts(path, payload, options).await,
            }
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        _: &'b Path,
        _: PutMultipartOptions,
    ) -> Answer<'c, Box<dyn MultipartUpload>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        unreachable!("objects are put whole")
    }

    fn get_opts<'a, 'b, 'c>(&'a self, path: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            match self.quirk {
                Quirk::Silent => std::future::pending().await,
                Quirk::Panicking => panic!("the client of a double"),
                Quirk::Throttling(reads) if self.asked.fetch_add(1, Ordering::Relaxed) < reads => {
                    return Err(Error::Generic { store: "double", source: "slow down".into() });
                }
                _ => {}
            }
            let is_head = options.head;
            let mut found = self.memory.get_opts(path, options).await?;
            if self.quirk == Quirk::Bodiless && !is_head {
                found.payload = GetResultPayload::Stream(futures_util::stream::pending().boxed());
            }
            let piece = || Ok::<_, Error>(Bytes::from(vec![7; 1 << 16]));
            match self.quirk {
                Quirk::Boasting(bytes) if !is_head => {
                    found.meta.size = bytes;
                    found.range = found.range.start..bytes;
                    let pieces = stream::iter([piece(), piece()]);
                    found.payload = GetResultPayload::Stream(pieces.boxed());
                }
                Quirk::Endless if !is_head => {
                    let pieces = stream::repeat_with(piece);
                    found.payload = GetResultPayload::Stream(pieces.boxed());
                }
                _ => {}
            }
            Ok(found)
        })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path, Error>>,
    ) -> BoxStream<'static, Result<Path, Error>> {
        match self.quirk {
            Quirk::Silent => futures_util::stream::pending().boxed(),
            _ => self.memory.delete_stream(paths),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta, Error>> {
        match self.quirk {
            Quirk::Silent => futures_util::stream::pending().boxed(),
            _ => self.memory.list(prefix),
        }
    }

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, _: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        unreachable!("all objects below a prefix are listed")
    }

    fn copy_opts<'a, 'b, 'd, 'c>(
        &'a self,
        _: &'b Path,
        _: &'d Path,
        _: CopyOptions,
    ) -> Answer<'c, ()>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
        Self: 'c,
    {
        unreachable!("objects are not copied")
    }
}

fn store(quirk: Quirk) -> Store {
    let double = Double { memory: InMemory::new(), quirk, asked: AtomicU32::new(0) };
    let (prefix, url) = (Path::from("maps"), "double://maps".to_owned());
    Store { store: Arc::new(double), pages: None, folder: None, prefix, url, key: None }
}

impl Store {
    /// A store in memory, which needs no threads.
    pub(crate) fn in_memory() -> Store {
        let (prefix, url) = (Path::from("maps"), "memory://maps".to_owned());
        Store { store: Arc::new(InMemory::new()), prefix, url, ..store(Quirk::Silent) }
    }
}

fn get(key: &str, range: Option<Range<u64>>) -> Request {
    Request::Get { key: key.to_owned(), range }
}

fn create(key: &str, bytes: usize) -> Request {
    let bytes = vec![7; bytes].into();
    Request::Put { key: key.to_owned(), bytes, condition: Condition::Create }
}

/// How long a request took that was given up.
async fn given_up(store: &Store, request: Request) -> Duration {
    let begun = Instant::now();
    match store.perform(request).await {
        End::Failed(fault) => assert_eq!(fault.kind, FaultKind::Retry, "{}", fault.cause),
        end => panic!("nobody answered: {end:?}"),
    }
    begun.elapsed()
}

/// Goal: what is swallowed is given up after the time that is documented, which counts the bytes
/// that are carried and no others. Method: each kind of request to a silent store; whole objects of
/// two sizes whose bytes never come.
#[tokio::test(start_paused = true)]
async fn silence_is_given_up_in_time() {
    const SLACK: Duration = Duration::from_millis(10);
    let silent = store(Quirk::Silent);
    let list = Request::List { prefix: String::new() };
    let delete = Request::Delete { key: "segments/1".to_owned() };
    for request in [get(SUPERBLOCK_KEY, None), get("segments/1", Some(0..1 << 20)), list, delete] {
        let time = given_up(&silent, request.clone()).await;
        assert!(time <= REQUEST_TIME + SLACK, "{request:?}: {time:?}");
    }
    let put = given_up(&silent, create("segments/1", 1 << 20)).await;
    let time = REQUEST_TIME + Duration::from_secs(32);
    assert!(put >= time && put <= time + SLACK, "{put:?}");
    let bodiless = store(Quirk::Bodiless);
    for (bytes, seconds) in [(1 << 10, 0), (1 << 20, 32)] {
        let key = format!("checkpoints/{bytes}");
        let stored = bodiless.perform(create(&key, bytes)).await;
        assert!(matches!(stored, End::Stored(_)), "{stored:?}");
        let time = REQUEST_TIME + Duration::from_secs(seconds);
        let got = given_up(&bodiless, get(&key, None)).await;
        assert!(got >= time && got <= time + Duration::from_secs(1), "{bytes}: {got:?}");
    }
}

/// Goal: a store that throttles for a minute and more is asked on, ever less often, and no longer
/// than was said. Method: a store that refuses some reads; attempts and time.
#[tokio::test(start_paused = true)]
async fn a_throttled_read_is_asked_on() {
    for (refused, attempts, is_read) in [(20, 30, true), (30, 30, false), (3, 4, true)] {
        let slow = store(Quirk::Throttling(refused));
        let stored = slow.perform(create("segments/1", 8)).await;
        assert!(matches!(stored, End::Stored(_)), "{stored:?}");
        let begun = Instant::now();
        let end = slow.insist(get("segments/1", None), attempts).await;
        assert_eq!(matches!(end, End::Bytes(..)), is_read, "{refused}: {end:?}");
        let most = 5 * u64::from(attempts);
        assert!(begun.elapsed() <= Duration::from_secs(most), "{refused}: {:?}", begun.elapsed());
    }
}

/// Goal: a range behind a file's end is an answer about the object, and no silence; one that only
/// ends behind it is as long as the file; a whole empty file is read. Method: a folder with objects
/// that were cut, plain and sealed.
#[tokio::test]
async fn a_range_behind_the_end_is_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    for key in [None, Some(Key::new(&[7; 32]))] {
        let url = format!("file://{}", folder.path().join("bucket").display());
        let store = Store::create(&url).expect("a folder is a store").sealed(key.clone());
        let name = format!("segments/{}", u8::from(key.is_some()));
        let stored = store.perform(create(&name, 300_000)).await;
        assert!(matches!(stored, End::Stored(_)), "{stored:?}");
        let file = folder.path().join("bucket").join(&name);
        for (length, range, found) in [
            (300_000, 0..10, Some(10)),
            (300_000, 200_000..200_010, Some(10)),
            (70_000, 200_000..200_010, None),
            (200, 150_000..300_000, None),
            (0, 0..10, None),
            (0, 0..1 << 20, None),
        ] {
            let file = std::fs::File::options().write(true).open(&file).expect("it is there");
            file.set_len(length).expect("a writable folder");
            match (store.perform(get(&name, Some(range.clone()))).await, found) {
                (End::Bytes(bytes, _), Some(length)) => assert_eq!(bytes.len(), length),
                (End::Failed(fault), None) => {
                    assert_eq!(fault.kind, FaultKind::Short, "{length} {range:?}: {}", fault.cause);
                    assert!(fault.cause.contains(&name), "{}", fault.cause);
                }
                (end, _) => panic!("{length} {range:?}: {end:?}"),
            }
        }
        if key.is_none() {
            let end = store.perform(get(&name, None)).await;
            assert!(matches!(&end, End::Bytes(bytes, _) if bytes.is_empty()), "{end:?}");
            std::fs::write(&file, [7; 100]).expect("a writable folder");
            let end = store.perform(get(&name, Some(90..200))).await;
            assert!(matches!(&end, End::Bytes(bytes, _) if bytes.len() == 10), "{end:?}");
        }
    }
}

/// Goal: where a store knows no conditions on puts, a put still goes through only where its
/// condition holds at that moment, and what does not hold is said, not asked again. Method: objects
/// that are made and replaced, each again with what is no longer so.
#[tokio::test]
async fn stores_without_conditions_are_asked_first() {
    let store = store(Quirk::Unconditional);
    let refused = async |request| match store.perform(request).await {
        End::Failed(fault) => assert_eq!(fault.kind, FaultKind::Condition, "{}", fault.cause),
        end => panic!("the condition did not hold: {end:?}"),
    };
    let replace = |tag: &Tag| Request::Put {
        key: SUPERBLOCK_KEY.to_owned(),
        bytes: vec![8; 10].into(),
        condition: Condition::Replace(tag.clone()),
    };
    refused(replace(&Tag("of nothing\n".to_owned()))).await;
    let End::Stored(first) = store.perform(create(SUPERBLOCK_KEY, 10)).await else {
        panic!("there is none yet");
    };
    refused(create(SUPERBLOCK_KEY, 20)).await;
    let End::Stored(second) = store.perform(replace(&first)).await else {
        panic!("it still is the first one");
    };
    refused(replace(&first)).await;
    match store.perform(get(SUPERBLOCK_KEY, None)).await {
        End::Bytes(bytes, tag) => assert_eq!((&bytes[..], tag), (&[8; 10][..], Some(second))),
        end => panic!("it is there: {end:?}"),
    }
}

/// Goal: a client that panics is a fault of its request, so that whoever waits hears of it. Method:
/// a store that does.
#[tokio::test]
async fn a_panic_is_a_fault() {
    let end = store(Quirk::Panicking).perform(get(SUPERBLOCK_KEY, None)).await;
    assert!(matches!(&end, End::Failed(fault) if fault.kind == FaultKind::Denied), "{end:?}");
}

/// Goal: a store's refusal is told in its own words, on one line that ends with a word. Method: an
/// answer as S3 gives it, an endless one, and one without blanks.
#[test]
fn refusals_are_short() {
    let source = "GET: Server returned non-2xx status code: 403 Forbidden: \
                  <?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code>\
                  <Message>Access Denied</Message>\n\
                  <RequestId>4442587FB7D0A2F9</RequestId></Error>";
    let path = "maps/superblock".to_owned();
    let refused = fault(&Error::Unauthenticated { path, source: source.into() });
    let said =
        "GET: Server returned non-2xx status code: 403 Forbidden: AccessDenied: Access Denied";
    assert_eq!((refused.kind, refused.cause.as_str()), (FaultKind::Denied, said));
    let long = shortened(&"words ".repeat(100));
    assert!(long.len() < 310 && long.ends_with("words …"), "{long}");
    assert!(shortened(&"x".repeat(1000)).len() < 310);
}

/// Goal: an answer that says that it is longer than what was asked for, or than such an object may
/// be, or that turns out to be, is a fault of its request, named, before memory is given for it.
/// Method: stores that boast, by a petabyte and by a byte, and one without an end; objects of each
/// kind, whole and in part, plain and sealed.
#[tokio::test]
async fn an_answer_has_a_bound() {
    let key = Key::new(&[7; 32]);
    for (quirk, key) in [
        (Quirk::Boasting(1_000_000_000_000_000), None),
        (Quirk::Boasting(1_000_000_000_000_000), Some(key.clone())),
        (Quirk::Boasting((5 << 30) + 1), None),
        (Quirk::Endless, None),
        (Quirk::Endless, Some(key)),
    ] {
        let store = store(quirk).sealed(key);
        let parts = [("superblock", None), ("segments/00000001/1", Some(0..4096))];
        let wholes = ["segments/00000001/2", "probes/1"].map(|key| (key, None));
        for (key, range) in parts.into_iter().chain(wholes) {
            let stored = store.perform(create(key, 8)).await;
            assert!(matches!(stored, End::Stored(_)), "{stored:?}");
            match store.perform(get(key, range.clone())).await {
                End::Failed(fault) => {
                    assert_eq!(fault.kind, FaultKind::Retry, "{quirk:?} {key}: {}", fault.cause);
                    assert!(fault.cause.contains("are the most"), "{key}: {}", fault.cause);
                }
                end => panic!("{quirk:?} {key} {range:?}: {end:?}"),
            }
        }
    }
}

/// Stores whose opening hangs, by URL, each until the other end of its channel says a word or goes.
static GATED: Mutex<BTreeMap<String, (Receiver<()>, Store)>> = Mutex::new(BTreeMap::new());

/// Has the opening of a store hang, once; what ends that.
pub(crate) fn gate(url: &str, store: Store) -> Sender<()> {
    let (open, opened) = channel();
    let mut gated = GATED.lock().expect("no test panics with it");
    gated.insert(url.to_owned(), (opened, store));
    open
}

/// The store of a gated URL, once it is opened.
pub(super) fn gated(url: &str) -> Option<Store> {
    let gate = GATED.lock().expect("no test panics with it").remove(url);
    let (opened, store) = gate?;
    let _ = opened.recv();
    Some(store)
}
