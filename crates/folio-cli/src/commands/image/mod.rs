//! `folio image`: creates, inspects and changes image files, with the options of qemu-img.
//!
//! ```text
//!   mod.rs      the list and the dispatch
//!     v
//!   create.rs, convert.rs, ...   one file per subcommand
//!     v
//!   new_image.rs        options of new images
//!   overlay.rs          parts of rebase and commit       target.rs      the target of convert
//!   snapshot_table.rs   the list of snapshots            qemu_size.rs   sizes as qemu-img prints them
//! ```
//!
//! docs/image.md lists the differences from qemu-img. Above: the dispatch in `commands`. Below:
//! `arguments`, `image_chain`, `image`, `verity`, `progress`, `session`, `output`.

mod amend;
mod bitmap;
mod check;
mod commit;
mod compare;
mod convert;
mod convert_bitmaps;
mod convert_source;
mod create;
mod dd;
mod formatting;
mod info;
mod info_foreign;
pub(super) mod map;
mod measure;
mod new_image;
mod overlay;
mod qemu_size;
mod rebase;
mod resize;
mod snapshot;
mod snapshot_table;
mod target;
mod verity;

use crate::exit::Outcome;
use crate::qemu_img::Manners;
use crate::session::Session;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Options, short forms and JSON keys follow qemu-img where possible; docs/image.md lists the differences.

Examples:
  folio image create -f qcow2 disk.qcow2 10G";

/// Create, inspect and change image files, as qemu-img does
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Image {
    /// Take the place of qemu-img: overwrite existing targets, open any backing file, end with its
    /// exit codes and print its messages. A link named qemu-img to folio does the same
    #[arg(long)]
    qemu: bool,
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Subcommand)]
enum ImageCommand {
    Create(create::Create),
    Check(check::Check),
    Bitmap(bitmap::Bitmap),
    Amend(amend::Amend),
    Dd(dd::Dd),
    Info(info::Info),
    Map(map::Map),
    Measure(measure::Measure),
    Convert(convert::Convert),
    Compare(compare::Compare),
    Snapshot(snapshot::Snapshot),
    Resize(resize::Resize),
    Rebase(rebase::Rebase),
    Commit(commit::Commit),
    Verity(verity::Verity),
}

impl Image {
    /// Returns the program whose behavior is requested.
    pub(crate) fn manners(&self) -> Manners {
        if self.qemu {
            Manners::QemuImg
        } else {
            Manners::Folio
        }
    }
}

/// Returns the command's name for messages.
pub(crate) fn name(image: &Image) -> &'static str {
    match &image.command {
        ImageCommand::Create(_) => "image create",
        ImageCommand::Check(_) => "image check",
        ImageCommand::Info(_) => "image info",
        ImageCommand::Map(_) => "image map",
        ImageCommand::Bitmap(_) => "image bitmap",
        ImageCommand::Amend(_) => "image amend",
        ImageCommand::Dd(_) => "image dd",
        ImageCommand::Measure(_) => "image measure",
        ImageCommand::Convert(_) => "image convert",
        ImageCommand::Compare(_) => "image compare",
        ImageCommand::Snapshot(_) => "image snapshot",
        ImageCommand::Resize(_) => "image resize",
        ImageCommand::Rebase(_) => "image rebase",
        ImageCommand::Commit(_) => "image commit",
        ImageCommand::Verity(_) => "image verity",
    }
}

/// Runs the command.
pub(crate) fn run(image: &Image, session: &Session) -> Outcome {
    match &image.command {
        ImageCommand::Create(create) => create::run(create, session),
        ImageCommand::Check(check) => check::run(check, session),
        ImageCommand::Info(info) => info::run(info, session),
        ImageCommand::Map(map) => map::run(map, session),
        ImageCommand::Bitmap(bitmap) => bitmap::run(bitmap, session),
        ImageCommand::Amend(amend) => amend::run(amend, session),
        ImageCommand::Dd(dd) => dd::run(dd, session),
        ImageCommand::Measure(measure) => measure::run(measure, session),
        ImageCommand::Compare(compare) => compare::run(compare, session),
        ImageCommand::Convert(convert) => convert::run(convert, session),
        ImageCommand::Snapshot(snapshot) => snapshot::run(snapshot, session),
        ImageCommand::Resize(resize) => resize::run(resize, session),
        ImageCommand::Rebase(rebase) => rebase::run(rebase, session),
        ImageCommand::Commit(commit) => commit::run(commit, session),
        ImageCommand::Verity(verity) => verity::run(verity, session),
    }
}
