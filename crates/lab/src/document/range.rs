//! The median, the least and the greatest of figures that stand in text, over the seeds.
//!
//! How: each text is cut at its semicolons, and those pieces into words and numbers. As long as all
//! have the same words, each number becomes its median, and its least and its greatest, as they
//! were printed; of the first piece with other words, and what follows it, each seed's is given.
//! Invariant: a median lies within its range, and a range has no number that no seed printed.
//! Cost: linear in the text.
//! Not for: figures that are known as numbers; see `Claim`.

/// Different texts that are given at most.
const TEXTS_MAX: usize = 5;

/// Between two pieces of a text.
const BREAK: &str = "; ";

/// What several texts say together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Both {
    /// The text with medians, and each seed's from where they differ in words.
    pub(super) median: String,
    /// The text with ranges, up to where they differ in words.
    pub(super) range: String,
}

/// What `texts`, one of each seed, have in common, and where each number lies. A range is written
/// `2..5`; a dash is a figure that a seed does not have.
pub(super) fn of(texts: &[&str]) -> Both {
    let mut rests: Vec<Option<&str>> = texts.iter().map(|text| Some(*text)).collect();
    let (mut medians, mut ranges): (Vec<String>, Vec<String>) = Default::default();
    while rests.iter().any(Option::is_some) {
        let heads: Option<Vec<(&str, Option<&str>)>> =
            rests.iter().map(|rest| cut(*rest)).collect();
        let texts = heads.iter().flatten().map(|(head, _)| *head).collect::<Vec<_>>();
        match heads.and_then(|heads| Some((alike(&texts)?, heads))) {
            Some((both, heads)) => {
                medians.push(both.median);
                ranges.push(both.range);
                rests = heads.into_iter().map(|(_, rest)| rest).collect();
            }
            None => {
                medians.push(different(rests.iter().map(|rest| rest.unwrap_or("no more"))));
                break;
            }
        }
    }
    Both { median: medians.join(BREAK), range: ranges.join(BREAK) }
}

/// The first piece of a text and what follows it.
fn cut(text: Option<&str>) -> Option<(&str, Option<&str>)> {
    let text = text?;
    Some(text.split_once(BREAK).map_or((text, None), |(head, rest)| (head, Some(rest))))
}

/// The texts as one with medians, and as one with ranges, where all have the same words.
fn alike(texts: &[&str]) -> Option<Both> {
    let all: Vec<Vec<Part<'_>>> = texts.iter().map(|text| parts(text)).collect();
    let first = all.first()?;
    let same = |(one, other): (&Part<'_>, &Part<'_>)| match (one, other) {
        (Part::Word(one), Part::Word(other)) => one == other,
        (Part::Number(..), Part::Number(..)) => true,
        _ => false,
    };
    let is_like_first =
        |one: &Vec<Part<'_>>| one.len() == first.len() && one.iter().zip(first).all(same);
    if !all.iter().all(is_like_first) {
        return None;
    }
    let mut both = Both::default();
    for (place, part) in first.iter().enumerate() {
        let of = all.iter().map(|parts| parts[place]);
        let (median, range) = match part {
            Part::Word(word) => ((*word).to_owned(), (*word).to_owned()),
            Part::Number(..) => (median(of.clone()), range(of)),
        };
        both.median += &median;
        both.range += &range;
    }
    Some(both)
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part<'a> {
    Word(&'a str),
    /// As it is printed, and what it is; none for a dash.
    Number(&'a str, Option<f64>),
}

/// The median with the digits of those printed, and one more where it lies between them; a dash
/// where it is no number.
fn median<'a>(parts: impl Iterator<Item = Part<'a>> + Clone) -> String {
    let numbers = parts.filter_map(|part| match part {
        Part::Number(text, value) => Some((text, value.unwrap_or(f64::NAN))),
        Part::Word(_) => None,
    });
    let middle = super::median(numbers.clone().map(|(_, value)| value));
    if !middle.is_finite() {
        return "–".to_owned();
    }
    if let Some((text, _)) = numbers.clone().find(|(_, value)| *value == middle) {
        return text.to_owned();
    }
    let of = |text: &str| text.split_once('.').map_or(0, |(_, part)| part.len());
    let digits = numbers.clone().map(|(text, _)| of(text)).max().unwrap_or_default();
    let unit = 10f64.powi(digits as i32);
    let is_between = (middle * unit - (middle * unit).round()).abs() > 0.1;
    let digits = digits + usize::from(is_between);
    let is_signed = numbers.clone().any(|(text, _)| text.starts_with('+'));
    if is_signed { format!("{middle:+.digits$}") } else { format!("{middle:.digits$}") }
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
/// point stands before it; digits that a letter stands before, as in `p99` and `FIU-1`, are a word,
/// and so is what stands in quotes.
fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut parts, mut from, mut at, mut before) = (Vec::new(), 0, 0, ' ');
    let mut is_quoted = false;
    while let Some(next) = text[at..].chars().next() {
        is_quoted = next == '“' || is_quoted && next != '”';
        let length = match is_quoted || before.is_alphanumeric() || before == '.' {
            true => 0,
            false => number(&text[at..]),
        };
        if length == 0 {
            let is_hyphen = next == '-' && before.is_alphabetic();
            before = if is_hyphen { before } else { next };
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

    /// Goal: each number of a text has its median, least and greatest, signs and dashes minded, and
    /// words stay. Method: texts as measurements have them.
    #[test]
    fn numbers_have_ranges() {
        for (texts, median, range) in [
            (vec!["64.9 times", "60.1 times", "70 times"], "64.9 times", "60.1..70 times"),
            (
                vec!["in 4: -1.5 %, +2 %", "in 4: -3.5 %, -1 %"],
                "in 4: -2.5 %, +0.5 %",
                "in 4: -3.5..-1.5 %, -1..+2 %",
            ),
            (
                vec!["p99 − p1: 6.11x (171)", "p99 − p1: 6.2x (170)"],
                "p99 − p1: 6.155x (170.5)",
                "p99 − p1: 6.11..6.2x (170..171)",
            ),
            (vec!["-30.6 %", "-30.9 %"], "-30.75 %", "-30.9..-30.6 %"),
            (vec!["3 of 12", "5 of 12"], "4 of 12", "3..5 of 12"),
            (vec!["– %", "2 %", "5 %"], "5 %", "2..5 %"),
            (vec!["–", "–"], "–", "–"),
            (vec!["10.", "9."], "9.5.", "9..10."),
            (vec!["slow", "slow"], "slow", "slow"),
            (vec!["3 of 12", "2 of 12; not on a"], "2.5 of 12; no more | not on a", "2..3 of 12"),
            (vec!["3; on a; 4", "2; on b; 5"], "2.5; on a; 4 | on b; 5", "2..3"),
            (vec!["1; on FIU-1 2", "3; on FIU-2 4"], "2; on FIU-1 2 | on FIU-2 4", "1..3"),
            (vec!["1; “50 ms”", "3; “80 ms”"], "2; “50 ms” | “80 ms”", "1..3"),
            (vec!["1; 2", "3; 1"], "2; 1.5", "1..3; 1..2"),
            (vec![], "", ""),
        ] {
            let both = of(&texts);
            assert_eq!((both.median.as_str(), both.range.as_str()), (median, range));
        }
        let many: Vec<String> = (0..9).map(|at| "x".repeat(at)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let found = of(&many).median;
        assert!(found.ends_with("| and 4 others"), "{found}");
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
