//! Requests that a stop of the node leaves unanswered, by the ring that they came from.
//!
//! How: as in the tests above, with a ring that has an in-flight region.

use super::*;
use crate::control::MonitorId;

/// A ring whose next server finds what is in flight.
struct Tracked(Script);

impl GuestRing for Tracked {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        self.0.take(payload)
    }

    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]) {
        self.0.put(call, at, bytes);
    }

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        self.0.finish(call, result)
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        self.0.listen()
    }

    fn take_signal(&mut self) -> bool {
        self.0.take_signal()
    }

    fn base(&self) -> u16 {
        self.0.base()
    }

    fn is_tracked(&self) -> bool {
        true
    }
}

/// Goal: a request that a stop of the node leaves unanswered is answered with an error before its
/// monitor hears where the ring stands, unless its next server finds it in a region or the queue is
/// the kernel's. Method: a write that waits for an intent; the monitor asks for the base before the
/// stop and after it; a ring with a region, one without, one without a monitor.
#[test]
fn a_base_counts_no_request_that_was_not_answered() {
    let monitor = Some(MonitorId(1));
    for (is_tracked, monitor) in [(false, monitor), (true, monitor), (false, None)] {
        for asks_first in [true, false] {
            let mut bench = Bench::new(20, Vec::new(), Rank::FIRST);
            let answers = bench.answers.clone();
            let script = Script { requests: vec![write(1, 0, &[3; 4096])].into(), answers };
            let guest = bench.guests.places[0].as_mut().unwrap();
            guest.monitor = monitor;
            guest.ring = if is_tracked { Box::new(Tracked(script)) } else { Box::new(script) };
            bench.gate.intents().hold_revived(LOWER);
            assert_eq!(bench.go_on(), 0);
            let ended = Arc::<Mutex<Option<Vec<_>>>>::default();
            let (kept, answers) = (ended.clone(), bench.answers.clone());
            let mut answer = Some(Box::new(move |_: Result<u16, _>| {
                *kept.lock().unwrap() = Some(answers.lock().unwrap().ended.clone());
            }));
            for asks in [asks_first, !asks_first] {
                let World { io, core, .. } = &mut bench.world;
                match asks {
                    true => bench.guests.stop(io, core, (0, true), answer.take().unwrap()),
                    false => bench.guests.leave(io, None),
                }
                for _ in 0..5 {
                    if bench.guests.places[0].is_some() {
                        bench.go_on();
                    }
                    bench.flush();
                }
            }
            let found = ended.lock().unwrap().take().expect("the monitor hears");
            let is_lost = !is_tracked && monitor.is_some();
            let expected: &[_] = if is_lost { &[(1, Err(ErrorKind::Closed))] } else { &[] };
            assert_eq!(found, expected, "tracked {is_tracked}, asked first {asks_first}");
        }
    }
}
