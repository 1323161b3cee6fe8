//! A volume's end: the word that it is deleted, that word taken back, and the removal.
//!
//! How: a conversation with the store, one request after the other, many objects in one, performed
//! by whoever holds it. The superblock says first that the volume is deleted, so that nobody serves
//! or clones it; a second word says that its objects go from now on. Then they go, then its mark in
//! its base, and the superblock last. Each word is a replacement on a condition. The superblock's
//! deletion has none: it is requested once, and after a fault the superblock is fetched first, as
//! another volume may have begun at the place where only the answer was lost; then it is requested
//! again, after pauses that grow.
//! What uploads that were cut short left in a folder goes along, of whatever session: none is to
//! put anything there any more. One that does so late leaves an object, or a file beside one.
//! Invariant: no object goes before the second word is there, and from then on nobody takes the
//! first one back; nothing goes that a clone rests on, that another node serves, that another copy
//! of this node's directory has served since, or that is another volume's. A conversation that
//! broke off at any request may begin anew, and ends as it would have.
//! Cost: two requests per word, one per prefix, and one per [`KEYS_MAX`] objects, where the store
//! takes so many.
//! Not for: a deletion of the superblock that a store performs after it was said to have failed and
//! was repeated; when it is time, which the node says; repeating requests, see [`crate::Store`].

use crate::action::{Condition, End, Fault, FaultKind, Request, Tag};
use crate::segment::{SegmentName, VolumeUuid};
use crate::snapshot::{CloneMark, SNAPSHOTS_PREFIX, epoch_of_key};
use crate::superblock::{Base, Checkpointed, Deleted, SUPERBLOCK_KEY, Superblock};
use std::fmt;
use std::time::Duration;

/// How often a replacement that met another one is tried again.
pub const CONFLICTS_MAX: u32 = 16;
/// Deletions of the superblock that end with a fault, after which a removal gives up.
const LAST_MAX: u32 = 5;
/// The pause after the first of them; each further one doubles it.
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// Objects of a request at most, which is what S3 takes at once.
pub const KEYS_MAX: usize = 1000;
/// Where objects of probes lie, by which an opening asks how the store takes conditions.
pub(crate) const PROBES_PREFIX: &str = "probes/";
/// Prefixes of all that a volume has beside its superblock.
pub(crate) const PREFIXES: [&str; 4] =
    ["segments/", "checkpoints/", SNAPSHOTS_PREFIX, PROBES_PREFIX];

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The superblock says that the volume is deleted.
    Mark(Deleted),
    /// It says so no more, and the volume is whole.
    Unmark,
    /// All is gone. The times are said where nothing said so before.
    Remove(Deleted),
}

/// What comes next.
#[derive(Clone, Debug)]
pub enum Step {
    /// A request to the volume's store, which may be repeated where its end is not known.
    Ask(Request),
    /// One that may not, since it would delete what another volume has put meanwhile; after a
    /// pause, which grows with the faults in which it has ended.
    AskOnce(Request, Duration),
    /// The base is to be told that its clone is gone.
    TellBase(Base),
    /// It is over.
    Over(Result<(), RemovalError>),
}

/// Why a goal was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalError {
    /// There is no volume at its place; where it was to go, that is the goal.
    Absent,
    /// Another node serves it, by its number: what is there is that one's.
    OtherNode(String),
    /// Another copy of this node's directory has served it since, in this epoch.
    OtherCopy(u32),
    /// Another volume is there, by its number.
    OtherVolume(String),
    /// These volumes are clones of it.
    HasClones(String),
    /// Its objects go, so the word stays.
    Begun,
    /// Its superblock is damaged or of a later version.
    Damaged,
    /// Its base, at this place, was not told.
    BaseSilent(String),
    /// Others replaced its superblock again and again.
    Conflicts,
    /// The store failed, in its words.
    Store(Fault),
}

impl fmt::Display for RemovalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemovalError::Absent => f.write_str("there is no volume at its place any more"),
            RemovalError::OtherNode(node) => write!(f, "node {node} serves it"),
            RemovalError::OtherCopy(epoch) => write!(
                f,
                "another copy of this node's directory has served the volume since, in epoch \
                 {epoch}"
            ),
            RemovalError::OtherVolume(volume) => write!(f, "another volume is there, {volume}"),
            RemovalError::HasClones(names) => write!(f, "volumes are clones of it: {names}"),
            RemovalError::Begun => f.write_str("its removal has begun, so it is not whole"),
            RemovalError::Damaged => {
                f.write_str("the superblock there is damaged or of a later version")
            }
            RemovalError::BaseSilent(url) => {
                write!(f, "`{url}` cannot be told that its clone is gone")
            }
            RemovalError::Conflicts => f.write_str("others replace its superblock again and again"),
            RemovalError::Store(fault) => f.write_str(&fault.cause),
        }
    }
}

impl std::error::Error for RemovalError {}

/// Whether a key is of an object right below a prefix, as a volume's own are; what lies further
/// below may be another volume's.
#[must_use]
pub fn is_right_below(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).is_some_and(|name| !name.contains('/'))
}

