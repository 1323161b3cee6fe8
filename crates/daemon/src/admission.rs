//! Whether what volumes with a latency objective are promised can be kept by the devices.
//!
//! How: a volume of a class with a `latency_objective` is promised as much load as its limits let
//! through (less, where its class's limits do). Each request takes the slower of read and write
//! from the device under the level where the class's writes land, and its bytes beyond 4 KiB their
//! time. A device is promised up to [`PROMISED_PERCENT_MAX`] of its time, since waiting grows
//! without bound towards all of it. A change that raises a promise beyond that is refused, and so
//! is an objective that the device misses when idle.
//! Invariant: nothing is refused that lowers what is promised, and nothing where no device was
//! described. Volumes without limits are promised nothing.
//! Cost: a pass over the volumes per change.
//! Not for: other levels' reads, and homes of volumes that do not fit: an estimate, no proof.

use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::{ClassConfig, MAIN_DEVICE, Name};
use crate::control::View;
use crate::error::{Report, ReportKind};
use crate::metrics::durability;
use layby_device::{Direction, LATENCY_BYTES, Model};
use layby_types::{Nanos, format_bytes};

/// How much of a device's time may be promised, in percent.
const PROMISED_PERCENT_MAX: u64 = 70;

/// What a device is promised to do in a second.
#[derive(Default)]
struct Promise {
    /// Nanoseconds of one channel.
    time_ns: u128,
    /// Who was promised.
    names: Vec<String>,
    /// Volumes whose objective is below what an idle device takes, each with its objective.
    missed: Vec<(Name, Nanos)>,
}

/// Refuses a change that promises more than the devices can keep.
///
/// # Errors
/// A report with what is promised, what is left, and what can be done.
pub(crate) fn check(
    devices: &[Model],
    before: &View,
    after: &View,
    error: &str,
) -> Result<(), Report> {
    for device in devices {
        let (was, now) = (promise(before, device), promise(after, device));
        let newly = now.missed.iter().find(|missed| !was.missed.contains(missed));
        if let Some((name, objective)) = newly {
            return Err(missed(device, name, *objective, error));
        }
        if now.time_ns > was.time_ns && now.time_ns > room(device) {
            return Err(refused(device, &was, &now, error));
        }
    }
    Ok(())
}

/// What of the promises that a node starts with cannot be kept: a node is not kept from its start
/// by what it was promised while its devices were faster.
pub(crate) fn notes(devices: &[Model], view: &View) -> Vec<String> {
    let mut notes = Vec::new();
    for device in devices {
        let promise = promise(view, device);
        if promise.time_ns > room(device) {
            notes.push(format!(
                "{} is promised {} requests/s of 4KiB, more than the {} that it can keep",
                place_of(device),
                requests(device, promise.time_ns),
                requests(device, room(device))
            ));
        }
        notes.extend(promise.missed.iter().map(|(volume, objective)| {
            let place = place_of(device);
            format!("volume `{volume}` cannot be served within {objective} by {place}")
        }));
    }
    notes
}

fn promise(view: &View, device: &Model) -> Promise {
    let mut promise = Promise::default();
    for (name, class) in view.classes() {
        let Some(objective) = class.latency_objective else { continue };
        let (landing, _) = durability(view, name.as_str(), class.durable_writes);
        let landing = if landing == "backing" { MAIN_DEVICE } else { &landing };
        if landing != device.name {
            continue;
        }
        let members =
            view.catalog.volumes.iter().filter(|(_, record)| {
                record.class == *name && record.phase != VolumePhase::Deleting
            });
        let members: Vec<_> = members.collect();
        promise.time_ns += time_of(device, class, &members);
        for (volume, record) in members {
            if !record.limits.is_none() {
                promise.names.push(format!("`{volume}`"));
            }
            if objective.0 < service(device) {
                promise.missed.push((volume.clone(), objective.0));
            }
        }
    }
    promise
}

