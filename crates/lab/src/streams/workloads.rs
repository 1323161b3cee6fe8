//! Writes like those of the paper's twelve traces, few of which can be had without registration.
//!
//! How: a volume is shared by components: rings that are written in order again and again, records
//! rewritten in place, files rewritten whole. Their extents lie among each other, as those of files
//! do. Sizes of writes, shares of sequential ones, rates and bursts follow Table 3.
//! Invariant: the same workload and seed give the same writes; every write is of whole pages and
//! lies within the volume. Cost: some tens of nanoseconds per write.
//! Not for: claims about the traces themselves. What Table 3 does not say (how the writes spread
//! over the volume) is ours, and is the same few numbers for all that were not measured.

use super::policy::{Attributes, FeatureSet, Sector, Thresholds, Write, select};
use layby_trace::Zipf;
use layby_types::{Nanos, Rng};

/// Sectors of a page of 4 KiB.
pub(super) const PAGE_SECTORS: u32 = 8;
/// Sectors of an extent: 128 KiB, so that a MiB may hold what eight components write.
const EXTENT_SECTORS: u64 = 256;
/// Lengths of a burst and of the pause after it.
const BURST_SECONDS: (u64, u64) = (50, 150);

/// How a component is written.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// In order, from end to beginning; `run` writes in a row.
    Ring { run: u32 },
    /// Anywhere, by Zipf's law with this exponent; 0 is evenly.
    Records { exponent: f64 },
    /// Files of so many sectors, rewritten whole, by Zipf's law.
    Files { sectors: u64, exponent: f64 },
}

/// A part of a volume that is written in one way.
#[derive(Clone, Copy, Debug)]
struct Component {
    kind: Kind,
    /// Sectors of each write.
    write_sectors: u32,
    /// Its part of the volume (%); what is left is never written after the filling.
    space_percent: u32,
    /// Its part of the writes (per mille).
    writes_permille: u32,
}

/// A row of Table 3, as printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printed {
    pub(super) autocorrelation: f64,
    pub(super) random_percent: f64,
    pub(super) reuse: f64,
    pub(super) size: f64,
    pub(super) gigabytes_per_day: f64,
    /// Requests per second.
    pub(super) rate: f64,
}

/// A workload of the paper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) printed: Printed,
    components: &'static [Component],
}

const fn printed(figures: [f64; 6]) -> Printed {
    let [autocorrelation, random_percent, reuse, size, gigabytes_per_day, rate] = figures;
    Printed { autocorrelation, random_percent, reuse, size, gigabytes_per_day, rate }
}

const fn ring(run: u32, write_sectors: u32, space: u32, writes: u32) -> Component {
    component(Kind::Ring { run }, write_sectors, space, writes)
}
const fn records(exponent: f64, write_sectors: u32, space: u32, writes: u32) -> Component {
    component(Kind::Records { exponent }, write_sectors, space, writes)
}
const fn files(sectors: u64, write_sectors: u32, space: u32, writes: u32) -> Component {
    component(Kind::Files { sectors, exponent: 0.8 }, write_sectors, space, writes)
}
const fn component(kind: Kind, write_sectors: u32, space: u32, writes: u32) -> Component {
    Component { kind, write_sectors, space_percent: space, writes_permille: writes }
}

impl Printed {
    /// As the policies want it; the rate is in the paper's scale.
    pub(super) fn attributes(&self) -> Attributes {
        Attributes {
            autocorrelation: self.autocorrelation,
            random_percent: self.random_percent,
            reuse: self.reuse,
            size_sectors: self.size,
            gigabytes_per_day: self.gigabytes_per_day,
        }
    }
    /// What the paper's rules choose for it.
    pub(super) fn features(&self) -> FeatureSet {
        let thresholds = Thresholds { rate_scale: 1.0, ..Thresholds::default() };
        select(self.attributes().judge(&thresholds)).features
    }
}

