//! Metrics of live sizing: shares, predictions beside outcomes, what-ifs, decisions.
//!
//! How: gauges of the last period, from the state that it left.
//! Invariant: what a period did not show has no sample. Cost: no shard is asked.

use super::{Labels, Sample, Scrape, count, family, family_in, gauge};
use crate::sizing::{VolumeSizing, known};
use layby_cache::sizing::Prediction;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use std::fmt;

/// A ratio or seconds of a prediction.
type Figure = fn(&Prediction) -> f64;
const FIGURES: [(&str, &str, Figure); 2] = [
    ("miss_ratio", "Part of the blocks read that no level has", |of| of.miss_ratio),
    ("latency_mean_seconds", "Mean wait of a read", |of| of.latency_ns / 1e9),
];

impl Scrape {
    fn sized(&self) -> impl Iterator<Item = (Labels, &VolumeSizing)> {
        known(&self.view, &self.sizing).map(|(name, record, sizing)| {
            let labels = vec![("volume", name.to_string()), ("class", record.class.to_string())];
            (labels, sizing)
        })
    }

    /// Shares, predictions and what-ifs by volume; decisions by shard.
    pub(super) fn encode_sizing(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let block = f64::from(self.view.layout.block_size.bytes());
        let mut shares = Vec::new();
        for (labels, sizing) in self.sized() {
            let Some(sized) = sizing.sized else { continue };
            for (index, level) in self.level_names() {
                let labels = with(&labels, "level", level);
                shares.push(gauge(labels, f64::from(sized[index]) * block));
            }
        }
        family_in(Unit::Bytes, "layby_volume_share", "Share that live sizing gave")
            .write(encoder, shares)?;
        for (name, help, figure) in FIGURES {
            self.encode_figure(encoder, name, help, figure)?;
        }
        self.encode_decisions(encoder)
    }

    fn encode_figure(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        figure: Figure,
    ) -> fmt::Result {
        let (mut outcomes, mut what_ifs) = (Vec::new(), Vec::new());
        for (labels, sizing) in self.sized() {
            let outcome = &sizing.outcome;
            let measured =
                Prediction { miss_ratio: outcome.miss_ratio, latency_ns: outcome.latency_ns };
            let kinds = [
                ("predicted", sizing.predicted),
                ("measured", (outcome.reads > 0).then_some(measured)),
                ("next", Some(sizing.next)),
            ];
            for (kind, of) in kinds {
                let Some(of) = of else { continue };
                outcomes.push(gauge(with(&labels, "kind", kind), figure(&of)));
            }
            for (factor, of) in &sizing.sizes {
                what_ifs.push(gauge(with(&labels, "what", &format!("x{factor}")), figure(of)));
            }
            for (policy, of) in &sizing.policies {
                what_ifs.push(gauge(with(&labels, "what", policy.name()), figure(of)));
            }
        }
        family(&format!("layby_sizing_{name}"), help).write(encoder, outcomes)?;
        let help = format!("{help}, with other sizes and policies");
        family(&format!("layby_what_if_{name}"), &help).write(encoder, what_ifs)
    }

    fn encode_decisions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let shards = || self.sizing.shards.iter().enumerate();
        let label = |shard: usize| vec![("shard", shard.to_string())];
        let moves = shards().map(|(index, shard)| count(label(index), shard.moves)).collect();
        family("layby_sizing_moves", "Decisions to move shares").write(encoder, moves)?;
        let took: Vec<Sample> = shards()
            .map(|(index, shard)| gauge(label(index), shard.allocation.as_secs_f64()))
            .collect();
        family_in(Unit::Seconds, "layby_sizing_allocation", "Time of the last allocation")
            .write(encoder, took)
    }
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}
