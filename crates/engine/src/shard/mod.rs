//! A shard: one pinned thread that serves its volumes' clients and its part of every level.
//!
//! How: each turn takes what ended, serves clients by rank, answers them, sends what gathered, and
//! sleeps in the kernel until something ends, a command comes or a deadline passes. The best rank
//! is served and answered first; the others pass a quantum of bytes a turn, then it looks again.
//! Invariant: nothing here is shared with other threads but the command channel.
//! Cost: two system calls per turn however many requests it serves; none while idle.

mod client;
mod commands;
mod cut;
mod ending;
mod gate;
mod guest;
mod holds;
mod intake;
mod intent;
mod memory;
mod outbox;
mod pass;
mod reconnect;
mod serve;
mod sink;
mod start;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_late;

pub use memory::ClientMemory;
pub use start::{LevelPart, ShardPlan, StartError, start_shard, write_back_offline, write_back_on};

use crate::control::{Command, CommandError, Connection, GuestQueue, StartReport};
use crate::core::{Asker, Core, Finished, Notice};
use crate::io::{Host, Io as _, IoDone, Scheduled, SocketId};
use client::{Client, TAG_RECEIVE, TAG_SEND};
use commands::Pending;
use gate::Gate;
use guest::{BrokenQueue, Guests, TAG_EVENT};
use holds::Holds;
use layby_cache::schedule::{Flow, Rank, ReadyQueue, ScheduleLimits};
use layby_types::{ErrorKind, Nanos, Session, VolumeId};
use memory::Memory;
use pass::Pass;
use reconnect::Arrivals;
use std::collections::HashMap;
use std::sync::mpsc::Receiver;

/// How long a stop waits for clients that have their answers and do not take them.
const STOP_PATIENCE: Nanos = Nanos::from_secs(10);

/// Turns that background work which is due lets pass at most, while somebody asks.
const TICKS_PUT_OFF_MAX: u32 = 4;

/// Where notices go: the daemon's log.
pub type NoticeSink = Box<dyn FnMut(Notice) + Send>;

/// See the module's header. A thread of its own [runs](start_shard) it on a real host; who
/// simulates a host [starts](Shard::start) it there and takes its turns one by one.
pub struct Shard<S, H> {
    // Field order is drop order: what remote backing stores have begun ends before the ring lets
    // the lock of the node's directory go. What the ring has in flight names no memory of the core.
    core: Core,
    io: Scheduled<H>,
    gate: Gate,
    memory: Memory,
    ready: ReadyQueue,
    limits: ScheduleLimits,
    /// The best rank that has a client; others are served behind it.
    best: Rank,
    /// There are clients below the best rank.
    has_lower: bool,
    /// Ends of devices' work had the last round's turn, so it is the clients'.
    owes_clients: bool,
    /// Turns in a row in which background work was due and let others pass.
    ticks_put_off: u32,
    clients: Vec<Option<Client<S>>>,
    /// Clients to which something happened since the last turn's end.
    touched: Vec<u32>,
    /// Which ranks have too many bytes in the core's hands.
    holds: Holds,
    /// Clients that wait for what connections which have ended leave to be begun.
    arrivals: Arrivals,
    guests: Guests,
    commands: Receiver<Command<S>>,
    /// Commands may be left that the last turn did not take.
    has_commands: bool,
    pending: Pending,
    /// The names of the volumes' homes.
    homes: HashMap<VolumeId, String>,
    notices: NoticeSink,
    done: Vec<IoDone>,
    is_stopping: bool,
    /// When a stop waits no more for clients that take no answers.
    stop_by: Nanos,
}

impl<S: Session, H: Host> Shard<S, H> {
    fn new(
        io: Scheduled<H>,
        core: Core,
        plan: &ShardPlan,
        commands: Receiver<Command<S>>,
        notices: NoticeSink,
    ) -> Self {
        let homes = plan.volumes.iter().map(|v| (v.spec.id, v.backing.name())).collect();
        let limits = plan.limits();
        let mut io = io;
        io.defer(true);
        let mut gate = Gate::default();
        for volume in plan.volumes.iter().filter(|volume| volume.is_clean) {
            match core.has_changes(volume.spec.id) {
                true => gate.intents().hold_revived(volume.spec.id),
                false => gate.intents().set_clean(volume.spec.id),
            }
        }
        Shard {
            io,
            core,
            gate,
            memory: Memory::new(plan.client_memory),
            ready: ReadyQueue::new(limits.quantum_bytes),
            limits,
            best: Rank::FIRST,
            has_lower: false,
            owes_clients: false,
            ticks_put_off: 0,
            clients: Vec::new(),
            touched: Vec::new(),
            holds: Holds::default(),
            arrivals: Arrivals::default(),
            guests: Guests::new(plan.client_memory),
            commands,
            has_commands: false,
            pending: Pending::default(),
            homes,
            notices,
            done: Vec::new(),
            is_stopping: false,
            stop_by: Nanos::NEVER,
        }
    }

