//! A volume from its store alone, without a node.
//!
//! How: [`layby_cloud::Restored`] finds what the store has; it is written into a new sparse file,
//! or only verified.
//! Invariant: a file that exists is never written over; one that is not whole keeps another name.
//! Cost: the volume's live bytes, fetched once.
//! Not for: the newest of a volume that a node serves: that may be in the node's journal. Where the
//! node deletes meanwhile what was to be read, what has changed is read anew, some times. What the
//! node puts meanwhile is left out: the answer names the superblock that was read.

use crate::config::KeySource;
use crate::error::{Report, ReportKind};
use crate::image::{Image, ImageWords};
use layby_cloud::{
    Deleted, End, Fault, FaultKind, Fetch, Request, RestoreError, Restored, Store, split_key,
};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a request is tried before a restore gives up: for two minutes of a store that
/// throttles or is away, since what was read before would be read again.
const ATTEMPTS_MAX: u32 = 30;
/// The same until the store has answered once: an address or credentials are wrong, most likely,
/// and who waits should hear so within two seconds of such answers.
const ATTEMPTS_FIRST_MAX: u32 = 4;
/// How often it is said that a store is silent.
const SILENCE: Duration = Duration::from_secs(5);

const IMAGE: ImageWords = ImageWords {
    error: "cannot restore into",
    state: "the store was only read, and no file was made",
};

/// What a restore found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RestoreAnswer {
    /// The volume, in hexadecimal.
    pub volume: String,
    /// Its name at its node.
    pub name: String,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// The node that served it last, in hexadecimal.
    pub node: String,
    /// The snapshot that was read; none where it was the volume itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The volume was deleted, and when its objects go, by its node's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<Deleted>,
    /// The session whose superblock was read; of a snapshot: the superblock that named it.
    #[serde(default)]
    pub epoch: u32,
    /// Which change of that superblock it was: what is restored is not older, unless it is a
    /// snapshot.
    #[serde(default)]
    pub revision: u64,
    /// The last segment of the volume's history that is whole in the store, or the snapshot's.
    pub segment: u64,
    /// Bytes of blocks that hold data and were found whole.
    pub bytes: u64,
    /// Bytes fetched.
    pub bytes_fetched: u64,
    /// Requests to the store.
    pub requests: u64,
    /// Objects that were read.
    #[serde(default)]
    pub objects: u64,
    /// Checksums of data that were compared and agreed.
    #[serde(default)]
    pub checksums: u64,
    /// Ranges of the volume that are damaged, and the object that held each.
    pub damaged: Vec<DamagedRange>,
    /// The file that has all but these, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PathBuf>,
}

/// A part of a volume that the store does not have whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DamagedRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The object that held it.
    pub object: String,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The volume's place.
    pub url: &'a str,
    /// Where its key comes from, where it is encrypted.
    pub key: Option<&'a KeySource>,
    /// A snapshot of it; the volume itself without.
    pub snapshot: Option<&'a str>,
    /// Read it though it was deleted.
    pub deleted: bool,
}

impl Source<'_> {
    fn open(&self) -> Result<Store, String> {
        let key = self.key.map(KeySource::read).transpose()?;
        Ok(Store::open(self.url)?.sealed(key))
    }
}

/// A store, and those of a volume's bases behind it.
fn with_bases(own: Store, restored: &Restored) -> Result<Vec<Store>, String> {
    let bases: Result<Vec<Store>, String> =
        restored.bases().iter().map(|base| own.beside(&base.url)).collect();
    Ok(std::iter::once(own).chain(bases?).collect())
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Bytes of data that were read, of so many.
    Read {
        /// Those read.
        bytes: u64,
        /// All.
        total: u64,
    },
    /// The store has not answered a request for so long; it is asked on.
    Waiting(Duration),
}

