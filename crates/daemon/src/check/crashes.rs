//! What a check says of a volume in an object store whose node ended between two steps.
//!
//! How: catalogs and files are written as a kill between two steps leaves them; each is checked,
//! and then started. Invariant: a check finds a problem where the start does not serve the volume,
//! and none where it does. Cost: a start per case. Not for: levels; see
//! `tests/tests/all/damage.rs`.

use super::*;
use crate::assembly::{Prepared, prepare};
use crate::catalog::CATALOG_FILE_NAME;
use crate::cloud::{CloudHomes, take_back};
use crate::config::KeySource;
use crate::node::Node;
use crate::node::tests::{MockStarter, config};
use layby_cloud::{Link, Paths, Superblock};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use tempfile::TempDir;

/// A child of another test may hold the lock of the incarnation before between fork and exec.
const STARTS_MAX: u32 = 10_000;
/// The first page of a ring and the beginning of a batch; see `docs/formats.md`.
const USED: (usize, &[u8]) = (4096, b"LAYBYCJB");
const DAMAGED: [&[u8]; 3] = [b"\xff\xfe", b"0123", b"no note of a key, and much longer than one"];

/// What a journal has.
enum Journal {
    Empty,
    /// Its room, and no writes.
    Blank,
    /// Writes.
    Used,
}

/// A node with a volume `maps` in a folder, which was served once, and what it keeps of it.
struct Site {
    dir: TempDir,
    text: String,
    map: Vec<u8>,
    journal: Vec<u8>,
}

impl Site {
    async fn new(more: &str) -> Site {
        let dir = TempDir::new().expect("a temporary directory");
        let key = dir.path().join("key");
        write_key(&key, "0f");
        let text = format!(
            "[cloud]\njournal = \"16MiB\"\n[volume.maps]\nsize = \"1MiB\"\npath = \"file://{0}\"\n\
             {1}\n",
            dir.path().join("store").display(),
            more.replace("KEY", &format!("key = \"file:{}\"", key.display())),
        );
        let mut site = Site { dir, text, map: Vec::new(), journal: Vec::new() };
        assert!(site.serves().await);
        let Paths { map, journal } = site.paths();
        site.map = std::fs::read(map).expect("it was served");
        site.journal = std::fs::read(journal).expect("it was served");
        site
    }

    fn node(&self) -> std::path::PathBuf {
        self.dir.path().join("node")
    }

    fn paths(&self) -> Paths {
        let below = |name: &str| self.node().join("cloud").join(name);
        Paths { journal: below("0.journal"), map: below("0.map") }
    }

    /// The map of a volume whose files are being removed.
    fn removed_map(&self) -> std::path::PathBuf {
        self.paths().map.with_extension("map.gone")
    }

    fn catalog(&self) -> Catalog {
        Catalog::load(&self.node()).expect("whole").expect("it was started")
    }

    /// Whether a start serves the volume, with its store, until it stops.
    async fn serves(&self) -> bool {
        let node = start(&self.dir, &self.text).await;
        let control = node.control();
        let record = control.view().catalog.volumes["maps"].clone();
        let is_served = control.view().absence(&name()).is_none();
        if is_served {
            let watch = control.facts().homes.watch(&record).expect("it is served");
            let is_over = |link: &Link| matches!(link, Link::Up | Link::Lost(_));
            let said = watch.wait(|said| is_over(&said.status.link)).await.expect("it runs");
            assert_eq!(said.status.link, Link::Up, "it is served");
        }
        // A catalog that is still being written then would replace what a test puts there.
        let is_taken = async {
            while is_served && control.view().catalog.volumes["maps"].take {
                tokio::task::yield_now().await;
            }
        };
        node.run(is_taken).await.expect("stops");
        is_served
    }

    /// Puts what a node that ended somewhere left: a catalog, and files.
    fn put(&self, catalog: &Catalog, map: Option<&[u8]>, journal: Option<&[u8]>) {
        // What the node before had begun to write when it ended may still replace the file.
        let is_saved = |_| {
            catalog.save(&self.node()).is_ok()
                && Catalog::load(&self.node()).ok().flatten().as_ref() == Some(catalog)
        };
        assert!((0..STARTS_MAX).any(is_saved), "a writable directory");
        let paths = self.paths();
        let _ = std::fs::remove_file(self.removed_map());
        for (path, bytes) in [(paths.map, map), (paths.journal, journal)] {
            let _ = std::fs::remove_file(&path);
            if let Some(bytes) = bytes {
                std::fs::write(path, bytes).expect("a writable directory");
            }
        }
    }

    /// The node has files of no volume, as far as was written down: the end of a removal.
    fn forget(&self) {
        let _ = std::fs::remove_file(self.node().join("identities.json"));
    }

