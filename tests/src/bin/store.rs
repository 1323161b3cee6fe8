//! The tests' object store behind the tests' link, for benches and for trying things by hand.
//!
//! How: `layby-test-store [FOLDER]` starts both, prints `ready` with where clients connect, and then
//! does what each line of its standard input says: `counts` prints what has passed as JSON,
//! `link DELAY_MS BITS_PER_SECOND` changes the link (0 is no delay, no limit), `cut refuse`,
//! `cut hang` and `restore` break and mend it. Invariant: each line is answered by one line.
//! It ends with its standard input. Not for: faults of single requests, which tests put themselves.

use layby_tests::S3Server;
use layby_tests::link::{Cut, LinkProxy, Operation, Shape};
use serde_json::json;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let folder = std::env::args().nth(1);
    let started = match &folder {
        Some(folder) => S3Server::start_in(Path::new(folder)),
        None => S3Server::start(),
    };
    let Some(server) = started else { return ExitCode::FAILURE };
    let link = LinkProxy::start(server.address(), layby_tests::seed());
    let words =
        S3Server::environment(&link.endpoint()).map(|(name, value)| format!("{name}={value}"));
    answer(&format!("ready BUCKET={} {}", S3Server::BUCKET, words.join(" ")));
    for line in stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&obey(&link, &words));
    }
    ExitCode::SUCCESS
}

fn obey(link: &LinkProxy, words: &[&str]) -> String {
    match words {
        ["counts"] => return counts(link),
        ["link", delay, bits] => {
            let (Ok(delay), Ok(bits)) = (delay.parse(), bits.parse()) else {
                return "error: not numbers".to_owned();
            };
            let width = if bits == 0 { Shape::default() } else { Shape::bits_per_second(bits) };
            link.shape(width.late(Duration::from_millis(delay)));
        }
        ["cut", "refuse"] => link.cut(Cut::Refuse),
        ["cut", "hang"] => link.cut(Cut::Hang),
        ["restore"] => link.restore(),
        _ => return "error: counts, link DELAY_MS BITS, cut refuse|hang, restore".to_owned(),
    }
    "done".to_owned()
}

fn counts(link: &LinkProxy) -> String {
    let counts = link.counts();
    let of = |operation| counts.requests_of(operation);
    let answers: serde_json::Map<_, _> =
        counts.answers.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
    let document = json!({
        "bytes_up": counts.bytes_up, "bytes_down": counts.bytes_down,
        "connections": counts.connections, "requests": counts.requests_all(),
        "put": of(Operation::Put), "get": of(Operation::Get), "head": of(Operation::Head),
        "list": of(Operation::List), "delete": of(Operation::Delete),
        "other": of(Operation::Other), "answers": answers,
    });
    document.to_string()
}

fn answer(line: &str) {
    let mut out = stdout().lock();
    // Whoever does not listen any more has closed our standard input, too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
