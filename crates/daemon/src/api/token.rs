//! The tokens that let changes in through the HTTP address.
//!
//! How: a file of the node's user, a token per line, with a name before it for the audit log.
//! Invariant: a file that others may read is refused; how long a comparison takes says nothing of
//! the token. Cost: read once per start; a pass over each token per change.
//! Not for: the unix socket, whose peers the kernel names.

use crate::config::foreign_owner;
use crate::error::{Report, ReportKind};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// Tokens at most.
const TOKENS_MAX: usize = 64;
/// Characters of a token at least: sixteen random bytes in hexadecimal.
const TOKEN_BYTES_MIN: usize = 32;
/// What a token without a name is called.
const NAME_DEFAULT: &str = "token";
const HINT: &str = "`umask 077; openssl rand -hex 32 > FILE` makes one; a line may also be \
                    `NAME TOKEN`";

/// A token and its name.
struct Token {
    name: String,
    secret: Vec<u8>,
}

/// All tokens of a node.
#[derive(Default)]
pub struct Tokens(Vec<Token>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Reads a file of tokens.
    ///
    /// # Errors
    /// A report when it cannot be read, others may read it, or it holds no good token.
    pub fn load(path: &Path) -> Result<Tokens, Report> {
        let error = || format!("cannot use the tokens in `{}`", path.display());
        let state = "nothing was started; stored data is untouched";
        let text = read(path).map_err(|(kind, cause)| {
            Report::new(kind, error()).cause(cause).state(state).hint(HINT)
        })?;
        parse(&text).map_err(|cause| {
            Report::new(ReportKind::Invalid, error()).cause(cause).state(state).hint(HINT)
        })
    }

    /// Whether there are any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of a token.
    #[must_use]
    pub fn name_of(&self, given: &str) -> Option<&str> {
        let mut found = None;
        for token in &self.0 {
            if is_equal(&token.secret, given.as_bytes()) {
                found = Some(token.name.as_str());
            }
        }
        found
    }
}

/// The file's text, where nobody but its owner can read it.
fn read(path: &Path) -> Result<String, (ReportKind, String)> {
    let failed = |cause: std::io::Error| (ReportKind::Invalid, cause.to_string());
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let flags = i32::try_from(flags).expect("the kernel's flags are few");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let denied = |cause: String| Err((ReportKind::Denied, cause));
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return denied(format!("it is no regular file of at most {FILE_BYTES_MAX} bytes"));
    }
    if found.mode() & 0o077 != 0 {
        return denied("other users can read or write it; `chmod 600` keeps them out".to_owned());
    }
    if let Some(owner) = foreign_owner(&found) {
        return denied(owner);
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn parse(text: &str) -> Result<Tokens, String> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, secret) = line.split_once(char::is_whitespace).unwrap_or((NAME_DEFAULT, line));
        let secret = secret.trim();
        if secret.len() < TOKEN_BYTES_MIN || !secret.chars().all(|c| c.is_ascii_graphic()) {
            return Err(format!(
                "line {number} has no token of {TOKEN_BYTES_MIN} characters or more, without blanks"
            ));
        }
        let name = name.escape_debug().to_string();
        let secret = secret.as_bytes().to_vec();
        // The audit log would name the one for the other.
        match tokens.iter_mut().find(|known: &&mut Token| known.secret == secret) {
            Some(known) if known.name != name => known.name = format!("{}|{name}", known.name),
            Some(_) => {}
            None => tokens.push(Token { name, secret }),
        }
    }
    match tokens.len() {
        0 => Err("it holds no token".to_owned()),
        1..=TOKENS_MAX => Ok(Tokens(tokens)),
        count => Err(format!("{count} tokens are more than {TOKENS_MAX}")),
    }
}

/// Whether two texts are equal, in a time that depends on the length of `given` alone.
fn is_equal(secret: &[u8], given: &[u8]) -> bool {
    let mut differing = u8::from(secret.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        let own = secret[index % secret.len()];
        differing = black_box(differing | (own ^ byte));
    }
    differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Goal: a token is known by its text alone. Method: the text, its parts and its like.
    #[test]
    fn tokens_are_compared_whole() {
        let (one, two) = ("a1".repeat(20), "b2".repeat(16));
        let tokens = parse(&format!("# who\nops {one}\n\n{two}\n")).expect("good");
        assert_eq!((tokens.name_of(&one), tokens.name_of(&two)), (Some("ops"), Some("token")));
        let long = format!("{one}{one}");
        for bad in ["", &one[..39], &long, &two[1..], "ops", &one.replace('1', "2")] {
            assert_eq!(tokens.name_of(bad), None, "{bad}");
        }
        assert_eq!(Tokens::default().name_of(""), None);
    }

    /// Goal: a file that is not its owner's alone, or holds no secret, is refused and not quoted.
    /// Method: modes and texts.
    #[test]
    fn bad_files_are_refused() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("tokens");
        let load = |text: &str, mode| {
            std::fs::write(&path, text).expect("the test's own file");
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("the test's own file");
            Tokens::load(&path)
        };
        let good = "a1".repeat(20);
        assert!(load(&good, 0o600).is_ok() && load(&good, 0o400).is_ok());
        for mode in [0o640, 0o604, 0o620, 0o666] {
            assert_eq!(load(&good, mode).expect_err("open").kind, ReportKind::Denied, "{mode:o}");
        }
        for bad in ["", "# nothing\n", "short", "ops short", &format!("ops {good} {good}")] {
            let refused = load(bad, 0o600).expect_err("no token");
            assert!(bad.len() < 5 || !refused.to_string().contains(bad), "{refused}");
        }
        let twice = load(&format!("ops {good}\nci {good}\n"), 0o600).expect("one token");
        assert_eq!(twice.0.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["ops|ci"]);
        assert!(load(&format!("ops {good}\nops {good}\n"), 0o600).is_ok(), "the same line twice");
        assert!(Tokens::load(folder.path()).is_err() && Tokens::load(Path::new("/none")).is_err());
    }
}
