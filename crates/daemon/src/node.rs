//! A whole node: from its configuration to its last checkpoint.
//!
//! How: [`Node::start`] takes the directory's lock, binds the sockets (or takes those that the
//! service manager passes), starts a shard per part of
//! the levels, and opens the doors; [`Node::run`] keeps it until it is told to stop, then stops the
//! shards, which make everything durable.
//! Invariant: nothing on disk is touched before the lock is held; clients are accepted only after
//! every shard has recovered; a shard that ends unasked ends the node.
//! Cost: nothing on the data path. Shards are started behind [`ShardStarter`], so that tests need
//! no engine.

mod folder;

use crate::activation::Passed;
use crate::api::Door;
use crate::assembly::{Prepared, prepare};
use crate::catalog::{Catalog, DirectoryLock, LocalDirs, VolumePhase, VolumeRecord};
use crate::cloud::{CloudHomes, take_back};
use crate::config::{Config, IoChoice, LevelConfig, MAIN_DEVICE, Name, NbdConfig};
use crate::control::{Absence, Control, NodeFacts, PathFacts, ShardPort, View};
use crate::degraded::{Levels, begin_intents, open_levels};
use crate::error::{Report, ReportKind};
use crate::homes::Homes;
use crate::intents::Intents;
use crate::levels::unlock::unlock;
use crate::metrics::durability;
use crate::names::Names;
use crate::reached::LevelsReached;
use crate::recovery::{absences, recovery_line, start_lines};
use crate::server::{NbdServer, uris};
use crate::sizing::Sizer;
use crate::sockets::{
    CONTROL_SOCKET_MODE, NBD_SOCKET_MODE, UnixSocket, adopt_tcp, bind_tcp, look_up, loopback,
    refuse_twice,
};
use crate::threads::{Watchers, all_ended};
use crate::tls_files::{TlsFiles, tls_of};
pub use crate::url_file::CONTROL_URL_FILE_NAME;
use crate::url_file::UrlFile;
use crate::{api, listen};
use folder::{load_catalog, open_directory};
use layby_cache::CacheSpec;
use layby_cache::schedule::Load;
use layby_engine::ClientMemory;
use layby_engine::control::{StartReport, VolumePlan};
use layby_engine::io::SectorCipher;
use layby_engine::store::Reached;
use layby_types::{Nanos, VolumeId};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{JoinHandle, ScopedJoinHandle};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// From now on what this process makes is its user's alone, unless it says otherwise: levels,
/// homes, journals, the catalog. For a process that is a node and nothing else.
pub fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// A shard's part of a level.
#[derive(Clone, Debug)]
pub struct LevelPart {
    /// The level as configured.
    pub level: LevelConfig,
    /// First byte of the part in the level's file.
    pub base: u64,
    /// Bytes of the part.
    pub length: u64,
    /// What classes below the best one may have in its device's hands at first, if that is known.
    pub budget: Option<Load>,
    /// It is not used, since a level is lost.
    pub is_absent: bool,
    /// How far it had come at its last start, if that is known.
    pub known: Option<Reached>,
    /// What it is encrypted by, where it is.
    pub cipher: Option<Arc<SectorCipher>>,
}

/// All a shard needs to start.
#[derive(Clone, Debug)]
pub struct ShardRequest {
    /// Which shard.
    pub index: u8,
    /// Of how many.
    pub count: u8,
    /// The CPU it is pinned to, if there is more than one shard.
    pub cpu: Option<usize>,
    /// How nice its thread is to other programs.
    pub nice: i8,
    /// How it talks to the kernel.
    pub io: IoChoice,
    /// The node's identity.
    pub node: [u8; 16],
    /// Levels, classes, limits.
    pub spec: CacheSpec,
    /// Its part of each level.
    pub parts: Vec<LevelPart>,
    /// Volumes that it serves.
    pub volumes: Vec<VolumePlan>,
    /// The node has never come up: empty parts are to be formatted.
    pub is_new: bool,
    /// Do not start where it is not known which version of some blocks is the newest.
    pub is_strict: bool,
    /// Power loss is simulated (tests only).
    pub simulate_power_loss: bool,
    /// How much longer volumes' homes take than they really do; for demonstrations.
    pub home_delay: Nanos,
    /// How long a device or backing store may owe an end.
    pub io_timeout: Nanos,
    /// How much its clients' connections may hold.
    pub client_memory: ClientMemory,
    /// As a level's `budget`, for each volume's home.
    pub home_budget: Option<Load>,
    /// The lock of the node's directory, which outlives the process in what it has in flight.
    pub lock: Option<Arc<OwnedFd>>,
    /// The names of volumes and of their parts, for reports and the log.
    pub names: Names,
    /// Where the shard asks for volumes' write intents.
    pub intents: mpsc::UnboundedSender<VolumeId>,
}

