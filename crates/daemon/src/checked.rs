//! Small files of a node that say what they are and carry a checksum.
//!
//! How: one JSON object with the format's name, its version, the content under a name of its own,
//! and the CRC-32C of the content written compactly. Invariant: content that does not match its
//! checksum is never returned. Of each damage a process warns once, however often it is met.
//! Cost: the file in memory, bounded. Not for: the catalog, whose versions differ in form.

use crate::disk_file::is_absent;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Damages that are remembered as said, at most; those beyond are said again and again.
const SAID_MAX: usize = 64;
/// What was said already: which file, and what is wrong with it.
static SAID: Mutex<BTreeSet<(PathBuf, String)>> = Mutex::new(BTreeSet::new());

/// A kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    /// What the file says that it is.
    pub(crate) format: &'static str,
    /// The version that is written and read.
    pub(crate) version: u32,
    /// The name of the content.
    pub(crate) content: &'static str,
    /// Bytes of the file at most.
    pub(crate) bytes_max: u64,
}

impl Checked {
    /// The content of the file at `path`.
    ///
    /// # Errors
    /// Why it cannot be used, as text.
    pub(crate) fn read<T: DeserializeOwned + Serialize>(&self, path: &Path) -> Result<T, String> {
        let bytes = crate::config::read_small(path, self.bytes_max);
        self.content(&bytes.map_err(|cause| cause.to_string())?)
    }

    /// Why the file at `path` cannot be used; none where it can, or is missing.
    pub(crate) fn damage<T: DeserializeOwned + Serialize>(&self, path: &Path) -> Option<String> {
        let cause = self.read::<T>(path).err()?;
        (!is_absent(path)).then_some(cause)
    }

    /// The content of the file at `path`, for one that a node can do without: none where it is
    /// missing, or cannot be used, of which the log says what it costs.
    pub(crate) fn read_or_warn<T: DeserializeOwned + Serialize>(
        &self,
        path: &Path,
        cost: &str,
    ) -> Option<T> {
        let read = self.read(path);
        if let Err(cause) = &read
            && !is_absent(path)
        {
            warn_once(path, cause, cost);
        }
        read.ok()
    }

    /// The content of a file with these bytes.
    ///
    /// # Errors
    /// Why it cannot be used, as text.
    pub(crate) fn content<T: DeserializeOwned + Serialize>(
        &self,
        bytes: &[u8],
    ) -> Result<T, String> {
        let mut file: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|cause| cause.to_string())?;
        let mut field = |name: &str| file.remove(name).ok_or(format!("it has no `{name}`"));
        let (format, version) = (field("format")?, field("version")?);
        if (&format, &version) != (&self.format.into(), &self.version.into()) {
            return Err(format!("it is {format}, version {version}"));
        }
        let (stored, content) = (field("crc32c")?, field(self.content)?);
        if let Some(name) = file.keys().next() {
            return Err(format!("`{name}` is unknown"));
        }
        let content: T = serde_json::from_value(content).map_err(|cause| cause.to_string())?;
        let computed = checksum(&content);
        if stored != computed.as_str() {
            return Err(format!("checksum mismatch: stored {stored}, computed {computed}"));
        }
        Ok(content)
    }

    /// The bytes of a file with this content.
    pub(crate) fn bytes<T: Serialize>(&self, content: &T) -> Vec<u8> {
        let mut file = Map::new();
        file.insert("format".to_owned(), self.format.into());
        file.insert("version".to_owned(), self.version.into());
        file.insert("crc32c".to_owned(), checksum(content).into());
        let content = serde_json::to_value(content).expect("names and numbers are keys");
        file.insert(self.content.to_owned(), content);
        let mut bytes = serde_json::to_vec(&file).expect("names and numbers are keys");
        bytes.push(b'\n');
        bytes
    }
}

/// Has the log say what the damage of a file costs, unless it has said so.
pub(crate) fn warn_once(path: &Path, cause: &str, cost: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let damage = (path.to_owned(), cause.to_owned());
    if said.contains(&damage) {
        return;
    }
    if said.len() < SAID_MAX {
        said.insert(damage);
    }
    tracing::warn!(path = %path.display(), cause, "{cost}");
}

fn checksum<T: Serialize>(content: &T) -> String {
    let compact = serde_json::to_vec(content).expect("names and numbers are keys");
    format!("{:08x}", crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &compact))
}
