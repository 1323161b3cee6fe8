//! Who is measured on an object store: Layby, s3backer, ZeroFS; how each is started.
//!
//! How: s3backer (Debian's 1.5.4, FUSE) shows a file, so fio uses that; ZeroFS (`cargo install`,
//! AGPL: a program that is run, never code that is used) serves NBD, after its volume was made as a
//! file over 9P. Each start is waited for by an event or by looking, with a bound.
//! Invariant: a contender ends with its value: its mount goes first. Not for: tests.
//!
//! What was found: s3backer signs for one host style only, so `--region` must not be given, which
//! would put the bucket into the host's name; its MD5 cache is for stores that are consistent late
//! and is off; it acknowledges a write that is in its cache, and FUSE passes no flush to the store.

use super::cloud::{CACHE_BYTES, VOLUME_BYTES};
use super::entries::Plan;
use crate::process::{self, Failure};
use crate::{setup, tools};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The version that the figures are of.
const ZEROFS: &str = "zerofs-0.19.1";
const BLOCK_BYTES: u64 = 4096;
/// How often, and how long apart, it is looked whether a contender serves.
const LOOKS_MAX: u32 = 600;
const LOOK: Duration = Duration::from_millis(100);
/// Whose store it is, as the tests' store wants it.
const ACCESS_KEY: &str = "layby-tests";
const SECRET_KEY: &str = "not-a-secret";
const BUCKET: &str = "layby";
/// Layby's volume.
pub(super) const VOLUME: &str = "bench";

/// Where a contender keeps its files, and where its store is.
pub(super) struct Place<'a> {
    pub(super) folder: &'a Path,
    pub(super) endpoint: &'a str,
}

/// What fio opens.
pub(super) enum Target {
    /// An export by its address.
    Nbd(String),
    /// A file or a device.
    File(String),
}

enum Kind {
    Layby { binary: PathBuf },
    S3backer,
    Zerofs { binary: PathBuf },
}

/// One who is measured.
pub(super) struct Contender {
    pub(super) name: &'static str,
    kind: Kind,
}

/// A contender that serves.
pub(super) struct Running {
    pub(super) target: Target,
    child: Child,
    mount: Option<PathBuf>,
}

impl Drop for Running {
    fn drop(&mut self) {
        match &self.mount {
            // s3backer writes what it holds when its mount goes, and ends.
            Some(mount) => {
                let _ = process::run(process::command("umount", Path::new("/")).arg(mount));
            }
            None => {
                let pid = self.child.id().to_string();
                let _ = process::run(process::command("kill", Path::new("/")).arg(pid));
            }
        }
        let _ = self.child.wait();
    }
}

/// Those that are here; says of the others how to get them.
pub(super) fn contenders(plan: &Plan<'_>) -> Result<Vec<Contender>, Failure> {
    let mut all = Vec::new();
    let kind = Kind::Layby { binary: plan.binary.into() };
    all.push(Contender { name: "layby", kind });
    setup::install(plan.root, &["s3backer"])?;
    if process::exists("s3backer", "--version") {
        all.push(Contender { name: "s3backer", kind: Kind::S3backer });
    } else {
        process::say("cloud: skipped: s3backer is not installed");
    }
    let binary = tools::folder().join(ZEROFS).join("bin/zerofs");
    if binary.exists() {
        all.push(Contender { name: "zerofs", kind: Kind::Zerofs { binary } });
    } else {
        let home = tools::folder().join(ZEROFS);
        process::say(&format!(
            "cloud: skipped: ZeroFS is not installed (`cargo install zerofs --version {} --locked \
             --root {}`)",
            ZEROFS.trim_start_matches("zerofs-"),
            home.display()
        ));
    }
    Ok(all)
}

/// Layby, without peers.
pub(super) fn layby_alone(plan: &Plan<'_>) -> Contender {
    Contender { name: "layby", kind: Kind::Layby { binary: plan.binary.into() } }
}

/// One contender, for tests of what is made of figures.
#[cfg(test)]
pub(super) fn s3backer_alone() -> Contender {
    Contender { name: "s3backer", kind: Kind::S3backer }
}

impl Contender {
    /// Starts it; a volume is made where this is the first time.
    pub(super) fn start(&self, place: &Place<'_>, is_first: bool) -> Result<Running, Failure> {
        match &self.kind {
            Kind::Layby { binary } => layby(binary, place),
            Kind::S3backer => s3backer(place),
            Kind::Zerofs { binary } => zerofs(binary, place, is_first),
        }
    }

