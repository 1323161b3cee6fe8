//! I/O has a time: a device or backing store that owes an end for too long is stuck.
//!
//! How: [`Io`] says since when each disk owes an end. Past the limit the place is stuck until that
//! end has come, and requests as old as the limit that may wait for it are answered with an error.
//! Where it has ended nothing else in that time it is silent, too: reads of it that come meanwhile
//! end at once, and nothing is destaged.
//! What was begun goes on without them: its buffers, and the locks of its blocks, are kept until it
//! ends; and until a late write has, requests that touch its bytes end with an error, so that it
//! lands under every newer version. Time in which the shard did not run counts for nothing, see
//! [`super::pauses`].
//! Invariant: a request that was timed out is answered once, and touches no memory of its asker
//! afterwards; a volume has at most [`TIMED_OUT_MAX`] of them and as many as wait.
//! Cost: a look a second while anything is in flight.
//! Not for: object stores, whose limit is their class's `answer_within`; a page of mapped NVM that
//! is never read in, since the kernel keeps the thread that wants it.

use super::answer::Destination;
use super::perform::Ending;
use super::{Core, Level, Notice};
use crate::control::StuckPlace;
use crate::io::{DiskId, Io, Owed};
use layby_cache::{Moment, StuckAt};
use layby_types::pauses::Pauses;
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, ErrorKind, Nanos, Operation, RequestId, VolumeId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// How long a device or backing store may owe an end where nothing else is said, as the kernel's
/// own disks do.
pub const IO_TIMEOUT_DEFAULT: Nanos = Nanos::from_secs(30);
/// How much longer a sync or a zeroing may take, whose work has no bound.
const SLOW_TIMES: u64 = 4;
/// How often it is looked while anything is in flight.
const LOOK_EVERY: Nanos = Nanos::from_secs(1);
/// Requests of a volume that were timed out and whose work has not ended, past which nothing is
/// begun that may wait for what is stuck: they hold memory.
pub(super) const TIMED_OUT_MAX: usize = 256;

/// A place that owes an end for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overdue {
    /// When the oldest such operation began.
    since: Nanos,
    /// Nothing else has ended there either.
    is_silent: bool,
}

/// What is stuck.
pub(super) struct Stuck {
    /// How long an end may be owed.
    limit: Nanos,
    /// When it is looked next.
    next_look: Nanos,
    levels: Vec<Option<Overdue>>,
    homes: HashMap<VolumeId, StuckHome>,
    pub(super) pauses: Pauses,
}

/// A volume whose backing store is stuck, or was, so that requests of it were timed out.
#[derive(Default)]
struct StuckHome {
    overdue: Option<Overdue>,
    /// What was timed out and has not ended: the bytes that each may still change.
    timed_out: Vec<Range<u64>>,
}

impl StuckHome {
    /// Whether some of these bytes may still change by what was timed out.
    fn overlaps(&self, bytes: &Range<u64>) -> bool {
        let overlaps = |late: &Range<u64>| late.start < bytes.end && bytes.start < late.end;
        self.timed_out.iter().any(overlaps)
    }
}

impl Stuck {
    pub(super) fn new(levels: usize) -> Self {
        Stuck {
            limit: IO_TIMEOUT_DEFAULT,
            next_look: Nanos::ZERO,
            levels: vec![None; levels],
            homes: HashMap::new(),
            pauses: Pauses::new(),
        }
    }

    /// The silent levels, a bit each.
    fn levels_mask(&self) -> u8 {
        self.mask(|overdue| overdue.is_silent)
    }

    /// Levels that owe an end for too long, a bit each.
    fn overdue_levels(&self) -> u8 {
        self.mask(|_| true)
    }

    fn mask(&self, is_meant: impl Fn(&Overdue) -> bool) -> u8 {
        let is_meant = |overdue: &Option<Overdue>| overdue.as_ref().is_some_and(&is_meant);
        let meant = self.levels.iter().enumerate().filter(|(_, overdue)| is_meant(overdue));
        meant.fold(0, |mask, (level, _)| mask | 1 << level)
    }

