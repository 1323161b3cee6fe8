//! Recording: what clients ask for, on its way from the shards to whoever writes the trace.
//!
//! How: shards note requests in bounded lists, which [`Control::take_recorded`] empties and weaves
//! into one list by time. The recorder asks again and again; the node writes no file.
//! Invariant: requests come out in the order of their time, each once; what found no room is
//! counted. One recording at a time; one that nobody takes from is given up for the next.
//! Cost: a sort of what came since the last call. Not for: contents, or when a request ended.

use super::{Control, report};
use crate::config::Name;
use crate::control::Command;
use crate::error::{Report, ReportKind};
use layby_engine::control::RecordedRequest;
use layby_types::{Nanos, Operation, VolumeId};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// A recording from which nothing was taken for so long may be replaced by another.
pub const RECORDING_SILENCE_MAX: Duration = Duration::from_secs(30);
/// A recorder comes ten times a second: one that has not come for so long will not end by being
/// asked to.
const RECORDER_SILENCE_MAX: Duration = Duration::from_secs(5);
/// The first bytes of a list of requests.
const MAGIC: &[u8; 8] = b"LBYREQ01";
const HEADER_BYTES: usize = 24;
const ROW_BYTES: usize = 32;
/// The operations, by their number in a row, which is that of traces.
const OPERATIONS: [Operation; 4] =
    [Operation::Read, Operation::Write, Operation::Trim, Operation::Flush];

/// What to record.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecordingStart {
    /// Whose requests; all volumes where none is named, those made later too.
    pub volumes: Vec<Name>,
}

/// A volume and its number in the trace.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RecordedVolume {
    /// Its name.
    pub name: Name,
    /// Its number.
    pub number: u32,
}

/// A recording at a glance.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RecordingAnswer {
    /// Tells it from earlier ones.
    pub id: u64,
    /// Whose requests, with their numbers in the trace.
    pub volumes: Vec<RecordedVolume>,
    /// Requests handed over so far.
    pub requests: u64,
    /// Requests that the recorder has not taken yet.
    pub waiting: u64,
    /// Requests for which there was no room.
    pub dropped: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// Seconds since the recorder came last.
    pub silent_seconds: f64,
}

/// A request of a recording; `at` counts from its beginning.
pub type Request = RecordedRequest;

/// What was recorded since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// In the order of their time.
    pub requests: Vec<Request>,
    /// Requests for which there was no room since the recording began.
    pub dropped: u64,
    /// Nothing more will come.
    pub is_ended: bool,
}

/// The recordings since the node started.
#[derive(Default)]
pub(crate) struct Recordings {
    /// The number of the last one. None has it again: a recorder that was suspended may ask by it.
    last: u64,
    current: Option<Recording>,
}

/// The recording under way.
pub(crate) struct Recording {
    about: RecordingAnswer,
    /// Its beginning, by the system's monotonic clock.
    begin: Nanos,
    started: Instant,
    taken_last: Instant,
    /// Later than what some shard has told of yet.
    held: Vec<Request>,
    is_ending: bool,
}

impl Control {
    /// Starts to record.
    ///
    /// # Errors
    /// A report when there is no such volume, or another recording is under way.
    pub async fn start_recording(&self, start: RecordingStart) -> Result<RecordingAnswer, Report> {
        const ERROR: &str = "cannot record";
        let mut place = self.recording.lock().await;
        if let Some(other) = place.current.as_ref()
            && other.taken_last.elapsed() < RECORDING_SILENCE_MAX
        {
            return Err(busy(other));
        }
        let mut ids = Vec::new();
        for name in &start.volumes {
            ids.extend(self.existing_volume(ERROR, name)?.parts());
        }
        for shard in 0..self.shards.len() {
            let told = self.ask(shard, |answer| Command::StartRecording(ids.clone(), answer)).await;
            told.map_err(|cause| report(&cause, ERROR))?;
        }
        place.last += 1;
        let (started, id, held) = (Instant::now(), place.last, Vec::new());
        let mut recording = Recording {
            about: RecordingAnswer {
                id,
                volumes: self.recorded_volumes(&start.volumes),
                requests: 0,
                waiting: 0,
                dropped: 0,
                seconds: 0.0,
                silent_seconds: 0.0,
            },
            begin: Nanos::ZERO,
            started,
            taken_last: started,
            held,
            is_ending: false,
        };
        recording.begin = self.weave(&mut recording.held, &mut 0, false).await?;
        let answer = recording.about.clone();
        place.current = Some(recording);
        Ok(answer)
    }

    fn recorded_volumes(&self, names: &[Name]) -> Vec<RecordedVolume> {
        let view = self.view();
        let wanted = view.volumes().filter(|(name, _)| names.is_empty() || names.contains(name));
        let about = |(name, record): (&Name, &crate::catalog::VolumeRecord)| RecordedVolume {
            name: name.clone(),
            number: record.id,
        };
        wanted.map(about).collect()
    }

