//! The tests of `stores` on object stores that others wrote.
//!
//! How: each store is installed by its own client below the user's cache, started on a free port
//! over an empty folder, given a bucket, and named to the tests by the environment. The tests' own
//! store, versitygw, is one of them.
//! Invariant: a store that cannot be had is said with its cause, and fails the chore unless it is
//! one that a night alone runs.
//! Cost: minutes per store that is missing, once; then a minute or two per store. Not for: faults
//! of the link, see the tests of `cloud`.

use crate::process::{self, Failure};
use crate::{suites, tools};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// How often it is looked whether a store listens, a tenth of a second apart.
const LOOKS_MAX: u32 = 600;

/// A store. Its scripts have `$1`, the folder of its program, `$2`, its port, and `$3`, an empty
/// folder for its objects.
struct Kind {
    name: &'static str,
    /// Makes the program; nothing where it is there.
    install: &'static str,
    /// Becomes the store.
    start: &'static str,
    /// Makes the bucket, once it listens.
    prepare: &'static str,
    url: &'static str,
    /// What the tests find in their environment; `PORT` is the store's.
    environment: &'static [(&'static str, &'static str)],
    /// What is asked of its conditional puts, where that is not the default.
    conditions: Option<&'static str>,
    /// It takes long to build.
    is_nightly: bool,
}

const S3: &[(&str, &str)] = &[
    ("AWS_ACCESS_KEY_ID", "layby-tests"),
    ("AWS_SECRET_ACCESS_KEY", "not-a-secret"),
    ("AWS_REGION", "us-east-1"),
    ("AWS_ENDPOINT_URL", "http://127.0.0.1:PORT"),
    ("AWS_ALLOW_HTTP", "true"),
];

const KINDS: &[Kind] = &[
    Kind {
        name: "moto",
        install: "test -x $1/bin/moto_server || { python3 -m venv $1 && \
                  $1/bin/pip install --quiet 'moto[server]==5.2.1'; }",
        start: "exec $1/bin/moto_server -H 127.0.0.1 -p $2",
        prepare: "curl --fail --silent --show-error -X PUT http://127.0.0.1:$2/layby",
        url: "s3://layby",
        environment: S3,
        conditions: None,
        is_nightly: false,
    },
    Kind {
        name: "s3rver",
        install: "test -x $1/node_modules/.bin/s3rver || \
                  npm install --silent --no-audit --no-fund --prefix $1 s3rver@3.7.1",
        start: "exec $1/node_modules/.bin/s3rver --silent --address 127.0.0.1 --port $2 \
                --directory $3 --configure-bucket layby",
        prepare: "true",
        url: "s3://layby",
        environment: &[
            ("AWS_ACCESS_KEY_ID", "S3RVER"),
            ("AWS_SECRET_ACCESS_KEY", "S3RVER"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:PORT"),
            ("AWS_ALLOW_HTTP", "true"),
        ],
        // It takes every put, whatever its condition.
        conditions: Some("optional"),
        is_nightly: false,
    },
    Kind {
        name: "azurite",
        install: "test -x $1/node_modules/.bin/azurite-blob || \
                  npm install --silent --no-audit --no-fund --prefix $1 azurite@3.35.0; \
                  test -x $1/venv/bin/python || { python3 -m venv $1/venv && \
                  $1/venv/bin/pip install --quiet azure-storage-blob; }",
        start: "exec $1/node_modules/.bin/azurite-blob --silent --skipApiVersionCheck \
                --blobHost 127.0.0.1 --blobPort $2 --location $3",
        prepare: "$1/venv/bin/python -c \"import os; from azure.storage.blob import \
                  BlobServiceClient as C; C.from_connection_string(\
                  os.environ['AZURE_STORAGE_CONNECTION_STRING']).create_container('layby')\"",
        url: "az://layby",
        environment: &[(
            "AZURE_STORAGE_CONNECTION_STRING",
            "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6\
             IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;\
             BlobEndpoint=http://127.0.0.1:PORT/devstoreaccount1",
        )],
        conditions: None,
        is_nightly: false,
    },
    Kind {
        name: "fake-gcs-server",
        install: "test -x $1/fake-gcs-server || \
                  GOBIN=$1 go install github.com/fsouza/fake-gcs-server@latest",
        start: "exec $1/fake-gcs-server -scheme http -host 127.0.0.1 -port $2 -backend memory \
                -public-host 127.0.0.1:$2 -log-level error",
        prepare: "curl --fail --silent --show-error --output /dev/null \
                  -H 'content-type: application/json' -d '{\"name\":\"layby\"}' \
                  'http://127.0.0.1:$2/storage/v1/b?project=tests'",
        url: "gs://layby",
        environment: &[("STORAGE_EMULATOR_HOST", "127.0.0.1:PORT")],
        conditions: None,
        is_nightly: false,
    },
    Kind {
        name: "rclone",
        install: "test -x $1/rclone || GOBIN=$1 go install github.com/rclone/rclone@latest",
        start: "mkdir $3/layby && exec $1/rclone serve s3 --addr 127.0.0.1:$2 \
                --auth-key layby-tests,not-a-secret --vfs-cache-mode full $3",
        prepare: "true",
        url: "s3://layby",
        environment: S3,
        // It takes every put, whatever its condition.
        conditions: Some("optional"),
        is_nightly: true,
    },
];

/// Runs the tests on each store, or on those of these names, each race so often.
pub(crate) fn run(
    root: &Path,
    names: &[String],
    rounds: u32,
    nightly: bool,
) -> Result<(), Failure> {
    let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).chain(["versitygw"]).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Failure::new(format!("no store `{unknown}`; there are {}", known.join(", "))));
    }
    let is_asked = |name: &str| names.iter().any(|asked| asked == name);
    let mut failed = Vec::new();
    if names.is_empty() || is_asked("versitygw") {
        failed.extend(judge("versitygw", tests(root, rounds)));
    }
    let kinds = KINDS.iter().filter(|kind| match names.is_empty() {
        true => nightly || !kind.is_nightly,
        false => is_asked(kind.name),
    });
    for kind in kinds {
        failed.extend(judge(kind.name, on(root, kind, rounds)));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!("failed on {}", failed.join(", ")))),
    }
}

