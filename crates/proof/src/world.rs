//! A node's life carried out: the production shard, simulated disks and sockets, and the oracle.
//!
//! How: acts are performed one after the other; between the node's turns clients' bytes are
//! delivered in pieces and replies are held against the oracle. A power cut unwinds the node's
//! stack at a step; then the node starts anew on what its disks kept.
//! Invariant: every failure is a [`Failure`], an assertion inside the node included; an honest life
//! has no error at all, a failing one no wrong byte and no lost promise, a lying one no wrong byte.
//! Cost: what the node does, and a copy of each volume whenever all is looked at.

mod cloud;
mod faults;
#[cfg(test)]
mod floods;
mod guests;
mod lengths;
mod lost;
mod starts;
mod waiting;

use crate::client::{Answered, Client};
use crate::home::CloudHome;
use crate::oracle::{self, CELL, Oracle, Rigour, changes, overlap};
use crate::plan::{
    Act, Area, BLOCK, BLOCKS, CLIENTS, Character, Disk, Leave, Life, StartFault, VOLUMES,
};
use crate::timeline::Timeline;
use layby_engine::Shard;
use layby_engine::control::{ClientId, Command, CommandError, Connection, Snapshot};
use layby_engine::core::{Notice, STOP_PATIENCE};
use layby_engine::io::{CrashMode, Io, PowerCut, SimHost, SimIo, SocketId, Window};
use layby_frontend::nbd::NbdSession;
use layby_types::{Call, Nanos, Operation, Rng, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// Turns that anything may take before it counts as hung.
const TURNS_MAX: u32 = 8_000;
/// Turns after which a node that has nothing to do has closed what its clients left.
const LAST_TURNS: u32 = 40;

/// Why a life failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The index of the act that was being performed.
    pub act: usize,
    /// What went wrong, as a sentence.
    pub what: String,
}

/// What a life has seen.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were answered.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Power cuts, orderly stops before one included.
    pub cuts: u64,
    /// Power cuts while the node recovered.
    pub cuts_in_recovery: u64,
    /// Stops that ended without all being durable, since a device did not answer in time.
    pub stops_unclean: u64,
    /// Starts that were refused, in a life whose disks gave reason to.
    pub refused: u64,
    /// Starts that failed by a fault that the next one did not meet.
    pub starts_failed: u64,
    /// Clients that left in disorder.
    pub broken: u64,
    /// Nodes whose disks were destroyed.
    pub destroyed: u64,
    /// Times that what a store alone has was held against the oracle.
    pub restored: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// What faults that damage a place of a disk have met there, by kind.
    pub areas: BTreeMap<(&'static str, Area), u64>,
    /// Clean volumes whose backing store alone was held against the oracle after a power cut.
    pub clean_checked: u64,
    /// Write intents that a disk did not take.
    pub intents_refused: u64,
    /// Volumes that were written back without the NVM level, and held against it.
    pub written_back: u64,
    /// Windows between two steps that were passed, and that a power cut fell into.
    pub windows: BTreeSet<Window>,
    /// Of these, those that a power cut fell into.
    pub windows_cut: BTreeSet<Window>,
    /// Volumes that became longer or shorter.
    pub lengths: u64,
    /// Volumes that were removed, and whose backing stores were held against the oracle.
    pub removed: u64,
    /// Older copies of a level that were refused.
    pub older: u64,
    /// Older copies of a node's journal and map file that were refused.
    pub older_nodes: u64,
    /// Steps of devices.
    pub steps: u64,
}

/// For how long a stop may wait without anything in flight: for a retry.
const STOP_QUIET_MAX: Nanos = Nanos::from_secs(5);

type Node = Shard<NbdSession, SimHost>;

