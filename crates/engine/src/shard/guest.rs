//! A guest's queue: kicks in, calls to the core, answers into the guest's memory.
//!
//! How: one wait for the queue's event descriptor is in flight. After a kick the ring is emptied as
//! far as its bounds allow, then the guest is asked for another kick. Queues of the best rank come
//! first; the others share a quantum of bytes a turn. What a turn answered is
//! announced at the end of the turn with one call, where the guest wants it.
//! Invariant: a queue leaves the table only when it was told to stop and nothing of it is in
//! flight, so that the memory behind it is not touched afterwards.
//! Cost: a read that hits memory is copied once, into the guest's memory.

use super::gate::Gate;
use super::pass::cost_of;
use crate::control::{Answer as CommandAnswer, GuestQueue};
use crate::core::{Answer, Asker, Core, Finished, ReadSink};
use crate::io::{EventId, Host, Io, IoError, IoOperation, Token};
use layby_cache::schedule::Rank;
use layby_types::{Call, GuestRing, Operation, SessionError, Taken, VolumeId};

/// Requests taken at once at most; then other clients have their turn.
const TAKEN_PER_TURN_MAX: u32 = 128;
/// Bytes of requests of one queue in flight at most (one more request may start).
const INFLIGHT_BYTES_MAX: u64 = 64 << 20;
/// The bit that tells a queue's number from a client's, as asker.
const GUEST_ASKER: u64 = 1 << 30;

/// Token tag of a queue's wait for its event; its number follows.
pub(super) const TAG_EVENT: u64 = 0x32;

/// See the file's header.
struct Guest {
    number: u32,
    volume: VolumeId,
    rank: Rank,
    peer: String,
    ring: Box<dyn GuestRing>,
    call: crate::control::CallEvent,
    event: EventId,
    /// A wait for the event is in flight.
    is_waiting: bool,
    /// The bytes of a write, used again.
    payload: Vec<u8>,
    inflight: u32,
    inflight_bytes: u64,
    /// The call that its volume's limits hold; its bytes are in `payload`.
    held: Option<Call>,
    /// The held call may start.
    is_released: bool,
    /// The ring may hold more, though no kick will say so.
    has_more: bool,
    /// No more requests are taken.
    is_leaving: bool,
    /// The event descriptor is closed.
    is_closed: bool,
    stop: Option<CommandAnswer<u16>>,
}

impl Guest {
    fn asker(&self) -> u32 {
        GUEST_ASKER as u32 | self.number
    }

    fn is_full(&self) -> bool {
        self.inflight_bytes >= INFLIGHT_BYTES_MAX
    }

    /// Takes what the ring offers until `left` bytes are used up; the last request may exceed them.
    fn advance(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        left: &mut u64,
    ) -> Result<(), SessionError> {
        self.has_more = false;
        self.wait(io);
        if std::mem::take(&mut self.is_released)
            && let Some(call) = self.held.take()
        {
            *left = left.saturating_sub(cost_of(&call));
            self.ask(io, core, call)?;
        }
        for _ in 0..TAKEN_PER_TURN_MAX {
            if self.is_leaving || self.is_full() || self.held.is_some() {
                return Ok(());
            }
            if *left == 0 {
                break;
            }
            match self.ring.take(&mut self.payload)? {
                Taken::Call(call) if !gate.may_start(self.volume, self.asker(), &call) => {
                    self.held = Some(call);
                }
                Taken::Call(call) => {
                    *left = left.saturating_sub(cost_of(&call));
                    self.ask(io, core, call)?;
                }
                Taken::Answered => {}
                Taken::Nothing => {
                    if !self.ring.listen()? {
                        return Ok(());
                    }
                }
            }
        }
        self.has_more = true;
        Ok(())
    }

    fn wait(&mut self, io: &mut dyn Io) {
        if !self.is_closed && !std::mem::replace(&mut self.is_waiting, true) {
            let token = Token(TAG_EVENT << 56 | u64::from(self.number));
            io.submit(token, IoOperation::Await { event: self.event });
        }
    }

