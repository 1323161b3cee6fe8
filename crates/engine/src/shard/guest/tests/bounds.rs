//! What the queues of a shard hold together, and what a queue keeps between two writes.
//!
//! How: as in the tests above; and queues of many volumes, counted by hand.

use super::*;

/// A ring that fills the buffer it is given, and notes how large that came.
struct Filling {
    script: Script,
    capacities: Arc<Mutex<Vec<usize>>>,
}

impl GuestRing for Filling {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        let Some((call, bytes)) = self.script.requests.pop_front() else {
            return Ok(Taken::Nothing);
        };
        self.capacities.lock().unwrap().push(payload.capacity());
        payload.clear();
        payload.extend(bytes);
        Ok(Taken::Call(call))
    }

    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]) {
        self.script.put(call, at, bytes);
    }

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        self.script.finish(call, result)
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        Ok(false)
    }

    fn take_signal(&mut self) -> bool {
        false
    }

    fn base(&self) -> u16 {
        0
    }
}

/// Goal: a queue with long writes keeps its buffer while it is busy, and gives it back then.
/// Method: writes in one go, and what each found.
#[test]
fn a_busy_queue_keeps_its_buffer() {
    const LONG: usize = 96 << 10;
    let mut bench = Bench::new(21, Vec::new(), Rank::FIRST);
    bench.best = bench.world.core.rank_of(LOWER);
    let requests: VecDeque<_> = (0..8).map(|n| write(n, n * 4096, &[9; LONG])).collect();
    let (script, capacities) =
        (Script { requests, answers: bench.answers.clone() }, Arc::<Mutex<Vec<_>>>::default());
    let ring = Filling { script, capacities: capacities.clone() };
    bench.guests.places[0].as_mut().unwrap().ring = Box::new(ring);
    bench.run();
    let found = capacities.lock().unwrap().clone();
    assert_eq!(found.len(), 8);
    assert!(found[1..].iter().all(|capacity| *capacity >= LONG), "{found:?}");
    let kept = bench.guests.places[0].as_ref().unwrap().payload.capacity();
    assert!(kept <= bound::PAYLOAD_BYTES_KEPT, "{kept} bytes of an idle queue");
}

/// Goal: the queues of all volumes hold no more together than the shard's bound and a request of
/// each volume, whatever hangs; each volume may have a request in flight; and where something is
/// freed, those that were full go on. Method: two hundred volumes that take what they may and end
/// nothing; then half of them end all.
#[test]
fn the_queues_of_a_shard_share_a_bound() {
    const VOLUMES: u64 = 200;
    const REQUEST: u64 = 1 << 20;
    let mut bench = Bench::new(22, Vec::new(), Rank::FIRST);
    let guests = &mut bench.guests;
    for volume in 1..=VOLUMES {
        let ring = Script { requests: VecDeque::new(), answers: bench.answers.clone() };
        let event = (EventId(0), CallEvent::default());
        let of = (VolumeId(1000 + volume as u32), Rank::FIRST);
        guests.add(Guest::new(of, "test".into(), Box::new(ring), event));
    }
    let take = |guests: &mut Guests, number: u64| {
        for count in 0.. {
            guests.set_room(number as u32);
            let guest = guests.places[number as usize].as_mut().unwrap();
            if guest.is_full() {
                guest.has_more = false;
                guests.count(number as u32);
                return count;
            }
            guest.inflight += 1;
            guest.inflight_bytes += REQUEST;
            guests.count(number as u32);
        }
        unreachable!("the bound ends it");
    };
    let counts: Vec<u64> = (1..=VOLUMES).map(|number| take(guests, number)).collect();
    let all = counts.iter().sum::<u64>() * REQUEST;
    let bound = crate::shard::ClientMemory::DEFAULT.bytes_max;
    assert!(all <= bound + VOLUMES * REQUEST, "{all} bytes");
    assert!(counts.iter().all(|count| *count > 0), "a volume may hold nothing: {counts:?}");
    assert!(counts[0] >= 32, "the first volume has room: {counts:?}");
    for number in 1..=VOLUMES / 2 {
        let guest = guests.places[number as usize].as_mut().unwrap();
        (guest.inflight, guest.inflight_bytes) = (0, 0);
        guests.count(number as u32);
    }
    bench.flush();
    let woken = |number: u64| bench.guests.places[number as usize].as_ref().unwrap().has_more;
    assert!((VOLUMES / 2 + 1..=VOLUMES).all(woken), "a queue that was full sleeps on");
}

/// Goal: a busy queue keeps no buffer where that would leave it, or others of its volume, no room,
/// and goes on without being woken. Method: a long write's buffer beside a request in flight, with
/// room in plenty, and with as much as the buffer takes.
#[test]
fn a_buffer_is_kept_where_there_is_room() {
    const LONG: usize = 1 << 20;
    for (room, is_kept) in [(bound::HELD_BYTES_MAX, true), (LONG as u64, false)] {
        let mut bench = Bench::new(23, Vec::new(), Rank::FIRST);
        let guest = bench.guests.places[0].as_mut().unwrap();
        (guest.inflight, guest.inflight_bytes, guest.has_more) = (1, 4096, false);
        (guest.room, guest.payload) = (room, Vec::with_capacity(LONG));
        guest.has_more = is_kept;
        bench.guests.count(0);
        let guest = bench.guests.places[0].as_ref().unwrap();
        assert_eq!(guest.payload.capacity() >= LONG, is_kept, "room {room}");
        assert!(!guest.is_full() && guest.has_more, "room {room}");
    }
}
