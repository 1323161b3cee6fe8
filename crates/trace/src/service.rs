//! The services that each vehicle brings, and the mixes of them (PADSA, Table III).
//!
//! How: a [`ServiceSpec`] says pattern, sizes and class; a [`ServiceLoad`] draws its accesses.
//! Invariant: a load's accesses lie whole within its footprint and follow from its seed alone.
//! Cost: constant time per access. Not for: arrival and departure of vehicles.

use crate::{Access, Scatter, Sequential, Zipf};
use layby_types::{Operation, Rng};

const SMALL_BYTES: u64 = 4 << 10;
const LARGE_BYTES: u64 = 256 << 10;
const ZIPF_EXPONENT: f64 = 1.2;

/// One of the four services of Table III.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// S1: small reads and writes that a vehicle's safety waits for.
    CollisionAvoidance,
    /// S2: sensor data on its way up; large sequential writes.
    SensingUpload,
    /// S3: maps and updates on their way down; large sequential reads.
    MapDownload,
    /// S4: anything else; like S1 without the hurry.
    Other,
}

/// Where a service's next access goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Blocks by Zipf's law, scattered over the footprint.
    Zipf {
        /// How strongly the load favours few blocks.
        exponent: f64,
    },
    /// One range after the other.
    Sequential,
}

/// What a service does to its volume.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceSpec {
    /// Which service this describes.
    pub service: Service,
    /// The paper's short name: `S1` to `S4`.
    pub name: &'static str,
    /// What the service is, in words.
    pub title: &'static str,
    /// The node's class for it: `critical` or `normal`.
    pub class: &'static str,
    /// Reads in a hundred accesses; the others write.
    pub read_percent: u8,
    /// Bytes of an access.
    pub length: u64,
    /// Where the accesses go.
    pub pattern: Pattern,
}

/// Table III, in the order of [`Service`].
pub const SERVICES: [ServiceSpec; 4] = [
    ServiceSpec {
        service: Service::CollisionAvoidance,
        name: "S1",
        title: "collision avoidance",
        class: "critical",
        read_percent: 70,
        length: SMALL_BYTES,
        pattern: Pattern::Zipf { exponent: ZIPF_EXPONENT },
    },
    ServiceSpec {
        service: Service::SensingUpload,
        name: "S2",
        title: "sensing upload",
        class: "normal",
        read_percent: 0,
        length: LARGE_BYTES,
        pattern: Pattern::Sequential,
    },
    ServiceSpec {
        service: Service::MapDownload,
        name: "S3",
        title: "map download",
        class: "normal",
        read_percent: 100,
        length: LARGE_BYTES,
        pattern: Pattern::Sequential,
    },
    ServiceSpec {
        service: Service::Other,
        name: "S4",
        title: "other",
        class: "normal",
        read_percent: 70,
        length: SMALL_BYTES,
        pattern: Pattern::Zipf { exponent: ZIPF_EXPONENT },
    },
];

impl Service {
    /// What this service does.
    #[must_use]
    pub fn spec(self) -> &'static ServiceSpec {
        let spec = &SERVICES[self as usize];
        assert!(spec.service == self, "Table III is in the order of `Service`");
        spec
    }
}

/// A mix of services that every vehicle brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// One each of S1, S2, S3.
    A,
    /// S1 beside two of S2 and two of S3.
    B,
    /// S1 beside three of S2 and three of S3.
    C,
    /// One of each service.
    D,
}

impl Workload {
    /// The services of one vehicle, one volume each.
    #[must_use]
    pub fn services(self) -> &'static [Service] {
        use Service::{
            CollisionAvoidance as S1, MapDownload as S3, Other as S4, SensingUpload as S2,
        };
        match self {
            Workload::A => &[S1, S2, S3],
            Workload::B => &[S1, S2, S2, S3, S3],
            Workload::C => &[S1, S2, S2, S2, S3, S3, S3],
            Workload::D => &[S1, S2, S3, S4],
        }
    }
}

/// The endless accesses of one service to one volume.
#[derive(Clone, Debug)]
pub struct ServiceLoad {
    rng: Rng,
    read_percent: u8,
    length: u64,
    cursor: Cursor,
}

