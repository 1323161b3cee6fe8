//! `[sizing]`: whether and how a running node sizes its volumes' shares by what they reuse.
//!
//! How: values of the file over defaults; a value out of its range is a [`Problem`] with its line.
//! Invariant: what exists can be handed to [`layby_cache::sizing`] as it is.
//! Cost: read once per start.

use super::checks::{Place, Problem};
use super::{Kind, LevelConfig, Name, Percent, Time};
use layby_cache::LEVELS_MAX;
use layby_cache::sizing::{Aim, Counted, Latencies, MoverLimits, SizingLimits};
use layby_types::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A period lasts this long at least.
pub(super) const PERIOD_MIN: Nanos = Nanos::from_millis(100);
/// A period lasts this long at most.
pub(super) const PERIOD_MAX: Nanos = Nanos::from_secs(3600);
/// A period lasts this long when nothing is said.
pub(super) const PERIOD_DEFAULT: Nanos = Nanos::from_secs(10);
/// What a period counts in the next one at most: the past has to fade.
pub(super) const KEEP_MAX: Percent = Percent(95);
/// What a period counts in the next one when nothing is said.
pub(super) const KEEP_DEFAULT: Percent = Percent(25);
/// The name under which `latency` speaks of the volumes' homes.
pub const HOME: &str = "home";
/// What a read costs from memory, NVM, flash and a home until it was measured.
const READ_NS: [f64; 4] = [1e3, 2e3, 1e5, 5e6];

/// What sizing seeks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The least waiting in sum.
    #[default]
    Mean,
    /// As many latency objectives met as can be, by weight; then the least waiting.
    ObjectivesFirst,
}

/// Which requests' waiting counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Counts {
    /// Reads alone: a write waits for its level, whatever the shares are.
    #[default]
    Reads,
    /// Writes too, by what of them goes on to the home.
    Both,
}

/// Live sizing, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizingConfig {
    /// Shares move; otherwise the node only says what it would do.
    pub enabled: bool,
    /// Requests are sampled; without it there is nothing to size by.
    pub watch: bool,
    /// How often.
    pub period: Nanos,
    /// What is sought.
    pub objective: Objective,
    /// Whose waiting counts.
    pub counts: Counts,
    /// How much a period counts in the next one.
    pub keep: Percent,
    /// The least gain that is worth a move, of the present waiting.
    pub gain_min: Percent,
    /// The time in which a gain has to pay for its transfers.
    pub payback: Nanos,
    /// Read latencies that are not to be measured, by level or `home`.
    pub latency: BTreeMap<Name, Time>,
}

/// The table as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SizingTable {
    enabled: Option<bool>,
    watch: Option<bool>,
    period: Option<Time>,
    objective: Objective,
    counts: Counts,
    keep: Option<Percent>,
    gain_min: Option<Percent>,
    payback: Option<Time>,
    latency: BTreeMap<Name, Time>,
}

impl SizingTable {
    /// The table over the defaults.
    pub(super) fn config(self, levels: &[LevelConfig]) -> Result<SizingConfig, Problem> {
        let default = MoverLimits::DEFAULT;
        let percent = u8::try_from(default.gain_permille / 10).expect("at most a hundred");
        let enabled = self.enabled.unwrap_or(false);
        let config = SizingConfig {
            enabled,
            watch: self.watch.unwrap_or(true),
            period: self.period.map_or(PERIOD_DEFAULT, |time| time.0),
            objective: self.objective,
            counts: self.counts,
            keep: self.keep.unwrap_or(KEEP_DEFAULT),
            gain_min: self.gain_min.unwrap_or(Percent(percent)),
            payback: self.payback.map_or(default.payback, |time| time.0),
            latency: self.latency,
        };
        check(&config, levels).map(|()| config)
    }
}

fn check(config: &SizingConfig, levels: &[LevelConfig]) -> Result<(), Problem> {
    let problem = |key, cause: String, hint: &str| {
        Err(Problem::new(Place::Sizing, key, cause, hint.to_owned()))
    };
    if config.enabled && !config.watch {
        let cause = "without the watch there is nothing to size by".to_owned();
        return problem("watch", cause, "leave the key out, or set enabled = false");
    }
    if !(PERIOD_MIN..=PERIOD_MAX).contains(&config.period) {
        let cause = format!("{} is outside 100ms to 1h", config.period);
        return problem("period", cause, "write a time such as `10s`");
    }
    if config.keep > KEEP_MAX {
        let cause = format!("{} is more than {KEEP_MAX}: the past would never fade", config.keep);
        return problem("keep", cause, "write a part such as `25%`");
    }
    if !(MoverLimits::MIN.payback..=MoverLimits::MAX.payback).contains(&config.payback) {
        let cause = format!("{} is outside 1s to 24h", config.payback);
        return problem("payback", cause, "write a time such as `60s`");
    }
    let known = |name: &Name| name.as_str() == HOME || levels.iter().any(|l| l.name == *name);
    if let Some(name) = config.latency.keys().find(|name| !known(name)) {
        let names: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
        let hint = format!("levels are: {}; `{HOME}` is below them", names.join(", "));
        return problem("latency", format!("there is no level `{name}`"), &hint);
    }
    Ok(())
}

impl SizingConfig {
    /// The limits in the words of the core.
    #[must_use]
    pub fn limits(&self) -> SizingLimits {
        SizingLimits {
            aim: match self.objective {
                Objective::Mean => Aim::Mean,
                Objective::ObjectivesFirst => Aim::ObjectivesFirst,
            },
            counted: match self.counts {
                Counts::Reads => Counted::Reads,
                Counts::Both => Counted::Both,
            },
            mover: MoverLimits {
                gain_permille: u32::from(self.gain_min.0) * 10,
                payback: self.payback,
                ..MoverLimits::DEFAULT
            },
            keep: f64::from(self.keep.0) / 100.0,
        }
    }

    /// What reads cost before anything was measured.
    #[must_use]
    pub fn latencies(&self, levels: &[LevelConfig]) -> Latencies {
        let ns = |kind: Kind| READ_NS[kind as usize];
        let mut latencies = Latencies { levels: [0.0; LEVELS_MAX], home: READ_NS[3] };
        for (level, latency) in levels.iter().zip(&mut latencies.levels) {
            *latency = self.configured_ns(level.name.as_str()).unwrap_or_else(|| ns(level.kind));
        }
        latencies.home = self.configured_ns(HOME).unwrap_or(latencies.home);
        latencies
    }

    /// The latency that was written for a level or for `home`.
    #[must_use]
    pub fn configured_ns(&self, name: &str) -> Option<f64> {
        self.latency.get(name).map(|time| time.0.0 as f64)
    }
}
