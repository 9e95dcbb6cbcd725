//! `folio debug`: shows structures of a file system as they are on disk.
//!
//! ```text
//!   mod.rs       the command
//!   request.rs   parses a request
//!   text.rs      answers as text, in the form of debugfs
//!   json.rs      answers as JSON
//!   answer.rs    answers to requests
//! ```

mod answer;
mod json;
mod request;
mod text;

use crate::exit::{Failure, Outcome};
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::session::Session;
use answer::Answer;
use clap::Args;
use folio::ext4::{BlockRun, Ext4Inspector, RawDirectoryEntry, RunKind};
use request::{InodeName, Request};
use std::ffi::OsString;

const AFTER_HELP: &str = "\
Requests, as debugfs names them; <N> is inode N:
  stat <N>|PATH            fields of an inode and its blocks, with tree nodes
  blocks <N>|PATH          the blocks of an inode, one number each
  bmap <N>|PATH BLOCK      the block of the image that holds this block of the file; 0 for a hole
  icheck BLOCK...          the inodes that use these blocks
  ncheck INODE...          the paths of these inodes
  ls [-l] [-d] <N>|PATH    entries of a directory in their order on disk; -d shows unused ones too
  testb BLOCK [COUNT]      whether the bitmap has these blocks in use
  testi <N>|PATH           whether the bitmap has this inode in use
  logdump                  the transactions in the journal

The image is read as it is: the journal is not replayed, and nothing is written. Symbolic links are not followed.

Examples:
  folio debug disk.qcow2 stat '<12>'
  folio debug disk.img 'icheck 8193 8200'
  folio debug --json disk.img@2 ls -d /etc";

/// Show structures of a file system: inodes and their blocks, directories, journal
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Debug {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// The request and its arguments
    #[arg(
        required = true,
        num_args = 1..,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "REQUEST"
    )]
    request: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(debug: &Debug, session: &Session) -> Outcome {
    session.refuse_options()?;
    let place = ImagePath::parse(&debug.image)?;
    if place.path.as_os_str() != "/" {
        return Err(Failure::usage(format!(
            "{place}: the path belongs to the request: folio debug {} stat {}",
            place.image_name(),
            place.path.display()
        )));
    }
    let request = Request::parse(&debug.request)?;
    let name = place.image_name();
    let disk = open_device(&place.image, Access::Read)?;
    let inspector = place
        .select(disk)
        .and_then(Ext4Inspector::open)
        .map_err(|error| Failure::image(error.at(name.clone())))?;
    let answer = answer(&inspector, request)
        .map_err(|error| Failure::new(format!("{name}: {}", crate::exit::explain(&error))))?;
    if debug.json {
        return session.print_json_alone(&json::of(&answer));
    }
    Ok(text::print(&answer)?)
}

fn answer(inspector: &Ext4Inspector, request: Request) -> folio::Result<Answer> {
    let number = |name: &InodeName| match name {
        InodeName::Number(number) => Ok(*number),
        InodeName::Path(path) => inspector
            .lookup(path)
            .map_err(|error| error.at(String::from_utf8_lossy(path).into_owned())),
    };
    Ok(match request {
        Request::Stat(name) => Answer::Stat(Box::new(inspector.inode(number(&name)?)?)),
        Request::Blocks(name) => Answer::Blocks(inspector.mapping(number(&name)?)?),
        Request::Bmap(name, block) => {
            let runs = inspector.mapping(number(&name)?)?;
            Answer::Bmap(mapped(&runs, block))
        }
        Request::Icheck(blocks) => {
            let owners = inspector.block_owners(&blocks)?;
            Answer::Icheck(blocks, owners)
        }
        Request::Ncheck(inodes) => {
            let paths = inspector.paths(&inodes)?;
            Answer::Ncheck(inodes, paths)
        }
        Request::Ls(name, options) => {
            let mut entries = inspector.entries(number(&name)?)?;
            entries.retain(|entry| options.shows_unused || entry.inode != 0);
            let with_fields = |entry: RawDirectoryEntry| {
                let fields = options.is_long && entry.inode != 0;
                let fields = fields.then(|| inspector.inode(entry.inode).ok()).flatten();
                (entry, fields)
            };
            Answer::Ls(entries.into_iter().map(with_fields).collect(), options)
        }
        Request::Testb(first, count) => {
            let used = (first..first.saturating_add(count))
                .map(|block| inspector.is_block_used(block).map(|used| (block, used)));
            Answer::Testb(used.collect::<folio::Result<_>>()?)
        }
        Request::Testi(name) => {
            let number = number(&name)?;
            Answer::Testi(number, inspector.is_inode_used(number)?)
        }
        Request::Logdump => Answer::Logdump(inspector.journal()?),
    })
}

/// Returns the block of the image that holds `block` of a file; 0 for a hole.
fn mapped(runs: &[BlockRun], block: u64) -> u64 {
    let holds = |run: &&BlockRun| {
        matches!(run.kind, RunKind::Data | RunKind::Unwritten)
            && (run.logical..run.logical + run.len).contains(&block)
    };
    let found = runs.iter().find(holds);
    found.map_or(0, |run| run.physical + (block - run.logical))
}
