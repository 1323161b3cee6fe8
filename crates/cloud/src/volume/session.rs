//! The session: whose volume it is, and the superblock that says so.
//!
//! How: at first the superblock is fetched, the map is brought up to it where the store knows more,
//! which is `learn`, and the superblock is replaced with a raised epoch. From then on this session
//! alone can replace it. A put whose answer was lost is recognised by its contents. Whether the
//! store keeps conditions is asked before; see `conditions`. A look fences on every superblock that
//! this session did not put, whatever its epoch.
//! Invariant: nothing is uploaded before the session is open; a session that was fenced writes and
//! deletes nothing any more.
//! Cost: two requests per opening and six for the probe, one per segment that the node does not
//! know, and one whenever the host wants to know whose the volume is.

use super::again::STAYS_DAMAGED;
use super::conditions::{CLAIM_REST, Conflicts, Probe, ProbeStep};
use super::learn::CHECKPOINT_DAMAGED;
use super::{Flight, Volume};
use crate::action::{Action, Condition, End, FaultKind, Request, Tag};
use crate::map::{self, CloudMap, EARLIER};
use crate::meta::Frame;
use crate::superblock::{EpochStart, FORMAT, SUPERBLOCK_KEY, Superblock};
use bytes::Bytes;
use layby_types::Nanos;
use layby_types::planted::{Plant, is_planted};
use std::ops::DerefMut;
use std::sync::Arc;

/// Bytes of a segment fetched at first for its index: most indexes fit.
pub(super) const HEAD_BYTES: u64 = 64 << 10;
/// How long after a look that found no superblock the next one comes: a store that is consistent
/// only in the end may not show for a moment what it has.
const LOOK_AGAIN_REST: Nanos = Nanos::from_secs(1);

/// What is known of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not asked yet, or the first answer is awaited.
    Opening,
    /// It answers.
    Up,
    /// It has failed since, in its words.
    Down {
        /// For how long.
        for_time: Nanos,
    },
    /// The volume is not this node's, or cannot be: why.
    Lost(String),
}

enum State {
    New,
    Asked,
    Open,
    Lost { why: String, is_taken: bool },
}

/// A step of the conversation about the superblock.
pub(super) enum Step {
    /// Fetch it, at the session's beginning.
    Fetch,
    /// Fetch the checkpoint that it names.
    Checkpoint,
    /// Fetch the index of the next segment.
    Head { is_whole: bool },
    /// Fetch a segment whole that the store took and no superblock names yet.
    Unnamed { number: u64 },
    /// See whether it has changed, while segments are read that it does not name.
    Beyond,
    /// See how the store takes conditions.
    Probe(ProbeStep),
    /// See whether it is what it was, before a replacement whose condition the store ignores.
    Before,
    /// Replace it.
    Propose,
    /// See whether that replacement stands.
    After,
    /// See what it is, since a replacement did not go through.
    Compare,
    /// See whether it has changed, since what it named is not there: why else the volume is lost.
    Recheck(String),
    /// See whether it is this session's still, as it was in this revision or a later one; once more
    /// where the store has just said that there is none.
    Look { revision: u64, is_repeated: bool },
}

/// See the file's header.
pub(super) struct Session {
    state: State,
    /// The superblock as the store last had it, and its version.
    pub(super) current: Option<(Superblock, Tag)>,
    proposed: Option<Superblock>,
    pub(super) epoch: u32,
    /// What this session's superblocks say, see [`Superblock::session`].
    number: u64,
    /// Segments up to this one were found whole in the store, though no superblock names them.
    pub(super) confirmed: u64,
    /// Superblocks that named more, by the session whose segments are learned, see `unnamed`.
    pub(super) went_on: u8,
    /// When both were opened, the journal ended before what the map says was put of it.
    pub(super) is_short: bool,
    /// The map as it is learned anew, beside the one that is served; see `unnamed`.
    pub(super) relearned: Option<Box<CloudMap>>,
    /// How often in a row an object of the conversation was missing or damaged, see `again`.
    pub(super) missed: u8,
    /// Since when requests of a kind fail without an answer.
    down_since: [Option<Nanos>; RequestKind::ALL.len()],
    is_looking: bool,
    /// Asks how the store takes conditions.
    pub(super) probe: Probe,
    pub(super) conflicts: Conflicts,
    /// A claim stands that is to be read back then.
    claim_until: Nanos,
    /// Something beside segments changed that the superblock should say.
    pub(super) wants_commit: bool,
}

