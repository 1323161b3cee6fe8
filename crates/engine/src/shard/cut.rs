//! Long requests of lower ranks, submitted in pieces, so that others get their turn between them.
//!
//! How: a request is cut where its offset reaches a multiple of the piece; each piece is a request
//! of its own to the core, under the number of the whole. The bytes of a read gather in one
//! buffer of the core's, each piece's at its place, which goes to the client as it is.
//! Invariant: the client is answered once, when every piece has ended; a write's piece that failed
//! makes the whole fail, and each block holds its old version or its new one, as with any write;
//! no piece is submitted once one has failed, since each may wait as long as that one did.
//! Cost: an entry per request that is cut, none otherwise.

use super::pass::Pass;
use crate::core::{Asker, Core, Finished, Place};
use crate::io::Io;
use layby_types::{Call, ErrorKind, Nanos, Operation, VolumeId};

/// A request on its way.
pub(super) struct Cut {
    pub(super) call: Call,
    /// Bytes whose pieces were submitted.
    submitted: u64,
    /// Pieces that have not ended.
    waiting: u32,
    error: Option<ErrorKind>,
    /// Where the bytes of a read gather.
    pub(super) gathering: Option<u32>,
    pub(super) started: Nanos,
}

/// What a pass submitted of a request.
pub(super) struct Submitted {
    /// Bytes that are in the core's hands since.
    pub(super) bytes_held: u64,
    /// Nothing of the request is left to be submitted.
    pub(super) is_last: bool,
}

/// The requests of one client that were cut.
#[derive(Default)]
pub(super) struct Cuts {
    places: Vec<Option<Cut>>,
    /// The one whose pieces are being submitted; the client's bytes begin with it.
    current: Option<u32>,
    /// The requests are ranges of a wide volume's part.
    is_part: bool,
}

impl Cuts {
    /// For ranges of a wide volume's part, asked by another shard.
    pub(super) fn of_part() -> Self {
        Cuts { is_part: true, ..Cuts::default() }
    }

    /// Whether a request's pieces are being submitted.
    pub(super) fn is_cutting(&self) -> bool {
        self.current.is_some()
    }

    /// Begins with a request, or goes on with the one that was begun.
    pub(super) fn begin(&mut self, io: &mut dyn Io, core: &mut Core, call: Call) -> (u32, bool) {
        if let Some(number) = self.current {
            return (number, false);
        }
        let is_read = call.operation == Operation::Read;
        let gathering = is_read.then(|| core.open_gathering(io, call.length as usize));
        let started = core.now();
        let cut = Cut { call, submitted: 0, waiting: 0, error: None, gathering, started };
        let vacant = self.places.iter().position(Option::is_none);
        let number = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[number] = Some(cut);
        self.current = Some(number as u32);
        (number as u32, true)
    }

    fn get(&mut self, number: u32) -> &mut Cut {
        self.places[number as usize].as_mut().expect("a request lives until its last piece ends")
    }

    /// Submits pieces of the request that was begun, whose bytes are `payload`, while `pass` lasts.
    pub(super) fn submit(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        of: (Asker, VolumeId),
        (number, payload): (u32, &[u8]),
        pass: &mut Pass,
    ) -> Submitted {
        let mut bytes_held = 0;
        let whole = self.get(number).call;
        while let Some(piece) = self.next_piece(number, pass.piece_bytes(&whole)) {
            if !pass.take(&piece) {
                return Submitted { bytes_held, is_last: false };
            }
            let has_ended = self.submit_piece(io, core, of, (number, &piece), payload);
            if !has_ended {
                bytes_held += piece.length;
            }
            if self.on_submitted(number, &piece, has_ended) {
                return Submitted { bytes_held, is_last: true };
            }
        }
        self.end_cutting(number);
        Submitted { bytes_held, is_last: true }
    }

