//! Generates traces: Zipf, sequential, hot and cold, and mixtures, without end or up to a count.
//!
//! How: a [`Generator`] draws one request after the other from a seeded `Rng`, at even distances in
//! time; it is a [`Reader`] like one of a file. Ranks of Zipf and of hot blocks are scattered over
//! the footprint.
//! Invariant: every request lies whole within the footprint; the same spec gives the same records
//! on the same platform (see `zipf`). Cost: constant time and no allocation per record.
//! Not for: services of vehicles; see `service`.

use crate::error::{Skipped, TraceError};
use crate::record::{BATCH_RECORDS_MAX, LENGTH_MAX, RANGE_END_MAX, Reader, Record, Unit};
use crate::{Scatter, Sequential, Zipf};
use layby_types::{Nanos, Operation, Rng, VolumeId};

/// Which block comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// The block of rank k with a probability proportional to 1 / k^exponent; 0 is uniform.
    Zipf {
        /// From 0 up; [`EXPONENT_MAX`] at most.
        exponent: f64,
    },
    /// One block after the other, again and again.
    Sequential,
    /// Some blocks are hot: `accesses_percent` of the requests go to `blocks_percent` of the
    /// blocks, evenly within the hot ones and within the cold ones.
    HotCold {
        /// Requests in a hundred that go to hot blocks.
        accesses_percent: f64,
        /// Blocks in a hundred that are hot.
        blocks_percent: f64,
    },
    /// `sequential_percent` of the requests follow one another, the others are drawn by Zipf's law
    /// from the same footprint.
    Mixed {
        /// Requests in a hundred that belong to the sequential stream.
        sequential_percent: f64,
        /// As of [`Shape::Zipf`].
        exponent: f64,
    },
}

/// The steepest Zipf exponent that is offered; beyond it nearly all requests go to one block.
pub const EXPONENT_MAX: f64 = 10.0;

/// What to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratorSpec {
    /// Which block comes next.
    pub shape: Shape,
    /// How many requests there are.
    pub requests: u64,
    /// Requests lie within the first bytes of the volume, this many.
    pub footprint_bytes: u64,
    /// Bytes of each request, and of a block.
    pub length: u64,
    /// Reads in a hundred requests; the others write.
    pub read_percent: u8,
    /// Time from one request to the next.
    pub interval: Nanos,
    /// The volume of all requests.
    pub volume: VolumeId,
    /// Same seed, same requests.
    pub seed: u64,
}

/// Draws the records of a [`GeneratorSpec`].
#[derive(Clone, Debug)]
pub struct Generator {
    spec: GeneratorSpec,
    rng: Rng,
    blocks: u64,
    zipf: Option<Zipf>,
    scatter: Scatter,
    stream: Sequential,
    hot_blocks: u64,
    drawn: u64,
}

impl Generator {
    /// A generator of `spec`.
    ///
    /// # Errors
    /// [`TraceError::Generator`] that says which number is out of its range.
    pub fn new(spec: GeneratorSpec) -> Result<Generator, TraceError> {
        check(&spec)?;
        let blocks = spec.footprint_bytes / spec.length;
        let exponent = match spec.shape {
            Shape::Zipf { exponent } | Shape::Mixed { exponent, .. } => exponent,
            Shape::Sequential | Shape::HotCold { .. } => 0.0,
        };
        let hot_blocks = match spec.shape {
            Shape::HotCold { blocks_percent, .. } => {
                ((blocks as f64 * blocks_percent / 100.0).round() as u64).clamp(1, blocks)
            }
            _ => 0,
        };
        Ok(Generator {
            spec,
            rng: Rng::new(spec.seed),
            blocks,
            zipf: (exponent > 0.0).then(|| Zipf::new(blocks, exponent)),
            scatter: Scatter::new(blocks),
            stream: Sequential::new(spec.footprint_bytes, spec.length),
            hot_blocks,
            drawn: 0,
        })
    }

    fn offset(&mut self) -> u64 {
        match self.spec.shape {
            Shape::Sequential => self.stream.advance(),
            Shape::Zipf { .. } => self.by_rank(),
            Shape::HotCold { accesses_percent, .. } => self.hot_or_cold(accesses_percent),
            Shape::Mixed { sequential_percent, .. } => {
                if self.chance(sequential_percent) {
                    self.stream.advance()
                } else {
                    self.by_rank()
                }
            }
        }
    }

    fn chance(&mut self, percent: f64) -> bool {
        self.rng.unit() * 100.0 < percent
    }

    fn by_rank(&mut self) -> u64 {
        let rank = match &self.zipf {
            Some(zipf) => zipf.sample(&mut self.rng),
            None => self.rng.below(self.blocks),
        };
        self.scatter.place(rank) * self.spec.length
    }

    fn hot_or_cold(&mut self, accesses_percent: f64) -> u64 {
        let cold_blocks = self.blocks - self.hot_blocks;
        let is_hot = cold_blocks == 0 || self.chance(accesses_percent);
        let rank = if is_hot {
            self.rng.below(self.hot_blocks)
        } else {
            self.hot_blocks + self.rng.below(cold_blocks)
        };
        self.scatter.place(rank) * self.spec.length
    }
}

impl Iterator for Generator {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.drawn == self.spec.requests {
            return None;
        }
        let at = Nanos(self.spec.interval.0 * self.drawn);
        self.drawn += 1;
        let reads = self.rng.chance(u64::from(self.spec.read_percent), 100);
        let operation = if reads { Operation::Read } else { Operation::Write };
        let offset = self.offset();
        let length = self.spec.length;
        assert!(offset + length <= self.spec.footprint_bytes, "a request lies in its footprint");
        Some(Record { at, volume: self.spec.volume, operation, offset, length })
    }
}

