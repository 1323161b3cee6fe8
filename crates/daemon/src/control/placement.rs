//! Where a new volume's bytes will lie.
//!
//! How: a place that was chosen is taken as it is, a file of the node's own otherwise; what is
//! there already gives the length where none was said.
//! Invariant: no two volumes, and no volume and level, share a place; what a deleted volume left is
//! never taken unasked.
//! Cost: a look at the file system for each level and volume, once for all volumes that a start
//! makes; one that hangs has a time limit, and is known by its words then. Not for: making files;
//! see `homes`.

use super::blocking::broke_off;
use super::volumes::{VOLUMES_DIR_NAME, add_to_view};
use super::{Control, View, VolumeCreate};
use crate::catalog::DeletedRecord;
use crate::cloud::is_store;
use crate::config::{FileIdentity, Name, Size, VolumeConfig};
use crate::disk_file::{self, HINT_NO_DEVICE, is_no_device};
use crate::error::{Report, ReportKind};
use crate::threads;
use layby_cloud::{NoAnswer, look_at};
use layby_types::format_bytes;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

impl Control {
    /// Paths that hang are known before the change begins; see [`look_ahead`].
    pub(super) async fn look_ahead(&self, request: &VolumeCreate) {
        let (view, dir, name) = (self.view(), self.facts.dir.clone(), request.name.clone());
        let config = request.clone().into_config(None);
        let looking = move || look_ahead(&view, &dir, &name, &config);
        // What a look finds, the change finds again.
        let _ = tokio::task::spawn_blocking(looking).await;
    }

    /// The node with a new volume; looks at paths, so on a thread that may wait.
    pub(super) async fn with_volume(
        &self,
        mut view: View,
        name: &Name,
        config: &VolumeConfig,
        error: &str,
    ) -> Result<View, Report> {
        let (dir, name) = (self.facts.dir.clone(), name.clone());
        let (config, error) = (config.clone(), error.to_owned());
        let adding = tokio::task::spawn_blocking(move || {
            let mut places = KnownPlaces::new(&dir);
            add_to_view(&mut view, &mut places, &name, (&config, false), &error).map(|()| view)
        });
        adding.await.unwrap_or_else(|ended| Err(broke_off(ended)))
    }
}

/// What the places of levels and volumes are, looked at once. For the length of one change, during
/// which no file is made: what was not there yet is still not there.
pub(crate) struct KnownPlaces<'a> {
    dir: &'a Path,
    known: BTreeMap<PathBuf, FileIdentity>,
}

impl<'a> KnownPlaces<'a> {
    /// None yet, of the node in `dir`.
    pub(crate) fn new(dir: &'a Path) -> KnownPlaces<'a> {
        KnownPlaces { dir, known: BTreeMap::new() }
    }

    /// What a place is. A URL is whole by itself; a path is one of the node's directory.
    ///
    /// # Errors
    /// [`NoAnswer::NoThread`] where it is not known.
    fn identity(&mut self, path: &Path) -> Result<&FileIdentity, NoAnswer> {
        let whole = if is_store(path) { path.to_owned() } else { self.dir.join(path) };
        match self.known.entry(whole) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let found = FileIdentity::or_named(new.key())?;
                Ok(new.insert(found))
            }
        }
    }
}

