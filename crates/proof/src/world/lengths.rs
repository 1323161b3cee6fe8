//! An operator who makes volumes longer and shorter while clients work.
//!
//! How: as the control plane does. The shard is told; once it has answered, the catalog knows, and
//! then a home that is to become shorter is cut. A power cut may come between any two of these. To
//! the oracle a volume that becomes shorter is zeroed behind its new end.
//! Changes may be in flight behind the new end: the zeroing comes after them in any case, and those
//! that had not begun may fail. No read is, and none of it when a volume becomes longer again.
//! Invariant: once a volume has become shorter, what was behind its end reads zero, whatever was in
//! flight there. One change at a time. A length that stays as it was needs a reason: a disk that
//! fails, or an operation behind the new end that a late device has still in flight.
//! A home that was truncated keeps that length.
//! Cost: a look at the requests in flight per change. Not for: volumes in object stores.

use super::World;
use crate::oracle::{self, CELL, Expected, overlap};
use crate::plan::{BLOCK, BLOCKS, Character, Disk, VOLUMES};
use layby_engine::control::{Command, CommandError};
use layby_engine::io::Io;
use layby_types::{Call, CallFlags, Operation, VolumeId};
use std::sync::{Arc, Mutex};

type Answer = Arc<Mutex<Option<Result<(), CommandError>>>>;

/// A change that the shard was told of.
struct Change {
    volume: usize,
    length: u64,
    /// What is cut off, as the oracle knows it.
    zeroing: Option<(Call, Expected)>,
    answer: Answer,
}

/// What the catalog says, and what changes.
pub(super) struct Lengths {
    bytes: [u64; VOLUMES],
    change: Option<Change>,
    /// The end of a cut of a home, and whether that was as long as its volume: what a failed growth
    /// left behind is not cut.
    cut: Option<(usize, bool, Answer)>,
    /// An operation behind the new end was in flight when that was last asked for.
    is_home_in_use: bool,
    /// The volume's home was truncated to its length, and nothing has changed that since.
    is_truncated: [bool; VOLUMES],
}

impl Default for Lengths {
    fn default() -> Self {
        let bytes = [BLOCKS * BLOCK; VOLUMES];
        let is_truncated = [false; VOLUMES];
        Lengths { bytes, change: None, cut: None, is_home_in_use: false, is_truncated }
    }
}

impl Lengths {
    /// Bytes of a volume, as the catalog has them.
    pub(super) fn of(&self, volume: usize) -> u64 {
        self.bytes[volume]
    }

    /// What may be asked for of a volume: what it had before a change and has after it.
    pub(super) fn usable(&self, volume: usize) -> u64 {
        let changing = self.change.as_ref().filter(|change| change.volume == volume);
        changing.map_or(u64::MAX, |change| change.length).min(self.bytes[volume])
    }

    /// Whether nothing is changing.
    pub(super) fn are_settled(&self) -> bool {
        self.change.is_none() && self.cut.is_none()
    }

    /// The power failed: the catalog is durable, and what the shard was told is forgotten.
    pub(super) fn crash(&mut self) {
        (self.change, self.cut) = (None, None);
        self.is_truncated = [false; VOLUMES];
    }
}

fn answer_to() -> (Answer, impl FnOnce(Result<(), CommandError>) + Send) {
    let answer = Answer::default();
    let given = answer.clone();
    (answer, move |result| *given.lock().expect("one thread") = Some(result))
}

