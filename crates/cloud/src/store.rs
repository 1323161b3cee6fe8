//! Object stores behind requests: S3 and what speaks like it, Azure, GCS, a folder.
//!
//! How: a place is a URL; credentials come from the environment, as each cloud's own tools read
//! them. A request is tried once within a time that grows with the bytes that it carries, either
//! way; repeating is the volume's. Where a store knows no conditions on puts, an object is looked
//! at right before it is put: two nodes that claim one volume within the same moment could both
//! believe that they have it, and a put that lingers on its way replaces whatever came since. In a
//! folder a lock covers both; see `hold`. A folder's calls may outlast their requests; see `calls`.
//! Invariant: an answer is given only for what the store said, and takes no more memory than what
//! was asked for may have, whatever the store says or sends; see `answers` and `pages`.
//! Cost: a task per request.

use crate::action::{Condition, End, Fault, FaultKind, Request, Tag};
use crate::codec::crc32c;
use crate::crypt::{self, Key};
use crate::removal::temporary_of;
use crate::superblock::SUPERBLOCK_KEY;
use crate::volume::ConditionalPuts;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use leftovers::{Place, is_replaced};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, PutResult, UpdateVersion,
};
use pages::Pages;
use place::Folder;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

mod answers;
mod calls;
mod clouds;
mod hold;
mod leftovers;
mod pages;
mod place;
mod profile;
#[cfg(test)]
pub(crate) mod tests;

const WRONG_KEY: &str = "it is not encrypted with this key, or damaged";
const PANICKED: &str = "the store's client broke off, as the log says; look at the environment";
/// Time of a request that carries nothing.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(20);
/// Slowest link that a request's time allows for, in bytes per second.
const LINK_BYTES_MIN: u64 = 32 << 10;

/// A volume's place in a store.
#[derive(Clone, Debug)]
pub struct Store {
    store: Arc<dyn ObjectStore>,
    /// Where the store names its objects in pages.
    pages: Option<Pages>,
    /// Where it is a folder.
    folder: Option<Folder>,
    prefix: Path,
    url: String,
    key: Option<Key>,
}

impl Store {
    /// The place that a URL names: `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`,
    /// `gs://BUCKET/PREFIX` or `file:///FOLDER`. Nothing is asked or made: a folder that is not
    /// there has no objects.
    ///
    /// # Errors
    /// A text that says what is wrong with the URL or the environment.
    pub fn open(url: &str) -> Result<Self, String> {
        let (place::Client { store, pages, folder }, prefix) = place::open(url)?;
        Ok(Store { store, pages, folder, prefix, url: url.to_owned(), key: None })
    }

