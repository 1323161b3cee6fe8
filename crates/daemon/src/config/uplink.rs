//! `[uplink]`: how fast the node uses its way up, by the time of day; and a class's part of it.
//!
//! How: the same words in the file, the catalog and the control API. Times of day are the
//! machine's local ones.
//! Invariant: what has passed [`UplinkConfig::check`] is a [`Timetable`].
//! Cost: read at start and on a live change only.

use super::cloud::{DIRTY_AGE_MAX, DIRTY_AGE_MIN};
use super::{Bandwidth, Place, Problem, Time};
use layby_cloud::uplink::{
    Cap, CapWindow, ClassPlan, ClassWaits, Share, TimeOfDay, Timetable, TimetableError,
    UplinkLimits,
};
use layby_types::Nanos;
use serde::{Deserialize, Serialize};

/// The way up. In a change, what is given replaces its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UplinkConfig {
    /// Bytes in a second at most, outside of all windows; 0 is no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<Bandwidth>,
    /// Parts of the day with a cap of their own; they do not overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<UplinkWindow>>,
    /// Segments under way at once; a restart changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u16>,
}

/// A part of every day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UplinkWindow {
    /// When it begins, as `07:30`, in local time.
    pub from: String,
    /// When it ends; before `from` it is the next day's.
    pub until: String,
    /// Bytes in a second at most; 0 is no cap.
    pub cap: Bandwidth,
}

fn cap(rate: Bandwidth) -> Cap {
    if rate.0 == 0 { Cap::None } else { Cap::BytesPerSecond(rate.0) }
}

fn time(text: &str) -> Option<TimeOfDay> {
    let (hour, minute) = text.split_once(':')?;
    TimeOfDay::new(hour.parse().ok()?, minute.parse().ok()?)
}

impl UplinkConfig {
    /// This with a change laid over it.
    #[must_use]
    pub fn changed(self, change: UplinkConfig) -> UplinkConfig {
        UplinkConfig {
            cap: change.cap.or(self.cap),
            windows: change.windows.or(self.windows),
            in_flight: change.in_flight.or(self.in_flight),
        }
    }

    /// The caps by the time of day.
    ///
    /// # Errors
    /// The key and what is wrong with it.
    pub fn check(&self) -> Result<Timetable, Problem> {
        let refused = |key, cause: String, hint: &str| {
            Problem::new(Place::Uplink, key, cause, hint.to_owned())
        };
        let limits = UplinkLimits::MIN.in_flight_max..=UplinkLimits::MAX.in_flight_max;
        if let Some(found) = self.in_flight.filter(|count| !limits.contains(count)) {
            let cause = format!("{found} is outside {limits:?}");
            return Err(refused("in_flight", cause, "write a number such as 8"));
        }
        let read = |text: &str| {
            time(text).ok_or_else(|| {
                refused("windows", format!("`{text}` is no time of day"), "write it as 07:30")
            })
        };
        let windows = self.windows.iter().flatten().map(|window| {
            let (from, until) = (read(&window.from)?, read(&window.until)?);
            if from == until {
                let cause = format!("a window from {0} until {0} is empty", window.from);
                return Err(refused("windows", cause, "leave it out, or set `cap` for all day"));
            }
            Ok(CapWindow { from, until, cap: cap(window.cap) })
        });
        let windows = windows.collect::<Result<Vec<_>, Problem>>()?;
        Timetable::new(&windows, self.cap.map_or(Cap::None, cap)).map_err(|error| {
            let (key, hint) = match error {
                TimetableError::OutOfRange(_) => {
                    ("cap", "write sizes per second such as 10MiB, or 0")
                }
                TimetableError::Overlap(_) => ("windows", "let one end where the other begins"),
                TimetableError::TooMany(_) => ("windows", "leave some out"),
            };
            refused(key, error.to_string(), hint)
        })
    }

    /// Bounds of the way up.
    #[must_use]
    pub fn limits(&self) -> UplinkLimits {
        let default = UplinkLimits::DEFAULT;
        UplinkLimits { in_flight_max: self.in_flight.unwrap_or(default.in_flight_max), ..default }
    }
}

/// A class's part of the way up. In a change, what is given replaces its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassUplink {
    /// It goes before all classes that do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<bool>,
    /// Its share of what those that go first leave, beside the other classes' weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// It waits for good periods of the link, as far as its volumes' bounds of age allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patient: Option<bool>,
    /// How old its volumes' writes get before they go up; 0 is `dirty_age` of `[cloud]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_age: Option<Time>,
    /// A call that has to wait for the store longer than this is refused; 0 waits for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_within: Option<Time>,
    /// A read that the store answers later than most is asked for a second time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge: Option<bool>,
}

/// The least time to answer in; a store on the same machine takes a few milliseconds.
const ANSWER_WITHIN_MIN: Nanos = Nanos::from_millis(10);
/// The most, beyond which a client waits for ever as well.
const ANSWER_WITHIN_MAX: Nanos = Nanos::from_secs(24 * 3600);

