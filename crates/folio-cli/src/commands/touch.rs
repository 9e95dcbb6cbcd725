//! `folio touch`: sets the times of files, and creates missing ones.

use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use clap::Args;
use folio::syscall::{AT_FDCWD, AtFlags, OpenFlags};
use folio::vfs::SetTime;
use folio::{Errno, Timespec};
use std::ffi::OsString;

/// Set a file's times, or create the file
#[derive(Args)]
#[command(after_help = "Example:\n  folio touch -d 2026-01-31T12:00:00Z disk.qcow2:/etc/stamp")]
pub(crate) struct Touch {
    /// Files, as IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Use this time instead of the current time: RFC 3339, or @SECONDS
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    date: Option<Timespec>,
    /// Set only the modification time
    #[arg(short)]
    modified: bool,
    /// Set only the access time
    #[arg(short)]
    accessed: bool,
    /// Do not create missing files
    #[arg(short, long)]
    no_create: bool,
}

fn time(text: &str) -> Result<Timespec, String> {
    if let Some(secs) = text.strip_prefix('@').and_then(|text| text.parse().ok()) {
        return Ok(Timespec::new(secs, 0));
    }
    let stamp = text.parse::<jiff::Timestamp>().or_else(|_| {
        let local = text.parse::<jiff::civil::DateTime>();
        local
            .and_then(|t| t.to_zoned(jiff::tz::TimeZone::system()))
            .map(|zoned| zoned.timestamp())
    });
    let stamp = stamp.map_err(|_| {
        format!("invalid time {text:?}: expected RFC 3339 or @SECONDS (e.g. 2026-01-31T12:00:00Z)")
    })?;
    let nanos = stamp.subsec_nanosecond();
    // jiff's fractions are negative before 1970; those of Timespec never are.
    let (secs, nanos) = if nanos < 0 {
        (stamp.as_second() - 1, nanos + 1_000_000_000)
    } else {
        (stamp.as_second(), nanos)
    };
    Ok(Timespec::new(secs, u32::try_from(nanos).unwrap_or(0)))
}

/// Runs the command.
pub(crate) fn run(touch: &Touch, session: &Session) -> Outcome {
    let time = touch.date.map_or(SetTime::Now, SetTime::To);
    let both = touch.modified == touch.accessed;
    for word in &touch.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let process = image.process();
            if !touch.no_create && image.stat(&place.path, true).is_err() {
                let flags = OpenFlags::WRONLY | OpenFlags::CREAT;
                let created = process
                    .open(&place.path, flags, 0o666)
                    .and_then(|fd| process.close(fd));
                created.map_err(|error| image.name(error))?;
            }
            let (accessed, modified) = (
                (both || touch.accessed).then_some(time),
                (both || touch.modified).then_some(time),
            );
            match process.utimensat(AT_FDCWD, &place.path, accessed, modified, AtFlags::empty()) {
                Err(error) if touch.no_create && error.errno() == Errno::NOENT => Ok(()),
                other => other.map_err(|error| image.name(error)),
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_1970_has_positive_fraction() {
        assert_eq!(
            time("1969-12-31T23:59:59.5Z"),
            Ok(Timespec::new(-1, 500_000_000))
        );
        assert_eq!(time("@12"), Ok(Timespec::new(12, 0)));
        assert!(time("noon").is_err());
    }
}
