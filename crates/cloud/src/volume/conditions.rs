//! Whether the store keeps the conditions of puts, and what a session does where it does not.
//!
//! How: the probe puts a small object with a key of its own four times: create, create again,
//! replace the version that it has, replace one that it has no more. Where the second or the fourth
//! goes through, and a second probe says the same, the store ignores conditions, and two nodes
//! could replace the superblock in turn without either noticing. Such a store is refused, or, where
//! the plan says so, the superblock is looked at before each replacement and read back behind it; a
//! session opens only after its claim has stood for [`CLAIM_REST`], and gives way to another node's
//! that came later.
//! Invariant: a session that opens knows how its store takes conditions. With looks there is one
//! owner as long as no put arrives later than a claim's rest after the look before it; a put that
//! does is found by the next look, and the newer session's superblock is put again.
//! Cost: six requests per opening, ten where conditions are ignored, unless the caller knows the
//! store; with looks two reads per replacement, and the rest of a claim per opening.

use super::session::Step;
use super::{Flight, Volume};
use crate::action::{Condition, End, Fault, FaultKind, Request, Tag};
use crate::removal::{PROBES_PREFIX, is_right_below};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use layby_types::Nanos;
use std::ops::DerefMut;

/// How long a claim stands before the session opens, where the store keeps no conditions.
pub(super) const CLAIM_REST: Nanos = Nanos::from_secs(5);

/// What is known of a store's puts on a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConditionalPuts {
    /// Nothing yet: the session asks.
    #[default]
    Unknown,
    /// The store refuses a put whose condition does not hold.
    Kept,
    /// It takes the put.
    Ignored,
}

/// Puts of the probe, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Create,
    CreateAgain,
    Replace,
    ReplaceOld,
}

/// A step of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// Put the object.
    Put(u8),
    /// Get it, since this put met a condition that should have held.
    Get(u8),
    /// Remove it.
    Delete,
}

/// Attempts to remove the probe's object, beside the first.
const REMOVALS_MAX: u32 = 4;

const PUTS: [Put; 4] = [Put::Create, Put::CreateAgain, Put::Replace, Put::ReplaceOld];

/// The probe under way.
#[derive(Default)]
pub(super) struct Probe {
    /// Part of the key, so that no late put or removal of an earlier probe meets this one.
    nonce: u64,
    /// The version before the replacement.
    old: Option<Tag>,
    /// The store seemed to ignore conditions once: another copy of the node may have swept the
    /// object away in between.
    is_repeated: bool,
}

/// Conditions in a row that did not hold though nothing had changed: of puts of the superblock, and
/// of all other objects.
#[derive(Default)]
pub(super) struct Conflicts([u32; 2]);

/// As many may come from other nodes, or from a store's own conflicts that pass.
const CONFLICTS_AT_ONCE: u32 = 3;
/// The first pause behind those; each is twice the one before, up to eight times.
const CONFLICT_REST: Nanos = Nanos::from_millis(50);

