//! A running node, as a user starts it.
//!
//! How: spawns `layby serve`, reads its standard output up to the line that begins with `ready`,
//! and keeps reading, so that the pipe never fills. Its standard error goes to a file beside its
//! folder.
//! The end of that output is how a stop is noticed; both are waited for with a bound.
//! Invariant: the process is gone when the value is. Not for: a node inside the test's process.

use crate::tool;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longest that a node may take until it is ready, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to start a node.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration's text; none starts the node as `layby serve` alone would.
    pub config: Option<String>,
    /// After a kill, drop everything that was not durable, as a power cut would.
    pub power_loss: bool,
    /// Further words of the command line.
    pub arguments: Vec<String>,
    /// Variables of its environment, beside the test's own.
    pub environment: Vec<(String, String)>,
}

impl Options {
    /// A node with this configuration.
    #[must_use]
    pub fn config(text: impl Into<String>) -> Self {
        Options { config: Some(text.into()), ..Options::default() }
    }

    /// The same, with what finds a store like [`crate::S3Server`] at `endpoint`.
    #[must_use]
    pub fn with_store(text: impl Into<String>, endpoint: &str) -> Self {
        let environment = crate::S3Server::environment(endpoint);
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Options { environment, ..Options::config(text) }
    }
}

/// Levels so small that a short test fills and empties them many times. Their room is reserved
/// alone: zeros over them would be 144 MiB of writes in each test.
#[must_use]
pub fn small_levels() -> Options {
    Options::config(
        "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
         [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\n\
         preallocation = \"falloc\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"128MiB\"\n\
         preallocation = \"falloc\"\n",
    )
}

/// A node that ended instead of serving.
#[derive(Debug)]
pub struct Refusal {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Its standard error.
    pub stderr: String,
}

impl Refusal {
    /// Asserts the project's form of an error: what, why, state of the data, what to do.
    ///
    /// # Panics
    /// When the exit code says success or a line is missing.
    #[track_caller]
    pub fn assert_explains(&self, words: &[&str]) {
        assert!(self.code.is_some_and(|code| code != 0), "exit code: {self:?}");
        for start in ["error: ", "cause: ", "state: ", "hint: "] {
            let found = self.stderr.lines().any(|line| line.starts_with(start));
            assert!(found, "no line begins with `{start}`:\n{}", self.stderr);
        }
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not mentioned:\n{}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "a panic is no explanation:\n{}", self.stderr);
    }
}

/// What a process holds of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Resident memory in KiB.
    pub memory_kib: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Those of them that are TCP sockets, such as connections to a store.
    pub connections: usize,
}

/// A node that serves.
#[derive(Debug)]
pub struct Node {
    child: Child,
    dir: PathBuf,
    log: PathBuf,
    /// What it had said when it was ready; hung up when its standard output ends.
    ready: Receiver<Vec<String>>,
    said: Vec<String>,
}

impl Node {
    /// Starts a node in `dir`, which is created when missing.
    ///
    /// # Errors
    /// [`Refusal`] when it ends before it is ready.
    pub fn try_start(dir: &Path, options: &Options) -> Result<Node, Refusal> {
        let mut command = Command::new(binary());
        command.args(serve_arguments(dir, options));
        command.envs(options.environment.iter().cloned());
        Node::spawn(command, dir)
    }

    /// Starts the node that `command` describes; for commands that begin with another program.
    ///
    /// # Errors
    /// [`Refusal`] when it ends before it is ready.
    ///
    /// # Panics
    /// When there is no such program, or it neither serves nor ends in time.
    pub fn spawn(mut command: Command, dir: &Path) -> Result<Node, Refusal> {
        command.stdin(Stdio::null());
        Node::launch(command, dir)
    }

    /// Starts a node that must come up, on a socket that the test keeps, as a service manager does.
    ///
    /// # Panics
    /// With its standard error when it does not come up.
    #[track_caller]
    #[must_use]
    pub fn start_on(dir: &Path, options: &Options, listener: &UnixListener) -> Node {
        // The process that the number names must be the one that becomes the node.
        let script = "exec 3<&0 0</dev/null; \
            export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=nbd; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(binary()).args(serve_arguments(dir, options));
        let socket = listener.try_clone().expect("descriptors are left");
        command.stdin(Stdio::from(OwnedFd::from(socket)));
        match Node::launch(command, dir) {
            Ok(node) => node,
            Err(refusal) => panic!("node refused ({:?}):\n{}", refusal.code, refusal.stderr),
        }
    }

