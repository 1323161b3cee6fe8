//! How flash levels wear, as Prometheus reads it.

use super::{Sample, Scrape, Value, count, family, family_in, gauge};
use crate::api::{HintAnswer, WearAnswer};
use crate::config::Name;
use crate::health::DeviceHealth;
use layby_engine::control::LevelStats;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use std::fmt;

const DAY_SECONDS: f64 = 86_400.0;

impl Scrape {
    pub(super) fn encode_wear(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let answers: Vec<(&str, WearAnswer)> = self
            .level_names()
            .filter_map(|(index, name)| {
                let shards: Vec<_> =
                    self.snapshots.iter().filter_map(|s| s.levels.get(index)).collect();
                let health =
                    self.view.layout.levels.get(index).and_then(|l| self.healths.get(&l.name));
                Some((name, WearAnswer::of(&shards, health)?))
            })
            .collect();
        self.encode_segments(encoder)?;
        self.encode_hints(encoder)?;
        self.encode_health(encoder)?;
        let labels = |name: &str| vec![("level", name.to_owned())];
        let causes = answers.iter().flat_map(|(name, wear)| {
            let causes = [
                ("written", wear.bytes_written),
                ("promoted", wear.bytes_promoted),
                ("cleaned", wear.bytes_cleaned),
                ("descriptors", wear.bytes_descriptors),
                ("checkpoints", wear.bytes_checkpoints),
            ];
            causes.map(|(cause, bytes)| {
                count(vec![("level", (*name).to_owned()), ("cause", cause.to_owned())], bytes)
            })
        });
        family("layby_level_wear_bytes", "Bytes written to the level's flash, by cause")
            .write(encoder, causes.collect())?;
        let gauges = |of: &dyn Fn(&WearAnswer) -> Option<f64>| -> Vec<Sample> {
            let each = |(name, wear): &(&str, WearAnswer)| Some(gauge(labels(name), of(wear)?));
            answers.iter().filter_map(each).collect()
        };
        family_in(Unit::Bytes, "layby_level_wear_lifetime", "Bytes ever written to the level")
            .write(encoder, gauges(&|wear| Some(wear.bytes_lifetime as f64)))?;
        family("layby_level_wear_amplification", "Bytes written per byte that was asked for")
            .write(encoder, gauges(&|wear| wear.write_amplification))?;
        family_in(Unit::Bytes, "layby_level_wear_endurance", "Bytes that the level can be written")
            .write(encoder, gauges(&|wear| wear.endurance_bytes.map(|bytes| bytes as f64)))?;
        family_in(Unit::Bytes, "layby_level_wear_daily_budget", "Bytes that a day may take")
            .write(encoder, gauges(&|wear| wear.daily_budget_bytes.map(|bytes| bytes as f64)))?;
        family_in(Unit::Bytes, "layby_level_wear_budget_left", "Bytes that may be written now")
            .write(encoder, gauges(&|wear| wear.budget_left_bytes.map(|bytes| bytes as f64)))?;
        let left = gauges(&|wear| wear.days_left.map(|days| days * DAY_SECONDS));
        family_in(Unit::Seconds, "layby_level_wear_left", "Until the endurance is used up")
            .write(encoder, left)?;
        let refused = answers.iter().flat_map(|(name, wear)| {
            [("copies", wear.copies_refused), ("dirty", wear.dirty_passed_by)].map(
                |(what, blocks)| {
                    let labels = vec![("level", (*name).to_owned()), ("what", what.to_owned())];
                    Sample { labels, value: Value::Count(blocks) }
                },
            )
        });
        family("layby_level_wear_refused", "Blocks kept out of the level to spare its flash")
            .write(encoder, refused.collect())
    }

    /// What devices say of themselves.
    fn encode_health(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = |of: fn(&DeviceHealth) -> Option<f64>| -> Vec<Sample> {
            let each = |(name, health): (&Name, &DeviceHealth)| {
                let labels = vec![("level", name.to_string()), ("device", health.device.clone())];
                Some(gauge(labels, of(health)?))
            };
            self.healths.iter().filter_map(each).collect()
        };
        family("layby_level_smart_used_ratio", "Endurance used, by the device's own reckoning")
            .write(encoder, gauges(|h| h.percentage_used.map(|used| f64::from(used) / 100.0)))?;
        family("layby_level_smart_spare_ratio", "Spare blocks left, as the device says")
            .write(encoder, gauges(|h| h.spare_percent.map(|spare| f64::from(spare) / 100.0)))?;
        family_in(Unit::Bytes, "layby_level_smart_written", "Bytes written to the device, ever")
            .write(encoder, gauges(|h| h.bytes_written.map(|bytes| bytes as f64)))?;
        family("layby_level_smart_failing", "1 where the device warns of its failure")
            .write(encoder, gauges(|h| Some(f64::from(u8::from(h.is_failing)))))
    }

    fn encode_hints(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let answers: Vec<(&str, HintAnswer)> = self
            .level_names()
            .filter_map(|(index, name)| {
                let shards: Vec<_> =
                    self.snapshots.iter().filter_map(|s| s.levels.get(index)).collect();
                Some((name, HintAnswer::of(&shards)?))
            })
            .collect();
        let labels = |name: &str| vec![("level", name.to_owned())];
        let counts = |of: fn(&HintAnswer) -> u64| -> Vec<Sample> {
            answers.iter().map(|(name, hints)| count(labels(name), of(hints))).collect()
        };
        family("layby_level_hinted_writes", "Writes with a write-life hint or a write stream")
            .write(encoder, counts(|hints| hints.writes))?;
        family("layby_level_hint_changes", "System calls that set another write-life hint")
            .write(encoder, counts(|hints| hints.changes))
    }

    fn encode_segments(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.level_names().flat_map(|(index, name)| {
            let shards = self.snapshots.iter().filter_map(move |s| s.levels.get(index));
            let sum = |of: fn(&LevelStats) -> u64| shards.clone().map(of).sum::<u64>();
            let all = sum(|l| l.segments);
            let (retired, suspect) = (sum(|l| l.segments_retired), sum(|l| l.segments_suspect));
            let damaged = sum(|l| l.segments_damaged);
            let used = all.saturating_sub(retired + suspect + damaged);
            let counts = [("used", used), ("retired", retired), ("suspect", suspect)];
            let counts = counts.into_iter().chain([("damaged", damaged)]);
            counts.filter(move |_| all > 0).map(move |(state, count)| {
                let labels = vec![("level", name.to_owned()), ("state", state.to_owned())];
                gauge(labels, count as f64)
            })
        });
        family("layby_level_segments", "Segments of the level's log, by state")
            .write(encoder, samples.collect())
    }
}