    /// Takes its cache from a contender that does not run: reads are to miss.
    pub(super) fn forget(&self, place: &Place<'_>) -> Result<(), Failure> {
        let cache = place.folder.join("cache");
        std::fs::remove_dir_all(&cache).map_err(|e| Failure::io("cannot remove", &cache, &e))
    }
}

/// Layby's own node: its files in `PLACE/node`, all of its cache in memory, so that a start forgets
/// it; the target is its NBD export. What it acknowledges is in its journal, and a flush is a sync
/// of that.
fn layby(binary: &Path, place: &Place<'_>) -> Result<Running, Failure> {
    let (node, _) = (made(place, "node")?, made(place, "cache")?);
    let config = format!(
        "[node]\nshards = 1\n[control]\nhttp = \"off\"\n\
         [cloud]\njournal = \"1GiB\"\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"{CACHE_BYTES}\"\n\
         [volume.{VOLUME}]\nsize = \"{VOLUME_BYTES}\"\npath = \"{}\"\n",
        layby_url()
    );
    let file = place.folder.join("layby.toml");
    process::write(&file, &config)?;
    let socket = node.join("layby.sock");
    // A socket of the life before would be taken for this one's.
    let _ = std::fs::remove_file(&socket);
    let mut command = process::command(&binary.to_string_lossy(), place.folder);
    command.arg("serve").arg("--dir").arg(&node).arg("--config").arg(&file);
    environment(&mut command, place.endpoint);
    let child = spawn(command, place)?;
    let target = Target::Nbd(format!("nbd+unix:///{VOLUME}?socket={}", socket.display()));
    let running = Running { target, child, mount: None };
    wait(running, place, || UnixStream::connect(&socket).is_ok())
}

/// What tells a program of ours of the store.
pub(super) fn environment(command: &mut Command, endpoint: &str) {
    command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env("AWS_REGION", "us-east-1");
}

/// Where Layby's volume lives.
pub(super) fn layby_url() -> String {
    format!("s3://{BUCKET}/{VOLUME}")
}

fn s3backer(place: &Place<'_>) -> Result<Running, Failure> {
    let (cache, mount) = (made(place, "cache")?, made(place, "mount")?);
    let mut command = process::command("s3backer", place.folder);
    command.arg("-f").arg(format!("--baseURL={}/", place.endpoint));
    command.arg(format!("--accessId={ACCESS_KEY}")).arg(format!("--accessKey={SECRET_KEY}"));
    command.args(["--authVersion=aws4", "--noAutoDetect", "--force", "--directIO"]);
    command.args(["--md5CacheSize=0", "--md5CacheTime=0", "--minWriteDelay=0"]);
    command.arg(format!("--blockSize={BLOCK_BYTES}")).arg(format!("--size={VOLUME_BYTES}"));
    command.arg(format!("--blockCacheSize={}", CACHE_BYTES / BLOCK_BYTES));
    command.arg(format!("--blockCacheFile={}", cache.join("blocks").display()));
    command.arg(BUCKET).arg(&mount);
    let child = spawn(command, place)?;
    let file = mount.join("file");
    let target = Target::File(file.display().to_string());
    let running = Running { target, child, mount: Some(mount) };
    wait(running, place, || file.exists())
}

fn zerofs(binary: &Path, place: &Place<'_>, is_first: bool) -> Result<Running, Failure> {
    let cache = made(place, "cache")?;
    let socket = |name: &str| place.folder.join(name).display().to_string();
    let (nbd, ninep) = (socket("nbd.sock"), socket("9p.sock"));
    // A socket of the life before would be taken for this one's.
    let _ = (std::fs::remove_file(&nbd), std::fs::remove_file(&ninep));
    let gigabytes = CACHE_BYTES as f64 / 2e9;
    let config = format!(
        "[cache]\ndir = \"{}\"\ndisk_size_gb = {gigabytes}\nmemory_size_gb = {gigabytes}\n\
         [storage]\nurl = \"s3://{BUCKET}/zerofs\"\nencryption_password = \"not-a-secret\"\n\
         [aws]\naccess_key_id = \"{ACCESS_KEY}\"\nsecret_access_key = \"{SECRET_KEY}\"\n\
         region = \"us-east-1\"\nendpoint = \"{}\"\nallow_http = \"true\"\n\
         [servers.nbd]\nunix_socket = \"{nbd}\"\n[servers.ninep]\nunix_socket = \"{ninep}\"\n",
        cache.display(),
        place.endpoint
    );
    let file = place.folder.join("zerofs.toml");
    process::write(&file, &config)?;
    let mut command = process::command(&binary.to_string_lossy(), place.folder);
    command.arg("run").arg("--config").arg(&file);
    let child = spawn(command, place)?;
    let target = Target::Nbd(format!("nbd+unix:///volume?socket={nbd}"));
    let running = Running { target, child, mount: None };
    let serves = || UnixStream::connect(&nbd).is_ok() && UnixStream::connect(&ninep).is_ok();
    let running = wait(running, place, serves)?;
    if is_first {
        make_volume(Path::new(&ninep))?;
    }
    Ok(running)
}