impl World<'_> {
    /// Tells the shard of another length, unless one is changing or the part is in use.
    pub(super) fn change_length(&mut self, volume: usize, sectors: u64) {
        let (length, old) = (sectors * CELL, self.lengths.of(volume));
        let is_possible = self.node.is_some()
            && self.lengths.are_settled()
            && self.homes[volume].is_none()
            && self.guests.is_served(volume)
            && length != old;
        if !is_possible {
            return;
        }
        let zeroing = match old.checked_sub(length).filter(|over| *over > 0) {
            // A change from before a shrink would be a change of the longer volume.
            None if self.calls_of(volume).any(|call| call.offset + call.length > old) => return,
            None => None,
            Some(over) => {
                let flags = CallFlags { fua: true, ..CallFlags::default() };
                let operation = Operation::WriteZeroes;
                let call = Call { cookie: 0, operation, offset: length, length: over, flags };
                let reads = |other: &Call| !oracle::changes(other.operation);
                if self.calls_of(volume).any(|other| reads(other) && overlap(other, &call)) {
                    return;
                }
                self.cut_behind(volume, &call);
                let expected = self.oracle.begin(volume, &call, oracle::ZERO);
                Some((call, expected))
            }
        };
        let (answer, told) = answer_to();
        let mut spec = self.volume_spec(volume);
        spec.length = length;
        self.command(Command::SetVolume(spec, Box::new(told)));
        self.lengths.is_home_in_use = false;
        self.lengths.is_truncated[volume] = false;
        self.lengths.change = Some(Change { volume, length, zeroing, answer });
        self.note(|| format!("volume {volume} is to have {length} bytes"));
    }

    /// Changes in flight that overlap what is cut off may fail.
    fn cut_behind(&mut self, volume: usize, zeroing: &Call) {
        let peers = self.clients.iter_mut().skip(volume).step_by(VOLUMES).flatten();
        let asked = peers.flat_map(|client| client.asked.values_mut());
        asked.for_each(|asked| asked.is_cut |= overlap(&asked.call, zeroing));
        self.guests.cut_behind(volume, zeroing);
    }

    /// Takes down what the shard has answered, and goes on.
    pub(super) fn take_lengths(&mut self) -> Result<(), String> {
        let ended = |answer: &Answer| answer.lock().expect("one thread").take();
        if let Some((volume, was_whole, answer)) = &self.lengths.cut {
            let (volume, was_whole, result) = (*volume, *was_whole, ended(answer));
            let Some(result) = result else {
                self.lengths.is_home_in_use = self.is_home_in_use(volume);
                return Ok(());
            };
            self.lengths.cut = None;
            self.lengths.is_truncated[volume] = result.is_ok() && was_whole;
            return self.judge_length(volume, result);
        }
        let Some(change) = &self.lengths.change else { return Ok(()) };
        let Some(result) = ended(&change.answer) else { return Ok(()) };
        let Change { volume, length, zeroing, .. } =
            self.lengths.change.take().expect("it was looked at");
        self.note(|| format!("volume {volume} of {length} bytes: {result:?}"));
        if result.is_err() {
            return self.judge_length(volume, result);
        }
        self.lengths.bytes[volume] = length;
        self.tally.lengths += 1;
        if let Some((call, expected)) = zeroing {
            self.oracle.acknowledge(volume, &call, &expected);
            let (answer, told) = answer_to();
            let id = VolumeId(volume as u32);
            let (before, answer_to) = (length + call.length, Box::new(told));
            let was_whole = self.home_length(volume) == before;
            self.command(Command::ResizeHome { volume: id, before, length, answer: answer_to });
            self.lengths.is_home_in_use = self.is_home_in_use(volume);
            self.lengths.cut = Some((volume, was_whole, answer));
        }
        Ok(())
    }

    /// A home that was truncated is as long as its volume: nothing was in flight behind its end.
    pub(super) fn check_truncated(&self) -> Result<(), String> {
        for volume in (0..VOLUMES).filter(|volume| self.lengths.is_truncated[*volume]) {
            let (length, end) = (self.home_length(volume), self.lengths.of(volume));
            if length != end {
                return Err(format!(
                    "the backing store of volume {volume} was truncated to {end} bytes and has \
                     {length}"
                ));
            }
        }
        Ok(())
    }

    fn home_length(&self, volume: usize) -> u64 {
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&Disk::Home(volume).name()).expect("a node has its disks");
        machine.disk_length(disk)
    }

    /// Whether the device is late with an operation behind the new end: a shard does not truncate
    /// then, and gives up waiting after some seconds.
    fn is_home_in_use(&self, volume: usize) -> bool {
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&Disk::Home(volume).name()).expect("a node has its disks");
        machine.is_reached(disk, self.lengths.of(volume))
    }

    fn judge_length(&self, volume: usize, result: Result<(), CommandError>) -> Result<(), String> {
        let may_fail = self.is_tolerant
            || self.life.character == Character::Stuck
            || self.catalog.has_refused(volume)
            || self.lengths.is_home_in_use;
        match result {
            Err(error) if !may_fail => {
                Err(format!("volume {volume} keeps its length, and no disk fails: {}", error.cause))
            }
            _ => Ok(()),
        }
    }
}
