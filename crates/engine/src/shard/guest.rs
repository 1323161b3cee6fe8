//! A guest's queue: kicks in, calls to the core, answers into the guest's memory.
//!
//! How: one wait for the queue's event descriptor is in flight. After a kick the ring is emptied as
//! far as its bounds allow, then the guest is asked for another kick. Queues of the best rank come
//! first; the others share a quantum of bytes a turn, which cuts their long requests, and wait
//! while their rank has too much in the core's hands. What a turn answered is announced at the end
//! of the turn with one call, where the guest wants it. What the queues of a volume hold together
//! is bounded; what is beyond stays in their rings.
//! What other shards ask of a wide volume's part comes by a link, which is such a queue without a
//! descriptor: its shard wakes this one, and its limits were asked for there. Whole requests come
//! by a link of each client there, so that a client's call waits for limits alone. What has not
//! begun when that client leaves never does: its next writes must not be followed by it. A link
//! never waits for its rank's bytes in the core's hands, since some of them may wait for a link
//! themselves.
//! Invariant: a queue leaves the table only when it was told to stop and nothing that was taken
//! from it is in flight. Its ring goes before where its guest is gone (see [`abandoned`]). The
//! memory behind a ring is touched through the ring alone, so no longer once that went. All that
//! was taken is answered, but for what a stop of the node ended, which its next incarnation carries
//! out, and what was abandoned.
//! Cost: a read that hits memory is copied once, into the guest's memory; twice where it is cut.

mod abandoned;
mod bound;
mod left;
#[cfg(test)]
mod tests;

use super::cut::{Cut, Cuts};
use super::ending::is_ended_by_stop;
use super::gate::{Gate, Hold};
use super::memory::ClientMemory;
use super::pass::{Pass, bytes_of};
use crate::control::{Answer as CommandAnswer, CallEvent, GuestQueue, MonitorId};
use crate::core::{Answer, Asker, Core, Finished, ReadSink};
use crate::io::{EventId, Host, Io, IoError, IoOperation, Token, Waker};
use crate::link::{FarEnd, FarLook};
use bound::HELD_BYTES_MAX;
use layby_cache::schedule::Rank;
use layby_types::{Call, ErrorKind, GuestRing, Operation, SessionError, Taken, VolumeId};
use std::collections::HashMap;

/// Requests taken at once at most; then other clients have their turn.
const TAKEN_PER_TURN_MAX: u32 = 128;
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
    /// Whose it is, where that may leave without waiting for answers.
    monitor: Option<MonitorId>,
    ring: Box<dyn GuestRing>,
    call: CallEvent,
    /// Where its kicks come from; a link has none.
    event: Option<EventId>,
    /// It is another shard's link, not a guest's queue.
    link: Option<Link>,
    /// A wait for the event is in flight.
    is_waiting: bool,
    /// The bytes of a write, used again.
    payload: Vec<u8>,
    inflight: u32,
    inflight_bytes: u64,
    /// Of these, bytes that the core holds.
    submitted_bytes: u64,
    /// Bytes that it may hold beside its volume's other queues, and what it was last counted.
    room: u64,
    counted: u64,
    /// It was full when it was last counted.
    is_short: bool,
    /// The call that was taken and did not start, or not as a whole; its bytes are in `payload`.
    taken: Option<Call>,
    /// How it stands towards its volume's limits.
    hold: Hold,
    cuts: Cuts,
    /// Its rank has too much in the core's hands.
    is_rank_held: bool,
    /// The ring may hold more, though no kick will say so.
    has_more: bool,
    /// No more requests are taken.
    is_leaving: bool,
    /// That is so since the node stops.
    is_stopping: bool,
    /// The event descriptor is closed.
    is_closed: bool,
    /// A stop does not wait for answers.
    may_be_abandoned: bool,
    /// Calls that a stop of the node left unanswered.
    unanswered: Vec<Call>,
    /// What is unanswered when its ring goes is carried out again.
    is_repeated: bool,
    /// Its ring was given back; what is in flight is answered to nobody.
    is_abandoned: bool,
    stop: Option<CommandAnswer<u16>>,
}

/// What is known of a link's near end.
struct Link {
    look: FarLook,
    /// It brings whole requests, to be held back and dealt here; else ranges of the part.
    is_lead: bool,
    /// Clients there used the volume at the last look.
    was_used: bool,
}

