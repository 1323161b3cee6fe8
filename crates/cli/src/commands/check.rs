//! `layby check`: what lies on disk, verified without a node.

use crate::arguments::CheckArguments;
use crate::output::{Failure, Output, bytes, table, verdict};
use layby_daemon::check::{
    BackingFinding, CheckAnswer, Depth, FileFinding, LostAnswer, check as check_node,
};
use layby_daemon::error::{Report, ReportKind};

/// Ranges of lost blocks that are shown of each volume and shard; `--json` has more.
const LOST_SHOWN_MAX: usize = 10_000;

pub(crate) fn check(arguments: &CheckArguments, output: &mut Output) -> Result<(), Failure> {
    let depth = Depth {
        full: arguments.full,
        backing: arguments.backing,
        snapshot: arguments.snapshot.clone(),
    };
    let answer = check_node(&arguments.dir, &depth)?;
    let shown = match arguments.json {
        true => output.json(&answer),
        false => show(&answer, depth.backing, output),
    };
    verdict((!answer.is_sound).then(|| unsound(arguments, &answer)), shown)
}

fn show(answer: &CheckAnswer, is_deep: bool, output: &mut Output) -> Result<(), Failure> {
    let headings = [
        "level",
        "shard",
        "blocks",
        "dirty",
        "verified",
        "records",
        "cut short",
        "read",
        "problems",
    ];
    let mut stores = table(headings, 1);
    for store in &answer.stores {
        stores.add_row([
            store.level.to_string(),
            store.shard.to_string(),
            store.blocks_live.to_string(),
            store.blocks_dirty.to_string(),
            store.blocks_verified.to_string(),
            store.records.to_string(),
            store.torn.to_string(),
            bytes(store.bytes_read),
            (store.problems.len() as u64 + store.problems_omitted).to_string(),
        ]);
    }
    output.line(&format!("node {}", answer.node))?;
    output.line(&stores.to_string())?;
    show_in_stores(answer, is_deep, output)?;
    for problem in answer.problems() {
        output.line(&format!("problem: {problem}"))?;
    }
    for lost in answer.stores.iter().flat_map(|store| &store.lost) {
        show_lost(lost, output)?;
    }
    for note in answer.notes() {
        output.line(&format!("note: {note}"))?;
    }
    for backing in answer.backings.iter().filter(|backing| backing.problem.is_none()) {
        if let Some(snapshot) = &backing.snapshot {
            let volume = &backing.volume;
            output.line(&format!("snapshot `{snapshot}` of volume `{volume}` is whole"))?;
        }
    }
    for unmade in answer.backings.iter().filter(|backing| backing.unmade) {
        output.line(&format!(
            "volume `{}` was being created: `{}` may have nothing of it yet, which is no damage; \
             the next start of the node goes on",
            unmade.volume, unmade.path
        ))?;
    }
    for gone in answer.backings.iter().filter(|backing| backing.deleted) {
        output.line(&format!(
            "volume `{}` was deleted; what it has is in `{}`",
            gone.volume, gone.path
        ))?;
    }
    if answer.is_sound {
        let is_there = |backing: &&BackingFinding| !backing.deleted && !backing.unmade;
        let volumes = answer.backings.iter().filter(is_there).count();
        output.line(&format!("sound: every structure is whole, {volumes} volume(s) are there"))?;
    }
    Ok(())
}

/// Every range of a volume's lost blocks, a line each.
fn show_lost(lost: &LostAnswer, output: &mut Output) -> Result<(), Failure> {
    let name = lost.volume.iter().map(|name| format!(" `{name}`")).collect::<String>();
    let volume = format!("volume{name} (number {})", lost.number);
    for range in lost.ranges.iter().take(LOST_SHOWN_MAX) {
        output.line(&format!("lost: {volume} at bytes {}+{}", range.offset, range.bytes))?;
    }
    let more = lost.ranges.len().saturating_sub(LOST_SHOWN_MAX) as u64 + lost.ranges_more;
    let listed = match lost.ranges_more {
        0 => "all".to_owned(),
        _ => format!("the first {}", lost.ranges.len()),
    };
    match more {
        0 => Ok(()),
        _ => output.line(&format!("lost: {volume}: {more} more range(s); --json lists {listed}")),
    }
}

/// What was read of volumes in stores, and what was not.
fn show_in_stores(answer: &CheckAnswer, is_deep: bool, output: &mut Output) -> Result<(), Failure> {
    let in_stores: Vec<&BackingFinding> =
        answer.backings.iter().filter(|b| b.is_in_store).collect();
    if in_stores.is_empty() {
        return Ok(());
    }
    let headings = [
        "volume in a store",
        "map",
        "live",
        "journal",
        "not there",
        "objects",
        "checksums",
        "verified",
        "read",
        "problems",
    ];
    let mut volumes = table(headings, 1);
    for volume in &in_stores {
        volumes.add_row(in_store_row(volume));
    }
    output.line(&volumes.to_string())?;
    match is_deep {
        true => Ok(()),
        false => output.line("what stores hold was not read; --backing reads it, too"),
    }
}

/// A dash for what was not read.
fn in_store_row(finding: &BackingFinding) -> [String; 10] {
    let BackingFinding { volume, local, verified, snapshot, deleted, problem, .. } = finding;
    let name = match (snapshot, deleted) {
        (Some(snapshot), _) => format!("{volume}@{snapshot}"),
        (None, true) => format!("{volume} (deleted)"),
        (None, false) => volume.to_string(),
    };
    let of = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let (local, verified) = (local.as_ref(), verified.as_ref());
    [
        name,
        of(local.map(|l| format!("{} runs, {} segments", l.map_runs, l.map_segments))),
        of(local.map(|l| bytes(l.live_bytes))),
        of(local.map(|l| bytes(l.journal_bytes))),
        of(local.map(|l| bytes(l.dirty_bytes))),
        of(verified.map(|v| v.objects.to_string())),
        of(verified.map(|v| v.checksums.to_string())),
        of(verified.map(|v| bytes(v.bytes))),
        of(verified.map(|v| bytes(v.bytes_fetched))),
        u64::from(problem.is_some()).to_string(),
    ]
}

fn unsound(arguments: &CheckArguments, answer: &CheckAnswer) -> Report {
    let error = format!("the node in `{}` is not sound", arguments.dir.display());
    let omitted: u64 = answer.stores.iter().map(|store| store.problems_omitted).sum();
    let count = answer.problems().count() as u64 + omitted;
    let first = answer.problems().next().unwrap_or_default();
    let is_earlier = |problem: String| {
        problem.contains("this program reads") || problem.contains("an earlier build")
    };
    let files: Vec<&FileFinding> = answer.files.iter().filter(|file| !file.is_harmless).collect();
    let is_of_files_alone = count == files.len() as u64;
    // Without such a file no start goes on, whatever else is wrong.
    let file = files.iter().find(|file| file.is_needed).or(files.first());
    let hint = match (answer.problems().any(is_earlier), file) {
        (_, Some(file)) if is_of_files_alone || file.is_needed => &file.hint,
        (true, _) => {
            "what another build wrote is not damaged: start the node with that build, which serves \
             it; `layby volume drain` there, and new levels and maps here, bring it over"
        }
        (false, _) => {
            "copy the directory, then start the node: it serves what is whole or says why not; \
             what a level held that does not come back is given up with `layby volume accept-loss`"
        }
    };
    Report::new(ReportKind::Corrupt, error)
        .cause(format!("{count} problem(s); the first: {first}"))
        .state("nothing was changed")
        .hint(hint)
}
