//! Output: modes, sizes, times and owners as text, and the same facts as JSON.
//!
//! ```text
//!   mod.rs            text of file attributes; records for JSON
//!   color.rs          whether colors are shown, and the styles
//!   name_printer.rs   names, safe for a terminal
//!   owners.rs         names of users and groups in an image
//!   qemu_json.rs      JSON as qemu-img prints it
//!   report_file.rs    a file for a report, opened before the work
//! ```
//!
//! Above: `session` and all commands. Below: only the library.

pub(crate) mod color;
mod name_printer;
mod qemu_json;
mod report_file;

pub(crate) use name_printer::NamePrinter;
pub(crate) use qemu_json::qemu_json;
pub(crate) use report_file::ReportFile;

use folio::Timespec;
use folio::cache::Counters;
use folio::vfs::{Attributes, FileType};
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the columns of the terminal on standard output; none if it is not a terminal.
pub(crate) fn stdout_width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
    // Some terminals have no size.
    Some(usize::from(width.0)).filter(|width| *width > 0)
}

/// Returns the name of a file type in JSON.
pub(crate) fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharacterDevice => "character-device",
        FileType::BlockDevice => "block-device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Returns the letter of a file type in ls(1) and find(1).
pub(crate) fn type_letter(file_type: FileType) -> char {
    match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    }
}

/// Formats type and mode as `drwxr-xr-x`.
pub(crate) fn mode_text(file_type: FileType, mode: u16) -> String {
    let mut text = String::from(type_letter(file_type));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        let (with_execute, without) = if mode & special == 0 {
            ('x', '-')
        } else {
            (letter, letter.to_ascii_uppercase())
        };
        text.push(if bits & 1 == 0 { without } else { with_execute });
    }
    text
}

/// Formats a size as `1.5M`, rounded up as coreutils do.
pub(crate) fn human(bytes: u64) -> String {
    let (mut unit, mut size) = (0, bytes as f64);
    while size >= 1024.0 && unit < 6 {
        size /= 1024.0;
        unit += 1;
    }
    let letter = ["", "K", "M", "G", "T", "P", "E"][unit];
    if unit == 0 {
        bytes.to_string()
    } else if size < 10.0 {
        format!("{:.1}{letter}", (size * 10.0).ceil() / 10.0)
    } else {
        format!("{}{letter}", size.ceil())
    }
}

/// Formats a count of a noun: `1 file`, `2 files`, `2 directories`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let stem = noun.strip_suffix('y');
    match stem.filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u'])) {
        _ if count == 1 => format!("1 {noun}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {noun}s"),
    }
}

/// Formats a time as `2026-01-31 12:00` in the local time zone; if `long`, with nanoseconds and
/// zone.
pub(crate) fn time_text(time: Timespec, long: bool) -> String {
    let nanos = i32::try_from(time.nanos).unwrap_or(0);
    let Ok(stamp) = jiff::Timestamp::new(time.secs, nanos) else {
        return format!("@{}", time.secs);
    };
    let format = if long {
        "%Y-%m-%d %H:%M:%S.%9f %z"
    } else {
        "%Y-%m-%d %H:%M"
    };
    stamp
        .to_zoned(jiff::tz::TimeZone::system())
        .strftime(format)
        .to_string()
}

/// A file inside an image, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FileRecord {
    #[serde(flatten)]
    path: PathRecord,
    #[serde(rename = "type")]
    #[cfg_attr(test, schemars(extend("enum" = [
        "file", "directory", "symlink", "character-device", "block-device", "fifo", "socket",
    ])))]
    file_type: &'static str,
    inode: u64,
    /// Permission bits in octal.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-7]{4}$")))]
    mode: String,
    uid: u32,
    gid: u32,
    links: u32,
    /// Bytes.
    size: u64,
    /// Bytes.
    allocated: u64,
    /// Major and minor number of device nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<[u32; 2]>,
    /// Access time, in UTC; @SECONDS outside the calendar's range.
    accessed: String,
    /// Modification time, in UTC; @SECONDS outside the calendar's range.
    modified: String,
    /// Change time of the inode, in UTC; @SECONDS outside the calendar's range.
    changed: String,
    /// Creation time, if recorded, in UTC; @SECONDS outside the calendar's range.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl FileRecord {
    /// Creates the record of the file at `path`.
    pub(crate) fn new(path: &Path, found: &Attributes, target: Option<&[u8]>) -> Self {
        let is_device = matches!(
            found.file_type,
            FileType::CharacterDevice | FileType::BlockDevice
        );
        Self {
            path: PathRecord::new(path),
            file_type: type_name(found.file_type),
            inode: found.number.0,
            mode: format!("{:04o}", found.mode),
            uid: found.uid,
            gid: found.gid,
            links: found.link_count,
            size: found.size_bytes,
            allocated: found.blocks_512.saturating_mul(512),
            device: is_device.then_some([found.device.major, found.device.minor]),
            accessed: stamp(found.accessed),
            modified: stamp(found.modified),
            changed: stamp(found.changed),
            created: found.created.map(stamp),
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }
}