    fn launch(mut command: Command, dir: &Path) -> Result<Node, Refusal> {
        let log = beside(dir, "log");
        let stderr = File::create(&log).expect("the test's own folder can be written");
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("cannot start: {cause}"));
        let ready = watch(child.stdout.take().expect("the pipe was asked for above"));
        let mut node = Node { child, dir: dir.to_path_buf(), log, ready, said: Vec::new() };
        match node.ready.recv_timeout(PATIENCE) {
            Ok(said) => {
                node.said = said;
                Ok(node)
            }
            Err(RecvTimeoutError::Timeout) => panic!("not ready in time:\n{}", node.stderr()),
            Err(RecvTimeoutError::Disconnected) => {
                let code = node.child.wait().expect("our own child can be waited for").code();
                Err(Refusal { code, stderr: node.stderr() })
            }
        }
    }

    /// Starts a node that must come up.
    ///
    /// # Panics
    /// With its standard error when it does not.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path, options: &Options) -> Node {
        match Node::try_start(dir, options) {
            Ok(node) => node,
            Err(refusal) => panic!("node refused ({:?}):\n{}", refusal.code, refusal.stderr),
        }
    }

    /// What the node holds now.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn held(&self) -> Held {
        let proc = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = std::fs::read_to_string(proc.join("status")).expect("the node runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        let memory_kib = kib.and_then(|kib| kib.parse().ok()).expect("the kernel tells in KiB");
        let open = std::fs::read_dir(proc.join("fd")).expect("the node runs");
        let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let links: Vec<_> = links.map(|link| link.display().to_string()).collect();
        let tcp = ["tcp", "tcp6"]
            .map(|name| std::fs::read_to_string(proc.join("net").join(name)).unwrap_or_default());
        // The tenth word of a line is the socket's inode.
        let inodes = tcp.iter().flat_map(|table| table.lines().skip(1));
        let inodes = inodes.filter_map(|line| line.split_whitespace().nth(9));
        let inodes: BTreeSet<_> = inodes.map(|inode| format!("socket:[{inode}]")).collect();
        let connections = links.iter().filter(|link| inodes.contains(*link)).count();
        Held { memory_kib, descriptors: links.len(), connections }
    }

    /// Seconds of processor time that it has taken, all threads together, to a hundredth.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn processor_seconds(&self) -> f64 {
        /// Linux counts for programs in hundredths of a second, whatever its own clock is.
        const TICKS_PER_SECOND: f64 = 100.0;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("the node runs");
        // The name, in parentheses, may hold anything; 12th and 13th behind it are user and system.
        let (_, figures) = stat.rsplit_once(')').expect("the kernel's own form");
        let ticks = figures.split_whitespace().skip(11).take(2);
        ticks.flat_map(str::parse::<u64>).sum::<u64>() as f64 / TICKS_PER_SECOND
    }

    /// Ends it as a crash would: no signal handler runs.
    pub fn kill9(self) {
        drop(self);
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Panics
    /// When it does not end in time, or does not report success.
    #[track_caller]
    pub fn stop(mut self) {
        let pid = self.child.id().to_string();
        tool::must("kill", &["-TERM", pid.as_str()]);
        let ended = self.ready.recv_timeout(PATIENCE);
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "no stop:\n{}", self.stderr());
        let status = self.child.wait().expect("our own child can be waited for");
        assert!(status.success(), "a clean stop ended with {status}:\n{}", self.stderr());
    }

    /// Waits until it ends by itself, and says how it did.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    #[must_use]
    pub fn ended(mut self) -> Refusal {
        let ended = self.ready.recv_timeout(PATIENCE);
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "no end:\n{}", self.stderr());
        let code = self.child.wait().expect("our own child can be waited for").code();
        Refusal { code, stderr: self.stderr() }
    }

    /// The same node, whose directory was moved.
    #[must_use]
    pub fn moved_to(mut self, dir: &Path) -> Node {
        self.dir = dir.to_path_buf();
        self
    }

    /// Sends it a signal, such as `-HUP`.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        tool::must("kill", &[signal, pid.as_str()]);
    }

    /// The number of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Creates a volume of `size` in `class`.
    ///
    /// # Panics
    /// When the node refuses.
    #[track_caller]
    pub fn volume_create(&self, name: &str, size: &str, class: &str) {
        self.layby(&["volume", "create", name, "--size", size, "--class", class]);
    }

    /// Runs a command of `layby` on this node; it must succeed.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn layby(&self, words: &[&str]) -> String {
        let dir = self.dir.to_string_lossy();
        let words: Vec<&str> = words.iter().copied().chain(["--dir", &dir]).collect();
        tool::must(&binary().to_string_lossy(), &words)
    }

    /// Where clients find `export`.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Whether a client that is not ours finds `export`.
    #[must_use]
    pub fn serves(&self, export: &str) -> bool {
        tool::run("nbdinfo", &["--size", &self.uri(export)]).success
    }

    /// The control API's HTTP address.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    pub fn http(&self) -> String {
        let url = fs::read_to_string(self.dir.join("control.url")).expect("it is written at start");
        url.trim().strip_prefix("http://").expect("it is a URL").to_owned()
    }

    /// The control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// What it has said on its standard output: the lines up to `ready`.
    #[must_use]
    pub fn said(&self) -> String {
        self.said.join("\n")
    }

    /// The NBD socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("layby.sock")
    }

    /// What the node has written to its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already; then both calls have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `layby` with `words`, whatever the outcome.
