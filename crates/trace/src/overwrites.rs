//! Writes to a part of a device, again and again: hot and cold, in runs, one after another or not.
//!
//! How: each run follows the one before with the given chance; else it begins at a page that is
//! drawn from the hot part, which comes first, or from the rest. Runs are of the mean length, the
//! fraction by chance, and go on at the first page when they reach the last.
//! Invariant: every run lies whole within the footprint; the same seed gives the same runs.
//! Cost: two draws per run, no allocation. Not for: reads, times, or skew within the hot part.
//! Source: stand-ins for traces of which footprint, hotness, mean size and sequentiality are
//! published (Jiao et al., HotStorage 2022, Table 3).

use layby_types::Rng;

/// What the writes are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverwritesSpec {
    /// Pages that are written at all.
    pub footprint_pages: u64,
    /// The part of drawn runs that begin in the hot part, from 0 to 1.
    pub hot_writes: f64,
    /// The part of the footprint that is hot, from 0 to 1.
    pub hot_pages: f64,
    /// Mean pages of a run, at least 1.
    pub run_pages: f64,
    /// The part of runs that begin where the one before ended, from 0 to 1.
    pub sequential: f64,
}

impl OverwritesSpec {
    /// Single pages, evenly over the footprint.
    #[must_use]
    pub fn uniform(footprint_pages: u64) -> Self {
        OverwritesSpec {
            footprint_pages,
            hot_writes: 0.5,
            hot_pages: 0.5,
            run_pages: 1.0,
            sequential: 0.0,
        }
    }
}

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// The first page.
    pub first: u64,
    /// How many, at least one.
    pub count: u64,
}

/// Draws the runs of an [`OverwritesSpec`], without end.
#[derive(Clone, Debug)]
pub struct Overwrites {
    spec: OverwritesSpec,
    hot: u64,
    next: u64,
    rng: Rng,
}

impl Overwrites {
    /// Runs of `spec`. Panics when a part is not within 0 to 1, the footprint is empty, or a run is
    /// shorter than a page.
    #[must_use]
    pub fn new(spec: OverwritesSpec, seed: u64) -> Overwrites {
        for part in [spec.hot_writes, spec.hot_pages, spec.sequential] {
            assert!((0.0..=1.0).contains(&part), "a part is from 0 to 1, not {part}");
        }
        assert!(spec.footprint_pages > 0 && spec.run_pages >= 1.0, "there is something to write");
        let hot = (spec.footprint_pages as f64 * spec.hot_pages).round() as u64;
        let hot = hot.clamp(1, spec.footprint_pages);
        Overwrites { spec, hot, next: 0, rng: Rng::new(seed) }
    }
    fn begin(&mut self) -> u64 {
        if self.spec.sequential > 0.0 && self.rng.unit() < self.spec.sequential {
            return self.next;
        }
        let cold = self.spec.footprint_pages - self.hot;
        if cold == 0 || self.rng.unit() < self.spec.hot_writes {
            self.rng.below(self.hot)
        } else {
            self.hot + self.rng.below(cold)
        }
    }
    fn length(&mut self) -> u64 {
        let (whole, fraction) = (self.spec.run_pages.floor(), self.spec.run_pages.fract());
        whole as u64 + u64::from(fraction > 0.0 && self.rng.unit() < fraction)
    }
}

impl Iterator for Overwrites {
    type Item = PageRun;

    #[inline]
    fn next(&mut self) -> Option<PageRun> {
        let first = self.begin();
        let count = self.length().min(self.spec.footprint_pages - first);
        self.next = (first + count) % self.spec.footprint_pages;
        Some(PageRun { first, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: OverwritesSpec = OverwritesSpec {
        footprint_pages: 10_000,
        hot_writes: 0.7,
        hot_pages: 0.3,
        run_pages: 4.5,
        sequential: 0.25,
    };

    /// Goal: runs are as long, as hot and as sequential as asked, and within the footprint. Method:
    /// 50,000 runs of a spec, and the same again.
    #[test]
    fn runs_are_as_asked() {
        let drawn: Vec<PageRun> = Overwrites::new(SPEC, 1).take(50_000).collect();
        assert!(drawn.iter().all(|run| run.count > 0 && run.first + run.count <= 10_000));
        let pages: u64 = drawn.iter().map(|run| run.count).sum();
        assert!((pages as f64 / 50_000.0 - 4.5).abs() < 0.02, "{pages}");
        let follows = drawn.windows(2).filter(|two| {
            let end = two[0].first + two[0].count;
            two[1].first == end % 10_000
        });
        let follows = follows.count() as f64 / 50_000.0;
        assert!((follows - 0.25).abs() < 0.01, "{follows}");
        let hot = drawn.iter().filter(|run| run.first < 3000).count() as f64 / 50_000.0;
        assert!((hot - 0.7).abs() < 0.02, "{hot}");
        let again: Vec<PageRun> = Overwrites::new(SPEC, 1).take(50_000).collect();
        assert_eq!(drawn, again);
    }

    /// Goal: an even load is even. Method: single pages, counted by tenths.
    #[test]
    fn uniform_is_even() {
        let mut tenths = [0; 10];
        for run in Overwrites::new(OverwritesSpec::uniform(1000), 2).take(100_000) {
            assert_eq!(run.count, 1);
            tenths[(run.first / 100) as usize] += 1;
        }
        assert!(tenths.iter().all(|&count: &i32| (count - 10_000).abs() < 400), "{tenths:?}");
    }
}
