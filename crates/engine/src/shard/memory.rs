//! How much memory connections may hold: bytes of requests in flight, replies that were not taken,
//! and what was received of long messages.
//!
//! How: a connection holds some bytes uncharged, so that small requests always start and an idle
//! one is charged nothing. What it holds beyond is charged to its volume and to the shard. A
//! request that does not fit waits in its connection, whose socket is not read meanwhile, and is
//! named again when enough is free. Waiting requests of a volume are granted in their order. Ranks
//! below the best one leave it a quarter, and a volume of theirs holds at most as much as it leaves
//! free of their part, so that what never ends leaves others room. One request starts always where
//! nothing is charged but to connections that wait themselves and have nothing in flight, however
//! large it is: nothing else could free room. What does not fit keeps all behind it waiting, so
//! that short requests do not starve a long one. Where it would not fit beside what *overdue*
//! volumes hold, see [`Core::overdue_since`](crate::core::Core), which may take for ever to end, it
//! keeps theirs alone, so that one that is slow has room for it in the end. Each of those keeps a
//! small share, as its levels may serve it beside the hang; one that holds more than that in the
//! hang itself starts requests of up to `connection_bytes_free` alone meanwhile. A connection that
//! is busy gets a larger buffer to receive into, out of a small part of its own.
//! Invariant: the charges of volumes add up to the shard's; a grant is charged until it is used.
//! Cost: some additions per request; a pass over those that wait when something is freed.
//! Not for: guests' queues, which have a bound of their own, see `guest/bound.rs`.

use crate::control::ClientMemoryStats;
use layby_types::{Nanos, VolumeId};
use std::collections::{HashMap, HashSet, VecDeque};

/// How long a connection that moves no bytes keeps what others wait for.
const STALL_PATIENCE: Nanos = Nanos::from_secs(30);
/// Time between two looks for such connections, while others wait.
const LOOK_PERIOD: Nanos = Nanos::from_secs(1);

/// How much the connections of a shard may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMemory {
    /// All of them, beyond what each holds uncharged.
    pub bytes_max: u64,
    /// What each holds uncharged, beside a first buffer of 16 KiB.
    pub connection_bytes_free: u64,
}

impl ClientMemory {
    /// Two of the longest requests with their replies.
    pub const DEFAULT: ClientMemory =
        ClientMemory { bytes_max: 128 << 20, connection_bytes_free: Self::CONNECTION_BYTES_FREE };
    /// Some requests of some blocks, and their replies.
    pub const CONNECTION_BYTES_FREE: u64 = 48 << 10;
    /// The least: a first buffer for replies.
    pub const CONNECTION_BYTES_FREE_MIN: u64 = 16 << 10;

    /// A volume's connections together; also all ranks below the best one.
    #[must_use]
    pub const fn volume_bytes_max(self) -> u64 {
        self.bytes_max / 4 * 3
    }

    /// What overdue volumes together may still hold while a request waits for them.
    const fn overdue_bytes_max(self) -> u64 {
        self.bytes_max / 8
    }

    /// What all have as larger buffers to receive into.
    const fn spare_bytes_max(self) -> u64 {
        self.bytes_max / 8
    }

    /// A connection's requests in flight (one more request may start).
    #[must_use]
    pub const fn connection_bytes_max(self) -> u64 {
        self.bytes_max / 4
    }
}

/// What is known of a connection here.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) number: u32,
    pub(super) volume: VolumeId,
    charged: u64,
    /// What of that only the start of its own next request can free.
    parked: u64,
    /// Bytes of its buffer to receive into, beyond the first one's.
    pub(super) spare: u64,
    /// A request of it waits.
    pub(super) is_waiting: bool,
    /// Bytes of its requests in flight at most (one more request may start).
    pub(super) inflight_bytes_max: u64,
    /// When its peer last moved bytes, as far as that was looked at, or got its turn to.
    pub(super) moved_at: Nanos,
}

impl Holder {
    /// Whether others could have something of it.
    pub(super) fn is_charged(&self) -> bool {
        self.charged > 0
    }
}

/// A request that waits.
struct Waiting {
    number: u32,
    volume: VolumeId,
    ask: Ask,
}

