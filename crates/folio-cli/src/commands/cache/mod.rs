//! `folio cache`: shows, drops, saves and restores the page cache of the host's kernel.
//!
//! ```text
//!   mod.rs      the list and the dispatch
//!     v
//!   status.rs, drop.rs, save.rs, restore.rs, top.rs, meminfo.rs, fit.rs   one file per subcommand
//!     v
//!   totals.rs   sums over files, as table rows and JSON      watch.rs   repeats a command
//! ```
//!
//! docs/page-cache.md explains terms and numbers. Above: the dispatch in `commands`. Below:
//! `warm::Engine`, `select`, `session`, `output`, `folio_pagecache`.

pub(super) mod drop;
pub(super) mod fit;
pub(super) mod meminfo;
mod restore;
pub(super) mod save;
pub(super) mod status;
pub(super) mod top;
mod totals;
mod watch;

use crate::exit::Outcome;
use crate::session::Session;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  folio cache status /var/lib/mysql              how much of each file is in memory
  folio cache drop --sync /var/lib/mysql         drop the files from memory
  folio cache save mysql.hot /var/lib/mysql      save which pages are in memory
  folio cache restore mysql.hot                  read the same pages again, after a restart
  folio cache top                                show which files fill the cache
  folio cache meminfo --watch 1                  show how much memory is free
  folio cache fit -- ./server                    measure how much page cache a program needs";

/// Show and change the page cache of the host's kernel
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand)]
enum CacheCommand {
    Status(status::Status),
    Drop(drop::Drop),
    Save(save::Save),
    Restore(restore::Restore),
    Top(top::Top),
    Meminfo(meminfo::Meminfo),
    Fit(fit::Fit),
}

/// Returns the command's name for messages.
pub(crate) fn name(cache: &Cache) -> &'static str {
    match &cache.command {
        CacheCommand::Status(_) => "cache status",
        CacheCommand::Drop(_) => "cache drop",
        CacheCommand::Save(_) => "cache save",
        CacheCommand::Restore(_) => "cache restore",
        CacheCommand::Top(_) => "cache top",
        CacheCommand::Meminfo(_) => "cache meminfo",
        CacheCommand::Fit(_) => "cache fit",
    }
}

/// Runs the command.
pub(crate) fn run(cache: &Cache, session: &Session) -> Outcome {
    session.refuse_options()?;
    match &cache.command {
        CacheCommand::Status(status) => status::run(status, session),
        CacheCommand::Drop(drop) => drop::run(drop, session),
        CacheCommand::Save(save) => save::run(save, session),
        CacheCommand::Restore(restore) => restore::run(restore, session),
        CacheCommand::Top(top) => top::run(top, session),
        CacheCommand::Meminfo(meminfo) => meminfo::run(meminfo, session),
        CacheCommand::Fit(fit) => fit::run(fit, session),
    }
}