    /// Submits a piece; true when memory answered it at once.
    fn submit_piece(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        (asker, volume): (Asker, VolumeId),
        (number, piece): (u32, &Call),
        payload: &[u8],
    ) -> bool {
        let is_part = self.is_part;
        let cut = self.get(number);
        let from = (piece.offset - cut.call.offset) as usize;
        let place = cut.gathering.map(|gathering| Place { gathering, at: from as u32 });
        let bytes = match piece.operation {
            Operation::Write => &payload[from..from + piece.length as usize],
            _ => &[],
        };
        let submit = if is_part { Core::submit_part_piece } else { Core::submit_piece };
        submit(core, io, asker, volume, *piece, bytes, place)
    }

    /// The next piece, which bears the request's number as its cookie; `None` when all were taken,
    /// or one has failed.
    fn next_piece(&mut self, number: u32, piece_bytes: u64) -> Option<Call> {
        let cut = self.get(number);
        let offset = cut.call.offset + cut.submitted;
        let left = cut.call.length - cut.submitted;
        let length = left.min(piece_bytes - offset % piece_bytes);
        let is_wanted = left > 0 && cut.error.is_none();
        is_wanted.then_some(Call { cookie: u64::from(number), offset, length, ..cut.call })
    }

    /// The piece was submitted; true when it was the last.
    fn on_submitted(&mut self, number: u32, piece: &Call, has_ended: bool) -> bool {
        let cut = self.get(number);
        cut.submitted += piece.length;
        cut.waiting += u32::from(!has_ended);
        let is_last = cut.submitted == cut.call.length;
        if is_last {
            self.current = None;
        }
        is_last
    }

    /// No more pieces of the request that was begun.
    fn end_cutting(&mut self, number: u32) {
        let cut = self.get(number);
        cut.submitted = cut.call.length;
        self.current = None;
    }

    /// A piece ended.
    pub(super) fn on_piece(&mut self, finished: &Finished) {
        let cut = self.get(finished.call.cookie as u32);
        cut.error = cut.error.or(finished.result.as_ref().err().copied());
        cut.waiting -= 1;
    }

    /// Takes the request if its last piece has ended.
    pub(super) fn take_ended(&mut self, number: u32) -> Option<(Cut, Result<(), ErrorKind>)> {
        let has_ended = |cut: &mut Cut| cut.waiting == 0 && cut.submitted == cut.call.length;
        let cut = self.places[number as usize].take_if(has_ended)?;
        let result = cut.error.map_or(Ok(()), Err);
        Some((cut, result))
    }

    /// The client is gone: no more pieces. The number of the request that was being submitted.
    pub(super) fn give_up(&mut self) -> Option<u32> {
        let number = self.current?;
        self.end_cutting(number);
        let cut = self.get(number);
        cut.error = cut.error.or(Some(ErrorKind::Closed));
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no piece of a request is begun once one has failed, and the request ends once, with
    /// that error. Method: a write of four pieces of which the first fails.
    #[test]
    fn a_failed_request_asks_for_no_more_pieces() {
        let (operation, length) = (Operation::Write, 4 * 4096);
        let flags = layby_types::CallFlags::default();
        let call = Call { cookie: 0, operation, offset: 0, length, flags };
        let whole = |waiting| Cut {
            call,
            submitted: 0,
            waiting,
            error: None,
            gathering: None,
            started: Nanos::ZERO,
        };
        let mut cuts = Cuts { places: vec![Some(whole(0))], current: Some(0), is_part: false };
        let piece = cuts.next_piece(0, 4096).expect("nothing has failed");
        assert!(!cuts.on_submitted(0, &piece, false));
        assert!(cuts.next_piece(0, 4096).is_some(), "it is under way");
        let (asker, result) = (Asker(0), Err(ErrorKind::Retry));
        cuts.on_piece(&Finished { asker, call: piece, result });
        assert!(cuts.next_piece(0, 4096).is_none());
        assert!(cuts.take_ended(0).is_none(), "its bytes are still to be passed over");
        cuts.end_cutting(0);
        assert!(!cuts.is_cutting());
        let (_, result) = cuts.take_ended(0).expect("nothing is under way");
        assert_eq!(result, Err(ErrorKind::Retry));
    }
}
