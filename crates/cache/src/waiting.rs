//! Operations that wait for room in a level: stores by rank and volume, then promotions.
//!
//! How: a queue of stores per volume, in the order of their arrival. Volumes have turns by their
//! class's rank, then by the arrival of their first store. A store that finds no room returns to
//! its place, and the next volume has its turn: other stores of its own volume would find none
//! either. Where many volumes find none, the next try goes on behind those; tries that have come to
//! all are a round.
//! Invariant: each volume with stores has exactly one turn, that of its first store.
//! Cost: logarithmic in the number of volumes that wait.

use crate::action::OpId;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Bound;
use layby_types::Nanos;

/// How long no timer has stores tried after a round that came to all in vain, while nothing
/// changed: only a change can place them, and that tries them itself.
const ROUND_PAUSE: Nanos = Nanos::from_millis(10);

/// What has stores tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Time has passed; nothing else has changed.
    Timer,
    /// Room may have become free.
    Change,
}

/// When a volume's first store is tried, before those of greater turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) rank: u8,
    pub(crate) arrival: Arrival,
    pub(crate) volume: u16,
}

/// A store's number among those that have waited in a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

/// The stores of one volume.
#[derive(Default)]
struct Queue {
    rank: u8,
    stores: VecDeque<(Arrival, OpId)>,
}

impl Queue {
    fn turn(&self, volume: u16) -> Option<Turn> {
        self.stores.front().map(|(arrival, _)| Turn { rank: self.rank, arrival: *arrival, volume })
    }
}

/// See the file's header.
#[derive(Default)]
pub(crate) struct Waiting {
    turns: BTreeSet<Turn>,
    queues: BTreeMap<u16, Queue>,
    stores: usize,
    arrivals: u64,
    /// Fetches whose data waits for room.
    pub(crate) promotions: VecDeque<OpId>,
    /// The last one that the last try came to, where it did not come to all.
    pub(crate) tried_last: Option<Turn>,
    /// Within this round something was placed, or may have become free: what was tried in vain
    /// before may find room now.
    pub(crate) has_changed: bool,
    /// When a timer may have stores tried: not soon after a round that came to all in vain while
    /// nothing changed.
    timer_not_before: Nanos,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.stores + self.promotions.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The volumes with stores that wait.
    pub(crate) fn volumes(&self) -> usize {
        self.turns.len()
    }

    /// The store that is tried first; a promotion where no store waits.
    pub(crate) fn first(&self) -> Option<OpId> {
        let turn = self.turns.first();
        let store = turn.map(|turn| self.queues[&turn.volume].stores[0].1);
        store.or_else(|| self.promotions.front().copied())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = OpId> + '_ {
        let stores = self.queues.values().flat_map(|queue| queue.stores.iter().map(|(_, id)| *id));
        stores.chain(self.promotions.iter().copied())
    }

    /// A try begins; answers with the last one that the last try came to.
    pub(crate) fn begin_try(&mut self, trigger: Trigger) -> Option<Turn> {
        let tried_last = self.tried_last.take();
        // A round that begins now comes to all after the change.
        self.has_changed |= trigger == Trigger::Change;
        self.has_changed &= tried_last.is_some();
        self.timer_not_before = Nanos::ZERO;
        tried_last
    }

    /// The tries since the round began have come to all.
    pub(crate) fn end_round(&mut self, now: Nanos) {
        if !self.has_changed {
            self.timer_not_before = now.saturating_add(ROUND_PAUSE);
        }
    }

    /// When a timer has the others tried, where one try comes to `tried_max` volumes: at `soon` or
    /// later.
    pub(crate) fn timer(&self, tried_max: usize, soon: Nanos) -> Nanos {
        let has_untried = self.volumes() > tried_max;
        if has_untried { soon.max(self.timer_not_before) } else { Nanos::NEVER }
    }

    /// The number of a store that has not waited in the level before.
    pub(crate) fn next_arrival(&mut self) -> Arrival {
        self.arrivals += 1;
        Arrival(self.arrivals)
    }

    /// A store waits, behind those of its volume that arrived before it; `turn` is its own, with
    /// the rank that its volume has now.
    pub(crate) fn add_store(&mut self, turn: Turn, id: OpId) {
        let queue = self.queues.entry(turn.volume).or_default();
        if let Some(before) = queue.turn(turn.volume) {
            self.turns.remove(&before);
        }
        queue.rank = turn.rank;
        // One that was tried returns to the front, a new one comes last.
        let place = match queue.stores.front() {
            Some((first, _)) if *first < turn.arrival => {
                let older = |(other, _): &(Arrival, OpId)| *other < turn.arrival;
                queue.stores.iter().rposition(older).map_or(0, |older| older + 1)
            }
            _ => 0,
        };
        queue.stores.insert(place, (turn.arrival, id));
        self.turns.extend(queue.turn(turn.volume));
        self.stores += 1;
    }

    /// Takes out the store whose turn is next after `last`.
    pub(crate) fn take_after(&mut self, last: Option<Turn>) -> Option<(Turn, OpId)> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let turn = *self.turns.range((after, Bound::Unbounded)).next()?;
        self.turns.remove(&turn);
        let queue = self.queues.get_mut(&turn.volume).expect("a volume with a turn has a queue");
        let (_, id) = queue.stores.pop_front().expect("a turn is that of a store");
        match queue.turn(turn.volume) {
            Some(next) => drop(self.turns.insert(next)),
            None => drop(self.queues.remove(&turn.volume)),
        }
        self.stores -= 1;
        Some((turn, id))
    }

    /// Whether the store of this turn waits.
    pub(crate) fn has(&self, turn: Turn) -> bool {
        self.turns.contains(&turn)
    }

    /// Takes out the stores of volumes that are meant, in the order of their turns.
    pub(crate) fn take_stores(&mut self, is_meant: impl Fn(u16) -> bool) -> Vec<OpId> {
        let mut taken: Vec<(Turn, OpId)> = Vec::new();
        self.queues.retain(|volume, queue| {
            if !is_meant(*volume) {
                return true;
            }
            if let Some(turn) = queue.turn(*volume) {
                self.turns.remove(&turn);
            }
            while let Some(turn) = queue.turn(*volume) {
                taken.extend(queue.stores.pop_front().map(|(_, id)| (turn, id)));
            }
            false
        });
        self.stores -= taken.len();
        taken.sort_unstable_by_key(|(turn, _)| *turn);
        taken.into_iter().map(|(_, id)| id).collect()
    }
}
