//! Wide volumes: requests dealt to the parts, and their answers gathered.
//!
//! How: each part is a volume of its own to the shard that has it. A client's shard deals a request
//! by [`Stripes`]: what lies in one stripe of its own part goes the usual way under the part's
//! address; else every part that the range touches is asked once for its range, its own part here,
//! the others over their [links](crate::link), and the request ends when all have.
//! A volume with limits has one line of waiting requests, on the shard of its first part: there the
//! others send whole requests, which are counted, held back and dealt as that shard's own. Each
//! client sends them by a link of its own ([`Lead`]), and so has a place in that line as that
//! shard's clients have: neither all of a shard's clients one place together, nor one for each
//! request. What waits there when the client leaves never begins.
//! Invariant: a request ends once, with the first error where there was one, and then each block
//! holds its old version or its new one, as with any write. A flush has ended when it has in every
//! part. Where a link ends, what waits for it ends with `Closed`.
//! Cost: for one stripe of the own part two divisions; for another shard's an entry, a move and a
//! wake-up; only requests that cross stripes are copied once more. Volumes of one shard: a look at
//! an empty table.

use super::answer::{Destination, Place, ReadAnswer};
use super::lead::Lead;
use super::stuck::has_bytes;
use super::{Answer, Ask, Asker, Core, Ended, Finished, Out, ReadSink, STATUS_BYTES_MAX};
use crate::backing::PartPlan;
use crate::io::{Buffer, Io, Peer};
use crate::link::{Answered, Asked, NearEnd};
use crate::whole::PartPlace;
use layby_types::{Call, ErrorKind, Extent, Nanos, Operation, Stripes, VolumeId};
use std::collections::{HashMap, VecDeque};

/// A part's volume, as the shard that has it knows it.
pub(super) struct Wide {
    stripes: Stripes,
    /// Which part is here.
    index: u8,
    /// The ways to the others, by part.
    links: Vec<Option<NearEnd>>,
    /// The way to the shard that takes whole requests, where that is another.
    pub(super) lead: Option<Lead>,
    /// Whole requests go there.
    is_led: bool,
    /// It may be served: the others are, too.
    is_joined: bool,
}

/// A request that was dealt.
struct Whole {
    volume: VolumeId,
    /// As it was dealt: of a long block-status request, the beginning.
    call: Call,
    /// Bytes that the client asked for.
    length: u64,
    asker: Asker,
    destination: Destination,
    /// The destination's buffer is with the only part that was asked.
    is_lent: bool,
    started: Nanos,
    /// The parts that have not ended, a bit each.
    waiting: u64,
    /// It was sent whole to the shard that leads.
    is_led: bool,
    error: Option<ErrorKind>,
    /// The runs of a block-status request, by part.
    extents: Vec<Vec<Extent>>,
}

/// All wide volumes with a part on this shard, and what was dealt.
#[derive(Default)]
pub(super) struct Wides {
    pub(super) volumes: HashMap<VolumeId, Wide>,
    /// Where their clients are, by the clients' numbers.
    pub(super) peers: HashMap<u32, Peer>,
    wholes: Vec<Option<Whole>>,
    free: Vec<u32>,
    answers: VecDeque<Answered>,
}

impl Wides {
    pub(super) fn add(&mut self, volume: VolumeId, plan: &PartPlan) {
        let (stripes, index) = (plan.stripes, plan.index);
        assert!(index < stripes.parts(), "a part of its volume");
        let (links, lead) = (Vec::new(), None);
        let wide = Wide { stripes, index, links, lead, is_led: false, is_joined: false };
        self.volumes.insert(volume, wide);
    }

    pub(super) fn remove(&mut self, volume: VolumeId) {
        self.volumes.remove(&volume);
    }

    pub(super) fn has(&self, volume: VolumeId) -> bool {
        !self.volumes.is_empty() && self.volumes.contains_key(&volume)
    }

