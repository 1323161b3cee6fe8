//! A node under a seccomp filter that refuses a part of io_uring, as container runtimes have them.
//!
//! How: a small Python installs the filter and becomes the node.
//! Cost: a second. Where there is no Python, the test says so and skips.

use layby_tests::{Connection, Node, Refusal, Request, available, binary, small_levels};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Numbers of `io_uring_setup`, `io_uring_enter` and `io_uring_register`, on every architecture.
const CALLS: [u32; 3] = [425, 426, 427];

/// Refuses the system call of the first argument with `EPERM`, then becomes what the others name.
const FILTER: &str = r#"
import ctypes, os, struct, sys
load, equal, answer = 0x20, 0x15, 0x06
code = [(load, 0, 0, 0), (equal, 0, 1, int(sys.argv[1])),
        (answer, 0, 0, 0x00050001), (answer, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
assert libc.prctl(22, 2, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[2], sys.argv[2:])
"#;

fn start(dir: &Path, call: u32, io: &str) -> Result<Node, Refusal> {
    let file = dir.with_extension("toml");
    let levels = small_levels().config.expect("it has one");
    std::fs::write(&file, format!("[node]\nio = \"{io}\"\n\n{levels}")).expect("our own folder");
    let mut command = Command::new("python3");
    command.args(["-c", FILTER, &call.to_string()]).arg(binary()).arg("serve");
    command.arg("--dir").arg(dir).arg("--config").arg(file);
    Node::spawn(command, dir)
}

/// Goal: where the kernel lets a ring be made and not be used, `auto` serves over epoll and names
/// the refusal, and `io_uring` is refused with an error, not with a panic. Method: a filter for
/// each system call of io_uring; a write and a read.
#[test]
fn half_a_ring_is_no_ring() {
    if !available(&["python3"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    for call in CALLS {
        let dir = work.path().join(format!("auto-{call}"));
        let node = start(&dir, call, "auto");
        let node = node.unwrap_or_else(|refused| panic!("without {call}: {refused:?}"));
        assert!(node.said().contains("io_uring was refused"), "{call}: {}", node.said());
        node.volume_create("v", "1MiB", "normal");
        let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
        let write = Request::Write { offset: 4096, data: vec![7; 4096], fua: true };
        connection.call(&write).expect("the node serves").expect("a sound disk");
        let read = Request::Read { offset: 4096, length: 4096 };
        let found = connection.call(&read).expect("the node serves").expect("a sound disk");
        assert_eq!(found, vec![7; 4096], "without {call}");
        node.stop();
        match start(&work.path().join(format!("ring-{call}")), call, "io_uring") {
            Ok(_) => panic!("it serves over a ring without {call}"),
            Err(refusal) => refusal.assert_explains(&["cannot start the data path", "epoll"]),
        }
    }
}
