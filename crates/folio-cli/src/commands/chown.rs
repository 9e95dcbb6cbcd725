//! `folio chown`: changes owners and groups.

use super::change_tree::change_each;
use crate::exit::{Failure, Outcome};
use crate::output::Owners;
use crate::session::Session;
use clap::Args;
use folio::syscall::{AT_FDCWD, AtFlags};
use std::ffi::OsString;

/// Change owners
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio chown -R 1000:1000 disk.qcow2:/home/me\n  folio chown root: disk.qcow2:/etc/key"
)]
#[command(disable_help_flag = true)]
pub(crate) struct Chown {
    /// Change directories and their contents
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change a symbolic link itself, not its target
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// OWNER, OWNER:GROUP or :GROUP; numbers, or names from the image's /etc/passwd and /etc/group
    owner: String,
    /// Files, as IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(chown: &Chown, session: &Session) -> Outcome {
    let (user, group) = chown.owner.split_once(':').unwrap_or((&chown.owner, ""));
    change_each(session, &chown.places, chown.recursive, |image, visit| {
        // Numbers need no table.
        let is_named = |text: &str| !text.is_empty() && text.parse::<u32>().is_err();
        let owners = (is_named(user) || is_named(group)).then(|| image.owners());
        let number = |text: &str,
                      file: &str,
                      find: &dyn Fn(&Owners) -> Option<u32>|
         -> Outcome<Option<u32>> {
            if text.is_empty() {
                return Ok(None);
            }
            let found = text.parse().ok().or_else(|| owners.as_ref().and_then(find));
            let unknown = || Failure::new(format!("{text}: unknown name in the image's {file}"));
            found.map(Some).ok_or_else(unknown)
        };
        let uid = number(user, "/etc/passwd", &|owners| owners.find_user(user))?;
        let gid = number(group, "/etc/group", &|owners| owners.find_group(group))?;
        let is_link = chown.no_dereference || visit.depth > 0;
        let flags = if is_link {
            AtFlags::SYMLINK_NOFOLLOW
        } else {
            AtFlags::empty()
        };
        image
            .process()
            .fchownat(AT_FDCWD, visit.path, uid, gid, flags)
            .map_err(|error| image.name(error))
    })
}
