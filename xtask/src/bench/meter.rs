//! What a process has used of the processors.
//!
//! How: user and system time of all its threads, or of those of a name, from `/proc`.
//! Invariant: a process that is gone has no figure, rather than a zero. Not for: children.

use std::fs;

/// Ticks of `/proc` per second on every Linux that fio runs on.
const TICKS_PER_SECOND: f64 = 100.0;
/// Fields of `/proc/PID/stat` behind the name in brackets: user time, then system time.
const USER_FIELD: usize = 11;

/// Seconds of processor time since a process started.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Seconds of processor time of a process's threads whose names begin with `name`, by their names.
pub(crate) fn threads_cpu_seconds(pid: u32, name: &str) -> Vec<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut found: Vec<(String, f64)> = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok())
        .filter_map(|stat| Some((name_of(&stat)?.to_owned(), parse(&stat)?)))
        .filter(|(own, _)| own.starts_with(name))
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.into_iter().map(|(_, seconds)| seconds).collect()
}

fn name_of(stat: &str) -> Option<&str> {
    let (before, _) = stat.rsplit_once(')')?;
    before.split_once('(').map(|(_, name)| name)
}

fn parse(stat: &str) -> Option<f64> {
    // The name may hold anything, brackets and blanks too.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(USER_FIELD);
    let mut next = || ticks.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name with brackets does not shift the fields. Method: a line by hand.
    #[test]
    fn odd_names_do_not_matter() {
        let line = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(parse(line), Some(3.0));
        assert_eq!((parse("7 (a"), name_of(line), name_of("7 a")), (None, Some("a) b"), None));
    }
}
