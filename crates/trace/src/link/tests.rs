//! Shapes beside their parameters; text there and back, and bad lines.

use super::*;
use crate::{Reason, TraceError};
use layby_types::Rng;

fn spec(shape: LinkShape, seconds: u32, seed: u64) -> LinkSpec {
    LinkSpec { parameters: shape.parameters(), seconds, interval_seconds: 1, seed }
}

fn rates(trace: &LinkTrace) -> Vec<f64> {
    trace.samples.iter().map(|sample| sample.bytes_per_second as f64).collect()
}

/// Correlation of values so far apart.
fn autocorrelation(values: &[f64], lag: usize) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let product = |apart: usize| {
        values.iter().zip(&values[apart..]).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>()
    };
    product(lag) / product(0)
}

/// Goal: every shape is whole, repeats by seed, differs by seed, has a mean near what its states
/// say, and is neither constant nor white. Method: a day of each.
#[test]
fn shapes_are_as_parametrised() {
    for shape in LinkShape::ALL {
        let trace = spec(shape, 86_400, 1).draw();
        assert_eq!(trace, spec(shape, 86_400, 1).draw(), "{}", shape.name());
        assert_ne!(trace, spec(shape, 86_400, 2).draw(), "{}", shape.name());
        assert_eq!((trace.samples.len(), trace.length), (86_400, Nanos::from_secs(86_400)));
        assert!(trace.samples.windows(2).all(|pair| pair[0].at < pair[1].at));
        let states = shape.parameters().states;
        let least = states.iter().map(|state| state.bytes_per_second).fold(f64::MAX, f64::min);
        let most = states.iter().map(|state| state.bytes_per_second).fold(0.0, f64::max);
        let mean = trace.mean();
        assert!(0.6 * least < mean && mean < 1.2 * most, "{}: {mean}", shape.name());
        let near = autocorrelation(&rates(&trace), 1);
        assert!((0.2..0.99).contains(&near), "{}: {near}", shape.name());
        assert!(rates(&trace).iter().all(|rate| *rate <= 2.5 * most), "{}", shape.name());
        assert_eq!(LinkShape::from_name(shape.name()), Some(shape));
        assert!(!shape.source().is_empty());
    }
    assert_eq!(LinkShape::from_name("carrier-pigeon"), None);
}

/// Goal: driving LTE looks like a car's log of Ghent (38.8 Mbit/s down, so its level is another):
/// coefficient of variation 0.41, autocorrelation 0.66 after one second and 0.43 after ten. Method:
/// both within a third, over an hour.
#[test]
fn driving_is_like_the_log() {
    let trace = spec(LinkShape::LteDriving, 3600, 1).draw();
    let values = rates(&trace);
    let mean = trace.mean();
    let variance =
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    let variation = variance.sqrt() / mean;
    assert!((0.28..0.55).contains(&variation), "{variation}");
    let (near, far) = (autocorrelation(&values, 1), autocorrelation(&values, 10));
    assert!((0.45..0.88).contains(&near) && (0.28..0.57).contains(&far), "{near} {far}");
}

/// Goal: satellites change level every 15 s, motorways have dips, days have a rhythm. Method: means
/// over the places where each should show.
#[test]
fn shapes_have_their_marks() {
    let satellite = rates(&spec(LinkShape::Satellite, 36_000, 1).draw());
    let at = |offset: usize| {
        let seconds = satellite.iter().skip(offset).step_by(15);
        seconds.sum::<f64>() / (satellite.len() / 15) as f64
    };
    assert!((0.5..0.7).contains(&(at(0) / at(7))), "{}", at(0) / at(7));
    let outages = satellite.iter().filter(|rate| **rate == 0.0).count();
    assert!((60..600).contains(&outages), "{outages} seconds of ten hours");
    let day = rates(&spec(LinkShape::Congested, 86_400, 1).draw());
    let hour = |hour: usize| day[hour * 3600..(hour + 1) * 3600].iter().sum::<f64>();
    assert!(hour(20) < 0.6 * hour(8), "the evening is busiest");
}

/// Goal: longer intervals are means of seconds. Method: the same seed at one and ten seconds.
#[test]
fn intervals_are_means() {
    let fine = spec(LinkShape::MmWave, 1000, 3);
    let coarse = LinkSpec { interval_seconds: 10, ..fine };
    let (fine, coarse) = (rates(&fine.draw()), coarse.draw());
    for (sample, seconds) in coarse.samples.iter().zip(fine.chunks(10)) {
        let mean = seconds.iter().sum::<f64>() / 10.0;
        assert!((sample.bytes_per_second as f64 - mean).abs() <= 1.0);
    }
    assert_eq!(coarse.samples[1].at, Nanos::from_secs(10));
}