#[must_use]
pub fn layby(words: &[&str]) -> tool::Outcome {
    tool::run(&binary().to_string_lossy(), words)
}

/// The words of `layby serve` for `dir`; the configuration is written beside it.
///
/// # Panics
/// Where that place cannot be written.
#[must_use]
pub fn serve_arguments(dir: &Path, options: &Options) -> Vec<String> {
    let mut words = vec!["serve".to_string(), "--dir".to_string(), dir.display().to_string()];
    if let Some(text) = &options.config {
        let file = beside(dir, "toml");
        fs::write(&file, text).expect("the test's own folder can be written");
        words.extend(["--config".to_string(), file.display().to_string()]);
    }
    if options.power_loss {
        words.push("--simulate-power-loss".to_string());
    }
    words.extend(options.arguments.iter().cloned());
    words
}

fn beside(dir: &Path, extension: &str) -> PathBuf {
    dir.with_extension(extension)
}

/// Reads the standard output to its end; tells of the first line that begins with `ready`.
fn watch(stdout: ChildStdout) -> Receiver<Vec<String>> {
    let (tell, ready) = channel();
    std::thread::spawn(move || {
        let (mut told, mut said) = (false, Vec::new());
        // To the end, so that the pipe never fills and its end is that of the node.
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let is_ready = line.starts_with("ready");
            if !told {
                said.push(line);
            }
            if !told && is_ready {
                told = true;
                // A test that has failed meanwhile does not listen any more.
                let _ = tell.send(std::mem::take(&mut said));
            }
        }
    });
    ready
}

/// The program under test: `LAYBY_BIN`, or the one beside this test, brought up to date first.
///
/// # Panics
/// When it cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var_os("LAYBY_BIN").map_or_else(built, PathBuf::from))
}

/// Builds the program with the profile of this test, so that an old one is never tested.
fn built() -> PathBuf {
    let own = std::env::current_exe().expect("a running test has a path");
    let profile = own.ancestors().nth(2).expect("tests lie in TARGET/PROFILE/deps");
    let target = profile.parent().expect("tests lie in TARGET/PROFILE/deps");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "layby-cli", "--target-dir"]).arg(target);
    // What cargo tells a test of its own package, build scripts below would take for theirs, and
    // build anew each time.
    let told = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    for (name, _) in std::env::vars_os() {
        if told.iter().any(|told| name.to_string_lossy().starts_with(told)) {
            cargo.env_remove(name);
        }
    }
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "cannot build layby-cli");
    profile.join("layby")
}