    /// What of that is overdue.
    fn judge(&self, owed: Owed, now: Nanos) -> Option<Overdue> {
        let is_old =
            |begun: &Nanos, times| now.since(*begun).0 >= self.limit.0.saturating_mul(times);
        let quick = owed.quick.filter(|begun| is_old(begun, 1));
        let slow = owed.slow.filter(|begun| is_old(begun, SLOW_TIMES));
        let since = quick.into_iter().chain(slow).min()?;
        let is_silent = now.since(since.max(owed.ended)) >= self.limit;
        Some(Overdue { since, is_silent })
    }

    /// How long an end may be owed.
    pub(super) fn limit(&self) -> Nanos {
        self.limit
    }

    fn is_any(&self) -> bool {
        !self.homes.is_empty() || self.levels.iter().any(Option::is_some)
    }

    fn overdue(&self, volume: VolumeId) -> Option<Overdue> {
        self.homes.get(&volume).and_then(|home| home.overdue)
    }

    pub(super) fn forget_volume(&mut self, volume: VolumeId) {
        self.homes.remove(&volume);
    }

    fn forget_idle(&mut self) {
        self.homes.retain(|_, home| home.overdue.is_some() || !home.timed_out.is_empty());
    }
}

impl Core {
    /// How long a device or backing store may owe an end before it is stuck; `NEVER` for as long as
    /// it likes.
    pub fn set_io_timeout(&mut self, limit: Nanos) {
        self.stuck.limit = limit;
    }

    /// When [`Core::look_for_stuck`] is wanted if nothing else happens.
    #[must_use]
    pub fn next_look(&self, io: &dyn Io) -> Nanos {
        let is_owed = io.has_flights() || self.stuck.is_any();
        let is_wanted = self.stuck.limit != Nanos::NEVER && is_owed;
        if is_wanted { self.stuck.next_look } else { Nanos::NEVER }
    }

    /// Looks which devices and backing stores owe an end for too long, and gives up requests that
    /// may wait for them as long.
    pub fn look_for_stuck(&mut self, io: &mut dyn Io) {
        if self.now < self.stuck.next_look || self.stuck.limit == Nanos::NEVER {
            return;
        }
        self.stuck.next_look = self.now + LOOK_EVERY.min(Nanos(self.stuck.limit.0 / 4));
        for level in 0..self.levels.len() {
            let Some(disk) = level_disk(&self.levels[level]) else { continue };
            let overdue = self.stuck.judge(io.owed(disk), self.now);
            let before = std::mem::replace(&mut self.stuck.levels[level], overdue);
            self.note_stuck(io.disk_name(disk), None, before, overdue);
        }
        let mut volumes: Vec<VolumeId> = self.homes.keys().copied().collect();
        volumes.sort_unstable();
        for volume in volumes {
            self.look_at_home(io, volume);
        }
        if self.stuck.is_any() {
            self.time_out_old();
            self.run(io, None);
        }
    }

    fn look_at_home(&mut self, io: &mut dyn Io, volume: VolumeId) {
        let backing = &self.homes[&volume].backing;
        let Some(disk) = backing.disk() else { return };
        let overdue = self.stuck.judge(io.owed(disk), self.now);
        let (before, name) = (self.stuck.overdue(volume), backing.name().to_owned());
        if before == overdue {
            return;
        }
        self.note_stuck(&name, Some(volume), before, overdue);
        self.stuck.homes.entry(volume).or_default().overdue = overdue;
        self.stuck.forget_idle();
        let is_silent = overdue.is_some_and(|overdue| overdue.is_silent);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let mut actions = std::mem::take(&mut self.scratch);
        self.cache.set_stuck(&mut moment, volume, is_silent, &mut actions);
        self.take(actions);
        if is_silent {
            self.pass_silent_home(io, volume);
        }
        self.run(io, None);
    }

    /// Whether a volume's backing store has ended nothing for as long as the limit.
    pub(super) fn is_silent(&self, volume: VolumeId) -> bool {
        self.stuck.overdue(volume).is_some_and(|overdue| overdue.is_silent)
    }

