//! `folio stat`: shows all attributes of files.

use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::output::{FileRecord, NamePrinter, mode_text, time_text, type_name};
use crate::session::Session;
use clap::Args;
use folio::vfs::{Attributes, FileType};
use folio_tree::Owners;
use std::ffi::OsString;
use std::io::Write;

/// Show all attributes of files
#[derive(Args)]
#[command(after_help = "Example:\n  folio stat disk.qcow2:/etc/fstab")]
pub(crate) struct Stat {
    /// Files, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    files: Vec<OsString>,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(stat: &Stat, session: &Session) -> Outcome {
    stat.share.apply(session);
    let mut records = Vec::new();
    for word in &stat.files {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Read, |image| {
            for path in image.expand(&place.path) {
                let found = match image.stat(&path, stat.dereference) {
                    Ok(found) => found,
                    Err(error) => {
                        session.fail(image.name(error).message);
                        continue;
                    }
                };
                let target = image.link_target(&path, &found);
                if stat.json {
                    records.push(FileRecord::new(&path, &found, target.as_deref()));
                } else {
                    print(image, &place.with_path(path), &found, target)?;
                }
            }
            Ok(())
        })?;
    }
    if stat.json {
        session.print_json(&records)?;
    }
    Ok(())
}

fn print(
    image: &Image,
    place: &ImagePath,
    found: &Attributes,
    target: Option<Vec<u8>>,
) -> std::io::Result<()> {
    let owners = Owners::of(image.process());
    let mut out = std::io::stdout().lock();
    let arrow = target
        .map(|t| format!(" -> {}", String::from_utf8_lossy(&t)))
        .unwrap_or_default();
    let names = NamePrinter::on_stdout();
    writeln!(out, "  File: {}", names.text(&format!("{place}{arrow}")))?;
    let (size, blocks, block) = (found.size_bytes, found.blocks_512, found.block_size);
    let kind = type_name(found.file_type);
    writeln!(
        out,
        "  Size: {size:<10}\tBlocks: {blocks:<10} IO Block: {block:<6} {kind}"
    )?;
    write!(
        out,
        " Inode: {:<11} Links: {}",
        found.number, found.link_count
    )?;
    if matches!(
        found.file_type,
        FileType::CharacterDevice | FileType::BlockDevice
    ) {
        write!(
            out,
            "     Device type: {},{}",
            found.device.major, found.device.minor
        )?;
    }
    let (user, group) = (owners.user(found.uid), owners.group(found.gid));
    let (mode, text) = (found.mode, mode_text(found.file_type, found.mode));
    let (uid, gid) = (found.uid, found.gid);
    writeln!(
        out,
        "\nAccess: ({mode:04o}/{text})  Uid: ({uid:>5}/{user:>8})   Gid: ({gid:>5}/{group:>8})"
    )?;
    writeln!(out, "Access: {}", time_text(found.accessed, true))?;
    writeln!(out, "Modify: {}", time_text(found.modified, true))?;
    writeln!(out, "Change: {}", time_text(found.changed, true))?;
    writeln!(
        out,
        " Birth: {}",
        found
            .created
            .map_or("-".to_owned(), |time| time_text(time, true))
    )?;
    out.flush()
}