/// Nanoseconds of a channel that the volumes of a class may take in a second.
fn time_of(device: &Model, class: &ClassConfig, members: &[(&Name, &VolumeRecord)]) -> u128 {
    let sum = |of: &dyn Fn(&VolumeRecord) -> Option<u64>| {
        members.iter().filter_map(|(_, record)| of(record)).map(u128::from).sum::<u128>()
    };
    let capped = |sum: u128, cap: Option<u64>| cap.map_or(sum, |cap| sum.min(u128::from(cap)));
    let count = capped(sum(&|record| record.limits.iops_max), class.limits.iops_max);
    let bytes = sum(&|record| record.limits.bandwidth_max.map(|size| size.0));
    let bytes = capped(bytes, class.limits.bandwidth_max.map(|size| size.0));
    let further = bytes.saturating_sub(count * u128::from(LATENCY_BYTES));
    let latency = u128::from(service(device).0);
    let moving = match device.channel_bytes_per_second {
        0 => further / u128::from(LATENCY_BYTES) * latency,
        speed => further * 1_000_000_000 / u128::from(speed),
    };
    count * latency + moving
}

/// The slower of a read and a write of 4 KiB on an idle device.
fn service(device: &Model) -> Nanos {
    let of = |direction| device.service(direction, LATENCY_BYTES);
    of(Direction::Read).max(of(Direction::Write))
}

/// Nanoseconds of channels that may be promised in a second.
fn room(device: &Model) -> u128 {
    u128::from(device.channels) * 1_000_000_000 * u128::from(PROMISED_PERCENT_MAX) / 100
}

fn requests(device: &Model, time_ns: u128) -> u128 {
    time_ns / u128::from(service(device).0)
}

fn place_of(device: &Model) -> String {
    match device.name.as_str() {
        MAIN_DEVICE => "the volumes' homes".to_owned(),
        name => format!("level `{name}`"),
    }
}

fn figures(device: &Model) -> String {
    let mut text = format!(
        "a 4KiB read of {}, a write of {}, {} at once",
        device.read, device.write, device.channels
    );
    if device.channel_bytes_per_second > 0 {
        text += &format!(", {}/s each", format_bytes(device.channel_bytes_per_second));
    }
    text
}

fn missed(device: &Model, volume: &Name, objective: Nanos, error: &str) -> Report {
    let cause = format!(
        "volume `{volume}` shall be served within {objective}, and {} takes {} when idle ({})",
        place_of(device),
        service(device),
        figures(device)
    );
    Report::new(ReportKind::Full, error)
        .cause(cause)
        .state("nothing was changed")
        .hint("raise the class's latency_objective, or let its writes land in a faster level")
}

fn refused(device: &Model, was: &Promise, now: &Promise, error: &str) -> Report {
    let (all, promised) = (room(device), was.time_ns);
    let whom = match was.names.as_slice() {
        [] => "nobody".to_owned(),
        names => names.join(", "),
    };
    let cause = format!(
        "classes with a latency objective may be promised {} requests/s of 4KiB of {} ({}); {} are \
         promised to {whom}, {} are left, and this adds {}",
        requests(device, all),
        place_of(device),
        figures(device),
        requests(device, promised),
        requests(device, all.saturating_sub(promised)),
        requests(device, now.time_ns - promised)
    );
    Report::new(ReportKind::Full, error).cause(cause).state("nothing was changed").hint(
        "lower iops_max or bandwidth_max of this volume or of those, choose a class without an \
         objective, or measure the device anew with `layby probe`",
    )
}

#[cfg(test)]
mod tests {
    use crate::config::{LimitsConfig, Name, Size};
    use crate::control::tests::MockNode;
    use crate::control::{ClassPatch, VolumeCreate, VolumePatch};
    use crate::error::ReportKind;

    /// 0.7 of four channels at 20 µs: 140,000 requests in a second.
    const DEVICE: &str = "[[device]]\nname = \"nvm\"\nread = \"10us\"\nwrite = \"20us\"\n\
        channels = 4\nbandwidth = \"1GiB/s\"\n";

