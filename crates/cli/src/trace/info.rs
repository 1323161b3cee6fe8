//! `layby trace info`: what a trace holds.

use super::{InfoArguments, note_open_end, source, unread};
use crate::output::{Failure, Output, bytes, percent, table};
use layby_trace::{Counts, Reader, Summary, Trace, Unit};
use serde::Serialize;

/// Volumes that the table shows; `--json` has all.
const VOLUMES_SHOWN_MAX: usize = 20;

/// The answer for scripts.
#[derive(Debug, Serialize)]
struct InfoAnswer {
    format: &'static str,
    /// `bytes` or `objects`: what offsets are.
    unit: &'static str,
    duration_ns: u64,
    footprint_is_exact: bool,
    block_bytes: u32,
    total: CountsAnswer,
    volumes: Vec<VolumeAnswer>,
    /// Requests left out, by reason.
    skipped: Vec<SkippedAnswer>,
}

#[derive(Debug, Serialize)]
struct CountsAnswer {
    requests: u64,
    reads: u64,
    writes: u64,
    trims: u64,
    flushes: u64,
    bytes_read: u64,
    bytes_written: u64,
    blocks: u64,
    footprint_bytes: u64,
}

#[derive(Debug, Serialize)]
struct VolumeAnswer {
    volume: u32,
    name: Option<String>,
    #[serde(flatten)]
    counts: CountsAnswer,
}

#[derive(Debug, Serialize)]
struct SkippedAnswer {
    reason: &'static str,
    requests: u64,
}

impl From<Counts> for CountsAnswer {
    fn from(counts: Counts) -> Self {
        CountsAnswer {
            requests: counts.requests(),
            reads: counts.reads,
            writes: counts.writes,
            trims: counts.trims,
            flushes: counts.flushes,
            bytes_read: counts.bytes_read,
            bytes_written: counts.bytes_written,
            blocks: counts.blocks,
            footprint_bytes: counts.footprint_bytes,
        }
    }
}

pub(super) fn run(arguments: &InfoArguments, output: &mut Output) -> Result<(), Failure> {
    let (mut trace, bar) = source(&arguments.source, output)?;
    let mut summary = Summary::new(trace.unit(), arguments.block.block_size);
    let mut batch = Vec::new();
    while trace.fill(&mut batch).map_err(|cause| unread(&arguments.source, &cause))? > 0 {
        summary.add(&batch);
        bar.set_position(trace.position());
    }
    bar.finish_and_clear();
    note_open_end(&trace);
    let answer = answer(&trace, &summary, arguments.block.block_size.bytes());
    if arguments.json { output.json(&answer) } else { show(&answer, output) }
}

fn answer(trace: &Trace, summary: &Summary, block_bytes: u32) -> InfoAnswer {
    let names = trace.volumes();
    let volume = |(id, counts): (layby_daemon::types::VolumeId, Counts)| VolumeAnswer {
        volume: id.0,
        name: names.get(id.0 as usize).cloned(),
        counts: counts.into(),
    };
    let skipped = trace.skipped();
    InfoAnswer {
        format: trace.format().name(),
        unit: match trace.unit() {
            Unit::Bytes => "bytes",
            Unit::Objects => "objects",
        },
        duration_ns: summary.duration().0,
        footprint_is_exact: summary.footprint_is_exact(),
        block_bytes,
        total: summary.total().into(),
        volumes: summary.volumes().map(volume).collect(),
        skipped: skipped
            .iter()
            .map(|(reason, requests)| SkippedAnswer { reason: reason.name(), requests })
            .collect(),
    }
}

fn show(answer: &InfoAnswer, output: &mut Output) -> Result<(), Failure> {
    let total = &answer.total;
    let share = |part: u64| format!("{part} ({})", percent(part, total.requests));
    let mut rows = table(["trace", answer.format], 2);
    let mut row = |what: &str, value: String| {
        rows.add_row([what.to_owned(), value]);
    };
    row("requests", total.requests.to_string());
    row("reads", share(total.reads));
    row("writes", share(total.writes));
    row("trims", total.trims.to_string());
    row("flushes", total.flushes.to_string());
    row("bytes read", bytes(total.bytes_read));
    row("bytes written", bytes(total.bytes_written));
    row("footprint", footprint(answer));
    row("duration", format!("{:.3} s", answer.duration_ns as f64 / 1e9));
    row("volumes", answer.volumes.len().to_string());
    for skipped in &answer.skipped {
        row(&format!("left out: {}", skipped.reason), skipped.requests.to_string());
    }
    output.line(&rows.to_string())?;
    if answer.volumes.len() > 1 { volumes(answer, output) } else { Ok(()) }
}

fn footprint(answer: &InfoAnswer) -> String {
    let total = &answer.total;
    let what = match answer.unit {
        "objects" => "objects".to_owned(),
        _ => format!("blocks of {}", bytes(u64::from(answer.block_bytes))),
    };
    let bound = if answer.footprint_is_exact { "" } else { "more than " };
    format!("{bound}{} ({bound}{} {what})", bytes(total.footprint_bytes), total.blocks)
}

fn volumes(answer: &InfoAnswer, output: &mut Output) -> Result<(), Failure> {
    let headings =
        ["volume", "name", "requests", "reads", "writes", "read", "written", "footprint"];
    let mut rows = table(headings, 2);
    let mut largest: Vec<&VolumeAnswer> = answer.volumes.iter().collect();
    largest.sort_by_key(|volume| std::cmp::Reverse(volume.counts.requests));
    for VolumeAnswer { volume, name, counts } in largest.iter().take(VOLUMES_SHOWN_MAX) {
        rows.add_row([
            volume.to_string(),
            name.clone().unwrap_or_else(|| "-".to_owned()),
            counts.requests.to_string(),
            counts.reads.to_string(),
            counts.writes.to_string(),
            bytes(counts.bytes_read),
            bytes(counts.bytes_written),
            bytes(counts.footprint_bytes),
        ]);
    }
    output.line(&rows.to_string())?;
    match largest.len().saturating_sub(VOLUMES_SHOWN_MAX) {
        0 => Ok(()),
        more => output.line(&format!("and {more} volumes with fewer requests; --json has all")),
    }
}
