//! Small cases of the scheduler whose answer is plain.

use super::*;

const MIB: u64 = 1 << 20;

fn one_at_a_time() -> UplinkLimits {
    UplinkLimits { in_flight_max: 1, ..UplinkLimits::DEFAULT }
}

fn sent(uplink: &mut Uplink, now: u64, weather: Option<Outlook>) -> Option<u64> {
    match uplink.next(at(Nanos::from_secs(now)), weather.as_ref()) {
        Next::Send(upload) => Some(upload.id.0),
        _ => None,
    }
}

/// Goal: a critical object overtakes all that waits, and waits for one object under way at most.
/// Method: one place in flight, taken by bulk.
#[test]
fn critical_waits_for_one_object() {
    let mut uplink = three_classes(one_at_a_time(), 3);
    for id in 0..5 {
        uplink.submit(upload(id, 2, 8 * MIB, Nanos::ZERO)).expect("there is room");
    }
    assert_eq!(sent(&mut uplink, 1, None), Some(0));
    uplink.submit(upload(9, 0, MIB, Nanos::from_secs(1))).expect("there is room");
    assert_eq!(uplink.next(at(Nanos::from_secs(1)), None), Next::Idle, "one is under way");
    uplink.on_done(UploadId(0));
    assert_eq!(sent(&mut uplink, 2, None), Some(9));
    assert_eq!(uplink.in_flight(), (1, MIB));
}

/// Goal: bulk waits in a bad period, until its bound of age or bytes is half reached, and goes in a
/// good one; what is not patient goes always. Method: one object, by the clock.
#[test]
fn bulk_waits_for_good_periods() {
    let (bad, good) = (outlook(1e5, 1e6), outlook(1e6, 1e6));
    let mut uplink = three_classes(one_at_a_time(), 3);
    uplink.submit(upload(1, 2, MIB, Nanos::from_secs(100))).expect("there is room");
    let due = Nanos::from_secs(100 + 150);
    let now = at(Nanos::from_secs(110));
    assert_eq!(uplink.next(now, Some(&bad)), Next::Wait(due), "half of five minutes");
    assert_eq!(sent(&mut uplink.clone(), 110, Some(good)), Some(1));
    assert_eq!(sent(&mut uplink.clone(), 110, None), Some(1), "nothing is known: go on");
    assert_eq!(sent(&mut uplink.clone(), 250, Some(bad)), Some(1), "it is due");
    uplink.set_dirty(VolumeId(2), DirtyBounds::DEFAULT.bytes / 2);
    assert_eq!(sent(&mut uplink.clone(), 110, Some(bad)), Some(1), "too much is dirty");
    uplink.set_dirty(VolumeId(2), 0);
    uplink.submit(upload(2, 1, MIB, Nanos::from_secs(110))).expect("there is room");
    assert_eq!(sent(&mut uplink, 110, Some(bad)), Some(2), "normal has no patience");
}

/// Goal: within a class the nearest bound of age is served first, though it came last, and an old
/// object pulls those before it. Method: three volumes of one class.
#[test]
fn the_nearest_bound_is_first() {
    let mut uplink = three_classes(one_at_a_time(), 9);
    let short = DirtyBounds { age: Nanos::from_secs(10), ..DirtyBounds::DEFAULT };
    uplink.set_volume(VolumeId(4), VolumePlan { class: NORMAL, bounds: short });
    let second = Nanos::from_secs(1);
    uplink.submit(upload(1, 1, MIB, Nanos::ZERO)).expect("there is room");
    uplink.submit(upload(2, 7, MIB, second)).expect("there is room");
    uplink.submit(upload(3, 4, MIB, Nanos::from_secs(2))).expect("there is room");
    assert_eq!(sent(&mut uplink, 3, None), Some(3));
    uplink.on_done(UploadId(3));
    assert_eq!(sent(&mut uplink.clone(), 3, None), Some(1), "of equals, the oldest");
    // Volume 7 gets one that is older than all behind the one that it has.
    uplink.set_volume(VolumeId(1), VolumePlan { class: NORMAL, bounds: DirtyBounds::MAX });
    uplink.submit(upload(4, 7, MIB, Nanos::ZERO)).expect("there is room");
    assert_eq!(sent(&mut uplink, 3, None), Some(2));
}