/// What a connection asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Bytes that it holds.
    pub(super) held: u64,
    /// Bytes that it would hold beyond.
    pub(super) bytes: u64,
    /// Its rank is the best one.
    pub(super) is_best: bool,
}

/// Requests wait for room in the shard, and none may overtake them.
#[derive(Clone, Copy)]
struct Short {
    best: bool,
    lower: bool,
    /// What volumes that are overdue may hold together, as they hold what others lack: all of them,
    /// and those of lower ranks.
    overdue_bytes_max: u64,
    overdue_bytes_max_lower: u64,
}

impl Default for Short {
    fn default() -> Short {
        let (overdue_bytes_max, overdue_bytes_max_lower) = (u64::MAX, u64::MAX);
        Short { best: false, lower: false, overdue_bytes_max, overdue_bytes_max_lower }
    }
}

impl Short {
    /// A request waits that lacks room until others have ended, and leaves overdue volumes so much.
    fn note(&mut self, is_best: bool, comes_to_fit: bool, overdue_bytes_max: u64) {
        let (is_short, most) = match is_best {
            true => (&mut self.best, &mut self.overdue_bytes_max),
            false => (&mut self.lower, &mut self.overdue_bytes_max_lower),
        };
        *is_short |= comes_to_fit;
        *most = overdue_bytes_max.min(*most);
    }

    /// Whether a request waits behind those.
    fn is_ahead_of(self, ask: Ask) -> bool {
        self.best || self.lower && !ask.is_best
    }

    /// What overdue volumes may hold together beside those, with a request of theirs.
    fn overdue_most(self, ask: Ask) -> u64 {
        match ask.is_best {
            true => self.overdue_bytes_max,
            false => self.overdue_bytes_max.min(self.overdue_bytes_max_lower),
        }
    }
}

/// Bytes that connections hold.
#[derive(Clone, Copy, Default)]
struct Sum {
    charged: u64,
    /// Of these, such that only the start of a waiting request can free.
    parked: u64,
}

impl Sum {
    fn change(&mut self, old: Sum, new: Sum) {
        self.charged = self.charged - old.charged + new.charged;
        self.parked = self.parked - old.parked + new.parked;
    }

    /// Whether nothing will be freed by itself.
    fn is_idle(self) -> bool {
        self.charged == self.parked
    }
}

/// See the file's header.
pub(super) struct Memory {
    limits: ClientMemory,
    all: Sum,
    spare: u64,
    volumes: HashMap<VolumeId, Sum>,
    /// Volumes whose device or store owes an end for long.
    overdue: HashSet<VolumeId>,
    waiting: VecDeque<Waiting>,
    /// Bytes charged for requests that have not started yet, by connection.
    granted: HashMap<u32, u64>,
    short: Short,
    has_freed: bool,
    look_at: Nanos,
    waited_total: u64,
}

impl Memory {
    pub(super) fn new(limits: ClientMemory) -> Self {
        Memory {
            limits,
            all: Sum::default(),
            spare: 0,
            volumes: HashMap::new(),
            overdue: HashSet::new(),
            waiting: VecDeque::new(),
            granted: HashMap::new(),
            short: Short::default(),
            has_freed: false,
            look_at: Nanos::NEVER,
            waited_total: 0,
        }
    }

    /// What is known of a new connection.
    pub(super) fn holder(&self, number: u32, volume: VolumeId, now: Nanos) -> Holder {
        let inflight_bytes_max = self.limits.connection_bytes_max();
        let (charged, parked, spare, is_waiting) = (0, 0, 0, false);
        let moved_at = now;
        Holder { number, volume, charged, parked, spare, is_waiting, inflight_bytes_max, moved_at }
    }

    /// What is charged, and how often requests waited.
    pub(super) fn stats(&self) -> ClientMemoryStats {
        ClientMemoryStats { bytes_held: self.all.charged, waits: self.waited_total }
    }

    fn charge(&mut self, volume: VolumeId, old: Sum, new: Sum) {
        let own = self.volumes.entry(volume).or_default();
        own.change(old, new);
        if own.charged == 0 {
            self.volumes.remove(&volume);
        }
        self.all.change(old, new);
        self.has_freed |= new.charged < old.charged || new.parked > old.parked;
    }

