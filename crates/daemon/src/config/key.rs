//! Where a volume's key comes from, as it is written: `file:PATH`, `env:NAME`, `command:WORDS`.
//!
//! How: the source is kept, never the key; it is read each time the volume is opened.
//! Invariant: a key file that others may read is refused. A command's words are written into the
//! catalog and shown nowhere else, since they may hold a secret; nor is what was refused as a
//! source, which may be the key itself. Cost: a file, a variable or a process per start. Not for:
//! what the key does; see `layby_cloud`.

mod command;

use super::foreign_owner;
use layby_cloud::Key;
use layby_types::Nanos;
use rustix::fs::OFlags;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes of a key's text at most, so that a wrong path is no flood.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// How a source is written, for hints.
const FORMS: &str = "file:PATH, env:NAME or command:WORDS";

/// Where a volume's key comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A file that only its owner can read.
    File(PathBuf),
    /// A variable of the node's environment.
    Environment(String),
    /// What a command of the shell prints.
    Command(String),
}

impl FromStr for KeySource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("the text names no key; write {FORMS}");
        match text.split_once(':').filter(|(_, rest)| !rest.is_empty()) {
            Some(("file", path)) => Ok(KeySource::File(path.into())),
            Some(("env", name)) => Ok(KeySource::Environment(name.to_owned())),
            Some(("command", words)) => Ok(KeySource::Command(words.to_owned())),
            _ => Err(wrong()),
        }
    }
}

/// What operators are shown: a command without its words.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => write!(f, "file:{}", path.display()),
            KeySource::Environment(name) => write!(f, "env:{name}"),
            KeySource::Command(_) => f.write_str("command"),
        }
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As it is written, for the catalog and for requests; answers take its `Display`.
impl Serialize for KeySource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            KeySource::Command(words) => serializer.collect_str(&format_args!("command:{words}")),
            shown => serializer.collect_str(shown),
        }
    }
}

impl<'de> Deserialize<'de> for KeySource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl utoipa::PartialSchema for KeySource {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .examples([serde_json::Value::from("file:/etc/layby/maps.key")])
            .into()
    }
}
impl utoipa::ToSchema for KeySource {}

impl KeySource {
    /// Longest that a command may take.
    pub const TIME_MAX: Nanos = command::TIME_MAX;

    /// The same source, with a relative file taken from `dir`, the node's directory, whatever the
    /// process's working directory is.
    #[must_use]
    pub fn beside(self, dir: &Path) -> KeySource {
        match self {
            KeySource::File(path) => {
                let path = dir.join(path);
                KeySource::File(std::path::absolute(&path).unwrap_or(path))
            }
            other => other,
        }
    }

    /// The key. Runs the command, where it is one.
    ///
    /// # Errors
    /// A text that says what is wrong, without what was read.
    pub fn read(&self) -> Result<Key, String> {
        self.read_within(KeySource::TIME_MAX)
    }

    /// The same, where a command has less time.
    ///
    /// # Errors
    /// As [`KeySource::read`].
    pub fn read_within(&self, time_max: Nanos) -> Result<Key, String> {
        let text = match self {
            KeySource::File(path) => file(path)?,
            KeySource::Environment(name) => {
                std::env::var(name).map_err(|_| format!("the environment has no `{name}`"))?
            }
            KeySource::Command(words) => {
                let printed = command::run(words, TEXT_BYTES_MAX, time_max)?;
                String::from_utf8(printed).map_err(|_| "the key's command printed no text")?
            }
        };
        Key::parse(&text).ok_or_else(|| {
            format!("`{self}` is no key: 64 hexadecimal digits, as `openssl rand -hex 32` prints")
        })
    }
}

/// A key file's text. What is no regular file is not opened to the end: a pipe's writer may never
/// come, and a device has no end.
fn file(path: &Path) -> Result<String, String> {
    let failed = |cause: std::io::Error| format!("`{}`: {cause}", path.display());
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the kernel's flags are few");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("`{}` is no regular file", path.display()));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "`{0}` can be read by others; `chmod 600 {0}` keeps it to its owner",
            path.display()
        ));
    }
    if let Some(owner) = foreign_owner(&found) {
        return Err(format!("`{}` is not trusted: {owner}", path.display()));
    }
    bounded(&file).map_err(failed)
}

fn bounded(file: &File) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(TEXT_BYTES_MAX as u64).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key is had from each source, and what is wrong is said without the key. Method: a
    /// file of its owner's and one of everybody's, a command, words that are none.
    #[test]
    fn keys_are_read() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("key");
        std::fs::write(&path, "ab".repeat(32)).expect("the test's own file");
        let source: KeySource = format!("file:{}", path.display()).parse().expect("a source");
        let set = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("the test's own file");
        };
        set(0o644);
        assert!(source.read().expect_err("others can read it").contains("chmod 600"));
        set(0o600);
        assert!(source.read().is_ok());
        let printed: KeySource = format!("command:cat {}", path.display()).parse().expect("one");
        assert!(printed.read().is_ok());
        let failing: KeySource = "command:echo secret; exit 3".parse().expect("a source");
        let said = failing.read().expect_err("it fails");
        assert!(said.contains('3') && !said.contains("secret"), "{said}");
        let short: KeySource = "command:echo abcd".parse().expect("a source");
        assert!(short.read().expect_err("too short").contains("64 hexadecimal"));
        for bad in ["", "file:", "/etc/key", "vault:x", "abababab"] {
            let said = bad.parse::<KeySource>().expect_err("it is none");
            assert!(bad.len() < 6 || !said.contains(bad), "{said}");
        }
    }

    /// Goal: a relative key file is the node's directory's, whatever the working directory is.
    /// Method: a configuration with one, and a source of another kind.
    #[test]
    fn relative_files_are_beside_the_node() {
        use crate::config::{Config, Overrides};
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("keys/maps.key");
        let whole = Some(KeySource::File(path));
        let text = "[volume.maps]\nsize = \"1MiB\"\npath = \"s3://b/x\"\n\
                    key = \"file:keys/maps.key\"\n";
        let over = Overrides { dir: Some(folder.path().into()), ..Overrides::default() };
        let config = Config::parse(None, text, &over).expect("good");
        let name: crate::config::Name = "maps".parse().expect("a name");
        assert_eq!(config.volumes[&name].key, whole);
        let kept: KeySource = "env:KEY".parse().expect("a source");
        assert_eq!(kept.clone().beside(folder.path()), kept);
    }

    /// Goal: a command's words are in the catalog and in nothing that is shown. Method: what a
    /// source is written as, each way.
    #[test]
    fn words_are_not_shown() {
        let source: KeySource = "command:vault read secret".parse().expect("a source");
        let written = serde_json::to_string(&source).expect("a text");
        assert_eq!(written, "\"command:vault read secret\"");
        assert_eq!(serde_json::from_str::<KeySource>(&written).ok(), Some(source.clone()));
        for shown in [format!("{source}"), format!("{source:?}")] {
            assert_eq!(shown, "command");
        }
    }

    /// Goal: a pipe without a writer holds nothing up. Method: a named pipe as key file.
    #[test]
    fn pipes_are_no_key_files() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let said = KeySource::File(path).read().expect_err("nobody writes");
        assert!(said.contains("no regular file"), "{said}");
    }
}
