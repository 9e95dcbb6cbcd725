//! One command as a manual page.

use super::notes::{Line, Part, parts};
use clap::{Arg, Command};
use std::fmt::Write;

/// What the environment changes.
const ENVIRONMENT: [(&str, &str); 6] = [
    (
        "NO_COLOR",
        "If it is set and not empty, there are no colors unless --color asks for them.",
    ),
    (
        "CLICOLOR_FORCE",
        "If it is set and not 0, there are colors wherever the output goes, unless --color forbids them.",
    ),
    (
        "FOLIO_LOG",
        "What -v tells, by part and level: folio=debug,folio_fuse=info. Levels are error, warn, info, debug and trace.",
    ),
    (
        "SOURCE_DATE_EPOCH",
        "Seconds since 1970 that take the place of the present time, so that two images made of the same files are the same.",
    ),
    ("TZ", "The time zone of the times that are shown."),
    (
        "NOTIFY_SOCKET",
        "Where folio mount and folio share tell a service manager that they are ready; see sd_notify(3).",
    ),
];

/// The name of the page: the words of the command joined by dashes.
pub(crate) fn page_name(path: &[&str]) -> String {
    path.join("-")
}

/// The page of `command` in a tree that was built; its words are `path`, `folio` first.
pub(crate) fn page(command: &Command, path: &[&str]) -> String {
    let name = page_name(path);
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let (rest_of_description, sections) = sections(&text);
    let mut page = format!(
        ".TH {} 1 \"\" \"folio {}\" \"Folio\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n\\fB{}\\fR{}\n.SH DESCRIPTION\n{}",
        escaped(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION"),
        escaped(&name),
        escaped(&about),
        escaped(&path.join(" ")),
        escaped(&usage(command, path)),
        escaped(&sentence(&about)),
    );
    page.push('\n');
    if let Some(more) = command.get_long_about().map(ToString::to_string) {
        for paragraph in more.split("\n\n").skip(1) {
            let _ = write!(page, ".PP\n{}\n", escaped(&sentence(paragraph)));
        }
    }
    page.push_str(&rest_of_description);
    arguments(&mut page, command);
    subcommands(&mut page, command, path);
    for section in sections {
        page.push_str(&section);
    }
    if !page.contains(".SH \"EXIT STATUS\"") {
        page.push_str(".SH \"EXIT STATUS\"\n");
        page.push_str("0 if all was done, else a code that \\fBfolio\\fR(1) explains.\n");
    }
    if path.len() == 1 {
        page.push_str(".SH ENVIRONMENT\n");
        for (name, what) in ENVIRONMENT {
            entry(&mut page, &escaped(name), what);
        }
    }
    see_also(&mut page, command, path);
    page
}

/// What follows the command's words.
fn usage(command: &Command, path: &[&str]) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("Usage: ");
    usage
        .strip_prefix(&path.join(" "))
        .unwrap_or(usage)
        .to_owned()
}

fn sentence(text: &str) -> String {
    let text = text.trim().replace('\n', " ");
    if text.ends_with('.') {
        text
    } else {
        format!("{text}.")
    }
}

/// A term in bold, and what it means.
fn entry(page: &mut String, term: &str, what: &str) {
    let _ = write!(page, ".TP\n\\fB{term}\\fR\n{}\n", escaped(what));
}

/// All arguments and options, under the headings that the help text has.
fn arguments(page: &mut String, command: &Command) {
    let mut last = String::new();
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .collect();
    let heading = |arg: &Arg| match arg.get_help_heading() {
        Some(heading) => heading.to_uppercase(),
        None if arg.is_positional() => "ARGUMENTS".to_owned(),
        None => "OPTIONS".to_owned(),
    };
    let of_its_own = |arg: &&&Arg| arg.get_help_heading().is_none();
    let ordered = shown
        .iter()
        .filter(|arg| arg.is_positional())
        .chain(
            shown
                .iter()
                .filter(of_its_own)
                .filter(|arg| !arg.is_positional()),
        )
        .chain(shown.iter().filter(|arg| !of_its_own(arg)));
    for arg in ordered {
        let heading = heading(arg);
        if heading != last {
            let _ = writeln!(page, ".SH \"{}\"", escaped(&heading));
            last = heading;
        }
        entry(page, &term(arg), &meaning(arg));
    }
}

/// `-f, --format FORMAT`, in bold but for the value.
fn term(arg: &Arg) -> String {
    let names = arg.get_value_names().map(|names| {
        names
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    });
    let names = names.unwrap_or_else(|| arg.get_id().to_string().to_uppercase());
    let value = format!("\\fI{}\\fR", escaped(&names));
    if arg.is_positional() {
        return value;
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let words = short
        .into_iter()
        .chain(long)
        .map(|word| escaped(&word))
        .collect::<Vec<_>>()
        .join(", ");
    if arg.get_action().takes_values() {
        format!("{words} {value}")
    } else {
        words
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg
        .get_long_help()
        .or(arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut text = sentence(&help);
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        text.push_str(&format!(" One of {}.", values.join(", ")));
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if arg.get_action().takes_values()
        && !defaults.join("").is_empty()
        && !arg.is_hide_default_value_set()
    {
        text.push_str(&format!(" Default: {}.", defaults.join(" ")));
    }
    text
}

/// Paragraphs for the description, and whole sections.
fn sections(text: &str) -> (String, Vec<String>) {
    let (mut about, mut sections) = (String::new(), Vec::<String>::new());
    // Examples and tables of codes end where text follows them.
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

/// Headings as manual pages have them.
fn title_of(heading: &str) -> String {
    match heading {
        "Example" => "EXAMPLES".to_owned(),
        _ if heading.starts_with("Exit codes") => "EXIT STATUS".to_owned(),
        _ => escaped(&heading.to_uppercase()),
    }
}

/// Terms with what is said about them; examples as they stand.
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

fn subcommands(page: &mut String, command: &Command, path: &[&str]) {
    let mut is_first = true;
    for sub in visible(command) {
        if is_first {
            page.push_str(".SH COMMANDS\n");
            is_first = false;
        }
        let name = escaped(&format!("{}-{}", page_name(path), sub.get_name()));
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(
            page,
            ".TP\n\\fB{name}\\fR(1)\n{}\n",
            escaped(&sentence(&about))
        );
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

/// The commands below this one that have a page.
pub(crate) fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// The text for roff(7): what would be a request or an escape there is none.
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
    fn headings_become_sections() {
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
    fn nothing_in_a_text_is_a_request() {
        assert_eq!(escaped(".so a\\b"), "\\&.so a\\(rsb");
    }
}
