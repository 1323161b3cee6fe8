//! How flash levels wear, as Prometheus reads it.

use super::{Sample, Scrape, Value, count, family, family_in, gauge};
use crate::api::WearAnswer;
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
                Some((name, WearAnswer::of(&shards)?))
            })
            .collect();
        self.encode_segments(encoder)?;
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

    fn encode_segments(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.level_names().flat_map(|(index, name)| {
            let shards = self.snapshots.iter().filter_map(move |s| s.levels.get(index));
            let sum = |of: fn(&LevelStats) -> u64| shards.clone().map(of).sum::<u64>();
            let all = sum(|l| l.segments);
            let (retired, suspect) = (sum(|l| l.segments_retired), sum(|l| l.segments_suspect));
            let counts = [("used", all - retired - suspect), ("retired", retired)];
            let counts = counts.into_iter().chain([("suspect", suspect)]);
            counts.filter(move |_| all > 0).map(move |(state, count)| {
                let labels = vec![("level", name.to_owned()), ("state", state.to_owned())];
                gauge(labels, count as f64)
            })
        });
        family("layby_level_segments", "Segments of the level's log, by state")
            .write(encoder, samples.collect())
    }
}
