//! The claims: which servers, which loads, which question.
//!
//! How: an entry starts its servers and fills them; the rounds are the caller's.

use super::fio::{self, EXPORT_BYTES, Load};
use super::report::{Measured, Report};
use super::{Comparison, servers};
use crate::process::{self, Failure};
use serde_json::Value;
use std::path::Path;

/// Where an entry finds and puts what it needs.
pub(crate) struct Plan<'a> {
    pub(crate) root: &'a Path,
    pub(crate) binary: &'a Path,
    pub(crate) work: &'a Path,
}

/// DRAM holds the whole export, so every read after the filling is a hit.
const READ_HIT_CONFIG: &str = "\
[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"256MiB\"\n\
[[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"256MiB\"\n\
[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"1GiB\"\n";

/// SSD alone, with room for 4 GiB of blocks beside the log's own slack; [`metadata`]'s export is
/// larger, so that the level is full.
const METADATA_CONFIG: &str = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"4824MiB\"\n";
const METADATA_EXPORT: &str = "5GiB";
/// The bound that the project promises, per cached block of 4 KiB.
const METADATA_BYTES_PER_BLOCK_MAX: f64 = 32.0;

/// What recording may cost: 2 % of the requests.
const RECORDED_RATIO_MIN: f64 = 0.98;

/// Random reads that hit DRAM.
pub(crate) fn read_hit(plan: &Plan<'_>) -> Result<Comparison, Failure> {
    let node = servers::node(plan.binary, plan.work, READ_HIT_CONFIG)?;
    let layby = servers::volume(plan.binary, plan.work, "layby", &bytes(), "critical")?;
    let memory = format!("size={EXPORT_BYTES}");
    let nbdkit = servers::nbdkit(plan.work, "nbdkit memory", &["memory", &memory])?;
    let file = plan.work.join("qemu.raw");
    servers::empty_file(&file, EXPORT_BYTES)?;
    let qemu = servers::qemu_nbd(plan.work, "qemu-nbd", &file)?;
    let loads = [("QD1", 1), ("QD32", 32)];
    let loads = loads.map(|(name, depth)| Load::of_blocks(name, "randread", depth));
    let question = "Is a read that hits DRAM as fast as the best peer's?";
    filled(plan, question, vec![layby, nbdkit, qemu, node], loads.into())
}

/// The same reads with and without a recorder: one volume under two names.
pub(crate) fn record(plan: &Plan<'_>) -> Result<Comparison, Failure> {
    let node = servers::node(plan.binary, plan.work, READ_HIT_CONFIG)?;
    let mut off = servers::volume(plan.binary, plan.work, "layby", &bytes(), "critical")?;
    off.name = "layby, not recorded";
    off.peer = true;
    let recorder = servers::Recording { binary: plan.binary.into(), work: plan.work.into() };
    let on = off.recorded("layby, recorded", recorder);
    let loads = [("QD1", 1), ("QD32", 32)];
    let loads = loads.map(|(name, depth)| Load::of_blocks(name, "randread", depth));
    let question = "Is a node that is recorded as fast as one that is not?";
    let comparison = filled(plan, question, vec![on, off, node], loads.into())?;
    Ok(Comparison { ratio_min: RECORDED_RATIO_MIN, ..comparison })
}

/// What encryption may cost and be called free: 5 % of the requests.
const ENCRYPTED_RATIO_MIN: f64 = 0.95;

/// An SSD level that holds the whole export, below so little memory that reads go to it.
const ENCRYPTION_CONFIG: &str = "\
[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"1MiB\"\n\
[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"1GiB\"\n";

/// The same volume on a clear and on an encrypted SSD level, of two nodes.
pub(crate) fn encryption(plan: &Plan<'_>) -> Result<Comparison, Failure> {
    // Its owner alone knows it, and nothing of worth is encrypted by it.
    let key = format!("key = \"command:echo {}\"\n", "1f".repeat(32));
    let (mut servers, mut nodes) = (Vec::new(), Vec::new());
    for (name, keys) in [("layby-encrypted", key.as_str()), ("layby-clear", "")] {
        let work = plan.work.join(name);
        let config = format!("{ENCRYPTION_CONFIG}{keys}");
        nodes.push(servers::node(plan.binary, &work, &config)?);
        let mut volume = servers::volume(plan.binary, &work, name, &bytes(), "normal")?;
        volume.peer = keys.is_empty();
        fio::fill(plan.root, &volume, &EXPORT_BYTES.to_string())?;
        servers.push(volume);
    }
    let writes = |name, depth, writes_per_flush, block| Load {
        writes_per_flush,
        block,
        ..Load::of_blocks(name, "randwrite", depth)
    };
    let loads = vec![
        writes("writes, QD1, flush each", 1, 1, "4k"),
        writes("writes, QD32, flush each 32", 32, 32, "4k"),
        writes("writes of 256 KiB, QD8, flush each 32", 8, 32, "256k"),
        Load::of_blocks("reads, QD1", "randread", 1),
        Load::of_blocks("reads, QD32", "randread", 32),
        Load { block: "256k", ..Load::of_blocks("reads of 256 KiB, QD8", "randread", 8) },
    ];
    let question = "Is an encrypted SSD level as fast as a clear one?";
    Ok(Comparison { question, servers, loads, ratio_min: ENCRYPTED_RATIO_MIN, nodes })
}