    /// The one place where a guest's request becomes the core's.
    fn ask(&mut self, io: &mut dyn Io, core: &mut Core, call: Call) -> Result<(), SessionError> {
        let (asker, volume) = (Asker(u64::from(self.asker())), self.volume);
        core.note_request(volume, &call);
        if call.operation == Operation::Read {
            let mut sink = Sink { ring: &mut *self.ring, call, at: 0 };
            if core.submit(io, asker, volume, call, &[], Some(&mut sink)) {
                return self.ring.finish(&call, Ok(()));
            }
        } else {
            let bytes = if call.operation == Operation::Write { call.length as usize } else { 0 };
            core.submit(io, asker, volume, call, &self.payload[..bytes], None);
        }
        self.inflight += 1;
        self.inflight_bytes += bytes_of(&call);
        Ok(())
    }

    fn reply(&mut self, io: &mut dyn Io, finished: Finished) -> Result<(), SessionError> {
        let Finished { call, result, .. } = finished;
        self.inflight -= 1;
        self.inflight_bytes -= bytes_of(&call);
        let result = result.map(|answer| {
            if let Answer::Data(data) = answer {
                self.ring.put(&call, 0, &data);
                io.recycle(data.into_buffer());
            }
        });
        self.ring.finish(&call, result)
    }

    fn flush(&mut self) {
        if self.ring.take_signal() {
            self.call.signal();
        }
    }

    fn leave(&mut self, io: &mut dyn Io) {
        self.is_leaving = true;
        self.has_more = false;
        if !std::mem::replace(&mut self.is_closed, true) {
            io.close_event(self.event);
        }
    }

    /// Answers a stop once nothing is in flight; true when the queue is gone.
    fn settle(&mut self) -> bool {
        if self.inflight > 0 || self.is_waiting || !self.is_closed {
            return false;
        }
        let Some(answer) = self.stop.take() else { return false };
        answer(Ok(self.ring.base()));
        true
    }
}

fn bytes_of(call: &Call) -> u64 {
    match call.operation {
        Operation::Read | Operation::Write => call.length,
        _ => 0,
    }
}

/// Puts a read hit into the guest's memory.
struct Sink<'a> {
    ring: &'a mut dyn GuestRing,
    call: Call,
    at: u64,
}

impl ReadSink for Sink<'_> {
    fn head(&mut self, _call: &Call) {}

    fn bytes(&mut self, bytes: &[u8]) {
        self.ring.put(&self.call, self.at, bytes);
        self.at += bytes.len() as u64;
    }
}

/// A queue whose guest broke it.
pub(super) struct BrokenQueue {
    pub(super) peer: String,
    pub(super) volume: VolumeId,
    pub(super) reason: &'static str,
}

/// All queues of a shard.
#[derive(Default)]
pub(super) struct Guests {
    places: Vec<Option<Guest>>,
    /// Where the next turn begins.
    first: u32,
    broken: Vec<BrokenQueue>,
}

impl Guests {
    /// Serves a queue from now on; answers with its number.
    pub(super) fn start(
        &mut self,
        io: &mut impl Host,
        rank: Rank,
        queue: GuestQueue,
    ) -> Result<u32, IoError> {
        let GuestQueue { volume, ring, kick, call, peer } = queue;
        let event = io.attach_event(kick)?;
        let vacant = self.places.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let number = index as u32;
        self.places[index] = Some(Guest {
            number,
            volume,
            rank,
            peer,
            ring,
            call,
            event,
            is_waiting: false,
            payload: Vec::new(),
            inflight: 0,
            inflight_bytes: 0,
            held: None,
            is_released: false,
            has_more: true,
            is_leaving: false,
            is_closed: false,
            stop: None,
        });
        Ok(number)
    }

    /// Takes no more of a queue; `answer` comes when what was taken is answered.
    pub(super) fn stop(&mut self, io: &mut dyn Io, number: u32, answer: CommandAnswer<u16>) {
        let place = self.places.get_mut(number as usize).and_then(Option::as_mut);
        let guest = place.expect("who started a queue stops it once");
        guest.stop = Some(answer);
        guest.leave(io);
    }

    /// Whether an asker is one of these.
    pub(super) fn is_asker(asker: Asker) -> bool {
        asker.0 < 1 << 32 && asker.0 & GUEST_ASKER != 0
    }

