//! What the control API says of live sizing: shares, predictions beside outcomes, what-ifs.
//!
//! How: built from the state that the last period left and from the view of now; a volume made
//! since then is not in it yet.
//! Invariant: ratios are from 0 to 1; latencies are means of block reads in microseconds, as
//! predicted, and of read requests, as measured.
//! Cost: a copy of small tables; no shard is asked.

use crate::config::{Counts, Name, Objective, Percent, Policy, Time};
use crate::control::{Control, View};
use crate::sizing::{ShardSizing, VolumeSizing, known};
use layby_cache::EvictionKind;
use layby_cache::sizing::{Prediction, Slots, WHAT_IF_FACTORS, Why};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What is or was expected of a volume's reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionAnswer {
    /// The part of the blocks read that no level has.
    pub miss_ratio: f64,
    /// Mean wait in microseconds.
    pub latency_us_mean: f64,
}

impl From<Prediction> for PredictionAnswer {
    fn from(of: Prediction) -> Self {
        PredictionAnswer { miss_ratio: of.miss_ratio, latency_us_mean: of.latency_ns / 1e3 }
    }
}

/// What is expected with so many times the room.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SizeAnswer {
    /// How many times the room of now, in every level.
    pub factor: f64,
    /// Bytes of room in all levels.
    pub room_bytes: u64,
    /// What would come.
    pub expected: PredictionAnswer,
}

/// What is expected under a policy, the room kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyAnswer {
    /// The policy, in every level.
    pub policy: Policy,
    /// What would come.
    pub expected: PredictionAnswer,
}

/// A volume in the last period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSizingAnswer {
    /// Its name.
    pub volume: Name,
    /// Its class.
    pub class: Name,
    /// The shares that it was sized, in bytes by level; empty while it is not sized.
    pub share_bytes: BTreeMap<String, u64>,
    /// What it held at the period's end, in bytes by level.
    pub held_bytes: BTreeMap<String, u64>,
    /// Read requests in the period.
    pub reads: u64,
    /// What had been predicted for the period; absent in a volume's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictionAnswer>,
    /// What the period showed.
    pub measured: PredictionAnswer,
    /// What is predicted for the period that runs now.
    pub next: PredictionAnswer,
    /// Other sizes.
    pub sizes: Vec<SizeAnswer>,
    /// Other policies; empty while the sample is too small.
    pub policies: Vec<PolicyAnswer>,
}

/// The volumes of a class together, each weighted by its reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassSizingAnswer {
    /// Its name.
    pub class: Name,
    /// Read requests in the period.
    pub reads: u64,
    /// Other sizes, of every volume at once.
    pub sizes: Vec<SizeAnswer>,
    /// Other policies; those that every volume with reads has, so of the same volumes as `sizes`.
    pub policies: Vec<PolicyAnswer>,
}

/// A shard's last decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShardSizingAnswer {
    /// Which shard.
    pub shard: u8,
    /// The shares moved, or would have moved were sizing enabled.
    pub is_move: bool,
    /// Why, as a sentence.
    pub reason: String,
    /// Decisions to move that were carried out since the start.
    pub moves: u64,
    /// Predicted waiting with the shares before, in seconds per second, weighted.
    pub waiting_now: f64,
    /// Predicted waiting with the shares proposed.
    pub waiting_proposed: f64,
    /// Weight of the latency objectives missed with the shares before.
    pub unmet_now: f64,
    /// Weight of the latency objectives missed with the shares proposed.
    pub unmet_proposed: f64,
    /// Bytes of room that change hands.
    pub moved_bytes: u64,
    /// Mean of a read from each level, and from `home`, in microseconds.
    pub latency_us: BTreeMap<String, f64>,
    /// How long the allocation took, in milliseconds, off the shard's thread.
    pub allocation_ms: f64,
}

/// Live sizing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SizingAnswer {
    /// Shares move; otherwise this is what they would do.
    pub enabled: bool,
    /// Requests are sampled.
    pub watch: bool,
    /// How often shares are looked at.
    pub period: Time,
    /// What is sought.
    pub objective: Objective,
    /// Whose waiting counts.
    pub counts: Counts,
    /// The least gain that is worth a move.
    pub gain_min: Percent,
    /// Periods that have ended.
    pub periods: u64,
    /// The last decisions.
    pub shards: Vec<ShardSizingAnswer>,
    /// By name.
    pub volumes: Vec<VolumeSizingAnswer>,
    /// Classes whose volumes were read in the period, in the order of their numbers.
    pub classes: Vec<ClassSizingAnswer>,
}

