//! Whether a path is the host's or the image's.
//!
//! The names of a path decide, without a look at links: a path is the image's if it passes through
//! the prefix, or is relative to a directory of the image. From there on the server walks, and says
//! where a link or `..` leads back to the host. A link of the host into the image is not followed.
//! Links of /proc/self that the kernel resolves by placeholders are resolved here.

use crate::client::Slot;
use crate::descriptors::is_image;
use crate::memory;
use crate::state::{HOST_PREFIXES, IS_IN_IMAGE, PREFIX, PROGRAM};
use crate::system::{AT_FDCWD, Errno, GETCWD, READLINK, Result, host, pid};
use core::sync::atomic::Ordering;

/// Where a path leads.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// To the host, by the arguments that the program gave.
    Host,
    /// To the host, by another path: that of the slot's buffer.
    HostPath,
    /// Into the image: the path is that of the slot's buffer, relative to a directory.
    Image { directory: i32, len_bytes: usize },
    /// To the file of a descriptor of the image, by a link of /proc/self/fd.
    Descriptor(i32),
}

/// Which links a call follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// A path argument of the program.
#[derive(Clone, Copy)]
pub(crate) struct PathAt {
    pub(crate) directory: i32,
    pub(crate) address: usize,
    pub(crate) last_link: LastLink,
}

/// Reads a path of the program into buffer `index` of the slot, and finds out where it leads.
pub(crate) fn resolve(slot: Slot, index: usize, path: PathAt) -> Result<Target> {
    let buffer = slot.buffer(index);
    let len = memory::read_text(buffer, path.address, Errno::NAMETOOLONG)?;
    resolve_read(slot, index, path, len)
}

fn resolve_read(slot: Slot, index: usize, path: PathAt, len: usize) -> Result<Target> {
    let buffer = slot.buffer(index);
    let directory = path.directory;
    let inside = |directory| Ok(Target::Image { directory, len_bytes: len });
    if len == 0 {
        return if is_image(directory) { inside(directory) } else { Ok(Target::Host) };
    }
    if buffer[0] == b'/' {
        return Ok(resolve_absolute(slot, index, len, path.last_link));
    }
    if is_image(directory) {
        return inside(directory);
    }
    if directory == AT_FDCWD && IS_IN_IMAGE.load(Ordering::Relaxed) {
        return inside(AT_FDCWD);
    }
    // Relative to a directory of the host, from which the path may lead into the image.
    let Some(whole) = prepend_host_directory(slot, index, directory, len) else {
        return Ok(Target::Host);
    };
    Ok(resolve_absolute(slot, index, whole, path.last_link))
}

/// A buffer for parts of paths.
const PART: usize = 12;

/// Finds out where the absolute path of buffer `index` leads.
pub(crate) fn resolve_absolute(
    slot: Slot,
    index: usize,
    len: usize,
    last_link: LastLink,
) -> Target {
    let path = &slot.buffer(index)[..len];
    if let Some(target) = magic(slot, index, path, last_link) {
        return target;
    }
    let len = leave_host_prefix(slot.buffer(index), len);
    let path = &slot.buffer(index)[..len];
    if is_of_image(path) {
        return Target::Image { directory: AT_FDCWD, len_bytes: len };
    }
    Target::Host
}

/// Returns whether the names of an absolute path lead through the prefix of the image.
fn is_of_image(path: &[u8]) -> bool {
    let prefix = PREFIX.get();
    if prefix == b"/" {
        return !is_below_host_prefix(path);
    }
    let names = || prefix.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let count = names().count();
    // How many names the path has so far, and how many of these are those of the prefix.
    let (mut depth, mut equal) = (0, 0);
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                depth = usize::saturating_sub(depth, 1);
                equal = equal.min(depth);
            }
            _ => {
                if depth == equal && names().nth(equal) == Some(name) {
                    equal += 1;
                    if equal == count {
                        return true;
                    }
                }
                depth += 1;
            }
        }
    }
    false
}

/// Returns whether an absolute path begins with a directory of the host, and stays there by its
/// names.
fn is_below_host_prefix(path: &[u8]) -> bool {
    let mut all = HOST_PREFIXES.get().split(|byte| *byte == b':');
    let is_plain = !path.split(|byte| *byte == b'/').any(|name| name == b"..");
    is_plain
        && all.any(|prefix| {
            let rest = path.strip_prefix(prefix);
            !prefix.is_empty() && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        })
}

/// Drops the start of an absolute path that enters a directory of the host inside the image and
/// leaves it by `..`, by its names; returns the new length.
fn leave_host_prefix(path: &mut [u8; 4096], len: usize) -> usize {
    let mut prefixes = HOST_PREFIXES.get().split(|byte| *byte == b':');
    let Some(prefix) = prefixes.find(|prefix| !prefix.is_empty() && path[..len].starts_with(prefix))
    else {
        return len;
    };
    let (mut depth, mut at) = (1, prefix.len());
    if path[..len].get(at).is_some_and(|byte| *byte != b'/') {
        return len;
    }
    for name in path[at..len].split(|byte| *byte == b'/') {
        depth = match name {
            b"" | b"." => depth,
            b".." => depth - 1,
            _ => depth + 1,
        };
        at += name.len() + 1;
        if depth == 0 {
            break;
        }
    }
    if depth > 0 {
        return len;
    }
    // `at` is behind the slash after `..`, or behind the end.
    let start = at.saturating_sub(1).min(len);
    path.copy_within(start..=len, 1);
    path[0] = b'/';
    let rest = len - start;
    if rest == 0 { 1 } else { rest + 1 }
}

