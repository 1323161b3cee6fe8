//! Wear levelers beside the calibration of the specification, at a quarter of its scale.
//!
//! How: 256 logical blocks in place of 1024; results depend on ratios alone. `r/h` of 0.9/0.1 means
//! that a tenth of the pages gets nine tenths of the writes.

use super::super::{
    Configuration, DualPoolCompare, Flash, Geometry, Leveling, LogicalPage, Opening,
    Preconditioning, Statistics, Stream,
};
use layby_types::Rng;

const LOGICAL_BLOCKS: u32 = 256;
const PAGES_PER_BLOCK: u32 = 256;

struct Life {
    flash: Flash,
    rng: Rng,
    /// Percent of writes to the hot part, and pages: of the hot part and of the footprint.
    hot: (u64, u64, u64),
}

impl Life {
    /// A preconditioned device under `leveling`, with writes of r/h to `percent` of its pages.
    fn new(leveling: Leveling, (hot, part): (u64, u64), percent: u64) -> Life {
        let geometry = Geometry {
            page_bytes: 4096,
            pages_per_block: PAGES_PER_BLOCK,
            logical_pages: LOGICAL_BLOCKS * PAGES_PER_BLOCK,
            blocks: LOGICAL_BLOCKS * 10 / 9 + 7,
            reserve_blocks: 7,
        };
        let opening = Opening::AtOnce;
        let configuration = Configuration { leveling, opening, ..Configuration::plain(geometry) };
        let mut flash = Flash::new(&configuration).expect("a device");
        let mut rng = Rng::new(5);
        let plan = Preconditioning { random_passes_max: 3, ..Preconditioning::whole(&flash) };
        flash.precondition(&plan, &mut rng).expect("room");
        let pages = u64::from(flash.logical_pages()) * percent / 100;
        Life { flash, rng, hot: (hot, pages * part / 100, pages) }
    }
    /// What `drive_writes` more of them do.
    fn live(&mut self, drive_writes: u64) -> Statistics {
        let before = self.flash.statistics();
        let (hot, hot_pages, pages) = self.hot;
        for _ in 0..drive_writes * u64::from(self.flash.logical_pages()) {
            let page = if self.rng.chance(hot, 100) {
                self.rng.below(hot_pages)
            } else {
                hot_pages + self.rng.below(pages - hot_pages)
            };
            self.flash.write(LogicalPage(page as u32), Stream(0)).expect("room");
        }
        self.flash.check().expect("invariants");
        self.flash.statistics().since(&before)
    }
    /// The erases between the least and the most worn hundredth of the blocks.
    fn spread(&self) -> u32 {
        let erases = self.flash.erases_sorted();
        erases[erases.len() * 99 / 100] - erases[erases.len() / 100]
    }
}

const DUAL_POOL: Leveling = Leveling::DualPool { threshold: 5, compare: DualPoolCompare::Signed };
const PROGRESSIVE: Leveling = Leveling::Progressive { threshold_percent: 50, endurance: 500 };

/// Goal: without a leveler writes amplify as calibrated. Method: r/h of .9/.1 and .5/.5, 5 drive
/// writes: 6.09 to 6.13, and 5.12; smaller devices a little more.
#[test]
fn without_a_leveler() {
    for (skew, expected) in [((90, 10), 6.12), ((50, 50), 5.12)] {
        let mut life = Life::new(Leveling::None, skew, 100);
        life.live(3);
        let seen = life.live(5);
        let found = seen.write_amplification();
        assert!((found / expected - 1.0).abs() < 0.02, "{skew:?}: {found} for {expected}");
        assert_eq!((seen.leveling_pages, seen.leveling_erases), (0, 0));
    }
}

/// Goal: the paper's anomaly: under a skew over the whole device Dual-Pool widens the spread of
/// erases; over a small part it narrows it. Method: spreads with and without after 30 drive writes.
#[test]
fn dual_pool_widens_and_narrows() {
    let lived = |leveling, percent| {
        let mut life = Life::new(leveling, (90, 10), percent);
        let seen = life.live(30);
        (life.spread(), seen)
    };
    let ((without, _), (with, seen)) = (lived(Leveling::None, 100), lived(DUAL_POOL, 100));
    assert!(with > without, "{with} beside {without}");
    assert!(seen.write_amplification_leveling() > 0.1);
    let ((without, _), (with, _)) = (lived(Leveling::None, 5), lived(DUAL_POOL, 5));
    assert!(without > 10 * with, "{without} beside {with}");
}

/// Goal: the random form of DAGC costs what was published, and evens out. Method: 20 drive writes;
/// 7.02, or 7.22 counted twice.
#[test]
fn dagc_costs_what_was_published() {
    let mut life = Life::new(Leveling::DagcRandom, (90, 10), 100);
    let seen = life.live(20);
    let found = seen.write_amplification();
    let twice = seen.write_amplification_counted_twice();
    assert!((found / 7.02 - 1.0).abs() < 0.03, "{found} for 7.02");
    assert!((twice / 7.22 - 1.0).abs() < 0.03, "{twice} for 7.22");
    assert!(life.spread() <= 4, "{}", life.spread());
}

/// Goal: progressive levelling sleeps, then costs about five further writes each. Method: 100 drive
/// writes; none before the 75th, 11.6 of which 5.5 its own after the 90th.
#[test]
fn progressive_sleeps_and_wakes() {
    let mut life = Life::new(PROGRESSIVE, (90, 10), 100);
    assert_eq!(life.live(75).leveling_pages, 0);
    life.live(15);
    let seen = life.live(10);
    let (all, own) = (seen.write_amplification(), seen.write_amplification_leveling());
    assert!((all / 11.6 - 1.0).abs() < 0.05, "{all} for 11.6");
    assert!((own / 5.47 - 1.0).abs() < 0.08, "{own} for 5.47");
}

/// The paper's second threshold.
const DUAL_POOL_10: Leveling =
    Leveling::DualPool { threshold: 10, compare: DualPoolCompare::Signed };

/// Goal: the whole table of the specification. Method: each row for 100 drive writes, within 4 %.
#[test]
fn the_table_of_the_specification() {
    use Leveling::{DagcRandom, None};
    let rows = [
        ((90, 10), 100, [6.12, 6.85, 6.25, 6.82, 7.02]),
        ((50, 50), 100, [5.12, 5.30, f64::NAN, 5.12, 5.77]),
        ((90, 10), 5, [7.99, 9.52, f64::NAN, 11.39, 8.76]),
        ((50, 50), 5, [6.34, 7.56, f64::NAN, 7.46, 7.05]),
    ];
    let mut far = std::vec::Vec::new();
    for (skew, percent, expected) in rows {
        let levelings = [None, DUAL_POOL, DUAL_POOL_10, PROGRESSIVE, DagcRandom];
        for (leveling, expected) in levelings.into_iter().zip(expected) {
            let mut life = Life::new(leveling, skew, percent);
            let found = life.live(100).write_amplification();
            if (found / expected - 1.0).abs() > 0.04 {
                far.push((skew, percent, leveling, found, expected));
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}