fn judge(name: &'static str, result: Result<(), Failure>) -> Option<&'static str> {
    match result {
        Ok(()) => {
            process::say(&format!("stores: {name}: passed"));
            None
        }
        Err(failure) => {
            process::say(&format!("stores: {name}: {failure}"));
            Some(name)
        }
    }
}

fn tests(root: &Path, rounds: u32) -> Result<(), Failure> {
    let mut tests = suites::tests(root, "stores::");
    process::run(tests.arg("--test-threads=2").env("LAYBY_STORE_ROUNDS", rounds.to_string()))
}

/// Ends with the value.
struct Store(Child);

impl Drop for Store {
    fn drop(&mut self) {
        // It may have ended already; then both calls have nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn on(root: &Path, kind: &Kind, rounds: u32) -> Result<(), Failure> {
    let home = tools::folder().join("stores").join(kind.name);
    let objects = home.with_extension(format!("{}.objects", std::process::id()));
    for folder in [&home, &objects] {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|cause| Failure::io("cannot make", folder, &cause))?;
    }
    let port = free_port()?;
    let words = [home.display().to_string(), port.to_string(), objects.display().to_string()];
    let environment = kind
        .environment
        .iter()
        .map(|(name, value)| (*name, value.replace("PORT", &port.to_string())));
    let environment: Vec<(&str, String)> = environment.collect();
    let script = |text: &str| {
        let mut command = process::command("sh", root);
        command.args(["-ec", text, "sh"]).args(&words);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
    };
    process::run(&mut script(kind.install))?;
    let mut start = script(kind.start);
    let child = start.stdout(Stdio::null()).spawn();
    let store = Store(child.map_err(|cause| Failure::new(format!("it does not start: {cause}")))?);
    wait(port)?;
    process::run(&mut script(kind.prepare))?;
    let mut tests = suites::tests(root, "stores::");
    tests.arg("--test-threads=2").env("LAYBY_STORE_ROUNDS", rounds.to_string());
    tests.envs(environment.iter().map(|(name, value)| (name, value)));
    tests.env("LAYBY_STORE_URL", kind.url);
    tests.envs(kind.conditions.map(|choice| ("LAYBY_STORE_CONDITIONS", choice)));
    let done = process::run(&mut tests);
    drop(store);
    let _ = std::fs::remove_dir_all(&objects);
    done
}

fn free_port() -> Result<u16, Failure> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = bound.map_err(|cause| Failure::new(format!("no port is free: {cause}")))?;
    Ok(address.port())
}

fn wait(port: u16) -> Result<(), Failure> {
    for _ in 0..LOOKS_MAX {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(());
        }
        process::pause(Duration::from_millis(100))?;
    }
    Err(Failure::new(format!("it does not listen on port {port}")))
}
