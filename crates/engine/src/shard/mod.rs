//! A shard: one pinned thread that serves its volumes' clients and its part of every level.
//!
//! How: each turn takes what ended, feeds the [`Core`], answers clients, sends what gathered, and
//! sleeps in the kernel until something ends, a command comes or a deadline passes.
//! Invariant: nothing here is shared with other threads but the command channel.
//! Cost: two system calls per turn however many requests it serves; none while idle.

mod client;
mod commands;
mod gate;
mod guest;
mod outbox;
mod start;

pub use start::{LevelPart, ShardPlan, StartError, start_shard};

use crate::control::{Command, CommandError, Connection, GuestQueue, StartReport};
use crate::core::{Core, Finished, Notice};
use crate::io::{Host, IoDone, SocketId};
use client::{Client, TAG_RECEIVE, TAG_SEND};
use commands::Pending;
use gate::Gate;
use guest::{BrokenQueue, Guests, TAG_EVENT};
use layby_types::{ErrorKind, Nanos, Session, VolumeId};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

/// How long a stop waits for clients that have their answers and do not take them.
const STOP_PATIENCE: Nanos = Nanos::from_secs(10);

/// Where notices go: the daemon's log.
pub type NoticeSink = Box<dyn FnMut(Notice) + Send>;

/// See the module's header. A thread of its own [runs](start_shard) it on a real host; who
/// simulates a host [starts](Shard::start) it there and takes its turns one by one.
pub struct Shard<S, H> {
    io: H,
    core: Core,
    gate: Gate,
    clients: Vec<Option<Client<S>>>,
    guests: Guests,
    commands: Receiver<Command<S>>,
    pending: Pending,
    paths: HashMap<VolumeId, PathBuf>,
    notices: NoticeSink,
    done: Vec<IoDone>,
    is_stopping: bool,
    /// When a stop waits no more for clients that take no answers.
    stop_by: Nanos,
}

impl<S: Session, H: Host> Shard<S, H> {
    fn new(
        io: H,
        core: Core,
        plan: &ShardPlan,
        commands: Receiver<Command<S>>,
        notices: NoticeSink,
    ) -> Self {
        let paths = plan.volumes.iter().map(|v| (v.spec.id, v.backing.path.clone())).collect();
        let (clients, pending, done) = (Vec::new(), Pending::default(), Vec::new());
        let (gate, guests) = (Gate::default(), Guests::default());
        let (is_stopping, stop_by) = (false, Nanos::NEVER);
        Shard {
            io,
            core,
            gate,
            clients,
            guests,
            commands,
            pending,
            paths,
            notices,
            done,
            is_stopping,
            stop_by,
        }
    }

    /// Opens the disks of `plan` on `io` and recovers; all chance follows from `seed`.
    ///
    /// # Errors
    /// [`StartError`]; `io` is dropped with what was opened.
    pub fn start(
        mut io: H,
        plan: &ShardPlan,
        seed: u64,
        commands: Receiver<Command<S>>,
        notices: NoticeSink,
    ) -> Result<(Self, StartReport), StartError> {
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
        if self.core.next_deadline() <= self.io.now() {
            self.core.on_tick(&mut self.io);
        }
        self.release();
        self.cut_stalled();
        self.answer();
        if self.core.has_ended() {
            self.core.count_ended(self.io.now());
        }
        if self.is_stopping && self.is_quiet() {
            self.stop();
            return false;
        }
        let deadline = self.core.next_deadline().min(self.gate.deadline());
        let mut deadline = deadline.min(self.patience());
        if self.guests.has_more() {
            deadline = Nanos::ZERO;
        }
        let mut done = std::mem::take(&mut self.done);
        self.io.wait(deadline, &mut done);
        self.set_now();
        for done in done.drain(..) {
            self.route(done);
        }
        self.done = done;
        self.guests.go_on(&mut self.io, &mut self.core);
        true
    }

