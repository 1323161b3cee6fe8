//! Limits of volumes and classes, and the order in which those wait who are held by one.
//!
//! How: a volume has two buckets, requests and bytes, and so has its class. A call passes when all
//! four let it; otherwise it waits in its volume's line, and what waits for a class passes in the
//! order of its arrival. Who is held by the volume's own limit does not hold the rest of the class.
//! A call that waited is charged at the instant at which it could have passed, so that a caller who
//! comes late loses nothing of the rate, up to [`LATENESS_MAX`]. A call that cannot wait is charged
//! whether it may pass or not; what is missing then delays those behind it.
//! Invariant: what passes within a window is at most the burst (or the largest call) and what the
//! window earns, lengthened by how late the caller came, but for what could not wait. Nobody waits
//! for ever: what came later to the same bucket passes later. An asker has one waiter at most,
//! and is released, or cancelled, once for it.
//! Cost: one look-up for a volume without limits; a pass over the volume's line, which has a place
//! per connection at most, for a call that joins it; the logarithm of the lines that wait for
//! others. Not for: order among calls that may start; that is scheduling.

mod bucket;
#[cfg(test)]
mod tests;

pub use bucket::{Bucket, Rate};

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use layby_types::{Call, ClassId, Nanos, Operation, VolumeId};

/// How late a call that waited may be let pass without a loss of rate.
pub const LATENESS_MAX: Nanos = Nanos::from_millis(50);

/// What a call takes from the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Cost {
    /// What `call` costs: nothing for a flush, which must not wait behind what it is to make
    /// durable; a request for any other; and the bytes that a read, a write or a prefetch moves.
    #[must_use]
    pub fn of(call: &Call) -> Cost {
        match call.operation {
            Operation::Flush => Cost { requests: 0, bytes: 0 },
            Operation::Read | Operation::Write | Operation::Cache => {
                Cost { requests: 1, bytes: call.length }
            }
            Operation::Trim | Operation::WriteZeroes | Operation::BlockStatus => {
                Cost { requests: 1, bytes: 0 }
            }
        }
    }

    const fn is_free(self) -> bool {
        self.requests == 0 && self.bytes == 0
    }
}

/// How fast a volume or a class may go; none is as fast as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests.
    pub requests: Option<Rate>,
    /// Bytes.
    pub bytes: Option<Rate>,
}

impl Limits {
    /// No limit.
    pub const NONE: Limits = Limits { requests: None, bytes: None };

    /// Whether nothing is limited.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.requests.is_none() && self.bytes.is_none()
    }

    /// See [`Rate::part`].
    #[must_use]
    pub fn part(self, part: u32, whole: u32) -> Limits {
        let of = |rate: Option<Rate>| rate.map(|rate| rate.part(part, whole));
        Limits { requests: of(self.requests), bytes: of(self.bytes) }
    }
}

/// All limits of a shard; what is not named has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitPlan {
    /// Of volumes, each with its class.
    pub volumes: Vec<(VolumeId, ClassId, Limits)>,
    /// Of classes: this shard's part.
    pub classes: Vec<(ClassId, Limits)>,
}

/// What waiting a volume has seen since it was first limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Calls that had to wait, those that still do included.
    pub calls: u64,
    /// Nanoseconds that they waited, without those that still do.
    pub waited_ns: u64,
    /// Calls that wait now.
    pub waiting: u64,
}

/// The two buckets of a volume or a class.
#[derive(Clone, Debug, Default)]
struct Limiter {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Limiter {
    fn ready_at(&self, cost: Cost) -> Nanos {
        let at = |bucket: &Option<Bucket>, cost| {
            bucket.as_ref().map_or(Nanos::ZERO, |bucket| bucket.ready_at(cost))
        };
        at(&self.requests, cost.requests).max(at(&self.bytes, cost.bytes))
    }

    fn take(&mut self, cost: Cost, when: Nanos) {
        if let Some(bucket) = &mut self.requests {
            bucket.take(cost.requests, when);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(cost.bytes, when);
        }
    }

    fn overdraw(&mut self, cost: Cost, now: Nanos) {
        self.requests.iter_mut().for_each(|bucket| bucket.overdraw(cost.requests, now));
        self.bytes.iter_mut().for_each(|bucket| bucket.overdraw(cost.bytes, now));
    }