impl Session {
    /// One that will say that it is `number`, which no other session is likely to have drawn.
    pub(super) fn new(number: u64) -> Self {
        Session {
            number,
            state: State::New,
            current: None,
            proposed: None,
            epoch: 0,
            confirmed: 0,
            went_on: 0,
            is_short: false,
            relearned: None,
            missed: 0,
            down_since: Default::default(),
            is_looking: false,
            probe: Probe::default(),
            conflicts: Conflicts::default(),
            claim_until: Nanos::NEVER,
            wants_commit: false,
        }
    }

    /// Of a volume that another node has, as an earlier life of this one found out.
    pub(super) fn taken(why: String, number: u64) -> Self {
        Session { state: State::Lost { why, is_taken: true }, ..Session::new(number) }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost { .. })
    }

    /// Another node has the volume, so that what this one has of it is of the past.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.state, State::Lost { is_taken: true, .. })
    }

    pub(super) fn lost(&self) -> Option<&str> {
        match &self.state {
            State::Lost { why, .. } => Some(why),
            _ => None,
        }
    }

    pub(super) fn proposed(&self) -> Option<&Superblock> {
        self.proposed.as_ref()
    }

    pub(super) fn is_proposing(&self) -> bool {
        self.proposed.is_some()
    }

    /// When a claim has stood for long enough.
    pub(super) fn claim_deadline(&self) -> Nanos {
        self.claim_until
    }

    pub(super) fn committed(&self) -> u64 {
        self.current.as_ref().map_or(0, |(block, _)| block.committed)
    }

    pub(super) fn current(&self) -> Option<&Superblock> {
        self.current.as_ref().map(|(block, _)| block)
    }

    pub(super) fn link(&self, now: Nanos) -> Link {
        let [gets, puts, upkeep] = self.down_since;
        match (&self.state, gets.or(puts).or(upkeep)) {
            (State::Lost { why, .. }, _) => Link::Lost(why.clone()),
            (_, Some(since)) => Link::Down { for_time: now.since(since) },
            (State::Open, None) => Link::Up,
            _ => Link::Opening,
        }
    }

    pub(super) fn on_answer(&mut self, request: &Request, flight: &Flight) {
        let kind = RequestKind::of(request);
        self.down_since[kind as usize] = None;
        if matches!(kind, RequestKind::Get) {
            // Such a request may be given up, so that no answer to one follows.
            self.down_since[RequestKind::Upkeep as usize] = None;
        }
        // What became of a put is known, too.
        let settles = match flight {
            Flight::Superblock(step) => !matches!(step, Step::Look { .. }),
            flight => matches!(flight, Flight::Verify { .. }),
        };
        if settles {
            self.down_since = Default::default();
        }
    }

    pub(super) fn on_fault(&mut self, request: &Request, now: Nanos) {
        self.down_since[RequestKind::of(request) as usize].get_or_insert(now);
    }

    /// Since when requests of a kind fail without an answer; of a volume that is lost, none.
    pub(super) fn down_since(&self, kind: RequestKind) -> Option<Nanos> {
        self.down_since[kind as usize].filter(|_| !self.is_lost())
    }
}

