//! Whose dirty blocks a backing file waits for: a mark on the file itself.
//!
//! How: an extended attribute of the file names the node that writes back to it, and the volume. It
//! is set, durably and under the file's lock, before a shard opens the file, and removed when the
//! volume goes and leaves it. A node that has levels in memory alone sets none.
//! An attribute goes with the file, wherever that is moved, and cannot be lost beside it, as a
//! second file could; a plain copy of the bytes has none.
//! Invariant: a file that bears another node's mark, or does not say, is not opened, lengthened, or
//! removed, unless the operator has said that it is this node's from now on.
//! Cost: a system call per volume and start; a sync when the mark is new. Not for: block devices,
//! and file systems without such attributes: these bear no mark, and nobody is refused.

use super::Homes;
use crate::catalog::{Catalog, NodeId, VolumePhase, VolumeRecord};
use crate::config::{Kind, Name};
use crate::control::View;
use crate::disk_file;
use crate::error::{Report, ReportKind};
use layby_cloud::look_at;
use layby_engine::io::{OpenMode, open_disk};
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::PoisonError;

/// The attribute. Its value is the node's identity and the volume's number there.
const ATTRIBUTE: &str = "user.layby.node";
/// Bytes of a value at most; what is longer was written by nobody who is known.
const VALUE_BYTES_MAX: usize = 256;

/// What to do where another node's mark is on the file of a volume that this node never served.
const HOME_FOREIGN: &str = "start the node that the file belongs to, and have it write back; \
    where its directory is a mount that is missing, mount it, and start this node again. To take \
    the file over as it is, which gives up what the other node has not written back, start the \
    node once with `--accept-file VOLUME`";

/// The same for one that it has served: the other node has taken the file over since.
const HOME_TAKEN: &str = "this node's levels may hold older blocks of it, which `--accept-file` \
    writes over what is there; to give the volume up here, `layby volume delete --data delete`, \
    which leaves another node's file as it is";

/// What to do where a file does not say whose it is.
const HOME_SILENT: &str = "see why its file system does not answer, and start the node again";

/// Whom homes belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    node: NodeId,
    /// It has levels that hold blocks longer than a run. Without, files have all that was flushed,
    /// and a node that is thrown away leaves them to the next one.
    keeps_blocks: bool,
}

/// Whose a volume's file is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// This node's or nobody's, or the operator says that it is this node's from now on.
    Own,
    /// Another node's; how that is known.
    Other(String),
    /// It does not say in time; why.
    Unknown(String),
}

impl Whose {
    /// Why nothing may be done to the file, if so.
    pub(super) fn refusal(self) -> Option<String> {
        match self {
            Whose::Own => None,
            Whose::Other(cause) | Whose::Unknown(cause) => Some(cause),
        }
    }
}

impl Homes {
    /// The node that homes belong to. Until it is known, no mark is looked at or set. One that has
    /// lost its levels has them still: they may come back.
    pub fn introduce(&self, catalog: &Catalog) {
        let keeps_blocks = catalog.levels.iter().any(|level| level.kind != Kind::Memory);
        let owner = Owner { node: catalog.node, keeps_blocks };
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = Some(owner);
    }

    fn node(&self) -> Option<Owner> {
        *self.node.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_accepted(&self, name: Option<&Name>) -> bool {
        name.is_some_and(|name| self.accepted_files.contains(name))
    }

    /// Whose a volume's file is. Looks at the path.
    pub(super) fn whose(&self, name: Option<&Name>, record: &VolumeRecord) -> Whose {
        let Some(Owner { node, .. }) = self.node() else { return Whose::Own };
        let (path, looked_at) = (self.path(record), self.path(record));
        let mark = match look_at(&path, move || mark_at(&looked_at)) {
            Ok(Some(mark)) => mark,
            Ok(None) => return Whose::Own,
            Err(cause) => {
                return Whose::Unknown(format!("whether it is this node's is not known: {cause}"));
            }
        };
        if is_of(&mark, node) || self.is_accepted(name) {
            return Whose::Own;
        }
        Whose::Other(format!(
            "`{}` belongs to another node (its mark says node and volume `{mark}`, this is node \
             {node}), which may have blocks of it that are not written back: what clients flushed \
             there would be missing, and would go over later writes",
            path.display()
        ))
    }

    /// Why a volume's file is not known to be this node's, if so. Looks at the path.
    pub(super) fn other_node(&self, name: Option<&Name>, record: &VolumeRecord) -> Option<String> {
        self.whose(name, record).refusal()
    }

    /// Refuses to take over another node's file for a volume that this node has served: its levels
    /// may hold older blocks, which would be read, and go over what the other node has written
    /// since. Looks at paths.
    ///
    /// # Errors
    /// A report that names the way to give the volume up.
    pub(crate) fn check_accepted(&self, view: &View) -> Result<(), Report> {
        let mut served = view.catalog.volumes.iter().filter(|(name, record)| {
            let is_asked = self.owner(record).is_none() && self.accepted_files.contains(*name);
            is_asked && record.phase == VolumePhase::Ready
        });
        let taken = served.find_map(|(name, record)| Some((name, self.other_node(None, record)?)));
        let Some((name, cause)) = taken else { return Ok(()) };
        let error = format!("cannot take over the file of volume `{name}`");
        Err(Report::new(ReportKind::Invalid, error)
            .cause(format!("this node's levels may hold older blocks of the volume; {cause}"))
            .state("nothing was started, and the file is as it was")
            .hint(format!(
                "start the node without `--accept-file {name}`, and give the volume up there with \
                 `layby volume delete {name} --data delete`, which leaves another node's file as \
                 it is"
            )))
    }

    /// What to do about a volume whose file is not known to be this node's, where it was found so.
    #[must_use]
    pub fn mark_hint(&self, record: &VolumeRecord) -> Option<&'static str> {
        self.mark_found(record).map(|is_other| mark_hint(is_other, record))
    }

