//! The end of a device: when it fails, what it gives up before, and what it never does.

use super::super::{
    BlockNumber, Capacity, Configuration, Endurance, Failure, Flash, Geometry, Leveling,
    LogicalPage, Preconditioning, Stream,
};
use super::properties::for_each_seed;
use layby_types::Rng;
use std::vec::Vec;

/// 90 logical blocks of 100, and 7 more to work in.
fn hundred() -> Configuration {
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 32,
        logical_pages: 90 * 32,
        blocks: 107,
        reserve_blocks: 7,
    };
    Configuration::plain(geometry)
}

/// Goal: a fixed device fails with its last spare block. Method: ten blocks fail, one by one.
#[test]
fn fixed_capacity_ends_with_the_spare_blocks() {
    let mut flash = Flash::new(&hundred()).expect("a device");
    let plan = Preconditioning::whole(&flash);
    flash.precondition(&plan, &mut Rng::new(1)).expect("room");
    for block in 0..10 {
        assert_eq!(flash.failure(), None, "after {block} bad blocks");
        flash.fail_block(BlockNumber(block * 9)).expect("room");
        flash.check().expect("invariants");
    }
    assert_eq!(flash.failure(), Some(Failure::WornOut));
    assert_eq!(flash.write(LogicalPage(0), Stream(0)), Err(Failure::WornOut));
    assert_eq!(flash.mapped_pages(), flash.logical_pages(), "all stays readable");
}

/// Goal: what nobody wrote is given up at the right moment, and nothing else is. Method: a third
/// of the pages is the host's; ten blocks fail.
#[test]
fn unwritten_pages_are_released_once() {
    let configuration = Configuration { capacity: Capacity::ReleaseOnce, ..hundred() };
    let mut flash = Flash::new(&configuration).expect("a device");
    let plan = Preconditioning::whole(&flash);
    flash.precondition(&plan, &mut Rng::new(1)).expect("room");
    flash.write_run(LogicalPage(500), 960, Stream(0)).expect("room");
    for block in 0..10 {
        assert_eq!(flash.mapped_pages(), flash.logical_pages(), "after {block} bad blocks");
        flash.fail_block(BlockNumber(block * 9)).expect("room");
    }
    assert_eq!((flash.failure(), flash.mapped_pages()), (None, 960));
    assert!((500..1460).all(|page| flash.holds(LogicalPage(page))));
    flash.check().expect("invariants");
}

/// Goal: a shrinking device keeps its over-provisioning and says when it cannot. Method: blocks
/// fail until what the host wrote no longer fits.
#[test]
fn capacity_shrinks_with_bad_blocks() {
    let capacity = Capacity::Shrinking { pages_min: 0 };
    let mut flash = Flash::new(&Configuration { capacity, ..hundred() }).expect("a device");
    let plan = Preconditioning::whole(&flash);
    flash.precondition(&plan, &mut Rng::new(1)).expect("room");
    flash.write_run(LogicalPage(0), 960, Stream(0)).expect("room");
    let mut failed = 0;
    while flash.failure().is_none() {
        assert!(flash.mapped_pages() <= flash.exported_pages());
        assert!((0..960).all(|page| flash.holds(LogicalPage(page))));
        flash.fail_block(BlockNumber(failed)).expect("room");
        failed += 1;
    }
    assert_eq!((failed, flash.failure()), (61, Some(Failure::TooSmall)), "30 blocks hold 960");
}

/// Goal: blocks that may be erased so often are, and then no more; no page is lost on the way.
/// Method: random devices live to their end under every leveler.
#[test]
fn devices_wear_out_without_losing_pages() {
    for_each_seed(40, |seed| {
        let mut rng = Rng::new(seed);
        let drawn = super::properties::drawn(&mut rng);
        let endurance = Endurance { erases: 20, spread_percent: [0, 30][rng.below(2) as usize] };
        let capacities =
            [Capacity::Fixed, Capacity::ReleaseOnce, Capacity::Shrinking { pages_min: 9 }];
        let configuration = Configuration {
            endurance: Some(endurance),
            bad_blocks: rng.below(4) as u32,
            capacity: capacities[rng.below(3) as usize],
            trim: super::super::TrimRule::default(),
            ..drawn
        };
        let mut flash = Flash::new(&configuration).expect("a device");
        let pages = configuration.geometry.logical_pages;
        flash.set_owning(false);
        flash.write_run(LogicalPage(0), pages, Stream(0)).expect("room");
        flash.set_owning(true);
        let mut written = std::vec![false; pages as usize];
        let mut step = 0;
        loop {
            let page = rng.below((pages / 2).into()) as u32;
            let stream = Stream(rng.below(configuration.streams.into()) as u16);
            if flash.write(LogicalPage(page), stream).is_err() {
                break;
            }
            written[page as usize] = true;
            step += 1;
            assert!(step < 10_000_000, "it ends");
            if step % 997 == 0 {
                flash.check().expect("invariants");
            }
        }
        flash.check().expect("invariants");
        let owned: Vec<u32> = (0..pages).filter(|page| written[*page as usize]).collect();
        assert!(owned.iter().all(|page| flash.holds(LogicalPage(*page))), "{configuration:?}");
        assert!(flash.bad_blocks() > configuration.bad_blocks, "{configuration:?}");
        assert!(flash.erases_sorted().last().is_none_or(|&most| most < 26));
    });
}

/// Goal: with even wear, a capacity that varies gains nothing. Method: DAGC to the end, both ways.
#[test]
fn even_wear_leaves_nothing_to_gain() {
    let lifetime = |capacity| {
        let endurance = Some(Endurance { erases: 60, spread_percent: 0 });
        let leveling = Leveling::DagcRandom;
        let configuration = Configuration { endurance, capacity, leveling, ..hundred() };
        let mut flash = Flash::new(&configuration).expect("a device");
        let pages = u64::from(flash.logical_pages());
        flash.precondition(&Preconditioning::whole(&flash), &mut Rng::new(1)).expect("room");
        let mut rng = Rng::new(2);
        let before = flash.statistics();
        while flash.write(LogicalPage(rng.below(pages) as u32), Stream(0)).is_ok() {}
        flash.statistics().since(&before).host_pages as f64
    };
    let gain = lifetime(Capacity::ReleaseOnce) / lifetime(Capacity::Fixed);
    assert!((1.0..1.05).contains(&gain), "{gain}");
}