impl Guest {
    fn new(
        (volume, rank): (VolumeId, Rank),
        peer: String,
        ring: Box<dyn GuestRing>,
        (event, call): (EventId, CallEvent),
    ) -> Self {
        Guest {
            number: 0,
            volume,
            rank,
            peer,
            monitor: None,
            ring,
            call,
            event: Some(event),
            link: None,
            is_waiting: false,
            payload: Vec::new(),
            inflight: 0,
            inflight_bytes: 0,
            submitted_bytes: 0,
            room: HELD_BYTES_MAX,
            counted: 0,
            is_short: false,
            taken: None,
            hold: Hold::Open,
            cuts: Cuts::default(),
            is_rank_held: false,
            has_more: true,
            is_leaving: false,
            is_stopping: false,
            is_closed: false,
            may_be_abandoned: false,
            unanswered: Vec::new(),
            is_repeated: true,
            is_abandoned: false,
            stop: None,
        }
    }

    fn of_link((volume, rank): (VolumeId, Rank), (end, is_lead): (FarEnd, bool)) -> Self {
        let link = Link { look: end.look(), is_lead, was_used: false };
        // The number is no event's: there is none.
        let nothing = (EventId(0), CallEvent::default());
        let guest = Guest::new((volume, rank), "another shard".into(), Box::new(end), nothing);
        let cuts = if is_lead { Cuts::default() } else { Cuts::of_part() };
        Guest { event: None, link: Some(link), cuts, ..guest }
    }

