//! `layby volume`: volumes of a running node.

use super::deletion::{accept_loss, delete, list_deleted, undelete};
use super::safety::safety_table;
use super::snapshot::{drop_snapshot, make, snapshots};
use super::{amounts, amounts_text, ask, list_text};
use crate::arguments::{
    DiscardArguments, LevelAmount, NodeArguments, ShareArguments, VolumeArguments, VolumeCommand,
    VolumeCreateArguments, VolumeSetArguments,
};
use crate::output::{Failure, Output, bytes, micros, percent, table};
use layby_daemon::api::{
    CloudAnswer, DiscardAnswer, EncodingAnswer, OperationAnswer, TrafficAnswer, VolumeAnswer,
};
use layby_daemon::cloud::{is_misspelled, is_store};
use layby_daemon::config::{Amount, CompressionChoice, DiscardChoice, LimitsConfig, Name};
use layby_daemon::control::{UndeleteRequest, VolumeCreate, VolumePatch};
use layby_daemon::error::{Report, ReportKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) fn volume(arguments: VolumeArguments, output: &mut Output) -> Result<(), Failure> {
    match arguments.command {
        VolumeCommand::Create(arguments) => create(arguments, output),
        VolumeCommand::List { deleted: true, node } => list_deleted(&node, output),
        VolumeCommand::List { node, .. } => list(&node, output),
        VolumeCommand::Show { name, node } => {
            let answer = ask(&node, |client| async move { client.volume(&name).await })?;
            show(&answer, &node, output)
        }
        VolumeCommand::Resize { name, size, shrink, node } => {
            let patch = VolumePatch { size: Some(size), shrink, ..VolumePatch::default() };
            change(&name, patch, &node, output)
        }
        VolumeCommand::Set(arguments) => set(arguments, output),
        VolumeCommand::Drain { name, node, .. } => {
            ask(&node, |client| async move { client.drain(name.as_ref()).await })?;
            said("drained: every block is written back", &node, output)
        }
        VolumeCommand::Snapshot { name, snapshot, node } => make(&name, snapshot, &node, output),
        VolumeCommand::Snapshots { name, node } => snapshots(&name, &node, output),
        VolumeCommand::SnapshotDelete { name, snapshot, node } => {
            drop_snapshot(&name, &snapshot, &node, output)
        }
        VolumeCommand::Delete { name, data, number, node } => {
            delete(&name, (data, number), &node, output)
        }
        VolumeCommand::AcceptLoss { name, node } => accept_loss(&name, &node, output),
        VolumeCommand::Undelete { name, new_name, number, node } => {
            let request = UndeleteRequest { number, new_name };
            undelete(&name, &request, &node, output)
        }
    }
}

/// A sentence for people, and for scripts as `done`.
pub(super) fn said(
    sentence: &str,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    match node.json {
        true => output.json(&serde_json::json!({ "done": sentence })),
        false => output.line(sentence),
    }
}

/// The node has another working directory than the person who typed the path; a store has none.
/// What is almost a store's URL is the node's to refuse.
fn whole(path: PathBuf) -> std::io::Result<PathBuf> {
    let is_kept = is_store(&path) || is_misspelled(&path);
    if is_kept { Ok(path) } else { std::path::absolute(path) }
}

fn create(arguments: VolumeCreateArguments, output: &mut Output) -> Result<(), Failure> {
    let VolumeCreateArguments { name, size, class, path, read_only, allow, .. } = arguments;
    let VolumeCreateArguments {
        share,
        cap,
        limits,
        discards,
        ublk,
        key,
        shards,
        clone_of,
        take,
        compression,
        node,
        ..
    } = arguments;
    let refused = |cause: std::io::Error| {
        let error = format!("cannot create volume `{name}`");
        Report::from_io(error, &cause).state("nothing was changed")
    };
    let path = path.map(whole).transpose().map_err(refused)?;
    let here = std::env::current_dir().map_err(refused);
    let key = key.map(|key| Ok::<_, Report>(key.beside(&here?))).transpose()?;
    let (share, cap) = (amounts("--share", &share)?, amounts("--cap", &cap)?);
    let (class, limits) = (Some(class), limits.into());
    let DiscardArguments { discard, discard_delay, discard_bandwidth } = discards;
    let discard = discard.map(Into::into).unwrap_or_default();
    let discard_delay = discard_delay.unwrap_or_default();
    let request = VolumeCreate {
        name,
        size,
        class,
        path,
        read_only,
        allow,
        share,
        cap,
        limits,
        discard,
        discard_delay,
        discard_bandwidth,
        ublk,
        key,
        shards,
        clone_of,
        compression: compression.map(Into::into),
        take,
    };
    let answer = ask(&node, |client| async move { client.volume_create(&request).await })?;
    if node.json {
        return output.json(&answer);
    }
    let done = if take { "took" } else { "created" };
    output.line(&format!(
        "{done} volume {} of {}, class {}, in `{}`",
        answer.name,
        bytes(answer.size_bytes),
        answer.class,
        answer.path
    ))?;
    for note in &answer.notes {
        output.line(&format!("note: {note}"))?;
    }
    match &answer.ublk_device {
        Some(device) => output.line(&format!("block device {device}")),
        None => Ok(()),
    }
}