    /// Has the store say that the volume is longer, as where another node has grown it.
    fn lengthen(&self, size_bytes: u64) {
        let path = self.dir.path().join("store/superblock");
        let block = Superblock::decode(&std::fs::read(&path).expect("it is in the store"));
        let block = Superblock { size_bytes, ..block.expect("it is whole") };
        std::fs::write(path, block.encode()).expect("a writable directory");
    }

    fn problem(&self) -> Option<String> {
        let answer = check(&self.node(), &Depth::default()).expect("there is a catalog");
        answer.backings.into_iter().find_map(|backing| backing.problem)
    }

    fn used(&self) -> Vec<u8> {
        let (mut journal, (at, magic)) = (self.journal.clone(), USED);
        journal[at..at + magic.len()].copy_from_slice(magic);
        journal
    }
}

fn name() -> Name {
    "maps".parse().expect("a good name")
}

fn write_key(key: &Path, byte: &str) {
    std::fs::write(key, byte.repeat(32)).expect("the test's own file");
    let only_owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(key, only_owner).expect("the test's own file");
}

async fn start(dir: &TempDir, text: &str) -> Node {
    for _ in 0..STARTS_MAX {
        match Node::start(config(dir, text), Arc::new(MockStarter::default())).await {
            Err(report) if report.cause.contains("runs a node") => {}
            started => return started.expect("a volume holds up no start"),
        }
    }
    panic!("the directory stays locked")
}

/// Goal: where the catalog says that the files of a volume are still to be made, as between the
/// steps of an undeletion, a check misses none of them, and the start makes them; where they have
/// to be there, both miss them. Method: catalogs and files as a kill leaves them, a check and a
/// start of each.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_what_a_start_does() {
    let mut site = Site::new("").await;
    let (sound, used) = (site.catalog(), site.used());
    let cases = [
        ("before the files are made", true, (false, None), true),
        ("once the journal has its name", true, (false, Some(Journal::Empty)), true),
        ("once the journal has its room", true, (false, Some(Journal::Blank)), true),
        ("once both are made", true, (true, Some(Journal::Blank)), true),
        ("a map that went missing", true, (false, Some(Journal::Used)), false),
        ("a journal that went missing", true, (true, None), false),
        ("both went missing", false, (false, None), false),
        ("the map went missing", false, (false, Some(Journal::Blank)), false),
    ];
    for (what, take, (has_map, journal), is_sound) in cases {
        let mut catalog = sound.clone();
        catalog.volumes.get_mut("maps").expect("it is there").take = take;
        let journal = journal.map(|journal| match journal {
            Journal::Empty => &b""[..],
            Journal::Blank => &site.journal[..],
            Journal::Used => &used[..],
        });
        site.put(&catalog, has_map.then_some(&site.map[..]), journal);
        if take && !has_map {
            site.forget();
        }
        let problem = site.problem();
        assert_eq!(problem.is_none(), is_sound, "{what}: {problem:?}");
        assert_eq!(site.serves().await, is_sound, "{what}: the start");
        if is_sound {
            // What older files say would be an older copy's.
            let paths = site.paths();
            site.map = std::fs::read(paths.map).expect("it was served");
            site.journal = std::fs::read(paths.journal).expect("it was served");
        }
    }
}

/// Goal: a removal of a volume's files that a crash interrupted is no problem for a check of a
/// volume that is to be made anew, and the start ends it and serves the volume. Method: what is
/// left after each of its steps, a check and a start.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_of_files_that_ends_early_goes_on() {
    let site = Site::new("").await;
    let (mut catalog, used) = (site.catalog(), site.used());
    for journal in [Some(&used[..]), None] {
        catalog.volumes.get_mut("maps").expect("it is there").take = true;
        site.put(&catalog, None, journal);
        std::fs::write(site.removed_map(), &site.map).expect("a writable directory");
        assert_eq!(site.problem(), None, "{}", journal.is_some());
        assert!(site.serves().await, "{}", journal.is_some());
        assert!(!site.removed_map().exists(), "it is of no use any more");
    }
    // Of a volume that is not made anew, nothing is removed.
    catalog.volumes.get_mut("maps").expect("it is there").take = false;
    site.put(&catalog, None, Some(&used[..]));
    std::fs::write(site.removed_map(), &site.map).expect("a writable directory");
    assert!(!site.serves().await && site.removed_map().exists());
    assert!(site.problem().is_some());
}

