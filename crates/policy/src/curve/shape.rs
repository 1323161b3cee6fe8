//! The curve itself: hits by cache size.
//!
//! How: points where the hits grow, by size; between two points the lower one holds, which is the
//! truth for exact curves and a bound for coarse ones. Cost: a binary search per question.

use super::Counted;
use super::hull::{Hull, Vertex};
use alloc::vec::Vec;

/// Hits of a cache of `size` blocks and more, up to the next point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Blocks of the cache.
    pub size: u64,
    /// Reads and writes that hit.
    pub hits: [f64; 2],
}

/// See the file's header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    points: Vec<Point>,
    requests: [f64; 2],
}

/// How far two curves lie apart, in miss ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The mean over the sizes compared.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
    /// The size at which it was found, in blocks.
    pub worst_size: u64,
}

impl Curve {
    /// A curve through `points`, for `requests` reads and writes. Panics unless sizes rise, hits
    /// never fall and never exceed the requests.
    #[must_use]
    pub fn new(mut points: Vec<Point>, requests: [f64; 2]) -> Self {
        // Rounding may give two points one size; the later holds.
        let mut kept = 0;
        for index in 0..points.len() {
            if kept > 0 && points[kept - 1].size == points[index].size {
                kept -= 1;
            }
            points[kept] = points[index];
            kept += 1;
        }
        points.truncate(kept);
        for pair in points.windows(2) {
            assert!(pair[0].size < pair[1].size, "sizes rise");
            assert!((0..2).all(|side| pair[0].hits[side] <= pair[1].hits[side]), "hits never fall");
        }
        if let Some(last) = points.last() {
            assert!((0..2).all(|side| last.hits[side] <= requests[side] * (1.0 + 1e-9) + 1e-9));
        }
        Curve { points, requests }
    }

    /// The points, by size.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Requests that the curve is about.
    #[must_use]
    pub fn requests(&self, counted: Counted) -> f64 {
        counted.of(self.requests)
    }

    /// Requests that a cache of `size` blocks hits.
    #[must_use]
    pub fn hits(&self, counted: Counted, size: u64) -> f64 {
        let after = self.points.partition_point(|point| point.size <= size);
        if after == 0 { 0.0 } else { counted.of(self.points[after - 1].hits) }
    }

    /// The part of the requests that a cache of `size` blocks misses; one where there were none.
    #[must_use]
    pub fn miss_ratio(&self, counted: Counted, size: u64) -> f64 {
        let requests = self.requests(counted);
        if requests > 0.0 { 1.0 - self.hits(counted, size) / requests } else { 1.0 }
    }

    /// The size beyond which no more is hit.
    #[must_use]
    pub fn size_max(&self) -> u64 {
        self.points.last().map_or(0, |point| point.size)
    }

    /// The lower convex hull of the misses: what shares between sizes could reach at best.
    #[must_use]
    pub fn hull(&self, counted: Counted) -> Hull {
        let all = self.requests(counted);
        let start = Vertex { size: 0, misses: all };
        let vertex = |p: &Point| Vertex { size: p.size, misses: all - counted.of(p.hits) };
        Hull::over(core::iter::once(start).chain(self.points.iter().map(vertex)))
    }

    /// How far `other` lies from this curve at `sizes`.
    #[must_use]
    pub fn difference(
        &self,
        other: &Curve,
        counted: Counted,
        sizes: impl IntoIterator<Item = u64>,
    ) -> Difference {
        let (mut sum, mut count, mut out) = (0.0, 0u32, Difference::default());
        for size in sizes {
            let apart = self.miss_ratio(counted, size) - other.miss_ratio(counted, size);
            let apart = apart.abs();
            sum += apart;
            count += 1;
            if apart > out.worst {
                out = Difference { worst: apart, worst_size: size, ..out };
            }
        }
        out.mean = sum / f64::from(count.max(1));
        out
    }
}
