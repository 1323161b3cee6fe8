//! Where the files lie that a command may name: volumes' homes, stores in folders, key files.
//!
//! How: a path is resolved, symbolic links and all, as far as it exists; what it leads to must lie
//! in the node's directory or in a folder that the configuration names, and no folder on the way
//! from there may be writable by every user, who could lead it elsewhere later. Files that the
//! node's start believes in (configuration, catalog, secrets, levels) are never a volume's.
//! Invariant: what passes opens nothing outside of these folders at that moment.
//! Cost: a look at each folder of the path per command. Not for: paths of the configuration, which
//! its author chose; nor objects in a bucket.

use super::{Config, KeySource, Place, Problem};
use std::io::ErrorKind as Io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// The mode bit that lets every user write.
const WRITABLE_BY_ALL: u32 = 0o002;
/// What in the node's directory is never a volume's.
const RESERVED: [&str; 19] = [
    "audit-refused.log",
    "audit-refused.log.1",
    "audit.log",
    "audit.log.1",
    "catalog.json",
    "catalog.json.new",
    "cloud",
    "control.sock",
    "control.url",
    "intents.json",
    "intents.json.new",
    "layby.sock",
    "layby.toml",
    "levels",
    "lock",
    "reached.json",
    "reached.json.new",
    "ublk",
    "vhost",
];

/// The folders that commands may name files in, and the files there that they may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRoots {
    folders: Vec<PathBuf>,
    kept: Vec<PathBuf>,
}

impl VolumeRoots {
    /// Those of a node.
    #[must_use]
    pub fn of(config: &Config) -> VolumeRoots {
        let dir = resolve(&config.dir).unwrap_or_else(|_| config.dir.clone());
        let own = RESERVED.iter().map(|name| dir.join(name));
        let sockets = sockets(config).map(|(_, path)| path.to_owned());
        let kept = own.chain(kept(config)).chain(sockets);
        let kept = kept.map(|path| resolve(&path).unwrap_or(path)).collect();
        let named = config.volume_roots.iter();
        let named = named.map(|root| resolve(root).unwrap_or_else(|_| root.clone()));
        VolumeRoots { folders: std::iter::once(dir).chain(named).collect(), kept }
    }

    /// Whether a command may name `path`.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        let found = resolve(path)?;
        let shown = || match found == path {
            true => format!("`{}`", path.display()),
            false => format!("`{}`, which is `{}`,", path.display(), found.display()),
        };
        if let Some(kept) = self.kept.iter().find(|kept| found.starts_with(kept)) {
            return Err(format!("{} is the node's own: `{}`", shown(), kept.display()));
        }
        let root = self.folders.iter().find(|root| found.starts_with(root) && found != **root);
        let Some(root) = root else {
            let roots: Vec<_> = self.folders.iter().map(|r| format!("`{}`", r.display())).collect();
            return Err(format!("{} is not in {}", shown(), roots.join(", ")));
        };
        let on_the_way = found.ancestors().skip(1).take_while(|folder| folder.starts_with(root));
        let open = on_the_way.filter(|folder| folder.exists()).find(|folder| is_open(folder));
        match open {
            Some(folder) => Err(format!("every user can write in `{}`", folder.display())),
            None => Ok(()),
        }
    }
}

/// Files that the configuration names for something else than volumes.
fn kept(config: &Config) -> impl Iterator<Item = PathBuf> {
    let keys = config.volumes.values().filter_map(|volume| match &volume.key {
        Some(KeySource::File(path)) => Some(path.clone()),
        _ => None,
    });
    let levels = config.levels.iter().filter_map(|level| level.path.clone());
    let named = [
        config.origin.clone(),
        config.nbd.tls_certificate.clone(),
        config.nbd.tls_key.clone(),
        config.nbd.tls_client_ca.clone(),
        config.control.token_file.clone(),
        config.vhost.clone(),
        Some(config.cloud.journal_dir.clone()),
        Some(config.cloud.map_dir.clone()),
    ];
    named.into_iter().flatten().chain(levels).chain(keys).collect::<Vec<_>>().into_iter()
}

