//! Manual pages: the standard sections by `clap_mangen`, and the sections below the options from
//! the help text.

use super::notes::{Line, Part, parts};
use clap::{Arg, Command};
use clap_mangen::Man;
use std::fmt::Write;
use std::io;

/// The environment variables of the command, and their effects.
const ENVIRONMENT: [(&str, &str); 6] = [
    (
        "NO_COLOR",
        "If it is set and not empty, output has no colors unless --color requests them.",
    ),
    (
        "CLICOLOR_FORCE",
        "If it is set and not 0, output has colors even without a terminal, unless --color forbids them.",
    ),
    (
        "FOLIO_LOG",
        "Levels of the log by module, instead of -v: folio=debug,folio_fuse=info. Levels are error, warn, info, debug and trace.",
    ),
    (
        "SOURCE_DATE_EPOCH",
        "Seconds since 1970, used instead of the current time, so that two images of the same files are identical.",
    ),
    ("TZ", "The time zone for displayed times."),
    (
        "NOTIFY_SOCKET",
        "The socket of a service manager that folio mount and folio share notify when they are ready; see sd_notify(3).",
    ),
];

/// Returns the name of a page: the words of the command joined by dashes.
pub(crate) fn page_name(path: &[&str]) -> String {
    path.join("-")
}

/// Returns the page of `command` in a built tree. `path` are its words, `folio` first.
pub(crate) fn page(command: &Command, path: &[&str]) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let command_with_values = command.clone().mut_args(with_values).override_usage(usage);
    let man = Man::new(command_with_values)
        .title(page_name(path).to_uppercase())
        // The empty argument must be quoted, or the next one would be the date.
        .date("\"\"")
        .source(format!("folio {}", env!("CARGO_PKG_VERSION")))
        .manual("Folio");
    let text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let (rest_of_description, sections) = sections(&text);
    let mut page = standard(&man, |man, out| {
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        man.render_description_section(out)
    });
    page.push_str(&rest_of_description);
    page.push_str(&standard(&man, |man, out| {
        man.render_options_section(out)?;
        if visible(command).next().is_some() {
            man.render_subcommands_section(out)?;
        }
        Ok(())
    }));
    for section in sections {
        page.push_str(&section);
    }
    if !page.contains(".SH \"EXIT STATUS\"") {
        page.push_str(".SH \"EXIT STATUS\"\n");
        page.push_str("0 on success; \\fBfolio\\fR(1) lists all other codes.\n");
    }
    if path.len() == 1 {
        page.push_str(".SH ENVIRONMENT\n");
        for (name, effect) in ENVIRONMENT {
            entry(&mut page, &escaped(name), effect);
        }
    }
    see_also(&mut page, command, path);
    page
}

/// Renders standard sections.
fn standard(man: &Man, render: impl Fn(&Man, &mut dyn io::Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    // A write into memory never fails.
    let _ = render(man, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends the possible values of an option to its help, in one line.
fn with_values(arg: Arg) -> Arg {
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    if values.is_empty() || !arg.get_action().takes_values() {
        return arg;
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.help(format!("{help}. One of {}", values.join(", ")))
        .hide_possible_values(true)
}

/// Appends a term in bold, and its meaning.
fn entry(page: &mut String, term: &str, meaning: &str) {
    let _ = write!(page, ".TP\n\\fB{term}\\fR\n{}\n", escaped(meaning));
}

/// Splits a help text into the paragraphs of the description and the sections.
fn sections(text: &str) -> (String, Vec<String>) {
    let (mut about, mut sections) = (String::new(), Vec::<String>::new());
    // A paragraph ends examples and tables of exit codes.
    let mut is_closed = false;
    for part in parts(text) {
        match part {
            Part::Heading(title) => {
                sections.push(format!(".SH \"{}\"\n", title_of(&title)));
                is_closed = false;
            }
            Part::Paragraph(text) => {
                if is_closed {
                    sections.push(".SH NOTES\n".to_owned());
                    is_closed = false;
                }
                let is_first = sections
                    .last()
                    .is_some_and(|section| section.lines().count() == 1);
                let out = sections.last_mut().unwrap_or(&mut about);
                let lead = if is_first { "" } else { ".PP\n" };
                let _ = writeln!(out, "{lead}{}", escaped(&text));
            }
            Part::Gap => {}
            Part::Lines(lines) => {
                let out = sections.last_mut().unwrap_or(&mut about);
                write_lines(out, &lines);
                is_closed = out.starts_with(".SH \"E");
            }
        }
    }
    (about, sections)
}

/// Returns the heading as in manual pages.
fn title_of(heading: &str) -> String {
    match heading {
        "Example" => "EXAMPLES".to_owned(),
        _ if heading.starts_with("Exit codes") => "EXIT STATUS".to_owned(),
        _ => escaped(&heading.to_uppercase()),
    }
}

/// Appends terms with their remarks, and examples unchanged.
fn write_lines(out: &mut String, lines: &[Line]) {
    let are_examples = out.starts_with(".SH \"EXAMPLES\"");
    for line in lines {
        let term = escaped(&line.term);
        if !line.remark.is_empty() {
            entry(out, &term, &line.remark);
        } else if are_examples {
            let indent = " ".repeat(line.indent.saturating_sub(2));
            let _ = write!(out, ".TP\n{indent}\\fB{term}\\fR\n");
        } else {
            let _ = write!(out, ".PP\n{term}\n");
        }
    }
}

fn see_also(page: &mut String, command: &Command, path: &[&str]) {
    let mut names: Vec<String> = visible(command)
        .map(|sub| format!("{}-{}", page_name(path), sub.get_name()))
        .collect();
    if path.len() > 1 {
        names.insert(0, page_name(&path[..path.len() - 1]));
    }
    if names.is_empty() {
        return;
    }
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("\\fB{}\\fR(1)", escaped(name)))
        .collect();
    let _ = write!(page, ".SH \"SEE ALSO\"\n{}\n", names.join(", "));
}

/// Returns the subcommands that have a page.
pub(crate) fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// Escapes a text for roff(7), so that it contains no requests or escape sequences.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    if text.starts_with(['.', '\'']) {
        out.push_str("\\&");
    }
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\(rs"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '~' => out.push_str("\\(ti"),
            '^' => out.push_str("\\(ha"),
            '"' => out.push_str("\\(dq"),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heading_becomes_section() {
        let (about, sections) =
            sections("It does.\n\nExamples:\n  folio x -a    does\n  folio y\n\nMore of it.");
        assert_eq!(about, ".PP\nIt does.\n");
        assert_eq!(
            sections,
            [
                ".SH \"EXAMPLES\"\n.TP\n\\fBfolio x \\-a\\fR\ndoes\n.TP\n\\fBfolio y\\fR\n",
                ".SH NOTES\nMore of it.\n"
            ]
        );
        assert_eq!(title_of("Exit codes, as e2fsck's"), "EXIT STATUS");
    }

    #[test]
    fn request_in_text_is_escaped() {
        assert_eq!(escaped(".so a\\b"), "\\&.so a\\(rsb");
    }
}
