//! The lower convex hull of a curve of misses.
//!
//! Between two vertices misses fall in a straight line. Invariant: sizes rise, and each edge falls
//! less steeply than the one before. Cost: linear once; a binary search per question. A hull is a
//! bound, not the truth: a cache cannot hold a size between the ends of a cliff.

use alloc::vec::Vec;

/// A corner of the hull.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vertex {
    /// Blocks of the cache.
    pub size: u64,
    /// Requests that miss.
    pub misses: f64,
}

/// See the file's header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hull {
    vertices: Vec<Vertex>,
}

impl Hull {
    pub(crate) fn over(points: impl Iterator<Item = Vertex>) -> Self {
        let mut vertices: Vec<Vertex> = Vec::new();
        for point in points {
            while let [.., before, last] = vertices[..] {
                if slope(before, last) < slope(last, point) {
                    break;
                }
                vertices.pop();
            }
            if vertices.last().is_none_or(|last| point.misses < last.misses) {
                vertices.push(point);
            }
        }
        Hull { vertices }
    }

    /// The corners, by size.
    #[must_use]
    pub fn vertices(&self) -> &[Vertex] {
        &self.vertices
    }

    /// Misses at `size`, on the straight line between two corners.
    #[must_use]
    pub fn misses(&self, size: u64) -> f64 {
        let after = self.vertices.partition_point(|vertex| vertex.size <= size);
        match (self.vertices.get(after.wrapping_sub(1)), self.vertices.get(after)) {
            (Some(left), Some(right)) => {
                left.misses + slope(*left, *right) * (size - left.size) as f64
            }
            (Some(last), None) => last.misses,
            (None, _) => 0.0,
        }
    }
}

/// Change of misses per block; negative.
fn slope(from: Vertex, to: Vertex) -> f64 {
    (to.misses - from.misses) / (to.size - from.size) as f64
}
