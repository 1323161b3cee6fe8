//! Key sources and volumes' places through the binary: no request runs a command or leads outside,
//! and a key that does not come holds up its own volume alone.

use layby_tests::{HttpRequest, Node, Options, Outcome, layby, run, small_levels};
use serde_json::json;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn temporary() -> (TempDir, PathBuf) {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    (work, dir)
}

fn ask(dir: &Path, words: &[&str]) -> Outcome {
    layby(&[words, &["--dir", &dir.to_string_lossy()]].concat())
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Goal: no request makes the node run a command: by the program, by the unix socket, by a clone,
/// by a taking. Method: a command that would leave a file, each way.
#[test]
fn no_request_runs_a_command() {
    let (work, dir) = temporary();
    let node = Node::start(&dir, &small_levels());
    let trace = work.path().join("trace");
    let key = format!("command:touch {}; echo {}", trace.display(), "0f".repeat(32));
    let store = format!("file://{}", work.path().join("bucket").display());
    let words = ["volume", "create", "a", "--size", "1MiB", "--path", &store, "--key", &key];
    ask(&dir, &words).assert_explains(&["configuration file alone"]);
    for more in [json!({"take": true}), json!({"clone_of": format!("{store}@s")}), json!({})] {
        let mut body = json!({"name": "a", "size": "1MiB", "path": store, "key": key});
        body.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        let refused =
            HttpRequest::new("POST", "/v1/volumes").json(&body).send_unix(&node.control());
        assert_eq!(refused.status, 403, "{}", refused.body);
        assert!(!refused.body.contains("touch"), "{}", refused.body);
    }
    assert!(!trace.exists(), "it ran");
    let audit = std::fs::read_to_string(dir.join("audit.log")).expect("it is there");
    assert!(!audit.contains("touch") && !node.stderr().contains("touch"));
    node.stop();
}

/// Goal: a volume's file and key that a command names lie in the node's directory or in a folder of
/// the configuration, links and all; a folder as a store may lie anywhere for the node's user.
/// Method: files inside and outside, a link that leads out, a named pipe, the node's own files.
#[test]
fn commands_name_places_in_the_roots() {
    let (work, dir) = temporary();
    let root = work.path().join("root");
    std::fs::create_dir(&root).expect("the test's own folder");
    let outside = work.path().join("outside");
    std::fs::write(&outside, vec![7; 1 << 20]).expect("the test's own folder");
    symlink(&outside, root.join("link")).expect("the test's own folder");
    let roots = vec!["--volume-root".to_owned(), shown(&root)];
    let node = Node::start(&dir, &Options { arguments: roots, ..small_levels() });
    let create = |name: &str, path: &Path| {
        ask(&dir, &["volume", "create", name, "--size", "1MiB", "--path", &shown(path)])
    };
    for bad in [&outside, &root.join("link"), &dir.join("catalog.json"), &dir.join("layby.toml")] {
        create("bad", bad).assert_explains(&["cannot create volume `bad`", "--volume-root"]);
    }
    assert!(std::fs::read(&outside).expect("it is there") == vec![7; 1 << 20]);
    assert!(!dir.join("layby.toml").exists());
    for (name, good) in [("one", root.join("x")), ("two", dir.join("volumes/y"))] {
        let made = create(name, &good);
        assert!(made.success, "{}", made.stderr);
    }
    let store = format!("file://{}", work.path().join("bucket").display());
    let keyed = |key: &Path| {
        let key = format!("file:{}", key.display());
        ask(&dir, &["volume", "create", "k", "--size", "1MiB", "--path", &store, "--key", &key])
    };
    keyed(&outside).assert_explains(&["--volume-root"]);
    let pipe = root.join("pipe");
    assert!(run("mkfifo", &["-m", "600", &shown(&pipe)]).success);
    keyed(&pipe).assert_explains(&["no regular file"]);
    let key = root.join("key");
    std::fs::write(&key, "0f".repeat(32)).expect("the test's own folder");
    let only_owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&key, only_owner).expect("the test's own file");
    let made = keyed(&key);
    assert!(made.success, "{}", made.stderr);
    node.stop();
}