    /// Opens the disks of `plan` on `io` and recovers; all chance follows from `seed`.
    ///
    /// # Errors
    /// [`StartError`]; `io` is dropped with what was opened.
    pub fn start(
        io: H,
        plan: &ShardPlan,
        seed: u64,
        commands: Receiver<Command<S>>,
        notices: NoticeSink,
    ) -> Result<(Self, StartReport), StartError> {
        let mut io = Scheduled::new(io, plan.limits());
        let (core, report) = start::open_core(&mut io, plan, seed)?;
        Ok((Shard::new(io, core, plan, commands, notices), report))
    }

    /// Serves until a stop command has been carried out.
    fn run(mut self) {
        while self.turn() {}
    }

    /// Takes commands, ticks, answers, then waits for what ends next; false when a stop command has
    /// been carried out, after which there is no other turn.
    pub fn turn(&mut self) -> bool {
        self.set_now();
        self.take_commands();
        if self.core.next_deadline() <= self.io.now() && !self.puts_tick_off() {
            self.core.on_tick(&mut self.io);
        }
        self.core.look_for_stuck(&mut self.io);
        self.release();
        self.cut_stalled();
        self.answer();
        // What has ended may have been what held a rank: nothing else would wake the shard.
        self.hold_ranks();
        self.let_in();
        self.grant_memory();
        self.end_window();
        if self.is_stopping && self.is_quiet() {
            // The others' clients may have requests here until they are quiet, too.
            self.core.unjoin_all();
            if !self.guests.has_links() {
                self.stop();
                return false;
            }
        }
        let deadline = self.core.next_deadline().min(self.gate.deadline());
        let deadline = deadline.min(self.pending.deadline()).min(self.memory.deadline());
        let deadline = deadline.min(self.patience()).min(self.core.next_look(&self.io));
        let mut deadline = deadline.min(self.holds.deadline()).min(self.arrivals.deadline());
        // What was answered last may have brought the next answer.
        let has_answers = self.core.has_answers();
        if self.guests.has_more() || self.ready.has_work() || self.has_commands || has_answers {
            deadline = Nanos::ZERO;
        }
        let mut done = std::mem::take(&mut self.done);
        self.core.sleep_until(deadline);
        self.io.wait(deadline, &mut done);
        self.set_now();
        for done in done.drain(..) {
            self.route(done);
        }
        self.done = done;
        self.core.poll_homes(&mut self.io);
        self.core.poll_links(&mut self.io);
        if self.guests.look(&mut self.io) {
            self.find_best();
        }
        self.guests.start_branches(|| self.io.waker());
        self.serve_ready();
        let order = (self.best, u64::from(self.limits.quantum_bytes));
        self.guests.go_on(&mut self.io, &mut self.core, &mut self.gate, order);
        true
    }

    /// Background work lets those pass that have asked meanwhile, a bounded number of turns.
    fn puts_tick_off(&mut self) -> bool {
        let puts_off = self.has_lower && self.ticks_put_off < TICKS_PUT_OFF_MAX;
        let puts_off = puts_off && self.io.has_arrived();
        self.ticks_put_off = if puts_off { self.ticks_put_off + 1 } else { 0 };
        puts_off
    }

    fn set_now(&mut self) {
        self.core.resume(&mut self.io);
        self.gate.set_now(self.core.now());
    }

    /// When a stop is to look at its clients again.
    fn patience(&self) -> Nanos {
        if self.io.now() < self.stop_by { self.stop_by } else { Nanos::NEVER }
    }

    /// A stop does not wait for ever for clients that take no answers.
    fn cut_stalled(&mut self) {
        if self.io.now() < self.stop_by {
            return;
        }
        for client in self.clients.iter_mut().flatten().filter(|client| client.is_answered()) {
            client.cut(&mut self.io, &mut self.core);
        }
        self.touch_all();
        self.guests.leave_links(&mut self.io);
    }

