//! How a volume's discards reach its home, as it is written.
//!
//! How: a mode and a delay, the same in the file, the catalog and the control API.
//! Invariant: what has passed [`DiscardWait::check`] is within the policy's bounds.
//! Cost: read at start and on a live change only.

use super::{Bandwidth, Place, Problem, Size, Time};
use layby_cache::discards::{DelayLimits, DiscardDelay, DiscardLimits, DiscardMode};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Whether and when discards reach the home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiscardChoice {
    /// Never: trims are ignored, and zeroings keep their room.
    Off,
    /// As they come.
    #[default]
    Immediate,
    /// After a delay, merged with their neighbours.
    Delayed,
}

impl DiscardChoice {
    /// Whether it is what a volume has when nothing is said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == DiscardChoice::default()
    }
}

impl fmt::Display for DiscardChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiscardChoice::Off => "off",
            DiscardChoice::Immediate => "immediate",
            DiscardChoice::Delayed => "delayed",
        })
    }
}

/// How long delayed discards wait, written `5s` or `adaptive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardWait {
    /// This long.
    Fixed(Time),
    /// Between 1 and 30 seconds, longer where more of what is freed is written again.
    Adaptive,
}

impl Default for DiscardWait {
    fn default() -> Self {
        DiscardWait::Fixed(Time(DelayLimits::DELAY_DEFAULT))
    }
}

impl DiscardWait {
    /// Whether it is what a volume has when nothing is said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == DiscardWait::default()
    }

    pub(crate) fn check(self, place: &Place) -> Result<(), Problem> {
        let bounds = DelayLimits::DELAY_MIN..=DelayLimits::DELAY_MAX;
        match self {
            DiscardWait::Fixed(Time(delay)) if !bounds.contains(&delay) => {
                let cause = format!("{delay} is outside {} to {}", bounds.start(), bounds.end());
                let hint = "write a time such as `5s`, or `adaptive`";
                Err(Problem::new(place.clone(), "discard_delay", cause, hint))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for DiscardWait {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "adaptive" => Ok(DiscardWait::Adaptive),
            time => time.parse().map(DiscardWait::Fixed),
        }
    }
}

impl fmt::Display for DiscardWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiscardWait::Fixed(time) => time.fmt(f),
            DiscardWait::Adaptive => f.write_str("adaptive"),
        }
    }
}

super::values::written_as_text!(DiscardWait, "5s");

/// Whether bytes per second that are discarded at most are within the policy's bounds.
pub(super) fn check_bandwidth(bandwidth: Option<Bandwidth>, place: &Place) -> Result<(), Problem> {
    let (least, most) = (DiscardLimits::BYTES_PER_SECOND_MIN, DiscardLimits::BYTES_PER_SECOND_MAX);
    match bandwidth {
        Some(Bandwidth(rate)) if !(least..=most).contains(&rate) => {
            let cause = format!("{} is outside {} to {}", Size(rate), Size(least), Size(most));
            let hint = "write a rate such as 500MiB/s";
            Err(Problem::new(place.clone(), "discard_bandwidth", cause, hint))
        }
        _ => Ok(()),
    }
}

/// The three in the words of the policy.
#[must_use]
pub fn discard_limits(
    choice: DiscardChoice,
    wait: DiscardWait,
    bandwidth: Option<Bandwidth>,
) -> DiscardLimits {
    let mode = match choice {
        DiscardChoice::Off => DiscardMode::Off,
        DiscardChoice::Immediate => DiscardMode::Immediate,
        DiscardChoice::Delayed => DiscardMode::Delayed,
    };
    let delay = match wait {
        DiscardWait::Fixed(Time(delay)) => DiscardDelay::Fixed(delay),
        DiscardWait::Adaptive => DiscardDelay::ADAPTIVE,
    };
    let bytes_per_second_max = bandwidth.map_or(0, |Bandwidth(rate)| rate);
    DiscardLimits { mode, delay, bytes_per_second_max, ..DiscardLimits::DEFAULT }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is written is read again, and bounds hold. Method: good texts and bad ones.
    #[test]
    fn waits_round_trip() {
        for text in ["5s", "adaptive", "250ms", "1h"] {
            let wait: DiscardWait = text.parse().expect("a good text");
            assert_eq!(wait.to_string(), text);
            wait.check(&Place::Volume("v".parse().expect("a name"))).expect("within bounds");
        }
        assert!("soon".parse::<DiscardWait>().is_err());
        for text in ["0s", "2h"] {
            let wait: DiscardWait = text.parse().expect("a time");
            wait.check(&Place::Volume("v".parse().expect("a name"))).expect_err("out of bounds");
        }
    }
}
