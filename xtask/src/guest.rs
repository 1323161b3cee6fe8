//! `cargo xtask guest`: a real guest kernel with a disk of a node, over restarts of the node.
//!
//! How: fetches the distribution's kernel as a package and unpacks it below the target folder,
//! since it is to run in a machine, not here; then runs the tests that want one.
//! Cost: 30 MB once, then about a minute under software emulation.

use crate::process::{self, Failure};
use crate::setup;
use std::path::{Path, PathBuf};

/// What is needed beside what all tests use.
const PACKAGES: [&str; 2] = ["qemu-system-x86", "busybox-static"];
/// The package that names the kernel's.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Runs them, with so many restarts.
pub(crate) fn run(root: &Path, restarts: u32, seed: u64) -> Result<(), Failure> {
    setup::install(root, &PACKAGES)?;
    let kernel = kernel(root)?;
    let mut tests = process::cargo(root);
    tests.args(["test", "--locked", "--package", "layby-tests", "--test", "machine"]);
    tests.args(["--", "--nocapture"]).env("LAYBY_GUEST_KERNEL", kernel);
    tests.env("LAYBY_GUEST_RESTARTS", restarts.to_string()).env("LAYBY_SEED", seed.to_string());
    process::run(&mut tests)
}

/// The folder of an unpacked kernel.
fn kernel(root: &Path) -> Result<PathBuf, Failure> {
    let folder = process::target(root).join("guest");
    let kernel = folder.join("kernel");
    if kernel.join("boot").exists() {
        return Ok(kernel);
    }
    let made = std::fs::create_dir_all(&folder);
    made.map_err(|cause| Failure::io("cannot make", &folder, &cause))?;
    setup::update(root)?;
    let words = process::output(process::command("apt-cache", root).args(["depends", KERNEL]))?;
    let named = words.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = named.ok_or_else(|| Failure::new(format!("{KERNEL} names no kernel")))?;
    process::say(&format!("guest: fetching {package}"));
    process::run(process::command("apt-get", &folder).args(["download", "--quiet", package]))?;
    let script = format!("dpkg-deb -x {package}_*.deb kernel.new && mv kernel.new kernel");
    process::run(process::command("sh", &folder).args(["-c", &script]))?;
    Ok(kernel)
}
