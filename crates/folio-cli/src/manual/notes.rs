//! The text below the options of a help text: headings, paragraphs, and lines of two columns.
//!
//! Commands contain it as plain text. A line at the margin is a heading (alone, with a final colon)
//! or part of a paragraph. An indented line is an example or a term. Two spaces separate the term
//! from its remark, and further lines of the remark are indented more.

use crate::output::color::{HEADING, paint};
use clap::Command;

/// Maximum width of help texts, in columns.
pub(crate) const WIDTH_MAX: usize = 100;
/// Shorter paragraphs that end in a colon are headings of the lines below them.
const TITLE_LEN_MAX: usize = 40;
/// Minimum width of a remark beside its term; a narrower remark goes below the term.
const REMARK_WIDTH_MIN: usize = 26;

/// A part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// A heading, without its colon.
    Heading(String),
    Paragraph(String),
    /// Adjacent lines of terms.
    Lines(Vec<Line>),
    /// An empty line.
    Gap,
}

/// An example or a term, and its remark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) indent: usize,
    pub(crate) term: String,
    pub(crate) remark: String,
    /// The column of the remark; 0 if there is none.
    column: usize,
}

impl Line {
    fn read(line: &str) -> Self {
        let term = line.trim_start();
        let indent = line.len() - term.len();
        match term.split_once("  ") {
            Some((term, rest)) => Self {
                indent,
                term: term.to_owned(),
                remark: rest.trim().to_owned(),
                column: line.len() - rest.trim_start().len(),
            },
            None => Self {
                indent,
                term: term.to_owned(),
                remark: String::new(),
                column: 0,
            },
        }
    }

    /// Appends `line` if it continues the remark; returns false if it does not.
    fn continues(&mut self, line: &str) -> bool {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        let is_below = if self.column > 0 {
            indent == self.column
        } else {
            indent >= self.indent + 8
        };
        if is_below {
            if !self.remark.is_empty() {
                self.remark.push(' ');
            }
            self.remark.push_str(text);
            self.column = indent;
        }
        is_below
    }
}

/// Splits a text into its parts.
pub(crate) fn parts(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for line in text.trim_end().lines() {
        match (parts.last_mut(), line.starts_with(' ')) {
            _ if line.trim().is_empty() => parts.push(Part::Gap),
            (Some(Part::Lines(lines)), true) => {
                if !lines.last_mut().is_some_and(|last| last.continues(line)) {
                    lines.push(Line::read(line));
                }
            }
            (Some(Part::Paragraph(text)), false) => {
                text.push(' ');
                text.push_str(line);
            }
            (_, true) => parts.push(Part::Lines(vec![Line::read(line)])),
            (_, false) => parts.push(Part::Paragraph(line.to_owned())),
        }
    }
    for at in 1..parts.len() {
        if let (Part::Paragraph(text), Part::Lines(_)) = (&parts[at - 1], &parts[at])
            && let Some(title) = text
                .strip_suffix(':')
                .filter(|title| title.len() < TITLE_LEN_MAX)
        {
            parts[at - 1] = Part::Heading(title.to_owned());
        }
    }
    parts
}

/// Formats the text for a terminal of `width` columns.
pub(crate) fn shaped(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut follows_lines = false;
    for part in parts(text) {
        if follows_lines && part != Part::Gap {
            out.push('\n');
        }
        match &part {
            Part::Heading(title) => {
                out.push_str(&paint(true, HEADING, format_args!("{title}:")));
                out.push('\n');
            }
            Part::Paragraph(text) => wrap(&mut out, text, 0, width),
            Part::Lines(lines) => columns(&mut out, lines, width),
            Part::Gap => out.push('\n'),
        }
        follows_lines = matches!(part, Part::Lines(_));
    }
    out.truncate(out.trim_end().len());
    out
}

fn columns(out: &mut String, lines: &[Line], width: usize) {
    for line in lines {
        let end = line.indent + line.term.chars().count();
        out.push_str(&" ".repeat(line.indent));
        out.push_str(&line.term);
        if line.remark.is_empty() {
            out.push('\n');
            continue;
        }
        let remark_len = line.remark.chars().count();
        let fits = line.column + remark_len <= width || line.column + REMARK_WIDTH_MIN <= width;
        let column = if line.column > end && fits {
            out.push_str(&" ".repeat(line.column - end));
            line.column
        } else {
            out.push('\n');
            let column = line.indent + 4;
            out.push_str(&" ".repeat(column));
            column
        };
        wrap(out, &line.remark, column, width);
    }
}

/// Appends words, the first at the end of the text; further lines start at `column`.
pub(crate) fn wrap(out: &mut String, text: &str, column: usize, width: usize) {
    let mut at = column;
    for (index, word) in text.split_whitespace().enumerate() {
        let len = word.chars().count();
        if index > 0 && at + 1 + len > width {
            out.push('\n');
            out.push_str(&" ".repeat(column));
            at = column;
        } else if index > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += len;
    }
    out.push('\n');
}

/// Formats the texts of the command and all its subcommands for a terminal of `width` columns.
pub(crate) fn shape(command: Command, width: usize) -> Command {
    let text = command.get_after_help().map(ToString::to_string);
    let command = match text {
        Some(text) => command.after_help(shaped(&text, width)),
        None => command,
    };
    let names: Vec<_> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| shape(sub, width))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Examples:
  folio cp a b      one into
                    the other
  folio cp --with-many-options and places
                    below

Words of -o, of which there are many,
and these here:
  a     one
  b     two";

    #[test]
    fn text_is_split_into_parts() {
        let parts = parts(TEXT);
        let line = |term: &str, remark: &str, column| Line {
            indent: 2,
            term: term.to_owned(),
            remark: remark.to_owned(),
            column,
        };
        assert_eq!(
            parts,
            [
                Part::Heading("Examples".to_owned()),
                Part::Lines(vec![
                    line("folio cp a b", "one into the other", 20),
                    line("folio cp --with-many-options and places", "below", 20),
                ]),
                Part::Gap,
                Part::Paragraph("Words of -o, of which there are many, and these here:".to_owned()),
                Part::Lines(vec![line("a", "one", 8), line("b", "two", 8)]),
            ]
        );
    }

    #[test]
    fn text_wraps_to_terminal_width() {
        let wide = shaped(TEXT, 80);
        let wide = anstream::adapter::strip_str(&wide).to_string();
        assert_eq!(
            wide,
            "Examples:\n  folio cp a b      one into the other\n  folio cp --with-many-options and places\n      \
             below\n\nWords of -o, of which there are many, and these here:\n  a     one\n  b     two"
        );
        let narrow = shaped(TEXT, 30);
        let narrow = anstream::adapter::strip_str(&narrow).to_string();
        assert!(
            narrow.contains("  folio cp a b\n      one into the other\n"),
            "{narrow}"
        );
        assert!(
            narrow.contains("Words of -o, of which there\nare many, and these here:\n"),
            "{narrow}"
        );
    }
}