/// Goal: a key's command of the configuration that hangs, floods or fails holds up its own volume
/// and no start; one that prints a key serves its volume at once; neither the words nor what was
/// printed is shown anywhere. Method: a volume of each kind; what status, list, show, the log and
/// the announcement say.
#[test]
fn a_key_that_does_not_come_holds_up_its_volume() {
    let (work, dir) = temporary();
    let key = "0f".repeat(32);
    let tables: String = [
        ("good", format!("true hiddenword; echo {key}")),
        ("hung", "echo hiddenword; sleep 1000".to_owned()),
        ("flood", "while :; do echo hiddenword; done".to_owned()),
        ("fails", "echo hiddenword; echo hiddenword >&2; exit 3".to_owned()),
    ]
    .map(|(name, words)| {
        let place = work.path().join(name);
        format!(
            "[volume.{name}]\nsize = \"1MiB\"\npath = \"file://{}\"\nkey = \"command:{words}\"\n",
            place.display()
        )
    })
    .concat();
    let levels = small_levels().config.expect("it has one");
    let config = format!("{levels}\n[volume.plain]\nsize = \"1MiB\"\n{tables}");
    let node = Node::start(&dir, &Options::config(config));
    let list = node.layby(&["volume", "list"]);
    for name in ["hung", "flood", "fails"] {
        assert!(list.contains(&format!("volume {name} is not served")), "{list}");
    }
    let good = node.layby(&["volume", "show", "good"]);
    assert!(good.contains("key from `command`"), "{good}");
    node.layby(&["volume", "show", "plain"]);
    let status = HttpRequest::new("GET", "/v1/status").send(&node.http()).body;
    for text in [list, good, status, node.said(), node.stderr()] {
        assert!(!text.contains("hiddenword") && !text.contains(&key), "{text}");
    }
    node.stop();
}

/// Goal: an error about a key in the configuration does not quote it. Method: a secret where a
/// source belongs, a command for a volume without a store, an unknown kind.
#[test]
fn errors_do_not_quote_keys() {
    let (_work, dir) = temporary();
    let levels = small_levels().config.expect("it has one");
    for key in ["hiddenword", "command:hiddenword x", "vault:hiddenword"] {
        let volume = format!("[volume.a]\nsize = \"1MiB\"\nkey = \"{key}\"\n");
        let options = Options::config(format!("{levels}\n{volume}"));
        let Err(refusal) = Node::try_start(&dir, &options) else { panic!("{key} was taken") };
        refusal.assert_explains(&["key"]);
        assert!(!refusal.stderr.contains("hiddenword"), "{}", refusal.stderr);
    }
}

/// Goal: a relative key file is the node's directory's, and a command's is the caller's. Method: a
/// key there, a node of another working directory; a key in a folder that commands may name, and a
/// command from there.
#[test]
fn relative_key_files_have_a_place() {
    let (work, dir) = temporary();
    std::fs::create_dir(&dir).expect("the test's own folder");
    let key = dir.join("maps.key");
    std::fs::write(&key, "0f".repeat(32)).expect("the test's own folder");
    let only_owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&key, only_owner).expect("the test's own file");
    let store = |name: &str| format!("file://{}", work.path().join(name).display());
    let table = format!(
        "[volume.maps]\nsize = \"1MiB\"\npath = \"{}\"\nkey = \"file:maps.key\"\n",
        store("first")
    );
    let mut options = small_levels();
    options.config = options.config.map(|text| text + &table);
    let keys = work.path().join("keys");
    std::fs::create_dir(&keys).expect("the test's own folder");
    std::fs::copy(&key, keys.join("b.key")).expect("the test's own folder");
    options.arguments = vec!["--volume-root".into(), keys.display().to_string()];
    let node = Node::start(&dir, &options);
    let listed = node.layby(&["volume", "show", "maps"]);
    assert!(listed.contains(&format!("file:{}", key.display())), "{listed}");
    let mut command = std::process::Command::new(layby_tests::binary());
    command.current_dir(&keys).args(["volume", "create", "b", "--size", "1MiB", "--key"]);
    command.args(["file:b.key", "--path", &store("second"), "--dir"]).arg(&dir);
    let done = command.output().expect("the program runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    node.stop();
}
