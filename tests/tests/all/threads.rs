//! A system that grants the node too few threads, through the binary.
//!
//! How: the node runs as a user of its own, since the limit on processes (`RLIMIT_NPROC`) counts
//! all of a user and none of the superuser. Where that needs rights, the test says so and skips.

use layby_tests::{
    Node, Options, Refusal, available, binary, must, run, serve_arguments, skip, small_levels,
};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A user that no other program runs as.
const USER: u32 = 0x6c61_7962;
/// With so many threads any machine's node starts.
const THREADS_ENOUGH: u32 = 64;

fn start(program: &Path, threads: u32, options: &Options) -> Result<Node, Refusal> {
    let dir = program.with_file_name("node");
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), "--clear-groups", "prlimit"]);
    command.arg(format!("--nproc={threads}")).arg(program);
    command.args(serve_arguments(&dir, options));
    Node::spawn(command, &dir)
}

/// Goal: where the system grants too few threads, a start ends with an error that says so, and with
/// the exit code of a refused start; what it left is no obstacle to a start that gets them. Method:
/// each number of threads, by both ways of I/O, up to the first that is enough, then many.
#[test]
fn too_few_threads_refuse_the_start() {
    if run("id", &["-u"]).stdout.trim() != "0" {
        return skip("another user's limits need root");
    }
    if !available(&["setpriv", "prlimit"]) {
        return;
    }
    for io in ["epoll", "auto"] {
        let work = TempDir::new().expect("a temporary folder");
        std::os::unix::fs::chown(work.path(), Some(USER), None).expect("root may");
        // The user may not reach where the program was built.
        let program = work.path().join("layby");
        // By another process: a child that is forked meanwhile would keep a file of ours open.
        must("cp", &[binary(), program.as_path()].map(Path::to_string_lossy));
        let arguments = ["--io", io, "--shards", "2"].map(str::to_owned).to_vec();
        let options = Options { arguments, ..small_levels() };
        let mut refusals = 0;
        for threads in (1..THREADS_ENOUGH).chain([1024]) {
            match start(&program, threads, &options) {
                Ok(node) => {
                    node.stop();
                    assert!(refusals > 2, "{refusals} numbers of threads are too few");
                    break;
                }
                Err(refusal) => {
                    refusal.assert_explains(&["cannot start the program's own threads", "ulimit"]);
                    assert_eq!(refusal.code, Some(1), "{threads} threads: {}", refusal.stderr);
                    assert!(threads < THREADS_ENOUGH, "{}", refusal.stderr);
                    refusals += 1;
                }
            }
        }
    }
}