/// Where a new volume's bytes will lie, and how many there are. With `is_begun` an earlier start
/// has begun to make the volume, so that the file of its name is its own.
pub(super) fn place(
    view: &View,
    places: &mut KnownPlaces<'_>,
    name: &Name,
    (config, is_begun): (&VolumeConfig, bool),
    error: &str,
) -> Result<(PathBuf, u64), Report> {
    let refused = |kind, cause: String, hint: &str| {
        Report::new(kind, error).cause(cause).state("nothing was changed").hint(hint)
    };
    let path = wanted(places.dir, name, config);
    if is_store(&path) {
        return place_in_store(view, places, &path, config.size, error);
    }
    let existing = existing(&path, error)?;
    if config.path.is_none() && existing.is_some() && !is_begun {
        let path = absolute(&path);
        let path = path.display();
        let cause =
            format!("`{path}` exists already; a deleted volume of this name leaves its data there");
        let hint =
            format!("adopt the file with `--path {path}`, move it away, or choose another name");
        return Err(refused(ReportKind::InUse, cause, &hint));
    }
    if let Some(other) = user_of(view, places, &path).map_err(no_thread)? {
        let cause = format!("`{}` is used by {other}", path.display());
        return Err(refused(ReportKind::InUse, cause, "give each volume a file of its own"));
    }
    let length = match (config.size, existing) {
        (Some(Size(size)), Some(there)) if there.is_device && size > there.length => {
            let have = format_bytes(there.length);
            let cause = format!("the device `{}` has only {have}", path.display());
            return Err(refused(ReportKind::Invalid, cause, "leave --size out to use all of it"));
        }
        (Some(Size(size)), _) => size,
        (None, Some(there)) => there.length,
        (None, None) => {
            let cause = "no size was given, and there is no file to take it from".to_owned();
            return Err(refused(ReportKind::Invalid, cause, "give a size such as 64GiB"));
        }
    };
    let stored = if config.path.is_none() { own_file(name) } else { absolute(&path) };
    if stored.to_str().is_none() {
        let cause = format!("the catalog takes paths in UTF-8 alone, not `{}`", path.display());
        let hint = "rename the file or the node's directory, or leave the path out";
        return Err(refused(ReportKind::Invalid, cause, hint));
    }
    Ok((stored, length))
}

/// The file of a volume without a path, in the node's directory.
fn own_file(name: &Name) -> PathBuf {
    Path::new(VOLUMES_DIR_NAME).join(name.as_str())
}

/// Where a volume is to lie: a store's URL, or a path.
fn wanted(dir: &Path, name: &Name, config: &VolumeConfig) -> PathBuf {
    match config.path.as_deref() {
        Some(store) if is_store(store) => store.to_owned(),
        Some(path) => dir.join(path),
        None => dir.join(own_file(name)),
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A store's URL stays as it is written, and only the operator knows the volume's length.
fn place_in_store(
    view: &View,
    places: &mut KnownPlaces<'_>,
    store: &Path,
    size: Option<Size>,
    error: &str,
) -> Result<(PathBuf, u64), Report> {
    let refused = |kind, cause: String, hint: &str| {
        Report::new(kind, error).cause(cause).state("nothing was changed").hint(hint)
    };
    if let Some(other) = user_of(view, places, store).map_err(no_thread)? {
        let cause = format!("`{}` is used by {other}", store.display());
        return Err(refused(ReportKind::InUse, cause, "give each volume a prefix of its own"));
    }
    if let Some(deleted) = deleted_at(view, places, store).map_err(no_thread)? {
        let (store, name) = (store.display(), &deleted.name);
        let cause = format!("`{store}` has the objects of volume `{name}`, which was deleted");
        return Err(refused(ReportKind::InUse, cause, &hint_deleted(view, deleted)));
    }
    let Some(Size(length)) = size else {
        let cause = "a volume in an object store has no length of its own yet".to_owned();
        return Err(refused(ReportKind::Invalid, cause, HINT_SIZE));
    };
    Ok((store.to_owned(), length))
}

/// What to do with a deleted volume whose objects are in the way. Its number is named, since
/// another volume may have its name by now, which would be deleted in its place.
fn hint_deleted(view: &View, deleted: &DeletedRecord) -> String {
    let (name, number) = (&deleted.name, deleted.record.id);
    let renamed = if view.catalog.volumes.contains_key(name) { " --as NEW_NAME" } else { "" };
    format!(
        "`layby volume undelete {name} --number {number}{renamed}` brings it back, `layby volume \
         delete {name} --data now --number {number}` removes them; or choose another prefix"
    )
}

const HINT_SIZE: &str = "add --size, for a new volume; or --take, for one that is there";

/// A file or device that is there.
struct Existing {
    length: u64,
    is_device: bool,
}

/// The file or device at `path`, `None` when there is nothing of that name.
fn existing(path: &Path, error: &str) -> Result<Option<Existing>, Report> {
    let looked_at = path.to_owned();
    let found = match look_at(path, move || found(&looked_at)) {
        Err(NoAnswer::Hangs(path)) => Err(NoAnswer::Hangs(path).into()),
        found => found.map_err(no_thread)?,
    };
    found.map_err(|cause| {
        Report::from_io(format!("{error}: cannot look at `{}`", path.display()), &cause)
            .state("nothing was changed")
            .hint(match is_no_device(&cause) {
                true => HINT_NO_DEVICE,
                false => "name a file or a block device that this user may open, or none",
            })
    })
}

/// Why a place is not known: a change, which others wait for, looks at no path by itself.
fn no_thread(no_answer: NoAnswer) -> Report {
    threads::refused(&no_answer.into()).state("nothing was changed")
}

fn found(path: &Path) -> std::io::Result<Option<Existing>> {
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            disk_file::check_new(path)?;
            return Ok(None);
        }
        Err(cause) => return Err(cause),
    };
    let length = disk_file::open_to_read(path)?.seek(SeekFrom::End(0))?;
    Ok(Some(Existing { length, is_device: kind.is_block_device() }))
}

