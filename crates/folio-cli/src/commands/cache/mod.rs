//! `folio cache`: what the page cache of the host's kernel holds, and having it forget, keep and
//! bring back.
//!
//! ```text
//!   mod.rs      the list and the dispatch      totals.rs   files added up, lines of tables and of JSON
//!   status.rs   one file per subcommand        watch.rs    the same again every so many seconds
//!   drop.rs, top.rs, meminfo.rs
//!   saved.rs   save and restore
//! ```
//!
//! What the words and numbers mean stands in docs/page-cache.md.

mod drop;
mod meminfo;
mod restore;
mod save;
mod status;
mod top;
mod totals;
mod watch;

use crate::exit::Outcome;
use crate::session::Session;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  folio cache status /var/lib/mysql              how much of each file is in memory
  folio cache drop --sync /var/lib/mysql         have the kernel forget it
  folio cache save mysql.hot /var/lib/mysql      which pages are in memory
  folio cache restore mysql.hot                  the same pages again, after a restart
  folio cache top                                what fills the cache
  folio cache meminfo --watch 1                  how much room there is";

/// See and change what the page cache of the host's kernel holds
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
}

/// The command's name in messages.
pub(crate) fn name(cache: &Cache) -> &'static str {
    match &cache.command {
        CacheCommand::Status(_) => "cache status",
        CacheCommand::Drop(_) => "cache drop",
        CacheCommand::Save(_) => "cache save",
        CacheCommand::Restore(_) => "cache restore",
        CacheCommand::Top(_) => "cache top",
        CacheCommand::Meminfo(_) => "cache meminfo",
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
    }
}