    /// The recording under way, with what waits for its recorder.
    ///
    /// # Errors
    /// A report when there is none, or a shard has ended.
    pub async fn recording(&self) -> Result<RecordingAnswer, Report> {
        let place = self.recording.lock().await;
        let recording = place.current.as_ref().ok_or_else(none)?;
        let seconds = recording.started.elapsed().as_secs_f64();
        let silent_seconds = recording.taken_last.elapsed().as_secs_f64();
        let (mut waiting, mut dropped) = (recording.held.len() as u64, 0);
        for shard in 0..self.shards.len() {
            let counted = self.ask(shard, Command::CountRecorded).await;
            let count = counted.map_err(|cause| report(&cause, "cannot count what is recorded"))?;
            waiting += count.waiting;
            dropped += count.dropped;
        }
        let about = recording.about.clone();
        Ok(RecordingAnswer { waiting, dropped, seconds, silent_seconds, ..about })
    }

    /// Asks the recorder to end; it takes the rest first. Where the recorder is gone the recording
    /// is over.
    ///
    /// # Errors
    /// A report when nothing is being recorded, or a shard has ended.
    pub async fn stop_recording(&self) -> Result<(), Report> {
        let mut place = self.recording.lock().await;
        let recording = place.current.as_mut().ok_or_else(none)?;
        recording.is_ending = true;
        if recording.taken_last.elapsed() >= RECORDER_SILENCE_MAX {
            self.weave(&mut Vec::new(), &mut 0, true).await?;
            place.current = None;
        }
        Ok(())
    }

    /// What recording `id` has noted since the last call; with `end` it is over.
    ///
    /// # Errors
    /// A report when it is not under way, or a shard has ended.
    pub async fn take_recorded(&self, id: u64, end: bool) -> Result<Recorded, Report> {
        let mut place = self.recording.lock().await;
        let recording = place.current.as_mut().filter(|recording| recording.about.id == id);
        let recording = recording.ok_or_else(none)?;
        let is_ended = end || recording.is_ending;
        let mut dropped = 0;
        let until = self.weave(&mut recording.held, &mut dropped, is_ended).await?;
        recording.taken_last = Instant::now();
        recording.held.sort_by_key(|request| request.at);
        let ready = match is_ended {
            true => recording.held.len(),
            false => recording.held.partition_point(|request| request.at < until),
        };
        let mut requests: Vec<Request> = recording.held.drain(..ready).collect();
        for request in &mut requests {
            request.at = request.at.since(recording.begin);
        }
        recording.about.requests += requests.len() as u64;
        recording.about.dropped = dropped;
        if is_ended {
            place.current = None;
        }
        Ok(Recorded { requests, dropped, is_ended })
    }

    /// Appends what the shards have noted, by the system's clock; answers with the time before
    /// which nothing more will come.
    async fn weave(
        &self,
        held: &mut Vec<Request>,
        dropped: &mut u64,
        end: bool,
    ) -> Result<Nanos, Report> {
        let (mut until, owners) = (Nanos::NEVER, self.view().owners());
        for shard in 0..self.shards.len() {
            let taken = self.ask(shard, |answer| Command::TakeRecorded { end, answer }).await;
            let batch = taken.map_err(|cause| report(&cause, "cannot go on recording"))?;
            let since_zero = |at: Nanos| batch.clock.saturating_add(at);
            held.extend(batch.requests.iter().map(|r| {
                let volume = owners.get(&r.volume).copied().unwrap_or(r.volume);
                Request { at: since_zero(r.at), volume, ..*r }
            }));
            until = until.min(since_zero(batch.until));
            *dropped += batch.dropped;
        }
        Ok(until)
    }
}

fn busy(other: &Recording) -> Report {
    let (id, silent) = (other.about.id, other.taken_last.elapsed());
    let is_gone = silent >= RECORDER_SILENCE_MAX;
    let silence = format!(", though its recorder has not come for {} s", silent.as_secs());
    let silence = if is_gone { silence.as_str() } else { "" };
    Report::new(ReportKind::InUse, "cannot record")
        .cause(format!("recording {id} is under way{silence}"))
        .state(if is_gone { "nothing was changed" } else { "it goes on undisturbed" })
        .hint("`layby record stop` ends it; where its recorder was killed, 5 s after that")
}

fn none() -> Report {
    Report::new(ReportKind::NotFound, "no recording is under way")
        .cause("none was started, it has ended, or another took its place")
        .state("nothing was changed")
        .hint("start one with `layby record start FILE`")
}