    /// Lets clients and guests go on whose volume's limits held them.
    fn release(&mut self) {
        for number in self.gate.take_released() {
            if Guests::is_asker(Asker(number)) {
                self.guests.on_released(Asker(number));
            } else if let Some(client) = self.clients[number as usize].as_mut() {
                client.on_released(&self.io);
                self.wake(number as u32);
            }
        }
    }

    /// Lets clients go on for which the shard's memory had no room, and cuts off those that keep it
    /// from them and move nothing.
    fn grant_memory(&mut self) {
        self.look_for_hangs();
        for number in self.memory.take_granted() {
            if let Some(client) = self.clients[number as usize].as_mut() {
                client.on_granted(&self.io);
                self.wake(number);
            }
        }
        let Some(then) = self.memory.stalled_since(self.io.now()) else { return };
        self.clients.iter_mut().flatten().for_each(|client| client.look_at_send(&self.io));
        let stalled = |client: &&mut Client<S>| !client.is_dead() && client.is_stalled(then);
        for client in self.clients.iter_mut().flatten().filter(stalled) {
            client.cut(&mut self.io, &mut self.core);
            let (peer, volume) = (client.peer.clone(), client.volume);
            let reason = "it moves no bytes and holds memory that other clients wait for";
            (self.notices)(Notice::ClientBroken { peer, volume, reason });
        }
        self.touch_all();
    }

    fn route(&mut self, done: IoDone) {
        let (tag, number) = (done.token.0 >> 56, done.token.0 as u32);
        match tag {
            TAG_RECEIVE => {
                let Some(client) = self.clients[number as usize].as_mut() else {
                    panic!("a client outlives its operations")
                };
                let buffer = done.buffer.expect("a receive brings its buffer back");
                client.on_received(buffer, done.result.map_err(drop), self.io.now());
                self.wake(number);
            }
            TAG_SEND => {
                let Some(client) = self.clients[number as usize].as_mut() else {
                    panic!("a client outlives its operations")
                };
                client.on_sent(&mut self.io, done.buffer, done.result.is_ok());
                self.wake(number);
            }
            TAG_EVENT => self.guests.on_event(number),
            _ => self.core.on_io(&mut self.io, done),
        }
    }

    /// Hands finished requests to their clients, sends, and drops clients that are gone.
    fn answer(&mut self) {
        let mut woken = Vec::new();
        while let Some(finished) = self.core.take_finished() {
            if Guests::is_asker(finished.asker) {
                self.guests.reply(&mut self.io, &mut self.core, finished);
            } else if !self.on_own_finished(&finished) {
                let number = finished.asker.number();
                self.reply(number, finished);
                if woken.last() != Some(&number) {
                    woken.push(number);
                }
            }
        }
        for number in woken {
            self.wake(number);
        }
        for notice in self.core.take_notices() {
            (self.notices)(notice);
        }
        for volume in self.gate.intents().take_wanted() {
            (self.notices)(Notice::IntentWanted { volume });
        }
        if let Some((disk, error)) = self.io.take_refusal() {
            let disk = self.io.disk_name(disk).to_owned();
            (self.notices)(Notice::StreamsRefused { disk, errno: error.errno });
        }
        let mut has_gone = false;
        for BrokenQueue { peer, volume, reason } in
            self.guests.flush(&mut self.gate, &mut self.core)
        {
            (self.notices)(Notice::ClientBroken { peer, volume, reason });
            has_gone = true;
        }
        self.continue_commands();
        let mut touched = std::mem::take(&mut self.touched);
        for number in touched.drain(..) {
            has_gone |= self.end_turn_of(number);
        }
        self.touched = touched;
        if has_gone {
            self.find_best();
        }
    }

