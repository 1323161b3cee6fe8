//! Volumes' keys as the node has them: which commands may run, and what they printed ahead.
//!
//! How: a command runs only where the configuration of this start has the same words. At a start
//! all of them run at once, within [`START_TIME_MAX`], and a volume that is tried again has its own
//! run before it takes a turn, so that one that hangs holds up its own volume.
//! Invariant: a catalog alone runs nothing. Keys that were fetched ahead are dropped when the start
//! is done with them.
//! Cost: a process per command, [`WORKERS_MAX`] at once. Not for: how a key is read; see
//! `config::KeySource`.

use crate::config::{Config, KeySource};
use layby_cloud::Key;
use layby_types::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Longest that a start waits for all commands together; a volume whose key comes later is served
/// then.
const START_TIME_MAX: Nanos = Nanos::from_secs(4);
/// Commands that run at once at a start; the others' volumes are served later.
const WORKERS_MAX: usize = 64;
const NOT_CONFIGURED: &str = "its key comes from a command, and the configuration has no such \
                              command for a volume any more";

type Fetched = BTreeMap<String, Result<Key, String>>;

/// The node's keys.
#[derive(Default)]
pub(super) struct Keys {
    /// The words of the configuration.
    commands: BTreeSet<String>,
    fetched: Mutex<Fetched>,
}

impl Keys {
    pub(super) fn of(config: &Config) -> Keys {
        let keys = config.volumes.values().filter_map(|volume| volume.key.as_ref());
        let commands = keys.filter_map(words).map(str::to_owned).collect();
        Keys { commands, fetched: Mutex::default() }
    }

    fn fetched(&self) -> MutexGuard<'_, Fetched> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a volume that has this source. Runs a command, unless it was fetched ahead.
    pub(super) fn read(&self, source: Option<&KeySource>) -> Result<Option<Key>, String> {
        let Some(source) = source else { return Ok(None) };
        let Some(words) = words(source) else { return source.read().map(Some) };
        if !self.commands.contains(words) {
            return Err(NOT_CONFIGURED.to_owned());
        }
        let fetched = self.fetched().get(words).cloned();
        fetched.unwrap_or_else(|| source.read()).map(Some)
    }

    /// Runs all commands of the configuration at once, and keeps what they print until
    /// [`Keys::forget`].
    pub(super) fn fetch(&self) {
        std::thread::scope(|scope| {
            for words in self.commands.iter().take(WORKERS_MAX) {
                scope.spawn(|| {
                    let key = KeySource::Command(words.clone()).read_within(START_TIME_MAX);
                    self.fetched().insert(words.clone(), key);
                });
            }
        });
        let late = self.commands.iter().skip(WORKERS_MAX);
        let wait = || Err("its key's command runs after the start".to_owned());
        self.fetched().extend(late.map(|words| (words.clone(), wait())));
    }

    /// The next [`Keys::read`] runs its command again.
    pub(super) fn forget(&self) {
        self.fetched().clear();
    }

    /// Runs the command of one volume, and keeps what it prints until [`Keys::drop_one`].
    pub(super) fn fetch_one(&self, source: Option<&KeySource>) {
        let Some(words) = source.and_then(words) else { return };
        if self.commands.contains(words) {
            let key = KeySource::Command(words.to_owned()).read();
            self.fetched().insert(words.to_owned(), key);
        }
    }

    /// What was fetched for one volume goes.
    pub(super) fn drop_one(&self, source: Option<&KeySource>) {
        if let Some(words) = source.and_then(words) {
            self.fetched().remove(words);
        }
    }
}

fn words(source: &KeySource) -> Option<&str> {
    match source {
        KeySource::Command(words) => Some(words),
        KeySource::File(_) | KeySource::Environment(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    /// Goal: only commands of the configuration run, once per fetch. Method: a configured command
    /// that appends to a file and prints a key, and one that is in no configuration.
    #[test]
    fn only_configured_commands_run() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let count = folder.path().join("count");
        let key = "0f".repeat(32);
        let words = format!("echo x >> {}; echo {key}", count.display());
        let text = format!(
            "[volume.a]\nsize = \"1MiB\"\npath = \"file:///x\"\nkey = \"command:{words}\"\n"
        );
        let over = Overrides { dir: Some(folder.path().into()), ..Overrides::default() };
        let keys = Keys::of(&Config::parse(None, &text, &over).expect("good"));
        let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
        let own = KeySource::Command(words.clone());
        let other = KeySource::Command(format!("{words}; true"));
        assert!(keys.read(Some(&other)).expect_err("not configured").contains("configuration"));
        assert_eq!(runs(), 0);
        keys.fetch();
        for _ in 0..2 {
            assert!(matches!(keys.read(Some(&own)), Ok(Some(_))));
        }
        assert_eq!(runs(), 1);
        keys.forget();
        assert!(matches!(keys.read(Some(&own)), Ok(Some(_))));
        keys.fetch_one(Some(&own));
        assert!(matches!(keys.read(Some(&own)), Ok(Some(_))));
        keys.drop_one(Some(&own));
        assert_eq!(runs(), 3);
        assert!(matches!(keys.read(None), Ok(None)));
    }
}
