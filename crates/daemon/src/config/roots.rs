//! Where the files lie that a command may name: volumes' homes, stores in folders, key files.
//!
//! How: a path is resolved, symbolic links and all, as far as it exists; what it leads to must lie
//! in the node's directory or in a folder that the configuration names, and no folder on the way
//! from there may be writable by every user, who could lead it elsewhere later. Files that the
//! node's start believes in (configuration, catalog, secrets, levels) are never a volume's; by no
//! other name or link either. Nor does a path of the configuration name one for something else.
//! Each path is resolved within a time, and known by itself: one that hangs refuses what is in it
//! alone. What the node keeps for itself is known by its identity also while it hangs; of one that
//! was never seen, only the name is known, and no file that is there is taken. A folder that hangs
//! is waited for once, however many paths lie in it.
//! Invariant: what passes opens nothing outside of these folders at that moment.
//! Cost: a look at each folder of the path, and some at each path of the configuration, per
//! command; a folder that hangs costs [`layby_cloud::LOOK_TIME`] once. Not for: which folders the
//! configuration names, since its author chose them; nor objects in a bucket.

use super::checks::FileIdentity;
use super::kept::KeptFiles;
use super::reach::look_through;
use super::{Config, KeySource, Place, Problem};
use crate::disk_file::is_absent;
use layby_cloud::{NoAnswer, look_at};
use std::io::ErrorKind as Io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// How the URL of a store in a folder begins.
const FILE_URL: &str = "file://";
/// The mode bit that lets every user write.
const WRITABLE_BY_ALL: u32 = 0o002;
/// What in the node's directory is never a volume's.
const RESERVED: [&str; 25] = [
    "audit-refused.log",
    "audit-refused.log.1",
    "audit.log",
    "audit.log.1",
    "catalog.json",
    "catalog.json.new",
    "catalog.last",
    "catalog.last.new",
    "cloud",
    "control.sock",
    "control.url",
    "identities.json",
    "identities.json.new",
    "intents.json",
    "intents.json.new",
    "layby.sock",
    "layby.toml",
    "levels",
    "lock",
    "reached.copy.json",
    "reached.copy.json.new",
    "reached.json",
    "reached.json.new",
    "ublk",
    "vhost",
];

/// Those that are folders, and what does not go into them: a level or a volume may be put beside
/// the levels that have no path of their own.
const FOLDERS: [(&str, &[Use]); 4] = [
    ("cloud", &[Use::File, Use::Store]),
    ("levels", &[Use::Store]),
    ("ublk", &[Use::File, Use::Store]),
    ("vhost", &[Use::File, Use::Store]),
];
/// How the node names what it keeps of volumes in stores: a number, and one of these.
const LOCAL_FILES: [&str; 3] = ["journal", "map", "key"];

/// The folders that commands may name files in, and the files there that they may not.
#[derive(Debug)]
pub struct VolumeRoots<'a> {
    folders: Vec<PathBuf>,
    /// Those of them that hang, by their words.
    hanging: Vec<(PathBuf, NoAnswer)>,
    kept: &'a KeptFiles,
}

/// Why a command may not name a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRefusal {
    /// It leads to where no command may write or read.
    Forbidden(String),
    /// Its file system does not answer in time.
    NoAnswer(NoAnswer),
    /// It lies below a folder of `volume_roots` that cannot be used now.
    Unusable(String),
}

impl From<String> for PathRefusal {
    fn from(cause: String) -> PathRefusal {
        PathRefusal::Forbidden(cause)
    }
}

impl From<NoAnswer> for PathRefusal {
    fn from(no_answer: NoAnswer) -> PathRefusal {
        PathRefusal::NoAnswer(no_answer)
    }
}

/// What a path is to become.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The file of a level or a volume.
    File,
    /// A folder with a volume's objects.
    Store,
    /// A folder with files of the node's own.
    Folder,
}