    /// Volumes with a request that has waited for its bytes since `then`, where what it may wait
    /// for has owed an end as long: their backing store, a level's device, another shard. An object
    /// store says of no request what it owes.
    pub(crate) fn overdue_since(&self, io: &dyn Io, then: Nanos) -> HashSet<VolumeId> {
        let owes = |disk: DiskId| {
            let owed = io.owed(disk);
            owed.quick.into_iter().chain(owed.slow).any(|begun| begun <= then)
        };
        let mut places = self.levels.iter().filter_map(level_disk);
        let is_level_overdue = places.any(owes);
        let home_owes = |volume: &VolumeId| {
            self.homes.get(volume).and_then(|home| home.backing.disk()).is_some_and(owes)
        };
        let is_old =
            |entry: &&super::Request| entry.waits_since <= then && has_bytes(entry.call.operation);
        let old = self.requests.values().filter(is_old).map(|entry| entry.volume);
        let mut volumes: HashSet<VolumeId> = old.collect();
        let may_owe = |volume: &VolumeId| self.has_remote_home(*volume) || home_owes(volume);
        volumes.retain(|volume| is_level_overdue || may_owe(volume));
        volumes.extend(self.wides.waiting_since(then));
        volumes
    }

    /// Tells the log of a place that has become stuck, or answers again.
    fn note_stuck(
        &mut self,
        place: &str,
        volume: Option<VolumeId>,
        before: Option<Overdue>,
        now: Option<Overdue>,
    ) {
        let (place, limit) = (place.to_owned(), self.stuck.limit);
        match (before, now) {
            (None, Some(_)) => self.notices.push(Notice::Stuck { place, volume, limit }),
            (Some(before), None) => {
                let span = self.now.since(before.since);
                self.notices.push(Notice::Answers { place, volume, span });
            }
            // Another of its operations is the oldest now.
            _ => {}
        }
    }

    /// Answers requests that may have waited for a stuck place for as long as the limit. What works
    /// elsewhere, as in an object store, has another limit.
    fn time_out_old(&mut self) {
        let levels = self.stuck.overdue_levels();
        let beside = match levels {
            0 => BTreeSet::new(),
            levels => self.cache.requests_beside(levels),
        };
        let is_old = |(id, entry): (&RequestId, &super::Request)| {
            let may_wait = levels != 0 && !beside.contains(id);
            (may_wait || self.stuck.overdue(entry.volume).is_some())
                && !matches!(entry.destination, Destination::TimedOut)
                && self.now.since(entry.waits_since) >= self.stuck.limit
        };
        let old = self.requests.iter().filter(|request| is_old(*request));
        let mut old: Vec<RequestId> = old.map(|(id, _)| *id).collect();
        old.sort_unstable();
        for id in old {
            self.time_out(id);
        }
    }

    /// Answers a request with an error while its work goes on.
    fn time_out(&mut self, id: RequestId) {
        let entry = self.requests.get_mut(&id).expect("it was just seen");
        let destination = std::mem::replace(&mut entry.destination, Destination::TimedOut);
        let (volume, call, asker) = (entry.volume, entry.call, entry.asker);
        let (started, shown, is_part) = (entry.started, entry.shown, entry.is_part);
        let changed = self.changed_by(&call);
        self.stuck.homes.entry(volume).or_default().timed_out.push(changed);
        if let Some(home) = self.homes.get_mut(&volume) {
            home.stats.timed_out += 1;
        }
        let result = match is_planted(Plant::TimedOutAsDone) && call.operation != Operation::Read {
            true => Ok(super::Answer::Nothing),
            false => Err(ErrorKind::Retry),
        };
        let ended = Ending { volume, call, asker, destination, started, shown, is_part };
        self.answer(ended, true, result);
    }

    /// The work of a request that was timed out has ended.
    pub(super) fn end_timed_out(&mut self, volume: VolumeId, call: &Call) {
        if let Some(home) = self.homes.get_mut(&volume) {
            home.inflight -= 1;
        }
        let changed = self.changed_by(call);
        if let Some(home) = self.stuck.homes.get_mut(&volume)
            && let Some(index) = home.timed_out.iter().position(|late| *late == changed)
        {
            home.timed_out.swap_remove(index);
        }
        self.stuck.forget_idle();
    }

