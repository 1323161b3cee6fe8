//! Guests of virtual machines, and volumes that are removed below them.
//!
//! How: a guest's queue is a ring in memory that both sides share; it asks for some writes at once,
//! and its answers are taken after each turn. A removal keeps the data: once it has succeeded, the
//! volume's backing store alone is held against the oracle, then and at every look that follows. A
//! guest that leaves waits for no answers, and its ring is given back.
//! Invariant: whatever a guest was answered before the removal ended is in the backing store, in an
//! honest run a removal succeeds, and so does a drain. A removed volume does not come back. A ring
//! that was given back is not touched, and each is once nothing is in flight.
//! Cost: a copy of each payload. Not for: guests' own memory and rings; the frontend has those.

use super::World;
use crate::oracle::{self, CELL, Expected, Version, overlap};
use crate::plan::{Character, VOLUMES};
use layby_engine::control::{CallEvent, Command, CommandError, GuestQueue, MonitorId};
use layby_types::{
    Call, CallFlags, ErrorKind, GuestRing, Operation, Rng, SessionError, Taken, VolumeId,
};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex};

/// Writes that a guest asks for at once, at most.
const WRITES_MAX: u64 = 12;
/// Sectors of one, at most.
const SECTORS_MAX: u64 = 24;

type Answer<T> = Arc<Mutex<Option<Result<T, CommandError>>>>;

/// What both ends of a queue see.
#[derive(Default)]
struct Shared {
    requests: VecDeque<(Call, Vec<u8>)>,
    ended: Vec<(u64, Result<(), ErrorKind>)>,
    is_given_back: bool,
    /// It was touched after that.
    is_touched_late: bool,
}

/// The node's end.
struct Ring(Arc<Mutex<Shared>>);

impl GuestRing for Ring {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        let next = self.0.lock().expect("one thread").requests.pop_front();
        let Some((call, bytes)) = next else { return Ok(Taken::Nothing) };
        *payload = bytes;
        Ok(Taken::Call(call))
    }

    fn put(&mut self, _: &Call, _: u64, _: &[u8]) {}

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        let mut shared = self.0.lock().expect("one thread");
        shared.is_touched_late |= shared.is_given_back;
        shared.ended.push((call.cookie, result));
        Ok(())
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        Ok(!self.0.lock().expect("one thread").requests.is_empty())
    }

    fn take_signal(&mut self) -> bool {
        false
    }

    fn base(&self) -> u16 {
        0
    }
}

/// A change that a guest waits for.
struct Asked {
    call: Call,
    expected: Expected,
    is_cut: bool,
}

/// The guest's end.
struct Guest {
    volume: usize,
    shared: Arc<Mutex<Shared>>,
    number: Answer<u32>,
    monitor: MonitorId,
    asked: BTreeMap<u64, Asked>,
}

/// A removal under way.
struct Removing {
    volume: usize,
    answer: Answer<()>,
    /// The volume is only to be ready for it so far.
    quiesces: bool,
}

/// All guests, one of a volume, and removals.
#[derive(Default)]
pub(super) struct Guests {
    guests: Vec<Guest>,
    next: u64,
    /// A volume that is being removed.
    removal: Option<Removing>,
    removed: [bool; VOLUMES],
    /// How drains have ended.
    drained: Arc<Mutex<Vec<Drained>>>,
    /// Queues whose guests have left since all was settled.
    left: Vec<Arc<Mutex<Shared>>>,
}

/// The end of a drain, and what had been acknowledged of each of its volumes when it began.
struct Drained {
    result: Result<(), CommandError>,
    acknowledged: Vec<(usize, Vec<Version>)>,
}

impl Guests {
    /// Whether clients may use a volume.
    pub(super) fn is_served(&self, volume: usize) -> bool {
        let is_going = self.removal.as_ref().is_some_and(|going| going.volume == volume);
        !self.removed[volume] && !is_going
    }

    pub(super) fn is_removed(&self, volume: usize) -> bool {
        self.removed[volume]
    }