/// Goal: a removal that the catalog says is under way is no problem for a check, whatever is gone
/// of the volume. Method: a volume without its files, ready and under removal.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_under_way_is_sound() {
    let site = Site::new("").await;
    let mut catalog = site.catalog();
    for (phase, is_sound) in [(VolumePhase::Ready, false), (VolumePhase::Deleting, true)] {
        catalog.volumes.get_mut("maps").expect("it is there").phase = phase;
        site.put(&catalog, None, None);
        assert_eq!(site.problem().is_none(), is_sound, "{phase:?}");
    }
}

/// Goal: a volume that is to be taken and was opened since misses its files, as any other does:
/// they may be on a disk that is away, with writes that no store has. Method: a catalog that still
/// says so, and the folder's files away; a check and a start; then the files again.
#[tokio::test(flavor = "multi_thread")]
async fn a_taking_excuses_no_files_that_were_opened() {
    let site = Site::new("").await;
    let mut catalog = site.catalog();
    catalog.volumes.get_mut("maps").expect("it is there").take = true;
    for journal in [None, Some(&site.journal[..])] {
        site.put(&catalog, None, journal);
        assert!(site.problem().is_some(), "{}", journal.is_some());
        assert!(!site.serves().await, "{}", journal.is_some());
    }
    site.put(&catalog, Some(&site.map), Some(&site.journal));
    assert_eq!(site.problem(), None);
    assert!(site.serves().await, "its disk is back");
}

/// Goal: what a removal left beside files that were made anew goes with the next start, so that
/// these are missed where their map is lost later. Method: the map's other name beside both files,
/// a start; then without the map, a check and a start.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_removal_left_beside_new_files_goes() {
    let site = Site::new("").await;
    std::fs::write(site.removed_map(), &site.map).expect("a writable directory");
    assert!(site.serves().await);
    assert!(!site.removed_map().exists(), "it is of no use any more");
    std::fs::remove_file(site.paths().map).expect("it was served");
    assert!(site.problem().is_some());
    assert!(!site.serves().await, "its map is lost");
}

/// Goal: of a deleted volume, what the node keeps may be gone or be half removed, and an undeletion
/// that was refused by the files may have begun them; a journal with writes and without its map is
/// missed, and so is the journal of a map. Method: files as a kill leaves them, a check of each.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_misses_nothing_of_a_deleted_volume() {
    let site = Site::new("").await;
    let (mut catalog, used) = (site.catalog(), site.used());
    let record = catalog.volumes.remove("maps").expect("it is there");
    catalog.deleted.push(DeletedRecord::new(name(), None, 60, record));
    let (map, journal) = (Some(&site.map[..]), Some(&site.journal[..]));
    let used = Some(&used[..]);
    let cases = [
        ("before its files go", map, journal, false, true),
        ("once its map has the other name", None, used, true, true),
        ("once the journal is gone", None, None, true, true),
        ("once both are gone", None, None, false, true),
        ("a journal that was begun", None, journal, false, true),
        ("a map that went missing", None, used, false, false),
        ("a journal that went missing", map, None, false, false),
    ];
    for (what, map, journal, is_removing, is_sound) in cases {
        site.put(&catalog, map, journal);
        if is_removing {
            std::fs::write(site.removed_map(), &site.map).expect("a writable directory");
        }
        let problem = site.problem();
        assert_eq!(problem.is_none(), is_sound, "{what}: {problem:?}");
    }
}

/// Has another node serve the site's volume, as `takeover` lets it; the configuration with that.
async fn taken_elsewhere(site: &Site) -> String {
    let other = TempDir::new().expect("a temporary directory");
    let takes = site.text.replace("[cloud]", "[cloud]\ntakeover = [\"maps\"]");
    let second = start(&other, &takes).await;
    let record = second.control().view().catalog.volumes["maps"].clone();
    let watch = second.control().facts().homes.watch(&record).expect("it is served");
    watch.wait(|said| said.status.link == Link::Up).await.expect("it runs");
    second.run(async {}).await.expect("stops");
    takes
}

/// Takes the site's volume back, up to where its old files went and none are made yet.
async fn takes_back(site: &Site, takes: &str) {
    let (config, found) = (config(&site.dir, takes), site.catalog());
    let cloud = Arc::new(CloudHomes::new(&config, tokio::runtime::Handle::current()));
    cloud.introduce(found.node, found.block_bytes);
    let homes = Homes::new(&config.dir, Some(cloud));
    let taking = tokio::task::spawn_blocking(move || {
        let prepared = prepare(&config, Some(found), &homes).expect("the same node");
        let Prepared { mut view, mut notes, .. } = prepared;
        let taken = take_back(&mut view, &homes, &mut notes).expect("numbers are left");
        view.catalog.save(&config.dir).expect("a writable directory");
        let released = |record| homes.release(record, false).map(drop);
        taken.iter().try_for_each(released).expect("nothing is left");
        taken.len()
    });
    assert_eq!(taking.await.expect("it does not panic"), 1);
}