    fn set_now(&mut self) {
        let now = self.io.now();
        self.core.set_now(now);
        self.gate.set_now(now);
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
            client.cut(&mut self.io);
        }
    }

    /// Lets clients go on whose volume's limits held them.
    fn release(&mut self) {
        for number in self.gate.take_released() {
            if let Some(client) = self.clients[number as usize].as_mut() {
                client.on_released();
                self.advance(number as u32);
            }
        }
    }

    fn route(&mut self, done: IoDone) {
        let (tag, number) = (done.token.0 >> 56, done.token.0 as u32);
        match tag {
            TAG_RECEIVE => {
                let Some(client) = self.clients[number as usize].as_mut() else {
                    panic!("a client outlives its operations")
                };
                let buffer = done.buffer.expect("a receive brings its buffer back");
                client.on_received(buffer, done.result.map_err(drop));
                self.advance(number);
            }
            TAG_SEND => {
                if let Some(buffer) = done.buffer {
                    self.io.recycle(buffer);
                }
                let Some(client) = self.clients[number as usize].as_mut() else {
                    panic!("a client outlives its operations")
                };
                client.on_sent(done.result.is_ok());
                self.advance(number);
            }
            TAG_EVENT => self.guests.on_event(&mut self.io, &mut self.core, number),
            _ => self.core.on_io(&mut self.io, done),
        }
    }

    fn advance(&mut self, number: u32) {
        let Some(client) = self.clients[number as usize].as_mut() else { return };
        if let Err(reason) = client.advance(&mut self.io, &mut self.core, &mut self.gate) {
            let (peer, volume) = (client.peer.clone(), client.volume);
            client.close_if_done(&mut self.io, true);
            (self.notices)(Notice::ClientBroken { peer, volume, reason });
        }
    }

    /// Hands finished requests to their clients, sends, and drops clients that are gone.
    fn answer(&mut self) {
        let mut woken = Vec::new();
        while let Some(finished) = self.core.take_finished() {
            if Guests::is_asker(finished.asker) {
                self.guests.reply(&mut self.io, &finished);
            } else if !self.on_own_finished(&finished) {
                let number = finished.asker.0 as u32;
                self.reply(number, finished);
                if woken.last() != Some(&number) {
                    woken.push(number);
                }
            }
        }
        for number in woken {
            self.advance(number);
        }
        for notice in self.core.take_notices() {
            (self.notices)(notice);
        }
        for BrokenQueue { peer, volume, reason } in self.guests.flush() {
            (self.notices)(Notice::ClientBroken { peer, volume, reason });
        }
        self.continue_commands();
        for place in &mut self.clients {
            let Some(client) = place else { continue };
            let broken = client.flush(&mut self.io).is_err();
            client.close_if_done(&mut self.io, broken);
            if client.is_gone() {
                self.gate.cancel(client.volume, client.number);
                *place = None;
            }
        }
    }

    fn reply(&mut self, number: u32, finished: Finished) {
        if let Some(client) = self.clients[number as usize].as_mut() {
            client.reply(&mut self.io, finished);
        }
    }

    /// Requests of all volumes that have not ended.
    #[must_use]
    pub fn inflight(&self) -> u64 {
        self.paths.keys().map(|volume| self.core.inflight(*volume)).sum()
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
        if !self.paths.contains_key(&connection.volume) || self.is_stopping {
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
        let client = Client::new(&mut self.io, number as u32, socket, connection);
        self.clients[number] = Some(client);
        self.advance(number as u32);
    }

    /// Serves a guest's queue; answers with its number.
    fn start_queue(&mut self, queue: GuestQueue) -> Result<u32, CommandError> {
        let refused = |kind, cause: String| Err(CommandError { kind, cause });
        if !self.paths.contains_key(&queue.volume) || self.is_stopping {
            return refused(ErrorKind::Closed, "its volume is not served any more".into());
        }
        let started = self.guests.start(&mut self.io, &mut self.core, queue);
        started.or_else(|e| refused(ErrorKind::Invalid, format!("its kick descriptor: {e}")))
    }

    fn stop(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            client.cut(&mut self.io);
        }
        self.guests.end();
        self.core.shut_down(&mut self.io);
        for notice in self.core.take_notices() {
            (self.notices)(notice);
        }
        std::mem::take(&mut self.pending).answer_stops();
    }
}