    /// Which part of a wide volume is here; none where the volume is on one shard.
    pub(super) fn place_of(&self, volume: VolumeId) -> Option<PartPlace> {
        let wide = self.volumes.get(&volume)?;
        Some(PartPlace { stripes: wide.stripes, part: wide.index })
    }

    fn insert(&mut self, whole: Whole) -> u32 {
        let number = self.free.pop().unwrap_or(self.wholes.len() as u32);
        if number as usize == self.wholes.len() {
            self.wholes.push(None);
        }
        self.wholes[number as usize] = Some(whole);
        number
    }

    /// Volumes with a request that has waited for the bytes of a part since `then`.
    pub(super) fn waiting_since(&self, then: Nanos) -> impl Iterator<Item = VolumeId> {
        let is_old = move |whole: &&Whole| whole.started <= then && has_bytes(whole.call.operation);
        self.wholes.iter().flatten().filter(is_old).map(|whole| whole.volume)
    }

    fn get(&mut self, number: u32) -> &mut Whole {
        self.wholes[number as usize].as_mut().expect("a request outlives its parts")
    }
}

/// Stands for the shard that leads among the parts that are waited for.
const LEAD: u8 = 63;

fn bit(part: u8) -> u64 {
    1 << part
}

impl Core {
    /// Whether a volume is a part of one that lies over several shards.
    #[must_use]
    pub fn is_part(&self, volume: VolumeId) -> bool {
        self.wides.volumes.contains_key(&volume)
    }

    /// [`Core::submit`] by the addresses of the volume's part that is here, for who has dealt the
    /// request already. For volumes of one shard it is [`Core::submit`].
    pub fn submit_part(
        &mut self,
        io: &mut dyn Io,
        asker: Asker,
        volume: VolumeId,
        call: Call,
        payload: &[u8],
        out: Option<&mut dyn ReadSink>,
    ) -> bool {
        let is_part = self.wides.has(volume);
        let ask = Ask { asker, volume, shown: call.offset, is_part };
        self.submit_to(io, ask, call, payload, out.map_or(Out::Nowhere, Out::Sink))
    }

    /// [`Core::submit_piece`] of a request by the addresses of the part that is here.
    pub fn submit_part_piece(
        &mut self,
        io: &mut dyn Io,
        asker: Asker,
        volume: VolumeId,
        call: Call,
        payload: &[u8],
        place: Option<Place>,
    ) -> bool {
        let asker = asker.of_piece();
        let ask = Ask { asker, volume, shown: call.offset, is_part: true };
        self.submit_to(io, ask, call, payload, place.map_or(Out::Nowhere, Out::Shared))
    }

    /// Deals a request of a wide volume; as [`Core::submit_to`].
    pub(super) fn submit_wide(
        &mut self,
        io: &mut dyn Io,
        (asker, volume): (Asker, VolumeId),
        call: Call,
        payload: &[u8],
        out: Out<'_>,
    ) -> bool {
        let wide = &self.wides.volumes[&volume];
        let (stripes, own) = (wide.stripes, wide.index);
        if wide.is_led {
            self.ask_lead(io, (asker, volume), call, payload, &out);
            return false;
        }
        let is_one =
            call.operation != Operation::Flush && stripes.is_within_one(call.offset, call.length);
        if is_one && stripes.part_of(call.offset) == own {
            let ask = Ask { asker, volume, shown: call.offset, is_part: false };
            let call = Call { offset: stripes.below(own, call.offset), ..call };
            return self.submit_to(io, ask, call, payload, out);
        }
        let number = self.begin_whole(io, (asker, volume), call, &out);
        self.wides.get(number).waiting = self.parts_of(volume, &call);
        let waiting = self.wides.get(number).waiting;
        if waiting == 0 {
            self.end_whole(number);
        }
        for part in (0..stripes.parts()).filter(|part| waiting & bit(*part) != 0) {
            let payload = gathered(stripes, part, &self.wides.get(number).call, payload);
            if part == own {
                self.ask_own(io, number, &payload);
            } else {
                self.ask_far(io, number, part, payload);
            }
        }
        false
    }

