//! What a client's requests that bring no bytes may hold, and how many of them a turn starts.
//!
//! How: a session whose requests are written down, over a core with simulated disks; a message is
//! the number of its request.

use super::*;
use crate::control::Connection;
use crate::core::tests::{Shape, World, call};
use crate::shard::memory::ClientMemory;
use layby_types::{Extent, SessionError};

const VOLUME: VolumeId = VolumeId(2);
/// Bytes of the volume.
const LENGTH: u64 = 48 * 4096;
const REQUESTS: u16 = 1024;
const QUANTUM: u64 = 16 << 10;
/// Turns that anything may take before it counts as hung.
const TURNS_MAX: u32 = 100_000;

/// Asks for what is written down, and counts answers.
struct Script {
    call: Call,
    answered: Vec<u64>,
}

impl Session for Script {
    fn parse<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
        _: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError> {
        let [low, high, ..] = bytes else { return Ok(Parsed::Incomplete { wanted: 2 }) };
        let call = Call { cookie: u16::from_le_bytes([*low, *high]).into(), ..self.call };
        Ok(Parsed::Call { consumed: 2, call, payload: &[] })
    }

    fn reply_read_head(&mut self, call: &Call, _: &mut Vec<u8>) {
        panic!("{call:?} is no read");
    }

    fn reply_done(&mut self, call: &Call, _: &mut Vec<u8>) {
        assert_eq!(call.operation, Operation::Cache);
        self.answered.push(call.cookie);
    }

    fn reply_extents(&mut self, call: &Call, extents: &[Extent], _: &mut Vec<u8>) {
        assert!(call.operation == Operation::BlockStatus && !extents.is_empty());
        self.answered.push(call.cookie);
    }

    fn reply_error(&mut self, call: &Call, kind: ErrorKind, _: &mut Vec<u8>) {
        panic!("{call:?} failed: {kind}");
    }
}

/// A shard's part that serves one client, which has sent all of its requests.
struct Bench {
    world: World,
    gate: Gate,
    memory: Memory,
    client: Client<Script>,
}

impl Bench {
    fn new(operation: Operation, bytes_max: u64) -> Bench {
        let mut world = World::new(1, Shape::roomy());
        let memory = Memory::new(ClientMemory { bytes_max, ..ClientMemory::DEFAULT });
        let (socket, rank) = (world.io.add_socket(), world.core.rank_of(VOLUME));
        let session = Script { call: call(operation, 0, LENGTH), answered: Vec::new() };
        let connection = Connection {
            client: ClientId(1),
            socket: None,
            cipher: None,
            session,
            volume: VOLUME,
            received: (0..REQUESTS).flat_map(u16::to_le_bytes).collect(),
            pending: Vec::new(),
            peer: "test".into(),
        };
        let client = Client::new(&mut world.io, (0, rank), socket, &memory, connection);
        Bench { world, gate: Gate::default(), memory, client }
    }

    /// The client's turn; answers with how many requests are in flight behind it.
    fn go_on(&mut self, pass: &mut Pass) -> u64 {
        let Bench { world: World { io, core, .. }, gate, memory, client } = self;
        client.advance(io, core, (gate, memory), pass).expect("nothing is broken");
        client.load().inflight.into()
    }

    /// The devices' turn, and its answers.
    fn work(&mut self) {
        let Bench { world: World { io, core, .. }, memory, client, .. } = self;
        core.turn(io);
        while let Some(finished) = core.take_finished() {
            client.reply(io, core, finished);
        }
        client.settle(memory);
        memory.take_granted().iter().for_each(|_| client.on_granted(io));
    }

    /// Until all is answered, with passes of this kind; the most requests that were in flight.
    fn run(&mut self, pass: impl Fn() -> Pass) -> u64 {
        let mut most = 0;
        for _ in 0..TURNS_MAX {
            most = most.max(self.go_on(&mut pass()));
            self.work();
            if self.client.session.answered.len() == usize::from(REQUESTS) {
                let (held, own) = (self.memory.stats().bytes_held, self.client.load());
                assert_eq!((held, own.inflight_bytes, self.client.submitted_bytes()), (0, 0, 0));
                self.client.session.answered.sort_unstable();
                let all: Vec<u64> = (0..REQUESTS.into()).collect();
                assert_eq!(self.client.session.answered, all, "each is answered once");
                return most;
            }
        }
        panic!("a request is never answered");
    }
}

/// Goal: requests that bring no bytes hold no more memory together than the client may hold: what
/// is fetched for hints, and what block status answers. Method: a thousand of either in one go, of
/// which some fit; what each takes is known.
#[test]
fn requests_without_bytes_hold_their_part() {
    let bytes_max = 1 << 20;
    for (operation, bytes) in [(Operation::Cache, LENGTH), (Operation::BlockStatus, 48 * 8)] {
        let most = Bench::new(operation, bytes_max).run(|| Pass::whole(u64::MAX));
        assert!(most > 0 && (most - 1) * bytes <= bytes_max / 4, "{most} of {operation:?}");
    }
}

/// Goal: a request for which the shard has no room is served alone. Method: hints that are longer
/// than all that clients may hold.
#[test]
fn a_hint_without_room_is_served_alone() {
    let mut bench = Bench::new(Operation::Cache, 64 << 10);
    assert_eq!(bench.run(|| Pass::whole(u64::MAX)), 1);
}

/// Goal: below the best rank a turn starts no more of such requests than a quantum pays for, and
/// each ends. Method: a thousand of either, in bounded passes; what is started in the first.
#[test]
fn requests_without_bytes_share_the_quantum() {
    for (operation, most) in [(Operation::Cache, 1), (Operation::BlockStatus, QUANTUM / (48 * 8))] {
        let mut bench = Bench::new(operation, 1 << 30);
        let mut pass = Pass::bounded(QUANTUM, QUANTUM);
        let begun = bench.go_on(&mut pass);
        assert!((1..=most).contains(&begun) && pass.bytes <= QUANTUM, "{begun} of {operation:?}");
        bench.work();
        bench.run(|| Pass::bounded(QUANTUM, QUANTUM));
    }
}

/// Goal: block-status requests that cost more than a quantum pass, each whole, one a turn. Method:
/// quanta of a few bytes.
#[test]
fn a_long_status_passes_whole() {
    let mut bench = Bench::new(Operation::BlockStatus, 1 << 30);
    assert_eq!(bench.go_on(&mut Pass::bounded(16, 16)), 1);
    bench.work();
    bench.run(|| Pass::bounded(16, 16));
}
