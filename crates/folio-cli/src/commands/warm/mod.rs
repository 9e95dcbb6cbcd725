//! `folio warm`: files brought into the host kernel's page cache before somebody needs them.

mod engine;
mod images;

pub(super) use engine::Engine;

use super::select::Select;
use crate::exit::{Failure, Outcome};
use crate::output::{FailureRecord, human};
use crate::session::Session;
use clap::Args;
use folio_pagecache::{Found, Locked, Warmed};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  folio warm /var/lib/mysql                        everything below, before mysqld starts
  folio warm --include '*.ibd' --budget 60% /var/lib/mysql
  folio warm --recipe /etc/folio/warm.txt --json   what a recipe names
  folio warm --lock /srv/index                     keep it in memory until Ctrl-C
  folio warm --dry-run /srv                        what would be read
  folio warm disk.qcow2                            what the disk uses of its image and backing files
  folio warm disk.qcow2:/srv                       what files inside it need

A recipe has a path on each line; + GLOB and - GLOB are like --include and --exclude, # begins a remark.

What is in memory is not read again. Files are read by 16 threads in the order of their inodes, or, on disks that seek,
in the order of their places on the disk. Links below the paths are not followed unless -L is given.";

/// Bring files into the page cache of the host's kernel
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WarmCommand {
    /// Files and folders; images, and places inside them, written IMAGE:/path
    #[arg(required_unless_present = "recipe")]
    paths: Vec<PathBuf>,
    /// More paths and globs, from a file
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    engine: Engine,
    /// Lock the files in memory (mlock), and stay until Ctrl-C
    #[arg(long, conflicts_with = "dry_run")]
    lock: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is looked for.
struct Wanted {
    paths: Vec<PathBuf>,
    select: Select,
}

impl Wanted {
    /// Adds what a recipe names.
    fn add_recipe(&mut self, text: &str) {
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            if let Some(glob) = line.strip_prefix("+ ") {
                self.select.include.push(glob.trim().to_owned());
            } else if let Some(glob) = line.strip_prefix("- ") {
                self.select.exclude.push(glob.trim().to_owned());
            } else {
                self.paths.push(line.into());
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: &WarmCommand, session: &Session) -> Outcome {
    let mut wanted = Wanted {
        paths: command.paths.clone(),
        select: command.select.clone(),
    };
    if let Some(recipe) = &command.recipe {
        let text = std::fs::read_to_string(recipe);
        wanted.add_recipe(
            &text.map_err(|error| Failure::new(format!("{}: {error}", recipe.display())))?,
        );
    }
    let scan = wanted.select.scan(session)?;
    let (mut paths, mut inside) = (Vec::new(), Vec::new());
    for path in wanted.paths {
        match images::find(&path, &scan, session)? {
            Some(mut found) => inside.append(&mut found),
            None => paths.push(path),
        }
    }
    if inside.is_empty() {
        session.refuse_options()?;
    }
    let mut files = scan.files(&paths);
    files.found.append(&mut inside);
    session.check_interrupt()?;
    let (mut warmed, mut report) = command.engine.run(&files.found, session)?;
    warmed.failures.append(&mut files.failures);
    warmed.failures.sort();
    let locked = if command.lock {
        lock(&files.found, &mut warmed)
    } else {
        Locks::default()
    };
    warmed
        .failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    report.failures = FailureRecord::list(&warmed.failures);
    report.locked_bytes = locked.bytes;
    report.not_regular = files.special;
    report.print(command.json, session)?;
    if command.lock {
        stay(locked, session)
    } else {
        Ok(())
    }
}

/// Files that are held in memory.
#[derive(Default)]
struct Locks {
    held: Vec<Locked>,
    bytes: u64,
}

/// Locks what of the files is in memory: what the budget left out stays out.
fn lock(files: &[Found], warmed: &mut Warmed) -> Locks {
    let mut locks = Locks::default();
    for found in files {
        match folio_pagecache::lock(&found.path) {
            Ok((held, bytes)) => {
                locks.held.push(held);
                locks.bytes += bytes;
            }
            Err(error) if matches!(error.raw_os_error(), Some(1 | 11 | 12)) => {
                let hint = "more may be locked after ulimit -l unlimited, or by root";
                warmed
                    .failures
                    .push((found.path.clone(), format!("cannot be locked: {hint}")));
                break;
            }
            // Whoever could not be read has been told of.
            Err(_) if warmed.failures.iter().any(|(path, _)| *path == found.path) => {}
            Err(error) => warmed
                .failures
                .push((found.path.clone(), format!("cannot be locked: {error}"))),
        }
    }
    locks
}

fn stay(locks: Locks, session: &Session) -> Outcome {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !session.quiet {
        session.note(format_args!(
            "{} locked in memory until Ctrl-C",
            human(locks.bytes)
        ));
    }
    if !session.is_interrupted() {
        let _ = signals.forever().next();
    }
    drop(locks);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_names_paths_and_globs() {
        let mut wanted = Wanted {
            paths: Vec::new(),
            select: Select::default(),
        };
        wanted.add_recipe("# the database\n/var/lib/mysql\n\n+ *.ibd\n - *.log\n");
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(wanted.paths, [PathBuf::from("/var/lib/mysql")]);
        assert_eq!(
            (wanted.select.include, wanted.select.exclude),
            (words(&["*.ibd"]), words(&["*.log"]))
        );
    }
}