/// Goal: what failed backs off, lets others of its volume pass, and is first again afterwards; a
/// forgotten volume's is given back. Method: by the clock.
#[test]
fn failures_back_off() {
    let mut uplink = three_classes(one_at_a_time(), 3);
    for id in 1..4 {
        uplink.submit(upload(id, 1, MIB, Nanos::ZERO)).expect("there is room");
    }
    assert_eq!(sent(&mut uplink, 0, None), Some(1));
    assert_eq!(uplink.on_failed(UploadId(1), Nanos::from_secs(5)), None);
    assert_eq!(sent(&mut uplink, 1, None), Some(2), "a stalled object delays only itself");
    uplink.on_done(UploadId(2));
    assert_eq!(sent(&mut uplink, 5, None), Some(1));
    uplink.on_done(UploadId(1));
    assert_eq!(sent(&mut uplink, 5, None), Some(3));
    uplink.on_failed(UploadId(3), Nanos::from_secs(9));
    assert_eq!(uplink.next(at(Nanos::from_secs(6)), None), Next::Wait(Nanos::from_secs(9)));
    assert_eq!(uplink.backlog(VolumeId(1)).objects, 1);
    assert_eq!(sent(&mut uplink, 9, None), Some(3));
    assert_eq!(uplink.forget_volume(VolumeId(1)), []);
    let back = uplink.on_failed(UploadId(3), Nanos::ZERO).expect("its volume is gone");
    assert_eq!(back.id, UploadId(3));
}

/// Goal: the cap of the time of day holds, a change is live, and the wait ends where the next
/// window begins. Method: an object of two seconds' worth, twice.
#[test]
fn caps_follow_the_timetable() {
    let mut uplink = three_classes(one_at_a_time(), 3);
    let cap = |rate| Timetable::new(&[], Cap::BytesPerSecond(rate)).expect("it is sound");
    uplink.set_timetable(cap(MIB));
    for id in 1..4 {
        uplink.submit(upload(id, 1, 2 * MIB, Nanos::ZERO)).expect("there is room");
    }
    assert_eq!(sent(&mut uplink, 0, None), Some(1), "the bucket is full");
    uplink.on_done(UploadId(1));
    let waits = uplink.next(at(Nanos::ZERO), None);
    assert_eq!(waits, Next::Wait(Nanos::from_secs(2)), "two seconds' worth were taken");
    let window = CapWindow {
        from: TimeOfDay::from_secs(1),
        until: TimeOfDay::from_secs(3600),
        cap: Cap::None,
    };
    let table = Timetable::new(&[window], Cap::BytesPerSecond(MIB)).expect("it is sound");
    let mut opened = uplink.clone();
    opened.set_timetable(table);
    assert_eq!(opened.next(at(Nanos::ZERO), None), Next::Wait(Nanos::from_secs(1)));
    assert_eq!(sent(&mut opened, 1, None), Some(2));
    uplink.set_timetable(Timetable::default());
    assert_eq!(sent(&mut uplink, 0, None), Some(2), "no cap, no wait");
}

/// Goal: bounds are kept and strangers refused. Method: one object too many; an unknown volume.
#[test]
fn submissions_are_bounded() {
    let mut uplink = three_classes(UplinkLimits { queued_max: 1, ..one_at_a_time() }, 3);
    let stranger = uplink.submit(upload(1, 77, MIB, Nanos::ZERO));
    assert_eq!(stranger, Err(SubmitError::UnknownVolume(VolumeId(77))));
    uplink.submit(upload(1, 1, MIB, Nanos::ZERO)).expect("there is room");
    let more = uplink.submit(upload(2, 1, MIB, Nanos::ZERO));
    assert_eq!(more, Err(SubmitError::Full { queued: 1 }));
    assert_eq!(uplink.backlog_of_class(NORMAL).bytes, MIB);
    assert_eq!(uplink.backlog_of_class(BULK), Backlog::default());
    assert_eq!(uplink.forget_volume(VolumeId(1)).len(), 1);
    uplink.submit(upload(2, 2, MIB, Nanos::ZERO)).expect("there is room again");
}