    fn set(&mut self, limits: Limits, now: Nanos) {
        let set = |bucket: &mut Option<Bucket>, rate: Option<Rate>| match (&mut *bucket, rate) {
            (Some(bucket), Some(rate)) => bucket.set(rate, now),
            (bucket, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
        };
        set(&mut self.requests, limits.requests);
        set(&mut self.bytes, limits.bytes);
    }

    fn is_open(&self) -> bool {
        self.requests.is_none() && self.bytes.is_none()
    }
}

/// A class with a limit.
#[derive(Clone, Debug, Default)]
struct Group {
    limiter: Limiter,
    /// Somebody waits for it, whom nobody may overtake.
    is_waited_for: bool,
}

/// A call that may not start yet.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    asker: u64,
    cost: Cost,
    since: Nanos,
    ticket: u64,
}

/// A volume that has, or had, a limit.
#[derive(Clone, Debug, Default)]
struct Lane {
    class: Option<ClassId>,
    limiter: Limiter,
    waiting: VecDeque<Waiter>,
    waits: Waits,
}

impl Lane {
    fn waiter_of(&self, asker: u64) -> Option<&Waiter> {
        self.waiting.iter().find(|waiter| waiter.asker == asker)
    }
}

/// See the file's header. An asker waits with one call at a time.
#[derive(Clone, Debug)]
pub struct Throttle {
    lanes: BTreeMap<VolumeId, Lane>,
    groups: BTreeMap<ClassId, Group>,
    tickets: u64,
    deadline: Nanos,
}

impl Default for Throttle {
    fn default() -> Self {
        let (lanes, groups) = (BTreeMap::new(), BTreeMap::new());
        Throttle { lanes, groups, tickets: 0, deadline: Nanos::NEVER }
    }
}

/// What became of a lane's first call.
enum Head {
    Passed(u64),
    /// Until then, for the volume's own limit.
    Volume(Nanos),
    /// Until then, for the class's; or until who came before has passed.
    Class(Option<Nanos>),
}

impl Throttle {
    /// Replaces all limits. Who waits is judged by the new ones at the next
    /// [`Throttle::release`], which is due at once.
    pub fn set(&mut self, plan: &LimitPlan, now: Nanos) {
        for lane in self.lanes.values_mut() {
            lane.class = None;
        }
        for (volume, class, limits) in &plan.volumes {
            let lane = self.lanes.entry(*volume).or_default();
            lane.class = Some(*class);
            lane.limiter.set(*limits, now);
        }
        for lane in self.lanes.values_mut().filter(|lane| lane.class.is_none()) {
            lane.limiter = Limiter::default();
        }
        self.groups.retain(|class, _| plan.classes.iter().any(|(known, _)| known == class));
        for (class, limits) in &plan.classes {
            self.groups.entry(*class).or_default().limiter.set(*limits, now);
        }
        self.hurry();
    }

    /// Whether a call may start now. If not, its asker waits until [`Throttle::release`] names it,
    /// and a repeated question for the call that waits has the same answer and changes nothing.
    pub fn ask(&mut self, volume: VolumeId, asker: u64, cost: Cost, now: Nanos) -> bool {
        let Some(lane) = self.lanes.get_mut(&volume) else { return true };
        let group = lane.class.and_then(|class| self.groups.get_mut(&class));
        let is_free = cost.is_free() || (lane.limiter.is_open() && group.is_none());
        if is_free && lane.waiter_of(asker).is_none() {
            return true;
        }
        if let Some(waiter) = lane.waiter_of(asker) {
            debug_assert_eq!(waiter.cost, cost, "an asker waits with one call at a time");
            return false;
        }
        self.tickets += 1;
        let waiter = Waiter { asker, cost, since: now, ticket: self.tickets };
        if lane.waiting.is_empty() {
            match pass(&mut lane.limiter, group, &waiter, now) {
                Head::Passed(_) => return true,
                Head::Volume(until) | Head::Class(Some(until)) => {
                    self.deadline = self.deadline.min(until);
                }
                Head::Class(None) => {}
            }
        }
        lane.waits.calls += 1;
        lane.waiting.push_back(waiter);
        false
    }