/// Reads a volume, or a snapshot of it, into `file`, which must not exist, or only to verify it.
/// `progress` hears how far it is, also where the store is silent.
///
/// # Errors
/// A report when there is no volume, the store fails, or the file cannot be written.
pub fn restore(
    source: Source<'_>,
    file: Option<&Path>,
    progress: &mut dyn FnMut(Progress),
) -> Result<RestoreAnswer, Report> {
    let progress = RefCell::new(progress);
    let tell = |what| progress.borrow_mut()(what);
    let url = source.url;
    let error = format!("cannot restore the volume at `{url}`");
    let store = source.open().map_err(|cause| unreadable(url, &error, cause))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| Report::from_io(error.as_str(), &cause))?;
    let asked = Asked::default();
    let stores = RefCell::new(vec![store]);
    let mut get = |key: &str, range: Option<Range<u64>>| {
        let attempts_max = asked.begin(key);
        let (base, key) = split_key(key);
        let at = base.map_or(0, |base| base + 1);
        let request = Request::Get { key: key.to_owned(), range };
        let stores = stores.borrow();
        let fetched = fetch(&stores[at], request, attempts_max, &tell);
        let fetched = runtime.block_on(fetched);
        asked.end(fetched)
    };
    let (target, total, done) = (RefCell::new(None), Cell::new(0), Cell::new(0));
    let unwritten = Cell::new(ReportKind::Failure);
    let mut begin = |restored: &Restored, kept: u64| -> Result<(), Ended> {
        let opened = with_bases(stores.borrow()[0].clone(), restored);
        stores.replace(opened.map_err(|cause| unreadable(url, &error, cause))?);
        total.set(restored.live_bytes());
        done.set(kept);
        Ok(prepare(&mut target.borrow_mut(), file, restored.size_bytes(), kept)?)
    };
    let mut sink = |offset: u64, bytes: &[u8]| {
        done.set(done.get() + bytes.len() as u64);
        tell(Progress::Read { bytes: done.get(), total: total.get() });
        write(target.borrow().as_ref(), (offset, bytes), &unwritten)
    };
    let what = (source.snapshot, source.deleted);
    let read = Restored::read(&mut get, what, &mut begin, &mut sink);
    let (restored, pass) = read.map_err(|ended| ended.report(&error, unwritten.get()))?;
    let partial = match target.take() {
        Some(target) => target.finish(pass.damaged.is_empty())?,
        None => None,
    };
    let (size_bytes, segment) = (restored.size_bytes(), restored.number());
    let block = restored.superblock;
    Ok(RestoreAnswer {
        volume: block.volume,
        name: block.name,
        size_bytes,
        node: block.node,
        snapshot: restored.snapshot.map(|snapshot| snapshot.name),
        deleted: block.deleted,
        epoch: block.epoch,
        revision: block.revision,
        segment,
        bytes: pass.bytes,
        bytes_fetched: pass.fetched,
        requests: asked.requests.get(),
        objects: asked.objects.borrow().len() as u64,
        checksums: pass.checksums,
        damaged: pass.damaged.into_iter().map(damaged).collect(),
        partial,
    })
}

/// Reads of a volume's place in its store what `read` fetches there.
///
/// # Errors
/// Why it could not be read, as text.
pub(crate) fn read_store<T>(
    source: Source<'_>,
    read: &mut dyn FnMut(Fetch<'_>) -> Result<T, RestoreError>,
) -> Result<T, String> {
    let store = source.open()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| cause.to_string())?;
    let asked = Asked::default();
    let mut get = |key: &str, range: Option<Range<u64>>| {
        let request = Request::Get { key: key.to_owned(), range };
        let fetched = fetch(&store, request, asked.begin(key), &|_| ());
        let fetched = runtime.block_on(fetched);
        asked.end(fetched)
    };
    read(&mut get).map_err(|error| error.to_string())
}

/// Makes the file ready for a volume of so many bytes, of which it has `kept` already.
fn prepare(
    target: &mut Option<Image>,
    file: Option<&Path>,
    size: u64,
    kept: u64,
) -> Result<(), Report> {
    match (file, &*target) {
        (Some(path), None) => *target = Some(Image::begin(path, size, &IMAGE)?),
        (_, Some(begun)) if kept == 0 => begun.begin_anew(size)?,
        _ => {}
    }
    Ok(())
}

/// Writes what was read, where it is wanted; `unwritten` keeps of which kind a failure was.
fn write(
    image: Option<&Image>,
    (offset, bytes): (u64, &[u8]),
    unwritten: &Cell<ReportKind>,
) -> Result<(), String> {
    let written = image.map_or(Ok(()), |image| image.write(offset, bytes));
    written.map_err(|cause| {
        unwritten.set(ReportKind::from(&cause));
        cause.to_string()
    })
}

/// What was asked of stores so far.
#[derive(Default)]
struct Asked {
    requests: Cell<u64>,
    objects: RefCell<BTreeSet<String>>,
    has_answered: Cell<bool>,
}

impl Asked {
    /// Counts a request; how often it may be tried.
    fn begin(&self, key: &str) -> u32 {
        self.requests.set(self.requests.get() + 1);
        self.objects.borrow_mut().insert(key.to_owned());
        if self.has_answered.get() { ATTEMPTS_MAX } else { ATTEMPTS_FIRST_MAX }
    }

