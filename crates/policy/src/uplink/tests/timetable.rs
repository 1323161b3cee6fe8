//! Windows of the day.

use super::*;

fn time(hour: u32, minute: u32) -> TimeOfDay {
    TimeOfDay::new(hour, minute).expect("the clock shows it")
}

fn window(from: (u32, u32), until: (u32, u32), cap: u64) -> CapWindow {
    let cap = Cap::BytesPerSecond(cap);
    CapWindow { from: time(from.0, from.1), until: time(until.0, until.1), cap }
}

/// Goal: each time has its cap, also beyond midnight, and it is known how long it holds. Method: a
/// working day and a night.
#[test]
fn windows_hold_in_their_time() {
    let windows = [window((8, 0), (18, 30), 1_000_000), window((22, 0), (6, 0), 50_000_000)];
    let table = Timetable::new(&windows, Cap::None).expect("they do not overlap");
    for (at, cap) in [
        (time(8, 0), Cap::BytesPerSecond(1_000_000)),
        (time(18, 30), Cap::None),
        (time(22, 0), Cap::BytesPerSecond(50_000_000)),
        (time(0, 0), Cap::BytesPerSecond(50_000_000)),
        (time(5, 59), Cap::BytesPerSecond(50_000_000)),
        (time(6, 0), Cap::None),
    ] {
        assert_eq!(table.at(at), cap, "{at}");
    }
    assert_eq!(table.holds_for(time(23, 0)), Some(Nanos::from_secs(7 * 3600)));
    assert_eq!(table.holds_for(time(8, 0)), Some(Nanos::from_secs(10 * 3600 + 1800)));
    assert_eq!(Timetable::default().holds_for(time(1, 0)), None);
    assert_eq!((TimeOfDay::new(24, 0), TimeOfDay::new(24, 1)), (Some(TimeOfDay::MIDNIGHT), None));
}

/// Goal: what is wrong is refused with its place. Method: overlaps of all sorts, caps out of range,
/// too many; and neighbours that only touch are fine.
#[test]
fn bad_timetables_are_refused() {
    let refused =
        |windows: &[CapWindow]| Timetable::new(windows, Cap::None).expect_err("it is bad");
    let day = window((8, 0), (18, 0), 5000);
    for (other, meets) in [
        (window((17, 0), (19, 0), 5000), time(17, 0)),
        (window((20, 0), (9, 0), 5000), time(8, 0)),
        (window((3, 0), (3, 0), 5000), time(8, 0)),
        (window((9, 0), (10, 0), 5000), time(9, 0)),
        (day, time(8, 0)),
    ] {
        assert_eq!(refused(&[day, other]), TimetableError::Overlap(meets));
    }
    assert_eq!(refused(&[window((1, 0), (2, 0), 9)]), TimetableError::OutOfRange(9));
    assert_eq!(refused(&[day; 49]), TimetableError::TooMany(49));
    assert!(Timetable::new(&[day, window((18, 0), (8, 0), 5000)], Cap::None).is_ok());
    let words = std::format!("{}", refused(&[day, day]));
    assert_eq!(words, "two windows hold at 08:00");
}

/// Goal: a backlog's time is that of its bytes, window by window. Method: by hand: an hour at one
/// megabyte per second, then ten; a link slower than the cap; nothing; a dead link.
#[test]
fn backlogs_take_their_time() {
    let windows = [window((8, 0), (9, 0), 1_000_000)];
    let table = Timetable::new(&windows, Cap::BytesPerSecond(10_000_000)).expect("it is sound");
    let link = Bandwidth::new(1e9);
    let move_from = |bytes, at| table.time_to_move(bytes, link, at);
    assert_eq!(move_from(1_800_000_000, time(8, 0)), Some(Nanos::from_secs(1800)));
    assert_eq!(move_from(4_600_000_000, time(8, 0)), Some(Nanos::from_secs(3700)));
    assert_eq!(move_from(0, time(8, 0)), Some(Nanos::ZERO));
    let slow = Bandwidth::new(2e6);
    let needed = table.time_to_move(3_600_000_000 + 4_000_000, slow, time(8, 0));
    assert_eq!(needed, Some(Nanos::from_secs(3600 + 2)));
    assert_eq!(table.time_to_move(1, Bandwidth::ZERO, time(8, 0)), None);
    assert_eq!(table.time_to_move(u64::MAX, slow, time(8, 0)), None, "for ever is no time");
    let free = Timetable::default().time_to_move(5, Bandwidth::new(2.0), time(1, 0));
    assert_eq!(free, Some(Nanos::from_millis(2500)));
}
