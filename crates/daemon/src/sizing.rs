//! Sizing while the node runs: period by period, from the shards' samples to their shares.
//!
//! How: each period [`Sizer::period`] asks every shard for what it sampled, a few volumes at a
//! time, lets [`layby_cache::sizing`] think on a thread of its own, and sends the shards numbers.
//! What was predicted is kept until the next period has shown the outcome. A volume lives on one
//! shard and has room in that shard's part of the levels alone, so each shard is a problem of its
//! own and nothing moves between shards.
//! Invariant: a shard spends well under a millisecond on each question and never waits for an
//! answer; a shard that has ended leaves its last state in place.
//! Cost: a curve per volume and period; an allocation per shard and period, see `allocation_ms`.

use crate::catalog::VolumeRecord;
use crate::config::{LevelConfig, Name};
use crate::control::{Control, View};
use layby_cache::sizing::{
    Decision, Latencies, Plan, Prediction, SizingInput, Slots, WHAT_IF_FACTORS, Why, Wish,
    guaranteed_twice, plan, predict, predict_policies, size_now,
};
use layby_cache::{CacheSpec, EvictionKind, Observation};
use layby_engine::control::{Observed, VolumeObserved};
use layby_types::{Nanos, VolumeId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// Volumes asked for in one command: a shard makes a curve of each, some ten microseconds.
const VOLUMES_PER_QUESTION: usize = 16;
/// How much a measured latency counts against those before it; the first one counts alone.
const LATENCY_WEIGHT: f64 = 0.5;
/// The backing stores' place among what is measured.
const HOME: usize = usize::MAX;

/// What sizing knows after a period.
#[derive(Clone, Debug, Default)]
pub struct SizingState {
    /// Periods that have ended.
    pub periods: u64,
    /// By shard.
    pub shards: Vec<ShardSizing>,
    /// By volume.
    pub volumes: HashMap<VolumeId, VolumeSizing>,
}

/// A shard's last period.
#[derive(Clone, Debug)]
pub struct ShardSizing {
    /// Why shares moved or stayed.
    pub why: Why,
    /// The figures behind it.
    pub decision: Option<Decision>,
    /// Decisions to move since the start.
    pub moves: u64,
    /// What reads cost.
    pub latencies: Latencies,
    /// How long the allocation took.
    pub allocation: Duration,
}

/// What reads of a volume waited in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Read requests.
    pub reads: u64,
    /// The part of its blocks read that no level had.
    pub miss_ratio: f64,
    /// The mean wait of a read request, in nanoseconds.
    pub latency_ns: f64,
}

/// A volume's last period.
#[derive(Clone, Debug)]
pub struct VolumeSizing {
    /// The shares that it was sized, in slots.
    pub sized: Option<Slots>,
    /// The slots that it held at the period's end.
    pub held: Slots,
    /// What had been predicted for the period; nothing for its first.
    pub predicted: Option<Prediction>,
    /// What the period showed.
    pub outcome: Outcome,
    /// What is predicted for the next.
    pub next: Prediction,
    /// The same with so many times the room.
    pub sizes: Vec<(f64, Prediction)>,
    /// The same under other policies; empty while the sample is too small.
    pub policies: Vec<(EvictionKind, Prediction)>,
}

/// Runs the periods of a node.
pub struct Sizer {
    control: Arc<Control>,
    latencies: Vec<Latencies>,
    /// By shard, the levels' numbers and [`HOME`] of what was measured once.
    measured: Vec<BTreeSet<usize>>,
    moves: Vec<u64>,
    state: SizingState,
}

/// What a shard's period is judged by, sent to the thread that thinks.
struct Question {
    spec: CacheSpec,
    observed: Vec<VolumeObserved>,
    latencies: Latencies,
    wishes: Vec<Wish>,
    limits: layby_cache::sizing::SizingLimits,
    period: Nanos,
    /// Shares are set; else they are advice.
    enabled: bool,
}

struct Thought {
    plan: Plan,
    volumes: Vec<(VolumeId, VolumeSizing)>,
    took: Duration,
}

impl Sizer {
    /// Nothing is sampled before the first period begins.
    #[must_use]
    pub fn new(control: Arc<Control>) -> Sizer {
        let view = control.view();
        let shards = usize::from(view.layout.shards);
        let first = control.facts().config.sizing.latencies(&view.layout.levels);
        let (latencies, moves) = (vec![first; shards], vec![0; shards]);
        let measured = vec![BTreeSet::new(); shards];
        Sizer { control, latencies, measured, moves, state: SizingState::default() }
    }