/// A path of the host, in an image or in an archive, as JSON.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PathRecord {
    /// Path on the host, in the image or in the archive; bytes that are not UTF-8 are replaced.
    path: String,
    /// The path's bytes in base 16, only if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(regex(pattern = "^([0-9a-f]{2})+$")))]
    path_bytes: Option<String>,
}

impl PathRecord {
    /// Creates the record of `path`.
    pub(crate) fn new(path: &Path) -> Self {
        let path_bytes = hex_unless_utf8(path.as_os_str().as_bytes());
        Self {
            path: path.to_string_lossy().into_owned(),
            path_bytes,
        }
    }

    /// Returns the path as text for a terminal.
    pub(crate) fn text(&self) -> String {
        printable(&self.path)
    }
}

/// A path on which an operation failed, and the reason.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FailureRecord {
    #[serde(flatten)]
    path: PathRecord,
    reason: String,
}

impl FailureRecord {
    /// Creates the records of all failures.
    pub(crate) fn list(failures: &[(PathBuf, String)]) -> Vec<Self> {
        let record = |(path, reason): &(PathBuf, String)| Self {
            path: PathRecord::new(path),
            reason: reason.clone(),
        };
        failures.iter().map(record).collect()
    }
}

/// Returns the text of an I/O error without the number that Rust adds.
pub(crate) fn io_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Returns bytes in base 16 if they are not UTF-8.
pub(crate) fn hex_unless_utf8(bytes: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(bytes).is_ok();
    (!is_text).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Formats a time in UTC, for JSON.
pub(crate) fn stamp(time: Timespec) -> String {
    let nanos = i32::try_from(time.nanos).unwrap_or(0);
    jiff::Timestamp::new(time.secs, nanos)
        .map_or_else(|_| format!("@{}", time.secs), |t| format!("{t:.9}"))
}

/// Returns the counters of the page cache as JSON.
pub(crate) fn counters_json(counters: &Counters) -> serde_json::Value {
    let mut stats: serde_json::Map<String, serde_json::Value> = counters
        .named()
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    stats.insert("hit_percent".to_owned(), counters.hit_percent().into());
    stats.into()
}

/// Escapes the control characters of text from an image, so that it cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let is_kept = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars()
        .flat_map(|c| {
            if is_kept(c) {
                vec![c]
            } else {
                c.escape_default().collect()
            }
        })
        .collect()
}

/// Prints a value as JSON on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Formats a time as ctime(3) does, in the local time zone.
pub(crate) fn date_text(time: Timespec) -> String {
    let Ok(stamp) = jiff::Timestamp::new(time.secs, 0) else {
        return format!("@{}", time.secs);
    };
    let zoned = stamp.to_zoned(jiff::tz::TimeZone::system());
    zoned.strftime("%a %b %e %H:%M:%S %Y").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            printable("a\u{1b}[2Jb\r\tc\u{e9}"),
            "a\\u{1b}[2Jb\\r\tc\u{e9}"
        );
    }

    #[test]
    fn counted_nouns_have_their_plural() {
        let nouns = ["file", "entry", "day"];
        let texts = [0, 1, 2].map(|count| nouns.map(|noun| counted(count, noun)).join(", "));
        assert_eq!(
            texts,
            [
                "0 files, 0 entries, 0 days",
                "1 file, 1 entry, 1 day",
                "2 files, 2 entries, 2 days"
            ]
        );
    }

    #[test]
    fn modes_and_sizes_match_ls() {
        assert_eq!(mode_text(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileType::Regular, 0o4644), "-rwSr--r--");
        let shown = [0, 1023, 1024, 1500, 10 << 10, (10 << 10) + 1, 5 << 30].map(human);
        assert_eq!(shown, ["0", "1023", "1.0K", "1.5K", "10K", "11K", "5.0G"]);
    }
}