fn change(
    name: &Name,
    patch: VolumePatch,
    node: &NodeArguments,
    output: &mut Output,
) -> Result<(), Failure> {
    let answer = ask(node, |client| async move { client.volume_set(name, &patch).await })?;
    show(&answer, node, output)
}

/// A map to send, or `None` to leave the old one.
pub(super) type NewAmounts = Option<BTreeMap<Name, Amount>>;

/// What the flags say of shares and caps.
pub(super) fn new_shares(arguments: &ShareArguments) -> Result<(NewAmounts, NewAmounts), Report> {
    let ShareArguments { share, no_share, cap, no_cap } = arguments;
    let new = |flag, given: &Vec<LevelAmount>, none: bool| {
        (none || !given.is_empty()).then(|| amounts(flag, given)).transpose()
    };
    Ok((new("--share", share, *no_share)?, new("--cap", cap, *no_cap)?))
}

fn set(arguments: VolumeSetArguments, output: &mut Output) -> Result<(), Failure> {
    let VolumeSetArguments { name, class, read_only, allow, allow_all, .. } = arguments;
    let VolumeSetArguments { shares, limits, discards, .. } = arguments;
    let DiscardArguments { discard, discard_delay, discard_bandwidth } = discards;
    let VolumeSetArguments { ublk, compression, node, .. } = arguments;
    let (share, cap) = new_shares(&shares)?;
    let allow = (allow_all || !allow.is_empty()).then_some(allow);
    let limits = limits.into();
    let (size, shrink) = (None, false);
    let discard = discard.map(Into::into);
    let patch = VolumePatch {
        size,
        shrink,
        class,
        read_only,
        allow,
        share,
        cap,
        limits,
        discard,
        discard_delay,
        discard_bandwidth,
        ublk,
        compression: compression.map(Into::into),
    };
    let is_same =
        |json: &dyn Fn(&VolumePatch) -> String| json(&patch) == json(&VolumePatch::default());
    if is_same(&|patch| serde_json::to_string(patch).expect("a patch has string keys")) {
        return Err(Report::new(ReportKind::Invalid, format!("cannot change volume `{name}`"))
            .cause("nothing was named that is to change")
            .state("nothing was changed")
            .hint("`layby volume set --help` lists what can be set")
            .into());
    }
    change(&name, patch, &node, output)
}

fn list(node: &NodeArguments, output: &mut Output) -> Result<(), Failure> {
    let volumes = ask(node, |client| async move { client.volumes().await })?;
    if node.json {
        return output.json(&volumes);
    }
    output.line(&volume_table(&volumes))?;
    safety_table(&volumes).map_or(Ok(()), |table| output.line(&table))
}

pub(super) fn volume_table(volumes: &[VolumeAnswer]) -> String {
    let mut table = table(
        [
            "volume",
            "class",
            "size",
            "clients",
            "reads",
            "read p99",
            "writes",
            "write p99",
            "hits",
            "dirty",
            "held",
        ],
        2,
    );
    for volume in volumes {
        let traffic = &volume.traffic;
        table.add_row([
            volume.name.to_string(),
            volume.class.to_string(),
            bytes(volume.size_bytes),
            traffic.connections.to_string(),
            traffic.read.requests.to_string(),
            micros(traffic.read.latency_us_p99),
            traffic.write.requests.to_string(),
            micros(traffic.write.latency_us_p99),
            hit_ratio(traffic),
            bytes(traffic.dirty_bytes.values().sum::<u64>() + in_no_store(volume)),
            traffic.throttled.to_string(),
        ]);
    }
    let absent =
        volumes.iter().filter_map(|volume| Some((&volume.name, volume.not_served.as_ref()?)));
    let absent = absent.map(|(name, why)| format!("\nvolume {name} is not served: {why}"));
    format!("{table}{}", absent.collect::<String>())
}

/// Bytes of a volume's journal that its store does not have.
fn in_no_store(volume: &VolumeAnswer) -> u64 {
    volume.cloud.as_ref().map_or(0, |cloud| cloud.dirty_bytes)
}

pub(super) fn hit_ratio(traffic: &TrafficAnswer) -> String {
    let hits: u64 = traffic.hits.values().sum();
    percent(hits, hits + traffic.misses)
}

