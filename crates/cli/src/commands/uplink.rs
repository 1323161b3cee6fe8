//! `layby uplink`: the way up to object stores, shown and changed.
//!
//! How: flags become a change, which the node checks; what it then answers is shown.
//! Invariant: without a flag nothing changes. Cost: one request.

use super::ask;
use crate::arguments::UplinkArguments;
use crate::output::{Failure, Output, bytes};
use layby_daemon::api::UplinkAnswer;
use layby_daemon::config::{UplinkConfig, UplinkWindow};

pub(crate) fn uplink(arguments: &UplinkArguments, output: &mut Output) -> Result<(), Failure> {
    let windows = match arguments.no_windows {
        true => Some(Vec::new()),
        false => (!arguments.window.is_empty()).then(|| arguments.window.clone()),
    };
    let change = UplinkConfig { cap: arguments.cap, windows, in_flight: None };
    let is_change = change != UplinkConfig::default();
    let answer = ask(&arguments.node, |client| async move {
        if is_change { client.uplink_set(&change).await } else { client.uplink().await }
    })?;
    if arguments.node.json {
        return output.json(&answer);
    }
    for line in uplink_lines(&answer) {
        output.line(&line)?;
    }
    for line in timetable_lines(&answer.settings) {
        output.line(&line)?;
    }
    Ok(())
}

/// What holds at which time of day, where that changes: the first line says only what holds now.
fn timetable_lines(settings: &UplinkConfig) -> Vec<String> {
    let windows = settings.windows.as_deref().unwrap_or_default();
    let window = |UplinkWindow { from, until, cap }: &UplinkWindow| {
        format!("from {from} until {until}: {}", cap_text(Some(cap.0)))
    };
    let otherwise = format!("at other times: {}", cap_text(settings.cap.map(|cap| cap.0)));
    let otherwise = (!windows.is_empty()).then_some(otherwise);
    windows.iter().map(window).chain(otherwise).collect()
}

fn cap_text(cap: Option<u64>) -> String {
    match cap.filter(|cap| *cap > 0) {
        Some(cap) => format!("at most {}/s", bytes(cap)),
        None => "no cap".to_owned(),
    }
}

/// What is known of the way up.
pub(super) fn uplink_lines(of: &UplinkAnswer) -> Vec<String> {
    let rate = |rate: f64| format!("{}/s", bytes(rate as u64));
    let errors = match (of.error_bytes_per_second, of.naive_error_bytes_per_second) {
        (Some(chosen), Some(naive)) => {
            format!("are off by {}, naive ones by {}", rate(chosen), rate(naive))
        }
        _ => "were not scored yet".to_owned(),
    };
    let expected = match (of.expected_bytes_per_second, of.usual_bytes_per_second) {
        (Some(expected), Some(usual)) => format!(
            "{} expected, {} in the long run; forecasts ({}) {errors}",
            rate(expected),
            rate(usual),
            of.forecast
        ),
        _ => "not measured yet".to_owned(),
    };
    vec![format!(
        "uplink: {}; {expected}; {} under way, {} wait, {} in no store",
        cap_text(of.cap_now.map(|cap| cap.0)),
        bytes(of.bytes_in_flight),
        bytes(of.bytes_waiting),
        bytes(of.dirty_bytes)
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_daemon::config::Bandwidth;

    /// Goal: whatever the time of day is, all caps are told. Method: windows beside a cap, beside
    /// none, and no windows.
    #[test]
    fn every_cap_is_told() {
        let window = |from: &str, until: &str, mib: u64| UplinkWindow {
            from: from.to_owned(),
            until: until.to_owned(),
            cap: Bandwidth(mib << 20),
        };
        let windows = Some(vec![window("22:00", "06:30", 0), window("07:00", "09:00", 1)]);
        let mut settings = UplinkConfig { cap: Some(Bandwidth(2 << 20)), windows, in_flight: None };
        let [night, morning] =
            ["from 22:00 until 06:30: no cap", "from 07:00 until 09:00: at most 1.00 MiB/s"];
        let lines = timetable_lines(&settings);
        assert_eq!(lines, [night, morning, "at other times: at most 2.00 MiB/s"]);
        settings.cap = None;
        assert_eq!(timetable_lines(&settings), [night, morning, "at other times: no cap"]);
        settings.windows = Some(Vec::new());
        assert_eq!(timetable_lines(&settings), [""; 0]);
    }

    /// Goal: forecasts that were held against nothing yet are not called free of errors. Method: an
    /// answer before and after they were scored.
    #[test]
    fn errors_are_told_once_they_are_known() {
        let (expected, usual) = (Some(1048576.0), Some(1048576.0));
        let mut answer = UplinkAnswer {
            expected_bytes_per_second: expected,
            usual_bytes_per_second: usual,
            forecast: "naive".to_owned(),
            ..UplinkAnswer::default()
        };
        let line = uplink_lines(&answer).remove(0);
        assert!(line.contains("forecasts (naive) were not scored yet;"), "{line}");
        answer.error_bytes_per_second = Some(1024.0);
        answer.naive_error_bytes_per_second = Some(2048.0);
        let line = uplink_lines(&answer).remove(0);
        assert!(line.contains("are off by 1.00 KiB/s, naive ones by 2.00 KiB/s;"), "{line}");
    }
}