    /// The same for a new volume: a folder is made, and a place that another volume's objects have
    /// is refused.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn create(url: &str) -> Result<Self, String> {
        place::prepare(url)?;
        Store::open(url)
    }

    /// How the store takes puts on a condition, where the environment says so: whoever says that
    /// it knows none accepts what that means.
    #[must_use]
    pub fn conditional_puts(&self) -> ConditionalPuts {
        match place::is_without_conditions(&self.url) {
            true => ConditionalPuts::Ignored,
            false => ConditionalPuts::Unknown,
        }
    }

    /// As it was given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it shares with others whose requests go the same way: the bucket, or else the folder.
    #[must_use]
    pub fn place(&self) -> &str {
        match self.url.split_once("://") {
            Some((scheme, rest)) if scheme != "file" => {
                let bucket = rest.split('/').next().unwrap_or_default();
                &self.url[..scheme.len() + "://".len() + bucket.len()]
            }
            _ => &self.url,
        }
    }

    /// The same place with a key: all objects are sealed, and none that is not is taken.
    #[must_use]
    pub fn sealed(self, key: Option<Key>) -> Self {
        Store { key, ..self }
    }

    /// Another place with the same key.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn beside(&self, url: &str) -> Result<Self, String> {
        #[cfg(test)]
        if let Some(store) = tests::gated(url) {
            return Ok(store);
        }
        Ok(Store::open(url)?.sealed(self.key.clone()))
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').fold(self.prefix.clone(), Path::join)
    }

    /// Performs a request once.
    pub async fn perform(&self, request: Request) -> End {
        // A client that panics must not leave a volume waiting for an end that never comes.
        match AssertUnwindSafe(self.ask(request)).catch_unwind().await {
            Ok(answer) => answer.unwrap_or_else(End::Failed),
            Err(_) => End::Failed(Fault { kind: FaultKind::Denied, cause: PANICKED.to_owned() }),
        }
    }

    /// Performs a request once, after a pause by the runtime's clock.
    pub async fn perform_after(&self, request: Request, pause: Duration) -> End {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        self.perform(request).await
    }

    /// Performs a request, up to `attempts_max` times at growing intervals where its fault may
    /// pass. For who has nothing else to do meanwhile: a volume repeats its requests itself.
    pub async fn insist(&self, request: Request, attempts_max: u32) -> End {
        self.repeat(request, |attempt| attempt < attempts_max).await
    }

    /// As [`Store::insist`], and asks again until `patience` has passed: a store that answers with
    /// a passing fault is asked again, and one that is silent is waited for no longer than once.
    pub async fn insist_for(&self, request: Request, patience: Duration) -> End {
        let begun = Instant::now();
        self.repeat(request, |_| begun.elapsed() < patience).await
    }

    async fn repeat(&self, request: Request, is_to_repeat: impl Fn(u32) -> bool) -> End {
        const REST_MIN: Duration = Duration::from_millis(200);
        const REST_MAX: Duration = Duration::from_secs(5);
        let mut rest = REST_MIN;
        let mut attempt = 1;
        loop {
            match self.perform(request.clone()).await {
                End::Failed(fault) if fault.kind == FaultKind::Retry && is_to_repeat(attempt) => {
                    // Nothing tells that the store answers again but asking it.
                    tokio::time::sleep(rest).await;
                    rest = REST_MAX.min(rest * 2);
                    attempt += 1;
                }
                end => return end,
            }
        }
    }

    async fn ask(&self, request: Request) -> Result<End, Fault> {
        match request {
            Request::Get { key, range } => {
                let (bytes, tag) = self.get(&key, range).await?;
                Ok(End::Bytes(bytes, tag))
            }
            Request::Put { key, bytes, condition } => {
                let time = time_of(bytes.len() as u64);
                let own = self.clone();
                let put = async move { own.put(&key, bytes, condition).await };
                self.within(Instant::now(), time, put).await
            }
            Request::Delete { key } => self.delete(vec![key]).await,
            Request::DeleteMany { keys } => self.delete(keys).await,
            Request::List { prefix } => self.list(&prefix).await.map(End::Keys),
        }
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<(Bytes, Option<Tag>), Fault> {
        let stored = match (&self.key, &range) {
            (Some(_), Some(range)) => Some(crypt::sealed_range(range)),
            _ => range.clone(),
        };
        let most = answers::bytes_max(key, stored.as_ref());
        let begun = Instant::now();
        let found = self.find(key, stored.as_ref(), begun).await?;
        let versions = (found.meta.e_tag.clone(), found.meta.version.clone());
        let total = found.meta.size;
        let length = found.range.end.saturating_sub(found.range.start);
        if length > most {
            let cause = format!("`{key}` has {length} bytes; {most} are the most that are read");
            return Err(Fault { kind: FaultKind::Retry, cause });
        }
        // The answer's head says how many bytes come, so that even an object of unknown size is
        // given up in time.
        let bytes = self.within(begun, time_of(length), answers::read(found, length)).await?;
        let Some(bytes) = bytes else {
            let cause = format!("`{key}` goes on; {length} bytes are the most by its own head");
            return Err(Fault { kind: FaultKind::Retry, cause });
        };
        let whole = stored.is_none().then_some(&bytes[..]);
        let tag = self.tag(versions, whole);
        let from = stored.map_or(0, |stored| stored.start);
        let Some(secret) = &self.key else {
            return match from == 0 && crypt::is_sealed(&bytes) {
                true => Err(refused(key, "it is encrypted, and no key is given")),
                false => Ok((bytes, Some(tag))),
            };
        };
        match secret.open(key, (&bytes, from), total, range.as_ref()) {
            Some(plain) => Ok((plain.into(), Some(tag))),
            // What everything begins with tells a wrong key from a damaged object.
            None if key == SUPERBLOCK_KEY => Err(refused(key, WRONG_KEY)),
            // Whoever asked for these finds nothing whole, as in any object that is damaged.
            None => Ok((Bytes::new(), Some(tag))),
        }
    }

    /// The head of an object's answer, which may be as long as the range that is asked for.
    async fn find(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        begun: Instant,
    ) -> Result<GetResult, Fault> {
        let path = self.path(key);
        // A folder's client has no type that says that a file ends before the range: the file is
        // opened as a whole, and read from there.
        let bounded = range.filter(|_| self.folder.is_none()).cloned().map(GetRange::Bounded);
        let mut options = GetOptions { range: bounded, ..GetOptions::default() };
        options.extensions.insert(answers::Streamed);
        let (store, is_range) = (Arc::clone(&self.store), range.is_some());
        let answer = async move {
            match store.get_opts(&path, options).await {
                Err(error) if is_range && answers::is_short(&error) => Ok(None),
                answer => answer.map(Some),
            }
        };
        let short = |length: Option<u64>| {
            let length = length.map_or(String::new(), |bytes| format!(" has {bytes} bytes and"));
            let from = range.map_or(0, |range| range.start);
            let cause = format!("`{key}`{length} ends before byte {from}");
            Fault { kind: FaultKind::Short, cause }
        };
        let found = self.within(begun, REQUEST_TIME, answer).await?;
        let mut found = found.ok_or_else(|| short(None))?;
        if let (Some(range), Some(_)) = (range, &self.folder) {
            let length = found.meta.size;
            if range.start >= length {
                return Err(short(Some(length)));
            }
            found.range = range.start..range.end.min(length);
        }
        Ok(found)
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<End, Error> {
        let path = self.path(key);
        let mode = match &condition {
            Condition::Create => PutMode::Create,
            Condition::Replace(tag) => PutMode::Update(version(tag)),
        };
        let bytes = match &self.key {
            Some(secret) => secret.seal(key, &bytes, random).into(),
            None => bytes,
        };
        let payload = PutPayload::from_bytes(bytes.clone());
        let put = self.store.put_opts(&path, payload, PutOptions::from(mode)).await;
        let stored = match put {
            Err(Error::NotImplemented { .. }) => {
                // Nothing cancels a task: what it holds stays held until the object is replaced.
                let (own, bytes) = (self.clone(), bytes.clone());
                let put = tokio::spawn(async move { own.replace(&path, bytes, condition).await });
                put.await.unwrap_or_else(|error| {
                    Err(Error::Generic { store: "folder", source: error.into() })
                })?
            }
            put => put?,
        };
        Ok(End::Stored(self.tag((stored.e_tag, stored.version), Some(&bytes))))
    }

    /// Puts an object where the store itself knows no conditions; see the file's header.
    async fn replace(
        &self,
        path: &Path,
        bytes: Bytes,
        condition: Condition,
    ) -> Result<PutResult, Error> {
        let Some(folder) = &self.folder else {
            self.check(path, &condition).await?;
            return self.store.put(path, PutPayload::from_bytes(bytes)).await;
        };
        let held = hold::hold(&folder.files, path).await?;
        let put = match self.check(path, &condition).await {
            Ok(()) => self.store.put(path, PutPayload::from_bytes(bytes)).await,
            Err(error) => Err(error),
        };
        // The object may have been removed while this one waited, with the lock's file.
        self.place_of(&folder.files, path)?.end(held).await?;
        put
    }

    /// An object's version as the store names it. A folder names one by number, time and size of a
    /// file, which two that follow each other within milliseconds may share: its checksum is added.
    fn tag(&self, (e_tag, version): (Option<String>, Option<String>), whole: Option<&[u8]>) -> Tag {
        let sum = whole.filter(|_| self.folder.is_some()).map(|bytes| crc32c(bytes).to_string());
        let version = sum.or(version).unwrap_or_default();
        Tag(format!("{}\n{version}", e_tag.unwrap_or_default()))
    }

    /// Whether a put's condition holds now, for stores without such conditions; see the file's
    /// header.
    async fn check(&self, path: &Path, condition: &Condition) -> Result<(), Error> {
        let found = match self.store.head(path).await {
            Err(Error::NotFound { .. }) => None,
            found => {
                let found = found?;
                // A folder's are small where they are replaced, and others name their versions.
                let is_read = self.folder.is_some() && matches!(condition, Condition::Replace(_));
                let bytes = match is_read {
                    true => Some(self.store.get(path).await?.bytes().await?),
                    false => None,
                };
                Some(self.tag((found.e_tag, found.version), bytes.as_deref()))
            }
        };
        let (path, source) = (path.to_string(), "it has changed".into());
        match condition {
            Condition::Create if found.is_some() => Err(Error::AlreadyExists { path, source }),
            Condition::Replace(tag) if found.as_ref() != Some(tag) => {
                Err(Error::Precondition { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes objects as the store does it best: S3 and Azure take many in one request, others
    /// several requests at once.
    async fn delete(&self, keys: Vec<String>) -> Result<End, Fault> {
        if let Some(folder) = &self.folder {
            return self.delete_all_in_folder(folder, keys).await;
        }
        let paths: Vec<_> = keys.iter().map(|key| Ok(self.path(key))).collect();
        let mut removed = self.store.delete_stream(stream::iter(paths).boxed());
        // Whatever the store takes at once is answered within a request's time.
        loop {
            match within(Instant::now(), REQUEST_TIME, removed.try_next()).await {
                Ok(None) => return Ok(End::Done),
                Err(fault) if fault.kind != FaultKind::NotFound => return Err(fault),
                _ => {}
            }
        }
    }

    /// Removes objects of a folder, each by a call of its own.
    async fn delete_all_in_folder(&self, folder: &Folder, keys: Vec<String>) -> Result<End, Fault> {
        /// Removals at a time.
        const REMOVALS_MAX: usize = 8;
        let is_own = |key: &String| temporary_of(key).is_some() || is_replaced(key);
        let (own, objects): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_own);
        for key in own {
            let (store, files) = (self.clone(), Arc::clone(&folder.files));
            let removed = async move { store.delete_in_folder(&files, &key).await };
            self.within(Instant::now(), REQUEST_TIME, removed).await?;
        }
        let removals = objects.into_iter().map(|key| {
            let (store, path) = (Arc::clone(&self.store), self.path(&key));
            let removed = async move { store.delete(&path).await };
            self.within(Instant::now(), REQUEST_TIME, removed)
        });
        let mut removals = stream::iter(removals).buffered(REMOVALS_MAX);
        while let Some(removed) = removals.next().await {
            match removed {
                Err(fault) if fault.kind != FaultKind::NotFound => return Err(fault),
                _ => {}
            }
        }
        Ok(End::Done)
    }

    /// Removes what the folder's client does not remove, or not safely.
    async fn delete_in_folder(
        &self,
        folder: &Arc<LocalFileSystem>,
        key: &str,
    ) -> Result<(), Error> {
        let (of, number) = match temporary_of(key) {
            Some((of, number)) => (of, Some(number)),
            None => (key, None),
        };
        let path = self.path(of);
        let held = match is_replaced(of) {
            true => Some(hold::hold(folder, &path).await?),
            false => None,
        };
        self.place_of(folder, &path)?.remove(number, held).await
    }

    fn place_of(&self, folder: &LocalFileSystem, path: &Path) -> Result<Place, Error> {
        Place::new((folder, &self.url), &self.path(SUPERBLOCK_KEY), path)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, Fault> {
        /// Names that a folder is asked for in one call.
        const LISTED_AT_ONCE: usize = 1000;
        let mut keys = pages::Keys::new(self.prefix.to_string(), prefix);
        if let Some(pages) = &self.pages {
            return pages.read(keys).await;
        }
        let mut objects = self.store.list(Some(&self.prefix)).ready_chunks(LISTED_AT_ONCE);
        loop {
            let next = async move { Ok((objects.next().await, objects)) };
            let (found, rest) = self.within(Instant::now(), REQUEST_TIME, next).await?;
            let Some(found) = found else { break };
            for object in found {
                keys.add(object.map_err(|error| fault(&error))?.location.as_ref())?;
            }
            objects = rest;
        }
        if let Some(folder) = &self.folder {
            let (files, superblock) = (Arc::clone(&folder.files), self.path(SUPERBLOCK_KEY));
            let found = async move { leftovers::keys(&files, &superblock).await };
            for key in self.within(Instant::now(), REQUEST_TIME, found).await? {
                keys.add(&format!("{}/{key}", self.prefix))?;
            }
        }
        Ok(keys.into_found())
    }

    /// Waits for an answer of the store, until so long after the beginning. A folder's call goes on
    /// behind that, and counts until it has ended; see `calls`.
    async fn within<T: Send + 'static>(
        &self,
        begun: Instant,
        time: Duration,
        answer: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Fault> {
        match &self.folder {
            Some(folder) => folder.calls.within(begun, time, answer).await,
            None => within(begun, time, answer).await,
        }
    }
}

/// Waits for an answer of the store, until so long after the beginning.
async fn within<T>(
    begun: Instant,
    time: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Fault> {
    let answer = tokio::time::timeout_at(begun + time, answer).await;
    answer.map_err(|_| late(time))?.map_err(|error| fault(&error))
}

fn late(time: Duration) -> Fault {
    let cause = format!("no answer within {} s", time.as_secs());
    Fault { kind: FaultKind::Retry, cause }
}

/// Time of a request that carries so many bytes.
fn time_of(bytes: u64) -> Duration {
    REQUEST_TIME + Duration::from_millis(bytes.saturating_mul(1000) / LINK_BYTES_MIN)
}

/// An object that must not be taken for what it seems.
fn refused(key: &str, cause: &'static str) -> Fault {
    Fault { kind: FaultKind::Denied, cause: format!("`{key}`: {cause}") }
}

/// Bytes that nobody can foresee and that never repeat.
fn random(bytes: &mut [u8]) {
    let drawn = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
    assert!(drawn == Ok(bytes.len()), "the system gives random bytes once it is up");
}

fn version(tag: &Tag) -> UpdateVersion {
    let (e_tag, version) = tag.0.split_once('\n').unwrap_or((&tag.0, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    UpdateVersion { e_tag: some(e_tag), version: some(version) }
}

fn fault(error: &Error) -> Fault {
    let kind = match error {
        Error::NotFound { .. } => FaultKind::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } => FaultKind::Condition,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => FaultKind::Denied,
        _ => FaultKind::Retry,
    };
    // What the object is called the reader sees elsewhere, and what kind of fault it is, too.
    match error {
        Error::PermissionDenied { source, .. } | Error::Unauthenticated { source, .. } => {
            Fault { kind, cause: one_line(source.as_ref()) }
        }
        Error::NotFound { .. } if names_no_bucket(&one_line(error)) => Fault {
            kind: FaultKind::Denied,
            cause: format!("there is no such bucket: {}", one_line(error)),
        },
        _ => Fault { kind, cause: one_line(error) },
    }
}

/// Whether a store says that the bucket is not there, and not just the object: the one is a mistake
/// or a loss, the other may be as it should be.
fn names_no_bucket(text: &str) -> bool {
    // S3, Azure, GCS.
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"]
        .iter()
        .any(|words| text.contains(words))
}

/// An error with its causes, without line breaks and not endlessly long.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    shortened(&text)
}

/// A store's words on one line: of an answer in XML its code and message, cut between words.
fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 300;
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0)
    };
    let before = text.find("<?xml").or_else(|| text.find("<Error>")).map(|at| &text[..at]);
    let text = match (before, element("Code"), element("Message")) {
        (Some(before), Some(code), Some(message)) => format!("{before}{code}: {message}"),
        _ => text.to_owned(),
    };
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.len() + word.len() >= CHARACTERS_MAX && !line.is_empty() {
            return line + " …";
        }
        line.extend((!line.is_empty()).then_some(' '));
        line.extend(word.chars().take(CHARACTERS_MAX));
    }
    line
}
