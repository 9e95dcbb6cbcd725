//! The command line: the tree of all commands, and the reading of arguments.

use crate::commands::Command;
use crate::global_options::GlobalOptions;
use crate::manual::notes;
use crate::output::color;
use crate::{exit, hints, qemu_img};
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use std::ffi::OsString;

/// Linux's file I/O path as a command: file systems in disk images, shared folders, the page cache
///
/// Copy directory trees into and out of images (ext4 in raw and qcow2) without root, mount or
/// virtual machine. Mount and share images and directories. Warm the page cache, and find the layer
/// that makes a file slow.
#[derive(Parser)]
#[command(name = "folio", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Returns clap's tree of all commands.
pub(crate) fn tree() -> clap::Command {
    Arguments::command()
}

/// Parses the command line, the program's name first.
///
/// # Errors
///
/// Invalid arguments. As in clap, a request for help or for the version is an error too.
pub(crate) fn parse(words: &[OsString]) -> Result<Arguments, clap::Error> {
    let color = color::choose(words);
    let parse = |mut tree: clap::Command| {
        if qemu_img::is_requested(words) {
            tree = qemu_img::shape(tree);
        }
        let matches = tree.try_get_matches_from_mut(words)?;
        let mut arguments =
            Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut tree))?;
        arguments.global.json = is_json(&matches);
        Ok(arguments)
    };
    match parse(tree().color(color)) {
        Err(error) if is_help(&error) => {
            let width = help_width();
            parse(notes::shape(tree(), width).color(color).term_width(width))
        }
        other => other.map_err(|mut error| {
            hints::add(&mut error, &tree(), words);
            error
        }),
    }
}

/// Returns whether the innermost command was given `--json`.
fn is_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => is_json(inner),
        None => matches!(matches.try_get_one("json"), Ok(Some(true))),
    }
}

fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Returns the columns for help texts: the terminal's width or COLUMNS, limited to a readable
/// range.
fn help_width() -> usize {
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal
        .or_else(variable)
        .unwrap_or(notes::WIDTH_MAX)
        .clamp(40, notes::WIDTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::{HINTS, command_name};
    use std::collections::HashSet;

    #[test]
    fn command_line_is_consistent() {
        tree().debug_assert();
    }

    /// The parts of a hint that can be typed.
    fn typed(hint: &str) -> impl Iterator<Item = &str> {
        hint.split('\'').skip(1).step_by(2)
    }

    fn find(words: &str) -> Option<clap::Command> {
        words
            .split_whitespace()
            .try_fold(tree(), |at, word| at.find_subcommand(word).cloned())
    }

    #[test]
    fn hints_name_unknown_words_and_known_commands() {
        let mut known = HashSet::new();
        for (of, words, hint) in HINTS {
            let mut command = find(of).unwrap_or_else(|| panic!("folio {of}"));
            command.build();
            for word in *words {
                assert!(known.insert((of, word)), "{of} {word} has two hints");
                assert!(
                    command.find_subcommand(word).is_none(),
                    "folio {of} {word} exists"
                );
                assert!(!has_option(&command, word), "folio {of} {word} exists");
            }
            for typed in typed(hint) {
                let mut at = find(of).unwrap();
                let mut rest: Vec<_> = typed.split_whitespace().collect();
                if rest[0] == "folio" {
                    at = tree();
                    rest.remove(0);
                    while let Some(next) = rest
                        .first()
                        .and_then(|word| at.find_subcommand(word))
                        .cloned()
                    {
                        at = next;
                        rest.remove(0);
                    }
                    assert_ne!(at.get_name(), "folio", "{typed}");
                }
                at.build();
                let lower = rest
                    .iter()
                    .filter(|word| word.starts_with('-') || !word.contains(char::is_uppercase));
                lower.for_each(|word| assert!(has_option(&at, word), "{typed}: {word}"));
            }
        }
    }

    fn has_option(command: &clap::Command, word: &str) -> bool {
        command.get_arguments().any(|argument| {
            let long = || argument.get_long_and_visible_aliases().unwrap_or_default();
            let short = || argument.get_short_and_visible_aliases().unwrap_or_default();
            match word.strip_prefix("--") {
                Some(word) => long().contains(&word),
                None => word
                    .strip_prefix('-')
                    .is_some_and(|word| short().iter().any(|c| word.contains(*c))),
            }
        })
    }

    #[test]
    fn command_name_is_found_between_options() {
        let name = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
            command_name(&tree(), &words)
        };
        assert_eq!(name("folio --quiet mkfs x -d t"), "mkfs");
        assert_eq!(name("folio serve --color never nbd -k s"), "serve nbd");
        assert_eq!(name("folio convert a b"), "");
    }
}