/// Goal: volumes whose stores are silent hold up no other one: they have one probe each, beside the
/// places, as many as there are places, in turn; one that arrives, or an answer that is late, makes
/// a volume like the others again. Method: four silent volumes and two places, by hand.
#[test]
fn silent_volumes_have_probes_alone() {
    let limits = UplinkLimits { in_flight_max: 2, ..UplinkLimits::DEFAULT };
    let mut uplink = three_classes(limits, 15);
    let silent = [1, 2, 4, 7];
    for (place, volume) in silent.into_iter().enumerate() {
        uplink.submit(upload(place as u64, volume, MIB, Nanos::ZERO)).expect("there is room");
        assert_eq!(sent(&mut uplink, 0, None), Some(place as u64));
        assert_eq!(uplink.on_silent(UploadId(place as u64)).volume, VolumeId(volume));
    }
    for volume in silent {
        for more in 1..4 {
            let one = upload(10 * more + u64::from(volume), volume, MIB, Nanos::ZERO);
            uplink.submit(one).expect("there is room");
        }
    }
    for id in 90..94 {
        uplink.submit(upload(id, 10, MIB, Nanos::from_secs(1))).expect("there is room");
    }
    let all: Vec<_> = (0..6).map(|_| sent(&mut uplink, 1, None)).collect();
    let expected = [11, 12, 90, 91].map(Some);
    assert_eq!((&all[..4], &all[4..]), (&expected[..], &[None, None][..]), "two and two");
    uplink.on_done(UploadId(90));
    assert_eq!(sent(&mut uplink, 2, None), Some(92), "a place is free");
    assert_eq!(sent(&mut uplink, 2, None), None, "as many probes as places");
    uplink.on_silent(UploadId(11));
    assert_eq!(sent(&mut uplink, 20, None), Some(14), "who was probed longest ago");
    uplink.on_silent(UploadId(12));
    assert_eq!(sent(&mut uplink, 20, None), Some(17));
    uplink.on_silent(UploadId(14));
    assert_eq!(sent(&mut uplink, 40, None), Some(21), "in turn");
    uplink.on_done(UploadId(21));
    assert_eq!(sent(&mut uplink, 41, None), Some(22), "its probe is the next one's");
    for id in [91, 92] {
        uplink.on_done(UploadId(id));
    }
    let all: Vec<_> = (0..3).map(|_| sent(&mut uplink, 42, None)).collect();
    assert_eq!(all, [Some(31), Some(93), None], "one that arrived makes it like the others");
    uplink.on_answer(VolumeId(4));
    uplink.on_done(UploadId(31));
    assert_eq!(sent(&mut uplink, 43, None), Some(24), "a late answer does, too");
}

/// Goal: a strict class waits for no probe of another, whose volumes are probed once it is served;
/// what backs off on a silent store is waited for when all places are taken. Method: by hand.
#[test]
fn probes_wait_for_strict_ones() {
    let mut uplink = three_classes(one_at_a_time(), 6);
    uplink.submit(upload(1, 1, MIB, Nanos::ZERO)).expect("there is room");
    assert_eq!(sent(&mut uplink, 0, None), Some(1));
    uplink.on_silent(UploadId(1));
    uplink.submit(upload(2, 1, MIB, Nanos::ZERO)).expect("there is room");
    for id in 3..5 {
        uplink.submit(upload(id, 0, MIB, Nanos::ZERO)).expect("there is room");
    }
    assert_eq!(sent(&mut uplink, 1, None), Some(3));
    assert_eq!(sent(&mut uplink, 1, None), None, "the strict one has no place");
    uplink.on_done(UploadId(3));
    assert_eq!(sent(&mut uplink, 1, None), Some(4));
    assert_eq!(sent(&mut uplink, 1, None), Some(2), "nothing strict is ready");
    uplink.on_failed(UploadId(2), Nanos::from_secs(9));
    let waits = uplink.next(at(Nanos::from_secs(2)), None);
    assert_eq!(waits, Next::Wait(Nanos::from_secs(9)), "the probe backs off");
    assert_eq!(sent(&mut uplink, 9, None), Some(2));
    assert_eq!(uplink.withdraw(UploadId(2)).volume, VolumeId(1));
}