    /// When [`Throttle::release`] is due: [`Nanos::NEVER`] while nobody waits.
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Appends to `released` who may start by now, in the order in which they may.
    pub fn release(&mut self, now: Nanos, released: &mut Vec<u64>) {
        self.deadline = Nanos::NEVER;
        self.groups.values_mut().for_each(|group| group.is_waited_for = false);
        let heads = self.lanes.iter().filter_map(|(volume, lane)| {
            lane.waiting.front().map(|waiter| Reverse((waiter.ticket, *volume)))
        });
        let mut heads: BinaryHeap<_> = heads.collect();
        while let Some(Reverse((_, volume))) = heads.pop() {
            let lane = self.lanes.get_mut(&volume).expect("lanes stay while they are walked");
            let group = lane.class.and_then(|class| self.groups.get_mut(&class));
            let waiter = *lane.waiting.front().expect("only lanes with a line are walked");
            match pass(&mut lane.limiter, group, &waiter, now) {
                Head::Passed(waited_ns) => {
                    lane.waits.waited_ns += waited_ns;
                    lane.waiting.pop_front();
                    released.push(waiter.asker);
                    heads.extend(lane.waiting.front().map(|next| Reverse((next.ticket, volume))));
                }
                Head::Volume(until) | Head::Class(Some(until)) => {
                    self.deadline = self.deadline.min(until);
                }
                Head::Class(None) => {}
            }
        }
    }

    /// Takes a waiting asker of `volume` out of the line.
    pub fn cancel(&mut self, volume: VolumeId, asker: u64) {
        let Some(lane) = self.lanes.get_mut(&volume) else { return };
        let before = lane.waiting.len();
        lane.waiting.retain(|waiter| waiter.asker != asker);
        if lane.waiting.len() < before {
            self.clear_classes();
            self.hurry();
        }
    }

    /// A call starts whatever the limits say, and is charged: its asker waits no more.
    pub fn charge(&mut self, volume: VolumeId, asker: u64, cost: Cost, now: Nanos) {
        self.cancel(volume, asker);
        let Some(lane) = self.lanes.get_mut(&volume) else { return };
        lane.limiter.overdraw(cost, now);
        // A guest that stops its queues again and again makes no debt without end for its class.
        if let Some(group) = lane.class.and_then(|class| self.groups.get_mut(&class)) {
            let Limiter { requests, bytes } = &mut group.limiter;
            requests.iter_mut().for_each(|bucket| bucket.overdraw_for_others(cost.requests, now));
            bytes.iter_mut().for_each(|bucket| bucket.overdraw_for_others(cost.bytes, now));
        }
    }

    /// Forgets a volume that is gone, and who waits for it.
    pub fn forget(&mut self, volume: VolumeId) {
        self.lanes.remove(&volume);
        self.clear_classes();
        self.hurry();
    }

    /// How `volume`'s calls have waited.
    #[must_use]
    pub fn waits(&self, volume: VolumeId) -> Waits {
        let of = |lane: &Lane| Waits { waiting: lane.waiting.len() as u64, ..lane.waits };
        self.lanes.get(&volume).map(of).unwrap_or_default()
    }

    /// No class is waited for that no call waits for any more.
    fn clear_classes(&mut self) {
        let waiting = self.lanes.values().filter(|lane| !lane.waiting.is_empty());
        let classes: BTreeSet<_> = waiting.filter_map(|lane| lane.class).collect();
        for (class, group) in &mut self.groups {
            group.is_waited_for &= classes.contains(class);
        }
    }

    /// Who waits is to be judged again at once.
    fn hurry(&mut self) {
        if self.lanes.values().any(|lane| !lane.waiting.is_empty()) {
            self.deadline = Nanos::ZERO;
        }
    }
}

/// Lets the first call of a lane pass if all its buckets do.
fn pass(limiter: &mut Limiter, group: Option<&mut Group>, waiter: &Waiter, now: Nanos) -> Head {
    let own = limiter.ready_at(waiter.cost);
    if own > now {
        return Head::Volume(own);
    }
    // Charged when it could have passed, so that the caller's lateness costs no rate.
    let earliest = Nanos(now.0.saturating_sub(LATENESS_MAX.0)).max(waiter.since).max(own);
    let Some(group) = group else {
        limiter.take(waiter.cost, earliest);
        return Head::Passed(now.since(waiter.since).0);
    };
    if group.is_waited_for {
        return Head::Class(None);
    }
    let shared = group.limiter.ready_at(waiter.cost);
    if shared > now {
        group.is_waited_for = true;
        return Head::Class(Some(shared));
    }
    limiter.take(waiter.cost, earliest.max(shared));
    group.limiter.take(waiter.cost, earliest.max(shared));
    Head::Passed(now.since(waiter.since).0)
}
