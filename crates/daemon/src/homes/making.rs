//! Files that are volumes' homes: made, made longer, and taken away while nothing was in them.
//!
//! How: a volume in phase `Creating` has no home yet, or one whose making was interrupted: a file
//! without data is given the volume's length, whatever length a crash left it at. A configured size
//! that grew reaches the home before it reaches the catalog.
//! One that a command was making, and that cannot be made at a start, is not served, and the next
//! start goes on with it; a table of the configuration that cannot be made ends the start. One that
//! levels may hold blocks of was made, and is never made anew: where its file is missing, its disk
//! is.
//! Invariant: no file that holds data is shortened or removed here, and none that an operator named
//! is made longer while it holds data.
//! Cost: a few system calls per volume and start. Not for: homes with an owner.

use super::{Homes, part_plans};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::Name;
use crate::control::volumes::VOLUMES_DIR_NAME;
use crate::disk_file::{self, HINT_NO_DEVICE, is_no_device};
use crate::error::{Report, ReportKind};
use crate::held;
use crate::shards::{HOME_IN_USE, open_kind};
use layby_engine::control::BackingPlan;
use layby_engine::io::{OpenError, OpenMode, open_disk};
use layby_types::{ErrorKind, format_bytes};
use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// How long the sync of a file that was made longer may take.
const SYNC_PATIENCE: Duration = Duration::from_secs(30);

impl Homes {
    /// Whether a command was making a volume in a file or device when the node ended. It may have
    /// been served, where the catalog could not be written any more.
    #[must_use]
    pub fn is_half_made(&self, record: &VolumeRecord) -> bool {
        let is_of_command = record.phase == VolumePhase::Creating && record.configured.is_none();
        is_of_command && !self.writes_through(record)
    }

    /// Whether shards can open the parts of a wide volume, as far as a look at its file says. That
    /// of another one they open before anything is recorded of it. Opens files.
    #[must_use]
    pub fn is_whole(&self, record: &VolumeRecord) -> bool {
        record.stripes().is_none() || check_whole(&self.path(record), record).is_ok()
    }

    /// What shards are told at a start of the backing store of such a volume, part by part, which
    /// is made where it is missing: not for one that levels may hold blocks of, since that was
    /// made. Where it cannot be made or opened it ends no start.
    pub fn plan_half_made(&self, name: &Name, record: &VolumeRecord) -> Vec<BackingPlan> {
        let planned = match record.stripes() {
            // That levels may hold blocks of the volume is written down once its parts are served.
            Some(stripes) => self
                .plan_parts(name, record, stripes)
                .map_err(refusal_of)
                .and_then(|plans| check_whole(&self.path(record), record).map(|()| plans)),
            None => self.plan(name, record).map(|plan| vec![plan]).map_err(refusal_of),
        };
        let made = |plan| match plan {
            // It was made; what is still to be made ends the start where it cannot be opened.
            BackingPlan::File { path, .. } => BackingPlan::File { path, create: false },
            plan => plan,
        };
        match planned {
            Ok(plans) => plans.into_iter().map(made).collect(),
            Err((kind, cause)) => {
                let path = self.path(record);
                let parts = match record.stripes() {
                    Some(stripes) => part_plans(record, stripes).map(Some).collect(),
                    None => vec![None],
                };
                let refused = |part| {
                    let (path, cause) = (path.clone(), cause.clone());
                    BackingPlan::Refused { path, kind, cause, part }
                };
                parts.into_iter().map(refused).collect()
            }
        }
    }