fn made(place: &Place<'_>, name: &str) -> Result<PathBuf, Failure> {
    let path = place.folder.join(name);
    let made = std::fs::create_dir_all(&path);
    made.map_err(|cause| Failure::io("cannot make", &path, &cause)).map(|()| path)
}

/// Starts a contender whose words go to a file.
fn spawn(mut command: Command, place: &Place<'_>) -> Result<Child, Failure> {
    let log = place.folder.join("contender.log");
    let failed = |cause| Failure::io("cannot make", &log, &cause);
    let output = File::options().append(true).create(true).open(&log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let started = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
    started.map_err(|cause| Failure::new(format!("cannot start a contender\ncause: {cause}")))
}

/// Looks until it serves: strangers do not say when they do.
fn wait(
    mut running: Running,
    place: &Place<'_>,
    is_serving: impl Fn() -> bool,
) -> Result<Running, Failure> {
    for _ in 0..LOOKS_MAX {
        if is_serving() {
            return Ok(running);
        }
        if running.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            break;
        }
        process::pause(LOOK)?;
    }
    let said = process::read(&place.folder.join("contender.log")).unwrap_or_default();
    Err(Failure::new(format!("a contender does not serve; it said:\n{said}")))
}

// ---- ZeroFS's volume, a file over 9P2000.L ----

const VERSION: u8 = 100;
const ATTACH: u8 = 104;
const WALK: u8 = 110;
const CREATE: u8 = 14;
const SET_ATTRIBUTES: u8 = 26;
const NO_TAG: u16 = u16::MAX;
const NO_FID: u32 = u32::MAX;
/// The size is what is set.
const SIZE_VALID: u32 = 8;

/// Makes `.nbd/volume`, which is then the export `volume`.
fn make_volume(socket: &Path) -> Result<(), Failure> {
    let failed = |cause| Failure::io("cannot make ZeroFS's volume over", socket, &cause);
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let mut ask = |kind: u8, tag: u16, body: &[&[u8]]| {
        exchange(&mut stream, kind, tag, &body.concat()).map_err(failed)
    };
    let (root, folder) = (0_u32.to_le_bytes(), 1_u32.to_le_bytes());
    ask(VERSION, NO_TAG, &[&65536_u32.to_le_bytes(), &text("9P2000.L")])?;
    ask(ATTACH, 0, &[&root, &NO_FID.to_le_bytes(), &text("root"), &text("/"), &[0; 4]])?;
    ask(WALK, 0, &[&root, &folder, &1_u16.to_le_bytes(), &text(".nbd")])?;
    let (flags, mode) = (2_u32.to_le_bytes(), 0o644_u32.to_le_bytes());
    ask(CREATE, 0, &[&folder, &text("volume"), &flags, &mode, &[0; 4]])?;
    // Mode and owners are not valid here, and times neither.
    let size = VOLUME_BYTES.to_le_bytes();
    ask(SET_ATTRIBUTES, 0, &[&folder, &SIZE_VALID.to_le_bytes(), &[0; 12], &size, &[0; 32]])
}

fn text(word: &str) -> Vec<u8> {
    let length = u16::try_from(word.len()).expect("our own words are short");
    [&length.to_le_bytes(), word.as_bytes()].concat()
}

/// One message and its answer, which must be of the next kind.
fn exchange(stream: &mut UnixStream, kind: u8, tag: u16, body: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(7 + body.len()).expect("our own messages are short");
    let head = [&length.to_le_bytes()[..], &[kind], &tag.to_le_bytes()].concat();
    stream.write_all(&[&head, body].concat())?;
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let mut rest = vec![0; (length as usize).saturating_sub(head.len())];
    stream.read_exact(&mut rest)?;
    if head[4] == kind + 1 {
        return Ok(());
    }
    Err(std::io::Error::other(format!("message {kind} was answered by {}: {rest:?}", head[4])))
}
