//! One service of one vehicle: an NBD client in a thread of its own.
//!
//! How: a closed loop of one request at a time, started at a steady pace; a service that falls
//! behind starts its next request at once and does not catch up. Latency runs from before the
//! request is written to after its answer is read.
//! Invariant: the same seed gives the same requests in the same order.
//! Cost: a thread and two buffers. A thread of its own keeps one service's copying out of another's
//! latency.

use hdrhistogram::Histogram;
use layby_daemon::client::{NbdClient, NbdClientError};
use layby_daemon::types::{Call, CallFlags, Operation};
use layby_trace::{Access, ServiceLoad, ServiceSpec};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Longest latency that is told from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// Digits that latencies are kept to.
const LATENCY_DIGITS: u8 = 3;

/// A service to run.
pub(super) struct Client {
    /// What it does.
    pub(super) spec: &'static ServiceSpec,
    /// The node's NBD socket.
    pub(super) socket: PathBuf,
    /// Its volume.
    pub(super) volume: String,
    /// Where its requests come from.
    pub(super) seed: u64,
    /// A request is started this often.
    pub(super) pace: Duration,
    /// What it measures before this has passed is thrown away: the caches are still empty.
    pub(super) warm_up: Duration,
    /// Set when it is to end.
    pub(super) is_over: Arc<AtomicBool>,
}

/// What a service measured.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Nanoseconds of each read.
    pub(super) read_ns: Histogram<u64>,
    /// Nanoseconds of each write.
    pub(super) write_ns: Histogram<u64>,
}

impl Measured {
    /// Nothing yet.
    pub(super) fn new() -> Measured {
        let latency_max = u64::try_from(LATENCY_MAX.as_nanos()).expect("a minute fits");
        let empty = Histogram::new_with_bounds(1, latency_max, LATENCY_DIGITS)
            .expect("the bounds are constants in order");
        Measured { read_ns: empty.clone(), write_ns: empty }
    }

    /// Adds what another service of the kind measured.
    pub(super) fn add(&mut self, other: &Measured) {
        let same = "all histograms have the same bounds";
        self.read_ns.add(&other.read_ns).expect(same);
        self.write_ns.add(&other.write_ns).expect(same);
    }

    fn record(&mut self, operation: Operation, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let is_read = operation == Operation::Read;
        let histogram = if is_read { &mut self.read_ns } else { &mut self.write_ns };
        histogram.saturating_record(nanos);
    }
}

impl Client {
    /// Runs until it is told to end.
    ///
    /// # Errors
    /// [`NbdClientError`] when the node refuses a request or the connection ends.
    pub(super) async fn run(self) -> Result<Measured, NbdClientError> {
        let mut client = NbdClient::connect(&self.socket, &self.volume).await?;
        let mut load = ServiceLoad::new(self.spec, client.size(), self.seed);
        let payload = vec![0x5a; usize::try_from(self.spec.length).unwrap_or(0)];
        let mut measured = Measured::new();
        let mut pace = interval(self.pace);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begin = Instant::now();
        let mut cookie = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            pace.tick().await;
            let Some(access) = load.next() else { break };
            cookie += 1;
            let call = call(cookie, access);
            let data: &[u8] = if access.operation == Operation::Write { &payload } else { &[] };
            let start = Instant::now();
            client.call(&call, data).await?;
            if begin.elapsed() > self.warm_up {
                measured.record(access.operation, start.elapsed());
            }
        }
        client.disconnect().await?;
        Ok(measured)
    }
}

fn call(cookie: u64, access: Access) -> Call {
    Call {
        cookie,
        operation: access.operation,
        offset: access.offset,
        length: access.length,
        flags: CallFlags::default(),
    }
}
