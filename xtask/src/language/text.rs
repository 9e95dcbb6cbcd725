//! The words of a file: its comments, user-visible strings, names and Markdown, line by line.

use crate::source::{self, Kind};
use std::collections::BTreeSet;

/// In place of a span of code, so that what surrounds it still reads as a sentence.
pub(crate) const CODE: &str = "`";
/// In place of the end of a sentence.
pub(crate) const STOP: &str = ".";

/// A word in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// The origin of a run of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Comment,
    /// A string outside of tests.
    String,
    /// An identifier.
    Name,
    Markdown,
}

/// Words that follow one another: a comment's lines, a string, a name, a Markdown paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) origin: Origin,
    pub(crate) words: Vec<Word>,
}

/// Reads a Rust file. Strings of tests are left out where `is_test` holds or a test module is
/// around them; each name is taken once.
pub(crate) fn rust(source: &str, is_test: bool) -> Vec<Run> {
    let tests = source::test_lines(source);
    let in_test = |line| is_test || tests.iter().any(|lines| lines.contains(&line));
    let (mut out, mut names) = (Vec::new(), BTreeSet::new());
    let mut comment = Prose::default();
    let mut last = 0;
    for piece in source::pieces(source) {
        if piece.kind == Kind::Comment {
            if piece.line != last + 1 {
                // A fence that is left open ends with its comment.
                comment.fence = None;
                out.push(comment.finish(Origin::Comment));
            }
            for (index, line) in piece.text.lines().enumerate() {
                comment.line(piece.line + index, strip_marker(line));
                last = piece.line + index;
            }
            continue;
        }
        match piece.kind {
            Kind::String if !in_test(piece.line) && !piece.text.starts_with('b') => {
                let mut string = Prose::default();
                for (index, line) in unescape(piece.text).split('\u{1}').enumerate() {
                    string.line(piece.line + index, line);
                }
                out.push(string.finish(Origin::String));
            }
            Kind::Token if source::is_identifier(piece.text) && names.insert(piece.text) => {
                let words = name_words(piece.text).map(|text| Word {
                    line: piece.line,
                    text,
                });
                out.push(Run {
                    origin: Origin::Name,
                    words: words.collect(),
                });
            }
            _ => {}
        }
    }
    out.push(comment.finish(Origin::Comment));
    out.retain(|run| !run.words.is_empty());
    out
}

/// Reads a Markdown file; code blocks are left out.
pub(crate) fn markdown(text: &str) -> Vec<Run> {
    let mut out = Vec::new();
    let mut prose = Prose::default();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            out.push(prose.finish(Origin::Markdown));
        }
        prose.line(index + 1, line);
    }
    out.push(prose.finish(Origin::Markdown));
    out.retain(|run| !run.words.is_empty());
    out
}

/// A fenced block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fence {
    /// A drawing, fenced as `text`: its words are prose.
    Drawing,
    /// Source or commands, which are not prose.
    Code,
}

/// Splits lines into words; keeps count of code spans and fenced blocks.
#[derive(Default)]
struct Prose {
    words: Vec<Word>,
    is_code: bool,
    /// The block that the last fence opened, until the next fence closes it.
    fence: Option<Fence>,
}

impl Prose {
    /// Returns the words so far. A code span does not go beyond its paragraph; a block does.
    fn finish(&mut self, origin: Origin) -> Run {
        self.is_code = false;
        let words = std::mem::take(&mut self.words);
        Run { origin, words }
    }

    fn line(&mut self, line: usize, text: &str) {
        let trimmed = text.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            self.fence = match self.fence {
                Some(_) => None,
                None if language.trim_end() == "text" => Some(Fence::Drawing),
                None => Some(Fence::Code),
            };
            self.is_code = false;
            return;
        }
        if self.fence == Some(Fence::Code) {
            return;
        }
        for (index, part) in text.split('`').enumerate() {
            if index > 0 {
                self.is_code = !self.is_code;
            }
            if self.is_code {
                self.push(line, CODE);
            } else {
                self.plain(line, part);
            }
        }
    }

    fn plain(&mut self, line: usize, text: &str) {
        for chunk in text.split_whitespace() {
            if chunk.contains("://") {
                continue;
            }
            let is_end = chunk.ends_with(['.', ':', ';', '!', '?']);
            let is_word = |character: char| {
                character.is_alphanumeric() || matches!(character, '\'' | '_' | '-')
            };
            for word in chunk.split(|character| !is_word(character)) {
                let word = word.trim_matches(['\'', '-']);
                let word = word.strip_suffix("'s").unwrap_or(word);
                if !word.is_empty() {
                    self.push(line, &word.to_lowercase());
                }
            }
            if is_end {
                self.push(line, STOP);
            }
        }
    }

    fn push(&mut self, line: usize, text: &str) {
        let text = text.to_owned();
        self.words.push(Word { line, text });
    }
}

/// A comment's line without its slashes or stars.
fn strip_marker(line: &str) -> &str {
    let line = line.trim_start();
    let line = line.trim_start_matches('/');
    line.trim_start_matches(['!', '*'])
}

/// A string's text: escapes become blanks, placeholders code, and `\u{1}` marks each new line of
/// the source.
fn unescape(literal: &str) -> String {
    let mut out = String::new();
    let body = literal.split_once('"').map_or(literal, |(_, body)| body);
    let mut characters = body.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('\n') => out.push('\u{1}'),
                _ => out.push(' '),
            },
            '\n' => out.push('\u{1}'),
            '{' if characters.peek() != Some(&'{') => {
                let inside = characters.by_ref().take_while(|&inner| inner != '}');
                let lines = inside.filter(|&inner| inner == '\n').count();
                out.push_str("`x`");
                out.extend(std::iter::repeat_n('\u{1}', lines));
            }
            other => out.push(other),
        }
    }
    out
}

/// The words of a name: `let_go`, `LetGo` and `LET_GO` are `let` and `go`.
fn name_words(name: &str) -> impl Iterator<Item = String> {
    let is_constant = !name.bytes().any(|byte| byte.is_ascii_lowercase());
    let mut spaced = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !is_constant {
            spaced.push('_');
        }
        spaced.push(character.to_ascii_lowercase());
    }
    let words: Vec<String> = spaced
        .split('_')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    words.into_iter()
}