impl Recorded {
    /// The list as bytes, little-endian: magic, flags (1: ended), count, dropped; then a row for
    /// each request: time, offset, length, volume, operation.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.requests.len() * ROW_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&u32::from(self.is_ended).to_le_bytes());
        let count = u32::try_from(self.requests.len()).expect("lists of shards are bounded");
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&self.dropped.to_le_bytes());
        for Request { at, volume, operation, offset, length } in &self.requests {
            let number = OPERATIONS.iter().position(|other| other == operation);
            let number = number.expect("a shard notes what traces have words for") as u32;
            for word in [at.0, *offset, *length] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&volume.0.to_le_bytes());
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The list that `bytes` hold; `None` when they are something else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Recorded> {
        let (header, rows) = bytes.split_at_checked(HEADER_BYTES)?;
        let half = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(*bytes[at..].first_chunk()?));
        let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes[at..].first_chunk()?));
        let count = half(header, 12)? as usize;
        if !header.starts_with(MAGIC) || rows.len() != count.checked_mul(ROW_BYTES)? {
            return None;
        }
        let row = |row: &[u8]| {
            Some(Request {
                at: Nanos(word(row, 0)?),
                volume: VolumeId(half(row, 24)?),
                operation: *OPERATIONS.get(half(row, 28)? as usize)?,
                offset: word(row, 8)?,
                length: word(row, 16)?,
            })
        };
        let requests: Option<Vec<Request>> = rows.chunks_exact(ROW_BYTES).map(row).collect();
        let (dropped, is_ended) = (word(header, 16)?, half(header, 8)? == 1);
        Some(Recorded { requests: requests?, dropped, is_ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;

    /// Goal: a list survives its way to the recorder, and damage is told. Method: there and back,
    /// then cut and with a wrong operation.
    #[test]
    fn lists_are_read_back() {
        let request = |operation| Request {
            at: Nanos(5),
            volume: VolumeId(3),
            operation,
            offset: 1 << 40,
            length: 512,
        };
        let requests = OPERATIONS.map(request).to_vec();
        let list = Recorded { requests, dropped: 9, is_ended: true };
        let mut bytes = list.encode();
        assert_eq!(Recorded::decode(&bytes), Some(list));
        assert_eq!(Recorded::decode(&bytes[..bytes.len() - 1]), None);
        let last = bytes.len() - 4;
        bytes[last] = 4;
        assert_eq!(Recorded::decode(&bytes), None);
        assert_eq!(Recorded::decode(b"no list"), None);
    }

    /// Goal: one recording at a time, given up when its recorder is gone. Method: a mock node under
    /// paused time.
    #[tokio::test(start_paused = true)]
    async fn one_recording_at_a_time() {
        let node = MockNode::new("");
        let control = &node.control;
        assert_eq!(control.recording().await.expect_err("none").kind, ReportKind::NotFound);
        let start = RecordingStart::default;
        let first = control.start_recording(start()).await.expect("free").id;
        tokio::time::advance(RECORDER_SILENCE_MAX).await;
        let about = control.recording().await.expect("it is on");
        let shards = node.shards.len() as u64;
        assert_eq!((about.waiting, about.dropped), (2 * shards, 3 * shards));
        assert!((about.silent_seconds - RECORDER_SILENCE_MAX.as_secs_f64()).abs() < 1e-3);
        let busy = control.start_recording(start()).await.expect_err("taken");
        assert_eq!(busy.kind, ReportKind::InUse);
        tokio::time::advance(RECORDING_SILENCE_MAX).await;
        let second = control.start_recording(start()).await.expect("the other is silent").id;
        let gone = control.take_recorded(first, false).await.expect_err("replaced");
        assert_eq!(gone.kind, ReportKind::NotFound);
        assert!(!control.take_recorded(second, false).await.expect("it is on").is_ended);
        control.stop_recording().await.expect("it is on");
        assert!(control.take_recorded(second, false).await.expect("the rest").is_ended);
        assert!(control.recording().await.is_err());
        control.start_recording(start()).await.expect("free");
        tokio::time::advance(RECORDER_SILENCE_MAX).await;
        let busy = control.start_recording(start()).await.expect_err("taken").to_string();
        assert!(busy.contains("has not come for 5 s"), "{busy}");
        control.stop_recording().await.expect("it is on");
        assert!(control.recording().await.is_err(), "its recorder is gone, and it is over");
        let missing = RecordingStart { volumes: vec!["none".parse().expect("a name")] };
        let refused = control.start_recording(missing).await.expect_err("no such volume");
        assert_eq!(refused.kind, ReportKind::NotFound);
    }

    /// Goal: a recorder that was suspended takes nothing of a later recording. Method: a recording
    /// that is stopped while its recorder is gone, and another one; the first one's number.
    #[tokio::test(start_paused = true)]
    async fn a_number_is_used_once() {
        let node = MockNode::new("");
        let control = &node.control;
        let start = RecordingStart::default;
        let first = control.start_recording(start()).await.expect("free").id;
        tokio::time::advance(RECORDER_SILENCE_MAX).await;
        control.stop_recording().await.expect("it is on");
        let second = control.start_recording(start()).await.expect("free").id;
        let late = control.take_recorded(first, false).await.expect_err("it is over");
        assert_eq!(late.kind, ReportKind::NotFound);
        assert!(first != second, "{first}");
        assert!(!control.take_recorded(second, false).await.expect("it is on").is_ended);
    }
}
