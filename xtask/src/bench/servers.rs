//! The servers of a comparison: Layby, and the peers that answer the same protocol.
//!
//! How: peers go to the background by themselves once they listen; Layby prints `ready`. So nearly
//! every start is an event; only ZeroFS is looked at until it listens.
//! Invariant: a server ends with its value, on any path.

use super::zerofs;
use crate::process::{self, Failure};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often, and how long apart, it is looked whether a server serves that does not say so.
const LOOKS_MAX: u32 = 600;
const LOOK: Duration = Duration::from_millis(100);

/// A running server and one export of it.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) uri: String,
    /// Peers are what a ratio is taken to.
    pub(crate) peer: bool,
    /// How to record this server while it is measured, if that is what is measured.
    pub(crate) recorder: Option<Recording>,
    running: Running,
}

/// The words that start a recorder.
pub(crate) struct Recording {
    pub(crate) binary: PathBuf,
    pub(crate) work: PathBuf,
}

/// A recorder that records.
pub(crate) struct Recorder {
    child: Child,
    reader: BufReader<std::process::ChildStdout>,
}

impl Recorder {
    /// Ends it; what it says of its trace.
    pub(crate) fn stop(mut self) -> Result<String, Failure> {
        process::run(Command::new("kill").args(["-INT", &self.child.id().to_string()]))?;
        let mut said = String::new();
        let failed =
            |cause| Failure::new(format!("the recorder's end is not heard\ncause: {cause}"));
        self.reader.read_to_string(&mut said).map_err(failed)?;
        Ok(said)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// The same export, recorded while it is measured.
    pub(crate) fn recorded(&self, name: &'static str, recorder: Recording) -> Server {
        let (uri, recorder) = (self.uri.clone(), Some(recorder));
        Server { name, uri, peer: false, recorder, running: Running::Shared }
    }

    /// Starts to record, where recording is what is measured; it records when this returns.
    pub(crate) fn start_recorder(&self) -> Result<Option<Recorder>, Failure> {
        let Some(Recording { binary, work }) = &self.recorder else { return Ok(None) };
        let mut command = Command::new(binary);
        command.args(["record", "start", "--overwrite"]).arg(work.join("bench.parquet"));
        command.arg("--dir").arg(work.join("node"));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|cause| Failure::io("cannot start", binary, &cause))?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("the recorder has no pipe"))?;
        let mut recorder = Recorder { child, reader: BufReader::new(stdout) };
        let mut line = String::new();
        match recorder.reader.read_line(&mut line) {
            Ok(_) if line.starts_with("recording") => Ok(Some(recorder)),
            _ => Err(Failure::new(format!("the recorder does not record: {line}"))),
        }
    }
}

impl Server {
    /// Where one of its exports is, for a server of several.
    pub(crate) fn export(&self, name: &str) -> String {
        self.uri.replace("/?", &format!("/{name}?"))
    }

    /// Has it run, or stand still: what a server does behind its clients' backs would be in the
    /// way of others that are measured.
    pub(crate) fn set_running(&self, is_running: bool) -> Result<(), Failure> {
        let Some(process) = self.process() else { return Ok(()) };
        let signal = if is_running { "-CONT" } else { "-STOP" };
        process::run(Command::new("kill").args([signal, &process.to_string()]))
    }

    /// The process that serves, unless another value keeps it.
    pub(crate) fn process(&self) -> Option<u32> {
        match &self.running {
            Running::Node(child) => Some(child.id()),
            Running::Background(pid_file) => {
                std::fs::read_to_string(pid_file).ok()?.trim().parse().ok()
            }
            Running::Shared => None,
        }
    }
}

enum Running {
    Node(Child),
    Background(PathBuf),
    /// Another export of a node that is kept alive by another value.
    Shared,
}