struct World<'a> {
    life: &'a Life,
    host: SimHost,
    /// Where volumes are in the cloud.
    homes: Vec<Option<CloudHome>>,
    rng: Rng,
    catalog: lost::Catalog,
    levels: starts::Levels,
    lengths: lengths::Lengths,
    guests: guests::Guests,
    node: Option<Node>,
    commands: Sender<Command<NbdSession>>,
    clients: Vec<Option<Client>>,
    /// Sockets of clients that left in disorder: the node has to close its side.
    left: Vec<SocketId>,
    /// Changes whose clients left before an answer: they may still happen.
    orphans: Vec<(usize, Call)>,
    oracle: Oracle,
    /// Faults gave reason for errors.
    is_tolerant: bool,
    /// Disks lied, so that a power cut may take what was durable.
    has_lied: bool,
    /// Pages of the NVM level that were lost, one as often as it was.
    pages_lost: Vec<u64>,
    /// What the next start alone meets.
    at_start: Vec<(Disk, StartFault)>,
    /// Other faults gave reason for errors.
    has_failed: bool,
    /// The disk that the next start finds full.
    full_at_start: Option<Disk>,
    /// Power was cut after disks had lied: what was durable may be gone for good.
    is_bereft: bool,
    /// Power was cut since all was looked at.
    has_crashed: bool,
    /// The node cannot start any more, and was right to say so.
    is_over: bool,
    tally: Tally,
    timeline: Timeline,
    notices: Arc<Mutex<Vec<Notice>>>,
}

/// Lives a life; with a timeline that is on, notes what happens.
pub fn live(life: &Life, timeline: &mut Timeline) -> Result<Tally, Failure> {
    let mut world = World::new(life, std::mem::take(timeline));
    let mut act = 0;
    let lived = catch_unwind(AssertUnwindSafe(|| world.run(&mut act)));
    let result = match lived {
        Ok(result) => result,
        Err(payload) => Err(describe(payload.as_ref())),
    };
    *timeline = world.timeline;
    let machine = world.host.machine();
    (world.tally.windows, world.tally.windows_cut) = machine.windows();
    world.tally.steps = machine.steps();
    drop(machine);
    result.map(|()| world.tally).map_err(|what| Failure { act, what })
}

/// The sentence of a panic.
fn describe(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let place = crate::campaign::last_panic();
    format!("the node panics: {} {place}", text.unwrap_or("without a sentence"))
}

