//! Streams beside the orientation values of the specification (200,000 pages, blocks of 64).

use super::super::{Configuration, CopyPlacement, Flash, Geometry, LogicalPage, Stream};
use layby_types::Rng;

const PAGES: u32 = 200_000;
const PAGES_PER_BLOCK: u32 = 64;
/// Pages of a chunk that is written whole.
const CHUNK_PAGES: u32 = 8;
/// A prime, so that multiples of it visit every chunk.
const SCATTER: u64 = 7919;

fn device(spare_percent: u32, streams: u16, copies: CopyPlacement) -> Flash {
    let physical = u64::from(PAGES) * u64::from(100 + spare_percent);
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: PAGES_PER_BLOCK,
        logical_pages: PAGES,
        blocks: physical.div_ceil(100 * u64::from(PAGES_PER_BLOCK)) as u32,
        reserve_blocks: 0,
    };
    // Cleaning starts at three free blocks; copies apart need one more per stream.
    let free_blocks_min = 4 + if copies == CopyPlacement::Shared { 0 } else { u32::from(streams) };
    let plain = Configuration::plain(geometry);
    let configuration = Configuration { streams, copies, free_blocks_min, ..plain };
    Flash::new(&configuration).expect("a device")
}

/// Write amplification of the second half of eight times as many pages as the device has, once it
/// is full, in chunks of `chunk` pages; `draw` gives the first page and the stream.
fn amplification(mut flash: Flash, chunk: u32, draw: impl Fn(&mut Rng) -> (u32, u16)) -> f64 {
    let mut rng = Rng::new(6);
    flash.write_run(LogicalPage(0), PAGES, Stream(0)).expect("room");
    let mut half = flash.statistics();
    for step in 0..8 * PAGES / chunk {
        if step == 4 * PAGES / chunk {
            half = flash.statistics();
        }
        let (first, stream) = draw(&mut rng);
        flash.write_run(LogicalPage(first), chunk, Stream(stream)).expect("room");
    }
    flash.check().expect("invariants");
    flash.statistics().since(&half).write_amplification()
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "{found} for {expected}");
}

/// Goal: uniform pages amplify as calibrated, and random streams a little more. Method: four
/// over-provisionings, one stream and sixteen drawn at random, within 1 %.
#[test]
fn uniform_pages_in_one_stream_and_in_random_ones() {
    let rows = [(7, 7.06, 7.30), (11, 4.89, 4.98), (28, 2.41, 2.42), (50, 1.68, 1.69)];
    for (spare_percent, one, sixteen) in rows {
        for (streams, expected) in [(1, one), (16, sixteen)] {
            let flash = device(spare_percent, streams, CopyPlacement::Shared);
            let found = amplification(flash, 1, |rng| {
                (rng.below(PAGES.into()) as u32, rng.below(streams.into()) as u16)
            });
            near(found, expected);
        }
    }
}

/// Goal: telling hot from cold pays, most where copies stay with their stream. Method: scattered
/// chunks of which few get most writes; one stream, and two that know. The specification's own
/// figures for this (4.59 without streams, 0.743 of it with two) say too little of their load to be
/// asserted: chunks written whole give 4.0 and 0.68 here, single pages 5.9 and 0.80.
#[test]
fn hot_and_cold_apart_under_each_placement() {
    use CopyPlacement::{PerStream, Shared, Together};
    let chunks = u64::from(PAGES / CHUNK_PAGES);
    for (part, hot) in [(10, 90), (20, 80)] {
        let hot_chunks = chunks * part / 100;
        let run = |streams: u16, copies| {
            amplification(device(11, streams, copies), CHUNK_PAGES, |rng| {
                let is_hot = rng.chance(hot, 100);
                let (first, among) =
                    if is_hot { (0, hot_chunks) } else { (hot_chunks, chunks - hot_chunks) };
                // The hot ones lie among the cold ones when the device is filled.
                let chunk = (first + rng.below(among)) * SCATTER % chunks;
                (chunk as u32 * CHUNK_PAGES, u16::from(is_hot && streams > 1))
            })
        };
        let (one, one_apart) = (run(1, Shared), run(1, Together));
        assert!(one_apart < one, "{one_apart} beside {one}");
        let [shared, per_stream, together] =
            [Shared, PerStream, Together].map(|copies| run(2, copies) / one);
        assert!(shared < 0.85 && per_stream < 0.85 && together < 0.9, "{shared} {together}");
        assert!(shared < together && per_stream < together, "{shared} {per_stream} {together}");
    }
}
