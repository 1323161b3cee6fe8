//! `layby status`: the whole node at a glance.

use super::ask;
use super::class::class_table;
use super::level::{level_table, wear_lines};
use super::safety::safety_table;
use super::sizing::{sizing_lines, what_if};
use super::uplink::uplink_lines;
use super::volume::volume_table;
use crate::arguments::StatusArguments;
use crate::output::{Failure, Output, bytes};
use layby_daemon::api::StatusAnswer;

pub(crate) fn status(arguments: &StatusArguments, output: &mut Output) -> Result<(), Failure> {
    let node = &arguments.node;
    if arguments.what_if {
        let sizing = ask(node, |client| async move { client.sizing().await })?;
        return if node.json { output.json(&sizing) } else { what_if(&sizing, output) };
    }
    let status = ask(node, |client| async move { client.status().await })?;
    if node.json {
        return output.json(&status);
    }
    for line in summary(&status) {
        output.line(&line)?;
    }
    output.line(&level_table(&status.levels))?;
    for line in wear_lines(&status.levels) {
        output.line(&line)?;
    }
    output.line(&class_table(&status.classes))?;
    output.line(&volume_table(&status.volumes))?;
    if let Some(table) = safety_table(&status.volumes) {
        output.line(&table)?;
    }
    for line in sizing_lines(&status.sizing) {
        output.line(&line)?;
    }
    for line in status.uplink.iter().flat_map(uplink_lines) {
        output.line(&line)?;
    }
    Ok(())
}

fn summary(status: &StatusAnswer) -> Vec<String> {
    let cpu: f64 = status.shards.iter().map(|shard| shard.cpu_seconds).sum();
    let queued: u64 = status.shards.iter().map(|shard| shard.queue_depth).sum();
    let io = status.shards.first().map_or("no shards", |shard| shard.io.as_str());
    let mut lines = vec![
        format!(
            "node {} {} in `{}`, process {}",
            status.node, status.version, status.dir, status.pid
        ),
        format!(
            "up {:.0} s, {} shard(s) by {io}, {cpu:.1} s of CPU, {queued} request(s) in flight",
            status.uptime_seconds,
            status.shards.len()
        ),
        format!(
            "backing: {} read ({} ahead), {} written in {} writes",
            bytes(status.backing.bytes_read),
            bytes(status.backing.bytes_read_ahead),
            bytes(status.backing.bytes_written),
            status.backing.writes
        ),
    ];
    let moved = status.dir_moved.iter();
    lines.extend(moved.map(|why| format!("CHANGES ARE REFUSED: {why}; put the directory back")));
    lines.extend(level_lines(status));
    lines.extend(memory_lines(status));
    for volume in &status.volumes {
        let why = volume.not_served.iter();
        lines.extend(why.map(|why| format!("volume `{}` is not served: {why}", volume.name)));
    }
    let lost: u64 = status.shards.iter().map(|shard| shard.recovered_lost).sum();
    if lost > 0 {
        lines.push(format!("{lost} corrupt block(s) found at start; run `layby check`"));
    }
    for volume in status.volumes.iter().filter(|volume| volume.traffic.lost_bytes > 0) {
        let lost = bytes(volume.traffic.lost_bytes);
        lines.push(format!(
            "volume `{}`: {lost} are lost and errors until written whole; run `layby check`",
            volume.name
        ));
    }
    lines.extend(write_back_lines(status));
    for failed in &status.failed {
        lines.push(format!("level `{}`: {}; {}", failed.level, failed.cause, failed.state));
    }
    for stuck in &status.stuck {
        let place = match (&stuck.level, &stuck.volume) {
            (Some(level), _) => format!("the device of level `{level}`"),
            (_, Some(volume)) => format!("the backing store of volume `{volume}`"),
            (None, None) => "the backing store of a deleted volume".to_owned(),
        };
        lines.push(format!(
            "{place} has not answered for {:.0} s: requests that wait for it end with errors",
            stuck.seconds
        ));
    }
    lines.extend(status.uris.iter().map(|uri| format!("serving {uri}")));
    lines
}

/// What is lost of a level, or lies where a stop of the machine takes it.
fn level_lines(status: &StatusAnswer) -> Vec<String> {
    let mut lines = Vec::new();
    for level in &status.levels {
        lines.extend(level.lost.iter().map(|cause| {
            format!("level `{}` is lost: {cause}; no persistent level is used", level.name)
        }));
    }
    for level in status.levels.iter().filter(|level| level.is_in_memory) {
        lines.push(format!(
            "level `{}` lies in a memory file system: what is durable there is lost when the \
             machine stops",
            level.name
        ));
    }
    lines
}

/// Which volumes lie where a stop of the machine takes them.
fn memory_lines(status: &StatusAnswer) -> impl Iterator<Item = String> {
    let in_memory = status.volumes.iter().filter(|volume| volume.is_in_memory);
    in_memory.map(|volume| {
        format!(
            "volume `{}` lies in a memory file system: its blocks are lost when the machine stops",
            volume.name
        )
    })
}

/// Which volumes cannot write back, and why.
fn write_back_lines(status: &StatusAnswer) -> Vec<String> {
    let mut lines = Vec::new();
    for volume in &status.volumes {
        let Some(why) = &volume.traffic.write_back_fault else { continue };
        let dirty: u64 = volume.traffic.dirty_bytes.values().sum();
        if dirty == 0 {
            continue;
        }
        let dirty = bytes(dirty);
        // What no flush covered, a level that fails may not have.
        let safe = if status.failed.is_empty() { "safe" } else { "kept" };
        lines.push(format!(
            "volume `{}`: {dirty} cannot be written back to `{}`: {why}; they are {safe} and tried \
             again",
            volume.name, volume.path
        ));
    }
    lines
}