/// What the node writes or reads for itself, by identity: a path may have many names.
struct Own {
    files: Vec<FileIdentity>,
    /// Folders, and what does not go into them.
    folders: Vec<(FileIdentity, &'static [Use])>,
    /// Those with files that are called as [`LOCAL_FILES`].
    locals: Vec<FileIdentity>,
}

impl Own {
    fn of(config: &Config) -> Own {
        let is_folder = |name: &str| FOLDERS.iter().any(|(folder, _)| *folder == name);
        let files = RESERVED.iter().filter(|name| !is_folder(name) && !name.ends_with(".sock"));
        let files = files.map(|name| config.dir.join(name)).chain(read(config));
        let own = FOLDERS.iter().map(|(name, uses)| (config.dir.join(name), *uses));
        // All else that is in these is their author's to say.
        let named = folders(config).into_iter().map(|(_, _, path)| (path.to_owned(), &[][..]));
        let locals = [&config.cloud.journal_dir, &config.cloud.map_dir];
        Own {
            files: files.map(|path| FileIdentity::of(&path)).collect(),
            folders: own.chain(named).map(|(p, uses)| (FileIdentity::of(&p), uses)).collect(),
            locals: locals.map(|path| FileIdentity::of(path)).into(),
        }
    }

    /// The same, with the sockets.
    fn with_sockets(config: &Config) -> Own {
        let mut own = Own::of(config);
        let of_names = ["control.sock", "layby.sock"].map(|name| config.dir.join(name));
        own.files.extend(of_names.iter().map(|path| FileIdentity::of(path)));
        own.files.extend(sockets(config).map(|(_, path)| FileIdentity::of(path)));
        own
    }

    /// Whether a file of the node's own is there, or would be a folder.
    fn has(&self, found: &FileIdentity) -> bool {
        let is_kept = |folder: &FileIdentity| found.name_in(folder).is_some_and(is_local);
        self.files.iter().any(|own| own.is_same(found) || found.is_within(own))
            || self.locals.iter().any(is_kept)
    }