/// Looks at all that a new volume's place is compared to, so that what hangs is known before the
/// change of the node begins. May take [`layby_cloud::LOOK_TIME`] for each path that hangs.
fn look_ahead(view: &View, dir: &Path, name: &Name, config: &VolumeConfig) {
    let (wanted, mut places) = (wanted(dir, name, config), KnownPlaces::new(dir));
    let _ = user_of(view, &mut places, &wanted);
    let _ = deleted_at(view, &mut places, &wanted);
}

/// Which level or volume lies on `path` already.
///
/// # Errors
/// [`NoAnswer::NoThread`] where it is not known.
fn user_of(
    view: &View,
    places: &mut KnownPlaces<'_>,
    path: &Path,
) -> Result<Option<String>, NoAnswer> {
    let wanted = places.identity(path)?.clone();
    let levels = view
        .layout
        .levels
        .iter()
        .filter_map(|level| Some((format!("level `{}`", level.name), level.path.clone()?)));
    let volumes = view.catalog.volumes.iter();
    let volumes = volumes.map(|(name, record)| (format!("volume `{name}`"), record.path.clone()));
    for (user, used) in levels.chain(volumes) {
        let used_as = places.identity(&used)?;
        if used_as.is_same(&wanted) {
            let bytes = format!(", as `{}`: they have the same bytes", used.display());
            return Ok(Some(user + if used_as.is_below(&wanted) { &bytes } else { "" }));
        }
    }
    Ok(None)
}

