//! `layby record`: what clients ask of a running node, as a trace.
//!
//! How: the node notes requests in memory; this program takes them away ten times a second and
//! writes the trace, so that a slow disk costs requests of the trace and never of a client.
//! Invariant: the trace is there whole or not at all; what is missing from it is counted, or it is
//! said from when on it is missing.
//! Not for: contents of blocks, which no trace holds.

use crate::arguments::NodeArguments;
use crate::commands::{ask, interrupted, node_client, runtime};
use crate::output::{Failure, Output, note, verdict};
use crate::trace::{TargetArguments, check_absent, create_target, target_format, unwritten};
use clap::{Args, Subcommand};
use layby_daemon::client::ControlClient;
use layby_daemon::config::{Name, Time};
use layby_daemon::control::{Recorded, RecordingAnswer, RecordingStart, Request};
use layby_daemon::error::Report;
use layby_trace::{Format, NewTrace, Record, TraceError, Unit, Writer};
use serde::Serialize;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How often the node's lists are emptied.
const TAKE_INTERVAL: Duration = Duration::from_millis(100);

/// Record the requests of a node's clients as a trace
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby record start busy.parquet
  layby record start busy.parquet --volume vol0 --volume vol1 --duration 10m
  layby record status
  layby record stop

`start` records until it is interrupted, its time is over, or `layby record stop`; then the trace is
whole. The node holds 262144 requests per shard for a recorder; what comes while they wait is served
and not recorded, and counted as dropped.

Exit codes: 0 done; 2 a word or a format is wrong; 4 the trace is there, or another recording is
under way; 5 no node answers; 6 there is no such volume or recording; 8 no room for the trace.")]
pub(crate) struct RecordArguments {
    #[command(subcommand)]
    command: RecordCommand,
}

#[derive(Debug, Subcommand)]
enum RecordCommand {
    /// Record until interrupted
    Start(StartArguments),
    /// Ask the recorder to end; its trace is then whole
    Stop(NodeArguments),
    /// Show the recording under way
    Status(NodeArguments),
}

#[derive(Debug, Args)]
struct StartArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// Whose requests (can be repeated) [default: all volumes]
    #[arg(long, value_name = "NAME")]
    volume: Vec<Name>,
    /// End after this time [default: when interrupted]
    #[arg(long, value_name = "TIME")]
    duration: Option<Time>,
    #[command(flatten)]
    node: NodeArguments,
}

pub(crate) fn run(arguments: &RecordArguments, output: &mut Output) -> Result<(), Failure> {
    match &arguments.command {
        RecordCommand::Start(start) => record(start, output),
        RecordCommand::Stop(node) => {
            ask(node, |client| async move { client.recording_stop().await })?;
            output.line("the recorder was told to end")
        }
        RecordCommand::Status(node) => {
            let about = ask(node, |client| async move { client.recording().await })?;
            if node.json { output.json(&about) } else { show(&about, output) }
        }
    }
}

fn show(about: &RecordingAnswer, output: &mut Output) -> Result<(), Failure> {
    let RecordingAnswer { id, volumes, requests, waiting, dropped, seconds, silent_seconds } =
        about;
    output.line(&format!(
        "recording {id}: {requests} requests in {seconds:.0} s, {dropped} dropped; {waiting} wait \
         for the recorder, which came {silent_seconds:.1} s ago"
    ))?;
    for volume in volumes {
        output.line(&format!("volume {} is `{}`", volume.number, volume.name))?;
    }
    Ok(())
}

/// A trace that grows, and what it holds so far.
struct Recording {
    trace: Box<NewTrace>,
    records: Vec<Record>,
    counts: BTreeMap<u32, u64>,
    dropped: u64,
    /// When the node was asked last with success.
    taken_last: Instant,
    /// Why the node hands over no more, and for how long it had handed over nothing then.
    lost: Option<(Report, Duration)>,
    /// Whether the format can be read without its end.
    is_readable_in_part: bool,
    /// Where the unfinished trace stays.
    kept: Option<PathBuf>,
}

/// A trace that was recorded, with `--json`.
#[derive(Debug, Serialize)]
struct RecordedAnswer {
    path: String,
    format: String,
    requests: u64,
    /// Requests that were served and not recorded.
    dropped: u64,
    /// Requests that the format has no words for.
    left_out: u64,
    /// How long the recording went on after what is in the trace, where its recorder has lost it:
    /// what came then is missing.
    missing_seconds: Option<f64>,
    volumes: Vec<RecordedVolume>,
}

#[derive(Debug, Serialize)]
struct RecordedVolume {
    number: u32,
    /// None of a volume that came while the recording was under way.
    name: Option<Name>,
    requests: u64,
}

fn record(arguments: &StartArguments, output: &mut Output) -> Result<(), Failure> {
    let target = &arguments.target;
    let format = target_format(target)?;
    check_absent(target)?;
    let trace = Box::new(create_target(target, format, Unit::Bytes)?);
    let is_readable_in_part = format != Format::Parquet;
    let mut recording = Recording {
        trace,
        records: Vec::new(),
        counts: BTreeMap::new(),
        dropped: 0,
        taken_last: Instant::now(),
        lost: None,
        is_readable_in_part,
        kept: None,
    };
    let about = runtime(1)?.block_on(follow(arguments, &mut recording, output))?;
    let Recording { trace, counts, dropped, lost, kept, .. } = recording;
    let written = trace.finish().map_err(|cause| cut_short(target, &cause, kept.as_deref()))?;
    let volumes = counts.iter().map(|(number, count)| RecordedVolume {
        number: *number,
        name: about.volumes.iter().find(|volume| volume.number == *number).map(|v| v.name.clone()),
        requests: *count,
    });
    let answer = RecordedAnswer {
        path: target.out.display().to_string(),
        format: format.to_string(),
        requests: written.records,
        dropped,
        left_out: written.left_out,
        missing_seconds: lost.as_ref().map(|(_, silent)| silent.as_secs_f64()),
        volumes: volumes.collect(),
    };
    let shown = match arguments.node.json {
        true => output.json(&answer),
        false => show_recorded(&answer, output),
    };
    verdict(lost.map(|(cause, silent)| cause.state(lost_state(silent))), shown)
}

