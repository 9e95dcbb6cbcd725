//! `folio image convert`: any readable image into another format, in parallel.

use super::new_image::NewImage;
use super::shared_options::{BackingOptions, image_failure};
use super::target::{Caching, TargetOptions};
use crate::exit::{Failure, Outcome};
use crate::image::format_of;
use crate::progress::Progress;
use crate::session::Session;
use crate::value_parsers::size;
use clap::{Args, ValueEnum};
use folio::Errno;
use folio::block::{self, CopyOptions, ImageFormat};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
A target that is a file must not exist, unless --force or -n is given; one that could not be finished is removed. A
block device is written as it is.

Examples:
  folio image convert -O qcow2 disk.img disk.qcow2
  folio image convert -O raw disk.qcow2 disk.img
  folio image convert -c -O qcow2 -o compression_type=zstd disk.img small.qcow2
  folio image convert -O raw disk.qcow2 /dev/vg/disk          zeros are written, too, as the device may hold anything
  folio image convert -n --target-is-zero disk.qcow2 /dev/vg/new";

/// Copy an image into another, whatever the formats
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Convert {
    /// The image to read
    source: PathBuf,
    /// The image to make, or a block device
    target: PathBuf,
    /// Format of the source; found by its first bytes if not given
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Format of the target; by its name if not given: qcow2 for .qcow2, else raw
    #[arg(short = 'O', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    output_format: Option<ImageFormat>,
    /// Compress; the target is qcow2
    #[arg(short, long)]
    compress: bool,
    /// The target exists and is written over
    #[arg(short = 'n', long)]
    no_create: bool,
    /// The target of -n reads as zeros, so zeros need not be written
    #[arg(long, requires = "no_create")]
    target_is_zero: bool,
    /// What becomes of zeros: never: all is written; auto: holes stay, and runs of 4k zeros become
    /// holes; always: the shortest runs do, of 512 bytes
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        conflicts_with = "sparse_size"
    )]
    sparse: Sparse,
    /// Shortest run of zeros that becomes a hole; 0: all is written
    #[arg(short = 'S', value_name = "SIZE", value_parser = size)]
    sparse_size: Option<u64>,
    /// Threads; as many as there are cores if not given
    #[arg(
        short = 'm',
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: usize,
    /// Show progress; on a terminal it is shown anyway
    #[arg(short = 'p')]
    progress: bool,
    /// Writes may come in any order, as they do anyway
    #[arg(short = 'W', hide = true)]
    out_of_order: bool,
    /// Read the source even if another process writes it
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Whether the target is on the disk at the end: unsafe: when the host sees fit; others: yes
    #[arg(
        short = 't',
        value_name = "CACHE",
        value_enum,
        default_value = "unsafe"
    )]
    caching: Caching,
    #[command(flatten)]
    new_image: NewImage,
    #[command(flatten)]
    backing: BackingOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sparse {
    Never,
    Auto,
    Always,
}

/// Runs the command.
pub(crate) fn run(convert: &Convert, session: &Session) -> Outcome {
    let source = convert
        .backing
        .open(&convert.source, convert.format, convert.force_share)?;
    let output_format = format_of(&convert.target, convert.output_format);
    if convert.compress && output_format != ImageFormat::Qcow2 {
        return Err(Failure::usage(
            "-c: only qcow2 has compressed clusters: -O qcow2",
        ));
    }
    let (options, _) = convert.new_image.create_options(output_format)?;
    session.check_interrupt()?;
    let len_bytes = source.len_bytes();
    let target = TargetOptions {
        path: &convert.target,
        format: output_format,
        backing: &convert.backing,
        caching: convert.caching,
    };
    let target = match convert.no_create {
        true => target.existing()?,
        false => target.create(len_bytes, &options, convert.new_image.force)?,
    };
    let bar = Progress::new(session);
    bar.expect(len_bytes);
    let copy_options = CopyOptions {
        threads: convert.threads,
        zero_run_bytes: match (convert.sparse_size, convert.sparse) {
            (Some(size), _) => size,
            (None, Sparse::Never) => 0,
            (None, Sparse::Auto) => 4096,
            (None, Sparse::Always) => 512,
        },
        is_target_zero: target.is_zero || convert.target_is_zero,
        is_cancelled: &|| session.is_interrupted(),
        progress: &|count| bar.add(count),
    };
    let copied = match &target.qcow2 {
        Some(target) if convert.compress => block::copy_compressed(&*source, target, &copy_options),
        _ => block::copy(&*source, &*target.device, &copy_options),
    };
    bar.finish();
    match copied {
        Ok(()) => target.finish(),
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            Err(Failure::interrupted())
        }
        // Whichever of the two it is about, a failure of its file names it.
        Err(error)
            if error
                .to_string()
                .starts_with(&*convert.source.to_string_lossy()) =>
        {
            Err(Failure::image(&error))
        }
        Err(error) => Err(image_failure(error, &convert.target)),
    }
}
