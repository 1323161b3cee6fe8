//! An object store on loopback: versitygw, which others wrote, over a folder of the test.
//!
//! How: its posix back end keeps each object as a file of the same name, so that a test looks, and
//! does harm, behind the server's back. The port is reserved before it starts, and is its own until
//! the value ends, also while it is down. `cargo xtask setup-tests` builds it once per user.
//! Invariant: the process is gone when the value is. Cost: a tenth of a second, and 50 MB of
//! memory.
//! Not for: speed claims about stores; each object is a file, synced by nobody.

use crate::link::Port;
use crate::tool;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tempfile::TempDir;

/// The version that is pinned; `cargo xtask setup-tests` reads the same file.
const VERSION: &str = include_str!("../data/versitygw.version");
/// How often it is looked whether the server listens.
const LOOKS_MAX: u32 = 3000;
/// The time between two looks, which ends early when the server does.
const LOOK: Duration = Duration::from_millis(10);
/// What the server keeps for itself beside a bucket's objects.
const OWN_FOLDER: &str = ".sgwtmp";

/// An object store that serves.
#[derive(Debug)]
pub struct S3Server {
    port: Port,
    program: PathBuf,
    folder: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// Kept so that it goes last.
    _own: Option<TempDir>,
}

impl S3Server {
    /// The one bucket that there is.
    pub const BUCKET: &'static str = "layby";
    /// Whose store it is.
    pub const ACCESS_KEY: &'static str = "layby-tests";
    /// What proves that.
    pub const SECRET_KEY: &'static str = "not-a-secret";
    /// Where it says that it is.
    pub const REGION: &'static str = "us-east-1";

    /// Starts a store with an empty bucket; none, after a `skipped:` line, where the program is not
    /// installed.
    ///
    /// # Panics
    /// With its output, when it does not come up.
    #[track_caller]
    #[must_use]
    pub fn start() -> Option<S3Server> {
        let program = program()?;
        let own = TempDir::new().expect("a temporary folder");
        let folder = own.path().to_path_buf();
        Some(S3Server::launch(program, folder, Some(own)))
    }

    /// Starts a store in `folder`, with what is there already; none as with [`S3Server::start`].
    ///
    /// # Panics
    /// With its output, when it does not come up.
    #[track_caller]
    #[must_use]
    pub fn start_in(folder: &Path) -> Option<S3Server> {
        Some(S3Server::launch(program()?, folder.to_path_buf(), None))
    }

    #[track_caller]
    fn launch(program: PathBuf, folder: PathBuf, own: Option<TempDir>) -> S3Server {
        let port = Port::reserve().expect("loopback has ports left");
        // A folder of the top is a bucket; this one belongs to whoever has the root's credentials.
        let bucket = folder.join("objects").join(S3Server::BUCKET);
        fs::create_dir_all(bucket).expect("the test's own folder can be written");
        let log = folder.join("versitygw.log");
        let mut server = S3Server { port, program, folder, log, child: None, _own: own };
        server.revive();
        server
    }

    /// Where clients that need no link connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The same as clients of HTTP say it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// What a client finds in its environment to reach the store at `endpoint`, which may be a
    /// link's.
    #[must_use]
    pub fn environment(endpoint: &str) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", S3Server::SECRET_KEY.to_owned()),
            ("AWS_REGION", S3Server::REGION.to_owned()),
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// Ends the process as a crash would; objects stay, clients are refused.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already; then both calls have nothing to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the process again on the same port, over what is there.
    ///
    /// # Panics
    /// With its output, when it does not come up.
    #[track_caller]
    pub fn revive(&mut self) {
        self.kill();
        let log = File::create(&self.log).expect("the test's own folder can be written");
        let mut command = Command::new(&self.program);
        // Nothing from the environment: it would change what the server is.
        command.env_clear().env("HOME", &self.folder);
        command.args(["--access", S3Server::ACCESS_KEY, "--secret", S3Server::SECRET_KEY]);
        command.args(["--region", S3Server::REGION, "--port", &self.address().to_string()]);
        command.args(["--keep-alive", "--quiet", "posix"]).arg(self.folder.join("objects"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the program was found before");
        let ended = watch(child.stdout.take().expect("the pipe was asked for above"));
        self.child = Some(child);
        self.wait(&ended);
    }

    #[track_caller]
    fn wait(&self, ended: &Receiver<()>) {
        for _ in 0..LOOKS_MAX {
            if TcpStream::connect(self.address()).is_ok() {
                return;
            }
            if ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected) {
                break;
            }
        }
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        panic!("versitygw does not serve:\n{said}");
    }

    /// All objects and their sizes, looked up behind the server's back.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<String, u64> {
        let mut objects = BTreeMap::new();
        let top = self.bucket();
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                // The server removes folders that became empty.
                Err(cause) if cause.kind() == ErrorKind::NotFound && folder != top => continue,
                entries => entries.expect("the test's own folder can be read"),
            };
            for entry in entries.flatten() {
                let path = entry.path();
                let key = path.strip_prefix(&top).expect("it is below").display().to_string();
                match entry.metadata() {
                    Ok(about) if about.is_dir() && key != OWN_FOLDER => folders.push(path),
                    Ok(about) if about.is_file() => drop(objects.insert(key, about.len())),
                    // The server's own, or gone since it was listed.
                    _ => {}
                }
            }
        }
        objects
    }

    /// An object's bytes, read behind the server's back.
    ///
    /// # Panics
    /// When there is no such object.
    #[track_caller]
    #[must_use]
    pub fn read(&self, key: &str) -> Vec<u8> {
        let bytes = fs::read(self.bucket().join(key));
        bytes.unwrap_or_else(|cause| panic!("no object `{key}`: {cause}"))
    }

    /// Deletes an object behind the server's back.
    ///
    /// # Panics
    /// When there is no such object.
    #[track_caller]
    pub fn delete(&self, key: &str) {
        let deleted = fs::remove_file(self.bucket().join(key));
        deleted.unwrap_or_else(|cause| panic!("no object `{key}`: {cause}"));
    }

    /// Changes an object's bytes behind the server's back: its ETag stays that of the old ones.
    ///
    /// # Panics
    /// When there is no such object.
    #[track_caller]
    pub fn damage(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read(key);
        change(&mut bytes);
        let written = fs::write(self.bucket().join(key), bytes);
        written.expect("an object that was read can be written");
    }

    /// The folder whose files are the objects.
    #[must_use]
    pub fn bucket(&self) -> PathBuf {
        self.folder.join("objects").join(S3Server::BUCKET)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program: `LAYBY_VERSITYGW`, or where `cargo xtask setup-tests` puts it.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LAYBY_VERSITYGW") {
        return Some(PathBuf::from(named));
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let program =
        cache.unwrap_or_default().join(format!("layby/versitygw-{}/versitygw", VERSION.trim()));
    if !program.exists() {
        tool::missing("versitygw missing (`cargo xtask setup-tests` builds it)");
        return None;
    }
    Some(program)
}

/// Reads the output away; hung up when it ends.
fn watch(stdout: ChildStdout) -> Receiver<()> {
    let (tell, ended) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines();
        lines.map_while(Result::ok).for_each(drop);
        drop(tell);
    });
    ended
}
