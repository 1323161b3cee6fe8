//! Requests end, and none waits for something that cannot come.
//!
//! How: the node takes turns until no client waits for an answer. A turn in which no operation in
//! flight could end and no timer was set is one from which a real machine would not come back: a
//! few of them in a row while a request waits are a failure, and so is a request that outlasts
//! every turn that anything may take.
//! Invariant: what a life calls settled has nothing in flight. Cost: turns.

use super::{LAST_TURNS, TURNS_MAX, World};
use crate::client::{Asked, Client};
use crate::plan::{BLOCK, VOLUMES};
use layby_engine::io::Io as _;
use layby_types::Call;
use std::fmt::Write as _;

/// Waits in a row that nothing could end, from which on a request waits for nothing: clients send
/// what they have in a few turns.
const IDLE_WAITS_MAX: u32 = 64;

impl World<'_> {
    /// Lets all requests end.
    pub(super) fn quiesce(&mut self) -> Result<(), String> {
        let (mut idle, mut in_vain) = (0, 0);
        for _ in 0..TURNS_MAX {
            let waits = |client: &Client| !client.asked.is_empty() || !client.outgoing.is_empty();
            let busy = self.clients.iter().flatten().any(waits) || self.guests.are_waiting();
            let Some(node) = &self.node else { return Ok(()) };
            if busy || node.inflight() > 0 || !self.lengths.are_settled() {
                idle = 0;
            } else if !self.host.machine().can_end() {
                // Sockets are closed at the beginning of a turn, once sends under way have ended;
                // the pieces of a long request begin one after the other; and a ring is given back
                // some turns after its guest has left.
                let are_gone = self.left.is_empty() && self.guests.have_left();
                if are_gone || idle == LAST_TURNS {
                    self.orphans.clear();
                    return self.check_left();
                }
                idle += 1;
            }
            let before = self.host.machine().idle_waits();
            self.turn()?;
            in_vain = if self.host.machine().idle_waits() > before { in_vain + 1 } else { 0 };
            if busy && in_vain >= IDLE_WAITS_MAX {
                return Err(format!("requests wait for nothing: {}", self.describe_waiting()));
            }
        }
        Err(format!("requests never end: {}", self.describe_waiting()))
    }

    /// A client that is gone holds nothing of the node any more.
    fn check_left(&mut self) -> Result<(), String> {
        let machine = self.host.machine();
        let open = self.left.iter().filter(|socket| !machine.is_closed(**socket)).count();
        drop(machine);
        self.left.clear();
        self.guests.check_left()?;
        if open == 0 { Ok(()) } else { Err(format!("{open} sockets of clients gone stay open")) }
    }

    /// Calls of a volume that are in flight, and changes whose clients left before an answer.
    pub(super) fn calls_of(&self, volume: usize) -> impl Iterator<Item = &Call> {
        // Client k works on volume k modulo their number.
        let peers = self.clients.iter().skip(volume).step_by(VOLUMES).flatten();
        let asked = peers.flat_map(|client| client.asked.values().map(|asked| &asked.call));
        let orphans = self.orphans.iter().filter(move |(of, _)| *of == volume);
        let of_guests = self.guests.calls_of(volume);
        asked.chain(orphans.map(|(_, call)| call)).chain(of_guests)
    }

    /// Who waits for what.
    pub(super) fn describe_waiting(&mut self) -> String {
        let mut text = format!("at {} us ", self.host.now().0 / 1000);
        for (number, client) in self.clients.iter().enumerate() {
            let asked = client.iter().flat_map(|client| client.asked.values());
            for Asked { call, .. } in asked {
                let (first, end) = (call.offset / BLOCK, (call.offset + call.length) / BLOCK);
                let _ = write!(
                    text,
                    "client {number} waits for {:?} of blocks {first}..{end}; ",
                    call.operation
                );
            }
        }
        for index in 0..VOLUMES {
            text.push_str(&self.describe_home(index));
        }
        let Some(node) = &mut self.node else { return text };
        for (index, level) in node.snapshot().levels.iter().enumerate() {
            let (used, dirty, slots) = (level.slots_used, level.slots_dirty, level.slots);
            let waiting = level.waiting;
            let _ = write!(
                text,
                "level {index}: {used} of {slots} slots used, {dirty} dirty, {waiting} wait; "
            );
        }
        for volume in &node.snapshot().volumes {
            let (slots, dirty) = (&volume.slots, &volume.slots_dirty);
            let _ = write!(text, "volume {}: slots {slots:?}, dirty {dirty:?}; ", volume.volume.0);
        }
        text
    }
}
