//! The keys of encrypted levels: how a level's own key is kept, and had at a start.
//!
//! How: an encrypted level has a key of its own, drawn when it is made. The catalog keeps it sealed
//! by the operator's key, which the configuration names the source of, so that the operator's key
//! can be changed without touching the level. What tells the operator's key from others stands
//! beside it. All this happens before anything of a start is made or changed.
//! Invariant: a level's own key is on no disk in clear, nor shown; a level is read and written with
//! the key that it was made with, or not at all. A level that is lost (see [`crate::degraded`])
//! needs none: it stays lost for this start, also where its file comes back meanwhile. A new
//! level's key is in the catalog, durably, before any of its bytes is written.
//! Cost: a file, a variable or a process per start. Not for: encrypting, which the engine does
//! ([`layby_engine::io::SectorCipher`]); volumes' keys, see `cloud::keys`.

use crate::catalog::{Catalog, EncryptionRecord, LevelRecord};
use crate::config::{Config, Format, KeySource, LevelConfig, LevelKeys, Name};
use crate::control::View;
use crate::error::{Report, ReportKind};
use crate::plan::part_bytes;
use layby_cloud::Key;
use layby_engine::io::{DATA_KEY_BYTES, SectorCipher};
use rustix::rand::GetRandomFlags;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Levels with their keys at hand, in the configuration's order.
pub(crate) struct Unlocked {
    levels: Vec<Opened>,
    /// Levels that are lost, whose keys cannot be had; the catalog keeps what it has of these.
    locked: BTreeSet<Name>,
    /// What the operator should know.
    pub(crate) notes: Vec<String>,
}

impl Unlocked {
    /// The view of a node whose levels are these.
    pub(crate) fn apply(&self, view: &mut View) {
        let records = view.catalog.levels.iter_mut().zip(&mut view.layout.ciphers);
        for ((record, place), level) in records.zip(&self.levels) {
            if self.locked.contains(&record.name) {
                continue;
            }
            let (kept, cipher) = level.clone().unzip();
            (record.encryption, *place) = (kept, cipher);
        }
        view.layout.locked.clone_from(&self.locked);
    }
}

/// What the catalog is to keep of an encrypted level, and its cipher.
type Opened = Option<(EncryptionRecord, Arc<SectorCipher>)>;

/// Has the keys of all levels that are encrypted, of a node that is `found` or is to be made. May
/// take long: a key may come from a command.
///
/// # Errors
/// A report where a key cannot be had or is another one, or a level was made the other way, and
/// the level is there.
pub(crate) fn unlock(config: &Config, found: Option<&Catalog>) -> Result<Unlocked, Report> {
    let is_made = found.is_some_and(|found| found.is_started && !found.is_formatting);
    let is_bound = is_made && config.format != Format::All;
    let (levels, locked, notes) = (Vec::new(), BTreeSet::new(), Vec::new());
    let mut unlocked = Unlocked { levels, locked, notes };
    for level in &config.levels {
        let same = |record: &&LevelRecord| record.name == level.name && record.kind == level.kind;
        let record = found.and_then(|found| found.levels.iter().find(same));
        let opened = unlock_level((config.format, is_bound), level, record, &mut unlocked.notes);
        let opened = match opened {
            Ok(opened) => opened,
            // A strict node does not start without a level.
            Err(report) if config.is_strict || !is_bound || !is_lost(level, record, found) => {
                return Err(report);
            }
            Err(report) => {
                unlocked.notes.push(without_level(level, &report));
                unlocked.locked.insert(level.name.clone());
                None
            }
        };
        unlocked.levels.push(opened);
    }
    unlocked.notes.extend(clear_beside(config));
    Ok(unlocked)
}

fn unlock_level(
    (format, is_bound): (Format, bool),
    level: &LevelConfig,
    record: Option<&LevelRecord>,
    notes: &mut Vec<String>,
) -> Result<Opened, Report> {
    let kept = record.and_then(|record| record.encryption.as_ref());
    Ok(match (&level.keys, kept) {
        (None, None) => None,
        (None, Some(kept)) if is_bound => return Err(without_key(level, kept)),
        (None, Some(_)) => None,
        (Some(keys), None) if is_bound && record.is_some() => {
            return Err(not_encrypted(level, keys));
        }
        (Some(keys), None) => Some(draw(level, keys)?),
        // What was written under a key that others may know is not joined by what is new.
        (Some(keys), Some(_)) if format == Format::All => Some(draw(level, keys)?),
        (Some(keys), Some(kept)) => match open(level, keys, kept, notes) {
            // Nothing was ever stored under that key, or it is to be given up.
            Err(Refused::Another(_)) if !is_bound => Some(draw(level, keys)?),
            Err(Refused::Another(report) | Refused::Unread(report)) => return Err(report),
            Ok(opened) => Some(opened),
        },
    })
}

