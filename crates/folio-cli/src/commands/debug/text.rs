//! Answers as text, in the form of debugfs.

use super::answer::Answer;
use crate::output::date_text;
use crate::output::{NamePrinter, printable};
use folio::Timespec;
use folio::ext4::{
    BlockRun, InodeContent, InodeFields, InodeTime, JournalDump, LogRecordKind, RawDirectoryEntry,
    RunKind,
};
use folio::vfs::{DeviceNumber, FileType};
use std::io::{self, BufWriter, Write};

/// Prints an answer on standard output.
pub(super) fn print(answer: &Answer) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match answer {
        Answer::Stat(fields) => stat(&mut out, fields)?,
        Answer::Blocks(runs) => {
            for run in runs {
                for block in run.physical..run.physical + run.len {
                    write!(out, "{block} ")?;
                }
            }
            writeln!(out)?;
        }
        Answer::Bmap(block) => writeln!(out, "{block}")?,
        Answer::Icheck(blocks, owners) => {
            writeln!(out, "Block\tInode number")?;
            for block in blocks {
                match owners.get(block) {
                    Some(inode) => writeln!(out, "{block}\t{inode}")?,
                    None => writeln!(out, "{block}\t<block not found>")?,
                }
            }
        }
        Answer::Ncheck(inodes, paths) => {
            writeln!(out, "Inode\tPathname")?;
            for inode in inodes {
                for path in paths.get(inode).into_iter().flatten() {
                    write!(out, "{inode}\t")?;
                    out.write_all(&NamePrinter::on_stdout().plain(path))?;
                    writeln!(out)?;
                }
            }
        }
        Answer::Ls(entries, options) => {
            for (entry, fields) in entries {
                if options.is_long {
                    long_entry(&mut out, entry, fields.as_ref())?;
                } else {
                    short_entry(&mut out, entry)?;
                }
            }
        }
        Answer::Testb(used) => {
            for (block, is_used) in used {
                let state = if *is_used { "marked" } else { "not" };
                writeln!(out, "Block {block} {state} in use")?;
            }
        }
        Answer::Testi(number, true) => writeln!(out, "Inode {number} is marked in use")?,
        Answer::Testi(number, false) => writeln!(out, "Inode {number} is not in use")?,
        Answer::Logdump(dump) => logdump(&mut out, dump)?,
    }
    out.flush()
}

fn short_entry(out: &mut impl Write, entry: &RawDirectoryEntry) -> io::Result<()> {
    let number = if entry.inode == 0 {
        "<0>".to_owned()
    } else {
        format!(" {} ", entry.inode)
    };
    write!(out, "{number} ({}) ", entry.len)?;
    out.write_all(&NamePrinter::on_stdout().plain(&entry.name))?;
    writeln!(out)
}

fn long_entry(
    out: &mut impl Write,
    entry: &RawDirectoryEntry,
    fields: Option<&InodeFields>,
) -> io::Result<()> {
    let number = if entry.inode == 0 {
        "<0>".to_owned()
    } else {
        entry.inode.to_string()
    };
    let (mode, uid, gid, size) = fields.map_or((0, 0, 0, 0), |fields| {
        (fields.mode, fields.uid, fields.gid, fields.size_bytes)
    });
    let time = fields.map_or_else(
        || " ".repeat(17),
        |fields| short_date(fields.modified.time()),
    );
    let kind = entry.file_type;
    write!(
        out,
        "{number:>7} {mode:>7o} ({kind}) {uid:>6} {gid:>6}   {size:>5} {time} "
    )?;
    out.write_all(&NamePrinter::on_stdout().plain(&entry.name))?;
    writeln!(out)
}

/// Formats a time as `23-Nov-2026 07:18`, in the local time zone.
fn short_date(time: Timespec) -> String {
    let Ok(stamp) = jiff::Timestamp::new(time.secs, 0) else {
        return format!("@{}", time.secs);
    };
    let zoned = stamp.to_zoned(jiff::tz::TimeZone::system());
    format!("{:>17}", zoned.strftime("%-d-%b-%Y %H:%M").to_string())
}

fn type_text(file_type: Option<FileType>) -> &'static str {
    match file_type {
        Some(FileType::Regular) => "regular",
        Some(FileType::Directory) => "directory",
        Some(FileType::Symlink) => "symlink",
        Some(FileType::CharacterDevice) => "character special",
        Some(FileType::BlockDevice) => "block special",
        Some(FileType::Fifo) => "FIFO",
        Some(FileType::Socket) => "socket",
        None => "bad type",
    }
}

