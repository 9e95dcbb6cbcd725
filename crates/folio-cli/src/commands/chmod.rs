//! `folio chmod`: changes modes.

use crate::arguments::mode::parse_mode;
use crate::change_tree::change_each;
use crate::exit::Outcome;
use crate::session::Session;
use clap::Args;
use folio::vfs::FileType;
use std::ffi::OsString;

/// Change modes
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio chmod 600 disk.qcow2:/etc/key\n  folio chmod -R u=rwX,go-w disk.qcow2:/srv"
)]
pub(crate) struct Chmod {
    /// Change directories and their contents
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Octal, or symbolic as in chmod(1)
    #[arg(allow_hyphen_values = true)]
    mode: String,
    /// Files, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(chmod: &Chmod, session: &Session) -> Outcome {
    parse_mode(&chmod.mode, 0, false)?;
    change_each(session, &chmod.places, chmod.recursive, |image, visit| {
        if visit.attributes.file_type == FileType::Symlink && visit.depth > 0 {
            return Ok(());
        }
        let found = image
            .stat(visit.path, true)
            .map_err(|error| image.name(error))?;
        let is_directory = found.file_type == FileType::Directory;
        let mode = parse_mode(&chmod.mode, found.mode, is_directory)?;
        image
            .process()
            .chmod(visit.path, mode)
            .map_err(|error| image.name(error))
    })
}