impl Reader for Generator {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<usize, TraceError> {
        batch.clear();
        batch.extend(self.by_ref().take(BATCH_RECORDS_MAX));
        Ok(batch.len())
    }
    fn unit(&self) -> Unit {
        Unit::Bytes
    }
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }
    fn volumes(&self) -> &[String] {
        &[]
    }
}

/// Says which number of `spec` is out of its range.
fn check(spec: &GeneratorSpec) -> Result<(), TraceError> {
    let percent = |value: f64| (0.0..=100.0).contains(&value);
    let law = |exponent: f64| (0.0..=EXPONENT_MAX).contains(&exponent);
    let is_in_shape = match spec.shape {
        Shape::Zipf { exponent } => law(exponent),
        Shape::Sequential => true,
        Shape::HotCold { accesses_percent, blocks_percent } => {
            percent(accesses_percent) && percent(blocks_percent)
        }
        Shape::Mixed { sequential_percent, exponent } => {
            percent(sequential_percent) && law(exponent)
        }
    };
    let refused = |what: &str| Err(TraceError::Generator { what: what.to_owned() });
    match () {
        () if !is_in_shape => refused("a percentage is from 0 to 100, an exponent from 0 to 10"),
        () if spec.read_percent > 100 => refused("reads are at most 100 percent"),
        () if spec.length == 0 || spec.length > LENGTH_MAX => {
            refused("a request has 1 byte to 1 GiB")
        }
        () if spec.footprint_bytes < spec.length || spec.footprint_bytes > RANGE_END_MAX => {
            refused("the footprint holds at least one request and at most 65536TiB")
        }
        () if spec.volume > VolumeId::MAX => refused("volumes go up to 1048575"),
        () if spec.interval.0.checked_mul(spec.requests).is_none() => {
            refused("the trace would last more than 584 years")
        }
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SPEC: GeneratorSpec = GeneratorSpec {
        shape: Shape::Sequential,
        requests: 20_000,
        footprint_bytes: (1000 << 12) + 77,
        length: 4096,
        read_percent: 70,
        interval: Nanos(100),
        volume: VolumeId(3),
        seed: 1,
    };

    fn records(shape: Shape) -> Vec<Record> {
        Generator::new(GeneratorSpec { shape, ..SPEC }).expect("the numbers are in range").collect()
    }

    const SHAPES: [Shape; 5] = [
        Shape::Zipf { exponent: 0.0 },
        Shape::Zipf { exponent: 1.2 },
        Shape::Sequential,
        Shape::HotCold { accesses_percent: 90.0, blocks_percent: 10.0 },
        Shape::Mixed { sequential_percent: 50.0, exponent: 1.0 },
    ];

    /// Goal: every shape keeps to its footprint, its share of reads, its pace and its seed. Method:
    /// 20,000 requests of each, twice.
    #[test]
    fn all_shapes_keep_the_spec() {
        for shape in SHAPES {
            let drawn = records(shape);
            assert_eq!(drawn, records(shape));
            assert_eq!(drawn.len(), 20_000);
            assert!(drawn.iter().all(|r| r.offset % 4096 == 0 && r.volume == SPEC.volume));
            assert!(drawn.iter().enumerate().all(|(at, r)| r.at.0 == 100 * at as u64));
            let reads = drawn.iter().filter(|r| r.operation == Operation::Read).count();
            assert!(reads.abs_diff(14_000) < 300, "{shape:?}: {reads}");
            let other = GeneratorSpec { shape, seed: 2, ..SPEC };
            let other: Vec<_> = Generator::new(other).expect("in range").collect();
            assert_ne!(drawn, other);
        }
    }

    /// Goal: hot blocks are as many and as hot as asked. Method: counts per block; a block that is
    /// hot is drawn 180 times on average, a cold one twice.
    #[test]
    fn hot_blocks_are_hot() {
        let mut counts = vec![0u64; 1000];
        for record in records(SHAPES[3]) {
            counts[(record.offset / 4096) as usize] += 1;
        }
        let hot: Vec<u64> = counts.iter().copied().filter(|count| *count > 60).collect();
        assert_eq!(hot.len(), 100);
        assert!(hot.iter().sum::<u64>().abs_diff(18_000) < 300);
    }

    /// Goal: a mixture holds its stream. Method: blocks that follow the one last met by the stream.
    #[test]
    fn mixtures_hold_a_stream() {
        let (mut next, mut followed) = (0, 0);
        for record in records(SHAPES[4]) {
            if record.offset == next {
                followed += 1;
                next = (next + 4096) % (1000 << 12);
            }
        }
        assert!(followed > 9_000, "{followed}");
        let distinct: HashSet<u64> = records(SHAPES[2]).iter().map(|r| r.offset).collect();
        assert_eq!(distinct.len(), 1000);
    }

    /// Goal: numbers out of range are refused in words. Method: one of each.
    #[test]
    fn wrong_numbers_are_refused() {
        for spec in [
            GeneratorSpec { shape: Shape::Zipf { exponent: f64::NAN }, ..SPEC },
            GeneratorSpec { shape: Shape::Zipf { exponent: 11.0 }, ..SPEC },
            GeneratorSpec { read_percent: 101, ..SPEC },
            GeneratorSpec { length: 0, ..SPEC },
            GeneratorSpec { footprint_bytes: 4095, ..SPEC },
            GeneratorSpec { volume: VolumeId(1 << 20), ..SPEC },
            GeneratorSpec { interval: Nanos::NEVER, ..SPEC },
        ] {
            assert!(Generator::new(spec).is_err(), "{spec:?}");
        }
    }
}
