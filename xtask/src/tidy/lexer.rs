//! Splits Rust text into code and comments, so that a rule never trips over a word in a string.
//!
//! How: one pass over the characters; what does not belong to a view becomes a space, and line
//! ends stay, so that line and column of a finding are those of the file.
//! Invariant: both views have as many lines as the text. Cost: linear, two copies of the file.
//! Not for: macros that invent syntax of their own; it knows tokens, not grammar.

/// One file seen twice.
pub(crate) struct Views {
    /// Code alone: comments and the insides of literals are blank.
    pub(crate) code: String,
    /// Comments alone, documentation included.
    pub(crate) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits `text`.
pub(crate) fn views(text: &str) -> Views {
    let chars: Vec<char> = text.chars().collect();
    let mut views = Views { code: String::new(), comments: String::new() };
    let mut at = 0;
    while at < chars.len() {
        let (kind, length) = token(&chars, at);
        assert!(length > 0 && at + length <= chars.len(), "a token takes at least one character");
        for &c in &chars[at..at + length] {
            views.code.push(if kind == Kind::Code || c == '\n' { c } else { ' ' });
            views.comments.push(if kind == Kind::Comment || c == '\n' { c } else { ' ' });
        }
        at += length;
    }
    views
}

/// The kind and length of what begins at `at`.
fn token(chars: &[char], at: usize) -> (Kind, usize) {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => (Kind::Comment, line_length(&chars[at..])),
        '/' if next == Some('*') => (Kind::Comment, block_comment_length(&chars[at..])),
        '"' => (Kind::Literal, string_length(&chars[at..])),
        '\'' => char_or_lifetime(&chars[at..]),
        'r' if !inside_word(chars, at) => match raw_string_length(&chars[at..]) {
            Some(length) => (Kind::Literal, length),
            None => (Kind::Code, 1),
        },
        _ => (Kind::Code, 1),
    }
}

fn line_length(rest: &[char]) -> usize {
    rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())
}

fn block_comment_length(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match (rest[at], rest.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) if depth == 1 => return at + 2,
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

fn string_length(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A quote begins a character (`'x'`, `'\n'`) or a lifetime (`'static`).
fn char_or_lifetime(rest: &[char]) -> (Kind, usize) {
    if rest.get(1) == Some(&'\\') {
        let close = rest.iter().skip(3).position(|c| *c == '\'').map(|at| at + 4);
        return (Kind::Literal, close.unwrap_or(rest.len()));
    }
    if rest.get(2) == Some(&'\'') { (Kind::Literal, 3) } else { (Kind::Code, 1) }
}

/// Whether this `r` ends a longer word, where it cannot begin a raw string; `br"` may.
fn inside_word(chars: &[char], at: usize) -> bool {
    let word = |at: usize| chars[at].is_alphanumeric() || chars[at] == '_';
    let before = &chars[..at];
    match before {
        [] => false,
        [.., 'b' | 'c'] => at >= 2 && word(at - 2),
        _ => word(at - 1),
    }
}

fn raw_string_length(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().skip(1).take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let body = 2 + hashes;
    let closes = |at: usize| {
        rest[at] == '"'
            && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some((body..rest.len()).find(|at| closes(*at)).map_or(rest.len(), |at| at + 1 + hashes))
}

/// Whether `line` holds `word` with no letter, digit or underscore beside it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only code stays in the code view. Method: each literal and comment form once.
    #[test]
    fn literals_and_comments_leave_the_code() {
        let text = "let a = \"x // \\\" y\"; // tail\nlet b = r#\"q \" w\"#; /* in /* two */ */ c\n\
                    let d = '\"'; let e = '\\''; fn f<'a>(g: &'a str) {} br\"zz\" for_r\"k\"";
        let seen = views(text);
        for gone in ["x", "tail", " q ", " w", "two", "zz", " k"] {
            assert!(!seen.code.contains(gone), "{gone} is still in:\n{}", seen.code);
        }
        for kept in ["let a", "let b", " c", "let d", "let e", "fn f<'a>(g: &'a str) {}"] {
            assert!(seen.code.contains(kept), "{kept} is gone from:\n{}", seen.code);
        }
        assert!(seen.comments.contains("tail") && seen.comments.contains("two"));
        assert!(!seen.comments.contains("let"));
        assert_eq!(seen.code.lines().count(), text.lines().count());
    }

    /// Goal: a word is found whole only. Method: the word alone and as a part of another.
    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe {", "unsafe") && has_word("(unsafe)", "unsafe"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
    }
}
