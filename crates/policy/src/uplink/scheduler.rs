//! Which object goes up next. See the module's documentation for what holds.

use super::{
    Cap, ClassPlan, PROBE_FACTOR, ROUND_BYTES, Share, Timetable, UplinkLimits, Upload, UploadId,
    VolumePlan, When, is_good,
};
use crate::forecast::Outlook;
use crate::throttle::{Bucket, Rate};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use layby_types::{ClassId, Nanos, VolumeId};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this one; it is in flight until [`Uplink::on_done`], [`Uplink::on_failed`],
    /// [`Uplink::on_silent`] or [`Uplink::withdraw`].
    Send(Upload),
    /// Nothing before then, unless something is submitted or ends, or the outlook changes.
    Wait(Nanos),
    /// Nothing until something is submitted or ends.
    Idle,
}

/// Why an object cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many wait as may.
    Full {
        /// How many.
        queued: u32,
    },
    /// [`Uplink::set_volume`] was never called for it.
    UnknownVolume(VolumeId),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Full { queued } => write!(f, "{queued} objects wait, as many as may"),
            SubmitError::UnknownVolume(volume) => {
                write!(f, "volume {} is not known to the uplink", volume.0)
            }
        }
    }
}

impl core::error::Error for SubmitError {}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Objects that wait.
    pub objects: u32,
    /// Bytes of these.
    pub bytes: u64,
    /// Since when the oldest byte of these has been dirty; none where nothing waits.
    pub since: Option<Nanos>,
}

impl Backlog {
    fn add(&mut self, queued: &Queued) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(queued.upload.bytes);
        self.since = Some(self.since.unwrap_or(Nanos::NEVER).min(queued.upload.since));
    }
}

/// An object that waits.
#[derive(Clone, Copy, Debug)]
struct Queued {
    upload: Upload,
    /// Its age, or that of a later one of the volume where that is older: never before that of
    /// those in front of it.
    since: Nanos,
    ticket: u64,
}

/// A volume.
#[derive(Clone, Debug)]
struct Lane {
    plan: VolumePlan,
    dirty_bytes: u64,
    /// Oldest first, without those that back off.
    queue: VecDeque<Queued>,
    /// Where its store is silent, when its last probe was sent, by ticket.
    silent: Option<u64>,
}

/// A class.
#[derive(Clone, Copy, Debug)]
struct Class {
    plan: ClassPlan,
    /// Bytes that its rounds gave and that it has not sent.
    deficit: u64,
    /// When it was served last, by ticket.
    served: u64,
}

impl Class {
    const NEW: Class = Class { plan: ClassPlan::DEFAULT, deficit: 0, served: 0 };

    fn round_bytes(&self) -> u64 {
        match self.plan.share {
            Share::Strict => ROUND_BYTES,
            Share::Weight(weight) => {
                ROUND_BYTES * u64::from(weight.clamp(Share::WEIGHT_MIN, Share::WEIGHT_MAX))
            }
        }
    }

    /// Rounds until it may send so much.
    fn rounds(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.deficit).div_ceil(self.round_bytes())
    }
}

/// An object that could go up now.
#[derive(Clone, Copy, Debug)]
struct Ready {
    /// When its bound of age is reached, and who came first: who is served first within a class.
    order: (Nanos, u64),
    class: ClassId,
    volume: VolumeId,
    bytes: u64,
    is_strict: bool,
}

/// What is ready.
#[derive(Debug, Default)]
struct Heads {
    strict: Option<Ready>,
    weighted: BTreeMap<ClassId, Ready>,
    /// Of volumes whose stores are silent, those whose last probe is the longest ago, with its
    /// ticket: of strict classes, and of all.
    probe_strict: Option<(u64, Ready)>,
    probe: Option<(u64, Ready)>,
    /// When something that is held back or backs off will be.
    later: Option<Nanos>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Uplink {
    limits: UplinkLimits,
    timetable: Timetable,
    bucket: Option<Bucket>,
    classes: BTreeMap<ClassId, Class>,
    lanes: BTreeMap<VolumeId, Lane>,
    in_flight: BTreeMap<UploadId, Upload>,
    /// Those in flight that take no place.
    probes: BTreeSet<UploadId>,
    /// Bytes handed out since the last probe.
    unprobed_bytes: u64,
    /// Those that back off, by the end of it.
    backing_off: BTreeMap<(Nanos, u64), Queued>,
    /// Objects that wait, those that back off included.
    queued: u32,
    tickets: u64,
}

impl Uplink {
    /// An uplink with nothing to do and no cap.
    #[must_use]
    pub fn new(limits: UplinkLimits) -> Uplink {
        assert!(limits.in_flight_max > 0, "an uplink that sends nothing at a time never sends");
        Uplink {
            limits,
            timetable: Timetable::default(),
            bucket: None,
            classes: BTreeMap::new(),
            lanes: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            probes: BTreeSet::new(),
            unprobed_bytes: 0,
            backing_off: BTreeMap::new(),
            queued: 0,
            tickets: 0,
        }
    }