    /// Whether something was asked for that has not ended.
    pub(super) fn are_waiting(&self) -> bool {
        self.removal.is_some() || self.guests.iter().any(|guest| !guest.asked.is_empty())
    }

    /// What guests of a volume wait for.
    pub(super) fn calls_of(&self, volume: usize) -> impl Iterator<Item = &Call> {
        let own = self.guests.iter().filter(move |guest| guest.volume == volume);
        own.flat_map(|guest| guest.asked.values().map(|asked| &asked.call))
    }

    /// Changes that overlap what is cut off may fail.
    pub(super) fn cut_behind(&mut self, volume: usize, zeroing: &Call) {
        let own = self.guests.iter_mut().filter(|guest| guest.volume == volume);
        let asked = own.flat_map(|guest| guest.asked.values_mut());
        asked.for_each(|asked| asked.is_cut |= overlap(&asked.call, zeroing));
    }

    /// Takes the end of a drain down.
    pub(super) fn on_drained(
        &self,
        acknowledged: Vec<(usize, Vec<Version>)>,
    ) -> impl FnOnce(Result<(), CommandError>) + Send + use<> {
        let drained = Arc::clone(&self.drained);
        move |result| drained.lock().expect("one thread").push(Drained { result, acknowledged })
    }

    /// Whether those who left have their rings back.
    pub(super) fn have_left(&self) -> bool {
        self.left.iter().all(|shared| shared.lock().expect("one thread").is_given_back)
    }

    /// Nothing is in flight: those who left have their rings back.
    pub(super) fn check_left(&mut self) -> Result<(), String> {
        let have_left = self.have_left();
        self.left.clear();
        if have_left { Ok(()) } else { Err("a guest that left has no ring back".to_owned()) }
    }

    /// No ring is touched that was given back.
    fn check_untouched(&self) -> Result<(), String> {
        let mut left = self.left.iter().map(|shared| shared.lock().expect("one thread"));
        match left.any(|shared| shared.is_touched_late) {
            true => Err("a ring is touched that was given back".to_owned()),
            false => Ok(()),
        }
    }

    /// The power failed: guests are gone, and a removal that was not answered did not happen.
    pub(super) fn crash(&mut self) {
        self.guests.clear();
        self.left.clear();
        self.removal = None;
        self.drained.lock().expect("one thread").clear();
    }
}