    /// Why a path cannot become this, if so.
    fn refusal(&self, path: &Path, becomes: Use) -> Option<String> {
        let found = FileIdentity::of(path);
        let holds = |(folder, uses): &(FileIdentity, &[Use])| {
            folder.is_same(&found) || (uses.contains(&becomes) && found.is_within(folder))
        };
        let path = path.display();
        if self.has(&found) {
            return Some(format!("`{path}` is the place of a file of the node's own"));
        }
        let is_held = becomes != Use::Folder && self.folders.iter().any(holds);
        is_held.then(|| format!("`{path}` is, or is in, a folder of the node's own"))
    }
}

/// Whether the node names something so that it keeps of a volume in a store.
fn is_local(name: &str) -> bool {
    let (number, kind) = name.split_once('.').unwrap_or((name, ""));
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && LOCAL_FILES.contains(&kind)
}

impl KeptFiles {
    /// Those of a node that starts; looks at paths, so on a thread that may wait.
    #[must_use]
    pub fn of(config: &Config) -> KeptFiles {
        let own = RESERVED.iter().map(|name| config.dir.join(name));
        let sockets = sockets(config).map(|(_, path)| path.to_owned());
        KeptFiles::at(own.chain(kept(config)).chain(sockets).collect())
    }
}

impl<'a> VolumeRoots<'a> {
    /// Those of a node; looks at paths, so on a thread that may wait.
    #[must_use]
    pub fn of(config: &Config, kept: &'a KeptFiles) -> VolumeRoots<'a> {
        let mut hanging = Vec::new();
        let mut led_to = |path: &Path| match resolve_in_time(path) {
            Ok(found) => found.unwrap_or_else(|_| path.to_owned()),
            Err(hangs) => {
                let whole = whole(path);
                hanging.push((whole.clone(), hangs));
                whole
            }
        };
        let named = config.volume_roots.iter();
        let folders = std::iter::once(&config.dir).chain(named).map(|root| led_to(root)).collect();
        VolumeRoots { folders, hanging, kept }
    }

    /// The file or folder of the node's own that a path names, or names something in.
    ///
    /// # Errors
    /// As [`KeptFiles::named_by`].
    pub(crate) fn own(&self, path: &Path) -> Result<Option<&Path>, NoAnswer> {
        self.kept.named_by(path)
    }

    /// Whether a command may name `path`; looks at paths, so on a thread that may wait.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, path: &Path) -> Result<(), PathRefusal> {
        let named = whole(path);
        // Each path there would keep a thread of its own.
        if let Some((_, hangs)) = self.hanging.iter().find(|(root, _)| named.starts_with(root)) {
            return Err(hangs.clone().into());
        }
        let found = resolve_in_time(path)??;
        let shown = || match found == path {
            true => format!("`{}`", path.display()),
            false => format!("`{}`, which is `{}`,", path.display(), found.display()),
        };
        if let Some(kept) = self.own(&found)? {
            return Err(format!("{} is the node's own: `{}`", shown(), kept.display()).into());
        }
        let root = self.folders.iter().find(|root| found.starts_with(root) && found != **root);
        let Some(root) = root else {
            let roots: Vec<_> = self.folders.iter().map(|r| format!("`{}`", r.display())).collect();
            return Err(format!("{} is not in {}", shown(), roots.join(", ")).into());
        };
        let (below, looked_at) = (root.clone(), found.clone());
        look_at(&found, move || match (unusable(&below), open_above(&looked_at, &below)) {
            (Some(cause), _) => Err(PathRefusal::Unusable(cause)),
            (None, Some(folder)) => {
                Err(format!("every user can write in `{}`", folder.display()).into())
            }
            (None, None) => Ok(()),
        })?
    }
}

/// A folder between a root and a path, the root too, that every user can write in.
fn open_above(path: &Path, root: &Path) -> Option<PathBuf> {
    let between = path.ancestors().skip(1).take_while(|folder| folder.starts_with(root));
    let open = between.filter(|folder| !is_absent(folder)).find(|folder| is_open(folder));
    open.map(Path::to_owned)
}

/// Files and folders that the configuration names for something else than volumes.
fn kept(config: &Config) -> impl Iterator<Item = PathBuf> {
    let levels = config.levels.iter().filter_map(|level| level.path.clone());
    let folders = folders(config).into_iter().map(|(_, _, path)| path.to_owned());
    read(config).chain(folders).chain(levels).collect::<Vec<_>>().into_iter()
}

/// Files that the configuration names to be read.
fn read(config: &Config) -> impl Iterator<Item = PathBuf> {
    let levels = config.levels.iter().filter_map(|level| level.keys.as_ref());
    let levels = levels.flat_map(|keys| [Some(&keys.key), keys.previous.as_ref()]).flatten();
    let volumes = config.volumes.values().filter_map(|volume| volume.key.as_ref());
    let keys = volumes.chain(levels).filter_map(|key| match key {
        KeySource::File(path) => Some(path.clone()),
        _ => None,
    });
    let named = [
        config.origin.clone(),
        config.nbd.tls_certificate.clone(),
        config.nbd.tls_key.clone(),
        config.nbd.tls_client_ca.clone(),
        config.control.token_file.clone(),
    ];
    named.into_iter().flatten().chain(keys)
}

/// Folders that the configuration names for files of the node's own, and by which key.
fn folders(config: &Config) -> Vec<(Place, &'static str, &Path)> {
    let vhost = config.vhost.as_deref().map(|path| (Place::Vhost, "directory", path));
    let cloud = [
        (Place::Cloud, "journal_dir", &*config.cloud.journal_dir),
        (Place::Cloud, "map_dir", &*config.cloud.map_dir),
    ];
    vhost.into_iter().chain(cloud).collect()
}

fn sockets(config: &Config) -> [(Place, &Path); 2] {
    [(Place::Nbd, &config.nbd.socket), (Place::Control, &config.control.socket)]
}

/// Refuses sockets in the place of a file that the node writes or reads: whichever comes second
/// would take the first one's place.
pub(super) fn check_sockets(config: &Config) -> Result<(), Problem> {
    let own = Own::of(config);
    let volumes = volumes(config).map(|(_, path, _)| path);
    let named: Vec<FileIdentity> =
        kept(config).chain(volumes).map(|path| FileIdentity::of(&path)).collect();
    let is_own = |found: &FileIdentity| {
        let folders = own.folders.iter().map(|(folder, _)| folder);
        own.has(found) || folders.chain(&named).any(|own| own.is_same(found))
    };
    let [(_, first), (_, second)] = sockets(config);
    for (place, path) in sockets(config) {
        let cause = match is_own(&FileIdentity::of(path)) {
            true => format!("`{}` is the place of a file of the node's own", path.display()),
            false if FileIdentity::of(first).is_same(&FileIdentity::of(second)) => {
                format!("the sockets of [nbd] and [control] are both `{}`", path.display())
            }
            false => continue,
        };
        let hint = "give each socket a path of its own, such as `layby.sock`";
        return Err(Problem::new(place, "socket", cause, hint));
    }
    Ok(())
}

/// Volumes whose places the configuration names, and what these become.
fn volumes(config: &Config) -> impl Iterator<Item = (Place, PathBuf, Use)> {
    config.volumes.iter().filter_map(|(name, volume)| {
        let (place, path) = (Place::Volume(name.clone()), volume.path.as_deref()?);
        match crate::cloud::is_store(path) {
            true if path.to_str()?.starts_with(FILE_URL) => {
                Some((place, path.to_owned(), Use::Store))
            }
            true => None,
            false => Some((place, config.dir.join(path), Use::File)),
        }
    })
}

/// Refuses volumes, levels and folders in the place of a file that the node writes or reads: it
/// would be overwritten.
pub(super) fn check_files(config: &Config) -> Result<(), Problem> {
    let own = Own::with_sockets(config);
    let levels = config.levels.iter().enumerate();
    let levels = levels.filter_map(|(index, level)| {
        Some((Place::Level(index), "path", level.path.clone()?, Use::File))
    });
    let volumes = volumes(config).map(|(place, path, becomes)| (place, "path", path, becomes));
    let folders = folders(config).into_iter();
    let folders = folders.map(|(place, key, path)| (place, key, path.to_owned(), Use::Folder));
    for (place, key, path, becomes) in levels.chain(volumes).chain(folders) {
        if let Some(cause) = own.refusal(&path, becomes) {
            let hint = match becomes {
                Use::File => "choose another file or device",
                Use::Store | Use::Folder => "choose another folder",
            };
            return Err(Problem::new(place, key, cause, hint));
        }
    }
    Ok(())
}

fn is_open(folder: &Path) -> bool {
    // One that cannot be looked at is not trusted.
    std::fs::metadata(folder).map_or(true, |m| m.permissions().mode() & WRITABLE_BY_ALL != 0)
}

/// Whether a folder can be one of those that commands may name files in. One that cannot be looked
/// at, such as one whose disk is not mounted yet, can, but for now, which is said: a start needs
/// none of them.
pub(super) fn check_folder(root: &Path) -> Result<Option<String>, String> {
    if let Some(cause) = unusable(root) {
        return Ok(Some(format!("{cause}; commands place nothing there until it can be")));
    }
    if !root.is_dir() {
        return Err(format!("`{}` is no folder", root.display()));
    }
    match is_open(root) {
        true => Err(format!("every user can write in `{}`", root.display())),
        false => Ok(None),
    }
}

/// Why nothing can be placed in a folder now. Below one that is missing, what is made may lie on
/// another disk than the one that is to be mounted there.
fn unusable(root: &Path) -> Option<String> {
    let cause = std::fs::metadata(root).err()?;
    Some(format!("`{}` of `volume_roots` cannot be used: {cause}", root.display()))
}

/// A path from the root on, as it is written.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Where a path leads, within a time; see [`resolve`].
fn resolve_in_time(path: &Path) -> Result<Result<PathBuf, String>, NoAnswer> {
    let looked_at = path.to_owned();
    look_through(&whole(path), move || resolve(&looked_at))
}

/// Where a path leads, links and all; what does not exist yet is taken as it is written.
fn resolve(path: &Path) -> Result<PathBuf, String> {
    let whole = std::path::absolute(path).map_err(|cause| cause.to_string())?;
    #[cfg(test)]
    super::hanging::pass(&whole);
    if whole.components().any(|part| part == Component::ParentDir) {
        return Err(format!("`{}` has `..` in it", path.display()));
    }
    match whole.canonicalize() {
        Ok(found) => Ok(found),
        Err(cause) if cause.kind() == Io::NotFound && whole.symlink_metadata().is_err() => {
            let (parent, name) = whole.parent().zip(whole.file_name()).ok_or("it has no name")?;
            Ok(resolve(parent)?.join(name))
        }
        Err(cause) => Err(format!("`{}` leads nowhere: {cause}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    fn mode(path: &Path, mode: u32) {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).expect("the test's own file");
    }

    /// Goal: a command names files in the node's directory and in the named folders alone, however
    /// they are written. Method: files, links and folders of each kind, old and new ones.
    #[test]
    fn what_leads_outside_is_refused() {
        let outer = TempDir::new().expect("a temporary directory");
        let place = |name: &str| outer.path().join(name);
        for folder in ["node", "node/sub", "root", "root/open", "else"] {
            std::fs::create_dir(place(folder)).expect("a writable directory");
        }
        mode(&place("root/open"), 0o777);
        std::fs::write(place("else/secret"), b"x").expect("a writable directory");
        for (to, link) in [
            ("else/secret", "root/to-file"),
            ("else", "root/to-folder"),
            ("else/new", "root/to-nothing"),
            ("node/sub", "root/back"),
        ] {
            symlink(place(to), place(link)).expect("a writable directory");
        }
        for (file, link) in [("node/catalog.json", "root/hard"), ("node/sub/token", "node/hard")] {
            std::fs::write(place(file), b"x").expect("a writable directory");
            std::fs::hard_link(place(file), place(link)).expect("a writable directory");
        }
        let text = format!(
            "[node]\nvolume_roots = [\"{}\"]\n[control]\ntoken_file = \"sub/token\"\n",
            place("root").display()
        );
        let over = Overrides { dir: Some(place("node")), ..Overrides::default() };
        let config = Config::parse(None, &text, &over).expect("good");
        let kept = KeptFiles::of(&config);
        let roots = VolumeRoots::of(&config, &kept);
        for good in
            ["node/x", "node/sub/x", "node/volumes/x", "root/x", "root/new/x", "root/back/x"]
        {
            assert_eq!(roots.check(&place(good)), Ok(()), "{good}");
        }
        for bad in [
            "else/secret",
            "else/new",
            "root",
            "node",
            "root/to-file",
            "root/to-folder/secret",
            "root/to-folder/new",
            "root/to-nothing",
            "root/../else/secret",
            "root/open/x",
            "rootless/x",
            "node/layby.toml",
            "node/catalog.json",
            "node/levels/ssd",
            "node/cloud/0.journal",
            "node/sub/token",
            "root/back/token",
            "root/hard",
            "node/hard",
        ] {
            assert!(roots.check(&place(bad)).is_err(), "{bad}");
        }
        for bad in ["root/open", "else/secret"] {
            assert!(check_folder(&place(bad)).is_err(), "{bad}");
        }
        let noted = check_folder(&place("none"));
        assert!(matches!(&noted, Ok(Some(note)) if note.contains("/none` of")), "{noted:?}");
        std::fs::rename(place("root"), place("away")).expect("a writable directory");
        let roots = VolumeRoots::of(&config, &kept);
        let missing = roots.check(&place("root/x"));
        assert!(matches!(missing, Err(PathRefusal::Unusable(_))), "{missing:?}");
        assert_eq!(roots.check(&place("node/x")), Ok(()));
    }
}