impl<'a> World<'a> {
    fn new(life: &'a Life, timeline: Timeline) -> World<'a> {
        let mut io = SimIo::new(life.seed);
        io.set_dropping(true);
        match life.shape.is_persistent {
            true => io.add_persistent_memory("nvm", life.shape.nvm_bytes),
            false => io.add_disk("nvm", life.shape.nvm_bytes),
        };
        io.add_disk("ssd", life.shape.ssd_bytes);
        for index in 0..VOLUMES {
            io.add_disk(&Disk::Home(index).name(), BLOCKS * BLOCK);
        }
        let fuse = io.fuse();
        let home = |index| CloudHome::new(index, life.seed, fuse.clone());
        let homes = (0..VOLUMES).map(|index| life.shape.remote[index].then(|| home(index)));
        let durable = life.shape.spec.classes.iter().map(|class| class.durable_writes);
        let volumes = durable.zip(life.shape.remote);
        let volumes = volumes.map(|(is_durable, is_far)| (BLOCKS * BLOCK, is_durable, is_far));
        World {
            life,
            host: SimHost::new(io),
            homes: homes.collect(),
            rng: Rng::new(life.seed ^ 0xc0de),
            catalog: lost::Catalog::new(life.shape.remote, life.seed),
            levels: starts::Levels::default(),
            lengths: lengths::Lengths::default(),
            guests: guests::Guests::default(),
            node: None,
            commands: channel().0,
            clients: (0..CLIENTS).map(|_| None).collect(),
            left: Vec::new(),
            orphans: Vec::new(),
            oracle: Oracle::new(volumes),
            is_tolerant: false,
            has_lied: false,
            pages_lost: Vec::new(),
            at_start: Vec::new(),
            has_failed: false,
            full_at_start: None,
            is_bereft: false,
            has_crashed: false,
            is_over: false,
            tally: Tally::default(),
            timeline,
            notices: Arc::default(),
        }
    }

    fn run(&mut self, at: &mut usize) -> Result<(), String> {
        self.start(true)?;
        for (index, act) in self.life.acts.iter().enumerate() {
            *at = index;
            self.note(|| format!("act {index}: {act}"));
            self.perform(*act)?;
            if self.is_over {
                break;
            }
        }
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.host.now();
        self.timeline.note(now, line);
    }

    fn perform(&mut self, act: Act) -> Result<(), String> {
        match act {
            Act::Connect(client, structured) => self.connect(client, structured)?,
            Act::Ask(client, call) => self.ask(client, call),
            Act::Leave(client, how) => self.leave(client, how),
            Act::Turns(count) => self.turns(count)?,
            Act::Settle => self.settle()?,
            Act::Drain(volume) => self.drain(volume),
            Act::Guest(volume, seed) => self.ask_as_guest(volume, seed),
            Act::GuestLeaves(volume) => self.leave_as_guest(volume),
            Act::Remove(volume) => self.remove(volume),
            Act::Resize(volume, slots) => {
                let sized = vec![(VolumeId(volume as u32), slots)];
                self.command(Command::SetSized(sized, Box::new(drop)));
            }
            Act::Length(volume, sectors) => self.change_length(volume, sectors),
            Act::Fault(fault) => self.fault(fault),
            Act::Heal => self.heal(),
            Act::Arm(cut) => self.host.machine().cut_at(Some(cut)),
            Act::Cut(mode) => self.cut(mode)?,
            Act::Stop(mode) => self.stop(mode)?,
            Act::Cloud(act) => self.cloud(act)?,
            Act::Destroy { is_ghost } => self.destroy(is_ghost)?,
        }
        Ok(())
    }

    fn drain(&mut self, volume: Option<usize>) {
        if volume.is_some_and(|volume| !self.guests.is_served(volume)) {
            return;
        }
        let id = volume.map(|index| VolumeId(index as u32));
        let its = (0..VOLUMES).filter(|index| volume.is_none_or(|volume| volume == *index));
        let its = its.filter(|index| self.homes[*index].is_none() && self.guests.is_served(*index));
        let acknowledged = its.map(|index| (index, self.oracle.acknowledged(index))).collect();
        let told = self.guests.on_drained(acknowledged);
        self.command(Command::Drain(id, Box::new(told)));
        for index in 0..VOLUMES {
            let is_its = volume.is_none_or(|volume| volume == index);
            if is_its && self.homes[index].is_none() && self.guests.is_served(index) {
                self.command(self.catalog.clean(index));
            }
        }
    }

    fn command(&mut self, command: Command<NbdSession>) {
        assert!(self.commands.send(command).is_ok(), "the node holds the other end");
    }
}

/// Starting, turning, ending.
impl World<'_> {
    /// One turn of the node and of its clients; a power cut in it restarts the node.
    fn turn(&mut self) -> Result<(), String> {
        self.deliver();
        let Some(node) = &mut self.node else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(|| node.turn())) {
            Ok(goes_on) => assert!(goes_on, "nobody asked it to stop"),
            Err(payload) if payload.is::<PowerCut>() => return self.restart(self.life.shape.crash),
            Err(payload) => return Err(describe(payload.as_ref())),
        }
        self.collect()
    }

    fn turns(&mut self, count: u32) -> Result<(), String> {
        for _ in 0..count {
            self.turn()?;
        }
        Ok(())
    }

    fn lose_power(&mut self, mode: CrashMode) {
        self.host.machine().crash(mode);
        self.homes.iter().flatten().for_each(CloudHome::crash);
    }

    fn cut(&mut self, mode: CrashMode) -> Result<(), String> {
        self.restart(mode)
    }

    fn restart(&mut self, mode: CrashMode) -> Result<(), String> {
        self.note(|| format!("the power fails: {mode:?}"));
        self.tally.cuts += 1;
        self.node = None;
        self.clients.iter_mut().for_each(|client| *client = None);
        self.orphans.clear();
        self.left.clear();
        self.lengths.crash();
        self.guests.crash();
        self.lose_power(mode);
        self.heal();
        self.fill_for_start();
        self.oracle.crash();
        self.has_crashed = true;
        self.is_bereft |= self.has_lied;
        self.check_without_levels()?;
        self.start_on_an_older_level()?;
        self.start(false)
    }

    /// Stops in order: what was acknowledged must be there, whatever the power does afterwards.
    fn stop(&mut self, mode: CrashMode) -> Result<(), String> {
        self.host.machine().cut_at(None);
        self.settle()?;
        if self.life.character == Character::Stuck || self.is_over {
            return Ok(());
        }
        let cuts = self.tally.cuts;
        self.clients.iter_mut().flatten().for_each(|client| client.is_leaving = true);
        let stopped = Arc::new(Mutex::new(None));
        let answer = stopped.clone();
        let begun = self.host.now();
        self.command(Command::Stop(Box::new(move |result| {
            *answer.lock().expect("one thread") = Some(result);
        })));
        for _ in 0..TURNS_MAX {
            let Some(node) = &mut self.node else { break };
            match catch_unwind(AssertUnwindSafe(|| node.turn())) {
                Ok(true) => {}
                Ok(false) => {
                    let result = stopped.lock().expect("one thread").take();
                    self.judge_stop(result, begun)?;
                    return self.restart(mode);
                }
                Err(payload) => return Err(describe(payload.as_ref())),
            }
            self.deliver();
            self.collect()?;
        }
        let waiting = self.describe_waiting();
        Err(format!("the node does not stop (after {cuts} power cuts): {waiting}"))
    }

    /// A clean stop promises that all is durable; a node whose devices work may give up only after
    /// the time that it states.
    fn judge_stop(
        &mut self,
        result: Option<Result<(), CommandError>>,
        begun: Nanos,
    ) -> Result<(), String> {
        match result {
            None => Err("the stop is not answered".to_owned()),
            Some(Ok(())) => {
                if !self.has_lied {
                    self.oracle.stopped();
                }
                Ok(())
            }
            Some(Err(error)) => {
                self.note(|| format!("the stop is not clean: {}", error.cause));
                self.tally.stops_unclean += 1;
                let took = self.host.now().since(begun);
                // A store may be out of reach for as long; a disk has something in flight.
                let is_near = self.homes.iter().all(Option::is_none);
                if is_near && self.host.machine().quiet_for() > STOP_QUIET_MAX {
                    return Err(format!("the stop waits for nothing: {}", error.cause));
                }
                match self.is_tolerant || took >= STOP_PATIENCE {
                    true => Ok(()),
                    false => Err(format!("the stop gives up too early: {}", error.cause)),
                }
            }
        }
    }
}