    /// Sizes for as long as the node runs; never ends, unless nothing is to be watched.
    pub async fn run(mut self) {
        let sizing = self.control.facts().config.sizing.clone();
        if !sizing.watch {
            return std::future::pending().await;
        }
        let period = Duration::from_nanos(sizing.period.0);
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once and begins the watch.
        loop {
            ticks.tick().await;
            self.period().await;
        }
    }

    /// Ends a period on every shard and publishes what it showed.
    pub async fn period(&mut self) {
        let view = self.control.view();
        let ids: Vec<VolumeId> = view.volumes().flat_map(|(_, r)| r.parts()).collect();
        self.state.volumes.retain(|id, _| ids.contains(id));
        let mut shards = Vec::new();
        for shard in 0..usize::from(view.layout.shards) {
            let own: Vec<VolumeId> =
                ids.iter().copied().filter(|id| view.layout.shard_of(*id) == shard).collect();
            match self.shard_period(&view, shard, &own).await {
                Some(state) => shards.push(state),
                // It has ended, and the node is about to.
                None => return,
            }
        }
        self.state.shards = shards;
        self.state.periods += 1;
        self.control.publish_sizing(by_volume(&view, self.state.clone()));
    }

    async fn shard_period(
        &mut self,
        view: &View,
        shard: usize,
        volumes: &[VolumeId],
    ) -> Option<ShardSizing> {
        let control = Arc::clone(&self.control);
        let config = &control.facts().config.sizing;
        let limits = config.limits();
        let mut observed = Vec::new();
        for few in volumes.chunks(VOLUMES_PER_QUESTION) {
            let seen = control.observe(shard, few.to_vec(), limits.keep).await.ok()?;
            self.learn(shard, &view.layout.levels, &seen);
            observed.extend(seen.volumes);
        }
        // Shares and caps may have changed while it was observed: those that hold by now count.
        let view = control.view();
        let (enabled, period) = (config.enabled, config.period);
        let question = Question {
            spec: view.layout.cache_spec(&view.classes).ok()?,
            observed,
            latencies: self.latencies[shard],
            wishes: wishes(&view),
            limits,
            period,
            enabled,
        };
        let thinking = tokio::task::spawn_blocking(move || think(&question));
        let thought = match thinking.await {
            Ok(Ok(thought)) => thought,
            Ok(Err(level)) => {
                let level = view.layout.levels[level].name.as_str();
                tracing::warn!(
                    shard,
                    level,
                    "guarantees changed during a period of sizing, which is skipped"
                );
                return Some(self.as_before(shard));
            }
            Err(cause) => {
                tracing::error!(shard, %cause, "a period of sizing broke off and is skipped");
                return Some(self.as_before(shard));
            }
        };
        if enabled && !thought.plan.moves.is_empty() {
            control.set_sized(shard, thought.plan.moves.clone()).await.ok()?;
            self.moves[shard] += 1;
        }
        self.remember(thought.volumes, if enabled { &thought.plan.moves } else { &[] });
        let (latencies, moves) = (self.latencies[shard], self.moves[shard]);
        let Plan { why, decision, .. } = thought.plan;
        Some(ShardSizing { why, decision, moves, latencies, allocation: thought.took })
    }

    /// A shard's state after a period of which nothing is known.
    fn as_before(&self, shard: usize) -> ShardSizing {
        let (latencies, moves) = (self.latencies[shard], self.moves[shard]);
        let (why, decision, allocation) = (Why::Quiet, None, Duration::ZERO);
        let unknown = ShardSizing { why, decision, moves, latencies, allocation };
        self.state.shards.get(shard).cloned().unwrap_or(unknown)
    }

    /// Takes in measured latencies; what was configured stays.
    fn learn(&mut self, shard: usize, levels: &[LevelConfig], seen: &Observed) {
        let config = &self.control.facts().config.sizing;
        let once = &mut self.measured[shard];
        let mut blend = |known: &mut f64, measured: Option<f64>, (place, name): (usize, &str)| {
            if let (Some(ns), None) = (measured, config.configured_ns(name)) {
                // What was assumed before says nothing.
                let weight = if once.insert(place) { 1.0 } else { LATENCY_WEIGHT };
                *known += (ns - *known) * weight;
            }
        };
        let known = &mut self.latencies[shard];
        for (index, level) in levels.iter().enumerate() {
            let measured = seen.levels_read_ns.get(index).copied().flatten();
            blend(&mut known.levels[index], measured, (index, level.name.as_str()));
        }
        blend(&mut known.home, seen.home_read_ns, (HOME, crate::config::SIZING_HOME));
    }

