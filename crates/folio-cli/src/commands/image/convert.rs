//! `folio image convert`: copies an image into another format, in parallel.

use super::convert_bitmaps::BitmapOptions;
use super::convert_source::SourceOptions;
use super::new_image::NewImageOptions;
use super::target::{Target, TargetOptions};
use crate::arguments::image_options::{
    BackingOptions, CacheMode, SourceCacheOptions, beside, image_failure, whole_sectors,
};
use crate::exit::{Failure, Outcome};
use crate::image_chain::chain_images;
use crate::image_name::{NameOptions, NamedImage};
use crate::progress::Progress;
use crate::session::Session;
use crate::value_parsers::size;
use clap::{Args, ValueEnum};
use folio::block::tools::{CopyOptions, TargetBacking};
use folio::block::{self, CreateOptions, ImageFormat, Preallocation};
use folio::{Errno, Error};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const AFTER_HELP: &str = "\
A target file must not exist, unless --force or -n is given; an incomplete one is removed. A block device is written in
place.

Examples:
  folio image convert -O qcow2 disk.img disk.qcow2
  folio image convert -O raw disk.qcow2 disk.img
  folio image convert -l before-upgrade disk.qcow2 old.img    an internal snapshot
  folio image convert --salvage damaged.qcow2 saved.img
  folio image convert -c -O qcow2 -o compression_type=zstd disk.img small.qcow2
  folio image convert -O raw disk.qcow2 /dev/vg/disk          writes zeros too: the device may contain other data
  folio image convert -n --target-is-zero disk.qcow2 /dev/vg/new";

/// Copy an image into another one, in any formats
#[derive(Args)]
#[command(
    after_help = AFTER_HELP,
    override_usage = "folio image convert [OPTIONS] <SOURCE>... <TARGET>"
)]
pub(crate) struct Convert {
    /// Source image, or several that are copied one after the other; then the target: an image or a
    /// block device
    // One argument, so that options may be between source and target.
    #[arg(required = true, value_names = ["SOURCE", "TARGET"], num_args = 1.., value_parser = crate::image_name::value_parser())]
    images: Vec<PathBuf>,
    /// Format of the source; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Format of the target; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(short = 'O', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    output_format: Option<ImageFormat>,
    /// Compress the data; the target must be qcow2
    #[arg(short, long)]
    compress: bool,
    /// Overwrite an existing target
    #[arg(short = 'n', long)]
    no_create: bool,
    /// With -n: the target reads as zeros, so zeros need not be written
    #[arg(long, requires = "no_create")]
    target_is_zero: bool,
    /// Treatment of zeros; never: write all; auto: keep holes, and make holes of at least 4k of
    /// zeros; always: make holes of at least 512 bytes of zeros
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        conflicts_with = "sparse_size"
    )]
    sparse: Sparse,
    /// Minimum run of zeros that becomes a hole; 0 writes all zeros
    #[arg(short = 'S', value_name = "SIZE", value_parser = size)]
    sparse_size: Option<u64>,
    /// Number of threads; the default is one per core
    #[arg(
        short = 'm',
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: usize,
    /// Show progress, which a terminal does in any case
    #[arg(short = 'p')]
    progress: bool,
    /// Allow writes in any order; ignored: in order they are as fast
    #[arg(short = 'W', hide = true)]
    out_of_order: bool,
    #[command(flatten)]
    source: SourceOptions,
    #[command(flatten)]
    bitmaps: BitmapOptions,
    /// Largest number of bytes to copy in a second; 0 for any
    #[arg(short = 'r', long, value_name = "RATE", value_parser = size, default_value_t = 0, hide_default_value = true)]
    rate_limit: u64,
    /// Whether the target reaches the disk before the end: unsafe: not guaranteed; any other value:
    /// yes
    #[arg(
        short = 't',
        value_name = "CACHE",
        value_enum,
        default_value = "unsafe"
    )]
    cache_mode: CacheMode,
    #[command(flatten)]
    new_image: NewImageOptions,
    /// Accepted without effect: data is copied in any case
    #[arg(short = 'C', hide = true, conflicts_with_all = ["compress", "sparse_size"])]
    copy_offloading: bool,
    #[command(flatten)]
    source_cache: SourceCacheOptions,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
    /// A local file in place of a target in object storage, which is uploaded afterwards.
    #[arg(skip)]
    local_target: OnceLock<PathBuf>,
}

