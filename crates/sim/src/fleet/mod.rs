//! Services that come and go and share three levels, under one of several architectures.
//!
//! How: a [`Fleet`] is a simulated node with shares. Every period each service's curves are
//! rebuilt from what it asked for, the architecture turns them into shares, and the shares become
//! guarantees and caps of the cache. Who has just come has an equal part until it was measured.
//! Invariants: shares never exceed a level; the same calls and seed give the same report.
//! Cost: counting mode plus a stack distance per block asked for.
//! Sources: PADSA, section IV.C; Ahmadian et al., "ETICA", IEEE TPDS 2021, as PADSA extends it.

mod architecture;
mod sizing;

pub use architecture::Architecture;

use crate::levels::{Machine, Mode, Report, Setup};
use architecture::Sizing;
use layby_cache::{LEVELS_MAX, RemoveError, Share, VolumeSpec};
use layby_device::Model;
use layby_policy::allocation::Shares;
use layby_policy::curve::{Access as Use, Curve, ExactCurve};
use layby_types::VolumeId;
use layby_types::{BlockIndex, BlockKey, BlockSize, Call, ClassId, ErrorKind, Nanos, Operation};
use std::collections::BTreeMap;

/// DRAM, NVM, SSD.
pub const LEVELS: usize = 3;

/// What a fleet is simulated on.
#[derive(Clone, Debug)]
pub struct FleetSpec {
    /// Who may use what, and who decides.
    pub architecture: Architecture,
    /// Blocks of each level.
    pub slots: [u32; LEVELS],
    /// A model per level, fastest first.
    pub devices: [Model; LEVELS],
    /// The home of every volume.
    pub home: Model,
    /// Time between two sizings, whatever the architecture.
    pub period: Nanos,
    /// How much what a curve knows counts after a sizing, from 0 to 1.
    pub keep: f64,
    /// What is read from home is kept on SSD, too.
    pub keeps_reads: bool,
    /// Blocks of the unit in which shares are counted.
    pub unit_blocks: u32,
    /// Same seed, same run.
    pub seed: u64,
}

/// A service of the fleet.
struct Member {
    is_critical: bool,
    length: u64,
    curves: Vec<ExactCurve>,
    /// Blocks read and written in this period.
    asked: [u64; 2],
    arrived: Nanos,
    /// Of the last whole period that it was here for.
    measured: Option<Measured>,
    shares: Shares,
}

/// What a period told of a service.
struct Measured {
    curves: Vec<Curve>,
    /// Blocks read and written per second.
    rates: [f64; 2],
}

/// See the module's header.
pub struct Fleet {
    spec: FleetSpec,
    machine: Machine,
    sizing: Sizing,
    members: BTreeMap<VolumeId, Member>,
    sizing_next: Nanos,
    sizing_last: Nanos,
    sizings: u64,
    /// Somebody came, left or was measured since the last sizing.
    is_stale: bool,
}

impl Fleet {
    /// An empty node.
    #[must_use]
    pub fn new(spec: FleetSpec) -> Fleet {
        let sizing = Sizing::of(spec.architecture);
        let setup = Setup {
            cache: architecture::cache_spec(&spec),
            devices: spec.devices.to_vec(),
            home: spec.home.clone(),
            mode: Mode::Counting,
            seed: spec.seed,
        };
        let machine = Machine::new(setup).expect("architectures are sound");
        let (sizing_next, sizing_last) = (spec.period, Nanos::ZERO);
        let members = BTreeMap::new();
        let (sizings, is_stale) = (0, false);
        Fleet { spec, machine, sizing, members, sizing_next, sizing_last, sizings, is_stale }
    }

