//! `folio push`: uploads the changes in an overlay into the object below it.

use super::cp::object::parse_url;
use crate::exit::{Failure, Outcome, explain};
use crate::objects::images;
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio::base::Errno;
use folio::block::{
    self, BackingPolicy, ConcatenatedDevice, Device, ImageFormat, MemoryDevice, OpenOptions,
    OverlayDevice, Qcow2Device,
};
use folio::{Error, Result};
use folio_object_store::{ObjectDevice, ObjectUrl, Replaced, UploadProgress, replace};
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes of a page of an [`OverlayDevice`].
const PAGE_BYTES: u64 = 4096;
/// Space for new tables of a qcow2 object, beside that of the data.
const TABLE_BYTES: u64 = 64 << 20;

const HELP: &str = "\
OVERLAY is a qcow2 image whose backing file is the object at URL. Its changes are written into a new version of the
object, and only parts of 8 MiB that change are uploaded where the store can copy the rest (S3: UploadPartCopy). The
object is replaced at the end in one step, and only if its ETag is still that of the start: else the command fails and
the store keeps what it has. The changes are held in memory meanwhile.

Afterwards OVERLAY has no differences to the object: remove it, or create a new one.

Examples:
  folio image create -f qcow2 -b s3://bucket/disk.qcow2 -F qcow2 --backing allow overlay.qcow2
  folio cp --backing-url s3://bucket/ app.conf overlay.qcow2:/etc/
  folio push overlay.qcow2 s3://bucket/disk.qcow2";

/// Upload the changes in an overlay into the object that is its backing file
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Push {
    /// The overlay, a local qcow2 image
    overlay: PathBuf,
    /// The object
    url: OsString,
}

/// Runs the command.
pub(crate) fn run(push: &Push, session: &Session) -> Outcome {
    session.refuse_options()?;
    let url = parse_url(&push.url)?;
    check_backing(&push.overlay, &url)?;
    let failed = |error: Error| Failure::new(explain(&error));
    let Some(images) = images() else {
        return Err(Failure::usage("object storage is not set up"));
    };
    let object = Arc::new(images.open_object(&url).map_err(failed)?);
    let Some(e_tag) = object.e_tag().map(ToOwned::to_owned) else {
        let text = format!("{url}: the store has no ETags, so a replacement could lose changes");
        return Err(Failure::new(text));
    };
    let options = OpenOptions {
        read_only: true,
        backing: BackingPolicy::Within(url.to_string().into()),
        ..OpenOptions::default()
    };
    let overlay = block::open(&push.overlay, &options).map_err(|error| Failure::image(&error))?;
    let changed = Changed::new(&*overlay, &object, &url).map_err(failed)?;
    let Some(changed) = changed else {
        session.note(format_args!("{url}: the overlay has no changes"));
        return Ok(());
    };
    let progress = Progress::new(session);
    progress.expect(changed.len_bytes);
    let replaced = replace(
        object.store(),
        &e_tag,
        (&*changed.file, changed.len_bytes),
        &|range| changed.is_same(range),
        &UploadProgress {
            advance: &|count| progress.add(count),
            is_canceled: &|| session.is_interrupted(),
        },
    );
    progress.finish();
    match replaced {
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            Err(Failure::interrupted())
        }
        Err(error) => Err(failed(error)),
        Ok(replaced) => {
            report(session, &url, replaced);
            Ok(())
        }
    }
}

fn report(session: &Session, url: &ObjectUrl, replaced: Replaced) {
    if !session.quiet {
        let Replaced {
            sent_bytes,
            copied_bytes,
        } = replaced;
        session.note(format_args!(
            "{url}: replaced; {sent_bytes} bytes sent, {copied_bytes} bytes copied in the store"
        ));
    }
}

/// Checks that the object is the overlay's backing file.
fn check_backing(overlay: &Path, url: &ObjectUrl) -> Outcome {
    let info = block::info(overlay, &OpenOptions::default());
    let info = info.map_err(|error| Failure::image(&error))?;
    let found = info.backing_path.unwrap_or_default();
    if found.as_os_str() == url.to_string().as_str() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{}: its backing file is {:?}, not {url}",
        overlay.display(),
        found.display().to_string()
    )))
}