    /// Makes the file of a volume that was never served, unless it is there whole. May take long.
    ///
    /// # Errors
    /// A report when it cannot be made.
    pub(super) fn make(&self, name: &Name, record: &VolumeRecord) -> Result<(), Report> {
        let path = self.path(record);
        let is_short = |found: &Metadata| found.is_file() && found.len() < record.length;
        let made = match std::fs::metadata(&path) {
            Ok(found) if is_short(&found) && (self.is_own(record) || is_blank(&path)) => {
                lengthen(&path, record.length)
            }
            // What else is wrong with it is seen when it is opened.
            Ok(_) => return Ok(()),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                make_file(&path, record.length)
            }
            Err(cause) => {
                let place = path.display();
                Err((kind_of(&cause), format!("cannot look at `{place}`: {cause}")))
            }
        };
        made.map_err(|(kind, cause)| {
            Report::new(kind, format!("cannot make the home of volume `{name}`"))
                .cause(cause)
                .state("the volume was never served; other volumes and all levels are untouched")
                .hint(match kind {
                    ReportKind::Full => "make room on that disk, or give the volume a smaller size",
                    ReportKind::InUse => HOME_IN_USE,
                    ReportKind::Denied => "let the node's user write to the file's directory",
                    ReportKind::NotFound => HINT_NO_DEVICE,
                    _ => "give the volume another path, or make the directory it names",
                })
        })
    }

    /// Makes the home of a volume longer that the configuration makes longer. May take long.
    ///
    /// # Errors
    /// A report when the home cannot take it; the volume's old size then stands.
    pub fn grow(&self, name: &Name, record: &VolumeRecord, old: u64) -> Result<(), Report> {
        let is_file = self.owner(record).is_none() && record.phase == VolumePhase::Ready;
        if !is_file || record.length <= old {
            return Ok(());
        }
        self.check_own(name, record, || {
            format!("cannot give volume `{name}` {}", format_bytes(record.length))
        })?;
        let path = self.path(record);
        let (was, wanted) = (format_bytes(old), format_bytes(record.length));
        let opened = disk_file::open(&path, File::options().write(true));
        let grown = opened.and_then(|mut file| {
            let length = file.seek(SeekFrom::End(0))?;
            match file.metadata()?.is_file() {
                _ if length >= record.length => Ok(()),
                true => file.set_len(record.length).and_then(|()| file.sync_all()),
                false => Err(std::io::Error::other(format!(
                    "the device has only {}",
                    format_bytes(length)
                ))),
            }
        });
        grown.map_err(|cause| {
            let error = format!("cannot give volume `{name}` {wanted}");
            Report::new(kind_of(&cause), error)
                .cause(format!("`{}` cannot take them: {cause}", path.display()))
                .state(format!("nothing was started; the volume is whole and has its {was}"))
                .hint(format!("write {was} again, or correct what the cause names"))
        })
    }

    /// Has the file system keep the length of a file that was made longer. The catalog that says so
    /// is written next, and a start refuses a file that is shorter: a power cut must not take it
    /// back.
    ///
    /// # Errors
    /// A report when it does not, or does not answer for half a minute.
    pub async fn keep_length(&self, old: &VolumeRecord, new: &VolumeRecord) -> Result<(), Report> {
        let Some(path) = self.file(new).filter(|_| new.length > old.length) else { return Ok(()) };
        let place = path.display().to_string();
        let sync = tokio::task::spawn_blocking(move || File::open(path)?.sync_all());
        let kept = match tokio::time::timeout(SYNC_PATIENCE, sync).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(failed)) => Err(std::io::Error::other(failed)),
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        };
        kept.map_err(|cause| {
            Report::new(kind_of(&cause), format!("cannot make `{place}` longer"))
                .cause(format!("its new length cannot be made durable: {cause}"))
                .state("the volume is whole and has the size that it had")
                .hint("look at the disk that the file is on, then try again")
        })
    }

    /// Takes away the file of a volume that was never served, if it is the node's own and nothing
    /// was ever written to it.
    pub fn remove_blank(&self, record: &VolumeRecord) {
        if self.is_own(record) {
            self.remove_made(record);
        }
    }

    /// Whether a new volume's file is to be made, where the request names its place.
    #[must_use]
    pub fn makes_file(&self, record: &VolumeRecord) -> bool {
        let found = || std::fs::symlink_metadata(self.path(record));
        let is_missing = |cause: std::io::Error| cause.kind() == std::io::ErrorKind::NotFound;
        self.owner(record).is_none() && found().is_err_and(is_missing)
    }

    /// Takes away a file that was made for a volume which came to nothing, unless something was
    /// written to it.
    pub fn remove_made(&self, record: &VolumeRecord) {
        let path = self.path(record);
        if held::check(&self.dir).is_ok()
            && std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file())
            && self.other_node(None, record).is_none()
            && is_blank(&path)
            && let Err(cause) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %cause, "cannot remove an unused file");
        }
    }

    /// Whether a volume's home lies where the node puts homes that nobody chose a place for.
    fn is_own(&self, record: &VolumeRecord) -> bool {
        self.owner(record).is_none() && record.path.starts_with(VOLUMES_DIR_NAME)
    }
}

