//! `layby check`: what lies on disk, verified without a node.

use crate::arguments::CheckArguments;
use crate::output::{Failure, Output, bytes, table};
use layby_daemon::check::{CheckAnswer, Depth, check as check_node};
use layby_daemon::error::{Report, ReportKind};

pub(crate) fn check(arguments: &CheckArguments, output: &mut Output) -> Result<(), Failure> {
    let depth = Depth {
        full: arguments.full,
        backing: arguments.backing,
        snapshot: arguments.snapshot.clone(),
    };
    let answer = check_node(&arguments.dir, &depth)?;
    if arguments.json {
        output.json(&answer)?;
    } else {
        show(&answer, output)?;
    }
    if answer.is_sound { Ok(()) } else { Err(unsound(arguments, &answer).into()) }
}

fn show(answer: &CheckAnswer, output: &mut Output) -> Result<(), Failure> {
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
    for problem in answer.problems() {
        output.line(&format!("problem: {problem}"))?;
    }
    for backing in answer.backings.iter().filter(|backing| backing.problem.is_none()) {
        if let Some(snapshot) = &backing.snapshot {
            let volume = &backing.volume;
            output.line(&format!("snapshot `{snapshot}` of volume `{volume}` is whole"))?;
        }
    }
    for gone in answer.backings.iter().filter(|backing| backing.deleted) {
        output.line(&format!(
            "volume `{}` was deleted; what it has is in `{}`",
            gone.volume, gone.path
        ))?;
    }
    if answer.is_sound {
        let volumes = answer.backings.iter().filter(|backing| !backing.deleted).count();
        output.line(&format!("sound: every structure is whole, {volumes} volume(s) are there"))?;
    }
    Ok(())
}

fn unsound(arguments: &CheckArguments, answer: &CheckAnswer) -> Report {
    let error = format!("the node in `{}` is not sound", arguments.dir.display());
    let omitted: u64 = answer.stores.iter().map(|store| store.problems_omitted).sum();
    let count = answer.problems().count() as u64 + omitted;
    let first = answer.problems().next().unwrap_or_default();
    Report::new(ReportKind::Corrupt, error)
        .cause(format!("{count} problem(s); the first: {first}"))
        .state("nothing was changed")
        .hint("copy the directory, then start the node: it serves what is whole or says why not")
}