/// The object of which a key names a file beside it, as a folder has them, and that file's number:
/// 0 for a lock, others for an upload under way, or one that was cut short.
#[must_use]
pub fn temporary_of(key: &str) -> Option<(&str, u64)> {
    let (of, digits) = key.rsplit_once('#')?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some((of, number))
}

/// The session that put an object of a volume, by its key.
pub(crate) fn session_of(key: &str) -> Option<u32> {
    let segment = SegmentName::parse(key).filter(|name| name.key() == key);
    let checkpoint = || Checkpointed::parse(key).map(|found| found.epoch);
    segment.map(|name| name.epoch).or_else(checkpoint).or_else(|| epoch_of_key(key))
}

fn is_probe(key: &str) -> bool {
    let name = key.strip_prefix(PROBES_PREFIX).and_then(|name| name.split_once('-'));
    let is_named = |(node, nonce): (&str, &str)| {
        let nonce = u64::from_str_radix(nonce, 16).ok()?;
        let node: VolumeUuid = node.parse().ok()?;
        Some(key == format!("{PROBES_PREFIX}{node}-{nonce:016x}"))
    };
    name.and_then(is_named) == Some(true)
}

/// Whether a key is one that volumes give their objects, or of a file beside one, so that a removal
/// takes it: a folder may hold files that are not a volume's.
fn is_own(key: &str) -> bool {
    let key = temporary_of(key).map_or(key, |(of, _)| of);
    session_of(key).is_some() || is_probe(key)
}

enum Stage {
    /// What does the store say?
    Look,
    /// The superblock is replaced.
    Replace(Box<Superblock>, Tag),
    /// Objects with this prefix are looked for.
    List(usize),
    /// These go, the last ones first.
    Delete(usize, Vec<String>),
    /// The base is told.
    Tell(Base),
    /// The superblock goes.
    Last,
    Over(Result<(), RemovalError>),
}

/// The conversation; see the file's header.
pub struct Removal {
    node: VolumeUuid,
    volume: Option<VolumeUuid>,
    /// Sessions of the node's directory; none where none is known.
    sessions: Vec<u64>,
    goal: Goal,
    stage: Stage,
    conflicts: u32,
    /// Deletions of the superblock that ended with a fault.
    last_faults: u32,
    /// The volume that the superblock named when the removal found it.
    removed: Option<String>,
    /// The base of the volume, where it is a clone.
    base: Option<Base>,
}

impl Removal {
    /// A conversation on behalf of `node` about a volume, where its number is known.
    #[must_use]
    pub fn new(node: VolumeUuid, volume: Option<VolumeUuid>, goal: Goal) -> Removal {
        Removal {
            node,
            volume,
            sessions: Vec::new(),
            goal,
            stage: Stage::Look,
            conflicts: 0,
            last_faults: 0,
            removed: None,
            base: None,
        }
    }

    /// The same of a volume that this node's directory served in these sessions, newest first: what
    /// another copy of the directory has served since is not changed. None where none is known.
    #[must_use]
    pub fn with_sessions(self, sessions: Vec<u64>) -> Removal {
        Removal { sessions, ..self }
    }

    /// What is to be done next; its end is awaited by [`Removal::on_end`], of a base by
    /// [`Removal::on_base`].
    #[must_use]
    pub fn step(&self) -> Step {
        let superblock = || SUPERBLOCK_KEY.to_owned();
        Step::Ask(match &self.stage {
            Stage::Look => Request::Get { key: superblock(), range: None },
            Stage::Replace(block, tag) => Request::Put {
                key: superblock(),
                bytes: block.encode().into(),
                condition: Condition::Replace(tag.clone()),
            },
            Stage::List(prefix) => Request::List { prefix: PREFIXES[*prefix].to_owned() },
            Stage::Delete(_, keys) => {
                let begin = keys.len().saturating_sub(KEYS_MAX);
                Request::DeleteMany { keys: keys[begin..].to_vec() }
            }
            Stage::Tell(base) => return Step::TellBase(base.clone()),
            Stage::Last => {
                return Step::AskOnce(Request::Delete { key: superblock() }, self.pause());
            }
            Stage::Over(result) => return Step::Over(result.clone()),
        })
    }

    /// How long the store is left alone before the superblock's deletion: a fault passes later
    /// rather than at once.
    fn pause(&self) -> Duration {
        match self.last_faults {
            0 => Duration::ZERO,
            faults => LAST_PAUSE * (1 << (faults - 1)),
        }
    }

