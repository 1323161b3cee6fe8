//! Sizing a shard's volumes while they run: from what a period showed to shares, with reasons.
//!
//! How: [`plan`] turns [`Observation`]s into an allocator's problem in units of a level, asks the
//! mover whether the change pays, and answers with slots. Latencies enter as what each level adds
//! to the one above, so that the allocator's sum is the mean of what reads wait here, where a miss
//! costs no look at a device. [`predict`] is the same mean for one volume and any sizes.
//! Invariant: a sized share lies between guarantee and cap, and no level is given out twice but for
//! the rounding of guarantees; the cache keeps guarantees and caps whatever is sized. Quiet volumes
//! fade, they do not vanish: rates come from the aged curves.
//! Cost: see [`layby_policy::allocation::allocate`], with at most [`SERVICES_MAX`] services and
//! [`UNITS_MAX`] units per level. Not for a shard's own thread.
//! Source: PADSA, section IV.C (periods, curves, shares that move only with the optimum).

use crate::spec::{CacheSpec, LEVELS_MAX};
use crate::watch::Observation;
use alloc::vec::Vec;
pub use layby_policy::allocation::{Aim, Cost, Decision, MoverLimits};
use layby_policy::allocation::{Medium, Problem, Service, Shares, allocate};
pub use layby_policy::curve::{Counted, Curve, Point};
use layby_policy::registry::EvictionKind;
use layby_types::{Nanos, VolumeId};

/// Volumes that are sized at once: the busiest ones; the others share what is left.
pub const SERVICES_MAX: usize = 64;
/// Units that the largest level is cut into at most.
pub const UNITS_MAX: u32 = 512;
/// Units that the smallest level is cut into, where [`UNITS_MAX`] allows.
pub const UNITS_OF_SMALLEST: u32 = 64;
/// Sizes of a what-if, in parts of the present one.
pub const WHAT_IF_FACTORS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

/// What reads cost, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// From each level.
    pub levels: [f64; LEVELS_MAX],
    /// From a volume's home.
    pub home: f64,
}

/// What a class wants of sizing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// How much a wait of its volumes counts.
    pub weight: f64,
    /// The time within which 999 of 1000 of its reads shall be served, if there is one.
    pub latency_ns_p999: Option<f64>,
}

/// How shares are sought and moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizingLimits {
    /// What is sought first.
    pub aim: Aim,
    /// Which requests' waiting counts.
    pub counted: Counted,
    /// When a change pays.
    pub mover: MoverLimits,
    /// How much an earlier period counts, per period.
    pub keep: f64,
}

/// All that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct SizingInput<'a> {
    /// The shard's levels and classes.
    pub spec: &'a CacheSpec,
    /// What the period showed of its volumes.
    pub observations: &'a [Observation],
    /// What reads cost.
    pub latencies: Latencies,
    /// By class.
    pub wishes: &'a [Wish],
    /// The limits.
    pub limits: SizingLimits,
    /// How long the period was.
    pub period: Nanos,
}

/// Why shares moved or stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nobody asked for anything, or there is nobody.
    Quiet,
    /// Moved: the gain is noticeable and pays for the transfers.
    Gain,
    /// Moved: more latency objectives will be met.
    Objective,
    /// Stayed: the gain is too small a part of the present cost.
    Small,
    /// Stayed: the transfers cost more than is gained in the time allowed.
    Costly,
}

/// Sized shares in slots, by level.
pub type Slots = [u32; LEVELS_MAX];

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Why shares move or stay.
    pub why: Why,
    /// The figures behind it; none where nothing was asked.
    pub decision: Option<Decision>,
    /// The new shares of every observed volume, where they move; `None` for one that is not sized.
    pub moves: Vec<(VolumeId, Option<Slots>)>,
}

/// What is expected of a volume's reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// The part of its blocks read that no level has.
    pub miss_ratio: f64,
    /// The mean wait of a block read, in nanoseconds.
    pub latency_ns: f64,
}

/// The level bits of the class of `observation`.
fn levels_of(spec: &CacheSpec, observation: &Observation) -> u8 {
    let class = spec.classes.get(usize::from(observation.class.0));
    class.map_or(0, |class| class.levels & observation.levels)
}

/// What is expected of a volume with `slots` of each level: each level's hits from the curve at the
/// sum of the sizes down to it, as levels are exclusive but for copies.
#[must_use]
pub fn predict(
    spec: &CacheSpec,
    latencies: &Latencies,
    observation: &Observation,
    slots: &[u64; LEVELS_MAX],
) -> Prediction {
    let allowed = levels_of(spec, observation);
    let (mut size, mut misses, mut latency_ns) = (0, 1.0, 0.0);
    for level in (0..spec.levels.len()).filter(|level| allowed >> level & 1 == 1) {
        size += slots[level];
        let after = observation.curve.miss_ratio(Counted::Reads, size);
        latency_ns += (misses - after) * latencies.levels[level];
        misses = after;
    }
    Prediction { miss_ratio: misses, latency_ns: latency_ns + misses * latencies.home }
}

