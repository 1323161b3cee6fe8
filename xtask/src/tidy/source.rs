//! Rules on one source file: length, width, header, `unsafe`, unfinished work, module names.
//!
//! How: each rule is a function from a [`Source`] to findings, on the views of `lexer`.
//! Invariant: a rule reads nothing but the text it is given. Cost: linear per rule.

use super::lexer::{Views, has_word, views};
use super::{Finding, Measure};

/// Lines of a file.
pub(crate) const FILE_LINES_MAX: usize = 800;
/// Lines of a function, signature and closing brace included.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;
/// Characters of a line.
pub(crate) const COLUMNS_MAX: usize = 100;
/// Words that say nothing about what a module holds.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "helper", "helpers", "manager", "managers"];
const UNSAFE_STATED: &str = "#![expect(unsafe_code";

/// One file: its path within the repository and its text.
pub(crate) struct Source<'a> {
    path: &'a str,
    text: &'a str,
    views: Views,
}

impl<'a> Source<'a> {
    pub(crate) fn new(path: &'a str, text: &'a str) -> Self {
        Source { path, text, views: views(text) }
    }

    /// Everything that is wrong with this file, but for its sizes: see [`Source::measures`].
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.header());
        findings.extend(self.columns());
        findings.extend(self.unsafe_code());
        findings.extend(self.unfinished());
        findings.extend(self.comments());
        findings.extend(self.examples());
        findings.extend(self.names());
        findings
    }

    /// The sizes that have a ceiling, and an entry in the list of exceptions.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        let file = Measure {
            rule: "file-lines",
            subject: self.path.to_string(),
            line: 1,
            lines: self.text.lines().count(),
            ceiling: FILE_LINES_MAX,
        };
        let functions = functions(&self.views.code).into_iter().map(|function| Measure {
            rule: "function-lines",
            subject: format!("{}:{}", self.path, function.name),
            line: function.line,
            lines: function.lines,
            ceiling: FUNCTION_LINES_MAX,
        });
        std::iter::once(file).chain(functions).collect()
    }

    fn finding(&self, line: usize, what: impl Into<String>, why: &'static str) -> Finding {
        Finding { place: format!("{}:{line}", self.path), what: what.into(), why }
    }

    fn header(&self) -> Option<Finding> {
        (!self.text.starts_with("//!")).then(|| {
            self.finding(
                1,
                "the file does not begin with a `//!` header",
                "a file opens with what, how, invariant, cost, when not to use it",
            )
        })
    }

    fn columns(&self) -> Vec<Finding> {
        let wide = |(_, line): &(usize, &str)| line.chars().count() > COLUMNS_MAX;
        let report = |(index, line): (usize, &str)| {
            let what = format!("{} columns, ceiling {COLUMNS_MAX}", line.chars().count());
            self.finding(index + 1, what, "two files fit side by side")
        };
        self.text.lines().enumerate().filter(wide).map(report).collect()
    }

    fn unsafe_code(&self) -> Vec<Finding> {
        if self.views.code.contains(UNSAFE_STATED) {
            return Vec::new();
        }
        self.code_lines(|line| has_word(line, "unsafe").then_some("`unsafe`"))
            .map(|(line, what)| {
                let what =
                    format!("{what} without `{UNSAFE_STATED}, reason = \"…\")]` on the file");
                self.finding(line, what, "a file states why it needs unsafe code")
            })
            .collect()
    }

    fn unfinished(&self) -> Vec<Finding> {
        let word = |line: &str| {
            let found = |word: &str| line.contains(word);
            match () {
                () if found("todo!") => Some("`todo!`"),
                () if found("unimplemented!") => Some("`unimplemented!`"),
                () if found("#[ignore]") => Some("`#[ignore]` without a reason"),
                () if found("thread::sleep") => Some("`thread::sleep`"),
                () => None,
            }
        };
        let why =
            "unfinished work is an issue, a skipped test says why, and nothing waits by clock";
        self.code_lines(word).map(|(line, what)| self.finding(line, what, why)).collect()
    }

    fn comments(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, line) in self.views.comments.lines().enumerate() {
            if has_word(line, concat!("FIX", "ME")) {
                let what = concat!("a FIX", "ME");
                findings.push(self.finding(index + 1, what, "known faults are issues"));
            }
            if has_word(line, concat!("TO", "DO")) && !line.contains("issue ") {
                let what = concat!("a TO", "DO that names no issue");
                findings.push(self.finding(index + 1, what, "write `issue N` beside it"));
            }
        }
        findings
    }

    fn examples(&self) -> Vec<Finding> {
        let fence = |(index, line): (usize, &'a str)| {
            let line = line.trim_start();
            let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
            Some((index, text.trim().strip_prefix("```")?))
        };
        let fences = self.text.lines().enumerate().filter_map(fence);
        let is_rust = |(_, language): &(usize, &str)| matches!(*language, "" | "rust");
        let why = "no run of the tests reads examples in comments; write a test";
        let report = |(index, _)| self.finding(index + 1, "an example of Rust in a comment", why);
        // Every second fence ends a block.
        fences.step_by(2).filter(is_rust).map(report).collect()
    }

    fn names(&self) -> Vec<Finding> {
        let why = "a module is named after what it holds";
        let parts = self.path.trim_end_matches(".rs").split('/');
        let file = parts.filter(|part| is_empty_name(part)).map(|part| (1, part.to_string()));
        let lines = self.views.code.lines().enumerate();
        let inline = lines.filter_map(|(index, line)| {
            let name = module_name(line).filter(|name| is_empty_name(name))?;
            Some((index + 1, name.to_string()))
        });
        file.chain(inline)
            .map(|(line, name)| self.finding(line, format!("a module named `{name}`"), why))
            .collect()
    }

    /// Lines of code that `test` gives a name to.
    fn code_lines<'s>(
        &'s self,
        test: impl Fn(&str) -> Option<&'static str> + 's,
    ) -> impl Iterator<Item = (usize, &'static str)> + 's {
        let lines = self.views.code.lines().enumerate();
        lines.filter_map(move |(index, line)| test(line).map(|what| (index + 1, what)))
    }
}