fn stat(out: &mut impl Write, fields: &InodeFields) -> io::Result<()> {
    let InodeFields { number, flags, .. } = fields;
    let kind = type_text(fields.file_type);
    let permissions = fields.mode & 0o7777;
    writeln!(
        out,
        "Inode: {number}   Type: {kind}    Mode:  {permissions:04o}   Flags: {flags:#x}"
    )?;
    let version = match fields.extra_len {
        Some(28..) => format!(
            "{:#010x}:{:08x}",
            fields.version >> 32,
            fields.version as u32
        ),
        _ => format!("{:#010x}", fields.version as u32),
    };
    writeln!(
        out,
        "Generation: {}    Version: {version}",
        fields.generation
    )?;
    let project = fields.project;
    let project = project.map_or_else(String::new, |id| format!("   Project: {id:>5}"));
    let (uid, gid, size) = (fields.uid, fields.gid, fields.size_bytes);
    writeln!(
        out,
        "User: {uid:>5}   Group: {gid:>5}{project}   Size: {size}"
    )?;
    writeln!(out, "File ACL: {}", fields.xattr_block)?;
    writeln!(
        out,
        "Links: {}   Blockcount: {}",
        fields.links, fields.block_count
    )?;
    times(out, fields)?;
    if let Some(len) = fields.extra_len {
        writeln!(out, "Size of extra inode fields: {len}")?;
    }
    if !fields.xattrs.is_empty() {
        writeln!(out, "Extended attributes:")?;
        for (name, len) in &fields.xattrs {
            writeln!(
                out,
                "  {} ({len})",
                printable(&String::from_utf8_lossy(name))
            )?;
        }
    }
    if let Some((sum, is_right)) = fields.checksum {
        let remark = if is_right { "" } else { " (wrong)" };
        writeln!(out, "Inode checksum: {sum:#010x}{remark}")?;
    }
    content(out, &fields.content)
}

fn times(out: &mut impl Write, fields: &InodeFields) -> io::Result<()> {
    let mut time = |name: &str, time: &InodeTime| {
        let (low, date) = (time.low, date_text(time.time()));
        match time.extra {
            Some(extra) => writeln!(out, "{name:>6}: {low:#010x}:{extra:08x} -- {date}"),
            None => writeln!(out, "{name}: {low:#010x} -- {date}"),
        }
    };
    time("ctime", &fields.changed)?;
    time("atime", &fields.accessed)?;
    time("mtime", &fields.modified)?;
    if let Some(created) = &fields.created {
        time("crtime", created)?;
    }
    if fields.deleted != 0 {
        let deleted = InodeTime {
            low: fields.deleted,
            extra: None,
        };
        time("dtime", &deleted)?;
    }
    Ok(())
}

fn content(out: &mut impl Write, content: &InodeContent) -> io::Result<()> {
    match content {
        InodeContent::Extents(runs) => {
            writeln!(out, "EXTENTS:\n{}", runs_text(runs))
        }
        InodeContent::Pointers(runs) => {
            writeln!(out, "BLOCKS:\n{}", runs_text(runs))?;
            let total: u64 = runs.iter().map(|run| run.len).sum();
            if total > 0 {
                writeln!(out, "TOTAL: {total}")?;
            }
            Ok(())
        }
        InodeContent::Inline(len) => writeln!(out, "Size of inline data: {len}"),
        InodeContent::Target(target) => {
            let target = String::from_utf8_lossy(target);
            writeln!(out, "Fast link dest: \"{}\"", printable(&target))
        }
        InodeContent::Device(DeviceNumber { major, minor }) => writeln!(
            out,
            "Device major/minor number: {major:02}:{minor:02} (hex {major:02x}:{minor:02x})"
        ),
    }
}

fn runs_text(runs: &[BlockRun]) -> String {
    let text = |run: &BlockRun| {
        let (first, end) = (run.logical, run.logical + run.len - 1);
        let blocks = if run.len == 1 {
            run.physical.to_string()
        } else {
            format!("{}-{}", run.physical, run.physical + run.len - 1)
        };
        let place = match run.kind {
            RunKind::TreeNode(level) => format!("ETB{level}"),
            RunKind::Pointers(1) => "IND".to_owned(),
            RunKind::Pointers(2) => "DIND".to_owned(),
            RunKind::Pointers(_) => "TIND".to_owned(),
            RunKind::Data | RunKind::Unwritten => {
                let mark = if run.kind == RunKind::Unwritten {
                    "[u]"
                } else {
                    ""
                };
                if run.len == 1 {
                    format!("{first}{mark}")
                } else {
                    format!("{first}-{end}{mark}")
                }
            }
        };
        format!("({place}):{blocks}")
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn logdump(out: &mut impl Write, dump: &JournalDump) -> io::Result<()> {
    let (start, first) = (dump.start, dump.sequence);
    writeln!(out, "Journal starts at block {start}, transaction {first}")?;
    for record in &dump.records {
        let (number, name) = match &record.kind {
            LogRecordKind::Descriptor(_) => (1, "descriptor block"),
            LogRecordKind::Commit(_) => (2, "commit block"),
            LogRecordKind::Revoke(_) => (5, "revoke table"),
        };
        let (sequence, block) = (record.sequence, record.block);
        let remark = if record.has_valid_checksum {
            ""
        } else {
            " (wrong checksum)"
        };
        writeln!(
            out,
            "Found expected sequence {sequence}, type {number} ({name}) at block {block}{remark}"
        )?;
        match &record.kind {
            LogRecordKind::Descriptor(copies) => {
                for copy in copies {
                    writeln!(
                        out,
                        "  FS block {} logged at sequence {sequence}, journal block {} (flags {:#x})",
                        copy.target, copy.copy, copy.flags
                    )?;
                }
            }
            LogRecordKind::Revoke(blocks) => {
                for block in blocks {
                    writeln!(out, "  Revoke FS block {block}")?;
                }
            }
            LogRecordKind::Commit(time) => writeln!(out, "  Committed {}", date_text(*time))?,
        }
    }
    match dump.end {
        Some((block, None)) => writeln!(out, "No magic number at block {block}: end of journal."),
        Some((block, Some(sequence))) => {
            writeln!(
                out,
                "Found sequence {sequence} at block {block}: end of journal."
            )
        }
        None => Ok(()),
    }
}
