//! Where a volume's key comes from, as it is written: `file:PATH`, `env:NAME`, `command:WORDS`.
//!
//! How: the source is kept, never the key; it is read each time the volume is opened.
//! Invariant: a key file that others may read is refused. Cost: a file, a variable or a process
//! per start. Not for: what the key does; see `layby_cloud`.

use super::values::written_as_text;
use layby_cloud::Key;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Bytes of a key's text at most, so that a wrong path is no flood.
const TEXT_BYTES_MAX: u64 = 4 << 10;

/// Where a volume's key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let wrong = || format!("`{text}` names no key; write file:PATH, env:NAME or command:WORDS");
        match text.split_once(':').filter(|(_, rest)| !rest.is_empty()) {
            Some(("file", path)) => Ok(KeySource::File(path.into())),
            Some(("env", name)) => Ok(KeySource::Environment(name.to_owned())),
            Some(("command", words)) => Ok(KeySource::Command(words.to_owned())),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => write!(f, "file:{}", path.display()),
            KeySource::Environment(name) => write!(f, "env:{name}"),
            KeySource::Command(words) => write!(f, "command:{words}"),
        }
    }
}

written_as_text!(KeySource, "file:/etc/layby/maps.key");

impl KeySource {
    /// The key. Runs the command, where it is one.
    ///
    /// # Errors
    /// A text that says what is wrong, without what was read.
    pub fn read(&self) -> Result<Key, String> {
        let text = match self {
            KeySource::File(path) => {
                let failed = |cause| format!("`{}`: {cause}", path.display());
                let file = File::open(path).map_err(failed)?;
                let mode = file.metadata().map_err(failed)?.permissions().mode();
                if mode & 0o077 != 0 {
                    return Err(format!(
                        "`{0}` can be read by others; `chmod 600 {0}` keeps it to its owner",
                        path.display()
                    ));
                }
                let mut text = String::new();
                file.take(TEXT_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
                text
            }
            KeySource::Environment(name) => {
                std::env::var(name).map_err(|_| format!("the environment has no `{name}`"))?
            }
            KeySource::Command(words) => run(words)?,
        };
        Key::parse(&text).ok_or_else(|| {
            format!("`{self}` is no key: 64 hexadecimal digits, as `openssl rand -hex 32` prints")
        })
    }
}

fn run(words: &str) -> Result<String, String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(words).stdin(Stdio::null()).stderr(Stdio::piped());
    let done = shell.output().map_err(|cause| format!("cannot run `{words}`: {cause}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("`{words}` ended with {}: {}", done.status, said.trim()));
    }
    String::from_utf8(done.stdout).map_err(|_| format!("`{words}` printed no text"))
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
        assert!(said.contains('3') && !said.contains("secret\n"), "{said}");
        let short: KeySource = "command:echo abcd".parse().expect("a source");
        assert!(short.read().expect_err("too short").contains("64 hexadecimal"));
        for bad in ["", "file:", "/etc/key", "vault:x"] {
            assert!(bad.parse::<KeySource>().is_err(), "{bad}");
        }
    }
}