#[derive(Clone, Debug)]
enum Cursor {
    Zipf(Zipf, Scatter),
    Sequential(Sequential),
}

impl ServiceLoad {
    /// The accesses of `spec` to the first `footprint` bytes of a volume. Panics when not even one
    /// access fits.
    #[must_use]
    pub fn new(spec: &ServiceSpec, footprint: u64, seed: u64) -> Self {
        assert!(spec.read_percent <= 100, "a percentage ends at a hundred");
        assert!(footprint >= spec.length && spec.length > 0, "the footprint holds no access");
        let elements = footprint / spec.length;
        let cursor = match spec.pattern {
            Pattern::Zipf { exponent } => {
                Cursor::Zipf(Zipf::new(elements, exponent), Scatter::new(elements))
            }
            Pattern::Sequential => Cursor::Sequential(Sequential::new(footprint, spec.length)),
        };
        let (read_percent, length) = (spec.read_percent, spec.length);
        ServiceLoad { rng: Rng::new(seed), read_percent, length, cursor }
    }
}

impl Iterator for ServiceLoad {
    type Item = Access;

    /// The next access; there is always one.
    fn next(&mut self) -> Option<Access> {
        let reads = self.rng.chance(u64::from(self.read_percent), 100);
        let operation = if reads { Operation::Read } else { Operation::Write };
        let offset = match &mut self.cursor {
            Cursor::Zipf(zipf, scatter) => scatter.place(zipf.sample(&mut self.rng)) * self.length,
            Cursor::Sequential(stream) => stream.advance(),
        };
        Some(Access { operation, offset, length: self.length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOOTPRINT: u64 = 16 << 20;

    /// Goal: every service keeps to its footprint, its sizes and its share of reads. Method: 20 000
    /// accesses of each, over a footprint that its ranges do not divide.
    #[test]
    fn accesses_match_the_table() {
        for spec in &SERVICES {
            let footprint = FOOTPRINT + 1000;
            let accesses: Vec<Access> = ServiceLoad::new(spec, footprint, 3).take(20_000).collect();
            let fits = |access: &Access| {
                access.length == spec.length
                    && access.offset.is_multiple_of(spec.length)
                    && access.offset + access.length <= footprint
            };
            assert!(accesses.iter().all(fits), "{} leaves its footprint", spec.name);
            let reads = accesses.iter().filter(|a| a.operation == Operation::Read).count();
            let percent = reads as f64 / 200.0;
            assert!((percent - f64::from(spec.read_percent)).abs() < 1.5, "{percent} %");
        }
    }

    /// Goal: a seed is a promise. Method: two loads of one seed agree, one of another differs.
    #[test]
    fn the_seed_fixes_the_accesses() {
        let draw = |seed| {
            ServiceLoad::new(Service::CollisionAvoidance.spec(), FOOTPRINT, seed)
                .take(500)
                .collect::<Vec<Access>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    /// Goal: sequential services leave nothing out. Method: one round touches every byte in order.
    #[test]
    fn streams_cover_their_footprint_in_order() {
        let load = ServiceLoad::new(Service::SensingUpload.spec(), FOOTPRINT, 1);
        let offsets: Vec<u64> =
            load.take((FOOTPRINT / LARGE_BYTES) as usize).map(|access| access.offset).collect();
        assert!(offsets.iter().enumerate().all(|(i, offset)| *offset == i as u64 * LARGE_BYTES));
    }

    /// Goal: the mixes are the paper's. Method: the number of each service in each workload.
    #[test]
    fn workloads_hold_the_papers_services() {
        let count = |workload: Workload, service| {
            workload.services().iter().filter(|other| **other == service).count()
        };
        for (workload, bulk, other) in
            [(Workload::A, 1, 0), (Workload::B, 2, 0), (Workload::C, 3, 0), (Workload::D, 1, 1)]
        {
            assert_eq!(count(workload, Service::CollisionAvoidance), 1);
            assert_eq!(count(workload, Service::SensingUpload), bulk);
            assert_eq!(count(workload, Service::MapDownload), bulk);
            assert_eq!(count(workload, Service::Other), other);
        }
    }
}