impl Drop for Server {
    fn drop(&mut self) {
        match &mut self.running {
            Running::Node(child) => {
                // It may have ended by itself; then there is nothing left to end.
                let _ = child.kill();
                let _ = child.wait();
            }
            Running::Background(pid_file) => {
                if let Ok(pid) = std::fs::read_to_string(pid_file) {
                    let _ = Command::new("kill").arg(pid.trim()).status();
                    // One that stands still would never hear of it.
                    let _ = Command::new("kill").args(["-CONT", pid.trim()]).status();
                }
            }
            Running::Shared => {}
        }
    }
}

/// Whether servers run before all other programs of the machine.
static RUN_FIRST: AtomicBool = AtomicBool::new(false);

/// From now on servers run before all other programs of the machine, or like them.
pub(crate) fn run_first(is_first: bool) {
    RUN_FIRST.store(is_first, Ordering::Relaxed);
}

fn server_command(program: &str, work: &Path) -> Command {
    if !RUN_FIRST.load(Ordering::Relaxed) {
        return process::command(program, work);
    }
    // Not a real-time class, which the kernel throttles where it takes a whole processor.
    let mut command = process::command("nice", work);
    command.args(["-n", "-20", program]);
    command
}

/// Starts a node in `work` with the levels of `config`. It has no volume yet.
pub(crate) fn node(binary: &Path, work: &Path, config: &str) -> Result<Server, Failure> {
    node_with(binary, work, config, &[])
}

/// A folder in memory, for what stands for NVM or a disk of RAM; removed when dropped.
pub(crate) struct MemoryFolder(PathBuf);