const REFUSED: &str = "the store ignores the conditions of puts, so that two nodes could serve the \
                       volume and neither would notice; `conditional_puts = \"optional\"` of \
                       [cloud] serves it with a look before each change of the superblock";

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Asks how the store takes conditions, unless that is known; then goes on.
    pub(super) fn probe_or_fetch(&mut self) {
        match self.plan.puts {
            ConditionalPuts::Unknown => {
                let (nonce, is_repeated) = (self.rng.next_u64(), self.session.probe.is_repeated);
                self.session.probe = Probe { nonce, old: None, is_repeated };
                self.probe_put(0);
            }
            ConditionalPuts::Kept => self.fetch_superblock(Step::Fetch),
            ConditionalPuts::Ignored => self.on_ignored(),
        }
    }

    /// Whether the superblock is looked at around each replacement.
    pub(super) fn looks(&self) -> bool {
        self.plan.puts == ConditionalPuts::Ignored
    }

    fn on_ignored(&mut self) {
        match self.plan.needs_conditions {
            true => self.lose(REFUSED.to_owned()),
            false => self.fetch_superblock(Step::Fetch),
        }
    }

    /// Takes down how a put on a condition has ended. Whether a superblock's should have held is
    /// known once the store's is compared.
    pub(super) fn count_conflict(&mut self, request: &Request, end: &End) {
        let Request::Put { key, .. } = request else { return };
        let is_superblock = key == SUPERBLOCK_KEY;
        let count = &mut self.session.conflicts.0[usize::from(!is_superblock)];
        match end {
            End::Failed(_) => *count += u32::from(!is_superblock),
            _ => *count = 0,
        }
    }

    /// Takes down that a replacement of the superblock was refused, and what the store has there:
    /// another one is a reason, after which there is no pause. A claim beside a node that replaces
    /// it all the time would never come through else.
    pub(super) fn count_refusal(&mut self, found: &Superblock) {
        let is_unchanged = self.session.current() == Some(found);
        let count = &mut self.session.conflicts.0[0];
        *count = if is_unchanged { *count + 1 } else { 0 };
    }

    /// Takes down that a first superblock was refused, though the store has none.
    pub(super) fn count_absence(&mut self) {
        self.session.conflicts.0[0] += 1;
    }

    /// Puts an object; where conditions did not hold several times in a row, after a pause that
    /// grows: a store, or a proxy, that names other versions than it compares refuses all.
    pub(super) fn put_again(&mut self, request: Request, flight: Flight) {
        let Request::Put { key, .. } = &request else { panic!("only a put is repeated") };
        let count = self.session.conflicts.0[usize::from(key != SUPERBLOCK_KEY)];
        let Some(doublings) = count.checked_sub(CONFLICTS_AT_ONCE) else {
            return self.ask(request, flight);
        };
        let cause = format!(
            "the store has refused to put `{key}` {count} times in a row, as if it had changed; it \
             has not: does a proxy change its ETag?"
        );
        self.last_fault = Some((Fault { kind: FaultKind::Retry, cause }, self.now));
        let rest = CONFLICT_REST.0 << doublings.min(8);
        let pause = Nanos(rest / 2 + self.rng.below(rest));
        self.ask_later(pause, request, flight);
    }

    fn probe_key(&self) -> String {
        format!("{PROBES_PREFIX}{}-{:016x}", self.plan.node, self.session.probe.nonce)
    }

    /// Whether a key is that of a probe of this node's, or of a file beside one; what an earlier
    /// start left is an orphan.
    pub(super) fn is_own_probe(&self, key: &str) -> bool {
        is_right_below(key, PROBES_PREFIX)
            && key[PROBES_PREFIX.len()..].starts_with(&self.plan.node.to_string())
    }

    fn probe_bytes(&self, number: u8) -> Vec<u8> {
        format!("layby asks whether the conditions of puts are kept: {number}\n").into_bytes()
    }

    fn probe_put(&mut self, number: u8) {
        let condition = match (PUTS[usize::from(number)], &self.session.probe.old) {
            (Put::Replace | Put::ReplaceOld, Some(old)) => Condition::Replace(old.clone()),
            _ => Condition::Create,
        };
        let (key, bytes) = (self.probe_key(), self.probe_bytes(number).into());
        let request = Request::Put { key, bytes, condition };
        self.put_again(request, Flight::Superblock(Step::Probe(ProbeStep::Put(number))));
    }

    /// A put of the probe, or the look after one, has ended.
    pub(super) fn on_probe(&mut self, step: ProbeStep, end: End) {
        match step {
            ProbeStep::Put(number) => self.on_probe_put(number, end),
            ProbeStep::Get(number) => self.on_probe_got(number, &end),
            ProbeStep::Delete => self.probe_or_fetch(),
        }
    }

    fn on_probe_put(&mut self, number: u8, end: End) {
        if matches!(PUTS[usize::from(number)], Put::CreateAgain | Put::ReplaceOld) {
            // These are to be refused, for a reason.
            self.session.conflicts.0[1] = 0;
        }
        match (PUTS[usize::from(number)], end) {
            (Put::Create, End::Stored(tag)) => {
                self.session.probe.old = Some(tag);
                self.probe_put(1);
            }
            (Put::Replace, End::Stored(_)) => self.probe_put(3),
            (Put::CreateAgain | Put::ReplaceOld, End::Stored(_)) => {
                if self.session.probe.is_repeated {
                    return self.end_probe(ConditionalPuts::Ignored);
                }
                self.session.probe.is_repeated = true;
                self.end_probe(ConditionalPuts::Unknown);
            }
            (Put::CreateAgain, _) => self.probe_put(2),
            (Put::ReplaceOld, _) => self.end_probe(ConditionalPuts::Kept),
            // It went through and its answer was lost, or a conflict passes.
            (Put::Create | Put::Replace, _) => {
                let request = Request::Get { key: self.probe_key(), range: None };
                self.ask(request, Flight::Superblock(Step::Probe(ProbeStep::Get(number))));
            }
        }
    }

    fn on_probe_got(&mut self, number: u8, end: &End) {
        match end {
            End::Bytes(bytes, Some(tag)) => {
                let is_done = *bytes == self.probe_bytes(number);
                match PUTS[usize::from(number)] {
                    Put::Replace if is_done => self.probe_put(3),
                    put => {
                        self.session.probe.old = Some(tag.clone());
                        self.probe_put(if put == Put::Create { 1 } else { number });
                    }
                }
            }
            _ => self.probe_put(0),
        }
    }

    /// Whether a request that has failed is not asked again: a store that does not remove the
    /// probe's object keeps it, until a sweep has better luck.
    pub(super) fn is_given_up(flight: &Flight, attempt: u32) -> bool {
        let is_delete = matches!(flight, Flight::Superblock(Step::Probe(ProbeStep::Delete)));
        is_delete && attempt >= REMOVALS_MAX
    }

    /// The probe's object goes first: a volume that is refused asks the store nothing more.
    fn end_probe(&mut self, found: ConditionalPuts) {
        self.plan.puts = found;
        let request = Request::Delete { key: self.probe_key() };
        self.ask(request, Flight::Superblock(Step::Probe(ProbeStep::Delete)));
    }
}
