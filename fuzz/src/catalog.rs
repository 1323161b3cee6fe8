//! The catalog's file: any bytes are refused with an explanation or are a catalog.
//!
//! How: a file that is sound but for its checksum says in its refusal which one it should have; it
//! is read again with that one, so that the fuzzer is not stopped by it.
//! Invariant: a catalog that was read is written and read again unchanged.
//! Not for: what a node makes of a catalog, which removes files of volumes that were deleted.

use layby_daemon::catalog::{
    Catalog, DeletedRecord, DeviceIdentity, EncryptionRecord, LevelRecord, Live, NodeId,
    VolumePhase, VolumeRecord,
};
use layby_daemon::config::{Config, Kind, Name, Overrides, Size};
use layby_daemon::error::{Report, ReportKind};
use std::path::Path;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    match parse(bytes) {
        Ok(catalog) => round_trip(&catalog),
        Err(report) => {
            explained(&report);
            let Some(sealed) = sealed(bytes, &report) else { return };
            match parse(&sealed) {
                Ok(catalog) => round_trip(&catalog),
                Err(report) => explained(&report),
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Catalog, Report> {
    Catalog::parse(Path::new("catalog.json"), bytes)
}

fn explained(report: &Report) {
    assert!(matches!(report.kind, ReportKind::Corrupt | ReportKind::Invalid), "{report}");
    let lines = [&report.error, &report.cause, &report.state, &report.hint];
    assert!(lines.iter().all(|line| !line.is_empty()), "{report}");
}

/// `bytes` with the checksum that `report` asks for.
fn sealed(bytes: &[u8], report: &Report) -> Option<Vec<u8>> {
    let sums = report.cause.strip_prefix("checksum mismatch: stored ")?;
    let (stored, computed) = sums.split_once(", computed ")?;
    let at = bytes.windows(stored.len().max(1)).position(|part| part == stored.as_bytes())?;
    let mut sealed = bytes.to_vec();
    sealed.splice(at..at + stored.len(), computed.bytes());
    Some(sealed)
}

fn round_trip(catalog: &Catalog) {
    let again = parse(&catalog.to_bytes());
    assert!(again.as_ref().is_ok_and(|again| again == catalog), "{catalog:?} became {again:?}");
}

/// An empty catalog, and one with everything in it.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let empty = Catalog::new(NodeId([7; 16]), 4096, 1, Vec::new());
    let mut full = Catalog::new(NodeId([0xab; 16]), 65536, 64, levels());
    full.is_started = true;
    let config = Config::parse(None, VOLUMES, &Overrides::default()).expect("it is sound");
    for (name, volume) in &config.volumes {
        let id = full.volume_id_take().expect("there are a million").0;
        let record = VolumeRecord {
            id,
            phase: [VolumePhase::Creating, VolumePhase::Ready, VolumePhase::Deleting][id as usize],
            length: volume.size.map_or(4096, |size| size.0),
            class: volume.class.clone(),
            path: "volumes/one".into(),
            read_only: volume.read_only,
            allow: volume.allow.clone(),
            share: volume.share.clone(),
            cap: volume.cap.clone(),
            limits: volume.limits,
            discard: volume.discard,
            discard_delay: volume.discard_delay,
            discard_bandwidth: volume.discard_bandwidth,
            ublk: volume.ublk,
            key: volume.key.clone(),
            wide: None,
            clone_of: None,
            take: id == 1,
            compression: volume.compression,
            local: (id == 1).then_some(0),
            device: (id == 1).then_some(0),
            home_device: (id == 1).then(|| DeviceIdentity {
                key: "wwid".to_owned(),
                value: "naa.5000c500a1b2c3d4, partition 1".to_owned(),
            }),
            configured: Some(volume.clone()),
        };
        if id == 1 {
            full.deleted.push(DeletedRecord {
                name: name.clone(),
                volume: Some("1f".repeat(16)),
                sessions: vec![u64::MAX, 1],
                at_unix: 1_800_000_000,
                grace_seconds: 604_800,
                waited_seconds: 5,
                record: record.clone(),
            });
        }
        full.volumes.insert(name.clone(), record);
    }
    for (name, class) in config.classes {
        full.classes.insert(name, Live { configured: None, live: Some(class) });
    }
    vec![("empty".into(), empty.to_bytes()), ("full".into(), full.to_bytes())]
}

/// Volumes with every kind of setting.
const VOLUMES: &str = "[volume.one]\nsize = \"1MiB\"\nallow = [\"unix\", \"10.0.0.0/8\"]\n\
    share = { nvm = \"10%\", dram = \"1MiB\" }\n\
    limits = { iops_max = 50, iops_burst = 5, bandwidth_max = \"1MiB\" }\n\
    [volume.two]\nsize = \"2MiB\"\nread_only = true\n\
    [volume.three]\nsize = \"64KiB\"\nclass = \"bulk\"\ncap = { ssd = \"5%\" }\n\
    [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"64MiB\"\n\
    [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"64MiB\"\n\
    [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"512MiB\"\n";

fn encryption() -> EncryptionRecord {
    let key = "file:level.key".parse().expect("a source of keys");
    EncryptionRecord { key, check: "0a".repeat(8), sealed: "1f".repeat(104) }
}

fn levels() -> Vec<LevelRecord> {
    let level = |(name, kind): (&str, Kind)| LevelRecord {
        name: name.parse::<Name>().expect("a name"),
        kind,
        size: Size(64 << 20),
        path: (kind != Kind::Memory).then(|| name.into()),
        segment: (kind == Kind::Ssd).then_some(Size(1 << 20)),
        encryption: (kind == Kind::Ssd).then(encryption),
    };
    [("dram", Kind::Memory), ("nvm", Kind::Nvm), ("ssd", Kind::Ssd)].map(level).into()
}