/// Puts the path of a directory of the host before the relative path of a buffer; returns the new
/// length. `None` if the directory has no path.
fn prepend_host_directory(
    slot: Slot,
    index: usize,
    directory: i32,
    len: usize,
) -> Option<usize> {
    let part = slot.buffer(PART);
    let before = if directory == AT_FDCWD {
        host!(GETCWD, part.as_mut_ptr(), part.len()).ok()?.checked_sub(1)?
    } else {
        descriptor_path(directory, part)?
    };
    let buffer = slot.buffer(index);
    if part[0] != b'/' || before + 1 + len + 1 > buffer.len() {
        return None;
    }
    buffer.copy_within(..len, before + 1);
    buffer[..before].copy_from_slice(&part[..before]);
    buffer[before] = b'/';
    buffer[before + 1 + len] = 0;
    Some(before + 1 + len)
}

/// The path of a descriptor of the host.
fn descriptor_path(fd: i32, into: &mut [u8]) -> Option<usize> {
    let mut name = [0_u8; 32];
    name[..14].copy_from_slice(b"/proc/self/fd/");
    put_number(&mut name[14..], u32::try_from(fd).ok()?);
    let len = host!(READLINK, name.as_ptr(), into.as_mut_ptr(), into.len()).ok()?;
    (len < into.len()).then_some(len)
}

/// Writes a number in digits; returns their count.
pub(crate) fn put_number(into: &mut [u8], number: u32) -> usize {
    let mut digits = [0_u8; 10];
    let (mut rest, mut count) = (number, 0);
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        count += 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for (place, digit) in into.iter_mut().zip(digits[..count].iter().rev()) {
        *place = *digit;
    }
    count
}

fn number(text: &[u8]) -> Option<i32> {
    let is_number = !text.is_empty() && text.len() < 10 && text.iter().all(u8::is_ascii_digit);
    let value = |sum: i32, digit: &u8| sum * 10 + i32::from(digit - b'0');
    is_number.then(|| text.iter().fold(0, value))
}

/// A link of /proc that the kernel would resolve by a placeholder, or by the loader.
#[derive(Clone, Copy)]
pub(crate) enum MagicLink {
    /// The file of a descriptor of the image.
    Descriptor(i32),
    /// The working directory, in the image.
    WorkingDirectory,
    /// The root, if that is the image's.
    Root,
    /// The program.
    Program,
}

/// Splits an absolute path into such a link and the rest.
pub(crate) fn magic_link(path: &[u8]) -> Option<(MagicLink, &[u8])> {
    let after = after_own_process(path);
    let shown = path.strip_prefix(b"/dev/");
    if let Some(rest) = shown {
        let standard = [&b"stdin"[..], b"stdout", b"stderr"];
        if let Some(fd) = standard.iter().position(|name| *name == rest) {
            return is_image(fd as i32).then_some((MagicLink::Descriptor(fd as i32), b""));
        }
    }
    let rest = after.or(shown)?;
    let (name, rest) = split(rest);
    if name == b"fd" {
        let (fd, rest) = split(rest);
        let fd = number(fd)?;
        return is_image(fd).then_some((MagicLink::Descriptor(fd), rest));
    }
    after?;
    match name {
        b"cwd" if IS_IN_IMAGE.load(Ordering::Relaxed) => Some((MagicLink::WorkingDirectory, rest)),
        b"root" if PREFIX.get() == b"/" => Some((MagicLink::Root, rest)),
        b"exe" => Some((MagicLink::Program, rest)),
        _ => None,
    }
}

fn after_own_process(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let (name, rest) = split(rest);
    let is_own = matches!(name, b"self" | b"thread-self")
        || number(name).is_some_and(|number| number as u32 == pid());
    if !is_own {
        return None;
    }
    Some(rest)
}

/// Splits the first name from a relative path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    let rest = &path[end..];
    let start = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
    (&path[..end], &rest[start..])
}

/// Resolves a path through such a link; `None` for other paths, and for the link itself if it is
/// not followed.
fn magic(slot: Slot, index: usize, path: &[u8], last_link: LastLink) -> Option<Target> {
    let (link, rest) = magic_link(path)?;
    if rest.is_empty() && last_link == LastLink::Keep && !path.ends_with(b"/") {
        return None;
    }
    let start = path.len() - rest.len();
    let keep = |directory, len_bytes| Some(Target::Image { directory, len_bytes });
    let buffer = slot.buffer(index);
    let len = rest.len();
    match link {
        MagicLink::Descriptor(fd) if len == 0 => Some(Target::Descriptor(fd)),
        MagicLink::Descriptor(fd) => {
            buffer.copy_within(start..=start + len, 0);
            keep(fd, len)
        }
        MagicLink::WorkingDirectory if len == 0 => {
            buffer[..2].copy_from_slice(b".\0");
            keep(AT_FDCWD, 1)
        }
        MagicLink::WorkingDirectory => {
            buffer.copy_within(start..=start + len, 0);
            keep(AT_FDCWD, len)
        }
        MagicLink::Root => {
            buffer.copy_within(start..=start + len, 1);
            buffer[0] = b'/';
            keep(AT_FDCWD, len + 1)
        }
        MagicLink::Program => {
            let program = PROGRAM.get();
            buffer[..program.len()].copy_from_slice(program);
            buffer[program.len()] = 0;
            if is_of_image(program) {
                keep(AT_FDCWD, program.len())
            } else {
                Some(Target::HostPath)
            }
        }
    }
}
