//! Flash in time: single requests by hand, and what must hold of many.

use super::super::{
    Configuration, Flash, Geometry, LogicalPage, Preconditioning, Stream, TrimOrder, TrimRule,
};
use super::{Command, Completion, Layout, Parallelism, ParallelismError, Request};
use super::{TimedFlash, Timing};
use layby_types::{Nanos, Rng};

const WRITE: Command = Command::Write(Stream(0));
/// A page of DiskSim's timing: written, read, and carried.
const WRITTEN: u64 = 305_600;
const READ: u64 = 130_600;
const CARRIED: u64 = 105_600;

fn configuration() -> Configuration {
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 64,
        logical_pages: 64 * 64,
        blocks: 80,
        reserve_blocks: 7,
    };
    Configuration { trim: TrimRule::default(), ..Configuration::plain(geometry) }
}

/// Two channels of two planes.
fn four_planes() -> Parallelism {
    Parallelism { channels: 2, dies_per_channel: 2, queue_depth: 8, ..Parallelism::small() }
}

fn fresh(parallelism: Parallelism) -> TimedFlash {
    let flash = Flash::new(&configuration()).expect("a device");
    TimedFlash::new(flash, Timing::DISKSIM, parallelism).expect("a device in time")
}

fn ask(flash: &mut TimedFlash, arrival: u64, command: Command, first: u32, count: u32) -> u64 {
    let first = LogicalPage(first);
    let request = Request { arrival: Nanos(arrival), command, first, count };
    flash.submit(request).expect("room").end.0
}

/// Goal: an idle device takes what its data sheet says. Method: DiskSim's figures.
#[test]
fn an_idle_device_takes_the_data_sheets_time() {
    let mut flash = fresh(four_planes());
    assert_eq!(ask(&mut flash, 0, WRITE, 0, 1), WRITTEN);
    assert_eq!(ask(&mut flash, 1_000_000, Command::Read, 0, 1), 1_000_000 + READ);
    assert_eq!(ask(&mut flash, 2_000_000, Command::Read, 9, 1), 2_000_000, "nothing is there");
    assert_eq!(flash.latencies(Command::Read).count(), 2);
    assert_eq!(flash.latencies(WRITE).mean(), Nanos(WRITTEN));
}

/// Goal: channels and planes work at once, and each does one thing at a time. Method: pages in a
/// row lie on planes 0, 1 (the other channel), 2 (channel of 0), 3, 0.
#[test]
fn channels_and_planes_overlap() {
    let mut flash = fresh(four_planes());
    let ends = [0, 1, 2, 3, 4].map(|page| ask(&mut flash, 0, WRITE, page, 1));
    let second = CARRIED + WRITTEN;
    assert_eq!(ends, [WRITTEN, WRITTEN, second, second, 2 * WRITTEN]);
    let mut block = fresh(Parallelism { layout: Layout::BlockPerPlane, ..four_planes() });
    let ends = [0, 1].map(|page| ask(&mut block, 0, WRITE, page, 1));
    assert_eq!(ends, [WRITTEN, 2 * WRITTEN], "a block on one plane");
}

/// Goal: a transfer that waits for its plane leaves the channel to others. Method: a write to a
/// busy plane, then a read from an idle one on the same channel.
#[test]
fn a_busy_plane_does_not_hold_its_channel() {
    let mut flash = fresh(four_planes());
    (0..5).for_each(|page| {
        ask(&mut flash, 0, WRITE, page, 1);
    });
    let later = 10 * WRITTEN;
    let writes = [5, 6, 7, 8, 9].map(|page| ask(&mut flash, later, WRITE, page, 1));
    assert_eq!(writes[4], later + 2 * WRITTEN, "it waits for plane 1");
    // Page 2 lies on plane 2; page 6 is being written there, and the channel is free after it.
    let read = ask(&mut flash, later, Command::Read, 2, 1);
    assert_eq!(read, writes[1] + READ);
}

/// Goal: no more requests are in service than the queue holds. Method: a queue of one.
#[test]
fn the_queue_is_bounded() {
    let mut flash = fresh(Parallelism { queue_depth: 1, ..four_planes() });
    let ends = [0, 1, 2].map(|page| ask(&mut flash, 0, WRITE, page, 1));
    assert_eq!(ends, [WRITTEN, 2 * WRITTEN, 3 * WRITTEN]);
}

