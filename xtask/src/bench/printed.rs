//! Figures that a test of `layby-tests` prints: the test made larger, once per round.
//!
//! How: the test runs through the binary to be measured, with another seed per round; lines of its
//! output that begin with its name and a brace are JSON.
//! Invariant: a figure counts only if its test passed. Cost: the test's own.

use super::Arguments;
use super::entries::Plan;
use crate::process::{self, Failure};
use crate::suites;
use serde_json::{Value, json};

/// What the tests of the file `test` print in all rounds, under an environment that scales them,
/// with `words` for their runner.
pub(crate) fn figures(
    plan: &Plan<'_>,
    arguments: &Arguments,
    test: &str,
    (words, scale): (&[&str], &[(&str, &str)]),
) -> Result<Vec<Value>, Failure> {
    let mark = format!("{test} {{");
    let mut raw = Vec::new();
    for round in 0..arguments.runs {
        let seed = arguments.seed + u64::from(round);
        let mut run = suites::tests(plan.root, &format!("{test}::"));
        run.arg("--nocapture").args(words).envs(scale.iter().copied());
        run.env("LAYBY_BIN", plan.binary).env("LAYBY_SEED", seed.to_string());
        let text = process::output(&mut run)?;
        for line in text.lines().filter_map(|line| Some(line.split_once(&mark)?.1)) {
            let mut found: Value = serde_json::from_str(&format!("{{{line}"))
                .map_err(|cause| Failure::new(format!("`{line}` is no JSON\ncause: {cause}")))?;
            found["round"] = json!(round);
            process::say(&format!("round {}: {found}", round + 1));
            raw.push(found);
        }
    }
    if raw.is_empty() {
        return Err(Failure::new("nothing was measured: the test says what is missing here"));
    }
    Ok(raw)
}