/// Random writes, each or each 32 followed by a flush.
pub(crate) fn durable(plan: &Plan<'_>) -> Result<Comparison, Failure> {
    let node = servers::node(plan.binary, plan.work, READ_HIT_CONFIG)?;
    let nvm = servers::volume(plan.binary, plan.work, "layby-nvm", &bytes(), "critical")?;
    let ssd = servers::volume(plan.binary, plan.work, "layby-ssd", &bytes(), "normal")?;
    let file = plan.work.join("nbdkit.raw");
    servers::empty_file(&file, EXPORT_BYTES)?;
    let path = file.to_string_lossy().into_owned();
    let nbdkit = servers::nbdkit(plan.work, "nbdkit file", &["file", &path])?;
    let loads = [("QD1, flush each", 1, 1), ("QD32, flush each 32", 32, 32)];
    let loads = loads.map(|(name, depth, writes_per_flush)| Load {
        writes_per_flush,
        ..Load::of_blocks(name, "randwrite", depth)
    });
    let question = "Is a flushed write as fast as nbdkit's on the same disk?";
    filled(plan, question, vec![nvm, ssd, nbdkit, node], loads.into())
}

/// Fills every server; the node itself comes last, only so that it ends last, and is not measured.
fn filled(
    plan: &Plan<'_>,
    question: &'static str,
    mut servers: Vec<servers::Server>,
    loads: Vec<Load>,
) -> Result<Comparison, Failure> {
    let nodes = servers.pop().into_iter().collect();
    for server in &servers {
        fio::fill(plan.root, server, &EXPORT_BYTES.to_string())?;
    }
    Ok(Comparison { question, servers, loads, ratio_min: 1.0, nodes })
}

/// Fills 4 GiB of a level and asks the node what it spends on knowing where the blocks are.
pub(crate) fn metadata(plan: &Plan<'_>) -> Result<Measured, Failure> {
    let _node = servers::node(plan.binary, plan.work, METADATA_CONFIG)?;
    let volume = servers::volume(plan.binary, plan.work, "layby", METADATA_EXPORT, "normal")?;
    fio::fill(plan.root, &volume, METADATA_EXPORT.trim_end_matches("iB"))?;
    let mut status = process::command(&plan.binary.to_string_lossy(), plan.work);
    status.args(["status", "--json", "--dir"]).arg(plan.work.join("node"));
    let status = process::json(&mut status)?;
    let wanted = |key: &str| {
        let missing = || Failure::new(format!("`layby status --json` has no number `{key}`"));
        sum_of(&status, key).ok_or_else(missing)
    };
    let (held, blocks) = (wanted("metadata_bytes")?, wanted("blocks_resident")?.max(1.0));
    let slack = wanted("metadata_slack_bytes")?;
    let per_block = (held - slack) / blocks;
    let verdict = if per_block <= METADATA_BYTES_PER_BLOCK_MAX { "yes" } else { "no" };
    let heading = format!(
        "Is metadata within {METADATA_BYTES_PER_BLOCK_MAX} bytes per 4 KiB block, plus index \
         slack? {verdict}: {per_block:.1}, plus {:.1}.",
        slack / blocks
    );
    let table = format!(
        "| level | blocks resident | metadata (bytes) | of it index slack (bytes) | per block \
         without slack (bytes) | per block with slack (bytes) |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n\
         | ssd, full | {blocks:.0} | {held:.0} | {slack:.0} | {per_block:.1} | {:.1} |",
        held / blocks
    );
    Ok(Measured::new(vec![status], |_| Ok(Report { heading, table })))
}

/// The sum of every number named `key`, at any depth.
fn sum_of(value: &Value, key: &str) -> Option<f64> {
    let inner: Vec<f64> = match value {
        Value::Object(map) => {
            let own = map.get(key).and_then(Value::as_f64);
            map.values().filter_map(|value| sum_of(value, key)).chain(own).collect()
        }
        Value::Array(list) => list.iter().filter_map(|value| sum_of(value, key)).collect(),
        _ => Vec::new(),
    };
    (!inner.is_empty()).then(|| inner.iter().sum())
}

fn bytes() -> String {
    EXPORT_BYTES.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: figures are found wherever the status keeps them. Method: two levels and a stranger.
    #[test]
    fn figures_are_summed_over_levels() {
        let status =
            json!({ "levels": [{ "metadata_bytes": 3 }, { "metadata_bytes": 4 }], "x": 1 });
        assert_eq!(sum_of(&status, "metadata_bytes"), Some(7.0));
        assert_eq!(sum_of(&status, "blocks_resident"), None);
    }
}
