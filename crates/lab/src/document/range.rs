//! The least and the greatest of figures that stand in text, over the seeds.
//!
//! How: each text is cut at its semicolons, and those pieces into words and numbers. As long as all
//! have the same words, each number becomes its least and its greatest, as they were printed; of
//! the first piece with other words, and what follows it, each seed's is given.
//! Invariant: what is given has no number that no seed printed. Cost: linear in the text.
//! Not for: figures that are known as numbers; see `Claim`.

/// Different texts that are given at most.
const TEXTS_MAX: usize = 5;

/// Between two pieces of a text.
const BREAK: &str = "; ";

/// What `texts`, one of each seed, have in common, and where each number lies. A range is written
/// `2..5`; a dash is a figure that a seed does not have.
pub(super) fn of(texts: &[&str]) -> String {
    let mut rests: Vec<Option<&str>> = texts.iter().map(|text| Some(*text)).collect();
    let mut pieces: Vec<String> = Vec::new();
    while rests.iter().any(Option::is_some) {
        let heads: Option<Vec<(&str, Option<&str>)>> =
            rests.iter().map(|rest| cut(*rest)).collect();
        let texts = heads.iter().flatten().map(|(head, _)| *head).collect::<Vec<_>>();
        match heads.and_then(|heads| Some((alike(&texts)?, heads))) {
            Some((piece, heads)) => {
                pieces.push(piece);
                rests = heads.into_iter().map(|(_, rest)| rest).collect();
            }
            None => {
                pieces.push(different(rests.iter().map(|rest| rest.unwrap_or("no more"))));
                break;
            }
        }
    }
    pieces.join(BREAK)
}

/// The first piece of a text and what follows it.
fn cut(text: Option<&str>) -> Option<(&str, Option<&str>)> {
    let text = text?;
    Some(text.split_once(BREAK).map_or((text, None), |(head, rest)| (head, Some(rest))))
}

/// The texts as one with ranges, where all have the same words.
fn alike(texts: &[&str]) -> Option<String> {
    let all: Vec<Vec<Part<'_>>> = texts.iter().map(|text| parts(text)).collect();
    let first = all.first()?;
    let same = |(one, other): (&Part<'_>, &Part<'_>)| match (one, other) {
        (Part::Word(one), Part::Word(other)) => one == other,
        (Part::Number(..), Part::Number(..)) => true,
        _ => false,
    };
    let is_like_first =
        |one: &Vec<Part<'_>>| one.len() == first.len() && one.iter().zip(first).all(same);
    let cell = |place: usize| match first[place] {
        Part::Word(word) => word.to_owned(),
        Part::Number(..) => range(all.iter().map(|parts| parts[place])),
    };
    all.iter().all(is_like_first).then(|| (0..first.len()).map(cell).collect())
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part<'a> {
    Word(&'a str),
    /// As it is printed, and what it is; none for a dash.
    Number(&'a str, Option<f64>),
}

/// The least and the greatest that are numbers, once where they are the same.
fn range<'a>(parts: impl Iterator<Item = Part<'a>>) -> String {
    let numbers = parts.filter_map(|part| match part {
        Part::Number(text, Some(value)) => Some((text, value)),
        _ => None,
    });
    let ends = numbers.fold(None, |ends: Option<[(&str, f64); 2]>, one| {
        let [least, greatest] = ends.unwrap_or([one, one]);
        let least = if one.1 < least.1 { one } else { least };
        Some([least, if one.1 > greatest.1 { one } else { greatest }])
    });
    match ends {
        None => "–".to_owned(),
        Some([(least, low), (_, high)]) if low >= high => least.to_owned(),
        Some([(least, _), (greatest, _)]) => format!("{least}..{greatest}"),
    }
}

/// Texts whose words differ: each once.
fn different<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut each: Vec<&str> = texts.collect();
    each.sort_unstable();
    each.dedup();
    let more = each.len().saturating_sub(TEXTS_MAX);
    each.truncate(TEXTS_MAX);
    let more = if more > 0 { format!(" | and {more} others") } else { String::new() };
    each.join(" | ") + &more
}

