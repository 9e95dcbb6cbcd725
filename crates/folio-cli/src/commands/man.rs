//! `folio man`: shows manual pages, or writes them to files.

use crate::exit::{Failure, Outcome};
use crate::manual::roff::{page, page_name, visible};
use crate::nearest::nearest;
use crate::output::io_reason;
use crate::session::Session;
use clap::{Args, Command};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const EXAMPLES: &str = "\
Examples:
  folio man                                        about folio as a whole
  folio man image create                           about one command
  folio man image create > folio-image-create.1
  folio man --dir /usr/share/man/man1              all pages, for a package";

/// Show a manual page, or write all of them
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// The command, such as image create
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
    /// Write a page for every command into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "words")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(man: &Man, session: &Session, tree: Command) -> Outcome {
    session.refuse_options()?;
    let mut tree = tree.disable_help_subcommand(true);
    tree.build();
    if let Some(dir) = &man.dir {
        std::fs::create_dir_all(dir)
            .map_err(|error| Failure::new(format!("{}: {}", dir.display(), io_reason(&error))))?;
        return write_all(&tree, &mut vec!["folio"], dir);
    }
    let mut command = &tree;
    let mut path = vec!["folio"];
    for word in &man.words {
        command = visible(command)
            .find(|sub| sub.get_name() == word)
            .ok_or_else(|| unknown(word, command))?;
        path.push(command.get_name());
    }
    show(&page(command, &path))
}

fn unknown(word: &str, above: &Command) -> Failure {
    let names: Vec<_> = visible(above).map(Command::get_name).collect();
    let hint = nearest(word, names)
        .map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default();
    Failure::usage(format!("unknown command {word:?}{hint}"))
}

fn write_all<'a>(command: &'a Command, path: &mut Vec<&'a str>, dir: &Path) -> Outcome {
    let file = dir.join(format!("{}.1", page_name(path)));
    std::fs::write(&file, page(command, path))
        .map_err(|error| Failure::new(format!("{}: {}", file.display(), io_reason(&error))))?;
    for sub in visible(command) {
        path.push(sub.get_name());
        write_all(sub, path, dir)?;
        path.pop();
    }
    Ok(())
}

/// Shows the page by man(1) on a terminal. Otherwise, or without man(1), prints its source.
fn show(page: &str) -> Outcome {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        let viewer = std::process::Command::new("man")
            .args(["-l", "-"])
            .stdin(Stdio::piped())
            .spawn();
        if let Ok(mut viewer) = viewer {
            if let Some(mut input) = viewer.stdin.take() {
                // The user may quit before the end of the page.
                let _ = input.write_all(page.as_bytes());
            }
            viewer.wait()?;
            return Ok(());
        }
    }
    out.write_all(page.as_bytes())?;
    Ok(out.flush()?)
}
