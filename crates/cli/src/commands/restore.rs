//! `layby restore`: a volume from its store alone, into a file or only verified.
//!
//! How: `layby_daemon::restore` reads, this shows how far it is and what it found.
//! Invariant: damage ends with an error, after all the rest was read.
//! Cost: nothing beside the reading.

use crate::arguments::RestoreArguments;
use crate::output::{Failure, Output, bytes, note, verdict};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use layby_daemon::config::Name;
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::restore::{Progress, RestoreAnswer, Source, restore as restore_volume};

/// Damaged ranges that are listed for a person.
const RANGES_SHOWN: usize = 10;

pub(crate) fn restore(arguments: &RestoreArguments, output: &mut Output) -> Result<(), Failure> {
    let target = match output.is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    let style = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut progress = |what| match what {
        Progress::Read { bytes, total } => {
            bar.set_length(total);
            bar.set_position(bytes);
        }
        Progress::Waiting(span) => bar.suspend(|| {
            note(&format!("the store has not answered for {} s; it is asked on", span.as_secs()));
        }),
    };
    let source = Source {
        url: &arguments.url,
        key: arguments.key.as_ref(),
        snapshot: arguments.snapshot.as_ref().map(Name::as_str),
        deleted: arguments.deleted,
    };
    let answer = restore_volume(source, arguments.file.as_deref(), &mut progress)?;
    bar.finish_and_clear();
    let shown = match arguments.json {
        true => output.json(&answer),
        false => show(arguments, &answer, output),
    };
    verdict((!answer.damaged.is_empty()).then(|| unsound(arguments, &answer)), shown)
}

fn show(
    arguments: &RestoreArguments,
    answer: &RestoreAnswer,
    output: &mut Output,
) -> Result<(), Failure> {
    let (size, data) = (bytes(answer.size_bytes), bytes(answer.bytes));
    let of = answer.snapshot.as_ref().map(|name| format!("snapshot `{name}` of "));
    let of = of.unwrap_or_default();
    output
        .line(&format!("{of}volume `{}` of {size}, last served by {}", answer.name, answer.node))?;
    if let Some(deleted) = &answer.deleted {
        output.line(match deleted.has_begun() {
            true => "it was deleted, and its objects go: what is left is read",
            false => "it was deleted, and is still whole",
        })?;
    }
    let (fetched, requests) = (bytes(answer.bytes_fetched), answer.requests);
    let RestoreAnswer { epoch, revision, segment, .. } = answer;
    // A snapshot is older than the superblock that named it.
    let as_of = match answer.snapshot {
        Some(_) => String::new(),
        None => format!("as of superblock revision {revision} of epoch {epoch}, "),
    };
    output.line(&format!(
        "{as_of}whole up to segment {segment}: {data} of data, {fetched} fetched in {requests} \
         requests"
    ))?;
    for range in answer.damaged.iter().take(RANGES_SHOWN) {
        let (length, offset) = (bytes(range.length), range.offset);
        output.line(&format!("damaged: {length} at byte {offset}, in `{}`", range.object))?;
    }
    match (&arguments.file, answer.damaged.is_empty()) {
        (Some(file), true) => output.line(&format!("written to `{}`", file.display())),
        (None, true) => output.line("sound: every block that the store has is whole"),
        _ => Ok(()),
    }
}

fn unsound(arguments: &RestoreArguments, answer: &RestoreAnswer) -> Report {
    let count = answer.damaged.len();
    let state = match &answer.partial {
        Some(file) => format!(
            "all else is in `{}`, which has zeros in the place of what is damaged",
            file.display()
        ),
        None => "nothing was changed".to_owned(),
    };
    Report::new(ReportKind::Corrupt, format!("the volume at `{}` is damaged", arguments.url))
        .cause(format!("{count} ranges do not match their checksums, or their objects are gone"))
        .state(state)
        .hint("put the objects back from copies or older versions of them, and repeat it")
}
