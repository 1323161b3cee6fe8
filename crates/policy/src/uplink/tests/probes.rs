//! Probes of silent stores under a cap, over virtual time.

use super::*;
use alloc::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const OBJECT: u64 = 8 * MIB;
/// Uploads that a volume has at a time.
const UPLOADS: u64 = 4;
const SPAN: Nanos = Nanos::from_secs(3600);

#[derive(Clone, Copy)]
enum Event {
    Submit(u32),
    End(Upload),
}

/// A node whose uplink is capped to 1 MiB a second, with a volume whose store is silent and one
/// whose store is sound.
struct Node {
    uplink: Uplink,
    rng: Rng,
    /// What happens next, by time and number.
    events: BTreeMap<(Nanos, u64), Event>,
    number: u64,
    silent: u32,
    carry: Nanos,
    sound_bytes: u64,
    probed: Vec<Nanos>,
}

impl Node {
    /// The sound store takes `carry` for an object.
    fn new(places: u16, silent: u32, carry: Nanos) -> Node {
        let limits = UplinkLimits { in_flight_max: places, ..UplinkLimits::DEFAULT };
        let mut uplink = three_classes(limits, 9);
        let table = Timetable::new(&[], Cap::BytesPerSecond(MIB)).expect("it is sound");
        uplink.set_timetable(table);
        let (events, probed) = (BTreeMap::new(), Vec::new());
        let rng = Rng::new(1);
        Node { uplink, rng, events, number: 0, silent, carry, sound_bytes: 0, probed }
    }

    fn schedule(&mut self, when: Nanos, event: Event) {
        self.number += 1;
        self.events.insert((when, self.number), event);
    }

    /// Serves the volumes for the whole span. A put of the silent store fails after 5 s and pauses
    /// for 6 to 19 s; one of the sound store is followed by the next at once.
    fn run(mut self, volumes: &[u32]) -> Node {
        for volume in volumes {
            (0..UPLOADS).for_each(|_| self.schedule(Nanos::ZERO, Event::Submit(*volume)));
        }
        let mut now = Nanos::ZERO;
        while now < SPAN {
            while let Some(first) = self.events.first_entry()
                && first.key().0 <= now
            {
                let event = first.remove();
                self.on_event(now, event);
            }
            let wait = self.send(now);
            let event = self.events.keys().next().map_or(Nanos::NEVER, |(when, _)| *when);
            assert!(wait.min(event) > now, "time goes on");
            now = wait.min(event);
        }
        self
    }

    fn on_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Submit(volume) => {
                self.number += 1;
                let one = upload(self.number, volume, OBJECT, now);
                self.uplink.submit(one).expect("there is room");
            }
            Event::End(one) if one.volume.0 == self.silent => {
                self.uplink.on_silent(one.id);
                let pause = Nanos::from_secs(6 + self.rng.below(14));
                self.schedule(now + pause, Event::Submit(self.silent));
            }
            Event::End(one) => {
                self.uplink.on_done(one.id);
                self.schedule(now, Event::Submit(one.volume.0));
            }
        }
    }

    /// Sends what may go; until when there is nothing more.
    fn send(&mut self, now: Nanos) -> Nanos {
        loop {
            match self.uplink.next(at(now), None) {
                Next::Send(one) if one.volume.0 == self.silent => {
                    self.probed.push(now);
                    self.schedule(now + Nanos::from_secs(5), Event::End(one));
                }
                Next::Send(one) => {
                    self.sound_bytes += one.bytes;
                    self.schedule(now + self.carry, Event::End(one));
                }
                Next::Wait(until) => return until,
                Next::Idle => return Nanos::NEVER,
            }
        }
    }

    fn probe_gap_max(&self) -> Nanos {
        let gaps = self.probed.windows(2).map(|pair| pair[1].since(pair[0]));
        gaps.max().unwrap_or(SPAN)
    }
}

/// Goal: under a cap, probes of a silent store cost the others no more than their stated part of
/// it, also where these have no place when the cap has tokens, and still go. Method: an hour with
/// and without a silent volume, of the same class, of another and of a strict one, on a store that
/// is faster than the cap and one that is slower.
#[test]
fn probes_cost_a_bounded_part_of_the_cap() {
    for (silent, sound) in [(1, 4), (1, 2), (2, 1), (0, 3), (0, 1)] {
        for (places, carry) in [(8, 1), (1, 9)] {
            let case = (silent, sound, places);
            let node = || Node::new(places, silent, Nanos::from_secs(carry));
            let alone = node().run(&[sound]).sound_bytes;
            let beside = node().run(&[silent, sound]);
            // What was handed out before the volume was known to be silent counts, too.
            let part = (alone - UPLOADS * OBJECT) / (PROBE_FACTOR + 1) * PROBE_FACTOR;
            let found = beside.sound_bytes;
            assert!(found + 2 * OBJECT >= part, "{case:?}: {found} of {alone}, not {part}");
            // As many objects as are due before a probe, at the slower one of cap and store, with
            // the probe, its pause and one object under way.
            let most = Nanos::from_secs((PROBE_FACTOR + 2) * 9 + 19);
            let gap = beside.probe_gap_max();
            assert!(gap <= most, "{case:?}: no probe for {gap:?}");
        }
    }
}

/// Goal: where nothing else is ready a silent store is probed as soon as the cap has tokens, and
/// what is ready then waits for that probe alone. Method: a silent volume alone; then beside it one
/// object of a sound volume, submitted right after a probe.
#[test]
fn a_capped_probe_goes_where_nothing_else_is_ready() {
    let alone = Node::new(8, 1, Nanos::from_secs(1)).run(&[1]);
    let gap = alone.probe_gap_max();
    assert!(gap <= Nanos::from_secs(5 + 19), "no probe for {gap:?}");

    let mut uplink = three_classes(UplinkLimits::DEFAULT, 9);
    uplink.set_timetable(Timetable::new(&[], Cap::BytesPerSecond(MIB)).expect("it is sound"));
    let submit = |uplink: &mut Uplink, id, volume| {
        uplink.submit(upload(id, volume, OBJECT, Nanos::ZERO)).expect("there is room");
    };
    let ask = |uplink: &mut Uplink, now| uplink.next(at(Nanos::from_secs(now)), None);
    let is_sent = |next, id| matches!(next, Next::Send(one) if one.id == UploadId(id));
    submit(&mut uplink, 1, 1);
    assert!(is_sent(ask(&mut uplink, 0), 1));
    uplink.on_silent(UploadId(1));
    for id in 2..4 {
        submit(&mut uplink, id, 1);
    }
    assert!(is_sent(ask(&mut uplink, 8), 2), "a probe: nothing else is ready");
    uplink.on_silent(UploadId(2));
    submit(&mut uplink, 9, 4);
    assert_eq!(ask(&mut uplink, 14), Next::Wait(Nanos::from_secs(16)), "eight seconds' worth");
    assert!(is_sent(ask(&mut uplink, 16), 9), "before the next probe");
    assert!(is_sent(ask(&mut uplink, 24), 3), "again nothing else is ready");
}
