//! Whose dirty blocks a backing file waits for: a mark on the file itself.
//!
//! How: an extended attribute of the file names the node that writes back to it, the volume, and
//! the nodes that had the file before. It is set, durably and under the file's lock, before a shard
//! opens the file. When the volume goes and leaves the file, the node goes from the mark, and the
//! mark with it unless former nodes are left in it. A node that has levels in memory alone does not
//! name itself.
//! An attribute goes with the file, wherever that is moved, and cannot be lost beside it, as a
//! second file could; a plain copy of the bytes has none.
//! Invariant: a file that bears another node's mark, or one that this node had before another one,
//! or that does not say, is not opened, lengthened, or removed, unless the operator has said that
//! it is this node's from now on.
//! Cost: a system call per volume and start; a sync when the mark is new. Not for: block devices,
//! and file systems without such attributes: these bear no mark, and nobody is refused.

use super::Homes;
use crate::catalog::{Catalog, NodeId, VolumePhase, VolumeRecord};
use crate::config::{Kind, Name};
use crate::control::View;
use crate::disk_file;
use crate::error::{Report, ReportKind};
use crate::intents::{self, Found};
use layby_cloud::look_at;
use layby_engine::io::{OpenMode, open_disk};
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::PoisonError;

/// The attribute. Its value is a [`Mark`] in words.
const ATTRIBUTE: &str = "user.layby.node";
/// Bytes of a value at most: room for 29 former nodes. No node wrote what is longer.
const VALUE_BYTES_MAX: usize = 1024;
/// The owner in a mark that no node has: the last one gave the file away.
const FREE: &str = "-";

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

/// What a file's attribute says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// The node that writes back to the file, or [`FREE`].
    owner: String,
    /// The volume's number there.
    volume: String,
    /// Nodes that had the file before, and may hold older blocks of it.
    former: Vec<String>,
}

impl Mark {
    fn parse(text: &str) -> Mark {
        let mut words = text.split_ascii_whitespace().map(str::to_owned);
        let (owner, volume) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        Mark { owner, volume, former: words.collect() }
    }

    /// The mark of a file that no node writes back to any more; none where no node has had it.
    fn free(former: Vec<String>) -> Option<Mark> {
        let is_kept = !former.is_empty();
        is_kept.then(|| Mark { owner: FREE.to_owned(), volume: "0".to_owned(), former })
    }

    /// The nodes that have had the file once `next` has it: its owner is one of them, too.
    fn former_of(self, next: &str) -> Vec<String> {
        let Mark { owner, mut former, .. } = self;
        former.retain(|node| ![owner.as_str(), next].contains(&node.as_str()));
        former.extend([owner].into_iter().filter(|owner| ![FREE, next].contains(&owner.as_str())));
        former
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.owner, self.volume)?;
        self.former.iter().try_for_each(|node| write!(f, " {node}"))
    }
}

/// What a node wants a file's mark to say.
#[derive(Clone, Debug)]
struct Wish {
    node: String,
    volume: String,
    keeps_blocks: bool,
    /// The operator has said that the file is this node's from now on.
    is_accepted: bool,
}

impl Wish {
    /// The mark that is to be written in the place of the one that is there; none where that
    /// stays.
    ///
    /// # Errors
    /// The file is another node's.
    fn after(&self, there: Option<Mark>) -> Result<Option<Mark>, Unset> {
        let Some(there) = there else {
            return Ok(self.keeps_blocks.then(|| self.mark(Vec::new())));
        };
        if there.owner == self.node {
            let is_same = there.volume == self.volume;
            return Ok((!is_same).then(|| self.mark(there.former)));
        }
        let is_free = there.owner == FREE;
        if !is_free && !self.is_accepted {
            return Err(Unset::Foreign);
        }
        let former = there.former_of(&self.node);
        Ok(match self.keeps_blocks {
            true => Some(self.mark(former)),
            // It has no blocks of its own; the other node is refused from now on.
            false if !is_free => Mark::free(former),
            false => None,
        })
    }

