//! A volume on a thread of its own: its journal and map file are files, its store is real.
//!
//! How: calls and ends of actions come through one channel. Journal writes and reads are done by
//! the thread itself, in order; what must be durable goes to a second thread (`local`); requests to
//! the store are tasks on the daemon's runtime, and so is what encodes the map for it. Ends of
//! calls go into a queue, and whoever polls is woken. Now and then the store is asked whose the
//! volume is.
//! Invariant: the map file is replaced by a rename after a sync, so that one of both is whole.
//! Cost: two threads per volume, idle while it is, and a request per ten seconds.
//! Not for: decisions; see `volume`.

use crate::action::{Action, ActionId, End, Fault, FaultKind, Request};
use crate::bases::{BaseStore, Bases};
use crate::clone::split_key;
use crate::ending::{EndMark, Ending};
use crate::hedge::Hedge;
use crate::journal::{JOURNAL_BYTES_MIN, PAGE_BYTES, is_batch};
use crate::local::{
    Claim, Durables, Told, allocate, failed, open_to_read, overwrite_in_place, read_at, read_map,
    replace, unnamed, unshare,
};
use crate::map::MapImage;
use crate::meta::is_earlier;
use crate::segment::Compression;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::turn_times::{SLEEP_MAX, TurnTimes};
use crate::uplink::Lane;
use crate::volume::{
    ConditionalPuts, Limits, OpenError, Opened, Plan, Status, Volume, create, volume_of,
};
use crate::watch::{Order, Said, SnapshotAnswer, Watch};
use layby_types::{Backing, BackingDone, BackingOperation, ErrorKind, Nanos};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{DerefMut, Range};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// Where a node keeps what it needs of a cloud-backed volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The journal: a file or a block device.
    pub journal: PathBuf,
    /// The map file; its folder takes a second one for a moment.
    pub map: PathBuf,
}

/// Why a volume cannot be opened.
#[derive(Debug)]
pub enum HostError {
    /// A file, and what the system said.
    File(PathBuf, io::Error),
    /// A backing store of this process has the journal open, and writes to it.
    InUse(PathBuf),
    /// The journal is to be smaller than its smallest size, in bytes.
    JournalTooSmall(u64),
    /// There is a journal with batches and no map that says which of them the store lacks.
    MapMissing(Paths),
    /// What the files say.
    Open(OpenError),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::File(path, error) => write!(f, "`{}`: {error}", path.display()),
            HostError::InUse(path) => write!(f, "this node has `{}` open already", path.display()),
            HostError::JournalTooSmall(bytes) => write!(
                f,
                "a journal of {bytes} bytes is too small; the least is {JOURNAL_BYTES_MIN} bytes"
            ),
            HostError::MapMissing(paths) => write!(
                f,
                "`{}` is missing, and `{}` holds writes that the store may lack",
                paths.map.display(),
                paths.journal.display()
            ),
            HostError::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HostError {}

/// Bytes of its file system that the read cache does not take.
const CACHE_LEAVES_BYTES: u64 = 1 << 30;
/// Offers of what is at hand that the shard has not heard of, at most.
const OFFERS_MAX: usize = 1024;

enum Event<B> {
    Call(u64, BackingOperation<B>),
    End(ActionId, End),
    Local(Told),
    Order(Order, u64),
    Stop,
}

/// The home of one volume; see the file's header.
pub struct CloudBacking<B> {
    events: Sender<Event<B>>,
    done: Receiver<BackingDone<B>>,
    at_hand: Receiver<Range<u64>>,
    name: String,
    watch: Watch,
    /// Another node has the volume.
    is_taken: Arc<AtomicBool>,
    /// See [`Opened::damaged`].
    damaged: Vec<(u64, u64)>,
    thread: Option<JoinHandle<()>>,
    /// Goes last, behind the thread.
    end: EndMark,
}

/// What a look at a volume's files found.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// What can be said of its safety.
    pub status: Status,
    /// See [`Opened::damaged`].
    pub damaged: Vec<(u64, u64)>,
}

