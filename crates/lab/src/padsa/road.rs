//! One workload on one road, under one architecture.
//!
//! How: the same vehicles and accesses for every architecture, in counting mode.
//! Invariant: a road and a seed give the same sums on the same platform.
//! Cost: about a microsecond per block.

use super::Tuning;
use layby_sim::fleet::{Architecture, Fleet, FleetSpec, LEVELS};
use layby_sim::levels::{PadsaDevices, Report, VolumeReport, call};
use layby_trace::{FleetEvent, FleetLoad, Pace, Service, Stay, Workload};
use layby_types::VolumeId;
use std::collections::BTreeMap;

/// Everything that the paper leaves open about a road and its node.
#[derive(Clone, Debug, PartialEq)]
pub struct Road {
    /// Who comes and goes.
    pub stays: Vec<Stay>,
    /// How fast and how large services are.
    pub pace: Pace,
    /// Blocks of DRAM, NVM and SSD.
    pub slots: [u32; LEVELS],
    /// What accesses cost.
    pub devices: PadsaDevices,
    /// What all architectures are given alike.
    pub tuning: Tuning,
    /// Blocks of the unit of shares.
    pub unit_blocks: u32,
    /// Seed of accesses and cache.
    pub seed: u64,
}

/// Which services a figure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Safety-critical ones.
    Critical,
    /// The others.
    Normal,
    /// All.
    All,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Sums {
    /// By service.
    pub services: BTreeMap<Service, VolumeReport>,
    /// The node's levels.
    pub report: Report,
    /// Periods that ended on the way.
    pub sizings: u64,
}

impl Sums {
    /// The services of a side together.
    #[must_use]
    pub fn side(&self, side: Side) -> VolumeReport {
        let mut sum = VolumeReport::default();
        for (service, report) in &self.services {
            let is_critical = service.spec().class == "critical";
            let counts = match side {
                Side::Critical => is_critical,
                Side::Normal => !is_critical,
                Side::All => true,
            };
            if counts {
                sum.add(report);
            }
        }
        sum
    }
}

/// Sends the road's vehicles, each with the services of `workload`, through a node.
#[must_use]
pub fn drive(road: &Road, workload: Workload, architecture: Architecture) -> Sums {
    let mut fleet = Fleet::new(FleetSpec {
        architecture,
        slots: road.slots,
        devices: road.devices.levels.clone(),
        home: road.devices.home.clone(),
        period: road.tuning.period,
        keep: road.tuning.keep,
        keeps_reads: road.tuning.keeps_reads(architecture),
        unit_blocks: road.unit_blocks,
        seed: road.seed,
    });
    let mut services: BTreeMap<VolumeId, Service> = BTreeMap::new();
    for (at, event) in FleetLoad::new(&road.stays, workload, road.pace, road.seed) {
        match event {
            FleetEvent::Arrive { volume, service, length } => {
                services.insert(volume, service);
                let is_critical = service.spec().class == "critical";
                fleet.arrive(at, volume, is_critical, length).expect("volumes are new");
            }
            FleetEvent::Access { volume, access } => {
                let call = call(access.operation, access.offset, access.length);
                fleet.submit(at, volume, &call);
            }
            FleetEvent::Leave { volume } => fleet.leave(at, volume).expect("it was there"),
        }
    }
    let report = fleet.report();
    let mut sums = Sums { services: BTreeMap::new(), report, sizings: fleet.sizings() };
    for (volume, service) in services {
        sums.services.entry(service).or_default().add(&sums.report.volumes[&volume]);
    }
    sums
}
