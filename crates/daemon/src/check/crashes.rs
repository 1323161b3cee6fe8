//! What a check says of a volume in an object store whose node ended between two steps, beside what
//! the next start does with it.

use super::*;
use crate::catalog::CATALOG_FILE_NAME;
use crate::node::Node;
use crate::node::tests::{MockStarter, config};
use layby_cloud::{Link, Paths};
use std::sync::Arc;
use tempfile::TempDir;

/// A child of another test may hold the lock of the incarnation before between fork and exec.
const STARTS_MAX: u32 = 10_000;

/// A node with a volume `maps` in a folder, which was served once.
struct Site {
    dir: TempDir,
    text: String,
}

impl Site {
    async fn new(more: &str) -> Site {
        let dir = TempDir::new().expect("a temporary directory");
        let text = format!(
            "[cloud]\njournal = \"16MiB\"\n[volume.maps]\nsize = \"1MiB\"\npath = \"file://{0}\"\n\
             {1}\n",
            dir.path().join("store").display(),
            more,
        );
        let site = Site { dir, text };
        assert!(site.serves().await);
        site
    }

    fn node(&self) -> std::path::PathBuf {
        self.dir.path().join("node")
    }

    fn paths(&self) -> Paths {
        let below = |name: &str| self.node().join("cloud").join(name);
        Paths { journal: below("0.journal"), map: below("0.map") }
    }

    /// Whether a start serves the volume, with its store, until it stops.
    async fn serves(&self) -> bool {
        let node = start(&self.dir, &self.text).await;
        let control = node.control();
        let record = control.view().catalog.volumes["maps"].clone();
        let is_served = control.view().absence(&name()).is_none();
        if is_served {
            let watch = control.facts().homes.watch(&record).expect("it is served");
            watch.wait(|said| said.status.link == Link::Up).await.expect("it runs");
        }
        node.run(async {}).await.expect("stops");
        is_served
    }

    fn problem(&self) -> Option<String> {
        let answer = check(&self.node(), &Depth::default()).expect("there is a catalog");
        answer.backings.into_iter().find_map(|backing| backing.problem)
    }
}

fn name() -> Name {
    "maps".parse().expect("a good name")
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

/// Goal: what is no regular file in a map's place, or in a catalog's, holds up neither a start nor
/// a check, and is named. Method: a pipe without a writer, and a device without an end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_holds_nothing_up() {
    let site = Site::new("").await;
    let (paths, node) = (site.paths(), site.node());
    for path in [paths.map] {
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
