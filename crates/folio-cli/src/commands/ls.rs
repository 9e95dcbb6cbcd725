//! `folio ls`: lists directories.

use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::output::{FileRecord, NamePrinter, human, mode_text, time_text};
use crate::session::Session;
use crate::walk::join;
use clap::Args;
use folio::vfs::{Attributes, FileType};
use folio_tree::Owners;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

/// List directories
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio ls -l disk.qcow2:/etc\n  folio ls --json disk.qcow2",
    disable_help_flag = true
)]
pub(crate) struct Ls {
    /// Directories and files, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Show modes, links, owners, sizes and times
    #[arg(short)]
    long: bool,
    /// Include names that start with a dot
    #[arg(short)]
    all: bool,
    /// Print sizes like 1.5M
    #[arg(short)]
    human: bool,
    /// List subdirectories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Accepted for compatibility; output is always one name per line
    #[arg(short = '1')]
    one: bool,
    /// Show inode numbers
    #[arg(short)]
    inode: bool,
    /// List a directory itself, not its contents
    #[arg(short)]
    directory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
}

struct Entry {
    /// The name as printed.
    name: Vec<u8>,
    path: PathBuf,
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

/// Runs the command.
pub(crate) fn run(ls: &Ls, session: &Session) -> Outcome {
    ls.share.apply(session);
    let mut records = Vec::new();
    for word in &ls.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Read, |image| {
            let paths = image.expand(&place.path);
            let has_titles = ls.recursive || ls.places.len() > 1 || paths.len() > 1;
            paths.into_iter().try_for_each(|path| {
                let place = place.with_path(path);
                list(ls, session, image, &place, has_titles, &mut records)
            })
        })?;
    }
    if ls.json {
        session.print_json(&records)?;
    }
    Ok(())
}

fn list(
    ls: &Ls,
    session: &Session,
    image: &Image,
    place: &ImagePath,
    has_titles: bool,
    records: &mut Vec<FileRecord>,
) -> Outcome {
    let found = match image.stat(&place.path, !ls.long && !ls.directory) {
        Ok(found) => found,
        Err(error) => {
            session.fail(image.name(error).message);
            return Ok(());
        }
    };
    let owners = if ls.long && !ls.json {
        Some(Owners::of(image.process()))
    } else {
        None
    };
    if found.file_type != FileType::Directory || ls.directory {
        let name = place.path.to_string_lossy().into_owned().into_bytes();
        let target = image.link_target(&place.path, &found);
        let entry = Entry {
            name,
            path: place.path.clone(),
            attributes: found,
            target,
        };
        return show(ls, owners.as_ref(), vec![entry], records);
    }
    let shown = NamePrinter::on_stdout();
    let mut waiting = VecDeque::from([place.path.clone()]);
    let mut is_first = true;
    while let Some(directory) = waiting.pop_front() {
        session.check_interrupt()?;
        if has_titles && !ls.json {
            let gap = if is_first { "" } else { "\n" };
            let title = image.at(&directory).to_string();
            let title = String::from_utf8_lossy(&shown.plain(title.as_bytes())).into_owned();
            writeln!(std::io::stdout(), "{gap}{title}:")?;
        }
        is_first = false;
        let entries = entries(ls, session, image, &directory);
        if ls.recursive {
            let below = entries
                .iter()
                .filter(|e| e.attributes.file_type == FileType::Directory);
            for entry in below.rev() {
                waiting.push_front(entry.path.clone());
            }
        }
        show(ls, owners.as_ref(), entries, records)?;
    }
    Ok(())
}

fn entries(ls: &Ls, session: &Session, image: &Image, directory: &Path) -> Vec<Entry> {
    let names = image.names(directory).unwrap_or_else(|error| {
        session.fail(image.name(error).message);
        Vec::new()
    });
    let mut entries = Vec::with_capacity(names.len());
    for name in names
        .into_iter()
        .filter(|name| ls.all || name.first() != Some(&b'.'))
    {
        let path = join(directory, &name);
        match image.stat(&path, false) {
            Ok(attributes) => {
                let target = image.link_target(&path, &attributes);
                entries.push(Entry {
                    name,
                    path,
                    attributes,
                    target,
                });
            }
            Err(error) => session.fail(image.name(error).message),
        }
    }
    entries
}

fn show(
    ls: &Ls,
    owners: Option<&Owners>,
    entries: Vec<Entry>,
    records: &mut Vec<FileRecord>,
) -> Outcome {
    if ls.json {
        let record = |e: &Entry| FileRecord::new(&e.path, &e.attributes, e.target.as_deref());
        records.extend(entries.iter().map(record));
        return Ok(());
    }
    let shown = NamePrinter::on_stdout();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let rows: Vec<_> = entries
        .iter()
        .map(|e| owners.map_or_else(Vec::new, |owners| columns(ls, owners, e)))
        .collect();
    let widths: Vec<usize> = (0..5)
        .map(|at| {
            rows.iter()
                .filter_map(|row| row.get(at))
                .map(String::len)
                .max()
                .unwrap_or(0)
        })
        .collect();
    for (entry, row) in entries.iter().zip(&rows) {
        if ls.inode {
            write!(out, "{:>7} ", entry.attributes.number)?;
        }
        if let [mode, links, user, group, size, time] = &row[..] {
            write!(
                out,
                "{mode} {links:>0$} {user:<1$} {group:<2$} ",
                widths[1], widths[2], widths[3]
            )?;
            write!(out, "{size:>0$} {time} ", widths[4])?;
        }
        out.write_all(&shown.of(&entry.name, entry.attributes.file_type))?;
        if let Some(target) = entry.target.as_ref().filter(|_| ls.long) {
            out.write_all(b" -> ")?;
            out.write_all(&shown.plain(target))?;
        }
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

fn columns(ls: &Ls, owners: &Owners, entry: &Entry) -> Vec<String> {
    let found = &entry.attributes;
    let size = match found.file_type {
        FileType::CharacterDevice | FileType::BlockDevice => {
            format!("{}, {}", found.device.major, found.device.minor)
        }
        _ if ls.human => human(found.size_bytes),
        _ => found.size_bytes.to_string(),
    };
    vec![
        mode_text(found.file_type, found.mode),
        found.link_count.to_string(),
        owners.user(found.uid),
        owners.group(found.gid),
        size,
        time_text(found.modified, false),
    ]
}