/// Whether a file has no byte of data. Where a file system knows no holes, only an empty one has
/// none.
fn is_blank(path: &Path) -> bool {
    let Ok(file) = disk_file::open_to_read(path) else { return false };
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
    data == Err(rustix::io::Errno::NXIO)
}

fn kind_of(cause: &std::io::Error) -> ReportKind {
    match cause.kind() {
        std::io::ErrorKind::NotFound if !is_no_device(cause) => ReportKind::Corrupt,
        _ => cause.into(),
    }
}

/// Why a start does not make a volume, for its shards.
fn refusal_of(report: Report) -> (ErrorKind, String) {
    let kind = match report.kind {
        ReportKind::Full => ErrorKind::Full,
        ReportKind::InUse => ErrorKind::Retry,
        ReportKind::Denied => ErrorKind::Denied,
        _ => ErrorKind::Invalid,
    };
    (kind, report.cause)
}

/// Whether a volume's file or device can be opened, and is long enough. It is locked meanwhile.
fn check_whole(path: &Path, record: &VolumeRecord) -> Result<(), (ErrorKind, String)> {
    let may_be_protected = record.read_only;
    let mode = OpenMode { may_be_protected, waits_for_gone: true, ..OpenMode::default() };
    let disk = open_disk(path, mode).map_err(|error| (error.kind, error.to_string()))?;
    let length = disk_file::open_to_read(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    drop(disk);
    let place = path.display();
    match length {
        Ok(length) if length >= record.length => Ok(()),
        Ok(length) => {
            let (found, wanted) = (format_bytes(length), format_bytes(record.length));
            Err((ErrorKind::Corrupt, format!("`{place}` has {found}, the volume needs {wanted}")))
        }
        Err(cause) => Err((ErrorKind::Corrupt, format!("cannot read `{place}`: {cause}"))),
    }
}

fn lengthen(path: &Path, length: u64) -> Result<(), (ReportKind, String)> {
    // Held open for its lock: nobody else uses it meanwhile.
    let disk = open_disk(path, OpenMode::default()).map_err(|error| refused(&error))?;
    let file = disk_file::open(path, File::options().write(true));
    let longer = file.and_then(|file| file.set_len(length).and_then(|()| file.sync_all()));
    drop(disk);
    let place = path.display();
    longer.map_err(|cause| (kind_of(&cause), format!("cannot lengthen `{place}`: {cause}")))
}

/// Makes a file of a length, unless there is one; none in the place of a device.
fn make_file(path: &Path, length: u64) -> Result<(), (ReportKind, String)> {
    disk_file::check_new(path)
        .map_err(|cause| (kind_of(&cause), format!("`{}`: {cause}", path.display())))?;
    let mode = OpenMode { create_length: Some(length), ..OpenMode::default() };
    open_disk(path, mode).map(drop).map_err(|error| refused(&error))
}

fn refused(error: &OpenError) -> (ReportKind, String) {
    (open_kind(error.kind), error.to_string())
}
