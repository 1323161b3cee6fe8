//! A running node as its operators see it: what it holds, and how it is changed.
//!
//! How: readers take the current [`View`], a whole that is replaced with each change, so that a
//! status, a scrape or a handshake never waits for a change that is under way. Changes run one at a
//! time: check, tell the shards, save the catalog, publish the new view. While a shrinking volume
//! is zeroed or one that is deleted is written back, others go on; see `turn`.
//! Invariant: what was answered as done is in the catalog; what failed is as if never asked.
//! Cost: a copy of the catalog per change; nothing on the data path.
//! Not for: the data path; a shard is told what to do and decides alone.

mod absent;
mod blocking;
mod changes;
mod classes;
mod clients;
mod creation;
mod deletion;
mod drain;
mod exports;
mod idle;
mod intents;
pub(crate) mod placement;
mod places;
mod recording;
mod removal;
mod request;
mod rounds;
mod saving;
mod snapshots;
mod take;
mod totals;
mod turn;
mod unsaved;
pub(crate) mod volumes;
mod wide;

#[cfg(test)]
pub(crate) mod tests;

pub use absent::Absence;
pub(crate) use absent::attend_absent;
pub(crate) use changes::log_start;
pub use clients::ClientState;
pub(crate) use creation::finish_creations;
pub(crate) use deletion::attend_deleted;
pub use deletion::{DeletedVolume, UndeleteRequest};
pub use exports::PeerExports;
pub(crate) use intents::{attend_clean, attend_intents};
pub use places::Authority;
pub use recording::{
    RECORDING_SILENCE_MAX, Recorded, RecordedVolume, RecordingAnswer, RecordingStart, Request,
};
pub use request::{
    ClassCreate, ClassPatch, DeleteData, VolumeCreate, VolumePatch, WatermarksPatch, WritebackPatch,
};
pub use rounds::{Pace, ROUND_PERIOD};
pub use snapshots::SnapshotCreate;
pub(crate) use take::finish_take;
pub use volumes::LeftData;

use crate::catalog::{Catalog, VolumePhase, VolumeRecord};
use crate::clients::Clients;
use crate::config::{ClassConfig, Config, KeptFiles, Name};
use crate::error::{Report, ReportKind};
use crate::health::Healths;
use crate::homes::Homes;
use crate::intents::Intents;
use crate::levels::Lost;
use crate::plan::{ClassSlot, Layout};
use crate::refusals::Refusals;
use crate::session::Served;
use crate::sizing::SizingState;
use crate::totals::ClassTotals;
use crate::ublk::HostDevices;
use crate::vhost::{DoorState, GuestDoors};
use layby_cache::sizing::Slots;
use layby_cache::{CacheSpec, VolumeSpec};
use layby_engine::control::{
    Answer, BackingPlan, ClientId, ClientLoad, CommandError, Observed, ShardSender, Snapshot,
    StartReport, VolumePlan,
};
use layby_types::{ClassId, ErrorKind, VolumeId};
use rounds::Rounds;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Mutex, oneshot};

/// What a shard of this node is asked.
pub type Command = layby_engine::control::Command<Served>;

/// The way to one shard; tests put a mock behind it.
pub trait ShardPort: Send + Sync + 'static {
    /// Hands a command over; gives it back when the shard has ended.
    ///
    /// # Errors
    /// The command itself, when nobody will ever receive it.
    fn send(&self, command: Command) -> Result<(), Box<Command>>;
}

impl ShardPort for ShardSender<Served> {
    fn send(&self, command: Command) -> Result<(), Box<Command>> {
        ShardSender::send(self, command)
    }
}

/// The node at one instant.
#[derive(Clone, Debug)]
pub struct View {
    /// Volumes and live changes.
    pub catalog: Catalog,
    /// Levels with their live watermarks, and limits.
    pub layout: Layout,
    /// Classes by [`ClassId`].
    pub classes: Vec<ClassSlot>,
    /// Volumes that cannot be served now, and why.
    pub absent: BTreeMap<Name, Absence>,
}