    fn begin_whole(
        &mut self,
        io: &mut dyn Io,
        (asker, volume): (Asker, VolumeId),
        mut call: Call,
        out: &Out<'_>,
    ) -> u32 {
        let stripes = self.wides.volumes[&volume].stripes;
        let (length, mut extents) = (call.length, Vec::new());
        if call.operation == Operation::BlockStatus {
            call.length = call.length.min(STATUS_BYTES_MAX);
            extents.resize_with(stripes.parts().into(), Vec::new);
        }
        let destination = out.destination().unwrap_or_else(|| match call.operation {
            Operation::Read => Destination::Own(ReadAnswer::new(io, call.length as usize)),
            _ => Destination::Nowhere,
        });
        let (started, error) = (self.now, None);
        let (waiting, is_led, is_lent) = (0, false, false);
        self.wides.insert(Whole {
            volume,
            call,
            length,
            asker,
            destination,
            is_lent,
            started,
            waiting,
            is_led,
            error,
            extents,
        })
    }

    /// The parts that a request concerns, a bit each.
    fn parts_of(&self, volume: VolumeId, call: &Call) -> u64 {
        let stripes = self.wides.volumes[&volume].stripes;
        let is_asked = |part: &u8| {
            call.operation == Operation::Flush
                || !stripes.range(*part, call.offset, call.length).is_empty()
        };
        (0..stripes.parts()).filter(is_asked).fold(0, |all, part| all | bit(part))
    }

    /// Sends a request whole to the shard that leads.
    fn ask_lead(
        &mut self,
        io: &mut dyn Io,
        (asker, volume): (Asker, VolumeId),
        call: Call,
        payload: &[u8],
        out: &Out<'_>,
    ) {
        let number = self.begin_whole(io, (asker, volume), call, out);
        let whole = self.wides.wholes[number as usize].as_mut().expect("it was just begun");
        (whole.waiting, whole.is_led) = (bit(LEAD), true);
        let call = Call { cookie: u64::from(number), ..whole.call };
        let wide = self.wides.volumes.get_mut(&volume).expect("it is there");
        let (lead, client) = (wide.lead.as_mut(), asker.number());
        let peer = self.wides.peers.get(&client);
        let Some(link) = lead.and_then(|lead| lead.branch(client, peer)) else {
            return self.end_part(number, LEAD, Err(ErrorKind::Closed));
        };
        let answer = lend(io, whole, &call);
        link.send(Asked { call, bytes: payload.to_vec(), answer });
    }

    /// A part's call of a request that was dealt, by the part's addresses.
    fn call_of(&mut self, number: u32, part: u8) -> Call {
        let Whole { volume, call, .. } = *self.wides.get(number);
        let stripes = self.wides.volumes[&volume].stripes;
        if call.operation == Operation::Flush {
            return Call { cookie: u64::from(number), ..call };
        }
        let range = stripes.range(part, call.offset, call.length);
        let (offset, length) = (range.start, range.end - range.start);
        Call { cookie: u64::from(number), offset, length, ..call }
    }

    fn ask_own(&mut self, io: &mut dyn Io, number: u32, payload: &Gathered<'_>) {
        let volume = self.wides.get(number).volume;
        let own = self.wides.volumes[&volume].index;
        let call = self.call_of(number, own);
        let ask = Ask { asker: Asker::of_whole(number), volume, shown: call.offset, is_part: true };
        self.submit_to(io, ask, call, payload.as_slice(), Out::Nowhere);
    }

    fn ask_far(&mut self, io: &mut dyn Io, number: u32, part: u8, payload: Gathered<'_>) {
        let call = self.call_of(number, part);
        let whole = self.wides.wholes[number as usize].as_mut().expect("it was just begun");
        let wide = &self.wides.volumes[&whole.volume];
        let Some(link) = wide.links.get(usize::from(part)).and_then(Option::as_ref) else {
            return self.end_part(number, part, Err(ErrorKind::Closed));
        };
        let answer = lend(io, whole, &call);
        link.send(Asked { call, bytes: payload.into_owned(), answer });
    }