impl MemoryFolder {
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        let path =
            Path::new(super::MEMORY_FILES).join(format!("layby-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|cause| Failure::io("cannot make", &path, &cause))?;
        Ok(MemoryFolder(path))
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        // What cannot be removed harms no figure.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The same with more flags for `layby serve`.
pub(crate) fn node_with(
    binary: &Path,
    work: &Path,
    config: &str,
    flags: &[&str],
) -> Result<Server, Failure> {
    let dir = work.join("node");
    std::fs::create_dir_all(&dir).map_err(|cause| Failure::io("cannot make", &dir, &cause))?;
    let file = work.join("layby.toml");
    process::write(&file, config)?;
    let mut command = server_command(&binary.to_string_lossy(), work);
    command.arg("serve").arg("--dir").arg(&dir).arg("--config").arg(&file).args(flags);
    serve(command, &dir).map(|(server, _)| server)
}

/// Starts a node in `work` as `layby serve --dir` alone does, and gives what it printed until it
/// was ready.
pub(crate) fn default_node(binary: &Path, work: &Path) -> Result<(Server, Vec<String>), Failure> {
    let dir = work.join("node");
    std::fs::create_dir_all(&dir).map_err(|cause| Failure::io("cannot make", &dir, &cause))?;
    let mut command = server_command(&binary.to_string_lossy(), work);
    command.arg("serve").arg("--dir").arg(&dir);
    serve(command, &dir)
}

fn serve(mut command: Command, dir: &Path) -> Result<(Server, Vec<String>), Failure> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| Failure::new(format!("cannot start a node\ncause: {cause}")))?;
    let printed = child.stdout.take().and_then(wait_until_ready);
    let (uri, running) = (socket_uri("", &dir.join("layby.sock")), Running::Node(child));
    let server = Server { name: "layby", uri, peer: false, recorder: None, running };
    let ended = || Failure::new("the node ended before it was ready");
    printed.map(|printed| (server, printed)).ok_or_else(ended)
}

/// Creates a volume on a node, as a further server of the comparison.
pub(crate) fn volume(
    binary: &Path,
    work: &Path,
    name: &'static str,
    size: &str,
    class: &str,
) -> Result<Server, Failure> {
    volume_with(binary, work, name, &["--size", size, "--class", class])
}

/// The same with any flags for `layby volume create`.
pub(crate) fn volume_with(
    binary: &Path,
    work: &Path,
    name: &'static str,
    flags: &[&str],
) -> Result<Server, Failure> {
    let dir = work.join("node");
    let mut command = process::command(&binary.to_string_lossy(), work);
    command.args(["volume", "create", name]).args(flags).arg("--dir").arg(&dir);
    process::output(&mut command)?;
    let uri = socket_uri(name, &dir.join("layby.sock"));
    Ok(Server { name, uri, peer: false, recorder: None, running: Running::Shared })
}

/// nbdkit with one of its own plugins.
pub(crate) fn nbdkit(work: &Path, name: &'static str, plugin: &[&str]) -> Result<Server, Failure> {
    let (socket, pid) = paths(work, name)?;
    let mut command = server_command("nbdkit", work);
    command.arg("--unix").arg(&socket).arg("--pidfile").arg(&pid).args(plugin);
    process::run(&mut command)?;
    let running = Running::Background(pid);
    Ok(Server { name, uri: socket_uri("", &socket), peer: true, recorder: None, running })
}

/// nbdkit on a file, where a write is durable once it is acknowledged: each is followed by a sync.
pub(crate) fn nbdkit_durable(
    work: &Path,
    name: &'static str,
    file: &Path,
) -> Result<Server, Failure> {
    nbdkit(work, name, &["--filter=fua", "file", &file.to_string_lossy(), "fuamode=force"])
}

/// qemu-nbd on a raw file.
pub(crate) fn qemu_nbd(work: &Path, name: &'static str, file: &Path) -> Result<Server, Failure> {
    let (socket, pid) = paths(work, name)?;
    let mut command = server_command("qemu-nbd", work);
    command.args(["--fork", "--persistent", "--shared=8", "--format=raw", "--export-name="]);
    // Its default; a flush makes durable what was acknowledged.
    command.arg("--cache=writeback");
    command.arg(format!("--socket={}", socket.display()));
    command.arg(format!("--pid-file={}", pid.display())).arg(file);
    process::run(&mut command)?;
    let running = Running::Background(pid);
    Ok(Server { name, uri: socket_uri("", &socket), peer: true, recorder: None, running })
}

/// QEMU's storage daemon on raw files of a folder, an export for each, under its name, which
/// [`Server::export`] adds; with `direct` past the page cache.
pub(crate) fn storage_daemon(
    work: &Path,
    name: &'static str,
    folder: &Path,
    (files, direct): (&[String], bool),
) -> Result<Server, Failure> {
    let (socket, pid) = paths(work, name)?;
    let mut command = server_command("qemu-storage-daemon", work);
    command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
    for file in files {
        command.args(["--blockdev", &block_device(&folder.join(file), file, direct)]);
        let export = format!("type=nbd,id=e-{file},node-name={file},name={file},writable=on");
        command.args(["--export", &export]);
    }
    background(command, name, socket_uri("", &socket), pid)
}

/// QEMU's storage daemon as a guest's disk on a raw file, with one queue, on a thread that looks
/// on before it sleeps; the address is the socket's path.
pub(crate) fn storage_daemon_vhost(
    work: &Path,
    name: &'static str,
    file: &Path,
) -> Result<Server, Failure> {
    let (socket, pid) = paths(work, name)?;
    let mut command = server_command("qemu-storage-daemon", work);
    command.args(["--object", "iothread,id=thread"]);
    command.args(["--blockdev", &block_device(file, "disk", false)]);
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=e-disk,node-name=disk,writable=on,num-queues=1,iothread=thread,\
         addr.type=unix,addr.path={}",
        socket.display()
    ));
    background(command, name, socket.display().to_string(), pid)
}

fn block_device(file: &Path, node: &str, direct: bool) -> String {
    let direct = if direct { "on" } else { "off" };
    format!(
        "driver=file,node-name={node},aio=io_uring,cache.direct={direct},filename={}",
        file.display()
    )
}

/// Starts a storage daemon that goes to the background once it listens.
fn background(
    mut command: Command,
    name: &'static str,
    uri: String,
    pid: PathBuf,
) -> Result<Server, Failure> {
    process::run(command.arg("--daemonize").arg("--pidfile").arg(&pid))?;
    Ok(Server { name, uri, peer: true, recorder: None, running: Running::Background(pid) })
}

