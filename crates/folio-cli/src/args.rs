//! The command line: what all commands share; what one command takes stands in its own file.

use crate::commands::Command;
use crate::manual::notes;
use crate::output::colour::{self, When};
use crate::{exit, hints};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser};
use folio::block::ImageFormat;
use parse_size::Config;
use std::ffi::OsString;

/// Linux's file I/O path as a command: file systems in disk images, shared folders, the page cache
///
/// Put directory trees into images (ext4 in raw and qcow2) and take them out, without root, mount
/// or virtual machine; mount and share images and folders; warm the page cache, and find out what
/// makes a file slow.
#[derive(Parser)]
#[command(name = "folio", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of all commands.
#[derive(Args)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct Global {
    /// No progress bar and no remarks; failures are still told
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    /// Tell what is opened, mounted, recovered and closed; -vv: and each step, and what the host
    /// was asked for
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true
    )]
    #[arg(hide_possible_values = true, value_enum)]
    pub(crate) color: When,
    /// Mount options, as in mount(8), for the image that is opened; see folio help tune for what
    /// tune makes of them
    #[arg(
        short = 'o',
        long = "options",
        global = true,
        value_name = "OPTIONS",
        value_delimiter = ','
    )]
    pub(crate) options: Vec<String>,
    /// Memory for the page cache of each image
    #[arg(long, global = true, value_name = "SIZE", default_value = "64M", value_parser = cache_size)]
    pub(crate) cache: u64,
    /// Print at the end what the page cache did, in the words of /proc/vmstat
    #[arg(long, global = true)]
    pub(crate) stats: bool,
}

/// The tree of all commands, as clap has it.
pub(crate) fn tree() -> clap::Command {
    Arguments::command()
}

/// Reads the command line, the program's name first. A request for help is an error, as clap has
/// it.
pub(crate) fn read(words: &[OsString]) -> Result<Arguments, clap::Error> {
    let colours = colour::choose(words);
    let read = |mut tree: clap::Command| {
        let matches = tree.try_get_matches_from_mut(words)?;
        Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut tree))
    };
    match read(tree().color(colours)) {
        Err(error) if is_help(&error) => {
            let width = width();
            read(notes::shape(tree(), width).color(colours).term_width(width))
        }
        other => other.map_err(|mut error| {
            hints::add(&mut error, words);
            error
        }),
    }
}

fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Columns for help texts: those of the terminal, or what COLUMNS says, as far as people like to
/// read.
fn width() -> usize {
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal
        .or_else(asked)
        .unwrap_or(notes::WIDTH_MAX)
        .clamp(40, notes::WIDTH_MAX)
}

/// Reads the name of an image format.
pub(crate) fn format() -> impl TypedValueParser<Value = ImageFormat> {
    PossibleValuesParser::new(ImageFormat::ALL.map(ImageFormat::name))
        .try_map(|name| name.parse::<ImageFormat>())
}

/// Reads a size: a number with K, M, G, T, P, which count in 1024, as mke2fs and qemu-img do.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let size = Config::new().with_binary().parse_size(text);
    size.map_err(|_| format!("{text:?} is no size; write 4096, 512M or 10G"))
}

fn cache_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    if size < 1 << 20 {
        Err("the page cache needs 1M at least".to_owned())
    } else {
        Ok(size)
    }
}

/// Reads a size that makes sense for a disk.
pub(crate) fn disk_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("an image of no bytes holds nothing".to_owned()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_in_1024() {
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("10G"), Ok(10 << 30));
        assert_eq!(size("1.5M"), Ok(3 << 19));
        assert!(
            size("ten").is_err()
                && size("").is_err()
                && size("-1").is_err()
                && disk_size("0").is_err()
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