/// The new content of an object.
struct Changed {
    file: Arc<OverlayDevice>,
    len_bytes: u64,
    old_bytes: u64,
    /// Offsets of changed pages, in order.
    pages: Vec<u64>,
}

impl Changed {
    /// Applies the overlay's changes to the object in memory; none if it has no changes.
    fn new(
        overlay: &dyn Device,
        object: &Arc<ObjectDevice>,
        url: &ObjectUrl,
    ) -> Result<Option<Self>> {
        let old_bytes = object.len_bytes();
        let format = block::format_of(url.to_string())?;
        let ranges = changed_ranges(overlay)?;
        if ranges.is_empty() {
            return Ok(None);
        }
        let file = match format {
            ImageFormat::Raw => {
                let file = Arc::new(OverlayDevice::new(object.clone()));
                apply(overlay, &ranges, &*file, url)?;
                file
            }
            ImageFormat::Qcow2 => {
                let data: u64 = ranges
                    .iter()
                    .map(|(range, _)| range.end - range.start)
                    .sum();
                // The image grows into zeros behind its end.
                let room = (2 * data + TABLE_BYTES).next_multiple_of(PIECE_BYTES);
                let room = Arc::new(MemoryDevice::new(
                    room + PIECE_BYTES - old_bytes % PIECE_BYTES,
                ));
                let whole = ConcatenatedDevice::new(vec![object.clone(), room])?;
                let file = Arc::new(OverlayDevice::new(Arc::new(whole)));
                let image = open_qcow2(file.clone(), url)?;
                apply(overlay, &ranges, &image, url)?;
                image.flush()?;
                file
            }
        };
        let pages = file.written_offsets();
        let end = pages.last().map_or(0, |page| page + PAGE_BYTES);
        Ok(Some(Self {
            len_bytes: match format {
                ImageFormat::Raw => old_bytes,
                ImageFormat::Qcow2 => old_bytes.max(end),
            },
            file,
            old_bytes,
            pages,
        }))
    }

    /// Whether a range is as in the old version.
    fn is_same(&self, range: &Range<u64>) -> bool {
        let first = self
            .pages
            .partition_point(|page| page + PAGE_BYTES <= range.start);
        let is_changed = self.pages.get(first).is_some_and(|page| *page < range.end);
        range.end <= self.old_bytes && !is_changed
    }
}

/// Opens the qcow2 image in the new content, with its own backing file if it has one.
fn open_qcow2(file: Arc<dyn Device>, url: &ObjectUrl) -> Result<Qcow2Device> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    match block::info(url.to_string(), &options)?.backing_path {
        None => Qcow2Device::open_on(file),
        Some(path) => Qcow2Device::open_over(file, block::open(path, &options)?),
    }
}

/// Returns the ranges that the overlay itself stores, and whether they are zeros.
fn changed_ranges(overlay: &dyn Device) -> Result<Vec<(Range<u64>, bool)>> {
    let (mut at, mut ranges) = (0, Vec::new());
    while at < overlay.len_bytes() {
        let (entry, count) = overlay.map_entry(at, overlay.len_bytes() - at)?;
        if entry.depth == 0 && entry.is_present {
            ranges.push((at..at + count, entry.is_zero));
        }
        at += count;
    }
    Ok(ranges)
}

/// Writes the changed ranges of the overlay into the disk in the object.
fn apply(
    overlay: &dyn Device,
    ranges: &[(Range<u64>, bool)],
    target: &dyn Device,
    url: &ObjectUrl,
) -> Result<()> {
    if overlay.len_bytes() > target.len_bytes() {
        let why = "the overlay is larger than the disk in the object: resize the object's image";
        return Err(Error::unsupported(why).at(url.to_string()));
    }
    let mut bytes = vec![0; PIECE_BYTES as usize];
    for (range, is_zero) in ranges {
        if *is_zero {
            target.write_zeroes(range.start, range.end - range.start)?;
            continue;
        }
        let mut at = range.start;
        while at < range.end {
            let count = PIECE_BYTES.min(range.end - at);
            let piece = &mut bytes[..count as usize];
            overlay.read_at(piece, at)?;
            target.write_at(piece, at)?;
            at += count;
        }
    }
    Ok(())
}
