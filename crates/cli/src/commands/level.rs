//! `layby level` and `layby writeback`: when blocks are destaged and freed.

use super::ask;
use crate::arguments::{LevelArguments, LevelCommand, WritebackArguments};
use crate::output::{Failure, Output, bytes, percent, table};
use layby_daemon::api::{HealthAnswer, HintWay, LevelAnswer, WearAnswer};
use layby_daemon::control::{WatermarksPatch, WritebackPatch};

pub(crate) fn level(arguments: LevelArguments, output: &mut Output) -> Result<(), Failure> {
    match arguments.command {
        LevelCommand::List(node) => {
            let levels = ask(&node, |client| async move { client.levels().await })?;
            if node.json {
                return output.json(&levels);
            }
            output.line(&level_table(&levels))?;
            let mut encrypted = levels.iter().filter_map(encryption_line);
            encrypted.try_for_each(|line| output.line(&line))?;
            wear_lines(&levels).iter().try_for_each(|line| output.line(line))
        }
        LevelCommand::Set { name, dirty_red, dirty_green, used_red, used_green, node } => {
            let patch = WatermarksPatch { dirty_red, dirty_green, used_red, used_green };
            let level = ask(&node, |client| async move { client.level_set(&name, &patch).await })?;
            if node.json {
                return output.json(&level);
            }
            output.line(&level_table(std::slice::from_ref(&level)))
        }
    }
}

pub(super) fn level_table(levels: &[LevelAnswer]) -> String {
    let mut table = table(
        [
            "level",
            "kind",
            "policy",
            "room",
            "used",
            "dirty",
            "oldest",
            "hits",
            "evicted",
            "written back",
            "device writes",
            "destage",
            "free",
        ],
        3,
    );
    for level in levels {
        let marks = level.watermarks;
        let kind = format!("{:?}", level.kind).to_lowercase();
        table.add_row([
            level.name.to_string(),
            kind,
            format!("{:?}", level.policy).to_lowercase(),
            bytes(level.room_bytes),
            percent(level.used_bytes, level.room_bytes),
            percent(level.dirty_bytes, level.room_bytes),
            format!("{:.1} s", level.dirty_age_seconds),
            format!("{} blocks", level.hits),
            format!("{} blocks", level.evictions),
            format!("{} blocks", level.destaged),
            bytes(level.device_bytes_written),
            format!("{}-{}", marks.dirty_red, marks.dirty_green),
            format!("{}-{}", marks.used_red, marks.used_green),
        ]);
    }
    table.to_string()
}

/// What a level is encrypted by, where it is.
fn encryption_line(level: &LevelAnswer) -> Option<String> {
    let (cipher, key) = (level.cipher.as_ref()?, level.key.as_ref()?);
    Some(format!("level {}: encrypted by {cipher}, key from {key}", level.name))
}

/// How flash levels wear: a line of what is written, and one of what is left.
pub(super) fn wear_lines(levels: &[LevelAnswer]) -> Vec<String> {
    let mut lines = Vec::new();
    for level in levels {
        let Some(wear) = &level.wear else { continue };
        let amplified = wear.write_amplification;
        let amplified = amplified.map_or_else(String::new, |f| format!(", {f:.2} per byte asked"));
        lines.push(format!(
            "level {}: {} written in its life; since the start {} of blocks, {} of copies, {} \
             moved, {} of tables{amplified}",
            level.name,
            bytes(wear.bytes_lifetime),
            bytes(wear.bytes_written),
            bytes(wear.bytes_promoted),
            bytes(wear.bytes_cleaned),
            bytes(wear.bytes_descriptors + wear.bytes_checkpoints),
        ));
        if level.cleaning_dropped + level.cleaning_destaged > 0 {
            lines.push(format!(
                "level {}: instead of moving cold blocks, cleaning dropped {} and destaged {}",
                level.name, level.cleaning_dropped, level.cleaning_destaged
            ));
        }
        lines.extend(budget_line(level.name.as_str(), wear));
        lines.extend(discard_line(level));
        lines.extend(hint_line(level));
        lines.extend(
            level.health.as_ref().map(|health| health_line(level.name.as_str(), health, wear)),
        );
        if level.segments_retired + level.segments_suspect > 0 {
            lines.push(format!(
                "level {}: {} of {} segments failed for good and are retired, {} are to be tested; \
                 replace the device soon",
                level.name, level.segments_retired, level.segments, level.segments_suspect
            ));
        }
        if level.segments_damaged > 0 {
            lines.push(format!(
                "level {}: {} of {} segments hold a block that cannot be read; `layby check` names \
                 it, and writing it whole frees them",
                level.name, level.segments_damaged, level.segments
            ));
        }
    }
    lines
}

