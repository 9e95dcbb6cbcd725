//! `folio serve`: serves an image as a disk. One subcommand for each protocol.

mod disk;
mod nbd;
mod vhost_user_blk;

use crate::exit::Outcome;
use crate::session::Session;
use clap::{Args, Subcommand};

/// Serve an image as a disk
#[derive(Args)]
pub(crate) struct Serve {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Subcommand)]
enum Protocol {
    Nbd(nbd::Nbd),
    VhostUserBlk(vhost_user_blk::VhostUserBlk),
}

/// Returns the command's name for messages.
pub(crate) fn name(serve: &Serve) -> &'static str {
    match &serve.protocol {
        Protocol::Nbd(_) => "serve nbd",
        Protocol::VhostUserBlk(_) => "serve vhost-user-blk",
    }
}

/// Runs the command.
pub(crate) fn run(serve: &Serve, session: &Session) -> Outcome {
    session.refuse_options()?;
    match &serve.protocol {
        Protocol::Nbd(nbd) => nbd::run(nbd, session),
        Protocol::VhostUserBlk(blk) => vhost_user_blk::run(blk, session),
    }
}