/// A shard that runs.
pub struct StartedShard {
    /// The way to it.
    pub port: Box<dyn ShardPort>,
    /// What it found and chose.
    pub report: StartReport,
    /// Its thread, which ends after a stop.
    pub thread: JoinHandle<()>,
}

/// Starts shards: the engine, or a mock.
pub trait ShardStarter: Send + Sync {
    /// Starts a shard and returns when it has recovered.
    ///
    /// # Errors
    /// A report when a level or a volume cannot be opened; nothing runs then.
    fn start(&self, request: ShardRequest) -> Result<StartedShard, Report>;
}

/// The sockets of a node, bound before anything is started.
struct Sockets {
    nbd: Vec<UnixSocket>,
    tcp: Vec<TcpListener>,
    control: Arc<UnixSocket>,
    http: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

impl Sockets {
    /// What was passed takes the place of what the configuration says, kind by kind.
    async fn bind(config: &Config, passed: Passed) -> Result<Sockets, Report> {
        let mut nbd = Vec::new();
        for listener in passed.nbd {
            nbd.push(UnixSocket::adopt(listener)?);
        }
        if nbd.is_empty() {
            nbd.push(UnixSocket::bind(&config.nbd.socket, NBD_SOCKET_MODE)?);
        }
        let mut tcp = Vec::new();
        for listener in passed.tcp {
            tcp.push(adopt_tcp(listener)?);
        }
        let configured = if tcp.is_empty() { config.nbd.listen.as_slice() } else { &[] };
        let configured = look_up(configured).await?;
        let http = loopback(&look_up(&config.control.http).await?)?;
        let metrics = look_up(&config.control.metrics).await?.pop();
        let asked = config.nbd.listen.iter().zip(&configured).map(|(of, at)| ("listen", of, *at));
        let asked =
            asked.chain(config.control.http.iter().zip(http).map(|(of, at)| ("http", of, at)));
        let asked = asked
            .chain(config.control.metrics.iter().zip(metrics).map(|(of, at)| ("metrics", of, at)));
        refuse_twice(&asked.collect::<Vec<_>>())?;
        let adopted = tcp.iter().filter_map(|listener| listener.local_addr().ok());
        let others = adopted.chain(configured.iter().copied()).chain(http).chain(metrics);
        let others: Vec<SocketAddr> = others.collect();
        for address in configured {
            tcp.push(bind_tcp(address, &others).await?);
        }
        let control = match passed.control {
            Some(listener) => UnixSocket::adopt(listener)?,
            None => UnixSocket::bind(&config.control.socket, CONTROL_SOCKET_MODE)?,
        };
        let control = Arc::new(control);
        let http = bind_optional(http, &others).await?;
        let metrics = bind_optional(metrics, &others).await?;
        Ok(Sockets { nbd, tcp, control, http, metrics })
    }

    fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Notes on the configuration, and what other machines reach; said in the log, too.
    fn notes(&self, config: &Config, view: &View) -> Vec<String> {
        let (tcp, metrics) = (self.tcp_addresses(), self.metrics_address());
        let exposed = crate::exposure::notes(config, view, &tcp, metrics);
        let notes: Vec<String> = config.notes.iter().cloned().chain(exposed).collect();
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        notes
    }

    fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    fn uris(&self, nbd: &NbdConfig) -> Vec<String> {
        let tcp = self.tcp_addresses();
        let unix: Vec<PathBuf> = self.nbd.iter().filter_map(UnixSocket::path).collect();
        uris(nbd, &unix, &tcp)
    }
}

async fn bind_optional(
    address: Option<SocketAddr>,
    others: &[SocketAddr],
) -> Result<Option<TcpListener>, Report> {
    match address {
        Some(address) => bind_tcp(address, others).await.map(Some),
        None => Ok(None),
    }
}

/// A node whose shards run and whose sockets listen.
pub struct Node {
    control: Arc<Control>,
    door: Arc<Door>,
    sockets: Sockets,
    nbd_server: NbdServer,
    url: Option<UrlFile>,
    notes: Vec<String>,
    /// A message for each shard that has ended.
    ended: mpsc::UnboundedReceiver<usize>,
    _lock: DirectoryLock,
}

impl Node {
    /// Starts a node. Recovery may take a while; a caller that does not want to wait for it may
    /// drop the future and end the process, as a crash would.
    ///
    /// # Errors
    /// A report when anything that it needs cannot be had; nothing runs then.
    pub async fn start(config: Config, starter: Arc<dyn ShardStarter>) -> Result<Node, Report> {
        Node::start_on(config, starter, Passed::default()).await
    }

    /// Like [`Node::start`], on sockets that the service manager has passed.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn start_on(
        mut config: Config,
        starter: Arc<dyn ShardStarter>,
        passed: Passed,
    ) -> Result<Node, Report> {
        // A file that is missing is heard of before anything is made.
        let tls = tls_of(&config.nbd)?;
        let lock = opened_directory(&config.dir).await?;
        let door = Arc::new(Door::open(&config.dir, &config.control)?);
        let found = load_catalog(&config)?;
        let cloud = Arc::new(CloudHomes::new(&config, tokio::runtime::Handle::current()));
        let homes = Homes::of(&config, cloud.clone()).under(&lock.file());
        let introduce = |catalog: &Catalog| {
            cloud.introduce(catalog.node, catalog.block_bytes);
            homes.introduce(catalog);
        };
        found.iter().for_each(introduce);
        fetch_keys(Arc::clone(&cloud)).await;
        let Prepared { view, notes, is_new, begun } = plan(&config, found.as_ref(), &homes).await?;
        introduce(&view.catalog);
        let few_files = crate::descriptors::bound(&mut config, &view.catalog)?;
        let (view, mut notes, taken) = taken_back(view, notes, homes.clone()).await?;
        check_system(&config, &view).await?;
        refuse_leftovers(found.as_ref(), &view, &homes)?;
        let sockets = Sockets::bind(&config, passed).await?;
        grow_homes(found.as_ref(), &view, &homes).await?;
        let Levels { mut view, is_new, lost, held, before, notes: lost_notes } =
            open_levels(&config, view, is_new, homes.clone()).await?;
        view.catalog.local_dirs = LocalDirs::of(&config.dir, &config.cloud);
        // The node's identity must be known before a level carries it. What has not changed is not
        // written: a node whose disk is full can still start.
        view.catalog.save_changed(found.as_ref(), &config.dir)?;
        release_old(&taken, &homes);
        begun.values().for_each(|record| homes.remove_blank(record));
        let intents = begin_intents(&config.dir, &view, &homes, (&before, is_new), &held)?;
        let serving = (view, homes.clone(), intents.clone(), held);
        let started = launch(starter, config.clone(), serving, is_new).await;
        cloud.forget_keys();
        let (started, watchers, mut view, wanted) = started?;
        let (ports, reports, ended) = watch(started, watchers);
        view.absent.extend(absences(&view, &homes, &reports));
        let view = came_up(&config.dir, view, &homes, &intents)?;
        crate::control::log_start(found.as_ref(), &view);
        notes.extend(unserved(&view, &homes));
        notes.extend(start_lines(found.as_ref(), (&view, &homes), &config, &reports));
        notes.extend(sockets.notes(&config, &view).into_iter().chain(few_files).chain(lost_notes));
        let uris = sockets.uris(&config.nbd);
        let (dir, refusals, paths) = (config.dir.clone(), Arc::default(), looked_at(&config).await);
        let facts = NodeFacts { dir, config, reports, uris, homes, intents, lost, paths, refusals };
        let control = Arc::new(Control::new(facts, ports, view));
        // It ends with the shards: what a stop lets end may be a first change.
        tokio::spawn(crate::control::attend_intents(Arc::clone(&control), wanted));
        control.follow_homes();
        control.start_limits().await;
        match finish(&control, tls, sockets.http.as_ref()).await {
            Ok((nbd_server, url)) => {
                if let Some(directory) = &control.facts().config.vhost {
                    control.open_doors(directory);
                }
                notes.extend(control.open_devices().await);
                Ok(Node { control, door, sockets, nbd_server, url, notes, ended, _lock: lock })
            }
            Err(report) => {
                // Stopping a fresh node can only repeat what the report says already.
                drop(control.stop().await);
                all_ended(ended).await;
                Err(report)
            }
        }
    }

