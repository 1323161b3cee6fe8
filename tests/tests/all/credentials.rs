//! `layby restore` on a machine whose credentials or address are wrong: an answer at once, or after
//! a bounded number of attempts, that says what is missing.
//!
//! How: the binary with an environment of its own, whose endpoint is a socket of the test that
//! counts connections and closes them. Not for: stores that answer; see `cloud`.

use layby_tests::{Refusal, binary};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// A socket that closes every connection, and counts them.
struct Closing {
    url: String,
    connections: Arc<AtomicUsize>,
}

impl Closing {
    fn new() -> Closing {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                drop(connection);
            }
        });
        Closing { url, connections }
    }

    fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// What a restore says with these variables and no others.
fn restore(url: &str, variables: &[(&str, &str)]) -> Refusal {
    let work = TempDir::new().expect("a temporary folder");
    let image = work.path().join("image");
    let mut command = Command::new("timeout");
    command.args(["60"]).arg(binary()).args(["restore", url]).arg(&image).env_clear();
    command.env("HOME", work.path()).envs(variables.iter().copied());
    let ended = command.output().expect("the program starts");
    let files = std::fs::read_dir(work.path()).expect("readable").count();
    assert_eq!(files, 0, "a file was left");
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    Refusal { code: ended.status.code(), stderr }
}

/// Goal: without credentials a restore asks nobody and names the variables that are not set.
/// Method: none, one, the other; no connection reaches the endpoint.
#[test]
fn missing_credentials_are_named() {
    let store = Closing::new();
    let endpoint = ("AWS_ENDPOINT_URL", store.url.as_str());
    let (id, secret) = (("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"));
    for (variables, words) in [
        (vec![endpoint], &["AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"][..]),
        (vec![endpoint, id], &["AWS_SECRET_ACCESS_KEY is not set"]),
        (vec![endpoint, secret], &["AWS_ACCESS_KEY_ID is not set"]),
        (vec![endpoint, ("AWS_PROFILE", "none")], &["AWS_PROFILE is `none`"]),
    ] {
        restore("s3://bucket/maps", &variables).assert_explains(words);
    }
    restore("maps", &[]).assert_explains(&["names no store", "s3://bucket/maps"]);
    restore("az://bucket/maps", &[]).assert_explains(&["AZURE_STORAGE_ACCOUNT_NAME"]);
    assert_eq!(store.count(), 0, "a store was asked");
}

/// Goal: a restore gives a store up that never answers, and a metadata service too, after few
/// attempts, whose number it says. Method: each closes every connection.
#[test]
fn a_store_that_never_answers_is_given_up() {
    const ATTEMPTS: usize = 4;
    let good = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    for (variable, is_store) in [("AWS_ENDPOINT_URL", true), ("AWS_METADATA_ENDPOINT", false)] {
        let closing = Closing::new();
        let keys = if is_store { &good[..] } else { &[] };
        let variables = [&[(variable, closing.url.as_str())], keys].concat();
        let refusal = restore("s3://bucket/maps", &variables);
        refusal.assert_explains(&["after 4 attempts", "credentials"]);
        assert_ne!(refusal.code, Some(124), "it took a minute");
        // A client may connect twice for a request whose first connection was closed.
        let count = closing.count();
        assert!((ATTEMPTS..=3 * ATTEMPTS).contains(&count), "{variable}: {count} connections");
    }
}
