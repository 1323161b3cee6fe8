//! From curves to shares.
//!
//! How: who was not measured yet has an equal part of every level that it may use; the others share
//! the rest, stage by stage, by `policy::allocation`. Where the architecture gives out everything,
//! what gains nobody goes to all in equal parts.
//! Invariant: the shares of a level never exceed it.

use super::architecture::{Sizing, Stage};
use super::{FleetSpec, LEVELS, Member};
use layby_device::Model;
use layby_policy::allocation::{Aim, LEVELS_MAX, Medium, Problem, Service, Shares, allocate};
use layby_types::VolumeId;
use std::collections::BTreeMap;

/// New shares for `members`, in their order.
pub(super) fn shares(
    spec: &FleetSpec,
    sizing: &Sizing,
    members: &BTreeMap<VolumeId, Member>,
) -> Vec<Shares> {
    let members: Vec<&Member> = members.values().collect();
    let mut shares = vec![[0; LEVELS_MAX]; members.len()];
    let mut free = spec.slots.map(|slots| slots / spec.unit_blocks);
    welcome(sizing, &members, &mut shares, &mut free);
    let measured: Vec<usize> =
        (0..members.len()).filter(|index| members[*index].measured.is_some()).collect();
    for stage in &sizing.stages {
        share_out(spec, sizing, stage, (&members, &measured), &mut shares, &mut free);
    }
    if sizing.gives_all {
        give_rest(sizing, &members, &measured, &mut shares, &mut free);
    }
    shares
}

/// Equal parts for who has just come, as far as its class gets any before it is measured.
fn welcome(sizing: &Sizing, members: &[&Member], shares: &mut [Shares], free: &mut [u32; LEVELS]) {
    for level in 0..LEVELS {
        let least = |member: &Member| sizing.least_of(member.is_critical, level);
        let equal = |member: &Member| sizing.welcomes(member.is_critical, level);
        // What everybody has in any case comes first.
        let reserved: u32 = members.iter().map(|member| least(member)).sum();
        let many = members.iter().filter(|member| equal(member)).count() as u32;
        let part = free[level].saturating_sub(reserved) / many.max(1);
        for (member, share) in members.iter().zip(shares.iter_mut()) {
            if member.measured.is_none() {
                let more = if equal(member) { part } else { 0 };
                share[level] = (least(member) + more).min(free[level]);
                free[level] -= share[level];
            }
        }
    }
}

/// Shares one stage's levels out among who was measured.
fn share_out(
    spec: &FleetSpec,
    sizing: &Sizing,
    stage: &Stage,
    (members, measured): (&[&Member], &[usize]),
    shares: &mut [Shares],
    free: &mut [u32; LEVELS],
) {
    if measured.is_empty() {
        return;
    }
    let first = stage.levels.start;
    let medium = |model: &Model, units: u32, is_persistent: bool| Medium {
        units,
        read_ns: model.read.0 as f64,
        write_ns: model.write.0 as f64,
        is_persistent,
    };
    let levels: Vec<Medium> =
        stage.levels.clone().map(|l| medium(&spec.devices[l], free[l], l > 0)).collect();
    // A guarantee for each, as far as the levels reach.
    let least = |member: &Member, level: usize| {
        let least = sizing.least_of(member.is_critical, level);
        if least * measured.len() as u32 <= free[level] { least } else { 0 }
    };
    let services: Vec<Service<'_>> = measured
        .iter()
        .map(|index| {
            let member = members[*index];
            let known = member.measured.as_ref().expect("only the measured share here");
            let mut guaranteed = [0; LEVELS_MAX];
            for level in stage.levels.clone() {
                guaranteed[level - first] = least(member, level);
            }
            Service {
                curve: &known.curves[stage.curve],
                rates: known.rates,
                weight: if member.is_critical { sizing.critical_weight } else { 1.0 },
                levels: sizing.allowed[usize::from(!member.is_critical)] >> first,
                guaranteed,
                cap: [u32::MAX; LEVELS_MAX],
                latency_ns_p999: None,
            }
        })
        .collect();
    let problem = Problem {
        levels: &levels,
        home: medium(&spec.home, 0, true),
        unit_blocks: u64::from(spec.unit_blocks),
        services: &services,
        counted: stage.counted,
        aim: Aim::Mean,
    };
    let found = allocate(&problem, None);
    for (index, units) in measured.iter().zip(found.shares) {
        for level in stage.levels.clone() {
            shares[*index][level] = units[level - first];
            free[level] -= units[level - first];
        }
    }
}

/// Room that gains nobody, in equal parts.
fn give_rest(
    sizing: &Sizing,
    members: &[&Member],
    measured: &[usize],
    shares: &mut [Shares],
    free: &mut [u32; LEVELS],
) {
    for level in 0..LEVELS {
        let open: Vec<usize> = measured
            .iter()
            .copied()
            .filter(|index| sizing.allows(members[*index].is_critical, level))
            .collect();
        let Some(part) = free[level].checked_div(open.len() as u32) else { continue };
        for index in open {
            shares[index][level] += part;
            free[level] -= part;
        }
    }
}
