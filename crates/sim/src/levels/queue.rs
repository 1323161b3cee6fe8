//! Devices with channels, and what is in flight on them.
//!
//! How: each channel knows when it is free; an access takes the one that is free first. What is in
//! flight ends in order of its end, then of its start.
//! Invariant: with equal inputs the order of ends is the same on every machine.
//! Cost: logarithmic in what is in flight; constant in channels for the few that devices have.

use layby_cache::OpId;
use layby_cache::schedule::{Budget, DeviceQueue, Load, Rank, ScheduleLimits};
use layby_device::{Direction, Model};
use layby_types::Nanos;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Level(usize),
    Home,
}

/// One access: `parts` pieces of `bytes` each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) direction: Direction,
    pub(super) parts: u32,
    pub(super) bytes: u64,
}

impl Access {
    /// Bytes of all its pieces.
    pub(super) fn total(&self) -> u64 {
        u64::from(self.parts) * self.bytes
    }
}

/// A device in use.
pub(super) struct Device {
    model: Model,
    free_at: Vec<Nanos>,
    /// What waits by rank, where ranks count.
    queue: Option<DeviceQueue<(OpId, Access)>>,
    pub(super) busy: Nanos,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
}

impl Device {
    pub(super) fn new(model: Model) -> Self {
        let free_at = vec![Nanos::ZERO; usize::from(model.channels.max(1))];
        Device { model, free_at, queue: None, busy: Nanos::ZERO, bytes_read: 0, bytes_written: 0 }
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Holds what is below the best rank to a budget, as the engine does.
    pub(super) fn hold_to(&mut self, limits: &ScheduleLimits) {
        self.queue = Some(DeviceQueue::new(Budget::new(limits.budget)));
    }

    /// The budget's queue, where ranks count.
    pub(super) fn queue(&mut self) -> Option<&mut DeviceQueue<(OpId, Access)>> {
        self.queue.as_mut()
    }

    /// What lower ranks have outstanding.
    pub(super) fn outstanding(&self) -> Load {
        self.queue.as_ref().map_or_else(Load::default, DeviceQueue::outstanding)
    }

    /// An access below the best rank: it is given back if it may start now.
    pub(super) fn submit(
        &mut self,
        rank: Rank,
        op: OpId,
        access: Access,
    ) -> Option<(OpId, Access)> {
        match &mut self.queue {
            Some(queue) => queue.submit(rank, access.total(), (op, access)),
            None => Some((op, access)),
        }
    }

    /// Counts an access; what it takes without any queueing.
    pub(super) fn note(&mut self, access: Access) -> Nanos {
        let bytes = u64::from(access.parts) * access.bytes;
        match access.direction {
            Direction::Read => self.bytes_read += bytes,
            Direction::Write => self.bytes_written += bytes,
        }
        let service = self.model.service(access.direction, access.bytes);
        self.busy = self.busy.saturating_add(Nanos(service.0 * u64::from(access.parts)));
        service
    }

    /// Starts an access at `now`; when its last piece ends.
    pub(super) fn start(&mut self, now: Nanos, access: Access) -> Nanos {
        let service = self.note(access);
        let mut last = now;
        for _ in 0..access.parts {
            let free = self.free_at.iter_mut().min().expect("a device has a channel");
            *free = (*free).max(now).saturating_add(service);
            last = last.max(*free);
        }
        last
    }
}

/// When an operation ends, its number, and what it leaves behind in a budget.
type Entry = (Nanos, u64, OpId, Option<Held>);

/// Room in the budget of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) place: Place,
    pub(super) bytes: u64,
}

/// What is in flight.
///
/// Ends mostly come in the order in which they are pushed (always, when counting): those queue up,
/// the others go through a heap, and the earlier of the two fronts is next.
#[derive(Default)]
pub(super) struct Pending {
    in_order: VecDeque<Entry>,
    heap: BinaryHeap<Reverse<Entry>>,
    /// Ever pushed: what ends at one time ends in order of its start.
    count: u64,
}

impl Pending {
    pub(super) fn push(&mut self, end: Nanos, op: OpId, held: Option<Held>) {
        self.count += 1;
        let entry = (end, self.count, op, held);
        if self.in_order.back().is_none_or(|(last, ..)| *last <= end) {
            self.in_order.push_back(entry);
        } else {
            self.heap.push(Reverse(entry));
        }
    }

    #[inline]
    fn next(&self) -> Option<Entry> {
        if self.in_order.is_empty() && self.heap.is_empty() {
            return None;
        }
        let (in_order, heap) = (self.in_order.front(), self.heap.peek().map(|entry| &entry.0));
        in_order.into_iter().chain(heap).min().copied()
    }

    pub(super) fn next_end(&self) -> Nanos {
        self.next().map_or(Nanos::NEVER, |(end, ..)| end)
    }

    pub(super) fn pop_until(&mut self, until: Nanos) -> Option<(Nanos, OpId, Option<Held>)> {
        let (end, number, op, held) = self.next().filter(|(end, ..)| *end <= until)?;
        if self.in_order.front().is_some_and(|(_, front, ..)| *front == number) {
            self.in_order.pop_front();
        } else {
            self.heap.pop();
        }
        Some((end, op, held))
    }
}
