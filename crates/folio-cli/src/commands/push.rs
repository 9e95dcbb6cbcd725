//! `folio push`: uploads the changes in an overlay into the object below it.

use crate::exit::{Failure, Outcome, explain};
use crate::object_copy::parse_url;
use crate::objects::images;
use crate::output::human;
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio::base::Errno;
use folio::block::qcow2::Qcow2Device;
use folio::block::{
    self, BackingPolicy, ConcatenatedDevice, CreateOptions, Device, ImageFormat, MemoryDevice,
    OpenOptions, RawDevice,
};
use folio::{Error, Result};
use folio_object_store::{ObjectDevice, ObjectUrl, Replaced, UploadProgress, replace};
use serde_json::json;
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Space for new tables of a qcow2 object, beside that of the data.
const TABLE_BYTES: u64 = 64 << 20;

const HELP: &str = "\
OVERLAY is a qcow2 image whose backing file is the object at URL. Its changes are written into a new version of the
object, and only parts of 8 MiB that change are uploaded where the store can copy the rest (S3: UploadPartCopy). The
object is replaced at the end in one step, and only if its ETag is still that of the start: else the command fails and
the store keeps what it has. The changes of a qcow2 object need as much space in the folder for temporary files.

Afterwards OVERLAY has no differences to the object: remove it, or continue to write into it.

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
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
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
    let overlay = block::open(&push.overlay, &options).map_err(Failure::image)?;
    let changed = Changed::new(overlay, &object, &url).map_err(failed)?;
    let Some(changed) = changed else {
        return report(push, session, &url, None);
    };
    let progress = Progress::new(session);
    progress.expect(changed.len_bytes);
    let replaced = replace(
        object.store(),
        &e_tag,
        &*changed.source,
        changed.len_bytes,
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
            drop(changed);
            // The overlay fits the new version too. Without its entity tag, the next open asks.
            block::tools::record_backing_version(&push.overlay, replaced.e_tag.as_deref())
                .map_err(failed)?;
            report(push, session, &url, Some(replaced))
        }
    }
}

/// Reports what was sent; none if the overlay has no changes.
fn report(push: &Push, session: &Session, url: &ObjectUrl, replaced: Option<Replaced>) -> Outcome {
    let is_replaced = replaced.is_some();
    let Replaced {
        sent_bytes,
        copied_bytes,
        ..
    } = replaced.unwrap_or_default();
    if push.json {
        return session.print_json(&json!({
            "url": url.to_string(),
            "is_replaced": is_replaced,
            "sent_bytes": sent_bytes,
            "copied_bytes": copied_bytes,
        }));
    }
    if is_replaced {
        session.note(format_args!(
            "{url}: replaced; {} sent, {} copied in the store",
            human(sent_bytes),
            human(copied_bytes)
        ));
    } else {
        session.note(format_args!("{url}: the overlay has no changes"));
    }
    Ok(())
}

/// Checks that the object is the overlay's backing file.
fn check_backing(overlay: &Path, url: &ObjectUrl) -> Outcome {
    let info = block::tools::info(overlay, &OpenOptions::default());
    let info = info.map_err(Failure::image)?;
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
    source: Arc<dyn Device>,
    len_bytes: u64,
    old_bytes: u64,
    /// Where it differs from the old content, in order.
    ranges: Vec<Range<u64>>,
}

impl Changed {
    /// Returns the object with the overlay's changes; none if it has none.
    fn new(
        overlay: Arc<dyn Device>,
        object: &Arc<ObjectDevice>,
        url: &ObjectUrl,
    ) -> Result<Option<Self>> {
        let format = block::format_of(url.to_string())?;
        let changes = changed_ranges(&*overlay)?;
        if changes.is_empty() {
            return Ok(None);
        }
        let old_bytes = object.len_bytes();
        match format {
            ImageFormat::Raw => {
                check_size(overlay.len_bytes() == old_bytes, url)?;
                Ok(Some(Self {
                    source: overlay,
                    len_bytes: old_bytes,
                    old_bytes,
                    ranges: changes.into_iter().map(|(range, _)| range).collect(),
                }))
            }
            ImageFormat::Qcow2 => Self::of_qcow2(&*overlay, &changes, object, url).map(Some),
            other => Err(Error::unsupported(format!("push into a {other} image"))),
        }
    }

    /// Applies the changes to the qcow2 image in the object. What this writes into the object's
    /// file goes into a layer of its own, in a temporary file.
    fn of_qcow2(
        overlay: &dyn Device,
        changes: &[(Range<u64>, bool)],
        object: &Arc<ObjectDevice>,
        url: &ObjectUrl,
    ) -> Result<Self> {
        let old_bytes = object.len_bytes();
        let sizes = changes.iter().map(|(range, _)| range.end - range.start);
        // The image grows into zeros behind its end.
        let room = (2 * sizes.sum::<u64>() + TABLE_BYTES).next_multiple_of(PIECE_BYTES);
        let room = MemoryDevice::new(room + PIECE_BYTES - old_bytes % PIECE_BYTES);
        let whole = ConcatenatedDevice::new(vec![object.clone(), Arc::new(room)])?;
        let source: Arc<dyn Device> = Arc::new(temporary_layer(Arc::new(whole))?);
        let image = open_qcow2(source.clone(), url)?;
        check_size(overlay.len_bytes() <= image.len_bytes(), url)?;
        apply(overlay, changes, &image)?;
        image.flush()?;
        let ranges: Vec<_> = changed_ranges(&*source)?
            .into_iter()
            .map(|(range, _)| range)
            .collect();
        let end = ranges.last().map_or(0, |range| range.end);
        Ok(Self {
            source,
            len_bytes: old_bytes.max(end),
            old_bytes,
            ranges,
        })
    }

    /// Whether a range is as in the old version.
    fn is_same(&self, range: &Range<u64>) -> bool {
        let first = self
            .ranges
            .partition_point(|changed| changed.end <= range.start);
        let is_changed = self
            .ranges
            .get(first)
            .is_some_and(|changed| changed.start < range.end);
        range.end <= self.old_bytes && !is_changed
    }
}

fn check_size(fits: bool, url: &ObjectUrl) -> Result<()> {
    if fits {
        return Ok(());
    }
    let why = "the overlay and the disk in the object have different sizes: download the object, \
               resize and commit there, then folio cp it back";
    Err(Error::unsupported(why).at(url.to_string()))
}

/// Returns a layer over a device that takes all writes, in a temporary file without a name.
fn temporary_layer(lower: Arc<dyn Device>) -> Result<Qcow2Device> {
    let failed = |error| Error::io("create a temporary file", error);
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    // Sparse: clusters take space when they are written.
    let len_bytes = lower.len_bytes();
    file.as_file()
        .set_len(2 * len_bytes + TABLE_BYTES)
        .map_err(failed)?;
    let device = Arc::new(RawDevice::open(file.path(), false)?);
    drop(Qcow2Device::create_on(
        device.clone(),
        len_bytes,
        &CreateOptions::default(),
    )?);
    Qcow2Device::open_over(device, lower)
}

/// Opens the qcow2 image in the new content, with its own backing file if it has one.
fn open_qcow2(file: Arc<dyn Device>, url: &ObjectUrl) -> Result<Qcow2Device> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    match block::tools::info(url.to_string(), &options)?.backing_path {
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
fn apply(overlay: &dyn Device, ranges: &[(Range<u64>, bool)], target: &dyn Device) -> Result<()> {
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