impl View {
    /// A class's number and configuration.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<(ClassId, &ClassConfig)> {
        let found = self.classes.iter().position(|slot| is_called(slot, name))?;
        let (_, config) = self.classes[found].as_ref()?;
        let id = u8::try_from(found).expect("a node has at most CLASSES_MAX classes");
        Some((ClassId(id), config))
    }
    /// Volumes that clients and operators may see.
    pub fn volumes(&self) -> impl Iterator<Item = (&Name, &VolumeRecord)> {
        self.known_volumes().filter(|(name, _)| !self.absent.contains_key(*name))
    }
    /// The name of a volume that clients and operators may see, by its number.
    pub fn name_of(&self, id: u32) -> Option<&Name> {
        self.volumes().find(|(_, record)| record.id == id).map(|(name, _)| name)
    }
    /// The classes that exist, in the order of their numbers.
    pub fn classes(&self) -> impl Iterator<Item = &(Name, ClassConfig)> {
        self.classes.iter().flatten()
    }
    /// What shards' caches are told of a volume, part by part.
    #[must_use]
    pub fn volume_specs(&self, homes: &Homes, record: &VolumeRecord) -> Vec<VolumeSpec> {
        let (class, _) = self.class(record.class.as_str()).expect("a volume's class is checked");
        let write_through = homes.writes_through(record);
        let specs = self.layout.volume_specs(record, class);
        specs.map(|spec| VolumeSpec { write_through, ..spec }).collect()
    }
    /// What shards are told to serve a volume, part by part, once its home is ready. May take long.
    ///
    /// # Errors
    /// A report when the home cannot be had.
    pub fn volume_plans(
        &self,
        homes: &Homes,
        name: &Name,
        record: &VolumeRecord,
    ) -> Result<Vec<VolumePlan>, Report> {
        let backings = match record.stripes() {
            Some(stripes) => homes.plan_parts(name, record, stripes)?,
            None => vec![homes.plan(name, record)?],
        };
        Ok(self.with_specs(homes, record, backings))
    }

    /// The same for a volume whose file or device was there once, whatever the catalog says:
    /// nothing is made where it is missing.
    ///
    /// # Errors
    /// As for [`View::volume_plans`].
    pub fn made_plans(
        &self,
        homes: &Homes,
        name: &Name,
        record: &VolumeRecord,
    ) -> Result<Vec<VolumePlan>, Report> {
        let made = VolumeRecord { phase: VolumePhase::Ready, ..record.clone() };
        self.volume_plans(homes, name, &made)
    }

    /// The same at a start for a volume that a command was making when the node ended; see
    /// [`Homes::plan_half_made`].
    #[must_use]
    pub fn half_made_plans(
        &self,
        homes: &Homes,
        name: &Name,
        record: &VolumeRecord,
    ) -> Vec<VolumePlan> {
        self.with_specs(homes, record, homes.plan_half_made(name, record))
    }

    fn with_specs(
        &self,
        homes: &Homes,
        record: &VolumeRecord,
        backings: Vec<BackingPlan>,
    ) -> Vec<VolumePlan> {
        let specs = self.volume_specs(homes, record).into_iter();
        let (is_clean, is_read_only) = (false, record.read_only);
        let plan = |(spec, backing)| VolumePlan { spec, backing, is_clean, is_read_only };
        specs.zip(backings).map(plan).collect()
    }

    /// What all shards are told, after every check.
    pub(crate) fn checked_spec(&self, error: &str) -> Result<CacheSpec, Report> {
        let refused = |problem: crate::config::Problem| problem.report(error);
        let spec = self.layout.cache_spec(&self.classes).map_err(refused)?;
        let class_of = |name: &Name| self.class(name.as_str()).map(|(id, _)| id);
        self.layout.check_volumes(&spec, &self.catalog.volumes, class_of).map_err(refused)?;
        Ok(spec)
    }
}

fn is_called(slot: &ClassSlot, name: &str) -> bool {
    slot.as_ref().is_some_and(|(known, _)| known.as_str() == name)
}

/// What does not change while the node runs.
#[derive(Debug)]
pub struct NodeFacts {
    /// The node's directory.
    pub dir: PathBuf,
    /// What it was told at start; live changes are relative to it.
    pub config: Config,
    /// What each shard found and chose at start.
    pub reports: Vec<StartReport>,
    /// Ready-to-paste addresses for clients, such as `nbd+unix:///?socket=…`.
    pub uris: Vec<String>,
    /// Where volumes live.
    pub homes: Homes,
    /// Which volumes may be dirty in a level.
    pub intents: Intents,
    /// Levels that the node started without.
    pub lost: Vec<Lost>,
    /// What the start found at paths of the configuration.
    pub paths: Arc<PathFacts>,
    /// Clients that were not let in.
    pub(crate) refusals: Arc<Refusals>,
}

/// What the start found at paths of the configuration.
#[derive(Debug)]
pub struct PathFacts {
    /// A line where journals and maps of volumes in stores lie badly.
    pub placement: Option<String>,
    /// Files and folders that no volume may be.
    pub(crate) kept: KeptFiles,
}

