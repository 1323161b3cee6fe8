//! What comes from outside: how many packages, and under which licences.
//!
//! How: counts the packages of the lock file; evaluates each package's SPDX expression against
//! [`LICENCES`]. `deny.toml` says the same to cargo-deny, which also knows advisories; this check
//! needs nothing installed.
//! Invariant: an expression that cannot be read counts as refused. Cost: one run of cargo.

use super::Finding;
use serde_json::Value;

/// Packages in the lock file, our own rooms included. Raise it only with a reason in the commit.
pub(crate) const LOCK_PACKAGES_MAX: usize = 350;

/// Licences that ask for no more than their text and notice.
const LICENCES: [&str; 12] = [
    "MIT",
    "Apache-2.0",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
    "0BSD",
    "CC0-1.0",
    "Unlicense",
];

/// Holds the lock file against its ceiling.
pub(crate) fn lock_ceiling(lock: &str, ceiling: usize) -> Option<Finding> {
    let count = lock.lines().filter(|line| line.trim() == "[[package]]").count();
    (count > ceiling).then(|| Finding {
        place: "Cargo.lock:1".to_string(),
        what: format!("{count} packages, ceiling {ceiling}"),
        why: "each dependency states what it saves",
    })
}

/// Packages whose licence is missing or not on the list.
pub(crate) fn licences(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().filter_map(licence).collect()
}

fn licence(package: &Value) -> Option<Finding> {
    let expression = package["license"].as_str().unwrap_or_default();
    (!permitted(expression)).then(|| Finding {
        place: format!("Cargo.lock: {}", package["name"].as_str().unwrap_or_default()),
        what: format!("licence `{expression}`"),
        why: "only the permissive licences listed in xtask and deny.toml",
    })
}

/// Whether an SPDX expression can be satisfied with [`LICENCES`]; `/` is the old way to write OR.
fn permitted(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest) == Some(true) && rest.is_empty()
}

fn any_of(rest: &mut &[&str]) -> Option<bool> {
    let mut met = all_of(rest)?;
    while take(rest, "OR") {
        met |= all_of(rest)?;
    }
    Some(met)
}

fn all_of(rest: &mut &[&str]) -> Option<bool> {
    let mut met = one(rest)?;
    while take(rest, "AND") {
        met &= one(rest)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str]) -> Option<bool> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    if *first == "(" {
        let met = any_of(rest)?;
        return take(rest, ")").then_some(met);
    }
    if take(rest, "WITH") {
        // An exception only ever grants more.
        *rest = rest.split_first()?.1;
    }
    Some(LICENCES.contains(first))
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let found = rest.first() == Some(&word);
    if found {
        *rest = &rest[1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: expressions are evaluated, not searched. Method: both sides of OR, AND, brackets.
    #[test]
    fn expressions_are_evaluated() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(permitted(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT OR", "MIT Apache-2.0", "MITX"] {
            assert!(!permitted(bad), "{bad}");
        }
    }

    /// Goal: a refused licence names its package. Method: one package without a licence.
    #[test]
    fn a_missing_licence_is_reported() {
        let metadata = json!({ "packages": [
            { "name": "fine", "license": "MIT" }, { "name": "bare", "license": null },
        ] });
        let places: Vec<String> = licences(&metadata).into_iter().map(|f| f.place).collect();
        assert_eq!(places, ["Cargo.lock: bare"]);
    }

    /// Goal: the ceiling is exact. Method: two packages against one and two.
    #[test]
    fn the_lock_file_has_a_ceiling() {
        let lock = "[[package]]\nname = \"a\"\n\n[[package]]\nname = \"b\"\n";
        assert!(lock_ceiling(lock, 2).is_none());
        assert!(lock_ceiling(lock, 1).is_some_and(|f| f.what == "2 packages, ceiling 1"));
    }
}
