//! How fast the flash model counts, and how much memory it takes, for a device of 64 GB.
//!
//! How: each device is filled in order and overwritten once at random, so that cleaning is at work;
//! then one more drive write is timed. Pages programmed count, copies included: that is the
//! model's work. Run: `cargo bench -p layby-device`. A timing never fails anything.
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]
#![expect(clippy::print_stdout, reason = "a bench reports to who runs it")]

use layby_device::flash::{
    Cleaning, Configuration, Flash, Geometry, LogicalPage, Preconditioning, Stream,
};
use layby_types::Rng;
use std::time::Instant;

const CAPACITY_BYTES: u64 = 64_000_000_000;
const SPARE_FACTOR: f64 = 0.11;

/// A load: what it is called, percent of writes that go to a tenth of the pages, and streams.
const LOADS: [(&str, u64, u16); 3] =
    [("uniform", 0, 1), ("90 % to a tenth", 90, 1), ("the same, 8 streams", 90, 8)];

fn main() {
    println!("| load | cleaning | programmed/s (million) | host/s (million) | WAF | MB |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for (name, hot, streams) in LOADS {
        for cleaning in [Cleaning::Greedy, Cleaning::CostBenefit, Cleaning::Lru] {
            println!("| {name} | {cleaning:?} | {} |", measured(hot, streams, cleaning));
        }
    }
}

fn measured(hot: u64, streams: u16, cleaning: Cleaning) -> String {
    let geometry = Geometry::with_spare(CAPACITY_BYTES, SPARE_FACTOR, 7);
    let free_blocks_min = 7 + 2 * u32::from(streams);
    let plain = Configuration::plain(geometry);
    let configuration = Configuration { streams, cleaning, free_blocks_min, ..plain };
    let mut flash = Flash::new(&configuration).expect("a device");
    let mut rng = Rng::new(1);
    let passes = Preconditioning {
        random_passes: 1,
        random_passes_max: 1,
        ..{ Preconditioning::whole(&flash) }
    };
    flash.precondition(&passes, &mut rng).expect("room");
    let (before, begin) = (flash.statistics(), Instant::now());
    let pages = u64::from(flash.logical_pages());
    for _ in 0..pages {
        let is_hot = rng.chance(hot, 100);
        let page = if is_hot { rng.below(pages / 10) } else { rng.below(pages) };
        let stream = Stream(if is_hot { 0 } else { page as u16 % streams });
        flash.write(LogicalPage(page as u32), stream).expect("room");
    }
    let seconds = begin.elapsed().as_secs_f64();
    let seen = flash.statistics().since(&before);
    let million = |pages: u64| pages as f64 / seconds / 1e6;
    format!(
        "{:.1} | {:.1} | {:.2} | {:.0}",
        million(seen.programmed_pages()),
        million(seen.host_pages),
        seen.write_amplification(),
        flash.memory_bytes() as f64 / 1e6
    )
}
