//! `folio disk`: disks with partitions, from a specification.
//!
//! ```text
//!   mod.rs      the list and the dispatch
//!     v
//!   create.rs   a new disk      add.rs   one more partition      list.rs   partitions as they are
//!     v                         grow.rs  a larger one
//!   layout.rs   offsets and sizes
//!     v
//!   content.rs  what a partition is filled with      verity.rs     hash trees      swap.rs
//!     v
//!   spec.rs     the specification in TOML
//! ```
//!
//! Above: the dispatch in `commands`. Below: `tree_copy`,
//! `file_system_resize`, `identity`, `image`, `verity`, `session`, `output`.

mod add;
mod content;
mod create;
mod grow;
mod layout;
mod list;
mod spec;
mod swap;
mod verity;

use crate::exit::Outcome;
use crate::session::Session;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  folio disk create disk.qcow2 spec.toml           a GPT, with an EFI system partition and a root of ext4
  folio disk list disk.qcow2
  folio disk add disk.qcow2 --type linux --label data --format ext4 --source ./data
  folio disk grow disk.qcow2                       after folio image resize disk.qcow2 +10G
  folio cp kernel.efi disk.qcow2@1:/EFI/BOOT/BOOTX64.EFI";

/// Create disks with partitions; list, add and enlarge partitions
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Disk {
    #[command(subcommand)]
    command: DiskCommand,
}

#[derive(Subcommand)]
enum DiskCommand {
    Create(create::Create),
    List(list::List),
    Add(add::Add),
    Grow(grow::Grow),
}

/// Returns the name for messages.
pub(crate) fn name(disk: &Disk) -> &'static str {
    match &disk.command {
        DiskCommand::Create(_) => "disk create",
        DiskCommand::List(_) => "disk list",
        DiskCommand::Add(_) => "disk add",
        DiskCommand::Grow(_) => "disk grow",
    }
}

/// Runs the command.
pub(crate) fn run(disk: &Disk, session: &Session) -> Outcome {
    session.refuse_options()?;
    match &disk.command {
        DiskCommand::Create(create) => create::run(create, session),
        DiskCommand::List(list) => list::run(list, session),
        DiskCommand::Add(add) => add::run(add, session),
        DiskCommand::Grow(grow) => grow::run(grow, session),
    }
}
