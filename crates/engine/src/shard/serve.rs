//! The order of serving: which client's bytes are looked at next, and how many of them.
//!
//! How: clients with something to do wait in a [`ReadyQueue`](layby_cache::schedule::ReadyQueue) by
//! their class's rank. The best rank that has a client is served whole and answered; what is below
//! it goes in bounded passes. Where all clients have one rank nothing is bounded or cut.
//! Invariant: between two looks for arrivals, lower ranks submit a quantum of bytes together, one
//! received, read or sent counting a quarter, and devices' ends bring them another (or one end of
//! a longer operation); a rank with too many bytes in the core's hands waits, its bytes in its
//! sockets.
//! Cost: a place in a queue per client and turn.

use super::Shard;
use super::pass::Pass;
use crate::control::RankStats;
use crate::core::Notice;
use crate::io::{Host, Io as _};
use layby_cache::schedule::{Flow, Grant, Rank};
use layby_types::Session;

/// Rounds of a turn at most: commands and deadlines are looked at between turns.
const ROUNDS_MAX: usize = 8;

impl<S: Session, H: Host> Shard<S, H> {
    /// A client has something to do.
    pub(super) fn wake(&mut self, number: u32) {
        self.touch(number);
        if let Some(client) = self.clients.get(number as usize).and_then(Option::as_ref) {
            self.ready.wake(Flow(number), client.rank, 1);
        }
    }

    /// Serves rounds of what is ready until something has arrived or a guest has something to do,
    /// a bounded number of them: the turn's other work is not done again for each piece of what
    /// nobody better is waiting for.
    pub(super) fn serve_ready(&mut self) {
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                self.answer();
            }
            self.serve_round();
            let has_ended = self.io.has_ended() || self.core.has_left();
            let is_idle = !self.ready.has_work() && !has_ended;
            if !self.has_lower || is_idle || self.guests.has_more() || self.io.has_arrived() {
                return;
            }
        }
    }

    /// A round: the best rank and its answers first, then what devices have done for the others,
    /// then the others. Of these two only one where something has arrived meanwhile, in turn.
    fn serve_round(&mut self) {
        self.hold_ranks();
        self.ready.begin_round();
        let has_best = self.ready.has_best(self.best);
        while self.ready.has_best(self.best) {
            self.serve_next();
        }
        if has_best && self.has_lower {
            self.answer();
        }
        let mut done = std::mem::take(&mut self.done);
        let mut has_ended = false;
        if !std::mem::take(&mut self.owes_clients) {
            has_ended = self.core.go_on(&mut self.io);
            if !has_ended {
                self.io.hand_out(&mut done);
            }
        }
        has_ended |= !done.is_empty();
        done.drain(..).for_each(|done| self.route(done));
        self.done = done;
        self.owes_clients = has_ended && self.has_lower && self.io.has_arrived();
        if !self.owes_clients {
            while self.serve_next() {}
        }
    }

    fn serve_next(&mut self) -> bool {
        let grant = self.ready.next(self.best);
        grant.map(|grant| self.pass_to(grant)).is_some()
    }

    fn pass_to(&mut self, grant: Grant) {
        let quantum = u64::from(self.limits.quantum_bytes);
        let mut pass = match grant.rank <= self.best {
            true => Pass::whole(grant.bytes),
            false => Pass::bounded(grant.bytes, quantum),
        };
        let number = grant.flow.0;
        self.touch(number);
        let is_waiting = self.arrivals.is_waiting(number);
        let places = (&mut self.gate, &mut self.memory);
        if let Some(client) = self.clients.get_mut(number as usize).and_then(Option::as_mut)
            && let Err(reason) = match is_waiting {
                true => client.send(&mut self.io, &mut pass),
                false => client.advance(&mut self.io, &mut self.core, places, &mut pass),
            }
        {
            let (peer, volume) = (client.peer.clone(), client.volume);
            client.close_if_done(&mut self.io, &mut self.core, true);
            pass.has_more = false;
            (self.notices)(Notice::ClientBroken { peer, volume, reason });
        }
        self.ready.passed(self.best, pass.requests, pass.bytes, pass.has_more);
    }

    /// Clients come, or classes change: who is best now?
    pub(super) fn rank_clients(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            let rank = self.core.rank_of(client.volume);
            if std::mem::replace(&mut client.rank, rank) != rank {
                self.ready.forget(Flow(client.number));
                self.ready.wake(Flow(client.number), rank, 1);
            }
        }
        self.touch_all();
        self.guests.set_ranks(&self.core);
        self.find_best();
    }

    /// The best rank among clients and guests that are served.
    pub(super) fn find_best(&mut self) {
        let served = self.clients.iter().flatten().filter(|client| !client.is_dead());
        let ranks = served.map(|client| client.rank).chain(self.guests.ranks());
        let best = ranks.min().unwrap_or(Rank::FIRST);
        let mut ranks = self.clients.iter().flatten().map(|client| client.rank);
        self.has_lower = ranks.any(|rank| rank > best) || self.guests.ranks().any(|r| r > best);
        self.io.set_stepwise(self.has_lower);
        self.core.set_stepwise(self.has_lower);
        let clients = || self.clients.iter().flatten().filter(|client| !client.is_dead());
        self.core.note_users(|volume| {
            clients().any(|client| client.volume == volume) || self.guests.has_guest(volume)
        });
        if std::mem::replace(&mut self.best, best) != best {
            self.ready.hold(best, false);
            self.guests.hold(best, false);
            self.io.set_best(best);
        }
    }

    /// Counts what ended; where that completes a window of the best rank's objective, devices are
    /// told how it went.
    pub(super) fn end_window(&mut self) {
        if self.core.has_ended()
            && let Some(verdict) = self.core.count_ended(self.io.now())
        {
            self.io.on_window(verdict);
        }
    }

    /// What ranks ask for now.
    pub(super) fn rank_stats(&self) -> Vec<RankStats> {
        let mut ranks: Vec<RankStats> = Vec::new();
        for client in self.clients.iter().flatten() {
            let bytes_inflight = client.submitted_bytes();
            let clients_waiting = self.ready.waiting(client.rank) as u64;
            match ranks.iter_mut().find(|stats| stats.rank == client.rank) {
                Some(stats) => stats.bytes_inflight += bytes_inflight,
                None => {
                    ranks.push(RankStats { rank: client.rank, clients_waiting, bytes_inflight });
                }
            }
        }
        ranks.sort_unstable_by_key(|stats| stats.rank);
        ranks
    }
}