/// Which deleted volume has its objects in a store.
///
/// # Errors
/// [`NoAnswer::NoThread`] where it is not known.
fn deleted_at<'a>(
    view: &'a View,
    places: &mut KnownPlaces<'_>,
    store: &Path,
) -> Result<Option<&'a DeletedRecord>, NoAnswer> {
    let wanted = places.identity(store)?.clone();
    for deleted in &view.catalog.deleted {
        if places.identity(&deleted.record.path)?.is_same(&wanted) {
            return Ok(Some(deleted));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::hanging::hang;
    use crate::control::tests::{MockNode, create};
    use crate::control::{Authority, VolumeCreate};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::sync::Arc;
    use std::time::Duration;

    /// Goal: a path that the catalog cannot hold is refused, not a crash; a node in such a folder
    /// serves what has no path of its own. Method: a directory whose name is no text.
    #[tokio::test]
    async fn a_path_that_is_no_text_is_refused() {
        let odd = OsStr::from_bytes(b"\xff");
        let dir = tempfile::Builder::new().prefix(odd).tempdir().expect("a temporary directory");
        let node = MockNode::on(dir, "");
        let create = async |name: &str, path: Option<&str>| {
            let wanted = format!("{{\"name\":\"{name}\",\"size\":\"1MiB\"}}");
            let wanted: VolumeCreate = serde_json::from_str(&wanted).expect("JSON");
            let wanted = VolumeCreate { path: path.map(Into::into), ..wanted };
            node.control.volume_create(wanted, Authority::Owner).await
        };
        create("a", None).await.expect("its path is relative");
        let refused = create("b", Some("volumes/file")).await.expect_err("it is no text");
        assert_eq!(refused.kind, ReportKind::Invalid);
        assert!(refused.cause.contains("UTF-8") && !refused.hint.is_empty(), "{refused}");
        assert!(!node.dir.path().join("volumes/file").exists(), "nothing was made");
        create("b", None).await.expect("the name is free");
    }

    /// Has the node's view have a volume `far` at a path.
    async fn add_far(node: &MockNode, path: &Path) {
        let mut view = View::clone(&node.control.view());
        let mut record = view.catalog.volumes["vol0"].clone();
        (record.id, record.path) = (view.catalog.volume_id_next, path.to_owned());
        view.catalog.volume_id_next += 1;
        view.catalog.volumes.insert("far".parse().expect("a good name"), record);
        node.control.publish(view).await.expect("there is room");
    }

    /// Goal: a creation that names no path waits for volumes' paths that hang before it has the
    /// node's change. Method: a volume in a folder whose identity waits for the test; while the
    /// creation waits there, the change is free; the folder answers.
    #[tokio::test]
    async fn a_creation_without_a_path_waits_before_the_change() {
        let root = tempfile::TempDir::new().expect("a temporary directory");
        let node = MockNode::new("");
        add_far(&node, &root.path().join("far")).await;
        let hanging = hang(root.path());
        let control = Arc::clone(&node.control);
        let creating = async move { control.volume_create(create("a"), Authority::Owner).await };
        let creating = tokio::spawn(creating);
        while !hanging.is_reached() && !creating.is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(hanging.is_reached(), "places are compared");
        let change = node.control.lock_changes();
        let is_free = tokio::time::timeout(Duration::ZERO, change).await.is_ok();
        drop(hanging);
        creating.await.expect("no panic").expect("its own place answers");
        assert!(is_free, "other changes wait");
    }

    /// Goal: a path whose file system hangs refuses a volume there, and costs other creations
    /// nothing. Method: a look at the path that ends when the test says so; a creation there, one
    /// beside it while a volume of the node lies there, and one there when it answers.
    #[tokio::test]
    async fn a_path_that_hangs_refuses_its_own_volume_alone() {
        let root = tempfile::TempDir::new().expect("a temporary directory");
        let roots = format!("[node]\nvolume_roots = [\"{}\"]\n", root.path().display());
        let node = MockNode::new(&roots);
        let create = async |name: &str, path: Option<&Path>| {
            let wanted = format!("{{\"name\":\"{name}\",\"size\":\"1MiB\"}}");
            let wanted: VolumeCreate = serde_json::from_str(&wanted).expect("JSON");
            let wanted = VolumeCreate { path: path.map(Into::into), ..wanted };
            node.control.volume_create(wanted, Authority::Owner).await
        };
        let (far, near) = (root.path().join("far"), root.path().join("near"));
        let (answer, silence) = std::sync::mpsc::channel::<()>();
        let looked_at = far.clone();
        let looking = move || look_at(&looked_at, move || silence.recv().is_err());
        let hangs = tokio::task::spawn_blocking(looking).await.expect("no panic");
        hangs.expect_err("the test has not answered");
        let refused = create("a", Some(&far)).await.expect_err("it hangs");
        assert!(refused.cause.contains("has not ended") && !refused.hint.is_empty(), "{refused}");
        add_far(&node, &far).await;
        create("b", Some(&near)).await.expect("its own place answers");
        drop(answer);
        let refused = loop {
            let refused = create("a", Some(&far)).await.expect_err("a volume lies there");
            if !refused.cause.contains("has not ended") {
                break refused;
            }
            tokio::task::yield_now().await;
        };
        assert!(refused.cause.contains("is used by volume `far`"), "{refused}");
    }
}
