//! What a command may name on this machine: files, folders and key sources.
//!
//! How: before anything is opened, a creation's paths are held against the folders of the
//! configuration. A folder as an object store is an exception for the node's own user and root,
//! through the unix socket: they could write there without the node, and a store refuses a place
//! that has anything of its own kind in it. A device or a file that becomes a home is overwritten,
//! so they name its folder in the configuration first. Whoever has only a token is no user of this
//! machine, and is bound to the folders throughout.
//! Invariant: no request makes the node run a program; a path that hangs refuses no request that
//! does not name it. Cost: a look at each folder of a path.
//! Not for: volumes of the configuration.

use super::blocking::broke_off;
use super::{Control, VolumeCreate};
use crate::cloud::{is_misspelled, is_store, lacks_bucket, no_store};
use crate::config::{Config, KeptFiles, KeySource, PathRefusal, VolumeRoots};
use crate::error::{Report, ReportKind};
use crate::threads::MORE_THREADS;
use layby_cloud::NoAnswer;
use std::cell::LazyCell;
use std::path::Path;
use std::sync::Arc;

/// On whose behalf a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The node's own user, or root: came through the unix socket.
    Owner,
    /// Who has a token.
    Token,
}

const ROOTS: &str = "name a place there; or add its folder to `volume_roots` of [node], or to \
                     `layby serve --volume-root`, and start the node again";
const HINT_NO_ANSWER: &str = "see to the mount or the disk, or name another place";
const FILE_URL: &str = "file://";

impl Control {
    /// Whether a request names nothing that its author must not reach, as far as that can be seen
    /// in time.
    pub(super) async fn check_places(
        &self,
        request: &VolumeCreate,
        authority: Authority,
        error: &str,
    ) -> Result<(), Report> {
        let (config, paths) = (self.facts.config.clone(), Arc::clone(&self.facts.paths));
        let (request, error) = (request.clone(), error.to_owned());
        // Each path has a time of its own: that one hangs is no refusal of the others.
        let check = move || allowed((&config, &paths.kept), &request, authority, &error);
        let checking = tokio::task::spawn_blocking(check);
        checking.await.unwrap_or_else(|ended| Err(broke_off(ended)))
    }
}

/// Whether a request names nothing that its author must not reach.
fn allowed(
    (config, kept): (&Config, &KeptFiles),
    request: &VolumeCreate,
    authority: Authority,
    error: &str,
) -> Result<(), Report> {
    let refused = |cause: String, hint: &str| {
        let report = Report::new(ReportKind::Denied, error).cause(cause);
        report.state("nothing was changed").hint(hint)
    };
    let unanswered = |no_answer: NoAnswer| {
        let report = Report::new(ReportKind::Unreachable, error).cause(no_answer.to_string());
        report.state("nothing was changed").hint(match no_answer {
            NoAnswer::Hangs(_) => HINT_NO_ANSWER,
            NoAnswer::NoThread(_) => MORE_THREADS,
        })
    };
    // A request that names no place does not wait for one.
    let roots = LazyCell::new(|| VolumeRoots::of(config, kept));
    let check = |path: &Path| {
        roots.check(path).map_err(|refusal| match refusal {
            PathRefusal::Forbidden(cause) => refused(cause, ROOTS),
            PathRefusal::NoAnswer(no_answer) => unanswered(no_answer),
            PathRefusal::Unusable(cause) => Report::new(ReportKind::Failure, error)
                .cause(cause)
                .state("nothing was changed")
                .hint(HINT_NO_ANSWER),
        })
    };
    match &request.key {
        Some(KeySource::Command(_)) => {
            let cause = "a command as a key source comes from the configuration file alone";
            let hint = "write the volume with its `key` into the configuration, or name a \
                        source of another kind: `file:PATH` or `env:NAME`";
            return Err(refused(cause.to_owned(), hint));
        }
        Some(KeySource::File(path)) => check(path)?,
        Some(KeySource::Environment(_)) | None => {}
    }
    let source = request.clone_of.as_ref().filter(|source| source.is_url());
    let source = source.map(|source| Path::new(&source.volume));
    for path in request.path.as_deref().into_iter().chain(source) {
        if is_misspelled(path) || lacks_bucket(path) {
            let (cause, hint) = no_store(path);
            let report = Report::new(ReportKind::Invalid, error).cause(cause);
            return Err(report.state("nothing was changed").hint(hint));
        }
        if let Some(folder) = folder(path)
            && let Some(own) = roots.own(folder).map_err(unanswered)?
        {
            let cause = format!("the node keeps files of its own in `{}`", own.display());
            return Err(refused(cause, "name another folder for the store"));
        }
        match folder(path) {
            Some(_) if authority == Authority::Owner => {}
            Some(folder) => check(folder)?,
            // What is to be taken is no file; that is said later.
            None if is_store(path) || request.take => {}
            None => check(&config.dir.join(path))?,
        }
    }
    Ok(())
}