impl PathFacts {
    /// Looks at the paths, so on a thread that may wait: each folder that hangs costs the time of a
    /// look.
    #[must_use]
    pub fn of(config: &Config) -> PathFacts {
        let placement = crate::cloud::placement_note(config);
        PathFacts { placement, kept: KeptFiles::of(config) }
    }
}

/// The running node.
pub struct Control {
    facts: NodeFacts,
    shards: Vec<Box<dyn ShardPort>>,
    view: RwLock<Arc<View>>,
    /// What sizing knows after its last period.
    sizing: RwLock<Arc<SizingState>>,
    /// What the devices under flash levels said last.
    healths: RwLock<Arc<Healths>>,
    /// What counts for each class; follows the view.
    totals: std::sync::Mutex<ClassTotals>,
    /// Held by the one change that is under way.
    change: turn::Changes,
    /// Writes of the catalog.
    saving: saving::Saving,
    recording: Mutex<recording::Recordings>,
    /// The sockets for virtual machines, which follow the view; set once, where they are on.
    doors: OnceLock<GuestDoors>,
    /// The kernel's block devices.
    devices: HostDevices,
    /// The NBD clients that are connected.
    clients: Clients,
    /// Which shard of a wide volume gets the next client.
    turns: wide::Turns,
    /// Deleted volumes that can come back or are not all gone.
    deletions: deletion::Deletions,
    /// Volumes that are not served, and are tried.
    absences: absent::Absences,
    counters: Rounds<Box<Snapshot>, Vec<Snapshot>>,
    loads: Rounds<Vec<ClientLoad>, BTreeMap<ClientId, ClientLoad>>,
}

impl Control {
    /// Takes over shards that are running already with what `view` says.
    #[must_use]
    pub fn new(facts: NodeFacts, shards: Vec<Box<dyn ShardPort>>, view: View) -> Control {
        assert_eq!(shards.len(), usize::from(view.layout.shards), "a port per shard");
        let view_node = view.catalog.node;
        let (view, sizing) = (RwLock::new(Arc::new(view)), RwLock::default());
        let (change, recording) = (turn::Changes::default(), Mutex::default());
        let devices = HostDevices::new(&facts.dir, view_node);
        let doors = OnceLock::new();
        let (healths, turns) = (RwLock::default(), wide::Turns::default());
        let deletions = deletion::Deletions::default();
        let totals = std::sync::Mutex::default();
        let control = Control {
            facts,
            shards,
            view,
            sizing,
            healths,
            totals,
            change,
            saving: saving::Saving::default(),
            recording,
            doors,
            devices,
            clients: Clients::default(),
            turns,
            deletions,
            absences: absent::Absences::default(),
            counters: Rounds::default(),
            loads: Rounds::default(),
        };
        control.follow_classes(&control.view());
        control
    }

