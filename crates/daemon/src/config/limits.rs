//! How fast a volume or a class may go, as it is written.
//!
//! How: four optional numbers, the same in the file, the catalog and the control API; in a change
//! each replaces its own, and zero takes it away. Where there is nothing to take away, in the file
//! and for a new volume, zero is refused: whoever writes it may mean that nothing may pass.
//! Invariant: what has passed [`LimitsConfig::check`] can be turned into [`Limits`] for any number
//! of shards.
//! Cost: read at start and on a live change only.

use super::{Bandwidth, Place, Problem, Size};
use layby_cache::throttle::{Limits, Rate};
use layby_types::format_bytes;
use serde::{Deserialize, Serialize};

/// Requests in a second at least.
pub const IOPS_MIN: u64 = 1;
/// Requests in a second at most.
pub const IOPS_MAX: u64 = 1_000_000_000;
/// Requests of a burst at most.
pub const IOPS_BURST_MAX: u64 = 1_000_000_000;
/// Bytes in a second at least; the largest request then takes some two hours.
pub const BANDWIDTH_MIN: u64 = 4 << 10;
/// Bytes in a second at most.
pub const BANDWIDTH_MAX: u64 = 1 << 40;
/// Bytes of a burst at most.
pub const BANDWIDTH_BURST_MAX: u64 = 16 << 40;
/// The part of a second's worth that a burst is when nothing is said.
pub const BURST_PARTS_DEFAULT: u64 = 10;

/// How fast a volume, or all volumes of a class together, may go; what is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Requests in a second; in a change, 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops_max: Option<u64>,
    /// Requests that may come at once after calm; a tenth of a second's when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops_burst: Option<u64>,
    /// Bytes in a second; in a change, 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_max: Option<Bandwidth>,
    /// Bytes that may come at once after calm; a tenth of a second's when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<Size>,
}

impl LimitsConfig {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == LimitsConfig::default()
    }

    /// These limits with a change laid over them. With a limit goes its burst.
    #[must_use]
    pub fn changed(self, change: LimitsConfig) -> LimitsConfig {
        let number = |old: Option<u64>, new: Option<u64>| new.or(old).filter(|value| *value > 0);
        let burst_goes = |new: Option<u64>| new == Some(0);
        let iops_gone = burst_goes(change.iops_max) && change.iops_burst.is_none();
        let bandwidth_gone =
            burst_goes(change.bandwidth_max.map(|rate| rate.0)) && change.bandwidth_burst.is_none();
        LimitsConfig {
            iops_max: number(self.iops_max, change.iops_max),
            iops_burst: number(self.iops_burst, change.iops_burst).filter(|_| !iops_gone),
            bandwidth_max: number(
                self.bandwidth_max.map(|rate| rate.0),
                change.bandwidth_max.map(|rate| rate.0),
            )
            .map(Bandwidth),
            bandwidth_burst: number(
                self.bandwidth_burst.map(|size| size.0),
                change.bandwidth_burst.map(|size| size.0),
            )
            .filter(|_| !bandwidth_gone)
            .map(Size),
        }
    }

    /// These limits with those of the file laid over them, zeros included, which [`Self::check`]
    /// refuses.
    #[must_use]
    pub(crate) fn written(self, file: LimitsConfig) -> LimitsConfig {
        LimitsConfig {
            iops_max: file.iops_max.or(self.iops_max),
            iops_burst: file.iops_burst.or(self.iops_burst),
            bandwidth_max: file.bandwidth_max.or(self.bandwidth_max),
            bandwidth_burst: file.bandwidth_burst.or(self.bandwidth_burst),
        }
    }

    /// The first limit of zero.
    fn zero(&self) -> Option<&'static str> {
        let limits = [
            ("iops_max", self.iops_max),
            ("iops_burst", self.iops_burst),
            ("bandwidth_max", self.bandwidth_max.map(|rate| rate.0)),
            ("bandwidth_burst", self.bandwidth_burst.map(|size| size.0)),
        ];
        limits.into_iter().find(|(_, value)| *value == Some(0)).map(|(key, _)| key)
    }

    pub(crate) fn check(&self, place: &Place) -> Result<(), Problem> {
        let problem =
            |cause: String, hint: &str| Err(Problem::new(place.clone(), "limits", cause, hint));
        let outside = |value: Option<u64>, least: u64, most: u64| {
            value.filter(|value| !(least..=most).contains(value))
        };
        if let Some(key) = self.zero() {
            let hint = match key.ends_with("_max") {
                true => "leave it out for no limit",
                false => "leave it out for a tenth of a second's",
            };
            return problem(format!("{key} of 0 would let nothing through"), hint);
        }
        let rate = self.bandwidth_max.map(|rate| rate.0);
        let burst = self.bandwidth_burst.map(|size| size.0);
        for (key, value, most) in
            [("iops_max", self.iops_max, IOPS_MAX), ("iops_burst", self.iops_burst, IOPS_BURST_MAX)]
        {
            if let Some(value) = outside(value, IOPS_MIN, most) {
                let cause = format!("{key} of {value} is outside {IOPS_MIN} to {most}");
                return problem(cause, "write a number of requests such as 5000");
            }
        }
        for (key, value, least, most) in [
            ("bandwidth_max", rate, BANDWIDTH_MIN, BANDWIDTH_MAX),
            ("bandwidth_burst", burst, 1, BANDWIDTH_BURST_MAX),
        ] {
            if let Some(value) = outside(value, least, most) {
                let bounds = (format_bytes(least), format_bytes(most));
                let value = format_bytes(value);
                let cause = format!("{key} of {value} is outside {} to {}", bounds.0, bounds.1);
                return problem(cause, "write a size such as 100MiB");
            }
        }
        if self.iops_burst.is_some() && self.iops_max.is_none() {
            return problem("iops_burst is given without iops_max".into(), "give both, or neither");
        }
        if self.bandwidth_burst.is_some() && self.bandwidth_max.is_none() {
            let cause = "bandwidth_burst is given without bandwidth_max".to_owned();
            return problem(cause, "give both, or neither");
        }
        Ok(())
    }

    /// Requests that may come at once, where they are limited.
    #[must_use]
    pub fn iops_burst_or_default(&self) -> Option<u64> {
        self.iops_max.map(|max| self.iops_burst.unwrap_or(burst_default(max)))
    }

    /// Bytes that may come at once, where they are limited.
    #[must_use]
    pub fn bandwidth_burst_or_default(&self) -> Option<u64> {
        let burst = self.bandwidth_burst.map(|size| size.0);
        self.bandwidth_max.map(|max| burst.unwrap_or(burst_default(max.0)))
    }

    /// The limits in the words of the policy.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let rate = |max: Option<u64>, burst: Option<u64>| Some(Rate::per_second(max?, burst?));
        let bandwidth = self.bandwidth_max.map(|size| size.0);
        Limits {
            requests: rate(self.iops_max, self.iops_burst_or_default()),
            bytes: rate(bandwidth, self.bandwidth_burst_or_default()),
        }
    }
}

