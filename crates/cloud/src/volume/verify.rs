//! Puts that found their key taken: by themselves, with the answer lost, or by a conflict that
//! passes, as some stores say. Which of them is looked up.
//!
//! How: the beginning of the object is compared with what was put, and its last byte where it is
//! longer. One that is cut off is no put that went through, nor another node's: it is looked at
//! again later, since some folders show files before they are whole.
//! Invariant: a put counts only where its object begins and ends as it does.
//! Cost: one or two requests for a put in doubt. Not for: superblocks, which are read whole.

use super::{Flight, Volume};
use crate::action::{Condition, End, Fault, FaultKind, Request};
use bytes::Bytes;
use std::ops::DerefMut;

/// Bytes that are compared at most.
const HEAD: usize = 64 << 10;

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
            found.len() < whole.len() && whole.starts_with(found)
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

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    pub(super) fn verify_put(&mut self, put: Flight, key: String, bytes: Bytes) {
        self.look_at_put(Box::new(put), key, bytes, 0);
        self.step();
    }

    fn look_at_put(&mut self, put: Box<Flight>, key: String, bytes: Bytes, from: u64) {
        let range = Some(from..from + HEAD as u64);
        let request = Request::Get { key: key.clone(), range };
        self.ask(request, Flight::Verify { put, key, bytes, from });
    }

    pub(super) fn on_verified(
        &mut self,
        put: Box<Flight>,
        key: String,
        (bytes, from): (Bytes, u64),
        end: &End,
    ) {
        let last = bytes.len() as u64 - 1;
        match end {
            End::Bytes(found, _) if *found != *expected(&bytes, from) => {
                self.lose(format!("`{key}` in the store is not this node's"));
            }
            End::Bytes(..) if last >= from + HEAD as u64 => {
                self.look_at_put(put, key, bytes, last);
            }
            End::Bytes(..) => self.on_flight(*put, End::Done),
            _ => self.put_again(Request::Put { key, bytes, condition: Condition::Create }, *put),
        }
    }
}
