//! Arguments without a name: anonymous tuples as parameters, matches on tuples of booleans, and
//! calls with two literal booleans.
//!
//! A tuple in a signature hides a type that the reader needs; `f(true, false)` hides two. Counted
//! by crate, in tests too.

use crate::circles::Counts;
use crate::source::{self, Token};

/// The rules and what each finds.
const RULES: [(&str, fn(&[Token]) -> Vec<Place>); 3] = [
    ("tuple-parameters", tuple_parameters),
    ("boolean-matches", boolean_matches),
    ("boolean-calls", boolean_calls),
];
/// Words before a parenthesis that call nothing.
const KEYWORDS: [&str; 8] = ["if", "match", "while", "for", "in", "return", "fn", "let"];

/// A breach: its line, and the function that has it or is called.
type Place = (usize, String);

/// Counts the breaches of each rule in each crate.
pub(crate) fn counts(files: &[(String, String)]) -> Counts {
    let mut counts = Counts::new();
    for (file, text) in files {
        let tokens = source::tokens(text);
        for (rule, find) in RULES {
            for (line, name) in find(&tokens) {
                let (count, details) = counts.entry(format!("{rule} {}", part(file))).or_default();
                *count += 1;
                details.push(format!("{file}:{line}: {name}"));
            }
        }
    }
    counts
}

/// Returns the part of the repository that a file belongs to.
fn part(file: &str) -> &str {
    let inside = file.strip_prefix("crates/").unwrap_or(file);
    inside.split('/').next().unwrap_or(inside)
}

/// Functions with a parameter whose type is a tuple of two or more types, or a reference to one.
/// Each such parameter counts.
fn tuple_parameters(tokens: &[Token]) -> Vec<Place> {
    let mut out = Vec::new();
    for at in 0..tokens.len().saturating_sub(1) {
        let name = &tokens[at + 1];
        if tokens[at].text != "fn" || !source::is_identifier(&name.text) {
            continue;
        }
        let Some(open) = open_parenthesis(tokens, at + 2) else {
            continue;
        };
        for parameter in elements(tokens, open) {
            let kind = parameter
                .iter()
                .position(|token| token.text == ":")
                .map_or(&parameter[parameter.len()..], |at| &parameter[at + 1..]);
            let kind = referenced(kind);
            if kind.first().is_some_and(|token| token.text == "(") && elements(kind, 0).len() >= 2 {
                out.push((name.line, name.text.clone()));
            }
        }
    }
    out
}

/// Returns a type without the references to it. A lifetime is a token of its own, without quote.
fn referenced(kind: &[Token]) -> &[Token] {
    let text = |at: usize| kind.get(at).map(|token| token.text.as_str());
    match (text(0), text(1), text(2)) {
        (Some("&"), Some("mut"), _) => referenced(&kind[2..]),
        (Some("&"), Some(_), Some("mut")) => referenced(&kind[3..]),
        (Some("&"), Some(name), Some("(")) if source::is_identifier(name) => &kind[2..],
        (Some("&"), _, _) => referenced(&kind[1..]),
        _ => kind,
    }
}

/// Matches on a tuple with an arm that has two literal booleans.
fn boolean_matches(tokens: &[Token]) -> Vec<Place> {
    let mut out = Vec::new();
    for at in 0..tokens.len() {
        let is_match = tokens[at].text == "match";
        if !is_match || tokens.get(at + 1).is_none_or(|token| token.text != "(") {
            continue;
        }
        let open = close(tokens, at + 1) + 1;
        if tokens.get(open).is_none_or(|token| token.text != "{") {
            continue;
        }
        let end = close(tokens, open);
        if patterns(&tokens[..end], open + 1).any(|at| has_booleans(tokens, at)) {
            out.push((tokens[at].line, "match".to_owned()));
        }
    }
    out
}

/// Returns where the tuple patterns of the arms begin; `tokens` end with the last arm.
fn patterns(tokens: &[Token], mut at: usize) -> impl Iterator<Item = usize> {
    let mut found = Vec::new();
    let mut in_pattern = true;
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "(" if in_pattern => {
                found.push(at);
                at = close(tokens, at);
            }
            "(" | "[" | "{" => {
                let is_body = tokens[at].text == "{" && !in_pattern;
                at = close(tokens, at);
                // An arm with braces ends without a comma.
                in_pattern |= is_body;
            }
            "," => in_pattern = true,
            ">" if at > 0 && tokens[at - 1].text == "=" => in_pattern = false,
            _ => {}
        }
        at += 1;
    }
    found.into_iter()
}

/// Calls of functions and methods with two literal booleans.
fn boolean_calls(tokens: &[Token]) -> Vec<Place> {
    let mut out = Vec::new();
    for at in 1..tokens.len() {
        let name = &tokens[at - 1];
        let is_function = name
            .text
            .starts_with(|first: char| first.is_ascii_lowercase())
            && !KEYWORDS.contains(&name.text.as_str());
        let is_declared = at > 1 && tokens[at - 2].text == "fn";
        if tokens[at].text == "(" && is_function && !is_declared && has_booleans(tokens, at) {
            out.push((name.line, name.text.clone()));
        }
    }
    out
}