fn show(volume: &VolumeAnswer, node: &NodeArguments, output: &mut Output) -> Result<(), Failure> {
    if node.json {
        return output.json(volume);
    }
    let access = if volume.read_only { "read only" } else { "read and write" };
    let allowed = if volume.allow.is_empty() {
        "everybody".to_owned()
    } else {
        list_text(volume.allow.iter())
    };
    let guest = if volume.guest_connected { "a guest is connected" } else { "no guest" };
    let vhost = volume.vhost_socket.as_ref();
    let vhost = vhost.map_or_else(|| "off".to_owned(), |path| format!("`{path}`, {guest}"));
    for (word, text) in [
        ("volume", format!("{} (number {}, {})", volume.name, volume.id, shards_text(volume))),
        ("size", bytes(volume.size_bytes)),
        ("class", volume.class.to_string()),
        ("backing", format!("`{}`", volume.path)),
        ("access", format!("{access}, for {allowed}")),
        ("shares", amounts_text(&volume.share)),
        ("caps", amounts_text(&volume.cap)),
        ("limits", limits_text(&volume.limits)),
        ("held", held_text(&volume.traffic)),
        ("discards", discards_text(volume)),
        ("vhost", vhost),
        ("ublk", ublk_text(volume)),
    ] {
        output.line(&format!("{word:<8} {text}"))?;
    }
    if let Some(source) = &volume.clone_of {
        output.line(&format!("{:<8} of `{source}`", "clone"))?;
    }
    if let Some(why) = &volume.not_served {
        let again =
            if is_store(Path::new(&volume.path)) { "; the node goes on trying" } else { "" };
        output.line(&format!("{:<8} no: {why}{again}", "served"))?;
    }
    if let Some(cloud) = &volume.cloud {
        output.line(&format!("{:<8} {}", "cloud", cloud_text(cloud)))?;
    }
    if let Some(encoding) = &volume.encoding {
        output.line(&format!("{:<8} {}", "objects", encoding_text(encoding)))?;
    }
    for note in &volume.notes {
        output.line(&format!("{:<8} {note}", "note"))?;
    }
    output.line(&traffic_table(&volume.traffic))
}

/// How the volume's objects are encrypted and compressed.
fn encoding_text(of: &EncodingAnswer) -> String {
    let cipher = match (&of.cipher, &of.key) {
        (Some(cipher), Some(key)) => format!("encrypted by {cipher}, key from `{key}`"),
        _ => "not encrypted".to_owned(),
    };
    let compression = match of.compression {
        CompressionChoice::None => "not compressed",
        CompressionChoice::Zstd => "compressed by zstd",
        CompressionChoice::Lz4 => "compressed by lz4",
    };
    let whose = if of.is_own_compression { "the volume's own choice" } else { "as `[cloud]` says" };
    format!("{cipher}; {compression}, {whose}")
}

/// How safe the volume is in its store.
fn cloud_text(of: &CloudAnswer) -> String {
    let safe = match (of.is_drained, of.link.as_str()) {
        (true, "lost") => "the store had all before".to_owned(),
        (true, _) => "the store has all".to_owned(),
        (false, "lost") => {
            let bytes = bytes(of.dirty_bytes);
            format!("{bytes} will not reach the store any more (`layby salvage` saves them)")
        }
        (false, _) => format!(
            "{} not in the store, for {:.1} s (journal of {}), {}",
            bytes(of.dirty_bytes),
            of.dirty_seconds,
            bytes(of.journal_bytes),
            match of.drain_seconds {
                Some(seconds) => format!("there in {seconds:.1} s by the forecast"),
                None => "- by the forecast: the link is silent, or not known yet".to_owned(),
            }
        ),
    };
    let link = match of.down_seconds {
        Some(seconds) => format!("link {} for {seconds:.0} s", of.link),
        None => format!("link {}", of.link),
    };
    let ago = of.last_error_seconds.map(|seconds| format!(" {seconds:.0} s ago"));
    let ago = ago.unwrap_or_default();
    let error = of.last_error.as_ref().map(|e| format!("; last error{ago}: {e}"));
    let damaged = match of.damaged {
        0 => String::new(),
        reads => format!("; {reads} read(s) failed, since what the store has is damaged"),
    };
    let error = damaged + &error.unwrap_or_default();
    let refused = of.last_refusal.as_ref();
    let refused = refused.map(|why| format!("; {} calls refused, last {why}", of.refused));
    let refused = refused.unwrap_or_default();
    let resting = of.read_cache_fault.as_ref();
    let resting = resting.map(|why| format!("; the read cache takes nothing: {why}"));
    let resting = resting.unwrap_or_default() + &file_faults_text(of);
    let amplification = of.space_amplification.unwrap_or(1.0);
    let kept = match of.snapshots.unwrap_or(0) {
        0 => String::new(),
        count => format!(", {count} snapshot(s) that keep {} more", bytes(of.kept_bytes)),
    };
    format!(
        "{link}; {safe}; {} segments of {} ({amplification:.2} times what lives{kept}), \
         {} requests{error}{refused}{resting}",
        of.segments,
        bytes(of.stored_bytes),
        of.requests,
    )
}