    /// Joins what was predicted for the period to what it showed.
    fn remember(
        &mut self,
        volumes: Vec<(VolumeId, VolumeSizing)>,
        moves: &[(VolumeId, Option<Slots>)],
    ) {
        for (id, mut sizing) in volumes {
            sizing.predicted = self.state.volumes.get(&id).map(|before| before.next);
            if let Some((_, sized)) = moves.iter().find(|(moved, _)| *moved == id) {
                sizing.sized = *sized;
            }
            self.state.volumes.insert(id, sizing);
        }
    }
}

/// What the classes want, by their numbers.
fn wishes(view: &View) -> Vec<Wish> {
    let wish = |slot: &Option<(Name, crate::config::ClassConfig)>| match slot {
        None => Wish { weight: 1.0, latency_ns_p999: None },
        Some((_, class)) => Wish {
            weight: f64::from(class.weight),
            latency_ns_p999: class.latency_objective.map(|time| time.0.0 as f64),
        },
    };
    view.classes.iter().map(wish).collect()
}

/// What a period says; or the number of a level that the volumes observed are guaranteed twice.
#[expect(clippy::disallowed_methods, reason = "the time that thinking takes is shown")]
fn think(question: &Question) -> Result<Thought, usize> {
    let begun = Instant::now();
    let observations: Vec<Observation> =
        question.observed.iter().map(|seen| seen.cache.clone()).collect();
    if let Some(level) = guaranteed_twice(&question.spec, &observations) {
        return Err(level);
    }
    let plan = plan(&SizingInput {
        spec: &question.spec,
        observations: &observations,
        latencies: question.latencies,
        wishes: &question.wishes,
        limits: question.limits,
        period: question.period,
    });
    let volumes = question.observed.iter().map(|seen| {
        // What is not set is not what the next period has.
        let mut set = plan.moves.iter().filter(|_| question.enabled);
        let moved = set.find(|(id, _)| *id == seen.cache.volume);
        (seen.cache.volume, judge(question, seen, moved.and_then(|(_, sized)| *sized)))
    });
    let volumes = volumes.collect();
    Ok(Thought { plan, volumes, took: begun.elapsed() })
}

/// A volume's period; `moved` are the shares that it shall have.
fn judge(question: &Question, seen: &VolumeObserved, moved: Option<Slots>) -> VolumeSizing {
    let (spec, latencies, cache) = (&question.spec, &question.latencies, &seen.cache);
    let now = size_now(cache);
    let next = moved.map_or(now, |slots| slots.map(u64::from));
    let scaled = |factor: f64| now.map(|slots| (slots as f64 * factor) as u64);
    let sizes = WHAT_IF_FACTORS
        .map(|factor| (factor, predict(spec, latencies, cache, &scaled(factor))))
        .to_vec();
    VolumeSizing {
        sized: cache.sized,
        held: cache.held,
        predicted: None,
        outcome: outcome(seen),
        next: predict(spec, latencies, cache, &next),
        sizes,
        policies: predict_policies(spec, latencies, cache),
    }
}

fn outcome(seen: &VolumeObserved) -> Outcome {
    let hits: u64 = seen.cache.hits.iter().sum();
    let ratio = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
    Outcome {
        reads: seen.reads,
        miss_ratio: ratio(seen.cache.misses, seen.cache.misses + hits),
        latency_ns: ratio(seen.read_wait_ns, seen.reads),
    }
}

/// The parts of wide volumes as the volumes that they make up.
fn by_volume(view: &View, mut state: SizingState) -> SizingState {
    for (_, record) in view.volumes().filter(|(_, record)| record.wide.is_some()) {
        let parts: Vec<VolumeSizing> =
            record.parts().filter_map(|part| state.volumes.remove(&part)).collect();
        if let Some(whole) = VolumeSizing::of_parts(&parts) {
            state.volumes.insert(VolumeId(record.id), whole);
        }
    }
    state
}

impl VolumeSizing {
    /// Parts together: room is added up, waits and misses are means by reads.
    fn of_parts(parts: &[VolumeSizing]) -> Option<VolumeSizing> {
        let (first, rest) = parts.split_first()?;
        Some(rest.iter().fold(first.clone(), VolumeSizing::with))
    }