    /// The connection holds so many bytes now. It `is_parked` where it waits and has nothing in
    /// flight.
    pub(super) fn settle(&mut self, holder: &mut Holder, held: u64, is_parked: bool) {
        let charged = held.saturating_sub(self.limits.connection_bytes_free);
        let new = Sum { charged, parked: if is_parked { charged } else { 0 } };
        let old = Sum { charged: holder.charged, parked: holder.parked };
        if (old.charged, old.parked) != (new.charged, new.parked) {
            (holder.charged, holder.parked) = (new.charged, new.parked);
            self.charge(holder.volume, old, new);
        }
    }

    /// The connection has gone as far as it can: a grant that is left is others'.
    pub(super) fn give_back(&mut self, holder: &Holder) {
        self.take_grant(holder);
    }

    /// Takes the grant of a connection back, to use it or not.
    fn take_grant(&mut self, holder: &Holder) -> u64 {
        let granted = self.granted.remove(&holder.number).unwrap_or(0);
        if granted > 0 {
            let old = Sum { charged: granted, parked: 0 };
            self.charge(holder.volume, old, Sum::default());
        }
        granted
    }

    /// Whether a connection that holds `held` bytes may hold `bytes` more; if not it waits, and
    /// [`Memory::take_granted`] names it when it may.
    pub(super) fn may_hold(&mut self, holder: &mut Holder, ask: Ask) -> bool {
        let may = self.has_room(holder, ask);
        if !may {
            let (number, volume) = (holder.number, holder.volume);
            self.waiting.push_back(Waiting { number, volume, ask });
            self.waited_total += 1;
            holder.is_waiting = true;
        }
        may
    }

    /// The same; where not, the connection asks again when something of it has ended.
    pub(super) fn has_room(&mut self, holder: &mut Holder, ask: Ask) -> bool {
        self.settle(holder, ask.held, false);
        let granted = self.take_grant(holder);
        let is_small = ask.held + ask.bytes <= self.limits.connection_bytes_free;
        if is_small || granted > 0 && granted >= ask.bytes {
            return true;
        }
        let is_behind = self.waiting.iter().any(|waiting| waiting.volume == holder.volume);
        let fits = self.fits_volume(holder.volume, ask) && self.fits(holder.volume, ask);
        !is_behind && fits
    }

    /// Whether a connection may receive into a buffer of `spare` bytes beyond the first one's,
    /// which is then its own until the next call.
    pub(super) fn may_enlarge(&mut self, holder: &mut Holder, spare: u64) -> bool {
        let others = self.spare - holder.spare;
        let is_plenty = self.waiting.is_empty() && others + spare <= self.limits.spare_bytes_max();
        let may = spare == 0 || is_plenty;
        holder.spare = if may { spare } else { 0 };
        self.spare = others + holder.spare;
        may
    }

    /// Whether the request's volume may hold so much beside others.
    fn fits_volume(&self, volume: VolumeId, ask: Ask) -> bool {
        let own = self.volumes.get(&volume).copied().unwrap_or_default();
        let most = self.limits.volume_bytes_max();
        let would_hold = own.charged + ask.bytes;
        // Of lower ranks the first volume gets a half, the next a half of the rest, and so on.
        let leaves_room = would_hold + self.all.charged + ask.bytes <= most;
        own.is_idle() || would_hold <= most && (ask.is_best || leaves_room)
    }

    /// Whether the shard has room, and none that waits before it lacks that.
    fn fits(&self, volume: VolumeId, ask: Ask) -> bool {
        let is_behind = self.short.is_ahead_of(ask) || !self.keeps_share(volume, ask);
        !is_behind && (self.all.is_idle() || self.all.charged + ask.bytes <= self.most(ask))
    }

    /// Whether the volume, if it is overdue, would hold no more than its share of what requests
    /// that wait leave those.
    fn keeps_share(&self, volume: VolumeId, ask: Ask) -> bool {
        let share = self.short.overdue_most(ask) / self.overdue.len().max(1) as u64;
        let own = self.volumes.get(&volume).map_or(0, |own| own.charged);
        !self.overdue.contains(&volume) || own + ask.bytes <= share
    }

