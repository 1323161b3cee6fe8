//! Live sizing in `layby status`: shares, what was predicted and what came, what-ifs.
//!
//! How: tables of the last period that the node shows; nothing is computed here but units.
//! Invariant: every figure has its unit; what is not known is a dash.

use crate::output::{Failure, Output, bytes, micros, table};
use layby_daemon::api::{
    PolicyAnswer, PredictionAnswer, SizeAnswer, SizingAnswer, VolumeSizingAnswer,
};
use std::collections::BTreeMap;

/// A ratio as percent with one digit.
fn ratio(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// `ssd 24.0 MiB`, or a dash.
fn parts(parts: &BTreeMap<String, u64>) -> String {
    let shown = parts.iter().filter(|(_, n)| **n > 0);
    super::list_text(shown.map(|(level, n)| format!("{level} {}", bytes(*n))))
}

/// What `layby status` says of sizing.
pub(super) fn sizing_lines(sizing: &SizingAnswer) -> Vec<String> {
    if !sizing.watch {
        return vec!["sizing: off, requests are not sampled".to_owned()];
    }
    let what = if sizing.enabled { "shares follow" } else { "advice only, shares stay" };
    let mut lines = vec![format!(
        "sizing: {what}; every {}, {} period(s) so far",
        sizing.period, sizing.periods
    )];
    for shard in &sizing.shards {
        let did = match (shard.is_move, sizing.enabled) {
            (true, true) => "moved",
            (true, false) => "would move",
            (false, _) => "stayed",
        };
        lines.push(format!(
            "shard {}: shares {did}: {}; waiting {:.3} s/s, proposed {:.3} s/s; {} change hands; \
             {} move(s) so far",
            shard.shard,
            shard.reason,
            shard.waiting_now,
            shard.waiting_proposed,
            bytes(shard.moved_bytes),
            shard.moves
        ));
    }
    if !sizing.volumes.is_empty() {
        lines.push(share_table(&sizing.volumes));
    }
    lines
}

fn share_table(volumes: &[VolumeSizingAnswer]) -> String {
    let headings = [
        "volume",
        "share",
        "held",
        "reads",
        "misses predicted",
        "measured",
        "mean predicted",
        "measured",
    ];
    let mut table = table(headings, 3);
    for volume in volumes {
        let predicted = |show: fn(&PredictionAnswer) -> String| {
            volume.predicted.as_ref().map_or_else(|| "-".to_owned(), show)
        };
        let is_quiet = volume.reads == 0;
        let missed = if is_quiet { "-".to_owned() } else { ratio(volume.measured.miss_ratio) };
        table.add_row([
            volume.volume.to_string(),
            parts(&volume.share_bytes),
            parts(&volume.held_bytes),
            volume.reads.to_string(),
            predicted(|of| ratio(of.miss_ratio)),
            missed,
            predicted(|of| micros(of.latency_us_mean)),
            micros(volume.measured.latency_us_mean),
        ]);
    }
    table.to_string()
}

/// `layby status --what-if`.
pub(super) fn what_if(sizing: &SizingAnswer, output: &mut Output) -> Result<(), Failure> {
    if !sizing.watch {
        return output.line("requests are not sampled: set watch = true in [sizing]");
    }
    output.line(&what_if_heading(sizing))?;
    let mut table = table(["volume", "class", "what if", "room", "hits", "mean read"], 3);
    for volume in &sizing.volumes {
        for (what, room, expected) in rows(&volume.sizes, &volume.policies) {
            table.add_row([
                volume.volume.to_string(),
                volume.class.to_string(),
                what,
                bytes(room),
                ratio(1.0 - expected.miss_ratio),
                micros(expected.latency_us_mean),
            ]);
        }
    }
    for class in &sizing.classes {
        for (what, room, expected) in rows(&class.sizes, &class.policies) {
            table.add_row([
                "(all)".to_owned(),
                class.class.to_string(),
                what,
                bytes(room),
                ratio(1.0 - expected.miss_ratio),
                micros(expected.latency_us_mean),
            ]);
        }
    }
    if table.row_count() == 0 {
        return output.line("nothing to predict: no volume was read enough in these periods");
    }
    output.line(&table.to_string())
}

/// What a reader must know of the table.
fn what_if_heading(sizing: &SizingAnswer) -> String {
    format!(
        "sampled over the last periods of {}; {} so far. Sizes: every level of the volume so many \
         times as large, under LRU. Policies: in the room of now, from a small sample. Mean reads \
         are the times of the devices alone: the node's own time comes on top, and what a read \
         waits for others. `layby status` has both for now, predicted and measured.",
        sizing.period, sizing.periods
    )
}

fn rows(sizes: &[SizeAnswer], policies: &[PolicyAnswer]) -> Vec<(String, u64, PredictionAnswer)> {
    let mut rows: Vec<_> = sizes
        .iter()
        .map(|size| {
            let what =
                if size.factor == 1.0 { "as now".into() } else { format!("x{}", size.factor) };
            (what, size.room_bytes, size.expected)
        })
        .collect();
    let room = sizes.iter().find(|size| size.factor == 1.0).map_or(0, |s| s.room_bytes);
    rows.extend(policies.iter().map(|of| {
        let policy = format!("{:?}", of.policy).to_lowercase();
        (policy, room, of.expected)
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_daemon::config::Policy;

    /// Of a node that has just begun.
    fn nothing() -> SizingAnswer {
        SizingAnswer {
            enabled: false,
            watch: true,
            period: layby_daemon::config::Time(layby_daemon::types::Nanos::from_secs(10)),
            objective: layby_daemon::config::Objective::default(),
            counts: layby_daemon::config::Counts::default(),
            gain_min: layby_daemon::config::Percent(5),
            periods: 0,
            shards: Vec::new(),
            volumes: Vec::new(),
            classes: Vec::new(),
        }
    }

    /// Goal: it is said that predicted times leave out the node's own. Method: the heading.
    #[test]
    fn the_times_are_said_to_be_of_devices() {
        let heading = what_if_heading(&nothing());
        assert!(heading.contains("times of the devices alone"), "{heading}");
        assert!(heading.contains("the node's own time comes on top"), "{heading}");
    }

    /// Goal: what-ifs name the present size, the others and the policies, with the room of each.
    /// Method: a volume with two sizes and a policy.
    #[test]
    fn what_ifs_are_rows() {
        let expected = PredictionAnswer { miss_ratio: 0.25, latency_us_mean: 1300.0 };
        let size = |factor, room_bytes| SizeAnswer { factor, room_bytes, expected };
        let volume = VolumeSizingAnswer {
            volume: "v".parse().expect("a name"),
            class: "normal".parse().expect("a name"),
            share_bytes: BTreeMap::from([("dram".into(), 0), ("ssd".into(), 1 << 20)]),
            held_bytes: BTreeMap::new(),
            reads: 0,
            predicted: None,
            measured: PredictionAnswer::default(),
            next: expected,
            sizes: vec![size(0.5, 512), size(1.0, 1024)],
            policies: vec![PolicyAnswer { policy: Policy::S3Fifo, expected }],
        };
        let shown: Vec<(String, u64)> = rows(&volume.sizes, &volume.policies)
            .into_iter()
            .map(|(what, room, _)| (what, room))
            .collect();
        let row = |what: &str, room| (what.to_owned(), room);
        assert_eq!(shown, [row("x0.5", 512), row("as now", 1024), row("s3fifo", 1024)]);
        assert_eq!(parts(&volume.share_bytes), "ssd 1.00 MiB");
        let text = share_table(&[volume]);
        assert!(text.contains("| v      | ssd 1.00 MiB | -    |     0 |"), "{text}");
    }
}