/// Whether one of the words of a name is on the list; `manager_of_slots` has three words.
fn is_empty_name(name: &str) -> bool {
    name.split('_').any(|word| EMPTY_NAMES.contains(&word))
}

/// The name that a line such as `pub(crate) mod name;` declares.
fn module_name(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "mod")?;
    let plain = words[..at].iter().all(|word| word.starts_with("pub"));
    let name = words.get(at + 1)?.trim_end_matches([';', '{']);
    plain.then_some(name)
}

/// A function as the text shows it.
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// Every function with a body. Works on code with literals and comments blanked out.
fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let starts = code.match_indices("fn ").map(|(at, _)| at);
    starts
        .filter(|at| *at == 0 || !is_word(bytes[at - 1]))
        .filter_map(|at| function(code, at))
        .collect()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The function whose `fn` stands at `start`, unless it has no body.
fn function(code: &str, start: usize) -> Option<Function> {
    let name: String =
        code[start + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if name.is_empty() {
        return None;
    }
    let open = body_start(code, start)?;
    let close = matching_brace(code, open)?;
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    Some(Function { name, line: line(start), lines: line(close) - line(start) + 1 })
}

/// Where the body opens: the first `{` outside brackets, unless a `;` comes first.
fn body_start(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn matching_brace(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        let findings = Source::new(path, text).findings();
        findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
    }

    fn body(lines: usize) -> String {
        format!("//! Header.\nfn long(x: [u8; 4]) {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    /// Goal: a clean file has no findings. Method: a file that mentions every banned word in a
    /// string, where words are free.
    #[test]
    fn a_clean_file_passes() {
        let text = "//! Header.\nconst A: &str = \"unsafe todo!() thread::sleep #[ignore]\";\n\
                    #[ignore = \"needs a disk\"]\nfn f() {}\n";
        assert_eq!(whats("crates/x/src/clean.rs", text), Vec::<String>::new());
    }

    /// Goal: each rule on lines fires at its line. Method: one offence per text.
    #[test]
    fn each_offence_is_found_at_its_line() {
        let wide = format!("//! Header.\n// {}\n", "x".repeat(98));
        let cases = [
            ("fn f() {}\n", "crates/x/src/a.rs:1: the file does not begin"),
            (wide.as_str(), "crates/x/src/a.rs:2: 101 columns"),
            ("//! H.\n\nunsafe fn f() {}\n", "crates/x/src/a.rs:3: `unsafe` without"),
            ("//! H.\nfn f() { todo!() }\n", "crates/x/src/a.rs:2: `todo!`"),
            ("//! H.\nfn f() { unimplemented!() }\n", "crates/x/src/a.rs:2: `unimplemented!`"),
            ("//! H.\n#[ignore]\nfn f() {}\n", "crates/x/src/a.rs:2: `#[ignore]`"),
            ("//! H.\nfn f() { thread::sleep(t) }\n", "crates/x/src/a.rs:2: `thread::sleep`"),
            (
                "//! H.\n/// ```text\n/// ```\n/// ```\nfn f() {}\n",
                "crates/x/src/a.rs:4: an example of Rust",
            ),
            (concat!("//! H.\n// FIX", "ME: wrong\n"), "crates/x/src/a.rs:2: a FIX"),
            (concat!("//! H.\n// TO", "DO: later\n"), "crates/x/src/a.rs:2: a TO"),
            ("//! H.\npub(crate) mod io_util;\n", "crates/x/src/a.rs:2: a module named"),
        ];
        for (text, expected) in cases {
            let found = whats("crates/x/src/a.rs", text);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{text:?}: {found:?}");
        }
    }

    /// Goal: a stated reason admits `unsafe`, a named issue admits a note for later. Method: both.
    #[test]
    fn stated_exceptions_pass() {
        let text = concat!(
            "//! H.\n#![expect(unsafe_code, reason = \"mmap\")]\n// TO",
            "DO (issue 7): later.\nunsafe fn f() {}\n"
        );
        assert_eq!(whats("crates/x/src/a.rs", text), Vec::<String>::new());
    }

    /// Goal: names of files count as names of modules. Method: one good and two bad paths.
    #[test]
    fn paths_are_names() {
        assert_eq!(whats("crates/x/src/slot_manager.rs", "//! H.\n").len(), 1);
        assert_eq!(whats("crates/x/src/utils/mod.rs", "//! H.\n").len(), 1);
        assert_eq!(whats("crates/x/src/utility.rs", "//! H.\n").len(), 0);
    }

    /// Goal: functions are measured from signature to brace. Method: known lengths, a closure and
    /// a brace in a string inside, a trait method without body, and a function pointer.
    #[test]
    fn functions_are_measured() {
        let text = "//! H.\ntrait T { fn no_body(&self) -> [u8; 3]; }\n\
                    fn one(f: fn (u8) -> u8) { let a = \"}\"; }\n\
                    fn three<const N: usize>(x: [u8; N])\nwhere T: U {\n    (|| { x })() }\n";
        let measures = Source::new("a.rs", text).measures();
        let found: Vec<(String, usize)> =
            measures.into_iter().map(|m| (m.subject, m.lines)).collect();
        let expected = [("a.rs", 6), ("a.rs:one", 1), ("a.rs:three", 3)];
        assert_eq!(found, expected.map(|(name, lines)| (name.to_string(), lines)));
    }

    /// Goal: the ceilings are where style.md puts them. Method: just below and just above.
    #[test]
    fn ceilings_are_exact() {
        let over = |text: &str| {
            let measures = Source::new("a.rs", text).measures();
            measures.into_iter().filter(|m| m.lines > m.ceiling).count()
        };
        assert_eq!((over(&body(70)), over(&body(71))), (0, 1));
        assert_eq!((over(&"//! H.\n".repeat(800)), over(&"//! H.\n".repeat(801))), (0, 1));
    }
}