    /// Another timetable from now on; the cap that holds changes with the next question.
    pub fn set_timetable(&mut self, timetable: Timetable) {
        self.timetable = timetable;
    }

    /// How a class's objects go up from now on.
    pub fn set_class(&mut self, class: ClassId, plan: ClassPlan) {
        self.classes.entry(class).or_insert(Class::NEW).plan = plan;
    }

    /// A volume's class and bounds from now on. What waits moves with it.
    pub fn set_volume(&mut self, volume: VolumeId, plan: VolumePlan) {
        self.classes.entry(plan.class).or_insert(Class::NEW);
        let fresh = || Lane { plan, dirty_bytes: 0, queue: VecDeque::new(), silent: None };
        self.lanes.entry(volume).or_insert_with(fresh).plan = plan;
    }

    /// How many bytes of a volume are not in the cloud, whether or not they wait here.
    pub fn set_dirty(&mut self, volume: VolumeId, bytes: u64) {
        if let Some(lane) = self.lanes.get_mut(&volume) {
            lane.dirty_bytes = bytes;
        }
    }

    /// Forgets a volume that is gone, and gives back what of it waited. What is in flight stays so.
    pub fn forget_volume(&mut self, volume: VolumeId) -> Vec<Upload> {
        let queue = self.lanes.remove(&volume).map(|lane| lane.queue).unwrap_or_default();
        let mut given_back: Vec<Upload> = queue.iter().map(|queued| queued.upload).collect();
        self.backing_off.retain(|_, queued| {
            let is_its = queued.upload.volume == volume;
            given_back.extend(is_its.then_some(queued.upload));
            !is_its
        });
        self.queued -= given_back.len() as u32;
        given_back
    }

    /// Takes in an object.
    ///
    /// # Errors
    /// [`SubmitError`] where too many wait, or the volume is not known; the object is not taken.
    pub fn submit(&mut self, upload: Upload) -> Result<(), SubmitError> {
        assert!(upload.bytes > 0, "an object has bytes");
        assert!(!self.in_flight.contains_key(&upload.id), "{:?} is in flight", upload.id);
        if self.queued >= self.limits.queued_max {
            return Err(SubmitError::Full { queued: self.queued });
        }
        let unknown = SubmitError::UnknownVolume(upload.volume);
        let lane = self.lanes.get_mut(&upload.volume).ok_or(unknown)?;
        self.tickets += 1;
        self.queued += 1;
        // Who stands before an older one is as urgent as that.
        for earlier in lane.queue.iter_mut().rev() {
            if earlier.since <= upload.since {
                break;
            }
            earlier.since = upload.since;
        }
        lane.queue.push_back(Queued { upload, since: upload.since, ticket: self.tickets });
        Ok(())
    }

    /// What to do now. Where the outlook is not known, every period is good.
    pub fn next(&mut self, when: When, outlook: Option<&Outlook>) -> Next {
        self.follow(when);
        self.resume(when.now);
        let most = usize::from(self.limits.in_flight_max);
        let has_place = self.in_flight.len() - self.probes.len() < most;
        let may_probe =
            self.probes.len() < most && self.lanes.values().any(|lane| lane.silent.is_some());
        if !has_place && !may_probe {
            return Next::Idle;
        }
        let heads = self.heads(when.now, is_good(outlook, self.limits.good_percent));
        let Some((chosen, is_probe)) = self.choose(&heads, has_place, may_probe) else {
            return heads.later.map_or(Next::Idle, Next::Wait);
        };
        if let Some(bucket) = &mut self.bucket {
            let ready = bucket.ready_at(chosen.bytes);
            if ready > when.now {
                let change = self.timetable.holds_for(when.time_of_day);
                let change = change.map_or(Nanos::NEVER, |span| when.now.saturating_add(span));
                return Next::Wait(ready.min(change).min(heads.later.unwrap_or(Nanos::NEVER)));
            }
            bucket.take(chosen.bytes, when.now);
        }
        Next::Send(self.send(&chosen, &heads, is_probe))
    }

