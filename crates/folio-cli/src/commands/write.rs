//! `folio write`: writes standard input to a file.

use crate::exit::{Failure, Outcome, explain};
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use folio::AlignedBuffer;
use folio::syscall::OpenFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::io::{Read, StdinLock};

/// Write standard input to a file
#[derive(Args)]
#[command(after_help = "Example:\n  echo hello | folio write disk.qcow2:/etc/motd")]
pub(crate) struct Write {
    /// The file, as IMAGE:/path
    file: OsString,
    /// Append to the file
    #[arg(long)]
    append: bool,
}

/// Runs the command.
pub(crate) fn run(write: &Write, session: &Session) -> Outcome {
    let place = ImagePath::parse(&write.file)?;
    with_image(session, &place, Access::Write, |image| {
        fill(write, image, &place, session)
    })
}

fn fill(write: &Write, image: &Image, place: &ImagePath, session: &Session) -> Outcome {
    let process = image.process();
    let start = if write.append {
        OpenFlags::APPEND
    } else {
        OpenFlags::TRUNC
    };
    let flags = OpenFlags::WRONLY | OpenFlags::CREAT | start;
    let fd = process
        .open(&place.path, flags, 0o644)
        .map_err(|error| image.name(error))?;
    let mut buf = AlignedBuffer::new(256 << 10);
    let mut input = std::io::stdin().lock();
    let result = loop {
        if session.is_interrupted() {
            break Err(Failure::interrupted());
        }
        if !has_input(&input) {
            continue;
        }
        let count = match input.read(&mut buf) {
            Ok(0) => break Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => break Err(Failure::new(format!("standard input: {error}"))),
        };
        let mut rest = &buf[..count];
        let mut written = Ok(());
        while !rest.is_empty() && written.is_ok() {
            written = process.write(fd, rest).map(|count| rest = &rest[count..]);
        }
        if let Err(error) = written {
            let (why, hint) = (explain(&error), image.full_hint(&error));
            break Err(Failure::new(format!("{place}: {why}{hint}")));
        }
    };
    process.close(fd)?;
    result
}

/// Time after which a wait for input sees Ctrl-C.
const INPUT_POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Waits for input, but not for long: a terminal or a pipe may send none before Ctrl-C.
fn has_input(input: &StdinLock<'_>) -> bool {
    let mut waits = [PollFd::new(input, PollFlags::IN)];
    // A failure is that of the read that follows.
    match poll(&mut waits, Some(&INPUT_POLL)) {
        Ok(ready) => ready > 0,
        Err(error) => error != rustix::io::Errno::INTR,
    }
}