/// What the volume has: its sized shares, or what it holds.
#[must_use]
pub fn size_now(observation: &Observation) -> [u64; LEVELS_MAX] {
    observation.sized.unwrap_or(observation.held).map(u64::from)
}

/// What is expected under each policy, the room of now kept. The difference between policies is
/// that of their miniatures, added to what the curve says of LRU.
#[must_use]
pub fn predict_policies(
    spec: &CacheSpec,
    latencies: &Latencies,
    observation: &Observation,
) -> Vec<(EvictionKind, Prediction)> {
    let lru = predict(spec, latencies, observation, &size_now(observation));
    let own = observation.policies.iter().find(|(kind, _)| *kind == EvictionKind::Lru);
    let Some((_, own)) = own else { return Vec::new() };
    let of = |(kind, hits): &(EvictionKind, f64)| {
        let miss_ratio = (lru.miss_ratio + own - hits).clamp(0.0, 1.0);
        let more = miss_ratio - lru.miss_ratio;
        (*kind, Prediction { miss_ratio, latency_ns: lru.latency_ns + more * latencies.home })
    };
    observation.policies.iter().map(of).collect()
}

/// A level of which the observed volumes are guaranteed more than there is. It happens where
/// guarantees changed while a period was observed: then there is nothing to plan.
#[must_use]
pub fn guaranteed_twice(spec: &CacheSpec, observations: &[Observation]) -> Option<usize> {
    let floor = |observation: &Observation, level: usize| match levels_of(spec, observation) {
        levels if levels >> level & 1 == 1 => u64::from(observation.shares[level].guaranteed),
        _ => 0,
    };
    let sum = |level: usize| observations.iter().map(|o| floor(o, level)).sum::<u64>();
    (0..spec.levels.len()).find(|level| sum(*level) > u64::from(spec.levels[*level].slots))
}

/// The shares that serve best what the observations showed, and whether to move there. The
/// observations pass [`guaranteed_twice`].
#[must_use]
pub fn plan(input: &SizingInput<'_>) -> Plan {
    let sized = busiest(input.observations);
    let requests: u64 = sized.iter().flat_map(|o| o.requests).sum();
    if requests == 0 || input.spec.levels.is_empty() {
        return Plan { why: Why::Quiet, decision: None, moves: Vec::new() };
    }
    let unit = unit_slots(input.spec);
    let media = media(input, unit);
    let services: Vec<Service<'_>> = sized.iter().map(|o| service(input, unit, o)).collect();
    let now: Vec<Shares> =
        sized.iter().zip(&services).map(|(o, of)| shares_now(o, of, unit)).collect();
    let (mut found, mut capped) = (Vec::new(), services.clone());
    // The second round is for classes whose volumes got more than the class may have.
    for _ in 0..2 {
        let problem = problem(input, &media, unit, &capped);
        found = allocate(&problem, Some(&now)).shares;
        if !lower_caps(input, &sized, (&media, unit), &mut capped, &found) {
            break;
        }
    }
    for (share, (of, service)) in found.iter_mut().zip(sized.iter().zip(&services)) {
        trim(input, of, service, unit, share);
    }
    let problem = problem(input, &media, unit, &services);
    let decision = input.limits.mover.decide(&problem, &now, &found);
    let moves = if decision.is_move { moves(input, &sized, unit, &found) } else { Vec::new() };
    Plan { why: why(&decision, &input.limits.mover), decision: Some(decision), moves }
}

/// The volumes with most requests, in their order.
fn busiest(observations: &[Observation]) -> Vec<&Observation> {
    let mut all: Vec<&Observation> = observations.iter().collect();
    all.sort_by_key(|o| (core::cmp::Reverse(o.requests[0] + o.requests[1]), o.volume));
    all.truncate(SERVICES_MAX);
    all.sort_by_key(|o| o.volume);
    all
}

/// Slots of one unit, the same in every level.
fn unit_slots(spec: &CacheSpec) -> u32 {
    let slots = || spec.levels.iter().map(|level| level.slots);
    let (least, most) = (slots().min().unwrap_or(1), slots().max().unwrap_or(1));
    (least / UNITS_OF_SMALLEST).max(most.div_ceil(UNITS_MAX)).max(1)
}

/// The levels, and the home last, each with what it adds to the wait in the one above.
fn media(input: &SizingInput<'_>, unit: u32) -> Vec<Medium> {
    let mut above = 0.0;
    let mut medium = |ns: f64, units: u32, is_persistent: bool| {
        let added = (ns - above).max(0.0);
        above = ns;
        Medium { units, read_ns: added, write_ns: added, is_persistent }
    };
    let levels = input.spec.levels.iter().zip(input.latencies.levels);
    let mut media: Vec<Medium> = levels
        .map(|(level, ns)| medium(ns, level.slots / unit, level.kind.is_persistent()))
        .collect();
    media.push(medium(input.latencies.home, 0, true));
    media
}

fn problem<'a>(
    input: &SizingInput<'_>,
    media: &'a [Medium],
    unit: u32,
    services: &'a [Service<'a>],
) -> Problem<'a> {
    let (home, levels) = media.split_last().expect("the home comes last");
    let SizingLimits { counted, aim, .. } = input.limits;
    Problem { levels, home: *home, unit_blocks: u64::from(unit), services, counted, aim }
}