    /// The request of the last step has ended.
    pub fn on_end(&mut self, end: End) {
        let stage = std::mem::replace(&mut self.stage, Stage::Look);
        self.stage = match (stage, end) {
            (Stage::Look, End::Bytes(bytes, tag)) => self.on_found(&bytes, tag),
            (Stage::Look, End::Failed(fault)) if fault.kind == FaultKind::NotFound => {
                Stage::Over(match self.goal {
                    Goal::Remove(_) => Ok(()),
                    _ => Err(RemovalError::Absent),
                })
            }
            // Others were faster, or this one was with the answer lost: it is looked up.
            (Stage::Replace(..), End::Failed(fault)) if fault.kind == FaultKind::Condition => {
                self.on_conflict()
            }
            (Stage::Last, End::Failed(fault)) if fault.kind == FaultKind::Retry => {
                self.last_faults += 1;
                match self.last_faults >= LAST_MAX {
                    true => Stage::Over(Err(RemovalError::Store(fault))),
                    false => Stage::Look,
                }
            }
            (_, End::Failed(fault)) => Stage::Over(Err(RemovalError::Store(fault))),
            (Stage::Replace(..), _) => match self.goal {
                Goal::Remove(_) => Stage::List(0),
                _ => Stage::Over(Ok(())),
            },
            (Stage::List(prefix), End::Keys(mut keys)) => {
                keys.retain(|key| is_right_below(key, PREFIXES[prefix]) && is_own(key));
                self.next_key(prefix, keys)
            }
            (Stage::Delete(prefix, mut keys), _) => {
                keys.truncate(keys.len().saturating_sub(KEYS_MAX));
                self.next_key(prefix, keys)
            }
            (Stage::Last, _) => Stage::Over(Ok(())),
            (_, end) => unreachable!("a request ends as its kind does: {end:?}"),
        };
    }

    /// Whether the base knows, or is gone.
    pub fn on_base(&mut self, is_told: bool) {
        let Stage::Tell(base) = &self.stage else { unreachable!("no base was to be told") };
        self.stage = match is_told {
            true => Stage::Last,
            false => Stage::Over(Err(RemovalError::BaseSilent(base.url.clone()))),
        };
    }

    fn on_conflict(&mut self) -> Stage {
        self.conflicts += 1;
        match self.conflicts > CONFLICTS_MAX {
            true => Stage::Over(Err(RemovalError::Conflicts)),
            false => Stage::Look,
        }
    }

    fn on_found(&mut self, bytes: &[u8], tag: Option<Tag>) -> Stage {
        let (Some(block), Some(tag)) = (Superblock::decode(bytes), tag) else {
            return Stage::Over(Err(RemovalError::Damaged));
        };
        let is_last = self.last_faults > 0;
        if is_last && self.removed.as_ref() != Some(&block.volume) {
            // The deletion was done, and another volume has begun here since.
            return Stage::Over(Ok(()));
        }
        if let Some(refused) = self.refusal(&block) {
            return Stage::Over(Err(refused));
        }
        let replaced = match (self.goal, block.deleted) {
            (Goal::Mark(_), Some(_)) | (Goal::Unmark, None) => return Stage::Over(Ok(())),
            (Goal::Mark(deleted), None) => block.marked_deleted(deleted),
            (Goal::Unmark, Some(_)) => block.undeleted(),
            (Goal::Remove(said), deleted) => {
                if is_last {
                    return Stage::Last;
                }
                self.removed = Some(block.volume.clone());
                self.base = block.bases.last().cloned();
                if deleted.is_some_and(|deleted| deleted.has_begun()) {
                    return Stage::List(0);
                }
                let deleted = Deleted { removing: true, ..deleted.unwrap_or(said) };
                block.marked_deleted(deleted)
            }
        };
        Stage::Replace(Box::new(replaced), tag)
    }

    fn refusal(&self, block: &Superblock) -> Option<RemovalError> {
        if self.volume.is_some_and(|volume| volume.to_string() != block.volume) {
            return Some(RemovalError::OtherVolume(block.volume.clone()));
        }
        if block.node != self.node.to_string() {
            return Some(RemovalError::OtherNode(block.node.clone()));
        }
        if self.is_of_copy(block) {
            return Some(RemovalError::OtherCopy(block.epoch));
        }
        match (self.goal, block.deleted) {
            (Goal::Unmark, Some(deleted)) if deleted.has_begun() => Some(RemovalError::Begun),
            (Goal::Remove(_), _) => clones_of(block).map(RemovalError::HasClones),
            _ => None,
        }
    }

    /// Whether another copy of the node's directory put a superblock of this node. Builds that knew
    /// no sessions, and others that drop what they do not know, say none.
    fn is_of_copy(&self, block: &Superblock) -> bool {
        let is_known = self.sessions.is_empty() || self.sessions.contains(&block.session);
        block.session != 0 && !is_known
    }

    /// The next objects, or what follows when there is none left.
    fn next_key(&mut self, prefix: usize, keys: Vec<String>) -> Stage {
        if !keys.is_empty() {
            return Stage::Delete(prefix, keys);
        }
        if prefix + 1 < PREFIXES.len() {
            return Stage::List(prefix + 1);
        }
        self.base.take().map_or(Stage::Last, Stage::Tell)
    }
}

impl Superblock {
    /// The volumes that are clones of this one.
    pub fn clones(&self) -> impl Iterator<Item = &CloneMark> {
        self.snapshots.iter().flat_map(|snapshot| &snapshot.clones)
    }
}

fn clones_of(block: &Superblock) -> Option<String> {
    let names = block.clones().map(|clone| format!("`{}` ({})", clone.name, clone.url));
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}
