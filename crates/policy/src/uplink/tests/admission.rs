//! Admission beside a tank that fills and drains.

use super::*;

const GIB: u64 = 1 << 30;

fn ask(bytes: u64) -> Ask {
    Ask { bytes, accepted_within: None, uploaded_within: None }
}

fn room(free_bytes: u64, ahead_bytes: u64) -> Room {
    Room { free_bytes, ahead_bytes }
}

/// Goal: Table IV's case: 200 GB into 50, 99, 197 and 497 GB of cache are slowed where they do not
/// fit and never refused; the rate is that at which the last byte meets the last free one. Method:
/// by hand, at 10 MB/s of drain.
#[test]
fn bursts_are_slowed_and_never_refused() {
    let drain = Some(Bandwidth::new(10e6));
    let verdict = |free: u64| admit(&ask(200_000_000_000), &room(free * 1_000_000_000, 0), drain);
    for (free, rate) in [(50, 200.0 / 150.0), (99, 200.0 / 101.0), (197, 200.0 / 3.0)] {
        let Verdict::SlowTo(found) = verdict(free) else { panic!("{:?}", verdict(free)) };
        assert!((found.get() / (10e6 * rate) - 1.0).abs() < 1e-9, "{free}: {found:?}");
    }
    assert_eq!(verdict(497), Verdict::Now);
    let dead = admit(&ask(GIB), &room(0, 0), Some(Bandwidth::ZERO));
    assert_eq!(dead, Verdict::SlowTo(Bandwidth::ZERO));
    assert_eq!(admit(&ask(GIB), &room(0, 0), None), Verdict::SlowTo(Bandwidth::ZERO));
    assert_eq!(admit(&ask(GIB), &room(GIB, 9), None), Verdict::Now);
}

/// Goal: what cannot be met in its time is refused with figures. Method: by hand.
#[test]
fn refusals_say_why() {
    let mut late = ask(100_000_000);
    late.uploaded_within = Some(Nanos::from_secs(20));
    let drain = Some(Bandwidth::new(10e6));
    assert_eq!(admit(&late, &room(GIB, 100_000_000), drain), Verdict::Now);
    let Verdict::Refuse(refusal) = admit(&late, &room(GIB, 100_000_001), drain) else {
        panic!("one byte too many goes before it");
    };
    assert_eq!(refusal.needed, Some(Nanos(20_000_000_100)));
    let words = std::format!("{refusal}");
    assert_eq!(
        words,
        "100000000 bytes must be in the cloud within 20.0 s and would take 20.0 s: 100000001 \
         bytes go before, room for 1073741824 is free, the link drains 10000000 bytes per second"
    );
    let mut soon = ask(100_000_000);
    soon.accepted_within = Some(Nanos::from_secs(5));
    assert!(matches!(admit(&soon, &room(50_000_000, 0), drain), Verdict::SlowTo(_)));
    let Verdict::Refuse(refusal) = admit(&soon, &room(49_999_999, 0), drain) else {
        panic!("five seconds drain fifty megabytes");
    };
    assert!(!refusal.is_upload && refusal.allowed == Nanos::from_secs(5));
    let unknown = admit(&late, &room(GIB, 0), None);
    let Verdict::Refuse(refusal) = unknown else { panic!("{unknown:?}") };
    assert!(refusal.needed.is_none() && std::format!("{refusal}").contains("not been measured"));
}

/// Goal: over a link that drains as told, what is admitted never overfills the room and keeps its
/// times, and what is refused could not have. Method: random asks beside exact arithmetic.
#[test]
fn verdicts_hold_at_the_told_rate() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut within = || rng.chance(1, 2).then(|| Nanos(rng.below(200_000_000_000)));
        let (accepted_within, uploaded_within) = (within(), within());
        let ask = Ask { bytes: 1 + rng.below(1 << 32), accepted_within, uploaded_within };
        let room = room(rng.below(1 << 32), rng.below(1 << 32));
        let rate = rng.below(100_000_000) as f64;
        let verdict = admit(&ask, &room, Some(Bandwidth::new(rate)));
        let excess = ask.bytes.saturating_sub(room.free_bytes) as f64;
        let seconds = |bytes: f64| if bytes == 0.0 { 0.0 } else { bytes / rate };
        let (accepted, uploaded) =
            (seconds(excess), seconds((ask.bytes + room.ahead_bytes) as f64));
        let keeps = |within: Option<Nanos>, needed: f64, slack: f64| {
            within.is_none_or(|allowed| needed <= allowed.as_secs_f64() + slack)
        };
        match verdict {
            Verdict::Refuse(_) => {
                let kept = keeps(ask.accepted_within, accepted, -1e-6)
                    && keeps(ask.uploaded_within, uploaded, -1e-6);
                assert!(!kept, "SEED={seed}: {ask:?} {room:?} {rate} was refused");
            }
            admitted => {
                assert!(keeps(ask.accepted_within, accepted, 1e-6), "SEED={seed}");
                assert!(keeps(ask.uploaded_within, uploaded, 1e-6), "SEED={seed}");
                let Verdict::SlowTo(slow) = admitted else { continue };
                // At that rate the room is full at the very end and never before.
                let end = ask.bytes as f64 / slow.get().max(1e-9);
                let filled = ask.bytes as f64 - rate * end;
                let full = room.free_bytes as f64;
                assert!(rate == 0.0 || (filled - full).abs() < 1.0 + full * 1e-9, "SEED={seed}");
                assert!(slow.get() >= rate, "SEED={seed}: slower than the link drains");
            }
        }
    }
}

/// Goal: prudence takes off errors, and never goes below nothing or above the cap. Method: by hand.
#[test]
fn prudence_takes_off_errors() {
    let outlook = Outlook { error: 3e5, ..outlook(1e6, 2e6) };
    let drain = |percent| Prudence { percent }.drain(&outlook, Cap::None).get();
    assert_eq!((drain(0), drain(100), drain(400)), (1e6, 7e5, 0.0));
    let capped = Prudence::MIN.drain(&outlook, Cap::BytesPerSecond(5000));
    assert_eq!(capped.get(), 5000.0);
}
