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
    for UplinkWindow { from, until, cap } in answer.settings.windows.iter().flatten() {
        output.line(&format!("from {from} until {until}: {}", cap_text(Some(cap.0))))?;
    }
    Ok(())
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
    let expected = match (of.expected_bytes_per_second, of.usual_bytes_per_second) {
        (Some(expected), Some(usual)) => format!(
            "{} expected, {} in the long run; forecasts ({}) are off by {}, naive ones by {}",
            rate(expected),
            rate(usual),
            of.forecast,
            rate(of.error_bytes_per_second),
            rate(of.naive_error_bytes_per_second)
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