    /// The wait for a queue's event has ended; it is served in this turn.
    pub(super) fn on_event(&mut self, number: u32) {
        let place = self.places[number as usize].as_mut();
        let guest = place.expect("a queue outlives its wait");
        guest.is_waiting = false;
        guest.has_more = true;
    }

    /// The call that waited for the volume's limits may start.
    pub(super) fn on_released(&mut self, asker: Asker) {
        let number = asker.0 & (GUEST_ASKER - 1);
        let guest = self.places[number as usize].as_mut().expect("who is gone waits for nothing");
        guest.is_released = true;
        guest.has_more = true;
    }

    fn advance(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        number: u32,
        left: &mut u64,
    ) {
        let Some(guest) = self.places[number as usize].as_mut() else { return };
        if let Err(SessionError { reason }) = guest.advance(io, core, gate, left) {
            self.note_broken(io, number, reason);
        }
    }

    /// Queues follow their volumes' classes.
    pub(super) fn set_ranks(&mut self, core: &Core) {
        for guest in self.places.iter_mut().flatten() {
            guest.rank = core.rank_of(guest.volume);
        }
    }

    /// The ranks of queues that are served.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.places.iter().flatten().filter(|guest| !guest.is_leaving).map(|guest| guest.rank)
    }

    fn note_broken(&mut self, io: &mut dyn Io, number: u32, reason: &'static str) {
        let Some(guest) = self.places[number as usize].as_mut() else { return };
        if !guest.is_leaving {
            let (peer, volume) = (guest.peer.clone(), guest.volume);
            self.broken.push(BrokenQueue { peer, volume, reason });
        }
        guest.leave(io);
    }

    /// Takes the end of a request, and more requests where there was no room for them.
    pub(super) fn reply(&mut self, io: &mut dyn Io, finished: Finished) {
        let number = (finished.asker.0 & (GUEST_ASKER - 1)) as u32;
        let guest = self.places[number as usize].as_mut().expect("a queue outlives its requests");
        let was_full = guest.is_full();
        let result = guest.reply(io, finished);
        guest.has_more |= was_full && !guest.is_leaving;
        if let Err(SessionError { reason }) = result {
            self.note_broken(io, number, reason);
        }
    }

    /// Goes on with queues that have something to do: those of the best rank as far as a turn
    /// takes them, then the others with `quantum` bytes together, each turn beginning one further.
    pub(super) fn go_on(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        (best, quantum): (Rank, u64),
    ) {
        let count = self.places.len() as u32;
        self.first = (self.first + 1).checked_rem(count).unwrap_or(0);
        let mut left = [u64::MAX, quantum];
        for is_best in [true, false] {
            for number in (self.first..count).chain(0..self.first) {
                let guest = self.places[number as usize].as_ref();
                if guest.is_some_and(|guest| guest.has_more && (guest.rank <= best) == is_best) {
                    self.advance(io, core, gate, number, &mut left[usize::from(!is_best)]);
                }
            }
        }
    }

    /// Whether a wait would keep a queue from going on.
    pub(super) fn has_more(&self) -> bool {
        self.places.iter().flatten().any(|guest| guest.has_more)
    }

    /// Announces what was answered, and lets stopped queues go.
    pub(super) fn flush(&mut self, gate: &mut Gate) -> Vec<BrokenQueue> {
        for place in &mut self.places {
            let Some(guest) = place else { continue };
            guest.flush();
            if guest.settle() {
                gate.cancel(guest.volume, guest.asker());
                *place = None;
            }
        }
        std::mem::take(&mut self.broken)
    }

    /// Takes no more from the queues of `volume`, or from any.
    pub(super) fn leave(&mut self, io: &mut dyn Io, volume: Option<VolumeId>) {
        let guests = self.places.iter_mut().flatten();
        let mine = guests.filter(|guest| volume.is_none_or(|volume| guest.volume == volume));
        mine.for_each(|guest| guest.leave(io));
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.places.iter().flatten().all(|guest| guest.inflight == 0)
    }

    /// The shard ends: whoever waits for a queue's end has it.
    pub(super) fn end(&mut self) {
        for mut guest in self.places.drain(..).flatten() {
            guest.flush();
            let base = guest.ring.base();
            guest.stop.take().into_iter().for_each(|answer| answer(Ok(base)));
        }
    }
}
