//! `folio chmod`, `chown`, `touch` and `truncate`: commands that change attributes.

use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, with_image};
use crate::output::Owners;
use crate::place::ImagePath;
use crate::session::Session;
use crate::walk::{Met, Next, Visitor, walk};
use clap::Args;
use folio::syscall::{AT_FDCWD, AtFlags, OpenFlags};
use folio::vfs::{FileType, SetTime};
use folio::{Errno, Timespec};
use std::ffi::OsString;

/// Change modes
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio chmod 600 disk.qcow2:/etc/key\n  folio chmod -R u=rwX,go-w disk.qcow2:/srv"
)]
pub(crate) struct Chmod {
    /// Directories with all below them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Octal, or symbolic as chmod(1) has it
    #[arg(allow_hyphen_values = true)]
    mode: String,
    /// Files, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs `chmod`.
pub(crate) fn chmod(chmod: &Chmod, session: &Session) -> Outcome {
    parse_mode(&chmod.mode, 0, false)?;
    each(session, &chmod.places, chmod.recursive, |image, met| {
        if met.attributes.file_type == FileType::Symlink && met.depth > 0 {
            return Ok(());
        }
        let found = image
            .stat(met.path, true)
            .map_err(|error| image.name(error))?;
        let mode = parse_mode(
            &chmod.mode,
            found.mode,
            found.file_type == FileType::Directory,
        )?;
        image
            .process()
            .chmod(met.path, mode)
            .map_err(|error| image.name(error))
    })
}

/// Change owners
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio chown -R 1000:1000 disk.qcow2:/home/me\n  folio chown root: disk.qcow2:/etc/key"
)]
#[command(disable_help_flag = true)]
pub(crate) struct Chown {
    /// Directories with all below them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// A symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// OWNER, OWNER:GROUP or :GROUP; numbers, or names that the image's /etc/passwd and /etc/group
    /// have
    owner: String,
    /// Files, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs `chown`.
pub(crate) fn chown(chown: &Chown, session: &Session) -> Outcome {
    let (user, group) = chown.owner.split_once(':').unwrap_or((&chown.owner, ""));
    each(session, &chown.places, chown.recursive, |image, met| {
        // Numbers need no table.
        let is_named = |text: &str| !text.is_empty() && text.parse::<u32>().is_err();
        let owners = (is_named(user) || is_named(group)).then(|| Owners::of(image));
        let number = |text: &str, find: &dyn Fn(&Owners) -> Option<u32>| -> Outcome<Option<u32>> {
            if text.is_empty() {
                return Ok(None);
            }
            let found = text.parse().ok().or_else(|| owners.as_ref().and_then(find));
            found
                .map(Some)
                .ok_or_else(|| Failure::new(format!("{text}: the image knows no such name")))
        };
        let uid = number(user, &|owners| owners.find_user(user))?;
        let gid = number(group, &|owners| owners.find_group(group))?;
        let is_link = chown.no_dereference || met.depth > 0;
        let flags = if is_link {
            AtFlags::SYMLINK_NOFOLLOW
        } else {
            AtFlags::empty()
        };
        let changed = image
            .process()
            .fchownat(AT_FDCWD, met.path, uid, gid, flags);
        changed.map_err(|error| image.name(error))
    })
}

/// Change a file's times, or make it
#[derive(Args)]
#[command(after_help = "Example:\n  folio touch -d 2026-01-31T12:00:00Z disk.qcow2:/etc/stamp")]
pub(crate) struct Touch {
    /// Files, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
    /// This time instead of now: RFC 3339, or @SECONDS
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    date: Option<Timespec>,
    /// Only the time of modification
    #[arg(short)]
    modified: bool,
    /// Only the time of access
    #[arg(short)]
    accessed: bool,
    /// Do not make files
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
    let stamp =
        stamp.map_err(|_| format!("{text:?} is no time, such as 2026-01-31T12:00:00Z or @0"))?;
    let nanos = stamp.subsec_nanosecond();
    // Before 1970 fractions count backwards; ours never do.
    let (secs, nanos) = if nanos < 0 {
        (stamp.as_second() - 1, nanos + 1_000_000_000)
    } else {
        (stamp.as_second(), nanos)
    };
    Ok(Timespec::new(secs, u32::try_from(nanos).unwrap_or(0)))
}

/// Runs `touch`.
pub(crate) fn touch(touch: &Touch, session: &Session) -> Outcome {
    let time = touch.date.map_or(SetTime::Now, SetTime::To);
    let both = touch.modified == touch.accessed;
    for word in &touch.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let process = image.process();
            if !touch.no_create && image.stat(&place.path, true).is_err() {
                let flags = OpenFlags::WRONLY | OpenFlags::CREAT;
                let made = process
                    .open(&place.path, flags, 0o666)
                    .and_then(|fd| process.close(fd));
                made.map_err(|error| image.name(error))?;
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

/// Set the size of files
#[derive(Args)]
#[command(after_help = "Example:\n  folio truncate -s 1G disk.qcow2:/swapfile")]
pub(crate) struct Truncate {
    /// The size
    #[arg(short, long, value_parser = crate::args::size)]
    size: u64,
    /// Files, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs `truncate`.
pub(crate) fn truncate(cut: &Truncate, session: &Session) -> Outcome {
    for word in &cut.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let process = image.process();
            let fd = process
                .open(&place.path, OpenFlags::WRONLY | OpenFlags::CREAT, 0o666)
                .map_err(|error| image.name(error))?;
            let cut = process.ftruncate(fd, cut.size);
            process.close(fd)?;
            cut.map_err(|error| image.name(error.at(place.path.display().to_string())))
        })?;
    }
    Ok(())
}

/// Changes each place, and all below it if asked; failures are told and passed over.
fn each(
    session: &Session,
    words: &[OsString],
    recursive: bool,
    change: impl Fn(&Image, &Met<'_>) -> Outcome,
) -> Outcome {
    for word in words {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            match image.stat(&place.path, false) {
                Ok(found) => {
                    let mut visitor = Changer {
                        session,
                        image,
                        recursive,
                        change: &change,
                    };
                    walk(session, image, (&place.path, found), &mut visitor)
                }
                Err(error) => {
                    session.fail(image.name(error).message);
                    Ok(())
                }
            }
        })?;
    }
    Ok(())
}

