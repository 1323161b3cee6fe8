//! Who may use which level, and by what shares are decided.
//!
//! How: a row of rules per architecture; the cache below is the same for all.
//! Invariant: whoever may use a level may be given a share of it, and nobody else. Cost: none.
//! Not for: numbers of an experiment; those are its configuration.

use super::{FleetSpec, LEVELS};
use crate::levels::paper_cache;
use layby_cache::{AdmissionKind, CacheSpec, ClassSpec, LEVELS_MAX, LevelKind, Share};
use layby_policy::curve::{Counted, Served};

/// How services share a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    /// One LRU per level for all: reads rise to DRAM, writes go to NVM.
    Shared,
    /// ETICA, extended to three levels: all treated alike; each level is shared out by the reuse
    /// that its write policy lets it serve.
    Etica,
    /// PADSA: DRAM and NVM for critical services only, shares by the objective of section IV.C.
    Padsa,
    /// PADSA, whose DRAM and NVM are lent to normal services while no critical one uses them.
    Lending,
    /// This project's: every level for all, critical services weigh more, writes count, and what
    /// brings nobody anything is not given out.
    Layby,
}

impl Architecture {
    /// All of them, the plainest first.
    pub const ALL: [Architecture; 5] = [
        Architecture::Shared,
        Architecture::Etica,
        Architecture::Padsa,
        Architecture::Lending,
        Architecture::Layby,
    ];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Shared => "shared LRU",
            Architecture::Etica => "ETICA, three levels",
            Architecture::Padsa => "PADSA",
            Architecture::Lending => "PADSA, lending",
            Architecture::Layby => "Layby",
        }
    }

    /// Whether services have shares, made anew every period.
    #[must_use]
    pub fn is_sized(self) -> bool {
        Sizing::of(self).is_partitioned
    }

    /// Whether what is read from home is kept on SSD, too, by the architecture's own rules.
    #[must_use]
    pub fn keeps_reads(self) -> bool {
        self == Architecture::Layby
    }
}

/// Levels whose shares are decided together, from one curve per service.
pub(super) struct Stage {
    /// First level and the one behind the last.
    pub(super) levels: core::ops::Range<usize>,
    /// Which of [`Sizing::served`] measures it.
    pub(super) curve: usize,
    pub(super) counted: Counted,
}

/// How shares are decided.
pub(super) struct Sizing {
    pub(super) is_partitioned: bool,
    pub(super) has_classes: bool,
    /// One bit per level: for critical services and for others.
    pub(super) allowed: [u8; 2],
    pub(super) served: &'static [Served],
    pub(super) stages: Vec<Stage>,
    /// How much a critical service's waiting counts beside another's.
    pub(super) critical_weight: f64,
    /// Units of each level that every service has: for critical services and for others.
    pub(super) least: [[u32; LEVELS]; 2],
    /// What gains nobody is given out in equal parts.
    pub(super) gives_all: bool,
    /// Normal services borrow idle room of DRAM and NVM.
    pub(super) borrows: bool,
}

/// Large enough that what a critical service loses is never worth what another gains, small enough
/// that what it cannot use goes to others.
const CRITICAL_WEIGHT: f64 = 1000.0;

impl Sizing {
    pub(super) fn of(architecture: Architecture) -> Sizing {
        let all = (1 << LEVELS) - 1;
        let whole = |counted| vec![Stage { levels: 0..LEVELS, curve: 0, counted }];
        let plain = Sizing {
            is_partitioned: false,
            has_classes: false,
            allowed: [all; 2],
            served: &[],
            stages: Vec::new(),
            critical_weight: 1.0,
            least: [[1; LEVELS]; 2],
            gives_all: true,
            borrows: false,
        };
        match architecture {
            Architecture::Shared => plain,
            Architecture::Etica => Sizing {
                is_partitioned: true,
                served: &[Served::Reads, Served::Writes],
                stages: vec![
                    Stage { levels: 0..1, curve: 0, counted: Counted::Reads },
                    Stage { levels: 1..LEVELS, curve: 1, counted: Counted::Both },
                ],
                ..plain
            },
            Architecture::Padsa | Architecture::Lending => Sizing {
                borrows: architecture == Architecture::Lending,
                is_partitioned: true,
                has_classes: true,
                allowed: [all, 1 << (LEVELS - 1)],
                served: &[Served::All],
                stages: whole(Counted::Reads),
                ..plain
            },
            Architecture::Layby => Sizing {
                is_partitioned: true,
                has_classes: true,
                served: &[Served::All],
                stages: whole(Counted::Both),
                critical_weight: CRITICAL_WEIGHT,
                least: [[1; LEVELS], [0, 1, 0]],
                gives_all: false,
                ..plain
            },
        }
    }

    /// Whether a service that was not measured yet has an equal part of the level.
    pub(super) fn welcomes(&self, is_critical: bool, level: usize) -> bool {
        let is_last = level == LEVELS - 1;
        self.allows(is_critical, level) && (is_critical || self.gives_all || is_last)
    }

    /// Units of the level that a service has in any case.
    pub(super) fn least_of(&self, is_critical: bool, level: usize) -> u32 {
        let least = self.least[usize::from(!is_critical)][level];
        if self.allows(is_critical, level) { least } else { 0 }
    }

    pub(super) fn allows(&self, is_critical: bool, level: usize) -> bool {
        self.allowed[usize::from(!is_critical)] >> level & 1 == 1
    }
}

/// The cache of a fleet.
pub(super) fn cache_spec(spec: &FleetSpec) -> CacheSpec {
    let sizing = Sizing::of(spec.architecture);
    let kinds = [LevelKind::Memory, LevelKind::Nvm, LevelKind::Ssd];
    let class = |(name, rank): (&str, u8)| ClassSpec {
        name: name.to_string(),
        rank,
        levels: sizing.allowed[usize::from(rank)],
        durable_writes: true,
        borrow: sizing.borrows,
        keep_reads: spec.keeps_reads,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    let levels: Vec<(LevelKind, u32)> = kinds.into_iter().zip(spec.slots).collect();
    paper_cache(&levels, [("critical", 0), ("normal", 1)].map(class).to_vec())
}