    /// The own part's end of a request that was dealt.
    pub(super) fn end_own(
        &mut self,
        number: u32,
        destination: Destination,
        result: Result<Answer, ErrorKind>,
    ) {
        let volume = self.wides.get(number).volume;
        let own = self.wides.volumes[&volume].index;
        let ended = result.as_ref().map(drop).map_err(|kind| *kind);
        if let Destination::Own(answer) = destination {
            if ended.is_ok() {
                self.scatter(number, own, &answer);
            }
            self.unanswered.push(answer.into_buffer());
        }
        if let Ok(Answer::Extents(runs)) = result {
            self.wides.get(number).extents[usize::from(own)] = runs;
        }
        self.end_part(number, own, ended);
    }

    fn end_far(&mut self, io: &mut dyn Io, part: u8, answered: Answered) {
        let Answered { cookie, result, answer, extents } = answered;
        let number = cookie as u32;
        let whole = self.wides.get(number);
        if !extents.is_empty() {
            whole.extents[if whole.is_led { 0 } else { usize::from(part) }] = extents;
        }
        match answer {
            Some(buffer) if std::mem::take(&mut whole.is_lent) => {
                whole.destination = Destination::Own(ReadAnswer::of_buffer(buffer));
            }
            Some(buffer) => {
                if result.is_ok() {
                    self.scatter(number, part, &buffer);
                }
                io.recycle(buffer);
            }
            None => {}
        }
        self.end_part(number, part, result);
    }

    /// Puts a part's bytes of a read into their places.
    fn scatter(&mut self, number: u32, part: u8, data: &[u8]) {
        let whole = self.wides.wholes[number as usize].as_mut();
        let whole = whole.expect("a request outlives its parts");
        let stripes = self.wides.volumes[&whole.volume].stripes;
        let into = match &mut whole.destination {
            Destination::Own(answer) => answer.data(),
            Destination::Shared(place) => self.gatherings.from(*place),
            Destination::Nowhere | Destination::TimedOut => unreachable!("only reads bring bytes"),
        };
        if whole.is_led {
            return into[..data.len()].copy_from_slice(data);
        }
        for (from, to) in places(stripes, part, &whole.call) {
            into[to..to + from.len()].copy_from_slice(&data[from]);
        }
    }

    fn end_part(&mut self, number: u32, part: u8, result: Result<(), ErrorKind>) {
        let whole = self.wides.get(number);
        assert!(whole.waiting & bit(part) != 0, "a part ends once");
        whole.waiting &= !bit(part);
        whole.error = whole.error.or(result.err());
        if whole.waiting == 0 {
            self.end_whole(number);
        }
    }

    fn end_whole(&mut self, number: u32) {
        let whole = self.wides.wholes[number as usize].take().expect("a request ends once");
        self.wides.free.push(number);
        let Whole { volume, call, length, asker, destination, .. } = whole;
        let Whole { started, is_led, error, mut extents, .. } = whole;
        let is_ok = error.is_none();
        let dealt = call;
        let call = Call { length, ..dealt };
        if !asker.is_piece() && !is_led {
            let (is_far, is_part) = (false, false);
            self.ended.push(Ended { volume, call, started, is_ok, is_far, is_part });
        }
        let result = match (destination, error) {
            (Destination::Own(answer), None) => Ok(Answer::Data(answer)),
            (Destination::Own(answer), Some(kind)) => {
                self.unanswered.push(answer.into_buffer());
                Err(kind)
            }
            (_, Some(kind)) => Err(kind),
            (_, None) if call.operation == Operation::BlockStatus && is_led => {
                Ok(Answer::Extents(std::mem::take(&mut extents[0])))
            }
            (_, None) if call.operation == Operation::BlockStatus => {
                let stripes = self.wides.volumes[&volume].stripes;
                Ok(Answer::Extents(woven(stripes, &dealt, &extents)))
            }
            (_, None) => Ok(Answer::Nothing),
        };
        self.finished.push_back(Finished { asker, call, result });
    }