/// Goal: trims that stand alone stall the device, others do not. Method: a write, a trim, a write.
#[test]
fn trims_stall_where_they_stand_alone() {
    let timing = Timing { trim_page: Nanos(200_000), ..Timing::DISKSIM };
    let ends = |trim_alone| {
        let flash = Flash::new(&configuration()).expect("a device");
        let parallelism = Parallelism { trim_alone, ..four_planes() };
        let mut flash = TimedFlash::new(flash, timing, parallelism).expect("in time");
        [(WRITE, 0), (Command::Trim, 8), (WRITE, 1)]
            .map(|(command, first)| ask(&mut flash, 0, command, first, 1))
    };
    assert_eq!(ends(false), [WRITTEN, 200_000, WRITTEN]);
    let trimmed = WRITTEN + 200_000;
    assert_eq!(ends(true), [WRITTEN, trimmed, trimmed + WRITTEN]);
}

/// Goal: time changes no count, cleaning costs time, and nothing happens at once that cannot.
/// Method: one random history, counted, and timed under both layouts with and without copy-back.
#[test]
fn time_leaves_the_counts_alone() {
    let pages = u64::from(configuration().geometry.logical_pages);
    let conditioned = || {
        let mut flash = Flash::new(&configuration()).expect("a device");
        let plan = Preconditioning::whole(&flash);
        flash.precondition(&plan, &mut Rng::new(1)).expect("room");
        flash
    };
    let mut counted = conditioned();
    let mut rng = Rng::new(2);
    (0..4 * pages).for_each(|_| {
        counted.write(LogicalPage(rng.below(pages) as u32), Stream(0)).expect("room");
    });
    for (layout, copy_back) in
        [(Layout::Superblock, false), (Layout::Superblock, true), (Layout::BlockPerPlane, true)]
    {
        let parallelism = Parallelism { layout, copy_back, ..four_planes() };
        let mut timed =
            TimedFlash::new(conditioned(), Timing::DISKSIM, parallelism).expect("in time");
        let mut rng = Rng::new(2);
        let mut arrival = 0;
        for _ in 0..4 * pages {
            let first = LogicalPage(rng.below(pages) as u32);
            let request = Request { arrival: Nanos(arrival), command: WRITE, first, count: 1 };
            let Completion { start, end } = timed.submit(request).expect("room");
            assert!(start.0 >= arrival && end.0 >= start.0 + WRITTEN);
            arrival = start.0;
        }
        let horizon = timed.end_last().0;
        assert!(timed.planes_busy().0 <= horizon * 4, "four planes");
        let latencies = timed.latencies(WRITE);
        assert!(latencies.max().0 > 10 * WRITTEN, "cleaning is felt");
        assert_eq!(timed.flash().statistics(), counted.statistics());
        timed.into_flash().check().expect("invariants");
    }
}

/// Goal: values out of bounds are refused. Method: one each.
#[test]
fn bounds_are_kept() {
    let refused = |parallelism| {
        let flash = Flash::new(&configuration()).expect("a device");
        TimedFlash::new(flash, Timing::FEMU, parallelism).err()
    };
    let units = Parallelism { channels: 0, ..four_planes() };
    assert_eq!(refused(units), Some(ParallelismError::Units));
    let queue = Parallelism { queue_depth: 0, ..four_planes() };
    assert_eq!(refused(queue), Some(ParallelismError::QueueDepth));
    assert_eq!(refused(four_planes()), None);
}

/// Goal: a trim acts when it has been served, and not on what was written meanwhile; the lag is the
/// time of the commands and pages before it. Method: two trims of two pages in a queue, at 1 ms a
/// command and 1 ms a page, and a write of a page of the second one before its turn.
#[test]
fn trims_act_when_served() {
    let rule = TrimRule { order: TrimOrder::Served, ..TrimRule::default() };
    let flash = Flash::new(&Configuration { trim: rule, ..configuration() }).expect("a device");
    let timing = Timing { trim: Nanos(1_000_000), trim_page: Nanos(1_000_000), ..Timing::FEMU };
    let mut flash = TimedFlash::new(flash, timing, four_planes()).expect("in time");
    ask(&mut flash, 0, WRITE, 0, 4);
    assert_eq!(ask(&mut flash, 1_000_000, Command::Trim, 0, 2), 4_000_000);
    assert_eq!(ask(&mut flash, 1_000_000, Command::Trim, 2, 2), 7_000_000);
    let trimmed = |flash: &TimedFlash| flash.flash().statistics().trimmed_pages;
    ask(&mut flash, 3_999_999, WRITE, 3, 1);
    assert_eq!(trimmed(&flash), 0, "the first one is not served yet");
    ask(&mut flash, 4_000_000, WRITE, 8, 1);
    assert_eq!(trimmed(&flash), 2, "the first one is, the second one waits");
    ask(&mut flash, 7_000_000, WRITE, 9, 1);
    assert_eq!(trimmed(&flash), 3, "what was written meanwhile is kept");
    assert!(flash.flash().holds(LogicalPage(3)) && !flash.flash().holds(LogicalPage(2)));
    flash.into_flash().check().expect("invariants");
}
