//! `folio chown`: changes owners and groups.

use super::change_tree::change_each;
use super::ownership::{find_number, set_owner_keeping_mode};
use crate::exit::Outcome;
use crate::output::Owners;
use crate::session::Session;
use clap::Args;
use folio::syscall::{AT_FDCWD, AtFlags};
use std::ffi::OsString;

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
        let uid = find_number(image, user, "/etc/passwd", Owners::find_user)?;
        let gid = find_number(image, group, "/etc/group", Owners::find_group)?;
        let is_link = chown.no_dereference || visit.depth > 0;
        let flags = if is_link {
            AtFlags::SYMLINK_NOFOLLOW
        } else {
            AtFlags::empty()
        };
        let changed = if chown.keep_setuid {
            set_owner_keeping_mode(image, visit.path, uid, gid, flags)
        } else {
            let process = image.process();
            process.fchownat(AT_FDCWD, visit.path, uid, gid, flags)
        };
        changed.map_err(|error| image.name(error))
    })
}
