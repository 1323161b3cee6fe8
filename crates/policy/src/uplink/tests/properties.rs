//! The invariants of the module, against random loads.

use super::*;
use alloc::collections::BTreeMap;

const VOLUMES: u32 = 9;
const CAP: u64 = 1 << 20;
const OBJECT_MAX: u64 = 3 << 20;

struct World {
    uplink: Uplink,
    /// By volume, in the order of submission, each with the end of its backing off.
    waiting: BTreeMap<u32, Vec<(Upload, Nanos)>>,
    flying: BTreeMap<UploadId, Upload>,
    limits: UplinkLimits,
    now: Nanos,
    weather: Option<Outlook>,
    submitted: u64,
    done: u64,
    sent: Vec<(Nanos, u64)>,
    is_capped: bool,
}

impl World {
    fn new(rng: &mut Rng, is_capped: bool) -> World {
        let in_flight_max = 1 + rng.below(4) as u16;
        let limits = UplinkLimits { in_flight_max, ..UplinkLimits::DEFAULT };
        let mut uplink = three_classes(limits, VOLUMES);
        if is_capped {
            let table = Timetable::new(&[], Cap::BytesPerSecond(CAP)).expect("it is sound");
            uplink.set_timetable(table);
        }
        World {
            uplink,
            waiting: (0..VOLUMES).map(|volume| (volume, Vec::new())).collect(),
            flying: BTreeMap::new(),
            limits,
            now: Nanos::from_secs(1),
            weather: None,
            submitted: 0,
            done: 0,
            sent: Vec::new(),
            is_capped,
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(8) {
            0..=3 => self.submit(rng),
            4 | 5 => self.end_one(rng),
            6 => self.now = Nanos(self.now.0 + rng.below(4_000_000_000)),
            _ => {
                let near = rng.below(2000) as f64;
                self.weather = rng.chance(4, 5).then(|| outlook(near, 1000.0));
            }
        }
    }

    fn submit(&mut self, rng: &mut Rng) {
        let volume = rng.below(u64::from(VOLUMES)) as u32;
        self.submitted += 1;
        // All different, so that the order is plain.
        let since = Nanos(self.now.0 + self.submitted);
        let one = upload(self.submitted, volume, 1 + rng.below(OBJECT_MAX), since);
        self.uplink.submit(one).expect("there is room");
        self.waiting.get_mut(&volume).expect("it is known").push((one, Nanos::ZERO));
    }

    fn end_one(&mut self, rng: &mut Rng) {
        let Some((id, upload)) = self.flying.pop_first() else { return };
        if rng.chance(3, 4) {
            assert_eq!(self.uplink.on_done(id), upload);
            self.done += 1;
            return;
        }
        let not_before = Nanos(self.now.0 + rng.below(3_000_000_000));
        assert_eq!(self.uplink.on_failed(id, not_before), None);
        let queue = self.waiting.get_mut(&upload.volume.0).expect("it is known");
        let place = queue.partition_point(|(one, _)| one.since < upload.since);
        queue.insert(place, (upload, not_before));
    }

    /// The first of a volume that could go now, if any.
    fn ready(&self, volume: u32) -> Option<(usize, Upload)> {
        let queue = &self.waiting[&volume];
        let is_held = volume % 3 == 2 && !is_good(self.weather.as_ref(), self.limits.good_percent);
        let found = queue.iter().enumerate().find(|(_, (_, not_before))| *not_before <= self.now);
        let (place, (upload, _)) = found?;
        let due = upload.since.0 + DirtyBounds::DEFAULT.age.0 / 2;
        (!is_held || due <= self.now.0).then_some((place, *upload))
    }

    /// Asks once; whether something was sent.
    fn ask(&mut self, seed: u64) -> bool {
        matches!(self.next(seed), Next::Send(_))
    }

    fn next(&mut self, seed: u64) -> Next {
        let is_full = self.flying.len() >= usize::from(self.limits.in_flight_max);
        let ready: Vec<_> = (0..VOLUMES).filter_map(|volume| self.ready(volume)).collect();
        let next = self.uplink.next(at(self.now), self.weather.as_ref());
        let Next::Send(upload) = next else {
            let conserves = is_full || ready.is_empty() || self.is_capped;
            assert!(conserves, "SEED={seed}: {next:?} while {ready:?} are ready");
            assert!(!matches!(next, Next::Wait(until) if until <= self.now), "SEED={seed}");
            return next;
        };
        assert!(!is_full, "SEED={seed}: more in flight than may");
        let volume = upload.volume.0;
        let place = ready.iter().find(|(_, one)| one.id == upload.id).map(|(place, _)| *place);
        let place = place.expect("only what is ready goes");
        let is_strict = |one: &Upload| one.volume.0.is_multiple_of(3);
        let overtaken = !is_strict(&upload) && ready.iter().any(|(_, one)| is_strict(one));
        assert!(!overtaken, "SEED={seed}: critical waits for {upload:?}");
        for (_, one) in ready.iter().filter(|(_, one)| one.volume.0 % 3 == volume % 3) {
            assert!(
                upload.since <= one.since,
                "SEED={seed}: {one:?} is older than {upload:?}\n{:#?}",
                self.uplink
            );
        }
        self.waiting.get_mut(&volume).expect("it is known").remove(place);
        self.flying.insert(upload.id, upload);
        self.sent.push((self.now, upload.bytes));
        next
    }

    /// Lets all arrive, in good weather.
    fn finish(&mut self, seed: u64) {
        self.weather = None;
        for _ in 0..20 * self.submitted + 100 {
            match self.next(seed) {
                Next::Send(_) => continue,
                Next::Wait(until) => self.now = until,
                Next::Idle => {}
            }
            while let Some((id, _)) = self.flying.pop_first() {
                self.uplink.on_done(id);
                self.done += 1;
            }
        }
        assert_eq!(self.done, self.submitted, "SEED={seed}: an object was lost or stays");
    }
}

/// Goal: work conserving, strict first, oldest first, within the places in flight, each object once
/// and none lost. Method: random objects, ends, failures, weather and time beside a plain list.
#[test]
fn random_loads_are_served_in_order() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(&mut rng, false);
        for _ in 0..400 {
            world.step(&mut rng);
            while rng.chance(9, 10) && world.ask(seed) {}
        }
        world.finish(seed);
    }
}