/// Makes what the node keeps of a volume, unless it is there.
///
/// # Errors
/// [`HostError`] where a file cannot be made; what was made stays and is used the next time.
pub fn prepare(
    plan: &Plan,
    paths: &Paths,
    journal_bytes: u64,
    instance: u64,
) -> Result<(), HostError> {
    if journal_bytes < JOURNAL_BYTES_MIN {
        return Err(HostError::JournalTooSmall(journal_bytes));
    }
    // One that cannot be looked at is there: a new one would take its place.
    match paths.map.try_exists() {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => return Err(HostError::File(paths.map.clone(), error)),
    }
    let (map, page) = create(plan, journal_bytes, instance);
    let mut options = OpenOptions::new();
    let journal = options.read(true).write(true).create(true).truncate(false).open(&paths.journal);
    let journal = journal.map_err(|error| HostError::File(paths.journal.clone(), error))?;
    let is_new = journal.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
    let prepared = prepare_files(&journal, paths, journal_bytes, (&map, &page));
    if prepared.is_err() && is_new {
        // Its room is not kept from others.
        let _ = std::fs::remove_file(&paths.journal);
    }
    prepared
}

fn prepare_files(
    journal: &File,
    paths: &Paths,
    journal_bytes: u64,
    (map, page): (&[u8], &[u8]),
) -> Result<(), HostError> {
    let failed = |error| HostError::File(paths.journal.clone(), error);
    let metadata = journal.metadata().map_err(failed)?;
    if metadata.is_file() {
        if metadata.len() == 0 {
            overwrite_in_place(journal);
        }
        if metadata.len() < journal_bytes {
            journal.set_len(journal_bytes).map_err(failed)?;
        }
        allocate(journal, journal_bytes).map_err(failed)?;
    }
    if is_used(journal).map_err(failed)? {
        return Err(HostError::MapMissing(paths.clone()));
    }
    journal.write_all_at(page, 0).map_err(failed)?;
    journal.sync_all().map_err(failed)?;
    replace(&paths.map, map).map_err(|error| HostError::File(paths.map.clone(), error))
}

/// Whether [`prepare`] would begin anew: no map is there, and no journal that was ever written to.
#[must_use]
pub fn is_unmade(paths: &Paths) -> bool {
    let is_absent = |cause: &io::Error| cause.kind() == io::ErrorKind::NotFound;
    paths.map.try_exists().is_ok_and(|is_there| !is_there)
        && match open_to_read(&paths.journal) {
            Ok(journal) => is_used(&journal).is_ok_and(|is_used| !is_used),
            Err(cause) => is_absent(&cause),
        }
}

/// Looks at what a node keeps of a volume that it does not serve, and writes nothing: how much the
/// journal holds that the map does not know in the store, and what the map does.
///
/// # Errors
/// [`HostError`] where a file is missing, damaged or another volume's.
pub fn inspect(paths: &Paths, block_bytes: u32) -> Result<Inspected, HostError> {
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |error| HostError::File(path, error)
    };
    let map = read_map(&paths.map).map_err(failed(&paths.map))?;
    let journal = open_to_read(&paths.journal).map_err(failed(&paths.journal))?;
    let error = if is_earlier(&map) { OpenError::MapEarlier } else { OpenError::MapDamaged(0) };
    let volume = volume_of(&map).ok_or(HostError::Open(error))?;
    let plan = Plan {
        volume,
        name: String::new(),
        node: volume,
        size_bytes: 0,
        block_bytes,
        compression: Compression::None,
        takeover: false,
        was_found: false,
        puts: ConditionalPuts::Unknown,
        needs_conditions: true,
        limits: Limits::DEFAULT,
    };
    let mut read = |at, length| read_at(&journal, at, length).map_err(|error| error.to_string());
    let opened = Volume::<Vec<u8>>::open(plan, &map, wall_clock(), 0, &mut read);
    let Opened { volume, damaged, .. } = opened.map_err(HostError::Open)?;
    Ok(Inspected { status: volume.status(), damaged })
}

