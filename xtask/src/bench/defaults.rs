//! A node as `layby serve --dir` starts it, without any configuration, and what it chose.
//!
//! How: the node prints at its start which levels it has and why, and how writes become durable;
//! those lines go into the report, all of them into the raw results.
//! Invariant: a node that does not say that its levels are the default ones is refused, since a
//! configuration was found that nobody meant. Cost: none beside the node's.

use super::beside::Arm;
use super::entries::Plan;
use super::servers;
use crate::process::{self, Failure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// What the node's lines of choices begin with.
const CHOICES: [&str; 4] = ["levels by default:", "I/O by", "level ", "class "];

/// What a default node said of itself.
pub(crate) struct Defaults {
    /// Every line that it printed until it was ready.
    pub(crate) printed: Vec<String>,
}

impl Defaults {
    /// `dir` is the node's, whose name is of this run alone.
    fn new(printed: &[String], dir: &Path) -> Result<Defaults, Failure> {
        let dir = dir.to_string_lossy();
        let printed: Vec<_> = printed.iter().map(|line| line.replace(&*dir, "DIR")).collect();
        if printed.iter().any(|line| line.starts_with(CHOICES[0])) {
            return Ok(Defaults { printed });
        }
        let what = format!("the node did not choose its levels; it printed:\n{printed:#?}");
        Err(Failure::new(what))
    }

    /// What it chose, for a report.
    pub(crate) fn sentence(&self) -> String {
        let is_choice = |line: &&String| CHOICES.iter().any(|choice| line.starts_with(choice));
        let shards = self.printed.iter().find_map(|line| line.split_once(": ")?.1.split_once(','));
        let shards = shards.map_or("", |(shards, _)| shards).to_owned();
        let choices = self.printed.iter().filter(is_choice).cloned();
        let choices: Vec<String> = std::iter::once(shards).chain(choices).collect();
        format!("The node ran as `layby serve --dir DIR` and chose: {}.", choices.join("; "))
    }
}

/// A default node with volumes of a size and a class each.
pub(crate) fn arm(
    plan: &Plan<'_>,
    volumes: &[(&'static str, u64, &str)],
) -> Result<(Arm, Defaults), Failure> {
    let (node, printed) = servers::default_node(plan.binary, plan.work)?;
    let defaults = Defaults::new(&printed, &plan.work.join("node"))?;
    let mut servers = Vec::new();
    for (name, bytes, class) in volumes {
        let size = bytes.to_string();
        servers.push(servers::volume(plan.binary, plan.work, name, &size, class)?);
    }
    let uris = servers.iter().map(|server| server.uri.clone()).collect();
    servers.push(node);
    let node = Some(plan.work.join("node"));
    Ok((Arm { name: "layby", uris, servers, node, nvm: None }, defaults))
}

/// Waits until the node in a directory, where there is one, has written back what it holds, and the
/// kernel what other servers wrote.
/// Without that a client that is measured alone is measured beside what came before it, which
/// makes a load beside it look harmless.
pub(crate) fn settle(plan: &Plan<'_>, node: Option<&Path>) -> Result<(), Failure> {
    process::run(&mut process::command("sync", plan.work))?;
    let Some(node) = node else { return Ok(()) };
    for _ in 0..LOOKS_MAX {
        let mut status = process::command(&plan.binary.to_string_lossy(), plan.work);
        status.args(["status", "--json", "--dir"]).arg(node);
        if dirty_bytes(&process::json(&mut status)?)? == 0 {
            return Ok(());
        }
        process::pause(LOOK)?;
    }
    Err(Failure::new("the node still has dirty blocks after two minutes without clients"))
}

/// Of all levels, in what `layby status --json` prints.
fn dirty_bytes(status: &Value) -> Result<u64, Failure> {
    let levels = status["levels"].as_array().filter(|levels| !levels.is_empty());
    let dirty = levels.and_then(|levels| {
        levels.iter().map(|level| level["dirty_bytes"].as_u64()).sum::<Option<u64>>()
    });
    dirty.ok_or_else(|| Failure::new("`layby status --json` has no `dirty_bytes` of each level"))
}

/// How often, and how long apart, a node is looked at that is to write back.
const LOOKS_MAX: u32 = 240;
const LOOK: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: dirty blocks of any level count, and a status that does not say of each is refused,
    /// since it would pass for a node at rest. Method: statuses by hand.
    #[test]
    fn dirty_blocks_of_all_levels_count() {
        let of = |levels: Value| dirty_bytes(&json!({ "levels": levels }));
        let dirty = |bytes: u64| json!({ "dirty_bytes": bytes });
        assert!(of(json!([dirty(0), dirty(4096)])).is_ok_and(|bytes| bytes == 4096));
        assert!(of(json!([dirty(0), dirty(0)])).is_ok_and(|bytes| bytes == 0));
        assert!(of(json!([dirty(0), {}])).is_err() && of(json!([])).is_err());
        assert!(dirty_bytes(&json!({})).is_err());
    }

    /// Goal: a report names shards, levels, I/O and classes and nothing that differs by run, and
    /// a node with levels of a configuration is refused. Method: lines as a node prints them.
    #[test]
    fn choices_are_found() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let printed = "node c665 in `/w/7/node`: 1 shard(s), blocks of 4KiB\n\
            levels by default: dram 64MiB; no NVM level: `/w/7/node` is not on a DAX file system\n\
            level dram: memory, 64MiB\nclass bulk: writes land in ssd\nrecovered 0 in 78 ms\n";
        let dir = Path::new("/w/7/node");
        let defaults = Defaults::new(&lines(printed), dir).expect("a default node");
        assert_eq!(
            defaults.sentence(),
            "The node ran as `layby serve --dir DIR` and chose: 1 shard(s); levels by default: \
             dram 64MiB; no NVM level: `DIR` is not on a DAX file system; level dram: memory, \
             64MiB; class bulk: writes land in ssd."
        );
        let configured = printed.replace("levels by default", "levels of layby.toml");
        assert!(Defaults::new(&lines(&configured), dir).is_err());
    }
}