    /// Notes whether the store has answered.
    fn end<T>(&self, fetched: Result<T, Fault>) -> Result<T, Fault> {
        self.has_answered.set(self.has_answered.get() || fetched.is_ok());
        fetched
    }
}

/// How a restore ended early.
enum Ended {
    Report(Report),
    Cause(RestoreError),
}

impl Ended {
    fn report(self, error: &str, unwritten: ReportKind) -> Report {
        match self {
            Ended::Report(report) => report,
            Ended::Cause(cause @ RestoreError::Sink(_)) => {
                Report { kind: unwritten, ..refusal(error, &cause) }
            }
            Ended::Cause(cause) => refusal(error, &cause),
        }
    }
}

impl From<Report> for Ended {
    fn from(report: Report) -> Self {
        Ended::Report(report)
    }
}

impl From<RestoreError> for Ended {
    fn from(cause: RestoreError) -> Self {
        Ended::Cause(cause)
    }
}

fn unreadable(url: &str, error: &str, cause: String) -> Report {
    let hint = match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("file") => "write it as file:///FOLDER",
        Some("az") => {
            "credentials come from the environment: AZURE_STORAGE_ACCOUNT_NAME and \
             AZURE_STORAGE_ACCOUNT_KEY"
        }
        Some("gs") => "credentials come from the environment: GOOGLE_APPLICATION_CREDENTIALS",
        Some("s3") => {
            "credentials come from the environment, such as AWS_ACCESS_KEY_ID, or a profile"
        }
        _ => "name a volume's place in a store, such as s3://bucket/maps",
    };
    Report::new(ReportKind::Invalid, error).cause(cause).state("nothing was written").hint(hint)
}

fn damaged((range, object): (Range<u64>, String)) -> DamagedRange {
    DamagedRange { offset: range.start, length: range.end - range.start, object }
}

/// Insists on a read; `tell` hears now and then that the store is silent.
async fn fetch(
    store: &Store,
    get: Request,
    attempts_max: u32,
    tell: &dyn Fn(Progress),
) -> Result<bytes::Bytes, Fault> {
    let mut silences = 0;
    let mut end = std::pin::pin!(store.insist(get, attempts_max));
    let end = loop {
        match tokio::time::timeout(SILENCE, end.as_mut()).await {
            Ok(end) => break end,
            Err(_) => {
                silences += 1;
                tell(Progress::Waiting(SILENCE * silences));
            }
        }
    };
    match end {
        End::Bytes(bytes, _) => Ok(bytes),
        End::Failed(Fault { kind: FaultKind::Retry, cause }) => {
            let cause = format!("after {attempts_max} attempts: {cause}");
            Err(Fault { kind: FaultKind::Retry, cause })
        }
        End::Failed(fault) => Err(fault),
        end => unreachable!("a get ends with bytes or a fault: {end:?}"),
    }
}

fn refusal(error: &str, cause: &RestoreError) -> Report {
    let (kind, hint) = match cause {
        RestoreError::Absent => (ReportKind::NotFound, "look at the URL and its prefix"),
        RestoreError::NoSnapshot(..) => {
            (ReportKind::NotFound, "name one of them, or leave --snapshot out")
        }
        RestoreError::Deleted(deleted) if deleted.has_begun() => {
            (ReportKind::NotFound, "--deleted reads what is left of it, and names what is not")
        }
        RestoreError::Deleted(_) => (
            ReportKind::InUse,
            "--deleted reads it all the same; `layby volume undelete` at its node brings it back",
        ),
        RestoreError::Store(fault) if fault.kind == FaultKind::Denied => {
            (ReportKind::Denied, "credentials come from the environment, a key by --key")
        }
        RestoreError::Store(_) => (
            ReportKind::Unreachable,
            "look at the address and the credentials, or repeat it when the store answers",
        ),
        RestoreError::Damaged(_) => {
            (ReportKind::Corrupt, "put the object back from a copy or an older version of it")
        }
        RestoreError::Earlier(_) => {
            (ReportKind::Corrupt, "restore it with the build of Layby that wrote it")
        }
        RestoreError::Changing => (
            ReportKind::InUse,
            "restore a snapshot of it (`layby volume snapshot` at its node, then --snapshot), or \
             stop what writes it",
        ),
        RestoreError::Sink(_) => (ReportKind::Failure, "make room where the file goes"),
    };
    Report::new(kind, error)
        .cause(cause.to_string())
        .state("the store was only read, and no file was made")
        .hint(hint)
}
