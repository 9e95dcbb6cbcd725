//! Image files to and from object storage, as they are.

use crate::exit::{Failure, Outcome, explain};
use crate::objects::{images, is_url};
use crate::progress::Progress;
use crate::session::Session;
use crate::volumes::refuse_object;
use folio::base::Errno;
use folio::block::{CreateOptions, Device, ImageFormat, NewImage, RawDevice};
use folio_object_store::{ObjectUrl, UploadProgress, upload};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of one read of a download.
const PIECE_BYTES: u64 = 4 << 20;
/// Zeros of this size and alignment become a hole.
const HOLE_BYTES: usize = 64 << 10;

/// Copies a file to a URL, or an object to a file, if exactly one of both is a URL.
pub(crate) fn run(source: &OsStr, destination: &OsStr, session: &Session) -> Option<Outcome> {
    if is_url(source) == is_url(destination) {
        return None;
    }
    Some(if is_url(source) {
        download(source, Path::new(destination), session)
    } else {
        upload_file(Path::new(source), destination, session)
    })
}

/// Parses a URL of the command line.
pub(crate) fn parse_url(word: &OsStr) -> Outcome<ObjectUrl> {
    let text = word.to_string_lossy();
    text.parse()
        .map_err(|error| Failure::usage(explain(&error)))
}

/// Uploads a file of the host, with progress.
pub(crate) fn upload_file(source: &Path, destination: &OsStr, session: &Session) -> Outcome {
    let mut url = parse_url(destination)?;
    if (url.key().is_empty() || url.key().ends_with('/'))
        && let Some(name) = source.file_name().and_then(OsStr::to_str)
    {
        // As cp(1) and the tools of the stores: into the "directory".
        url = url.with_key(format!("{}{name}", url.key()));
    }
    refuse_object(&url)?;
    let failed = |error: folio::Error| Failure::new(explain(&error));
    let device = RawDevice::open(source, true).map_err(failed)?;
    let Some(images) = images() else {
        return Err(Failure::usage("object storage is not set up"));
    };
    let store = images.connect(&url).map_err(failed)?;
    let progress = Progress::new(session);
    progress.expect(device.len_bytes());
    let uploaded = upload(
        &store,
        &device,
        &UploadProgress {
            advance: &|count| progress.add(count),
            is_canceled: &|| session.is_interrupted(),
        },
    );
    progress.finish();
    match uploaded {
        Err(error) if error.errno() == Errno::INTR && session.is_interrupted() => {
            Err(Failure::interrupted())
        }
        uploaded => uploaded.map_err(failed),
    }
}

/// Downloads an object into a new file, an existing one, or a block device, as
/// `folio image convert` writes them: other kinds of files are refused.
fn download(source: &OsStr, destination: &Path, session: &Session) -> Outcome {
    let url = parse_url(source)?;
    let Some(images) = images() else {
        return Err(Failure::usage("object storage is not set up"));
    };
    let device = images.open_object(&url).map_err(Failure::image)?;
    let name = url.key().rsplit('/').next().unwrap_or_default();
    let path = if destination.is_dir() {
        destination.join(name)
    } else {
        destination.to_owned()
    };
    if is_same_file(&url, &path) {
        let why = "source and destination are the same file";
        return Err(Failure::new(format!("{}: {why}", path.display())));
    }
    let failed = |error: folio::Error| Failure::image(error);
    let (len_bytes, options) = (device.len_bytes(), CreateOptions::default());
    let new =
        NewImage::create(&path, ImageFormat::Raw, len_bytes, &options, true).map_err(failed)?;
    let target = RawDevice::open(new.path(), false).map_err(failed)?;
    let progress = Progress::new(session);
    progress.expect(len_bytes);
    let mut at = 0;
    let mut bytes = vec![0; PIECE_BYTES as usize];
    while at < len_bytes {
        session.check_interrupt()?;
        let count = PIECE_BYTES.min(len_bytes - at);
        let piece = &mut bytes[..count as usize];
        device
            .read_at(piece, at)
            .map_err(|error| Failure::new(explain(&error)))?;
        write_sparse(&target, new.is_zero(), piece, at).map_err(failed)?;
        progress.add(count);
        at += count;
    }
    target.flush().map_err(failed)?;
    drop(target);
    let is_file = new.is_zero();
    if is_file {
        // A new image has whole sectors; a copy has the length of its source.
        let file = File::options().write(true).open(new.path())?;
        file.set_len(len_bytes)?;
        file.sync_all()?;
    }
    progress.finish();
    new.finish().map_err(failed)
}

/// Returns whether an object is the host's file at a path, whose first write would destroy it.
fn is_same_file(url: &ObjectUrl, path: &Path) -> bool {
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let source = url.host_path().and_then(|path| identity(&path));
    source.is_some() && source == identity(path)
}

/// Writes bytes; if the target reads as zeros, blocks of zeros stay holes.
fn write_sparse(target: &RawDevice, is_zero: bool, bytes: &[u8], offset: u64) -> folio::Result<()> {
    let mut at = offset;
    for block in bytes.chunks(HOLE_BYTES) {
        if !is_zero || block.iter().any(|byte| *byte != 0) {
            target.write_at(block, at)?;
        }
        at += block.len() as u64;
    }
    Ok(())
}