    /// Strict ones first, then probes, then by weight: probes have places of their own. A cap they
    /// share with the others, so there they go first where they are due, and else last.
    fn choose(&self, heads: &Heads, has_place: bool, may_probe: bool) -> Option<(Ready, bool)> {
        let placed = |ready: Option<Ready>| ready.filter(|_| has_place).map(|one| (one, false));
        let probe = match heads.strict {
            Some(_) => heads.probe_strict,
            None => heads.probe,
        };
        let probe = probe.filter(|_| may_probe).map(|(_, one)| (one, true));
        let strict = placed(heads.strict);
        let weighted = || placed(self.fairest(&heads.weighted));
        if self.bucket.is_none() {
            return strict.or(probe).or_else(weighted);
        }
        let due = probe.filter(|(one, _)| self.is_probe_due(one));
        // What is ready and has no place yet would find the tokens gone.
        let spare = probe.filter(|_| heads.strict.is_none() && heads.weighted.is_empty());
        due.or(strict).or_else(weighted).or(spare)
    }

    /// Whether the others were handed so much since the last probe that one costs them no more than
    /// its part of the cap.
    fn is_probe_due(&self, probe: &Ready) -> bool {
        self.unprobed_bytes >= probe.bytes.saturating_mul(PROBE_FACTOR)
    }

    /// An object arrived: its volume's store answers.
    ///
    /// # Panics
    /// It is not in flight.
    pub fn on_done(&mut self, id: UploadId) -> Upload {
        let upload = self.withdraw(id);
        self.on_answer(upload.volume);
        upload
    }

    /// An object was given up, since its volume's store does not answer. Until one of the volume
    /// arrives its objects go one at a time, as probes, which take no place from others.
    ///
    /// # Panics
    /// It is not in flight.
    pub fn on_silent(&mut self, id: UploadId) -> Upload {
        let upload = self.withdraw(id);
        if let Some(lane) = self.lanes.get_mut(&upload.volume) {
            lane.silent.get_or_insert(self.tickets);
        }
        upload
    }

    /// A volume's store answers, whatever was given up before.
    pub fn on_answer(&mut self, volume: VolumeId) {
        if let Some(lane) = self.lanes.get_mut(&volume) {
            lane.silent = None;
        }
    }

    /// An object is not sent any more, which tells nothing of its store.
    ///
    /// # Panics
    /// It is not in flight.
    pub fn withdraw(&mut self, id: UploadId) -> Upload {
        self.probes.remove(&id);
        self.in_flight.remove(&id).expect("only what was handed out ends")
    }

    /// An object did not arrive; it waits again, by its age, from `not_before` on. Where the volume
    /// is forgotten it is given back. It may make more wait than may be submitted.
    ///
    /// # Panics
    /// It is not in flight.
    pub fn on_failed(&mut self, id: UploadId, not_before: Nanos) -> Option<Upload> {
        let upload = self.withdraw(id);
        if !self.lanes.contains_key(&upload.volume) {
            return Some(upload);
        }
        self.tickets += 1;
        self.queued += 1;
        let queued = Queued { upload, since: upload.since, ticket: self.tickets };
        self.backing_off.insert((not_before, self.tickets), queued);
        None
    }

    /// What waits of a volume. Linear in what waits.
    #[must_use]
    pub fn backlog(&self, volume: VolumeId) -> Backlog {
        self.backlog_where(|one| one == volume)
    }

    /// What waits of a class. Linear in what waits.
    #[must_use]
    pub fn backlog_of_class(&self, class: ClassId) -> Backlog {
        self.backlog_where(|one| self.lanes.get(&one).is_some_and(|lane| lane.plan.class == class))
    }

    fn backlog_where(&self, counts: impl Fn(VolumeId) -> bool) -> Backlog {
        let waiting = self.lanes.values().flat_map(|lane| &lane.queue);
        let waiting = waiting.chain(self.backing_off.values());
        let mut backlog = Backlog::default();
        waiting.filter(|one| counts(one.upload.volume)).for_each(|one| backlog.add(one));
        backlog
    }

    /// Objects under way, and their bytes.
    #[must_use]
    pub fn in_flight(&self) -> (u32, u64) {
        let bytes = self.in_flight.values().map(|upload| upload.bytes).sum();
        (self.in_flight.len() as u32, bytes)
    }

    /// Lets the cap be that of the time of day.
    fn follow(&mut self, when: When) {
        let Cap::BytesPerSecond(tokens) = self.timetable.at(when.time_of_day) else {
            self.bucket = None;
            return;
        };
        let burst = u128::from(tokens) * u128::from(self.limits.burst.0) / 1_000_000_000;
        let rate = Rate::per_second(tokens, u64::try_from(burst).unwrap_or(u64::MAX).max(1));
        match &mut self.bucket {
            Some(bucket) => bucket.set(rate, when.now),
            None => self.bucket = Some(Bucket::new(rate, when.now)),
        }
    }

