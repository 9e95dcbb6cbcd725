//! `folio chown`: changes owners and groups.

use crate::change_tree::change_each;
use crate::exit::Outcome;
use crate::session::Session;
use clap::Args;
use folio::Process;
use folio::syscall::{AT_FDCWD, AtFlags};
use folio::vfs::FileType;
use folio_tree::{Owners, Table, find_number};
use std::ffi::OsString;
use std::path::Path;

/// Change owners
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio chown -R 1000:1000 disk.qcow2:/home/me\n  folio chown root: disk.qcow2:/etc/key\n  folio chown -R --keep-setuid 0:0 disk.qcow2:/usr"
)]
#[command(disable_help_flag = true)]
pub(crate) struct Chown {
    /// Change directories and their contents
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change a symbolic link itself, not its target
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Keep setuid and setgid bits, which a change of the owner clears in Linux
    #[arg(long)]
    keep_setuid: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// OWNER, OWNER:GROUP or :GROUP; numbers, or names from the image's /etc/passwd and /etc/group
    owner: String,
    /// Files, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(chown: &Chown, session: &Session) -> Outcome {
    let (user, group) = chown.owner.split_once(':').unwrap_or((&chown.owner, ""));
    change_each(session, &chown.places, chown.recursive, |image, visit| {
        let process = image.process();
        let uid = find_number(|| Owners::of(process), user, Table::Users)?;
        let gid = find_number(|| Owners::of(process), group, Table::Groups)?;
        let is_link = chown.no_dereference || visit.depth > 0;
        let flags = if is_link {
            AtFlags::SYMLINK_NOFOLLOW
        } else {
            AtFlags::empty()
        };
        let changed = if chown.keep_setuid {
            set_owner_keeping_mode(process, visit.path, uid, gid, flags)
        } else {
            process.fchownat(AT_FDCWD, visit.path, uid, gid, flags)
        };
        changed.map_err(|error| image.name(error))
    })
}

/// Sets the owner of a file, and the setuid and setgid bits again that this clears.
fn set_owner_keeping_mode(
    process: &Process,
    path: &Path,
    uid: Option<u32>,
    gid: Option<u32>,
    flags: AtFlags,
) -> folio::Result<()> {
    let before = process.fstatat(AT_FDCWD, path, flags)?;
    process.fchownat(AT_FDCWD, path, uid, gid, flags)?;
    if before.mode & 0o6000 != 0 && before.file_type != FileType::Symlink {
        process.fchmodat(AT_FDCWD, path, before.mode)?;
    }
    Ok(())
}
