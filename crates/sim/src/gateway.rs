//! An edge gateway in virtual time: files are written into a cache of some size and travel from
//! there to an object store.
//!
//! How: one stream of writes passes one disk; what was written goes up as an object per file, or
//! gathers into bundles, in the order and number that `policy::uplink` says, over a model of the
//! link and the store. What is not in the store takes room in the cache; a write that finds none
//! waits, and fails where it waits longer than its client does.
//! Invariant: the same plan and seed give the same outcome; every byte written is uploaded, unless
//! a write has failed.
//! Cost: an event per piece written and per request. Not for: reads, or what a real node takes for
//! either; see `bench esi`.
//! Source: Sondur, Kant, Vucetic and Byers, "Storage on the edge": the time of a file is that of
//! its metadata and of its bytes (section II), and an object goes up as a whole (section V).

use layby_device::link::Link;
use layby_device::object_store::{Answer, ObjectStore, RequestKind, StoreModel};
use layby_policy::uplink::{
    DirtyBounds, Next, TimeOfDay, Uplink, UplinkLimits, Upload, UploadId, VolumePlan, When,
};
use layby_types::{ClassId, Nanos, VolumeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const VOLUME: VolumeId = VolumeId(0);

/// Files that are written one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// How many.
    pub count: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// Directories above each; none in a flat tree.
    pub depth: u32,
}

/// How files reach the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// An object per file: a look-up for it and for each of its directories, one after the other,
    /// then its bytes. A write needs room for its whole file.
    Objects,
    /// Objects of so many bytes, with whatever was written next in them, and so many bytes of
    /// metadata for each file and for each directory's part of it.
    Bundles {
        /// Bytes of an object, about.
        bytes: u64,
        /// Bytes of metadata per file.
        file_bytes: u64,
        /// More of them per directory above it.
        directory_bytes: u64,
    },
}

/// A gateway and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is written.
    pub files: Files,
    /// How it goes up.
    pub style: Style,
    /// Bytes that may be in no store.
    pub cache_bytes: u64,
    /// The disk's bandwidth.
    pub disk_bytes_per_second: u64,
    /// What a file takes beside its bytes: to submit, open, note and close it.
    pub file_time: Nanos,
    /// The longest write: a file is written in pieces of this, each of which waits for room alone.
    pub write_bytes: u64,
    /// How long a client waits for a write.
    pub patience: Nanos,
    /// The link, in bytes per second.
    pub link_bytes_per_second: u64,
    /// The store, and the chance in it.
    pub store: StoreModel,
    /// Seed of that chance.
    pub seed: u64,
    /// The link is cut until all is written.
    pub is_cut_first: bool,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// When the last file was written; that of the last before a failure.
    pub written: Nanos,
    /// When the last byte was in the store.
    pub stored: Nanos,
    /// Bytes of files written.
    pub bytes: u64,
    /// Bytes put into the store, metadata included.
    pub bytes_up: u64,
    /// Requests to the store.
    pub requests: u64,
    /// The longest that a write waited for room.
    pub longest_wait: Nanos,
    /// A write waited longer than its client does; nothing was written after it.
    pub has_failed: bool,
}

impl Outcome {
    /// Bytes written per second.
    #[must_use]
    pub fn write_rate(&self) -> f64 {
        self.bytes as f64 / self.written.as_secs_f64().max(1e-9)
    }

    /// Bytes that went up per second since the last was written, where the link was cut until then.
    #[must_use]
    pub fn drain_rate(&self) -> f64 {
        self.bytes_up as f64 / self.stored.since(self.written).as_secs_f64().max(1e-9)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The disk has written a piece.
    Written,
    /// Nobody waits for the write any more that has waited for room since then.
    Impatient(Nanos),
    /// A request for an object was answered; so many look-ups are left before its bytes.
    LookedUp(UploadId, u32),
    /// An object is in the store.
    Stored(UploadId),
}

/// What an object is made of.
#[derive(Clone, Copy, Debug)]
struct Object {
    /// Bytes of files in it, which give their room back.
    held: u64,
    bytes: u64,
}

struct Gateway<'a> {
    plan: &'a Plan,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    order: u64,
    store: ObjectStore,
    uplink: Uplink,
    objects: BTreeMap<UploadId, Object>,
    /// Files begun, bytes of the current one that are left, and the piece on its way.
    begun: u64,
    left: u64,
    piece: u64,
    /// Since when the writer waits for room.
    blocked: Option<Nanos>,
    dirty: u64,
    /// Bytes that wait for a bundle to be full: of files, and with metadata.
    gathered: Object,
    outcome: Outcome,
}

