//! Whole requests of another shard's clients, which wait here for the limits of a wide volume.
//!
//! How: the near end of a link by hand, with a branch for one client, beside the queue of a bench.

use super::*;
use crate::io::Peer;
use std::os::unix::net::UnixStream;

/// A client's branch of a link to a bench, which lets one request pass a second.
struct Led {
    bench: Bench,
    /// Keeps the link.
    _near: NearEnd,
    branch: Option<NearEnd>,
    answers: VecDeque<Answered>,
}

impl Led {
    fn new(seed: u64) -> Led {
        let mut bench = Bench::new(seed, Vec::new(), Rank::FIRST);
        limit(&mut bench, Limits { requests: Some(Rate::per_second(1, 1)), bytes: None });
        let (near, far) = link();
        let rank = bench.world.core.rank_of(LOWER);
        bench.guests.start_link(Waker::flag_only(), (LOWER, rank), (far, true));
        let branch = near.branch();
        Led { bench, _near: near, branch, answers: VecDeque::new() }
    }

    /// Writes to blocks one after the other, each with its number.
    fn write(&mut self, blocks: std::ops::Range<u64>) {
        let branch = self.branch.as_ref().expect("it is there");
        for block in blocks {
            let (call, bytes) = write(block, block * 4096, &[1 + block as u8; 4096]);
            branch.send(Asked { call, bytes, answer: None });
        }
    }

    fn turn(&mut self) {
        let Bench { world, guests, .. } = &mut self.bench;
        guests.look(&mut world.io);
        guests.start_branches(Waker::flag_only);
        self.bench.go_on();
        self.bench.work();
        self.bench.flush();
        if let Some(branch) = &self.branch {
            assert!(!branch.take(&mut self.answers), "its far end is there");
        }
    }

    /// Turns for so many seconds, in steps of a tenth.
    fn run(&mut self, seconds: std::ops::Range<u64>) {
        for tenth in seconds.start * 10..seconds.end * 10 {
            pass_time(&mut self.bench, Nanos::from_millis(tenth * 100));
            self.turn();
        }
    }

    fn ended(&self) -> Vec<(u64, Result<(), ErrorKind>)> {
        self.answers.iter().map(|answered| (answered.cookie, answered.result)).collect()
    }

    fn waiting(&self) -> u64 {
        self.bench.gate.waits(LOWER).waiting
    }

    /// The first bytes of blocks.
    fn blocks(&mut self) -> [u8; 3] {
        [0, 1, 2].map(|block| self.bench.world.read(LOWER.0, block * 4096, 4096).unwrap()[0])
    }
}

/// Goal: what waits for limits when its client's branch ends never begins, nor what comes behind
/// it. Method: three writes behind a burst of one; the near end is dropped; time passes.
#[test]
fn a_held_call_dies_with_its_branch() {
    let mut led = Led::new(20);
    led.write(0..3);
    led.run(0..1);
    assert_eq!((led.ended(), led.waiting()), (vec![(0, Ok(()))], 1));
    led.branch = None;
    led.run(1..9);
    assert_eq!((led.blocks(), led.waiting()), ([1, 0, 0], 0));
}

/// Goal: what waits for limits at the leading shard is refused once the volume is not to be
/// changed. Method: three writes behind a burst of one; the gate is told; time passes.
#[test]
fn a_held_call_is_refused_once_its_volume_is_read_only() {
    let mut led = Led::new(21);
    led.write(0..3);
    led.run(0..1);
    assert_eq!(led.waiting(), 1);
    led.bench.gate.set_read_only(LOWER, true);
    led.run(1..9);
    let denied = Err(ErrorKind::Denied);
    assert_eq!(led.ended(), [(0, Ok(())), (1, denied), (2, denied)]);
    assert_eq!((led.blocks(), led.waiting()), ([1, 0, 0], 0));
}

/// Goal: what waits for limits when its client has left ends at once, and never begins, nor what
/// comes behind it; the branch goes on with what had begun. Method: three writes behind a burst of
/// one; the near end says so, and sends another.
#[test]
fn a_held_call_dies_with_its_client() {
    let mut led = Led::new(22);
    led.write(0..3);
    led.run(0..1);
    led.branch.as_ref().expect("it is there").leave();
    led.turn();
    let closed = Err(ErrorKind::Closed);
    assert_eq!(led.ended(), [(0, Ok(())), (1, closed), (2, closed)]);
    led.write(2..3);
    led.run(1..9);
    assert_eq!(led.ended()[3..], [(2, closed)]);
    assert_eq!((led.blocks(), led.waiting()), ([1, 0, 0], 0));
}

/// Goal: the shard that keeps the limits finds out by itself that a client has left, of which the
/// client's own shard may hear later. Method: a socket whose other end is closed while a write
/// waits; nothing is said by the near end.
#[test]
fn a_held_call_dies_with_its_socket() {
    let mut led = Led::new(23);
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    led.branch.as_ref().expect("it is there").set_peer(Peer::new(Arc::new(ours.into())));
    led.write(0..3);
    led.run(0..1);
    assert_eq!((led.ended(), led.waiting()), (vec![(0, Ok(()))], 1));
    drop(theirs);
    led.run(1..9);
    let closed = Err(ErrorKind::Closed);
    assert_eq!(led.ended(), [(0, Ok(())), (1, closed), (2, closed)]);
    assert_eq!((led.blocks(), led.waiting()), ([1, 0, 0], 0));
}