fn service<'a>(input: &SizingInput<'_>, unit: u32, of: &'a Observation) -> Service<'a> {
    let class = usize::from(of.class.0);
    let wish = input.wishes.get(class).copied();
    let wish = wish.unwrap_or(Wish { weight: 1.0, latency_ns_p999: None });
    // The aged requests of many periods, brought to those of one.
    let per_second = (1.0 - input.limits.keep) / input.period.as_secs_f64().max(1e-3);
    let rate = |counted| of.curve.requests(counted) * per_second;
    let class_cap = |level: usize| {
        input.spec.classes.get(class).map_or(u32::MAX, |class| class.shares[level].cap)
    };
    let guaranteed: Shares = core::array::from_fn(|level| of.shares[level].guaranteed / unit);
    let cap = |level: usize| of.shares[level].cap.min(class_cap(level)) / unit;
    Service {
        curve: &of.curve,
        rates: [rate(Counted::Reads), rate(Counted::Writes)],
        weight: wish.weight,
        levels: levels_of(input.spec, of),
        guaranteed,
        cap: core::array::from_fn(|level| cap(level).max(guaranteed[level])),
        latency_ns_p999: wish.latency_ns_p999,
    }
}

/// The shares of now in units, within what the service may have.
fn shares_now(of: &Observation, service: &Service<'_>, unit: u32) -> Shares {
    let slots = of.sized.unwrap_or(of.held);
    core::array::from_fn(|level| match service.levels >> level & 1 {
        1 => (slots[level] / unit).min(service.cap[level]),
        _ => 0,
    })
}

/// Lowers the caps of volumes whose class got more than its own cap, to what is best for the class
/// alone within that cap; false where none did.
fn lower_caps(
    input: &SizingInput<'_>,
    sized: &[&Observation],
    (media, unit): (&[Medium], u32),
    services: &mut [Service<'_>],
    found: &[Shares],
) -> bool {
    let mut lowered = false;
    for (number, class) in input.spec.classes.iter().enumerate() {
        let members: Vec<usize> =
            (0..found.len()).filter(|i| usize::from(sized[*i].class.0) == number).collect();
        let cap = |level: usize| class.shares[level].cap / unit;
        let sum = |level: usize| members.iter().map(|i| u64::from(found[*i][level])).sum::<u64>();
        let is_above = |level: &usize| sum(*level) > u64::from(cap(*level));
        let above: Vec<usize> = (0..input.spec.levels.len()).filter(is_above).collect();
        if above.is_empty() {
            continue;
        }
        lowered = true;
        let mut media = media.to_vec();
        // A cap that was lowered since the period began may be below what was guaranteed then.
        let floor =
            |level: usize| members.iter().map(|i| services[*i].guaranteed[level]).sum::<u32>();
        above.iter().for_each(|level| media[*level].units = cap(*level).max(floor(*level)));
        let own: Vec<Service<'_>> = members.iter().map(|i| services[*i]).collect();
        let best = allocate(&problem(input, &media, unit, &own), None).shares;
        for (member, best) in members.iter().zip(&best) {
            above.iter().for_each(|level| services[*member].cap[*level] = best[*level]);
        }
    }
    lowered
}

/// Gives up units that hit nothing more: whoever needs them may then have them.
fn trim(
    input: &SizingInput<'_>,
    of: &Observation,
    service: &Service<'_>,
    unit: u32,
    share: &mut Shares,
) {
    let levels = input.spec.levels.len();
    let hits = |share: &Shares| {
        let mut size = 0;
        core::array::from_fn::<u64, LEVELS_MAX, _>(|level| {
            size += u64::from(share[level]) * u64::from(unit);
            of.curve.hits(input.limits.counted, size).to_bits()
        })
    };
    for level in (0..levels).rev() {
        while share[level] > service.guaranteed[level] {
            let mut less = *share;
            less[level] -= 1;
            if hits(&less) != hits(share) {
                break;
            }
            *share = less;
        }
    }
}

/// The shares in slots; what is not sized has none.
fn moves(
    input: &SizingInput<'_>,
    sized: &[&Observation],
    unit: u32,
    found: &[Shares],
) -> Vec<(VolumeId, Option<Slots>)> {
    let slots = |of: &Observation, units: &Shares| -> Slots {
        core::array::from_fn(|level| (units[level] * unit).max(of.shares[level].guaranteed))
    };
    let of = |observation: &Observation| {
        let place = sized.iter().position(|s| s.volume == observation.volume);
        (observation.volume, place.map(|i| slots(observation, &found[i])))
    };
    input.observations.iter().map(of).collect()
}

fn why(decision: &Decision, mover: &MoverLimits) -> Why {
    let gain = decision.now.waiting - decision.proposed.waiting;
    match decision.is_move {
        true if decision.proposed.unmet < decision.now.unmet => Why::Objective,
        true => Why::Gain,
        false if gain * 1000.0 < decision.now.waiting * f64::from(mover.gain_permille) => {
            Why::Small
        }
        false => Why::Costly,
    }
}