/// Goal: under a cap, no window holds more than what it earns and the burst, or one object; and all
/// goes at last. Method: the same with a cap, every window, exactly.
#[test]
fn the_cap_holds_in_every_window() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(&mut rng, true);
        for _ in 0..300 {
            world.step(&mut rng);
            while world.ask(seed) {}
        }
        world.finish(seed);
        let most = u128::from(OBJECT_MAX.max(CAP)) * 1_000_000_000;
        for first in 0..world.sent.len() {
            let mut sum = 0;
            for (at, bytes) in &world.sent[first..] {
                sum += u128::from(*bytes) * 1_000_000_000;
                let earned = u128::from(at.since(world.sent[first].0).0 + 1) * u128::from(CAP);
                assert!(sum <= most + earned, "SEED={seed}: too much from {first} to {at:?}");
            }
        }
    }
}

/// Goal: a capped link that always has work carries its cap. Method: objects without end, by the
/// waits that are answered.
#[test]
fn the_cap_is_used() {
    let mut rng = Rng::new(2);
    let mut world = World::new(&mut rng, true);
    for _ in 0..400 {
        world.submit(&mut rng);
    }
    let began = world.now;
    while world.now < Nanos::from_secs(301) {
        while world.ask(2) {}
        world.flying.keys().for_each(|id| {
            world.uplink.on_done(*id);
        });
        world.flying.clear();
        if let Next::Wait(until) = world.next(2) {
            world.now = until;
        }
    }
    let bytes: u64 = world.sent.iter().map(|(_, bytes)| bytes).sum();
    let span = world.now.since(began).as_secs_f64();
    let rate = bytes as f64 / span;
    assert!((0.97..1.05).contains(&(rate / CAP as f64)), "{rate} bytes per second");
}

/// Goal: classes that always have something ready get their weights' shares, give or take one
/// object and one round each. Method: random weights and sizes, checked after every object.
#[test]
fn weights_are_kept_within_one_object() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut uplink = Uplink::new(UplinkLimits::DEFAULT);
        let weights: Vec<u16> = (0..4).map(|_| 1 + rng.below(1000) as u16).collect();
        for (class, weight) in weights.iter().enumerate() {
            let (class, volume) = (ClassId(class as u8), VolumeId(class as u32));
            let share = Share::Weight(*weight);
            uplink.set_class(class, ClassPlan { share, is_patient: false });
            uplink.set_volume(volume, VolumePlan { class, bounds: DirtyBounds::DEFAULT });
        }
        let (mut id, mut sent) = (0, [0u64; 4]);
        let mut fresh = |uplink: &mut Uplink, volume: u32, rng: &mut Rng| {
            id += 1;
            let one = upload(id, volume, 1 + rng.below(OBJECT_MAX), Nanos::ZERO);
            uplink.submit(one).expect("there is room");
        };
        for volume in (0..4).chain(0..4) {
            fresh(&mut uplink, volume, &mut rng);
        }
        for _ in 0..500 {
            let Next::Send(one) = uplink.next(at(Nanos::ZERO), None) else {
                panic!("all have something ready");
            };
            uplink.on_done(one.id);
            sent[one.volume.0 as usize] += one.bytes;
            fresh(&mut uplink, one.volume.0, &mut rng);
            assert_shares(&sent, &weights, seed);
        }
    }
}

fn assert_shares(sent: &[u64; 4], weights: &[u16], seed: u64) {
    let rounds = |class: usize| sent[class] as f64 / f64::from(weights[class]);
    let slack = |class: usize| OBJECT_MAX as f64 / f64::from(weights[class]) + ROUND_BYTES as f64;
    for one in 0..4 {
        for other in 0..one {
            let apart = (rounds(one) - rounds(other)).abs();
            let most = slack(one) + slack(other);
            assert!(apart <= most, "SEED={seed}: {sent:?} by {weights:?}");
        }
    }
}
