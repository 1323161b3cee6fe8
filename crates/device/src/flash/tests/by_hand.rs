//! Small devices whose every step was worked out on paper.

use super::super::{
    BlockNumber, CleanAhead, Cleaning, Configuration, CopyPlacement, Flash, Geometry, LogicalPage,
    Opening, Stream, TrimOrder, TrimRule,
};

/// Four blocks of four pages, eight logical pages.
fn tiny() -> Configuration {
    let geometry = Geometry {
        page_bytes: 4096,
        pages_per_block: 4,
        logical_pages: 8,
        blocks: 4,
        reserve_blocks: 0,
    };
    Configuration { free_blocks_min: 2, ..Configuration::plain(geometry) }
}

fn write(flash: &mut Flash, pages: &[u32], stream: impl Fn(u32) -> u16) {
    for &page in pages {
        flash.write(LogicalPage(page), Stream(stream(page))).expect("room");
        flash.check().expect("invariants");
    }
}

/// Goal: greedy cleaning by the paper's rules. Method: the specification's example, twelve writes
/// and three more.
#[test]
fn greedy_as_worked_out() {
    let configuration = Configuration { free_blocks_min: 1, opening: Opening::AtOnce, ..tiny() };
    let mut flash = Flash::new(&configuration).expect("a device");
    write(&mut flash, &[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 4, 2], |_| 0);
    let seen = flash.statistics();
    assert_eq!((seen.host_pages, seen.programmed_pages()), (12, 13));
    let blocks = |flash: &Flash| [0, 1, 2, 3].map(|block| flash.block(BlockNumber(block)));
    assert_eq!(blocks(&flash), [(1, 0), (0, 3), (0, 4), (0, 1)]);
    write(&mut flash, &[0, 1, 0], |_| 0);
    let seen = flash.statistics();
    assert_eq!((seen.host_pages, seen.programmed_pages()), (15, 18));
    assert_eq!(blocks(&flash).map(|(erases, _)| erases), [1, 0, 1, 0]);
}

/// Goal: streams keep hot from cold. Method: the specification's example, with one stream and two.
#[test]
fn streams_as_worked_out() {
    let order = [0, 4, 1, 5, 2, 6, 3, 7, 0, 1, 2, 3, 0, 1, 2, 3];
    let mut legacy = Flash::new(&tiny()).expect("a device");
    write(&mut legacy, &order, |_| 0);
    assert_eq!(legacy.statistics().cleaning_pages, 4);
    assert_eq!(legacy.statistics().write_amplification(), 1.25);
    let mut streams = Flash::new(&Configuration { streams: 2, ..tiny() }).expect("a device");
    write(&mut streams, &order, |page| u16::from(page >= 4));
    assert_eq!(streams.statistics().cleaning_pages, 0);
    assert_eq!(streams.statistics().cleaning_erases, 1);
}

/// Goal: copies go where the configuration says. Method: two streams whose blocks are cleaned with
/// valid pages, under each
/// placement; blocks are cleaned in turn, and where copies lie is read off the blocks.
#[test]
fn copies_are_placed() {
    let placements = [
        (CopyPlacement::Shared, [0, 1]),
        (CopyPlacement::PerStream, [2, 3]),
        (CopyPlacement::Together, [2, 2]),
    ];
    for (copies, slots) in placements {
        let geometry = Geometry { blocks: 10, ..tiny().geometry };
        let configuration =
            Configuration { copies, geometry, streams: 2, cleaning: Cleaning::Lru, ..tiny() };
        let mut flash = Flash::new(&configuration).expect("a device");
        write(&mut flash, &[0, 1, 2, 3, 4, 5, 6, 7], |page| u16::from(page >= 4));
        for _ in 0..8 {
            // Pages 3 and 7 are never written again, so only cleaning moves them.
            write(&mut flash, &[0, 1, 2, 0, 4, 5, 6, 4], |page| u16::from(page >= 4));
        }
        let slot = |page: usize| {
            let block = flash.medium.forward[page] >> flash.medium.shift;
            flash.medium.blocks[block as usize].slot
        };
        assert_eq!([slot(3), slot(7)], slots, "{copies:?}");
        assert!(flash.statistics().cleaning_pages >= 2, "both were copied");
    }
}

/// Goal: a trim takes effect where and when its rule says, and never on what was written since.
/// Method: one range under each rule, with a page written again in between.
#[test]
fn trims_follow_their_rule() {
    let rules = [
        (TrimRule::default(), [5, 5]),
        (TrimRule { granularity_pages: 4, ..TrimRule::default() }, [4, 4]),
        (TrimRule { order: TrimOrder::AfterPages(2), ..TrimRule::default() }, [0, 4]),
        (TrimRule { order: TrimOrder::Ignored, ..TrimRule::default() }, [0, 0]),
    ];
    for (trim, trimmed) in rules {
        let mut flash = Flash::new(&Configuration { trim, ..tiny() }).expect("a device");
        write(&mut flash, &[0, 1, 2, 3, 4, 5, 6, 7], |_| 0);
        flash.trim(LogicalPage(3), 5);
        flash.check().expect("invariants");
        assert_eq!(flash.statistics().trimmed_pages, trimmed[0], "{trim:?}");
        write(&mut flash, &[4, 0], |_| 0);
        assert_eq!(flash.statistics().trimmed_pages, trimmed[1], "{trim:?}");
        assert!(flash.holds(LogicalPage(4)), "{trim:?}: written after the trim");
        assert_eq!(flash.holds(LogicalPage(7)), trimmed[1] == 0, "{trim:?}");
    }
}

/// Goal: the check sees what it is for. Method: one thing is spoiled at a time.
#[test]
fn the_check_sees_faults() {
    let faults: [fn(&mut Flash); 6] = [
        |flash| flash.medium.forward[0] = flash.medium.forward[1],
        |flash| flash.medium.valid[0] ^= 1,
        |flash| flash.medium.blocks[1].valid += 1,
        |flash| flash.medium.blocks[1].erases += 1,
        |flash| flash.medium.mapped_pages -= 1,
        |flash| flash.medium.free.clear(),
    ];
    for (number, spoil) in faults.into_iter().enumerate() {
        let mut flash = Flash::new(&tiny()).expect("a device");
        write(&mut flash, &[0, 1, 2, 3, 4, 5, 6, 7], |_| 0);
        spoil(&mut flash);
        assert!(flash.check().is_err(), "fault {number} is not seen");
    }
}

/// Goal: cleaning ahead takes what is invalid enough though room is not short, and nothing else.
/// Method: twelve blocks; 0 to 3 lose two pages, 4 to 7 one; then a block is opened, and what is
/// copied into it depends on the threshold.
#[test]
fn cleaning_ahead_as_worked_out() {
    for (invalid_pages_min, copies, erases) in [(3, 0, 0), (2, 2, 1), (1, 5, 2)] {
        let ahead = Some(CleanAhead { free_blocks: 12, invalid_pages_min });
        let geometry = Geometry { blocks: 12, logical_pages: 16, ..tiny().geometry };
        let configuration = Configuration { geometry, ahead, ..tiny() };
        let mut flash = Flash::new(&configuration).expect("a device");
        write(&mut flash, &[0, 1, 2, 3, 4, 5, 6, 7], |_| 0);
        flash.trim(LogicalPage(0), 2);
        flash.trim(LogicalPage(4), 1);
        write(&mut flash, &[8], |_| 0);
        let seen = flash.statistics();
        assert_eq!((seen.cleaning_pages, seen.cleaning_erases), (copies, erases));
        assert!(flash.holds(LogicalPage(2)) && flash.holds(LogicalPage(7)));
    }
}