    fn with(mut self, other: &VolumeSizing) -> VolumeSizing {
        let (own, its) = (self.outcome.reads, other.outcome.reads);
        let mean = |a: f64, b: f64| match own + its {
            0 => f64::midpoint(a, b),
            all => (a * own as f64 + b * its as f64) / all as f64,
        };
        let both = |a: Prediction, b: Prediction| Prediction {
            miss_ratio: mean(a.miss_ratio, b.miss_ratio),
            latency_ns: mean(a.latency_ns, b.latency_ns),
        };
        let add = |a: Slots, b: &Slots| std::array::from_fn(|level| a[level] + b[level]);
        self.held = add(self.held, &other.held);
        self.sized = match (self.sized, &other.sized) {
            (Some(a), Some(b)) => Some(add(a, b)),
            _ => None,
        };
        self.predicted = self.predicted.zip(other.predicted).map(|(a, b)| both(a, b));
        self.next = both(self.next, other.next);
        for ((_, size), (_, its)) in self.sizes.iter_mut().zip(&other.sizes) {
            *size = both(*size, *its);
        }
        // A sample that is too small shows no policies, and then neither do both.
        if self.policies.len() != other.policies.len() {
            self.policies.clear();
        }
        for ((_, policy), (_, its)) in self.policies.iter_mut().zip(&other.policies) {
            *policy = both(*policy, *its);
        }
        let outcome = &mut self.outcome;
        outcome.miss_ratio = mean(outcome.miss_ratio, other.outcome.miss_ratio);
        outcome.latency_ns = mean(outcome.latency_ns, other.outcome.latency_ns);
        outcome.reads = own + its;
        self
    }
}