impl SizingAnswer {
    /// What the last period left.
    #[must_use]
    pub fn of(control: &Control) -> SizingAnswer {
        let (view, state) = (control.view(), control.sizing());
        let config = &control.facts().config.sizing;
        let shards = (0u8..).zip(&state.shards);
        let volumes: Vec<VolumeSizingAnswer> = known(&view, &state)
            .map(|(name, record, sizing)| volume_answer(&view, name, &record.class, sizing))
            .collect();
        let classes = view.classes().filter_map(|(name, _)| class_answer(name, &volumes));
        SizingAnswer {
            classes: classes.collect(),
            enabled: config.enabled,
            watch: config.watch,
            period: Time(config.period),
            objective: config.objective,
            counts: config.counts,
            gain_min: config.gain_min,
            periods: state.periods,
            shards: shards.map(|(index, shard)| shard_answer(&view, index, shard)).collect(),
            volumes,
        }
    }
}

fn block_bytes(view: &View) -> u64 {
    u64::from(view.layout.block_size.bytes())
}

fn by_level(view: &View, slots: &Slots) -> BTreeMap<String, u64> {
    let levels = view.layout.levels.iter().zip(slots);
    levels.map(|(level, n)| (level.name.to_string(), u64::from(*n) * block_bytes(view))).collect()
}

fn volume_answer(
    view: &View,
    name: &Name,
    class: &Name,
    sizing: &VolumeSizing,
) -> VolumeSizingAnswer {
    let room: u64 = sizing.sized.unwrap_or(sizing.held).iter().map(|slots| u64::from(*slots)).sum();
    let room = room * block_bytes(view);
    let size = |(factor, expected): &(f64, Prediction)| SizeAnswer {
        factor: *factor,
        room_bytes: (room as f64 * factor) as u64,
        expected: (*expected).into(),
    };
    VolumeSizingAnswer {
        volume: name.clone(),
        class: class.clone(),
        share_bytes: sizing.sized.map(|slots| by_level(view, &slots)).unwrap_or_default(),
        held_bytes: by_level(view, &sizing.held),
        reads: sizing.outcome.reads,
        predicted: sizing.predicted.map(Into::into),
        measured: PredictionAnswer {
            miss_ratio: sizing.outcome.miss_ratio,
            latency_us_mean: sizing.outcome.latency_ns / 1e3,
        },
        next: sizing.next.into(),
        sizes: sizing.sizes.iter().map(size).collect(),
        policies: sizing
            .policies
            .iter()
            .map(|(kind, expected)| PolicyAnswer {
                policy: (*kind).into(),
                expected: (*expected).into(),
            })
            .collect(),
    }
}

/// The mean of predictions, weighted; nothing without weight.
fn mean(parts: impl Iterator<Item = (u64, PredictionAnswer)>) -> Option<PredictionAnswer> {
    let (mut weight, mut sum) = (0.0, PredictionAnswer::default());
    for (reads, part) in parts {
        let reads = reads as f64;
        weight += reads;
        sum.miss_ratio += reads * part.miss_ratio;
        sum.latency_us_mean += reads * part.latency_us_mean;
    }
    (weight > 0.0).then(|| PredictionAnswer {
        miss_ratio: sum.miss_ratio / weight,
        latency_us_mean: sum.latency_us_mean / weight,
    })
}