/// Lives through a plan.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let link = Link::steady(plan.link_bytes_per_second, Nanos::ZERO);
    let queued_max = UplinkLimits::MAX.queued_max;
    let mut uplink = Uplink::new(UplinkLimits { queued_max, ..UplinkLimits::DEFAULT });
    uplink.set_volume(VOLUME, VolumePlan { class: ClassId(0), bounds: DirtyBounds::DEFAULT });
    let mut gateway = Gateway {
        plan,
        now: Nanos::ZERO,
        events: BinaryHeap::new(),
        order: 0,
        store: ObjectStore::new(plan.store, link.clone(), link, plan.seed),
        uplink,
        objects: BTreeMap::new(),
        begun: 0,
        left: 0,
        piece: 0,
        blocked: None,
        dirty: 0,
        gathered: Object { held: 0, bytes: 0 },
        outcome: Outcome::default(),
    };
    gateway.write_next();
    while let Some(Reverse((at, _, event))) = gateway.events.pop() {
        gateway.now = at;
        gateway.on_event(event);
    }
    let counters = gateway.store.counters();
    gateway.outcome.requests = counters.requests.iter().sum();
    gateway.outcome
}

impl Gateway<'_> {
    fn at(&mut self, when: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((when, self.order, event)));
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Written => self.on_written(),
            Event::Impatient(since) => {
                if self.blocked == Some(since) {
                    self.outcome.has_failed = true;
                    self.blocked = None;
                    self.outcome.longest_wait = self.plan.patience;
                    self.end();
                }
            }
            Event::LookedUp(id, left) => self.look_up(id, left),
            Event::Stored(id) => {
                self.uplink.on_done(id);
                let object = self.objects.remove(&id).expect("an object is stored once");
                self.dirty -= object.held;
                self.outcome.bytes_up += object.bytes;
                self.outcome.stored = self.now;
                if let Some(since) = self.blocked.take() {
                    self.go_on(since);
                }
                self.pump();
            }
        }
    }

    /// The piece of the current file that is written next, or the next file's.
    fn write_next(&mut self) {
        if self.left == 0 {
            if self.begun == self.plan.files.count {
                return self.end();
            }
            self.begun += 1;
            self.left = self.plan.files.bytes;
        }
        self.go_on(self.now);
    }

    /// Writes if there is room; `since` says when it was first tried.
    fn go_on(&mut self, since: Nanos) {
        let files = &self.plan.files;
        let is_first = self.left == files.bytes;
        self.piece = self.left.min(self.plan.write_bytes);
        // An object's room is taken when its file begins.
        let room = match self.plan.style {
            Style::Objects if is_first => files.bytes,
            Style::Objects => 0,
            Style::Bundles { .. } => self.piece,
        };
        if self.dirty + room > self.plan.cache_bytes {
            self.blocked = Some(since);
            if since == self.now {
                self.at(since.saturating_add(self.plan.patience), Event::Impatient(since));
            }
            return self.hasten();
        }
        self.dirty += room;
        self.outcome.longest_wait = self.outcome.longest_wait.max(self.now.since(since));
        let own = if is_first { self.plan.file_time } else { Nanos::ZERO };
        let moved = time_of(self.piece, self.plan.disk_bytes_per_second);
        self.at(self.now.saturating_add(own).saturating_add(moved), Event::Written);
    }

    fn on_written(&mut self) {
        self.left -= self.piece;
        self.outcome.bytes += self.piece;
        self.outcome.written = self.now;
        match self.plan.style {
            Style::Objects if self.left == 0 => {
                let bytes = self.plan.files.bytes;
                self.submit(Object { held: bytes, bytes });
            }
            Style::Objects => {}
            Style::Bundles { bytes, file_bytes, directory_bytes } => {
                self.gathered.held += self.piece;
                self.gathered.bytes += self.piece;
                if self.left == 0 {
                    let directories = u64::from(self.plan.files.depth) * directory_bytes;
                    self.gathered.bytes += file_bytes + directories;
                }
                if self.gathered.bytes >= bytes {
                    self.bundle();
                }
            }
        }
        self.write_next();
    }

    fn bundle(&mut self) {
        let object = std::mem::replace(&mut self.gathered, Object { held: 0, bytes: 0 });
        if object.bytes > 0 {
            self.submit(object);
        }
    }

    /// Somebody waits for room: what has gathered goes up as it is, if nothing else does.
    fn hasten(&mut self) {
        if self.objects.is_empty() {
            self.bundle();
        }
    }

    fn submit(&mut self, object: Object) {
        let id = UploadId(self.order);
        self.order += 1;
        self.objects.insert(id, object);
        let upload = Upload { id, volume: VOLUME, bytes: object.bytes, since: self.now };
        self.uplink.submit(upload).expect("fewer wait than may");
        self.pump();
    }

    fn is_cut(&self) -> bool {
        self.plan.is_cut_first && self.outcome.bytes < self.plan.files.count * self.plan.files.bytes
    }

    fn pump(&mut self) {
        if self.is_cut() {
            return;
        }
        let when = When { now: self.now, time_of_day: TimeOfDay::MIDNIGHT };
        while let Next::Send(upload) = self.uplink.next(when, None) {
            let lookups = match self.plan.style {
                Style::Objects => 1 + self.plan.files.depth,
                Style::Bundles { .. } => 0,
            };
            self.look_up(upload.id, lookups);
        }
    }

    /// One look-up after the other, then the object; what fails is asked again.
    fn look_up(&mut self, id: UploadId, left: u32) {
        let (kind, bytes, next) = match left {
            0 => (RequestKind::Put, self.objects[&id].bytes, Event::Stored(id)),
            _ => (RequestKind::Head, 0, Event::LookedUp(id, left - 1)),
        };
        let outcome = self.store.request(kind, bytes, self.now);
        let is_done = outcome.answer == Answer::Done;
        self.at(outcome.at, if is_done { next } else { Event::LookedUp(id, left) });
    }

    /// All is written, or nothing will be any more.
    fn end(&mut self) {
        self.bundle();
        self.pump();
    }
}