/// What the device says of itself.
fn health_line(name: &str, health: &HealthAnswer, wear: &WearAnswer) -> String {
    let known = [
        health.percentage_used.map(|used| format!("{used} % of its endurance used")),
        health.spare_percent.map(|spare| format!("{spare} % of its spare blocks left")),
        health.bytes_written.map(|written| format!("{} written in its life", bytes(written))),
        wear.days_left_by_device.map(|days| format!("{days:.0} days left at this level's rate")),
        health.celsius.map(|celsius| format!("{celsius} °C")),
        health.is_failing.then(|| "it warns of its failure: replace it soon".to_owned()),
    ];
    let known: Vec<String> = known.into_iter().flatten().collect();
    format!("level {name}: {} says (by {}): {}", health.device, health.tool, known.join(", "))
}

/// What the device was told of free segments; nothing where it never is.
fn discard_line(level: &LevelAnswer) -> Option<String> {
    let all = level.discards.filter(|all| all.sent + all.pending + all.cancelled > 0)?;
    let refused = match all.refused {
        0 => String::new(),
        count => format!("; the device refused {count}"),
    };
    Some(format!(
        "level {}: of {} freed, {} were used again, {} were discarded in {} pieces, {} wait\
         {refused}",
        level.name,
        bytes(all.received_bytes),
        bytes(all.cancelled_bytes),
        bytes(all.sent_bytes),
        all.sent,
        bytes(all.pending_bytes),
    ))
}

/// What the device hears of how long writes live; nothing where it hears nothing and nobody
/// refused.
fn hint_line(level: &LevelAnswer) -> Option<String> {
    let hints = level.hints?;
    let refused = if hints.is_refused { "; something it seemed to offer was refused" } else { "" };
    let text = match hints.way {
        HintWay::None if !hints.is_refused => return None,
        HintWay::None => "no write-life hints: the kernel or the device refuses them".to_owned(),
        HintWay::Lives => format!(
            "{} writes with a write-life hint, set {} times{refused}",
            hints.writes, hints.changes
        ),
        HintWay::Streams => format!("{} writes to {} streams", hints.writes, hints.streams),
    };
    Some(format!("level {}: {text}", level.name))
}

fn budget_line(name: &str, wear: &WearAnswer) -> Option<String> {
    let (endurance, daily) = (wear.endurance_bytes?, wear.daily_budget_bytes?);
    let left = wear.budget_left_bytes?;
    let left = match u64::try_from(left) {
        Ok(left) => format!("{} left now", bytes(left)),
        Err(_) => format!("overdrawn by {}", bytes(left.unsigned_abs())),
    };
    let days = wear.days_left.map_or_else(
        || "too early to say how long it lasts".to_owned(),
        |days| format!("{days:.0} days left at this rate"),
    );
    Some(format!(
        "level {name}: endures {}, {} a day, {left}; {days}; kept out: {} copies, {} dirty blocks",
        bytes(endurance),
        bytes(daily),
        wear.copies_refused,
        wear.dirty_passed_by
    ))
}

pub(crate) fn writeback(
    arguments: &WritebackArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let patch = WritebackPatch {
        merge_size: arguments.merge_size,
        idle_timeout: arguments.idle_timeout,
        inflight_max: arguments.inflight_max,
        read_ahead_window_max: arguments.read_ahead_window_max,
        read_ahead_streak_min: arguments.read_ahead_streak_min,
    };
    let is_change = serde_json::to_value(patch).is_ok_and(|json| json != serde_json::json!({}));
    let answer = ask(&arguments.node, |client| async move {
        if is_change { client.writeback_set(&patch).await } else { client.writeback().await }
    })?;
    if arguments.node.json {
        return output.json(&answer);
    }
    output.line(&format!(
        "written back in pieces of up to {}, after {} of calm or at the red mark, {} at a time per \
         shard",
        answer.merge_size, answer.idle_timeout, answer.inflight_max
    ))?;
    output.line(&format!(
        "read ahead up to {} after {} sequential reads",
        answer.read_ahead_window_max, answer.read_ahead_streak_min
    ))
}
