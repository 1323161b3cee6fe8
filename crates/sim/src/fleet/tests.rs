//! Fleets beside the rules of their architectures.

use super::*;
use crate::levels::{VolumeReport, call};
use layby_types::Rng;
use std::collections::BTreeSet;

const BLOCK: u64 = 4096;
/// Odd ones are critical.
const SERVICES: u32 = 6;

fn fleet(architecture: Architecture) -> Fleet {
    Fleet::new(FleetSpec {
        architecture,
        slots: [16, 64, 256],
        devices: ["dram", "nvm", "ssd"].map(|name| Model::built_in(name).expect("Table I has it")),
        home: Model::main_storage(),
        period: Nanos::from_secs(1),
        keep: 0.0,
        keeps_reads: architecture.keeps_reads(),
        unit_blocks: 4,
        seed: 1,
    })
}

/// Critical services use few blocks often; normal ones stream; services come and go.
fn drive(fleet: &mut Fleet, seed: u64, mut look: impl FnMut(&Fleet)) {
    let mut rng = Rng::new(seed);
    let mut present = [false; SERVICES as usize + 1];
    let mut streams = [0; SERVICES as usize + 1];
    for step in 0..6000 {
        let at = Nanos::from_millis(step);
        let number = 1 + rng.below(u64::from(SERVICES)) as usize;
        // A volume that left comes back as another one.
        let id = VolumeId(number as u32 + SERVICES * (step / 2000) as u32);
        if !present[number] {
            fleet.arrive(at, id, number % 2 == 1, 4096 * BLOCK).expect("it is new");
            present[number] = true;
        }
        let operation = if rng.chance(7, 10) { Operation::Read } else { Operation::Write };
        let (block, blocks) = if number % 2 == 1 {
            ((rng.unit() * rng.unit() * 60.0) as u64, 1)
        } else {
            streams[number] = (streams[number] + 8) % 4000;
            (streams[number], 8)
        };
        fleet.submit(at, id, &call(operation, block * BLOCK, blocks * BLOCK));
        look(fleet);
        if step % 2000 == 1999 {
            for number in (1..=SERVICES as usize).filter(|number| present[*number]) {
                let id = VolumeId(number as u32 + SERVICES * (step / 2000) as u32);
                fleet.leave(at, id).expect("it is there");
            }
            present.fill(false);
        }
    }
}

fn side(report: &Report, is_critical: bool) -> VolumeReport {
    let mut sum = VolumeReport::default();
    for (id, volume) in &report.volumes {
        if (id.0 - 1) % SERVICES % 2 == u32::from(!is_critical) {
            sum.add(volume);
        }
    }
    sum
}

/// Goal: no level is given out twice, no service exceeds its share, and every request ends well.
/// Method: every architecture, looked at after each request.
#[test]
fn shares_fit_their_levels() {
    for architecture in Architecture::ALL {
        let mut fleet = fleet(architecture);
        drive(&mut fleet, 5, |fleet| {
            for level in 0..LEVELS {
                let units: u32 = fleet.members.values().map(|member| member.shares[level]).sum();
                let room = fleet.spec.slots[level] / fleet.spec.unit_blocks;
                assert!(units <= room, "{architecture:?}: {units} of {room} units");
            }
        });
        let report = fleet.report();
        assert!(report.volumes.values().all(|volume| volume.errors == 0), "{architecture:?}");
        let blocks = side(&report, true).blocks_read() + side(&report, true).blocks_written();
        assert!((2500..3500).contains(&blocks), "{blocks} critical blocks");
    }
}

/// Goal: PADSA's upper levels are for critical services alone; the shared LRU's are not. Method:
/// where normal services' blocks were found and written.
#[test]
fn padsa_keeps_normal_services_below() {
    let upper = |architecture| {
        let mut fleet = fleet(architecture);
        drive(&mut fleet, 6, |_| {});
        let normal = side(&fleet.report(), false);
        normal.hits[..2].iter().chain(&normal.writes[..2]).sum::<u64>()
    };
    assert_eq!(upper(Architecture::Padsa), 0);
    assert!(upper(Architecture::Shared) > 0);
}

/// Goal: lending idle room changes nothing for critical services. Method: the same load with it and
/// without.
#[test]
fn lending_costs_critical_services_nothing() {
    for seed in 0..5 {
        let critical = |architecture| {
            let mut fleet = fleet(architecture);
            drive(&mut fleet, seed, |_| {});
            side(&fleet.report(), true)
        };
        let (without, with) = (critical(Architecture::Padsa), critical(Architecture::Lending));
        assert_eq!((without.hits, without.misses), (with.hits, with.misses), "SEED={seed}");
    }
}

/// Goal: priorities pay: critical services wait least where they come first, and same seed, same
/// report. Method: the same load under each architecture, twice.
#[test]
fn priorities_pay() {
    let run = |architecture| {
        let mut fleet = fleet(architecture);
        drive(&mut fleet, 7, |_| {});
        fleet.report()
    };
    let mean = |architecture| {
        let critical = side(&run(architecture), true);
        critical.read_ns / critical.blocks_read() as f64
    };
    assert!(mean(Architecture::Padsa) < mean(Architecture::Shared));
    assert!(mean(Architecture::Layby) <= mean(Architecture::Padsa) * 1.01);
    assert_eq!(run(Architecture::Layby), run(Architecture::Layby));
}

/// Goal: a baseline gets the same tuning as ours: all are sized at the same instants, a period
/// apart. Method: every architecture, looked at after each request.
#[test]
fn all_are_sized_at_the_same_instants() {
    let expected: BTreeSet<Nanos> = (0..6).map(Nanos::from_secs).collect();
    for architecture in Architecture::ALL {
        let mut fleet = fleet(architecture);
        let mut sized = BTreeSet::new();
        drive(&mut fleet, 5, |fleet| {
            sized.insert(fleet.sizing_last);
        });
        assert_eq!(sized, expected, "{architecture:?}");
        assert_eq!(fleet.sizings(), 5, "{architecture:?}");
    }
}