/// What is wrong with the volume's own files.
fn file_faults_text(of: &CloudAnswer) -> String {
    let journal = of.journal_fault.as_ref();
    let journal = journal.map(|why| {
        format!("; WRITES FAIL until the node is started again, since the journal failed: {why}")
    });
    let map = of.map_fault.as_ref();
    let map =
        map.map(|why| format!("; the map file cannot be written, writes fill the journal: {why}"));
    journal.unwrap_or_default() + &map.unwrap_or_default()
}

/// How discards reach the home, and what became of them.
fn discards_text(volume: &VolumeAnswer) -> String {
    let mut mode = match volume.discard {
        DiscardChoice::Delayed => format!("delayed by {}", volume.discard_delay),
        other => other.to_string(),
    };
    if let Some(rate) = volume.discard_bandwidth {
        mode = format!("{mode}, {rate}/s at most");
    }
    let of = &volume.traffic.discards;
    format!(
        "{mode}; {} received ({}), {} cancelled ({}), {} merged, {} sent ({}{}), {} wait ({})",
        of.received,
        bytes(of.received_bytes),
        of.cancelled,
        bytes(of.cancelled_bytes),
        of.merged,
        of.sent,
        bytes(of.sent_bytes),
        sent_causes(of),
        of.pending,
        bytes(of.pending_bytes)
    )
}

/// What had discards sent before their delay was over, where anything had.
fn sent_causes(of: &DiscardAnswer) -> String {
    let causes = [
        ("for a write", of.sent_write),
        ("for a checkpoint", of.sent_checkpoint),
        ("for want of room", of.sent_full),
        ("by a change", of.sent_change),
    ];
    let early = causes.into_iter().filter(|(_, ranges)| *ranges > 0);
    early.map(|(cause, ranges)| format!(", {ranges} {cause}")).collect()
}

/// Where a volume is served.
fn shards_text(volume: &VolumeAnswer) -> String {
    match volume.shards {
        1 => format!("shard {}", volume.shard),
        shards => format!("{shards} shards"),
    }
}

/// A volume's block device.
fn ublk_text(volume: &VolumeAnswer) -> String {
    match (&volume.ublk_device, volume.ublk) {
        (Some(device), _) => format!("`{device}`"),
        (None, true) => "asked for and not there; the node's log says why".to_owned(),
        (None, false) => "off".to_owned(),
    }
}

/// Limits with their bursts.
pub(super) fn limits_text(limits: &LimitsConfig) -> String {
    let requests = limits.iops_max.zip(limits.iops_burst_or_default());
    let requests = requests.map(|(max, burst)| format!("{max} requests/s ({burst} at once)"));
    let data = limits.bandwidth_max.zip(limits.bandwidth_burst_or_default());
    let data = data.map(|(max, burst)| format!("{}/s ({} at once)", bytes(max.0), bytes(burst)));
    let texts: Vec<String> = requests.into_iter().chain(data).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

/// What limits made wait.
pub(super) fn held_text(traffic: &TrafficAnswer) -> String {
    format!(
        "{} request(s) by limits, {:.3} s in sum, {} now",
        traffic.throttled, traffic.throttled_seconds, traffic.throttled_now
    )
}

/// Requests and where reads were found.
pub(super) fn traffic_table(traffic: &TrafficAnswer) -> String {
    let headings = ["requests", "count", "data", "errors", "mean", "p50", "p99", "p99.9"];
    let mut operations = table(headings, 1);
    let rows = [("read", &traffic.read), ("write", &traffic.write), ("other", &traffic.other)];
    for (word, operation) in rows {
        operations.add_row(operation_row(word, operation));
    }
    let mut levels = table(["level", "read hits", "held", "dirty"], 1);
    for (level, hits) in &traffic.hits {
        let of = |map: &BTreeMap<String, u64>| bytes(map.get(level).copied().unwrap_or(0));
        let (held, dirty) = (of(&traffic.cached_bytes), of(&traffic.dirty_bytes));
        levels.add_row([level.clone(), format!("{hits} blocks"), held, dirty]);
    }
    let missed = format!("{} blocks", traffic.misses);
    levels.add_row(["(backing)".to_owned(), missed, "-".to_owned(), "-".to_owned()]);
    format!("{operations}\n{levels}")
}

fn operation_row(word: &str, operation: &OperationAnswer) -> [String; 8] {
    [
        word.to_owned(),
        operation.requests.to_string(),
        bytes(operation.bytes),
        operation.errors.to_string(),
        micros(operation.latency_us_mean),
        micros(operation.latency_us_p50),
        micros(operation.latency_us_p99),
        micros(operation.latency_us_p999),
    ]
}