fn show_recorded(recorded: &RecordedAnswer, output: &mut Output) -> Result<(), Failure> {
    let RecordedAnswer { path, format, requests, dropped, .. } = recorded;
    output.line(&format!("`{path}`: {requests} requests in {format}, {dropped} dropped"))?;
    if recorded.left_out > 0 {
        let count = recorded.left_out;
        output.line(&format!("left out: {count} requests that the format has no words for"))?;
    }
    if let Some(seconds) = recorded.missing_seconds {
        output.line(&format!("missing: what came in the last {seconds:.1} s, uncounted"))?;
    }
    for RecordedVolume { number, name, requests } in &recorded.volumes {
        let name = name.as_ref().map_or_else(|| "a new volume".into(), |name| format!("`{name}`"));
        output.line(&format!("volume {number} is {name}: {requests} requests"))?;
    }
    Ok(())
}

/// The state of a trace whose recorder another one has replaced.
fn lost_state(silent: Duration) -> String {
    let seconds = silent.as_secs_f64();
    format!(
        "the trace is whole up to when the recorder came last, {seconds:.1} s ago; what came \
         after that is missing"
    )
}

/// Takes and writes until the end; whatever goes wrong here, the node stops recording.
async fn follow(
    arguments: &StartArguments,
    recording: &mut Recording,
    output: &mut Output,
) -> Result<RecordingAnswer, Failure> {
    let client = node_client(&arguments.node);
    let interrupt = interrupted()?;
    let start = RecordingStart { volumes: arguments.volume.clone() };
    let about = client.recording_start(&start).await?;
    let text = format!("recording {}; interrupt to end", about.id);
    // Standard output is one document then.
    let ready = match arguments.node.json {
        true => {
            note(&text);
            Ok(())
        }
        false => output.line(&text),
    };
    let followed = match ready {
        Ok(()) | Err(Failure::PipeClosed) => {
            recording.taken_last = Instant::now();
            let duration = arguments.duration.map(|time| Duration::from_nanos(time.0.0));
            let end = ended(interrupt, duration);
            recording.fill(&client, about.id, end, &arguments.target).await
        }
        Err(failure) => Err(failure),
    };
    if followed.is_err() {
        // The failure is what counts; a node that has gone records no more either way.
        let _ = client.recording_take(about.id, true).await;
    }
    followed.map(|()| about)
}

async fn ended(interrupt: impl Future<Output = &'static str>, duration: Option<Duration>) {
    match duration {
        None => drop(interrupt.await),
        Some(duration) => {
            tokio::select! {
                _ = interrupt => {}
                () = tokio::time::sleep(duration) => {}
            }
        }
    }
}

impl Recording {
    async fn fill(
        &mut self,
        client: &ControlClient,
        id: u64,
        end: impl Future<Output = ()>,
        target: &TargetArguments,
    ) -> Result<(), Failure> {
        let mut end = std::pin::pin!(end);
        loop {
            let is_over = tokio::select! {
                () = &mut end => true,
                () = tokio::time::sleep(TAKE_INTERVAL) => false,
            };
            let taken = match client.recording_take(id, is_over).await {
                Ok(taken) => taken,
                Err(cause) => {
                    self.lost = Some((cause, self.taken_last.elapsed()));
                    return Ok(());
                }
            };
            self.taken_last = Instant::now();
            let is_ended = taken.is_ended;
            self.write(taken).map_err(|cause| cut_short(target, &cause, self.kept.as_deref()))?;
            if is_ended {
                return Ok(());
            }
        }
    }

    fn write(&mut self, taken: Recorded) -> Result<(), TraceError> {
        self.dropped = taken.dropped;
        self.records.clear();
        for Request { at, volume, operation, offset, length } in taken.requests {
            self.records.push(Record { at, volume, operation, offset, length });
            *self.counts.entry(volume.0).or_default() += 1;
        }
        if self.is_readable_in_part && self.kept.is_none() && !self.records.is_empty() {
            self.kept = Some(self.trace.keep_unfinished().to_path_buf());
        }
        self.trace.write(&self.records)
    }
}

/// A recording that cannot be written on. It cannot be made again, so what is there of it is kept.
fn cut_short(target: &TargetArguments, cause: &TraceError, kept: Option<&Path>) -> Report {
    let report = unwritten(target, cause);
    let reader = match target.out.extension().is_some_and(|end| end == "zst") {
        true => "`zstd --decompress --stdout` reads it up to its end".to_owned(),
        false => {
            let format = target_format(target).map_or_else(|_| String::new(), |it| it.to_string());
            format!("`layby trace convert --format {format} --lenient` reads it")
        }
    };
    match (cause, kept) {
        (TraceError::Taken { .. }, _) => report,
        (_, Some(kept)) => report
            .state(format!(
                "what was recorded until then is in `{}`, but for its last part",
                kept.display()
            ))
            .hint(format!("{reader}; look at the room for the next one")),
        (_, None) => report
            .state("what was recorded is lost")
            .hint("have room for the recording, or record as csv: what is written of that is kept"),
    }
}