/// The folder that a store's URL names, where it names one.
fn folder(path: &Path) -> Option<&Path> {
    path.to_str()?.strip_prefix(FILE_URL).map(Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::hanging::hang;
    use crate::control::tests::MockNode;
    use serde_json::{Value, json};

    /// Goal: a command reaches what its author may, and no request names a command. Method: paths
    /// and keys of each kind, for the node's user and for a token.
    #[tokio::test]
    async fn places_are_bounded_by_authority() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let root = outer.path().join("root");
        std::fs::create_dir(&root).expect("a writable directory");
        let node = MockNode::new(&format!("[node]\nvolume_roots = [\"{}\"]\n", root.display()));
        let is_allowed = |more: Value, authority| {
            let mut request = json!({"name": "a", "size": "1MiB"});
            request.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
            let request = serde_json::from_value(request).expect("a request");
            let control = &node.control;
            let node = (&control.facts.config, &control.facts.paths.kept);
            allowed(node, &request, authority, "cannot create").is_ok()
        };
        let (inside, outside) = (root.join("x"), outer.path().join("x"));
        let (inside, outside) = (inside.display(), outside.display());
        for (more, owner, token) in [
            (json!({}), true, true),
            (json!({"path": "volumes/x"}), true, true),
            (json!({"path": format!("{inside}")}), true, true),
            (json!({"path": format!("{outside}")}), false, false),
            (json!({"path": "s3://bucket/x"}), true, true),
            (json!({"path": format!("file://{inside}")}), true, true),
            (json!({"path": format!("file://{outside}")}), true, false),
            (
                json!({"path": format!("file://{}/levels/x", node.dir.path().display())}),
                false,
                false,
            ),
            (json!({"clone_of": format!("file://{outside}@s")}), true, false),
            (json!({"key": "env:KEY"}), true, true),
            (json!({"key": format!("file:{inside}")}), true, true),
            (json!({"key": format!("file:{outside}")}), false, false),
            (json!({"key": "command:id"}), false, false),
        ] {
            assert_eq!(is_allowed(more.clone(), Authority::Owner), owner, "{more}");
            assert_eq!(is_allowed(more.clone(), Authority::Token), token, "{more}");
        }
    }

    /// Goal: a folder of the configuration that hangs refuses what lies there alone, with its own
    /// name, and holds up no look at any other path. Method: a root, a key and a store in a folder
    /// whose resolving waits for the test, each named beside a place that answers; creations that
    /// name nothing there, before and after; one there when it answers.
    #[tokio::test]
    async fn a_root_that_hangs_refuses_what_lies_there_alone() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let [far, root, near] = ["far", "far/root", "near"].map(|name| outer.path().join(name));
        for folder in [&far, &root, &near] {
            std::fs::create_dir(folder).expect("a writable directory");
        }
        let roots = [&root, &near].map(|root| format!("{:?}", root.display().to_string()));
        let node = MockNode::new(&format!("[node]\nvolume_roots = [{}]\n", roots.join(", ")));
        let create = async |name: &str, more: Value| {
            let mut request = json!({"name": name, "size": "1MiB"});
            request.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
            let request = serde_json::from_value(request).expect("a request");
            node.control.volume_create(request, Authority::Owner).await
        };
        let hanging = hang(&far);
        create("a", json!({"path": near.join("a")})).await.expect("its own place answers");
        create("b", json!({})).await.expect("the node's directory answers");
        let (key, store) = (far.join("key"), far.join("store"));
        for (more, blamed) in [
            (json!({"path": root.join("c")}), &root),
            (json!({"path": near.join("c"), "key": format!("file:{}", key.display())}), &key),
            (json!({"clone_of": format!("file://{}@s", store.display())}), &store),
        ] {
            let refused = create("c", more).await.expect_err("it hangs");
            let blamed = format!("`{}", blamed.display());
            assert!(refused.cause.contains(&blamed), "{blamed}: {refused}");
            assert!(refused.cause.contains("has not ended") && !refused.hint.is_empty());
            assert_eq!(refused.kind, ReportKind::Unreachable, "{refused}");
        }
        create("c", json!({"path": near.join("c")})).await.expect("its own place answers");
        drop(hanging);
        while let Err(refused) = create("d", json!({"path": root.join("d")})).await {
            assert!(refused.cause.contains("has not ended"), "{refused}");
            tokio::task::yield_now().await;
        }
    }

    /// Goal: a folder that hangs costs one look, and one wait, however many paths of the
    /// configuration and of requests lie there. Method: keys in a folder that waits for the test,
    /// by their words and by links; a creation elsewhere, and some there.
    #[tokio::test]
    async fn a_folder_that_hangs_is_waited_for_once() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let [far, near] = ["far", "near"].map(|name| outer.path().join(name));
        for folder in [&far, &near] {
            std::fs::create_dir(folder).expect("a writable directory");
        }
        let mut text = format!("[node]\nvolume_roots = [\"{}\"]\n", near.display());
        for number in 0..4 {
            let (key, link) = (far.join(format!("{number}")), near.join(format!("link{number}")));
            std::fs::write(&key, [7; 32]).expect("a writable directory");
            std::os::unix::fs::symlink(&key, &link).expect("a writable directory");
            let key = if number < 2 { key } else { link };
            text.push_str(&format!(
                "[volume.v{number}]\nsize = \"1MiB\"\npath = \"s3://b/v{number}\"\n\
                 key = \"file:{}\"\n",
                key.display()
            ));
        }
        let config = crate::config::Config::parse(None, &text, &Default::default());
        let config = config.expect("it is good");
        let kept = KeptFiles::of(&config);
        let hanging = hang(&far);
        let is_allowed = |path: String| {
            let request = json!({"name": "a", "size": "1MiB", "path": path});
            let request = serde_json::from_value(request).expect("a request");
            allowed((&config, &kept), &request, Authority::Owner, "cannot create").is_ok()
        };
        assert!(is_allowed(near.join("a").display().to_string()), "its own place answers");
        assert_eq!(hanging.looks(), 1, "of the node's own keys");
        for number in 0..4 {
            assert!(!is_allowed(format!("file://{}/store{number}", far.display())), "it hangs");
        }
        assert_eq!(hanging.looks(), 1, "of requests");
    }

    /// Goal: no creation adopts a file that the node reads its secrets from, by any name, while the
    /// file's own name leads through a folder that hangs; what cannot be that file is permitted.
    /// Method: a token file that is a link in such a folder to a file in a root, which the node has
    /// seen or not; that file, a new one, and a folder.
    #[tokio::test]
    async fn a_secret_behind_a_link_that_hangs_is_kept() {
        for is_seen in [true, false] {
            let outer = tempfile::TempDir::new().expect("a temporary directory");
            let [far, root] = ["far", "root"].map(|name| outer.path().join(name));
            for folder in [&far, &root, &root.join("store")] {
                std::fs::create_dir(folder).expect("a writable directory");
            }
            let (secret, token) = (root.join("secret"), far.join("token"));
            std::fs::write(&secret, "secret").expect("a writable directory");
            std::os::unix::fs::symlink(&secret, &token).expect("a writable directory");
            let text =
                format!("[node]\nvolume_roots = [{root:?}]\n[control]\ntoken_file = {token:?}\n");
            let before = (!is_seen).then(|| hang(&far));
            let node = MockNode::new(&text);
            let _hanging = before.unwrap_or_else(|| hang(&far));
            let is_allowed = |path: String| {
                let request = json!({"name": "a", "size": "1MiB", "path": path});
                let request = serde_json::from_value(request).expect("a request");
                let config = (&node.control.facts.config, &node.control.facts.paths.kept);
                allowed(config, &request, Authority::Owner, "cannot create")
            };
            let refused = is_allowed(secret.display().to_string()).expect_err("it is a secret");
            let kind = if is_seen { ReportKind::Denied } else { ReportKind::Unreachable };
            assert_eq!(refused.kind, kind, "{refused}");
            assert!(refused.cause.contains(&token.display().to_string()), "{refused}");
            is_allowed(root.join("new").display().to_string()).expect("it is no file yet");
            is_allowed(format!("file://{}", root.join("store").display())).expect("a folder");
        }
    }
}