struct Changer<'a, F> {
    session: &'a Session,
    image: &'a Image,
    recursive: bool,
    change: &'a F,
}

impl<F: Fn(&Image, &Met<'_>) -> Outcome> Visitor for Changer<'_, F> {
    fn meet(&mut self, met: &Met<'_>) -> Outcome<Next> {
        if let Err(failure) = (self.change)(self.image, met) {
            self.session.fail(failure.message);
        }
        Ok(if self.recursive {
            Next::Enter
        } else {
            Next::Skip
        })
    }
}

/// Reads an octal or symbolic mode, which starts from the mode `old`.
pub(crate) fn parse_mode(text: &str, old: u16, is_directory: bool) -> Outcome<u16> {
    let wrong = || Failure::usage(format!("{text:?} is no mode, such as 644 or u=rwX,go-w"));
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return u16::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777)
            .ok_or_else(wrong);
    }
    let mut mode = old;
    for clause in text.split(',') {
        mode = apply(clause, mode, is_directory).ok_or_else(wrong)?;
    }
    Ok(mode)
}

/// One clause: `[ugoa]*([-+=][rwxXst]*)+`.
fn apply(clause: &str, mut mode: u16, is_directory: bool) -> Option<u16> {
    let at = clause.find(['+', '-', '='])?;
    let (who, mut rest) = clause.split_at(at);
    let mut mask = 0;
    for letter in who.chars() {
        mask |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    if who.is_empty() {
        mask = 0o7777;
    }
    while let Some(operator) = rest.chars().next() {
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let mut bits = 0;
        for letter in rest[..end].chars() {
            bits |= match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if is_directory || mode & 0o111 != 0 => 0o111,
                'X' => 0,
                's' => 0o6000,
                't' => 0o1000,
                _ => return None,
            };
        }
        rest = &rest[end..];
        // The sticky bit belongs to no class in particular.
        let bits = bits & (mask | 0o1000);
        mode = match operator {
            '+' => mode | bits,
            '-' => mode & !bits,
            // What a directory hands down stays unless it is named.
            _ => mode & !(mask & if is_directory { 0o777 } else { 0o6777 }) | bits,
        };
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_chmod() {
        let mode = |text, old, dir| parse_mode(text, old, dir).map_err(|f| f.message);
        assert_eq!(mode("755", 0, false), Ok(0o755));
        assert_eq!(mode("u=rwX,go-w", 0o666, false), Ok(0o644));
        assert_eq!(mode("u=rwX,go-w", 0o666, true), Ok(0o744));
        assert_eq!(mode("+x", 0o644, false), Ok(0o755));
        assert_eq!(mode("u+s,g+s,+t", 0o755, true), Ok(0o7755));
        assert_eq!(mode("go=", 0o777, false), Ok(0o700));
        assert!(
            mode("rwx", 0, false).is_err()
                && mode("99", 0, false).is_err()
                && mode("u+q", 0, false).is_err()
        );
    }

    #[test]
    fn times_before_1970_count_forward() {
        assert_eq!(
            time("1969-12-31T23:59:59.5Z"),
            Ok(Timespec::new(-1, 500_000_000))
        );
        assert_eq!(time("@12"), Ok(Timespec::new(12, 0)));
        assert!(time("noon").is_err());
    }
}