    /// What does not change.
    #[must_use]
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// The node now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What sizing knows after its last period.
    #[must_use]
    pub fn sizing(&self) -> Arc<SizingState> {
        Arc::clone(&self.sizing.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the devices under flash levels said last; those that say nothing are not there.
    #[must_use]
    pub fn healths(&self) -> Arc<Healths> {
        Arc::clone(&self.healths.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn publish_healths(&self, healths: Healths) {
        *self.healths.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(healths);
    }

    pub(crate) fn publish_sizing(&self, state: SizingState) {
        *self.sizing.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    /// Ends a period of some volumes of a shard.
    pub(crate) async fn observe(
        &self,
        shard: usize,
        volumes: Vec<VolumeId>,
        keep: f64,
    ) -> Result<Observed, CommandError> {
        self.ask(shard, |answer| Command::Observe { volumes, keep, answer }).await
    }

    /// Gives volumes of a shard the shares that they were sized.
    pub(crate) async fn set_sized(
        &self,
        shard: usize,
        sized: Vec<(VolumeId, Option<Slots>)>,
    ) -> Result<(), CommandError> {
        self.ask(shard, |answer| Command::SetSized(sized, answer)).await
    }

    /// Tells a shard how much room is free where its volumes' homes lie, in thousandths.
    pub(crate) async fn set_free(
        &self,
        shard: usize,
        free: Vec<(VolumeId, u16)>,
    ) -> Result<(), CommandError> {
        self.ask(shard, |answer| Command::SetFree(free, answer)).await
    }

    /// The way to the shard that serves a volume, or a part of one, by its number.
    #[must_use]
    pub fn port_of(&self, volume: VolumeId) -> &dyn ShardPort {
        &*self.shards[self.view().layout.shard_of(volume)]
    }

    /// The counters of every shard, as they are from now on; readers that wait share them.
    ///
    /// # Errors
    /// A report when a shard has ended.
    pub async fn snapshots(&self, pace: Pace) -> Result<Arc<Vec<Snapshot>>, Report> {
        let ask = |shard| self.tell(shard, Command::Snapshot);
        let merge = |all: Vec<Box<Snapshot>>| {
            self.merge_snapshots(all.into_iter().map(|snapshot| *snapshot).collect())
        };
        let read = self.counters.read(self.shards.len(), pace, ask, merge).await;
        read.map_err(|e| report(&e, "cannot read the node's counters"))
    }

    fn merge_snapshots(&self, mut snapshots: Vec<Snapshot>) -> Vec<Snapshot> {
        self.name_by_volume(&mut snapshots);
        if let Some(doors) = self.doors.get() {
            // Parts have one name here: a guest counts at the first.
            let mut seen = std::collections::HashSet::new();
            let volumes = snapshots.iter_mut().flat_map(|snapshot| &mut snapshot.volumes);
            for stats in volumes.filter(|stats| seen.insert(stats.volume)) {
                stats.connections += u64::from(doors.has_guest(stats.volume));
            }
        }
        snapshots
    }

    /// Stops every shard: requests end, all is made durable. The node serves nothing afterwards.
    /// All are told at once, since a shard with parts of wide volumes serves the others' clients
    /// until those have their answers. A change that goes on for too long ends as a crash at that
    /// point would end it.
    ///
    /// # Errors
    /// The first report of a shard that could not make everything durable; the others stop anyway.
    pub async fn stop(&self) -> Result<(), Report> {
        let _change = self.save_to_stop().await;
        self.change.set_stopped();
        let mut stopping = Vec::new();
        for shard in 0..self.shards.len() {
            stopping.push(self.tell(shard, Command::Stop));
        }
        let mut first = Ok(());
        for (shard, stopped) in stopping.into_iter().enumerate() {
            let stopped = answer_of(shard, stopped).await;
            first = first.and(stopped.map_err(|e| unclean_stop(shard, &e)));
        }
        first
    }

    /// Sends a command to a shard and waits for its answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, CommandError> {
        let sent = self.tell(shard, command);
        answer_of(shard, sent).await
    }

    /// Sends a command to a shard; where the answer will come, unless the shard has ended.
    fn tell<T: Send + 'static>(
        &self,
        shard: usize,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Option<Awaited<T>> {
        let (sender, receiver) = oneshot::channel();
        // The receiver is gone only when the asker is; then nobody misses the answer.
        let answer: Answer<T> = Box::new(move |result| drop(sender.send(result)));
        self.shards[shard].send(command(answer)).ok().map(|()| receiver)
    }

    /// Tells every shard; when one refuses, those before it get `old` back.
    async fn reconfigure(&self, new: &CacheSpec, old: &CacheSpec) -> Result<(), CommandError> {
        for shard in 0..self.shards.len() {
            let told = self.ask(shard, |answer| Command::Reconfigure(new.clone(), answer)).await;
            if let Err(refused) = told {
                for before in 0..shard {
                    let back = |answer| Command::Reconfigure(old.clone(), answer);
                    if let Err(stuck) = self.ask(before, back).await {
                        tracing::error!(shard = before, cause = stuck.cause, "cannot change back");
                    }
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Refuses what the devices cannot keep.
    fn admit(&self, after: &View, error: &str) -> Result<(), Report> {
        crate::admission::check(&self.facts.config.devices, &self.view(), after, error)
    }

    /// Tells shards the limits of `view` that are others than in `told`. A shard that does not take
    /// them has ended, and the node with it.
    async fn tell_limits(&self, view: &View, told: Option<&View>) {
        for shard in 0..self.shards.len() {
            self.tell_discards(shard, view, told).await;
            self.tell_led(shard, view, told).await;
            let plan = view.limit_plan(shard);
            if plan == told.map(|view| view.limit_plan(shard)).unwrap_or_default() {
                continue;
            }
            let taken = self.ask(shard, |answer| Command::SetLimits(plan, answer)).await;
            if let Err(refused) = taken {
                tracing::error!(shard, cause = refused.cause, "cannot set limits");
            }
        }
    }

    async fn tell_led(&self, shard: usize, view: &View, told: Option<&View>) {
        let led = view.led_parts(shard);
        if led == told.map(|view| view.led_parts(shard)).unwrap_or_default() {
            return;
        }
        let taken = self.ask(shard, |answer| Command::SetLed(led, answer)).await;
        if let Err(refused) = taken {
            tracing::error!(shard, cause = refused.cause, "cannot set where limits are kept");
        }
    }

    async fn tell_discards(&self, shard: usize, view: &View, told: Option<&View>) {
        let plan = view.discard_plan(shard);
        if plan == told.map(|view| view.discard_plan(shard)).unwrap_or_default() {
            return;
        }
        let taken = self.ask(shard, |answer| Command::SetDiscards(plan, answer)).await;
        if let Err(refused) = taken {
            tracing::error!(shard, cause = refused.cause, "cannot set how discards go");
        }
    }

    /// Tells shards that have just started the limits that hold; before clients are let in.
    pub(crate) async fn start_limits(&self) {
        self.tell_limits(&self.view(), None).await;
    }

    /// Makes `view` the node's view.
    fn show(&self, view: View) {
        changes::log(&self.view(), &view);
        let view = Arc::new(view);
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&view);
        // Later, so that a scrape that finds a class no more in the totals finds it in no view.
        self.follow_classes(&view);
        self.follow_homes();
        if let Some(doors) = self.doors.get() {
            doors.follow(&view);
        }
    }

    /// Tells the owner of remote homes what holds now.
    pub(crate) fn follow_homes(&self) {
        let view = self.view();
        self.facts.homes.follow(&view, &self.uplink_config(&view));
    }

    /// Opens a socket for virtual machines in `directory` for each volume, now and from now on.
    pub(crate) fn open_doors(self: &Arc<Self>, directory: &Path) {
        let doors = self.doors.get_or_init(|| GuestDoors::new(directory, self));
        doors.follow(&self.view());
    }

    /// Lets no other virtual machine in.
    pub(crate) fn shut_doors(&self) {
        self.doors.get().into_iter().for_each(GuestDoors::shut);
    }

    /// Closes the sockets for virtual machines.
    pub(crate) fn close_doors(&self) {
        self.doors.get().into_iter().for_each(GuestDoors::close);
    }

    /// A volume's socket for virtual machines, where it has one.
    #[must_use]
    pub fn door(&self, name: &Name) -> Option<DoorState> {
        self.doors.get()?.state(name)
    }

    /// Makes and takes over the kernel's block devices; a line for each that is not there.
    pub(crate) async fn open_devices(&self) -> Vec<String> {
        self.devices.open(self).await
    }

    /// Removes block devices that nobody uses; the others wait for the node's next life.
    pub(crate) async fn close_devices(&self) {
        self.devices.close(self).await;
    }

    /// A volume's block device, where it has one.
    #[must_use]
    pub fn block_device(&self, volume: VolumeId) -> Option<String> {
        self.devices.path(volume)
    }

    fn existing_volume(&self, error: &str, name: &Name) -> Result<VolumeRecord, Report> {
        let view = self.view();
        if let Some(absence) = view.absence(name) {
            return Err(absence.refusal(error, name));
        }
        let found = view.volumes().find(|(known, _)| *known == name);
        found.map(|(_, record)| record.clone()).ok_or_else(|| {
            Report::new(ReportKind::NotFound, error)
                .cause(format!("there is no volume `{name}`"))
                .state("nothing was changed")
                .hint("`layby volume list` shows the volumes of this node")
        })
    }
}

/// Where a shard's answer will come.
type Awaited<T> = oneshot::Receiver<Result<T, CommandError>>;

async fn answer_of<T>(
    shard: usize,
    sent: Option<impl Future<Output = Result<Result<T, CommandError>, RecvError>>>,
) -> Result<T, CommandError> {
    let ended =
        || CommandError { kind: ErrorKind::Closed, cause: format!("shard {shard} is not running") };
    match sent {
        Some(receiver) => receiver.await.unwrap_or_else(|_| Err(ended())),
        None => Err(ended()),
    }
}

/// A shard's refusal as a report.
fn report(refused: &CommandError, error: impl Into<String>) -> Report {
    Report::new(refused.kind.into(), error)
        .cause(refused.cause.clone())
        .state("nothing was changed; what was acknowledged is safe")
        .hint("the node's log has more; `layby status` shows whether it still serves")
}

fn unclean_stop(shard: usize, refused: &CommandError) -> Report {
    Report::new(refused.kind.into(), format!("cannot stop shard {shard} cleanly"))
        .cause(refused.cause.clone())
        .state(
            "what was flushed is safe; writes that were not may be lost if the power fails before \
             the next start",
        )
        .hint("look at the device that is named; the next start recovers as after a crash")
}
