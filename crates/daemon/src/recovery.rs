//! What a start found, in words.
//!
//! How: the shards' reports, added up; what is lost, by volume.
//! Cost: a few lines per start. Not for: single blocks, which the log names as they are met.

use crate::catalog::{Catalog, VolumeRecord};
use crate::config::{Config, Name};
use crate::control::{Absence, View};
use crate::error::Report;
use crate::homes::{Homes, IN_MEMORY};
use crate::shards::{HOME_DENIED, HOME_OTHER, open_kind};
use layby_engine::control::{HomeRefusal, LostRange, StartReport};
use layby_types::{ErrorKind, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// What to do where another process has had the file or device open at a start.
const IN_USE_HINT: &str = "stop the other program that uses it, and start the node again";

/// What to do where a volume's creation was cut off and its place is not there.
const HALF_MADE_HINT: &str = "attach its device, or mount its disk, and start the node again, \
    which goes on with the creation; `layby volume delete` deletes the volume";

/// The same, where there is no room for its file.
const HALF_MADE_FULL: &str = "make room on the disk of its file and start the node again, which \
    goes on with the creation; `layby volume delete` deletes the volume";

/// The same, where the node's user may not make or open it.
const HALF_MADE_DENIED: &str = "let the node's user write to the file or device, and to the folder \
    of a file that is to be made, and start the node again; `layby volume delete` deletes the \
    volume";

/// What to do where a file or device is too short, or fails.
const DAMAGED_HINT: &str = "put the whole file back, or have its path lead to a device that is \
    long enough and sound, and start the node again; `layby volume delete` deletes the volume";

/// Volumes that a line names at most.
const NAMES_MAX: usize = 8;

/// Volumes whose file or device could not be opened, with the reason; said in the log, too.
pub(crate) fn absences(
    view: &View,
    homes: &Homes,
    reports: &[StartReport],
) -> Vec<(Name, Absence)> {
    let of = |refusal: &HomeRefusal| {
        let holds = |record: &VolumeRecord| record.parts().any(|part| part == refusal.volume);
        let (name, record) = view.catalog.volumes.iter().find(|(_, record)| holds(record))?;
        let is_half_made = homes.is_half_made(record);
        let what = match is_half_made {
            true => "its creation was cut off, and its backing store cannot be had",
            false => "its home cannot be opened",
        };
        let why = Report::new(open_kind(refusal.kind), "cannot serve the volume")
            .cause(format!("{what}: {}", refusal.cause))
            .state("nothing was changed; what the levels hold of it is kept")
            .hint(homes.mark_hint(record).unwrap_or(match refusal.kind {
                _ if homes.is_other(record) => HOME_OTHER,
                ErrorKind::Retry => IN_USE_HINT,
                ErrorKind::Corrupt => DAMAGED_HINT,
                ErrorKind::Full if is_half_made => HALF_MADE_FULL,
                ErrorKind::Denied if is_half_made => HALF_MADE_DENIED,
                ErrorKind::Denied => HOME_DENIED,
                _ if is_half_made => HALF_MADE_HINT,
                _ => {
                    "put the file back, or mount its disk, and start the node again; or give the \
                     volume up with `layby volume delete`"
                }
            }));
        tracing::error!(%name, cause = why.cause, "a volume is not served");
        Some((name.clone(), Absence::of_file(why)))
    };
    reports.iter().flat_map(|report| &report.absent).filter_map(of).collect()
}

/// All lines on what a start found, but for volumes that it does not serve; `found` is the catalog
/// before it.
pub(crate) fn start_lines(
    found: Option<&Catalog>,
    (view, homes): (&View, &Homes),
    config: &Config,
    reports: &[StartReport],
) -> Vec<String> {
    let lines = [lost_lines(view, reports), unknown_lines(found, reports)];
    let lines = lines.into_iter().flatten().chain(memory_lines(view, reports));
    lines.chain(home_lines(view, homes, config)).collect()
}

/// What is not known of each volume, a line each; said in the log, too.
fn lost_lines(view: &View, reports: &[StartReport]) -> Vec<String> {
    let line = |lost: &LostRange| {
        let holds = |record: &VolumeRecord| record.parts().any(|part| part == lost.volume);
        let name = view.known_volumes().find(|(_, record)| holds(record)).map(|(name, _)| name);
        lost_words((name, lost.volume.0), (lost.blocks, lost.ranges), &lost.named)
    };
    let lines: Vec<String> =
        reports.iter().flat_map(|report| &report.undecided).map(line).collect();
    lines.iter().for_each(|line| tracing::warn!("{line}"));
    lines
}

/// How many blocks of a volume, by name and number, are lost, and in how many ranges, of which the
/// first are `named`: a first byte and a length each.
pub(crate) fn lost_words(
    (name, number): (Option<&Name>, u32),
    (blocks, ranges): (u64, u64),
    named: &[(u64, u64)],
) -> String {
    let name = name.map_or_else(String::new, |name| format!(" `{name}`"));
    let more = if ranges > named.len() as u64 { ", …" } else { "" };
    let named: Vec<String> = named.iter().map(|(at, length)| format!("{at}+{length}")).collect();
    format!(
        "lost: {blocks} blocks of volume{name} (number {number}) in {ranges} range(s), at bytes \
         {}{more}: errors until they are written whole, trimmed or zeroed",
        named.join(", ")
    )
}

/// Dirty blocks of volumes that the catalog has never had, a line each; said in the log, too. Those
/// of a volume that was deleted, whose number was given, are no news.
fn unknown_lines(found: Option<&Catalog>, reports: &[StartReport]) -> Vec<String> {
    let Some(found) = found else { return Vec::new() };
    let mut unknown: BTreeMap<VolumeId, u64> = BTreeMap::new();
    for (volume, blocks) in reports.iter().flat_map(|report| &report.unknown) {
        *unknown.entry(*volume).or_default() += blocks;
    }
    let unknown = unknown.into_iter().filter(|(volume, _)| found.never_had(volume.0));
    let line = |(volume, blocks): (VolumeId, u64)| {
        format!(
            "{blocks} dirty block(s) of a volume, number {}, that the catalog has never had were \
             dropped: the catalog is older than the levels",
            volume.0
        )
    };
    let lines: Vec<String> = unknown.map(line).collect();
    lines.iter().for_each(|line| tracing::warn!("{line}"));
    lines
}

/// Levels that are called durable and lie in memory, a line each; said in the log, too.
fn memory_lines(view: &View, reports: &[StartReport]) -> Vec<String> {
    let in_memory = reports.first().into_iter().flat_map(|report| &report.in_memory);
    let levels = in_memory.filter_map(|level| view.layout.levels.get(*level));
    let lines: Vec<String> = levels.map(|level| memory_line(&level.name)).collect();
    lines.iter().for_each(|line| tracing::warn!("{line}"));
    lines
}

/// What is said of a level whose file lies in a memory file system.
pub(crate) fn memory_line(level: &Name) -> String {
    format!(
        "level `{level}` lies in a memory file system (tmpfs): what is acknowledged as durable \
         there survives a crash of the node, and is lost when the machine stops"
    )
}

/// Volumes whose file lies in memory, in a line; said in the log, too.
fn home_memory_line(view: &View, homes: &Homes) -> Option<String> {
    let volumes = view.catalog.volumes.iter();
    let in_memory = volumes.filter(|(_, record)| homes.is_in_memory(record));
    let names: Vec<String> = in_memory.map(|(name, _)| format!("volume `{name}`")).collect();
    let more = match names.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(", as {more} more do"),
    };
    let named = names[..names.len().min(NAMES_MAX)].join(", ");
    let line = (!names.is_empty()).then(|| format!("{named} {IN_MEMORY}{more}"));
    line.iter().for_each(|line| tracing::warn!("{line}"));
    line
}

