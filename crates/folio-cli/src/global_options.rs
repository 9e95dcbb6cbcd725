//! Options that every command accepts.

use crate::output::color::When;
use crate::value_parsers::cache_size;
use clap::{ArgAction, Args};
use std::ffi::OsString;

/// Options of all commands.
#[derive(Args)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct GlobalOptions {
    /// Suppress progress and notes; errors are still printed
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Log what is opened, mounted, recovered and closed; -vv also logs each step and the I/O of
    /// the host
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colors; auto: on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true
    )]
    #[arg(hide_possible_values = true, value_enum)]
    pub(crate) color: When,
    /// Mount options for the image, as in mount(8)
    #[arg(
        short = 'o',
        long = "options",
        global = true,
        value_name = "OPTIONS",
        value_delimiter = ','
    )]
    pub(crate) options: Vec<String>,
    /// Memory for cached pages, inodes and names of each image or directory; inodes and names take
    /// at most a half [default: 64M; folio mount: a sixteenth of the free memory, 64M to 512M]
    #[arg(long, global = true, value_name = "SIZE", value_parser = cache_size)]
    pub(crate) cache: Option<u64>,
    /// Print the counters of the page cache at the end, with the names of /proc/vmstat
    #[arg(long, global = true)]
    pub(crate) stats: bool,
    #[cfg(feature = "object-store")]
    #[command(flatten)]
    pub(crate) objects: crate::object_options::ObjectOptions,
    #[cfg(feature = "object-store")]
    #[command(flatten)]
    pub(crate) volumes: crate::volumes::VolumeOptions,
    /// The directory of an image that paths without an image start in; for folio shell
    #[arg(long, global = true, hide = true, value_name = "IMAGE:/path")]
    pub(crate) inside: Option<OsString>,
    /// Whether the command has its own `--json`, and it was given.
    #[arg(skip)]
    pub(crate) json: bool,
}
