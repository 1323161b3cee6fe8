//! `layby volume delete`, `undelete` and `list --deleted`: volumes that go, and that come back.
//!
//! How: each asks the node's control API and prints its answer, or passes it on as JSON.
//! Cost: a request or two. Not for: reading a deleted volume elsewhere; see `restore`.

use super::ask;
use super::volume::said;
use crate::arguments::{DataArgument, NodeArguments};
use crate::output::{Failure, Output, bytes, table};
use layby_daemon::api::{DeletedAnswer, ForgottenAnswer, KeptAnswer, LeftAnswer};
use layby_daemon::cloud::is_store;
use layby_daemon::config::Name;
use layby_daemon::control::{DeleteData, UndeleteRequest};
use std::path::Path;

pub(super) fn delete(
    name: &Name,
    (data, number): (DataArgument, Option<u32>),
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let data = match data {
        DataArgument::Keep => DeleteData::Keep,
        DataArgument::Delete => DeleteData::Delete,
        DataArgument::Now => DeleteData::Now,
    };
    let ((before, waiting), left, deleted) = ask(node, |client| async move {
        // Where its data stays; should it not exist, deleting it says so in its own words.
        let before = match number {
            Some(_) => None,
            None => client.volume(name).await.ok(),
        };
        let is_meant = |gone: &DeletedAnswer| {
            gone.name == *name && number.is_none_or(|number| number == gone.number)
        };
        let waiting = match before {
            Some(_) => None,
            None => client.deleted_volumes().await?.into_iter().find(is_meant),
        };
        let left = client.volume_delete(name, data, number).await?;
        let deleted = client.deleted_volumes().await?;
        Ok(((before, waiting), left, deleted))
    })?;
    let is_unserved = before.as_ref().is_some_and(|before| before.not_served.is_some());
    let is_configured = before.as_ref().is_some_and(|before| before.is_configured);
    let waiting = waiting.map(|waiting| waiting.path);
    let place = before.map(|before| before.path).or(waiting).unwrap_or_default();
    if let Some(left) = left {
        let text = match left {
            LeftAnswer::Forgotten(forgotten) => forgotten_text(name, &place, &forgotten),
            LeftAnswer::Kept(kept) => kept_text(name, &kept),
        };
        return said(&with_table(text, name, is_configured), node, output);
    }
    let waits = deleted.iter().rev().find(|gone| gone.name == *name && gone.path == place);
    let sentence = match (data, waits) {
        // It may never have been made.
        (DeleteData::Keep, _) if is_unserved => format!(
            "forgot volume {name}, which was not served here; what is in `{place}`, if anything, \
             stays as it is"
        ),
        (DeleteData::Keep, _) => format!("deleted volume {name}; its data is in `{place}`"),
        (DeleteData::Delete, Some(gone)) if is_store(Path::new(&place)) => format!(
            "deleted volume {name}; `layby volume undelete {name}` brings it back for {}, then its \
             data goes",
            time_text(gone.left_seconds)
        ),
        _ => format!("deleted volume {name} and its data"),
    };
    said(&with_table(sentence, name, is_configured), node, output)
}

/// Says, too, where the configuration still has a table of the volume.
fn with_table(sentence: String, name: &Name, is_configured: bool) -> String {
    match is_configured {
        true => format!(
            "{sentence}; `[volume.{name}]` of the configuration still names it: it stays deleted \
             until that is edited"
        ),
        false => sentence,
    }
}

/// What became of a volume that another has.
fn forgotten_text(name: &Name, place: &str, of: &ForgottenAnswer) -> String {
    let lost = match (of.bytes_lost, &of.loss_unknown) {
        (0, None) => String::new(),
        (0, Some(why)) => {
            format!(
                "; what was written here and is in no store is given up, how much is unknown: {why}"
            )
        }
        (lost, why) => {
            let more = why.as_ref().map_or_else(String::new, |why| format!(", maybe more: {why}"));
            let lost = bytes(lost);
            format!("; {lost} that were written here and are in no store are gone{more}")
        }
    };
    format!("forgot volume {name}: {}, and its objects stay in `{place}`{lost}", of.taken_by)
}

