//! Plain English, as far as a program can check it: banned words, openings, spelling, line lengths.
//!
//! ```text
//!   text.rs   comments, strings, names and Markdown as words with their lines
//!   rules.rs  the words that breach a rule
//! ```

mod rules;
mod text;

use crate::source;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use text::{Origin, Run};

/// Quotations and names of external things, one a line: `PATH | PHRASE | REASON`.
const ALLOWED: &str = "xtask/language.txt";
/// Longest line of a comment or of Markdown, in characters.
const COLUMNS_MAX: usize = 100;
/// Longest name of a test, in characters.
const TEST_NAME_MAX: usize = 50;
/// Breaches listed where a count is above its limit.
const LISTED_MAX: usize = 20;

/// A breach of a rule of language.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Breach {
    file: String,
    line: usize,
    rule: &'static str,
    phrase: String,
    /// In a comment of Rust source.
    is_comment: bool,
}

/// What a part of the repository holds: a crate, a layer of `folio`, the tests, the documents.
#[derive(Debug, Default)]
struct Part {
    comment_words: usize,
    /// Breaches of "actor" and of "tell" in comments.
    actors: usize,
    tells: usize,
    breaches: Vec<Breach>,
}

type Parts = BTreeMap<String, Part>;

/// An exception: a phrase, as the source's line has it, in files whose path begins so.
#[derive(Debug)]
struct Exception {
    path: String,
    phrase: String,
    is_used: bool,
}

/// Counts the breaches by rule and part, each count with the first of them.
///
/// # Errors
/// The list of exceptions is malformed or has an entry without a use.
pub(crate) fn counts(
    root: &Path,
    files: &[(String, String)],
) -> Result<crate::circles::Counts, String> {
    let mut out = crate::circles::Counts::new();
    for (name, part) in read(root, files)? {
        for breach in part.breaches {
            let key = format!("{} {name}", breach.rule);
            let (count, details) = out.entry(key).or_default();
            *count += 1;
            if details.len() < LISTED_MAX {
                details.push(shown(&breach));
            }
        }
    }
    Ok(out)
}

