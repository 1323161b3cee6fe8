//! Accesses of one kind, so many at a time, for a time.
//!
//! How: a closed loop: as one access ends, the next begins with its buffer, until the time or the
//! number is over; then what is in flight ends.
//! Invariant: nothing is in flight when a load ends, failed or not. Cost: a histogram of some
//! 200 KiB.
//! Not for: open arrivals; see the trace room's load.

use super::figures::Sample;
use crate::io::{Buffer, DiskId, Io, IoDone, IoError, IoOperation, Token};
use hdrhistogram::Histogram;
use layby_types::{Nanos, Rng};

/// Longer latencies count as this one.
const LATENCY_MAX: Nanos = Nanos::from_secs(60);

/// What is measured, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) is_write: bool,
    /// Offsets are drawn; otherwise they follow one another, from zero.
    pub(super) is_random: bool,
    /// Of each access.
    pub(super) bytes: u64,
    pub(super) depth: u16,
    /// Bytes of the disk that accesses are spread over.
    pub(super) extent: u64,
    pub(super) time_max: Nanos,
    pub(super) accesses_max: u64,
}

/// A load under way.
struct Course<'a> {
    io: &'a mut dyn Io,
    disk: DiskId,
    load: &'a Load,
    rng: &'a mut Rng,
    /// Places of an access on the disk.
    places: u64,
    started: u64,
    /// By place in the queue, which is the token.
    starts: Vec<Nanos>,
    latencies: Histogram<u64>,
    failure: Option<IoError>,
}

/// Runs `load`; at least `depth` accesses.
///
/// # Errors
/// The first failure of an access. Panics when no access fits, or the disk is shorter.
pub(super) fn run(
    io: &mut dyn Io,
    disk: DiskId,
    load: &Load,
    rng: &mut Rng,
) -> Result<Sample, IoError> {
    let places = load.extent / load.bytes;
    assert!(places > 0, "an extent that no access fits");
    assert!(load.extent <= io.disk_length(disk), "an extent beyond the disk");
    let latencies = Histogram::new_with_max(LATENCY_MAX.0, 3).expect("the bounds are sound");
    let starts = vec![Nanos::ZERO; usize::from(load.depth)];
    let (started, failure) = (0, None);
    Course { io, disk, load, rng, places, started, starts, latencies, failure }.run()
}

impl Course<'_> {
    fn run(mut self) -> Result<Sample, IoError> {
        for place in 0..self.load.depth {
            let buffer = self.io.buffer(self.load.bytes as usize);
            self.start(Token(u64::from(place)), buffer);
        }
        let (begin, mut end) = (self.starts[0], self.starts[0]);
        let (mut in_flight, mut done) = (usize::from(self.load.depth), Vec::new());
        while in_flight > 0 {
            self.io.wait(Nanos::NEVER, &mut done);
            end = self.io.now();
            let goes_on = end.since(begin) < self.load.time_max;
            for ended in done.drain(..) {
                let (token, buffer) = self.note(ended, end);
                if goes_on && self.failure.is_none() && self.started < self.load.accesses_max {
                    self.start(token, buffer);
                } else {
                    self.io.recycle(buffer);
                    in_flight -= 1;
                }
            }
        }
        let Load { depth, bytes, .. } = *self.load;
        let latency = Nanos(self.latencies.value_at_quantile(0.5));
        let (accesses, elapsed) = (self.latencies.len(), end.since(begin));
        self.failure.map_or(Ok(Sample { depth, bytes, accesses, elapsed, latency }), Err)
    }

    /// Starts the next access. Fresh bytes for every write: devices may compress or deduplicate.
    fn start(&mut self, token: Token, mut buffer: Buffer) {
        let place = match self.load.is_random {
            true => self.rng.below(self.places),
            false => self.started % self.places,
        };
        let (disk, offset) = (self.disk, place * self.load.bytes);
        let operation = if self.load.is_write {
            self.rng.fill(&mut buffer);
            IoOperation::Write { disk, offset, buffer, durable: false }
        } else {
            IoOperation::Read { disk, offset, buffer }
        };
        self.started += 1;
        self.starts[token.0 as usize] = self.io.now();
        self.io.submit(token, operation);
    }

    /// Counts the end of an access; its place in the queue and its buffer are free again.
    fn note(&mut self, ended: IoDone, now: Nanos) -> (Token, Buffer) {
        let latency = now.since(self.starts[ended.token.0 as usize]);
        match ended.result {
            Ok(_) => self.latencies.saturating_record(latency.0.max(1)),
            Err(error) => self.failure = self.failure.or(Some(error)),
        }
        (ended.token, ended.buffer.expect("reads and writes give their buffer back"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OperationKind, SimIo};
    use rustix::io::Errno;

    const LOAD: Load = Load {
        is_write: false,
        is_random: true,
        bytes: 4096,
        depth: 4,
        extent: 1 << 20,
        time_max: Nanos::from_millis(5),
        accesses_max: u64::MAX,
    };

    fn disk(seed: u64) -> (SimIo, DiskId) {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("disk", LOAD.extent);
        (io, disk)
    }

    /// Goal: a load ends with its time, its latency agrees with its throughput, and the same seed
    /// measures the same. Method: simulated disks, whose time is a number, twice.
    #[test]
    fn loads_end_with_their_time() {
        let measured = [1, 1].map(|seed| {
            let (mut io, disk) = disk(seed);
            let sample = run(&mut io, disk, &LOAD, &mut Rng::new(7)).expect("no fault was set");
            assert_eq!(io.in_flight(), 0);
            sample
        });
        let sample = measured[0];
        assert_eq!(sample, measured[1]);
        assert!(sample.elapsed >= LOAD.time_max && sample.elapsed < Nanos::from_millis(7));
        // Each access is in flight for its latency, and `depth` of them all the time.
        let in_flight = sample.accesses_per_second() * sample.latency.as_secs_f64();
        assert!(sample.accesses > 100 && (1.0..=4.0).contains(&in_flight), "{sample:?}");
    }

    /// Goal: a sequential load of the disk's length writes each byte, a read writes none. Method:
    /// the disk's bytes afterwards: no block of zeros, or nothing but zeros.
    #[test]
    fn every_block_is_written_once() {
        let (mut io, disk) = disk(2);
        run(&mut io, disk, &LOAD, &mut Rng::new(7)).expect("no fault was set");
        assert!(io.peek(disk).iter().all(|byte| *byte == 0));
        let (is_write, is_random, time_max) = (true, false, Nanos::NEVER);
        let fill = Load { is_write, is_random, time_max, accesses_max: 256, ..LOAD };
        let sample = run(&mut io, disk, &fill, &mut Rng::new(7)).expect("no fault was set");
        assert_eq!(sample.accesses, 256);
        assert!(io.peek(disk).chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
    }

    /// Goal: a failed access ends the load with its cause and leaves nothing in flight. Method: a
    /// read that fails.
    #[test]
    fn a_failure_ends_the_load() {
        let (mut io, disk) = disk(3);
        io.fail_next(disk, OperationKind::Read, Errno::IO);
        let ended = run(&mut io, disk, &LOAD, &mut Rng::new(7));
        assert_eq!(ended.map_err(|error| error.errno), Err(Errno::IO.raw_os_error()));
        assert_eq!(io.in_flight(), 0);
    }
}