/// Clients.
impl World<'_> {
    fn connect(&mut self, number: usize, structured: bool) -> Result<(), String> {
        let is_served = self.guests.is_served(number % VOLUMES);
        let Some(node) = self.node.as_mut().filter(|_| is_served) else { return Ok(()) };
        if self.clients[number].is_some() {
            return Ok(());
        }
        let volume = VolumeId((number % VOLUMES) as u32);
        let socket = self.host.machine().add_socket();
        let bytes = self.lengths.usable(number % VOLUMES);
        let (client, session) = Client::new(socket, volume, bytes, structured);
        let (received, pending, peer) = (Vec::new(), Vec::new(), format!("client {number}"));
        let (socket_of_host, cipher) = (None, None);
        let connection = Connection {
            client: ClientId(number as u64),
            socket: socket_of_host,
            cipher,
            session,
            volume,
            received,
            pending,
            peer,
        };
        match catch_unwind(AssertUnwindSafe(|| node.serve(socket, connection))) {
            Ok(()) => self.clients[number] = Some(client),
            Err(payload) if payload.is::<PowerCut>() => self.restart(self.life.shape.crash)?,
            Err(payload) => return Err(describe(payload.as_ref())),
        }
        Ok(())
    }

    fn ask(&mut self, number: usize, call: Call) {
        let volume = number % VOLUMES;
        let is_change = changes(call.operation);
        if is_change && self.races(volume, &call) {
            return;
        }
        let end = call.offset + call.length;
        if end > self.lengths.usable(volume) {
            return;
        }
        let may_ask = |client: &Client| {
            !client.is_leaving
                && end <= client.bytes
                && (call.operation != Operation::BlockStatus || client.has_status())
        };
        if !self.clients[number].as_ref().is_some_and(may_ask) {
            return;
        }
        let is_write = call.operation == Operation::Write;
        let version = if is_write { self.oracle.version() } else { oracle::ZERO };
        let expected = self.oracle.begin(volume, &call, version);
        let payload =
            if is_write { oracle::encode(version, volume, oracle::cells(&call)) } else { vec![] };
        if is_change {
            let others = self.clients.iter_mut().skip(volume).step_by(VOLUMES).flatten();
            for reader in others.flat_map(|client| client.asked.values_mut()) {
                Oracle::show(&mut reader.expected, &reader.call, &call, version);
            }
        }
        let client = self.clients[number].as_mut().expect("it was looked at");
        client.ask(call, &payload, version, expected);
        self.note(|| format!("client {number} asks for {version}"));
    }

    /// Two changes of one cell at once have no defined order.
    fn races(&self, volume: usize, call: &Call) -> bool {
        let mut calls = self.calls_of(volume);
        calls.any(|other| changes(other.operation) && overlap(other, call))
    }

    fn leave(&mut self, number: usize, how: Leave) {
        let Some(client) = &mut self.clients[number] else { return };
        let socket = client.socket;
        let mut machine = self.host.machine();
        match how {
            Leave::Goodbye => return client.say_goodbye(),
            Leave::Cut(bytes) | Leave::Close(bytes) => {
                let count = client.outgoing.len().min(bytes as usize);
                machine.put(socket, &client.outgoing[..count]);
            }
            Leave::Garble(seed) => {
                let mut bytes = [0; 64];
                Rng::new(seed).fill(&mut bytes);
                machine.put(socket, &client.outgoing);
                machine.put(socket, &bytes);
            }
        }
        machine.leave(socket);
        if matches!(how, Leave::Cut(_)) && self.rng.chance(1, 2) {
            machine.reset(socket);
        }
        drop(machine);
        self.tally.broken += 1;
        self.orphan(number);
    }

    /// Forgets a client; what it asked to change may still happen.
    fn orphan(&mut self, number: usize) {
        let Some(client) = self.clients[number].take() else { return };
        self.left.push(client.socket);
        let calls = client.asked.values().map(|asked| asked.call);
        let changes = calls.filter(|call| changes(call.operation));
        self.orphans.extend(changes.map(|call| (number % VOLUMES, call)));
    }

    /// Bytes go to the node, in pieces.
    fn deliver(&mut self) {
        let mut machine = self.host.machine();
        for client in self.clients.iter_mut().flatten() {
            if client.outgoing.is_empty() || self.rng.chance(1, 3) {
                continue;
            }
            let all = client.outgoing.len();
            let count =
                if self.rng.chance(1, 4) { 1 + self.rng.below(all as u64) as usize } else { all };
            machine.put(client.socket, &client.outgoing[..count]);
            client.outgoing.drain(..count);
        }
    }

    /// Replies come from the node, in pieces, and are judged.
    fn collect(&mut self) -> Result<(), String> {
        self.take_intents();
        self.take_lengths()?;
        let notices = std::mem::take(&mut *self.notices.lock().expect("one thread"));
        for notice in notices {
            self.note(|| format!("the node says {notice:?}"));
        }
        for number in 0..CLIENTS {
            let Some(client) = &mut self.clients[number] else { continue };
            let most =
                if self.rng.chance(1, 6) { self.rng.below(600) as usize } else { usize::MAX };
            let mut machine = self.host.machine();
            let bytes = machine.take(client.socket, most);
            // Who takes nothing does not see the end.
            let is_closed = machine.is_closed(client.socket) && bytes.is_empty() && most > 0;
            drop(machine);
            let answered = client
                .on_bytes(&bytes)
                .map_err(|what| format!("client {number} cannot follow the node: {what}"))?;
            for answer in answered {
                self.judge(number, answer)?;
            }
            if is_closed {
                let Some(client) = &self.clients[number] else { continue };
                if client.is_turned_away || !self.guests.is_served(number % VOLUMES) {
                    self.orphan(number);
                    continue;
                }
                if !client.is_leaving || !client.asked.is_empty() {
                    return Err(format!("the node drops client {number}, which did no wrong"));
                }
                self.clients[number] = None;
            }
        }
        self.collect_guests()?;
        let stamp = self.oracle.stamp();
        self.homes.iter().flatten().for_each(|home| home.mark(stamp));
        Ok(())
    }

    fn rigour(&self) -> Rigour {
        if self.is_bereft { Rigour::AnyOwn } else { Rigour::Exact }
    }

    fn judge(&mut self, number: usize, answer: Answered) -> Result<(), String> {
        let Answered { asked, result } = answer;
        let (volume, call) = (number % VOLUMES, &asked.call);
        self.tally.requests += 1;
        let version = asked.version;
        self.note(|| format!("client {number}: {:?} of {version}: {result:?}", call.operation));
        if let Err(errno) = result {
            self.tally.errors += 1;
            let may_fail = asked.is_cut || !self.guests.is_served(volume);
            return if may_fail || self.is_tolerant || self.catalog.has_refused(volume) {
                Ok(())
            } else {
                let home = self.describe_home(volume);
                Err(format!(
                    "{call:?} of volume {volume} fails with {errno}, and no disk has{home}"
                ))
            };
        }
        self.oracle.acknowledge(volume, call, &asked.expected);
        match call.operation {
            Operation::Read => {
                let rigour = self.rigour();
                Oracle::check_read(volume, call, &asked.expected, &asked.data, rigour)
            }
            Operation::BlockStatus if self.rigour() == Rigour::Exact => {
                let mut offset = 0;
                for extent in &asked.extents {
                    let run = offset..(offset + extent.length).min(call.length);
                    offset += extent.length;
                    if extent.hole || extent.zero {
                        Oracle::check_hole(volume, call, &asked.expected, run)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Looking at everything.
impl World<'_> {
    /// Lets all requests end, then reads every volume and holds it against the oracle.
    fn settle(&mut self) -> Result<(), String> {
        if self.life.character == Character::Stuck {
            self.heal();
        }
        // What only a store has is waited for without end.
        self.homes.iter().flatten().for_each(CloudHome::mend_link);
        self.quiesce()?;
        if self.is_over {
            return Ok(());
        }
        self.check_counts()?;
        self.check_truncated()?;
        self.check_removed()?;
        let mut unread = 0;
        for volume in
            (0..VOLUMES).filter(|volume| !self.guests.is_removed(*volume)).collect::<Vec<_>>()
        {
            let cuts = self.tally.cuts;
            let read = self.read_volume(volume)?;
            if self.is_over {
                return Ok(());
            }
            if self.tally.cuts != cuts {
                // The power failed meanwhile: begin again.
                return self.settle();
            }
            let cells: Vec<Option<&[u8]>> =
                read.iter().flat_map(|block| block_cells(block.as_deref())).collect();
            self.oracle.settle(volume, &cells, self.rigour())?;
            // What an object store does not return lies on no page.
            let is_local = self.homes[volume].is_none();
            unread += read.iter().filter(|block| is_local && block.is_none()).count();
        }
        self.check_unread(unread)?;
        self.has_crashed = false;
        (0..VOLUMES).try_for_each(|volume| self.look_at_store(volume))
    }

    /// A volume by blocks; `None` where a read fails in a life that may.
    fn read_volume(&mut self, volume: usize) -> Result<Vec<Option<Vec<u8>>>, String> {
        let mut blocks = Vec::new();
        let end = self.lengths.of(volume);
        match self.read(volume, 0, end)? {
            Some(data) => {
                blocks.extend(data.chunks(BLOCK as usize).map(|block| Some(block.to_vec())));
            }
            None => {
                for block in 0..end.div_ceil(BLOCK) {
                    let offset = block * BLOCK;
                    blocks.push(self.read(volume, offset, BLOCK.min(end - offset))?);
                }
            }
        }
        Ok(blocks)
    }

    /// One read by a client of the volume, alone.
    fn read(&mut self, volume: usize, offset: u64, length: u64) -> Result<Option<Vec<u8>>, String> {
        self.connect(volume, true)?;
        let end = self.lengths.of(volume);
        if self.clients[volume].as_ref().is_some_and(|client| client.bytes < end) {
            self.leave(volume, Leave::Close(0));
            self.connect(volume, true)?;
        }
        if self.clients[volume].as_ref().is_some_and(|client| client.is_leaving) {
            self.orphan(volume);
            self.connect(volume, true)?;
        }
        let flags = layby_types::CallFlags::default();
        let call = Call { cookie: 0, operation: Operation::Read, offset, length, flags };
        let Some(client) = &mut self.clients[volume] else { return Ok(None) };
        client.ask(call, &[], oracle::ZERO, oracle::Expected::default());
        for _ in 0..TURNS_MAX {
            self.deliver();
            self.take_intents();
            self.take_lengths()?;
            let Some(node) = &mut self.node else { return Ok(None) };
            match catch_unwind(AssertUnwindSafe(|| node.turn())) {
                Ok(_) => {}
                Err(payload) if payload.is::<PowerCut>() => {
                    self.restart(self.life.shape.crash)?;
                    return Ok(None);
                }
                Err(payload) => return Err(describe(payload.as_ref())),
            }
            let Some(client) = &mut self.clients[volume] else { return Ok(None) };
            let bytes = self.host.machine().take(client.socket, usize::MAX);
            if let Some(Answered { asked, result }) = client.on_bytes(&bytes)?.pop() {
                return match result {
                    Ok(()) => Ok(Some(asked.data)),
                    Err(_) if self.is_tolerant => Ok(None),
                    Err(errno) => Err(format!("a read of volume {volume} fails with {errno}")),
                };
            }
        }
        Err(format!("a read of volume {volume} never ends"))
    }

    /// Room adds up, and nobody has more than its cap, once what a restart found is worked off.
    fn check_counts(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            match self.count() {
                Ok(()) => return Ok(()),
                Err(what) if !self.has_crashed || self.is_over => return Err(what),
                Err(_) => self.turn()?,
            }
        }
        self.count()
    }

    fn count(&mut self) -> Result<(), String> {
        let Some(node) = &mut self.node else { return Ok(()) };
        let snapshot: Snapshot = node.snapshot();
        for (index, level) in snapshot.levels.iter().enumerate() {
            if level.cleaning_reserved > 0 {
                let count = level.cleaning_reserved;
                return Err(format!("cleaning took {count} reserved blocks of level {index}"));
            }
            let slots: u64 = snapshot.volumes.iter().map(|volume| volume.slots[index]).sum();
            if slots != level.slots_used {
                let used = level.slots_used;
                return Err(format!("level {index} counts {used} slots, its volumes {slots}"));
            }
            for volume in &snapshot.volumes {
                let class = &self.life.shape.spec.classes[volume.volume.0 as usize];
                if class.levels & (1 << index) == 0 {
                    // Room that is lent to the class is nobody's share.
                    continue;
                }
                let cap = self.life.shape.shares[volume.volume.0 as usize][index].cap;
                let (held, dirty) = (volume.slots[index], volume.slots_dirty[index]);
                // Dirty blocks that a restart found beyond a cap cannot leave while disks fail.
                let is_above = held > u64::from(cap) && !self.is_tolerant;
                if is_above || dirty > held {
                    let id = volume.volume.0;
                    return Err(format!(
                        "volume {id} holds {held} slots ({dirty} dirty) of level {index}, \
                         its cap is {cap}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The cells of a block, or as many times nothing.
fn block_cells(block: Option<&[u8]>) -> Vec<Option<&[u8]>> {
    match block {
        Some(bytes) => bytes.chunks_exact(CELL as usize).map(Some).collect(),
        None => vec![None; (BLOCK / CELL) as usize],
    }
}
