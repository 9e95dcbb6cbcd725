//! `folio warm`: reads files into the page cache of the host's kernel before they are needed.
//!
//! ```text
//!   mod.rs      arguments, recipes, locks
//!     v
//!   engine.rs   budget, order, progress, report; `folio cache restore` uses it too
//!   images.rs   images, block devices and files inside them, as ranges of host files
//! ```
//!
//! Above: the dispatch in `commands`. Below: `select`, `image`, `walk`, `session`, `output`,
//! `folio_pagecache`.

mod images;

use self::images::ImageParts;
use crate::arguments::select::Select;
use crate::exit::{Failure, Outcome};
use crate::output::{FailureRecord, human};
use crate::session::Session;
use crate::warm_engine::Engine;
use clap::Args;
use folio_pagecache::{Found, Locked, Warmed};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  folio warm /var/lib/mysql                        all files below it, before mysqld starts
  folio warm --include '*.ibd' --budget 60% /var/lib/mysql
  folio warm --recipe /etc/folio/warm.txt --json   the files of a recipe
  folio warm --lock /srv/index                     keep the files in memory until Ctrl-C
  folio warm --dry-run /srv                        report what would be read
  folio warm disk.qcow2                            what is in use of an image and its backing files
  folio warm /dev/vg/db disk.raw                   the blocks in use of the ext4 on a device, in an image
  folio warm --whole disk.raw                      also its free blocks
  folio warm disk.qcow2:/srv                       the parts of an image that hold these files

A recipe has one path per line; + GLOB and - GLOB work like --include and --exclude, and # starts a comment.

Pages in memory are not read again. 16 threads read the files in the order of their inodes. On disks that seek they
read in the order of the places on the disk. Symbolic links below the paths are followed only with -L.";

/// Read files into the page cache of the host's kernel
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WarmCommand {
    /// Files and directories; images and block devices; files inside them, as IMAGE:/path
    #[arg(required_unless_present = "recipe")]
    paths: Vec<PathBuf>,
    /// A file with more paths and globs
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    engine: Engine,
    /// Read all data of images and block devices, not only what is in use
    #[arg(long)]
    whole: bool,
    /// Lock the files in memory (mlock) until Ctrl-C
    #[arg(long, conflicts_with = "dry_run")]
    lock: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The files to read.
struct Selection {
    paths: Vec<PathBuf>,
    select: Select,
}

impl Selection {
    /// Adds the paths and globs of a recipe.
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
    let mut selection = Selection {
        paths: command.paths.clone(),
        select: command.select.clone(),
    };
    if let Some(recipe) = &command.recipe {
        let text = std::fs::read_to_string(recipe);
        selection.add_recipe(
            &text.map_err(|error| Failure::new(format!("{}: {error}", recipe.display())))?,
        );
    }
    let scan = selection.select.scan(session)?;
    let (mut paths, mut inside) = (Vec::new(), ImageParts::default());
    for path in selection.paths {
        match images::find(&path, command.whole, &scan, session)? {
            Some(parts) => inside.append(parts),
            None => paths.push(path),
        }
    }
    if inside.found.is_empty() {
        session.refuse_options()?;
    }
    let mut files = scan.files(&paths);
    files.found.append(&mut inside.found);
    session.check_interrupt()?;
    let found: Arc<[Found]> = files.found.into();
    let (mut warmed, mut report) = command.engine.run(&found, session)?;
    warmed.failures.append(&mut files.failures);
    warmed.failures.sort();
    let locked = if command.lock {
        lock(&found, &mut warmed)
    } else {
        Locks::default()
    };
    warmed
        .failures
        .iter()
        .for_each(|(path, reason)| session.fail_on(path, reason));
    report.failures = FailureRecord::list(&warmed.failures);
    report.unused_bytes += inside.unused_bytes;
    report.locked_bytes = locked.bytes;
    report.not_regular = files.special;
    report.print(command.json, session)?;
    if command.lock {
        return stay(locked, session);
    }
    if report.read_bytes > 0 {
        images::close_devices(inside.devices, session);
    }
    Ok(())
}

/// Files that are locked in memory.
#[derive(Default)]
struct Locks {
    held: Vec<Locked>,
    bytes: u64,
}

/// Locks the cached parts of the files. Parts beyond the budget are not read.
fn lock(files: &[Found], warmed: &mut Warmed) -> Locks {
    let mut locks = Locks::default();
    for found in files {
        match folio_pagecache::lock(&found.path) {
            Ok((held, bytes)) => {
                locks.held.push(held);
                locks.bytes += bytes;
            }
            Err(error) if matches!(error.raw_os_error(), Some(1 | 11 | 12)) => {
                let hint = "raise the limit with ulimit -l unlimited, or run as root";
                warmed
                    .failures
                    .push((found.path.clone(), format!("cannot lock in memory: {hint}")));
                break;
            }
            // A failure to read this file is already reported.
            Err(_) if warmed.failures.iter().any(|(path, _)| *path == found.path) => {}
            Err(error) => warmed.failures.push((
                found.path.clone(),
                format!("cannot lock in memory: {error}"),
            )),
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
    fn recipe_lists_paths_and_globs() {
        let mut selection = Selection {
            paths: Vec::new(),
            select: Select::default(),
        };
        selection.add_recipe("# the database\n/var/lib/mysql\n\n+ *.ibd\n - *.log\n");
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(selection.paths, [PathBuf::from("/var/lib/mysql")]);
        assert_eq!(
            (selection.select.include, selection.select.exclude),
            (words(&["*.ibd"]), words(&["*.log"]))
        );
    }
}