impl ClassUplink {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == ClassUplink::default()
    }

    /// This with a change laid over it.
    #[must_use]
    pub fn changed(self, change: ClassUplink) -> ClassUplink {
        ClassUplink {
            first: change.first.or(self.first),
            weight: change.weight.or(self.weight),
            patient: change.patient.or(self.patient),
            dirty_age: change.dirty_age.or(self.dirty_age),
            answer_within: change.answer_within.or(self.answer_within),
            hedge: change.hedge.or(self.hedge),
        }
    }

    pub(crate) fn check(&self, place: &Place) -> Result<(), Problem> {
        let times = ANSWER_WITHIN_MIN..=ANSWER_WITHIN_MAX;
        if let Some(time) = self.answer_within.filter(|time| time.0 != Nanos::ZERO)
            && !times.contains(&time.0)
        {
            let (least, most) = (Time(ANSWER_WITHIN_MIN), Time(ANSWER_WITHIN_MAX));
            let cause = format!("answer_within = {time} is outside {least} to {most}");
            let hint = "write a time such as 5s, or 0s to wait for as long as it takes";
            return Err(Problem::new(place.clone(), "uplink", cause, hint));
        }
        if let Some(age) = self.dirty_age.filter(|age| age.0 != Nanos::ZERO)
            && !(DIRTY_AGE_MIN..=DIRTY_AGE_MAX).contains(&age.0)
        {
            let (least, most) = (Time(DIRTY_AGE_MIN), Time(DIRTY_AGE_MAX));
            let cause = format!("dirty_age = {age} is outside {least} to {most}");
            let hint = "write a time such as 5s, or 0s for the node's";
            return Err(Problem::new(place.clone(), "uplink", cause, hint));
        }
        let bounds = Share::WEIGHT_MIN..=Share::WEIGHT_MAX;
        match self.weight.filter(|weight| !bounds.contains(weight)) {
            Some(weight) => {
                let cause = format!("a weight of {weight} is outside {bounds:?}");
                Err(Problem::new(place.clone(), "uplink", cause, "write a number such as 100"))
            }
            None => Ok(()),
        }
    }

    /// In the words of the policy.
    #[must_use]
    pub fn plan(&self) -> ClassPlan {
        let weight = Share::Weight(self.weight.unwrap_or(Share::WEIGHT_DEFAULT));
        let share = if self.first == Some(true) { Share::Strict } else { weight };
        ClassPlan { share, is_patient: self.patient == Some(true) }
    }

    /// What its clients do about a late store.
    #[must_use]
    pub fn waits(&self) -> ClassWaits {
        let answer_within = self.answer_within.map(|time| time.0).filter(|time| time.0 > 0);
        ClassWaits { answer_within, hedges: self.hedge == Some(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> UplinkConfig {
        toml::from_str(text).expect("a table")
    }

    /// Goal: windows and caps become a timetable, and a change replaces what it names. Method: one
    /// table, asked at three times of day, and changed.
    #[test]
    fn windows_become_a_timetable() {
        let text = "cap = \"8MiB\"\nwindows = [{ from = \"22:00\", until = \"6:30\", cap = 0 }]";
        let config = parse(text);
        let at = |config: &UplinkConfig, hour| {
            let table = config.check().expect("a good table");
            table.at(TimeOfDay::new(hour, 0).expect("a time"))
        };
        assert_eq!(at(&config, 12), Cap::BytesPerSecond(8 << 20));
        assert_eq!([at(&config, 23), at(&config, 3)], [Cap::None; 2]);
        let config =
            config.changed(UplinkConfig { cap: Some(Bandwidth(0)), ..UplinkConfig::default() });
        assert_eq!([at(&config, 12), at(&config, 23)], [Cap::None; 2]);
    }

    /// Goal: what cannot be a timetable is refused with its key. Method: one of each.
    #[test]
    fn bad_tables_are_refused() {
        for (bad, key) in [
            ("cap = 5", "cap"),
            ("in_flight = 0", "in_flight"),
            ("windows = [{ from = \"7:00\", until = \"07:00\", cap = 0 }]", "windows"),
            ("windows = [{ from = \"25:00\", until = \"6:30\", cap = 0 }]", "windows"),
            (
                "windows = [{ from = \"1:00\", until = \"6:30\", cap = 0 }, \
                 { from = \"6:00\", until = \"7:30\", cap = 0 }]",
                "windows",
            ),
        ] {
            let problem = parse(bad).check().expect_err(bad);
            assert_eq!(problem.key, key, "{problem:?}");
        }
        let heavy = ClassUplink { weight: Some(1001), ..ClassUplink::default() };
        assert!(heavy.check(&Place::Uplink).is_err());
        let lazy = ClassUplink { dirty_age: Some(Time(Nanos(1))), ..ClassUplink::default() };
        assert!(lazy.check(&Place::Uplink).is_err());
        for (text, is_good) in [("5s", true), ("0s", true), ("1ms", false), ("25h", false)] {
            let time = Some(text.parse().expect("a time"));
            let hasty = ClassUplink { answer_within: time, ..ClassUplink::default() };
            assert_eq!(hasty.check(&Place::Uplink).is_ok(), is_good, "{text}");
        }
    }
}