fn time_of(bytes: u64, bytes_per_second: u64) -> Nanos {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUNDLES: Style = Style::Bundles { bytes: 8 << 20, file_bytes: 512, directory_bytes: 64 };

    fn plan(style: Style) -> Plan {
        Plan {
            files: Files { count: 100, bytes: 1 << 20, depth: 0 },
            style,
            cache_bytes: 1 << 30,
            disk_bytes_per_second: 100 << 20,
            file_time: Nanos::from_millis(10),
            write_bytes: 1 << 20,
            patience: Nanos::from_secs(30),
            link_bytes_per_second: 10 << 20,
            store: StoreModel { timeout: Nanos::from_secs(3600), ..StoreModel::DEFAULT },
            seed: 1,
            is_cut_first: false,
        }
    }

    /// Goal: with room for all, writing takes what its disk and its files take, and all is in the
    /// store when the link has carried it. Method: by hand, for both styles.
    #[test]
    fn times_are_as_reckoned() {
        for style in [Style::Objects, BUNDLES] {
            let outcome = run(&plan(style));
            assert_eq!(outcome.written, Nanos::from_secs(2), "{style:?}");
            assert_eq!((outcome.bytes, outcome.has_failed), (100 << 20, false));
            assert!(outcome.bytes_up >= outcome.bytes);
            let seconds = outcome.stored.as_secs_f64();
            assert!((10.0..11.0).contains(&seconds), "{style:?}: {seconds}");
            assert_eq!(outcome, run(&plan(style)), "the same seed gives the same");
        }
        let requests = [Style::Objects, BUNDLES].map(|style| run(&plan(style)).requests);
        assert_eq!(requests, [200, 13], "a look-up and a put per file, or bundles of 8 MiB");
    }

    /// Goal: a burst beyond the cache slows down to the link and passes where pieces give their
    /// room back, and fails where a file needs its whole room for longer than its client waits.
    /// Method: files of 512 MiB through a cache of 1 GiB.
    #[test]
    fn bursts_slow_down_or_fail() {
        let files = Files { count: 6, bytes: 512 << 20, depth: 0 };
        let outcome = run(&Plan { files, ..plan(BUNDLES) });
        assert!(!outcome.has_failed && outcome.bytes == 6 * (512 << 20), "{outcome:?}");
        assert!(outcome.longest_wait < Nanos::from_secs(8), "{:?}", outcome.longest_wait);
        let outcome = run(&Plan { files, ..plan(Style::Objects) });
        assert!(outcome.has_failed && outcome.bytes == 2 * (512 << 20), "{outcome:?}");
    }

    /// Goal: a link that is cut carries nothing before the last write. Method: both times.
    #[test]
    fn a_cut_link_carries_nothing_first() {
        let cut = run(&Plan { is_cut_first: true, ..plan(BUNDLES) });
        let free = run(&plan(BUNDLES));
        assert_eq!(cut.written, free.written);
        let carried = cut.stored.since(cut.written).as_secs_f64();
        assert!((10.0..11.0).contains(&carried), "{carried}");
    }
}
