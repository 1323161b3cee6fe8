//! `cargo xtask guest`: a real guest kernel with a disk of a node, over restarts of the node.
//!
//! How: fetches the distribution's kernel as a package and unpacks it below the target folder,
//! since it is to run in a machine, not here; then runs the tests that want one. A kernel with ublk
//! comes from the distribution's backports, by lists of packages of its own, so that nothing of
//! this machine's changes; where there is none, the test that wants it says so.
//! Cost: 90 MB once, then about two minutes under software emulation.

use crate::process::{self, Failure};
use crate::{setup, suites};
use std::path::{Path, PathBuf};

/// What is needed beside what all tests use.
const PACKAGES: [&str; 2] = ["qemu-system-x86", "busybox-static"];
/// The package that names the kernel's.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Fetches a kernel with ublk into the current folder.
const FETCH_UBLK: &str = r#"set -e
. /etc/os-release
suite=$VERSION_CODENAME-backports
uri=$(apt-get indextargets --format '$(REPO_URI)|$(CODENAME)' 'Created-By: Packages' \
  | grep "|$VERSION_CODENAME$" | head -n 1 | cut -d '|' -f 1)
mkdir -p lists/partial cache/archives/partial
echo "deb $uri $suite main" > sources.list
own="-o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=-"
own="$own -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache"
apt-get $own --quiet update
package=$(apt-cache $own depends linux-image-cloud-amd64/$suite \
  | sed -n 's/^ *Depends: //p' | head -n 1)
apt-get $own --quiet download "$package"
dpkg-deb -x "$package"_*.deb kernel.new
find kernel.new -name 'ublk_drv.ko*' | grep -q . && mv kernel.new kernel
"#;

/// Runs them, with so many restarts.
pub(crate) fn run(root: &Path, restarts: u32, seed: u64) -> Result<(), Failure> {
    let kernel = prepare(root)?;
    let mut tests = suites::tests(root, "machine::");
    tests.arg("--nocapture").env("LAYBY_GUEST_KERNEL", kernel);
    tests.env("LAYBY_GUEST_ACCEL", accelerator());
    match ublk_kernel(root) {
        Ok(kernel) => drop(tests.env("LAYBY_UBLK_KERNEL", kernel)),
        Err(_) => process::say("guest: no kernel with ublk can be had; its test is skipped"),
    }
    tests.env("LAYBY_GUEST_RESTARTS", restarts.to_string()).env("LAYBY_SEED", seed.to_string());
    process::run(&mut tests)
}

/// Installs what runs a guest; answers with the folder of an unpacked kernel.
pub(crate) fn prepare(root: &Path) -> Result<PathBuf, Failure> {
    setup::install(root, &PACKAGES)?;
    kernel(root)
}

/// What QEMU runs a guest's processor by. Hardware, where this machine has it: a module that
/// offers KVM without it wants kernels made for it, and lets others hang.
pub(crate) fn accelerator() -> &'static str {
    let words = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_open = || std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    if has_virtualization(&words) && is_open() { "kvm" } else { "tcg" }
}

fn has_virtualization(words: &str) -> bool {
    words.split_whitespace().any(|word| word == "vmx" || word == "svm")
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

/// The folder of an unpacked kernel that has ublk.
fn ublk_kernel(root: &Path) -> Result<PathBuf, Failure> {
    let folder = process::target(root).join("guest/ublk");
    let kernel = folder.join("kernel");
    if !kernel.join("boot").exists() {
        let made = std::fs::create_dir_all(&folder);
        made.map_err(|cause| Failure::io("cannot make", &folder, &cause))?;
        process::say("guest: fetching a kernel with ublk");
        process::run(process::command("sh", &folder).args(["-c", FETCH_UBLK]))?;
    }
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only a processor that says so runs guests by hardware. Method: lines of both kinds.
    #[test]
    fn virtualization_is_a_flag_of_the_processor() {
        assert!(has_virtualization("model name : x\nflags\t: fpu svm avx"));
        assert!(has_virtualization("flags : vmx"));
        assert!(!has_virtualization("flags : fpu hypervisor\nbugs : svm_x"));
    }
}
