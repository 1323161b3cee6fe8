//! How safe volumes in object stores are, at a glance: each of them, and classes that have several.
//!
//! How: a class has what its volumes lack together, is as old as the oldest of them, and its link
//! is as bad as the worst.
//! Invariant: what is not known of one volume is not known of its class.
//! Cost: nothing is asked; the answer that lists volumes says it all. Not for: all that is known of
//! one volume; see `layby volume show`.

use crate::output::{bytes, table};
use layby_daemon::api::{CloudAnswer, VolumeAnswer};
use layby_daemon::config::Name;
use std::collections::BTreeMap;

/// The states of a link, best first.
const LINKS: [&str; 4] = ["up", "opening", "down", "lost"];

/// A row's figures.
#[derive(Clone, Default)]
struct Row {
    missing: u64,
    oldest_seconds: f64,
    /// None where nothing is known of the link.
    drain_seconds: Option<f64>,
    link: usize,
    /// How many seconds ago, where it has passed, and what.
    last_error: Option<(Option<f64>, String)>,
}

impl Row {
    fn of(cloud: &CloudAnswer) -> Row {
        let link = LINKS.iter().position(|link| *link == cloud.link);
        let error = cloud.last_error.clone();
        let is_nothing = cloud.is_drained || cloud.link == "lost";
        Row {
            missing: cloud.dirty_bytes,
            oldest_seconds: cloud.dirty_seconds,
            drain_seconds: if is_nothing { Some(0.0) } else { cloud.drain_seconds },
            link: link.unwrap_or(LINKS.len() - 1),
            last_error: error.map(|e| (cloud.last_error_seconds, e)),
        }
    }

    fn with(self, other: Row) -> Row {
        let age = |error: &(Option<f64>, String)| error.0.unwrap_or(0.0);
        Row {
            missing: self.missing + other.missing,
            oldest_seconds: self.oldest_seconds.max(other.oldest_seconds),
            drain_seconds: self.drain_seconds.zip(other.drain_seconds).map(|(a, b)| a.max(b)),
            link: self.link.max(other.link),
            last_error: self
                .last_error
                .into_iter()
                .chain(other.last_error)
                .min_by(|a, b| age(a).total_cmp(&age(b))),
        }
    }

    fn cells(self, name: String) -> [String; 6] {
        let Row { missing, oldest_seconds, drain_seconds, link, last_error } = self;
        let (oldest, there) = match (missing, LINKS[link], drain_seconds) {
            (0, ..) => ("-".to_owned(), "-".to_owned()),
            (_, "lost", _) => (seconds(oldest_seconds), "never".to_owned()),
            (.., None) => (seconds(oldest_seconds), "not known".to_owned()),
            (.., Some(drain)) => (seconds(oldest_seconds), seconds(drain)),
        };
        let error = last_error.map_or_else(|| "-".to_owned(), |(ago, e)| error_text(ago, &e));
        [name, bytes(missing), oldest, there, LINKS[link].to_owned(), error]
    }
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.1} s")
}

/// An error in its first words, since stores say much.
fn error_text(ago: Option<f64>, error: &str) -> String {
    const WORDS_MAX: usize = 60;
    let mut text = ago.map_or_else(String::new, |ago| format!("{ago:.0} s ago:"));
    let begin = text.len();
    for word in error.split_whitespace() {
        if text.len() - begin + word.len() > WORDS_MAX {
            text += " …";
            break;
        }
        text += if text.is_empty() { "" } else { " " };
        text += word;
    }
    text
}

/// A table of the volumes that have stores; none where none has.
pub(super) fn safety_table(volumes: &[VolumeAnswer]) -> Option<String> {
    let rows = volumes.iter().filter_map(|volume| {
        Some((volume.name.to_string(), &volume.class, Row::of(volume.cloud.as_ref()?)))
    });
    let rows: Vec<(String, &Name, Row)> = rows.collect();
    if rows.is_empty() {
        return None;
    }
    let mut classes: BTreeMap<&Name, (usize, Row)> = BTreeMap::new();
    let headings = ["volume in a store", "not there", "oldest", "there in", "link", "last error"];
    let mut table = table(headings, 1);
    for (name, class, row) in rows {
        let (count, sum) = classes.remove(class).unwrap_or_default();
        classes.insert(class, (count + 1, sum.with(row.clone())));
        table.add_row(row.cells(name));
    }
    for (class, (count, sum)) in classes.into_iter().filter(|(_, (count, _))| *count > 1) {
        table.add_row(sum.cells(format!("class {class} ({count})")));
    }
    Some(table.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(missing: u64, link: usize, drain_seconds: Option<f64>) -> Row {
        Row { missing, oldest_seconds: 2.0, drain_seconds, link, last_error: None }
    }

    /// Goal: a class is what its volumes are together, and what is not known of one is not known
    /// of all. Method: sums by hand.
    #[test]
    fn classes_are_sums() {
        let sum = row(1 << 20, 0, Some(3.0)).with(row(1 << 20, 2, Some(7.0)));
        assert_eq!(
            sum.clone().cells("x".into()),
            ["x", "2.00 MiB", "2.0 s", "7.0 s", "down", "-"].map(str::to_owned)
        );
        let cells = sum.with(row(0, 0, None)).cells("x".into());
        assert_eq!(cells[3], "not known");
        let lost = row(5, 3, Some(0.0)).cells("x".into());
        assert_eq!(lost[3..5], ["never".to_owned(), "lost".to_owned()]);
        assert_eq!(row(0, 0, None).cells("x".into())[1..4], ["0 B", "-", "-"].map(str::to_owned));
    }

    /// Goal: errors are cut between words. Method: a long one.
    #[test]
    fn errors_are_short() {
        let text = error_text(Some(3.4), &"word ".repeat(40));
        assert!(text.starts_with("3 s ago: word word") && text.ends_with("word …"), "{text}");
        assert!(text.len() < 90);
    }
}
