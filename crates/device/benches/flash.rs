//! How fast the flash model counts, and how much memory it takes, for a device of 64 GB.
//!
//! How: each device is filled in order and overwritten once at random, so that cleaning is at work;
//! then one more drive write is timed. Pages programmed count, copies included: that is the
//! model's work. In time, requests count, on eight channels of eight dies behind a queue of 64.
//! Time is the processor's, as the kernel accounts it, so that a busy machine does not count.
//! Run: `cargo bench -p layby-device`. A timing never fails anything.
#![expect(clippy::print_stdout, reason = "a bench reports to who runs it")]

use layby_device::flash::timed::{Command, Parallelism, Request, TimedFlash, Timing};
use layby_device::flash::{
    Cleaning, Configuration, Flash, Geometry, LogicalPage, Preconditioning, Stream,
};
use layby_types::{Nanos, Rng};
use std::time::Duration;

const CAPACITY_BYTES: u64 = 64_000_000_000;
const SPARE_FACTOR: f64 = 0.11;
/// Blocks of 256 pages in a superblock of a timed run: 64 pages on each of 64 planes.
const BLOCKS_JOINED: u32 = 16;
/// Requests of a timed run.
const REQUESTS: u64 = 4_000_000;

/// A load: what it is called, percent of writes that go to a tenth of the pages, and streams.
const LOADS: [(&str, u64, u16); 3] =
    [("uniform", 0, 1), ("90 % to a tenth", 90, 1), ("the same, 8 streams", 90, 8)];

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let accounted = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos = accounted.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.expect("the kernel accounts time"))
}

fn main() {
    // `cargo test --all-targets` starts benches, too, and wants no figures.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| load | cleaning | programmed/s (million) | host/s (million) | WAF | MB |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for (name, hot, streams) in LOADS {
        for cleaning in [Cleaning::Greedy, Cleaning::CostBenefit, Cleaning::Lru] {
            println!("| {name} | {cleaning:?} | {} |", counted(hot, streams, cleaning));
        }
    }
    println!("\n| reads | timing | requests/s (thousand) | WAF | in its own time | MB |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    for reads in [0, 50, 100] {
        for (name, timing) in [("DiskSim", Timing::DISKSIM), ("FEMU", Timing::FEMU)] {
            println!("| {reads} % | {name} | {} |", timed(reads, timing));
        }
    }
}

/// A device that is full and cleans, with superblocks of so many blocks.
fn conditioned(streams: u16, cleaning: Cleaning, blocks_joined: u32, rng: &mut Rng) -> Flash {
    let geometry = Geometry::with_spare(CAPACITY_BYTES, SPARE_FACTOR, 7);
    let geometry = Geometry {
        pages_per_block: geometry.pages_per_block * blocks_joined,
        blocks: geometry.blocks / blocks_joined,
        ..geometry
    };
    let free_blocks_min = 7 + 2 * u32::from(streams);
    let plain = Configuration::plain(geometry);
    let configuration = Configuration { streams, cleaning, free_blocks_min, ..plain };
    let mut flash = Flash::new(&configuration).expect("a device");
    let whole = Preconditioning::whole(&flash);
    let once = Preconditioning { random_passes: 1, random_passes_max: 1, ..whole };
    flash.precondition(&once, rng).expect("room");
    flash
}

fn counted(hot: u64, streams: u16, cleaning: Cleaning) -> String {
    let mut rng = Rng::new(1);
    let mut flash = conditioned(streams, cleaning, 1, &mut rng);
    let (before, begin) = (flash.statistics(), processor_time());
    let pages = u64::from(flash.logical_pages());
    for _ in 0..pages {
        let is_hot = rng.chance(hot, 100);
        let page = if is_hot { rng.below(pages / 10) } else { rng.below(pages) };
        let stream = Stream(if is_hot { 0 } else { page as u16 % streams });
        flash.write(LogicalPage(page as u32), stream).expect("room");
    }
    let seconds = (processor_time() - begin).as_secs_f64();
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

/// Requests of one page, as fast as the queue takes them, so many percent of them reads.
fn timed(reads: u64, timing: Timing) -> String {
    let mut rng = Rng::new(1);
    let flash = conditioned(1, Cleaning::Greedy, BLOCKS_JOINED, &mut rng);
    let mut flash = TimedFlash::new(flash, timing, Parallelism::small()).expect("in time");
    let (before, begin) = (flash.flash().statistics(), processor_time());
    let pages = u64::from(flash.flash().logical_pages());
    let mut arrival = Nanos::ZERO;
    for _ in 0..REQUESTS {
        let is_read = rng.chance(reads, 100);
        let command = if is_read { Command::Read } else { Command::Write(Stream(0)) };
        let first = LogicalPage(rng.below(pages) as u32);
        let request = Request { arrival, command, first, count: 1 };
        arrival = flash.submit(request).expect("room").start;
    }
    let seconds = (processor_time() - begin).as_secs_f64();
    let seen = flash.flash().statistics().since(&before);
    format!(
        "{:.0} | {:.2} | {:.0} | {:.0}",
        REQUESTS as f64 / seconds / 1e3,
        seen.write_amplification(),
        REQUESTS as f64 / flash.end_last().as_secs_f64() / 1e3,
        flash.memory_bytes() as f64 / 1e6
    )
}