/// The volumes of a view that a state knows, by name.
pub fn known<'a>(
    view: &'a View,
    state: &'a SizingState,
) -> impl Iterator<Item = (&'a Name, &'a VolumeRecord, &'a VolumeSizing)> {
    view.volumes().filter_map(|(name, record)| {
        let sizing = state.volumes.get(&VolumeId(record.id))?;
        Some((name, record, sizing))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SizingAnswer;
    use crate::control::Pace;
    use crate::control::tests::MockNode;
    use crate::node::tests::LogLines;
    use layby_cache::Share;
    use layby_cache::sizing::{Curve, Point};
    use layby_types::ClassId;

    const CONFIG: &str = "[sizing]\nenabled = true\nperiod = \"1s\"\nlatency = { home = \"2ms\" }\n\
                          [volume.a]\nsize = \"1GiB\"\n[volume.b]\nsize = \"1GiB\"\n\
                          [volume.c]\nsize = \"1GiB\"\n";
    /// The SSD level of the default configuration.
    const SSD: usize = 2;

    /// A period of 1000 reads a second, of which a room of `slots` serves nearly all.
    fn seen(volume: u32, slots: u64) -> VolumeObserved {
        let points = vec![Point { size: slots, hits: [990.0, 0.0] }];
        let mut held = [0; layby_cache::LEVELS_MAX];
        held[SSD] = 1000;
        let cache = Observation {
            volume: VolumeId(volume),
            class: ClassId(1),
            levels: u8::MAX,
            curve: Curve::new(points, [1000.0, 0.0]),
            policies: Vec::new(),
            requests: [1000, 0],
            hits: [10; layby_cache::LEVELS_MAX],
            misses: 80,
            held,
            sized: None,
            shares: [Share::OPEN; layby_cache::LEVELS_MAX],
        };
        VolumeObserved { cache, reads: 1000, read_wait_ns: 1_600_000_000 }
    }

    fn observed() -> Observed {
        Observed {
            volumes: vec![seen(0, 30_000), seen(2, 1 << 40)],
            levels_read_ns: vec![None, None, Some(50_000.0)],
            home_read_ns: Some(9e9),
        }
    }

    fn answer(node: &MockNode, observed: Observed) {
        node.shards[0].state().observed.push_back(observed);
    }

    /// Goal: a period reaches the shards as shares, and people as prediction beside outcome.
    /// Method: two volumes on a shard, one that reuses 30000 blocks and one that never will; two
    /// periods.
    #[tokio::test]
    async fn periods_become_shares() {
        let node = MockNode::new(CONFIG);
        let mut sizer = Sizer::new(Arc::clone(&node.control));
        answer(&node, observed());
        sizer.period().await;
        let sized = node.shards[0].state().sized.clone();
        let of = |id| sized.iter().find(|(v, _)| *v == VolumeId(id)).and_then(|(_, s)| *s);
        assert!(of(0).is_some_and(|slots| slots[SSD] >= 30_000), "{sized:?}");
        assert_eq!(of(2).map(|slots| slots[SSD]), Some(0), "{sized:?}");
        assert!(node.shards[1].state().sized.is_empty(), "nobody asked for anything there");
        let first = SizingAnswer::of(&node.control);
        assert!(first.volumes[0].predicted.is_none() && first.shards[0].is_move);
        assert!((first.shards[0].latency_us["home"] - 2000.0).abs() < 1e-6, "it was configured");
        assert!((first.shards[0].latency_us["ssd"] - 50.0).abs() < 1e-6, "as measured");
        answer(&node, observed());
        sizer.period().await;
        let second = SizingAnswer::of(&node.control);
        let a = &second.volumes[0];
        let predicted = a.predicted.expect("the first period predicted it");
        assert_eq!(predicted, first.volumes[0].next);
        assert!(predicted.miss_ratio < 0.02 && predicted.latency_us_mean < 200.0);
        assert!((a.measured.latency_us_mean - 1600.0).abs() < 1e-6);
        assert_eq!(a.sizes.len(), WHAT_IF_FACTORS.len());
        let snapshots = node.control.snapshots(Pace::AtOnce).await.expect("the shards run");
        let state = node.control.sizing();
        let text = crate::metrics::render(
            node.control.facts(),
            node.control.view(),
            snapshots.clone(),
            node.control.class_totals(&snapshots),
            (state, node.control.healths()),
        );
        for part in [
            "layby_sizing_moves_total{shard=\"0\"} 2",
            "layby_sizing_miss_ratio{volume=\"a\",class=\"normal\",kind=\"predicted\"} 0.0",
            "layby_what_if_latency_mean_seconds{volume=\"c\",class=\"normal\",what=\"x0.25\"} 0.0",
        ] {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
    }

    /// Goal: a node that is not to size says what it would do and does nothing, and predicts with
    /// the room that its volumes have. Method: two periods with sizing off, of a volume that holds
    /// a thirtieth of the blocks that it reuses, for which sizing proposes all.
    #[tokio::test]
    async fn advice_moves_nothing() {
        let node = MockNode::new(&CONFIG.replace("enabled = true", "enabled = false"));
        let mut sizer = Sizer::new(Arc::clone(&node.control));
        answer(&node, observed());
        sizer.period().await;
        assert!(node.shards[0].state().sized.is_empty());
        let first = SizingAnswer::of(&node.control);
        assert!(!first.enabled && first.shards[0].is_move && first.shards[0].moves == 0);
        assert!(first.volumes.iter().all(|volume| volume.share_bytes.is_empty()));
        let a = &first.volumes[0];
        let (factor, as_now) = (a.sizes[2].factor, a.sizes[2].expected);
        assert!((factor - 1.0).abs() < 1e-9, "{factor}");
        assert!(a.next.miss_ratio > 0.9, "no share was set: {:?}", a.next);
        assert_eq!(a.next, as_now, "the room of now is what the next period has");
        answer(&node, observed());
        sizer.period().await;
        let second = SizingAnswer::of(&node.control);
        assert_eq!(second.volumes[0].predicted, Some(a.next));
    }

    /// Goal: a change of guarantees while a period is observed costs that period alone. Method: of
    /// two volumes of a shard, one is seen before and the other after a guarantee of most of the
    /// level went from one to the other; the period before and the one after.
    #[tokio::test]
    async fn a_change_of_guarantees_costs_one_period() {
        let node = MockNode::new(CONFIG);
        let mut sizer = Sizer::new(Arc::clone(&node.control));
        answer(&node, observed());
        sizer.period().await;
        let before = SizingAnswer::of(&node.control);
        let slots = node.control.view().layout.cache_spec(&node.control.view().classes);
        let slots = slots.expect("it is in use").levels[SSD].slots;
        let mut torn = observed();
        for volume in &mut torn.volumes {
            volume.cache.shares[SSD].guaranteed = slots / 4 * 3;
        }
        answer(&node, torn);
        node.shards[0].state().sized.clear();
        let log = LogLines::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let subscriber = tracing::subscriber::set_default(lines.with_ansi(false).finish());
        sizer.period().await;
        drop(subscriber);
        let text = log.text();
        assert!(text.contains("guarantees") && text.contains("shard=0"), "{text}");
        assert!(node.shards[0].state().sized.is_empty(), "nothing is known of this period");
        let torn = SizingAnswer::of(&node.control);
        assert_eq!(torn.volumes[0].next, before.volumes[0].next);
        assert_eq!(torn.shards[0].moves, 1);
        answer(&node, observed());
        sizer.period().await;
        assert_eq!(SizingAnswer::of(&node.control).shards[0].moves, 2);
    }
}