fn read(text: &str) -> Result<LinkTrace, TraceError> {
    read_link(text.as_bytes())
}

/// Goal: text comes back the same, with round trips and without; times count from the first.
/// Method: drawn traces there and back; a log of the time of day.
#[test]
fn text_comes_back() {
    for shape in LinkShape::ALL {
        let mut trace = spec(shape, 500, 1).draw();
        for _ in 0..2 {
            let mut text = Vec::new();
            write_link(&trace, &mut text).expect("memory takes it");
            assert_eq!(read_link(&text[..]).expect("it is sound"), trace);
            trace.samples.iter_mut().for_each(|sample| sample.round_trip = None);
        }
    }
    let log = "time_s,bytes_per_s,rtt_ms\n1453121790.5, 1000.4 ,20\n\n1453121791,0,20.25\r\n";
    let trace = read(log).expect("it is sound");
    assert_eq!(trace.length, Nanos::from_secs(1));
    assert_eq!(
        trace.samples[1],
        LinkSample {
            at: Nanos::from_millis(500),
            bytes_per_second: 0,
            round_trip: Some(Nanos::from_micros(20_250)),
        }
    );
    assert_eq!(trace.samples[0].bytes_per_second, 1000);
    assert_eq!(trace.mean(), 500.0);
    assert_eq!(read("time_s,bytes_per_s\n7,1").expect("one is enough").length.as_secs(), 1);
}

/// Goal: a bad line is named, with what stands there. Method: one of each.
#[test]
fn bad_lines_are_named() {
    let with = |line: &str| format!("time_s,bytes_per_s,rtt_ms\n0,5,1\n{line}\n");
    for (text, line, reason, words) in [
        ("", 1, Reason::Truncated, "a sample"),
        ("time_s,bytes_per_s\n", 2, Reason::Truncated, "a sample"),
        ("0,5\n", 1, Reason::Columns, "`time_s,bytes_per_s`"),
        ("time_s,mbps\n0,5\n", 1, Reason::Columns, "time_s,mbps"),
        (&with("1,5"), 3, Reason::Columns, "2 columns"),
        (&with("1,-5,1"), 3, Reason::Number, "`-5`"),
        (&with("1,nan,1"), 3, Reason::Number, "`nan`"),
        (&with("1,1e6,1"), 3, Reason::Number, "`1e6`"),
        (&with("1,5,"), 3, Reason::Number, "rtt_ms"),
        (&with("1,2000000000000,1"), 3, Reason::Range, "at most"),
        (&with("0,5,1"), 3, Reason::Backwards, "after that"),
        (&with("1,5,1\n0.5,5,1"), 4, Reason::Backwards, "`0.5`"),
    ] {
        let Err(TraceError::Bad { place, fault }) = read(text) else { panic!("{text:?} is bad") };
        assert_eq!((place.to_string(), fault.reason), (format!("line {line}"), reason), "{text:?}");
        assert!(fault.to_string().contains(words), "{fault}");
    }
}

/// Goal: no bytes make the reader panic. Method: sound text with random bytes changed.
#[test]
fn noise_is_survived() {
    let mut text = Vec::new();
    write_link(&spec(LinkShape::LteDriving, 50, 1).draw(), &mut text).expect("memory takes it");
    let mut rng = Rng::new(1);
    for _ in 0..2000 {
        let mut noisy = text.clone();
        for _ in 0..1 + rng.below(4) {
            let place = rng.below(noisy.len() as u64) as usize;
            noisy[place] = rng.below(256) as u8;
        }
        if let Ok(trace) = read_link(&noisy[..]) {
            assert!(trace.samples.windows(2).all(|pair| pair[0].at < pair[1].at));
        }
    }
}

/// Goal: a byte order mark, as spreadsheets write it, is no part of the headings. Method: one
/// before the headings, and one before a sample.
#[test]
fn a_byte_order_mark_is_skipped() {
    let text = "time_s,bytes_per_s\n0,5\n1,7\n";
    let plain = read_link(text.as_bytes()).expect("it is sound");
    assert_eq!(read_link(format!("\u{feff}{text}").as_bytes()).expect("it is as sound"), plain);
    assert!(read_link(text.replace("\n1", "\n\u{feff}1").as_bytes()).is_err());
}
