//! Puts that found their key taken: by themselves, with the answer lost, or by a conflict that
//! passes, as some stores say. Which of them is looked up.
//!
//! How: the beginning of the object is compared with what was put, and its last byte where it is
//! longer. One that is cut off is no put that went through, nor another node's: it is looked at
//! again later, since some folders show files before they are whole. One that differs is fetched
//! again, after a back-off that doubles, unless its index is whole and another's. One without a
//! byte cannot be decrypted: cut off or damaged, which its tag does not tell. It is looked at for
//! as long as folders may take to show it whole, and is damaged if it stays so.
//! Invariant: a put counts only where its object begins and ends as it does; bytes that arrived
//! changed end no session.
//! Cost: one or two requests for a put in doubt. Not for: superblocks, which are read whole.

use super::again::{STAYS_DAMAGED, arrived_changed};
use super::read::{FETCHES_AGAIN_MAX, PAUSE};
use super::{Flight, Volume};
use crate::action::{Condition, End, Fault, FaultKind, Request};
use crate::segment::Index;
use bytes::Bytes;
use layby_types::Nanos;
use std::ops::DerefMut;

/// Bytes that are compared at most.
const HEAD: usize = 64 << 10;

/// Looks at an object that cannot be decrypted, beside the first: within 25 s.
const UNREADABLE_MAX: u8 = 9;

/// The bytes that an object should have from a byte on.
fn expected(bytes: &Bytes, from: u64) -> &[u8] {
    let from = from as usize;
    &bytes[from..bytes.len().min(from + HEAD)]
}

/// The end of an action, but where it shows that a put's object is cut off: then it is asked again.
pub(super) fn unless_cut(flight: &Flight, end: End) -> End {
    let Flight::Verify { key, bytes, from, .. } = flight else { return end };
    let is_cut = match &end {
        End::Bytes(found, _) => {
            let whole = expected(bytes, *from);
            !found.is_empty() && found.len() < whole.len() && whole.starts_with(found)
        }
        End::Failed(fault) => fault.kind == FaultKind::Short,
        _ => false,
    };
    if !is_cut {
        return end;
    }
    let cause = format!("object `{key}` was put, and the store has only a part of it");
    End::Failed(Fault { kind: FaultKind::Retry, cause })
}

/// Whether an object's beginning is that of a whole one which is not what was put: of damaged bytes
/// nothing can be said.
fn is_anothers(found: &[u8], bytes: &Bytes) -> bool {
    let index = Index::decode(found);
    index.is_some() && index != Index::decode(bytes)
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    pub(super) fn verify_put(&mut self, put: Flight, key: String, bytes: Bytes) {
        let (request, flight) = look_at(Box::new(put), key, bytes, (0, 0));
        self.ask(request, flight);
        self.step();
    }

    pub(super) fn on_verified(
        &mut self,
        (put, key, differed): (Box<Flight>, String, u8),
        (bytes, from): (Bytes, u64),
        end: &End,
    ) {
        let last = bytes.len() as u64 - 1;
        match end {
            End::Bytes(found, _) if *found != *expected(&bytes, from) => {
                self.on_differs((put, key, differed), (bytes, from), found);
            }
            End::Bytes(..) if last >= from + HEAD as u64 => {
                let (request, flight) = look_at(put, key, bytes, (last, 0));
                self.ask(request, flight);
            }
            End::Bytes(..) => self.on_flight(*put, End::Done),
            _ => self.put_again(Request::Put { key, bytes, condition: Condition::Create }, *put),
        }
    }

    /// An object's bytes are not what they should be from a byte on.
    fn on_differs(
        &mut self,
        (put, key, differed): (Box<Flight>, String, u8),
        (bytes, from): (Bytes, u64),
        found: &[u8],
    ) {
        const UNREADABLE: &str =
            "cannot be decrypted: it is damaged, or only a part of it is there";
        let is_unreadable = found.is_empty();
        let (looks_max, what) = match is_unreadable {
            true => (UNREADABLE_MAX, UNREADABLE),
            false => (FETCHES_AGAIN_MAX, "differs from what this node put"),
        };
        if from == 0 && is_anothers(found, &bytes) {
            return self.lose(format!("`{key}` in the store is not this node's"));
        }
        if differed >= looks_max {
            return self.lose(format!("`{key}` in the store {what}; {STAYS_DAMAGED}"));
        }
        let cause = || format!("object `{key}` was put, and {UNREADABLE}; it is fetched again");
        let fault = match is_unreadable {
            true => Fault { kind: FaultKind::Retry, cause: cause() },
            false => arrived_changed(&key),
        };
        self.last_fault = Some((fault, self.now));
        let pause = Nanos(PAUSE.0 << differed);
        let (request, flight) = look_at(put, key, bytes, (from, differed + 1));
        self.ask_later(pause, request, flight);
    }
}

/// Looks at an object from a byte on, where it has differed so often.
fn look_at(
    put: Box<Flight>,
    key: String,
    bytes: Bytes,
    (from, differed): (u64, u8),
) -> (Request, Flight) {
    let range = Some(from..from + HEAD as u64);
    let request = Request::Get { key: key.clone(), range };
    (request, Flight::Verify { put, key, bytes, from, differed })
}
