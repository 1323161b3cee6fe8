//! Answers in the conversation about the superblock that are asked for again: an object that is
//! missing, maybe for a moment only, or bytes whose checksum does not hold.
//!
//! How: such an answer is counted, and the object fetched again after a back-off that doubles. An
//! answer that is whole ends the count; the last of [`FETCHES_AGAIN_MAX`] is passed on as it is.
//! Invariant: nothing is concluded from bytes whose checksum does not hold while the object can
//! still arrive whole.
//! Cost: a checksum per object, and 750 ms where an object stays damaged. Not for: segments that
//! clients read, see `read`; puts in doubt, see `verify`; a look, which comes again by itself.

use super::read::{FETCHES_AGAIN_MAX, PAUSE};
use super::session::{HEAD_BYTES, Step};
use super::{Flight, Retry, Volume};
use crate::action::{End, Fault, FaultKind, Request};
use crate::codec::unseal;
use crate::segment::{HEADER_BYTES, Index};
use crate::superblock::Superblock;
use layby_types::Nanos;
use std::ops::DerefMut;

/// What to do about damage that stays, at the end of a message.
pub(super) const STAYS_DAMAGED: &str = "a start asks the store again; `layby salvage` saves what \
                                        only the journal has";

/// What an answer is worth.
#[derive(PartialEq, Eq)]
enum Answer {
    Whole,
    /// A part of an index, whose rest is fetched.
    Begun,
    Damaged,
}

/// What the bytes are that a step of the conversation got.
fn answer_of(step: &Step, bytes: &[u8]) -> Answer {
    let is_whole = match step {
        Step::Fetch
        | Step::Beyond
        | Step::Before
        | Step::Compare
        | Step::After
        | Step::Recheck(_) => Superblock::is_whole(bytes),
        Step::Checkpoint => unseal(bytes).is_some(),
        Step::Head { is_whole } => {
            let length = bytes.get(..HEADER_BYTES).and_then(Index::head_length);
            if !is_whole && length.is_some_and(|length| length > bytes.len()) {
                return Answer::Begun;
            }
            Index::decode(bytes).is_some()
        }
        Step::Unnamed { .. } => Index::decode_whole(bytes).is_some(),
        Step::Probe(_) | Step::Propose | Step::Look { .. } => true,
    };
    if is_whole { Answer::Whole } else { Answer::Damaged }
}

/// The cause that names an object which arrived changed.
pub(super) fn arrived_changed(key: &str) -> Fault {
    let cause = format!("object `{key}` arrived changed; it is fetched again");
    Fault { kind: FaultKind::Retry, cause }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Whether the answer to a step says nothing yet: its object is missing, and may be so for a
    /// moment only, as reads know it, or its bytes are changed.
    pub(super) fn is_missed(&mut self, step: &Step, request: &Request, end: &End) -> bool {
        let is_there = match step {
            Step::Fetch => self.had_superblock(),
            // One that learns finds out where they end.
            Step::Unnamed { .. } => !self.is_learning(),
            Step::Head { .. } | Step::Checkpoint | Step::Recheck(_) => true,
            Step::Beyond | Step::Before | Step::Compare | Step::After => {
                self.session.current().is_some()
            }
            Step::Probe(_) | Step::Propose | Step::Look { .. } => return false,
        };
        let is_missed = match end {
            End::Failed(_) => is_there,
            End::Bytes(bytes, _) => match answer_of(step, bytes) {
                Answer::Begun => return false,
                answer => answer == Answer::Damaged,
            },
            _ => false,
        };
        let is_missed = is_missed && !self.session.is_lost();
        let is_missed = is_missed && self.session.missed < FETCHES_AGAIN_MAX;
        self.session.missed = if is_missed { self.session.missed + 1 } else { 0 };
        if let (true, End::Bytes(..), Request::Get { key, .. }) = (is_missed, end, request) {
            self.last_fault = Some((arrived_changed(key), self.now));
        }
        is_missed
    }

    /// Fetches an object once more whose answer was missed, after a back-off that doubles.
    pub(super) fn ask_missed_again(&mut self, request: Request, flight: Flight) {
        let pause = Nanos(PAUSE.0 << (self.session.missed - 1));
        match (request, flight) {
            // The length that was fetched may come from a header that had arrived changed.
            (Request::Get { key, .. }, Flight::Superblock(Step::Head { .. })) => {
                let request = Request::Get { key, range: Some(0..HEAD_BYTES) };
                let step = Step::Head { is_whole: false };
                self.ask_later(pause, request, Flight::Superblock(step));
            }
            (request, flight) => self.ask_later(pause, request, flight),
        }
    }

    pub(super) fn ask_later(&mut self, pause: Nanos, request: Request, flight: Flight) {
        let retry = Retry { flight, request, attempt: 0 };
        self.resting.push((self.now.saturating_add(pause), retry));
    }
}