    /// Takes what other shards have answered. Call it after each wait, since they wake this one.
    pub fn poll_links(&mut self, io: &mut dyn Io) {
        if self.wides.volumes.is_empty() {
            return;
        }
        let mut answers = std::mem::take(&mut self.wides.answers);
        let ids: Vec<VolumeId> = self.wides.volumes.keys().copied().collect();
        for id in ids {
            for part in 0..self.wides.volumes[&id].links.len() {
                let Some(link) = &self.wides.volumes[&id].links[part] else { continue };
                let is_ended = link.take(&mut answers);
                for answered in answers.drain(..) {
                    self.end_far(io, part as u8, answered);
                }
                if is_ended {
                    self.wides.volumes.get_mut(&id).expect("it is there").links[part] = None;
                    self.give_up(id, bit(part as u8), None);
                }
            }
            let ended = self.wides.volumes.get_mut(&id).and_then(|wide| wide.lead.as_mut());
            let ended = ended.map(|lead| lead.take(&mut answers)).unwrap_or_default();
            for answered in answers.drain(..) {
                self.end_far(io, LEAD, answered);
            }
            for client in ended {
                self.give_up(id, bit(LEAD), Some(client));
            }
        }
        self.wides.answers = answers;
    }

    /// What waits for these parts of a volume, of one client or of all, ends without them.
    fn give_up(&mut self, volume: VolumeId, parts: u64, client: Option<u32>) {
        for number in 0..self.wides.wholes.len() as u32 {
            let Some(whole) = &self.wides.wholes[number as usize] else { continue };
            let waiting = whole.waiting & parts;
            let is_own = client.is_none_or(|client| whole.asker.number() == client);
            if whole.volume != volume || !is_own {
                continue;
            }
            for part in (0..=LEAD).filter(|part| waiting & bit(*part) != 0) {
                self.end_part(number, part, Err(ErrorKind::Closed));
            }
        }
    }

    /// The volume's other parts are reached from now on, by part; the own part has no link. The
    /// first part's shard takes whole requests by `lead`.
    ///
    /// # Errors
    /// `Closed` for what is no part, `Invalid` where a part is missing.
    pub fn join(
        &mut self,
        volume: VolumeId,
        links: Vec<Option<NearEnd>>,
        lead: Option<NearEnd>,
    ) -> Result<(), ErrorKind> {
        let wide = self.wides.volumes.get_mut(&volume).ok_or(ErrorKind::Closed)?;
        let is_whole = links.len() == usize::from(wide.stripes.parts())
            && (0..).zip(&links).all(|(part, link)| link.is_none() == (part == wide.index));
        if !is_whole || lead.is_none() != (wide.index == 0) {
            return Err(ErrorKind::Invalid);
        }
        (wide.links, wide.lead, wide.is_joined) = (links, lead.map(Lead::new), true);
        Ok(())
    }

    /// Requests of these volumes are sent whole to the shards that lead, and of no others.
    pub fn set_led(&mut self, volumes: &[VolumeId]) {
        for (id, wide) in &mut self.wides.volumes {
            wide.is_led = wide.index > 0 && volumes.contains(id);
        }
    }

    /// The volume's other parts are not reached any more; what waits for them ends with `Closed`.
    pub fn unjoin(&mut self, volume: VolumeId) {
        let Some(wide) = self.wides.volumes.get_mut(&volume) else { return };
        let own = bit(wide.index);
        (wide.links, wide.lead, wide.is_joined) = (Vec::new(), None, false);
        self.give_up(volume, !own, None);
    }

    /// Whether requests of a volume can be answered: its other parts, if it has any, are reached.
    #[must_use]
    pub fn is_whole(&self, volume: VolumeId) -> bool {
        self.wides.volumes.get(&volume).is_none_or(|wide| wide.is_joined)
    }