/// Whether a level that the node has had is missing, gone or blank.
fn is_lost(level: &LevelConfig, record: Option<&LevelRecord>, found: Option<&Catalog>) -> bool {
    let (Some(path), Some(record), Some(found)) = (&level.path, record, found) else {
        return false;
    };
    let part = part_bytes(record.size.0, found.shards, record.segment.map(|size| size.0));
    let bases = (0..found.shards).map(|shard| part * u64::from(shard));
    super::loss_of(path, &bases.collect::<Vec<u64>>()).is_some()
}

/// What a start does about a level that is lost, and its key too.
fn without_level(level: &LevelConfig, report: &Report) -> String {
    format!(
        "level `{}` is not there, and cannot be unlocked: {}; the node starts without the level, \
         and uses it again only with its own key, or made anew by --format",
        level.name, report.cause
    )
}

/// Has the key of a level for `layby check`.
///
/// # Errors
/// A report where its key cannot be had or is another one.
pub(crate) fn cipher_of(
    level: &Name,
    kept: &EncryptionRecord,
) -> Result<Arc<SectorCipher>, Report> {
    let unknown = |cause: String| {
        Report::new(ReportKind::Invalid, format!("cannot check level `{level}`"))
            .cause(cause)
            .state("nothing was changed, and whether the level is sound is not known")
            .hint(format!(
                "the level is encrypted: have its key where the node's last start had it \
                 (`{}`), in this command's environment too",
                kept.key
            ))
    };
    let key = kept.key.read().map_err(unknown)?;
    if key.check() != kept.check {
        return Err(unknown(another(kept, &kept.key)));
    }
    data_key(level, &key, kept).ok_or_else(|| unknown(damaged()))
}

/// Why a level's key is not had.
enum Refused {
    /// The operator's key cannot be read.
    Unread(Report),
    /// It is not the one that sealed.
    Another(Report),
}

/// The level's own key, by the operator's; where that is changed, the record to keep is another.
fn open(
    level: &LevelConfig,
    keys: &LevelKeys,
    kept: &EncryptionRecord,
    notes: &mut Vec<String>,
) -> Result<(EncryptionRecord, Arc<SectorCipher>), Refused> {
    let key = read(level, &keys.key).map_err(Refused::Unread)?;
    let is_sealing = |key: &Key| key.check() == kept.check;
    let broken = || Refused::Unread(refused(level, damaged()).hint(RESTORE_CATALOG));
    if is_sealing(&key) {
        let cipher = data_key(&level.name, &key, kept).ok_or_else(broken)?;
        return Ok((EncryptionRecord { key: keys.key.clone(), ..kept.clone() }, cipher));
    }
    let other = |source| Refused::Another(refused(level, another(kept, source)).hint(GIVE_KEY));
    let Some(source) = &keys.previous else { return Err(other(&keys.key)) };
    let previous = read(level, source).map_err(Refused::Unread)?;
    if !is_sealing(&previous) {
        return Err(other(source));
    }
    let bytes = unsealed(&level.name, &previous, kept).ok_or_else(broken)?;
    let record = sealed(&level.name, &keys.key, &key, &bytes).map_err(Refused::Unread)?;
    notes.push(format!(
        "level `{}` has the key of `{}` from now on; `key_previous` can go, and its key is of use \
         for older copies of the catalog alone",
        level.name, keys.key
    ));
    Ok((record, Arc::new(SectorCipher::new(&bytes))))
}

/// A new level's own key.
fn draw(
    level: &LevelConfig,
    keys: &LevelKeys,
) -> Result<(EncryptionRecord, Arc<SectorCipher>), Report> {
    let key = read(level, &keys.key)?;
    let mut bytes = [0; DATA_KEY_BYTES];
    fill_random(&mut bytes)?;
    let record = sealed(&level.name, &keys.key, &key, &bytes)?;
    Ok((record, Arc::new(SectorCipher::new(&bytes))))
}

