//! A line of `folio shell`.

use crate::exit::{Failure, Outcome};

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// The command and its arguments, without quotes.
    pub(super) words: Vec<String>,
    /// The rest from the first unquoted `|`, `>` or `<` on, for the host's shell.
    pub(super) tail: &'a str,
}

impl<'a> Line<'a> {
    /// Parses a line with the quotes of sh(1); `#` starts a comment.
    ///
    /// # Errors
    ///
    /// A quote without an end.
    pub(super) fn parse(text: &'a str) -> Outcome<Self> {
        let (head, tail) = text.split_at(tail_start(text));
        let words = shlex::split(head)
            .ok_or_else(|| Failure::usage(format!("{}: a quote has no end", text.trim())))?;
        if words.is_empty() && !tail.is_empty() {
            return Err(Failure::usage(format!(
                "{}: expected a command before it",
                tail.trim()
            )));
        }
        Ok(Self { words, tail })
    }
}

/// Returns the offset of the first unquoted `|`, `>` or `<`.
fn tail_start(text: &str) -> usize {
    let mut quote = None;
    let mut is_escaped = false;
    let mut before = ' ';
    for (at, char) in text.char_indices() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match (quote, char) {
            (None, '#') if before.is_whitespace() => break,
            (None | Some('"'), '\\') => is_escaped = true,
            (None, '\'' | '"') => quote = Some(char),
            (Some(open), _) if open == char => quote = None,
            (None, '|' | '>' | '<') => return at,
            _ => {}
        }
        before = char;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> (Vec<String>, String) {
        let line = Line::parse(text).unwrap_or_else(|failure| panic!("{}", failure.message));
        (line.words, line.tail.to_owned())
    }

    #[test]
    fn words_and_tail_are_split() {
        let cases = [
            ("", vec![], ""),
            ("ls -l etc", vec!["ls", "-l", "etc"], ""),
            (
                "cat 'a b' \"c|d\" e\\>f",
                vec!["cat", "a b", "c|d", "e>f"],
                "",
            ),
            ("cat x | grep y > z", vec!["cat", "x"], "| grep y > z"),
            ("write f <in", vec!["write", "f"], "<in"),
            ("ls # a | b", vec!["ls"], ""),
            ("ls a#b|c", vec!["ls", "a#b"], "|c"),
        ];
        for (text, words, tail) in cases {
            let words = words.into_iter().map(str::to_owned).collect();
            assert_eq!(line(text), (words, tail.to_owned()), "{text}");
        }
    }

    #[test]
    fn open_quotes_and_missing_commands_fail() {
        for text in ["cat 'a", "cat \"a", "| sort"] {
            assert!(Line::parse(text).is_err(), "{text}");
        }
    }
}
