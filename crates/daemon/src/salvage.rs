//! What only a node's journal has of a volume, saved from a node that will not upload it any more.
//!
//! How: [`layby_cloud::Salvage`] reads journal and map; what it finds goes into a sparse file of
//! the volume's size, and into a list of the ranges beside it.
//! Invariant: nothing of the node is changed, and no key is read, so that nothing that another user
//! wrote there runs a command: root may salvage what the node of any user has. What a running node
//! serves is left to it: it is read only where the map says that another node has the volume, since
//! this node writes nothing there then.
//! Cost: the journal's part is read twice. Not for: what the store has; see `restore`.

use crate::catalog::{
    CATALOG_FILE_NAME, Catalog, DirectoryLock, UNLOCKED, VolumeRecord, keeps_nodes_away,
};
use crate::cloud::{GIVE_BACK, exchanged_with, is_store};
use crate::config::{Config, Name};
use crate::disk_file::is_absent;
use crate::error::{Report, ReportKind};
use crate::image::{FILE_MODE, Image, ImageWords, beside, refuse_existing, unwritable};
use chrono::{DateTime, SecondsFormat};
use layby_cloud::{HostError, Paths, Salvage, SalvageKind, SalvageRange, Wanted};
use layby_types::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const IMAGE: ImageWords = ImageWords {
    error: "cannot save into",
    state: "the journal was only read, and no image was made",
};

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SalvageAnswer {
    /// The volume, in hexadecimal.
    pub volume: String,
    /// Its place in its store.
    pub path: String,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Who has the volume by now; none where this node has not found out that anybody has.
    pub taken: Option<String>,
    /// The last segment that a superblock of this node named: what is saved is newer, unless all
    /// was asked for.
    pub segment: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes that were made zeros.
    pub zero_bytes: u64,
    /// Bytes whose newest write is damaged in the journal: they are listed, and not saved.
    #[serde(default)]
    pub damaged_bytes: u64,
    /// Ranges.
    pub ranges: u64,
    /// When the oldest of them was written, as far as that was written down.
    pub written_first: Option<String>,
    /// When the newest was.
    pub written_last: Option<String>,
    /// The list of ranges, where there is one.
    pub listing: Option<PathBuf>,
    /// The byte of the journal where acknowledged data is damaged: what was written after it is not
    /// saved.
    pub damaged_at: Option<u64>,
    /// What should be known of how it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Saves what only the node of this configuration has of a volume into `file`, which must not
/// exist, and lists it in a file of that name with `.ranges` behind it; or only says what there is.
/// With `is_all` also what the store is known to have got, as far as the journal still holds it.
///
/// # Errors
/// A report when there is no such volume, the node serves it, its journal cannot be read, or the
/// files cannot be written.
pub fn salvage(
    config: &Config,
    name: &Name,
    file: Option<&Path>,
    is_all: bool,
) -> Result<SalvageAnswer, Report> {
    let error = format!("cannot salvage volume `{name}`");
    if is_absent(&config.dir.join(CATALOG_FILE_NAME)) {
        return Err(no_node(&error, &config.dir));
    }
    // Held to the end, so that no node starts meanwhile.
    let lock = &DirectoryLock::take_to_read(&config.dir);
    let catalog = Catalog::load(&config.dir)?.ok_or_else(|| no_node(&error, &config.dir))?;
    let record = record_of(&catalog, name, &error)?;
    let number = record.local_number();
    let paths = Paths {
        journal: config.cloud.journal_dir.join(format!("{number}.journal")),
        map: config.cloud.map_dir.join(format!("{number}.map")),
    };
    if let Some(cause) = exchanged_with(&config.dir, &catalog, record, &paths.map) {
        return Err(Report::new(ReportKind::Corrupt, error)
            .cause(format!("volume `{name}`: {cause}"))
            .state("nothing was changed, and no image was made")
            .hint(format!(
                "{GIVE_BACK}. Where no file was moved, move `identities.json` away for this command"
            )));
    }
    let wanted = if is_all { Wanted::All } else { Wanted::Unnamed };
    let mut found = Salvage::open(&paths, wanted).map_err(|cause| unreadable(&error, &cause))?;
    match lock {
        Err(running) if running.kind == ReportKind::InUse && found.taken().is_some() => {}
        Err(running) if running.kind == ReportKind::InUse => {
            return Err(is_served(&error, running));
        }
        Err(refused) => return Err(refused.clone()),
        Ok(_) => {}
    }
    let mut ranges = found.ranges();
    let listing = file.filter(|_| !ranges.is_empty()).map(|file| beside(file, ".ranges"));
    if let (Some(file), Some(listing)) = (file, &listing) {
        refuse_existing(listing, &IMAGE)?;
        let image = Image::begin(file, record.length, &IMAGE)?;
        save(&mut found, &image, record.length).map_err(|ended| match ended {
            Ended::Journal(cause) => unreadable(&error, &cause),
            Ended::Image(cause) => unwritable(file, &IMAGE, &cause),
        })?;
        // What was damaged only when it was copied is listed so.
        ranges = found.ranges();
        write_listing(listing, &ranges).map_err(|cause| unwritable(listing, &IMAGE, &cause))?;
        image.finish(true).map(drop)?;
    }
    let is_unlocked = lock.as_ref().is_ok_and(|lock| !keeps_nodes_away(lock.as_ref()));
    let note = is_unlocked.then(|| UNLOCKED.to_owned());
    Ok(SalvageAnswer { note, ..answer(&found, record, &ranges, listing) })
}

enum Ended {
    Journal(HostError),
    Image(std::io::Error),
}

impl From<HostError> for Ended {
    fn from(cause: HostError) -> Self {
        Ended::Journal(cause)
    }
}

/// What lies behind the volume's end was written before it was made shorter.
fn save(found: &mut Salvage, image: &Image, length: u64) -> Result<(), Ended> {
    found.copy(&mut |offset, bytes| {
        let fits = bytes.len().min(usize::try_from(length.saturating_sub(offset)).unwrap_or(0));
        image.write(offset, &bytes[..fits]).map_err(Ended::Image)
    })
}

fn write_listing(listing: &Path, ranges: &[SalvageRange]) -> std::io::Result<()> {
    let mut text = "offset,length,what,batch,written\n".to_owned();
    for range in ranges {
        let SalvageRange { offset, length, batch, .. } = range;
        let what = match range.what {
            SalvageKind::Data => "data",
            SalvageKind::Zeros => "zeros",
            SalvageKind::Damaged => "damaged",
        };
        let written = range.written.and_then(time_text).unwrap_or_default();
        let line = writeln!(text, "{offset},{length},{what},{batch},{written}");
        line.expect("a string takes all");
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(FILE_MODE).open(listing)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A time as RFC 3339 writes it.
fn time_text(at: Nanos) -> Option<String> {
    let at = DateTime::from_timestamp_nanos(i64::try_from(at.0).ok()?);
    Some(at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

fn answer(
    found: &Salvage,
    record: &VolumeRecord,
    ranges: &[SalvageRange],
    listing: Option<PathBuf>,
) -> SalvageAnswer {
    let bytes_of = |what: SalvageKind| {
        let those = ranges.iter().filter(|range| range.what == what);
        those.map(|range| range.length).sum()
    };
    let times = || ranges.iter().filter_map(|range| range.written);
    SalvageAnswer {
        volume: found.volume().to_string(),
        path: record.path.to_string_lossy().into_owned(),
        size_bytes: record.length,
        taken: found.taken().map(str::to_owned),
        segment: found.segment(),
        bytes: bytes_of(SalvageKind::Data),
        zero_bytes: bytes_of(SalvageKind::Zeros),
        damaged_bytes: bytes_of(SalvageKind::Damaged),
        ranges: ranges.len() as u64,
        written_first: times().min().and_then(time_text),
        written_last: times().max().and_then(time_text),
        listing,
        damaged_at: found.damaged_at(),
        note: None,
    }
}

fn record_of<'a>(
    catalog: &'a Catalog,
    name: &Name,
    error: &str,
) -> Result<&'a VolumeRecord, Report> {
    let refused = |kind, cause: String, hint: &str| {
        Report::new(kind, error).cause(cause).state("nothing was changed").hint(hint)
    };
    match catalog.volumes.get(name) {
        Some(record) if is_store(&record.path) => Ok(record),
        Some(_) => {
            let cause = "its home is a file or a device, which has all of it".to_owned();
            let hint = "only volumes in object stores have journals";
            Err(refused(ReportKind::Invalid, cause, hint))
        }
        None => {
            let cause = "the node has no volume of that name".to_owned();
            Err(refused(ReportKind::NotFound, cause, "`layby check` names those that it has"))
        }
    }
}

fn no_node(error: &str, dir: &Path) -> Report {
    Report::new(ReportKind::NotFound, error)
        .cause(format!("there is no node's catalog in `{}`", dir.display()))
        .state("nothing was changed")
        .hint("name a node's directory with --dir")
}

fn is_served(error: &str, running: &Report) -> Report {
    Report::new(ReportKind::InUse, error)
        .cause(format!("{}, and no other node is known to have the volume", running.cause))
        .state("nothing was changed")
        .hint(
            "`layby volume drain` has the store get what the node has; where the store is gone, \
             stop the node first",
        )
}

fn unreadable(error: &str, cause: &HostError) -> Report {
    let kind = match cause {
        HostError::File(_, cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            ReportKind::NotFound
        }
        HostError::File(..) => ReportKind::Failure,
        _ => ReportKind::Corrupt,
    };
    let hint = match kind {
        ReportKind::NotFound => {
            "name the configuration that says where journals and maps lie with --config; where \
             they are not there any more, the node has nothing of the volume"
        }
        _ => "keep the two files as they are; `layby check` says more of them",
    };
    Report::new(kind, error).cause(cause.to_string()).state("nothing was changed").hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::node::Node;
    use crate::node::tests::{MockStarter, config};
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    /// Goal: what a configuration and a catalog name runs no command, so that root may read the
    /// node of any user; that others can write a file is no reason to refuse. Method: a volume
    /// whose key comes from a command that leaves a mark; files with modes that let others write,
    /// as root of another user.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_others_can_write_runs_no_command() {
        let outer = tempfile::tempdir().expect("a temporary directory");
        let (file, mark) = (outer.path().join("layby.toml"), outer.path().join("mark"));
        let key = format!("touch {}; printf '%064d' 7", mark.display());
        let text = format!(
            "[volume.far]\nsize = \"1MiB\"\npath = \"file://{}\"\nkey = \"command:{key}\"\n",
            outer.path().join("store").display()
        );
        let starting = Node::start(config(&outer, &text), Arc::new(MockStarter::default()));
        let node = starting.await.expect("it starts");
        node.run(async {}).await.expect("stops");
        std::fs::remove_file(&mark).expect("a start runs the command");
        std::fs::write(&file, &text).expect("a writable directory");
        let dir = config(&outer, &text).dir;
        let over = Overrides { dir: Some(dir.clone()), ..Overrides::default() };
        let config = Config::parse(Some(file.clone()), &text, &over).expect("good");
        // A child of another test may hold the node's lock between its fork and its exec.
        let salvage = || {
            let find = |_| match salvage(&config, &"far".parse().expect("a good name"), None, true)
            {
                Err(held) if held.kind == ReportKind::InUse => None,
                found => Some(found),
            };
            (0..10_000).find_map(find).expect("the directory stays locked")
        };
        for (mode, owner) in [(0o700, 0), (0o777, 0), (0o700, 65_534)] {
            for path in [&file, &dir] {
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(path, mode).expect("the test's own");
                if rustix::process::geteuid().is_root() {
                    std::os::unix::fs::chown(path, Some(owner), None).expect("as root");
                }
            }
            let found = salvage();
            assert!(found.is_ok(), "{mode:o}, user {owner}: {found:?}");
            assert!(!mark.exists(), "the key's command was run");
        }
    }
}
