//! `folio tree`: shows a directory and all files below it as a tree.

use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::output::{FileRecord, NamePrinter, counted};
use crate::session::Session;
use crate::walk::join;
use clap::Args;
use folio::vfs::FileType;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

/// Show a directory as a tree
#[derive(Args)]
#[command(after_help = "Example:\n  folio tree disk.qcow2:/srv")]
pub(crate) struct Tree {
    /// The directory, as IMAGE:/path
    place: OsString,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
    /// Include names that start with a dot
    #[arg(short)]
    all: bool,
    /// Show at most this many levels
    #[arg(short = 'L', long, value_name = "LEVELS")]
    levels: Option<usize>,
    /// Print JSON: a flat list
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(tree: &Tree, session: &Session) -> Outcome {
    tree.share.apply(session);
    let place = ImagePath::parse(&tree.place)?;
    with_image(session, &place, Access::Read, |image| {
        draw(tree, session, image, &place)
    })
}

/// Returns the names in a directory that are shown.
fn list(tree: &Tree, session: &Session, image: &Image, path: &Path) -> std::vec::IntoIter<Vec<u8>> {
    let names = image.names(path).unwrap_or_else(|error| {
        session.fail(image.name(error).message);
        Vec::new()
    });
    let shown: Vec<_> = names
        .into_iter()
        .filter(|name| tree.all || name.first() != Some(&b'.'))
        .collect();
    shown.into_iter()
}

fn draw(tree: &Tree, session: &Session, image: &Image, place: &ImagePath) -> Outcome {
    let top = image
        .stat(&place.path, true)
        .map_err(|error| image.name(error))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let shown = NamePrinter::on_stdout();
    let mut records = Vec::new();
    let (mut directories, mut files) = (0_u64, 0_u64);
    if !tree.json {
        writeln!(out, "{place}")?;
    }
    let list = |path: &Path| list(tree, session, image, path);
    let mut frames = Vec::new();
    if top.file_type == FileType::Directory {
        frames.push((place.path.clone(), list(&place.path), String::new()));
    }
    while let Some((directory, names, lead)) = frames.last_mut() {
        session.check_interrupt()?;
        let Some(name) = names.next() else {
            frames.pop();
            continue;
        };
        let (is_last, path) = (names.as_slice().is_empty(), join(directory, &name));
        let (branch, below) = if is_last {
            ("\u{2514}\u{2500}\u{2500} ", "    ")
        } else {
            ("\u{251c}\u{2500}\u{2500} ", "\u{2502}   ")
        };
        let (line, below) = (format!("{lead}{branch}"), format!("{lead}{below}"));
        let found = match image.stat(&path, false) {
            Ok(found) => found,
            Err(error) => {
                session.fail(image.name(error).message);
                continue;
            }
        };
        let target = image.link_target(&path, &found);
        if tree.json {
            records.push(FileRecord::new(&path, &found, target.as_deref()));
        } else {
            out.write_all(line.as_bytes())?;
            out.write_all(&shown.of(&name, found.file_type))?;
            if let Some(target) = target {
                out.write_all(b" -> ")?;
                out.write_all(&shown.plain(&target))?;
            }
            out.write_all(b"\n")?;
        }
        if found.file_type != FileType::Directory {
            files += 1;
            continue;
        }
        directories += 1;
        if frames.len() < tree.levels.unwrap_or(4096) {
            frames.push((path.clone(), list(&path), below));
        }
    }
    if tree.json {
        drop(out);
        return session.print_json(&records);
    }
    let (directories, files) = (counted(directories, "directory"), counted(files, "file"));
    writeln!(out, "\n{directories}, {files}")?;
    Ok(out.flush()?)
}