/// Cuts a text before and behind each number. A sign belongs to one unless a letter, a digit or a
/// point stands before it; digits that a letter stands before, as in `p99`, are a word.
fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut parts, mut from, mut at, mut before) = (Vec::new(), 0, 0, ' ');
    while let Some(next) = text[at..].chars().next() {
        let length = match before.is_alphanumeric() || before == '.' {
            true => 0,
            false => number(&text[at..]),
        };
        if length == 0 {
            before = next;
            at += next.len_utf8();
            continue;
        }
        if from < at {
            parts.push(Part::Word(&text[from..at]));
        }
        let printed = &text[at..at + length];
        parts.push(Part::Number(printed, printed.replace('−', "-").parse().ok()));
        (at, from, before) = (at + length, at + length, '0');
    }
    if from < text.len() {
        parts.push(Part::Word(&text[from..]));
    }
    parts
}

/// Bytes of the number, or of the dash for one, that `text` begins with.
fn number(text: &str) -> usize {
    if let Some(rest) = text.strip_prefix('–') {
        return text.len() - rest.len();
    }
    let digits = text.strip_prefix(['+', '-', '−']).unwrap_or(text);
    let whole = digits.len() - digits.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if whole == 0 {
        return 0;
    }
    let rest = &digits[whole..];
    let point = rest.strip_prefix('.').unwrap_or_default();
    let part = point.len() - point.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let sign = text.len() - digits.len();
    sign + whole + if part > 0 { 1 + part } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each number of a text has its least and greatest, signs and dashes minded, and words
    /// stay. Method: texts as measurements have them.
    #[test]
    fn numbers_have_ranges() {
        for (texts, expected) in [
            (vec!["64.9 times", "60.1 times", "70 times"], "60.1..70 times"),
            (vec!["in 4: -1.5 %, +2 %", "in 4: -3.5 %, -1 %"], "in 4: -3.5..-1.5 %, -1..+2 %"),
            (
                vec!["p99 − p1: 6.11x (171)", "p99 − p1: 6.2x (170)"],
                "p99 − p1: 6.11..6.2x (170..171)",
            ),
            (vec!["– %", "2 %", "5 %"], "2..5 %"),
            (vec!["–", "–"], "–"),
            (vec!["10.", "9."], "9..10."),
            (vec!["slow", "slow"], "slow"),
            (vec!["3 of 12", "2 of 12; not on a"], "2..3 of 12; no more | not on a"),
            (vec!["3; on a; 4", "2; on b; 5"], "2..3; on a; 4 | on b; 5"),
            (vec!["1; 2", "3; 1"], "1..3; 1..2"),
            (vec![], ""),
        ] {
            assert_eq!(of(&texts), expected);
        }
        let many: Vec<String> = (0..9).map(|at| "x".repeat(at)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(of(&many).ends_with("| and 4 others"), "{}", of(&many));
    }

    /// Goal: any text comes back whole from its parts, and no cut is within a character. Method:
    /// texts drawn from characters that decide.
    #[test]
    fn parts_are_the_text() {
        let characters: Vec<char> = "09.+-−–a µ:%(".chars().collect();
        for seed in 0..2000 {
            let mut rng = layby_types::Rng::new(seed);
            let draw = |_| characters[rng.below(characters.len() as u64) as usize];
            let text: String = (0..12).map(draw).collect();
            let whole: String = parts(&text)
                .iter()
                .map(|part| match part {
                    Part::Word(text) | Part::Number(text, _) => *text,
                })
                .collect();
            assert_eq!(whole, text, "SEED={seed}");
            let alike = |part: &Part<'_>| !matches!(part, Part::Number(text, None) if *text != "–");
            assert!(parts(&text).iter().all(alike), "SEED={seed}: {text}");
        }
    }
}