    fn node(objective: &str) -> (tempfile::TempDir, MockNode) {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let path = dir.path().join("devices.toml");
        std::fs::write(&path, DEVICE).expect("a writable directory");
        let text = format!(
            "[node]\ndevices = [\"{}\"]\n[class.critical]\nlatency_objective = \"{objective}\"\n\
             [volume.a]\nsize = \"1MiB\"\nclass = \"critical\"\nlimits = {{ iops_max = 100000 }}\n",
            path.display()
        );
        (dir, MockNode::new(&text))
    }

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn create(volume: &str, class: &str, limits: LimitsConfig) -> VolumeCreate {
        VolumeCreate {
            name: name(volume),
            size: Some(Size(1 << 20)),
            class: Some(name(class)),
            path: None,
            read_only: false,
            allow: Vec::new(),
            share: Default::default(),
            cap: Default::default(),
            limits,
            discard: Default::default(),
            discard_delay: Default::default(),
            discard_bandwidth: None,
            ublk: false,
            key: None,
            shards: 1,
            clone_of: None,
            compression: None,
            take: false,
        }
    }

    fn iops(max: u64) -> LimitsConfig {
        LimitsConfig { iops_max: Some(max), ..LimitsConfig::default() }
    }

    /// Goal: no more is promised than can be kept, by any way to it, and the reason is told with
    /// its figures; what lowers a promise passes. Method: creation, a move, a limit, a class.
    #[tokio::test]
    async fn promises_are_kept() {
        let (_dir, node) = node("2ms");
        let control = &node.control;
        let over = create("b", "critical", iops(40_001));
        let report = control
            .volume_create(over, crate::control::Authority::Owner)
            .await
            .expect_err("too much");
        assert_eq!(report.kind, ReportKind::Full);
        for part in ["140000", "100000 are promised to `a`", "40000 are left", "adds 40001"] {
            assert!(report.cause.contains(part), "`{part}` is missing in {report}");
        }
        control
            .volume_create(create("b", "critical", iops(40_000)), crate::control::Authority::Owner)
            .await
            .expect("it fits");
        control
            .volume_create(create("c", "normal", iops(900_000)), crate::control::Authority::Owner)
            .await
            .expect("no objective");
        control
            .volume_create(
                create("d", "critical", LimitsConfig::default()),
                crate::control::Authority::Owner,
            )
            .await
            .expect("nothing is promised");
        let to = VolumePatch { class: Some(name("critical")), ..VolumePatch::default() };
        assert!(control.volume_set(&name("c"), to).await.is_err());
        let more = VolumePatch { limits: iops(50_000), ..VolumePatch::default() };
        assert!(control.volume_set(&name("b"), more).await.is_err());
        let less = VolumePatch { limits: iops(99_000), ..VolumePatch::default() };
        control.volume_set(&name("a"), less).await.expect("it lowers what is promised");
        let objective = Some("1s".parse().expect("a time"));
        let class = ClassPatch { latency_objective: objective, ..ClassPatch::default() };
        control.class_set(&name("normal"), class).await.expect("its level is not described");
    }

    /// Goal: an objective below what an idle device takes is refused. Method: 15 µs on 20 µs, for
    /// a new volume and for a class; the volume that had it before stays.
    #[tokio::test]
    async fn objectives_that_cannot_be_met_are_refused() {
        let (_dir, node) = node("15us");
        let control = &node.control;
        let new = create("b", "critical", LimitsConfig::default());
        let report = control
            .volume_create(new, crate::control::Authority::Owner)
            .await
            .expect_err("no device is so fast");
        assert!(report.cause.contains("within 15us") && report.cause.contains("20us"), "{report}");
        let time = |text: &str| ClassPatch {
            latency_objective: Some(text.parse().expect("a time")),
            ..ClassPatch::default()
        };
        assert!(control.class_set(&name("critical"), time("19us")).await.is_err());
        control.class_set(&name("critical"), time("20us")).await.expect("an idle device meets it");
    }
}
