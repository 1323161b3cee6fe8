//! Random histories on small devices: what must hold holds at every point of cleaning.

use super::super::{
    BlockNumber, CleanAhead, Cleaning, Configuration, CopyPlacement, DagcWeight, DualPoolCompare,
    Flash, Geometry, Leveling, LogicalPage, Opening, Stream, TrimOrder, TrimRule,
};
use layby_types::Rng;
use std::vec::Vec;

/// Runs `body` for seeds in a row and names the seed that failed.
pub(super) fn for_each_seed(count: u64, body: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in 0..count {
        let run = std::panic::catch_unwind(|| body(seed));
        if let Err(panic) = run {
            #[expect(clippy::print_stderr, reason = "a failing test names its replay line")]
            {
                std::eprintln!("replay with seed {seed}");
            }
            std::panic::resume_unwind(panic);
        }
    }
}

fn leveling(rng: &mut Rng) -> Leveling {
    let compare = [DualPoolCompare::Signed, DualPoolCompare::Absolute][rng.below(2) as usize];
    match rng.below(8) {
        0 => Leveling::DualPool { threshold: 1 + rng.below(5) as u32, compare },
        1 => Leveling::Progressive { threshold_percent: rng.below(30) as u8, endurance: 50 },
        2 => Leveling::DagcRandom,
        3 => Leveling::DagcScore(DagcWeight::Percent(rng.below(60) as u8)),
        4 => Leveling::DagcScore(DagcWeight::FreeShare),
        _ => Leveling::None,
    }
}

/// A small device with every choice drawn.
pub(super) fn drawn(rng: &mut Rng) -> Configuration {
    let pages_per_block = [3, 8, 63, 64, 70][rng.below(5) as usize];
    let logical_blocks = 8 + rng.below(20) as u32;
    let streams = 1 + rng.below(4) as u16;
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block,
        logical_pages: logical_blocks * pages_per_block - rng.below(3) as u32,
        blocks: logical_blocks + 6 + 2 * u32::from(streams) + rng.below(10) as u32,
        reserve_blocks: 0,
    };
    let order = [TrimOrder::InOrder, TrimOrder::AfterPages(40), TrimOrder::Ignored];
    let copies = [CopyPlacement::Shared, CopyPlacement::PerStream, CopyPlacement::Together];
    let cleaning = [Cleaning::Greedy, Cleaning::CostBenefit, Cleaning::Lru];
    let mut configuration = Configuration {
        streams,
        copies: copies[rng.below(3) as usize],
        cleaning: cleaning[rng.below(3) as usize],
        free_blocks_min: 2 + rng.below(2) as u32,
        ahead: rng.chance(1, 3).then(|| CleanAhead {
            free_blocks: rng.below(geometry.blocks.into()) as u32,
            invalid_pages_min: 1 + rng.below(pages_per_block.into()) as u32,
        }),
        trim: TrimRule {
            granularity_pages: 1 + rng.below(4) as u32,
            order: order[rng.below(3) as usize],
        },
        seed: rng.next_u64(),
        ..Configuration::plain(geometry)
    };
    if rng.chance(1, 5) {
        configuration.streams = 1;
        configuration.copies = CopyPlacement::Shared;
        configuration.opening = Opening::AtOnce;
    }
    configuration.leveling = leveling(rng);
    if configuration.leveling.needs_ranking() {
        configuration.cleaning = Cleaning::Greedy;
    }
    configuration
}

/// Goal: no history loses a page or a count. Method: random writes and trims beside a plain array,
/// everything counted anew as it goes.
#[test]
fn random_histories_keep_every_page() {
    for_each_seed(60, |seed| {
        let mut rng = Rng::new(seed);
        let configuration = drawn(&mut rng);
        let mut flash = Flash::new(&configuration).expect("a device");
        let pages = configuration.geometry.logical_pages;
        let mut written = std::vec![false; pages as usize];
        for step in 0..8000 {
            let page = rng.below(pages.into()) as u32;
            if rng.chance(1, 4000) {
                let block = BlockNumber(rng.below(configuration.geometry.blocks.into()) as u32);
                flash.fail_block(block).expect("spare");
            } else if rng.chance(1, 50) {
                let count = (rng.below(40) as u32).min(pages - page);
                flash.trim(LogicalPage(page), count);
                forget(&configuration, &mut written, page, count);
            } else {
                let stream = Stream(rng.below(configuration.streams.into()) as u16);
                flash.write(LogicalPage(page), stream).expect("room");
                written[page as usize] = true;
            }
            if step % 97 == 0 {
                flash.check().expect("invariants");
                assert_eq!(held(&flash), written, "{configuration:?}");
            }
        }
        assert!(flash.statistics().cleaning_erases > 0, "cleaning was reached");
        flash.settle_trims();
        flash.check().expect("invariants");
        assert_eq!(held(&flash), written);
    });
}