/// The twelve, in the order of Table 3. Journals and logs are rings; mail, records and blocks of
/// data bases are records; documents, print jobs and projects are files.
pub(super) const WORKLOADS: [Workload; 12] = [
    Workload {
        name: "Postmark",
        printed: printed([0.99, 98.29, 37.61, 26.0, 43.87, 18.45]),
        components: &[records(0.0, 8, 4, 350), records(0.9, 40, 40, 630), ring(8, 16, 2, 20)],
    },
    Workload {
        name: "IOzone",
        printed: printed([0.98, 49.45, 1.21, 197.0, 28.08, 14.08]),
        components: &[
            ring(16, 256, 50, 450),
            records(0.0, 192, 15, 400),
            files(1024, 128, 25, 100),
            records(0.0, 8, 1, 50),
        ],
    },
    Workload {
        name: "FIU-1",
        printed: printed([0.78, 75.0, 157.35, 9.0, 139.4, 6.6]),
        components: &[records(1.0, 8, 40, 640), ring(8, 8, 2, 260), files(64, 16, 20, 100)],
    },
    Workload {
        name: "FIU-2",
        printed: printed([0.87, 82.0, 32.89, 8.0, 114.72, 1.02]),
        components: &[records(0.9, 8, 60, 800), ring(8, 8, 2, 200)],
    },
    Workload {
        name: "FIU-3",
        printed: printed([0.97, 57.0, 182.04, 8.0, 185.09, 2.0]),
        components: &[records(1.0, 8, 40, 510), ring(8, 8, 2, 490)],
    },
    Workload {
        name: "MSR-hm0",
        printed: printed([0.92, 66.0, 4.48, 15.0, 58.51, 9.24]),
        components: &[records(0.9, 8, 45, 550), files(96, 24, 35, 350), ring(8, 16, 2, 100)],
    },
    Workload {
        name: "MSR-hm1",
        printed: printed([0.95, 58.0, 157.37, 31.0, 1.57, 6.98]),
        components: &[records(1.0, 24, 30, 470), files(256, 40, 20, 330), ring(8, 32, 2, 200)],
    },
    Workload {
        name: "MSR-mds0",
        printed: printed([0.98, 69.0, 32.47, 19.0, 21.04, 23.38]),
        components: &[records(0.9, 16, 40, 600), files(96, 24, 30, 300), ring(8, 16, 2, 100)],
    },
    Workload {
        name: "MSR-prn0",
        printed: printed([0.98, 61.0, 4.72, 25.0, 131.33, 17.72]),
        components: &[records(0.9, 16, 30, 480), files(192, 32, 50, 400), ring(8, 16, 3, 120)],
    },
    Workload {
        name: "MSR-proj0",
        printed: printed([1.0, 27.0, 6.27, 29.0, 412.19, 28.95]),
        components: &[records(0.8, 16, 20, 150), files(512, 32, 50, 550), ring(16, 32, 10, 300)],
    },
    Workload {
        name: "UMASS-1",
        printed: printed([0.21, 64.0, 1242.93, 8.0, 575.94, 122.05]),
        components: &[records(1.0, 8, 50, 580), ring(8, 8, 3, 420)],
    },
    Workload {
        name: "UMASS-2",
        printed: printed([0.02, 76.0, 1.13, 5.0, 76.6, 90.25]),
        components: &[records(0.9, 8, 70, 730), ring(8, 8, 5, 270)],
    },
];

/// From which value of the printed autocorrelation on writes come in bursts.
const BURSTY_FROM: f64 = 0.5;

/// Where a component lies, and how far it is.
struct Placed {
    component: Component,
    extents: Vec<u64>,
    /// Draws records or files.
    zipf: Option<Zipf>,
    /// Writes of its kind that a run or a file has left, and where the next one begins.
    left: u32,
    next: u64,
    /// Where a ring goes on.
    head: u64,
}

impl Component {
    fn is_ring(&self) -> bool {
        matches!(self.kind, Kind::Ring { .. })
    }
}

impl Placed {
    fn new(component: Component, extents: Vec<u64>) -> Self {
        let mut placed = Placed { component, extents, zipf: None, left: 0, next: 0, head: 0 };
        if let Kind::Records { exponent } | Kind::Files { exponent, .. } = component.kind {
            placed.zipf = (exponent > 0.0).then(|| Zipf::new(placed.units(), exponent));
        }
        placed
    }
    fn sectors(&self) -> u64 {
        self.extents.len() as u64 * EXTENT_SECTORS
    }
    fn units(&self) -> u64 {
        let unit = match self.component.kind {
            Kind::Files { sectors, .. } => sectors,
            _ => u64::from(self.component.write_sectors),
        };
        (self.sectors() / unit).max(1)
    }
    /// Begins a run, a record or a file.
    fn begin(&mut self, rng: &mut Rng) {
        let write = u64::from(self.component.write_sectors);
        let units = self.units();
        let drawn = |rng: &mut Rng, zipf: &Option<Zipf>| match zipf {
            // A stride near the golden section lays hot units far from each other.
            Some(zipf) => zipf.sample(rng) * 0x9e37_79b1 % units,
            None => rng.below(units),
        };
        match self.component.kind {
            Kind::Ring { run } => (self.left, self.next) = (run, self.head),
            Kind::Records { .. } => (self.left, self.next) = (1, drawn(rng, &self.zipf) * write),
            Kind::Files { sectors, .. } => {
                self.left = sectors.div_ceil(write) as u32;
                self.next = drawn(rng, &self.zipf) * sectors;
            }
        }
    }
    /// The next write: its first sector in the volume, and its length. Cut at the extent's end.
    fn advance(&mut self) -> (u64, u32) {
        let at = self.next % self.sectors();
        let within = at % EXTENT_SECTORS;
        let extent = self.extents[(at / EXTENT_SECTORS) as usize];
        // Rings lie in one piece and are cut at their end alone.
        let room =
            if self.component.is_ring() { self.sectors() - at } else { EXTENT_SECTORS - within };
        let sectors = u64::from(self.component.write_sectors).min(room);
        self.left -= 1;
        self.next = at + sectors;
        if let Kind::Ring { .. } = self.component.kind {
            self.head = self.next;
        }
        (extent * EXTENT_SECTORS + within, sectors as u32)
    }
}

