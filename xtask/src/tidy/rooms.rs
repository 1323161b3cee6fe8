//! Which room may use which: the table of style.md, in code.
//!
//! How: `cargo metadata --no-deps` gives each package's dependencies; an arrow between rooms must
//! stand in [`ROOMS`], and a pure room may reach outside only for [`PURE_OUTSIDE`].
//! Invariant: the table here equals the table in style.md and ARCHITECTURE.md; nothing is implied,
//! so `a` using `b` and `b` using `c` does not let `a` use `c`.
//! Cost: one run of cargo, no network.

use super::Finding;
use serde_json::Value;

/// A row of the table.
struct Room {
    name: &'static str,
    pure: bool,
    may_use: MayUse,
}

enum MayUse {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}
use MayUse::{AllBut, Only};

const fn pure(name: &'static str, uses: &'static [&'static str]) -> Room {
    Room { name, pure: true, may_use: Only(uses) }
}

const fn host(name: &'static str, may_use: MayUse) -> Room {
    Room { name, pure: false, may_use }
}

/// The table. `tests`, `fuzz` and `xtask` stand beside the rooms: the first goes through the
/// binary, but for its parity test, which drives both hosts of the cache; the second reaches
/// whatever reads bytes of strangers; the third uses no room.
const ROOMS: [Room; 19] = [
    pure("types", &[]),
    pure("policy", &["types"]),
    pure("cache", &["types", "policy"]),
    pure("device", &["types"]),
    pure("cluster", &["types"]),
    host("trace", Only(&["types"])),
    host("sim", Only(&["types", "policy", "cache", "device", "cluster", "trace"])),
    host("engine", Only(&["types", "cache"])),
    host("frontend", Only(&["types"])),
    host("cloud", Only(&["types", "policy"])),
    host("daemon", AllBut(&["sim", "trace"])),
    host("cli", Only(&["daemon", "sim", "trace", "lab"])),
    host("python", Only(&["sim", "trace", "types"])),
    host("lab", Only(&["sim", "trace", "types", "cloud"])),
    host("planner", Only(&["types"])),
    host("proof", Only(&["types", "cache", "engine", "frontend", "cloud"])),
    host("tests", Only(&["types", "cache", "device", "engine", "sim", "trace"])),
    host("fuzz", Only(&["types", "engine", "frontend", "cloud", "daemon", "trace"])),
    host("xtask", Only(&[])),
];

/// What a pure room may use from outside, none of which can read a clock or draw chance.
const PURE_OUTSIDE: [&str; 4] = ["libm", "hashbrown", "smallvec", "arrayvec"];

/// Attributes that a pure room's first file carries.
const PURE_ATTRIBUTES: [&str; 2] = ["#![no_std]", "#![forbid(unsafe_code)]"];

const PREFIX: &str = "layby-";

/// A dependency as cargo tells it.
struct Arrow<'a> {
    manifest: &'a str,
    from: &'a str,
    to: &'a str,
    inside: bool,
    for_tests: bool,
}

/// Every arrow of the workspace that the table does not hold.
pub(crate) fn arrows(metadata: &Value, root: &str) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut findings = Vec::new();
    for package in packages {
        let manifest = text(&package["manifest_path"]);
        let manifest = manifest.strip_prefix(root).unwrap_or(manifest).trim_start_matches('/');
        let from = room_name(text(&package["name"]));
        let Some(room) = ROOMS.iter().find(|room| room.name == from) else {
            findings.push(unknown_room(manifest, from));
            continue;
        };
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice);
        let arrows = dependencies.unwrap_or_default().iter().map(|dependency| Arrow {
            manifest,
            from,
            to: text(&dependency["name"]),
            inside: text(&dependency["name"]).starts_with(PREFIX),
            for_tests: dependency["kind"] == "dev",
        });
        findings.extend(arrows.filter_map(|arrow| judge(room, &arrow)));
    }
    findings
}