fn held(flash: &Flash) -> Vec<bool> {
    (0..flash.logical_pages()).map(|page| flash.holds(LogicalPage(page))).collect()
}

fn forget(configuration: &Configuration, written: &mut [bool], first: u32, count: u32) {
    let granule = configuration.trim.granularity_pages;
    let (begin, end) = (first.div_ceil(granule) * granule, (first + count) / granule * granule);
    if configuration.trim.order != TrimOrder::Ignored && begin < end {
        written[begin as usize..end as usize].fill(false);
    }
}

/// Goal: one seed, one history. Method: the same run twice.
#[test]
fn the_same_seed_gives_the_same_counts() {
    let run = || {
        let mut rng = Rng::new(9);
        let configuration = drawn(&mut rng);
        let mut flash = Flash::new(&configuration).expect("a device");
        for _ in 0..20_000 {
            let page = rng.below(configuration.geometry.logical_pages.into()) as u32;
            flash.write(LogicalPage(page), Stream(0)).expect("room");
        }
        (flash.statistics(), flash.erases_sorted())
    };
    assert_eq!(run(), run());
}

/// 3000 logical blocks of 16 pages: room enough for 16 streams, by the specification's rule.
fn device(streams: u16, copies: CopyPlacement, blocks: u32) -> Flash {
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 16,
        logical_pages: 3000 * 16,
        blocks,
        reserve_blocks: 0,
    };
    let plain = Configuration::plain(geometry);
    let configuration = Configuration { streams, copies, free_blocks_min: 20, ..plain };
    Flash::new(&configuration).expect("a device")
}

/// Steady write amplification where a tenth of the pages gets `hot` percent of the writes.
fn amplification(mut flash: Flash, hot: u64, stream: impl Fn(u32, &mut Rng) -> u16) -> f64 {
    let pages = u64::from(flash.logical_pages());
    let mut rng = Rng::new(4);
    let mut chance = Rng::new(5);
    for page in 0..pages as u32 {
        flash.write(LogicalPage(page), Stream(stream(page, &mut chance))).expect("room");
    }
    let mut before = flash.statistics();
    for step in 0..8 * pages {
        if step == 5 * pages {
            before = flash.statistics();
        }
        let among = if rng.chance(hot, 100) { pages / 10 } else { pages };
        let page = rng.below(among) as u32;
        let stream = Stream(stream(page, &mut chance));
        flash.write(LogicalPage(page), stream).expect("room");
    }
    flash.check().expect("invariants");
    flash.statistics().since(&before).write_amplification()
}

/// Goal: streams help exactly where they tell pages apart. Method: a skewed load with constant,
/// permuted and true streams; a uniform one with random streams. (On a skewed load random streams
/// do help here: a victim's copies come in a burst, and more open blocks keep bursts together.)
#[test]
fn streams_matter_by_what_they_separate() {
    let device = |streams| device(streams, CopyPlacement::Shared, 3500);
    let one = amplification(device(1), 90, |_, _| 0);
    assert_eq!(one, amplification(device(16), 90, |_, _| 3), "a constant stream is one stream");
    let hot = |page: u32| u16::from(page < 4800);
    let separated = amplification(device(16), 90, |page, _| hot(page));
    let relabelled = amplification(device(16), 90, |page, _| 9 - 4 * hot(page));
    assert_eq!(separated, relabelled, "numbers of streams mean nothing");
    assert!(separated < 0.75 * one, "{separated} beside {one}");
    let apart = super::properties::device(1, CopyPlacement::Together, 3500);
    let apart = amplification(apart, 90, |_, _| 0);
    assert!(apart <= one, "copies apart help a skewed load: {apart} beside {one}");
    let uniform = amplification(device(1), 0, |_, _| 0);
    let random = amplification(device(16), 0, |_, chance| chance.below(16) as u16);
    assert!(random > 0.99 * uniform, "{random} beside {uniform}");
}

/// Goal: sequential overwriting costs nothing, and room helps. Method: circular writes; uniform
/// ones at two over-provisionings.
#[test]
fn order_and_room_lower_amplification() {
    for streams in [1, 4] {
        let mut flash = device(streams, CopyPlacement::Shared, 3400);
        for _ in 0..6 {
            flash.write_run(LogicalPage(0), flash.logical_pages(), Stream(0)).expect("room");
        }
        assert_eq!(flash.statistics().write_amplification(), 1.0);
    }
    let uniform = |blocks| {
        let mut flash = device(1, CopyPlacement::Shared, blocks);
        let plan = super::super::Preconditioning::whole(&flash);
        flash.precondition(&plan, &mut Rng::new(3)).expect("filled").write_amplification
    };
    assert!(uniform(4000) < uniform(3400));
}