/// A ZeroFS with an export for each volume, its store in files of `work`; `None` where it is not
/// installed, which a line of `entry` says. [`zerofs::uri`] tells the exports' addresses.
pub(crate) fn zerofs(
    work: &Path,
    entry: &str,
    volumes: &[(&str, u64)],
    cache_bytes: [u64; 2],
) -> Result<Option<Server>, Failure> {
    let Some(binary) = zerofs::binary(entry) else { return Ok(None) };
    let [cache, store] = ["cache", "store"].map(|name| work.join(name));
    for folder in [&cache, &store] {
        std::fs::create_dir_all(folder)
            .map_err(|cause| Failure::io("cannot make", folder, &cause))?;
    }
    let url = format!("file://{}", store.display());
    let wanted = zerofs::Wanted { folder: work, cache: &cache, cache_bytes, url: &url, store: "" };
    let (words, sockets) = zerofs::configure(&wanted)?;
    let mut command = server_command(&binary.to_string_lossy(), work);
    command.args(words);
    let log = work.join("zerofs.log");
    let mut child = spawn_logged(command, &log)?;
    let looked = look_until(&mut child, &log, || zerofs::is_serving(&sockets));
    let running = Running::Node(child);
    let uri = zerofs::uri(&sockets, "");
    let server = Server { name: "zerofs", uri, peer: true, recorder: None, running };
    looked?;
    zerofs::make_volumes(&sockets, volumes)?;
    Ok(Some(server))
}

/// Starts a server whose words go to a file.
pub(crate) fn spawn_logged(mut command: Command, log: &Path) -> Result<Child, Failure> {
    let failed = |cause| Failure::io("cannot make", log, &cause);
    let output = File::options().append(true).create(true).open(log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let started = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
    started.map_err(|cause| Failure::new(format!("cannot start a server\ncause: {cause}")))
}

/// Looks until a server serves that does not say when it does; an error if it ends before.
pub(crate) fn look_until(
    child: &mut Child,
    log: &Path,
    is_serving: impl Fn() -> bool,
) -> Result<(), Failure> {
    for _ in 0..LOOKS_MAX {
        if is_serving() {
            return Ok(());
        }
        if child.try_wait().is_ok_and(|ended| ended.is_some()) {
            break;
        }
        process::pause(LOOK)?;
    }
    let said = process::read(log).unwrap_or_default();
    Err(Failure::new(format!("a server does not serve; it said:\n{said}")))
}

/// An empty file of `bytes` bytes.
pub(crate) fn empty_file(path: &Path, bytes: u64) -> Result<(), Failure> {
    let made = std::fs::File::create(path).and_then(|file| file.set_len(bytes));
    made.map_err(|cause| Failure::io("cannot make", path, &cause))
}

/// A folder of empty files of so many bytes each.
pub(crate) fn empty_files(
    folder: &Path,
    files: impl Iterator<Item = (String, u64)>,
) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|cause| Failure::io("cannot make", folder, &cause))?;
    files.into_iter().try_for_each(|(name, bytes)| empty_file(&folder.join(name), bytes))
}

fn paths(work: &Path, name: &str) -> Result<(PathBuf, PathBuf), Failure> {
    let folder = work.join(name.replace(' ', "-"));
    std::fs::create_dir_all(&folder)
        .map_err(|cause| Failure::io("cannot make", &folder, &cause))?;
    Ok((folder.join("sock"), folder.join("pid")))
}

fn socket_uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// Reads to the line that says `ready`, and gives what came before; what follows is read away, so
/// that the pipe never fills. `None` where the node ended.
fn wait_until_ready(stdout: std::process::ChildStdout) -> Option<Vec<String>> {
    let mut reader = BufReader::new(stdout);
    let (mut printed, mut line) = (Vec::new(), String::new());
    while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
        if line.starts_with("ready") {
            std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
            return Some(printed);
        }
        printed.push(line.trim_end().to_owned());
        line.clear();
    }
    None
}