    /// The bytes, in whole blocks, that a request changes.
    fn changed_by(&self, call: &Call) -> Range<u64> {
        match call.operation {
            Operation::Write | Operation::WriteZeroes | Operation::Trim => {
                let block = u64::from(self.cache.spec().block_size.bytes());
                let end = call.offset.saturating_add(call.length).next_multiple_of(block);
                call.offset / block * block..end
            }
            _ => 0..0,
        }
    }

    /// Whether a request is refused at once. It touches what a request that was timed out may still
    /// change: what is in flight together has no order, and the late one must not come to lie over
    /// this one. Or it would wait for a backing store that is stuck, or may, and too many wait
    /// already. A remote one may serve what it has here, so that it is asked until then.
    pub(super) fn is_refused_as_stuck(&self, volume: VolumeId, call: &Call) -> bool {
        if !self.stuck.is_any() {
            return false;
        }
        let home = self.stuck.homes.get(&volume);
        let bytes = call.offset..call.offset.saturating_add(call.length);
        if home.is_some_and(|home| home.overlaps(&bytes)) && !is_planted(Plant::LateOverNewer) {
            return true;
        }
        let is_full = home.is_some_and(|home| home.timed_out.len() >= TIMED_OUT_MAX);
        if call.operation != Operation::Read {
            return is_full;
        }
        let is_silent = self.stuck.overdue(volume).is_some_and(|overdue| overdue.is_silent);
        let at = StuckAt {
            levels: self.stuck.levels_mask(),
            is_backing_stuck: is_full || is_silent,
            is_busy_stuck: is_full,
        };
        at != StuckAt::default() && self.cache.is_read_stuck(volume, (call.offset, call.length), at)
    }

    /// Since when places owe an end that is overdue.
    pub(super) fn stuck_places(&self) -> Vec<StuckPlace> {
        let levels = self.stuck.levels.iter().enumerate();
        let levels = levels.filter_map(|(level, overdue)| {
            let place = StuckPlace { level: Some(level), volume: None, seconds: 0.0 };
            overdue.map(|overdue| (overdue.since, place))
        });
        let homes = self.stuck.homes.iter().filter_map(|(volume, home)| {
            let place = StuckPlace { level: None, volume: Some(*volume), seconds: 0.0 };
            home.overdue.map(|overdue| (overdue.since, place))
        });
        let seconds = |(since, place): (Nanos, StuckPlace)| StuckPlace {
            seconds: self.now.since(since).as_secs_f64(),
            ..place
        };
        let mut places: Vec<StuckPlace> = levels.chain(homes).map(seconds).collect();
        places.sort_by_key(|place| (place.level, place.volume));
        places
    }
}

/// Whether a request keeps memory for bytes until it ends.
pub(super) fn has_bytes(operation: Operation) -> bool {
    !matches!(operation, Operation::Flush | Operation::Trim | Operation::WriteZeroes)
}

pub(super) fn level_disk(level: &Level) -> Option<DiskId> {
    match level {
        Level::Memory(_) => None,
        Level::Nvm(store) => Some(store.disk()),
        Level::Ssd(store) => Some(store.disk()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is slow is no device that does not answer: a long sync, and one operation that
    /// hangs while others end, refuse nobody at once. Method: what is owed, by hand, at 200 s.
    #[test]
    fn slow_is_not_silent() {
        let (stuck, now) = (Stuck::new(0), Nanos::from_secs(200));
        let ago = |seconds: u64| Some(Nanos::from_secs(200 - seconds));
        let judge = |quick, slow, ended: u64| {
            let owed = Owed { quick, slow, ended: Nanos::from_secs(200 - ended) };
            stuck
                .judge(owed, now)
                .map(|overdue| (now.since(overdue.since).as_secs(), overdue.is_silent))
        };
        assert_eq!(judge(None, None, 200), None);
        assert_eq!(judge(ago(29), ago(119), 200), None, "both are in time");
        assert_eq!(judge(ago(30), None, 200), Some((30, true)));
        assert_eq!(judge(None, ago(120), 1), Some((120, false)), "reads end beside a sync");
        assert_eq!(judge(ago(40), ago(10), 29), Some((40, false)), "others ended meanwhile");
        assert_eq!(judge(ago(40), ago(10), 30), Some((40, true)), "nothing has for the limit");
    }
}
