//! Beside theory: uniform random writes have a write amplification that can be written down.
//!
//! How: `a / (a + W(-a e^-a))` for LRU cleaning (Desnoyers 2012), with `a` the blocks in use over
//! the logical ones; greedy cleaning by figures of the same source. Free blocks that cleaning
//! works in are left out of `a`. Small blocks and devices keep a run at seconds.

use super::super::{
    Cleaning, Configuration, Flash, Geometry, LogicalPage, Preconditioning, Stream,
};
use layby_types::Rng;

const FREE_BLOCKS_MIN: u32 = 2;
const BLOCKS_USED: u32 = 3000;
const SPARE_FACTORS: [f64; 3] = [0.07, 0.15, 0.28];

/// The steady write amplification of uniform random pages with `spare_factor`.
fn measured(cleaning: Cleaning, spare_factor: f64, pages_per_block: u32, passes: u32) -> f64 {
    let (blocks, reserve_blocks) = (BLOCKS_USED + FREE_BLOCKS_MIN, FREE_BLOCKS_MIN);
    let used = f64::from(BLOCKS_USED * pages_per_block);
    let logical_pages = (used * (1.0 - spare_factor)) as u32;
    let geometry =
        Geometry { page_bytes: 4096, pages_per_block, logical_pages, blocks, reserve_blocks };
    let plain = Configuration::plain(geometry);
    let configuration = Configuration { cleaning, free_blocks_min: FREE_BLOCKS_MIN, ..plain };
    let mut flash = Flash::new(&configuration).expect("a device");
    let mut rng = Rng::new(11);
    let plan = Preconditioning { random_passes: 4, ..Preconditioning::whole(&flash) };
    assert!(flash.precondition(&plan, &mut rng).expect("filled").steady);
    let before = flash.statistics();
    for _ in 0..u64::from(passes) * u64::from(logical_pages) {
        let page = LogicalPage(rng.below(logical_pages.into()) as u32);
        flash.write(page, Stream(0)).expect("room");
    }
    flash.check().expect("invariants");
    flash.statistics().since(&before).write_amplification()
}

/// Goal: LRU cleaning amplifies as theory says. Method: three spare factors, within 1 %.
#[test]
fn lru_cleaning_follows_the_closed_form() {
    for (spare_factor, expected) in SPARE_FACTORS.into_iter().zip([7.32, 3.52, 1.99]) {
        let found = measured(Cleaning::Lru, spare_factor, 32, 3);
        assert!((found / expected - 1.0).abs() < 0.01, "{spare_factor}: {found} for {expected}");
    }
}

/// Goal: greedy cleaning amplifies as theory says. Method: three spare factors, within 2 %.
#[test]
fn greedy_cleaning_follows_the_closed_form() {
    for (spare_factor, expected) in SPARE_FACTORS.into_iter().zip([6.95, 3.44, 1.97]) {
        let found = measured(Cleaning::Greedy, spare_factor, 128, 2);
        assert!((found / expected - 1.0).abs() < 0.02, "{spare_factor}: {found} for {expected}");
    }
}
