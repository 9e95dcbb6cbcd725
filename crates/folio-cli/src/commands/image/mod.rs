//! `folio image`: the life of an image file, with qemu-img's words.
//!
//! ```text
//!   mod.rs      the list and the dispatch      words.rs   options that several share: formats, backing files, JSON
//!   create.rs   one file per subcommand        new_image.rs   what a new image is like
//!   convert.rs                                 target.rs      where to
//! ```
//!
//! What differs from qemu-img stands in docs/image.md.

mod check;
mod commit;
mod compare;
mod convert;
mod create;
mod info;
pub(super) mod map;
mod new_image;
mod overlay;
mod rebase;
mod resize;
pub(super) mod shared_options;
mod snapshot;
mod target;

use crate::exit::Outcome;
use crate::session::Session;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Options, their short forms and the keys of JSON are qemu-img's as far as possible; docs/image.md tells what differs.

Examples:
  folio image create -f qcow2 disk.qcow2 10G";

/// Make image files and look after them, as qemu-img does
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Image {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Subcommand)]
enum ImageCommand {
    Create(create::Create),
    Check(check::Check),
    Info(info::Info),
    Map(map::Map),
    Convert(convert::Convert),
    Compare(compare::Compare),
    Snapshot(snapshot::Snapshot),
    Resize(resize::Resize),
    Rebase(rebase::Rebase),
    Commit(commit::Commit),
}

/// The command's name in messages.
pub(crate) fn name(image: &Image) -> &'static str {
    match &image.command {
        ImageCommand::Create(_) => "image create",
        ImageCommand::Check(_) => "image check",
        ImageCommand::Info(_) => "image info",
        ImageCommand::Map(_) => "image map",
        ImageCommand::Convert(_) => "image convert",
        ImageCommand::Compare(_) => "image compare",
        ImageCommand::Snapshot(_) => "image snapshot",
        ImageCommand::Resize(_) => "image resize",
        ImageCommand::Rebase(_) => "image rebase",
        ImageCommand::Commit(_) => "image commit",
    }
}

/// Runs the command.
pub(crate) fn run(image: &Image, session: &Session) -> Outcome {
    match &image.command {
        ImageCommand::Create(create) => create::run(create, session),
        ImageCommand::Check(check) => check::run(check, session),
        ImageCommand::Info(info) => info::run(info, session),
        ImageCommand::Map(map) => map::run(map, session),
        ImageCommand::Compare(compare) => compare::run(compare, session),
        ImageCommand::Convert(convert) => convert::run(convert, session),
        ImageCommand::Snapshot(snapshot) => snapshot::run(snapshot, session),
        ImageCommand::Resize(resize) => resize::run(resize, session),
        ImageCommand::Rebase(rebase) => rebase::run(rebase, session),
        ImageCommand::Commit(commit) => commit::run(commit, session),
    }
}