    /// What the request's rank may hold, and the ones below.
    fn most(&self, ask: Ask) -> u64 {
        if ask.is_best { self.limits.bytes_max } else { self.limits.volume_bytes_max() }
    }

    /// Whether the request would fit once all has ended that is not overdue.
    fn comes_to_fit(&self, ask: Ask) -> bool {
        let charged = |volume| self.volumes.get(volume).map_or(0, |own| own.charged);
        let overdue: u64 = self.overdue.iter().map(charged).sum();
        overdue == 0 || overdue + ask.bytes <= self.most(ask)
    }

    /// Whether requests wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// These volumes' requests may take for ever to end.
    pub(super) fn set_overdue(&mut self, overdue: &HashSet<VolumeId>) {
        if self.overdue != *overdue {
            self.overdue.clone_from(overdue);
            self.has_freed = true;
        }
    }

    /// Connections whose waiting request may start now.
    pub(super) fn take_granted(&mut self) -> Vec<u32> {
        if !std::mem::take(&mut self.has_freed) {
            return Vec::new();
        }
        self.short = Short::default();
        let (mut named, mut held_back) = (Vec::new(), Vec::new());
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { number, volume, ask } = waiting;
            let is_behind = held_back.contains(&volume) || !self.fits_volume(volume, ask);
            if !is_behind && self.fits(volume, ask) {
                let granted = Sum { charged: ask.bytes, parked: 0 };
                self.charge(volume, Sum::default(), granted);
                self.granted.insert(number, ask.bytes);
                named.push(number);
                continue;
            }
            // An overdue volume that lacks room in its share alone waits for those ahead of it.
            if !is_behind && self.keeps_share(volume, ask) {
                // It fits in the end, once they hold no more.
                let beside = self.most(ask).saturating_sub(ask.bytes);
                let overdue_bytes_max = self.limits.overdue_bytes_max().min(beside);
                self.short.note(ask.is_best, self.comes_to_fit(ask), overdue_bytes_max);
            }
            held_back.push(volume);
            self.waiting.push_back(waiting);
        }
        named
    }

    /// A connection is gone.
    pub(super) fn cancel(&mut self, holder: &mut Holder) {
        self.take_grant(holder);
        self.settle(holder, 0, false);
        self.may_enlarge(holder, 0);
        self.waiting.retain(|waiting| waiting.number != holder.number);
        self.has_freed = true;
    }

    /// When connections that move nothing are to be looked for.
    pub(super) fn deadline(&self) -> Nanos {
        if self.waiting.is_empty() { Nanos::NEVER } else { self.look_at }
    }

    /// Whether to look for them now: connections that have moved nothing since the result keep what
    /// others wait for.
    pub(super) fn stalled_since(&mut self, now: Nanos) -> Option<Nanos> {
        if self.waiting.is_empty() || self.look_at == Nanos::NEVER {
            self.look_at = if self.waiting.is_empty() { Nanos::NEVER } else { now + LOOK_PERIOD };
            return None;
        }
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_PERIOD;
        now.0.checked_sub(STALL_PATIENCE.0).map(Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    const MIB: u64 = 1 << 20;

    fn memory() -> Memory {
        Memory::new(ClientMemory { bytes_max: 64 * MIB, ..ClientMemory::DEFAULT })
    }

    fn holder(number: u32) -> Holder {
        memory().holder(number, VolumeId(number % 3), Nanos::ZERO)
    }

    fn ask(held: u64, bytes: u64) -> Ask {
        Ask { held, bytes, is_best: true }
    }

    /// Goal: small requests start whatever others hold; large ones wait, and are granted in their
    /// order when room is free. Method: one volume's connection fills its part.
    #[test]
    fn large_requests_wait_in_order() {
        let mut memory = memory();
        let [mut first, mut second, mut third] = [0, 3, 6].map(holder);
        assert!(memory.may_hold(&mut first, ask(0, 32 * MIB)));
        memory.settle(&mut first, 32 * MIB, false);
        assert!(!memory.may_hold(&mut second, ask(0, 32 * MIB)));
        assert!(!memory.may_hold(&mut third, ask(0, MIB)), "not before the second");
        assert!(memory.has_room(&mut holder(9), ask(8192, 4096)), "a small one");
        assert!(memory.has_room(&mut holder(1), ask(0, 16 * MIB)), "another volume's");
        assert!(memory.take_granted().is_empty());
        memory.settle(&mut first, 0, false);
        assert_eq!(memory.take_granted(), [3, 6]);
        assert_eq!(memory.all.charged, 33 * MIB, "grants are charged");
        assert!(memory.may_hold(&mut second, ask(0, 32 * MIB)));
        memory.cancel(&mut second);
        memory.cancel(&mut third);
        assert!(memory.all.charged == 0 && memory.volumes.is_empty());
    }

    /// Goal: lower ranks leave the best one room, and a request that no part could hold starts when
    /// nothing else is held. Method: fill what lower ranks have; a tiny shard.
    #[test]
    fn the_best_rank_has_room() {
        let mut memory = memory();
        let [mut first, mut second, mut third] = [0, 1, 2].map(holder);
        let lower = |bytes| Ask { is_best: false, ..ask(0, bytes) };
        assert!(memory.may_hold(&mut first, lower(40 * MIB)));
        memory.settle(&mut first, 40 * MIB, false);
        assert!(!memory.may_hold(&mut second, lower(16 * MIB)));
        memory.has_freed = true;
        assert!(memory.take_granted().is_empty());
        assert!(memory.may_hold(&mut third, ask(0, 16 * MIB)));
        let mut tiny = Memory::new(ClientMemory { bytes_max: MIB, ..ClientMemory::DEFAULT });
        assert!(tiny.may_hold(&mut holder(0), ask(0, 32 * MIB)));
    }

    /// Goal: below the best rank a volume leaves others room, however much it asks for and however
    /// long it holds that, and those leave a third one room, too. Method: connections of two
    /// volumes that ask until they are refused, and end nothing; requests of a third.
    #[test]
    fn a_volume_leaves_others_room() {
        let mut memory = memory();
        let lower = |bytes| Ask { is_best: false, ..ask(0, bytes) };
        for (volume, least) in [(0, 20 * MIB), (1, 10 * MIB)] {
            let mut held = 0;
            for index in 0..64 {
                let mut holder = holder(volume + 3 * index);
                if !memory.has_room(&mut holder, lower(MIB)) {
                    break;
                }
                memory.settle(&mut holder, MIB + ClientMemory::CONNECTION_BYTES_FREE, false);
                held += MIB;
            }
            assert!(held >= least, "{held} bytes of volume {volume}");
        }
        let mut third = holder(2);
        assert!(memory.may_hold(&mut third, lower(4 * MIB)));
        memory.settle(&mut third, 2 * MIB, false);
        assert!(memory.may_hold(&mut third, lower(MIB)));
    }

    /// Goal: connections that wait, each with a long message in its buffer, do not wait for one
    /// another. Method: two that hold all, and a third that is busy and ends.
    #[test]
    fn those_that_wait_do_not_wait_for_each_other() {
        let mut memory = memory();
        let [mut first, mut second, mut busy] = [0, 3, 1].map(holder);
        memory.settle(&mut busy, 16 * MIB, false);
        for holder in [&mut first, &mut second] {
            memory.settle(holder, 33 * MIB, false);
            assert!(!memory.may_hold(holder, ask(33 * MIB, 32 * MIB)));
            memory.settle(holder, 33 * MIB, true);
        }
        assert!(memory.take_granted().is_empty(), "the busy one will free something");
        memory.settle(&mut busy, 0, false);
        assert_eq!(memory.take_granted(), [0], "one of them, and then the other");
        assert!(memory.may_hold(&mut first, ask(33 * MIB, 32 * MIB)));
        memory.cancel(&mut first);
        assert_eq!(memory.take_granted(), [3]);
    }

    /// Goal: a request that cannot fit before a hang ends keeps none waiting that fits, and one
    /// that can is not starved. Method: five overdue volumes that hold all they may, a request of
    /// another one that lacks room beside them, and a short one; then the same without a hang.
    #[test]
    fn what_waits_for_the_overdue_keeps_none_waiting() {
        for is_overdue in [true, false] {
            let mut memory = memory();
            let lower = |bytes| Ask { is_best: false, ..ask(0, bytes) };
            let fresh = Memory::new(memory.limits);
            let holder = |number| fresh.holder(number, VolumeId(number), Nanos::ZERO);
            for (number, bytes) in [24, 12, 6, 3, 1].into_iter().enumerate() {
                let mut holder = holder(number as u32);
                assert!(memory.has_room(&mut holder, lower(bytes * MIB)));
                let held = bytes * MIB + ClientMemory::CONNECTION_BYTES_FREE;
                memory.settle(&mut holder, held, false);
            }
            if is_overdue {
                memory.set_overdue(&(0..5).map(VolumeId).collect());
            }
            assert!(!memory.may_hold(&mut holder(5), lower(4 * MIB)));
            memory.has_freed = true;
            assert!(memory.take_granted().is_empty(), "it has no room");
            assert_eq!(memory.may_hold(&mut holder(6), lower(MIB)), is_overdue);
        }
    }

    /// Goal: volumes that are slow, and overdue for it, do not starve a request of another one that
    /// does not fit beside them. Method: two that ask again as soon as a request has ended.
    #[test]
    fn what_is_slow_starves_no_long_request() {
        let mut memory = memory();
        let lower = |held, bytes| Ask { is_best: false, ..ask(held, bytes) };
        let fresh = Memory::new(memory.limits);
        let holder = |number| fresh.holder(number, VolumeId(number), Nanos::ZERO);
        let mut slow: Vec<(Holder, u64)> = (0..10).map(|n| (holder(n % 2), 0)).collect();
        for (number, (holder, _)) in slow.iter_mut().enumerate() {
            holder.number = number as u32;
        }
        memory.set_overdue(&(0..2).map(VolumeId).collect());
        let (mut long, mut has_asked) = (holder(77), false);
        for step in 0..100 {
            for (holder, held) in &mut slow {
                if *held == 0 && !holder.is_waiting && memory.may_hold(holder, lower(0, 6 * MIB)) {
                    *held = 6 * MIB;
                    memory.settle(holder, *held, false);
                }
            }
            if step > 10 && !std::mem::replace(&mut has_asked, true) {
                assert!(!memory.may_hold(&mut long, lower(0, 30 * MIB)), "they hold too much");
            }
            // The oldest ends.
            if let Some(at) = slow.iter().position(|(_, held)| *held > 0) {
                slow[at..].rotate_left(1);
                let (holder, held) = slow.last_mut().expect("there are some");
                *held = 0;
                memory.settle(holder, 0, false);
            }
            for number in memory.take_granted() {
                if number == 77 {
                    return;
                }
                let own = slow.iter_mut().find(|(holder, _)| holder.number == number);
                let (holder, held) = own.expect("it waited");
                (holder.is_waiting, *held) = (false, 6 * MIB);
                memory.take_grant(holder);
                memory.settle(holder, 6 * MIB, false);
            }
        }
        panic!("it waits for ever");
    }

    /// Goal: a volume whose store hangs is served out of its levels, within a small share, beside a
    /// request that waits for the end of another hang; that one takes no more. Method: two overdue
    /// volumes, one of which holds much; a long request of a third; both ask on; the hang ends.
    #[test]
    fn an_overdue_volume_keeps_a_small_share() {
        let mut memory = memory();
        let lower = |held, bytes| Ask { is_best: false, ..ask(held, bytes) };
        let fresh = Memory::new(memory.limits);
        let [mut hung, mut served, mut next, mut long] =
            [0, 1, 2, 3].map(|number| fresh.holder(number, VolumeId(number / 2), Nanos::ZERO));
        (served.volume, next.volume, long.volume) = (VolumeId(1), VolumeId(0), VolumeId(2));
        for (holder, held) in [(&mut hung, 24 * MIB), (&mut served, MIB)] {
            assert!(memory.may_hold(holder, lower(0, held)));
            memory.settle(holder, held, false);
        }
        memory.set_overdue(&(0..2).map(VolumeId).collect());
        assert!(!memory.may_hold(&mut long, lower(0, 28 * MIB)), "it does not fit beside them");
        for round in 0..10 {
            assert!(memory.take_granted().is_empty(), "round {round}");
            assert!(memory.has_room(&mut served, lower(MIB, MIB)), "round {round}: it is served");
            memory.settle(&mut served, 2 * MIB, false);
            assert!(!memory.has_room(&mut served, lower(2 * MIB, 4 * MIB)), "round {round}");
            assert!(!memory.has_room(&mut next, lower(0, MIB)), "round {round}: it holds enough");
            memory.settle(&mut served, MIB, false);
        }
        memory.settle(&mut hung, 0, false);
        assert_eq!(memory.take_granted(), [3]);
    }

    /// Goal: an overdue volume that waits for its share alone keeps no healthy one waiting. Method:
    /// an overdue volume that holds much; a long request of a healthy one, which waits for it; one
    /// of a second overdue volume, beyond its share; a request of a healthy one that fits. Then the
    /// same without the second overdue one's.
    #[test]
    fn what_waits_for_its_share_keeps_none_waiting() {
        for asks_beyond in [true, false] {
            let mut memory = memory();
            let lower = |bytes| Ask { is_best: false, ..ask(0, bytes) };
            let fresh = Memory::new(memory.limits);
            let [mut hung, mut long, mut next, mut healthy] =
                [0, 1, 2, 3].map(|number| fresh.holder(number, VolumeId(number), Nanos::ZERO));
            assert!(memory.may_hold(&mut hung, lower(40 * MIB)));
            memory.settle(&mut hung, 40 * MIB, false);
            memory.set_overdue(&[VolumeId(0), VolumeId(2)].into());
            assert!(!memory.may_hold(&mut long, lower(16 * MIB)), "it does not fit beside them");
            assert!(memory.take_granted().is_empty());
            if asks_beyond {
                assert!(!memory.may_hold(&mut next, lower(6 * MIB)), "it is more than its share");
                memory.has_freed = true;
                assert!(memory.take_granted().is_empty());
            }
            assert!(memory.has_room(&mut healthy, lower(MIB)), "beyond: {asks_beyond}");
            memory.settle(&mut hung, 0, false);
            assert_eq!(memory.take_granted(), if asks_beyond { vec![1, 2] } else { vec![1] });
        }
    }

    /// Goal: charges are never lost, and all that waits is granted once what is held goes. Method:
    /// seeded requests of connections that hold for a while.
    #[test]
    fn all_that_waits_is_granted() {
        for seed in 0..50 {
            let (mut rng, mut memory) = (Rng::new(seed), memory());
            let mut holders: Vec<(Holder, u64, u64)> =
                (0..20).map(|number| (holder(number), 0, 0)).collect();
            for step in 0..2000 {
                let (holder, held, wanted) = &mut holders[rng.below(20) as usize];
                // What was begun ends, also where the next request waits.
                if *held > 0 && (rng.chance(1, 2) || step > 1000) {
                    *held = 0;
                    memory.settle(holder, 0, false);
                } else if !holder.is_waiting && (step < 1000 || *wanted > 0) {
                    if *wanted == 0 {
                        *wanted = 1 + rng.below(32 * MIB);
                    }
                    let ask = Ask { is_best: rng.chance(1, 2), ..ask(*held, *wanted) };
                    if memory.may_hold(holder, ask) {
                        *held += std::mem::take(wanted);
                        memory.settle(holder, *held, false);
                    }
                }
                for number in memory.take_granted() {
                    holders[number as usize].0.is_waiting = false;
                }
                let sum: u64 = memory.volumes.values().map(|own| own.charged).sum();
                assert_eq!(sum, memory.all.charged, "seed {seed}");
            }
            let left = (memory.waiting.len(), memory.granted.len());
            assert_eq!(left, (0, 0), "seed {seed}");
        }
    }
}
