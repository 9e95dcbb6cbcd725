//! `folio image dd`: copies a part of an image into a new one, with the operands of dd(1).

use super::target::TargetOptions;
use crate::arguments::image_options::{BackingOptions, CacheMode, image_failure};
use crate::exit::{Failure, Outcome};
use crate::image_name::NameOptions;
use crate::progress::Progress;
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::block::partition::PartitionDevice;
use folio::block::tools::CopyOptions;
use folio::block::{self, ConcatenatedDevice, CreateOptions, Device, ImageFormat};
use folio::{Errno, Error};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest size of a block in bytes, as in qemu-img.
const BLOCK_BYTES_MAX: u64 = i32::MAX as u64;

const AFTER_HELP: &str = "\
Operands: if=FILE and of=FILE, and bs=SIZE (the default is 512), skip=N and count=N: blocks to omit at the start, and to
copy. The new image is as large as the part.

Examples:
  folio image dd if=disk.qcow2 of=part.img bs=1M skip=1 count=100
  folio image dd -O qcow2 if=disk.img of=disk.qcow2";

/// Copy a part of an image into a new one
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Dd {
    /// if=FILE, of=FILE, bs=SIZE, skip=N, count=N
    #[arg(required = true, value_name = "OPERAND")]
    operands: Vec<String>,
    /// Format of the source; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Format of the target; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(short = 'O', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    output_format: Option<ImageFormat>,
    /// Read the source even if another process writes it
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Overwrite an existing target
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

/// The operands.
struct Operands {
    source: PathBuf,
    target: PathBuf,
    block_bytes: u64,
    skip: u64,
    count: Option<u64>,
}

impl Operands {
    fn parse(words: &[String]) -> Outcome<Self> {
        let (mut source, mut target) = (None, None);
        let (mut block_bytes, mut skip, mut count) = (512, 0, None);
        for word in words {
            let number =
                |value| size(value).map_err(|why| Failure::usage(format!("{word}: {why}")));
            match word.split_once('=') {
                Some(("if", value)) => source = Some(value.into()),
                Some(("of", value)) => target = Some(value.into()),
                Some(("bs", value)) => block_bytes = number(value)?,
                Some(("skip", value)) => skip = number(value)?,
                Some(("count", value)) => count = Some(number(value)?),
                _ => {
                    let why = "expected if=, of=, bs=, skip= or count=";
                    return Err(Failure::usage(format!("invalid operand {word:?}: {why}")));
                }
            }
        }
        if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            let why = format!("bs={block_bytes}: expected 1 to {BLOCK_BYTES_MAX}");
            return Err(Failure::usage(why));
        }
        let (Some(source), Some(target)) = (source, target) else {
            return Err(Failure::usage("expected if=FILE and of=FILE"));
        };
        Ok(Self {
            source,
            target,
            block_bytes,
            skip,
            count,
        })
    }

    /// Returns start and length of the part of a source; none if it starts behind the end.
    fn part(&self, len_bytes: u64, session: &Session) -> Option<(u64, u64)> {
        let bytes = |blocks: u64| blocks.saturating_mul(self.block_bytes);
        // qemu-img counts from the start of the source, dd(1) from the part's.
        let before = if session.is_qemu_img() { 0 } else { self.skip };
        let blocks = self.count.map(|count| bytes(before.saturating_add(count)));
        let end = blocks.unwrap_or(len_bytes).min(len_bytes);
        let start = bytes(self.skip);
        Some((start, end.checked_sub(start)?))
    }
}

/// Runs the command.
pub(crate) fn run(dd: &Dd, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let operands = Operands::parse(&dd.operands)?;
    let from = dd.name.resolve(&operands.source, dd.format)?;
    let source = dd.backing.open(&from.path, from.format, dd.force_share)?;
    // Whole sectors.
    let source: Arc<dyn Device> = Arc::new(ConcatenatedDevice::new(vec![source])?);
    let part = operands.part(source.len_bytes(), session);
    if part.is_none() {
        let name = from.path.display();
        session.note(format!(
            "{name}: skip= is behind the end: the target is empty"
        ));
    }
    let (start, len_bytes) = part.unwrap_or_default();
    let path = local(&operands.target)?;
    let target = TargetOptions {
        path: &path,
        format: dd
            .output_format
            .unwrap_or_else(|| ImageFormat::of_name(&path)),
        backing: &dd.backing,
        cache_mode: CacheMode::Writeback,
    };
    let target = target.create(len_bytes, &CreateOptions::default(), dd.force)?;
    let bar = Progress::requested(session, false);
    bar.expect(len_bytes);
    let options = CopyOptions {
        is_target_zero: target.is_zero,
        is_canceled: &|| session.is_interrupted(),
        progress: &|count| bar.add(count),
        ..CopyOptions::default()
    };
    let copied = match len_bytes {
        0 => Ok(()),
        _ => PartitionDevice::new(source, start, len_bytes)
            .and_then(|part| block::tools::copy(&part, &*target.device, &options)),
    };
    bar.finish();
    match copied {
        Ok(()) => target.finish(&|_| Ok(())),
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            Err(Failure::interrupted())
        }
        Err(error) => Err(failure(error, &from.path, &path)),
    }
}

/// Returns the local path of the target.
fn local(name: &Path) -> Outcome<PathBuf> {
    crate::image_name::local(name).map_err(Failure::usage)
}

/// Returns the failure of a copy, whose error may name the source.
fn failure(error: Error, source: &Path, target: &Path) -> Failure {
    let is_source = error.place() == Some(&*source.to_string_lossy());
    image_failure(error, if is_source { source } else { target })
}