fn class_answer(class: &Name, volumes: &[VolumeSizingAnswer]) -> Option<ClassSizingAnswer> {
    let members: Vec<&VolumeSizingAnswer> = volumes.iter().filter(|v| v.class == *class).collect();
    let reads = members.iter().map(|volume| volume.reads).sum();
    let size = |(index, factor): (usize, &f64)| {
        let of = |volume: &&VolumeSizingAnswer| volume.sizes[index];
        let expected = mean(members.iter().map(|volume| (volume.reads, of(volume).expected)))?;
        let room_bytes = members.iter().map(|volume| of(volume).room_bytes).sum();
        Some(SizeAnswer { factor: *factor, room_bytes, expected })
    };
    let policy = |kind: EvictionKind| {
        let policy = Policy::from(kind);
        let of = |volume: &&VolumeSizingAnswer| {
            let found = volume.policies.iter().find(|of| of.policy == policy)?;
            Some((volume.reads, found.expected))
        };
        // The mean of some members alone would stand beside the room of all.
        let parts: Option<Vec<_>> = members.iter().filter(|v| v.reads > 0).map(of).collect();
        Some(PolicyAnswer { policy, expected: mean(parts?.into_iter())? })
    };
    let sizes: Vec<SizeAnswer> = WHAT_IF_FACTORS.iter().enumerate().filter_map(size).collect();
    let policies = EvictionKind::ALL.into_iter().filter_map(policy).collect();
    let answer = ClassSizingAnswer { class: class.clone(), reads, sizes, policies };
    (reads > 0).then_some(answer)
}

fn shard_answer(view: &View, shard: u8, of: &ShardSizing) -> ShardSizingAnswer {
    let decision = of.decision.as_ref();
    let cost = |seconds: bool, proposed: bool| {
        let cost = decision.map(|d| if proposed { d.proposed } else { d.now });
        let cost = cost.unwrap_or_default();
        if seconds { cost.waiting / 1e9 } else { cost.unmet }
    };
    let levels = view.layout.levels.iter().zip(of.latencies.levels);
    let mut latency_us: BTreeMap<String, f64> =
        levels.map(|(level, ns)| (level.name.to_string(), ns / 1e3)).collect();
    latency_us.insert(crate::config::SIZING_HOME.to_owned(), of.latencies.home / 1e3);
    ShardSizingAnswer {
        shard,
        is_move: decision.is_some_and(|decision| decision.is_move),
        reason: reason(of.why).to_owned(),
        moves: of.moves,
        waiting_now: cost(true, false),
        waiting_proposed: cost(true, true),
        unmet_now: cost(false, false),
        unmet_proposed: cost(false, true),
        moved_bytes: decision.map_or(0, |d| d.blocks_moved) * block_bytes(view),
        latency_us,
        allocation_ms: of.allocation.as_secs_f64() * 1e3,
    }
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::Quiet => "nothing was asked",
        Why::Gain => "the gain is noticeable and pays for the transfers",
        Why::Objective => "more latency objectives will be met",
        Why::Small => "the gain is too small a part of the waiting",
        Why::Costly => "the transfers would cost more than is gained in the payback time",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, reads: u64, policies: &[Policy]) -> VolumeSizingAnswer {
        let expected = PredictionAnswer { miss_ratio: 0.5, latency_us_mean: 1000.0 };
        let size = |factor: &f64| SizeAnswer { factor: *factor, room_bytes: 1 << 20, expected };
        VolumeSizingAnswer {
            volume: name.parse().expect("a name"),
            class: "normal".parse().expect("a name"),
            share_bytes: BTreeMap::new(),
            held_bytes: BTreeMap::new(),
            reads,
            predicted: None,
            measured: expected,
            next: expected,
            sizes: WHAT_IF_FACTORS.iter().map(size).collect(),
            policies: policies.iter().map(|of| PolicyAnswer { policy: *of, expected }).collect(),
        }
    }

    /// Goal: a class has a policy's row only where every volume with reads has it, since its room
    /// is shown as that of all of them. Method: two volumes, the other with both policies, one or
    /// none; one that is not read and has none.
    #[test]
    fn a_class_has_the_policies_of_all_its_volumes() {
        let both = [Policy::from(EvictionKind::ALL[0]), Policy::from(EvictionKind::ALL[1])];
        for (other, reads, shown) in
            [(2, 10, &both[..]), (1, 10, &both[..1]), (0, 10, &[]), (0, 0, &both[..])]
        {
            let volumes = [volume("a", 10, &both), volume("b", reads, &both[..other])];
            let answer = class_answer(&volumes[0].class.clone(), &volumes).expect("it was read");
            let has: Vec<Policy> = answer.policies.iter().map(|of| of.policy).collect();
            assert_eq!(has, shown, "{other} policies of a volume with {reads} reads");
        }
    }
}