    /// Refuses a new volume whose files are another one's, or another node's. Looks at paths.
    #[must_use]
    pub fn not_new(&self, record: &VolumeRecord) -> Option<Report> {
        if self.owner(record).is_some() {
            return self.leftover(record);
        }
        let whose = self.whose(None, record);
        let hint = match &whose {
            Whose::Unknown(_) => "see why its file system does not answer".to_owned(),
            _ => format!(
                "have the other node give it away (`layby volume delete --data keep`); or take it \
                 over as it is, which gives up what that node has not written back: remove the \
                 mark with `setfattr -x {ATTRIBUTE} FILE`"
            ),
        };
        let report = Report::new(ReportKind::InUse, "cannot use the file").cause(whose.refusal()?);
        Some(report.state("nothing was changed").hint(hint))
    }

    /// Refuses to lengthen the file of a volume that is not known to be this node's. Looks at the
    /// path.
    pub(super) fn check_own(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: impl FnOnce() -> String,
    ) -> Result<(), Report> {
        let whose = self.whose(Some(name), record);
        let hint = mark_hint(matches!(whose, Whose::Other(_)), record);
        let Some(cause) = whose.refusal() else { return Ok(()) };
        let report = Report::new(ReportKind::InUse, error()).cause(cause);
        Err(report.state("nothing was started, and the file is as it was").hint(format!(
            "write the size that the volume had; then the node starts without it, and says so. \
             About the file: {hint}"
        )))
    }

    /// Has a volume's file bear this node's mark from now on, before a shard opens it, and so
    /// before anything is acknowledged that the file does not have. None is left on a file that
    /// another process has locked. Says whether the file is not another node's. May take long.
    pub(super) fn mark(&self, name: &Name, record: &VolumeRecord) -> bool {
        // A new volume may be made while clients wait for a change of another one.
        let waits_for_gone = record.phase != VolumePhase::Creating;
        self.mark_under(name, record, Some(OpenMode { waits_for_gone, ..OpenMode::default() }))
    }

    fn mark_under(&self, name: &Name, record: &VolumeRecord, lock: Option<OpenMode>) -> bool {
        let Some(owner) = self.node().filter(|_| !record.read_only) else { return true };
        let path = self.path(record);
        let value = format!("{} {}", owner.node, record.id);
        match set(&path, (owner, value.as_str()), self.is_accepted(Some(name)), lock) {
            Ok(()) => true,
            Err(Unset::Foreign) => false,
            Err(Unset::Failed(cause)) => {
                tracing::warn!(path = %path.display(), %cause, "cannot mark a backing file as \
                    this node's: another node would not be refused there");
                true
            }
        }
    }

    /// Takes this node's mark from the file of a volume that goes. May take long.
    pub(super) fn unmark(&self, record: &VolumeRecord) {
        let path = self.path(record);
        if self.node().is_none() || self.other_node(None, record).is_some() {
            return;
        }
        if let Err(cause) = clear(&path) {
            tracing::warn!(path = %path.display(), %cause, "cannot remove this node's mark from a \
                backing file: another node is refused there until `setfattr -x` removes it");
        }
    }

    /// A volume that is served read-only is to be written to: its file bears this node's mark from
    /// now on. May take long.
    ///
    /// # Errors
    /// Why it may not be: the kernel keeps it from that, or it is another node's.
    pub fn begin_writes(&self, name: &Name, record: &VolumeRecord) -> Result<(), String> {
        let path = self.path(record);
        if layby_engine::io::is_write_protected(&path) {
            return Err(format!("`{}` is write-protected", path.display()));
        }
        // The shard has it open, and locked.
        match self.other_node(Some(name), record) {
            None if self.mark_under(name, record, None) => Ok(()),
            other => Err(other.unwrap_or_else(|| format!("`{}` is another's", path.display()))),
        }
    }
}

