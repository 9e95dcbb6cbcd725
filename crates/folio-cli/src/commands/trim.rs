//! `folio trim`: discards the free blocks of a file system, so that its image needs less space on
//! the host.

use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, open_device};
use crate::image_path::ImagePath;
use crate::output::human;
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio::block::{self, OpenOptions};
use folio::syscall::OpenFlags;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;

/// Bytes that are trimmed between two checks for Ctrl-C.
const STEP_BYTES: u64 = 1 << 30;

const AFTER_HELP: &str = "\
Free blocks are discarded in the image: a raw image becomes sparse there, a qcow2 image frees their clusters. The
contents of files do not change. To discard blocks as they become free, use the mount option -o discard.

Examples:
  folio trim disk.qcow2
  folio trim disk.img@2 --minimum 64K              leave short runs of free blocks alone
  folio trim disk.img --json";

/// Discard the free blocks of the file system in an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Trim {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Discard only runs of at least this many free bytes
    #[arg(
        short,
        long,
        value_name = "SIZE",
        default_value = "0",
        hide_default_value = true
    )]
    #[arg(value_parser = crate::value_parsers::size)]
    minimum: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(trim: &Trim, session: &Session) -> Outcome {
    let place = ImagePath::parse(&trim.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!("{place}: a whole file system is trimmed; omit the path");
        return Err(Failure::usage(text));
    }
    let options = OpenOptions {
        // Already open, so the lock of a second open would be refused.
        is_shared: true,
        ..OpenOptions::default()
    };
    let allocated = || match block::tools::info(&place.image, &options) {
        Ok(info) => Ok(info.allocated_bytes),
        Err(error) => Err(Failure::image(error)),
    };
    let device = open_device(&place.image, Access::Write)?;
    let before = allocated()?;
    let image = Image::mount(session, &place, device.clone(), Access::Write)?;
    let discarded = discard(trim, session, &image, device.len_bytes());
    let closed = image.close();
    let discarded = discarded?;
    closed?;
    // The file system has nothing to write, but a qcow2 image frees clusters at a flush.
    device.flush().map_err(Failure::image)?;
    drop(device);
    let after = allocated()?;
    let name = place.image_name();
    if trim.json {
        return session.print_json(&json!({
            "image": name,
            "discarded_bytes": discarded,
            "allocated_bytes_before": before,
            "allocated_bytes_after": after,
        }));
    }
    if !session.quiet {
        let (discarded, before, after) = (human(discarded), human(before), human(after));
        writeln!(
            std::io::stdout(),
            "{name}: {discarded} discarded; space of the image: {before} before, {after} now"
        )?;
    }
    Ok(())
}

/// Discards the free blocks before byte `end`; returns how many bytes they have.
fn discard(trim: &Trim, session: &Session, image: &Image, end: u64) -> Outcome<u64> {
    let process = image.process();
    let failed = |error| image.name(error);
    let root = process.open("/", OpenFlags::DIRECTORY, 0).map_err(failed)?;
    let progress = Progress::new(session);
    progress.expect(end);
    let mut discarded = 0;
    let mut at = 0;
    while at < end {
        session.check_interrupt()?;
        match process.fitrim(root, at..at + STEP_BYTES, trim.minimum) {
            Ok(count) => discarded += count,
            // The file system ends here.
            Err(error) if at > 0 && error.errno() == folio::Errno::INVAL => break,
            Err(error) if error.errno() == folio::Errno::NOTTY => {
                let text = "only ext4 is trimmed; the image holds another file system";
                return Err(failed(folio::Error::new(folio::Errno::NOTTY, text)));
            }
            Err(error) => return Err(failed(error)),
        }
        progress.add(STEP_BYTES);
        at += STEP_BYTES;
    }
    progress.finish();
    process.close(root).map_err(failed)?;
    Ok(discarded)
}