    /// The node's control, for a caller in the same process.
    #[must_use]
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// The TLS files, to be read again while the node runs.
    #[must_use]
    pub fn tls_files(&self) -> Arc<TlsFiles> {
        self.nbd_server.tls_files()
    }

    /// What a person should know of a node that has just come up, a line each; the last line begins
    /// with `ready`.
    #[must_use]
    pub fn announcement(&self) -> Vec<String> {
        let facts = self.control.facts();
        let view = self.control.view();
        let mut lines = vec![format!(
            "node {} in `{}`: {} shard(s), blocks of {}",
            view.catalog.node,
            facts.dir.display(),
            view.layout.shards,
            layby_types::format_bytes(view.layout.block_size.bytes().into())
        )];
        lines.extend(facts.config.default_levels_line());
        if let Some(first) = facts.reports.first() {
            lines.push(format!("I/O by {}", first.io));
            lines.extend(first.levels.iter().map(|level| format!("level {level}")));
        }
        lines.push(crate::memory::of_shard(&facts.config, view.layout.shards).1);
        for (name, class) in view.classes() {
            let (level, mode) = durability(&view, name.as_str(), class.durable_writes);
            let mode = match mode {
                "durable" => "acknowledged when durable",
                _ => "acknowledged when accepted, durable after FLUSH or FUA",
            };
            lines.push(format!("class {name}: writes land in {level}, {mode}"));
        }
        lines.push(recovery_line(&facts.reports));
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        let devices = view.volumes().filter_map(|(name, record)| {
            let device = self.control.block_device(VolumeId(record.id))?;
            Some(format!("block device {device}: volume {name}"))
        });
        lines.extend(devices);
        lines.extend(facts.uris.iter().map(|uri| format!("serving {uri}")));
        lines.push(format!("control `{}`", self.sockets.control.name()));
        lines.extend(self.url.iter().map(|url| format!("control {}", url.url)));
        let metrics = self.sockets.metrics_address();
        lines.extend(metrics.map(|address| format!("metrics http://{address}/metrics")));
        lines.push(format!("ready: {} volume(s)", view.volumes().count()));
        lines
    }