    /// A service arrives with a volume of `length` bytes.
    ///
    /// # Errors
    /// As of [`Machine::add_volume`].
    pub fn arrive(
        &mut self,
        at: Nanos,
        id: VolumeId,
        is_critical: bool,
        length: u64,
    ) -> Result<(), ErrorKind> {
        self.advance_to(at);
        let curves = self.sizing.served.iter().map(|served| ExactCurve::new(*served)).collect();
        let (asked, shares, measured) = ([0; 2], [0; LEVELS_MAX], None);
        let member = Member { is_critical, length, curves, asked, arrived: at, measured, shares };
        let volume = self.volume_spec(id, &member);
        self.machine.add_volume(&volume)?;
        self.members.insert(id, member);
        self.is_stale = true;
        Ok(())
    }

    /// A service leaves; what it has dirty goes home.
    ///
    /// # Errors
    /// As of [`Machine::remove_volume`].
    pub fn leave(&mut self, at: Nanos, id: VolumeId) -> Result<(), RemoveError> {
        self.advance_to(at);
        self.machine.remove_volume(id)?;
        self.members.remove(&id);
        self.is_stale = true;
        Ok(())
    }

    /// A service reads or writes.
    pub fn submit(&mut self, at: Nanos, id: VolumeId, call: &Call) {
        self.advance_to(at);
        let block = u64::from(BlockSize::MIN.bytes());
        let kind = if call.operation == Operation::Write { Use::Write } else { Use::Read };
        if let Some(member) = self.members.get_mut(&id) {
            let first = call.offset / block;
            for index in first..(call.offset + call.length).div_ceil(block) {
                let key = BlockKey::new(id, BlockIndex(index));
                for curve in &mut member.curves {
                    curve.on_request(key, kind);
                }
                member.asked[kind as usize] += 1;
            }
        }
        if std::mem::take(&mut self.is_stale) {
            self.size();
        }
        self.machine.submit(at, id, call);
    }

    /// Lets time pass; periods that end on the way are sized.
    pub fn advance_to(&mut self, at: Nanos) {
        while self.sizing_next <= at {
            let now = self.sizing_next;
            self.machine.advance_to(now);
            self.measure();
            self.is_stale = true;
            self.sizing_last = now;
            self.sizings += 1;
            self.sizing_next = now.saturating_add(self.spec.period);
        }
        self.machine.advance_to(at);
    }

    /// What came of it so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.machine.report()
    }

    /// Periods that have ended, at each of which curves were made anew.
    #[must_use]
    pub fn sizings(&self) -> u64 {
        self.sizings
    }

    /// A period ends: what it told is kept, and the next one begins.
    fn measure(&mut self) {
        let seconds = self.spec.period.as_secs_f64();
        for member in self.members.values_mut() {
            if member.arrived <= self.sizing_last {
                let curves = member.curves.iter().map(ExactCurve::curve).collect();
                let rates = member.asked.map(|blocks| blocks as f64 / seconds);
                member.measured = Some(Measured { curves, rates });
            }
            member.asked = [0; 2];
            for curve in &mut member.curves {
                curve.on_period_end(self.spec.keep);
            }
        }
    }

    fn volume_spec(&self, id: VolumeId, member: &Member) -> VolumeSpec {
        let unit = self.spec.unit_blocks;
        let share = |units: u32| match self.sizing.is_partitioned {
            true => Share { guaranteed: units * unit, cap: units * unit },
            false => Share::OPEN,
        };
        let class = ClassId(u8::from(!member.is_critical && self.sizing.has_classes));
        let shares = member.shares.map(share);
        VolumeSpec { id, class, length: member.length, shares, write_through: false }
    }

    /// New shares for all.
    fn size(&mut self) {
        if !self.sizing.is_partitioned || self.members.is_empty() {
            return;
        }
        let shares = sizing::shares(&self.spec, &self.sizing, &self.members);
        let ids: Vec<VolumeId> = self.members.keys().copied().collect();
        for (id, shares) in ids.into_iter().zip(shares) {
            let member = self.members.get_mut(&id).expect("it is a member");
            if member.shares == shares {
                continue;
            }
            member.shares = shares;
            let volume = self.volume_spec(id, &self.members[&id]);
            self.machine.cache().set_volume(&volume).expect("volume and class are there");
        }
    }
}

#[cfg(test)]
mod tests;