/// What became of a volume whose data is where the node does not erase it.
fn kept_text(name: &Name, KeptAnswer { kept, is_device, link }: &KeptAnswer) -> String {
    match (is_device, link) {
        (true, None) => format!(
            "deleted volume {name}; its bytes are still on the device `{kept}`, which is not erased"
        ),
        (true, Some(link)) => format!(
            "deleted volume {name}; its bytes are still on the device `{kept}`, which is not \
             erased, and the symbolic link `{link}` to it stays"
        ),
        (false, Some(link)) => format!(
            "deleted volume {name} and its symbolic link `{link}`; its bytes are still in the file \
             `{kept}` that the link named"
        ),
        (false, None) => format!("deleted volume {name}; its bytes are still in `{kept}`"),
    }
}

pub(super) fn undelete(
    name: &Name,
    request: &UndeleteRequest,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let back = ask(node, |client| async move { client.volume_undelete(name, request).await })?;
    if node.json {
        return output.json(&back);
    }
    let (size, path) = (bytes(back.size_bytes), &back.path);
    output.line(&format!("volume {} of {size} is back, in `{path}`", back.name))
}

pub(super) fn accept_loss(
    name: &Name,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let accepted = ask(node, |client| async move { client.volume_accept_loss(name).await })?;
    if node.json {
        return output.json(&accepted);
    }
    output.line(&format!(
        "volume {name} is served without what was lost of it; {} block(s) of the other \
         levels were written back",
        accepted.blocks_written_back
    ))
}

pub(super) fn list_deleted(node: &NodeArguments, output: &mut Output) -> Result<(), Failure> {
    let found = ask(node, |client| async move { client.deleted_volumes().await })?;
    if node.json {
        return output.json(&found);
    }
    let mut table = table(["volume", "number", "size", "deleted", "left", "state", "path"], 2);
    for gone in found {
        let (left, state) = (time_text(gone.left_seconds), state_text(&gone));
        let (number, size) = (gone.number.to_string(), bytes(gone.size_bytes));
        table.add_row([gone.name.to_string(), number, size, gone.deleted, left, state, gone.path]);
    }
    output.line(&table.to_string())
}

fn state_text(gone: &DeletedAnswer) -> String {
    match (&gone.problem, gone.is_marked) {
        (Some(problem), _) => format!("tried again: {problem}"),
        (None, _) if gone.left_seconds <= 0.0 => "its objects go".to_owned(),
        (None, true) => "can come back".to_owned(),
        (None, false) => "can come back; its store is being told".to_owned(),
    }
}

/// A time as people say it, in the largest unit that tells it well.
fn time_text(seconds: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min")];
    let unit = UNITS.iter().find(|(unit, _)| seconds >= 1.5 * unit);
    match unit {
        Some((unit, name)) => format!("{:.1} {name}", seconds / unit),
        None => format!("{seconds:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is given up with a volume that another node has is said, also where its size is
    /// not known. Method: answers by hand.
    #[test]
    fn an_unknown_loss_is_said() {
        let name: Name = "maps".parse().expect("a good name");
        let cause = "the journal `1.journal` is missing";
        for (bytes_lost, is_known) in [(0, true), (0, false), (4096, true), (4096, false)] {
            let loss_unknown = (!is_known).then(|| cause.to_owned());
            let taken_by = "node 7 has the volume".to_owned();
            let of = ForgottenAnswer { taken_by, bytes_lost, loss_unknown };
            let text = forgotten_text(&name, "s3://b/maps", &of);
            assert_eq!(text.contains("in no store"), bytes_lost > 0 || !is_known, "{text}");
            assert_eq!(text.contains(&bytes(4096)), bytes_lost > 0, "{text}");
            assert_eq!(text.contains(cause), !is_known, "{text}");
        }
    }
}