fn judge(room: &Room, arrow: &Arrow<'_>) -> Option<Finding> {
    let to = room_name(arrow.to);
    let allowed = match (&room.may_use, arrow.inside) {
        (Only(list), true) => list.contains(&to),
        (AllBut(list), true) => !list.contains(&to),
        (_, false) => !room.pure || arrow.for_tests || PURE_OUTSIDE.contains(&arrow.to),
    };
    let what = || format!("`{}` uses `{to}`", arrow.from);
    let why = if arrow.inside {
        "the rooms table has no such arrow; what both need moves down"
    } else {
        "a pure room uses only libm, hashbrown, smallvec, arrayvec from outside"
    };
    (!allowed).then(|| Finding { place: format!("{}:1", arrow.manifest), what: what(), why })
}

fn unknown_room(manifest: &str, name: &str) -> Finding {
    let what = format!("the rooms table has no room `{name}`");
    Finding { place: format!("{manifest}:1"), what, why: "every room has its row" }
}

/// Pure rooms of this workspace, as package names.
pub(crate) fn pure_packages(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = packages.iter().map(|package| text(&package["name"]));
    names.filter(|name| is_pure(room_name(name))).map(str::to_string).collect()
}

/// Whether `name` is the name of a pure room.
pub(crate) fn is_pure(name: &str) -> bool {
    ROOMS.iter().any(|room| room.pure && room.name == name)
}

/// The attributes that are missing from a pure room's `lib.rs`, given its code without comments.
pub(crate) fn pure_attributes(path: &str, code: &str) -> Vec<Finding> {
    let carries = |attribute: &str| code.lines().any(|line| line.trim() == attribute);
    let missing = PURE_ATTRIBUTES.iter().filter(|attribute| !carries(attribute));
    let why = "the pure rooms have no clock, no I/O and no unsafe code";
    let report = |attribute: &&str| Finding {
        place: format!("{path}:1"),
        what: format!("a pure room without `{attribute}`"),
        why,
    };
    missing.map(report).collect()
}

fn room_name(package: &str) -> &str {
    package.strip_prefix(PREFIX).unwrap_or(package)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn whats(from: &str, to: &str, kind: &Value) -> Vec<String> {
        let metadata = json!({ "packages": [{
            "name": from,
            "manifest_path": "/repo/crates/x/Cargo.toml",
            "dependencies": [{ "name": to, "kind": kind }],
        }] });
        let findings = arrows(&metadata, "/repo");
        findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
    }

    /// Goal: arrows of the table pass, others fail at their manifest. Method: one of each kind.
    #[test]
    fn only_arrows_of_the_table_pass() {
        let normal = Value::Null;
        assert_eq!(whats("layby-cache", "layby-policy", &normal), Vec::<String>::new());
        assert_eq!(whats("layby-daemon", "layby-frontend", &normal), Vec::<String>::new());
        assert_eq!(
            whats("layby-policy", "layby-cache", &normal),
            ["crates/x/Cargo.toml:1: `policy` uses `cache`"]
        );
        assert_eq!(whats("layby-daemon", "layby-trace", &normal).len(), 1);
        assert_eq!(whats("layby-engine", "layby-policy", &json!("dev")).len(), 1);
        assert_eq!(whats("layby-shed", "layby-types", &normal).len(), 1);
    }

    /// Goal: pure rooms reach outside only for the listed crates; their tests are free, and so are
    /// host rooms. Method: one of each.
    #[test]
    fn pure_rooms_have_few_outside_dependencies() {
        let normal = Value::Null;
        assert_eq!(whats("layby-cache", "hashbrown", &normal), Vec::<String>::new());
        assert_eq!(whats("layby-cache", "tokio", &normal).len(), 1);
        assert_eq!(whats("layby-cache", "proptest", &json!("dev")), Vec::<String>::new());
        assert_eq!(whats("layby-engine", "rustix", &normal), Vec::<String>::new());
    }

    /// Goal: a pure room says that it is pure. Method: with both, with one, with none.
    #[test]
    fn pure_rooms_carry_their_attributes() {
        let missing = |code: &str| pure_attributes("crates/types/src/lib.rs", code).len();
        assert_eq!(missing("#![no_std]\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(missing("#![no_std]\n"), 1);
        assert_eq!(missing("#![cfg_attr(not(test), no_std)]\n"), 2);
    }
}