    fn mark(&self, former: Vec<String>) -> Mark {
        Mark { owner: self.node.clone(), volume: self.volume.clone(), former }
    }
}

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
        let unknown = |cause| Whose::Unknown(format!("whose it is is not known: {cause}"));
        let mark = match look_at(&path, move || mark_at(&looked_at)) {
            Ok(Ok(Some(mark))) => mark,
            Ok(Ok(None)) => return Whose::Own,
            Ok(Err(cause)) => return unknown(format!("`{}`: {cause}", path.display())),
            Err(cause) => return unknown(cause.to_string()),
        };
        let own = node.to_string();
        if mark.owner == own || self.is_accepted(name) {
            return Whose::Own;
        }
        if mark.owner == FREE {
            // A volume that this node has not served yet has no older blocks here.
            return match mark.former.contains(&own) && record.phase != VolumePhase::Creating {
                false => Whose::Own,
                true => Whose::Other(format!(
                    "`{}` belonged to another node since this one had it (its mark says `{mark}`, \
                     this is node {node}): what this node's levels have of it may be older",
                    path.display()
                )),
            };
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
        // A new node has no file of intents; a damaged one says nothing here.
        let intents = match intents::read(&self.dir) {
            Found::Known(known) => known,
            Found::Unknown(_) => BTreeMap::new(),
        };
        let mut served = view.catalog.volumes.iter().filter(|(name, record)| {
            let is_asked = self.owner(record).is_none() && self.accepted_files.contains(*name);
            is_asked && (record.phase == VolumePhase::Ready || intents.contains_key(&record.id))
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
                 over as it is, which gives up what that node has not written back: `setfattr -n \
                 {ATTRIBUTE} -v '{}' FILE`",
                mark_at(&self.path(record)).ok().flatten().map_or_else(String::new, freed)
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
    /// another process has locked. May take long.
    ///
    /// # Errors
    /// Why the file may not be used: another node was faster, or its mark cannot be replaced.
    pub(super) fn mark(&self, name: &Name, record: &VolumeRecord) -> Result<(), String> {
        // A new volume may be made while clients wait for a change of another one.
        let waits_for_gone = record.phase != VolumePhase::Creating;
        self.mark_under(name, record, Some(OpenMode { waits_for_gone, ..OpenMode::default() }))
    }

    fn mark_under(
        &self,
        name: &Name,
        record: &VolumeRecord,
        lock: Option<OpenMode>,
    ) -> Result<(), String> {
        let Some(Owner { node, keeps_blocks }) = self.node() else { return Ok(()) };
        let wish = Wish {
            node: node.to_string(),
            volume: record.id.to_string(),
            keeps_blocks: keeps_blocks && !record.read_only,
            is_accepted: self.is_accepted(Some(name)),
        };
        let path = self.path(record);
        let place = path.display();
        match set(&path, &wish, lock) {
            Ok(()) => Ok(()),
            Err(Unset::Foreign) => Err(format!("`{place}` is another node's")),
            Err(Unset::Stays(cause)) => {
                Err(format!("the mark of another node on `{place}` cannot be replaced: {cause}"))
            }
            Err(Unset::Failed(cause)) => {
                tracing::warn!(path = %place, %cause, "cannot mark a backing file as this \
                    node's: another node would not be refused there");
                Ok(())
            }
        }
    }

    /// Takes this node from the mark of the file of a volume that goes. May take long.
    pub(super) fn unmark(&self, record: &VolumeRecord) {
        let path = self.path(record);
        let Some(Owner { node, .. }) = self.node() else { return };
        if let Err(cause) = clear(&path, &node.to_string()) {
            tracing::warn!(path = %path.display(), %cause, "cannot take this node from the mark \
                of a backing file: another node is refused there until `--accept-file`");
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
            None => self.mark_under(name, record, None),
            Some(other) => Err(other),
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

/// How the mark of a file reads that its owner has given up.
fn freed(mark: Mark) -> String {
    Mark::free(mark.former_of(FREE)).map_or_else(String::new, |mark| mark.to_string())
}

/// What a system call that reads a mark found; none on a file system that knows none, and where
/// there is no file to read it from.
///
/// # Errors
/// The disk's: it is not known whose the file is.
fn mark_of(read: Result<usize, Errno>, value: &[u8]) -> io::Result<Option<Mark>> {
    const NONE: [Errno; 7] = [
        Errno::NODATA,
        Errno::NOTSUP,
        Errno::PERM,
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::ACCESS,
        Errno::LOOP,
    ];
    match read {
        Ok(length) => Ok(Some(Mark::parse(&String::from_utf8_lossy(&value[..length])))),
        Err(Errno::RANGE) => Ok(Some(Mark::parse("unknown"))),
        Err(cause) if NONE.contains(&cause) => Ok(None),
        Err(cause) => Err(cause.into()),
    }
}

/// The mark of the file at a path, if it bears one.
fn mark_at(path: &Path) -> io::Result<Option<Mark>> {
    let mut value = [0; VALUE_BYTES_MAX];
    mark_of(getxattr(path, ATTRIBUTE, &mut value), &value)
}

fn mark_on(file: &File) -> io::Result<Option<Mark>> {
    let mut value = [0; VALUE_BYTES_MAX];
    mark_of(fgetxattr(file, ATTRIBUTE, &mut value), &value)
}

/// Why a mark is not set.
#[derive(Debug)]
enum Unset {
    /// Another node's is there.
    Foreign,
    /// Another node's is there, is to be replaced, and stays.
    Stays(io::Error),
    Failed(io::Error),
}

/// Has the file at a path bear the mark that is wished for; it is locked meanwhile, as `lock` says.
fn set(path: &Path, wish: &Wish, lock: Option<OpenMode>) -> Result<(), Unset> {
    // What is no file bears no mark, and a device may do something when it is opened.
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    // What cannot be written is not written back to.
    let Ok(file) = disk_file::open(path, File::options().write(true)) else { return Ok(()) };
    // One that is there was synced when it was set. Where a crash came between, the kernel has
    // written it within seconds, and each start would pay for a sync of every file.
    let wanted = || {
        let there = mark_on(&file).map_err(Unset::Failed)?;
        let replaces =
            there.as_ref().is_some_and(|mark| ![&wish.node, FREE].contains(&&*mark.owner));
        let next = wish.after(there)?;
        Ok(next.map(|next| (next, replaces)))
    };
    let Some((_, replaces)) = wanted()? else { return Ok(()) };
    let unset = |replaces| match replaces {
        true => Unset::Stays,
        false => Unset::Failed,
    };
    let _locked = match lock.map(|mode| open_disk(path, mode)).transpose() {
        Ok(locked) => locked,
        Err(cause) if replaces => return Err(Unset::Stays(io::Error::other(cause.to_string()))),
        // What another process has is refused when a shard opens it.
        Err(_) => return Ok(()),
    };
    let Some((next, replaces)) = wanted()? else { return Ok(()) };
    write(&file, &next).map_err(unset(replaces))
}

/// Writes a mark durably; nothing where the file system knows none.
fn write(file: &File, mark: &Mark) -> io::Result<()> {
    let value = mark.to_string();
    if value.len() > VALUE_BYTES_MAX {
        return Err(io::Error::other("it names more former nodes than there is room for"));
    }
    match fsetxattr(file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Ok(()),
        done => {
            done?;
            file.sync_all()
        }
    }
}

/// Takes a node from the mark of a file. Another node's stays.
fn clear(path: &Path, node: &str) -> io::Result<()> {
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let Ok(file) = disk_file::open(path, File::options().write(true)) else { return Ok(()) };
    let Some(mark) = mark_on(&file)?.filter(|mark| mark.owner == node) else { return Ok(()) };
    match Mark::free(mark.former) {
        Some(free) => write(&file, &free),
        None => {
            fremovexattr(&file, ATTRIBUTE)?;
            file.sync_all()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::tests::example;

    fn wish(node: &str, keeps_blocks: bool, is_accepted: bool) -> Wish {
        Wish { node: node.to_owned(), volume: "7".to_owned(), keeps_blocks, is_accepted }
    }

    /// Goal: a mark names all nodes that had the file and may hold older blocks of it, whichever
    /// way it changed hands, and is replaced only where that was accepted. Method: marks and what a
    /// node makes of them, in words.
    #[test]
    fn marks_remember_former_nodes() {
        let after = |wish: Wish, there: &str| {
            let there = (!there.is_empty()).then(|| Mark::parse(there));
            match wish.after(there) {
                Ok(next) => next.map_or_else(|| "stays".to_owned(), |mark| mark.to_string()),
                Err(_) => "refused".to_owned(),
            }
        };
        let kept = |there| after(wish("b", true, false), there);
        assert_eq!(kept(""), "b 7");
        assert_eq!((kept("b 7 a"), kept("b 6 a")), ("stays".to_owned(), "b 7 a".to_owned()));
        assert_eq!((kept("a 1"), kept("unknown")), ("refused".to_owned(), "refused".to_owned()));
        assert_eq!((kept("- 0 a"), kept("- 0 b a")), ("b 7 a".to_owned(), "b 7 a".to_owned()));
        let accepted = |there| after(wish("b", true, true), there);
        assert_eq!((accepted("a 1"), accepted("a 1 b c")), ("b 7 a".to_owned(), "b 7 c a".into()));
        let memory = |there, is_accepted| after(wish("b", false, is_accepted), there);
        assert_eq!((memory("", true), memory("- 0 a", true)), ("stays".to_owned(), "stays".into()));
        assert_eq!((memory("a 1", true), memory("a 1", false)), ("- 0 a".into(), "refused".into()));
        assert_eq!(Mark::free(Mark::parse("b 7 a").former), Some(Mark::parse("- 0 a")));
        assert_eq!(Mark::free(Mark::parse("b 7").former), None);
        assert_eq!(freed(Mark::parse("b 7 a")), "- 0 a b");
    }

    /// Goal: an answer of the disk that does not say whether there is a mark is not taken for none.
    /// Method: system calls' results.
    #[test]
    fn errors_are_no_missing_marks() {
        for none in [Errno::NODATA, Errno::NOTSUP, Errno::NOENT] {
            assert_eq!(mark_of(Err(none), &[]).expect("there is none"), None);
        }
        for unknown in [Errno::IO, Errno::NOMEM, Errno::STALE] {
            mark_of(Err(unknown), &[]).expect_err("it is not known");
        }
        let long = mark_of(Err(Errno::RANGE), &[]).expect("there is one");
        assert_eq!(long.map(|mark| mark.owner), Some("unknown".to_owned()));
    }

    /// Goal: a file is its node's from its first opening on, over restarts, and no node's once the
    /// volume has left it; another node is refused until it accepts the file, and a former one once
    /// that was. Method: two nodes, a file.
    #[test]
    fn a_file_is_its_nodes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        std::fs::write(&path, [0]).expect("writable");
        if rustix::fs::setxattr(&path, "user.test", b"1", XattrFlags::empty()).is_err() {
            assert!(std::env::var_os("CI").is_none(), "the file system has no attributes");
            return;
        }
        let (_, mut record) = example().volumes.into_iter().next().expect("it has one");
        record.path.clone_from(&path);
        let name: Name = "v".parse().expect("a name");
        let homes = |byte: u8| {
            let homes = Homes::new(dir.path(), None);
            homes.introduce(&Catalog { node: NodeId([byte; 16]), ..example() });
            homes
        };
        let is_other = |byte| homes(byte).other_node(Some(&name), &record).is_some();
        let mark = || mark_at(&path).expect("it says");
        homes(1).mark(&name, &record).expect("it is no node's");
        assert!(mark().is_some() && !is_other(1) && is_other(2));
        homes(2).unmark(&record);
        assert!(is_other(2), "it is not that node's to remove");
        homes(1).unmark(&record);
        assert!(mark().is_none() && !is_other(2));
        homes(1).mark(&name, &record).expect("it is no node's");
        let mut accepting = homes(2);
        accepting.accepted_files = std::sync::Arc::new([name.clone()].into());
        assert_eq!(accepting.other_node(Some(&name), &record), None);
        homes(2).mark(&name, &record).expect_err("it is not that node's to replace");
        accepting.mark(&name, &record).expect("the operator said so");
        assert!(is_other(1) && !is_other(2));
        homes(2).unmark(&record);
        assert!(is_other(1), "its blocks may be older");
        assert!(!is_other(2) && !is_other(3), "it is no node's");
        let new = VolumeRecord { phase: VolumePhase::Creating, ..record.clone() };
        assert!(homes(1).other_node(Some(&name), &new).is_none(), "a new volume has no blocks");
    }
}