fn sockets(config: &Config) -> [(Place, &Path); 2] {
    [(Place::Nbd, &config.nbd.socket), (Place::Control, &config.control.socket)]
}

/// Refuses sockets in the place of a file that the node writes or reads: whichever comes second
/// would take the first one's place.
pub(super) fn check_sockets(config: &Config) -> Result<(), Problem> {
    let whole = |path: &Path| resolve(path).unwrap_or_else(|_| path.to_owned());
    let dir = whole(&config.dir);
    let own = RESERVED.iter().filter(|name| !name.ends_with(".sock")).map(|name| dir.join(name));
    let files: Vec<PathBuf> = own.chain(kept(config)).map(|path| whole(&path)).collect();
    let [(_, first), (_, second)] = sockets(config);
    for (place, path) in sockets(config) {
        let found = whole(path);
        let cause = match files.contains(&found) {
            true => format!("`{}` is the place of a file of the node's own", path.display()),
            false if whole(first) == whole(second) => {
                format!("the sockets of [nbd] and [control] are both `{}`", path.display())
            }
            false => continue,
        };
        let hint = "give each socket a path of its own, such as `layby.sock`";
        return Err(Problem::new(place, "socket", cause, hint));
    }
    Ok(())
}

/// Refuses volumes and levels in the place of a file that the node writes: it would be overwritten.
pub(super) fn check_files(config: &Config) -> Result<(), Problem> {
    let whole = |path: &Path| resolve(path).unwrap_or_else(|_| path.to_owned());
    let dir = whole(&config.dir);
    let files: Vec<PathBuf> = RESERVED.iter().map(|name| dir.join(name)).collect();
    let volumes = config.volumes.iter().filter_map(|(name, volume)| {
        let path = volume.path.as_deref().filter(|path| !crate::cloud::is_store(path))?;
        Some((Place::Volume(name.clone()), config.dir.join(path)))
    });
    let levels = config.levels.iter().enumerate();
    let levels = levels.filter_map(|(index, level)| {
        Some((Place::Level(index), config.dir.join(level.path.as_deref()?)))
    });
    for (place, path) in volumes.chain(levels) {
        if files.contains(&whole(&path)) {
            let cause = format!("`{}` is the place of a file of the node's own", path.display());
            return Err(Problem::new(place, "path", cause, "choose another file or device"));
        }
    }
    Ok(())
}

fn is_open(folder: &Path) -> bool {
    // One that cannot be looked at is not trusted.
    std::fs::metadata(folder).map_or(true, |m| m.permissions().mode() & WRITABLE_BY_ALL != 0)
}

/// Whether a folder can be one of those that commands may name files in.
pub(super) fn check_folder(root: &Path) -> Result<(), String> {
    let found =
        std::fs::metadata(root).map_err(|cause| format!("`{}`: {cause}", root.display()))?;
    if !found.is_dir() {
        return Err(format!("`{}` is no folder", root.display()));
    }
    match is_open(root) {
        true => Err(format!("every user can write in `{}`", root.display())),
        false => Ok(()),
    }
}

/// Where a path leads, links and all; what does not exist yet is taken as it is written.
fn resolve(path: &Path) -> Result<PathBuf, String> {
    let whole = std::path::absolute(path).map_err(|cause| cause.to_string())?;
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
        let text = format!(
            "[node]\nvolume_roots = [\"{}\"]\n[control]\ntoken_file = \"sub/token\"\n",
            place("root").display()
        );
        let over = Overrides { dir: Some(place("node")), ..Overrides::default() };
        let config = Config::parse(None, &text, &over).expect("good");
        let roots = VolumeRoots::of(&config);
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
        ] {
            assert!(roots.check(&place(bad)).is_err(), "{bad}");
        }
        for bad in ["root/open", "none", "else/secret"] {
            assert!(check_folder(&place(bad)).is_err(), "{bad}");
        }
    }
}
