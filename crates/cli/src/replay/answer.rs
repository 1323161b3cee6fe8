//! What `layby replay` answers: a table for people, JSON for scripts.

use super::ReplayArguments;
use crate::output::{Failure, Output, table};
use layby_sim::policy::AdmissionKind;
use layby_sim::single::{Counts, References};
use layby_trace::{Reader, Trace, Unit};
use serde::Serialize;
use std::time::Duration;

/// A policy at a size, after the trace.
pub(super) struct Outcome {
    pub(super) policy: &'static str,
    pub(super) admission: AdmissionKind,
    pub(super) size: String,
    pub(super) slots: u32,
    pub(super) counts: Counts,
    pub(super) memory_bytes: Option<usize>,
    /// In the policy alone.
    pub(super) time: Option<Duration>,
}

/// The answer for scripts.
#[derive(Debug, Serialize)]
pub(super) struct ReplayAnswer {
    format: &'static str,
    /// `bytes` or `objects`: what offsets are.
    unit: &'static str,
    block_bytes: u32,
    /// Distinct blocks; null unless a size asked for them.
    footprint_blocks: Option<u32>,
    admission: &'static str,
    seed: u64,
    /// References to blocks.
    requests: u64,
    reads: u64,
    writes: u64,
    /// Trims and flushes.
    passed_over: u64,
    /// Records left out by `--lenient`.
    skipped: u64,
    /// From beginning to end, reading included.
    seconds: f64,
    requests_per_second: f64,
    results: Vec<ResultAnswer>,
}

#[derive(Debug, Serialize)]
struct ResultAnswer {
    policy: &'static str,
    /// `all` for belady, whatever was asked for.
    admission: &'static str,
    cache_size: String,
    cache_blocks: u32,
    hits: u64,
    read_hits: u64,
    write_hits: u64,
    miss_ratio: f64,
    evictions: u64,
    insertions: u64,
    /// Blocks written into the level: insertions, and writes that hit.
    block_writes: u64,
    memory_bytes: Option<usize>,
    memory_bytes_per_block: Option<f64>,
    /// In the policy alone, without reading.
    seconds: Option<f64>,
    requests_per_second: Option<f64>,
}

impl From<Outcome> for ResultAnswer {
    fn from(outcome: Outcome) -> Self {
        let Outcome { policy, admission, size, slots, counts, memory_bytes, time } = outcome;
        let seconds = time.map(|time| time.as_secs_f64());
        ResultAnswer {
            policy,
            admission: admission.name(),
            cache_size: size,
            cache_blocks: slots,
            hits: counts.hits_all(),
            read_hits: counts.hits[0],
            write_hits: counts.hits[1],
            miss_ratio: counts.miss_ratio().unwrap_or(1.0),
            evictions: counts.evictions,
            insertions: counts.insertions,
            block_writes: counts.block_writes(),
            memory_bytes,
            memory_bytes_per_block: memory_bytes.map(|bytes| bytes as f64 / f64::from(slots)),
            seconds,
            requests_per_second: seconds.map(|time| per_second(counts.requests_all(), time)),
        }
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

impl ReplayAnswer {
    /// `None` where there was nothing to replay.
    pub(super) fn new(
        arguments: &ReplayArguments,
        trace: &Trace,
        references: &References,
        footprint_blocks: Option<u32>,
        outcomes: Vec<Outcome>,
    ) -> Option<Self> {
        let [reads, writes] = outcomes.first()?.counts.requests;
        (reads + writes > 0).then(|| ReplayAnswer {
            format: trace.format().name(),
            unit: if trace.unit() == Unit::Bytes { "bytes" } else { "objects" },
            block_bytes: arguments.block.block_size.bytes(),
            footprint_blocks,
            admission: arguments.admission.name(),
            seed: arguments.seed,
            requests: reads + writes,
            reads,
            writes,
            passed_over: references.passed_over(),
            skipped: trace.skipped().total(),
            seconds: 0.0,
            requests_per_second: 0.0,
            results: outcomes.into_iter().map(ResultAnswer::from).collect(),
        })
    }

    /// The whole took `time`.
    pub(super) fn took(mut self, time: Duration) -> Self {
        self.seconds = time.as_secs_f64();
        self.requests_per_second = per_second(self.requests, self.seconds);
        self
    }

    /// Prints a table.
    pub(super) fn show(&self, output: &mut Output) -> Result<(), Failure> {
        let headings = [
            "policy",
            "size",
            "blocks",
            "hits",
            "miss ratio",
            "evictions",
            "block writes",
            "memory/block",
            "requests/s",
        ];
        let mut rows = table(headings, 1);
        for result in &self.results {
            let (memory, speed) = (result.memory_bytes_per_block, result.requests_per_second);
            rows.add_row([
                result.policy.to_owned(),
                result.cache_size.clone(),
                result.cache_blocks.to_string(),
                result.hits.to_string(),
                format!("{:.4}", result.miss_ratio),
                result.evictions.to_string(),
                result.block_writes.to_string(),
                memory.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.0} B")),
                speed.map_or_else(|| "-".to_owned(), |speed| format!("{:.1} M", speed / 1e6)),
            ]);
        }
        output.line(&rows.to_string())?;
        for line in self.notes() {
            output.line(&line)?;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let what = if self.unit == "objects" {
            "objects, one block each".to_owned()
        } else {
            format!("blocks of {} bytes", self.block_bytes)
        };
        let (requests, reads, writes) = (self.requests, self.reads, self.writes);
        let mut notes =
            vec![format!("{requests} requests to {what}: {reads} reads, {writes} writes")];
        if self.admission != AdmissionKind::All.name() {
            notes.push(format!("admission {}, which writes pass", self.admission));
            let all = self.results.iter().find(|result| result.admission != self.admission);
            notes.extend(all.map(|one| format!("{} admits every missed block", one.policy)));
        }
        if let Some(blocks) = self.footprint_blocks {
            notes.push(format!("footprint {blocks} blocks"));
        }
        if self.passed_over > 0 {
            notes.push(format!("{} trims and flushes were passed over", self.passed_over));
        }
        if self.skipped > 0 {
            notes.push(format!("{} records were wrong and left out", self.skipped));
        }
        let (seconds, speed) = (self.seconds, self.requests_per_second / 1e6);
        notes.push(format!("{seconds:.2} s in all, reading included: {speed:.1} M requests/s"));
        notes
    }
}