/// Prints the measured counts, and the breaches within the parts that begin with `name`.
pub(crate) fn main(root: &Path, files: &[(String, String)], name: Option<&str>) -> ExitCode {
    let parts = match read(root, files) {
        Ok(parts) => parts,
        Err(error) => {
            println!("language: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(name) = name {
        let chosen = parts.iter().filter(|(part, _)| part.starts_with(name));
        for breach in chosen.flat_map(|(_, part)| &part.breaches) {
            println!("{}", shown(breach));
        }
    }
    println!(
        "comment words, and per 1,000 of them: actors (goal < 1), tell (goal < 0.5); breaches"
    );
    let mut all = Part::default();
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, part) in &parts {
        println!("{}", row(name, part));
        all.comment_words += part.comment_words;
        all.actors += part.actors;
        all.tells += part.tells;
        all.breaches.extend(part.breaches.iter().cloned());
        for breach in &part.breaches {
            *rules.entry(breach.rule).or_default() += 1;
        }
    }
    println!("{}", row("all", &all));
    for (rule, count) in rules {
        println!("{count:>6} {rule}");
    }
    ExitCode::SUCCESS
}

fn row(name: &str, part: &Part) -> String {
    let per_thousand = |count: usize| count as f64 * 1000.0 / part.comment_words.max(1) as f64;
    format!(
        "{name:<24} {:>7} {:>6.2} {:>6.2} {:>6}",
        part.comment_words,
        per_thousand(part.actors),
        per_thousand(part.tells),
        part.breaches.len()
    )
}

fn shown(breach: &Breach) -> String {
    let Breach {
        file,
        line,
        rule,
        phrase,
        ..
    } = breach;
    format!("{file}:{line}: [{rule}] {phrase}")
}

fn read(root: &Path, files: &[(String, String)]) -> Result<Parts, String> {
    let path = root.join(ALLOWED);
    let list = std::fs::read_to_string(&path).map_err(|error| format!("{ALLOWED}: {error}"))?;
    let mut exceptions = parse_exceptions(&list)?;
    let mut out = Parts::new();
    for (file, text) in files {
        let part = out.entry(part_of(file)).or_default();
        let mut found = if file.ends_with(".md") {
            markdown_breaches(file, text)
        } else {
            rust_breaches(file, text, part)
        };
        let lines: Vec<&str> = text.lines().collect();
        found.retain(|breach| {
            let line = lines.get(breach.line - 1).copied().unwrap_or("");
            !is_excepted(&mut exceptions, breach, line)
        });
        let in_comments = |rule: &str| {
            let found = found.iter();
            found
                .filter(|breach| breach.is_comment && breach.rule == rule)
                .count()
        };
        part.actors += in_comments("actor");
        part.tells += in_comments("tell");
        part.breaches.extend(found);
    }
    match exceptions.iter().find(|exception| !exception.is_used) {
        Some(unused) => Err(format!(
            "{ALLOWED}: {} | {} is not needed",
            unused.path, unused.phrase
        )),
        None => Ok(out),
    }
}

/// The part of the repository to which a file belongs, as counts are kept.
fn part_of(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').collect();
    match parts.as_slice() {
        ["crates", "folio", "src", "fs", system, _, ..] => format!("folio/fs/{system}"),
        ["crates", "folio", "src", layer, _, ..] => format!("folio/{layer}"),
        ["crates", name, ..] => (*name).to_owned(),
        ["tests", name, _, ..] => format!("tests/{name}"),
        ["xtask" | "fuzz" | "contrib", ..] => parts[0].to_owned(),
        _ => "docs".to_owned(),
    }
}

fn rust_breaches(file: &str, text: &str, part: &mut Part) -> Vec<Breach> {
    let is_test = file.starts_with("tests/") || file.contains("/tests");
    let mut out = Vec::new();
    let breach = |line, rule, phrase: String| Breach {
        file: file.to_owned(),
        line,
        rule,
        phrase,
        is_comment: false,
    };
    for run in text::rust(text, is_test) {
        if run.origin == Origin::Comment {
            part.comment_words += count_words(&run);
        }
        let found = rules::words(&run).into_iter();
        out.extend(found.map(|(line, rule, phrase)| Breach {
            is_comment: run.origin == Origin::Comment,
            ..breach(line, rule, phrase)
        }));
    }
    let first = text.lines().next().unwrap_or("");
    if first.starts_with("//!") && rules::is_question(first) {
        out.push(breach(1, "opening", first.to_owned()));
    }
    for (line, len) in long_comments(text) {
        out.push(breach(line, "columns", format!("{len} columns")));
    }
    for (line, name) in source::test_names(&source::tokens(text)) {
        if name.len() > TEST_NAME_MAX {
            let phrase = format!("{name} has {} characters", name.len());
            out.push(breach(line, "test-name", phrase));
        }
    }
    out
}

fn markdown_breaches(file: &str, text: &str) -> Vec<Breach> {
    let mut out = Vec::new();
    let breach = |line, rule, phrase: String| Breach {
        file: file.to_owned(),
        line,
        rule,
        phrase,
        is_comment: false,
    };
    for run in text::markdown(text) {
        let found = rules::words(&run);
        out.extend(
            found
                .into_iter()
                .map(|(line, rule, phrase)| breach(line, rule, phrase)),
        );
    }
    let first = text.lines().next().unwrap_or("");
    if rules::is_question(first) {
        out.push(breach(1, "opening", first.to_owned()));
    }
    let mut is_block = false;
    for (index, line) in text.lines().enumerate() {
        is_block ^= line.trim_start().starts_with("```");
        let is_free = is_block || line.trim_start().starts_with('|') || line.contains("](");
        if !is_free && is_long(line) {
            let phrase = format!("{} columns", line.chars().count());
            out.push(breach(index + 1, "columns", phrase));
        }
    }
    out
}

fn count_words(run: &Run) -> usize {
    let is_word = |word: &&text::Word| word.text != text::STOP;
    run.words.iter().filter(is_word).count()
}

/// Lines with a comment that are too long, with their lengths. Code blocks, tables and links may
/// be longer.
fn long_comments(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = Vec::new();
    let mut is_block = false;
    for piece in source::pieces(text) {
        if piece.kind != source::Kind::Comment {
            continue;
        }
        for (index, inside) in piece.text.lines().enumerate() {
            let inside = inside.trim_start_matches(['/', '!', '*', ' ']);
            is_block ^= inside.starts_with("```");
            let line = lines.get(piece.line - 1 + index).copied().unwrap_or("");
            if !is_block && !inside.starts_with('|') && is_long(line) {
                out.push((piece.line + index, line.chars().count()));
            }
        }
    }
    out
}

fn is_long(line: &str) -> bool {
    !line.contains("://") && line.chars().count() > COLUMNS_MAX
}

fn is_excepted(exceptions: &mut [Exception], breach: &Breach, line: &str) -> bool {
    let line = line.to_lowercase();
    let mut is_found = false;
    for exception in exceptions {
        let is_phrase = exception.phrase == "*" || line.contains(&exception.phrase);
        if breach.file.starts_with(&exception.path) && is_phrase {
            exception.is_used = true;
            is_found = true;
        }
    }
    is_found
}

fn parse_exceptions(text: &str) -> Result<Vec<Exception>, String> {
    let entries = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    entries
        .map(
            |line| match line.split(" | ").collect::<Vec<_>>().as_slice() {
                [path, phrase, reason] if !reason.trim().is_empty() => Ok(Exception {
                    path: path.trim().to_owned(),
                    phrase: phrase.trim().to_lowercase(),
                    is_used: false,
                }),
                _ => Err(format!(
                    "{ALLOWED}: {line}: expected PATH | PHRASE | REASON"
                )),
            },
        )
        .collect()
}

#[cfg(test)]
mod tests;
