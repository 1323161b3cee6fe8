//! What the log says of volumes and classes that change.
//!
//! How: the views before and after a change are compared, so that every way to a change has its
//! line: a command, the configuration at a start, the end of a deletion.
//! Invariant: a volume is created when clients can see it, and removed when they cannot any more;
//! a key and its source are in no line. Cost: a comparison per change of the view.
//! Not for: who asked; see the audit log.

use super::{Absence, View};
use crate::catalog::{Catalog, VolumePhase, VolumeRecord};
use crate::config::{ClassConfig, Name, Size};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Keys of a volume's record that have a line of their own, or none.
const VOLUME_KEYS_LEFT_OUT: [&str; 10] =
    ["id", "phase", "length", "class", "key", "clone_of", "take", "local", "device", "configured"];

type Volumes<'a> = BTreeMap<&'a Name, &'a VolumeRecord>;

/// A line for each volume and class that changed from a view to the next.
pub(super) fn log(before: &View, after: &View) {
    log_volumes(&before.known_volumes().collect(), &after.known_volumes().collect());
    let by_name = |view| View::classes(view).map(|(name, class)| (name, class)).collect();
    log_classes(&by_name(before), &by_name(after));
}

/// The same for the volumes that a start has changed, by its configuration or as the last one had
/// left off.
pub(crate) fn log_start(found: Option<&Catalog>, after: &View) {
    let known = found.into_iter().flat_map(|catalog| &catalog.volumes);
    let was_known = |name: &Name, record: &VolumeRecord| {
        record.phase == VolumePhase::Ready || after.absence(name).is_some()
    };
    let before: Volumes<'_> = known.filter(|(name, record)| was_known(name, record)).collect();
    // One that is new and not served was not made, unless that goes on.
    let is_new = |name: &Name| after.absence(name).is_none_or(Absence::is_tried);
    let is_made = |name: &Name| before.contains_key(name) || is_new(name);
    log_volumes(&before, &after.known_volumes().filter(|(name, _)| is_made(name)).collect());
}

fn log_volumes(before: &Volumes<'_>, after: &Volumes<'_>) {
    for (volume, record) in after {
        match before.get(volume) {
            Some(old) => log_volume(volume, old, record),
            None => {
                let (size, class) = (Size(record.length), &record.class);
                tracing::info!(%volume, %size, %class, "volume created");
            }
        }
    }
    for volume in before.keys().filter(|name| !after.contains_key(**name)) {
        tracing::info!(%volume, "volume removed");
    }
}

fn log_volume(volume: &Name, before: &VolumeRecord, after: &VolumeRecord) {
    if before.length != after.length {
        let (from, to) = (Size(before.length), Size(after.length));
        tracing::info!(%volume, %from, %to, "volume resized");
    }
    if before.class != after.class {
        let (from, to) = (&before.class, &after.class);
        tracing::info!(%volume, %from, %to, "volume has another class");
    }
    let changes = changes(before, after, &VOLUME_KEYS_LEFT_OUT);
    if !changes.is_empty() {
        tracing::info!(%volume, changes, "volume changed");
    }
}

fn log_classes(before: &BTreeMap<&Name, &ClassConfig>, after: &BTreeMap<&Name, &ClassConfig>) {
    for (class, config) in after {
        match before.get(class).map(|old| changes(old, config, &[])) {
            Some(changes) if changes.is_empty() => {}
            Some(changes) => tracing::info!(%class, changes, "class changed"),
            None => tracing::info!(%class, rank = config.rank, "class created"),
        }
    }
    for class in before.keys().filter(|name| !after.contains_key(**name)) {
        tracing::info!(%class, "class removed");
    }
}

/// `key: before -> after` of each key that differs.
fn changes(before: &impl Serialize, after: &impl Serialize, left_out: &[&str]) -> String {
    let (before, after) = (keys(before), keys(after));
    let names = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    let names = names.filter(|key| !left_out.contains(&key.as_str()));
    let differing = names.filter(|key| before.get(*key) != after.get(*key));
    let lines = differing.map(|key| {
        let value = |of: &serde_json::Map<String, Value>| {
            of.get(key).map_or_else(|| "none".to_owned(), Value::to_string)
        };
        format!("{key}: {} -> {}", value(&before), value(&after))
    });
    lines.collect::<Vec<_>>().join(", ")
}

fn keys(of: &impl Serialize) -> serde_json::Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(keys)) => keys,
        other => unreachable!("records are written as tables: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what differs is named with both values, what was not there as none, and nothing that
    /// is left out. Method: two tables.
    #[test]
    fn changes_have_both_values() {
        let table = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let before = table(r#"{"rank": 1, "cap": {"ssd": "50%"}, "key": "command:secret"}"#);
        let after = table(r#"{"rank": 1, "cap": {}, "limits": {"iops_max": 5}}"#);
        assert_eq!(
            changes(&before, &after, &["key"]),
            r#"cap: {"ssd":"50%"} -> {}, limits: none -> {"iops_max":5}"#
        );
        assert_eq!(changes(&before, &before, &[]), "");
    }
}
