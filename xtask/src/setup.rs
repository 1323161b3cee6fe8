//! `cargo xtask setup-tests`: the foreign clients, from the distribution's packages, the object
//! store, from its own, and checkers of the API and the metrics.
//!
//! How: asks dpkg which packages are missing and has apt-get install those; `tools` does the rest.
//! Where there is no apt-get or no permission, it says what is missing and goes on: the tests skip
//! what needs it. Cost: nothing when all is there.

use crate::process::{self, Failure};
use crate::tools;
use std::path::Path;
use std::process::Command;

/// What the tests and benches call, as Debian and Ubuntu name it.
const PACKAGES: [&str; 13] = [
    "fio",
    "libnbd-bin",
    "python3-libnbd",
    "nbdkit",
    "qemu-utils",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "fuse3",
    "mount",
    "util-linux",
    "openssl",
    "curl",
];

/// Installs the missing ones, the object store and the checkers.
pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    packages(root)?;
    checkers(root)
}

/// Makes the object store and the checkers of API and metrics ready.
pub(crate) fn checkers(root: &Path) -> Result<(), Failure> {
    tools::object_store(root)?;
    tools::python_tools(root)?;
    tools::promtool(root)
}

/// Installs the missing packages.
pub(crate) fn packages(root: &Path) -> Result<(), Failure> {
    install(root, &PACKAGES)
}

/// Brings the list of packages up to date.
pub(crate) fn update(root: &Path) -> Result<(), Failure> {
    process::run(apt_get(root).arg("update").arg("--quiet"))
}

/// Installs those of `packages` that are missing.
pub(crate) fn install(root: &Path, packages: &[&'static str]) -> Result<(), Failure> {
    if !process::exists("dpkg-query", "--version") || !process::exists("apt-get", "--version") {
        process::say("setup-tests: skipped: no apt-get here; install by hand what the tests name");
        return Ok(());
    }
    let missing: Vec<&str> =
        packages.iter().copied().filter(|package| !installed(root, package)).collect();
    if missing.is_empty() {
        process::say("setup-tests: all packages are installed");
        return Ok(());
    }
    process::say(&format!("setup-tests: installing {}", missing.join(" ")));
    update(root)?;
    let mut install = apt_get(root);
    install.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(&missing);
    process::run(&mut install)
}

fn installed(root: &Path, package: &str) -> bool {
    let mut query = process::command("dpkg-query", root);
    query.args(["--show", "--showformat", "${db:Status-Status}", package]);
    query.stderr(std::process::Stdio::null());
    query.output().is_ok_and(|output| output.stdout == b"installed")
}

/// apt-get as root: directly, or through sudo without a password.
fn apt_get(root: &Path) -> Command {
    let own_id = process::output(process::command("id", root).arg("-u")).unwrap_or_default();
    let mut command = if own_id.trim() == "0" {
        process::command("apt-get", root)
    } else {
        let mut sudo = process::command("sudo", root);
        sudo.args(["--non-interactive", "--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        sudo
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
