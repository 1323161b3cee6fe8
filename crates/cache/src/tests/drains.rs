//! Drains beside writers that never stop.

use super::host::*;
use super::sharing::make_sick;
use layby_types::*;
use std::vec::Vec;

const BLOCKS: u64 = 24;
/// Turns in which a drain has to end: it has a few dozen blocks to write back.
const TURNS_MAX: u32 = 20_000;

/// A writer that always has requests in flight, to few blocks or to all, of one volume.
struct Writer {
    id: VolumeId,
    value: u32,
    inflight: Vec<(RequestId, u64, u32)>,
    /// What each block holds by the last answer.
    answered: [u32; BLOCKS as usize],
}

impl Writer {
    fn new(id: VolumeId) -> Self {
        Writer { id, value: 0, inflight: Vec::new(), answered: [0; BLOCKS as usize] }
    }

    fn turn(&mut self, host: &mut Host, rng: &mut Rng) {
        for index in (0..self.inflight.len()).rev() {
            let (request, block, value) = self.inflight[index];
            let Some(at) = host.completed.iter().position(|answer| answer.request == request)
            else {
                continue;
            };
            assert_eq!(host.completed.swap_remove(at).result, Ok(()));
            let answered = &mut self.answered[block as usize];
            *answered = value.max(*answered);
            self.inflight.swap_remove(index);
        }
        while self.inflight.len() < 4 {
            // One after the other per block: the order of answers is that of versions.
            let hot = if rng.below(4) == 0 { BLOCKS } else { 3 };
            let block = rng.below(hot);
            if self.inflight.iter().any(|(_, busy, _)| *busy == block) {
                break;
            }
            self.value += 1;
            let length = if rng.below(3) == 0 { 512 } else { 4096 };
            let write = call(Operation::Write, block * 4096, length);
            let request = host.submit(self.id, write, self.value);
            self.inflight.push((request, block, self.value));
        }
    }
}

/// Runs writers on until the drain has ended.
fn until_drained(host: &mut Host, writers: &mut [Writer], rng: &mut Rng, ticket: u64) {
    for turn in 0.. {
        assert!(turn < TURNS_MAX, "drain {ticket} never ends");
        writers.iter_mut().for_each(|writer| writer.turn(host, rng));
        if turn % 16 == 0 {
            host.tick(Nanos::from_millis(1));
        }
        host.step();
        if let Some(at) = host.drained.iter().position(|(ended, _)| *ended == ticket) {
            assert_eq!(host.drained.swap_remove(at), (ticket, Ok(())));
            return;
        }
    }
}

/// Goal: a drain ends beside writers that never stop, and what was answered before it is in the
/// backing store then, or something newer. Method: two volumes, of classes with one persistent
/// level and with two, writers with four requests in flight on few hot blocks; drains of one
/// volume and of all, one after the other and overlapping; seeds.
#[test]
fn a_drain_ends_beside_writers() {
    for seed in 0..60 {
        let volumes = [volume(1, 0, BLOCKS), volume(2, 1, BLOCKS)];
        let mut host = Host::new(spec([4, 12, 40]), &volumes, seed);
        let mut rng = Rng::new(seed + 1000);
        let mut writers = [Writer::new(VolumeId(1)), Writer::new(VolumeId(2))];
        for ticket in 0..6 {
            for _ in 0..rng.below(300) {
                writers.iter_mut().for_each(|writer| writer.turn(&mut host, &mut rng));
                host.step();
            }
            let of = [None, Some(VolumeId(1)), Some(VolumeId(2))][rng.below(3) as usize];
            let before: Vec<_> = writers.iter().map(|writer| writer.answered).collect();
            host.drain(ticket, of);
            if ticket == 3 {
                host.drain(100, None);
            }
            until_drained(&mut host, &mut writers, &mut rng, ticket);
            for (writer, before) in writers.iter().zip(before) {
                if of.is_some_and(|of| of != writer.id) {
                    continue;
                }
                for (block, value) in before.into_iter().enumerate() {
                    let key = BlockKey::new(writer.id, BlockIndex(block as u64));
                    let has = host.at_home(key);
                    assert!(has >= value, "SEED={seed} {ticket}: {key:?} has {has}, not {value}");
                }
            }
        }
        until_drained(&mut host, &mut writers, &mut rng, 100);
    }
}

