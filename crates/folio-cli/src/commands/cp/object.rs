//! Image files to and from object storage, as they are.

use crate::exit::{Failure, Outcome, explain};
use crate::objects::{images, is_url};
use crate::progress::Progress;
use crate::session::Session;
use crate::volumes::refuse_object;
use folio::base::Errno;
use folio::block::{Device, RawDevice};
use folio_object_store::{ObjectUrl, UploadProgress, upload};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of one read of a download.
const PIECE_BYTES: u64 = 4 << 20;
/// Zeros of this size and alignment become a hole.
const HOLE_BYTES: usize = 64 << 10;

/// Copies a file to a URL, or an object to a file, if exactly one of both is a URL.
pub(crate) fn run(source: &OsStr, destination: &OsStr, session: &Session) -> Option<Outcome> {
    match (is_url(source), is_url(destination)) {
        (false, true) => Some(upload_file(Path::new(source), destination, session)),
        (true, false) => Some(download(source, Path::new(destination), session)),
        _ => None,
    }
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

/// Downloads an object into a new file, which is complete when its name appears.
fn download(source: &OsStr, destination: &Path, session: &Session) -> Outcome {
    let url = parse_url(source)?;
    let Some(images) = images() else {
        return Err(Failure::usage("object storage is not set up"));
    };
    let device = images
        .open_object(&url)
        .map_err(|error| Failure::image(&error))?;
    let name = url.key().rsplit('/').next().unwrap_or_default();
    let path = if destination.is_dir() {
        destination.join(name)
    } else {
        destination.to_owned()
    };
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    let progress = Progress::new(session);
    progress.expect(device.len_bytes());
    let mut at = 0;
    let mut bytes = vec![0; PIECE_BYTES as usize];
    while at < device.len_bytes() {
        session.check_interrupt()?;
        let count = PIECE_BYTES.min(device.len_bytes() - at);
        let piece = &mut bytes[..count as usize];
        device
            .read_at(piece, at)
            .map_err(|error| Failure::new(explain(&error)))?;
        write_sparse(file.as_file(), piece, at)?;
        progress.add(count);
        at += count;
    }
    file.as_file().set_len(device.len_bytes())?;
    progress.finish();
    let mode = 0o666 & !rustix::process::umask(rustix::fs::Mode::empty()).bits();
    rustix::fs::fchmod(file.as_file(), rustix::fs::Mode::from_bits_truncate(mode))
        .map_err(std::io::Error::from)?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// Writes into a file of zeros; blocks of zeros stay holes.
fn write_sparse(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    let mut at = offset;
    for block in bytes.chunks(HOLE_BYTES) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, at)?;
        }
        at += block.len() as u64;
    }
    Ok(())
}
