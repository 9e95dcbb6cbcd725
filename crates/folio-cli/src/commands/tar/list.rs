//! `folio tar -t`: the files of an archive, without unpacking it.

use crate::exit::{Failure, Outcome, explain};
use crate::output::{NamePrinter, PathRecord, mode_text, stamp, time_text, type_name};
use crate::session::Session;
use folio::vfs::FileType;
use folio_tree::{Entry, EntryKind, ReadAhead, tar};
use serde::Serialize;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A file of an archive, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EntryRecord {
    #[serde(flatten)]
    path: PathRecord,
    #[serde(rename = "type")]
    #[cfg_attr(test, schemars(extend("enum" = [
        "file", "directory", "symlink", "character-device", "block-device", "fifo", "hard-link",
    ])))]
    kind: &'static str,
    /// Permission bits in octal.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-7]{4}$")))]
    mode: String,
    uid: u32,
    gid: u32,
    /// Bytes with holes; 0 unless a file.
    size: u64,
    /// Major and minor number of device nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<[u32; 2]>,
    /// Modification time, in UTC; @SECONDS outside the calendar's range.
    modified: String,
    /// The target of a symbolic or hard link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Names of extended attributes; ACLs are among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schemars(length(min = 1)))]
    xattrs: Vec<String>,
}

/// How to list.
pub(super) struct Listing {
    /// With metadata.
    pub(super) is_long: bool,
    pub(super) is_json: bool,
}

/// Lists the archive `name`.
pub(super) fn run(
    listing: &Listing,
    session: &Session,
    mut reader: tar::Reader<ReadAhead>,
    name: &str,
) -> Outcome {
    let shown = NamePrinter::on_stdout();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut records = Vec::new();
    loop {
        session.check_interrupt()?;
        let entry = reader
            .next_entry()
            .map_err(|error| Failure::new(format!("{name}: {}", explain(&error))));
        let entry = match entry {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(failure) => {
                session.check_interrupt()?;
                out.flush()?;
                return Err(failure);
            }
        };
        if listing.is_json {
            records.push(record(&entry));
            continue;
        }
        if listing.is_long {
            let size = match entry.kind {
                EntryKind::CharacterDevice(major, minor) | EntryKind::BlockDevice(major, minor) => {
                    format!("{major},{minor}")
                }
                _ => entry.size_bytes().to_string(),
            };
            let owner = format!("{}/{}", entry.uid, entry.gid);
            let width = 20_usize.saturating_sub(owner.len());
            let mode = mode_text(file_type(&entry.kind), entry.mode);
            let time = time_text(entry.modified, false);
            write!(out, "{mode} {owner} {size:>width$} {time} ")?;
        }
        out.write_all(&shown.of(&entry.path, file_type(&entry.kind)))?;
        if listing.is_long {
            let arrow = match &entry.kind {
                EntryKind::Symlink(target) => Some((" -> ", target)),
                EntryKind::HardLink(target) => Some((" link to ", target)),
                _ => None,
            };
            if let Some((arrow, target)) = arrow {
                out.write_all(arrow.as_bytes())?;
                out.write_all(&shown.of(target, FileType::Regular))?;
            }
        }
        out.write_all(b"\n")?;
    }
    out.flush()?;
    drop(out);
    if listing.is_json {
        session.print_json(&records)?;
    }
    Ok(())
}

/// Returns the file type; that of a hard link is that of a file.
fn file_type(kind: &EntryKind) -> FileType {
    match kind {
        EntryKind::File { .. } | EntryKind::HardLink(_) => FileType::Regular,
        EntryKind::Directory => FileType::Directory,
        EntryKind::Symlink(_) => FileType::Symlink,
        EntryKind::CharacterDevice(..) => FileType::CharacterDevice,
        EntryKind::BlockDevice(..) => FileType::BlockDevice,
        EntryKind::Fifo => FileType::Fifo,
    }
}

fn record(entry: &Entry) -> EntryRecord {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (device, target) = match &entry.kind {
        EntryKind::CharacterDevice(major, minor) | EntryKind::BlockDevice(major, minor) => {
            (Some([*major, *minor]), None)
        }
        EntryKind::Symlink(target) | EntryKind::HardLink(target) => (None, Some(text(target))),
        _ => (None, None),
    };
    let kind = match entry.kind {
        EntryKind::HardLink(_) => "hard-link",
        _ => type_name(file_type(&entry.kind)),
    };
    EntryRecord {
        path: PathRecord::new(Path::new(OsStr::from_bytes(&entry.path))),
        kind,
        mode: format!("{:04o}", entry.mode),
        uid: entry.uid,
        gid: entry.gid,
        size: entry.size_bytes(),
        device,
        modified: stamp(entry.modified),
        target,
        xattrs: entry.xattrs.iter().map(|(name, _)| text(name)).collect(),
    }
}