    /// Puts those whose backing off has ended among their volume's others, by age.
    fn resume(&mut self, now: Nanos) {
        while let Some(first) = self.backing_off.first_entry()
            && first.key().0 <= now
        {
            let queued = first.remove();
            let lane = self.lanes.get_mut(&queued.upload.volume).expect("forgotten ones are gone");
            let place = lane.queue.partition_point(|one| one.since < queued.since);
            lane.queue.insert(place, queued);
        }
    }

    /// The first of every class that could go up, if any.
    fn heads(&self, now: Nanos, good: bool) -> Heads {
        let later = self.backing_off.keys().next().map(|(end, _)| *end);
        let mut heads = Heads { later, ..Heads::default() };
        for (volume, lane) in &self.lanes {
            let Some(first) = lane.queue.front() else { continue };
            let class = self.classes.get(&lane.plan.class).unwrap_or(&Class::NEW);
            let due = if class.plan.is_patient && !good { self.due_at(lane) } else { now };
            if due > now {
                heads.later = Some(heads.later.unwrap_or(Nanos::NEVER).min(due));
                continue;
            }
            let ready = Ready {
                order: (first.since.saturating_add(lane.plan.bounds.age), first.ticket),
                class: lane.plan.class,
                volume: *volume,
                bytes: first.upload.bytes,
                is_strict: class.plan.share == Share::Strict,
            };
            match lane.silent {
                None => heads.offer(ready),
                Some(probed) if !self.is_sending(*volume) => heads.offer_probe(probed, ready),
                Some(_) => {}
            }
        }
        heads
    }

    fn is_sending(&self, volume: VolumeId) -> bool {
        self.in_flight.values().any(|upload| upload.volume == volume)
    }

    /// From when on a volume's objects go up in bad periods, too.
    fn due_at(&self, lane: &Lane) -> Nanos {
        let percent = |whole: u64| {
            let part = u128::from(whole) * u128::from(self.limits.due_percent) / 100;
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        if lane.dirty_bytes >= percent(lane.plan.bounds.bytes) {
            return Nanos::ZERO;
        }
        let oldest = lane.queue.front().map_or(Nanos::NEVER, |first| first.since);
        oldest.saturating_add(Nanos(percent(lane.plan.bounds.age.0)))
    }

    /// The class that needs the fewest rounds; of equals, who waited longest.
    fn fairest(&self, weighted: &BTreeMap<ClassId, Ready>) -> Option<Ready> {
        let of = |ready: &&Ready| {
            let class = &self.classes[&ready.class];
            (class.rounds(ready.bytes), class.served, ready.class)
        };
        weighted.values().min_by_key(of).copied()
    }

    fn send(&mut self, chosen: &Ready, heads: &Heads, is_probe: bool) -> Upload {
        self.tickets += 1;
        if !is_probe && heads.strict.is_none() {
            self.charge(chosen, &heads.weighted);
        }
        let lane = self.lanes.get_mut(&chosen.volume).expect("its volume was just looked at");
        lane.silent = lane.silent.map(|_| self.tickets);
        let queued = lane.queue.pop_front().expect("it was just looked at");
        self.queued -= 1;
        let before = self.in_flight.insert(queued.upload.id, queued.upload);
        assert!(before.is_none(), "{:?} was submitted twice", queued.upload.id);
        self.unprobed_bytes = match is_probe {
            true => 0,
            false => self.unprobed_bytes.saturating_add(queued.upload.bytes),
        };
        if is_probe {
            self.probes.insert(queued.upload.id);
        }
        queued.upload
    }

    /// Gives all that are ready the rounds that the chosen one needs, and takes what it sends.
    /// Who has nothing ready keeps nothing, or it would be owed for what it did not want.
    fn charge(&mut self, chosen: &Ready, weighted: &BTreeMap<ClassId, Ready>) {
        let rounds = self.classes[&chosen.class].rounds(chosen.bytes);
        for (id, class) in &mut self.classes {
            class.deficit = match weighted.contains_key(id) {
                true => class.deficit.saturating_add(rounds.saturating_mul(class.round_bytes())),
                false => 0,
            };
        }
        let class = self.classes.get_mut(&chosen.class).expect("its class was just looked at");
        class.deficit -= chosen.bytes;
        class.served = self.tickets;
    }
}

impl Heads {
    fn offer(&mut self, ready: Ready) {
        let best = match ready.is_strict {
            true => self.strict.get_or_insert(ready),
            false => self.weighted.entry(ready.class).or_insert(ready),
        };
        if ready.order < best.order {
            *best = ready;
        }
    }

    fn offer_probe(&mut self, probed: u64, ready: Ready) {
        let better = |best: Option<(u64, Ready)>| match best {
            Some((other, first)) if (other, first.order) <= (probed, ready.order) => best,
            _ => Some((probed, ready)),
        };
        self.probe = better(self.probe);
        if ready.is_strict {
            self.probe_strict = better(self.probe_strict);
        }
    }
}