const fn burst_default(max: u64) -> u64 {
    if max < BURST_PARTS_DEFAULT { 1 } else { max / BURST_PARTS_DEFAULT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn place() -> Place {
        Place::Volume("v".parse().expect("a name"))
    }

    /// Goal: a change replaces what it names, zero takes away, and a burst goes with its limit.
    /// Method: one change after another.
    #[test]
    fn changes_are_laid_over() {
        let none = LimitsConfig::default();
        let first = LimitsConfig {
            iops_max: Some(500),
            iops_burst: Some(7),
            bandwidth_max: Some(Bandwidth(1 << 20)),
            ..none
        };
        let limits = none.changed(first);
        assert_eq!(limits, first);
        let limits = limits.changed(LimitsConfig { iops_max: Some(600), ..none });
        assert_eq!((limits.iops_max, limits.iops_burst), (Some(600), Some(7)));
        let limits = limits.changed(LimitsConfig { iops_max: Some(0), ..none });
        assert_eq!((limits.iops_max, limits.iops_burst), (None, None));
        assert_eq!(limits.bandwidth_burst_or_default(), Some((1 << 20) / 10));
        assert!(
            limits.changed(LimitsConfig { bandwidth_max: Some(Bandwidth(0)), ..none }).is_none()
        );
    }

    /// Goal: a limit of zero is refused where there is none to take away, with a hint that says how
    /// to have none. Method: each of them zero, in a volume and in classes of the file.
    #[test]
    fn a_limit_of_zero_is_refused() {
        for (limit, hint) in [
            ("iops_max = 0", "no limit"),
            ("bandwidth_max = \"0B\"", "no limit"),
            ("iops_max = 5, iops_burst = 0", "tenth"),
            ("bandwidth_max = \"1MiB\", bandwidth_burst = \"0B\"", "tenth"),
        ] {
            for table in
                ["[class.bulk]\n", "[class.own]\nrank = 7\n", "[volume.a]\nsize = \"1MiB\"\n"]
            {
                let text = format!("{table}limits = {{ {limit} }}\n");
                let refused = Config::parse(None, &text, &Overrides::default());
                let report = refused.expect_err("it lets nothing through").to_string();
                assert!(report.contains("of 0 would let nothing through"), "{text}: {report}");
                assert!(report.contains("leave it out") && report.contains(hint), "{report}");
            }
        }
    }

    /// Goal: bounds are kept, and a burst needs its limit. Method: one value beyond each.
    #[test]
    fn bad_limits_are_refused() {
        let none = LimitsConfig::default();
        for bad in [
            LimitsConfig { iops_max: Some(IOPS_MAX + 1), ..none },
            LimitsConfig { iops_burst: Some(5), ..none },
            LimitsConfig { iops_max: Some(5), iops_burst: Some(IOPS_BURST_MAX + 1), ..none },
            LimitsConfig { bandwidth_max: Some(Bandwidth(BANDWIDTH_MIN - 1)), ..none },
            LimitsConfig { bandwidth_max: Some(Bandwidth(BANDWIDTH_MAX + 1)), ..none },
            LimitsConfig { bandwidth_burst: Some(Size(5)), ..none },
        ] {
            let problem = bad.check(&place()).expect_err("out of bounds");
            assert!(!problem.hint.is_empty(), "{problem:?}");
        }
        let edge = LimitsConfig {
            iops_max: Some(IOPS_MIN),
            iops_burst: Some(IOPS_BURST_MAX),
            bandwidth_max: Some(Bandwidth(BANDWIDTH_MAX)),
            bandwidth_burst: Some(Size(BANDWIDTH_BURST_MAX)),
        };
        assert_eq!(edge.check(&place()), Ok(()));
        assert!(!edge.limits().part(1, 64).is_none());
    }
}