    /// Serves until `shutdown` ends, then stops cleanly.
    ///
    /// # Errors
    /// A report when a shard ends unasked, or cannot make everything durable.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Report> {
        let Node { control, door, sockets, nbd_server, url, notes: _, mut ended, _lock } = self;
        let Sockets { nbd, tcp, control: control_socket, http, metrics } = sockets;
        let mut doors = JoinSet::new();
        for socket in nbd {
            let server = nbd_server.clone();
            doors.spawn(async move { server.accept_unix(&socket.listener).await });
        }
        for listener in tcp {
            let server = nbd_server.clone();
            doors.spawn(async move { server.accept_tcp(&listener).await });
        }
        let view = control.view();
        let unmade = unmade(&view.catalog, &control.facts().homes).cloned().collect();
        doors.spawn(crate::control::finish_creations(Arc::clone(&control), unmade));
        for (name, _) in view.catalog.volumes.iter().filter(|(_, record)| record.take) {
            doors.spawn(crate::control::finish_take(Arc::clone(&control), name.clone()));
        }
        doors.spawn(crate::control::attend_absent(Arc::clone(&control)));
        doors.spawn(Sizer::new(Arc::clone(&control)).run());
        doors.spawn(crate::health::run(Arc::clone(&control)));
        doors.spawn(crate::free::run(Arc::clone(&control)));
        doors.spawn(crate::held::attend(control.facts().dir.clone()));
        doors.spawn(crate::control::attend_clean(Arc::clone(&control)));
        doors.spawn(crate::control::attend_deleted(Arc::clone(&control)));
        let router = api::router(Arc::clone(&control), door);
        let connections = Arc::new(listen::Connections::default());
        let shared = || Arc::clone(&connections);
        doors.spawn(listen::serve_unix(control_socket, router.clone(), shared()));
        if let Some(http) = http {
            doors.spawn(listen::serve_tcp(http, router, shared()));
        }
        if let Some(metrics) = metrics {
            let router = api::metrics_router(Arc::clone(&control));
            doors.spawn(listen::serve_tcp(metrics, router, shared()));
        }
        let early = tokio::select! {
            () = shutdown => None,
            shard = ended.recv() => shard,
        };
        doors.shutdown().await;
        control.shut_doors();
        if early.is_none() {
            control.close_devices().await;
        }
        drop(url);
        let stopped = control.stop().await;
        all_ended(ended).await;
        control.close_doors();
        if let Some(connections) = Arc::into_inner(connections) {
            connections.end().await;
        }
        nbd_server.finish_log().await;
        match &stopped {
            Ok(()) if early.is_none() => tracing::info!("stopped"),
            Ok(()) => {}
            Err(report) => tracing::error!(cause = report.cause, "{}", report.error),
        }
        match early {
            None => stopped,
            Some(shard) => Err(Report::new(ReportKind::Failure, "the node has ended")
                .cause(format!("shard {shard} ended without being asked to"))
                .state("what was acknowledged as durable is safe; the next start recovers it")
                .hint("the log above says why; start the node again")),
        }
    }
}

/// What lets clients in, once all shards serve.
async fn finish(
    control: &Arc<Control>,
    tls: Option<Arc<rustls::ServerConfig>>,
    http: Option<&TcpListener>,
) -> Result<(NbdServer, Option<UrlFile>), Report> {
    control.join_all().await?;
    let facts = control.facts();
    let nbd_server = NbdServer::with_tls(&facts.config.nbd, tls, Arc::clone(control));
    let url = http.and_then(|http| http.local_addr().ok());
    Ok((nbd_server, url.map(|address| UrlFile::write(&facts.dir, address))))
}

type Launched = (Vec<StartedShard>, Watchers, View, mpsc::UnboundedReceiver<VolumeId>);

/// Starts the shards with what they serve, on a thread that may wait; the volumes whose write
/// intents they want come through the channel.
async fn launch(
    starter: Arc<dyn ShardStarter>,
    config: Config,
    (mut view, homes, intents, held): (View, Homes, Intents, BTreeMap<Name, Absence>),
    is_new: bool,
) -> Result<Launched, Report> {
    let (wanting, wanted) = mpsc::unbounded_channel();
    let starting = tokio::task::spawn_blocking(move || {
        // Where levels are made anew, whatever is missing ends the start.
        let plans = plans(&mut view, &homes, &intents, (held, config.is_strict || is_new))?;
        homes.names().follow(&view);
        let mut requests = requests(&config, &view, &plans, is_new, (&wanting, homes.names()))?;
        requests.iter_mut().for_each(|request| request.lock = homes.lock());
        let known = LevelsReached::begin(&config.dir, is_new)?;
        known.tell(&mut requests);
        let watchers = Watchers::begin(requests.len())?;
        let started = start_shards(&*starter, requests)?;
        let names: Vec<Name> = view.layout.levels.iter().map(|level| level.name.clone()).collect();
        let reports: Vec<_> = started.iter().map(|shard| &shard.report).collect();
        if let Err(cause) = known.learn(&config.dir, &names, &reports) {
            tracing::warn!(%cause, "cannot write down how far levels have come");
        }
        Ok((started, watchers, view, wanted))
    });
    starting.await.expect("a starter reports, it does not panic")
}

/// The node's directory, locked, on a thread that may wait.
async fn opened_directory(dir: &Path) -> Result<DirectoryLock, Report> {
    let dir = dir.to_owned();
    let opening = tokio::task::spawn_blocking(move || open_directory(&dir));
    opening.await.expect("a folder's failure is a report, no panic")
}