/// Opens a journal to be written, by nothing else of this process.
fn open_journal(path: &Path) -> Result<(Arc<File>, Claim), HostError> {
    let failed = |error| HostError::File(path.to_owned(), error);
    let journal = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    let journal = Arc::new(journal);
    let claim = Claim::of(journal.clone()).map_err(failed)?;
    let claim = claim.ok_or_else(|| HostError::InUse(path.to_owned()))?;
    settle(&journal).map_err(failed)?;
    Ok((journal, claim))
}

/// Has a journal its room, and what it shows durable.
fn settle(journal: &File) -> io::Result<()> {
    let metadata = journal.metadata()?;
    if metadata.is_file() {
        // An earlier version, or a copy, reserved none: without, the volume is served all the same.
        let _ = allocate(journal, metadata.len());
        unshare(journal, metadata.len());
    }
    // After a kill the system may hold what its device does not: what is shown is durable.
    journal.sync_data()
}

/// Whether anything was ever written behind the journal's first page.
fn is_used(journal: &File) -> io::Result<bool> {
    let mut page = [0; 8];
    match journal.read_exact_at(&mut page, PAGE_BYTES) {
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| is_batch(&page)),
    }
}

/// Since 1970, as far as this machine knows; zero where it believes to be before that.
#[expect(clippy::disallowed_methods, reason = "a host's clock; the volume has none")]
fn wall_clock() -> Nanos {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

impl<B: DerefMut<Target = [u8]> + Send + 'static> CloudBacking<B> {
    /// Opens a volume from its files and starts its threads. `wake` is called when calls have
    /// ended.
    ///
    /// # Errors
    /// [`HostError`] where a file is missing, damaged or another volume's, or a backing store of
    /// this process has the journal open; nothing was changed.
    pub fn open(
        plan: Plan,
        paths: &Paths,
        store: Store,
        lane: Lane,
        runtime: tokio::runtime::Handle,
        seed: u64,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Self, HostError> {
        let failed = |path: &PathBuf| {
            let path = path.clone();
            move |error| HostError::File(path, error)
        };
        let (journal, claim) = open_journal(&paths.journal)?;
        let map = read_map(&paths.map).map_err(failed(&paths.map))?;
        let mut read =
            |at, length| read_at(&journal, at, length).map_err(|error| error.to_string());
        let name = format!("{} ({})", plan.name, store.url());
        let now = wall_clock();
        let Opened { volume, map_file, damaged } =
            Volume::open(plan, &map, now, seed, &mut read).map_err(HostError::Open)?;
        replace(&paths.map, &map_file).map_err(failed(&paths.map))?;
        let cache = unnamed(&paths.map.with_extension("cache")).map_err(failed(&paths.map))?;
        let (events, inbox) = channel();
        let (outbox, done) = channel();
        let (offers, at_hand) = sync_channel(OFFERS_MAX);
        let (said, watch) = watch_of(events.clone());
        let heard = events.clone();
        let tell = move |told| heard.send(Event::Local(told)).is_ok();
        let durable = Durables::start(journal.clone(), &paths.map, tell);
        let Durables { sender: durable, thread: syncing } = durable.map_err(failed(&paths.map))?;
        let is_taken = Arc::new(AtomicBool::new(volume.is_taken()));
        let host = Host {
            is_taken: is_taken.clone(),
            volume,
            journal,
            cache,
            cache_bytes: 0,
            store,
            lane,
            runtime,
            now,
            durable,
            events: events.clone(),
            outbox,
            offers,
            said,
            heard: 0,
            drains: 0,
            map_fault: None,
            hedge: Arc::new(Hedge::default()),
            bases: Bases::default(),
            answers: BTreeMap::new(),
            wake: Box::new(wake),
        };
        let thread = std::thread::Builder::new().name("cloud".to_owned());
        let body = move || {
            host.run(&inbox);
            // Who drops a home may remove its files, or open it anew: nothing is replaced later.
            let _ = syncing.join();
        };
        let thread = thread.spawn(body).map_err(failed(&paths.journal))?;
        let (thread, end) = (Some(thread), EndMark::new(claim));
        Ok(CloudBacking { events, done, at_hand, name, watch, is_taken, damaged, thread, end })
    }

    /// Bytes of the volume that were damaged in its journal when it was opened: a first byte and a
    /// length each.
    #[must_use]
    pub fn damaged(&self) -> &[(u64, u64)] {
        &self.damaged
    }

    /// See [`Watch`].
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// The way to wait for its end, once it is dropped.
    #[must_use]
    pub fn ending(&self) -> Ending {
        self.end.ending()
    }
}

impl<B> Backing<B> for CloudBacking<B> {
    fn submit(&mut self, token: u64, operation: BackingOperation<B>) {
        let sent = self.events.send(Event::Call(token, operation));
        sent.expect("the volume's thread lasts as long as its backing");
    }

    fn poll(&mut self) -> Option<BackingDone<B>> {
        self.done.try_recv().ok()
    }

    fn poll_at_hand(&mut self) -> Option<Range<u64>> {
        self.at_hand.try_recv().ok()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn resize(&mut self, length: u64) -> Result<(), ErrorKind> {
        self.watch.order(Order::Resize(length));
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }

    fn stop_waiting(&mut self) {
        self.watch.order(Order::StopWaiting);
    }

    fn give_up_reads(&mut self, from: u64) {
        self.watch.order(Order::GiveUpReads(from));
    }
}

impl<B> Drop for CloudBacking<B> {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// What a volume says comes out of a [`Watch`], which passes orders to it.
fn watch_of<B: Send + 'static>(events: Sender<Event<B>>) -> (watch::Sender<Option<Said>>, Watch) {
    let inlet = Mutex::new(events);
    Watch::new(move |order, number| {
        let inlet = inlet.lock().unwrap_or_else(PoisonError::into_inner);
        // A volume that has ended hears no orders, and needs none.
        let _ = inlet.send(Event::Order(order, number));
    })
}

struct Host<B> {
    /// Said before the call ends that found it out.
    is_taken: Arc<AtomicBool>,
    volume: Volume<B>,
    journal: Arc<File>,
    /// The read cache, and how long it has become.
    cache: File,
    cache_bytes: u64,
    store: Store,
    lane: Lane,
    runtime: tokio::runtime::Handle,
    /// The volume's clock at the last turn.
    now: Nanos,
    durable: Sender<(ActionId, Action)>,
    events: Sender<Event<B>>,
    outbox: Sender<BackingDone<B>>,
    /// What came along with reads.
    offers: SyncSender<Range<u64>>,
    said: watch::Sender<Option<Said>>,
    heard: u64,
    /// Drains that have not ended.
    drains: u32,
    /// Why changes of the map file wait.
    map_fault: Option<String>,
    hedge: Arc<Hedge>,
    bases: Bases,
    /// Who waits for changes of snapshots, by the number of their order.
    answers: BTreeMap<u64, SnapshotAnswer>,
    wake: Box<dyn Fn() + Send>,
}

impl<B: DerefMut<Target = [u8]> + Send + 'static> Host<B> {
    #[expect(clippy::disallowed_methods, reason = "a host's clock; the volume has none")]
    fn run(mut self, inbox: &Receiver<Event<B>>) {
        /// Events taken before ends are handed out.
        const EVENTS_MAX: usize = 64;
        /// How often it is asked whose the volume is: so long may a node whose volume another one
        /// has taken serve what it has, where nobody writes and the link is up.
        const LOOK_REST: Duration = Duration::from_secs(10);
        // The wall's clock is asked once: it may be set, and the volume's must not go back.
        let (start, opened_at) = (Instant::now(), self.now);
        let clock = move || {
            let elapsed = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            opened_at.saturating_add(Nanos(elapsed))
        };
        let (mut said, mut state, mut looked) = (None, (false, false), start);
        let mut times = TurnTimes::new();
        loop {
            self.go_on(clock(), &mut times);
            let now = self.now;
            self.volume.on_tick(now);
            if looked.elapsed() >= LOOK_REST {
                looked = Instant::now();
                self.volume.look();
            }
            self.withdraw();
            self.act();
            self.is_taken.store(self.volume.is_taken(), Ordering::Relaxed);
            self.hand_out();
            let now_state = (self.volume.is_lost(), self.volume.is_drained());
            if std::mem::replace(&mut state, now_state) != now_state {
                said = None;
                self.stop_uploads();
            }
            if said.is_none_or(|at: Instant| at.elapsed() >= Duration::from_nanos(SLEEP_MAX.0 / 2))
            {
                said = Some(Instant::now());
                self.say();
            }
            let (deadline, pause_min) = (self.volume.next_deadline(), self.volume.pause_min());
            let first = match inbox.recv_timeout(times.wait_max(clock(), deadline, pause_min)) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // What happened while the thread slept did not happen before.
            self.go_on(clock(), &mut times);
            let more = inbox.try_iter().take(EVENTS_MAX);
            for event in std::iter::once(first).chain(more) {
                match event {
                    Event::Call(token, operation) => self.volume.submit(token, operation),
                    Event::End(id, end) | Event::Local(Told::End(id, end)) => {
                        self.volume.on_end(id, end);
                    }
                    Event::Local(Told::MapFault(fault)) => self.map_fault = fault,
                    Event::Order(order, number) => {
                        self.heed(order, number);
                        said = None;
                    }
                    Event::Stop => return self.leave(),
                }
            }
        }
    }

    /// Has the map file say how far the journal is durable, and says the last.
    fn leave(&mut self) {
        self.volume.close();
        let actions = self.volume.take_actions().into_iter();
        for (id, action) in actions.filter(|(_, action)| matches!(action, Action::MapAppend(_))) {
            let _ = self.perform(id, action);
        }
        self.say();
    }

    /// It is `now`. What the thread did not run, although it was to, is left out of what calls may
    /// wait: the process was stopped, or the journal's device was slow.
    fn go_on(&mut self, now: Nanos, times: &mut TurnTimes) {
        let pause = times.go_on(now, self.volume.pause_min());
        self.now = now;
        self.volume.set_now(now);
        if pause > Nanos::ZERO {
            self.volume.leave_out(pause);
        }
    }

    /// Performs what the volume asks for; what ends at once may ask for more.
    fn act(&mut self) {
        loop {
            let actions = self.volume.take_actions();
            if actions.is_empty() {
                return;
            }
            for (id, action) in actions {
                if let Some(end) = self.perform(id, action) {
                    self.volume.on_end(id, end);
                }
            }
        }
    }

    fn perform(&mut self, id: ActionId, action: Action) -> Option<End> {
        match action {
            Action::JournalWrite { at, bytes } => {
                let result = self.journal.write_all_at(&bytes, at);
                Some(result.map_or_else(|error| failed(&error), |()| End::Done))
            }
            Action::JournalRead { at, length } => Some(match read_at(&self.journal, at, length) {
                Ok(bytes) => End::Bytes(bytes.into(), None),
                Err(error) => failed(&error),
            }),
            Action::CacheWrite { at, bytes } => {
                let result = self.write_cache(at, &bytes);
                Some(result.map_or_else(|error| failed(&error), |()| End::Done))
            }
            Action::CacheRead { at, length } => Some(match read_at(&self.cache, at, length) {
                Ok(bytes) => End::Bytes(bytes.into(), None),
                Err(error) => failed(&error),
            }),
            Action::Object(request) => {
                let (store, events) = (self.store.clone(), self.events.clone());
                self.runtime.spawn(async move {
                    let end = store.perform(request).await;
                    // A volume that has ended needs no answers.
                    let _ = events.send(Event::End(id, end));
                });
                None
            }
            Action::Fetch(request) => match self.place(request) {
                Ok(placed) => {
                    self.fetch(id, placed);
                    None
                }
                Err(end) => Some(end),
            },
            Action::Upload { request, since } => {
                self.upload(id, request, since);
                None
            }
            Action::EncodeMap(image) => {
                encode(image, id, &self.events);
                None
            }
            durable => {
                // Its thread lasts as long as its channel.
                let _ = self.durable.send((id, durable));
                None
            }
        }
    }

    /// Gets what a client waits for; twice, where its class wants that and the first is late.
    fn fetch(&self, id: ActionId, (base, request): (Option<Arc<BaseStore>>, Request)) {
        let (own, events) = (self.store.clone(), self.events.clone());
        let hedge = self.lane.hedges().then(|| self.hedge.clone());
        self.runtime.spawn(async move {
            let store = match base {
                Some(base) => base.open().await,
                None => Ok(own),
            };
            let end = match (store, hedge) {
                (Err(fault), _) => End::Failed(fault),
                (Ok(store), Some(hedge)) => hedge.perform(|| store.perform(request.clone())).await,
                (Ok(store), None) => store.perform(request).await,
            };
            // A volume that has ended needs no answers.
            let _ = events.send(Event::End(id, end));
        });
    }

    /// The base that a request goes to, if it is not the volume's own store, and how it is called
    /// there.
    fn place(&mut self, request: Request) -> Result<(Option<Arc<BaseStore>>, Request), End> {
        let Request::Get { key, range } = &request else { return Ok((None, request)) };
        let (Some(number), key) = split_key(key) else { return Ok((None, request)) };
        let bases = self.volume.bases();
        if number >= bases.len() {
            // The volume turned out to be another history's since this was asked for.
            let cause = format!("`{key}` is of a base that the volume has no more");
            return Err(End::Failed(Fault { kind: FaultKind::NotFound, cause }));
        }
        let base = self.bases.of(number, bases, &self.store);
        Ok((Some(base), Request::Get { key: key.to_owned(), range: range.clone() }))
    }

    /// Puts a segment when the uplink says so.
    fn upload(&self, id: ActionId, request: Request, since: Nanos) {
        let bytes = request.bytes_put();
        let turn = self.lane.ask(bytes, Nanos(self.now.0.saturating_sub(since.0)));
        let (store, events) = (self.store.clone(), self.events.clone());
        self.runtime.spawn(async move {
            let end = match turn.come().await {
                Some(permit) => permit.carry(bytes, store.perform(request)).await,
                None => {
                    let cause = "too many segments wait for the node's uplink, or the volume is \
                                 lost";
                    let cause = cause.to_owned();
                    End::Failed(Fault { kind: FaultKind::Retry, cause })
                }
            };
            // A volume that has ended needs no answers.
            let _ = events.send(Event::End(id, end));
        });
    }

    /// Segments of a volume that is lost do not go up when their turn comes: no superblock will
    /// name them.
    fn stop_uploads(&self) {
        if self.volume.is_lost() {
            self.lane.withdraw();
        }
    }

    /// Writes to the read cache, which leaves the device's last room to others.
    fn write_cache(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        if end > self.cache_bytes {
            let room = rustix::fs::fstatvfs(&self.cache)?;
            if room.f_bavail.saturating_mul(room.f_frsize) < CACHE_LEAVES_BYTES {
                let cause = "its file system has less than 1 GiB of free room";
                return Err(io::Error::new(io::ErrorKind::StorageFull, cause));
            }
        }
        self.cache.write_all_at(bytes, at)?;
        self.cache_bytes = self.cache_bytes.max(end);
        Ok(())
    }

    fn hand_out(&mut self) {
        let mut has_ends = false;
        while let Some(done) = self.volume.poll() {
            has_ends = true;
            // Nobody listens any more when the backing goes.
            let _ = self.outbox.send(done);
        }
        while let Some(bytes) = self.volume.poll_at_hand() {
            has_ends = true;
            // Nothing is owed to who does not come for it.
            let _ = self.offers.try_send(bytes);
        }
        if has_ends {
            (self.wake)();
        }
        while let Some((id, result)) = self.volume.poll_snapshots() {
            // Who asked may have gone.
            let _ = self.answers.remove(&id).map(|answer| answer.send(result));
        }
    }

    /// Snapshots that nobody waits for are not begun.
    fn withdraw(&mut self) {
        let gone = self.answers.extract_if(.., |_, answer| answer.is_closed());
        gone.for_each(|(number, _)| self.volume.withdraw_snapshot(number));
    }

    fn heed(&mut self, order: Order, number: u64) {
        self.heard = number;
        match order {
            Order::Drain(begins) => {
                self.drains = match begins {
                    true => self.drains + 1,
                    false => self.drains.checked_sub(1).expect("a drain begins before it ends"),
                };
                self.volume.set_draining(self.drains > 0);
            }
            Order::Resize(bytes) => self.volume.set_size(bytes),
            Order::Compress(compression) => self.volume.set_compression(compression),
            Order::Say => {}
            Order::Look => self.volume.look(),
            Order::Snapshots(change, answer) => {
                self.answers.insert(number, answer);
                self.volume.change_snapshots(number, change);
            }
            Order::StopWaiting => self.volume.stop_waiting(),
            Order::ResumeWaiting => self.volume.resume_waiting(),
            Order::GiveUpReads(from) => self.volume.give_up_reads_behind(from),
        }
    }

    /// Says how safe the volume is, and hears how long its clients, and its writes, may wait.
    fn say(&mut self) {
        let (mut status, is_drained) = (self.volume.status(), self.volume.is_drained());
        self.volume.set_wait(self.lane.wait_plan());
        if let Some(age) = self.lane.age_max() {
            self.volume.set_dirty_age_max(age);
        }
        status.counters.requests += self.hedge.sent();
        status.counters.hedged = self.hedge.sent();
        status.map_fault.clone_from(&self.map_fault);
        self.lane.set_dirty(status.dirty_bytes, status.upload_bytes);
        let snapshots = self.volume.snapshots().map(<[Snapshot]>::to_vec);
        let said = Said {
            status,
            is_drained,
            written_next: self.volume.written_next(),
            put_next: self.volume.put_next(),
            stored_next: self.volume.stored_next(),
            is_size_stored: self.volume.is_size_stored(),
            bases: self.volume.bases().to_vec(),
            snapshots,
            heard: self.heard,
        };
        // Somebody may look later, too.
        self.said.send_replace(Some(said));
    }
}

/// Encodes a map on a thread of its own: those for calls that block may all be in a store's calls
/// that hang.
fn encode<B: Send + 'static>(image: MapImage, id: ActionId, events: &Sender<Event<B>>) {
    let (events, spare) = (events.clone(), (image.clone(), events.clone()));
    let run = move |image: MapImage, events: Sender<Event<B>>| {
        let bytes = image.encode().into();
        // The volume may change its map again when it hears of the end.
        drop(image);
        let _ = events.send(Event::End(id, End::Bytes(bytes, None)));
    };
    let thread = std::thread::Builder::new().name("cloud-map".to_owned());
    if thread.spawn(move || run(image, events)).is_err() {
        // The system grants no thread: the volume waits for it.
        run(spare.0, spare.1);
    }
}