/// Lines on volumes' homes: those in memory file systems, and what came of the names that are
/// accepted; said in the log, too.
fn home_lines(view: &View, homes: &Homes, config: &Config) -> impl Iterator<Item = String> {
    let taken = config.accepted_devices.iter().filter_map(|name| taken_line(view, homes, name));
    let unknown = [("device", &config.accepted_devices), ("file", &config.accepted_files)];
    let unknown = unknown.into_iter().filter_map(|(what, names)| accepted_line(view, what, names));
    let lines: Vec<String> = taken.chain(unknown).collect();
    lines.iter().for_each(|line| tracing::warn!("{line}"));
    home_memory_line(view, homes).into_iter().chain(lines)
}

/// What `--accept-device` did for a volume: a unit that keeps it takes any device, each time.
fn taken_line(view: &View, homes: &Homes, name: &Name) -> Option<String> {
    let record = view.catalog.volumes.get(name)?;
    Some(match homes.accepted(record) {
        Some(why) => format!("--accept-device took the device for volume `{name}`: {why}"),
        None => format!(
            "--accept-device did nothing for volume `{name}`: no other device is known to be at \
             its path; remove the option, since any later one would be taken, too"
        ),
    })
}

fn accepted_line(view: &View, what: &str, accepted: &BTreeSet<Name>) -> Option<String> {
    let unknown = accepted.iter().filter(|name| !view.catalog.volumes.contains_key(*name));
    let names: Vec<String> = unknown.map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| format!("--accept-{what} names what is no volume: {names}"))
}

/// How much was recovered, and in which time.
pub(crate) fn recovery_line(reports: &[StartReport]) -> String {
    let sum = |of: fn(&StartReport) -> u64| reports.iter().map(of).sum::<u64>();
    let slowest = reports.iter().map(|report| report.recovery_ms).max().unwrap_or(0);
    let mut line = format!(
        "recovered {} dirty and {} clean blocks in {slowest} ms",
        sum(|r| r.blocks_dirty),
        sum(|r| r.blocks_clean)
    );
    if sum(|r| r.torn_batches) > 0 {
        line += &format!("; {} unfinished write(s) dropped", sum(|r| r.torn_batches));
    }
    if sum(|r| r.blocks_behind_end) > 0 {
        let blocks = sum(|r| r.blocks_behind_end);
        line += &format!("; {blocks} block(s) behind the end of their volume dropped");
    }
    if sum(|r| r.blocks_lost) > 0 {
        line += &format!(
            "; {} corrupt block(s) fail to read until written again, see `layby check`",
            sum(|r| r.blocks_lost)
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::NodeId;

    /// Goal: dirty blocks of volumes that the catalog has never had are named, of all shards
    /// together; those of a deleted volume are not. Method: numbers around the next one to be
    /// given, over two shards; a node without a catalog.
    #[test]
    fn unknown_volumes_are_named() {
        let mut catalog = Catalog::new(NodeId([7; 16]), 4096, 2, Vec::new());
        catalog.volume_id_next = 5;
        let report = |unknown: &[(u32, u64)]| {
            let unknown = unknown.iter().map(|(volume, blocks)| (VolumeId(*volume), *blocks));
            StartReport { unknown: unknown.collect(), ..StartReport::default() }
        };
        let reports = [report(&[(4, 9), (5, 3)]), report(&[(5, 4), (8, 1)])];
        let lines = unknown_lines(Some(&catalog), &reports);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("7 dirty block(s) of a volume, number 5,"), "{lines:?}");
        assert!(lines[1].starts_with("1 dirty block(s) of a volume, number 8,"), "{lines:?}");
        assert!(unknown_lines(None, &reports).is_empty());
    }
}
