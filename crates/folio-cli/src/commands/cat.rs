//! `folio cat`: prints the contents of files.

use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use folio::AlignedBuffer;
use folio::syscall::OpenFlags;
use std::ffi::OsString;
use std::io::Write;

/// Print the contents of files
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio cat disk.qcow2:/etc/fstab\n  folio cat 'disk.qcow2:/etc/*.conf'"
)]
pub(crate) struct Cat {
    /// Files, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    files: Vec<OsString>,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
}

/// Runs the command.
pub(crate) fn run(cat: &Cat, session: &Session) -> Outcome {
    cat.share.apply(session);
    for word in &cat.files {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Read, |image| {
            let mut paths = image.expand(&place.path).into_iter();
            paths.try_for_each(|path| print(image, &place.with_path(path), session))
        })?;
    }
    Ok(())
}

fn print(image: &Image, place: &ImagePath, session: &Session) -> Outcome {
    let process = image.process();
    let fd = match process.open(&place.path, OpenFlags::empty(), 0) {
        Ok(fd) => fd,
        Err(error) => {
            session.fail(image.name(error).message);
            return Ok(());
        }
    };
    let mut buf = AlignedBuffer::new(256 << 10);
    let mut out = std::io::stdout().lock();
    let result = loop {
        if session.is_interrupted() {
            break session.check_interrupt();
        }
        match process.read(fd, &mut buf) {
            Ok(0) => break out.flush().map_err(Into::into),
            Ok(count) => {
                if let Err(error) = out.write_all(&buf[..count]) {
                    break Err(error.into());
                }
            }
            Err(error) => {
                session.fail_at(place, &error);
                break Ok(());
            }
        }
    };
    process.close(fd)?;
    result
}