impl World<'_> {
    /// A guest of the volume asks for some writes; its queue is started where it has none.
    pub(super) fn ask_as_guest(&mut self, volume: usize, seed: u64) {
        if self.node.is_none() || !self.guests.is_served(volume) || self.homes[volume].is_some() {
            return;
        }
        let mut rng = Rng::new(seed);
        for _ in 0..1 + rng.below(WRITES_MAX) {
            let all = self.lengths.usable(volume) / CELL;
            let first = rng.below(all);
            let count = (1 + rng.below(SECTORS_MAX)).min(all - first);
            let (offset, length) = (first * CELL, count * CELL);
            let flags = CallFlags { fua: rng.chance(1, 4), ..CallFlags::default() };
            let call = Call { cookie: 0, operation: Operation::Write, offset, length, flags };
            if !self.calls_of(volume).any(|other| overlap(other, &call)) {
                self.write_as_guest(volume, call);
            }
        }
        self.host.machine().kick_all();
    }

    fn write_as_guest(&mut self, volume: usize, call: Call) {
        let version = self.oracle.version();
        let expected = self.oracle.begin(volume, &call, version);
        let payload = oracle::encode(version, volume, oracle::cells(&call));
        let cookie = self.guests.next;
        self.guests.next += 1;
        let call = Call { cookie, ..call };
        let guest = self.guest_of(volume);
        guest.asked.insert(cookie, Asked { call, expected, is_cut: false });
        guest.shared.lock().expect("one thread").requests.push_back((call, payload));
        self.note(|| format!("a guest asks for {version}: {}+{}", call.offset, call.length));
    }

    fn guest_of(&mut self, volume: usize) -> &mut Guest {
        let known = self.guests.guests.iter().position(|guest| guest.volume == volume);
        let index = known.unwrap_or_else(|| {
            let (shared, number) = (Arc::<Mutex<Shared>>::default(), Answer::default());
            let monitor = MonitorId(self.guests.next);
            let queue = GuestQueue {
                monitor: Some(monitor),
                volume: VolumeId(volume as u32),
                ring: Box::new(Ring(Arc::clone(&shared))),
                kick: File::open("/dev/null").expect("a simulated kick has no descriptor").into(),
                call: CallEvent::default(),
                peer: format!("guest of {volume}"),
            };
            let given = Arc::clone(&number);
            let told = move |result| *given.lock().expect("one thread") = Some(result);
            self.command(Command::StartQueue(Box::new(queue), Box::new(told)));
            let asked = BTreeMap::new();
            self.guests.guests.push(Guest { volume, shared, number, monitor, asked });
            self.guests.guests.len() - 1
        });
        &mut self.guests.guests[index]
    }

    /// Tells the node to remove a volume and keep its data.
    pub(super) fn remove(&mut self, volume: usize) {
        let is_possible = self.node.is_some()
            && self.guests.removal.is_none()
            && !self.guests.is_removed(volume)
            && self.homes[volume].is_none()
            && self.lengths.are_settled();
        if !is_possible {
            return;
        }
        // One in two as a node does it, which has others changed between the steps.
        self.begin_removal(volume, volume.is_multiple_of(2));
    }

    fn begin_removal(&mut self, volume: usize, quiesces: bool) {
        let answer = Answer::default();
        let given = Arc::clone(&answer);
        let told = Box::new(move |result| *given.lock().expect("one thread") = Some(result));
        let (id, discard) = (VolumeId(volume as u32), false);
        self.command(match quiesces {
            true => Command::Quiesce { volume: id, discard, answer: told },
            false => Command::RemoveVolume { volume: id, discard, answer: told },
        });
        self.guests.removal = Some(Removing { volume, answer, quiesces });
        let what = if quiesces { "quiesced" } else { "removed" };
        self.note(|| format!("volume {volume} is to be {what}"));
    }

    /// Takes guests' answers down, then that of a removal.
    pub(super) fn collect_guests(&mut self) -> Result<(), String> {
        for index in 0..self.guests.guests.len() {
            let guest = &self.guests.guests[index];
            let volume = guest.volume;
            let ended = std::mem::take(&mut guest.shared.lock().expect("one thread").ended);
            for (cookie, result) in ended {
                let asked = self.guests.guests[index].asked.remove(&cookie);
                let asked = asked.ok_or("a guest is answered twice")?;
                self.note(|| format!("the guest of {volume}, {:?}: {result:?}", asked.call));
                self.judge_guest(volume, &asked, result)?;
            }
        }
        self.guests.check_untouched()?;
        self.judge_drains()?;
        let Some(Removing { volume, answer, quiesces }) = &self.guests.removal else {
            return Ok(());
        };
        let (volume, quiesces) = (*volume, *quiesces);
        let result = answer.lock().expect("one thread").take();
        let Some(result) = result else { return Ok(()) };
        self.guests.removal = None;
        if quiesces && result.is_ok() {
            self.begin_removal(volume, false);
            return Ok(());
        }
        self.end_guest(volume);
        self.note(|| format!("the removal of volume {volume}: {result:?}"));
        match result {
            Ok(()) => {
                self.guests.removed[volume] = true;
                self.tally.removed += 1;
                self.check_removed()
            }
            Err(_) if self.may_fail() => {
                self.turn_away(volume);
                Ok(())
            }
            Err(error) => Err(format!("volume {volume} is not removed: {}", error.cause)),
        }
    }

    /// Clients that the removal has closed may still have replies to take, and see the end later.
    fn turn_away(&mut self, volume: usize) {
        let machine = self.host.machine();
        let of_volume =
            self.clients.iter_mut().enumerate().filter(|(at, _)| at % VOLUMES == volume);
        for client in of_volume.filter_map(|(_, client)| client.as_mut()) {
            client.is_turned_away |= machine.is_closed(client.socket);
        }
    }

    fn may_fail(&self) -> bool {
        self.is_tolerant || self.has_lied || self.life.character == Character::Stuck
    }

    fn judge_guest(
        &mut self,
        volume: usize,
        asked: &Asked,
        result: Result<(), ErrorKind>,
    ) -> Result<(), String> {
        self.tally.requests += 1;
        let is_refused = self.catalog.has_refused(volume) || !self.guests.is_served(volume);
        match result {
            Ok(()) => {
                self.oracle.acknowledge(volume, &asked.call, &asked.expected);
                Ok(())
            }
            Err(_) if asked.is_cut || is_refused || self.may_fail() => Ok(()),
            Err(kind) => Err(format!("{:?} of the guest of {volume} fails: {kind}", asked.call)),
        }
    }

    /// A drain fails for a device that does, or for a stop; else what was acknowledged before it
    /// is in the backing store.
    fn judge_drains(&mut self) -> Result<(), String> {
        let drained = std::mem::take(&mut *self.guests.drained.lock().expect("one thread"));
        for Drained { result, acknowledged } in drained {
            match result {
                Err(error) if error.kind == ErrorKind::Closed || self.may_fail() => {}
                Err(error) => return Err(format!("a drain fails: {}", error.cause)),
                Ok(()) if self.has_lied || self.is_bereft => {}
                Ok(()) => {
                    for (volume, acknowledged) in acknowledged {
                        let cells = self.home_cells(volume);
                        let cells: Vec<_> = cells.iter().map(Option::as_deref).collect();
                        self.oracle.check_drained(volume, &acknowledged, &cells).map_err(
                            |what| format!("the backing store of volume {volume}, drained: {what}"),
                        )?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The guest of a volume leaves; its ring is to come back though it waits for answers.
    pub(super) fn leave_as_guest(&mut self, volume: usize) {
        let index = self.guests.guests.iter().position(|guest| guest.volume == volume);
        let Some(index) = index.filter(|_| self.node.is_some()) else { return };
        let Guest { number, monitor, .. } = &self.guests.guests[index];
        let Some(Ok(number)) = *number.lock().expect("one thread") else { return };
        let monitor = *monitor;
        let guest = self.guests.guests.swap_remove(index);
        self.command(Command::AbandonQueues(monitor));
        let shared = Arc::clone(&guest.shared);
        let told = move |_| shared.lock().expect("one thread").is_given_back = true;
        self.command(Command::StopQueue { number, marks: true, answer: Box::new(told) });
        self.note(|| format!("the guest of {volume} leaves, {} in flight", guest.asked.len()));
        self.guests.left.push(guest.shared);
        self.orphans.extend(guest.asked.values().map(|asked| (volume, asked.call)));
    }

    /// The monitor takes its queue back; what was not answered may have happened or not.
    fn end_guest(&mut self, volume: usize) {
        let index = self.guests.guests.iter().position(|guest| guest.volume == volume);
        let Some(index) = index else { return };
        let guest = self.guests.guests.swap_remove(index);
        if let Some(Ok(number)) = *guest.number.lock().expect("one thread") {
            self.command(Command::StopQueue { number, marks: true, answer: Box::new(drop) });
        }
        self.orphans.extend(guest.asked.values().map(|asked| (volume, asked.call)));
    }

    /// Holds what is left of removed volumes against the oracle.
    pub(super) fn check_removed(&self) -> Result<(), String> {
        if self.has_lied || self.is_bereft {
            return Ok(());
        }
        let mut removed = (0..VOLUMES).filter(|volume| self.guests.is_removed(*volume));
        removed.try_for_each(|volume| self.check_home(volume, "was removed"))
    }
}
