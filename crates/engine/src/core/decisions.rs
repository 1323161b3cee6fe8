//! What the cache decided, for whoever compares: a log of actions, and ends told in order.
//!
//! How: every list of actions passes [`Core::take`] on its way into the queue. In order means: the
//! end of an action is kept back until those of all earlier actions were told, and until no action
//! is queued; so it comes as from a machine whose actions take no time, whatever the devices do.
//! Invariant: an end that is kept is told exactly once.
//! Cost: a branch per list of actions and per end; nothing is kept unless it was asked for.
//! Not for: serving. A kept end makes a request wait for others that it has nothing to do with.

use super::{Core, Level};
use crate::io::Io;
use layby_cache::{Action, CacheSpec, DecisionLog, OpId};
use layby_types::{ErrorKind, Nanos};
use std::collections::{HashMap, VecDeque};

/// How an operation's action ended.
type End = Result<(), ErrorKind>;

/// The log, and the order of ends; both off unless asked for.
#[derive(Default)]
pub(super) struct Decisions {
    log: Option<Box<dyn DecisionLog>>,
    order: Option<Order>,
}

/// Which ends are awaited, oldest first, and those that came too early.
#[derive(Default)]
struct Order {
    awaited: VecDeque<OpId>,
    early: HashMap<OpId, VecDeque<End>>,
}

impl Decisions {
    /// Notes what the cache asked for at `now`.
    pub(super) fn note(&mut self, now: Nanos, spec: &CacheSpec, actions: &[Action]) {
        if let Some(log) = &mut self.log {
            actions.iter().for_each(|action| log.on_action(now, action));
        }
        if let Some(order) = &mut self.order {
            order.awaited.extend(actions.iter().filter_map(|action| action.awaits(spec)));
        }
    }

    /// Keeps an end for later; false when it is to be told now.
    pub(super) fn keeps(&mut self, op: OpId, result: End) -> bool {
        let Some(order) = &mut self.order else { return false };
        order.early.entry(op).or_default().push_back(result);
        true
    }

    /// Whether the log is to show decisions as if devices took no time. Then a block whose lent
    /// slot is not empty yet waits for it, instead of being given up.
    pub(super) fn takes_no_time(&self) -> bool {
        self.order.is_some()
    }

    /// The end that is to be told next, if it has come.
    fn next(&mut self) -> Option<(OpId, End)> {
        let order = self.order.as_mut()?;
        let op = *order.awaited.front()?;
        let result = order.early.get_mut(&op)?.pop_front()?;
        order.awaited.pop_front();
        Some((op, result))
    }
}

impl Core {
    /// Sends every decision from now on to `log`, and tells the cache of ends in the order in which
    /// it asked. Call it before the first request.
    pub fn log_decisions(&mut self, log: Box<dyn DecisionLog>) {
        assert!(self.requests.is_empty(), "ends of the past have no order");
        self.decisions = Decisions { log: Some(log), order: Some(Order::default()) };
    }

    /// Whether nothing is left of what was asked for: every end was told, no block waits for its
    /// slot, no slot for the log to forget what it held, and no copy for the sync of a backing
    /// store that was opened.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let told = self.decisions.order.as_ref().is_none_or(|order| order.awaited.is_empty());
        let stored = |level: &Level| match level {
            Level::Nvm(store) => store.has_room(0),
            _ => true,
        };
        let synced = self.homes.values().all(|home| home.opened.is_none());
        let told = told && synced && self.levels.iter().all(stored);
        told && self.log().is_none_or(|(_, log)| log.forgets_durable() == log.forgets_issued())
    }

    /// What a store puts off to save a write is not put off while decisions are logged: room that
    /// is there later on a slow device must be there at once on one that takes no time.
    pub(super) fn put_nothing_off(&mut self, io: &mut dyn Io) {
        if self.decisions.takes_no_time()
            && let Some(log) = self.log_mut()
            && log.forgets_durable() < log.forgets_issued()
        {
            log.flush_forgets(io);
        }
    }

    /// Queues what the cache asked for; the emptied list is kept for the next call.
    pub(super) fn take(&mut self, mut actions: Vec<Action>) {
        self.decisions.note(self.now, self.cache.spec(), &actions);
        self.queue.extend(actions.drain(..));
        self.scratch = actions;
    }

    /// Tells the next end that was kept back; false when there is none.
    pub(super) fn tell_next(&mut self) -> bool {
        let next = self.decisions.next();
        if let Some((op, result)) = next {
            self.tell(op, result);
        }
        next.is_some()
    }
}