/// What is at paths of the configuration, found on a thread that may wait.
async fn looked_at(config: &Config) -> Arc<PathFacts> {
    let config = config.clone();
    let looking = tokio::task::spawn_blocking(move || Arc::new(PathFacts::of(&config)));
    looking.await.expect("a path that does not answer is no panic")
}

/// Has commands print volumes' keys, on a thread that may wait. One that does not end in time costs
/// its volume the start.
async fn fetch_keys(cloud: Arc<CloudHomes>) {
    let fetching = tokio::task::spawn_blocking(move || cloud.fetch_keys());
    fetching.await.expect("a command's failure is no panic");
}

/// What the node will be, once encrypted levels have their keys; these are had on a thread that may
/// wait, before anything is changed.
async fn plan(config: &Config, found: Option<&Catalog>, homes: &Homes) -> Result<Prepared, Report> {
    let (told, known) = (config.clone(), found.cloned());
    let unlocking = tokio::task::spawn_blocking(move || unlock(&told, known.as_ref()));
    let unlocked = unlocking.await.expect("a key that cannot be had is a report, no panic")?;
    let mut prepared = prepare(config, found.cloned(), homes)?;
    unlocked.apply(&mut prepared.view);
    prepared.notes.extend(unlocked.notes);
    Ok(prepared)
}

/// The view and the notes once volumes are taken back, and these; stores are asked on a thread that
/// may wait.
async fn taken_back(
    mut view: View,
    mut notes: Vec<String>,
    homes: Homes,
) -> Result<(View, Vec<String>, Vec<VolumeRecord>), Report> {
    let taking = tokio::task::spawn_blocking(move || {
        let taken = take_back(&mut view, &homes, &mut notes)?;
        Ok((view, notes, taken))
    });
    taking.await.expect("an owner of homes reports, it does not panic")
}

/// What the node kept of volumes that are taken back goes. Files that do not go end no start: the
/// next one finds the volume again where they are in its way.
fn release_old(taken: &[VolumeRecord], homes: &Homes) {
    for record in taken {
        if let Err(left) = homes.release(record, false) {
            let (volume, cause) = (record.path.display(), left.cause);
            tracing::warn!(%volume, cause, "{}; it is of no use any more", left.error);
        }
    }
}

/// Homes take the sizes that the configuration gives them now before the catalog has these: should
/// one refuse, its old size stands, and can be written again. None is another node's, unless it may
/// be taken over.
async fn grow_homes(found: Option<&Catalog>, view: &View, homes: &Homes) -> Result<(), Report> {
    let old = |name: &Name| found?.volumes.get(name).map(|record| record.length);
    let volumes = view.catalog.volumes.iter();
    let longer = volumes.filter_map(|(name, record)| {
        let old = old(name).filter(|old| *old < record.length)?;
        Some((name.clone(), record.clone(), old))
    });
    let (longer, homes): (Vec<_>, Homes) = (longer.collect(), homes.clone());
    let view = view.clone();
    let growing = tokio::task::spawn_blocking(move || {
        homes.check_accepted(&view)?;
        longer.iter().try_for_each(|(name, record, old)| homes.grow(name, record, *old))
    });
    growing.await.expect("homes report, they do not panic")
}

/// Volumes in object stores that were being made when the node ended, and of which nobody was told
/// that they are there. A store that does not answer, or a base that is not served yet, is no
/// reason to serve nobody: they are made when the node has come up.
fn unmade<'a>(catalog: &'a Catalog, homes: &'a Homes) -> impl Iterator<Item = &'a Name> {
    let is_unmade = |record: &VolumeRecord| {
        record.phase == VolumePhase::Creating
            && record.configured.is_none()
            && homes.writes_through(record)
    };
    catalog.volumes.iter().filter(move |(_, record)| is_unmade(record)).map(|(name, _)| name)
}