fn read(level: &LevelConfig, source: &KeySource) -> Result<Key, Report> {
    source.read().map_err(|cause| {
        let kind = match source {
            // A service of keys may answer later, and a mount may come.
            KeySource::Command(_) => ReportKind::Failure,
            KeySource::File(path) if !path.exists() => ReportKind::NotFound,
            KeySource::File(_) | KeySource::Environment(_) => ReportKind::Invalid,
        };
        Report { kind, ..refused(level, cause).hint(GIVE_KEY) }
    })
}

fn data_key(level: &Name, key: &Key, kept: &EncryptionRecord) -> Option<Arc<SectorCipher>> {
    unsealed(level, key, kept).map(|bytes| Arc::new(SectorCipher::new(&bytes)))
}

fn unsealed(level: &Name, key: &Key, kept: &EncryptionRecord) -> Option<[u8; DATA_KEY_BYTES]> {
    key.open_secret(&sealed_name(level), &kept.sealed)?.try_into().ok()
}

fn sealed(
    level: &Name,
    source: &KeySource,
    key: &Key,
    bytes: &[u8; DATA_KEY_BYTES],
) -> Result<EncryptionRecord, Report> {
    let mut drawn = Ok(());
    let sealed = key.seal_secret(&sealed_name(level), bytes, |nonce| {
        drawn = std::mem::replace(&mut drawn, Ok(())).and_then(|()| fill_random(nonce));
    });
    drawn?;
    Ok(EncryptionRecord { key: source.clone(), check: key.check(), sealed })
}

/// What a sealed key is bound to, so that no other level's is taken for it.
fn sealed_name(level: &Name) -> String {
    format!("key of level {level}")
}

fn fill_random(bytes: &mut [u8]) -> Result<(), Report> {
    let failed = |cause: &std::io::Error| {
        Report::from_io("cannot draw a level's key", cause)
            .state("nothing was written")
            .hint("start the node where getrandom(2) is allowed")
    };
    // The kernel fills up to 256 bytes whole.
    match rustix::rand::getrandom(&mut *bytes, GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(failed(&std::io::ErrorKind::UnexpectedEof.into())),
        Err(errno) => Err(failed(&errno.into())),
    }
}

const GIVE_KEY: &str = "have the level's key where `key` of its [[level]] says; where the key was \
                        changed, name the one before by `key_previous` for one start; where it is \
                        lost for good, so is what the level holds: move its file away to start \
                        without the level";
const RESTORE_CATALOG: &str = "put the newest whole catalog.json of this node back";
/// How a level becomes encrypted, or ceases to be.
const MOVE: &str = "to change that: stop the node once nothing is dirty (`layby volume drain`), \
                    remove the level's file or erase its device, and start once with --format";

fn refused(level: &LevelConfig, cause: String) -> Report {
    let path = level.path.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    Report::new(ReportKind::Invalid, format!("cannot unlock level `{}` (`{path}`)", level.name))
        .cause(cause)
        .state("nothing was started or changed; the level is as it was")
}

fn another(kept: &EncryptionRecord, source: &KeySource) -> String {
    format!("`{source}` has another key than the level's, whose check value is {}", kept.check)
}

fn damaged() -> String {
    "what the catalog keeps of the level's key is damaged: the right key does not open it"
        .to_owned()
}

fn without_key(level: &LevelConfig, kept: &EncryptionRecord) -> Report {
    refused(level, "it is encrypted, and its [[level]] names no `key`".to_owned())
        .hint(format!("write its `key` (it was `{}`); {MOVE}", kept.key))
}

fn not_encrypted(level: &LevelConfig, keys: &LevelKeys) -> Report {
    let cause = format!("it was made without encryption, and `key` is `{}`", keys.key);
    refused(level, cause).hint(format!("leave `key` out; {MOVE}"))
}