/// Goal: a drain ends though a block of it is never at rest, since writes queue behind each other
/// there, and what was answered before it is in the backing store then. Method: four writes in
/// flight to one block for good, classes with one persistent level and with two; seeds.
#[test]
fn a_drain_ends_beside_writes_in_a_row() {
    for seed in 0..40 {
        let id = VolumeId(1);
        let mut host = Host::new(spec([4, 12, 40]), &[volume(1, seed as u8 % 2, BLOCKS)], seed);
        let (mut answered, mut value, mut inflight) = (0, 0, Vec::new());
        let mut turn = |host: &mut Host| {
            inflight.retain(|(request, written)| {
                let is_its = |answer: &Answer| answer.request == *request;
                let Some(at) = host.completed.iter().position(is_its) else { return true };
                assert_eq!(host.completed.swap_remove(at).result, Ok(()));
                answered = answered.max(*written);
                false
            });
            while inflight.len() < 4 {
                value += 1;
                let write = call(Operation::Write, 5 * 4096, 4096);
                inflight.push((host.submit(id, write, value), value));
            }
            host.step();
            answered
        };
        for _ in 0..50 {
            turn(&mut host);
        }
        for ticket in 0..3 {
            let before = turn(&mut host);
            host.drain(ticket, Some(id));
            let ends = (0..TURNS_MAX).any(|_| {
                turn(&mut host);
                host.tick(Nanos::from_millis(1));
                host.drained.pop().is_some_and(|ended| ended == (ticket, Ok(())))
            });
            let has = host.at_home(BlockKey::new(id, BlockIndex(5)));
            assert!(ends && has >= before, "SEED={seed}: {ends}, {has} of {before}");
        }
    }
}

/// Goal: a block that cannot be read does not slip out of a drain as it is written anew, however
/// many drains began since it was dirty, and whatever else they wait for. Method: one such block,
/// writes to others of its volume and of another one, drains of it or of all that overlap, then a
/// write of it; what ends well has the old version or the new one at home; seeds.
#[test]
fn a_block_that_was_unreadable_is_drained() {
    let mut ended_well = 0;
    for seed in 0..200 {
        let id = VolumeId(1);
        let mut host = Host::new(spec([4, 12, 40]), &[1, 2].map(|v| volume(v, 1, BLOCKS)), seed);
        make_sick(&mut host, 1, 5);
        let mut rng = Rng::new(seed + 7000);
        let written = 20 + rng.below(40);
        let mut tickets = 0;
        for turn in 0..200 {
            if rng.below(3) == 0 {
                let write = call(Operation::Write, 4096 * rng.below(4), 4096);
                host.submit(VolumeId(1 + rng.below(2) as u32), write, 9);
            }
            if rng.below(6) == 0 {
                host.drain(tickets, (rng.below(2) == 0).then_some(id));
                tickets += 1;
            }
            if turn == written {
                host.unreadable.clear();
                host.submit(id, call(Operation::Write, 5 * 4096, 4096), 2);
            }
            for _ in 0..rng.below(4) {
                host.step();
            }
            host.tick(Nanos::from_millis(1));
            for (ticket, result) in host.drained.drain(..).collect::<Vec<_>>() {
                let has = host.at_home(BlockKey::new(id, BlockIndex(5)));
                assert!(result.is_err() || has > 0, "SEED={seed}: drain {ticket} leaves {has}");
                ended_well += u32::from(result.is_ok());
            }
        }
    }
    assert!(ended_well > 100, "{ended_well}");
}