impl Convert {
    /// Returns the sources and the target.
    fn places(&self) -> Outcome<(&[PathBuf], &PathBuf)> {
        match self.images.split_last() {
            Some((target, sources @ [_, ..])) => {
                Ok((sources, self.local_target.get().unwrap_or(target)))
            }
            _ => Err(Failure::usage("a source and a target are required")),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sparse {
    Never,
    Auto,
    Always,
}

/// Runs the command. A new object is made on the host first: its tables are written last, and an
/// object is written once. The target of `-n` is a volume.
pub(crate) fn run(convert: &Convert, session: &Session) -> Outcome {
    #[cfg(feature = "object-store")]
    if let Some(target) = convert.images.last()
        && crate::objects::is_url(target.as_os_str())
        && !convert.no_create
    {
        let folder = tempfile::tempdir()?;
        let name = target.file_name().unwrap_or_default();
        let local = convert
            .local_target
            .get_or_init(|| folder.path().join(name));
        run_locally(convert, session)?;
        return crate::object_copy::upload_file(local, target.as_os_str(), session);
    }
    run_locally(convert, session)
}

fn run_locally(convert: &Convert, session: &Session) -> Outcome {
    let (sources, target_path) = convert.places()?;
    let output_format = convert
        .output_format
        .unwrap_or_else(|| ImageFormat::of_name(target_path));
    let resolve = |path: &PathBuf| convert.name.resolve(path, convert.format);
    let from = sources.iter().map(resolve).collect::<Outcome<Vec<_>>>()?;
    let source = convert.source.open(&from, &convert.backing, session)?;
    if convert.compress && output_format != ImageFormat::Qcow2 {
        return Err(Failure::usage(
            "-c: compression requires a qcow2 target; add -O qcow2",
        ));
    }
    if session.is_qemu_img() {
        convert.new_image.require_backing_format()?;
    }
    let options = new_image_options(convert, output_format)?;
    let bitmaps = convert.bitmaps.find(
        &from,
        convert.source.force_share,
        output_format,
        &options,
        session,
    )?;
    session.check_interrupt()?;
    let mut len_bytes = source.len_bytes();
    if session.is_qemu_img() {
        len_bytes = whole_sectors(len_bytes)?;
    }
    let target = open_target(convert, output_format, len_bytes, &options)?;
    let backing = target_backing(convert, &from, &options, &target);
    let bar = Progress::requested(session, convert.progress);
    bar.expect(len_bytes);
    let copy_options = CopyOptions {
        threads: convert.threads,
        zero_run_bytes: convert.sparse_size.unwrap_or(match convert.sparse {
            Sparse::Never => 0,
            Sparse::Auto => 4096,
            Sparse::Always => 512,
        }),
        is_target_zero: target.is_zero || convert.target_is_zero,
        backing,
        bytes_per_sec: convert.rate_limit,
        is_canceled: &|| session.is_interrupted(),
        progress: &|count| bar.add(count),
    };
    let copied = match &target.qcow2 {
        Some(target) if convert.compress => {
            block::tools::copy_compressed(&*source, target, &copy_options)
        }
        _ => block::tools::copy(&*source, &*target.device, &copy_options),
    };
    bar.finish();
    match copied {
        Ok(()) => {
            bar.complete();
            target.finish(&|path| match &bitmaps {
                Some(bitmaps) => bitmaps.copy(path),
                None => Ok(()),
            })
        }
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            Err(Failure::interrupted())
        }
        // The error names the file that failed, source or target.
        Err(error) if is_at_source(&error, &from) => Err(Failure::image(error)),
        Err(error) => Err(image_failure(error, target_path)),
    }
}

/// Creates the target, or opens an existing one.
fn open_target(
    convert: &Convert,
    format: ImageFormat,
    len_bytes: u64,
    options: &CreateOptions,
) -> Outcome<Target> {
    let target = TargetOptions {
        path: convert.places()?.1,
        format,
        backing: &convert.backing,
        cache_mode: convert.cache_mode,
    };
    if convert.no_create {
        target.existing()
    } else {
        target.create(len_bytes, options, convert.new_image.force)
    }
}

/// Whether an error names one of the sources.
fn is_at_source(error: &Error, sources: &[NamedImage]) -> bool {
    let mut names = sources.iter().map(|source| source.path.to_string_lossy());
    names.any(|name| error.place() == Some(&*name))
}

/// Returns the options of the new image.
fn new_image_options(convert: &Convert, format: ImageFormat) -> Outcome<CreateOptions> {
    let (mut options, _) = convert.new_image.create_options(format)?;
    if convert.no_create && !convert.new_image.options.is_empty() {
        return Err(Failure::usage(
            "-o: the options of a new image have no effect with -n",
        ));
    }
    if convert.compress && options.preallocation != Preallocation::Off {
        return Err(Failure::usage(
            "-c: compressed clusters cannot be preallocated; omit --preallocation",
        ));
    }
    let (sources, target) = convert.places()?;
    if options.backing.is_some() && sources.len() > 1 {
        return Err(Failure::usage(
            "-b: several images cannot be copied over a backing file",
        ));
    }
    if options.backing.is_some() && convert.target_is_zero {
        return Err(Failure::usage(
            "--target-is-zero: a target with a backing file does not read as zeros",
        ));
    }
    if let Some(backing) = &mut options.backing
        && backing.format.is_none()
    {
        // Stored, as by `create`.
        let path = beside(target, Path::new(&backing.name));
        let found = block::format_of(&path).map_err(|error| image_failure(error, &path))?;
        backing.format = Some(found);
    }
    Ok(options)
}

/// Returns the backing file of a new target, and its place in the source's chain.
fn target_backing<'a>(
    convert: &Convert,
    sources: &[NamedImage],
    options: &CreateOptions,
    target: &'a Target,
) -> Option<TargetBacking<'a>> {
    let name = options.backing.as_ref()?;
    let device = target.qcow2.as_ref()?.backing()?;
    let path = beside(convert.places().ok()?.1, Path::new(&name.name));
    Some(TargetBacking {
        device,
        depth: depth_in_source(convert, sources.first()?, &path, name.format),
        cluster_bytes: options.cluster_bytes.into(),
    })
}

/// Returns the depth of a file in the source's chain, if it is there and has the same format.
fn depth_in_source(
    convert: &Convert,
    source: &NamedImage,
    path: &Path,
    format: Option<ImageFormat>,
) -> Option<u32> {
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let wanted = identity(path)?;
    // Without the chain the contents are compared.
    let images = chain_images(&source.path, source.format, convert.source.force_share).ok()?;
    let depth = images.iter().position(|(path, found)| {
        identity(path) == Some(wanted) && format.is_none_or(|format| format == *found)
    })?;
    // A snapshot of the source is not its present content.
    let depth = Some(depth).filter(|depth| *depth > 0 || !convert.source.is_snapshot())?;
    u32::try_from(depth).ok()
}
