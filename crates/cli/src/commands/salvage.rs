//! `layby salvage`: what only a node's journal has of a volume, into a file or only counted.
//!
//! How: `layby_daemon::salvage` reads, this says what it found and what to do with it.
//! Invariant: damage ends with an error, after all that is whole was saved.
//! Cost: nothing beside the reading.

use crate::arguments::SalvageArguments;
use crate::output::{Failure, Output, bytes, verdict};
use layby_daemon::config::{Config, Overrides};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::salvage::{SalvageAnswer, salvage as save};

pub(crate) fn salvage(arguments: &SalvageArguments, output: &mut Output) -> Result<(), Failure> {
    let dir = arguments.dir.clone();
    let config = arguments.config.clone();
    let config =
        Config::load(&Overrides { dir, config, reads_only: true, ..Overrides::default() })?;
    let answer = save(&config, &arguments.name, arguments.file.as_deref(), arguments.all)?;
    let shown = match arguments.json {
        true => output.json(&answer),
        false => show(arguments, &answer, output),
    };
    verdict(damaged(arguments, &answer), shown)
}

fn show(
    arguments: &SalvageArguments,
    answer: &SalvageAnswer,
    output: &mut Output,
) -> Result<(), Failure> {
    let (name, size, path) = (&arguments.name, bytes(answer.size_bytes), &answer.path);
    output.line(&format!("volume `{name}` of {size}, in `{path}`"))?;
    if let Some(note) = &answer.note {
        output.line(&format!("note: {note}"))?;
    }
    output.line(&match &answer.taken {
        Some(taken) => format!("lost to another node: {taken}"),
        None => {
            "not taken by another node, as far as this node knows: once it serves the volume, it \
             uploads what the store lacks"
                .to_owned()
        }
    })?;
    if answer.ranges == 0 {
        return output.line(match arguments.all {
            true => "nothing to save: the journal holds nothing any more",
            false => {
                "nothing to save: the store got all that was written here; if it was set back \
                 since, --all saves what the journal still holds"
            }
        });
    }
    let (data, zeros) = (bytes(answer.bytes), bytes(answer.zero_bytes));
    let (segment, ranges) = (answer.segment, answer.ranges);
    let which = match arguments.all {
        true => format!("all that the journal still holds, up to segment {segment} and behind it"),
        false => {
            format!("newer than segment {segment}, the last that this node's superblock named")
        }
    };
    output.line(&format!("{which}: {data} of data and {zeros} of zeros in {ranges} ranges"))?;
    if answer.damaged_bytes > 0 {
        let damaged = bytes(answer.damaged_bytes);
        output.line(&format!("{damaged} among these ranges are damaged, and cannot be saved"))?;
    }
    if let (Some(first), Some(last)) = (&answer.written_first, &answer.written_last) {
        output.line(&format!("written from {first} to {last}"))?;
    }
    match (&arguments.file, &answer.listing) {
        (Some(file), Some(listing)) => {
            let (file, listing) = (file.display(), listing.display());
            output.line(&format!("saved in `{file}`, and listed in `{listing}`"))?;
            output.line("`layby salvage --help` shows how to write it over a restored image")
        }
        _ => output.line("name a file to save it"),
    }
}

/// What of the journal is damaged, if anything is.
fn damaged(arguments: &SalvageArguments, answer: &SalvageAnswer) -> Option<Report> {
    let error = format!("the journal of volume `{}` is damaged", arguments.name);
    let report = Report::new(ReportKind::Corrupt, error);
    let report = match (answer.damaged_at, answer.damaged_bytes) {
        (Some(at), _) => report
            .cause(format!("at byte {at}, where acknowledged data was"))
            .state("what was written before that is saved, where a file was named; the rest is not")
            .hint("put the journal back from a copy, and repeat it"),
        (None, 0) => return None,
        (None, damaged) => report
            .cause(format!(
                "{} of acknowledged writes do not match their checksums",
                bytes(damaged)
            ))
            .state("all else is saved, where a file was named, whose list calls these `damaged`")
            .hint("put the journal back from a copy, and repeat it"),
    };
    Some(report)
}
