//! The command line: what all commands share; what one command takes stands in its own file.

use crate::commands::Command;
use crate::exit;
use clap::{Args, Parser};
use parse_size::Config;

/// Put directory trees into disk images, look inside, change them, take them out.
///
/// No root, no mount, no virtual machine: ext4 in raw and qcow2 images.
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
pub(crate) struct Global {
    /// No progress bar and no remarks; failures are still told
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    /// Mount options, as in mount(8), for the image that is opened; see folio help tune for what tune makes of them
    #[arg(short = 'o', long = "options", global = true, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Memory for the page cache of each image
    #[arg(long, global = true, value_name = "SIZE", default_value = "64M", value_parser = cache_size)]
    pub(crate) cache: u64,
    /// Print at the end what the page cache did, in the words of /proc/vmstat
    #[arg(long, global = true)]
    pub(crate) stats: bool,
}

/// Reads a size: a number with K, M, G, T, P, which count in 1024, as mke2fs and qemu-img do.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let size = Config::new().with_binary().parse_size(text);
    size.map_err(|_| format!("{text:?} is no size; write 4096, 512M or 10G"))
}

fn cache_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    if size < 1 << 20 { Err("the page cache needs 1M at least".to_owned()) } else { Ok(size) }
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
        assert!(size("ten").is_err() && size("").is_err() && size("-1").is_err() && disk_size("0").is_err());
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
