//! Who is measured on an object store: Layby, s3backer, ZeroFS; how each is started.
//!
//! How: s3backer (Debian's 1.5.4, FUSE) shows a file, so fio uses that; ZeroFS serves NBD. Each
//! start is waited for by an event or by looking, with a bound.
//! Invariant: a contender ends with its value: its mount goes first. Not for: tests.
//!
//! What was found: s3backer signs for one host style only, so `--region` must not be given, which
//! would put the bucket into the host's name; its MD5 cache is for stores that are consistent late
//! and is off; it acknowledges a write that is in its cache, and FUSE passes no flush to the store.

use super::cloud::{CACHE_BYTES, VOLUME_BYTES};
use super::entries::Plan;
use super::{servers, zerofs};
use crate::process::{self, Failure};
use crate::setup;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const BLOCK_BYTES: u64 = 4096;
/// Whose store it is, as the tests' store wants it.
const ACCESS_KEY: &str = "layby-tests";
const SECRET_KEY: &str = "not-a-secret";
const BUCKET: &str = "layby";
/// The volume, where volumes have names.
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
    if let Some(binary) = zerofs::binary("cloud") {
        all.push(Contender { name: "zerofs", kind: Kind::Zerofs { binary } });
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
    let store = format!(
        "[aws]\naccess_key_id = \"{ACCESS_KEY}\"\nsecret_access_key = \"{SECRET_KEY}\"\n\
         region = \"us-east-1\"\nendpoint = \"{}\"\nallow_http = \"true\"\n",
        place.endpoint
    );
    let (words, sockets) = zerofs::configure(&zerofs::Wanted {
        folder: place.folder,
        cache: &made(place, "cache")?,
        cache_bytes: [CACHE_BYTES / 2; 2],
        url: &format!("s3://{BUCKET}/zerofs"),
        store: &store,
    })?;
    let mut command = process::command(&binary.to_string_lossy(), place.folder);
    command.args(words);
    let child = spawn(command, place)?;
    let target = Target::Nbd(zerofs::uri(&sockets, VOLUME));
    let running = Running { target, child, mount: None };
    let running = wait(running, place, || zerofs::is_serving(&sockets))?;
    if is_first {
        zerofs::make_volumes(&sockets, &[(VOLUME, VOLUME_BYTES)])?;
    }
    Ok(running)
}

fn made(place: &Place<'_>, name: &str) -> Result<PathBuf, Failure> {
    let path = place.folder.join(name);
    let made = std::fs::create_dir_all(&path);
    made.map_err(|cause| Failure::io("cannot make", &path, &cause)).map(|()| path)
}

/// Starts a contender whose words go to a file.
fn spawn(command: Command, place: &Place<'_>) -> Result<Child, Failure> {
    servers::spawn_logged(command, &log(place.folder))
}

fn log(folder: &Path) -> PathBuf {
    folder.join("contender.log")
}

/// Looks until it serves.
fn wait(
    mut running: Running,
    place: &Place<'_>,
    is_serving: impl Fn() -> bool,
) -> Result<Running, Failure> {
    servers::look_until(&mut running.child, &log(place.folder), is_serving)?;
    Ok(running)
}