/// A line for each persistent level that is clear beside an encrypted one.
fn clear_beside(config: &Config) -> impl Iterator<Item = String> {
    let is_any_encrypted = config.levels.iter().any(|level| level.keys.is_some());
    let is_clear = move |level: &&LevelConfig| {
        is_any_encrypted && level.path.is_some() && level.keys.is_none()
    };
    config.levels.iter().filter(is_clear).map(|level| {
        format!("level `{}` is not encrypted: what it holds is clear on its device", level.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use tempfile::TempDir;

    const ONE: &str = "1f";
    const OTHER: &str = "2f";

    fn put_key(dir: &Path, name: &str, pair: &str) {
        let path = dir.join(name);
        std::fs::write(&path, pair.repeat(32)).expect("the test's own folder");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("the test's own file");
    }

    fn config(dir: &Path, keys: &str, format: Format) -> Config {
        let text = format!("[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n{keys}\n");
        let over = Overrides { dir: Some(dir.into()), ..Overrides::default() };
        let mut config = Config::parse(None, &text, &over).expect("a good text");
        config.format = format;
        config
    }

    /// A catalog of a node that has run with what was unlocked.
    fn catalog(config: &Config, unlocked: &Unlocked) -> Catalog {
        let homes = crate::homes::Homes::new(&config.dir, None);
        let prepared = crate::assembly::prepare(config, None, &homes).expect("a good node");
        let mut view = prepared.view;
        unlocked.apply(&mut view);
        assert_eq!(
            view.layout.ciphers.iter().flatten().count(),
            unlocked.levels.iter().flatten().count()
        );
        let text = serde_json::to_string(&view.catalog.levels).expect("a text");
        let levels = serde_json::from_str(&text).expect("it was just written");
        Catalog { is_started: true, levels, ..view.catalog }
    }

    /// Makes the level's file as one that has run: not blank.
    fn put_level(config: &Config) {
        let path = config.levels[0].path.as_ref().expect("an SSD level has one");
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the test's own folder");
        std::fs::write(path, [7; 4096]).expect("the test's own folder");
    }

    /// The view of a start of a node that has run, with what was unlocked.
    fn view(config: &Config, found: &Catalog, unlocked: &Unlocked) -> View {
        let homes = crate::homes::Homes::new(&config.dir, None);
        let prepared = crate::assembly::prepare(config, Some(found.clone()), &homes);
        let mut view = prepared.expect("the same node").view;
        unlocked.apply(&mut view);
        view
    }

    /// Whether two ciphers have one key.
    fn are_same(one: &SectorCipher, other: &SectorCipher) -> bool {
        let sealed = |cipher: &SectorCipher| {
            let mut bytes = [0; 16];
            cipher.encrypt(0, &[1; 16], &mut bytes);
            bytes
        };
        sealed(one) == sealed(other)
    }

    fn cipher(unlocked: &Unlocked) -> Arc<SectorCipher> {
        Arc::clone(&unlocked.levels[0].as_ref().expect("it is encrypted").1)
    }

    /// Goal: a level has one key of its own for life, through any change of the operator's; a key
    /// that is missing or another one is refused, as is a level that was made the other way, with
    /// what to do. Method: starts of one node, each with keys of its own.
    #[test]
    fn a_level_keeps_its_key() {
        let folder = TempDir::new().expect("a temporary directory");
        let dir = folder.path();
        put_key(dir, "one", ONE);
        put_key(dir, "other", OTHER);
        let at = |keys: &str| config(dir, keys, Format::Empty);
        let first = at("key = \"file:one\"");
        let made = unlock(&first, None).expect("a new node");
        put_level(&first);
        let found = catalog(&first, &made);
        let again = unlock(&first, Some(&found)).expect("its own key");
        assert!(are_same(&cipher(&made), &cipher(&again)) && again.notes.is_empty());
        let refused = |keys: &str, found: &Catalog, words: &[&str]| {
            let report = unlock(&at(keys), Some(found)).err().expect(keys);
            let said = report.to_string();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
            assert!(said.contains("nothing was started or changed"), "{said}");
            assert!(!said.contains(&ONE.repeat(8)) && !said.contains(&OTHER.repeat(8)), "{said}");
        };
        refused("key = \"file:other\"", &found, &["another key", "key_previous"]);
        refused("key = \"file:none\"", &found, &["none", "No such file"]);
        refused("", &found, &["names no `key`", "--format"]);
        let wrong = "key = \"file:other\"\nkey_previous = \"file:other\"";
        refused(wrong, &found, &["another key"]);
        let change = at("key = \"file:other\"\nkey_previous = \"file:one\"");
        let changed = unlock(&change, Some(&found)).expect("the key before is right");
        assert!(are_same(&cipher(&made), &cipher(&changed)));
        assert!(changed.notes[0].contains("key_previous"), "{:?}", changed.notes);
        let found = catalog(&change, &changed);
        let after = unlock(&at("key = \"file:other\""), Some(&found)).expect("the new key");
        assert!(are_same(&cipher(&made), &cipher(&after)));
        refused("key = \"file:one\"", &found, &["another key"]);
        let plain = catalog(&at(""), &unlock(&at(""), None).expect("nothing to unlock"));
        refused("key = \"file:one\"", &plain, &["made without encryption", "--format"]);
        let kept = found.levels[0].encryption.as_ref().expect("it is encrypted");
        let name = &found.levels[0].name;
        assert!(are_same(&cipher(&made), &cipher_of(name, kept).expect("the new key")));
        std::fs::remove_file(dir.join("other")).expect("the test's own file");
        let report = cipher_of(name, kept).expect_err("it is gone");
        assert!(report.state.contains("not known"), "{report}");
    }

    /// Goal: a level that is missing or blank needs no key, nor to be configured as it was made: it
    /// has no cipher, its record stays, and it counts as lost for that start also where it comes
    /// back meanwhile. One that is there is refused, as is a strict start. Method: starts without
    /// the right key, with the level's file there, gone, blank, and back behind the unlocking.
    #[test]
    fn a_lost_level_needs_no_key() {
        let folder = TempDir::new().expect("a temporary directory");
        let dir = folder.path();
        put_key(dir, "one", ONE);
        put_key(dir, "other", OTHER);
        let at = |keys: &str| config(dir, keys, Format::Empty);
        let right = at("key = \"file:one\"");
        let path = right.levels[0].path.clone().expect("an SSD level has one");
        let encrypted = catalog(&right, &unlock(&right, None).expect("a new node"));
        let plain = catalog(&at(""), &unlock(&at(""), None).expect("a new node"));
        let remove = || drop(std::fs::remove_file(&path));
        let blank = || {
            let file = std::fs::File::create(&path).expect("the test's own folder");
            file.set_len(64 << 20).expect("a sparse file");
        };
        let wrong = [
            ("key = \"file:other\"", &encrypted),
            ("key = \"file:none\"", &encrypted),
            ("", &encrypted),
            ("key = \"file:one\"", &plain),
        ];
        for (keys, found) in wrong {
            let told = at(keys);
            put_level(&told);
            unlock(&told, Some(found)).err().expect("the level is there");
            for lose in [&remove as &dyn Fn(), &blank] {
                lose();
                let strict = Config { is_strict: true, ..told.clone() };
                unlock(&strict, Some(found)).err().expect("a strict node has all levels");
                let unlocked = unlock(&told, Some(found)).expect("the level is not there");
                let note = &unlocked.notes[0];
                assert!(note.contains("`ssd` is not there, and cannot be unlocked"), "{note}");
                let mut view = view(&told, found, &unlocked);
                assert!(view.layout.cipher(0).is_none());
                assert_eq!(view.catalog.levels, found.levels, "the catalog keeps its record");
                put_level(&told);
                let lost = crate::levels::lost(&view);
                assert!(lost[0].cause.contains("came back"), "{lost:?}");
                assert!(!view.layout.is_used(&view.layout.levels[0]));
                view.layout.locked.clear();
                assert!(crate::levels::lost(&view).is_empty(), "it is there");
            }
        }
        remove();
        let unlocked = unlock(&right, Some(&encrypted)).expect("the right key");
        assert!(unlocked.notes.is_empty() && unlocked.levels[0].is_some());
    }

    /// Goal: where levels are made anew, a level may become encrypted or cease to be, and a key
    /// that was lost is given up. With `--format` a level's own key is always a new one; what was
    /// cut short goes on with the one that is there. Method: starts with `--format`, and such as
    /// follow a first start or a format that was cut short.
    #[test]
    fn new_levels_follow_the_configuration() {
        let folder = TempDir::new().expect("a temporary directory");
        let dir = folder.path();
        put_key(dir, "one", ONE);
        put_key(dir, "other", OTHER);
        let (one, other) = ("key = \"file:one\"", "key = \"file:other\"");
        let at = |keys: &str| config(dir, keys, Format::All);
        let made = unlock(&at(one), None).expect("a new node");
        let encrypted = catalog(&at(one), &made);
        let plain = catalog(&at(""), &unlock(&at(""), None).expect("nothing to unlock"));
        let begun = Catalog { is_started: false, ..encrypted.clone() };
        let formatting = Catalog { is_formatting: true, ..encrypted.clone() };
        for (format, found) in [
            (Format::All, &encrypted),
            (Format::All, &plain),
            (Format::Empty, &begun),
            (Format::Empty, &formatting),
        ] {
            let unlock = |keys| {
                let unlocked = unlock(&config(dir, keys, format), Some(found));
                unlocked.expect("all is made anew")
            };
            assert!(unlock("").levels[0].is_none());
            assert!(!are_same(&cipher(&made), &cipher(&unlock(other))), "drawn anew");
            let is_kept = are_same(&cipher(&made), &cipher(&unlock(one)));
            assert_eq!(is_kept, format == Format::Empty);
        }
    }
}
