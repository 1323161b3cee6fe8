//! Where the keys of an encrypted level come from, as it is written.
//!
//! How: `key` has the form of a volume's; `key_previous` is the one that the level had before, for
//! the start that changes it.
//! Invariant: only a level of kind ssd has keys. Cost: none. Not for: reading them, or what is
//! encrypted by them; see [`crate::levels::unlock`].

use super::checks::{Place, Problem};
use super::{KeySource, Kind};
use std::path::Path;

/// Where the operator's keys of a level come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelKeys {
    /// The one that counts.
    pub key: KeySource,
    /// The one that the level had before, while it is changed.
    pub previous: Option<KeySource>,
}

impl LevelKeys {
    /// As written of a level in its table; a relative file is the node's directory's.
    pub(super) fn read(
        dir: &Path,
        (index, kind): (usize, Kind),
        key: Option<KeySource>,
        previous: Option<KeySource>,
    ) -> Result<Option<LevelKeys>, Problem> {
        let problem =
            |key, cause: &str, hint: &str| Err(Problem::new(Place::Level(index), key, cause, hint));
        match (kind, key, previous) {
            (_, None, None) => Ok(None),
            (Kind::Ssd, Some(key), previous) => Ok(Some(LevelKeys {
                key: key.beside(dir),
                previous: previous.map(|previous| previous.beside(dir)),
            })),
            (Kind::Ssd, None, Some(_)) => {
                let cause = "there is no `key` that would follow it";
                problem("key_previous", cause, "write the new `key`, or leave this out")
            }
            (Kind::Memory | Kind::Nvm, key, _) => {
                let name = if key.is_some() { "key" } else { "key_previous" };
                let hint = "leave it out; an NVM level on a disk is encrypted by what lies below \
                            its file, such as dm-crypt";
                problem(name, "only a level of kind ssd is encrypted", hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};

    fn parse(kind: &str, keys: &str) -> Result<Config, crate::error::Report> {
        let text =
            format!("[[level]]\nname = \"l\"\nkind = \"{kind}\"\nsize = \"64MiB\"\n{keys}\n");
        let over = Overrides { dir: Some("/node".into()), ..Overrides::default() };
        Config::parse(Some("layby.toml".into()), &text, &over)
    }

    /// Goal: a level's keys are taken from the node's directory, said of flash alone, and never
    /// shown where they are written in the place of a source. Method: good tables and bad ones.
    #[test]
    fn levels_have_keys() {
        let config = parse("ssd", "key = \"file:k\"\nkey_previous = \"env:OLD\"").expect("good");
        let keys = config.levels[0].keys.as_ref().expect("it has some");
        assert_eq!(keys.key.to_string(), "file:/node/k");
        assert_eq!(keys.previous.as_ref().map(ToString::to_string), Some("env:OLD".into()));
        assert_eq!(parse("ssd", "").expect("good").levels[0].keys, None);
        for (kind, keys, line) in [
            ("nvm", "key = \"file:k\"", "line 5: `key…`"),
            ("ssd", "key_previous = \"file:k\"", "line 5: `key_previous…`"),
            ("nvm", "key_previous = \"file:k\"", "line 5: `key_previous…`"),
        ] {
            let refused = parse(kind, keys).expect_err(keys);
            assert!(refused.cause.starts_with(line), "{refused}");
        }
        let secret = "0f".repeat(32);
        for name in ["key", "key_previous"] {
            let refused = parse("ssd", &format!("key = \"env:K\"\n{name} = \"{secret}\""));
            let refused = refused.expect_err("it names no source");
            assert!(!format!("{refused}").contains(&secret), "{refused}");
        }
    }
}