    /// Sends what a client of the best rank is answered, and drops a client that is gone; true when
    /// that was so.
    fn end_turn_of(&mut self, number: u32) -> bool {
        let Some(client) = self.clients[number as usize].as_mut() else { return false };
        client.is_touched = false;
        let is_best = client.rank <= self.best;
        let pass = &mut Pass::whole(u64::MAX);
        let broken = is_best && client.send(&mut self.io, pass).is_err();
        client.close_if_done(&mut self.io, &mut self.core, broken);
        if self.core.is_part(client.volume) && client.has_left(&self.io) {
            self.core.leave_client(client.volume, number);
        }
        client.settle(&mut self.memory);
        let is_gone = client.is_gone();
        let now = (client.rank, if is_gone { 0 } else { client.submitted_bytes() });
        let before = std::mem::replace(&mut client.counted, now);
        self.holds.change(client.volume, before, now);
        if is_gone {
            client.forget(&mut self.memory);
            self.arrivals.forget(number);
            self.gate.cancel(client.volume, client.number);
            self.core.forget_client(client.volume, client.number);
            self.ready.forget(Flow(client.number));
            self.clients[number as usize] = None;
        } else if !is_best && client.may_send() {
            self.ready.wake(Flow(client.number), client.rank, 1);
        }
        is_gone
    }

    /// Something happens to a client: it is looked at when the turn ends.
    fn touch(&mut self, number: u32) {
        if let Some(client) = self.clients.get_mut(number as usize).and_then(Option::as_mut)
            && !std::mem::replace(&mut client.is_touched, true)
        {
            self.touched.push(number);
        }
    }

    /// The same for all.
    fn touch_all(&mut self) {
        (0..self.clients.len() as u32).for_each(|number| self.touch(number));
    }

    fn reply(&mut self, number: u32, finished: Finished) {
        if let Some(client) = self.clients[number as usize].as_mut() {
            client.reply(&mut self.io, &mut self.core, finished);
        }
    }

    /// Requests of all volumes that have not ended; a piece counts as one, what is left of the
    /// request as another.
    #[must_use]
    pub fn inflight(&self) -> u64 {
        let clients = self.clients.iter().flatten().filter(|client| client.is_cutting());
        let begun = clients.count() + self.guests.cutting();
        self.homes.keys().map(|volume| self.core.inflight(*volume)).sum::<u64>() + begun as u64
    }

    fn is_quiet(&self) -> bool {
        let are_quiet = self.clients.iter().flatten().all(Client::is_quiet);
        are_quiet && self.guests.is_quiet() && self.pending.is_empty()
    }

    fn attach(&mut self, mut connection: Connection<S>) {
        match connection.take_socket(&mut self.io) {
            Ok(socket) => self.serve(socket, connection),
            Err(error) => (self.notices)(Notice::SocketRefused { errno: error.errno }),
        }
    }

    /// Serves a client whose socket is attached already.
    pub fn serve(&mut self, socket: SocketId, connection: Connection<S>) {
        let peer = connection.peer.clone();
        if !self.is_served(connection.volume) {
            self.io.close_socket(socket);
            let volume = connection.volume;
            let reason = "its volume is not served any more";
            return (self.notices)(Notice::ClientBroken { peer, volume, reason });
        }
        let vacant = self.clients.iter().position(Option::is_none);
        let number = vacant.unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        let rank = self.core.rank_of(connection.volume);
        let named = (number as u32, rank);
        if self.core.is_part(connection.volume) {
            self.core.enter_client(number as u32, self.io.peer(socket));
        }
        let volume = connection.volume;
        let client = Client::new(&mut self.io, named, socket, &self.memory, connection);
        self.clients[number] = Some(client);
        self.wait_for_ended(number as u32, volume);
        self.rank_clients();
        self.wake(number as u32);
    }

    fn is_served(&self, volume: VolumeId) -> bool {
        let is_there = self.homes.contains_key(&volume) && self.core.is_whole(volume);
        is_there && !self.is_stopping && !self.pending.is_removing(volume)
    }

    /// Serves a guest's queue; answers with its number.
    fn start_queue(&mut self, queue: GuestQueue) -> Result<u32, CommandError> {
        let refused = |kind, cause: String| Err(CommandError { kind, cause });
        if !self.is_served(queue.volume) {
            return refused(ErrorKind::Closed, "its volume is not served any more".into());
        }
        let rank = self.core.rank_of(queue.volume);
        let started = self.guests.start(&mut self.io, rank, queue);
        self.find_best();
        started.or_else(|e| refused(ErrorKind::Invalid, format!("its kick descriptor: {e}")))
    }

    fn stop(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            client.cut(&mut self.io, &mut self.core);
        }
        self.guests.end();
        self.io.defer(false);
        let stopped = self.core.shut_down(&mut self.io);
        for notice in self.core.take_notices() {
            (self.notices)(notice);
        }
        std::mem::take(&mut self.pending).answer_stops(&stopped);
    }
}