fn mark_hint(is_other: bool, record: &VolumeRecord) -> &'static str {
    match record.phase {
        _ if !is_other => HOME_SILENT,
        VolumePhase::Creating => HOME_FOREIGN,
        _ => HOME_TAKEN,
    }
}

fn is_of(mark: &str, node: NodeId) -> bool {
    mark.split(' ').next() == Some(node.to_string().as_str())
}

/// What a system call that reads a mark found.
fn mark_of(read: Result<usize, Errno>, value: &[u8]) -> Option<String> {
    match read {
        Ok(length) => Some(String::from_utf8_lossy(&value[..length]).into_owned()),
        Err(Errno::RANGE) => Some("unknown".to_owned()),
        // None, a file system that knows none, a device, or nothing at all.
        Err(_) => None,
    }
}

/// The mark of the file at a path, if it bears one.
fn mark_at(path: &Path) -> Option<String> {
    let mut value = [0; VALUE_BYTES_MAX];
    mark_of(getxattr(path, ATTRIBUTE, &mut value), &value)
}

/// Why a mark is not set.
enum Unset {
    /// Another node's is there.
    Foreign,
    Failed(io::Error),
}

impl From<io::Error> for Unset {
    fn from(cause: io::Error) -> Unset {
        Unset::Failed(cause)
    }
}

fn set(
    path: &Path,
    (owner, value): (Owner, &str),
    is_accepted: bool,
    lock: Option<OpenMode>,
) -> Result<(), Unset> {
    let file = match disk_file::open(path, File::options().write(true)) {
        Ok(file) if file.metadata()?.is_file() => file,
        // What cannot be written is not written back to; what is no file bears no mark.
        _ => return Ok(()),
    };
    let is_wanted = || {
        let mut there = [0; VALUE_BYTES_MAX];
        match mark_of(fgetxattr(&file, ATTRIBUTE, &mut there), &there) {
            // It was synced when it was set. Where a crash came between, the kernel has written it
            // within seconds, and each start would pay for a sync of every file.
            Some(there) if there == value => Ok(false),
            Some(there) if !is_accepted && !is_of(&there, owner.node) => Err(Unset::Foreign),
            // Another one's is replaced in any case, so that the other node is refused.
            Some(_) => Ok(true),
            None => Ok(owner.keeps_blocks),
        }
    };
    if !is_wanted()? {
        return Ok(());
    }
    let locked = lock.map(|mode| open_disk(path, mode)).transpose();
    // What another process has is refused when a shard opens it.
    let Ok(_locked) = locked else { return Ok(()) };
    if !is_wanted()? {
        return Ok(());
    }
    match fsetxattr(&file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Ok(()),
        done => {
            done.map_err(io::Error::from)?;
            file.sync_all().map_err(Unset::from)
        }
    }
}

fn clear(path: &Path) -> io::Result<()> {
    let Ok(file) = disk_file::open(path, File::options().write(true)) else { return Ok(()) };
    match fremovexattr(&file, ATTRIBUTE) {
        Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => Ok(()),
        done => {
            done?;
            file.sync_all()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::tests::example;

    /// Goal: a file is its node's from its first opening on, over restarts, and nobody's once the
    /// volume has left it; another node is refused until it accepts the file. Method: two nodes, a
    /// file; nothing on a file system without attributes.
    #[test]
    fn a_file_is_its_nodes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        std::fs::write(&path, [0]).expect("writable");
        let (_, mut record) = example().volumes.into_iter().next().expect("it has one");
        record.path.clone_from(&path);
        let name: Name = "v".parse().expect("a name");
        let homes = |byte: u8| {
            let homes = Homes::new(dir.path(), None);
            homes.introduce(&Catalog { node: NodeId([byte; 16]), ..example() });
            homes
        };
        let is_other = |byte| homes(byte).other_node(Some(&name), &record).is_some();
        homes(1).mark(&name, &record);
        if mark_at(&path).is_none() {
            // The file system knows no such attributes, and nothing is claimed of it.
            return;
        }
        assert!(!is_other(1) && is_other(2));
        homes(2).unmark(&record);
        assert!(is_other(2), "it is not that node's to remove");
        let mut accepting = homes(2);
        accepting.accepted_files = std::sync::Arc::new([name.clone()].into());
        assert_eq!(accepting.other_node(Some(&name), &record), None);
        assert!(!homes(2).mark(&name, &record), "it is not that node's to replace");
        assert!(accepting.mark(&name, &record));
        assert!(is_other(1) && !is_other(2));
        homes(2).unmark(&record);
        assert!(!is_other(1) && mark_at(&path).is_none());
    }
}