/// Requests that a store may refuse while it answers all others: one that is full, or denies puts,
/// removals or listing. That is no link that is up, but calls wait for what they need alone.
#[derive(Clone, Copy)]
pub(super) enum RequestKind {
    Get,
    Put,
    /// What no call waits for: removals, and the listing of what is to be removed.
    Upkeep,
}

impl RequestKind {
    pub(super) const ALL: [Self; 3] = [Self::Get, Self::Put, Self::Upkeep];

    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Get { .. } => Self::Get,
            Request::Put { .. } => Self::Put,
            Request::Delete { .. } | Request::DeleteMany { .. } | Request::List { .. } => {
                Self::Upkeep
            }
        }
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    pub(super) fn open_session(&mut self) {
        if matches!(self.session.state, State::New) {
            self.session.state = State::Asked;
            self.probe_or_fetch();
        }
    }

    pub(super) fn fetch_superblock(&mut self, step: Step) {
        let request = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
        self.ask(request, Flight::Superblock(step));
    }

    /// Another node has the volume: what it writes is newer, so that nothing of it is read here any
    /// more, in later lives of the node neither.
    pub(super) fn lose_to_other(&mut self, why: String) {
        self.fail_reads();
        self.lose_by(why, true);
        self.record_taken();
    }

    /// Writes down who has the volume, where that is known.
    pub(super) fn record_taken(&mut self) {
        if let State::Lost { why, is_taken: true } = &self.session.state {
            let frame = Frame::Taken(why.clone()).encode();
            self.act(Action::MapAppend(frame), Flight::TakenRecorded);
        }
    }

    /// The volume cannot be served from here: all that is not acknowledged fails.
    pub(super) fn lose(&mut self, why: String) {
        self.lose_by(why, false);
    }

    fn lose_by(&mut self, why: String, is_taken: bool) {
        // That another node has it stays so, whatever else is found.
        if is_taken || !matches!(self.session.state, State::Lost { is_taken: true, .. }) {
            self.session.state = State::Lost { why, is_taken };
        }
        self.session.proposed = None;
        self.session.relearned = None;
        self.session.claim_until = Nanos::NEVER;
        self.awaits_map = false;
        self.fail_writes();
        self.fail_snapshots();
        self.count_lost();
        match self.is_known {
            true => self.release_held(),
            // What was learned of the volume so far is not the volume.
            false => self.fail_held(),
        }
    }

    pub(super) fn on_superblock(&mut self, step: Step, end: End) {
        if self.session.is_lost() {
            return;
        }
        let end = match end {
            // An object that is there and empty was not set back, and is as damaged as a short one.
            End::Failed(fault) if fault.kind == FaultKind::Short => End::Bytes(Bytes::new(), None),
            end => end,
        };
        match (step, end) {
            (Step::Fetch, End::Bytes(bytes, tag)) => self.on_found(&bytes, tag),
            (Step::Fetch, End::Failed(_)) => self.on_absent(),
            (Step::Checkpoint, End::Bytes(bytes, _)) => {
                match CloudMap::decode_of(self.plan.volume, &bytes) {
                    Some(map) => self.on_checkpoint(map),
                    None if map::is_earlier(&bytes) => {
                        self.recheck(format!("the checkpoint in the store is not read: {EARLIER}"));
                    }
                    None => self.recheck(CHECKPOINT_DAMAGED.to_owned() + STAYS_DAMAGED),
                }
            }
            (Step::Recheck(why), End::Bytes(bytes, tag)) => self.on_rechecked(why, &bytes, tag),
            (Step::Head { is_whole }, End::Bytes(bytes, _)) => self.on_head(&bytes, is_whole),
            (Step::Unnamed { number }, end) => self.on_unnamed(number, &end),
            (Step::Beyond, End::Bytes(bytes, tag)) => self.on_beyond(&bytes, tag),
            (Step::Probe(step), end) => self.on_probe(step, end),
            (Step::Before, End::Bytes(bytes, tag)) => self.on_before(&bytes, tag),
            (Step::Before, End::Failed(_)) if self.session.current.is_none() => self.put_proposed(),
            (Step::Propose, End::Stored(_)) if self.looks() => self.on_put_unconditionally(),
            (Step::Propose, End::Stored(tag)) => self.on_proposed(tag),
            (Step::Propose, End::Failed(_)) => self.fetch_superblock(Step::Compare),
            (Step::Compare | Step::After, End::Bytes(bytes, tag)) => self.on_compared(&bytes, tag),
            (Step::Compare, End::Failed(_)) if self.session.current.is_none() => {
                // There still is none: a conflict that passes, or a store that refuses every put.
                self.count_absence();
                self.session.proposed = None;
                self.on_absent();
            }
            (Step::Compare | Step::Before | Step::After | Step::Beyond, End::Failed(_)) => {
                self.lose_vanished();
            }
            (Step::Look { revision, is_repeated: false }, End::Failed(_)) => {
                self.look_again(revision);
            }
            (Step::Look { revision, .. }, end) => self.on_looked(revision, &end),
            (Step::Recheck(why), _) => self.lose(why),
            (_, _) => {
                self.recheck("the store lacks an object that the superblock names".to_owned());
            }
        }
    }

    /// The store has no superblock where there was one.
    pub(super) fn lose_vanished(&mut self) {
        self.lose("the volume's superblock has vanished from the store".to_owned());
    }

    /// What arrived changed each time that it was fetched, or is of a later version.
    pub(super) fn lose_damaged(&mut self, what: &str) {
        self.lose(format!("{what} in the store is damaged; {STAYS_DAMAGED}"));
    }

    pub(super) fn is_own(&self, block: &Superblock) -> bool {
        block.node == self.plan.node.to_string()
    }

    /// Proposes what the superblock is to be now.
    pub(super) fn propose(&mut self) {
        let is_early = is_planted(Plant::SuperblockFirst) && self.session.is_open();
        let limit = if is_early { self.upload.last_number() } else { self.upload.recorded };
        let current = self.session.current().cloned();
        let is_open = self.session.is_open();
        let mut block = current.unwrap_or_else(|| self.first_superblock());
        block.revision += 1;
        block.name.clone_from(&self.plan.name);
        block.node = self.plan.node.to_string();
        block.committed = block.committed.max(limit);
        block.size_bytes = self.size_to_tell(block.size_bytes, block.committed);
        if !is_open {
            block.deleted = None;
            block.epoch += 1;
            block.session = self.session.number;
            let (epoch, first) = (block.epoch, block.committed + 1);
            block.epochs.retain(|start| start.first < first);
            block.epochs.push(EpochStart { epoch, first });
        }
        if let Some(checkpoint) = self.commit.checkpoint_stored
            && checkpoint.number <= block.committed
        {
            block.checkpoint = Some(checkpoint);
            drop_epochs_before(&mut block.epochs, checkpoint.number);
        }
        self.propose_snapshots(&mut block);
        block.format = block.format_needed();
        self.session.proposed = Some(block);
        self.session.wants_commit = false;
        match self.looks() {
            true => self.fetch_superblock(Step::Before),
            false => self.put_proposed(),
        }
    }

    fn put_proposed(&mut self) {
        let Some(block) = &self.session.proposed else { return };
        let bytes = block.encode().into();
        let condition = match &self.session.current {
            Some((_, tag)) => Condition::Replace(tag.clone()),
            None => Condition::Create,
        };
        let request = Request::Put { key: SUPERBLOCK_KEY.to_owned(), bytes, condition };
        self.put_again(request, Flight::Superblock(Step::Propose));
    }

    /// The superblock before a replacement whose condition the store ignores.
    fn on_before(&mut self, bytes: &[u8], tag: Option<Tag>) {
        let found = Superblock::decode(bytes);
        let is_older = |block: &Superblock| {
            let revision = self.session.current().map_or(0, |known| known.revision);
            self.session.is_open() && self.is_this_session(block) && block.revision < revision
        };
        let is_older = found.as_ref().is_some_and(is_older);
        match is_older || found.is_some() && found.as_ref() == self.session.current() {
            true => self.put_proposed(),
            false => self.on_compared(bytes, tag),
        }
    }

    /// A replacement went through whatever was there: it counts once it is found there. A claim
    /// waits for those that looked before it.
    fn on_put_unconditionally(&mut self) {
        match self.session.is_open() {
            true => self.fetch_superblock(Step::After),
            false => self.session.claim_until = self.now.saturating_add(CLAIM_REST),
        }
    }

    /// Reads a claim back that has stood for long enough.
    pub(super) fn confirm_claim(&mut self) {
        if self.now >= self.session.claim_until {
            self.session.claim_until = Nanos::NEVER;
            self.fetch_superblock(Step::After);
        }
    }

    fn first_superblock(&self) -> Superblock {
        Superblock {
            format: FORMAT,
            volume: self.plan.volume.to_string(),
            name: self.plan.name.clone(),
            size_bytes: self.plan.size_bytes,
            block_bytes: self.plan.block_bytes,
            node: self.plan.node.to_string(),
            epoch: 0,
            session: 0,
            revision: 0,
            committed: 0,
            checkpoint: None,
            epochs: Vec::new(),
            snapshots: Vec::new(),
            bases: Vec::new(),
            deleted: None,
        }
    }

    fn on_proposed(&mut self, tag: Tag) {
        let Some(block) = self.session.proposed.take() else { return };
        let is_first = !self.session.is_open();
        self.session.epoch = block.epoch;
        let committed = block.committed;
        let before = self.snapshots().unwrap_or_default().to_vec();
        self.session.current = Some((block, tag));
        self.settle_snapshots(&before);
        if is_first {
            self.session.state = State::Open;
            self.upload.number_next = committed + 1;
            self.awaits_map |= !std::mem::replace(&mut self.is_known, true);
            self.forget_deleted(committed);
            self.sweep();
        }
        self.on_committed(committed);
        if is_first {
            // What was learned from the store is known from now on, whatever comes.
            self.rewrite_map_file();
        }
    }

    /// Lets go of segments that an earlier session deleted, or would have: what the map file says
    /// of those is as old as its last checkpoint. Nothing needs them, by the rule of `delete_dead`,
    /// so what of them is still in the store, the sweep finds as objects that nothing names.
    fn forget_deleted(&mut self, committed: u64) {
        let Some(checkpoint) = self.session.current().and_then(|block| block.checkpoint) else {
            return;
        };
        let pins = self.pins();
        let dead = self.map.segments().filter(|(number, state)| {
            let is_dead = state.live == 0 && state.dead_since <= committed;
            is_dead && *number <= checkpoint.number && !self.is_kept(&pins, *number, state)
        });
        let dead: Vec<u64> = dead.map(|(number, _)| number).collect();
        dead.into_iter().for_each(|number| Arc::make_mut(&mut self.map).remove_segment(number));
    }

    /// Asks whose the volume is, though there is nothing to say: a node whose clients only read
    /// would not hear otherwise that another one has taken it. While the link is down it is taken
    /// for its own.
    pub fn look(&mut self) {
        if self.session.is_open() && !std::mem::replace(&mut self.session.is_looking, true) {
            let revision = self.session.current().map_or(0, |block| block.revision);
            self.fetch_superblock(Step::Look { revision, is_repeated: false });
        }
    }

    /// Looks once more, after a rest.
    fn look_again(&mut self, revision: u64) {
        let request = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
        let flight = Flight::Superblock(Step::Look { revision, is_repeated: true });
        self.ask_later(LOOK_AGAIN_REST, request, flight);
    }

    /// What the store had at some time since `revision` was put.
    fn on_looked(&mut self, revision: u64, end: &End) {
        self.session.is_looking = false;
        let End::Bytes(bytes, _) = end else {
            // A replacement would find the same, but there may be none for long.
            return self.lose_vanished();
        };
        // One that is damaged is met by the next replacement, which may say more.
        let Some(block) = Superblock::decode(bytes) else { return };
        if !self.session.is_open() || is_planted(Plant::FenceIgnored) {
            return;
        }
        let is_session = self.is_this_session(&block);
        if !is_session && block.epoch >= self.session.epoch {
            return self.lose_to(&block);
        }
        if is_session && block.revision >= revision && !self.is_forged(&block) {
            return;
        }
        if self.looks() {
            // A put that arrived late went over a newer superblock, which is put again.
            self.session.wants_commit = true;
            return self.step();
        }
        self.lose_set_back(&block, revision);
    }

    /// Whether a superblock says that this session put it.
    fn is_this_session(&self, block: &Superblock) -> bool {
        self.is_own(block)
            && block.epoch == self.session.epoch
            && block.session == self.session.number
            && block.volume == self.plan.volume.to_string()
    }

    /// Whether a superblock says that this session put it, in words that it did not put. What is
    /// proposed was not put yet: another program may be the first, as one that marks a clone, and
    /// then the replacement goes on from there.
    fn is_forged(&self, block: &Superblock) -> bool {
        let same = self.session.current().filter(|known| known.revision == block.revision);
        same.is_some_and(|known| known != block)
    }

    /// Another node has taken the volume.
    fn lose_to(&mut self, block: &Superblock) {
        self.note_adopted(block);
        let (node, epoch) = (&block.node, block.epoch);
        self.lose_to_other(match self.is_own(block) {
            true => format!("another copy of this node has taken the volume, in epoch {epoch}"),
            false => format!("node {node} has taken the volume, in epoch {epoch}"),
        });
    }

    /// A replacement did not go through: either it did and its answer was lost, or the volume was
    /// taken, or another answer was.
    fn on_compared(&mut self, bytes: &[u8], tag: Option<Tag>) {
        let Some(block) = Superblock::decode(bytes) else {
            return self.lose_damaged("the volume's superblock");
        };
        let tag = tag.unwrap_or(Tag(String::new()));
        if self.session.proposed.as_ref() == Some(&block) {
            return self.on_proposed(tag);
        }
        self.count_refusal(&block);
        let is_fenced = !self.is_this_session(&block);
        if self.session.is_open() && is_fenced && !is_planted(Plant::FenceIgnored) {
            return self.lose_to(&block);
        }
        let claimed = self.session.proposed.as_ref().map_or(u32::MAX, |claim| claim.epoch);
        if self.looks() && !self.is_own(&block) && block.epoch >= claimed {
            // Two that were told to take it would go on in turn.
            return self.lose_to(&block);
        }
        self.session.proposed = None;
        if !self.session.is_open() {
            return self.on_found(bytes, Some(tag));
        }
        let revision = self.session.current().map_or(0, |known| known.revision);
        // Where conditions are ignored, a clone's mark may have come over what was put.
        let is_forged = !self.looks() && self.is_forged(&block);
        let is_older = !is_fenced && (block.revision < revision || is_forged);
        match self.session.current.take().filter(|_| is_older) {
            None => self.session.current = Some((block, tag)),
            // A put that arrived late went over a newer superblock, which is put again.
            Some((known, _)) if self.looks() => self.session.current = Some((known, tag)),
            known => {
                self.session.current = known;
                return self.lose_set_back(&block, revision);
            }
        }
        self.propose();
    }
}

/// Keeps the epochs that segments behind a checkpoint need.
fn drop_epochs_before(epochs: &mut Vec<EpochStart>, checkpoint: u64) {
    let needed = epochs.iter().rposition(|start| start.first <= checkpoint + 1).unwrap_or(0);
    epochs.drain(..needed);
}