    /// Whether its requests are ranges of the part that is here.
    fn is_part(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.is_lead)
    }

    fn asker(&self) -> u32 {
        GUEST_ASKER as u32 | self.number
    }

    fn may_go_on(&self) -> bool {
        self.has_more && !self.is_rank_held
    }

    /// Takes what the ring offers as far as `pass` goes.
    fn advance(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        pass: &mut Pass,
    ) -> Result<(), SessionError> {
        self.has_more = false;
        self.wait(io);
        if self.is_held() && !self.has_client_left() {
            return Ok(());
        }
        for _ in 0..TAKEN_PER_TURN_MAX {
            if self.taken.is_none() && (self.is_leaving || self.is_full()) {
                return Ok(());
            }
            if pass.is_over(true) {
                break;
            }
            if self.taken.is_none() {
                match self.ring.take(&mut self.payload)? {
                    Taken::Call(call) => self.taken = Some(call),
                    Taken::Answered => continue,
                    Taken::Nothing if self.ring.listen()? => continue,
                    Taken::Nothing => return Ok(()),
                }
            }
            let call = self.taken.expect("it was just taken, or before");
            if let Some(kind) = self.refusal(gate, &call) {
                self.drop_taken(gate);
                self.ring.finish(&call, Err(kind))?;
                continue;
            }
            if !self.may_start(gate, &call) {
                // Its intent may never be recorded; the next incarnation gets the request again.
                if self.is_stopping {
                    self.leave_unanswered(&call);
                    self.drop_taken(gate);
                }
                return Ok(());
            }
            if !self.take_call(io, core, call, pass)? {
                break;
            }
            self.clear_taken();
        }
        self.has_more = true;
        Ok(())
    }

    /// Why the call that was taken is refused, if it has not begun. Ranges of the part have: they
    /// were let in by the client's shard, or by the one that keeps the limits.
    fn refusal(&self, gate: &Gate, call: &Call) -> Option<ErrorKind> {
        if self.cuts.is_cutting() || self.is_part() {
            return None;
        }
        if self.finds_client_left() {
            return Some(ErrorKind::Closed);
        }
        gate.refusal(self.volume, call)
    }

    /// Whether its calls are of another shard's client that is known to have left.
    fn has_client_left(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_lead && link.look.has_left())
    }

    /// The same, with a look at that client's socket where the call that was taken has waited: its
    /// shard may hear later of its end than this one does of the client's next connection.
    fn finds_client_left(&self) -> bool {
        let has_waited = self.hold != Hold::Open;
        let link = self.link.as_ref().filter(|link| link.is_lead && has_waited);
        self.has_client_left() || link.is_some_and(|link| link.look.finds_left())
    }

    /// Whether the call that was taken waits, so that nothing is asked until its release, whatever
    /// kicks come. What was taken from a queue that stops waits for no limits.
    fn is_held(&self) -> bool {
        self.hold == Hold::Held && !self.is_leaving
    }

    /// Whether a call may start now, or is on its way already. It is paid for once, and what was
    /// taken from a queue that stops is answered whatever the limits say, and charged.
    fn may_start(&mut self, gate: &mut Gate, call: &Call) -> bool {
        let is_begun = self.cuts.is_cutting() || self.is_part();
        let is_paid = self.hold == Hold::Released || is_begun;
        let (volume, asker) = (self.volume, self.asker());
        let may_change = is_begun || gate.may_change(volume, asker, call);
        let cannot_wait = may_change && !is_paid && self.is_leaving;
        if cannot_wait {
            gate.charge(volume, asker, call);
        }
        let is_paid = is_paid || cannot_wait;
        let may = may_change && (is_paid || gate.may_start(volume, asker, call));
        self.hold = if may { Hold::Released } else { Hold::Held };
        may
    }

    /// Asks for what `pass` lasts for; false when something of the call is left for the next one.
    fn take_call(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        call: Call,
        pass: &mut Pass,
    ) -> Result<bool, SessionError> {
        if self.cuts.is_cutting() || pass.cuts(&call) {
            return self.ask_pieces(io, core, call, pass);
        }
        let is_taken = pass.take(&call);
        if is_taken {
            self.ask(io, core, call)?;
        }
        Ok(is_taken)
    }

    fn wait(&mut self, io: &mut dyn Io) {
        let Some(event) = self.event else { return };
        if !self.is_closed && !std::mem::replace(&mut self.is_waiting, true) {
            let token = Token(TAG_EVENT << 56 | u64::from(self.number));
            io.submit(token, IoOperation::Await { event });
        }
    }

    fn ask(&mut self, io: &mut dyn Io, core: &mut Core, call: Call) -> Result<(), SessionError> {
        let (asker, volume) = (Asker(u64::from(self.asker())), self.volume);
        self.note(core, &call);
        let submit = if self.is_part() { Core::submit_part } else { Core::submit };
        if call.operation == Operation::Read {
            let mut sink = Sink { ring: &mut *self.ring, call, at: 0 };
            if submit(core, io, asker, volume, call, &[], Some(&mut sink)) {
                return self.ring.finish(&call, Ok(()));
            }
        } else {
            let bytes = if call.operation == Operation::Write { call.length as usize } else { 0 };
            submit(core, io, asker, volume, call, &self.payload[..bytes], None);
        }
        self.began(&call);
        self.submitted_bytes += bytes_of(&call);
        Ok(())
    }

    /// A recording hears of requests where their clients are.
    fn note(&self, core: &mut Core, call: &Call) {
        if self.link.is_none() {
            core.note_request(self.volume, call);
        }
    }

    fn began(&mut self, call: &Call) {
        self.inflight += 1;
        self.inflight_bytes += bytes_of(call);
    }

    fn ended(&mut self, call: &Call) {
        self.inflight -= 1;
        self.inflight_bytes -= bytes_of(call);
    }

    /// Submits pieces of a long request while `pass` lasts; true when all were.
    fn ask_pieces(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        call: Call,
        pass: &mut Pass,
    ) -> Result<bool, SessionError> {
        let (number, is_new) = self.cuts.begin(io, core, call);
        if is_new {
            self.note(core, &call);
            self.began(&call);
        }
        let of = (Asker(u64::from(self.asker())), self.volume);
        let submitted = self.cuts.submit(io, core, of, (number, &self.payload), pass);
        self.submitted_bytes += submitted.bytes_held;
        if submitted.is_last {
            self.end_cut(io, core, number)?;
        }
        Ok(submitted.is_last)
    }

    /// Answers a request that was cut, when its last piece has ended.
    fn end_cut(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        number: u32,
    ) -> Result<(), SessionError> {
        let Some((cut, result)) = self.cuts.take_ended(number) else { return Ok(()) };
        let Cut { call, gathering, started, .. } = cut;
        self.ended(&call);
        core.note_answered(self.volume, &call, started, (result.is_ok(), self.is_part()));
        if let Some(answer) = gathering.map(|gathering| core.close_gathering(gathering)) {
            if result.is_ok() {
                self.ring.put(&call, 0, &answer);
            }
            io.recycle(answer.into_buffer());
        }
        self.finish(&call, result)
    }

    fn reply(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        finished: Finished,
    ) -> Result<(), SessionError> {
        self.submitted_bytes -= bytes_of(&finished.call);
        if finished.asker.is_piece() {
            self.cuts.on_piece(&finished);
            return self.end_cut(io, core, finished.call.cookie as u32);
        }
        let Finished { call, result, .. } = finished;
        self.ended(&call);
        let result = result.map(|answer| match answer {
            Answer::Data(data) => {
                self.ring.put(&call, 0, &data);
                io.recycle(data.into_buffer());
            }
            Answer::Extents(extents) => self.ring.put_extents(&call, extents),
            Answer::Nothing => {}
        });
        self.finish(&call, result)
    }

    /// Answers a call, unless a stop has ended it: then the ring's next server gets it again.
    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        if self.is_stopping && is_ended_by_stop(call, result.as_ref().err()) {
            self.leave_unanswered(call);
            return Ok(());
        }
        self.ring.finish(call, result)
    }

    fn flush(&mut self) {
        if self.ring.take_signal() {
            self.call.signal();
        }
    }

    /// Takes no more; what was taken goes on.
    fn leave(&mut self, io: &mut dyn Io) {
        self.is_leaving = true;
        self.has_more = self.taken.is_some();
        // Only what is served has a rank: nothing would let it go on.
        self.is_rank_held = false;
        if !std::mem::replace(&mut self.is_closed, true)
            && let Some(event) = self.event
        {
            io.close_event(event);
        }
    }

    /// Whether nothing that was taken is left unanswered.
    fn is_quiet(&self) -> bool {
        self.inflight == 0 && self.taken.is_none()
    }

    /// Answers a stop once nothing is in flight; true when the queue is gone.
    fn settle(&mut self) -> bool {
        if !self.is_quiet() || self.is_waiting || !self.is_closed {
            return false;
        }
        if self.link.is_some() || self.is_abandoned {
            return true;
        }
        let Some(answer) = self.stop.take() else { return false };
        self.give_back();
        answer(Ok(self.ring.base()));
        true
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
pub(super) struct Guests {
    places: Vec<Option<Guest>>,
    /// What a volume's queues hold at most, and what they hold now; links have bounds of their own.
    bytes_max: u64,
    held: HashMap<VolumeId, u64>,
    /// The same for all queues.
    shard_bytes_max: u64,
    held_total: u64,
    /// Queues were full, and something was freed since they were last looked at.
    has_short: bool,
    has_freed: bool,
    /// Where the next turn begins.
    first: u32,
    broken: Vec<BrokenQueue>,
}

#[cfg(test)]
impl Default for Guests {
    fn default() -> Self {
        Guests::new(ClientMemory::DEFAULT)
    }
}

impl Guests {
    /// Of a shard, whose queues may hold as much as its clients.
    pub(super) fn new(limits: ClientMemory) -> Self {
        Guests {
            places: Vec::new(),
            bytes_max: HELD_BYTES_MAX,
            held: HashMap::new(),
            shard_bytes_max: limits.bytes_max,
            held_total: 0,
            has_short: false,
            has_freed: false,
            first: 0,
            broken: Vec::new(),
        }
    }

    /// Serves a queue from now on; answers with its number.
    pub(super) fn start(
        &mut self,
        io: &mut impl Host,
        rank: Rank,
        queue: GuestQueue,
    ) -> Result<u32, IoError> {
        let GuestQueue { monitor, volume, ring, kick, call, peer } = queue;
        let event = io.attach_event(kick)?;
        let guest = Guest::new((volume, rank), peer, ring, (event, call));
        Ok(self.add(Guest { monitor, ..guest }))
    }

    /// Serves what another shard asks until nobody asks there any more.
    pub(super) fn start_link(
        &mut self,
        waker: Waker,
        of: (VolumeId, Rank),
        (end, is_lead): (FarEnd, bool),
    ) {
        end.set_waker(waker);
        self.add(Guest::of_link(of, (end, is_lead)));
    }

    /// Serves the branches of links that have come.
    pub(super) fn start_branches(&mut self, waker: impl Fn() -> Waker) {
        let mut branches = Vec::new();
        for guest in self.places.iter().flatten().filter(|guest| !guest.is_leaving) {
            let Some(link) = guest.link.as_ref().filter(|link| link.is_lead) else { continue };
            let new = link.look.take_branches().into_iter();
            branches.extend(new.map(|end| ((guest.volume, guest.rank), end)));
        }
        branches.into_iter().for_each(|(of, end)| self.start_link(waker(), of, (end, true)));
    }

    /// Looks what other shards have to say; true where the ranks to be served have changed.
    pub(super) fn look(&mut self, io: &mut dyn Io) -> bool {
        let mut has_changed = false;
        for guest in self.places.iter_mut().flatten().filter(|guest| !guest.is_leaving) {
            let Some(link) = &mut guest.link else { continue };
            let is_used = link.look.is_used();
            has_changed |= std::mem::replace(&mut link.was_used, is_used) != is_used;
            if link.look.is_ended() {
                has_changed |= link.was_used;
                guest.leave(io);
            } else {
                guest.has_more |= link.look.has_calls() && !guest.is_full();
                guest.has_more |= guest.taken.is_some() && guest.has_client_left();
            }
        }
        has_changed
    }

    /// Whether other shards may ask for something.
    pub(super) fn has_links(&self) -> bool {
        self.places.iter().flatten().any(|guest| guest.link.is_some())
    }

    /// Takes no more from other shards.
    pub(super) fn leave_links(&mut self, io: &mut dyn Io) {
        let links = self.places.iter_mut().flatten().filter(|guest| guest.link.is_some());
        links.for_each(|guest| guest.leave(io));
    }

    /// Whether a guest, here, uses a volume.
    pub(super) fn has_guest(&self, volume: VolumeId) -> bool {
        let mut guests = self.places.iter().flatten();
        guests.any(|guest| guest.volume == volume && guest.link.is_none() && !guest.is_leaving)
    }

    fn add(&mut self, guest: Guest) -> u32 {
        let vacant = self.places.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let number = index as u32;
        self.places[index] = Some(Guest { number, ..guest });
        number
    }

    /// Takes no more of a queue; `answer` comes when what was taken is answered, or abandoned.
    pub(super) fn stop(
        &mut self,
        io: &mut dyn Io,
        core: &Core,
        (number, marks): (u32, bool),
        answer: CommandAnswer<u16>,
    ) {
        let place = self.places.get_mut(number as usize).and_then(Option::as_mut);
        let guest = place.expect("who started a queue stops it once");
        guest.stop = Some(answer);
        let is_marked = marks && guest.ring.is_tracked();
        // The kernel repeats what its own queues leave.
        guest.is_repeated = is_marked || guest.monitor.is_none();
        guest.may_be_abandoned |= is_marked && core.has_remote_home(guest.volume);
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
        assert_eq!(guest.hold, Hold::Held, "only a held call is released");
        guest.hold = Hold::Released;
        guest.has_more = true;
    }

    fn advance(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        number: u32,
        pass: &mut Pass,
    ) {
        self.set_room(number);
        let Some(guest) = self.places[number as usize].as_mut() else { return };
        if let Err(SessionError { reason }) = guest.advance(io, core, gate, pass) {
            self.note_broken(io, number, reason);
        }
        self.count(number);
    }

    /// Queues follow their volumes' classes.
    pub(super) fn set_ranks(&mut self, core: &Core) {
        for guest in self.places.iter_mut().flatten() {
            guest.rank = core.rank_of(guest.volume);
            guest.is_rank_held = false;
        }
    }

    /// The ranks of queues that are served.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        let is_served = |guest: &&Guest| {
            !guest.is_leaving && guest.link.as_ref().is_none_or(|link| link.was_used)
        };
        self.places.iter().flatten().filter(is_served).map(|guest| guest.rank)
    }

    fn note_broken(&mut self, io: &mut dyn Io, number: u32, reason: &'static str) {
        let Some(guest) = self.places[number as usize].as_mut() else { return };
        if !guest.is_leaving {
            let (peer, volume) = (guest.peer.clone(), guest.volume);
            self.broken.push(BrokenQueue { peer, volume, reason });
        }
        // A ring that its guest broke is not touched again, so what did not start never does.
        if !guest.cuts.is_cutting() {
            guest.taken = None;
            guest.payload = Vec::new();
        }
        guest.leave(io);
    }

    /// Takes the end of a request, and more requests where there was no room for them.
    pub(super) fn reply(&mut self, io: &mut dyn Io, core: &mut Core, finished: Finished) {
        let number = (finished.asker.0 & (GUEST_ASKER - 1)) as u32;
        let guest = self.places[number as usize].as_mut().expect("a queue outlives its requests");
        let was_full = guest.is_full();
        let result = guest.reply(io, core, finished);
        guest.has_more |= was_full && !guest.is_leaving;
        if let Err(SessionError { reason }) = result {
            self.note_broken(io, number, reason);
        }
        self.count(number);
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
        let mut passes = [Pass::whole(u64::MAX), Pass::bounded(quantum, quantum)];
        for is_best in [true, false] {
            for number in (self.first..count).chain(0..self.first) {
                let guest = self.places[number as usize].as_ref();
                if guest.is_some_and(|guest| guest.may_go_on() && (guest.rank <= best) == is_best) {
                    self.advance(io, core, gate, number, &mut passes[usize::from(!is_best)]);
                }
            }
        }
    }

    /// Whether a wait would keep a queue from going on.
    pub(super) fn has_more(&self) -> bool {
        self.places.iter().flatten().any(Guest::may_go_on)
    }

    /// The queues' bytes that the core holds, each with its rank and volume; what was abandoned has
    /// bounds of its own, and would hold back the guest that comes next.
    pub(super) fn submitted_bytes(&self) -> impl Iterator<Item = (Rank, VolumeId, u64)> {
        let own = self.places.iter().flatten().filter(|guest| !guest.is_abandoned);
        own.map(|guest| (guest.rank, guest.volume, guest.submitted_bytes))
    }

    /// Lets the queues of a rank wait for room, or go on.
    pub(super) fn hold(&mut self, rank: Rank, is_held: bool) {
        let own = self.places.iter_mut().flatten();
        let own = own.filter(|guest| guest.rank == rank && guest.link.is_none());
        let own = own.filter(|guest| !guest.is_leaving);
        own.for_each(|guest| guest.is_rank_held = is_held);
    }

    /// Requests whose pieces are being submitted.
    pub(super) fn cutting(&self) -> usize {
        self.places.iter().flatten().filter(|guest| guest.cuts.is_cutting()).count()
    }

    /// Whether pieces of a request to the volume are being submitted.
    pub(super) fn is_cutting(&self, volume: VolumeId) -> bool {
        let mut own = self.places.iter().flatten().filter(|guest| guest.volume == volume);
        own.any(|guest| guest.cuts.is_cutting())
    }

    /// Announces what was answered, and lets stopped queues go.
    pub(super) fn flush(&mut self, gate: &mut Gate, core: &mut Core) -> Vec<BrokenQueue> {
        for index in 0..self.places.len() {
            self.abandon_stopped(gate, core, index);
            self.count(index as u32);
            let place = &mut self.places[index];
            let Some(guest) = place else { continue };
            guest.flush();
            if guest.taken.is_none() && guest.hold == Hold::Held {
                // Its guest broke the ring while the call waited.
                gate.cancel(guest.volume, guest.asker());
                guest.hold = Hold::Open;
            }
            if guest.settle() {
                gate.cancel(guest.volume, guest.asker());
                core.forget_client(guest.volume, guest.asker());
                (guest.payload, guest.has_more) = (Vec::new(), false);
                self.count(index as u32);
                self.places[index] = None;
            }
        }
        self.wake_short();
        std::mem::take(&mut self.broken)
    }

    /// Takes no more from the guests' queues of `volume`, or, since the node stops, from any.
    pub(super) fn leave(&mut self, io: &mut dyn Io, volume: Option<VolumeId>) {
        let guests = self.places.iter_mut().flatten().filter(|guest| guest.link.is_none());
        let mine = guests.filter(|guest| volume.is_none_or(|volume| guest.volume == volume));
        mine.for_each(|guest| {
            guest.is_stopping |= volume.is_none();
            guest.leave(io);
        });
    }

    /// Whether nothing of the guests is in flight; links are of others' clients.
    pub(super) fn is_quiet(&self) -> bool {
        let mut guests = self.places.iter().flatten().filter(|guest| guest.link.is_none());
        guests.all(Guest::is_quiet)
    }

    /// The shard ends: whoever waits for a queue's end has it.
    pub(super) fn end(&mut self) {
        for mut guest in self.places.drain(..).flatten() {
            guest.flush();
            let Some(answer) = guest.stop.take() else { continue };
            guest.give_back();
            answer(Ok(guest.ring.base()));
        }
    }
}
