//! `folio ctl`: orders to a server or a mount that runs.

use crate::arguments::size_change::{SizeChange, size_change};
use crate::control::{self, Answer, Order};
use crate::exit::{Failure, Outcome};
use crate::session::Session;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
SOCKET is what the command was started with: folio serve vhost-user-blk, folio serve nbd, folio mount and folio run
accept --control SOCKET.

A mount freezes its file system for a fork or a snapshot: all that was written before is in the copy. That of an ext4
with a journal, or of a FAT, is marked clean.

Examples:
  folio ctl /run/vm.ctl stats --json
  folio ctl /run/vm.ctl fork /srv/try.qcow2       a consistent copy of the running disk, in milliseconds
  folio ctl /run/vm.ctl snapshot before-update
  folio ctl /run/vm.ctl resize +10G               the guest sees the new size
  folio ctl /run/root.ctl fork now.qcow2          the same of an image on a mount, for folio mount --control
  folio ctl /run/vm.ctl compact                   copy old generations into the image";

/// Give an order to a running server or mount: flush, snapshot, fork, resize
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Ctl {
    /// The control socket of the server or mount
    socket: PathBuf,
    #[command(subcommand)]
    order: OrderArgs,
    /// The image, if the server has several
    #[arg(long, global = true, value_name = "IMAGE")]
    image: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum OrderArgs {
    /// Show the number of requests, the chain of images, and the page cache of a mount
    Stats,
    /// Show how the disk is served
    Options,
    /// Flush the disk
    Flush,
    /// Create an internal snapshot (qcow2)
    Snapshot {
        /// Its name
        name: String,
    },
    /// Copy the disk as it is now, by sharing its content
    Fork {
        /// The new image; it must not exist
        new: PathBuf,
    },
    /// Enlarge or shrink the disk; a mounted file system keeps its size
    Resize {
        /// The new size, or the difference to the old one (+ or -)
        #[arg(allow_hyphen_values = true, value_parser = size_change, value_name = "[+|-]SIZE")]
        size: SizeChange,
        /// Allow a smaller size; data beyond it is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Copy the generations that forks have made into the image
    Compact,
}

/// Runs the command.
pub(crate) fn run(ctl: &Ctl, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let order = match &ctl.order {
        OrderArgs::Stats => Order::Stats,
        OrderArgs::Options => Order::Options,
        OrderArgs::Flush => Order::Flush,
        OrderArgs::Snapshot { name } => Order::Snapshot { name: name.clone() },
        // The server has a folder of its own.
        OrderArgs::Fork { new } => Order::Fork {
            new: std::path::absolute(new)?,
        },
        OrderArgs::Resize { size, shrink } => Order::Resize {
            size: *size,
            may_shrink: *shrink,
        },
        OrderArgs::Compact => Order::Compact,
    };
    match control::ask(&ctl.socket, ctl.image.as_deref(), &order)? {
        Answer::Failed { message, .. } => Err(Failure::new(message)),
        Answer::Done(value) if ctl.json => session.print_json_alone(&value),
        Answer::Done(value) => print(&value, session),
    }
}

/// Prints each field of an answer in a line.
fn print(value: &Value, session: &Session) -> Outcome {
    let mut out = std::io::stdout().lock();
    let fields = value.as_object().into_iter().flatten();
    let mut count = 0;
    for (name, value) in fields {
        count += 1;
        match value {
            Value::String(text) => writeln!(out, "{name}: {text}")?,
            Value::Array(list) => {
                let texts: Vec<_> = list.iter().filter_map(Value::as_str).collect();
                writeln!(out, "{name}: {}", texts.join(", "))?;
            }
            Value::Object(fields) => {
                for (part, value) in fields {
                    writeln!(out, "{name}.{part}: {value}")?;
                }
            }
            value => writeln!(out, "{name}: {value}")?,
        }
    }
    if count == 0 && !session.quiet {
        writeln!(out, "done")?;
    }
    Ok(())
}
