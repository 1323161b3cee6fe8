//! ZeroFS as a peer: where it is, how it is started, and its volumes: files over 9P2000.L.
//!
//! How: a program that `cargo install` puts below the user's cache (AGPL: it is run, never used as
//! code). It serves each file of its folder `.nbd` as an NBD export, so a volume is made over 9P.
//! Invariant: nothing is started here; who starts it ends it. Cost: three messages per volume.
//! Not for: tests.

use crate::process::{self, Failure};
use crate::tools;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The version that the figures are of.
const FOLDER: &str = "zerofs-0.19.1";

/// What a ZeroFS is to be.
pub(super) struct Wanted<'a> {
    /// Where its configuration and its sockets lie.
    pub(super) folder: &'a Path,
    pub(super) cache: &'a Path,
    /// Of the cache on disk, and of the one in memory.
    pub(super) cache_bytes: [u64; 2],
    pub(super) url: &'a str,
    /// A further section of the configuration, for the store.
    pub(super) store: &'a str,
}

/// Where it listens.
pub(super) struct Sockets {
    pub(super) nbd: PathBuf,
    pub(super) ninep: PathBuf,
}

/// The program, or a line of `entry` that says how to get it.
pub(super) fn binary(entry: &str) -> Option<PathBuf> {
    let home = tools::folder().join(FOLDER);
    let binary = home.join("bin/zerofs");
    if binary.exists() {
        return Some(binary);
    }
    process::say(&format!(
        "{entry}: skipped: ZeroFS is not installed (`cargo install zerofs --version {} --locked \
         --root {}`)",
        FOLDER.trim_start_matches("zerofs-"),
        home.display()
    ));
    None
}

/// Writes its configuration; the words that start it with that, and where it will listen.
pub(super) fn configure(wanted: &Wanted<'_>) -> Result<([String; 3], Sockets), Failure> {
    let sockets =
        Sockets { nbd: wanted.folder.join("nbd.sock"), ninep: wanted.folder.join("9p.sock") };
    // A socket of the life before would be taken for this one's.
    let _ = (std::fs::remove_file(&sockets.nbd), std::fs::remove_file(&sockets.ninep));
    let [disk, memory] = wanted.cache_bytes.map(|bytes| bytes as f64 / 1e9);
    let config = format!(
        "[cache]\ndir = \"{}\"\ndisk_size_gb = {disk}\nmemory_size_gb = {memory}\n\
         [storage]\nurl = \"{}\"\nencryption_password = \"not-a-secret\"\n{}\
         [servers.nbd]\nunix_socket = \"{}\"\n[servers.ninep]\nunix_socket = \"{}\"\n",
        wanted.cache.display(),
        wanted.url,
        wanted.store,
        sockets.nbd.display(),
        sockets.ninep.display()
    );
    let file = wanted.folder.join("zerofs.toml");
    process::write(&file, &config)?;
    Ok((["run".into(), "--config".into(), file.display().to_string()], sockets))
}

/// Whether it listens on both.
pub(super) fn is_serving(sockets: &Sockets) -> bool {
    [&sockets.nbd, &sockets.ninep].iter().all(|socket| UnixStream::connect(socket).is_ok())
}

/// The address of one of its exports.
pub(super) fn uri(sockets: &Sockets, volume: &str) -> String {
    format!("nbd+unix:///{volume}?socket={}", sockets.nbd.display())
}

// ---- 9P2000.L ----

const VERSION: u8 = 100;
const ATTACH: u8 = 104;
const WALK: u8 = 110;
const CREATE: u8 = 14;
const SET_ATTRIBUTES: u8 = 26;
const NO_TAG: u16 = u16::MAX;
const NO_FID: u32 = u32::MAX;
/// The size is what is set.
const SIZE_VALID: u32 = 8;

/// Makes `.nbd/NAME` for each name with its bytes, which are then exports of those names.
pub(super) fn make_volumes(sockets: &Sockets, volumes: &[(&str, u64)]) -> Result<(), Failure> {
    let failed = |cause| Failure::io("cannot make ZeroFS's volumes over", &sockets.ninep, &cause);
    let mut stream = UnixStream::connect(&sockets.ninep).map_err(failed)?;
    let mut ask = |kind: u8, tag: u16, body: &[&[u8]]| {
        exchange(&mut stream, kind, tag, &body.concat()).map_err(failed)
    };
    let root = 0_u32.to_le_bytes();
    ask(VERSION, NO_TAG, &[&65536_u32.to_le_bytes(), &text("9P2000.L")])?;
    ask(ATTACH, 0, &[&root, &NO_FID.to_le_bytes(), &text("root"), &text("/"), &[0; 4]])?;
    for (handle, (name, bytes)) in (1_u32..).zip(volumes) {
        // Walked to the folder, then the created file's.
        let handle = handle.to_le_bytes();
        ask(WALK, 0, &[&root, &handle, &1_u16.to_le_bytes(), &text(".nbd")])?;
        let (flags, mode) = (2_u32.to_le_bytes(), 0o644_u32.to_le_bytes());
        ask(CREATE, 0, &[&handle, &text(name), &flags, &mode, &[0; 4]])?;
        // Mode and owners are not valid here, and times neither.
        let (valid, size) = (SIZE_VALID.to_le_bytes(), bytes.to_le_bytes());
        ask(SET_ATTRIBUTES, 0, &[&handle, &valid, &[0; 12], &size, &[0; 32]])?;
    }
    Ok(())
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