/// Goal: a volume that is taken back by the configuration is sound when the node ends after its old
/// files went. Method: two nodes at one folder; a third start of the first, up to there.
#[tokio::test(flavor = "multi_thread")]
async fn a_taking_back_that_ends_early_is_sound() {
    let site = Site::new("").await;
    let takes = taken_elsewhere(&site).await;
    takes_back(&site, &takes).await;
    assert_eq!(site.problem(), None);
    assert!(site.serves().await, "also without the configuration's word");
}

/// Goal: a volume of `takeover` with an unwritten journal and no map refuses no start of the node:
/// that is what a kill leaves between the two new files, and what a lost disk of maps leaves.
/// Method: two nodes at one folder; the first one's files as either leaves them, with the number
/// that a taking gave; two starts, and again when the other node has grown the volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_taking_back_goes_on_beside_an_unwritten_journal() {
    for (is_killed, is_longer) in [(true, false), (true, true), (false, false)] {
        let mut site = Site::new("").await;
        let takes = taken_elsewhere(&site).await;
        if is_killed {
            takes_back(&site, &takes).await;
        }
        if is_longer {
            site.lengthen(2 << 20);
        }
        let catalog = site.catalog();
        let number = catalog.volumes["maps"].id;
        site.put(&catalog, None, Some(&site.journal));
        site.text = takes;
        assert!(site.serves().await, "killed {is_killed}, longer {is_longer}");
        let now = site.catalog().volumes["maps"].clone();
        assert_eq!(now.id == number, is_killed && !is_longer, "a new history has a new number");
        assert_eq!(now.length, if is_longer { 2 << 20 } else { 1 << 20 });
        assert!(site.serves().await, "killed {is_killed}, longer {is_longer}: the next start");
    }
}

/// Goal: a note of a volume's key that keeps the volume from being served is named by a check, and
/// one that a power loss left empty is made anew. Method: notes of each kind, a check and a start
/// of each.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_note_of_a_key_is_named() {
    let site = Site::new("KEY").await;
    let note = site.paths().map.with_extension("key");
    let key: KeySource = site.catalog().volumes["maps"].key.clone().expect("it has one");
    let right = key.read().expect("it is a key").check();
    let other = right.chars().rev().collect::<String>();
    for bytes in DAMAGED.into_iter().chain([other.as_bytes()]) {
        std::fs::write(&note, bytes).expect("a writable directory");
        let (problem, text) = (site.problem().unwrap_or_default(), String::from_utf8_lossy(bytes));
        assert!(problem.contains("0.key"), "{text}: {problem}");
        assert!(!site.serves().await, "{text}");
    }
    for bytes in [right.as_bytes(), b""] {
        std::fs::write(&note, bytes).expect("a writable directory");
        assert_eq!(site.problem(), None);
        assert!(site.serves().await);
    }
    let mut catalog = site.catalog();
    std::fs::write(&note, &right).expect("a writable directory");
    catalog.volumes.get_mut("maps").expect("it is there").key = None;
    catalog.save(&site.node()).expect("a writable directory");
    assert!(site.problem().unwrap_or_default().contains("0.key"), "it has no key");
}

/// Goal: what is no regular file in a map's place, or in a catalog's, holds up neither a start nor
/// a check, and is named. Method: a pipe without a writer, and a device without an end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_holds_nothing_up() {
    let site = Site::new("KEY").await;
    let (paths, node) = (site.paths(), site.node());
    for path in [paths.map.with_extension("key"), paths.map] {
        for kind in [make_pipe, make_endless] {
            let kept = path.with_extension("kept");
            let _ = std::fs::rename(&path, &kept);
            kind(&path);
            let problem = site.problem().unwrap_or_default();
            assert!(problem.contains("no regular file"), "{}: {problem}", path.display());
            assert!(!site.serves().await, "{}", path.display());
            std::fs::remove_file(&path).expect("it was made");
            let _ = std::fs::rename(&kept, &path);
        }
    }
    assert!(site.serves().await);
    std::fs::remove_file(node.join(CATALOG_FILE_NAME)).expect("it is there");
    for kind in [make_pipe, make_endless] {
        kind(&node.join(CATALOG_FILE_NAME));
        let report = check(&node, &Depth::default()).expect_err("it is no catalog");
        assert!(report.cause.contains("no regular file"), "{report}");
        std::fs::remove_file(node.join(CATALOG_FILE_NAME)).expect("it was made");
    }
}

fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
}

fn make_endless(path: &Path) {
    std::os::unix::fs::symlink("/dev/zero", path).expect("a link");
}