    /// Tells the shards of the other parts whether anybody here uses the volume, so that they know
    /// whose rank is their best.
    pub(crate) fn note_users(&self, is_used: impl Fn(VolumeId) -> bool) {
        for (id, wide) in &self.wides.volumes {
            let is_used = is_used(*id);
            let lead = wide.lead.iter().map(|lead| &lead.link);
            let links = wide.links.iter().flatten().chain(lead);
            links.for_each(|link| link.set_used(is_used));
        }
    }

    /// Nobody here asks other shards for anything any more.
    pub fn unjoin_all(&mut self) {
        let ids: Vec<VolumeId> = self.wides.volumes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.unjoin(id));
    }
}

/// A read's buffer for another shard to fill: the answer's own where all of it is asked there.
fn lend(io: &mut dyn Io, whole: &mut Whole, call: &Call) -> Option<(Buffer, usize)> {
    if call.operation != Operation::Read {
        return None;
    }
    match std::mem::replace(&mut whole.destination, Destination::Nowhere) {
        Destination::Own(own) if call.length == whole.call.length => {
            whole.is_lent = true;
            Some((own.into_buffer(), ReadAnswer::START))
        }
        other => {
            whole.destination = other;
            Some((io.buffer(call.length as usize), 0))
        }
    }
}

/// A part's bytes of a write: as they came where they lie in a row.
enum Gathered<'a> {
    Row(&'a [u8]),
    Own(Vec<u8>),
}

impl Gathered<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Gathered::Row(bytes) => bytes,
            Gathered::Own(bytes) => bytes,
        }
    }

    fn into_owned(self) -> Vec<u8> {
        match self {
            Gathered::Row(bytes) => bytes.to_vec(),
            Gathered::Own(bytes) => bytes,
        }
    }
}

fn gathered<'a>(stripes: Stripes, part: u8, call: &Call, payload: &'a [u8]) -> Gathered<'a> {
    if call.operation != Operation::Write {
        return Gathered::Row(&[]);
    }
    let mut rows = places(stripes, part, call).map(|(from, to)| &payload[to..to + from.len()]);
    let first = rows.next().unwrap_or(&[]);
    let Some(second) = rows.next() else { return Gathered::Row(first) };
    let mut bytes = Vec::with_capacity(payload.len() / usize::from(stripes.parts()));
    [first, second].into_iter().chain(rows).for_each(|row| bytes.extend_from_slice(row));
    Gathered::Own(bytes)
}

/// Where a part's bytes of a call lie among the part's, and from where on among the call's.
fn places(
    stripes: Stripes,
    part: u8,
    call: &Call,
) -> impl Iterator<Item = (std::ops::Range<usize>, usize)> + use<> {
    let (offset, range) = (call.offset, stripes.range(part, call.offset, call.length));
    let start = range.start;
    stripes.pieces(range).map(move |(at, length)| {
        let from = (at - start) as usize;
        let to = (stripes.whole(part, at) - offset) as usize;
        (from..from + length as usize, to)
    })
}

/// The runs of all parts in the order of the volume, as far as all have told of theirs.
fn woven(stripes: Stripes, call: &Call, parts: &[Vec<Extent>]) -> Vec<Extent> {
    let (mut at, end) = (call.offset, call.offset + call.length);
    let mut cursors = vec![(0, 0); parts.len()];
    let mut runs: Vec<Extent> = Vec::new();
    while at < end {
        let part = usize::from(stripes.part_of(at));
        let (index, used) = &mut cursors[part];
        let Some(extent) = parts[part].get(*index) else { break };
        let length = (extent.length - *used).min(stripes.left(at)).min(end - at);
        match runs.last_mut() {
            Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => {
                last.length += length;
            }
            _ => runs.push(Extent { length, ..*extent }),
        }
        *used += length;
        if *used == extent.length {
            (*index, *used) = (*index + 1, 0);
        }
        at += length;
    }
    runs
}