/// Whether two elements between the parentheses that open at `open` are literal booleans.
fn has_booleans(tokens: &[Token], open: usize) -> bool {
    let is_boolean = |element: &&[Token]| match element {
        [only] => matches!(only.text.as_str(), "true" | "false"),
        _ => false,
    };
    elements(tokens, open)
        .into_iter()
        .filter(is_boolean)
        .count()
        >= 2
}

/// Returns the parenthesis that opens the parameters of a function whose name ends before `at`.
fn open_parenthesis(tokens: &[Token], at: usize) -> Option<usize> {
    if tokens.get(at)?.text == "(" {
        return Some(at);
    }
    let after = (tokens[at].text == "<").then(|| close(tokens, at) + 1)?;
    (tokens.get(after)?.text == "(").then_some(after)
}

/// Returns the elements between the bracket at `open` and its end, split at commas.
fn elements(tokens: &[Token], open: usize) -> Vec<&[Token]> {
    let end = close(tokens, open);
    let mut out = Vec::new();
    let (mut at, mut start) = (open + 1, open + 1);
    while at < end {
        match tokens[at].text.as_str() {
            "(" | "[" | "{" => at = close(tokens, at),
            "<" if closes_before(tokens, at, end) => at = close(tokens, at),
            "," => {
                out.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if start < end {
        out.push(&tokens[start..end]);
    }
    out
}

/// Whether a `<` opens arguments of a type instead of comparing.
fn closes_before(tokens: &[Token], at: usize, end: usize) -> bool {
    close(tokens, at) < end
}

/// Returns the index of the bracket that closes the one at `open`, or of the last token.
fn close(tokens: &[Token], open: usize) -> usize {
    let is_type = tokens[open].text == "<";
    let mut depth = 0;
    for at in open..tokens.len() {
        let is_arrow = at > 0 && matches!(tokens[at - 1].text.as_str(), "-" | "=");
        depth += match tokens[at].text.as_str() {
            "(" | "[" | "{" => 1,
            ")" | "]" | "}" => -1,
            "<" if is_type => 1,
            ">" if is_type && !is_arrow => -1,
            _ => 0,
        };
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: usize, text: &str) -> Vec<Place> {
        RULES[rule].1(&source::tokens(text))
    }

    #[test]
    fn tuple_parameters_are_found() {
        let text = "fn a((x, y): (u32, u32)) {}\n\
            fn b<'s, T: Into<(u8, u8)>>(&self, n: u8,\n p: &'s mut (Vec<(u8, u8)>, T), q: (u8, T)) {}";
        let want = [(1, "a"), (2, "b"), (2, "b")];
        assert_eq!(
            found(0, text),
            want.map(|(line, name)| (line, name.to_owned()))
        );
    }

    #[test]
    fn other_parameters_are_not_tuples() {
        for text in [
            "fn a(x: u8, y: Vec<(u8, u8)>, f: impl Fn((u8, u8)) -> (u8, u8)) -> (u8, u8) {}",
            "fn a(one: (u8), none: (), list: &[(u8, u8)], f: fn(u8, u8)) {}",
            "fn a(Pair(x, y): Pair, z: Option<Box<dyn Fn(u8, u8) -> u8>>) {}",
            "fn a(f: &(dyn Fn(bool, u8) -> Result<u8, u8> + Sync)) { b((1, 2)) }",
            "let f: fn((u8, u8)); f(|(x, y): (u8, u8)| x)",
        ] {
            assert_eq!(found(0, text), [], "{text}");
        }
    }

    #[test]
    fn matches_on_two_booleans_are_found() {
        let text = "fn f() { match (a > b, c.d(1, 2)) {\n (true, _) => { x() }\n\
            (false, true) if e => match y { _ => 1 },\n _ => 2 } }";
        assert_eq!(found(1, text), [(1, "match".to_owned())]);
        for text in [
            "match (a, b) { (Some(c), true) => (true, false), (_, false) => d(true, false) }",
            "match (a, b) { (true, 0) => { f(true, true) } (false, n) => g }",
            "match a { true => (true, true), false => b }",
        ] {
            assert_eq!(found(1, text), [], "{text}");
        }
    }

    #[test]
    fn calls_with_two_booleans_are_found() {
        let text = "open(path, true, false);\nself.of(true,\n false, Links(1, 2))";
        let want = [(1, "open"), (2, "of")];
        assert_eq!(
            found(2, text),
            want.map(|(line, name)| (line, name.to_owned()))
        );
        for text in [
            "assert_eq!(a, true, false)",
            "Some((true, false))",
            "in (true, false)",
            "open(path, true, !false)",
            "pick(a < b, true, c > d)",
            "(a, b) = (true, true); Pair(true, true)",
        ] {
            assert_eq!(found(2, text), [], "{text}");
        }
    }

    #[test]
    fn breaches_count_by_crate() {
        let text = "fn a(x: (u8, u8)) { a(true, true) }".to_owned();
        let files = [
            "crates/folio/src/vfs/a.rs",
            "tests/cli/b.rs",
            "xtask/src/c.rs",
        ];
        let files = files.map(|file| (file.to_owned(), text.clone()));
        let keys: Vec<_> = counts(&files).into_keys().collect();
        let want = ["boolean-calls", "tuple-parameters"]
            .map(|rule| ["folio", "tests", "xtask"].map(|part| format!("{rule} {part}")));
        assert_eq!(keys, want.concat());
    }
}
