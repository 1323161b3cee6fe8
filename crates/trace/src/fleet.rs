//! All that the vehicles of a road ask of a node, in order of time.
//!
//! How: each vehicle brings the services of its workload, each its own volume; each service draws
//! its accesses at its own pace, spread evenly by up to half a gap. A heap of what comes next per
//! service merges them.
//! Invariant: times never go back; a volume arrives before its accesses and leaves after them.
//! Cost: logarithmic in the services present. Not for: how the node answers.
//! Source: PADSA, section V and Tables II and III.

use crate::{Access, Service, ServiceLoad, Stay, Workload};
use layby_types::{Nanos, Rng, VolumeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How fast and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Accesses per second of a service with small accesses.
    pub small_per_second: u64,
    /// Accesses per second of a service with large ones.
    pub large_per_second: u64,
    /// Bytes that a service with small accesses uses.
    pub small_footprint: u64,
    /// Bytes that one with large accesses uses before it starts again.
    pub large_footprint: u64,
}

/// What happens on the road.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// A vehicle brings a service.
    Arrive {
        /// The service's volume, never used before.
        volume: VolumeId,
        /// Which service.
        service: Service,
        /// The volume's length in bytes.
        length: u64,
    },
    /// A service reads or writes.
    Access {
        /// Its volume.
        volume: VolumeId,
        /// What it asks for.
        access: Access,
    },
    /// The vehicle leaves.
    Leave {
        /// The service's volume.
        volume: VolumeId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Arrive(Service, Nanos),
    Access,
}

struct Running {
    load: ServiceLoad,
    gap: Nanos,
    leaves: Nanos,
}

/// The events, in order of time. See the file's header.
pub struct FleetLoad {
    pace: Pace,
    rng: Rng,
    heap: BinaryHeap<Reverse<(Nanos, VolumeId, Next)>>,
    running: BTreeMap<VolumeId, Running>,
}

impl FleetLoad {
    /// The vehicles of `stays`, each with the services of `workload`. Panics when a pace is zero.
    #[must_use]
    pub fn new(stays: &[Stay], workload: Workload, pace: Pace, seed: u64) -> FleetLoad {
        assert!(pace.small_per_second > 0 && pace.large_per_second > 0, "nothing would happen");
        let services = workload.services();
        let all = stays.iter().flat_map(|stay| services.iter().map(move |service| (stay, service)));
        let arrivals = all.zip(1..).map(|((stay, service), volume)| {
            Reverse((stay.arrives, VolumeId(volume), Next::Arrive(*service, stay.leaves)))
        });
        let heap = arrivals.collect();
        FleetLoad { pace, rng: Rng::new(seed), heap, running: BTreeMap::new() }
    }

    fn start(
        &mut self,
        at: Nanos,
        volume: VolumeId,
        service: Service,
        leaves: Nanos,
    ) -> FleetEvent {
        let spec = service.spec();
        let is_small = matches!(spec.pattern, crate::Pattern::Zipf { .. });
        let (rate, length) = match is_small {
            true => (self.pace.small_per_second, self.pace.small_footprint),
            false => (self.pace.large_per_second, self.pace.large_footprint),
        };
        let load = ServiceLoad::new(spec, length, self.rng.next_u64());
        let gap = Nanos(1_000_000_000 / rate);
        self.running.insert(volume, Running { load, gap, leaves });
        self.plan(at, volume);
        FleetEvent::Arrive { volume, service, length }
    }

    /// Puts the next access of `volume` between half a gap and one and a half gaps ahead.
    fn plan(&mut self, at: Nanos, volume: VolumeId) {
        let gap = self.running[&volume].gap.0;
        let ahead = gap / 2 + self.rng.below(gap.max(1));
        let next = at.saturating_add(Nanos(ahead));
        self.heap.push(Reverse((next, volume, Next::Access)));
    }
}

impl Iterator for FleetLoad {
    type Item = (Nanos, FleetEvent);

    fn next(&mut self) -> Option<(Nanos, FleetEvent)> {
        let Reverse((at, volume, next)) = self.heap.pop()?;
        if let Next::Arrive(service, leaves) = next {
            return Some((at, self.start(at, volume, service, leaves)));
        }
        let running = self.running.get_mut(&volume).expect("who has an access has arrived");
        if at >= running.leaves {
            self.running.remove(&volume);
            return Some((at, FleetEvent::Leave { volume }));
        }
        let access = running.load.next().expect("loads are endless");
        self.plan(at, volume);
        Some((at, FleetEvent::Access { volume, access }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VehicleSpec;

    const PACE: Pace = Pace {
        small_per_second: 100,
        large_per_second: 10,
        small_footprint: 1 << 20,
        large_footprint: 8 << 20,
    };

    /// Goal: the header's invariants, and the pace. Method: a road of workload D, event by event.
    #[test]
    fn events_come_in_order() {
        let stays = VehicleSpec { span: Nanos::from_secs(60), ..VehicleSpec::DEFAULT }.draw();
        let mut last = Nanos::ZERO;
        let mut present = BTreeMap::new();
        let mut counts = [0_u64; 2];
        for (at, event) in FleetLoad::new(&stays, Workload::D, PACE, 7) {
            assert!(at >= last, "{at:?} after {last:?}");
            last = at;
            match event {
                FleetEvent::Arrive { volume, service, length } => {
                    assert!(present.insert(volume, (service, length)).is_none());
                }
                FleetEvent::Access { volume, access } => {
                    let (service, length) = present[&volume];
                    assert!(access.offset + access.length <= length);
                    counts[usize::from(access.length > 4096)] += 1;
                    assert_eq!(access.length, service.spec().length);
                }
                FleetEvent::Leave { volume } => assert!(present.remove(&volume).is_some()),
            }
        }
        assert!(present.is_empty(), "all have left");
        let ratio = counts[0] as f64 / counts[1] as f64;
        assert!((9.0..11.0).contains(&ratio), "{ratio} small accesses per large one");
        let seconds: f64 = stays.iter().map(|s| s.leaves.since(s.arrives).as_secs_f64()).sum();
        let rate = counts[0] as f64 / seconds / 2.0;
        assert!((97.0..103.0).contains(&rate), "{rate} accesses per second and service");
    }
}