impl Workload {
    /// Writes of `pages` pages in all, within a volume of `volume_pages`.
    ///
    /// # Panics
    /// The volume has no extent for each component.
    pub(super) fn writes(&self, volume_pages: u32, pages: u64, seed: u64) -> Vec<Write> {
        let mut rng = Rng::new(seed);
        let mut placed = self.place(volume_pages, &mut rng);
        let mut clock = Clock::new(&self.printed, &mut rng);
        let (mut writes, mut written, mut current) = (Vec::new(), 0, 0);
        while written < pages {
            if placed[current].left == 0 {
                current = self.choose(&placed, &mut rng);
                placed[current].begin(&mut rng);
            }
            let (first, sectors) = placed[current].advance();
            written += u64::from(sectors / PAGE_SECTORS);
            writes.push(Write { at: clock.next(&mut rng), first: Sector(first), sectors });
        }
        writes
    }
    /// Rings lie in one piece, from the middle of the volume on, as journals do; extents of the
    /// others are drawn without repetition, so that they lie among each other.
    fn place(&self, volume_pages: u32, rng: &mut Rng) -> Vec<Placed> {
        let count = u64::from(volume_pages) * u64::from(PAGE_SECTORS) / EXTENT_SECTORS;
        let share = |one: &Component| (count * u64::from(one.space_percent) / 100).max(1);
        let in_rings = |one: &Component| if one.is_ring() { share(one) } else { 0 };
        let rings: u64 = self.components.iter().map(in_rings).sum();
        let mut ring_next = (count - rings) / 2;
        let mut free: Vec<u64> = (0..ring_next).chain(ring_next + rings..count).collect();
        for place in (1..free.len()).rev() {
            free.swap(place, rng.below(place as u64 + 1) as usize);
        }
        let place = |component: &Component| {
            let share = share(component);
            if component.is_ring() {
                ring_next += share;
                return Placed::new(*component, (ring_next - share..ring_next).collect());
            }
            let mut extents = free.split_off(free.len() - share as usize);
            // Within a component addresses ascend with places, as those of a file system's do.
            extents.sort_unstable();
            Placed::new(*component, extents)
        };
        self.components.iter().map(place).collect()
    }
    /// A component by its share of writes; those that write in runs are chosen as much less often.
    fn choose(&self, placed: &[Placed], rng: &mut Rng) -> usize {
        let run = |one: &Placed| match one.component.kind {
            Kind::Ring { run } => u64::from(run),
            Kind::Records { .. } => 1,
            Kind::Files { sectors, .. } => sectors.div_ceil(one.component.write_sectors.into()),
        };
        let weight = |one: &Placed| u64::from(one.component.writes_permille) * 1000 / run(one);
        let mut drawn = rng.below(placed.iter().map(weight).sum());
        for (place, one) in placed.iter().enumerate() {
            match drawn.checked_sub(weight(one)) {
                Some(rest) => drawn = rest,
                None => return place,
            }
        }
        placed.len() - 1
    }
}

/// When writes come: in bursts and pauses, or evenly, at the printed rate on average.
struct Clock {
    now: f64,
    rate: f64,
    /// The end of the burst or pause; none where there are none.
    until: Option<f64>,
    is_burst: bool,
}

impl Clock {
    /// A burst has nineteen times the rate of a pause; on average it is the printed one.
    const BURST: f64 = 1.9;
    const PAUSE: f64 = 0.1;

    fn new(printed: &Printed, rng: &mut Rng) -> Self {
        let until = (printed.autocorrelation >= BURSTY_FROM).then(|| length(rng));
        Clock { now: 0.0, rate: printed.rate, until, is_burst: true }
    }
    fn next(&mut self, rng: &mut Rng) -> Nanos {
        if let Some(until) = self.until
            && self.now >= until
        {
            self.is_burst = !self.is_burst;
            self.until = Some(self.now + length(rng));
        }
        let factor = match self.until {
            None => 1.0,
            Some(_) if self.is_burst => Self::BURST,
            Some(_) => Self::PAUSE,
        };
        self.now += -(1.0 - rng.unit()).ln() / (self.rate * factor);
        Nanos((self.now * 1e9) as u64)
    }
}

fn length(rng: &mut Rng) -> f64 {
    let (least, most) = BURST_SECONDS;
    (least + rng.below(most - least)) as f64
}
