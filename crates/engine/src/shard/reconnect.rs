//! A volume's next connection beside ones that have ended.
//!
//! How: a client that comes while an older connection of its volume has ended, and not all that it
//! had sent has begun, waits until that has: it may be the same client, whose older writes must
//! come before its newer ones. What has begun is queued by block. The wait has a bound, since a
//! device may hang: past it, what has not begun never does. Where the end is noticed later, see
//! [`super::client`].
//! Invariant: what an older connection has not begun when a newer one is let in never begins, if
//! its end was known when that came.
//! Cost: a system call for each other connection of the volume when one comes.
//! Not for: connections of a wide volume at other shards.

use super::Shard;
use crate::io::{Host, Io as _};
use layby_types::{Nanos, Session, VolumeId};

/// How long a connection waits for older ones.
const PATIENCE: Nanos = Nanos::from_secs(10);

/// Connections that wait.
#[derive(Default)]
pub(super) struct Arrivals {
    waiting: Vec<Arrival>,
}

struct Arrival {
    number: u32,
    /// The connections that it waits for.
    older: Vec<u32>,
    until: Nanos,
}

impl Arrivals {
    /// Whether a client waits.
    pub(super) fn is_waiting(&self, number: u32) -> bool {
        self.waiting.iter().any(|arrival| arrival.number == number)
    }

    /// When the first has waited long enough.
    pub(super) fn deadline(&self) -> Nanos {
        self.waiting.iter().map(|arrival| arrival.until).min().unwrap_or(Nanos::NEVER)
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, number: u32) {
        self.waiting.retain(|arrival| arrival.number != number);
        for arrival in &mut self.waiting {
            arrival.older.retain(|older| *older != number);
        }
    }
}

impl<S: Session, H: Host> Shard<S, H> {
    /// A client has come: it waits for what connections that have ended leave to be begun.
    pub(super) fn wait_for_ended(&mut self, number: u32, volume: VolumeId) {
        let mut older = Vec::new();
        let clients = self.clients.iter_mut().flatten();
        for client in clients.filter(|one| one.volume == volume && one.number != number) {
            if !client.has_ended(&self.io) {
                client.note_follower();
                continue;
            }
            // What waits is dropped in its turn, since its peer has left: it may take long.
            if client.is_kept_waiting() {
                client.give_up(&mut self.io, &mut self.core);
            }
            if client.may_begin() {
                older.push(client.number);
            }
        }
        if !older.is_empty() {
            let until = self.io.now() + PATIENCE;
            self.arrivals.waiting.push(Arrival { number, older, until });
        }
    }

    /// Lets in clients that need not wait any more.
    pub(super) fn let_in(&mut self) {
        let now = self.io.now();
        for mut arrival in std::mem::take(&mut self.arrivals.waiting) {
            let place = |number: &u32| self.clients[*number as usize].as_ref();
            arrival.older.retain(|number| place(number).is_some_and(super::Client::may_begin));
            if !arrival.older.is_empty() && now < arrival.until {
                self.arrivals.waiting.push(arrival);
                continue;
            }
            for number in arrival.older {
                if let Some(client) = self.clients[number as usize].as_mut() {
                    client.give_up(&mut self.io, &mut self.core);
                    self.touch(number);
                }
            }
            self.wake(arrival.number);
        }
    }
}
