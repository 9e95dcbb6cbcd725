//! `folio image compare`: compares the content of two images, in any formats.

use crate::arguments::image_options::{BackingOptions, SourceCacheOptions, whole_sectors};
use crate::exit::{Exit, Failure, Outcome};
use crate::image_name::NameOptions;
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio::Errno;
use folio::block::tools::{CompareOptions, Difference};
use folio::block::{self, ImageFormat};
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Exit codes, as qemu-img's:
  0    identical
  1    different
  2    an image cannot be opened, or usage error
  3    an image cannot be read

Examples:
  folio image compare disk.img disk.qcow2
  folio image compare -f raw -F qcow2 disk.img disk.qcow2";

/// Compare the content of two images
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Compare {
    /// The first image
    #[arg(value_parser = crate::image_name::value_parser())]
    first: PathBuf,
    /// The second image
    #[arg(value_parser = crate::image_name::value_parser())]
    second: PathBuf,
    /// Format of the first image; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Format of the second image
    #[arg(short = 'F', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    second_format: Option<ImageFormat>,
    /// Compare size and allocation too
    #[arg(short, long)]
    strict: bool,
    /// Show progress, which a terminal does in any case
    #[arg(short = 'p')]
    progress: bool,
    /// Read the images even if another process writes them
    #[arg(short = 'U', long)]
    force_share: bool,
    #[command(flatten)]
    source_cache: SourceCacheOptions,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

/// Runs the command.
pub(crate) fn run(compare: &Compare, session: &Session) -> Outcome {
    let open = |path: &PathBuf, format| {
        let named = compare.name.resolve(path, format)?;
        let is_shared = compare.force_share;
        let opened = compare.backing.open(&named.path, named.format, is_shared);
        opened.map_err(|failure| Failure {
            exit: Exit::QemuImg(2),
            ..failure
        })
    };
    let first = open(&compare.first, compare.format)?;
    let second = open(&compare.second, compare.second_format)?;
    let bar = Progress::requested(session, compare.progress);
    bar.expect(first.len_bytes().max(second.len_bytes()));
    let options = CompareOptions {
        is_strict: compare.strict,
        is_canceled: &|| session.is_interrupted(),
        progress: &|count| bar.add(count),
        ..CompareOptions::default()
    };
    let compared = block::tools::compare(&*first, &*second, &options);
    bar.finish();
    let comparison = match compared {
        Ok(comparison) => {
            bar.complete();
            comparison
        }
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            return Err(Failure::interrupted());
        }
        Err(error) => {
            return Err(Failure {
                exit: Exit::QemuImg(3),
                ..Failure::from(error)
            });
        }
    };
    let mut words = String::new();
    // Like qemu-img, report a difference in the common part first.
    let shorter = first.len_bytes().min(second.len_bytes());
    let is_common =
        matches!(comparison.difference, Some(Difference::Content(offset)) if offset < shorter);
    let is_size_different = if session.is_qemu_img() {
        whole_sectors(first.len_bytes())? != whole_sectors(second.len_bytes())?
    } else {
        comparison.is_size_different
    };
    if is_size_different && !compare.strict && !is_common {
        words.push_str("Warning: Image size mismatch!\n");
    }
    words.push_str(&match comparison.difference {
        None => "Images are identical.\n".to_owned(),
        Some(Difference::Size) => "Strict mode: Image size mismatch!\n".to_owned(),
        Some(Difference::Allocation(offset)) => {
            format!("Strict mode: Offset {offset} block status mismatch!\n")
        }
        Some(Difference::Content(offset)) => format!("Content mismatch at offset {offset}!\n"),
    });
    if !session.quiet {
        std::io::stdout().write_all(words.as_bytes())?;
    }
    match comparison.difference {
        None => Ok(()),
        Some(_) => Err(Failure::exiting(Exit::Failed, String::new())),
    }
}
