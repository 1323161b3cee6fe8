//! The list of files and functions that may exceed their ceiling for now; it only shrinks.
//!
//! How: a line is `rule subject lines`, such as `file-lines crates/x/src/a.rs 812`. A measure above
//! its line fails; one below it asks for the line to be lowered, and one under the ceiling for the
//! line to go. Invariant: the list always equals what the tree needs.

use super::{Finding, Measure};

/// Where the list is kept.
pub(crate) const PATH: &str = "xtask/tidy-exceptions.txt";

struct Exception<'a> {
    line: usize,
    rule: &'a str,
    subject: &'a str,
    lines: usize,
}

/// Holds `measures` against their ceilings and against the list in `text`.
pub(crate) fn judge(text: &str, measures: &[Measure]) -> Vec<Finding> {
    let (listed, mut findings) = parse(text);
    for measure in measures.iter().filter(|measure| measure.lines > measure.ceiling) {
        let allowed = listed.iter().find(|exception| matches(exception, measure));
        if allowed.is_none_or(|exception| measure.lines > exception.lines) {
            findings.push(too_long(measure));
        }
    }
    findings.extend(listed.iter().filter_map(|exception| stale(exception, measures)));
    findings
}

fn parse(text: &str) -> (Vec<Exception<'_>>, Vec<Finding>) {
    let (mut listed, mut findings) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [rule, subject, lines] if lines.parse::<usize>().is_ok() => listed.push(Exception {
                line: index + 1,
                rule,
                subject,
                lines: lines.parse().unwrap_or_default(),
            }),
            _ => findings.push(at(index + 1, "not `rule subject lines`", "the list is exact")),
        }
    }
    (listed, findings)
}

fn matches(exception: &Exception<'_>, measure: &Measure) -> bool {
    exception.rule == measure.rule && exception.subject == measure.subject
}

fn too_long(measure: &Measure) -> Finding {
    let path = measure.subject.split(':').next().unwrap_or_default();
    Finding {
        place: format!("{path}:{}", measure.line),
        what: format!(
            "{} of {}: {} lines, ceiling {}",
            measure.rule, measure.subject, measure.lines, measure.ceiling
        ),
        why: "what does not fit on a screen or two is two things",
    }
}

/// What is wrong with an exception: its subject is gone, within the ceiling, or shorter than said.
fn stale(exception: &Exception<'_>, measures: &[Measure]) -> Option<Finding> {
    let longest = measures.iter().filter(|measure| matches(exception, measure));
    let needed = longest.max_by_key(|measure| measure.lines);
    let what = match needed {
        None => format!("`{}` is no longer there: remove the line", exception.subject),
        Some(measure) if measure.lines <= measure.ceiling => {
            format!("`{}` is within its ceiling: remove the line", exception.subject)
        }
        Some(measure) if measure.lines < exception.lines => {
            format!("`{}` has {} lines now: lower the line", exception.subject, measure.lines)
        }
        Some(_) => return None,
    };
    Some(at(exception.line, what, "the list of exceptions only shrinks"))
}

fn at(line: usize, what: impl Into<String>, why: &'static str) -> Finding {
    Finding { place: format!("{PATH}:{line}"), what: what.into(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(lines: usize) -> Measure {
        let subject = "crates/x/src/a.rs".to_string();
        Measure { rule: "file-lines", subject, line: 1, lines, ceiling: 800 }
    }

    fn whats(text: &str, lines: usize) -> Vec<String> {
        judge(text, &[measure(lines)]).into_iter().map(|finding| finding.what).collect()
    }

    /// Goal: the list admits what it names and no more, and never more than is needed. Method: one
    /// file at several lengths against one exception.
    #[test]
    fn the_list_only_shrinks() {
        let list = "# a comment\n\nfile-lines crates/x/src/a.rs 812\n";
        assert_eq!(whats(list, 812), Vec::<String>::new());
        assert!(whats(list, 813)[0].contains("813 lines, ceiling 800"));
        assert!(whats(list, 805)[0].contains("lower the line"));
        assert!(whats(list, 800)[0].contains("remove the line"));
        assert!(whats("", 801)[0].contains("801 lines, ceiling 800"));
        assert!(whats("file-lines gone.rs 900\n", 10)[0].contains("no longer there"));
        assert!(whats("file-lines a.rs\n", 10)[0].contains("not `rule subject lines`"));
    }
}