/// A line for each volume that is not served yet. What to do where it seems to be another node's is
/// easily done wrong.
fn unserved(view: &View, homes: &Homes) -> Vec<String> {
    let unmade = unmade(&view.catalog, homes).map(|name| {
        format!("volume `{name}` was being made when the node ended: it is made now, or taken back")
    });
    let absent = view.absent.iter().map(|(name, absence)| {
        let again = if absence.is_tried() { ", and tried again" } else { "" };
        let record = view.catalog.volumes.get(name);
        let hint = record.and_then(|record| homes.mark_hint(record));
        let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
        format!("volume `{name}` is not served{again}: {}{hint}", absence.why.cause)
    });
    unmade.chain(absent).collect()
}

/// What shards are told of the volumes that they serve from the start. One in an object store that
/// cannot be served, or whose creation was cut off, is no reason to serve nobody.
fn plans(
    view: &mut View,
    homes: &Homes,
    intents: &Intents,
    (held, is_strict): (BTreeMap<Name, Absence>, bool),
) -> Result<Vec<VolumePlan>, Report> {
    let later: Vec<&Name> = unmade(&view.catalog, homes).chain(held.keys()).collect();
    let (mut plans, mut absent) = (Vec::new(), BTreeMap::new());
    for (name, record) in view.catalog.volumes.iter().filter(|(name, _)| !later.contains(name)) {
        let planned = match homes.is_half_made(record) {
            // An intent is recorded once there is a file: where that is missing, its disk is.
            true if !intents.is_clean(record.id) => view.made_plans(homes, name, record),
            true if !is_strict => Ok(view.half_made_plans(homes, name, record)),
            _ => view.volume_plans(homes, name, record),
        };
        match planned {
            Ok(mut its) => {
                // A strict start that this one will end is no sign that there was a file.
                if !homes.is_half_made(record) || homes.is_whole(record) {
                    intents.mark(view, homes, record, &mut its)?;
                }
                plans.extend(its);
            }
            Err(refused) if homes.writes_through(record) => {
                tracing::warn!(%name, cause = refused.cause, "{}; tried again", refused.error);
                absent.insert(name.clone(), Absence::new(refused, record));
            }
            Err(refused) => return Err(refused),
        }
    }
    absent.extend(held);
    view.absent = absent;
    Ok(plans)
}

/// What shards are told at a start, with `plans`.
///
/// # Errors
/// A report where classes and levels contradict each other.
pub(crate) fn requests(
    config: &Config,
    view: &View,
    plans: &[VolumePlan],
    is_new: bool,
    (intents, names): (&mpsc::UnboundedSender<VolumeId>, &Names),
) -> Result<Vec<ShardRequest>, Report> {
    let spec = view.checked_spec("cannot start the node")?;
    let cpus = allowed_cpus();
    let count = view.layout.shards;
    let (client_memory, _) = crate::memory::of_shard(config, count);
    let budget = |name: &str| crate::budget::of(&config.devices, name, &spec, count);
    let request = |index: u8| {
        let parts = view.layout.levels.iter().enumerate().map(|(number, level)| {
            let length = view.layout.part_bytes(number);
            let budget = budget(level.name.as_str());
            let (base, is_absent) = (length * u64::from(index), !view.layout.is_used(level));
            let cipher = view.layout.cipher(number).cloned();
            let (level, known) = (level.clone(), None);
            LevelPart { level, base, length, budget, is_absent, known, cipher }
        });
        let is_own = |plan: &&VolumePlan| view.layout.shard_of(plan.spec.id) == usize::from(index);
        // With one shard the scheduler does better than a pin that other nodes may share.
        let cpu = (count > 1 && !cpus.is_empty())
            .then(|| cpus[usize::from(index) * cpus.len() / usize::from(count)]);
        ShardRequest {
            index,
            count,
            cpu,
            nice: config.nice,
            io: config.io,
            node: view.catalog.node.0,
            spec: spec.clone(),
            parts: parts.collect(),
            volumes: plans.iter().filter(is_own).cloned().collect(),
            is_new,
            is_strict: config.is_strict,
            simulate_power_loss: config.simulate_power_loss,
            home_delay: config.home_delay,
            io_timeout: config.io_timeout,
            client_memory,
            home_budget: budget(MAIN_DEVICE),
            lock: None,
            names: names.clone(),
            intents: intents.clone(),
        }
    };
    Ok((0..count).map(request).collect())
}

fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Starts all shards at once, since each reads its own logs; when one fails, the others stop.
fn start_shards(
    starter: &dyn ShardStarter,
    requests: Vec<ShardRequest>,
) -> Result<Vec<StartedShard>, Report> {
    // What a shard has to tell may be told later, by the runtime that started it.
    let runtime = tokio::runtime::Handle::try_current().ok();
    let start = |request| {
        let _entered = runtime.as_ref().map(tokio::runtime::Handle::enter);
        starter.start(request)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let spawn = |request| {
            let thread = std::thread::Builder::new().name("layby-start".to_owned());
            thread.spawn_scoped(scope, || start(request))
        };
        let threads: Vec<_> = requests.into_iter().map(spawn).collect();
        let result = |thread: std::io::Result<ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().expect("a starter reports, it does not panic"),
            Err(cause) => Err(crate::threads::refused(&cause)),
        };
        threads.into_iter().map(result).collect()
    });
    let mut started = Vec::new();
    let mut refused = None;
    for result in results {
        match result {
            Ok(shard) => started.push(shard),
            Err(report) => refused = refused.or(Some(report)),
        }
    }
    let Some(report) = refused else { return Ok(started) };
    for shard in started {
        let stop = crate::control::Command::Stop(Box::new(|_| ()));
        if shard.port.send(stop).is_ok() {
            // A panic there is in the log; the report of the shard that failed matters more.
            drop(shard.thread.join());
        }
    }
    Err(report)
}

type Watched = (Vec<Box<dyn ShardPort>>, Vec<StartReport>, mpsc::UnboundedReceiver<usize>);

/// Takes shards apart and watches their threads.
fn watch(started: Vec<StartedShard>, watchers: Watchers) -> Watched {
    let (mut ports, mut reports, mut threads) = (Vec::new(), Vec::new(), Vec::new());
    for shard in started {
        ports.push(shard.port);
        reports.push(shard.report);
        threads.push(shard.thread);
    }
    (ports, reports, watchers.watch(threads.into_iter()))
}

/// Whether the system grants the threads of a start, and has the devices that the configuration
/// asks for.
async fn check_system(config: &Config, view: &View) -> Result<(), Report> {
    crate::threads::check_start(view)?;
    match config.volumes.values().any(|volume| volume.ublk) {
        true => crate::ublk::check("cannot start the node").await,
        false => Ok(()),
    }
}

/// Volumes that the configuration adds begin with no other one's files.
fn refuse_leftovers(found: Option<&Catalog>, view: &View, homes: &Homes) -> Result<(), Report> {
    let is_known = |name: &Name| found.is_some_and(|found| found.volumes.contains_key(name));
    let new = view.catalog.volumes.iter().filter(|(name, _)| !is_known(name));
    new.filter_map(|(name, record)| Some((name, homes.leftover(record)?))).try_for_each(
        |(name, found)| Err(Report { error: format!("cannot create volume `{name}`"), ..found }),
    )
}

/// Remembers that levels and backing files are there from now on, before any client is served.
fn came_up(dir: &Path, mut view: View, homes: &Homes, intents: &Intents) -> Result<View, Report> {
    let before = view.catalog.clone();
    // Where the levels could not be made yet, a later start does that.
    view.catalog.is_formatting &= view.layout.is_memory_only;
    view.catalog.is_started = true;
    view.catalog.without_levels = view.layout.is_memory_only;
    let mut later: Vec<Name> = unmade(&before, homes).cloned().collect();
    later.extend(view.absent.keys().cloned());
    for (_, record) in view.catalog.volumes.iter_mut().filter(|(name, _)| !later.contains(name)) {
        record.phase = VolumePhase::Ready;
        homes.keep_device(record);
    }
    match view.catalog == before {
        // A kill may have left it named beside another one.
        true => Catalog::keep_as_last(dir),
        false => view.catalog.save(dir)?,
    }
    if before.is_formatting && !view.catalog.is_formatting {
        intents.mark_wide(&view, homes)?;
    }
    Ok(view)
}

#[cfg(test)]
pub(crate) mod tests;
